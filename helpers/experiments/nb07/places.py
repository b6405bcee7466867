"""Which storage this node has, what it may take, and what a file in memory costs the job.

The trap: `df /dev/shm` tells the size of a folder, not what the job may fill; files there are memory of
the job, and the job is killed when it has none left. Notebook 07.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from smallfiles.errors import ResourceError
from smallfiles.formats.output import writing
from smallfiles.machine import nodelocal
from smallfiles.machine.cgroups import own_groups, read_lines
from smallfiles.machine.nodelocal import NodeLocal
from smallfiles.measure.scratch import memory_folder
from smallfiles.progress import bytes_text
from smallfiles.staging import places

_SPARE_BYTES = 512 << 20
_PRICE_BYTES = 256 << 20
_PIECE_BYTES = 8 << 20
_WIDTH = max(map(len, nodelocal.VARIABLES))


def named_table(env: Mapping[str, str] | None = None) -> str:
    """All names that sites give to node-local storage, and what is behind them here, one a line."""
    found = dict(nodelocal.named_directories(env))
    lines = [
        f"{variable:{_WIDTH}} {_summary(found[variable], variable) if variable in found else 'not set'}"
        for variable in nodelocal.VARIABLES
    ]
    shared = str(nodelocal.SHARED_MEMORY)
    told = _summary(found[""], "") if "" in found else "is one of those above"
    return "\n".join([*lines, f"{shared:{_WIDTH}} {told}"])


def _summary(path: Path, variable: str) -> str:
    problem = nodelocal.problem_of(path)
    name = f"{path} " if variable else ""
    if problem is not None:
        return f"{name}{problem}"
    place = nodelocal.node_local(path, variable)
    kind = f"memory ({place.filesystem.kind})" if place.in_memory else place.filesystem.kind
    return (
        f"{name}{kind}, {bytes_text(place.filesystem.free_bytes)} free, "
        f"this job may fill {bytes_text(place.free_bytes)}"
    )


def place_for(source: Path, need_bytes: int, otherwise: Path) -> tuple[Path, str]:
    """Where the experiments stage to.

    Args:
        source: What will be staged.
        need_bytes: What they write at most.
        otherwise: A folder for machines whose memory is too small, such as many containers.

    Returns:
        The directory that `stage` would choose, and a sentence on why it is another one, or nothing.
    """
    found, _ = places.candidates(places.AUTO, source)
    roomy = [place for place in found if place.free_bytes > need_bytes + _SPARE_BYTES]
    if roomy:
        return roomy[0].path, ""
    told = ", ".join(f"{place.path} has {bytes_text(place.free_bytes)}" for place in found) or "there is none"
    return otherwise, f"No node-local storage with room enough ({told}), so a folder on disk stands for it."


@dataclass(frozen=True)
class Price:
    """What a file in memory took.

    Args:
        file_bytes: Size of the file.
        taken_bytes: By how much the memory grew that holds files.
        of_job: Whether the kernel counted it for this job, or for the whole machine only.
        left_bytes: What the job could still fill, with the file there.
    """

    file_bytes: int
    taken_bytes: int
    of_job: bool
    left_bytes: int

    @property
    def finding(self) -> str:
        """The sentence that the measurement supports."""
        whose = "this job" if self.of_job else "this machine"
        told = (
            f"With a file of {bytes_text(self.file_bytes)} in /dev/shm, files take "
            f"{bytes_text(max(0, self.taken_bytes))} more of the memory of {whose}; "
            f"{bytes_text(self.left_bytes)} are left to it"
        )
        if abs(self.taken_bytes - self.file_bytes) < self.file_bytes / 4:
            return f"{told}. The file is memory."
        return f"{told}. Others wrote or removed files meanwhile, so run this cell again."


def price_of_memory(
    file_bytes: int = _PRICE_BYTES, folder: Path = nodelocal.SHARED_MEMORY, repeats: int = 5
) -> Price | None:
    """Write a file to memory for a moment, and look at what the job may still fill.

    Args:
        file_bytes: Its size.
        folder: Where memory looks like a folder.
        repeats: How often; others use memory too, so the median counts.

    Returns:
        The price; None where there is no such folder, or no room.
    """
    try:
        with memory_folder(file_bytes, folder) as place, writing(place):
            if not _in_memory(place):
                return None
            found = [_written(place / "price", file_bytes) for _ in range(repeats)]
            return sorted(found, key=lambda price: price.taken_bytes)[repeats // 2]
    except ResourceError:
        return None


def _written(path: Path, file_bytes: int) -> Price:
    before = _taken_by_files()
    with path.open("wb") as file:
        for _ in range(0, file_bytes, _PIECE_BYTES):
            file.write(bytes(_PIECE_BYTES))
    after, left = _taken_by_files(), nodelocal.memory_headroom_bytes()
    path.unlink()
    job, machine = (new - old for new, old in zip(after, before, strict=True))
    of_job = job > file_bytes // 2
    return Price(file_bytes, job if of_job else machine, of_job, left)


def _taken_by_files(root: Path = Path("/")) -> tuple[int, int]:
    """Memory that holds files, as counted for our control group and for the machine; 0 if unknown."""
    version, folder = next(own_groups("memory", root), (2, root))
    job = _number(folder / "memory.stat", "shmem" if version == 2 else "total_shmem")
    return job, 1024 * _number(root / "proc/meminfo", "Shmem:")


def _number(path: Path, name: str) -> int:
    words = [line.split() for line in read_lines(path)]
    return next((int(pair[1]) for pair in words if len(pair) >= 2 and pair[0] == name), 0)


def _in_memory(place: Path) -> bool:
    found: NodeLocal = nodelocal.node_local(place)
    return found.in_memory
