"""Labels of the images of a tree: a class for each where one is known, from folders, lists or annotations.

    val/images/val_0.JPEG        val/val_annotations.txt: val_0.JPEG<TAB>n03444034<TAB>0 0 62 57

The trap: read as class folders, tiny-imagenet's validation set has a single class called "images", and
training on it reports a validation accuracy that means nothing. So its annotations are looked for first.
Notebook 02 shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.errors import SourceError, first_few
from smallfiles.folders import canonical_split
from smallfiles.manifest.arrays import as_mask, column, to_numpy
from smallfiles.progress import plural
from smallfiles.samples import UNLABELLED
from smallfiles.sources.scanning import Tree, list_folder

_CONTAINER = "images"


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
    names: pa.StringArray, of: pa.StringArray, classes: Sequence[str], origin: str, *, strict: bool
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


def is_container(tree: Tree, classes: list[str]) -> bool:
    """Whether the only "class" is a mere container of images."""
    is_split = canonical_split(tree.root.absolute().name) is not None
    return classes == [_CONTAINER] and (is_split or _find(tree.root) is not None)


def by_annotations(tree: Tree, names: pa.StringArray, *, strict: bool) -> Labelled | None:
    """Label a flat tree by the annotations file in its root, or return None if there is none.

    Classes are all of the data set where they are written beside it, else those that occur.

    Raises:
        SourceError: The file cannot be read or names no image of the tree.
    """
    file = _find(tree.root)
    if file is None:
        return None
    class_of = _read(file)
    found = [name for folder in tree.folders for name in folder.files]
    of = column([class_of.get(name) for name in found], pa.string())
    classes = sorted(set(class_of.values()) | set(_all_classes(tree.root)))
    labelled = by_class(names, of, classes, file.name, strict=strict)
    notes = (f"labels read from {file.name}", *labelled.notes)
    if absent := sorted(class_of.keys() - set(found)):
        notes += (f"{plural(len(absent), 'annotated image')} missing: {first_few(absent, len(absent))}",)
    return Labelled(labelled.keep, labelled.labels, labelled.classes, notes)


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
