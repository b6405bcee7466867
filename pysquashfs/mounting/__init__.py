"""Show an image as a folder, for programs that know only files: `with mount(image) as folder`.

The trap: a mount outlives the program that made it, and after its server was killed every access fails with
"Transport endpoint is not connected". Both cases are handled here. Notebook 06 mounts an image where that is
possible, and measures why reading it with `SquashFS` is faster.
"""

from pysquashfs.mounting.attaching import MountError
from pysquashfs.mounting.folder import mount
from pysquashfs.mounting.ways import Way, how_to_mount

__all__ = ["MountError", "Way", "how_to_mount", "mount"]
