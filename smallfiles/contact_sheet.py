"""A contact sheet of a packed set: what one looks at before one trains on it for days.

    write(reader, Path("sheet.html"))

A label that slipped by one row, a class of empty pictures, masks instead of photographs: each is seen at a
glance, and by no checksum. Samples are drawn by class with a seed, so that two people look at the same ones.
Below each stand its further fields: a mask laid over the image, say (see `previews`); boxes are drawn in it.
The trap: a damaged file must not hide the others, nor be left out in silence; its reason takes its place.
"""

from __future__ import annotations

import base64
import html
import io
import itertools
import textwrap
import wave
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from smallfiles import previews
from smallfiles.arrays import one_chunk, to_numpy
from smallfiles.atomic import replaced
from smallfiles.errors import SmallfilesError, UsageError, printable
from smallfiles.fields import further_fields, further_files, is_blob
from smallfiles.previews import Shown
from smallfiles.progress import plural
from smallfiles.samples import UNLABELLED, Reader

ROWS, COLUMNS = 24, 8
"""Classes on a sheet, and samples of each."""
_MARGIN = 12  # pixels, as those that follow
_LINE, _HEADING = 15, 22
_LINES_BELOW, _CHARACTERS = 3, 24
_MOST_LINES = 16
_OF_DATA = (OSError, ValueError, EOFError, RuntimeError, wave.Error, Image.DecompressionBombError)
"""What reading damaged files ends with; soundfile's own error is a RuntimeError."""

Font: TypeAlias = ImageFont.FreeTypeFont | ImageFont.ImageFont
Groups: TypeAlias = Sequence[tuple[str, Sequence[tuple[Reader, int]]]]
"""Title and samples of each group, a sample by its set and its number."""


@dataclass(frozen=True)
class Tile(Shown):
    """One sample as it is shown: a picture or lines of text, or the reason why there is neither.

    Args:
        name: Of the file, or of the field; empty for values.
        problem: Why nothing is shown.
        more: Its further files, and its values.
    """

    name: str = ""
    problem: str = ""
    more: tuple[Tile, ...] = ()

    @property
    def parts(self) -> tuple[Tile, ...]:
        """Its own, and those of its further fields."""
        return (self, *self.more)


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
        unreadable: Those among them of which a file cannot be shown.
        note: One line of both, and of what was left out.
    """

    groups: list[Group]
    shown: int
    unreadable: int
    note: str


def write(reader: Reader, path: Path, seed: int = 0, groups: Groups | None = None) -> Sheet:
    """Draw samples of a set and write the sheet; it takes its name when it is complete.

    Args:
        reader: The set.
        path: An `.html` page that needs no other file, or a `.png` picture.
        seed: Of the choice of samples.
        groups: What to show instead of samples of each class, for example duplicates side by side.

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
    sheet = draw(reader, seed, groups)
    with replaced(path) as partial:
        chosen(sheet, reader.path.name, partial)
    return sheet


def draw(reader: Reader, seed: int = 0, given: Groups | None = None) -> Sheet:
    """Choose samples, unless they are given, and make their tiles."""
    drawn, classes = _chosen(reader, np.random.default_rng(seed)) if given is None else ([], 0)
    chosen = given or [(title, [(reader, int(row)) for row in rows]) for title, rows in drawn]
    groups = [Group(title, [_tile(*each) for each in samples]) for title, samples in chosen]
    tiles = [tile for group in groups for tile in group.tiles]
    unreadable = sum(any(part.problem for part in tile.parts) for tile in tiles)
    note = f"{len(tiles):,} of {plural(len(reader), 'sample')}"
    note = note if given is None else f"{plural(len(tiles), 'sample')} in {plural(len(groups), 'group')}"
    if classes:
        note += f", {len(groups):,} of {plural(classes, 'class', 'classes')}"
    note += f", drawn with seed {seed}"
    if unreadable:
        note += f"; {unreadable:,} of them cannot be shown in full"
    return Sheet(groups, len(tiles), unreadable, note)


