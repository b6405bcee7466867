"""Everything about the samples except their bytes (keys, targets, JSON objects, positions) as Arrow columns.

Every format keeps these small columns together, so that a million keys and labels are read at once, and
a label is found without its image. The trap: a million rows of Python objects take a gigabyte while a
file is written, so they become columns a few thousand rows at a time. And a label that silently wraps
(70,000 in 16 bits is 4,464) trains without any error, so each value is checked when it enters a file, and
refused with the key of its sample. Notebooks 03 and 04 look at them.
"""

from __future__ import annotations

import json
import operator
import re
from array import array
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.arrays import GrowingNumbers, GrowingStrings, column, from_numpy, one_chunk, scalar
from smallfiles.errors import FormatError, first_few
from smallfiles.fields import META, TARGETS
from smallfiles.formats.output import ArrowSink
from smallfiles.keys import MAX_COMPONENT_BYTES, is_writable_name, key_problem
from smallfiles.samples import Buffer, Sample, Schema, Target

CAPTIONS = pa.list_(pa.string())
TARGET_TYPES = {"label": pa.int64(), "captions": CAPTIONS}
INT64 = range(-(2**63), 2**63)
_ROWS_AT_ONCE = 4096
_STEM = r"^(.*[^/])\.[^./]*$"


class Rows:
    """The rows of one batch.

    Args:
        out: The file, for messages.
        schema: What is packed; it says whether targets are labels and whether there are JSON objects.
        labels: The labels that the layout can hold.
        label_type: Arrow type of labels.
        more: Further columns, after these.
    """

    def __init__(
        self,
        out: Path,
        schema: Schema,
        *,
        labels: range = INT64,
        label_type: pa.DataType | None = None,
        more: Mapping[str, pa.DataType] | None = None,
    ) -> None:
        self._out, self._schema, self._allowed = out, schema, labels
        self._labelled = schema.target == "label"
        self.kinds: dict[str, pa.DataType] = {
            "key": pa.string(),
            schema.target: (self._labelled and label_type) or TARGET_TYPES[schema.target],
            **({"meta": pa.string()} if schema.has_meta else {}),
            **(more or {}),
        }
        self._rows: list[tuple[Any, ...]] = []
        self._numbers = array("q")  # of a whole file, where the rows are those of one
        self.value_names = () if schema.values is None else tuple(schema.values.column_names)

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, sample: Sample, *more: Any) -> None:
        """Add everything but the bytes of a sample.

        Args:
            sample: What is packed next.
            *more: Values of the further columns.

        Raises:
            FormatError: It does not fit the schema.
        """
        out, key = self._out, key_of(sample, self._out)
        target = label_of(sample, out, self._allowed) if self._labelled else captions_of(sample, out)
        self.append(key, target, meta_text(sample, out, self._schema), *more, row=sample.row)

    def append(self, key: str, target: Target, meta: str | None, *more: Any, row: int = -1) -> None:
        """Add a row that was checked elsewhere; `row` is that of the further values."""
        self._rows.append((key, target, meta, *more) if self._schema.has_meta else (key, target, *more))
        if self.value_names:
            self._numbers.append(row)

    def take(self) -> dict[str, pa.Array]:
        """The columns of the rows that were added since the last call, by name."""
        rows, self._rows = self._rows, []
        columns = zip(*rows, strict=True) if rows else [()] * len(self.kinds)
        kinds = self.kinds.items()
        return {name: column(values, kind) for (name, kind), values in zip(kinds, columns, strict=True)}

    def take_values(self) -> dict[str, pa.Array]:
        """The columns of their further values likewise."""
        numbers, self._numbers = self._numbers, array("q")
        return values_of(self._schema, np.array(numbers, np.int64))


def write_table(batch: pa.RecordBatch, append: Callable[[list[Buffer]], object]) -> None:
    """Write an Arrow file of one record batch, so that each column is one run of memory; without a copy."""
    sink = ArrowSink(append)
    with pa.PythonFile(sink, mode="w") as stream, pa.ipc.new_file(stream, batch.schema) as writer:
        writer.write_batch(batch)
    sink.flush()


