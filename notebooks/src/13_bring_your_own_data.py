# %% [markdown] id="top"
# # 13 · Bring your own data
#
# **Minutes** 40 · **Machine** any Linux computer with two CPUs · **Needs** notebook 03 · **Data** 200
# synthetic images with masks, the same images with a table, and 600 synthetic images of 60 patients
#
# So far, a sample was an image and a label. Your samples may also have a mask, a number or a text. Each of these is a
# *field* of the sample. A field is either a *blob* or a *value*. A blob contains the bytes of a file, such as an image or
# a mask, and a value comes from a column of a table.
#
# In most mistakes of this notebook, shapes and types are right, and no error is raised. Only the samples are wrong. So you
# also learn how to notice such mistakes.

# %% [markdown] id="questions"
# ## Questions
#
# - How do the files of a sample get into one packed file?
# - How do an image and its mask stay together through random crops?
# - Which columns of a table are labels, and which are numbers?
# - Why is a random validation set too easy?
# - What does a mask cost (optional)?
# - What does the toolbox find in my folder?

# %% [markdown] id="objectives"
# ## After this you can
#
# - pack images with their masks, and check which files were paired,
# - give an image and its mask the same random view,
# - join a table by name, even if it arrives later,
# - prevent measurements from becoming classes,
# - split a data set so that images of one patient stay together,
# - see what the toolbox would do with your own data before it writes anything.

# %% [markdown] id="setup"
# ## Set up
#
# Most results are counts and percentages, which do not change on a busy machine. Only section 5 measures processor time.

# %% id="start"
import sys

sys.path.append("..")
from helpers import figures, show, start

setup = start("13")

# %% [markdown] id="recall"
# > **Recall** (11). A metadata server works on one request at a time. How many service times does a request wait on
# > average if the server is busy for 50 % of the time, and how many if it is busy for 90 %?
#
# <details>
# <summary>Answer</summary>
#
# On average, a request waits for 1 service time at 50 %, and for 9 service times at 90 %. The formula is load / (1 −
# load). It holds if requests arrive at random and their service times vary at random.
#
# </details>

# %% [markdown] id="masks" tags=["core"]
# ## 1 · Pack images with their masks
#
# In *segmentation*, a network predicts the class of each pixel. So each image comes with a *mask*, a second picture that
# contains the right class of each pixel. Usually, the images are in one folder and the masks in another:

# %%
folder = setup.path("segmentation")
for part in ("images", "masks"):
    names = sorted(path.name for path in (folder / part).iterdir())
    print(f"{part + '/':8} {len(names)} files: {', '.join(names[:3])} …")

# %% [markdown]
# > **Predict.** `ImageFolder` treats each sub-folder as a class. How many samples and how many classes does it find here?

# %%
guess = None  # your guess, two numbers: for example (200, 10)

# %% tags=["slide"]
from torchvision.datasets import ImageFolder

wrong = ImageFolder(folder)
print(f"{len(wrong)} samples of classes {wrong.classes}; the first has class {wrong.targets[0]}")

# %% [markdown]
# Each mask became a sample, and each of the two folders became a class. No error was raised. A network would learn to
# distinguish photographs from masks, and it would be very good at it.
#
# An image and its mask have the same file name, except for the suffix. So a dictionary can find the mask of each image:

# %%
masks_by_name = {path.stem: path for path in (folder / "masks").iterdir()}
images = sorted((folder / "images").iterdir())
pairs = [(path, masks_by_name[path.stem]) for path in images if path.stem in masks_by_name]
print(f"{len(images)} images, {len(pairs)} with a mask; {pairs[0][0].name} has {pairs[0][1].name}")

# %% [markdown]
# `sources.load` also pairs files by name, and it finds the folders and suffixes itself. Its notes, which section 6
# prints, say how it understood your data. Then `pack` writes each pair as one sample:

# %%
from smallfiles import formats, sources
from smallfiles.pack import PackConfig, annotate, pack, plan

source = sources.load(folder)
packed = setup.scratch / "shapes.arrow"
if not packed.exists():  # finished output is never overwritten
    pack(source, packed, PackConfig())

