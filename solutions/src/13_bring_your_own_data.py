# %% [markdown] id="top"
# # Exercise 13 · Keep the fields of a sample together
#
# ★★☆ · 35 minutes · after [notebook 13](../notebooks/13_bring_your_own_data.ipynb)
#
# Most scripts for your own data need these four small functions, and all four are easy to get wrong. The first one finds the
# mask of each image, the second one finds the row of each file, and the third one decides whether a column is a class or a number.
# The fourth one chooses the validation set.

# %% id="start"
import sys

sys.path.append("..")
from helpers import show, start

setup = start("ex13")

# %% [markdown] id="pairs"
# ## Task 1: masks
#
# The mask of `images/cat/01.jpg` is `masks/cat/01.png`. Both lists are in random order. Return `{image: mask}` for all images
# that have a mask. Skip images without a mask and masks without an image:
#
# `pairs(images: list[str], masks: list[str]) -> dict[str, str]`

# %% id="pairs-answer"
from pathlib import PurePosixPath


def pairs(images: list[str], masks: list[str]) -> dict[str, str]:
    """Return the mask of each image that has a mask."""
    # --8<-- solution
    found = {}
    there = set(masks)
    for image in images:
        inside = PurePosixPath(image).relative_to("images")
        mask = str("masks" / inside.with_suffix(".png"))
        if mask in there:
            found[image] = mask
    return found
    # --8<-- stub
    # raise NotImplementedError  # your code: about seven lines that return a dict
    # --8<-- end


# %% id="pairs-check"
from exercises.checks import ex13_bring_your_own_data as check

paired = check.pairs(pairs)
paired

# %% [markdown] id="pairs-hints"
# <details>
# <summary>Hint 1: do not rely on the order</summary>
#
# A single missing mask shifts all masks after it. Compute the name of the mask from the name of the image, and look it up.
#
# </details>
#
# <details>
# <summary>Hint 2: parts of a path</summary>
#
# `PurePosixPath("images/cat/01.jpg").relative_to("images").with_suffix(".png")` is `cat/01.png`. If you replace
# text instead, you also change a folder that is called `old_images`.
#
# </details>

# %% [markdown] id="join"
# ## Task 2: a table
#
# `rows` are the rows of a CSV file in any order, and each has a `filename`. Return the values of the column `name` in the order of
# `paths`, with `None` for a path without a row. If two rows have different values for the same file, raise `ValueError`:
#
# `joined(paths: list[str], rows: list[dict], name: str) -> list`


# %% id="join-answer"
def joined(paths: list[str], rows: list[dict], name: str) -> list:
    """Return the value of each path."""
    # --8<-- solution
    values = {}
    for row in rows:
        path = row["filename"]
        if values.setdefault(path, row[name]) != row[name]:
            raise ValueError(f"{path} is {values[path]} and {row[name]}")
    return [values.get(path) for path in paths]
    # --8<-- stub
    # raise NotImplementedError  # your code: about six lines that return a list
    # --8<-- end


# %% id="join-check"
ordered = check.joined(joined)
ordered

# %% [markdown] id="join-hints"
# <details>
# <summary>Hint 1: by name</summary>
#
# First make a dict from file name to value. Then look up each path.
#
# </details>
#
# <details>
# <summary>Hint 2: rows that contradict each other</summary>
#
# A dict keeps only the last value, and reports nothing. `values.setdefault(path, value)` keeps and returns the first value.
#
# </details>

# %% [markdown] id="target"
# ## Task 3: a class or a number
#
# Return the tensor that a loss needs. In this exercise only, the type decides. Texts are classes: number them from 0 in sorted
# order (int64). `int` numbers are classes, too (int64, unchanged). If there is a float, the column has values (float32), and `None`
# becomes NaN:
#
# `target(column: list) -> torch.Tensor`

# %% id="target-answer"
import torch


def target(column: list) -> torch.Tensor:
    """Return classes as int64 and values as float32."""
    # --8<-- solution
    if any(isinstance(value, float) for value in column):
        numbers = [float("nan") if value is None else value for value in column]
        return torch.tensor(numbers, dtype=torch.float32)
    if isinstance(column[0], str):
        number = {name: rank for rank, name in enumerate(sorted(set(column)))}
        column = [number[name] for name in column]
    return torch.tensor(column, dtype=torch.int64)
    # --8<-- stub
    # raise NotImplementedError  # your code: about six lines that return a tensor
    # --8<-- end


# %% id="target-check"
typed = check.target(target)
typed

