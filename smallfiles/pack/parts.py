"""Parts of a job array, and their merge to the very bytes of a single run.

Eight tasks of an array on eight nodes open files at eight metadata clients at once. All tasks cut
the same manifest at the same borders, so they need not talk to each other; the merge checks that
they did.

A part lives in `NAME.parts/part-00002-of-00008/`, complete or not there at all.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from smallfiles import formats
from smallfiles.atomic import Draft, write_json
from smallfiles.digests import ContentDigest, sidecar
from smallfiles.errors import DamagedFileError, PackError
from smallfiles.pack.compare import compare
from smallfiles.pack.job import Job, part_folder
from smallfiles.pack.writing import Written, exact, expected_of, hashes_beside, write_format
from smallfiles.progress import plural
from smallfiles.samples import Sample

PART_FILE = "part.json"
RECORDS = "records"


def save_part(job: Job, draft: Draft, records: Sequence[Written]) -> None:
    """Put beside a part's files what the merge needs to know of them."""
    assert job.config.part is not None
    folder = draft.main / RECORDS
    folder.mkdir(exist_ok=True)
    for record in records:
        record.save(folder)
    facts = {"job": job.digest(), "part": list(job.config.part), "files": [record.name for record in records]}
    write_json(draft.main / PART_FILE, facts)


def finished_part(job: Job) -> list[Written]:
    """The records of a part that is there already.

    Raises:
        PackError: It was packed from another manifest or with other options.
    """
    assert job.config.part is not None
    folder = part_folder(job.out, job.config.part)
    return [_record(folder, name) for name in _facts(job, folder, job.config.part)["files"]]


def join_parts(job: Job, draft: Draft, finished: Path) -> list[Written]:
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
    parts = _all_parts(job)
    unchecked = [name for folder, facts in parts for name in facts["files"] if not _check(job, folder, name)]
    if unchecked:
        warnings.warn(
            f"{plural(len(unchecked), 'file')} of parts packed with --no-digest and --verify none "
            "joined as they are: nothing says what their bytes were",
            stacklevel=2,
        )
    if job.sharded:
        return [record for folder, facts in parts for record in _link_shards(folder, facts, finished)]
    records = [_record(folder, job.out.name) for folder, _ in parts]
    schema = None
    if job.scaling is not None:
        sizes = [(record.payload_bytes, record.largest_bytes) for record in records]
        schema = exact(job, sum(total for total, _ in sizes), max(largest for _, largest in sizes))
    samples = _samples(job, [folder for folder, _ in parts])
    packed = write_format(job, samples, draft.partial / job.out.name, schema)
    draft.finish([*hashes_beside(draft.partial / job.out.name), job.out.name], finished)
    whole = Written(
        name=job.out.name,
        start=0,
        stop=len(job.order),
        payload_bytes=packed.payload_bytes,
        skipped=tuple(fault for record in records for fault in record.skipped),
        checksums=np.concatenate([record.checksums for record in records]),
        kept=np.concatenate([record.kept for record in records]),
        exif_rotated=sum(record.exif_rotated for record in records),
    )
    return [whole]


def _all_parts(job: Job) -> list[tuple[Path, dict[str, Any]]]:
    home = part_folder(job.out, (1, 1)).parent
    names = [re.fullmatch(r"part-(\d+)-of-(\d+)", path.name) for path in _listed(home)]
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
    folders = [part_folder(job.out, (k, n)) for k in range(1, n + 1)]
    return [(folder, _facts(job, folder, (k, n))) for k, folder in enumerate(folders, 1)]


def _facts(job: Job, folder: Path, part: tuple[int, int]) -> dict[str, Any]:
    try:
        facts: dict[str, Any] = json.loads((folder / PART_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _foreign(folder) from error
    same = replace(job, config=replace(job.config, part=part, merge=False))
    if facts.get("job") != same.digest():
        raise _foreign(folder)
    return facts


def _foreign(folder: Path) -> PackError:
    return PackError(
        f"{folder} was packed from another manifest or with other options",
        expected="parts of this very run",
        next_step="Give the same manifest and options, or remove this part and pack it again",
    )


def _listed(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _check(job: Job, folder: Path, name: str) -> bool:
    """Whether a file of a part could be compared with what was packed; one that differs is refused."""
    path, record = folder / name, _record(folder, name)
    where = None
    if sidecar(path).exists():
        damaged = ContentDigest.load(sidecar(path)).damaged_blocks(path)
        where = f"block {damaged[0]}" if damaged else None
    elif not record.checksums.any():
        return False
    else:
        expected = expected_of(job, [record])
        try:
            compare(path, job.format, expected, range(len(expected.rows)))
        except PackError as error:
            where = error.got
    if where is not None:
        raise DamagedFileError(
            f"{path} changed after it was written ({where})",
            expected="the bytes that were packed",
            next_step="Remove this part and pack it again",
        )
    return True


def _record(folder: Path, name: str) -> Written:
    record = Written.load(folder / RECORDS, name)
    if record is None:
        raise _foreign(folder)
    return record


def _link_shards(folder: Path, facts: dict[str, Any], finished: Path) -> Iterator[Written]:
    for name in facts["files"]:
        yield _record(folder, name)
        for path in sorted(folder.glob(f"{name}*")):
            try:
                os.link(path, finished / path.name)
            except OSError:  # no hard links here
                shutil.copyfile(path, finished / path.name)


def _samples(job: Job, folders: Sequence[Path]) -> Iterator[Sample]:
    for folder in folders:
        reader = formats.open(folder / job.out.name, job.format)
        yield from reader
        reader.close()
