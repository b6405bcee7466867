"""What a measurement is asked to do; prints its own command line.

The trap: a flag that a topic has no use for would be believed. So each topic has its own flags only.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from smallfiles import options
from smallfiles.options import option

Cache: TypeAlias = Literal["warm", "cold"]
Order: TypeAlias = Literal["random", "sequential"]
Mode: TypeAlias = Literal["processes", "threads", "ring"]
Filter: TypeAlias = Literal["antialias", "linear"]
MODES: tuple[Mode, ...] = get_args(Mode)


@dataclass(frozen=True)
class BenchConfig:
    """How to measure; its fields are the flags of `bench`."""

    repeats: int = option(7, "rounds", least=1)
    count: int = option(3000, "samples to use at most, or to make", least=1)
    orders: tuple[Order, ...] = option(("random", "sequential"), "orders of reads", flag="order")
    caches: tuple[Cache, ...] = option(("warm", "cold"), "states of the page cache", flag="cache")
    reference: str | None = option(
        None, "ratios against this one; plain files or concatenation if not given", metavar="NAME"
    )
    seed: int = option(0, "of the order of reads and of the rounds", least=0, metavar="S")
    cap: bool = option(True, "no limit on a shared file system; ask your site first")

    def __post_init__(self) -> None:
        options.check(self)

    def to_cli(self, what: str, targets: Sequence[str] = ()) -> str:
        """The command that does the same run."""
        return shlex.join(["smallfiles", "bench", what, *targets, *options.words(self)])


@dataclass(frozen=True)
class LoadBenchConfig:
    """How to measure loaders; its fields are the flags of `bench load`."""

    repeats: int = option(5, "rounds", least=1)
    count: int = option(3000, "samples of an epoch at most, the first of each file, or to make", least=1)
    workers: tuple[int, ...] = option((2,), "processes or threads to measure with", least=1, metavar="N,N")
    modes: tuple[Mode, ...] = option(MODES, "where batches are made", flag="mode", metavar="M,M")
    only: tuple[str, ...] = option((), "only what has this name; repeatable", metavar="NAME", many=True)
    batch: int = option(64, "samples in a batch", least=1)
    prefetch: int = option(2, "batches that each worker makes ahead", least=1)
    size: int = option(224, "of the training crops", least=1, metavar="PIXELS")
    filter: Filter = option("antialias", "how pixels are scaled; loaders of others say theirs by name")
    reference: str | None = option(None, "ratios against this one; the first if not given", metavar="NAME")
    seed: int = option(0, "of orders, crops and rounds", least=0, metavar="S")
    cap: bool = option(True, "no limit on a shared file system; ask your site first")

    def __post_init__(self) -> None:
        options.check(self)

    def to_cli(self, targets: Sequence[str] = ()) -> str:
        """The command that does the same run."""
        return shlex.join(["smallfiles", "bench", "load", *targets, *options.words(self)])
