"""Experiments on HDF5: what layouts cost, what a fork does to a handle, what a lock refuses.

    samples = hdf5.load(setup.source())
    records = hdf5.bench_writes(samples, setup.scratch)
    trials = hdf5.fork_trials(path)

The trap: a fork or a lock may leave a program waiting for ever, so those two run in processes of their
own with a time limit. Notebook 04 shows all three.
"""

from helpers.experiments.nb04.forktrap import Trial, fork_trials
from helpers.experiments.nb04.layouts import by_buffer, by_list, load, write_blob, write_vlen
from helpers.experiments.nb04.locks import Attempted, lock_attempts
from helpers.experiments.nb04.rates import bench_random_reads, bench_writes

__all__ = [
    "Attempted",
    "Trial",
    "bench_random_reads",
    "bench_writes",
    "by_buffer",
    "by_list",
    "fork_trials",
    "load",
    "lock_attempts",
    "write_blob",
    "write_vlen",
]
