"""Look at a path, tell what it is, and read it.

The trap: a wrong guess that is not said aloud costs a training run. What was recognised stands in
`Source.kind`, why and what was left aside in `Source.notes`. Notebook 02 teaches it.
"""

from __future__ import annotations

import os
import shlex
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from smallfiles.errors import SourceError
from smallfiles.folders import IMAGE_SUFFIXES, SourceOptions
from smallfiles.formats.files.reading import MANIFEST
from smallfiles.formats.tar import fields
from smallfiles.formats.tar.streams import compression_of
from smallfiles.manifest import Manifest
from smallfiles.options import option, words
from smallfiles.progress import plural
from smallfiles.samples import ByteStore
from smallfiles.sources import flickr30k, folder, imagenet, packed, tarball
from smallfiles.sources.imagenet import official
from smallfiles.sources.record import Source
from smallfiles.sources.scanning import list_folder, unlistable


def load(path: Path, kind: str = "auto", **options: Any) -> Source:
    """Read a data set: which samples it has, and where their bytes are.

    Metadata operations run many at a time, since each waits for a parallel file system.

    Args:
        path: A folder of images or of tars, a tar file (also compressed, or a tar of tars), a packed output
            or a manifest (.json).
        kind: `folder`, `imagenet`, `flickr30k`, `tarball` or `auto`.
        options: Fields of `SourceOptions`, such as `split`.

    Returns:
        The source, with what it was recognised as and what was odd.

    Raises:
        SourceError: It is no data set; the sentence says what was found.
        ManifestError: The manifest is wrong.
        UsageError: An option makes no sense.
    """
    return read(Path(path), SourceOptions(kind=kind, **options))  # type: ignore[arg-type] # checked there


def read(path: Path, options: SourceOptions) -> Source:
    """What `load` does, its options as one record."""
    try:
        return _load(path, options)
    except OSError as error:  # what no reader foresaw, such as a file system that went away
        raise unlistable(error, error.filename or path) from error


@dataclass(frozen=True)
class ManifestConfig(SourceOptions):
    """How a data set is understood, and which JSON shape its manifest gets.

    Args:
        flat: Write `{path: target}` instead of header and columns.
    """

    flat: bool = option(False, "write the flat form {path: label}")

    def load(self, path: Path) -> Source:
        """Walk the data set, with many metadata operations in flight.

        Raises:
            SmallfilesError: It is no such data set.
        """
        return read(path, self)

    def save(self, source: Source, out: Path) -> None:
        """Write the manifest, with a hint from its own folder to the data.

        Args:
            source: From `load`.
            out: The JSON file; replaced if it exists.

        Raises:
            ManifestError: It cannot be written.
        """
        if self.flat:
            source.manifest.save_flat(out)
            return
        hint = "" if source.root is None else os.path.relpath(source.root.resolve(), out.parent.resolve())
        replace(source.manifest, root_hint=hint).save(out)

    def to_cli(self, source: str, out: str) -> str:
        """The command that does the same, to be pasted into a job script."""
        return shlex.join(["smallfiles", "manifest", source, "-o", out, *words(self)])


def _load(path: Path, options: SourceOptions) -> Source:
    if not path.exists():
        nearest = next((parent for parent in path.absolute().parents if parent.exists()), Path("/"))
        raise SourceError(
            f"{path} does not exist (but {nearest} does)",
            expected="a folder, a tar file or a manifest",
            next_step="Check the path, and whether this file system is mounted on this node",
        )
    if path.suffix == ".json" and path.is_file():
        return _from_manifest(path, options.root, options)
    if options.kind == "auto" and (format := packed.format_of(path)):
        return _from_packed(path, format, options)
    if path.is_dir():
        return _from_folder(path, options)
    if not path.is_file():
        raise SourceError(
            f"{path} is neither a file nor a folder",
            expected="a folder, a tar file or a manifest",
            next_step="Check the path",
        )
    return _from_tar(path, options)


def _from_packed(path: Path, format: str, options: SourceOptions) -> Source:
    if format != "files":
        return packed.load(path, format, options)
    options.refuse_unfollowed("a packed output", path)
    source = _from_manifest(path / MANIFEST, None, options)
    return replace(source, kind="packed files", resize=packed.resize_beside(path))


def _from_folder(path: Path, options: SourceOptions) -> Source:
    kind: str = options.kind
    readers: dict[str, tuple[Callable[[Path, SourceOptions], Source], Callable[[Path], object]]] = {
        "imagenet": (imagenet.load, imagenet.recognises),
        "flickr30k": (flickr30k.load, flickr30k.recognises),
        "tarball": (tarball.load_folder, tarball.tars_in),
        "folder": (folder.load, Path.is_dir),
    }
    if kind == "auto":
        kind = next(name for name, (_, recognises) in readers.items() if recognises(path))
    try:
        return readers[kind][0](path, options)
    except SourceError:
        _refuse_zips(path)
        raise


