"""How random is the order in which samples arrive?

Two questions to a stream of batches: how many classes does a batch hold, and how many of its pairs were
together in a batch of the epoch before. Both are also asked of an ideal shuffle, for nobody knows by
heart what the right answer is. Only the order is simulated: shards are drawn in random order, then
webdataset's own shuffle buffer runs over them.

The trap: a buffer mixes only what is in it at one time. A thousand images of one class stay a
thousand images of one class. Notebook 05 draws it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from smallfiles.errors import UsageError
from smallfiles.progress import Progress, bytes_text, progress

Order: TypeAlias = npt.NDArray[np.int64]
Epoch: TypeAlias = Callable[[int, int], Order]
Packing: TypeAlias = Literal["class order", "full shuffle"]
PACKINGS: tuple[Packing, ...] = ("class order", "full shuffle")
NEAR = 0.95
"""This share of the ideal counts as reached."""
FEW = 0.02
"""Fewer pairs than this that met again count as few."""


@dataclass(frozen=True)
class MixConfig:
    """A tenth of ImageNet in shards of about 100 MB, and the buffers to try.

    Args:
        samples: Images in the set.
        classes: Classes, all of one size.
        shard_samples: Images in a shard.
        batch: Images in a batch.
        buffers: Sizes of the shuffle buffer, in images; 1 is no buffer.
        repeats: Seeds to try.
    """

    samples: int = 128_000
    classes: int = 1_000
    shard_samples: int = 1_000
    batch: int = 256
    buffers: tuple[int, ...] = (1, 16, 256, 4_096, 65_536)
    repeats: int = 3

    def __post_init__(self) -> None:
        if self.samples < 2 * self.batch or self.samples < self.classes:
            raise UsageError(
                f"{self.samples} samples of {self.classes} classes in batches of {self.batch}",
                expected="two batches or more, and a sample of each class",
                next_step="Ask for more samples",
            )


@dataclass(frozen=True)
class Mix:
    """What one way of shuffling reached; one value for each seed.

    Args:
        packing: The order in the shards, or `ideal`.
        buffer: Size of the shuffle buffer, in images.
        classes: Different classes in a batch, mean over an epoch.
        met_again: Share of the pairs in a batch that were together in the epoch before too.
    """

    packing: Packing | Literal["ideal"]
    buffer: int
    classes: tuple[float, ...]
    met_again: tuple[float, ...]


@dataclass(frozen=True)
class Mixing:
    """All that was measured; `ideal` is a shuffle of the whole set in each epoch."""

    config: MixConfig
    ideal: Mix
    mixes: tuple[Mix, ...]

    def line(self, packing: Packing) -> list[Mix]:
        """The mixes of one packing, by growing buffer."""
        return [mix for mix in self.mixes if mix.packing == packing]

    @property
    def finding(self) -> str:
        """The sentence that the measurement supports."""
        ideal = median(self.ideal.classes)
        plain, best = self.line("full shuffle")[0], self.line("class order")[-1]
        enough = next((m for m in self.line("class order") if median(m.classes) >= NEAR * ideal), None)
        ordered = f"in class order {median(best.classes):.0f} with {_summary(best.buffer)}"
        if enough is not None:
            ordered = f"in class order that takes {_summary(enough.buffer)}"
        return (
            f"Shuffled at packing, a batch holds {median(plain.classes):.0f} classes with "
            f"{_summary(plain.buffer)}; {ordered} (ideal: {ideal:.0f})"
        )

    def advice(self, mean_bytes: float, workers: int) -> str:
        """The smallest buffer after a shuffle at packing that leaves few old neighbours, and its memory.

        Args:
            mean_bytes: Of an image.
            workers: Each has a buffer of its own.
        """
        line = self.line("full shuffle")
        chosen = next((mix for mix in line if median(mix.met_again) < FEW), line[-1])
        memory = bytes_text(chosen.buffer * mean_bytes * workers)
        return (
            f"With {_summary(chosen.buffer)}, **{median(chosen.met_again):.1%}** of the pairs had met in the "
            f"epoch before, without one {median(line[0].met_again):.0%}. In {workers} "
            f"workers such buffers hold **{memory}** of our images, out of the memory of the job."
        )

    @property
    def alt_text(self) -> str:
        """The figure in words."""
        told = [f"{packing}: {'; '.join(map(_in_words, self.line(packing)))}" for packing in PACKINGS]
        ideal = f"ideal: {median(self.ideal.classes):.0f} classes, {median(self.ideal.met_again):.1%}"
        return f"Two line charts over the size of the buffer. {self.finding}. {'. '.join([*told, ideal])}."


def measure_mixing(config: MixConfig | None = None) -> Mixing:
    """Run two epochs for each packing, buffer and seed, and for the ideal.

    Args:
        config: What to try.
    """
    config = config or MixConfig()
    ways = [(packing, buffer) for packing in PACKINGS for buffer in config.buffers]
    with progress((len(ways) + 1) * config.repeats, "mixing", unit="runs") as bar:
        mixes = [Mix(*way, *_measured(config, _reading(config, *way), bar)) for way in ways]
        ideal = Mix("ideal", config.samples, *_measured(config, _ideal(config), bar))
    return Mixing(config, ideal, tuple(mixes))


def _measured(config: MixConfig, epoch: Epoch, bar: Progress) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Both answers for each seed, about the second epoch."""
    labels = np.arange(config.samples, dtype=np.int64) * config.classes // config.samples
    classes, again = [], []
    for seed in range(config.repeats):
        first, second = epoch(seed, 0), epoch(seed, 1)
        classes.append(classes_in_a_batch(labels[second], config.batch))
        again.append(met_again(first, second, config.batch))
        bar.advance()
    return tuple(classes), tuple(again)


