"""Tables that hold the files themselves, as the Parquet and Arrow files of Hugging Face do.

    data/train-00000-of-00002.parquet     a column of {bytes, path}, one of labels, others of values
    data/train-00001-of-00002.parquet     the split stands in the name, and class names in the schema

A key is the path beside the bytes, if all are there and no two are equal, or else the number of the row.

The trap: a Parquet file is read a group of rows at a time, some hundred pictures, and one picture costs as
much. So groups are kept up to a limit, and such a set is packed in its own order. docs/recipes.md has it.
"""

from __future__ import annotations

import json
import os
import re
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles import contents
from smallfiles.arrays import as_mask, column, from_numpy, joined, one_chunk, scalar, suffixes_of
from smallfiles.digests import name_hashes
from smallfiles.errors import SourceError, first_few
from smallfiles.folders import FILE_SUFFIXES, IMAGE_SUFFIXES, SourceOptions, canonical_split, is_hidden
from smallfiles.links import Boundary
from smallfiles.manifest import Manifest
from smallfiles.manifest.columns import SUSPICIOUS_PATH
from smallfiles.manifest.listing import Files
from smallfiles.progress import plural, progress
from smallfiles.samples import ByteStore
from smallfiles.sources import declarations, table_files, tables
from smallfiles.sources.packed import BLOB_MARK
from smallfiles.sources.record import NamedStore, Source, left_out, of_split, refuse_if_strict
from smallfiles.sources.roles import roles_inside, says_files
from smallfiles.sources.scanning import Notes
from smallfiles.storage import answered

_SUFFIXES = (".parquet", ".arrow")
_SHARD = re.compile(r"(?P<split>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})")
_SUFFIX_OF = {kind: f".{kind.lower()}" for kind in (*contents.PICTURES, "WAV", "FLAC", "Ogg")} | {
    "NumPy": ".npy"
}
_HEAD_BYTES = 12
_IN_ORDER = "a group of rows is decoded at once: to shuffle this set, pack it without, then pack the output"
_LOOKED_AT = 10_000  # names of a folder that may be one of a million images


@dataclass(frozen=True)
class Found:
    """The tables of one split of a set whose rows hold the files themselves.

    Args:
        root: The path that was given: a file, or a folder of files.
        files: The tables, in order.
        columns: The columns that hold files.
        split: The split of all rows.
        notes: Notes on the choice of the split.
    """

    root: Path
    files: tuple[Path, ...]
    columns: tuple[str, ...]
    split: str
    notes: Notes = ()


def find(path: Path, split: str | None, columns: Sequence[str] | None = None) -> Found | None:
    """Find the tables of the chosen split that hold files. Return None if there are no such tables.

    Args:
        path: A table, or a folder of tables.
        split: The wanted split.
        columns: `NAME=COLUMN` for each field that the user named. Columns of bytes count as files only if one
            of them is named here, or has a usual name such as `image`. For a manifest it is None, because the
            author of the manifest has already decided.

    Raises:
        SourceError: The split does not exist or is not clear, or one of its numbered files is missing.
    """
    files = _tables_in(path)
    inside = table_files.file_columns(files[0]) if files else ()
    if files and not inside:
        inside = table_files.file_columns(files[0], binary=True)
        if columns is not None and not says_files(inside, columns):
            return None
    if not inside:
        return None
    chosen, _, canonical, notes = of_split(files, lambda file: _split_of(file, path), split, path)
    _refuse_missing(chosen, path)
    return Found(path, tuple(chosen), inside, canonical, notes)


def open_store(found: Found, manifest: Manifest) -> ByteStore:
    """Open the store for a manifest of tables that hold files.

    The samples' first files are in the column that no additional field of the manifest uses.
    """
    others = {number_of(manifest.blob_paths(name)[0].as_py()) for name in manifest.blobs if len(manifest)}
    free = [name for number, name in enumerate(found.columns) if number not in others]
    return RowStore(found.root, found.files, found.columns, free[0])


