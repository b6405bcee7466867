"""`SquashFS`: an image as a collection of files, open in any number of processes and threads.

The trap: symlinks. They are listed and never followed, since a link in an image from elsewhere may point
anywhere. Notebook 06 reads images with this class.
"""

from __future__ import annotations

import builtins
import operator
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pysquashfs import layout, text
from pysquashfs.errors import ImageIndexError, NotFoundError
from pysquashfs.index import Entries
from pysquashfs.info import describe
from pysquashfs.names import Names
from pysquashfs.open_image import OpenImage
from pysquashfs.reading import read_many
from pysquashfs.verify import Report, verify


@dataclass(frozen=True)
class Stat:
    """The facts about an entry."""

    path: str
    kind: str  # "file", "directory", "symlink", "block device", "character device", "fifo", "socket"
    size: int  # bytes; of a symlink those of its target
    mode: int  # permissions
    mtime_s: int
    uid: int
    gid: int
    inode: int
    target: str | None = None  # of a symlink, as stored; it is never followed


class SquashFS(OpenImage):
    """Read a squashfs image without a mount or root.

    It takes one open, and one read per file. A mount adds a request to the kernel for each file, and a
    folder adds requests to the metadata server of the parallel file system.

    Args:
        path: The image. One of a million files opens in a few seconds.
        backend: "python"; "libsquashfs", the C library of squashfs-tools-ng; or "auto", which chooses Python
            unless only the library can decompress the image. `info` says which one is used, and why.

    Raises:
        SquashFSError: The image is missing, damaged, hostile, or needs what is not installed.

    Example:
        >>> with SquashFS("train.sqfs") as image:  # doctest: +SKIP
        ...     data = image.read("train/n01440764/n01440764_10026.JPEG")
    """

    @property
    def paths(self) -> Names:
        """The paths of all regular files, in the order of `read_at`: a sequence of str."""
        return self.index.files.names

    def __len__(self) -> int:
        return len(self.index.files)

    def __contains__(self, path: object) -> bool:
        return isinstance(path, str | os.PathLike) and self._find(path) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self.paths)

    def list(self, folder: str | os.PathLike[str] = "") -> builtins.list[str]:
        """All paths below a folder, sorted: files, folders, symlinks and the rest.

        Raises:
            NotFoundError: There is no such folder.
        """
        start, index = _encoded(folder), self.index
        if start and self.stat(folder).kind != "directory":
            raise self._missing(folder, "a folder")
        files, others = index.files.names, index.others.names
        found = [files.raw(row) for row in files.below(start)] + [
            others.raw(row) for row in others.below(start)
        ]
        return [text.decode(path) for path in sorted(found)]

    def stat(self, path: str | os.PathLike[str]) -> Stat:
        """The facts about a file, folder, symlink or device; links are not followed.

        Raises:
            NotFoundError: There is nothing at this path.
        """
        found = self._find(path)
        if found is None:
            raise self._missing(path, "a path in the image")
        entries, row = found
        index, kind, target = self.index, int(entries.kind[row]), None
        size = int(index.files.size[row]) if kind == layout.FILE else 0
        if kind == layout.SYMLINK:
            first, size = int(index.others.target[row]), int(index.others.target_bytes[row])
            target = text.decode(index.others.targets[first : first + size].tobytes())
        return Stat(
            path=entries.names[row],
            kind=layout.INODE_TYPES[kind],
            size=size,
            mode=int(entries.mode[row]),
            mtime_s=int(entries.mtime[row]),
            uid=int(index.ids[entries.uid[row]]),
            gid=int(index.ids[entries.gid[row]]),
            inode=int(entries.number[row]),
            target=target,
        )

    def read(self, path: str | os.PathLike[str]) -> bytes:
        """All bytes of the file at a path.

        Raises:
            NotFoundError: There is no file at this path.
            SquashFSError: Its bytes are damaged.
        """
        return self._reader().read(self.row(path))

    def read_at(self, index: int) -> bytes:
        """All bytes of file number `index` of `paths`; the fastest way to read at random."""
        if not (type(index) is int and 0 <= index < self._count):  # inline: called for each sample
            index = self._checked(index)
        return self._reader().read(index)

    def view_at(self, index: int) -> bytes | memoryview:
        """All bytes of file number `index` of `paths`, without a copy if possible.

        On a local disk a file that is stored raw is returned as a read-only view of the mapped image, any
        other as bytes. A view outlives `close`, and keeps the image open. If the image is truncated while a
        view is read, the process is killed (SIGBUS); removing or replacing the image by a rename is safe.
        """
        if not (type(index) is int and 0 <= index < self._count):
            index = self._checked(index)
        return self._reader().view(index)

    def read_many(
        self, items: Iterable[str | os.PathLike[str] | int], *, threads: int = 1
    ) -> builtins.list[bytes]:
        """Several files, in the requested order.

        All are announced to the kernel before they are read, so that a cold batch waits for its files
        together, not for one after the other.

        Args:
            items: Paths, or numbers as in `read_at`.
            threads: How many read at a time; useful for cold or compressed data.
        """
        rows = [self.row(item) if isinstance(item, _PATH) else self._checked(item) for item in items]
        return read_many(self, rows, threads)

    def chunks(self, path: str | os.PathLike[str]) -> Iterator[bytes]:
        """The bytes of a file, at most a block (1 MiB) at a time: for files larger than memory."""
        return self._new_reader().pieces(self.row(path))

    def row(self, path: str | os.PathLike[str]) -> int:
        """Number of the file at a path, for `read_at`.

        Raises:
            NotFoundError: There is no file at this path.
        """
        row = self.index.files.names.find(_encoded(path))
        if row < 0:
            raise self._missing(path, "a regular file (symlinks are not followed)")
        return row

    def _checked(self, index: int) -> int:
        count, index = len(self), operator.index(index)
        if 0 <= index < count:
            return index
        if not -count <= index < 0:
            raise ImageIndexError(
                f"file {index} was asked of {self.path}, which holds {count}",
                expected=f"an index from 0 to {count - 1}" if count else "no read from an empty image",
                next_step="Check the length with len(image)",
            )
        return index + count

    def _find(self, path: str | os.PathLike[str]) -> tuple[Entries, int] | None:
        wanted = _encoded(path)
        for entries in (self.index.files, self.index.others):
            row = entries.names.find(wanted)
            if row >= 0:
                return entries, row
        return None

    def _missing(self, path: str | os.PathLike[str], expected: str) -> NotFoundError:
        found = self._find(path)
        what = (
            "does not exist" if found is None else f"is a {layout.INODE_TYPES[int(found[0].kind[found[1]])]}"
        )
        return NotFoundError(
            f"{self.path}: {os.fspath(path)!r} {what}",
            expected=expected,
            next_step="See what there is with list()",
        )

    def info(self) -> dict[str, Any]:
        """How the image is made, and why it is slow if it is. See `info.describe`."""
        return {"backend": self.backend, "backend_reason": self._backend_reason, **describe(self.index)}

    def verify(self) -> Report:
        """Decompress everything and follow every pointer. See `verify.verify`."""
        return verify(self.path, self.index, self._new_reader())


_PATH = (str, bytes, os.PathLike)


def _encoded(path: str | bytes | os.PathLike[str]) -> bytes:
    """A path as in the image: bytes, without slashes at its ends."""
    name = os.fspath(path)
    encoded = name if isinstance(name, bytes) else text.encode(name)
    return encoded if encoded[:1] != b"/" and encoded[-1:] != b"/" else encoded.strip(b"/")
