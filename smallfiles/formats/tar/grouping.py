"""Which members of a tar are one sample: its data, its further files and its values.

Members that share a stem, wherever they are, are one sample; the stem ends at the *first* dot of the name.
If only images share stems, either each is a sample (`cat/1.jpg`, `cat/1.png`) or they are the fields of
one (`17.jpg`, `17.png`): fields if at least half of the stems have several.

    000017.jpg   000017.mask.png (the field mask)   000017.json ({"age":31.5,"boxes":[[1.0,2.0,3.0,4.0]]})

Our shards name the types of all fields in the record at their start, so that a shard without its index still
gives them. Where there are values, the `.json` holds one object: the values by name, `captions` unless these
are in a `.txt`, and `meta` if the sample has a JSON object. JSON has no NaN: it is the text "nan".

The traps: a member that only some samples have is not a field, since a batch needs one of each. And a mask
that is taken for an image becomes a sample of its own with the label of its neighbour, and every count is
doubled. So several images for one stem are refused unless it is clear which one is meant: `jpg` before
`seg.png`, `input.png` before other names, `jpg` before `png`. Notebooks 05 and 13 teach the layout.

Source: webdataset's README, "The WebDataset Format".
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.arrays import as_mask, column, from_numpy, one_chunk, scalar, to_numpy
from smallfiles.errors import DamagedFileError, FormatError, ManifestError, first_few
from smallfiles.fields import META, finite, name_problem, typed_column
from smallfiles.fields import RESERVED as USED
from smallfiles.formats.bytefile import damaged
from smallfiles.formats.output import json_text, no_row, object_of
from smallfiles.formats.table import recorded_blobs, recorded_values
from smallfiles.formats.tar.archive import Archive
from smallfiles.formats.tar.headers import ANNOTATIONS, RESERVED
from smallfiles.progress import plural
from smallfiles.samples import UNLABELLED, BlobField, Meta, Schema

Rows = npt.NDArray[np.int64]
_TEXTS_AT_ONCE = 1024


class Further(NamedTuple):
    """A field of additional files: their suffix, and one member for each sample."""

    suffix: str
    data: Archive


def check_names(blobs: Sequence[BlobField], out: object) -> None:
    """Refuse fields whose names differ only in case, because webdataset reads all suffixes in lower case.

    Raises:
        FormatError: The names of some fields differ only in case.
    """
    if len({blob.name.lower() for blob in blobs}) < len(blobs):
        raise FormatError(
            f"the fields {', '.join(blob.name for blob in blobs)} for {out} differ only in case",
            expected="names that are different in lower case, which is how programs read them in a tar",
            next_step="Rename one of them",
        )


def member_suffix(blob: BlobField, first: str) -> str:
    """Return what follows the stem in the name of a file, such as `mask.png`.

    It is only `png` if that is the field's name and no other member of the sample uses it.

    Args:
        blob: The field of the file.
        first: Suffix of the default field's file, without its dot.
    """
    bare = blob.suffix[1:]
    is_free = blob.name == bare and bare not in RESERVED and bare != first.lower()
    return first if not blob.name else bare if is_free else blob.name + blob.suffix


class Texts:
    """The texts of the small members of samples, made from the columns of their values.

    Args:
        out: The shard, for messages.
        schema: What is packed, with the values.

    Raises:
        FormatError: A caption that has to be stored in a `.txt` has several lines.
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
        """Return the texts of one sample's members by suffix, and the text of its JSON object.

        The text of the object is None if the sample has no JSON object. Many rows are converted at once if
        they are requested in order, which costs a fraction.

        Raises:
            FormatError: The row does not exist, or its text is not a JSON object.
        """
        place = row - self._start
        if not 0 <= place < len(self._made):
            stop = row + (_TEXTS_AT_ONCE if place == len(self._made) else 1)
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


def blobs_of(archive: Archive, suffix: pa.StringArray, group: Rows, rows: Rows) -> dict[str, Further]:
    """Find the additional files in a shard of this package, with the fields that its record names.

    Args:
        archive: The shard.
        suffix: What follows the first dot of each member's name, in lower case.
        group: The number of each member's stem.
        rows: Rows of the samples' first files.

    Returns:
        The fields by name, in the order in which they are stored.

    Raises:
        DamagedFileError: A sample lacks the file of a field.
    """
    found = {}
    for name, ending in recorded_blobs(archive.record).items():
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
    """Return, for each row in `rows`, the member in `members` that has the same stem.

    It is -1 if no member has this stem. `group` holds the number of each member's stem.
    """
    found = np.full(group.max(initial=-1) + 1, -1)
    found[group[members]] = members
    return found[group[rows]]


