# %% [markdown] id="top"
# # 05 · Shard a data set into tar files
#
# **Minutes** 40 · **Machine** any Linux computer with two CPUs · **Needs** notebook 03 · **Data** two small synthetic
# sets
#
# A tar file is a sequence of files. It needs no special library, and any storage can send it from front to back. So
# large data sets come as hundreds of tar files, *shards*.

# %% [markdown] id="questions"
# ## Questions
#
# - What does a loader expect inside a shard?
# - Does a shuffle buffer replace a shuffle?
# - How large should a shard be, and should it be compressed?
# - How do many workers read each sample exactly once?

# %% [markdown] id="objectives"
# ## After this you can
#
# - write shards that webdataset and others read, and feed them to a DataLoader,
# - choose the size of shards by measurement,
# - count whether ranks and workers read each sample once,
# - find a truncated shard.

# %% [markdown] id="setup"
# ## Set up

# %% id="start"
import sys

sys.path.append("..")
from helpers import figures, show, start, worksheet

setup = start("05")

# %% [markdown] id="recall"
# > **Recall** (03). You ask an `OSFile` for one image of a record batch of 256. What is read?
#
# <details>
# <summary>Answer</summary>
#
# The whole batch. A memory map copies only the image.
#
# </details>

# %% [markdown] id="inside" tags=["core"]
# ## 1 · Look inside a shard
#
# The writer of [webdataset](https://github.com/webdataset/webdataset) makes a shard from dictionaries: a key, and a
# *field* for each suffix. Here `jpg` is the image and `cls` its label.
#
# > **Predict.** The cell writes 100 images. How many files are in the shard: 1, 100 or 200?

# %%
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import webdataset as wds

source = setup.source("folder")
images = list(zip(source.manifest.paths.to_pylist(), source.manifest.targets.to_pylist(), strict=True))
place = Path(tempfile.mkdtemp(dir=setup.scratch))  # a new one, so that this cell may run twice
with wds.ShardWriter(f"{place}/by-hand-%06d.tar", maxcount=100, verbose=0) as writer:
    for path, label in images[:100]:
        data = (setup.folder() / path).read_bytes()
        writer.write({"__key__": Path(path).with_suffix("").as_posix(), "jpg": data, "cls": label})
members = tarfile.open(f"{place}/by-hand-000000.tar").getnames()
len(members), members[:4]

# %% [markdown]
# Each image has two files, side by side. Neighbours with the same folder and name, up to the first dot, are one sample.
# Only the order keeps them together, so make a tar of your own with `tar --sort=name`.
#
# > **Predict.** The names `cat.v1` and `cat.v2` have a dot of their own. How many samples does webdataset read: one, two
# > or four?

# %%
with wds.TarWriter(f"{place}/cats.tar") as writer:
    for key in ("cat.v1", "cat.v2"):  # change me: another character for the dots
        writer.write({"__key__": key, "jpg": b"the image", "cls": 1})
for sample in wds.WebDataset(f"{place}/cats.tar", shardshuffle=False):
    print(sample["__key__"], [field for field in sample if field[0] != "_"])

# %% [markdown]
# It reads one sample, without a field `jpg`. Our `pack` writes such a dot as `%2E`.

# %%
from smallfiles import formats
from smallfiles.formats import tar
from smallfiles.pack import PackConfig, pack

packed = pack(
    source, Path(tempfile.mkdtemp(dir=place)) / "train.tars", PackConfig(options=tar.Options(max_count=100))
)
shards = [str(path) for path in sorted(packed.path.glob("*.tar"))]

# %% [markdown]
# webdataset reads the shards as a pipeline, which a DataLoader runs in its workers:

# %%
import torch
from torch.utils.data import DataLoader


def small(image):
    return torch.from_numpy(np.array(image.resize((64, 64)))).permute(2, 0, 1)


pipeline = (
    wds.WebDataset(shards, shardshuffle=100)  # the list of shards: section 6
    .shuffle(200)  # a buffer of 200 samples: section 2
    .decode("pil")
    .to_tuple("jpg", "cls")
    .map_tuple(small, int)
    .batched(32)
)
loader = DataLoader(pipeline, batch_size=None, num_workers=2, multiprocessing_context="fork")
pictures, targets = next(iter(loader))
pictures.shape, torch.as_tensor(targets)[:8]

