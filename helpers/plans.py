"""What each notebook and exercise needs: its data sets, its minutes, its seconds.

One line per notebook, so that the set-up cell can announce its duration. The trap: times that were entered
once become wrong; the tests that execute the notebooks refuse a plan that is far off, and print the measured
times.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from smallfiles.errors import UsageError

COUNTS = {"small": 400, "medium": 4_000}
"""Images in each data set; notebooks may ask for another number at `small`."""

MAX_COUNT = 2_000_000
CLASSES = 10


@dataclass(frozen=True)
class Plan:
    """What a notebook takes.

    Args:
        title: As in its first heading.
        minutes: To read and run it.
        seconds: Of computing at the small size on two cores, data not counted.
        wants: The layouts of its data sets (`smallfiles.sources.synthetic.LAYOUTS`), the main one first.
        small: Images in each data set at the small size.
        least: Images without which its experiments have too few batches or classes.
    """

    title: str
    minutes: int
    seconds: int
    wants: tuple[str, ...] = ()
    small: int = COUNTS["small"]
    least: int = 20


PLANS: dict[str, Plan] = {
    "00": Plan("Start here", minutes=30, seconds=10),
    "ex00": Plan("Exercise 00", minutes=5, seconds=1),
    "01": Plan("Count the cost of small files", minutes=30, seconds=40, wants=("folder",)),
    "ex01": Plan("Exercise 01", minutes=20, seconds=10, wants=("folder",)),
    "02": Plan(
        "Describe a data set with a JSON manifest", 45, 25, ("prepared", "kaggle", "official", "flickr30k")
    ),
    "ex02": Plan("Exercise 02", minutes=20, seconds=2, wants=("prepared", "official")),
    "03": Plan("Pack samples into Arrow", minutes=30, seconds=20, wants=("folder", "flickr30k"), least=400),
    "ex03": Plan("Exercise 03", minutes=45, seconds=8, wants=("flickr30k",)),
    "04": Plan("Pack samples into HDF5", minutes=30, seconds=30, wants=("folder",)),
    "ex04": Plan("Exercise 04", minutes=40, seconds=5, wants=("folder",)),
    "05": Plan("Shard a data set into tar files", 35, 40, wants=("folder", "official"), least=400),
    "ex05": Plan("Exercise 05", minutes=30, seconds=10, wants=("folder",)),
    "06": Plan("Read a squashfs file without mounting it", 35, seconds=45, wants=("folder",), least=400),
    "ex06": Plan("Exercise 06", minutes=30, seconds=10, wants=("folder",)),
    "07": Plan("Stage data to /dev/shm", minutes=35, seconds=45, wants=("folder",)),
    "ex07": Plan("Exercise 07", minutes=40, seconds=5, wants=("folder",)),
    "08": Plan("Keep the GPU fed", minutes=40, seconds=50, wants=("folder",), small=240, least=240),
    "ex08": Plan("Exercise 08", minutes=30, seconds=12, wants=("folder",), small=240),
    "09": Plan("Stream shards from object storage", minutes=40, seconds=45, wants=("folder",), small=128),
    "ex09": Plan("Exercise 09", minutes=30, seconds=10, wants=("folder",), small=128),
    "10": Plan("Run it on many nodes", minutes=45, seconds=40, wants=("folder",)),
    "ex10": Plan("Exercise 10", minutes=40, seconds=8, wants=("folder",)),
    "11": Plan("Choose a format", minutes=40, seconds=20, wants=("folder",)),
    "ex11": Plan("Exercise 11", minutes=40, seconds=2),
    "12": Plan("When it breaks", minutes=30, seconds=30, wants=("folder",)),
    "ex12": Plan("Exercise 12", minutes=30, seconds=2),
    "13": Plan("Bring your own data", 40, seconds=20, wants=("segmentation", "table"), small=200),
    "ex13": Plan("Exercise 13", minutes=35, seconds=2, wants=("segmentation", "table"), small=200),
    "14": Plan("Wrap up", minutes=45, seconds=20, wants=("segmentation",), small=200),
    "ex14": Plan("Exercise 14", minutes=40, seconds=5, wants=("segmentation",), small=200),
}

TIMED = {
    "01": "sections 2, 3 and 4",
    "02": "sections 2 and 5",
    "03": "section 3",
    "04": "sections 2 and 3",
    "05": "section 3",
    "06": "sections 4, 5 and 7",
    "07": "sections 2, 3 and 4",
    "08": "sections 1, 3 and 5",
    "09": "sections 1, 2 and 4",
    "10": "section 5",
    "11": "section 5",
    "13": "section 5",
    "14": "section 4",
}
"""The sections of each notebook that show real times, which other programs spoil."""


def plan_of(notebook: str) -> Plan:
    """The plan of a notebook.

    Raises:
        UsageError: There is no such notebook.
    """
    if notebook not in PLANS:
        raise UsageError(
            f"the notebook {notebook!r} is unknown",
            expected=f"one of {', '.join(PLANS)}",
            next_step='Write the number of this notebook as in its title: start("01")',
        )
    return PLANS[notebook]


def count_of(plan: Plan, size: str | int | None) -> int:
    """How many images a size means.

    Args:
        plan: Of the notebook.
        size: `small`, `medium` or a number; None takes `COURSE_SIZE`, or `small` without it.

    Raises:
        UsageError: It is neither a known word nor a sensible number.
    """
    text = str(size if size is not None else os.environ.get("COURSE_SIZE") or "small")
    if text in COUNTS:
        return plan.small if text == "small" else COUNTS[text]
    if text.isdecimal() and plan.least <= int(text) <= MAX_COUNT:
        return int(text)
    raise UsageError(
        f"the size is {text!r}",
        expected=f"{', '.join(COUNTS)} or a number of images from {plan.least} to {MAX_COUNT:,}",
        next_step='Write start("01", size="small"), or set COURSE_SIZE before the server starts',
    )
