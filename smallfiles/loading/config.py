"""How a loader shall work: a frozen record that prints its own flags and reads them back.

The trap: `os.cpu_count()` workers on a node of which the job has four CPUs, or on which eight ranks do
the same, is slower than one. What is left open here is filled in from the CPUs that this rank may use.
Notebook 08 teaches it.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from smallfiles import machine
from smallfiles.errors import UsageError
from smallfiles.machine.ranks import Ranks, ranks

if TYPE_CHECKING:
    from smallfiles.loading.batches import OnError

Mode = Literal["auto", "processes", "threads", "main"]
Order = Literal["random", "stream"]
StartMethod = Literal["fork", "forkserver", "spawn"]

MOST_WORKERS = 16
"""More than a loader of one rank gains from, unless somebody measured it."""

_CHOICES: dict[str, tuple[str, ...]] = {
    "mode": ("auto", "processes", "threads", "main"),
    "order": ("random", "stream"),
    "on_error": ("stop", "skip", "repeat", "keep"),
    "start_method": ("fork", "forkserver", "spawn"),
}
_IGNORED = (
    ("order", "random", ("buffer",)),
    ("mode", "main", ("workers", "prefetch", "start_method")),
    ("mode", "threads", ("start_method",)),
)
"""A setting, and which others nothing follows then."""
_LEAST = {"batch": 1, "workers": 0, "prefetch": 1, "seed": 0, "buffer": 1, "rank": 0, "world_size": 1}
_HELP = {
    "batch": "samples in a batch",
    "workers": "processes or threads that make batches; chosen by the CPUs of this rank if not given",
    "mode": "where batches are made",
    "prefetch": "batches that each worker makes ahead",
    "seed": "of all orders and all augmentation",
    "shuffle": "a new order in each epoch",
    "drop_last": "leave out samples so that all batches are full",
    "pad": "repeat samples so that all ranks have equally many",
    "on_error": "at a sample that cannot be made: stop, leave it out, repeat its neighbour, or keep what a "
    "damaged JPEG still gives; all but stop are counted",
    "order": "all samples at random, or long runs from shard to shard",
    "buffer": "samples that a stream holds to shuffle them",
    "rank": "number of this process; told by srun or torchrun if not given",
    "world_size": "number of processes; told by srun or torchrun if not given",
    "start_method": "how processes are started",
    "pin_memory": "put batches where a GPU copies from by itself; yes if there is one",
}


@dataclass(frozen=True)
class LoaderConfig:
    """How to make batches.

    Args:
        batch: Samples in a batch.
        workers: Processes or threads; None takes as many as this rank has CPUs, 16 at most.
        mode: `processes`, `threads` of the trainer, in its `main` thread, or `auto`.
        prefetch: Batches that each worker makes ahead.
        seed: Of all orders and all augmentation.
        shuffle: A new order in each epoch.
        drop_last: Leave out samples so that all batches of all ranks are full.
        pad: Repeat samples so that all ranks have equally many.
        on_error: What to do about a sample that cannot be read or decoded: `stop` with its name, `skip` it,
            `repeat` its neighbour, or `keep` what a damaged JPEG still gives; all but `stop` are counted.
        order: `random`, or `stream`: long runs from shard to shard, shuffled in a buffer.
        buffer: Samples that a stream holds to shuffle them.
        rank: Number of this process; None asks srun's or torchrun's variables.
        world_size: How many processes share the data; None likewise.
        start_method: How processes are started; None forks where the system can. Nothing of ours is held
            open or locked over a fork, it takes milliseconds, and the workers share the trainer's memory;
            the others import everything again, for seconds and from the same file system.
        pin_memory: Put batches where a GPU copies from by itself; None does so if there is one.
    """

    batch: int = 64
    workers: int | None = None
    mode: Mode = "auto"
    prefetch: int = 2
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = False
    pad: bool = False
    on_error: OnError = "stop"
    order: Order = "random"
    buffer: int = 1024
    rank: int | None = None
    world_size: int | None = None
    start_method: StartMethod | None = None
    pin_memory: bool | None = None

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if value not in allowed and not (value is None and name == "start_method"):
                raise UsageError(
                    f"{name.replace('_', '-')} is {value!r}",
                    expected=f"one of {', '.join(allowed)}",
                    next_step="Choose one of these",
                )
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(
                    f"{name.replace('_', '-')} is {value}",
                    expected=f"{least} or more",
                    next_step="Choose another number",
                )
        if (self.rank is None) != (self.world_size is None):
            raise UsageError(
                f"rank is {self.rank} and world-size is {self.world_size}",
                expected="both or none",
                next_step="Leave both out, and srun or torchrun tells them",
            )

    def to_cli(self) -> str:
        """The flags that differ from the defaults, to be pasted behind a command."""
        words: list[str] = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value == field.default:
                continue
            if isinstance(value, bool):
                words.append(flag(field.name if value else f"no-{field.name}"))
            else:
                words += [flag(field.name), str(value)]
        return shlex.join(words)

    @classmethod
    def from_args(cls, args: argparse.Namespace) -> LoaderConfig:
        """What a parser with `add_flags` has read.

        Raises:
            UsageError: A flag was given that another one makes meaningless.
        """
        typed = given(args)
        config = cls(**{name: getattr(args, name) for name in typed})
        for setting, value, ignored in _IGNORED:
            names = [flag(name) for name in ignored if name in typed and getattr(config, name)]
            if getattr(config, setting) == value and names:
                raise UsageError(
                    f"{', '.join(names)} would change nothing with {flag(setting)} {value}",
                    expected="flags that are followed",
                    next_step=f"Leave {' and '.join(names)} out, or choose another {flag(setting)}",
                )
        return config


def add_flags(parser: argparse.ArgumentParser | argparse._ArgumentGroup, *leave_out: str) -> None:
    """Add a flag for each field of `LoaderConfig`; what is not given leaves no trace, so `given` can tell.

    Args:
        parser: Gets the flags.
        leave_out: Fields that the command sets itself.
    """
    for field in dataclasses.fields(LoaderConfig):
        if field.name in leave_out:
            continue
        told = field.default not in (None, False, True)
        shown = _HELP[field.name] + f" (default: {field.default})" * told
        options: dict[str, Any] = {"default": argparse.SUPPRESS, "help": shown}
        if "bool" in str(field.type):
            options["action"] = argparse.BooleanOptionalAction
        elif field.name in _CHOICES:
            options["choices"] = _CHOICES[field.name]
        else:
            options |= {"type": int, "metavar": "N"}
        parser.add_argument(flag(field.name), **options)


def given(args: argparse.Namespace) -> list[str]:
    """The fields of `LoaderConfig` that a command line names, also those that it sets to their defaults."""
    return [field.name for field in dataclasses.fields(LoaderConfig) if hasattr(args, field.name)]


def flag(name: str) -> str:
    """A field as people type it."""
    return "--" + name.replace("_", "-")


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


def wants_pinning(config: LoaderConfig) -> bool:
    """Whether batches go into pinned memory."""
    import torch

    return torch.cuda.is_available() if config.pin_memory is None else config.pin_memory