# %% [markdown]
# <details>
# <summary>Do your files have other names?</summary>
#
# Then say where the mask of an image is. `{stem}` stands for the name of the image without its suffix:
#
# | | |
# |---|---|
# | in Python | `sources.load(folder, columns="mask=labels/{stem}_gt.png")` |
# | as a command | `smallfiles pack folder out.arrow --field "mask=labels/{stem}_gt.png"` |
#
# </details>
#
# In the packed file, each sample is a row, and each field is a column. `reader.read(row)` returns the bytes of the image,
# and `reader.blob("mask")` returns a reader for the column of the masks:

# %%
import io

import numpy as np
from PIL import Image as Picture

reader = formats.open(packed)
masks = reader.blob("mask")


def pair(index):
    """Return the image and the mask of a sample."""
    return (Picture.open(io.BytesIO(data.read(index))) for data in (reader, masks))


index = 4  # change me: another sample, 0 to 199
image, mask = pair(index)
print(f"fields: {list(reader.fields)}")
print(f"{reader.key(index)}: {image.size} pixels; classes in its mask: {np.unique(mask).tolist()}")
print(f"the image has {reader.size(index):,} bytes, and its mask has {masks.size(index):,}")

# %% [markdown]
# The numbers in a mask are classes and not shades of grey. Here, 0 is the background, and each other number is a shape.
# The mask has far fewer bytes than the image, because PNG compresses large areas of one class well.
#
# You can now solve task 1 of [exercise 13](../exercises/13_bring_your_own_data.ipynb).

# %% [markdown] id="view" tags=["core"]
# ## 2 · Give both the same view
#
# During training, the network sees a random crop of each image, so the mask must be cropped, too. The function `apart` is
# a first attempt:

# %% tags=["slide"]
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

crop = v2.RandomResizedCrop(96, scale=(0.3, 0.6), antialias=True)


def as_mask(picture):
    return tv_tensors.Mask(F.pil_to_tensor(picture)[0])


def apart(image, mask):
    return crop(image), crop(mask)


# %% [markdown]
# `as_mask` gives the mask a type that torchvision recognises, `tv_tensors.Mask`. The transform `crop` chooses a new
# random place whenever it is called.
#
# > **Predict.** How well do object and mask overlap after `apart`? We measure this with the *intersection over union*
# > (IoU), in percent. It is the number of pixels that belong to both the object and the mask, divided by the number of
# > pixels that belong to at least one of them.

# %%
guess = None  # your guess, percent: for example 60

# %% [markdown]
# **Your turn.** Correct `yours`. You can also pass an image and a mask to `crop` in one call. Then it crops both at the
# same place.


# %%
def yours(image, mask):
    return crop(image), crop(mask)  # change me: one call


# %% [markdown]
# The *folded* cell contains the answer, `together`. It draws the sample of section 1, and what each of the three
# functions returns for it. The white line is the outline of the mask.

# %% tags=["slide"] jupyter={"source_hidden": true}
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
    axes.set_title(title, fontsize=10, fontweight="normal")
    axes.axis("off")
title = "Cropped separately, the mask misses its object; cropped in one call, it fits"
figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
show.figure(
    figure,
    alt=f"A sample with the outline of its mask, and its crops by `apart`, by your function and by `together`. {title}.",
)

# %% [markdown]
# With a shifted mask, a correct prediction is scored as wrong, and no error is raised.
#
# How can you measure this mistake? The mask shows where the object is. So pass the mask to the function in place of the
# image, and also as the mask. If the function crops both at the same place, it returns two equal masks, and their IoU is
# 100 %. The *folded* cell computes the IoU for 100 masks.


# %% jupyter={"source_hidden": true}
def overlap(crops, index):
    """Return the IoU of the object in both crops, in percent, or NaN if neither crop shows it."""
    mask = as_mask([*pair(index)][1])
    of_image, of_mask = (part > 0 for part in crops(mask, mask))
    return 100 * float((of_image & of_mask).sum() / (of_image | of_mask).sum())


found = {f.__name__: [overlap(f, index) for index in range(100)] for f in (apart, yours, together)}
title = f"Cropped separately, mask and object have an IoU of {np.nanmedian(found['apart']):.0f}%"
dots = f"masks ({found['apart'].count(0)} at 0% in apart)"
figures.bars(found, title, x="IoU (%)", dots=dots, counted=True, guess=guess, guess_of="apart")

