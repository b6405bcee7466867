"""Which files belong to a packed output, what they must be, and the name of exactly this content.

A packed file has small ones beside it (digest, index, report of faults) and a folder of shards has
them inside. The key names the content by its digests, so that two paths of one content share a copy
and a file that was packed again never meets its old copy. The trap: a tree of small files copied
shard by shard would be the problem, not the cure; it is refused. Notebook 07.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from helpers.digests import BESIDE, BLOCK_BYTES, ContentDigest, sidecar
from helpers.errors import DamagedFileError, SourceError, UsageError
from helpers.machine.ranks import ranks
from helpers.staging.config import StageConfig

_SMALL_BYTES = 1 << 20
_MANY = 100


@dataclass(frozen=True)
class Member:
    """One file to copy.

    Args:
        name: Relative path of its copy.
        source: Where it is.
        bytes: Its size.
        seen: Device, inode, size and mtime (ns) when it was looked at: any change is noticed.
        digest: Taken while packing; None if there is none.
        is_data: Whether it is a packed file rather than a small one beside it.
    """

    name: str
    source: Path
    bytes: int
    seen: tuple[int, int, int, int]
    digest: ContentDigest | None
    is_data: bool

    @property
    def block_bytes(self) -> int:
        """Size of the blocks that are hashed."""
        return self.digest.block_bytes if self.digest is not None else BLOCK_BYTES


@dataclass(frozen=True)
class Output:
    """Everything that is copied together.

    Args:
        source: What was asked for.
        members: Its files, data first of each group.
        key: Names the content and the names; equal for equal copies.
    """

    source: Path
    members: tuple[Member, ...]
    key: str

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


def find(src: Path, config: StageConfig) -> Output:
    """Look at what shall be copied; opens nothing but the small digest files.

    Args:
        src: A packed file or a folder of shards.
        config: Whose shards.

    Raises:
        SourceError: It is not there, or is no plain file or folder.
        UsageError: It is a tree of small files, or this rank has no shard.
        DamagedFileError: A file has another size than its digest says.
    """
    src = Path(os.path.normpath(src.absolute()))  # a link keeps the name by which it was asked for
    if src.is_dir():
        chosen = _of_rank(src, _inside(src), config)
        members = [member for path in chosen for member in _group(path, f"{src.name}/{path.name}")]
        members += [_member(path, path.name) for path in _beside(src)]
    else:
        members = _group(src, src.name)
    return Output(src, tuple(members), _key(members))


def _inside(folder: Path) -> list[Path]:
    """The packed files of a folder, without the small ones beside them."""
    entries = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    names = {path.name for path in entries}
    data = [path for path in entries if not _is_beside(path.name, names)]
    if not data:
        raise SourceError(
            f"{folder} is an empty folder",
            expected="a packed file or a folder of shards",
            next_step="Check the path, or make it with: python -m helpers pack",
        )
    sizes = [_stat(path).st_size for path in data if path.is_file()]
    if len(sizes) < len(data) or (len(sizes) > _MANY and sum(sizes) < len(sizes) * _SMALL_BYTES):
        raise UsageError(
            f"{folder} is a tree of files, {len(data):,} on its first level",
            expected="one packed file, or a folder of large shards",
            next_step="Pack it first, since copying many small files is what takes long: "
            "python -m helpers pack DIR OUT.tars",
        )
    return data


def _is_beside(name: str, names: set[str]) -> bool:
    return any(name.endswith(suffix) and name.removesuffix(suffix) in names for suffix in BESIDE)


def _of_rank(folder: Path, data: list[Path], config: StageConfig) -> list[Path]:
    if config.shards == "all":
        return data
    if config.rank is None or config.world_size is None:
        here = ranks()
        rank, world_size = here.rank, here.world_size
    else:
        rank, world_size = config.rank, config.world_size
    if not 0 <= rank < world_size <= len(data):
        raise UsageError(
            f"{folder} has {len(data):,} shards for rank {rank} of {world_size}",
            expected="a shard for each rank",
            next_step="Stage all shards (--shards all), or pack smaller shards (-O max_bytes=…)",
        )
    return data[rank::world_size]


def _group(path: Path, name: str) -> list[Member]:
    first = _member(path, name, is_data=True)
    return [first, *(_member(beside, f"{name}{beside.name[len(path.name) :]}") for beside in _beside(path))]


def _beside(path: Path) -> list[Path]:
    names = (path.with_name(path.name + suffix) for suffix in BESIDE)
    return [beside for beside in names if beside.is_file()]


def _member(path: Path, name: str, *, is_data: bool = False) -> Member:
    found = _stat(path)
    beside = sidecar(path)
    digest = ContentDigest.load(beside) if beside.is_file() else None
    if digest is not None and digest.file_bytes != found.st_size:
        raise DamagedFileError(
            f"{path} has {found.st_size:,} bytes",
            expected=f"the {digest.file_bytes:,} bytes of its digest",
            next_step="Pack it again, or copy it again from where it is whole",
        )
    return Member(name, path, found.st_size, identity(found), digest, is_data)


def _stat(path: Path) -> os.stat_result:
    try:
        found = path.stat()
    except OSError as error:
        raise unreadable(path, error) from error
    if not stat.S_ISREG(found.st_mode):
        raise SourceError(
            f"{path} is neither a file nor a folder",
            expected="a packed file or a folder of shards",
            next_step="Give the packed file itself",
        )
    return found


def identity(found: os.stat_result) -> tuple[int, int, int, int]:
    """What stays equal as long as nobody writes to a file or puts another in its place."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def unreadable(path: Path, error: OSError) -> SourceError:
    """The sentence for a source that cannot be read."""
    return SourceError(
        f"{path} cannot be read ({error.strerror or error})",
        expected="a packed file or a folder of shards",
        next_step="Check the path and its permissions",
    )


def _key(members: list[Member]) -> str:
    """Small files beside follow from the packed one, so their names and sizes are enough."""
    lines: list[list[object]] = []
    for member in members:
        content: object = None
        if member.digest is not None:
            content = [member.digest.algorithm, member.digest.block_bytes, *member.digest.blocks]
        elif member.is_data:
            content = [os.path.realpath(member.source), member.seen]
        lines.append([member.name, member.bytes, content])
    return hashlib.sha256(json.dumps(lines).encode("utf-8", "surrogateescape")).hexdigest()[:24]
