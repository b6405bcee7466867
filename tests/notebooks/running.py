"""Execute a notebook as a participant would: a fresh kernel, from top to bottom, in a folder of its own."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from traitlets.config import Config

CELL_LIMIT_S = 150
SECONDS: dict[str, float] = {}


@dataclass(frozen=True)
class Executed:
    """A notebook that ran to its end."""

    path: Path
    cells: list[Any]
    seconds: float

    @property
    def outputs(self):
        return [output for cell in self.cells for output in cell.get("outputs", ())]

    @property
    def text(self):
        """All that is shown as text."""
        plain = [o["data"].get("text/plain", "") for o in self.outputs if "data" in o]
        return "\n".join([*plain, *(o["text"] for o in self.outputs if o["output_type"] == "stream")])

    @property
    def html(self):
        return "\n".join(o["data"].get("text/html", "") for o in self.outputs if "data" in o)

    @property
    def stderr(self):
        return "".join(o["text"] for o in self.outputs if o.get("name") == "stderr")


def execute(path, folder, kept=None, sections=(), last=""):
    """Run every cell, or those of some sections, and a last one that the notebook does not have; a failure
    names the file, the cell and its source.
    """
    notebook = nbformat.read(path, as_version=4)
    if sections:
        notebook.cells = [cell for cell in notebook.cells if cell.id.startswith(sections)]
    if last:
        notebook.cells.append(nbformat.v4.new_code_cell(last))
    client = NotebookClient(
        notebook,
        timeout=CELL_LIMIT_S,
        startup_timeout=120,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        config=Config(KernelManager={"transport_encryption": "auto"}),
    )
    started = time.monotonic()
    try:
        client.execute(env={**os.environ, "JUPYTER_PREFER_ENV_PATH": "1"})
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        pytest.fail(f"{path.parent.name}/{path.name}, {_where(notebook)}\n{error}", pytrace=False)
    finally:
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            nbformat.write(notebook, kept)
    seconds = time.monotonic() - started
    SECONDS[f"{path.parent.name}/{path.name}"] = seconds
    return Executed(path, notebook.cells, seconds)


def _where(notebook):
    """The cell that ran last."""
    ran = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.execution_count]
    return f"cell {ran[-1].id}" if ran else "before the first cell"
