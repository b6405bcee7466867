# %% [markdown] id="top"
# # 13 · Bring your own data
#
# **Minutes** 35 · **Machine** any Linux computer with two CPUs · **Needs** notebook 03 · **Data** 200
# synthetic images with masks, and the same images with a table
#
# So far a sample was an image and a label. Yours may also have a mask, a number or a text. Each of these is a *field*.
# A *blob* is a field that holds the bytes of a file, such as an image or a mask. A *value* is a field from the column of
# a table.

# %% [markdown] id="questions"
# ## Questions
#
# - How do samples of several files get into one packed file?
# - How do image and mask stay together through random crops?
# - Which columns of a table are labels, and which are numbers?
# - What does a mask cost (optional)?
# - What does the toolbox make of my folder?

# %% [markdown] id="objectives"
# ## After this you can
#
# - pack images with masks, and check what was recognised,
# - give an image and its mask the same random view,
# - join a table by name, also one that comes later, and keep measurements from becoming classes,
# - see what the toolbox would make of your own data, without writing a byte.

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
# For 1, and for 9, counting the one in service: load / (1 - load), if arrivals and lengths are random.
#
# </details>

# %% [markdown] id="masks" tags=["core"]
# ## 1 · Pack images with their masks
#
# A *mask* is a picture that holds the right class of every pixel. The usual folder:

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
# There is no error, but a network would learn to tell photographs from masks. `sources.load` pairs the files, and its
# notes say what it took for what:

# %%
from smallfiles import formats, sources
from smallfiles.pack import PackConfig, pack

source = sources.load(folder)
packed = setup.scratch / "shapes.arrow"
if not packed.exists():  # finished output is never overwritten
    pack(source, packed, PackConfig())

# %% [markdown]
# <details>
# <summary>Do your files have other names?</summary>
#
# Then say which file belongs to which image. `{stem}` is the name of the image without its suffix:
#
# | | |
# |---|---|
# | in Python | `sources.load(folder, columns="mask=labels/{stem}_gt.png")` |
# | as a command | `smallfiles pack folder out.arrow --field "mask=labels/{stem}_gt.png"` |
#
# </details>
#
# In the packed file each field is a column, and each sample is a row. `reader.read` gives the image of a row, and
# `reader.blob("mask")` opens the second column:

# %%
import io

import numpy as np
from PIL import Image as Picture

reader = formats.open(packed)
masks = reader.blob("mask")


def pair(index):
    """Image and mask of a sample."""
    return (Picture.open(io.BytesIO(data.read(index))) for data in (reader, masks))


index = 4  # change me: another sample, 0 to 199
image, mask = pair(index)
print(f"fields: {list(reader.fields)}")
print(f"{reader.key(index)} has {image.size} pixels; the numbers in its mask: {np.unique(mask).tolist()}")

# %% [markdown]
# These numbers are classes, not brightness; here 0 is the background. Some masks hold several objects; we compare all.
#
# You can now solve task 1 of [exercise 13](../exercises/13_bring_your_own_data.ipynb).

# %% [markdown] id="view" tags=["core"]
# ## 2 · Give both the same view
#
# Training takes a random crop of each image. The mask must be cropped, too. A first try:

# %%
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

crop = v2.RandomResizedCrop(96, scale=(0.3, 0.6), antialias=True)


def as_mask(picture):
    return tv_tensors.Mask(F.pil_to_tensor(picture)[0])


def apart(image, mask):
    return crop(image), crop(mask)


# %% [markdown]
# `crop` draws a new place at each call.
#
# > **Predict.** By how much do object and mask then overlap in the median: 20, 60 or 90 %? (*Intersection over union*, IoU: the
# > pixels in both, in percent of the pixels in either.)

# %%
guess = 60  # change me: percent

# %% [markdown]
# **Your turn.** Correct `yours`. `crop` takes image and mask in one call, and crops both alike. It knows the mask by its
# type, `tv_tensors.Mask`.


# %%
def yours(image, mask):
    return crop(image), crop(mask)  # change me: one call


# %% [markdown]
# The folded cell holds the answer, `together`, and draws all crops with the outlines of the masks:

# %% jupyter={"source_hidden": true}
import torch
from matplotlib.figure import Figure


def together(image, mask):
    return crop(image, mask)  # the answer


