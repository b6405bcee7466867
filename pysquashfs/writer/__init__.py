"""Write squashfs images: many small files become one, without a temporary copy of the tree.

The data is written as it comes, from the first byte of the image to the last; only names, sizes and
positions wait in memory for the tables at the end. Equal items and settings give equal bytes.

The trap: the defaults of `mksquashfs` compress photographs once more (which saves 0.1 %) and put their
ends together in shared blocks, so that a random read fetches ten bytes for each one it wants. Here
files are stored raw and whole unless asked otherwise. Notebook 06 measures both.
"""

from pysquashfs.writer.image import ImageWriter
from pysquashfs.writer.packing import PackedImage, pack
from pysquashfs.writer.settings import Settings

__all__ = ["ImageWriter", "PackedImage", "Settings", "pack"]
