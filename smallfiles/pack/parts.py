"""Parts of a job array, and their merge to the very bytes of a single run.

Eight tasks of an array on eight nodes open files at eight metadata clients at once. All tasks cut
the same manifest at the same borders, so they need not talk to each other; the merge checks that
they did.

A part lives in `NAME.parts/part-00002-of-00008/`, complete or not there at all.

The trap: parts of other options may fit together without belonging together. Notebook 03.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from smallfiles import formats
from smallfiles.atomic import Draft, write_json
from smallfiles.digests import ContentDigest, sidecar
from smallfiles.errors import DamagedFileError, PackError
from smallfiles.pack.compare import compare
from smallfiles.pack.job import Job, part_folder
from smallfiles.pack.writing import DataFileRecord, expected_of, sidecar_hashes, write_format
from smallfiles.progress import plural
from smallfiles.samples import Sample

PART_FILE = "part.json"
RECORDS = "records"


def save_part(job: Job, draft: Draft, records: Sequence[DataFileRecord]) -> None:
    """Put next to a part's files what the merge needs to know of them."""
    folder = draft.main / RECORDS
    folder.mkdir(exist_ok=True)
    for record in records:
        record.save(folder)
    facts = {"job": job.digest, "files": [record.name for record in records]}
    write_json(draft.main / PART_FILE, facts)


def finished_part(job: Job) -> list[DataFileRecord]:
    """The records of a part that is there already.

    Raises:
        PackError: It was packed from another manifest or with other options.
    """
    return [_record(job.target, name) for name in _names(job, job.target)]


def join_parts(job: Job, draft: Draft, finished: Path) -> list[DataFileRecord]:
    """Write the whole output from its parts.

    Shards are linked to their place; a single file is written anew from the parts' samples, in
    order, so that it has the bytes of a run without parts.

    Args:
        job: The whole run (no part).
        draft: Its private folder.
        finished: Folder inside it for finished files.

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
    """The folders of all parts, in order."""
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
    """Names of a part's data files, once it is known to belong to this run."""
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
    """Whether a file of a part could be compared with what was packed; one that differs is refused."""
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
    """All samples of all parts; `rows` are theirs in the manifest."""
    numbers = iter(rows)
    for folder in folders:
        reader = formats.open(folder / job.out.name, job.format)
        yield from (sample._replace(row=row) for sample, row in zip(reader, numbers, strict=False))
        reader.close()
