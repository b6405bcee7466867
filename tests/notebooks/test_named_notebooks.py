"""Docstrings that point at a notebook name one that is there, and the one that is about their room."""

import ast
import re
from pathlib import Path

import pytest

import helpers

PACKAGE = Path(helpers.__file__).parent
POINTS_AT = re.compile(r"[Nn]otebooks?\s+\d\d(?:(?:,|\s+to|\s+and|\s+or)\s+\d\d)*")
ABOUT = {
    "bench/arrow": {"03"},
    "bench/cost": {"01"},
    "bench/feeding": {"08"},
    "bench/hdf5": {"04"},
    "bench/loading": {"08"},
    "bench/nodes": {"10"},
    "bench/shards": {"05"},
    "bench/squashfs": {"06"},
    "bench/staged": {"07"},
    "formats/arrow": {"03"},
    "formats/files": {"01"},
    "formats/hdf5": {"04"},
    "formats/squashfs": {"06"},
    "formats/tar": {"05"},
    "images": {"08"},
    "jobs": {"10"},
    "manifest": {"02"},
    "ring": {"08"},
    "slowfs": {"01"},
    "sources/flickr30k": {"02", "03"},
    "sources/tarball": {"05"},
    "staging": {"07"},
    "training": {"08", "10"},
}
"""The notebooks about a room; rooms that serve all of them are not listed."""


def pointers():
    for path in sorted(PACKAGE.rglob("*.py")):
        found = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        numbers = {number for words in POINTS_AT.findall(found) for number in re.findall(r"\d\d", words)}
        if numbers:
            yield path.relative_to(PACKAGE).as_posix(), numbers


def test_every_room_of_the_table_is_there():
    assert not [room for room in ABOUT if not (PACKAGE / room).is_dir()]


@pytest.mark.parametrize(("name", "numbers"), list(pointers()))
def test_a_docstring_names_the_notebook_about_its_room(name, numbers, repository):
    there = {path.name[:2] for path in (repository / "notebooks" / "src").glob("*.py")}
    assert numbers <= there, "no such notebook"
    room = next((room for room in ABOUT if name.startswith(f"{room}/")), None)
    assert room is None or numbers <= ABOUT[room], f"{room} is taught in notebook {', '.join(ABOUT[room])}"
