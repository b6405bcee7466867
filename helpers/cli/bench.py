"""`bench`: measure with a protocol, write records."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from helpers.cli import bench_load
from helpers.cli.arguments import Verbs, add_verb
from helpers.cli.output import print_json, say
from helpers.errors import OutputExistsError, ResourceError, UsageError

if TYPE_CHECKING:
    from helpers.bench import BenchConfig, PackResult, ReadResult, Record
    from helpers.bench.config import Order
    from helpers.bench.decoding import DecodeResult
    from helpers.bench.loading import LoadResult
    from helpers.bench.record import Cache

_ORDERS: dict[str, tuple[Order, ...]] = {"both": ("random", "sequential")}
_CACHES: dict[str, tuple[Cache, ...]] = {"both": ("warm", "cold")}

_MORE = """\
read   random and sequential reads of packed files, warm and cold, all files interleaved round by
       round; every byte is touched.
pack   packing warm data to memory-backed storage against plain concatenation, the HDF5 and Arrow
       scripts of the Juelich course and webdataset's ShardWriter, with peak memory.
slow   packing a folder whose look-ups and opens take milliseconds (--latency-ms), against scripts
       that read one file after the other and against bare readers. It needs FUSE.
stage  copying a packed file to memory with every block checked, against dd and against cp -r of the
       same samples as small files: from memory, from a cold disk, and from a slow folder.
squashfs  one raw image of a folder: random reads by pysquashfs, by PySquashfsImage and through the mounts
       that this machine allows; cold reads by threads; packing beside mksquashfs, same settings.
decode turning JPEGs in memory into pixels, and into random crops of 224 x 224, with one and two at
       work, beside Pillow, torchvision, OpenCV, DALI, FFCV and SPDL where these are installed.
load   whole epochs of training crops, by processes, threads and through a ring, with --peers beside the
       Jülich loaders, webdataset, torchvision, DALI, SPDL and FFCV; where the time of a batch goes.
Without a target a synthetic data set is made and measured. Single runs, spread and the machine are
kept in the record; compare only within one run. On a shared file system the number of operations is
capped, and said."""


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "bench",
        "measure reading and packing, with repeats and spread",
        _MORE,
        [
            "python -m helpers bench read train.arrow train.h5 train.tars",
            "python -m helpers bench read train.arrow --cache cold --save results/read.json",
            "python -m helpers bench pack data",
            "python -m helpers bench slow data --latency-ms 2 --repeats 5",
            "python -m helpers bench stage data --count 20000",
            "python -m helpers bench squashfs data --count 20000",
            "python -m helpers bench decode train.arrow --repeats 5",
            "python -m helpers bench load train.arrow train.h5 train.tars --peers --workers 2",
        ],
    )
    parser.add_argument(
        "what",
        choices=("read", "pack", "slow", "stage", "squashfs", "decode", "load"),
        help="what to measure",
    )
    parser.add_argument(
        "paths",
        nargs="*",
        type=Path,
        metavar="OUT|DIR",
        help="packed files (read, load), a data set (pack, slow, stage, squashfs) or either (decode)",
    )
    parser.add_argument("--repeats", type=int, default=7, metavar="N", help="rounds")
    parser.add_argument(
        "--count", type=int, default=3000, metavar="N", help="samples to use at most, or to make"
    )
    parser.add_argument(
        "--order", choices=("random", "sequential", "both"), default="both", help="order of reads"
    )
    parser.add_argument(
        "--cache", choices=("warm", "cold", "both"), default="both", help="state of the page cache"
    )
    parser.add_argument(
        "--reference",
        metavar="NAME",
        help="ratios against this one; plain files or concatenation if not given",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the order of reads")
    parser.add_argument(
        "--latency-ms", type=float, default=2.0, metavar="T", help="slow: milliseconds of an operation"
    )
    parser.add_argument("--save", type=Path, metavar="R.json", help="write the records here")
    parser.add_argument(
        "--no-cap", action="store_true", help="no limit on a shared file system; ask your site first"
    )
    bench_load.add_flags(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure, show, keep."""
    if arguments.save is not None:
        _check_place(arguments.save)
    _warn(arguments)
    began = perf_counter()
    measures: dict[str, Callable[[argparse.Namespace], ReadResult | PackResult | DecodeResult | LoadResult]]
    measures = {"read": _reads, "pack": _packing, "slow": _slow, "stage": _staging, "squashfs": _squashfs}
    measures["decode"] = _decoding
    measures["load"] = bench_load.measure
    result = measures[arguments.what](arguments)
    for note in result.notes:
        say(f"note: {note}")
    _show(arguments, result.records, perf_counter() - began)  # before a full disk can keep it from us
    if arguments.save is not None:
        from helpers.bench import save

        save(result.records, arguments.save)
    return 0


