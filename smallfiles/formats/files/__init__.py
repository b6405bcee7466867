"""Plain files under the same contract as the packed formats: what all others are measured against.

`OUT.files/` holds each sample at its key, and `manifest.json` with targets, sizes and, where digests
are taken, the SHA-256 of each file (56 µs for 100 KB; a sidecar a file would double the files).

The trap: every file is an inode, every read an open, a read and a close, and on a parallel file system
each of them asks a server. Notebook 01 counts them. Names are those of the file system: a component
has 255 bytes at most, and `a` and `a/b` cannot both exist.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from smallfiles.formats.files.reading import FilesReader
from smallfiles.formats.files.writing import write_tree
from smallfiles.samples import Packed, Sample, Schema

NAME = "files"


@dataclass(frozen=True)
class Options:
    """Plain files have none."""


def write(
    samples: Iterable[Sample],
    out: Path,
    *,
    schema: Schema,
    options: Options | None = None,
    digest: bool = True,
) -> Packed:
    """Write each sample to a file of its own, and a manifest.

    This is what a parallel file system is worst at; it is here to be compared with.

    Args:
        samples: In the order that the manifest shall have.
        out: Folder, a name that is free.
        schema: What is packed.
        options: None.
        digest: Whether to put the SHA-256 of each sample into the manifest.

    Returns:
        What was written; `files` names the manifest and its digest alone.

    Raises:
        FormatError: A key cannot be a file name here, or collides with another.
        ResourceError: No space, no inodes or no permission.
    """
    return write_tree(samples, out, schema, digest)


def open(path: Path) -> FilesReader:
    """Open a folder of plain files with its `manifest.json`, which is read at first use."""
    return FilesReader(path)
