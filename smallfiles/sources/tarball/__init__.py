"""Any tar file as a source, read in place: nothing is unpacked, no inode is spent.

Labels come from class folders (as in ImageFolder), from webdataset's side files, or not at all. A tar
of tars is indexed inside; a tar.gz is read in its own order.

The trap: unpacking 1.28 million files onto a parallel file system costs hours and a quota of inodes,
and the tar that was downloaded can be read at random as it is. Notebook 05 does it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.errors import SourceError, first_few
from smallfiles.folders import canonical_split, choose_split
from smallfiles.formats import provenance
from smallfiles.formats.tar import sides
from smallfiles.formats.tar.archive import Archive, as_mask, index
from smallfiles.manifest import Manifest
from smallfiles.manifest.arrays import from_numpy
from smallfiles.progress import plural
from smallfiles.samples import UNLABELLED
from smallfiles.sources.record import Options, Source
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


def load(path: Path, options: Options | None = None) -> Source:
    """Read a tar file as a source.

    Args:
        path: A tar, tar.gz (bz2, xz, zst) or tar of tars.
        options: See `Options`.

    Returns:
        Samples in the archive's order, since that is the order in which its bytes lie.

    Raises:
        SourceError: Not a tar, damaged, or nothing in it that could be a sample.
    """
    options = options or Options()
    return from_archive(open_archive(path, options), options)


def open_archive(path: Path, options: Options) -> Archive:
    """Index a tar."""
    with as_source():
        return index(path, threads=options.threads, allow_truncated=options.allow_truncated)


def samples_of(archive: Archive, options: Options) -> Archive:
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


def from_archive(archive: Archive, options: Options) -> Source:
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
    found = by_folder(samples.names, archive.path, options)
    if metas is not None:
        metas = list(compress(metas, found.keep))
    samples = samples.select(found.keep)  # all of them, nearly always, and nothing is copied
    manifest = _manifest(samples, found.labels, found.split, found.classes, metas)
    return Source(manifest, open_store(samples), "tarball", notes + found.notes, archive.path)


@dataclass(frozen=True)
class ByFolder:
    """What the folders of a tar say of its samples.

    Args:
        keep: Which files are samples of the split.
        labels: A label for each of these.
        classes: Names of the classes; none for unlabelled samples.
        split: Canonical name of the split.
        notes: What was chosen and left aside.
    """

    keep: npt.NDArray[np.bool_]
    labels: npt.NDArray[np.int32]
    classes: tuple[str, ...]
    split: str
    notes: tuple[str, ...]


def by_folder(names: pa.StringArray, path: Path, options: Options) -> ByFolder:
    """Label by class folders, as in ImageFolder: the one rule for tars as sources and for shards of others.

    Args:
        names: Names of the samples.
        path: The tar or its folder, for messages.
        options: Split, and whether labels are wanted.

    Raises:
        SourceError: Nothing lies in a class folder, or the split is not there.
    """
    place = _find_classes(names, path, options)
    labels, classes, more = _labels(names.take(from_numpy(np.flatnonzero(place.keep))), path, place, options)
    inside = labels != UNLABELLED if classes else np.ones(len(labels), bool)
    keep = place.keep.copy()
    keep[place.keep] = inside
    return ByFolder(keep, labels[inside], classes, place.split, place.notes + more)


def _sided(annotated: sides.Annotated, options: Options) -> Source:
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


@dataclass(frozen=True)
class _Place:
    """Where in the archive the class folders are.

    Args:
        keep: Which samples belong to the split.
        prefix: The folders above the class folders.
        split: Its canonical name.
        notes: How it was chosen.
    """

    keep: npt.NDArray[np.bool_]
    prefix: str
    split: str
    notes: tuple[str, ...]


def _find_classes(names: pa.StringArray, path: Path, options: Options) -> _Place:
    """Pass over folders that only wrap the classes (`train/cat/1.jpg`), and choose among splits."""
    keep, prefix, split = np.ones(len(names), bool), "", options.split or "train"
    notes: tuple[str, ...] = ()
    while True:
        rest = _behind(prefix, names if keep.all() else names.filter(pc.starts_with(names, prefix)))
        tops = sorted(_first_folder(rest).unique().to_pylist())
        shallowest = pc.min(pc.count_substring(rest, "/")).as_py()
        splits = all(canonical_split(top) for top in tops)
        if shallowest < 1 or (len(tops) > 1 and not splits) or (len(tops) == 1 and shallowest < 2):
            if len(tops) == 1 and splits and shallowest == 1 and canonical_split(tops[0]) == "test":
                split = "test"
            return _Place(keep, prefix, split, notes)
        top, notes = choose_split(tops, options.split, path) if splits else (tops[0], notes)
        split = canonical_split(top) or split
        prefix = f"{prefix}{top}/"
        keep = as_mask(pc.starts_with(names, prefix))


def _behind(prefix: str, names: pa.StringArray) -> pa.StringArray:
    return pc.utf8_slice_codeunits(names, len(prefix)) if prefix else names


def _first_folder(names: pa.StringArray) -> pa.StringArray:
    return pc.replace_substring_regex(names, r"(?s)/.*$", "")


def _labels(
    names: pa.StringArray, path: Path, place: _Place, options: Options
) -> tuple[npt.NDArray[np.int32], tuple[str, ...], tuple[str, ...]]:
    """Label by first-level folder; files outside of any are marked to be left aside."""
    rest = _behind(place.prefix, names)
    inside = as_mask(pc.match_substring(rest, "/"))
    unlabelled = np.full(len(rest), UNLABELLED, np.int32)
    if options.unlabelled or (place.split == "test" and _is_flat(rest)):
        return unlabelled, (), (f"{plural(len(rest), 'image')} without a class: label {UNLABELLED}",)
    if not inside.any():
        raise SourceError(
            f"{path} holds {plural(len(rest), 'image')} outside of any class folder",
            expected="one folder a class, or .cls files beside the images",
            next_step="Ask for unlabelled samples, or give a manifest with their labels",
        )
    folders = _first_folder(rest).dictionary_encode()
    tops = folders.dictionary.to_pylist()
    codes = np.frombuffer(folders.indices.buffers()[1], np.int32, len(rest))
    used = sorted({tops[code] for code in np.unique(codes[inside])})
    rank = {name: label for label, name in enumerate(used)}
    of_code = np.array([rank.get(name, UNLABELLED) for name in tops], np.int32)
    labels = np.where(inside, of_code[codes], unlabelled)
    loose = int((~inside).sum())
    notes = (f"{plural(loose, 'image')} outside of any class folder left aside",) if loose else ()
    return labels, tuple(used), notes


def _is_flat(names: pa.StringArray) -> bool:
    return len(_first_folder(names).unique()) == 1 or pc.max(pc.count_substring(names, "/")).as_py() == 0
