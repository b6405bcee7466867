"""Measure what opening a packed data set costs: requests, seconds, and memory of the loader's workers.

At the start of a job, every rank and worker opens the data set. So the number of requests, and the memory
per process, decide whether a set of the size of ImageNet opens at once or keeps a metadata server busy. A
slow folder over the set counts the requests. Each row is a program of its own, because memory belongs to a
process.

The trap: Linux shares the memory of a forked worker with its parent until one of them writes to it. So the
private memory is counted (`smaps_rollup`, proc_pid_smaps(5)). The resident size counts shared pages again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from smallfiles import formats, slowfs
from smallfiles.measure import BenchConfig, requests
from smallfiles.measure.bench import Bench
from smallfiles.measure.cache import files_of
from smallfiles.measure.protocol import Case, Outcome
from smallfiles.measure.record import Result
from smallfiles.progress import plural
from smallfiles.slowfs import SlowConfig, SlowFolder

BATCH, BATCHES = 64, 50
WORKERS = (1, 8)
OPEN = """
import json, sys, time
from smallfiles import formats
began = time.perf_counter()
reader = formats.open(sys.argv[1])
len(reader), bytes(reader.read(len(reader) // 2))
print(json.dumps({"seconds": time.perf_counter() - began}))
"""
LOAD = """
import itertools, json, os, sys, time
from pathlib import Path
from smallfiles.loading import LoaderConfig, make_loader

def private_bytes(pid):
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))

if __name__ == "__main__":
    path, method, workers, batch, batches = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
    config = LoaderConfig(mode="processes", workers=workers, batch=batch, start_method=method)
    began = time.perf_counter()
    loader = make_loader(path, config, transform=None)
    epoch = iter(loader)
    next(epoch)
    seconds = time.perf_counter() - began
    for _ in itertools.islice(epoch, batches):
        pass
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    each = sorted(map(private_bytes, children))[-workers:]
    print(json.dumps({"seconds": seconds, "worker_bytes": max(each), "trainer_bytes": private_bytes("self")}))
"""


def bench_opening(packed: Path, config: BenchConfig | None = None) -> Result:
    """Measure opening a packed file or folder of shards, alone and by the workers of a loader.

    Args:
        packed: The packed data set.
        config: Repeats and seed.

    Returns:
        A record for opening and reading one sample, with the counted requests per data file in `extra`; and a
        record for the first batch of a loader for each number of workers and start method, with the private
        bytes of the largest worker and of the trainer.

    Raises:
        ResourceError: No slow folder can be mounted here.
    """
    config = config or BenchConfig()
    bench = Bench(config, ("smallfiles", "torch", "pyarrow", "numpy"))
    name, samples = formats.name_of(packed), len(formats.open(packed))
    whole = (samples, sum(path.stat().st_size for path in files_of(packed)))
    data_files = 1 if packed.is_file() else sum(1 for path in packed.iterdir() if path.suffix == ".tar")
    with slowfs.mounted(packed.parent, SlowConfig(latency_s=0)) as shown:
        bench.measure(
            "opening and one sample",
            [Case(name, partial(opened, shown, packed.name, data_files), format=name)],
            place=packed,
            whole=whole,
            touched="one sample read",
        )
    for workers in WORKERS:
        bench.measure(
            f"the first batch of a loader with {plural(workers, 'worker')}",
            [
                Case(method, partial(_loaded, packed, method, workers), format=name, workers=workers)
                for method in ("fork", "spawn")
            ],
            place=packed,
            whole=whole,
            touched=f"{BATCHES} batches of {BATCH} samples read",
        )
    return bench.result()


def opened(shown: SlowFolder, name: str, data_files: int) -> Outcome:
    """Open a packed data set in a slow folder, and count the requests.

    Args:
        shown: The slow folder.
        name: Of the data set in it.
        data_files: How many files have the data.
    """
    with requests(shown) as asked:
        found = said(OPEN, str(shown.path / name))
    counts = {kind: asked[kind] for kind in ("lookups", "opens", "metadata", "reads", "bytes")}
    per_file = (counts["metadata"] + counts["reads"]) / data_files
    return Outcome(
        1, 0, found["seconds"], {**counts, "data_files": data_files, "requests_per_file": per_file}
    )


def _loaded(packed: Path, method: str, workers: int) -> Outcome:
    found = said(LOAD, str(packed), method, str(workers), str(BATCH), str(BATCHES))
    return Outcome(BATCH, 0, found.pop("seconds"), found)


def said(program: str, *words: str) -> dict[str, Any]:
    """Run a program in a process of its own, and return the record that it printed."""
    with TemporaryDirectory() as folder:
        script = Path(folder, "program.py")  # a file, because spawned workers import it
        script.write_text(program)
        done = subprocess.run([sys.executable, str(script), *words], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return dict(json.loads(done.stdout))
