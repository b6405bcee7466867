"""Recognise what a path is, and read it.

The trap: a wrong guess costs a training run unless it is reported. `Source.kind` names what was recognised,
`Source.notes` explains why and lists what was left out. Notebook 02 teaches it.
"""

from __future__ import annotations

import os
import re
import shlex
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from smallfiles import formats
from smallfiles.contents import refuse_pointer
from smallfiles.digests import refuse_sidecar
from smallfiles.errors import FormatError, SourceError, like, raised_as
from smallfiles.folders import SourceOptions
from smallfiles.formats.files import MANIFEST
from smallfiles.formats.squashfs import tree_of
from smallfiles.formats.tar import fields
from smallfiles.formats.tar.streams import compression_of
from smallfiles.manifest import Manifest
from smallfiles.options import option, to_argv
from smallfiles.samples import ByteStore
from smallfiles.sources import flickr30k, folder, imagenet, inline, packed, tables, tarball
from smallfiles.sources.annotations import load as load_boxes
from smallfiles.sources.annotations import recognises as has_boxes
from smallfiles.sources.record import FolderStore, Source, refuse_other_split
from smallfiles.sources.scanning import Look, unlistable
from smallfiles.sources.table_files import is_table
from smallfiles.storage import answered


def load(path: Path, kind: str = "auto", **options: Any) -> Source:
    """Read a data set: find its samples, and the places of their bytes.

    Many metadata operations are in flight at once, because each one waits for the parallel file system.

    Args:
        path: A folder of images, of tars or of zips, a tar file (also compressed, or a tar of tars) or a zip,
            a table of paths (.csv, .jsonl, .parquet ...), a packed output or a manifest (.json).
        kind: `folder`, `imagenet`, `flickr30k`, `tarball` or `auto`.
        options: Fields of `SourceOptions`, such as `split`.

    Returns:
        The source, with its kind and notes.

    Raises:
        SourceError: The path is not a data set. The message describes what was found.
        ManifestError: The manifest is wrong.
        UsageError: An option makes no sense.
    """
    return read(Path(path), SourceOptions(kind=kind, **options))  # type: ignore[arg-type] # checked there


def read(path: Path, options: SourceOptions) -> Source:
    """Read a data set like `load`, with all options in one record."""
    try:
        return answered(path, _load, path, options)
    except OSError as error:  # for example a file system that went away
        raise unlistable(error, error.filename or path) from error


@dataclass(frozen=True)
class ManifestConfig(SourceOptions):
    """How a data set is read, and which JSON form its manifest gets.

    Args:
        flat: Whether to write `{path: target}` instead of a header and columns.
    """

    flat: bool = option(False, "write the flat form {path: label}")

    def load(self, path: Path) -> Source:
        """Read the data set, with many metadata operations in flight.

        Raises:
            SmallfilesError: The path cannot be read as a data set.
        """
        return read(path, self)

    def save(self, source: Source, out: Path) -> None:
        """Write the manifest. The path of the data is stored relative to the manifest.

        Args:
            source: The source that `load` returned.
            out: The JSON file. It is replaced if it exists.

        Raises:
            ManifestError: The manifest cannot be written.
        """
        if self.flat:
            source.manifest.save_flat(out)
            return
        hint = "" if source.root is None else os.path.relpath(source.root.resolve(), out.parent.resolve())
        replace(source.manifest, root_hint=hint).save(out)

    def to_cli(self, source: str, out: str) -> str:
        """Return the equivalent command, for a job script."""
        return shlex.join(["smallfiles", "manifest", source, "-o", out, *to_argv(self)])


class _Layout(NamedTuple):
    """A layout of somebody's folder.

    Args:
        load: Reads a folder of this layout.
        hint: A pattern. Without a name in the first folders that matches it, the layout is not tested.
        recognises: Decides whether a folder has this layout.
    """

    load: Callable[[Path, SourceOptions], Source]
    hint: str
    recognises: Callable[[Look, SourceOptions], object]


_LAYOUTS = {
    "imagenet": _Layout(imagenet.load, "", lambda look, _: imagenet.recognises(look)),
    "flickr30k": _Layout(flickr30k.load, "", lambda look, _: look.find(flickr30k.FILES)),
    "boxes": _Layout(load_boxes, r"(?im)\.(json|xml)$|^labels$|^voc", has_boxes),
    "tarball": _Layout(
        tarball.load_folder, r"(?m)\.(tar|zip)$", lambda look, _: tarball.archives_in(look.path)
    ),
    "folder": _Layout(folder.load, "", lambda look, _: True),
}
"""The layouts by their names, in the order in which they are tested."""


def _load(path: Path, options: SourceOptions) -> Source:
    if not (path.is_dir() or path.is_file()):
        nearest = next((parent for parent in path.absolute().parents if parent.exists()), Path("/"))
        what = "is neither a file nor a folder" if path.exists() else f"does not exist (but {nearest} does)"
        raise SourceError(
            f"{path} {what}",
            expected="a folder, a tar or zip file or a manifest",
            next_step=f"Check the path{like(path)}, and whether this file system is mounted on this node",
        )
    refuse_sidecar(path)
    if path.is_file():
        refuse_pointer(path)
    if path.suffix == ".json" and path.is_file():
        return _from_manifest(path, options.root, options)
    may_be_inside = options.kind == "auto" or path.is_file()
    if may_be_inside and (inside := inline.find(path, options.split, options.columns)):
        return inline.load(inside, options)
    if path.is_file() and is_table(path):
        return tables.load(path, options)
    if options.kind == "auto" and (format := packed.format_of(path)):
        return _from_packed(path, format, options)
    return (_from_folder if path.is_dir() else _from_tar)(path, options)


