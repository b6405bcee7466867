"""Finding the library, refusing the wrong one, and who may use and free what it holds."""

import gc
import os
import shutil
import sys
import threading
from pathlib import Path

import pytest
from squashfs_trees import content

from pysquashfs import SquashFS, SquashFSError, layout, libsquashfs, pack
from pysquashfs.errors import ClosedError, DamagedImageError, MissingToolError
from pysquashfs.image_file import ImageFile
from pysquashfs.libsquashfs import library, reading
from pysquashfs.parsing import parse

FILES = [
    (f"{number:02}.bin", content(700 * number, "text" if number % 2 else "noise", number))
    for number in range(40)
]


@pytest.fixture
def image(tmp_path):
    return pack(tmp_path / "x", FILES, compression="gzip", block_bytes=4096, fragments=True).path


def index_of(path):
    return parse(ImageFile(path))


@pytest.fixture
def fresh(monkeypatch):
    """A process that has not looked for the library yet."""
    library.load.cache_clear()
    monkeypatch.delenv(library.VARIABLE, raising=False)
    yield monkeypatch
    library.load.cache_clear()


@pytest.mark.parametrize(
    ("functions", "version"),
    [
        ({"sqfs_open_file"}, "1.0 or 1.1"),
        ({"sqfs_open_file", "sqfs_tree_node_get_path"}, "1.2 or newer"),
    ],
)
def test_versions_are_told_apart_by_their_functions(functions, version):
    assert library.recognise(functions, "x") == version


@pytest.mark.parametrize("functions", [set(), {"sqfs_file_open"}, {"sqfs_open_file", "sqfs_file_open"}])
def test_a_version_of_another_layout_is_refused(functions):
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


def test_the_inode_that_the_library_gets_has_its_layout():
    assert reading._INODE.size == 68
    assert layout.INODE_HEADER.size == 16


@pytest.mark.parametrize("code", range(-20, 0))
def test_every_error_of_the_library_is_a_sentence_with_the_path(code):
    error = library.failure(code, "/data/x.sqfs", "reading a.jpg")
    assert str(error).startswith("/data/x.sqfs: reading a.jpg failed: ")
    assert f"libsquashfs error {code}" in str(error)
    assert isinstance(error, DamagedImageError) == (code in (-3, -5, -7, -8))


def test_another_thread_is_refused(need_libsquashfs, image):
    backend, caught = libsquashfs.open_backend(image, index_of(image)), []

    def read():
        try:
            backend.read(1)
        except SquashFSError as error:
            caught.append(str(error))

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert "outside of the thread that made it" in caught[0]
    assert backend.read(1) == FILES[1][1]


def test_a_forked_child_may_neither_read_with_it_nor_free_it(need_libsquashfs, image):
    backend = libsquashfs.open_backend(image, index_of(image))
    before = backend.read(7)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            backend.read(7)
        except SquashFSError:
            backend.close()
            del backend
            gc.collect()
            status = 0
        os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert backend.read(7) == before == FILES[7][1]
    assert [backend.read(row) for row in range(len(FILES))] == [data for _, data in FILES]


def freed(backend):
    """What is freed, by names of types, in order."""
    found = []
    ffi = backend._library.ffi

    class Watched:
        def __getattr__(self, name):
            return getattr(ffi, name)

        def cast(self, kind, thing):
            if kind == "sqfs_object_t *" and (not found or found[-1] is not thing):
                found.append(thing)
            return ffi.cast(kind, thing)

    return found, backend._library._replace(ffi=Watched())


def test_only_the_process_that_opened_frees(need_libsquashfs, image, monkeypatch):
    backend = libsquashfs.open_backend(image, index_of(image))
    found, watched = freed(backend)
    held = list(backend._give_back.peek()[2][1])
    monkeypatch.setattr(os, "getpid", lambda: -1)  # as in a child
    reading.give_back(watched, list(held), backend._owner[0])
    assert found == []
    monkeypatch.undo()
    backend._give_back.detach()
    reading.give_back(watched, list(held), backend._owner[0])
    assert found == held[::-1]  # the reader before its file


def test_closing_twice_and_reading_after_it(need_libsquashfs, image):
    backend = libsquashfs.open_backend(image, index_of(image))
    backend.close()
    backend.close()
    with pytest.raises(ClosedError):
        backend.read(0)


def test_forgotten_readers_leave_no_descriptor_and_no_memory(need_libsquashfs, image):
    index = index_of(image)

    def open_and_forget(times):
        for _ in range(times):
            libsquashfs.open_backend(image, index).read(5)
        gc.collect()
        return len(os.listdir("/proc/self/fd")), int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    descriptors, used_bytes = open_and_forget(50)
    again, more_bytes = open_and_forget(500)
    assert again == descriptors
    assert more_bytes - used_bytes < 20 << 20  # a reader kept would be more than 1 MiB


def test_reading_leaks_no_memory(need_libsquashfs, tmp_path):
    path = pack(
        tmp_path / "y", [("a", content(1 << 20, "text")), ("b", content(100, "text"))], compression="gzip"
    ).path
    backend = libsquashfs.open_backend(path, index_of(path))

    def read(times):
        for _ in range(times):
            backend.read(0)
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    used_bytes = read(20)
    assert read(200) - used_bytes < 50 << 20


def test_an_image_that_was_changed_is_refused(need_libsquashfs, image):
    index = index_of(image)
    os.utime(image, ns=(1, 1))
    with pytest.raises(SquashFSError, match="was changed after it was opened"):
        libsquashfs.open_backend(image, index)


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
        with pytest.raises(DamagedImageError, match=r"reading 38\.bin failed: something lies outside"):
            opened.read_at(38)


def test_names_of_images_may_be_any(need_libsquashfs, image, tmp_path):
    odd = tmp_path / "ü, 'x' \udcff\n.sqfs"
    shutil.copy(image, odd)
    with SquashFS(odd, backend="libsquashfs") as opened:
        assert [opened.read_at(row) for row in range(len(opened))] == [data for _, data in FILES]


def test_a_large_file_takes_no_buffer_of_its_size_for_good(need_libsquashfs, tmp_path):
    data = content(5 << 20, "noise")
    path = pack(tmp_path / "y", [("large", data)]).path
    with SquashFS(path, backend="libsquashfs") as opened:
        assert opened.read("large") == data
        assert opened._backend()._buffer == opened._backend()._buffer
        assert len(opened._backend()._buffer) == 1 << 20
