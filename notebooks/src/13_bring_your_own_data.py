# %% [markdown] id="top"
# # 13 · Bring your own data
#
# **Minutes** 35 · **Machine** any Linux computer with two CPUs, no GPU needed · **Needs** notebook 03 · **Data** 200
# synthetic images with masks, and 200 with a table of labels
#
# So far a sample was an image and a label. Yours may have a mask, a number to predict, a text or a list as well. Each
# of these is a *field*. A field holds either *blobs*, the bytes of one file per sample such as an image or a mask (in
# 04 a *blob* was many of these back to back), or *values*, a column of a table. This notebook brings two such sets from
# the folder to the batch, shows mistakes that raise no error, and ends with your own folder.

# %% [markdown] id="questions"
# ## Questions
#
# - How do samples of several files get into one packed file?
# - How do an image and its mask stay together through random crops?
# - Which columns of a table are labels, and which are numbers?
# - What does a second file per sample cost (optional section 4)?
# - What does the toolbox make of my folder?

# %% [markdown] id="objectives"
# ## After this you can
#
# - pack images with masks, and a table with numbers, and check what was recognised,
# - give an image and its mask the same random view,
# - join a table to its files by name, also one that comes later, and keep floats from becoming classes,
# - say what a further field costs in files and packed (optional section 4),
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
# For 1, and for 9: load / (1 - load).
#
# </details>

# %% [markdown] id="masks" tags=["core"]
# ## 1 · Pack images with their masks
#
# In segmentation every pixel has a class. The usual folder looks like this:

# %%
folder = setup.path("segmentation")
for part in ("images", "masks"):
    names = sorted(path.name for path in (folder / part).iterdir())
    print(f"{part + '/':8} {len(names)} files: {', '.join(names[:3])} …")

# %% [markdown]
# > **Predict.** A class per sub-folder is the rule of `ImageFolder`. How many classes does it find here, and what is
# > the label of an image?

# %%
from torchvision.datasets import ImageFolder

wrong = ImageFolder(folder)
print(f"{len(wrong)} samples of the classes {wrong.classes}")

# %% [markdown]
# Twice as many samples as images, and a network that learns to tell photographs from masks, without an error.
# `sources.load` knows the names that such folders usually have, and pairs their files by name. Read its notes, which
# `pack` shows: they say what it took for what.

# %%
from smallfiles import formats, sources
from smallfiles.pack import PackConfig, pack

source = sources.load(folder)
packed = setup.scratch / "shapes.arrow"
if not packed.exists():  # finished output is never overwritten
    pack(source, packed, PackConfig())
print(f"further fields: {source.manifest.fields}")

# %% [markdown]
# For other names say it yourself: `--field mask=labels/{stem}_gt.png`. In the packed file each field is a column, and
# the files of one sample are in one row:

# %%
import pyarrow as pa

with pa.memory_map(str(packed)) as file:
    print(pa.ipc.open_file(file).schema.remove_metadata())

# %% [markdown]
# `read` gives the first blob, `blob(name)` the others. The numbers in a mask are classes, not brightness: 0 is the
# background. Always look at some samples before training; `smallfiles inspect FILE --picture sheet.html` draws many.

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
    """Images side by side, each with the outline of its mask if it has one."""
    figure = Figure(figsize=(9, 3), layout="constrained")
    for axes, (title, (image, mask)) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items()):
        axes.imshow(np.asarray(image))
        for width, colour in ((4, "black"), (2, "white")) if mask is not None else ():
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
# Training takes a random crop of each image. The mask must be cropped too:

# %%
from torchvision import tv_tensors
from torchvision.transforms import v2

crop = v2.RandomResizedCrop(96, scale=(0.3, 0.6), antialias=True)


def apart(image, mask):
    return crop(image), crop(mask)


# %% [markdown]
# `crop` draws a place at each call, so the two get different ones.
#
# > **Predict.** In what share of the pixels of the object does such a mask then disagree with its image?

# %%
guess = 20  # change me: percent of the object's pixels with a wrong class

# %% [markdown]
# The remedy: draw the crop *once*, for both. In torchvision, say what a mask is (`tv_tensors.Mask`), and pass both in
# one call:

# %%
import torch
from torchvision.transforms.v2 import functional as F


def together(image, mask):
    return crop(image, mask)


def as_mask(picture):
    return tv_tensors.Mask(F.pil_to_tensor(picture)[0])


torch.manual_seed(13)
image, mask = pair(4)
panels = {f.__name__: f(image, as_mask(mask)) for f in (apart, together)}
draw(panels, "Left, the outline of the mask lies beside the object. Right, it follows the object.")

# %% [markdown]
# On the left, a correct answer of the network increases the loss. Shapes, types and the number of samples are all as
# they should be, so only a picture shows it, or a count. Here a mask takes the place of the image, to count the pixels
# of the object in which the two crops differ:


