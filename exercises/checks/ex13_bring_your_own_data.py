"""Exercise 13: masks and images, rows and files, classes and numbers, patients and splits.

    pairs     the mask of each image, by its path
    joined    a column of a table, in the order of the files
    target    what a loss takes: classes as int64, values as float32
    in_validation    a split in which all images of a patient stay together

The trap is the exercise's subject: most wrong answers have the right length and type, so nothing fails later.
The cases therefore have gaps, equal names in two folders, names within names, and whole floats. Notebook 13
sends participants here.
"""

from __future__ import annotations

import builtins
import math
import random
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from PIL import Image

from exercises.checks import Attempt, Mistake, Verdict, check, explain, shown

# --- Task 1: masks ---

_OPENED = 500  # images of a participant's set
Paths = list[str]
FOLDERS: tuple[tuple[Paths, Paths], ...] = (
    # images, masks
    (["images/a/1.jpg", "images/a/2.jpg"], ["masks/a/1.png", "masks/a/2.png"]),
    (["images/a/2.jpg", "images/a/1.jpg"], ["masks/a/1.png", "masks/a/2.png"]),
    (["images/a/1.jpg", "images/a/2.jpg", "images/a/3.jpg"], ["masks/a/1.png", "masks/a/3.png"]),
    (["images/a/1.jpg"], ["masks/a/1.png", "masks/a/9.png"]),
    (["images/b/1.jpg", "images/a/1.jpg"], ["masks/a/1.png", "masks/b/1.png"]),
    (["images/a/10.jpg", "images/a/1.jpg"], ["masks/a/1.png", "masks/a/10.png"]),
    (["images/old_images/1.jpg", "images/a.jpg/1.x.jpg"], ["masks/old_images/1.png", "masks/a.jpg/1.x.png"]),
    ([], ["masks/a/1.png"]),
)


def mask_of(image: str) -> str:
    """Where the mask of an image is, if it has one."""
    return f"masks/{image.removeprefix('images/').rpartition('.')[0]}.png"


def right_pairs(images: Paths, masks: Paths) -> dict[str, str]:
    """The right answer to the first task."""
    return {image: mask_of(image) for image in images if mask_of(image) in masks}


_NO_MASK = "an image has no mask; skip it"
_NO_PARTNER = "a list has files without a partner; skip them"
_TWICE = "1.jpg is in two folders, so a file name is not unique; compare the path below images/"
_BEGINS = "10 begins with 1; compare whole names"
_MOVED = "you pair by position in two lists; one missing mask shifts all masks behind it, so pair by name"
PAIR_MISTAKES: tuple[Mistake, ...] = (
    (lambda i, m: dict(zip(sorted(i), sorted(m), strict=False)), _MOVED),
    (lambda i, m: dict(zip(i, m, strict=False)), _MOVED),
    (
        lambda i, m: {one: mask_of(one) for one in i},
        "some of these masks do not exist; look each up in `masks`",
    ),
    (lambda i, m: {a: b for a in i for b in m if Path(a).stem == Path(b).stem}, _TWICE),
    (lambda i, m: {a: b for a in i for b in reversed(m) if Path(a).stem == Path(b).stem}, _TWICE),
    (lambda i, m: {a: b for a in i for b in m if b.startswith(mask_of(a)[:-4])}, _BEGINS),
)


@check(
    buys="No image of your data set trains on the mask of another image, even if a file is missing.",
    errors={KeyError: _NO_MASK, StopIteration: _NO_MASK, ValueError: _NO_PARTNER},
)
def pairs(attempt: Attempt) -> None:
    """`pairs(images, masks)` is `{image: mask}`, by path."""
    for images, masks in FOLDERS:
        got, right = attempt(images, masks), right_pairs(images, masks)
        because = (
            "return a dict whose keys are paths of images, and whose values are the paths of their masks"
        )
        attempt.require(isinstance(got, dict), got, "a dict {image: mask}", because)
        texts = all(isinstance(path, str) for pair in got.items() for path in pair)
        attempt.require(
            texts, got, "paths as text (str)", "the lists contain texts; str(path) returns a text"
        )
        if got != right:
            otherwise = _why_paired(got, right)
            because = explain(attempt.answer, (images, masks), FOLDERS, PAIR_MISTAKES, otherwise=otherwise)
            raise attempt.wrong(shown(got), shown(right), because)


