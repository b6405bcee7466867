# %% [markdown] id="top"
# # 05 · Shard a dataset into tar files
#
# **Minutes** 40 · **Machine** any Linux computer, two CPUs do · **Needs** nothing · **Data** three small synthetic sets
#
# A tar file is a row of files, one behind the other. It needs no library to read, comes as one stream from a disk, a
# server or an object store, and every tool knows it. So large data sets travel as some hundred tar files, called *shards*.
#
# Shards are easy for one process on one disk. This notebook looks at what goes wrong with many.

# %% [markdown] id="questions"
# ## Questions
#
# - What does a loader expect inside a shard?
# - Does a shuffle buffer replace a shuffle?
# - How large should a shard be, and should it be compressed?
# - How do many workers read each sample exactly once?
# - Who notices that half a shard is missing?

# %% [markdown] id="objectives"
# ## After this you can
#
# - pack images and labels so that webdataset and others read them,
# - choose between shuffling at packing and at reading, knowing what each leaves out,
# - choose size and compression of shards by measurement,
# - count whether ranks and workers together read each sample once,
# - find a shard that was cut.

# %% [markdown] id="setup"
# ## Set up

# %% id="start"
import sys

sys.path.append("..")  # finds the course's package, whatever the kernel
from helpers import show, start

setup = start("05")

# %% [markdown] id="inside"
# ## 1 · Look inside a shard
#
# `pack` with an output that ends in `.tars` makes a folder of shards. Here a shard takes at most 100 images.

# %%
from helpers.experiments.nb05.place import fresh_folder
from smallfiles.formats import tar
from smallfiles.pack import PackConfig, pack

place = fresh_folder(setup.scratch)  # pack overwrites nothing, and a cell may run twice
packed = pack(setup.source("folder"), place / "train.tars", PackConfig(options=tar.Options(max_count=100)))
shards = sorted(packed.path.glob("*.tar"))

# %% [markdown]
# > **Predict.** Each image has a label. How many members does a shard of 100 images have, and in which order?

# %%
import tarfile

with tarfile.open(shards[0]) as archive:
    members = archive.getnames()
len(members), members[:4]

# %% [markdown]
# The convention comes from [webdataset](https://github.com/webdataset/webdataset): neighbours that share a name up to
# the first dot are one sample. `.cls` holds a label, `.json` captions, and `.meta` whatever else belongs to the image.
# Nothing but the order keeps the parts together. [tarp](https://github.com/webdataset/tarp) and webdataset's writer keep
# the order that they are given; a plain tar needs `tar --sort=name`, which puts `.cls` before `.jpg`. Both are fine.

# %%
import webdataset as wds

sample = next(iter(wds.WebDataset(str(shards[0]), shardshuffle=False)))
for name, value in sample.items():
    print(name, value if len(value) < 60 else f"{len(value):,} bytes")

# %% [markdown]
# "Up to the *first* dot" is a trap. Here are two images with a version in their names, in one tar, sorted by name.
#
# > **Predict.** How many samples will webdataset make of them?

# %%
folder = fresh_folder(setup.scratch) / "cats"
folder.mkdir()
plain = folder / "plain.tar"
with tarfile.open(plain, "w") as archive:
    for name in ("cat.v1.cls", "cat.v1.jpg", "cat.v2.cls", "cat.v2.jpg"):
        (folder / name).write_bytes(b"1")
        archive.add(folder / name, name)
for sample in wds.WebDataset(str(plain), shardshuffle=False):
    print(sample["__key__"], [name for name in sample if name[0] != "_"])

# %% [markdown]
# One sample with four parts, and no error; two images trained as none. Where names would run together like this, `pack`
# says so and writes the dot as `%2E`. Both images survive, and its reader gives the old names back.

# %%
import warnings

from smallfiles import formats, sources

out = fresh_folder(setup.scratch) / "cats.tar"
with warnings.catch_warnings(record=True) as said:
    pack(sources.load(folder.parent), out, PackConfig(check="none"))
