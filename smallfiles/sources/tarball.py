"""Any tar or zip file as a source, read in place: nothing is unpacked, no inode is spent.

Labels come from class folders (as in ImageFolder), from webdataset's `.cls`, `.txt` and `.json` members, or
are missing. A tar of tars and a folder of tars or zips, one per class, are indexed as a whole; a tar.gz is
read sequentially.

The trap: unpacking 1.28 million files onto a parallel file system costs hours and a quota of inodes, although
a plain tar allows random access. Every read names its position (`preadv`), so that threads and forked
processes may share a descriptor. Notebook 05 compares this with unpacking.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.arrays import as_mask
from smallfiles.errors import FormatError, SourceError, first_few, raised_as
from smallfiles.folders import (
    IMAGE_SUFFIXES,
    SourceOptions,
    by_suffix,
    canonical_split,
    choose_split,
    in_words,
)
from smallfiles.formats import provenance
from smallfiles.formats.bytefile import ByteFile
from smallfiles.formats.squashfs.foreign import SquashedFile, SquashedTree
from smallfiles.formats.tar import by_name, fields
from smallfiles.formats.tar.archive import Archive, index
from smallfiles.formats.tar.streams import StreamedStore
from smallfiles.links import Boundary
from smallfiles.manifest import Manifest
from smallfiles.manifest.class_folders import Labelled, by_folder, folders_of
from smallfiles.manifest.listing import HEAD_BYTES, Files
from smallfiles.progress import plural
from smallfiles.samples import UNLABELLED
from smallfiles.sources import declarations, tables, zips
from smallfiles.sources.declarations import Beside
from smallfiles.sources.folder import no_classes
from smallfiles.sources.record import NamedStore, Source, refuse_if_strict, with_data_suffix
from smallfiles.sources.scanning import list_folder
from smallfiles.storage import ReadingPool

_TARS_INDEXED_AT_ONCE = 32
_TARS_OPEN_AT_ONCE = 64  # ImageNet-21k has 20,000, and a process may often open 1,024 files


def open_archive(path: Path) -> Archive:
    """Index a tar or a zip."""
    with raised_as(FormatError, SourceError):
        return zips.index(path) if path.suffix.lower() == zips.SUFFIX else index(path, are_shards=False)


def archives_in(folder: Path) -> list[str]:
    """The tars of a folder, or else its zips, by name, if it contains neither folders nor images."""
    listed = list_folder(folder)
    if listed.folders or any(name.lower().endswith(IMAGE_SUFFIXES) for name in listed.files):
        return []
    tars, zipped = ([n for n in listed.files if n.endswith(suffix)] for suffix in (".tar", zips.SUFFIX))
    return tars or zipped


def load_folder(folder: Path, options: SourceOptions) -> Source:
    """Read a folder of tars, one per class, as the outer tar of ImageNet-21k unpacks to.

    Args:
        folder: The tars or zips; the key of a sample is `tar/member`. Its class is the name of its tar where
            these can be classes (see `formats.tar.by_name`), or where `options.kind` is `tarball`.
        options: See `SourceOptions`.

    Raises:
        SourceError: There are none, one is damaged, or they are not one per class.
    """
    archive = open_folder(folder, options)
    others = len(list_folder(folder).files) - len(archive.tars)
    kinds = f"{_kind_of(archive)}s"
    notes = (f"left out: {plural(others, 'file')} other than {kinds}",) if others else ()
    refuse_if_strict(notes, options, folder)
    source = from_archive(archive, options)
    if source.kind == "tarball" and source.manifest.classes:
        notes = (f"classes are named by the {kinds}", *notes)
    return replace(source, kind=f"folder of {kinds}", notes=source.notes + notes)


def open_folder(folder: Path, options: SourceOptions) -> Archive:
    """Index the tars of a folder as one archive.

    Raises:
        SourceError: There are none, or they cannot be read as one set.
    """
    names = archives_in(folder)
    if not names:
        raise SourceError(
            f"{folder} is not a folder of tar or zip files only",
            expected="a tar or zip file, or a folder of them without folders or images",
            next_step="Give one of these, or leave the kind at auto",
        )
    boundary = Boundary(folder, follow_links=options.follow_links)
    for name in names:
        boundary.check(name)
    with ReadingPool(_TARS_INDEXED_AT_ONCE, "index") as pool:
        archives = list(pool.map(lambda name: open_archive(folder / name), names))
    stems = [name[:-4] for name in names]
    for archive in archives:
        _refuse_as_class(archive, options.labels is not None or all(map(canonical_split, stems)))
    first_rows = np.cumsum([0, *(len(one.names) for one in archives[:-1])]).tolist()
    whole = replace(
        archives[0],
        path=folder,
        file_bytes=0,
        names=pa.concat_arrays(
            [pc.binary_join_element_wise(s, a.names, "/") for s, a in zip(stems, archives, strict=True)]
        ),
        offsets=np.concatenate([one.offsets for one in archives]),
        sizes=np.concatenate([one.sizes for one in archives]),
        contents={k + r: t for k, a in zip(first_rows, archives, strict=True) for r, t in a.contents.items()},
        notes=tuple(f"{one.path.name}: {note}" for one in archives for note in one.notes),
        raw_bytes=0,
        replaced=(),
        folders=(),
        tars={stem: one.file_bytes for stem, one in zip(stems, archives, strict=True)},
        inside=(*stems, *(name for one in archives for name in one.inside)),
    )
    if not isinstance(whole, zips.ZipArchive):
        return whole
    inside = {
        s: a.members[""] for s, a in zip(stems, archives, strict=True) if isinstance(a, zips.ZipArchive)
    }
    return replace(whole, members=inside)


def _kind_of(archive: Archive) -> str:
    if isinstance(archive, SquashedTree):
        return "squashfs file"
    return "zip" if isinstance(archive, zips.ZipArchive) else "tar"


def _refuse_as_class(archive: Archive, is_no_class: bool) -> None:
    """Raise SourceError if a tar in a folder cannot be one class, since its labels would be wrong."""
    if archive.is_ours:
        got, next_step = "is a shard of pack", "Give the folder a name that ends in .tars"
    elif archive.compression:
        got, next_step = f"is compressed ({archive.compression})", "Decompress the tars"
    elif not is_no_class and len(tops := folders_of(archive.names)) > 1:
        got = f"holds {plural(len(tops), 'folder')} ({first_few(tops, len(tops))})"
        next_step = "If they are shards of one set, give a table of labels (--labels)" + (
            ", or end the folder's name in .tars" * (_kind_of(archive) == "tar")
        )
    else:
        return
    expected = f"a plain {_kind_of(archive)} of one class"
    raise SourceError(f"{archive.path} {got}", expected=expected, next_step=next_step)


def samples_of(archive: Archive, options: SourceOptions) -> Archive:
    """The files of an archive that are samples.

    Raises:
        SourceError: There are none.
    """
    samples = archive.select(archive.having(options.suffixes))
    if not len(samples.names):
        there = in_words(by_suffix(archive.names.to_pylist()))
        raise SourceError(
            f"{archive.path} is no data set: it holds {there} and no images",
            expected=f"files ending in {', '.join(options.suffixes)}",
            next_step="Check the path, or name the suffixes of your samples (--suffix)",
        )
    return samples


def from_archive(archive: Archive, options: SourceOptions) -> Source:
    """An indexed archive as a source, labelled by side files or else by class folders."""
    options.refuse_unsupported("a folder of archives" if archive.tars else "a tar", archive.path)
    if options.labels is not None and not archive.is_ours:
        return _with_table(archive, options)
    if options.labels is not None or options.columns:
        raise SourceError(
            f"{archive.path} {'was made by pack' if archive.is_ours else 'has no table for --field'}",
            expected="a table of labels for the files inside (--labels), and --field for its columns",
            next_step="Give both, or neither" if not archive.is_ours else "Add columns with annotate",
        )
    if archive.is_ours:
        return _annotated_source(fields.read(archive), options)
    refuse_if_strict(archive.notes, options, archive.path)
    options, notes = _with_suffix(archive, options)
    samples_of(archive, options)
    with raised_as(FormatError, SourceError):
        annotated = fields.read(archive, options.suffixes, targets=not options.unlabelled)
    if any(annotated.kinds) and not _has_classes(archive, annotated, options):
        source = _annotated_source(*_of_split(annotated, options))
        return replace(source, notes=notes + source.notes)
    refuse_if_strict(archive.notes + annotated.notes, options, archive.path)
    found = _by_folder(archive, annotated, options)
    if not (found.classes or options.unlabelled or found.split == "test" or annotated.pictured):
        count, expected = len(annotated.data.names), "one folder per class, or a .cls file for each image"
        raise no_classes(archive.path, count, expected, options)
    samples = annotated.select(found.keep)
    notes += _unread(archive, annotated, samples, options)
    notes += archive.notes + annotated.notes + found.notes + samples.further_files()
    if not (found.classes or options.unlabelled):
        notes += (f"no targets: label {UNLABELLED} for all",)
    return _source(samples, found.labels, found.split, found.classes, "tarball", notes)


def _unread(
    archive: Archive, annotated: fields.Annotated, samples: fields.Annotated, options: SourceOptions
) -> tuple[str, ...]:
    """Refuse members that name samples and were not read; those of a compressed archive are not opened."""
    others = archive.names.filter(pc.invert(pc.is_in(archive.names, annotated.files().names)))
    if any(annotated.metas):  # the JSON objects of the samples were read
        objects = pc.ends_with(others, ".json")
        own = pc.is_in(_stems(others), _stems(annotated.data.names))
        others = others.filter(pc.invert(pc.and_(objects, own)))
    store = TarStore(archive)
    read = (lambda name: b"") if store.sequential else store.head
    return declarations.check(
        Beside(archive.path, others, annotated.data.names, samples.data.names, read=read), options
    )


def _stems(names: pa.StringArray) -> pa.StringArray:
    """The names up to the first dot of their last part, by which webdataset groups members."""
    return pc.replace_substring_regex(names, r"^((?:.*/)?[^./]*)\..*$", r"\1")


def _with_table(archive: Archive, options: SourceOptions) -> Source:
    """Samples labelled by a table elsewhere, in the order of the archive."""
    options, notes = _with_suffix(archive, options)
    samples = samples_of(archive, options)
    files = tables.Files(samples.names, archive.names, samples.sizes, TarStore(archive))
    return tables.join_files(archive.path, files, options, notes + archive.notes)


def _with_suffix(archive: Archive, options: SourceOptions) -> tuple[SourceOptions, tuple[str, ...]]:
    """The options with the suffix of most data files, if there are no images; and a note on it."""
    if archive.having(IMAGE_SUFFIXES).any():
        return options, ()
    return with_data_suffix(options, by_suffix(archive.names.to_pylist()))


def _by_folder(archive: Archive, annotated: fields.Annotated, options: SourceOptions) -> Labelled:
    """Label samples as if the archive were unpacked."""
    samples = annotated.data
    others = archive.names.filter(pc.invert(pc.is_in(archive.names, annotated.files().names)))
    store = TarStore(samples)
    look = None if store.sequential else store.head
    files = Files(archive.path, samples.names, others, archive.folders, look, "--source tarball")
    trusted = options.kind != "auto"
    if options.unlabelled:
        return by_folder(files, options.split, no_classes=True, strict=options.strict, trusted=trusted)
    return by_name.label(files, [annotated], options.split, named_by_tars=trusted, strict=options.strict)


def _has_classes(archive: Archive, annotated: fields.Annotated, options: SourceOptions) -> bool:
    """Whether samples with captions are in class folders too, and the user chose these.

    Raises:
        SourceError: They are, and the user chose neither.
    """
    folders = set(folders_of(annotated.data.names)) - set(archive.inside)  # tars with texts are shards
    if any(label is not None for label in annotated.labels) or len(folders) < 2:
        return False
    return bool(_by_folder(archive, annotated, options).classes)


def _of_split(annotated: fields.Annotated, options: SourceOptions) -> tuple[fields.Annotated, SourceOptions]:
    """The samples of one split, if the folders of an archive are splits; else all."""
    names, tops = annotated.data.names, folders_of(annotated.data.names)
    if len(tops) < 2 or len({canonical_split(top, tops) for top in tops} - {None}) < len(tops):
        return annotated, options
    chosen, notes = choose_split(tops, options.split, annotated.data.path)
    keep = as_mask(pc.starts_with(names, f"{chosen}/"))
    kept = replace(annotated.select(keep), notes=annotated.notes + notes)
    return kept, replace(options, split=canonical_split(chosen, tops))


def _annotated_source(annotated: fields.Annotated, options: SourceOptions) -> Source:
    """A source whose targets are members with the stem of the sample, as webdataset and `pack` store them."""
    data = annotated.data
    with raised_as(FormatError, SourceError):
        kind, more = fields.target_kind([annotated], data.path)
    without = [] if options.unlabelled else annotated.without(kind)
    if without and options.strict:
        raise SourceError(
            f"{data.path} has {plural(len(without), 'sample')} without a target: "
            f"{first_few(without, len(without))}",
            expected="a .cls, .txt or .json member for each",
            next_step="Leave out --strict to take them unlabelled",
        )
    targets = [UNLABELLED] * len(data.names) if options.unlabelled else annotated.targets(kind)
    split = options.split or data.record.get("schema", {}).get("split") or "train"
    more += by_name.ignored_folders([annotated], kind, data.path) + fields.unlabelled([annotated], kind)
    notes = data.notes + annotated.notes + more + annotated.further_files()
    classes = provenance.class_names(data.record)
    return _source(annotated, targets, split, classes, "webdataset tar", notes)


def _source(
    annotated: fields.Annotated,
    targets: object,
    split: str,
    classes: tuple[str, ...],
    kind: str,
    notes: tuple[str, ...],
) -> Source:
    """The samples of an archive as a source."""
    samples, metas, values = annotated.data, annotated.metas, annotated.values
    manifest = Manifest.from_columns(
        samples.names,
        targets,
        name=samples.path.name.partition(".")[0] or "dataset",
        split=split,
        classes=classes,
        sizes=samples.sizes,
        metas=[json.loads(text) if text else None for text in metas] if any(metas) else None,
        blobs={name: each.data.names for name, each in annotated.blobs.items()},
        values={} if values is None else {name: values[name] for name in values.column_names},
    )
    store = TarStore(annotated.files())
    return Source(manifest, store, kind, notes, samples.path, member_suffixes=annotated.member_suffixes)


class TarStore(NamedStore):
    """Reads the files of a tar by name; a plain one at random, also from threads and forked workers.

    Of a folder of tars, those read last stay open. A compressed tar is read sequentially; each pass starts at
    its first file.

    Args:
        archive: The index, from `open_archive` or `open_folder`.
    """

    def __init__(self, archive: Archive) -> None:
        super().__init__(archive.path)
        self.kind = f"folder of {_kind_of(archive)}s" if archive.tars else _kind_of(archive)
        self.sequential = archive.compression is not None
        self._archive = archive
        self._open = lru_cache(_TARS_OPEN_AT_ONCE)(self._opened)

    def _names(self) -> pa.StringArray:
        return self._archive.names

    def size(self, path: str) -> int:
        """Bytes of one sample, from the index."""
        return int(self._archive.sizes[self._row(path)])

    def read_into(self, path: str, buffer: memoryview) -> int:
        """Read one file into the start of `buffer`; see `ByteStore.read_into`."""
        row = self._row(path)
        start, size = int(self._archive.offsets[row]), int(self._archive.sizes[row])
        if size > len(buffer):
            return size  # without moving in a stream, for the call with a larger buffer
        try:
            opened = self._open(path.partition("/")[0] if self._archive.tars else "")
            if not isinstance(opened, ByteFile):
                opened.read_into(start, buffer[:size])
                return size
            got = opened.read_into(start, buffer[:size])
        except FormatError as error:  # a context would cost a microsecond a sample
            raise SourceError(error.got, expected=error.expected, next_step=error.next_step) from error
        if got != size:
            raise SourceError(
                f"{path} in {self.describe()} ends after {got:,} of {size:,} bytes",
                expected="a whole archive",
                next_step="Copy or download it again",
            )
        return size

    def head(self, path: str) -> bytes:
        """The first bytes of a sample: enough for the header of a picture."""
        row = self._row(path)
        start, size = int(self._archive.offsets[row]), int(self._archive.sizes[row])
        opened = self._open(path.partition("/")[0] if self._archive.tars else "")
        stop = start + min(size, HEAD_BYTES)
        return opened.fetch(start, stop) if isinstance(opened, ByteFile) else opened.read(start, stop)

    def _opened(self, tar: str) -> ByteFile | StreamedStore | zips.ZippedFile | SquashedFile:
        archive = self._archive
        if isinstance(archive, SquashedTree):
            return SquashedFile(self.path)
        if archive.compression is not None:
            return StreamedStore(self.path, archive.compression, archive.raw_bytes)
        file = ByteFile(self.path / f"{tar}.{_kind_of(archive)}" if tar else self.path, "pread")
        expected_bytes = archive.tars.get(tar, archive.file_bytes)
        if file.size != expected_bytes:
            raise SourceError(
                f"{file.path} has {file.size:,} bytes",
                expected=f"the {expected_bytes:,} bytes it had when it was indexed",
                next_step="Run it again: the archive was changed in the meantime",
            )
        return zips.ZippedFile(file, archive.members[tar]) if isinstance(archive, zips.ZipArchive) else file

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_open": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _open=lru_cache(_TARS_OPEN_AT_ONCE)(self._opened))
