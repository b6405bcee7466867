"""The class of each picture of ImageNet, from its name or from the label files.

    LOC_synset_mapping.txt   n01440764 tench, Tinca tinca        (first blank splits)
    LOC_val_solution.csv     ILSVRC2012_val_00048981,n03995372 85 1 499 272   (class, then boxes)

The trap: class names are not unique ("crane" and "maillot" occur twice), wnids are. The rows of the solution
file are not sorted. The names of flat validation pictures contain no class; it comes from the solution file
or the devkit, whose ids are not the labels of PyTorch models (see `order`). Notebook 02 reads all three.
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
from smallfiles.sources.imagenet.devkit import Devkit, is_devkit, load_devkit
from smallfiles.sources.imagenet.order import refuse_other_order
from smallfiles.sources.scanning import bad_line, lines_of, read_text

MAPPING = "LOC_synset_mapping.txt"
VAL_SOLUTION = "LOC_val_solution.csv"
DEVKIT = "ILSVRC2012_devkit_t12"
WNID = re.compile(r"n\d{8}")
_IN_NAME = r"^(?:.*?/)?(?P<wnid>n\d{8})[_/]"  # a folder takes precedence over the name of the file
_VAL_NUMBER = re.compile(r"ILSVRC2012_val_(\d{8})")


@dataclass(frozen=True)
class LabelFiles:
    """The label files that were found; each is read when it is needed.

    Args:
        mapping: `LOC_synset_mapping.txt`.
        solution: `LOC_val_solution.csv`.
        kit: The development kit.
        searched: Where they were searched for.
    """

    mapping: Path | None
    solution: Path | None
    kit: Path | None
    searched: tuple[Path, ...]

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
        """Class of each validation image by its name, and the file it comes from.

        Raises:
            SourceError: There is no such file.
        """
        if self.solution is not None:
            found = read_solution(self.solution)
            return [found.get(_stem(name)) for name in names], self.solution.name
        if self.devkit is not None:
            numbers = (_VAL_NUMBER.match(_stem(name)) for name in names)
            return [self.devkit.wnid_of_val(int(n[1])) if n else None for n in numbers], "the devkit"
        raise SourceError(
            "no file lists the classes of the validation images (searched "
            f"{first_few(self.searched, len(self.searched))})",
            expected=f"{VAL_SOLUTION} (Kaggle) or the folder {DEVKIT} (official) next to the images",
            next_step="Put it there, or give its path (--labels PATH)",
        )


def label(
    names: pa.StringArray, split: str, files: LabelFiles, options: SourceOptions, more: Iterable[str] = ()
) -> Labelled:
    """Find the class of each picture.

    Args:
        names: Paths of the pictures.
        split: Canonical name; pictures of `test` may have no class.
        files: The label files.
        options: `unlabelled` and `strict` are used.
        more: Classes that occur in other splits.

    Raises:
        SourceError: There are no classes, or an image has one that no class list names.
    """
    wnids: pa.Array = pc.struct_field(pc.extract_regex(names, _IN_NAME), 0)
    in_names = wnids.null_count < len(wnids)
    if options.unlabelled or (split == "test" and not in_names):
        return unlabelled(names, files.classes() or sorted(more))
    origin, notes = "a class folder", tuple[str, ...]()
    if not in_names:
        found, origin = files.wnids_of_val(names.to_pylist())
        wnids, notes = column(found, pa.string()), (f"labels read from {origin}",)
    occurring = set(wnids.drop_null().unique().to_pylist())
    classes = files.classes() or sorted(occurring.union(more))
    if unlisted := sorted(occurring - set(classes)):
        raise SourceError(
            f"there are images of classes that no class list names: {first_few(unlisted, len(unlisted))}",
            expected="classes of ILSVRC2012, and label files that belong to these images",
            next_step="Move them away, or read the tree as a plain folder (--source folder)",
        )
    labelled = by_class(names, wnids, classes, origin, strict=options.strict)
    return replace(labelled, notes=notes + labelled.notes)


def manifest_of(labelled: Labelled, names: pa.StringArray, split: str, sizes: object) -> Manifest:
    """The manifest of the pictures that are kept; refuses another order of the 1,000 classes."""
    manifest = Manifest.from_columns(
        names, labelled.labels, name="imagenet", split=split, classes=labelled.classes, sizes=sizes
    )
    refuse_other_order(manifest)
    return manifest


def find_label_files(folders: Iterable[Path], labels: Path | None) -> LabelFiles:
    """Find the label files: first where the user specifies, then in `folders`.

    Raises:
        SourceError: The user's path does not exist or is not a label file.
    """
    searched = tuple(dict.fromkeys([*([labels] if labels else []), *folders]))
    mapping, solution = (
        next((path for each in searched for path in (each, each / name) if _is_file_called(name, path)), None)
        for name in (MAPPING, VAL_SOLUTION)
    )
    kits = (each / name for each in searched for name in ("", DEVKIT, f"{DEVKIT}.tar.gz", f"{DEVKIT}.tar"))
    kit = next(filter(is_devkit, kits), None)
    used = [path for path in (mapping, solution, kit) if path is not None]
    if labels is not None and not any(path == labels or labels in path.parents for path in used):
        raise SourceError(
            f"{labels} contains no labels of ImageNet" if labels.exists() else f"{labels} does not exist",
            expected=f"{MAPPING}, {VAL_SOLUTION}, {DEVKIT} or a folder with these",
            next_step="Check the path",
        )
    return LabelFiles(mapping, solution, kit, searched)


def _is_file_called(name: str, path: Path) -> bool:
    return path.name == name and path.is_file()


def read_mapping(path: Path) -> dict[str, str]:
    """Names of the classes by wnid, from `LOC_synset_mapping.txt`.

    Raises:
        SourceError: A line does not begin with a wnid.
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
        SourceError: The header or a row is malformed.
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
