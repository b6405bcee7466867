"""Which members of a tar of others are samples, and which belong to one of them.

Members that share a stem, wherever they lie, are one sample; the stem ends at the *first* dot of the name.
Where nothing but pictures share stems, either each is a sample (`cat/1.jpg`, `cat/1.png`) or they are the
fields of one (`17.jpg`, `17.png`): fields if at least half of the stems have several.

The trap: a mask that is taken for a picture becomes a sample of its own, with the label of its neighbour, and
every count is twice what it should be. So fields are refused unless one of them is plainly the picture.
Notebook 05 teaches the layout.

Source: webdataset's README, "The WebDataset Format".
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.arrays import as_mask, column, from_numpy, scalar, to_numpy
from smallfiles.errors import FormatError, first_few
from smallfiles.formats.tar.archive import Archive
from smallfiles.progress import plural

_IMAGES = "jpg jpeg png webp ppm pgm bmp tif tiff gif jp2 avif jxl"
DATA_SUFFIXES = tuple(f".{name}" for name in _IMAGES.split())
"""Which files are samples, unless a user says it; where a tar has none of them, any other file."""
SIDES = ("cls", "json", "txt", "meta")
_NO_DATA = (*SIDES, "idx", "id", "caption", "label", "text")
_NO_SAMPLE = 9
_SPLIT = r"(?s)^(?P<stem>(?:.*/)?[^/.]*)\.?(?P<suffix>[^/]*)$"
_BEFORE_SUFFIX = r"(?s)^(?:.*/)?[^/.]*\.?"
_NUMBERED = re.compile(r"\d.*\.")  # in what stands between the first dot and the last: a.v2.jpg
_ROWS_AT_ONCE = 1 << 14

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Groups:
    """The members of a tar by their stems.

    Args:
        suffix: What each has behind the first dot of its name, in lower case.
        of: The number of its stem.
        count: How many stems there are.
        rank: How near each is to be its sample's own data; see `_ranks`.
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

    def sides(self) -> dict[str, Rows]:
        """Rows of the files that may tell a target; `a.label.cls` is one where there is no `a.cls`."""
        free = self.rank == _NO_SAMPLE
        found = {name: np.flatnonzero(as_mask(pc.equal(self.suffix, scalar(name))) & free) for name in SIDES}
        dotted = np.flatnonzero(as_mask(pc.ends_with(self.suffix, ".cls")) & free)
        dotted = dotted[~self.mask(found["cls"])[self.of[dotted]]]
        return {**found, "cls": np.sort(np.concatenate([found["cls"], dotted]))}


def split(names: pa.StringArray) -> tuple[pa.StringArray, Rows]:
    """What follows the first dot of each name, in lower case, and the number of what stands before it."""
    parts = pc.extract_regex(names, _SPLIT)
    stems = parts.field("stem").dictionary_encode().indices
    return pc.utf8_lower(parts.field("suffix")), to_numpy(stems).astype(np.int64)


def groups_of(archive: Archive, suffixes: tuple[str, ...]) -> Groups:
    """Take the names of an archive apart."""
    suffix, of = split(archive.names)
    return Groups(suffix, of, int(of.max(initial=-1)) + 1, _ranks(archive, suffix, suffixes))


def is_plain(archive: Archive, suffixes: tuple[str, ...]) -> bool:
    """Whether all files are samples without any other beside them, seen without a table of their stems."""
    found: set[str] = set()
    for start in range(0, len(archive.names), _ROWS_AT_ONCE):
        lower = pc.utf8_lower(archive.names.slice(start, _ROWS_AT_ONCE))
        found.update(pc.replace_substring_regex(lower, _BEFORE_SUFFIX, "").unique().to_pylist())
        if len(found) > 1:
            return False
    return all(f".{suffix}" in suffixes for suffix in found)


