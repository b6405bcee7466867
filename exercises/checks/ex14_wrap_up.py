"""Exercise 14: a delivery of trees: what is wrong with it, its packed file, and the numbers that defend it.

    faults      ids without image, mask or row, and damaged images
    packed      the whole samples in one file, with mask, species and height, and why the others are not
    break_even  after how many epochs a copy has paid off
    defence     seconds of a training from files, from shards and from copies, and the way to store

The check makes deliveries of its own, from other seeds than the notebook. The trap: a program that follows
the table sees no image without a row, and one that follows the files sees no row without an image.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exercises.checks import Attempt, Mistake, check, close, explain
from helpers.delivery import Delivery, delivered
from smallfiles import formats
from smallfiles.sources import synthetic

SEEDS = (5, 6)
GROUPS = ("no image", "no mask", "no row", "damaged")


def deliveries(attempt: Attempt) -> Iterator[Delivery]:
    """Two deliveries of the same images."""
    place = attempt.folder()
    synthetic.make(place / "source", "segmentation", count=20, size=(48, 40))
    return (delivered(place / "source", place / f"delivery {seed}", seed, 20) for seed in SEEDS)


# --- Task 1 ---

MISSED = {
    "no image": "go through the rows: each id needs images/ID.jpg",
    "no mask": "go through the rows: each id needs masks/ID.png",
    "no row": "go through the images as well: some of them are not in the table",
    "damaged": "Image.open reads the header only: call load(), which needs the whole image",
}


@check(buys="A wrong sample that is found before packing costs an e-mail; afterwards it costs a training.")
def faults(attempt: Attempt) -> None:
    """`faults(folder)` names the ids of each fault."""
    for delivery in deliveries(attempt):
        got = attempt(delivery.folder, _shown=f"{delivery.folder.name!r}")
        attempt.expect_dict(GROUPS, got, because="each fault has one entry")
        groups = (delivery.no_image, delivery.no_mask, delivery.no_row, delivery.damaged)
        for name, right in zip(GROUPS, map(set, groups), strict=True):
            found = set(got[name])
            because = _why_other(name, found, delivery)
            attempt.require(found == right, f"{name}: {sorted(found)}", f"{sorted(right)}", because)


def _why_other(name: str, found: set[str], delivery: Delivery) -> str:
    if any(str(one).endswith((".jpg", ".png")) for one in found):
        return "these are names of files; the table has ids, without folder and suffix"
    if "Thumbs" in found or "Thumbs.db" in found:
        return "Thumbs.db is no image: look at *.jpg only"
    if any("." not in str(one) for one in found) or found >= set(delivery.rows):
        return "ids have a dot: cut the suffix only, as Path.stem does"
    if name == "damaged" and found & delivery.no_image:
        return "an image that is missing is not a damaged one"
    if name in ("no image", "no mask") and found & delivery.no_row:
        return "these are not in the table: no row"
    return MISSED[name]


# --- Task 2 ---


@check(buys="One file with every field in one row: opened once per worker, not twice per tree.", limit_s=30)
def packed(attempt: Attempt) -> None:
    """`packed(folder, out)` packs the whole samples with all fields, and tells what it left out."""
    for delivery in deliveries(attempt):
        folder, out = delivery.folder, delivery.folder.with_suffix(".arrow")
        got = attempt.tried(f"packed({folder.name!r}, {out.name!r})", attempt.answer, folder, out)
        attempt.require(out.exists(), "no file", out.name, "pack to `out`")
        _judge_packed(attempt, delivery, formats.open(out))
        _judge_list(attempt, delivery, got)


def _judge_packed(attempt: Attempt, delivery: Delivery, reader: Any) -> None:
    keys = [Path(str(key)).name.removesuffix(".jpg") for key in reader.keys()]  # noqa: SIM118
    extra, lost = set(keys) - set(delivery.sound), set(delivery.sound) - set(keys)
    because = "leave out what is not whole, and nothing else: on_error='skip'"
    if extra & delivery.no_row:
        because = "an image without a row has no species: pack the table, not the folder"
    attempt.require(not extra and not lost, f"{len(keys)} samples", f"{len(delivery.sound)}", because)
    because = "say where masks are: mask=masks/{id}.png"
    attempt.require("mask" in reader.fields, list(reader.fields), "a field mask", because)
    labelled, found = reader.target(0) >= 0 and bool(reader.classes), f"label {reader.target(0)}"
    attempt.require(labelled, found, "the species as label", "name the column: label=species")
    species = [delivery.rows[key][0] for key in keys]
    got = [reader.classes[reader.target(index)] for index in range(len(keys))]
    attempt.require(got == species, got, str(species), "the species is not that of the row: join by id")
    heights = reader.table(["height_m"])["height_m"].to_pylist() if "height_m" in reader.fields else None
    right = [delivery.rows[key][1] for key in keys]
    attempt.require(heights == right, heights, str(right), "keep the height as a value, unchanged")
    masks = reader.blob("mask")
    for index, key in enumerate(keys):
        own = delivery.folder / "survey" / "masks" / f"{key}.png"
        same = bytes(masks.read(index)) == own.read_bytes()
        attempt.require(same, f"another mask at {key}", "its own", "the mask belongs to another image")


def _judge_list(attempt: Attempt, delivery: Delivery, got: Any) -> None:
    attempt.require(isinstance(got, dict), got, "a dict of ids and reasons", "return why a row was left out")
    because = "the report of `pack` names all: `skipped`, each with `key` and `reason`"
    if any(str(one).endswith((".jpg", ".png")) for one in got):
        because = "these are paths: Path(key).stem is the id"
    elif any("." not in str(one) for one in got):
        because = "ids have a dot: cut the suffix only, as Path.stem does"
    elif set(got) & delivery.no_row:
        because = "these images have no row, so no row was left out for them"
    right = set(delivery.rows) - set(delivery.sound)
    attempt.require(set(got) == right, sorted(map(str, got)), f"{sorted(right)}", because)
    told = all(isinstance(reason, str) and reason.strip() for reason in got.values())
    attempt.require(told, got, "a reason for each", "nobody can decide without a reason")


# --- Task 3 ---

COPIES = (
    # seconds of the copy, of an epoch without it and with it; epochs
    (60.0, 4.0, 2.0, 30),
    (217.0, 5.25, 1.5, 58),
    (10.0, 3.0, 0.5, 4),
    (60.0, 2.0, 2.0, math.inf),
    (60.0, 1.5, 2.0, math.inf),
)
PAYING = [case[:3] for case in COPIES if case[3] < math.inf]
_DIFFERENCE = "an epoch saves the difference of both"
COPY_MISTAKES: tuple[Mistake, ...] = (
    (
        lambda copy, other, staged: float(copy // (other - staged)),
        "after so many epochs some of the copy is still to be saved: round up",
    ),
    (lambda copy, other, staged: copy / (other - staged), "a whole number of epochs: round up"),
    (
        lambda copy, other, staged: float(copy // (other - staged) + 1),
        "it has paid off when both took equally long",
    ),
    (lambda copy, other, staged: float(math.ceil(copy / other)), f"{_DIFFERENCE}, not all of it"),
    (lambda copy, other, staged: float(math.ceil(copy / staged)), _DIFFERENCE),
)


@check(
    buys="A copy that is worth its time, and none that is not: all nodes wait for it.",
    errors={ZeroDivisionError: "a copy that saves nothing never pays off: math.inf"},
)
def break_even(attempt: Attempt) -> None:
    """`break_even(copy_s, other_epoch_s, staged_epoch_s)` is the epochs after which a copy has paid off."""
    for *case, right in COPIES:
        got = attempt(*case)
        number = isinstance(got, int | float) and not isinstance(got, bool)
        attempt.require(number, got, "a number of epochs", "one number")
        because = "a copy that saves nothing per epoch never pays off: math.inf"
        if right < math.inf:
            otherwise = "divide the seconds of the copy by those that an epoch saves, and round up"
            because = explain(attempt.answer, case, PAYING, COPY_MISTAKES, otherwise=otherwise)
        attempt.require(got == right, got, f"{right}", because)


# --- Task 4 ---

CASES = (
    # trees, nodes, CPUs per node, epochs, numbers
    (500_000, 8, 32, 5, {"opens_per_s": 2_500.0, "read_mb_s": 1_000.0, "tree_mb": 0.1, "cpu_ms": 1.0}),
    (500_000, 8, 32, 100, {"opens_per_s": 2_500.0, "read_mb_s": 1_000.0, "tree_mb": 0.1, "cpu_ms": 1.0}),
    (500_000, 2, 4, 10, {"opens_per_s": 20_000.0, "read_mb_s": 5_000.0, "tree_mb": 0.1, "cpu_ms": 4.0}),
    (10_000, 2, 8, 3, {"opens_per_s": 4_000.0, "read_mb_s": 100.0, "tree_mb": 0.1, "cpu_ms": 2.0}),
)
WAYS = ("files", "shards", "staged")


@dataclass(frozen=True)
class Parts:
    """Seconds of what a training does once, and what they are divided by."""

    opens: float
    read: float
    alone: float  # decoding on one CPU
    nodes: int
    cpus: int
    epochs: int

    @classmethod
    def of(cls, trees: int, nodes: int, cpus: int, epochs: int, numbers: dict[str, float]) -> Parts:
        """The parts of one case."""
        opens, read = 2 * trees / numbers["opens_per_s"], trees * numbers["tree_mb"] / numbers["read_mb_s"]
        return cls(opens, read, trees * numbers["cpu_ms"] / 1000, nodes, cpus, epochs)

    @property
    def decode(self) -> float:
        """Decoding by all CPUs of all nodes."""
        return self.alone / self.nodes / self.cpus

    @property
    def copy(self) -> float:
        """Copies to all nodes."""
        return self.nodes * self.read


RIGHT: dict[str, Callable[[Parts], float]] = {
    "files": lambda p: p.epochs * max(p.opens, p.read, p.decode),
    "shards": lambda p: p.epochs * max(p.read, p.decode),
    "staged": lambda p: p.copy + p.epochs * p.decode,
}
_OVERLAP = "they overlap: the longest one counts, not the sum"
_ONE_EPOCH = "this is one epoch: a training has `epochs` of them"
_ALL_COPY = "each node copies everything, and all share the storage: nodes times"
WRONG: dict[str, tuple[tuple[Callable[[Parts], float], str], ...]] = {
    "files": (
        (
            lambda p: p.epochs * max(p.opens / 2, p.read, p.decode),
            "a tree is two files: its image and its mask",
        ),
        (
            lambda p: p.epochs * max(p.opens / p.nodes, p.read, p.decode),
            "all nodes share it: more nodes do not open faster",
        ),
        (
            lambda p: p.epochs * max(2 * p.opens, p.read, p.decode),
            "opens_per_s counts whole files, look-up and open together",
        ),
        (lambda p: p.epochs * (p.opens + p.read + p.decode), _OVERLAP),
        (lambda p: p.epochs * (p.opens + p.decode), _OVERLAP),
        (lambda p: max(p.opens, p.read, p.decode), _ONE_EPOCH),
        (lambda p: max(p.opens, p.decode), _ONE_EPOCH),
    ),
    "shards": (
        (
            lambda p: p.epochs * (p.read + p.decode),
            "reads and decoding overlap: the longer one counts, not the sum",
        ),
        (lambda p: max(p.read, p.decode), _ONE_EPOCH),
        (
            lambda p: p.epochs * max(p.read / p.nodes, p.decode),
            "all nodes share the storage: more nodes do not read faster",
        ),
        (lambda p: p.epochs * max(p.read, p.opens, p.decode), "packing removes the opens"),
        (lambda p: p.epochs * max(p.opens, p.decode), "packing removes the opens"),
        (lambda p: p.epochs * p.decode, "shards are read from the storage in every epoch"),
    ),
    "staged": (
        (lambda p: p.copy + p.epochs * 1000 * p.decode, "cpu_ms is in milliseconds"),
        (lambda p: p.copy + p.epochs * p.alone / p.cpus, "every node decodes its part: divide by the nodes"),
        (lambda p: p.copy + p.epochs * p.alone / p.nodes, "all CPUs of a node decode: divide by them"),
        (lambda p: p.copy + p.epochs * p.alone, "all CPUs of all nodes decode at the same time"),
        (lambda p: p.read + p.epochs * p.decode, _ALL_COPY),
        (lambda p: p.read / p.nodes + p.epochs * p.decode, "each node copies everything, not its part of it"),
        (lambda p: p.epochs * (p.copy + p.decode), "the copy is made once, not in each epoch"),
        (lambda p: p.epochs * max(p.copy, p.decode), "the copy is made once, before the first epoch: add it"),
        (
            lambda p: max(p.copy, p.epochs * p.decode),
            "training waits for the copy: add both, nothing overlaps here",
        ),
        (lambda p: p.copy + p.decode, "this is one epoch: each of them decodes"),
        (lambda p: p.epochs * p.decode, "the copy is missing: it comes before the first epoch"),
        (
            lambda p: p.copy + p.epochs * max(p.read, p.decode),
            "after the copy nothing is read from the storage",
        ),
    ),
}


def mistakes_of(name: str) -> list[Mistake]:
    """The known mistakes in the seconds of one way, as functions of a case."""

    def of_case(wrong: Callable[[Parts], float]) -> Callable[..., float]:
        return lambda *case: wrong(Parts.of(*case))

    return [(of_case(wrong), text) for wrong, text in WRONG[name]]


@check(buys="A few divisions tell what a training takes before anybody asks for 64 nodes.")
def defence(attempt: Attempt) -> None:
    """`defence(trees, nodes, cpus, epochs, numbers)` gives the seconds of three ways, and the way."""
    for case in CASES:
        got = attempt(*case)
        attempt.expect_dict((*WAYS, "way"), got, because="four entries")
        right = {name: RIGHT[name](Parts.of(*case)) for name in WAYS}
        for name in ("staged", "shards", "files"):
            _expect_seconds(attempt, case, name, got[name], right[name])
        way = min(WAYS, key=right.__getitem__)
        because = "take the way with the shortest training; where opens are not the limit, files do as well"
        if got["way"] == "staged":
            because = "the copy comes on top of the epochs: compare whole trainings"
        attempt.require(got["way"] == way, got["way"], way, because)


def _expect_seconds(attempt: Attempt, case: tuple[Any, ...], name: str, got: Any, right: float) -> None:
    number = isinstance(got, int | float) and not isinstance(got, bool)
    attempt.require(number, f"{name}: {got!r}", "a number of seconds", "one number, in seconds")
    if close(got, right, 1e-6):
        return

    def part(*other: Any) -> Any:
        return attempt.answer(*other)[name]

    otherwise = "divide the work by what is done per second"
    because = explain(part, case, CASES, mistakes_of(name), otherwise=otherwise)
    raise attempt.wrong(f"{name}: {got:.6g}", f"{right:.6g}", because)
