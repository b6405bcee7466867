"""The common part of all topics of `bench`: cases in rounds become records, failures become a line.

    bench = Bench(config, ("smallfiles", "numpy"))
    allowed = bench.allowed([folder], config.count, runs)
    bench.measure("random reads", cases, place=folder, whole=(samples, bytes), touched="every byte hashed")
    return bench.result()

The traps: candidates that are measured one after the other are measured under different load, so a topic
passes all of them to one call. And thirty participants who each read 3,000 files 40 times send 3.6 million
opens to a metadata server, which delays everybody else on the cluster: so on a shared file system the number
of operations is capped, with a note; `--no-cap` lifts the cap, for a reservation or an empty file system.
Notebook 01 teaches the protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from smallfiles import machine
from smallfiles.errors import UsageError
from smallfiles.measure import BenchConfig, Cache, LoadBenchConfig
from smallfiles.measure.protocol import Case, Outcome, interleaved
from smallfiles.measure.record import Failed, Record, Result, versions_of

OPERATIONS = 20_000
IN_FLIGHT = 4


@dataclass(frozen=True)
class Allowance:
    """The size of a measurement.

    Args:
        samples: Samples per run.
        in_flight: Opens in flight; None without a cap, then packing chooses.
    """

    samples: int
    in_flight: int | None = None


@dataclass(frozen=True)
class Target:
    """A packed file to measure, and its content.

    Args:
        path: Its path.
        format: Its format.
        name: Its name in records.
        samples: Number of measured samples.
        bytes: Their size.
        kind: Kind of pictures: JPEG or raw, and whether they were scaled ahead.
    """

    path: Path
    format: str
    name: str
    samples: int
    bytes: int
    kind: str = ""


def one_set(targets: Sequence[Target]) -> list[Target]:
    """Give targets unique names: the format, or else the file name, or else numbered file names.

    Raises:
        UsageError: The targets contain different data sets.
    """
    first = targets[0]
    for target in targets:
        if (target.samples, target.bytes) != (first.samples, first.bytes):
            raise UsageError(
                f"{target.path} has {target.samples:,} samples of {target.bytes:,} bytes and {first.path} "
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
    """Return the median of each extra fact over the runs. Texts are equal in all runs."""
    return {
        name: found if isinstance(found, str) else median(each.extra[name] for each in outcomes)
        for name, found in outcomes[0].extra.items()
    }


class Bench:
    """Measures for one topic, and collects records, failures and notes.

    Args:
        config: Rounds and seed.
        packages: Packages whose versions are recorded.
    """

    def __init__(self, config: BenchConfig | LoadBenchConfig, packages: Sequence[str]) -> None:
        self.records: list[Record] = []
        self.failed: list[Failed] = []
        self.notes: list[str] = []
        self._config, self._versions, self._machine = config, versions_of(packages), machine.describe()

    def allowed(self, paths: Sequence[Path], samples: int, runs: int) -> Allowance:
        """Return how many samples a run may read from these paths. A cap adds a note.

        Args:
            paths: The paths that will be read.
            samples: Requested samples per run.
            runs: Number of runs over all cases and rounds.
        """
        shared = next((fs for fs in map(machine.filesystem, paths) if fs.shared), None)
        if shared is None or not self._config.cap:
            return Allowance(samples)
        allowed = min(samples, max(1, OPERATIONS // max(1, runs)))
        self.notes.append(
            f"this is {shared.kind}, which is shared: {allowed:,} of {samples:,} samples per run, at most "
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
        """Run cases in rounds, and keep a record or a failure of each.

        Args:
            what: The operation.
            cases: What to compare.
            place: A path on the measured file system; None is memory.
            whole: Samples and bytes of the data set.
            touched: How the measurement ensures that bytes really arrive.
            cache: State of the page cache.
            batch: Samples per request.
            extra: Further facts from the runs of a case.
        """
        reasons: dict[str, str] = {}
        config, shown = self._config, f"{what}, {cache}" if cache == "cold" else what
        outcomes = interleaved(cases, config.repeats, config.seed, shown, reasons) if cases else {}
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
        """Return all records, notes, and failures."""
        return Result(tuple(self.records), tuple(dict.fromkeys(self.notes)), tuple(self.failed))
