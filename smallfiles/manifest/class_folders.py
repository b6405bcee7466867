"""Labels from the names of files: the first folder is the class, as in ImageFolder; splits are above it.

The trap: a class that is missing in one split would shift all labels after it, so the classes of all splits
are numbered together. Folders that only wrap the classes are skipped, and masks are not classes (see
`listing`). Trees and archives are labelled alike. Notebook 02 shows the layouts.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.arrays import as_mask, column, from_numpy, scalar, suffixes_of, to_numpy
from smallfiles.errors import SourceError, first_few
from smallfiles.folders import LIKELY_SAMPLES, by_suffix, canonical_split, choose_split, in_words
from smallfiles.manifest import listing
from smallfiles.manifest.listing import Files, Folders
from smallfiles.progress import plural
from smallfiles.samples import UNLABELLED


@dataclass(frozen=True)
class Labelled:
    """The images of one split and their labels.

    Args:
        keep: Mask of the images that are in the result. In a split without labels, these are all its images.
        labels: Labels of the images that are kept.
        classes: Names of the classes in label order.
        notes: Notes on where labels came from, and on what was left out.
        split: Canonical name of the split, if folders are named after it.
        below: The folders above the classes, each with a trailing slash.
        annotated: Whether labels come from a file of annotations.
    """

    keep: npt.NDArray[np.bool_]
    labels: npt.NDArray[np.int32]
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()
    split: str = "train"
    below: str = ""
    annotated: bool = False

    def kept(self, names: pa.StringArray) -> pa.StringArray:
        """Return the names of the images that are kept. Nothing is copied if all are kept."""
        return names if self.keep.all() else names.take(from_numpy(np.flatnonzero(self.keep)))


def by_class(
    names: pa.StringArray, of: pa.StringArray, classes: Sequence[str], origin: str, *, strict: bool = False
) -> Labelled:
    """Label each image by the rank of its class, and leave out images without a class.

    Args:
        names: Paths of the images.
        of: Class of each image. It is null if the class is unknown.
        classes: Names of the classes in label order.
        origin: Where the classes come from, for messages.
        strict: Whether to raise an error for images without a class.

    Raises:
        SourceError: No image has a class, or `strict` is set and an image has no class.
    """
    labels = pc.index_in(of, column(classes, pa.string()))
    notes = _lookalikes(classes)
    if count := labels.null_count:
        unlabelled = names.filter(labels.is_null()).to_pylist()
        missing = first_few((name.rpartition("/")[2] for name in unlabelled), count)
        if strict or count == len(names):
            raise SourceError(
                f"{plural(count, 'image')} not in {origin}: {missing}",
                expected="a label for each image",
                next_step="Check that the labels belong to these images"
                + (", or leave out --strict" * (count < len(names))),
            )
        notes += (f"{plural(count, 'image')} not in {origin} left out: {missing}",)
    filled = set(of.unique().to_pylist())
    if empty := [name for name in classes if name not in filled]:
        notes += (f"{plural(len(empty), 'class', 'classes')} without images: {first_few(empty, len(empty))}",)
    return Labelled(as_mask(labels.is_valid()), to_numpy(labels.drop_null()), tuple(classes), notes)


def _lookalikes(classes: Sequence[str]) -> tuple[str, ...]:
    """Return a note on classes that look alike: `Cat` and `cat`, or two Unicode forms of a name."""
    alike: dict[str, list[str]] = {}
    for name in classes:
        alike.setdefault(unicodedata.normalize("NFC", name).casefold(), []).append(name)
    found = [" = ".join(map(ascii, names)) for names in alike.values() if len(names) > 1]
    what = "classes that differ only in case or Unicode form are kept apart"
    return (f"{what}: {first_few(found, len(found))}",) if found else ()


def unlabelled(names: pa.StringArray, classes: Sequence[str] = ()) -> Labelled:
    """Keep all images, and give each the label for unknown."""
    labels = np.full(len(names), UNLABELLED, np.int32)
    return Labelled(np.ones(len(names), bool), labels, tuple(classes), (without_class(len(names)),))


def without_class(count: int, what: str = "image") -> str:
    """Return the note that `count` images, or other samples, have no class."""
    return f"{plural(count, what)} without a class: label {UNLABELLED}"


def by_folder(
    files: Files,
    split: str | None = None,
    *,
    no_classes: bool = False,
    strict: bool = False,
    trusted: bool = False,
) -> Labelled:
    """Label samples by their class folders. Without class folders, each label is -1.

    Args:
        files: The names of all files.
        split: The requested split. If it is None, the only split is used, or train.
        no_classes: Whether to look only for splits, not for classes.
        strict: Whether to raise an error for samples outside of class folders.
        trusted: Whether the user declared the folders to be classes.

    Returns:
        The labels, with the classes of all splits, and with the folder in which the classes were found.

    Raises:
        SourceError: The split does not exist or must be chosen, or the folders contain parts of samples.
    """
    folders = Folders(files)
    place = _locate(folders, split)
    keep = folders.inside(place.within)
    notes = place.notes + listing.examine(folders, place.below, trusted=trusted, labels=not no_classes)
    own = files.samples if keep.all() else files.samples.take(from_numpy(np.flatnonzero(keep)))
    tops, more = list(folders.below(place.below)), _classes_of_other_splits(folders, place)
    if no_classes or not tops or (place.split == "test" and len(tops) == 1 and not more.issuperset(tops)):
        found = unlabelled(own)
        return replace(found, keep=keep, notes=notes + found.notes, split=place.split, below=place.below)
    classes = sorted({*tops, *folders.empty_below(place.below), *more})
    _refuse_lost_classes(folders, place.below, tops)
    found = by_class(own, _class_of(own, place.below), classes, "a class folder", strict=strict)
    keep[keep] = found.keep
    notes += found.notes + _only_in_other_splits(more, tops) + _merged(folders.below(place.below))
    return replace(found, keep=keep, notes=notes, split=place.split, below=place.below)


def _refuse_lost_classes(folders: Folders, below: str, tops: Sequence[str]) -> None:
    """Refuse folders beside the classes whose files are likely samples, but all have another suffix."""
    files = folders.files
    if files.declared:
        return
    others = files.others.filter(
        pc.is_in(suffixes_of(files.others), column(sorted(LIKELY_SAMPLES), pa.string()))
    )
    of = _class_of(others, below)
    lost = [name for name in of.unique().drop_null().to_pylist() if name not in tops]
    if not lost:
        return
    its = others.filter(pc.fill_null(pc.equal(of, scalar(lost[0])), False))
    suffixes = suffixes_of(its).unique().to_pylist()
    ours = suffixes_of(files.samples).unique().to_pylist()
    ignore = f", or leave them out (--ignore '{below}{lost[0]}/*')" if files.fields_flag else ""
    raise SourceError(
        f"{files.where} would lose the class {lost[0]}, since its folder has only "
        f"{in_words(by_suffix(its.to_pylist()))}",
        expected=f"{', '.join(ours)} files in each class folder",
        next_step=f"Read them too ({' '.join(f'--suffix {each}' for each in [*ours, *suffixes])}){ignore}",
    )


@dataclass(frozen=True)
class _Location:
    """Where the class folders of a source are.

    Args:
        below: The folders above the class folders, each with a trailing slash.
        split: Canonical name of the split.
        notes: Notes on how the split was chosen.
        within: The folder of the split, with a trailing slash. It is empty if there are no splits.
        others: Folders of other splits with classes, each with a trailing slash.
    """

    below: str
    split: str
    notes: tuple[str, ...] = ()
    within: str = ""
    others: tuple[str, ...] = ()


def _locate(folders: Folders, wanted: str | None) -> _Location:
    """Skip folders that only wrap the classes (`archive/train/cat/1.jpg`), and choose a split."""
    below, lone, where = "", None, folders.files.where
    while True:
        tops = folders.below(below)
        means = {name: split for name in tops if (split := canonical_split(name, tops))}
        if len(set(means.values())) > 1 or len(tops) == len(means) > 1:
            top, notes = choose_split(list(means), wanted, where)
            others = tuple(f"{below}{name}/" for name in means if name != top and means[name] != "test")
            if rest := [name for name in tops if name not in means]:
                notes += (f"folders that are not splits left out: {first_few(rest, len(rest))}",)
            own = f"{below}{top}/"
            return _Location(folders.past_wrappers(own), means[top], notes, own, others)
        wrapper = folders.wrapper(below)
        if wrapper is None:
            break
        lone, below = lone or (wrapper if canonical_split(wrapper) else None), f"{below}{wrapper}/"
    if lone is not None:
        top, notes = choose_split([lone], wanted, where)
        return _Location(below, canonical_split(top) or top, notes)
    return _Location(below, *own_split(where, wanted))


def own_split(where: Path, wanted: str | None) -> tuple[str, tuple[str, ...]]:
    """Return the split of a source without split folders, and notes for the user.

    Args:
        where: The source. Its name may be that of a split.
        wanted: The requested split, or None.

    Raises:
        SourceError: The name of the source is that of another split.
    """
    own = canonical_split(where.absolute().name.partition(".")[0])
    if wanted is None:
        return own or "train", ()
    named = canonical_split(wanted) or wanted
    if own not in (None, named):
        raise SourceError(
            f"{where} is the {own} split by its name, and {wanted!r} was requested",
            expected="a source with this split",
            next_step="Give the folder above it, or that split",
        )
    return named, () if own else (f"no split folders found: all of {where} was taken as split {named}",)


def _classes_of_other_splits(folders: Folders, place: _Location) -> set[str]:
    """Return the names of the class folders in all other splits except test."""
    found: set[str] = set()
    for below in map(folders.past_wrappers, place.others):
        found |= {*folders.below(below), *folders.empty_below(below)}
    return found


def _only_in_other_splits(more: set[str], tops: Sequence[str]) -> tuple[str, ...]:
    count = len(more.difference(tops))
    return (f"{plural(count, 'class', 'classes')} only in other splits counted too",) if count else ()


def _merged(tops: dict[str, set[str]]) -> tuple[str, ...]:
    """Return a note on classes with sub-folders that look like classes: `animals/cats`, `animals/dogs`."""
    below = {name: sorted(rest.rstrip("/") for rest in deep if rest) for name, deep in tops.items()}
    merged = [f"{name} ({first_few(rest, len(rest), 2)})" for name, rest in below.items() if len(rest) > 1]
    if not merged:
        return ()
    count = plural(len(merged), "class", "classes")
    return (f"{count} made of several sub-folders, merged into one: {first_few(merged, len(merged))}",)


def _class_of(names: pa.StringArray, below: str) -> pa.StringArray:
    """Return the first folder below `below` in each name. It is null for a name without such a folder."""
    inside = pc.starts_with(names, below)
    rest = pc.utf8_slice_codeunits(names, len(below)) if below else names
    return pc.if_else(inside, _folder(rest), scalar(None))


def folders_of(names: pa.StringArray) -> list[str]:
    """Return the first-level folders that contain files, sorted by bytes."""
    return sorted(_folder(names).unique().drop_null().to_pylist(), key=str.encode)


def _folder(names: pa.StringArray) -> pa.StringArray:
    """Return the first folder in each name. It is null for a name without a folder."""
    return pc.struct_field(pc.extract_regex(names, r"(?s)^(?P<folder>[^/]*)/"), 0)
