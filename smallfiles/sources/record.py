"""What a source is made of, and how it may be asked for.

The trap: a source that repairs silently cannot be trusted. Whatever was odd (a row that was mended,
an image without a caption, folders left aside) stands in `Source.notes`. Notebook 02 reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from smallfiles.errors import UsageError
from smallfiles.folders import IMAGE_SUFFIXES
from smallfiles.manifest import Manifest
from smallfiles.samples import ByteStore

LabelOrder: TypeAlias = Literal["sorted", "devkit"]


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
