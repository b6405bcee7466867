"""Boxes from annotations: COCO's JSON, YOLO's text files, Pascal VOC's XML.

    boxes       list<list<double>>  [x1, y1, x2, y2] in pixels of the stored image, for all three alike
    box_labels  list<int64>         numbers of `Manifest.classes`; `label` is -1, since an image has no class

`boxes` has the full list of fields. An image without boxes has empty lists.

The trap: each format counts pixels and classes in its own way, so what was converted, left out or looks wrong
is said. docs/recipes.md has an example.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from smallfiles.arrays import from_numpy
from smallfiles.faults import summary_of
from smallfiles.folders import SourceOptions
from smallfiles.manifest import Manifest
from smallfiles.progress import plural
from smallfiles.samples import UNLABELLED
from smallfiles.sources.annotations import coco, voc, yolo
from smallfiles.sources.annotations.record import Annotated, look
from smallfiles.sources.folder import FolderStore
from smallfiles.sources.record import Source, refuse_if_strict
from smallfiles.sources.scanning import sizes_of


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
    faults = found.left_out + flawed
    refuse_if_strict(faults, options, path)
    with summary_of(path):
        manifest = Manifest.from_columns(
            found.keys,
            from_numpy(np.full(len(found.keys), UNLABELLED)),
            name=path.absolute().name or "dataset",
            split=found.split,
            classes=found.classes,
            sizes=sizes_of(path, found.keys) if options.sizes else None,
            values=found.boxes.values(len(found.keys)),
        )
    ignored = tuple(f"annotations of {other} are there too, and left out" for other, _ in others)
    bare = len(found.keys) - len(np.unique(found.boxes.rows))
    what = f"{bare:,} of {plural(len(found.keys), 'image')} {'gets' if bare == 1 else 'get'} no boxes"
    notes = (_summary(found), *found.notes, *[what] * bool(bare), *ignored, *faults, *outside)
    return Source(manifest, FolderStore(path), f"folder with boxes ({name})", notes, path)


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
