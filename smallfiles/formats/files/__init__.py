"""Plain files under the same contract as the packed formats: what all others are measured against.

`OUT.files/` holds each sample at its key, and `manifest.json` with targets, sizes and, where digests
are taken, the SHA-256 of each file (56 µs for 100 KB; a sidecar a file would double the files).

The trap: every file is an inode, every read an open, a read and a close, and on a parallel file system
each of them asks a server. Notebook 01 counts them. Names are those of the file system: a component
has 255 bytes at most, and `a` and `a/b` cannot both exist.
"""

from __future__ import annotations

from pathlib import Path

from smallfiles.formats.files.reading import FilesReader
from smallfiles.formats.files.writing import FilesOptions as Options
from smallfiles.formats.files.writing import write

__all__ = ["FilesReader", "Options", "open", "write"]


def open(path: Path) -> FilesReader:
    """Open a folder of plain files with its `manifest.json`, which is read at first use."""
    return FilesReader(path)
