"""Measure whether reads wait for a disk or a server, since only then several threads help.

The trap: by the clock alone, a busy processor looks like a slow disk. Notebook 03 measures packing.
"""

from __future__ import annotations

import resource
from time import perf_counter

AT_ONCE_S = 100e-6
"""Reads that wait longer than this are worth a thread each."""

_THREAD = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)  # of this thread alone, on Linux


class Watch:
    """Measures, from its creation on, whether its thread waited.

    On a busy machine everything takes longer, even reads from memory. But the kernel counts how often a
    thread gave up the processor by itself, and not because its time slice ended.
    """

    def __init__(self) -> None:
        self._slept, self._began = _slept(), perf_counter()

    def waited_s(self) -> float:
        """Time since the start; 0 if the thread never slept."""
        took_s = perf_counter() - self._began
        return took_s if _slept() > self._slept else 0.0


def _slept() -> int:
    return resource.getrusage(_THREAD).ru_nvcsw
