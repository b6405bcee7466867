"""The fields of the samples in a tar: one rule for shards and for tars as sources.

    000017.jpg  000017.cls (a number)  000017.txt (captions)  000017.json (either, or an object)

`.cls` and bare numbers are labels, texts are captions, an object may hold either. A sample without a
target is reported as unlabelled. What all samples have beside these is a further file: see `grouping`.

The trap: there is no standard. tarp and ShardWriter keep the order they are given, `tar --sort=name`
puts `.cls` before `.jpg`, and only after the whole set was read is it known whether it has labels or
captions. Notebook 05 teaches the layout.

Source: webdataset's README, "The WebDataset Format".
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.arrays import as_mask, column, from_numpy, scalar
from smallfiles.errors import FormatError, first_few
from smallfiles.formats.output import json_text
from smallfiles.formats.table import recorded_member_suffixes, recorded_target, recorded_values
from smallfiles.formats.tar import grouping, headers
from smallfiles.formats.tar.archive import Archive
from smallfiles.formats.tar.grouping import (
    DATA_SUFFIXES,
    Further,
    Rows,
    ambiguous,
    blobs_of,
    named,
    objects_of,
)
from smallfiles.formats.tar.headers import ANNOTATIONS
from smallfiles.progress import plural
from smallfiles.samples import UNLABELLED

_LABEL_KEYS = ("label", "cls", "class", "target")
_CAPTION_KEYS = ("captions", "caption", "txt", "text")
_DECIMAL = re.compile(r"\s*([+-]?[0-9]{1,20})\s*", re.ASCII)
_NUMBER_THEM = (
    'Number the classes in a manifest, {"a.jpg": 0, ...} in a .json, and pack that with --root and this tar; '
    "or take the images alone (--unlabelled)"
)
_INT64 = range(-(1 << 63), 1 << 63)
_BOX = re.compile(r"\d+(\s+-?[0-9.]+(e-?\d+)?){4,}", re.ASCII)


@dataclass(frozen=True)
class TarSamples:
    """The samples of one archive with their annotations.

    Args:
        data: The members with the samples' bytes, under the samples' keys.
        labels: The label of each sample. It is None for a sample without a label.
        captions: The list of captions of each sample. It is None for a sample without captions.
        metas: The JSON object of each sample as text. It is None for a sample without an object.
        notes: Notes for the user on what was ignored.
        unknown: Suffixes of members that belong to samples and have no known meaning.
        member_suffixes: See `Schema.member_suffixes`.
        blobs: The additional files of the samples, by field.
        values: The columns of additional values. It is None if there are none.
        rivals: Members of one stem that could all be the sample judging by their names, as `1.jpg` and
            `1.png`.
        others: The members that were ignored. It is None if there are none.
    """

    data: Archive
    labels: Sequence[int | None]
    captions: Sequence[list[str] | None]
    metas: Sequence[str | None]
    notes: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    member_suffixes: tuple[str, ...] = ()
    blobs: Mapping[str, Further] = field(default_factory=dict)
    values: pa.Table | None = None
    rivals: tuple[str, ...] = ()
    others: Archive | None = None

    def select(self, keep: npt.NDArray[np.bool_]) -> TarSamples:
        """Return only the samples for which `keep` is true.

        This is for tars of other programs, which have no columns of values.
        """
        if keep.all():
            return self
        return replace(
            self,
            data=self.data.select(keep),
            labels=list(compress(self.labels, keep)),
            captions=list(compress(self.captions, keep)),
            metas=list(compress(self.metas, keep)),
            blobs={name: Further(each.suffix, each.data.select(keep)) for name, each in self.blobs.items()},
        )

    def files(self) -> Archive:
        """Return the members with the samples' bytes, followed by the members of all additional fields."""
        every = [self.data, *(each.data for each in self.blobs.values())]
        if len(every) == 1:
            return self.data
        return replace(
            self.data,
            names=pa.concat_arrays([one.names for one in every]),
            offsets=np.concatenate([one.offsets for one in every]),
            sizes=np.concatenate([one.sizes for one in every]),
        )

    def further_files(self) -> tuple[str, ...]:
        """Return a note on how additional files were interpreted as fields, in a tar of another program.

        Return an empty tuple if there are no such files.
        """
        if not self.blobs or self.data.is_ours or not len(self.data.names):
            return ()
        found = [f"{each.data.names[0].as_py()} as {name}" for name, each in self.blobs.items()]
        return (f"further files of each sample: {', '.join(found)}, beside {self.data.names[0].as_py()}",)

    @property
    def pictured(self) -> bool:
        """Whether an additional file of each sample is a picture, which may be the target (a mask).

        Additional files that are not pictures may be labels.
        """
        return any(each.suffix in DATA_SUFFIXES for each in self.blobs.values())

    @property
    def beside(self) -> set[str]:
        """Suffixes of all members of samples except the samples' first files and the known annotations."""
        return {*self.unknown, *(f"{name}{each.suffix}" for name, each in self.blobs.items())}

    @property
    def kinds(self) -> tuple[int, int, int, int]:
        """Four counts of samples: with only a label, only captions, both, and only an empty caption file."""
        pairs = zip(self.labels, self.captions, strict=True)
        found = Counter((label is not None, None if texts is None else bool(texts)) for label, texts in pairs)
        alone = found[True, None] + found[True, False]
        return alone, found[False, True], found[True, True], found[False, False]

    def targets(self, kind: str) -> list[Any]:
        """Return the target of each sample: its label or its captions, depending on `kind`.

        A sample without a target gets `UNLABELLED` or an empty list of captions.
        """
        if kind == "label":
            return [UNLABELLED if label is None else label for label in self.labels]
        return [texts or [] for texts in self.captions]

    def without(self, kind: str) -> list[str]:
        """Return the keys of the samples that have no target of this kind."""
        found: Sequence[object] = self.labels if kind == "label" else self.captions
        missing = np.flatnonzero(np.array([target is None for target in found], bool))
        keys: list[str] = self.data.names.take(from_numpy(missing)).to_pylist()
        return keys


