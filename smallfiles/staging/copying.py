"""Copy large files block by block: several readers at offsets, each block hashed on its way.

Each thread reads, hashes and writes one small buffer at a time, which stays in the processor's cache:
on two idle cores this is faster than `dd`, which hashes nothing. (Writing through a memory map was
slower: its page faults cost half as much again.) The trap: a source may be replaced while it is read,
so its identity is compared before and after, through the open file and through the name. Notebook 07
measures it.
"""

from __future__ import annotations

import os
import stat
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import xxhash

from smallfiles import digests, machine
from smallfiles.digests import ContentDigest
from smallfiles.errors import DamagedFileError, SourceError, cannot_write, writing
from smallfiles.formats.output import write_all
from smallfiles.progress import Progress, progress
from smallfiles.staging.outputs import Member, Output, identity, unreadable
from smallfiles.storage import ReadingPool, answered

PIECE_BYTES = 256 << 10
"""Bytes per read, hash and write; they fit into a core's own cache."""

_SERVER_PIECE_BYTES = 4 << 20  # each read is a request over the network
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


@dataclass(frozen=True)
class Copied:
    """What `copy_files` left in the folder.

    Args:
        names: Relative names of all files, computed digests included.
        kept_bytes: Bytes that an earlier run had copied.
    """

    names: tuple[str, ...]
    kept_bytes: int


def copy_files(output: Output, folder: Path, *, resume: bool = False) -> Copied:
    """Copy the files of an output, and write the digest of each packed file that has none.

    Args:
        output: What to copy.
        folder: Where to copy it; must exist.
        resume: Whether blocks from an earlier run are read back and kept if their digest matches.

    Raises:
        SourceError: A source cannot be read, or changed while it was copied.
        DamagedFileError: A block does not match its digest.
        ResourceError: The target cannot be written.
    """
    with progress(len(blocks_of(output.members)), f"stage {output.name}", unit="blocks") as bar:
        copier = _Copier(output, folder, bar, resume)
        copier.run()
    names = [member.name for member in output.members]
    for member, hashes in zip(output.members, copier.hashes, strict=True):
        if member.is_data and member.digest is None:
            computed = ContentDigest(member.bytes, tuple(hashes[n] for n in range(len(hashes))))
            sidecar = digests.sidecar(folder / member.name)
            with writing(sidecar):
                computed.save(sidecar)
            names.append(str(sidecar.relative_to(folder)))
    return Copied(tuple(names), copier.kept_bytes)


