"""Write squashfs images: many small files become one, without a temporary copy of the tree.

The data is written as it comes, from the first byte of the image to the last; only names, sizes and
positions are kept in memory for the tables at the end. Equal items and settings give equal bytes.

The trap: the defaults of `mksquashfs` compress photographs again (which saves 0.1 %) and store their ends
in shared blocks, so that a random read fetches ten bytes for each requested one. Here files are stored raw
and whole by default. Notebook 06 measures both.
"""

from pysquashfs.writer.image import ImageWriter
from pysquashfs.writer.packing import PackedImage, folder_items, pack
from pysquashfs.writer.settings import Settings

__all__ = ["ImageWriter", "PackedImage", "Settings", "folder_items", "pack"]
