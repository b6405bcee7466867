"""The back end that reads through libsquashfs, the C library of squashfs-tools-ng.

The trap: whether it helps. It unpacks gzip somewhat quicker than Python and is slower at everything else,
so nothing takes it unasked. Notebook 06 reads with both.
"""

from pysquashfs.libsquashfs.library import available
from pysquashfs.libsquashfs.reading import LibraryBackend, open_backend

__all__ = ["LibraryBackend", "available", "open_backend"]
