"""The further fields of the samples in a tar: more members that share the stem, and values in the `.json`.

    000017.jpg   000017.mask.png (the field mask)   000017.json ({"age":31.5,"boxes":[[1.0,2.0,3.0,4.0]]})

Our shards name the types of all fields in the record at their start, so that a shard without its index still
gives them. Where there are values, the `.json` holds one object: the values by name, `captions` unless these
are in a `.txt`, and `meta` if the sample has a JSON object. JSON has no NaN: it is the text "nan".

The trap: a member that only some samples have is no field, since a batch needs one of each. Notebook 13.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.arrays import as_mask, column, one_chunk
from smallfiles.errors import DamagedFileError, FormatError, ManifestError
from smallfiles.fields import META, finite, typed_column
from smallfiles.fields import RESERVED as USED
from smallfiles.formats import provenance
from smallfiles.formats.bytefile import damaged
from smallfiles.formats.columns import json_text, no_row, object_of
from smallfiles.formats.tar.archive import Archive
from smallfiles.formats.tar.headers import RESERVED
from smallfiles.samples import UNLABELLED, BlobField, Meta, Schema

Rows = npt.NDArray[np.int64]
_ROWS_AT_ONCE = 1024


class Further(NamedTuple):
    """A field of further files: their suffix, and one member for each sample."""

    suffix: str
    data: Archive


def check_names(blobs: Sequence[BlobField], out: object) -> None:
    """Refuse fields whose names differ only in case: webdataset reads all suffixes in lower case.

    Raises:
        FormatError: There are such fields.
    """
    if len({blob.name.lower() for blob in blobs}) < len(blobs):
        raise FormatError(
            f"the fields {', '.join(blob.name for blob in blobs)} for {out} differ only in case",
            expected="names that are different in lower case, which is how programs read them in a tar",
            next_step="Rename one of them",
        )


def member_suffix(blob: BlobField, first: str) -> str:
    """Return what follows the stem of a file: `mask.png`; or only `png`, if that is the field's name.

    Args:
        blob: The field of the file.
        first: Suffix of the default field's file, without its dot.
    """
    bare = blob.suffix[1:]
    is_free = blob.name == bare and bare not in RESERVED and bare != first.lower()
    return first if not blob.name else bare if is_free else blob.name + blob.suffix


class Texts:
    """The texts of the small members of samples, from the columns of their values.

    Args:
        out: The shard, for messages.
        schema: What is packed; it has the values.

    Raises:
        FormatError: A caption of several lines belongs into a `.txt`.
    """

    def __init__(self, out: Path, schema: Schema) -> None:
        self._out = out
        self._columns = {name: one_chunk(schema.values[name]) for name in schema.values.column_names}
        self._count = len(schema.values)
        self._says_unlabelled, self._in_lines = not schema.fields, "txt" in schema.member_suffixes
        free = "captions" not in self._columns or self._in_lines
        self._object_suffix = "json" if "json" in schema.member_suffixes and free else META
        self._start, self._made = 0, list[tuple[dict[str, str], str | None]]()
        captions = self._columns.get("captions")
        if self._in_lines and captions is not None:
            _refuse_line_feeds(captions.flatten(), out)

    def of(self, row: int) -> tuple[dict[str, str], str | None]:
        """The texts by suffix, and that of the JSON object if there is one.

        Many rows are converted at once where they come in order, which costs a fraction.

        Raises:
            FormatError: There is no such row, or no such JSON object.
        """
        place = row - self._start
        if not 0 <= place < len(self._made):
            stop = row + (_ROWS_AT_ONCE if place == len(self._made) else 1)
            self._start, place, self._made = row, 0, self._texts(row, stop)
        if not self._made:
            raise no_row(self._out, row, row, self._count)
        return self._made[place]

    def _texts(self, start: int, stop: int) -> list[tuple[dict[str, str], str | None]]:
        columns = {name: column[start:stop].to_pylist() for name, column in self._columns.items()}
        made = [dict[str, str]() for _ in range(start, min(stop, self._count))]
        for members, label in zip(made, columns.pop("label", ()), strict=False):
            if label != UNLABELLED or self._says_unlabelled:
                members["cls"] = str(label)
        if self._in_lines:
            for members, captions in zip(made, columns.pop("captions", ()), strict=False):
                members["txt"] = "".join(f"{caption}\n" for caption in captions)
        metas = [
            None if text is None else object_of(text, self._out)
            for text in columns.pop(META, [None] * len(made))
        ]
        texts = [None if one is None else json_text(one, canonical=False) for one in metas]
        if columns.keys() - {"captions"}:
            rows = zip(*columns.values(), strict=True)
            for members, row, meta in zip(made, rows, metas, strict=True):
                one = dict(zip(columns, map(finite, row), strict=True))
                members["json"] = json_text(one if meta is None else one | {META: meta}, canonical=False)
            return [*zip(made, texts, strict=True)]
        for members, captions in zip(made, columns.get("captions", ()), strict=False):
            members["json"] = json_text(captions, canonical=False)
        for members, text in zip(made, texts, strict=True):
            if text is not None:
                members[self._object_suffix] = text
        return [*zip(made, texts, strict=True)]


def _refuse_line_feeds(captions: pa.StringArray, out: Path) -> None:
    found = pc.match_substring(captions, "\n")
    if pc.any(found).as_py():
        raise FormatError(
            f"a caption for {out} has a line feed: {captions[pc.index(found, True).as_py()].as_py()[:80]!r}",
            expected="one line per caption, as in the .txt of its source",
            next_step="Correct the manifest",
        )


def value_kinds(record: Mapping[str, Any]) -> dict[str, str]:
    """Name and type of each column of values that the record of a shard names."""
    found = record.get("fields")
    fields = found if isinstance(found, dict) else {}
    return {name: str(kind) for name, kind in fields.items() if not str(kind).startswith(".")}


def blobs_of(archive: Archive, suffix: pa.StringArray, group: Rows, rows: Rows) -> dict[str, Further]:
    """The further files in a shard of this package, as its record names them.

    Args:
        archive: The shard.
        suffix: What follows the first dot of each member, in lower case.
        group: The number of the stem of each.
        rows: Those of the samples' first files.

    Raises:
        DamagedFileError: A sample lacks one.
    """
    found = {}
    for name, ending in provenance.blob_suffixes(archive.record).items():
        known = [f"{name.lower()}{ending}", *([ending[1:]] if name == ending[1:] else [])]
        members = np.setdiff1d(
            np.flatnonzero(as_mask(pc.is_in(suffix, column(known, pa.string())))), rows, assume_unique=True
        )
        own = of_same_stem(members, group, rows)
        if (own < 0).any():
            raise _lacks(archive, rows[int(np.argmin(own))], known[0])
        found[name] = Further(ending, archive.take(own))
    return dict(sorted(found.items(), key=lambda field: field[1].data.offsets[:1].tolist()))  # as stored


def of_same_stem(members: Rows, group: Rows, rows: Rows) -> Rows:
    """Which of these members has the stem of each row, -1 where none has; `group` numbers the stems."""
    found = np.full(group.max(initial=-1) + 1, -1)
    found[group[members]] = members
    return found[group[rows]]


def objects_of(archive: Archive, members: Rows, group: Rows, rows: Rows) -> tuple[list[Meta], pa.Table]:
    """The objects in the `.json` of each sample of a shard of this package, and their values as columns.

    Args:
        archive: The shard.
        members: Rows of all `.json`.
        group: The number of the stem of each member.
        rows: Those of the samples' first files.

    Raises:
        DamagedFileError: A sample lacks its values, or they have other types than the record says.
    """
    kinds = value_kinds(archive.record)
    objects: list[Meta] = []
    for row, own in zip(rows.tolist(), of_same_stem(members, group, rows).tolist(), strict=True):
        if own < 0:
            raise _lacks(archive, row, "json")
        objects.append(_object(archive, own, kinds))
    try:
        columns = {name: typed_column(name, kinds[name], [one[name] for one in objects]) for name in kinds}
    except ManifestError as error:
        raise damaged(archive.path, error.got, error.expected) from error
    return objects, pa.table(columns)


def _object(archive: Archive, row: int, kinds: Mapping[str, str]) -> Meta:
    try:
        found: Meta = json.loads(archive.contents[row])
    except (KeyError, ValueError, RecursionError):
        found = {}
    lacking = [name for name in kinds if not isinstance(found, dict) or name not in found]
    meta, captions = ({}, []) if lacking else (found.get("meta", {}), found.get("captions", []))
    if lacking or not isinstance(meta, dict) or not _are_texts(captions):
        raise damaged(
            archive.path,
            f"{archive.names[row].as_py()} holds {archive.contents.get(row, b'')[:40]!r}",
            f"a JSON object with the values {', '.join(kinds)}",
        )
    return found


def _are_texts(captions: object) -> bool:
    return isinstance(captions, list) and all(isinstance(text, str) for text in captions)


def _lacks(archive: Archive, row: int, suffix: str) -> DamagedFileError:
    return damaged(
        archive.path,
        f"the sample {archive.names[row].as_py()} has no member .{suffix}",
        "the fields that its record names, for each sample",
    )


def named(suffixes: Sequence[str]) -> dict[str, str]:
    """The name of the field of each kind of further member: `mask` for `mask.png`, `png` for `png`.

    Args:
        suffixes: What follows the first dot of their names, in lower case.
    """
    short = [suffix.rpartition(".")[0].replace(".", "_") or suffix for suffix in suffixes]
    return {
        name if short.count(name) == 1 and name not in USED else suffix.replace(".", "_"): suffix
        for name, suffix in zip(short, suffixes, strict=True)
    }
