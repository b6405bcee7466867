"""squashfs: one file that the kernel, FUSE and this package read as a tree of files.

Each sample is a file at its key, so `mount` and `unsquashfs` give the tree back. What a tree cannot store
(targets, order, JSON objects, provenance) is in a table between the data of the files and the inodes. It
belongs to no file, so that programs that read the tree see the tree alone:

    cat/1.jpg  dog/2.jpg ...    the samples, stored raw one after the other in the order of packing
    cat/1.mask.png ...          their further files, each after the first of its sample
    a text                      how to read the table without this package
    an Arrow file               key, label or captions, meta, values, and where each file's bytes begin
    32 bytes                    where the Arrow file is; the inode table follows

A sample that is stored raw and in one piece is a slice of the mapped file or one `pread`; `pysquashfs`
assembles the others. With its table, a raw squashfs file of a million samples opens in milliseconds: no inode
needs to be read. Older files of ours have the table as the file `TABLE`.

A squashfs file of another program is indexed by the rules of a tar, so a source reads it as it reads one.
Opened in place, its images (by suffix) are samples; if there are none, all files are. Their class folders
give the labels, as those of any other source.

The traps: squashfs has no checksum of its data, so a flipped byte is returned as if it were right. The
content digest beside the file finds it. If forked workers share a descriptor, and each seeks and then reads,
they get bytes of one another's samples; every read here names its position. A tree that is unpacked and
packed again by another tool has no table, and its labels are those of its class folders. A class may consist
of links to the files of another one, which a reader of files alone would lose. And names are those of a file
system: a component has at most 255 bytes, and `a` and `a/b` cannot both exist. Notebook 06 teaches the
format.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from pysquashfs import SquashFS, layout, superblock
from pysquashfs.errors import DamagedImageError, MissingToolError, SquashFSError
from pysquashfs.image_file import ImageFile
from pysquashfs.index import RAW
from pysquashfs.reading import spans
from pysquashfs.writer import ImageWriter, Settings
from pysquashfs.writer.settings import DEFAULT_BLOCK_BYTES
from pysquashfs.writer.tree import MAX_PATH_BYTES
from smallfiles.arrays import as_integers, from_numpy
from smallfiles.errors import (
    DamagedFileError,
    FormatError,
    MissingPackageError,
    SmallfilesError,
    SourceError,
    UsageError,
    raised_as,
    refuse_shortage,
)
from smallfiles.folders import IMAGE_SUFFIXES
from smallfiles.formats.bytefile import Access, ByteFile, damaged
from smallfiles.formats.embedded import Columns, EmbeddedTable, TablePlace, load, pieces, place_column
from smallfiles.formats.output import (
    OutputFile,
    SampleColumns,
    file_names,
    packed,
    paths_in_tree,
    unwritable,
    write_table,
)
from smallfiles.formats.reader import TableReader
from smallfiles.formats.table import Extents, Place, Stored, record_of
from smallfiles.formats.tar.archive import Archive, columns_of, rows_of_texts
from smallfiles.formats.tar.headers import Link, Members
from smallfiles.manifest.class_folders import by_folder
from smallfiles.manifest.listing import Files
from smallfiles.samples import Buffer, Packed, Sample, Schema

TABLE = ".smallfiles/samples.arrow"
"""Path of the table in files that were packed when the table was still a file of the tree."""

ALIGNMENT = 64
_TEXT = """\

This image was packed by "smallfiles". Every sample is a file at its own path.
An Arrow file after this text has the keys, labels (or captions) and where they came from:

    import pyarrow as pa, struct
    image = open("x.sqfs", "rb").read()
    (end,) = struct.unpack_from("<Q", image, 64)
    start, stop = struct.unpack_from("<2Q", image, end - 24)
    table = pa.ipc.open_file(image[start:stop]).read_all()
    print(table, table.schema.metadata[b"smallfiles"])
