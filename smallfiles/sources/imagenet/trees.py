"""ImageNet as a tree of files: Kaggle's, or prepared with one folder a class in train and val.

    ILSVRC/Data/CLS-LOC/{train/<wnid>/, val/ (flat), test/ (flat)}   Kaggle, LOC_* files beside ILSVRC
    train/<wnid>/  val/<wnid>/                                       prepared

Keys of the Kaggle tree begin with `ILSVRC/Data/CLS-LOC/`, as in the Jülich manifests, at whatever
level of the tree one points.

The trap: a tree whose extraction was interrupted looks like a complete one. Where `ImageSets` lists
what should be there, the lists are compared. Notebook 02 teaches it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from smallfiles.errors import SourceError, first_few
from smallfiles.folders import canonical_split, choose_split
from smallfiles.manifest import Manifest
from smallfiles.progress import plural
from smallfiles.samples import UNLABELLED
from smallfiles.sources.folder import FolderStore
from smallfiles.sources.imagenet.order import refuse_other_order
from smallfiles.sources.imagenet.truth import WNID, Beside, in_order, look_beside
from smallfiles.sources.record import Options, Source
from smallfiles.sources.scanning import Tree, list_folder, sizes_of, walk

_DATA = ("ILSVRC", "Data", "CLS-LOC")
_SETS = {"train": "train_cls.txt", "val": "val.txt", "test": "test.txt"}


@dataclass(frozen=True)
class Place:
    """Where in a tree the splits are.

    Args:
        root: What keys are relative to.
        below: From the root to the folder that holds the splits (or the class folders).
        split: The split that the path itself is, if it is one.
        kaggle: Whether this is Kaggle's tree.
    """

    root: Path
    below: str
    split: str | None
    kaggle: bool

    @property
    def folder(self) -> Path:
        """The folder that holds the splits, or the class folders themselves."""
        return self.root / self.below


def find_kaggle(path: Path) -> Place | None:
    """The place of Kaggle's tree if `path` is at any of its levels, else None."""
    path = path.absolute()
    below = "/".join(_DATA)
    if (path / below).is_dir():
        return Place(path, below, None, True)
    for depth in range(1, 5):
        inner = path.parts[-depth:]
        if inner[:3] == _DATA[:depth] and path.joinpath(*_DATA[depth:]).is_dir():
            split = inner[3] if depth == 4 else None
            return Place(path.parents[depth - 1], below, split, True)
    return None


def find_prepared(path: Path) -> Place:
    """The place of a prepared tree: the path holds splits, or is one."""
    if any(canonical_split(name) for name in list_folder(path).folders):
        return Place(path, "", None, False)
    return Place(path, "", canonical_split(path.absolute().name) or "train", False)


def load_tree(place: Place, options: Options) -> Source:
    """Read one split of an ImageNet tree.

    Raises:
        SourceError: No such split, no images, or nothing that labels them.
    """
    below, split, notes = _split_of(place, options)
    tree = walk(
        place.root, options.suffixes, below=below, follow_links=options.follow_links, threads=options.threads
    )
    if not len(tree):
        raise SourceError(
            f"{tree.root} is no data set: it holds {tree.contents()}",
            expected="ImageNet's JPEG files",
            next_step="Check the path, and whether the extraction finished",
        )
    above = tree.root.absolute()
    beside = look_beside([place.root, place.folder, *list(above.parents)[:2], above], options.labels)
    labels, classes, more = _labels(place, tree, split, beside, options)
    keep = labels != UNLABELLED if split != "test" else np.ones(len(labels), bool)
    paths = tree.paths(f"{below}/" if below else "")
    if not keep.all():
        paths, labels = paths.filter(keep), labels[keep]
    manifest = Manifest.from_columns(
        paths,
        labels,
        name="imagenet",
        split=split,
        classes=tuple(classes),
        sizes=sizes_of(place.root, paths, options.threads) if options.sizes else None,
    )
    refuse_other_order(manifest, options.label_order)
    notes += more + _compared_with_lists(place, tree, split) + tree.notes()
    return Source(manifest, FolderStore(place.root), _kind(place), notes, place.root)


def _kind(place: Place) -> str:
    return "imagenet, Kaggle tree" if place.kaggle else "imagenet, prepared tree"


def _split_of(place: Place, options: Options) -> tuple[str, str, tuple[str, ...]]:
    """Folder of the split, its canonical name, and notes."""
    if place.split is not None and not place.kaggle:
        if options.split not in (None, place.split) and canonical_split(place.root.absolute().name):
            raise SourceError(
                f"{place.root} is the {place.split} split, and {options.split!r} was asked for",
                expected="a folder that holds this split",
                next_step="Give the folder above it",
            )
        return "", options.split or place.split, ()
    found = [name for name in list_folder(place.folder).folders if canonical_split(name)]
    if not found:
        raise SourceError(
            f"{place.folder} has no train, val or test folder",
            expected="the splits of ImageNet",
            next_step="Check whether the extraction finished",
        )
    name, notes = choose_split(found, options.split or place.split, place.folder)
    return f"{place.below}/{name}".lstrip("/"), canonical_split(name) or name, notes