# %% [markdown]
# With `apart`, the IoU is low, because the two crops usually show different parts of the picture. `together` reaches
# 100 %, and so should `yours`.
#
# Resizing is a second trap. Most methods compute the mean of neighbouring pixels. But the mean of class 10 and the
# background 0 is 5, which is another class. The cell resizes a mask with two methods, and prints the classes in it:

# %%
for mode in ("NEAREST", "BILINEAR"):  # change me: add "BICUBIC"
    scaled = F.resize(mask, [48], interpolation=v2.InterpolationMode[mode])
    print(f"{mode.lower():9} classes {np.unique(scaled).tolist()}")

# %% [markdown]
# After `BILINEAR`, the mask contains classes that it did not have before. So resize masks with `NEAREST`, which copies
# the nearest pixel and computes no mean. torchvision does this for every `tv_tensors.Mask`, but for an ordinary picture
# you must ask for it.
#
# `make_loader` of the toolbox avoids both mistakes. For each sample, it chooses one random view, and uses it for the
# image (`Image(view)`) and for the mask (`Mask(view)`). It resizes masks with the nearest pixel. The batch also contains
# `target`, the label, which is −1 for samples without labels.

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
# The second data set has the same images and a table. We pretend that each image shows an animal, and that the table
# contains its species and its weight in grams. The species are named after the shapes in the images. The cell sorts the
# files by name, and prints each of the first three files beside the row at the same position of the table:

# %%
import csv

table = setup.path("table") / "labels.csv"
rows = list(csv.DictReader(table.open()))
files = sorted(path.name for path in (table.parent / "images").iterdir())
for row, name in zip(rows[:3], files):
    print(name, "|", *row.values())

# %% [markdown]
# > **Predict.** Many scripts pair files and rows by position, with `zip(files, rows)`. How many of the 200 images get
# > their own row?

# %%
guess = None  # your guess, images with their own row: for example 20

# %% tags=["slide"]
right = sum(row["filename"].endswith(name) for row, name in zip(rows, files))
print(f"{right} of {len(rows)} images got their own row (your guess: {guess})")

# %% [markdown]
# The rows of the table are in random order. In a shuffled list, on average only one item is in its old place, whatever
# the length of the list. So join *by name*:

# %%
row_of = {row["filename"]: row for row in rows}
print(files[0], "has the row", *row_of[f"images/{files[0]}"].values())

# %% [markdown]
# `sources.load` joins by name, too. Suppose that we choose the weight as the label:

# %%
from smallfiles.errors import SmallfilesError

label = "weight"  # change me: then "species"
try:
    print(*sources.load(table, columns=f"label={label}").notes)
except SmallfilesError as error:
    show.error(error)

# %% [markdown]
# The toolbox refuses the weights, because they are floats (in Arrow, the type is called `double`). A label must be a
# whole number or a text. If you choose `species`, the toolbox accepts the column, and each text becomes a class.
#
# Suppose that somebody has rounded the weights to whole grams. Does the toolbox refuse this column, too?
#
# The *folded* cell rounds the weights, and loads them as labels.

# %% jupyter={"source_hidden": true}
from collections import Counter

rounded = setup.scratch / "rounded"
rounded.mkdir(exist_ok=True)
if not (rounded / "images").exists():
    (rounded / "images").symlink_to(table.parent / "images")
grams = [f"{row['filename']},{float(row['weight']):.0f}" for row in rows]
(rounded / "labels.csv").write_text("\n".join(["filename,weight", *grams]))
try:
    classes = Counter(
        sources.load(rounded / "labels.csv", columns="label=weight", follow_links=True).manifest.targets.to_pylist()
    )
    once = sum(count == 1 for count in classes.values())
    result = f"accepted, as {len(classes)} classes, and {once} of these classes have a single image"
except SmallfilesError:
    result = "refused"
show.say(f"In whole grams, weights are **{result}**.")

# %% [markdown]
# The toolbox cannot notice this mistake, because class numbers are whole numbers, too. So you must decide. Ask yourself
# whether 22 and 23 are more alike than 22 and 60. If they are, the column is a measurement and not a class.
#
# If you do not pass `columns`, `load` looks for a column with a usual name for labels, such as `label` or `species`. If
# your column has another name, pass `columns="label=COLUMN"`. The other columns, here only `weight`, become values:

