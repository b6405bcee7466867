"""Tell whether reading waits, for a disk or a server: only there is it worth several threads.

The trap: a clock alone takes a busy processor for a slow disk. Notebook 03 measures packing.
"""

from __future__ import annotations

import resource
from time import perf_counter

AT_ONCE_S = 100e-6
"""Reads that wait longer than this are worth a thread each."""

_THREAD = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)  # of this thread alone, on Linux


class Watch:
    """Starts when it is made, and tells whether its thread waited since.

    On a busy machine everything takes longer, also what is in memory; but the kernel counts how often a
    thread went to sleep by itself, and not because its time was up.
    """

    def __init__(self) -> None:
        self._slept, self._began = _slept(), perf_counter()

    def waited_s(self) -> float:
        """Time since the start; 0 if the thread never slept."""
        took_s = perf_counter() - self._began
        return took_s if _slept() > self._slept else 0.0


def _slept() -> int:
    return resource.getrusage(_THREAD).ru_nvcsw
