"""Measure with a protocol: interleaved rounds, spread, conditions recorded, a good neighbour.

    result = bench_reads([Path("train.arrow"), Path("train.tars")])
    print(table(result.records, "tar"))

The trap: a single number is an anecdote. Every record keeps its single runs, and ratios are taken
within one run only. Notebook 01 teaches the protocol; later ones measure with it.
"""

from helpers.bench.config import BenchConfig
from helpers.bench.packing import PackResult, bench_packing
from helpers.bench.reading import ReadResult, bench_reads
from helpers.bench.record import Record, Spread, load, ratio, save

__all__ = [
    "BenchConfig",
    "PackResult",
    "ReadResult",
    "Record",
    "Spread",
    "bench_packing",
    "bench_reads",
    "load",
    "ratio",
    "save",
]
