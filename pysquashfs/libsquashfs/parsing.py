"""Make the index of an image by a walk of libsquashfs: superblock, folders, inodes, ids and fragments.

The library reads one folder entry and one inode per call, which takes about ten times as long as our own
reader, and it is independent of it. What it has read of the inodes is put together as it is stored in an
image, so the same code makes columns of it and checks them.

The trap: the library believes what it reads. A folder may contain itself, a size may claim gigabytes of block
sizes, and a thousand folders may share one listing. So sizes are added up and limited while it walks.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
import numpy.typing as npt

from pysquashfs import layout, superblock
from pysquashfs.directories import Found, add_names
from pysquashfs.errors import DamagedImageError
from pysquashfs.image_file import ImageFile
from pysquashfs.index import Index
from pysquashfs.libsquashfs.library import Session
from pysquashfs.metadata import Table, unpacked_limit
from pysquashfs.parsing import FRAGMENT, make_index
from pysquashfs.parsing import parse as with_fallback
from pysquashfs.superblock import Superblock

Array = npt.NDArray[Any]
_HEAD = layout.INODE_HEADER.size
_FIELDS = {  # what follows it
    layout.DIRECTORY: layout.DIRECTORY_INODE,
    layout.DIRECTORY + layout.EXTENDED: layout.EXTENDED_DIRECTORY_INODE,
    layout.FILE: layout.FILE_INODE,
    layout.FILE + layout.EXTENDED: layout.EXTENDED_FILE_INODE,
    layout.SYMLINK: layout.SYMLINK_INODE,
    layout.SYMLINK + layout.EXTENDED: layout.SYMLINK_INODE,
}
_LISTING = {layout.DIRECTORY: (0, 3, 2), layout.DIRECTORY + layout.EXTENDED: (2, 5, 1)}
"""Where the fields of a folder have the block, the offset and the size of its listing."""
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
        return _Walk(session, image, block).index()


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
        self._inode_out = self._ffi.new("sqfs_inode_generic_t **")
        self._header_out = self._ffi.new("sqfs_dir_header_t *")
        self._listed = 0
        self._inodes = bytearray()  # as they are stored in an image
        self._places: dict[int, int] = {}  # position in it of each inode, by its reference
        self._found = Found()

    def _reader(self, start: int, stop: int) -> Any:
        made = self._calls.sqfs_meta_reader_create(self._file, self._compressor, start, stop)
        return self._session.keep(made, "its tables")

    def index(self) -> Index:
        """Walk the image."""
        fragments, ids = self._fragments(), self._ids()
        root = self._visit(self._block.root)
        if self._kind(root) != layout.DIRECTORY:
            raise self._damaged("has a root that is not a folder", "one")
        waiting, seen = [(root, b"")], {root}
        while waiting:
            at, prefix = waiting.pop()
            for path, child in self._folder(at, prefix):
                if child in seen:
                    fault = f"the folder {path!r} is reached twice (a loop of folders)"
                    raise DamagedImageError.of(self._image.path, fault, "each folder once")
                seen.add(child)
                waiting.append((child, path + b"/"))
        nodes = Table(self._image.path, "inodes", self._inodes)
        return make_index(self._image, self._block, nodes, self._found, fragments, ids)

    def _folder(self, at: int, prefix: bytes) -> list[tuple[bytes, int]]:
        """Read one folder; returns the paths of folders in it, and the positions of their inodes."""
        kind = self._inodes[at]
        fields = _FIELDS[kind].unpack_from(self._inodes, at + _HEAD)
        block, offset, size = (fields[number] for number in _LISTING[kind])
        left = max(size - layout.DIRECTORY_SIZE_EXTRA, 0)
        self._listed += left
        if self._listed > self._listing_bytes:
            fault = f"has at most {self._listing_bytes:,} bytes of listings"
            raise self._damaged(fault, f"{self._listed:,}, which its folders count")
        if not left:
            return []
        what = f"reading the folder {prefix!r}"
        start = self._block.directory_table + block
        self._session.check(self._calls.sqfs_meta_reader_seek(self._listings, start, offset), what)
        names, places = self._entries(left, prefix, what)
        self._found.path_bytes += left
        add_names(self._found, prefix, names, self._listing_bytes, self._damaged)
        return self._resolve(self._found.paths[-len(names) :], places)

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
        references, kinds = zip(*places, strict=True)
        inodes = [self._visit(reference) for reference in references]
        if [self._kind(at) for at in inodes] != [*kinds]:
            raise self._damaged("says of an inode what it is not", "the same type in both")
        self._found.inodes.append(np.array(inodes, np.int64))
        self._found.references.append(np.array(references, np.uint64))
        self._found.kinds.append(np.array(kinds, np.uint8))
        entries = zip(paths, inodes, kinds, strict=True)
        return [(path, at) for path, at, kind in entries if kind == layout.DIRECTORY]

    def _kind(self, at: int) -> int:
        """The type of an inode, whether basic or extended."""
        return (self._inodes[at] - 1) % layout.EXTENDED + 1

    def _visit(self, reference: int) -> int:
        """The position of an inode in `_inodes`; it is read when it is reached first."""
        at = self._places.get(reference)
        if at is None:
            block, offset, out = reference >> 16, reference & 0xFFFF, self._inode_out
            code = self._calls.sqfs_meta_reader_read_inode(self._nodes, self._super, block, offset, out)
            self._session.check(code, f"reading the inode at {block:,} + {offset:,}")
            try:
                at = self._places[reference] = self._append(out[0])
            finally:
                self._session.library.free(out[0])
        return at

    def _append(self, inode: Any) -> int:
        """Append an inode of the library to `_inodes`; returns its position."""
        buffer, at, kind, rest = self._ffi.buffer, len(self._inodes), inode.base.type, 0
        if not 0 < kind <= layout.SOCKET + layout.EXTENDED:
            raise self._damaged(f"has an inode of the type {kind}", "1 to 14")
        if kind in (layout.FILE, layout.FILE + layout.EXTENDED):
            rest = inode.payload_bytes_used
        elif kind in (layout.SYMLINK, layout.SYMLINK + layout.EXTENDED):
            rest = inode.data.slink.target_size
        if at + rest > self._node_bytes:
            raise self._damaged("has inodes that overlap or are cut off", "them one after another")
        fields = buffer(inode.data.bytes)[: _FIELDS[kind].size] if kind in _FIELDS else b""
        self._inodes += buffer(inode, _HEAD)[:] + fields + buffer(inode.extra, rest)[:]
        return at

    def _fragments(self) -> Array:
        block, calls = self._block, self._calls
        count = block.fragments if block.fragment_table is not None else 0
        blocks = -(-count * layout.FRAGMENT_ENTRY.size // layout.METADATA_BYTES)
        if (block.fragment_table or 0) + 8 * blocks > block.bytes_used:  # before memory is allocated
            fault = f"the list of {count:,} fragments lies outside of the image"
            raise DamagedImageError.of(self._image.path, fault, "everything inside")
        entries = np.zeros(count, FRAGMENT)
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
