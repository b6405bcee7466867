"""Which samples a rank reads in an epoch, in which order, cut into batches: arithmetic, no files.

Every sample comes exactly once an epoch, for any numbers of ranks, workers and shards; samples are
left out only when asked, and counted. The order is a function of the seed and the epoch.

The trap: webdataset 1.0.2 shuffles the shards alike in each epoch unless it is told the epoch, and gives
whole shards to ranks, so that some have more batches than others and the last all-reduce waits for ever.
Notebooks 05 and 10 teach it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

from smallfiles.errors import UsageError

Order: TypeAlias = npt.NDArray[np.int64]
_SAMPLES, _SHARDS, _BUFFER = range(3)  # what a generator is for: equal seeds must not give equal numbers


class Earlier(NamedTuple):
    """What was read of an epoch before it went on with other numbers of ranks, streams or batches.

    Args:
        world_size: Ranks of then.
        batch: Samples in a batch.
        streams: Of each rank.
        batches: How many each rank had read.
    """

    world_size: int
    batch: int
    streams: int
    batches: int


@dataclass(frozen=True)
class EpochPlan:
    """The share of one rank in every epoch.

    Args:
        samples: How many the data set has.
        batch: How many go into a batch; the last may be smaller.
        seed: Of all orders; 0 or more.
        shuffle: A new order in each epoch; False keeps the stored one.
        rank: Number of this process.
        world_size: How many processes share the data set.
        drop_last: Leave out samples so that all batches of all ranks are full, and equally many.
        streams: 0 reads at random. Otherwise each rank reads so many long runs, from shard to shard.
        shards: Number of samples in each shard; empty cuts into runs of `buffer` samples.
        buffer: Samples that a stream holds to shuffle them; 1 keeps the order inside a shard.
        data: Which data set it is, in stored order (`dataset.name_of_data`); empty if not known.
        earlier: What was read of this epoch before; the plan is of the rest.

    Raises:
        UsageError: These numbers contradict each other.
    """

    samples: int
    batch: int = 64
    seed: int = 0
    shuffle: bool = True
    rank: int = 0
    world_size: int = 1
    drop_last: bool = False
    streams: int = 0
    shards: tuple[int, ...] = ()
    buffer: int = 1024
    data: str = ""
    earlier: tuple[Earlier, ...] = ()

    def __post_init__(self) -> None:
        for name, least in (("samples", 0), ("batch", 1), ("seed", 0), ("streams", 0), ("buffer", 1)):
            if getattr(self, name) < least:
                _refuse(f"{name} is {getattr(self, name)}", f"{least} or more", "Choose another number")
        if not 0 <= self.rank < self.world_size:
            _refuse(
                f"this is rank {self.rank} of {self.world_size}",
                "a rank from 0 to one less than the number of ranks",
                "Take both from smallfiles.machine.ranks",
            )
        if self.shards and sum(self.shards) != self.samples:
            _refuse(
                f"the shards hold {sum(self.shards):,} samples and the data set {self.samples:,}",
                "equal numbers",
                "Take both from the same reader",
            )

    def length(self) -> int:
        """Number of this rank's batches in every epoch."""
        return self.batches_per_rank()[self.rank]

    def batches_per_rank(self) -> tuple[int, ...]:
        """Number of batches of each rank; training must know where they differ.

        They differ where fewer samples than ranks remain for the last batch.
        """
        return tuple(-(-size // self.batch) for size in self.samples_per_rank())

    def samples_per_rank(self) -> tuple[int, ...]:
        """Number of samples of each rank, after dropping."""
        own = self._own_sizes()
        return (min(own) // self.batch * self.batch,) * self.world_size if self.drop_last else own

    def indices(self, epoch: int) -> Order:
        """Numbers of this rank's samples in the order of its batches."""
        if not self.streams:
            return self._share(self._order(epoch))
        batches = self.batches(epoch)
        return np.concatenate(batches) if batches else np.empty(0, np.int64)

    def batches(self, epoch: int) -> list[Order]:
        """The samples of each batch of this rank."""
        if not self.streams:
            return self._cut(self.indices(epoch))
        streams = [self._cut(self.stream(epoch, number)[1]) for number in range(self.streams)]
        return [streams[n % self.streams][n // self.streams] for n in range(self.length())]

    def stream(self, epoch: int, number: int) -> tuple[Order, Order]:
        """One long run of a rank: the order in which it is read, and that in which it is handed out.

        Batch n of a rank is batch n // streams of stream n % streams. A sample is handed out when at most
        `buffer` samples beyond those handed out before were read.

        Args:
            epoch: Number of the epoch.
            number: Number of the stream.

        Returns:
            Numbers of the same samples in both orders.
        """
        reads = self._run(epoch, number)
        if not self.shuffle or self.buffer == 1:
            return reads, reads
        rng = self._rng(epoch, _BUFFER, self.rank * self.streams + number)
        return reads, through_buffer(reads, self.buffer, rng)

    def depends_on(self) -> dict[str, Any]:
        """What decides which samples a batch number means, for a checkpoint; the rank does not count.

        Shards by their number and a digest of their sizes: as many can be cut elsewhere.
        """
        fields = asdict(self)
        sizes = np.array(fields.pop("shards"), "<i8")
        del fields["rank"], fields["earlier"]
        return fields | {"shards": f"{len(sizes)} of sizes {xxhash.xxh3_64_hexdigest(sizes.tobytes())}"}

    def rest(self, earlier: tuple[Earlier, ...]) -> EpochPlan:
        """What is left of an epoch of which so much was read on other grids of ranks, one after the other."""
        return replace(self, earlier=earlier)

    def _left(self) -> int:
        """Samples of this epoch that no earlier grid read."""
        left = self.samples
        for world_size, batch, _, batches in self.earlier:
            grid = replace(
                self, samples=left, batch=batch, rank=0, world_size=world_size, shards=(), earlier=()
            )
            left -= sum(min(size, batches * batch) for size in grid.samples_per_rank())
        return left

    def _own_sizes(self) -> tuple[int, ...]:
        least, more = divmod(self._left(), self.world_size)
        return tuple(least + (rank < more) for rank in range(self.world_size))

    def _order(self, epoch: int) -> Order:
        """All samples of all ranks in random order; all ranks read it from its start, so the end is left."""
        first = self.samples - self._left()
        if not self.shuffle:
            return np.arange(first, self.samples)
        return self._rng(epoch, _SAMPLES).permutation(self.samples)[first:]

    def _share(self, order: Order) -> Order:
        """This rank's part of an order: every n-th, so that the ranks' batches together follow it."""
        return order[self.rank :: self.world_size][: self.samples_per_rank()[self.rank]]

    def _run(self, epoch: int, number: int) -> Order:
        """What a stream reads: its part of this rank's part of the shards."""
        mine = self._rank_run(epoch)
        batches, size = -(-len(mine) // self.batch), len(mine)
        if not batches:
            return mine
        counts = [batches // self.streams + (n < batches % self.streams) for n in range(self.streams)]
        sizes = [count * self.batch for count in counts]
        sizes[(batches - 1) % self.streams] -= batches * self.batch - size  # it has the last, smaller batch
        start = sum(sizes[:number])
        return mine[start : start + sizes[number]]

    def _rank_run(self, epoch: int) -> Order:
        """What this rank reads, shard after shard."""
        own = self._own_sizes()
        start = sum(own[: self.rank])
        stop = start + self.samples_per_rank()[self.rank]
        if self.earlier:
            return _left_in_shards(replace(self, rank=0), epoch)[start:stop]
        return self._in_shards(epoch, start, stop)

    def _in_shards(self, epoch: int, start: int, stop: int) -> Order:
        borders = self._borders()
        return _joined(borders, self._shard_order(epoch, len(borders) - 1), start, stop)

    def _borders(self) -> Order:
        """First sample of each shard, and one after the last."""
        if self.shards:
            return np.cumsum([0, *self.shards])
        return np.unique(np.append(np.arange(0, self.samples, self.buffer), self.samples))

    def _shard_order(self, epoch: int, count: int) -> Order:
        return self._rng(epoch, _SHARDS).permutation(count) if self.shuffle else np.arange(count)

    def _rng(self, epoch: int, purpose: int, number: int = 0) -> np.random.Generator:
        return np.random.default_rng([self.seed, epoch, purpose, number])

    def _cut(self, order: Order) -> list[Order]:
        return [order[start : start + self.batch] for start in range(0, len(order), self.batch)]


@lru_cache(maxsize=1)
def _left_in_shards(plan: EpochPlan, epoch: int) -> Order:
    """What earlier grids left of the shards put one after the other."""
    if not plan.earlier:
        return plan._in_shards(epoch, 0, plan.samples)
    *earlier, (world_size, batch, streams, batches) = plan.earlier
    before = replace(plan, world_size=world_size, batch=batch, streams=streams).rest(tuple(earlier))
    left, read = _left_in_shards(before, epoch), np.zeros(plan.samples, bool)
    for rank in range(world_size):
        for numbers in replace(before, rank=rank).batches(epoch)[:batches]:
            read[numbers] = True
    return left[~read[left]]


def _joined(borders: Order, numbers: Order, start: int, stop: int) -> Order:
    """Samples `start` to `stop` of the shards `numbers` put one after the other."""
    ends = np.cumsum(borders[numbers + 1] - borders[numbers])
    found = []
    for number, end in zip(numbers.tolist(), ends.tolist(), strict=True):
        first, last = int(borders[number]), int(borders[number + 1])
        begin = end - (last - first)
        if begin < stop and end > start:
            found.append(np.arange(first + max(0, start - begin), last - max(0, end - stop)))
    return np.concatenate(found) if found else np.empty(0, np.int64)


def through_buffer(reads: Order, size: int, rng: np.random.Generator) -> Order:
    """The order in which samples leave a shuffle buffer that they enter in the order `reads`.

    Args:
        reads: Numbers of samples as they are read.
        size: Samples that the buffer holds; a random one leaves for each that comes.
        rng: Chooses.
    """
    size = min(size, len(reads))
    held, late = reads[:size].tolist(), reads[size:].tolist()
    places = rng.integers(0, max(size, 1), len(late)).tolist()
    left = []
    for place, came in zip(places, late, strict=True):
        left.append(held[place])
        held[place] = came
    return np.array(left + rng.permutation(held).tolist(), np.int64)


def _refuse(got: str, expected: str, next_step: str) -> NoReturn:
    raise UsageError(got, expected=expected, next_step=next_step)
