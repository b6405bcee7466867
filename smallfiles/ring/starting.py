"""The producers of a ring: start them, see them die, end them.

The trap: `multiprocessing` can start a process by forking, quick and dangerous in a program with threads
(a lock that another thread held stays locked in the child for ever). So a server that has no threads forks
them (`forkserver`).
Notebook 08 teaches the ring.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import signal
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from typing import Any

from smallfiles.errors import ResourceError
from smallfiles.loading.batches import BatchMaker
from smallfiles.loading.plan import EpochPlan
from smallfiles.ring.book import Position
from smallfiles.ring.channel import Channel, pair
from smallfiles.ring.faults import RingError
from smallfiles.ring.forksafe import keeping
from smallfiles.ring.producer import run_process

_PATIENCE_S = 10.0
"""A producer in the middle of a batch may finish it before it is ended by force."""


@dataclass
class Producer:
    """One that makes batches.

    Args:
        number: Which one, counted over all that were ever started.
        channel: To it.
        process: It.
        began: Whether it has said hello.
        claims: Batches that it was given and has not made yet, the one that it is at first.
    """

    number: int
    channel: Channel
    process: BaseProcess
    began: bool = False
    claims: deque[Position] = field(default_factory=deque)

    def how_it_ended(self) -> str:
        """Why it is gone, in words that follow its name."""
        self.process.join(_PATIENCE_S)
        code = self.process.exitcode
        if code is None or code >= 0:
            return "ended" if code is None else f"ended with exit code {code}"
        return _BY_SIGNAL.get(-code) or f"was killed by signal {-code}"


_BY_SIGNAL: dict[int, str] = {
    signal.SIGKILL: "was killed by signal 9, which the system sends when memory runs out",
    signal.SIGBUS: "was killed by a bus error (signal 7): shared memory or a mapped file is no longer there",
    signal.SIGSEGV: "crashed (signal 11) inside a library",
}


class ProducerStarter:
    """Starts producers alike.

    Args:
        maker: Makes batches.
        plan: Says which samples are in them.
    """

    def __init__(self, maker: BatchMaker, plan: EpochPlan) -> None:
        self._maker, self._plan = maker, plan
        self._context: Any = multiprocessing.get_context("forkserver")
        self._count = 0
        # Imported once for all producers, and for those that replace them.
        self._context.set_forkserver_preload(["__main__", "smallfiles.ring.producer", type(maker).__module__])

    def start(self) -> Producer:
        """One more producer."""
        self._count += 1
        ours, theirs = pair()
        process = self._context.Process(
            target=run_process, args=(theirs.socket, self._maker, self._plan), daemon=True
        )
        with contextlib.closing(theirs), contextlib.ExitStack() as on_failure:
            on_failure.callback(ours.close)
            with keeping(theirs), _explained():
                process.start()
            on_failure.pop_all()
        return Producer(self._count, ours, process)


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise _unsendable(error) from error
    except (OSError, RuntimeError, EOFError) as error:  # EOF: the fork server was ended
        raise _unstartable(error) from error


def _unsendable(error: Exception) -> RingError:
    return RingError(
        f"the batch maker cannot be sent to a process ({error})",
        expected="a maker that can be pickled: of a class in a module, without open files",
        next_step="Define its class in a module",
    )


def _unstartable(error: Exception) -> ResourceError:
    return ResourceError(
        f"no producer can be started ({' '.join(str(error).split())[:200]})",
        expected="room for one more process",
        next_step='Start the program under `if __name__ == "__main__":`, and check ulimit -u and -n',
    )


def end(producers: list[Producer]) -> None:
    """Let all producers go, by force those that do not leave."""
    for producer in producers:
        producer.channel.close()
    until = time.monotonic() + _PATIENCE_S
    for producer in producers:
        producer.process.join(max(0.0, until - time.monotonic()))
    for producer in producers:
        if producer.process.is_alive():
            producer.process.kill()
            producer.process.join(_PATIENCE_S)
