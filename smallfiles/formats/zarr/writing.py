"""Write zarr's files from begin to end: what its library would gather in memory, a shard at a time.

The library rewrites a whole shard whenever a part of it changes, and so wants all of it at once: 512 MB of
memory, and the bytes copied twice. A shard of uncompressed chunks is those bytes, and an index behind them.

The trap: the last chunk is stored in full even if the array ends in its middle. Without those zeros every
other program misreads the shard.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from smallfiles.errors import UsageError
from smallfiles.formats import provenance
from smallfiles.formats.blob import arrays_of
from smallfiles.formats.columns import Columns
from smallfiles.formats.output import OutputFile, packed, writing
from smallfiles.samples import Buffer, Packed, Sample, Schema

METADATA = "zarr.json"
ATTRIBUTE = "smallfiles"
RAW: list[dict[str, Any]] = [{"name": "bytes"}]
LITTLE: list[dict[str, Any]] = [{"name": "bytes", "configuration": {"endian": "little"}}]
CHECKED = [*LITTLE, {"name": "crc32c"}]
CHECKSUM_BYTES = 4
GROUP: dict[str, Any] = {"node_type": "group", "attributes": {}}
"""All that the group says, always: it has no digest beside it, since zarr warns of every other file there."""

_POLYNOMIAL = 0x82F63B78  # CRC-32C (Castagnoli), bits reversed; RFC 3720, section 12.1


def shard_index(used: int, chunk_bytes: int, shard_bytes: int) -> np.ndarray:
    """Offset and size of each chunk of a shard with so many bytes in use; all ones where there is none."""
    index = np.full((shard_bytes // chunk_bytes, 2), 2**64 - 1, "<u8")
    stored = -(-used // chunk_bytes)
    index[:stored, 0] = np.arange(stored, dtype=np.uint64) * np.uint64(chunk_bytes)
    index[:stored, 1] = chunk_bytes
    return index


def sharded(
    chunk_bytes: int, codecs: list[dict[str, Any]] = RAW, index_codecs: list[dict[str, Any]] = CHECKED
) -> list[dict[str, Any]]:
    """What the metadata say of shards of uncompressed chunks."""
    inner = {"chunk_shape": [chunk_bytes], "codecs": codecs, "index_codecs": index_codecs}
    return [{"name": "sharding_indexed", "configuration": {**inner, "index_location": "end"}}]


class _Shards:
    """The run of all samples, cut into files of equal size."""

    def __init__(self, folder: Path, options: Options, room: int, digest: bool) -> None:
        self.chunk_bytes = options.chunk_bytes
        room += -room % self.chunk_bytes
        self.shard_bytes = min(options.shard_bytes, max(room, self.chunk_bytes))
        self._folder, self._digest, self._number = folder, digest, 0
        self._file: OutputFile | None = None
        self.files: list[Path] = []

    def append(self, data: Buffer) -> None:
        """Write a sample, and begin another file in its middle if this one is full."""
        rest = memoryview(data).cast("B")
        while len(rest):
            if self._file is None:
                self._file = OutputFile(self._folder / f"c.{self._number}", digest=self._digest)
                self._number += 1
            some = rest[: self.shard_bytes - self._file.position]
            self._file.append([some])
            rest = rest[len(some) :]
            if self._file.position == self.shard_bytes:
                self.finish()

    def finish(self) -> None:
        """End the file that is written, if there is one."""
        if self._file is not None:
            used = self._file.position
            index = shard_index(used, self.chunk_bytes, self.shard_bytes).tobytes()
            self._file.append([bytes(-used % self.chunk_bytes), index, _crc32c(index)])
            self.files += self._file.finish()
            self._file = None

    def close(self) -> None:
        """Let go of the file; nothing happens after `finish`."""
        if self._file is not None:
            self._file.close()


@dataclass(frozen=True)
class Options:
    """How to cut the bytes of all samples.

    Args:
        chunk_bytes: What the zarr library reads at least; our reader does not look at chunks.
        shard_bytes: Bytes per file, a multiple of `chunk_bytes`; a smaller set has one smaller file.
    """

    chunk_bytes: int = 128 << 10
    shard_bytes: int = 512 << 20

    def __post_init__(self) -> None:
        if not 1 <= self.chunk_bytes <= self.shard_bytes <= 1 << 40 or self.shard_bytes % self.chunk_bytes:
            raise UsageError(
                f"shards of {self.shard_bytes} bytes with chunks of {self.chunk_bytes} were asked for",
                expected="a positive multiple of the chunks, 1 TiB at most",
                next_step="Start with 536870912 and 131072",
            )


def write(
    samples: Iterable[Sample],
    out: Path,
    *,
    schema: Schema,
    options: Options | None = None,
    digest: bool = True,
) -> Packed:
    """Write samples into a folder of zarr arrays.

    Args:
        samples: In the order in which they are stored.
        out: Folder, a name that is free.
        schema: What is packed; sizes are upper bounds.
        options: Chunks and shards.
        digest: Whether to write a content digest beside each file.

    Returns:
        What was written.

    Raises:
        FormatError: A sample does not fit the schema.
        ResourceError: No space or no permission.
    """
    options = options or Options()
    columns, borders = Columns(out, schema), array("Q", [0])
    with writing(out):
        out.mkdir()
        (out / "data").mkdir()
    shards = _Shards(out / "data", options, schema.total_bytes, digest)
    try:
        for sample in samples:
            columns.add(sample)
            shards.append(sample.data)
            borders.append(borders[-1] + len(sample.data))
        shards.finish()
    finally:
        shards.close()
    data = _array(borders[-1], "uint8", shards.shard_bytes, sharded(shards.chunk_bytes))
    data["attributes"] = {ATTRIBUTE: provenance.record("zarr", schema, options)}
    files = [*shards.files, *_save(out / "data", data, digest)]
    for name, values in [("offsets", np.frombuffer(borders, np.uint64)), *arrays_of(columns)]:
        files += _write_array(out / name, values, digest)
    files += _save(out, GROUP, False)
    return packed(out, "zarr", len(borders) - 1, borders[-1], files)


def _write_array(folder: Path, values: np.ndarray, digest: bool) -> list[Path]:
    """Write a column as a single chunk."""
    with writing(folder):
        folder.mkdir()
    files: list[Path] = []
    if len(values):
        with OutputFile(folder / "c.0", digest=digest) as file:
            file.append([values.view(np.uint8).data])
            files += file.finish()
    return files + _save(folder, _array(len(values), values.dtype.name, max(1, len(values)), LITTLE), digest)


def _array(count: int, kind: str, chunk: int, codecs: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "node_type": "array",
        "shape": [count],
        "data_type": kind,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [chunk]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        "fill_value": 0,
        "codecs": codecs,
        "attributes": {},
    }


def _save(folder: Path, node: dict[str, Any], digest: bool) -> list[Path]:
    with OutputFile(folder / METADATA, digest=digest) as file:
        file.append([_text(node)])
        return list(file.finish())


def _text(node: dict[str, Any]) -> bytes:
    return provenance.dumps({"zarr_format": 3, **node}).encode()


def is_bare_group(path: Path) -> bool:
    """Whether a file is what every group of ours says of itself, so that no digest is needed to trust it."""
    whole = _text(GROUP)
    with path.open("rb") as file:
        return path.name == METADATA and file.read(len(whole) + 1) == whole


@cache
def _table() -> tuple[int, ...]:
    found = range(256)
    for _ in range(8):
        found = [number >> 1 ^ _POLYNOMIAL * (number & 1) for number in found]  # type: ignore[assignment]
    return tuple(found)


def _crc32c(data: bytes) -> bytes:
    table, found = _table(), 0xFFFFFFFF
    for byte in data:
        found = table[(found ^ byte) & 0xFF] ^ found >> 8
    return (found ^ 0xFFFFFFFF).to_bytes(CHECKSUM_BYTES, "little")
