# %% [markdown] id="top"
# # 13 · Bring your own data
#
# **Minutes** 35 · **Machine** any Linux computer with two CPUs, no GPU needed · **Needs** notebook 03 · **Data** 200
# synthetic images with masks, and the same images with a table
#
# So far a sample was an image and a label. Yours may also have a mask, a number or a text. Each of these is a *field*.
# A field of *blobs* holds the bytes of a file for each sample, such as an image or a mask. A field of *values* is a
# column of a table.

# %% [markdown] id="questions"
# ## Questions
#
# - How do samples of several files get into one packed file?
# - How do image and mask stay together through random crops?
# - Which columns of a table are labels, and which are numbers?
# - What does a mask cost, and a second file (optional)?
# - What does the toolbox make of my folder?

# %% [markdown] id="objectives"
# ## After this you can
#
# - pack images with masks, and check what was recognised,
# - give an image and its mask the same random view,
# - join a table by name, also one that comes later, and keep floats from becoming classes,
# - try all of this on your own data without writing a byte.

# %% [markdown] id="setup"
# ## Set up

# %% id="start"
import sys

sys.path.append("..")
from helpers import figures, show, start

setup = start("13")

# %% [markdown] id="recall"
# > **Recall** (11). A metadata server is busy for half of the time. Behind how many operations does a request wait on
# > average? And if it is busy for 90 % of the time?
#
# <details>
# <summary>Answer</summary>
#
# For 1, and for 9, with random arrivals and lengths: load / (1 - load).
#
# </details>

# %% [markdown] id="masks" tags=["core"]
# ## 1 · Pack images with their masks
#
# In *segmentation* a network predicts the class of every pixel. A *mask* is a picture of the right classes. The usual
# folder:

# %%
folder = setup.path("segmentation")
for part in ("images", "masks"):
    names = sorted(path.name for path in (folder / part).iterdir())
    print(f"{part + '/':8} {len(names)} files: {', '.join(names[:3])} …")

# %% [markdown]
# > **Predict.** A class per sub-folder is the rule of `ImageFolder`. How many classes does it find here: 1, 2 or 10?

# %%
from torchvision.datasets import ImageFolder

wrong = ImageFolder(folder)
print(f"{len(wrong)} samples of the classes {wrong.classes}; the first image has label {wrong.targets[0]}")

# %% [markdown]
# There is no error, but a network would learn to tell photographs from masks. `sources.load` knows the usual names of
# such folders, and pairs their files. Its notes say what it took for what:

# %%
from smallfiles import formats, sources
from smallfiles.pack import PackConfig, pack

source = sources.load(folder)
packed = setup.scratch / "shapes.arrow"
if not packed.exists():  # finished output is never overwritten
    pack(source, packed, PackConfig())
print(f"further fields: {source.manifest.fields}")

# %% [markdown]
# Do your files have other names? Then say which file belongs to which image; `{stem}` is the name of the image without
# its suffix:
#
# | | |
# |---|---|
# | in Python | `sources.load(folder, columns="mask=labels/{stem}_gt.png")` |
# | as a command | `smallfiles pack folder out.arrow --field "mask=labels/{stem}_gt.png"` |
#
# In the packed file each field is a column, each sample a row:

# %%
import pyarrow as pa

with pa.memory_map(str(packed)) as file:
    print(pa.ipc.open_file(file).schema.remove_metadata())

# %% [markdown]
# `reader.read` gives the first blob of a sample, here the image, and `reader.blob(name)` reads another. The numbers in
# a mask are classes, not brightness; 0 is the background.

# %%
import io

import numpy as np
from PIL import Image as Picture

reader = formats.open(packed)
masks = reader.blob("mask")


def pair(index):
    """Image and mask of a sample."""
    return (Picture.open(io.BytesIO(data.read(index))) for data in (reader, masks))


# %% [markdown]
# The folded cell draws three images with the outlines of their masks:

# %% jupyter={"source_hidden": true}
from matplotlib.figure import Figure


def draw(panels, alt):
    """Images side by side, each with the outline of its mask."""
    figure = Figure(figsize=(9, 3), layout="constrained")
    for axes, (title, (image, mask)) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items()):
        axes.imshow(np.asarray(image))
        for width, colour in ((4, "black"), (2, "white")):
            axes.contour(np.asarray(mask) > 0, [0.5], colors=colour, linewidths=width)
        axes.set_title(title, fontsize=10)
        axes.axis("off")
    show.figure(figure, alt=alt)


