"""Pack a data set: read at once, write in order, verify, publish.

Eight tasks of a job array on eight nodes open files at eight metadata clients at once. All tasks cut the same
manifest at the same borders, so they need not talk to each other; the merge checks that they did, and makes
the very bytes of a single run. A part lives in `NAME.parts/part-00002-of-00008/`, complete or not there at
all.

What a killed run leaves, and what the next run of the same command does with it:

    .NAME.packing/owner.json, lock    whose it is; a dead owner is replaced (`smallfiles.locks`)
    .NAME.packing/partial-TOKEN/      the data file that was being written; removed
    .NAME.packing/records/            what each finished data file holds, and the digest of the job
    .NAME.packing/data/               finished data files; kept if job and digests are the same, else removed

So a folder of shards goes on after its last finished shard. A single file begins again, unless only its
verification was missing. If the output is there already, the private folder is removed, and the run is
refused.

The traps: parts that were packed with different options can have matching borders and still not belong
together. And a pack that stops half way must not look finished, and a finished file must not be trusted
before it was read back. So the order is always: write aside, verify, publish. Notebook 03.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
import warnings
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from smallfiles import formats, storage
from smallfiles.arrays import from_numpy, give_back_memory
from smallfiles.atomic import Draft, drafted, refuse_existing, sweep, write_json
from smallfiles.digests import ContentDigest, sidecar
from smallfiles.errors import DamagedFileError, PackError, ResourceError, writing
from smallfiles.pack import PackConfig, PackPlan, PackReport, Skipped, unpackable
from smallfiles.pack.job import Job, check_room, part_folder, prepare
from smallfiles.pack.reading import not_decodable
from smallfiles.pack.writing import (
    DataFileRecord,
    chosen,
    compare,
    expected_of,
    sidecar_hashes,
    write_format,
    write_pieces,
)
from smallfiles.progress import note, plural, progress
from smallfiles.samples import Sample
from smallfiles.sources import Source
from smallfiles.sources.record import NamedStore

FAULTS_SUFFIX = ".faults.json"
RESIZED_SUFFIX = ".resized.json"


def plan(source: Source, out: Path, config: PackConfig | None = None) -> PackPlan:
    """Return what packing would write, without writing it: files, bytes, and inodes saved.

    Args:
        source: The source that `smallfiles.sources.load` returned.
        out: Where the output would go.
        config: As for `pack`.

    Returns:
        The plan. Its numbers follow from the manifest alone.

    Raises:
        OutputExistsError: `out` already exists, so that `pack` would refuse it.
    """
    job = prepare(source, Path(out), config or PackConfig())
    refuse_existing(job.target)
    return job.plan()


def pack(source: Source, out: Path, config: PackConfig | None = None) -> PackReport:
    """Pack a source into one file or a folder of shards, after noting what was odd in the source.

    A million opens are paid once, here, many at a time. Each later epoch reads a few large files from end to
    end, which is what a parallel file system is built for.

    Args:
        source: The source that `smallfiles.sources.load` returned. Its notes are shown.
        out: Final name. Its suffix determines the format unless `config.format` does.
        config: How to pack. The defaults verify a sample, and stop at the first source that cannot be packed.

    Returns:
        What was published.

    Raises:
        OutputExistsError: `out` already exists.
        PackError: Sources cannot be packed, verification failed, or another run is packing to `out`.
        ResourceError: There is no space, no free inode, or no permission.
        StorageError: The storage did not answer for `storage_timeout_s`. Nothing was left out.
    """
    config = config or PackConfig()
    with storage.timeout(config.storage_timeout_s):
        return _pack(source, Path(out), config)


def _pack(source: Source, out: Path, config: PackConfig) -> PackReport:
    for odd in source.notes:
        note(f"{source.store.describe()}: {odd}")
    started = time.perf_counter()
    refuse_finished(out, config)
    job = prepare(source, out, config)
    if config.part is not None and job.target.exists():
        return _reused(job, started)
    with writing(job.target):
        job.target.parent.mkdir(parents=True, exist_ok=True)
        check_room(job)
    with drafted(job.target, "packing") as draft, writing(job.target):
        try:
            return _run(job, draft, started)
        except BaseException as error:
            _abandon(job, draft, error)
            raise


def refuse_finished(out: Path, config: PackConfig) -> None:
    """Refuse an output that exists, before its source is walked for minutes.

    What killed runs of this output left behind is removed first.

    Args:
        out: As for `pack`.
        config: As for `pack`. A part that exists is not refused, since it may be the same part.

    Raises:
        OutputExistsError: The output exists already.
    """
    out = Path(out)
    sweep(out if config.part is None else part_folder(out, config.part))
    if config.merge and out.exists():  # a merge was killed after it published its output
        shutil.rmtree(part_folder(out, (1, 1)).parent, ignore_errors=True)
    refuse_existing(out)


def _run(job: Job, draft: Draft, started: float) -> PackReport:
    """Write the output under another name, verify it, and publish it."""
    _resume_or_clear(job, draft)
    finished = draft.main if job.sharded or job.config.part else draft.data
    finished.mkdir(exist_ok=True)
    if job.config.merge:
        records, resumed = join_parts(job, draft, finished), 0
    else:
        records, resumed = write_pieces(job, draft, finished)
    if isinstance(job.source.store, NamedStore):
        job.source.store.check_unchanged()
    write_s = time.perf_counter() - started
    verified = _verify(job, records, finished, draft.since)
    skipped = job.skipped + tuple(fault for record in records for fault in record.skipped)
    _add_reports(job, draft, records, skipped)
    sizes = _sizes(draft.data)
    draft.publish()
    if job.config.merge:
        shutil.rmtree(part_folder(job.out, (1, 1)).parent, ignore_errors=True)
    facts = {"write_s": write_s, "verified": verified, "resumed": resumed, "skipped": skipped}
    return _report(job, records, sizes, started, **facts)


def _reused(job: Job, started: float) -> PackReport:
    """Return the report on a part that an earlier run finished."""
    records = finished_part(job)
    skipped = tuple(fault for record in records for fault in record.skipped)
    facts = {"write_s": 0.0, "verified": 0, "resumed": 0, "skipped": skipped, "reused": True}
    return _report(job, records, _sizes(job.target), started, **facts)


def _report(
    job: Job, records: Sequence[DataFileRecord], sizes: Sequence[int], started: float, **facts: Any
) -> PackReport:
    """Return the report on what was published. `facts` say what this run did."""
    payload_bytes = sum(record.payload_bytes for record in records)
    source_bytes = sum(int(record.inside(job.planned[record.span]).sum()) for record in records)
    return PackReport(
        path=job.target,
        format=job.format,
        samples=sum(record.samples for record in records),
        payload_bytes=payload_bytes,
        file_bytes=sum(sizes),
        files=len(sizes),
        seconds=time.perf_counter() - started,
        in_flight=job.in_flight,
        resize=job.rescaled(source_bytes, payload_bytes),
        exif_rotated=sum(record.exif_rotated for record in records),
        undecoded=sum(_undecoded(job, record) for record in records),
        **facts,
    )


def _undecoded(job: Job, record: DataFileRecord) -> int:
    if job.config.check != "decode":
        return 0
    rows = record.inside(job.order[record.span])
    return not_decodable(job.source.manifest.paths.take(from_numpy(rows)))


def _sizes(folder: Path) -> list[int]:
    return [path.stat().st_size for path in folder.rglob("*") if path.is_file()]


def _resume_or_clear(job: Job, draft: Draft) -> None:
    """Keep what an earlier run of the same job finished, and clear anything else."""
    digest_file = draft.records / "job.digest"
    same = digest_file.exists() and digest_file.read_text(encoding="ascii") == job.digest
    draft.clear(keep_finished=same and not job.config.merge)
    digest_file.write_text(job.digest, encoding="ascii")


def _verify(job: Job, records: Sequence[DataFileRecord], finished: Path, since: float) -> int:
    if job.config.verify == "none" or not records:
        return 0
    give_back_memory()  # what writing needed; else the peak is that of both
    wanted = chosen(sum(record.samples for record in records), full=job.config.verify == "full")
    # Shard by shard: a small node has no room for a million keys a second time.
    outputs = [(finished / each.name, [each]) for each in records]
    start = 0
    with progress(len(wanted), f"verify {job.out.name}", since=since) as bar:
        for path, some in outputs if job.sharded else [(finished / job.out.name, records)]:
            expected = expected_of(job, some)
            stop = start + len(expected.rows)
            own = wanted[bisect_left(wanted, start) : bisect_left(wanted, stop)]
            compare(path, job.format, expected, [index - start for index in own], bar)
            start = stop
    return len(wanted)


def _add_reports(
    job: Job,
    draft: Draft,
    records: Sequence[DataFileRecord],
    skipped: Sequence[Skipped],
) -> None:
    if skipped:
        kept = sum(record.samples for record in records)
        if not kept:
            raise unpackable(skipped, len(skipped), job.source.store.describe())
        report = {"packed": kept, "skipped": [asdict(fault) for fault in skipped]}
        write_json(draft.data / f"{draft.out.name}{FAULTS_SUFFIX}", report)
    scaled = job.schema.resize  # by this run, or when the source was packed
    if scaled is not None and job.format == "files" and job.config.part is None:
        # Plain files have no place for a record of how they were made.
        write_json(draft.data / f"{draft.out.name}{RESIZED_SUFFIX}", dict(scaled))
    if job.config.part is not None:
        save_part(job, draft, records)


def _abandon(job: Job, draft: Draft, error: BaseException) -> None:
    """Keep finished shards after an outside failure, so that a later run can resume.

    Otherwise, remove all.
    """
    if not (job.sharded and isinstance(error, ResourceError | OSError | KeyboardInterrupt | SystemExit)):
        draft.discard()


PART_FILE = "part.json"
RECORDS = "records"


def save_part(job: Job, draft: Draft, records: Sequence[DataFileRecord]) -> None:
    """Write what the merge needs to know about a part's files, beside these files."""
    folder = draft.main / RECORDS
    folder.mkdir(exist_ok=True)
    for record in records:
        record.save(folder)
    facts = {"job": job.digest, "files": [record.name for record in records]}
    write_json(draft.main / PART_FILE, facts)


