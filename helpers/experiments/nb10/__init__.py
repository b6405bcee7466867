"""Many nodes, played on one machine, and a job where Slurm is.

    players       the environment that launchers give a process, and such processes
    submitting    a job of the course, sent and waited for
    played_slurm  srun, scontrol and python as a job script sees them, for exercise 10

The trap: what is played is the place of a process, not its machine. CPUs, memory and storage are shared by
all "nodes" here, so times mean nothing. Notebook 10 runs them.
"""

from helpers.experiments.nb10.players import play, salloc, script, srun, table, torchrun
from helpers.experiments.nb10.submitting import site_here, submit, training_on_cluster

__all__ = [
    "play",
    "salloc",
    "script",
    "site_here",
    "srun",
    "submit",
    "table",
    "torchrun",
    "training_on_cluster",
]