def in_common(annotated: Sequence[TarSamples]) -> tuple[list[TarSamples], tuple[str, ...]]:
    """Keep only those additional fields that all tars of other programs have.

    Tars that this package wrote are not changed.

    Returns:
        The archives without the fields that some of them lack, and notes for the user on these fields.
    """
    theirs = [one for one in annotated if len(one.data.names) and not one.data.is_ours]
    counts = Counter((name, each.suffix) for one in theirs for name, each in one.blobs.items())
    odd = {name: suffix for (name, suffix), count in counts.items() if count < len(theirs)}
    if not odd:
        return [*annotated], ()
    said = first_few([f"{name} ({suffix})" for name, suffix in odd.items()], len(odd))
    kept = [one if one.data.is_ours else _without(one, odd) for one in annotated]
    return kept, (f"left aside, since not all shards have it: {said}",)


def _without(annotated: TarSamples, odd: Mapping[str, str]) -> TarSamples:
    blobs = {name: each for name, each in annotated.blobs.items() if name not in odd}
    unknown = {*annotated.unknown, *(f"{name}{odd[name]}" for name in annotated.blobs.keys() & odd.keys())}
    return replace(annotated, blobs=blobs, unknown=tuple(sorted(unknown)))


def target_kind(annotated: Sequence[TarSamples], where: Path) -> tuple[str, tuple[str, ...]]:
    """Determine the kind of target of a set from all its archives together.

    Args:
        annotated: The archives of the set.
        where: The set, for messages.

    Returns:
        The kind (`label` or `captions`), and notes for the user.

    Raises:
        FormatError: Some samples have only labels and others only captions, or the archives record different
            kinds.
    """
    recorded = {found for one in annotated if (found := recorded_target(one.data.record))}
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
    kind = "captions" if captions or (empty and not labels + both) else "label"
    if not both:
        return kind, ()
    other = "captions" if kind == "label" else "labels"
    return kind, (f"{plural(both, 'sample')} with a label and captions: the {other} are left aside",)


def unlabelled(annotated: Sequence[TarSamples], kind: str) -> tuple[str, ...]:
    """Return a note that counts the samples without a target.

    Return an empty tuple if all samples have one.
    """
    without = [key for one in annotated for key in one.without(kind)]
    if not without:
        return ()
    empty = f"label {UNLABELLED}" if kind == "label" else "no captions"
    return (
        f"{plural(len(without), 'sample')} without a target: {empty} ({first_few(without, len(without), 2)})",
    )


