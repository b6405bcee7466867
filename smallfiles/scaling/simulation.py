"""An epoch of a synchronous training: every worker of every GPU makes batches, all GPUs step together.

GPUs take batches in order, as from a DataLoader: for each one all wait for the last of them, and step. A
worker begins its next batch when it has room for it. A batch visits each queue of the storage once; service
times of metadata vary like sums of independent operations.

Each queue serves in the order of arrival. Time advances in short stretches, in which the requests of all
workers are one array, so that forty thousand GPUs are simulated in seconds: the departures of one server are
a running maximum, D(i) = max(A(i), D(i-1)) + S(i) (Lindley, 1952).

The traps: all ranks step together, so one late batch among forty thousand delays all of them: with more
nodes the mean wait approaches the worst one. And queues build up below 100 %: at 90 % use the mean wait is
nine times the service time (M/M/1), so an average rate below capacity does not prove that there is no wait.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from smallfiles.errors import UsageError
from smallfiles.scaling import Storage, Way, Work

Times: TypeAlias = npt.NDArray[np.float64]
_ROUNDS, _BATCHES = 12, 20_000
"""Minimum of both, or the whole epoch: few workers need many rounds to average out chance."""

_STRETCHES = 8
"""In each stretch, one in so many workers gets at least one queue further; of eight or fewer, one does."""

_BLOCK_BYTES, _FANOUT = 8 << 20, 8
"""Of `sbcast`: bytes per message, and to how many nodes each node forwards it."""

_LEVELS = 5
"""States of a page cache that are simulated, from its first use to the last."""

_FULL = 0.9
"""A station with more use than this delays the training."""

_CURES = {
    "metadata": "pack the files, so that samples need no open each",
    "targets": "spread the file over more targets, read in larger pieces, or stage it",
    "network": "stage it once, so that only the first epoch crosses the network",
    "own copy": "keep the copy in memory instead of on a disk",
    "workers": "give each GPU more workers or a faster decoder",
    "GPUs": "nothing",
}


@dataclass
class Station:
    """Several equal servers with one queue.

    Args:
        servers: Number of servers.
    """

    servers: int
    busy_s: float = 0.0
    _free: list[float] = field(default_factory=list)

    def serve(self, arrivals: Times, service: Times) -> Times:
        """When each request leaves.

        Args:
            arrivals: Arrival time of each in seconds, in any order.
            service: Seconds of service of each.
        """
        self._free = self._free or [0.0] * self.servers
        free, leave = self._free, np.empty_like(arrivals)
        order = np.argsort(arrivals, kind="stable")
        for place, arrival, seconds in zip(
            order.tolist(), arrivals[order].tolist(), service[order].tolist(), strict=True
        ):
            done = (arrival if arrival > free[0] else free[0]) + seconds
            heapq.heapreplace(free, done)
            leave[place] = done
        self.busy_s += float(service.sum())
        return leave


@dataclass
class Stations:
    """Many servers with one queue each: storage targets, or the networks of nodes.

    Args:
        count: Number of servers.
    """

    count: int
    busy_s: float = 0.0
    _free: Times | None = None

    def serve(self, arrivals: Times, service: Times, which: npt.NDArray[np.int64]) -> Times:
        """When each request leaves.

        Args:
            arrivals: Arrival time of each in seconds, in any order.
            service: Seconds of service of each.
            which: The server of each request.
        """
        free = np.zeros(self.count) if self._free is None else self._free
        order = np.lexsort((arrivals, which))
        server, wait_from = which[order], np.maximum(arrivals, free[which])[order]
        until = np.cumsum(service[order])
        before = until - service[order]
        # An offset per server keeps their times apart, so that one running maximum serves all of them.
        apart = server * (float(wait_from.max() - wait_from.min()) + float(until[-1]) + 1.0)
        departed = until + np.maximum.accumulate(wait_from + apart - before) - apart
        leave = np.empty_like(arrivals)
        leave[order] = departed
        last = np.append(server[1:] != server[:-1], True)
        free = free.copy()
        free[server[last]] = departed[last]
        self._free = free
        self.busy_s += float(service.sum())
        return leave


@dataclass(frozen=True)
class Forecast:
    """The simulated epoch.

    Args:
        nodes: Number of nodes.
        epoch_s: Seconds of an epoch after the first, on average.
        first_epoch_s: Seconds of the first, staging included.
        shared_bytes: Bytes that all nodes read from shared storage in the first.
        waiting: Share of the time in which GPUs wait for data.
        use: Share of the time in which each part is busy.
    """

    nodes: int
    epoch_s: float
    first_epoch_s: float
    shared_bytes: float
    waiting: float
    use: dict[str, float]

    @property
    def limit(self) -> str:
        """The saturated part; the GPUs, if they hardly wait."""
        return "GPUs" if self.waiting < 1 - _FULL else max(self.use, key=self.use.__getitem__)

    @property
    def change_first(self) -> str:
        """The most effective change."""
        return _CURES[self.limit]


class _Queues:
    """The queues of a batch; `missed` is the share of bytes that no page cache has."""

    def __init__(self, work: Work, storage: Storage, way: Way, nodes: int, missed: float) -> None:
        self._work, self._storage, self._way, self._missed = work, storage, way, missed
        self._random = np.random.default_rng(0)
        self._spread = min(storage.stripes, storage.targets) if way.striped else storage.targets
        self._metadata = Station(min(storage.metadata_threads, nodes * work.gpus * work.workers))
        self._targets, self._network, self._own = Stations(self._spread), Stations(nodes), Stations(nodes)
        self._bytes = missed * work.batch * work.sample_bytes
        self._requests = missed * work.batch * way.requests
        asking = (self._ask,) if way.operations else ()
        self.in_order = (self._copy,) if way.staged else (*asking, self._read, self._send)
        """The departures from each queue, for arrivals and nodes."""

    def _ask(self, arrivals: Times, node: npt.NDArray[np.int64]) -> Times:
        """When the metadata operations of each batch are done; their times add up."""
        whole, rest = divmod(self._way.operations * self._work.batch, 1)
        count = whole + (self._random.random(len(arrivals)) < rest)
        asking, each_s = count > 0, self._storage.metadata_threads / self._storage.metadata_ops_s
        done = arrivals + count * self._storage.latency_s
        if asking.any():
            service = each_s * self._random.gamma(count[asking])
            done[asking] += self._metadata.serve(arrivals[asking], service) - arrivals[asking]
        return done

    def _read(self, arrivals: Times, node: npt.NDArray[np.int64]) -> Times:
        reading_s = self._bytes / self._storage.target_bytes_s + self._requests * self._storage.request_s
        which = self._random.integers(self._spread, size=len(arrivals))
        return self._targets.serve(arrivals, np.full(len(arrivals), reading_s), which)

    def _send(self, arrivals: Times, node: npt.NDArray[np.int64]) -> Times:
        sending_s = self._bytes / self._storage.node_bytes_s
        return self._network.serve(arrivals, np.full(len(arrivals), sending_s), node)

    def _copy(self, arrivals: Times, node: npt.NDArray[np.int64]) -> Times:
        copying_s = self._bytes / self._storage.local_bytes_s
        return self._own.serve(arrivals, np.full(len(arrivals), copying_s), node)

    def alone_s(self) -> float:
        """Return the seconds per batch without any wait."""
        work, storage, way, size = self._work, self._storage, self._way, self._work.sample_bytes
        if way.staged:
            return work.batch * (size / storage.local_bytes_s + work.decode_s)
        operation_s = storage.latency_s + storage.metadata_threads / storage.metadata_ops_s
        reading_s = size / storage.target_bytes_s + way.requests * storage.request_s
        moving_s = self._missed * (reading_s + size / storage.node_bytes_s)
        return work.batch * (way.operations * operation_s + moving_s + work.decode_s)

    def use(self, seconds: float) -> dict[str, float]:
        """Return the share of time in which each part was busy."""
        threads = self._storage.metadata_threads
        parts = {"metadata": self._metadata.busy_s / threads, "targets": self._targets.busy_s / self._spread}
        for name, stations in (("network", self._network), ("own copy", self._own)):
            parts[name] = stations.busy_s / stations.count
        return {name: busy_s / seconds for name, busy_s in parts.items()}


class _Makers:
    """The workers of all GPUs: each makes every so-many-th batch of its GPU, one after the other."""

    def __init__(self, work: Work, nodes: int, workers: int, queues: _Queues) -> None:
        count = nodes * work.gpus * workers
        self._workers, self._queues, self._decode_s = workers, queues, work.batch * work.decode_s
        self._node = np.repeat(np.arange(nodes), work.gpus * workers)
        self._step = np.tile(np.arange(workers), nodes * work.gpus)  # of the batch that each makes
        self._queue, self._when = np.zeros(count, np.int64), np.zeros(count)  # the next one, and from when on
        self._fewest = max(1, count // _STRETCHES)

    def go_on(self, room: Times) -> tuple[npt.NDArray[np.int64], Times]:
        """Let workers continue for a stretch of time, queue by queue.

        So each queue serves in the order of arrival. No batch takes less time than its decoding, and the
        stretch is that short. So no worker ends a batch and begins another batch within it.

        Args:
            room: The time from which a batch of each step can begin; infinite if it is not known yet.

        Returns:
            The step of each batch that was made, and when it was ready.
        """
        when = np.where(self._queue == 0, np.maximum(self._when, room[self._step]), self._when)
        until = max(np.partition(when, self._fewest - 1)[self._fewest - 1], when.min() + self._decode_s)
        for number, serve in enumerate(self._queues.in_order):
            now = np.flatnonzero((self._queue == number) & (when <= until) & (when < np.inf))
            if len(now):
                when[now] = serve(when[now], self._node[now])
                self._queue[now] = number + 1
        made = np.flatnonzero(self._queue == len(self._queues.in_order))
        when[made] += self._decode_s
        self._when = np.where(when < np.inf, when, self._when)
        self._queue[made] = 0
        steps = self._step[made]
        self._step[made] += self._workers
        return steps, when[made]


def simulate(work: Work, storage: Storage, way: Way, nodes: int, epochs: int = 2) -> Forecast:
    """Simulate an epoch; equal arguments give equal forecasts.

    Args:
        work: The training.
        storage: Its storage.
        way: How it reads.
        nodes: Number of nodes, at least 1.
        epochs: Of the training, in which page caches fill; without them all epochs are equal.

    Raises:
        UsageError: There are no nodes.
    """
    if nodes < 1:
        raise UsageError(f"nodes is {nodes}", expected="1 or more", next_step="Choose another number")
    first_s, waiting, use = _epoch(work, storage, way, nodes, 1.0)
    everything = float(work.samples * work.sample_bytes)
    if way.staged:
        readers = 1 if way.broadcast else nodes
        staging_s = _reading_s(everything, storage, readers)
        if way.broadcast:
            staging_s += _sending_s(everything, storage, nodes)
        return Forecast(nodes, first_s, first_s + staging_s, readers * everything, waiting, use)
    # Orders are drawn anew in each epoch: after k of them a node has read 1 - (1 - 1/nodes)^k of the set.
    read = 1 - (1 - 1 / nodes) ** np.arange(1, epochs)
    kept = np.minimum(read, storage.cache_bytes / everything)
    if not kept.any():
        return Forecast(nodes, first_s, first_s, everything, waiting, use)
    shares = np.unique(np.linspace(kept[0], kept[-1], _LEVELS))
    levels = [_epoch(work, storage, way, nodes, float(1 - share)) for share in shares]

    def mean(values: list[float]) -> float:
        return float(np.interp(kept, shares, values).mean())

    later_s = mean([seconds for seconds, _, _ in levels])
    waiting = mean([seconds * waited for seconds, waited, _ in levels]) / later_s
    use = {part: mean([seconds * busy[part] for seconds, _, busy in levels]) / later_s for part in use}
    return Forecast(nodes, later_s, first_s, everything, waiting, use)


def _epoch(
    work: Work, storage: Storage, way: Way, nodes: int, missed: float
) -> tuple[float, float, dict[str, float]]:
    """Simulate an epoch, and return its seconds, the share of waiting, and the use of each part.

    A long epoch is extrapolated from the second half of the rounds.
    """
    queues, ranks = _Queues(work, storage, way, nodes, missed), nodes * work.gpus
    steps = max(1, round(work.samples / (work.batch * ranks)))
    workers = min(work.workers, steps)
    enough = max(_ROUNDS, _BATCHES // (ranks * workers))
    rounds = min(enough, -(-steps // workers))
    clock, waited_s, half, taken, simulated = 0.0, 0.0, (0.0, 0.0, 0), 0, rounds * workers
    missing, ready = np.full(simulated, ranks), np.zeros(simulated)  # batches of each step, and the last one
    room = np.full(simulated + workers, np.inf)  # from when on a batch of each step can be begun
    ahead = min(work.prefetch, rounds) * workers
    room[:ahead] = 0.0
    makers = _Makers(work, nodes, workers, queues)
    while taken < simulated:
        made, done = makers.go_on(room)
        np.subtract.at(missing, made, 1)
        np.maximum.at(ready, made, done)
        while taken < simulated and not missing[taken]:
            begin = max(clock, float(ready[taken]))
            waited_s, clock = waited_s + begin - clock, begin + work.step_s
            if taken + ahead < simulated:
                room[taken + ahead] = begin
            taken += 1
            if rounds == enough and taken == rounds // 2 * workers:
                half = (clock, waited_s, taken)
    seconds = clock - half[0]
    each_s = seconds / (simulated - half[2])
    use = queues.use(clock) | {"workers": min(1.0, queues.alone_s() / (workers * each_s))}
    return (
        clock + (steps - simulated) * each_s,
        max(0.0, waited_s - half[1]) / seconds if seconds else 0.0,
        use,
    )


def _reading_s(everything: float, storage: Storage, readers: int) -> float:
    """So many nodes read everything, from all stripes at once."""
    spread = min(storage.stripes, storage.targets)
    return max(everything / storage.node_bytes_s, readers * everything / (spread * storage.target_bytes_s))


def _sending_s(everything: float, storage: Storage, nodes: int) -> float:
    """Return how long `sbcast` sends. It sends the next block when all nodes have the last one."""
    blocks = everything / _BLOCK_BYTES
    return blocks * _last_arrival_s(nodes, _BLOCK_BYTES / storage.node_bytes_s, storage.latency_s)


def _last_arrival_s(nodes: int, block_s: float, latency_s: float) -> float:
    """When the last node of a tree has a block; each node sends it to the first node of several spans."""
    spans = [nodes // _FANOUT + (number < nodes % _FANOUT) for number in range(_FANOUT)]
    return max(
        (
            (number + 1) * block_s + latency_s + _last_arrival_s(span - 1, block_s, latency_s)
            for number, span in enumerate(spans)
            if span
        ),
        default=0.0,
    )


def saturation(work: Work, storage: Storage, way: Way) -> dict[str, float]:
    """Compute at how many nodes each part of the storage saturates if no GPU waits.

    Args:
        work: The training.
        storage: The storage from which it reads.
        way: How it reads.

    Returns:
        Number of nodes; infinite for a part that is not used.
    """
    rate = work.node_samples_s
    if way.staged:
        return {"metadata": float("inf"), "targets": float("inf")}
    spread = min(storage.stripes, storage.targets) if way.striped else storage.targets
    reading_s = work.sample_bytes / storage.target_bytes_s + way.requests * storage.request_s
    asked = way.operations * rate
    return {
        "metadata": storage.metadata_ops_s / asked if asked else float("inf"),
        "targets": spread / (rate * reading_s),
    }
