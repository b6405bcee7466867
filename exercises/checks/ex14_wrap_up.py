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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from exercises.checks import Attempt, check, close, diagnose
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


@check(
    buys="A copy that is worth its time, and none that is not: all nodes wait for it.",
    errors={ZeroDivisionError: "a copy that saves nothing never pays off: math.inf"},
)
def break_even(attempt: Attempt) -> None:
    """`break_even(copy_s, other_epoch_s, staged_epoch_s)` is the epochs after which a copy has paid off."""
    for copy_s, other_s, staged_s, right in COPIES:
        got = attempt(copy_s, other_s, staged_s)
        number = isinstance(got, int | float) and not isinstance(got, bool)
        attempt.require(number, got, "a number of epochs", "one number")
        because = "a copy that saves nothing per epoch never pays off: math.inf"
        if right < math.inf:
            exact = copy_s / (other_s - staged_s)
            because = diagnose(
                float(got),
                (float(int(exact)), "after so many epochs some of the copy is still to be saved: round up"),
                (exact, "a whole number of epochs: round up"),
                (float(right + 1), "it has paid off when both took equally long"),
                (float(math.ceil(copy_s / other_s)), "an epoch saves the difference of both, not all of it"),
                (float(math.ceil(copy_s / staged_s)), "an epoch saves the difference of both"),
                otherwise="divide the seconds of the copy by those that an epoch saves, and round up",
            )
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


@check(buys="A few divisions tell what a training takes before anybody asks for 64 nodes.")
def defence(attempt: Attempt) -> None:
    """`defence(trees, nodes, cpus, epochs, numbers)` gives the seconds of three ways, and the way."""
    for trees, nodes, cpus, epochs, numbers in CASES:
        got = attempt(trees, nodes, cpus, epochs, numbers)
        attempt.expect_dict((*WAYS, "way"), got, because="four entries")
        opens, read = 2 * trees / numbers["opens_per_s"], trees * numbers["tree_mb"] / numbers["read_mb_s"]
        alone = trees * numbers["cpu_ms"] / 1000  # decoding on one CPU
        decode, copy = alone / nodes / cpus, nodes * read
        right = {
            "files": epochs * max(opens, read, decode),
            "shards": epochs * max(read, decode),
            "staged": copy + epochs * decode,
        }
        staged = (
            (copy + epochs * 1000 * decode, "cpu_ms is in milliseconds"),
            (copy + epochs * alone / cpus, "every node decodes its part: divide by the nodes"),
            (copy + epochs * alone / nodes, "all CPUs of a node decode: divide by them"),
            (copy + epochs * alone, "all CPUs of all nodes decode at the same time"),
            (read + epochs * decode, "each node copies everything, and all share the storage: nodes times"),
            (read / nodes + epochs * decode, "each node copies everything, not its part of it"),
            (epochs * (copy + decode), "the copy is made once, not in each epoch"),
            (epochs * max(copy, decode), "the copy is made once, before the first epoch: add it"),
            (max(copy, epochs * decode), "training waits for the copy: add both, nothing overlaps here"),
            (copy + decode, "this is one epoch: each of them decodes"),
            (epochs * decode, "the copy is missing: it comes before the first epoch"),
            (copy + epochs * max(read, decode), "after the copy nothing is read from the storage"),
        )
        shards = (
            (epochs * (read + decode), "reads and decoding overlap: the longer one counts, not the sum"),
            (max(read, decode), "this is one epoch: a training has `epochs` of them"),
            (
                epochs * max(read / nodes, decode),
                "all nodes share the storage: more nodes do not read faster",
            ),
            (epochs * max(read, opens, decode), "packing removes the opens"),
            (epochs * decode, "shards are read from the storage in every epoch"),
        )
        files = (
            (epochs * max(opens / 2, read, decode), "a tree is two files: its image and its mask"),
            (epochs * max(opens / nodes, read, decode), "all nodes share it: more nodes do not open faster"),
            (
                epochs * max(2 * opens, read, decode),
                "opens_per_s counts whole files, look-up and open together",
            ),
            (epochs * (opens + read + decode), "they overlap: the longest one counts, not the sum"),
            (epochs * (opens + decode), "they overlap: the longest one counts, not the sum"),
            (max(opens, read, decode), "this is one epoch: a training has `epochs` of them"),
        )
        _expect(attempt, "staged", got["staged"], right["staged"], *staged)
        _expect(attempt, "shards", got["shards"], right["shards"], *shards)
        _expect(attempt, "files", got["files"], right["files"], *files)
        way = min(WAYS, key=right.__getitem__)
        because = "take the way with the shortest training; where opens are not the limit, files do as well"
        if got["way"] == "staged":
            because = "its epochs are the shortest, but the copy comes on top: compare whole trainings"
        attempt.require(got["way"] == way, got["way"], way, because)


def _expect(attempt: Attempt, name: str, got: Any, right: float, *mistakes: tuple[float, str]) -> None:
    number = isinstance(got, int | float) and not isinstance(got, bool)
    attempt.require(number, f"{name}: {got!r}", "a number of seconds", "one number, in seconds")
    because = diagnose(got, *mistakes, otherwise="divide the work by what is done per second")
    attempt.require(close(got, right, 1e-6), f"{name}: {got:.6g}", f"{right:.6g}", because)
