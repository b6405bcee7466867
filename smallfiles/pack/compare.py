"""Compare a file that was just written with what was read from its source.

This happens before publication: a file that does not read back is never given its final name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from smallfiles import formats
from smallfiles.arrays import as_mask, from_numpy, one_chunk
from smallfiles.errors import FormatError, PackError
from smallfiles.fields import META, as_text, further_fields
from smallfiles.manifest import Manifest
from smallfiles.progress import Progress
from smallfiles.samples import Reader

SAMPLED = 256
SEED = 0
ROWS_AT_ONCE = 1 << 14


@dataclass(frozen=True)
class Expected:
    """What a packed file must give back.

    Args:
        rows: Rows of the manifest in stored order, int64.
        checksums: xxh3 of each sample's bytes as read from the source, uint64; see `joint_checksum`.
        manifest: Keys, targets, JSON objects and, where it has them, the SHA-256 of the bytes.
        scaled: Whether images were scaled, so that their bytes are not those of the manifest's SHA-256.
    """

    rows: np.ndarray
    checksums: np.ndarray
    manifest: Manifest
    scaled: bool = False

    def sha256(self, index: int) -> str | None:
        """What the manifest says of a sample's bytes, in hexadecimal; None where it says nothing."""
        table = self.manifest.table
        if self.scaled or "sha256" not in table.column_names:
            return None
        found: str | None = table["sha256"][int(self.rows[index])].as_py()
        return found


def joint_checksum(each: Sequence[int]) -> int:
    """One checksum of all files of a sample, from those of each."""
    return each[0] if len(each) == 1 else xxhash.xxh3_64_intdigest(np.array(each, np.uint64).tobytes())


def chosen(count: int, *, full: bool) -> Sequence[int]:
    """Whose bytes are compared, of `count`: all, or some 256 with the first and the last among them."""
    if full or count <= SAMPLED:
        return range(count)
    some = np.random.default_rng(SEED).choice(count, SAMPLED, replace=False)
    return sorted({0, count - 1, *some.tolist()})


def compare(
    path: Path, format: str, expected: Expected, indices: Sequence[int], bar: Progress | None = None
) -> None:
    """Compare a file that was just written with what was read from its source.

    Keys, targets and JSON objects are compared in full, the bytes of `indices`, with the manifest's SHA-256
    too where it has them.

    Raises:
        PackError: Something differs.
    """
    reader = formats.open(path, format)
    try:
        _compare_table(reader, path, expected)
        for index in indices:
            blobs = [reader.read(index, field) for field in expected.manifest.blob_fields]
            if joint_checksum([*map(xxhash.xxh3_64_intdigest, blobs)]) != int(expected.checksums[index]):
                raise _differs(path, f"the bytes of {reader.key(index)}")
            stated = expected.sha256(index)
            if stated is not None and hashlib.sha256(blobs[0]).hexdigest() != stated:
                raise _not_as_stated(reader.key(index), stated)
            if bar is not None:
                bar.advance(1, bytes=sum(map(len, blobs)))
    except FormatError as error:
        raise _differs(path, error.got) from error
    finally:
        reader.close()


def _compare_table(reader: Reader, path: Path, expected: Expected) -> None:
    if len(reader) != len(expected.rows):
        raise _differs(path, f"the number of samples ({len(reader)} instead of {len(expected.rows)})")
    keys, manifest, values = reader.keys(), expected.manifest, expected.manifest.columns
    if further_fields(reader.fields) != manifest.fields:
        raise _differs(path, f"its fields ({', '.join(further_fields(reader.fields)) or 'none'})")
    stored = [name for name in values.column_names if name != META or name in reader.fields]
    for start in range(0, len(expected.rows), ROWS_AT_ONCE):
        rows = expected.rows[start : start + ROWS_AT_ONCE]
        theirs = values.take(from_numpy(rows))
        if not keys.slice(start, len(rows)).equals(manifest.paths.take(from_numpy(rows))):
            raise _differs(path, "a key or the order of keys")
        ours = reader.table(stored, np.arange(start, start + len(rows)))
        if META not in stored and META in values.column_names:  # none of these samples has an object
            ours = ours.append_column(META, pa.nulls(len(rows), pa.string()))
        for name in values.column_names:
            if different := differing(ours[name], theirs[name], name):
                raise _differs(path, f"the {name} of {reader.key(start + different[0])}")


def differing(ours: pa.ChunkedArray, theirs: pa.ChunkedArray, name: str = "") -> list[int]:
    """Rows in which columns of values differ, bit by bit: NaN is equal to itself, and JSON by its meaning."""
    if name == META:
        pairs = enumerate(zip(ours.to_pylist(), theirs.to_pylist(), strict=True))
        return [row for row, (a, b) in pairs if a != b and json.loads(a or "null") != json.loads(b or "null")]
    found: list[int] = []
    for start in range(0, len(ours), ROWS_AT_ONCE):
        texts = (as_text(one_chunk(each.slice(start, ROWS_AT_ONCE))) for each in (ours, theirs))
        found += (start + np.flatnonzero(~as_mask(pc.equal(*texts)))).tolist()
    return found


def _differs(path: Path, what: str) -> PackError:
    return PackError(
        f"{path.name} did not read back as it was written: {what}",
        expected="what was read from the source",
        next_step="Nothing was published; run it again, and if it happens again suspect the storage",
    )


def _not_as_stated(key: str, stated: str) -> PackError:
    return PackError(
        f"{key} was read with other bytes than its manifest says",
        expected=f"bytes whose SHA-256 is {stated}",
        next_step="Nothing was published; copy the source again, or make the manifest again if it changed",
    )
