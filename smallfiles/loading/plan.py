"""Which samples a rank reads in an epoch, in which order, in which batches: arithmetic, no files.

Every sample comes exactly once per epoch, for any numbers of ranks, workers and shards; samples are left
out only on request, and counted. The order is a function of the seed and the epoch. Sets are often packed
class by class, the order of their folders. So a stream gets short ranges from all over the data set, and its
buffer holds dozens of them.

The traps: webdataset 1.0.2 shuffles the shards the same way in each epoch unless it is given the epoch, and
assigns whole shards to ranks, so that some have more batches than others and the last all-reduce waits
forever. And a thousand classes in order do not fit into a buffer: batches then hold few classes, and training
gets worse without any error. So a loader compares its first epoch with a random order, and warns once.
Notebooks 05 and 10 teach it.
"""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

from smallfiles.errors import UsageError, no_samples
from smallfiles.progress import plural
from smallfiles.samples import Reader

SampleOrder: TypeAlias = npt.NDArray[np.int64]
_SAMPLES, _SHARDS, _BUFFER, _LANES, _DRAWN = range(
    5
)  # purposes of generators: equal seeds, different numbers
_LEAST = (("samples", 0), ("batch", 1), ("seed", 0), ("streams", 0), ("run", 0), ("lanes", 1), ("buffer", 1))

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


