"""Labels from the names of files: the first folder is the class, as in ImageFolder; splits lie above.

The trap: a class that is missing in one split would shift the labels behind it, so classes are counted over
all splits. Folders that only wrap the classes are passed over. Archives of all kinds, ours and those of
others, are labelled here. Notebook 02 shows the layouts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.folders import canonical_split, choose_split
from smallfiles.manifest.arrays import as_mask, from_numpy
from smallfiles.progress import plural
from smallfiles.samples import UNLABELLED


@dataclass(frozen=True)
class ByFolder:
    """What folders say of samples.

    Args:
        keep: Which files are samples of the split.
        labels: A label for each of these.
        classes: Names of the classes, those of other splits too; none for unlabelled samples.
        split: Canonical name of the split.
        notes: What was chosen and left aside.
    """

    keep: npt.NDArray[np.bool_]
    labels: npt.NDArray[np.int32]
    classes: tuple[str, ...]
    split: str
    notes: tuple[str, ...]


def by_folder(
    names: pa.StringArray, path: Path, split: str | None = None, *, unlabelled: bool = False
) -> ByFolder:
    """Label samples by their class folders; the label is -1 where there are none.

    Args:
        names: Relative names of the samples.
        path: Where they lie, for messages.
        split: The split that is wanted; None takes the only one, or train.
        unlabelled: Look for splits only.

    Raises:
        SourceError: The split is not there, or must be chosen.
    """
    place = _above_classes(names, path, split)
    own = names if place.keep.all() else names.take(from_numpy(np.flatnonzero(place.keep)))
    rest = _behind(place.prefix, own)
    inside = as_mask(pc.match_substring(rest, "/"))
    if unlabelled or not inside.any() or (place.split == "test" and len(_first_folder(rest).unique()) == 1):
        note = f"{plural(len(rest), 'image')} without a class: label {UNLABELLED}"
        return ByFolder(place.keep, np.full(len(rest), UNLABELLED, np.int32), (), place.split, (note,))
    folders = _first_folder(rest).dictionary_encode()
    tops = folders.dictionary.to_pylist()
    codes = np.frombuffer(folders.indices.buffers()[1], np.int32, len(rest))
    used = {tops[code] for code in np.unique(codes[inside])} | _classes_beside(names, place)
    classes = sorted(used, key=str.encode)
    rank = {name: label for label, name in enumerate(classes)}
    labels = np.array([rank.get(name, UNLABELLED) for name in tops], np.int32)[codes]
    loose = int((~inside).sum())
    notes = (f"{plural(loose, 'image')} outside of any class folder left aside",) if loose else ()
    keep = place.keep.copy()
    keep[place.keep] = inside
    return ByFolder(keep, labels[inside], tuple(classes), place.split, place.notes + notes)


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
        tops = sorted(_first_folder(rest).unique().to_pylist())
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
    inside = names.filter(pc.match_substring(names, "/"))
    return sorted(_first_folder(inside).unique().to_pylist(), key=str.encode)


def _behind(prefix: str, names: pa.StringArray) -> pa.StringArray:
    return pc.utf8_slice_codeunits(names, len(prefix)) if prefix else names


def _first_folder(names: pa.StringArray) -> pa.StringArray:
    return pc.replace_substring_regex(names, r"(?s)/.*$", "")
