"""The parts of a source.

The trap: a source that repairs silently cannot be trusted. Every oddity (a repaired row, an image without
a caption, folders left out) is listed in `Source.notes`. Notebook 02 reads them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from stat import S_ISDIR
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from smallfiles.digests import name_hashes
from smallfiles.errors import SourceError, first_few
from smallfiles.folders import IMAGE_SUFFIXES, SourceOptions, canonical_split, choose_split, data_suffix
from smallfiles.manifest import Manifest
from smallfiles.manifest.class_folders import own_split
from smallfiles.progress import plural
from smallfiles.samples import Buffer, ByteStore
from smallfiles.storage import answered


@dataclass(frozen=True)
class Source:
    """Samples and where their bytes are.

    Args:
        manifest: Path and target of every sample.
        store: Reads the bytes of a path of the manifest.
        kind: What the path was recognised as, in words.
        notes: What was odd, repaired or left out, one sentence per item.
        root: The folder or tar file that the manifest's paths are relative to.
        resize: How pictures were scaled when this was packed; None if they were not.
        member_suffixes: See `Schema.member_suffixes`.
        columns: See `SourceOptions.columns`; what reading the same again needs.
    """

    manifest: Manifest
    store: ByteStore
    kind: str
    notes: tuple[str, ...] = ()
    root: Path | None = None
    resize: Mapping[str, Any] | None = None
    member_suffixes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()


def noted(names: Collection[object] | pa.Array, one: str, what: str) -> tuple[str, ...]:
    """A note on what is odd, with the count and the first few; none if there is nothing."""
    few = first_few(names, len(names))
    return (f"{plural(len(names), one)} {what}: {few}",) if len(names) else ()


def left_out(names: Collection[object] | pa.Array, one: str, which: str) -> tuple[str, ...]:
    """A note on what has no place in a source."""
    return noted(names, one, f"{which} left out")


def chosen_split(found: Iterable[str], wanted: str | None, where: Path) -> tuple[str, str, tuple[str, ...]]:
    """The chosen one of the splits of a source, as it is spelled there, its usual name, and notes.

    Args:
        found: The splits; an empty name is what belongs to none, and is chosen if there are no others.
        wanted: The requested split, or None.
        where: The source; its name may be that of a split.

    Raises:
        SourceError: The requested split does not exist, or none was requested and there is no train split.
    """
    named = [name for name in found if name]
    if not named:
        return "", *own_split(where, wanted)
    name, notes = choose_split(named, wanted, where)
    return name, canonical_split(name, named) or name, notes


def with_data_suffix(
    options: SourceOptions, counts: Mapping[str, int]
) -> tuple[SourceOptions, tuple[str, ...]]:
    """The options for a source without images: with the suffix of most data files, and a note on it.

    Args:
        options: The suffixes that a user asked for stay.
        counts: Number of files with each suffix.
    """
    suffix = data_suffix(counts) if options.suffixes == IMAGE_SUFFIXES else None
    if suffix is None:
        return options, ()
    return replace(options, suffixes=(suffix,)), (f"no images: {suffix} files taken as samples",)


def refuse_if_strict(notes: tuple[str, ...], options: SourceOptions, where: object) -> None:
    """Raise SourceError if something was left out or is odd and nothing may be."""
    if notes and options.strict:
        raise SourceError(
            f"{where} has more than whole samples: {'; '.join(notes)}",
            expected="nothing left out, since --strict was given",
            next_step="Complete or remove what is named, or leave out --strict",
        )


class NamedStore:
    """Base of stores that read from one file: finds the row of a name.

    Args:
        path: The file.
    """

    kind, made_from, sequential = "file", "this file", False

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._lookup: Lookup | None = None
        self._state = self._state_of_file()

    def _names(self) -> pa.StringArray:
        raise NotImplementedError

    def _bytes(self, path: str) -> Buffer:
        raise NotImplementedError

    def size(self, path: str) -> int:
        """Bytes of one file."""
        return len(self._bytes(path))

    def read_into(self, path: str, buffer: memoryview) -> int:
        """Read a file into the start of `buffer`; see `ByteStore.read_into`."""
        data = self._bytes(path)
        if len(data) <= len(buffer):
            buffer[: len(data)] = data
        return len(data)

    def _row(self, path: str) -> int:
        lookup = self._lookup
        if lookup is None:
            lookup = self._lookup = Lookup(self._names())
        row = lookup.row(path)
        if row < 0:
            raise self._missing(path)
        return row

    def _missing(self, path: str) -> SourceError:
        return SourceError(
            f"{path} is missing in {self.describe()}",
            expected="every sample of the manifest",
            next_step=f"Make the manifest again from {self.made_from}",
        )

    def check_unchanged(self) -> None:
        """Refuse a file that was written again since it was looked at: its samples may lie elsewhere now.

        Raises:
            SourceError: Its size or its time of modification is another.
        """
        if self._state_of_file() != self._state:
            raise SourceError(
                f"{self.path} was changed while it was read",
                expected="the file that it was in the beginning",
                next_step="Run it again when nothing writes to it",
            )

    def _state_of_file(self) -> tuple[int, int] | None:
        try:
            status = answered(self.path, self.path.stat)
        except OSError:
            return None  # reading says why
        return None if S_ISDIR(status.st_mode) else (status.st_size, status.st_mtime_ns)

    def describe(self) -> str:
        """`tar /data/train.tar`."""
        return f"{self.kind} {self.path}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lookup": None}


class Lookup:
    """Row of a name among millions, without a dict: sorted 64-bit hashes, then the name itself.

    Args:
        names: Unique names.
    """

    def __init__(self, names: pa.StringArray) -> None:
        self._names = names
        hashes = name_hashes(names)
        order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[order].data
        self._rows = order.astype(np.uint32).data

    def row(self, name: str) -> int:
        """Row of a name; -1 if there is none."""
        wanted = xxhash.xxh3_64_intdigest(name.encode("utf-8", "surrogatepass"))
        at = bisect_left(self._hashes, wanted)
        while at < len(self._hashes) and self._hashes[at] == wanted:
            row: int = self._rows[at]
            if self._names[row].as_py() == name:
                return row
            at += 1
        return -1
