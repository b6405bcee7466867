"""Pack a data set: read at once, write in order, verify, publish.

The trap: a pack that stops half way must not look finished, and a finished one must not be trusted
before it was read back. So the order is always: write aside, verify, publish. Notebook 03.
"""

from __future__ import annotations

import shutil
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from smallfiles.arrays import from_numpy, give_back_memory
from smallfiles.atomic import Draft, drafted, refuse_existing, sweep, write_json
from smallfiles.errors import ResourceError
from smallfiles.formats.output import writing
from smallfiles.pack.compare import chosen, compare
from smallfiles.pack.config import PackConfig, PackPlan, PackReport, Skipped
from smallfiles.pack.examine import not_decodable
from smallfiles.pack.job import Job, check_room, part_folder, prepare, unpackable
from smallfiles.pack.parts import finished_part, join_parts, save_part
from smallfiles.pack.resizing import Rescaled
from smallfiles.pack.writing import Written, expected_of, write_pieces
from smallfiles.progress import note, progress
from smallfiles.sources import Source

FAULTS_SUFFIX = ".faults.json"
RESIZED_SUFFIX = ".resized.json"


def plan(source: Source, out: Path, config: PackConfig | None = None) -> PackPlan:
    """Say what packing would write, without writing: files, bytes, inodes saved.

    Args:
        source: What `smallfiles.sources.load` returned.
        out: Where the output would go.
        config: As for `pack`.

    Returns:
        The plan; its numbers follow from the manifest alone.

    Raises:
        OutputExistsError: `out` is there already, so that `pack` would refuse.
    """
    config = config or PackConfig()
    refuse_existing(_target(Path(out), config))
    return prepare(source, Path(out), config).plan()


def pack(source: Source, out: Path, config: PackConfig | None = None) -> PackReport:
    """Pack a source into one file or a folder of shards, and say first what was odd in the source.

    A million opens are paid once, here, many at a time; each later epoch reads a few large files
    from end to end, which is what a parallel file system is built for.

    Args:
        source: What `smallfiles.sources.load` returned; its notes are said.
        out: Final name; its suffix chooses the format unless `config.format` does.
        config: How; defaults verify a sample and stop at the first source that cannot be packed.

    Returns:
        What was published.

    Raises:
        OutputExistsError: `out` is there already.
        PackError: Sources cannot be packed, verification failed, or another run is at it.
        ResourceError: No space, no inodes, no permission.
    """
    config = config or PackConfig()
    for odd in source.notes:
        note(f"{source.store.describe()}: {odd}")
    out = Path(out)
    started = time.perf_counter()
    target = _target(out, config)
    refuse_finished(out, config)
    job = prepare(source, out, config)
    if config.part is not None and target.exists():
        return _reused(job, target, started)
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        check_room(job)
    with drafted(target, "packing") as draft, writing(target):
        try:
            return _run(job, draft, started)
        except BaseException as error:
            _abandon(job, draft, error)
            raise


def refuse_finished(out: Path, config: PackConfig) -> None:
    """Refuse an output that is there, before its source is walked for minutes.

    Args:
        out: As for `pack`.
        config: As for `pack`. A part that is there is none to refuse: it may be the very same.

    Raises:
        OutputExistsError: It is there already.
    """
    sweep(_target(Path(out), config))
    refuse_existing(Path(out))


def _target(out: Path, config: PackConfig) -> Path:
    return out if config.part is None else part_folder(out, config.part)


def _run(job: Job, draft: Draft, started: float) -> PackReport:
    _resume_or_clear(job, draft)
    finished = draft.main if job.sharded or job.config.part else draft.data
    finished.mkdir(exist_ok=True)
    if job.config.merge:
        records, resumed = join_parts(job, draft, finished), 0
    else:
        pieces = job.pieces_of_part()
        count = sum(piece.stop - piece.start for piece in pieces)
        with progress(count, f"pack {draft.out.name}") as bar:
            records, resumed = write_pieces(job, pieces, draft, finished, bar)
    write_s = time.perf_counter() - started
    verified = _verify(job, records, finished, draft.since)
    skipped = job.skipped + tuple(fault for record in records for fault in record.skipped)
    _add_reports(job, draft, records, skipped)
    sizes = _sizes(draft.data)
    draft.publish()
    if job.config.merge:
        _remove_parts(job)
    return _report(
        job,
        draft.out,
        records,
        sizes,
        seconds=time.perf_counter() - started,
        write_s=write_s,
        verified=verified,
        resumed=resumed,
        skipped=skipped,
    )


def _reused(job: Job, part: Path, started: float) -> PackReport:
    """Of a part that an earlier run finished."""
    records = finished_part(job)
    return _report(
        job,
        part,
        records,
        _sizes(part),
        seconds=time.perf_counter() - started,
        write_s=0.0,
        verified=0,
        resumed=0,
        skipped=tuple(fault for record in records for fault in record.skipped),
        reused=True,
    )


def _report(
    job: Job, out: Path, records: Sequence[Written], sizes: Sequence[int], **facts: Any
) -> PackReport:
    """What lies in `out`; `facts` are what this run did to it."""
    return PackReport(
        path=out,
        format=job.format,
        samples=sum(int(record.kept.sum()) for record in records),
        payload_bytes=sum(record.payload_bytes for record in records),
        file_bytes=sum(sizes),
        files=len(sizes),
        in_flight=job.in_flight,
        resize=_resize(job, records),
        exif_rotated=sum(record.exif_rotated for record in records),
        undecoded=sum(_undecoded(job, record) for record in records),
        **facts,
    )


def _undecoded(job: Job, record: Written) -> int:
    if job.config.check != "decode":
        return 0
    rows = job.order[record.start : record.stop][record.kept]
    return not_decodable(job.source.manifest.paths.take(from_numpy(rows)))


def _sizes(folder: Path) -> list[int]:
    return [path.stat().st_size for path in folder.rglob("*") if path.is_file()]


def _resize(job: Job, records: Sequence[Written]) -> Rescaled | None:
    before = sum(int(job.sizes[record.start : record.stop][record.kept].sum()) for record in records)
    return job.rescaled(before, sum(record.payload_bytes for record in records))


def _resume_or_clear(job: Job, draft: Draft) -> None:
    """Keep what an earlier run of the very same job finished; clear anything else."""
    digest_file = draft.records / "job.digest"
    digest = job.digest()
    same = digest_file.exists() and digest_file.read_text(encoding="ascii") == digest
    draft.clear(keep_finished=same and not job.config.merge)
    digest_file.write_text(digest, encoding="ascii")


def _verify(job: Job, records: Sequence[Written], finished: Path, since: float) -> int:
    if job.config.verify == "none" or not records:
        return 0
    give_back_memory()  # what writing needed; else the peak is that of both
    wanted = chosen(sum(int(record.kept.sum()) for record in records), full=job.config.verify == "full")
    # Shard by shard: a million keys once more, beside those of the source, are what a small node lacks.
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
    records: Sequence[Written],
    skipped: Sequence[Skipped],
) -> None:
    if skipped:
        kept = sum(int(record.kept.sum()) for record in records)
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


def _remove_parts(job: Job) -> None:
    shutil.rmtree(part_folder(job.out, (1, 1)).parent, ignore_errors=True)


def _abandon(job: Job, draft: Draft, error: BaseException) -> None:
    """Keep finished shards for a run that comes again after an outside failure; drop the rest."""
    if not (job.sharded and isinstance(error, ResourceError | OSError | KeyboardInterrupt | SystemExit)):
        draft.discard()
