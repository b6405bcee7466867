"""The pure writer: what it stores, what it refuses, and that it leaves nothing half done."""

import errno
import os
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from squashfs_trees import content

from pysquashfs import SquashFS, SquashFSError, pack
from pysquashfs.image_file import ImageFile
from pysquashfs.superblock import read as read_superblock
from pysquashfs.writer import ImageWriter, PackedImage, Settings, sources

BLOCK = 4096
SIZES = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 3 * BLOCK + 17]
ITEMS = [
    (f"{kind}/{place}{size}.bin", content(size, kind, seed=len(place)))
    for place in ("", "deep/er/")
    for kind in ("text", "noise")
    for size in SIZES
]


def read_back(path):
    with SquashFS(path) as image:
        return {name: image.read(name) for name in image}


def left_in(folder):
    return sorted(os.listdir(folder))


# What is stored


@pytest.mark.parametrize("fragments", [False, True])
@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
def test_what_goes_in_comes_out(tmp_path, compression, fragments):
    done = pack(tmp_path / "x.sqfs", ITEMS, block_bytes=BLOCK, compression=compression, fragments=fragments)
    assert read_back(tmp_path / "x.sqfs") == dict(ITEMS)
    total = sum(len(data) for _, data in ITEMS)
    assert done == PackedImage(tmp_path / "x.sqfs", len(ITEMS), total, os.path.getsize(tmp_path / "x.sqfs"))
    with SquashFS(tmp_path / "x.sqfs") as image:
        assert image.verify().faults == ()
    assert left_in(tmp_path) == ["x.sqfs"]


def test_paths_and_buffers_of_all_kinds_give_the_same_image(tmp_path):
    tree = tmp_path / "tree"
    for name, data in ITEMS:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(data)
    kinds = (bytes, bytearray, memoryview)
    images = [pack(tmp_path / make.__name__, [(n, make(d)) for n, d in ITEMS]) for make in kinds]
    images.append(pack(tmp_path / "paths", [(n, tree / n) for n, _ in ITEMS]))
    mixed = [(n, tree / n if i % 3 else d) for i, (n, d) in enumerate(ITEMS)]
    images.append(pack(tmp_path / "mixed", mixed))
    assert len({image.path.read_bytes() for image in images}) == 1


def test_a_buffer_may_be_reused_as_soon_as_the_next_item_is_asked_for(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"from a path")

    def items():
        buffer = bytearray(3 * BLOCK)
        for number in range(200):
            if number % 5 == 0:
                yield f"path{number}", file
            buffer[:] = bytes([number]) * len(buffer)
            yield f"{number}", memoryview(buffer)[: number * 60]

    expected = {f"{n}": bytes([n]) * (n * 60) for n in range(200)}
    expected |= {f"path{n}": b"from a path" for n in range(0, 200, 5)}
    for compression in ("none", "zstd"):
        for fragments in (False, True):
            chosen = {"compression": compression, "fragments": fragments, "block_bytes": BLOCK}
            pack(tmp_path / "x.sqfs", items(), overwrite=True, **chosen)
            assert read_back(tmp_path / "x.sqfs") == expected


def test_equal_items_give_equal_bytes_whatever_the_threads_and_the_time(tmp_path, monkeypatch):
    for compression in ("none", "gzip", "zstd"):
        chosen = {"compression": compression, "fragments": True, "block_bytes": BLOCK, "overwrite": True}
        images = []
        for cpus in (1, 3):
            monkeypatch.setattr("pysquashfs.writer.blocks.usable_cpus", lambda cpus=cpus: cpus)
            images.append(pack(tmp_path / "x", ITEMS, **chosen).path.read_bytes())
            time.sleep(0.01)
        assert images[0] == images[1]