# %%
def wrong_pixels(crops, index):
    """Percentage of the object's pixels, in either crop, whose classes differ; NaN where neither shows it."""
    mask = as_mask([*pair(index)][1])
    of_image, of_mask = crops(mask, mask)
    in_object = (of_image > 0) | (of_mask > 0)
    return 100 * float((of_image != of_mask)[in_object].float().mean())


found = {f.__name__: [wrong_pixels(f, index) for index in range(100)] for f in (apart, together)}
middle = {name: np.nanmedian(runs) for name, runs in found.items()}
title = f"Cropped apart, {middle['apart']:.0f} % of the object's pixels have a wrong class; together, {middle['together']:.0f} %"
figures.bars(found, title, x="wrong pixels of the object (%)", dots="masks", guess=guess)

# %% [markdown]
# A mask must also not be scaled like an image. The mean of classes 1 and 3 is 2, and that is another class:

# %%
for mode in ("NEAREST", "BILINEAR"):
    scaled = F.resize(mask, [48], interpolation=v2.InterpolationMode[mode])
    print(f"{mode.lower():9} classes {np.unique(scaled).tolist()}")

# %% [markdown]
# `make_loader` takes a maker for each field. `Mask(view)` takes its view from the same draw as `Image(view)`, in every
# worker, and picks the nearest pixel:

# %%
from smallfiles.images import RandomResizedCrop
from smallfiles.loading import Image, LoaderConfig, Mask, make_loader

view = RandomResizedCrop(96)
fields = {"image": Image(view), "mask": Mask(view)}
batch = next(iter(make_loader(packed, LoaderConfig(batch=8), fields=fields)))
{name: (str(tensor.dtype), tuple(tensor.shape)) for name, tensor in batch.items()}

# %% [markdown]
# The folded cell draws three views of this batch, with the outlines of their masks:

# %% jupyter={"source_hidden": true}
objects = [float((mask > 0).float().mean()) for mask in batch["mask"]]  # the share of the view that is object
shown = sorted(range(len(objects)), key=lambda i: abs(objects[i] - 0.3))[:3]
panels = {f"sample {int(batch['index'][i])}": (batch["image"][i].permute(1, 2, 0), batch["mask"][i]) for i in shown}
draw(panels, "Three views of a batch. The outlines of the masks follow the objects.")

# %% [markdown]
# `training.train` uses the same makers and trains a small network. `target` says which field it learns; the type of the
# field decides the rest, here a class for each pixel:

# %%
from smallfiles.training import TrainConfig, train

config = TrainConfig(loader=LoaderConfig(batch=20), target="mask", epochs=3)
for epoch in train(packed, config=config).epochs:
    print(f"epoch {epoch.epoch}: loss {epoch.loss:.2f}, waits {epoch.waiting_share:.0%} of the time")

# %% [markdown] id="table" tags=["core"]
# ## 3 · Join a table
#
# The second set has one row per image: a species, and a weight in grams that a network is to predict.

# %%
import csv

table = setup.path("table") / "labels.csv"
rows = list(csv.DictReader(table.open()))
files = sorted(path.name for path in (table.parent / "images").iterdir())
for row, name in zip(rows[:3], files):
    print(name, "|", *row.values())

# %% [markdown]
# > **Predict.** If you pair sorted files and rows by position, as `zip` does here, how many of the 200 images get their
# > own row?

# %%
right = sum(row["filename"].endswith(name) for row, name in zip(rows, files))
show.say(f"**{right} of {len(rows)}** images got their own row, and no error was raised.")

# %% [markdown]
# A table is joined *by name*, and whatever has no partner must be reported. The weight is a trap of its own: it is a
# column of numbers, and so is a column of labels.

# %%
from smallfiles.errors import SmallfilesError


def load(*columns):
    try:
        return sources.load(table, columns=columns)
    except SmallfilesError as error:
        print(error, "\n")


load("label=weight")
print(*load().notes)

# %% [markdown]
# As a class, 22.9 would become 22, or each weight a class of its own. The first is refused, and the second is what you
# get from `sorted(set(weights))` in a script of your own. Every column that is not the label stays a value with its
# type, and arrives in the batch:

# %%
weighed = setup.scratch / "weighed.arrow"
if not weighed.exists():
    pack(load(), weighed, PackConfig())
batch = next(iter(make_loader(weighed, LoaderConfig(batch=4), transform=view)))
print(batch["weight"].dtype, batch["weight"].tolist(), "and labels", batch["target"].tolist())

# %% [markdown]
# Look at the samples again: does the species fit the picture, and does a larger object weigh more? The folded cell
# draws three images of one species at one scale, lightest first, and the classes that the weights would make.

