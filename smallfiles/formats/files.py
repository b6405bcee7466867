"""Plain files under the same contract as the packed formats, for comparison with all of them.

`OUT.files/` holds each sample at its key, and `manifest.json` with targets, further values, sizes and, if
digests are taken, the SHA-256 of each file (56 µs for 100 KB; one sidecar per file would double the files).
A file of another field is beside it (`1.mask.png` for `1.jpg`), and its sizes and hashes are in
`manifest.mask.json`.

The traps: every file is an inode, every read is an open, a read and a close, and on a parallel file
system each of these is a request to a server. A file that was cut off by a full quota opens and reads without
an error; the sizes in the manifest reveal it. And a name from elsewhere may leave the folder
(`../../.bashrc`) or be the folder of another name. Both are refused with the key, before a byte is written.
Notebook 01 counts the requests. A component of a name has at most 255 bytes, and `a` and `a/b` cannot both
exist.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles import digests
from smallfiles.arrays import as_integers, from_numpy, one_chunk, scalar, to_numpy
from smallfiles.digests import BlockHasher
from smallfiles.errors import (
    FormatError,
    ManifestError,
    SmallfilesError,
    cannot_write,
    refuse_foreign_locale,
    refuse_shortage,
    writing,
)
from smallfiles.formats.bytefile import damaged
from smallfiles.formats.output import (
    SampleColumns,
    file_names,
    paths_in_tree,
    save_digest,
    unwritable,
    write_all,
)
from smallfiles.formats.reader import TableReader
from smallfiles.formats.table import Column, Extents, Place, SampleTable, computed_once, record_of
from smallfiles.manifest import Manifest
from smallfiles.samples import UNLABELLED, BlobField, Buffer, Packed, Sample, Schema
from smallfiles.storage import answered

MANIFEST = "manifest.json"

LABELS = range(UNLABELLED, 2**31)
"""The labels that a manifest can hold (fewer if it has a list of classes)."""

_RESERVED = (MANIFEST, MANIFEST + digests.SIDECAR_SUFFIX)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_FACTS = {"sizes": pa.int64(), "sha256": pa.string()}
__all__ = ["Options", "locate", "open", "write"]


def manifest_of(field: str) -> str:
    """Return the name of the manifest with the sizes and hashes of a field's files.

    The name of the default field is empty.
    """
    return f"manifest.{field}.json" if field else MANIFEST


def locate(path: Path) -> FilesTable:
    """Open a folder of plain files that has a `manifest.json`.

    Raises:
        FormatError: The manifest is missing or damaged.
    """
    return FilesTable(path, _load(path / MANIFEST))


class FilesTable(SampleTable):
    """The table of samples of a folder of plain files with a manifest.

    Args:
        path: The folder.
        manifest: The manifest of the samples.
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
            "provenance": record_of("files", schema, None),
        }


class _Files(Extents):
    """The files of one field in a folder, with one file per sample.

    Args:
        root: The folder.
        load: Loads the manifest of these files. It is called once.
        suffix: Suffix of the files.
    """

    def __init__(self, root: Path, load: Callable[[], Manifest], suffix: str = "") -> None:
        super().__init__(suffix)
        self._root, self._load = f"{root}/", load

    @computed_once
    def _manifest(self) -> Manifest:
        return self._load()

    @computed_once
    def _sizes(self) -> memoryview[int]:
        """Return the size of each file in bytes. It is -1 if the manifest does not have the size."""
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
    """A file that holds one blob. The file is opened for each read.

    Args:
        name: Path of the file.
        stated: Size in the manifest, in bytes. It is -1 if the manifest does not have the size.
    """

    __slots__ = ("_name", "_stated")
    is_stored = True

    def __init__(self, name: str, stated: int) -> None:
        self._name, self._stated = name, stated

    @property
    def path(self) -> Path:
        """The path of the file."""
        return Path(self._name)

    @property
    def size(self) -> int:
        """The size of the file in bytes, from the manifest if it is there, otherwise from the file system."""
        if self._stated >= 0:
            return self._stated
        try:
            return answered(self._name, os.stat, self._name).st_size
        except OSError as error:
            raise self._unreadable(error) from error

    def read(self, start: int, stop: int) -> Buffer:
        """Return the whole file. `start` and `stop` must be its first byte and its end."""
        try:
            data = answered(self._name, _read_whole, self._name, stop)
        except OSError as error:
            raise self._unreadable(error) from error
        if 0 <= stop != len(data):
            longer = "more than " if len(data) > stop else ""
            raise damaged(self.path, f"it has {longer}{min(len(data), stop):,} of {stop:,} bytes")
        return data

    def prefetch(self, start: int, stop: int) -> None:
        """Do nothing, because announcing the bytes would require opening the file."""

    def _unreadable(self, error: OSError) -> SmallfilesError:
        refuse_shortage(error, self.path)
        return damaged(self.path, f"it cannot be read ({error.strerror})")