# %% [markdown] id="mix" tags=["core"]
# ## 2 · Mix the samples
#
# A batch should represent the whole set, but data is usually sorted: ImageNet comes as one tar per class. We pack such
# a set as it is, and in an order drawn from a seed.

# %%
official = setup.source("official", split="train")
sharding = tar.Options(max_count=60)  # change me: images in a shard
place = Path(tempfile.mkdtemp(dir=setup.scratch))
ordered = pack(official, place / "ordered.tars", PackConfig(options=sharding))
mixed = pack(official, place / "mixed.tars", PackConfig(options=sharding, shuffle=0))
for one in (ordered, mixed):
    reader = formats.open(one.path)
    print(one.path.name, [reader.target(index) for index in range(24)])

# %% [markdown]
# webdataset also shuffles while it reads: first the list of shards, then the samples. These pass a *buffer*, from which
# each output is drawn at random.

# %%
import random
from itertools import chain

from webdataset.filters import shuffle

classes, batch = 1_000, 256
samples = 5_004 * batch  # ImageNet has 143 more
labels = np.arange(samples) * classes // samples  # in class order


def arrival(buffer, epoch, shard=1_000):
    """The places of the samples in the shards, in the order in which they leave the buffer."""
    rng = random.Random(epoch)
    pieces = [range(start, min(start + shard, samples)) for start in range(0, samples, shard)]
    rng.shuffle(pieces)
    stream = chain.from_iterable(pieces)
    return np.fromiter(stream if buffer == 1 else shuffle(buffer, rng=rng)(stream), int, samples)


# %% [markdown]
# The folded cell defines two measures: the classes in a batch, and the share of its pairs of images that shared a batch
# in the epoch before.


# %% jupyter={"source_hidden": true}
def classes_per_batch(order):
    batches = np.sort(labels[order].reshape(-1, batch))
    return 1 + (np.diff(batches) != 0).sum(axis=1).mean()


def met_again(first, second):
    """Share of the pairs in a batch that shared a batch in the epoch before, in percent."""
    before = np.empty(samples, int)
    before[first] = np.arange(samples) // batch
    now = before[second].reshape(-1, batch)
    together = np.concatenate([np.unique(row, return_counts=True)[1] for row in now])
    return 100 * (together * (together - 1)).sum() / (len(now) * batch * (batch - 1))


# %% [markdown]
# > **Predict.** In random order, a batch of 256 holds 226 of the 1,000 classes. In class order, how large must the buffer
# > be for half as many?

# %%
guess = 500  # change me: images in the buffer

# %% [markdown]
# The folded cell sends both packings through five buffers. Here a single worker reads all shards; section 5 uses
# several workers.

# %% jupyter={"source_hidden": true}
packings = {
    "in class order": np.arange(samples),
    "shuffled at packing": np.random.default_rng(0).permutation(samples),
}
held, met = {name: {} for name in packings}, {"both packings": {}}
for buffer in (1, 1_024, 4_096, 16_384, 65_536):
    first, second = arrival(buffer, 1), arrival(buffer, 2)  # the same places in both packings
    for name, stored in packings.items():
        held[name][buffer] = classes_per_batch(stored[second])
    met["both packings"][buffer] = met_again(first, second)
sizes, found = zip(*held["in class order"].items(), strict=True)
half = classes_per_batch(np.random.default_rng(1).permutation(samples)) / 2
crossing = 2 ** np.interp(half, found, np.log2(sizes))
title = (
    f"In class order, {half:.0f} classes in a batch take a buffer of about {round(crossing, -4):,.0f} images"
)
axes = {"x": "images in the shuffle buffer; 1 is none", "counted": True}
marks = {f"about {round(crossing, -4):,.0f}: {half:.0f} classes": crossing}
show.figure(
    figures.lines(held, title, **axes, y=f"classes in a batch of {batch}", log="x", guess=guess, marks=marks)
)

# %% [markdown]
# In class order, even 40,000 images bring only half as many classes as random order, and take 4 GB in
# every worker. Shards shuffled at packing need no buffer for this.
#
# But packing shuffles only once: the same neighbours leave a shard together in each epoch. The folded cell draws how
# many pairs of a batch meet again.

