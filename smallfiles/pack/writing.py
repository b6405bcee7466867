"""Write the data files of a run one after the other, compare them, and remember which are finished.

A format draws its samples from a `SampleStream`, which reads ahead, and holds no more than it is writing.
A finished shard is moved to its place among the finished ones only after it and its record are synced to the
disk; a single file is synced when it is published. A run that resumes compares it with its digest. So after a
kill or a power cut, the next run finds exactly what was finished.

A file that was just written is compared with what was read from its source. This happens before publication:
a file that does not read back is never given its final name.

The traps: the name of a file may reach the disk before its bytes. And a record that a killed run left half
written must not be believed; so its JSON file is removed first and written last. Notebook 03 shows a killed
run.
"""

from __future__ import annotations

import glob
import hashlib
import json
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from smallfiles import formats
from smallfiles.arrays import as_mask, from_numpy, one_chunk
from smallfiles.atomic import Draft, sync, write_json
from smallfiles.digests import ContentDigest, hash_block, sidecar
from smallfiles.errors import FormatError, LinkError, PackError, ResourceError, SmallfilesError
from smallfiles.fields import META, as_text, further_fields
from smallfiles.manifest import Manifest
from smallfiles.pack import Skipped, unpackable
from smallfiles.pack.job import ROWS_AT_ONCE, DataFilePlan, Job
from smallfiles.pack.reading import Read, examiner, read_in_order
from smallfiles.pack.scaling import scale_of
from smallfiles.progress import Progress, progress
from smallfiles.samples import Packed, Reader, Sample, Schema

_SHOWN_AT_ONCE = 32
COLLECT_FAULTS_S = 30.0


@dataclass(frozen=True)
class DataFileRecord:
    """The record of one finished data file.

    Args:
        name: File name.
        start: First sample of the file, counted in the order of packing.
        payload_bytes: Total size of the encoded samples in the file, in bytes.
        skipped: Samples that were left out.
        checksums: xxh3 of each sample from `start` on, uint64 (0 for a sample that was left out).
        kept: Whether each of these samples is in the file, bool.
        sidecars: Hash of each small file that was written with the data file, by name.
        exif_rotated: Number of samples that say in EXIF that viewers should turn them.
    """

    name: str
    start: int
    payload_bytes: int
    skipped: tuple[Skipped, ...]
    checksums: np.ndarray
    kept: np.ndarray
    sidecars: dict[str, str] = field(default_factory=dict)
    exif_rotated: int = 0

    @property
    def samples(self) -> int:
        """Number of samples in the file."""
        return int(self.kept.sum())

    @property
    def span(self) -> slice:
        """The range of the file's samples in the order of packing, including those that were left out."""
        return slice(self.start, self.start + len(self.kept))

    def inside(self, values: np.ndarray) -> np.ndarray:
        """Select the values of packed samples from `values`, which has one value for each sample of `span`.

        Nothing is copied if all samples were packed.
        """
        return values if self.kept.all() else values[self.kept]

    def save(self, folder: Path) -> None:
        """Write the record. The JSON file is written last, and shows that the record is complete."""
        (folder / f"{self.name}.json").unlink(missing_ok=True)  # of a run that was killed after this point
        arrays = {"checksums": self.checksums, "kept": self.kept}
        for name, array in arrays.items():
            np.save(folder / f"{self.name}.{name}.npy", array, allow_pickle=False)
        sync(folder / f"{self.name}.{name}.npy" for name in arrays)
        facts = {name: getattr(self, name) for name in ("start", "payload_bytes", "exif_rotated", "sidecars")}
        facts["skipped"] = [asdict(fault) for fault in self.skipped]
        write_json(folder / f"{self.name}.json", facts)

    @classmethod
    def load(cls, folder: Path, name: str) -> DataFileRecord | None:
        """Read the record of a finished file. Return None if there is no complete record."""
        try:
            facts = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
            return cls(
                name=name,
                start=int(facts["start"]),
                payload_bytes=int(facts["payload_bytes"]),
                skipped=tuple(Skipped(**fault) for fault in facts["skipped"]),
                checksums=np.load(folder / f"{name}.checksums.npy", allow_pickle=False),
                kept=np.load(folder / f"{name}.kept.npy", allow_pickle=False),
                sidecars=dict(facts["sidecars"]),
                exif_rotated=int(facts["exif_rotated"]),
            )
        except (OSError, ValueError, KeyError, TypeError, EOFError):
            return None


