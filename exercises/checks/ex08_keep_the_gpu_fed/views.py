"""Task 3: the same view for less work.

Pictures are smooth, so that every right way to scale gives nearly the same pixels, and a wrong part of the
picture gives others.
"""

from __future__ import annotations

import io
from functools import partial
from typing import Any

import numpy as np
from PIL import Image

from exercises.checks import Attempt
from exercises.checks.ex08_keep_the_gpu_fed.meter import measured, quickest_s
from smallfiles.images import decode, resize
from smallfiles.images.crops import Box
from smallfiles.images.decoding import Pixels

SIZE = 96
_NEAR = 6.0
_TIMES = 6.0
_COPIES = 3.5
_FLOATS = "floats of a whole picture are four bytes for one, and slow: cut and scale the bytes as they are"
_WHOLE = "the whole picture is scaled, and most of it thrown away: cut the box out first, then scale it"


def smooth(width: int, height: int, kind: str = "JPEG", seed: int = 0) -> bytes:
    """A picture of slow changes in colour."""
    few = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    picture = Image.fromarray(few).resize((width, height), Image.Resampling.BICUBIC)
    target = io.BytesIO()
    (picture.convert("L") if kind == "grey" else picture).save(
        target, "PNG" if kind == "PNG" else "JPEG", quality=95
    )
    return target.getvalue()


CASES: tuple[tuple[str, bytes, Box], ...] = (
    ("a JPEG of 400 x 300", smooth(400, 300), Box(20, 150, 200, 200)),
    ("the corner of a JPEG of 400 x 300", smooth(400, 300, seed=1), Box(250, 350, 50, 50)),
    ("all of a JPEG of 200 x 200", smooth(200, 200, seed=2), Box(0, 0, 200, 200)),
    ("an upright JPEG of 240 x 500", smooth(240, 500, seed=3), Box(300, 10, 150, 150)),
    ("a JPEG without colours", smooth(300, 220, "grey", 4), Box(5, 80, 180, 180)),
    ("a PNG of 300 x 200", smooth(300, 200, "PNG", 5), Box(60, 100, 120, 120)),
)


def try_views(attempt: Attempt) -> None:
    """Refuse other views, floats, and work on what is not shown."""
    for what, data, box in CASES:
        got = attempt(data, box, SIZE, _shown=f"{what}, {_told(box)}, {SIZE}")
        _refuse_kind(attempt, got)
        _refuse_pixels(attempt, got, data, box)
    _refuse_one_array(attempt)
    _refuse_floats(attempt)
    _refuse_scaling_all(attempt)
    _refuse_slow(attempt)


def right(data: bytes, box: Box, size: int) -> Pixels:
    """The view, in the order that the task asks for."""
    return _scaled(_part(decode(data), box), size)


def _part(pixels: Pixels, box: Box) -> Pixels:
    return pixels[box.top : box.top + box.height, box.left : box.left + box.width]


def _scaled(pixels: Pixels, size: int) -> Pixels:
    out = np.empty((size, size, 3), np.uint8)
    resize(pixels, out)
    return out


def _told(box: Box) -> str:
    return f"box at row {box.top}, column {box.left}, {box.height} x {box.width}"


def _refuse_kind(attempt: Attempt, got: Any) -> None:
    shape, kind = getattr(got, "shape", None), str(getattr(got, "dtype", ""))
    found = f"a {type(got).__name__} of {kind}, {list(shape) if shape is not None else 'no shape'}"
    expected = f"an array of uint8, [{SIZE}, {SIZE}, 3]"
    attempt.require(
        isinstance(got, np.ndarray),
        got=found,
        expected=expected,
        because="return an array of numpy, as images.resize fills it; the batch is made of arrays",
    )
    attempt.require(
        "float" not in kind,
        got=found,
        expected=expected,
        because="a view of floats is four times the bytes in every later stage; the GPU makes floats",
    )
    attempt.require(shape == (SIZE, SIZE, 3), got=found, expected=expected, because=_because_of_shape(shape))
    attempt.require(
        got.dtype == np.uint8, got=found, expected=expected, because="pixels are bytes here: np.uint8"
    )


def _because_of_shape(shape: Any) -> str:
    if shape == (3, SIZE, SIZE):
        return "channels come last here: rows, columns, channels; normalise turns them"
    if len(shape) == 3 and shape[2] == 3:
        return "the part is cut out but not scaled to size x size"
    return "rows, columns and three channels, also for a picture without colours"


