"""Images made byte by byte, so that any field can be a lie. Metadata is stored raw, one node an inode."""

import zlib
from dataclasses import dataclass, field

from pysquashfs import layout
from pysquashfs.index import block_counts  # only to be sure that honest images are honest

BLOCK = 4096


@dataclass(eq=False)
class Node:
    """A file (`data`), folder (`entries`), or symlink (`target`); the other fields are what it claims."""

    kind: int = layout.FILE
    data: bytes = b""
    entries: list = field(default_factory=list)  # (name as bytes, Node)
    target: bytes = b""
    size: int | None = None
    start: int | None = None
    words: list | None = None
    fragment: int = layout.NO_FRAGMENT
    fragment_offset: int = 0
    listing: tuple | None = None  # block, offset, size of a folder's listing
    claimed_kind: int | None = None  # in the listing of its folder
    uid: int = 0


def folder(*entries, **claims):
    return Node(layout.DIRECTORY, entries=list(entries), **claims)


def file(data=b"", **claims):
    return Node(data=data, **claims)


def symlink(target, **claims):
    return Node(layout.SYMLINK, target=target, **claims)


def craft(top, *, tails=(), bombs=0, **claims):
    """The bytes of an image.

    `tails` are fragments, pairs of content and whether it is raw; `bombs` is how many blocks of 8 KiB of
    zeros, well compressed, follow the inodes; `claims` replace fields of the superblock (see `_tables`).
    """
    nodes = _ordered(top)
    data = bytearray(layout.SUPERBLOCK.size)
    for node in nodes:
        _place(node, data)
    pieces = []
    for content, raw in tails:
        word = len(content) | (layout.DATA_RAW if raw else 0)
        pieces.append(layout.FRAGMENT_ENTRY.pack(len(data), word, 0))
        data += content
    offsets = _offsets(nodes)
    listings, inodes, numbers = bytearray(), bytearray(), {node: at for at, node in enumerate(nodes)}
    for node in nodes:
        if node.kind == layout.DIRECTORY:
            node.place = len(listings)
            node.listed = _listing(node, numbers, offsets)
            listings += node.listed
    for number, node in enumerate(nodes):
        inodes += _inode(node, number + 1)
    fields = _tables(data, inodes, bombs, listings, b"".join(pieces))
    fields |= {"inodes": len(nodes), "fragments": len(pieces), "root": _reference(offsets[top])}
    data[:96] = layout.SUPERBLOCK.pack(*{**fields, **claims}.values())
    return bytes(data) + bytes(-len(data) % 4096)


def _ordered(root):
    """Every node once, its contents before it; loops are allowed."""
    seen, order, todo = {root}, [], [root]
    while todo:
        node = todo.pop()
        order.append(node)
        for _, child in node.entries:
            if child not in seen:
                seen.add(child)
                todo.append(child)
    return order[::-1]


def _place(node, data):
    if node.kind != layout.FILE:
        return
    node.start = len(data) if node.start is None else node.start
    node.size = len(node.data) if node.size is None else node.size
    if node.words is None:
        count = int(block_counts(node.size, node.fragment, BLOCK)) if node.data else 0
        sizes = [len(node.data[low : low + BLOCK]) for low in range(0, count * BLOCK, BLOCK)]
        node.words = [layout.DATA_RAW | size for size in sizes]
    data += node.data


def _inode_bytes(node):
    if node.kind == layout.FILE:
        return 32 + 4 * len(node.words)
    return 40 if node.kind == layout.DIRECTORY else 24 + len(node.target)


def _offsets(nodes):
    offsets, at = {}, 0
    for node in nodes:
        offsets[node], at = at, at + _inode_bytes(node)
    return offsets


def _block_start(at):
    """Where the raw metadata block of a position starts, seen from its table."""
    return at // layout.METADATA_BYTES * (layout.METADATA_BYTES + 2)


def _reference(at):
    return _block_start(at) << 16 | at % layout.METADATA_BYTES


def _listing(node, numbers, offsets):
    """A header for each entry, which is as right as one for many."""
    listed = bytearray()
    for name, child in node.entries:
        listed += layout.DIRECTORY_HEADER.pack(0, _block_start(offsets[child]), numbers[child] + 1)
        kind = child.kind if child.claimed_kind is None else child.claimed_kind
        offset = offsets[child] % layout.METADATA_BYTES
        listed += layout.DIRECTORY_ENTRY.pack(offset, 0, kind, len(name) - 1) + name
    return listed


def _inode(node, number):
    kind = node.kind + (layout.EXTENDED if node.kind == layout.DIRECTORY else 0)
    head = layout.INODE_HEADER.pack(kind, 0o644, node.uid, 0, 0, number)
    if node.kind == layout.FILE:
        body = layout.FILE_INODE.pack(node.start, node.fragment, node.fragment_offset, node.size)
        return head + body + b"".join(layout.BLOCK_WORD.pack(word) for word in node.words)
    if node.kind == layout.SYMLINK:
        size = len(node.target) if node.size is None else node.size
        return head + layout.SYMLINK_INODE.pack(1, size) + node.target
    at, size = node.place, len(node.listed)
    block, offset, size = node.listing or (_block_start(at), at % layout.METADATA_BYTES, size + 3)
    return head + layout.EXTENDED_DIRECTORY_INODE.pack(2, size, block, 1, 0, offset, layout.NO_XATTR)


def _metadata(data, table):
    """Append a table as metadata blocks; returns where they start."""
    starts = []
    for low in range(0, len(table), layout.METADATA_BYTES):
        block = bytes(table[low : low + layout.METADATA_BYTES])
        starts.append(len(data))
        data += layout.METADATA_HEADER.pack(len(block) | layout.METADATA_RAW) + block
    return starts


def _listed(data, table):
    starts = _metadata(data, table)
    at = len(data)
    data += b"".join(layout.TABLE_POSITION.pack(start) for start in starts)
    return at


def _tables(data, inodes, bombs, listings, fragments):
    inode_table = len(data)
    if bombs:
        inodes = inodes + bytes(-len(inodes) % layout.METADATA_BYTES)
    _metadata(data, inodes)
    bomb = zlib.compress(bytes(layout.METADATA_BYTES))
    data += (layout.METADATA_HEADER.pack(len(bomb)) + bomb) * bombs
    directory_table = len(data)
    _metadata(data, listings)
    fragment_table = _listed(data, fragments)
    id_table = _listed(data, layout.ID_ENTRY.pack(0))
    return {
        "magic": layout.MAGIC,
        "inodes": 0,
        "mtime": 0,
        "block_bytes": BLOCK,
        "fragments": 0,
        "compressor": 1,
        "block_log": 12,
        "flags": 0,
        "ids": 1,
        "major": 4,
        "minor": 0,
        "root": 0,
        "bytes_used": len(data),
        "id_table": id_table,
        "xattr_table": layout.ABSENT,
        "inode_table": inode_table,
        "directory_table": directory_table,
        "fragment_table": fragment_table,
        "export_table": layout.ABSENT,
    }