# %% jupyter={"source_hidden": true}
met["random order"] = dict.fromkeys(
    sizes, met_again(*(np.random.default_rng(epoch).permutation(samples) for epoch in (1, 2)))
)
none, some = met["both packings"][1], met["both packings"][4_096]
title = f"Pairs that meet again: {none:.0f} % without a buffer, {some:.1g} % with 4,096 images"
figures.lines(met, title, **axes, y="pairs that had met before, %", log="xy", ideal="random order")

# %% [markdown]
# A buffer of 4,096 images leaves 0.3 % of the pairs together; random order has 0.02 %. If each of 64
# workers keeps its own 20 shards (section 6), 1.7 % meet again. So shuffle at packing, and read through a buffer.

# %% [markdown] id="size" tags=["optional"]
# ## 3 · Choose the size of a shard
#
# *Optional, 8 minutes.* Each shard must be opened, which may take 2 ms on a busy parallel file system. The folded
# `stream` reads shards as webdataset does, and waits before each open.

# %% jupyter={"source_hidden": true}
from time import sleep

from webdataset.tariterators import group_by_keys, tar_file_expander


def stream(paths, open_s):
    """What webdataset does with a list of shards, with a pause before each open."""

    def opened():
        for path in paths:
            sleep(open_s)
            with path.open("rb") as file:
                yield {"url": str(path), "stream": file}

    return sum(1 for _ in group_by_keys(tar_file_expander(opened())))


# %% [markdown]
# > **Predict.** With 2 ms per open, how many images per shard reach half of the best rate?

# %%
guess = 4  # change me: images per shard

# %% [markdown]
# The folded cell reads several sizes and notes your number.

# %% jupyter={"source_hidden": true}
from dataclasses import replace
from functools import partial

from smallfiles import measure

counts = (1, 4, 16) if setup.shared else (1, 4, 16, 64, 256)
few = replace(source, manifest=source.manifest.select(range(max(counts))))
place, rates = Path(tempfile.mkdtemp(dir=setup.scratch)), {"page cache": {}, "2 ms per open": {}}
for count in counts:
    config = PackConfig(options=tar.Options(max_count=count), check="none", digest=False, verify="none")
    paths = sorted(pack(few, place / f"{count}.tars", config).path.glob("*.tar"))
    ways = {"page cache": partial(stream, paths, 0), "2 ms per open": partial(stream, paths, 0.002)}
    result = measure.compare(ways, rounds=5, unit="images", bar=False)
    for name in ways:
        rates[name][count] = result.rates_per_s(name)

slow = {count: np.median(runs) for count, runs in rates["2 ms per open"].items()}
half, best = max(slow.values()) / 2, np.maximum.accumulate(list(slow.values()))
enough = round(2 ** np.interp(np.log2(half), np.log2(best), np.log2(counts)))  # between the sizes, too
worksheet.note("05", shard_images=enough)
rates["half of the best"] = dict.fromkeys((min(counts), max(counts)), half)
title = f"With 2 ms per open, {enough} images per shard reach half of the best rate"
axes = {"x": "images per shard", "y": "images per second", "log": "xy", "note": "warm cache"}
axes |= {"ideal": "half of the best", "marks": {f"half at {enough}": enough}}
show.figure(figures.lines(rates, title, **axes, guess=guess))

# %% [markdown]
# At your number, reading a shard takes about as long as its open. A hundred times as many images make the open
# negligible; so do 100 MB: a second at 100 MB/s, against 2 ms for the open. But ImageNet has only 140 shards of 1 GB, so of 512 workers
# 372 get none. Then webdataset stops with an error, unless `empty_check=False` leaves them idle.
#
# Compression pays only if fetching the saved bytes takes longer than unpacking. The folded cell measures gzip:

# %% jupyter={"source_hidden": true}
import gzip
from time import perf_counter

jpegs = b"".join(bytes(sample.data) for sample in formats.open(packed.path))
less = gzip.compress(jpegs, 6)
began = perf_counter()
gzip.decompress(less)
speed = (len(jpegs) - len(less)) / (perf_counter() - began)
print(
    f"JPEG: {len(less) / len(jpegs):.1%} of the size; pays if storage gives less than {speed / 1e6:.1f} MB/s"
)

