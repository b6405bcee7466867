"""Copy large files block by block: several readers at offsets, each block hashed on its way.

Reading, hashing and writing take turns on a small buffer, which stays in the processor's cache,
while another thread does the same elsewhere: on two idle cores this is quicker than `dd`, which
hashes nothing. (Writing through a memory map was tried: its page faults cost half as much again.)
The trap: a source may be replaced while it is read; so what was seen before is compared with what is
there afterwards, by the open file and by the name. Notebook 07 measures it.
"""

from __future__ import annotations

import os
import stat
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import xxhash

from smallfiles import machine
from smallfiles.errors import DamagedFileError, SourceError
from smallfiles.formats.output import cannot_write, write_all, writing
from smallfiles.progress import Progress
from smallfiles.staging.outputs import Member, Output, identity, unreadable

PIECE_BYTES = 256 << 10
"""What is read, hashed and written at once; it fits into a core's own cache."""

_PIECE_OF_SERVERS = 4 << 20  # each read is a request over the network
_READERS_OF_SERVERS, _READERS_OF_DISKS = 8, 4


@dataclass(frozen=True)
class Block:
    """A piece of one member that is hashed by itself; `stop` is one after its last byte."""

    member: int
    number: int
    start: int
    stop: int


def readers_for(output: Output) -> int:
    """How many blocks to copy at once: more where each read waits for a server."""
    return _READERS_OF_SERVERS if output.shared else min(_READERS_OF_DISKS, max(2, machine.usable_cpus()))


def blocks_of(members: Sequence[Member]) -> list[Block]:
    """All blocks in the order in which they are read."""
    return [
        Block(index, number, start, min(start + member.block_bytes, member.bytes))
        for index, member in enumerate(members)
        for number, start in enumerate(range(0, member.bytes, member.block_bytes))
    ]


