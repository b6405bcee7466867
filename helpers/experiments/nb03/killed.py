"""A pack run that is killed half-way: `smallfiles.experiments.nb03.killed SOURCE OUT COUNT`.

The run is a process of its own whose source ends it with SIGKILL while it reads sample COUNT. Nothing
can tidy up after that signal, as after a time limit or a node that fails. Notebook 03 looks at what is
left, and runs the pack again.

The trap: a kill at a random moment often comes too late on a fast disk; this one cannot miss. Each read
takes a millisecond, as on a parallel file system, and two are in flight, so that the writer keeps up.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from smallfiles import sources
from smallfiles.errors import PackError
from smallfiles.pack import PackConfig, pack
from smallfiles.samples import ByteStore

_CHECKOUT = Path(__file__).resolve().parents[3]
_READ_S = 0.001
_IN_FLIGHT = 2


@dataclass(frozen=True)
class Killed:
    """What a killed run left.

    Args:
        signal: Name of the signal that ended it.
        visible: Names beside the output that a listing shows.
        hidden: Hidden names, folders with the bytes in them.
    """

    signal: str
    visible: tuple[str, ...]
    hidden: tuple[tuple[str, int], ...]


def killed_pack(source: Path, out: Path, at: int) -> Killed:
    """Pack in a process that dies while it reads sample `at`.

    Args:
        source: A folder that `smallfiles.sources.load` understands.
        out: As for `pack`, in a folder of its own.
        at: How many samples are read before.

    Raises:
        PackError: The run ended in another way.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "helpers.experiments.nb03.killed", str(source), str(out), str(at)]
    end = subprocess.run(command, cwd=_CHECKOUT, capture_output=True, text=True, check=False)
    if end.returncode >= 0:
        raise PackError(
            f"the run ended with code {end.returncode} ({end.stderr.strip()[-200:]})",
            expected="a run that is killed",
            next_step="Kill it earlier, and choose a name that is free",
        )
    names = sorted(out.parent.iterdir())
    return Killed(
        signal.Signals(-end.returncode).name,
        tuple(path.name for path in names if not path.name.startswith(".")),
        tuple((path.name, _bytes_in(path)) for path in names if path.name.startswith(".")),
    )


def _bytes_in(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


class _Deadly:
    """A store that ends its process at one of the reads."""

    def __init__(self, store: ByteStore, at: int) -> None:
        self._store, self._at, self._reads = store, at, count()
        self.sequential = store.sequential

    def size(self, path: str) -> int:
        return self._store.size(path)

    def read_into(self, path: str, buffer: memoryview) -> int:
        if next(self._reads) >= self._at:  # counting is safe between threads, `+=` would not be
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(_READ_S)
        return self._store.read_into(path, buffer)

    def describe(self) -> str:
        return self._store.describe()


def _main(source: str, out: str, at: str) -> None:
    found = sources.load(Path(source))
    dying = dataclasses.replace(found, store=_Deadly(found.store, int(at)))
    pack(dying, Path(out), PackConfig(in_flight=_IN_FLIGHT))


if __name__ == "__main__":
    _main(*sys.argv[1:])
