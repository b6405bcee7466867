# %% [markdown] id="top"
# # Exercise 08 · Find the bottleneck and fix it
#
# ★★☆ · 30 minutes · after [notebook 08](../notebooks/08_keep_the_gpu_fed.ipynb)
#
# Three loaders are slow. Each has one bad part, and it is a different part in each of them. First you write a function that
# finds the bottleneck of a loader. Then you replace the three bad parts.

# %% id="start"
import sys

sys.path.append("..")
from helpers import show, start
from smallfiles import images
from smallfiles.pack import PackConfig, pack

setup = start("ex08")
packed = setup.scratch / "train.arrow"
if not packed.exists():
    pack(setup.source(), packed, PackConfig())

# %% [markdown] id="find"
# ## Task 1
#
# `stages` contains the seconds that one worker needs for each stage of a batch. If the `workers` workers together need at
# most `step_s` seconds per batch, return `"training"`. Otherwise, return the name of the longest stage. With 0 workers,
# training makes its batches itself, so return the longest stage, too:
#
# `bottleneck(stages: dict[str, float], workers: int, step_s: float) -> str`


# %% id="find-answer"
def bottleneck(stages: dict[str, float], workers: int, step_s: float) -> str:
    """What limits the training: a stage of the loader, or "training" itself."""
    # --8<-- solution
    if workers and sum(stages.values()) / workers <= step_s:
        return "training"
    return max(stages, key=stages.get)
    # --8<-- stub
    # raise NotImplementedError  # your code: three lines, the name of a stage or "training"
    # --8<-- end


# %% id="find-check"
from exercises.checks import ex08_keep_the_gpu_fed as check

found = check.bottleneck(bottleneck)
found

# %% [markdown] id="find-hints"
# <details>
# <summary>Hint 1: how fast do batches come?</summary>
#
# One worker needs the sum of all stages for a batch. In the same time, two workers make two batches.
#
# </details>
#
# <details>
# <summary>Hint 2: the name of the largest value</summary>
#
# `max(numbers)` of a dict returns the key that is last in the alphabet. `max(numbers, key=numbers.get)` compares the values.
#
# </details>

# %% [markdown] id="given"
# ## The three loaders
#
# Read and run the next cells. Each replaces one part of a good loader by a bad part. Opening a file takes 6 ms here, as on a
# busy file system. The last cell measures all three loaders, and your function names their bottlenecks for two workers and
# steps of 10 ms. One function makes a view, so *decode and augment* is one stage here.


# %% id="given-a"
class ReadA:
    """Loader A: bytes and labels of some samples of a packed file."""

    def __init__(self, disk, path):
        self.disk, self.path = disk, path

    def __call__(self, indices):
        samples = []
        for index in indices:
            file = self.disk.open(self.path)
            samples.append((file.read(index), file.target(index)))
        return samples


# %% id="given-b"
import torch


def picture_b(data, box, size):
    """Loader B: the part `box` of a picture, scaled to size x size."""
    floats = torch.from_numpy(images.decode(data)).permute(2, 0, 1).float() / 255
    scale = size / box.height
    shape = [round(scale * side) for side in floats.shape[1:]]
    whole = torch.nn.functional.interpolate(floats[None], shape, mode="bilinear", antialias=True)[0]
    top, left = round(scale * box.top), round(scale * box.left)
    view = whole[:, top : top + size, left : left + size]
    return (255 * view).round().byte().permute(1, 2, 0).numpy()


# %% id="given-c"
def collate_c(pictures, labels):
    """Loader C: one batch of many views."""
    views = [images.normalise(picture[None])[0].tolist() for picture in pictures]
    return {"image": torch.tensor(views), "target": torch.tensor(labels)}


# %% id="measure"
from helpers.experiments.nb08 import follow

given = {"A": {"read": ReadA}, "B": {"picture": picture_b}, "C": {"collate": collate_c}}
for name, part in given.items():
    measured = follow(packed, **part)
    limit = f"improve {bottleneck(measured, 2, 0.01)}" if found else "solve task 1 first"
    print(f"{name}:", *(f"{stage} {1e3 * s:.1f} ms," for stage, s in measured.items()), limit)

# %% [markdown] id="cure-a"
# ## Task 2
#
# Improve *A*. A reader is created in the training process and then sent to the workers, so its constructor must not open the
# file. The first call opens the file, and all later calls use the same open file. Read only the requested samples:
#
# `Reader(disk: Disk, path: Path)`, and `reader(indices: list[int]) -> list[tuple[bytes, int]]`


