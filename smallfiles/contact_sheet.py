"""A contact sheet of a packed set: what one looks at before one trains on it for days.

    write(reader, Path("sheet.html"))

A label that slipped by one row, a class of empty pictures, masks instead of photographs: each is seen at a
glance, and by no checksum. Samples are drawn by class with a seed, so that two people look at the same ones.
The trap: a damaged sample must not hide the others, nor be left out in silence; its reason takes its place.
"""

from __future__ import annotations

import base64
import html
import io
import textwrap
import wave
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from smallfiles import images
from smallfiles.atomic import replaced
from smallfiles.errors import SmallfilesError, UsageError
from smallfiles.folders import IMAGE_SUFFIXES
from smallfiles.keys import printable
from smallfiles.progress import plural
from smallfiles.samples import UNLABELLED, Reader

ROWS, COLUMNS = 24, 8
"""Classes on a sheet, and samples of each."""
_SIDE, _MARGIN = 144, 12  # pixels, as those that follow
_LINE, _HEADING = 15, 22
_LINES_BELOW, _CHARACTERS = 3, 24
_LINES_OF_TEXT = 9
_TEXTS = (".txt", ".json", ".csv", ".tsv", ".md", ".xml", ".html", ".yaml", ".pdb")

Values: TypeAlias = npt.NDArray[np.float64]
Font: TypeAlias = ImageFont.FreeTypeFont | ImageFont.ImageFont


@dataclass(frozen=True)
class Tile:
    """One sample as it is shown: a picture or lines of text, or the reason why there is neither."""

    name: str
    picture: Image.Image | None = None
    lines: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class Group:
    """Samples under one heading, most often a class."""

    title: str
    tiles: list[Tile]


@dataclass(frozen=True)
class Sheet:
    """What is shown, and how much is not.

    Args:
        shown: Samples on the sheet.
        unreadable: Those among them of which nothing could be shown.
        note: One line of both, and of what was left out.
    """

    groups: list[Group]
    shown: int
    unreadable: int
    note: str


def write(reader: Reader, path: Path, seed: int = 0) -> Sheet:
    """Draw samples of a set and write the sheet; it takes its name when it is complete.

    Args:
        reader: The set.
        path: An `.html` page that needs no other file, or a `.png` picture.
        seed: Of the choice of samples.

    Raises:
        UsageError: The path has another suffix.
    """
    writers: dict[str, Callable[[Sheet, str, Path], None]] = {".html": _write_page, ".png": _write_picture}
    chosen = writers.get(path.suffix.lower())
    if chosen is None:
        raise UsageError(
            f"{path} is no name of a contact sheet",
            expected="a name that ends with .html or .png",
            next_step="Give another name, such as sheet.html",
        )
    sheet = draw(reader, seed)
    with replaced(path) as partial:
        chosen(sheet, reader.path.name, partial)
    return sheet


def draw(reader: Reader, seed: int = 0) -> Sheet:
    """Choose samples and make their tiles."""
    rng = np.random.default_rng(seed)
    chosen, classes = _chosen(reader, rng)
    groups = [Group(title, [_tile(reader, int(row)) for row in rows]) for title, rows in chosen]
    tiles = [tile for group in groups for tile in group.tiles]
    unreadable = sum(bool(tile.problem) for tile in tiles)
    note = f"{len(tiles):,} of {plural(len(reader), 'sample')}"
    if classes:
        note += f", {len(groups):,} of {plural(classes, 'class', 'classes')}"
    note += f", drawn with seed {seed}"
    if unreadable:
        note += f"; {unreadable:,} of them cannot be shown"
    return Sheet(groups, len(tiles), unreadable, note)


