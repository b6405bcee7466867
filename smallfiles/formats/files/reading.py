"""Read plain files by the rows of a manifest: any tree that has one.

The trap: a file that was cut off by a full quota opens and reads without an error. The sizes in the
manifest reveal it. Notebook 01 teaches what an open costs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.arrays import as_integers, from_numpy, one_chunk, scalar, to_numpy
from smallfiles.errors import FormatError, ManifestError, SmallfilesError, refuse_shortage
from smallfiles.formats import provenance
from smallfiles.formats.bytefile import damaged
from smallfiles.formats.table import Column, Extents, Place, SampleTable, computed_once
from smallfiles.manifest import Manifest
from smallfiles.samples import UNLABELLED, BlobField, Buffer, Schema
from smallfiles.storage import answered

MANIFEST = "manifest.json"


def manifest_of(field: str) -> str:
    """Name of the manifest with sizes and hashes of the further files of a field."""
    return f"manifest.{field}.json"


def locate(path: Path) -> FilesTable:
    """Open a folder of plain files with its `manifest.json`.

    Raises:
        FormatError: There is none, or it is damaged.
    """
    return FilesTable(path, _load(path / MANIFEST))


class FilesTable(SampleTable):
    """Plain files with a manifest.

    Args:
        path: The folder.
        manifest: Of the samples.
    """

    format = "files"
    outlives_fork = True

    def __init__(self, path: Path, manifest: Manifest) -> None:
        blobs: dict[str, Extents] = {manifest.first: _Files(path, lambda: manifest)}
        for name in manifest.blobs:
            load = partial(_load_further, path / manifest_of(name), manifest.blob_paths(name))
            blobs[name] = _Files(path, load, manifest.fields[name])
        super().__init__(path, len(manifest), blobs, {})
        self._manifest = manifest

    @property
    def classes(self) -> tuple[str, ...]:
        return self._manifest.classes

    @property
    def kinds(self) -> dict[str, pa.DataType]:
        return {each.name: each.type for each in self._manifest.columns.schema}

    def load(self, name: str) -> Column:
        return self._manifest.paths if name == "key" else self._manifest.columns[name]

    def info(self) -> dict[str, Any]:
        manifest = self._manifest
        found = super().info()
        if "bytes" in found:  # else left out, since it would take one stat per file
            found["file_bytes"] = found["bytes"] + answered(self.path, (self.path / MANIFEST).stat).st_size
        about = {name: getattr(manifest, name) for name in ("name", "split", "classes", "first")}
        schema = Schema(
            *(len(manifest), 0, 0, manifest.columns),
            manifest_digest=manifest.digest,
            blobs=tuple(BlobField(name, manifest.fields[name]) for name in manifest.blobs),
            **about,
        )
        return found | {
            "layout": "folder",
            "files": len(manifest) * (1 + len(manifest.blobs)),
            "provenance": provenance.record("files", schema, None),
        }


class _Files(Extents):
    """A file for each sample, of one field.

    Args:
        root: The folder.
        load: Loads the manifest of these files; used once.
        suffix: Of the files.
    """

    def __init__(self, root: Path, load: Callable[[], Manifest], suffix: str = "") -> None:
        super().__init__(suffix)
        self._root, self._load = f"{root}/", load

    @computed_once
    def _manifest(self) -> Manifest:
        return self._load()

    @computed_once
    def _sizes(self) -> memoryview[int]:
        """The size of each file; -1 where the manifest does not have it."""
        table = self._manifest.table
        if "bytes" not in table.column_names:
            return as_integers(np.full(len(table), -1))
        return as_integers(to_numpy(pc.fill_null(one_chunk(table.column("bytes")), scalar(-1))))

    def place(self, row: int) -> Place:
        size = self._sizes[row]
        return _PlainFile(self._root + self._manifest.path(row), size), 0, size

    def total_bytes(self) -> int | None:
        sizes = self._manifest.sizes
        return None if sizes is None else int(sizes.sum())

    def sha256(self, row: int) -> str | None:
        table = self._manifest.table
        found = table.column("sha256")[row].as_py() if "sha256" in table.column_names else None
        return None if found is None else str(found)


class _PlainFile:
    """A file that holds one blob; it is opened for each read.

    Args:
        name: Its path.
        stated: Its size in the manifest; -1 if it is not there.
    """

    __slots__ = ("_name", "_stated")
    is_stored = True

    def __init__(self, name: str, stated: int) -> None:
        self._name, self._stated = name, stated

    @property
    def path(self) -> Path:
        """The path."""
        return Path(self._name)

    @property
    def size(self) -> int:
        """Number of bytes, from the manifest or the file system."""
        if self._stated >= 0:
            return self._stated
        try:
            return answered(self._name, os.stat, self._name).st_size
        except OSError as error:
            raise self._unreadable(error) from error

    def read(self, start: int, stop: int) -> Buffer:
        """Return the whole file: `start` and `stop` are its ends."""
        try:
            data = answered(self._name, _read_whole, self._name, stop)
        except OSError as error:
            raise self._unreadable(error) from error
        if 0 <= stop != len(data):
            longer = "more than " if len(data) > stop else ""
            raise damaged(self.path, f"it has {longer}{min(len(data), stop):,} of {stop:,} bytes")
        return data

    def prefetch(self, start: int, stop: int) -> None:
        """Do nothing: the file would have to be opened."""

    def _unreadable(self, error: OSError) -> SmallfilesError:
        refuse_shortage(error, self.path)
        return damaged(self.path, f"it cannot be read ({error.strerror})")


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


def _read_whole(path: str, size: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _read_all(descriptor, os.fstat(descriptor).st_size if size < 0 else size)
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