found = {index: tuple(pair(index)) for index in (3, 4, 5)}
classes = {index: np.unique(mask)[1:].tolist() for index, (_, mask) in found.items()}
draw(
    {f"{reader.key(i)}: classes {classes[i]}": both for i, both in found.items()},
    f"Three images with the outlines of their masks. The classes in them are {classes}.",
)

# %% [markdown] id="view" tags=["core"]
# ## 2 · Give both the same view
#
# Training takes a random crop of each image. The mask must be cropped, too. A first try:

# %%
from torchvision import tv_tensors
from torchvision.transforms import v2

crop = v2.RandomResizedCrop(96, scale=(0.3, 0.6), antialias=True)


def apart(image, mask):
    return crop(image), crop(mask)


# %% [markdown]
# `crop` draws a new place at each call, so image and mask get different ones.
#
# > **Predict.** How much do object and mask then overlap: 20, 60 or 90 %? (Intersection over union, IoU: the pixels in
# > both, in percent of the pixels in either. Drawn below.)

# %%
guess = 60  # change me: percent

# %% [markdown]
# The remedy is to draw the crop *once*. In torchvision, say what a mask is (`tv_tensors.Mask`), and pass both in one
# call. Correct `yours` (the answer is folded, below):

# %%
import torch
from torchvision.transforms.v2 import functional as F


def yours(image, mask):
    return crop(image), crop(mask)  # change me: one call


def as_mask(picture):
    return tv_tensors.Mask(F.pil_to_tensor(picture)[0])


torch.manual_seed(13)
image, mask = pair(4)
panels = {crops.__name__: crops(image, as_mask(mask)) for crops in (apart, yours)}
draw(panels, "Two crops with the outlines of their masks: left cropped apart, right by your function.")

# %% [markdown]
# On the left, even a correct answer of the network increases the loss. No error is raised, because shapes and types are
# right. The folded cell is the answer, and draws it for three images:


# %% jupyter={"source_hidden": true}
def together(image, mask):
    return crop(image, mask)  # the answer


torch.manual_seed(13)
panels = {f"together: {reader.key(i)}": together(one, as_mask(of_it)) for i in (3, 4, 5) for one, of_it in [pair(i)]}
draw(panels, "Three crops with the outlines of their masks, which follow the objects.")


# %% [markdown]
# Only a picture shows the fault, or a measurement, with the mask in place of the image:


# %%
def overlap(crops, index):
    """Intersection over union of the object in both crops, in percent; NaN where neither shows it."""
    mask = as_mask([*pair(index)][1])
    of_image, of_mask = (crop > 0 for crop in crops(mask, mask))
    return 100 * float((of_image & of_mask).sum() / (of_image | of_mask).sum())


found = {f.__name__: [overlap(f, index) for index in range(100)] for f in (apart, yours, together)}
middle = {name: np.nanmedian(runs) for name, runs in found.items()}
title = f"Cropped apart, mask and object overlap by {middle['apart']:.0f}% (IoU), together by {middle['together']:.0f}%"
figures.bars(found, title, x="intersection over union (%)", dots="masks", guess=guess, guess_of="apart")

# %% [markdown]
# A mask must also not be scaled like an image. Scaling mixes neighbours, but the mean of classes 1 and 3 is 2, another
# class. So take the nearest pixel, as torchvision does for every `tv_tensors.Mask`. For a plain picture, you must say
# so:

# %%
for mode in ("NEAREST", "BILINEAR"):
    scaled = F.resize(mask, [48], interpolation=v2.InterpolationMode[mode])
    print(f"{mode.lower():9} classes {np.unique(scaled).tolist()}")

# %% [markdown]
# Our `make_loader` does both. It takes for each field what makes a tensor of it. `Mask(view)` gets the same random view
# as `Image(view)`, in every worker, and takes the nearest pixel:

# %%
from smallfiles.images import RandomResizedCrop
from smallfiles.loading import Image, LoaderConfig, Mask, make_loader

view = RandomResizedCrop(96)
fields = {"image": Image(view), "mask": Mask(view)}
batch = next(iter(make_loader(packed, LoaderConfig(batch=8), fields=fields)))
{name: (str(tensor.dtype), tuple(tensor.shape)) for name, tensor in batch.items()}

# %% [markdown]
# The folded cell draws three views of this batch:

