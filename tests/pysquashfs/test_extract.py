"""Unpacking: everything comes out, nothing gets out of its folder, nothing half done stays."""

import errno
import os
import signal
import stat
import subprocess
import sys
import time

import pytest
from squashfs_crafted import craft, file, folder, symlink
from squashfs_peers import folder_bytes
from squashfs_trees import content, run

from pysquashfs import SquashFS, SquashFSError, layout, pack
from pysquashfs.extract import Extracted, extract, stays_inside

ITEMS = {
    "a/1": b"one",
    "a/b/2": content(10_000, "text"),
    "a-b": b"",
    "é/日本": content(300_000, "noise"),
    "n" * 255: b"long",
}


@pytest.fixture
def image(tmp_path):
    return pack(tmp_path / "x.sqfs", ITEMS.items(), compression="zstd", fragments=True, block_bytes=4096).path


def crafted(tmp_path, *entries, **claims):
    path = tmp_path / "crafted.sqfs"
    path.write_bytes(craft(folder(*entries), **claims))
    return path


def everything_below(root):
    return sorted(os.path.join(at, name) for at, folders, files in os.walk(root) for name in folders + files)


def test_everything_comes_out(image, tmp_path):
    done = extract(image, tmp_path / "new/out")
    assert folder_bytes(tmp_path / "new/out") == ITEMS
    total = sum(map(len, ITEMS.values()))
    assert done == Extracted(tmp_path / "new/out", len(ITEMS), total, 0, 0, 0)
    assert os.listdir(tmp_path / "new") == ["out"]


def test_members_are_files_or_folders_with_all_that_is_in_them(image, tmp_path):
    extract(image, tmp_path / "1", ["a/b/2", "a-b"])
    extract(image, tmp_path / "2", ["a/", "a/1"])
    extract(image, tmp_path / "3", [""])
    extract(image, tmp_path / "4", [])
    assert sorted(folder_bytes(tmp_path / "1")) == ["a-b", "a/b/2"]
    assert sorted(folder_bytes(tmp_path / "2")) == ["a/1", "a/b/2"]
    assert folder_bytes(tmp_path / "3") == ITEMS
    assert os.listdir(tmp_path / "4") == []
    for missing in ("b", "a/b/3", "../x", "a/../a"):
        with pytest.raises(SquashFSError, match="does not exist"):
            extract(image, tmp_path / "5", [missing])
    assert sorted(os.listdir(tmp_path)) == ["1", "2", "3", "4", "x.sqfs"]


def test_permissions_come_along_and_the_dangerous_ones_do_not(mksquashfs, tmp_path):
    tree = tmp_path / "tree"
    (tree / "locked").mkdir(parents=True)
    (tree / "locked/file").write_bytes(b"x")
    (tree / "run").write_bytes(b"#!")
    (tree / "run").chmod(0o4755)
    (tree / "locked/file").chmod(0o400)
    (tree / "locked").chmod(0o500)
    mksquashfs(tree, tmp_path / "x.sqfs")
    extract(tmp_path / "x.sqfs", tmp_path / "out")
    found = {name: stat.S_IMODE((tmp_path / "out" / name).stat().st_mode) for name in ("run", "locked")}
    assert found == {"run": 0o755, "locked": 0o700}
    assert (tmp_path / "out/locked/file").read_bytes() == b"x"


def test_holes_and_images_of_others_come_out_whole(mksquashfs, trees, tmp_path):
    mksquashfs(trees(4096), tmp_path / "x.sqfs", "-b", "4096", "-comp", "gzip", "-always-use-fragments")
    done = extract(tmp_path / "x.sqfs", tmp_path / "out", symlinks=True)
    links = {name: os.readlink(trees(4096) / name) for name in ("link", "dangling")}
    assert (done.links, done.left_out) == (1, 1)  # the other one is absolute
    assert os.readlink(tmp_path / "out/link") == links["link"]
    assert not os.path.lexists(tmp_path / "out/dangling")
    run("diff", "-r", "--no-dereference", "--exclude=dangling", trees(4096), tmp_path / "out")


