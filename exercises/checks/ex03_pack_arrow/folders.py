"""Flickr30K folders to try an answer on: a small awkward one, and a part of the participant's own.

Both look like Kaggle's archive: the images two folders deep, and `results.csv` twice. The trap: an
answer that was only tried on tidy data works until line 20,001.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from smallfiles import sources

HEADER = "image_name| comment_number| comment"
CSV = "results.csv"
MOST_IMAGES = 400
_NESTED = Path("flickr30k_images/flickr30k_images")


@dataclass(frozen=True)
class Truth:
    """What a packed file of a folder must hold.

    Args:
        folder: The folder.
        images: Where the images themselves are.
        captions: Five captions (or as many as there are) by image name, names sorted.
    """

    folder: Path
    images: Path
    captions: Mapping[str, list[str]]

    @property
    def names(self) -> list[str]:
        """Image names in the order of the rows."""
        return list(self.captions)

    def data(self, name: str) -> bytes:
        """The bytes of an image."""
        return (self.images / name).read_bytes()


def truth_of(folder: Path) -> Truth:
    """Read a folder with the package's own reader.

    Raises:
        SourceError: It is no Flickr30K.
    """
    source = sources.load(folder, "flickr30k", split="all", sizes=False)
    names = source.manifest.paths.to_pylist()
    captions = dict(zip(names, source.manifest.targets.to_pylist(), strict=True))
    return Truth(folder, source.root or folder, captions)


def row(name: str, number: int, caption: str, spoilt: bool = False) -> str:
    """One row of results.csv; a spoilt one has lost its second delimiter."""
    return f"{name}| {number}{'   ' if spoilt else '| '}{caption}\n"


def kaggle_folder(folder: Path, images: Mapping[str, bytes | Path], table: str) -> Path:
    """Lay out a folder as Kaggle's archive; images are bytes, or paths that are linked to."""
    inner = folder / _NESTED
    inner.mkdir(parents=True)
    for place in (inner, inner.parent):
        (place / CSV).write_text(table, encoding="utf-8")
    for name, content in images.items():
        if isinstance(content, Path):
            (inner / name).symlink_to(content.absolute())
        else:
            (inner / name).write_bytes(content)
    return folder


def practice_folder(folder: Path, place: Path) -> Path:
    """A folder that is quick to pack: the participant's own, or a part of it by links.

    Args:
        folder: Any Flickr30K folder, synthetic or real.
        place: Where a part is laid out, if the folder is large or has no results.csv.

    Returns:
        A folder in Kaggle's layout with at most `MOST_IMAGES` images.
    """
    truth = truth_of(folder)
    tables = [p for depth in ("", "*/", "*/*/") for p in sorted(folder.glob(depth + CSV))]
    if tables and len(truth.captions) <= MOST_IMAGES:
        return folder
    lines = tables[0].read_text(encoding="utf-8").split("\n")[1:] if tables else []
    spoilt = [name for name, rest in _named(lines) if rest.count("|") < 1 and name in truth.captions]
    chosen = sorted({*spoilt[:1], *truth.names[: MOST_IMAGES - len(spoilt[:1])]})
    kept = set(chosen)
    rows = [f"{name}|{rest}\n" for name, rest in _named(lines) if name in kept] or _rows_of(truth, chosen)
    images = {name: truth.images / name for name in chosen}
    shutil.rmtree(place / _NESTED.parts[0], ignore_errors=True)  # a cell that runs again
    return kaggle_folder(place, images, "".join([HEADER + "\n", *rows]))


def _named(lines: Sequence[str]) -> Iterable[tuple[str, str]]:
    for line in lines:
        name, found, rest = line.rstrip("\r").partition("|")
        if found:
            yield name, rest


def _rows_of(truth: Truth, names: Sequence[str]) -> list[str]:
    return [row(name, n, text) for name in names for n, text in enumerate(truth.captions[name])]


TEXTS = (
    'A child in a red , woollen hat laughs , points and shouts " more " .',
    "Two women , both in blue , wait at a café .",
    "A dog runs across the grass .",
    'Somebody holds a sign that reads " open .',  # a quote that is never closed
    "People cross a street , some slowly .",
)
NAMES = ("998845445.jpg", "1000092795.jpg", "36979.jpg", "2199200615.jpg", "10002456.jpg", "4954.jpg")


def awkward_folder(place: Path) -> Path:
    """Six images with everything that the real folder has to trip over, and rows out of order."""
    cells = [(name, number) for number in (3, 0, 4, 1, 2) for name in NAMES]
    rows = [row(*cell, _text(*cell), spoilt=cell == (NAMES[3], 4)) for cell in cells]
    images = {name: _jpeg(seed) for seed, name in enumerate(NAMES)}
    return kaggle_folder(place, images, "".join([HEADER + "\n", *rows]))


def _text(name: str, number: int) -> str:
    return f"{TEXTS[number][:-2]} beside house {name[:4]} {TEXTS[number][-1]}"


def _jpeg(seed: int) -> bytes:
    """A tiny photograph; saving it again gives other bytes."""
    import numpy as np
    from PIL import Image

    pixels = np.random.default_rng(seed).integers(0, 256, (24, 32, 3), np.uint8)
    target = io.BytesIO()
    Image.fromarray(pixels).save(target, "JPEG", quality=93 - seed, comment=b"from a camera")
    return target.getvalue()
