"""Boxes of many images in flat columns, and the lists for each image that are made of them.

    boxes          list<list<double>>  corners [x1, y1, x2, y2] of each box, in pixels of the stored image
    box_labels     list<int64>         its class, a number of `Manifest.classes`
    keypoints      list<list<double>>  its points, x, y and visibility in turn; empty where it has none
    segments       list<list<double>>  polygons, x and y in turn
    segment_boxes  list<int64>         the box that each polygon belongs to, by its place in `boxes`

x grows to the right and y downwards, and 0, 0 is the outer corner of the first pixel: a box around a whole
image of 640 x 480 is [0, 0, 640, 480].

Boxes and polygons are scaled together with their pictures, where these are scaled before packing. Fields
called box, boxes, bbox or bboxes, or ending with `_` and one of these, are lists of four numbers, x and y in
turn. `area` counts pixels. Numbers that are at most 1 everywhere, and not all whole, are fractions of the
picture, and they stay. `keypoints` are refused.

The trap: three formats have three conventions, and boxes read by the wrong one still look like boxes. So all
become this one, and boxes that lie outside of their image are counted. A column of boxes that cannot be
scaled with its pictures is refused, since nothing else would fail. docs/recipes.md has an example.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.arrays import from_numpy, one_chunk, to_numpy, too_large
from smallfiles.errors import SourceError, UsageError, first_few
from smallfiles.fields import is_boxes
from smallfiles.manifest.listing import HEAD_BYTES
from smallfiles.progress import plural
from smallfiles.samples import UNLABELLED, ByteStore
from smallfiles.sources.record import Samples, Source
from smallfiles.sources.scanning import Notes, in_flight

Numbers = npt.NDArray[Any]
_PERIOD = {"segments": 2, "area": 1}
"""How many numbers there are from one x to the next.

