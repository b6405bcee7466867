# %% [markdown] id="top"
# # Exercise 00 · Fit a data set into a quota
#
# ★☆☆ · 5 minutes · after [notebook 00](../notebooks/00_start_here.ipynb)
#
# A colleague proposes to unpack the data set once for each experiment. How many copies fit, if both the bytes and the
# inodes are limited?

# %% id="start"
import sys

sys.path.append("..")
from helpers import show, start

setup = start("ex00")

# %% [markdown] id="task"
# ## Task
#
# One copy needs `bytes_of_a_copy` bytes, and one inode for each of its `files` and `folders`. `bytes_free` and
# `inodes_free` say what is left. If a file system does not count inodes, `inodes_free` is `None`. Return how many complete
# copies fit, as a whole number.
#
# --8<-- solution
# --8<-- stub
# # Replace the last line of the function with your own lines.
# --8<-- end


# %% id="answer"
def copies_that_fit(
    bytes_free: int, inodes_free: int | None, files: int, folders: int, bytes_of_a_copy: int
) -> int:
    """Return how many complete copies fit."""
    # --8<-- solution
    by_bytes = bytes_free // bytes_of_a_copy
    if inodes_free is None:
        return by_bytes
    return min(by_bytes, inodes_free // (files + folders))
    # --8<-- stub
    # raise NotImplementedError  # your code: about four lines that return a whole number
    # --8<-- end


# %% id="check"
from exercises.checks import ex00_start_here as check

verdict = check.copies_that_fit(copies_that_fit)
verdict

# %% [markdown] id="hints"
# <details>
# <summary>Hint 1: two limits</summary>
#
# Compute how many copies fit into the bytes, and how many fit into the inodes. Which of the two numbers decides?
#
# </details>
#
# <details>
# <summary>Hint 2: whole numbers</summary>
#
# In Python, `7 / 2` is `3.5`, and `7 // 2` is `3`. Note that `//` binds more tightly than `+`.
#
# </details>
#
# <details>
# <summary>Hint 3: None is not zero</summary>
#
# `if not inodes_free` is also true for 0, but with 0 inodes nothing fits. Write `if inodes_free is None` instead.
#
# </details>

# %% [markdown] id="use"
# ## With your numbers
#
# ImageNet has 1,331,167 images with 155 GB together. They lie in 2,003 folders when both splits are sorted by class. When
# the check has passed, this cell computes how many copies fit into this file system, and how many into your quota.

# %% id="imagenet"
quota_bytes, quota_inodes = 2_000_000_000_000, 3_000_000  # change me: your quota
here = setup.filesystem
imagenet = {"files": 1_331_167, "folders": 2_003, "bytes_of_a_copy": 155_000_000_000}
if not verdict:
    show.say("Solve the exercise first. Then this cell uses your function.")
else:
    copies = copies_that_fit(here.free_bytes, here.inodes_free, **imagenet)
    quota = copies_that_fit(quota_bytes, quota_inodes, **imagenet)
    bytes_alone = copies_that_fit(quota_bytes, None, **imagenet)
    show.say(f"ImageNet fits **{copies}** times into this {here.kind}.")
    show.say(f"It fits **{quota}** times. If only bytes counted, it would fit {bytes_alone} times.")
