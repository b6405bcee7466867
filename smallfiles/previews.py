"""A small picture of one file, lines of text about it, or both: for people, who see what no checksum tells.

    photograph  scaled down; with its boxes and polygons if the set has some
    mask        laid over its image, a colour for each class, half transparent; class 0 is left clear
    array       grey of two dimensions, a curve of one
    sound       the lowest and highest value of each column of pixels
    text        its first lines; of anything else, the first bytes

The trap: a mask is nearly black as a picture, and the depths of a 16-bit PNG are white. So the numbers of one
channel are shown as numbers: few different ones as classes, many from black to white.
"""

from __future__ import annotations

import colorsys
import io
import wave
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from smallfiles import images
from smallfiles.contents import NPY_SUFFIX, array_view
from smallfiles.fields import is_boxes
from smallfiles.folders import IMAGE_SUFFIXES
from smallfiles.images.decoding import PILLOW_RAISES, decode_by_pillow
from smallfiles.progress import plural

SIDE = 144
"""Pixels of the longer side of a picture."""
MOST_LINES = 9
_MOST_CLASSES = 64
"""Different numbers in a mask; a picture of one channel with more is of grey values or depths."""
_MOST_FRAMES = 10_000_000
_ONE_CHANNEL = ("1", "L", "P", "I", "I;16", "I;16B", "I;16L")
_TEXTS = (".txt", ".json", ".csv", ".tsv", ".md", ".xml", ".html", ".yaml", ".pdb")
_SOUNDS = (".wav", ".flac", ".ogg", ".opus", ".mp3")
_LABELS = ("box_labels", "labels")
_COLOURS = ("#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7")
"""Of Okabe and Ito, which people who are colour-blind tell apart."""

Colour: TypeAlias = tuple[int, int, int]
Numbers: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True)
class Shown:
    """What is shown of a file.

    Args:
        picture: At most `SIDE` pixels wide and high.
        lines: About the file.
        size: Columns and rows of an image before it was scaled down.
    """

    picture: Image.Image | None = None
    lines: tuple[str, ...] = ()
    size: tuple[int, int] | None = None


def of_file(data: bytes, suffix: str) -> Shown:
    """Make a preview of a file.

    Raises:
        ImageError, OSError, ValueError, RuntimeError, EOFError, wave.Error: It is damaged.
    """
    if suffix == NPY_SUFFIX:
        values = array_view(data)
        return Shown(
            _of_array(values), (f"{values.dtype} {'x'.join(map(str, values.shape))}", *_range(values))
        )
    if suffix in _SOUNDS:
        return _of_sound(data, suffix)
    if suffix in _TEXTS:
        return Shown(None, tuple(data[:4096].decode(errors="replace").splitlines()[:MOST_LINES]))
    try:
        picture = Image.fromarray(_pixels(data))
    except images.ImageError:
        if suffix in IMAGE_SUFFIXES:
            raise
        return _of_bytes(data, suffix)
    return Shown(_fit(picture.copy()), (f"{picture.width} x {picture.height}",), picture.size)


def _pixels(data: bytes) -> npt.NDArray[np.uint8]:
    """Decode a picture; by Pillow alone where the faster decoder is not installed."""
    if find_spec("simplejpeg") is None:
        return decode_by_pillow(data)
    return images.decode(data)


def of_partner(data: bytes, suffix: str, first: Shown) -> Shown:
    """Make a preview of another file of a sample. A mask is laid over the image if their sizes are equal.

    Args:
        data: The bytes of the file.
        suffix: The suffix of the file.
        first: The preview of the sample's default file.

    Raises:
        ImageError, OSError, ValueError, RuntimeError, EOFError, wave.Error: It is damaged.
    """
    numbers = _numbers(data, suffix)
    if numbers is None or not numbers.size:
        return of_file(data, suffix)
    rows, columns = numbers.shape
    classes = np.unique(numbers)
    if len(classes) > _MOST_CLASSES or classes[0] < 0:
        about = (f"{columns} x {rows}", *_range(numbers))
        return of_file(data, suffix) if suffix == NPY_SUFFIX else Shown(_of_array(numbers), about)
    named = ", ".join(map(str, classes[:8].tolist())) + (" …" if len(classes) > 8 else "")
    line = f"class {named}" if len(classes) == 1 else f"classes {named}"
    if first.picture is not None and first.size == (columns, rows):
        return Shown(_painted(first.picture, numbers), (line,))
    blank = _fit(Image.new("RGB", (columns, rows), "white"))
    other = () if first.size is None else (f"{columns} x {rows}, other size",)
    return Shown(_painted(blank, numbers), (*other, line))


