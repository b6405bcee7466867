"""An image as a folder: by every way of this machine, and gone afterwards whatever happened."""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from programs import wait_for
from squashfs_trees import files_of, run

import pysquashfs
from pysquashfs import SquashFSError
from pysquashfs.mounting import MountError, how_to_mount, mount, table, ways

WAYS = ["squashfuse_ll", "squashfuse", "kernel"]
NAMES = ["plain", "with spaces", "comma,and\\backslash", "quotes'\"$HOME", "not utf-8 \udcff", "new\nline"]


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    root = tmp_path_factory.mktemp("tree")
    for number in range(20):
        folder = root / f"class {number % 3}"
        folder.mkdir(exist_ok=True)
        (folder / f"{number}.bin").write_bytes(os.urandom(number * 1000))
    return root


@pytest.fixture(scope="module")
def packed(tree, tmp_path_factory):
    out = tmp_path_factory.mktemp("image") / "packed"
    pysquashfs.pack(out, [(name, path) for name, path in sorted(files_of(tree).items())])
    return out


@pytest.fixture
def image(packed, tmp_path):
    """An image of its own for each test, so that none sees the mounts of another."""
    return Path(shutil.copy(packed, tmp_path / "image.sqfs"))


@pytest.fixture(autouse=True)
def nothing_stays(tmp_path, monkeypatch):
    """Mounts of other programs of this machine come and go, so temporary folders lie in that of the test."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    yield
    wait_for(lambda: not [each for each in table.mounts() if str(each.folder).startswith(str(tmp_path))])
    wait_for(lambda: not [word for word in processes() if str(tmp_path) in word])


def processes(*more):
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found.append(os.fsdecode((process / "cmdline").read_bytes().replace(b"\0", b" ")))
        except OSError:
            continue
    return [line for line in found if any(word in line for word in ("squashfuse", "read -r", *more))]


def kernel_can_mount(image, folder):
    folder.mkdir()
    done = subprocess.run([*ways.command("kernel", image, folder)], capture_output=True)
    if done.returncode == 0:
        run("umount", folder)
    return done.returncode == 0


def same(folder, tree):
    assert {name: path.read_bytes() for name, path in files_of(folder).items()} == {
        name: path.read_bytes() for name, path in files_of(tree).items()
    }


@pytest.mark.parametrize("way", WAYS)
def test_every_way_shows_the_bytes_and_leaves_nothing(fuse, image, tree, tmp_path, way):
    if way == "kernel" and not kernel_can_mount(image, tmp_path / "try"):
        pytest.skip("the kernel may not mount here")
    with mount(image, way=way) as folder:
        same(folder, tree)
        assert way in table.at(folder).kind or way == "kernel"
        with pytest.raises(OSError, match="Read-only"):
            (folder / "new").write_bytes(b"")
    assert not folder.exists()
    assert table.at(folder) is None


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_odd_names_of_images_and_mount_points_work(fuse, image, tree, tmp_path, name):
    odd, where = tmp_path / f"{name}.sqfs", tmp_path / f"mount {name}"
    shutil.move(image, odd)
    where.mkdir()
    for way in WAYS:
        if way == "kernel" and not kernel_can_mount(odd, tmp_path / "try"):
            continue
        with mount(odd, where, way=way) as folder:
            assert folder == where
            same(folder, tree)
            assert table.at(where) is not None
            assert (table.at(where).source == f"{table.MARK}{odd}") == (way != "kernel")
        assert where.is_dir()  # it was there before
        assert not any(where.iterdir())


CHILD = """
import os, sys, time
from pysquashfs import mount
if {ending!r} == "forgotten":
    block = mount({image!r})
    print(block.__enter__(), flush=True)
    sys.exit(0)
with mount({image!r}) as folder:
    print(folder, flush=True)
    if {ending!r} == "exit": sys.exit(3)
    if {ending!r} == "hard": os._exit(0)
    time.sleep(60)
