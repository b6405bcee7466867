"""Cut samples into shards and write them.

Each sample is two or three members that share a stem: the data, its target (`.cls`: a decimal label;
`.json`: a list of captions; or `.txt`: one per line), and `.meta` if it has a JSON object. Captions and
objects from the `.txt` and `.json` members of another program keep these suffixes. Further fields: see
`grouping`; a sample that has them needs no `.cls` to say that its class is not known.

The trap: shards far below 100 MB bring back the problem of small files; with shards far above 10 GB some
workers have none, since whole shards are dealt to workers. Notebook 05 measures both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from smallfiles.digests import name_hashes
from smallfiles.errors import FormatError, UsageError, writing
from smallfiles.fields import META
from smallfiles.formats.bytefile import ByteFile
from smallfiles.formats.output import OutputFile, SampleColumns, key_of, packed
from smallfiles.formats.table import record_of
from smallfiles.formats.tar import grouping, headers, index
from smallfiles.samples import Buffer, Packed, Sample, Schema

NAME = "tar"

SAMPLE_BYTES = 4 * headers.BLOCK_BYTES
"""Bytes that a sample counts in addition to its data: two headers, a target block, and one spare block."""

_FORMER_OPTIONS = {"caption_suffix": None, "compression": None, "dali_index": False}
"""Options that no longer exist.