def samples_of(archive: Archive, groups: Groups) -> tuple[Rows, tuple[str, ...]]:
    """Rows of the samples, and what is to be said of them.

    Raises:
        FormatError: It is unclear which file of a stem is the sample.
    """
    candidates = np.flatnonzero(groups.rank != _NO_SAMPLE)
    last = pc.replace_substring_regex(groups.suffix, r"(?s)^.*\.", "")
    shared = groups.mask(np.flatnonzero(as_mask(pc.is_in(last, column(SIDES, pa.string())))))
    fields, notes = _fields(groups, candidates)
    shared |= fields
    rows = _one_of_each(archive, groups, candidates, shared)
    if archive.replaced and shared[groups.of[rows]].any():
        raise unclear(archive, list(archive.replaced), "come more than once", "each name once")
    return rows, notes


def beside(groups: Groups, rows: Rows, sides: dict[str, Rows]) -> tuple[str, ...]:
    """The suffixes of what stands beside samples and is not understood, sorted."""
    other = np.ones(len(groups.of), bool)
    other[np.concatenate([rows, *sides.values()])] = False
    there = np.flatnonzero(other & groups.mask(rows)[groups.of])
    return tuple(sorted(set(groups.suffix.take(from_numpy(there)).to_pylist())))


def _ranks(archive: Archive, suffix: pa.StringArray, suffixes: tuple[str, ...]) -> npt.NDArray[np.int8]:
    """Which files may be samples' own data: `a.jpg` before `a.left.jpg`; others if there is no image."""
    rank = np.full(len(suffix), _NO_SAMPLE, np.int8)
    rank[archive.having(suffixes)] = 1
    rank[as_mask(pc.is_in(suffix, column([text[1:] for text in suffixes], pa.string())))] = 0
    if suffixes is DATA_SUFFIXES and not (rank != _NO_SAMPLE).any():
        rank[~as_mask(pc.is_in(suffix, column(["", *_NO_DATA], pa.string())))] = 0
    return rank


def _fields(groups: Groups, candidates: Rows) -> tuple[npt.NDArray[np.bool_], tuple[str, ...]]:
    """The stems whose pictures are fields of one sample.

    Numbers tell nothing (`IMG.001.jpg`), unless far more stems than suffixes have them.
    """
    pictures = np.bincount(groups.of[candidates], minlength=groups.count)
    crowded = pictures > 1
    among = candidates[crowded[groups.of[candidates]]]
    found = groups.suffix.take(from_numpy(among)).unique()
    numbered = len(found) >= crowded.sum() and any(map(_NUMBERED.search, found.to_pylist()))
    if numbered or not crowded.any():
        return np.zeros(groups.count, bool), ()
    if 2 * crowded.sum() >= (pictures > 0).sum():
        return crowded, ()
    note = f"{plural(int(crowded.sum()), 'name')} with several suffixes: each such file is a sample"
    return np.zeros(groups.count, bool), (note,)


def _one_of_each(archive: Archive, groups: Groups, candidates: Rows, shared: npt.NDArray[np.bool_]) -> Rows:
    """Rows of the samples: one for each stem that has other files, all where there are none."""
    best = np.full(groups.count, _NO_SAMPLE, np.int8)
    stem, rank = groups.of[candidates], groups.rank[candidates]
    np.minimum.at(best, stem, rank)
    rows: Rows = candidates[~shared[stem] | (rank == best[stem])]
    crowded = shared & (np.bincount(groups.of[rows], minlength=groups.count) > 1)
    if crowded.any():
        clash = rows[groups.of[rows] == np.flatnonzero(crowded)[0]]
        found = archive.names.take(from_numpy(clash)).to_pylist()
        raise unclear(archive, found, "share one stem (it ends at the first dot)", "one file for each sample")
    return rows


def unclear(archive: Archive, found: list[str], problem: str, expected: str) -> FormatError:
    """The sentence for members of which nobody can tell what belongs together."""
    return FormatError(
        f"{archive.path}: {first_few(found, len(found), 3)} {problem}",
        expected=expected,
        next_step="Rename them, or pack it with the one suffix that is meant (--suffix .left.jpg)",
    )