class _Copier:
    """The threads of one call of `copy_files`, and what they share; arguments as there."""

    def __init__(self, output: Output, folder: Path, bar: Progress, resume: bool) -> None:
        self._members, self._folder, self._bar, self._resume = output.members, folder, bar, resume
        self._readers = readers_for(output)
        self._piece_bytes = _SERVER_PIECE_BYTES if output.shared else PIECE_BYTES
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._waiting = deque(blocks_of(output.members))
        self._left = [-(-member.bytes // member.block_bytes) for member in output.members]
        self._opening = [threading.Lock() for _ in output.members]
        self._open: dict[int, tuple[int, int]] = {}
        self.hashes: list[dict[int, str]] = [{} for _ in output.members]
        self.kept_bytes = 0

    def _target(self, member: Member) -> Path:
        return self._folder / member.name

    def run(self) -> None:
        """Copy everything; the first failure stops all threads."""
        for member in self._members:
            create(self._target(member), member.bytes)
        try:
            with ReadingPool(self._readers, "stage") as pool:
                try:
                    for done in [pool.submit(self._work) for _ in range(self._readers)]:
                        done.result()
                    for done in [pool.submit(_check_unchanged, member, None) for member in self._members]:
                        done.result()
                finally:
                    self._stop.set()
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
            self._stop.set()
            raise

    def _copy(self, block: Block, buffer: memoryview) -> None:
        member = self._members[block.member]
        source, target = self._handles(block.member)
        if self._resume and _is_copied(member, block, target):
            with self._lock:
                self.kept_bytes += block.stop - block.start
        else:
            found = self._move(block, source, target, buffer)
            if found is None:
                return  # another thread failed
            if member.digest is not None and found != member.digest.blocks[block.number]:
                _check_unchanged(member, source)
                raise _damaged(member, block)
            self.hashes[block.member][block.number] = found
        self._bar.advance(1, block.stop - block.start)
        self._finished(block.member)

    def _move(self, block: Block, source: int, target: int, buffer: memoryview) -> str | None:
        """Copy a block and return its hash; None if another thread failed."""
        digest, position = xxhash.xxh3_128(), block.start
        member = self._members[block.member]
        if hasattr(os, "posix_fadvise"):  # request the whole block before its first piece
            os.posix_fadvise(source, block.start, block.stop - block.start, os.POSIX_FADV_WILLNEED)
        while position < block.stop:
            if self._stop.is_set():
                return None
            piece = buffer[: block.stop - position]
            count = _read(member, source, piece, position)
            digest.update(piece[:count])
            write_all(target, [piece[:count]], position, self._target(member))
            position += count
        found: str = digest.hexdigest()
        return found

    def _handles(self, index: int) -> tuple[int, int]:
        with self._opening[index]:  # each open waits for a server: one file's must not hold up another's
            if index not in self._open:
                member = self._members[index]
                source = _open_source(member)
                try:
                    target = os.open(self._target(member), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
                except OSError as error:
                    os.close(source)
                    raise cannot_write(self._target(member), error) from error
                self._open[index] = (source, target)
            return self._open[index]

    def _finished(self, index: int) -> None:
        with self._lock:
            self._left[index] -= 1
            pair = None if self._left[index] else self._open.pop(index)
        if pair is not None:
            try:
                _check_unchanged(self._members[index], pair[0])
            finally:
                self._close(index, pair)

    def _close(self, index: int, pair: tuple[int, int]) -> None:
        os.close(pair[0])
        with writing(self._target(self._members[index])):  # where some servers report a full quota
            os.close(pair[1])


def create(path: Path, size: int) -> None:
    """Create a sparse file of the final size; the file of an earlier run is kept."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, flags, 0o666)
        try:
            os.ftruncate(descriptor, size)
        finally:
            os.close(descriptor)


def _is_copied(member: Member, block: Block, target: int) -> bool:
    """Whether an earlier run wrote this block, and its bytes still match the digest."""
    known = member.digest
    return known is not None and known.block_is_intact(
        block.number, digests.read_block(target, block.number, known.block_bytes)
    )


def _open_source(member: Member) -> int:
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        descriptor = answered(member.source, os.open, member.source, flags)
    except OSError as error:
        raise unreadable(member.source, error) from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _changed(member)
        _check_unchanged(member, descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _read(member: Member, source: int, piece: memoryview, position: int) -> int:
    try:
        count = answered(member.source, os.preadv, source, [piece], position)
    except OSError as error:
        raise unreadable(member.source, error) from error
    if not count:
        raise _changed(member)
    return count


def _check_unchanged(member: Member, descriptor: int | None) -> None:
    """Raise SourceError unless the open file (or the file of that name) is the one seen first."""
    try:
        found = answered(member.source, os.stat, member.source if descriptor is None else descriptor)
    except OSError as error:
        raise _changed(member) from error
    if identity(found) != member.seen:
        raise _changed(member)


def _changed(member: Member) -> SourceError:
    return SourceError(
        f"{member.source} changed while it was copied",
        expected="a file that no program writes to",
        next_step="Wait until it is finished, then stage it again",
    )


def _damaged(member: Member, block: Block) -> DamagedFileError:
    return DamagedFileError(
        f"{member.source} is not what was packed: block {block.number} (bytes {block.start:,} to "
        f"{block.stop - 1:,}) differs from its digest",
        expected="the bytes that were hashed while packing",
        next_step="See what is damaged with: smallfiles verify OUT; then copy or pack it again",
    )
