"""`python -m benchmarks TOPIC …`: as `smallfiles bench TOPIC …`, with others beside ours.

The trap: a comparison whose one candidate fails must not lose the rest, so each runs in a process of its
own, and what fails is a line of the table.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.scaling import ScalingBenchConfig
from benchmarks.slow import SlowBenchConfig
from smallfiles import cli
from smallfiles.cli.bench import TOPICS, Topic

OTHERS = {
    "pack": "benchmarks.packing",
    "load": "benchmarks.loaders",
}
"""The module of others for each topic that has some."""

_FIELDS = TOPICS["pack"].fields
_MORE = {
    "stage": Topic(
        "copying a packed file to memory with every block checked",
        "Against dd and against cp -r of the same samples as small files: from memory, from a cold disk,\n"
        "and from a slow folder.",
        ("python -m benchmarks stage data --count 20000",),
        "benchmarks.staging:bench_staging",
        (*_FIELDS, "caches"),
    ),
    "decode": Topic(
        "turning JPEGs in memory into pixels and crops",
        "Random crops of 224 x 224, with one and two at work, and decoding alone by each decoder. DIR may\n"
        "be a packed file.",
        ("python -m benchmarks decode train.arrow --repeats 5",),
        "benchmarks.decoding:bench_decoding",
        tuple(name for name in _FIELDS if name != "cap"),
    ),
    "slow": Topic(
        "packing a folder whose look-ups and opens take milliseconds",
        "Against scripts that read one file after the other and against bare readers. It needs FUSE.",
        ("python -m benchmarks slow data --latency-ms 2 --repeats 5",),
        "benchmarks.slow:bench_slow",
        (*_FIELDS, "latency_ms"),
        SlowBenchConfig,
    ),
    "scaling": Topic(
        "processes that read a slow folder",
        "Beside what the queueing model forecasts for them. It needs FUSE.",
        ("python -m benchmarks scaling data --repeats 5",),
        "benchmarks.scaling:bench_scaling",
        ("repeats", "seed", "latency_ms", "servers"),
        ScalingBenchConfig,
    ),
    "squashfs": Topic(
        "one raw image of a folder",
        "Random reads by pysquashfs, by PySquashfsImage and through the mounts that this machine allows;\n"
        "cold reads by threads; packing beside mksquashfs.",
        ("python -m benchmarks squashfs data --count 20000",),
        "benchmarks.squashfs:bench_squashfs",
        (*_FIELDS, "caches"),
    ),
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