# %% jupyter={"source_hidden": true}
objects = [float((mask > 0).float().mean()) for mask in batch["mask"]]  # the share of the view that is object
shown = sorted(range(len(objects)), key=lambda i: abs(objects[i] - 0.3))[:3]
titles = {i: f"{reader.key(int(batch['index'][i]))}: classes {np.setdiff1d(batch['mask'][i], 0).tolist()}" for i in shown}
panels = {title: (batch["image"][i].permute(1, 2, 0), batch["mask"][i]) for i, title in titles.items()}
draw(panels, "Three views of a batch. The outlines of the masks follow the objects.")

# %% [markdown]
# `train` trains a small network to predict the field `target`. Before the loss it calls `mask.long()`,
# as your own loop must:

# %%
from smallfiles.training import TrainConfig, train

config = TrainConfig(loader=LoaderConfig(batch=20), target="mask", epochs=3)
for epoch in train(packed, config=config).epochs:
    print(f"epoch {epoch.epoch}: loss {epoch.loss:.2f}")

# %% [markdown]
# > **Predict.** The mask must be decoded as well. It has 1.5 kB and the image 118 kB, but both have as many pixels. How
# > much more processor time does a sample take with its mask: 2, 20 or 60 %?

# %%
guess = 20  # change me: percent more

# %% [markdown]
# The folded cell clocks batches without and with masks.

# %% jupyter={"source_hidden": true}
from itertools import islice
from time import process_time

settings = LoaderConfig(batch=20, mode="main")
both, only = {"image": Image(view), "mask": Mask(view)}, {"image": Image(view)}
loaders = {"image": make_loader(packed, settings, fields=only)}
loaders["image and mask"] = make_loader(packed, settings, fields=both)


def clocked(loader):
    began = process_time()  # other programs hardly change it
    return sum(1 for _ in islice(loader, 5)) and process_time() - began


clocked(loaders["image and mask"])  # the first batches take longer
costs = {name: [] for name in loaders}
for _ in range(9):
    for name, loader in loaders.items():
        costs[name].append(clocked(loader))
alone = np.median(costs["image"])
shares = {name: [100 * cost / alone for cost in runs] for name, runs in costs.items()}
factor = np.median(shares["image and mask"]) / 100
title = f"In our loader a mask takes {factor - 1:.0%} more processor time: plan {factor:.1f} times its workers"
note = f"random crops to 96 pixels; the image alone takes {1000 * alone / 100:.2f} ms"
figures.bars(shares, title, x="processor time per sample, of the image alone (%)", base="image", guess=100 + guess, note=note)

# %% [markdown]
# Few bytes do not mean little work: a PNG is decoded whole; of a JPEG our loader makes only the crop's pixels. Plan
# more workers ([08](08_keep_the_gpu_fed.ipynb)), or pack both no larger than the network needs (`pack --resize 256`).

# %% [markdown] id="table" tags=["core"]
# ## 3 · Join a table
#
# The second set has the same images, and a table with a row for each: a species, and a weight in grams. Here are the
# first sorted files beside the first rows:

# %%
import csv

table = setup.path("table") / "labels.csv"
rows = list(csv.DictReader(table.open()))
files = sorted(path.name for path in (table.parent / "images").iterdir())
for row, name in zip(rows[:3], files):
    print(name, "|", *row.values())

# %% [markdown]
# > **Predict.** If you pair files and rows by position, as `zip` does here, how many of 200 images get their own row:
# > about 1, 20 or 100?

# %%
guess = 20  # change me: images with their own row
right = sum(row["filename"].endswith(name) for row, name in zip(rows, files))
show.say(f"**{right} of {len(rows)}** images got their own row, and no error was raised; your guess was {guess}.")

# %% [markdown]
# That is chance: a shuffled list has on average one item at its own place. So join *by name*, and report what lacks a
# partner.
#
# The weight is a second trap: is it a label?

# %%
from smallfiles.errors import SmallfilesError

label = "weight"  # change me: then "species"
try:
    print(*sources.load(table, columns=f"label={label}").notes)
except SmallfilesError as error:
    print(error)

# %% [markdown]
# `weight` is refused, because 22.9 would become class 22. With `species`, the note lists 10 classes.
#
# > **Predict.** Is a weight in whole grams refused, too?

# %%
guess = "refused"  # change me: refused or accepted

# %% [markdown]
# The folded cell rounds the weights, and loads that table with the label `weight`:

# %% jupyter={"source_hidden": true}
rounded = setup.scratch / "rounded"
rounded.mkdir(exist_ok=True)
if not (rounded / "images").exists():
    (rounded / "images").symlink_to(table.parent / "images")
