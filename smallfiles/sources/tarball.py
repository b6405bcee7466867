"""Any tar or zip file as a source, read in place: nothing is unpacked, no inode is spent.

Labels come from class folders (as in ImageFolder), from webdataset's `.cls`, `.txt` and `.json` members, or
are missing. A tar of tars and a folder of tars or zips, one per class, are indexed as a whole; a tar.gz is
read sequentially. Python's zipfile reads the directory of a zip, and its members are read here by position.

The trap: unpacking 1.28 million files onto a parallel file system costs hours and a quota of inodes, although
a plain tar allows random access. Every read names its position (`preadv`), so that threads and forked
processes may share a descriptor. A zip of a few megabytes may claim to hold petabytes, also by naming the
same bytes many times. So members that overlap are refused, and nothing is inflated beyond its size.
Notebook 05 compares this with unpacking.
"""

from __future__ import annotations

import json
import stat
import struct
import zipfile
import zlib
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
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
    is_ignored,
)
from smallfiles.formats import tar
from smallfiles.formats.bytefile import ByteFile, RawFile, damage_reported, damaged
from smallfiles.formats.squashfs import SquashedFile, SquashedTree
from smallfiles.formats.table import recorded_classes
from smallfiles.formats.tar import fields
from smallfiles.formats.tar.archive import Archive, columns_of, index, rows_of_texts
from smallfiles.formats.tar.fields import TarSamples
from smallfiles.formats.tar.headers import Link, Members
from smallfiles.formats.tar.streams import StreamedStore
from smallfiles.links import Boundary
from smallfiles.manifest.class_folders import Labelled, folders_of
from smallfiles.manifest.listing import HEAD_BYTES, Files
from smallfiles.progress import plural
from smallfiles.samples import UNLABELLED
from smallfiles.sources import declarations, tables
from smallfiles.sources.folder import labels_of, no_classes, no_samples
from smallfiles.sources.record import (
    NamedStore,
    Samples,
    Source,
    refuse_if_strict,
    source_of,
    with_data_suffix,
)
from smallfiles.sources.scanning import Notes, in_flight, list_folder
from smallfiles.storage import ReadingPool

_TARS_INDEXED_AT_ONCE = 32
_TARS_OPEN_AT_ONCE = 64  # ImageNet-21k has 20,000, and a process may often open 1,024 files


def open_archive(path: Path) -> Archive:
    """Index a tar or a zip."""
    with raised_as(FormatError, SourceError):
        return index_zip(path) if path.suffix.lower() == ZIP else index(path, are_shards=False)


def without_ignored(archive: Archive, options: SourceOptions) -> Archive:
    """Leave out the files of an archive that the patterns of `--ignore` match.

    Raises:
        UsageError: A pattern matches nothing.
    """
    if not options.ignore:
        return archive
    names = archive.names.to_pylist()
    ignored = np.array([is_ignored(name, options.ignore) for name in names], bool)
    rows = np.flatnonzero(~ignored)
    found = archive.names.filter(pa.array(ignored)).to_pylist()
    notes = declarations.ignored_note(archive.path, found, options)
    kept = {new: text for new, row in enumerate(rows.tolist()) if (text := archive.contents.get(row))}
    return replace(archive.take(rows), contents=kept, notes=archive.notes + notes)


def archives_in(folder: Path, ignore: Sequence[str] = ()) -> list[str]:
    """Return the names of the tars in a folder, or else of its zips.

    Return none if the folder contains folders or images.
    """
    listed = list_folder(folder, ignore)
    if listed.folders or any(name.lower().endswith(IMAGE_SUFFIXES) for name in listed.files):
        return []
    tars, zipped = ([n for n in listed.files if n.endswith(suffix)] for suffix in (".tar", ZIP))
    return tars or zipped


