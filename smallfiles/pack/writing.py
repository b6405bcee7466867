"""Write the data files of a run one after the other, and remember which are finished.

A finished file is moved to its place among the finished ones only after it and its record are synced to
the disk, and a run that resumes compares it with its digest. So a run that is killed at any moment, or by a
power cut, finds again what was finished, and only that.
"""

from __future__ import annotations

import glob
import json
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from smallfiles import formats
from smallfiles.arrays import from_numpy
from smallfiles.atomic import Draft, sync, write_json
from smallfiles.digests import ContentDigest, hash_block, sidecar
from smallfiles.errors import FormatError, PackError, ResourceError, SmallfilesError
from smallfiles.pack.compare import Expected, compare
from smallfiles.pack.config import Skipped
from smallfiles.pack.examine import examiner
from smallfiles.pack.job import ROWS_AT_ONCE, Job, Piece, unpackable
from smallfiles.pack.reading import Read, read_in_order
from smallfiles.pack.resizing import Scaling
from smallfiles.pack.spool import Placed, Spool, spool
from smallfiles.progress import Progress
from smallfiles.samples import Packed, Sample, Schema

NAMED_AT_ONCE = 32
COLLECT_FAULTS_S = 30.0


@dataclass(frozen=True)
class Written:
    """The record of one finished data file.

    Args:
        name: File name.
        start: First sample in the order of packing.
        stop: One after the last.
        payload_bytes: Encoded bytes inside.
        skipped: Samples of the range that were left out.
        checksums: xxh3 of each sample of the range, uint64 (0 for one that was left out).
        kept: Whether each sample of the range is inside, bool.
        largest_bytes: The largest sample inside if pictures were scaled, else 0.
        beside: Hash of each small file that was written with it, by name.
        exif_rotated: How many say in EXIF that viewers should turn them.
    """

    name: str
    start: int
    stop: int
    payload_bytes: int
    skipped: tuple[Skipped, ...]
    checksums: np.ndarray
    kept: np.ndarray
    largest_bytes: int = 0
    beside: dict[str, str] = field(default_factory=dict)
    exif_rotated: int = 0

    def save(self, folder: Path) -> None:
        """Write the record; the JSON file comes last and says that it is whole."""
        (folder / f"{self.name}.json").unlink(missing_ok=True)  # of a run that was killed behind this point
        arrays = {"checksums": self.checksums, "kept": self.kept}
        for name, array in arrays.items():
            np.save(folder / f"{self.name}.{name}.npy", array, allow_pickle=False)
        sync(folder / f"{self.name}.{name}.npy" for name in arrays)
        facts = {
            "start": self.start,
            "stop": self.stop,
            "payload_bytes": self.payload_bytes,
            "largest_bytes": self.largest_bytes,
            "exif_rotated": self.exif_rotated,
            "skipped": [asdict(fault) for fault in self.skipped],
            "beside": self.beside,
        }
        write_json(folder / f"{self.name}.json", facts)

    @classmethod
    def load(cls, folder: Path, name: str) -> Written | None:
        """The record of a finished file, or None."""
        try:
            facts = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
            return cls(
                name,
                int(facts["start"]),
                int(facts["stop"]),
                int(facts["payload_bytes"]),
                tuple(Skipped(**fault) for fault in facts["skipped"]),
                np.load(folder / f"{name}.checksums.npy", allow_pickle=False),
                np.load(folder / f"{name}.kept.npy", allow_pickle=False),
                int(facts["largest_bytes"]),
                dict(facts["beside"]),
                int(facts["exif_rotated"]),
            )
        except (OSError, ValueError, KeyError, TypeError, EOFError):
            return None


class _Fault(Exception):
    """Stops a writer from inside its own input."""


def write_pieces(
    job: Job, pieces: Sequence[Piece], draft: Draft, finished: Path, progress: Progress
) -> tuple[list[Written], int]:
    """Write every piece that is not finished yet.

    Args:
        job: The run.
        pieces: Its data files.
        draft: The private folder.
        finished: Folder inside it that finished files are moved to.
        progress: Told of every sample.

    Returns:
        The records of all pieces, and how many samples an earlier run had done.

    Raises:
        PackError: Samples cannot be packed and `on_error` is "stop".
    """
    records, resumed = [], 0
    with ThreadPoolExecutor(1, "finish") as finisher:  # a file is synced while the next one is written
        last: Future[None] | None = None
        for number, piece in enumerate(pieces):
            record = Written.load(draft.records, piece.name)
            if record is not None and _is_intact(job, record, finished / piece.name):
                resumed += int(record.kept.sum())
                progress.advance(piece.stop - piece.start, bytes=record.payload_bytes)
            else:
                _remove(finished / piece.name)
                record = _write_piece(job, pieces[number:], draft, progress)
                if last is not None:
                    last.result()
                last = finisher.submit(_finish, job, record, draft, finished)
            records.append(record)
        if last is not None:
            last.result()
    return records, resumed


