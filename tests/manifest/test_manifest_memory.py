"""What a set costs in memory for each of its samples: the peak of a child process, above its imports."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from smallfiles.manifest import Manifest

ROWS = 200_000

CHILD = """
import sys
from pathlib import Path
from smallfiles import sources
from smallfiles.measure.workers import status_bytes
from smallfiles.manifest import Manifest
from smallfiles.pack import PackConfig, plan

task, small, large, out = sys.argv[1], *map(Path, sys.argv[2:])

def work(path):
    if task == "load":
        return Manifest.load(path)
    if task == "tar":
        return sources.load(path)
    return plan(sources.load(path, root=path.parent), out, PackConfig())

kept = work(small)  # what is loaded with the first use counts as imports
before = status_bytes("VmRSS")
kept = work(large)
print(status_bytes("VmHWM") - before, status_bytes("VmRSS") - before)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Manifests of few and of many rows, in both shapes."""
    found = tmp_path_factory.mktemp("manifests")
    dice = np.random.default_rng(0)
    for name, rows in (("small", 100), ("large", ROWS)):
        labels = np.sort(dice.integers(0, 1000, rows))
        paths = [f"n{label:08d}/n{label:08d}_{row:06d}.JPEG" for row, label in enumerate(labels.tolist())]
        manifest = Manifest.from_columns(paths, labels)
        manifest.save_flat(found / f"{name}.flat.json")
        manifest.with_sizes(dice.integers(1, 10**6, rows)).save(found / f"{name}.columns.json")
        write_tar(found / f"{name}.tar", paths)
    return found


def write_tar(out: Path, paths: list[str]) -> None:
    header = tarfile.TarInfo()
    with out.open("wb") as file:
        for header.name in paths:
            file.write(header.tobuf(tarfile.USTAR_FORMAT))
        file.write(bytes(-(file.tell() + 1024) % 10240 + 1024))


@pytest.mark.parametrize(
    ("task", "shape", "at_most", "kept_at_most"),
    [
        ("load", "columns", 470, 117),
        ("load", "flat", 470, 117),
        ("plan", "columns", 470, 117),
        ("tar", "tar", 240, 240),
    ],
)
def test_a_row_costs_a_bounded_peak_and_then_little_more_than_its_columns(
    task: str, shape: str, at_most: int, kept_at_most: int, folder: Path
) -> None:
    suffix = "tar" if shape == "tar" else f"{shape}.json"
    files = [str(folder / f"{name}.{suffix}") for name in ("small", "large")]
    words = [sys.executable, "-c", CHILD, task, *files, str(folder / "out.tars")]
    end = subprocess.run(words, capture_output=True, text=True, check=True)
    peak, kept = (int(told) / ROWS for told in end.stdout.split())
    assert peak < at_most and kept < kept_at_most
