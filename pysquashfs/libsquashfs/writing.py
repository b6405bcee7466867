"""Write an image through libsquashfs: blocks and tables are its work, names and order ours.

The trap: up to version 1.1.4 the library writes images that are damaged, and says nothing. It is used
from 1.2 on, and not for lz4, of which it stores the shortest blocks larger than they were (unsquashfs
takes that for damage). Notebook 06 compares what the writers make.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from struct import Struct
from typing import Any

from pysquashfs import compression, layout
from pysquashfs.errors import SquashFSError
from pysquashfs.libsquashfs.library import Library, load
from pysquashfs.libsquashfs.reading import give_back, new_compressor
from pysquashfs.writer.settings import Settings
from pysquashfs.writer.sources import Item, pieces, read_ahead
from pysquashfs.writer.tree import Tree

_DECLARATIONS = """
typedef struct sqfs_super_t {
    uint32_t magic, inode_count, modification_time, block_size, fragment_entry_count;
    uint16_t compression_id, block_log, flags, id_count, version_major, version_minor;
    uint64_t root_inode_ref, bytes_used, id_table_start, xattr_id_table_start, inode_table_start;
    uint64_t directory_table_start, fragment_table_start, export_table_start;
} sqfs_super_t;
typedef struct sqfs_block_writer_t sqfs_block_writer_t;
typedef struct sqfs_frag_table_t sqfs_frag_table_t;
typedef struct sqfs_id_table_t sqfs_id_table_t;
typedef struct sqfs_block_processor_t sqfs_block_processor_t;
typedef struct sqfs_meta_writer_t sqfs_meta_writer_t;
typedef struct sqfs_dir_writer_t sqfs_dir_writer_t;
typedef struct sqfs_block_processor_desc_t {
    uint32_t size, max_block_size, num_workers, max_backlog;
    sqfs_compressor_t *cmp;
    sqfs_block_writer_t *wr;
    sqfs_frag_table_t *tbl;
    sqfs_file_t *file;
    sqfs_compressor_t *uncmp;
} sqfs_block_processor_desc_t;

int sqfs_super_init(sqfs_super_t *, size_t block_size, uint32_t mtime, int compressor);
int sqfs_super_write(const sqfs_super_t *, sqfs_file_t *);
sqfs_block_writer_t *sqfs_block_writer_create(sqfs_file_t *, size_t device_block_size, uint32_t flags);
sqfs_frag_table_t *sqfs_frag_table_create(uint32_t flags);
int sqfs_frag_table_write(sqfs_frag_table_t *, sqfs_file_t *, sqfs_super_t *, sqfs_compressor_t *);
sqfs_id_table_t *sqfs_id_table_create(uint32_t flags);
int sqfs_id_table_id_to_index(sqfs_id_table_t *, uint32_t id, uint16_t *out);
int sqfs_id_table_write(sqfs_id_table_t *, sqfs_file_t *, sqfs_super_t *, sqfs_compressor_t *);
int sqfs_block_processor_create_ex(const sqfs_block_processor_desc_t *, sqfs_block_processor_t **);
int sqfs_block_processor_begin_file(sqfs_block_processor_t *, void **inode, void *user, uint32_t flags);
int sqfs_block_processor_append(sqfs_block_processor_t *, const void *data, size_t size);
int sqfs_block_processor_end_file(sqfs_block_processor_t *);
int sqfs_block_processor_finish(sqfs_block_processor_t *);
sqfs_meta_writer_t *sqfs_meta_writer_create(sqfs_file_t *, sqfs_compressor_t *, uint32_t flags);
void sqfs_meta_writer_get_position(const sqfs_meta_writer_t *, uint64_t *block, uint32_t *offset);
int sqfs_meta_writer_write_inode(sqfs_meta_writer_t *, const void *inode);
int sqfs_meta_writer_flush(sqfs_meta_writer_t *);
int sqfs_meta_write_write_to_file(sqfs_meta_writer_t *);
sqfs_dir_writer_t *sqfs_dir_writer_create(sqfs_meta_writer_t *, uint32_t flags);
int sqfs_dir_writer_begin(sqfs_dir_writer_t *, uint32_t flags);
int sqfs_dir_writer_add_entry(
    sqfs_dir_writer_t *, const char *name, uint32_t number, uint64_t reference, uint16_t mode);
