"""What names of files and folders mean, and how a source may be asked for.

The trap: `valid`, `validation` and `val` are one split, and a folder called `test` may be a class. So all
of this is known in one place, for sources and for files of others alike. Notebook 02 shows the layouts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from smallfiles.errors import SourceError
from smallfiles.options import check, flag_of, option

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

SERVICE_FOLDERS = ("__macosx", "@eadir", "thumbs", "thumbnails", "#recycle", "$recycle.bin", "lost+found")
"""What file managers and storage boxes put beside the data (lower case): no class, and no samples."""

_SPLITS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "eval": "val",
    "evaluation": "val",
    "test": "test",
    "testing": "test",
}
_FILLERS = frozenset({"image", "images", "img", "imgs", "set", "data", "dataset", "split", "seg"})
_NUMBERED = re.compile(r"\d{5}")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_A-Za-z]+")


def words_of(name: str) -> list[str]:
    """The words in a name, in lower case: `train_images`, `trainImages` and `train2017` hold `train`."""
    return [word.lower() for word in _WORD.findall(name)]


def canonical_split(name: str, beside: Iterable[str] = ()) -> str | None:
    """`train`, `val` or `test` for the usual names of these splits (`train2017`, `seg_train`), else None.

    Args:
        name: Of a folder.
        beside: All folders there: words in each of their names say nothing (`stage1_train`, `stage1_test`).
    """
    names = [set(words_of(each)) for each in beside]
    shared = set.intersection(*names) - _SPLITS.keys() if len(names) > 1 else set()
    words = [word for word in words_of(name) if word not in _FILLERS | shared]
    if _NUMBERED.search(name):
        return None  # a shard
    return _SPLITS.get(words[0]) if len(words) == 1 else None


def is_hidden(name: str) -> bool:
    """Whether a file or folder of this name is none of the data."""
    return name.startswith(".") or name.lower() in SERVICE_FOLDERS


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
    if wanted is None and len(found) == 1:
        return found[0], ()
    fitting = _fitting(found, wanted or "train")
    if len(fitting) == 1:
        note = f"splits found: {names}; {fitting[0]} was taken since none was asked for"
        return fitting[0], (note,) if wanted is None else ()
    if wanted is not None and not fitting:
        raise SourceError(
            f"{where} has no split {wanted!r}",
            expected=f"one of its splits: {names}",
            next_step="Choose one of these",
        )
    raise SourceError(
        f"{where} has several splits ({', '.join(fitting or found)})",
        expected="to be told which one",
        next_step=f"Choose one, for example --split {(fitting or found)[0]}",
    )


def _fitting(found: list[str], wanted: str) -> list[str]:
    """The splits that are meant: the one of just this name, or else all of this meaning."""
    exact = [name for name in found if name == wanted] or [name for name in found if name.lower() == wanted]
    return exact or [n for n in found if canonical_split(n, found) == (canonical_split(wanted) or wanted)]


FOLLOWED = {
    "class folders": {"kind", "split", "unlabelled", "strict", "suffixes", "follow_links"},
    "ImageNet in folders": {"kind", "split", "labels", "unlabelled", "strict", "suffixes", "follow_links"},
    "ImageNet in tars": {"kind", "split", "labels", "unlabelled", "strict", "suffixes"},
    "Flickr30K": {"kind", "split", "labels", "strict", "suffixes", "follow_links"},
    "a tar": {"kind", "split", "unlabelled", "strict", "suffixes"},
    "a manifest": {"split", "root"},
    "a packed output": {"split"},
    "shards of others": {"split", "unlabelled", "suffixes"},
}
"""Which fields of `SourceOptions` the reader of each kind of source follows; `sizes` is only a wish."""


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
    sizes: bool = True

    def __post_init__(self) -> None:
        check(self)
        dotted = (f".{suffix.lower().removeprefix('.')}" for suffix in self.suffixes)
        object.__setattr__(self, "suffixes", tuple(dotted) or IMAGE_SUFFIXES)

    def refuse_unfollowed(self, reader: str, where: object) -> None:
        """Refuse what a reader would pass over in silence.

        Args:
            reader: A key of `FOLLOWED`.
            where: The source, for the message.

        Raises:
            SourceError: Something was asked for that this reader does not follow.
        """
        asked = {each.name for each in fields(self) if getattr(self, each.name) != each.default}
        if over := sorted(_FLAGS[name] for name in asked & _FLAGS.keys() - FOLLOWED[reader]):
            raise SourceError(
                f"{', '.join(over)} was asked for, and {where} is read as {reader}, where it has no effect",
                expected=f"no more than {', '.join(sorted(_FLAGS[name] for name in FOLLOWED[reader]))}",
                next_step=f"Leave {', '.join(over)} out; a manifest can have other targets",
            )


_FLAGS = {name: flag_of(SourceOptions, name) for name in set().union(*FOLLOWED.values())}