def load_folder(folder: Path, options: SourceOptions) -> Source:
    """Read a folder of tars, one per class, as the outer tar of ImageNet-21k unpacks to.

    Args:
        folder: The tars or zips; the key of a sample is `tar/member`. Its class is the name of its tar where
            these can be classes (see `formats.tar`), or where `options.kind` is `tarball`.
        options: See `SourceOptions`.

    Raises:
        SourceError: There are none, one is damaged, or they are not one per class.
    """
    archive = open_folder(folder, options)
    kinds, others = f"{_kind_of(archive)}s", declarations.names_beside(folder, archives_in(folder), options)
    notes = (f"left out: {plural(len(others), 'file')} other than {kinds}",) if len(others) else ()
    refuse_if_strict(notes, options, folder)
    source = from_archive(archive, options)
    if source.kind == "tarball" and source.manifest.classes:
        notes = (f"classes are named by the {kinds}", *notes)
    source = replace(source, kind=f"folder of {kinds}", notes=source.notes + notes)
    keys = source.manifest.paths
    unread = declarations.check(Files(folder, keys, others), keys, options)
    return replace(source, notes=(*source.notes, *unread))


def open_folder(folder: Path, options: SourceOptions) -> Archive:
    """Index the tars or zips of a folder as one archive.

    Raises:
        SourceError: There are no tars or zips, or they cannot be read as one set.
    """
    names = archives_in(folder, options.ignore)
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
    if not isinstance(whole, ZipArchive):
        return whole
    inside = {s: a.members[""] for s, a in zip(stems, archives, strict=True) if isinstance(a, ZipArchive)}
    return replace(whole, members=inside)


def _kind_of(archive: Archive) -> str:
    if isinstance(archive, SquashedTree):
        return "squashfs file"
    return "zip" if isinstance(archive, ZipArchive) else "tar"


def _refuse_as_class(archive: Archive, is_no_class: bool) -> None:
    """Raise SourceError if a tar in a folder cannot be one class, because its labels would be wrong."""
    if archive.is_ours:
        got, next_step = "is a shard of pack", "Give the folder a name that ends in .tars"
    elif archive.compression:
        got, next_step = f"is compressed ({archive.compression})", "Decompress the tars"
    elif not is_no_class and len(tops := folders_of(archive.names)) > 1:
        got = f"holds {plural(len(tops), 'folder')} ({first_few(tops)})"
        next_step = "If they are shards of one set, give a table of labels (--labels)" + (
            ", or end the folder's name in .tars" * (_kind_of(archive) == "tar")
        )
    else:
        return
    expected = f"a plain {_kind_of(archive)} of one class"
    raise SourceError(f"{archive.path} {got}", expected=expected, next_step=next_step)


def samples_of(archive: Archive, options: SourceOptions) -> Archive:
    """Return an index of the files of an archive that are samples.

    Raises:
        SourceError: The archive has no samples.
    """
    samples = archive.select(archive.having(options.suffixes))
    if not len(samples.names):
        there = in_words(by_suffix(archive.names.to_pylist()))
        raise no_samples(archive.path, f"{there} and no images", options)
    return samples


def from_archive(archive: Archive, options: SourceOptions) -> Source:
    """Make a source of an indexed archive.

    Labels come from members beside the samples, or else from class folders.
    """
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
        annotated = fields.read(archive)
        return _annotated_source(annotated, annotated, options)
    refuse_if_strict(archive.notes, options, archive.path)
    options, notes = _with_suffix(archive, options)
    samples_of(archive, options)
    with raised_as(FormatError, SourceError):
        annotated = fields.read(archive, options.suffixes, targets=not options.unlabelled)
    if any(annotated.kinds) and not _has_classes(archive, annotated, options):
        chosen, options = _of_split(annotated, options)
        return _annotated_source(annotated, chosen, options, notes)
    refuse_if_strict(archive.notes + annotated.notes, options, archive.path)
    found = _by_folder(archive, annotated, options)
    if not (found.classes or options.unlabelled or found.split == "test" or annotated.pictured):
        count, expected = len(annotated.data.names), "one folder per class, or a .cls file for each image"
        raise no_classes(archive.path, count, expected, options)
    samples = annotated.select(found.keep)
    notes += archive.notes + annotated.notes + found.notes + samples.further_files()
    if not (found.classes or options.unlabelled):
        notes += (f"no targets: label {UNLABELLED} for all",)
    columns = {"targets": found.labels, "split": found.split, "classes": found.classes}
    return _source(annotated, samples, "tarball", columns, notes, options)


def _with_table(archive: Archive, options: SourceOptions) -> Source:
    """Make a source whose samples are labelled by a table elsewhere. They are in the order of the archive."""
    options, notes = _with_suffix(archive, options)
    samples = samples_of(archive, options)
    others = archive.names.filter(pc.invert(pc.is_in(archive.names, samples.names)))
    store, sizes = TarStore(archive), samples.sizes
    files = Files(archive.path, samples.names, others, store=store, sizes=sizes, inside=store.head)
    assert options.labels is not None
    return tables.join(files, tables.Metadata(options.labels), options, notes + archive.notes)


