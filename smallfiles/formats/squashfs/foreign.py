"""Which files of an image that others made are samples, and their labels by class folder.

Images (by suffix) are samples; where there are none, all files are. Labels follow the first-level
folders, sorted by bytes, as in ImageFolder; folders that only wrap the classes are passed over, and
folders named as splits are splits.

The trap: a class that is missing in one split shifts the labels behind it. So classes are counted over
all splits. Samples that lie in no folder are unlabelled (-1). Notebook 06 opens such an image.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from pysquashfs.names import Names
from smallfiles.errors import FormatError, SourceError
from smallfiles.folders import IMAGE_SUFFIXES, canonical_split, choose_split
from smallfiles.formats.squashfs.member import Samples
from smallfiles.keys import key_problem
from smallfiles.samples import UNLABELLED


@dataclass(frozen=True)
class Foreign:
    """The samples of an image of others.

    Args:
        samples: Keys and labels.
        rows: The number of each among the files of the image.
        split: The folder that was taken as split, or "".
        left_aside: Files that are no samples of it.
    """

    samples: Samples
    rows: list[int]
    split: str
    left_aside: int


def find(names: Names, path: Path, split: str | None) -> Foreign:
    """Find the samples of an image and their labels.

    Args:
        names: The paths of its files.
        path: The image, for messages.
        split: The split that is wanted, or None.

    Raises:
        FormatError: The split is not there, or must be chosen.
    """
    files = [(row, key) for row in range(len(names)) if (key := _key(names.raw(row))) is not None]
    images = [(row, key) for row, key in files if key.lower().endswith(IMAGE_SUFFIXES)]
    chosen = images or files
    prefix, taken = _above_classes([key for _, key in chosen], path, split)
    inside = [(row, key) for row, key in chosen if key.startswith(prefix)]
    tops = [_top(key, prefix) for _, key in inside]
    classes = _classes([key for _, key in chosen], prefix, taken)
    rank = {name: label for label, name in enumerate(classes)}
    kept = [(row, key, rank.get(top, UNLABELLED)) for (row, key), top in zip(inside, tops, strict=True)]
    if classes:  # as in ImageFolder, what lies outside of any class is left aside
        kept = [item for item in kept if item[2] != UNLABELLED]
    samples = Samples(
        _strings([key for _, key, _ in kept]),
        np.array([label for _, _, label in kept], np.int64),
        classes=tuple(classes),
    )
    return Foreign(samples, [row for row, _, _ in kept], taken, len(names) - len(kept))


def _classes(keys: list[str], prefix: str, split: str) -> list[str]:
    """The class folders, of all splits; none for a test split whose images lie in one folder."""
    own = {top for key in keys if key.startswith(prefix) and (top := _top(key, prefix))}
    if len(own) < 2 and canonical_split(split) == "test":
        return []
    above = prefix.removesuffix(f"{split}/") if split else prefix
    if own and above != prefix:
        others = [key[len(above) :].split("/") for key in keys if key.startswith(above)]
        own |= {parts[1] for parts in others if len(parts) > 2 and canonical_split(parts[0]) != "test"}
    return sorted(own, key=str.encode)


def _key(raw: bytes) -> str | None:
    """A path as a key; None for hidden files and for what is no key."""
    try:
        key = raw.decode()
    except UnicodeDecodeError:
        return None
    if key.startswith(".") or "/." in key or key_problem(key) is not None:
        return None
    return key


def _top(key: str, prefix: str) -> str:
    """The first folder below the prefix, or "" for a file that lies in it."""
    head, slash, _ = key[len(prefix) :].partition("/")
    return head if slash else ""


def _above_classes(keys: list[str], path: Path, wanted: str | None) -> tuple[str, str]:
    """What stands above the class folders, and the split among it."""
    prefix, split = "", ""
    while True:
        rest = [key[len(prefix) :] for key in keys if key.startswith(prefix)]
        tops = sorted({key.partition("/")[0] for key in rest})
        shallowest = min((key.count("/") for key in rest), default=0)
        splits = all(canonical_split(top) for top in tops)
        if shallowest < 1 or not (splits or len(tops) == 1) or (shallowest < 2 and not splits):
            return prefix, split
        top = tops[0]
        if splits:
            top = split = _chosen(tops, path, wanted)
        prefix = f"{prefix}{top}/"


def _chosen(splits: list[str], path: Path, wanted: str | None) -> str:
    try:
        return choose_split(splits, wanted, path)[0]
    except SourceError as error:
        raise FormatError(error.got, expected=error.expected, next_step=error.next_step) from error


def _strings(texts: list[str]) -> pa.StringArray:
    # Not pa.array, which imports pandas where that is installed: a second a worker.
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    borders = pa.py_buffer(ends.astype(np.int32))
    return pa.StringArray.from_buffers(len(texts), borders, pa.py_buffer(b"".join(encoded)))
