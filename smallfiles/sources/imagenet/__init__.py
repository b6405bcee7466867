"""ImageNet-1k in every form that is found on clusters.

Kaggle's tree with its `LOC_*` files, a prepared tree, the official tars read in place with the
devkit. Classes are keyed by wnid; labels are the rank of the sorted wnid.

The trap: there are two label orders; `check_label_order` determines which one a manifest uses.
Notebook 02 builds all of these manifests.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from smallfiles.folders import SourceOptions, canonical_split
from smallfiles.sources import folder
from smallfiles.sources.imagenet import official, trees
from smallfiles.sources.imagenet.devkit import is_devkit, load_devkit
from smallfiles.sources.imagenet.labels import WNID
from smallfiles.sources.imagenet.order import check_label_order
from smallfiles.sources.record import Source
from smallfiles.sources.scanning import list_folder
from smallfiles.sources.tarball import open_archive

__all__ = ["check_label_order", "is_devkit", "load", "load_devkit", "recognises"]


def load(path: Path, options: SourceOptions) -> Source:
    """Read ImageNet from a tree at any of its levels, a folder with the official tars, or one of them.

    Args:
        path: The tree, folder or tar.
        options: See `SourceOptions`.

    Raises:
        SourceError: It is not ImageNet, lacks the split or its labels, or labels are in another order.
    """
    if path.is_file():
        return official.from_archive(open_archive(path), options)
    if official.find_tars(path):
        tar, notes = official.choose_tar(path, options)
        return official.from_archive(open_archive(tar), options, notes)
    if not trees.find_kaggle(path) and _is_tiny(path):
        return replace(folder.load(path, options), kind="tiny-imagenet")
    return trees.load_tree(path, options)


def recognises(path: Path) -> bool:
    """Whether a folder looks like ImageNet; costs a few listings."""
    if official.find_tars(path) or trees.find_kaggle(path) or _is_tiny(path):
        return True
    listed = list_folder(path)
    splits = [name for name in listed.folders if canonical_split(name)]
    if not splits:
        flat_val = any(name.startswith("ILSVRC2012_val_") for name in listed.files[:100])
        return _are_wnids(listed.folders) or flat_val
    return any(_are_wnids(list_folder(path / name).folders) for name in splits)


def _are_wnids(names: list[str]) -> bool:
    return bool(names) and all(WNID.fullmatch(name) for name in names)


def _is_tiny(path: Path) -> bool:
    """Whether this is tiny-imagenet or one of its splits, whose validation set has its own annotations."""
    if any(path.glob("*_annotations.txt")) or (path / "wnids.txt").is_file():
        return True
    return (path.absolute().parent / "wnids.txt").is_file() and canonical_split(
        path.absolute().name
    ) is not None
