"""ImageNet-1k in every form that is found on clusters.

    ILSVRC/Data/CLS-LOC/{train/<wnid>/, val/ (flat), test/ (flat)}   Kaggle, LOC_* files next to ILSVRC
    train/<wnid>/  val/<wnid>/                                       prepared
    ILSVRC2012_img_train.tar (a tar of 1000 tars), ILSVRC2012_img_val.tar (flat), and the development kit

Classes are keyed by wnid, and the label is the rank of the sorted wnid. The official tars are read in place,
which saves 1.28 million inodes. Keys of the Kaggle tree begin with `ILSVRC/Data/CLS-LOC/`, as in the Jülich
manifests, whichever level of the tree is given.

The trap: a tree whose extraction was interrupted looks like a complete one. So it is compared with the lists
in `ImageSets`, where they exist. `check_label_order` says which of two label orders a manifest has.
Notebook 02 builds these manifests, and notebook 05 packs shards from the tar of tars.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from smallfiles.arrays import column
from smallfiles.errors import SourceError, first_few
from smallfiles.folders import SourceOptions, by_suffix, canonical_split, choose_split, in_words
from smallfiles.formats.tar.archive import Archive
from smallfiles.manifest.listing import Files
from smallfiles.progress import plural
from smallfiles.sources import declarations, folder
from smallfiles.sources import imagenet_labels as labels
from smallfiles.sources.record import Source, chosen_split
from smallfiles.sources.scanning import Look, Notes, Tree, lines_of, list_folder, read_text, tree_of
from smallfiles.sources.stores import FolderStore
from smallfiles.sources.tarball import TarStore, open_archive, samples_of

check_label_order, is_devkit, load_devkit = labels.check_label_order, labels.is_devkit, labels.load_devkit


def load(path: Path, options: SourceOptions) -> Source:
    """Read ImageNet from a tree at any of its levels, a folder with the official tars, or one of them.

    Args:
        path: The tree, folder or tar.
        options: See `SourceOptions`.

    Raises:
        SourceError: It is not ImageNet, lacks the split or its labels, or labels are in another order.
    """
    if path.is_file():
        return from_official(open_archive(path), options)
    if tars := find_tars(path):
        split, notes = choose_split(list(tars), options.split, path)
        return from_official(open_archive(tars[split]), options, notes)
    if not find_kaggle(path) and _is_tiny(path):
        return replace(folder.load(path, options), kind="tiny-imagenet")
    return load_tree(path, options)


def recognises(look: Look) -> bool:
    """Whether a folder looks like ImageNet."""
    if find_tars(look.path) or find_kaggle(look.path) or _is_tiny(look.path):
        return True
    if splits := look.splits():
        return any(_are_wnids(look.at(name).folders) for name in splits)
    flat_val = any(name.startswith("ILSVRC2012_val_") for name in look.at().files[:100])
    return _are_wnids(look.at().folders) or flat_val


def _are_wnids(names: list[str]) -> bool:
    return bool(names) and all(labels.WNID.fullmatch(name) for name in names)


def _is_tiny(path: Path) -> bool:
    """Whether this is tiny-imagenet or one of its splits, whose validation set has its own annotations."""
    if any(path.glob("*_annotations.txt")) or (path / "wnids.txt").is_file():
        return True
    return (path.absolute().parent / "wnids.txt").is_file() and canonical_split(
        path.absolute().name
    ) is not None


_TARS = {
    "train": "ILSVRC2012_img_train.tar",
    "val": "ILSVRC2012_img_val.tar",
    "test": "ILSVRC2012_img_test*.tar",
}
_ROLES = {
    "train": r"^(train/)?n\d{8}/n\d{8}_\d+\.JPEG$",
    "val": r"^(val/)?(n\d{8}/)?ILSVRC2012_val_\d{8}\.JPEG$",
    "test": r"^(test/)?ILSVRC2012_test_\d{8}\.JPEG$",
}
_LOOK_AT = 200


def find_tars(folder: Path) -> dict[str, Path]:
    """The official tars in a folder, by split."""
    found = {split: sorted(folder.glob(pattern)) for split, pattern in _TARS.items()}
    return {split: paths[0] for split, paths in found.items() if paths and paths[0].is_file()}


def role_of(archive: Archive) -> str | None:
    """The split of ImageNet that an archive is, by its member names; None if it is something else."""
    names = archive.take(np.flatnonzero(archive.having((".jpeg",)))[:_LOOK_AT]).names.to_pylist()
    for split, pattern in _ROLES.items():
        if names and all(re.match(pattern, name) for name in names):
            return split
    return None


def from_official(archive: Archive, options: SourceOptions, notes: Notes = ()) -> Source:
    """Label the files of an official tar.

    Args:
        archive: Index of the tar.
        options: `split`, `labels`, `strict` and `unlabelled` are used.
        notes: On the choice of the tar.

    Raises:
        SourceError: It is no ImageNet tar, or there are no labels for the validation images.
    """
    options.refuse_unsupported("ImageNet in tars", archive.path)
    split = role_of(archive)
    if split is None:
        there = in_words(by_suffix(archive.names.to_pylist()))
        raise SourceError(
            f"{archive.path} is no tar of ImageNet: it contains {there}",
            expected=f"{' or '.join(_TARS.values())}",
            next_step="Check the path, or read it as any tar (--source tarball)",
        )
    if options.split is not None and canonical_split(options.split) != split:
        raise SourceError(
            f"{archive.path} is the {split} split, and {options.split!r} was requested",
            expected="the tar of this split",
            next_step=f"Give {_TARS.get(canonical_split(options.split) or '', 'another tar')}",
        )
    samples = samples_of(archive, options)
    label_files = labels.find_label_files([archive.path.absolute().parent], options.labels)
    found = labels.label(samples.names, split, label_files, options)
    files = Files(archive.path, samples.names, store=TarStore(archive), sizes=samples.sizes)
    notes += archive.notes + found.notes
    return labels.labelled_source(files, found, split, "imagenet, official tar", notes, options)


_BOXES = "ILSVRC/Annotations"
_DATA = ("ILSVRC", "Data", "CLS-LOC")
_LISTS = {"train": "train_cls.txt", "val": "val.txt", "test": "test.txt"}


def find_kaggle(path: Path) -> tuple[Path, str | None] | None:
    """The root of Kaggle's tree if `path` is at any of its levels, and the split that `path` is, if any."""
    path = path.absolute()
    if path.joinpath(*_DATA).is_dir():
        return path, None
    for depth in range(1, 5):
        inner = path.parts[-depth:]
        if inner[:3] == _DATA[:depth] and path.joinpath(*_DATA[depth:]).is_dir():
            return path.parents[depth - 1], inner[3] if depth == 4 else None
    return None


