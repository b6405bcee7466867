"""Exercise 14: a delivery of trees: what is wrong with it, its packed file, and the numbers that defend it.

    faults    ids without image, mask or row, and damaged images
    packed    the whole samples in one file, with mask, species and height
    defence   seconds of opens and of decoding per epoch, which of the two is the limit, and the way to store

The check makes deliveries of its own, from other seeds than the notebook. The trap: a program that follows
the table sees no image without a row, and one that follows the files sees no row without an image.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from exercises.checks import Attempt, check, close, diagnose
from helpers.experiments.nb14 import Delivery, delivered
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
    """`packed(folder, out)` packs the whole samples with mask, species and height."""
    for delivery in deliveries(attempt):
        folder, out = delivery.folder, delivery.folder.with_suffix(".arrow")
        attempt.tried(f"packed({folder.name!r}, {out.name!r})", attempt.answer, folder, out)
        attempt.require(out.exists(), "no file", out.name, "pack to `out`")
        _judge_packed(attempt, delivery, formats.open(out))


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


# --- Task 3 ---

CASES = (
    # trees, nodes, CPUs per node, numbers
    (500_000, 16, 32, {"opens_per_s": 2_000.0, "cpu_ms": 1.0}),
    (500_000, 1, 4, {"opens_per_s": 20_000.0, "cpu_ms": 4.0}),
    (10_000, 2, 8, {"opens_per_s": 500.0, "cpu_ms": 2.0}),
)


@check(buys="Two divisions tell which resource to ask for, before anybody asks for 64 nodes.")
def defence(attempt: Attempt) -> None:
    """`defence(trees, nodes, cpus, numbers)` gives opens_s, decode_s, the limit and the way."""
    for trees, nodes, cpus, numbers in CASES:
        got = attempt(trees, nodes, cpus, numbers)
        attempt.expect_dict(("opens_s", "decode_s", "limit", "way"), got, because="four entries")
        opens, decode = 2 * trees / numbers["opens_per_s"], trees * numbers["cpu_ms"] / 1000 / nodes / cpus
        mistakes = (
            (opens / 2, "a tree is two files: its image and its mask"),
            (opens / nodes, "all nodes share the server: more nodes do not open faster"),
            (opens / 2 / nodes, "two files per tree, and one server for all nodes"),
            (2 * opens, "opens_per_s counts whole files, look-up and open together"),
        )
        _expect(attempt, "opens_s", got["opens_s"], opens, *mistakes)
        mistakes = (
            (1000 * decode, "cpu_ms is in milliseconds"),
            (decode * nodes, "every node decodes its part: divide by the nodes"),
            (decode * cpus, "all CPUs of a node decode: divide by them"),
            (decode * nodes * cpus, "all CPUs of all nodes decode at the same time"),
        )
        _expect(attempt, "decode_s", got["decode_s"], decode, *mistakes)
        right = "opens" if opens > decode else "CPUs"
        because = "both go on at the same time, so the longer one is the limit: 'opens' or 'CPUs'"
        attempt.require(got["limit"] == right, got["limit"], right, because)
        way = "packed" if opens > decode else "files"
        because = "packing removes opens: it pays where they are the limit; where CPUs are, files do as well"
        attempt.require(got["way"] == way, got["way"], way, because)


def _expect(attempt: Attempt, name: str, got: Any, right: float, *mistakes: tuple[float, str]) -> None:
    number = isinstance(got, int | float) and not isinstance(got, bool)
    attempt.require(number, f"{name}: {got!r}", "a number of seconds", "one number, in seconds")
    because = diagnose(got, *mistakes, otherwise="divide the work by what is done per second")
    attempt.require(close(got, right, 1e-6), f"{name}: {got:.6g}", f"{right:.6g}", because)
