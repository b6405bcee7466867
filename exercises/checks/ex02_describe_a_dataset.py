"""Exercise 02: the validation manifest from the devkit, and whose label order a manifest has.

    val_manifest    labels in sorted order, each with its image
    label_order     which order the labels have, from images whose label is known

The trap is the exercise's subject: wrong labels are whole numbers too, and nothing complains about them. So
each wrong way of labelling, and of pairing lines with images, is computed here and known by its result; the
listings come in any order, in class folders and in part, for in a complete and sorted one wrong ways look
right. Notebook 02 sends participants here.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from exercises.checks import Attempt, check
from smallfiles.errors import first_few
from smallfiles.sources.synthetic import layouts

Classes = dict[int, tuple[str, str]]
"""ILSVRC2012_ID to wnid and words."""


def devkit_classes(folder: Path) -> Classes:
    """ILSVRC2012_ID to wnid and words, from a devkit's folder; only the leaves are classes.

    Args:
        folder: `ILSVRC2012_devkit_t12`.
    """
    from scipy.io import loadmat

    rows = np.atleast_1d(loadmat(folder / "data/meta.mat", squeeze_me=True)["synsets"])
    leaves = [row for row in rows if int(row["num_children"]) == 0]
    return {int(row["ILSVRC2012_ID"]): (str(row["WNID"]), str(row["words"])) for row in leaves}


# --- Task 1: the validation manifest ---


@dataclass(frozen=True)
class Case:
    """A devkit and a listing of images."""

    classes: Classes
    truth: list[int]
    paths: list[str]

    def numbers(self) -> list[int]:
        """Number of each image, from its name."""
        return [int(re.findall(r"\d{8}", path)[-1]) for path in self.paths]

    def labels(self, label_of_id: dict[int, int], lines: list[int]) -> list[int]:
        """Label of each path, if image k has the id in line `lines[k]` (counted from 0)."""
        return [label_of_id[self.truth[line % len(self.truth)]] for line in lines]

    def ranks(self, of: int = 0, only: set[int] | None = None) -> dict[int, int]:
        """Rank of each id by its wnid (0) or words (1), among all classes or only some."""
        ids = sorted(only or self.classes, key=lambda number: self.classes[number][of])
        return {number: rank for rank, number in enumerate(ids)}


def image_name(number: int) -> str:
    """Name of a validation image, which counts from 1."""
    return f"ILSVRC2012_val_{number:08d}.JPEG"


def cases() -> list[Case]:
    """Complete and sorted, listed in any order, in part, in class folders, empty, all classes."""
    wnids = ["n03126707", "n01751748", "n03710721", "n02012849", "n01440764", "n03146219", "n03710637"]
    words = ("crane", "sea snake", "maillot, tank suit", "crane", "tench, Tinca tinca", "cuirass", "maillot")
    few = dict(enumerate(zip(wnids, words, strict=True), start=1))
    truth = [2, 5, 1, 6, 4, 3, 2, 6, 1, 5, 3, 4]  # class 7 has no image here
    names = [image_name(number) for number in range(1, 13)]
    mixed = [names[n] for n in (10, 3, 0, 7, 5, 11, 1, 9, 2, 8, 4, 6)]
    folders = [f"val/{few[truth[n]][0]}/{names[n]}" for n in (2, 9, 0, 4, 11, 7, 1, 10, 3, 6, 8, 5)]
    part = [names[n] for n in (8, 1, 10, 4, 5)]
    dice, all_names = random.Random(2), zip(layouts.wnids(1000), layouts.class_words(1000), strict=True)
    classes = dict(sorted(zip(layouts.ilsvrc_ids(1000, 2), all_names, strict=True)))
    many = [dice.randint(1, 1000) for _ in range(300)]
    large = Case(classes, many, [image_name(number) for number in dice.sample(range(1, 301), 120)])
    return [*(Case(few, truth, paths) for paths in (names, mixed, part, folders, [])), large]


_DEVKIT = "ID - 1 counts from 0 and keeps the devkit's order; sort the wnids, and take the rank"
_ID = "this is the ILSVRC2012_ID itself: the label is the rank of the wnid among all sorted wnids, from 0"
_OCCURRING = "you ranked only those classes that occur in the ground truth; rank all classes"
LABELLINGS: tuple[tuple[Callable[[Case], dict[int, int]], str], ...] = (
    (lambda case: case.ranks(), ""),
    (lambda case: {number: number - 1 for number in case.classes}, _DEVKIT),
    (lambda case: {number: number for number in case.classes}, _ID),
    (lambda case: case.ranks(1), "you sorted by the words; models count in the order of the wnids"),
    (lambda case: {n: k + 1 for n, k in case.ranks().items()}, "your ranks count from 1, labels from 0"),
    (lambda case: case.ranks(0, set(case.truth)), _OCCURRING),
)
_NEXT = "each image got the label of the next one: image n belongs to line n, which is truth[n - 1]"
_LISTED = "a listing may be in any order or have gaps; take the line from the number in the name"
PAIRINGS: tuple[tuple[Callable[[Case], list[int]], str], ...] = (
    (lambda case: [number - 1 for number in case.numbers()], ""),
    (lambda case: case.numbers(), _NEXT),
    (lambda case: list(range(len(case.paths))), _LISTED),
)


@check(
    buys="A job of thousands of GPU hours now validates on the labels that other models use.",
    errors={
        IndexError: "image n belongs to truth[n - 1]; n is the last number of the name (2012 is the year)",
        KeyError: "that key is not there: ids count from 1, and only the ids in `classes` are classes",
        ValueError: "the path has other text and digits too; take the eight digits before the suffix",
    },
)
def val_manifest(attempt: Attempt) -> None:
    """`val_manifest(classes, truth, paths)` is `{path: label}` with labels in sorted order."""
    for case in cases():
        got = attempt(case.classes, case.truth, case.paths)
        because = "a flat manifest is one JSON object, which is a dict in Python"
        attempt.require(isinstance(got, dict), got, "a dict {path: label}", because)
        _expect_paths(attempt, case, got)
        for path, label in got.items():
            because = "labels are whole numbers of type int: no text (as a wnid is) and none of NumPy's"
            attempt.require(type(label) is int, f"{path}: {label!r}", "a whole number (int)", because)
        labels, right = [got[path] for path in case.paths], case.labels(case.ranks(), PAIRINGS[0][0](case))
        because = _diagnosis(case, labels)
        for path, label, expected in zip(case.paths, labels, right, strict=True):
            attempt.require(label == expected, f"{path}: {label}", f"{path}: {expected}", because)


def _expect_paths(attempt: Attempt, case: Case, got: dict[Any, Any]) -> None:
    because = "make one entry for each path, exactly as it was given"
    if not all(isinstance(key, str) for key in got):
        because = "the keys of a manifest are the paths as text (str), exactly as they were given"
    elif any(key.startswith("/") for key in got):
        because = "these paths are absolute, so they are wrong on every other machine; keep them as given"
    shown = f"{len(case.paths):,} entries: {first_few(case.paths, len(case.paths), 3)}"
    found = f"{len(got):,} entries: {first_few(list(map(str, got)), len(got), 3)}"
    attempt.require(set(got) == set(case.paths), found, shown, because)


def _diagnosis(case: Case, labels: list[int]) -> str:
    """The mistake, or the two mistakes, that give exactly these labels; one explains more than two."""
    both = [(pairing, labelling) for pairing in PAIRINGS for labelling in LABELLINGS]
    for (lines, of_lines), (ids, of_ids) in sorted(both, key=lambda b: bool(b[0][1]) + bool(b[1][1])):
        if case.labels(ids(case), lines(case)) == labels:
            return "; and: ".join(filter(None, (of_ids, of_lines)))
    return "line n holds the id of image n; the label is the rank of its wnid among all sorted wnids"


# --- Task 2: whose labels ---

_SORTED = {1: 65, 2: 970, 3: 230, 4: 809, 5: 516, 6: 57}
KNOWN = {f"ILSVRC2012_val_{number:08d}": label for number, label in {**_SORTED, 293: 0}.items()}
"""Labels of seven validation images in sorted order, by file name without suffix."""


def _labelled(labels: dict[int, int], folder: str = "") -> dict[str, int]:
    return {f"{folder}{image_name(number)}": label for number, label in labels.items()}


_SKIP = "all six known images that it holds agree; skip names that it does not hold"
_NOTHING = "none of the known images is in this manifest; all() of nothing is True, so ask first if any is"
STRANGERS: tuple[tuple[dict[str, int], str, str], ...] = (
    # a manifest of unknown origin, whose labels it has, and what another answer means
    (_labelled(_SORTED), "sorted", _SKIP),
    (_labelled({1: 489, 2: 360, 3: 170, 4: 821}), "other", "these labels are ID - 1: compare the values"),
    (_labelled({1: 490, 2: 361, 3: 171, 4: 822}), "other", "these are the ids of the devkit: compare values"),
    (_labelled(_SORTED, "ILSVRC/Data/val/"), "sorted", "the paths have folders: PurePosixPath(path).stem"),
    (_labelled({293: 0, 7: 334}), "sorted", "label 0 of image 293 is false in a condition: ask `is None`"),
    (_labelled({293: 449}), "other", "image 293 has the label 0, and here it is 449"),
    (_labelled({**_SORTED, 4: 821}), "other", "one known image contradicts; one is enough"),
    (_labelled({1: 65, 2: 360, 3: 170}), "other", "one is right by chance: all that occur must agree"),
    ({"train/n01440764/n01440764_36.JPEG": 0, image_name(7): 334}, "unknown", _NOTHING),
    ({}, "unknown", _NOTHING),
)


@check(
    buys="You know whose labels a manifest holds before the training, not by an accuracy near zero after it.",
    errors={KeyError: "not every known image is in each manifest; look only at those that occur in both"},
)
def label_order(attempt: Attempt) -> None:
    """`label_order(manifest, known)` is `sorted`, `other` or `unknown`."""
    for manifest, expected, because in STRANGERS:
        got = attempt(manifest, KNOWN)
        word = isinstance(got, str) and got in ("sorted", "other", "unknown")
        three = "the result is one of these three words"
        attempt.require(word, got, "'sorted', 'other' or 'unknown'", three)
        attempt.expect(expected, got, because=because)
