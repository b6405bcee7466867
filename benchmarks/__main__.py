"""`python -m benchmarks TOPIC …`: as `smallfiles bench TOPIC …`, with others beside ours.

The trap: a comparison whose one candidate fails must not lose the rest, so each runs in a process of its
own, and what fails is a line of the table.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from smallfiles import cli
from smallfiles.cli.bench import TOPICS, Topic
from smallfiles.errors import MissingPackageError
from smallfiles.measure import BenchConfig, Result

try:
    from benchmarks import (
        advising,
        decoding,
        growth,
        objectstore,
        opening,
        peers,
        scaling,
        slow,
        squashfs,
        staging,
        watching,
    )
except Exception as error:  # an environment that is not the course's
    sys.exit(f"error: {MissingPackageError.of_import(error, 'the benchmarks') or error}")

OTHERS = {
    "pack": "benchmarks.packing",
    "load": "benchmarks.loaders",
}
"""The module of others for each topic that has some."""

_FIELDS = TOPICS["pack"].fields


def _stage(source: Path, config: BenchConfig) -> Result:
    """Copying a packed file to memory with every block checked.

    Against dd and against cp -r of the same samples as small files: from memory, from a cold disk, and from a
    slow folder.

    Examples:
        python -m benchmarks stage data --count 20000
    """
    return staging.bench_staging(source, config)


def _decode(source: Path, config: BenchConfig) -> Result:
    """Turning JPEGs in memory into pixels and crops.

    Random crops of 224 x 224, with one and two at work, and decoding alone by each decoder. DIR may be a
    packed file.

    Examples:
        python -m benchmarks decode train.arrow --repeats 5
    """
    return decoding.bench_decoding(source, config)


def _slow(folder: Path, config: slow.SlowBenchConfig) -> Result:
    """Packing a folder whose look-ups and opens take milliseconds.

    Against scripts that read one file after the other and against bare readers. It needs FUSE.

    Examples:
        python -m benchmarks slow data --latency-ms 2 --repeats 5
    """
    return slow.bench_slow(folder, config)


def _squashfs(folder: Path, config: BenchConfig) -> Result:
    """A raw and a compressed image of a folder.

    Random reads by both back ends of pysquashfs, by PySquashfsImage and through the mounts that this machine
    allows, warm and cold; packing beside mksquashfs and gensquashfs.

    Examples:
        python -m benchmarks squashfs data --count 20000
    """
    return squashfs.bench_squashfs(folder, config)


def _scaling(folder: Path, config: scaling.ScalingBenchConfig) -> Result:
    """Processes that read a slow folder.

    Beside what the queueing model forecasts for them. It needs FUSE.

    Examples:
        python -m benchmarks scaling data --repeats 5
    """
    return scaling.bench_scaling(folder, config)


def _peers(folder: Path, config: peers.PeersConfig) -> Result:
    """Ours and what others wrote, on the same files.

    Packing, raw random reads, decoding with augmenting, epochs, and accelerators that are imitated. With
    --save the table and the figure are written beside the records.

    Examples:
        python -m benchmarks peers data --save results/peers.json
    """
    return peers.bench_peers(folder, config)


def _objectstore(folder: Path, config: BenchConfig) -> Result:
    """Packed shards to an object store and back.

    Beside `rclone copy` with parts of the same size and as many requests in flight. The servers run on this
    machine: rclone's, and SeaweedFS where it is installed.

    Examples:
        python -m benchmarks objectstore data --count 3000 --repeats 5
    """
    return objectstore.bench_objectstore(folder, config)


def _watch(folder: Path, config: BenchConfig) -> Result:
    """The cost of the hooks of `profile` and `audit`, in processor time per step.

    Beside a realistic step, of which `most_percent` in the record is the upper bound of their share.

    Examples:
        python -m benchmarks watch data --repeats 9
    """
    return watching.bench_watching(folder, config)


def _opening(packed: Path, config: BenchConfig) -> Result:
    """Opening a packed data set: requests, seconds, and memory of the workers of a loader.

    Requests are counted by a slow folder, which needs FUSE. DIR is the packed file or the folder of shards.

    Examples:
        python -m benchmarks opening train.arrow --repeats 3
    """
    return opening.bench_opening(packed, config)


def _advice(source: Path, config: advising.AdviceBenchConfig) -> Result:
    """Whether `smallfiles advise` is right about the storage of a data set.

    Measured epochs of plain files and of one packed file, cold, beside its answer and its forecast.

    Examples:
        python -m benchmarks advice data --repeats 3
        python -m benchmarks advice data --latency-ms 10
    """
    return advising.bench_advice(source, config)


def _growth(place: Path, config: growth.GrowthConfig) -> Result:
    """Packing and opening sets of ten thousand to a million tiny samples.

    Processor time and system calls per sample, which must not grow with the set. It needs FUSE, and 4 GB in
    the folder DIR, where its files are made.

    Examples:
        python -m benchmarks growth /tmp --repeats 3
    """
    return growth.bench_growth(place, config)


_MORE = {
    "stage": Topic(_stage, (*_FIELDS, "caches")),
    "decode": Topic(_decode, tuple(name for name in _FIELDS if name != "cap")),
    "peers": Topic(
        _peers, ("repeats", "count", "seed", "cap", "step"), peers.PeersConfig, publish=peers.publish
    ),
    "slow": Topic(_slow, (*_FIELDS, "latency_ms"), slow.SlowBenchConfig),
    "advice": Topic(_advice, ("repeats", "seed", "latency_ms"), advising.AdviceBenchConfig),
    "growth": Topic(_growth, ("repeats", "seed", "counts"), growth.GrowthConfig),
    "opening": Topic(_opening, ("repeats", "seed")),
    "scaling": Topic(_scaling, ("repeats", "seed", "latency_ms", "servers"), scaling.ScalingBenchConfig),
    "objectstore": Topic(_objectstore, ("repeats", "count", "seed")),
    "watch": Topic(_watch, ("repeats", "seed")),
    "squashfs": Topic(_squashfs, (*_FIELDS, "caches")),
}
"""Topics that there are here only."""


def main(argv: Sequence[str]) -> int:
    """Run a topic with others beside ours; the exit code is that of `smallfiles`."""
    own = dict(TOPICS)
    try:
        TOPICS.update(_MORE)
        TOPICS.update({name: replace(TOPICS[name], others=module) for name, module in OTHERS.items()})
        return cli.main(["bench", *argv])
    finally:
        TOPICS.clear()
        TOPICS.update(own)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
