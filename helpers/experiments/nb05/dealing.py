"""Who read what: webdataset's readers for several ranks and workers, in real worker processes.

The trap: every mistake in dealing shards looks like training that works. Nothing fails, the loss
falls; only some images come twice and others never. So count keys. Notebook 05 does.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from smallfiles.measure.table import aligned

Splitter: TypeAlias = Callable[..., Any] | None


@dataclass(frozen=True)
class Dealt:
    """What all ranks together read in one epoch.

    Args:
        way: How the shards were dealt out.
        ranks: Training processes.
        workers: Loader processes of each rank.
        shards: Number of shards.
        samples: Samples in the shards.
        keys: How often each key came.
        by_rank: Samples of each rank.
        idle: Workers that got no shard.
    """

    way: str
    ranks: int
    workers: int
    shards: int
    samples: int
    keys: Counter[str]
    by_rank: tuple[int, ...]
    idle: int

    @property
    def repeated(self) -> int:
        """Deliveries beyond the first of each sample."""
        return self.keys.total() - len(self.keys)

    @property
    def finding(self) -> str:
        """What came, and what unequal ranks mean for a training run, in words."""
        came = f"{len(self.keys):,} of {self.samples:,} samples came, {self.repeated:,} of them again"
        ahead = max(self.by_rank) - min(self.by_rank)
        if not ahead:
            return f"{came}. All ranks have equally many."
        return (
            f"{came}. One rank has **{ahead:,} samples more** than another. Ranks exchange gradients at "
            "each step, so it waits for a partner that has finished."
        )

    @property
    def missing(self) -> int:
        """Samples that nobody read."""
        return self.samples - len(self.keys)


def deal(
    way: str,
    shards: Sequence[Path],
    samples: int,
    *,
    ranks: int,
    workers: int,
    node: Splitter,
    worker: Splitter,
) -> Dealt:
    """Read one epoch with webdataset and a DataLoader for each rank, one rank after the other.

    Args:
        way: What to call it.
        shards: Tar files.
        samples: How many samples they hold.
        ranks: Training processes to play.
        workers: Loader processes of each rank.
        node: webdataset's `nodesplitter`; None gives every rank all shards.
        worker: webdataset's `workersplitter`; None gives every worker all shards of its rank.
    """
    urls = [str(path) for path in shards]
    keys: Counter[str] = Counter()
    by_rank, busy = [], 0
    for rank in range(ranks):
        with _as_rank(rank, ranks):
            found = _epoch(urls, workers, node, worker)
        keys.update(key for _, key in found)
        by_rank.append(len(found))
        busy += len({number for number, _ in found})
    return Dealt(way, ranks, workers, len(urls), samples, keys, tuple(by_rank), ranks * workers - busy)


def _epoch(urls: list[str], workers: int, node: Splitter, worker: Splitter) -> list[tuple[int, str]]:
    """(worker, key) of all that one rank reads."""
    import webdataset as wds
    from torch.utils.data import DataLoader

    dataset = wds.WebDataset(
        urls, shardshuffle=False, nodesplitter=node, workersplitter=worker, empty_check=False
    ).map(_who_and_what)
    return list(DataLoader(dataset, batch_size=None, num_workers=workers))


def _who_and_what(sample: dict[str, Any]) -> tuple[int, str]:
    from torch.utils.data import get_worker_info

    info = get_worker_info()
    return (info.id if info else 0), sample["__key__"]


@contextlib.contextmanager
def _as_rank(rank: int, ranks: int) -> Iterator[None]:
    """Set what torchrun sets, for webdataset to find."""
    new = {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
    before = {name: os.environ.get(name) for name in new}
    os.environ.update(new)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def table(rows: Sequence[Dealt]) -> str:
    """Rows as text: what came, what came again, what never came, who had nothing to do."""
    header = ("way", "ranks", "workers", "shards", "read", "again", "never", "idle workers", "samples a rank")
    return aligned(
        header,
        [
            (
                row.way,
                *(str(n) for n in (row.ranks, row.workers, row.shards)),
                *(f"{n:,}" for n in (row.keys.total(), row.repeated, row.missing, row.idle)),
                _span(row.by_rank),
            )
            for row in rows
        ],
    )


def _span(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low} to {high}"
