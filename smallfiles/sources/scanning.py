"""Walk a tree with many metadata operations in flight, and describe its contents.

Listing a folder costs at least one round trip on a parallel file system, which adds up over a thousand class
folders. Several threads therefore list the folders of one level at the same time.

The trap: `os.walk` with links followed may never end, and a link to a folder elsewhere adds unwanted files.
Links that lead out of the tree are refused; see `links`. Notebook 01 times the walk.
"""

from __future__ import annotations

import errno
import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pysquashfs.text import foreign_encoding
from smallfiles import links
from smallfiles.arrays import column, one_chunk
from smallfiles.errors import SourceError, first_few, is_utf8, refuse_foreign_locale, refuse_shortage
from smallfiles.folders import SourceOptions, by_suffix, canonical_split, in_words, is_hidden, is_ignored
from smallfiles.progress import plural
from smallfiles.storage import ReadingPool, answered, remember

Notes: TypeAlias = tuple[str, ...]
"""Sentences for the user on what was odd, chosen or left out."""

ANNOTATIONS = "annotations"
"""Name of a folder of annotations, in lower case."""

_IN_FLIGHT = 32
_STATS_AT_ONCE = 512
_DEPTH = 3
_MANY = 8
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_HOPS_INSIDE = 1
_HOPS_ANYWHERE = 8


@dataclass(frozen=True)
class Folder:
    """A folder that was listed, without the contents of the folders in it.

    Args:
        path: Path relative to the root of the walk. It is empty for the root itself.
        files: Names of its samples, sorted by bytes.
        folders: Names of the folders in it that were followed, sorted.
        others: Names of other files.
        hidden: Names that begin with a dot, and folders such as `__MACOSX`. They are left out.
        left: Paths that were not followed, with the reasons: loops, broken links, pipes.
        out: Links that lead out of the tree.
        ignored: Names that `--ignore` leaves out.
        hops: Number of folder links that were followed up to each folder in `folders`, by its name.
    """

    path: str
    files: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    out: list[str] = field(default_factory=list)
    hops: dict[str, int] = field(default_factory=dict)

    @property
    def prefix(self) -> str:
        """Prefix of the paths of the files in this folder."""
        return f"{self.path}/" if self.path else ""


@dataclass(frozen=True)
class Tree:
    """The result of a walk. Folders are in the order of torchvision: by class, then by path.

    Args:
        root: The folder where the walk began.
        folders: All folders, including empty ones.
    """

    root: Path
    folders: tuple[Folder, ...]

    def __len__(self) -> int:
        return sum(len(folder.files) for folder in self.folders)

    def paths(self, prefix: str = "") -> pa.StringArray:
        """Return the paths of all samples, one class after the other. `prefix` is put before each path."""
        return _joined((prefix + folder.prefix, folder.files) for folder in self.folders)

    def other_paths(self) -> pa.StringArray:
        """Return the paths of all other files."""
        return _joined((f.prefix, list(filter(_is_portable, f.others))) for f in self.folders)

    def without(self, paths: pa.ChunkedArray) -> Tree:
        """Return the tree without those other files that are in `paths`, because they belong to samples."""
        others = self.other_paths()
        used = set(others.filter(pc.is_in(others, one_chunk(paths))).to_pylist())
        kept = (replace(f, others=[n for n in f.others if f.prefix + n not in used]) for f in self.folders)
        return replace(self, folders=tuple(kept))

    def empty(self) -> list[str]:
        """Return the paths of empty folders."""
        return [
            f.path for f in self.folders if f.path and not (f.files or f.folders or f.others or f.ignored)
        ]

    def contents(self) -> str:
        """Return a summary of the tree, such as `3 .csv files and no images`."""
        others, images = self.others(), plural(len(self), "image") if len(self) else "no images"
        return f"{in_words(others)} and {images}" if others else images

    def others(self) -> Counter[str]:
        """Count the files that are not samples, by suffix."""
        return by_suffix(chain.from_iterable(folder.others for folder in self.folders))

    def ignored(self) -> list[str]:
        """Return the paths of the files and folders that `--ignore` leaves out."""
        return [folder.prefix + name for folder in self.folders for name in folder.ignored]

    def notes(self) -> Notes:
        """Return sentences on what was left out."""
        notes = []
        if hidden := [folder.prefix + name for folder in self.folders for name in folder.hidden]:
            notes.append(f"{plural(len(hidden), 'hidden name')} left out: {first_few(hidden)}")
        if others := self.others():
            notes.append(f"left out: {in_words(others, 5)}")
        left = sorted(chain.from_iterable(folder.left for folder in self.folders))
        if left:
            notes.append(f"not followed: {first_few(left)}")
        return tuple(notes)