# %%
weighed = setup.scratch / "weighed.arrow"
if not weighed.exists():
    pack(sources.load(table), weighed, PackConfig())
batch = next(iter(make_loader(weighed, LoaderConfig(batch=4), transform=view)))
print(batch["weight"].dtype, batch["weight"].tolist(), "and labels", batch["target"].tolist())

# %% [markdown]
# The weights are still floats, and each species became the number of a class.
#
# <details>
# <summary>Types, and missing numbers</summary>
#
# A loss for classes needs `int64`, so call `.long()` on a mask first. `make_loader` returns numbers as `float64`, as they
# are in the Arrow file, so call `.float()` before the loss. A missing float becomes NaN. Missing whole numbers are
# refused until you say which number stands for them (`Value(missing=-1)`).
#
# </details>
#
# How can you check a join? Find a relation that must hold. Here, larger animals of a species should weigh more. The masks
# of section 1 belong to the same images, so they tell us the size of each animal.
#
# The *folded* cell draws the weight against the size for both joins. The blue dots are the animals of one species. The
# title of each plot gives the correlation for these dots, computed from the logarithms of size and weight.

# %% tags=["slide"] jupyter={"source_hidden": true}
from pathlib import Path

weight_of = {Path(row["filename"]).stem: float(row["weight"]) for row in rows}  # by name
placed = {Path(name).stem: float(row["weight"]) for name, row in zip(files, rows)}  # by position
species = {Path(row["filename"]).stem: row["species"] for row in rows}
shown = Counter(species.values()).most_common(1)[0][0]  # the species with the most images
size = {
    Path(reader.key(i)).stem: np.bincount(np.asarray([*pair(i)][1]).ravel())[1:].max()
    for i in range(len(reader))
}
figure, fits = Figure(figsize=(7.2, 3.4), layout="constrained"), {}
for axes, (how, weights) in zip(
    figure.subplots(1, 2, sharex=True, sharey=True), {"position": placed, "name": weight_of}.items()
):
    for colour, label, own in (("0.7", "other species", False), ("#0072B2", shown, True)):
        names = [name for name in size if (species[name] == shown) == own]
        dots = [size[n] for n in names], [weights[n] for n in names]
        axes.plot(*dots, "o", ms=5, color=colour, mec="white", mew=0.5, label=label)
    axes.set(
        xscale="log",
        xticks=(2_000, 10_000, 50_000),
        yscale="log",
        yticks=(3, 10, 30, 100),
        xlabel="size of the object (pixels)",
    )
    fits[how] = np.corrcoef(*np.log(dots))[0, 1]  # of the last ones, in blue
    axes.set_title(f"joined by {how}: correlation {fits[how]:.1f}", fontsize=10, fontweight="normal")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,.0f}")
axes.legend(loc="lower right")
figure.axes[0].set_ylabel("weight (g)")
title = f"Joined by {max(fits, key=fits.get)}, weight follows size within a species"
figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
show.figure(figure, alt=f"Two scatter plots of {len(size)} images, weight by pixels of the object. {title}.")

# %% [markdown]
# After the join by name, the weight grows with the size, and the correlation is close to 1. After the join by position,
# hardly any relation is left, so this join is wrong.
#
# Perhaps a new column arrives next week, for example a score. You need not pack again. `annotate` joins the column by
# name, and writes it to a small file beside the packed file:

# %%
scores, added = setup.scratch / "scores.csv", setup.scratch / "weighed.arrow.scores.fields.arrow"
lines = [f"{row['filename']},{len(row['species'])}" for row in rows]  # in place of real scores
scores.write_text("\n".join(["filename,score", *lines]))
if not added.exists():
    annotate(weighed, scores, key="filename")
set_bytes, new_bytes = (path.stat().st_size for path in (weighed, added))
print(f"packed {set_bytes:,}, added {new_bytes:,} bytes; fields:", *formats.open(weighed).fields)

# %% [markdown]
# `annotate` did not write the packed file again, but `formats.open` now shows `score` as one of its fields.
#
# You can now solve tasks 2 and 3 of [exercise 13](../exercises/13_bring_your_own_data.ipynb).

