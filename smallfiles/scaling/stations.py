"""Queues: who comes first is served first, and the others wait.

Arrivals are whole arrays, so that forty thousand GPUs are simulated in seconds: the departures of a queue
with one server are a running maximum, D(i) = max(A(i), D(i-1)) + S(i) (Lindley, 1952).

The trap: a queue is not full at 100 %. At 90 % use a request waits nine times as long as it is served, on
average (M/M/1), so an average rate below capacity is no proof that nobody waits. Short, since theory checks
it alone.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Times: TypeAlias = npt.NDArray[np.float64]


@dataclass
class Station:
    """Several equal servers with one queue.

    Args:
        servers: How many work at once.
    """

    servers: int
    busy_s: float = 0.0
    _free: list[float] = field(default_factory=list)

    def serve(self, arrivals: Times, service: Times) -> Times:
        """When each request leaves.

        Args:
            arrivals: When each comes, in seconds; in any order.
            service: How long each is worked on.
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
    """Many servers, each with a queue of its own: storage targets, or the networks of nodes.

    Args:
        count: How many.
    """

    count: int
    busy_s: float = 0.0
    _free: Times | None = None

    def serve(self, arrivals: Times, service: Times, which: npt.NDArray[np.int64]) -> Times:
        """When each request leaves.

        Args:
            arrivals: When each comes, in seconds; in any order.
            service: How long each is worked on.
            which: The server that each goes to.
        """
        free = np.zeros(self.count) if self._free is None else self._free
        order = np.lexsort((arrivals, which))
        server, wait_from = which[order], np.maximum(arrivals, free[which])[order]
        until = np.cumsum(service[order])
        before = until - service[order]
        # Servers are told apart by adding so much to their times that none reaches into the next one's.
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
