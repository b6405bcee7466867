"""Images of the same files with several settings: how quick a random read is, and what it fetches.

Where mksquashfs is installed, its own defaults are among them; else our writer makes the same kind.

The trap: two settings can give images of nearly the same size and differ in reads by a factor of ten,
so nobody notices while packing. Notebook 06 draws the figure.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pysquashfs import SquashFS, libsquashfs, pack
from pysquashfs.open_image import Backend
from smallfiles.errors import UsageError
from smallfiles.measure.bench import Bench
from smallfiles.measure.config import BenchConfig
from smallfiles.measure.record import Record, Spread
from smallfiles.measure.squashfs import PACKAGES, by_library, measure_reads
from smallfiles.samples import Sample

_REPEATS = 5
_WORDS = ("street", "market", "two dogs", "a child", "red umbrella", "bicycle", "bench", "snow", "a boat")


@dataclass(frozen=True)
class Setting:
    """How one image is made.

    Args:
        name: As in figures.
        make: From the files and a path.
    """

    name: str
    make: Callable[[Sequence[Sample], Path], object]


@dataclass(frozen=True)
class Measured:
    """One setting: its image and its reads.

    Args:
        name: Of the setting.
        reads: A record a back end, by its name.
        amplification: Bytes fetched and unpacked for each byte delivered, files read whole at random.
        image_bytes: Size of the image.
        bytes: Of the files in it.
        findings: What the image says of itself.
    """

    name: str
    reads: dict[str, Record]
    amplification: float
    image_bytes: int
    bytes: int
    findings: tuple[str, ...]

    @property
    def saved(self) -> float:
        """Share of the bytes that the image saves."""
        return 1 - self.image_bytes / self.bytes

    def rate(self, backend: str = "pure") -> Spread:
        """Files per second."""
        return self.reads[backend].spread


def _ours(samples: Sequence[Sample], out: Path, **options: Any) -> None:
    pack(out, [(sample.key, bytes(sample.data)) for sample in samples], **options)


def _mksquashfs(samples: Sequence[Sample], out: Path, *flags: str) -> None:
    """What a user types who knows no flags; from a tree, since that is what it takes."""
    tree = out.with_suffix(".tree")
    for sample in samples:
        path = tree / sample.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(sample.data)
    words = ["mksquashfs", str(tree), str(out), "-quiet", "-no-progress", "-noappend", *flags]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    shutil.rmtree(tree)
    if done.returncode:
        raise UsageError(
            f"mksquashfs failed ({done.stderr.strip()[:200]})",
            expected="an image",
            next_step="Check the free space, or uninstall this version",
        )


def default_setting() -> Setting:
    """The defaults of mksquashfs, by itself or by our writer."""
    if shutil.which("mksquashfs"):
        return Setting("mksquashfs, its defaults", _mksquashfs)
    return Setting("as mksquashfs by default", partial(_ours, compression="gzip", level=9, fragments=True))


def photo_settings() -> tuple[Setting, ...]:
    """From what people do to what they should do."""
    return (
        Setting(
            "gzip, 1 MiB blocks, fragments",
            partial(_ours, compression="gzip", block_bytes=1 << 20, fragments=True),
        ),
        default_setting(),
        Setting("gzip, no fragments", partial(_ours, compression="gzip")),
        Setting("raw, no fragments", _ours),
    )


def text_settings() -> tuple[Setting, ...]:
    """For data that compresses."""
    return (
        Setting("raw", _ours),
        Setting("gzip", partial(_ours, compression="gzip")),
        Setting("zstd, level 3", partial(_ours, compression="zstd", level=3)),
    )


def backends() -> list[Backend]:
    """Those that can be used here."""
    found: list[Backend] = ["pure"]
    return [*found, "libsquashfs"] if libsquashfs.available() is not None else found


def bench_settings(
    samples: Sequence[Sample],
    folder: Path,
    settings: Sequence[Setting] | None = None,
    config: BenchConfig | None = None,
) -> list[Measured]:
    """Make an image with each setting, and read all of them at random in turn.

    Args:
        samples: What is packed.
        folder: Where images go; they are removed.
        settings: By default `photo_settings()`.
        config: Repeats, samples at most, seed.
    """
    config = config or BenchConfig(repeats=_REPEATS)
    settings = photo_settings() if settings is None else settings
    used = backends()
    keys = [sample.key for sample in samples]
    order = np.random.default_rng(config.seed).permutation(len(keys))[: config.count]
    images = {setting.name: folder / f"setting-{number}.sqfs" for number, setting in enumerate(settings)}
    try:
        for setting in settings:
            setting.make(samples, images[setting.name])
        with ExitStack() as stack:
            picked = [keys[index] for index in order]
            reads = {
                f"{name}/{backend}": stack.enter_context(by_library(image, picked, backend))
                for name, image in images.items()
                for backend in used
            }
            bench = Bench(config, PACKAGES)
            measure_reads(bench, reads, len(picked), folder)
        by_name = {record.name: record for record in bench.records}
        return [
            _described(name, image, {b: by_name[f"{name}/{b}"] for b in used})
            for name, image in images.items()
        ]
    finally:
        for image in images.values():
            image.unlink(missing_ok=True)


def _described(name: str, image: Path, reads: dict[str, Record]) -> Measured:
    with SquashFS(image, cache=False) as opened:
        info = opened.info()
    return Measured(
        name,
        reads,
        info["read_amplification"],
        info["image_bytes"],
        info["bytes"],
        tuple(info["findings"]),
    )


def documents(count: int, seed: int = 0) -> list[Sample]:
    """Annotation files as data sets have them, one JSON document an image."""
    chance = random.Random(seed)
    return [Sample(f"{n % 10}/{n:06d}.json", _document(n, chance), n % 10) for n in range(count)]


def _document(number: int, chance: random.Random) -> bytes:
    boxes = [
        {
            "id": chance.randrange(10**6),
            "category": chance.choice(_WORDS),
            "bbox": [round(chance.uniform(0, 640), 2) for _ in range(4)],
            "segmentation": [round(chance.uniform(0, 640), 1) for _ in range(2 * chance.randrange(10, 60))],
            "iscrowd": 0,
        }
        for _ in range(chance.randrange(5, 40))
    ]
    captions = [" ".join(chance.choices(_WORDS, k=8)) for _ in range(5)]
    record = {
        "image": f"{number:06d}.jpg",
        "width": 640,
        "height": 480,
        "objects": boxes,
        "captions": captions,
    }
    return json.dumps(record, indent=1).encode()


def worth_below_bytes_s(raw: Measured, packed: Measured) -> float:
    """The bandwidth of a reader below which compressed data comes sooner than raw data.

    Reading saves the bytes that need not come; unpacking costs the difference of the two times in memory.

    Args:
        raw: Measured warm.
        packed: Measured warm; compressed.
    """
    files = raw.reads["pure"].set_samples
    longer_s = 1 / packed.rate().median - 1 / raw.rate().median
    fewer_bytes = (raw.image_bytes - packed.image_bytes) / max(1, files)
    return fewer_bytes / longer_s if longer_s > 0 else float("inf")
