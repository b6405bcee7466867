"""The samples that exercise 04 is tried on, and how its answers are measured.

The trap: an easy set proves little. Samples of zero bytes stand at both ends, labels need 16 bits and a
sign, and one set is large enough that holding all of it in memory is seen. Exercise 04 uses it.
"""

from __future__ import annotations

import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from smallfiles.samples import Sample

Item: TypeAlias = tuple[bytes, int]
"""Bytes and label."""


def small_set() -> list[Item]:
    """Few samples with everything odd: no bytes at either end, labels of 16 bits, an unknown class."""
    sizes = [0, 90_000, 3, 0, 120_000, 1, 110_000, 64_000, 0]
    labels = [999, 130, 0, 524, -1, 255, 300, 1, 65]
    return _items(sizes, labels)


def large_set() -> list[Item]:
    """Enough samples that holding all of them in memory is seen."""
    sizes = [100_000 + 977 * n for n in range(48)]
    return _items(sizes, [(n * 37) % 1000 for n in range(48)])


def heavy_set() -> list[Item]:
    """Few but large samples, so that the time goes into their bytes."""
    return _items([1_500_000] * 3, [3, 1, 2])


def _items(sizes: Sequence[int], labels: Sequence[int]) -> list[Item]:
    chosen = np.random.default_rng(4)
    return [(chosen.bytes(size), label) for size, label in zip(sizes, labels, strict=True)]


def samples_of(items: Sequence[Item]) -> list[Sample]:
    """The same as the package's writers take it."""
    return [Sample(str(n), data, label) for n, (data, label) in enumerate(items)]


@contextmanager
def folder() -> Iterator[Path]:
    """A folder for the files of a check, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="exercise-04-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def peak_of(call: Callable[[], Any]) -> tuple[int, Any]:
    """Most memory in bytes that Python held during a call, and its result; slows Python down."""
    tracemalloc.start()
    try:
        result = call()
        return tracemalloc.get_traced_memory()[1], result
    finally:
        tracemalloc.stop()


def cpu_of(call: Callable[[], Any]) -> tuple[float, Any]:
    """Processor seconds of a call, which other programs hardly disturb, and its result."""
    began = time.process_time()
    result = call()
    return time.process_time() - began, result
