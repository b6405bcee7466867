# %% [markdown] id="top"
# # 05 · Shard a data set into tar files
#
# **Minutes** 35 · **Machine** any Linux computer with two CPUs · **Needs** notebook 03 · **Data** two small synthetic
# sets
#
# A tar file is a sequence of files. Reading it needs no special library, and any storage can deliver it from front to
# back. Therefore large data sets are often published as hundreds of tar files, which are called *shards*.
#
# Reading from front to back is fast, but it has a price: the loader does not jump to a random sample. So this notebook has one
# question: how do you get well mixed batches from files that are read in order?

# %% [markdown] id="questions"
# ## Questions
#
# - What does a loader expect inside a shard?
# - Can a shuffle buffer replace a real shuffle?
# - How large should a shard be, and should it be compressed?
# - Why do batches mix worse with more workers?

# %% [markdown] id="objectives"
# ## After this you can
#
# - write shards with Python's `tarfile` and read them with webdataset,
# - count how well a buffer mixes your classes,
# - choose the size of a shard,
# - get a new order in each epoch,
# - find a truncated shard.

# %% [markdown] id="setup"
# ## Set up
#
# This notebook counts, so its results are the same on a busy machine. Only the last part of section 3 measures times. The
# set-up cell tells you if the machine is too busy for that.

# %% id="start"
import sys

sys.path.append("..")
from helpers import figures, show, start, worksheet

setup = start("05")

# %% [markdown] id="recall"
# > **Recall** (03). An Arrow file stores 256 images per record batch, and you open it as an `OSFile`. How much does
# > Arrow read if you ask for one image?
#
# <details>
# <summary>Answer</summary>
#
# It reads the whole record batch. With a memory map, it copies nothing, but Linux may still fetch the whole batch from the
# disk.
#
# </details>

# %% [markdown] id="inside" tags=["core"]
# ## 1 · Look inside a shard
#
# A shard holds one file for each *field* of a sample. For a labelled image, these are the image (`.jpg`) and its class
# (`.cls`). The two files have the same name up to the suffix. We write a shard with Python's standard library:

# %%
import io
import tarfile
import tempfile
from pathlib import Path

source = setup.source("folder")
images = list(zip(source.manifest.paths.to_pylist(), source.manifest.targets.to_pylist()))
place = Path(tempfile.mkdtemp(dir=setup.scratch))  # a new folder, so that this cell may run twice


def write_shard(path, samples):
    """Write samples, each a key and a dict of fields, into one tar file."""
    with tarfile.open(path, "w") as shard:
        for key, fields in samples:
            for suffix, data in fields.items():
                member = tarfile.TarInfo(f"{key}.{suffix}")
                member.size = len(data)
                shard.addfile(member, io.BytesIO(data))


def sample(path, label):
    data = (setup.folder() / path).read_bytes()
    return Path(path).with_suffix("").as_posix(), {"jpg": data, "cls": str(label).encode()}


# %% [markdown]
# > **Predict.** The next cell writes 100 labelled images into one shard. How many files does the shard contain?

# %%
guess = None  # your guess: for example 1, 100, or 200

# %%
write_shard(place / "by-hand.tar", (sample(path, label) for path, label in images[:100]))
members = tarfile.open(place / "by-hand.tar").getnames()
print(f"{len(members)} files (your guess: {guess}), for example", *members[:4])

# %% [markdown]
# The shard contains two files per image, and they stand side by side. A loader reads from front to back. As long as the
# names are the same up to the first dot, it puts the files into one sample. Plain Python can do this, too:

# %% tags=["slide"]
from itertools import groupby


def key_of(name):
    folder, _, file = name.rpartition("/")
    return f"{folder}/{file.partition('.')[0]}"


groups = {key: list(names) for key, names in groupby(members, key_of)}
print(len(groups), "samples; the first one has", *next(iter(groups.values())))

