"""Read samples of an Arrow file at random.

The trap: `pa.OSFile` and `get_batch` read a whole batch to hand out one row, 30 times slower than a
mapped file with 1,000 rows a batch. This reader fetches the row alone either way. Notebook 03.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from smallfiles.formats import provenance
from smallfiles.formats.arrow.batches import Opened
from smallfiles.formats.arrow.writing import PROVENANCE
from smallfiles.formats.bytefile import Access, ByteFile
from smallfiles.formats.reader import PlacedReader
from smallfiles.samples import UNLABELLED, Meta, Target, TargetKind


class ArrowReader(PlacedReader[Opened]):
    """Random access to an Arrow file; see `smallfiles.formats.arrow.open`."""

    def __init__(self, path: Path, access: Access = "auto") -> None:
        super().__init__(path)
        self._access = access

    def _open(self) -> Opened:
        return Opened(self.path, self._access)

    def __len__(self) -> int:
        return self._handle().rows

    @property
    def target_kind(self) -> TargetKind:
        return "label" if self._handle().columns.captions is None else "captions"

    @property
    def classes(self) -> tuple[str, ...]:
        metadata = self._handle().schema.metadata or {}
        ours = provenance.class_names(provenance.loads(metadata.get(PROVENANCE)))
        return ours or _hugging_face_classes(metadata.get(b"huggingface"))

    def keys(self) -> pa.StringArray:
        opened = self._handle()
        if opened.keys is None:
            opened.keys = opened.all_keys()
        return opened.keys

    def key(self, index: int) -> str:
        index, opened = self._checked(index), self._handle()
        if opened.columns.key is None:
            return str(index)
        return opened.value(opened.columns.key, index) or ""

    def target(self, index: int) -> Target:
        index, opened = self._checked(index), self._handle()
        if opened.columns.captions is None:
            return opened.label(index)
        captions: list[str] | str | None = opened.value(opened.columns.captions, index)
        return [captions] if isinstance(captions, str) else captions or []

    def targets(self, start: int, stop: int) -> list[Target]:
        """Labels or captions of a run of samples, a record batch at a time."""
        opened, found = self._handle(), list[Target]()
        labels, captions = opened.columns.label, opened.columns.captions
        if captions is not None:
            for values in opened.values(captions, start, stop):
                found += [[value] if isinstance(value, str) else value or [] for value in values]
        elif labels is not None:
            for values in opened.values(labels, start, stop):
                found += [UNLABELLED if value is None else value for value in values]
        opened.file.forget()
        return found or super().targets(start, stop)

    def meta(self, index: int) -> Meta | None:
        index, opened = self._checked(index), self._handle()
        if opened.columns.meta is None:
            return None
        return self._object(opened.value(opened.columns.meta, index), index)

    def _place(self, index: int) -> tuple[ByteFile, int, int]:
        opened = self._handle()
        start, stop = opened.place(index)
        return opened.file, start, stop

    def _prefetch_places(self, indices: Sequence[int]) -> None:
        self._handle().prefetch_batches(indices)

    def info(self) -> dict[str, Any]:
        opened = self._handle()
        record = provenance.loads((opened.schema.metadata or {}).get(PROVENANCE))
        return {
            "format": "arrow",
            "layout": record.get("options", {}).get("layout", f"foreign {opened.layout}"),
            "samples": opened.rows,
            "bytes": opened.payload_bytes(),
            "file_bytes": opened.file.size,
            "batches": opened.count,
            "columns": {field.name: str(field.type) for field in opened.schema},
            "provenance": record,
        }


def _hugging_face_classes(text: bytes | None) -> tuple[str, ...]:
    """Class names of a file of Hugging Face `datasets`."""
    features = provenance.loads(text).get("info", {})
    features = features.get("features", {}) if isinstance(features, dict) else {}
    for feature in features.values() if isinstance(features, dict) else ():
        if isinstance(feature, dict) and isinstance(feature.get("names"), list):
            return tuple(str(name) for name in feature["names"])
    return ()