def objects_of(archive: Archive, members: Rows, group: Rows, rows: Rows) -> tuple[list[Meta], pa.Table]:
    """Return the objects in the `.json` members of a shard of this package, and their values as columns.

    Args:
        archive: The shard.
        members: Rows of all `.json` members.
        group: The number of each member's stem.
        rows: Rows of the samples' first files.

    Raises:
        DamagedFileError: A sample lacks its values, or a value has another type than the record says.
    """
    kinds = recorded_values(archive.record)
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
    """Return the suffix of each kind of additional member, by the name of its field.

    For example, `mask` is the name of the field with `mask.png`, and `png` is the name of the field with
    `png`.

    Args:
        suffixes: What follows the first dot of the members' names, in lower case.
    """
    short = [suffix.rpartition(".")[0].replace(".", "_") or suffix for suffix in suffixes]
    return {
        name if short.count(name) == 1 and name not in USED else suffix.replace(".", "_"): suffix
        for name, suffix in zip(short, suffixes, strict=True)
    }


_IMAGES = "jpg jpeg png webp ppm pgm bmp tif tiff gif jp2 avif jxl"
DATA_SUFFIXES = tuple(f".{name}" for name in _IMAGES.split())
"""Suffixes of the members that are samples by default. A tar without any of them has other samples.

Then all members are samples that have a suffix and are not annotations.
"""
_NO_DATA = (*ANNOTATIONS, "idx", "id", "caption", "label", "text")
_NO_SAMPLE = 9
_SPLIT = r"(?s)^(?P<stem>(?:.*/)?[^/.]*)\.?(?P<suffix>[^/]*)$"
_BEFORE_SUFFIX = r"(?s)^(?:.*/)?[^/.]*\.?"
_NUMBERED = re.compile(r"\d.*\.")  # a number between the first dot and the last: a.v2.jpg
_NAMED = r"^(image|input|img)\."
_JPEG = r"(^|\.)jpe?g$"
_ROWS_AT_ONCE = 1 << 14


