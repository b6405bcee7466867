"""Which files in a squashfs file of another program are samples, and their labels by class folder.

Images (by suffix) are samples; if there are none, all files are. Their folders are read as those of any
other source.

The trap: such a file may contain names that are no keys (hidden files, other encodings); these are ignored
and counted. Notebook 06 opens one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from pysquashfs.names import Names
from smallfiles.arrays import column, from_numpy
from smallfiles.errors import FormatError, SourceError, raised_as
from smallfiles.folders import IMAGE_SUFFIXES, is_hidden
from smallfiles.formats.squashfs.member import Samples
from smallfiles.keys import key_problem
from smallfiles.manifest.class_folders import by_folder
from smallfiles.manifest.listing import Files

_FLAG = "--source folder with the tree that was unpacked from it"


@dataclass(frozen=True)
class Foreign:
    """The samples in a squashfs file of another program.

    Args:
        samples: Keys and labels.
        rows: The number of each among the files.
        split: Canonical name of the split.
        ignored: Number of files that are no samples of it.
    """

    samples: Samples
    rows: list[int]
    split: str
    ignored: int


def find(names: Names, path: Path, split: str | None) -> Foreign:
    """Find the samples and their labels.

    Args:
        names: The paths of all files.
        path: The squashfs file, for messages.
        split: The requested split, or None.

    Raises:
        FormatError: The split is not there, or must be chosen.
    """
    files = [(row, key) for row in range(len(names)) if (key := _key(names.raw(row))) is not None]
    images = [(row, key) for row, key in files if key.lower().endswith(IMAGE_SUFFIXES)]
    chosen = images or files
    keys = column([key for _, key in chosen], pa.string())
    others = [key for _, key in files if not key.lower().endswith(IMAGE_SUFFIXES)] if images else []
    with raised_as(SourceError, FormatError):
        found = by_folder(Files(path, keys, column(others, pa.string()), classes_flag=_FLAG), split)
    kept = np.flatnonzero(found.keep)
    labels = from_numpy(found.labels.astype(np.int64))
    samples = Samples(keys.take(from_numpy(kept)), {"label": labels}, found.classes)
    return Foreign(samples, [chosen[row][0] for row in kept.tolist()], found.split, len(names) - len(kept))


def _key(raw: bytes) -> str | None:
    """A path as a key; None for hidden files and invalid keys."""
    try:
        key = raw.decode()
    except UnicodeDecodeError:
        return None
    if any(map(is_hidden, key.split("/"))) or key_problem(key) is not None:
        return None
    return key