print(*(warning.message for warning in said))
with tarfile.open(out) as archive:
    print(archive.getnames())
formats.open(out).keys().to_pylist()

# %% [markdown]
# A tar has no table of contents: to find sample 70 one walks over 69 others. Beside each shard `pack` leaves an index
# that says where samples lie. Other programs ignore it.
#
# > **Predict.** What costs more: to open the shards without their indexes, or to read all samples once in random order?

# %%
from helpers.experiments.nb05 import lookup

found = lookup.measure_lookup(packed.path, setup.scratch)
show.say(found.sentence)

# %% [markdown] id="mix"
# ## 2 · Mix the samples
#
# A batch should be a small picture of the whole set. Data come the other way: ImageNet is a tar of one tar for each
# class. We pack it as it comes, and once more in an order drawn from a seed. Both read the tar of tars in place,
# nothing is unpacked.

# %%
official = setup.source("official", split="train")
sixty = tar.Options(max_count=60)
place = fresh_folder(setup.scratch)
ordered = pack(official, place / "ordered.tars", PackConfig(options=sixty))
mixed = pack(official, place / "mixed.tars", PackConfig(options=sixty, shuffle=0))

# %% [markdown]
# > **Predict.** Which labels have the first 24 images of each?

# %%
for one in (ordered, mixed):
    reader = formats.open(one.path)
    print(one.path.name, [reader.target(index) for index in range(24)])

# %% [markdown]
# webdataset shuffles while it reads: first the list of shards, then samples in a *buffer*. The buffer fills from the
# stream, and each time one sample is drawn from it at random.
#
# > **Predict.** There are ten classes. How many are in a batch of 32 that comes from the ordered shards, through a buffer
# > of 64?

# %%
from helpers.experiments.nb05 import mixing

for one in (ordered, mixed):
    urls = [str(path) for path in sorted(one.path.glob("*.tar"))]
    for buffer in (1, 64):
        stream = wds.WebDataset(urls, shardshuffle=100, seed=0).shuffle(buffer)
        labels = [int(sample["cls"]) for sample in stream]
        print(f"{one.path.name}, buffer {buffer:2}: {mixing.classes_in_a_batch(labels, 32):.1f} classes")

# %% [markdown]
# Small sets flatter a buffer, since it holds much of them. So let the order alone grow: a tenth of ImageNet, 1,000
# classes in shards of 1,000 images, through webdataset's own buffer. We ask two things of an epoch: how many classes
# a batch holds, and how many of its pairs of images had met in a batch of the epoch before. An ideal shuffle of the
# whole set tells what to hope for.
#
# > **Predict.** Which of the two does a shuffle at packing cure, and which does a buffer cure?

# %%
config = mixing.MixConfig(samples=min(320 * setup.count, 1_281_000))
mixture = mixing.measure_mixing(config)

# %%
from helpers.figures import shards as draw

show.figure(draw.mixing(mixture), alt=mixture.alt_text)

# %% [markdown]
# On the left, a shuffle at packing gives every batch its classes, and no buffer is needed. On the right, packing does
# nothing: it shuffles once, so the same neighbours leave a shard together in each epoch. That takes a buffer, and the
# buffer takes memory.

# %%
mean_bytes = packed.payload_bytes / packed.samples
show.say(mixture.advice(mean_bytes, workers=8))

# %% [markdown]
# A worker's buffer sees only the shards of that worker, and webdataset starts to give out samples when 100 are in it,
# whatever its size ([#62](https://github.com/webdataset/webdataset/issues/62)). So shuffle at packing, which costs nothing
# later, and then take the buffer that your memory allows.

# %% [markdown] id="size"
# ## 3 · Choose the size of a shard
#
# Here 256 images lie in shards of 1, 4, 16, 64 and 256 images, and webdataset's reader goes through them. It does so
# twice: as this disk gives them, and with 2 ms of waiting before each open, as a busy parallel file system makes one
# wait.
#
# > **Predict.** From which size on does a larger shard gain nothing, with and without the waiting?

