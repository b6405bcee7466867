"""Packed formats, one module each, all under one contract.

    write(samples, out, *, schema, options=None, digest=True) -> Packed
    open(path) -> Reader     `TableReader(path, locate)`, where `locate(path)` returns a `SampleTable`
    Options                  a frozen dataclass; every field has a default

`write` writes directly to `out`; `smallfiles.pack` makes that safe (under another name, verified, then
published). A new format of ours is one module and one line in `SUFFIXES`.

A package outside adds a format by an entry point in the group `smallfiles.formats`. The name of the entry is
the name of the format, and it refers to a module with the three names above and with `SUFFIXES`, the suffixes
of its files. `contrib/smallfiles-lmdb` is an example, and CONTRIBUTING.md explains it. The trap: reading the
entry points of an environment takes tens of milliseconds, so they are read only if none of our suffixes fits.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import shlex
import warnings
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from types import ModuleType

from smallfiles.digests import refuse_sidecar
from smallfiles.errors import FormatError, MissingPackageError, UsageError, like, of_system
from smallfiles.samples import Reader
from smallfiles.storage import answered

SUFFIXES: dict[str, tuple[str, ...]] = {
    # name of format and module -> suffixes of its files
    "files": (".files",),
    "arrow": (".arrow",),
    "hdf5": (".h5", ".hdf5"),
    "tar": (".tars", ".tar"),
    "squashfs": (".sqfs", ".squashfs"),
}
_MAY_BE_PACKED = (".zip", ".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".feather", ".json")
_COMPRESSED_TARS = (".tar.gz", ".tgz", ".tar.zst")
_SINGLE_FILES = ("arrow", "hdf5", "squashfs")
SAVED = "state.json"
"""Name of the JSON file in a folder that `save_to_disk` of Hugging Face `datasets` wrote.

