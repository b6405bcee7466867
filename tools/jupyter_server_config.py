"""How `make lab` saves notebooks: as they are built, without outputs and without what a server adds.

So running the course leaves `git status` clean, and what somebody writes into a cell is the only change.
The figures stay on the page until it is closed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))

from percent import METADATA

FOLDERS = ("notebooks", "exercises", "solutions")


def as_built(model: dict[str, Any], path: str, **_: Any) -> None:
    """Called by the server before it saves; changes what is saved.

    Args:
        model: What is saved, of any type.
        path: Its place below the root.
    """
    if model["type"] != "notebook" or path.strip("/").partition("/")[0] not in FOLDERS:
        return
    notebook = model["content"]
    notebook["metadata"] = METADATA
    for cell in notebook["cells"]:
        cell["metadata"] = {
            key: value for key, value in cell["metadata"].items() if key in ("tags", "jupyter")
        }
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None


globals()["c"].ContentsManager.pre_save_hook = as_built  # the server has put it here
