# %% [markdown] id="top"
# # Exercise 14 · Take over a delivery
#
# ★★★ · 40 minutes · after [notebook 14](../notebooks/14_wrap_up.ipynb)
#
# Another survey has arrived, and it has other faults. Find them, pack the complete samples, and defend your decision. The
# check makes its own deliveries, so you cannot look up the answers.

# %% id="start"
import sys

sys.path.append("..")
from helpers import show, start, worksheet

setup = start("ex14")

# %% id="delivery"
from helpers.delivery import delivered

delivery = delivered(setup.path(), setup.scratch / "delivery", seed=14).folder
paths = sorted(path.relative_to(delivery).as_posix() for path in delivery.rglob("*"))
print(*paths[:6], "…", sep="\n")

# %% [markdown] id="faults"
# ## Task 1: the faults
#
# Compare the column `id` of `survey/trees.csv` with the names `images/ID.jpg` and `masks/ID.png`. Return four sets of ids:
# rows under `"no image"` and `"no mask"`, images under `"no row"`, and images that cannot be decoded under `"damaged"`.
#
# `faults(folder: Path) -> dict[str, set[str]]`

# %% id="faults-answer"
import csv
import tempfile
from pathlib import Path

from PIL import Image


def faults(folder: Path) -> dict[str, set[str]]:
    """Return the ids of each fault."""
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
    gone = {"no image": rows - images, "no mask": rows - masks, "no row": images - rows}
    return gone | {"damaged": damaged}
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
# Make three sets of ids, one each for rows, images, and masks. Each fault is the difference of two sets.
#
# </details>
#
# <details>
# <summary>Hint 2: damaged</summary>
#
# `Image.open` reads only the header. `.load()` decodes the image, and it raises an `OSError` if the file is truncated.
#
# </details>

# %% [markdown] id="packed"
# ## Task 2: the packed file, and the list
#
# Pack the complete samples of the table into `out`, with image, mask, the species as label, and the height as a value.
# Leave out only incomplete samples. Return the reason for each of them by its id.
#
# `packed(folder: Path, out: Path) -> dict[str, str]`

# %% id="packed-answer"
from smallfiles import sources
from smallfiles.pack import PackConfig, pack


def packed(folder: Path, out: Path) -> dict[str, str]:
    """Pack all complete samples, and return the reason for each row that is left out, by id."""
    # --8<-- solution
    columns = ("image=images/{id}.jpg", "mask=masks/{id}.png", "label=species")
    source = sources.load(folder / "survey" / "trees.csv", columns=columns)
    report = pack(source, out, PackConfig(on_error="skip"))
    return {Path(one.key).stem: one.reason for one in report.skipped}
    # --8<-- stub
    # raise NotImplementedError  # your code: about four lines that return a dict
    # --8<-- end


# %% id="packed-check"
whole = check.packed(packed)
whole

# %% [markdown] id="packed-hints"
# <details>
# <summary>Hint 1: the source</summary>
#
# Use `sources.load(table, columns=(…))` with templates such as `image=images/{id}.jpg`, as in section 1 of the notebook.
#
# </details>
#
# <details>
# <summary>Hint 2: incomplete samples</summary>
#
# `pack` refuses them unless you pass `PackConfig(on_error="skip")`. Then its report lists them in `skipped`. Each entry has
# a `key`, which is the path of the image, and a `reason`.
#
# </details>

# %% [markdown] id="break-even"
# ## Task 3: the copy
#
# A copy on each node needs `copy_s` once. Then it shortens an epoch from `other_epoch_s` to `staged_epoch_s`. Return the
# smallest whole number of epochs after which the copy has paid off, or `math.inf` if it never pays off:
#
# `break_even(copy_s: float, other_epoch_s: float, staged_epoch_s: float) -> float`

# %% id="break-even-answer"
import math


def break_even(copy_s: float, other_epoch_s: float, staged_epoch_s: float) -> float:
    """Return the epochs after which the copy has saved its own time."""
    # --8<-- solution
    saved_s = other_epoch_s - staged_epoch_s
    return math.ceil(copy_s / saved_s) if saved_s > 0 else math.inf
    # --8<-- stub
    # raise NotImplementedError  # your code: about two lines
    # --8<-- end


# %% id="break-even-check"
paid = check.break_even(break_even)
paid

# %% [markdown] id="break-even-hints"
# <details>
# <summary>Hint 1: one division</summary>
#
# Divide the seconds that the copy needs once by the seconds that it saves in each epoch.
#
# </details>
#
# <details>
# <summary>Hint 2: never</summary>
#
# A copy never pays off if it saves nothing or makes the epoch longer. `math.ceil` rounds up.
#
# </details>

# %% [markdown] id="three-ways"
# ## Three ways to train
#
# Task 4 compares three ways. What a way does in an epoch overlaps, so the longest part decides.
#
# | way | in each epoch | once, before the first epoch |
# |---|---|---|
# | `"files"` | open two files per tree, read, and decode | |
# | `"shards"` | read and decode | |
# | `"staged"` | decode | each node reads all trees, to copy them |

