"""Every byte and name that other tools packed, by the pure reader."""

import io
import os
import tarfile
from pathlib import PurePosixPath

import numpy as np
import pytest
from squashfs_trees import LONG, content, reads_as, run

from pysquashfs import SquashFS, SquashFSError, image_file, pack
from pysquashfs.errors import ClosedError, ImageIndexError, MissingToolError, NotFoundError
from pysquashfs.names import STEP, Names

pytestmark = pytest.mark.usefixtures("backend")

KIB = 1024


@pytest.mark.parametrize("local", [True, False], ids=["mapped", "pread"])
def test_the_recommended_image_is_one_read_a_file(trees, mksquashfs, tmp_path, monkeypatch, local):
    monkeypatch.setattr(image_file, "is_local", lambda descriptor: local)
    with SquashFS(mksquashfs(trees(4 * KIB), tmp_path / "x")) as image:
        reads_as(image, trees(4 * KIB))
        assert image.info()["share_one_read"] > 0.5  # the others have holes


def test_extended_inodes_are_read(need_tool, tmp_path):
    # Extended attributes make every inode an extended one, whatever the file system of the test holds.
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for number, size in enumerate([0, 1, 4096, 4097, 20_000]):
            member = tarfile.TarInfo(f"d/{number}")
            member.size, member.pax_headers = size, {"SCHILY.xattr.user.number": str(number)}
            tar.addfile(member, io.BytesIO(content(size, "noise")))
        link = tarfile.TarInfo("d/link")
        link.type, link.linkname = tarfile.SYMTYPE, "4"
        link.pax_headers = {"SCHILY.xattr.user.link": "yes"}
        tar.addfile(link)
        fifo = tarfile.TarInfo("d/fifo")
        fifo.type, fifo.pax_headers = tarfile.FIFOTYPE, {"SCHILY.xattr.user.fifo": "yes"}
        tar.addfile(fifo)
    tool, out = need_tool("tar2sqfs", "squashfs-tools-ng"), tmp_path / "x"
    run(tool, "-q", "-b", 4096, out, input=stream.getvalue())
    with SquashFS(out) as image:
        assert [image.read_at(row) for row in range(5)] == [
            content(size, "noise") for size in [0, 1, 4096, 4097, 20_000]
        ]
        assert (image.stat("d/link").target, image.stat("d/fifo").kind) == ("4", "fifo")


def test_an_image_is_mapped_on_a_local_disk_only(tmp_path, monkeypatch):
    mounts = tmp_path / "mounts"
    monkeypatch.setattr(image_file, "_MOUNTS", mounts)
    with (tmp_path / "x").open("wb") as opened:
        device = os.fstat(opened.fileno()).st_dev
        for kind, expected in (("ext4", True), ("lustre", False), ("fuse.sshfs", False), ("nfs4", False)):
            number = f"{os.major(device)}:{os.minor(device)}"
            mounts.write_text(
                f"1 2 0:999 / /other rw - tmpfs x rw\n36 35 {number} / /m rw shared:1 - {kind} x rw\n"
            )
            image_file._kind.cache_clear()
            assert image_file.is_local(opened.fileno()) is expected
        mounts.unlink()
        image_file._kind.cache_clear()
        assert not image_file.is_local(opened.fileno())
    image_file._kind.cache_clear()


def test_names_sort_as_bytes_and_are_found(trees, mksquashfs, tmp_path):
    with SquashFS(mksquashfs(trees(4 * KIB), tmp_path / "x")) as image:
        paths = list(image.paths)
        assert paths.index("a-b") < paths.index(f"a/b/c/d é/e/{LONG}")
        assert image.paths[-1] == paths[-1] and image.paths[1:3] == paths[1:3]
        for path in ("a-b", "/a-b", PurePosixPath("a-b")):
            assert image.read(path) == b"sorts before a/b"
            assert path in image
        assert image.list("a") == ["a/b", "a/b/c", "a/b/c/d é", "a/b/c/d é/e", f"a/b/c/d é/e/{LONG}"]
        assert image.list("empty folder") == []
        for missing in ("", "nothing", "a-b/", "a-bc", "text/100.bin\0", "zzz", "text\x000.bin"):
            assert missing not in image or missing == "a-b/"


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


def test_a_hard_link_is_one_inode_with_two_names(trees, mksquashfs, tmp_path):
    with SquashFS(mksquashfs(trees(4 * KIB), tmp_path / "x")) as image:
        first, second = image.stat("twin.bin"), image.stat("noise/100.bin")
        assert (first.inode, first.size) == (second.inode, second.size)


def test_symlinks_are_told_of_and_not_followed(trees, mksquashfs, tmp_path):
    with SquashFS(mksquashfs(trees(4 * KIB), tmp_path / "x")) as image:
        assert image.stat("link").kind == "symlink"
        assert "link" not in list(image.paths)
        with pytest.raises(NotFoundError, match=r"'link' is a symlink; expected a regular file"):
            image.read("link")
        with pytest.raises(NotFoundError, match=r"'text' is a directory"):
            image.read("text")
        with pytest.raises(NotFoundError, match=r"'nothing' does not exist"):
            image.stat("nothing")
        with pytest.raises(NotFoundError, match=r"'a-b' is a file; expected a folder"):
            image.list("a-b")


