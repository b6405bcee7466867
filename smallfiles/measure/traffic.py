"""How many bytes a piece of code moves: read by system calls, allocated by Arrow, made into objects.

The trap: a mapped file that is only looked at moves nothing, although it seems to hold all data; so
what counts is copies, and each of the three places where they can appear is watched. Notebook 03 shows
with it that a read is a view.
"""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

# What was allocated from a pool goes back to it, perhaps long after the block: a pool that is gone by then
# ends the process. So pools are kept; each is a few bytes.
_POOLS: list[pa.MemoryPool] = []


@dataclass
class Traffic:
    """Bytes that were moved while the block ran.

    Args:
        read: By `read` and `pread`; 0 where the system does not tell.
        arrow: The most that Arrow held at once beyond what it held before.
        python: The most that Python objects held at once beyond what they held before.
    """

    read: int = 0
    arrow: int = 0
    python: int = 0

    @property
    def most(self) -> int:
        """The largest of the three."""
        return max(self.read, self.arrow, self.python)


@contextlib.contextmanager
def watched() -> Iterator[Traffic]:
    """Count while the block runs."""
    found = Traffic()
    pool, before = pa.default_memory_pool(), read_bytes()
    counting = pa.proxy_memory_pool(pool)
    _POOLS.append(counting)
    tracing = tracemalloc.is_tracing()
    if not tracing:
        tracemalloc.start()
    tracemalloc.reset_peak()
    held = tracemalloc.get_traced_memory()[0]
    pa.set_memory_pool(counting)
    try:
        yield found
    finally:
        pa.set_memory_pool(pool)
        found.python = tracemalloc.get_traced_memory()[1] - held
        if not tracing:
            tracemalloc.stop()
        found.arrow = max(0, counting.max_memory() or 0)
        found.read = read_bytes() - before


def read_bytes() -> int:
    """Bytes that this process has read by system calls; 0 where there is no /proc."""
    try:
        lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("rchar:")), 0)
