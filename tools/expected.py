"""Expected numbers as ranges, computed from the records in results/, so that they cannot drift.

`build_notebooks.py` writes docs/expected.md with it, and its `--check` compares. A range goes from the
slowest to the fastest single run of a record.
"""

from pathlib import Path

from smallfiles.measure.record import Record, load

EPOCH, CROP = "epoch of JPEG, 2 workers", "decoding and augmenting, 1 at work"
PACKING, STAGING = "packing at 2 ms an operation", "staging at 2 ms an operation"
ROWS = (
    # notebook, what it is called there, file, operation, name
    (
        "01",
        "packing from 2 ms per request, one file after the other",
        "slow.json",
        PACKING,
        "serial script",
    ),
    ("01", "the same by `pack`, many opens in flight", "slow.json", PACKING, "arrow"),
    ("03", "single images at random, from memory: plain files", "peers.json", "random reads", "files"),
    ("03", "the same from Arrow", "peers.json", "random reads", "arrow"),
    ("04", "the same from HDF5", "peers.json", "random reads", "hdf5"),
    ("05", "the same from tar shards", "peers.json", "random reads", "tar"),
    ("06", "the same from squashfs", "peers.json", "random reads", "squashfs"),
    (
        "07",
        "staging from 2 ms per request, without the limit of 100 MB/s of the notebook: `cp -r` of files",
        "stage.json",
        STAGING,
        "cp -r of small files",
    ),
    ("07", "the same by `stage`, packed", "stage.json", STAGING, "stage, digest checked"),
    ("08", "decode and crop on one CPU: Pillow", "decode.json", CROP, "Pillow, antialias"),
    ("08", "the same by the toolbox", "decode.json", CROP, "ours, antialias"),
    (
        "08",
        "an epoch with two workers: ImageFolder",
        "peers.json",
        EPOCH,
        "torchvision ImageFolder, antialias",
    ),
    ("08", "the same by `make_loader`", "peers.json", EPOCH, "arrow, processes"),
)
HEAD = """# Expected numbers

Ranges from the slowest to the fastest run of our [records](../results/README.md), in images per second, on
two cores of a virtual machine ({cpu}). On other machines expect other numbers and mostly the same order.
Built from `results/` by `make notebooks`.

| Notebook | What | Images per second |
|---|---|---|
"""


def table(results: Path) -> str:
    """The page docs/expected.md."""
    records = {file: load(results / file) for file in {row[2] for row in ROWS}}
    found = [(row, _record(records[row[2]], row[3], row[4])) for row in ROWS]
    head = HEAD.format(cpu=found[0][1].machine["cpu"])
    lines = (f"| {row[0]} | {row[1]} | {_range(record)} |\n" for row, record in found)
    return head + "".join(lines)


def _record(records: list[Record], what: str, name: str) -> Record:
    return next(record for record in records if (record.what, record.name) == (what, name))


def _range(record: Record) -> str:
    least, most = (_rounded(rate) for rate in (min(record.rates_per_s), max(record.rates_per_s)))
    return least if least == most else f"{least} to {most}"


def _rounded(rate: float) -> str:
    """Two digits: the third differs from hour to hour."""
    return f"{float(f'{rate:.2g}'):,.0f}"
