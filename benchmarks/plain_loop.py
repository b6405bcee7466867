"""Read a plain `IterableDataset`, as notebook 10 does: the loop of `results/audits/plain_loop.json`.

The trap is what it shows: nothing divides the samples, so each of two ranks receives all of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, IterableDataset


class Numbers(IterableDataset[torch.Tensor]):
    """Deliver 100 samples, in a new order in each epoch."""

    epoch = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in random.Random(self.epoch).sample(range(100), 100):
            yield torch.tensor(number)


if __name__ == "__main__":
    numbers = Numbers()
    for numbers.epoch in range(2):
        for _batch in DataLoader(numbers, batch_size=10):
            pass  # a training step