def _numbers(data: bytes, suffix: str) -> Numbers | None:
    """Return the numbers of a one-channel image or a two-dimensional array, or None for anything else."""
    if suffix == NPY_SUFFIX:
        values: Numbers = array_view(data)
        return values if values.ndim == 2 and values.dtype.kind in "biu" else None
    if suffix not in IMAGE_SUFFIXES:
        return None
    try:
        with Image.open(io.BytesIO(data)) as picture:
            return np.asarray(picture) if picture.mode in _ONE_CHANNEL else None
    except PILLOW_RAISES:
        return None  # which decoding puts into better words


def _painted(picture: Image.Image, classes: Numbers) -> Image.Image:
    """Half of the picture, half of each class's colour."""
    y = np.arange(picture.height) * classes.shape[0] // picture.height
    x = np.arange(picture.width) * classes.shape[1] // picture.width
    found, places = np.unique(classes[y][:, x], return_inverse=True)
    colours = np.array([colour_of(number) for number in found.tolist()], np.uint16)
    pixels = np.asarray(picture, np.uint16)
    marked = (places.reshape(len(y), len(x)) >= np.searchsorted(found, 1))[..., None]
    mixed = np.where(marked, (pixels + colours[places.reshape(len(y), len(x))]) // 2, pixels)
    return Image.fromarray(mixed.astype(np.uint8))


def colour_of(number: int) -> Colour:
    """Return the colour of a class."""
    if 0 < number <= len(_COLOURS):
        red, green, blue = bytes.fromhex(_COLOURS[number - 1][1:])
        return red, green, blue
    red, green, blue = (
        int(255 * part) for part in colorsys.hsv_to_rgb(number * 0.618034 % 1, 0.8, 0.6 + number % 3 * 0.2)
    )
    return red, green, blue


def outlined(first: Shown, values: Mapping[str, Any]) -> Image.Image | None:
    """Draw the boxes of a sample and the outlines of its polygons on its picture.

    Boxes are a column of lists of four numbers [x1, y1, x2, y2] (see `boxes_in`), polygons the column
    `segments` of lists of x and y in turn. Labels of boxes choose their colours.

    Args:
        first: What is shown of the sample's first file.
        values: Its further values.
    """
    if first.picture is None or first.size is None:
        return first.picture
    picture = first.picture.copy()
    pen, scale = ImageDraw.Draw(picture), picture.width / first.size[0]
    for boxes, labels in boxes_in(values).values():
        for box, label in zip(boxes, labels or [0] * len(boxes), strict=True):
            left, top, right, bottom = (value * scale for value in box)
            corners = (min(left, right), min(top, bottom), max(left, right), max(top, bottom))
            pen.rectangle(corners, outline=colour_of(label + 1), width=2)
    for points in _lists_of_numbers(values.get("segments")):
        if len(points) >= 6 and len(points) % 2 == 0:
            pen.polygon([value * scale for value in points], outline="white")
    return picture


def _lists_of_numbers(value: Any) -> list[list[float]]:
    lists = value if isinstance(value, list) else []
    return [
        each for each in lists if isinstance(each, list) and all(isinstance(n, int | float) for n in each)
    ]


def boxes_in(values: Mapping[str, Any]) -> dict[str, tuple[list[list[float]], list[int]]]:
    """Return the boxes and their labels by field.

    A field of boxes is called box, boxes, bbox or bboxes, or ends with `_` and one of these names. Each of
    its lists has four numbers. A single box may be a list of four numbers. The labels are in a field
    `box_labels` or `labels`, with one number per box. Without labels the list is empty.

    Args:
        values: The values of one sample.
    """
    found = {}
    for name, value in values.items():
        if not is_boxes(name) or not isinstance(value, list):
            continue
        boxes = [value] if _is_box(value) else value
        if all(map(_is_box, boxes)):
            given: list[Any] = next((values[each] for each in _LABELS if values.get(each)), [])
            fit = len(given) == len(boxes) and all(isinstance(label, int) for label in given)
            found[name] = boxes, given if fit else []
    return found


def _is_box(value: Any) -> bool:
    return len(_lists_of_numbers([value])) == 1 and len(value) == 4


def of_values(values: Mapping[str, Any], classes: Sequence[str], most: int = 8) -> tuple[str, ...]:
    """Return a line for each other value of a sample. For boxes it says how many of which class."""
    boxes = boxes_in(values)
    lines = [f"{name}: {_counted(*boxes[name], classes)}" for name in boxes]
    told = [*boxes, *(_LABELS if any(labels for _, labels in boxes.values()) else ())]
    others = [name for name in values if name not in told]
    lines += [f"{name}: {_short(values[name])}" for name in others]
    left = len(lines) - most
    return (*lines[:most], f"and {left} more") if left > 0 else tuple(lines)


def _counted(boxes: list[list[float]], labels: list[int], classes: Sequence[str]) -> str:
    if not labels:
        return str(len(boxes))
    found = sorted(set(labels))
    named = (classes[label] if 0 <= label < len(classes) else str(label) for label in found[:4])
    return f"{len(boxes)} ({', '.join(named)}{' …' * (len(found) > 4)})"


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        few = ", ".join(f"{each:.3g}" if isinstance(each, float) else _short(each) for each in value[:3])
        return f"[{few}, … {len(value):,} in all]" if len(value) > 3 else f"[{few}]"
    text = "none" if value is None else str(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


def _fit(picture: Image.Image) -> Image.Image:
    picture.thumbnail((SIDE, SIDE))
    return picture


def _range(values: Numbers) -> tuple[str, ...]:
    """Return the range from the lowest to the highest number, if there are any."""
    finite = values[np.isfinite(values)] if values.dtype.kind in "uif" else values[:0]
    return (f"{_short(finite.min().item())} to {_short(finite.max().item())}",) if finite.size else ()


def _of_array(values: Numbers) -> Image.Image | None:
    """Grey of two dimensions (the first of several planes), a curve of one; None of other values."""
    if values.size == 0 or values.dtype.kind not in "buif":
        return None
    if values.squeeze().ndim < 2:
        return _curve(np.ravel(values).astype(np.float64))
    plane = values if values.ndim == 2 else values[..., 0] if values.shape[-1] <= 4 else values
    while plane.ndim > 2:
        plane = plane[0]
    plane = plane[:: max(1, plane.shape[0] // SIDE), :: max(1, plane.shape[1] // SIDE)].astype(np.float64)
    finite = np.where(np.isfinite(plane), plane, 0)
    low, high = finite.min(), finite.max()
    grey = (finite - low) / ((high - low) or 1) * 255
    return _fit(Image.fromarray(grey.astype(np.uint8)).convert("RGB"))


def _of_bytes(data: bytes, suffix: str) -> Shown:
    return Shown(None, (f"{suffix or 'no suffix'}, {len(data):,} bytes", data[:16].hex(" ")))


def _of_sound(data: bytes, suffix: str) -> Shown:
    """Make a preview of the first channel, with soundfile if it is installed, or else Python's WAV reader."""
    try:
        import soundfile
    except (ModuleNotFoundError, OSError):  # the second: its C library is missing
        return _of_wave(data) if suffix == ".wav" else _of_bytes(data, suffix)
    with soundfile.SoundFile(io.BytesIO(data)) as sound:
        lines = _about_sound(sound.frames, sound.samplerate, sound.channels)
        values = sound.read(min(sound.frames, _MOST_FRAMES), dtype="float32", always_2d=True)[:, 0]
    return Shown(_curve(values), lines)


def _of_wave(data: bytes) -> Shown:
    with wave.open(io.BytesIO(data)) as sound:
        count, channels, width = sound.getnframes(), sound.getnchannels(), sound.getsampwidth()
        lines = _about_sound(count, sound.getframerate(), channels)
        frames = sound.readframes(min(count, _MOST_FRAMES))
    kinds = {1: np.uint8, 2: np.int16, 4: np.int32}
    if width not in kinds:
        return Shown(None, (*lines, f"{8 * width} bits: needs soundfile"))
    return Shown(_curve(np.frombuffer(frames, kinds[width])[::channels].astype(np.float64)), lines)


def _about_sound(frames: int, rate: int, channels: int) -> tuple[str, str]:
    if not rate:
        raise wave.Error("a sampling rate of 0")
    return f"{frames / rate:.2f} s, {rate} Hz", plural(channels, "channel")


def _curve(values: Numbers) -> Image.Image:
    """Lowest and highest value of each column of pixels, as editors of sound draw them."""
    picture = Image.new("RGB", (SIDE, SIDE // 2), "white")
    values = np.where(np.isfinite(values), values, 0)
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)
    scale, drawn = (picture.height - 1) / ((high - low) or 1), ImageDraw.Draw(picture)
    parts = np.array_split(values, min(SIDE, max(1, len(values))))
    for x, part in enumerate(parts if len(values) else []):
        at = x * SIDE // len(parts)
        drawn.line((at, (high - part.max()) * scale, at, (high - part.min()) * scale), "#0b559f")
    return picture
