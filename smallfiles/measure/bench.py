"""What every topic of `bench` has in common: cases in rounds become records, what fails becomes a line.

    bench = Bench(config, ("smallfiles", "numpy"))
    allowed = bench.allowed([folder], config.count, runs)
    bench.measure("random reads", cases, place=folder, whole=(samples, bytes), touched="every byte hashed")
    return bench.result()

The trap: a topic that measures its candidates one after the other compares the weather of two minutes. So
a topic gives all of them to one call. Notebook 01 teaches the protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from smallfiles import machine
from smallfiles.measure.config import BenchConfig, Cache, LoadBenchConfig
from smallfiles.measure.neighbour import Allowance, allowance
from smallfiles.measure.protocol import Case, Outcome, interleaved
from smallfiles.measure.record import Failed, Record, Result, versions_of


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
        """How many samples a run may read; what is capped is noted."""
        found = allowance(paths, samples, runs, cap=self._config.cap)
        self.notes += [found.note] if found.note else []
        return found

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
