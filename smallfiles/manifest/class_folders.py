"""Labels from the names of files: the first folder is the class, as in ImageFolder; splits lie above.

The trap: a class that is missing in one split would shift the labels behind it, so classes are counted over
all splits. Folders that only wrap the classes are passed over. Archives of all kinds, ours and those of
others, are labelled here. Notebook 02 shows the layouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.errors import SourceError, first_few
from smallfiles.folders import canonical_split, choose_split
from smallfiles.manifest.arrays import as_mask, column, from_numpy, to_numpy
from smallfiles.progress import plural
from smallfiles.samples import UNLABELLED


@dataclass(frozen=True)
class Labelled:
    """What is known of the images of one split.

    Args:
        keep: Which of them have a label; all of a split that has none.
        labels: Of those that are kept.
        classes: Names in label order.
        notes: Where labels came from, and what was left aside.
    """

    keep: npt.NDArray[np.bool_]
    labels: npt.NDArray[np.int32]
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def kept(self, names: pa.StringArray) -> pa.StringArray:
        """The names of those that are kept; of a million names no copy is made where all are."""
        return names if self.keep.all() else names.filter(self.keep)


def by_class(
    names: pa.StringArray, of: pa.StringArray, classes: Sequence[str], origin: str, *, strict: bool = False
) -> Labelled:
    """Label each image by the rank of its class; those without one are left aside.

    Args:
        names: Paths of the images.
        of: Class of each; null where `origin` tells none.
        classes: In label order.
        origin: What told the classes, for messages.
        strict: Leave none aside.

    Raises:
        SourceError: No image has a class, or one has none and `strict` was asked for.
    """
    labels = pc.index_in(of, column(classes, pa.string()))
    notes: tuple[str, ...] = ()
    if count := labels.null_count:
        aside = names.filter(labels.is_null()).to_pylist()
        missing = first_few((name.rpartition("/")[2] for name in aside), count)
        if strict or count == len(names):
            raise SourceError(
                f"{plural(count, 'image')} not in {origin}: {missing}",
                expected="a label for each image",
                next_step="Check that the labels belong to these images",
            )
        notes += (f"{plural(count, 'image')} not in {origin} left aside: {missing}",)
    filled = set(of.unique().to_pylist())
    if empty := [name for name in classes if name not in filled]:
        notes += (f"{plural(len(empty), 'class', 'classes')} without images: {first_few(empty, len(empty))}",)
    return Labelled(as_mask(labels.is_valid()), to_numpy(labels.drop_null()), tuple(classes), notes)


def unlabelled(names: pa.StringArray, classes: Sequence[str] = ()) -> Labelled:
    """All images, each with the label for unknown."""
    note = f"{plural(len(names), 'image')} without a class: label {UNLABELLED}"
    labels = np.full(len(names), UNLABELLED, np.int32)
    return Labelled(np.ones(len(names), bool), labels, tuple(classes), (note,))


def by_folder(
    names: pa.StringArray, path: Path, split: str | None = None, *, no_classes: bool = False
) -> tuple[Labelled, str]:
    """Label samples by their class folders; the label is -1 where there are none.

    Args:
        names: Relative names of the samples.
        path: Where they lie, for messages.
        split: The split that is wanted; None takes the only one, or train.
        no_classes: Look for splits only.

    Returns:
        Labels, with the classes of other splits too, and the canonical name of the split.

    Raises:
        SourceError: The split is not there, or must be chosen.
    """
    place = _above_classes(names, path, split)
    own = names if place.keep.all() else names.take(from_numpy(np.flatnonzero(place.keep)))
    of = _folder(_behind(place.prefix, own))
    tops = set(of.unique().drop_null().to_pylist())
    if no_classes or not tops or (place.split == "test" and len(of.unique()) == 1):
        return replace(unlabelled(own), keep=place.keep), place.split
    classes = sorted(tops | _classes_beside(names, place), key=str.encode)
    found = by_class(own, of, classes, "a class folder")
    keep = place.keep.copy()
    keep[place.keep] = found.keep
    return replace(found, keep=keep, notes=place.notes + found.notes), place.split


@dataclass(frozen=True)
class _Place:
    """Where the class folders are.

    Args:
        keep: Which samples belong to the split.
        prefix: The folders above the class folders.
        beside: The folder of the splits, if the last one above is a split.
        split: Its canonical name.
        notes: How it was chosen.
    """

    keep: npt.NDArray[np.bool_]
    prefix: str
    beside: str | None
    split: str
    notes: tuple[str, ...]


def _above_classes(names: pa.StringArray, path: Path, wanted: str | None) -> _Place:
    """Pass over folders that only wrap the classes (`train/cat/1.jpg`), and choose among splits."""
    keep, prefix, beside, split = np.ones(len(names), bool), "", None, wanted or "train"
    notes: tuple[str, ...] = ()
    while True:
        rest = _behind(prefix, names if keep.all() else names.filter(pc.starts_with(names, prefix)))
        tops = sorted(pc.replace_substring_regex(rest, r"(?s)/.*$", "").unique().to_pylist())
        shallowest = pc.min(pc.count_substring(rest, "/")).as_py() or 0
        splits = bool(tops) and all(canonical_split(top) for top in tops)
        if shallowest < 1 or (len(tops) > 1 and not splits) or (len(tops) == 1 and shallowest < 2):
            if len(tops) == 1 and splits and shallowest == 1 and canonical_split(tops[0]) == "test":
                split = "test"
            return _Place(keep, prefix, beside, split, notes)
        beside = prefix if splits else None
        top, notes = choose_split(tops, wanted, path) if splits else (tops[0], notes)
        split = canonical_split(top) or split
        prefix = f"{prefix}{top}/"
        keep = as_mask(pc.starts_with(names, prefix))


def _classes_beside(names: pa.StringArray, place: _Place) -> set[str]:
    """The class folders of the other splits; those of test splits are no classes."""
    if place.beside is None:
        return set()
    rest = _behind(place.beside, names.filter(pc.starts_with(names, place.beside)))
    deep = rest.filter(pc.match_substring_regex(rest, r"(?s)^[^/]+/[^/]+/"))
    pairs = pc.replace_substring_regex(deep, r"(?s)^([^/]+/[^/]+)/.*$", r"\1").unique().to_pylist()
    return {
        name for top, _, name in (pair.partition("/") for pair in pairs) if canonical_split(top) != "test"
    }


def folders_of(names: pa.StringArray) -> list[str]:
    """The first-level folders in which files lie, sorted by bytes."""
    return sorted(_folder(names).unique().drop_null().to_pylist(), key=str.encode)


def _behind(prefix: str, names: pa.StringArray) -> pa.StringArray:
    return pc.utf8_slice_codeunits(names, len(prefix)) if prefix else names


def _folder(names: pa.StringArray) -> pa.StringArray:
    """The first folder of each name, null where it has none."""
    return pc.struct_field(pc.extract_regex(names, r"(?s)^(?P<folder>[^/]*)/"), 0)