def _labels(
    place: Place, tree: Tree, split: str, beside: Beside, options: Options
) -> tuple[npt.NDArray[np.int32], list[str], tuple[str, ...]]:
    folders = [folder.path.split("/", 1)[0] for folder in tree.folders]
    own = sorted({name for name in folders if WNID.fullmatch(name)})
    known = beside.classes() or sorted(set(own) | set(_train_classes(place, tree)))
    if options.unlabelled or (split == "test" and not own):
        note = f"{plural(len(tree), 'image')} without a class: label {UNLABELLED}"
        return np.full(len(tree), UNLABELLED, np.int32), in_order(known, options.label_order, beside), (note,)
    if own:
        return _by_folder(tree, folders, known, beside, options)
    names = [name for folder in tree.folders for name in folder.files]
    wnids, origin = beside.wnids_of_val(names)
    classes = in_order(known or {wnid for wnid in wnids if wnid}, options.label_order, beside)
    rank = {wnid: label for label, wnid in enumerate(classes)}
    labels = np.array([rank.get(wnid or "", UNLABELLED) for wnid in wnids], np.int32)
    without = [name for name, label in zip(names, labels.tolist(), strict=True) if label == UNLABELLED]
    return (
        labels,
        classes,
        (f"labels read from {origin}", *_unlabelled_notes(without, len(names), origin, options)),
    )


def _by_folder(
    tree: Tree, folders: list[str], known: list[str], beside: Beside, options: Options
) -> tuple[npt.NDArray[np.int32], list[str], tuple[str, ...]]:
    classes = in_order(known, options.label_order, beside)
    rank = {wnid: label for label, wnid in enumerate(classes)}
    odd = sorted({n for n, f in zip(folders, tree.folders, strict=True) if n and n not in rank and f.files})
    if odd:
        raise SourceError(
            f"{tree.root} has folders that no class list names: {first_few(odd, len(odd))}",
            expected="folders named by the wnids of the classes",
            next_step="Move them away, or read the tree as a plain folder (kind folder)",
        )
    counts = [len(folder.files) for folder in tree.folders]
    labels = np.repeat(np.array([rank.get(name, UNLABELLED) for name in folders], np.int32), counts)
    notes = []
    if loose := int((labels == UNLABELLED).sum()):
        notes.append(f"{plural(loose, 'image')} outside of any class folder left aside")
    filled = {name for name, folder in zip(folders, tree.folders, strict=True) if folder.files}
    if empty := [name for name in classes if name not in filled]:
        notes.append(
            f"{plural(len(empty), 'class', 'classes')} without images: {first_few(empty, len(empty))}"
        )
    return labels, classes, tuple(notes)


def _train_classes(place: Place, tree: Tree) -> list[str]:
    """Class folders of the train split beside the one that is read, so that labels agree."""
    folder = place.folder if place.split is None or place.kaggle else tree.root.absolute().parent
    train = folder / "train"
    if train == tree.root.absolute() or not train.is_dir():
        return []
    return [name for name in list_folder(train).folders if WNID.fullmatch(name)]


def _unlabelled_notes(without: list[str], total: int, origin: str, options: Options) -> list[str]:
    if not without:
        return []
    if options.strict or len(without) == total:
        raise SourceError(
            f"{origin} has no label for {plural(len(without), 'image')}: {first_few(without, len(without))}",
            expected="a label for each validation image",
            next_step="Check that both are of the same year (ILSVRC2012)",
        )
    return [f"{plural(len(without), 'image')} not in {origin} left aside: {first_few(without, len(without))}"]


def _compared_with_lists(place: Place, tree: Tree, split: str) -> tuple[str, ...]:
    """What `ImageSets/CLS-LOC` lists and the tree lacks."""
    listing = place.root / "ILSVRC" / "ImageSets" / "CLS-LOC" / _SETS.get(split, "")
    if not place.kaggle or not listing.is_file():
        return ()
    try:
        listed = [line.partition(" ")[0] for line in listing.read_text(encoding="utf-8").split("\n") if line]
    except (OSError, UnicodeDecodeError) as error:
        return (f"{listing.name} could not be read ({error})",)
    if len(listed) == len(tree):
        return ()
    there = {path.as_py().rpartition(".")[0] for path in tree.paths()}
    missing = sorted(set(listed) - there)
    return (
        f"{listing.name} lists {plural(len(listed), 'image')} and {len(tree):,} are there"
        + (f"; missing: {first_few(missing, len(missing))}" if missing else ""),
    )
