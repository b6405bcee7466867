"""Write a packed file while it grows, and collect the columns of its samples.

Every format keeps the small columns (keys, values, positions) together, so that a million keys and labels are
read at once, and a label is found without its image.

The traps: `os.write` may write less than it was given (2 GiB at most, or what fits), and a full disk is
noticed only in its return value. A million rows of Python objects take a gigabyte while a file is written, so
they become columns a few thousand rows at a time. And a label that silently wraps (70,000 in 16 bits is
4,464) trains without any error, so labels are checked before they enter a file, and refused with the key of
their sample. Notebook 03 teaches why one long write beats many.
"""

from __future__ import annotations

import json
import os
import re
from array import array
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles import digests
from smallfiles.arrays import GrowingNumbers, GrowingStrings, column, from_numpy, one_chunk, scalar, to_numpy
from smallfiles.digests import BlockHasher
from smallfiles.errors import FormatError, cannot_write, first_few, is_utf8, writing
from smallfiles.fields import META
from smallfiles.folders import MAX_COMPONENT_BYTES, is_writable_name, key_problem
from smallfiles.samples import OWN_TYPES, Buffer, Meta, Packed, Sample, Schema
from smallfiles.storage import answered

_HELD_BYTES = 1 << 20
_WRITTEN_AT_ONCE, _SMALL_BYTES = 4 << 20, 4 << 10
_PIECES_AT_ONCE = 512  # the kernel takes 1,024 (IOV_MAX)