def _chosen(reader: Reader, rng: np.random.Generator) -> tuple[list[tuple[str, Sequence[int]]], int]:
    """Choose rows of samples under headings, and count the classes (0 if samples have no labels)."""
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
    if "label" not in reader.fields or not len(reader):
        return None
    labels = to_numpy(one_chunk(reader.table(["label"])["label"]))
    return None if (labels == UNLABELLED).all() else labels


def _class_name(reader: Reader, label: int) -> str:
    if label == UNLABELLED:
        return "without a label"
    named = reader.classes[label] if label < len(reader.classes) else ""
    return f"{label} {named}".strip()


def _tile(reader: Reader, row: int) -> Tile:
    """Make the tile of a sample: its default file, its other files, and its values as text."""
    key = PurePosixPath(reader.key(row))
    first = _part(key.name, lambda: _of_first(reader, row, key.suffix.lower()))
    more = [
        _part(name, lambda: previews.of_partner(bytes(blob.read(row)), suffix.lower(), first))  # noqa: B023
        for name, suffix in further_files(reader.fields).items()
        for blob in [reader.blob(name)]
    ]
    values: dict[str, Any] = {}
    told = _part("", lambda: Shown(lines=_of_values(reader, row, values)))
    more += [told] * bool(told.lines or told.problem)
    return replace(first, picture=previews.outlined(first, values), more=tuple(more))


def _part(name: str, show: Callable[[], Shown]) -> Tile:
    try:
        shown = show()
    except SmallfilesError as error:
        return Tile(name=name, problem=error.got)
    except _OF_DATA as error:
        return Tile(name=name, problem=str(error) or type(error).__name__)
    return Tile(**vars(shown), name=name)


def _of_first(reader: Reader, row: int, suffix: str) -> Shown:
    shown = previews.of_file(bytes(reader.read(row)), suffix)
    if "captions" not in reader.fields:
        return shown
    captions = reader.table(["captions"], [row])["captions"][0].as_py()
    return replace(shown, lines=(*shown.lines, *captions[:2]))


def _of_values(reader: Reader, row: int, found: dict[str, Any]) -> tuple[str, ...]:
    """Put the other values of a sample into `found`, and return them as lines of text."""
    further = further_fields(reader.fields)
    names = [name for name, kind in further.items() if not is_blob(kind)]
    found.update(reader.table(names, [row]).to_pylist()[0])
    return previews.of_values(found, reader.classes)


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
    f".row{{display:flex;flex-wrap:wrap;gap:10px}}figure{{margin:0;width:{previews.SIDE}px}}"
    "img{display:block;max-width:100%;outline:1px solid #ddd;outline-offset:-1px}"
    "figcaption,pre,.problem{font-size:11px;font-family:inherit;margin:.2rem 0 0;white-space:pre-wrap;"
    "overflow-wrap:anywhere}figcaption{font-weight:600}.problem{color:#9b1c1c}"
)


def _section(group: Group) -> str:
    heading = f"<h2>{html.escape(printable(group.title))}</h2>\n" if group.title else ""
    heights = _heights(group.tiles)
    figures = "".join(_figure(tile, heights) for tile in group.tiles)
    return f'<section>\n{heading}<div class="row">\n{figures}</div>\n</section>'


def _figure(tile: Tile, heights: Sequence[tuple[int, int]]) -> str:
    return f"<figure>{''.join(map(_part_of_page, tile.parts, heights))}</figure>\n"


def _part_of_page(tile: Tile, heights: tuple[int, int]) -> str:
    name = html.escape(printable(tile.name), quote=True)
    lines = "\n".join(html.escape(printable(line)) for line in tile.lines)
    inside, below = f"<pre>{lines}</pre>" if lines else "", f"<figcaption>{name}</figcaption>" if name else ""
    if tile.problem:
        inside = f'<p class="problem">{html.escape(printable(tile.problem))}</p>'
    elif tile.picture is not None:
        kept = io.BytesIO()
        tile.picture.save(kept, "JPEG", quality=85)
        source = base64.b64encode(kept.getvalue()).decode()
        below += inside
        inside = f'<img alt="{name}" src="data:image/jpeg;base64,{source}">'
    both = zip(heights, (inside, below), strict=True)
    return "".join(f'<div style="min-height:{height}px">{part}</div>' for height, part in both)


