"""A synthetic data set for a measurement that was given none.

To measure packing it lies in memory, so that no disk is in the way; to measure reading it lies in
the folder for temporary files, so that cold reads are possible where that is a disk.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from smallfiles import sources
from smallfiles.measure.scratch import memory_folder
from smallfiles.pack import PackConfig, pack
from smallfiles.sources import synthetic

SAMPLE_BYTES = 110_000
PACKED = ("set.files", "set.arrow", "set.h5", "set.tars", "set.sqfs")


@contextlib.contextmanager
def example(count: int, seed: int) -> Iterator[Path]:
    """A folder of `count` images in memory, gone when the block ends."""
    with memory_folder(count * SAMPLE_BYTES) as folder:
        yield _made(folder / "data", count, seed)


@contextlib.contextmanager
def packed_example(count: int, seed: int) -> Iterator[list[Path]]:
    """The same in every format, on the storage of temporary files."""
    with tempfile.TemporaryDirectory(prefix="smallfiles-bench-") as name:
        folder = Path(name)
        source = sources.load(_made(folder / "data", count, seed))
        paths = [folder / packed for packed in PACKED]
        for path in paths:
            pack(source, path, PackConfig(verify="none"))
        yield paths


def _made(out: Path, count: int, seed: int) -> Path:
    synthetic.make(out, "folder", count=count, seed=seed, classes=min(10, count))
    return out