def load_tree(path: Path, options: SourceOptions) -> Source:
    """Read one split of an ImageNet tree.

    Raises:
        SourceError: No such split, no images, or no labels for them.
    """
    options.refuse_unsupported("ImageNet in folders", path)
    kaggle = find_kaggle(path)
    root, own = kaggle or (path, None)
    below, split, notes = _find_split(root, "/".join(_DATA) if kaggle else "", own, options)
    tree = tree_of(root, options, below)
    if not len(tree):
        raise folder.no_images(tree, options)
    above = tree.root.absolute()
    label_files = labels.find_label_files([root, above.parent, above.parent.parent, above], options.labels)
    names = tree.paths(f"{below}/" if below else "")
    found = labels.label(names, split, label_files, options, _classes_of_train(above))
    notes += (
        found.notes
        + tree.notes()
        + declarations.ignored_note(tree.root, tree.ignored(), options) * bool(tree.ignored())
    )
    beside = [f"{below}/{name}".lstrip("/") for name in tree.other_paths().to_pylist()]
    beside += [name for name in list_folder(root, options.ignore).files if not name.startswith("LOC_")]
    others = column([name for name in beside if not name.lower().endswith(options.suffixes)], pa.string())
    if kaggle and (root / _BOXES).is_dir():
        notes += (f"{_BOXES} has boxes, which are not read",)
    if kaggle:
        notes += _compared_with_list(root / "ILSVRC/ImageSets/CLS-LOC" / _LISTS.get(split, ""), tree)
    kind = "imagenet, Kaggle tree" if kaggle else "imagenet, prepared tree"
    files = Files(root, names, others, store=FolderStore(root, follow_links=options.follow_links))
    return labels.labelled_source(files, found, split, kind, notes, options)


def _find_split(root: Path, below: str, own: str | None, options: SourceOptions) -> tuple[str, str, Notes]:
    """Folder of the split, its canonical name, and notes; there may be other folders too."""
    found = [name for name in list_folder(root / below).folders if canonical_split(name)]
    name, split, notes = chosen_split(found, options.split or own, root / below if found else root)
    return f"{below}/{name}".lstrip("/") if name else "", split, notes


def _classes_of_train(split: Path) -> list[str]:
    """Class folders of the train split, so that labels of all splits agree."""
    train = split.parent / "train"
    names = list_folder(train).folders if train != split and train.is_dir() else []
    return [name for name in names if labels.WNID.fullmatch(name)]


def _compared_with_list(listing: Path, tree: Tree) -> Notes:
    """Images that `ImageSets/CLS-LOC` lists and the tree lacks."""
    if not listing.is_file():
        return ()
    listed = [line.partition(" ")[0] for _, line in lines_of(read_text(listing))]
    if len(listed) == len(tree):
        return ()
    there = {path.as_py().rpartition(".")[0] for path in tree.paths()}
    missing = sorted(set(listed) - there)
    return (
        f"{listing.name} lists {plural(len(listed), 'image')} and {len(tree):,} are there"
        + (f"; missing: {first_few(missing)}" if missing else ""),
    )