class Copier:
    """Copy the files of an output into a folder.

    Args:
        output: What to copy.
        folder: Where their names are relative to; must exist.
        bar: Shown progress, a block at a time.
        mode: Permissions of the copies, before the umask.
        resume: Whether blocks that an earlier run wrote are read back, and kept if their digest fits.
    """

    def __init__(
        self,
        output: Output,
        folder: Path,
        bar: Progress,
        *,
        mode: int = 0o600,
        resume: bool = False,
    ) -> None:
        self._members, self._folder, self._bar = output.members, folder, bar
        self._readers = readers_for(output)
        self._mode, self._resume = mode, resume
        self._piece_bytes = _PIECE_OF_SERVERS if output.shared else PIECE_BYTES
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._waiting = deque(blocks_of(output.members))
        self._left = [-(-member.bytes // member.block_bytes) for member in output.members]
        self._opening = [threading.Lock() for _ in output.members]
        self._open: dict[int, tuple[int, int]] = {}
        self.hashes: list[dict[int, str]] = [{} for _ in output.members]
        self.kept_bytes = 0

    def stop(self) -> None:
        """Have the readers end soon."""
        self._stop.set()

    def target(self, member: Member) -> Path:
        """Where the copy of a member grows."""
        return self._folder / member.name

    def run(self) -> None:
        """Copy everything; the first failure ends it.

        Raises:
            SourceError: A source cannot be read, or changed meanwhile.
            DamagedFileError: A block is not what its digest says.
            ResourceError: The target takes no more.
        """
        for member in self._members:
            create(self.target(member), member.bytes, self._mode)
        try:
            with ThreadPoolExecutor(self._readers, "stage") as pool:
                try:
                    for done in [pool.submit(self._work) for _ in range(self._readers)]:
                        done.result()
                    for done in [pool.submit(_unchanged, member, None) for member in self._members]:
                        done.result()
                finally:
                    self.stop()
        finally:
            for index in list(self._open):
                self._close(index, self._open.pop(index))

    def _work(self) -> None:
        buffer = memoryview(bytearray(self._piece_bytes))
        try:
            while not self._stop.is_set():
                try:
                    block = self._waiting.popleft()
                except IndexError:
                    return
                self._copy(block, buffer)
        except BaseException:
            self.stop()
            raise

    def _copy(self, block: Block, buffer: memoryview) -> None:
        member = self._members[block.member]
        source, target = self._handles(block.member)
        found = self._held(block, target, buffer)
        if found is None:
            found = self._move(block, source, target, buffer)
            if found is None:
                return  # told to stop
            if member.digest is not None and found != member.digest.blocks[block.number]:
                _unchanged(member, source)
                raise _damaged(member, block)
        else:
            with self._lock:
                self.kept_bytes += block.stop - block.start
        self.hashes[block.member][block.number] = found
        self._bar.advance(1, block.stop - block.start)
        self._finished(block.member)

    def _held(self, block: Block, target: int, buffer: memoryview) -> str | None:
        """The hash of a block that an earlier run wrote, if its bytes are still that."""
        known = self._members[block.member].digest
        if known is None or not self._resume:
            return None
        digest, position = xxhash.xxh3_128(), block.start
        while position < block.stop:
            count = os.preadv(target, [buffer[: block.stop - position]], position)
            if not count:
                return None
            digest.update(buffer[:count])
            position += count
        found: str = digest.hexdigest()
        return found if found == known.blocks[block.number] else None

    def _move(self, block: Block, source: int, target: int, buffer: memoryview) -> str | None:
        digest, position = xxhash.xxh3_128(), block.start
        member = self._members[block.member]
        if hasattr(os, "posix_fadvise"):  # have the whole block on its way before its first piece is here
            os.posix_fadvise(source, block.start, block.stop - block.start, os.POSIX_FADV_WILLNEED)
        while position < block.stop:
            if self._stop.is_set():
                return None
            piece = buffer[: block.stop - position]
            count = _read(member, source, piece, position)
            digest.update(piece[:count])
            self._write(member, target, piece[:count], position)
            position += count
        found: str = digest.hexdigest()
        return found

    def _write(self, member: Member, target: int, data: memoryview, position: int) -> None:
        write_all(target, [data], position, self.target(member))

    def _handles(self, index: int) -> tuple[int, int]:
        with self._opening[index]:  # each open waits for a server: one file's must not hold up another's
            if index not in self._open:
                member = self._members[index]
                source = _open_source(member)
                try:
                    target = os.open(self.target(member), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
                except OSError as error:
                    os.close(source)
                    raise cannot_write(self.target(member), error) from error
                self._open[index] = (source, target)
            return self._open[index]

    def _finished(self, index: int) -> None:
        with self._lock:
            self._left[index] -= 1
            pair = None if self._left[index] else self._open.pop(index)
        if pair is not None:
            try:
                _unchanged(self._members[index], pair[0])
            finally:
                self._close(index, pair)

    def _close(self, index: int, pair: tuple[int, int]) -> None:
        os.close(pair[0])
        try:
            os.close(pair[1])
        except OSError as error:  # some network file systems tell only here that a quota is full
            raise cannot_write(self.target(self._members[index]), error) from error


def create(path: Path, size: int, mode: int) -> None:
    """A file of the final size without blocks; one of an earlier run is kept."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, flags, mode)
        try:
            os.ftruncate(descriptor, size)
        finally:
            os.close(descriptor)


def _open_source(member: Member) -> int:
    try:
        descriptor = os.open(member.source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise unreadable(member.source, error) from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _changed(member)
        _unchanged(member, descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _read(member: Member, source: int, piece: memoryview, position: int) -> int:
    try:
        count = os.preadv(source, [piece], position)
    except OSError as error:
        raise unreadable(member.source, error) from error
    if not count:
        raise _changed(member)
    return count


def _unchanged(member: Member, descriptor: int | None) -> None:
    """Raise SourceError unless the open file (or the one of that name) is what was seen at first."""
    try:
        found = member.source.stat() if descriptor is None else os.fstat(descriptor)
    except OSError as error:
        raise _changed(member) from error
    if identity(found) != member.seen:
        raise _changed(member)


def _changed(member: Member) -> SourceError:
    return SourceError(
        f"{member.source} changed while it was copied",
        expected="a file that nobody writes to",
        next_step="Wait until it is finished, then stage it again",
    )


def _damaged(member: Member, block: Block) -> DamagedFileError:
    return DamagedFileError(
        f"{member.source} is not what was packed: block {block.number} (bytes {block.start:,} to "
        f"{block.stop - 1:,}) differs from its digest",
        expected="the bytes that were hashed while packing",
        next_step="See what is damaged with: smallfiles verify OUT; then copy or pack it again",
    )
