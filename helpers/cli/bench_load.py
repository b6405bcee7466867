"""`bench load`: the flags that loaders need beyond those of the other measurements.

The trap: comma-separated numbers are one word for argparse; they are read here, so that a wrong one is told
in a sentence.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from helpers.errors import UsageError

if TYPE_CHECKING:
    from helpers.bench.loading import LoadBenchConfig, LoadResult


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add them."""
    add = parser.add_argument_group("load").add_argument
    add("--workers", default="2", metavar="N,N", help="numbers of processes or threads to measure with")
    add("--mode", default="processes,threads,ring", metavar="M,M", help="where batches are made")
    add("--batch", type=int, default=64, metavar="N", help="samples in a batch")
    add("--prefetch", type=int, default=2, metavar="N", help="batches that each worker makes ahead")
    add("--size", type=int, default=224, metavar="PIXELS", help="of the training crops")
    add("--filter", choices=("antialias", "linear"), default="antialias", help="how pixels are scaled")
    add("--peers", action="store_true", help="the loaders of others too, as far as they are installed")
    add("--only", action="append", default=[], metavar="NAME", help="only what has this name; repeatable")


def config_of(arguments: argparse.Namespace) -> LoadBenchConfig:
    """The configuration that a parsed command line means."""
    from helpers.bench.loading import LoadBenchConfig

    modes: Any = tuple(arguments.mode.split(","))
    return LoadBenchConfig(
        repeats=arguments.repeats,
        count=arguments.count,
        workers=_numbers(arguments.workers),
        modes=modes,
        batch=arguments.batch,
        prefetch=arguments.prefetch,
        size=arguments.size,
        filter=arguments.filter,
        peers=arguments.peers,
        only=tuple(arguments.only),
        reference=arguments.reference,
        seed=arguments.seed,
        cap=not arguments.no_cap,
    )


def measure(arguments: argparse.Namespace) -> LoadResult:
    """Measure the packed files that were given, or synthetic ones."""
    from helpers.bench.example import packed_example
    from helpers.bench.loading import bench_loading

    config = config_of(arguments)
    if arguments.paths:
        return bench_loading(arguments.paths, config)
    with packed_example(config.count, config.seed) as paths:
        return bench_loading(paths, config)


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise UsageError(
            f"the workers are {text!r}", expected="numbers, such as 2 or 1,2,4", next_step="Correct them"
        ) from None
