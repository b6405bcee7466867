"""Batches for training: every sample exactly once per epoch, over all ranks and workers.

    plan           which samples a rank reads, in which order, over which streams: arithmetic
    schedule       which epoch and batch comes next
    makers         a batch, and one maker per field: Image, Mask, Boxes, Array, Audio, Value, Ragged,
                   Function
    fields         batches of all fields; unreadable samples
    callables      torchvision's transforms, and functions of a picture
    dataset        any sample by its number
    packed_folder  the class in place of torchvision's ImageFolder
    stream         ranges of shards, mixed in a buffer
    loader         `make_loader`: a DataLoader with processes, threads, or neither
    worker_errors  why a worker died, in a sentence

The traps: each of a loader's dozen settings fails silently: duplicate samples, the same order in all epochs,
equal crops in all workers. `make_loader` sets them together. And `os.cpu_count()` workers are
slower than one if the job has four CPUs of the node, or if eight ranks of the node each start as many. The
defaults here come from the CPUs that this rank may use. Notebook 08 teaches it.

Here are the settings of a loader; the rest is imported when it is first used.
"""

from __future__ import annotations

import argparse
import os
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from smallfiles import lazy, machine
from smallfiles.errors import UsageError
from smallfiles.machine.ranks import Ranks, ranks
from smallfiles.options import explicit_fields, flag_of, from_args, option, to_argv
from smallfiles.selection import Draw
from smallfiles.storage import timeout_option

if TYPE_CHECKING:
    from smallfiles.loading.dataset import LoadedBatch as LoadedBatch
    from smallfiles.loading.dataset import SampleDataset as SampleDataset
    from smallfiles.loading.fields import BadSampleError as BadSampleError
    from smallfiles.loading.fields import FieldBatches as FieldBatches
    from smallfiles.loading.fields import field_batches as field_batches
    from smallfiles.loading.loader import Loader as Loader
    from smallfiles.loading.loader import make_loader as make_loader
    from smallfiles.loading.makers import Array as Array
    from smallfiles.loading.makers import Audio as Audio
    from smallfiles.loading.makers import Batch as Batch
    from smallfiles.loading.makers import BatchMaker as BatchMaker
    from smallfiles.loading.makers import Boxes as Boxes
    from smallfiles.loading.makers import Function as Function
    from smallfiles.loading.makers import Image as Image
    from smallfiles.loading.makers import Mask as Mask
    from smallfiles.loading.makers import Ragged as Ragged
    from smallfiles.loading.makers import Value as Value
    from smallfiles.loading.packed_folder import PackedFolder as PackedFolder
    from smallfiles.loading.plan import EpochPlan as EpochPlan
    from smallfiles.loading.worker_errors import WorkerDiedError as WorkerDiedError

__getattr__ = lazy.names(__name__)


Mode = Literal["auto", "processes", "threads", "main"]
OnError = Literal["stop", "skip", "repeat", "keep"]
ReadOrder = Literal["random", "stream"]
StartMethod = Literal["fork", "forkserver", "spawn"]

MOST_WORKERS = 16
"""More workers rarely help the loader of one rank."""

_IGNORED = (
    ("order", "random", ("buffer",)),
    ("mode", "main", ("workers", "prefetch", "start_method")),
    ("mode", "threads", ("start_method",)),
)
"""A setting, its value, and the settings that then have no effect."""


