"""COCO: one JSON of images, annotations and categories for each split.

    train2017/ val2017/ annotations/instances_train2017.json
    train/_annotations.coco.json  train/1.jpg                    as Roboflow exports it

Boxes are [x, y, width, height] there. Category ids have gaps (COCO's 80 go from 1 to 90), so classes are
numbered from 0 in the order of their ids. Masks in run lengths (RLE) are no polygons and are left out.

The trap: a category id used as a class number trains a network of 91 classes, of which 11 never occur.
"""

from __future__ import annotations

import json
import os
import re
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.arrays import as_mask, column, folders_of, joined, scalar, strings
from smallfiles.errors import SourceError, first_few, short, summary_of
from smallfiles.folders import SourceOptions, canonical_split
from smallfiles.manifest.columns import by_row
from smallfiles.progress import plural
from smallfiles.sources.annotations.boxes import Boxes, Numbers, annotated, none_left, number_lists
from smallfiles.sources.pairing import folders_above
from smallfiles.sources.record import Samples, left_out, noted, of_split
from smallfiles.sources.scanning import Look, Notes, Tree, read_text

Objects: TypeAlias = list[dict[str, Any]]
_LOOKED_AT = 1 << 18
_LISTS = re.compile(rb'"(images|annotations|categories)"\s*:\s*\[')
_BOXES = re.compile(rb'"bbox"\s*:|"annotations"\s*:\s*\[\s*\]')
_PREFIXES = re.compile(r"(?i)^_?(instances|annotations|person_keypoints|labels)?[_.-]?|[_.-]coco$")
_PROBES = 16
_MISSING = -1
_NUMBERS = {int, float}
_IDS = (int, str)


def recognises(file: Path) -> bool:
    """Check by its beginning and its end whether a file is a JSON of boxes in COCO's form."""
    if not file.is_file():
        return False
    with file.open("rb") as opened:
        ends = opened.read(_LOOKED_AT)
        opened.seek(max(len(ends), file.stat().st_size - _LOOKED_AT))
        ends += opened.read()
    return bool(_LISTS.search(ends) and _BOXES.search(ends))


def find(look: Look, options: SourceOptions) -> list[Path]:
    """Return the JSON files of boxes in the first folders of a source.

    If `labels` names a file, return only this.
    """
    if options.labels is not None:
        return [options.labels] if recognises(options.labels) else []
    files = (look.path / below / name for below, folder in look.first().items() for name in folder.files)
    found = [file for file in files if file.suffix == ".json" and recognises(file)]
    return [file for file in found if file.name.startswith("instances")] or found


def read(tree: Tree, options: SourceOptions, *, documents: Sequence[Path]) -> Samples:
    """Read the images and boxes of one split.

    Args:
        tree: The folder.
        options: `split` chooses among the documents.
        documents: The JSON files that `find` returned.

    Raises:
        SourceError: The document is damaged, its images are elsewhere, or several documents fit.
    """
    path = tree.root
    fitting, name, split, notes = of_split(documents, lambda file: _split_of(file, path), options.split, path)
    if len(fitting) > 1:
        raise SourceError(
            f"{path} has several files of boxes{f' of {name}' * bool(name)}: " + first_few(fitting),
            expected="the choice of one",
            next_step=f"Add --labels {fitting[0]}",
        )
    file = fitting[0]
    document = _Document.load(file)
    images = document.objects("images")
    names, ids = document.column(images, "file_name", str), document.column(images, "id", int, str)
    if twice := [each for each, count in Counter(ids).items() if count > 1]:
        raise document.bad(f"gives several images the id {first_few(twice)}")
    keys, strays, where = _on_disk(tree, file, name, names)
    there = as_mask(keys.is_valid())
    rows = np.where(there, np.cumsum(there) - 1, _MISSING)
    row_of = dict(zip(ids, rows.tolist(), strict=True))
    as_text = _join_as_text(document, row_of)
    boxes, classes, more, dropped = _boxes(document, as_text or row_of)
    more += (
        "image_id is text where the id of the image is a number, or the reverse: joined as text",
    ) * bool(as_text)
    width, height = (document.numbers(images, side, usual=0) for side in ("width", "height"))
    lost = [text for text, found in zip(names, there.tolist(), strict=True) if not found]
    return annotated(
        "COCO",
        f"COCO annotations in {file.name}",
        keys.drop_null(),
        np.stack([width, height], axis=1)[there],
        boxes,
        classes,
        split,
        notes=(*notes, *where, *more),
        faults=left_out(lost, "image", f"of {file.name} missing on disk")
        + left_out(strays, "file", f"not in {file.name}")
        + dropped,
        used=[re.escape(os.path.relpath(each, path)) for each in (file, *documents)],
        chosen=os.path.relpath(file, path),
    )