# %% id="cure-a-answer"
# --8<-- solution
class Reader:
    """Bytes and labels of some samples of a packed file, opened once."""

    def __init__(self, disk, path):
        self.disk, self.path, self.file = disk, path, None

    def __call__(self, indices):
        if self.file is None:
            self.file = self.disk.open(self.path)
        return [(self.file.read(index), self.file.target(index)) for index in indices]


# --8<-- stub
# class Reader:
#     """Bytes and labels of some samples of a packed file, opened once."""
#
#     def __init__(self, disk, path):
#         self.disk, self.path = disk, path
#
#     def __call__(self, indices):
#         raise NotImplementedError  # your code: three lines; __init__ may change too
#
#
# --8<-- end

# %% id="cure-a-check"
cured_a = check.reader(Reader)
cured_a

# %% [markdown] id="cure-a-hints"
# <details>
# <summary>Hint 1: where to keep the open file</summary>
#
# Keep it on `self`. Set it to `None` at first. Then a call can see whether the file has been opened.
#
# </details>
#
# <details>
# <summary>Hint 2: not on the class</summary>
#
# If you keep the open file in the class body or in a global variable, all readers share it, even those of other files.
#
# </details>

# %% [markdown] id="cure-b"
# ## Task 3
#
# Improve *B*. Return the same view with less work. Make no floats, and scale only the pixels that the view shows. You need
# only `images.decode(data)` and `images.resize(pixels, out)`, where `out` is the array for the result:
#
# `picture(data: bytes, box: Box, size: int) -> np.ndarray`, uint8, `[size, size, 3]`

# %% id="cure-b-answer"
import numpy as np


def picture(data, box, size):
    """The part `box` (top, left, height, width) of a picture, scaled to size x size."""
    # --8<-- solution
    pixels = images.decode(data)
    out = np.empty((size, size, 3), np.uint8)
    images.resize(pixels[box.top : box.top + box.height, box.left : box.left + box.width], out)
    return out
    # --8<-- stub
    # raise NotImplementedError  # your code: four lines, an array of bytes
    # --8<-- end


# %% id="cure-b-check"
cured_b = check.picture(picture)
cured_b

# %% [markdown] id="cure-b-hints"
# <details>
# <summary>Hint 1: cropping costs nothing</summary>
#
# `pixels[top:bottom, left:right]` does not copy anything. It is a view of the array. Rows are the first index.
#
# </details>
#
# <details>
# <summary>Hint 2: the array to fill</summary>
#
# Create it with `np.empty((size, size, 3), np.uint8)`, a new array for each picture.
#
# </details>

# %% [markdown] id="cure-c"
# ## Task 4
#
# Improve *C*. Return the views as one tensor of bytes, and the labels as int64. The GPU converts the bytes to floats later:
# `images.normalise(batch["image"])` must return the same tensor as `collate_c`:
#
# `collate(pictures: list[np.ndarray], labels: list[int]) -> dict[str, torch.Tensor]`, `image` as `[B, H, W, 3]` and `target`


# %% id="cure-c-answer"
def collate(pictures, labels):
    """One batch of many views."""
    # --8<-- solution
    targets = torch.tensor(labels, dtype=torch.int64)
    return {"image": torch.from_numpy(np.stack(pictures)), "target": targets}
    # --8<-- stub
    # raise NotImplementedError  # your code: one or two lines, a dict of two tensors
    # --8<-- end


# %% id="cure-c-check"
cured_c = check.collate(collate)
cured_c

# %% [markdown] id="cure-c-hints"
# <details>
# <summary>Hint 1: arrays to one array</summary>
#
# `np.stack` joins arrays of the same shape, and `torch.from_numpy` makes a tensor of the result without a copy.
#
# </details>
#
# <details>
# <summary>Hint 2: what is sent</summary>
#
# A float needs four bytes, so do not make floats. `torch.tensor(labels, dtype=…)` sets the type of the labels.
#
# </details>

# %% [markdown] id="use"
# ## With your parts
#
# This cell compares a loader that has all three bad parts with a loader that has your three parts:

# %% id="compare"
if not (cured_a and cured_b and cured_c):
    show.say("Solve tasks 2 to 4 first; then this cell compares the loaders.")
else:
    bad = follow(packed, read=ReadA, picture=picture_b, collate=collate_c)
    good = follow(packed, read=Reader, picture=picture, collate=collate)
    before, after = (1e3 * sum(stages.values()) for stages in (bad, good))
    show.say(
        f"A batch took {before:.0f} ms and takes {after:.0f} ms, "
        f"**{before / after:.0f} times** as fast. "
        f"Now the longest stage is *{max(good, key=good.get)}*."
    )