@dataclass(frozen=True)
class LoaderConfig(Draw):
    """How to make batches, of which samples, and how often they come (see `Choice` and `Draw`).

    Args:
        batch: Samples in a batch.
        workers: Processes or threads; None takes the number of CPUs of this rank, at most 16.
        mode: Where batches are made: `processes`, `threads` of the trainer, its `main` thread, or `auto`.
        prefetch: Batches that each worker makes ahead.
        seed: Of all orders and all augmentation.
        shuffle: A new order in each epoch.
        drop_last: Leave out samples so that all batches of all ranks are full.
        on_error: What to do about a sample that cannot be read or decoded: `stop` with its name, `skip` it,
            `repeat` its neighbour, or `keep` what a damaged JPEG still gives; all but `stop` are counted. A
            batch without any readable sample is left out; with several ranks it is returned empty, so that
            all ranks take the same number of steps.
        order: `random`, or `stream`: ranges of a few MB from all shards, shuffled in a buffer; None streams
            from an object store, where a random sample costs a request for a block of 4 MiB.
        buffer: Samples that a stream holds to shuffle them.
        rank: Number of this process; None asks `torch.distributed`, and then the launcher (srun, torchrun,
            mpirun).
        world_size: How many processes share the data; None likewise.
        start_method: How processes are started; None forks where the system can. We hold nothing open or
            locked across a fork, it takes milliseconds, and workers share the trainer's memory; with the
            other methods each worker spends seconds on imports from the shared file system.
        pin_memory: Put batches in pinned memory, from which a GPU copies by itself; None does so if there is
            a GPU.
        storage_timeout_s: How long to wait for storage that does not answer before training stops. It is no
            fault of a sample, so `on_error` does not apply. The loader that was made or began an epoch
            last sets it for its process.
    """

    batch: int = option(64, "samples in a batch", least=1)
    workers: int | None = option(
        None, "processes or threads that make batches (default: by the CPUs of this rank)", least=0
    )
    mode: Mode = option("auto", "where batches are made")
    prefetch: int = option(2, "batches that each worker makes ahead", least=1)
    seed: int = option(0, "of all orders and all augmentation", least=0)
    shuffle: bool = option(True, "a new order in each epoch", both=True)
    drop_last: bool = option(False, "leave out samples so that all batches are full", both=True)
    on_error: OnError = option(
        "stop",
        "at a sample that cannot be read: stop, leave it out, repeat its neighbour, or keep what a damaged "
        "JPEG still gives; all but stop are counted",
    )
    order: ReadOrder | None = option(
        None,
        "all samples at random, or ranges of a few MB from all shards (default: random for files, "
        "stream for an object store)",
    )
    buffer: int = option(1024, "samples that a stream holds to shuffle them", least=1)
    rank: int | None = option(
        None, "number of this process (default: from torch.distributed, srun, torchrun or mpirun)", least=0
    )
    world_size: int | None = option(None, "number of processes (default: likewise)", least=1)
    start_method: StartMethod | None = option(None, "how processes are started")
    pin_memory: bool | None = option(
        None, "put batches in memory from which a GPU copies by itself (default: if there is one)", both=True
    )
    storage_timeout_s: float = timeout_option()

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.rank is None) != (self.world_size is None):
            raise UsageError(
                f"rank is {self.rank} and world-size is {self.world_size}",
                expected="both or neither",
                next_step="Leave both out, and they are taken from torch.distributed or the launcher",
            )

    def to_cli(self) -> str:
        """Return the flags that differ from the defaults, to append to a command."""
        return shlex.join(to_argv(self))

    @classmethod
    def from_args(cls, args: argparse.Namespace) -> LoaderConfig:
        """Build the settings from a parsed command line.

        Raises:
            UsageError: A flag was given that has no effect with another one.
        """
        config, typed = from_args(cls, args), explicit_fields(cls, args)
        for setting, value, ignored in _IGNORED:
            names = [flag_of(cls, name) for name in ignored if name in typed and getattr(config, name)]
            if getattr(config, setting) in (None, value) and names:
                raise UsageError(
                    f"{', '.join(names)} would change nothing with {flag_of(cls, setting)} {value}",
                    expected="flags that have an effect",
                    next_step=f"Leave {' and '.join(names)} out, or choose another {flag_of(cls, setting)}",
                )
        return config


def place(config: LoaderConfig) -> Ranks:
    """Return the rank for which a loader works."""
    if config.rank is not None and config.world_size is not None:
        return Ranks(config.rank, config.world_size)
    return ranks()


def default_workers(where: Ranks) -> int:
    """Return the number of CPUs that this rank has for itself, at most 16.

    SLURM binds a task to its CPUs on most clusters. torchrun and `mp.spawn` do not: all ranks on a node see
    all of its CPUs and must share them.

    Args:
        where: The rank, and how many ranks share this node.
    """
    cpus = machine.usable_cpus()
    asked = os.environ.get("SLURM_CPUS_PER_TASK", "")
    if where.source == "slurm" and asked.isdigit() and int(asked):
        cpus = min(cpus, int(asked))
    elif where.source in ("torchrun", "torch.distributed") or cpus >= (os.cpu_count() or 1):
        cpus = cpus // where.local_world_size
    return max(1, min(cpus, MOST_WORKERS))
