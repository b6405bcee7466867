"""What the contract test needs in its worker processes too: variants, sample sets, a Dataset."""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from given import Given, bare, of_reader

from smallfiles import formats
from smallfiles.fields import further_fields, is_blob
from smallfiles.samples import Sample, Schema


@dataclass(frozen=True)
class Variant:
    """A format with options, and the limits that its modules declare."""

    name: str
    format: str
    suffix: str
    options: tuple[tuple[str, Any], ...] = ()
    labels: tuple[int, int] = (-(2**63), 2**63 - 1)
    captions: bool = True

    def write(
        self, samples: Iterator[Given] | Sequence[Given], out: Path, schema: Schema, digest: bool = True
    ):
        return self.write_bare(bare(samples), out, schema, digest)

    def write_bare(self, samples: Iterable[Sample], out: Path, schema: Schema, digest: bool = True):
        module = formats.get(self.format)
        return module.write(
            samples, out, schema=schema, options=module.Options(**dict(self.options)), digest=digest
        )

    def out(self, folder: Path) -> Path:
        return folder / f"set{self.suffix}"

    def allows(self, key: str) -> bool:
        is_path = self.format in ("files", "squashfs")
        return not is_path or all(len(part.encode()) <= 255 for part in key.split("/"))


VARIANTS = (
    Variant("files", "files", ".files", labels=(-1, 2**31 - 1)),
    Variant("arrow", "arrow", ".arrow"),
    Variant("arrow-small", "arrow", ".arrow", (("rows_per_batch", 3), ("max_batch_bytes", 2000))),
    Variant("arrow-juelich", "arrow", ".arrow", (("layout", "juelich"),), labels=(0, 65535), captions=False),
    Variant("hdf5", "hdf5", ".h5"),
    Variant("hdf5-vlen", "hdf5", ".h5", (("layout", "vlen"),), labels=(-32768, 32767), captions=False),
    Variant("tar", "tar", ".tar"),
    Variant("tar-shards", "tar", ".tars", (("max_count", 4),)),
    Variant("squashfs", "squashfs", ".sqfs"),
    Variant("squashfs-zstd", "squashfs", ".squashfs", (("compression", "zstd"), ("block_bytes", 4096))),
    Variant("squashfs-fragments", "squashfs", ".sqfs", (("compression", "gzip"), ("fragments", True))),
    Variant("lmdb", "lmdb", ".lmdb"),
)
CHECKED = tuple(variant for variant in VARIANTS if variant.format != "lmdb")
"""All whose reader checks what a damaged file says; liblmdb trusts it and ends the process."""
WITHOUT_FIELDS = ("arrow-juelich", "hdf5-vlen", "lmdb")
"""Layouts that hold one file and one target a sample, and refuse more."""

BY_NAME = {variant.name: variant for variant in VARIANTS}

KEYS = (
    "n01440764/n01440764_1.JPEG",
    "ordinary.jpg",
    "dots.in.the.name/a.b.c.jpg",
    ".hidden",
    "no_suffix",
    "with spaces/and more .jpg",
    "日本語/Ünïcødé 🐦.jpeg",
    "carriage\rreturn/tab\t.png",
    ".smallfiles/as our old record.png",
    "percent%2F/plus+amp&quote'\"\\.gif",
    "long/" + "x" * 251 + ".jpg",
    "/".join(["deep"] * 300) + "/end.jpg",
    "too long for a file name " + "y" * 400,
    "empty.jpg",
)


def content(number: int) -> bytes:
    """A few hundred bytes that differ from sample to sample."""
    seed = zlib.crc32(str(number).encode())
    return bytes((seed * k >> 7) & 255 for k in range(100 + seed % 700))


def samples_of(variant: Variant, *, captions: bool = False, metas: bool = True) -> list[Given]:
    """Every odd name that the format allows; the last sample has no bytes."""
    low, high = variant.labels
    keys = [key for key in KEYS if variant.allows(key)]
    labels = [low, high, 0, *range(1, len(keys))]
    made = []
    for number, key in enumerate(keys):
        data = b"" if key == "empty.jpg" else content(number)
        texts = [f"caption {n} of\n{key}" for n in range(number % 4)]
        meta = {"box": [number, 2.5, None], "ß": {"n": number}} if metas and number % 3 == 0 else None
        made.append(Given(key, data, texts if captions else labels[number], meta))
    return made


def facts(samples: Iterator[Given] | Sequence[Given]) -> list[tuple[Any, ...]]:
    """Comparable content of samples, whatever kind of buffer holds their bytes."""
    if hasattr(samples, "read"):
        samples = of_reader(samples)
    return [(s.key, bytes(s.data), s.target, s.meta) for s in samples]


def further(reader: Any) -> pa.Table:
    """All values of a reader but label, captions and JSON objects."""
    return reader.table(name for name, kind in further_fields(reader.fields).items() if not is_blob(kind))


def poisoned(samples: Sequence[Given]) -> Iterator[Given]:
    """The samples, each in a buffer that is overwritten as soon as nobody holds a view of it."""
    for sample in samples:
        memory = np.frombuffer(sample.data, np.uint8).copy()
        lent = memory[:]
        weakref.finalize(lent, memory.fill, 0xAA)
        view = lent.data
        del lent
        yield Given(sample.key, view, sample.target, sample.meta)
        del view


def seen(reader: Any, index: int) -> tuple[Any, ...]:
    """What a worker sees of a sample; the view of its bytes is sent as one."""
    return index, reader.key(index), {"data": (reader.read(index),)}, reader.target(index)


def seen_of(task: tuple[Any, list[int]]) -> list[tuple[Any, ...]]:
    """Runs in a worker: a reader that came by pickle or over fork, and what to read."""
    reader, indices = task
    return [seen(reader, index) for index in indices]


def table_of_squashfs(path):
    """The Arrow file in a squashfs file of ours, which no name of its tree leads to."""
    data = path.read_bytes()
    end = int.from_bytes(data[64:72], "little")
    start, stop = (int.from_bytes(data[at : at + 8], "little") for at in (end - 24, end - 16))
    return data[start:stop]


def plant_old_record(image, tree):
    """Put the table of a squashfs file where older files had it, beside the files that were unpacked."""
    (tree / ".smallfiles").mkdir(exist_ok=True)
    (tree / ".smallfiles/samples.arrow").write_bytes(table_of_squashfs(image))
