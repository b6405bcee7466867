"""Experiments on squashfs files: settings, workers that share an offset, an environment as one file.

    bench_settings(samples, folder)      random reads and bytes read for each delivered, by settings
    count_wrong(read, truth)             forked workers and one reader
    import_trials(place)                 a package from many slow files and from one squashfs file

The trap: on 400 photographs everything fits into caches that a real data set does not fit into; so what
a read costs is told in bytes too, not in time alone. Notebook 06 measures with it.
"""

from helpers.experiments.nb06.environment import ImportTrial, import_trials
from helpers.experiments.nb06.settings import Measured, bench_settings, documents
from helpers.experiments.nb06.sharing import Trial, count_wrong
from smallfiles.measure.squashfs import WAYS, bench_squashfs, bench_ways, usable_ways

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
