"""The files of a packed output, their expected content, and a key that names exactly this content.

A packed file has sidecars next to it (digest, index, report of faults) and the fields that were added to it;
a folder of shards contains those of its shards. The key is made from the digests, so two paths with equal
content share a copy, and a file that was packed again never matches its old copy. On a parallel file system
each question about a file is a round trip to a server, so few are sent, and those concurrently. The trap:
staging a tree of small files would be as slow as reading it; it is refused. Notebook 07.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from smallfiles import machine
from smallfiles.digests import BLOCK_BYTES, SIDECARS, ContentDigest, added_fields, adds_to, sidecar
from smallfiles.errors import (
    DamagedFileError,
    FormatError,
    SourceError,
    UsageError,
    like,
    refuse_shortage,
)
from smallfiles.storage import ReadingPool, answered, remember

_SMALL_BYTES = 1 << 20
_MANY = 100
_REQUESTS_IN_FLIGHT = 16


@dataclass(frozen=True)
class Member:
    """One file to copy.

    Args:
        name: Relative path of its copy.
        source: Its path.
        bytes: Its size.
        seen: Device, inode, size and mtime (ns) before copying, to detect any change.
        digest: From packing; None if there is none.
        is_data: Whether it has content of its own, which sidecars do not have, but added fields have.
    """

    name: str
    source: Path
    bytes: int
    seen: tuple[int, int, int, int]
    digest: ContentDigest | None
    is_data: bool

    @property
    def block_bytes(self) -> int:
        """Size of the hashed blocks."""
        return self.digest.block_bytes if self.digest is not None else BLOCK_BYTES


@dataclass(frozen=True)
class Output:
    """Everything that is copied together.

    Args:
        source: The packed file or folder.
        members: Its files, each packed file before its sidecars.
        key: Identifies content and names; equal for equal copies.
        shared: Whether it lies on servers, so that each read is a network request.
    """

    source: Path
    members: tuple[Member, ...]
    key: str
    shared: bool

    @property
    def name(self) -> str:
        """Name of the copy."""
        return self.source.name

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(member.bytes for member in self.members)

    @property
    def has_digests(self) -> bool:
        """Whether each packed file has a digest to compare with."""
        return all(member.digest is not None for member in self.members if member.is_data)


def find(src: Path) -> Output:
    """Describe what to copy; opens only the small digest files.

    Args:
        src: A packed file or a folder of shards.

    Raises:
        SourceError: It does not exist, or is neither a regular file nor a folder.
        UsageError: It is a tree of small files.
        DamagedFileError: A file has another size than its digest says.
    """
    src = Path(os.path.normpath(src.absolute()))  # not resolved: a link keeps its own name
    remember(src)
    with ReadingPool(_REQUESTS_IN_FLIGHT, "stage-stat") as pool:
        shared = pool.submit(machine.is_parallel_filesystem, src)
        around = pool.submit(_names_around, src)
        found = _status(src)
        names = around.result()
        if found is not None and stat.S_ISDIR(found.st_mode):
            pending = _shards(pool, src)
        else:
            pending = [pool.submit(_member, src, src.name, names, is_data=True, found=found)]
        pending += _sidecars(pool, src, src.name, names)
        for path in added_fields(src, names):
            pending.append(pool.submit(_member, path, path.name, names, is_data=True))
            pending += _sidecars(pool, path, path.name, names)
        members = [member for one in pending if (member := one.result()) is not None]
        return Output(src, tuple(members), _key(members), shared.result())


def _shards(pool: ThreadPoolExecutor, folder: Path) -> list[Future[Member | None]]:
    """The packed files in a folder, and their sidecars."""
    try:
        names = {name for name in answered(folder, os.listdir, folder) if not name.startswith(".")}
    except OSError as error:
        raise unreadable(folder, error) from error
    data = [folder / name for name in sorted(names) if not _belongs_to_another(name, names)]
    found = dict(zip(data, pool.map(_status, data), strict=True))
    _refuse_tree(folder, list(found.values()))
    pending = []
    for path in data:
        name = f"{folder.name}/{path.name}"
        pending.append(pool.submit(_member, path, name, names, is_data=True, found=found[path]))
        pending += _sidecars(pool, path, name, names)
    return pending


def _sidecars(
    pool: ThreadPoolExecutor, path: Path, name: str, names: set[str] | None
) -> list[Future[Member | None]]:
    """The sidecars of a packed file; `names` are all names in its folder, if known."""
    return [
        pool.submit(_member, path.with_name(path.name + suffix), name + suffix, names)
        for suffix in SIDECARS
        if names is None or path.name + suffix in names
    ]


def _member(
    path: Path,
    name: str,
    names: set[str] | None,
    *,
    is_data: bool = False,
    found: os.stat_result | None = None,
) -> Member | None:
    """The file to copy; None if it is a sidecar that does not exist."""
    found = found or _status(path)
    if found is None or not stat.S_ISREG(found.st_mode):
        if is_data:
            raise _no_file(path, found)
        return None
    digest = _digest(path) if names is None or sidecar(path).name in names else None
    if digest is not None and digest.file_bytes != found.st_size:
        raise DamagedFileError(
            f"{path} has {found.st_size:,} bytes",
            expected=f"the {digest.file_bytes:,} bytes of its digest",
            next_step="Pack it again, or copy it again from where it is whole",
        )
    return Member(name, path, found.st_size, identity(found), digest, is_data)


def _names_around(path: Path) -> set[str] | None:
    """Names in its folder: few requests instead of one per suffix. None if it may not be listed."""
    with contextlib.suppress(OSError):
        return set(answered(path.parent, os.listdir, path.parent))
    return None


def _refuse_tree(folder: Path, found: Sequence[os.stat_result | None]) -> None:
    if not found:
        raise SourceError(
            f"{folder} is an empty folder",
            expected="a packed file or a folder of shards",
            next_step="Check the path, or make it with: smallfiles pack",
        )
    sizes = [one.st_size for one in found if one is not None and stat.S_ISREG(one.st_mode)]
    if len(sizes) < len(found) or (len(sizes) > _MANY and sum(sizes) < len(sizes) * _SMALL_BYTES):
        raise UsageError(
            f"{folder} is a tree of files, {len(found):,} on its first level",
            expected="one packed file, or a folder of large shards",
            next_step="Pack it first, since copying many small files is what takes long: "
            "smallfiles pack DIR OUT.tars",
        )


def _belongs_to_another(name: str, names: set[str]) -> bool:
    ended = (name.removesuffix(suffix) for suffix in SIDECARS if name.endswith(suffix))
    return adds_to(name) is not None or any(other in names for other in ended)


def _status(path: Path) -> os.stat_result | None:
    """The status of a path; None if it does not exist."""
    try:
        return answered(path, path.stat)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise unreadable(path, error) from error


def _digest(path: Path) -> ContentDigest | None:
    """The digest of a file, opened without a check for existence, which would be one more request."""
    try:
        return ContentDigest.load(sidecar(path))
    except FormatError as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            return None
        raise


def _no_file(path: Path, found: os.stat_result | None) -> SourceError:
    if found is None:
        return unreadable(path, FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)))
    return SourceError(
        f"{path} is neither a file nor a folder",
        expected="a packed file or a folder of shards",
        next_step="Give the packed file itself",
    )


def identity(found: os.stat_result) -> tuple[int, int, int, int]:
    """Facts that stay equal until a file is written to or replaced."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def unreadable(path: Path, error: OSError) -> SourceError:
    """The error for a source that cannot be read."""
    refuse_shortage(error, path)
    return SourceError(
        f"{path} cannot be read ({error.strerror or error})",
        expected="a packed file or a folder of shards",
        next_step=f"Check the path{like(path)} and its permissions",
    )


def _key(members: list[Member]) -> str:
    """Sidecars follow from the packed file, so their names and sizes are enough."""
    lines: list[list[object]] = []
    for member in members:
        content: object = None
        if member.digest is not None:
            content = [member.digest.algorithm, member.digest.block_bytes, *member.digest.blocks]
        elif member.is_data:
            content = [os.path.realpath(member.source), member.seen]
        lines.append([member.name, member.bytes, content])
    return hashlib.sha256(json.dumps(lines).encode("utf-8", "surrogateescape")).hexdigest()[:24]
