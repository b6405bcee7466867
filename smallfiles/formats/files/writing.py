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

import pyarrow as pa

from smallfiles import digests
from smallfiles.digests import BlockHasher
from smallfiles.errors import SmallfilesError, cannot_write, writing
from smallfiles.formats.columns import SampleColumns, check_file_name, unwritable
from smallfiles.formats.files.reading import MANIFEST
from smallfiles.formats.output import save_digest, write_all
from smallfiles.manifest import Manifest
from smallfiles.samples import UNLABELLED, Packed, Sample, Schema

LABELS = range(UNLABELLED, 2**31)
"""The labels that a manifest can hold (fewer if it has a list of classes)."""

_RESERVED = (MANIFEST, MANIFEST + digests.SIDECAR_SUFFIX)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


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
    """Write each sample to a file of its own, and a manifest.

    This is what a parallel file system is worst at; it is here for comparison.

    Args:
        samples: In the order of the manifest.
        out: Folder that does not exist.
        schema: What is packed.
        options: None.
        digest: Whether to put the SHA-256 of each sample into the manifest.

    Returns:
        What was written; `files` names only the manifest and its digest.

    Raises:
        FormatError: A key cannot be a file name here, or collides with another.
        ResourceError: No space, no inodes or no permission.
    """
    with writing(out):
        out.mkdir()
    tree, payload = _Tree(out), 0
    columns = SampleColumns(
        out,
        schema,
        labels=range(UNLABELLED, len(schema.classes)) if schema.classes else LABELS,
        label_type=pa.int32(),
        more={"sizes": pa.int64(), "sha256": pa.string()},
    )
    for sample in samples:
        sha256 = hashlib.sha256(sample.data).hexdigest() if digest else None
        columns.add(sample, len(sample.data), sha256)
        check_file_name(sample.key, out, _RESERVED)
        tree.write(sample)
        payload += len(sample.data)
    manifest = _manifest(columns, schema, digest)
    manifest.save(out / MANIFEST)
    files = save_digest(out / MANIFEST, BlockHasher() if digest else None)
    size = payload + sum(file.stat().st_size for file in files)
    return Packed(out, "files", len(manifest), payload, size, files)


class _Tree:
    """Makes files below one folder."""

    def __init__(self, root: Path) -> None:
        self._root = f"{root}/"
        self._path = root
        self._made = {""}

    def write(self, sample: Sample) -> None:
        folder = sample.key.rpartition("/")[0]
        try:
            if folder not in self._made:
                os.makedirs(self._root + folder, exist_ok=True)  # noqa: PTH103 - once per folder, and pathlib is slow
                self._made.add(folder)
            descriptor = os.open(self._root + sample.key, _CREATE, 0o666)
        except OSError as error:
            raise self._refused(sample.key, error) from error
        try:
            write_all(descriptor, [sample.data], 0, self._path)
        finally:
            with writing(self._path):
                os.close(descriptor)

    def _refused(self, key: str, error: OSError) -> SmallfilesError:
        if error.errno in (errno.EEXIST, errno.ENOTDIR, errno.EISDIR):
            what = "collides with another sample's name, which is the same or a folder of it"
        elif error.errno == errno.ENAMETOOLONG:
            what = "is too long"
        else:
            return cannot_write(self._path, error)
        return unwritable(key, self._path, what)


def _manifest(columns: SampleColumns, schema: Schema, digest: bool) -> Manifest:
    found = {name: columns.finish(name) for name in columns.kinds}
    return Manifest.from_columns(
        found["key"],
        found[schema.target],
        name=schema.name,
        split=schema.split,
        classes=schema.classes,
        root_hint=".",
        sizes=found["sizes"],
        sha256=found["sha256"] if digest else None,
        metas=found.get("meta"),
        target=schema.target,
    )
