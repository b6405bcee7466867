"""What the members of a tar say of its samples: one rule for shards and for tars as sources.

    000017.jpg  000017.cls (a number)  000017.txt (captions)  000017.json (either, or an object)

Members that share a stem, wherever they lie, are one sample; the stem ends at the *first* dot of the
name. `.cls` and bare numbers are labels, texts are captions, an object may hold either, and what no
file tells stays unknown and is said to be.

The trap: there is no standard. tarp and ShardWriter keep the order they are given, `tar --sort=name`
puts `.cls` before `.jpg`, and whether a set has labels or captions is known only when all of it was
seen. Notebook 05 teaches the layout.

Source: webdataset's README, "The WebDataset Format".
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.errors import FormatError, first_few
from smallfiles.formats import provenance
from smallfiles.formats.tar import names
from smallfiles.formats.tar.archive import Archive
from smallfiles.manifest.arrays import as_mask, column, from_numpy, to_numpy
from smallfiles.progress import plural
from smallfiles.samples import UNLABELLED, Target, TargetKind

_IMAGES = "jpg jpeg png webp ppm pgm bmp tif tiff gif jp2 avif jxl"
DATA_SUFFIXES = tuple(f".{name}" for name in _IMAGES.split())
"""Which files are samples, unless a user says it; where a tar has none of them, any other file."""
SIDES = ("cls", "json", "txt", "meta")
_SIDE_SUFFIXES = tuple(f".{name}" for name in SIDES)
_NO_DATA = (*SIDES, "idx", "id", "caption", "label", "text")
_NO_SAMPLE = 9
_LABEL_KEYS = ("label", "cls", "class", "target")
_CAPTION_KEYS = ("captions", "caption", "txt", "text")
_DECIMAL = re.compile(r"\s*([+-]?[0-9]{1,20})\s*", re.ASCII)
_BOXES = re.compile(r"(\d+( -?[0-9.]+(e-?\d+)?){4,} *\r?(\n|\Z))+", re.ASCII | re.IGNORECASE)
_AGAIN = "Check how the tar was made, and make it again"
_NO_BOXES = "Take the images alone (--unlabelled), or make a manifest with their targets"
_INT64 = range(-(1 << 63), 1 << 63)
_SPLIT = r"(?s)^(?P<stem>(?:.*/)?[^/.]*)\.?(?P<suffix>[^/]*)$"

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Annotated:
    """The samples of one archive, and what stands beside them.

    Args:
        data: The samples' own files, under their keys.
        labels: A label each; None where none is given.
        captions: Captions each; None where none are given.
        metas: JSON objects as text; None for none.
        notes: What was left aside.
    """

    data: Archive
    labels: Sequence[int | None]
    captions: Sequence[list[str] | None]
    metas: Sequence[str | None]
    notes: tuple[str, ...]

    @property
    def kinds(self) -> tuple[int, int, int, int]:
        """Samples with a label alone, captions alone, both, and with a file for captions but none in it."""
        pairs = zip(self.labels, self.captions, strict=True)
        found = Counter((label is not None, None if texts is None else bool(texts)) for label, texts in pairs)
        alone = found[True, None] + found[True, False]
        return alone, found[False, True], found[True, True], found[False, False]

    def targets(self, kind: TargetKind) -> list[Target]:
        """The targets, all of one kind: where none is given, `UNLABELLED` or no captions."""
        if kind == "label":
            return [UNLABELLED if label is None else label for label in self.labels]
        return [texts or [] for texts in self.captions]

    def without(self, kind: TargetKind) -> list[str]:
        """Keys of samples for which no target of this kind is given."""
        found: Sequence[object] = self.labels if kind == "label" else self.captions
        missing = np.flatnonzero(np.array([target is None for target in found], bool))
        keys: list[str] = self.data.names.take(from_numpy(missing)).to_pylist()
        return keys


def target_kind(annotated: Sequence[Annotated], where: Path) -> tuple[TargetKind, tuple[str, ...]]:
    """What the targets of a set are, decided when all of it was seen.

    Args:
        annotated: Its archives.
        where: The set, for messages.

    Returns:
        The kind, and what is to be said of it.

    Raises:
        FormatError: Some samples have only labels, others only captions.
    """
    recorded = {found for one in annotated if (found := provenance.target_kind(one.data.record))}
    labels, captions, both, empty = (
        sum(counts) for counts in zip(*(one.kinds for one in annotated), strict=True)
    )
    if len(recorded) > 1 or (labels and captions):
        raise FormatError(
            f"{where} has samples with labels and samples with captions",
            expected="one kind of target in a set",
            next_step="Pack the two kinds into two outputs",
        )
    if recorded:
        return recorded.pop(), ()
    kind: TargetKind = "captions" if captions or (empty and not labels + both) else "label"
    if not both:
        return kind, ()
    other = "captions" if kind == "label" else "labels"
    return kind, (f"{plural(both, 'sample')} with a label and captions: the {other} are left aside",)


def unlabelled(annotated: Sequence[Annotated], kind: TargetKind) -> tuple[str, ...]:
    """What is to be said of samples for which no target is given."""
    without = [key for one in annotated for key in one.without(kind)]
    if not without:
        return ()
    empty = f"label {UNLABELLED}" if kind == "label" else "no captions"
    return (
        f"{plural(len(without), 'sample')} without a target: {empty} ({first_few(without, len(without), 2)})",
    )


def read(archive: Archive, suffixes: tuple[str, ...] = DATA_SUFFIXES) -> Annotated:
    """Find the samples of an archive, and what stands beside them.

    Args:
        archive: Its index, with the bytes of side files.
        suffixes: Which files are samples (lower case with the dot).

    Raises:
        FormatError: A file beside a sample does not say what it should, or it is unclear which
            files are one sample.
    """
    plain = archive.having(suffixes)
    if plain.any() and not archive.is_ours and not archive.having(_SIDE_SUFFIXES).any():
        return _alone(archive.select(plain), int((~plain).sum()))
    split = pc.extract_regex(archive.names, _SPLIT)
    suffix = pc.utf8_lower(split.field("suffix"))
    group = to_numpy(split.field("stem").dictionary_encode().indices).astype(np.int64)
    if archive.is_ours:
        sides = {name: _rows(pc.equal(suffix, name)) for name in SIDES}
        rows = np.sort(np.unique(group, return_index=True)[1])
        data = replace(archive.take(rows), names=_keys_of(archive.take(rows).names))
        return Annotated(data, *_read_sides(archive, group, rows, sides), ())
    rank = _ranks(archive, suffix, suffixes)
    sides = {name: _rows(pc.equal(suffix, name)) for name in SIDES}
    sides = {name: found[rank[found] == _NO_SAMPLE] for name, found in sides.items()}
    shared = np.zeros(group.max(initial=-1) + 1, bool)
    shared[group[_rows(pc.is_in(_last(suffix), column(SIDES, pa.string()))) if len(group) else []]] = True
    candidates = np.flatnonzero(rank != _NO_SAMPLE)
    rows = _one_of_each(archive, candidates, group, rank, shared)
    aside = len(archive.names) - len(rows) - sum(map(len, sides.values()))
    notes = _left_aside(aside)
    if archive.replaced and shared[group[rows]].any():
        raise _unclear(archive, list(archive.replaced), "come more than once", "each name once")
    return Annotated(archive.take(rows), *_read_sides(archive, group, rows, sides), notes)


def _alone(data: Archive, aside: int) -> Annotated:
    """Samples that nothing stands beside, which is seen without taking a million names apart."""
    nothing = [None] * len(data.names)
    return Annotated(data, nothing, nothing, nothing, _left_aside(aside))


def _left_aside(count: int) -> tuple[str, ...]:
    return (f"left aside: {plural(count, 'other file')}",) if count else ()


def _last(suffix: pa.StringArray) -> pa.StringArray:
    return pc.replace_substring_regex(suffix, r"(?s)^.*\.", "")


def _rows(found: pa.Array) -> Rows:
    return np.flatnonzero(as_mask(found))


def _keys_of(stored: pa.StringArray) -> pa.StringArray:
    if not pc.any(pc.match_substring(stored, "%")).as_py():
        return stored
    return column([names.key_of(name) for name in stored.to_pylist()], pa.string())


def _ranks(archive: Archive, suffix: pa.StringArray, suffixes: tuple[str, ...]) -> npt.NDArray[np.int8]:
    """Which files may be samples' own data: `a.jpg` before `a.left.jpg`; others if there is no image."""
    rank = np.full(len(suffix), _NO_SAMPLE, np.int8)
    rank[archive.having(suffixes)] = 1
    rank[as_mask(pc.is_in(suffix, column([text[1:] for text in suffixes], pa.string())))] = 0
    if suffixes is DATA_SUFFIXES and not (rank != _NO_SAMPLE).any():
        rank[~as_mask(pc.is_in(suffix, column(["", *_NO_DATA], pa.string())))] = 0
    return rank


