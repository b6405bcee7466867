"""Write an LMDB file from start to end: the values, the tree over them, and finally where its root is.

A database that grows copies the path to each leaf with every transaction. Since all keys come in order here,
every page is written once, and the content digest is taken on the way.

The trap: liblmdb never makes a branch page with a single child, and aborts on one. So the entries are dealt
evenly to as many pages as they need.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from smallfiles.errors import FormatError
from smallfiles.formats import provenance
from smallfiles.formats.blob import arrays_of
from smallfiles.formats.columns import SampleColumns, refuse_fields
from smallfiles.formats.output import OutputFile, packed
from smallfiles.samples import Buffer, Packed, Sample, Schema

PAGE_BYTES = 4096  # on every machine, so that equal inputs give equal bytes
# Page number, unused, kind, end of the pointers, start of the nodes.
HEAD = struct.Struct("<QHHHH")
# Size of the value, or low bits of the child; flags, or high bits of the child; size of the key.
NODE = struct.Struct("<IHH")
META = struct.Struct("<IIQQ" + 2 * "IHHQQQQQ" + "QQ")
PAGE_NUMBER = struct.Struct("<Q")
MAGIC, VERSION = 0xBEEFC0DE, 1
BRANCH, LEAF, OVERFLOW, META_PAGE = 1, 2, 4, 8
OWN_PAGES = 1
"""Flag of a node whose value is on pages of its own."""

NO_PAGE = 2**64 - 1
PROVENANCE = "provenance"
LARGEST_BYTES = 2**32 - 1
_FREE_FLAGS = 0x4008  # page numbers as keys; the environment is no folder
_KEY_BYTES = 16  # the longest name, padded
_LEAVES = (PAGE_BYTES - HEAD.size) // (2 + NODE.size + _KEY_BYTES + PAGE_NUMBER.size)
_BRANCHES = (PAGE_BYTES - HEAD.size) // (2 + NODE.size + _KEY_BYTES)
_EMPTY_DB = (0, 0, 0, 0, 0, 0, NO_PAGE)  # flags, depth, branch, leaf and overflow pages, entries, root


@dataclass(frozen=True)
class LMDBOptions:
    """LMDB has none."""


def write(
    samples: Iterable[Sample],
    out: Path,
    *,
    schema: Schema,
    options: LMDBOptions | None = None,
    digest: bool = True,
) -> Packed:
    """Write samples into one LMDB file.

    The tree comes last and in one piece: finding all samples of ImageNet is one read of 45 MB, whereas a
    database that grew entry by entry has those pages all over the file.

    Args:
        samples: In the order in which they are stored.
        out: A name that does not exist.
        schema: What is packed.
        options: None.
        digest: Whether to write the content digest beside it.

    Returns:
        What was written.

    Raises:
        FormatError: There are further fields, or a sample does not fit the schema or has 4 GiB or more.
        ResourceError: No space or no permission.
    """
    options = options or LMDBOptions()
    refuse_fields(out, schema, "LMDB")
    columns, sizes = SampleColumns(out, schema), array("Q")
    with OutputFile(out, digest=digest) as file:
        file.append([bytes(2 * PAGE_BYTES)])  # zeros until the end, so that an unfinished file is no database
        for sample in samples:
            columns.add(sample)
            _put(file, sample.data, repr(sample.key))
            sizes.append(len(sample.data))
        record = provenance.dumps(provenance.record("lmdb", schema, options))
        keys, values = columns.finish()
        named = [(PROVENANCE, np.frombuffer(record.encode(), np.uint8)), *arrays_of(keys["key"], values)]
        entries = [
            (name.encode(), each.nbytes, _put(file, each.view(np.uint8).data, name)) for name, each in named
        ]
        _finish(file, sizes, sorted(entries))
        return packed(out, "lmdb", len(sizes), sum(sizes), file.finish())


def _put(file: OutputFile, data: Buffer, name: str) -> int:
    """Write a value to pages of its own; return the number of the first."""
    size = len(data)
    if size > LARGEST_BYTES:
        raise FormatError(
            f"{name} for {file.path} has {size:,} bytes",
            expected="less than 4 GiB, the limit of LMDB for one value",
            next_step="Pack into .arrow, or leave it out",
        )
    number, pages = file.position // PAGE_BYTES, _pages(size)
    head = HEAD.pack(number, 0, OVERFLOW, pages & 0xFFFF, pages >> 16)
    file.append([head, data, bytes(pages * PAGE_BYTES - HEAD.size - size)])
    return number


def _pages(size: int) -> int:
    return -(-(HEAD.size + size) // PAGE_BYTES)


def _entries(sizes: Iterable[int], named: list[tuple[bytes, int, int]]) -> Iterator[tuple[bytes, bytes]]:
    """Key and node of every value, in order."""
    page = 2
    for number, size in enumerate(sizes):
        key = b"%010d" % number
        yield key, _node(size, OWN_PAGES, key) + PAGE_NUMBER.pack(page)
        page += _pages(size)
    for key, size, page in named:
        yield key, _node(size, OWN_PAGES, key) + PAGE_NUMBER.pack(page) + bytes(len(key) % 2)


def _node(low: int, high: int, key: bytes) -> bytes:
    return NODE.pack(low, high, len(key)) + key


def _finish(file: OutputFile, sizes: array[int], named: list[tuple[bytes, int, int]]) -> None:
    """Write the tree from its leaves to its root, and then the two meta pages."""
    count, values = len(sizes) + len(named), file.position // PAGE_BYTES - 2
    children = _level(file, _entries(sizes, named), count, _LEAVES, LEAF)
    leaves, depth, branches = len(children), 1, 0
    while len(children) > 1:
        nodes = [
            (key, _node(page & 0xFFFFFFFF, page >> 32, key) + bytes(len(key) % 2)) for key, page in children
        ]
        children = _level(file, nodes, len(nodes), _BRANCHES, BRANCH)
        depth, branches = depth + 1, branches + len(children)
    tree = (0, depth, branches, leaves, values, count, children[0][1])
    pages = file.position // PAGE_BYTES
    file.rewrite(_meta(0, pages, 1, _EMPTY_DB) + _meta(1, pages, pages - 1, tree))


def _level(
    file: OutputFile, nodes: Iterable[tuple[bytes, bytes]], count: int, most: int, kind: int
) -> list[tuple[bytes, int]]:
    """Write the pages of one level; return the first key of each page, and its number."""
    nodes, pages, found = iter(nodes), -(-count // most), []
    for page in range(pages):
        some = list(islice(nodes, count * (page + 1) // pages - count * page // pages))
        found.append((some[0][0], file.position // PAGE_BYTES))
        body = b"".join(node for _, node in some)
        ends = np.cumsum([0, *(len(node) for _, node in some[:-1])]) + PAGE_BYTES - len(body)
        pointers = ends.astype("<u2").tobytes()
        begin = HEAD.size + len(pointers)
        head = HEAD.pack(found[-1][1], 0, kind, begin, PAGE_BYTES - len(body))
        file.append([head, pointers, bytes(PAGE_BYTES - begin - len(body)), body])
    return found


def _meta(number: int, pages: int, last: int, tree: tuple[int, ...]) -> bytes:
    free = (PAGE_BYTES, _FREE_FLAGS, *_EMPTY_DB[1:])
    meta = META.pack(MAGIC, VERSION, 0, pages * PAGE_BYTES, *free, 0, *tree, last, number)
    return (HEAD.pack(number, 0, META_PAGE, 0, 0) + meta).ljust(PAGE_BYTES, b"\0")
