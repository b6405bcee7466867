"""Read plain files by the rows of a manifest: any tree that has one.

The trap: a file that was cut off by a full quota opens and reads without an error. The sizes in the
manifest reveal it. Notebook 01 teaches what an open costs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from smallfiles.arrays import from_numpy
from smallfiles.errors import FormatError, ManifestError, SmallfilesError, refuse_shortage
from smallfiles.formats import provenance
from smallfiles.formats.bytefile import damaged
from smallfiles.formats.reader import BaseReader
from smallfiles.manifest import Manifest
from smallfiles.samples import UNLABELLED, BlobField, Buffer, Schema
from smallfiles.storage import answered

MANIFEST = "manifest.json"


def manifest_of(field: str) -> str:
    """Name of the manifest with sizes and hashes of the further files of a field."""
    return f"manifest.{field}.json"


class FilesReader(BaseReader[Manifest]):
    """Random access to plain files; see `smallfiles.formats.files.open`."""

    _outlives_fork = True

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._prefix = f"{self.path}/"
        self._of_fields: dict[str, Manifest] = {}  # of the fields of further files, read when they are needed

    def _open(self) -> Manifest:
        return _load(self.path / MANIFEST)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_of_fields": {}}

    def __len__(self) -> int:
        return len(self._handle())

    @property
    def classes(self) -> tuple[str, ...]:
        return self._handle().classes

    def keys(self) -> pa.StringArray:
        return self._handle().paths

    def key(self, index: int) -> str:
        return self._handle().path(self._checked(index))

    def _further(self) -> Mapping[str, str]:
        fields = self._handle().fields
        return {name: fields[name] for name in self._handle().blobs}

    def _first(self) -> str:
        return self._handle().first

    def _kinds(self) -> Mapping[str, pa.DataType]:
        return {each.name: each.type for each in self._handle().columns.schema}

    def _read_column(self, name: str) -> pa.ChunkedArray:
        return self._handle().columns[name]

    def _blob(self, name: str) -> _Field:
        return _Field(self, name)

    def further(self, name: str) -> Manifest:
        """The manifest of the further files of a field."""
        paths = self._handle().blob_paths(name)
        if name not in self._of_fields:
            self._of_fields[name] = _load_further(self.path / manifest_of(name), paths)
        return self._of_fields[name]

    def sha256(self, index: int, field: str = "") -> str | None:
        if field:
            return self._blob(field).sha256(index)
        table, index = self._handle().table, self._checked(index)
        found = table.column("sha256")[index].as_py() if "sha256" in table.column_names else None
        return None if found is None else str(found)

    def size(self, index: int) -> int:
        index = self._checked(index)
        known = self._stated_size(index)
        if known is not None:
            return known
        try:
            path = self._prefix + self.key(index)
            return answered(path, os.stat, path).st_size
        except OSError as error:
            raise self._unreadable(index, error) from error

    def _stated_size(self, index: int) -> int | None:
        table = self._handle().table
        return table.column("bytes")[index].as_py() if "bytes" in table.column_names else None

    def read(self, index: int) -> Buffer:
        index = self._checked(index)
        stated = self._stated_size(index)
        path = self._prefix + self._handle().path(index)
        try:
            data = answered(path, _read_whole, path, stated)
        except OSError as error:
            raise self._unreadable(index, error) from error
        if stated is not None and len(data) != stated:
            longer = "more than " if len(data) > stated else ""
            raise damaged(
                self.path / self.key(index), f"it has {longer}{min(len(data), stated):,} of {stated:,} bytes"
            )
        return memoryview(data)

    def span(self, index: int) -> tuple[Path, int, int] | None:
        return self.path / self.key(index), 0, self.size(index)

    def _unreadable(self, index: int, error: OSError) -> SmallfilesError:
        refuse_shortage(error, self.path / self.key(index))
        return damaged(self.path / self.key(index), f"it cannot be read ({error.strerror})")

    def info(self) -> dict[str, Any]:
        manifest, sizes = self._handle(), {}
        known = [each.sizes for each in (manifest, *map(self.further, manifest.blobs))]
        if all(each is not None for each in known):  # else left out, since it would take one stat per file
            payload = sum(int(each.sum()) for each in known if each is not None)
            sizes = {
                "bytes": payload,
                "file_bytes": payload + answered(self.path, (self.path / MANIFEST).stat).st_size,
            }
        about = {name: getattr(manifest, name) for name in ("name", "split", "classes", "first")}
        schema = Schema(
            *(len(manifest), 0, 0, manifest.columns),
            manifest_digest=manifest.digest,
            blobs=tuple(BlobField(*field) for field in self._further().items()),
            **about,
        )
        return {
            "format": "files",
            "layout": "folder",
            "samples": len(manifest),
            **sizes,
            "files": len(manifest) * (1 + len(manifest.blobs)),
            "provenance": provenance.record("files", schema, None),
        }


class _Field(FilesReader):
    """The further files of a reader.

    Args:
        reader: Has the samples.
        name: Of the field.
    """

    def __init__(self, reader: FilesReader, name: str) -> None:
        super().__init__(reader.path)
        self._reader, self._name = reader, name

    def _handle(self) -> Manifest:
        return self._reader.further(self._name)


def _load_further(path: Path, paths: pa.StringArray) -> Manifest:
    """The manifest of further files; one of their paths alone in a tree that somebody else made."""
    if not path.is_file():
        return Manifest.from_columns(paths, from_numpy(np.full(len(paths), UNLABELLED)))
    found = _load(path)
    if not found.paths.equals(paths):
        raise damaged(path, f"its paths are not those in {MANIFEST}")
    return found


def _load(path: Path) -> Manifest:
    if not path.is_file():
        raise FormatError(
            f"{path.parent} holds no {path.name}",
            expected="a folder of samples with its manifest",
            next_step="Make one with: smallfiles manifest",
        )
    try:
        return Manifest.load(path)
    except ManifestError as error:
        raise damaged(path, error.got) from error


def _read_whole(path: str, size: int | None) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _read_all(descriptor, os.fstat(descriptor).st_size if size is None else size)
    finally:
        os.close(descriptor)


def _read_all(descriptor: int, size: int) -> bytes:
    """Read to the end; one more byte is requested, so that a file that grew is noticed."""
    data = os.read(descriptor, size + 1)
    while 0 < len(data) < size:
        more = os.read(descriptor, size + 1 - len(data))
        if not more:
            break
        data += more
    return data