def _one_of_each(
    archive: Archive, candidates: Rows, group: Rows, rank: npt.NDArray[np.int8], shared: npt.NDArray[np.bool_]
) -> Rows:
    """Rows of the samples: one for each stem that has side files, all where there are none."""
    best = np.full(len(shared), _NO_SAMPLE, np.int8)
    np.minimum.at(best, group[candidates], rank[candidates])
    stem = group[candidates]
    rows: Rows = candidates[~shared[stem] | (rank[candidates] == best[stem])]
    crowded = shared & (np.bincount(group[rows], minlength=len(shared)) > 1)
    if crowded.any():
        clash = rows[group[rows] == np.flatnonzero(crowded)[0]]
        found = archive.names.take(from_numpy(clash)).to_pylist()
        raise _unclear(
            archive, found, "share one stem (it ends at the first dot)", "one file for each sample"
        )
    return rows


def _read_sides(
    archive: Archive, group: Rows, rows: Rows, sides: dict[str, Rows]
) -> tuple[list[int | None], list[list[str] | None], list[str | None]]:
    """Label, captions and JSON object of each sample."""
    tables = {}
    for name, found in sides.items():
        if len(np.unique(group[found])) < len(found):
            raise _unclear(archive, [f"*.{name}"], "come twice for one stem", "one side file of each kind")
        if len(found):
            tables[name] = table = np.full(group.max(initial=-1) + 1, -1)
            table[group[found]] = found
    labels: list[int | None] = []
    captions: list[list[str] | None] = []
    metas: list[str | None] = []
    for number in group[rows].tolist():
        beside = _Beside(archive, {name: int(at) for name, t in tables.items() if (at := t[number]) >= 0})
        label, texts, meta = beside.read() if beside.rows else (None, None, None)
        labels.append(label)
        captions.append(texts)
        metas.append(meta)
    return labels, captions, metas


