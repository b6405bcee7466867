"""Which requests fetch samples that are read in a known order: arithmetic, without a network.

A request fetches whole blocks, since each has a digest. Adjacent samples of one stretch come in few long
requests; each is made once, and its bytes are released after its last sample.

The trap: the last sample of a part nearly always reaches into the next part. A stream that is dealt single
parts of 16 MiB fetches a block of 4 MiB too many for each; so it is dealt stretches of three parts.

Short, since its arithmetic is tested without a store.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Numbers: TypeAlias = npt.NDArray[np.int64]


class Extents(NamedTuple):
    """Where samples are; each field is an array with one number per sample.

    Args:
        shards: The shard.
        stretches: The stretch; no request reaches over the end of one.
        first: The block in which the sample begins.
        stop: One after the block in which it ends; equal to `first` for a sample without bytes.
    """

    shards: Numbers
    stretches: Numbers
    first: Numbers
    stop: Numbers


class Requests:
    """The requests for samples, numbered by position in the shards.

    Args:
        order: Numbers of the samples in the order in which they are read.
        extents: Where they are.
        step: Blocks per request, about.
    """

    def __init__(self, order: Numbers, extents: Extents, step: int) -> None:
        self._order = order
        by_number = np.argsort(self._order, kind="stable")
        by_number = by_number[(extents.stop > extents.first)[by_number]]
        self._numbers = self._order[by_number]
        shards, stretches, first, stop = (each[by_number] for each in extents)
        apart = (stretches[1:] != stretches[:-1]) | (first[1:] > stop[:-1])
        begins = np.flatnonzero(np.append(np.ones(min(len(first), 1), bool), apart))
        run = np.repeat(np.arange(len(begins)), np.diff(np.append(begins, len(first))))
        self._shards, self._begins = shards[begins], first[begins]
        self._blocks = (np.maximum.reduceat(stop, begins) if len(begins) else begins) - self._begins
        self._pieces = np.maximum(1, np.rint(self._blocks / step)).astype(np.int64)
        self._before = np.cumsum(self._pieces) - self._pieces
        self._low, self._high = (self._holding(run, block) for block in (first, stop - 1))
        uses = np.zeros(int(self._pieces.sum()) + 1, np.int64)
        np.add.at(uses, self._low, 1)
        np.add.at(uses, self._high + 1, -1)
        self._uses = np.cumsum(uses)[:-1].tolist()

    def _holding(self, run: Numbers, block: Numbers) -> Numbers:
        """The request for a block of a run; the requests of a run differ by at most one block in length."""
        within = ((block - self._begins[run] + 1) * self._pieces[run] - 1) // self._blocks[run]
        found: Numbers = self._before[run] + within
        return found

    def __len__(self) -> int:
        return len(self._uses)

    def __iter__(self) -> Iterator[int]:
        """Each request once, in the order in which it is needed."""
        made = bytearray(len(self._uses))
        for index in self._order.tolist():
            for number in self.of(index):
                if not made[number]:
                    made[number] = 1
                    yield number

    def of(self, index: int) -> range:
        """The requests that fetch a sample; none for one without bytes."""
        place = int(np.searchsorted(self._numbers, index))
        if place == len(self._numbers) or self._numbers[place] != index:
            return range(0)
        return range(int(self._low[place]), int(self._high[place]) + 1)

    def blocks(self, number: int) -> tuple[int, int, int]:
        """What a request fetches: shard, first block, and one after the last."""
        run = int(np.searchsorted(self._before, number, "right")) - 1
        piece, pieces, blocks = (
            number - int(self._before[run]),
            int(self._pieces[run]),
            int(self._blocks[run]),
        )
        first, stop = (int(self._begins[run]) + blocks * part // pieces for part in (piece, piece + 1))
        return int(self._shards[run]), first, stop

    def read(self, index: int) -> list[int]:
        """Count a sample as read; returns the requests that no later sample needs."""
        for number in self.of(index):
            self._uses[number] -= 1
        return [number for number in self.of(index) if not self._uses[number]]