def read(archive: Archive, suffixes: tuple[str, ...] = DATA_SUFFIXES, *, targets: bool = True) -> TarSamples:
    """Find the samples of an archive, and read their annotations.

    Args:
        archive: The index of the archive, with the bytes of the annotations.
        suffixes: Suffixes of the members that are samples (lower case with the dot).
        targets: Whether to read the annotations. Otherwise, samples get neither targets nor JSON objects.

    Raises:
        FormatError: An annotation cannot be read, or it is unclear which members form a sample.
    """
    if archive.is_ours:
        return _ours(archive)
    if grouping.is_plain(archive, suffixes):
        return _bare(archive.take(np.arange(len(archive.names))))
    groups = grouping.groups_of(archive, suffixes)
    rows, notes, rivals = grouping.samples_of(archive, groups)
    annotations = groups.annotations()
    members, more = grouping.further_files(groups, rows, annotations)
    if members and archive.compression:  # which is read in stored order, and they may be before their sample
        more += (f"left aside, since the tar is compressed: {first_few(members, len(members), 3)}",)
        members = {}
    taken = [rows, *annotations.values(), *members.values()]
    ignored = len(archive.names) - sum(map(len, taken))
    notes += (f"left aside: {plural(ignored, 'other file')}",) if ignored else ()
    names_of = named([*members])
    blobs = {
        name: Further(f".{suffix.rpartition('.')[2]}", archive.take(members[suffix]))
        for name, suffix in names_of.items()
    }
    used = np.concatenate([each[groups.mask(rows)[groups.of[each]]] for each in taken])
    others = archive.take(np.setdiff1d(np.arange(len(archive.names)), used))
    data = replace(_bare(archive.take(rows), notes + more), others=others)
    if not targets:
        return replace(data, blobs=blobs)
    texts = annotations["txt"]
    _refuse_numbers(archive, texts[groups.mask(rows)[groups.of[texts]]])
    found = _read_annotations(archive, groups.of, rows, annotations)
    found = replace(found, unknown=grouping.unknown_suffixes(groups, taken) + found.unknown)
    return replace(found, data=data.data, notes=data.notes, blobs=blobs, rivals=rivals, others=others)


def _ours(archive: Archive) -> TarSamples:
    suffix, group = grouping.split(archive.names)
    annotations = {name: np.flatnonzero(as_mask(pc.equal(suffix, scalar(name)))) for name in ANNOTATIONS}
    rows = np.sort(np.unique(group, return_index=True)[1])
    data = archive.take(rows)
    data = replace(data, names=_keys_of(data.names))
    blobs = blobs_of(archive, suffix, group, rows)
    if not recorded_values(archive.record):
        found = replace(_read_annotations(archive, group, rows, annotations), data=data, blobs=blobs)
    else:
        objects, values = objects_of(archive, annotations.pop("json"), group, rows)
        found = _read_annotations(archive, group, rows, annotations)
        captions = [one.get("captions", texts) for one, texts in zip(objects, found.captions, strict=True)]
        metas = [json_text(one["meta"], canonical=False) if "meta" in one else None for one in objects]
        found = replace(found, data=data, blobs=blobs, values=values, captions=captions, metas=metas)
    further = blobs or found.values is not None  # then a class that is not known has no member
    if not further or recorded_target(archive.record) == "captions":
        return found
    return replace(found, labels=[UNLABELLED if label is None else label for label in found.labels])


def _bare(data: Archive, notes: tuple[str, ...] = ()) -> TarSamples:
    nothing = [None] * len(data.names)
    return TarSamples(data, nothing, nothing, nothing, notes)


def _keys_of(stored: pa.StringArray) -> pa.StringArray:
    if not pc.any(pc.match_substring(stored, "%")).as_py():
        return stored
    return column([headers.key_of(name) for name in stored.to_pylist()], pa.string())


def _refuse_numbers(archive: Archive, texts: Rows) -> None:
    """Refuse texts that are all bare numbers or boxes in YOLO's format, because these are not captions."""
    first, is_box = -1, False
    for row in texts.tolist():
        lines = archive.contents.get(row, b"x").decode("utf-8", "replace").split("\n")
        lines = [line.strip() for line in lines if line.strip()]
        box = all(map(_BOX.fullmatch, lines))
        if not box and not all(map(_DECIMAL.fullmatch, lines)):
            return
        if lines and first < 0:
            first, is_box = row, box
    if first < 0:
        return
    raise FormatError(
        f"{archive.path}:{archive.names[first].as_py()} holds {archive.contents[first][:40]!r}, "
        + ("which are boxes as YOLO writes them" if is_box else "which is a number"),
        expected="captions in a .txt, one per line",
        next_step="Take the images alone (--unlabelled)"
        if is_box
        else "If it is the label, rename it to .cls",
    )


