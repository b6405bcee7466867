"""py:percent text <-> cells <-> notebook JSON: the one place that knows the syntax.

    # %% [markdown] id="questions"
    # ## Questions
    #
    # Plain Markdown, each line after `# `.

    # %% tags=["hide-input"]
    print("code as it is")

A header may carry `key=JSON` pairs: `id` names the cell, `tags` and other keys become metadata.
Jupytext and the editors that know py:percent read the same text. The first line is a header; cells
neither begin nor end with an empty line.

Cell ids are `section-cell` numbers: the third cell after the second heading is `s02-03`. So a change
of text changes no id, and a new cell moves only the ids after it in its own section. An explicit `id`
on a heading names its whole section (`questions`, `questions-02` ...), which then never moves.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Literal

import nbformat

Kind = Literal["markdown", "code"]

HEADER = re.compile(r"# %%(?P<markdown> \[markdown\])?(?P<options>( .*)?)$")
OPTION = re.compile(r"\s+([A-Za-z][\w-]*)=")
CELL_ID = re.compile(r"[A-Za-z0-9_-]{1,64}$")
HEADING = re.compile(r"#{1,3} ")
METADATA: dict[str, Any] = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


class SourceTextError(Exception):
    """The text is not what this tool understands; the message names the line."""


@dataclass(frozen=True)
class Cell:
    """One cell: its text without the `# ` of Markdown lines, and what its header says."""

    kind: Kind
    text: str
    id: str | None = None
    tags: tuple[str, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)
    line: int = field(default=0, compare=False)  # of the header, for messages


def parse(text: str) -> list[Cell]:
    """Read py:percent text."""
    cells: list[Cell] = []
    header: tuple[int, str] | None = None
    body: list[str] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if HEADER.match(line):
            if header:
                cells.append(_cell(*header, body))
            header, body = (number, line), []
        elif header is None and line.strip():
            raise SourceTextError(f"line {number}: text before the first `# %%` belongs to no cell")
        else:
            body.append(line)
    return [*cells, _cell(*header, body)] if header else cells


def _cell(number: int, header: str, body: list[str]) -> Cell:
    match = HEADER.match(header)
    assert match is not None
    options = _options(number, match["options"])
    cell_id, tags = options.pop("id", None), options.pop("tags", [])
    if cell_id is not None and not (isinstance(cell_id, str) and CELL_ID.match(cell_id)):
        raise SourceTextError(f"line {number}: the id {cell_id!r} is not made of letters, digits, - and _")
    if not (isinstance(tags, list) and all(isinstance(tag, str) for tag in tags)):
        raise SourceTextError(f"line {number}: tags are a JSON list of strings, not {tags!r}")
    kind: Kind = "markdown" if match["markdown"] else "code"
    lines = _without_hash(number, body) if kind == "markdown" else body
    return Cell(kind, "\n".join(lines).strip("\n"), cell_id, tuple(tags), options, number)


def _options(number: int, text: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    position = 0
    while text[position:].strip():
        match = OPTION.match(text, position)
        if match is None:
            raise SourceTextError(f"line {number}: expected key=JSON, got {text[position:].strip()!r}")
        try:
            options[match[1]], position = json.JSONDecoder().raw_decode(text, match.end())
        except ValueError as error:
            raise SourceTextError(f"line {number}: the value of {match[1]} is not JSON ({error})") from error
    return options


def _without_hash(number: int, body: list[str]) -> list[str]:
    lines = []
    for offset, line in enumerate(body, start=1):
        if line and line != "#" and not line.startswith("# "):
            raise SourceTextError(f"line {number + offset}: a Markdown line begins with `# `, not {line!r}")
        lines.append(line[2:])
    return lines


def emit(cells: list[Cell]) -> str:
    """Write cells as py:percent text; `parse` reads back the same cells."""
    return "\n".join(_emit_cell(cell) for cell in cells)


def _emit_cell(cell: Cell) -> str:
    options = dict(sorted(cell.metadata.items()))  # the notebook sorts them too
    if cell.tags:
        options = {"tags": list(cell.tags), **options}
    if cell.id is not None:
        options = {"id": cell.id, **options}
    header = "# %%" + " [markdown]" * (cell.kind == "markdown")
    header += "".join(f" {key}={json.dumps(value, ensure_ascii=False)}" for key, value in options.items())
    lines = cell.text.split("\n") if cell.text else []
    if cell.kind == "markdown":
        lines = [f"# {line}" if line else "#" for line in lines]
    if clash := next((line for line in lines if HEADER.match(line)), None):
        raise SourceTextError(f"the line {clash!r} inside a cell would begin a new one")
    return "\n".join([header, *lines, ""])


def ids(cells: list[Cell]) -> list[str]:
    """The id of every cell: explicit, or from its place (see above); never the same one twice."""
    taken = {cell.id for cell in cells if cell.id}
    found: list[str] = []
    section, section_number, ordinal = "s00", 0, 0
    for cell in cells:
        ordinal += 1
        if cell.kind == "markdown" and HEADING.match(cell.text):
            section_number, ordinal = section_number + 1, 1
            section = cell.id or f"s{section_number:02}"
        name = cell.id or f"{section}-{ordinal:02}"
        while name in found or (cell.id is None and name in taken):
            if cell.id:
                raise SourceTextError(f"line {cell.line}: the id {cell.id!r} is used twice")
            name += "x"
        found.append(name)
    return found


def to_notebook(cells: list[Cell]) -> str:
    """The text of the .ipynb file: nbformat 4.5, no outputs, nothing that changes between builds."""
    built = []
    for cell, cell_id in zip(cells, ids(cells), strict=True):
        metadata = {**cell.metadata, **({"tags": list(cell.tags)} if cell.tags else {})}
        entry: dict[str, Any] = {
            "cell_type": cell.kind,
            "id": cell_id,
            "metadata": metadata,
            "source": cell.text.splitlines(keepends=True) if cell.text else [],
        }
        if cell.kind == "code":
            entry |= {"execution_count": None, "outputs": []}
        built.append(entry)
    notebook = {"cells": built, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}
    try:
        nbformat.validate(notebook)
    except nbformat.ValidationError as error:
        raise SourceTextError(f"the cells are no valid notebook: {error.message}") from error
    return json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def from_notebook(text: str) -> list[Cell]:
    """The cells of a built notebook, every id explicit."""
    cells = []
    for entry in json.loads(text)["cells"]:
        metadata = dict(entry["metadata"])
        tags = tuple(metadata.pop("tags", ()))
        cells.append(Cell(entry["cell_type"], "".join(entry["source"]), entry["id"], tags, metadata))
    return cells