def test_nothing_of_time_user_or_permissions_is_stored(tmp_path):
    source = tmp_path / "source"
    source.write_bytes(b"secret")
    source.chmod(0o600)
    pack(tmp_path / "x.sqfs", [("a/b", source)])
    with SquashFS(tmp_path / "x.sqfs") as image:
        file, folder = image.stat("a/b"), image.stat("a")
    assert (file.mode, file.mtime_s, file.uid, file.gid) == (0o644, 0, 0, 0)
    assert (folder.mode, folder.mtime_s, folder.uid, folder.gid) == (0o755, 0, 0, 0)
    block = read_superblock(ImageFile(tmp_path / "x.sqfs"))
    assert (block.mtime_s, block.export_table, block.xattr_table, block.ids) == (0, None, None, 1)


def test_data_lies_in_the_order_of_the_items_and_raw_files_in_one_piece(tmp_path):
    items = [(f"{(7 * i) % 100:02d}", content(100 * i, "noise")) for i in range(1, 100)]
    whole = pack(tmp_path / "x.sqfs", items, block_bytes=BLOCK).path.read_bytes()
    together = b"".join(data for _, data in items)
    assert whole[96 : 96 + len(together)] == together
    with SquashFS(tmp_path / "x.sqfs") as image:
        facts = image.info()
    assert (facts["share_raw"], facts["share_one_read"], facts["read_amplification"]) == (1.0, 1.0, 1.0)


def test_what_does_not_become_smaller_is_stored_raw(tmp_path):
    noise, text = content(3 * BLOCK, "noise"), content(3 * BLOCK, "text")
    for compression in ("gzip", "zstd"):
        image = pack(tmp_path / f"{compression}.sqfs", [("n", noise), ("t", text)], compression=compression)
        assert noise in image.path.read_bytes()
        assert text not in image.path.read_bytes()
        assert image.image_bytes < len(noise) + 4 * BLOCK


NAME_PARTS = st.text(st.characters(exclude_characters="/\0"), min_size=1, max_size=60).filter(
    lambda part: part not in (".", "..") and _encodes(part)
)


def _encodes(part):
    try:
        return len(os.fsencode(part)) <= 255
    except UnicodeEncodeError:
        return False


TREES = st.dictionaries(
    st.lists(NAME_PARTS, min_size=1, max_size=4).map("/".join),
    st.binary(max_size=300) | st.sampled_from(SIZES).map(lambda size: content(size, "text")),
    max_size=30,
)


@given(TREES, st.sampled_from(["none", "gzip", "zstd"]), st.booleans(), st.randoms())
@settings(max_examples=30)
def test_any_tree_comes_back_or_is_refused_with_a_sentence(
    tmp_path_factory, tree, compression, fragments, random
):
    out = tmp_path_factory.getbasetemp() / "any.sqfs"
    items = list(tree.items())
    random.shuffle(items)
    chosen = {"compression": compression, "fragments": fragments}
    folders = {name[:at] for name in tree for at, sign in enumerate(name) if sign == "/"}
    if folders & set(tree):
        with pytest.raises(SquashFSError, match="comes twice"):
            pack(out, items, block_bytes=BLOCK, overwrite=True, **chosen)
        return
    pack(out, items, block_bytes=BLOCK, overwrite=True, **chosen)
    assert read_back(out) == tree


@pytest.mark.parametrize(("sleep_s", "threads"), [(0.0, False), (0.002, True)])
def test_files_are_read_by_threads_only_where_they_must_be_waited_for(
    tmp_path, monkeypatch, sleep_s, threads
):
    read, by = sources._small, set()

    def slow(path):
        time.sleep(sleep_s) if sleep_s else None
        by.add(threading.current_thread().name)
        return read(path)

    monkeypatch.setattr(sources, "_small", slow)
    items = {f"{number}.txt": b"%d" % number * 1000 for number in range(100)}
    for name, data in items.items():
        (tmp_path / name).write_bytes(data)
    pack(tmp_path / "x.sqfs", [(name, tmp_path / name) for name in items])
    assert any("squash-read" in name for name in by) == threads
    assert read_back(tmp_path / "x.sqfs") == items


# What is refused


