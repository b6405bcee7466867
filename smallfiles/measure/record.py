"""Records of measurements: single runs, spread, conditions, machine; no user, host or path.

A rate without its conditions means nothing: "Arrow is twice as fast" may be true warm and false cold.
So a record contains all conditions that two numbers must share to be compared, and `drawing` refuses
records that do not share them.

The trap: medians of separate measurements on a shared machine differ by a third without a cause. Compare
only records of one measurement, and look at the spread. Notebook 01 teaches it.
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
from smallfiles.errors import FormatError, UsageError, writing
from smallfiles.measure import Cache

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
        """Check whether the quartile ranges overlap, so that there is no clear difference."""
        return self.lower <= other.upper and other.lower <= self.upper


@dataclass(frozen=True)
class Record:
    """One thing measured repeatedly under one set of conditions.

    Args:
        what: The operation ("random reads", "packing").
        name: The candidate, unique in its measurement ("arrow", "concatenation").
        format: Format of the packed file, or the peer's name.
        rates_per_s: Samples per second of each run, in the order of the rounds.
        samples: Samples of one run.
        bytes: Encoded bytes of one run.
        seconds: Median duration of one run.
        filesystem: Kind of the file system measured on.
        cache: State of the page cache.
        touched: How the measurement ensured that bytes really arrived.
        set_samples: Samples of the whole data set.
        set_bytes: Encoded bytes of the whole data set.
        workers: Processes at work.
        batch: Samples per request.
        seed: Of the order of reads and of rounds.
        extra: Further facts (peak memory, time to open).
        machine: From `smallfiles.machine.describe`.
        versions: Versions of the packages involved.
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
        """Return the conditions that comparable records share."""
        return {name: getattr(self, name) for name in _CONDITIONS}

    def as_json(self) -> dict[str, Any]:
        """Return the record with single runs and summary, as JSON can store it."""
        return {
            **dataclasses.asdict(self),
            "repeats": self.repeats,
            "spread": dataclasses.asdict(self.spread),
        }


@dataclass(frozen=True)
class Failed:
    """A candidate whose measurement failed.

    Args:
        what: The operation, as in records.
        name: The candidate.
        why: The reason, in one line.
        cache: State of the page cache.
    """

    what: str
    name: str
    why: str
    cache: Cache = "warm"


@dataclass(frozen=True)
class Result:
    """The result of a measurement.

    Args:
        records: One per candidate and condition.
        notes: Remarks.
        failed: The failed candidates.
    """

    records: tuple[Record, ...]
    notes: tuple[str, ...] = ()
    failed: tuple[Failed, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the result without its notes, as JSON can store it."""
        return {
            "records": [record.as_json() for record in self.records],
            "failed": [dataclasses.asdict(each) for each in self.failed],
        }


def ratio(record: Record, reference: Record) -> Spread:
    """Return the speed of `record` relative to `reference`, from the pairs of each round.

    Rounds are interleaved, so a disturbance affects both records of a pair.

    Raises:
        UsageError: The two records were not measured under the same conditions in one measurement.
    """
    if record.conditions() != reference.conditions() or record.repeats != reference.repeats:
        raise UsageError(
            f"{record.name} and {reference.name} were not measured under the same conditions",
            expected="two records of one run",
            next_step="Measure both in one run",
        )
    pairs = zip(record.rates_per_s, reference.rates_per_s, strict=True)
    return Spread.of([mine / theirs for mine, theirs in pairs])


def factor_text(factor: float) -> str:
    """Format a factor, such as `6.7` or `25`."""
    return f"{factor:.1f}" if factor < 9.95 else f"{factor:.0f}"


def versions_of(packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def save(records: Sequence[Record], path: Path, failed: Sequence[Failed] = ()) -> None:
    """Write records as one JSON file, atomically.

    Args:
        records: The records.
        path: The file.
        failed: The failed candidates.

    Raises:
        ResourceError: No space or no permission.
    """
    content = Result(tuple(records), failed=tuple(failed)).as_json()
    write(content if failed else {"records": content["records"]}, path)


def write(content: dict[str, Any], path: Path) -> None:
    """Write a record as JSON, complete or not at all, into a folder that is made if it is missing."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, content)


def load(path: Path) -> list[Record]:
    """Read a file that `save` wrote.

    Raises:
        FormatError: It is not a file of records.
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
