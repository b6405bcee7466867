"""What compression of shards saves, what it costs, and below which storage speed that pays.

Compressed shards are fewer bytes to fetch and more work to unpack. With a storage that gives a reader
`x` bytes a second, compression pays while the bytes saved take longer to fetch than to unpack:
saved bytes / x > extra seconds. So one number per kind of data tells when.

The trap: JPEG files are compressed already, so gzip costs its full price for nothing. Notebook 05
measures both.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

from helpers.experiments.nb05.place import fresh_folder
from smallfiles.formats import tar
from smallfiles.formats.tar.options import SUFFIXES, Compression
from smallfiles.manifest import Manifest
from smallfiles.measure.protocol import Case, Outcome, interleaved
from smallfiles.measure.table import aligned
from smallfiles.progress import bytes_text
from smallfiles.samples import Sample, Schema

KINDS: tuple[Compression | None, ...] = (None, "gzip", "zstd")


@dataclass(frozen=True)
class Shrunk:
    """One kind of data in one compression.

    Args:
        what: The kind of data.
        compression: None, `gzip` or `zstd`.
        payload_bytes: What the samples hold, without headers and padding.
        file_bytes: Size of the shard.
        plain_bytes: Size of the shard without compression.
        read_s: Seconds to read all samples, for each run.
        plain_s: The same without compression.
    """

    what: str
    compression: Compression | None
    payload_bytes: int
    file_bytes: int
    plain_bytes: int
    read_s: tuple[float, ...]
    plain_s: tuple[float, ...]

    @property
    def times_smaller(self) -> float:
        """How many of these fit where one plain shard lies."""
        return self.plain_bytes / self.file_bytes

    @property
    def pays_below_bytes_per_s(self) -> float:
        """The storage speed of one reader below which compression saves time; 0: none, inf: any."""
        extra_s = median(self.read_s) - median(self.plain_s)
        saved = self.plain_bytes - self.file_bytes
        if saved <= 0:
            return 0.0
        return saved / extra_s if extra_s > 0 else math.inf


def measure_shrinking(sets: dict[str, Sequence[Sample]], folder: Path, *, repeats: int = 5) -> list[Shrunk]:
    """Write each set plain and compressed, and read each back.

    Args:
        sets: Samples by kind of data ("JPEG").
        folder: Where to write.
        repeats: Runs of each.
    """
    place = fresh_folder(folder)
    paths = {
        (what, kind): _written(samples, place / f"shrunk-{number}{SUFFIXES[kind]}")
        for number, (what, samples) in enumerate(sets.items())
        for kind in KINDS
    }
    cases = [Case(f"{what} {kind}", _Reading(path)) for (what, kind), path in paths.items()]
    outcomes = interleaved(cases, repeats, seed=0, what="compression")
    seconds = {
        place: tuple(outcome.seconds for outcome in outcomes[case.name])
        for place, case in zip(paths, cases, strict=True)
    }
    size = {place: path.stat().st_size for place, path in paths.items()}
    payload = {what: sum(len(sample.data) for sample in samples) for what, samples in sets.items()}
    return [
        Shrunk(w, kind, payload[w], size[w, kind], size[w, None], seconds[w, kind], seconds[w, None])
        for w, kind in paths
    ]


def caption_samples(manifest: Manifest) -> list[Sample]:
    """Each caption as a small JSON file of its own, as annotations often come.

    Args:
        manifest: Of a set with captions.
    """
    pairs = zip(manifest.paths.to_pylist(), manifest.targets.to_pylist(), strict=True)
    each = ((key, number, text) for key, captions in pairs for number, text in enumerate(captions))
    return [
        Sample(f"{key}-{number}.json", json.dumps({"image": key, "caption": text}).encode(), number)
        for key, number, text in each
    ]


def _written(samples: Sequence[Sample], path: Path) -> Path:
    total, largest = sum(len(s.data) for s in samples), max(len(s.data) for s in samples)
    schema = Schema(
        len(samples), total, largest, "label" if isinstance(samples[0].target, int) else "captions"
    )
    tar.write(iter(samples), path, schema=schema, digest=False)
    return path


@dataclass(frozen=True)
class _Reading:
    path: Path

    def __call__(self) -> Outcome:
        began = perf_counter()
        with closing(tar.open(self.path)) as reader:
            size = sum(len(bytes(reader.read(index))) for index in range(len(reader)))
            return Outcome(len(reader), size, perf_counter() - began)


def table(rows: Sequence[Shrunk]) -> str:
    """Rows as text, with the storage speed below which compression pays."""
    header = ("data", "compression", "contents", "shard", "times smaller", "read in", "pays")
    return aligned(header, [_row(row) for row in rows])


def _row(row: Shrunk) -> tuple[str, ...]:
    below = row.pays_below_bytes_per_s
    pays = "at any speed" if below == math.inf else f"below {bytes_text(below)}/s" if below else "never"
    return (
        row.what,
        row.compression or "none",
        bytes_text(row.payload_bytes),
        bytes_text(row.file_bytes),
        f"{row.times_smaller:.2f}",
        f"{1000 * median(row.read_s):.1f} ms",
        pays if row.compression else "",
    )


def verdict(rows: Sequence[Shrunk], storage_bytes_per_s: float = 500e6) -> str:
    """Which of them pay on a storage of this speed, in words.

    Args:
        rows: What was measured.
        storage_bytes_per_s: What one reader gets.
    """
    packed = [row for row in rows if row.compression]
    pays = [f"{r.compression} for {r.what}" for r in packed if r.pays_below_bytes_per_s > storage_bytes_per_s]
    costs = [
        f"{r.compression} for {r.what}" for r in packed if r.pays_below_bytes_per_s <= storage_bytes_per_s
    ]
    return (
        f"If a reader gets {bytes_text(storage_bytes_per_s)}/s, compression saves time with "
        f"**{' and '.join(pays) or 'none of them'}**, and costs time with {' and '.join(costs) or 'none'}."
    )
