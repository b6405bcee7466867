"""How the samples of a packed file are distributed over streams, and whether their classes mix.

Sets are often packed class by class, the order of their folders. A stream of such a set mixes only the
samples in its buffer; so it gets short ranges from all over the set, and the buffer holds dozens of them.

The trap: a thousand classes in order do not fit into a buffer. Batches then hold few classes, and training
gets worse without any error. So a loader compares its first epoch with a random order, and warns once.
Notebook 05 measures it.

Short, since stores and loaders both use it, so it belongs to neither.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from smallfiles.loading.plan import EpochPlan, SampleOrder, through_buffer
from smallfiles.samples import Reader

RUN_BYTES = 4 << 20
"""Bytes of a range; reads of a few megabytes are nearly as fast as longer ones."""
RUN_SAMPLES = 32
"""Upper bound of the samples of a range, approximately: the default buffer mixes 32 ranges."""
RANGES = 3072
"""Least number of ranges of a set, so that even a hundred streams of a small set get some from all over."""
LANES = 20
"""Ranges that a stream reads concurrently, if requests are too long for short ranges."""
_MIXED = 0.9
_BATCHES, _LOOKED_AT, _STEPS = 32, 2048, 1 << 17


def stream_fields(reader: Reader, buffer: int) -> dict[str, Any]:
    """The fields of an `EpochPlan` that define how this data set is distributed over streams.

    The ranges of a remote store stay whole, since its `following` fetches ahead.

    Args:
        reader: The data set.
        buffer: Samples that a stream holds to shuffle them; with 1 each shard keeps its order.
    """
    info, sizes = reader.info(), getattr(reader, "shard_sizes", None)
    fields = {"shards": sizes() if sizes else (), "buffer": buffer}
    if hasattr(reader, "following"):
        return fields | {"lanes": LANES}
    if buffer == 1:
        return fields
    mean = int(info.get("bytes", 0)) // max(len(reader), 1)
    return fields | {"run": max(1, min(RUN_SAMPLES, RUN_BYTES // max(mean, 1), len(reader) // RANGES))}


def warn_if_unmixed(plan: EpochPlan, reader: Reader) -> None:
    """Warn if the batches of a stream hold fewer classes than those of a random order.

    Args:
        plan: Of a stream; there is no warning for other plans, or on ranks other than the first.
        reader: Gives the labels, of which a sample is read.
    """
    if not (plan.streams and plan.shuffle) or plan.rank or "label" not in reader.fields:
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
        "in random order, because the set was packed class by class, which makes training worse. "
        f"Pack with --shuffle SEED{held}",
        stacklevel=3,
    )


def _some_batches(plan: EpochPlan) -> list[SampleOrder]:
    """Batches from all over the first epoch, each from a buffer that is already mixed."""
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
    some = (reader.table(["label"], batch)["label"].unique() for batch in batches)
    return float(np.mean([*map(len, some)] or [0]))


def _more_helps(plan: EpochPlan) -> bool:
    return plan.buffer < plan.samples_per_rank()[0] // plan.streams
