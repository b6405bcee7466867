"""Write the data files of a run one after the other, and remember which are finished.

A finished file is moved to its place among the finished ones only after it and its record are synced to
the disk, and a run that resumes compares it with its digest. So a run that is killed at any moment, or by a
power cut, finds again what was finished, and only that.

The trap: the name of a file may reach the disk before its bytes. Notebook 03 shows a killed run.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from smallfiles import formats
from smallfiles.atomic import Draft, sync
from smallfiles.digests import ContentDigest, sidecar
from smallfiles.errors import FormatError, PackError
from smallfiles.pack.compare import compare
from smallfiles.pack.config import unpackable
from smallfiles.pack.feed import Feed, SampleFault
from smallfiles.pack.job import Job, Piece
from smallfiles.pack.records import Written, expected_of, sidecar_hashes
from smallfiles.progress import Progress, progress
from smallfiles.samples import Packed, Sample, Schema

COLLECT_FAULTS_S = 30.0


def write_pieces(job: Job, draft: Draft, finished: Path) -> tuple[list[Written], int]:
    """Write every data file of a run that is not finished yet.

    Args:
        job: The run.
        draft: The private folder.
        finished: Folder inside it that finished files are moved to.

    Returns:
        The records of all data files, and how many samples an earlier run had done.

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
            record = Written.load(draft.records, piece.name)
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
    """Have the format write one data file."""
    module = formats.get(job.format)
    write = module.write_shard if job.sharded else module.write
    packed: Packed = write(samples, path, schema=schema, options=job.options, digest=job.config.digest)
    return packed


def _write_piece(job: Job, number: int, draft: Draft, bar: Progress) -> Written:
    """Write one data file; on a fault, examine the ones after it for more of them."""
    piece = job.pieces[number]
    path = draft.partial / piece.name
    feed = Feed(job, piece, bar)
    try:
        schema = replace(job.schema, values=job.values_of(piece))
        packed = write_format(job, feed.samples(), path, schema)
    except SampleFault:
        raise _all_faults(job, feed, job.pieces[number + 1 :], bar) from None
    return Written(
        name=piece.name,
        start=piece.start,
        payload_bytes=packed.payload_bytes,
        skipped=tuple(feed.skipped),
        checksums=feed.checksums,
        kept=feed.kept,
        sidecars=sidecar_hashes(path),
        exif_rotated=feed.exif_rotated,
    )


def _all_faults(job: Job, feed: Feed, later: Sequence[Piece], bar: Progress) -> PackError:
    until_s = time.monotonic() + COLLECT_FAULTS_S
    faults = feed.faults_ahead(until_s)
    for piece in later:
        faults += Feed(job, piece, bar).faults_ahead(until_s)
    return unpackable(faults, len(job.order), job.source.store.describe())


def _is_intact(job: Job, record: Written, path: Path) -> bool:
    """Whether a file that an earlier run finished is what was written; in doubt it is written again."""
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
    """Remove what an earlier run left and cannot be trusted."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def _finish(job: Job, record: Written, draft: Draft, finished: Path) -> None:
    """Sync a data file and its sidecars, and only then say that it is finished; the data file last."""
    names = [*record.sidecars, record.name]
    if job.sharded:  # a single output is synced when it is published
        sync(draft.partial / name for name in names)
    record.save(draft.records)
    draft.finish(names, finished)
    sync([finished])