class Earlier(NamedTuple):
    """A part of an epoch that was read with other numbers of ranks, streams or samples per batch.

    Args:
        world_size: Number of ranks.
        batch: Samples in a batch.
        streams: Streams of each rank.
        batches: How many batches each rank had read.
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
        batch: Samples in a batch; the last may be smaller.
        seed: Of all orders; 0 or more.
        shuffle: A new order in each epoch; False keeps the stored order.
        rank: Number of this process.
        world_size: How many processes share the data set.
        drop_last: Leave out samples so that all ranks have equally many batches, all full.
        streams: How many series of ranges each rank reads; 0 reads at random.
        shards: Number of samples in each shard; empty means a single one.
        run: Approximate number of samples in a range of a shard; 0 takes whole shards, or `buffer` samples.
        lanes: How many ranges a stream reads concurrently; 1 reads each to its end.
        buffer: Samples that a stream holds to shuffle them; 1 keeps the order inside a range.
        data: Identifies the data set and its stored order (`dataset.name_of_data`); empty if unknown.
        earlier: Parts of this epoch that were read before; the plan is of the rest.
        parts: Of consecutive samples: how many there are, and how many of them each epoch has; empty means
            that an epoch has all samples.

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
    run: int = 0
    lanes: int = 1
    buffer: int = 1024
    data: str = ""
    earlier: tuple[Earlier, ...] = ()
    parts: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        for name, least in _LEAST:
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

    @property
    def epoch_samples(self) -> int:
        """Number of samples of all ranks in every epoch."""
        return sum(count for _, count in self.parts) if self.parts else self.samples

    def length(self) -> int:
        """Return the number of this rank's batches in every epoch."""
        return self.batches_per_rank()[self.rank]

    def batches_per_rank(self) -> tuple[int, ...]:
        """Return the number of batches of each rank. Training must know whether they differ.

        They differ if fewer samples than ranks remain for the last batch.
        """
        return tuple(-(-size // self.batch) for size in self.samples_per_rank())

    def samples_per_rank(self) -> tuple[int, ...]:
        """Return the number of samples of each rank, without those that `drop_last` drops."""
        own = self._own_sizes()
        return (min(own) // self.batch * self.batch,) * self.world_size if self.drop_last else own

    def check_batches(self, data: object) -> None:
        """Refuse an epoch in which a rank has no batch: nothing is trained, and the other ranks wait for it.

        Args:
            data: The packed set; its path is in the message.

        Raises:
            FormatError: The data set holds no samples.
            UsageError: It has fewer samples than ranks, or than a batch that must be full.
        """
        if self.epoch_samples and min(self.batches_per_rank()):
            return
        path = getattr(data, "path", data)
        if not self.samples:
            raise no_samples(path)
        held = f"{path} has {plural(self.epoch_samples, 'sample')} for {plural(self.world_size, 'rank')}"
        if self.epoch_samples < self.world_size:
            cure = f"Start at most {plural(self.epoch_samples, 'rank')}"
            got = "so some ranks have no batch"
        else:
            got = f"fewer than a full batch of {self.batch} for each, and drop_last leaves out all others"
            cure = "Choose a smaller batch (--batch), or keep the last one (--no-drop-last)"
        _refuse(f"{held}, {got}", "at least one batch for each rank in an epoch", cure)

    def drawn(self, epoch: int) -> SampleOrder:
        """Return the numbers of all ranks' samples in an epoch, ascending unless they are read in streams."""
        if self.streams:
            return self.rest(())._dealt(epoch, 0, self.epoch_samples)
        numbers = np.arange(self.samples)
        return _drawn(numbers, numbers + 1, self.parts, self.seed, epoch, self.shuffle)[0]

    def indices(self, epoch: int) -> SampleOrder:
        """Return the numbers of this rank's samples in the order of its batches."""
        if not self.streams:
            return self._share(self._order(epoch))
        batches = self.batches(epoch)
        return np.concatenate(batches) if batches else np.empty(0, np.int64)

    def batches(self, epoch: int) -> list[SampleOrder]:
        """Return the samples of each batch of this rank."""
        if not self.streams:
            return self._cut(self.indices(epoch))
        streams = [self._cut(self.stream(epoch, number)[1]) for number in range(self.streams)]
        return [streams[n % self.streams][n // self.streams] for n in range(self.length())]

    def stream(self, epoch: int, number: int) -> tuple[SampleOrder, SampleOrder]:
        """Return the order in which a stream reads its samples, and the order in which they leave the buffer.

        Batch n of a rank is batch n // streams of stream n % streams. At most `buffer` samples have been read
        and have not left yet.

        Args:
            epoch: Number of the epoch.
            number: Number of the stream.

        Returns:
            Numbers of the same samples in both orders.
        """
        reads = self.reads(epoch, number)
        if not self._mixes():
            return reads, reads
        rng = self._rng(epoch, _BUFFER, self.rank * self.streams + number)
        return reads, through_buffer(reads, self.buffer, rng)

    def reads(self, epoch: int, number: int) -> SampleOrder:
        """Return the order in which a stream reads its samples."""
        mine = self._dealt(epoch, *self._share_of(number))
        if self.lanes == 1 or not self._mixes() or not len(mine):
            return mine
        starts, _ = _cut(self.samples, self.shards, self._range())
        borders = np.flatnonzero(np.diff(np.searchsorted(starts, mine, "right"))) + 1
        rng = self._rng(epoch, _LANES, self.rank * self.streams + number)
        return side_by_side(np.split(mine, borders), self.lanes, rng)

    def depends_on(self) -> dict[str, Any]:
        """Return the settings that determine which samples a batch number means, for a checkpoint.

        The rank is not among them. Shards are described by their number and a digest of their sizes, since
        the same number of shards can have other borders.
        """
        fields = asdict(self)
        sizes = np.array(fields.pop("shards"), "<i8")
        del fields["rank"], fields["earlier"]
        if parts := fields.pop("parts"):  # earlier versions did not write them
            fields["parts"] = ", ".join(f"{count} of {size}" for size, count in parts)
        return fields | {"shards": f"{len(sizes)} of sizes {xxhash.xxh3_64_hexdigest(sizes.tobytes())}"}

    def rest(self, earlier: tuple[Earlier, ...]) -> EpochPlan:
        """Return the plan of the rest of an epoch, after these parts were read one after the other."""
        return replace(self, earlier=earlier)

    def _remaining_count(self) -> int:
        """Return the number of samples of this epoch that no earlier part has read."""
        left = self.epoch_samples
        for world_size, batch, _, batches in self.earlier:
            grid = EpochPlan(left, batch, world_size=world_size, drop_last=self.drop_last)
            left -= sum(min(size, batches * batch) for size in grid.samples_per_rank())
        return left

    def _own_sizes(self) -> tuple[int, ...]:
        least, more = divmod(self._remaining_count(), self.world_size)
        return tuple(least + (rank < more) for rank in range(self.world_size))

    def _order(self, epoch: int) -> SampleOrder:
        """Return the order of all ranks together, without the start that earlier parts have read."""
        first = self.epoch_samples - self._remaining_count()
        order = self.drawn(epoch)
        return (self._rng(epoch, _SAMPLES).permutation(order) if self.shuffle else order)[first:]

    def _share(self, order: SampleOrder) -> SampleOrder:
        """Return this rank's part of an order: every n-th sample for n ranks.

        So the batches of all ranks together follow the order.
        """
        return order[self.rank :: self.world_size][: self.samples_per_rank()[self.rank]]

    def _share_of(self, number: int) -> tuple[int, int]:
        """First and last position of a stream in the joined ranges: whole batches, except the rank's last."""
        size = self.samples_per_rank()[self.rank]
        least, more = divmod(-(-size // self.batch), self.streams)
        sizes = [(least + (n < more)) * self.batch for n in range(self.streams)]
        sizes[more - 1] -= sum(sizes) - size  # this stream has the last, smaller batch
        start = sum(self._own_sizes()[: self.rank]) + sum(sizes[:number])
        return start, start + sizes[number]

    def _dealt(self, epoch: int, start: int, stop: int) -> SampleOrder:
        """Return samples `start` to `stop` of all joined ranges, without the samples read before."""
        if self.earlier:
            return _remaining(replace(self, rank=0), epoch)[start:stop]
        shards, run = self.shards, self._range()
        found = _ranges(self.samples, shards, run, self.parts, self.seed, epoch, self.shuffle)
        return _joined(*found, start, stop)

    def _range(self) -> int:
        return self.run or (0 if self.shards else self.buffer)

    def _mixes(self) -> bool:
        return self.shuffle and self.buffer > 1

    def _rng(self, epoch: int, purpose: int, number: int = 0) -> np.random.Generator:
        return _generator(self.seed, epoch, purpose, number)

    def _cut(self, order: SampleOrder) -> list[SampleOrder]:
        return [order[start : start + self.batch] for start in range(0, len(order), self.batch)]


def _generator(seed: int, epoch: int, purpose: int, number: int = 0) -> np.random.Generator:
    return np.random.default_rng([seed, epoch, purpose, number])


@lru_cache(maxsize=1)
def _remaining(plan: EpochPlan, epoch: int) -> SampleOrder:
    """Return the samples of all joined ranges, except those that earlier parts of the epoch have read."""
    if not plan.earlier:
        return plan._dealt(epoch, 0, plan.epoch_samples)
    *earlier, (world_size, batch, streams, batches) = plan.earlier
    before = replace(plan, world_size=world_size, batch=batch, streams=streams).rest(tuple(earlier))
    left, read = _remaining(before, epoch), np.zeros(plan.samples, bool)
    for rank in range(world_size):
        for numbers in replace(before, rank=rank).batches(epoch)[:batches]:
            read[numbers] = True
    return left[~read[left]]


def _cut(samples: int, shards: tuple[int, ...], run: int) -> tuple[SampleOrder, SampleOrder]:
    """First sample of each range and one after its last, in stored order; a `run` of 0 keeps shards whole."""
    sizes = np.array(shards or (samples,), np.int64)
    counts = np.rint(sizes / run).astype(np.int64) if run else np.ones_like(sizes)
    counts = np.where(sizes > 0, np.maximum(counts, 1), 0)
    shard = np.repeat(np.arange(len(sizes)), counts)
    first, size, count = (np.cumsum(sizes) - sizes)[shard], sizes[shard], counts[shard]
    number = np.arange(len(shard)) - (np.cumsum(counts) - counts)[shard]
    return first + size * number // count, first + size * (number + 1) // count


def _drawn(
    starts: SampleOrder,
    stops: SampleOrder,
    parts: tuple[tuple[int, int], ...],
    seed: int,
    epoch: int,
    shuffle: bool,
) -> tuple[SampleOrder, SampleOrder]:
    """Choose the ranges of an epoch in stored order: all of them, or the next samples of each part.

    In a part of 10 samples of which an epoch has 3, the first three epochs share no sample. Then the part
    gets a new order.
    """
    found, ends = [], np.cumsum([0, *(size for size, _ in parts)])
    for number, (size, count) in enumerate(parts):
        first, last = np.searchsorted(starts, ends[number : number + 2]).tolist()
        mine, until = starts[first:last], stops[first:last]
        if count < size:
            turn, place = divmod(epoch, size // count)
            if shuffle:
                order = _generator(seed, turn, _DRAWN, number).permutation(len(mine))
                mine, until = mine[order], until[order]
            begin, end = count * place, count * (place + 1)
            sums = np.cumsum(until - mine)
            first, last = np.searchsorted(sums, (begin, end - 1), "right").tolist()
            mine, until = mine[first : last + 1].copy(), until[first : last + 1].copy()
            mine[0] = until[0] - (sums[first] - begin)
            until[-1] -= sums[last] - end
            order = np.argsort(mine)
            mine, until = mine[order], until[order]
        found.append((mine, until))
    if not found:
        return starts, stops
    return np.concatenate([mine for mine, _ in found]), np.concatenate([until for _, until in found])


@lru_cache(maxsize=2)
def _ranges(
    samples: int,
    shards: tuple[int, ...],
    run: int,
    parts: tuple[tuple[int, int], ...],
    seed: int,
    epoch: int,
    shuffle: bool,
) -> tuple[SampleOrder, SampleOrder]:
    """First sample of each range in the order of the epoch, and the number of samples up to its end."""
    starts, stops = _drawn(*_cut(samples, shards, run), parts, seed, epoch, shuffle)
    if shuffle:
        order = spread(len(starts), _generator(seed, epoch, _SHARDS))
        starts, stops = starts[order], stops[order]
    return starts, np.cumsum(stops - starts)


def _joined(starts: SampleOrder, ends: SampleOrder, start: int, stop: int) -> SampleOrder:
    """Return samples `start` to `stop` of joined ranges."""
    if start >= stop:
        return np.empty(0, np.int64)
    first, last = np.searchsorted(ends, (start, stop - 1), "right").tolist()
    begins = np.append(ends[first - 1] if first else 0, ends[first:last])
    sizes = ends[first : last + 1] - begins
    joined = np.repeat(starts[first : last + 1] - begins, sizes)
    joined += np.arange(begins[0], ends[last])
    return joined[start - begins[0] : stop - begins[0]]


def spread(count: int, rng: np.random.Generator) -> SampleOrder:
    """Shuffle the numbers below `count` so that a few consecutive numbers come from all parts of the range.

    The numbers alternate between the two halves of the range. Within each half, they alternate between its
    halves, and so on. A plain random order needs 37 numbers on average to visit each of twelve parts.

    Args:
        count: How many numbers.
        rng: Source of randomness.
    """
    numbers, bits = np.arange(count), max(count - 1, 0).bit_length()
    places = np.zeros(count, np.int64)
    for level in range(bits):
        swapped = rng.integers(0, 2, 1 << level)[numbers >> (bits - level)]
        places |= ((numbers >> (bits - level - 1) & 1) ^ swapped) << level
    return np.argsort(places)


def side_by_side(ranges: list[SampleOrder], lanes: int, rng: np.random.Generator) -> SampleOrder:
    """Return the order in which samples arrive when several ranges are read concurrently.

    Each range has its own speed. Otherwise all lanes would reach the end of their ranges at the same time,
    and wait until the next ranges are fetched.

    Args:
        ranges: The samples of each range, in the order in which the ranges begin.
        lanes: How many ranges are read concurrently.
        rng: Chooses the speeds.
    """
    times, ends = rng.uniform(0.8, 1.25, len(ranges)) * [len(each) for each in ranges], np.empty(len(ranges))
    stored = np.argsort([each[0] for each in ranges])
    for lane in np.array_split(stored, min(lanes, len(ranges))):
        lane.sort()
        times[lane] /= times[lane].sum()  # all lanes end together
        ends[lane] = np.cumsum(times[lane])
    moments = [
        end - time * (np.arange(len(each), 0, -1) - 0.5) / len(each)
        for each, time, end in zip(ranges, times, ends, strict=True)
    ]
    return np.concatenate(ranges)[np.argsort(np.concatenate(moments), kind="stable")]


def through_buffer(reads: SampleOrder, size: int, rng: np.random.Generator) -> SampleOrder:
    """Return the order in which samples leave a shuffle buffer that they enter in the order `reads`.

    Args:
        reads: Numbers of samples as they are read.
        size: Capacity of the buffer in samples. For each sample that enters, a random sample leaves.
        rng: Source of randomness.
    """
    size = min(size, len(reads))
    held, late = reads[:size].tolist(), reads[size:].tolist()
    places = rng.integers(0, max(size, 1), len(late)).tolist()
    left = []
    for place, entering in zip(places, late, strict=True):
        left.append(held[place])
        held[place] = entering
    return np.array(left + rng.permutation(held).tolist(), np.int64)


def _refuse(got: str, expected: str, next_step: str) -> NoReturn:
    raise UsageError(got, expected=expected, next_step=next_step)


def stream_fields(reader: Reader, buffer: int) -> dict[str, Any]:
    """Return the fields of an `EpochPlan` that define how this data set is distributed over streams.

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
    """Return batches from all over the first epoch, each from a buffer that is already mixed."""
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
