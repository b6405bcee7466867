"""The folders of a source: those of a tree, or those in the names of archive members.

The trap: splitting a million names is slow. Here only the thousands of folders are split. Notebook 02 shows
the layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from smallfiles.arrays import column, folders_of, from_numpy, to_numpy
from smallfiles.folders import canonical_split, words_of
from smallfiles.samples import ByteStore

_CONTAINERS = frozenset({"image", "images", "img", "imgs", "jpeg", "jpg", "png", "picture", "pictures"})
_CONTAINERS |= {"photo", "photos", "data", "dataset"}
HEAD_BYTES = 1 << 16
"""Enough of a picture to contain its header."""


@dataclass(frozen=True)
class Files:
    """The names of all files in a source.

    Args:
        where: The source, for messages; its name may be that of a split.
        samples: Names of the files that are samples.
        others: Names of other files.
        folders: Folders with an entry of their own, including empty ones.
        look: Returns the first bytes of a sample; None where that costs too much.
        classes_flag: The flag that declares the folders to be classes nevertheless.
        declared: The user says which files are samples.
        fields_flag: The flag that says which files are those of one sample; empty if there is none.
        store: Reads the samples.
        sizes: Bytes of each sample, if the listing has them.
        inside: Returns the first bytes of another file that is inside of an archive; None for a folder.
        labels_flag: The flag that names a table of labels; empty if there is none.
    """

    where: Path
    samples: pa.StringArray
    others: pa.StringArray = field(default_factory=lambda: column([], pa.string()))
    folders: Sequence[str] = ()
    look: Callable[[str], bytes] | None = None
    classes_flag: str = "--source folder"
    fields_flag: str = ""
    declared: bool = False
    store: ByteStore | None = None
    sizes: npt.NDArray[np.int64] | None = None
    inside: Callable[[str], bytes] | None = None
    labels_flag: str = "--labels"


class Folders:
    """The folders that contain samples. A prefix is empty, or ends with a slash.

    Args:
        files: The names.
    """

    def __init__(self, files: Files) -> None:
        self.files = files
        found = folders_of(files.samples).dictionary_encode()
        self._paths: list[str] = found.dictionary.to_pylist()
        self._codes: npt.NDArray[np.int32] = to_numpy(found.indices)

    def below(self, prefix: str) -> dict[str, set[str]]:
        """The folders in a folder, sorted; each with its sub-folders, and "" if it contains files itself."""
        found: dict[str, set[str]] = {}
        for path in self._paths:
            if path.startswith(prefix) and path != prefix:
                top, _, rest = path[len(prefix) :].partition("/")
                found.setdefault(top, set()).add(rest.partition("/")[0])
        return dict(sorted(found.items()))

    def empty_below(self, prefix: str) -> set[str]:
        """The folders in a folder that contain no files at any depth."""
        filled, named = (
            {path[len(prefix) :].partition("/")[0] for path in paths if path.startswith(prefix)}
            for paths in (self.others(), self.files.folders)
        )
        return named - filled - {""}

    def others(self) -> list[str]:
        """The folders of files that are not samples."""
        found: list[str] = folders_of(self.files.others).unique().to_pylist()
        return found

    def wrapper(self, prefix: str) -> str | None:
        """The only folder in a folder, if it wraps the classes or contains unlabelled samples; else None."""
        tops = self.below(prefix)
        if len(tops) != 1:
            return None
        ((top, deep),) = tops.items()
        is_container = bool(canonical_split(top)) or _CONTAINERS.issuperset(words_of(top) or ("",))
        return top if "" not in deep or is_container or len(deep) > 2 else None

    def past_wrappers(self, prefix: str) -> str:
        """The first folder from here that contains several folders, or samples."""
        while (top := self.wrapper(prefix)) is not None:
            prefix += f"{top}/"
        return prefix

    def inside(self, prefix: str) -> npt.NDArray[np.bool_]:
        """Which samples are in a folder, at any depth."""
        paths = np.array([path.startswith(prefix) for path in self._paths], bool)
        kept: npt.NDArray[np.bool_] = paths[self._codes] if len(paths) else np.ones(0, bool)
        return kept

    def names(self, prefix: str) -> pa.StringArray:
        """The samples in a folder, at any depth."""
        return self.files.samples.take(from_numpy(np.flatnonzero(self.inside(prefix))))
