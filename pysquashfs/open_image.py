"""The state of an image per process and thread, and what all of them share.

The trap: a process must not use what another one opened. Every process and thread gets its own reader at
its first read; the index is shared; a pickle contains only the path. Notebook 06 passes one object to the
workers of a DataLoader.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pysquashfs import backends
from pysquashfs.errors import ClosedError, SquashFSError
from pysquashfs.file_reader import FileReader
from pysquashfs.image_file import ImageFile
from pysquashfs.index import Index


class OpenImage:
    """Life cycle of an image; `SquashFS` adds the methods that read."""

    def __init__(self, path: str | os.PathLike[str], backend: str = "auto") -> None:
        self.path = Path(path)
        self._closed = False
        self._forget()
        image = ImageFile(self.path)
        self.backend, self._backend_reason = backends.choose(image, backend)
        self._index: Index | None = backends.parse(image, self.backend)
        self._identity = _identity(self._index)
        self._count = len(self._index.files)

    def _forget(self) -> None:
        """Drop the state of this process; readers close when the last read in them is done."""
        self._local = threading.local()
        self._pool: tuple[int, int, ThreadPoolExecutor] | None = None

    @property
    def index(self) -> Index:
        """What is in the image, as columns."""
        if self._closed:
            raise ClosedError(
                f"{self.path} was closed",
                expected="an open image",
                next_step="Open it again with SquashFS(path)",
            )
        # No lock: if another thread held it during a fork, the child would wait for ever. Two threads may
        # both load; the last index is kept.
        index = self._index
        if index is None:
            index = backends.parse(ImageFile(self.path), self.backend)
            if _identity(index) != self._identity:
                raise SquashFSError(
                    f"{self.path} is another image than the one that was opened",
                    expected="the same file in all processes",
                    next_step="Open it again, and do not replace it while it is used",
                )
            self._index = index
        return index

    def _reader(self) -> FileReader:
        """The reader of this process and thread."""
        local = self._local
        if getattr(local, "pid", 0) != os.getpid():
            local.reader = self._new_reader()
            local.pid = os.getpid()
        found: FileReader = local.reader
        return found

    def _new_reader(self) -> FileReader:
        return backends.reader(self.path, self.index, self.backend)

    def _threads(self, count: int) -> ThreadPoolExecutor:
        """Threads of this process; they are kept, since each has a reader."""
        pool = self._pool
        if pool is None or pool[:2] != (os.getpid(), count):
            pool = os.getpid(), count, ThreadPoolExecutor(count, thread_name_prefix="squashfs")
            self._pool = pool
        return pool[2]

    def close(self) -> None:
        """Release the image. Bytes that were read stay valid; later reads are refused."""
        self._closed = True
        if self._pool is not None and self._pool[0] == os.getpid():
            self._pool[2].shutdown()
        self._forget()
        self._index = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        left_behind = {"_local", "_pool", "_index"}
        return {name: value for name, value in self.__dict__.items() if name not in left_behind}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()
        self._index = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"


def _identity(index: Index) -> tuple[bytes, int, int]:
    return index.superblock.raw, index.image_bytes, index.mtime_ns
