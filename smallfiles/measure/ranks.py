"""Read an epoch on all ranks, record which samples each of them read, and count them afterwards.

Each rank writes its own record, so ranks share nothing but a folder that all of them see. The trap: "exactly
once" is usually assumed, not counted; no rank notices a sample that two nodes read. Notebook 10 counts.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from smallfiles import machine
from smallfiles.atomic import write_json
from smallfiles.errors import FormatError, OutputExistsError, first_few
from smallfiles.loading import LoaderConfig, make_loader, place
from smallfiles.loading.makers import Ragged
from smallfiles.progress import plural

_DRAWN = "drawn.npy"
"""The samples of the epoch, if those are not all of them."""


@dataclass(frozen=True)
class Share:
    """The share of one rank.

    Args:
        rank: Its number.
        world_size: Number of ranks.
        node: Name of its node.
        local_rank: Its number on that node.
        cpus: CPUs that it may use.
        samples: Samples that it read.
        of: Samples of the data set, and repeats of them.
        bytes: Size of their encoded data.
        seconds: From the first request to the last batch.
        drawn: What an epoch has, if that is not each sample once.
    """

    rank: int
    world_size: int
    node: str
    local_rank: int
    cpus: int
    samples: int
    of: int
    bytes: int
    seconds: float
    drawn: str = ""


@dataclass(frozen=True)
class Count:
    """How often each sample of an epoch was read, over all ranks.

    Args:
        shares: The shares of the ranks.
        lost: Numbers of samples that were not read.
        repeated: Numbers of samples that were read more often than the epoch has them.
    """

    shares: tuple[Share, ...]
    lost: tuple[int, ...]
    repeated: tuple[int, ...]

    @property
    def exact(self) -> bool:
        """Whether every sample of the epoch was read exactly once; a repeat is a sample of its own."""
        return not self.lost and not self.repeated

    @property
    def rate(self) -> float:
        """Samples per second of all ranks, over the time of the slowest."""
        return sum(share.samples for share in self.shares) / max(share.seconds for share in self.shares)

    def sentence(self) -> str:
        """Return the result as a sentence."""
        who = f"{plural(len(self.shares), 'rank')} on {plural(len({s.node for s in self.shares}), 'node')}"
        if self.exact and self.shares[0].drawn:
            return f"{who} read the epoch exactly, {self.rate:,.0f} samples/s: {self.shares[0].drawn}"
        if self.exact:
            return (
                f"{who} read each of {self.shares[0].of:,} samples exactly once, {self.rate:,.0f} samples/s"
            )
        lost = f"{len(self.lost):,} did not come ({first_few(self.lost, len(self.lost))})"
        more = f"{len(self.repeated):,} came more than once ({first_few(self.repeated, len(self.repeated))})"
        return f"{who}: of {self.shares[0].of:,} samples {lost}, {more}"


def read_share(path: Path | Mapping[str, float], folder: Path, config: LoaderConfig) -> Share:
    """Read this rank's part of the first epoch and record its samples.

    Args:
        path: A packed file, or the URL of pushed shards; or the share of each set of a mixture.
        folder: A folder that all ranks see; gets the record of this one.
        config: How to read.

    Raises:
        OutputExistsError: It already has a record of this rank.
    """
    where = place(config)
    record = folder / f"rank-{where.rank:05}.json"
    if record.exists():
        raise OutputExistsError(
            f"{record} exists already", expected="an empty folder", next_step="Use a new folder for each run"
        )
    source, mix = (None, path) if isinstance(path, Mapping) else (path, None)
    loader = make_loader(source, config, mix=mix, fields={"data": Ragged()})
    seen: list[np.ndarray[Any, Any]] = []
    size, began = 0, perf_counter()
    for batch in loader:
        seen.append(batch["index"].numpy().copy())
        size += batch["data"].numel()
    seconds = perf_counter() - began
    numbers = np.concatenate(seen) if seen else np.empty(0, np.int64)
    share = Share(
        rank=where.rank,
        world_size=where.world_size,
        node=os.environ.get("SLURMD_NODENAME") or platform.node(),
        local_rank=where.local_rank,
        cpus=machine.usable_cpus(),
        samples=len(numbers),
        of=loader.plan.samples,
        bytes=size,
        seconds=seconds,
        drawn=loader.drawn,
    )
    folder.mkdir(parents=True, exist_ok=True)
    if loader.drawn and not where.rank:
        np.save(folder / _DRAWN, loader.plan.drawn(0))
    np.save(record.with_suffix(".npy"), numbers)
    write_json(record, asdict(share))
    return share


def count(folder: Path) -> Count:
    """Combine the records of all ranks.

    Args:
        folder: The folder that was given to `read_share`.

    Raises:
        FormatError: A rank's record is missing or of another run.
    """
    records = sorted(folder.glob("rank-*.json"))
    shares = tuple(Share(**json.loads(path.read_text(encoding="utf-8"))) for path in records)
    expected = shares[0].world_size if shares else 1
    if [share.rank for share in shares] != list(range(expected)) or len({share.of for share in shares}) != 1:
        raise FormatError(
            f"{folder} has records of ranks {', '.join(str(share.rank) for share in shares) or 'none'}",
            expected=f"all of 0 to {expected - 1}, of one data set",
            next_step="Find the failed rank in the log of the job, and run again into a new folder",
        )
    seen = [np.load(path.with_suffix(".npy"), allow_pickle=False) for path in records]
    times = np.bincount(np.concatenate(seen), minlength=shares[0].of)
    wanted = np.ones_like(times)
    if shares[0].drawn:
        rows = np.load(folder / _DRAWN, allow_pickle=False)
        wanted = np.bincount(rows, minlength=shares[0].of)
    lost, repeated = (tuple(np.flatnonzero(which).tolist()) for which in (times < wanted, times > wanted))
    return Count(shares, lost, repeated)
