"""YOLO: a text file per image, `labels/` beside `images/`, and class names in `data.yaml` or `classes.txt`.

    images/train/1.jpg  labels/train/1.txt          or  train/images/1.jpg  train/labels/1.txt
    3 0.5 0.5 0.2 0.1                               class, centre and size as fractions of the image
    3 0.1 0.1 0.9 0.1 0.9 0.9                       class and a polygon; its box is the one around it

Fractions become pixels, for which the header of each image that has boxes is read: one open per image. An
image without a text file, or with an empty one, has no boxes. With `kpt_shape` in `data.yaml`, the numbers
after a box are points. Without it, lines that may be either are refused.

YAML is large, and half a parser reads `names` wrongly without a word. So every form of `data.yaml` beyond a
list or one line per class is refused.

The trap: fractions of a photograph that EXIF turns are usually those of the turned one, as annotators saw it,
while the stored pixels are not turned. Such images are named.
"""

from __future__ import annotations

import re
import shlex
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from smallfiles.arrays import column
from smallfiles.errors import SourceError, first_few
from smallfiles.folders import SourceOptions, canonical_split, is_ignored
from smallfiles.progress import plural
from smallfiles.sources import scanning
from smallfiles.sources.annotations.boxes import (
    Boxes,
    Numbers,
    annotated,
    corners_of,
    none_left,
    number_lists,
    picture_size,
)
from smallfiles.sources.folder import no_images
from smallfiles.sources.record import FolderStore, Samples, left_out, noted, of_split

_LOOKED_AT = 64
_ANY = 1 << 31
_VISIBLE = 2.0
_NONE = array("d")
_LEAST_SHARE = 0.5
_SLACK = 0.01
"""By how much a number may be below 0 or above 1 and still count as a fraction."""


@dataclass(frozen=True)
class _Kind:
    """What each line of a label file holds.

    Args:
        classes: Number of classes. If it is unknown, this is a very large number.
        points: Number of points per box. It is 0 if boxes have no points.
        per_point: Number of numbers per point.
    """

    classes: int
    points: int = 0
    per_point: int = 3

    def expected(self) -> str:
        """Return a description of a line, for messages."""
        which = f"a class below {self.classes}" if self.classes < _ANY else "the number of a class"
        points = (
            f", then {self.points} points of {self.per_point} numbers"
            if self.points
            else " (or a polygon; points need kpt_shape in data.yaml)"
        )
        return f"{which}, then centre, width and height{points}, as fractions of the image"


@dataclass(frozen=True, slots=True)
class _Line:
    """One line of a label file, which is one box.

    Args:
        label: The class of the box.
        box: x1, y1, x2, y2 as fractions.
        points: x, y and visibility of each of its points, one after the other.
        polygon: x and y of each corner of its polygon, one after the other.
    """

    label: int
    box: tuple[float, float, float, float]
    points: array[float]
    polygon: array[float]


def recognises(look: scanning.Look) -> bool:
    """Check whether a folder or one of its splits has `images`, and `labels` with lines of numbers."""
    for name, folder in look.first().items():
        if {"images", "labels"} <= {*folder.folders}:
            labels = f"{name}/labels".lstrip("/")
            texts_only = SourceOptions(suffixes=(".txt",), ignore=tuple(look.ignore))
            texts = scanning.tree_of(look.path, texts_only, labels).paths()
            if any(_has_boxes(look.path / labels / text) for text in texts[:_LOOKED_AT].to_pylist()):
                return True
    return False


def _has_boxes(file: Path) -> bool:
    try:
        lines = [_numbers(line) for _, line in scanning.lines_of(scanning.read_text(file))]
    except (SourceError, ValueError):
        return False
    return bool(lines) and all(len(line) > 4 and line[0] >= 0 and _are_fractions(line[1:5]) for line in lines)


