"""Scale boxes and polygons together with their pictures, where these are scaled before packing.

Fields called box, boxes, bbox or bboxes, or ending with `_` and one of these, are lists of four numbers, x
and y in turn. `segments` are lists of x and y in turn, too, and `area` counts pixels. Numbers that are at
most 1 everywhere, and not all whole, are fractions of the picture, and they stay. `keypoints` are refused.

The trap: boxes count the pixels of the file that they were drawn on. If that file shrinks, nothing fails, but
they lie elsewhere. So a column of boxes that cannot be scaled is refused. docs/recipes.md has an example.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.arrays import from_numpy, one_chunk, to_numpy
from smallfiles.errors import SourceError, UsageError
from smallfiles.fields import is_boxes
from smallfiles.sources.annotations.boxes import lists, picture_size
from smallfiles.sources.record import Source
from smallfiles.sources.scanning import in_flight

Factors = npt.NDArray[np.float64]
_PERIOD = {"segments": 2, "area": 1}
"""Numbers after which x comes again; in boxes four, since a fifth would be a class, a score or an angle."""
_MOST_UNCLEAR = 2


def moving(names: list[str]) -> list[str]:
    """The fields among these that count pixels of the picture."""
    found = [name for name in names if is_boxes(name) or name in ("keypoints", "segments")]
    return [*found, *(name for name in names if name == "area" and "boxes" in found)]


def moved(source: Source, short_side: int) -> Source:
    """Return the source with the boxes and polygons of its scaled pictures.

    Args:
        source: Its pictures are opened once, for their sizes.
        short_side: What pictures with a longer shorter side are scaled to.

    Raises:
        UsageError: Boxes are not lists of numbers, or pictures have keypoints.
    """
    manifest = source.manifest
    names = moving(manifest.values.column_names)
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


def _moved(column: pa.Array, name: str, scale: Factors) -> pa.Array:
    """A column of lists, or of lists of lists, with each number scaled as its place among x and y says."""
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
