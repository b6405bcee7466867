"""Load libsquashfs, check which version it is, and declare the functions that we call.

It is loaded while the program runs (the ABI mode of cffi) and never shipped, because its licence is the LGPL.

The trap: the next version has other structs under the same file name, and a call with the wrong struct ends
the process. So the names of the functions in the library decide, before any function is called.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pysquashfs import layout
from pysquashfs.errors import DamagedImageError, MissingToolError, SquashFSError
from pysquashfs.image_file import ImageFile

FILE_NAME = "libsquashfs.so.1"
VARIABLE = "PYSQUASHFS_LIBRARY"
"""The environment variable with the path of a library that is not where the system looks."""
INSTALL = (
    "apt-get install libsquashfs1 (Debian, Ubuntu) or dnf install squashfs-tools-ng (EPEL), "
    f"or set {VARIABLE} to the path of your own {FILE_NAME}"
)

_HEADER = Path(__file__).with_name("declarations.h")
_MARKERS = ("sqfs_open_file", "sqfs_file_open", "sqfs_block_processor_create_ex", "sqfs_tree_node_get_path")
_CONFIG_WORDS = 16  # sqfs_compressor_config_t has 4 words of 64 bits
_LEVEL_AT = 2  # its level is the third number of 32 bits
_UNCOMPRESS = 0x8000
READ_ONLY, OVERWRITE = 1, 2

_FAULTS = {
    -1: "there is not enough memory",
    -2: "the file cannot be read or written",
    -3: "the compressor failed",
    -4: "the library failed internally",
    -5: "the data is damaged",
    -6: "the library does not support it",
    -7: "a block is larger than it may be",
    -8: "something lies outside of the image",
}


class Library(NamedTuple):
    """The loaded library."""

    name: str  # file name or path
    ffi: Any
    calls: Any  # its functions
    version: str
    can_write: bool
    free: Any  # for memory that the library allocated


@cache
def load() -> Library:
    """Load the library once per process.

    Raises:
        MissingToolError: The library, or the Python package cffi, is not installed.
        SquashFSError: The library has other structs than those declared here.
    """
    name = os.environ.get(VARIABLE) or FILE_NAME
    try:
        from cffi import FFI
    except ImportError as error:
        raise _missing("the Python package cffi is not installed", "python -m pip install cffi") from error
    ffi, markers, plain = FFI(), FFI(), FFI()
    markers.cdef("".join(f"void {marker}(void);" for marker in _MARKERS))
    try:
        names = markers.dlopen(name)
    except OSError as error:
        fault = str(error).partition(".  Additionally")[0]  # cffi adds what else it tried
        raise _missing(f"the library libsquashfs cannot be loaded ({fault})", INSTALL) from error
    present = {marker for marker in _MARKERS if hasattr(names, marker)}
    version = recognise(present, name)
    ffi.cdef(_HEADER.read_text())
    plain.cdef("void free(void *);")  # the library's own sqfs_free came with 1.1.1 and calls this
    can_write = "sqfs_tree_node_get_path" in present
    return Library(name, ffi, ffi.dlopen(name), version, can_write, plain.dlopen(None).free)


def recognise(present: set[str], name: str) -> str:
    """Return the version of a library that has these functions.

    Raises:
        SquashFSError: It has other structs than those declared here.
    """
    if "sqfs_file_open" in present or "sqfs_open_file" not in present:
        raise SquashFSError(
            f"the structures of the library {name} are not known, as the names of its functions show",
            expected="libsquashfs of squashfs-tools-ng 1.0 to 1.3",
            next_step='Use backend="python", which needs no library',
        )
    if "sqfs_tree_node_get_path" in present:
        return "1.2 or newer"
    return "1.0.4 to 1.1" if "sqfs_block_processor_create_ex" in present else "1.0.0 to 1.0.3"


def available() -> str | None:
    """Return the version of the library, or None if there is none that can be used."""
    try:
        return load().version
    except SquashFSError:
        return None


class Session:
    """Objects of the library, freed together by `close`.

    An object belongs to the process that made it. A forked child leaves inherited objects alone, since a
    thread of the parent may have been in the middle of changing them.

    Args:
        path: The image, for messages.

    Raises:
        SquashFSError: The library cannot be used.
    """

    def __init__(self, path: object) -> None:
        self.path = path
        self.library = load()
        self._objects: list[Any] = []
        self._pid = os.getpid()

    def keep(self, thing: Any, what: str) -> Any:
        """Return an object that the library created, and free it at the end; NULL is an error."""
        if thing == self.library.ffi.NULL:
            fault = os.strerror(self.library.ffi.errno) if self.library.ffi.errno else "not enough memory"
            raise SquashFSError(
                f"{self.path}: libsquashfs cannot open {what} ({fault})",
                expected="a file that can be opened, and free memory",
                next_step='Check the file, or use backend="python"',
            )
        self._objects.append(thing)
        return thing

    def check(self, code: int, what: str) -> int:
        """Raise the error for a negative result of the library; `what` is as in "reading x.jpg"."""
        if code < 0:
            raise failure(code, self.path, what)
        return code

    def open(self, image: ImageFile) -> Any:
        """Open an image for reading, by its descriptor: its path may name another file by now."""
        return self.keep(
            self.library.calls.sqfs_open_file(b"/proc/self/fd/%d" % image.descriptor, READ_ONLY), "the image"
        )

    def compressor(
        self, name: str, block_bytes: int, *, level: int | None = None, unpack: bool = True
    ) -> Any:
        """Create a compressor, or with `unpack` its opposite.

        Raises:
            SquashFSError: The library was built without it.
        """
        ffi, calls = self.library.ffi, self.library.calls
        config, out = ffi.new("uint64_t[]", _CONFIG_WORDS), ffi.new("sqfs_compressor_t **")
        flags = _UNCOMPRESS if unpack else 0
        code = calls.sqfs_compressor_config_init(config, layout.COMPRESSOR_IDS[name], block_bytes, flags)
        if level is not None:
            ffi.cast("uint32_t *", config)[_LEVEL_AT] = level
        self.check(code or calls.sqfs_compressor_create(config, out), f"preparing the compressor {name}")
        return self.keep(out[0], f"the compressor {name}")

    def close(self) -> None:
        """Free all objects, the last one first."""
        while self._objects:
            thing = self._objects.pop()
            if self._pid == os.getpid():
                base = self.library.ffi.cast("sqfs_object_t *", thing)
                base.destroy(base)


def failure(code: int, path: object, what: str) -> SquashFSError:
    """Return the error for a negative result of the library.

    Args:
        code: The result.
        path: The image.
        what: What was being done, as in "reading x.jpg".
    """
    fault = f"{what} failed: {_FAULTS.get(code, 'the library refuses it')} (libsquashfs error {code})"
    if code in (-1, -2, -4, -6):
        return SquashFSError(
            f"{path}: {fault}", expected="a library that can do it", next_step='Try backend="python"'
        )
    return DamagedImageError.of(path, fault, "it as it was written")


def _missing(fault: str, line: str) -> MissingToolError:
    return MissingToolError(
        fault,
        expected='it for backend="libsquashfs"',
        next_step=f'Run {line}; or use backend="python", which needs neither',
    )