def expected_of(job: Job, records: Sequence[DataFileRecord]) -> Expected:
    """Return what the data files of these records must return when they are read."""
    return Expected(
        rows=_joined([record.inside(job.order[record.span]) for record in records]),
        checksums=_joined([record.inside(record.checksums) for record in records]),
        manifest=job.source.manifest,
        scaled=job.config.scaling is not None,
    )


def _joined(values: list[np.ndarray]) -> np.ndarray:
    return values[0] if len(values) == 1 else np.concatenate(values)


def sidecar_hashes(path: Path) -> dict[str, str]:
    """Return the hash of each small file that lies beside a data file, by the name of the small file."""
    small_files = sorted(path.parent.glob(f"{glob.escape(path.name)}.*"))
    return {small.name: hash_block(small.read_bytes()) for small in small_files}


class SampleFault(Exception):
    """Stops a writer from inside the iterator of its samples."""


class SampleStream:
    """The samples of one data file, read ahead while the file is written.

    Args:
        job: The run.
        piece: The data file.
        progress: The progress bar, which every sample advances.

    Attributes:
        piece: The data file.
        skipped: Samples that cannot be packed, in order.
        exif_rotated: Number of samples that say in EXIF that viewers should turn them.
        checksums: xxh3 of each sample of the piece, uint64 (0 for a sample that was left out).
        kept: Whether each sample was passed to the writer, bool.
    """

    def __init__(self, job: Job, piece: DataFilePlan, progress: Progress) -> None:
        self._job, self.piece, self._progress = job, piece, progress
        fields = [self._read_ahead(field, sizes) for field, sizes in job.sizes.items()]
        self._reads: Iterator[tuple[Read, ...]] = zip(*fields, strict=True)
        count = piece.stop - piece.start
        self.skipped: list[Skipped] = []
        self.exif_rotated = 0
        self.checksums = np.zeros(count, np.uint64)
        self.kept = np.zeros(count, bool)

    def _read_ahead(self, field: str, sizes: np.ndarray) -> Iterator[Read]:
        """Read the files of one field ahead, in the order of the data file."""
        job, manifest, scaling = self._job, self._job.source.manifest, self._job.config.scaling
        return read_in_order(
            job.source.store,
            _Paths(job, self.piece, manifest.blob_paths(field)),
            sizes[self.piece.start : self.piece.stop],
            threads=job.threads,
            examine=examiner(job.config.check),
            scale=None if scaling is None else scale_of(scaling, manifest, field),
            checksums=job.config.verify != "none",
        )

    def _keys(self) -> Iterator[str]:
        """Yield the keys of the data file's samples. A few thousand are converted to strings at a time."""
        keys, count = _Paths(self._job, self.piece, self._job.source.manifest.paths), len(self.kept)
        for start in range(0, count, ROWS_AT_ONCE):
            yield from keys[start : min(start + ROWS_AT_ONCE, count)]

    def samples(self) -> Iterator[Sample]:
        """Yield all samples that can be packed, in order.

        Raises:
            SampleFault: A sample cannot be packed, and `on_error` is "stop".
            ResourceError: Reading failed, but not because of the sample.
            LinkError: A sample is a link that leads out of the source.
        """
        seen = seen_bytes = 0
        for reads, key in zip(self._reads, self._keys(), strict=True):
            position, blobs = reads[0].position, tuple(read.data for read in reads)
            seen, seen_bytes = seen + 1, seen_bytes + sum(map(len, blobs))
            if seen == _SHOWN_AT_ONCE:
                self._progress.advance(seen, bytes=seen_bytes)
                seen = seen_bytes = 0
            if error := _first_error(reads):
                self._skip(key, error)
                continue
            self.exif_rotated += reads[0].exif_rotated
            self.checksums[position] = joint_checksum([read.checksum for read in reads])
            self.kept[position] = True
            yield Sample(key, blobs, position)
        self._progress.advance(seen, bytes=seen_bytes)

    def faults_ahead(self, until_s: float) -> list[Skipped]:
        """Return the faults so far and the faults of later samples, so that one run names many bad samples.

        The later samples are read without writing them.

        Args:
            until_s: When to stop looking (`time.monotonic`).
        """
        with suppress(ResourceError):  # it would hide the faults that were found
            for reads in self._reads:
                if error := _first_error(reads):
                    row = int(self._job.order[self.piece.start + reads[0].position])
                    self.skipped.append(Skipped(self._job.source.manifest.path(row), error.got))
                if time.monotonic() > until_s:
                    break
        return self.skipped

    def _skip(self, key: str, error: SmallfilesError) -> None:
        if isinstance(error, ResourceError | LinkError):  # no fault of the sample
            raise error
        self.skipped.append(Skipped(key, error.got))
        if self._job.config.on_error == "stop":
            raise SampleFault