def read_table(source: Any, numbers: Container[str]) -> tuple[dict[str, pa.Array], dict[bytes, bytes]]:
    """The columns of an Arrow file from `write_table`, fully validated: native code follows their offsets.

    Args:
        source: The file, or its bytes; not copied.
        numbers: Names of integer columns in addition to the label.

    Returns:
        Columns by name, and the metadata of the file.

    Raises:
        ValueError: It is another file.
        KeyError: It has no keys, or neither labels nor captions.
        pa.ArrowException: It is damaged.
    """
    reader = pa.ipc.open_file(source)
    if reader.num_record_batches != 1:
        raise ValueError(f"{reader.num_record_batches} record batches instead of one")
    batch = reader.get_batch(0)
    batch.validate(full=True)
    found = dict(zip(batch.schema.names, batch.columns, strict=True))
    kinds = {"key": pa.string(), META: pa.string(), **TARGET_TYPES}
    for name, values in found.items():
        kind = pa.int64() if name in numbers else kinds.get(name, values.type)
        if values.type != kind or (values.null_count and (name in numbers or name in kinds) and name != META):
            raise ValueError(f"column {name} has type {values.type} and {values.null_count} nulls")
    if "key" not in found or not found.keys() & {*TARGETS}:
        raise KeyError("key, label or captions")
    return found, batch.schema.metadata or {}


def values_of(schema: Schema, rows: npt.NDArray[np.int64]) -> dict[str, pa.Array]:
    """The columns of the further values of these rows, by name."""
    table = schema.values
    if table is None or not table.column_names:
        return {}
    in_order = len(rows) == len(table) and bool((rows == np.arange(len(rows))).all())
    taken = table if in_order else table.take(from_numpy(rows))
    return {name: one_chunk(taken.column(name)) for name in table.column_names}


class SampleColumns(Rows):
    """The columns of a whole file while they grow; arguments as for `Rows`."""

    def __init__(self, out: Path, schema: Schema, **more: Any) -> None:
        super().__init__(out, schema, **more)
        self._grown: dict[str, Any] = {}
        for name, kind in self.kinds.items():
            whole = pa.types.is_integer(kind)
            self._grown[name] = GrowingNumbers(kind) if whole else GrowingStrings() if name == "key" else []

    def append(self, key: str, target: Target, meta: str | None, *more: Any, row: int = -1) -> None:
        """Add a row that was checked elsewhere."""
        super().append(key, target, meta, *more, row=row)
        if len(self._rows) == _ROWS_AT_ONCE:
            self._grow()

    def _grow(self) -> None:
        if not self._rows:
            return
        for name, values in self.take().items():
            grown = self._grown[name]
            if name == "key":
                grown.extend(values)
            elif isinstance(grown, GrowingNumbers):
                grown.add(values)
            else:
                grown.append(values)

    def finish(self, name: str) -> pa.Array:
        """A column as one array; it is not kept, so its memory is freed with the array.

        Raises:
            FormatError: It holds more than 2 GB of text.
        """
        self._grow()
        grown = self._grown.pop(name)
        if not isinstance(grown, list):
            return grown.finish()
        try:
            return pa.concat_arrays([column([], self.kinds[name]), *grown])
        except pa.ArrowInvalid as error:
            raise FormatError(
                f"the column {name} of {self._out} holds more than 2 GB of text",
                expected="less in one file",
                next_step="Pack into .arrow, or into .tars with a smaller max_bytes",
            ) from error


def refuse_fields(out: Path, schema: Schema, layout: str) -> None:
    """Refuse further fields where the format has no place for them.

    Args:
        out: The output.
        schema: What is packed.
        layout: Name of the format or layout.

    Raises:
        FormatError: There are some.
    """
    if names := schema.fields:
        raise FormatError(
            f"{out} would hold the {'field' if len(names) == 1 else 'fields'} "
            f"{first_few(names, len(names))} in {layout}",
            expected=f"one file and its label or captions per sample, which is all that {layout} has",
            next_step="Pack into .arrow, .h5 (blob layout), .tars, .sqfs or .files, which have any field",
        )


def key_of(sample: Sample, out: Path) -> str:
    """The key of a sample, if it is valid.

    Raises:
        FormatError: It is absolute, leaves its folder, or is no name.
    """
    problem = key_problem(sample.key)
    if problem is not None:
        raise FormatError(
            f"the key {sample.key!r} for {out} {problem}",
            expected="a relative, normalised POSIX path",
            next_step="Rename this sample in the manifest",
        )
    return sample.key


def unwritable(key: str, out: Path, problem: str) -> FormatError:
    """The error for a key that cannot be the name of a file in `out`.

    Args:
        key: The key.
        out: The output.
        problem: What is wrong with it; continues the sentence.
    """
    return FormatError(
        f"the key {key if len(key) < 200 else key[:200] + '…'!r} for {out} {problem}",
        expected="a name that a file can have there",
        next_step="Pack into .arrow, .h5 or .tars, where any name is possible, or rename the sample",
    )


