"""How the samples of a packed file are dealt to streams, and whether their classes mix.

People pack class after class, since that is the order of their folders. A stream of such a set mixes what
its buffer holds; so it is dealt short ranges from all over the set, and the buffer holds dozens of them.

The trap: a thousand classes in order do not fit into a buffer. Batches then hold few classes, training is
worse, and nothing fails. So a loader compares its first epoch with a random order, and says so once.
Notebook 05 measures it.

Short, since what a store and a loader both ask about a set belongs to neither of them.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from smallfiles.loading.plan import EpochPlan, SampleOrder, through_buffer
from smallfiles.samples import Reader

RUN_BYTES = 4 << 20
"""Of a range; reads of some megabytes are nearly as fast as longer ones."""
RUN_SAMPLES = 32
"""Of a range at most, about: the usual buffer mixes 32 of them."""
RANGES = 3072
"""A set is dealt in so many or more, so that a hundred streams of a small one have some from all over."""
LANES = 20
"""Stretches that a stream reads side by side, where they are fetched in requests too long to jump about."""
_MIXED = 0.9
_BATCHES, _LOOKED_AT, _STEPS = 32, 2048, 1 << 17


def stream_fields(reader: Reader, buffer: int) -> dict[str, Any]:
    """The fields of an `EpochPlan` that say how this data set is dealt to streams.

    A compressed shard can be read from its start only, so it stays whole; so do the stretches of a store far
    away, whose `following` fetches ahead.

    Args:
        reader: The data set.
        buffer: Samples that a stream holds to shuffle them; with 1 the order inside a shard stays.
    """
    info, sizes = reader.info(), getattr(reader, "shard_sizes", None)
    fields = {"shards": sizes() if sizes else (), "buffer": buffer}
    if hasattr(reader, "following"):
        return fields | {"lanes": LANES}
    if buffer == 1 or info.get("compressed"):
        return fields
    mean = int(info.get("bytes", 0)) // max(len(reader), 1)
    return fields | {
        "run": max(1, min(RUN_SAMPLES, RUN_BYTES // max(mean, 1), len(reader) // RANGES)),
    }


def warn_if_unmixed(plan: EpochPlan, reader: Reader) -> None:
    """Say so if the batches of a stream hold fewer classes than those of a random order.

    Args:
        plan: Of a stream; nothing is said of another one, or for ranks but the first.
        reader: Tells the labels; few are looked at.
    """
    if not (plan.streams and plan.shuffle) or plan.rank or reader.target_kind != "label":
        return
    streamed = _some_batches(plan)
    rng = np.random.default_rng(plan.seed)
    at_random = [rng.choice(plan.samples, len(batch), replace=False) for batch in streamed]
    got, expected = _mean_classes(reader, streamed), _mean_classes(reader, at_random)
    if got >= _MIXED * expected:
        return
    held = f", or hold more than {plan.buffer:,} samples in the buffer" if _more_helps(plan) else ""
    warnings.warn(
        f"{reader.path}: a batch of {plan.batch} holds {got:.1f} classes in stream order, and {expected:.1f} "
        "in random order, because classes were packed one after the other, and training is worse for it. "
        f"Pack with --shuffle SEED{held}",
        stacklevel=3,
    )


def _some_batches(plan: EpochPlan) -> list[SampleOrder]:
    """Batches from all over the first epoch, each from a buffer that others went through before."""
    count = max(8, min(_BATCHES, _LOOKED_AT // plan.batch, _STEPS // plan.buffer))
    each, rng, found = -(-count // plan.streams), np.random.default_rng(plan.seed), []
    before, length = 2 * plan.buffer, 3 * plan.buffer + plan.batch
    for number in range(min(count, plan.streams)):
        reads = plan.reads(0, number)
        for start in np.linspace(0, max(0, len(reads) - length), each).astype(int).tolist():
            left = through_buffer(reads[start : start + length], plan.buffer, rng)
            found.append(left[min(before, max(0, len(left) - plan.batch)) :][: plan.batch])
    return [batch for batch in found if len(batch)]


def _mean_classes(reader: Reader, batches: list[SampleOrder]) -> float:
    return float(np.mean([len({reader.target(row) for row in batch.tolist()}) for batch in batches] or [0]))


def _more_helps(plan: EpochPlan) -> bool:
    return plan.buffer < plan.samples_per_rank()[0] // plan.streams