int sqfs_dir_writer_end(sqfs_dir_writer_t *);
void *sqfs_dir_writer_create_inode(const sqfs_dir_writer_t *, size_t links, uint32_t xattr, uint32_t parent);
int sqfs_inode_set_xattr_index(void *inode, uint32_t index);
"""
_OVERWRITE = 2
_KEEP_IN_MEMORY = 1
_DONT_COMPRESS, _DONT_FRAGMENT, _DONT_DEDUPLICATE, _IGNORE_SPARSE = 0x01, 0x04, 0x08, 0x10
_FILE_MODE, _FOLDER_MODE = 0o100644, 0o040755
_BASE = Struct("=3H2I")  # of an inode, behind its type: mode, uid, gid, mtime, number
_TYPE, _LINKS = Struct("=H"), Struct("=I")
# Where sqfs_inode_generic_t keeps the count of links, by type; a basic file has none.
_LINKS_AT = {
    layout.DIRECTORY: 28,
    layout.DIRECTORY + layout.EXTENDED: 24,
    layout.FILE + layout.EXTENDED: 48,
}
_INODE_BYTES = 64
_CELLS = 4096


def pack_with_library(
    out: Path, items: Iterable[Item], settings: Settings, in_flight: int | None = None
) -> tuple[int, int]:
    """Have libsquashfs write an image.

    Args:
        out: A file that is replaced.
        items: As for `pack`.
        settings: As for `pack`.
        in_flight: As for `pack`.

    Returns:
        Number of files and their bytes.

    Raises:
        SquashFSError: The library is missing or older than 1.2, it failed, or an item cannot be packed.
    """
    library = load()
    if not library.can_write:
        raise _refused(
            f"libsquashfs {library.version} writes damaged images",
            "version 1.2 or newer (Debian 12, Ubuntu 24.04)",
        )
    if settings.compression == "lz4":
        raise _refused("libsquashfs writes images with lz4 that unsquashfs refuses", "gzip, zstd, xz or none")
    with contextlib.closing(_Image(_declared(library), out, settings)) as image:
        with contextlib.closing(read_ahead(items, in_flight)) as found:
            for name, source in found:
                image.add(name, pieces(source) if isinstance(source, Path) else [source])
        image.finish()
    size = out.stat().st_size
    os.truncate(out, size + -size % layout.DEVICE_BLOCK_BYTES)
    return image.tree.files, image.bytes


def _refused(got: str, expected: str) -> SquashFSError:
    return SquashFSError(got, expected=expected, next_step='Use tool="python", which needs no library')


@cache
def _declared(library: Library) -> Library:
    library.ffi.cdef(_DECLARATIONS)
    return library


class _Image:
    """What the library holds while an image grows."""

    def __init__(self, library: Library, out: Path, settings: Settings) -> None:
        self.tree, self.bytes = Tree(), 0
        self._library, self._ffi, self._calls, self._out = library, library.ffi, library.calls, out
        self._held: list[Any] = []
        self._cells: list[Any] = []  # where the library keeps the inodes of files: it moves them as they grow
        self._flags = 0 if settings.fragments else _DONT_FRAGMENT
        self._flags |= _DONT_COMPRESS | _IGNORE_SPARSE if settings.raw else 0
        self._flags |= 0 if settings.deduplicate else _DONT_DEDUPLICATE
        try:
            self._open(settings)
        except BaseException:
            self.close()
            raise

    def _open(self, settings: Settings) -> None:
        calls, block_bytes, name = self._calls, settings.block_bytes, settings.image_compressor
        self._file = self._hold(calls.sqfs_open_file(os.fsencode(self._out), _OVERWRITE))
        self._compressor = self._new_compressor(settings, unpack=False)
        self._super = self._ffi.new("sqfs_super_t *")
        number = layout.COMPRESSOR_IDS[name]
        self._check(calls.sqfs_super_init(self._super, block_bytes, 0, number))
        self._check(calls.sqfs_super_write(self._super, self._file))
        if self._check(self._compressor.write_options(self._compressor, self._file)):
            self._super.flags |= layout.FLAG_COMPRESSOR_OPTIONS
        self._fragments = self._hold(calls.sqfs_frag_table_create(0))
        blocks = self._hold(calls.sqfs_block_writer_create(self._file, layout.DEVICE_BLOCK_BYTES, 0))
        threads = 1 if settings.raw else settings.usable_threads
        # Tails are compared with what was stored, not by their hash alone.
        unpack = self._new_compressor(settings, unpack=True)
        sizes = self._ffi.sizeof("sqfs_block_processor_desc_t"), block_bytes, threads, 10 * threads
        wanted = [*sizes, self._compressor, blocks, self._fragments, self._file, unpack]
        made = self._ffi.new("sqfs_block_processor_t **")
        description = self._ffi.new("sqfs_block_processor_desc_t *", wanted)
        self._check(calls.sqfs_block_processor_create_ex(description, made))
        self._processor = self._hold(made[0])

    def _new_compressor(self, settings: Settings, *, unpack: bool) -> Any:
        name = settings.image_compressor
        level = compression.DEFAULT_LEVELS[name] if settings.level is None else settings.level
        made = new_compressor(
            self._library, name, settings.block_bytes, self._out, unpack=unpack, level=level
        )
        return self._hold(made)

    def add(self, name: str, parts: Iterable[Any]) -> None:
        """Append a file."""
        number, calls, ffi = self.tree.add(name), self._calls, self._ffi
        if number % _CELLS == 0:
            self._cells.append(ffi.new("void *[]", _CELLS))
        cell = self._cells[-1] + number % _CELLS
        self._check(calls.sqfs_block_processor_begin_file(self._processor, cell, ffi.NULL, self._flags))
        for part in parts:
            if len(part):  # nothing to append would crash it
                data = ffi.from_buffer(part)
                self._check(calls.sqfs_block_processor_append(self._processor, data, len(part)))
                self.bytes += len(part)
        self._check(calls.sqfs_block_processor_end_file(self._processor))

    def finish(self) -> None:
        """Write the tables, and the superblock for good."""
        calls, block, file = self._calls, self._super, self._file
        self._check(calls.sqfs_block_processor_finish(self._processor))
        ids = self._hold(calls.sqfs_id_table_create(0))
        self._check(calls.sqfs_id_table_id_to_index(ids, 0, self._ffi.new("uint16_t *")))
        block.inode_table_start = file.get_size(file)
        self._inodes = self._hold(calls.sqfs_meta_writer_create(file, self._compressor, 0))
        listings = self._hold(calls.sqfs_meta_writer_create(file, self._compressor, _KEEP_IN_MEMORY))
        self._folders = self._hold(calls.sqfs_dir_writer_create(listings, 0))
        block.root_inode_ref = self._write_tree()
        block.inode_count = self.tree.files + self.tree.folders
        self._check(calls.sqfs_meta_writer_flush(self._inodes))
        self._check(calls.sqfs_meta_writer_flush(listings))
        block.directory_table_start = file.get_size(file)
        self._check(calls.sqfs_meta_write_write_to_file(listings))
        self._check(calls.sqfs_frag_table_write(self._fragments, file, block, self._compressor))
        self._check(calls.sqfs_id_table_write(ids, file, block, self._compressor))
        block.bytes_used = file.get_size(file)
        self._check(calls.sqfs_super_write(block, file))

    def _write_tree(self) -> int:
        """All inodes and listings, each folder after what is in it; returns the reference of the root."""
        tree = self.tree
        files, bounds = tree.by_folder()
        inside, inside_bounds = tree.folders_in_folders()
        references = [0] * tree.folders
        parents = tree.parents().tolist()
        for folder in reversed(range(tree.folders)):
            of = files[bounds[folder] : bounds[folder + 1]].tolist()
            children = inside[inside_bounds[folder] : inside_bounds[folder + 1]].tolist()
            entries = [(tree.folders + file + 1, self._write_file(file), _FILE_MODE) for file in of]
            entries += [(child + 1, references[child], _FOLDER_MODE) for child in children]
            names = tree.sorted_listing(folder, of, children)
            parent = parents[folder] + 1 if folder else tree.files + tree.folders + 1
            listed = [(name, *entries[row]) for row, name in names]
            references[folder] = self._write_folder(folder, listed, parent, 2 + len(children))
        return references[0]

    def _write_file(self, file: int) -> int:
        cells, row = self._cells[file // _CELLS], file % _CELLS
        reference = self._write_inode(cells[row], _FILE_MODE, self.tree.folders + file + 1, 1)
        self._library.free(cells[row])
        cells[row] = self._ffi.NULL
        return reference

    def _write_folder(
        self, folder: int, entries: Sequence[tuple[bytes, int, int, int]], parent: int, links: int
    ) -> int:
        calls = self._calls
        self._check(calls.sqfs_dir_writer_begin(self._folders, 0))
        for entry in entries:
            self._check(calls.sqfs_dir_writer_add_entry(self._folders, *entry))
        self._check(calls.sqfs_dir_writer_end(self._folders))
        inode = calls.sqfs_dir_writer_create_inode(self._folders, 0, layout.NO_XATTR, parent)
        if inode == self._ffi.NULL:
            raise self._failed(-1)
        try:
            return self._write_inode(inode, _FOLDER_MODE, folder + 1, links)
        finally:
            self._library.free(inode)

    def _write_inode(self, inode: Any, mode: int, number: int, links: int) -> int:
        fields = memoryview(self._ffi.buffer(inode, _INODE_BYTES))
        _BASE.pack_into(fields, _TYPE.size, mode, 0, 0, 0, number)
        self._check(self._calls.sqfs_inode_set_xattr_index(inode, layout.NO_XATTR))
        (kind,) = _TYPE.unpack_from(fields)
        if kind in _LINKS_AT:
            _LINKS.pack_into(fields, _LINKS_AT[kind], links)
        block, offset = self._ffi.new("uint64_t *"), self._ffi.new("uint32_t *")
        self._calls.sqfs_meta_writer_get_position(self._inodes, block, offset)
        self._check(self._calls.sqfs_meta_writer_write_inode(self._inodes, inode))
        return int(block[0]) << 16 | int(offset[0])

    def close(self) -> None:
        """Free what the library holds; the processor goes before the inodes that it writes to."""
        give_back(self._library, self._held, os.getpid())
        for cells in self._cells:
            for inode in cells:
                self._library.free(inode)
        self._cells = []

    def _hold(self, thing: Any) -> Any:
        if thing == self._ffi.NULL:
            raise self._failed(-2 if not self._held else -1)
        self._held.append(thing)
        return thing

    def _check(self, code: int) -> int:
        if code < 0:
            raise self._failed(code)
        return code

    def _failed(self, code: int) -> SquashFSError:
        what = {-1: "there is not enough memory", -2: "the file cannot be written"}.get(code, "it gave up")
        return SquashFSError(
            f"{self._out} cannot be written by libsquashfs ({what}, error {code})",
            expected="a folder you may write to, with free blocks and inodes within your quota",
            next_step='Check it (df -h and df -i tell), or use tool="python"',
        )