def _why_paired(got: dict[str, str], right: dict[str, str]) -> str:
    """Name the first pair that is missing or wrong."""
    if missing := [image for image in right if image not in got]:
        return f"{missing[0]} has a mask, and you skip it; change only the first folder and the suffix"
    wrong = next((image for image in got if got[image] != right.get(image)), "")
    return f"the mask of {wrong} does not belong to it"


_UNREADABLE = "the file does not exist, or Pillow cannot read it as an image"


def own_pairs(found: dict[Path, Path], folder: Path) -> Verdict:
    """What pairs of the participant's own data show by themselves: nobody knows the right answer here.

    Args:
        found: The mask of each image, as paths of files; of many pairs 500 are opened.
        folder: Where they are, for the messages.
    """
    buys = f"Each of the {len(found):,} images has a mask of its own, of its own size."

    @check(buys=buys, limit_s=120, errors={OSError: _UNREADABLE})
    def own_pairs(attempt: Attempt) -> None:
        attempt.given(f"{len(found):,} pairs in {folder}")
        because = "no mask was found; are the folders and suffixes in the cell right?"
        attempt.require(bool(found), "no pair", "a mask for each image", because)
        mask, _ = Counter(found.values()).most_common(1)[0]
        images = [str(image) for image in found if found[image] == mask]
        got = f"{mask} for {' and '.join(images[:2])}"
        because = "a mask belongs to one image; do two folders have an image of this name?"
        attempt.require(len(images) == 1, got, "a mask of its own for each image", because)
        for image in random.Random(0).sample(list(found), min(_OPENED, len(found))):
            with attempt.guarded(), Image.open(image) as one, Image.open(found[image]) as other:
                sizes = one.size, other.size
            because = "a mask of another size belongs to another image, or one of them was resized"
            got = f"{image} of {sizes[0]}, {found[image]} of {sizes[1]}"
            attempt.require(sizes[0] == sizes[1], got, "the same width and height", because)

    return own_pairs(found)


# --- Task 2: a table ---

Rows = list[dict[str, Any]]


def _rows(**values: Any) -> Rows:
    """Rows of a table with these values of `images/NAME.jpg`."""
    return [{"filename": f"images/{name}.jpg", "weight": value, "n": 0} for name, value in values.items()]


def _paths(names: str) -> Paths:
    return [f"images/{name}.jpg" for name in names]


_ORDER = "the rows of a table are in another order than the files; look up each path by its `filename`"
_NO_ROW = "b has no row; put None in its place, or every later value moves to another file"
TABLES: tuple[tuple[Paths, Rows, list[Any], str], ...] = (
    # paths, rows, the right answer, and what another one means
    (_paths("abc"), _rows(a=1.5, b=2.5, c=0.5), [1.5, 2.5, 0.5], "the values of column `name`, one per path"),
    (_paths("abc"), _rows(c=0.5, a=1.5, b=2.5), [1.5, 2.5, 0.5], _ORDER),
    (_paths("cab"), _rows(a=1.5, b=2.5, c=0.5), [0.5, 1.5, 2.5], "keep the order of `paths`; do not sort"),
    (_paths("abc"), _rows(c=0.5, a=1.5), [1.5, None, 0.5], _NO_ROW),
    (_paths("b"), _rows(a=1.5, b=2.5), [2.5], "skip rows of files that are not in `paths`"),
    (
        _paths("ab"),
        _rows(a=0.0, b=None),
        [0.0, None],
        "0.0 is a value; test whether the row is missing, not whether it is true",
    ),
    (
        _paths("a"),
        _rows(a=2.5) + _rows(a=2.5),
        [2.5],
        "two equal rows of a file do not contradict each other",
    ),
    ([], _rows(a=1.5), [], "no paths, no values"),
)
CONTRADICTION = _rows(a=1.5, b=2.5) + _rows(a=7.5)