torch.manual_seed(30)
panels = {"the sample": (image, mask)}
panels |= {f"cropped by {crops.__name__}": crops(image, as_mask(mask)) for crops in (apart, yours, together)}
figure = Figure(figsize=(9, 2.9), layout="constrained")
for axes, (title, (picture, outline)) in zip(figure.subplots(1, len(panels)), panels.items()):
    axes.imshow(np.asarray(picture))
    for width, colour in ((4, "black"), (2, "white")):
        axes.contour(np.asarray(outline) > 0, [0.5], colors=colour, linewidths=width)
    axes.set_title(title, fontsize=10)
    axes.axis("off")
title = "Cropped apart, the mask leaves its object; cropped together, it stays"
figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
show.figure(figure, alt=f"A sample with the outline of its mask, and its crops by `apart`, by your function and by `together`. {title}.")

# %% [markdown]
# With such a mask, a right answer of the network counts as wrong. No error is raised, because shapes and types are
# right.
#
# To measure the fault, give the mask twice, also as the image. Both crops should then be equal.


# %%
def overlap(crops, index):
    """Intersection over union of the object in both crops, in percent; NaN where neither shows it."""
    mask = as_mask([*pair(index)][1])
    of_image, of_mask = (part > 0 for part in crops(mask, mask))
    return 100 * float((of_image & of_mask).sum() / (of_image | of_mask).sum())


found = {f.__name__: [overlap(f, index) for index in range(100)] for f in (apart, yours, together)}
title = f"Cropped apart, mask and object overlap by only {np.nanmedian(found['apart']):.0f}% (IoU)"
dots = f"masks ({found['apart'].count(0)} at 0% in apart)"
figures.bars(found, title, x="IoU (%)", dots=dots, guess=guess, guess_of="apart")

# %% [markdown]
# A mask must also not be scaled like an image. Scaling mixes neighbours, but the mean of classes 1 and 3 is another
# class, 2. So take the nearest pixel:

# %%
for mode in ("NEAREST", "BILINEAR"):  # change me: add "BICUBIC"
    scaled = F.resize(mask, [48], interpolation=v2.InterpolationMode[mode])
    print(f"{mode.lower():9} classes {np.unique(scaled).tolist()}")

# %% [markdown]
# torchvision does so for every `tv_tensors.Mask`. For a plain picture, as here, you must say so.
#
# Our `make_loader` does both: `Mask(view)` gets the same random view as `Image(view)`, by the nearest pixel.
# `target` is the label, here −1: none.

# %%
from smallfiles.images import RandomResizedCrop
from smallfiles.loading import Image, LoaderConfig, Mask, make_loader

view = RandomResizedCrop(96)
fields = {"image": Image(view), "mask": Mask(view)}
batch = next(iter(make_loader(packed, LoaderConfig(batch=8), fields=fields)))
{name: (str(tensor.dtype), tuple(tensor.shape)) for name, tensor in batch.items()}

# %% [markdown] id="table" tags=["core"]
# ## 3 · Join a table
#
# The second set has the same images, and a table with a species and a weight in grams for each. The first sorted files
# beside the first rows:

# %%
import csv

table = setup.path("table") / "labels.csv"
rows = list(csv.DictReader(table.open()))
files = sorted(path.name for path in (table.parent / "images").iterdir())
for row, name in zip(rows[:3], files):
    print(name, "|", *row.values())

# %% [markdown]
# > **Predict.** If `zip` pairs files and rows by position, how many of 200 images get their own row: about 1, 20 or 100?

# %%
guess = 20  # change me: images with their own row

# %%
right = sum(row["filename"].endswith(name) for row, name in zip(rows, files))
show.say(f"**{right} of {len(rows)}** images got their own row, and no error was raised; your guess was {guess}.")

# %% [markdown]
# A shuffled list has on average one item at its place. So join *by name*.
#
# The weight is a second trap. Is it a label?

# %%
from smallfiles.errors import SmallfilesError

label = "weight"  # change me: then "species"
try:
    print(*sources.load(table, columns=f"label={label}").notes)
except SmallfilesError as error:
    show.error(error)

# %% [markdown]
# `weight` is refused, because 22.9 would become class 22.
#
# > **Predict.** Is a weight in whole grams refused, too?