def read(tree: scanning.Tree, options: SourceOptions) -> Samples:
    """Read the images and boxes of one split.

    Raises:
        SourceError: A line is malformed, an image cannot be read, or the split does not exist.
    """
    if not len(tree):
        raise no_images(tree, options)
    path, folders = tree.root, {folder.path: folder for folder in tree.folders}
    of_images = [folder for folder in tree.folders if folder.files and _labels(folder) != folder.path]
    chosen, name, split, notes = of_split(of_images, _split_of, options.split, path)
    if outside := sum(len(folder.files) for folder in of_images if name and not _split_of(folder)):
        notes += (f"{plural(outside, 'image')} outside of the splits left out",)
    keys, texts, strays = [], [], []
    for folder in chosen:
        beside = folders.get(_labels(folder), scanning.Folder(""))
        there = {name[:-4] for name in beside.others if name.endswith(".txt") and name != "classes.txt"}
        stems = [name.rpartition(".")[0] for name in folder.files]
        keys += [folder.prefix + name for name in folder.files]
        texts += [f"{beside.prefix}{stem}.txt" if stem in there else None for stem in stems]
        strays += [f"{beside.prefix}{stem}.txt" for stem in sorted(there.difference(stems))]
    if not any(texts):
        raise none_left(
            path, f"has no label file for {plural(len(keys), 'image')}", "labels/1.txt for images/1.jpg"
        )
    about = describe(path, options.ignore)
    file, classes = about.file, about.classes
    _refuse_other_folders(path, about, split, [folder.path for folder in chosen])
    kind = _Kind(len(classes) or _ANY, *about.shape)
    found = scanning.in_flight(lambda text: _lines(path / text if text else None, kind), texts)
    if not about.shape:
        _refuse_unclear(path, [line for lines in found for line in lines if line.polygon])
    sizes, turned = _sizes(path, [key if lines else None for key, lines in zip(keys, found, strict=True)])
    without = texts.count(None)
    notes += (f"{plural(without, 'image')} without a label file: no boxes",) if without else ()
    notes += noted(
        turned,
        "image",
        "that EXIF turns: boxes taken as of the stored pixels, which is wrong if they were drawn on the "
        "turned image",
    )
    return annotated(
        "YOLO",
        f"YOLO labels, classes from {file.name}" if file else "YOLO labels without class names",
        column(keys, pa.string()),
        sizes,
        _boxes(found, sizes, bool(kind.points)),
        classes,
        split,
        notes=notes,
        faults=left_out(strays, "label file", "without an image"),
        used=[r"(.*/)?(labels/.*\.txt|classes\.txt)|obj\.names", re.escape(file.name if file else "")],
    )


def _labels(folder: scanning.Folder) -> str:
    """Return the folder of the label files for a folder of images.

    The last `images` in the path is replaced by `labels`. Without `images`, it is the folder itself.
    """
    before, found, after = f"/{folder.path}/".rpartition("/images/")
    return f"{before}/labels/{after}".strip("/") if found else folder.path


def _split_of(folder: scanning.Folder) -> str:
    """Return the split in the path of a folder, as it is spelled there.

    Return an empty text if there is none.
    """
    return next(filter(canonical_split, folder.path.split("/")), "")


def _refuse_other_folders(path: Path, about: Described, split: str, folders: Sequence[str]) -> None:
    """Refuse a `data.yaml` that names other folders of a split's images than the folders that are read."""
    named = about.folders.get(split, ())
    pairs = {(place, folder) for place in named for folder in folders if _is_of(place, folder)}
    agree = {place for place, _ in pairs} == {*named} and {folder for _, folder in pairs} == {*folders}
    are_lists = any((path / place).is_file() for place in named)  # which `declarations` compares
    if about.file and named and not agree and not are_lists:
        raise SourceError(
            f"{about.file} says that the images are in {first_few(named)}, but those in "
            f"{first_few(folders)} would be read",
            expected="one and the same",
            next_step=f"Correct {about.file.name}, or go without (--ignore {shlex.quote(about.file.name)})",
        )


def _is_of(place: str, folder: str) -> bool:
    """Check whether a place in `data.yaml` is the given folder, or a folder above it.

    The part of the place that is above the set is ignored if necessary, because it is often wrong.
    """
    parts = [part for part in place.split("/") if part not in ("", ".", "..")]
    tops = len(parts) if place.startswith(("/", "..")) else 1
    return not parts or any(f"{folder}/".startswith("/".join(parts[at:]) + "/") for at in range(tops))


def _lines(file: Path | None, kind: _Kind) -> list[_Line]:
    """Return the boxes in a label file. Return none if there is no file."""
    if file is None:
        return []
    return [_line(file, number, line, kind) for number, line in scanning.lines_of(scanning.read_text(file))]


