"""Measure what `smallfiles profile` and `smallfiles audit` cost a training, in processor time per step.

The difference between two runs of a training is smaller than the noise of the runs. So a loop whose steps do
nothing is measured with and without the hooks: there, the hooks are half of the work, and their cost per step
stands out. A realistic step (32 JPEGs decoded) is measured beside it, and the share is the quotient. This
holds because the hooks do the same work for each step and sample, whatever a step does.

The trap: the start of a program. Importing the hooks and writing the report cost half a second once, which is
much of a run of ten seconds and nothing of an hour; the loop alone is measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.decoding import jpegs
from smallfiles.measure import BenchConfig
from smallfiles.measure.bench import Bench
from smallfiles.measure.protocol import Case, Outcome
from smallfiles.measure.record import Result
from smallfiles.profile.hooks import received

BATCH, STEPS, REAL_STEPS = 32, 4_000, 40
WAYS = {"plain": (), "profile": ("profile", "--json", "--"), "audit": ("audit", "--json", "--")}
_RATE_STEPS = 300
_RECORDED = {
    "index": 0,
    "key": 0,
    "content of 100 KB": 100_000,
    "content of a float tensor 3 x 224 x 224": 602_112,
}
"""Each way to identify a sample, and the bytes of the sample."""
_PICTURE = "picture.jpg"
_PACKAGES = ("smallfiles", "torch", "pillow", "numpy")
PROGRAM = """
import json, sys, time
from pathlib import Path
import numpy as np, torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
real, steps = sys.argv[2] == "real", int(sys.argv[3])

class Samples(Dataset):
    def __len__(self):
        return steps * 32
    def __getitem__(self, index):
        if not real:
            return index
        with Image.open("picture.jpg") as image:
            return torch.from_numpy(np.array(image.convert("RGB").resize((224, 224)))), index

loader, began = DataLoader(Samples(), 32), time.process_time()
received = sum(1 for _ in loader)
Path(sys.argv[1]).write_text(json.dumps([received, time.process_time() - began]))
"""
"""A loop over a plain loader, in one process, that says how many batches came and what they cost."""


def bench_watching(source: Path, config: BenchConfig | None = None) -> Result:
    """Measure the processor time per step with and without the hooks of `profile` and `audit`.

    Args:
        source: A data set of JPEGs, or a packed file; its first picture is decoded in the realistic step.
        config: Repeats and seed.

    Returns:
        A record for each way and kind of step, and for each identity of samples: its rate in one process.
        In `extra`, `cpu_us_per_step` is a mean, and `most_percent` of
        `profile` and `audit` is the upper 95 % bound of their share of a realistic step. `load` is how many
        processes wanted a processor in the last minute.

    Raises:
        UsageError: There are no JPEGs.
    """
    config = config or BenchConfig()
    bench, cost = Bench(config, _PACKAGES), dict[str, float]()
    with TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "program.py").write_text(PROGRAM)
        (place / _PICTURE).write_bytes(jpegs(source, 1)[0])
        real = Case("a realistic step", partial(_run, place, "plain", "real", REAL_STEPS))
        bench.measure(
            f"decoding {BATCH} JPEGs in a step",
            [real],
            place=None,
            whole=(REAL_STEPS * BATCH, 0),
            touched="each decoded and resized to 224 x 224",
            extra=_per_step("real", cost),
        )
        bench.measure(
            "an empty step",
            [Case(way, partial(_run, place, way, "empty", STEPS)) for way in WAYS],
            place=None,
            whole=(STEPS * BATCH, 0),
            touched="an index per sample",
            extra=_per_step("", cost),
        )
        for case, size in _RECORDED.items():
            bench.measure(
                "recording in the audit, processor time",
                [Case(case, partial(_record, place, case))],
                place=None,
                whole=(_RATE_STEPS * BATCH, _RATE_STEPS * BATCH * size),
                touched="as in a worker: identities, and a line of the log for each batch",
                extra=lambda runs: {"load": os.getloadavg()[0]},
            )
    return bench.result()


def _record(place: Path, case: str) -> Outcome:
    """Record batches as a worker of an audited training does."""
    recorder, size = received.Recorder(), _RECORDED[case]
    recorder.path = str(place / f"{case} {perf_counter()}")
    samples: list[Any] = [os.urandom(size) for _ in range(BATCH)]
    fetcher = SimpleNamespace(auto_collation=True, _smallfiles={"index": range(BATCH)}, dataset_iter=None)
    if "tensor" in case:
        samples = [
            torch.frombuffer(bytearray(each), dtype=torch.float32).view(3, 224, 224) for each in samples
        ]
    elif case == "index":
        del fetcher.dataset_iter
    began = process_time()
    for step in range(_RATE_STEPS):
        if case == "key":
            samples = [
                {"__key__": f"{step:06}{n:02}", "__url__": "data/part-000123.tar"} for n in range(BATCH)
            ]
        recorder.made(1, recorder.items(fetcher, samples))
    seconds = process_time() - began
    for file in recorder.files.values():
        os.close(file)
    return Outcome(_RATE_STEPS * BATCH, _RATE_STEPS * BATCH * size, seconds)


def _run(place: Path, way: str, kind: str, steps: int) -> Outcome:
    out = place / "out.json"
    command = [sys.executable, *(("-m", "smallfiles", *WAYS[way]) if WAYS[way] else ())]
    began = perf_counter()
    program = [*command, *([sys.executable] if WAYS[way] else []), "program.py", str(out), kind, str(steps)]
    done = subprocess.run(program, cwd=place, capture_output=True, text=True)
    if not out.exists():
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    received, cpu_s = json.loads(out.read_text())
    out.unlink()
    if received != steps:
        raise RuntimeError(f"{received} of {steps} batches came")
    facts = {"way": way, "cpu_us_per_step": 1e6 * cpu_s / steps}
    return Outcome(steps * BATCH, 0, perf_counter() - began, facts)


def _per_step(kind: str, cost: dict[str, float]) -> Callable[[Sequence[Outcome]], dict[str, Any]]:
    """The mean of a way, with the bound of its share once the realistic step and the plain loop are known."""

    def facts(runs: Sequence[Outcome]) -> dict[str, Any]:
        each = [run.extra["cpu_us_per_step"] for run in runs]
        way, own = kind or runs[0].extra["way"], mean(each)
        error = stdev(each) / len(each) ** 0.5 if len(each) > 1 else 0.0
        cost[way], cost[f"{way} error"] = own, error
        found: dict[str, Any] = {"way": way, "cpu_us_per_step": own, "standard_error_us": error}
        found["load"] = os.getloadavg()[0]
        if way in ("profile", "audit"):
            most = own - cost["plain"] + 2.1 * (error**2 + cost["plain error"] ** 2) ** 0.5
            found["most_percent"] = 100 * most / (cost["real"] - 2.1 * cost["real error"])
        return found

    return facts