# %%
guess = "refused"  # change me: refused or accepted

# %% [markdown]
# The folded cell rounds the weights, and loads them as labels:

# %% jupyter={"source_hidden": true}
from collections import Counter

rounded = setup.scratch / "rounded"
rounded.mkdir(exist_ok=True)
if not (rounded / "images").exists():
    (rounded / "images").symlink_to(table.parent / "images")
grams = [f"{row['filename']},{float(row['weight']):.0f}" for row in rows]
(rounded / "labels.csv").write_text("\n".join(["filename,weight", *grams]))
try:
    classes = Counter(sources.load(rounded / "labels.csv", columns="label=weight").manifest.targets.to_pylist())
    once = sum(count == 1 for count in classes.values())
    told = f"accepted, as {len(classes)} classes, of which {once} have a single image"
except SmallfilesError:
    told = "refused"
show.say(f"In whole grams, weights are **{told}**; your guess was: {guess}.")

# %% [markdown]
# Labels are whole numbers, too, so the type cannot warn you. What decides: are 22 and 23 more alike than 22 and 60?
# Then it is a number, no class.
#
# Without `columns`, `load` takes as the label the column with a usual name of a label, here `species`. Under any other
# name, say `label=COLUMN`. Every other column stays a value:

# %%
weighed = setup.scratch / "weighed.arrow"
if not weighed.exists():
    pack(sources.load(table), weighed, PackConfig())
batch = next(iter(make_loader(weighed, LoaderConfig(batch=4), transform=view)))
print(batch["weight"].dtype, batch["weight"].tolist(), "and labels", batch["target"].tolist())

# %% [markdown]
# <details>
# <summary>Types, and missing numbers</summary>
#
# Losses for classes want `int64`, so call `mask.long()` before them.
# `make_loader` gives `float64` as Arrow stores it, so call `.float()` before the loss. A missing float comes as NaN.
# Missing whole numbers are refused until you say what stands for them (`Value(missing=-1)`).
#
# </details>
#
# If the join is right, larger objects of a species should weigh more. The masks of section 1 tell the sizes. The folded
# cell draws both joins. The correlation is that of the logarithms of the blue dots:

# %% jupyter={"source_hidden": true}
from pathlib import Path

weight_of = {Path(row["filename"]).stem: float(row["weight"]) for row in rows}  # by name
placed = {Path(name).stem: float(row["weight"]) for name, row in zip(files, rows)}  # by position
species = {Path(row["filename"]).stem: row["species"] for row in rows}
shown = Counter(species.values()).most_common(1)[0][0]  # the species with the most images
size = {Path(reader.key(i)).stem: np.bincount(np.asarray([*pair(i)][1]).ravel())[1:].max() for i in range(len(reader))}
figure, fits = Figure(figsize=(7.2, 3.4), layout="constrained"), {}
for axes, (how, weights) in zip(figure.subplots(1, 2, sharex=True, sharey=True), {"position": placed, "name": weight_of}.items()):
    for colour, label, own in (("0.7", "other species", False), ("#0072B2", shown, True)):
        names = [name for name in size if (species[name] == shown) == own]
        dots = [size[n] for n in names], [weights[n] for n in names]
        axes.plot(*dots, "o", ms=5, color=colour, mec="white", mew=0.5, label=label)
    axes.set(xscale="log", xticks=(2_000, 10_000, 50_000), yscale="log", yticks=(3, 10, 30, 100), xlabel="size of the object (pixels)")
    fits[how] = np.corrcoef(*np.log(dots))[0, 1]  # of the last ones, in blue
    axes.set_title(f"joined by {how}: correlation {fits[how]:.1f}", fontsize=10)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,.0f}")
    axes.spines[["top", "right"]].set_visible(False)
axes.legend(loc="lower right", frameon=False, fontsize=9)
figure.axes[0].set_ylabel("weight (g)")
title = f"Joined by {max(fits, key=fits.get)}, weight follows size within a species"
figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
show.figure(figure, alt=f"Two scatter plots of {len(size)} images, weight by pixels of the object. {title}.")

# %% [markdown]
# A score that comes next week needs no second packing. `annotate` joins it by name, in a small file beside the packed
# one:

# %%
from smallfiles.pack import annotate