def test_what_is_kept_of_an_entry_is_told(mksquashfs, tmp_path):
    (tmp_path / "t").mkdir()
    file = tmp_path / "t" / "f"
    file.write_bytes(b"1234")
    file.chmod(0o640)
    os.utime(file, (5, 1_234_567_890))
    made = mksquashfs(tmp_path / "t", tmp_path / "x", "-force-uid", "1234", "-force-gid", "56")
    with SquashFS(made) as image:
        found = image.stat("f")
        assert (found.kind, found.size, found.mode, found.mtime_s) == ("file", 4, 0o640, 1_234_567_890)
        assert (found.uid, found.gid, found.target) == (1234, 56, None)


def test_an_index_counts_from_both_ends_and_no_further(trees, mksquashfs, tmp_path):
    with SquashFS(mksquashfs(trees(4 * KIB), tmp_path / "x")) as image:
        assert image.read_at(-1) == image.read_at(len(image) - 1)
        for wrong in (len(image), -len(image) - 1, 1 << 70):
            with pytest.raises(ImageIndexError, match="which holds"):
                image.read_at(wrong)
            with pytest.raises(IndexError):
                image.read_many([wrong])


def test_read_many_keeps_order_and_repeats(trees, mksquashfs, tmp_path):
    root = trees(4 * KIB)
    with SquashFS(mksquashfs(root, tmp_path / "x", "-comp", "gzip", "-b", "4096")) as image:
        asked = [*range(len(image)), *reversed(range(len(image))), image.paths[3], 0, 0]
        wanted = [image.read(item) if isinstance(item, str) else image.read_at(item) for item in asked]
        for threads in (1, 2, 8):
            assert image.read_many(asked, threads=threads) == wanted
        assert image.read_many(np.arange(4)) == wanted[:4]
        assert image.read_many([]) == []


def test_an_image_without_files_is_empty(mksquashfs, tmp_path):
    (tmp_path / "t").mkdir()
    with SquashFS(mksquashfs(tmp_path / "t", tmp_path / "x")) as image:
        assert (len(image), list(image), image.list(), image.read_many([])) == (0, [], [], [])
        assert image.info()["files"] == 0
        assert image.verify().ok
        with pytest.raises(ImageIndexError, match="no read from an empty image"):
            image.read_at(0)


def test_a_closed_image_refuses_reads(trees, mksquashfs, tmp_path):
    image = SquashFS(mksquashfs(trees(4 * KIB), tmp_path / "x"))
    kept = image.read_many(range(4), threads=2)
    image.close()
    image.close()
    for read in (lambda: image.read("a-b"), lambda: image.read_at(0), lambda: len(image), image.info):
        with pytest.raises(ClosedError, match="was closed"):
            read()
    assert len(kept) == 4


def test_a_replaced_image_is_noticed(trees, mksquashfs, tmp_path):
    image = SquashFS(mksquashfs(trees(4 * KIB), tmp_path / "x"))
    mksquashfs(trees(128 * KIB), tmp_path / "y")
    (tmp_path / "y").replace(tmp_path / "x")
    with pytest.raises(SquashFSError, match="was changed after it was opened"):
        image.read_at(0)


@pytest.mark.parametrize("backend", ["python"], indirect=True)
def test_a_missing_package_is_named_with_the_line_that_installs_it(trees, mksquashfs, tmp_path, monkeypatch):
    made = mksquashfs(trees(4 * KIB), tmp_path / "x", "-comp", "zstd")
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    with pytest.raises(MissingToolError, match="Run: python -m pip install zstandard"):
        SquashFS(made)


@pytest.mark.parametrize("name", ["missing", "folder", "pipe", "empty", "text"])
def test_what_is_no_image_is_refused(tmp_path, name):
    path = tmp_path / name
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "text").write_text("hello " * 100)
    with pytest.raises(SquashFSError, match=f"{name}.*expected a squashfs image"):
        SquashFS(path)


@pytest.fixture
def raw_image(tmp_path):
    path = tmp_path / "x.sqfs"
    pack(path, [("a", b"first" * 1000), ("b", b""), ("c", os.urandom(300_000))])
    return path


@pytest.mark.parametrize("backend", ["python"], indirect=True)
def test_a_view_is_read_only_and_stays_when_the_image_is_closed_and_removed(raw_image):
    with SquashFS(raw_image) as opened:
        views = [opened.view_at(row) for row in range(3)]
        truth = [opened.read_at(row) for row in range(3)]
        assert isinstance(views[0], memoryview) and views[0].readonly and opened.view_at(-1) == truth[2]
    raw_image.unlink()
    assert [bytes(view) for view in views] == truth and truth[0] == b"first" * 1000
    with pytest.raises(ClosedError, match="was closed"):
        opened.view_at(0)


def test_what_cannot_be_viewed_comes_as_bytes(raw_image, tmp_path, monkeypatch):
    pack(tmp_path / "z", [("a", b"first" * 1000)], compression="gzip")
    with SquashFS(tmp_path / "z") as packed:
        assert packed.view_at(0) == b"first" * 1000 and isinstance(packed.view_at(0), bytes)
    monkeypatch.setattr("pysquashfs.image_file.is_local", lambda descriptor: False)
    with SquashFS(raw_image) as far:
        assert isinstance(far.view_at(0), bytes) and far.view_at(0) == b"first" * 1000


def test_a_view_of_an_image_that_was_cut_is_refused_in_a_sentence(raw_image):
    with SquashFS(raw_image) as opened:
        opened.view_at(0)
        os.truncate(raw_image, 4096)
        with pytest.raises(SquashFSError, match="became shorter"):
            opened.view_at(2)
