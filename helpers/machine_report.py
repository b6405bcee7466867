"""The figure of notebook 00: this machine, and how much of it may be used.

CPUs and memory as a share of those of the node; for each file system the free share of bytes and of inodes.
The trap: a disk with plenty of free bytes may not take one more file, so both are drawn side by side.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from dataclasses import dataclass
from pathlib import Path

from helpers import figures
from helpers.show import Drawing
from smallfiles import machine
from smallfiles.errors import SmallfilesError
from smallfiles.machine import FileSystem
from smallfiles.progress import bytes_text

SHARED_MEMORY = Path("/dev/shm")
_PHOTO_BYTES = 100_000


@dataclass(frozen=True)
class StoragePlace:
    """A file system and what it is used for ("your data, home")."""

    role: str
    filesystem: FileSystem


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
        share = f"We may use {self.cpus_usable} of {self.cpus_present} CPUs"
        place = self.places[0].filesystem
        photos, inodes = place.free_bytes // _PHOTO_BYTES, place.inodes_free
        if inodes is None or photos <= inodes:
            return f"{share}; with photos of 100 kB the bytes run out first, after {photos:,}"
        return f"{share}; with photos of 100 kB the inodes run out first, after {inodes:,}"

    @property
    def alt_text(self) -> str:
        """The figure in words."""
        free = [_summary(place) for place in self.places]
        memory = f"{bytes_text(self.memory_limit_bytes)} of {bytes_text(self.memory_present_bytes)} memory"
        return f"Bar chart. {self.finding}; {memory}. Free: {'; '.join(free)}."


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
    found: dict[Path, FileSystem] = {}
    for role, folder in asked:
        try:
            place = machine.filesystem(folder)
        except SmallfilesError:  # one that cannot be looked at is left out of a picture
            continue
        roles.setdefault(place.mount, []).append(role)
        found.setdefault(place.mount, place)
    return tuple(StoragePlace(", ".join(roles[mount]), place) for mount, place in found.items())


def _summary(place: StoragePlace) -> str:
    found = place.filesystem
    inodes = "" if found.inodes_free is None else f" and {_count_text(found.inodes_free)} files"
    return f"{place.role} ({found.kind}) {bytes_text(found.free_bytes)}{inodes}"


def _count_text(count: int) -> str:
    return f"{count / 1e6:,.1f} million" if count >= 1_000_000 else f"{count:,}"


def draw(picture: MachineReport) -> Drawing:
    """Our part of the node, and what is free on each file system, in percent.

    Args:
        picture: From `describe`.
    """
    memory = f"{bytes_text(picture.memory_limit_bytes)} of {bytes_text(picture.memory_present_bytes)}"
    rows = {
        f"CPUs: {picture.cpus_usable} of {picture.cpus_present}": picture.cpus_usable / picture.cpus_present,
        f"memory: {memory}": picture.memory_limit_bytes / picture.memory_present_bytes,
    }
    for place in picture.places:
        found = place.filesystem
        name = f"{place.role} ({found.kind})"
        rows[f"{name}\n{bytes_text(found.free_bytes)} free"] = found.free_bytes / (found.total_bytes or 1)
        if found.inodes_free is None:
            rows[f"{name}\ninodes are not counted"] = 0.0
        else:
            inodes = f"{_count_text(found.inodes_free)} inodes free"
            if found.inodes_free:
                inodes += f", one for each {bytes_text(found.free_bytes / found.inodes_free)}"
            rows[f"{name}\n{inodes}"] = found.inodes_free / (found.inodes_total or 1)
    drawn = figures.bars(
        {name: 100 * share for name, share in rows.items()},
        picture.finding,
        x="may be used, or is free (%)",
    )
    return Drawing(drawn.figure, picture.alt_text)