# %% jupyter={"source_hidden": true}
from collections import Counter

plants = formats.open(weighed)
weights = plants.table(["weight"])["weight"].to_pylist()
labels = [plants.target(index) for index in range(len(plants))]
same = sorted((index for index, label in enumerate(labels) if label == labels[7]), key=weights.__getitem__)
panels, chosen = {}, (same[0], same[len(same) // 2], same[-1])
pictures = [Picture.open(io.BytesIO(plants.read(index))) for index in chosen]
for index, picture in zip(chosen, pictures):
    canvas = Picture.new("RGB", tuple(map(max, zip(*(one.size for one in pictures)))), "white")
    canvas.paste(picture)
    panels[f"{plants.classes[labels[index]]}\n{weights[index]} g"] = canvas, None
shown = "; ".join(panels).replace("\n", ", ")
draw(panels, f"Three images of one species with their weights, lightest first: {shown}.")
sizes = Counter(min(count, 5) for count in Counter(weights).values())
title = f"Weights as classes: {len(set(weights))} classes for {len(weights)} images, and {sizes[1]} have a single image"
names = {1: "1 image", **{n: f"{n} images" for n in (2, 3, 4)}, 5: "5 or more"}
figures.bars({name: sizes[n] for n, name in names.items() if sizes[n]}, title, x="number of classes")

# %% [markdown]
# Small shapes beside the large one are decoys. No network learns a class from one image, and classes do not know that
# 22 g is nearer to 23 g than to 60 g.
#
# `make_loader` gives `float64` as Arrow stores it; call `.float()` before the loss. Missing numbers come as NaN, and missing
# whole numbers are refused until you say what stands for them (`Value(missing=-1)`).
#
# > **Predict.** Next week a colleague sends a score for each image, in a table of its own. Do you have to pack again?

# %%
from smallfiles.pack import annotate

scores, added = setup.scratch / "scores.csv", setup.scratch / "weighed.arrow.scores.fields.arrow"
lines = [f"{row['filename']},{len(row['species'])}" for row in rows]  # in place of real scores
scores.write_text("\n".join(["filename,score", *lines]))
if not added.exists():
    annotate(weighed, scores, key="filename")
print(f"{weighed.stat().st_size:,} and {added.stat().st_size:,} bytes; fields: {list(formats.open(weighed).fields)}")

# %% [markdown]
# No: `annotate` joins the table by name and writes the new column to a small file beside the packed one. From then on
# the score is read as if it had been packed.

# %% [markdown] id="price" tags=["optional"]
# ## 4 · Pay for the second file
#
# *Optional, 8 minutes.* As files, a sample with a mask takes two opens. To see what the second one costs, and only
# that, the folded cell writes the same bytes as one file per sample, the mask after its image, and packs them too.

# %% jupyter={"source_hidden": true}
joined = setup.scratch / "joined"
joined.mkdir(exist_ok=True)
files = list(zip(source.manifest.paths.to_pylist(), source.manifest.blob_paths("mask").to_pylist()))
for index in range(len(reader)):
    (joined / f"{index:05d}.raw").write_bytes(bytes(reader.read(index)) + bytes(masks.read(index)))
out = setup.scratch / "joined.arrow"
if not out.exists():
    pack(sources.load(joined, suffixes=(".raw",), unlabelled=True), out, PackConfig())
one_blob = formats.open(out)

# %%
order = np.random.default_rng(0).permutation(len(reader)).tolist()


def read_all(read):
    """Samples in one epoch of reading in random order."""
    return len([len(read(i)) for i in order])


tasks = {
    "2 files": lambda i: b"".join((folder / name).read_bytes() for name in files[i]),
    "1 file": lambda i: b"".join(((joined / f"{i:05d}.raw").read_bytes(), b"")),  # copied as above
    "packed, 2 blobs": lambda i: b"".join((reader.read(i), masks.read(i))),
    "packed, 1 blob": lambda i: bytes(one_blob.read(i)),
}
assert len({read(7) for read in tasks.values()}) == 1, "all four read the same bytes"

# %% [markdown]
# > **Predict.** How many microseconds per sample does the second file add? And the second blob in a packed file?
#
# The folded cell measures all four, and draws.

# %% jupyter={"source_hidden": true}
from functools import partial

from smallfiles import measure

result = measure.compare({name: partial(read_all, read) for name, read in tasks.items()}, rounds=9, unit="samples")
spent = {name: [1e6 / rate for rate in result.rates_per_s(name)] for name in tasks}
pairs = ("2 files", "1 file"), ("packed, 2 blobs", "packed, 1 blob")
added = [max(0, np.median(spent[two]) - np.median(spent[one])) for two, one in pairs]
title = f"A second file adds {added[0]:.0f} µs to a sample, a second packed blob {added[1]:.0f} µs"
figures.bars(spent, title, x="microseconds per sample", note="warm cache")

# %% [markdown]
# These are warm reads, from memory. On a parallel file system each open is a round trip to a busy server ([notebook
# 01](01_count_the_cost_of_small_files.ipynb)), so expect a second file to double the waiting. A second packed blob is
# only one more read of a file that is already open. What remains is the work on the CPU, since a mask must be decoded
# as well. The folded cell decodes batches without and with masks.

# %% jupyter={"source_hidden": true}
from itertools import islice

settings = LoaderConfig(batch=20, mode="main")
both, only = {"image": Image(view), "mask": Mask(view)}, {"image": Image(view)}
loaders = {"image": make_loader(packed, settings, fields=only)}
loaders["image and mask"] = make_loader(packed, settings, fields=both)


def decode(loader):
    return 20 * sum(1 for _ in islice(loader, 5))


result = measure.compare({name: partial(decode, each) for name, each in loaders.items()}, rounds=7, unit="samples")
share = result.times("image", "image and mask").median - 1
figures.bars(result, f"With the mask to decode, {1 - 1 / (1 + share):.0%} fewer samples per second")

# %% [markdown]
# So a mask can need more workers than the image alone ([notebook 08](08_keep_the_gpu_fed.ipynb)).

# %% [markdown] id="own" tags=["core"]
# ## 5 · Try your own folder
#
# Write the path of a folder, table or archive of yours into this cell. Nothing is written to it. Without one, our
# table is tried.
#
# > **Predict.** Which fields will be recognised, and which files will be left out?

# %%
import os

own = os.environ.get("COURSE_DATA") or str(table)  # change me: the path of your own folder or table
columns = ()  # change me if needed, such as ("mask=labels/{stem}.png", "label=species")

# %%
mine = None
try:
    mine = sources.load(own, columns=columns)
    print(f"{len(mine.manifest)} samples, further fields {mine.manifest.fields or 'none'}", *mine.notes, sep="\n")
except SmallfilesError as error:
    print(error)  # the last sentence says what to try

# %%
from smallfiles.pack import plan
from smallfiles.progress import bytes_text

if mine is not None:
    planned = plan(mine, setup.scratch / "mine.arrow", PackConfig())
    print(f"{planned.samples:,} samples, {bytes_text(planned.payload_bytes)}; files once packed: {planned.files}")

# %% [markdown]
# Check three things in the notes: the number of samples, the fields, and what was left out. If your layout is not
# recognised, a table with one row per sample always is: a column of paths for each kind of file, and the others are
# values.

# %% [markdown] id="exercise"
# ## Exercise
#
# [Exercise 13](../exercises/13_bring_your_own_data.ipynb): pair masks with their images, join a table in another order,
# and keep a float a float.

# %% [markdown] id="cluster"
# ## On the cluster
#
# First what would be packed, then packing, and pictures to look at:

# %%
print("smallfiles pack data shapes.arrow --dry-run")
show.command(PackConfig(), "data", "shapes.arrow")
print("smallfiles inspect shapes.arrow --picture sheet.html")

# %%
show.command(TrainConfig(target="mask", epochs=20), "shapes.arrow")

# %% [markdown] id="key-points"
# ## Key points
#
# - A sample is a key and its fields: blobs (files) and values (columns), packed together in one row.
# - Read the notes of `load` and look at pictures before training; wrong pairs raise no error.
# - Draw a random view once, and give it to image and mask. Scale masks by the nearest pixel.
# - Join tables by name, never by order. A float is a value, not a class. A later column needs no second packing.
# - A second file per sample is a second open, a round trip on a parallel file system; a second blob in a packed file is
#   one more read of an open file. Packing does not save the decoding of the mask.

# %% [markdown] id="quiz"
# ## Check yourself
#
# **1.** Training on `images/` and `masks/` reaches 50 % accuracy on the first batch and 100 % after one epoch. Why?
#
# <details>
# <summary>Answer</summary>
#
# `ImageFolder` took the two folders for two classes, and telling a photograph from a mask is easy. Look at
# `dataset.classes`.
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
# **3.** A column `age` holds 7.0, 8.0 and 12.5. Is it a label?
#
# <details>
# <summary>Answer</summary>
#
# No: it is measured and ordered, 7.0 is nearer to 8.0 than to 12.5, and a loss for classes does not know that. Keep it
# as a float and use a loss for numbers, such as `MSELoss`.
#
# </details>

# %% [markdown] id="next"
# ## Next
#
# Pack your own set with its fields, then choose workers as in [08](08_keep_the_gpu_fed.ipynb) and run it as in [10 ·
# Run it on many nodes](10_run_it_on_many_nodes.ipynb). If something breaks, look it up in [12 · When it
# breaks](12_when_it_breaks.ipynb).
