"""How long one stat, one open, one read and one close take, each on its own clock.

A mean hides what hurts: among a thousand quick opens a few slow ones decide when the batch is ready.
So every single time is kept, and looked at as a histogram.

The trap: forgetting the page cache (`posix_fadvise`) makes reads cold, but not opens: the kernel
still knows names and inodes, and only root can make it forget those. In memory (tmpfs) there is
nothing to forget at all. Notebook 01 draws the histogram.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns

import numpy as np

from smallfiles import machine
from smallfiles.errors import SourceError, UsageError
from smallfiles.measure import cache as page_cache
from smallfiles.measure.neighbour import allowance
from smallfiles.measure.record import Spread
from smallfiles.progress import bytes_text, progress

NAMES = ("stat", "open", "read", "close")
REQUESTS = 3  # of these are answered by a metadata server: stat, open and close
_FLAGS = os.O_RDONLY | os.O_CLOEXEC


@dataclass(frozen=True)
class Operations:
    """Times of single operations in seconds, one array each, in the order in which they ran.

    Args:
        warm: By name, with the bytes in the page cache.
        cold_read: Reads after the cache was told to forget; empty where that is not possible.
        mean_bytes: Of the files.
        filesystem: Kind.
        notes: What had to be said.
    """

    warm: dict[str, np.ndarray]
    cold_read: np.ndarray
    mean_bytes: float
    filesystem: str
    notes: tuple[str, ...] = ()

    def median_s(self, name: str) -> float:
        """Half of these took less."""
        return float(np.median(self.warm[name]))

    def rows(self) -> list[tuple[str, np.ndarray]]:
        """Name and times of each operation, the cold reads after the warm ones."""
        rows = [(f"{name}, warm" if name == "read" else name, self.warm[name]) for name in NAMES]
        return [*rows[:3], *([("read, cold", self.cold_read)] * bool(len(self.cold_read))), *rows[3:]]

    @property
    def cold_factor(self) -> float | None:
        """How many times as long a cold read takes; None if the quartiles overlap or none was measured."""
        if not len(self.cold_read):
            return None
        warm, cold = Spread.of(self.warm["read"].tolist()), Spread.of(self.cold_read.tolist())
        return None if warm.overlaps(cold) else cold.median / warm.median

    @property
    def finding(self) -> str:
        """The sentence that the histogram supports."""
        text = (
            f"Warm {self.filesystem}: an open takes {micro_text(self.median_s('open'))}, "
            f"reading {bytes_text(self.mean_bytes)} {micro_text(self.median_s('read'))}"
        )
        if self.cold_factor:
            return f"{text}; cold, the read takes {self.cold_factor:.0f} times as long"
        return f"{text}; no clear difference when cold" if len(self.cold_read) else text

    @property
    def alt_text(self) -> str:
        """The figure in words."""
        told = [
            f"{name} {micro_text(np.median(times))}, slowest {micro_text(times.max())}"
            for name, times in self.rows()
        ]
        return (
            f"Histograms of single times, one row an operation. {self.finding}. Medians: {'; '.join(told)}."
        )


def micro_text(seconds: float) -> str:
    """A short time as people say it: `2.1 µs`, `4.0 ms`."""
    if seconds < 0.9995e-3:
        micros = seconds * 1e6
        return f"{micros:.0f} µs" if micros >= 9.95 else f"{micros:.1f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 0.9995 else f"{seconds:.1f} s"


def time_operations(
    root: Path, paths: Sequence[str], *, rounds: int = 5, cap: bool = True, seed: int = 0
) -> Operations:
    """Time every operation on every file, in random order, `rounds` times warm and once cold.

    Args:
        root: Folder that holds the files.
        paths: Files relative to it.
        rounds: Passes over the files with a warm cache, after one that warms it.
        cap: Keep to the limit on a shared file system.
        seed: Of the order.

    Raises:
        SourceError: A file cannot be read.
        UsageError: There are no files.
    """
    if not paths:
        raise UsageError("no files were given", expected="one or more", next_step="Give some paths")
    allowed = allowance([root], len(paths), (rounds + 2) * (REQUESTS + 1), cap=cap)
    order = np.random.default_rng(seed).permutation(len(paths))[: allowed.samples]
    chosen = [f"{root}/{paths[index]}" for index in order]
    sizes = [_checked_size(path) for path in chosen]
    buffer = memoryview(bytearray(max(max(sizes), 1)))
    notes = [allowed.note] if allowed.note else []
    with progress(rounds + 2, "timing operations", unit="rounds") as shown:
        _one_round(chosen, buffer)
        shown.advance()
        taken = []
        for _ in range(rounds):
            taken.append(_one_round(chosen, buffer))
            shown.advance()
        cold = np.empty(0)
        if page_cache.can_be_cold(root):
            page_cache.drop(map(Path, chosen))
            cold = _one_round(chosen, buffer)[:, NAMES.index("read")]
        else:
            notes.append("these files lie in memory (tmpfs), so there is no cold read to be measured")
    all_rounds = np.concatenate(taken)
    warm = {name: all_rounds[:, column] for column, name in enumerate(NAMES)}
    return Operations(warm, cold, float(np.mean(sizes)), machine.filesystem(root).kind, tuple(notes))


def _checked_size(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116 - a Path would double the cost
    except OSError as error:
        raise SourceError(
            f"{path} cannot be read ({error.strerror or error})",
            expected="a file that you may read",
            next_step="Check the path",
        ) from error


def _one_round(paths: Sequence[str], buffer: memoryview) -> np.ndarray:
    """Seconds of each operation: one row a file."""
    clock, stat, open_, readv, close = perf_counter_ns, os.stat, os.open, os.readv, os.close
    times = np.empty((len(paths), len(NAMES) + 1), np.int64)
    for row, path in enumerate(paths):
        began = clock()
        stat(path)
        looked = clock()
        descriptor = open_(path, _FLAGS)
        opened = clock()
        readv(descriptor, (buffer,))
        read = clock()
        close(descriptor)
        times[row] = began, looked, opened, read, clock()
    return np.diff(times, axis=1) / 1e9
