"""Experiments on squashfs images: settings, ways to read, workers that share an offset, an environment.

    bench_settings(samples, folder)      random reads and bytes read for each delivered, by settings
    bench_ways(image, folder)            library, peers and mounts on one image
    bench_squashfs(folder)               that, cold reads by threads, and packing beside mksquashfs
    count_wrong(read, truth)             forked workers and one reader
    import_trials(place)                 a package from many slow files and from one image

The trap: on 400 images everything fits into caches that a real data set does not fit into; so what a
read costs is told in bytes too, not in time alone. Notebook 06 measures with it.
"""

from helpers.bench.squashfs.environment import ImportTrial, import_trials
from helpers.bench.squashfs.run import bench_squashfs
from helpers.bench.squashfs.settings import Measured, bench_settings, documents
from helpers.bench.squashfs.sharing import Trial, count_wrong
from helpers.bench.squashfs.ways import WAYS, bench_ways, usable_ways

__all__ = [
    "WAYS",
    "ImportTrial",
    "Measured",
    "Trial",
    "bench_settings",
    "bench_squashfs",
    "bench_ways",
    "count_wrong",
    "documents",
    "import_trials",
    "usable_ways",
]
