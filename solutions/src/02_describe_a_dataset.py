# %% [markdown] id="top"
# # Exercise 02 · Build the validation manifest from the devkit
#
# ★★☆ · 20 minutes · after [notebook 02](../notebooks/02_describe_a_dataset.ipynb)
#
# The names of ImageNet's validation images do not contain their class. The development kit has a file with one line per
# image. Line 7, for example, is the ILSVRC2012_ID of `ILSVRC2012_val_00000007.JPEG`. These IDs number the classes in another
# order than torchvision, timm and Keras do. First you write the manifest. Then you write a function that detects the wrong order
# in other manifests.

# %% id="start"
import sys

sys.path.append("..")
from helpers import show, start

setup = start("ex02")

# %% [markdown] id="task-1"
# ## Task 1: the manifest
#
# `classes` maps each ILSVRC2012_ID to `(wnid, words)`. `truth[0]` is the ID of image 1. `paths` are the images on disk, in any
# order. Return `{path: label}`. The label is the rank of the wnid among all sorted wnids, counted from 0:
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
# Sort the wnids of all classes. `enumerate` numbers them, and a dict from wnid to number finds a rank quickly.
#
# </details>
#
# <details>
# <summary>Hint 2: the line of an image</summary>
#
# The eight digits before `.JPEG` count from 1, but list indices count from 0. A path may begin with folders whose names
# contain digits, too.
#
# </details>
#
# <details>
# <summary>Hint 3: what to loop over</summary>
#
# Loop over `paths`, not over `truth`. Then it does no harm if an image is missing.
#
# </details>

# %% [markdown] id="task-2"
# ## Task 2: the guard
#
# `known` maps the names of some files, without suffix, to their right labels (the ranks of their wnids). Return `"sorted"` if
# all known images in the manifest have these labels, `"other"` if one of them has another label, and `"unknown"` if the
# manifest contains no known image. Paths may begin with folders:
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
# `all([])` is `True`. So first collect the comparisons in a list, and check whether the list is empty.
#
# </details>

# %% [markdown] id="use"
# ## With the devkit on this disk
#
# Once both checks have passed, your function builds the manifest of the course's small copy of ImageNet. The next cell
# compares its labels with those that `smallfiles.sources` reads. Then your second function judges two manifests: yours, and
# that of a colleague who wrote `label = ID - 1`. As `known`, it gets the labels of seven images from another copy, whose
# folders are named by wnid. What will it return for each manifest?

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
    guards = label_order(yours, by_name), label_order(theirs, by_name)
    show.say("Your guard: **{}**; for `ID - 1`: **{}**.".format(*guards))

# %% [markdown] id="meaning"
# A function that knows the labels of a few images also detects files that were renumbered or mixed up. For the real data set
# you know six: validation images 1 to 6 have the labels 65, 970, 230, 809, 516 and 57.

# %% [markdown] id="own"
# ## On your own manifest
#
# Write the path of a manifest of ImageNet's validation set, in either of the two JSON forms, or the path of the data set itself.
# Your function says whether its labels are in sorted order. (The course's small copies have the same file names as the real
# set, but other pictures. So for them it says `other`.)

# %% id="own-path"
own = ""  # change me: the path of a manifest or of a data set

# %% id="own-check"
from pathlib import Path

from smallfiles import sources
from smallfiles.manifest import Manifest

if own and guard:
    path = Path(own).expanduser()
    is_json = path.suffix == ".json"
    manifest = Manifest.load(path) if is_json else sources.load(path, split="val").manifest
    flat = dict(zip(manifest.paths.to_pylist(), manifest.targets.to_pylist()))
    known = sum(PurePosixPath(name).stem in check.KNOWN for name in flat)
    order = label_order(flat, check.KNOWN)
    show.say(f"**{order}**: {known} of {len(flat):,} samples are images whose label is known.")
else:
    show.say("Solve task 2, and write a path into the cell above; then this cell asks your guard.")