def _joined(listed: Iterable[tuple[str, list[str]]]) -> pa.StringArray:
    chunks = [column([prefix + name for name in names], pa.string()) for prefix, names in listed]
    return pa.concat_arrays([column([], pa.string()), *chunks])


def tree_of(root: Path, options: SourceOptions, below: str = "") -> Tree:
    """List a tree with many listings in flight. The result does not depend on timing.

    Args:
        root: A folder.
        options: Options that say which suffixes samples have, what is ignored, and whether links may lead
            out.
        below: The folder where to begin. Paths in the result are relative to this folder.

    Raises:
        SourceError: A folder cannot be listed, a name is not portable (not UTF-8, a line break), a link leads
            out of the root, or a folder has nothing but links that lead nowhere.
    """
    links.Boundary(root, follow_links=options.follow_links).check(below)
    start, real = root / below if below else root, os.path.realpath(root)
    remember(root)
    lister = _Lister(start, real, options.suffixes, options.follow_links, options.ignore, below)
    found: list[Folder] = []
    with ReadingPool(_IN_FLIGHT, "walk") as pool:
        level = [("", 0)]
        while level:
            listed = list(pool.map(lister.list, level))
            found += listed
            level = [
                (folder.prefix + name, folder.hops[name]) for folder in listed for name in folder.folders
            ]
    found.sort(key=lambda folder: (folder.path.split("/", 1)[0], folder.path))
    if out := [link for folder in found for link in folder.out]:
        raise links.leading_out(start, out)
    filled = [folder.prefix for folder in found if folder.files or folder.others]
    left = [name for folder in found for name in folder.left]
    links.refuse_lost_folders(start, left, lambda path: any(each.startswith(f"{path}/") for each in filled))
    return Tree(start, tuple(found))


def list_folder(path: Path, ignore: Sequence[str] = (), below: str = "") -> Folder:
    """List one folder without descending into the folders in it. All its files count as samples.

    Args:
        path: The folder.
        ignore: Patterns of what is left out.
        below: Path of the folder to which the patterns are applied.
    """
    return _Lister(path, os.path.realpath(path), ("",), True, tuple(ignore), below).list(("", 0))


class Look:
    """The names in the first folders of a source, by which its kind is recognised.

    Each folder is listed once.

    Args:
        path: The source.
        ignore: Patterns of what is left out.
    """

    def __init__(self, path: Path, ignore: Sequence[str] = ()) -> None:
        self.path, self.ignore, self._listed = path, ignore, dict[str, Folder]()

    def at(self, below: str = "") -> Folder:
        """Return the listing of the folder `below` of the source."""
        if below not in self._listed:
            self._listed[below] = list_folder(self.path / below, self.ignore, below)
        return self._listed[below]

    def find(self, names: Sequence[str]) -> list[Path]:
        """Return the paths of files with one of these names, least deep first.

        Trees of classes are not searched.
        """
        found, level = list[Path](), [""]
        for _ in range(_DEPTH + 1):
            listed = {below: self.at(below) for below in level}
            found += [
                self.path / below / name for below in level for name in names if name in listed[below].files
            ]
            folders = ((below, each.folders) for below, each in listed.items() if len(each.folders) <= _MANY)
            level = [f"{below}/{name}".lstrip("/") for below, names_of in folders for name in names_of]
        return found

    def splits(self) -> list[str]:
        """Return the folders that are named after splits."""
        tops = self.at().folders
        return [name for name in tops if canonical_split(name, tops)]

    def first(self) -> dict[str, Folder]:
        """Return the listings of the source itself, its splits, and its folder of annotations, by path."""
        annotations = [name for name in self.at().folders if name.lower() == ANNOTATIONS]
        return {below: self.at(below) for below in ("", *annotations, *self.splits())}

    def names(self) -> list[str]:
        """Return the names of files and folders in the first folders."""
        return [name for folder in self.first().values() for name in (*folder.files, *folder.folders)]


