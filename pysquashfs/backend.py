"""Who fetches the bytes of a file: pure Python, or libsquashfs.

Both get the same `Index`, so they agree on what is in an image and differ only in how bytes come. A
back end belongs to one process and one thread; `SquashFS` makes one where there is none yet.

The trap: sharing one over a fork. A reader of libsquashfs keeps decompressed blocks and must not be
used by two threads. Notebook 06 reads with both.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from pysquashfs.errors import SquashFSError
from pysquashfs.index import Index

Name: TypeAlias = Literal["auto", "pure", "libsquashfs"]
NAMES = ("auto", "pure", "libsquashfs")


class Backend(Protocol):
    """Reads files of one image in one thread; frees what it holds when it is closed or forgotten."""

    def read(self, row: int, *, beside_others: bool = False) -> bytes:
        """All bytes of the file in this row of `index.files`; a `SquashFSError` if they are damaged.

        `beside_others` says that other threads read too, and must not be kept waiting.
        """

    def view(self, row: int) -> bytes | memoryview:
        """All bytes of a file, not copied if they lie in the mapped image as they are."""

    def close(self) -> None:
        """Let go of everything. Calling it twice does no harm."""


def choose(name: str) -> str:
    """The back end that `auto` stands for.

    The pure one was the faster wherever files are stored raw, and it needs nothing installed.

    Raises:
        SquashFSError: There is no back end of this name.
    """
    if name not in NAMES:
        raise SquashFSError(
            f"the back end {name!r} is not known",
            expected=f"one of {', '.join(NAMES)}",
            next_step='Use backend="auto"',
        )
    return "pure" if name == "auto" else name


def open_backend(name: str, path: Path, index: Index) -> Backend:
    """A back end for this process and thread.

    Args:
        name: "pure" or "libsquashfs".
        path: The image.
        index: What is in it.

    Raises:
        SquashFSError: The library is missing or cannot be used, or the image changed.
    """
    module = import_module(f"pysquashfs.{name}")
    backend: Backend = module.open_backend(path, index)
    return backend
