"""A process for each thing that is measured, started once, told when to run.

Ours share one; each loader of others has its own, since their libraries do not like each other's threads,
and none likes to be forked after another has started some. The clock runs inside, around the epoch.

The trap: a process that waits must not work. Loaders that stay open between rounds have nothing to do then.
Notebook 08 measures with it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from smallfiles.measure.config import LoadBenchConfig
from smallfiles.measure.loading.breakdown import stages_of
from smallfiles.measure.loading.ours import Ours, run_ours
from smallfiles.measure.loading.passes import Pass
from smallfiles.measure.loading.peer import Setting, peers_of
from smallfiles.measure.workers import Worker, WorkFailed, last_words, serve

_OURS = "ours"


@dataclass(frozen=True)
class Theirs:
    """A case of others.

    Args:
        peer: Its name.
        setting: What it is started with.
    """

    peer: str
    setting: Setting


Order = Ours | Theirs | tuple[str, Ours]
"""What a process is told to do; a pair asks for the stages of a case."""


class WorkerPool:
    """Processes that measure, one for ours and one for each peer and setting.

    Args:
        config: Of the measurement.
        others: The module with the loaders of others.
    """

    def __init__(self, config: LoadBenchConfig, others: str = "") -> None:
        self._config, self._others = config, others
        self._hands: dict[object, Worker] = {}
        self._context = multiprocessing.get_context("spawn")

    def run(self, order: Order) -> Any:
        """Have an order carried out.

        Raises:
            WorkFailed: It failed, hung, or its process was killed.
        """
        key = order if isinstance(order, Theirs) else _OURS
        if key not in self._hands or self._hands[key].ended:
            self._hands[key] = Worker(self._context, _work, self._config, self._others)
        self._hands[key].send(order)
        return self._hands[key].answer(_samples(order))

    def close(self) -> None:
        """End the processes, and what they have started."""
        for hand in self._hands.values():
            hand.end()


def _samples(order: Order) -> int:
    if isinstance(order, Theirs):
        return order.setting.samples
    return (order if isinstance(order, Ours) else order[1]).samples


@contextlib.contextmanager
def worker_pool(config: LoadBenchConfig, others: str = "") -> Iterator[WorkerPool]:
    """A pool that is gone when the block ends."""
    found = WorkerPool(config, others)
    try:
        yield found
    finally:
        found.close()


def _work(pipe: Connection, config: LoadBenchConfig, others: str) -> None:
    epochs: dict[Theirs, Callable[[], Pass]] = {}
    with contextlib.ExitStack() as stack:
        serve(pipe, lambda order: _carried_out(order, config, others, epochs, stack))


def _carried_out(
    order: Order,
    config: LoadBenchConfig,
    others: str,
    epochs: dict[Theirs, Callable[[], Pass]],
    stack: contextlib.ExitStack,
) -> Any:
    if isinstance(order, Ours):
        return run_ours(order, config)
    if isinstance(order, Theirs):
        if order not in epochs:
            peer = peers_of(others)[0][order.peer]
            epochs[order] = stack.enter_context(peer.start(order.setting))
        done, expected = epochs[order](), order.setting.samples
        if done.samples < expected:
            raise WorkFailed(f"{done.samples:,} of {expected:,} pictures came{last_words()}")
        return done
    _, case = order
    return stages_of(case.path, case.format, case.samples, config)
