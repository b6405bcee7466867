"""The class of each picture of ImageNet: by its name, or by the files that stand beside the pictures.

    LOC_synset_mapping.txt   n01440764 tench, Tinca tinca        (first blank splits)
    LOC_val_solution.csv     ILSVRC2012_val_00048981,n03995372 85 1 499 272   (boxes; first word is it)

The trap: class names are no keys ("crane" and "maillot" occur twice), wnids are. The rows of the
solution file are not sorted. Validation pictures that lie flat tell nothing by their names; their classes
come from the solution file or the devkit, whose ids are not the labels of PyTorch models (see `order`).
Notebook 02 reads all three.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.arrays import column
from smallfiles.errors import SourceError, first_few
from smallfiles.folders import SourceOptions
from smallfiles.manifest import Manifest
from smallfiles.manifest.class_folders import Labelled, by_class, unlabelled
from smallfiles.sources.imagenet.devkit import Devkit, is_devkit
from smallfiles.sources.imagenet.devkit import load as load_devkit
from smallfiles.sources.imagenet.order import refuse_other_order
from smallfiles.sources.scanning import bad_line, lines_of, read_text

MAPPING = "LOC_synset_mapping.txt"
VAL_SOLUTION = "LOC_val_solution.csv"
DEVKIT = "ILSVRC2012_devkit_t12"
WNID = re.compile(r"n\d{8}")
_IN_NAME = r"^(?:.*?/)?(?P<wnid>n\d{8})[_/]"  # the folder tells the class, before the file's own name
_VAL_NUMBER = re.compile(r"ILSVRC2012_val_(\d{8})")


@dataclass(frozen=True)
class Beside:
    """The label files that were found; each is read when it is needed.

    Args:
        mapping: `LOC_synset_mapping.txt`.
        solution: `LOC_val_solution.csv`.
        kit: The development kit.
        looked: Where these were looked for.
    """

    mapping: Path | None
    solution: Path | None
    kit: Path | None
    looked: tuple[Path, ...]

    @cached_property
    def devkit(self) -> Devkit | None:
        """The development kit, if there is one."""
        return None if self.kit is None else load_devkit(self.kit)

    def classes(self) -> list[str]:
        """All wnids, sorted, if a file lists them; else empty."""
        if self.mapping is not None:
            return sorted(read_mapping(self.mapping))
        return sorted(self.devkit.wnid_of_id.values()) if self.devkit else []

    def wnids_of_val(self, names: Iterable[str]) -> tuple[list[str | None], str]:
        """Class of each validation image by its name, and which file said so.

        Raises:
            SourceError: There is no file that could say so.
        """
        if self.solution is not None:
            found = read_solution(self.solution)
            return [found.get(_stem(name)) for name in names], self.solution.name
        if self.devkit is not None:
            numbers = (_VAL_NUMBER.match(_stem(name)) for name in names)
            return [self.devkit.wnid_of_val(int(n[1])) if n else None for n in numbers], "the devkit"
        raise SourceError(
            "no file says which class each validation image has (looked in "
            f"{first_few(self.looked, len(self.looked))})",
            expected=f"{VAL_SOLUTION} (Kaggle) or the folder {DEVKIT} (official) beside the images",
            next_step="Put it there, or say where it is with labels (--labels PATH)",
        )


def label(
    names: pa.StringArray, split: str, beside: Beside, options: SourceOptions, more: Iterable[str] = ()
) -> Labelled:
    """Find the class of each picture.

    Args:
        names: Paths of the pictures.
        split: Canonical name; pictures of `test` may have no class.
        beside: The label files.
        options: `unlabelled` and `strict` count here.
        more: Classes that occur in other splits.

    Raises:
        SourceError: Nothing tells the classes, or an image has one that no class list names.
    """
    wnids: pa.Array = pc.struct_field(pc.extract_regex(names, _IN_NAME), 0)
    in_names = wnids.null_count < len(wnids)
    if options.unlabelled or (split == "test" and not in_names):
        return unlabelled(names, beside.classes() or sorted(more))
    origin, notes = "a class folder", tuple[str, ...]()
    if not in_names:
        found, origin = beside.wnids_of_val(names.to_pylist())
        wnids, notes = column(found, pa.string()), (f"labels read from {origin}",)
    occurring = set(wnids.drop_null().unique().to_pylist())
    classes = beside.classes() or sorted(occurring.union(more))
    if unlisted := sorted(occurring - set(classes)):
        raise SourceError(
            f"there are images of classes that no class list names: {first_few(unlisted, len(unlisted))}",
            expected="classes of ILSVRC2012, and label files that belong to these images",
            next_step="Move them away, or read the tree as a plain folder (kind folder)",
        )
    labelled = by_class(names, wnids, classes, origin, strict=options.strict)
    return replace(labelled, notes=notes + labelled.notes)


def manifest_of(labelled: Labelled, names: pa.StringArray, split: str, sizes: object) -> Manifest:
    """The manifest of the pictures that are kept, unless the real classes came out in another order."""
    manifest = Manifest.from_columns(
        names, labelled.labels, name="imagenet", split=split, classes=labelled.classes, sizes=sizes
    )
    refuse_other_order(manifest)
    return manifest


def look_beside(places: Iterable[Path], labels: Path | None) -> Beside:
    """Find the label files: first where the user says, then in `places`.

    Raises:
        SourceError: What the user says is not there or no label file.
    """
    looked = tuple(dict.fromkeys([*([labels] if labels else []), *places]))
    mapping = solution = kit = None
    for place in looked:
        mapping = mapping or _file(place, MAPPING)
        solution = solution or _file(place, VAL_SOLUTION)
        kits = (place, place / DEVKIT, place / f"{DEVKIT}.tar.gz", place / f"{DEVKIT}.tar")
        kit = kit or next((path for path in kits if is_devkit(path)), None)
    if labels is not None and not _is_used(labels, mapping, solution, kit):
        raise SourceError(
            f"{labels} holds no labels of ImageNet" if labels.exists() else f"{labels} does not exist",
            expected=f"{MAPPING}, {VAL_SOLUTION}, {DEVKIT} or a folder with these",
            next_step="Check the path",
        )
    return Beside(mapping, solution, kit, looked)


def _file(place: Path, name: str) -> Path | None:
    if place.name == name and place.is_file():
        return place
    return place / name if (place / name).is_file() else None


def _is_used(labels: Path, *found: Path | None) -> bool:
    return any(path is not None and (path == labels or labels in path.parents) for path in found)


def read_mapping(path: Path) -> dict[str, str]:
    """Names of the classes by wnid, from `LOC_synset_mapping.txt`.

    Raises:
        SourceError: A line begins with no wnid.
    """
    names = {}
    for number, line in lines_of(read_text(path)):
        wnid, _, words = line.strip().partition(" ")
        if not WNID.fullmatch(wnid):
            raise bad_line(path, number, line, "a line such as: n01440764 tench, Tinca tinca")
        names[wnid] = words
    return names


def read_solution(path: Path) -> dict[str, str]:
    """Class of each image by its id, from `LOC_val_solution.csv` or `LOC_train_solution.csv`.

    Raises:
        SourceError: The header or a row is not of that kind.
    """
    (_, header), *rows = lines_of(read_text(path)) or [(1, "")]
    if header.strip() != "ImageId,PredictionString":
        raise bad_line(path, 1, header, "the header ImageId,PredictionString")
    found = {}
    for number, line in rows:
        image, _, prediction = line.partition(",")
        wnid = prediction.strip().partition(" ")[0]
        if not image or not WNID.fullmatch(wnid):
            raise bad_line(path, number, line, "a row such as: ILSVRC2012_val_00048981,n03995372 85 1 499")
        found[image] = wnid
    return found


def _stem(name: str) -> str:
    return name.rpartition("/")[2].partition(".")[0]
