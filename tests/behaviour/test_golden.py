"""Packed files stay what they are: equal inputs give the recorded bytes, and older files still open."""

import json
import zipfile
from pathlib import Path

import pytest
from golden_sets import PACKS, bytes_of, contents, pack, plant

import smallfiles
from pysquashfs import SquashFS
from smallfiles import formats
from smallfiles.cli import main

GOLDEN = Path(__file__).with_name("golden")
BYTES = json.loads((GOLDEN / "bytes.json").read_text(encoding="utf-8"))
CONTENTS = json.loads((GOLDEN / "contents.json").read_text(encoding="utf-8"))
OF_LIBRARIES = {"zstd.sqfs", "fragments.sqfs", "plain.lmdb"}
"""Their bytes depend on the version of a compressor, or of liblmdb."""
OLD = [
    (archive.stem, name)
    for archive in sorted(GOLDEN.glob("*.zip"))
    for name in PACKS
    if name in {entry.split("/")[0] for entry in zipfile.ZipFile(archive).namelist()}
]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    return plant(tmp_path_factory.mktemp("trees"))


@pytest.mark.parametrize("name", sorted(PACKS.keys() - OF_LIBRARIES))
def test_equal_inputs_give_the_recorded_bytes(name, sources, tmp_path, monkeypatch):
    """Somebody who compares digests, or resumes a copy, relies on this. `golden_sets.py` records anew."""
    monkeypatch.setattr(smallfiles, "__version__", "0.1.0")  # the record of a file names the version
    tree, arguments = PACKS[name]
    assert pack(sources[tree], tmp_path / name, arguments) == 0
    assert bytes_of(tmp_path / name) == BYTES[name]


@pytest.fixture(scope="module")
def old_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("old")
    for archive in GOLDEN.glob("*.zip"):
        zipfile.ZipFile(archive).extractall(folder / archive.stem)
    return folder


@pytest.mark.parametrize(("version", "name"), OLD)
def test_a_file_of_an_older_version_has_its_contents(version, name, old_files):
    assert contents(old_files / version / name) == CONTENTS[name]


@pytest.mark.parametrize(("version", "name"), OLD)
def test_verify_finds_a_file_of_an_older_version_intact(version, name, old_files):
    assert main(["verify", str(old_files / version / name)]) == 0


@pytest.mark.parametrize("name", ["zstd.sqfs", "fields.sqfs"])
def test_an_image_whose_table_was_a_file_of_the_tree_is_packed_again_without_it(name, old_files, tmp_path):
    old, out = old_files / "0.1.0" / name, tmp_path / "again.sqfs"
    assert main(["pack", str(old), str(out)]) == 0
    gone = {*SquashFS(old).paths} ^ {*SquashFS(out).paths}
    assert ".smallfiles/samples.arrow" in gone and {name.split("/")[0] for name in gone} == {".smallfiles"}
    with formats.open(old) as before, formats.open(out) as after:
        assert before.keys().equals(after.keys()) and before.table().equals(after.table())
        assert all(before.read(row) == after.read(row) for row in range(len(before)))


def test_every_format_has_an_older_file():
    suffixes = {Path(name).suffix for _, name in OLD}
    for format in formats.names():
        assert suffixes & set(formats.suffixes()[format]), f"no older file of the format {format}"
