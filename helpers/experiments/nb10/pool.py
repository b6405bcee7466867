"""Processes that play the ranks of a job on this machine: started once, then given a place and work.

Importing PyTorch takes seconds, so one process imports it and the ranks are forked from there. The trap: a
rank that is started with the variables of the kernel's own job would believe those; all of them go first.
Notebook 10 has a pool of four.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from helpers.experiments.nb10.environments import become
from smallfiles.errors import ResourceError

_Answer = TypeVar("_Answer")
_LIMIT_S = 120.0
_END_S = 5.0


class WorkerPool:
    """Some processes, each of which can be any rank.

    Args:
        size: How many.
    """

    def __init__(self, size: int = 4) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([f"{__package__}.work"])
        self._pipes: list[Connection] = []
        self._processes = []
        for _ in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        for pipe in self._pipes:
            _received(pipe)

    def run(
        self,
        work: Callable[..., _Answer],
        places: Sequence[Mapping[str, str]],
        *,
        meanwhile: Callable[[Sequence[int]], None] | None = None,
        **arguments: Any,
    ) -> list[_Answer]:
        """Let each rank do the same work at the same time.

        Args:
            work: A function of a module, since it is sent by its name.
            places: The environment of each rank.
            meanwhile: Called with the process numbers while they work.
            **arguments: For the work.

        Returns:
            What each rank answered, in the order of `places`.

        Raises:
            ResourceError: There are too few processes, or one failed.
        """
        if len(places) > len(self._pipes):
            raise ResourceError(
                f"{len(places)} ranks are wanted and {len(self._pipes)} processes are there",
                expected="as many processes as ranks",
                next_step=f"Start a larger pool: WorkerPool({len(places)})",
            )
        chosen = self._pipes[: len(places)]
        for pipe, told in zip(chosen, places, strict=True):
            pipe.send((work, dict(told), arguments))
        if meanwhile is not None:
            numbers = [process.pid for process in self._processes[: len(places)]]
            meanwhile([number for number in numbers if number is not None])
        return [_received(pipe) for pipe in chosen]

    def close(self) -> None:
        """Let all processes end."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(_END_S)
            if process.is_alive():
                process.kill()
                process.join()


def _received(pipe: Connection) -> Any:
    if not pipe.poll(_LIMIT_S):
        raise _failed(f"said nothing in {_LIMIT_S:g} s")
    try:
        fine, answer = pipe.recv()
    except EOFError:
        raise _failed("ended without a word") from None
    if not fine:
        raise _failed(f"failed: {answer}")
    return answer


def _failed(what: str) -> ResourceError:
    return ResourceError(
        f"a process that plays a rank {what}",
        expected="an answer of each rank",
        next_step="Run the cell again that starts the pool, then this one",
    )


def serve(pipe: Connection) -> None:
    """What a process of the pool does until its pipe is closed.

    Args:
        pipe: Brings work, takes answers.
    """
    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # stopping a cell must not end the pool
    pipe.send((True, None))
    with contextlib.suppress(EOFError, OSError):
        while True:
            work, told, arguments = pipe.recv()
            become(told)
            cpus = os.sched_getaffinity(0)
            try:
                answer = True, work(**arguments)
            except Exception as error:
                answer = False, f"{type(error).__name__}: {error}"
            os.sched_setaffinity(0, cpus)
            pipe.send(answer)
