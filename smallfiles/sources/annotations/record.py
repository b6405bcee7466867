"""What the readers of annotations share: their result, and a sentence for what they leave out.

Short, since the readers need it, and the room that would hold it imports them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from smallfiles.errors import SourceError
from smallfiles.folders import canonical_split
from smallfiles.manifest.listing import HEAD_BYTES
from smallfiles.samples import ByteStore
from smallfiles.sources.annotations.boxes import Boxes, Numbers
from smallfiles.sources.scanning import Folder, list_folder

_EXIF = b"Exif\0\0"
ANNOTATIONS = "annotations"
"""Name of a folder, in lower case."""


@dataclass(frozen=True)
class Annotated:
    """The annotated images of one split.

    Args:
        keys: Paths of the images, relative to the root.
        sizes: `[images, 2]`: width and height; 0 where unknown.
        boxes: Their boxes.
        classes: Names of the classes, in the order of their numbers; empty if unknown.
        split: Name of the split.
        origin: What was read, to begin a sentence.
        notes: How it was read.
        left_out: What was left out, a sentence for each kind; `strict` refuses it.
        used: A regular expression for the paths of the files that were read.
        chosen: The file that was read where there may be several.
    """

    keys: pa.StringArray
    sizes: Numbers
    boxes: Boxes
    classes: tuple[str, ...]
    split: str
    origin: str
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    used: str = ""
    chosen: str = ""


def look(path: Path, ignore: Sequence[str] = ()) -> dict[str, Folder]:
    """Where annotations may be: a folder, and in it `annotations` and its splits."""
    root = list_folder(path, ignore)
    within = [
        name for name in root.folders if name.lower() == ANNOTATIONS or canonical_split(name, root.folders)
    ]
    return {"": root} | {name: list_folder(path / name, ignore, name) for name in within}


def picture_size(store: ByteStore, key: str) -> tuple[int, int, bool] | None:
    """Width and height of a picture, and whether EXIF turns it; None if this cannot be read."""
    from smallfiles.images.decoding import orientation  # no other source needs it, nor what follows
    from smallfiles.images.picture import size_of

    head = memoryview(bytearray(HEAD_BYTES))
    got = store.read_into(key, head)
    for most in (HEAD_BYTES, got):
        if most > HEAD_BYTES:  # the header is longer, or this store reads whole files
            head = memoryview(bytearray(got))
            store.read_into(key, head)
        data = head[:got]
        with suppress(Exception):  # Pillow raises what it likes
            return *size_of(data), _EXIF in bytes(data) and orientation(data) > 1
    return None


def none_left(path: Path, what: str, expected: str) -> SourceError:
    """The error for annotations of which nothing is left."""
    return SourceError(
        f"{path} {what}", expected=expected, next_step="Check that images and annotations belong together"
    )