def test_an_empty_folder_may_be_filled_and_a_used_one_not(image, tmp_path):
    (tmp_path / "empty").mkdir()
    extract(image, tmp_path / "empty")
    assert folder_bytes(tmp_path / "empty") == ITEMS
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    for taken in ("empty", "file", "link"):
        with pytest.raises(SquashFSError, match="exists already"):
            extract(image, tmp_path / taken)
    assert not (tmp_path / "elsewhere").exists()


# Hostile images


def test_links_are_made_only_when_asked_and_only_inside(tmp_path):
    targets = {
        b"in": b"d/file", b"deep": b"../d/./file", b"up": b"../outside", b"far": b"d/../../outside",
        b"root": b"/etc/passwd", b"sly": b"deepest/../../../x", b"self": b"self", b"dot": b"..",
    }  # fmt: skip
    links = [(name, symlink(target)) for name, target in targets.items() if name != b"deep"]
    below = folder((b"file", file(b"x")), (b"deep", symlink(targets[b"deep"])))
    image = crafted(tmp_path, (b"d", below), *links)
    assert extract(image, tmp_path / "plain").left_out == 8
    assert everything_below(tmp_path / "plain") == [str(tmp_path / "plain" / n) for n in ("d", "d/file")]
    done = extract(image, tmp_path / "linked", symlinks=True)
    assert (done.links, done.left_out) == (3, 5)
    made = {name for name in everything_below(tmp_path / "linked") if os.path.islink(name)}
    assert made == {str(tmp_path / "linked" / name) for name in ("in", "d/deep", "self")}
    assert (tmp_path / "linked/d/deep").read_bytes() == b"x"


@pytest.mark.parametrize(
    ("path", "target", "inside"),
    [
        *(
            ("a", "b", True),
            ("a", "b/c", True),
            ("a", "..", False),
            ("a/b", "..", True),
            ("a/b", "../..", False),
        ),
        *(("a/b/c", "../../d", True), ("a/b", "c/../d", False), ("a", "/b", False), ("a", "", False)),
        *(("a/b", "./../x", True), ("a", "./.", True), ("a/b", "..//../x", False), ("a", "b\0", False)),
    ],
)
def test_a_link_stays_inside_whatever_the_others_are(path, target, inside):
    assert stays_inside(path, target) == inside


@pytest.mark.parametrize("name", [b"..", b".", b"/etc/x", b"a/b", b"a\0b", b"../x"])
def test_names_that_lead_out_write_nothing(tmp_path, name):
    image = crafted(tmp_path, (b"fine", file(b"1")), (name, file(b"2")))
    with pytest.raises(SquashFSError):
        extract(image, tmp_path / "out")
    assert os.listdir(tmp_path) == ["crafted.sqfs"]