# %% [markdown] id="deal" tags=["core"]
# ## 4 · Deal the shards out
#
# A run has one *rank* per GPU, each with workers. Every shard should reach one worker of one rank.
#
# ![Eight shards are split over two ranks, then over two workers each; every worker has a shuffle buffer that mixes its own two shards.](pictures/shards_to_batches.svg)
#
# `wds.WebDataset` splits over workers. With several ranks you must name a `nodesplitter`, too. The folded `read_epoch`
# counts how often each sample comes.

# %% jupyter={"source_hidden": true}
import os
from collections import Counter


def read_epoch(urls, ranks=2, workers=2, **splitters):
    """How often each sample came, and how many each rank got."""
    counts, by_rank = Counter(), []
    for rank in range(ranks):
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks))  # as torchrun does
        # empty_check=False: a worker without shards is no error
        dataset = wds.WebDataset(urls, shardshuffle=False, empty_check=False, **splitters)
        keys = dataset.map(lambda sample: sample["__key__"])
        found = list(DataLoader(keys, batch_size=None, num_workers=workers, multiprocessing_context="fork"))
        counts.update(found)
        by_rank.append(len(found))
    del os.environ["RANK"], os.environ["WORLD_SIZE"]
    return counts, by_rank


# %% [markdown]
# > **Predict.** 2 ranks of 2 workers, no split over the workers ("ranks only"): how often does each sample come?

# %%
guess = 1  # change me: times that each sample comes
both = {"nodesplitter": wds.split_by_node, "workersplitter": wds.split_by_worker}
ways = {"both splits": both, "ranks only": {**both, "workersplitter": None}}
ways["yours"] = both  # change me: switch off the other split
for name, splitters in ways.items():
    counts, by_rank = read_epoch(shards, **splitters)
    print(
        f"{name:12} {len(counts)} of {packed.samples} samples, in {counts.total()} reads; by rank {by_rank}"
    )
print("your guess for ranks only:", guess, "times")

# %% [markdown]
# Each sample comes twice, and no error tells you. **Your turn:** let `ways["yours"]` switch off the other split.
#
# <details>
# <summary>Answer</summary>
#
# `ways["yours"] = {**both, "nodesplitter": None}`: both ranks read all samples, 400 each.
#
# </details>
#
# > **Predict.** Both splits, and the 4 shards for 3 ranks. How many of the 400 samples does each rank get?

# %%
guess = [133, 133, 134]  # change me: samples of each rank
counts, by_rank = read_epoch(shards, ranks=3, **both)  # change me: ranks
print(f"by rank {by_rank}; your guess was {guess}")

# %% [markdown]
# Ranks exchange gradients at each step. So the rank with two shards waits at the end for the others, which are done:
# training [hangs](https://github.com/webdataset/webdataset/issues/225).
#
# `WebLoader(…).repeat().with_epoch(batches)` ends all ranks after equally many batches. A rank with fewer samples
# repeats some. One with more leaves some out, perhaps the same ones in each epoch: give each worker several shards, and
# change their order (section 6). Or deal out samples instead of shards, as our loader does with `order="stream"`. `drop_last` leaves out 16:

# %%
from smallfiles.loading import LoaderConfig, make_loader

by_rank = []
for rank in range(3):
    settings = LoaderConfig(batch=32, workers=2, order="stream", drop_last=True, rank=rank, world_size=3)
    batches = make_loader(packed.path, settings)
    by_rank.append([index for batch in batches for index in batch["index"].tolist()])
print("by rank", [len(found) for found in by_rank], "different samples:", len({*chain(*by_rank)}))

# %% [markdown]
# You can now solve tasks 1 and 3 of [exercise 05](../exercises/05_shard_a_dataset.ipynb).

# %% [markdown] id="across" tags=["core"]
# ## 5 · Mix across shards
#
# > **Predict.** 8 workers of webdataset read our 6 shards in class order. How many of the 10 classes does a batch of 16
# > hold? In random order it holds 8.

# %%
guess = 6  # change me: classes with 8 workers, in class order

# %% [markdown]
# The folded cell counts.


