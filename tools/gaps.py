"""One solution text gives both the solution and the exercise with gaps.

    def files_a_copy(files: int, folders: int) -> int:
        # --8<-- solution
        return files + folders
        # --8<-- stub
        # raise NotImplementedError("return a whole number")
        # --8<-- end

The solution keeps the lines above `stub`; the exercise gets those below, without their `# `. The
marker lines vanish. It works in code, in Markdown cells and in job scripts, since all have `# `
before what does not run; a stub may be empty, and so may a solution. For a whole cell that only one
side has, use the tag `solution-only` or `exercise-only` on its header.
"""

from __future__ import annotations

import re
from typing import Literal

from percent import HEADER, Cell, SourceTextError

Side = Literal["solution", "exercise"]

MARKER = re.compile(r"\s*# --8<-- (\w+)\s*$")
NEXT_MARKER = {"": "solution", "solution": "stub", "stub": "end"}


def derive(text: str, side: Side) -> str:
    """The text of one side."""
    kept: list[str] = []
    state = ""
    for number, line in enumerate(text.split("\n"), start=1):
        if marker := MARKER.match(line):
            if marker[1] != NEXT_MARKER[state]:
                raise SourceTextError(
                    f"line {number}: the marker {marker[1]!r} stands where {NEXT_MARKER[state]!r} is due"
                )
            state = "" if marker[1] == "end" else marker[1]
        elif state and HEADER.match(line):
            raise SourceTextError(f"line {number}: the gap before this cell is not closed by `end`")
        elif not state or (state == "solution" and side == "solution"):
            kept.append(line)
        elif state == "stub":
            stub = _uncommented(number, line)  # checked on both sides, so that no mistake hides
            kept += [stub] if side == "exercise" else []
    if state:
        raise SourceTextError(f"the last gap is not closed: {NEXT_MARKER[state]!r} is missing")
    return "\n".join(kept)


def _uncommented(number: int, line: str) -> str:
    match = re.match(r"(\s*)#( |$)(.*)$", line)
    if match is None and line.strip():
        raise SourceTextError(f"line {number}: a stub's lines are comments, not {line.strip()!r}")
    return match[1] + match[3] if match else ""


def choose_cells(cells: list[Cell], side: Side) -> list[Cell]:
    """Drop the cells that are tagged for the other side."""
    other = "exercise-only" if side == "solution" else "solution-only"
    own = f"{side}-only"
    chosen = [cell for cell in cells if other not in cell.tags]
    return [
        Cell(c.kind, c.text, c.id, tuple(t for t in c.tags if t != own), c.metadata, c.line) for c in chosen
    ]