grams = [f"{row['filename']},{float(row['weight']):.0f}" for row in rows]
(rounded / "labels.csv").write_text("\n".join(["filename,weight", *grams]))
try:
    classes = sources.load(rounded / "labels.csv", columns="label=weight").manifest.targets.to_pylist()
    told = f"accepted, as classes from {min(classes)} to {max(classes)}"
except SmallfilesError:
    told = "refused"
show.say(f"In whole grams, weights are **{told}**; your guess was: {guess}.")

# %% [markdown]
# Labels are whole numbers, too, so the type cannot warn. So count the classes: if many have a single image, the column
# is a number. Without `columns`, `load` finds the species. Every other column stays a value with its type:

# %%
weighed = setup.scratch / "weighed.arrow"
if not weighed.exists():
    pack(sources.load(table), weighed, PackConfig())
batch = next(iter(make_loader(weighed, LoaderConfig(batch=4), transform=view)))
print(batch["weight"].dtype, batch["weight"].tolist(), "and labels", batch["target"].tolist())

# %% [markdown]
# Was the join right? Then larger objects of a species weigh more; wrong rows give a cloud. The images are those of
# section 1, so its masks tell the sizes. The folded cell joins by position and by name, and colours one species.

# %% jupyter={"source_hidden": true}
from collections import Counter
from pathlib import Path

plants = formats.open(weighed)
weights = plants.table(["weight"])["weight"].to_pylist()
sizes = {}  # pixels of the largest shape by the name of the picture; the others are decoys
for index in range(len(reader)):
    sizes[Path(reader.key(index)).stem] = np.bincount(np.asarray([*pair(index)][1]).ravel())[1:].max()
kinds, species = np.array([plants.target(index) for index in range(len(plants))]), plants.classes
pixels = np.array([sizes[Path(plants.key(index)).stem] for index in range(len(plants))])
by_place = dict(zip(files, (float(row["weight"]) for row in rows)))  # as `zip` paired them above
joins = {"by position": [by_place[Path(plants.key(index)).name] for index in range(len(plants))], "by name": weights}
figure = Figure(figsize=(7.2, 3.4), layout="constrained")
shown = Counter(kinds.tolist()).most_common(1)[0][0]  # the species with the most images
follows = {}  # correlation of weight and size within a species
for axes, (name, column) in zip(figure.subplots(1, 2, sharex=True, sharey=True), joins.items()):
    own = [(pixels[kinds == number], np.array(column)[kinds == number]) for number in range(len(species))]
    for number, pair_of in enumerate(own):
        colour, above = ("#0072B2", 3) if number == shown else ("0.85", 2)
        label = species[number] if number == shown else "other species" if number == (shown == 0) else None
        axes.plot(*pair_of, "o", ms=5, color=colour, mec="white", mew=0.5, zorder=above, label=label)
    follows[name] = np.nanmedian([np.corrcoef(*np.log(pair_of))[0, 1] for pair_of in own])
    axes.set(xscale="log", xticks=(2_000, 10_000, 50_000), yscale="log", yticks=(3, 10, 30, 100))
    axes.set_xlabel("size of the object (pixels)")
    axes.set_title(f"joined {name}", fontsize=10)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,.0f}")
    axes.spines[["top", "right"]].set_visible(False)
axes.legend(loc="lower right", frameon=False, fontsize=9)
figure.axes[0].set_ylabel("weight (g)")
title = "Within a species, weight follows size if joined by name\n"
title += f"(median correlation of logarithms {follows['by name']:.2f}; by position {follows['by position']:.2f})"
figure.suptitle(title, x=0.01, ha="left", fontsize=10, fontweight="bold")
show.figure(figure, alt=f"Two scatter plots of {len(weights)} images, weight by pixels of the object. {' '.join(title.split())}.")
grams = Counter(round(weight) for weight in weights)
singles = sum(count == 1 for count in grams.values())
print(f"In whole grams these would be {len(grams)} classes, {singles} of them with a single image.")

# %% [markdown]
# Why not classes? Those with one image have none left to validate with. And classes do not know that 22 g is nearer to
# 23 g than to 60 g.
#
# <details>
# <summary>Types, and missing numbers</summary>
#
# `make_loader` gives `float64` as Arrow stores it, so call `.float()` before the loss. A missing float comes as NaN.
# Missing whole numbers are refused until you say what stands for them (`Value(missing=-1)`).
#
# </details>
#
# A score that comes next week needs no second packing. `annotate` joins it by name, and writes a small file beside the
# packed one:

