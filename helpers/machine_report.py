"""The figure of notebook 00: how many more files this machine takes, by its bytes and by its inodes.

Two bars for each file system, and two more for a quota, where a tool reports one. The traps: a disk with
plenty of free bytes may not take one more file, so both limits are drawn in one unit, photos of 100 kB; and
`df` shows the file system, of which a quota grants only a part.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from helpers import figures
from helpers.show import Drawing
from smallfiles import machine
from smallfiles.errors import SmallfilesError
from smallfiles.machine import FileSystem, Quota
from smallfiles.progress import bytes_text

SHARED_MEMORY = Path("/dev/shm")
_PHOTO_BYTES = 100_000


@dataclass(frozen=True)
class StoragePlace:
    """A file system, what it is used for ("data, home"), and the tightest quota on it."""

    role: str
    filesystem: FileSystem
    quota: Quota | None = None

    @property
    def in_memory(self) -> bool:
        """Whether its bytes count against the limit of memory."""
        return self.filesystem.kind == "tmpfs"

    @property
    def limits(self) -> Iterator[Limit]:
        """What is free: of the file system, then of the quota."""
        found = self.filesystem
        name = f"{self.role} ({'memory' if self.in_memory else found.kind})"
        yield Limit("The data's file system has room", name, found.free_bytes, found.inodes_free)
        if self.quota is not None:
            quota = self.quota
            free_bytes = None if quota.limit_bytes is None else max(0, quota.limit_bytes - quota.used_bytes)
            files = None if quota.limit_files is None else max(0, quota.limit_files - quota.used_files)
            name = f"{self.role}, {quota.holder} quota"
            yield Limit(f"Your {quota.holder} quota has room", name, free_bytes, files)


@dataclass(frozen=True)
class Limit:
    """Free bytes and free inodes of a file system or of a quota; None where it sets no limit.

    Args:
        finding: The beginning of a sentence that goes on with "for so many photos".
        name: For a label.
        free_bytes: Bytes that may still be written.
        free_inodes: Files and folders that may still be made.
    """

    finding: str
    name: str
    free_bytes: int | None
    free_inodes: int | None

    @property
    def photos(self) -> dict[str, int]:
        """How many photos of 100 kB each of the two has room for."""
        found: dict[str, int] = {}
        if self.free_bytes is not None:
            found["bytes"] = self.free_bytes // _PHOTO_BYTES
        if self.free_inodes is not None:
            found["inodes"] = self.free_inodes
        return found

    @property
    def labels(self) -> dict[str, str]:
        """What is free, in words."""
        found: dict[str, str] = {}
        if self.free_bytes is not None:
            found["bytes"] = f"bytes: {bytes_text(self.free_bytes)} free"
            found["bytes"] += ", inodes not counted" if self.free_inodes is None else ""
        if self.free_inodes is not None:
            found["inodes"] = f"inodes: {_count_text(self.free_inodes)} free"
        return found


@dataclass(frozen=True)
class MachineReport:
    """What this machine is, as far as a data loader cares.

    Args:
        cpus_usable: CPUs that this process may use.
        cpus_present: CPUs of the node.
        memory_limit_bytes: Memory that this process and its siblings may use.
        memory_present_bytes: Memory of the node.
        places: The file systems at hand, the one of the data first.
    """

    cpus_usable: int
    cpus_present: int
    memory_limit_bytes: int
    memory_present_bytes: int
    places: tuple[StoragePlace, ...]

    def to_cli(self, *folders: str) -> str:
        """The command that looks at the same things in a job."""
        return shlex.join(["smallfiles", "doctor", *folders])

    @property
    def finding(self) -> str:
        """The sentence that the figure supports."""
        found = [
            (count, what, limit) for limit in self.places[0].limits for what, count in limit.photos.items()
        ]
        photos, what, limit = min(found, key=lambda one: one[0])
        about = float(f"{photos:.2g}")  # the bar has the exact number
        return f"{limit.finding} for {about:,.0f} photos, then the {what} run out"

    @property
    def alt_text(self) -> str:
        """The figure in words."""
        free = [f"{limit.name} {_summary(limit)}" for place in self.places for limit in place.limits]
        cpus = f"{self.cpus_usable} of {self.cpus_present} CPUs"
        memory = f"{bytes_text(self.memory_limit_bytes)} of {bytes_text(self.memory_present_bytes)} memory"
        return f"Bar chart. {self.finding}. Free: {'; '.join(free)}. {cpus}, {memory}."


def describe(folder: Path) -> MachineReport:
    """Look at this machine.

    Args:
        folder: Where the data lie.
    """
    return MachineReport(
        cpus_usable=machine.usable_cpus(),
        cpus_present=os.cpu_count() or 1,
        memory_limit_bytes=machine.memory_limit_bytes(),
        memory_present_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        places=_places(
            [
                ("data", folder),
                ("home", Path.home()),
                ("temporary", _temporary()),
                (str(SHARED_MEMORY), SHARED_MEMORY),
            ]
        ),
    )


def _temporary() -> Path:
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError:  # no folder at all may be written to
        return Path("/")


def _places(asked: list[tuple[str, Path]]) -> tuple[StoragePlace, ...]:
    """The file systems of these folders, each once, with all its roles."""
    roles: dict[Path, list[str]] = {}
    found: dict[Path, tuple[Path, FileSystem]] = {}
    for role, folder in asked:
        try:
            place = machine.filesystem(folder)
        except SmallfilesError:  # one that cannot be looked at is left out of a picture
            continue
        roles.setdefault(place.mount, []).append(role)
        found.setdefault(place.mount, (folder, place))
    return tuple(
        StoragePlace(", ".join(roles[mount]), place, None if place.kind == "tmpfs" else machine.quota(folder))
        for mount, (folder, place) in found.items()
    )


def _summary(limit: Limit) -> str:
    inodes = None if limit.free_inodes is None else f"{_count_text(limit.free_inodes)} files"
    room = None if limit.free_bytes is None else bytes_text(limit.free_bytes)
    return " and ".join(filter(None, (room, inodes)))


def _count_text(count: int) -> str:
    if count >= 1_000_000_000:
        return f"{count / 1e9:,.1f} billion"
    return f"{count / 1e6:,.1f} million" if count >= 1_000_000 else f"{count:,}"


def draw(picture: MachineReport, guess: str = "") -> Drawing:
    """How many photos each file system, and each quota, has room for, by bytes and by inodes; memory is grey.

    Args:
        picture: From `describe`.
        guess: What runs out first where the data lie, "bytes" or "inodes"; anything else draws no guess.
    """
    rows: dict[str, float] = {}
    memory: list[str] = []
    guessed: dict[str, str] = {}
    for place in picture.places:
        for limit in place.limits:
            first = min(limit.photos, key=lambda what: limit.photos[what]) if len(limit.photos) > 1 else ""
            names = {
                what: f"{limit.name}\n{limit.labels[what]}{', run out first' * (what == first)}"
                for what in limit.photos
            }
            rows.update({names[what]: photos for what, photos in limit.photos.items()})
            memory += names.values() if place.in_memory else []
            guessed = guessed or names
    drawn = figures.bars(
        rows,
        picture.finding,
        x="photos of 100 kB that there is room for",
        note="grey: files in memory, which count against your memory limit" if memory else "",
        groups=("bytes", "inodes"),
        base=memory,
        guess=guessed.get(guess),
    )
    return Drawing(drawn.figure, picture.alt_text)
