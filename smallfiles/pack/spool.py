"""Scaled pictures wait here until the last one is done, since only then is it known how large they are.

A writer wants to know the size of all and of the largest before it begins, so that a file is laid out once
and equal inputs give equal bytes. Of scaled pictures nobody knows it. So they go to a nameless file beside
the output first, which is gone whatever happens.

The trap: this takes the room of a data file twice while it is written. Notebook 08 uses it.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from smallfiles.formats.output import writing
from smallfiles.samples import Buffer, Sample

_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Placed(Sample):
    """A sample that knows its place in its data file; copies of it do too."""

    position: int = 0


class Spool:
    """Bytes of samples on their way, in a file without a name.

    Args:
        file: Where they go.
        folder: Where that is, for messages.
        count: Places in the data file.

    Attributes:
        sizes: Bytes of each, int64; 0 for a place that is empty.
        kept: Whether a place is taken, bool.
    """

    def __init__(self, file: IO[bytes], folder: Path, count: int) -> None:
        self._file, self._folder = file, folder
        self.sizes = np.zeros(count, np.int64)
        self.kept = np.zeros(count, bool)

    def add(self, position: int, data: Buffer) -> None:
        """Append the bytes of a place; places come in order."""
        with writing(self._folder):
            self._file.write(data)
        self.sizes[position], self.kept[position] = len(data), True

    def read(self) -> Iterator[bytes]:
        """The bytes of all, in order."""
        with writing(self._folder):
            self._file.flush()
            self._file.seek(0)
        for size in self.sizes[self.kept].tolist():
            with writing(self._folder):
                data = self._file.read(size)
            yield data


@contextlib.contextmanager
def spool(folder: Path, count: int) -> Iterator[Spool]:
    """A spool in a folder; nothing of it is left when the block ends, or when the process does."""
    with contextlib.ExitStack() as stack:
        with writing(folder):
            file = stack.enter_context(tempfile.TemporaryFile(dir=folder, buffering=_BUFFER_BYTES))
            os.fchmod(file.fileno(), 0o600)
        yield Spool(file, folder, count)
