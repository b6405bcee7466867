"""What a measurement is asked to do; prints its own command line.

The trap: a flag that a topic has no use for would be believed. So each topic has its own flags only.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from smallfiles import options
from smallfiles.options import option

Cache: TypeAlias = Literal["warm", "cold"]
Order: TypeAlias = Literal["random", "sequential"]

_ALL = ("repeats", "count", "reference", "seed")
FIELDS = {
    "read": (*_ALL, "orders", "caches", "cap"),
    "pack": (*_ALL, "cap"),
    "slow": (*_ALL, "cap"),
    "stage": (*_ALL, "caches", "cap"),
    "squashfs": (*_ALL, "caches", "cap"),
    "decode": _ALL,
}
"""What each topic makes use of."""


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
        own = options.words(self, FIELDS[what])
        return shlex.join(["smallfiles", "bench", what, *targets, *own])
