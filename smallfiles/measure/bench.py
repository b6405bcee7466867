"""What every topic of `bench` has in common: cases in rounds become records, what fails becomes a line.

    bench = Bench(config, ("smallfiles", "numpy"))
    allowed = bench.allowed([folder], config.count, runs)
    bench.measure("random reads", cases, place=folder, whole=(samples, bytes), touched="every byte hashed")
    return bench.result()

The trap: a topic that measures its candidates one after the other compares the weather of two minutes. So
a topic gives all of them to one call. And thirty participants who each read 3,000 files 40 times ask a
metadata server for 3.6 million opens in a minute, while everybody else on the cluster waits: so on a shared
file system the number of operations is capped and said aloud; `--no-cap` lifts it, for a reservation or an
empty file system. Notebook 01 teaches the protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from smallfiles import machine
from smallfiles.errors import UsageError
from smallfiles.measure.config import BenchConfig, Cache, LoadBenchConfig
from smallfiles.measure.protocol import Case, Outcome, interleaved
from smallfiles.measure.record import Failed, Record, Result, versions_of

OPERATIONS = 20_000
IN_FLIGHT = 4


@dataclass(frozen=True)
class Allowance:
    """How much a measurement may do.

    Args:
        samples: Samples a run.
        in_flight: Opens in flight; None if nothing was capped, and leaves the choice to packing.
    """

    samples: int
    in_flight: int | None = None


@dataclass(frozen=True)
class Target:
    """A packed file to be measured, and what it holds.

    Args:
        path: Where it is.
        format: Its format.
        name: In records.
        samples: How many are measured.
        bytes: Of these.
        kind: Of pictures: JPEG, raw, and how they were scaled.
    """

    path: Path
    format: str
    name: str
    samples: int
    bytes: int
    kind: str = ""


def one_set(targets: Sequence[Target]) -> list[Target]:
    """Targets with names that differ: by format where that is unique, else by file, else by place too.

    Raises:
        UsageError: They hold different data sets.
    """
    first = targets[0]
    for target in targets:
        if (target.samples, target.bytes) != (first.samples, first.bytes):
            raise UsageError(
                f"{target.path} holds {target.samples:,} samples of {target.bytes:,} bytes and {first.path} "
                f"{first.samples:,} of {first.bytes:,}",
                expected="packed files of one data set, in one order",
                next_step="Measure them in separate runs",
            )
    schemes = (
        [target.name for target in targets],
        [target.path.name for target in targets],
        [f"{number}: {target.path.name}" for number, target in enumerate(targets, 1)],
    )
    names = next(names for names in schemes if len(set(names)) == len(names))
    return [replace(target, name=name) for target, name in zip(targets, names, strict=True)]


def medians(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The further facts of runs, each as its median."""
    return {name: median(each.extra[name] for each in outcomes) for name in outcomes[0].extra}


class Bench:
    """Measures for one topic, and collects what came out.

    Args:
        config: Rounds and seed.
        packages: Whose versions a record tells.
    """

    def __init__(self, config: BenchConfig | LoadBenchConfig, packages: Sequence[str]) -> None:
        self.records: list[Record] = []
        self.failed: list[Failed] = []
        self.notes: list[str] = []
        self._config, self._versions, self._machine = config, versions_of(packages), machine.describe()

    def allowed(self, paths: Sequence[Path], samples: int, runs: int) -> Allowance:
        """How many samples a run may read where paths lie; what is capped is noted.

        Args:
            paths: What will be read.
            samples: How many samples a run would like to read.
            runs: Number of runs over all cases and rounds.
        """
        shared = next((fs for fs in map(machine.filesystem, paths) if fs.shared), None)
        if shared is None or not self._config.cap:
            return Allowance(samples)
        allowed = min(samples, max(1, OPERATIONS // max(1, runs)))
        self.notes.append(
            f"this is {shared.kind}, which others share: {allowed:,} of {samples:,} samples a run, at most "
            f"{OPERATIONS:,} operations and {IN_FLIGHT} in flight (--no-cap lifts this; ask your site first)"
        )
        return Allowance(allowed, IN_FLIGHT)

    def measure(
        self,
        what: str,
        cases: Sequence[Case],
        *,
        place: Path | None,
        whole: tuple[int, int],
        touched: str,
        cache: Cache = "warm",
        batch: int = 1,
        extra: Callable[[Sequence[Outcome]], Mapping[str, Any]] = medians,
    ) -> None:
        """Run cases in rounds: a record for each, or why there is none.

        Args:
            what: The operation.
            cases: What to compare.
            place: Something on the file system that is measured; None is memory.
            whole: Samples and bytes of the data set.
            touched: How it is made sure that bytes really arrive.
            cache: State of the page cache.
            batch: Samples asked for at once.
            extra: Further facts from the runs of a case.
        """
        reasons: dict[str, str] = {}
        config, told = self._config, f"{what}, {cache}" if cache == "cold" else what
        outcomes = interleaved(cases, config.repeats, config.seed, told, reasons) if cases else {}
        for case in cases:
            if case.name not in outcomes:
                self.failed.append(Failed(case.what or what, case.shown, reasons[case.name], cache))
                continue
            runs, where = outcomes[case.name], case.place or place
            self.records.append(
                Record(
                    what=case.what or what,
                    name=case.shown,
                    format=case.format or case.shown,
                    rates_per_s=tuple(run.rate_per_s for run in runs),
                    samples=runs[0].samples,
                    bytes=runs[0].bytes,
                    seconds=median(run.seconds for run in runs),
                    filesystem="memory" if where is None else machine.filesystem(where).kind,
                    cache=cache,
                    touched=touched,
                    set_samples=whole[0],
                    set_bytes=whole[1],
                    workers=case.workers,
                    batch=batch,
                    seed=config.seed,
                    extra=dict(extra(runs)),
                    machine=self._machine,
                    versions=self._versions,
                )
            )

    def result(self) -> Result:
        """All of it."""
        return Result(tuple(self.records), tuple(dict.fromkeys(self.notes)), tuple(self.failed))
