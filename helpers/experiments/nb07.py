"""Slow storage of notebook 07: a packed file and the small files it was packed from.

    with on_slow_storage(packed, folder, config) as slow:
        task = slow.task(copy, slow.packed, to)    # a call without arguments, for `measure.compare`

The trap: where no folder can be mounted nothing is slow, and a comparison would show this disk. There a task
sleeps as long as the storage would take, and `note` says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from smallfiles.slowfs import SlowConfig, open_slow


@dataclass(frozen=True)
class Slow:
    """A packed file and a folder of small files, as slow storage shows them.

    Args:
        packed: The packed file.
        files: The folder.
        config: The storage; None where it is mounted, since then every access is slow by itself.
    """

    packed: Path
    files: Path
    config: SlowConfig | None = None

    @property
    def note(self) -> str:
        """What a figure has to say about it."""
        return ", slept: nothing can be mounted here" if self.config else ""

    def task(
        self, work: Callable[..., Any], *arguments: object, operations: int = 2, reads: int = 0
    ) -> Callable[[], Any]:
        """`work(*arguments)`, which takes so many look-ups and opens, and reads so many bytes.

        One file takes a look-up and an open; `cp -r` looks each file up twice.
        """
        if not self.config:
            return partial(work, *arguments)
        waits_s = self.config.latency_s * operations
        waits_s += reads / (self.config.bandwidth_bytes_s or float("inf"))
        return partial(_late, waits_s, work, *arguments)


def _late(seconds: float, work: Callable[..., Any], *arguments: object) -> Any:
    time.sleep(seconds)
    return work(*arguments)


@contextmanager
def on_slow_storage(packed: Path, files: Path, config: SlowConfig) -> Iterator[Slow]:
    """Show a packed file and a folder through slow storage until the block ends."""
    with ExitStack() as stack:
        places = [stack.enter_context(open_slow(folder, config)) for folder in (packed.parent, files)]
        if all(place.how == "fuse" for place in places):
            yield Slow(places[0] / packed.name, places[1].path)
        else:
            yield Slow(packed, files, config)
