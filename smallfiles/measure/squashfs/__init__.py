"""Squashfs files beside others: the library, its peers and the mounts that this machine allows.

    bench_ways(image, folder)            library, peers and mounts on one squashfs file
    bench_squashfs(folder)               that, cold reads by threads, and packing beside mksquashfs

The trap: a few hundred photographs fit into caches that a real data set does not fit into.
"""

from smallfiles.measure.squashfs.run import bench_squashfs
from smallfiles.measure.squashfs.ways import WAYS, bench_ways, usable_ways

__all__ = ["WAYS", "bench_squashfs", "bench_ways", "usable_ways"]