# %% jupyter={"source_hidden": true}
def classes_from(packed, workers, epoch):
    """Classes in a batch of 16, if each worker reads the shards that `split_by_worker` deals to it."""
    urls, found = sorted(map(str, packed.path.glob("*.tar"))), []
    for mine in filter(None, (urls[number::workers] for number in range(workers))):
        dataset = wds.WebDataset(mine, shardshuffle=100, seed=epoch).shuffle(1024, seed=epoch)
        batches = dataset.map(lambda sample: int(sample["cls"])).batched(16, collation_fn=list)
        found += [len(set(targets)) for targets in batches]
    return np.mean(found)


held = {}
for name, packing in {"in class order": ordered, "shuffled at packing": mixed}.items():
    for workers in (8, 1):
        runs = [classes_from(packing, workers, epoch) for epoch in range(5)]
        held[f"{name}, {workers} worker{'s' * (workers > 1)}"] = runs
many, few = (np.median(runs) for runs in list(held.values())[:2])
title = f"In class order, 8 workers leave {many:.0f} classes in a batch, one worker {few:.0f}"
axes = {
    "x": "classes in a batch of 16",
    "dots": "epochs",
    "groups": ("in class", "shuffled"),
    "counted": True,
}
show.figure(figures.bars(held, title, **axes, guess=guess, guess_of="in class order, 8"))

# %% [markdown]
# Each worker makes batches of its own shards only. With 8 workers that is one shard, or none.
# In class order a shard holds two or three classes. One worker mixes them, since its buffer holds the whole small set.
#
# <details>
# <summary>My shards are in class order, and I cannot pack them again</summary>
#
# Put a second buffer, as large as section 2 shows, behind the workers:
# `WebLoader(…).unbatched().shuffle(40_000).batched(16)`. The samples must be tuples, as after `.to_tuple`. It holds
# decoded images: 6 GB per rank at 224 pixels in uint8, 24 GB in float32.
#
# </details>

# %% [markdown] id="anew" tags=["core"]
# ## 6 · Change the order in each epoch
#
# `shardshuffle=100` shuffles the list of shards; with `detshuffle=True` the order depends on a seed and the epoch. A
# DataLoader starts new workers in each epoch, unless `persistent_workers=True` keeps them.
#
# > **Predict.** In which of the four cases does the second epoch have another order?

# %%
guess = "all four"  # change me: or "detshuffle", "kept workers", "detshuffle with kept workers", "none"

# %%
mixed_shards = sorted(map(str, mixed.path.glob("*.tar")))
for detshuffle in (False, True):
    for kept in (False, True):
        dataset = wds.WebDataset(mixed_shards, shardshuffle=100, detshuffle=detshuffle, seed=0)
        workers = {"num_workers": 2, "multiprocessing_context": "fork", "persistent_workers": kept}
        loader = DataLoader(dataset.map(lambda sample: sample["__key__"]), batch_size=None, **workers)
        found = "the same order" if list(loader) == list(loader) else "another order"
        print(f"detshuffle={detshuffle!s:5}  persistent_workers={kept!s:5}  {found}")
print("your guess, another order:", guess)

# %% [markdown]
# Without `detshuffle`, webdataset 1.0.2 [repeats](https://github.com/webdataset/webdataset/pull/502) the first order of
# the shards, also without a seed. A `.shuffle` mixes only the samples. With `detshuffle`, each worker [counts
# epochs](https://github.com/webdataset/webdataset/issues/172), so the workers must be kept.
#
# <details>
# <summary>What if shards must go to another worker in each epoch?</summary>
#
# [Shuffle before the splits](https://github.com/webdataset/webdataset/pull/73):
#
# ```python
# first = wds.SimpleShardList(shards), wds.detshuffle(10_000, 10_000), wds.split_by_node, wds.split_by_worker
# pipeline = wds.DataPipeline(*first, wds.tarfile_to_samples(), wds.shuffle(200), wds.decode("pil"))
# ```
#
# Keep the workers here too, and end each epoch after no more batches than every rank has. A rank that begins a second
# pass shuffles unlike the others: samples repeat or are left out, without an error.
#
# </details>
#
# The cures:
#
# | Symptom | Cure |
# |---|---|
# | a batch holds few classes | pack with `--shuffle` |
# | the same neighbours meet again | `.shuffle(4096)` |
# | several ranks read the same samples | `nodesplitter=wds.split_by_node` |
# | training hangs at the end of an epoch | `WebLoader(…).repeat().with_epoch(batches)` |
# | the shards come in the same order in every epoch | `detshuffle=True` and `persistent_workers=True` |
#
# You can now solve task 2 of [exercise 05](../exercises/05_shard_a_dataset.ipynb).

