"""Read plain files by the rows of a manifest: any tree that has one.

The trap: a file that was cut off by a full quota opens and reads without an error. The sizes in the
manifest reveal it. Notebook 01 teaches what an open costs.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa

from smallfiles.errors import FormatError, ManifestError, SmallfilesError, refuse_shortage
from smallfiles.formats import provenance
from smallfiles.formats.bytefile import damaged
from smallfiles.formats.reader import BaseReader
from smallfiles.manifest import Manifest
from smallfiles.samples import Buffer, Meta, Schema, Target, TargetKind

MANIFEST = "manifest.json"


class FilesReader(BaseReader[Manifest]):
    """Random access to plain files; see `smallfiles.formats.files.open`."""

    _outlives_fork = True

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._prefix = f"{self.path}/"

    def _open(self) -> Manifest:
        return _load(self.path / MANIFEST)

    def __len__(self) -> int:
        return len(self._handle())

    @property
    def target_kind(self) -> TargetKind:
        return self._handle().target_kind

    @property
    def classes(self) -> tuple[str, ...]:
        return self._handle().classes

    def keys(self) -> pa.StringArray:
        return self._handle().paths

    def key(self, index: int) -> str:
        return self._handle().path(self._checked(index))

    def target(self, index: int) -> Target:
        return self._handle().target(self._checked(index))

    def meta(self, index: int) -> Meta | None:
        return self._handle().meta(self._checked(index))

    def sha256(self, index: int) -> str | None:
        table, index = self._handle().table, self._checked(index)
        found = table.column("sha256")[index].as_py() if "sha256" in table.column_names else None
        return None if found is None else str(found)

    def size(self, index: int) -> int:
        index = self._checked(index)
        known = self._stated_size(index)
        if known is not None:
            return known
        try:
            return os.stat(self._prefix + self.key(index)).st_size  # noqa: PTH116
        except OSError as error:
            raise self._unreadable(index, error) from error

    def _stated_size(self, index: int) -> int | None:
        table = self._handle().table
        return table.column("bytes")[index].as_py() if "bytes" in table.column_names else None

    def read(self, index: int) -> Buffer:
        index = self._checked(index)
        stated = self._stated_size(index)
        try:
            descriptor = os.open(self._prefix + self._handle().path(index), os.O_RDONLY | os.O_CLOEXEC)
            try:
                data = _read_all(descriptor, os.fstat(descriptor).st_size if stated is None else stated)
            finally:
                os.close(descriptor)
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
        if manifest.sizes is not None:  # else left out, since it would take one stat per file
            payload = int(manifest.sizes.sum())
            sizes = {"bytes": payload, "file_bytes": payload + (self.path / MANIFEST).stat().st_size}
        about = {name: getattr(manifest, name) for name in ("name", "split", "classes", "has_meta")}
        schema = Schema(
            *(len(manifest), 0, 0, manifest.target_kind), manifest_digest=manifest.digest, **about
        )
        return {
            "format": "files",
            "layout": "folder",
            "samples": len(manifest),
            **sizes,
            "files": len(manifest),
            "provenance": provenance.record("files", schema, None),
        }


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


def _read_all(descriptor: int, size: int) -> bytes:
    """Read to the end; one more byte is requested, so that a file that grew is noticed."""
    data = os.read(descriptor, size + 1)
    while 0 < len(data) < size:
        more = os.read(descriptor, size + 1 - len(data))
        if not more:
            break
        data += more
    return data
