"""A storage that all ranks share, played by waiting: a transform that delivers bytes at a fixed rate.

The rank that asks waits until all bytes that anyone asked for before, and its own, have passed one link. Make
it before `play`, and the ranks share it; make it in a rank, and that rank has one of its own. The trap: a
lock of threads would be copied by the fork, so that each rank would have a link to itself; this clock is
memory that the processes share. Notebook 10 scales on it.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sized


class Storage:
    """Takes the place of a transform in `make_loader`; the pictures are not decoded.

    Args:
        bytes_per_s: The rate of the link, for all who share it.
    """

    shape, dtype = (1,), "uint8"

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self._free_at = multiprocessing.get_context("fork").Value("d", 0.0)

    def into(self, data: Sized, rng: object, out: object) -> None:
        """Wait until these bytes have come; the lock protects the arithmetic only, so waits overlap."""
        with self._free_at:
            done = max(self._free_at.value, time.monotonic()) + len(data) / self.bytes_per_s
            self._free_at.value = done
        time.sleep(max(0.0, done - time.monotonic()))