# %% [markdown]
# This works only if the files of a sample stand next to each other. The command `tar` does not sort files by itself, so
# use `tar --sort=name`.
#
# The rule has a trap. Suppose that two images are named `cat.v1.jpg` and `cat.v2.jpg`. Up to the first dot, both names
# are `cat`. The next cell asks [webdataset](https://github.com/webdataset/webdataset), the usual loader for shards, how
# many samples it finds.

# %%
import webdataset as wds

names = "cat.v1", "cat.v2"  # change me: replace the dots
write_shard(place / "cats.tar", [(key, {"jpg": b"the image", "cls": b"1"}) for key in names])
for found in wds.WebDataset(f"{place}/cats.tar", shardshuffle=False):
    print("a sample", found["__key__"], "with", [field for field in found if field[0] != "_"])

# %% [markdown]
# It finds a single sample, which has no field `jpg`, and it raises no error. If you replace the dots in `names` by
# underscores, it finds both samples.
#
# Our toolbox avoids this trap, because it writes a dot inside a name as `%2E`. One call packs a whole data set into
# shards:

# %%
from smallfiles import formats
from smallfiles.formats import tar
from smallfiles.pack import PackConfig, pack

hundred = PackConfig(options=tar.Options(max_count=100))
packed = pack(source, Path(tempfile.mkdtemp(dir=place)) / "train.tars", hundred)
shards = [str(path) for path in sorted(packed.path.glob("*.tar"))]

# %% [markdown]
# webdataset reads shards as a pipeline of steps. A DataLoader runs this pipeline in its workers. The pipeline makes the
# batches itself, so the DataLoader gets `batch_size=None`:

# %%
import numpy as np
import torch
from torch.utils.data import DataLoader


def small(image):
    return torch.from_numpy(np.array(image.resize((64, 64)))).permute(2, 0, 1)


pipeline = (
    wds.WebDataset(shards, shardshuffle=100)  # shuffle the list of shards: section 5
    .shuffle(200)  # a buffer of 200 samples: section 2
    .decode("pil")
    .to_tuple("jpg", "cls")
    .map_tuple(small, int)
    .batched(32)
)
loader = DataLoader(pipeline, batch_size=None, num_workers=2, multiprocessing_context="fork")
pictures, targets = next(iter(loader))
pictures.shape, torch.as_tensor(targets)[:8]

# %% [markdown]
# The first batch has 32 images of 64 x 64 pixels and their labels.

# %% [markdown] id="mix" tags=["core"]
# ## 2 · Mix the samples
#
# A batch should represent the whole data set, but data sets are usually sorted. ImageNet, for example, is delivered as
# one tar file per class. If you write shards in this order, a loader that reads from front to back gets only one class
# for a long time.
#
# There are two remedies. The first is to shuffle the samples once, before you write the shards. Our toolbox does this if
# you pass a seed as `shuffle`. Compare the labels of the first 24 samples without and with this shuffle:

# %%
official = setup.source("official", split="train")
sixty = tar.Options(max_count=60)  # images in a shard
place = Path(tempfile.mkdtemp(dir=setup.scratch))
ordered = pack(official, place / "ordered.tars", PackConfig(options=sixty))
mixed = pack(official, place / "mixed.tars", PackConfig(options=sixty, shuffle=0))  # the seed is 0
for one in (ordered, mixed):
    reader = formats.open(one.path)
    print(f"{one.path.name:13}", *(reader.target(index) for index in range(24)))

# %% [markdown]
# In the first line, all images have the class 0. In the second line, the classes are mixed.
#
# The second remedy is to shuffle while reading. The loader shuffles the list of shards, and then passes the samples
# through a *shuffle buffer*, which holds a fixed number of samples. Each new sample takes the place of a random sample in
# the buffer, and the loader delivers the sample that was there before:


# %% tags=["slide"]
def shuffle_buffer(stream, size, rng):
    """Yield the items of a stream in the order in which they leave a buffer of this size."""
    buffer = []
    for item in stream:
        if len(buffer) < size:
            buffer.append(item)  # the buffer fills up first
        else:
            slot = int(rng.random() * size)
            yield buffer[slot]
            buffer[slot] = item
    rng.shuffle(buffer)
    yield from buffer


