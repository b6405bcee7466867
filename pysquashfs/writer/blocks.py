"""Write data in order: whole files raw, blocks that several threads compress, ends of files in shared ones.

The trap: the position of a block is known only when all blocks before it are compressed. So positions are
recorded when a block is written, not when it is queued; and the queue is bounded. Another one: a random read
of a small file in a shared block (a fragment) unpacks all of it, of which nine tenths belong to other files.
Fragments save space for small files that compress; photographs are neither.
"""

from __future__ import annotations

import os
from array import array
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from pysquashfs import compression, layout
from pysquashfs.compression import Buffer
from pysquashfs.writer.metadata import Sink
from pysquashfs.writer.settings import Settings

_BATCH_BYTES = 256 << 10  # one task of a thread: large enough that queueing it costs nothing
_BATCHES_AHEAD = 4  # per thread
_FRAGMENT = -1


class Blocks:
    """Writes the data of an image block after block, and records the positions.

    Keeps 8 bytes per file, 4 per block, 16 per fragment, and a few blocks per thread.

    Args:
        sink: Takes bytes, in order.
        settings: How to store blocks.
        position: Where in the image the next byte goes.
    """

    def __init__(self, sink: Sink, settings: Settings, position: int) -> None:
        self._sink = sink
        self._settings = settings
        self.position = position
        self.starts = array("Q")  # one per file
        self.words = array("I")  # one per block
        self.fragments: list[bytes] = []  # entries of their table
        self.fragment_count = 0  # including those not yet written
        self._batch: list[tuple[int, bytes]] = []
        self._batch_bytes = 0
        self._waiting: deque[tuple[list[tuple[int, bytes]], Future[list[bytes]]]] = deque()
        self._most_waiting = _BATCHES_AHEAD * usable_cpus()
        self._pool = None if settings.raw else ThreadPoolExecutor(usable_cpus(), "squash")

    def begin(self) -> None:
        """Start the next file, to which the following blocks belong."""
        self.starts.append(self.position if self._pool is None else 0)

    def add(self, data: memoryview, first: bool) -> None:
        """Add blocks of the current file: whole ones, or its last.

        Args:
            data: Bytes; may be reused by the caller afterwards.
            first: Whether the file begins with them.
        """
        size, file = self._settings.block_bytes, len(self.starts) - 1
        if self._pool is None:
            whole, rest = divmod(len(data), size)
            self.words.extend([size | layout.DATA_RAW] * whole)
            if rest:
                self.words.append(rest | layout.DATA_RAW)
            self.write([data])
            return
        for start in range(0, len(data), size):
            self._enqueue((file + 1) if first and not start else 0, bytes(data[start : start + size]))

    def add_fragment(self, data: bytes) -> None:
        """Add a block with the ends of several files."""
        self.fragment_count += 1
        if self._pool is None:
            self._store(_FRAGMENT, data, data)
        else:
            self._enqueue(_FRAGMENT, data)

    def _enqueue(self, owner: int, block: bytes) -> None:
        """`owner` is 1 + the number of the file that begins here, 0 if none does, or `_FRAGMENT`."""
        self._batch.append((owner, block))
        self._batch_bytes += len(block)
        if self._batch_bytes >= _BATCH_BYTES:
            self._submit()
            while len(self._waiting) > self._most_waiting:
                self._drain_one()

    def _submit(self) -> None:
        if self._batch and self._pool is not None:
            task = self._pool.submit(_compressed, [block for _, block in self._batch], self._settings)
            self._waiting.append((self._batch, task))
        self._batch, self._batch_bytes = [], 0

    def _drain_one(self) -> None:
        batch, task = self._waiting.popleft()
        for (owner, block), stored in zip(batch, task.result(), strict=True):
            self._store(owner, block, stored)

    def _store(self, owner: int, block: bytes, stored: bytes) -> None:
        word = len(stored)
        if word >= len(block):
            stored, word = block, len(block) | layout.DATA_RAW
        if owner == _FRAGMENT:
            self.fragments.append(layout.FRAGMENT_ENTRY.pack(self.position, word, 0))
        else:
            self.words.append(word)
            if owner:
                self.starts[owner - 1] = self.position
        self.write([stored])

    def write(self, pieces: Sequence[Buffer]) -> None:
        """Write bytes as they are."""
        self._sink(pieces)
        self.position += sum(map(len, pieces))

    def finish(self) -> None:
        """Write what is still queued."""
        self._submit()
        while self._waiting:
            self._drain_one()
        self.close()

    def close(self) -> None:
        """Stop the threads and drop their tasks."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)


def usable_cpus() -> int:
    """CPUs of this process: as many threads compress."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _compressed(blocks: list[bytes], settings: Settings) -> list[bytes]:
    return [compression.compress(settings.compression, block, settings.level) for block in blocks]


class Tails:
    """Collects ends of files; takes 8 bytes per file if enabled.

    Args:
        blocks: Stores a full fragment.
        block_bytes: Largest size of a fragment.
        enabled: Whether to make fragments.
    """

    def __init__(self, blocks: Blocks, block_bytes: int, enabled: bool) -> None:
        self._blocks = blocks
        self._block_bytes = block_bytes
        self.enabled = enabled
        self._fragments = array("I")
        self._offsets = array("I")
        self._open = bytearray()

    def add(self, data: memoryview) -> None:
        """Add the end of a file, which may be empty; called once per file, in order."""
        if not self.enabled:
            return
        if len(self._open) + len(data) > self._block_bytes:
            self.finish()
        self._fragments.append(self._blocks.fragment_count if len(data) else layout.NO_FRAGMENT)
        self._offsets.append(len(self._open) if len(data) else 0)
        self._open += data

    def finish(self) -> None:
        """Store what was collected."""
        if self._open:
            self._blocks.add_fragment(bytes(self._open))
            self._open.clear()

    def place(self, file: int) -> tuple[int, int]:
        """The fragment of a file, and where in it its end is."""
        return (self._fragments[file], self._offsets[file]) if self.enabled else (layout.NO_FRAGMENT, 0)

    def in_fragments(self, files: int) -> npt.NDArray[Any]:
        """Which files have their end in a fragment."""
        if not self.enabled:
            return np.zeros(files, bool)
        return np.asarray(np.array(self._fragments, np.uint32) != layout.NO_FRAGMENT)
