"""How a loader shall work: a frozen record that prints its own flags and reads them back.

The trap: `os.cpu_count()` workers on a node of which the job has four CPUs, or on which eight ranks do
the same, is slower than one. What is left open here is filled in from the CPUs that this rank may use.
Notebook 08 teaches it.
"""

from __future__ import annotations

import argparse
import os
import shlex
from dataclasses import dataclass
from typing import Literal

from smallfiles import machine
from smallfiles.errors import UsageError
from smallfiles.machine.ranks import Ranks, ranks
from smallfiles.options import Settings, flag_of, from_args, given, option, words

Mode = Literal["auto", "processes", "threads", "main"]
OnError = Literal["stop", "skip", "repeat", "keep"]
ReadOrder = Literal["random", "stream"]
StartMethod = Literal["fork", "forkserver", "spawn"]

MOST_WORKERS = 16
"""More than a loader of one rank gains from, unless somebody measured it."""

_IGNORED = (
    ("order", "random", ("buffer",)),
    ("mode", "main", ("workers", "prefetch", "start_method")),
    ("mode", "threads", ("start_method",)),
)
"""A setting, and which others nothing follows then."""


@dataclass(frozen=True)
class LoaderConfig(Settings):
    """How to make batches.

    Args:
        batch: Samples in a batch.
        workers: Processes or threads; None takes as many as this rank has CPUs, 16 at most.
        mode: `processes`, `threads` of the trainer, in its `main` thread, or `auto`.
        prefetch: Batches that each worker makes ahead.
        seed: Of all orders and all augmentation.
        shuffle: A new order in each epoch.
        drop_last: Leave out samples so that all batches of all ranks are full.
        on_error: What to do about a sample that cannot be read or decoded: `stop` with its name, `skip` it,
            `repeat` its neighbour, or `keep` what a damaged JPEG still gives; all but `stop` are counted. A
            batch that was left out whole is not handed out; of several ranks it comes empty, so that none
            takes fewer steps than the others.
        order: `random`, or `stream`: ranges of a few MB from all shards, shuffled in a buffer; None streams
            what lies in an object store, where a random sample costs a request for a block of 4 MiB.
        buffer: Samples that a stream holds to shuffle them.
        rank: Number of this process; None asks srun's or torchrun's variables.
        world_size: How many processes share the data; None likewise.
        start_method: How processes are started; None forks where the system can. Nothing of ours is held
            open or locked over a fork, it takes milliseconds, and the workers share the trainer's memory;
            the others import everything again, for seconds and from the same file system.
        pin_memory: Put batches where a GPU copies from by itself; None does so if there is one.
    """

    batch: int = option(64, "samples in a batch", least=1)
    workers: int | None = option(
        None, "processes or threads that make batches; chosen by the CPUs of this rank if not given", least=0
    )
    mode: Mode = option("auto", "where batches are made")
    prefetch: int = option(2, "batches that each worker makes ahead", least=1)
    seed: int = option(0, "of all orders and all augmentation", least=0)
    shuffle: bool = option(True, "a new order in each epoch", both=True)
    drop_last: bool = option(False, "leave out samples so that all batches are full", both=True)
    on_error: OnError = option(
        "stop",
        "at a sample that cannot be made: stop, leave it out, repeat its neighbour, or keep what a damaged "
        "JPEG still gives; all but stop are counted",
    )
    order: ReadOrder | None = option(
        None,
        "all samples at random, or ranges of a few MB from all shards; if not given, random of files and "
        "stream of an object store",
    )
    buffer: int = option(1024, "samples that a stream holds to shuffle them", least=1)
    rank: int | None = option(None, "number of this process; told by srun or torchrun if not given", least=0)
    world_size: int | None = option(
        None, "number of processes; told by srun or torchrun if not given", least=1
    )
    start_method: StartMethod | None = option(None, "how processes are started")
    pin_memory: bool | None = option(
        None, "put batches where a GPU copies from by itself; yes if there is one", both=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.rank is None) != (self.world_size is None):
            raise UsageError(
                f"rank is {self.rank} and world-size is {self.world_size}",
                expected="both or none",
                next_step="Leave both out, and srun or torchrun tells them",
            )

    def to_cli(self) -> str:
        """The flags that differ from the defaults, to be pasted behind a command."""
        return shlex.join(words(self))

    @classmethod
    def from_args(cls, args: argparse.Namespace) -> LoaderConfig:
        """What a parser with these flags has read.

        Raises:
            UsageError: A flag was given that another one makes meaningless.
        """
        config, typed = from_args(cls, args), given(cls, args)
        for setting, value, ignored in _IGNORED:
            names = [flag_of(cls, name) for name in ignored if name in typed and getattr(config, name)]
            if getattr(config, setting) in (None, value) and names:
                raise UsageError(
                    f"{', '.join(names)} would change nothing with {flag_of(cls, setting)} {value}",
                    expected="flags that are followed",
                    next_step=f"Leave {' and '.join(names)} out, or choose another {flag_of(cls, setting)}",
                )
        return config


def place(config: LoaderConfig) -> Ranks:
    """Which rank a loader is for."""
    if config.rank is not None and config.world_size is not None:
        return Ranks(config.rank, config.world_size)
    return ranks()


def default_workers(where: Ranks) -> int:
    """As many as this rank has CPUs for itself.

    SLURM binds a task to its CPUs on most clusters, and torchrun binds nothing: its ranks all see the CPUs
    of the node and have to share them.

    Args:
        where: Tells how many ranks share this node.
    """
    cpus = machine.usable_cpus()
    asked = os.environ.get("SLURM_CPUS_PER_TASK", "")
    if where.source == "slurm" and asked.isdigit() and int(asked):
        cpus = min(cpus, int(asked))
    elif where.source == "torchrun" or cpus >= (os.cpu_count() or 1):
        cpus = cpus // where.local_world_size
    return max(1, min(cpus, MOST_WORKERS))
