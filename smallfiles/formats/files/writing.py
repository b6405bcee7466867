"""Write a tree of plain files and its manifest.

The trap: a name from elsewhere may leave the folder (`../../.bashrc`) or be the folder of another name.
Both are refused with the key, before a byte is written. Notebook 01 shows the limits.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from smallfiles import digests
from smallfiles.arrays import from_numpy
from smallfiles.digests import BlockHasher
from smallfiles.errors import SmallfilesError, cannot_write, refuse_foreign_locale, writing
from smallfiles.formats.columns import SampleColumns, file_names, further_names, unwritable
from smallfiles.formats.files.reading import MANIFEST, manifest_of
from smallfiles.formats.output import save_digest, write_all
from smallfiles.manifest import Manifest
from smallfiles.samples import UNLABELLED, Buffer, Packed, Sample, Schema

LABELS = range(UNLABELLED, 2**31)
"""The labels that a manifest can hold (fewer if it has a list of classes)."""

_RESERVED = (MANIFEST, MANIFEST + digests.SIDECAR_SUFFIX)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_FACTS = {"sizes": pa.int64(), "sha256": pa.string()}


@dataclass(frozen=True)
class FilesOptions:
    """Plain files have none."""


def write(
    samples: Iterable[Sample],
    out: Path,
    *,
    schema: Schema,
    options: FilesOptions | None = None,
    digest: bool = True,
) -> Packed:
    """Write each file of a sample to one of its own, and manifests.

    This is what a parallel file system is worst at; it is here for comparison.

    Args:
        samples: In the order of the manifest.
        out: Folder that does not exist.
        schema: What is packed.
        options: None.
        digest: Whether to put the SHA-256 of each file into the manifests.

    Returns:
        What was written; `files` names only the manifests and the digest of the first.

    Raises:
        FormatError: A name cannot be that of a file here, or collides with another.
        ResourceError: No space, no inodes or no permission.
    """
    with writing(out):
        out.mkdir()
    tree, count, payload = _Tree(out), 0, 0
    fields = ["", *(blob.name for blob in schema.blobs)]
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
    """Makes files below one folder."""

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
    """Write the manifest of the samples, and one of the files of each further field; name them all."""
    found, values = columns.finish()
    about: dict[str, Any] = {"name": schema.name, "split": schema.split, "root_hint": "."}
    facts = {
        field: {
            **about,
            "sizes": found[f"{field}/sizes"],
            "sha256": found.get(f"{field}/sha256"),
        }
        for field in ("", *(blob.name for blob in schema.blobs))
    }
    paths = {blob.name: further_names(found["key"], blob.name, blob.suffix) for blob in schema.blobs}
    for name, theirs in paths.items():
        unlabelled = from_numpy(np.full(len(theirs), UNLABELLED))
        Manifest.from_columns(theirs, unlabelled, **facts[name]).save(out / manifest_of(name))
    Manifest.from_columns(
        found["key"],
        classes=schema.classes,
        blobs=paths,
        values=values,
        first=schema.first,
        **facts[""],
    ).save(out / MANIFEST)
    files = save_digest(out / MANIFEST, BlockHasher() if digest else None)
    return (*files, *(out / manifest_of(name) for name in paths))
