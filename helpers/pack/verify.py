"""Are the bytes still those that were written, and are they the source's?

Squashfs and tar have no checksum of their data, and a transfer can be cut: the content digest finds
every changed byte, and `against` compares each sample with its source. Notebook 05 damages a shard.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from helpers import digests, formats
from helpers.digests import ContentDigest
from helpers.errors import FormatError, HelpersError, first_few
from helpers.pack.scaling import described
from helpers.progress import plural, progress
from helpers.samples import Reader
from helpers.sources import Source


@dataclass(frozen=True)
class VerifyReport:
    """What `verify` found.

    Args:
        path: What was verified.
        samples: Samples inside.
        bytes: Their encoded bytes that were read.
        blocks: Blocks whose digest was checked.
        against: Samples that were compared with the source.
        problems: One sentence each; empty means intact.
        notes: What could not be checked, and what is odd.
        seconds: How long it took.
    """

    path: Path
    samples: int
    bytes: int
    blocks: int
    against: int
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    seconds: float

    @property
    def intact(self) -> bool:
        """Whether nothing was found wrong."""
        return not self.problems


@dataclass
class _Findings:
    samples: int = 0
    bytes: int = 0
    blocks: int = 0
    against: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def verify(path: Path, against: Source | None = None, *, format: str | None = None) -> VerifyReport:
    """Check a packed file to the last byte, and against its source if that is given.

    After a copy over the network, or years on a tape, this tells a damaged file from a whole one
    and names the samples that are hurt.

    Args:
        path: Packed file or folder of shards.
        against: Source to compare each sample with.
        format: Overrides what the suffix says.

    Returns:
        The report; problems are in it, not raised.

    Raises:
        FormatError: `path` cannot be opened as a packed file at all and has no digest either.
    """
    started = time.perf_counter()
    path = Path(path)
    found = _Findings()
    reader = formats.open(path, format)
    damage = list(_damaged(path, found))
    try:
        found.samples = len(reader)
        found.problems += [_named(reader, file, block, size) for file, block, size in damage]
        _check_samples(reader, found)
        if against is not None:
            _check_against(reader, against, found)
    except FormatError as error:
        found.problems += [f"{file.name}: block {block} is damaged" for file, block, _ in damage]
        found.problems.append(str(error))
    finally:
        reader.close()
    seconds = time.perf_counter() - started
    return VerifyReport(
        path,
        found.samples,
        found.bytes,
        found.blocks,
        found.against,
        tuple(dict.fromkeys(found.problems)),
        tuple(found.notes),
        seconds,
    )


def _damaged(path: Path, found: _Findings) -> Iterator[tuple[Path, int, int]]:
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    sidecars = [file for file in files if file.name.endswith(digests.SIDECAR_SUFFIX)]
    if not path.is_dir():
        sidecars = list(path.parent.glob(path.name + "*" + digests.SIDECAR_SUFFIX))
    if not sidecars:
        found.notes.append("no content digest beside it, so flipped bytes cannot be found without --against")
    for sidecar in sorted(sidecars):
        file = sidecar.with_name(sidecar.name.removesuffix(digests.SIDECAR_SUFFIX))
        try:
            digest = ContentDigest.load(sidecar)
            found.blocks += len(digest.blocks)
            for block in digest.damaged_blocks(file):
                yield file, block, digest.block_bytes
        except HelpersError as error:
            found.problems.append(str(error))
        except FileNotFoundError:
            found.problems.append(f"{file.name} is missing, though its digest is there")


def _named(reader: Reader, file: Path, block: int, block_bytes: int) -> str:
    """Say which samples a damaged block hurts, where the format can tell."""
    start, stop = block * block_bytes, (block + 1) * block_bytes
    hurt = []
    for index in range(len(reader)):
        span = reader.span(index)
        if span is not None and span[0] == file and span[1] < stop and span[2] > start:
            hurt.append(reader.key(index))
    names = f": {first_few(hurt, len(hurt))}" if hurt else ""
    place = f"{file.name}: block {block} (bytes {start:,} to {stop:,})"
    return f"{place} is damaged, {len(hurt)} samples in it{names}"


def _check_samples(reader: Reader, found: _Findings) -> None:
    targets: list[Any] = []
    with progress(len(reader), f"verify {reader.path.name}") as bar:
        for index in range(len(reader)):
            data = reader.read(index)
            targets.append(reader.target(index))
            stated = reader.sha256(index)
            if stated is not None and hashlib.sha256(data).hexdigest() != stated:
                found.problems.append(f"{reader.key(index)} has other bytes than were packed")
            found.bytes += len(data)
            bar.advance(1, bytes=len(data))
    kind = pa.int64() if reader.target_kind == "label" else pa.list_(pa.string())
    actual = digests.set_digest(reader.keys(), pa.array(targets, kind))
    provenance = reader.info().get("provenance") or {}
    schema = provenance.get("schema", {})
    planned, digest = schema.get("count", len(reader)), schema.get("manifest_digest")
    if planned != len(reader):
        _explain_missing(reader.path, planned - len(reader), found)
    elif digest and digest != actual:
        found.problems.append(f"{reader.path.name}: keys and targets are not those that were packed")
    elif not digest:
        found.notes.append("no provenance inside, so keys and targets were read but not compared")


def _explain_missing(path: Path, missing: int, found: _Findings) -> None:
    sentence = f"{plural(missing, 'sample')} fewer than the manifest had"
    if len(_skipped(path)) >= missing > 0:
        found.notes.append(f"{sentence}: left out while packing, listed in {_faults_of(path).name}")
    else:
        found.problems.append(f"{path.name}: {sentence}, and no report explains them")


def _faults_of(path: Path) -> Path:
    return path.with_name(path.name + ".faults.json")


def _skipped(path: Path) -> set[str]:
    """Keys that `pack --on-error skip` left out, as its report beside the file says."""
    try:
        return {fault["key"] for fault in json.loads(_faults_of(path).read_text(encoding="utf-8"))["skipped"]}
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def _resized(reader: Reader) -> dict[str, Any] | None:
    """How pictures were scaled before packing; None if they were not."""
    record = (reader.info().get("provenance") or {}).get("resize")
    if isinstance(record, dict):
        return record
    beside = reader.path.with_name(reader.path.name + ".resized.json")
    try:
        record = json.loads(beside.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def _check_against(reader: Reader, source: Source, found: _Findings) -> None:
    scaled = _resized(reader)
    if scaled is not None:
        found.notes.append(
            f"pictures were scaled to {described(scaled)} while packing, so their bytes are not the "
            "source's: keys and labels were compared with it, not bytes"
        )
    manifest = source.manifest
    places = {key: row for row, key in enumerate(manifest.paths.to_pylist())}
    for index in range(len(reader)):
        key = reader.key(index)
        row = places.pop(key, None)
        if row is None:
            found.problems.append(f"{key} is not in the source")
            continue
        found.against += 1
        if reader.target(index) != manifest.target(row):
            found.problems.append(f"{key} has another label or caption in the source")
        if scaled is not None:
            continue
        data = reader.read(index)
        room = memoryview(bytearray(len(data) + 1))
        try:
            size = source.store.read_into(key, room)
        except HelpersError as error:
            found.problems.append(str(error))
            continue
        if size != len(data) or room[:size] != memoryview(data).cast("B"):
            found.problems.append(f"{key} has other bytes in the source")
    _tell_missing(reader.path, places, found)


def _tell_missing(path: Path, keys: Iterable[str], found: _Findings) -> None:
    """What the source has beyond the file: left out on purpose, or missing."""
    skipped = _skipped(path)
    left_out, missing = [key for key in keys if key in skipped], [key for key in keys if key not in skipped]
    if left_out:
        found.notes.append(
            f"{plural(len(left_out), 'sample')} of the source left out while packing, as "
            f"{_faults_of(path).name} says: {first_few(left_out, len(left_out))}"
        )
    if missing:
        found.problems.append(
            f"{plural(len(missing), 'sample')} of the source missing: {first_few(missing, len(missing))}"
        )
