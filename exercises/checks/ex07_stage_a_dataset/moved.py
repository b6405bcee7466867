"""Notice how far a copy has come, whatever calls it uses, and stop the process in the middle of it.

The functions through which Python writes files are replaced by ones that count bytes; at a given count
the process stops itself with SIGSTOP, and goes on when it is told to. The trap: a copy of some megabytes
takes some milliseconds, so a test that sleeps and hopes meets its middle once in ten runs. Exercise 07.
"""

from __future__ import annotations

import builtins
import io
import os
import signal
from collections.abc import Callable
from typing import Any

PIECE_BYTES = 64 << 10


class Meter:
    """Counts written bytes of this process, and stops it once.

    Args:
        stop_at: After so many bytes.
    """

    def __init__(self, stop_at: int) -> None:
        self._left: int | None = stop_at

    def add(self, count: int) -> None:
        """So many bytes were written."""
        if self._left is None:
            return
        self._left -= count
        if self._left <= 0:
            self._left = None
            os.kill(os.getpid(), signal.SIGSTOP)


def install(meter: Meter) -> None:
    """Replace what writes files in this process, which must be a child that ends soon."""
    opened = _opener(meter)
    for module in (builtins, io):
        vars(module)["open"] = opened
    for name in ("write", "pwrite", "writev", "sendfile", "copy_file_range"):
        if hasattr(os, name):
            vars(os)[name] = _metered(name, getattr(os, name), meter)


def _metered(name: str, real: Callable[..., int], meter: Meter) -> Callable[..., int]:
    """The same call; those that copy inside the kernel move a piece at a time."""
    place = {"sendfile": 3, "copy_file_range": 2}.get(name)

    def call(*arguments: Any, **more: Any) -> int:
        given = list(arguments)
        if place is not None and len(given) > place:
            given[place] = min(given[place], PIECE_BYTES)
        if "count" in more:
            more["count"] = min(more["count"], PIECE_BYTES)
        count = real(*given, **more)
        meter.add(count)
        return count

    return call


def _opener(meter: Meter) -> Callable[..., Any]:
    real = io.open  # kept under its old name before it is replaced

    class Metered(io.FileIO):
        def write(self, data: Any, /) -> int:
            view, done = memoryview(data).cast("B"), 0
            while done < len(view):
                count = super().write(view[done : done + PIECE_BYTES])
                done += count
                meter.add(count)
            return done

    def opened(
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: Any = None,
        errors: Any = None,
        newline: Any = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        if "b" not in mode or not set(mode) & set("wax+"):
            return real(file, mode, buffering, encoding, errors, newline, closefd, opener)
        raw = Metered(file, mode.replace("b", ""), closefd, opener)
        if buffering == 0:
            return raw
        size = buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE
        return io.BufferedRandom(raw, size) if "+" in mode else io.BufferedWriter(raw, size)

    return opened
