"""Measure with a protocol: interleaved rounds, spread, recorded conditions, little load on shared storage.

    print(compare({"one file each": many, "one large file": one}, rounds=5, unit="images"))
    result = bench_reads([Path("train.arrow"), Path("train.tars")])
    print(table(result.records, "tar"))

The trap: a single number proves nothing. Every record keeps its single runs, and ratios are computed
within one measurement only. Notebook 01 teaches the protocol; later ones measure with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smallfiles import lazy

if TYPE_CHECKING:
    from smallfiles.measure.config import BenchConfig as BenchConfig
    from smallfiles.measure.counting import Requests as Requests
    from smallfiles.measure.counting import requests as requests
    from smallfiles.measure.counting import system_calls as system_calls
    from smallfiles.measure.packing import bench_packing as bench_packing
    from smallfiles.measure.protocol import Comparison as Comparison
    from smallfiles.measure.protocol import compare as compare
    from smallfiles.measure.reading import bench_reads as bench_reads
    from smallfiles.measure.record import Failed as Failed
    from smallfiles.measure.record import Record as Record
    from smallfiles.measure.record import Result as Result
    from smallfiles.measure.record import Spread as Spread
    from smallfiles.measure.record import load as load
    from smallfiles.measure.record import ratio as ratio
    from smallfiles.measure.record import save as save

__getattr__ = lazy.names(__name__)