scores, added = setup.scratch / "scores.csv", setup.scratch / "weighed.arrow.scores.fields.arrow"
lines = [f"{row['filename']},{len(row['species'])}" for row in rows]  # in place of real scores
scores.write_text("\n".join(["filename,score", *lines]))
if not added.exists():
    annotate(weighed, scores, key="filename")
before, after = (path.stat().st_size for path in (weighed, added))
print(f"{before:,} and {after:,} bytes; fields: {list(formats.open(weighed).fields)}")

# %% [markdown]
# You can now solve tasks 2 and 3 of [exercise 13](../exercises/13_bring_your_own_data.ipynb).

# %% [markdown] id="price" tags=["optional"]
# ## 4 · Pay for the mask
#
# *Optional, 8 minutes.* First, a mask must be decoded. It has 1.5 kB and the image 118 kB, but equally many pixels.
#
# > **Predict.** How much more processor time does a sample take with its mask: 2, 20 or 60 %?

# %%
guess = 20  # change me: percent more

# %% [markdown]
# The folded cell clocks nine rounds of batches without and with masks:

# %% jupyter={"source_hidden": true}
from itertools import islice
from time import process_time

settings = LoaderConfig(batch=20, mode="main")
alone = make_loader(packed, settings, fields={"image": Image(view)})
both = make_loader(packed, settings, fields=fields)


def clocked(loader):
    began = process_time()  # other programs hardly change it
    return sum(1 for _ in islice(loader, 5)) and process_time() - began


clocked(both)  # the first batches take longer
rounds = [(clocked(alone), clocked(both)) for _ in range(9)]
extra = [100 * (with_mask / without - 1) for without, with_mask in rounds]
alone_ms = 10 * np.median(rounds, axis=0)[0]  # a round has 100 samples
show.say(
    f"The image alone takes {alone_ms:.1f} ms, and with its mask about **{round(np.median(extra), -1):.0f} % more** "
    f"(in single rounds {min(extra):.0f} to {max(extra):.0f} %); your guess was {guess} %."
)

# %% [markdown]
# Few bytes do not mean little work. The PNG is decoded whole. Of the JPEG our loader makes only the crop's pixels
# (with TurboJPEG 3), so the mask's share is larger. Plan more workers, or pack both no larger
# than the network needs (`pack --resize 256`).
#
# Second, the file must be opened.
#
# > **Predict.** From the page cache, how many microseconds does the second file add to a sample?

# %%
guess = 10  # change me: µs for the second file

# %% [markdown]
# The folded cell writes image and mask also as one file, and packs these as one blob:

# %% jupyter={"source_hidden": true}
import os

joined = setup.scratch / "joined"
joined.mkdir(exist_ok=True)
lists = source.manifest.paths.to_pylist(), source.manifest.blob_paths("mask").to_pylist()
two_paths = [[f"{folder}/{name}" for name in names] for names in zip(*lists)]
one_path = [f"{joined}/{index:05d}.raw" for index in range(len(reader))]
for index, path in enumerate(one_path):
    Path(path).write_bytes(bytes(reader.read(index)) + bytes(masks.read(index)))
out = setup.scratch / "joined.arrow"
if not out.exists():
    pack(sources.load(joined, suffixes=(".raw",), unlabelled=True), out, PackConfig())
one_blob = formats.open(out)


def whole(path):
    """The bytes of a file, read as in notebook 01."""
    descriptor = os.open(path, os.O_RDONLY)
    found = os.read(descriptor, os.fstat(descriptor).st_size)
    os.close(descriptor)
    return found


# %%
tasks = {
    "2 files": lambda i: b"".join(map(whole, two_paths[i])),
    "1 file": lambda i: b"".join((whole(one_path[i]), b"")),  # copied as above
    "2 blobs": lambda i: b"".join((reader.read(i), masks.read(i))),
    "1 blob": lambda i: bytes(one_blob.read(i)),
}
assert len({read(7) for read in tasks.values()}) == 1, "all four read the same bytes"

# %% [markdown]
# The folded cell draws what a second file adds in each round, and what a second blob adds:

# %% jupyter={"source_hidden": true}
from functools import partial

from smallfiles import measure

order = (np.random.default_rng(0).permutation(10 * len(reader)) % len(reader)).tolist()


def read_all(read):
    """Samples in ten epochs of reading in random order."""
    return len([len(read(i)) for i in order])