def _load_further(path: Path, paths: pa.StringArray) -> Manifest:
    """Load the manifest of the files of an additional field.

    A tree that another program made has no such manifest. Then return a manifest that has only the paths.
    """
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
    """Read a file to its end. One more byte than `size` is requested, to detect a file that has grown."""
    data = os.read(descriptor, size + 1)
    while 0 < len(data) < size:
        more = os.read(descriptor, size + 1 - len(data))
        if not more:
            break
        data += more
    return data


@dataclass(frozen=True)
class Options:
    """The options of plain files, of which there are none."""


def write(
    samples: Iterable[Sample],
    out: Path,
    *,
    schema: Schema,
    options: Options | None = None,
    digest: bool = True,
) -> Packed:
    """Write each blob of each sample as a separate file, and write the manifests.

    This is what a parallel file system is worst at. The format is here for comparison.

    Args:
        samples: The samples, in the order of the manifest.
        out: A folder that does not exist.
        schema: What is packed.
        options: Has no effect, because plain files have no options.
        digest: Whether to put the SHA-256 of each file into the manifests.

    Returns:
        What was written. `files` names only the manifests and the digest of `manifest.json`.

    Raises:
        FormatError: A name cannot be that of a file here, or collides with another name.
        ResourceError: There is no space, no free inode, or no permission.
    """
    with writing(out):
        out.mkdir()
    tree, count, payload = _Tree(out), 0, 0
    fields = [blob.name for blob in schema.all_blobs]
    reserved = (*_RESERVED, *map(manifest_of, fields[1:]))
    facts = [*_FACTS.items()][: 1 + digest]
    columns = SampleColumns(
        out,
        schema,
        labels=range(UNLABELLED, len(schema.classes)) if schema.classes else LABELS,
        more={f"{field}/{name}": kind for field in fields for name, kind in facts},
    )
    for sample in samples:
        columns.add(sample, *(fact for data in sample.blobs for fact in _facts(data, digest)))
        for name, data in zip(file_names(sample, schema, out, reserved), sample.blobs, strict=True):
            tree.write(name, data)
        count, payload = count + 1, payload + sample.size
    files = _save_manifests(columns, schema, out, digest)
    size = payload + sum(file.stat().st_size for file in files)
    return Packed(out, "files", count, payload, size, files)


class _Tree:
    """Writes files below one folder, and creates the folders that they need."""

    def __init__(self, root: Path) -> None:
        self._root = f"{root}/"
        self._path = root
        self._made = {""}

    def write(self, name: str, data: Buffer) -> None:
        if not name.isascii():
            refuse_foreign_locale(self._path)
        folder = name.rpartition("/")[0]
        try:
            if folder not in self._made:
                os.makedirs(self._root + folder, exist_ok=True)  # noqa: PTH103 - once per folder, and pathlib is slow
                self._made.add(folder)
            descriptor = os.open(self._root + name, _CREATE, 0o666)
        except OSError as error:
            raise self._refused(name, error) from error
        try:
            write_all(descriptor, [data], 0, self._path)
        finally:
            with writing(self._path):
                os.close(descriptor)

    def _refused(self, name: str, error: OSError) -> SmallfilesError:
        if error.errno in (errno.EEXIST, errno.ENOTDIR, errno.EISDIR):
            what = "collides with another file's name, which is the same or a folder of it"
        elif error.errno == errno.ENAMETOOLONG:
            what = "is too long"
        else:
            return cannot_write(self._path, error)
        return unwritable(name, self._path, what)


def _facts(data: Buffer, digest: bool) -> tuple[int] | tuple[int, str]:
    return (len(data), hashlib.sha256(data).hexdigest()) if digest else (len(data),)


def _save_manifests(columns: SampleColumns, schema: Schema, out: Path, digest: bool) -> tuple[Path, ...]:
    """Write the manifest of the samples and one manifest per additional field.

    Return the paths of all of them.

    The digest file of `manifest.json` is written and returned as well if `digest` is true.
    """
    found, values = columns.finish()
    about: dict[str, Any] = {"name": schema.name, "split": schema.split, "root_hint": "."}
    unlabelled = {"label": from_numpy(np.full(len(found["key"]), UNLABELLED))}
    paths = {blob.name: paths_in_tree(found["key"], blob.name, blob.suffix) for blob in schema.blobs}
    whole = {"classes": schema.classes, "blobs": paths, "values": values, "first": schema.first}
    for name, theirs in {**paths, "": found["key"]}.items():
        facts = {"sizes": found[f"{name}/sizes"], "sha256": found.get(f"{name}/sha256")}
        more = {"values": unlabelled} if name else whole
        Manifest.from_columns(theirs, **about, **facts, **more).save(out / manifest_of(name))
    files = save_digest(out / MANIFEST, BlockHasher() if digest else None)
    return (*files, *(out / manifest_of(name) for name in paths))


def open(path: Path) -> TableReader:
    """Return a reader for a folder of plain files. Its `manifest.json` is read at first use."""
    return TableReader(path, locate)
