"""An epoch of a synchronous training: every worker of every GPU makes batches, all GPUs step together.

In each round every worker makes one batch; for each of these batches all GPUs wait for the last one and step.
A worker begins its next batch when it has room for it, as in a DataLoader. A batch visits each queue of the
storage once; service times of metadata vary like sums of independent operations.

Arrivals at a queue are whole arrays, so that forty thousand GPUs are simulated in seconds: the departures of
one server are a running maximum, D(i) = max(A(i), D(i-1)) + S(i) (Lindley, 1952).

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
from smallfiles.scaling.config import Storage, Way, Work

Times: TypeAlias = npt.NDArray[np.float64]
_ROUNDS, _BATCHES = 12, 20_000
"""Minimum of both, or the whole epoch: few workers need many rounds to average out chance."""

_BLOCK_BYTES, _FANOUT = 8 << 20, 8
"""Of `sbcast`: bytes per message, and to how many nodes each node forwards it."""

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
        self._free = self._free or [0.0] * min(self.servers, len(arrivals))
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
        epoch_s: Seconds of an epoch, after the first.
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
        self._metadata = Station(storage.metadata_threads)
        self._targets, self._network, self._own = Stations(self._spread), Stations(nodes), Stations(nodes)

    def ready(self, start: Times, node: npt.NDArray[np.int64]) -> Times:
        """When each batch is ready, begun at `start` by a worker of `node`."""
        work, storage, way = self._work, self._storage, self._way
        size = np.full(len(start), float(work.batch * work.sample_bytes))
        if way.staged:
            return self._own.serve(start, size / storage.local_bytes_s, node) + work.batch * work.decode_s
        now, size = self._metadata_done(start, way.operations * work.batch), size * self._missed
        requests = way.requests * work.batch * self._missed
        reading = size / storage.target_bytes_s + requests * storage.request_s
        now = self._targets.serve(now, reading, self._random.integers(self._spread, size=len(now)))
        return self._network.serve(now, size / storage.node_bytes_s, node) + work.batch * work.decode_s

    def _metadata_done(self, start: Times, operations: float) -> Times:
        """When the metadata operations of each batch are done; their times add up."""
        whole, rest = divmod(operations, 1)
        count = whole + (self._random.random(len(start)) < rest)
        asking, each_s = count > 0, self._storage.metadata_threads / self._storage.metadata_ops_s
        done = start + count * self._storage.latency_s
        if asking.any():
            service = each_s * self._random.gamma(count[asking])
            done[asking] += self._metadata.serve(start[asking], service) - start[asking]
        return done

    def alone_s(self) -> float:
        """Seconds per batch without any wait."""
        work, storage, way, size = self._work, self._storage, self._way, self._work.sample_bytes
        if way.staged:
            return work.batch * (size / storage.local_bytes_s + work.decode_s)
        operation_s = storage.latency_s + storage.metadata_threads / storage.metadata_ops_s
        reading_s = size / storage.target_bytes_s + way.requests * storage.request_s
        moving_s = self._missed * (reading_s + size / storage.node_bytes_s)
        return work.batch * (way.operations * operation_s + moving_s + work.decode_s)

    def use(self, seconds: float) -> dict[str, float]:
        """The share of time in which each part was busy."""
        threads = self._storage.metadata_threads
        parts = {"metadata": self._metadata.busy_s / threads, "targets": self._targets.busy_s / self._spread}
        for name, stations in (("network", self._network), ("own copy", self._own)):
            parts[name] = stations.busy_s / stations.count
        return {name: busy_s / seconds for name, busy_s in parts.items()}


def simulate(work: Work, storage: Storage, way: Way, nodes: int) -> Forecast:
    """Simulate an epoch; equal arguments give equal forecasts.

    Args:
        work: The training.
        storage: Its storage.
        way: How it reads.
        nodes: Number of nodes, at least 1.

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
    missed = max(0.0, 1 - storage.cache_bytes / everything)
    later_s, waiting, use = (
        (first_s, waiting, use) if missed == 1 else _epoch(work, storage, way, nodes, missed)
    )
    return Forecast(nodes, later_s, first_s, everything, waiting, use)


def _epoch(
    work: Work, storage: Storage, way: Way, nodes: int, missed: float
) -> tuple[float, float, dict[str, float]]:
    """Seconds, share of waiting, and use; a long epoch is extrapolated from the second half of the rounds."""
    queues, ranks = _Queues(work, storage, way, nodes, missed), nodes * work.gpus
    steps = max(1, round(work.samples / (work.batch * ranks)))
    workers = min(work.workers, steps)
    enough = max(_ROUNDS, _BATCHES // (ranks * workers))
    rounds = min(enough, -(-steps // workers))
    node = np.repeat(np.arange(nodes), work.gpus * workers)
    done, clock, waited_s = np.zeros((ranks, workers)), 0.0, 0.0
    taken, half = np.zeros((rounds, workers)), (0.0, 0.0, 0)
    for number in range(rounds):
        room = taken[number - work.prefetch] if number >= work.prefetch else np.zeros(workers)
        start = np.maximum(done, room)
        done = queues.ready(start.ravel(), node).reshape(start.shape)
        for worker in range(workers):
            begin = max(clock, float(done[:, worker].max()))
            waited_s, clock = waited_s + begin - clock, begin + work.step_s
            taken[number, worker] = begin
        if rounds == enough and number + 1 == rounds // 2:
            half = (clock, waited_s, rounds // 2 * workers)
    seconds, simulated = clock - half[0], rounds * workers
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
    """`sbcast` sends a block to all nodes, and the next one when all have it."""
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
    """Nodes at which each part of the storage is full if no GPU waits.

    Args:
        work: The training.
        storage: Its storage.
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
