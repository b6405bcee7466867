"""Time of an epoch from small files, from one packed file, from its staged copy; time of the copy.

All four are measured round by round, one reader each, the first two through a slow storage. From them
follows after how many epochs the copy has paid. The trap: on a real cluster the page cache may keep a
small data set, and then the second epoch is quick without any staging; it is the large set, and the
full node, for which you must measure. Notebook 07 draws it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

from smallfiles import formats, slowfs, staging
from smallfiles.measure.protocol import Case, Outcome, interleaved
from smallfiles.measure.record import Spread
from smallfiles.measure.scratch import memory_folder
from smallfiles.samples import ByteStore
from smallfiles.slowfs import SlowConfig, SlowFolder
from smallfiles.sources import Source

FILES, PACKED, STAGED, COPY = "small files", "packed file", "staged copy", "copying"
_LINES = {
    FILES: "small files, read there",
    PACKED: "packed file, read there",
    STAGED: "packed file, staged first",
}
_CONFIG = staging.StageConfig(leave_bytes=0)


@dataclass(frozen=True)
class Epochs:
    """Seconds of each run, in rounds.

    Args:
        files_s: An epoch from small files on the slow storage.
        packed_s: An epoch from the packed file there.
        staged_s: An epoch from its copy on this node.
        copy_s: Staging.
        images: Images in an epoch.
        bytes: Bytes of the packed file.
        storage: How slow the storage was, in words.
        note: What was not as usual; empty otherwise.
    """

    files_s: tuple[float, ...]
    packed_s: tuple[float, ...]
    staged_s: tuple[float, ...]
    copy_s: tuple[float, ...]
    images: int
    bytes: int
    storage: str
    note: str = ""

    def totals(self, line: str, epochs: float) -> list[float]:
        """Seconds from the start to the end of so many epochs, for each round; `line` as in `lines`."""
        runs = {FILES: self.files_s, PACKED: self.packed_s, STAGED: self.staged_s}[line]
        first = self.copy_s if line == STAGED else (0.0,) * len(runs)
        return [begin + epochs * epoch for begin, epoch in zip(first, runs, strict=True)]

    @property
    def lines(self) -> dict[str, str]:
        """The three ways of reading, and how a figure calls them."""
        return _LINES

    def crossing(self, line: str = PACKED) -> Spread | None:
        """After how many epochs staging has paid, paired by round; None if it never does in some."""
        runs = {FILES: self.files_s, PACKED: self.packed_s}[line]
        found = [staging.break_even(*times) for times in zip(self.copy_s, runs, self.staged_s, strict=True)]
        return Spread.of(found) if all(map(math.isfinite, found)) else None

    def crossing_if_bound(self, bound_s: float) -> float:
        """The same from medians, if an epoch takes `bound_s` at least for other reasons."""
        packed, staged = (max(bound_s, median(runs)) for runs in (self.packed_s, self.staged_s))
        return staging.break_even(median(self.copy_s), packed, staged)

    @property
    def finding(self) -> str:
        """The sentence that the measurement supports."""
        found = self.crossing()
        if found is None:
            return "The copy never pays here: an epoch from it is not shorter"
        first = max(1, math.ceil(found.upper))
        told = f"{found.median:.2f} epochs ({found.lower:.2f} to {found.upper:.2f})"
        return f"Staging has paid after {told}: {'within the first' if first == 1 else f'in epoch {first}'}"

    @property
    def alt_text(self) -> str:
        """The figure in words."""
        values = ", ".join(
            f"{name} {median(runs):.2f} s an epoch"
            for name, runs in zip(_LINES, (self.files_s, self.packed_s, self.staged_s), strict=True)
        )
        return (
            f"Line chart of total seconds against epochs. {self.finding}. "
            f"Medians: {values}, copying {median(self.copy_s):.2f} s. Storage: {self.storage}."
        )


def measure_epochs(
    source: Source, folder: Path, packed: Path, place: Path, storage: SlowConfig, *, repeats: int = 5
) -> Epochs:
    """Time the three ways of reading an epoch, and the copy.

    Args:
        source: The small files.
        folder: The folder that they lie in.
        packed: The same images, packed.
        place: A directory of this node.
        storage: How slow the storage shall be.
        repeats: Number of rounds.

    Raises:
        ResourceError: There is no room for the copy.
    """
    paths = source.manifest.paths.to_pylist()
    size = packed.stat().st_size
    with (
        memory_folder(3 * size, place) as here,
        slowfs.open_slow(folder, storage) as slow_files,
        slowfs.open_slow(packed.parent, storage) as slow_packed,
        staging.staged(packed, _made(here / "kept"), config=_CONFIG) as copy,
    ):
        largest = max(map(source.store.size, paths))
        runs: dict[str, Callable[[], float]] = {
            FILES: lambda: _files(slow_files.store, paths, largest),
            PACKED: lambda: _slow_epoch(slow_packed, packed),
            STAGED: lambda: _epoch(copy.path),
            COPY: lambda: _copy(slow_packed, packed, here / "new"),
        }
        cases = [
            Case(name, lambda run=run: Outcome(len(paths), size, run()), warm_up=name == STAGED)  # type: ignore[misc]
            for name, run in runs.items()
        ]
        found = interleaved(cases, repeats, seed=0, what="epochs")
        note = (
            ""
            if slow_packed.how == "fuse"
            else f"{slow_packed.summary} The copy's reads are timed there too."
        )
    seconds = {name: tuple(outcome.seconds for outcome in outcomes) for name, outcomes in found.items()}
    return Epochs(
        seconds[FILES],
        seconds[PACKED],
        seconds[STAGED],
        seconds[COPY],
        len(paths),
        size,
        storage.summary(),
        note,
    )


def _made(folder: Path) -> Path:
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _epoch(path: Path) -> float:
    """Seconds to open a packed file and touch every byte of its samples, in random order."""
    began = perf_counter()
    reader = formats.open(path)
    order = list(range(len(reader)))
    random.Random(0).shuffle(order)
    for index in order:
        bytes(reader.read(index))
    reader.close()
    return perf_counter() - began


def _slow_epoch(slow: SlowFolder, packed: Path) -> float:
    """The same through the slow storage; where it is not mounted, its bytes from end to end."""
    return _epoch(slow / packed.name) if slow.how == "fuse" else _through(slow.store, packed)


def _files(store: ByteStore, paths: Sequence[str], largest: int) -> float:
    """Seconds to read small files one after the other."""
    buffer = memoryview(bytearray(largest))
    began = perf_counter()
    for path in paths:
        store.read_into(path, buffer)
    return perf_counter() - began


def _through(store: ByteStore, packed: Path) -> float:
    buffer = memoryview(bytearray(packed.stat().st_size))
    began = perf_counter()
    store.read_into(packed.name, buffer)
    return perf_counter() - began


def _copy(slow: SlowFolder, packed: Path, to: Path) -> float:
    """Seconds of staging from the slow storage to a place that holds no copy yet."""
    if slow.how == "fuse":
        with staging.staged(slow / packed.name, _made(to), config=_CONFIG) as copy:
            return copy.seconds
    waited_s = _through(slow.store, packed)
    with staging.staged(packed, _made(to), config=_CONFIG) as copy:
        return max(waited_s, copy.seconds)


def bound_table(epochs: Epochs, shares: Sequence[float] = (0.0, 0.5, 0.9, 1.0)) -> str:
    """After how many epochs staging pays if something else bounds an epoch, one line a case.

    Args:
        epochs: What was measured.
        shares: The bound, as a share of the epoch from the packed file on the slow storage.
    """
    slow_s = median(epochs.packed_s)
    lines = []
    for share in shares:
        found = epochs.crossing_if_bound(share * slow_s)
        told = "never pays" if math.isinf(found) else f"has paid in epoch {max(1, math.ceil(found)):,}"
        lines.append(f"training takes {share * slow_s:.2f} s an epoch at least: staging {told}")
    return "\n".join(lines)