def _split_of(file: Path, root: Path) -> str:
    """Return the split in the name of a file or of its folder, as it is spelled there.

    It is `train2017` for `instances_train2017.json`, and `train` for `train/_annotations.coco.json`. Return
    an empty text if there is no split in either name.
    """
    stem = _PREFIXES.sub("", file.stem)
    if canonical_split(stem):
        return stem
    folder = file.absolute().parent
    return folder.name if folder != root.absolute() and canonical_split(folder.name) else ""


def _on_disk(
    tree: Tree, file: Path, split: str, names: list[str]
) -> tuple[pa.StringArray, pa.StringArray, Notes]:
    """Find the images of a document on disk.

    Returns:
        The path of each image, which is null for a missing image; the paths of other images beside them; and
        a note.
    """
    if not names:
        raise none_left(file, "has no images", "at least one")
    path, samples = tree.root, tree.paths()
    tiers = _folders(tree, file, split)
    for way in ("", "by their file names alone, "):
        texts = [re.sub(r"(?s)^.*[/\\]", "", name) if way else name.removeprefix("./") for name in names]
        with summary_of(file):
            own = strings(texts, "file_name", by_row)
        probes = texts[:: max(1, len(texts) // _PROBES)]
        for tier in tiers:
            wanted = column([below + probe for below in tier for probe in probes], pa.string())
            there = set(samples.filter(pc.is_in(samples, wanted)).to_pylist())
            best = max(tier, key=lambda below: sum(below + probe in there for probe in probes))
            if there:
                keys = samples.take(pc.index_in(joined(scalar(best), own), samples))
                strays = samples.filter(pc.is_in(folders_of(samples), folders_of(keys)))
                strays = strays.filter(pc.invert(pc.is_in(strays, keys)))
                return keys, strays, (f"images {way}in {best.rstrip('/') or path}",)
    raise none_left(
        file, f"names no image in {path} (the first is {short(names[0])})", "its images in or below it"
    )


def _folders(tree: Tree, file: Path, split: str) -> list[list[str]]:
    """Return the folders that may contain the images, the likeliest first, in up to three groups.

    Folders of other splits are not included.
    """
    path, own = tree.root.absolute(), file.absolute().parent
    found = {above for folder in tree.folders if folder.files for above in folders_above(folder.prefix)}
    tiers: list[list[str]] = [[], [], []]
    for below in sorted(found, key=lambda each: (each.count("/"), each)):
        parts = below.rstrip("/").split("/")
        splits = {canonical_split(part) for part in parts} - {None}
        if split in parts or path / below == own:
            tiers[0].append(below)
        elif not split or splits <= {canonical_split(split)}:
            tiers[1 if splits else 2].append(below)
    return [tier for tier in tiers if tier]


def _join_as_text(document: _Document, row_of: dict[Any, int]) -> dict[Any, int]:
    """Return the row of each image by both forms of its id, as a number and as text.

    Return an empty dictionary if annotations and images write ids in the same form.
    """
    found = (each.get("image_id") for each in document.objects("annotations"))
    used = {each for each in found if type(each) in _IDS}
    texts = {str(each): row for each, row in row_of.items()}
    others = {each: texts[str(each)] for each in used - row_of.keys() if str(each) in texts}
    return row_of | others if others and len(texts) == len(row_of) else {}


def _boxes(document: _Document, row_of: dict[Any, int]) -> tuple[Boxes, tuple[str, ...], Notes, Notes]:
    """Return the boxes of images on disk, the names of the classes, notes, and notes on what was left out."""
    annotations = document.objects("annotations")
    images = document.column(annotations, "image_id", int, str)
    unknown = [each for each in images if each not in row_of]
    kept = [each for each, image in zip(annotations, images, strict=True) if row_of.get(image, _MISSING) >= 0]
    boxed = [each for each in kept if each.get("bbox")]
    plain = [each.get("id") for each in kept if not each.get("bbox")]
    labels, classes, notes = _classes(document, boxed)
    if annotations and not boxed:
        raise _lost(
            document,
            f"all {plural(len(annotations), 'annotation')}",
            "none has a bbox and an image_id of an image on disk",
            "Check image_id against the ids of images, and that the images are those of this file",
        )
    present = {each["category_id"] for each in boxed}
    lost = {each.get("category_id") for each in annotations if type(each.get("category_id")) is int} - present
    if gone := [name for number, name in _names(document).items() if number in lost]:
        raise _lost(
            document,
            f"the {'class' if len(gone) == 1 else 'classes'} {first_few(gone)}",
            "none of its annotations has a bbox and an image on disk",
            "Fetch the missing images, or remove the annotations of this class from the file",
        )
    more = {}
    if any("iscrowd" in each for each in boxed):
        more["iscrowd"] = document.numbers(boxed, "iscrowd", usual=0).astype(np.int64)
    if boxed and all("area" in each for each in boxed):
        more["area"] = document.numbers(boxed, "area")
    segments, owners, encoded = _polygons(document, boxed)
    if encoded and segments is None:
        raise _lost(
            document,
            f"all {plural(len(encoded), 'mask')}",
            "they are in run lengths (RLE), which are not read",
            "Write them as polygons, or remove the entry segmentation from each annotation",
        )
    boxes = Boxes(
        np.array([row_of[each["image_id"]] for each in boxed], np.int64),
        _corners(document, boxed),
        labels,
        more,
        _keypoints(document, boxed),
        segments,
        owners,
    )
    ids = Counter(map(str, document.column(boxed, "id", int, str)))
    twice = [each for each, count in ids.items() if count > 1]
    notes += noted(twice, "annotation id", "given twice, all kept")
    dropped = left_out(unknown, "annotation", "of unknown image ids")
    dropped += left_out(plain, "annotation", "without a box")
    dropped += left_out(encoded, "mask", "in run lengths (RLE)")
    return boxes, classes, notes, dropped


def _lost(document: _Document, what: str, why: str, next_step: str) -> SourceError:
    return SourceError(
        f"{what} of {document.file} would be lost: {why}",
        expected="annotations of images that are here",
        next_step=next_step,
    )


def _names(document: _Document) -> dict[int, str]:
    """Return the name of each category by its id."""
    categories = document.objects("categories")
    ids = document.column(categories, "id", int)
    return dict(zip(ids, document.column(categories, "name", str), strict=True))


def _classes(document: _Document, boxed: Objects) -> tuple[Numbers, tuple[str, ...], Notes]:
    """Return the class number of each box, the names of the classes, and a note if numbers differ from ids.

    Classes are numbered in the order of their category ids.
    """
    names = _names(document)
    if len(names) < len(document.objects("categories")):
        raise document.bad("gives several categories one id")
    number = {each: place for place, each in enumerate(sorted(names))}
    of = document.column(boxed, "category_id", int)
    if strange := sorted({*of} - number.keys()):
        raise document.bad(f"has boxes of categories that it does not list: {first_few(strange)}")
    renumbered = any(each != place for each, place in number.items())
    notes = (
        (f"category ids {min(names)} to {max(names)} numbered 0 to {len(names) - 1} in their order",)
        if renumbered
        else ()
    )
    return (
        np.array([number[each] for each in of], np.int64),
        tuple(names[each] for each in sorted(names)),
        notes,
    )


def _corners(document: _Document, boxed: Objects) -> Numbers:
    for each in boxed:
        box = each["bbox"]
        if type(box) is not list or len(box) != 4 or not set(map(type, box)) <= _NUMBERS:
            raise document.bad(f"has the bbox {short(box)} (of the annotation {short(each.get('id'))})")
    found = document.floats("bbox", [each["bbox"] for each in boxed]).reshape(-1, 4)
    found[:, 2:] += found[:, :2]
    return found


def _polygons(document: _Document, boxed: Objects) -> tuple[pa.ListArray | None, Sequence[int], list[object]]:
    """Return the polygons, and the number of each polygon's box. The polygons are None if there are none.

    The third value holds the ids of annotations that have another kind of mask.
    """
    found, owners, encoded = [], array("q"), []
    for box, each in enumerate(boxed):
        rings = each.pop("segmentation", None)  # frees it: a third of a gigabyte in COCO
        if isinstance(rings, dict):
            encoded.append(each.get("id"))
            continue
        for ring in rings if isinstance(rings, list) else [rings] * (rings is not None):
            if not isinstance(ring, array) or len(ring) % 2:
                raise document.bad(f"has the polygon {short(ring)} (annotation {short(each.get('id'))})")
            found.append(ring)
            owners.append(box)
    return number_lists(found) if found else None, owners, encoded


def _keypoints(document: _Document, boxed: Objects) -> pa.ListArray | None:
    found = [each.get("keypoints") or array("d") for each in boxed]
    if odd := [points for points in found if not isinstance(points, array) or len(points) % 3]:
        raise document.bad(f"has the keypoints {short(odd[0])}")
    return number_lists(found) if any(found) else None


@dataclass(frozen=True)
class _Document:
    """The parsed JSON file. Error messages about its contents name its path."""

    file: Path
    parsed: dict[str, Any]

    @classmethod
    def load(cls, file: Path) -> _Document:
        try:
            parsed = json.loads(read_text(file), object_hook=_compact)
        except (ValueError, RecursionError) as error:
            raise cls(file, {}).bad(f"cannot be read ({short(str(error))})") from error
        if not isinstance(parsed, dict):
            raise cls(file, {}).bad("is no object")
        return cls(file, parsed)

    def objects(self, name: str) -> Objects:
        """Return the list of objects in the entry `name`. Raise an error if it is not a list of objects."""
        found = self.parsed.get(name)
        if not isinstance(found, list):
            raise self.bad(f"has no list of {name}")
        if not set(map(type, found)) <= {dict}:
            odd = next(each for each in found if type(each) is not dict)
            raise self.bad(f"has {short(odd)} among its {name}")
        return found

    def column(self, objects: Objects, name: str, *kinds: type) -> list[Any]:
        """Return the entry `name` of each object. Raise an error if an entry is not one of `kinds`."""
        found = [each.get(name) for each in objects]
        if not set(map(type, found)) <= {*kinds}:
            odd = next(each for each in objects if type(each.get(name)) not in kinds)
            raise self.bad(f"has the {name} {short(odd.get(name))} (with the id {short(odd.get('id'))})")
        return found

    def numbers(self, objects: Objects, name: str, usual: float | None = None) -> Numbers:
        """Return the number in the entry `name` of each object.

        For an object without this entry, use `usual`.
        """
        found = [usual if (number := each.get(name)) is None else number for each in objects]
        if not set(map(type, found)) <= {*_NUMBERS, bool}:
            self.column(objects, name, int, float, bool)
        return self.floats(name, found)

    def floats(self, name: str, numbers: Sequence[Any]) -> Numbers:
        """Convert numbers to floats. Refuse a whole number that is too large for a float."""
        try:
            return np.array(numbers, np.float64)
        except OverflowError:
            raise self.bad(f"has a {name} that is too large") from None

    def bad(self, what: str) -> SourceError:
        return SourceError(
            f"{self.file} {what}",
            expected="a JSON as COCO's: lists of images, annotations and categories",
            next_step="Correct it or download it again",
        )


def _compact(found: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON object after converting the numbers of its polygons and points to arrays.

    The arrays take a quarter of the memory.
    """
    if type(rings := found.get("segmentation")) is list:
        found["segmentation"] = [_packed(ring) for ring in rings]
    if "keypoints" in found:
        found["keypoints"] = _packed(found["keypoints"])
    return found


def _packed(numbers: Any) -> Any:
    try:
        return array("d", numbers) if type(numbers) is list else numbers
    except (TypeError, OverflowError):  # refused where it is used
        return numbers
