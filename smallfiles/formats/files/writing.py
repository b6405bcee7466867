"""Write a tree of plain files and its manifest.

The trap: a name that comes from outside may climb out of the folder (`../../.bashrc`) or be a folder
of another. Both are refused with the key, before a byte is written. Notebook 01 meets the limits.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from smallfiles import digests
from smallfiles.digests import BlockHasher
from smallfiles.errors import FormatError, SmallfilesError
from smallfiles.formats.checked import captions_of, key_of, label_of, meta_text
from smallfiles.formats.files.reading import MANIFEST
from smallfiles.formats.output import cannot_write, save_digest, write_all, writing
from smallfiles.keys import MAX_COMPONENT_BYTES, is_writable_name
from smallfiles.manifest import Manifest
from smallfiles.manifest.arrays import column
from smallfiles.samples import UNLABELLED, Packed, Sample, Schema

LABELS = range(UNLABELLED, 2**31)
"""The labels that a manifest holds (fewer where it has a list of classes)."""

_RESERVED = (MANIFEST, MANIFEST + digests.SIDECAR_SUFFIX)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_ROWS_AT_ONCE = 4096


def write_tree(samples: Iterable[Sample], out: Path, schema: Schema, digest: bool) -> Packed:
    """Write the folder; see `smallfiles.formats.files.write`."""
    with writing(out):
        out.mkdir()
    tree, table = _Tree(out), _Table(out, schema, digest)
    for sample in samples:
        table.add(sample)
        tree.write(sample)
    manifest = table.manifest()
    manifest.save(out / MANIFEST)
    files = save_digest(out / MANIFEST, BlockHasher() if digest else None)
    payload = table.payload_bytes
    size = payload + sum(file.stat().st_size for file in files)
    return Packed(out, "files", len(manifest), payload, size, files)


class _Tree:
    """Makes files below one folder, and never outside of it."""

    def __init__(self, root: Path) -> None:
        self._root = f"{root}/"
        self._path = root
        self._made = {""}

    def write(self, sample: Sample) -> None:
        folder = sample.key.rpartition("/")[0]
        try:
            if folder not in self._made:
                os.makedirs(self._root + folder, exist_ok=True)  # noqa: PTH103 - as cheap as can be
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
        return _unwritable(key, self._path, what)


class _Table:
    """The manifest while it grows, columnar."""

    def __init__(self, out: Path, schema: Schema, digest: bool) -> None:
        self._out, self._schema, self._digest = out, schema, digest
        self._labels = range(UNLABELLED, len(schema.classes)) if schema.classes else LABELS
        self._kinds = {
            "paths": pa.string(),
            "targets": pa.int32() if schema.target == "label" else pa.list_(pa.string()),
            "sizes": pa.int64(),
            "sha256": pa.string(),
            "metas": pa.string(),
        }
        self._done: dict[str, list[pa.Array]] = {name: [] for name in self._kinds}
        self._rows: dict[str, list[Any]] = {name: [] for name in self._kinds}
        self.payload_bytes = 0

    def add(self, sample: Sample) -> None:
        key, rows = key_of(sample, self._out), self._rows
        if not is_writable_name(key):
            raise _unwritable(key, self._out, f"has a part of more than {MAX_COMPONENT_BYTES} bytes")
        if key.partition("/")[0] in _RESERVED:
            raise _unwritable(key, self._out, "is kept for the manifest")
        label = self._schema.target == "label"
        rows["paths"].append(key)
        rows["targets"].append(
            label_of(sample, self._out, self._labels) if label else captions_of(sample, self._out)
        )
        rows["sizes"].append(len(sample.data))
        rows["sha256"].append(hashlib.sha256(sample.data).hexdigest() if self._digest else None)
        rows["metas"].append(meta_text(sample, self._out, self._schema))
        self.payload_bytes += len(sample.data)
        if len(rows["paths"]) == _ROWS_AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        for name, kind in self._kinds.items():
            self._done[name].append(column(self._rows[name], kind))
            self._rows[name] = []

    def manifest(self) -> Manifest:
        self._flush()
        columns = {name: pa.concat_arrays(parts) for name, parts in self._done.items()}
        schema = self._schema
        return Manifest.from_columns(
            columns["paths"],
            columns["targets"],
            name=schema.name,
            split=schema.split,
            classes=schema.classes,
            root_hint=".",
            sizes=columns["sizes"],
            sha256=columns["sha256"] if self._digest else None,
            metas=columns["metas"] if schema.has_meta else None,
            target=schema.target,
        )


def _unwritable(key: str, out: Path, what: str) -> FormatError:
    return FormatError(
        f"the key {key!r} for {out} {what}",
        expected="a name that a file can have here",
        next_step="Pack into one file (.arrow, .h5, .tars), where any name can be, or rename the sample",
    )
