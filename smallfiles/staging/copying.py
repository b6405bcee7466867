"""Move files block by block: the one engine behind stage, broadcast, push, pull, and what a node keeps.

    source, target = LocalFiles(files, shared=True), NewFiles(files, paths, resume=True)
    kept_bytes = move(parts_of(files), source, target, what="stage x", threads=8)

A *source* gives the bytes of a part in pieces, in order; a *target* takes them. Each block is hashed on its
way and compared with the digest from packing. What an earlier run left in the target is read back, and kept
where it matches the digest: so a transfer resumes by block, and needs no journal besides the target itself.

Each thread reads, hashes and writes one small piece at a time, which stays in the processor's cache:
on two idle cores this is faster than `dd`, which hashes nothing. (Writing through a memory map was
slower: its page faults cost half as much again.) The trap: a source may be replaced while it is read,
so its identity is compared before and after, through the open file and through the name. Notebook 07
measures it.
"""

from __future__ import annotations

import os
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import xxhash

from smallfiles import digests, machine
from smallfiles.digests import ContentDigest
from smallfiles.errors import DamagedFileError, SourceError, cannot_write, writing
from smallfiles.formats.output import write_all
from smallfiles.progress import progress
from smallfiles.samples import Buffer
from smallfiles.staging.placement import Member, PackedOutput, identity, unreadable
from smallfiles.storage import READ_FLAGS, ReadingPool, answered, reopening

PIECE_BYTES = 256 << 10
"""Bytes per read, hash and write; they fit into a core's own cache."""

_SERVER_PIECE_BYTES = 4 << 20  # each read is a request over the network
_READERS_OF_SERVERS, _READERS_OF_DISKS = 8, 4
_MOST_PARTS = 9_999
_SLICE = 4096  # parts at a time; a million futures would cost a gigabyte


class Movable(Protocol):
    """A file that is moved: a `Member` of a packed output, or an `Item` of a store."""

    @property
    def bytes(self) -> int:
        """Its size."""

    @property
    def digest(self) -> ContentDigest | None:
        """From packing; None if there is none."""


@dataclass(frozen=True)
class Part:
    """Some adjacent blocks of one file, which are moved at once.

    Args:
        file: Number of the file.
        number: Number of the part in its file, counted from 1.
        blocks: Numbers of the blocks; none for an empty file.
        start: First byte.
        stop: End (exclusive).
    """

    file: int
    number: int
    blocks: range
    start: int
    stop: int


class Source(Protocol):
    """Where files come from; used by several threads."""

    def pieces(self, part: Part) -> Iterator[Buffer]:
        """Yield the bytes of a part in order. After the last piece, the part was compared with its digest."""

    def finish(self, file: int) -> None:
        """Note that no more of a file is needed."""

    def close(self) -> None:
        """Let go of everything, also after a failure."""


class Target(Protocol):
    """Where files go; used by several threads."""

    def holds(self, part: Part) -> bool:
        """Check whether an earlier run moved a part."""

    def write(self, part: Part, pieces: Iterable[Buffer]) -> None:
        """Take the bytes of a part."""

    def finish(self, file: int) -> None:
        """Complete a file that has all of its parts."""

    def close(self) -> None:
        """Let go of everything, also after a failure."""


class _OpenFiles:
    """Descriptors of files by number, each opened when it is first needed."""

    def __init__(self, count: int, open: Callable[[int], int]) -> None:
        self._open = open
        self._opening = [threading.Lock() for _ in range(count)]
        self._descriptors: dict[int, int] = {}

    def __getitem__(self, number: int) -> int:
        with self._opening[number]:  # each open waits for a server: one file must not hold up another
            if number not in self._descriptors:
                self._descriptors[number] = self._open(number)
            return self._descriptors[number]

    def close(self, number: int) -> None:
        """Close a file, if it is open."""
        if (descriptor := self._descriptors.pop(number, None)) is not None:
            os.close(descriptor)

    def close_all(self) -> None:
        """Close what is still open."""
        for number in list(self._descriptors):
            self.close(number)


