"""The small columns of an HDF5 file (keys, labels, captions, JSON objects) as flat arrays.

HDF5 can store strings itself, but each then costs a heap lookup; a run of bytes and its borders
loads a million keys in milliseconds. The trap: n strings have n + 1 borders. Notebook 04 draws it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from smallfiles.formats.checked import INT64, captions_of, key_of, label_of, meta_text
from smallfiles.samples import Sample, Schema


class Texts:
    """Many strings, growing: UTF-8 bytes and where each begins."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._borders = array("Q", [0])

    def __len__(self) -> int:
        return len(self._borders) - 1

    def add(self, text: str) -> None:
        self._data += text.encode()
        self._borders.append(len(self._data))

    def arrays(self, name: str) -> Iterator[tuple[str, np.ndarray]]:
        """Data sets to write."""
        yield f"{name}_data", np.frombuffer(self._data, np.uint8)
        yield f"{name}_offsets", np.frombuffer(self._borders, np.uint64)


class Columns:
    """Everything about the samples but their bytes; about 100 bytes a sample.

    Args:
        out: The file, for messages.
        schema: What is packed.
        labels: The labels that the layout holds.
    """

    def __init__(self, out: Path, schema: Schema, labels: range = INT64) -> None:
        self._out, self._schema, self._allowed = out, schema, labels
        self._keys, self._metas, self._captions = Texts(), Texts(), Texts()
        self._labels = array("q")
        self._caption_rows = array("Q", [0])

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, sample: Sample) -> None:
        """Take everything but the bytes of a sample.

        Raises:
            FormatError: It does not fit.
        """
        if self._schema.target == "label":
            self._labels.append(label_of(sample, self._out, self._allowed))
        else:
            for text in captions_of(sample, self._out):
                self._captions.add(text)
            self._caption_rows.append(len(self._captions))
        meta = meta_text(sample, self._out, self._schema)
        if self._schema.has_meta:
            self._metas.add(meta or "")  # no JSON object is the empty text
        self._keys.add(key_of(sample, self._out))

    def arrays(self, labels: str = "labels", dtype: str = "<i8") -> Iterator[tuple[str, np.ndarray]]:
        """Data sets to write; `labels` and `dtype` name and type that of the labels."""
        yield from self._keys.arrays("key")
        if self._schema.target == "label":
            yield labels, np.frombuffer(self._labels, np.int64).astype(dtype, copy=False)
        else:
            yield from self._captions.arrays("caption")
            yield "caption_rows", np.frombuffer(self._caption_rows, np.uint64)
        if self._schema.has_meta:
            yield from self._metas.arrays("meta")
