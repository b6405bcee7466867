"""What slow storage showed, against what its numbers promise.

The trap: a curve that flattens is taken for the server's limit. On one computer the mount and the
readers share the CPUs, and they may end first; so the sentence compares with the promise. Notebook 01
says it.
"""

from __future__ import annotations

from collections.abc import Mapping

from smallfiles.measure.in_flight import InFlight
from smallfiles.slowfs import SlowConfig

_REACHED = 0.8


def slow_finding(measured: InFlight, storage: SlowConfig, asked: Mapping[str, int]) -> str:
    """The sentence on a measurement with more and more files in flight.

    Args:
        measured: Files per second through the slow folder.
        storage: What it imitated; with a number of servers.
        asked: Its counts afterwards.
    """
    each = round((asked["lookup"] + asked["open"]) / max(1, asked["open"]), 1)
    best = measured.spread(measured.best).median
    told = [f"Each file took {each:.1f} operations: a look-up and an open."]
    promised = None if storage.capacity_per_s is None else storage.capacity_per_s / each
    if promised is not None:
        told.append(
            f"{storage.servers} at once, {1e3 * storage.latency_s:g} ms each, are "
            f"{storage.capacity_per_s:,.0f} operations a second, or {promised:,.0f} files."
        )
    told.append(f"Measured: {best:,.0f} files a second; {measured.enough} in flight gave nine tenths of it.")
    if promised is not None and best < _REACHED * promised:
        told.append("Something else ended it first: the cap, or the CPUs, which play server and reader here.")
    return " ".join(told)