@check(
    buys="Labels stay with their files if somebody sorts the table, or if a file is lost.",
    errors={KeyError: "a path has no row; put None in its place"},
)
def joined(attempt: Attempt) -> None:
    """`joined(paths, rows, name)` is the column in the order of the paths."""
    for paths, rows, right, because in TABLES:
        got = attempt(paths, rows, "weight")
        attempt.require(isinstance(got, list), got, "a list", "return a list with one value per path")
        attempt.expect(right, got, because=because)
    _expect_refusal(attempt)


def _expect_refusal(attempt: Attempt) -> None:
    attempt.given("two rows for images/a.jpg, with 1.5 and 7.5")
    with attempt.guarded():
        try:
            got = attempt.answer(_paths("ab"), list(CONTRADICTION), "weight")
        except ValueError:
            return
    because = "one of the two is wrong, and nobody knows which; raise ValueError with the name of the file"
    raise attempt.wrong(str(got), "a ValueError", because)


# --- Task 3: a class or a number ---

_NONE = "None is not a number; put float('nan') in its place"
_TEXT = "a text is not a number; number the sorted names"
_NUMBERED = (
    "these floats were numbered like classes, but a value has an order: 2.5 is nearer to 2.0 than to 9.0"
)
_WHOLE = "2.0 is a float; floats that are whole by chance are not classes"
_CUT = "floats are values to predict, so their type is float32; a whole number would cut 36.99 to 36"
COLUMNS: tuple[tuple[list[Any], torch.dtype, list[float], str], ...] = (
    # column, the right type, the right elements, and what others mean
    (["dog", "cat", "dog"], torch.int64, [1, 0, 1], "classes are numbered in sorted order, so cat is 0"),
    (
        ["b", "c", "a", "b"],
        torch.int64,
        [1, 2, 0, 1],
        "number classes in sorted order, not in the order in which they appear",
    ),
    (["10", "9", "10"], torch.int64, [0, 1, 0], "texts are names of classes, even '10'; sort them as texts"),
    ([4, 7, 4], torch.int64, [4, 7, 4], "whole numbers are classes already, so 7 stays 7"),
    ([36.99, 0.5, 36.99], torch.float32, [36.99, 0.5, 36.99], _CUT),
    ([2.0, 1.0, 2.0], torch.float32, [2.0, 1.0, 2.0], _WHOLE),
    ([7, 7.5], torch.float32, [7.0, 7.5], "if one element is a float, the whole column has values"),
    ([None, 1.5], torch.float32, [math.nan, 1.5], "None among floats is a missing value: NaN"),
    ([1.5, None], torch.float32, [1.5, math.nan], "None among floats is a missing value: NaN"),
)


@check(
    buys="The loss fits what you predict: a class is right or wrong, a number is near or far.",
    errors={ValueError: _TEXT, TypeError: _NONE, RuntimeError: _NONE},
)
def target(attempt: Attempt) -> None:
    """`target(column)` is what a loss takes."""
    for column, dtype, right, because in COLUMNS:
        got = attempt(column)
        one = isinstance(got, torch.Tensor) and got.shape == (len(column),)
        because_one = "return one tensor with an element per value"
        attempt.require(one, got, f"a tensor of {len(column)} elements", because_one)
        found = f"{got.dtype}, {got.tolist()}"
        attempt.require(got.dtype == dtype, found, f"{dtype}", _why_typed(column, got, because))
        same = torch.allclose(got, torch.tensor(right, dtype=dtype), equal_nan=True)
        attempt.require(same, found, f"{dtype}, {right}", because)


