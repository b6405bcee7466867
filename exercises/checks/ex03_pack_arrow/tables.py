"""Tries of `read_captions`: results.csv in small, tidy and as it really is.

The trap: "skip line 20,001" passes on the real file alone, so the bad row stands elsewhere here.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exercises.checks.attempt import Attempt
from exercises.checks.ex03_pack_arrow.captions import DELIMITER, captions_problem, texts_problem
from exercises.checks.ex03_pack_arrow.folders import HEADER, row


@dataclass(frozen=True)
class Table:
    """A results.csv: what is special about it, its rows, and the row that is spoilt."""

    what: str
    rows: tuple[tuple[str, int, str], ...]
    spoilt: int | None = None

    @property
    def text(self) -> str:
        """The file."""
        lines = [row(*cells, spoilt=place == self.spoilt) for place, cells in enumerate(self.rows)]
        return "".join([HEADER + "\n", *lines])

    @property
    def captions(self) -> dict[str, list[str]]:
        """What it says."""
        found: dict[str, dict[int, str]] = {}
        for name, number, caption in self.rows:
            found.setdefault(name, {})[number] = caption
        return {name: [texts[number] for number in sorted(texts)] for name, texts in found.items()}


def _five(name: str, *texts: str) -> tuple[tuple[str, int, str], ...]:
    return tuple((name, number, text) for number, text in enumerate(texts))


_DOG = _five(
    "1000092795.jpg",
    "A dog runs , jumps and barks .",
    'Someone calls it " dog " .',
    "A brown dog in a café .",
    "4 legs and a tail .",
    "A dog , seen from the side .",
)
_BOAT = _five(
    "36979.jpg",
    "A boat on a lake .",
    '" Boats for hire , says a sign .',
    "Two people row .",
    "Clouds , water and a boat .",
    '" Closed .',
)
_SIGN = _five("4954.jpg", "A sign says A | B .", "A sign .", "Black on white .", "It hangs high .", "A | .")

TABLES = (
    Table(
        "two images, tidy",
        _DOG + _five("2.jpg", "A lake .", "Blue water .", "Waves .", "Two boats .", "Sun ."),
    ),
    Table("captions with quotes that are not closed", _DOG + _BOAT),
    Table("one row has lost its second |", _DOG + _BOAT, spoilt=4),
    Table("another row has lost it, and begins with a digit", _BOAT + _DOG, spoilt=8),
    Table("rows in another order", tuple(sorted(_DOG + _BOAT, key=lambda cells: (-cells[1], cells[0])))),
    Table("captions that hold a |", _SIGN + _DOG),
    Table("no rows at all", ()),
)


def try_tables(attempt: Attempt) -> None:
    """Give each table to the answer and compare."""
    with tempfile.TemporaryDirectory(prefix="smallfiles-") as place:
        path = Path(place) / "results.csv"
        for table in TABLES:
            path.write_text(table.text, encoding="utf-8")
            got = attempt(path, _shown=f"results.csv: {table.what}")
            _compare(attempt, table.captions, got)


def _compare(attempt: Attempt, expected: dict[str, list[str]], got: Any) -> None:
    attempt.require(
        isinstance(got, dict),
        got=got,
        expected="a dict: image name -> list of captions",
        because="the result is looked up by image name later, so it has to be a dict",
    )
    _compare_names(attempt, list(expected), list(got))
    for name, captions in expected.items():
        problem = texts_problem(got[name])
        if problem:
            raise attempt.wrong(f"{name}: {problem[0]}", f"{name}: {captions}", problem[1])
    for name, captions in expected.items():
        others = [texts for other, texts in expected.items() if other != name]
        because = captions_problem(captions, got[name], others)
        if because:
            raise attempt.wrong(f"{name}: {_differing(captions, got[name])}", f"{captions}", because)


def _differing(expected: list[str], got: list[str]) -> str:
    """The captions that were not expected, or all of them."""
    strange = [text for text in got if text not in expected]
    return f"… {strange} …" if strange else str(got)


def _compare_names(attempt: Attempt, expected: list[str], got: list[Any]) -> None:
    strange = [name for name in got if name not in expected]
    missing = [name for name in expected if name not in got]
    if not strange and not missing:
        return
    attempt.require(
        not any(str(name).strip() == "image_name" for name in strange),
        got="an image called image_name",
        expected="images only",
        because="the first line is the header; skip it",
    )
    because = "the key is the name of the image, as it stands before the first `|`"
    if any(isinstance(name, bytes) for name in strange):
        because = "names are text; open the file as text, or decode"
    elif any(str(name).startswith(("b'", 'b"')) for name in strange):
        because = "str() of bytes gives their Python spelling, with b' in front; open the file as text"
    elif any("|" in str(name) or "," in str(name) for name in strange):
        because = f"a comma does not end a name: {DELIMITER}"
    elif missing and not strange:
        because = "images are lost; a quote that is never closed makes a csv reader swallow the rows after it"
    raise attempt.wrong(f"names {sorted(map(str, got))}", f"names {sorted(expected)}", because)
