"""The manifest: the samples of a data set with their targets, as one columnar table.

Walking a million files is slow on a parallel file system. So a tree is walked once, and every later step
reads its manifest, one JSON file. There are two forms: the flat `{path: label}` of the Jülich course, and
ours with a header and columns (data_manifests/README.md describes both).

The trap: a Python dict of 1.28 million paths costs hundreds of megabytes, and forked workers copy it page by
page, since reading a Python object writes its reference count. Workers share the table, which contains no
Python objects. Notebook 02 draws both.
"""

from smallfiles.manifest.table import Manifest

__all__ = ["Manifest"]
