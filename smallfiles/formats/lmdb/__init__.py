"""LMDB: one file that is a sorted tree of keys and values, read through a memory map.

    0000000000 … one entry per sample, in order: its encoded bytes
    labels, key_data, key_offsets, … the arrays of `smallfiles.formats.blob`, as little-endian numbers
    provenance (JSON)

    env = lmdb.open("x.lmdb", subdir=False, readonly=True, lock=False)
    with env.begin() as txn:
        jpeg, labels = txn.get(b"%010d" % 7), np.frombuffer(txn.get(b"labels"), "<i8")

Files of other programs are read if each value is an encoded image, as in LSUN: their keys are kept, and one
warning says that they have no targets. Pickles (ImageFolder-LMDB) and protobufs (Caffe) are refused.

The trap: liblmdb trusts its file. A damaged file ends the process with SIGBUS or SIGABRT, an environment that
was opened before a fork must not be used after it, and a view ends with its transaction. So only the file
layout is LMDB's (data version 1). The writer writes page after page, without a map size to guess and without
a lock file; the reader finds all values at once, checks where they are, and then reads by position like every
other reader here. Notebook 11 compares the formats.
"""

from __future__ import annotations

from pathlib import Path

from smallfiles.formats.bytefile import Access
from smallfiles.formats.lmdb.reading import LMDBReader
from smallfiles.formats.lmdb.writing import LMDBOptions as Options
from smallfiles.formats.lmdb.writing import write

__all__ = ["LMDBReader", "Options", "open", "write"]


def open(path: Path, *, access: Access = "auto") -> LMDBReader:
    """Open an LMDB file, or its folder (`data.mdb`); it must not be written to meanwhile.

    Args:
        path: Written by this package or by another program.
        access: `mmap`, `pread`, or `auto` to choose by file system.
    """
    return LMDBReader(path, access)
