"""The ends of files in shared blocks (fragments), if the settings say so.

The trap: a random read of a small file in a fragment unpacks a whole block, of which nine tenths belong to
other files. Fragments save space for small files that compress; photographs are neither.
"""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import numpy.typing as npt

from pysquashfs import layout
from pysquashfs.writer.blocks import Blocks


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