def sizes_of(
    root: Path, paths: pa.StringArray, *, missing: int | None = None, follow_links: bool = False
) -> np.ndarray:
    """Look up the sizes of many files in bytes, with many `stat` calls in flight.

    Each call waits for the metadata server.

    Args:
        root: The folder that the paths are relative to.
        paths: Paths of the files.
        missing: The size to return for a file that does not exist. If it is None, such a file raises an
            error.
        follow_links: Whether to follow links that lead out of the root.

    Returns:
        The size of each file in bytes, int64.

    Raises:
        SourceError: A file is missing, or a link leads out of the root.
    """
    boundary = links.Boundary(root, follow_links=follow_links)
    if foreign_encoding() and not pc.all(pc.string_is_ascii(paths)).as_py():
        refuse_foreign_locale(root)

    def size(path: str) -> int:
        try:
            return answered(f"{root}/{path}", boundary.stat, path).st_size
        except OSError as error:
            if missing is not None and error.errno in (errno.ENOENT, errno.ENOTDIR):
                return missing
            raise unlistable(error, error.filename) from error

    def of_chunk(start: int) -> np.ndarray:
        return np.fromiter(map(size, paths.slice(start, _STATS_AT_ONCE).to_pylist()), np.int64)

    chunks = in_flight(of_chunk, range(0, len(paths), _STATS_AT_ONCE))
    return np.concatenate([np.zeros(0, np.int64), *chunks])


