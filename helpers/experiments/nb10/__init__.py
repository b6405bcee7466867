"""Experiments on many nodes, played on one machine: who reads what, what scales, what a time limit costs.

    environments    what srun, torchrun and a job script tell a process
    pool, work      processes that play ranks, and what they do
    reading         every sample exactly once, and three ways to miss that
    scaling         more ranks on one storage
    stopping        a training that is asked to stop, and goes on
    submitting      the same reading as a job, where Slurm is

The trap: what is played is the place of a process, not its machine. CPUs, memory and storage are shared by
all "nodes" here, so times are measured only where that does not matter, or is what is meant. Notebook 10
runs them.
"""

from helpers.experiments.nb10.pool import WorkerPool
from helpers.experiments.nb10.reading import Reading, compare_ways, cost_of_one_cpu
from helpers.experiments.nb10.scaling import Scaling, measure_scaling
from helpers.experiments.nb10.stopping import Stopped, measure_stop
from helpers.experiments.nb10.submitting import ROOT, read_on_cluster, site_here, training_on_cluster

__all__ = [
    "ROOT",
    "WorkerPool",
    "Reading",
    "Scaling",
    "Stopped",
    "compare_ways",
    "cost_of_one_cpu",
    "measure_scaling",
    "measure_stop",
    "read_on_cluster",
    "site_here",
    "training_on_cluster",
]
