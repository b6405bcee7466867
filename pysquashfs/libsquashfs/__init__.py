"""The back end that reads and writes images with libsquashfs, the C library of squashfs-tools-ng.

    parse(image)          the index of an image, by the library's own walk of its folders
    LibraryReader         the bytes of files, by the library's data reader
    available()           the version of the library on this machine
    writing               an image, by the library's block processor

It is a second, independent implementation: whatever both back ends read alike is most probably right. It also
decompresses lzma, and every other compressor for which the Python package is not installed.

The trap: a C library that is called wrongly ends the process. So a library of unknown structs is refused, our
own code checks every size and position before the library uses it, and nothing of the library is shared
between processes or threads. Notebook 06 reads with both back ends.
"""

from pysquashfs.libsquashfs.library import available
from pysquashfs.libsquashfs.parsing import parse
from pysquashfs.libsquashfs.reading import LibraryReader

__all__ = ["LibraryReader", "available", "parse"]
