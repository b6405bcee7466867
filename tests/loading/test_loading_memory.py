"""What workers cost in memory, with a data set of the size of ImageNet."""

import os
from pathlib import Path

import loading_sets as sets
import pytest

from smallfiles.loading import LoaderConfig, make_loader
from smallfiles.samples import Sample


def memory_bytes(pid):
    """Private and proportional memory of a process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    found = {line.split()[0].rstrip(":"): int(line.split()[1]) * 1024 for line in lines[1:]}
    return {"private": found["Private_Clean"] + found["Private_Dirty"], "proportional": found["Pss"]}


def worker_memory(loader, batches):
    """Memory of each worker after so many batches of a new epoch."""
    passing = iter(loader)
    for _ in range(batches):
        next(passing)
    return [memory_bytes(worker.pid) for worker in loader._iterator._workers]


def in_mib(found):
    both = (max(entry[name] for entry in found) / 2**20 for name in ("private", "proportional"))
    return "private {:.0f} MiB, proportional {:.0f} MiB".format(*both)


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
        Sample(f"n{number % 1000:08}/n{number % 1000:08}_{number}.JPEG", b"good" + bytes(12), number % 1000)
        for number in range(count)
    )
    path = sets.write_many(samples, count, tmp_path / "x.arrow")
    config = LoaderConfig(mode="processes", workers=workers, batch=64, order=order)
    loader = make_loader(path, config, transform=sets.Stub())
    trainer = memory_bytes(os.getpid())["private"]
    first = worker_memory(loader, 100)
    list(loader) if count < 100_000 else worker_memory(loader, 4000)
    later = worker_memory(loader, 100)
    print(f"\n{count:,} samples, {workers} workers, {order}: {in_mib(first)}; later {in_mib(later)}")
    print(
        f"trainer before {trainer / 2**20:.0f} MiB, after {memory_bytes(os.getpid())['private'] / 2**20:.0f}"
    )
    growth = [after["private"] - before["private"] for before, after in zip(first, later, strict=True)]
    assert max(growth) < 25 << 20
    assert max(entry["private"] for entry in later) < 150 << 20
