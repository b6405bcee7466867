"""A source: its samples, the stores that read their bytes, and the last step of all readers.

The traps: a source that repairs silently cannot be trusted. Every oddity (a repaired row, an image without
a caption, folders left out) is listed in `Source.notes`. And a path of a
table or manifest may lead out of its folder through a link, even one that was made after the folder was
listed. So each read looks again. Notebook 01 times these reads, and notebook 02 reads the notes.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import xxhash

from smallfiles.digests import name_hashes
from smallfiles.errors import SourceError, first_few, refuse_shortage
from smallfiles.fields import name_problem
from smallfiles.folders import IMAGE_SUFFIXES, SourceOptions, canonical_split, choose_split, data_suffix
from smallfiles.links import Boundary
from smallfiles.manifest import Manifest
from smallfiles.manifest.class_folders import own_split
from smallfiles.manifest.listing import HEAD_BYTES, Files
from smallfiles.progress import plural
from smallfiles.samples import Buffer, ByteStore
from smallfiles.sources import declarations
from smallfiles.sources.scanning import Notes, Tree, sizes_of
from smallfiles.storage import answered, remember

_Thing = TypeVar("_Thing")
FIELDS_FLAG = (
    "--field mask=masks/{stem}.png, or "
    "--field image=imagesTr/{id}_0000.nii.gz --field mask=labelsTr/{id}.nii.gz"
)
"""The flags with which a user says which files belong together, for messages."""


@dataclass(frozen=True)
class Source:
    """A data set to pack: its samples, and where their bytes are.

    Args:
        manifest: Path and target of every sample.
        store: Reads the bytes of a path in the manifest.
        kind: What the path was recognised as, in words.
        notes: What was odd, repaired or left out, with one sentence per item.
        root: The folder or tar file that the manifest's paths are relative to.
        resize: How pictures were scaled when this was packed. It is None if they were not scaled.
        member_suffixes: See `Schema.member_suffixes`.
        columns: The `SourceOptions.columns` with which the same samples can be read again.
    """

    manifest: Manifest
    store: ByteStore
    kind: str
    notes: Notes = ()
    root: Path | None = None
    resize: Mapping[str, Any] | None = None
    member_suffixes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()


def noted(names: Collection[object] | pa.Array, one: str, what: str) -> Notes:
    """Return a note on what is odd, with the count and the first few names. Return no note if there are none.

    Args:
        names: The names of the odd things.
        one: What one of them is called, in the singular.
        what: What is odd about them.
    """
    few = first_few(names)
    return (f"{plural(len(names), one)} {what}: {few}",) if len(names) else ()


def left_out(names: Collection[object] | pa.Array, one: str, which: str) -> Notes:
    """Return a note on what was left out of a source. Return no note if `names` is empty."""
    return noted(names, one, f"{which} left out")


def chosen_split(found: Iterable[str], wanted: str | None, where: Path) -> tuple[str, str, Notes]:
    """Choose a split of a source.

    Args:
        found: The splits. The empty name stands for data without a split. It is chosen if there are no
            splits.
        wanted: The requested split, or None.
        where: The source. Its name may be that of a split.

    Returns:
        The chosen split as it is spelled in the source, its usual name, and notes for the user.

    Raises:
        SourceError: The requested split does not exist, or none was requested and there is no train split.
    """
    named = [name for name in found if name]
    if not named:
        return "", *own_split(where, wanted)
    name, notes = choose_split(named, wanted, where)
    return name, canonical_split(name, named) or name, notes


def of_split(
    things: Iterable[_Thing], split_of: Callable[[_Thing], str], wanted: str | None, where: Path
) -> tuple[list[_Thing], str, str, Notes]:
    """Return the things of the chosen split, and then what `chosen_split` returns.

    Args:
        things: Files or folders.
        split_of: Returns the split of a thing, as it is spelled in the source. It is empty if the thing
            belongs to no split.
        wanted: The requested split, or None.
        where: The source.
    """
    named: dict[str, list[_Thing]] = {}
    for thing in things:
        named.setdefault(split_of(thing), []).append(thing)
    name, split, notes = chosen_split(sorted(named), wanted, where)
    return named.get(name, []), name, split, notes


def refuse_other_split(where: Path, own: str | None, wanted: str | None, what: str) -> None:
    """Raise SourceError if a manifest or packed file belongs to another split than the requested one."""
    if wanted not in (None, own):
        raise SourceError(
            f"{where} is of split {own!r}, and {wanted!r} was requested",
            expected=f"the {what} of this split",
            next_step="Give that one, or no split",
        )


def given_first(name: str, options: SourceOptions) -> str:
    """Return the name of the first file's field if `--field` gave it and a field can have this name.

    Otherwise, return an empty text.
    """
    given = name in (text.partition("=")[0] for text in options.columns)
    return name if given and not name_problem(name) else ""


def with_data_suffix(options: SourceOptions, counts: Mapping[str, int]) -> tuple[SourceOptions, Notes]:
    """Return the options for a source without images, and a note.

    Their suffix is the most common suffix of data files. Without such a suffix, the options are unchanged.

    Args:
        options: The options. Suffixes that a user requested are kept.
        counts: Number of files with each suffix.
    """
    suffix = data_suffix(counts) if options.suffixes == IMAGE_SUFFIXES else None
    if suffix is None:
        return options, ()
    return replace(options, suffixes=(suffix,)), (f"no images: {suffix} files taken as samples",)


def refuse_if_strict(notes: Notes, options: SourceOptions, where: object) -> None:
    """Raise SourceError if the user requested `--strict` and there are notes on odd or omitted files."""
    if notes and options.strict:
        raise SourceError(
            f"{where} has more than whole samples: {'; '.join(notes)}",
            expected="nothing left out, since --strict was given",
            next_step="Complete or remove what is named, or leave out --strict",
        )


@dataclass(frozen=True)
class Samples:
    """The samples that a rule found among files.

    Args:
        keys: Path of each sample.
        kind: What the source was recognised as, in words.
        columns: Additional arguments of `Manifest.from_columns`.
        notes: What was odd or chosen, with one sentence per item.
        faults: What was left out. `--strict` refuses a source with faults.
        used: Other files that were read.
        chosen: The path of a file that was read although there are others of its kind. It is empty if there
            is no such file.
        files: Paths of all files of the samples, if there are more of them than keys.
        more: Additional fields of `Source`.
    """

    keys: pa.StringArray
    kind: str
    columns: Mapping[str, Any]
    notes: Notes = ()
    faults: Notes = ()
    used: Sequence[str] = ()
    chosen: str = ""
    files: pa.StringArray | None = None
    more: Mapping[str, Any] = field(default_factory=dict)


def source_of(files: Files, found: Samples, options: SourceOptions) -> Source:
    """Make a source of the samples that a rule found. This is the last step of all readers.

    Raises:
        SourceError: Something was left out and `--strict` was given, or other files name the samples.
        ManifestError: Keys or targets cannot be those of a data set.
    """
    assert files.store is not None
    refuse_if_strict(found.faults, options, files.where)
    columns = dict(found.columns)
    if options.sizes and isinstance(files.store, FolderStore) and "sizes" not in columns:
        columns["sizes"] = sizes_of(files.where, found.keys, follow_links=options.follow_links)
    columns.setdefault("name", files.where.absolute().name.partition(".")[0] or "dataset")
    manifest = Manifest.from_columns(found.keys, **columns)
    kept = found.keys if found.files is None else found.files
    notes = declarations.check(files, kept, options, found.used, found.chosen)
    notes = (*found.notes, *found.faults, *notes)
    return Source(manifest, files.store, found.kind, notes, files.where, **found.more)


def files_of(tree: Tree, options: SourceOptions) -> Files:
    """Return the files of a tree in the form in which rules take them."""
    store = FolderStore(tree.root, follow_links=options.follow_links)
    return Files(
        tree.root,
        tree.paths(),
        tree.other_paths(),
        tree.empty(),
        store.head,
        fields_flag=FIELDS_FLAG,
        declared=options.suffixes != IMAGE_SUFFIXES,
        store=store,
    )


# Without O_NONBLOCK a named pipe in the tree would block the run for ever.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class FolderStore:
    """Reads whole files of a folder, with one open, one read and one close per file.

    Each open is a round trip on a parallel file system. The size is checked after the read, when the client
    already has it.

    Args:
        root: The folder that paths are relative to.
        follow_links: Whether links may lead out of the folder.
    """

    sequential = False

    def __init__(self, root: Path, *, follow_links: bool = False) -> None:
        self.root = Path(root).absolute()
        self._prefix = str(self.root).rstrip("/") + "/"
        remember(self.root)
        self._boundary = Boundary(self.root, follow_links=follow_links)
        self._flags = _FLAGS if follow_links else _FLAGS | os.O_NOFOLLOW

    def size(self, path: str) -> int:
        """Return the size of one file in bytes."""
        try:
            return answered(self._prefix + path, self._boundary.stat, path).st_size
        except (OSError, ValueError) as error:
            raise self._unreadable(path, error) from error

    def read_into(self, path: str, buffer: memoryview) -> int:
        """Read a whole file into the start of `buffer`. See `ByteStore.read_into`."""
        try:
            return answered(self._prefix + path, self._read_into, path, buffer)
        except (OSError, ValueError) as error:
            raise self._unreadable(path, error) from error

    def _read_into(self, path: str, buffer: memoryview) -> int:
        self._boundary.check_folder_of(path)
        descriptor = self._opened(path)
        try:
            got = os.readv(descriptor, (buffer,))
            about = os.fstat(descriptor)
            if about.st_size != got or not S_ISREG(about.st_mode):
                got = self._rest(path, descriptor, buffer, got)
            return got
        finally:
            os.close(descriptor)

    def _opened(self, path: str) -> int:
        try:
            return os.open(self._prefix + path, self._flags)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
        descriptor = os.open(self._prefix + path, _FLAGS)  # a link
        try:
            self._boundary.check(path)
        except SourceError:
            os.close(descriptor)
            raise
        return descriptor

    def head(self, path: str) -> bytes:
        """Return the first bytes of a file, which are enough for the header of a picture."""

        def read() -> bytes:
            with (self.root / path).open("rb") as file:
                return file.read(HEAD_BYTES)

        return answered(self._prefix + path, read)

    def describe(self) -> str:
        """Return a description of the store for messages, such as `folder /data/imagenet`."""
        return f"folder {self.root}"

    def __repr__(self) -> str:
        return f"FolderStore({str(self.root)!r})"

    def _rest(self, path: str, descriptor: int, buffer: memoryview, got: int) -> int:
        """Complete a short read. If the file is larger than the buffer, return the size of the file."""
        about = os.fstat(descriptor)
        if not S_ISREG(about.st_mode):
            raise self._bad(path, "is no regular file", "a file that can be read to its end")
        while got < len(buffer):
            more = os.readv(descriptor, (buffer[got:],))
            if more == 0:
                return got
            got += more
        return max(got, about.st_size)

    def _unreadable(self, path: str, error: OSError | ValueError) -> SourceError:
        refuse_shortage(error, self._prefix + path)
        number = error.errno if isinstance(error, OSError) else None
        if number == errno.ENOENT:
            return self._bad(path, "is missing", "every file that the manifest names")
        if number == errno.EISDIR:
            return self._bad(path, "is a folder", "a file")
        reason = os.strerror(number) if number else str(error)
        return self._bad(path, f"cannot be read ({reason})", "a file that you may read")

    def _bad(self, path: str, what: str, expected: str) -> SourceError:
        return SourceError(
            f"{self._prefix}{path} {what}",
            expected=expected,
            next_step="Check the file (ls -l), or make the manifest again if the data changed",
        )


class NamedStore:
    """Base class of stores that read samples from one file. It finds the row of a sample by its name.

    Args:
        path: The file.
    """

    kind, made_from, sequential = "file", "this file", False
    of_process: tuple[str, ...] = ("_lookup",)
    """Names of the attributes that each process creates for itself in `_begin`."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._state = self._state_of_file()
        self._begin()

    def _begin(self) -> None:
        self._lookup: Lookup | None = None

    def _names(self) -> pa.StringArray:
        raise NotImplementedError

    def _bytes(self, path: str) -> Buffer:
        raise NotImplementedError

    def size(self, path: str) -> int:
        """Return the size of one sample's file in bytes."""
        return len(self._bytes(path))

    def read_into(self, path: str, buffer: memoryview) -> int:
        """Read a file into the start of `buffer`. See `ByteStore.read_into`."""
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
        """Refuse a file that was rewritten since it was opened, because its samples may lie elsewhere now.

        Raises:
            SourceError: The size or the modification time of the file has changed.
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
        """Return a description of the store for messages, such as `tar /data/train.tar`."""
        return f"{self.kind} {self.path}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in self.of_process}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()


class Lookup:
    """Finds the row of a name among millions of names without a dict.

    It searches sorted 64-bit hashes, and then compares the name itself.

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
        """Return the row of a name. Return -1 if there is no such name."""
        wanted = xxhash.xxh3_64_intdigest(name.encode("utf-8", "surrogatepass"))
        at = bisect_left(self._hashes, wanted)
        while at < len(self._hashes) and self._hashes[at] == wanted:
            row: int = self._rows[at]
            if self._names[row].as_py() == name:
                return row
            at += 1
        return -1
