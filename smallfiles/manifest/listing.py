"""The folders of a source, whether they are a tree's or only in the names of an archive's members.

The trap: of a million files only the folders count here, of which there are thousands; names are taken apart
one folder at a time, and few of them. Notebook 02 shows the layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.arrays import column, from_numpy, to_numpy
from smallfiles.folders import canonical_split, words_of

_CONTAINERS = frozenset({"image", "images", "img", "imgs", "jpeg", "jpg", "png", "picture", "pictures"})
_CONTAINERS |= {"photo", "photos", "data", "dataset"}
HEAD_BYTES = 1 << 16
"""As much of a picture as says what it is."""
_PARENT = r"(?s)[^/]*$"


@dataclass(frozen=True)
class Files:
    """What a source holds, by name.

    Args:
        where: The source, for messages; it may be called like a split.
        samples: Names of the files that are samples.
        others: Names of other files.
        folders: Folders that are there by themselves, empty ones too.
        look: The first bytes of a sample; None where that costs too much.
        classes_flag: What a user says if the folders are classes nevertheless.
    """

    where: Path
    samples: pa.StringArray
    others: pa.StringArray = field(default_factory=lambda: column([], pa.string()))
    folders: Sequence[str] = ()
    look: Callable[[str], bytes] | None = None
    classes_flag: str = "--source folder"


class Folders:
    """The folders in which samples lie. A prefix is empty, or ends with a slash.

    Args:
        files: The names.
    """

    def __init__(self, files: Files) -> None:
        self.files = files
        found = pc.replace_substring_regex(files.samples, _PARENT, "").dictionary_encode()
        self._paths: list[str] = found.dictionary.to_pylist()
        self._codes: npt.NDArray[np.int32] = to_numpy(found.indices)

    def below(self, prefix: str) -> dict[str, set[str]]:
        """The folders in a folder, sorted; each with those in it, and "" if files lie in it directly."""
        found: dict[str, set[str]] = {}
        for path in self._paths:
            if path.startswith(prefix) and path != prefix:
                top, _, rest = path[len(prefix) :].partition("/")
                found.setdefault(top, set()).add(rest.partition("/")[0])
        return dict(sorted(found.items()))

    def empty_below(self, prefix: str) -> set[str]:
        """The folders in a folder in which nothing lies, however deep."""
        filled, named = (
            {path[len(prefix) :].partition("/")[0] for path in paths if path.startswith(prefix)}
            for paths in (self.others(), self.files.folders)
        )
        return named - filled - {""}

    def others(self) -> list[str]:
        """The folders of files that are no samples."""
        found: list[str] = pc.replace_substring_regex(self.files.others, _PARENT, "").unique().to_pylist()
        return found

    def wrapper(self, prefix: str) -> str | None:
        """The only folder in a folder, if it wraps the classes or holds samples without any; else None."""
        tops = self.below(prefix)
        if len(tops) != 1:
            return None
        ((top, deep),) = tops.items()
        is_container = bool(canonical_split(top)) or _CONTAINERS.issuperset(words_of(top) or ("",))
        return top if "" not in deep or is_container or len(deep) > 2 else None

    def past_wrappers(self, prefix: str) -> str:
        """The folder below which there are several, or samples."""
        while (top := self.wrapper(prefix)) is not None:
            prefix += f"{top}/"
        return prefix

    def inside(self, prefix: str) -> npt.NDArray[np.bool_]:
        """Which samples lie in a folder, however deep."""
        paths = np.array([path.startswith(prefix) for path in self._paths], bool)
        kept: npt.NDArray[np.bool_] = paths[self._codes] if len(paths) else np.ones(0, bool)
        return kept

    def names(self, prefix: str) -> pa.StringArray:
        """The samples in a folder, however deep."""
        return self.files.samples.take(from_numpy(np.flatnonzero(self.inside(prefix))))
