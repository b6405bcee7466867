"""Read and write squashfs images from Python, without a mount or root.

    SquashFS(path)      an image as a collection of files
    pack(out, items)    write one
    mount(image)        show it as a folder, through the kernel or FUSE
    SquashFSError       what all of them raise

There are two back ends: one in Python, which needs nothing but NumPy, and one over libsquashfs, the C library
of squashfs-tools-ng, which is a second, independent implementation (`pysquashfs.libsquashfs`).

One image replaces a million inodes on a parallel file system, and a process opens it once. The trap:
the defaults of mksquashfs compress photographs again and store their ends in shared blocks, which makes
reads eight times slower; `SquashFS.info` reports it. Notebook 06 teaches it.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if sys.version_info < (3, 11):  # noqa: UP036 - nothing has looked at it before, in a clone
    sys.exit(
        f"error: this is Python {sys.version_info[0]}.{sys.version_info[1]}; expected Python 3.11 or newer."
    )

from pysquashfs.errors import SquashFSError

if TYPE_CHECKING:
    from pysquashfs.image import SquashFS, Stat
    from pysquashfs.mounting import mount
    from pysquashfs.writer import pack

__all__ = ["SquashFS", "SquashFSError", "Stat", "mount", "pack"]
_HOMES = {"SquashFS": "image", "Stat": "image", "mount": "mounting", "pack": "writer"}


def __getattr__(name: str) -> Any:
    # Lazy, so that a worker that only reads does not import the code for packing and mounting.
    if name in _HOMES:
        found = getattr(import_module(f"pysquashfs.{_HOMES[name]}"), name)
        globals()[name] = found
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