@pytest.mark.parametrize(
    "name",
    [
        *("", "/", "/a", "a/", "a//b", ".", "..", "./a", "../a", "a/..", "a/../b", "a/./b", "a\0b", "\0/a"),
        *("n" * 256, "é" * 128, "n" * 256 + "/a", "/".join(["d" * 100] * 41), "\ud800", 5, None),
    ],
)
def test_names_that_cannot_be_in_an_image_are_refused(tmp_path, name):
    with pytest.raises(SquashFSError, match="the name"):
        pack(tmp_path / "x.sqfs", [("fine", b""), (name, b"")])
    assert left_in(tmp_path) == []


@pytest.mark.parametrize(
    "names",
    [
        ("a", "b", "a"),
        ("d/a", "b", "d/a"),
        ("d", "d/a"),
        ("d/a", "d"),
        ("x/d/e/f", "x/d/e"),
        ("x/d", "x/d/e/f"),
    ],
)
def test_names_that_come_twice_are_refused(tmp_path, names):
    with pytest.raises(SquashFSError, match=r"the name '(a|d/a|d|x/d/e|x/d)' comes twice"):
        pack(tmp_path / "x.sqfs", [(name, b"") for name in names])
    assert left_in(tmp_path) == []


def test_the_longest_names_are_taken(tmp_path):
    items = {"n" * 255: b"1", "é" * 127: b"2", "/".join(["d" * 255] * 15 + ["f" * 255]): b"3"}
    pack(tmp_path / "x.sqfs", items.items())
    assert read_back(tmp_path / "x.sqfs") == items


@pytest.mark.parametrize(
    "chosen",
    [
        *({"compression": "lz4"}, {"compression": "GZIP"}, {"compression": "gzip", "level": 0}, {"level": 1}),
        *({"compression": "zstd", "level": 23}, {"block_bytes": 0}, {"block_bytes": 100_000}),
        {"block_bytes": 2 << 20},
    ],
)
def test_settings_that_make_no_sense_are_refused(tmp_path, chosen):
    with pytest.raises(SquashFSError, match="expected"):
        pack(tmp_path / "x.sqfs", [], **chosen)
    assert left_in(tmp_path) == []


def test_a_finished_image_is_replaced_only_when_asked(tmp_path):
    out = tmp_path / "x.sqfs"
    pack(out, [("a", b"1")])
    with pytest.raises(SquashFSError, match="exists already"):
        pack(out, [("a", b"2")])
    assert read_back(out) == {"a": b"1"}
    pack(out, [("a", b"2")], overwrite=True)
    assert read_back(out) == {"a": b"2"}
    (tmp_path / "folder").mkdir()
    with pytest.raises(SquashFSError, match="exists already"):
        pack(tmp_path / "folder", [], overwrite=True)


def test_an_image_that_appears_meanwhile_is_not_replaced(tmp_path):
    out = tmp_path / "x.sqfs"

    def items():
        yield "a", b"1"
        out.write_bytes(b"somebody else's")

    with pytest.raises(SquashFSError, match="exists already"):
        pack(out, items())
    assert out.read_bytes() == b"somebody else's"
    assert left_in(tmp_path) == ["x.sqfs"]


# What goes wrong


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_an_error_among_the_items_leaves_nothing(tmp_path, compression):
    def items():
        yield from ITEMS
        raise RuntimeError("no more")

    before = set(threading.enumerate())
    with pytest.raises(RuntimeError):
        pack(tmp_path / "x.sqfs", items(), compression=compression)
    assert left_in(tmp_path) == []
    assert set(threading.enumerate()) <= before


def test_sources_that_cannot_be_read_are_named(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "broken").symlink_to("nowhere")
    for name in ("pipe", "folder", "broken", "gone", "nul\0"):
        with pytest.raises(SquashFSError, match=f"{name} cannot be read"):
            pack(tmp_path / "x.sqfs", [("a", tmp_path / name)])
    assert "x.sqfs" not in "".join(left_in(tmp_path))


