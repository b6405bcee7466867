"""How a manifest is made, as one record: notebook and job then do the same.

The trap: a manifest that tells an absolute folder is wrong on every other machine; what is written is
the way from the manifest file to its data. Notebook 02 prints its command line.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from smallfiles.folders import IMAGE_SUFFIXES
from smallfiles.sources.detection import load
from smallfiles.sources.record import LabelOrder, Source


@dataclass(frozen=True)
class ManifestConfig:
    """How a data set is understood, and which JSON shape its manifest gets.

    Args:
        kind: One of `smallfiles.sources.KINDS`, or `auto`.
        split: Which split; None takes the only one, or train.
        root: For a manifest as source: where its bytes are.
        labels: Where labels are, if not beside the data.
        label_order: ImageNet: `sorted` or `devkit`.
        unlabelled: Label -1 for all.
        suffixes: Which files are samples.
        strict: Refuse what would otherwise be left out with a note.
        follow_links: Also follow folder links that leave the tree.
        allow_truncated: Take the whole members of a tar that was cut off.
        flat: Write `{path: target}` instead of header and columns.
    """

    kind: str = "auto"
    split: str | None = None
    root: Path | None = None
    labels: Path | None = None
    label_order: LabelOrder = "sorted"
    unlabelled: bool = False
    suffixes: tuple[str, ...] = IMAGE_SUFFIXES
    strict: bool = False
    follow_links: bool = False
    allow_truncated: bool = False
    flat: bool = False

    def load(self, path: Path) -> Source:
        """Walk the data set, with many metadata operations in flight.

        Raises:
            SmallfilesError: It is no such data set.
        """
        return load(
            path,
            self.kind,
            split=self.split,
            root=self.root,
            labels=self.labels,
            label_order=self.label_order,
            unlabelled=self.unlabelled,
            suffixes=self.suffixes,
            strict=self.strict,
            follow_links=self.follow_links,
            allow_truncated=self.allow_truncated,
        )

    def save(self, source: Source, out: Path) -> None:
        """Write the manifest, with a hint from its own folder to the data.

        Args:
            source: From `load`.
            out: The JSON file; replaced if it exists.

        Raises:
            ManifestError: It cannot be written.
        """
        if self.flat:
            source.manifest.save_flat(out)
            return
        hint = "" if source.root is None else os.path.relpath(source.root.resolve(), out.parent.resolve())
        dataclasses.replace(source.manifest, root_hint=hint).save(out)

    def to_cli(self, source: str, out: str) -> str:
        """The command that does the same, to be pasted into a job script."""
        words = ["smallfiles", "manifest", source, "-o", out]
        words += ["--source", self.kind] if self.kind != "auto" else []
        for flag, value in (("--split", self.split), ("--root", self.root), ("--labels", self.labels)):
            words += [flag, str(value)] if value is not None else []
        words += ["--label-order", self.label_order] if self.label_order != "sorted" else []
        for suffix in self.suffixes if self.suffixes != IMAGE_SUFFIXES else ():
            words += ["--suffix", suffix]
        for name in ("unlabelled", "strict", "follow_links", "allow_truncated", "flat"):
            words += [f"--{name.replace('_', '-')}"] * getattr(self, name)
        return shlex.join(words)