def _ideal(config: MixConfig) -> Epoch:
    return lambda seed, number: _generator(seed, number).permutation(config.samples)


def _reading(config: MixConfig, packing: Packing, buffer: int) -> Epoch:
    """The order in which an epoch of packed samples arrives, as a function of seed and epoch."""

    def epoch(seed: int, number: int) -> Order:
        stored = np.arange(config.samples, dtype=np.int64)
        if packing == "full shuffle":
            stored = np.random.default_rng(seed).permutation(stored)
        return arrival(stored, config.shard_samples, buffer, seed=(seed, number))

    return epoch


def arrival(stored: Order, shard_samples: int, buffer: int, *, seed: tuple[int, int]) -> Order:
    """The order in which samples leave webdataset's buffer when shards come in random order.

    Args:
        stored: Samples in packed order.
        shard_samples: Samples in a shard; the last may have fewer.
        buffer: Size of the shuffle buffer; 1 is none.
        seed: Seed and number of the epoch.
    """
    from webdataset.filters import shuffle

    starts = np.arange(0, len(stored), shard_samples)
    drawn = _generator(*seed).permutation(starts)
    stream = np.concatenate([stored[start : start + shard_samples] for start in drawn])
    if buffer == 1:
        return stream
    mixed = shuffle(buffer, rng=random.Random(f"{seed}"))(iter(stream.tolist()))
    return np.fromiter(mixed, np.int64, len(stored))


def _generator(seed: int, epoch: int) -> np.random.Generator:
    return np.random.default_rng((seed, epoch))


def _in_words(mix: Mix) -> str:
    return f"{_summary(mix.buffer)} {median(mix.classes):.0f} classes, {median(mix.met_again):.1%} met again"


def _summary(buffer: int) -> str:
    return "no buffer" if buffer == 1 else f"a buffer of {buffer:,}"


def classes_in_a_batch(labels: Sequence[int] | Order, batch: int) -> float:
    """Different labels in a batch, mean over all whole batches.

    Args:
        labels: In the order of arrival.
        batch: Samples in a batch.
    """
    whole = np.asarray(labels)[: len(labels) // batch * batch].reshape(-1, batch)
    ordered = np.sort(whole, axis=1)
    return float(1 + (np.diff(ordered, axis=1) != 0).sum(axis=1).mean())


def met_again(first: Order, second: Order, batch: int) -> float:
    """Of all pairs in the batches of one epoch, the share that were together in the epoch before.

    Args:
        first: Samples of the epoch before, each once, numbered from 0.
        second: Samples of this epoch, the same ones.
        batch: Samples in a batch.
    """
    batch_before = np.empty(len(first), np.int64)
    batch_before[first] = np.arange(len(first)) // batch
    now = np.arange(len(second)) // batch
    _, together = np.unique(now * len(first) + batch_before[second], return_counts=True)
    pairs = np.bincount(now) * (np.bincount(now) - 1)
    return float((together * (together - 1)).sum() / max(pairs.sum(), 1))
