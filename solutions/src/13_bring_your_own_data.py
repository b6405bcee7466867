# %% [markdown] id="top"
# # Exercise 13 · Keep the fields of a sample together
#
# ★★☆ · 30 minutes · after [notebook 13](../notebooks/13_bring_your_own_data.ipynb)
#
# Three small functions that scripts for your own data contain, and that are easily wrong:
# which mask belongs to which image, which row of a table to which file, and what a column is to the loss.

# %% id="start"
import sys

sys.path.append("..")
from helpers import show, start

setup = start("ex13")

# %% [markdown] id="pairs"
# ## Task 1: masks
#
# The mask of `images/cat/01.jpg` is `masks/cat/01.png`. Both lists come in any order. Return `{image: mask}` for the
# images that have a mask; leave out all others, on both sides:
#
# `pairs(images: list[str], masks: list[str]) -> dict[str, str]`

# %% id="pairs-answer"
from pathlib import PurePosixPath


def pairs(images: list[str], masks: list[str]) -> dict[str, str]:
    """The mask of each image that has one."""
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
# <summary>Hint 1: do not count on the order</summary>
#
# One missing mask moves all that follow. Compute the name of the mask from that of the image, and look it up.
#
# </details>
#
# <details>
# <summary>Hint 2: parts of a path</summary>
#
# `PurePosixPath("images/cat/01.jpg").relative_to("images").with_suffix(".png")` is `cat/01.png`. Replacing text would
# also change a folder that is called `old_images`.
#
# </details>

# %% [markdown] id="join"
# ## Task 2: a table
#
# `rows` are those of a CSV file, each with a `filename`, in any order. Return the values of column `name` in the order
# of `paths`, and `None` for a path without a row. Two rows with different values for one file are a `ValueError`:
#
# `joined(paths: list[str], rows: list[dict], name: str) -> list`


# %% id="join-answer"
def joined(paths: list[str], rows: list[dict], name: str) -> list:
    """The value of each path."""
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
# Make a dict from file name to value first; then look up each path.
#
# </details>
#
# <details>
# <summary>Hint 2: rows that contradict each other</summary>
#
# A dict silently keeps only the last value. `values.setdefault(path, value)` returns the first.
#
# </details>

# %% [markdown] id="target"
# ## Task 3: a class or a number
#
# Make the tensor that a loss takes. Texts are classes: int64, numbered from 0 in sorted order. Whole numbers (`int`)
# are classes already: int64, unchanged. Floats are values: float32, also if all of them are whole, and NaN for `None`:
#
# `target(column: list) -> torch.Tensor`

# %% id="target-answer"
import torch


def target(column: list) -> torch.Tensor:
    """Classes as int64, values as float32."""
    # --8<-- solution
    if any(isinstance(value, float) for value in column):
        return torch.tensor([float("nan") if value is None else value for value in column], dtype=torch.float32)
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
# Here the type decides: 2.0 is measured, 2 a class. Of a count or an age only you know: make it float.
#
# </details>
#
# <details>
# <summary>Hint 2: numbers of classes</summary>
#
# `enumerate(sorted(set(column)))`. A set alone has another order in each process.
#
# </details>

# %% [markdown] id="use"
# ## With the sets on this disk
#
# When all checks have passed, your functions read the two sets of the notebook, and their results are compared with
# those of `smallfiles.sources`. Which type will the weights have?

# %% id="compare"
import csv

from smallfiles import sources


def listed(folder, part):
    return [path.relative_to(folder).as_posix() for path in (folder / part).rglob("*.*")]


if not (paired and ordered and typed):
    show.say("Solve all tasks first; then this cell uses your functions.")
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
    show.say(f"Pairs as `smallfiles` finds them: **{same}**. Labels as `smallfiles` numbers them: **{right}**.")
    show.say(f"The first weight, {weight[0]} g, became **{weights[0]:g}** (`{weights.dtype}`).")

# %% [markdown] id="meaning"
# A CSV file holds only text, and texts are classes: a correct `target` makes classes of grams, without an error.
# `target([float(text) for text in weight])` is your decision. The toolbox decides once for the whole column, and writes
# down what it decided.

# %% [markdown] id="own"
# ## On your own folder
#
# Do you have images with masks? Write their folder into the cell; change the two patterns, and the rule in `pairs`, if
# your files have other names. Nobody knows the right pairs of your data, so the check looks at what each pair shows by
# itself: no mask belongs to two images, and each has the size of its image.

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
    show.say("Solve task 1, and write a path into the cell above; then this cell looks at your pairs.")
seen
