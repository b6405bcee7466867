"""The check of `val_manifest`: labels in sorted order, each with its image.

The trap: six ways of labelling and six of pairing lines with images all give whole numbers below 1000,
so each wrong one is computed here and recognised by its result. Notebook 02 sends participants.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from exercises.checks import Attempt, check
from exercises.checks.ex02_describe_a_dataset.devkits import Case, cases
from smallfiles.errors import first_few


def by_sorted_wnid(case: Case) -> dict[int, int]:
    """The right label of each id."""
    ids = sorted(case.classes, key=lambda number: case.classes[number][0])
    return {number: rank for rank, number in enumerate(ids)}


def _by_words(case: Case) -> dict[int, int]:
    ids = sorted(case.classes, key=lambda number: case.classes[number][1])
    return {number: rank for rank, number in enumerate(ids)}


def _as_keys(case: Case, words: list[str]) -> dict[int, int]:
    """Ranks by words as keys of a dict, in which the later of two equal ones wins."""
    rank = {word: place for place, word in enumerate(words)}
    return {number: rank[word] for number, (_, word) in case.classes.items()}


def _words(case: Case) -> list[str]:
    return sorted(word for _, word in case.classes.values())


def _by_occurring(case: Case) -> dict[int, int]:
    occurring = sorted({case.classes[number][0] for number in case.truth})
    return {number: occurring.index(case.classes[number][0]) for number in set(case.truth)}


def by_name(case: Case) -> list[int]:
    """The right line of each path: the number in its name, which counts from 1."""
    return [number - 1 for number in case.numbers()]


def _by_order(case: Case, order: list[str]) -> list[int]:
    place = {path: line for line, path in enumerate(order)}
    return [place[path] for path in case.paths]


Labelling = Callable[[Case], dict[int, int]]
Pairing = Callable[[Case], list[int]]

_SORTED_BY_WORDS = (
    "you sorted by the words; models count in the order of the wnids, "
    "and words are no keys (crane and maillot name two classes each)"
)
_LABELLINGS: tuple[tuple[Labelling, str], ...] = (
    (by_sorted_wnid, ""),
    (
        lambda case: {number: number - 1 for number in case.classes},
        "ID - 1 counts from 0 and keeps the devkit's order of classes, which no PyTorch model uses; "
        "in the real set image 1 has ID 490 and label 65. Sort the wnids, and take the rank",
    ),
    (
        lambda case: {number: number for number in case.classes},
        "this is the ILSVRC2012_ID itself: it counts from 1, in an order of its own. "
        "The label is the rank of the wnid among all sorted wnids, from 0",
    ),
    (_by_words, _SORTED_BY_WORDS),
    (lambda case: _as_keys(case, _words(case)), _SORTED_BY_WORDS),
    (lambda case: _as_keys(case, sorted(set(_words(case)))), _SORTED_BY_WORDS),
    (lambda case: {n: _words(case).index(word) for n, (_, word) in case.classes.items()}, _SORTED_BY_WORDS),
    (
        lambda case: {number: rank + 1 for number, rank in by_sorted_wnid(case).items()},
        "your ranks count from 1; labels count from 0",
    ),
    (
        _by_occurring,
        "you ranked only those classes that occur in the ground truth; a class without an image here "
        "would shift all labels behind it. Rank all classes",
    ),
)
_SORTED_IMAGES = (
    "you sorted the images and paired them with lines 1, 2, 3 …: one that is missing shifts all behind it, "
    "and as text folders sort before numbers. Take the line from the number in the name"
)
_PAIRINGS: tuple[tuple[Pairing, str], ...] = (
    (by_name, ""),
    (
        lambda case: case.numbers(),
        "each image got the label of the next one: image n belongs to line n, which is truth[n - 1]",
    ),
    (
        lambda case: [number - 2 for number in case.numbers()],
        "each image got the label of the image before: image n belongs to line n, which is truth[n - 1]",
    ),
    (
        lambda case: list(range(len(case.paths))),
        "you paired the first path of the listing with line 1, the second with line 2 and so on; "
        "a listing comes in any order, so take the line from the number in the name",
    ),
    (lambda case: _by_order(case, sorted(case.paths)), _SORTED_IMAGES),
    (lambda case: _by_order(case, sorted(case.paths, key=lambda p: p.rpartition("/")[2])), _SORTED_IMAGES),
)


@check(
    buys="A job of thousands of GPU hours now trains and validates on the labels that everybody else's "
    "models use, whichever copy of the images the cluster has.",
    errors={
        IndexError: "that line is not in the ground truth: image n belongs to truth[n - 1], and n is the "
        "last number of the name (2012 is the year)",
        KeyError: "that key is not there: ids count from 1, and only the ids in `classes` are classes",
        ValueError: "the path has other text and digits too (the year, the folder of a class); "
        "take the eight digits before the suffix",
    },
)
def val_manifest(attempt: Attempt) -> None:
    """`val_manifest(classes, truth, paths)` is `{path: label}` with labels in sorted order."""
    for case in cases():
        got = attempt(case.classes, case.truth, case.paths)
        attempt.require(
            isinstance(got, dict),
            got=got,
            expected="a dict {path: label}",
            because="a flat manifest is one JSON object, which is a dict in Python",
        )
        _check_paths(attempt, case, got)
        _check_kinds(attempt, case, got)
        right = case.labels(by_sorted_wnid(case), by_name(case)) if case.paths else []
        labels = [got[path] for path in case.paths]
        for path, label, expected in zip(case.paths, labels, right, strict=True):
            if label != expected:
                raise attempt.wrong(f"{path}: {label}", f"{path}: {expected}", _diagnosis(case, labels))


def _check_paths(attempt: Attempt, case: Case, got: dict[Any, Any]) -> None:
    wanted = set(case.paths)
    missing = [path for path in case.paths if path not in got]
    extra = [key for key in got if key not in wanted]
    if not missing and not extra:
        return
    attempt.require(
        False,
        got=f"{len(got):,} entries: {first_few(list(got), len(got), 3)}",
        expected=f"{len(wanted):,} entries: {first_few(case.paths, len(wanted), 3)}",
        because=_about_paths(case, list(got), missing),
    )


def _about_paths(case: Case, keys: list[Any], missing: list[str]) -> str:
    if not all(isinstance(key, str) for key in keys):
        return "the keys of a manifest are the paths as text (str), exactly as they were given"
    if any(key.startswith("/") for key in keys):
        return (
            "these paths are absolute, so they are wrong on every other machine; keep them as they were given"
        )
    if set(keys) == {path.rpartition("/")[2] for path in case.paths}:
        return "the folders were cut off; a path must lead from the root of the data to its file"
    if set(keys) == {path.removesuffix(".JPEG") for path in case.paths}:
        return "the suffix was cut off; a path must be the name of a file"
    if not missing:
        return "there are entries for images that are not among the paths; make one for each path given"
    return (
        f"{len(missing):,} of {len(case.paths):,} images are missing "
        f"({first_few(missing, len(missing), 3)}); each path given gets one entry"
    )


def _check_kinds(attempt: Attempt, case: Case, got: dict[Any, Any]) -> None:
    wnids = {wnid for wnid, _ in case.classes.values()}
    for path, label in got.items():
        attempt.require(
            type(label) is int,
            got=f"{path}: {label!r}",
            expected=f"{path}: a whole number (int)",
            because=_about_kind(label, wnids),
        )


def _about_kind(label: object, wnids: set[str]) -> str:
    if isinstance(label, str) and label in wnids:
        return "this is the wnid; the label is its place among all sorted wnids"
    if isinstance(label, str):
        return 'this label is text: "65" is no number, in JSON as in Python, and no loss function takes it'
    if isinstance(label, np.integer):
        return "this is NumPy's integer, which json.dump refuses; convert it with int()"
    return "labels are whole numbers of type int"


def _diagnosis(case: Case, labels: list[int]) -> str:
    """The mistake, or the two mistakes, that give exactly these labels."""
    both = [(pairing, labelling) for pairing in _PAIRINGS for labelling in _LABELLINGS]
    # A single mistake explains more than two.
    for (lines, of_pairs), (label_of_id, of_labels) in sorted(
        both, key=lambda b: bool(b[0][1]) + bool(b[1][1])
    ):
        if case.labels(label_of_id(case), lines(case)) == labels:
            return "; and: ".join(text for text in (of_labels, of_pairs) if text)
    return "line n holds the id of image n; the label is the rank of its wnid among all sorted wnids"
