"""The waiting itself, and the counting: the same for a mount and for reads in this process.

Metadata operations go to a server that works on `servers` of them at once and takes a latency for
each; bytes pass one link of a fixed bandwidth. Both are kept as times at which something is free
again, so what is answered late does not delay the next.

The trap: a sleep with a lock around it would make everybody wait in turn. Here the lock guards only
the arithmetic, the answer is a time, and the waiting overlaps. Notebook 01 shows the difference.
"""

from __future__ import annotations

import heapq
import math
import random
import threading
import time

from smallfiles.slowfs.config import SlowConfig

CHARGED = ("lookup", "open", "list", "other")
"""What costs a latency: a name looked up, a file opened, a folder listed, a link or a file system asked."""

COUNTED = (*CHARGED, "reads", "bytes")
COUNTS_BYTES = 8 * len(COUNTED)
_INDEX = {name: index for index, name in enumerate(COUNTED)}


class Delays:
    """Says when operations and bytes are done, and counts them.

    Args:
        config: The storage to imitate.
        memory: Where the counts are kept, `COUNTS_BYTES` long; two processes may share it.
    """

    def __init__(self, config: SlowConfig, memory: memoryview | None = None) -> None:
        self.config = config
        self._counts = (memoryview(bytearray(COUNTS_BYTES)) if memory is None else memory).cast("q")
        self._lock = threading.Lock()
        self._random = random.Random(config.seed)
        self._busy_until = [0.0] * (config.servers or 0)  # a heap: the server that is free first
        self._link_busy_until = 0.0
        variance = math.log1p(config.jitter**2)
        self._log_mean, self._log_deviation = -variance / 2, math.sqrt(variance)

    def operation(self, kind: str) -> float:
        """Count an operation of a kind in `CHARGED`; return the monotonic time of its answer."""
        with self._lock:
            self._counts[_INDEX[kind]] += 1
            takes_s = self.config.latency_s
            if self._log_deviation:
                takes_s *= self._random.lognormvariate(self._log_mean, self._log_deviation)
            begins = time.monotonic()
            if self._busy_until:
                begins = max(begins, self._busy_until[0])
                heapq.heapreplace(self._busy_until, begins + takes_s)
            return begins + takes_s

    def transfer(self, count: int) -> float:
        """Count a read of so many bytes; return the monotonic time at which the link has passed them."""
        limit = self.config.bandwidth_bytes_s
        with self._lock:
            self._counts[_INDEX["reads"]] += 1
            self._counts[_INDEX["bytes"]] += count
            if limit is None:
                return 0.0
            self._link_busy_until = max(time.monotonic(), self._link_busy_until) + count / limit
            return self._link_busy_until

    def counts(self) -> dict[str, int]:
        """How often each operation was asked for, reads, and bytes read."""
        return dict(zip(COUNTED, self._counts.tolist(), strict=True))


def sleep_until(when: float) -> None:
    """Wait for a monotonic time; no wait if it is over."""
    left_s = when - time.monotonic()
    if left_s > 0:
        time.sleep(left_s)
