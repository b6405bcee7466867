"""Draw the README's figures from the records in results/: the speed, and an audit.

    python tools/draw_results.py        writes results/overview.svg and results/audit.svg

The comparison page of the site draws every record; the first figure shows the two that decide most. Equal
records give equal files.
"""

import python_version  # noqa: F401 - it ends this tool if this Python is too old

# isort: split
import json
import sys
from dataclasses import replace
from pathlib import Path

from smallfiles.measure.drawing import alt_text, as_page, throughput
from smallfiles.measure.record import Record, load
from smallfiles.profile import audit

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


def figures() -> dict[str, tuple[str, str]]:
    """Return SVG text and description of each figure, by its name in results/."""
    picture, text = audit.draw(json.loads((RESULTS / "audits/plain_loop.json").read_text(encoding="utf-8")))
    speed = as_page(throughput(*panels())), alt_text(*panels())
    return {"overview": speed, "audit": (as_page(picture), text)}


def main() -> int:
    """Write the figures, and print their descriptions."""
    for name, (svg, text) in figures().items():
        out = RESULTS / f"{name}.svg"
        out.write_text(svg, encoding="utf-8")
        print(f"{out}\n{text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