def load(found: Found, options: SourceOptions) -> Source:
    """Read all rows once, and make a source with their keys, sizes, targets and values.

    Raises:
        SourceError: A file cannot be read, or the files in some rows have no known suffix.
        ManifestError: Labels or keys make no sense.
    """
    options.refuse_unsupported("a table with files inside", found.root)
    boundary = Boundary(found.root, follow_links=options.follow_links)
    for file in found.files:
        boundary.check(os.path.relpath(file, found.root))
    path = found.files[0]
    table, count, inside = _scan(found)
    roles = roles_inside(table, path, options, found.columns)
    suffixes = {name: files.suffixes(path, name) for name, files in inside.items()}
    there = suffixes[roles.image].is_valid()
    keys = path_keys(inside[roles.image].paths)
    if keys is None:
        keys = numbered_keys(count, suffixes[roles.image])
    empty = [f"number {row}" for row in np.flatnonzero(~as_mask(there)).tolist()]
    notes = left_out(empty, "row", f"without {roles.image}")
    refuse_if_strict(notes, options, found.root)
    if (pc.sum(inside[roles.image].sizes).as_py() or 0) > KEPT_BYTES and path.suffix.lower() == ".parquet":
        notes += (_IN_ORDER,)
    rows = tables.TableRows(
        path,
        table,
        roles,
        pc.if_else(there, keys, scalar(None)),
        {
            name: further_paths(keys, found.columns.index(spec), suffixes[spec])
            for name, spec in roles.blobs.items()
        },
        sizes=inside[roles.image].sizes,
        split=found.split,
        classes=_class_names(path, roles.target),
        name=found.root.absolute().name.partition(".")[0],
    )
    store = RowStore(found.root, found.files, found.columns, roles.image)
    used = [file.relative_to(found.root).as_posix() for file in _tables_in(found.root)]
    others = declarations.names_beside(found.root, used, options)
    files = Files(found.root, keys, others, store=store, labels_flag="")
    return tables.source_of_rows(rows, files, "table with files inside", options, (*found.notes, *notes))


@dataclass(frozen=True)
class _Inside:
    """The size, the first bytes and the path of each file in a column.

    They are null where a row has no file.
    """

    sizes: pa.Array
    heads: pa.Array
    paths: pa.Array

    def suffixes(self, path: Path, name: str) -> pa.Array:
        """Return the suffix of each file, by its path or else by its first bytes.

        It is null where there is no file.
        """
        own = suffixes_of(self.paths)
        known = pc.is_in(own, column(FILE_SUFFIXES, pa.string()))
        found = pc.if_else(pc.fill_null(pc.and_(known, self.heads.is_valid()), False), own, scalar(None))
        rows = np.flatnonzero(as_mask(pc.and_(found.is_null(), self.heads.is_valid())))
        if not len(rows):
            return found
        texts = found.to_pylist()
        for row, head in zip(rows.tolist(), self.heads.take(from_numpy(rows)).to_pylist(), strict=True):
            texts[row] = _suffix(head)
        bad = [row for row in rows.tolist() if texts[row] is None]
        if bad:
            raise SourceError(
                f"{plural(len(bad), 'row')} of the column {name} of {path} hold bytes of no known kind, "
                f"without a path: {first_few(bad)} (they begin with "
                f"{self.heads[bad[0]].as_py()!r})",
                expected="files whose path or first bytes say what they are",
                next_step="Write paths beside the bytes, as {bytes, path}, or write the table without it",
            )
        return column(texts, pa.string())


def _suffix(head: bytes) -> str | None:
    if head.startswith(b"ID3"):
        return ".mp3"
    return _SUFFIX_OF.get(contents.kind_of(head, tuple(_SUFFIX_OF)) or "")


def _scan(found: Found) -> tuple[pa.Table, int, dict[str, _Inside]]:
    """Read the columns without files, the number of rows, and what is known about the files in each column.

    Only a few of the files are in memory at a time.
    """
    looks: dict[str, list[tuple[pa.Array, ...]]] = {name: [] for name in found.columns}
    rest: list[pa.Table] = []
    with progress(len(found.files), f"read {found.root.name}", unit="files") as bar:
        for file in found.files:
            try:
                if (
                    table_files.file_columns(file) or table_files.file_columns(file, binary=True)
                ) != found.columns:
                    raise ValueError(f"its files are not in the columns {', '.join(found.columns)}")
                table_files.groups_of(file)  # refuses those that are too large
                for batch in table_files.batches_of(file):
                    for name in found.columns:
                        looks[name].append(_look(batch.column(name)))
                    rest.append(pa.Table.from_batches([batch]).drop_columns([*found.columns]))
            except (OSError, ValueError, pa.ArrowException) as error:
                raise table_files.unreadable(file, error) from error
            bar.advance()
    if not rest:
        raise SourceError(
            f"{found.root} has no rows", expected="one row per sample", next_step="Check the path"
        )
    inside = {
        name: _Inside(*(pa.concat_arrays(each) for each in zip(*some, strict=True)))
        for name, some in looks.items()
    }
    for name, files in inside.items():
        _refuse_outside(files, name, found.root)
    try:
        table = pa.concat_tables(rest, promote_options="default").combine_chunks()
    except pa.ArrowException as error:
        raise table_files.unreadable(found.root, error) from error
    count = len(inside[found.columns[0]].sizes)
    return (
        pa.table({name: table_files.plain(table.column(name)) for name in table.column_names}),
        count,
        inside,
    )


