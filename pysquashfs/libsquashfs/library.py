"""Find libsquashfs, make sure that it is one we know, and declare what we call in it.

It is loaded while the program runs (cffi's ABI mode), and never shipped: it is under the LGPL.

The trap: the version to come has other structs under the same file name, and a call with the wrong ones
ends the process. So the functions that it has decide, before the first call. Notebook 06 names both
back ends.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any, NamedTuple

from pysquashfs.errors import DamagedImageError, MissingToolError, SquashFSError

FILE_NAME = "libsquashfs.so.1"
VARIABLE = "PYSQUASHFS_LIBRARY"  # the path of one that is not where the system looks
INSTALL = (
    "apt-get install libsquashfs1 (Debian, Ubuntu), or dnf install squashfs-tools-ng (EPEL), "
    f"or set {VARIABLE} to the path of a {FILE_NAME} of your own"
)

# What we use of squashfs-tools-ng 1.0.0 to 1.3.1, in which it is the same. Whatever can be opaque is.
DECLARATIONS = """
typedef struct sqfs_object_t {
    void (*destroy)(struct sqfs_object_t *);
    void *(*copy)(const struct sqfs_object_t *);
} sqfs_object_t;
typedef struct sqfs_file_t {
    sqfs_object_t base;
    int (*read_at)(struct sqfs_file_t *, uint64_t offset, void *buffer, size_t size);
    int (*write_at)(struct sqfs_file_t *, uint64_t offset, const void *buffer, size_t size);
    uint64_t (*get_size)(const struct sqfs_file_t *);
    int (*truncate)(struct sqfs_file_t *, uint64_t size);
} sqfs_file_t;
typedef struct sqfs_compressor_t {
    sqfs_object_t base;
    void (*get_configuration)(const struct sqfs_compressor_t *, void *config);
    int (*write_options)(struct sqfs_compressor_t *, sqfs_file_t *);
} sqfs_compressor_t;
typedef struct sqfs_data_reader_t sqfs_data_reader_t;

sqfs_file_t *sqfs_open_file(const char *filename, uint32_t flags);
int sqfs_compressor_config_init(void *config, int id, size_t block_size, uint16_t flags);
int sqfs_compressor_create(const void *config, sqfs_compressor_t **out);
sqfs_data_reader_t *sqfs_data_reader_create(
    sqfs_file_t *file, size_t block_size, sqfs_compressor_t *compressor, uint32_t flags);
int sqfs_data_reader_get_block(
    sqfs_data_reader_t *data, const void *inode, size_t index, size_t *size, uint8_t **out);
"""
_MARKERS = ("sqfs_open_file", "sqfs_file_open", "sqfs_tree_node_get_path")
CONFIG_WORDS = 16  # sqfs_compressor_config_t has 4 words of 64 bits; more room costs nothing
UNPACK = 0x8000  # SQFS_COMP_FLAG_UNCOMPRESS
LZ4_HIGH = 0x0001  # SQFS_COMP_FLAG_LZ4_HC

_FAULTS = {
    -1: "there is not enough memory",
    -2: "the file cannot be read or written",
    -3: "the compressor failed",
    -4: "the library failed internally",
    -5: "the data is damaged",
    -6: "the library cannot do that",
    -7: "a block is larger than it may be",
    -8: "something lies outside of the image",
}
_OF_THE_IMAGE = (-3, -5, -7, -8)


class Library(NamedTuple):
    """The library, once a process."""

    ffi: Any  # makes and looks at C data
    calls: Any  # its functions
    version: str
    can_write: bool
    free: Any  # for memory that it gave us


@cache
def load(name: str | None = None) -> Library:
    """Load the library, or say how to get it.

    Args:
        name: File name or path; None for the usual one, or what the environment variable
            `PYSQUASHFS_LIBRARY` names.

    Raises:
        MissingToolError: It, or the Python package cffi, is not installed.
        SquashFSError: It is one that we do not know.
    """
    name = name or os.environ.get(VARIABLE) or FILE_NAME
    try:
        from cffi import FFI
    except ImportError as error:
        raise _missing("the Python package cffi is not installed", "python -m pip install cffi") from error
    ffi = FFI()
    try:
        found = _markers(FFI(), name)
    except OSError as error:
        fault = str(error).partition(".  Additionally")[0]  # what cffi tried after that
        raise _missing(f"the library libsquashfs cannot be loaded ({fault})", INSTALL) from error
    version = recognise(found, name)
    ffi.cdef(DECLARATIONS)
    plain = FFI()
    plain.cdef("void free(void *);")  # the library's own sqfs_free came with 1.1.1 and is this one
    return Library(
        ffi, ffi.dlopen(name), version, "sqfs_tree_node_get_path" in found, plain.dlopen(None).free
    )


def _markers(ffi: Any, name: str) -> set[str]:
    """Which of the functions that tell versions apart are there; nothing is called."""
    ffi.cdef("".join(f"void {marker}(void);" for marker in _MARKERS))
    library = ffi.dlopen(name)
    return {marker for marker in _MARKERS if hasattr(library, marker)}


def recognise(found: set[str], name: str) -> str:
    """The version of a library that has these functions.

    Raises:
        SquashFSError: It has other structs than those declared here.
    """
    if "sqfs_file_open" in found or "sqfs_open_file" not in found:
        raise SquashFSError(
            f"the library {name} is of a version whose layout is not known (by its functions)",
            expected="libsquashfs of squashfs-tools-ng 1.0 to 1.3",
            next_step='Use backend="pure", which needs no library and is as quick',
        )
    return "1.2 or newer" if "sqfs_tree_node_get_path" in found else "1.0 or 1.1"


def available() -> str | None:
    """Version of the library that would be used; None where there is none, or none that can be used."""
    try:
        return load().version
    except SquashFSError:
        return None


def failure(code: int, path: object, what: str) -> SquashFSError:
    """The sentence for an error code of the library.

    Args:
        code: As returned, negative.
        path: The image.
        what: What was being done, as in "reading x.jpg".
    """
    fault = f"{what} failed: {_FAULTS.get(code, 'of an unknown error')} (libsquashfs error {code})"
    if code in _OF_THE_IMAGE:
        return DamagedImageError.of(path, fault, "it as it was written")
    return SquashFSError(
        f"{path}: {fault}", expected="a library that can do it", next_step='Try it with backend="pure"'
    )


def _missing(fault: str, line: str) -> MissingToolError:
    return MissingToolError(
        fault,
        expected='it for backend="libsquashfs"',
        next_step=f'Run {line}; or use backend="pure", which needs neither',
    )