"""


@pytest.mark.parametrize("ending", ["exit", "hard", "forgotten", "SIGTERM", "SIGINT", "SIGKILL"])
def test_the_mount_goes_however_the_process_ends(fuse, image, ending):
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD.format(ending=ending, image=str(image))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    folder = Path(child.stdout.readline().rstrip("\n"))
    assert folder.name.startswith("pysquashfs-")
    if ending.startswith("SIG"):
        assert table.at(folder) is not None
        child.send_signal(getattr(signal, ending))
    child.communicate(timeout=30)
    wait_for(lambda: table.at(folder) is None and not folder.exists())


def test_leaving_the_block_in_a_forked_child_leaves_the_mount(fuse, image, tree):
    block = mount(image)
    folder = block.__enter__()
    child = os.fork()
    if child == 0:
        block.__exit__(None, None, None)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    same(folder, tree)
    block.__exit__(None, None, None)
    assert not folder.exists()


def server_of(folder):
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            words = (process / "cmdline").read_bytes().split(b"\0")
            if b"squashfuse" in words[0] and os.fsencode(folder) in words:
                return int(process.name)
    raise AssertionError("no server")


def test_a_mount_whose_server_was_killed_is_repaired(fuse, image, tree, tmp_path):
    where = tmp_path / "where"
    where.mkdir()
    run("squashfuse_ll", image, where)  # as somebody would by hand
    os.kill(server_of(where), signal.SIGKILL)
    wait_for(lambda: table.answer(where))
    with pytest.raises(OSError, match="not connected"):
        list(where.iterdir())
    with mount(image, where) as folder:
        same(folder, tree)
    assert table.at(where) is None


def test_a_killed_server_is_cleared_away_by_the_next_mount(fuse, image, tree):
    block = mount(image)
    dead = block.__enter__()
    os.kill(server_of(dead), signal.SIGKILL)
    wait_for(lambda: table.answer(dead))
    with mount(image) as folder:
        assert folder != dead
        assert not dead.exists()
        same(folder, tree)
    block.__exit__(None, None, None)


def test_mounts_of_others_are_left_and_not_borrowed(fuse, image, tree, tmp_path):
    where = tmp_path / "by hand"
    where.mkdir()
    run("squashfuse", image, where)
    try:
        with mount(image) as first, mount(image) as second:
            assert len({where, first, second}) == 3
        with pytest.raises(MountError, match="is not empty"), mount(image, where):
            pass
        same(where, tree)
    finally:
        run("fusermount3", "-u", where)


def test_a_busy_mount_is_detached_with_a_warning(fuse, image, monkeypatch):
    monkeypatch.setattr("pysquashfs.mounting.attaching._BUSY_S", 0.2)
    with pytest.warns(UserWarning, match="still in use"), mount(image) as folder:
        held = next(path for path in files_of(folder).values() if path.stat().st_size).open("rb")
    assert not folder.exists()
    assert held.read()
    held.close()
    wait_for(lambda: not [line for line in processes() if str(image) in line])


def test_a_full_folder_and_one_of_something_else_are_refused(fuse, image, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_bytes(b"")
    with pytest.raises(MountError, match="is not empty"), mount(image, tmp_path / "full"):
        pass
    with pytest.raises(MountError, match="is not empty"), mount(image, "/proc"):
        pass
    with pytest.raises(MountError, match="empty or new folder"), mount(image, image):
        pass


def test_no_image_is_refused_before_anything_is_mounted(tmp_path):
    (tmp_path / "text").write_bytes(b"no image, but long enough to have a superblock" * 3)
    for path in (tmp_path / "text", tmp_path / "missing", tmp_path):
        with pytest.raises(SquashFSError), mount(path):
            pass


@pytest.fixture
def bin_folder(tmp_path, monkeypatch):
    """An empty PATH to fill, on a machine where this user is not root."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr("os.geteuid", lambda: 1000)

    def add(name):
        (folder / name).write_text("#!/bin/sh\nexit 9\n")
        (folder / name).chmod(0o755)

    return add


def test_without_any_tool_every_way_says_what_is_missing(bin_folder, image):
    found = {way.name: way for way in how_to_mount(image)}
    assert not any(way.available for way in found.values())
    assert "apt-get install squashfuse fuse3" in found["squashfuse_ll"].reason
    assert "root" in found["kernel"].reason
    with pytest.raises(MountError, match="Read it without a mount") as caught, mount(image):
        pass
    assert "squashfuse is not installed" in str(caught.value)


def test_a_way_that_needs_a_new_start_is_given_as_a_line(bin_folder, image):
    bin_folder("apptainer")
    with pytest.raises(MountError, match=r"apptainer exec -B .*image.sqfs:/data:image-src=/"), mount(image):
        pass
    bin_folder("squashfs-mount")
    with pytest.raises(MountError, match=r"Start your program with: squashfs-mount .*:/user-environment -- "):
        mount(image).__enter__()
    comma = shutil.copy(image, image.parent / "a,b:c")
    lines = {way.name: way for way in how_to_mount(comma)}
    assert "comma" in lines["apptainer"].reason
    assert "colon" in lines["squashfs-mount"].reason


def test_a_way_that_fails_is_followed_by_the_next(fuse, image, tree, tmp_path, monkeypatch):
    broken = tmp_path / "bin"
    broken.mkdir()
    (broken / "squashfuse_ll").write_text("#!/bin/sh\necho it has a bad day >&2\nexit 9\n")
    (broken / "squashfuse_ll").chmod(0o755)
    monkeypatch.setenv("PATH", f"{broken}:{os.environ['PATH']}")
    with mount(image) as folder:
        same(folder, tree)
        assert table.at(folder).kind == "fuse.squashfuse"
    with (
        pytest.raises(MountError, match="squashfuse_ll: it has a bad day"),
        mount(image, way="squashfuse_ll"),
    ):
        pass
    with pytest.raises(MountError, match="no way 'sshfs'"), mount(image, way="sshfs"):
        pass


def test_a_server_that_never_mounts_is_given_up(fuse, image, tmp_path, monkeypatch):
    slow = tmp_path / "bin"
    slow.mkdir()
    (slow / "squashfuse_ll").write_text(f"#!/bin/sh\nexec sleep 60.{os.getpid()}\n")
    (slow / "squashfuse_ll").chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow}:{os.environ['PATH']}")
    monkeypatch.setattr("pysquashfs.mounting.attaching._BUSY_S", 0.2)
    monkeypatch.setattr("pysquashfs.mounting.attaching._COMMAND_S", 0.5)
    with pytest.raises(MountError, match=r"nothing was mounted within 0.5 s"):
        mount(image, way="squashfuse_ll").__enter__()
    assert not [line for line in processes("sleep") if f"60.{os.getpid()}" in line]
