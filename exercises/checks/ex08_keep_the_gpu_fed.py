"""Exercise 08: find the bottleneck of three loaders, and cure each.

    bottleneck   task 1: what to speed up, from measured stages
    reader       task 2: a file that is opened once
    picture      task 3: a view for less work
    collate      task 4: a batch of bytes

The loader in three parts, and what measures it, are in `helpers.experiments.nb08`. Cures are judged by what
they give and by what they do: opens, floats, pixels and bytes are counted, for seconds differ from machine to
machine.

The trap it teaches: the longest stage is not always what limits a training. Notebook 08 sends participants
here.
"""

from __future__ import annotations

import io
import random
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import torch
from PIL import Image
from torch.overrides import TorchFunctionMode

from exercises.checks import Attempt, Mistake, check, explain
from helpers.experiments.nb08 import SIDE, Disk, scaled
from smallfiles import formats
from smallfiles.formats import arrow
from smallfiles.images import decode
from smallfiles.images.crops import Box
from smallfiles.images.decoding import Pixels
from smallfiles.samples import Sample, Schema

# --- What an answer does ---


class Work(TorchFunctionMode):
    """Elements of the largest tensor of floats that a block made, and the most memory of it at once.

    The memory is that of numpy and Python; what Pillow allocates is not seen.
    """

    floats = 0
    peak_bytes = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Look at what a function of torch gives."""
        found = func(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor):
            self.floats = max(self.floats, found.numel() * found.is_floating_point())
        return found


@contextmanager
def measured() -> Iterator[Work]:
    """Count the work of a block; `tracemalloc` slows Python down, so nothing is timed in it."""
    tracemalloc.start()
    try:
        with Work() as work:
            yield work
        work.peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# --- Task 1: what limits ---

Stages: TypeAlias = dict[str, float]
_STAGES = {"augment": 0.01, "read": 0.02, "decode": 0.03}
_SUM = "a worker does all stages for a batch, one after the other: compare their sum with the step"
_DIVIDE = "workers work at the same time: divide the sum by their number"
_KEEPS_UP = "batches come faster than they are used, so no stage is too slow: compare with the step first"
_NONE = "with 0 workers the trainer makes each batch itself and waits for it; ask for that before you divide"
_ALL = "the number of stages, their names and their order may be others than in the notebook"
LIMITS: tuple[tuple[Stages, int, float, str, str], ...] = (
    # stages, workers, seconds of a step, what to speed up, and what it means to say something else
    (_STAGES, 1, 0.01, "decode", _SUM),
    (_STAGES, 1, 0.1, "training", _KEEPS_UP),
    (_STAGES, 1, 0.04, "decode", _SUM),
    (_STAGES, 2, 0.02, "decode", _SUM),
    (_STAGES, 4, 0.02, "training", _DIVIDE),
    (_STAGES, 0, 0.1, "decode", _NONE),
    ({"read": 0.5, "collate": 0.25}, 3, 0.25, "training", "as fast as they are used is enough: <= and not <"),
    ({"transfer": 1.0}, 1, 0.5, "transfer", _ALL),
)


def _limit(stages: Stages, workers: int, step_s: float, longest: str) -> str:
    """Return what limits the epoch, given the stage that a participant takes for the longest."""
    return "training" if workers and sum(stages.values()) / workers <= step_s else longest


_BY_NAME = "max(stages) compares names, not seconds: max(stages, key=stages.get)"
_NAMES: tuple[Mistake, ...] = (
    (lambda stages, workers, step_s: _limit(stages, workers, step_s, max(stages)), _BY_NAME),
    (lambda stages, workers, step_s: max(stages), _BY_NAME),
)


@check(buys="You add no CPUs where the GPU is the limit.", errors={ZeroDivisionError: _NONE})
def bottleneck(attempt: Attempt) -> None:
    """`bottleneck(stages, workers, step_s)` names the stage to speed up, or `training`."""
    chance, more = random.Random(8), []
    for _ in range(40):
        stages = {name: chance.random() for name in chance.sample(("read", "unpack", "decode", "collate"), 3)}
        workers, step_s = chance.randint(0, 4), chance.random()
        right = _limit(stages, workers, step_s, max(stages, key=stages.__getitem__))
        more.append((stages, workers, step_s, right, _ALL))
    cases = [case[:3] for case in (*LIMITS, *more)]
    for stages, workers, step_s, right, because in (*LIMITS, *more):
        got = attempt(stages, workers, step_s)
        seconds = "return the name, not the seconds: max(stages, key=stages.get)"
        attempt.require(isinstance(got, str), got, right, seconds)
        if got not in (*stages, "training"):
            because = "return a name from stages, letter for letter, or training"
        elif got != right and "training" not in (right, got):
            case = (stages, workers, step_s)
            because = explain(attempt.answer, case, cases, _NAMES, otherwise="another stage takes longer")
        attempt.expect(right, got, because=because)


# --- Task 2: open once ---

_KEEP = "the file is opened more than once; keep the handle on self, and open it only if it is None"
_ASKED: tuple[list[int], ...] = ([3, 1, 2], [7, 0], [1, 3, 3], [])


@check(
    buys="A thousand workers now open the file once each, not once for every image of every epoch.",
    limit_s=20,
    errors={AttributeError: "the handle is not there: set it to None in __init__, and open it in __call__"},
)
def reader(attempt: Attempt) -> None:
    """`Reader(disk, path)` opens the file at its first call, and gives bytes and labels."""
    place = attempt.folder()
    first, second = (_packed(place / f"{word}.arrow", word) for word in ("first", "second"))
    disk, asked = Disk(0.0), sum(map(len, _ASKED))
    one = _made(attempt, disk, first)
    for indices in _ASKED:
        _ask(attempt, one, first, indices)
    attempt.given(f"{len(_ASKED)} calls for {asked} samples")
    opens = _KEEP if disk.opens else "nothing was opened by disk.open, so your file is not the disk's"
    attempt.require(disk.opens == 1, f"{disk.opens} opens", "1 open, at the first call", opens)
    reads = "read what is asked for, and keep no samples: all of them are 140 GB of ImageNet"
    attempt.require(disk.reads == asked, f"{disk.reads} samples read", f"{asked} read", reads)
    disk = Disk(0.0)
    _ask(attempt, _made(attempt, disk, second), second, [5], first)
    attempt.require(disk.opens == 1, f"{disk.opens} opens", "one for each reader", _KEEP)


def _packed(path: Path, word: str) -> Path:
    samples = [Sample(f"{i:02}.bin", (f"{word} {i}".encode() * 50,), i) for i in range(12)]
    values = pa.table({"label": [number % 5 for number in range(12)]})
    arrow.write(samples, path, schema=Schema.of(samples, values), digest=False)
    return path


def _made(attempt: Attempt, disk: Disk, path: Path) -> Any:
    made = attempt.tried(f"Reader(disk, {path.name!r})", attempt.answer, disk, path)
    because = "Reader is a class with __init__ and __call__, and is made once"
    attempt.require(callable(made), type(made).__name__, "a reader that can be called", because)
    because = "__init__ runs in the trainer, and workers share or cannot get its handle; open it in __call__"
    attempt.require(disk.opens == 0, "a file that is open already", "no open before the first call", because)
    return made


def _ask(attempt: Attempt, one: Any, path: Path, indices: list[int], other: Path | None = None) -> None:
    """Compare the samples that a reader gives; `other` is the file that another reader has opened before."""
    got = attempt.tried(f"reader({indices}) of {path.name}", one, list(indices))
    attempt.require(isinstance(got, list), got, "a list of pairs", "a caller needs all: return a list")
    because = "a sample is a pair of bytes and label, bytes first; one for each number, in their order"
    if other and got == _samples(other, indices):
        because = "a second reader got the file of the first: put the handle on self, not on the class"
    attempt.expect(_samples(path, indices), got, because=because)


def _samples(path: Path, indices: list[int]) -> list[tuple[bytes, int]]:
    file = formats.open(path)
    return [(bytes(file.read(index)), file.target(index)) for index in indices]


# --- Task 3: less work ---

SIZE, _NEAR, _COPIES = 96, 6.0, 3.5
_FLOATS = "floats of a whole picture are four bytes for one, and slow: cut and scale the bytes as they are"
_MEMORY = "this is several times the picture in bytes, as floats of all its pixels take: scale the bytes"
_WHOLE = "a small box takes more memory than the picture, as if the whole picture is scaled and most of it "
_WHOLE += "thrown away: cut the box out first, then scale it"


def smooth(width: int, height: int, kind: str = "JPEG") -> bytes:
    """A picture of slow changes in colour: every right way to scale gives nearly the same pixels."""
    few = np.random.default_rng(width).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    large = Image.fromarray(few).resize((width, height), Image.Resampling.BICUBIC)
    target = io.BytesIO()
    (large.convert("L") if kind == "grey" else large).save(target, kind.replace("grey", "JPEG"), quality=95)
    return target.getvalue()


VIEWS: tuple[tuple[str, bytes, Box], ...] = (
    ("a JPEG of 400 x 300", smooth(400, 300), Box(20, 150, 200, 200)),
    ("an upright JPEG of 240 x 500", smooth(240, 500), Box(300, 10, 150, 150)),
    ("a JPEG without colours", smooth(300, 220, "grey"), Box(5, 80, 180, 180)),
    ("a PNG of 300 x 200", smooth(300, 200, "PNG"), Box(60, 100, 120, 120)),
)


@check(
    buys="The same epoch takes a fraction of the CPU hours, and fewer workers feed the same GPU.",
    limit_s=40,
    errors={IndexError: "rows come first: pixels[top:bottom, left:right]"},
)
def picture(attempt: Attempt) -> None:
    """`picture(data, box, size)` makes a view in bytes, and scales nothing that is not shown."""
    kept = []
    for what, data, box in VIEWS:
        got = attempt(data, box, SIZE, _shown=f"{what}, {box}, {SIZE}")
        _expect_array(attempt, got)
        pixels = decode(data)
        view = pixels[box.top : box.top + box.height, box.left : box.left + box.width]
        distance = _distance(got, scaled(view, SIZE))
        because = _other_view(got, pixels, box) if distance > _NEAR else ""
        attempt.require(not because, f"{distance:.0f} of 255 away", f"the view within {_NEAR:.0f}", because)
        kept.append((got, got.copy()))
    because = "all calls fill one array, so a batch would hold its last picture many times: make a new one"
    same = all(np.array_equal(now, before) for now, before in kept)
    attempt.require(same, "views that changed when others were made", "a new array for each", because)
    for box, because in ((Box(0, 0, 500, 500), _MEMORY), (Box(300, 60, 60, 60), _WHOLE)):
        _count_work(attempt, smooth(500, 500), box, because)


def _distance(one: Pixels, other: Pixels) -> float:
    return float(np.abs(one.astype(np.int16) - other).mean())


def _expect_array(attempt: Attempt, got: Any) -> None:
    shape, kind = getattr(got, "shape", None), str(getattr(got, "dtype", ""))
    last = "channels come last: rows, columns, channels, three of them also for a picture without colours"
    unscaled = isinstance(shape, tuple) and len(shape) == 3 and shape[2] == 3
    for holds, because in (
        (isinstance(got, np.ndarray), "return an array of numpy, as images.resize fills it"),
        ("float" not in kind, "floats are four times the bytes in every later stage; the GPU makes floats"),
        (shape == (SIZE, SIZE, 3), "the part is cut out but not scaled to size x size" if unscaled else last),
    ):
        got_kind = f"a {type(got).__name__} of {kind}, {shape}"
        attempt.require(holds, got_kind, f"an array of uint8, [{SIZE}, {SIZE}, 3]", because)


def _other_view(got: Pixels, pixels: Pixels, box: Box) -> str:
    """Which other view it is."""
    top, left, height, width = box.top, box.left, box.height, box.width
    others = {
        "that is the whole picture squeezed; cut the box out before scaling": pixels,
        "rows come first: pixels[top:bottom, left:right]": pixels[left : left + width, top : top + height],
        "box holds height and width, not the end: cut to top + height": pixels[top:height, left:width],
    }
    near = [t for t, other in others.items() if other.size and _distance(got, scaled(other, SIZE)) <= _NEAR]
    return near[0] if near else "that is another part of the picture, or another scaling"


def _count_work(attempt: Attempt, data: bytes, box: Box, because: str) -> None:
    """Whatever is larger than the picture was made needlessly."""
    pixels = 3 * 500 * 500
    with measured() as work:
        attempt.tried(f"{box} of a JPEG of 500 x 500, {SIDE}", attempt.answer, data, box, SIDE)
    attempt.require(not work.floats, f"a tensor of {work.floats:,} floats", "bytes all the way", _FLOATS)
    little, got = work.peak_bytes <= _COPIES * pixels, f"{work.peak_bytes:,} bytes at once"
    attempt.require(little, got, f"little more than the {pixels:,} of the picture", because)


# --- Task 4: a batch of bytes ---

_STACK = "numpy.stack puts the views behind each other; make whole numbers of labels by torch.tensor"
_LISTS = "on the way the pixels take several times their bytes, as objects of Python or wide numbers do: no "
_LISTS += "tolist(), no torch.tensor of a list, no int64"


@check(
    buys="A quarter of the bytes is sent to the trainer and to the GPU, which makes floats of them quickly.",
    limit_s=20,
    errors={ValueError: _STACK, TypeError: _STACK},
)
def collate(attempt: Attempt) -> None:
    """`collate(pictures, labels)` makes a batch of bytes."""
    chance = np.random.default_rng(8)
    for shape in ((3, 8, 6, 3), (1, 5, 7, 3), (4, 6, 6, 3), (4, 96, 96, 3)):
        true = chance.integers(0, 256, shape, dtype=np.uint8)
        pictures, labels = [view.copy() for view in true], list(range(shape[0]))[::-1]
        got = attempt(pictures, labels, _shown=f"{shape[0]} views of {shape[1]} x {shape[2]}, {labels}")
        because = "the training asks for batch['image'] and batch['target']"
        attempt.expect_dict(("image", "target"), got, because=because)
        because = "image and target are one tensor each for the whole batch; a GPU gets it by one copy"
        tensors = all(isinstance(value, torch.Tensor) for value in got.values())
        attempt.require(tensors, got, "two tensors", because)
        _expect_image(attempt, got["image"], true)
        because = "the loss of PyTorch takes labels as int64 only: dtype=torch.int64"
        attempt.require(got["target"].dtype == torch.int64, f"{got['target'].dtype}", "torch.int64", because)
        attempt.expect(labels, got["target"].tolist(), because="a label for each view, in their order")
    with measured() as work:
        attempt.tried("4 views of 96 x 96, counted", attempt.answer, pictures, labels)
    because = "floats are made and thrown away: the views are bytes already"
    attempt.require(not work.floats, f"a tensor of {work.floats:,} floats", "bytes all the way", because)
    times = work.peak_bytes / true.nbytes
    attempt.require(times <= 4, f"{times:.0f} times the bytes", "little more than the batch itself", _LISTS)


def _expect_image(attempt: Attempt, got: torch.Tensor, true: Pixels) -> None:
    shape = "the first axis counts the views, as np.stack gives them; channels stay last"
    size = f"floats are {got.element_size()} bytes for one, to the trainer and to the GPU; normalise there"
    for holds, because in (
        (not got.is_floating_point(), size),
        (got.dtype == torch.uint8, "pixels are bytes: torch.uint8"),
        (got.shape == true.shape, shape),
        (np.array_equal(got.numpy(), true), "collate only puts the views together, in their order"),
    ):
        found = f"{got.dtype}, {list(got.shape)}, {got.nbytes} bytes"
        attempt.require(holds, found, f"torch.uint8, {list(true.shape)}, {true.nbytes} bytes", because)
