"""Write images with the block processor of libsquashfs.

The traps: up to version 1.1.4 the library silently writes damaged images, so it must be 1.2 or newer. Its lz4
makes some blocks larger than they were, which unsquashfs refuses. And the library moves the inode of a file
while it grows, so it needs a cell for each inode that stays at its place.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pysquashfs import layout
from pysquashfs.compression import Buffer
from pysquashfs.errors import SquashFSError
from pysquashfs.libsquashfs.library import OVERWRITE, Session
from pysquashfs.writer.blocks import usable_cpus
from pysquashfs.writer.settings import Settings
from pysquashfs.writer.tree import Tree

_KEEP_IN_MEMORY = 1
_DONT_COMPRESS, _DONT_FRAGMENT, _DONT_DEDUPLICATE, _IGNORE_SPARSE = 0x01, 0x04, 0x08, 0x10
_FILE_MODE, _FOLDER_MODE = 0o100644, 0o040755
# The fields of an inode that have the number of links, by type; a basic file has none.
_WITH_LINKS = {
    layout.DIRECTORY: "dir",
    layout.DIRECTORY + layout.EXTENDED: "dir_ext",
    layout.FILE + layout.EXTENDED: "file_ext",
}
_CELLS = 4096
_BACKLOG_PER_THREAD = 10


class LibraryWriter:
    """Stream files into an image, as `ImageWriter` does.

    Args:
        descriptor: The image, open for writing and empty.
        path: Its final name, for messages.
        settings: How the image is written.

    Raises:
        SquashFSError: The library is missing or older than 1.2, or it was built without the compressor.
    """

    def __init__(self, descriptor: int, path: Path, settings: Settings) -> None:
        self.bytes = 0
        self._tree, self._path = Tree(), path
        self._session = session = Session(path)
        if not session.library.can_write:
            raise SquashFSError(
                f"libsquashfs {session.library.version} silently writes damaged images",
                expected="version 1.2 or newer (Debian 12, Ubuntu 24.04)",
                next_step='Use backend="python", which needs no library',
            )
        self._ffi, self._calls = session.library.ffi, session.library.calls
        self._cells: list[Any] = []
        self._flags = _DONT_DEDUPLICATE | (0 if settings.fragments else _DONT_FRAGMENT)
        self._flags |= _DONT_COMPRESS | _IGNORE_SPARSE if settings.raw else 0
        try:
            self._begin(descriptor, settings)
        except BaseException:
            self.abandon()
            raise

    @property
    def files(self) -> int:
        """Number of files that were added."""
        return self._tree.files

    def _begin(self, descriptor: int, settings: Settings) -> None:
        session, calls, block_bytes = self._session, self._calls, settings.block_bytes
        name = settings.image_compressor
        self._file = session.keep(
            calls.sqfs_open_file(b"/proc/self/fd/%d" % descriptor, OVERWRITE), "the new image"
        )
        self._compressor = session.compressor(name, block_bytes, level=settings.chosen_level, unpack=False)
        self._super = self._ffi.new("sqfs_super_t *")
        self._check(calls.sqfs_super_init(self._super, block_bytes, 0, layout.COMPRESSOR_IDS[name]))
        self._check(calls.sqfs_super_write(self._super, self._file))
        if self._check(self._compressor.write_options(self._compressor, self._file)):
            self._super.flags |= layout.FLAG_COMPRESSOR_OPTIONS
        self._fragments = session.keep(calls.sqfs_frag_table_create(0), "the fragments")
        blocks = session.keep(
            calls.sqfs_block_writer_create(self._file, layout.DEVICE_BLOCK_BYTES, 0), "the blocks"
        )
        threads = 1 if settings.raw else usable_cpus()
        out = self._ffi.new("void **")
        # The ends of files may be stored once; they are then compared, not only their 32-bit hashes.
        unpack = session.compressor(name, block_bytes)
        kind = "sqfs_block_processor_desc_t"
        limits = [self._ffi.sizeof(kind), block_bytes, threads, _BACKLOG_PER_THREAD * threads]
        objects = [self._compressor, blocks, self._fragments, self._file, unpack]
        description = self._ffi.new(f"{kind} *", limits + objects)
        self._check(calls.sqfs_block_processor_create_ex(description, out))
        self._processor = session.keep(out[0], "the block processor")

    def add_pieces(self, name: str, pieces: Iterable[Buffer]) -> None:
        """Store a file.

        Args:
            name: Relative path with `/`; folders need not be added.
            pieces: Its bytes; a buffer may be reused afterwards.

        Raises:
            SquashFSError: The name cannot be in an image, or there is no room.
        """
        number, calls, ffi = self._tree.add(name), self._calls, self._ffi
        if number % _CELLS == 0:
            self._cells.append(ffi.new("sqfs_inode_generic_t *[]", _CELLS))
        cell = self._cells[-1] + number % _CELLS
        self._check(calls.sqfs_block_processor_begin_file(self._processor, cell, ffi.NULL, self._flags))
        for piece in pieces:
            data = memoryview(piece).cast("B")
            if len(data):  # appending nothing right after begin_file crashes the library
                self._check(
                    calls.sqfs_block_processor_append(self._processor, ffi.from_buffer(data), len(data))
                )
                self.bytes += len(data)
        self._check(calls.sqfs_block_processor_end_file(self._processor))

    def close(self) -> bytes:
        """Write the tables; returns the superblock, as `ImageWriter.close` does.

        Raises:
            SquashFSError: Two names are equal, one is both a file and a folder, or there is no room.
        """
        session, calls, block, file = self._session, self._calls, self._super, self._file
        self._check(calls.sqfs_block_processor_finish(self._processor))
        ids = session.keep(calls.sqfs_id_table_create(0), "the ids")
        self._check(calls.sqfs_id_table_id_to_index(ids, 0, self._ffi.new("uint16_t *")))
        block.inode_table_start = file.get_size(file)
        self._inodes = session.keep(calls.sqfs_meta_writer_create(file, self._compressor, 0), "the inodes")
        listings = session.keep(
            calls.sqfs_meta_writer_create(file, self._compressor, _KEEP_IN_MEMORY), "the listings"
        )
        self._folders = session.keep(calls.sqfs_dir_writer_create(listings, 0), "the folders")
        block.root_inode_ref = self._write_tree()
        block.inode_count = self._tree.files + self._tree.folders
        self._check(calls.sqfs_meta_writer_flush(self._inodes))
        self._check(calls.sqfs_meta_writer_flush(listings))
        block.directory_table_start = file.get_size(file)
        self._check(calls.sqfs_meta_write_write_to_file(listings))
        self._check(calls.sqfs_frag_table_write(self._fragments, file, block, self._compressor))
        self._check(calls.sqfs_id_table_write(ids, file, block, self._compressor))
        block.bytes_used = file.get_size(file)
        self._check(calls.sqfs_super_write(block, file))
        self._check(file.truncate(file, block.bytes_used + -block.bytes_used % layout.DEVICE_BLOCK_BYTES))
        superblock = self._ffi.new("char[]", layout.SUPERBLOCK.size)
        self._check(file.read_at(file, 0, superblock, layout.SUPERBLOCK.size))
        return bytes(self._ffi.buffer(superblock))

    def _write_tree(self) -> int:
        """Write inodes and listings, each folder after what is in it; returns the root's reference."""
        tree = self._tree
        references = [0] * tree.folders
        for folder, above, rows, inside in tree.from_last_to_first():
            entries = [(tree.folders + row + 1, self._write_file(row), _FILE_MODE) for row in rows]
            entries += [(child + 1, references[child], _FOLDER_MODE) for child in inside]
            listed = [(name, *entries[row]) for row, name in tree.sorted_listing(folder, rows, inside)]
            self._check(self._calls.sqfs_dir_writer_begin(self._folders, 0))
            for entry in listed:
                self._check(self._calls.sqfs_dir_writer_add_entry(self._folders, *entry))
            self._check(self._calls.sqfs_dir_writer_end(self._folders))
            parent = above + 1 if folder else tree.files + tree.folders + 1
            references[folder] = self._write_folder(folder, parent, 2 + len(inside))
        return references[0]

    def _write_file(self, file: int) -> int:
        cells, row = self._cells[file // _CELLS], file % _CELLS
        reference = self._write_inode(cells[row], _FILE_MODE, self._tree.folders + file + 1, 1)
        self._session.library.free(cells[row])
        cells[row] = self._ffi.NULL
        return reference

    def _write_folder(self, folder: int, parent: int, links: int) -> int:
        inode = self._calls.sqfs_dir_writer_create_inode(self._folders, 0, layout.NO_XATTR, parent)
        self._check(-1 if inode == self._ffi.NULL else 0)
        try:
            return self._write_inode(inode, _FOLDER_MODE, folder + 1, links)
        finally:
            self._session.library.free(inode)

    def _write_inode(self, inode: Any, mode: int, number: int, links: int) -> int:
        inode.base.mode, inode.base.inode_number = mode, number
        inode.base.uid_idx = inode.base.gid_idx = inode.base.mod_time = 0
        self._check(self._calls.sqfs_inode_set_xattr_index(inode, layout.NO_XATTR))
        if inode.base.type in _WITH_LINKS:
            getattr(inode.data, _WITH_LINKS[inode.base.type]).nlink = links
        block, offset = self._ffi.new("uint64_t *"), self._ffi.new("uint32_t *")
        self._calls.sqfs_meta_writer_get_position(self._inodes, block, offset)
        self._check(self._calls.sqfs_meta_writer_write_inode(self._inodes, inode))
        return int(block[0]) << 16 | int(offset[0])

    def abandon(self) -> None:
        """Free what the library allocated: its block processor before the inodes that it writes to."""
        self._session.close()
        for cells in self._cells:
            for inode in cells:
                self._session.library.free(inode)
        self._cells.clear()

    def _check(self, code: int) -> int:
        if code < 0:
            raise SquashFSError(
                f"{self._path} cannot be written (libsquashfs error {code})",
                expected="a folder you may write to, with free blocks and inodes within your quota",
                next_step='Check it with df -h and df -i, or use backend="python"',
            )
        return code
