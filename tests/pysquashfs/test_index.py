"""The index kept beside an image: right, quick, and never believed blindly."""

import os
import random
import shutil

import numpy as np
import pytest
from squashfs_crafted import craft, file, folder

from pysquashfs import SquashFS, index_file
from pysquashfs.index_file import MIN_ENTRIES, index_path
from pysquashfs.names import STEP, Names


@pytest.fixture(scope="module")
def image_bytes():
    """An image large enough for its index to be kept."""
    entries = [(b"%06d" % number, file(b"%d" % number)) for number in range(MIN_ENTRIES)]
    return craft(folder((b"d", folder(*entries)), (b"z", folder((b"last", file(b"!"))))))


@pytest.fixture
def image(image_bytes, tmp_path):
    path = tmp_path / "x.sqfs"
    path.write_bytes(image_bytes)
    return path


@pytest.fixture
def parses(monkeypatch):
    """How often an image was parsed."""
    seen = []
    real = index_file.parsing.parse

    def parse(opened):
        seen.append(opened.path)
        return real(opened)

    monkeypatch.setattr(index_file.parsing, "parse", parse)
    return seen


def check(path):
    with SquashFS(path) as opened:
        assert len(opened) == MIN_ENTRIES + 1
        for number in range(0, MIN_ENTRIES, 97):
            assert opened.read(f"d/{number:06d}") == opened.read_at(number) == b"%d" % number
        assert opened.read_at(-1) == b"!"
        assert opened.list("z") == ["z/last"]
        assert opened.verify().ok


def test_the_second_opening_reads_the_kept_index(image, parses):
    check(image)
    assert sorted(os.listdir(image.parent)) == ["x.sqfs", "x.sqfs.index"]
    check(image)
    assert len(parses) == 1
    assert index_path(image).stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_kept_index_holds_every_column_as_parsed(image):
    with SquashFS(image, cache=False) as parsed, SquashFS(image), SquashFS(image) as kept:
        for ours, theirs in zip(
            index_file._columns(parsed.index), index_file._columns(kept.index), strict=True
        ):
            np.testing.assert_array_equal(ours, theirs)
        assert kept.index.superblock == parsed.index.superblock


def test_small_images_and_those_opened_without_cache_leave_nothing_behind(image, tmp_path):
    small = tmp_path / "small"
    small.write_bytes(craft(folder((b"a", file(b"1")))))
    SquashFS(small).close()
    SquashFS(image, cache=False).close()
    assert sorted(os.listdir(tmp_path)) == ["small", "x.sqfs"]


def test_an_index_of_another_image_is_ignored(image, parses, tmp_path):
    check(image)
    other = tmp_path / "other.sqfs"
    other.write_bytes(craft(folder((b"a", file(b"other")))))
    shutil.copy(index_path(image), index_path(other))
    with SquashFS(other) as opened:
        assert opened.read_at(0) == b"other"
    os.utime(image, ns=(1, 1))  # the same bytes, but who knows
    check(image)
    assert len(parses) == 3


def test_no_damage_to_an_index_is_believed(image, parses):
    check(image)
    whole = index_path(image).read_bytes()
    rng = random.Random(7)
    for case in range(30):
        damaged = bytearray(whole)
        if case % 3 == 0:
            damaged[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        elif case % 3 == 1:
            del damaged[rng.randrange(len(whole)) :]
        else:
            damaged[rng.randrange(400) :] = rng.randbytes(rng.randrange(1, 1000))
        if bytes(damaged) == whole:
            continue
        index_path(image).write_bytes(damaged)
        before = len(parses)
        with SquashFS(image) as opened:
            assert opened.read_at(5) == b"5"
        assert len(parses) == before + 1, f"case {case}"
        assert index_path(image).read_bytes() == whole  # it was written anew


@pytest.mark.parametrize(
    ("column", "row", "value"),
    [
        ("size", 3, -1),
        ("size", 3, 1 << 50),
        ("start", 3, 1 << 50),
        ("start", 3, -5),
        ("fragment", 3, 0),
        ("uid", 3, 1),
        ("offsets", 3, 1 << 40),
        ("offsets", 3, 0),
    ],
)
def test_an_index_with_a_right_checksum_and_wrong_positions_is_ignored(image, parses, column, row, value):
    with SquashFS(image, cache=False) as opened:
        index = opened.index
    owner = index.files.names if column == "offsets" else index.files
    getattr(owner, column).setflags(write=True)
    getattr(owner, column)[row] = value
    index_file.save(index, index_path(image))
    check(image)
    assert len(parses) == 2


def test_a_failed_write_leaves_nothing_beside_the_image(image, monkeypatch):
    def full(index):
        yield b"some bytes"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(index_file, "_pieces", full)
    check(image)
    assert os.listdir(image.parent) == ["x.sqfs"]


@pytest.mark.parametrize("count", [0, 1, STEP - 1, STEP, STEP + 1, 5 * STEP + 3])
def test_every_name_is_found_and_no_other(count):
    paths = sorted({b"%d/%d" % (number % 7, number * 7919 % 10007) for number in range(count)})
    names = Names.of(paths)
    assert [names.find(path) for path in paths] == list(range(len(paths)))
    for path in [*paths[::5], b"", b"5", b"~", b"3/", b"\0", b"0/0"]:
        for other in (path + b"0", path[:-1], path + b"\0", b"\0" + path):
            assert names.find(other) == (paths.index(other) if other in paths else -1)
    for folder_ in (b"", b"3", b"33", b"9"):
        prefix = folder_ + b"/" if folder_ else b""
        inside = [row for row, path in enumerate(paths) if path.startswith(prefix)]
        assert list(names.below(folder_)) == inside