# %% [markdown]
# `.shuffle(size)` of webdataset works in the same way, except that it begins to deliver before the buffer is full.
#
# We simulate a data set like ImageNet, with 1,000 classes and 1.28 million images in class order, in shards of 1,000
# images. A single worker reads all shards in random order. We need no images for this, because only the order matters.

# %%
import random

classes, batch, in_shard = 1_000, 256, 1_000
samples = 5_004 * batch  # ImageNet has 1,281,167 images, but 143 of them do not fill a batch
labels = np.arange(samples) * classes // samples  # in class order


def order_of_epoch(buffer, epoch):
    """Return the numbers of all samples in the order in which one epoch delivers them."""
    rng = random.Random(epoch)
    shard_starts = list(range(0, samples, in_shard))
    rng.shuffle(shard_starts)
    stream = (n for start in shard_starts for n in range(start, min(start + in_shard, samples)))
    return np.fromiter(shuffle_buffer(stream, buffer, rng), int, samples)


def classes_per_batch(order):
    batches = np.sort(labels[order].reshape(-1, batch))
    return 1 + (np.diff(batches) != 0).sum(axis=1).mean()


# %% [markdown]
# In a perfectly random order, a batch of 256 images would contain 226 of the 1,000 classes.
#
# > **Predict.** The shards are in class order. How many images must the buffer hold so that a batch contains 113
# > classes, which is half of 226?

# %%
guess = None  # your guess, images in the buffer: for example 500

# %%
sizes = [1, 4_096, 16_384, 32_768, 65_536]
held = [classes_per_batch(order_of_epoch(size, 1)) for size in sizes]
in_random_order = classes_per_batch(np.random.default_rng(1).permutation(samples))
print("classes in a batch, by images in the buffer:", dict(zip(sizes, np.round(held).tolist())))

# %% [markdown]
# The *folded* cell plots these numbers with matplotlib.

# %% tags=["slide"] jupyter={"source_hidden": true}
import matplotlib.pyplot as plt

enough = np.interp(in_random_order / 2, held, sizes)  # on the line between two sizes
figure, axes = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
axes.plot(sizes, held, "o-")
axes.axhline(in_random_order, color="grey", ls="--")
axes.annotate("shuffled before packing: any buffer", (1_000, in_random_order - 12), color="dimgrey")
axes.plot([enough, enough], [0, in_random_order / 2], color="grey", ls=":")
if guess is not None:
    axes.axvline(guess, color="#D55E00", ls="--", label="your guess")
    axes.legend(loc="center left")
axes.set(xlim=(0, 70_000), ylim=(0, 240))
axes.set(xlabel="images in the buffer", ylabel="classes in a batch of 256")
axes.xaxis.set_major_formatter("{x:,.0f}")
title = f"In class order, 113 classes per batch need a buffer of about {round(enough, -4):,.0f} images"
axes.set_title(title)
show.figure(figure, alt=f"{title}. Without a buffer {held[0]:.1f}, with 65,536 images {held[-1]:.0f}.")

# %% [markdown]
# With shards in class order, even a buffer of 40,000 images gives you only half of the classes. These images need 4 GB of
# memory in each worker, even if the buffer holds them as JPEG files. If the samples were shuffled before packing,
# neighbours in a shard already have random classes. Then a batch contains 226 classes without any buffer.
#
# Is the buffer useless then? No, because packing shuffles only once. Without a buffer, the same images stand next to each
# other in every epoch, so they share a batch again and again. How often does this happen? The next cell looks at all
# pairs of images that share a batch in the second epoch, and counts how many of them also shared a batch in the first
# epoch. The classes do not matter for this count.


# %%
def pairs_that_meet_again(first, second):
    """Return the percentage of pairs in a batch that also shared a batch in the epoch before."""
    batch_before = np.empty(samples, int)
    batch_before[first] = np.arange(samples) // batch
    rows = batch_before[second].reshape(-1, batch)
    together = [np.unique(row, return_counts=True)[1] for row in rows]
    return 100 * sum((counts * (counts - 1)).sum() for counts in together) / (samples * (batch - 1))