@dataclass(frozen=True)
class Groups:
    """The members of a tar, grouped by their stems.

    Args:
        suffix: What follows the first dot of each member's name, in lower case.
        of: The number of each member's stem.
        count: Number of stems.
        rank: Priority of each member as the data of its sample. See `_ranks`.
    """

    suffix: pa.StringArray
    of: Rows
    count: int
    rank: npt.NDArray[np.int8]

    def mask(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Return a mask over the stems: true for each stem of a member in `rows`."""
        found = np.zeros(self.count, bool)
        found[self.of[rows]] = True
        return found

    def annotations(self) -> dict[str, Rows]:
        """Return the rows of the annotations by suffix.

        `a.label.cls` counts as `cls` if there is no `a.cls`.
        """
        free = self.rank == _NO_SAMPLE
        found = {
            name: np.flatnonzero(as_mask(pc.equal(self.suffix, scalar(name))) & free) for name in ANNOTATIONS
        }
        dotted = np.flatnonzero(as_mask(pc.ends_with(self.suffix, ".cls")) & free)
        dotted = dotted[~self.mask(found["cls"])[self.of[dotted]]]
        return {**found, "cls": np.sort(np.concatenate([found["cls"], dotted]))}


def split(names: pa.StringArray) -> tuple[pa.StringArray, Rows]:
    """Return what follows the first dot of each name, in lower case, and the number of each name's stem."""
    parts = pc.extract_regex(names, _SPLIT)
    stems = parts.field("stem").dictionary_encode().indices
    return pc.utf8_lower(parts.field("suffix")), to_numpy(stems).astype(np.int64)


def groups_of(archive: Archive, suffixes: tuple[str, ...]) -> Groups:
    """Group the members of an archive by their stems. `suffixes` are those of samples."""
    suffix, of = split(archive.names)
    return Groups(suffix, of, int(of.max(initial=-1)) + 1, _ranks(archive, suffix, suffixes))


def is_plain(archive: Archive, suffixes: tuple[str, ...]) -> bool:
    """Check whether all members are samples with the same suffix.

    This does not build a table of their stems.
    """
    found: set[str] = set()
    for start in range(0, len(archive.names), _ROWS_AT_ONCE):
        lower = pc.utf8_lower(archive.names.slice(start, _ROWS_AT_ONCE))
        found.update(pc.replace_substring_regex(lower, _BEFORE_SUFFIX, "").unique().to_pylist())
        if len(found) > 1:
            return False
    return all(f".{suffix}" in suffixes for suffix in found)


def samples_of(archive: Archive, groups: Groups) -> tuple[Rows, tuple[str, ...], tuple[str, ...]]:
    """Find the members that are the data of samples.

    Returns:
        The rows of these members; notes for the user; and, if two members of one stem could both be the
        sample judging by their names, the names of some such members.

    Raises:
        FormatError: It is unclear which member of a stem is the sample.
    """
    candidates = np.flatnonzero(groups.rank != _NO_SAMPLE)
    last = pc.replace_substring_regex(groups.suffix, r"(?s)^.*\.", "")
    shared = groups.mask(np.flatnonzero(as_mask(pc.is_in(last, column(ANNOTATIONS, pa.string())))))
    fields, notes = _fields(groups, candidates)
    shared |= fields
    rows, rivals = _one_of_each(archive, groups, candidates, shared)
    if archive.replaced and shared[groups.of[rows]].any():
        raise ambiguous(archive, list(archive.replaced), "come more than once", "each name once")
    return rows, notes, rivals


def further_files(
    groups: Groups, rows: Rows, annotations: dict[str, Rows]
) -> tuple[dict[str, Rows], tuple[str, ...]]:
    """Find the suffixes of additional members that all samples have.

    Args:
        groups: All members.
        rows: Rows of the samples.
        annotations: Rows of labels, captions and objects.

    Returns:
        For each such suffix the rows of its members, in the order of the samples; and notes for the user on
        the suffixes that only some samples have.
    """
    alone = bool((np.bincount(groups.of[rows], minlength=groups.count) <= 1).all())
    members = _others(groups, [rows, *annotations.values()])
    suffixes, found, some = groups.suffix.take(from_numpy(members)), {}, []
    for entry in suffixes.value_counts().to_pylist() if alone else ():
        suffix, count = entry["values"], entry["counts"]
        if suffix in ("", *_NO_DATA) or suffix.endswith(".cls"):
            continue
        own = members[as_mask(pc.equal(suffixes, scalar(suffix)))] if count == len(rows) else members[:0]
        in_order = of_same_stem(own, groups.of, rows)
        if (in_order >= 0).all() and name_problem(*named([suffix]), blob=True) is None:
            found[suffix] = in_order
        else:
            some.append(f"{suffix} ({count} of {len(rows)})")
    why = "not all samples have it, or a field cannot have its name"
    said = (f"left aside, since {why}: {first_few(some, len(some), 3)}",) if some else ()
    return dict(sorted(found.items())), said


def unknown_suffixes(groups: Groups, taken: list[Rows]) -> tuple[str, ...]:
    """Return the suffixes of members that belong to samples and have no known meaning, sorted.

    Args:
        groups: All members.
        taken: Rows of the members with a known meaning. The first array holds the samples.
    """
    return tuple(sorted(set(groups.suffix.take(from_numpy(_others(groups, taken))).to_pylist())))


def _others(groups: Groups, taken: list[Rows]) -> Rows:
    """Return the rows of those members of samples that are not in `taken`.

    The first array of `taken` holds the rows of the samples.
    """
    other = np.ones(len(groups.of), bool)
    other[np.concatenate(taken)] = False
    return np.flatnonzero(other & groups.mask(taken[0])[groups.of])


def _ranks(archive: Archive, suffix: pa.StringArray, suffixes: tuple[str, ...]) -> npt.NDArray[np.int8]:
    """Rank the members as possible data of their sample: 0 is best, and `_NO_SAMPLE` means that it cannot be.

    `a.jpg` ranks before `a.left.jpg`. By default, if there is no image, all members that are not annotations
    have rank 0.
    """
    rank = np.full(len(suffix), _NO_SAMPLE, np.int8)
    rank[archive.having(suffixes)] = 1
    rank[as_mask(pc.is_in(suffix, column([text[1:] for text in suffixes], pa.string())))] = 0
    if suffixes is DATA_SUFFIXES and not (rank != _NO_SAMPLE).any():
        rank[~as_mask(pc.is_in(suffix, column(["", *_NO_DATA], pa.string())))] = 0
    return rank


def _fields(groups: Groups, candidates: Rows) -> tuple[npt.NDArray[np.bool_], tuple[str, ...]]:
    """Return a mask of the stems whose images are fields of one sample, and notes for the user.

    Images with numbers in their suffixes (`IMG.001.jpg`) count as fields only if far more stems than suffixes
    have several images.
    """
    images = np.bincount(groups.of[candidates], minlength=groups.count)
    crowded = images > 1
    among = candidates[crowded[groups.of[candidates]]]
    found = groups.suffix.take(from_numpy(among)).unique()
    numbered = len(found) >= crowded.sum() and any(map(_NUMBERED.search, found.to_pylist()))
    if numbered or not crowded.any():
        return np.zeros(groups.count, bool), ()
    if 2 * crowded.sum() >= (images > 0).sum():
        return crowded, ()
    note = f"{plural(int(crowded.sum()), 'name')} with several suffixes: each such file is a sample"
    return np.zeros(groups.count, bool), (note,)


def _one_of_each(
    archive: Archive, groups: Groups, candidates: Rows, shared: npt.NDArray[np.bool_]
) -> tuple[Rows, tuple[str, ...]]:
    """Return the rows of the samples, and the names of members that could both be one sample.

    Each stem in `shared` has one sample; for all other stems, each candidate is a sample. The second value
    names members of one stem that could both be the sample. It is empty if there are none.
    """
    best = _best(groups, candidates, groups.rank[candidates])
    rows: Rows = candidates[~shared[groups.of[candidates]] | best]
    crowded = shared & (np.bincount(groups.of[rows], minlength=groups.count) > 1)
    if not crowded.any():
        return rows, ()
    tied = rows[crowded[groups.of[rows]]]
    clash = tied[groups.of[tied] == groups.of[tied[0]]]
    found = archive.names.take(from_numpy(clash)).to_pylist()
    chosen = np.setdiff1d(rows, tied[~_best(groups, tied, _unlikely(groups, tied))], assume_unique=True)
    kept, left = (
        groups.suffix.take(from_numpy(some))
        for some in (chosen, np.setdiff1d(tied, chosen, assume_unique=True))
    )
    still = np.bincount(groups.of[chosen], minlength=groups.count)[groups.of[tied]].max() > 1
    if still or pc.any(pc.is_in(left.unique(), kept.unique())).as_py():
        raise shared_stem(archive, found)
    return np.sort(chosen), tuple(found) if not groups.rank[tied].any() else ()


def _best(groups: Groups, rows: Rows, rank: npt.NDArray[np.int8]) -> npt.NDArray[np.bool_]:
    """Return a mask of those `rows` that have the lowest rank of their stem."""
    best = np.full(groups.count, _NO_SAMPLE, np.int8)
    np.minimum.at(best, groups.of[rows], rank)
    found: npt.NDArray[np.bool_] = rank == best[groups.of[rows]]
    return found


def _unlikely(groups: Groups, rows: Rows) -> npt.NDArray[np.int8]:
    """Rank several images of one stem: `input.png` comes before `seg.jpg`, and `jpg` comes before `png`."""
    suffix = groups.suffix.take(from_numpy(rows))
    named, jpeg = (as_mask(pc.match_substring_regex(suffix, form)) for form in (_NAMED, _JPEG))
    return (2 * ~named + ~jpeg).astype(np.int8)


def shared_stem(archive: Archive, found: Sequence[str]) -> FormatError:
    """Return the error for several images of one stem, each of which may be a sample."""
    problem = "share one stem (it ends at the first dot)"
    return ambiguous(archive, [*found], problem, "one file for each sample")


def ambiguous(archive: Archive, found: list[str], problem: str, expected: str) -> FormatError:
    """Return the error for members that cannot be assigned to samples."""
    return FormatError(
        f"{archive.path}: {first_few(found, len(found), 3)} {problem}",
        expected=expected,
        next_step="Rename them, or pack it with the one suffix that is meant (--suffix .left.jpg)",
    )
