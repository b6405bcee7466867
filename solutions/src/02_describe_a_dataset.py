# %% [markdown] id="top"
# # Exercise 02 · Build the validation manifest from the devkit
#
# ★★☆ · 20 minutes · after [notebook 02](../notebooks/02_describe_a_dataset.ipynb)
#
# The names of ImageNet's validation images do not contain their class. The development kit has a ground truth of one
# line per image: line 7 holds the ILSVRC2012_ID of `ILSVRC2012_val_00000007.JPEG`. These IDs count the classes in an
# order of their own. First you write the manifest, then a guard that catches the wrong order in other manifests.

# %% id="start"
import sys

sys.path.append("..")
from helpers import show, start

setup = start("ex02")

# %% [markdown] id="task-1"
# ## Task 1: the manifest
#
# `classes` maps each ILSVRC2012_ID to `(wnid, words)`. `truth[0]` is the ID of image 1. `paths` are the images on disk,
# in any order. Return `{path: label}`, where the label is the rank, from 0, of the wnid among all sorted wnids:
#
# `val_manifest(classes: dict, truth: list, paths: list) -> dict`


# %% id="answer-1"
def val_manifest(classes: dict, truth: list, paths: list) -> dict:
    """The flat manifest {path: label}."""
    # --8<-- solution
    wnids = sorted(wnid for wnid, _ in classes.values())
    label_of = {wnid: rank for rank, wnid in enumerate(wnids)}
    manifest = {}
    for path in paths:
        number = int(path.removesuffix(".JPEG")[-8:])
        manifest[path] = label_of[classes[truth[number - 1]][0]]
    return manifest
    # --8<-- stub
    # raise NotImplementedError  # your code: about five lines that return a dict
    # --8<-- end


# %% id="check-1"
from exercises.checks import ex02_describe_a_dataset as check

built = check.val_manifest(val_manifest)
built

# %% [markdown] id="hints-1"
# <details>
# <summary>Hint 1: the label of an ID</summary>
#
# Sort the wnids of all classes. `enumerate` gives each its rank, and a dict finds the rank of a wnid quickly.
#
# </details>
#
# <details>
# <summary>Hint 2: the line of an image</summary>
#
# The eight digits before `.JPEG` count from 1, list indices from 0. A path may begin with folders, whose names contain
# digits too.
#
# </details>
#
# <details>
# <summary>Hint 3: what to loop over</summary>
#
# Loop over `paths`, not over `truth`: a missing image then does no harm.
#
# </details>

# %% [markdown] id="task-2"
# ## Task 2: the guard
#
# `known` maps file names without suffix to sorted-order labels. Return `"sorted"` if all known images that the manifest
# holds have that label, `"other"` if any has another, and `"unknown"` if it holds none of them. Paths may have folders:
#
# `label_order(manifest: dict, known: dict) -> str`

# %% id="answer-2"
from pathlib import PurePosixPath


def label_order(manifest: dict, known: dict) -> str:
    """`sorted`, `other` or `unknown`."""
    # --8<-- solution
    label_of = {PurePosixPath(path).stem: label for path, label in manifest.items()}
    found = [label_of[name] == label for name, label in known.items() if name in label_of]
    if not found:
        return "unknown"
    return "sorted" if all(found) else "other"
    # --8<-- stub
    # raise NotImplementedError  # your code: about four lines that return one of three words
    # --8<-- end


# %% id="check-2"
guard = check.label_order(label_order)
guard

# %% [markdown] id="hints-2"
# <details>
# <summary>Hint 1: the name without folders and suffix</summary>
#
# `PurePosixPath("val/a.JPEG").stem` is `"a"`.
#
# </details>
#
# <details>
# <summary>Hint 2: nothing found</summary>
#
# `all([])` is `True`. Collect the comparisons in a list first, and check whether it is empty.
#
# </details>

# %% [markdown] id="use"
# ## With the devkit on this disk
#
# When both checks have passed, your function builds the manifest of the course's small copy of ImageNet, and its labels
# are compared with those that `smallfiles.sources` reads. Then your guard judges it, and the manifest of a colleague
# who wrote `label = ID - 1`. The labels of seven images are known from another copy, whose folders are named by wnid.
# What will your guard return for each?

# %% id="compare"
from smallfiles.sources import imagenet

kit = setup.path("official") / "ILSVRC2012_devkit_t12"
if not (built and guard):
    show.say("Solve both tasks first; then this cell uses your functions.")
elif not imagenet.is_devkit(kit):
    show.say("There is no devkit with your own data, so there is nothing to compare with.")
else:
    source = setup.source("official", split="val")
    truth = imagenet.load_devkit(kit).ground_truth.tolist()
    yours = val_manifest(check.devkit_classes(kit), truth, source.manifest.paths.to_pylist())
    same = sum(map(int.__eq__, yours.values(), source.manifest.targets.to_pylist()))
    tree = setup.source("prepared", split="val").manifest
    by_name = {PurePosixPath(tree.path(row)).stem: tree.target(row) for row in range(7)}
    theirs = {path: truth[int(path[-13:-5]) - 1] - 1 for path in yours}
    show.say(f"**{same} of {len(yours)}** labels are those of `smallfiles.sources`.")
    show.say(f"Your guard: **{label_order(yours, by_name)}**; for `ID - 1`: **{label_order(theirs, by_name)}**.")

# %% [markdown] id="meaning"
# A guard with the labels of a few known images also raises the alarm when files were renumbered or mixed up. For the
# real set you know six: validation images 1 to 6 are 65, 970, 230, 809, 516 and 57.

# %% [markdown] id="own"
# ## On your own manifest
#
# Write the path of a manifest of ImageNet's validation set, in either of the two JSON forms, or the path of the set
# itself. Your guard says whether its labels are in sorted order. (The course's small copies have the names of that set
# and other pictures, so for them it says `other`.)

# %% id="own-path"
own = ""  # change me: the path of a manifest or of a data set

# %% id="own-check"
from pathlib import Path

from smallfiles import sources
from smallfiles.manifest import Manifest

if own and guard:
    path = Path(own).expanduser()
    manifest = Manifest.load(path) if path.suffix == ".json" else sources.load(path, split="val").manifest
    flat = dict(zip(manifest.paths.to_pylist(), manifest.targets.to_pylist()))
    known = sum(PurePosixPath(name).stem in check.KNOWN for name in flat)
    order = label_order(flat, check.KNOWN)
    show.say(f"**{order}**: {known} of {len(flat):,} samples are images whose label is known.")
else:
    show.say("Solve task 2, and write a path into the cell above; then this cell asks your guard.")