def _warn(arguments: argparse.Namespace) -> None:
    """Say so if this is a login node and the work, as far as one can tell beforehand, is heavy."""
    from helpers.bench.example import PACKED, SAMPLE_BYTES
    from helpers.bench.packing import FORMATS
    from helpers.bench.peers import METHODS
    from helpers.machine import warn_on_login_node

    config = config_of(arguments)
    runs = config.repeats * (2 * len(FORMATS) + len(METHODS))
    if arguments.what == "read":
        conditions = len(config.orders) * len(config.caches)
        runs = config.repeats * conditions * (len(arguments.paths) or len(PACKED))
    warn_on_login_node("measuring", size_bytes=runs * config.count * SAMPLE_BYTES)


def _check_place(save: Path) -> None:
    """Refuse a file that cannot be written before the measurement, not after it."""
    if save.exists():
        raise OutputExistsError(
            f"{save} exists already",
            expected="a new file for new records",
            next_step="Choose another name, or move the old records away",
        )
    save.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(save.parent, os.W_OK | os.X_OK):
        raise ResourceError(
            f"{save.parent} is not writable",
            expected=f"a folder that takes {save.name}",
            next_step="Give --save a name in another folder",
        )


def config_of(arguments: argparse.Namespace) -> BenchConfig:
    """The configuration that a parsed command line means."""
    from helpers.bench import BenchConfig

    return BenchConfig(
        repeats=arguments.repeats,
        count=arguments.count,
        orders=_ORDERS.get(arguments.order, (arguments.order,)),
        caches=_CACHES.get(arguments.cache, (arguments.cache,)),
        reference=arguments.reference,
        seed=arguments.seed,
        cap=not arguments.no_cap,
    )


def _reads(arguments: argparse.Namespace) -> ReadResult:
    from helpers.bench import bench_reads
    from helpers.bench.example import packed_example

    config = config_of(arguments)
    if arguments.paths:
        return bench_reads(arguments.paths, config)
    with packed_example(config.count, config.seed) as paths:
        return bench_reads(paths, config)


def _packing(arguments: argparse.Namespace) -> PackResult:
    from helpers.bench import bench_packing

    return _of_a_set(arguments, bench_packing)


def _slow(arguments: argparse.Namespace) -> PackResult:
    from helpers.bench.slow import bench_slow
    from helpers.slowfs import SlowConfig

    slow = SlowConfig(latency_s=arguments.latency_ms / 1e3)
    return _of_a_set(arguments, lambda folder, config: bench_slow(folder, config, slow))


def _staging(arguments: argparse.Namespace) -> PackResult:
    from helpers.bench.staging import bench_staging

    return _of_a_set(arguments, bench_staging)


def _squashfs(arguments: argparse.Namespace) -> PackResult:
    from helpers.bench.squashfs import bench_squashfs

    return _of_a_set(arguments, bench_squashfs)


def _of_a_set(
    arguments: argparse.Namespace, measure: Callable[[Path, BenchConfig], PackResult]
) -> PackResult:
    """Measure the one data set that was given, or a synthetic one."""
    from helpers.bench.example import example

    config = config_of(arguments)
    if len(arguments.paths) > 1:
        raise UsageError(
            f"{len(arguments.paths)} data sets were given",
            expected="one to pack, or none to make one",
            next_step="Measure them one after the other",
        )
    if arguments.paths:
        return measure(arguments.paths[0], config)
    with example(config.count, config.seed) as source:
        return measure(source, config)


def _decoding(arguments: argparse.Namespace) -> DecodeResult:
    from helpers.bench.decoding import MOST_PICTURES, bench_decoding
    from helpers.bench.example import example

    config = config_of(arguments)
    if len(arguments.paths) > 1:
        raise UsageError(
            f"{len(arguments.paths)} data sets were given",
            expected="one whose pictures are decoded, or none to make one",
            next_step="Measure them one after the other",
        )
    if arguments.paths:
        return bench_decoding(arguments.paths[0], config)
    with example(min(config.count, MOST_PICTURES), config.seed) as source:
        return bench_decoding(source, config)


def _show(arguments: argparse.Namespace, records: Sequence[Record], seconds: float) -> None:
    from helpers.bench.loading.shown import tables
    from helpers.bench.table import summary

    if not arguments.json:
        print((tables if arguments.what == "load" else summary)(records, arguments.reference))
        return
    totals = {
        "samples": sum(record.samples * record.repeats for record in records),
        "bytes": sum(record.bytes * record.repeats for record in records),
        "seconds": round(seconds, 3),
    }
    print_json({**totals, "records": [record.as_json() for record in records]})
