"""Choose rows: shuffles, draws and picks as functions of a seed.

The trap: `random.shuffle` and `np.random.seed` share hidden state with every library. A separate generator
gives the same rows on each rank and each machine. Notebook 02 teaches it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from smallfiles.errors import UsageError, first_few

Rows = npt.NDArray[np.int64]


def generator(seed: int) -> np.random.Generator:
    """A separate generator; explicitly PCG64, since the default of NumPy may change."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise UsageError(
            f"the seed {seed!r}", expected="a whole number from 0 on", next_step="Choose another seed"
        )
    return np.random.Generator(np.random.PCG64(int(seed)))


def shuffled(count: int, seed: int | None) -> Rows:
    """All rows in an order that depends on the seed alone; None keeps the stored order."""
    if seed is None:
        return np.arange(count, dtype=np.int64)
    mixed: Rows = generator(seed).permutation(count).astype(np.int64, copy=False)
    return mixed


def checked_rows(indices: Sequence[int] | Rows, count: int) -> Rows:
    """Rows as an array, each within the table and none twice."""
    rows = np.asarray(indices if len(indices) else [], dtype=None if len(indices) else np.int64)
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        raise UsageError(
            f"rows of type {rows.dtype}", expected="a list of row numbers", next_step="Give whole numbers"
        )
    outside = rows[(rows < 0) | (rows >= count)]
    if len(outside):
        raise UsageError(
            f"{len(outside):,} row numbers are outside: {first_few(outside, len(outside))}",
            expected=f"numbers from 0 to {count - 1}",
            next_step="Check the length of the manifest",
        )
    if len(np.unique(rows)) != len(rows):
        raise UsageError(
            "a row number is given twice", expected="each row once", next_step="Remove the repeats"
        )
    return np.asarray(rows, np.int64)


def rows_of_rank(count: int, rank: int, world_size: int) -> Rows:
    """Every `world_size`-th row from `rank` on."""
    if not 0 <= rank < world_size:
        raise UsageError(
            f"rank {rank} of {world_size}",
            expected="a rank from 0 to one less than the number of processes",
            next_step="Take both from SLURM_PROCID and SLURM_NTASKS",
        )
    return np.arange(rank, count, world_size, dtype=np.int64)


def drawn_rows(count: int, fraction: float, seed: int, labels: Rows | None) -> npt.NDArray[np.bool_]:
    """Mark `fraction` of the rows, of each label where labels are given.

    The total is the rounded share of the whole; the shares of classes are rounded by largest remainder, so
    that small classes are not all left out.
    """
    if not 0 <= fraction <= 1:
        raise UsageError(
            f"a fraction of {fraction}", expected="a share from 0 to 1", next_step="Give 0.1 for a tenth"
        )
    mixed = shuffled(count, seed)
    drawn = np.zeros(count, dtype=np.bool_)
    if labels is None:
        drawn[mixed[: round(fraction * count)]] = True
        return drawn
    _, group, members = np.unique(labels, return_inverse=True, return_counts=True)
    by_group = mixed[np.argsort(group[mixed], kind="stable")]
    first = np.repeat(np.cumsum(members) - members, members)
    place = np.arange(count) - first
    drawn[by_group[place < np.repeat(_quotas(members, fraction), members)]] = True
    return drawn


def _quotas(members: Rows, fraction: float) -> Rows:
    share = members * fraction
    quotas: Rows = np.floor(share).astype(np.int64)
    missing = round(fraction * int(members.sum())) - int(quotas.sum())
    quotas[np.argsort(quotas - share, kind="stable")[:missing]] += 1
    return quotas
