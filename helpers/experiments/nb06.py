"""One reader, used by several forked workers: how many samples come out wrong?

Workers inherit what the parent opened. A reader that seeks and then reads moves an offset that all of
them share; one that names the position in each call does not.

The trap: nothing raises. The bytes are bytes of the same file, only of another sample; so each read is
compared with the truth. Notebook 06 shows it in a DataLoader, its exercise counts here.
"""

from __future__ import annotations

import multiprocessing
import random
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import xxhash

WORKERS = 2


@dataclass(frozen=True)
class Trial:
    """What came of it.

    Args:
        reads: Of all workers together.
        wrong: Reads that returned other bytes, without any error.
        errors: Reads that raised.
    """

    reads: int
    wrong: int
    errors: int

    def summary(self, name: str) -> str:
        """The count in words."""
        errors = f", and {self.errors:,} raised" if self.errors else ""
        return f"{name}: **{self.wrong:,} wrong samples** of {self.reads:,}{errors}"

    @property
    def in_words(self) -> str:
        """What that means."""
        if not self.wrong:
            return (
                "No sample was wrong this time: the workers did not meet, which depends on chance and on the "
                "number of CPUs. A reader that moves a shared offset is wrong all the same."
            )
        errors = "no error told of it" if not self.errors else f"{self.errors:,} errors told of some"
        return f"One sample in {self.reads / self.wrong:,.0f} was wrong, and {errors}."


def count_wrong(
    read: Callable[[int], Any],
    truth: Sequence[bytes],
    *,
    seconds: float = 1.0,
    workers: int = WORKERS,
    spare_s: float = 20.0,
) -> Trial:
    """Have forked workers read samples at random for a while, and compare each with the truth.

    Args:
        read: From the number of a sample to its bytes; opened by the caller, before the fork.
        truth: What each sample is.
        seconds: How long the workers read.
        workers: How many.
        spare_s: Seconds more, after which a worker that hangs is killed.

    Returns:
        Counts of all workers; one that died counts as an error.
    """
    sums = [xxhash.xxh3_64_intdigest(data) for data in truth]
    context = multiprocessing.get_context("fork")
    channels = [context.Pipe(duplex=False) for _ in range(workers)]
    pool = [
        context.Process(target=_work, args=(read, sums, seconds, seed, sender), daemon=True)
        for seed, (_, sender) in enumerate(channels)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a kernel has threads; the workers use none
        for process in pool:
            process.start()
    for _, sender in channels:
        sender.close()
    found = [
        _answer(process, receiver, seconds + spare_s)
        for process, (receiver, _) in zip(pool, channels, strict=True)
    ]
    return Trial(*(sum(counts) for counts in zip(*found, strict=True)))


def _answer(process: Any, receiver: Any, limit_s: float) -> tuple[int, int, int]:
    try:
        found: tuple[int, int, int] = receiver.recv() if receiver.poll(limit_s) else (0, 0, 1)
    except EOFError:
        found = (0, 0, 1)
    finally:
        receiver.close()
    process.join(1)
    if process.is_alive():
        process.kill()
        process.join()
    return found


def _work(read: Callable[[int], Any], sums: list[int], seconds: float, seed: int, sender: Any) -> None:
    chosen, end = random.Random(seed), time.monotonic() + seconds
    reads = wrong = errors = 0
    while time.monotonic() < end:
        index = chosen.randrange(len(sums))
        reads += 1
        try:
            wrong += xxhash.xxh3_64_intdigest(read(index)) != sums[index]
        except Exception:  # a reader that meets nonsense raises whatever it likes
            errors += 1
    sender.send((reads, wrong, errors))
