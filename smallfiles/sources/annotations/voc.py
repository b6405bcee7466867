"""Pascal VOC: an XML per image, with its boxes and the names of their classes.

    JPEGImages/000001.jpg  Annotations/000001.xml  ImageSets/Main/train.txt     names of a split, one a line
    images/1.png           annotations/1.xml                                     without splits
    train/1.jpg            train/1.xml                                           as Roboflow exports it

Pixels are counted from 1 there and the last one belongs to the box, so [x1 - 1, y1 - 1, x2, y2] is kept.
Classes are numbered in sorted order, those of all splits together.

The trap: an XML can define entities that grow to gigabytes when they are read. VOC needs none, so a file with
a document type is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree.ElementTree import XML, Element, ParseError, TreeBuilder, XMLParser

import numpy as np
import pyarrow as pa

from smallfiles.arrays import column
from smallfiles.errors import SourceError
from smallfiles.folders import SourceOptions, canonical_split
from smallfiles.progress import plural
from smallfiles.sources.annotations.boxes import Boxes, annotated, corners_of, none_left
from smallfiles.sources.record import Samples, chosen_split, left_out, noted
from smallfiles.sources.scanning import (
    ANNOTATIONS,
    Folder,
    Look,
    Notes,
    Tree,
    in_flight,
    lines_of,
    read_text,
    unlistable,
)

_LOOKED_AT = 4096
_FLAGS = ("difficult", "truncated")
_SIDES = ("xmin", "ymin", "xmax", "ymax")
_NUMBER = re.compile(r"[+-]?[0-9]*[.]?[0-9]+(?:[.]|[eE][+-]?[0-9]+)?")
_IMAGES = ("jpegimages", "images")


@dataclass(frozen=True, slots=True)
class _Box:
    name: str
    corners: tuple[float, ...]
    flags: dict[str, int]


@dataclass(frozen=True, slots=True)
class _Xml:
    """The contents of one XML file.

    Args:
        size: Width and height of the image in pixels.
        boxes: The boxes.
        without: Number of objects without a box.
        image: Name of the image that the file states.
    """

    size: tuple[int, int]
    boxes: list[_Box]
    without: int
    image: str = ""


def recognises(look: Look) -> bool:
    """Check whether a folder has images with XML files: in `Annotations` beside them, or in its splits."""
    tops = look.at().folders
    has_images = bool({top.lower() for top in tops} & {*_IMAGES})
    for name, folder in look.first().items():
        if (has_images or name.lower() != ANNOTATIONS) and _begins(look.path / name, folder):
            return True
    return any(recognises(Look(look.path / top)) for top in tops if top.lower().startswith("voc"))


def _begins(where: Path, folder: Folder) -> bool:
    """Check whether the first XML of a folder is an annotation."""
    first = next((name for name in folder.files if name.lower().endswith(".xml")), None)
    if first is None:
        return False
    with (where / first).open("rb") as file:
        return b"<annotation" in file.read(_LOOKED_AT)


def read(tree: Tree, options: SourceOptions) -> Samples:
    """Read the images and boxes of one split.

    Raises:
        SourceError: An XML is malformed, no image has an XML, or the split does not exist.
    """
    path, pairs = tree.root, _pairs(tree.folders)
    if not pairs:
        raise none_left(path, "has no images beside its XML files", "JPEGImages/1.jpg for Annotations/1.xml")
    files = [xml for pair in pairs for xml in pair.xmls.values()]
    xmls = dict(zip(files, in_flight(lambda file: _read(path / file), files), strict=True))
    classes = sorted({box.name for xml in xmls.values() for box in xml.boxes})
    chosen, split, notes = _of_split(path, pairs, options)
    absent = [stem for pair, stem in chosen if stem not in pair.images]
    named = [(pair.images[stem], pair.xmls.get(stem)) for pair, stem in chosen if stem in pair.images]
    kept = [(key, xmls[xml]) for key, xml in named if xml is not None]
    if not kept:
        raise none_left(path, f"has no XML for the {plural(len(named), 'image')} of {split}", "one for each")
    lost = [key for key, xml in named if xml is None]
    strays = [xml for pair in pairs for stem, xml in pair.xmls.items() if stem not in pair.images]
    without = [key for key, xml in kept if xml.without]
    if without and not any(xml.boxes for _, xml in kept):
        raise none_left(
            path,
            f"would lose all objects of {plural(len(without), 'XML')}: they have no box",
            "a bndbox in each",
        )
    stale = _other_names(
        path, [(key, str(xml), xmls[xml].image) for key, xml in named if xml is not None], pairs
    )
    notes += noted(stale, "XML", "that names another file, paired by its own name")
    return annotated(
        "Pascal VOC",
        "Pascal VOC annotations (pixels counted from 1 there)",
        column([key for key, _ in kept], pa.string()),
        np.array([xml.size for _, xml in kept], np.int64),
        _boxes([xml for _, xml in kept], {name: number for number, name in enumerate(classes)}),
        classes,
        split,
        notes=notes,
        faults=left_out(absent, "name", f"of {split} without an image")
        + left_out(lost, "image", "without an XML")
        + left_out(strays, "XML", "without an image")
        + left_out(without, "image", "with objects that have no box: these"),
        used=[r"(?i).*\.xml|(.*/)?imagesets/.*"],
    )


def _other_names(path: Path, kept: Sequence[tuple[str, str, str]], pairs: Sequence[_Pair]) -> list[str]:
    """Return the XML files that state the name of an image that is not in the set.

    Refuse an XML that states another image of the set than the one with the XML's own name.
    """
    stems = {stem for pair in pairs for stem in pair.images}
    stale = []
    for key, xml, image in kept:
        stem, own = image.rpartition(".")[0] or image, key.rpartition("/")[2].rpartition(".")[0]
        if image and stem in stems and stem != own:
            raise SourceError(
                f"{path / xml} names {image}, and by its own name it belongs to {key}",
                expected="one image for each XML",
                next_step="Correct the entry filename, or the name of the XML",
            )
        stale += [f"{xml} ({image})"] * bool(image and stem != own)
    return stale


@dataclass(frozen=True)
class _Pair:
    """A folder of images and its XML files.

    Args:
        folder: The folder of the images.
        images: Path of each image by its stem.
        xmls: Path of each XML by its stem.
    """

    folder: str
    images: dict[str, str]
    xmls: dict[str, str]


def _pairs(folders: Sequence[Folder]) -> list[_Pair]:
    """Return the folders of images that have XML files in them, or in `Annotations` beside them."""
    by_path = {folder.path.lower(): folder for folder in folders}
    found = []
    for folder in folders:
        above, _, own = folder.path.rpartition("/")
        beside = f"{above}/{ANNOTATIONS}".lstrip("/").lower()
        where = by_path.get(beside, folder) if own.lower() in _IMAGES else folder
        xmls = _by_stem(where, [name for name in where.others if name.lower().endswith(".xml")])
        found.append(_Pair(folder.path, _by_stem(folder, folder.files), xmls))
    return [pair for pair in found if pair.images and pair.xmls]


def _by_stem(folder: Folder, names: Sequence[str]) -> dict[str, str]:
    return {name.rpartition(".")[0]: folder.prefix + name for name in names}


def _of_split(
    path: Path, pairs: Sequence[_Pair], options: SourceOptions
) -> tuple[list[tuple[_Pair, str]], str, Notes]:
    """Return the images of the chosen split, the name of the split, and notes.

    An image is given by its pair of folders and its stem. Images that a list of the split names are included
    even if they have no file.
    """
    lists = {pair.folder: _lists(path / pair.folder / "../ImageSets/Main") for pair in pairs}
    listed = {name for each in lists.values() for name in each}
    folders = {pair.folder: next(filter(canonical_split, pair.folder.split("/")), "") for pair in pairs}
    name, split, notes = chosen_split(sorted(listed or {*folders.values()}), options.split, path)
    if not name and notes and options.split:
        raise SourceError(
            f"{path} has no list of the images of {options.split!r}, so it may hold those of other splits",
            expected=f"ImageSets/Main/{options.split}.txt, with one name per line",
            next_step="Add this file, or pack all images without --split",
        )
    if listed:
        chosen = [(pair, stem) for pair in pairs for stem in lists[pair.folder].get(name, [])]
    else:
        chosen = [(pair, stem) for pair in pairs if folders[pair.folder] == name for stem in pair.images]
    return chosen, split, notes


def _lists(folder: Path) -> dict[str, list[str]]:
    """Return the stems of the images of each split that a file in `ImageSets/Main` lists."""
    files = [file for file in folder.glob("*.txt") if canonical_split(file.stem) or file.stem == "trainval"]
    return {file.stem: [line.strip() for _, line in lines_of(read_text(file))] for file in files}


def _read(file: Path) -> _Xml:
    try:
        root = _parsed(file.read_bytes())
        objects = root.findall("object")
        boxes = [_box(each, frame) for each in objects if (frame := each.find("bndbox")) is not None]
        width, height = (int(_number(root.find(f"size/{side}"))) for side in ("width", "height"))
    except OSError as error:
        raise unlistable(error, file) from error
    except (ParseError, ValueError, OverflowError, LookupError) as error:
        raise SourceError(
            f"{file} cannot be read ({error})",
            expected="an XML as Pascal VOC's: annotation/object with name and bndbox/xmin, ymin, xmax, ymax",
            next_step="Correct it or download it again",
        ) from error
    image = re.sub(r"(?s)^.*[/\\\\]", "", (root.findtext("filename") or "").strip())
    return _Xml((width, height), boxes, len(objects) - len(boxes), image)


def _box(found: Element, frame: Element) -> _Box:
    x1, y1, x2, y2 = (_number(frame.find(side), None) for side in _SIDES)
    name = (found.findtext("name") or "").strip()
    if not name:
        raise ValueError("an object has no name")
    flags = {flag: int(_number(found.find(flag))) for flag in _FLAGS if found.find(flag) is not None}
    return _Box(name, (x1 - 1, y1 - 1, x2, y2), flags)


def _number(found: Element | None, usual: float | None = 0.0) -> float:
    text = "" if found is None else (found.text or "").strip()
    if not text and usual is not None:
        return usual
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{text!r} is no number")
    return float(text)


class _WithoutDoctype(TreeBuilder):
    def doctype(self, *_: object) -> None:
        raise ValueError("it has a document type, which may define entities")


def _parsed(data: bytes) -> Element:
    """Parse an XML that has no document type, and return its root."""
    root = XML(data, XMLParser(target=_WithoutDoctype()))
    if root.tag != "annotation":
        raise ValueError(f"its root is {root.tag[:40]}")
    return root


def _boxes(xmls: Sequence[_Xml], numbers: dict[str, int]) -> Boxes:
    boxes = [box for xml in xmls for box in xml.boxes]
    used = [flag for flag in _FLAGS if any(flag in box.flags for box in boxes)]
    return Boxes(
        np.repeat(np.arange(len(xmls)), [len(xml.boxes) for xml in xmls]),
        corners_of([box.corners for box in boxes]),
        np.array([numbers[box.name] for box in boxes], np.int64),
        {flag: np.array([box.flags.get(flag, 0) for box in boxes], np.int64) for flag in used},
    )