# %% [markdown] id="cut" tags=["optional"]
# ## 7 · Cut a shard
#
# *Optional, 4 minutes.* A copy was interrupted between two samples.
#
# > **Predict.** Which notice: Python's `tarfile`, webdataset, our reader?

# %%
from smallfiles.errors import SmallfilesError

guess = "tarfile and our reader"  # change me
reader = formats.open(Path(shards[0]))
_, middle, _ = reader.span(len(reader) // 2)
cut = place / "cut.tar"
cut.write_bytes(Path(shards[0]).read_bytes()[: middle - 512])  # the header before it has 512 bytes
print(f"tarfile: {len(tarfile.open(cut).getnames()) // 2} of {len(reader)} samples, no error")
print("webdataset:", sum(1 for _ in wds.WebDataset(str(cut), shardshuffle=False)), "samples, no error")
try:
    len(formats.open(cut))
except SmallfilesError as error:
    print("our reader:", str(error).split("; ")[0].removeprefix(f"{cut} "))
print("your guess:", guess)

# %% [markdown]
# A tar ends with two blocks of zeros, but only our reader checks for them.

# %% [markdown] id="exercise"
# ## Exercise
#
# [Exercise 05](../exercises/05_shard_a_dataset.ipynb): write the split over ranks and workers yourself, so that each
# sample comes exactly once.

# %% [markdown] id="cluster"
# ## On the cluster
#
# Packing in shuffled order makes one small read per image, so let a job array do it in eight parts. The folded cell
# shows that two joined parts equal one run:

# %% jupyter={"source_hidden": true}
out = Path(tempfile.mkdtemp(dir=setup.scratch)) / "parts.tars"
for number in (1, 2):
    pack(official, out, PackConfig(options=sharding, shuffle=0, part=(number, 2), verify="none"))
merged = pack(official, out, PackConfig(options=sharding, shuffle=0, merge=True, verify="none"))
all(path.read_bytes() == (mixed.path / path.name).read_bytes() for path in merged.path.glob("*.tar"))

# %%
show.command(PackConfig(shuffle=0, part=(1, 8)), "ILSVRC2012_img_train.tar", "train.tars")
show.command(PackConfig(shuffle=0, merge=True), "ILSVRC2012_img_train.tar", "train.tars")

# %% [markdown]
# With `--array=1-8`, put `"$SLURM_ARRAY_TASK_ID/8"` in place of `1/8`. The second command runs once, after all parts.

# %% [markdown] id="key-points"
# ## Key points
#
# - A sample is a run of neighbours in a shard with the same name up to the first dot.
# - A shuffle while packing mixes classes; a buffer while reading separates most old neighbours.
# - Shards of 100 MB to 1 GB, several per worker.
# - Split over ranks, then over workers, and count keys: repeats raise no error.
# - A tar that was cut between two samples looks like a shorter one.

# %% [markdown] id="quiz"
# ## Check yourself
#
# **1.** ImageNet is in class order, its shards of 1,000 images come at random, and a colleague adds `.shuffle(1000)`.
# How many classes does a batch of 256 hold? (a) Nearly all. (b) About ten. (c) One.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**. A few images wait in the buffer while six more shards pass: a batch meets about seven shards, each with one
# or two classes. (a) would take a buffer as large as the set, (c) none.
#
# </details>
#
# **2.** With 8 GPUs instead of 4, an epoch takes as long as before, and accuracy is the same. What is missing? (a) The
# split over the ranks. (b) The split over the workers. (c) A larger buffer.
#
# <details>
# <summary>Answer</summary>
#
# **(a)**. All ranks read everything, so more of them bring nothing. (b) would repeat samples within each rank, also on
# 4 GPUs. (c) A buffer changes the order, not the amount.
#
# </details>

# %% [markdown] id="next"
# ## Next
#
# [06 · Read a squashfs file without mounting it](06_read_a_squashfs_image.ipynb) keeps the tree.