def expected_of(job: Job, records: Sequence[Written]) -> Expected:
    """What the data files of these records must give back."""
    return Expected(
        rows=_joined([job.order[record.start : record.stop] for record in records], records),
        checksums=_joined([record.checksums for record in records], records),
        manifest=job.source.manifest,
        scaled=job.scaling is not None,
    )


def _joined(values: list[np.ndarray], records: Sequence[Written]) -> np.ndarray:
    """Those of the samples that are inside; nothing is copied where there is one file with all of them."""
    kept = [
        some if record.kept.all() else some[record.kept] for some, record in zip(values, records, strict=True)
    ]
    return kept[0] if len(kept) == 1 else np.concatenate(kept)


def _is_intact(job: Job, record: Written, path: Path) -> bool:
    """Whether a file that an earlier run finished is what was written; in doubt it is written again."""
    try:
        if not hashes_beside(path).items() >= record.beside.items():
            return False
        if job.config.digest and path.is_file():
            return not ContentDigest.load(sidecar(path)).damaged_blocks(path)
        if job.config.verify == "none":
            return False  # nothing is known to compare with
        expected = expected_of(job, [record])
        compare(path, job.format, expected, range(len(expected.rows)))
        return True
    except (OSError, FormatError, PackError):
        return False


def hashes_beside(path: Path) -> dict[str, str]:
    """Hash of each small file that lies beside a data file, by name."""
    beside = sorted(path.parent.glob(f"{glob.escape(path.name)}.*"))
    return {small.name: hash_block(small.read_bytes()) for small in beside}


