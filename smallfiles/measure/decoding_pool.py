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
from time import perf_counter, process_time
from typing import Any

from smallfiles.measure.decoding_methods import Epoch, candidates
from smallfiles.measure.protocol import Outcome
from smallfiles.measure.workers import Worker, WorkFailed, last_words, serve

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["smallfiles.measure.decoding_pool", "torchvision"])


class WorkerPool:
    """Processes with the same pictures in memory.

    Args:
        files: Encoded pictures.
        workers: How many processes; a peer gets as many threads of one process.
        seed: Of the crops.
        others: The module with the methods of others.
    """

    def __init__(self, files: Sequence[bytes], workers: int, seed: int, others: str = "") -> None:
        self.samples = len(files)
        self.bytes = sum(map(len, files))
        self._files, self._workers, self._seed = list(files), workers, seed
        self._others, self._peers = others, candidates(others)[1]
        self._hands: dict[str, list[Worker]] = {}

    def run(self, name: str) -> Outcome:
        """All pictures once, by a method or a peer.

        Raises:
            WorkFailed: A process failed, hung or was killed.
        """
        hands = self._of(name)
        began = perf_counter()
        for hand in hands:
            hand.send(name)
        answers = [self._answer(hand) for hand in hands]  # all of them, or the next run would find one
        seconds = perf_counter() - began
        wrong = next((answer for answer in answers if isinstance(answer, WorkFailed)), None)
        if wrong is not None:
            raise wrong
        return Outcome(self.samples, self.bytes, seconds, {"cpu_s": sum(answers)})

    def close(self) -> None:
        """End the processes."""
        for hand in [hand for hands in self._hands.values() for hand in hands]:
            hand.end()

    def _of(self, name: str) -> list[Worker]:
        """The processes for a method or a peer: those that wait, or new ones for those that are gone."""
        of = 1 if name in self._peers else self._workers
        hands = self._hands.setdefault(name if name in self._peers else "", [])
        if not hands or any(hand.ended for hand in hands):
            for hand in hands:
                hand.end()
            more = (of, self._workers, self._seed, self._others)
            arguments = [(self._files, number, *more) for number in range(of)]
            hands[:] = [Worker(_CONTEXT, _work, *each) for each in arguments]
        return hands

    def _answer(self, hand: Worker) -> Any:
        try:
            return hand.answer(self.samples)
        except WorkFailed as error:
            return error


@contextlib.contextmanager
def worker_pool(files: Sequence[bytes], workers: int, seed: int, others: str = "") -> Iterator[WorkerPool]:
    """A pool that is gone when the block ends."""
    found = WorkerPool(files, workers, seed, others)
    try:
        yield found
    finally:
        found.close()


def _work(
    pipe: Connection, files: list[bytes], number: int, of: int, threads: int, seed: int, others: str
) -> None:
    with contextlib.ExitStack() as open_peers:
        started = _Started(files, number, of, threads, seed, others, open_peers)

        def carry_out(name: str) -> float:
            epoch = started.get(name)
            began = process_time()
            done, expected = epoch(), started.expected(name)
            if done != expected:
                raise WorkFailed(f"{done:,} of {expected:,} pictures came{last_words()}")
            return process_time() - began

        serve(pipe, carry_out)


class _Started:
    """The methods that this process has used, ready to be used again."""

    def __init__(
        self,
        files: list[bytes],
        number: int,
        of: int,
        threads: int,
        seed: int,
        others: str,
        stack: contextlib.ExitStack,
    ) -> None:
        import numpy as np
        import torch

        torch.set_num_threads(1)
        self._files, self._threads, self._stack = files, threads, stack
        self._own = files[number::of]
        self._rng = np.random.default_rng((seed, number))
        self._methods, self._peers = candidates(others)
        self._epochs: dict[str, Epoch] = {}

    def get(self, name: str) -> Epoch:
        if name not in self._epochs:
            self._epochs[name] = self._peer(name) if name in self._peers else self._method(name)
        return self._epochs[name]

    def expected(self, name: str) -> int:
        """How many pictures a run of this process gives."""
        return len(self._files if name in self._peers else self._own)

    def _peer(self, name: str) -> Epoch:
        return self._stack.enter_context(self._peers[name].start(self._files, self._threads))

    def _method(self, name: str) -> Epoch:
        one = self._methods[name].make()

        def epoch() -> int:
            for data in self._own:
                one(data, self._rng)
            return len(self._own)

        return epoch