"""

_FLAG = "--source folder with the tree that was unpacked from it"


def readme(position: int) -> bytes:
    """Return a text for people who look inside the file, padded with line feeds.

    The padding makes what follows the text begin at a multiple of `ALIGNMENT` bytes. `position` is the offset
    of the text in the file.
    """
    text = _TEXT.encode("ascii")
    return text + b"\n" * (-(position + len(text)) % ALIGNMENT)


@contextmanager
def as_sentences() -> Iterator[None]:
    """Turn an error of `pysquashfs` into an error of this package with the same message."""
    try:
        yield
    except SquashFSError as error:
        refuse_shortage(error, "the squashfs file")
        kind: type[SmallfilesError] = FormatError
        if isinstance(error, DamagedImageError):
            kind = DamagedFileError
        elif isinstance(error, MissingToolError):
            kind = MissingPackageError
        same = kind(error.got, expected=error.expected, next_step=error.next_step)
        if isinstance(cause := error.__cause__, ImportError):  # our sentence names the version too
            same = MissingPackageError.of_import(cause, error.expected.removeprefix("it for ")) or same
        raise same from error


@dataclass(frozen=True)
class Foreign:
    """The samples in a squashfs file that another program wrote.

    Args:
        keys: The keys of all samples.
        labels: The class number of each sample.
        classes: Names of the classes.
        rows: The number of each sample's file among all files.
        split: Canonical name of the split.
        ignored: Number of files that are not samples of this split.
    """

    keys: pa.StringArray
    labels: pa.Array
    classes: tuple[str, ...]
    rows: list[int]
    split: str
    ignored: int

    def columns(self, path: Path) -> Columns:
        """Return keys and labels as a table, as it would be in a file that this package packed."""
        views: list[Buffer] = []
        write_table(pa.record_batch([self.keys, self.labels], ["key", "label"]), views.extend)
        return Columns(path, b"".join(views))


def find_samples(image: SquashFS, split: str | None) -> Foreign:
    """Find the samples in a squashfs file of another program, and their labels.

    Args:
        image: The squashfs file.
        split: The requested split, or None.

    Raises:
        FormatError: The split does not exist or must be chosen, or a name or a link makes no sense.
    """
    archive = index(image)
    are_images = archive.having(IMAGE_SUFFIXES)
    are_images = are_images if are_images.any() else ~are_images
    chosen, others = archive.select(are_images), archive.select(~are_images)
    with raised_as(SourceError, FormatError):
        files = Files(image.path, chosen.names, others.names, archive.folders, classes_flag=_FLAG)
        found = by_folder(files, split)
    kept = np.flatnonzero(found.keep)
    labels = from_numpy(found.labels.astype(np.int64))
    keys = chosen.names.take(from_numpy(kept))
    rows = chosen.offsets[kept].tolist()
    return Foreign(keys, labels, found.classes, rows, found.split, len(image) - len(kept))


class SquashedTree(Archive):
    """The files of a squashfs file, in the form of an archive.

    `offsets` are their numbers in the squashfs file.
    """


def index(image: SquashFS) -> SquashedTree:
    """Return the files of a squashfs file, including those that its links lead to, and without hidden files.

    Raises:
        FormatError: A name is not portable, or a link leads out of the tree.
    """
    files, others, found = image.index.files, image.index.others, Members()
    for row in range(len(files)):
        found.names.append(files.names.raw(row))
    found.offsets, found.sizes = array("q", range(len(files))), array("q", files.size.tolist())
    for row, kind in enumerate(others.kind.tolist()):
        name = others.names.raw(row)
        if kind == layout.DIRECTORY:
            found.folders.append(name)
        elif kind == layout.SYMLINK:
            first, count = int(others.target[row]), int(others.target_bytes[row])
            found.links.append(Link(name, others.targets[first : first + count].tobytes(), False, 0))
        else:
            found.skipped[layout.INODE_TYPES[kind]] += 1
            found.examples.append(os.fsdecode(name))
    texts = rows_of_texts(image.path, image.index.image_bytes, found)
    found.contents.update((row, image.read_at(row)) for row in texts)
    return SquashedTree(**vars(columns_of(image.path, None, image.index.image_bytes, found)))


class SquashedFile:
    """An open squashfs file whose files are read by their numbers."""

    def __init__(self, path: Path) -> None:
        self._image = SquashFS(path)

    def read(self, start: int, stop: int) -> bytes:
        """Return the first `stop - start` bytes of file number `start`."""
        with as_sentences():
            return self._image.read_at(start)[: stop - start]

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Read the whole file number `start` into a buffer of the file's size, one block at a time."""
        got = 0
        with as_sentences():
            for piece in self._image.chunks(self._image.paths[start]):
                buffer[got : got + len(piece)] = piece
                got += len(piece)


def locate(path: Path, *, split: str | None = None, access: Access = "auto") -> SquashFSTable:
    """Open a squashfs file, and find the samples in it.

    Args:
        path: The file.
        split: The split to read, for a file of another program whose folders are splits.
        access: How samples that are stored raw are fetched.

    Raises:
        FormatError: The file is damaged, or the split must be chosen.
    """
    file = ByteFile(path, access)
    with as_sentences():
        block = superblock.read(ImageFile(path))
        place = TablePlace.find(file, block.inode_table)
        columns = None if place is None else load(file, place)
        if place is not None and columns is not None and "start" in columns.schema.names:
            return SquashFSTable(file, block, columns, columns.extents(file, place.start))
        # Without an index file beside it, since the squashfs file may be about to be renamed.
        image = SquashFS(path)
        if columns is None and TABLE in image.paths:
            columns = Columns(path, image.read(TABLE))
        if columns is not None:
            return SquashFSTable(file, block, columns, _found_by_name(file, columns, image), image)
        found = find_samples(image, split)
        files = {"": _FilesByInode(file, image, found.rows)}
        return SquashFSTable(file, block, found.columns(path), files, image, found)


