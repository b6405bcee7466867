"""A process for each thing that is measured, started once, told when to run.

Ours share one; each loader of others has its own, since their libraries do not like each other's threads,
and none likes to be forked after another has started some. The clock runs inside, around the epoch.

The trap: a process that waits must not work. Loaders that stay open between rounds have nothing to do then.
Notebook 08 measures with it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any

from helpers.bench.loaders import PEERS
from helpers.bench.loaders.peer import Setting
from helpers.bench.loading.breakdown import stages_of
from helpers.bench.loading.config import LoadBenchConfig
from helpers.bench.loading.ours import Ours, run_ours
from helpers.errors import HelpersError, ResourceError

LIMIT_S = 600.0
_ENDING_S = 10.0
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


class Crew:
    """Processes that measure, one for ours and one for each peer and setting.

    Args:
        config: Of the measurement.
    """

    def __init__(self, config: LoadBenchConfig) -> None:
        self._config = config
        self._hands: dict[object, tuple[Any, Connection]] = {}
        self._context = multiprocessing.get_context("spawn")

    def run(self, order: Order) -> Any:
        """Have an order carried out.

        Raises:
            ResourceError: It failed, or its process was killed.
        """
        key = order if isinstance(order, Theirs) else _OURS
        pipe = self._hand(key)
        name = order.peer if isinstance(order, Theirs) else _name(order)
        why = f"no answer in {LIMIT_S:.0f} s"
        try:
            pipe.send(order)
            if pipe.poll(LIMIT_S):
                answer = pipe.recv()
                if not isinstance(answer, str):
                    return answer
                why = answer
        except (EOFError, OSError):
            why = "its process was killed"
        raise ResourceError(
            f"loading with {name} failed: {why}",
            expected="every sample of an epoch",
            next_step="Leave it out with --only, or try its package by itself",
        )

    def close(self) -> None:
        """End the processes, and what they have started."""
        for _, pipe in self._hands.values():
            with contextlib.suppress(OSError):
                pipe.send(None)
        until_s = monotonic() + _ENDING_S
        for process, pipe in self._hands.values():
            process.join(max(0.1, until_s - monotonic()))
            process.kill()
            process.join()
            pipe.close()

    def _hand(self, key: object) -> Connection:
        if key not in self._hands:
            here, there = self._context.Pipe()
            process = self._context.Process(target=_work, args=(there, self._config))
            process.start()  # no daemon: those may have no children
            there.close()
            self._hands[key] = process, here
        return self._hands[key][1]


def _name(order: Ours | tuple[str, Ours]) -> str:
    return order.name if isinstance(order, Ours) else order[1].name


@contextlib.contextmanager
def crew(config: LoadBenchConfig) -> Iterator[Crew]:
    """A crew that is gone when the block ends."""
    found = Crew(config)
    try:
        yield found
    finally:
        found.close()


def _work(pipe: Connection, config: LoadBenchConfig) -> None:
    epochs: dict[Theirs, Callable[[], Any]] = {}
    with contextlib.ExitStack() as stack, contextlib.suppress(EOFError, KeyboardInterrupt):
        while (order := pipe.recv()) is not None:
            try:
                answer = _carried_out(order, config, epochs, stack)
            except Exception as error:  # libraries of others raise anything
                answer = error.got if isinstance(error, HelpersError) else f"{type(error).__name__}: {error}"
            pipe.send(answer)


def _carried_out(
    order: Order,
    config: LoadBenchConfig,
    epochs: dict[Theirs, Callable[[], Any]],
    stack: contextlib.ExitStack,
) -> Any:
    if isinstance(order, Ours):
        return run_ours(order, config)
    if isinstance(order, Theirs):
        if order not in epochs:
            epochs[order] = stack.enter_context(PEERS[order.peer].start(order.setting))
        return epochs[order]()
    _, case = order
    return stages_of(case.path, case.format, case.samples, config)


def versions_wanted(names: Iterable[str]) -> list[str]:
    """The distributions that these peers bring with them."""
    return sorted({package for name in names for package in PEERS[name].packages})