def _from_packed(path: Path, format: str, options: SourceOptions) -> Source:
    if format == "squashfs":
        with raised_as(FormatError, SourceError):
            tree = tree_of(path)
        if tree is not None:
            return tarball.from_archive(tarball.without_ignored(tree, options), options)
    if format != "files":
        return packed.load(path, format, options)
    options.refuse_unsupported("packed files", path)
    source = _from_manifest(path / MANIFEST, None, replace(options, ignore=(), where=None))
    manifest = packed.with_added_fields(source.manifest, path)
    source = replace(source, manifest=manifest, kind="packed files", resize=packed.resize_sidecar(path))
    blobs = [paths for name in manifest.blobs for paths in manifest.blob_paths(name).to_pylist()]
    at_top = [name for name in (*manifest.paths.to_pylist(), *blobs) if "/" not in name]
    whole = packed.with_names_beside(source, (MANIFEST, *at_top), options)
    return replace(whole, manifest=packed.selected(manifest, path, options.where))


def _from_folder(path: Path, options: SourceOptions) -> Source:
    kind: str = options.kind
    if kind == "auto":
        look = Look(path, options.ignore)
        names = "\n".join(look.names())
        has_table = options.labels is None and re.search(r"(?m)^metadata\.", names)
        if has_table and (found := tables.find_metadata(look, options)):
            return tables.join_folder(path, found, options)
        hinted = [name for name, each in _LAYOUTS.items() if options.labels or re.search(each.hint, names)]
        kind = next(name for name in hinted if _LAYOUTS[name].recognises(look, options))
    if kind == "folder" and options.labels is not None:
        return tables.join_folder(path, tables.Metadata(options.labels), options)
    return _LAYOUTS[kind].load(path, options)


def _from_tar(path: Path, options: SourceOptions) -> Source:
    kind = options.kind
    if kind in ("folder", "flickr30k"):
        raise SourceError(f"{path} is a file", expected=f"a folder for {kind}", next_step="Check the path")
    if path.suffix.lower() != tarball.ZIP and compression_of(path) is None and not _begins_as_tar(path):
        raise SourceError(
            f"{path} is neither a tar file, a zip file nor a manifest",
            expected="a folder, a tar or zip file or a manifest (.json)",
            next_step="Give the folder of the images; a packed file needs a suffix such as .arrow or .h5",
        )
    archive = tarball.without_ignored(tarball.open_archive(path), options)
    if kind == "imagenet" or (kind == "auto" and not archive.is_ours and imagenet.role_of(archive)):
        return imagenet.from_official(archive, options)
    return tarball.from_archive(archive, options)


def _begins_as_tar(path: Path) -> bool:
    # Not tarfile.is_tarfile, which recurses once per extension header.
    with path.open("rb") as file:
        head = file.read(tarfile.BLOCKSIZE)
    try:
        tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return head == bytes(tarfile.BLOCKSIZE)  # an empty archive
    return True


def _from_manifest(path: Path, root: Path | None, options: SourceOptions) -> Source:
    """Read a manifest and find its data.

    The data is in `root`, or where the hint in the manifest points, or beside the manifest.
    """
    options.refuse_unsupported("a manifest", path)
    manifest = Manifest.load(path)
    refuse_other_split(path, manifest.split, options.split, "manifest")
    root = root if root is not None else _hinted(path, manifest.root_hint)
    if not root.exists():
        raise SourceError(
            f"the data of {path} is not at {root}",
            expected="the folder or tar file that its paths are relative to",
            next_step="Give the right place (--root DIR)",
        )
    if inside := inline.find(root, manifest.split):
        return Source(manifest, inline.open_store(inside, manifest), "manifest", (), root)
    store, notes = _store_at(root, options, manifest.path(0) if len(manifest) else "")
    return Source(manifest, store, "manifest", notes, root)


def _hinted(path: Path, hint: str) -> Path:
    """Return the root that a manifest names. It must be below the manifest's folder.

    This restriction is needed because the author of the manifest may be a stranger.
    """
    if ".." in Path(hint).parts:
        raise SourceError(
            f"the manifest {path} names {hint} as its data, outside of its own folder",
            expected="data in or below that folder",
            next_step=f"If this is right, confirm it: --root {os.path.normpath(path.parent / hint)}",
        )
    return path.absolute().parent / hint


def _store_at(root: Path, options: SourceOptions, first: str) -> tuple[ByteStore, tuple[str, ...]]:
    """Return the store that reads the bytes of a manifest, and notes. `first` is a path in the manifest."""
    if format := packed.format_of(root):
        is_plain = format == "files"
        return FolderStore(root) if is_plain else packed.PackedStore(formats.open(root, format)), ()
    if root.is_dir():
        if first.partition("/")[0] not in (name[:-4] for name in tarball.archives_in(root)):
            return FolderStore(root, follow_links=options.follow_links), ()
        archive = tarball.open_folder(root, replace(options, unlabelled=True))
        return tarball.TarStore(archive), archive.notes
    archive = tarball.open_archive(root)
    samples = fields.read(archive).data if archive.is_ours else archive
    return tarball.TarStore(samples), archive.notes