def _from_tar(path: Path, options: SourceOptions) -> Source:
    kind = options.kind
    if kind in ("folder", "flickr30k"):
        raise SourceError(
            f"{path} is a file", expected=f"a folder of kind {kind}", next_step="Check the path"
        )
    if zipfile.is_zipfile(path):
        raise _zipped(path, [path])
    if compression_of(path) is None and not _begins_as_tar(path):
        raise SourceError(
            f"{path} is no tar file and no manifest",
            expected="a folder, a tar file or a manifest (.json)",
            next_step="Give the folder of the images; a packed file needs a suffix such as .arrow or .h5",
        )
    archive = tarball.open_archive(path)
    if kind == "imagenet" or (kind == "auto" and not archive.is_ours and official.role_of(archive)):
        return official.from_archive(archive, options)
    return tarball.from_archive(archive, options)


def _zipped(path: Path, zips: list[Path]) -> SourceError:
    """The sentence for zip files, whose members are compressed and named without an encoding."""
    what = "is a zip file" if zips == [path] else f"holds {plural(len(zips), 'zip file')} and no images"
    return SourceError(
        f"{path} {what}",
        expected="a folder, a tar file or a manifest",
        next_step=f"Make a tar of it without unpacking: bsdtar -cf {shlex.quote(zips[0].stem)}.tar "
        f"@{shlex.quote(str(zips[0]))} (or unzip it to a local disk)",
    )


def _refuse_zips(folder: Path) -> None:
    """Raise SourceError if a folder that is no data set holds zip files and no images."""
    listed = list_folder(folder)
    zips = [folder / name for name in listed.files if name.lower().endswith(".zip")]
    if (
        zips
        and not listed.folders
        and not any(name.lower().endswith(IMAGE_SUFFIXES) for name in listed.files)
    ):
        raise _zipped(folder, zips)


def _begins_as_tar(path: Path) -> bool:
    # Not tarfile.is_tarfile, which calls itself for each header that only announces the next one.
    with path.open("rb") as file:
        head = file.read(tarfile.BLOCKSIZE)
    try:
        tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return head == bytes(tarfile.BLOCKSIZE)  # an empty archive
    return True


def _from_manifest(path: Path, root: Path | None, options: SourceOptions) -> Source:
    """Read a manifest and find its bytes: in `root`, where its hint says below it, or beside it."""
    options.refuse_unfollowed("a manifest", path)
    manifest = Manifest.load(path)
    if options.split not in (None, manifest.split):
        raise SourceError(
            f"the manifest {path} is of split {manifest.split!r}, and {options.split!r} was asked for",
            expected="the manifest of this split",
            next_step="Give that one, or no split",
        )
    place = root if root is not None else _hinted(path, manifest.root_hint)
    if not place.exists():
        raise SourceError(
            f"the data of {path} is not at {place}",
            expected="the folder or tar file that its paths are relative to",
            next_step="Say where it is with root (--root DIR)",
        )
    store, notes = _store_at(place, options, manifest.path(0) if len(manifest) else "")
    return Source(manifest, store, "manifest", notes, place)


def _hinted(path: Path, hint: str) -> Path:
    """Where a manifest says that its data is: below its own folder, since a stranger may have written it."""
    if ".." in Path(hint).parts:
        raise SourceError(
            f"the manifest {path} says that its data is at {hint}, outside of its own folder",
            expected="data beside or below it, or to be told that this place is meant",
            next_step=f"If it is, say so: --root {os.path.normpath(path.parent / hint)}",
        )
    return path.absolute().parent / hint


def _store_at(place: Path, options: SourceOptions, first: str) -> tuple[ByteStore, tuple[str, ...]]:
    """What holds the bytes of a manifest, of whose paths `first` is one."""
    if format := packed.format_of(place):
        return packed.open_store(place, format), ()
    in_tars = f"{first.partition('/')[0]}.tar" in tarball.tars_in(place) if place.is_dir() else False
    if place.is_dir() and not in_tars:
        return folder.FolderStore(place), ()
    if place.is_dir():
        archive = tarball.open_folder(place, replace(options, unlabelled=True))
        return tarball.TarStore(archive), archive.notes
    archive = tarball.open_archive(place)
    samples = fields.read(archive).data if archive.is_ours else archive
    return tarball.TarStore(samples), archive.notes