@dataclass(frozen=True, slots=True)
class _Beside:
    """The side files of one sample: their rows by suffix."""

    archive: Archive
    rows: dict[str, int]

    def read(self) -> tuple[int | None, list[str] | None, str | None]:
        """What they tell, the plainer file first: label, captions, JSON object as text."""
        label = self._cls() if "cls" in self.rows else None
        texts, meta = None, None
        if "json" in self.rows:
            number, texts, meta = self._json()
            if label is not None and number is not None and meta is None and number != label:
                raise self._bad("json", f"holds {number}", f"{label}, as the .cls beside it")
            label = number if label is None else label
        if "txt" in self.rows and texts is None:
            texts = self._lines()
        if "meta" in self.rows:
            meta = self._text("meta")
            if not isinstance(self._parsed("meta"), dict):
                raise self._bad("meta", "is no JSON object", "a JSON object")
        return label, texts, meta

    def _json(self) -> tuple[int | None, list[str] | None, str | None]:
        value = self._parsed("json")
        if not isinstance(value, dict):
            bare = value if type(value) is int else None
            return self._bounded("json", bare), _captions(value), None
        numbers = (_number(value[key]) for key in _LABEL_KEYS if key in value)
        texts = (_captions(value[key]) for key in _CAPTION_KEYS if key in value)
        label = next((number for number in numbers if number is not None), None)
        found = next((some for some in texts if some is not None), None)
        return self._bounded("json", label), found, self._text("json")

    def _cls(self) -> int | None:
        text = self._text("cls")
        label = _number(text)
        if label is None:
            raise self._bad("cls", f"holds {text[:40]!r}", "a class number")
        return self._bounded("cls", label)

    def _bounded(self, suffix: str, label: int | None) -> int | None:
        if label is not None and label not in _INT64:
            raise self._bad(suffix, "holds a label beyond 64 bits", "a 64-bit label")
        return label

    def _lines(self) -> list[str]:
        text = self._text("txt")
        if _BOXES.fullmatch(text):
            raise self._bad("txt", "holds numbers, as YOLO writes boxes", "captions", _NO_BOXES)
        if self.archive.is_ours:  # exactly what was packed, empty captions too
            return text.removesuffix("\n").split("\n") if text else []
        return [line for line in (line.rstrip("\r") for line in text.split("\n")) if line]

    def _parsed(self, suffix: str) -> Any:
        try:
            return json.loads(self._text(suffix))
        except (ValueError, RecursionError):
            raise self._bad(suffix, f"holds {self._text(suffix)[:40]!r}", "JSON") from None

    def _text(self, suffix: str) -> str:
        data = self.archive.contents.get(self.rows[suffix])
        if data is None:
            raise self._bad(suffix, f"has {self.archive.sizes[self.rows[suffix]]:,} bytes", "a short text")
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise self._bad(suffix, f"holds {data[:40]!r}", "UTF-8 text") from None

    def _bad(self, suffix: str, problem: str, expected: str, next_step: str = _AGAIN) -> FormatError:
        return FormatError(
            f"{self.archive.path}:{self.archive.names[self.rows[suffix]].as_py()} {problem}",
            expected=expected,
            next_step=next_step,
        )


def _number(value: Any) -> int | None:
    """A label: an integer, or its decimal text."""
    if isinstance(value, str) and (match := _DECIMAL.fullmatch(value)):
        return int(match[1])
    return value if type(value) is int else None


def _captions(value: Any) -> list[str] | None:
    if isinstance(value, str):
        return [value]
    is_list = isinstance(value, list) and all(isinstance(item, str) for item in value)
    return value if is_list else None


def _unclear(archive: Archive, found: list[str], problem: str, expected: str) -> FormatError:
    return FormatError(
        f"{archive.path}: {first_few(found, len(found), 3)} {problem}",
        expected=expected,
        next_step="Rename them, or pack it with the one suffix that is meant (--suffix .left.jpg)",
    )
