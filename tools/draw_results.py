"""Draw the README's figure from the records in results/: what packing and feeding buy.

    python tools/draw_results.py        writes results/overview.svg

The comparison page of the site draws every record; this one shows the two that decide most. Equal records
give an equal file.
"""

import python_version  # noqa: F401 - it ends this tool if this Python is too old

# isort: split
import sys
from dataclasses import replace
from pathlib import Path

from smallfiles.measure.drawing import alt_text, as_page, throughput
from smallfiles.measure.record import Record, load

RESULTS = Path(__file__).resolve().parents[1] / "results"
SHOWN = {  # of a file of records and an operation: names there and in the figure, the reference first
    ("slow.json", "packing at 2 ms an operation"): {
        "serial script": "a loop over the files",
        "webdataset": "webdataset's ShardWriter",
        "arrow": "smallfiles (Arrow)",
        "tar": "smallfiles (tar shards)",
    },
    ("peers.json", "epoch of JPEG, 2 workers"): {
        "torchvision ImageFolder, antialias": "torchvision ImageFolder",
        "webdataset + Pillow, antialias": "webdataset + Pillow",
        "DALI, antialias": "DALI, CPU",
        "FFCV, area": "FFCV",
        "arrow, threads": "smallfiles (Arrow)",
    },
}


def panels() -> list[list[Record]]:
    """The records of each panel, under the names that the figure gives them."""
    found = []
    for (file, what), names in SHOWN.items():
        by_name = {record.name: record for record in load(RESULTS / file) if record.what == what}
        found.append([replace(by_name[name], name=shown) for name, shown in names.items()])
    return found


def main() -> int:
    """Write the figure, and print its description."""
    out = RESULTS / "overview.svg"
    out.write_text(as_page(throughput(*panels())), encoding="utf-8")
    print(f"{out}\n{alt_text(*panels())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