# %% [markdown] id="patients" tags=["core"]
# ## 4 · Split by patient
#
# A validation set tells you how well a network will do on new data. For a doctor, new data means a new patient. But many
# data sets contain several images of each patient, and these look much alike.
#
# The *folded* cell makes and packs such a data set, with 10 images of each of 60 patients. Each patient has a background
# of their own, which is the same in all 10 images. Half of the patients are ill, and their images have a bright spot in
# the middle. The cell also draws six images each of a healthy and an ill patient.

# %% jupyter={"source_hidden": true}
rng = np.random.default_rng(1)
y, x = np.mgrid[-1:1:16j, -1:1:16j]
spot = 2.5 * np.exp(-8 * (x**2 + y**2))
background = np.kron(rng.normal(size=(60, 4, 4)), np.ones((4, 4)))  # of each patient
is_ill = rng.permutation(60) % 2 == 0
patient = np.repeat(np.arange(60), 10)  # of each image
ill = is_ill[patient]
noise = 0.4 * rng.normal(size=(600, 16, 16))
scans = background[patient] + ill[:, None, None] * spot + noise

clinic, scanned = setup.scratch / "clinic", setup.scratch / "scans.arrow"
if not scanned.exists():
    (clinic / "images").mkdir(parents=True, exist_ok=True)
    for number, image in enumerate(np.clip(40 * scans + 90, 0, 255).astype(np.uint8)):
        Picture.fromarray(image).save(clinic / "images" / f"{number:03}.png")
    lines = [f"images/{n:03}.png,{int(ill[n])},p{patient[n]:02}" for n in range(600)]
    (clinic / "labels.csv").write_text("\n".join(["filename,label,patient", *lines]))
    pack(sources.load(clinic / "labels.csv"), scanned, PackConfig())
for written in setup.scratch.glob("scans.arrow.split.*"):  # of an earlier run of the next cell
    written.unlink()

figure = Figure(figsize=(7.2, 3), layout="constrained")
for row, part in enumerate(figure.subfigures(2, 1)):
    person = np.flatnonzero(is_ill == bool(row))[1]
    for axes, image in zip(part.subplots(1, 6), scans[patient == person]):
        axes.imshow(image, cmap="gray", vmin=-3, vmax=4)
        axes.axis("off")
    part.suptitle(f"patient {person}, {'ill' if row else 'healthy'}", x=0.01, ha="left", fontsize=10)
title = "Images of one patient look alike, whether the patient is ill or not"
figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
show.figure(figure, alt=f"Six images of each of two patients. {title}.")

# %% [markdown]
# Our classifier is as simple as possible. It gives an image the label of the most similar training image. For validation,
# `by_image` chooses about a fifth of the *images* at random. `by_patient` chooses about a fifth of the *patients*, with
# all of their images. Each split is repeated nine times.
#
# > **Predict.** What percentage of the validation images gets the right label after `by_image`? With random guesses, it
# > would be 50 %.

# %%
guess = None  # your guess, percent: for example 70


# %% tags=["slide"]
def accuracy(val):
    """Return how many validation images get the right label, in percent."""
    train, new = scans[~val].reshape(-1, 256), scans[val].reshape(-1, 256)
    nearest = [((train - image) ** 2).sum(1).argmin() for image in new]
    return 100 * np.mean(ill[~val][nearest] == ill[val])


def by_image(rng):
    return rng.random(600) < 0.2


def by_patient(rng):
    return (rng.random(60) < 0.2)[patient]


rngs = [np.random.default_rng(seed) for seed in range(9)]
found = {split.__name__: [accuracy(split(rng)) for rng in rngs] for split in (by_image, by_patient)}
seems, new = (np.median(runs) for runs in found.values())
title = f"Split by image, the accuracy seems to be {seems:.0f}%; on new patients it is {new:.0f}%"
look = {"x": "accuracy (%)", "dots": "splits", "guess": guess, "guess_of": "by_image"}
figures.bars(found, title, counted=True, **look)

# %% [markdown]
# Both bars use the same classifier and the same images. But in a split by image, almost every patient has images in both
# sets. The most similar training image then shows the same patient, so the classifier recognises the patient and not the
# illness. We say that information *leaks* from the training set into the validation set. A network can make the same
# mistake.
#
# In a split by patient, the most similar training image shows another patient with a similar background, who may be ill
# or not. A validation set has only about twelve patients, so the nine results vary widely.
#
# In your data, there may be several samples of a person, a place, a day, a machine, or a video. Ask what will be new when
# the network is used. If it is a place, all samples of a place belong in the same set.
#
# The function `split` divides a packed set by patient. A hash of the patient's name decides, so a patient stays in the
# same split when others are added. The function writes the name of the split of each image, `train` or `val`, to a small
# file beside the packed set. It also counts the patients that have images in both splits.