def _read_annotations(archive: Archive, group: Rows, rows: Rows, annotations: dict[str, Rows]) -> TarSamples:
    """Read the label, captions and JSON object of each sample. The caller adds the other attributes."""
    tables = {}
    for name, found in annotations.items():
        if len(np.unique(group[found])) < len(found):
            raise ambiguous(archive, [f"*.{name}"], "come twice for one stem", "one member of each kind")
        if len(found):
            tables[name] = table = np.full(group.max(initial=-1) + 1, -1)
            table[group[found]] = found
    labels: list[int | None] = []
    captions: list[list[str] | None] = []
    metas: list[str | None] = []
    words: set[str] = set()
    for number in group[rows].tolist():
        own = {name: int(row) for name, table in tables.items() if (row := table[number]) >= 0}
        label, texts, meta = _Members(archive, own).read(words) if own else (None, None, None)
        labels.append(label)
        captions.append(texts)
        metas.append(meta)
    suffixes = recorded_member_suffixes(archive.record) or _member_suffixes(tables, captions, metas)
    return TarSamples(archive, labels, captions, metas, (), tuple(sorted(words)[:1]), suffixes)


def _member_suffixes(
    annotations: Container[str], captions: Sequence[list[str] | None], metas: Sequence[str | None]
) -> tuple[str, ...]:
    """Return which of the suffixes `json` and `txt` can be used if the samples are written as a tar again.

    Captions can return to a `.txt` if each has only one line. Objects can return to a `.json` if there are no
    captions, or if the captions return to a `.txt`.
    """
    texts = [text for some in captions for text in some or ()]
    in_lines = "txt" in annotations and not any("\n" in text for text in texts)
    free = "json" in annotations and "meta" not in annotations and (in_lines or not texts)
    return ("json",) * (free and any(metas)) + ("txt",) * in_lines


@dataclass(frozen=True, slots=True)
class _Members:
    """The annotations of one sample, as rows of the archive by suffix."""

    archive: Archive
    rows: dict[str, int]

    def read(self, words: set[str]) -> tuple[int | None, list[str] | None, str | None]:
        """Return the label, the captions, and the JSON object as text.

        Return None for each that does not exist.

        If several members hold the same annotation, the simpler member takes precedence. A label that is a
        word does not count as a label; it is added to `words`.
        """
        label = self._cls() if "cls" in self.rows else None
        texts, meta = None, None
        if "json" in self.rows:
            number, texts, meta = self._json(words)
            if label is not None and number is not None and meta is None and number != label:
                raise self._bad("json", f"holds {number}", f"{label}, as in its .cls")
            label = number if label is None else label
        if "txt" in self.rows and (texts is None or self.archive.is_ours):
            texts = self._lines()
        if "meta" in self.rows:
            meta = self._text("meta")
            if not isinstance(self._parsed("meta"), dict):
                raise self._bad("meta", "is no JSON object", "a JSON object")
        return label, texts, meta

    def _json(self, words: set[str]) -> tuple[int | None, list[str] | None, str | None]:
        value = self._parsed("json")
        if not isinstance(value, dict):
            bare = value if type(value) is int else None
            return self._bounded("json", bare), _captions(value), None
        numbers = (_number(value[key]) for key in _LABEL_KEYS if key in value)
        texts = (_captions(value[key]) for key in _CAPTION_KEYS if key in value)
        label = next((number for number in numbers if number is not None), None)
        found = next((some for some in texts if some is not None), None)
        word = next((some for key in _LABEL_KEYS if isinstance(some := value.get(key), str)), "")
        if label is None and word:
            words.add(f"json with the label {word[:40]!r}")
        return self._bounded("json", label), found, self._text("json")

    def _cls(self) -> int | None:
        text = self._text("cls")
        label = _number(text)
        if label is None:
            raise FormatError(
                f"{self.archive.path}:{self._name('cls')} holds {text[:40]!r}",
                expected="a class number",
                next_step=_NUMBER_THEM,
            )
        return self._bounded("cls", label)

    def _bounded(self, suffix: str, label: int | None) -> int | None:
        if label is not None and label not in _INT64:
            raise self._bad(suffix, "holds a label beyond 64 bits", "a 64-bit label")
        return label

    def _lines(self) -> list[str]:
        text = self._text("txt")
        if self.archive.is_ours:  # exactly what was packed, including empty captions
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

    def _name(self, suffix: str) -> str:
        return str(self.archive.names[self.rows[suffix]].as_py())

    def _bad(self, suffix: str, problem: str, expected: str) -> FormatError:
        return FormatError(
            f"{self.archive.path}:{self._name(suffix)} {problem}",
            expected=expected,
            next_step="Check how the tar was made, and make it again",
        )


def _number(value: Any) -> int | None:
    """Return the label in a value that is an integer or its decimal text. Return None for any other value."""
    if isinstance(value, str) and (match := _DECIMAL.fullmatch(value)):
        return int(match[1])
    return value if type(value) is int else None


def _captions(value: Any) -> list[str] | None:
    if isinstance(value, str):
        return [value]
    is_list = isinstance(value, list) and all(isinstance(item, str) for item in value)
    return value if is_list else None