def _found_by_name(file: ByteFile, columns: Columns, image: SquashFS) -> dict[str, Extents]:
    """Find the files of all samples by their names, for files that are compressed or in several pieces."""
    extents: dict[str, Extents] = {}
    for field, suffix in columns.suffixes.items():
        names = paths_in_tree(columns["key"], field, suffix)
        rows = [image.index.files.names.find(name.as_py().encode()) for name in names]
        if -1 in rows:
            name = names[rows.index(-1)].as_py()
            raise damaged(file.path, f"{rows.count(-1)} samples are not in it, {name!r} for one")
        extents[field] = files = _FilesByInode(file, image, rows, suffix)
        stated = columns.sizes(field)
        if stated is not None and (np.asarray(files.places[1]) != stated).any():
            raise damaged(file.path, "samples have other sizes than its table says")
    return extents


class _FilesByInode(Stored):
    """Files in any squashfs file, some of which may be compressed or in several pieces.

    Args:
        file: The squashfs file.
        image: The squashfs file with its inodes.
        rows: The number of each file in the squashfs file.
        suffix: Suffix of the files.
    """

    def __init__(self, file: ByteFile, image: SquashFS, rows: list[int], suffix: str = "") -> None:
        wanted, files = np.array(rows, np.int64), image.index.files
        starts, stored = spans(image.index, wanted)
        super().__init__(file, lambda: (starts, files.size[wanted]), suffix)
        self._file, self._image = file, image
        self._stored, self._rows = as_integers(stored), as_integers(wanted)
        self._raw = memoryview((files.flags[wanted] & RAW != 0).tobytes())

    def place(self, row: int) -> Place:
        if self._raw[row]:
            return super().place(row)
        _, start, stop = super().place(row)
        source = _Decoded(self._file, self._image, self._rows[row], self._stored[row], stop - start)
        return source, start, stop

    read = Extents.read  # through `place`


class _Decoded:
    """A file that is compressed or in several pieces. Positions count from where its stored bytes begin."""

    is_stored = False

    def __init__(self, file: ByteFile, image: SquashFS, number: int, stored: int, size: int) -> None:
        self.path, self.size = file.path, size
        self._file, self._image, self._number, self._stored = file, image, number, stored

    def read(self, start: int, stop: int) -> bytes:
        """Return the whole file, decoded. `start` and `stop` must be its first byte and its end."""
        with as_sentences():
            return self._image.read_at(self._number)

    def prefetch(self, start: int, stop: int) -> None:
        """Ask the kernel to fetch the stored bytes."""
        self._file.prefetch(start, start + self._stored)


