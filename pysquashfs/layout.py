"""The layout of squashfs 4.0 on disk: every struct and constant, for the readers and the writer.

Everything is little-endian. Sources: the kernel's `Documentation/filesystems/squashfs.rst` and
`fs/squashfs/squashfs_fs.h`, and the description of the format at https://dr-emann.github.io/squashfs/.

The trap: a reference to an inode is not its number. It is the position of a metadata block inside
the inode table (upper 48 bits) and an offset in the *decompressed* block (lower 16 bits).
"""

from __future__ import annotations

from struct import Struct
from typing import Final

MAGIC: Final = 0x73717368  # "hsqs"
VERSION: Final = (4, 0)

# magic, inodes, mtime, block size, fragments, compressor, log2 of block size, flags, ids, major, minor,
# reference of the root inode, bytes used, then the starts of the id, xattr, inode, directory, fragment
# and export tables.
SUPERBLOCK: Final = Struct("<5I6H8Q")
ABSENT: Final = 0xFFFF_FFFF_FFFF_FFFF  # the start of a table that is not there
DEVICE_BLOCK_BYTES: Final = 4096  # mksquashfs pads the file to a multiple, so that it can be loop-mounted

MIN_BLOCK_BYTES: Final = 4096
MAX_BLOCK_BYTES: Final = 1 << 20

FLAG_INODES_RAW: Final = 0x0001
FLAG_DATA_RAW: Final = 0x0002
FLAG_FRAGMENTS_RAW: Final = 0x0008
FLAG_NO_FRAGMENTS: Final = 0x0010
FLAG_ALWAYS_FRAGMENTS: Final = 0x0020
FLAG_NO_XATTRS: Final = 0x0200
FLAG_COMPRESSOR_OPTIONS: Final = 0x0400

COMPRESSORS: Final = {1: "gzip", 2: "lzma", 3: "lzo", 4: "xz", 5: "lz4", 6: "zstd"}
COMPRESSOR_IDS: Final = {name: number for number, name in COMPRESSORS.items()}

# Metadata (inodes, directories, the entries of the other tables) is stored in blocks of exactly 8 KiB
# when decompressed, except the last of a table. Each follows a 16-bit header: its stored size, and
# whether it is stored raw.
METADATA_HEADER: Final = Struct("<H")
METADATA_BYTES: Final = 8192
METADATA_RAW: Final = 0x8000

# The sizes of data blocks and fragments are 32-bit words: stored size, and whether stored raw.
# A word of 0 is a hole: a block of zeros that is not stored.
DATA_RAW: Final = 1 << 24
DATA_SIZE: Final = DATA_RAW - 1
NO_FRAGMENT: Final = 0xFFFF_FFFF
NO_XATTR: Final = 0xFFFF_FFFF

DIRECTORY, FILE, SYMLINK, BLOCK_DEVICE, CHARACTER_DEVICE, FIFO, SOCKET = range(1, 8)
EXTENDED: Final = 7  # added to a type for its extended inode
INODE_TYPES: Final = {
    DIRECTORY: "directory",
    FILE: "file",
    SYMLINK: "symlink",
    BLOCK_DEVICE: "block device",
    CHARACTER_DEVICE: "character device",
    FIFO: "fifo",
    SOCKET: "socket",
}

PERMISSIONS: Final = 0o7777  # of the permissions in an inode; the type stands before them
INODE_HEADER: Final = Struct("<4H2I")  # type, permissions, index of uid, index of gid, mtime, number
# What follows the header, by type:
DIRECTORY_INODE: Final = Struct("<2I2HI")  # block in directory table, links, size + 3, offset, parent
EXTENDED_DIRECTORY_INODE: Final = Struct("<4I2HI")  # links, size + 3, block, parent, indices, offset, xattr
DIRECTORY_INDEX: Final = Struct("<3I")  # position in the listing, block, length of name - 1; then the name
FILE_INODE: Final = Struct("<4I")  # start of blocks, fragment, offset in fragment, size; then block sizes
EXTENDED_FILE_INODE: Final = Struct("<3Q4I")  # start, size, bytes in holes, links, fragment, offset, xattr
SYMLINK_INODE: Final = Struct("<2I")  # links, length of target; then the target (extended: then xattr)
BLOCK_WORD: Final = Struct("<I")

# A listing is a series of headers, each followed by up to 256 entries. Its size includes 3 bytes for
# "." and "..", which are not stored.
DIRECTORY_HEADER: Final = Struct("<3I")  # entries - 1, block in inode table, inode number they count from
DIRECTORY_ENTRY: Final = Struct("<HhHH")  # offset in block, number relative to header's, type, length - 1
DIRECTORY_HEADER_ENTRIES: Final = 256
DIRECTORY_SIZE_EXTRA: Final = 3
MAX_NAME_BYTES: Final = 256  # the field of Linux; no Linux file system can hold more than 255 of them
LINUX_NAME_BYTES: Final = 255
MAX_SYMLINK_BYTES: Final = 65535

# The tables of fragments, ids and exports: metadata blocks of entries, found by a plain list of 64-bit
# positions at the start given in the superblock.
TABLE_POSITION: Final = Struct("<Q")
FRAGMENT_ENTRY: Final = Struct("<Q2I")  # start, size word, unused
ID_ENTRY: Final = Struct("<I")
EXPORT_ENTRY: Final = Struct("<Q")
