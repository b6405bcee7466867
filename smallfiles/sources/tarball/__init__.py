"""Any tar file as a source, read in place: nothing is unpacked, no inode is spent.

Labels come from class folders (as in ImageFolder), from webdataset's side files, or not at all. A tar
of tars is indexed inside; a tar.gz is read in its own order.

The trap: unpacking 1.28 million files onto a parallel file system costs hours and a quota of inodes,
and the tar that was downloaded can be read at random as it is. Notebook 05 does it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import compress
from pathlib import Path

from smallfiles.errors import SourceError, first_few
from smallfiles.folders import SourceOptions
from smallfiles.formats import provenance
from smallfiles.formats.tar import sides
from smallfiles.formats.tar.archive import Archive, index
from smallfiles.manifest import Manifest
from smallfiles.manifest.class_folders import by_folder
from smallfiles.progress import plural
from smallfiles.samples import UNLABELLED
from smallfiles.sources.record import Source
from smallfiles.sources.tarball.store import StreamStore, TarStore, as_source, open_store

__all__ = [
    "Archive",
    "StreamStore",
    "TarStore",
    "from_archive",
    "index",
    "load",
    "open_archive",
    "open_store",
    "samples_of",
]


def load(path: Path, options: SourceOptions | None = None) -> Source:
    """Read a tar file as a source.

    Args:
        path: A tar, tar.gz (bz2, xz, zst) or tar of tars.
        options: See `SourceOptions`.

    Returns:
        Samples in the archive's order, since that is the order in which its bytes lie.

    Raises:
        SourceError: Not a tar, damaged, or nothing in it that could be a sample.
    """
    options = options or SourceOptions()
    return from_archive(open_archive(path, options), options)


def open_archive(path: Path, options: SourceOptions) -> Archive:
    """Index a tar."""
    with as_source():
        return index(path, allow_truncated=options.allow_truncated)


def samples_of(archive: Archive, options: SourceOptions) -> Archive:
    """The files of an archive that are samples.

    Raises:
        SourceError: There are none.
    """
    samples = archive.select(archive.having(options.suffixes))
    if not len(samples.names):
        raise SourceError(
            f"{archive.path} is no data set: it holds {archive.contents_in_words()} and no images",
            expected=f"files ending in {', '.join(options.suffixes)}",
            next_step="Check the path, or name the suffixes of your samples with --suffix",
        )
    return samples


def from_archive(archive: Archive, options: SourceOptions) -> Source:
    """The source that an indexed archive is: labelled by side files, or else by class folders."""
    if archive.is_ours:
        return _sided(sides.read(archive), options)
    samples, metas = samples_of(archive, options), None
    aside = len(archive.names) - len(samples.names) - len(archive.contents)
    notes = (*archive.notes, *((f"left aside: {plural(aside, 'other file')}",) if aside else ()))
    if not options.unlabelled:
        with as_source():
            annotated = sides.read(archive, options.suffixes)
        if any(annotated.kinds):
            return _sided(annotated, options)
        samples, notes = annotated.data, (*archive.notes, *annotated.notes)
        metas = annotated.metas if any(annotated.metas) else None
    found = by_folder(samples.names, archive.path, options.split, unlabelled=options.unlabelled)
    if not (found.classes or options.unlabelled or found.split == "test"):
        raise SourceError(
            f"{archive.path} holds {plural(len(samples.names), 'image')} outside of any class folder",
            expected="one folder a class, or .cls files beside the images",
            next_step="Ask for unlabelled samples, or give a manifest with their labels",
        )
    if metas is not None:
        metas = list(compress(metas, found.keep))
    samples = samples.select(found.keep)  # all of them, nearly always, and nothing is copied
    manifest = _manifest(samples, found.labels, found.split, found.classes, metas)
    return Source(manifest, open_store(samples), "tarball", notes + found.notes, archive.path)


def _sided(annotated: sides.Annotated, options: SourceOptions) -> Source:
    """The source whose targets stand beside its samples, as webdataset and `pack` store them."""
    data = annotated.data
    with as_source():
        kind, said = sides.target_kind([annotated], data.path)
    without = [] if options.unlabelled else annotated.without(kind)
    if without and options.strict:
        raise SourceError(
            f"{data.path} has {plural(len(without), 'sample')} without a target: "
            f"{first_few(without, len(without))}",
            expected="a .cls, .txt or .json member for each",
            next_step="Leave out strict to take them unlabelled",
        )
    targets = [UNLABELLED] * len(data.names) if options.unlabelled else annotated.targets(kind)
    split = options.split or data.record.get("schema", {}).get("split") or "train"
    manifest = _manifest(data, targets, split, provenance.class_names(data.record), annotated.metas)
    notes = (*data.notes, *annotated.notes, *said, *sides.unlabelled([annotated], kind))
    return Source(manifest, open_store(data), "webdataset tar", notes, data.path)


def _manifest(
    samples: Archive,
    targets: object,
    split: str,
    classes: tuple[str, ...],
    metas: Sequence[str | None] | None,
) -> Manifest:
    objects = [json.loads(text) if text else None for text in metas] if metas and any(metas) else None
    name = samples.path.name.partition(".")[0] or "dataset"
    return Manifest.from_columns(
        samples.names, targets, name=name, split=split, classes=classes, sizes=samples.sizes, metas=objects
    )
