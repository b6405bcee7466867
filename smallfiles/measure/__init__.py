"""Measure with a protocol: interleaved rounds, spread, conditions recorded, a good neighbour.

    print(compare({"one file each": many, "one large file": one}, rounds=5, unit="images"))
    result = bench_reads([Path("train.arrow"), Path("train.tars")])
    print(table(result.records, "tar"))

The trap: a single number is an anecdote. Every record keeps its single runs, and ratios are taken
within one run only. Notebook 01 teaches the protocol; later ones measure with it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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

# Imported when asked for: the help of `bench` needs the configurations only.
_MODULES = {
    "BenchConfig": "config",
    "Comparison": "protocol",
    "bench_packing": "packing",
    "bench_reads": "reading",
    "compare": "protocol",
}


def __getattr__(name: str) -> Any:
    if name in __all__:
        module = importlib.import_module(f"smallfiles.measure.{_MODULES.get(name, 'record')}")
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