def _first_error(reads: tuple[Read, ...]) -> SmallfilesError | None:
    return next((read.error for read in reads if read.error is not None), None)


class _Paths:
    """The paths of a data file's samples, converted to strings a few thousand at a time."""

    def __init__(self, job: Job, piece: DataFilePlan, paths: pa.StringArray) -> None:
        self._job, self._piece, self._paths = job, piece, paths
        self._first = 0
        self._names: list[str] = []

    def __getitem__(self, span: slice) -> list[str]:
        first, last = span.start - self._first, span.stop - self._first
        if first < 0 or last > len(self._names):
            begin = self._piece.start + span.start
            end = min(max(begin + ROWS_AT_ONCE, self._piece.start + span.stop), self._piece.stop)
            rows = from_numpy(self._job.order[begin:end])
            self._first, self._names = span.start, self._paths.take(rows).to_pylist()
            first, last = 0, span.stop - span.start
        return self._names[first:last]


def write_pieces(job: Job, draft: Draft, finished: Path) -> tuple[list[DataFileRecord], int]:
    """Write every data file of a run that is not finished yet.

    Args:
        job: The run.
        draft: The private folder.
        finished: The folder inside the private folder to which finished files are moved.

    Returns:
        The records of all data files, and the number of samples that an earlier run had packed.

    Raises:
        PackError: Samples cannot be packed and `on_error` is "stop".
    """
    records, resumed = [], 0
    count = sum(piece.stop - piece.start for piece in job.pieces)
    with (
        progress(count, f"pack {draft.out.name}") as bar,
        ThreadPoolExecutor(1, "finish") as finisher,  # a file is synced while the next one is written
    ):
        last: Future[None] | None = None
        for number, piece in enumerate(job.pieces):
            record = DataFileRecord.load(draft.records, piece.name)
            if record is not None and _is_intact(job, record, finished / piece.name):
                resumed += record.samples
                bar.advance(piece.stop - piece.start, bytes=record.payload_bytes)
            else:
                _remove(finished / piece.name)
                record = _write_piece(job, number, draft, bar)
                if last is not None:
                    last.result()
                last = finisher.submit(_finish, job, record, draft, finished)
            records.append(record)
        if last is not None:
            last.result()
    return records, resumed


def write_format(job: Job, samples: Iterator[Sample], path: Path, schema: Schema) -> Packed:
    """Write one data file with the writer of the job's format."""
    module = formats.get(job.format)
    write = module.write_shard if job.sharded else module.write
    packed: Packed = write(samples, path, schema=schema, options=job.options, digest=job.config.digest)
    return packed


def _write_piece(job: Job, number: int, draft: Draft, bar: Progress) -> DataFileRecord:
    """Write one data file. If a sample is faulty, examine the data files after it for more faults."""
    piece = job.pieces[number]
    path = draft.partial / piece.name
    feed = SampleStream(job, piece, bar)
    try:
        schema = replace(job.schema, values=job.values_of(piece))
        packed = write_format(job, feed.samples(), path, schema)
    except SampleFault:
        raise _all_faults(job, feed, job.pieces[number + 1 :], bar) from None
    return DataFileRecord(
        name=piece.name,
        start=piece.start,
        payload_bytes=packed.payload_bytes,
        skipped=tuple(feed.skipped),
        checksums=feed.checksums,
        kept=feed.kept,
        sidecars=sidecar_hashes(path),
        exif_rotated=feed.exif_rotated,
    )