result = measure.compare({name: partial(read_all, read) for name, read in tasks.items()}, rounds=9, unit="samples")
spent = {name: 1e6 / np.array(result.rates_per_s(name)) for name in tasks}
adds = {f"a second {one}": (spent[f"2 {one}s"] - spent[f"1 {one}"]).tolist() for one in ("file", "blob")}
title = f"A second file adds about {np.median(adds['a second file']):.0f} µs to a sample"
figures.bars(adds, title, x="microseconds that it adds to a sample", dots="rounds", note="page cache", guess=guess, guess_of="a second file")

# %% [markdown]
# A second file is a second open. On a parallel file system each open is a round trip to a server
# ([01](01_count_the_cost_of_small_files.ipynb)), so it costs far more there. A second packed blob costs no open. But
# from storage it is a second request, unless it lies beside the first, as in shards.

# %% [markdown] id="own" tags=["core"]
# ## 5 · Try your own folder
#
# **Your turn.** Write the path of your folder, table or archive into this cell. Nothing is written there. Without one we
# try a small delivery of trees (our shapes):

# %%
import os

from helpers.delivery import delivered

trees = delivered(setup.path("segmentation"), setup.scratch / "delivery", seed=1).folder
own = os.environ.get("COURSE_DATA") or str(trees)  # change me: the path of your own folder or table
columns = []  # change me if needed, as in section 1; several in a list
for _, (at, _, names) in zip(range(8), os.walk(own)):  # at most eight folders
    print(f"{os.path.relpath(at, own)}: {len(names)} files {sorted(names)[:2]}")

# %% [markdown]
# > **Predict.** How many samples will be found?

# %%
guess = 60  # change me: samples

# %%
from smallfiles.pack import plan
from smallfiles.progress import bytes_text

try:
    mine = sources.load(own, columns=columns)
    planned = plan(mine, setup.scratch / "mine.arrow", PackConfig())
    print(f"{planned.samples:,} samples (guess: {guess}), {bytes_text(planned.payload_bytes)}")
    print(*mine.notes, sep="\n")
    print(f"files and folders of these samples: {planned.inodes_now} now, {planned.inodes_then} packed")
except SmallfilesError as error:
    show.error(error)  # its next step says what to try

# %% [markdown]
# Check the samples, and what was left out: in our delivery five files without a partner, and the table (`.csv`
# above). One of the 57 images is cut off, but the plan decodes none. [14](14_wrap_up.ipynb) repairs
# all this. For any other layout write a table with columns of paths.

# %% [markdown] id="exercise"
# ## Exercise
#
# [Exercise 13](../exercises/13_bring_your_own_data.ipynb): pair masks with their images, join a table in another order,
# and keep a float a float.

# %% [markdown] id="cluster"
# ## On the cluster
#
# A dry run, packing, pictures, and a training:

# %%
from smallfiles.training import TrainConfig

commands = ["smallfiles pack data shapes.arrow --dry-run", PackConfig().to_cli("data", "shapes.arrow")]
commands += ["smallfiles inspect shapes.arrow --picture sheet.html"]
commands += [TrainConfig(target="mask", epochs=20).to_cli("shapes.arrow")]
show.say("\n".join(["```bash", *commands, "```"]))

# %% [markdown] id="key-points"
# ## Key points
#
# - A sample has fields: blobs (files) and values (columns), packed in one row.
# - Read the notes of `load` and look at pictures before training; wrong pairs raise no error.
# - Draw a random view once, and give it to image and mask. Scale masks by the nearest pixel.
# - Join tables by name, never by order. A later column needs no second packing.
# - A column of measurements is a value, no label, also when it is rounded to whole numbers.
# - A mask has few bytes but must be decoded whole: plan CPU time for it. As a file it is a second open; as a packed blob
#   it may be a second request.

# %% [markdown] id="quiz"
# ## Check yourself
#
# **1.** Training on `images/` and `masks/` begins at 50 % accuracy and reaches 100 % after one epoch. Why? (a) The shapes
# are easy. (b) Validation images are in the training set. (c) The folders are the classes.
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
# drawn once for both. (a) is the same for both scores. (c) A small set may be easier by chance, but hardly by that much.
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
# [14 · Wrap up](14_wrap_up.ipynb) puts all together.
