"""Boxes from annotations: COCO's JSON, YOLO's text files, Pascal VOC's XML.

    boxes       list<list<double>>  [x1, y1, x2, y2] in pixels of the stored image, for all three alike
    box_labels  list<int64>         numbers of `Manifest.classes`; `label` is -1, since an image has no class

`boxes` has the full list of fields. An image without boxes has empty lists.

The trap: each format counts pixels and classes in its own way, so what was converted, left out or looks wrong
is said. docs/recipes.md has an example.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.arrays import file_names_of, folders_of, from_numpy, stems_of
from smallfiles.errors import SourceError, first_few
from smallfiles.faults import summary_of
from smallfiles.folders import SourceOptions
from smallfiles.manifest.listing import Files
from smallfiles.progress import plural
from smallfiles.samples import UNLABELLED
from smallfiles.sources import declarations
from smallfiles.sources.annotations import coco, voc, yolo
from smallfiles.sources.annotations.boxes import Annotated, look
from smallfiles.sources.pairing import is_part
from smallfiles.sources.record import Samples, Source, files_of, source_of
from smallfiles.sources.scanning import tree_of


def recognises(path: Path, options: SourceOptions) -> bool:
    """Whether a folder holds images with boxes in one of the three forms; costs a few listings."""
    return bool(_readers(path, options))


def load(path: Path, options: SourceOptions) -> Source:
    """Read the images of one split with their boxes.

    Args:
        path: A folder that `recognises` takes.
        options: `split` chooses; `labels` may name one JSON of several; `strict` refuses what is left out.

    Raises:
        SourceError: The annotations are damaged, or do not belong to the images.
        ManifestError: An image is listed twice.
    """
    options.refuse_unsupported("a folder with boxes", path)
    (name, read), *others = _readers(path, options).items()
    found = read(path, options)
    flawed, outside = found.boxes.check(found.keys, found.sizes)
    tree = tree_of(path, options)
    files = files_of(tree, options)
    _refuse_masks(files, found.keys)
    bare = len(found.keys) - len(np.unique(found.boxes.rows))
    what = f"{bare:,} of {plural(len(found.keys), 'image')} {'gets' if bare == 1 else 'get'} no boxes"
    notes = (_summary(found), *found.notes, *[what] * bool(bare))
    notes += tuple(f"annotations of {other} are there too, and not read" for other, _ in others)
    notes += declarations.ignored_note(path, tree.ignored(), options)
    columns = {
        "name": path.absolute().name or "dataset",
        "targets": from_numpy(np.full(len(found.keys), UNLABELLED)),
        "split": found.split,
        "classes": found.classes,
        "values": found.boxes.values(len(found.keys)),
    }
    kind, faults = f"folder with boxes ({name})", found.left_out + flawed
    used = [each for each in files.others.to_pylist() if re.fullmatch(found.used, each)]
    samples = Samples(found.keys, kind, columns, notes + outside, faults, used, found.chosen)
    with summary_of(path):
        return source_of(files, samples, options)


def _readers(path: Path, options: SourceOptions) -> dict[str, Callable[[Path, SourceOptions], Annotated]]:
    """Name and reader of each form of annotations in a folder."""
    if options.unlabelled:
        return {}
    looked = look(path, options.ignore)
    found: dict[str, Callable[[Path, SourceOptions], Annotated]] = {}
    if files := coco.find(path, looked, options):
        found["COCO"] = partial(coco.read, files=files)
    if options.labels is None and yolo.recognises(path, looked, options.ignore):
        found["YOLO"] = yolo.read
    if options.labels is None and voc.recognises(path, looked):
        found["Pascal VOC"] = voc.read
    return found


def _refuse_masks(files: Files, keys: pa.StringArray) -> None:
    """Refuse folders of masks beside the images, which the boxes would make forget."""
    others = files.samples.filter(pc.invert(pc.is_in(files.samples, keys)))
    stems = stems_of(file_names_of(keys))
    others = others.filter(pc.is_in(stems_of(file_names_of(others)), stems))
    names = sorted({folder.rstrip("/") for folder in folders_of(others).unique().to_pylist()})
    if masks := [name for name in names if any(map(is_part, name.split("/")))]:
        raise SourceError(
            f"{files.where} has boxes, and would lose the files of the same images in "
            + first_few(masks, len(masks)),
            expected="either boxes or masks",
            next_step="Go without the masks ("
            + " ".join(f"--ignore {shlex.quote(name)}" for name in masks[:4])
            + "), or without the boxes (--unlabelled)",
        )


def _summary(found: Annotated) -> str:
    """What was recognised, in one line."""
    count = plural(len(found.boxes.rows), "box", "boxes")
    classes = f" of {plural(len(found.classes), 'class', 'classes')}" if found.classes else ""
    more = [*found.boxes.more, *["keypoints"] * (found.boxes.keypoints is not None)]
    more += ["segments"] * (found.boxes.segments is not None)
    fields = f", with {', '.join(more)}" if more else ""
    return (
        f"{found.origin}: {count}{classes}{fields} in {plural(len(found.keys), 'image')}; "
        "boxes are [x1, y1, x2, y2] in pixels, box_labels number the classes, label is -1"
    )