def check_file_name(key: str, out: Path, reserved: Container[str]) -> None:
    """Refuse a key that cannot be the name of a file.

    Args:
        key: A valid key.
        out: The output, for messages.
        reserved: Names that the output itself uses.

    Raises:
        FormatError: A part of it is too long, or reserved.
    """
    if not is_writable_name(key):
        raise unwritable(key, out, f"has a part of more than {MAX_COMPONENT_BYTES} bytes")
    if key.partition("/")[0] in reserved:
        raise unwritable(key, out, "begins with a name that is reserved")


def further_name(key: str, name: str, suffix: str) -> str:
    """Where a further file of a sample is in a tree of files: beside the first one.

    Example:
        >>> further_name("images/001.jpg", "mask", ".png")
        'images/001.mask.png'

    Args:
        key: Of the sample.
        name: Of the field.
        suffix: Of its files, with its dot.
    """
    stem = re.sub(_STEM, r"\1", key)
    return f"{stem}.{name}{suffix}"


def file_names(sample: Sample, schema: Schema, out: Path, reserved: Container[str]) -> list[str]:
    """The name of each file of a sample in a tree of files, checked; see `check_file_name`."""
    names = [sample.key, *(further_name(sample.key, blob.name, blob.suffix) for blob in schema.blobs)]
    for name in names:
        check_file_name(name, out, reserved)
    return names


def further_names(keys: pa.StringArray, name: str, suffix: str) -> pa.StringArray:
    """The same for all samples at once."""
    stems = pc.replace_substring_regex(keys, pattern=_STEM, replacement=r"\1")
    return pc.binary_join_element_wise(stems, scalar(f"{name}{suffix}"), scalar("."))


def label_of(sample: Sample, out: Path, allowed: range = INT64) -> int:
    """The label, if it fits.

    Raises:
        FormatError: Not an integer, or outside `allowed`.
    """
    try:
        label = int(operator.index(sample.target))  # type: ignore[arg-type]  # the check
    except TypeError:
        raise _unfit(sample, out, "an integer label, as the schema says") from None
    if label not in allowed:
        raise _unfit(sample, out, f"a label from {allowed.start} to {allowed.stop - 1} in this layout")
    return label


def captions_of(sample: Sample, out: Path) -> list[str]:
    """The captions, if they are valid.

    Raises:
        FormatError: Not a list of valid Unicode strings.
    """
    captions = sample.target
    if not isinstance(captions, list) or not all(isinstance(text, str) for text in captions):
        raise _unfit(sample, out, "a list of captions, as the schema says")
    try:
        for text in captions:
            text.encode()
    except UnicodeEncodeError:
        raise _unfit(sample, out, "captions of valid Unicode") from None
    return captions


def meta_text(sample: Sample, out: Path, schema: Schema, *, canonical: bool = True) -> str | None:
    """The JSON object as compact text.

    Args:
        sample: Whose object.
        out: The output, for messages.
        schema: Whether there may be one.
        canonical: Sort the keys and write ASCII, so that equal objects give equal text.

    Raises:
        FormatError: No JSON object, or one that the schema does not announce.
    """
    if sample.meta is None:
        return None
    problem = ""
    if schema.has_meta and isinstance(sample.meta, dict):
        try:
            text = json_text(sample.meta, canonical=canonical)
            text.encode()
        except (TypeError, ValueError, RecursionError) as error:
            problem = f" ({error})"
        else:
            return text
    raise FormatError(
        f"the JSON object of {sample.key!r} cannot be stored in {out}{problem}",
        expected="a JSON object" if schema.has_meta else "none, since the schema has has_meta=False",
        next_step="Correct it, or set has_meta in the schema",
    )


def json_text(value: Any, *, canonical: bool = True) -> str:
    """Compact JSON; `canonical` as in `meta_text`."""
    return json.dumps(value, sort_keys=canonical, ensure_ascii=canonical, separators=(",", ":"))


def _unfit(sample: Sample, out: Path, expected: str) -> FormatError:
    shown = repr(sample.target)
    return FormatError(
        f"the target of {sample.key!r} for {out} is {shown if len(shown) < 80 else shown[:77] + '...'}",
        expected=expected,
        next_step="Correct the manifest, or choose a format or layout that can hold it",
    )