def test_a_file_behind_a_link_of_the_same_name_writes_nothing(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    entries = [(b"d", symlink(os.fsencode(outside))), (b"d", folder((b"file", file(b"gotcha"))))]
    with pytest.raises(SquashFSError):
        extract(crafted(tmp_path, *entries), tmp_path / "out", symlinks=True)
    assert os.listdir(outside) == []


def test_loops_write_nothing(tmp_path):
    loop = folder()
    loop.entries = [(b"again", loop)]
    with pytest.raises(SquashFSError):
        extract(crafted(tmp_path, (b"d", loop)), tmp_path / "out")
    assert os.listdir(tmp_path) == ["crafted.sqfs"]


def test_names_of_256_bytes_are_listed_and_left_out(tmp_path):
    long = b"n" * 256
    image = crafted(
        tmp_path, (b"a", file(b"1")), (long, file(b"2")), (b"m" * 256, folder((b"x", file(b"3"))))
    )
    with SquashFS(image, cache=False) as opened:
        assert len(opened.list()) == 4
    done = extract(image, tmp_path / "out")
    assert folder_bytes(tmp_path / "out") == {"a": b"1"}
    assert (done.files, done.long_names) == (1, 3)


def test_no_more_than_what_is_free_is_unpacked(image, tmp_path, monkeypatch):
    real = os.statvfs

    class Full:
        def __init__(self, found):
            self.f_frsize, self.f_bavail, self.f_files, self.f_favail = found.f_frsize, 3, 100, 3

    monkeypatch.setattr(os, "statvfs", lambda path: Full(real(path)))
    with pytest.raises(SquashFSError, match=r"at most the 12,288 that are free"):
        extract(image, tmp_path / "out")
    with pytest.raises(SquashFSError, match=r"at most the 3 inodes"):
        extract(image, tmp_path / "out", ["a"])
    assert os.listdir(tmp_path) == ["x.sqfs"]


def test_a_size_that_lies_is_told_and_leaves_nothing(tmp_path):
    fine, words = file(b"1" * 5000), [layout.DATA_RAW | 4096]
    for lie in (file(b"x" * 100, size=200), file(b"y" * 5000, words=words), file(b"z" * 10, start=1 << 31)):
        with pytest.raises(SquashFSError):
            extract(crafted(tmp_path, (b"a", fine), (b"b", lie)), tmp_path / "out")
        assert os.listdir(tmp_path) == ["crafted.sqfs"]


# What goes wrong


def test_a_full_disk_is_told_and_leaves_nothing(image, tmp_path, monkeypatch):
    real = os.fdopen

    def fdopen(*arguments, **options):
        opened = real(*arguments, **options)
        if os.fstat(opened.fileno()).st_size == 0 and "extracting" in os.readlink(
            f"/proc/self/fd/{opened.fileno()}"
        ):
            opened.close()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return opened

    monkeypatch.setattr(os, "fdopen", fdopen)
    with pytest.raises(SquashFSError, match="No space left"):
        extract(image, tmp_path / "out")
    assert os.listdir(tmp_path) == ["x.sqfs"]


def test_a_folder_that_appears_meanwhile_is_left_alone(image, tmp_path, monkeypatch):
    real = os.open

    def appear(path, *arguments, **options):
        if str(path).endswith("日本"):
            (tmp_path / "out").mkdir()
            (tmp_path / "out/mine").write_bytes(b"")
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", appear)
    with pytest.raises(SquashFSError, match="cannot be written"):
        extract(image, tmp_path / "out")
    assert everything_below(tmp_path / "out") == [str(tmp_path / "out/mine")]
    assert sorted(os.listdir(tmp_path)) == ["out", "x.sqfs"]


def test_a_killed_run_looks_unfinished_and_the_next_one_clears_it(tmp_path, repository):
    pack(tmp_path / "x.sqfs", ((f"{i}", bytes(10_000)) for i in range(30_000)))
    command = [sys.executable, "-m", "pysquashfs", "extract", tmp_path / "x.sqfs", tmp_path / "out"]
    process = subprocess.Popen(command, cwd=repository, stderr=subprocess.DEVNULL)
    root = tmp_path / ".out.extracting/root"
    deadline = time.monotonic() + 60
    while not (root / "100").exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGSTOP)
    with pytest.raises(SquashFSError, match="another run"):
        extract(tmp_path / "x.sqfs", tmp_path / "out")
    process.kill()
    process.wait()
    assert not (tmp_path / "out").exists()
    assert stat.S_IMODE((tmp_path / ".out.extracting").stat().st_mode) == 0o700
    assert extract(tmp_path / "x.sqfs", tmp_path / "out", ["5", "7"]).files == 2
    assert sorted(os.listdir(tmp_path / "out")) == ["5", "7"]
    assert sorted(os.listdir(tmp_path)) == ["out", "x.sqfs"]
