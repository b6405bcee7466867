"""What workers cost in memory, with a data set of the size of ImageNet."""

import itertools
from pathlib import Path

import loading_sets as sets
import numpy as np
import pyarrow as pa
import pytest

from smallfiles.loading import LoaderConfig, make_loader
from smallfiles.samples import Sample, Schema


def private_bytes(pid):
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


def worker_memory(loader, batches):
    """Private memory of each worker after this many batches of a new epoch."""
    passing = itertools.islice(loader, batches)
    assert sum(1 for _ in passing) == batches
    return [private_bytes(worker.pid) for worker in loader._iterator._workers]


@pytest.mark.parametrize(
    ("count", "workers", "order"),
    [
        (30_000, 2, "random"),
        pytest.param(1_281_167, 8, "random", marks=pytest.mark.slow),
        pytest.param(1_281_167, 8, "stream", marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_a_worker_costs_little_and_does_not_grow(tmp_path, count, workers, order):
    samples = (
        Sample(f"n{number % 1000:08}/n{number % 1000:08}_{number}.JPEG", (b"good" + bytes(12),), number)
        for number in range(count)
    )
    labels = pa.table({"label": np.arange(count) % 1000})
    path = sets.write_many(samples, Schema(count, 16 * count, 16, labels), tmp_path / "x.arrow")
    config = LoaderConfig(mode="processes", workers=workers, batch=64, order=order)
    loader = make_loader(path, config, transform=sets.Stub())
    first = worker_memory(loader, 100)
    list(loader) if count < 100_000 else worker_memory(loader, 4000)
    later = worker_memory(loader, 100)
    assert max(after - before for before, after in zip(first, later, strict=True)) < 25 << 20
    assert max(later) < 150 << 20
