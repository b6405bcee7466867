"""A packed file while it grows: written from end to end, its content digest taken on the way.

The trap: `os.write` may write less than it was given (2 GiB at most, or what fits), and a full disk
is noticed only by who looks at its answer. Notebook 03 teaches why one long write beats many.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from smallfiles import digests
from smallfiles.digests import BlockHasher
from smallfiles.errors import cannot_write as cannot_write
from smallfiles.errors import writing as writing
from smallfiles.samples import Buffer, Packed

_HELD_BYTES = 1 << 20
_PIECES_AT_ONCE = 512  # the kernel takes 1,024 (IOV_MAX)


class OutputFile:
    """Append to a new file and hash what is appended.

    Args:
        path: A name that is free.
        digest: Whether to take the content digest.
    """

    def __init__(self, path: Path, *, digest: bool) -> None:
        self.path = path
        self._hasher = BlockHasher() if digest else None
        self._descriptor = -1
        with writing(path):
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self.position = 0
        self._rewritten = 0

    def append(self, pieces: Sequence[Buffer]) -> None:
        """Write all pieces, in order, with as few calls as possible."""
        for start in range(0, len(pieces), _PIECES_AT_ONCE):
            some = pieces[start : start + _PIECES_AT_ONCE]
            write_all(self._descriptor, some, self.position, self.path)
            for piece in some:
                self.position += len(piece)
                if self._hasher is not None:
                    self._hasher.update(piece)

    def rewrite(self, data: Buffer) -> None:
        """Write over the first bytes: a header that is known last."""
        write_all(self._descriptor, [data], 0, self.path)
        self._rewritten = len(data)

    def close(self) -> None:
        """Close the file; once is enough. Some network file systems tell only here that a quota is full."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with writing(self.path):
                os.close(descriptor)

    def finish(self) -> tuple[Path, ...]:
        """Close, write the digest beside it, and name every file that was written."""
        self.close()
        return save_digest(self.path, self._hasher, self._rewritten)

    def __enter__(self) -> OutputFile:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def save_digest(path: Path, hasher: BlockHasher | None, rewritten: int = 0) -> tuple[Path, ...]:
    """Complete and save the digest of a finished file; name the files there are now."""
    if hasher is None:
        return (path,)
    beside = digests.sidecar(path)
    with writing(path):
        hasher.finish(path, rewritten).save(beside)
    return (path, beside)


def packed(out: Path, format: str, samples: int, payload_bytes: int, files: Sequence[Path]) -> Packed:
    """The report of a writer."""
    file_bytes = sum(file.stat().st_size for file in files)
    return Packed(out, format, samples, payload_bytes, file_bytes, tuple(files))


def write_all(descriptor: int, pieces: Sequence[Buffer], position: int, path: Path) -> None:
    """Write all pieces at `position` of `path`, however many calls that takes."""
    rest = [memoryview(piece).cast("B") for piece in pieces if len(piece)]
    try:
        while rest:
            written = os.pwritev(descriptor, rest, position)
            position += written
            while rest and written >= len(rest[0]):
                written -= len(rest.pop(0))
            if written:
                rest[0] = rest[0][written:]
    except OSError as error:
        raise cannot_write(path, error) from error


class ArrowSink:
    """What pyarrow writes to: small pieces are held back, so that each batch is one call.

    pyarrow hands over the columns as they are, without a copy: what reuses their memory must `flush` before.

    Args:
        append: Takes the pieces, in order.
    """

    closed = False

    def __init__(self, append: Callable[[list[memoryview]], object]) -> None:
        self._append = append
        self._held: list[memoryview] = []
        self._held_bytes = self._bytes = 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._held.append(view)
        self._held_bytes += len(view)
        self._bytes += len(view)
        if self._held_bytes > _HELD_BYTES:
            self.flush()
        return len(view)

    def tell(self) -> int:
        return self._bytes

    def flush(self) -> None:
        held, self._held, self._held_bytes = self._held, [], 0
        self._append(held)

    def close(self) -> None:
        self.closed = True

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False
