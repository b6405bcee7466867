"""Measurements of notebook 08 and its exercise: a ring filled by another program, a loader in three parts.

    filling      `smallfiles ring fill` as another program, ended when it is no longer needed
    follow       seconds of the stages of a loader: `read` returns bytes and labels, `picture` makes a view
                 of the bytes, `collate` makes a batch of views

The traps: a program that a notebook starts outlives the notebook, and a ring that is not ended keeps its
memory, so it is started in a `with`. And a new process needs seconds (more on a shared file system) for its
imports, so the block begins when the ring exists. Notebook 08 reads from it.
"""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import IO, Any, TypeAlias, cast

import numpy as np
import torch

from helpers.kernel import CHECKOUT
from smallfiles import formats
from smallfiles.images import RandomShortSide, resize
from smallfiles.images.crops import Box, read_header
from smallfiles.images.decoding import Pixels
from smallfiles.images.picture import open_picture
from smallfiles.ring import RingConfig, RingError, lives
from smallfiles.samples import Reader

_PATIENCE_S = 20.0
_START_S, _KNOCK_EACH_S = 300.0, 0.05


@contextlib.contextmanager
def filling(config: RingConfig, data: Path, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    """Fill a ring while this block runs.

    Args:
        config: Name, size and producers of the ring.
        data: The packed file.
        *more: Further flags of `ring fill`, such as those of the batches.

    Raises:
        RingError: The program ended before it filled, with its own words.
    """
    words = shlex.split(config.to_cli(str(data.absolute()), *more))
    with tempfile.TemporaryFile() as output:
        program = subprocess.Popen(  # in the checkout, where `smallfiles` finds the package
            [sys.executable, "-m", *words],
            cwd=CHECKOUT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=output,
        )
        try:
            _wait(program, config, output)
            yield program
        finally:
            program.terminate()  # it frees its ring; one that has ended by itself does not mind
            try:
                program.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()


def _wait(program: subprocess.Popen[bytes], config: RingConfig, output: IO[bytes]) -> None:
    until = time.monotonic() + _START_S
    while not lives(str(config.name), config.where):
        ended = program.poll() is not None
        if ended or time.monotonic() > until:
            output.seek(0)
            raise RingError(
                f"the filler of ring {config.name} {'ended' if ended else 'gave no sign'} before it began",
                expected="a program that fills the ring",
                next_step=f"Read its output: {output.read().decode(errors='replace').strip() or 'nothing'}",
            )
        time.sleep(_KNOCK_EACH_S)


# --- The loader of the exercise, in three parts ---

SIDE, BATCH, STAGES = 224, 16, ("read", "decode and augment", "collate", "send")
Picture: TypeAlias = Callable[[bytes, Box, int], Pixels]
Collate: TypeAlias = Callable[[list[Pixels], list[int]], dict[str, torch.Tensor]]


class Disk:
    """A disk that is slow to open, and counts."""

    def __init__(self, open_s: float = 0.006) -> None:  # as on a busy parallel file system
        self.open_s, self.opens, self.reads = open_s, 0, 0

    def open(self, path: Path) -> OpenFile:
        """Open a packed file."""
        time.sleep(self.open_s)
        self.opens += 1
        return OpenFile(self, formats.open(path))


@dataclass
class OpenFile:
    """An open packed file."""

    disk: Disk
    file: Reader

    def __len__(self) -> int:
        return len(self.file)

    def read(self, index: int) -> bytes:
        """The bytes of one sample."""
        self.disk.reads += 1
        return bytes(self.file.read(index))

    def target(self, index: int) -> int:
        """The label of one sample."""
        return cast(int, self.file.target(index))


class GoodRead:
    """Reads from a file that is opened when it is first needed."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self.disk, self.path = disk, path
        self.file: OpenFile | None = None

    def __call__(self, indices: list[int]) -> list[tuple[bytes, int]]:
        """Bytes and labels."""
        self.file = self.file or self.disk.open(self.path)
        return [(self.file.read(index), self.file.target(index)) for index in indices]


def good_picture(data: bytes, box: Box, size: int) -> Pixels:
    """A view, of which only the part is decoded."""
    return scaled(open_picture(data).part(box, box.height, box.width), size)


def good_collate(pictures: list[Pixels], labels: list[int]) -> dict[str, torch.Tensor]:
    """Bytes in one tensor, labels as whole numbers."""
    return {"image": torch.from_numpy(np.stack(pictures)), "target": torch.tensor(labels, dtype=torch.int64)}


def follow(
    path: Path, *, read: Any = GoodRead, picture: Picture = good_picture, collate: Collate = good_collate
) -> dict[str, float]:
    """Seconds of one worker per batch of 16, by stage; the median of three batches.

    Args:
        path: A packed file.
        read: A class made of a disk and a path; called with numbers of samples.
        picture: Makes a view.
        collate: Makes a batch.
    """
    reading, runs, threads = read(Disk(), path), [], torch.get_num_threads()
    torch.set_num_threads(1)  # as in a worker
    count = len(formats.open(path))
    for at in range(0, 4 * BATCH, BATCH):
        indices, marks = [number % count for number in range(at, at + BATCH)], [perf_counter()]
        samples = reading(indices)
        marks.append(perf_counter())
        views = [picture(data, box_of(data, i), SIDE) for (data, _), i in zip(samples, indices, strict=True)]
        marks.append(perf_counter())
        batch = collate(views, [label for _, label in samples])
        marks.append(perf_counter())
        for tensor in batch.values():  # a worker puts its batch into memory that the trainer sees
            tensor.clone().share_memory_()  # type: ignore[no-untyped-call]
        runs.append(np.diff([*marks, perf_counter()]))
    torch.set_num_threads(threads)
    return dict(zip(STAGES, np.median(runs[1:], axis=0).tolist(), strict=True))


def box_of(data: bytes, index: int) -> Box:
    """The part of a picture that its view shows: a function of the number of the sample."""
    header = read_header(data) or open_picture(data)
    return RandomShortSide().box(header.width, header.height, np.random.default_rng(index))


def scaled(pixels: Pixels, size: int) -> Pixels:
    """Pixels at another size."""
    out = np.empty((size, size, 3), np.uint8)
    resize(pixels, out)
    return out