def _all_faults(job: Job, feed: SampleStream, later: Sequence[DataFilePlan], bar: Progress) -> PackError:
    until_s = time.monotonic() + COLLECT_FAULTS_S
    faults = feed.faults_ahead(until_s)
    for piece in later:
        faults += SampleStream(job, piece, bar).faults_ahead(until_s)
    return unpackable(faults, len(job.order), job.source.store.describe())


def _is_intact(job: Job, record: DataFileRecord, path: Path) -> bool:
    """Check whether a file that an earlier run finished is what was written.

    In doubt, it is written again.
    """
    try:
        if not sidecar_hashes(path).items() >= record.sidecars.items():
            return False
        if job.config.digest and path.is_file():
            return not ContentDigest.load(sidecar(path)).damaged_blocks(path)
        if job.config.verify == "none":
            return False  # nothing is known to compare with
        compare(path, job.format, expected_of(job, [record]), range(record.samples))
        return True
    except (OSError, FormatError, PackError):
        return False


def _remove(path: Path) -> None:
    """Remove a file or folder that an earlier run left and that cannot be trusted."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def _finish(job: Job, record: DataFileRecord, draft: Draft, finished: Path) -> None:
    """Sync a data file and its sidecars, and only then record that it is finished.

    The data file is moved last.
    """
    names = [*record.sidecars, record.name]
    if job.sharded:  # a single output is synced when it is published
        sync(draft.partial / name for name in names)
    record.save(draft.records)
    draft.finish(names, finished)
    sync([finished])


SAMPLED = 256
SEED = 0
COMPARED_AT_ONCE = 1 << 14


@dataclass(frozen=True)
class Expected:
    """What a packed file must return when it is read.

    Args:
        rows: Rows of the manifest in stored order, int64.
        checksums: xxh3 of each sample's bytes as read from the source, uint64. See `joint_checksum`.
        manifest: Keys, targets, JSON objects, and the SHA-256 of the bytes if the manifest has it.
        scaled: Whether images were scaled, so that the manifest's SHA-256 does not belong to their bytes.
    """

    rows: np.ndarray
    checksums: np.ndarray
    manifest: Manifest
    scaled: bool = False

    def sha256(self, index: int) -> str | None:
        """Return the SHA-256 of a sample's bytes that the manifest states, in hexadecimal.

        Return None if the manifest states none, or if images were scaled.
        """
        table = self.manifest.table
        if self.scaled or "sha256" not in table.column_names:
            return None
        found: str | None = table["sha256"][int(self.rows[index])].as_py()
        return found


def joint_checksum(each: Sequence[int]) -> int:
    """Combine the checksums of all files of a sample into one checksum."""
    return each[0] if len(each) == 1 else xxhash.xxh3_64_intdigest(np.array(each, np.uint64).tobytes())


def chosen(count: int, *, full: bool) -> Sequence[int]:
    """Return the numbers of those samples, of `count`, whose bytes are compared.

    These are all samples, or about 256 of them, including the first and the last.
    """
    if full or count <= SAMPLED:
        return range(count)
    some = np.random.default_rng(SEED).choice(count, SAMPLED, replace=False)
    return sorted({0, count - 1, *some.tolist()})


def compare(
    path: Path, format: str, expected: Expected, indices: Sequence[int], bar: Progress | None = None
) -> None:
    """Compare a file that was just written with what was read from its source.

    Keys, targets and JSON objects are compared in full. Bytes are compared only for the samples in `indices`,
    also with the manifest's SHA-256 if it has one.

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
    for start in range(0, len(expected.rows), COMPARED_AT_ONCE):
        rows = expected.rows[start : start + COMPARED_AT_ONCE]
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
    """Return the rows in which two columns of values differ.

    Values are compared bit by bit. NaN is equal to itself, and JSON objects are equal if their meaning is
    equal.
    """
    if name == META:
        pairs = enumerate(zip(ours.to_pylist(), theirs.to_pylist(), strict=True))
        return [row for row, (a, b) in pairs if a != b and json.loads(a or "null") != json.loads(b or "null")]
    found: list[int] = []
    for start in range(0, len(ours), COMPARED_AT_ONCE):
        texts = (as_text(one_chunk(each.slice(start, COMPARED_AT_ONCE))) for each in (ours, theirs))
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
