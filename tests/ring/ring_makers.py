"""Batch makers for the tests of the ring: every byte a function of seed, epoch and index."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from smallfiles.loading.makers import Batch, Fault, SampleRngs, allocate

WIDTH = 300


class Fifty:
    """What a loader asks of a reader before it reads: fifty samples, of a seed that nobody wrote down."""

    def __len__(self):
        return 50

    def info(self):
        return {}

    def key(self, row):
        return f"{row}.raw"

    def size(self, row):
        return 100 + row

    @property
    def fields(self):
        return {"data": ".raw", "label": "int64"}

    def table(self, names, rows):
        return pa.table({"label": [row % 3 for row in rows]})


@dataclass(frozen=True)
class Numbers:
    """Fast batches; `delay_s` makes them slower, `seed` different."""

    seed: int = 0
    delay_s: float = 0.0
    fixed = True

    @property
    def reader(self):
        return Fifty()

    def layout(self, count):
        pixels = ((count, WIDTH), np.dtype(np.uint8))
        return {"pixels": pixels, "index": ((count,), np.dtype(np.int64))}

    def make(self, indices, epoch, out=None):
        count = len(indices)
        arrays = allocate(self.layout(count)) if out is None else {k: v[:count] for k, v in out.items()}
        rngs = SampleRngs(self.seed, epoch)
        for place, index in enumerate(indices):
            self.sample(int(index), epoch)
            arrays["pixels"][place] = rngs.at(int(index)).integers(0, 256, WIDTH, np.uint8)
            arrays["index"][place] = index
            time.sleep(self.delay_s / count)
        return Batch(arrays)

    def sample(self, index, epoch):
        """A place for failures."""


@dataclass(frozen=True)
class Raising(Numbers):
    """Foreign code that fails at a sample in an epoch."""

    bad: int = 13
    bad_epoch: int = 0

    def sample(self, index, epoch):
        if (index, epoch) == (self.bad, self.bad_epoch):
            error = ValueError("the colours are wrong")
            error.add_note(f"This was sample {index}.")
            raise error


@dataclass(frozen=True)
class Deadly(Numbers):
    """Kills its process at a sample, so many times; the deaths are counted in a file."""

    bad: int = 13
    deaths: int = 99
    tally: str = ""

    def sample(self, index, epoch):
        if index == self.bad:
            tally = Path(self.tally)
            if len(tally.read_bytes()) < self.deaths:
                with tally.open("ab") as file:
                    file.write(b"x")
                os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Skipping(Numbers):
    """Leaves every seventh sample out and says so."""

    def make(self, indices, epoch, out=None):
        kept = [int(index) for index in indices if index % 7]
        faults = tuple(Fault(int(i), f"images/{i}.jpg", "cut off") for i in indices if not i % 7)
        return Batch(super().make(kept, epoch, out).arrays, faults)


@dataclass(frozen=True)
class Elsewhere(Numbers):
    """Does not fill what it is given."""

    def make(self, indices, epoch, out=None):
        return super().make(indices, epoch)