def _remove(path: Path) -> None:
    """Remove what an earlier run left and cannot be trusted."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def _finish(job: Job, record: Written, draft: Draft, finished: Path) -> None:
    """Sync a data file and what lies beside it, and only then say that it is finished; the data file last."""
    names = [*record.beside, record.name]
    if job.sharded:  # a single output is synced when it is published
        sync(draft.partial / name for name in names)
    record.save(draft.records)
    draft.finish(names, finished)
    sync([finished])


def _write_piece(job: Job, ahead: Sequence[Piece], draft: Draft, progress: Progress) -> Written:
    """Write the first of the pieces `ahead`; on a fault, examine the others for more of them."""
    piece = ahead[0]
    feed = _Feed(job, piece, progress)
    try:
        path = draft.partial / piece.name
        if job.scaling is None:
            packed = write_format(job, feed.samples(), path)
        else:
            with spool(draft.folder, piece.stop - piece.start) as waiting:
                schema = feed.scale(job.scaling, waiting)
                packed = write_format(job, feed.scaled(waiting), path, schema)
    except _Fault:
        until_s = time.monotonic() + COLLECT_FAULTS_S
        faults = feed.collect_faults(until_s)
        for other in ahead[1:]:
            faults += _Feed(job, other, progress).collect_faults(until_s)
        raise unpackable(faults, len(job.order), job.source.store.describe()) from None
    skipped = tuple(feed.faults)
    return Written(
        piece.name,
        piece.start,
        piece.stop,
        packed.payload_bytes,
        skipped,
        feed.checksums,
        feed.kept,
        feed.largest_bytes,
        hashes_beside(path),
        feed.exif_rotated,
    )


def write_format(job: Job, samples: Iterator[Sample], path: Path, schema: Schema | None = None) -> Packed:
    """Have the format write one data file; `schema` if it is not that of the job."""
    module = formats.get(job.format)
    write = module.write_shard if job.sharded else module.write
    packed: Packed = write(
        samples, path, schema=schema or job.schema, options=job.options, digest=job.config.digest
    )
    return packed


def exact(job: Job, total_bytes: int, largest_bytes: int) -> Schema:
    """The schema of scaled samples, whose sizes are known by now."""
    return replace(job.schema, total_bytes=total_bytes, largest_bytes=largest_bytes)


class _Feed:
    """The samples of one piece, read ahead, examined and counted."""

    def __init__(self, job: Job, piece: Piece, progress: Progress) -> None:
        self._job, self._piece, self._progress = job, piece, progress
        self._reads = self._read()
        self.faults: list[Skipped] = []
        self.largest_bytes = self.exif_rotated = 0
        self.checksums = np.zeros(piece.stop - piece.start, np.uint64)
        self.kept = np.zeros(piece.stop - piece.start, bool)

    def _read(self) -> Iterator[Read]:
        job, piece = self._job, self._piece
        return read_in_order(
            job.source.store,
            _Paths(job, piece),
            job.sizes[piece.start : piece.stop],
            in_flight=job.in_flight,
            examine=examiner(job.config.check),
            checksums=job.config.verify != "none",
        )

    def samples(self) -> Iterator[Placed]:
        """What was read, in order; what cannot be packed is kept in `faults`, or stops here."""
        rows = _rows(self._job, self._piece)
        told = told_bytes = 0
        for read, (key, target, meta) in zip(self._reads, rows, strict=True):
            told, told_bytes = told + 1, told_bytes + len(read.data)
            if told == NAMED_AT_ONCE:
                self._progress.advance(told, bytes=told_bytes)
                told = told_bytes = 0
            if read.error is not None:
                self._fault(key, read.error)
                continue
            self.exif_rotated += read.exif_rotated
            self.checksums[read.position] = read.checksum
            self.kept[read.position] = True
            yield Placed(key, read.data, target, meta, read.position)
        self._progress.advance(told, bytes=told_bytes)

    def _fault(self, key: str, error: SmallfilesError) -> None:
        if isinstance(error, ResourceError):  # no fault of the sample
            raise error
        self.faults.append(Skipped(key, error.got))
        if self._job.config.on_error == "stop":
            raise _Fault

    def scale(self, scaling: Scaling, waiting: Spool) -> Schema:
        """Scale all samples into a spool; what comes out is what counts from here on."""
        from smallfiles.images import resized  # PyTorch with it, which other packing does without

        options = (scaling.short_side, scaling.store, scaling.quality)
        for sample in resized(self.samples(), *options, on_fault=self._fault):
            assert isinstance(sample, Placed)
            waiting.add(sample.position, sample.data)
            self.checksums[sample.position] = xxhash.xxh3_64_intdigest(sample.data)
        self.checksums[~waiting.kept] = 0
        self.kept = waiting.kept
        self.largest_bytes = int(waiting.sizes.max(initial=0))
        self._sort_faults()
        return exact(self._job, int(waiting.sizes.sum()), self.largest_bytes)

    def scaled(self, waiting: Spool) -> Iterator[Sample]:
        """The samples of a spool, with the rest of what belongs to them."""
        kept = compress(_rows(self._job, self._piece), waiting.kept)
        for data, (key, target, meta) in zip(waiting.read(), kept, strict=True):
            yield Sample(key, data, target, meta)

    def _sort_faults(self) -> None:
        """Faults of reading were found before those of decoding, how long before depends on the machine."""
        if self.faults:
            bad = {fault.key: fault for fault in self.faults}
            keys = (key for key, _, _ in _rows(self._job, self._piece))
            self.faults = [bad[key] for key in keys if key in bad]

    def collect_faults(self, until_s: float) -> list[Skipped]:
        """Go on reading, without writing, so that one run names many bad samples."""
        for read in self._reads:
            if read.error is not None:
                position = self._piece.start + read.position
                key = self._job.rows(position, position + 1)["path"][0].as_py()
                self.faults.append(Skipped(key, read.error.got))
            if time.monotonic() > until_s:
                break
        return self.faults


class _Paths:
    """Paths of a piece, made into strings a few thousand at a time."""

    def __init__(self, job: Job, piece: Piece) -> None:
        self._job, self._piece = job, piece
        self._first = 0
        self._names: list[str] = []

    def __getitem__(self, span: slice) -> list[str]:
        first, last = span.start - self._first, span.stop - self._first
        if first < 0 or last > len(self._names):
            begin = self._piece.start + span.start
            end = min(max(begin + ROWS_AT_ONCE, self._piece.start + span.stop), self._piece.stop)
            rows = from_numpy(self._job.order[begin:end])
            self._first, self._names = span.start, self._job.source.manifest.paths.take(rows).to_pylist()
            first, last = 0, span.stop - span.start
        return self._names[first:last]


def _rows(job: Job, piece: Piece) -> Iterator[tuple[str, Any, Any]]:
    """(key, target, meta) of a piece, a few thousand at a time."""
    for start in range(piece.start, piece.stop, ROWS_AT_ONCE):
        table = job.rows(start, min(start + ROWS_AT_ONCE, piece.stop))
        keys = table["path"].to_pylist()
        targets = table[job.schema.target].to_pylist()
        if "meta" not in table.column_names:
            yield from ((key, target, None) for key, target in zip(keys, targets, strict=True))
            continue
        metas = (json.loads(text) if text is not None else None for text in table["meta"].to_pylist())
        yield from zip(keys, targets, metas, strict=True)