# %% [markdown] id="target-hints"
# <details>
# <summary>Hint 1: what decides</summary>
#
# In this exercise, 2.0 was measured, and 2 is a class. In your own data, an `int` can also be a measurement, such as a count or an
# age. The type does not show that, so you must decide, and convert measurements to floats yourself.
#
# </details>
#
# <details>
# <summary>Hint 2: numbers of classes</summary>
#
# Use `enumerate(sorted(set(column)))`. A set that is not sorted has another order in each process.
#
# </details>

# %% [markdown] id="split"
# ## Task 4: a validation set
#
# `patients` contains the patient of each image. Return whether each image is in the validation set. All images of a patient stay
# together, and about `share` of the patients are in the set. New patients must not move the others. The result must be the same in
# each new Python process:
#
# `in_validation(patients: list[str], share: float) -> list[bool]`

# %% id="split-answer"
import zlib


def in_validation(patients: list[str], share: float) -> list[bool]:
    """Return whether each image is in the validation set."""
    # --8<-- solution
    return [zlib.crc32(name.encode()) / 2**32 < share for name in patients]
    # --8<-- stub
    # raise NotImplementedError  # your code: one or two lines that return a list of bool
    # --8<-- end


# %% id="split-check"
divided = check.in_validation(in_validation)
divided

# %% [markdown] id="split-hints"
# <details>
# <summary>Hint 1: what may decide</summary>
#
# Only the name of the patient may decide. Its position changes when others are added, and so does a list of drawn patients.
#
# </details>
#
# <details>
# <summary>Hint 2: from a name to a number</summary>
#
# `zlib.crc32(name.encode())` is a whole number from 0 to 2³² − 1. It looks random, but it is the same on every machine. Python's
# own `hash` of a text changes from process to process.
#
# </details>

# %% [markdown] id="use"
# ## With the sets on this disk
#
# When the checks of tasks 1 to 3 have passed, the next cell applies your functions to the two data sets of the notebook, and compares the results
# with those of `smallfiles.sources`. Which type will the weights have?

# %% id="compare"
import csv

from smallfiles import sources


def listed(folder, part):
    return [path.relative_to(folder).as_posix() for path in (folder / part).rglob("*.*")]


if not (paired and ordered and typed):
    show.say("Solve tasks 1 to 3 first. Then this cell uses your functions.")
else:
    folder, table = setup.path("segmentation"), setup.path("table") / "labels.csv"
    ours = sources.load(folder).manifest
    theirs = dict(zip(ours.paths.to_pylist(), ours.blob_paths("mask").to_pylist()))
    same = pairs(listed(folder, "images"), listed(folder, "masks")) == theirs
    ours, rows = sources.load(table).manifest, list(csv.DictReader(table.open()))
    species = target(joined(ours.paths.to_pylist(), rows, "species"))
    right = species.tolist() == ours.targets.to_pylist()
    weight = joined(ours.paths.to_pylist(), rows, "weight")
    # --8<-- solution
    weights = target([float(text) for text in weight])
    # --8<-- stub
    # weights = target(weight)  # change me, if they get the wrong type
    # --8<-- end
    show.say(f"Same pairs as `smallfiles`: **{same}**. Same labels as `smallfiles`: **{right}**.")
    show.say(f"The first weight, {weight[0]} g, became **{weights[0]:g}** (`{weights.dtype}`).")

# %% [markdown] id="meaning"
# A CSV file contains only text, and texts are classes. So a correct `target` turns grams into classes, without an error. You must
# decide that they are numbers: `target([float(text) for text in weight])`. The toolbox decides once for a whole column, and
# records its decision in the packed file.

# %% [markdown] id="own"
# ## On your own folder
#
# Do you have images with masks? Write the path of their folder into the cell. If your files have other names, change the two
# patterns and the rule in `pairs`. The check does not know the right pairs of your data. It can only test that no mask belongs to
# two images, and that each mask has the size of its image.

# %% id="own-folder"
import os
from pathlib import Path

own = os.environ.get("COURSE_DATA", "")  # change me: the folder above images and masks
folder = Path(own).expanduser()
images, masks = folder.glob("images/**/*.jpg"), folder.glob("masks/**/*.png")  # change me if needed

# %% id="own-check"
seen = None
if own and paired:
    names = [[path.relative_to(folder).as_posix() for path in part] for part in (images, masks)]
    mine = {folder / image: folder / mask for image, mask in pairs(*names).items()}
    seen = check.own_pairs(mine, folder)
else:
    show.say("Solve task 1, and write a path above. Then this cell checks your pairs.")
seen