def _why_typed(column: list[Any], got: torch.Tensor, because: str) -> str:
    """What the type of an answer means, where it is the wrong one."""
    if got.dtype not in (torch.float32, torch.int64):
        return "PyTorch's losses need int64 for classes and float32 for values"
    known = [value for value in column if isinstance(value, float)]
    if not known:
        return "classes are int64; a loss for classes refuses floats"
    ranks = [sorted(set(known)).index(value) for value in known]
    return _NUMBERED if got.dtype == torch.int64 and got.tolist() == ranks and ranks != known else because


# --- Task 4: a validation set ---

PATIENTS = [f"p{number}" for number in range(1000)]
SHARE, _ROOM = 0.2, 0.05  # four standard deviations of a share of 1,000 patients


@check(buys="The accuracy that you measure is the one that a new patient will get.")
def in_validation(attempt: Attempt) -> None:
    """`in_validation(patients, share)` says of each image whether it is in the validation set."""
    images = PATIENTS[:40] * 3
    first = _divided(attempt, images, images)
    again = _divided(attempt, images, images)
    moved = [name for name in first if first[name] != again[name]]
    because = "two equal calls give different sets, so something random decides that has no seed"
    attempt.require(not moved, f"{_some(moved)} in the set in one of two calls", "equal sets", because)
    more = _divided(attempt, PATIENTS + images, "1,000 other images, and the same")
    moved = [name for name in first if first[name] != more[name]]
    because = "a patient changed sides because others were added; let nothing but its name decide"
    attempt.require(not moved, f"{_some(moved)} on the other side", "known patients where they were", because)
    of_process = builtins.hash
    with mock.patch("builtins.hash", lambda value: of_process(("another process", value))):
        other = _divided(attempt, PATIENTS, "the same, in another Python process")
    because = "Python's hash of a text differs from process to process; zlib.crc32 and hashlib do not"
    attempt.require(
        all(other[name] == more[name] for name in other), "other patients", "the same set", because
    )
    for share in (SHARE, 0.5):
        found = sum(_divided(attempt, PATIENTS, "1,000 patients", share).values()) / len(PATIENTS)
        got, wanted = f"{found:.0%} of the patients in the set", f"about {share:.0%}"
        is_rest = abs(1 - found - share) < _ROOM and share != 0.5
        because = (
            "this is the share of the training set; True means validation"
            if is_rest
            else ("the share of the patients differs from `share` by more than chance explains")
        )
        attempt.require(abs(found - share) < _ROOM, got, wanted, because)


def _divided(attempt: Attempt, patients: list[str], told: Any, share: float = SHARE) -> dict[str, bool]:
    """Return the side of each patient, and refuse an answer that is not one side for each."""
    shown_as = f"{told if isinstance(told, str) else 'three images of each of 40 patients'}, {share}"
    got = attempt(patients, share, _shown=shown_as)
    of_bool = isinstance(got, list) and all(type(each) is bool for each in got)
    attempt.require(of_bool, got, "a list of bool", "return a list with True or False for each image")
    because = "return one bool per image, in the order of the images, and not one per patient"
    attempt.require(len(got) == len(patients), f"{len(got)} bools", f"{len(patients)} bools", because)
    sides: dict[str, set[bool]] = {}
    for name, side in zip(patients, got, strict=True):
        sides.setdefault(name, set()).add(side)
    both = [name for name, found in sides.items() if len(found) > 1]
    because = "images of one patient are on both sides, so the classifier can recognise the patient"
    attempt.require(not both, f"{_some(both)} on both sides", "one side for each patient", because)
    return {name: found.pop() for name, found in sides.items()}


def _some(names: list[str]) -> str:
    return f"{len(names)} patients, such as {', '.join(names[:3])},"
