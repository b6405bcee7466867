"""A model of a metadata server: every open waits, and only so many are answered a second.

    store = ModelServer(FolderStore(root), wait_s=0.002, opens_per_s=4_000)

It is no file system: the bytes come from the store below at its own speed, and only the waiting is
added, inside this process. That is enough to show why opens in flight help, and when they stop to.

The trap: a real server's wait grows when it is busy, and other people make it busy; here it is the
same for everybody. Exercise 01 reads through it; notebook 01 has a mount (`smallfiles.slowfs`).
"""

from __future__ import annotations

import threading
import time
from typing import Any

from smallfiles.errors import UsageError
from smallfiles.samples import ByteStore


class ModelServer:
    """A store seen through a server that answers opens late and one after the other.

    Args:
        store: Where the bytes are.
        wait_s: Seconds that each open waits for its answer.
        opens_per_s: Opens that the server answers a second at most.
    """

    def __init__(self, store: ByteStore, wait_s: float = 0.002, opens_per_s: float = 4_000.0) -> None:
        if wait_s < 0 or opens_per_s <= 0:
            raise UsageError(
                f"a wait of {wait_s} s and {opens_per_s} opens a second were asked for",
                expected="a wait of 0 or more, and more than 0 opens a second",
                next_step="Try wait_s=0.002, opens_per_s=4_000",
            )
        self.store, self.wait_s, self.opens_per_s = store, wait_s, opens_per_s
        self.sequential = store.sequential
        self._lock = threading.Lock()
        self._free_at = 0.0

    def size(self, path: str) -> int:
        """Bytes of one sample, not delayed."""
        return self.store.size(path)

    def read_into(self, path: str, buffer: memoryview) -> int:
        """Wait for the open, then read."""
        time.sleep(max(0.0, self._answered_at() - time.perf_counter()))
        return self.store.read_into(path, buffer)

    def describe(self) -> str:
        """Says that it is a model, and of what."""
        limits = f"{self.wait_s * 1e3:g} ms, {self.opens_per_s:,.0f} opens/s"
        return f"model server ({limits}) over {self.store.describe()}"

    def __reduce__(self) -> tuple[Any, ...]:
        return ModelServer, (self.store, self.wait_s, self.opens_per_s)

    def _answered_at(self) -> float:
        """When this open is answered: after those before it, and not before the wait is over."""
        with self._lock:
            begun = max(time.perf_counter(), self._free_at)
            self._free_at = begun + 1 / self.opens_per_s
        return begun + max(self.wait_s, 1 / self.opens_per_s)
