"""Task 4: a batch of bytes in one tensor, labels as whole numbers."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch

from exercises.checks import Attempt, shown
from exercises.checks.ex08_keep_the_gpu_fed.meter import measured, quickest_s
from exercises.checks.ex08_keep_the_gpu_fed.practice import good_collate
from smallfiles.images.decoding import Pixels

_SHAPES = ((3, 8, 6), (1, 5, 7), (4, 6, 6))
_TIMES, _LEAST_S = 20.0, 0.03
_LISTS = (
    "each pixel becomes an object of Python on the way: no tolist() and no torch.tensor of a list of views"
)


def try_batches(attempt: Attempt) -> None:
    """Refuse floats, other shapes and orders, memory of others, and Python lists."""
    for count, rows, columns in _SHAPES:
        pictures, labels = _views(count, rows, columns), list(range(count))[::-1]
        got = attempt(pictures, labels, _shown=f"{count} views of {rows} x {columns}, {labels}")
        _refuse_form(attempt, got)
        _refuse_images(attempt, got["image"], pictures)
        _refuse_labels(attempt, got["target"], labels)
    _refuse_windows(attempt)
    _refuse_lists(attempt)


def _views(count: int, rows: int, columns: int) -> list[Pixels]:
    chance = np.random.default_rng(rows)
    return [chance.integers(0, 256, (rows, columns, 3), dtype=np.uint8) for _ in range(count)]


def _refuse_form(attempt: Attempt, got: Any) -> None:
    keys = sorted(map(str, got)) if isinstance(got, dict) else None
    attempt.require(
        keys == ["image", "target"],
        got=f"a dict of {keys}" if keys is not None else f"a {type(got).__name__}",
        expected="a dict of image and target",
        because="the training asks for batch['image'] and batch['target']",
    )
    for name, value in got.items():
        because = f"{name} is one tensor for the whole batch; a GPU gets it by one copy"
        attempt.require(isinstance(value, torch.Tensor), got=value, expected="a tensor", because=because)


def _refuse_images(attempt: Attempt, got: torch.Tensor, pictures: list[Pixels]) -> None:
    true = np.stack(pictures)
    found = f"{str(got.dtype).removeprefix('torch.')}, {list(got.shape)}, {got.nbytes} bytes"
    expected = f"uint8, {list(true.shape)}, {true.nbytes} bytes"
    attempt.require(
        not got.is_floating_point(),
        got=found,
        expected=expected,
        because=f"floats are {got.element_size()} bytes for one, on their way to the trainer and to the GPU; "
        "send bytes and normalise there",
    )
    attempt.require(
        got.dtype == torch.uint8, got=found, expected=expected, because="pixels are bytes: torch.uint8"
    )
    attempt.require(
        got.shape == true.shape, got=found, expected=expected, because=_because_of_shape(got, true.shape)
    )
    same = np.array_equal(got.numpy(), true)
    attempt.require(
        same,
        got="other pixels",
        expected="the views as they are, one behind the other",
        because="the order of the views is that of the labels"
        if np.array_equal(np.sort(got.numpy(), axis=None), np.sort(true, axis=None))
        else "the pixels are changed; collate only puts them together",
    )


def _because_of_shape(got: torch.Tensor, shape: tuple[int, ...]) -> str:
    if got.ndim == 4 and got.shape[1] == 3 and got.shape[2:] == shape[1:3]:
        return "channels come last, as the views have them; normalise turns them on the GPU"
    if got.ndim == 3:
        return "the views are joined into one large picture; np.stack puts them behind each other"
    return "the first axis counts the views, also if there is only one"


def _refuse_labels(attempt: Attempt, got: torch.Tensor, labels: list[int]) -> None:
    attempt.require(
        got.dtype == torch.int64,
        got=str(got.dtype),
        expected="torch.int64",
        because="the loss of PyTorch takes labels as int64 only: dtype=torch.int64",
    )
    attempt.expect(labels, got.tolist(), because="a label for each view, in their order")


def _refuse_windows(attempt: Attempt) -> None:
    """A worker that uses the memory of its views again must not change a batch that waits."""
    pictures = _views(1, 4, 4)
    attempt.given("one view, which is overwritten afterwards")
    with attempt.guarded():
        image = attempt.answer(pictures, [1])["image"]
    before = image.clone()
    pictures[0][:] = 255 - pictures[0]
    attempt.require(
        bool((image == before).all()),
        got="a batch that changed with the view",
        expected="a batch with memory of its own",
        because="your batch is a window on the view, so it changes if that is filled again: np.stack copies",
    )


def _refuse_lists(attempt: Attempt) -> None:
    pictures, labels = _views(4, 96, 96), [0, 1, 2, 3]
    size = sum(picture.nbytes for picture in pictures)
    attempt.given("4 views of 96 x 96, counted")
    with attempt.guarded(), measured() as work:
        attempt.answer(pictures, labels)
    attempt.require(
        not work.floats,
        got=f"a tensor of {work.floats:,} floats on the way",
        expected="bytes all the way",
        because="floats are made and thrown away: the views are bytes already",
    )
    attempt.require(
        work.peak_bytes <= 4 * size,
        got=f"{work.peak_bytes / size:.0f} times the bytes of the views",
        expected="little more than the batch itself",
        because=_LISTS,
    )
    with attempt.guarded():
        mine, ours = quickest_s(
            partial(attempt.answer, pictures, labels), partial(good_collate, pictures, labels)
        )
    attempt.require(
        mine <= max(_TIMES * ours, _LEAST_S),
        got=shown(f"{1e3 * mine:.0f} ms"),
        expected=f"at most {1e3 * max(_TIMES * ours, _LEAST_S):.0f} ms",
        because=_LISTS,
    )