def in_flight(read: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
    """Call `read` for each item, with many round trips at a time.

    Return the results in the order of the items.
    """
    with ReadingPool(_IN_FLIGHT) as pool:
        return list(pool.map(read, items))


def unlistable(error: OSError, path: object) -> SourceError:
    """Return the error for a folder or file whose metadata cannot be read."""
    refuse_shortage(error, path)
    return SourceError(
        f"{path} cannot be inspected ({os.strerror(error.errno) if error.errno else error})",
        expected="a folder or file that you may read",
        next_step="Check the path and its permissions (ls -ld)",
    )


def read_text(path: Path) -> str:
    """Read the text of a list or table that belongs to samples.

    Raises:
        SourceError: The file cannot be read, or is not UTF-8.
    """
    try:
        return answered(path, path.read_bytes).decode("utf-8-sig")
    except OSError as error:
        raise unlistable(error, path) from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise SourceError(
            f"line {line} of {path} is not UTF-8", expected="text in UTF-8", next_step="Download it again"
        ) from error


def lines_of(text: str) -> list[tuple[int, str]]:
    """Return the lines of a text with their numbers, without blank lines."""
    # Not splitlines(): captions may contain characters that it treats as line ends.
    rows = ((number, line.rstrip("\r")) for number, line in enumerate(text.split("\n"), 1))
    return [(number, line) for number, line in rows if line.strip()]


def bad_line(path: Path, number: int, line: str, expected: str) -> SourceError:
    """Return the error for a malformed line."""
    return SourceError(
        f"line {number} of {path} is {line[:80]!r}",
        expected=expected,
        next_step="Correct it or download it again",
    )


def _refuse_odd_names(names: list[str], where: object) -> None:
    """Raise SourceError if a name is not UTF-8, contains a line break, or is decoded by a foreign locale."""
    if not "".join(names).isascii():
        refuse_foreign_locale(where)
    if _is_portable("".join(names)):
        return
    odd = [os.fsencode(name) for name in names if not _is_portable(name)]
    raise SourceError(
        f"{where} has {plural(len(odd), 'name')} not portable: "
        f"{first_few([ascii(name)[1:] for name in odd], len(odd))}",
        expected="names in UTF-8 without line breaks",
        next_step=f"Rename {'it' if len(odd) == 1 else 'each'}: {_renaming(where, odd[0])}",
    )


def _renaming(where: object, name: bytes) -> str:
    """Return the command that gives a file a portable name. Bytes that are not UTF-8 are read as Latin-1."""
    plain = {byte: chr(byte) for byte in range(33, 127)} | {
        ord("%"): "%%",
        ord("'"): r"\047",
        ord("\\"): r"\134",
    }
    old = "".join(plain.get(byte, f"\\{byte:03o}") for byte in name)
    try:
        new = name.decode("utf-8")
    except UnicodeDecodeError:
        new = name.decode("latin-1")
    new = "".join(letter if letter.isprintable() else "_" for letter in new)
    folder = shlex.quote(f"{where}/")
    return f"mv -n {folder}\"$(printf -- '{old}')\" {folder}{shlex.quote(new)}"


def _is_portable(name: str) -> bool:
    return is_utf8(name) and "\n" not in name


@dataclass(frozen=True)
class _Lister:
    start: Path
    real_root: str
    suffixes: tuple[str, ...]
    follow_links: bool
    ignore: tuple[str, ...] = ()
    below: str = ""

    def list(self, task: tuple[str, int]) -> Folder:
        """List one folder, given its path and the number of links that were followed on the way to it."""
        here = self.start / task[0]
        try:
            folder = answered(here, self._listed, here, *task)
        except OSError as error:
            raise unlistable(error, here) from error
        _refuse_odd_names(folder.files + folder.folders, here)
        for names in (folder.files, folder.folders, folder.others, folder.hidden):
            names.sort()
        return folder

    def _listed(self, here: Path, path: str, hops: int) -> Folder:
        folder = Folder(path)
        with os.scandir(here) as entries:
            for entry in entries:
                self._classify(entry, folder, hops)
        return folder

    def _classify(self, entry: os.DirEntry[str], folder: Folder, hops: int) -> None:
        name = entry.name
        if name.startswith(".") or (is_hidden(name) and entry.is_dir()):
            folder.hidden.append(name)
        elif self.ignore and is_ignored("/".join(filter(None, (self.below, folder.path, name))), self.ignore):
            folder.ignored.append(name)
        elif reason := self._obstacle(entry, hops):
            folder.left.append(f"{folder.prefix}{name} ({reason})")
        elif target := self._outside(entry):
            folder.out.append(f"{folder.prefix}{name} -> {target}")
        elif entry.is_dir():
            folder.folders.append(name)
            folder.hops[name] = hops + entry.is_symlink()
        elif name.lower().endswith(self.suffixes):
            folder.files.append(name)
        else:
            folder.others.append(name)

    def _obstacle(self, entry: os.DirEntry[str], hops: int) -> str | None:
        """Return why an entry is not read. Return None if it is a file, or a folder to enter."""
        try:
            if entry.is_file():
                return None
            if not entry.is_dir():
                return links.BROKEN if entry.is_symlink() else "neither a file nor a folder"
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            return links.LOOP
        if not entry.is_symlink():
            return None
        if links.is_within(os.path.realpath(Path(entry.path).parent), os.path.realpath(entry.path)):
            return links.PARENT
        limit = _HOPS_ANYWHERE if self.follow_links else _HOPS_INSIDE
        return None if hops < limit else links.SECOND

    def _outside(self, entry: os.DirEntry[str]) -> str | None:
        """Return the target of a link if it leads out of the tree and may not be followed.

        Otherwise, return None.
        """
        if self.follow_links or not entry.is_symlink():
            return None
        target = os.path.realpath(entry.path)
        return None if links.is_within(target, self.real_root) else target
