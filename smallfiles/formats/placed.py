"""Readers whose samples are each one run of bytes in a file: reading is finding the place.

The trap: reading the samples of a batch one after the other waits for the disk or the server as often
as there are samples. `read_many` says first which bytes it will want, then reads. Notebook 04 measures
a cold epoch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from smallfiles.formats.reader import BaseReader, Handle
from smallfiles.samples import Buffer


class Store(Protocol):
    """Bytes by position: a file, or a compressed one as if it were not."""

    path: Path
    size: int

    def read(self, start: int, stop: int) -> Buffer:
        """The bytes from `start` to `stop`; an error if they are not all there."""

    def expect(self, start: int, stop: int) -> None:
        """Say that these bytes are read soon."""


class PlacedReader(BaseReader[Handle]):
    """Adds reading to a format that can say where a sample lies."""

    @abstractmethod
    def _place(self, index: int) -> tuple[Store, int, int]:
        """Store, first byte and one after the last of a sample; `index` was checked."""

    def _expect_places(self, indices: Sequence[int]) -> None:
        """Announce what tells the places of these samples, where that is spread over the file."""

    def size(self, index: int) -> int:
        _, start, stop = self._place(self._checked(index))
        return stop - start

    def read(self, index: int) -> Buffer:
        store, start, stop = self._place(self._checked(index))
        return store.read(start, stop)

    def span(self, index: int) -> tuple[Path, int, int] | None:
        store, start, stop = self._place(self._checked(index))
        return store.path, start, stop

    def read_many(self, indices: Sequence[int]) -> list[Buffer]:
        """Several samples in the order asked for.

        All of them are announced to the kernel in stored order before the first is read, so that a cold
        batch waits for its samples together and not for each in turn.
        """
        wanted = [self._checked(index) for index in indices]
        order = sorted(set(wanted))
        self._expect_places(order)
        places = {index: self._place(index) for index in order}
        for store, start, stop in places.values():
            store.expect(start, stop)
        found = {index: store.read(start, stop) for index, (store, start, stop) in places.items()}
        return [found[index] for index in wanted]