class LocalFiles:
    """Files of a file system, which must stay as they are meanwhile.

    Args:
        members: The files.
        shared: Whether they lie on servers, so that each read is a network request.

    Attributes:
        hashes: The hash of each block that was read so far, by its number, for each file.
    """

    def __init__(self, members: Sequence[Member], *, shared: bool) -> None:
        self._members = members
        self.hashes: list[dict[int, str]] = [{} for _ in members]
        self._piece_bytes = _SERVER_PIECE_BYTES if shared else PIECE_BYTES
        self._of_thread = threading.local()
        self._files = _OpenFiles(len(members), self._open)

    def _open(self, number: int) -> int:
        member = self._members[number]
        source = member.source
        try:
            descriptor = answered(source, os.open, source, READ_FLAGS)
        except OSError as error:
            raise unreadable(source, error) from error
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise _changed(member)
            self.check(member, descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def pieces(self, part: Part) -> Iterator[Buffer]:
        """Yield the bytes of a part in order; each piece is overwritten by the next one of this thread."""
        descriptor = self._files[part.file]
        if hasattr(os, "posix_fadvise"):  # request the whole part before its first piece
            os.posix_fadvise(descriptor, part.start, part.stop - part.start, os.POSIX_FADV_WILLNEED)
        for block in part.blocks:
            yield from self._block(part.file, descriptor, block)

    def _block(self, number: int, descriptor: int, block: int) -> Iterator[Buffer]:
        member = self._members[number]
        (position, stop), hashed = span(member, block), xxhash.xxh3_128()
        if not hasattr(self._of_thread, "buffer"):
            self._of_thread.buffer = memoryview(bytearray(self._piece_bytes))
        while position < stop:
            piece = self._of_thread.buffer[: stop - position]
            try:
                read, path = partial(os.preadv, descriptor, [piece], position), member.source
                count = answered(path, reopening, path, descriptor, member.seen[2:], read)
            except OSError as error:
                raise unreadable(member.source, error) from error
            if not count:
                raise _changed(member)
            hashed.update(piece[:count])
            yield piece[:count]
            position += count
        self.hashes[number][block] = hashed.hexdigest()
        if member.digest is not None and hashed.hexdigest() != member.digest.blocks[block]:
            self.check(member, descriptor)
            raise _damaged(member, block)

    def finish(self, file: int) -> None:
        """Raise SourceError if the open file is not the one seen first."""
        self.check(self._members[file], self._files[file])
        self._files.close(file)

    def close(self) -> None:
        """Let go of everything, also after a failure."""
        self._files.close_all()

    @staticmethod
    def check(member: Member, descriptor: int | None = None) -> None:
        """Raise SourceError unless the open file (or the file of that name) is the one seen first."""
        try:
            found = answered(member.source, os.stat, member.source if descriptor is None else descriptor)
        except OSError as error:
            raise _changed(member) from error
        if identity(found) != member.seen:
            raise _changed(member)


class NewFiles:
    """Files that a move creates on a file system, the counterpart of `LocalFiles`.

    Args:
        files: The files.
        paths: Where they go; those of an earlier run are kept.
        resume: Whether blocks of an earlier run that match their digest are kept.
    """

    def __init__(self, files: Sequence[Movable], paths: Sequence[Path], *, resume: bool) -> None:
        self._digests, self._paths = [file.digest for file in files], paths
        self._may_hold = [resume and path.exists() for path in paths]
        for file, path in zip(files, paths, strict=True):
            create(path, file.bytes)
        self._files = _OpenFiles(len(files), self._open)

    def _open(self, number: int) -> int:
        path = self._paths[number]
        try:
            return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise cannot_write(path, error) from error

    def holds(self, part: Part) -> bool:
        """Check whether an earlier run wrote a part whose bytes still match the digest."""
        digest = self._digests[part.file]
        if digest is None or not self._may_hold[part.file]:
            return False
        file, size = self._files[part.file], digest.block_bytes
        return all(
            digest.block_is_intact(block, digests.read_block(file, block, size)) for block in part.blocks
        )

    def write(self, part: Part, pieces: Iterable[Buffer]) -> None:
        """Write a part in its place."""
        position = part.start
        for piece in pieces:
            position = write_all(self._files[part.file], [piece], position, self._paths[part.file])

    def finish(self, file: int) -> None:
        """Close a file, where some servers report a full quota."""
        with writing(self._paths[file]):
            self._files.close(file)

    def close(self) -> None:
        """Let go of everything, also after a failure."""
        self._files.close_all()


def move(parts: Sequence[Part], source: Source, target: Target, *, what: str, threads: int) -> int:
    """Move parts of files, several at once; after the first failure, no other is begun.

    Args:
        parts: What `parts_of` returned.
        source: Where the files are.
        target: Where they go.
        what: The text of the progress bar; without one, nothing is shown.
        threads: How many parts to move at once.

    Returns:
        How many bytes an earlier run had moved.

    Raises:
        SourceError: A source cannot be read, or changed meanwhile.
        DamagedFileError: A block does not match its digest.
        ResourceError: The target cannot be written.
        StorageError: The storage did not answer.
    """
    left, lock = Counter(part.file for part in parts), threading.Lock()

    def move_part(part: Part) -> int:
        part_bytes, holds = part.stop - part.start, target.holds(part)
        if not holds:
            target.write(part, source.pieces(part))
        bar.advance(1, part_bytes)
        with lock:
            left[part.file] -= 1
            is_last = not left[part.file]
        if is_last:
            source.finish(part.file)
            target.finish(part.file)
        return part_bytes if holds else 0

    shown = progress(len(parts), what, unit="blocks", enabled=None if what else False)
    try:
        with shown as bar, ReadingPool(threads, "move") as pool:
            slices = (parts[start : start + _SLICE] for start in range(0, len(parts), _SLICE))
            return sum(sum(pool.map(move_part, some)) for some in slices)
    finally:
        source.close()
        target.close()


def parts_of(
    files: Sequence[Movable], part_bytes: int = 0, numbers: Iterable[int] | None = None
) -> list[Part]:
    """Divide files into parts, in the order in which they are read; an empty file has one, without a block.

    Args:
        files: The files.
        part_bytes: Size of a part, about; by default it is a block.
        numbers: The files to move; by default all.
    """
    parts = []
    for file in range(len(files)) if numbers is None else numbers:
        step = blocks_per_part(files[file], part_bytes)
        count = -(-files[file].bytes // _block_bytes(files[file]))
        for number, first in enumerate(range(0, max(count, 1), step), 1):
            blocks = range(first, min(first + step, count))
            parts.append(Part(file, number, blocks, *span(files[file], first, len(blocks))))
    return parts


def span(file: Movable, block: int, count: int = 1) -> tuple[int, int]:
    """Return the first byte of some blocks, and their end (exclusive)."""
    start, size = block * _block_bytes(file), count * _block_bytes(file)
    return start, min(start + size, file.bytes)


def blocks_per_part(file: Movable, part_bytes: int) -> int:
    """Return how many blocks make a part of about this size. A store accepts 10,000 parts per object."""
    at_least = file.bytes // _MOST_PARTS if part_bytes else 0
    return max(1, -(-max(part_bytes, at_least) // _block_bytes(file)))


def _block_bytes(file: Movable) -> int:
    return digests.BLOCK_BYTES if file.digest is None else file.digest.block_bytes


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


def _changed(member: Member) -> SourceError:
    return SourceError(
        f"{member.source} changed while it was copied",
        expected="a file that no program writes to",
        next_step="Wait until it is finished, then run it again",
    )


def _damaged(member: Member, block: int) -> DamagedFileError:
    start, stop = span(member, block)
    return DamagedFileError(
        f"{member.source} is not what was packed: block {block} (bytes {start:,} to {stop - 1:,}) differs "
        "from its digest",
        expected="the bytes that were hashed while packing",
        next_step="See what is damaged with: smallfiles verify OUT; then copy or pack it again",
    )


def readers_for(output: PackedOutput) -> int:
    """Decide how many blocks to copy at once: more where each read waits for a server."""
    return _READERS_OF_SERVERS if output.shared else min(_READERS_OF_DISKS, max(2, machine.usable_cpus()))


def copy_files(output: PackedOutput, folder: Path, *, resume: bool = False) -> tuple[list[str], int]:
    """Copy the files of an output, and write the digest of each packed file that has none.

    Args:
        output: What to copy.
        folder: Where to copy it; must exist.
        resume: Whether blocks from an earlier run are read back and kept if their digest matches.

    Returns:
        The relative names of all files, computed digests included; and the bytes that an earlier run had
        copied.

    Raises:
        SourceError: A source cannot be read, or changed while it was copied.
        DamagedFileError: A block does not match its digest.
        ResourceError: The target cannot be written.
    """
    members, names = output.members, [member.name for member in output.members]
    source = LocalFiles(members, shared=output.shared)
    target = NewFiles(members, [folder / name for name in names], resume=resume)
    threads = readers_for(output)
    kept_bytes = move(parts_of(members), source, target, what=f"stage {output.name}", threads=threads)
    with ReadingPool(threads) as pool:  # each name must still refer to the file that was opened
        list(pool.map(source.check, members))
    for member, hashes in zip(members, source.hashes, strict=True):
        if member.is_data and member.digest is None:
            computed = ContentDigest(member.bytes, tuple(hashes[n] for n in range(len(hashes))))
            sidecar = digests.sidecar(folder / member.name)
            with writing(sidecar):
                computed.save(sidecar)
            names.append(str(sidecar.relative_to(folder)))
    return names, kept_bytes
