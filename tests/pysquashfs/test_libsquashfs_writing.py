"""What the C library writes from our items: read by others and by us, or refused."""

import os

import numpy as np
import pytest
from squashfs_trees import content, files_of, run

from pysquashfs import SquashFS, SquashFSError
from pysquashfs.libsquashfs import library, writing
from pysquashfs.libsquashfs.writing import pack_with_library
from pysquashfs.writer.settings import Settings


@pytest.fixture(autouse=True)
def can_write(need_libsquashfs):
    if not library.load().can_write:
        pytest.skip("this libsquashfs is too old to write")


def packed(out, items, **settings):
    return pack_with_library(out, items, Settings(**{"block_bytes": 4096} | settings))


@pytest.mark.parametrize("deduplicate", [False, True])
@pytest.mark.parametrize("fragments", [False, True])
@pytest.mark.parametrize("compression", ["none", "gzip", "zstd", "xz"])
def test_unsquashfs_and_both_back_ends_read_it(
    trees, need_tool, tmp_path, compression, fragments, deduplicate
):
    items = sorted(files_of(trees(4096)).items())
    wanted = {name: path.read_bytes() for name, path in items}
    chosen = {"compression": compression, "fragments": fragments, "deduplicate": deduplicate}
    found = packed(tmp_path / "x", items, **chosen)
    assert found == (len(items), sum(map(len, wanted.values())))
    for backend in ("pure", "libsquashfs"):
        with SquashFS(tmp_path / "x", backend=backend, cache=False) as image:
            assert {name: image.read(name) for name in image} == wanted
            assert image.verify().ok
            assert (image.stat("text").mode, image.stat("a-b").mode) == (0o755, 0o644)
    run(need_tool("unsquashfs", "squashfs-tools"), "-q", "-n", "-d", tmp_path / "out", tmp_path / "x")
    assert {name: path.read_bytes() for name, path in files_of(tmp_path / "out").items()} == wanted


def test_raw_files_are_one_read_each_and_lie_as_given(tmp_path):
    sizes = np.random.default_rng(0).integers(0, 300_000, 50).tolist()
    items = [(f"{number * 7 % 50:02}", content(size, "holes", number)) for number, size in enumerate(sizes)]
    packed(tmp_path / "x", items, block_bytes=131072)
    with SquashFS(tmp_path / "x") as image:
        assert image.info()["share_one_read"] == 1.0
        starts = [int(image.index.files.start[image.row(name)]) for name, data in items if data]
        assert starts == sorted(starts)


def test_equal_items_give_equal_bytes_whatever_the_threads(tmp_path):
    items = [(f"{number}", content(20_000, "text", number)) for number in range(40)]
    images = []
    for threads in (1, 2, 4):
        packed(tmp_path / "x", items, compression="zstd", fragments=True, threads=threads)
        images.append((tmp_path / "x").read_bytes())
    assert len(set(images)) == 1
    assert len(images[0]) % 4096 == 0


def test_a_folder_of_thousands_and_an_empty_image(need_tool, tmp_path):
    items = [(f"many/{number:05}" + "x" * 40, b"%d" % number) for number in range(6000)]
    packed(tmp_path / "x", items, compression="gzip", fragments=True)
    with SquashFS(tmp_path / "x", cache=False) as image:
        assert image.read_many(range(6000)) == [data for _, data in items]
    listed = run(need_tool("unsquashfs", "squashfs-tools"), "-l", tmp_path / "x")
    assert listed.count(b"/many/") == 6000
    assert packed(tmp_path / "y", []) == (0, 0)
    with SquashFS(tmp_path / "y") as image:
        assert image.list() == []


def test_large_files_come_in_pieces_and_empty_pieces_do_no_harm(tmp_path):
    (tmp_path / "large").write_bytes(content(5_000_001, "noise"))
    items = [("empty", b""), ("large", tmp_path / "large"), ("view", memoryview(b"12345")[1:3])]
    assert packed(tmp_path / "x", items) == (3, 5_000_003)
    with SquashFS(tmp_path / "x") as image:
        found = [image.read(name) for name, _ in items]
    assert found == [b"", content(5_000_001, "noise"), b"23"]


def test_an_item_that_cannot_be_packed_is_named_and_frees_everything(tmp_path):
    def descriptors():
        return len(os.listdir("/proc/self/fd"))

    before = descriptors()
    for items, fault in (
        ([("a", b"1"), ("b", tmp_path / "missing")], "missing cannot be read"),
        ([("a", b"1"), ("a", b"2")], "comes twice"),
        ([("a", b"1"), ("../b", b"2")], "leads out of the image"),
        ([("a", b"1"), ("a/b", b"2")], "comes twice"),
    ):
        with pytest.raises(SquashFSError, match=fault):
            packed(tmp_path / "x", items)
    assert descriptors() == before


def test_where_it_may_not_write_a_sentence_says_so(tmp_path):
    with pytest.raises(SquashFSError, match=r"cannot be written by libsquashfs .*df -h"):
        packed(tmp_path / "no folder" / "x", [("a", b"1")])
    with pytest.raises(SquashFSError, match=r"/dev/full cannot be written"):
        writing.pack_with_library(type(tmp_path)("/dev/full"), [("a", b"1" * 10000)], Settings())


def test_versions_that_write_damaged_images_are_refused(tmp_path, monkeypatch):
    old = library.load()._replace(can_write=False, version="1.0 or 1.1")
    monkeypatch.setattr(writing, "load", lambda: old)
    with pytest.raises(
        SquashFSError, match=r"libsquashfs 1.0 or 1.1 writes damaged images; expected version 1.2"
    ):
        packed(tmp_path / "x", [("a", b"1")])


def test_lz4_is_refused_since_others_refuse_what_it_writes(tmp_path):
    with pytest.raises(SquashFSError, match=r"lz4 that unsquashfs refuses"):
        packed(tmp_path / "x", [("a", b"1")], compression="lz4")