def _chosen(reader: Reader, rng: np.random.Generator) -> tuple[list[tuple[str, Sequence[int]]], int]:
    """Headings with rows of samples, and how many classes there are (0 where they have no labels)."""
    labels = _labels(reader)
    if labels is None:
        some = rng.permutation(len(reader))[: ROWS * COLUMNS // 2]
        return ([("", sorted(some.tolist()))] if len(some) else []), 0
    order = np.argsort(labels, kind="stable")
    present, starts = np.unique(labels[order], return_index=True)
    stops = np.append(starts[1:], len(order))
    found = []
    for number in np.sort(rng.permutation(len(present))[:ROWS]).tolist():
        rows = order[starts[number] : stops[number]]
        some = np.sort(rng.permutation(len(rows))[:COLUMNS])
        heading = f"{_class_name(reader, int(present[number]))} ({plural(len(rows), 'sample')})"
        found.append((heading, rows[some].tolist()))
    return found, len(present)


def _labels(reader: Reader) -> npt.NDArray[np.int64] | None:
    if reader.target_kind != "label" or not len(reader):
        return None
    labels = np.array(reader.targets(0, len(reader)), np.int64)
    return None if (labels == UNLABELLED).all() else labels


def _class_name(reader: Reader, label: int) -> str:
    if label == UNLABELLED:
        return "without a label"
    named = reader.classes[label] if label < len(reader.classes) else ""
    return f"{label} {named}".strip()


def _tile(reader: Reader, row: int) -> Tile:
    key = reader.key(row)
    name = PurePosixPath(key).name
    try:
        target = reader.target(row)
        picture, lines = _shown(bytes(reader.read(row)), PurePosixPath(key).suffix.lower())
    except SmallfilesError as error:
        return Tile(name, problem=error.got)
    except (OSError, ValueError, EOFError, wave.Error) as error:
        return Tile(name, problem=str(error) or type(error).__name__)
    captions = tuple(target[:2]) if isinstance(target, list) else ()
    return Tile(name, picture, lines + captions)


def _shown(data: bytes, suffix: str) -> tuple[Image.Image | None, tuple[str, ...]]:
    """A picture of a sample, lines of text about it, or both."""
    if suffix == ".npy":
        values = np.load(io.BytesIO(data), allow_pickle=False)
        return _of_array(values), (f"{values.dtype} {'x'.join(map(str, values.shape))}",)
    if suffix == ".wav":
        return _of_sound(data)
    if suffix in _TEXTS:
        return None, tuple(data[:4096].decode(errors="replace").splitlines()[:_LINES_OF_TEXT])
    try:
        picture = Image.fromarray(images.decode(data))
    except images.ImageError:
        if suffix in IMAGE_SUFFIXES:
            raise
        return None, (f"{suffix or 'no suffix'}, {len(data):,} bytes", data[:16].hex(" "))
    size = f"{picture.width} x {picture.height}"
    return _fit(picture), (size,)


def _fit(picture: Image.Image) -> Image.Image:
    picture.thumbnail((_SIDE, _SIDE))
    return picture


def _of_array(values: npt.NDArray[Any]) -> Image.Image | None:
    """Grey of two dimensions (the first of several planes), a curve of one; None of other values."""
    if values.size == 0 or values.dtype.kind not in "buif":
        return None
    if values.squeeze().ndim < 2:
        return _curve(np.ravel(values).astype(np.float64))
    plane = values if values.ndim == 2 else values[..., 0] if values.shape[-1] <= 4 else values
    while plane.ndim > 2:
        plane = plane[0]
    plane = plane[:: max(1, plane.shape[0] // _SIDE), :: max(1, plane.shape[1] // _SIDE)].astype(np.float64)
    finite = np.where(np.isfinite(plane), plane, 0)
    low, high = finite.min(), finite.max()
    grey = (finite - low) / ((high - low) or 1) * 255
    return _fit(Image.fromarray(grey.astype(np.uint8)).convert("RGB"))


def _of_sound(data: bytes) -> tuple[Image.Image, tuple[str, ...]]:
    with wave.open(io.BytesIO(data)) as sound:
        rate, channels, width = sound.getframerate(), sound.getnchannels(), sound.getsampwidth()
        frames = sound.readframes(sound.getnframes())
    kinds = {1: np.uint8, 2: np.int16, 4: np.int32}
    seconds = len(frames) / (rate * channels * width)
    line = f"{seconds:.2f} s, {rate} Hz, {plural(channels, 'channel')}"
    if width not in kinds:
        return _curve(np.zeros(1)), (line, f"{8 * width} bits")
    return _curve(np.frombuffer(frames, kinds[width])[::channels].astype(np.float64)), (line,)


def _curve(values: Values) -> Image.Image:
    """Lowest and highest value of each column of pixels, as editors of sound draw them."""
    picture = Image.new("RGB", (_SIDE, _SIDE // 2), "white")
    values = np.where(np.isfinite(values), values, 0)
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)
    scale, drawn = (picture.height - 1) / ((high - low) or 1), ImageDraw.Draw(picture)
    parts = np.array_split(values, min(_SIDE, max(1, len(values))))
    for x, part in enumerate(parts if len(values) else []):
        at = x * _SIDE // len(parts)
        drawn.line((at, (high - part.max()) * scale, at, (high - part.min()) * scale), "#0b559f")
    return picture


def _write_page(sheet: Sheet, name: str, path: Path) -> None:
    title = html.escape(f"Samples of {printable(name)}")
    body = "\n".join(_section(group) for group in sheet.groups)
    path.write_text(
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
        f"<p>{html.escape(sheet.note)}</p>\n{body}\n</main>\n</body>\n</html>\n",
        encoding="utf-8",
    )


_STYLE = (
    'body{font:14px/1.4 system-ui,"DejaVu Sans",sans-serif;margin:1.5rem;color:#222}'
    "h2{font-size:1rem;margin:1.2rem 0 .4rem}section{display:block}"
    f".row{{display:flex;flex-wrap:wrap;gap:10px}}figure{{margin:0;width:{_SIDE}px}}"
    "img{display:block;max-width:100%;image-rendering:auto;border:1px solid #ddd}"
    "figcaption,pre{font-size:11px;margin:.2rem 0 0;white-space:pre-wrap;overflow-wrap:anywhere}"
    ".problem{color:#9b1c1c}"
)


def _section(group: Group) -> str:
    heading = f"<h2>{html.escape(printable(group.title))}</h2>\n" if group.title else ""
    return f'<section>\n{heading}<div class="row">\n{"".join(map(_figure, group.tiles))}</div>\n</section>'


def _figure(tile: Tile) -> str:
    name = html.escape(printable(tile.name), quote=True)
    shown = ""
    if tile.picture is not None:
        kept = io.BytesIO()
        tile.picture.save(kept, "JPEG", quality=85)
        source = base64.b64encode(kept.getvalue()).decode()
        shown = f'<img alt="{name}" src="data:image/jpeg;base64,{source}">'
    lines = "\n".join(html.escape(printable(line)) for line in tile.lines)
    shown += f"<pre>{lines}</pre>" if lines else ""
    shown += f'<p class="problem">{html.escape(printable(tile.problem))}</p>' if tile.problem else ""
    return f"<figure>{shown}<figcaption>{name}</figcaption></figure>\n"


def _write_picture(sheet: Sheet, name: str, path: Path) -> None:
    bold, plain = _font(13), _font(10)
    rows = [
        (g.title, g.tiles[n : n + COLUMNS]) for g in sheet.groups for n in range(0, len(g.tiles), COLUMNS)
    ]
    height = _HEADING + _SIDE + _LINES_BELOW * _LINE + _MARGIN
    size = (COLUMNS * (_SIDE + _MARGIN) + _MARGIN, 60 + len(rows) * height)
    canvas = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(canvas)
    pen.text((_MARGIN, 10), f"Samples of {printable(name)}", "black", font=bold)
    pen.text((_MARGIN, 32), sheet.note, "black", font=plain)
    for number, (title, tiles) in enumerate(rows):
        top = 60 + number * height
        pen.text((_MARGIN, top), printable(title), "black", font=bold)
        for column, tile in enumerate(tiles):
            _paste(canvas, tile, _MARGIN + column * (_SIDE + _MARGIN), top + _HEADING, plain)
    canvas.save(path, "PNG")


def _paste(canvas: Image.Image, tile: Tile, left: int, top: int, font: Font) -> None:
    """A tile: its picture or text in a square, then its name and what is known of it."""
    below: tuple[str, ...] = (tile.name,)
    inside: list[str] = []
    if tile.picture is not None:
        canvas.paste(tile.picture, (left, top))
        below += tile.lines
    else:
        inside = textwrap.wrap(tile.problem, _CHARACTERS) or [*tile.lines]
    colour = "#9b1c1c" if tile.problem else "black"
    pen = ImageDraw.Draw(canvas)
    for n, line in enumerate(inside[: _SIDE // _LINE]):
        pen.text((left, top + n * _LINE), _cut(line), colour, font=font)
    for n, line in enumerate(below[:_LINES_BELOW]):
        pen.text((left, top + _SIDE + n * _LINE), _cut(line), "#444", font=font)


def _cut(line: str) -> str:
    line = printable(line)
    half = _CHARACTERS // 2
    return line if len(line) <= _CHARACTERS else f"{line[:half]}…{line[-half + 1 :]}"


def _font(size: int) -> Font:
    """A font with the letters of most languages, where the system has one; else Pillow's own."""
    try:
        return ImageFont.truetype("DejaVuSans.ttf", size)
    except OSError:
        return ImageFont.load_default(size)