def _with_suffix(archive: Archive, options: SourceOptions) -> tuple[SourceOptions, Notes]:
    """Return the options, and a note if they were changed.

    If there are no images, the suffix of samples becomes the most common suffix of data files.
    """
    if archive.having(IMAGE_SUFFIXES).any():
        return options, ()
    return with_data_suffix(options, by_suffix(archive.names.to_pylist()))


def _by_folder(archive: Archive, annotated: TarSamples, options: SourceOptions) -> Labelled:
    """Label samples as if the archive were unpacked."""
    samples = annotated.data
    others = archive.names.filter(pc.invert(pc.is_in(archive.names, annotated.files().names)))
    look = None if samples.compression else TarStore(samples).head
    files = Files(archive.path, samples.names, others, archive.folders, look, "--source tarball")
    trusted = options.kind != "auto"
    if options.unlabelled:
        return labels_of(files, options)
    return tar.label(files, [annotated], options.split, named_by_tars=trusted, strict=options.strict)


def _has_classes(archive: Archive, annotated: TarSamples, options: SourceOptions) -> bool:
    """Check whether samples with captions are also in class folders, and the user chose the folders.

    Raises:
        SourceError: The samples have both, and the user chose neither captions nor class folders.
    """
    folders = set(folders_of(annotated.data.names)) - set(archive.inside)  # tars with texts are shards
    if any(label is not None for label in annotated.labels) or len(folders) < 2:
        return False
    return bool(_by_folder(archive, annotated, options).classes)


def _of_split(annotated: TarSamples, options: SourceOptions) -> tuple[TarSamples, SourceOptions]:
    """Return the samples of the chosen split, and the options with this split.

    If the folders of the archive are not splits, return all samples.
    """
    names, tops = annotated.data.names, folders_of(annotated.data.names)
    if len(tops) < 2 or len({canonical_split(top, tops) for top in tops} - {None}) < len(tops):
        return annotated, options
    chosen, notes = choose_split(tops, options.split, annotated.data.path)
    keep = as_mask(pc.starts_with(names, f"{chosen}/"))
    kept = replace(annotated.select(keep), notes=annotated.notes + notes)
    return kept, replace(options, split=canonical_split(chosen, tops))


def _annotated_source(
    annotated: TarSamples, samples: TarSamples, options: SourceOptions, notes: Notes = ()
) -> Source:
    """Make a source whose targets are members with the stem of the sample.

    webdataset and `pack` store targets this way.
    """
    data = samples.data
    with raised_as(FormatError, SourceError):
        kind, more = fields.target_kind([samples], data.path)
    without = [] if options.unlabelled else samples.without(kind)
    if without and options.strict:
        raise SourceError(
            f"{data.path} has {plural(len(without), 'sample')} without a target: {first_few(without)}",
            expected="a .cls, .txt or .json member for each",
            next_step="Leave out --strict to take them unlabelled",
        )
    columns = {
        "targets": [UNLABELLED] * len(data.names) if options.unlabelled else samples.targets(kind),
        "split": options.split or data.record.get("schema", {}).get("split") or "train",
        "classes": recorded_classes(data.record),
    }
    more += tar.ignored_folders([samples], kind, data.path) + fields.unlabelled([samples], kind)
    notes += data.notes + samples.notes + more + samples.further_files()
    return _source(annotated, samples, "webdataset tar", columns, notes, options)


def _source(
    annotated: TarSamples,
    samples: TarSamples,
    kind: str,
    columns: Mapping[str, Any],
    notes: Notes,
    options: SourceOptions,
) -> Source:
    """Make a source of the chosen samples of an archive. Refuse it if ignored members name the samples."""
    values, others = samples.values, annotated.others or annotated.data.take(np.arange(0))
    files = Files(
        annotated.data.path,
        annotated.data.names,
        others.names,
        store=TarStore(samples.files()),
        classes_flag="--source tarball",
        inside=TarStore(others).head,
        labels_flag="",
    )
    more = {
        "sizes": samples.data.sizes,
        "metas": [json.loads(text) if text else None for text in samples.metas]
        if any(samples.metas)
        else None,
        "blobs": {name: each.data.names for name, each in samples.blobs.items()},
        "values": {} if values is None else {name: values[name] for name in values.column_names},
    }
    suffixes = {"member_suffixes": samples.member_suffixes}
    found = Samples(samples.data.names, kind, {**columns, **more}, notes, more=suffixes)
    return source_of(files, found, options)


