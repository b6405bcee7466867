"""Processes that decode when told: started once, and used for every method and round.

Importing PyTorch takes seconds, a run half a second. So it is
imported once, in a process that the others are forked from, and all methods share the same processes,
each of which keeps the pictures in memory. The clock runs from the order to the last answer.

The trap: libraries that start threads of their own use cores that the others were not given. Each is
told to use one, and loaders of others have a process each: FFCV sets the number of threads of everything
in its process, PyTorch included. Notebook 08 measures with it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from time import perf_counter, process_time
from typing import Any, TypeAlias

from helpers.bench.decoding_methods import METHODS
from helpers.bench.decoding_peers import PEERS, Epoch
from helpers.bench.protocol import Outcome
from helpers.errors import HelpersError, ResourceError

_LIMIT_S = 300.0
_STOP = ""
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["helpers.bench.decoding_crew", "torchvision"])
_Hand: TypeAlias = tuple[BaseProcess, Connection]


class Crew:
    """Processes with the same pictures in memory.

    Args:
        files: Encoded pictures.
        workers: How many processes; a peer gets as many threads of one process.
        seed: Of the crops.
    """

    def __init__(self, files: Sequence[bytes], workers: int, seed: int) -> None:
        self.samples = len(files)
        self.bytes = sum(map(len, files))
        self._files, self._workers, self._seed = list(files), workers, seed
        self._peers: dict[str, _Hand] = {}
        self._hands = [self._hired(number, workers) for number in range(workers)]

    def run(self, name: str) -> Outcome:
        """All pictures once, by a method or a peer.

        Raises:
            ResourceError: A process failed or was killed.
        """
        if name in PEERS and name not in self._peers:
            self._peers[name] = self._hired(0, 1)
        hands = [self._peers[name]] if name in PEERS else self._hands
        began = perf_counter()
        for _, pipe in hands:
            with contextlib.suppress(OSError):  # one that was killed; its answer tells
                pipe.send(name)
        answers = [self._answer(pipe, name) for _, pipe in hands]
        seconds = perf_counter() - began
        return Outcome(self.samples, self.bytes, seconds, {"cpu_s": sum(answers)})

    def close(self) -> None:
        """End the processes."""
        for process, pipe in [*self._hands, *self._peers.values()]:
            with contextlib.suppress(OSError):
                pipe.send(_STOP)
            process.join(5.0)
            process.kill()
            process.join()
            pipe.close()

    def _hired(self, number: int, of: int) -> _Hand:
        here, there = _CONTEXT.Pipe()
        arguments = (there, self._files, number, of, self._workers, self._seed)
        # No daemon: those may have no children, and FFCV writes its file with some.
        process = _CONTEXT.Process(target=_work, args=arguments)
        process.start()
        there.close()
        return process, here

    def _answer(self, pipe: Connection, name: str) -> float:
        why = f"no answer in {_LIMIT_S:.0f} s"
        try:
            if pipe.poll(_LIMIT_S):
                answer = pipe.recv()
                if isinstance(answer, float):
                    return answer
                why = str(answer)
        except (EOFError, OSError):
            why = "its process was killed"
        raise ResourceError(
            f"decoding with {name} failed: {why}",
            expected="every picture decoded",
            next_step="Leave this method out, or try its package by itself",
        )


@contextlib.contextmanager
def crew(files: Sequence[bytes], workers: int, seed: int) -> Iterator[Crew]:
    """A crew that is gone when the block ends."""
    found = Crew(files, workers, seed)
    try:
        yield found
    finally:
        found.close()


def _work(pipe: Connection, files: list[bytes], number: int, of: int, threads: int, seed: int) -> None:
    with contextlib.ExitStack() as open_peers, contextlib.suppress(EOFError, KeyboardInterrupt):
        started = _Started(files, number, of, threads, seed, open_peers)
        while (name := pipe.recv()) != _STOP:
            try:
                epoch = started.get(name)
                began = process_time()
                done = epoch()
                answer: Any = process_time() - began
                if done != started.expected(name):
                    answer = f"{done:,} of {started.expected(name):,} pictures came"
            except Exception as error:  # libraries of others raise anything
                answer = error.got if isinstance(error, HelpersError) else f"{type(error).__name__}: {error}"
            pipe.send(answer)


class _Started:
    """The methods that this process has used, ready to be used again."""

    def __init__(
        self,
        files: list[bytes],
        number: int,
        of: int,
        threads: int,
        seed: int,
        stack: contextlib.ExitStack,
    ) -> None:
        import numpy as np
        import torch

        torch.set_num_threads(1)
        self._files, self._threads, self._stack = files, threads, stack
        self._own = files[number::of]
        self._rng = np.random.default_rng((seed, number))
        self._epochs: dict[str, Epoch] = {}

    def get(self, name: str) -> Epoch:
        if name not in self._epochs:
            self._epochs[name] = self._peer(name) if name in PEERS else self._method(name)
        return self._epochs[name]

    def expected(self, name: str) -> int:
        """How many pictures a run of this process gives."""
        return len(self._files if name in PEERS else self._own)

    def _peer(self, name: str) -> Epoch:
        return self._stack.enter_context(PEERS[name].start(self._files, self._threads))

    def _method(self, name: str) -> Epoch:
        one = METHODS[name].make()

        def epoch() -> int:
            for data in self._own:
                one(data, self._rng)
            return len(self._own)

        return epoch