# %%
from helpers.experiments.nb05 import rates

speed = rates.measure_rates(setup.source("folder"), setup.scratch)
show.figure(draw.rates(speed), alt=speed.alt_text)
if speed.note:
    show.say(speed.note)

# %% [markdown]
# So shards can be too small. Can they be too large? A shard is the smallest thing that a worker gets. Take ImageNet's
# 1,281,167 images at the mean size of ours, and 64 GPUs with 8 workers each.

# %%
import numpy as np

sizes = np.full(1_281_167, round(mean_bytes), dtype=np.int64)
for max_bytes in (100_000_000, 1_000_000_000, 10_000_000_000):
    count = len(tar.plan_shards(sizes, tar.Options(max_bytes=max_bytes)))
    print(f"{max_bytes / 1e9:4.1f} GB a shard: {count:5,} shards for 512 workers, {max(0, 512 - count)} idle")

# %% [markdown]
# A shard of some 100 MB is one open for about a thousand images, and still leaves something to do for each worker.
#
# Shards can be compressed, for fewer bytes on the way and more work on arrival. That pays only if the storage is slower
# than the unpacking. The table gives the speed below which it pays, for one reader: saved bytes divided by extra seconds.
#
# > **Predict.** How much smaller become 400 JPEG files, and how much 2,000 captions, each a JSON file?

# %%
from helpers.experiments.nb05 import shrinking

captions = shrinking.caption_samples(setup.source("flickr30k").manifest)
kinds = {"JPEG": list(formats.open(packed.path)), "JSON captions": captions}
shrunk = shrinking.measure_shrinking(kinds, setup.scratch)
print(shrinking.table(shrunk))

# %%
show.say(shrinking.verdict(shrunk))

# %% [markdown]
# JPEG is compressed already. Of the captions, look at *contents* and *shard*: a tar spends a header on each member and
# fills it up to 512 bytes, twice for each sample, and that is what shrinks most. Our captions are also more alike than
# real ones. Better than compressing tiny files is not to have them: put all captions of an image beside it, in one `.json`.

# %% [markdown] id="deal"
# ## 4 · Deal the shards out
#
# A training run has a *rank* for each GPU, and each rank has workers that read. All start with the same list of
# shards, so two splits are needed: over the ranks, then over the workers. webdataset does both if told to. We read one
# epoch with real workers, count the keys, and then forget one split.
#
# ![Eight shards are split over two ranks, then over two workers each; every worker has a shuffle buffer that mixes its own two shards.](pictures/shards_to_batches.svg)
#
# *From shards to batches: two splits, then a buffer in each worker.*
#
# > **Predict.** 2 ranks of 2 workers, no split over the workers: how often does each sample come?

# %%
from helpers.experiments.nb05.dealing import deal, table

run = {"ranks": 2, "workers": 2}
both = {"node": wds.split_by_node, "worker": wds.split_by_worker}
epochs = [
    deal("both splits", shards, packed.samples, **run, **both),
    deal("ranks only", shards, packed.samples, **run, **(both | {"worker": None})),
    deal("workers only", shards, packed.samples, **run, **(both | {"node": None})),
]
print(table(epochs))

# %% [markdown]
# Neither mistake raises an error. An epoch just takes longer, and GPUs or workers repeat each other. Only counting
# shows it.
#
# > **Predict.** Now both splits, but 3 shards for 4 workers. What happens to the fourth worker, and to its rank?

# %%
three = sum(len(formats.open(path)) for path in shards[:3])
few = deal("3 shards", shards[:3], three, **run, **both)
print(table([few]))
show.say(few.finding)

# %% [markdown]
# That is how training hangs at the end of an epoch
# ([#68](https://github.com/webdataset/webdataset/issues/68)). Make more shards than workers, of equal size, and stop all
# ranks at the same number of batches.
#
# > **Predict.** Does `shardshuffle` give another order of shards in the second epoch?