def _write_picture(sheet: Sheet, name: str, path: Path) -> None:
    bold, plain = _font(13), _font(10)
    rows = [
        (g.title, g.tiles[n : n + COLUMNS]) for g in sheet.groups for n in range(0, len(g.tiles), COLUMNS)
    ]
    heights = [_heights(tiles) for _, tiles in rows]
    below = sum(_HEADING + sum(map(sum, each)) + _MARGIN for each in heights)
    canvas = Image.new("RGB", (COLUMNS * (previews.SIDE + _MARGIN) + _MARGIN, 60 + below), "white")
    pen = ImageDraw.Draw(canvas)
    pen.text((_MARGIN, 10), f"Samples of {printable(name)}", "black", font=bold)
    pen.text((_MARGIN, 32), sheet.note, "black", font=plain)
    top = 60
    for (title, tiles), of_parts in zip(rows, heights, strict=True):
        pen.text((_MARGIN, top), printable(title), "black", font=bold)
        top += _HEADING
        for number, (inside, lines) in enumerate(of_parts):
            for column, tile in enumerate(tiles):
                left = _MARGIN + column * (previews.SIDE + _MARGIN)
                if number < len(tile.parts):
                    _paste(canvas, tile.parts[number], (left, top), inside, plain)
            top += inside + lines
        top += _MARGIN
    canvas.save(path, "PNG")


def _heights(tiles: Sequence[Tile]) -> list[tuple[int, int]]:
    """Return the pixels that each part of these samples needs: inside for picture or text, and below it."""
    found = []
    for parts in itertools.zip_longest(*(tile.parts for tile in tiles), fillvalue=Tile()):
        texts = [_texts(part) for part in parts]
        inside = max(part.picture.height if part.picture else 0 for part in parts)
        inside = max(inside, *(_LINE * len(text) for text, _ in texts))
        found.append((inside, _LINE * max(len(below) for _, below in texts) + 4))
    return found


def _texts(tile: Tile) -> tuple[list[str], list[str]]:
    """Return the lines in place of a picture, and the lines below it."""
    named = [_cut(tile.name)] if tile.name else []
    if tile.picture is not None:
        return [], [*named, *map(_cut, tile.lines)][:_LINES_BELOW]
    if tile.problem:
        return _wrapped(tile.problem)[: previews.MOST_LINES], named
    if tile.name:
        return [_cut(line) for line in tile.lines][: previews.MOST_LINES], named
    return [part for line in tile.lines for part in _wrapped(line)[:2]][:_MOST_LINES], named


def _paste(canvas: Image.Image, tile: Tile, place: tuple[int, int], height: int, font: Font) -> None:
    """Paste a part of a sample onto the sheet: its picture or text, then its name and facts."""
    (left, top), pen = place, ImageDraw.Draw(canvas)
    inside, below = _texts(tile)
    if tile.picture is not None:
        canvas.paste(tile.picture, place)
    for n, line in enumerate(inside):
        pen.text((left, top + n * _LINE), line, "#9b1c1c" if tile.problem else "black", font=font)
    for n, line in enumerate(below):
        pen.text((left, top + height + n * _LINE), line, "#444", font=font)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(printable(text), _CHARACTERS)


def _cut(line: str) -> str:
    line = printable(line)
    half = _CHARACTERS // 2
    return line if len(line) <= _CHARACTERS else f"{line[:half]}…{line[-half + 1 :]}"


def _font(size: int) -> Font:
    """Load a font with the letters of most languages, or else Pillow's own font."""
    try:
        return ImageFont.truetype("DejaVuSans.ttf", size)
    except OSError:
        return ImageFont.load_default(size)