# %%
from smallfiles.pack import annotate

scores, added = setup.scratch / "scores.csv", setup.scratch / "weighed.arrow.scores.fields.arrow"
lines = [f"{row['filename']},{len(row['species'])}" for row in rows]  # in place of real scores
scores.write_text("\n".join(["filename,score", *lines]))
if not added.exists():
    annotate(weighed, scores, key="filename")
print(f"{weighed.stat().st_size:,} and {added.stat().st_size:,} bytes; fields: {list(formats.open(weighed).fields)}")

# %% [markdown] id="price" tags=["optional"]
# ## 4 · Pay for the second file
#
# *Optional, 5 minutes.* What does a second file per sample cost? The folded cell writes the same bytes as one file per
# sample, and packs these:

# %% jupyter={"source_hidden": true}
import os

joined = setup.scratch / "joined"
joined.mkdir(exist_ok=True)
lists = source.manifest.paths.to_pylist(), source.manifest.blob_paths("mask").to_pylist()
paths = [[f"{folder}/{name}" for name in names] for names in zip(*lists)]
joined_paths = [f"{joined}/{index:05d}.raw" for index in range(len(reader))]
for index, path in enumerate(joined_paths):
    Path(path).write_bytes(bytes(reader.read(index)) + bytes(masks.read(index)))
out = setup.scratch / "joined.arrow"
if not out.exists():
    pack(sources.load(joined, suffixes=(".raw",), unlabelled=True), out, PackConfig())
one_blob = formats.open(out)

# %%
def whole(path):
    """The bytes of a file, read as in notebook 01."""
    descriptor = os.open(path, os.O_RDONLY)
    found = os.read(descriptor, os.fstat(descriptor).st_size)
    os.close(descriptor)
    return found


tasks = {
    "2 files": lambda i: b"".join(map(whole, paths[i])),
    "1 file": lambda i: b"".join((whole(joined_paths[i]), b"")),  # copied as above
    "packed, 2 blobs": lambda i: b"".join((reader.read(i), masks.read(i))),
    "packed, 1 blob": lambda i: bytes(one_blob.read(i)),
}
assert len({read(7) for read in tasks.values()}) == 1, "all four read the same bytes"

# %% [markdown]
# > **Predict.** From the page cache, how many microseconds does the second file add to a sample? Does the second blob
# > in a packed file add more or less?

# %%
guess = 10  # change me: µs for the second file

# %% [markdown]
# The folded cell measures all four, and draws what the second file or blob adds:

# %% jupyter={"source_hidden": true}
from functools import partial

from smallfiles import measure

order = (np.random.default_rng(0).permutation(10 * len(reader)) % len(reader)).tolist()


def read_all(read):
    """Samples in ten epochs of reading in random order."""
    return len([len(read(i)) for i in order])


result = measure.compare({name: partial(read_all, read) for name, read in tasks.items()}, rounds=9, unit="samples")
spent = {name: [1e6 / rate for rate in result.rates_per_s(name)] for name in tasks}
pairs = {"second file": ("2 files", "1 file"), "second packed blob": ("packed, 2 blobs", "packed, 1 blob")}
middle = {name: np.median(runs) for name, runs in spent.items()}
added = {name: float(max(0, middle[twos] - middle[ones])) for name, (twos, ones) in pairs.items()}
title = "A second file adds {:.0f} µs to a sample, a second packed blob {:.0f} µs".format(*added.values())
whole_of = f"in all {middle['2 files']:.0f} µs from 2 files, {middle['packed, 2 blobs']:.0f} µs packed"
note = f"from medians of 9 runs, warm cache; {whole_of}"
figures.bars(added, title, x="microseconds that it adds to a sample", note=note, guess=guess, guess_of="second file")

# %% [markdown]
# On a parallel file system each open is a round trip to a busy server ([01](01_count_the_cost_of_small_files.ipynb)),
# so expect a second file to double the waiting. A second packed blob costs no open. But from storage it is a second
# request, unless it lies beside the first, as in shards.

# %% [markdown] id="own" tags=["core"]
# ## 5 · Try your own folder
#
# Write the path of your folder, table or archive into this cell. Nothing is written there. Without a path we try a
# small delivery of trees (our shapes):

# %%
import os

from helpers.delivery import delivered

