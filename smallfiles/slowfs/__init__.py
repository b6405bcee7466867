"""A folder seen through the latency of a parallel file system, on any machine.

    with slowfs.mounted(Path("data"), SlowConfig(latency_s=0.002)) as slow:
        (slow / "cat/1.jpg").read_bytes()      # waits 2 ms for the look-up, 2 ms for the open
        slow.counts()                          # {"lookup": 2, "open": 1, ...}

`open_slow` mounts where that is allowed, and otherwise delays reads in this process.

The traps: it is a model. You choose latency, concurrent operations and bandwidth, while the latency of a
real server grows with its load; the shape of a curve carries over to a cluster, the numbers do not.
Notebook 01 measures on it.

Here are the settings of the emulated storage, and the delays and counts of its operations. Metadata
operations go to a server that processes `servers` of them at once, each with a latency; bytes pass through
one link of fixed bandwidth. For both, the time is stored at which the resource is free again. Sleeping under
a lock would serialise all requests. So the lock protects only the arithmetic, which returns a time, and the
waits overlap.
"""

from __future__ import annotations

import heapq
import math
import random
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smallfiles import lazy
from smallfiles.options import Settings, option

if TYPE_CHECKING:
    from smallfiles.slowfs.mounting import SlowFolder as SlowFolder
    from smallfiles.slowfs.mounting import SlowStore as SlowStore
    from smallfiles.slowfs.mounting import mounted as mounted
    from smallfiles.slowfs.mounting import open_slow as open_slow
    from smallfiles.slowfs.server import KIND as KIND
    from smallfiles.slowfs.server import why_not as why_not

__getattr__ = lazy.names(__name__)


@dataclass(frozen=True)
class SlowConfig(Settings):
    """The storage to emulate.

    Args:
        latency_s: Seconds per metadata operation.
        servers: Maximum number of concurrent operations; others queue. None for no limit.
        bandwidth_bytes_s: Bytes per second of all reads together; None for no limit.
        jitter: Standard deviation of the latency relative to its mean, with a long tail.
    """

    latency_s: float = option(
        0.002,
        "milliseconds per metadata operation",
        flag="latency-ms",
        scale=1e-3,
        least=0,
        most=60,
        metavar="T",
    )
    servers: int | None = option(None, "concurrent operations; no limit if not given", least=1)
    bandwidth_bytes_s: float | None = option(
        None,
        "megabytes per second of all reads together",
        flag="bandwidth-mb",
        scale=1e6,
        least=1,
        metavar="B",
    )
    jitter: float = option(0.0, "relative standard deviation of the latency", least=0, most=10, metavar="J")

    def summary(self) -> str:
        """Describe the storage in a few words: `2 ms an operation, 8 at once, 500 MB/s`."""
        parts = [f"{1e3 * self.latency_s:g} ms an operation"]  # as in the records of results/
        parts += [f"{self.servers} at once"] if self.servers is not None else []
        parts += [f"{self.bandwidth_bytes_s / 1e6:g} MB/s"] if self.bandwidth_bytes_s is not None else []
        parts += [f"jitter {self.jitter:g}"] if self.jitter else []
        return ", ".join(parts)

    def to_cli(self, folder: str, mountpoint: str) -> str:
        """Return the equivalent command."""
        return self.command("slowfs", folder, mountpoint)


CHARGED = ("lookup", "open", "list", "other")
"""Operations with a latency: look-up of a name, open, listing, and others (links, file system)."""

COUNTED = (*CHARGED, "reads", "bytes")
COUNTS_BYTES = 8 * len(COUNTED)
_INDEX = {name: index for index, name in enumerate(COUNTED)}


class Delays:
    """Computes when operations and transfers are done, and counts them.

    Args:
        config: The storage to emulate.
        memory: Memory for the counts, `COUNTS_BYTES` long; two processes may share it.
    """

    def __init__(self, config: SlowConfig, memory: memoryview | None = None) -> None:
        self.config = config
        self._counts = (memoryview(bytearray(COUNTS_BYTES)) if memory is None else memory).cast("q")
        self._lock = threading.Lock()
        self._random = random.Random(0)
        self._busy_until = [0.0] * (config.servers or 0)  # a heap: the first free server
        self._link_busy_until = 0.0
        variance = math.log1p(config.jitter**2)
        self._log_mean, self._log_deviation = -variance / 2, math.sqrt(variance)

    def operation(self, kind: str) -> float:
        """Count an operation of a kind in `CHARGED`; returns the monotonic time of its answer."""
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
        """Count a read of `count` bytes; returns the monotonic time at which they have arrived."""
        limit = self.config.bandwidth_bytes_s
        with self._lock:
            self._counts[_INDEX["reads"]] += 1
            self._counts[_INDEX["bytes"]] += count
            if limit is None:
                return 0.0
            self._link_busy_until = max(time.monotonic(), self._link_busy_until) + count / limit
            return self._link_busy_until

    def counts(self) -> dict[str, int]:
        """Return the number of operations of each kind, of reads, and of bytes read."""
        return dict(zip(COUNTED, self._counts.tolist(), strict=True))


def sleep_until(when: float) -> None:
    """Wait until a monotonic time; returns at once if it has passed."""
    left_s = when - time.monotonic()
    if left_s > 0:
        time.sleep(left_s)
