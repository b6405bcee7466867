"""A contact sheet of a packed set: what one looks at before one trains on it for days.

    write(reader, Path("sheet.html"))

A label that slipped by one row, a class of empty pictures, masks instead of photographs: each is seen at a
glance, and by no checksum. Samples are drawn by class, for everybody the same ones.
Below each stand its further fields: a mask laid over the image, say (see `previews`); boxes are drawn in it.
The trap: a damaged file must not hide the others, nor be left out in silence; its reason takes its place.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from smallfiles import previews
from smallfiles.arrays import one_chunk, to_numpy
from smallfiles.atomic import replaced
from smallfiles.errors import SmallfilesError, UsageError
from smallfiles.fields import further_fields, further_files, is_blob
from smallfiles.keys import printable
from smallfiles.previews import Shown
from smallfiles.progress import plural
from smallfiles.samples import UNLABELLED, Reader

ROWS, COLUMNS = 24, 8
"""Classes on a sheet, and samples of each."""
_OF_DATA = (OSError, ValueError, EOFError, RuntimeError, Image.DecompressionBombError)
"""What reading damaged files ends with; soundfile's own error is a RuntimeError."""


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
        groups: The samples.
        note: How many they are, of how many, and how many of them cannot be shown.
    """

    groups: list[Group]
    note: str


def write(reader: Reader, path: Path) -> Sheet:
    """Draw samples of a set and write the sheet; it takes its name when it is complete.

    Args:
        reader: The set.
        path: An `.html` page that needs no other file.

    Raises:
        UsageError: The path has another suffix.
    """
    if path.suffix.lower() != ".html":
        raise UsageError(
            f"{path} is no name of a contact sheet",
            expected="a name that ends with .html",
            next_step="Give another name, such as sheet.html",
        )
    sheet = draw(reader)
    with replaced(path) as partial:
        _write_page(sheet, reader.path.name, partial)
    return sheet


def draw(reader: Reader) -> Sheet:
    """Choose samples and make their tiles."""
    chosen, classes = _chosen(reader, np.random.default_rng(0))
    groups = [Group(title, [_tile(reader, int(row)) for row in rows]) for title, rows in chosen]
    tiles = [tile for group in groups for tile in group.tiles]
    unreadable = sum(any(part.problem for part in tile.parts) for tile in tiles)
    note = f"{len(tiles):,} of {plural(len(reader), 'sample')}"
    if classes:
        note += f", {len(groups):,} of {plural(classes, 'class', 'classes')}"
    if unreadable:
        note += f"; {unreadable:,} of them cannot be shown in full"
    return Sheet(groups, note)


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
    """A sample: its first file, its further files, and its values as text."""
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
    """Lines of the further values of a sample, which are put into `found`."""
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
    f"img{{display:block;width:100%;height:{previews.SIDE}px;object-fit:scale-down;object-position:0 0}}"
    "figcaption,pre,.problem{font-size:11px;font-family:inherit;margin:.2rem 0 0;white-space:pre-wrap;"
    "overflow-wrap:anywhere}figcaption{font-weight:600}.problem{color:#9b1c1c}"
)


def _section(group: Group) -> str:
    heading = f"<h2>{html.escape(printable(group.title))}</h2>\n" if group.title else ""
    figures = "".join(f"<figure>{''.join(map(_part_of_page, tile.parts))}</figure>\n" for tile in group.tiles)
    return f'<section>\n{heading}<div class="row">\n{figures}</div>\n</section>'


def _part_of_page(tile: Tile) -> str:
    name = html.escape(printable(tile.name), quote=True)
    caption = f"<figcaption>{name}</figcaption>" if name else ""
    text = html.escape("\n".join(map(printable, tile.lines)))
    lines = f"<pre>{text}</pre>" if text else ""
    if tile.problem:
        return f'<p class="problem">{html.escape(printable(tile.problem))}</p>{caption}'
    if tile.picture is None:
        return lines + caption
    kept = io.BytesIO()
    tile.picture.save(kept, "JPEG", quality=85)
    source = base64.b64encode(kept.getvalue()).decode()
    return f'<img alt="{name}" src="data:image/jpeg;base64,{source}">{caption}{lines}'
