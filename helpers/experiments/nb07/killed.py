"""What a process leaves on its node when it is told to end, and when it is killed.

SIGTERM is what a scheduler sends first: a program may clean up. SIGKILL comes some seconds later, and
nobody can act on it; the next `stage` does. The trap: both take away the process, so a test with
`kill -9` alone or with `kill` alone sees half of the truth. Notebook 07.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from helpers.experiments.nb07.processes import Stager, shown, stagers
from smallfiles import staging
from smallfiles.measure.scratch import memory_folder
from smallfiles.progress import bytes_text
from smallfiles.slowfs import SlowConfig, open_slow

Moment = Literal["copying", "using"]
_CATCH_S = 20.0


@dataclass(frozen=True)
class Killed:
    """What one process left.

    Args:
        moment: What it was doing.
        signal: The name of the signal.
        left_bytes: What it left on the node.
        state: What the list of copies says about that; empty if there is nothing.
        reused: Whether the next `stage` of the same file took over what was there.
        after_bytes: What was left when that one had given its copy back.
    """

    moment: Moment
    signal: str
    left_bytes: int
    state: str
    reused: bool
    after_bytes: int

    @property
    def summary(self) -> str:
        """One line of a table."""
        left = f"{bytes_text(self.left_bytes)} ({self.state})" if self.left_bytes else "nothing"
        nxt = "used what was there" if self.reused else "copied anew"
        after = bytes_text(self.after_bytes) if self.after_bytes else "nothing"
        return f"{self.signal:8} while {self.moment:8} left {left:20} next stage {nxt:20} then left {after}"


def measure_killed(source: Path, place: Path, storage: SlowConfig | None = None) -> list[Killed]:
    """End processes that copy, and processes that use a copy, by each of the two signals.

    Args:
        source: A packed file.
        place: A directory of this node.
        storage: How slow the source's storage shall be; where it cannot be mounted, copying is too
            quick to be caught and only users are killed.

    Raises:
        ResourceError: There is no room, or a process failed.
    """
    storage = storage or SlowConfig(bandwidth_bytes_s=100e6)
    size = source.stat().st_size
    with open_slow(source.parent, storage) as slow, memory_folder(2 * size, place) as folder:
        moments: Sequence[Moment] = ("copying", "using") if slow.how == "fuse" else ("using",)
        return [
            _kill(shown(slow, source.name), source, folder, moment, number)
            for moment in moments
            for number in (signal.SIGTERM, signal.SIGKILL)
        ]


def _kill(slow: Path, source: Path, folder: Path, moment: Moment, number: signal.Signals) -> Killed:
    with stagers(1, slow if moment == "copying" else source, folder) as (child,):
        child.begin()
        if moment == "copying":
            _until(lambda: any(copy.bytes > 1 << 20 for copy in staging.listing([folder])), child)
        else:
            child.result()
        child.process.send_signal(number)
        child.process.wait(_CATCH_S)
    copies = [copy for copy in staging.listing([folder]) if folder in copy.path.parents]
    left = sum(copy.bytes for copy in copies)
    with staging.staged(source, folder, config=staging.StageConfig(leave_bytes=0)) as copy:
        reused = copy.reused
    after = sum(copy.bytes for copy in staging.listing([folder]) if folder in copy.path.parents)
    return Killed(moment, number.name, left, copies[0].state if left else "", reused, after)


def _until(condition: Callable[[], bool], child: Stager) -> None:
    """Wait for something that the child does; it may be over before it is seen."""
    end = time.monotonic() + _CATCH_S
    while not condition() and child.process.poll() is None and time.monotonic() < end:
        time.sleep(0.002)
