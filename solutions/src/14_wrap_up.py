# %% [markdown] id="top"
# # Exercise 14 · Take over a delivery
#
# ★★★ · 40 minutes · after [notebook 14](../notebooks/14_wrap_up.ipynb)
#
# Another survey has arrived, with other faults. Find them, pack what is whole, and defend your decision. The check makes
# deliveries of its own, so nothing can be looked up.

# %% id="start"
import sys

sys.path.append("..")
from helpers import show, start, worksheet

setup = start("ex14")

# %% id="delivery"
from helpers.experiments.nb14 import delivered

delivery = delivered(setup.path(), setup.scratch / "delivery", seed=14).folder
print(*sorted(path.relative_to(delivery).as_posix() for path in delivery.rglob("*"))[:6], "…", sep="\n")

# %% [markdown] id="faults"
# ## Task 1: the faults
#
# Return the ids of `survey/trees.csv` (column `id`) without `images/ID.jpg` or `masks/ID.png`, the images without a
# row, and the images that cannot be decoded, as sets under `"no image"`, `"no mask"`, `"no row"`, `"damaged"`:
#
# `faults(folder: Path) -> dict[str, set[str]]`

# %% id="faults-answer"
import csv
import tempfile
from pathlib import Path

from PIL import Image


def faults(folder: Path) -> dict[str, set[str]]:
    """The ids of each fault."""
    # --8<-- solution
    survey = folder / "survey"
    with (survey / "trees.csv").open() as table:
        rows = {row["id"] for row in csv.DictReader(table)}
    images = {path.stem for path in (survey / "images").glob("*.jpg")}
    masks = {path.stem for path in (survey / "masks").glob("*.png")}
    damaged = set()
    for one in images:
        try:
            Image.open(survey / "images" / f"{one}.jpg").load()
        except OSError:
            damaged.add(one)
    return {"no image": rows - images, "no mask": rows - masks, "no row": images - rows, "damaged": damaged}
    # --8<-- stub
    # raise NotImplementedError  # your code: about twelve lines that return four sets
    # --8<-- end


# %% id="faults-check"
from exercises.checks import ex14_wrap_up as check

found = check.faults(faults)
found

# %% [markdown] id="faults-hints"
# <details>
# <summary>Hint 1: sets</summary>
#
# Three sets of ids, of rows, images and masks; then differences of sets.
#
# </details>
#
# <details>
# <summary>Hint 2: damaged</summary>
#
# `Image.open` reads only the header. `.load()` decodes, and raises an `OSError` if the file is cut off.
#
# </details>

# %% [markdown] id="packed"
# ## Task 2: the packed file
#
# Pack the whole samples of the table into `out`: image, mask, species as label, height as a value. Leave out only what is
# not whole:
#
# `packed(folder: Path, out: Path)`

# %% id="packed-answer"
from smallfiles import sources
from smallfiles.pack import PackConfig, pack


def packed(folder: Path, out: Path):
    """One file with all whole samples."""
    # --8<-- solution
    columns = ("image=images/{id}.jpg", "mask=masks/{id}.png", "label=species")
    source = sources.load(folder / "survey" / "trees.csv", columns=columns)
    return pack(source, out, PackConfig(on_error="skip"))
    # --8<-- stub
    # raise NotImplementedError  # your code: about three lines
    # --8<-- end


# %% id="packed-check"
whole = check.packed(packed)
whole

# %% [markdown] id="packed-hints"
# <details>
# <summary>Hint 1: the source</summary>
#
# `sources.load(table, columns=(…))`, with templates such as `image=images/{id}.jpg`, as in section 1 of the notebook.
#
# </details>
#
# <details>
# <summary>Hint 2: what is not whole</summary>
#
# `pack` refuses it, unless `PackConfig` says `on_error="skip"`.
#
# </details>

# %% [markdown] id="defence"
# ## Task 3: the defence
#
# As files, each tree is an image and a mask. `numbers` has `opens_per_s` (files per second for *all* nodes) and `cpu_ms`
# (one CPU decodes one image). Return `opens_s` and `decode_s` per epoch, the `limit`, `"opens"` or `"CPUs"`, and the
# `way`: `"files"` if opens are not the limit, else `"packed"`:
#
# `defence(trees, nodes, cpus, numbers) -> dict`

# %% id="defence-answer"


def defence(trees: int, nodes: int, cpus: int, numbers: dict[str, float]) -> dict:
    """Seconds per epoch of the two resources, the limit, and the way to store."""
    # --8<-- solution
    opens_s = 2 * trees / numbers["opens_per_s"]
    decode_s = trees * numbers["cpu_ms"] / 1000 / (nodes * cpus)
    limit, way = ("opens", "packed") if opens_s > decode_s else ("CPUs", "files")
    return {"opens_s": opens_s, "decode_s": decode_s, "limit": limit, "way": way}
    # --8<-- stub
    # raise NotImplementedError  # your code: about four lines
    # --8<-- end


# %% id="defence-check"
defended = check.defence(defence)
defended

# %% [markdown] id="defence-hints"
# <details>
# <summary>Hint 1: who shares what</summary>
#
# The storage is one for all nodes. CPUs come with each node.
#
# </details>
#
# <details>
# <summary>Hint 2: units</summary>
#
# `cpu_ms` is in milliseconds, the answers are in seconds.
#
# </details>

# %% [markdown] id="use"
# ## With your numbers
#
# When all checks have passed, your functions process this delivery:

# %% id="compare"
if not (found and whole and defended):
    show.say("Solve all tasks first; then this cell uses your functions.")
else:
    counts = {name: len(ids) for name, ids in faults(delivery).items()}
    report = packed(delivery, Path(tempfile.mkdtemp(dir=setup.scratch)) / "trees.arrow")
    worksheet.measure_missing(setup.path())
    mine = {"opens_per_s": worksheet.value("01", "opens_per_s"), "cpu_ms": worksheet.value("08", "cpu_ms")}
    decided = defence(500_000, 16, setup.cpus, mine)
    show.say(f"Faults: {counts}. Packed: **{report.samples}** samples. With your numbers, 500,000 trees on 16 nodes: {decided}.")
