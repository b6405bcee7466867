# %% [markdown] id="top"
# # Exercise 00 · Fit a data set into a quota
#
# ★☆☆ · 5 minutes · after [notebook 00](../notebooks/00_start_here.ipynb)
#
# A cluster gives you a quota of inodes. A colleague proposes to unpack the data set once per experiment. How often does
# it fit?

# %% id="start"
import sys

sys.path.append("..")
from helpers import show, start

setup = start("ex00")

# %% [markdown] id="task"
# ## Task
#
# Each file and each folder takes one inode. Return how many whole copies of a data set fit into the inodes that are
# free, as a whole number:
#
# `copies_that_fit(inodes_free: int, files: int, folders: int) -> int`
#
# --8<-- solution
# --8<-- stub
# # Replace the last line of the function with your own; one line is enough.
# --8<-- end


# %% id="answer"
def copies_that_fit(inodes_free: int, files: int, folders: int) -> int:
    """How many whole copies fit."""
    # --8<-- solution
    return inodes_free // (files + folders)
    # --8<-- stub
    # raise NotImplementedError  # your code: one line that returns a whole number
    # --8<-- end


# %% id="check"
from exercises.checks import ex00_start_here as check

verdict = check.copies_that_fit(copies_that_fit)
verdict

# %% [markdown] id="hints"
# <details>
# <summary>Hint 1: what one copy takes</summary>
#
# You counted it in notebook 00: the files and the folders together.
#
# </details>
#
# <details>
# <summary>Hint 2: whole numbers</summary>
#
# In Python `7 / 2` is `3.5` and `7 // 2` is `3`. Note that `//` binds tighter than `+`.
#
# </details>

# %% [markdown] id="use"
# ## With your numbers
#
# ImageNet has 1,331,167 images of 144 GB, in 2,003 folders once both splits are sorted by class. When the check has
# passed, this cell computes how many copies would fit into this file system.

# %% id="imagenet"
free = setup.filesystem.inodes_free
if not verdict:
    show.say("Solve the exercise first; then this cell uses your function.")
elif free is None:
    show.say(f"This {setup.filesystem.kind} counts no inodes, so there is no such limit here.")
else:
    by_inodes = copies_that_fit(free, 1_331_167, 2_003)
    by_bytes = setup.filesystem.free_bytes // 144_000_000_000
    show.say(
        f"The free inodes have room for {by_inodes} copies of ImageNet, the free bytes for {by_bytes}: "
        f"**{min(by_inodes, by_bytes)}** fit. The smaller number counts."
    )