# %% tags=["slide"]
from smallfiles.pack import split

# As a command: smallfiles split scans.arrow --rule train=0.8,val=0.2 --split-by patient
_, report = split(scanned, {"train": 0.8, "val": 0.2}, split_by="patient")
print("images:", report.samples, "patients:", report.groups, "patients in both:", report.in_several)

# %% [markdown]
# No patient has images in both splits. The shares are only about 80 % and 20 %, because a hash decides for each patient.
# `LoaderConfig(split="val")` now loads the validation images only.
#
# You can now solve task 4 of [exercise 13](../exercises/13_bring_your_own_data.ipynb).

# %% [markdown] id="price" tags=["optional"]
# ## 5 · Pay for the mask
#
# *Optional, 8 minutes.* A mask must be read and decoded, like an image. We begin with decoding.
#
# As section 1 showed, the mask has few bytes. But it has as many pixels as the image. How much more processor time does a
# sample need with its mask?
#
# The *folded* cell loads 100 samples without their masks, and then 100 samples with their masks. It does so nine times.

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
    f"The image alone needs {alone_ms:.1f} ms. With its mask it is about **{round(np.median(extra), -1):.0f} % more** "
    f"(in single rounds {min(extra):.0f} to {max(extra):.0f} %)."
)

# %% [markdown]
# A mask is a PNG, so all of its pixels must be decoded, however few bytes it has. The image is a JPEG, and our loader
# decodes only the part inside the crop (with TurboJPEG 3). Plan more workers for samples with masks, or pack smaller
# images and masks (`pack --resize 256`).
#
# Now we look at reading. An image and its mask can be stored as two files, as one file, as two blobs of a packed
# file, or as one blob. How many files must a worker open to read one sample in each case?
#
# The *folded* cell stores the samples in these four ways. Then it reads one sample of each, and counts the opened files.

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
    """Return the bytes of a file, read as in notebook 01."""
    descriptor = os.open(path, os.O_RDONLY)
    data = os.read(descriptor, os.fstat(descriptor).st_size)
    os.close(descriptor)
    return data


tasks = {
    "2 files": lambda i: b"".join(map(whole, two_paths[i])),
    "1 file": lambda i: whole(one_path[i]),
    "2 blobs": lambda i: b"".join((reader.read(i), masks.read(i))),
    "1 blob": lambda i: bytes(one_blob.read(i)),
}
assert len({read(7) for read in tasks.values()}) == 1, "all four read the same bytes"

opens = []
sys.addaudithook(lambda event, about: opens.append(about) if event == "open" else None)
for name, read in tasks.items():
    opens.clear()
    read(11)
    print(f"{name:8} opens {len(opens)} files for a sample")

# %% [markdown]
# Each file of a sample needs one open, and on a parallel file system each open is a request to a server
# ([01](01_count_the_cost_of_small_files.ipynb)). The packed file needs no open here, because each worker opens it only
# once, before it reads the first sample. In our packed file, the second blob still costs a second read. In tar shards it
# does not, because image and mask are stored side by side and read together.

# %% [markdown] id="own" tags=["core"]
# ## 6 · Try your own folder
#
# **Your turn.** Write the path of your folder, table or archive into this cell. Your data is only read. If you have no
# data here, the cell makes an example with typical faults. We pretend that it is a *delivery* from another group, with
# photographs of trees and their masks. In fact, the pictures show our synthetic shapes.

# %%
import os

from helpers.delivery import delivered

trees = delivered(setup.path("segmentation"), setup.scratch / "delivery", seed=1).folder
own = os.environ.get("COURSE_DATA") or str(trees)  # change me: the path of your own folder or table
columns, ignore = [], ["survey/trees.csv"] if own == str(trees) else []  # change me if needed
for _, (at, _, names) in zip(range(8), os.walk(own)):  # show at most eight folders
    print(f"{os.path.relpath(at, own)}: {len(names)} files {sorted(names)[:2]}")

# %% [markdown]
# `plan` says what `pack` would do, and writes nothing. How many samples will the toolbox find? Write down your guess.

