"""Folders in Flickr30K's layout, small enough for exercise 03 to pack them again and again.

    practice_folder    the participant's own, or a part of it by links
    truth_of           what a packed file of a folder has to hold

The trap: of a large set the part must hold the row that lost its delimiter, or the exercise loses its point.
Notebook 03 sends participants to the exercise.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from smallfiles import sources

HEADER = "image_name| comment_number| comment\n"
MOST_IMAGES = 400


def row(name: str, number: int, caption: str, spoilt: bool = False) -> str:
    """One row of results.csv; a spoilt one has lost its second delimiter."""
    return f"{name}| {number}{'   ' if spoilt else '| '}{caption}\n"


@dataclass(frozen=True)
class Truth:
    """What a packed file of `folder` must hold: captions by image name, sorted, and images' bytes."""

    folder: Path
    images: Path
    captions: Mapping[str, list[str]]

    def data(self, name: str) -> bytes:
        """The bytes of an image."""
        return (self.images / name).read_bytes()


def truth_of(folder: Path) -> Truth:
    """Read a folder with the package's own reader; refuses what is no Flickr30K."""
    source = sources.load(folder, "flickr30k", split="all", sizes=False)
    names = source.manifest.paths.to_pylist()
    told = dict(zip(names, source.manifest.targets.to_pylist(), strict=True))
    return Truth(folder, source.root or folder, told)


def practice_folder(folder: Path, place: Path) -> Path:
    """The participant's Flickr30K, or at `place` a part of it by links that is quick to pack."""
    truth = truth_of(folder)
    table = next((p for depth in ("", "*/", "*/*/") for p in folder.glob(depth + "results.csv")), None)
    if table and len(truth.captions) <= MOST_IMAGES:
        return folder
    lines = table.read_text(encoding="utf-8").split("\n")[1:] if table else []
    rows = {line: line.partition("|")[0] for line in lines if line.partition("|")[0] in truth.captions}
    spoilt = [name for line, name in rows.items() if line.count("|") == 1][:1]
    chosen = dict.fromkeys(sorted({*spoilt, *list(truth.captions)[: MOST_IMAGES - len(spoilt)]}))
    kept = [f"{line}\n" for line, name in rows.items() if name in chosen]
    made = [row(name, n, text) for name in chosen for n, text in enumerate(truth.captions[name])]
    return lay_out(place, {name: truth.images / name for name in chosen}, kept or made)


def lay_out(place: Path, images: Mapping[str, Path], rows: Sequence[str]) -> Path:
    """As Kaggle's archive: links to the images two folders deep, `results.csv` twice."""
    inner = place / "flickr30k_images/flickr30k_images"
    shutil.rmtree(inner.parent, ignore_errors=True)  # a cell that runs again
    inner.mkdir(parents=True)
    for folder in (inner, inner.parent):
        (folder / "results.csv").write_text("".join([HEADER, *rows]), encoding="utf-8")
    for name, image in images.items():
        (inner / name).symlink_to(image.absolute())
    return place
