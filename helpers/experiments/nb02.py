"""Load a manifest as a dict and as a table, read it in forked workers, and watch their memory.

Reading a Python object writes its reference count, so the kernel gives the worker a copy of that page.
Each way runs in an interpreter of its own (`smallfiles.experiments.nb02`), since memory
that one way freed would flatter the next.

The trap: after a few percent of an epoch in random order nearly every page was touched, so the cost is
there long before the first epoch ends. Notebook 02 draws it.

Source: https://github.com/pytorch/pytorch/issues/13246
"""

from __future__ import annotations

import gc
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from smallfiles.errors import ResourceError, UsageError
from smallfiles.measure.memory import in_workers, resident_bytes
from smallfiles.progress import progress

IMAGENET_ROWS = 1_281_167
DICT, TABLE = "dict of paths", "columnar table"
WAYS = (DICT, TABLE)
SHARES = (0.0, 0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0)
Look = Callable[[int], object]


@dataclass(frozen=True)
class Watched:
    """What the workers had for themselves while they read a manifest held in one way.

    Args:
        way: One of `WAYS`.
        rows: Samples of the manifest.
        shares: Which part of their samples the workers had read, at each look.
        private_bytes: For each worker its private memory at each look.
        loaded_bytes: What loading added to the parent.
        load_s: Seconds that loading took.
    """

    way: str
    rows: int
    shares: tuple[float, ...]
    private_bytes: tuple[tuple[int, ...], ...]
    loaded_bytes: int
    load_s: float

    @property
    def workers(self) -> int:
        """How many read."""
        return len(self.private_bytes)

    @property
    def copied_bytes(self) -> int:
        """What reading added to one worker, the median of all."""
        return round(statistics.median(seen[-1] - seen[0] for seen in self.private_bytes))

    @property
    def copied_bytes_a_row(self) -> float:
        """The same for each sample, to be scaled to larger sets."""
        return self.copied_bytes / max(self.rows, 1)


def write_example(path: Path, rows: int, seed: int = 0) -> None:
    """Write a flat manifest with paths as ImageNet has them, in random order.

    Args:
        path: The JSON file.
        rows: Samples.
        seed: Of classes and labels.
    """
    dice = np.random.default_rng(seed)
    wnids = [f"n{number:08d}" for number in np.sort(dice.choice(20_000_000, 1000, replace=False)).tolist()]
    labels = dice.integers(0, len(wnids), rows).tolist()
    lines = (
        f'"ILSVRC/Data/CLS-LOC/train/{wnids[label]}/{wnids[label]}_{row}.JPEG": {label}'
        for row, label in enumerate(labels)
    )
    with path.open("w", encoding="utf-8") as file:
        file.write("{")
        file.writelines(f"{',' if number else ''}\n{line}" for number, line in enumerate(lines))
        file.write("\n}\n")


def watch(path: Path, workers: int = 4, ways: tuple[str, ...] = WAYS) -> list[Watched]:
    """Measure each way in a fresh interpreter.

    Args:
        path: A flat manifest.
        workers: Forked readers, as a DataLoader has them.
        ways: Which of `WAYS`.

    Raises:
        ResourceError: A measurement failed, perhaps for want of memory.
    """
    found = []
    with progress(len(ways), "watching workers", unit="ways") as shown:
        for way in ways:
            found.append(_in_fresh_interpreter(path, way, workers))
            shown.advance()
    return found


def _in_fresh_interpreter(path: Path, way: str, workers: int) -> Watched:
    line = [sys.executable, "-m", "helpers.experiments.nb02", str(path), way, str(workers)]
    root = str(Path(__file__).resolve().parents[2])  # a notebook runs elsewhere
    end = subprocess.run(line, capture_output=True, text=True, check=False, cwd=root)
    if end.returncode:
        raise ResourceError(
            f"measuring the {way} ended with {end.returncode} ({end.stderr.strip()[-300:]})",
            expected="memory for it and its workers",
            next_step="Measure a smaller manifest, or fewer workers",
        )
    told: dict[str, Any] = json.loads(end.stdout)
    told["private_bytes"] = tuple(map(tuple, told["private_bytes"]))
    return Watched(**{**told, "shares": tuple(told["shares"])})


def measure(path: Path, way: str, workers: int) -> Watched:
    """Measure one way in this process; it should be a fresh one.

    Args:
        path: A flat manifest.
        way: One of `WAYS`.
        workers: Forked readers.
    """
    load = _loader(way)
    gc.collect()
    before, started = resident_bytes(), perf_counter()
    look, rows = load(path)
    load_s, loaded = perf_counter() - started, resident_bytes() - before
    order = np.random.default_rng(0).permutation(rows)
    seen = in_workers(lambda number: _read(look, order[number::workers]), workers)
    private = tuple(tuple(moment.private_bytes for moment in worker) for worker in seen)
    return Watched(way, rows, SHARES, private, max(loaded, 0), load_s)


def _read(look: Look, rows: np.ndarray) -> Iterator[None]:
    """Look up these samples, and stop to be measured at each of `SHARES`."""
    stops = [round(share * len(rows)) for share in SHARES]
    yield
    for start, stop in pairwise(stops):
        for row in rows[start:stop].tolist():
            look(row)
        yield


def _loader(way: str) -> Callable[[Path], tuple[Look, int]]:
    if way == DICT:
        return _load_dict
    if way == TABLE:
        return _table_loader()
    raise UsageError(
        f"the way {way!r} is unknown", expected=f"one of {', '.join(WAYS)}", next_step="Choose one of these"
    )


def _load_dict(path: Path) -> tuple[Look, int]:
    labels: dict[str, int] = json.loads(path.read_text(encoding="utf-8"))
    paths = list(labels)  # a DataLoader asks for sample number i
    return (lambda row: (paths[row], labels[paths[row]])), len(paths)


def _table_loader() -> Callable[[Path], tuple[Look, int]]:
    from smallfiles.manifest import Manifest  # before the clock starts and memory is looked at

    def load(path: Path) -> tuple[Look, int]:
        manifest = Manifest.load(path)
        return (lambda row: (manifest.path(row), manifest.target(row))), len(manifest)

    return load


if __name__ == "__main__":
    chosen = measure(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
    sys.stdout.write(json.dumps(asdict(chosen)) + "\n")