def _refuse_pixels(attempt: Attempt, got: Pixels, data: bytes, box: Box) -> None:
    pixels = decode(data)
    distance = _distance(got, right(data, box, SIZE))
    attempt.require(
        distance <= _NEAR,
        got=f"pixels that differ by {distance:.0f} of 255 on average",
        expected=f"the view within {_NEAR:.0f} of 255",
        because=_because_of_pixels(got, pixels, box),
    )


def _because_of_pixels(got: Pixels, pixels: Pixels, box: Box) -> str:
    truth = _scaled(_part(pixels, box), SIZE)
    height, width = pixels.shape[:2]
    side = min(box.height, height, width)
    middle = Box((height - side) // 2, (width - side) // 2, side, side)
    others = {
        "red and blue are exchanged; images.decode gives red, green, blue": truth[:, :, ::-1],
        "rows and columns are exchanged in the result": truth.transpose(1, 0, 2),
        "that is the whole picture squeezed; cut the box out before scaling": _scaled(pixels, SIZE),
        "that is the middle of the picture, not the box": _scaled(_part(pixels, middle), SIZE),
        "rows come first: pixels[top:bottom, left:right], not the other way round": _of(
            pixels, box.left, box.top, box.left + box.width, box.top + box.height
        ),
        "box holds height and width, not the end: cut from top to top + height": _of(
            pixels, box.top, box.left, box.height, box.width
        ),
    }
    if int(got.max()) <= 1:
        return (
            "values from 0 to 1 became whole numbers, so nearly all is black; stay with bytes from the start"
        )
    known = {text: _distance(got, other) for text, other in others.items() if other is not None}
    nearest = min(known, key=lambda text: known[text])
    return nearest if known[nearest] <= _NEAR else "that is another part of the picture, or another scaling"


def _of(pixels: Pixels, top: int, left: int, bottom: int, right: int) -> Pixels | None:
    part = pixels[top:bottom, left:right]
    return _scaled(part, SIZE) if part.size else None


def _distance(one: Pixels, other: Pixels) -> float:
    return float(np.abs(one.astype(np.int16) - other).mean())


def _refuse_one_array(attempt: Attempt) -> None:
    (_, one, first), (_, other, second) = CASES[0], CASES[3]
    attempt.given("picture called for two pictures")
    with attempt.guarded():
        kept = attempt.answer(one, first, SIZE)
        before = kept.copy()
        attempt.answer(other, second, SIZE)
    attempt.require(
        np.array_equal(kept, before),
        got="the first view changed when the second was made",
        expected="two views",
        because="all calls fill one array, so a batch would hold its last picture many times: make a new one",
    )


def _refuse_floats(attempt: Attempt) -> None:
    """All of a picture: whatever is larger than it was made needlessly."""
    data, box, size = smooth(500, 500, seed=6), Box(0, 0, 500, 500), 224
    pixels = 3 * 500 * 500
    attempt.given("all of a JPEG of 500 x 500")
    with attempt.guarded(), measured() as work:
        attempt.answer(data, box, size)
    attempt.require(
        not work.floats,
        got=f"a tensor of {work.floats:,} floats on the way",
        expected="bytes all the way",
        because=_FLOATS,
    )
    attempt.require(
        work.peak_bytes <= _COPIES * pixels,
        got=f"{work.peak_bytes / pixels:.1f} times the memory of the picture",
        expected=f"at most {_COPIES} times",
        because=_FLOATS,
    )


def _refuse_scaling_all(attempt: Attempt) -> None:
    """A small part of a picture: who scales all of it makes a huge one."""
    data, box, size = smooth(500, 500, seed=7), Box(300, 60, 60, 60), 224
    pixels = 3 * 500 * 500
    attempt.given("60 x 60 pixels of a JPEG of 500 x 500")
    with attempt.guarded(), measured() as work:
        attempt.answer(data, box, size)
    largest = max(work.largest, work.peak_bytes)
    attempt.require(
        work.largest <= 2 * pixels and work.peak_bytes <= _COPIES * pixels,
        got=f"{largest:,} bytes at once for a view of {3 * size * size:,}",
        expected=f"little more than the {pixels:,} of the picture",
        because=_WHOLE,
    )


def _refuse_slow(attempt: Attempt) -> None:
    data, box, size = smooth(500, 500, seed=7), Box(300, 60, 40, 40), 224
    attempt.given("40 x 40 pixels of a JPEG of 500 x 500, timed")
    with attempt.guarded():
        mine, ours = quickest_s(partial(attempt.answer, data, box, size), partial(right, data, box, size))
    attempt.require(
        mine <= _TIMES * ours,
        got=f"{1e3 * mine:.1f} ms",
        expected=f"at most {_TIMES:.0f} times {1e3 * ours:.1f} ms",
        because=f"too much work for this view; perhaps {_WHOLE}",
    )