trees = delivered(setup.path("segmentation"), setup.scratch / "delivery", seed=1).folder
own = os.environ.get("COURSE_DATA") or str(trees)  # change me: the path of your own folder or table
columns = []  # change me if needed, as in section 1; several in a list
for at, _, names in sorted(os.walk(trees)):
    print(f"{os.path.relpath(at, trees)}: {len(names)} files {sorted(names)[:2]}")

# %% [markdown]
# > **Predict.** How many samples will be found, and how many of our delivery can be packed?

# %%
guess, kept = 60, 60  # change me: samples found; samples of our delivery that can be packed

# %%
from smallfiles.pack import plan
from smallfiles.progress import bytes_text

mine = None
try:
    mine = sources.load(own, columns=columns)
    print(f"{len(mine.manifest)} samples (guess: {guess}), further fields {mine.manifest.fields or 'none'}", *mine.notes, sep="\n")
except SmallfilesError as error:
    print(error)  # the last sentence says what to try
if mine is not None:
    planned = plan(mine, setup.scratch / "mine.arrow", PackConfig())
    print(f"{planned.samples:,} samples, {bytes_text(planned.payload_bytes)}; files and folders: {planned.inodes_now} now, {planned.inodes_then} packed")

# %% [markdown]
# Check samples, fields, and what was left out: in our delivery five files without a partner, and the table;
# [14](14_wrap_up.ipynb) mends this. For any other layout write a table, with columns of paths.
#
# A plan opens no image. The folded cell packs our delivery (never your folder), and skips damaged images:

# %% jupyter={"source_hidden": true}
import tempfile
from dataclasses import replace

trial = Path(tempfile.mkdtemp(dir=setup.scratch)) / "trial.arrow"
report = pack(replace(sources.load(trees), notes=()), trial, PackConfig(on_error="skip"))
print(f"{report.samples} samples packed (guess: {kept})", *(one.reason for one in report.skipped), sep="\n")

# %% [markdown] id="exercise"
# ## Exercise
#
# [Exercise 13](../exercises/13_bring_your_own_data.ipynb): pair masks with their images, join a table in another order,
# and keep a float a float.

# %% [markdown] id="cluster"
# ## On the cluster
#
# A dry run, packing, and pictures:

# %%
print("smallfiles pack data shapes.arrow --dry-run")
show.command(PackConfig(), "data", "shapes.arrow")
print("smallfiles inspect shapes.arrow --picture sheet.html")
show.command(TrainConfig(target="mask", epochs=20), "shapes.arrow")

# %% [markdown] id="key-points"
# ## Key points
#
# - A sample has fields: blobs (files) and values (columns), packed in one row.
# - Read the notes of `load` and look at pictures before training; wrong pairs raise no error.
# - Draw a random view once, and give it to image and mask. Scale masks by the nearest pixel.
# - Join tables by name, never by order. A float is a value; whole numbers are one, too, if many occur once. A later
#   column needs no second packing.
# - A second file is a second open; a second packed blob may be a second request. Both must be decoded.

# %% [markdown] id="quiz"
# ## Check yourself
#
# **1.** Training on `images/` and `masks/` reaches 50 % accuracy on the first batch and 100 % after one epoch. Why? (a)
# The shapes are easy. (b) Validation images are in the training set. (c) The folders are the classes.
#
# <details>
# <summary>Answer</summary>
#
# **(c)**: `ImageFolder` took the two folders for two classes, and telling a photograph from a mask is easy. Look at
# `dataset.classes`. (a) Of ten species, one in ten is right at first, not one in two. (b) raises the validation score,
# not that of the training.
#
# </details>
#
# **2.** The validation score is far better than the training score in every epoch; validation uses a centre crop. What
# do you look at first? (a) The learning rate. (b) Image and mask of a training batch. (c) The number of validation
# images.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**, drawn over each other. A centre crop is the same for both in any case; random crops are not, unless they are
# drawn once for both. (a) is the same for both scores. (c) makes a score noisy, not better in every epoch.
#
# </details>
#
# **3.** A column `age` holds 7.0, 8.0 and 12.5. What is it? (a) A class, it has three values. (b) A value, kept as
# float. (c) A class after rounding.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**, with a loss for numbers, such as `MSELoss`: it is measured and ordered. (a) A loss for classes does not know
# that 7.0 is nearer to 8.0 than to 12.5, and 9.0 would be no class. (c) has the same faults.
#
# </details>

# %% [markdown] id="next"
# ## Next
#
# What breaks is in [12](12_when_it_breaks.ipynb); [14 · Wrap up](14_wrap_up.ipynb) puts all together.