def _line(file: Path, number: int, line: str, kind: _Kind) -> _Line:
    try:
        label, *found = _numbers(line)
    except ValueError:
        label, found = -1, []
    points = _triples(found[4:], kind.per_point) if kind.points else _NONE
    is_polygon = not kind.points and len(found) > 4
    fits = (
        len(found) % 2 == 0 and len(found) >= 6
        if is_polygon
        else len(found) == 4 + kind.points * kind.per_point
    )
    places = found if is_polygon else [*found[:4], *points[::3], *points[1::3]]
    if not (fits and 0 <= label < kind.classes and label == int(label) and _are_fractions(places)):
        raise scanning.bad_line(file, number, line, kind.expected())
    if is_polygon:
        xs, ys = found[::2], found[1::2]
        return _Line(int(label), (min(xs), min(ys), max(xs), max(ys)), _NONE, array("d", found))
    x, y, width, height = found[:4]
    return _Line(int(label), (x - width / 2, y - height / 2, x + width / 2, y + height / 2), points, _NONE)


def _refuse_unclear(path: Path, lines: list[_Line]) -> None:
    """Refuse polygons that may be boxes with points.

    This is the case if all have the same length and at least half of them would have their points in their
    boxes.
    """
    lengths = {len(line.polygon) for line in lines}
    if len(lengths) != 1 or sum(map(_may_be_points, lines)) < _LEAST_SHARE * len(lines):
        return
    more = lengths.pop() - 4
    shapes = " or ".join(f"kpt_shape: [{more // n}, {n}]" for n in (2, 3) if more % n == 0)
    raise SourceError(
        f"{path} has lines of a class and {more + 4} numbers, which may be polygons, or boxes with points",
        expected="data.yaml to say which",
        next_step=f"Write {shapes} into data.yaml if the numbers after a box are points, "
        "or kpt_shape: [0, 2] if they are polygons",
    )


def _may_be_points(line: _Line) -> bool:
    """Check whether the numbers of a polygon may be a box within the image, and points in this box."""
    x, y, width, height, *rest = line.polygon
    right, down = width / 2 + _SLACK, height / 2 + _SLACK
    is_box = min(width, height) > 0 and right - 2 * _SLACK <= x <= 1 - right + 2 * _SLACK
    is_box = is_box and down - 2 * _SLACK <= y <= 1 - down + 2 * _SLACK
    steps = [n for n in (2, 3) if len(rest) % n == 0]
    return is_box and any(
        all(
            abs(px - x) <= right and abs(py - y) <= down for px, py in zip(rest[::n], rest[1::n], strict=True)
        )
        for n in steps
    )


def _numbers(line: str) -> list[float]:
    return list(map(float, line.replace("_", "?").split()))  # float() takes 1_0 for 10


def _are_fractions(numbers: Sequence[float]) -> bool:
    return all(-_SLACK <= each <= 1 + _SLACK for each in numbers)


def _triples(found: Sequence[float], per_point: int) -> array[float]:
    """Return x, y and visibility of each point. Points without a visibility count as visible."""
    if per_point == 3:
        return array("d", found)
    pairs = zip(found[::2], found[1::2], strict=False)
    return array("d", [each for x, y in pairs for each in (x, y, _VISIBLE)])


def _sizes(path: Path, keys: list[str | None]) -> tuple[Numbers, list[str]]:
    """Return the width and height of each image in pixels, and the keys of the images that EXIF turns.

    Width and height are 0 where the key is None.
    """
    store = FolderStore(path, follow_links=True)  # its links were checked by the walk

    def size(key: str | None) -> tuple[int, int, bool]:
        if key is None:
            return 0, 0, False
        if found := picture_size(store, key):
            return found
        raise SourceError(
            f"the size of {store.root / key} cannot be read",
            expected="an image, since YOLO's boxes are fractions of it",
            next_step="Fetch the file again, or remove it together with its label file",
        )

    found = scanning.in_flight(size, keys)
    turned = [key for key, (_, _, is_turned) in zip(keys, found, strict=True) if key and is_turned]
    return np.array([each[:2] for each in found], np.int64).reshape(len(found), 2), turned


def _boxes(found: list[list[_Line]], sizes: Numbers, has_points: bool) -> Boxes:
    """Convert the lines of all images to boxes in pixels."""
    lines = [line for lines in found for line in lines]
    rows = np.repeat(np.arange(len(found)), [len(lines) for lines in found])
    scale = sizes[rows].astype(np.float64)
    polygons = [(box, line.polygon) for box, line in enumerate(lines) if line.polygon]
    owners = [box for box, _ in polygons]
    return Boxes(
        rows,
        corners_of([line.box for line in lines]) * np.tile(scale, 2),
        np.array([line.label for line in lines], np.int64),
        keypoints=number_lists([line.points for line in lines], np.insert(scale, 2, 1, axis=1))
        if has_points
        else None,
        segments=number_lists([polygon for _, polygon in polygons], scale[owners]) if polygons else None,
        owners=owners,
    )


