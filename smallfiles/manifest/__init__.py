"""The manifest: which samples a data set has, each with its target, as one columnar table.

Walking a million files is the slowest thing one can do to a parallel file system. A manifest is
walked once, written as one JSON file, and every later step reads that instead. Two JSON shapes are
understood: the flat `{path: label}` of the Jülich course, and ours with a header and columns
(data_manifests/README.md describes both).

The trap: a Python dict of 1.28 million paths costs hundreds of megabytes, and forked workers copy
it page by page, since reading a Python object writes its reference count. The table has no
objects; workers share it. Notebook 02 draws both.
"""

from smallfiles.manifest.table import Manifest

__all__ = ["Manifest"]