class TarStore(NamedStore):
    """Reads the files of a tar, a zip or a squashfs file by name.

    A plain tar is read at random, also from threads and forked workers. In a folder of tars, the tars that
    were read last stay open. A compressed tar is read sequentially, and each pass starts at its first file.

    Args:
        archive: The index that `open_archive` or `open_folder` returned.
    """

    of_process = ("_lookup", "_open")

    def __init__(self, archive: Archive) -> None:
        super().__init__(archive.path)
        self.kind = f"folder of {_kind_of(archive)}s" if archive.tars else _kind_of(archive)
        self.sequential = archive.compression is not None
        self._archive = archive

    def _begin(self) -> None:
        super()._begin()
        self._open = lru_cache(_TARS_OPEN_AT_ONCE)(self._opened)

    def _names(self) -> pa.StringArray:
        return self._archive.names

    def size(self, path: str) -> int:
        """Return the size of one sample in bytes, from the index."""
        return self._place(path)[1]

    def _place(self, path: str) -> tuple[int, int]:
        row = self._row(path)
        return int(self._archive.offsets[row]), int(self._archive.sizes[row])

    def read_into(self, path: str, buffer: memoryview) -> int:
        """Read one file into the start of `buffer`. See `ByteStore.read_into`."""
        start, size = self._place(path)
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
        """Return the first bytes of a file.

        Return no bytes for a file in a compressed archive, which is only read in order.
        """
        if self.sequential:
            return b""
        start, size = self._place(path)
        opened = self._open(path.partition("/")[0] if self._archive.tars else "")
        stop = start + min(size, HEAD_BYTES)
        return opened.fetch(start, stop) if isinstance(opened, ByteFile) else opened.read(start, stop)

    def _opened(self, tar: str) -> ByteFile | StreamedStore | ZippedFile | SquashedFile:
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
        return ZippedFile(file, archive.members[tar]) if isinstance(archive, ZipArchive) else file


ZIP = ".zip"
_HEADER_BYTES = 30
_STEP_BYTES = 1 << 20
_ENCRYPTED, _WINDOWS = 1, 0
_LONGEST_TARGET = 4096  # bytes of a path
_Directory = npt.NDArray[np.void]
_ROW = np.dtype([("offset", "<i8"), ("packed", "<i8"), ("size", "<i8"), ("crc", "<u4"), ("method", "<u2")])


@dataclass(frozen=True)
class ZipArchive(Archive):
    """The files of a zip, or of a folder of zips. `offsets` are the offsets of the headers before the files.

    Args:
        members: The entries of the zip's directory, sorted by offset, by the name of the zip. For a single
            zip, the name is empty.
    """

    members: Mapping[str, _Directory] = field(default_factory=dict)


