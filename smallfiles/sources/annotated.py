"""Labels of a flat folder from a `*_annotations.txt` beside it, as tiny-imagenet's validation set has.

    val/images/val_0.JPEG        val/val_annotations.txt: val_0.JPEG<TAB>n03444034<TAB>0 0 62 57

The trap: read as class folders, this tree has a single class called "images", and training on it
reports a validation accuracy that means nothing. Notebook 02 shows it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from smallfiles.errors import SourceError, first_few
from smallfiles.folders import canonical_split
from smallfiles.progress import plural
from smallfiles.sources.scanning import Folder, Tree, list_folder

_CONTAINER = "images"


def is_needed(tree: Tree, classes: list[str]) -> bool:
    """Whether the only "class" is a mere container of images."""
    is_split = canonical_split(tree.root.absolute().name) is not None
    return classes == [_CONTAINER] and (is_split or _find(tree.root) is not None)


def label(tree: Tree) -> tuple[Tree, np.ndarray, list[str], tuple[str, ...]] | None:
    """Label a flat tree by the annotations file in its root, or return None if there is none.

    Returns:
        The annotated part of the tree, its labels, the classes (all of the data set where they are
        written beside it, else those that occur) and notes.

    Raises:
        SourceError: The file cannot be read or names no image of the tree.
    """
    file = _find(tree.root)
    if file is None:
        return None
    class_of = _read(file)
    kept = Tree(
        tree.root,
        tuple(Folder(f.path, [name for name in f.files if name in class_of]) for f in tree.folders),
    )
    if not len(kept):
        raise SourceError(
            f"{file} names none of the {plural(len(tree), 'image')} beside it",
            expected="lines such as val_0.JPEG<TAB>n03444034",
            next_step="Check that it belongs to these images",
        )
    classes = sorted(set(class_of.values()) | set(_all_classes(tree.root)))
    rank = {name: number for number, name in enumerate(classes)}
    labels = [rank[class_of[name]] for folder in kept.folders for name in folder.files]
    notes = [f"labels read from {file.name}"]
    if missing := len(tree) - len(kept):
        notes.append(f"{plural(missing, 'image')} without an annotation left aside")
    if absent := sorted(class_of.keys() - {name for f in kept.folders for name in f.files}):
        notes.append(f"{plural(len(absent), 'annotated image')} missing: {first_few(absent, len(absent))}")
    return kept, np.array(labels, np.int32), classes, tuple(notes)


def _find(root: Path) -> Path | None:
    found = sorted(root.glob("*_annotations.txt"))
    return found[0] if found else None


def _read(file: Path) -> dict[str, str]:
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
        rows = [line.rstrip("\r").split("\t") for line in lines if line.strip()]
        return {row[0]: row[1] for row in rows}
    except (OSError, UnicodeDecodeError, IndexError) as error:
        raise SourceError(
            f"{file} cannot be read as annotations ({error})",
            expected="one line an image: name, tab, class",
            next_step="Fetch the data set again",
        ) from error


def _all_classes(root: Path) -> list[str]:
    """All classes of the data set: `wnids.txt` or the class folders of `train`, beside the split."""
    above = root.absolute().parent
    try:
        if (above / "wnids.txt").is_file():
            return (above / "wnids.txt").read_text(encoding="utf-8").split()
        return list_folder(above / "train").folders if (above / "train").is_dir() else []
    except (OSError, UnicodeDecodeError):
        return []
