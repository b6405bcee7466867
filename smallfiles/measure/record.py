"""What a measurement leaves behind: single runs, spread, conditions, machine; no user, host or path.

A rate without its conditions is no result: "Arrow is twice as fast" is true warm and false cold, or
the other way round. So a record carries everything that two numbers must share before they may be
compared, and `drawing` refuses to draw records that do not.

The trap: medians of different runs on a shared machine differ by a third for no reason. Compare only
records of one run, and look at the spread. Notebook 01 teaches it.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from smallfiles.atomic import write_json
from smallfiles.errors import FormatError, UsageError
from smallfiles.formats.output import writing
from smallfiles.measure.config import Cache

_CONDITIONS = (
    "what",
    "filesystem",
    "cache",
    "workers",
    "batch",
    "set_samples",
    "set_bytes",
    "touched",
    "machine",
)


CLEAR = 1.1
"""A factor whose lower quartile is below this is no clear difference."""


@dataclass(frozen=True)
class Spread:
    """Median, quartiles and extremes of repeated runs."""

    median: float
    lower: float
    upper: float
    minimum: float
    maximum: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarise runs; quartiles are interpolated."""
        lower, median, upper = (float(q) for q in np.percentile(values, (25, 50, 75)))
        return cls(median, lower, upper, float(min(values)), float(max(values)))

    def overlaps(self, other: Spread) -> bool:
        """Whether the quartile ranges overlap, so that no difference should be claimed."""
        return self.lower <= other.upper and other.lower <= self.upper


@dataclass(frozen=True)
class Record:
    """One thing measured repeatedly under one set of conditions.

    Args:
        what: The operation ("random reads", "packing").
        name: What was measured, unique in its run ("arrow", "concatenation").
        format: Format of the packed file, or the peer's name.
        rates_per_s: Samples per second of each run, in the order of the rounds.
        samples: Samples of one run.
        bytes: Encoded bytes of one run.
        seconds: Median duration of one run.
        filesystem: Kind of the file system measured on.
        cache: State of the page cache.
        touched: How it was made sure that bytes really arrived.
        set_samples: Samples of the whole data set.
        set_bytes: Encoded bytes of the whole data set.
        workers: Processes at work.
        batch: Samples asked for at once.
        seed: Of the order of reads and of rounds.
        extra: More facts of this measurement (peak memory, time to open).
        machine: From `smallfiles.machine.describe`.
        versions: Of the packages involved.
    """

    what: str
    name: str
    format: str
    rates_per_s: tuple[float, ...]
    samples: int
    bytes: int
    seconds: float
    filesystem: str
    cache: Cache
    touched: str
    set_samples: int
    set_bytes: int
    workers: int = 1
    batch: int = 1
    seed: int = 0
    extra: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def repeats(self) -> int:
        """Number of runs."""
        return len(self.rates_per_s)

    @property
    def spread(self) -> Spread:
        """Median, quartiles and extremes of the rate."""
        return Spread.of(self.rates_per_s)

    def conditions(self) -> dict[str, Any]:
        """What another record must share to be compared with this one."""
        return {name: getattr(self, name) for name in _CONDITIONS}

    def as_json(self) -> dict[str, Any]:
        """JSON-ready, with the summary beside the single runs."""
        return {
            **dataclasses.asdict(self),
            "repeats": self.repeats,
            "spread": dataclasses.asdict(self.spread),
        }


@dataclass(frozen=True)
class Failed:
    """A candidate that could not be measured, or not to the end.

    Args:
        what: The operation, as in the records of the others.
        name: What was to be measured.
        why: The reason, in a line.
        cache: State of the page cache.
    """

    what: str
    name: str
    why: str
    cache: Cache = "warm"


@dataclass(frozen=True)
class Result:
    """What a measurement found.

    Args:
        records: One a candidate and condition.
        notes: What has to be said.
        failed: What is missing in the records, and why.
    """

    records: tuple[Record, ...]
    notes: tuple[str, ...] = ()
    failed: tuple[Failed, ...] = ()


def ratio(record: Record, reference: Record) -> Spread:
    """How many times as fast `record` is as `reference`, paired round by round.

    The rounds of one run are interleaved, so a disturbance hits both of a pair.

    Raises:
        UsageError: The two were not measured under the same conditions in one run.
    """
    if record.conditions() != reference.conditions() or record.repeats != reference.repeats:
        raise UsageError(
            f"{record.name} and {reference.name} were not measured under the same conditions",
            expected="two records of one run",
            next_step="Measure both in one run",
        )
    pairs = zip(record.rates_per_s, reference.rates_per_s, strict=True)
    return Spread.of([mine / theirs for mine, theirs in pairs])


def times_text(factor: Spread) -> str:
    """A factor as people say it: `6.7 times`, `25 times`."""
    return f"{factor.median:.0f} times" if factor.median >= 9.95 else f"{factor.median:.1f} times"


def versions_of(packages: Sequence[str]) -> dict[str, str]:
    """Installed versions of the packages that took part; those that are missing are left out."""
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def save(records: Sequence[Record], path: Path, failed: Sequence[Failed] = ()) -> None:
    """Write records as one JSON file, aside first.

    Args:
        records: What was measured.
        path: The file.
        failed: What could not be measured.

    Raises:
        ResourceError: No space or no permission.
    """
    told: dict[str, Any] = {"records": [record.as_json() for record in records]}
    if failed:
        told["failed"] = [dataclasses.asdict(each) for each in failed]
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, told)


def load(path: Path) -> list[Record]:
    """Read what `save` wrote.

    Raises:
        FormatError: Not a file of records.
    """
    names = {f.name for f in dataclasses.fields(Record)}
    try:
        items = json.loads(path.read_text(encoding="utf-8"))["records"]
        chosen = [{name: value for name, value in item.items() if name in names} for item in items]
        return [Record(**{**item, "rates_per_s": tuple(map(float, item["rates_per_s"]))}) for item in chosen]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(
            f"{path} cannot be read as measured records ({error})",
            expected="the JSON that `smallfiles bench … --save` writes",
            next_step="Measure again with --save",
        ) from error
