"""Who read which sample: the right way and two wrong ones, counted over all ranks.

The trap: each rank of a wrong run looks well, since it sees no sample twice. Only the count over all ranks
tells. Notebook 10 draws it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.experiments.nb10 import environments
from smallfiles.measure.record import Spread

if TYPE_CHECKING:
    from helpers.experiments.nb10.pool import WorkerPool
    from helpers.experiments.nb10.work import Share

SRUN, SCRIPT, LOCAL = "srun", "python without srun", "local rank taken for the rank"


@dataclass(frozen=True)
class Reading:
    """An epoch, read by some processes.

    Args:
        way: How they knew their place.
        shares: What each read.
        samples: How many the data set has.
    """

    way: str
    shares: tuple[Share, ...]
    samples: int

    @property
    def times(self) -> Counter[int]:
        """How many samples came how often: `{1: 400}` if each came once."""
        came = Counter(index for share in self.shares for index in share.indices)
        return Counter(came.get(index, 0) for index in range(self.samples))

    @property
    def exact(self) -> bool:
        """Whether every sample came exactly once."""
        return set(self.times) == {1}

    @property
    def summary(self) -> str:
        """What came how often, in words."""
        if self.exact:
            return f"each of {self.samples:,} samples once"
        words = {0: "never", 1: "once", 2: "twice", 3: "three times", 4: "four times"}
        parts = [f"{n:,} {words.get(times, f'{times} times')}" for times, n in sorted(self.times.items())]
        return f"{', '.join(parts)}"

    @property
    def nodes(self) -> int:
        """On how many nodes."""
        return len({share.node for share in self.shares})


def compare_ways(pool: WorkerPool, path: Path, samples: int) -> tuple[Reading, ...]:
    """An epoch on two nodes with two ranks each, three times.

    Args:
        pool: At least four processes.
        path: A packed file.
        samples: How many it has.
    """
    from helpers.experiments.nb10.work import read

    tasks = [environments.srun(rank) for rank in range(4)]
    alone = [{**environments.script(), "SLURMD_NODENAME": told["SLURMD_NODENAME"]} for told in tasks]
    ways: tuple[tuple[str, list[dict[str, str]], str], ...] = (
        (SRUN, tasks, ""),
        (LOCAL, tasks, "local rank"),
        (SCRIPT, alone, ""),
    )
    return tuple(
        Reading(way, tuple(pool.run(read, places, path=str(path), as_if=as_if)), samples)
        for way, places, as_if in ways
    )


def finding(readings: tuple[Reading, ...]) -> str:
    """The sentence that the counts support."""
    right = next(reading for reading in readings if reading.way == SRUN)
    wrong = [reading for reading in readings if not reading.exact]
    who = f"{len(right.shares)} ranks on {right.nodes} nodes"
    if not right.exact:
        return f"{who} did not read each sample exactly once: {right.summary}"
    return f"{who} read {right.summary}; {len(wrong)} wrong ways did not, and ended without an error"


def alt_text(readings: tuple[Reading, ...]) -> str:
    """The figure in words."""
    told = "; ".join(f"{reading.way}: {reading.summary}" for reading in readings)
    return f"Samples against ranks, a mark for each sample that a rank read. {finding(readings)}. {told}."


@dataclass(frozen=True)
class OneCpu:
    """The same rank with two CPUs and with one, both with two workers.

    Args:
        seconds: Of each run, by the number of CPUs.
        workers: How many the loader takes by itself, by the number of CPUs.
    """

    seconds: Mapping[int, tuple[float, ...]]
    workers: Mapping[int, int]

    @property
    def finding(self) -> str:
        """The sentence that the measurement supports."""
        if len(self.seconds) < 2:
            return "This kernel has one CPU, so there is nothing to take away."
        few, many = min(self.seconds), max(self.seconds)
        pairs = zip(self.seconds[few], self.seconds[many], strict=True)
        factor = Spread.of([slow / fast for slow, fast in pairs])  # round by round, since others run here too
        told = f"{factor.median:.1f} times as long (middle half: {factor.lower:.1f} to {factor.upper:.1f})"
        if factor.lower <= 1.0:
            return f"No clear effect: with {few} CPU instead of {many} it took {told}; others run here too."
        return f"Bound to {few} CPU instead of {many}, the rank took **{told}**."


def cost_of_one_cpu(pool: WorkerPool, path: Path, *, count: int = 160, rounds: int = 7) -> OneCpu:
    """Decode with two workers, on two CPUs and on one, as when `srun` is not told the CPUs.

    Args:
        pool: At least one process.
        path: A packed file.
        count: Samples to decode.
        rounds: How often.
    """
    from helpers.experiments.nb10.work import default_workers_here, read
    from smallfiles import machine

    place = [environments.srun(0, nodes=1, per_node=1)]
    counts = (2, 1) if machine.usable_cpus() > 1 else (1,)
    found: dict[int, list[float]] = {cpus: [] for cpus in counts}
    for number in range(rounds + 1):
        for cpus in counts:
            (share,) = pool.run(read, place, path=str(path), count=count, bound_to=cpus, decode=True)
            if number:  # the first of each warms up
                found[cpus].append(share.seconds)
    workers = {cpus: pool.run(default_workers_here, place, bound_to=cpus)[0] for cpus in counts}
    return OneCpu({cpus: tuple(seconds) for cpus, seconds in found.items()}, workers)
