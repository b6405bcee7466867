"""What names of files and folders mean, and how a source may be asked for.

The trap: `valid`, `validation` and `val` are one split, and a folder called `test` may be a class. So all
of this is known in one place, for sources and for files of others alike. Notebook 02 shows the layouts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from smallfiles.errors import SourceError
from smallfiles.options import check, option

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".webp", ".tif", ".tiff", ".gif")
IMAGE_BEGINNINGS = {
    b"\xff\xd8\xff": "JPEG",
    b"\x89PNG\r\n\x1a\n": "PNG",
    b"GIF8": "GIF",
    b"BM": "BMP",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
    b"RIFF": "WebP",
    **{b"P%d" % number: "PPM" for number in range(1, 8)},
}
"""First bytes of an image file, and what it is."""

_SPLITS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}


def canonical_split(name: str) -> str | None:
    """`train`, `val` or `test` for the usual names of these splits, else None."""
    return _SPLITS.get(name.lower())


def choose_split(found: list[str], wanted: str | None, where: object) -> tuple[str, tuple[str, ...]]:
    """Choose among the splits of a source: the one wanted, the only one, or train.

    Args:
        found: Names of the splits as the source spells them; not empty.
        wanted: What was asked for, or None.
        where: The source, for the message.

    Returns:
        The chosen name as the source spells it, and notes.

    Raises:
        SourceError: It is not there, or nothing was asked for and there is no train split.
    """
    names = ", ".join(found)
    if wanted is not None:
        for name in found:
            if name == wanted or canonical_split(name) == (canonical_split(wanted) or wanted):
                return name, ()
        raise SourceError(
            f"{where} has no split {wanted!r}",
            expected=f"one of its splits: {names}",
            next_step="Choose one of these",
        )
    if len(found) == 1:
        return found[0], ()
    for name in found:
        if canonical_split(name) == "train":
            return name, (f"splits found: {names}; {name} was taken since none was asked for",)
    raise SourceError(
        f"{where} has several splits ({names})",
        expected="to be told which one",
        next_step=f"Choose one, for example --split {found[0]}",
    )


@dataclass(frozen=True)
class SourceOptions:
    """How a source is read; every field has a default that suits the usual case, and most are flags.

    Args:
        kind: One of `KINDS`, or `auto`.
        split: `train`, `val`, `test` or a name the source uses; None takes the only one, or train.
        root: For a manifest: the folder or tar that its paths are relative to.
        labels: Where labels are, if not beside the data: devkit, LOC csv, caption file or split file.
        unlabelled: Give every sample the label -1 instead of asking for class folders.
        strict: Refuse what would otherwise be left out with a note.
        suffixes: Which files are samples; compared without regard to case.
        follow_links: Also follow folder links that leave the root.
        allow_truncated: Take the whole members of a tar file that was cut off.
        sizes: Also learn every file's size: one metadata operation a file, many at once.
    """

    kind: Literal["auto", "folder", "imagenet", "flickr30k", "tarball"] = option(
        "auto", "what kind of data set it is; auto looks", flag="source"
    )
    split: str | None = option(None, "which split to take (train, val, test)")
    root: Path | None = option(None, "where the files of a manifest are, if it does not say", metavar="DIR")
    labels: Path | None = option(None, "where labels or captions are, if not beside the data")
    unlabelled: bool = option(False, "label -1 for all, instead of class folders")
    strict: bool = option(False, "refuse what would otherwise be left out with a note")
    suffixes: tuple[str, ...] = option(
        IMAGE_SUFFIXES,
        "what samples end in, if not images; repeatable",
        flag="suffix",
        metavar=".X",
        many=True,
    )
    follow_links: bool = option(False, "follow folder links that leave the tree")
    allow_truncated: bool = option(False, "take the whole members of a tar that was cut off")
    sizes: bool = True

    def __post_init__(self) -> None:
        check(self)
        dotted = (f".{suffix.lower().removeprefix('.')}" for suffix in self.suffixes)
        object.__setattr__(self, "suffixes", tuple(dotted) or IMAGE_SUFFIXES)
