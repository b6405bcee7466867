"""Notebook 02: a manifest as long as one likes, with paths as long as ImageNet's, and what its workers copy.

The trap: short names would make the list of paths look cheap; those of ImageNet have about 50 characters.
"""

from __future__ import annotations

import gc
import multiprocessing
import random
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from smallfiles.manifest import Manifest

IMAGENET = 1_281_167
"""Training images of ImageNet-1k."""


def long_manifest(folder: Path, rows: int) -> Path:
    """A manifest of so many images of a thousand classes, written at the first call.

    Args:
        folder: Where to write it.
        rows: Number of images.
    """
    path = folder / f"{rows}.json"
    if not path.exists():
        names = [f"ILSVRC/Data/CLS-LOC/train/n{n % 1000:08d}/n{n % 1000:08d}_{n}.JPEG" for n in range(rows)]
        Manifest.from_columns(names, [n % 1000 for n in range(rows)]).save(path)
    return path


def list_bytes(pairs: Sequence[tuple[str, int]]) -> int:
    """Memory of a list of pairs with all that it holds: equal small labels are one object.

    Args:
        pairs: Paths with their labels.
    """
    objects = {id(each): each for pair in pairs for each in (pair, *pair)}.values()
    rounded = (-(-sys.getsizeof(each) // 16) * 16 for each in objects)  # as Python allocates them
    return sys.getsizeof(pairs) + sum(rounded)


def copied_by_workers(
    dataset: Any, rows: int, stops: Iterable[int], cost: Callable[[], float], workers: int = 4
) -> dict[int, list[float]]:
    """Fork workers that read the rows of a dataset in random order, each its own share.

    Args:
        dataset: Whose items are read, and nothing else.
        rows: Number of items.
        stops: After how many reads of a worker the cost is noted, in rising order.
        cost: Called in the worker: memory that it has written to.
        workers: How many are forked.

    Returns:
        For each stop what the cost of each worker has grown by.
    """
    stops, fork = list(stops), multiprocessing.get_context("fork")
    answers = fork.SimpleQueue()

    def work(number: int) -> None:
        gc.disable()  # the collector would touch objects, too
        order = random.Random(0).sample(range(rows), rows)[number::workers]
        before, read, found = cost(), 0, []
        for stop in stops:
            while read < stop:
                dataset[order[read]]  # all that a worker does with the list
                read += 1
            found.append(cost() - before)
        answers.put(found)

    started = [fork.Process(target=work, args=(number,)) for number in range(workers)]
    for process in started:
        process.start()
    grown = [answers.get() for _ in started]
    for process in started:
        process.join()
    return {stop: list(column) for stop, column in zip(stops, zip(*grown, strict=True), strict=True)}