for size in (1, 4_096):
    again = pairs_that_meet_again(order_of_epoch(size, 1), order_of_epoch(size, 2))
    print(f"buffer {size:5}: {again:.2g} %")
ideal = (np.random.default_rng(epoch).permutation(samples) for epoch in (1, 2))
print(f"random order: {pairs_that_meet_again(*ideal):.1g} %")

# %% [markdown]
# Without a buffer, about 60 % of the pairs meet again in the next epoch. With a buffer of 4,096 images, 0.3 % of them do.
# In random order, it would be 0.02 %.
#
# So do both: **shuffle the samples before packing, and read them through a small buffer**.

# %% [markdown] id="size" tags=["optional"]
# ## 3 · Choose the size of a shard
#
# *Optional, 8 minutes.* To open a shard, a loader needs two requests. With 2 ms per request, as in notebook 01, this
# takes 4 ms. We assume that reading an image of 100 kB takes 1 ms.
#
# With how many images per shard does the loader spend half of its time on opens? We count the opens of one epoch with an
# audit hook, which Python calls at events such as opening a file.

# %%
opened = []
sys.addaudithook(lambda event, about: opened.append(str(about[0])) if event == "open" else None)

counts, fast = (1, 4, 16, 64), {"check": "none", "digest": False, "verify": "none"}
sharded, share = {}, {}
for count in counts:
    config = PackConfig(options=tar.Options(max_count=count), **fast)
    sharded[count] = sorted(pack(source, place / f"{count}.tars", config).path.glob("*.tar"))
    opened.clear()
    read = sum(1 for _ in wds.WebDataset(list(map(str, sharded[count])), shardshuffle=False))
    opens = sum(path.endswith(".tar") for path in list(opened))
    share[count] = 100 * opens * 0.004 / (opens * 0.004 + read * 0.001)
    print(f"{count:3} images per shard: {opens} opens, {share[count]:.0f} % of the time")

# %% [markdown]
# The *folded* cell draws these shares. A plain `plt.plot(list(share), share.values())` would show the same points.

# %% jupyter={"source_hidden": true}
computed = {count: 100 * 4 / (4 + count) for count in (1, 2, 4, 8, 16, 32, 64, 128, 256)}
title = f"With 64 images per shard, opens still need {share[64]:.0f} % of the time; with 256, {computed[256]:.1g} %"
axes = {"x": "images per shard", "y": "percent of the time for opens", "log": "x", "ideal": "4 / (4 + images)"}
figures.lines({"counted opens": share, "4 / (4 + images)": computed}, title, **axes, counted=True)

# %% [markdown]
# With four images per shard, opens need half of the time, and with 64 images only 6 %. Beyond that, the share of the
# opens roughly halves whenever you double the number of images. With 1,000 images, or 100 MB, it is 0.4 %, so larger
# shards hardly save any more time. But 10 TB in shards of 100 MB are 100,000 files. So if you have many terabytes, make
# shards of up to 1 GB.
#
# Shards can also be too large. If you pack ImageNet into shards of 1 GB, you get only 140 shards. If 512 workers read
# them, 372 workers get no shard. webdataset then stops with an error, or leaves these workers idle if you pass
# `empty_check=False`.
#
# Compress a shard only if the time that you save on fetching it is longer than the time for decompressing it. JPEG images
# are compressed already, so gzip saves almost nothing:

# %%
import gzip

jpegs = b"".join(bytes(one.data) for one in formats.open(packed.path))
print(f"gzip makes the JPEG images {1 - len(gzip.compress(jpegs, 6)) / len(jpegs):.1%} smaller")

# %% [markdown]
# On your machine, reading an image may take more or less than 1 ms. How many images must a shard contain here so that
# opens need half of the time? The *folded* cell reads shards with a pause of 4 ms for each open, and measures how long an
# image takes. It prints the answer and notes it on your worksheet. On a busy machine, the answer varies.

# %% jupyter={"source_hidden": true}
from functools import partial
from time import sleep