It lists the Arrow files of that data set, in order.
"""

GROUP = "smallfiles.formats"
_CONTRIB = {"lmdb": "contrib/smallfiles-lmdb"}
"""For the name of a format, the folder of this project with the package that adds the format."""


@functools.cache
def _added() -> dict[str, EntryPoint]:
    """Return the entry points of the formats that installed packages add, by the name of the format."""
    return {entry.name: entry for entry in entry_points(group=GROUP) if entry.name not in SUFFIXES}


def suffixes() -> dict[str, tuple[str, ...]]:
    """Return the file suffixes of each format, by the name of the format.

    Our formats come first, in the order of the course, and then those of installed packages. A package that
    cannot be loaded is skipped with a warning, so that it does not stop the other formats.
    """
    found = dict(SUFFIXES)
    for name in _added():
        try:
            found[name] = tuple(get(name).SUFFIXES)
        except Exception as error:  # whatever the package does when it is imported
            warnings.warn(
                f"the format {name} of an installed package cannot be loaded: {error}", stacklevel=2
            )
    return found


def names() -> tuple[str, ...]:
    """Return the names of all formats.

    Our formats come first, in the order of the course, and then those of installed packages.
    """
    return (*SUFFIXES, *_added())


def get(name: str) -> ModuleType:
    """Import the module of a format, and return it.

    Raises:
        UsageError: There is no format of this name.
        MissingPackageError: The format needs a package that is not installed, or its package cannot be
            loaded.
    """
    if name not in SUFFIXES and name not in _added():
        raise _not_installed(name) or UsageError(
            f"the format {name!r} is unknown",
            expected=f"one of {', '.join(names())}",
            next_step="Choose one of these",
        )
    try:
        if name in SUFFIXES:
            return importlib.import_module(f"smallfiles.formats.{name}")
        module: ModuleType = _added()[name].load()
        return module
    except Exception as error:  # a package of others may raise anything while it is imported
        raise MissingPackageError.of_import(error, f"the format {name}") or error from error


def _not_installed(name: str) -> MissingPackageError | None:
    """Return the error for a format that a package of this project would add, but that is not installed.

    Return None if no package of this project adds a format of this name.
    """
    if name not in _CONTRIB:
        return None
    return MissingPackageError(
        f"the format {name} is not installed",
        expected=f"the package in {_CONTRIB[name]}, which adds it",
        next_step=f"Run this in a clone of this project: python -m pip install ./{_CONTRIB[name]}",
    )


def name_of(path: Path, format: str | None = None) -> str:
    """Return the name of the format of `path`.

    This is `format` if it is given, otherwise the format that the suffix belongs to.

    A folder without such a suffix is `arrow` if `save_to_disk` of Hugging Face `datasets` wrote it.

    Raises:
        UsageError: The suffix belongs to no format.
        MissingPackageError: The suffix belongs to a format whose package is not installed.
    """
    if format in (None, "tar") and path.name.endswith(_COMPRESSED_TARS):
        raise UsageError(
            f"{path} is named as a compressed tar, in which no sample can be read at random",
            expected="a packed file or an output ending in .tars or .tar",
            next_step="Pack into .tars; smallfiles 0.1.0 reads the tars that it compressed, "
            f"and any compressed tar can be packed: smallfiles pack {shlex.quote(str(path))} train.tars",
        )
    if format is not None:
        get(format)
        return format
    if found := _with_ending(path.name, SUFFIXES) or _with_ending(path.name, suffixes()):
        return found
    if missing := _not_installed(path.suffix.removeprefix(".")):
        raise missing
    if path.name.endswith(".zarr"):
        raise UsageError(
            f"{path} is named as a Zarr store, which only the zarr library reads",
            expected="another format",
            next_step="Read it with zarr.open_group, or pack what it was made from into .arrow",
        )
    if (path / SAVED).is_file():
        return "arrow"
    listed = ", ".join(ending for known in suffixes().values() for ending in known)
    raise UsageError(
        f"the name {path.name!r} has no suffix of a format",
        expected=f"a name ending in one of {listed}",
        next_step="Rename it or give --format",
    )


def _with_ending(name: str, known: dict[str, tuple[str, ...]]) -> str | None:
    return next((format for format, endings in known.items() if name.endswith(endings)), None)


def open(path: Path | str, format: str | None = None, *, by_position: bool = False) -> Reader:
    """Open a packed file for random access, whatever its format.

    Args:
        path: A packed file or folder of shards.
        format: Overrides what the suffix says.
        by_position: Map nothing into memory, although that is slower on a local disk: a file that another
            program truncates meanwhile then ends in an error, and not in the signal SIGBUS.

    Raises:
        FormatError: The file does not exist, or it is damaged.
        UsageError: The path is not named like a packed file, or it is a file that belongs to a packed file.
        ResourceError: The file system does not allow access to the path.
    """
    path = Path(path)
    refuse_sidecar(path)
    try:
        name = name_of(path, format)
    except UsageError as error:
        if path.name.endswith((".zarr", *_COMPRESSED_TARS)):
            raise
        cure = "Give the packed file"
        if path.is_dir() or path.suffix.lower() in _MAY_BE_PACKED:
            cure = f"Pack it first: smallfiles pack {shlex.quote(str(path))} train.arrow"
        raise UsageError(
            f"{path} is not a packed file" if path.exists() else f"{path} is not named as a packed file",
            expected=error.expected,
            next_step=cure + like(path),
        ) from None
    try:
        mode = answered(path, path.stat).st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise FormatError(
            f"{path} does not exist",
            expected=f"a packed {name} file",
            next_step=f"Check the path{like(path)}, or make it with: smallfiles pack",
        ) from None
    except OSError as error:  # no permission, or a mount whose server is gone
        raise of_system(error, f"{path} cannot be read ({error.strerror})") from error
    if not (S_ISREG(mode) or (S_ISDIR(mode) and (name not in _SINGLE_FILES or (path / SAVED).is_file()))):
        raise FormatError(  # a reader would wait at a pipe for ever
            f"{path} is {'a folder' if S_ISDIR(mode) else 'neither a file nor a folder'}",
            expected=f"a packed {name} file",
            next_step="Give the file itself",
        )
    opening = get(name).open
    takes_access = "access" in inspect.signature(opening).parameters
    reader: Reader = opening(path, access="pread") if by_position and takes_access else opening(path)
    return reader
