"""Make the index of an image by a walk of libsquashfs: superblock, folders, inodes, ids and fragments.

The library reads one folder entry and one inode per call, which takes about ten times as long as our own
reader, and it is independent of it. The index has the same columns, and the same checks follow.

The trap: the library believes what it reads. A folder may contain itself, a size may claim gigabytes of block
sizes, and a thousand folders may share one listing. So sizes are added up and limited while it walks.
"""

from __future__ import annotations

from array import array
from contextlib import closing
from dataclasses import dataclass, field
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt

from pysquashfs import layout, superblock
from pysquashfs.directories import FREE_BYTES, MAX_GROWTH, MAX_PATH_BYTES, check_names
from pysquashfs.errors import DamagedImageError
from pysquashfs.image_file import ImageFile
from pysquashfs.index import Files, Index, Others, block_counts
from pysquashfs.inodes import file_columns
from pysquashfs.libsquashfs.library import Session
from pysquashfs.metadata import unpacked_limit
from pysquashfs.names import Names
from pysquashfs.parsing import checked
from pysquashfs.parsing import parse as with_fallback
from pysquashfs.superblock import Superblock

Array = npt.NDArray[Any]
# sqfs_inode_generic_t in host byte order: type, mode, uid, gid, mtime, number, then bytes available and used
# behind the fields of the type, which are a union of 40 bytes.
_INODE = Struct("=4H2I 2I")
_PAYLOAD_AT = 64
_FIELDS = {  # the order in which `_Walk` needs them is given by the indices behind
    layout.DIRECTORY: (Struct("=2I2HI"), (0, 3, 2)),  # block, offset, size of the listing
    layout.DIRECTORY + layout.EXTENDED: (Struct("=4I2HI"), (2, 5, 1)),
    layout.FILE: (Struct("=4I"), (3, 0, 1, 2)),  # size, start, fragment, offset in it
    layout.FILE + layout.EXTENDED: (Struct("=3Q4I"), (1, 0, 4, 5)),
    layout.SYMLINK: (Struct("=2I"), (1,)),  # bytes of the target
    layout.SYMLINK + layout.EXTENDED: (Struct("=3I"), (1,)),
}
_HEADER_BYTES, _ENTRY_BYTES = layout.DIRECTORY_HEADER.size, layout.DIRECTORY_ENTRY.size


def parse(image: ImageFile) -> Index:
    """The index of an image, as the library reads it, checked against the file.

    Raises:
        SquashFSError: The library is missing or of an unknown version, or the image is not an image, damaged,
            hostile, or compressed with what the library was built without.
    """
    return with_fallback(image, _parse)


def _parse(image: ImageFile) -> Index:
    block = superblock.read(image)  # before the library allocates by what it says
    with closing(Session(image.path)) as session:
        return checked(image, _Walk(session, image, block).index())


@dataclass
class _Inodes:
    """The inodes of one walk, each once: hard links share one."""

    rows: dict[int, int] = field(default_factory=dict)  # by reference
    common: list[tuple[int, ...]] = field(default_factory=list)  # mode, uid, gid, mtime, number
    details: list[tuple[Any, ...]] = field(default_factory=list)  # `_FIELDS`, or the target of a symlink
    words: array[int] = field(default_factory=lambda: array("I"))  # block sizes of all files
    first_word: array[int] = field(default_factory=lambda: array("Q"))