from webdataset.tariterators import group_by_keys, tar_file_expander

from smallfiles import measure


def stream(paths):
    """Read a list of shards as webdataset does, with a pause of 4 ms before each open."""

    def opened_shards():
        for path in paths:
            sleep(0.004)
            with path.open("rb") as file:
                yield {"url": str(path), "stream": file}

    return sum(1 for _ in group_by_keys(tar_file_expander(opened_shards())))


first_images = {count: sharded[count][: max(1, 64 // count)] for count in counts}
result = measure.compare({f"{n}": partial(stream, paths) for n, paths in first_images.items()}, rounds=3, unit="images", bar=False)
per_image_s = 1 / np.array([np.median(result.rates_per_s(f"{count}")) for count in counts])
open_s, image_s = np.polyfit(1 / np.array(counts), per_image_s, 1, w=1 / per_image_s)  # image_s + open_s / count
half = max(1, round(open_s / max(image_s, 1e-6)))
worksheet.note("05", shard_images=half)
print(f"an open takes {1e3 * open_s:.1f} ms and an image {1e3 * image_s:.2f} ms: {half} images per shard")

# %% [markdown]
# The last number is the answer. If the images come from memory, reading an image takes much less than 1 ms. Then a shard
# must contain many more than four images.

# %% [markdown] id="across" tags=["core"]
# ## 4 · Mix across workers
#
# A training run has one process per GPU. Such a process is called a *rank*, and each rank has several workers. Each shard
# goes to one worker of one rank. So every worker has its own shards, its own buffer, and its own batches. (With several
# ranks, pass `nodesplitter=wds.split_by_node` to webdataset, as in [notebook 10](10_run_it_on_many_nodes.ipynb).)
#
# ![Eight shards are split over two ranks, then over two workers each; every worker has a shuffle buffer that mixes its own two shards.](pictures/shards_to_batches.svg)
#
# Shards are dealt out like cards. With 8 workers, `urls[worker::workers]` gives worker 0 the shards 0, 8, 16, …, and
# worker 1 the shards 1, 9, 17, …. No two workers get the same shard, so each sample is read exactly once. What does this
# do to the batches? The code below acts as each worker in turn, and reads the shards of section 2.
#
# > **Predict.** `ordered` consists of 6 shards with up to 60 images each, in class order. 8 workers read them. How many
# > of the 10 classes does a batch of 16 images contain? In random order, it would contain 8.

# %%
guess = None  # your guess, classes in a batch: for example 6


# %% tags=["slide"]
def classes_in_batches(packed, workers, epoch):
    """Return how many classes a batch of 16 contains on average, over all workers."""
    urls, found = sorted(map(str, packed.path.glob("*.tar"))), []
    for worker in range(min(workers, len(urls))):  # the other workers get no shard
        mine = urls[worker::workers]  # as webdataset deals them out
        dataset = wds.WebDataset(mine, shardshuffle=100, seed=epoch).shuffle(1024, seed=epoch)
        batches = dataset.map(lambda one: int(one["cls"])).batched(16, collation_fn=list)
        found += [len(set(targets)) for targets in batches]
    return np.mean(found)


classes_seen = {}
for name, packing in {"in class order": ordered, "shuffled before packing": mixed}.items():
    for workers in (8, 1):
        runs = [classes_in_batches(packing, workers, epoch) for epoch in range(5)]
        classes_seen[f"{name}, {workers} worker{'s' * (workers > 1)}"] = runs

# %% [markdown]
# The *folded* cell draws the counts.

# %% tags=["slide"] jupyter={"source_hidden": true}
many, few = (np.median(runs) for runs in list(classes_seen.values())[:2])
title = f"In class order, a batch has {many:.0f} classes with 8 workers and {few:.0f} with one worker"
axes = {"x": "classes in a batch of 16", "dots": "epochs", "groups": ("in class", "shuffled"), "counted": True}
figures.bars(classes_seen, title, **axes, guess=guess, guess_of="in class order, 8")

# %% [markdown]
# With 8 workers and shards in class order, a batch contains only about two classes. A worker builds its batches only from
# its own shards. Here, it has one shard or none, and a shard in class order contains two or three classes. A larger buffer
# cannot help, because the other classes never reach this worker. A single worker reads all shards, so its buffer mixes
# all classes. It still gets slightly fewer than 8 classes, because the buffer begins to deliver before it is full.
#
# If the samples were shuffled before packing, the number of workers makes no difference to the classes in a batch. Still,
# give each worker several shards. Then it can read them in a new order in each epoch, as section 5 shows.
#
# You can now solve task 1 of [exercise 05](../exercises/05_shard_a_dataset.ipynb).
#
# <details>
# <summary>My shards are in class order, and I cannot pack them again</summary>
#
# Put a second buffer behind the workers, as large as section 2 shows:
# `WebLoader(…).unbatched().shuffle(40_000).batched(16)`. The samples must be tuples, as they are after `.to_tuple`. This
# buffer holds decoded images. At 224 pixels, it needs 6 GB per rank in uint8 and 24 GB in float32.
#
# </details>

# %% [markdown] id="anew" tags=["core"]
# ## 5 · Change the order in each epoch
#
# `shardshuffle=100` shuffles the list of shards. 100 is the size of a buffer, too, but this buffer holds shards. Make it
# at least as large as the list.
#
# Do the shards come in a new order in each epoch? That depends on two more options:
#
# - With `detshuffle=True`, webdataset computes the order from a seed and the number of the epoch.
# - With `persistent_workers=True`, a DataLoader keeps its workers. Otherwise, it starts new ones in each epoch.
#
# > **Predict.** The next cell tries all four combinations of these two options. Which combinations give the second epoch a
# > different order from the first?

# %%
guess = None  # your guess: "all", "detshuffle", "kept workers", "both together", or "none"

# %% tags=["slide"]
mixed_shards = sorted(map(str, mixed.path.glob("*.tar")))
for detshuffle in (False, True):
    for kept in (False, True):
        dataset = wds.WebDataset(mixed_shards, shardshuffle=100, detshuffle=detshuffle, seed=0)
        workers = {"num_workers": 2, "multiprocessing_context": "fork", "persistent_workers": kept}
        loader = DataLoader(dataset.map(lambda one: one["__key__"]), batch_size=None, **workers)
        order = "the same order" if list(loader) == list(loader) else "another order"
        print(f"detshuffle={detshuffle!s:5}  persistent_workers={kept!s:5}  {order}")

# %% [markdown]
# The order changes only if both options are on:
#
# - Without `detshuffle`, webdataset 1.0.2 [repeats](https://github.com/webdataset/webdataset/pull/502) the order of the
#   shards in every epoch, even if you set no seed. A `.shuffle` step does not help much, because it mixes only samples
#   that are close to each other.
# - With `detshuffle`, each worker [counts the epochs](https://github.com/webdataset/webdataset/issues/172) itself. A new
#   worker begins to count again, so the workers must stay alive.
#
# <details>
# <summary>What if shards must go to another worker in each epoch?</summary>
#
# [Shuffle the list before you split it](https://github.com/webdataset/webdataset/pull/73). The number 10,000 is the size of
# a buffer that should hold the whole list:
#
# ```python
# first = wds.SimpleShardList(shards), wds.detshuffle(10_000, 10_000), wds.split_by_node, wds.split_by_worker
# pipeline = wds.DataPipeline(*first, wds.tarfile_to_samples(), wds.shuffle(200), wds.decode("pil"))
# ```
#
# Keep the workers alive here, too, because they count the epochs. All ranks must be in the same epoch. If a rank has too
# few batches and reads its shards a second time, this rank counts one epoch more than the others, and then it shuffles
# differently. As a result, some samples are repeated and others are skipped, and nothing reports it. So end each epoch
# after a number of batches that every rank has, as in [notebook 10](10_run_it_on_many_nodes.ipynb).
#
# </details>
#
# This table lists the symptoms of this notebook and their remedies:
#
# | Symptom | Remedy |
# |---|---|
# | a batch contains few classes | pack with `shuffle=SEED` (`smallfiles pack --shuffle SEED`) |
# | the same images share a batch in every epoch | `.shuffle(4096)` |
# | the shards come in the same order in every epoch | `detshuffle=True` and `persistent_workers=True` |
#
# Some ranks may have more batches than others, but all ranks must end an epoch after the same number of batches.
# Otherwise, some ranks wait forever for the others ([notebook 10](10_run_it_on_many_nodes.ipynb)).
#
# You can now solve tasks 2 and 3 of [exercise 05](../exercises/05_shard_a_dataset.ipynb).

# %% [markdown] id="cut" tags=["optional"]
# ## 6 · Cut a shard
#
# *Optional, 4 minutes.* Suppose that the copy of a shard was interrupted exactly between two samples.
#
# Which of these readers notices it: Python's `tarfile`, webdataset, or the reader of our toolbox?

# %%
from smallfiles.errors import SmallfilesError

reader = formats.open(Path(shards[0]))
_, middle, _ = reader.span(len(reader) // 2)  # where the bytes of the middle image begin
cut = place / "cut.tar"
cut.write_bytes(Path(shards[0]).read_bytes()[: middle - 512])  # its header has 512 bytes
print(f"tarfile: {len(tarfile.open(cut).getnames()) // 2} of {len(reader)} samples, no error")
count = sum(1 for _ in wds.WebDataset(str(cut), shardshuffle=False))
print("webdataset:", count, "samples, no error")
try:
    len(formats.open(cut))
except SmallfilesError as error:
    print("our reader:", str(error).split("; ")[0].removeprefix(f"{cut} "))

# %% [markdown]
# A complete tar file ends with two blocks of zeros, and only our reader checks that they are there. For `tarfile` and
# webdataset, the truncated shard looks like a complete shard with fewer samples.

# %% [markdown] id="mix-sets" tags=["optional"]
# ## 7 · Mix two sets
#
# *Optional, 5 minutes.* An epoch should have 1,000 images. 70 % of them should come from a set of 2,100 images, and 30 %
# from a set of 300 images. Many programs draw each image at random with PyTorch's `WeightedRandomSampler`.
#
# How many of the 300 images of the small set appear in such an epoch?

# %%
from collections import Counter

from torch.utils.data import WeightedRandomSampler

large, few = 2_100, 300  # the images of the large set have the numbers 0 to 2,099
weights = np.repeat([0.7 / large, 0.3 / few], [large, few])
times = Counter(WeightedRandomSampler(weights, 1_000))
drawn = [times[number] for number in range(large, large + few)]
print(f"{sum(drawn)} draws: {np.count_nonzero(drawn)} of {few} images; one {max(drawn)} times")

# %% [markdown]
# About a third of the small set does not appear at all. The sampler can draw the same image again, so other images appear
# several times. If each rank draws by itself, two ranks can also draw the same image.
#
# Instead, shuffle the large set and split it into three parts of 700 images. Each epoch gets one part and all 300 images
# of the small set:

# %%
def exact_epoch(epoch):
    """Return all of the small set and 700 images of the large set, different ones in each epoch."""
    turn, part = divmod(epoch, 3)
    some = np.random.default_rng(turn).permutation(large)[part * 700 : (part + 1) * 700]
    return np.random.default_rng(epoch).permutation([*some, *range(large, large + few)])


times = Counter(np.concatenate([exact_epoch(epoch) for epoch in range(3)]).tolist())
print("images by the number of times that they appeared in three epochs:", Counter(times.values()))

# %% [markdown]
# In three epochs, each of the 2,100 images appears once, and each of the 300 images three times. The order depends only
# on the number of the epoch. So all ranks compute the same order and each takes its part. A training run that was stopped
# can also continue in this order.
#
# The loader of our toolbox also mixes sets in this way. The two sets of this notebook have different classes, so label 3
# means one thing in the first set and another in the second. The loader refuses to mix them until you tell it to join
# classes by their names:

# %%
from smallfiles.loading import LoaderConfig, make_loader

config = LoaderConfig(order="stream", mix_classes="names")
print(make_loader(mix={mixed.path: 0.7, packed.path: 0.3}, config=config).drawn)

# %% [markdown]
# The epoch ends when one of the sets is used up, so no image appears twice in an epoch.

# %% [markdown] id="exercise"
# ## Exercise
#
# In [Exercise 05](../exercises/05_shard_a_dataset.ipynb), you deal shards out to ranks and workers yourself, so that
# each sample is read exactly once.

# %% [markdown] id="cluster"
# ## On the cluster
#
# With `--shuffle`, `pack` must read the images in random order, which is slow. So let a job array pack the data set in
# eight parts at the same time. The *folded* cell packs the data set of section 2 in two parts, and prints `True` if
# the files are the same as those of one run:

# %% jupyter={"source_hidden": true}
out = Path(tempfile.mkdtemp(dir=setup.scratch)) / "parts.tars"
for number in (1, 2):
    pack(official, out, PackConfig(options=sixty, shuffle=0, part=(number, 2), verify="none"))
merged = pack(official, out, PackConfig(options=sixty, shuffle=0, merge=True, verify="none"))
all(path.read_bytes() == (mixed.path / path.name).read_bytes() for path in merged.path.glob("*.tar"))

# %% [markdown]
# These are the commands for ImageNet. The first packs one part, and the second joins all parts:

# %%
show.command(PackConfig(shuffle=0, part=(1, 8)), "ILSVRC2012_img_train.tar", "train.tars")
show.command(PackConfig(shuffle=0, merge=True), "ILSVRC2012_img_train.tar", "train.tars")

# %% [markdown]
# Submit the first command with `--array=1-8`, and replace `1/8` by `"$SLURM_ARRAY_TASK_ID/8"`. Run the second command
# once, when all parts are complete.

# %% [markdown] id="key-points"
# ## Key points
#
# - Neighbouring files in a shard form one sample if their names are the same up to the first dot.
# - Shuffle the samples before packing to mix the classes. Read them through a small buffer so that each epoch has
#   different batches.
# - A worker mixes only its own shards. If these shards are in class order, even a large buffer cannot add the missing
#   classes.
# - Make shards of 100 MB to 1 GB, and give each worker several of them.
# - A tar file that was cut between two samples looks like a complete file with fewer samples.
# - When you mix sets, take exact shares. If you draw 300 times at random from 300 images, you miss about a third.

# %% [markdown] id="quiz"
# ## Check yourself
#
# **1.** ImageNet is in class order, and its shards of 1,000 images are read in random order. A colleague adds
# `.shuffle(1000)`. How many classes does a batch of 256 contain? (a) About 226. (b) About ten. (c) One or two.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**. The buffer contains images of the last few shards only, and each of these shards contains one or two classes.
# For (a), the buffer would have to be about as large as the data set. (c) would be right without a buffer.
#
# </details>
#
# **2.** Your shards were shuffled before packing, and you read them without a buffer. What is wrong with the batches?
# (a) They contain few classes. (b) The same images share a batch in every epoch. (c) Nothing.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**. Without a buffer, neighbours in a shard stay together in every epoch. A small buffer would separate them. (a)
# is wrong because neighbours in a shard already have random classes.
#
# </details>
#
# **3.** A data set has 20 shards, and you train on 8 ranks with 8 workers each. What happens? (a) Each worker reads a third
# of a shard. (b) 44 workers get no shard. (c) Each rank reads all shards.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**. There are 64 workers, and each shard goes to one of them. (webdataset stops with an error, unless you pass
# `empty_check=False`.) So make at least 64 shards, and preferably several
# for each worker. (a) is wrong because a shard is not divided. (c) would be true if the shards were not dealt out to the
# ranks. Then each image would be read eight times.
#
# </details>

# %% [markdown] id="next"
# ## Next
#
# [06 · Read a squashfs file without mounting it](06_read_a_squashfs_image.ipynb) keeps the whole tree of folders in one
# file.
