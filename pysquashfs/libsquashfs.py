"""The back end that unpacks blocks with libsquashfs, the C library of squashfs-tools-ng.

It reads like the pure one, and passes only compressed blocks to the library. The library is loaded at run
time (cffi's ABI mode) and never shipped: it is under the LGPL. It unpacks gzip somewhat faster than Python
and has no other advantage, so it is only used on request.

The traps: the next version has other structs under the same file name, and a call with wrong structs ends
the process. So the version is recognised by its functions before the first call. And a compressor belongs
to one thread of one process: a forked child must not free a compressor that a thread of the parent may have
been changing. Notebook 06 reads with both back ends.
"""

from __future__ import annotations

import os
import weakref
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pysquashfs import layout
from pysquashfs.errors import MissingToolError, SquashFSError
from pysquashfs.index import Index
from pysquashfs.pure import PureBackend

FILE_NAME = "libsquashfs.so.1"
VARIABLE = "PYSQUASHFS_LIBRARY"  # path of a library outside the system's folders
INSTALL = (
    "apt-get install libsquashfs1 (Debian, Ubuntu), or dnf install squashfs-tools-ng (EPEL), "
    f"or set {VARIABLE} to the path of a {FILE_NAME} of your own"
)

# The part of squashfs-tools-ng that is used here, identical in 1.0.0 to 1.3.1.
_DECLARATIONS = """
typedef struct sqfs_object_t {
    void (*destroy)(struct sqfs_object_t *);
    void *(*copy)(const struct sqfs_object_t *);
} sqfs_object_t;
typedef struct sqfs_compressor_t {
    sqfs_object_t base;
    void (*get_configuration)(const struct sqfs_compressor_t *, void *config);
    int (*write_options)(struct sqfs_compressor_t *, void *file);
    int (*read_options)(struct sqfs_compressor_t *, void *file);
    int32_t (*do_block)(struct sqfs_compressor_t *, const uint8_t *in, uint32_t size,
                        uint8_t *out, uint32_t outsize);
} sqfs_compressor_t;
int sqfs_compressor_config_init(void *config, int id, size_t block_size, uint16_t flags);
int sqfs_compressor_create(const void *config, sqfs_compressor_t **out);
"""
_MARKERS = ("sqfs_open_file", "sqfs_file_open", "sqfs_tree_node_get_path")
_CONFIG_WORDS = 16  # sqfs_compressor_config_t has 4 words of 64 bits; more room costs nothing
_UNPACK = 0x8000  # SQFS_COMP_FLAG_UNCOMPRESS


class Library(NamedTuple):
    """The library, loaded once per process."""

    ffi: Any  # makes and reads C data
    calls: Any  # its functions
    version: str


class LibraryBackend(PureBackend):
    """Reads files of one image in the thread that made it.

    Args:
        path: The image.
        index: What is in it.

    Raises:
        SquashFSError: The library is missing or too new, or the image is not the one that was indexed.
    """

    def __init__(self, path: Path, index: Index) -> None:
        library = load()
        super().__init__(path, index)
        self._ffi = ffi = library.ffi
        config, out = ffi.new("uint64_t[]", _CONFIG_WORDS), ffi.new("sqfs_compressor_t **")
        number = layout.COMPRESSOR_IDS[self._compressor]
        code = library.calls.sqfs_compressor_config_init(config, number, self._block_bytes, _UNPACK)
        code = code or library.calls.sqfs_compressor_create(config, out)
        if code:
            raise SquashFSError(
                f"{path}: libsquashfs cannot unpack {self._compressor} (error {code})",
                expected="a library that was built with it",
                next_step='Use backend="pure"',
            )
        self._unpacker, self._do_block = out[0], out[0].do_block
        self._unpacked, self._of_bytes = ffi.new("char[]", self._block_bytes), ffi.typeof("uint8_t[]")
        self._room = ffi.cast("uint8_t *", self._unpacked)
        weakref.finalize(self, _destroy, ffi, self._unpacker, os.getpid()).atexit = False

    def _decompressed(self, stored: memoryview, position: int) -> bytes:
        data = self._ffi.from_buffer(self._of_bytes, stored)
        size = self._do_block(self._unpacker, data, len(stored), self._room, self._block_bytes)
        if size <= 0:  # 0: it does not end, or is larger than a block
            fault = f"the block at byte {position:,} does not decompress (libsquashfs error {size})"
            raise self._damaged(fault, "it as it was written")
        unpacked: bytes = self._ffi.unpack(self._unpacked, size)
        return unpacked


def available() -> str | None:
    """Version of the library that would be used; None if there is no usable one."""
    try:
        return load().version
    except SquashFSError:
        return None


@cache
def load() -> Library:
    """Load the library.

    Raises:
        MissingToolError: It, or the Python package cffi, is not installed.
        SquashFSError: It has an unknown version.
    """
    name = os.environ.get(VARIABLE) or FILE_NAME
    try:
        from cffi import FFI
    except ImportError as error:
        raise _missing("the Python package cffi is not installed", "python -m pip install cffi") from error
    ffi, markers = FFI(), FFI()
    markers.cdef("".join(f"void {marker}(void);" for marker in _MARKERS))
    try:
        library = markers.dlopen(name)
    except OSError as error:
        fault = str(error).partition(".  Additionally")[0]  # without what cffi tried next
        raise _missing(f"the library libsquashfs cannot be loaded ({fault})", INSTALL) from error
    version = recognise({marker for marker in _MARKERS if hasattr(library, marker)}, name)
    ffi.cdef(_DECLARATIONS)
    return Library(ffi, ffi.dlopen(name), version)


def recognise(found: set[str], name: str) -> str:
    """The version of a library that has these functions.

    Raises:
        SquashFSError: It has other structs than those declared here.
    """
    if "sqfs_file_open" in found or "sqfs_open_file" not in found:
        raise SquashFSError(
            f"the library {name} is of a version whose layout is not known (by its functions)",
            expected="libsquashfs of squashfs-tools-ng 1.0 to 1.3",
            next_step='Use backend="pure", which needs no library and is as fast',
        )
    return "1.2 or newer" if "sqfs_tree_node_get_path" in found else "1.0 or 1.1"


def _destroy(ffi: Any, compressor: Any, pid: int) -> None:
    if pid == os.getpid():
        compressor.base.destroy(ffi.cast("sqfs_object_t *", compressor))


def _missing(fault: str, line: str) -> MissingToolError:
    return MissingToolError(
        fault,
        expected='it for backend="libsquashfs"',
        next_step=f'Run {line}; or use backend="pure", which needs neither',
    )
