"""Folders in Flickr30K's layout, small enough for exercise 03; and a count of the bytes that a block moves.

    practice_folder    the participant's own, or a part of it by links
    truth_of           what a packed file of a folder has to hold
    watched            bytes that a block moves: read by system calls, allocated by Arrow, made into objects

The trap: of a large set the part must hold the row that lost its delimiter, or the exercise loses its point.
And a mapped file that is only looked at moves nothing, although it seems to hold all data; so what counts is
copies, and each of the three places where they can appear is watched. Notebook 03 shows with it that a read
is a view, and sends participants to the exercise.
"""

from __future__ import annotations

import contextlib
import shutil
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from smallfiles import sources
from smallfiles.measure import system_calls

HEADER = "image_name| comment_number| comment\n"
MOST_IMAGES = 400

# What was allocated from a pool goes back to it, perhaps long after the block: a pool that is gone by then
# ends the process. So pools are kept; each is a few bytes.
_POOLS: list[pa.MemoryPool] = []


def row(name: str, number: int, caption: str, spoilt: bool = False) -> str:
    """One row of results.csv; a spoilt one has lost its second delimiter."""
    return f"{name}| {number}{'   ' if spoilt else '| '}{caption}\n"


@dataclass(frozen=True)
class Truth:
    """What a packed file of `folder` must hold: captions by image name, sorted, and images' bytes."""

    folder: Path
    images: Path
    captions: Mapping[str, list[str]]

    def data(self, name: str) -> bytes:
        """The bytes of an image."""
        return (self.images / name).read_bytes()


def truth_of(folder: Path) -> Truth:
    """Read a folder with the package's own reader; refuses what is no Flickr30K."""
    source = sources.load(folder, "flickr30k", split="all", sizes=False)
    names = source.manifest.paths.to_pylist()
    captions = dict(zip(names, source.manifest.targets.to_pylist(), strict=True))
    return Truth(folder, source.root or folder, captions)


def practice_folder(folder: Path, place: Path) -> Path:
    """The participant's Flickr30K, or at `place` a part of it by links that is quick to pack."""
    truth = truth_of(folder)
    table = next((p for depth in ("", "*/", "*/*/") for p in folder.glob(depth + "results.csv")), None)
    if table and len(truth.captions) <= MOST_IMAGES:
        return folder
    lines = table.read_text(encoding="utf-8").split("\n")[1:] if table else []
    rows = {line: line.partition("|")[0] for line in lines if line.partition("|")[0] in truth.captions}
    spoilt = [name for line, name in rows.items() if line.count("|") == 1][:1]
    chosen = dict.fromkeys(sorted({*spoilt, *list(truth.captions)[: MOST_IMAGES - len(spoilt)]}))
    kept = [f"{line}\n" for line, name in rows.items() if name in chosen]
    made = [row(name, n, text) for name in chosen for n, text in enumerate(truth.captions[name])]
    return lay_out(place, {name: truth.images / name for name in chosen}, kept or made)


def lay_out(place: Path, images: Mapping[str, Path], rows: Sequence[str]) -> Path:
    """Lay out images as Kaggle's archive does: two folders deep, with `results.csv` twice."""
    inner = place / "flickr30k_images/flickr30k_images"
    shutil.rmtree(inner.parent, ignore_errors=True)  # a cell that runs again
    inner.mkdir(parents=True)
    for folder in (inner, inner.parent):
        (folder / "results.csv").write_text("".join([HEADER, *rows]), encoding="utf-8")
    for name, image in images.items():
        try:
            (inner / name).hardlink_to(image)
        except OSError:  # on another file system
            shutil.copyfile(image, inner / name)
    return place


@dataclass
class Traffic:
    """Bytes that were moved while the block ran.

    Args:
        read: By `read` and `pread`; 0 where the system does not tell.
        arrow: The most that Arrow held at once beyond what it held before.
        python: The most that Python objects held at once beyond what they held before.
    """

    read: int = 0
    arrow: int = 0
    python: int = 0

    @property
    def most(self) -> int:
        """The largest of the three."""
        return max(self.read, self.arrow, self.python)


@contextlib.contextmanager
def watched() -> Iterator[Traffic]:
    """Count while the block runs."""
    found = Traffic()
    pool = pa.default_memory_pool()
    counting = pa.proxy_memory_pool(pool)
    _POOLS.append(counting)
    tracing = tracemalloc.is_tracing()
    if not tracing:
        tracemalloc.start()
    tracemalloc.reset_peak()
    held = tracemalloc.get_traced_memory()[0]
    pa.set_memory_pool(counting)
    try:
        with system_calls() as calls:
            yield found
    finally:
        found.read = calls["bytes"]
        pa.set_memory_pool(pool)
        found.python = tracemalloc.get_traced_memory()[1] - held
        if not tracing:
            tracemalloc.stop()
        found.arrow = max(0, counting.max_memory() or 0)