In fields that are not listed here, there are four, since a fifth would be a class, a score or an angle.
"""
_MOST_UNCLEAR = 2
_EXIF = b"Exif\0\0"
_TOLERANCE = 1.0
"""Pixels by which a box may extend beyond its image without a note, because annotators round."""


@dataclass(frozen=True)
class Boxes:
    """The boxes of many images, in any order.

    Args:
        rows: The row of each box's image.
        corners: The corners of each box, `[n, 4]`: x1, y1, x2, y2.
        labels: The class of each box.
        more: Additional numbers, one per box, by the name of their field.
        keypoints: A list of numbers for each box. It is None if no box has keypoints.
        segments: Polygons. It is None if there are no polygons.
        owners: The number of each polygon's box.
    """

    rows: Numbers
    corners: Numbers
    labels: Numbers
    more: Mapping[str, Numbers] = field(default_factory=dict)
    keypoints: pa.ListArray | None = None
    segments: pa.ListArray | None = None
    owners: Sequence[int] = ()

    def values(self, images: int) -> dict[str, pa.Array]:
        """Return the columns of the fields, with one row per image.

        The boxes of an image keep their order.
        """
        order = np.argsort(self.rows, kind="stable")
        counts = np.bincount(self.rows, minlength=images)
        flat = from_numpy(self.corners[order].ravel())
        found = {"boxes": lists(counts, lists(np.full(len(order), 4), flat))}
        for name, numbers in {"box_labels": self.labels, **self.more}.items():
            found[name] = lists(counts, from_numpy(numbers[order]))
        if self.keypoints is not None:
            found["keypoints"] = lists(counts, self.keypoints.take(from_numpy(order)))
        return found | self._polygons(order, counts)

    def _polygons(self, order: Numbers, counts: Numbers) -> dict[str, pa.Array]:
        if self.segments is None:
            return {}
        place = np.empty(len(order), np.int64)  # of each box among all, in the order of images
        place[order] = np.arange(len(order))
        owners = np.asarray(self.owners, np.int64)
        by_box = np.argsort(place[owners], kind="stable")
        rows, first = self.rows[owners[by_box]], np.cumsum(counts) - counts
        per_image = np.bincount(rows, minlength=len(counts))
        return {
            "segments": lists(per_image, self.segments.take(from_numpy(by_box))),
            "segment_boxes": lists(per_image, from_numpy(place[owners[by_box]] - first[rows])),
        }

    def check(self, keys: pa.StringArray, sizes: Numbers) -> tuple[tuple[str, ...], Notes]:
        """Look for boxes that cannot be right.

        Args:
            keys: The keys of the images.
            sizes: Width and height of each image in pixels, `[images, 2]`. It is 0 if unknown.

        Returns:
            Notes on boxes without an area, and notes on boxes that extend beyond their image.

        Raises:
            SourceError: A number is not finite.
        """
        flat = [
            self.corners.ravel(),
            *(column for column in self.more.values() if column.dtype == np.float64),
        ]
        flat += [to_numpy(each.values) for each in (self.keypoints, self.segments) if each is not None]
        if not all(np.isfinite(column).all() for column in flat):
            odd = np.flatnonzero(~np.isfinite(self.corners).all(axis=1))
            where = f" of {keys[int(self.rows[odd[0]])].as_py()}" if len(odd) else ""
            raise SourceError(
                f"a box, a point or an area{where} is not a finite number",
                expected="numbers of pixels",
                next_step="Correct the annotations, or leave this one out",
            )
        x1, y1, x2, y2 = self.corners.T
        flipped = np.flatnonzero((x2 <= x1) | (y2 <= y1))
        width, height = sizes[self.rows].T
        outside = (np.minimum(x1, x2) < -_TOLERANCE) | (np.minimum(y1, y2) < -_TOLERANCE)
        outside |= (width > 0) & (np.maximum(x1, x2) > width + _TOLERANCE)
        outside |= (height > 0) & (np.maximum(y1, y2) > height + _TOLERANCE)
        left = np.flatnonzero(outside)
        return (
            self._note(flipped, keys, "without an area or with corners reversed, kept"),
            self._note(left, keys, "reaching out of the image, kept"),
        )

    def _note(self, which: Numbers, keys: pa.StringArray, what: str) -> Notes:
        if not len(which):
            return ()
        named = (
            f"{keys[int(self.rows[box])].as_py()} {self.corners[box].round(2).tolist()}" for box in which
        )
        return (f"{plural(len(which), 'box', 'boxes')} {what}: {first_few(named, len(which), 3)}",)


def corners_of(found: Sequence[Sequence[float]]) -> Numbers:
    """Convert the four numbers of each box to an array of shape `[n, 4]`, even if there is no box."""
    return np.array(found, np.float64).reshape(len(found), 4)


def lists(counts: Sequence[int] | Numbers, flat: pa.Array) -> pa.ListArray:
    """Divide a flat column into lists. `counts` holds the number of entries of each list.

    Raises:
        ManifestError: There are more entries than Arrow's 32-bit offsets can count.
    """
    borders = np.concatenate([[0], np.cumsum(np.asarray(counts, np.int64))])
    if borders[-1] > np.iinfo(np.int32).max:
        raise too_large()
    kind, offsets = pa.list_(flat.type), pa.py_buffer(borders.astype(np.int32))
    return pa.Array.from_buffers(kind, len(borders) - 1, [None, offsets], children=[flat])


def number_lists(found: Sequence[array[float]], scale: Numbers | None = None) -> pa.ListArray:
    """Return the numbers of points as one list per box or polygon.

    Args:
        found: Arrays of doubles.
        scale: Factors by which the numbers of each point are multiplied. It has one row per list, and one
            column per number of a point. None means that the numbers are not scaled.
    """
    lengths = np.array([*map(len, found)], np.int64)
    flat = np.frombuffer(b"".join(found), np.float64)
    if scale is not None:
        points = lengths // scale.shape[1]
        flat = (flat.reshape(-1, scale.shape[1]) * np.repeat(scale, points, axis=0)).ravel()
    return lists(lengths, from_numpy(flat))


def annotated(
    form: str,
    origin: str,
    keys: pa.StringArray,
    sizes: Numbers,
    boxes: Boxes,
    classes: Sequence[str],
    split: str,
    **more: Any,
) -> Samples:
    """Return the images of one split with their boxes.

    Args:
        form: Name of the form of annotations.
        origin: The annotations that were read. It begins a sentence.
        keys: Paths of the images, relative to the root.
        sizes: Width and height of each image in pixels, `[images, 2]`. It is 0 if unknown.
        boxes: The boxes of the images.
        classes: Names of the classes, in the order of their numbers. It is empty if the names are unknown.
        split: Name of the split.
        more: Additional fields of `Samples`.

    Raises:
        SourceError: A number is not finite.
    """
    flawed, outside = boxes.check(keys, sizes)
    bare = len(keys) - len(np.unique(boxes.rows))
    images = plural(len(keys), "image")
    numbered = f" of {plural(len(classes), 'class', 'classes')}" if classes else ""
    names = [*boxes.more, *["keypoints"] * (boxes.keypoints is not None)]
    names += ["segments"] * (boxes.segments is not None)
    fields = f", with {', '.join(names)}" if names else ""
    summary = (
        f"{origin}: {plural(len(boxes.rows), 'box', 'boxes')}{numbered}{fields} in {images}; "
        "boxes are [x1, y1, x2, y2] in pixels, box_labels number the classes, label is -1"
    )
    what = f"{bare:,} of {images} {'gets' if bare == 1 else 'get'} no boxes"
    notes = (summary, *more.pop("notes"), *[what] * bool(bare), *outside)
    columns = {
        "targets": from_numpy(np.full(len(keys), UNLABELLED)),
        "split": split,
        "classes": tuple(classes),
        "values": boxes.values(len(keys)),
    }
    faults = (*more.pop("faults"), *flawed)
    return Samples(keys, f"folder with boxes ({form})", columns, notes, faults, **more)


def picture_size(store: ByteStore, key: str) -> tuple[int, int, bool] | None:
    """Return the width and height of a picture in pixels, and whether EXIF turns it.

    Return None if the header of the picture cannot be read.
    """
    from smallfiles.images.decoding import orientation  # no other source needs it, nor what follows
    from smallfiles.images.picture import size_of

    head = memoryview(bytearray(HEAD_BYTES))
    got = store.read_into(key, head)
    for most in (HEAD_BYTES, got):
        if most > HEAD_BYTES:  # the header is longer, or this store reads whole files
            head = memoryview(bytearray(got))
            store.read_into(key, head)
        data = head[:got]
        with suppress(Exception):  # Pillow raises what it likes
            return *size_of(data), _EXIF in bytes(data) and orientation(data) > 1
    return None


def none_left(path: Path, what: str, expected: str) -> SourceError:
    """Return the error for annotations that match no image, or of which nothing is left."""
    return SourceError(
        f"{path} {what}", expected=expected, next_step="Check that images and annotations belong together"
    )


def columns_to_scale(names: list[str]) -> list[str]:
    """Return those of the fields `names` that count pixels of the picture."""
    found = [name for name in names if is_boxes(name) or name in ("keypoints", "segments")]
    return [*found, *(name for name in names if name == "area" and "boxes" in found)]


def scale_boxes(source: Source, short_side: int) -> Source:
    """Scale the boxes and polygons of a source as its pictures will be scaled.

    Args:
        source: The source. Its pictures are opened once, for their sizes.
        short_side: The length in pixels to which the shorter side of larger pictures is scaled.

    Raises:
        UsageError: Boxes are not lists of numbers, or pictures have keypoints.
    """
    manifest = source.manifest
    names = columns_to_scale(manifest.values.column_names)
    if not names:
        return source
    if "keypoints" in names:
        raise UsageError(
            f"the images of {source.store.describe()} have keypoints, and they are to be scaled",
            expected="images without keypoints, because these count the pixels of the full-size image",
            next_step="Pack without --resize, or leave the field out of the table",
        )
    from smallfiles.images.crops import short_side as scaled_size

    def factors(path: str) -> tuple[float, float]:
        with suppress(SourceError):  # packing names the picture that cannot be read
            width, height, _ = picture_size(source.store, path) or (0, 0, False)
            if min(width, height) > short_side:
                columns, rows = scaled_size(width, height, short_side)
                return columns / width, rows / height
        return 1.0, 1.0

    scale = np.array(in_flight(factors, manifest.paths.to_pylist()), np.float64)
    table = manifest.table
    for name in names:
        place = table.column_names.index(name)
        table = table.set_column(place, name, _moved(one_chunk(table[name]), name, scale))
    return replace(source, manifest=replace(manifest, table=table))


def _immovable(name: str, what: str) -> UsageError:
    return UsageError(
        f"pictures are to be scaled, and their field {name} cannot be moved with them, since it {what}",
        expected="lists of numbers of pixels: four for a box, x and y in turn for a polygon",
        next_step="Pack without --resize, or leave the field out of the table",
    )


def _moved(column: pa.Array, name: str, scale: Numbers) -> pa.Array:
    """Scale the numbers in a column of lists, or of lists of lists.

    The position of a number in its list determines whether it is an x or a y. Fractions of the picture are
    returned unchanged.
    """
    levels, flat, rows = [], column, np.arange(len(column))
    place = np.zeros(len(column), np.int64)
    while pa.types.is_list(flat.type):
        counts = to_numpy(pc.fill_null(pc.list_value_length(flat), 0)).astype(np.int64)
        levels.append((counts, flat.is_null()))
        rows, flat = np.repeat(rows, counts), flat.flatten()
        place = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    is_number = pa.types.is_integer(flat.type) or pa.types.is_floating(flat.type)
    if not levels or not is_number or flat.null_count:
        raise _immovable(name, f"is {column.type}")
    period = _PERIOD.get(name, 4)
    if odd := set((levels[-1][0] % period).tolist()) - {0}:
        raise _immovable(name, f"has lists of {period} numbers and {odd.pop()} more")
    numbers = to_numpy(flat.cast(pa.float64()))
    axis = np.full(len(place), 2) if name == "area" else place % 2
    most, are_whole = np.abs(numbers).max(initial=0), not (numbers % 1).any()
    if not most or (most <= 1 and not are_whole):
        return column
    if most <= 1 or (most <= _MOST_UNCLEAR and not are_whole):
        raise _immovable(name, f"reaches {most:g}, and may be of pixels or of fractions of the picture")
    axes = np.column_stack([scale, scale.prod(axis=1)])
    by = axes[rows, axis]
    found: pa.Array = from_numpy(numbers * by)
    for counts, missing in reversed(levels):
        found = pc.if_else(missing, pa.scalar(None, pa.list_(found.type)), lists(counts, found))
    return found
