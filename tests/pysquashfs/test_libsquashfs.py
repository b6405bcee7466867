"""Finding the library, refusing the wrong one, and who may use and free what it holds."""

import gc
import os
import shutil
import sys
from pathlib import Path

import pytest
from squashfs_trees import content

from pysquashfs import SquashFS, SquashFSError, libsquashfs, pack
from pysquashfs import libsquashfs as library
from pysquashfs.errors import DamagedImageError, MissingToolError

FILES = [
    (f"{number:02}.bin", content(700 * number, "text" if number % 2 else "noise", number))
    for number in range(40)
]


@pytest.fixture
def image(tmp_path):
    return pack(tmp_path / "x", FILES, compression="gzip", block_bytes=4096, fragments=True).path


@pytest.fixture
def fresh(monkeypatch):
    """A process that has not looked for the library yet."""
    library.load.cache_clear()
    monkeypatch.delenv(library.VARIABLE, raising=False)
    yield monkeypatch
    library.load.cache_clear()


def test_a_version_is_recognised_by_its_functions_and_one_of_another_layout_is_refused():
    assert library.recognise({"sqfs_open_file"}, "x") == "1.0 or 1.1"
    assert library.recognise({"sqfs_open_file", "sqfs_tree_node_get_path"}, "x") == "1.2 or newer"
    for functions in (set(), {"sqfs_file_open"}, {"sqfs_open_file", "sqfs_file_open"}):
        with pytest.raises(SquashFSError, match=r"layout is not known.*squashfs-tools-ng 1\.0 to 1\.3.*pure"):
            library.recognise(functions, "libsquashfs.so.1")


def test_a_library_that_is_not_installed_is_named_with_the_line_that_installs_it(fresh, image):
    fresh.setattr(library, "FILE_NAME", "libsquashfs-that-nobody-has.so.1")
    assert libsquashfs.available() is None
    with SquashFS(image, backend="libsquashfs") as opened, pytest.raises(MissingToolError) as caught:
        opened.read_at(0)
    assert "apt-get install libsquashfs1" in str(caught.value)
    assert "EPEL" in str(caught.value)
    assert 'backend="pure"' in str(caught.value)


def test_a_library_of_something_else_is_refused(fresh):
    libc = next(
        path
        for *_, path in (line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines())
        if path.rpartition("/")[2].startswith(("libc.so", "libc-"))
    )
    fresh.setenv(library.VARIABLE, libc)
    with pytest.raises(SquashFSError, match="layout is not known"):
        library.load()


def test_without_cffi_a_sentence_says_so(fresh):
    fresh.setitem(sys.modules, "cffi", None)
    with pytest.raises(MissingToolError, match=r"cffi is not installed.*pip install cffi"):
        library.load()


def test_the_library_of_this_machine_is_one_we_know(need_libsquashfs):
    assert libsquashfs.available() in ("1.0 or 1.1", "1.2 or newer")


def test_a_forked_child_reads_and_frees_nothing_of_its_parent(need_libsquashfs, image):
    with SquashFS(image, backend="libsquashfs") as opened:
        before = opened.read_at(7)
        child = os.fork()
        if child == 0:
            status = int(opened.read_at(7) != before)
            del opened
            gc.collect()
            os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert [opened.read_at(row) for row in range(len(FILES))] == [data for _, data in FILES]


def test_forgotten_readers_leave_no_descriptor_and_no_memory(need_libsquashfs, image):
    def open_and_forget(times):
        for _ in range(times):
            SquashFS(image, backend="libsquashfs").read_at(5)
        gc.collect()
        return len(os.listdir("/proc/self/fd")), int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    descriptors, used_bytes = open_and_forget(50)
    again, more_bytes = open_and_forget(500)
    assert again == descriptors
    assert more_bytes - used_bytes < 20 << 20  # unpackers that are kept would be more


def test_an_image_that_was_replaced_is_read_on_as_it_was(need_libsquashfs, image, tmp_path):
    with SquashFS(image, backend="libsquashfs") as opened:
        opened.read_at(0)
        os.replace(shutil.copy(image, tmp_path / "y"), image)
        image.write_bytes(b"hsqs, but nothing else")
        assert opened.read_at(5) == FILES[5][1]


def test_a_file_that_became_shorter_is_an_error(need_libsquashfs, image):
    with SquashFS(image, backend="libsquashfs") as opened:
        opened.read_at(39)
        os.truncate(image, 100)
        with pytest.raises(DamagedImageError, match="became shorter"):
            opened.read_at(38)