class SquashFSTable(EmbeddedTable):
    """The table of samples of a squashfs file.

    Args:
        file: The squashfs file.
        block: The superblock of the file.
        columns: Keys and values.
        files: The extents of each field's files.
        image: The squashfs file with its inodes. It is None if the inodes were not needed.
        other: The samples that were found in a file of another program. It is None for our files.
    """

    format = "squashfs"

    def __init__(
        self,
        file: ByteFile,
        block: Any,
        columns: Columns,
        files: Mapping[str, Extents],
        image: SquashFS | None = None,
        other: Foreign | None = None,
    ) -> None:
        super().__init__(file.path, columns, files, file.size)
        self.in_stored_order = image is None
        self._block, self._image, self._other = block, image, other

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names from the table, or from the folders."""
        return super().classes if self._other is None else self._other.classes

    def about(self) -> dict[str, Any]:
        found: dict[str, Any] = {"layout": "raw, in one piece", "block_bytes": self._block.block_bytes}
        if self._image is None:
            return found
        costs = self._image.info()
        found |= {"layout": self._block.compressor, "findings": costs["findings"]}
        found["read_amplification"] = round(costs["read_amplification"], 3)
        if self._other is not None:
            found |= {"layout": f"foreign ({self._block.compressor})", "split": self._other.split}
            found["files_left_aside"] = self._other.ignored
        return found


def tree_of(path: Path) -> SquashedTree | None:
    """Return the files of a squashfs file that another program wrote. Return None if `pack` wrote it.

    Raises:
        FormatError: The file is damaged, a name is not portable, or a link leads out of the tree.
    """
    with as_sentences():
        end = superblock.read(ImageFile(path)).inode_table
        if TablePlace.find(ByteFile(path, "pread"), end) is not None:
            return None
        image = SquashFS(path)
        return None if TABLE in image.paths else index(image)


@dataclass(frozen=True)
class Options:
    """How to lay out a squashfs file. The defaults suit photographs, which do not become smaller.

    Args:
        compression: `none`; or `gzip` or `zstd` for data that compresses (JSON, raw pixels).
        level: Level of the compressor. None means its default.
        block_bytes: The unit of compression in bytes, a power of two from 4,096 to 1,048,576.
        fragments: Whether to put the ends of files into shared blocks. The file becomes smaller, and slow to
            read at random.
    """

    compression: Literal["none", "gzip", "zstd"] = "none"
    level: int | None = None
    block_bytes: int = DEFAULT_BLOCK_BYTES
    fragments: bool = False

    def __post_init__(self) -> None:
        if self.compression not in ("none", "gzip", "zstd"):
            raise UsageError(
                f"the compression is {self.compression!r}",
                expected="none, gzip or zstd",
                next_step="Choose none for images, zstd for data that compresses",
            )
        try:
            self.settings()
        except MissingToolError as error:
            with as_sentences():
                raise error
        except SquashFSError as error:
            raise UsageError(error.got, expected=error.expected, next_step=error.next_step) from error

    def settings(self) -> Settings:
        """Return these options as the settings of `pysquashfs`."""
        return Settings(self.compression, self.level, self.block_bytes, self.fragments)


def write(
    samples: Iterable[Sample],
    out: Path,
    *,
    schema: Schema,
    options: Options | None = None,
    digest: bool = True,
) -> Packed:
    """Write samples into one squashfs file.

    A million files become one, so that a parallel file system sees one open instead of a million. Programs
    that need a tree can mount the file.

    Args:
        samples: The samples, in the order in which they are stored.
        out: A path that does not exist.
        schema: What is packed.
        options: Compression and blocks.
        digest: Whether to write the content digest beside the file.

    Returns:
        What was written.

    Raises:
        FormatError: A key cannot be the name of a file or collides with another name, or a sample does not
            fit.
        ResourceError: There is no space or no permission.
    """
    options = options or Options()
    settings = options.settings()
    placed = settings.raw and not settings.fragments
    facts = ("bytes", "start")[: 1 + placed]
    places = [place_column(blob.name, what) for blob in schema.all_blobs for what in facts]
    columns = SampleColumns(out, schema, more=dict.fromkeys(places, pa.int64()))
    count = 0
    with OutputFile(out, digest=digest) as file, as_sentences():
        writer = ImageWriter(file.append, settings)
        try:
            for sample in samples:
                columns.add(sample, *_places(sample, file.position, placed))
                for name, data in _files(sample, schema, out):
                    writer.add(name, data)
                count += 1
            payload = writer.bytes
            file.rewrite(writer.close(_record(file, columns, schema, options)))
        finally:
            writer.abandon()
        return packed(out, "squashfs", count, payload, file.finish())


def _places(sample: Sample, position: int, placed: bool) -> Iterator[int]:
    """Yield the size in bytes of each file of a sample, followed by its offset if `placed` is true.

    The files follow each other without gaps from `position` on.
    """
    for data in sample.blobs:
        yield len(data)
        if placed:
            yield position
        position += len(data)


def _files(sample: Sample, schema: Schema, out: Path) -> list[tuple[str, Buffer]]:
    """Return the name and the bytes of each file of a sample, after checking all names."""
    names = file_names(sample, schema, out, ())
    for name in names:
        if len(name.encode()) > MAX_PATH_BYTES:
            raise unwritable(name, out, f"has more than {MAX_PATH_BYTES:,} bytes")
    return list(zip(names, sample.blobs, strict=True))


def _record(file: OutputFile, columns: SampleColumns, schema: Schema, options: Options) -> Iterator[Buffer]:
    """Yield the parts that follow the data: a text, the table, and 32 bytes that say where the table is."""
    yield readme(file.position)
    start = file.position
    yield from pieces(columns, record_of("squashfs", schema, options))
    yield TablePlace(start, file.position, file.position).dumps()


def open(path: Path, *, split: str | None = None, access: Access = "auto") -> TableReader:
    """Open a squashfs file of this package or of any other program.

    Args:
        path: The file.
        split: The split to read, for a file of another program whose folders are splits. If it is None, the
            only split is read, or `train`.
        access: `mmap`, `pread`, or `auto` to choose by file system. This applies to samples stored raw.

    Returns:
        The reader. It opens the file at first use.
    """
    return TableReader(path, partial(locate, split=split, access=access))
