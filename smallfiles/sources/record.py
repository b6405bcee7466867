"""What a source is made of, and how it may be asked for.

The trap: a source that repairs silently cannot be trusted. Whatever was odd (a row that was mended,
an image without a caption, folders left aside) stands in `Source.notes`. Notebook 02 reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from smallfiles.errors import SourceError, UsageError
from smallfiles.manifest import Manifest
from smallfiles.samples import ByteStore

LabelOrder: TypeAlias = Literal["sorted", "devkit"]

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".webp", ".tif", ".tiff", ".gif")

_SPLITS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}


@dataclass(frozen=True)
class Source:
    """Samples and where their bytes are.

    Args:
        manifest: Path and target of every sample.
        store: Reads the bytes of a path of the manifest.
        kind: What the path was recognised as.
        notes: What was odd, repaired or left aside, one sentence each.
        root: The folder or tar file that the manifest's paths are relative to.
        resize: How pictures were scaled when this was packed; None if they were not.
    """

    manifest: Manifest
    store: ByteStore
    kind: str
    notes: tuple[str, ...] = ()
    root: Path | None = None
    resize: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Options:
    """How a source is read; every field has a default that suits the usual case.

    Args:
        split: `train`, `val`, `test` or a name the source uses; None takes the only one, or train.
        unlabelled: Give every sample the label -1 instead of asking for class folders.
        suffixes: Which files are samples; compared without regard to case.
        follow_links: Also follow folder links that leave the root.
        sizes: Also learn every file's size: one metadata operation a file, many at once.
        labels: Where labels are, if not beside the data: devkit, LOC csv, caption file or split file.
        label_order: ImageNet only: rank of the sorted wnid, or the order of the devkit's ids.
        strict: Refuse what would otherwise be left out with a note.
        allow_truncated: Take the whole members of a tar file that was cut off.
        spool: Folder to decompress a compressed tar file into, so that it can be read at random.
        threads: Metadata operations in flight at once.
    """

    split: str | None = None
    unlabelled: bool = False
    suffixes: tuple[str, ...] = IMAGE_SUFFIXES
    follow_links: bool = False
    sizes: bool = True
    labels: Path | None = None
    label_order: LabelOrder = "sorted"
    strict: bool = False
    allow_truncated: bool = False
    spool: Path | None = None
    threads: int = 32

    def __post_init__(self) -> None:
        if self.label_order not in ("sorted", "devkit"):
            raise UsageError(
                f"label_order is {self.label_order!r}",
                expected="'sorted' or 'devkit'",
                next_step="Keep 'sorted' unless you know that your labels are devkit ids",
            )
        dotted = tuple(s.lower() if s.startswith(".") else f".{s.lower()}" for s in self.suffixes)
        object.__setattr__(self, "suffixes", dotted)


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