They are still recorded, so that equal samples give the bytes of earlier versions.
"""


@dataclass(frozen=True)
class TarOptions:
    """How shards are cut.

    Args:
        max_bytes: The maximum size of a shard, as measured by `counted_bytes`. A shard ends before the sample
            that would exceed it.
        max_count: The maximum number of samples in a shard.
    """

    max_bytes: int = 1 << 30
    max_count: int = 100_000

    def __post_init__(self) -> None:
        if self.max_bytes < 1 or self.max_count < 1:
            raise UsageError(
                f"a shard of at most {self.max_bytes} bytes and {self.max_count} samples was asked for",
                expected="limits of 1 or more",
                next_step="Give max_bytes between 100 MB and 10 GB; a few hundred shards suit most sets",
            )


def shard_name(number: int) -> str:
    """Return the file name of a shard, such as `shard-000012.tar`."""
    return f"shard-{number:06d}.tar"


def counted_bytes(size: int) -> int:
    """Return how many bytes a sample of `size` bytes counts towards `max_bytes`.

    This is the size of its data in whole blocks, plus `SAMPLE_BYTES`. A shard can become a little larger only
    through captions of more than 1,000 characters, JSON objects, long names, and the headers of additional
    files.
    """
    return size + -size % headers.BLOCK_BYTES + SAMPLE_BYTES


def plan_shards(sizes: npt.NDArray[np.int64], options: TarOptions) -> list[tuple[int, int]]:
    """Return where `write` cuts samples of these sizes into shards. So each job can write its own shards.

    Args:
        sizes: Size of the data of each sample in bytes, in the order in which the samples are stored.
        options: Limits of a shard.

    Returns:
        (start, stop) of each shard. An empty set has one empty shard.
    """
    sizes = np.asarray(sizes, np.int64)
    ends = np.cumsum(sizes + -sizes % headers.BLOCK_BYTES + SAMPLE_BYTES)
    borders, start, used = [], 0, 0
    while start < len(sizes):
        fitting = int(np.searchsorted(ends, used + options.max_bytes, side="right"))
        stop = min(max(fitting, start + 1), start + options.max_count, len(sizes))
        borders.append((start, stop))
        start, used = stop, int(ends[stop - 1])
    return borders or [(0, 0)]


class Shard:
    """One shard while it is being written.

    Args:
        path: A file that does not exist yet.
        schema: What is known about the whole set. All shards of a set carry the same record.
        options: How to write.
        digest: Whether to compute content digests while writing.
    """

    def __init__(self, path: Path, schema: Schema, options: TarOptions, digest: bool) -> None:
        self.samples = self.payload_bytes = self.counted_bytes = 0
        self._schema, self._options, self._digest = schema, options, digest
        grouping.check_names(schema.blobs, path)
        places = {name: pa.int64() for blob in schema.all_blobs for name in index.place_columns(blob.name)}
        # JSON objects are written as they came, in the index too.
        others = [name for name in schema.values.column_names if name != META]
        plain = replace(schema, values=schema.values.select(others))
        self._columns = SampleColumns(path, plain, more={**places, META: pa.string()})
        self._texts = grouping.Texts(path, schema)
        self._record = record_of(NAME, schema, options)
        self._record["options"] |= _FORMER_OPTIONS
        self._position = 0
        self._file = OutputFile(path, digest=digest)
        self._append(headers.origin(self._record))

    def _append(self, *pieces: Buffer) -> None:
        self._position += sum(map(len, pieces))
        self._file.append(pieces)

    def add(self, sample: Sample) -> None:
        """Append a sample. Its data must not change afterwards, because it may be written later."""
        stem, suffix = headers.split_key(key_of(sample, self._file.path), self._schema.shared_stems)
        members, meta = self._texts.of(sample.row)
        files = {
            grouping.member_suffix(blob, suffix): data
            for blob, data in zip(self._schema.all_blobs, sample.blobs, strict=True)
        }
        places = self._append_members(stem, files, members)
        self._columns.append(sample.key, sample.row, *places, meta or "")
        self.samples += 1
        self.payload_bytes += sample.size
        self.counted_bytes += counted_bytes(sample.size)

    def _append_members(self, stem: str, files: Mapping[str, Buffer], texts: Mapping[str, str]) -> list[int]:
        """Append the members of a sample.

        Args:
            stem: The stem that all members share.
            files: The bytes of the sample's files by suffix.
            texts: The texts of the other members by suffix.

        Returns:
            The offset and the size of each file, alternating, in bytes.
        """
        pieces, places, between, position = list[Buffer](), list[int](), b"", self._position
        for suffix, data in files.items():
            between += headers.member(f"{stem}.{suffix}", len(data))
            pieces += [between, data]
            position += len(between)
            places += [position, len(data)]
            position += len(data)
            between = headers.padding(len(data))
        for suffix, text in texts.items():
            between += headers.small_member(f"{stem}.{suffix}", text.encode())
        pieces.append(between)
        if sum(places[1::2]) < headers.BLOCK_BYTES * 16:  # a copy costs less than three pieces
            self._append(b"".join(pieces))
        else:
            self._append(*pieces)
        return places

    def finish(self) -> list[Path]:
        """End the archive, and write its index and digests.

        Returns:
            The paths of the files that were written, the tar first.
        """
        self._append(headers.end(self._position))
        files = [*self._file.finish()]
        path = files[0]
        plain = ByteFile(path, "mmap")
        rows = index.of_columns(
            self._columns,
            self._schema,
            provenance=self._record,
            file_bytes=plain.size,
            edges=index.edges(plain),
        )
        self._refuse_duplicates(rows)
        files += index.save(rows, path, digest=self._digest)
        return files

    def abandon(self) -> None:
        """Close the file. Do nothing after `finish`."""
        self._file.close()

    def _refuse_duplicates(self, rows: index.Index) -> None:
        hashes = np.sort(name_hashes(rows.keys))  # a table of the names would take ten times the memory
        if (hashes[1:] == hashes[:-1]).any():
            raise FormatError(
                f"two samples of {self._file.path} have the same key",
                expected="unique keys",
                next_step="Give each sample its own path in the manifest",
            )


def write_shard(
    samples: Iterable[Sample],
    path: Path,
    *,
    schema: Schema,
    options: TarOptions | None = None,
    digest: bool = True,
) -> Packed:
    """Write all of `samples` into one tar, whatever the limits of `options`.

    Each job of an array writes its own shards this way, independently of the others.

    Args:
        samples: The samples, in the order in which they are stored.
        path: A file that does not exist yet.
        schema: What is known about the whole set.
        options: How to write.
        digest: Whether to write content digests beside the files.

    Returns:
        What was written.

    Raises:
        OutputExistsError: `path` exists.
    """
    options = options or TarOptions()
    shard = Shard(path, schema, options, digest)
    try:
        for sample in samples:
            shard.add(sample)
        files = shard.finish()
    finally:
        shard.abandon()
    return packed(path, NAME, shard.samples, shard.payload_bytes, files)


def write_folder(
    samples: Iterable[Sample], out: Path, *, schema: Schema, options: TarOptions, digest: bool
) -> Packed:
    """Write a folder of numbered shards, cut as `plan_shards` cuts.

    The arguments are as for `write_shard`.
    """
    with writing(out):
        out.mkdir()
    shards: list[Shard] = []
    files: list[Path] = []
    try:
        for sample in samples:
            if not shards or _is_full(shards[-1], sample.size, options):
                files += shards[-1].finish() if shards else []
                shards.append(_numbered(out, len(shards), schema, options, digest))
            shards[-1].add(sample)
        shards = shards or [_numbered(out, 0, schema, options, digest)]
        files += shards[-1].finish()
    finally:
        for shard in shards[-1:]:
            shard.abandon()
    count, payload = sum(shard.samples for shard in shards), sum(shard.payload_bytes for shard in shards)
    return packed(out, NAME, count, payload, files)


def _numbered(out: Path, number: int, schema: Schema, options: TarOptions, digest: bool) -> Shard:
    return Shard(out / shard_name(number), schema, options, digest)


def _is_full(shard: Shard, size: int, options: TarOptions) -> bool:
    gain_beyond = shard.counted_bytes + counted_bytes(size) > options.max_bytes
    return shard.samples == options.max_count or (gain_beyond and shard.samples > 0)
