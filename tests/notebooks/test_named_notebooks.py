"""Docstrings that point at a notebook name one that is there, and the one that is about their room."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("pysquashfs", "smallfiles", "helpers", "benchmarks", "contrib")
POINTS_AT = re.compile(r"[Nn]otebooks?\s+\d\d(?:(?:,|\s+to|\s+and|\s+or)\s+\d\d)*")
ABOUT = {
    **{f"helpers/experiments/nb{number}": {number} for number in ("03", "07", "08", "09", "10")},
    "helpers/jobs": {"10"},
    "smallfiles/formats/arrow": {"03"},
    "smallfiles/formats/files": {"01"},
    "smallfiles/formats/hdf5": {"04", "13"},
    "contrib/smallfiles-lmdb": {"11"},
    "smallfiles/formats/squashfs": {"06"},
    "smallfiles/formats/tar": {"05", "13"},
    "smallfiles/images": {"08"},
    "smallfiles/manifest": {"02"},
    "smallfiles/measure/loading": {"08"},
    "smallfiles/objectstore": {"09"},
    "smallfiles/ring": {"08"},
    "smallfiles/loading/makers": {"13"},
    "smallfiles/slowfs": {"01"},
    "smallfiles/sources/synthetic/layouts": {"02", "03", "13"},
    "smallfiles/sources/flickr30k": {"02", "03"},
    "smallfiles/sources/tarball": {"05"},
    "smallfiles/staging": {"07"},
    "smallfiles/training": {"08", "10", "13"},
}
"""The notebooks about a room; rooms that serve all of them are not listed."""


def pointers():
    for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        found = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        numbers = {number for words in POINTS_AT.findall(found) for number in re.findall(r"\d\d", words)}
        if numbers:
            yield path.relative_to(ROOT).as_posix(), numbers


def test_every_room_of_the_table_is_there():
    there = {room for room in ABOUT if (ROOT / room).is_dir() or (ROOT / f"{room}.py").is_file()}
    assert there == set(ABOUT)


@pytest.mark.parametrize(("name", "numbers"), list(pointers()))
def test_a_docstring_names_the_notebook_about_its_room(name, numbers, repository):
    there = {path.name[:2] for path in (repository / "notebooks" / "src").glob("*.py")}
    assert numbers <= there, "no such notebook"
    room = next((room for room in ABOUT if name.startswith((f"{room}/", f"{room}.py"))), None)
    assert room is None or numbers <= ABOUT[room], f"{room} is taught in notebook {', '.join(ABOUT[room])}"