def finished_part(job: Job) -> list[DataFileRecord]:
    """Return the records of a part that already exists.

    Raises:
        PackError: The part was packed from another manifest or with other options.
    """
    return [_record(job.target, name) for name in _names(job, job.target)]


def join_parts(job: Job, draft: Draft, finished: Path) -> list[DataFileRecord]:
    """Write the whole output from its parts.

    Shards are linked to their place. A single file is written again from the parts' samples in order, so that
    it has the same bytes as after a run without parts.

    Args:
        job: The whole run (not one of a part).
        draft: The private folder of the run.
        finished: The folder for finished files inside the private folder.

    Returns:
        The records of all data files.

    Raises:
        PackError: Parts are missing, or belong to another run.
        DamagedFileError: A part's bytes changed after it was written.
    """
    folders = _all_parts(job)
    files = [(folder, name) for folder in folders for name in _names(job, folder)]
    unchecked = [name for folder, name in files if not _check(job, folder, name)]
    if unchecked:
        warnings.warn(
            f"{plural(len(unchecked), 'file')} of parts packed with --no-digest and --verify none "
            "joined as they are: nothing says what their bytes were",
            stacklevel=2,
        )
    records = [_record(folder, name) for folder, name in files]
    if job.sharded:
        for folder, name in files:
            _link_shard(folder, name, finished)
        return records
    path = draft.partial / job.out.name
    samples = _samples(job, folders, expected_of(job, records).rows.tolist())
    packed = write_format(job, samples, path, job.schema)
    draft.finish([*sidecar_hashes(path), path.name], finished)
    whole = DataFileRecord(
        name=path.name,
        start=0,
        payload_bytes=packed.payload_bytes,
        skipped=tuple(fault for record in records for fault in record.skipped),
        checksums=np.concatenate([record.checksums for record in records]),
        kept=np.concatenate([record.kept for record in records]),
        exif_rotated=sum(record.exif_rotated for record in records),
    )
    return [whole]


