"""Bytes by position: what is read, what is announced to the kernel before, and where each limit is."""

import gzip
import mmap
import os
import resource
from pathlib import Path
from types import SimpleNamespace

import pytest

from smallfiles.errors import DamagedFileError, FormatError
from smallfiles.formats import bytefile, embedded, table
from smallfiles.formats.bytefile import AHEAD_BYTES, ByteFile
from smallfiles.formats.tar import archive, headers, index

WINDOW, PAGE = 1 << 16, mmap.PAGESIZE
SIZE = 3 * WINDOW + 1000
DATA = os.urandom(SIZE)


@pytest.fixture
def path(tmp_path):
    (tmp_path / "x.bin").write_bytes(DATA)
    return tmp_path / "x.bin"


@pytest.mark.parametrize("access", ["mmap", "pread"])
def test_a_range_is_read_whole_or_refused(path, access):
    file = ByteFile(path, access)
    for start, stop in ((0, 0), (0, 1), (5, 5), (SIZE - 1, SIZE), (SIZE, SIZE), (0, SIZE)):
        assert file.read(start, stop) == DATA[start:stop]
    for start, stop in ((-1, 1), (2, 1), (SIZE - 1, SIZE + 1)):
        with pytest.raises(DamagedFileError, match=f"bytes {start:,} to {stop:,} are not all there"):
            file.read(start, stop)
    for start, count in ((-5, 3), (SIZE - 2, 9), (SIZE + 9, 9), (3, 0)):
        begin = min(max(start, 0), SIZE)
        assert file.fetch_some(start, count) == DATA[begin : begin + count]
    if access == "pread":
        buffer = memoryview(bytearray(10))
        assert (file.read_into(SIZE - 4, buffer), buffer[:4]) == (4, DATA[-4:])


ANNOUNCED = [  # what is read, and what is announced before: whole windows once, or a read elsewhere
    ("mmap", [(5, 6), (0, 7), (WINDOW - 1, WINDOW)], [(0, WINDOW)]),
    ("mmap", [(WINDOW - 1, WINDOW + 1), (3, 4), (WINDOW + 7, WINDOW + 8)], [(0, 2 * WINDOW)]),
    ("mmap", [(2 * WINDOW + 9, SIZE)], [(2 * WINDOW, SIZE)]),
    ("pread", [(0, 9), (9, 20), (20 + PAGE, 30 + PAGE)], []),
    ("pread", [(0, 9), (10 + PAGE, 11 + PAGE)], [(10 + PAGE, 11 + PAGE)]),
]


@pytest.mark.parametrize(("access", "ranges", "announced"), ANNOUNCED)
def test_a_read_is_announced_unless_the_kernel_has_it(path, access, ranges, announced, monkeypatch):
    asked, name = [], "_advise" if access == "mmap" else "prefetch"
    monkeypatch.setattr(ByteFile, name, lambda file, *place: asked.append(place))
    file = ByteFile(path, access)
    for start, stop in ranges:
        file.read(start, stop)
    assert asked == announced


def test_advice_begins_at_a_page_and_covers_the_range_in_pieces(path, monkeypatch):
    asked, piece = [], AHEAD_BYTES
    monkeypatch.setattr(bytefile, "_read_ahead_bytes", lambda device: piece)
    monkeypatch.setattr(os, "posix_fadvise", lambda descriptor, *words: asked.append(words[:2]))
    file = ByteFile(path, "pread")
    for start, stop in ((PAGE + 5, SIZE), (7, 7), (-1, 5), (5, SIZE + 1), (0, piece)):
        file.prefetch(start, stop)
    assert asked == [(PAGE, piece), (PAGE + piece, SIZE - PAGE - piece), (0, piece)]


NEIGHBOURS = [  # places, and what is announced: together up to a page apart and up to the read-ahead
    ([(0, 5), (5, 9), (9 + PAGE, 10 + PAGE)], [(0, 10 + PAGE)]),
    ([(0, 5), (6 + PAGE, 7 + PAGE)], [(0, 5), (6 + PAGE, 7 + PAGE)]),
    ([(8, 9), (7, 8)], [(8, 9), (7, 8)]),
    ([(1, 9), (9, AHEAD_BYTES + 1)], [(1, AHEAD_BYTES + 1)]),
    ([(1, 9), (9, AHEAD_BYTES + 2)], [(1, 9), (9, AHEAD_BYTES + 2)]),
]


@pytest.mark.parametrize(("places", "announced"), NEIGHBOURS)
def test_neighbours_are_announced_together_up_to_what_the_kernel_reads_ahead(places, announced):
    asked = [[], []]
    two = [SimpleNamespace(prefetch=lambda *place, own=own: own.append(place)) for own in asked]
    table.announce([(source, *place) for source in two for place in places])
    assert asked == [announced, announced]


def test_what_unpacks_to_far_more_than_it_has_is_refused():
    free, stored = 1 << 30, 1 << 27
    for size, limit, times in ((1, free, 200), (stored, 20 * stored, 20), (stored, 200 * stored, 200)):
        bytefile.refuse_bomb(Path("x.tar"), size, limit, times)
        with pytest.raises(FormatError, match=f"expected at most {times} times its size, or 1.1 GB"):
            bytefile.refuse_bomb(Path("x.tar"), size, limit + 1, times)


def test_a_compressed_tar_that_unpacks_to_far_more_is_refused_before_anything_is_packed(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(bytefile, "FREE_BYTES", 1 << 20)
    path = tmp_path / "x.tar.gz"
    path.write_bytes(gzip.compress(headers.member("a.bin", 4 << 20) + bytes((4 << 20) + 1024)))
    with pytest.raises(FormatError, match=r"x\.tar\.gz has .* and unpacks to 1\.0 MB or more"):
        archive.index(path)


PLACES = [  # where the 32 bytes are, what they say, and whether that is believed
    (100, (0, 100, 100), True),
    (100, (8, 7, 100), False),
    (100, (0, 101, 100), False),
    (100, (0, 50, 99), False),
    (0, (0, 0, 0), True),
    (SIZE - 32, (7, 7, SIZE - 32), True),
]


@pytest.mark.parametrize(("at", "told", "believed"), PLACES)
def test_the_place_of_a_table_is_believed_if_it_names_itself_and_the_table_is_before_it(
    at, told, believed, path
):
    place = embedded.TablePlace(*told)
    path.write_bytes(DATA[:at] + place.dumps() + DATA[at + 32 :])
    found = [embedded.TablePlace.find(ByteFile(path), end) for end in (31, at + 32, SIZE + 1)]
    assert found == [None, place if believed else None, None]


@pytest.mark.parametrize(("limit", "most"), [(4, 2), (12, 3), (508, 127), (512, 128), (4096, 128)])
def test_shards_use_at_most_a_quarter_of_the_descriptors(limit, most, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit, limit))
    assert index._most_open() == most


@pytest.mark.parametrize(("at", "noticed"), [(0, 1), (4095, 1), (4096, 0), (-4097, 0), (-4096, 1), (-1, 1)])
def test_an_index_knows_the_edges_of_its_tar(at, noticed, path):
    before = index.edges(ByteFile(path))
    path.write_bytes(DATA[:at] + bytes([DATA[at] ^ 1]) + DATA[at % SIZE + 1 :])
    assert (index.edges(ByteFile(path)) != before) == bool(noticed)