class OutputFile:
    """A file to which data is appended and hashed in a separate thread, while further samples are read.

    Data that is appended must not change afterwards, because it may be written later. At most two pieces of
    work are kept.

    Args:
        path: A path that does not exist, or an existing file if `start` is given.
        digest: Whether to compute the content digest.
        start: Where the first byte goes in an existing file.
    """

    def __init__(self, path: Path, *, digest: bool, start: int | None = None) -> None:
        self.path = path
        self.position = self._handed = start or 0
        self._hasher = BlockHasher(self.position) if digest else None
        self._held: list[Buffer] = []
        self._pool = ThreadPoolExecutor(1, "pack-write")  # starts with the first piece of work
        self._writing: Future[None] | None = None
        self._rewritten = 0
        flags = os.O_WRONLY | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if start is None else 0)
        self._descriptor = -1
        with writing(path):
            self._descriptor = os.open(path, flags, 0o666)

    def append(self, pieces: Sequence[Buffer]) -> None:
        """Append pieces in order, with as few calls as possible.

        They are written in `finish` at the latest.
        """
        self._held += pieces
        self.position += sum(map(len, pieces))
        if self.position - self._handed >= _WRITTEN_AT_ONCE or len(self._held) >= _PIECES_AT_ONCE:
            self._wait()
            self._writing = self._pool.submit(self._write, *self._take())

    def _take(self) -> tuple[list[Buffer], int]:
        """Return the pieces that are held and the position at which they belong. Then hold nothing."""
        taken = self._held, self._handed
        self._held, self._handed = [], self.position
        return taken

    def _wait(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _write(self, pieces: list[Buffer], position: int) -> None:
        if sum(map(len, pieces)) < len(pieces) * _SMALL_BYTES:
            pieces = [b"".join(pieces)]  # quicker than to write and hash each
        for start in range(0, len(pieces), _PIECES_AT_ONCE):
            some = pieces[start : start + _PIECES_AT_ONCE]
            position = write_all(self._descriptor, some, position, self.path)
            if self._hasher is not None:
                for piece in some:
                    self._hasher.update(piece)

    def rewrite(self, data: Buffer) -> None:
        """Overwrite the first bytes of the file, for a header whose contents are known only at the end."""
        self.flush()
        write_all(self._descriptor, [data], 0, self.path)
        self._rewritten = len(data)

    def flush(self) -> None:
        """Wait until everything that was appended is written."""
        self._wait()
        self._write(*self._take())

    def close(self) -> None:
        """Close the file. More calls do nothing.

        Some network file systems report only here that a quota is exceeded.
        """
        self._pool.shutdown()  # closed without `finish`, what is still held is not needed
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with writing(self.path):
                os.close(descriptor)

    def finish(self) -> tuple[Path, ...]:
        """Write the rest, close the file, and write its digest beside it.

        Return the paths of all written files.
        """
        self.flush()
        self.close()
        return save_digest(self.path, self._hasher, self._rewritten)

    def __enter__(self) -> OutputFile:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def save_digest(path: Path, hasher: BlockHasher | None, rewritten: int = 0) -> tuple[Path, ...]:
    """Complete the digest of a finished file and save it beside the file. Return the paths of both.

    Without a hasher, write no digest and return only the path of the file.
    """
    if hasher is None:
        return (path,)
    sidecar = digests.sidecar(path)
    with writing(path):
        hasher.finish(path, rewritten).save(sidecar)
    return (path, sidecar)


def add_digest(path: Path) -> tuple[Path, ...]:
    """Read a file that a library wrote, and save its digest beside it. Return the paths of both."""
    sidecar = digests.sidecar(path)
    with writing(sidecar):
        digests.digest_file(path).save(sidecar)
    return (path, sidecar)


def packed(out: Path, format: str, samples: int, payload_bytes: int, files: Sequence[Path]) -> Packed:
    """Return the report of a writer."""
    file_bytes = sum(file.stat().st_size for file in files)
    return Packed(out, format, samples, payload_bytes, file_bytes, tuple(files))


def write_all(descriptor: int, pieces: Sequence[Buffer], position: int, path: Path) -> int:
    """Write all pieces at `position` of `path`, with as many calls as it takes. Return where they end.

    Data that is written by position may be written again, so this waits for storage that does not answer.
    """
    rest = [memoryview(piece).cast("B") for piece in pieces if len(piece)]
    try:
        while rest:
            written = answered(path, os.pwritev, descriptor, rest, position)
            position += written
            while rest and written >= len(rest[0]):
                written -= len(rest.pop(0))
            if written:
                rest[0] = rest[0][written:]
    except OSError as error:
        raise cannot_write(path, error) from error
    return position


class ArrowSink:
    """A file object to which pyarrow writes. Small pieces are held back, so that each batch takes one call.

    pyarrow hands over the columns without a copy. Code that reuses their memory must call `flush` before.

    Args:
        append: Is called with the pieces, in order.
    """

    closed = False

    def __init__(self, append: Callable[[list[Buffer]], object]) -> None:
        self._append = append
        self._held: list[Buffer] = []
        self._held_bytes = self._bytes = 0
        self._stand_ins: dict[int, list[Buffer]] = {}
        self.starts: dict[int, int] = {}
        """Where each column that replaced a stand-in begins, by the memory address of the stand-in."""

    def redirect(self, append: Callable[[list[Buffer]], object]) -> None:
        """Send everything that is written from now on to `append`."""
        self.flush()
        self._append = append

    def instead(self, stand_in: pa.Buffer, pieces: list[Buffer]) -> None:
        """Write `pieces` where pyarrow hands over `stand_in`, a buffer of the same size that is never filled.

        So samples that lie in many places become one column without being copied to one place.
        """
        if stand_in.size:  # an empty one is not handed over
            self._stand_ins[stand_in.address] = pieces

    def write(self, data: Any) -> int:
        size = len(data)
        if size and isinstance(data, pa.Buffer) and data.address in self._stand_ins:
            self._held += self._stand_ins.pop(data.address)
            self.starts[data.address] = self._bytes
        else:
            self._held.append(memoryview(data).cast("B"))
        self._held_bytes += size
        self._bytes += size
        if self._held_bytes > _HELD_BYTES:
            self.flush()
        return size

    def tell(self) -> int:
        return self._bytes

    def flush(self) -> None:
        held, self._held, self._held_bytes = self._held, [], 0
        self._append(held)

    def close(self) -> None:
        self.closed = True

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False


INT64 = range(-(2**63), 2**63)
_ROWS_AT_ONCE = 4096
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
_PLAIN = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_STEM = r"^(.*[^/])\.[^./]*$"


class SampleColumns:
    """The columns of a packed file while samples are added to it.

    Args:
        out: The file, for messages.
        schema: What is packed, with the columns of all values.
        labels: The labels that the layout can hold.
        more: Additional columns of numbers or texts, after the keys: their types by name.

    Raises:
        FormatError: The label, captions, or meta column has a wrong type or missing values, or the layout
            cannot hold a label.
    """

    def __init__(
        self,
        out: Path,
        schema: Schema,
        *,
        labels: range = INT64,
        more: Mapping[str, pa.DataType] | None = None,
    ) -> None:
        self._out = out
        self.kinds: dict[str, pa.DataType] = {"key": pa.string(), **(more or {})}
        self._values = {name: one_chunk(schema.values[name]) for name in schema.values.column_names}
        self._rows: list[tuple[Any, ...]] = []
        self._numbers = array("q")
        self._grown = {
            name: GrowingStrings() if pa.types.is_string(kind) else GrowingNumbers(kind)
            for name, kind in self.kinds.items()
        }
        for name, kind in OWN_TYPES.items():
            found = self._values.get(name, column([], kind))
            if found.type != kind or (found.null_count and name != META):
                raise FormatError(
                    f"the column {name} for {out} has the type {found.type} and {found.null_count} missing",
                    expected=f"{kind}, for each sample" if name != META else f"{kind}, of a JSON object each",
                    next_step="Convert the column of the schema",
                )
        found = to_numpy(self._values.get("label", column([], pa.int64())))
        if len(found) and not (labels.start <= found.min() and found.max() < labels.stop):
            raise FormatError(
                f"the labels for {out} reach from {found.min()} to {found.max()}",
                expected=f"labels from {labels.start} to {labels.stop - 1} in this layout",
                next_step="Correct the manifest, or choose a format or layout that can hold them",
            )

    def add(self, sample: Sample, *more: Any) -> None:
        """Add everything except the bytes of a sample.

        Args:
            sample: The sample that is packed next.
            *more: Its values in the additional columns.

        Raises:
            FormatError: The key of the sample is not valid.
        """
        self.append(key_of(sample, self._out), sample.row, *more)

    def append(self, key: str, row: int, *more: Any) -> None:
        """Add a sample whose key has already been checked."""
        self._rows.append((key, *more))
        self._numbers.append(row)
        if len(self._rows) == _ROWS_AT_ONCE:
            self._grow()

    def _grow(self) -> None:
        rows, self._rows = self._rows, []
        columns = zip(*rows, strict=True) if rows else [()] * len(self.kinds)
        kinds = self.kinds.items()
        self.extend({name: column(own, kind) for (name, kind), own in zip(kinds, columns, strict=True)}, ())

    def extend(self, columns: Mapping[str, pa.Array], rows: Iterable[int]) -> None:
        """Add columns of samples that were already checked, and their row numbers in the schema's values."""
        for name, values in columns.items():
            self._grown[name].extend(values)
        self._numbers.extend(rows)

    def finish(self) -> tuple[dict[str, pa.Array], dict[str, pa.Array]]:
        """Return two dictionaries of columns by name: the keys with the additional columns, and the values.

        Raises:
            FormatError: A sample refers to a row of values that does not exist.
            ManifestError: A column holds more than 2 GB of text.
        """
        self._grow()
        found = {name: self._grown.pop(name).finish() for name in self.kinds}
        return found, self.values_of(self._numbers)

    def values_of(self, numbers: array[int]) -> dict[str, pa.Array]:
        """Return the columns of values, restricted to these rows. JSON objects are in their canonical form.

        Raises:
            FormatError: One of these rows does not exist.
        """
        rows, count = np.array(numbers, np.int64), min(map(len, self._values.values()))
        whole = len(rows) == count and bool((rows == np.arange(count)).all())
        try:
            at = from_numpy(rows)
            found = self._values if whole else {name: each.take(at) for name, each in self._values.items()}
        except IndexError as error:
            raise no_row(self._out, int(rows.min()), int(rows.max()), count) from error
        return {**found, META: _canonical(found[META], self._out)} if META in found else {**found}


def _canonical(texts: pa.StringArray, out: Path) -> pa.StringArray:
    """Rewrite JSON objects in their canonical form, so that equal objects have equal texts."""
    parts = [column([], pa.string())]
    for start in range(0, len(texts), _ROWS_AT_ONCE):
        some = texts.slice(start, _ROWS_AT_ONCE).to_pylist()
        each = [None if text is None else json_text(object_of(text, out)) for text in some]
        parts.append(column(each, pa.string()))
    return pa.concat_arrays(parts)


def no_row(out: Path, first: int, last: int, count: int) -> FormatError:
    """Return the error for samples whose rows of values do not exist."""
    return FormatError(
        f"the samples for {out} have rows from {first} to {last}, of {count:,}",
        expected="for each sample its row in the columns of the schema",
        next_step="Number the samples from 0 on",
    )


def object_of(text: str, out: Path) -> Meta:
    """Parse a text as a JSON object.

    Args:
        text: The text of the object.
        out: The output, for messages.

    Raises:
        FormatError: The text is not a JSON object.
    """
    try:
        found = json.loads(text)
        if isinstance(found, dict):
            return found
    except (ValueError, RecursionError):
        pass
    raise FormatError(
        f"a JSON object for {out} is {text[:80]!r}",
        expected="the text of an object in the column meta",
        next_step="Write it with json.dumps",
    )


def write_table(batch: pa.RecordBatch, append: Callable[[list[Buffer]], object]) -> None:
    """Write an Arrow file of one record batch without copying it.

    With a single record batch, each column is one contiguous run of memory.

    Args:
        batch: The record batch.
        append: Is called with the pieces of the file, in order.
    """
    sink = ArrowSink(append)
    with pa.PythonFile(sink, mode="w") as stream, pa.ipc.new_file(stream, batch.schema) as writer:
        writer.write_batch(batch)
    sink.flush()


def refuse_fields(out: Path, schema: Schema, layout: str) -> None:
    """Refuse a set with additional fields, for a format that cannot store them.

    Args:
        out: The output.
        schema: What is packed.
        layout: Name of the format or layout.

    Raises:
        FormatError: The set has additional fields.
    """
    if names := schema.fields:
        raise FormatError(
            f"{out} would hold the {'field' if len(names) == 1 else 'fields'} "
            f"{first_few(names, len(names))} in {layout}",
            expected=f"one file and its label or captions per sample, which is all that {layout} has",
            next_step="Pack into .arrow, .h5 (blob layout), .tars, .sqfs or .files, which have any field",
        )


def key_of(sample: Sample, out: Path) -> str:
    """Return the key of a sample if it is valid.

    Raises:
        FormatError: The key is absolute, leaves its folder, or is not a valid name.
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
    """Return the error for a key that cannot be the name of a file in `out`.

    Args:
        key: The key.
        out: The output.
        problem: What is wrong with the key. It continues the sentence.
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
        FormatError: A component of the key is too long, or its first component is reserved.
    """
    if not is_writable_name(key):
        raise unwritable(key, out, f"has a part of more than {MAX_COMPONENT_BYTES} bytes")
    if key.partition("/")[0] in reserved:
        raise unwritable(key, out, "begins with a name that is reserved")


def path_in_tree(key: str, field: str, suffix: str) -> str:
    """Return the path of a file of a sample in a tree of files: the key, or a name derived from the key.

    Example:
        >>> path_in_tree("images/001.jpg", "mask", ".png"), path_in_tree("images/001.jpg", "", "")
        ('images/001.mask.png', 'images/001.jpg')

    Args:
        key: Key of the sample.
        field: Name of the field. It is empty for the default field.
        suffix: Suffix of the field's files, with its dot.
    """
    return "{}.{}{}".format(re.sub(_STEM, r"\1", key), field, suffix) if field else key


def file_names(sample: Sample, schema: Schema, out: Path, reserved: Container[str]) -> list[str]:
    """Return the name of each file of a sample in a tree of files. See `check_file_name` for the check."""
    names = [path_in_tree(sample.key, blob.name, blob.suffix) for blob in schema.all_blobs]
    for name in names:
        check_file_name(name, out, reserved)
    return names


def paths_in_tree(keys: pa.StringArray, field: str, suffix: str) -> pa.StringArray:
    """Return the paths of the files of one field in a tree of files, for all samples. See `path_in_tree`."""
    if not field:
        return keys
    stems = pc.replace_substring_regex(keys, pattern=_STEM, replacement=r"\1")
    return pc.binary_join_element_wise(stems, scalar(f"{field}{suffix}"), scalar("."))


def json_text(value: Any, *, canonical: bool = True) -> str:
    """Return a value as compact JSON.

    With `canonical`, keys are sorted and the text is ASCII, so that equal objects give equal text.
    """
    text = (_CANONICAL if canonical else _PLAIN)(value)
    return text if is_utf8(text) else _CANONICAL(value)  # what is no Unicode stays escaped
