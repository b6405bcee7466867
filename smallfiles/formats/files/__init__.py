"""Plain files under the same contract as the packed formats, for comparison with all of them.

`OUT.files/` holds each sample at its key, and `manifest.json` with targets, further values, sizes and, if
digests are taken, the SHA-256 of each file (56 µs for 100 KB; one sidecar per file would double the files).
A further file is beside the first (`1.mask.png` for `1.jpg`), and `manifest.mask.json` has sizes and hashes.

The trap: every file is an inode, every read is an open, a read and a close, and on a parallel file
system each of these is a request to a server. Notebook 01 counts them. Names are those of the file
system: a component has at most 255 bytes, and `a` and `a/b` cannot both exist.
"""

from __future__ import annotations

from pathlib import Path

from smallfiles.formats.files.reading import locate
from smallfiles.formats.files.writing import FilesOptions as Options
from smallfiles.formats.files.writing import write
from smallfiles.formats.reader import TableReader

__all__ = ["Options", "locate", "open", "write"]


def open(path: Path) -> TableReader:
    """Open a folder of plain files with its `manifest.json`, which is read at first use."""
    return TableReader(path, locate)
