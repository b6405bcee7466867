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

from smallfiles.folders import SourceOptions
from smallfiles.options import option, words
from smallfiles.sources.detection import read
from smallfiles.sources.record import Source


@dataclass(frozen=True)
class ManifestConfig(SourceOptions):
    """How a data set is understood, and which JSON shape its manifest gets.

    Args:
        flat: Write `{path: target}` instead of header and columns.
    """

    flat: bool = option(False, "write the flat form {path: label}")

    def load(self, path: Path) -> Source:
        """Walk the data set, with many metadata operations in flight.

        Raises:
            SmallfilesError: It is no such data set.
        """
        return read(path, self)

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
        return shlex.join(["smallfiles", "manifest", source, "-o", out, *words(self)])
