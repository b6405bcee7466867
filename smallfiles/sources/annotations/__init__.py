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
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.arrays import file_names_of, folders_of, stems_of
from smallfiles.errors import SourceError, first_few, summary_of
from smallfiles.folders import SourceOptions
from smallfiles.manifest.listing import Files
from smallfiles.sources import declarations
from smallfiles.sources.annotations import coco, voc, yolo
from smallfiles.sources.pairing import is_part
from smallfiles.sources.record import Samples, Source, files_of, source_of
from smallfiles.sources.scanning import Look, Tree, tree_of


def recognises(look: Look, options: SourceOptions) -> bool:
    """Check whether a folder holds images with boxes in one of the three forms."""
    return bool(_readers(look, options))


def load(path: Path, options: SourceOptions) -> Source:
    """Read the images of one split with their boxes.

    Args:
        path: A folder that `recognises` accepts.
        options: `split` chooses the split. `labels` may name one JSON of several. With `strict`, omitting
            anything raises an error.

    Raises:
        SourceError: The annotations are damaged, or do not belong to the images.
        ManifestError: An image is listed twice.
    """
    options.refuse_unsupported("a folder with boxes", path)
    (_, read), *others = _readers(Look(path, options.ignore), options).items()
    tree = tree_of(path, options)
    files = files_of(tree, options)
    found = read(tree, options)
    _refuse_masks(files, found.keys)
    notes = found.notes + tuple(f"annotations of {other} are there too, and not read" for other, _ in others)
    notes += declarations.ignored_note(path, tree.ignored(), options)
    used = [each for each in files.others.to_pylist() if any(re.fullmatch(one, each) for one in found.used)]
    columns = {"name": path.absolute().name or "dataset", **found.columns}
    with summary_of(path):
        return source_of(files, replace(found, columns=columns, notes=notes, used=used), options)


def _readers(look: Look, options: SourceOptions) -> dict[str, Callable[[Tree, SourceOptions], Samples]]:
    """Return the reader for each form of annotations that a folder has, by the name of the form."""
    if options.unlabelled:
        return {}
    found: dict[str, Callable[[Tree, SourceOptions], Samples]] = {}
    if files := coco.find(look, options):
        found["COCO"] = partial(coco.read, documents=files)
    if options.labels is None and yolo.recognises(look):
        found["YOLO"] = yolo.read
    if options.labels is None and voc.recognises(look):
        found["Pascal VOC"] = voc.read
    return found


def _refuse_masks(files: Files, keys: pa.StringArray) -> None:
    """Refuse folders of masks beside the images, because the masks would be lost if only boxes are read."""
    others = files.samples.filter(pc.invert(pc.is_in(files.samples, keys)))
    stems = stems_of(file_names_of(keys))
    others = others.filter(pc.is_in(stems_of(file_names_of(others)), stems))
    names = sorted({folder.rstrip("/") for folder in folders_of(others).unique().to_pylist()})
    if masks := [name for name in names if any(map(is_part, name.split("/")))]:
        raise SourceError(
            f"{files.where} has boxes, and would lose the files of the same images in " + first_few(masks),
            expected="either boxes or masks",
            next_step="Go without the masks ("
            + " ".join(f"--ignore {shlex.quote(name)}" for name in masks[:4])
            + "), or without the boxes (--unlabelled)",
        )