# %%
dataset = wds.WebDataset([str(path) for path in shards], shardshuffle=100)
first, second = ([sample["__key__"] for sample in dataset] for _ in range(2))
order = "the **same** order" if first == second else "another order"
show.say(f"webdataset {wds.__version__}: {order} in the second epoch.")

# %% [markdown]
# In webdataset 1.0.2 it is the same ([#502](https://github.com/webdataset/webdataset/pull/502)). It also shuffles after
# splitting, so each worker keeps its shards for ever, which has hurt training
# ([#73](https://github.com/webdataset/webdataset/pull/73)). In the exercise you will do better.

# %% [markdown] id="cut"
# ## 5 · Cut a shard
#
# A copy job reached its time limit. What it left behind ends in the middle, by chance between two samples.
#
# > **Predict.** Who will notice: Python's `tarfile`, webdataset, our reader?

# %%
reader = formats.open(shards[0])
_, middle, _ = reader.span(len(reader) // 2)
cut = fresh_folder(setup.scratch) / "cut.tar"
kept = cut.write_bytes(shards[0].read_bytes()[: middle - 512])  # the header before it has 512 bytes
print(f"{kept:,} of {shards[0].stat().st_size:,} bytes")

# %%
with tarfile.open(cut) as archive:
    listed = len(archive.getnames()) // 2
streamed = sum(1 for _ in wds.WebDataset(str(cut), shardshuffle=False))
show.say(f"Of {len(reader)} samples, tarfile finds {listed} and webdataset {streamed}, without an error.")

# %%
from smallfiles.errors import SmallfilesError

try:
    len(formats.open(cut))
except SmallfilesError as error:
    show.say(f"Our reader: *{error}*")

# %% [markdown]
# A tar ends with two blocks of zeros, and nobody is forced to look for them. Our reader does, and with the index beside
# the shard it compares sizes as well. A shard that is whole but changed is found by its digest:
# `smallfiles verify`.

# %% [markdown] id="exercise"
# ## Exercise
#
# [Exercise 05](../exercises/05_shard_a_dataset.ipynb): write the split over ranks and workers yourself, so that each
# sample comes exactly once, in an order that changes from epoch to epoch.

# %% [markdown] id="cluster"
# ## On the cluster
#
# Packing waits for many small reads, so let eight jobs of an array pack a part each. All cut the same shuffled
# list at the same places. Does it give the same bytes as one run? Here with two parts:

# %%
out = fresh_folder(setup.scratch) / "parts.tars"
for number in (1, 2):
    pack(official, out, PackConfig(options=sixty, shuffle=0, part=(number, 2)))
merged = pack(official, out, PackConfig(options=sixty, shuffle=0, merge=True))
same = all(p.read_bytes() == (mixed.path / p.name).read_bytes() for p in merged.path.glob("*.tar"))
show.say(f"{merged.samples} samples, **{'the same bytes' if same else 'other bytes'}** as in one run.")

# %% [markdown]
# The commands for ImageNet. In the job array, put `"$SLURM_ARRAY_TASK_ID/8"` in place of `1/8`; the second runs once,
# after all parts.

# %%
show.command(PackConfig(shuffle=0, part=(1, 8)), "ILSVRC2012_img_train.tar", "train.tars")

# %%
show.command(PackConfig(shuffle=0, merge=True), "ILSVRC2012_img_train.tar", "train.tars")

# %% [markdown] id="key-points"
# ## Key points
#
# - A sample is what stands together in a shard and shares a name up to the first dot.
# - A shuffle at packing mixes classes; a buffer at reading separates old neighbours. They replace each other badly.
# - Some 100 MB a shard: few opens, and several shards for each worker. Compress text, not JPEG.
# - Split over ranks and over workers, then count keys: mistakes do not fail.
# - A cut tar reads short without an error unless the reader looks for its end.

# %% [markdown] id="next"
# ## Next
#
# Notebook 06, [Read a squashfs image without mounting it](06_read_a_squashfs_image.ipynb), keeps the tree of files, in one
# file. Pack a data set of your own with the command above first.