class _Walk:
    def __init__(self, session: Session, image: ImageFile, block: Superblock) -> None:
        self._session, self._image, self._block = session, image, block
        self._ffi, self._calls = session.library.ffi, session.library.calls
        self._file = session.open(image)
        self._super = self._ffi.new("sqfs_super_t *")
        session.check(self._calls.sqfs_super_read(self._super, self._file), "reading the superblock")
        self._compressor = session.compressor(block.compressor, block.block_bytes)
        following = (block.fragment_table, block.export_table, block.id_table)
        end = min(place for place in following if place is not None and place > block.directory_table)
        self._nodes = self._reader(block.inode_table, block.directory_table)
        self._listings = self._reader(block.directory_table, end)
        self._node_bytes = unpacked_limit(image, block.inode_table, block.directory_table, "inodes")
        self._listing_bytes = unpacked_limit(image, block.directory_table, end, "listings")
        self._entry_out = self._ffi.new("sqfs_dir_entry_t **")
        self._inode_out = self._ffi.new("void **")
        self._header_out = self._ffi.new("sqfs_dir_header_t *")
        self._listed = self._path_bytes = 0
        self._inodes = _Inodes()
        self._paths: list[tuple[bytes, int, int]] = []  # path, reference, type

    def _reader(self, start: int, stop: int) -> Any:
        made = self._calls.sqfs_meta_reader_create(self._file, self._compressor, start, stop)
        return self._session.keep(made, "its tables")

    def index(self) -> Index:
        """Walk the image."""
        block = self._block
        fragments, ids = self._fragments(), self._ids()
        root = self._visit(block.root)
        if self._inodes.common[root][0] != layout.DIRECTORY:
            raise self._damaged("has a root that is not a folder", "one")
        waiting, seen = [(root, b"")], {root}
        while waiting:
            row, prefix = waiting.pop()
            for path, child in self._folder(row, prefix):
                if child in seen:
                    fault = f"the folder {path!r} is reached twice (a loop of folders)"
                    raise DamagedImageError.of(self._image.path, fault, "each folder once")
                seen.add(child)
                waiting.append((child, path + b"/"))
        self._paths.sort()
        files, words = self._files()
        places = self._image.size, self._image.mtime_ns
        starts, sizes = fragments["start_offset"].astype(np.int64), fragments["size"].copy()
        return Index(block, *places, files, self._others(), words, starts, sizes, ids)

    def _folder(self, row: int, prefix: bytes) -> list[tuple[bytes, int]]:
        """Read one folder; returns the paths of folders in it, and the rows of their inodes."""
        block, offset, size = self._inodes.details[row]
        left = max(size - layout.DIRECTORY_SIZE_EXTRA, 0)
        self._listed += left
        if self._listed > self._listing_bytes:
            fault = f"has at most {self._listing_bytes:,} bytes of listings"
            raise self._damaged(fault, f"{self._listed:,}, which its folders count")
        if len(prefix) > MAX_PATH_BYTES:
            fault = f"a path starts with {prefix[:64]!r} and has more than {MAX_PATH_BYTES:,} bytes"
            raise DamagedImageError.of(self._image.path, fault, "paths that Linux can open")
        if not left:
            return []
        what = f"reading the folder {prefix!r}"
        at = self._block.directory_table + block
        self._session.check(self._calls.sqfs_meta_reader_seek(self._listings, at, offset), what)
        names, places = self._entries(left, prefix, what)
        self._path_bytes += len(prefix) * len(names) + left
        if self._path_bytes > FREE_BYTES + MAX_GROWTH * self._listing_bytes:
            raise self._damaged(f"makes more than {self._path_bytes:,} bytes of paths", "no bomb")
        check_names(prefix, names, self._damaged)
        return self._resolve([prefix + name for name in names], places)

    def _entries(self, left: int, prefix: bytes, what: str) -> tuple[list[bytes], list[tuple[int, int]]]:
        """The entries of a listing of `left` bytes: names, and references and types of inodes."""
        calls, ffi, names, places = self._calls, self._ffi, [], []
        header, out, free = self._header_out, self._entry_out, self._session.library.free
        while left:
            self._session.check(calls.sqfs_meta_reader_read_dir_header(self._listings, header), what)
            count, first = header.count + 1, header.start_block << 16
            left -= _HEADER_BYTES
            if count > layout.DIRECTORY_HEADER_ENTRIES or left < count * (_ENTRY_BYTES + 1):
                raise self._bad_listing(prefix)
            for _ in range(count):
                self._session.check(calls.sqfs_meta_reader_read_dir_ent(self._listings, out), what)
                entry = out[0]
                size = entry.size + 1
                names.append(ffi.buffer(entry.name, size)[:])
                places.append((first | entry.offset, entry.type))
                free(entry)
                left -= _ENTRY_BYTES + size
                if size > layout.MAX_NAME_BYTES or left < 0:
                    raise self._bad_listing(prefix)
        return names, places

    def _resolve(self, paths: list[bytes], places: list[tuple[int, int]]) -> list[tuple[bytes, int]]:
        inside = []
        for path, (reference, kind) in zip(paths, places, strict=True):
            row = self._visit(reference)
            if self._inodes.common[row][0] != kind:
                raise self._damaged("says of an inode what it is not", "the same type in both")
            self._paths.append((path, reference, kind))
            if kind == layout.DIRECTORY:
                inside.append((path, row))
        return inside

    def _visit(self, reference: int) -> int:
        """The row of an inode in `_Inodes`; it is read when it is reached first."""
        row = self._inodes.rows.get(reference)
        if row is None:
            block, offset, out = reference >> 16, reference & 0xFFFF, self._inode_out
            code = self._calls.sqfs_meta_reader_read_inode(self._nodes, self._super, block, offset, out)
            self._session.check(code, f"reading the inode at {block:,} + {offset:,}")
            try:
                row = self._inodes.rows[reference] = self._kept(out[0])
            finally:
                self._session.library.free(out[0])
        return row

    def _kept(self, inode: Any) -> int:
        """Copy an inode of the library into `_Inodes`; returns its row."""
        kept, ffi = self._inodes, self._ffi
        kind, mode, uid, gid, mtime, number, _, used = _INODE.unpack(ffi.buffer(inode, _INODE.size))
        fields, picked = _FIELDS.get(kind, (Struct("="), ()))
        values = fields.unpack(ffi.buffer(inode + _INODE.size, fields.size)) if picked else ()
        details = tuple(values[at] for at in picked)
        base = kind - layout.EXTENDED if kind > layout.EXTENDED else kind
        kept.first_word.append(len(kept.words))
        if base == layout.FILE:
            details = self._checked_file(details, used)
            kept.words.frombytes(ffi.buffer(inode + _PAYLOAD_AT, used))
        elif base == layout.SYMLINK:
            if details[0] > layout.MAX_SYMLINK_BYTES:
                raise self._damaged("has a symlink of more than 65,535 bytes", "a path")
            details = (ffi.buffer(inode + _PAYLOAD_AT, details[0])[:],)
        kept.common.append((base, mode & layout.PERMISSIONS, uid, gid, mtime, number))
        kept.details.append(details)
        return len(kept.common) - 1

    def _checked_file(self, details: tuple[int, ...], used: int) -> tuple[int, ...]:
        size, _, fragment, _ = details
        if size >= 1 << 62:
            raise self._damaged(f"has a file of {size:,} bytes", "files that can be")
        blocks = int(block_counts(np.array(size), np.array(fragment), self._block.block_bytes))
        if used != 4 * blocks:
            raise self._damaged(f"has a file of {size:,} bytes", "sizes of all its blocks")
        if 4 * len(self._inodes.words) + used > self._node_bytes:
            raise self._damaged("has inodes that overlap or are cut off", "them one after another")
        return details

    def _files(self) -> tuple[Files, Array]:
        shared, rows = self._common(is_file=True)
        once, back = np.unique(rows, return_inverse=True)
        table = [self._inodes.details[row] for row in once.tolist()]
        size, start, fragment, offset = np.array(table, np.uint64).reshape(-1, 4).T
        size, words = size.astype(np.int64), np.array(self._inodes.words, np.uint32)
        fragment, offset = fragment.astype(np.uint32), offset.astype(np.uint32)
        first = np.array(self._inodes.first_word, np.int64)[once]
        blocks = block_counts(size, fragment, self._block.block_bytes)

        def words_of(low: int, high: int) -> Array:
            count = blocks[low:high]
            at = np.repeat(first[low:high] - (np.cumsum(count) - count), count)
            return np.asarray(words[at + np.arange(int(count.sum()))])

        columns, words = file_columns(size, start, fragment, offset, self._block.block_bytes, words_of)
        return Files(**{**shared, **{name: column[back] for name, column in columns.items()}}), words

    def _others(self) -> Others:
        shared, rows = self._common(is_file=False)
        details, links = self._inodes.details, shared["kind"] == layout.SYMLINK
        targets = [details[row][0] if link else b"" for row, link in zip(rows.tolist(), links, strict=True)]
        length = np.array([len(target) for target in targets], np.uint32)
        joined = np.frombuffer(b"".join(targets), np.uint8)
        first = np.cumsum(length, dtype=np.int64) - length
        return Others(**shared, target=first, target_bytes=length, targets=joined)

    def _common(self, *, is_file: bool) -> tuple[dict[str, Any], Array]:
        """The columns that all entries have, and the row of the inode of each."""
        wanted = [entry for entry in self._paths if (entry[2] == layout.FILE) is is_file]
        rows = np.array([self._inodes.rows[reference] for _, reference, _ in wanted], np.int64)
        fields = np.array(self._inodes.common, np.int64).reshape(-1, 6)[rows]
        columns = {
            "names": Names.of([path for path, *_ in wanted]),
            "reference": np.array([reference for _, reference, _ in wanted], np.uint64),
            "flags": np.zeros(len(wanted), np.uint8),
        }
        kinds = {"kind": "u1", "mode": "u2", "uid": "u2", "gid": "u2", "mtime": "u4", "number": "u4"}
        return columns | {
            name: fields[:, at].astype(kind) for at, (name, kind) in enumerate(kinds.items())
        }, rows

    def _fragments(self) -> Array:
        block, calls = self._block, self._calls
        count = block.fragments if block.fragment_table is not None else 0
        blocks = -(-count * layout.FRAGMENT_ENTRY.size // layout.METADATA_BYTES)
        if (block.fragment_table or 0) + 8 * blocks > block.bytes_used:  # before memory is allocated
            fault = f"the list of {count:,} fragments lies outside of the image"
            raise DamagedImageError.of(self._image.path, fault, "everything inside")
        entries = np.zeros(count, [("start_offset", "=u8"), ("size", "=u4"), ("padding", "=u4")])
        if count:
            table = self._session.keep(calls.sqfs_frag_table_create(0), "its fragments")
            code = calls.sqfs_frag_table_read(table, self._file, self._super, self._compressor)
            self._session.check(code, "reading the fragments")
            out = self._ffi.from_buffer("sqfs_fragment_t[]", entries, require_writable=True)
            for number in range(count):
                code = calls.sqfs_frag_table_lookup(table, number, out + number)
                self._session.check(code, f"looking up the fragment {number:,}")
        return entries

    def _ids(self) -> Array:
        table = self._session.keep(self._calls.sqfs_id_table_create(0), "its ids")
        read = self._calls.sqfs_id_table_read(table, self._file, self._super, self._compressor)
        self._session.check(read, "reading the ids")
        ids, out = np.zeros(self._block.ids, np.uint32), self._ffi.new("uint32_t *")
        for number in range(self._block.ids):
            code = self._calls.sqfs_id_table_index_to_id(table, number, out)
            self._session.check(code, f"looking up the id {number:,}")
            ids[number] = out[0]
        return ids

    def _bad_listing(self, prefix: bytes) -> DamagedImageError:
        return self._damaged(f"has a damaged listing of the folder {prefix!r}", "whole entries")

    def _damaged(self, fault: str, expected: str) -> DamagedImageError:
        return DamagedImageError.of(self._image.path, f"its folder tree {fault}", expected)
