"""Be a good neighbour: on a shared file system, measure little, and say so.

Thirty participants who each read 3,000 files 40 times ask a metadata server for 3.6 million opens
in a minute, and everybody else on the cluster waits. So there the number of operations is capped
and said aloud; `--no-cap` lifts it, for a reservation or an empty file system. Notebook 01 uses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from smallfiles import machine

OPERATIONS = 20_000
IN_FLIGHT = 4


@dataclass(frozen=True)
class Allowance:
    """How much a measurement may do.

    Args:
        samples: Samples a run.
        in_flight: Opens in flight; None leaves the choice to packing.
        note: What to tell the user; empty if nothing was capped.
    """

    samples: int
    in_flight: int | None = None
    note: str = ""


def allowance(paths: Sequence[Path], samples: int, runs: int, *, cap: bool = True) -> Allowance:
    """How many samples a run may read where `paths` lie.

    Args:
        paths: What will be read.
        samples: How many samples a run would like to read.
        runs: Number of runs over all cases and rounds.
        cap: False leaves everything as it is.
    """
    shared = next((fs for fs in map(machine.filesystem, paths) if fs.shared), None)
    if shared is None or not cap:
        return Allowance(samples)
    allowed = min(samples, max(1, OPERATIONS // max(1, runs)))
    return Allowance(
        allowed,
        IN_FLIGHT,
        f"this is {shared.kind}, which others share: {allowed:,} of {samples:,} samples a run, at most "
        f"{OPERATIONS:,} operations and {IN_FLIGHT} in flight (--no-cap lifts this; ask your site first)",
    )