def _look(files: pa.Array) -> tuple[pa.Array, ...]:
    if pa.types.is_struct(files.type):
        data, paths = (pc.struct_field(files, name) for name in ("bytes", "path"))
    else:
        data, paths = files, pa.nulls(len(files), pa.string())
    return (
        pc.binary_length(data).cast(pa.int64()),
        pc.binary_slice(data, 0, _HEAD_BYTES).cast(pa.binary()),
        paths.cast(pa.string()),
    )


def _refuse_outside(files: _Inside, name: str, root: Path) -> None:
    outside = files.paths.filter(pc.and_(files.heads.is_null(), files.paths.is_valid()))
    if len(outside):
        names = first_few((each.as_py() for each in outside), len(outside))
        raise SourceError(
            f"{plural(len(outside), 'row')} of the column {name} of {root} name files outside: {names}",
            expected="the bytes of each file in the table",
            next_step="Embed the files when the table is written, or pack a table of paths beside them",
        )


def _tables_in(path: Path, *, deeper: int = 2) -> list[Path]:
    """Return the tables of a folder that has nothing else, or whose only folders are wrappers or splits.

    If `path` is itself a table, return it. Return none if the folder has anything else.
    """
    if not path.is_dir():
        return [path] if path.suffix.lower() in _SUFFIXES and path.is_file() else []
    with os.scandir(path) as entries:
        listed = [entry for entry in islice(entries, _LOOKED_AT) if not is_hidden(entry.name)]
    names = [entry.name for entry in listed]
    if len(listed) == _LOOKED_AT or any(name.lower().endswith(IMAGE_SUFFIXES) for name in names):
        return []
    folders = sorted(entry.name for entry in listed if entry.is_dir())
    files = sorted(name for name in names if name.lower().endswith(_SUFFIXES) and name not in folders)
    if files and not folders:
        return [path / name for name in files]
    if files or not deeper or not (len(folders) == 1 or all(canonical_split(name) for name in folders)):
        return []
    return [file for name in folders for file in _tables_in(path / name, deeper=deeper - 1)]


def _split_of(file: Path, root: Path) -> str:
    """Return the split in the name of a file (`train-00000-of-00002`) or of its folder.

    The default is `train`.
    """
    if shard := _SHARD.fullmatch(file.stem):
        return shard["split"].rpartition("-")[2]
    if canonical_split(file.stem):
        return file.stem
    return file.parent.name if file.parent != root and canonical_split(file.parent.name) else "train"


def _refuse_missing(files: Sequence[Path], root: Path) -> None:
    """Refuse a set of numbered files that is incomplete, unless the user gave a single file by its name."""
    shards = [shard for file in files if (shard := _SHARD.fullmatch(file.stem)) and file != root]
    wanted = {
        f"{shard['split']}-{number:05d}-of-{shard['count']}"
        for shard in shards
        for number in range(int(shard["count"]))
    }
    if missing := sorted(wanted - {shard[0] for shard in shards}):
        raise SourceError(
            f"{root} has {len(shards)} files of a split, and not {first_few(missing)}",
            expected="all numbered files of the split",
            next_step="Download the others, or give one file by its name",
        )


def _class_names(path: Path, target: str | None) -> tuple[str, ...]:
    """Return the names of integer labels that Hugging Face wrote into the schema.

    Return none if there are none.
    """
    with suppress(ValueError, KeyError, TypeError):
        features = json.loads((table_files.schema_of(path).metadata or {})[b"huggingface"])["info"][
            "features"
        ]
        if features[target]["_type"] == "ClassLabel":
            return tuple(map(str, features[target]["names"]))
    return ()


