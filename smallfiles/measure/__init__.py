"""Measure with a protocol: interleaved rounds, spread, conditions recorded, a good neighbour.

    print(compare({"one file each": many, "one large file": one}, rounds=5, unit="images"))
    result = bench_reads([Path("train.arrow"), Path("train.tars")])
    print(table(result.records, "tar"))

The trap: a single number is an anecdote. Every record keeps its single runs, and ratios are taken
within one run only. Notebook 01 teaches the protocol; later ones measure with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smallfiles import lazy

if TYPE_CHECKING:
    from smallfiles.measure.config import BenchConfig
    from smallfiles.measure.packing import bench_packing
    from smallfiles.measure.protocol import Comparison, compare
    from smallfiles.measure.reading import bench_reads
    from smallfiles.measure.record import Failed, Record, Result, Spread, load, ratio, save

__all__ = [
    "BenchConfig",
    "Comparison",
    "Failed",
    "Record",
    "Result",
    "Spread",
    "bench_packing",
    "bench_reads",
    "compare",
    "load",
    "ratio",
    "save",
]

# The help of `bench` needs the configurations only.
__getattr__ = lazy.names(
    __name__,
    {
        "config": ["BenchConfig"],
        "packing": ["bench_packing"],
        "protocol": ["Comparison", "compare"],
        "reading": ["bench_reads"],
        "record": ["Failed", "Record", "Result", "Spread", "load", "ratio", "save"],
    },
)
