"""Which members of another program's tar are samples, and which belong to a sample.

Members that share a stem, wherever they are, are one sample; the stem ends at the *first* dot of the name.
If only images share stems, either each is a sample (`cat/1.jpg`, `cat/1.png`) or they are the fields of
one (`17.jpg`, `17.png`): fields if at least half of the stems have several.

The trap: a mask that is taken for an image becomes a sample of its own with the label of its neighbour, and
every count is doubled. So several images for one stem are refused unless it is clear which one is meant:
`jpg` before `seg.png`, `input.png` before other names, `jpg` before `png`. Notebook 05 teaches the layout.

Source: webdataset's README, "The WebDataset Format".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.arrays import as_mask, column, from_numpy, scalar, to_numpy
from smallfiles.errors import FormatError, first_few
from smallfiles.fields import name_problem
from smallfiles.formats.tar.archive import Archive
from smallfiles.formats.tar.further import named, of_same_stem
from smallfiles.formats.tar.headers import ANNOTATIONS
from smallfiles.progress import plural

_IMAGES = "jpg jpeg png webp ppm pgm bmp tif tiff gif jp2 avif jxl"
DATA_SUFFIXES = tuple(f".{name}" for name in _IMAGES.split())
"""Which members are samples by default; if a tar has none of them, all others are."""
_NO_DATA = (*ANNOTATIONS, "idx", "id", "caption", "label", "text")
_NO_SAMPLE = 9
_SPLIT = r"(?s)^(?P<stem>(?:.*/)?[^/.]*)\.?(?P<suffix>[^/]*)$"
_BEFORE_SUFFIX = r"(?s)^(?:.*/)?[^/.]*\.?"
_NUMBERED = re.compile(r"\d.*\.")  # a number between the first dot and the last: a.v2.jpg
_NAMED = r"^(image|input|img)\."
_JPEG = r"(^|\.)jpe?g$"
_ROWS_AT_ONCE = 1 << 14

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Groups:
    """The members of a tar by their stems.

    Args:
        suffix: What follows the first dot of each name, in lower case.
        of: The number of its stem.
        count: Number of stems.
        rank: Priority of each as the data of its sample; see `_ranks`.
    """

    suffix: pa.StringArray
    of: Rows
    count: int
    rank: npt.NDArray[np.int8]

    def mask(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Which stems have one of these rows."""
        found = np.zeros(self.count, bool)
        found[self.of[rows]] = True
        return found

    def annotations(self) -> dict[str, Rows]:
        """Rows of the annotations by suffix; `a.label.cls` is a `cls` if there is no `a.cls`."""
        free = self.rank == _NO_SAMPLE
        found = {
            name: np.flatnonzero(as_mask(pc.equal(self.suffix, scalar(name))) & free) for name in ANNOTATIONS
        }
        dotted = np.flatnonzero(as_mask(pc.ends_with(self.suffix, ".cls")) & free)
        dotted = dotted[~self.mask(found["cls"])[self.of[dotted]]]
        return {**found, "cls": np.sort(np.concatenate([found["cls"], dotted]))}


def split(names: pa.StringArray) -> tuple[pa.StringArray, Rows]:
    """What follows the first dot of each name, in lower case, and the number of its stem."""
    parts = pc.extract_regex(names, _SPLIT)
    stems = parts.field("stem").dictionary_encode().indices
    return pc.utf8_lower(parts.field("suffix")), to_numpy(stems).astype(np.int64)


def groups_of(archive: Archive, suffixes: tuple[str, ...]) -> Groups:
    """Group the members of an archive by their stems."""
    suffix, of = split(archive.names)
    return Groups(suffix, of, int(of.max(initial=-1)) + 1, _ranks(archive, suffix, suffixes))


def is_plain(archive: Archive, suffixes: tuple[str, ...]) -> bool:
    """Whether all members are samples of one suffix; found without a table of their stems."""
    found: set[str] = set()
    for start in range(0, len(archive.names), _ROWS_AT_ONCE):
        lower = pc.utf8_lower(archive.names.slice(start, _ROWS_AT_ONCE))
        found.update(pc.replace_substring_regex(lower, _BEFORE_SUFFIX, "").unique().to_pylist())
        if len(found) > 1:
            return False
    return all(f".{suffix}" in suffixes for suffix in found)


def samples_of(archive: Archive, groups: Groups) -> tuple[Rows, tuple[str, ...], tuple[str, ...]]:
    """Rows of the samples, notes for the user, and some members that could each be one by their names.

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
    """The members of one suffix that all samples have, in the order of the samples; and notes on the others.

    Args:
        groups: All members.
        rows: The samples.
        annotations: Rows of labels, captions and objects.
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
    """The suffixes of members that belong to samples and have no known meaning, sorted.

    Args:
        groups: All members.
        taken: Those with a meaning; the samples first.
    """
    return tuple(sorted(set(groups.suffix.take(from_numpy(_others(groups, taken))).to_pylist())))


def _others(groups: Groups, taken: list[Rows]) -> Rows:
    """Rows of the other members of samples."""
    other = np.ones(len(groups.of), bool)
    other[np.concatenate(taken)] = False
    return np.flatnonzero(other & groups.mask(taken[0])[groups.of])


def _ranks(archive: Archive, suffix: pa.StringArray, suffixes: tuple[str, ...]) -> npt.NDArray[np.int8]:
    """Which members may be data of a sample: `a.jpg` before `a.left.jpg`; any if there is no image."""
    rank = np.full(len(suffix), _NO_SAMPLE, np.int8)
    rank[archive.having(suffixes)] = 1
    rank[as_mask(pc.is_in(suffix, column([text[1:] for text in suffixes], pa.string())))] = 0
    if suffixes is DATA_SUFFIXES and not (rank != _NO_SAMPLE).any():
        rank[~as_mask(pc.is_in(suffix, column(["", *_NO_DATA], pa.string())))] = 0
    return rank


def _fields(groups: Groups, candidates: Rows) -> tuple[npt.NDArray[np.bool_], tuple[str, ...]]:
    """The stems whose images are fields of one sample, and notes for the user.

    Numbers are not taken for fields (`IMG.001.jpg`), unless far more stems than suffixes have them.
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
    """Rows of the samples: one for each shared stem, all of the others; and members that may both be one."""
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
    """Which of these rows have the least rank of their stem."""
    best = np.full(groups.count, _NO_SAMPLE, np.int8)
    np.minimum.at(best, groups.of[rows], rank)
    found: npt.NDArray[np.bool_] = rank == best[groups.of[rows]]
    return found


def _unlikely(groups: Groups, rows: Rows) -> npt.NDArray[np.int8]:
    """A rank of several images of one stem: `input.png` before `seg.jpg`, and `jpg` before `png`."""
    suffix = groups.suffix.take(from_numpy(rows))
    named, jpeg = (as_mask(pc.match_substring_regex(suffix, form)) for form in (_NAMED, _JPEG))
    return (2 * ~named + ~jpeg).astype(np.int8)


def shared_stem(archive: Archive, found: Sequence[str]) -> FormatError:
    """The error for several images of one stem, of which each may be a sample."""
    problem = "share one stem (it ends at the first dot)"
    return ambiguous(archive, [*found], problem, "one file for each sample")


def ambiguous(archive: Archive, found: list[str], problem: str, expected: str) -> FormatError:
    """The error for members that cannot be assigned to samples."""
    return FormatError(
        f"{archive.path}: {first_few(found, len(found), 3)} {problem}",
        expected=expected,
        next_step="Rename them, or pack it with the one suffix that is meant (--suffix .left.jpg)",
    )
