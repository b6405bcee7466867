"""Measure what a manifest of ImageNet's size costs, against `json.load` into a dict.

    python tools/measure_manifest.py [--rows 1281167] [--repeats 3]

Each way runs in a fresh process, since memory that one way freed would flatter the next. A forked
worker then walks over all samples, as a DataLoader's would: what it has for itself alone (USS) is
what every further worker adds. Prints one JSON object.
"""

import python_version  # noqa: F401 - it ends this tool if this Python is too old

# isort: split
import argparse
import gc
import json
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from smallfiles.measure.workers import status_bytes

MIB = 1 << 20
WAYS = ("dict of flat", "flat", "columns", "columns with sizes", "columns with sizes and sha256")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_281_167, help="samples (ImageNet's training set)")
    parser.add_argument("--repeats", type=int, default=3, help="fresh processes for each way")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(_measured(*arguments.child)))
        return
    with tempfile.TemporaryDirectory() as folder:
        saved = _run("save", folder, arguments.rows)
        files = {
            path.stem: round(path.stat().st_size / MIB, 1) for path in sorted(Path(folder).glob("*.json"))
        }
        ways = {way: _median([_run(way, folder) for _ in range(arguments.repeats)]) for way in WAYS}
    print(json.dumps({"rows": arguments.rows, "files_MiB": files, "save": saved, "load": ways}, indent=1))


def _run(way: str, folder: str, rows: int = 0) -> dict[str, Any]:
    if way == "save":
        folder = f"{folder}:{rows}"
    done = subprocess.run(
        [sys.executable, __file__, "--child", way, folder], check=True, capture_output=True, text=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _median(runs: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(run[name] for run in runs), 3) for name in runs[0]}


def _measured(way: str, where: str) -> dict[str, float]:
    if way == "save":
        folder, _, rows = where.rpartition(":")
        return _measured_save(Path(folder), int(rows))
    return _measured_load(way, Path(where))


def _measured_save(folder: Path, rows: int) -> dict[str, float]:
    """Write all the files that the other ways read, and say how long it took."""
    from smallfiles.manifest import Manifest

    rng = np.random.default_rng(0)
    classes = [f"n{number:08d}" for number in sorted(rng.choice(20_000_000, 1000, replace=False))]
    labels = rng.integers(0, 1000, rows)
    paths = [
        f"ILSVRC/Data/CLS-LOC/train/{classes[label]}/{classes[label]}_{row}.JPEG"
        for row, label in enumerate(labels.tolist())
    ]
    started = time.perf_counter()
    manifest = Manifest.from_columns(paths, labels, name="imagenet", classes=classes)
    found = {"check_s": time.perf_counter() - started}
    del paths
    sized = manifest.with_sizes(rng.integers(1, 10**6, rows))
    hashes = [rng.bytes(32).hex() for _ in range(rows)]
    hashed = Manifest.from_columns(
        sized.paths, sized.targets, classes=classes, sizes=sized.sizes, sha256=hashes
    )
    started = time.perf_counter()
    _ = manifest.digest
    found["digest_s"] = time.perf_counter() - started
    for name, save in {
        "flat": manifest.save_flat,
        "columns": manifest.save,
        "columns with sizes": sized.save,
        "columns with sizes and sha256": hashed.save,
    }.items():
        started = time.perf_counter()
        save(folder / f"{name}.json")
        found[f"save {name}_s"] = time.perf_counter() - started
    return {name: round(value, 2) for name, value in found.items()}


def _measured_load(way: str, folder: Path) -> dict[str, float]:
    load: Callable[[], Any]
    walk: Callable[[Any], int]
    if way == "dict of flat":
        load = lambda: json.loads((folder / "flat.json").read_text())  # noqa: E731
        walk = lambda found: sum(len(path) + label for path, label in found.items())  # noqa: E731
    else:
        from smallfiles.manifest import Manifest

        load = lambda: Manifest.load(folder / f"{way}.json")  # noqa: E731
        walk = lambda found: sum(len(found.path(i)) + found.target(i) for i in range(len(found)))  # noqa: E731
    gc.collect()
    before = status_bytes("VmRSS") / MIB
    started = time.perf_counter()
    found = load()
    load_s = time.perf_counter() - started
    kept, peak = status_bytes("VmRSS") / MIB, status_bytes("VmHWM") / MIB
    return {
        "load_s": load_s,
        "added_MiB": kept - before,
        "rss_MiB": kept,
        "peak_rss_MiB": peak,
        "peak_added_MiB": peak - before,
        **_in_worker(lambda: walk(found)),
    }


def _in_worker(walk: Callable[[], int]) -> dict[str, float]:
    """Fork, walk over all samples there, and say what the child then has for itself."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def work() -> None:
        began = time.perf_counter()
        walk()
        seconds = time.perf_counter() - began
        lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii", errors="replace").splitlines()
        kib = {line.split()[0]: int(line.split()[1]) for line in lines if line.endswith(" kB")}
        own = kib["Private_Clean:"] + kib["Private_Dirty:"]
        sender.send((seconds, own / 1024, kib["Pss:"] / 1024))

    context.Process(target=work, daemon=True).start()
    return dict(zip(("worker_walk_s", "worker_uss_MiB", "worker_pss_MiB"), receiver.recv(), strict=True))


if __name__ == "__main__":
    main()
