"""A packed file while it grows: written from end to end, its content digest taken on the way.

The trap: `os.write` may write less than it was given (2 GiB at most, or what fits), and a full disk
is noticed only in its return value. Notebook 03 teaches why one long write beats many.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa

from smallfiles import digests
from smallfiles.digests import BlockHasher
from smallfiles.errors import cannot_write, writing
from smallfiles.samples import Buffer, Packed
from smallfiles.storage import answered

_HELD_BYTES = 1 << 20
_WRITTEN_AT_ONCE, _SMALL_BYTES = 4 << 20, 4 << 10
_PIECES_AT_ONCE = 512  # the kernel takes 1,024 (IOV_MAX)


class OutputFile:
    """Append to a file and hash what is appended, in a thread of its own: samples are read meanwhile.

    What is appended must stay as it is, since it may be written later. At most two pieces of work are kept.

    Args:
        path: A name that is free; or a file that is there, if `start` is given.
        digest: Whether to take the content digest.
        start: Where the first byte goes in a file that is there.
    """

    def __init__(self, path: Path, *, digest: bool, start: int | None = None) -> None:
        self.path = path
        self.position = self._handed = start or 0
        self._hasher = BlockHasher(self.position) if digest else None
        self._held: list[Buffer] = []
        self._pool = ThreadPoolExecutor(1, "pack-write")  # starts with the first piece of work
        self._writing: Future[None] | None = None
        self._rewritten = 0
        flags = os.O_WRONLY | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if start is None else 0)
        self._descriptor = -1
        with writing(path):
            self._descriptor = os.open(path, flags, 0o666)

    def append(self, pieces: Sequence[Buffer]) -> None:
        """Write all pieces, in order, with as few calls as possible: at the latest in `finish`."""
        self._held += pieces
        self.position += sum(map(len, pieces))
        if self.position - self._handed >= _WRITTEN_AT_ONCE or len(self._held) >= _PIECES_AT_ONCE:
            self._wait()
            self._writing = self._pool.submit(self._write, *self._take())

    def _take(self) -> tuple[list[Buffer], int]:
        """What is held, and where it goes."""
        taken = self._held, self._handed
        self._held, self._handed = [], self.position
        return taken

    def _wait(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _write(self, pieces: list[Buffer], position: int) -> None:
        if sum(map(len, pieces)) < len(pieces) * _SMALL_BYTES:
            pieces = [b"".join(pieces)]  # quicker than to write and hash each
        for start in range(0, len(pieces), _PIECES_AT_ONCE):
            some = pieces[start : start + _PIECES_AT_ONCE]
            position = write_all(self._descriptor, some, position, self.path)
            if self._hasher is not None:
                for piece in some:
                    self._hasher.update(piece)

    def rewrite(self, data: Buffer) -> None:
        """Write over the first bytes: a header that is known last."""
        self.flush()
        write_all(self._descriptor, [data], 0, self.path)
        self._rewritten = len(data)

    def flush(self) -> None:
        """Have everything written that was appended."""
        self._wait()
        self._write(*self._take())

    def close(self) -> None:
        """Close the file; once is enough. Some network file systems tell only here that a quota is full."""
        self._pool.shutdown()  # closed without `finish`, what is still held is not needed
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with writing(self.path):
                os.close(descriptor)

    def finish(self) -> tuple[Path, ...]:
        """Write what is left, close, write the digest next to it, and name every file that was written."""
        self.flush()
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
    sidecar = digests.sidecar(path)
    with writing(path):
        hasher.finish(path, rewritten).save(sidecar)
    return (path, sidecar)


def add_digest(path: Path) -> tuple[Path, ...]:
    """Read a file that a library wrote, save its digest next to it, and name both files."""
    sidecar = digests.sidecar(path)
    with writing(sidecar):
        digests.digest_file(path).save(sidecar)
    return (path, sidecar)


def packed(out: Path, format: str, samples: int, payload_bytes: int, files: Sequence[Path]) -> Packed:
    """The report of a writer."""
    file_bytes = sum(file.stat().st_size for file in files)
    return Packed(out, format, samples, payload_bytes, file_bytes, tuple(files))


def write_all(descriptor: int, pieces: Sequence[Buffer], position: int, path: Path) -> int:
    """Write all pieces at `position` of `path`, however many calls that takes; where they end.

    What is written by position may be written again, so storage that does not answer is waited for.
    """
    rest = [memoryview(piece).cast("B") for piece in pieces if len(piece)]
    try:
        while rest:
            written = answered(path, os.pwritev, descriptor, rest, position)
            position += written
            while rest and written >= len(rest[0]):
                written -= len(rest.pop(0))
            if written:
                rest[0] = rest[0][written:]
    except OSError as error:
        raise cannot_write(path, error) from error
    return position


class ArrowSink:
    """What pyarrow writes to: small pieces are held back, so that each batch is one call.

    pyarrow hands over the columns as they are, without a copy: what reuses their memory must `flush` before.

    Args:
        append: Takes the pieces, in order.
    """

    closed = False

    def __init__(self, append: Callable[[list[Buffer]], object]) -> None:
        self._append = append
        self._held: list[Buffer] = []
        self._held_bytes = self._bytes = 0
        self._stand_ins: dict[int, list[Buffer]] = {}
        self.starts: dict[int, int] = {}
        """Where each column begins that was written in place of a stand-in, by the address of this."""

    def redirect(self, append: Callable[[list[Buffer]], object]) -> None:
        """Hand over to `append` what is written from now on."""
        self.flush()
        self._append = append

    def instead(self, stand_in: pa.Buffer, pieces: list[Buffer]) -> None:
        """Write `pieces` where pyarrow hands over `stand_in`, a buffer of as many bytes that stays unfilled.

        So samples that lie in many places become one column and are never copied to one place.
        """
        if stand_in.size:  # an empty one is not handed over
            self._stand_ins[stand_in.address] = pieces

    def write(self, data: Any) -> int:
        size = len(data)
        if size and isinstance(data, pa.Buffer) and data.address in self._stand_ins:
            self._held += self._stand_ins.pop(data.address)
            self.starts[data.address] = self._bytes
        else:
            self._held.append(memoryview(data).cast("B"))
        self._held_bytes += size
        self._bytes += size
        if self._held_bytes > _HELD_BYTES:
            self.flush()
        return size

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