# %% tags=["slide"]
try:
    mine = sources.load(own, columns=columns, ignore=ignore)
    planned = plan(mine, setup.scratch / "mine.arrow", PackConfig())
    print(f"{planned.samples:,} samples, {planned.payload_bytes / 1e6:.1f} MB")
    print(*mine.notes, sep="\n")
    print(f"files and folders: {planned.inodes_now} now, {planned.inodes_then} packed")
except SmallfilesError as error:
    show.error(error)  # its next step says what to try

# %% [markdown]
# Read the notes. Which samples were found, and what was skipped?
#
# In our delivery, 57 samples have an image and a mask. Three images have no mask, and two masks have no image, so these
# five files are skipped. `ignore` leaves out the table, because the toolbox does not know how its rows belong to the
# files, and would refuse the folder. One of the 57 images is truncated, but `plan` decodes no images and cannot notice
# that. [Notebook 14](14_wrap_up.ipynb) deals with all of these faults.
#
# <details>
# <summary>Does the toolbox not understand your folders?</summary>
#
# Then write a table with one row per sample, and with the paths of its files in columns. Give the path of this table.
#
# </details>

# %% [markdown] id="exercise"
# ## Exercise
#
# In [Exercise 13](../exercises/13_bring_your_own_data.ipynb), you pair masks with images, join a table, distinguish
# classes from numbers, and split by patient.

# %% [markdown] id="cluster"
# ## On the cluster
#
# These commands make a dry run, pack the folder `data`, draw some samples, and train a network that predicts the masks:

# %%
from smallfiles.training import TrainConfig

commands = ["smallfiles pack data shapes.arrow --dry-run"]
commands += [PackConfig().to_cli("data", "shapes.arrow")]
commands += ["smallfiles inspect shapes.arrow --picture sheet.html"]
commands += [TrainConfig(target="mask", epochs=20).to_cli("shapes.arrow")]
show.say("\n".join(["```bash", *commands, "```"]))

# %% [markdown] id="key-points"
# ## Key points
#
# - A sample has fields. Blobs come from files, and values come from tables. All fields of a sample are packed in one row.
# - Wrong pairs raise no error. Read the notes of `load`, and look at pictures before you train.
# - Choose one random view for image and mask. Resize masks with the nearest pixel.
# - Join tables by name and never by position. You need not pack again if a column arrives later.
# - A column of measurements is a value and not a class, even if it contains whole numbers.
# - Split by patient, or by whatever is new when the network is used. If you split at random, the network is tested on
#   patients that it has already seen.

# %% [markdown] id="quiz"
# ## Check yourself
#
# **1.** Training with `ImageFolder` on `images/` and `masks/` begins with an accuracy of 50 %, and reaches 100 % after
# one epoch. Why? (a) The shapes are easy. (b) Validation images are in the training set. (c) The folders became the
# classes.
#
# <details>
# <summary>Answer</summary>
#
# **(c)**. `ImageFolder` made a class of each folder, and it is easy to distinguish a photograph from a mask. Look at
# `dataset.classes`. (a) If the classes were the ten species of section 3, the accuracy would begin at about 10 %. (b)
# This would improve the validation score, but not the training score.
#
# </details>
#
# **2.** You train a segmentation network with random crops, and validate it with centre crops. In every epoch, the
# validation score is far better than the training score. What do you look at first? (a) The learning rate. (b) Image and
# mask of a training batch. (c) The number of validation images.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**. Draw the mask on top of the image. A centre crop has the same place in image and mask. A random crop has the
# same place only if it is chosen once for both. (a) The learning rate affects both scores. (c) A small validation set may
# be easier by chance, but hardly by that much.
#
# </details>
#
# **3.** A column `age` contains 7.0, 8.0 and 12.5. What is it? (a) A class with three values. (b) A value that stays a
# float. (c) A class after rounding.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**, with a loss for numbers such as `MSELoss`, because an age is measured and has an order. (a) A loss for classes
# does not know that 7.0 is nearer to 8.0 than to 12.5, and there would be no class for 9.0. (c) Rounding does not change
# that.
#
# </details>

# %% [markdown] id="next"
# ## Next
#
# [14 · Wrap up](14_wrap_up.ipynb) uses everything that you have learned.
