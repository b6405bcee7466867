"""Are the bytes still those that were written, and are they the source's?

Squashfs and tar have no checksum of their data, and a transfer can be cut: the content digest finds
every changed byte, and `against` compares each sample with its source. Notebook 05 damages a shard.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa

from smallfiles import digests, formats
from smallfiles.arrays import from_numpy
from smallfiles.digests import ContentDigest, sidecar
from smallfiles.errors import FormatError, ResourceError, SmallfilesError, first_few, no_samples, summary_of
from smallfiles.fields import META, TARGETS, further_fields, further_files
from smallfiles.formats.files import MANIFEST, manifest_of
from smallfiles.formats.reader import read_added
from smallfiles.manifest import Manifest
from smallfiles.pack import described
from smallfiles.pack.scaling import as_pixels
from smallfiles.pack.writing import differing
from smallfiles.progress import plural, progress
from smallfiles.samples import Buffer, Reader
from smallfiles.sources import Source
from smallfiles.sources.annotations.boxes import scale_boxes
from smallfiles.sources.packed import PIXELS, resize_of
from smallfiles.storage import answered

Verdict: TypeAlias = Literal["intact", "damaged", "differs", "unproven"]

_INDEX = ".index.arrow"
_NAMED = 10


@dataclass
class VerifyReport:
    """What `verify` found.

    Args:
        path: The file or folder that was verified.
        samples: Number of samples in it.
        bytes: Total size of the samples that were read, in bytes.
        blocks: Number of blocks whose digest was checked.
        against: Number of samples that were compared with the source.
        problems: Damage, with one sentence each: what is not as it was written.
        differences: What is different in the source, or could not be read from it, with one sentence each.
        notes: What could not be checked, and what is odd.
        seconds: How long it took.
        digests: Whether a digest covers every byte that is read.
        compared: Whether every sample's bytes were compared with the source.
    """

    path: Path
    samples: int = 0
    bytes: int = 0
    blocks: int = 0
    against: int = 0
    problems: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    digests: bool = True
    compared: bool = False

    @property
    def verdict(self) -> Verdict:
        """One word on the result: `damaged`, `differs`, `intact` or `unproven`.

        `differs` means that the source is different. `unproven` means that there was nothing to compare with.
        A file that can be read to its end may still hold flipped bytes, so that alone proves nothing.
        """
        if self.problems:
            return "damaged"
        if self.differences:
            return "differs"
        return "intact" if self.digests or self.compared else "unproven"

    @property
    def intact(self) -> bool:
        """Whether every byte was compared with something, and nothing wrong was found."""
        return self.verdict == "intact"


def verify(path: Path, against: Source | None = None, *, format: str | None = None) -> VerifyReport:
    """Check a packed file to the last byte, and compare it with its source if that is given.

    After a copy over the network, or years on a tape, this distinguishes a damaged file from a whole one, and
    names the samples that are damaged. Without a digest or a source, no file is called intact.

    Args:
        path: Packed file or folder of shards.
        against: Source to compare each sample with: key, target, JSON object and bytes.
        format: Overrides the format that the suffix names.

    Returns:
        The report. Problems are in it, and are not raised.

    Raises:
        FormatError: `path` cannot be opened as a packed file at all, or holds no samples.
        StorageError: The storage did not answer, which is not damage.
    """
    started = time.perf_counter()
    path = Path(path)
    found = VerifyReport(path)
    reader = formats.open(path, format, by_position=True)
    files = answered(path, digests.added_fields, path)
    parts = answered(path, _parts, path, formats.name_of(path, format))
    damage = list(_damaged([*parts, *files], found))
    try:
        found.samples = len(reader)
        found.problems += _named(reader, damage)
        _check_added(reader, files, found)
        _check_samples(reader, None if against is None else _Truth(reader, against, found), found)
    except FormatError as error:
        found.problems += [f"{file.name}: block {block} is damaged" for file, block, _ in damage]
        found.problems.append(str(error))
    finally:
        reader.close()
    if not (found.samples or found.problems):
        raise no_samples(path)
    found.compared &= all(
        answered(file, sidecar(file).exists) for file in files
    )  # no source has what was added
    found.problems, found.differences = (
        list(dict.fromkeys(sentences)) for sentences in (found.problems, found.differences)
    )
    found.seconds = time.perf_counter() - started
    return found


def _parts(path: Path, format: str) -> list[Path]:
    """Return every file that a reader of `path` trusts.

    For plain files, this is the manifest with their SHA-256.
    """
    if not path.is_dir():
        data = [path]
    elif format == "files":
        data = [path / MANIFEST]
    else:
        names = {
            entry.name.removesuffix(digests.SIDECAR_SUFFIX)
            for entry in path.iterdir()
            if entry.name[0] != "."
        }
        suffix = ".arrow" if format == "arrow" else ".tar"  # the first is a folder of Hugging Face
        data = [path / name for name in sorted(names) if name.endswith(suffix)]
    indexes = [file.with_name(file.name + _INDEX) for file in data]
    return data + [index for index in indexes if index.exists() or sidecar(index).exists()]


def _damaged(parts: Iterable[Path], found: VerifyReport) -> Iterator[tuple[Path, int, int]]:
    bare = []
    for file in parts:
        if not answered(file, sidecar(file).exists):
            bare.append(file.name)
            continue
        try:
            digest = ContentDigest.load(sidecar(file))
            found.blocks += len(digest.blocks)
            with progress(len(digest.blocks), f"check {file.name}", unit="blocks") as bar:
                damaged = digest.damaged_blocks(file, advance=bar.advance)
            for block in damaged:
                yield file, block, digest.block_bytes
        except FormatError as error:
            found.problems.append(str(error))
    if bare:
        found.digests = False
        found.notes.append(
            f"no content digest for {first_few(bare, len(bare))}, so flipped bytes there cannot be found "
            "without --against"
        )


def _named(reader: Reader, damage: Sequence[tuple[Path, int, int]]) -> Iterator[str]:
    """Yield a sentence on each damaged block. It names the samples in the block if the format can tell.

    This takes one pass over the samples.
    """
    hurt: dict[tuple[Path, int], list[str]] = {(file, block): [] for file, block, _ in damage}
    block_bytes = {file: size for file, _, size in damage}
    for index, name in product(range(len(reader)), _file_fields(reader) if hurt else ()):
        span = reader.span(index, name)
        if span is None or (size := block_bytes.get(span[0])) is None:
            continue
        for block in range(span[1] // size, -(-span[2] // size)):
            if (span[0], block) in hurt:
                hurt[span[0], block].append(reader.key(index))
    for (file, block), keys in hurt.items():
        start, stop = block * block_bytes[file], (block + 1) * block_bytes[file]
        inside = reader.path not in (file, file.parent) and file.is_relative_to(reader.path)
        shown = file.relative_to(reader.path) if inside else file.name
        keys = list(dict.fromkeys(keys))
        names = f": {first_few(keys, len(keys))}" if keys else ""
        place = f"{shown}: block {block} (bytes {start:,} to {stop:,})"
        yield f"{place} is damaged, {len(keys)} samples in it{names}"


def _check_added(reader: Reader, files: Sequence[Path], found: VerifyReport) -> None:
    """Check by all keys that the fields which were added later belong to these samples."""
    try:
        for file in files:
            read_added(file, reader, full=True)
        _ = reader.fields  # refuses a name that is there twice
    except FormatError as error:
        found.problems.append(str(error))


def _check_samples(reader: Reader, truth: _Truth | None, found: VerifyReport) -> None:
    """Read all samples in one pass, and compare them with what a manifest or the source says."""
    unstated = dict.fromkeys(_file_fields(reader), 0)
    with progress(len(reader), f"verify {reader.path.name}") as bar:
        for index in range(len(reader)):
            before = found.bytes
            for name in unstated:
                data = reader.read(index, name)
                found.bytes += len(data)
                stated = reader.sha256(index, name)
                unstated[name] += stated is None
                if stated is not None and hashlib.sha256(data).hexdigest() != stated:
                    what = f"the {name} of {reader.key(index)}" if name else reader.key(index)
                    found.problems.append(f"{what} has other bytes than were packed")
                elif truth is not None:
                    truth.compare(index, name, data)
            bar.advance(1, bytes=found.bytes - before)
    for name, count in unstated.items() if reader.info()["format"] == "files" else ():
        if count:
            found.digests = False
            found.notes.append(f"{plural(count, name or 'sample')} without a SHA-256 in {manifest_of(name)}")
    if truth is not None:
        truth.finish()
    _check_set(reader, found)


def _file_fields(reader: Reader) -> list[str]:
    """Return the names of the fields of files. The name of the default field is empty."""
    return ["", *further_files(reader.fields)]


def _check_set(reader: Reader, found: VerifyReport) -> None:
    with summary_of(reader.path):  # labels of others may be beyond 64 bits
        packed = reader.table().drop_columns([*reader.added()])
        actual = digests.set_digest(reader.keys(), packed)
    provenance = reader.info().get("provenance") or {}
    schema = provenance.get("schema", {})
    planned, digest = schema.get("count", len(reader)), schema.get("manifest_digest")
    if planned != len(reader):
        _explain_missing(reader.path, planned - len(reader), found)
    elif digest and digest != actual:
        found.problems.append(f"{reader.path.name}: keys and targets are not those that were packed")
    elif not digest:
        found.notes.append("no provenance inside, so keys and targets were read but not compared")


def _explain_missing(path: Path, missing: int, found: VerifyReport) -> None:
    sentence = f"{plural(missing, 'sample')} fewer than the manifest had"
    if len(_skipped(path)) >= missing > 0:
        found.notes.append(f"{sentence}: left out while packing, listed in {_faults_of(path).name}")
    else:
        found.problems.append(f"{path.name}: {sentence}, and no report explains them")


def _faults_of(path: Path) -> Path:
    return path.with_name(path.name + ".faults.json")


def _skipped(path: Path) -> set[str]:
    """Return the keys that `pack --on-error skip` left out, from the report beside the file."""
    try:
        text = answered(path, _faults_of(path).read_text, encoding="utf-8")
        return {fault["key"] for fault in json.loads(text)["skipped"]}
    except (OSError, ValueError, KeyError, TypeError):
        return set()


class _Truth:
    """The source that a packed file is compared with, sample by sample."""

    def __init__(self, reader: Reader, source: Source, found: VerifyReport) -> None:
        record = resize_of(reader)
        if record is not None and record != source.resize and (short_side := record.get("short_side")):
            scale = as_pixels if record.get("store") == PIXELS else scale_boxes
            source = scale(source, int(short_side))
        self._scaled = None if record == source.resize else record
        self._reader, self._source, self._found = reader, source, found
        self._rows = _rows_of(reader.keys(), source.manifest)
        self._hashes = _hashes(source.manifest)
        self._room = bytearray(0)
        self._unread = 0
        theirs, ours = source.manifest.fields, further_fields(reader.fields)
        ours = {name: kind for name, kind in ours.items() if name in theirs or name not in reader.added()}
        if theirs != ours:
            found.differences.append(
                f"the fields beside the first file and the target are {_listed(ours)}, and in the source "
                f"{_listed(theirs)}"
            )
        names = [name for name in source.manifest.blob_fields if not name or name in ours]
        self._paths = {name: source.manifest.blob_paths(name) for name in names}
        if self._scaled is not None:
            found.notes.append(
                f"images were {described(self._scaled)} while packing, so their bytes are not "
                "the source's: keys, targets and JSON objects were compared with it, not bytes"
            )

    def compare(self, index: int, field: str, data: Buffer) -> None:
        """Compare one file of a sample, and add any difference to the report."""
        row = int(self._rows[index])
        if row < 0 and not field:
            self._found.differences.append(f"{self._reader.key(index)} is not in the source")
        if row < 0 or field not in self._paths:
            return
        self._found.against += not field
        if self._scaled is not None:
            return
        path = self._paths[field][row].as_py()
        stated = None if self._hashes is None or field else self._hashes[row].as_py()
        if stated is not None and hashlib.sha256(data).hexdigest() != stated:
            self._found.differences.append(f"{path} has other bytes than the source's manifest says (sha256)")
        self._compare_bytes(path, data)

    def _compare_bytes(self, key: str, data: Buffer) -> None:
        """Compare the bytes of one file with the file `key` of the source."""
        if len(self._room) <= len(data):
            self._room = bytearray(2 * len(data) + 1)
        try:
            size = self._source.store.read_into(key, memoryview(self._room)[: len(data) + 1])
        except ResourceError:
            raise
        except SmallfilesError as error:
            self._unread += 1
            self._found.differences.append(f"not compared with the source: {error}")
            return
        if size != len(data) or self._room[:size] != data:
            self._found.differences.append(f"{key} has other bytes in the source")

    def finish(self) -> None:
        """Compare the values, and name the samples of the source that the packed file lacks.

        They were left out on purpose, or they are missing.
        """
        found, path = self._found, self._reader.path
        self._compare_values()
        found.compared = self._scaled is None and not self._unread
        kept = np.zeros(len(self._source.manifest), bool)
        kept[self._rows[self._rows >= 0]] = True
        keys = [self._source.manifest.path(row) for row in np.flatnonzero(~kept).tolist()]
        skipped = _skipped(path) if keys else set()
        left_out, missing = [k for k in keys if k in skipped], [k for k in keys if k not in skipped]
        if left_out:
            found.notes.append(
                f"{plural(len(left_out), 'sample')} of the source left out while packing, as "
                f"{_faults_of(path).name} says: {first_few(left_out, len(left_out))}"
            )
        if missing:
            found.differences.append(
                f"{plural(len(missing), 'sample')} of the source missing: {first_few(missing, len(missing))}"
            )

    def _compare_values(self) -> None:
        """Compare all values, column by column, and name the first rows that differ."""
        known = np.flatnonzero(self._rows >= 0)
        theirs = self._source.manifest.columns.take(from_numpy(self._rows[known]))
        ours = self._reader.table(None, known)
        every = {each.name: each.type for each in (*ours.schema, *theirs.schema)}
        both = {*ours.column_names} & {*theirs.column_names}
        for name in sorted({*both, *(every.keys() & {*TARGETS, META})}):
            pair = [_column(each, name, every[name]) for each in (ours, theirs)]
            for row in known[differing(pair[0], pair[1], name)[:_NAMED]].tolist():
                self._found.differences.append(f"{self._reader.key(row)} has another {name} in the source")


def _column(table: pa.Table, name: str, type_: pa.DataType) -> pa.ChunkedArray:
    """Return a column of a table, or nulls if the table has no column of this name."""
    return table[name] if name in table.column_names else pa.chunked_array([pa.nulls(len(table), type_)])


def _listed(fields: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({kind})" for name, kind in fields.items()) or "none"


def _rows_of(keys: pa.StringArray, manifest: Manifest) -> np.ndarray:
    """Return the row of each key in the manifest, or -1 for a key that the manifest lacks.

    Nothing is looked up if the keys are in the order of the manifest.
    """
    if keys.equals(manifest.paths):
        return np.arange(len(keys))
    rows = {key: row for row, key in enumerate(manifest.paths.to_pylist())}
    return np.fromiter((rows.get(key, -1) for key in keys.to_pylist()), np.int64, len(keys))


def _hashes(manifest: Manifest) -> pa.ChunkedArray | None:
    return manifest.table["sha256"] if "sha256" in manifest.table.column_names else None