@dataclass(frozen=True)
class ZippedFile:
    """An open zip whose members are read by the position of their headers."""

    file: ByteFile
    members: _Directory

    def read(self, start: int, stop: int) -> bytes:
        """Return the first `stop - start` bytes of the member at `start`. See `read_into`."""
        buffer = bytearray(stop - start)
        self.read_into(start, memoryview(buffer))
        return bytes(buffer)

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Read the first bytes of the member at `start`.

        The checksum of a member that is read as a whole is checked.

        Raises:
            DamagedFileError: The member differs from its entry in the directory.
        """
        row = bisect_left(self.members["offset"], start)  # numpy would copy the whole column first
        _, packed, size, crc, method = self.members[row].tolist()
        header = self.file.fetch(start, start + _HEADER_BYTES).ljust(_HEADER_BYTES, b"\0")
        begin, got = start + _HEADER_BYTES + sum(struct.unpack("<HH", header[26:])), 0
        with suppress(zlib.error):  # its size is wrong then
            for piece in self._pieces(begin, begin + packed, method):
                rest = buffer[got : got + len(piece)]
                rest[:] = piece[: len(rest)]
                got += len(piece)
                if got > len(buffer) or got == len(buffer) < size:
                    break
        if len(buffer) <= got and len(buffer) < size:
            return
        if not header.startswith(b"PK\3\4") or got != size or zlib.crc32(buffer) != crc:
            raise damaged(self.file.path, f"the member at byte {start:,} is not what its directory says")

    def _pieces(self, begin: int, end: int, method: int) -> Iterator[bytes]:
        """Yield the unpacked bytes of a member, at most a megabyte at a time."""
        unpack = zlib.decompressobj(-zlib.MAX_WBITS)
        for at in range(begin, end, _STEP_BYTES):
            piece = data = self.file.fetch(at, min(at + _STEP_BYTES, end))
            if method != zipfile.ZIP_DEFLATED:
                yield data
                continue
            while data or len(piece) == _STEP_BYTES:
                yield (piece := unpack.decompress(data, _STEP_BYTES))
                data = unpack.unconsumed_tail


def index_zip(path: Path) -> ZipArchive:
    """Index a zip by its directory, and read its annotations.

    Raises:
        FormatError: The zip is damaged or hostile, or needs a password or another compression method.
    """
    with damage_reported(path, "as a zip file:"):
        return _indexed_zip(path, _directory(path))


def _indexed_zip(path: Path, infos: list[zipfile.ZipInfo]) -> ZipArchive:
    found, files, links = Members(), list[zipfile.ZipInfo](), list[tuple[bytes, zipfile.ZipInfo]]()
    for info in infos:
        name = (info.orig_filename if "\0" in info.orig_filename else info.filename).encode()
        if info.create_system == _WINDOWS:  # whose .NET wrote backslashes for years
            name = name.replace(b"\\", b"/")
        if name.endswith(b"/"):
            found.folders.append(name.rstrip(b"/"))
        elif stat.S_ISLNK(info.external_attr >> 16):
            links.append((name, info))
        else:
            found.names.append(name)
            found.offsets.append(info.header_offset)
            found.sizes.append(info.file_size)
            files.append(info)
    stored = [*files, *(info for _, info in links)]
    rows = ((i.header_offset, i.compress_size, i.file_size, i.CRC, i.compress_type) for i in stored)
    file, members = ByteFile(path, "pread"), np.sort(np.fromiter(rows, _ROW, len(stored)), order="offset")
    _refuse_unreadable_zip(path, infos)
    ends = members["offset"] + _HEADER_BYTES + members["packed"]
    if (ends[:-1] > members["offset"][1:]).any():
        raise damaged(path, "members overlap, so that they unpack to more than they are")
    texts = rows_of_texts(path, file.size, found)
    opened = ZippedFile(file, members)
    read = in_flight(
        lambda row: opened.read(found.offsets[row], found.offsets[row] + found.sizes[row]), texts
    )
    found.contents.update(zip(texts, read, strict=True))
    for name, info in links:
        if info.file_size > _LONGEST_TARGET:
            raise damaged(path, f"the target of the link {info.filename} has {info.file_size:,} bytes")
        target = opened.read(info.header_offset, info.header_offset + info.file_size)
        found.links.append(Link(name, target.rstrip(b"\0"), False, info.header_offset))
    return ZipArchive(**vars(columns_of(path, None, file.size, found)), members={"": members})


def _directory(path: Path) -> list[zipfile.ZipInfo]:
    """Return the entries of a zip's directory.

    Names in UTF-8 that are not marked as UTF-8, as macOS writes them, are read as UTF-8 too.
    """
    for encoding in ("utf-8", None):
        try:
            with zipfile.ZipFile(RawFile(ByteFile(path, "pread")), metadata_encoding=encoding) as archive:
                return archive.infolist()
        except UnicodeDecodeError:
            continue
    raise AssertionError("the second encoding has all bytes")


def _refuse_unreadable_zip(path: Path, infos: list[zipfile.ZipInfo]) -> None:
    methods = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
    odd = [
        info.filename for info in infos if info.flag_bits & _ENCRYPTED or info.compress_type not in methods
    ]
    if odd:
        raise FormatError(
            f"{path} has {plural(len(odd), 'member')} encrypted or compressed by a rare method: "
            f"{first_few(odd)}",
            expected="stored or deflated members without a password",
            next_step="Unzip it to a local disk, and pack that folder",
        )
