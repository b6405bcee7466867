"""How much memory a process has, and how much each forked worker has for itself alone.

    private (USS)        pages that nobody else maps: what one more worker costs
    proportional (PSS)   shared pages divided by the number that share them: summed up, what all cost

The trap: RSS, which `top` shows, counts every shared page again in each worker; so four workers that
share a table of 1 GB seem to take 4 GB, and four that copied it look the same. Notebook 02 measures it.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from time import perf_counter

from smallfiles.errors import ResourceError

STEP_LIMIT_S = 120.0
Steps = Callable[[int], Iterator[object]]
"""A worker's task: called with its number; memory is looked at wherever it yields."""


@dataclass(frozen=True)
class Footprint:
    """Memory of one process at one moment.

    Args:
        private_bytes: Pages that no other process has (USS).
        proportional_bytes: These, and its share of the pages that others have too (PSS).
        seconds: What the step took before this moment; 0 where nothing was waited for.
    """

    private_bytes: int
    proportional_bytes: int
    seconds: float = 0.0


def resident_bytes() -> int:
    """Memory of this process that is in RAM, shared pages included (RSS)."""
    return _fields("status")["VmRSS"]


def peak_bytes() -> int:
    """The most that `resident_bytes` ever was."""
    return _fields("status")["VmHWM"]


def footprint(seconds: float = 0.0) -> Footprint:
    """Memory of this process, private and proportional.

    Args:
        seconds: What is to be remembered with it.
    """
    found = _fields("smaps_rollup")
    return Footprint(found["Private_Clean"] + found["Private_Dirty"], found["Pss"], seconds)


def in_workers(steps: Steps, workers: int) -> list[list[Footprint]]:
    """Fork workers that do the same steps side by side, as a DataLoader's do.

    Nobody goes on before all were looked at, or the pages of a worker that has ended would count as
    private to those that have not.

    Args:
        steps: What each worker does; yields equally often in all of them.
        workers: How many.

    Returns:
        For each worker its memory at each yield.

    Raises:
        ResourceError: A worker was killed or failed.
    """
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(workers)
    started = []
    for number in range(workers):
        receive, send = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(steps, number, barrier, send), daemon=True)
        process.start()
        send.close()
        started.append((process, receive))
    try:
        return [_answer(receive) for _, receive in started]
    finally:
        for process, _ in started:
            process.join(1.0)
            process.kill()


def _work(steps: Steps, number: int, barrier: Barrier, send: Connection) -> None:
    seen = []
    began = perf_counter()
    for _ in steps(number):
        seconds = perf_counter() - began
        barrier.wait(STEP_LIMIT_S)
        seen.append(footprint(seconds))
        barrier.wait(STEP_LIMIT_S)
        began = perf_counter()
    send.send(seen)


def _answer(receive: Connection) -> list[Footprint]:
    try:
        found: list[Footprint] = receive.recv()
    except EOFError as error:
        raise ResourceError(
            "a forked worker ended before it told its memory",
            expected="memory for every worker",
            next_step="Look at the message above, or measure a smaller set",
        ) from error
    return found


def _fields(name: str) -> dict[str, int]:
    """The figures of /proc/self/NAME in bytes."""
    path = Path("/proc/self") / name
    try:
        lines = [line.split() for line in path.read_text(encoding="ascii", errors="replace").splitlines()]
    except OSError as error:
        raise ResourceError(
            f"{path} cannot be read ({error.strerror or error})",
            expected="a Linux kernel that tells what memory a process has (4.14 or later)",
            next_step="Run this on another machine, or skip the experiment",
        ) from error
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if words[-1:] == ["kB"]}