@pytest.mark.parametrize("size", [1000, 3 << 20])
@pytest.mark.parametrize("change", [-1, 1])
def test_a_source_that_changes_its_size_is_named(tmp_path, monkeypatch, size, change):
    source = tmp_path / "source"
    source.write_bytes(bytes(size))
    real = os.fstat

    def fstat_then_change(descriptor):
        status = real(descriptor)
        if status.st_ino == source.stat().st_ino:
            os.truncate(source, status.st_size + change)
        return status

    monkeypatch.setattr(os, "fstat", fstat_then_change)
    with pytest.raises(SquashFSError, match="source changed its size"):
        pack(tmp_path / "x.sqfs", [("a", source)])
    assert left_in(tmp_path) == ["source"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_full_disk_is_told_and_leaves_nothing(tmp_path, monkeypatch, code):
    real, calls = os.writev, []

    def writev(descriptor, pieces):
        calls.append(1)
        if len(calls) > 1:
            raise OSError(code, os.strerror(code))
        return real(descriptor, pieces)

    monkeypatch.setattr(os, "writev", writev)
    with pytest.raises(SquashFSError, match=r"x\.sqfs cannot be written \(") as told:
        pack(tmp_path / "x.sqfs", [(f"{i}", bytes(100_000)) for i in range(100)])
    assert ("df -h" in str(told.value)) == (code != errno.EIO)
    assert left_in(tmp_path) == []


def test_short_writes_lose_nothing(tmp_path, monkeypatch):
    real = os.writev
    monkeypatch.setattr(os, "writev", lambda fd, pieces: real(fd, [memoryview(pieces[0])[:777]]))
    pack(tmp_path / "x.sqfs", ITEMS)
    assert read_back(tmp_path / "x.sqfs") == dict(ITEMS)


def test_a_place_that_cannot_be_written_is_told(tmp_path):
    for out in (tmp_path / "no" / "x.sqfs", Path("/proc/x.sqfs"), tmp_path / ("n" * 250)):
        with pytest.raises(SquashFSError, match="cannot be written"):
            pack(out, [])


def test_only_one_run_writes_an_image_and_the_leftover_of_a_killed_one_is_cleared(tmp_path):
    out = tmp_path / "x.sqfs"

    def items():
        yield "a", b"1"
        with pytest.raises(SquashFSError, match="another run"):
            pack(out, [])
        yield "b", b"2"

    (tmp_path / ".x.sqfs.packing").write_bytes(bytes(1 << 20))
    pack(out, items())
    assert read_back(out) == {"a": b"1", "b": b"2"}
    assert left_in(tmp_path) == ["x.sqfs"]


# The writer by itself


def test_a_stream_that_is_written_once_needs_only_its_first_bytes_later(tmp_path):
    with (tmp_path / "x.sqfs").open("wb") as file:
        writer = ImageWriter(file.writelines, Settings(compression="gzip", fragments=True, block_bytes=BLOCK))
        for name, data in ITEMS:
            writer.add(name, data)
        superblock = writer.close()
        file.seek(0)
        file.write(superblock)
    assert len(superblock) == 96
    assert (writer.files, writer.bytes) == (len(ITEMS), sum(len(data) for _, data in ITEMS))
    pack(tmp_path / "y.sqfs", ITEMS, compression="gzip", fragments=True, block_bytes=BLOCK)
    assert (tmp_path / "x.sqfs").read_bytes() == (tmp_path / "y.sqfs").read_bytes()


def test_a_file_in_pieces_is_the_same_as_in_one(tmp_path):
    data = content(10 * BLOCK + 5, "text")
    for fragments in (False, True):
        images = []
        for step in (BLOCK, 4 * BLOCK, 100 * BLOCK):
            pieces = []
            writer = ImageWriter(
                lambda some, pieces=pieces: pieces.extend(map(bytes, some)),
                Settings("gzip", fragments=fragments, block_bytes=BLOCK),
            )
            writer.add_pieces("f", (data[at : at + step] for at in range(0, len(data), step)))
            superblock = writer.close()
            images.append(superblock + b"".join(pieces)[96:])
        assert len(set(images)) == 1
        (tmp_path / "x").write_bytes(images[0])
        assert read_back(tmp_path / "x") == {"f": data}
