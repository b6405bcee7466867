"""LMDB: one file that is a sorted tree of keys and values, read through a memory map.

    0000000000 … one entry per sample, in order: its encoded bytes
    labels, key_data, key_offsets, … the arrays of `smallfiles.formats.blob`, as little-endian numbers
    provenance (JSON)

    env = lmdb.open("x.lmdb", subdir=False, readonly=True, lock=False)
    with env.begin() as txn:
        jpeg, labels = txn.get(b"%010d" % 7), np.frombuffer(txn.get(b"labels"), "<i8")

Files of others are read where each value is an encoded image, as LSUN's are: their keys are kept, and that
they tell no targets is said once. Pickles (ImageFolder-LMDB) and protobufs (Caffe) are refused.

The trap: liblmdb trusts its file. A damaged one ends the process with SIGBUS or SIGABRT, an environment that
was opened before a fork may not be used behind it, and a view ends with its transaction. So only the tree's
form is taken from LMDB: pages are written one after the other, in the form of data version 1, without a map
size to guess and without a lock file; and the reader finds all places at once, checks them, and then reads
by position as from every other format here. Notebook 11 compares the formats.
"""

from __future__ import annotations

from pathlib import Path

from smallfiles.formats.bytefile import Access
from smallfiles.formats.lmdb.reading import LMDBReader
from smallfiles.formats.lmdb.writing import LMDBOptions as Options
from smallfiles.formats.lmdb.writing import write

__all__ = ["LMDBReader", "Options", "open", "write"]


def open(path: Path, *, access: Access = "auto") -> LMDBReader:
    """Open an LMDB file, or the folder of one (`data.mdb`); nobody may write to it meanwhile.

    Args:
        path: Written by this package or by another program.
        access: `mmap`, `pread`, or `auto` to choose by file system.
    """
    return LMDBReader(path, access)