_SPLITS = ("train", "val", "test")
_LISTS = ("classes.txt", "obj.names", "labels/classes.txt")
_COMMENT = re.compile(r"(?m)(^|(?<=\s))#.*$")
_PLAIN = r"(?!-\s)[^\s,'\"\[\]{}&*!|>%@`?:#](?:[^,\[\]{}\n:]|:(?=\S))*?"
_SCALAR = rf"""'(?:[^']|'')*'|"[^"\\]*"|{_PLAIN}"""
_FLOW = re.compile(rf"\s*(?:(\d+)\s*:\s)?\s*({_SCALAR})\s*(?:,|$)")
_LINE = re.compile(rf"[ \t]*(?:-|(\d+)[ \t]*:)[ \t]+({_SCALAR})[ \t]*$")


@dataclass(frozen=True)
class Described:
    """What the files beside `images` and `labels` declare about a set.

    Args:
        file: The file of class names. It is None if there is no such file.
        classes: Class names in the order of their numbers.
        shape: The number of points per box, and 2 or 3 numbers per point. It is empty if boxes have no
            points.
        folders: The places of each split's images that `data.yaml` names.
    """

    file: Path | None
    classes: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    folders: Mapping[str, Sequence[str]] = field(default_factory=dict)


def describe(path: Path, ignore: Sequence[str] = ()) -> Described:
    """Read the class names of a set, and what else its files declare.

    Raises:
        SourceError: A file cannot be read.
    """
    files = sorted(scanning.list_folder(path, ignore).files, key=lambda name: (name != "data.yaml", name))
    shape: tuple[int, ...] = ()
    for file in (path / name for name in files if name.endswith((".yaml", ".yml"))):
        text = _COMMENT.sub("", scanning.read_text(file))
        names, numbers = _entry(file, text, "names"), _entry(file, text, "kpt_shape")
        if numbers and not (len(numbers) == 2 and numbers[0].isdecimal() and numbers[1] in ("2", "3")):
            raise _odd(file, "kpt_shape")
        shape = shape or tuple(map(int, numbers))
        if names:
            folders = {split: _entry(file, text, split, may_be_text=True) for split in _SPLITS}
            return Described(file, names, shape, folders)
    for name in _LISTS:
        if (path / name).is_file() and not is_ignored(name, ignore):
            names = tuple(line.strip() for _, line in scanning.lines_of(scanning.read_text(path / name)))
            return Described(path / name, names, shape)
    return Described(None, shape=shape)


def _entry(file: Path, text: str, name: str, *, may_be_text: bool = False) -> tuple[str, ...]:
    """Return the list in a top-level entry of a YAML file. Return an empty tuple if there is no such entry.

    With `may_be_text`, the entry may also be a single text.
    """
    found = re.search(rf"(?m)^{name}[ \t]*:(?=\s)(.*(?:\n(?:[ \t\]}}-].*|[ \t]*$))*)", text)
    if found is None:
        return ()
    block = found[1].strip()
    if may_be_text and (not block or re.fullmatch(_SCALAR, block)):
        return (_plain(block),) if block else ()
    if block[:1] + block[-1:] in ("[]", "{}"):
        entries, rest = _all_of(_FLOW, block[1:-1])
    else:
        lines = [_LINE.match(line) for line in found[1].split("\n") if line.strip()]
        entries, rest = [each for each in lines if each], "" if all(lines) else block
    keys = [int(each[1]) for each in entries if each[1]]
    if rest.strip() or not entries or (keys and sorted(keys) != [*range(len(entries))]):
        raise _odd(file, name)
    texts = [_plain(each[2]) for each in entries]
    return tuple(texts[keys.index(place)] for place in range(len(keys))) if keys else tuple(texts)


def _all_of(pattern: re.Pattern[str], text: str) -> tuple[list[re.Match[str]], str]:
    """Match a pattern repeatedly, and return the matches and the rest of the text."""
    found, at = [], 0
    while text[at:].strip() and (match := pattern.match(text, at)):
        found.append(match)
        at = match.end()
    return found, text[at:]


def _plain(text: str) -> str:
    if text[0] == "'":
        return text[1:-1].replace("''", "'")
    return text[1:-1] if text[0] == '"' else text.strip()


def _odd(file: Path, name: str) -> SourceError:
    return SourceError(
        f"the entry {name} of {file} cannot be read",
        expected="a list, such as names: [cat, dog], or one line per class: 0: cat",
        next_step="Write it so, or put the class names into classes.txt, one per line, and remove the entry",
    )