def _all_parts(job: Job) -> list[Path]:
    """Return the folders of all parts, in order."""
    home = part_folder(job.out, (1, 1)).parent
    listed = sorted(home.iterdir()) if home.is_dir() else []
    names = [re.fullmatch(r"part-(\d+)-of-(\d+)", path.name) for path in listed]
    counts = {int(name[2]) for name in names if name}
    if len(counts) != 1:
        found = f"parts of {sorted(counts)}" if counts else "no parts"
        raise PackError(
            f"{home} holds {found}",
            expected="the parts of one run",
            next_step="Pack them with --part 1/n … n/n (remove those of other runs), then merge",
        )
    n = counts.pop()
    missing = [k for k in range(1, n + 1) if not part_folder(job.out, (k, n)).is_dir()]
    if missing:
        raise PackError(
            f"{home} lacks {len(missing)} of {n} parts: {', '.join(map(str, missing[:10]))}",
            expected="all of them",
            next_step=f"Pack the missing ones (--part {missing[0]}/{n}), then merge",
        )
    return [part_folder(job.out, (k, n)) for k in range(1, n + 1)]


def _names(job: Job, folder: Path) -> list[str]:
    """Return the names of a part's data files, after checking that the part belongs to this run."""
    try:
        facts: dict[str, Any] = json.loads((folder / PART_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _foreign(folder) from error
    if facts.get("job") != job.digest:
        raise _foreign(folder)
    return list(facts["files"])


def _foreign(folder: Path) -> PackError:
    return PackError(
        f"{folder} was packed from another manifest or with other options",
        expected="parts of this very run",
        next_step="Give the same manifest and options, or remove this part and pack it again",
    )


def _check(job: Job, folder: Path, name: str) -> bool:
    """Check a file of a part against what was packed. Refuse a file that differs.

    Return False if there is nothing to compare the file with.
    """
    path, record = folder / name, _record(folder, name)
    where = None
    if sidecar(path).exists():
        damaged = ContentDigest.load(sidecar(path)).damaged_blocks(path)
        where = f"block {damaged[0]}" if damaged else None
    elif not record.checksums.any():
        return not record.samples
    else:
        try:
            compare(path, job.format, expected_of(job, [record]), range(record.samples))
        except PackError as error:
            where = error.got
    if where is not None:
        raise DamagedFileError(
            f"{path} changed after it was written ({where})",
            expected="the bytes that were packed",
            next_step="Remove this part and pack it again",
        )
    return True


def _record(folder: Path, name: str) -> DataFileRecord:
    record = DataFileRecord.load(folder / RECORDS, name)
    if record is None:
        raise _foreign(folder)
    return record


def _link_shard(folder: Path, name: str, finished: Path) -> None:
    for path in sorted(folder.glob(f"{name}*")):
        try:
            os.link(path, finished / path.name)
        except OSError:  # no hard links here
            shutil.copyfile(path, finished / path.name)


def _samples(job: Job, folders: Sequence[Path], rows: Sequence[int]) -> Iterator[Sample]:
    """Yield all samples of all parts. `rows` are their rows in the manifest."""
    numbers = iter(rows)
    for folder in folders:
        reader = formats.open(folder / job.out.name, job.format)
        yield from (sample._replace(row=row) for sample, row in zip(reader, numbers, strict=False))
        reader.close()