KEPT_BYTES = 128 << 20
"""Bytes of decoded groups that a process keeps, in addition to the group in use."""


def path_keys(paths: pa.Array) -> pa.Array | None:
    """Return the paths beside the bytes as keys if they are usable. Otherwise, return None.

    They are usable if each file has a path, all paths have a known suffix, and no two paths are equal.
    """
    if paths.null_count or pc.any(pc.match_substring_regex(paths, SUSPICIOUS_PATH)).as_py():
        return None
    hashes = np.sort(name_hashes(paths))
    is_known = pc.all(pc.is_in(suffixes_of(paths), column(FILE_SUFFIXES, pa.string()))).as_py()
    return paths if is_known and not (hashes[1:] == hashes[:-1]).any() else None


def numbered_keys(count: int, suffixes: pa.Array) -> pa.Array:
    """Return the row numbers with the suffixes of their files as keys.

    A key is null where the suffix is null.
    """
    return joined(column([f"{row:08d}" for row in range(count)], pa.string()), suffixes)


def further_paths(keys: pa.Array, number: int, suffixes: pa.Array) -> pa.Array:
    """Return the paths by which `RowStore` finds the files of its column `number`.

    Null means that there is no file.
    """
    return joined(keys, scalar(f"{BLOB_MARK}{number}"), suffixes)


def number_of(path: str) -> int:
    """Return the number of the column in a path that `further_paths` made."""
    return int(path.rpartition(BLOB_MARK)[2].partition(".")[0])


class RowStore(NamedStore):
    """Reads files that are stored in the rows of tables.

    Args:
        root: The file, or the folder of files.
        files: The tables, in order.
        columns: The columns that hold files.
        first: The column of the samples' first files, whose paths are the keys.
    """

    kind, made_from = "table", "these files"
    of_process = ("_lookup", "_lock", "_groups", "_kept", "_ends", "_keys")

    def __init__(self, root: Path, files: Sequence[Path], columns: Sequence[str], first: str) -> None:
        self._files, self._columns, self._first = tuple(files), tuple(columns), first
        super().__init__(root)

    def _begin(self) -> None:
        super()._begin()
        self._lock = threading.Lock()
        self._groups: list[table_files.Group] = []
        self._kept: OrderedDict[tuple[int, str], pa.ChunkedArray] = OrderedDict()

    def _bytes(self, path: str) -> memoryview:
        key, mark, _ = path.partition(BLOB_MARK)
        name = self._columns[number_of(path)] if mark else self._first
        with self._lock:
            row = self._number(key)
            at = bisect_right(self._ends, row)
            found = self._group(at, name)[row - (self._ends[at - 1] if at else 0)]
        if not found.is_valid:
            raise self._missing(path)
        return memoryview(found.as_buffer()).cast("B")

    def _number(self, key: str) -> int:
        """Return the row of a key. The first call inspects the files."""
        if not self._groups:
            self._groups = [group for file in self._files for group in table_files.groups_of(file)]
            self._ends = list(accumulate(group.rows for group in self._groups))
            paths = [table_files.read_group(group, self._first, "path") for group in self._groups]
            self._keys = path_keys(one_chunk(pa.chunked_array([c for each in paths for c in each.chunks])))
        if self._keys is not None:
            return self._row(key)
        digits = key.partition(".")[0]
        if not digits.isdecimal() or int(digits) >= self._ends[-1]:
            raise self._missing(key)
        return int(digits)

    def _names(self) -> pa.StringArray:
        return self._keys

    def _group(self, at: int, name: str) -> pa.ChunkedArray:
        """Return the bytes in a group of rows.

        The group is decoded only if it is not kept from an earlier call.
        """
        if (found := self._kept.pop((at, name), None)) is None:
            try:
                found = answered(
                    self._groups[at].file, table_files.read_group, self._groups[at], name, "bytes"
                )
            except (OSError, ValueError, pa.ArrowException) as error:
                raise table_files.unreadable(self._groups[at].file, error) from error
            held = found.nbytes
            while self._kept and held + sum(each.nbytes for each in self._kept.values()) > KEPT_BYTES:
                self._kept.popitem(last=False)
        self._kept[at, name] = found
        return found

    def _state_of_file(self) -> tuple[int, int] | None:
        try:
            states = [answered(file, file.stat) for file in self._files]
        except OSError:
            return None  # reading says why
        return sum(each.st_size for each in states), max(each.st_mtime_ns for each in states)