# %% [markdown] id="defence"
# ## Task 4: the defence
#
# `numbers` has `opens_per_s` and `read_mb_s`, which *all* nodes share, and `tree_mb` and `cpu_ms` for one tree. Each node has
# `cpus` CPUs. Return the seconds of the whole training for each of the three ways. Under `"way"`, return the name of the shortest
# way (the first, if two are equal):
#
# `defence(trees, nodes, cpus, epochs, numbers) -> dict`

# %% id="defence-answer"


def defence(trees: int, nodes: int, cpus: int, epochs: int, numbers: dict[str, float]) -> dict:
    """Return the seconds of a training for each way, and the name of the shortest."""
    # --8<-- solution
    opens_s = 2 * trees / numbers["opens_per_s"]
    read_s = trees * numbers["tree_mb"] / numbers["read_mb_s"]
    decode_s = trees * numbers["cpu_ms"] / 1000 / (nodes * cpus)
    whole = {
        "files": epochs * max(opens_s, read_s, decode_s),
        "shards": epochs * max(read_s, decode_s),
        "staged": nodes * read_s + epochs * decode_s,
    }
    return {**whole, "way": min(whole, key=whole.get)}
    # --8<-- stub
    # raise NotImplementedError  # your code: about nine lines that return four entries
    # --8<-- end


# %% id="defence-check"
defended = check.defence(defence)
defended

# %% [markdown] id="defence-hints"
# <details>
# <summary>Hint 1: an epoch</summary>
#
# Work that overlaps takes as long as its longest part. For files, these parts are opens (an image and a mask are two files),
# reads, and decoding. For shards, they are reads and decoding. A staged epoch only decodes, because we assume that reading
# memory takes no time. All nodes share the storage, and each node has `cpus` CPUs of its own.
#
# </details>
#
# <details>
# <summary>Hint 2: the training</summary>
#
# Add up all epochs. The copy is made once, before the first epoch. For the copy, each node reads the whole data set.
#
# </details>

# %% [markdown] id="use"
# ## With your numbers
#
# When all checks have passed, this cell uses your functions on the delivery above:

# %% id="compare"
from smallfiles import formats

if not (found and whole and paid and defended):
    show.say("Solve all tasks first. Then this cell uses your functions.")
else:
    counts = {name: len(ids) for name, ids in faults(delivery).items()}
    out = Path(tempfile.mkdtemp(dir=setup.scratch)) / "trees.arrow"
    left_out, samples = packed(delivery, out), len(formats.open(out))
    worksheet.measure_missing(setup.path())
    # change me: opens_per_s is half of the operations/s of all metadata servers together,
    # and read_mb_s is the rate of all targets together
    site = {"opens_per_s": 50_000, "read_mb_s": 16_800}
    cpu_ms = worksheet.value("08", "cpu_ms", worksheet.recorded("08", "cpu_ms"))
    mine = site | {"cpu_ms": cpu_ms, "tree_mb": out.stat().st_size / samples / 1e6}
    decided = {epochs: defence(500_000, 64, 32, epochs, mine) for epochs in (1, 10, 100)}
    ways = ", ".join(f"{each['way']} for {epochs}" for epochs, each in decided.items())
    show.say(f"Faults: {counts}. Packed: **{samples}** samples, left out: {len(left_out)}.")
    show.say(f"500,000 trees on 64 nodes of 32 CPUs, by epochs: **{ways}**.")

# %% [markdown] id="ask"
# Your function does not know the broadcast of the notebook, so *copies* means staged here. If the storage is slow enough, copies
# are the shortest way for 100 epochs. If it is fast enough, shards are. By which factor must `read_mb_s` grow until shards are as
# fast as copies for 100 epochs? (On a slow CPU, the factor is below 1.) The cell accepts a factor that is at most 20 % off.



# %% id="ask-answer"
def way_at(times: float) -> str:
    """Return the shortest way for 100 epochs if the storage reads `times` as fast."""
    return defence(500_000, 64, 32, 100, mine | {"read_mb_s": times * site["read_mb_s"]})["way"]


# --8<-- solution
solved = found and whole and paid and defended
factors = [1.1**n for n in range(-30, 50) if solved]
factor = max((one for one in factors if way_at(one) == "staged"), default=None)
# --8<-- stub
# factor = None  # change me: the factor by which `read_mb_s` grows
# --8<-- end
if not (found and whole and paid and defended) or factor is None:
    show.say("Solve all tasks and write a factor. Then this cell tries it.")
elif way_at(factor / 1.2) == "staged" and way_at(1.2 * factor) != "staged":
    above = way_at(1.2 * factor)
    show.say(f"Right: up to {factor:.1f} times the rate, a copy is shortest; above, {above}.")
else:
    show.say(f"At {factor:g} times, {way_at(factor)} is the shortest way. Try a factor nearer.")

# %% [markdown] id="ask-hints"
# <details>
# <summary>Answer</summary>
#
# The factor is about four if a tree has 113 kB and needs 1.2 ms to decode. It is smaller on a slower CPU, and larger on a faster
# one. Suppose that an epoch needs `r` seconds for reading and `d` seconds for decoding. The copies cost 64 r once, and they save r
# − d in each of 100 epochs. If 100 (r − d) = 64 r, copies and shards are equally fast, and then r = 2.8 d. On slower storage, the
# copy is always the shortest way. `opens_per_s` matters only to files. The storage would need about six times as many opens per
# second before files are as fast as shards.
#
# </details>
