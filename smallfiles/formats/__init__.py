"""Packed formats, one module each, all under one contract.

    write(samples, out, *, schema, options=None, digest=True) -> Packed
    open(path) -> Reader
    Options                  a frozen dataclass; every field has a default

`write` writes directly to `out`; `smallfiles.pack` makes that safe (under another name, verified, then
published). A new format is one module and one line in `SUFFIXES`.
"""

from __future__ import annotations

import importlib
import shlex
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from types import ModuleType

from smallfiles.errors import FormatError, MissingPackageError, UsageError, of_system
from smallfiles.samples import Reader

SUFFIXES: dict[str, tuple[str, ...]] = {
    # name of format and module -> suffixes of its files
    "files": (".files",),
    "arrow": (".arrow",),
    "hdf5": (".h5", ".hdf5"),
    "tar": (".tars", ".tar", ".tar.gz", ".tar.zst"),
    "squashfs": (".sqfs", ".squashfs"),
    "lmdb": (".lmdb",),
}
_FOLDERS = ("files", "tar", "lmdb")  # liblmdb makes a folder with data.mdb in it


def names() -> tuple[str, ...]:
    """Names of all formats, in the order of the course."""
    return tuple(SUFFIXES)


def get(name: str) -> ModuleType:
    """The module of a format.

    Raises:
        UsageError: No such format.
        MissingPackageError: It needs a package of an extra.
    """
    if name not in SUFFIXES:
        raise UsageError(
            f"the format {name!r} is unknown",
            expected=f"one of {', '.join(SUFFIXES)}",
            next_step="Choose one of these",
        )
    try:
        return importlib.import_module(f"smallfiles.formats.{name}")
    except ModuleNotFoundError as error:
        raise MissingPackageError.of_import(error, f"the format {name}") or error from error


def name_of(path: Path, format: str | None = None) -> str:
    """The format of `path` by its suffix; `format` overrides.

    Raises:
        UsageError: The suffix belongs to no format.
    """
    if format is not None:
        get(format)
        return format
    for name, suffixes in SUFFIXES.items():
        if path.name.endswith(suffixes):
            return name
    if path.name.endswith(".zarr"):
        raise UsageError(
            f"{path} is named as a Zarr store, which only the zarr library reads",
            expected="another format",
            next_step="Read it with zarr.open_group, or pack what it was made from into .arrow",
        )
    known = ", ".join(suffix for suffixes in SUFFIXES.values() for suffix in suffixes)
    raise UsageError(
        f"the name {path.name!r} has no suffix of a format",
        expected=f"a name ending in one of {known}",
        next_step="Rename it or give --format",
    )


def open(path: Path | str, format: str | None = None) -> Reader:
    """Open a packed file for random access, whatever its format.

    Args:
        path: A packed file or folder of shards.
        format: Overrides what the suffix says.

    Raises:
        FormatError: There is no such file, or it is damaged.
        ResourceError: The file system does not let it be looked at.
    """
    path = Path(path)
    try:
        name = name_of(path, format)
    except UsageError as error:
        if path.suffix == ".zarr":
            raise
        raise UsageError(
            f"{path} is not named as a packed file",
            expected=error.expected,
            next_step=f"Pack it first: smallfiles pack {shlex.quote(str(path))} train.arrow",
        ) from None
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise FormatError(
            f"{path} does not exist",
            expected=f"a packed {name} file",
            next_step="Check the path, or make it with: smallfiles pack",
        ) from None
    except OSError as error:  # no permission, or a mount whose server is gone
        raise of_system(error, f"{path} cannot be read ({error.strerror})") from error
    if not (S_ISREG(mode) or (S_ISDIR(mode) and name in _FOLDERS)):
        raise FormatError(  # a reader would wait at a pipe for ever
            f"{path} is {'a folder' if S_ISDIR(mode) else 'neither a file nor a folder'}",
            expected=f"a packed {name} file",
            next_step="Give the file itself",
        )
    reader: Reader = get(name).open(path)
    return reader
