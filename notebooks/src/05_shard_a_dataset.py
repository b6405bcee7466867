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
# The whole batch is copied. A memory map copies only the image, but `get_batch` still asks Linux for all its pages.
#
# </details>

# %% [markdown] id="inside" tags=["core"]
# ## 1 · Look inside a shard
#
# The writer of [webdataset](https://github.com/webdataset/webdataset) makes a shard from dictionaries: a key, and a
# *field* for each suffix. Here `jpg` is the image and `cls` its label.
#
# > **Predict.** The cell writes 100 images. How many files are in the shard: 1, 100 or 200? Which comes first, an image
# > or its label?

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
with tarfile.open(place / "by-hand-000000.tar") as archive:
    members = archive.getnames()
len(members), members[:4]

# %% [markdown]
# Each image has two files, side by side: `.cls` first, since the writer sorts fields by name. Neighbours with the same
# folder and name, up to the first dot, are one sample. Only the order keeps them together: a plain tar needs `tar
# --sort=name`.
#
# `pack` writes the same files, images first, with an index and a digest for each shard:

# %%
from smallfiles import formats
from smallfiles.formats import tar
from smallfiles.pack import PackConfig, pack

packed = pack(source, Path(tempfile.mkdtemp(dir=place)) / "train.tars", PackConfig(options=tar.Options(max_count=100)))
shards = [str(path) for path in sorted(packed.path.glob("*.tar"))]
tarfile.open(shards[0]).getnames()[:4]

# %% [markdown]
# webdataset reads shards as a pipeline that ends in a DataLoader:

# %%
import torch
from torch.utils.data import DataLoader


def small(image):
    return torch.from_numpy(np.array(image.resize((64, 64)))).permute(2, 0, 1)


pipeline = (  # for one rank and one epoch; for more see sections 4 and 6
    wds.WebDataset(shards, shardshuffle=100, seed=0, workersplitter=wds.split_by_worker)
    .shuffle(200)  # a buffer of 200 samples, which has its own seed=
    .decode("pil")
    .to_tuple("jpg", "cls")
    .map_tuple(small, int)
    .batched(32)
)
loader = DataLoader(pipeline, batch_size=None, num_workers=2, multiprocessing_context="fork")
pictures, targets = next(iter(loader))
pictures.shape, torch.as_tensor(targets)[:8]

# %% [markdown]
# "Up to the *first* dot" is a trap. The folded cell packs `cat.v1.jpg` and `cat.v2.jpg`, with a label each.
#
# > **Predict.** How many samples will webdataset make of them: one, two or four?

# %% jupyter={"source_hidden": true}
folder = place / "cats"
folder.mkdir(exist_ok=True)
for name in ("cat.v1.cls", "cat.v1.jpg", "cat.v2.cls", "cat.v2.jpg"):
    (folder / name).write_bytes(b"1")
with tarfile.open(place / "plain.tar", "w") as archive:
    for path in sorted(folder.iterdir()):
        archive.add(path, path.name)
for sample in wds.WebDataset(str(place / "plain.tar"), shardshuffle=False):
    print(sample["__key__"], [name for name in sample if name[0] != "_"])

# %% [markdown]
# It makes one sample, without a `jpg`, so the pipeline above would stop. A pipeline that skips bad samples
# (`handler=wds.warn_and_continue`) loses both images. `pack` writes such a dot as `%2E`.

# %% [markdown] id="mix" tags=["core"]
# ## 2 · Mix the samples
#
# A batch should represent the whole set. But data is usually sorted: ImageNet is a tar of one tar per class. We pack
# such a set as it comes, and in an order drawn from a seed, and print the first labels.

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
# webdataset also shuffles while it reads: first the list of shards, then the samples. They pass a *buffer*, from which
# each output is drawn at random. We send only numbers through it: those of ImageNet's images, in shards of 1,000.

# %%
import random
from itertools import chain

from webdataset.filters import shuffle

classes, batch = 1_000, 256
samples = 5_004 * batch  # ImageNet has 143 more
labels = np.arange(samples) * classes // samples  # in class order


def arrival(stored, buffer, epoch, shard=1_000):
    """The numbers of the samples in the order in which they leave the buffer."""
    rng = random.Random(epoch)
    pieces = [stored[start : start + shard].tolist() for start in range(0, samples, shard)]
    rng.shuffle(pieces)
    stream = chain.from_iterable(pieces)
    return np.fromiter(stream if buffer == 1 else shuffle(buffer, rng=rng)(stream), int, samples)


# %% [markdown]
# The folded cell measures two things per epoch: how many classes a batch holds, and how many of its pairs of images
# shared a batch in the epoch before.


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
# > **Predict.** In class order, how large must the buffer be before a batch holds half of the classes that it should?

# %%
guess = 500  # change me: images in the buffer

# %%
packings = {
    "in class order": np.arange(samples),
    "shuffled at packing": np.random.default_rng(0).permutation(samples),
}
held, met = {}, {}
for name, stored in packings.items():
    for buffer in (1, 64, 1_024, 4_096, 16_384, 65_536):
        first, second = arrival(stored, buffer, 1), arrival(stored, buffer, 2)
        held.setdefault(name, {})[buffer] = classes_per_batch(second)
        met.setdefault("both packings", {})[buffer] = met_again(first, second)

# %% [markdown]
# The folded cell adds the ideal, a shuffle of the whole set in each epoch, and draws.

# %% jupyter={"source_hidden": true}
ideal = [np.random.default_rng(epoch).permutation(samples) for epoch in (1, 2)]
held["ideal"] = dict.fromkeys(held["in class order"], classes_per_batch(ideal[1]))
met["ideal"] = dict.fromkeys(held["in class order"], met_again(*ideal))
axes = {"x": "images in the shuffle buffer; 1 is none", "log": "x", "ideal": "ideal"}
below = [buffer for buffer, found in held["in class order"].items() if found < held["ideal"][1] / 2]
enough = min(set(held["ideal"]) - set(below))
marks = {"passes half of the ideal here": [(max(below), enough)]}
title = f"In class order, half of the ideal takes a buffer of {max(below):,} to {enough:,} images; shuffled at packing, none"
y = f"classes in a batch of {batch}"
drawn, half = figures.lines(held, title, **axes, y=y, guess=guess, marks=marks, counted=True), held["ideal"][1] / 2
drawn.figure.axes[0].axhline(half, ls=(0, (4, 3)), lw=1, color="#8C8C8C", zorder=0)
mixed_at_once = held["shuffled at packing"].values()
words = f"ideal: {2 * half:.0f}; shuffled at packing: {min(mixed_at_once):.1f} to {max(mixed_at_once):.1f}"
for height, text, side in ((half, f"half of the ideal: {half:.0f}", "bottom"), (1.9 * half, words, "top")):
    drawn.figure.axes[0].text(1, height, text, va=side, fontsize=9, color="#666666")
show.figure(drawn)
none, some = met["both packings"][1], met["both packings"][4_096]
title = f"Without a buffer {none:.0f} % of the pairs meet again in the next epoch; with 4,096 images, {some:.1f} %"
axes["log"] = "xy"
figures.lines(met, title, **axes, y="pairs that had met before, %", counted=True)

# %% [markdown]
# A shuffle while packing mixes the classes of every batch, without a buffer. In class order, half as many classes take
# a buffer of some 40,000 images: 4 GB in every worker, at 100 kB each.
#
# But packing shuffles only once, so the same neighbours leave a shard together in each epoch. Only a buffer separates
# them; here 4,096 images (0.4 GB) do.

# %% [markdown] id="size" tags=["optional"]
# ## 3 · Choose the size of a shard
#
# *Optional, 8 minutes.* Each shard must be opened. The folded cell defines the reading: from the page cache, and with a
# wait of 2 ms before each open, as on a busy parallel file system.

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
# > **Predict.** We read up to 256 images. How many times as fast are the largest shards as shards of one: without the
# > wait, and with it?

# %%
from dataclasses import replace
from functools import partial

from smallfiles import measure

guess = 2, 5  # change me: times without the wait, times with it
most = 16 if setup.shared else 256  # images
few = replace(source, manifest=source.manifest.select(range(most)))
place, rates = Path(tempfile.mkdtemp(dir=setup.scratch)), {"page cache": {}, "2 ms per open": {}}
for count in filter(lambda count: count <= most, (1, 4, 16, 64, 256)):
    options = tar.Options(max_count=count)
    folder = pack(few, place / f"{count}.tars", PackConfig(options=options, check="none", digest=False)).path
    paths = sorted(folder.glob("*.tar"))
    ways = {"page cache": partial(stream, paths, 0), "2 ms per open": partial(stream, paths, 0.002)}
    result = measure.compare(ways, rounds=7, unit="images")
    for name in ways:
        rates[name][count] = result.rates_per_s(name)

# %% [markdown]
# The folded cell draws, and notes the fewest images that reach half of the best.

# %% jupyter={"source_hidden": true}
middle = {name: {count: np.median(runs) for count, runs in line.items()} for name, line in rates.items()}
gain = {name: found[most] / found[1] for name, found in middle.items()}
title = f"With 2 ms per open, shards of {most} are {gain['2 ms per open']:.0f} times as fast as shards of 1; from the page cache {gain['page cache']:.1f} times"
slow = middle["2 ms per open"]
enough = min(count for count in slow if slow[count] >= max(slow.values()) / 2)
worksheet.note("05", shard_images=enough)
before = max((count for count in slow if count < enough), default=enough)
marks = {"2 ms per open passes half of its best here": [(before, enough)]}
show.say(f"Your guess: {guess[0]} times without the wait, {guess[1]} times with it.")
figures.lines(rates, title, x="images per shard", y="images per second", log="xy", note="warm cache", marks=marks)

# %% [markdown]
# Larger shards need fewer opens. At 100 MB/s, 2 ms per open are 3 % of the time with shards of 6 MB, 0.2 % with 100 MB.
# Busy servers take longer: choose 100 MB.
#
# Shards can be too large, because a worker needs one. ImageNet has 140 shards of 1 GB, which leave 372 of 512 workers
# without any.
#
# Compression pays only if fetching the saved bytes takes longer than unpacking. The folded cell measures:

# %% jupyter={"source_hidden": true}
import gzip
from time import perf_counter

jpegs = b"".join(bytes(sample.data) for sample in formats.open(packed.path))
less = gzip.compress(jpegs, 6)
began = perf_counter()
gzip.decompress(less)
speed = (len(jpegs) - len(less)) / (perf_counter() - began)
print(f"JPEG: {len(less) / len(jpegs):.1%} of the size; pays if storage gives less than {speed / 1e6:.1f} MB/s")

# %% [markdown] id="deal" tags=["core"]
# ## 4 · Deal the shards out
#
# A run has one *rank* per GPU, each with workers.
#
# ![Eight shards are split over two ranks, then over two workers each; every worker has a shuffle buffer that mixes its own two shards.](pictures/shards_to_batches.svg)
#
# `wds.WebDataset` splits over workers. With several ranks it raises an error until you name a `nodesplitter`. A worker
# without shards raises one too, unless you set `empty_check=False`. The folded `read_epoch` sets it and counts the
# keys.

# %% jupyter={"source_hidden": true}
import os
from collections import Counter


def read_epoch(urls, ranks=2, workers=2, **splitters):
    """How often each sample came, and how many each rank got."""
    counts, by_rank = Counter(), []
    for rank in range(ranks):
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks))  # as torchrun does
        dataset = wds.WebDataset(urls, shardshuffle=False, empty_check=False, **splitters)
        keys = dataset.map(lambda sample: sample["__key__"])
        found = list(DataLoader(keys, batch_size=None, num_workers=workers, multiprocessing_context="fork"))
        counts.update(found)
        by_rank.append(len(found))
    del os.environ["RANK"], os.environ["WORLD_SIZE"]
    return counts, by_rank


# %% [markdown]
# Now we switch off the split over the workers. The third line is yours: switch off the other split instead.
#
# > **Predict.** 2 ranks of 2 workers, no split over the workers ("ranks only"): how often does each sample come?

# %%
guess = 1  # change me: times that each sample comes
both = {"nodesplitter": wds.split_by_node, "workersplitter": wds.split_by_worker}
for name, splitters in {
    "both splits": both,
    "ranks only": {**both, "workersplitter": None},
    "yours": both,  # change me: switch off the other split
}.items():
    counts, by_rank = read_epoch(shards, **splitters)
    print(f"{name:12} {len(counts)} of {packed.samples} samples, in {counts.total()} reads; by rank {by_rank}")
print("your guess for ranks only:", guess, "times")

# %% [markdown]
# Your line is `{**both, "nodesplitter": None}`. Without one of the splits samples repeat, and no error tells you.
#
# > **Predict.** Both splits, and the 4 shards for 3 ranks. How many of the 400 samples does each rank get?

# %%
guess = [133, 133, 134]  # change me: samples of each rank
counts, by_rank = read_epoch(shards, ranks=3, **both)  # change me: ranks
waits = " They exchange gradients at each step, so one with more waits for the others until a timeout."
show.say(f"The ranks got **{by_rank}** samples; your guess was {guess}.{waits if len(set(by_rank)) > 1 else ''}")

# %% [markdown]
# With unequal numbers, training hangs at an epoch's end ([#225](https://github.com/webdataset/webdataset/issues/225)).
# Three cures:
#
# **1. End all ranks after equally many batches**, by `WebLoader(…).repeat().with_epoch(batches)`. What is left over is
# dropped, so make many more shards than workers.
#
# <details>
# <summary>2. Draw without end</summary>
#
# `resampled=True, nodesplitter=None` takes shards with replacement, so no rank runs out of them. `.with_epoch(n)` then
# ends an epoch after `n` items per worker. These are batches if the pipeline ends in `.batched`. Some samples repeat,
# others are missed.
#
# </details>
#
# **3. Deal out samples, not shards.** Our `order="stream"` reads ranges of bytes from all shards, by one plan for all
# processes, so no sample comes twice. With `drop_last=True` all get equally many batches:

# %%
from smallfiles.loading import LoaderConfig, make_loader

by_rank = []
for rank in range(3):
    settings = LoaderConfig(batch=32, workers=2, order="stream", drop_last=True, rank=rank, world_size=3)
    by_rank.append([index for batch in make_loader(packed.path, settings) for index in batch["index"].tolist()])
Counter(Counter(chain.from_iterable(by_rank)).values()), [len(found) for found in by_rank]  # once each; 16 left out

# %% [markdown] id="across" tags=["core"]
# ## 5 · Mix across shards
#
# > **Predict.** The 6 shards in class order, 8 workers of webdataset: how many of the 10 classes does a batch of 16
# > hold? A random order gives 8.

# %%
guess = 4  # change me: classes with 8 workers of webdataset

# %% [markdown]
# The folded cell counts with 1 to 8 workers, a second buffer behind them, and our streams.

# %% jupyter={"source_hidden": true}
from functools import cache, partial
from itertools import zip_longest

from smallfiles.measure import drawing

in_order = [str(path) for path in sorted(ordered.path.glob("*.tar"))]


@cache
def by_worker(workers, epoch):
    """The batches of each worker, with the shards that `split_by_worker` deals to it."""
    found = []
    for mine in filter(None, (in_order[number::workers] for number in range(workers))):
        dataset = wds.WebDataset(mine, shardshuffle=100, seed=epoch).shuffle(1024)
        found.append(list(dataset.map(lambda sample: int(sample["cls"])).batched(16, collation_fn=list)))
    return found


def from_webdataset(workers, epoch):
    return chain.from_iterable(by_worker(workers, epoch))


def mixed_again(workers, epoch):
    """A second buffer behind the workers, whose batches a DataLoader takes in turn."""
    in_turn = filter(None, chain.from_iterable(zip_longest(*by_worker(workers, epoch))))
    labels = list(shuffle(96, rng=random.Random(epoch))(chain.from_iterable(in_turn)))
    return (labels[first : first + 16] for first in range(0, len(labels), 16))


def from_ours(workers, epoch, order):
    settings = LoaderConfig(batch=16, workers=workers, mode="threads", order=order, seed=epoch)
    return (batch["target"] for batch in make_loader(ordered.path, settings))


ways = {"webdataset": from_webdataset, "webdataset, mixed again": mixed_again}
ways["our streams"] = partial(from_ours, order="stream")
ways["random order"] = partial(from_ours, order="random")
per_batch = {
    name: {
        count: [np.mean([len(np.unique(targets)) for targets in way(count, epoch)]) for epoch in range(5)]
        for count in (1, 2, 4, 8)
    }
    for name, way in ways.items()
}
theirs, again, ours, _ = (np.median(runs[8]) for runs in per_batch.values())
title = f"With 8 workers, a batch holds {theirs:.1f} classes from webdataset, {again:.1f} if mixed again, {ours:.1f} from our streams"
axes = {"x": "workers", "y": "classes in a batch of 16", "log": "x", "ideal": "random order"}
drawn = figures.lines(per_batch, title, **axes, note=f"{len(in_order)} shards, a run is an epoch", counted=True)
if guess not in (None, ...):
    plot, red = drawn.figure.axes[0], drawing.GUESS_COLOUR
    plot.axhline(guess, color=red, lw=1.6, ls=(0, (5, 2)), zorder=1)
    plot.text(1, guess, f"your guess for 8 workers: {guess}", color=red, va="bottom")
show.figure(drawn.figure, alt=f"{drawn.alt} The guess for 8 workers was {guess}.")

# %% [markdown]
# A worker of webdataset makes batches of its own shards only, and with 8 workers these are one or none. A second buffer
# behind the workers cures it: `WebLoader(…).unbatched().shuffle(96).batched(16)`. ImageNet needs too large a buffer for
# that, so pack it with `--shuffle`. Our streams deal ranges from the whole set, so they mix more evenly than chance.

# %% [markdown] id="anew" tags=["core"]
# ## 6 · Change the order in each epoch
#
# > **Predict.** Has the second epoch another order with `shardshuffle`? With a pipeline that shuffles before it splits?

# %%
guess = "both"  # change me: or "shardshuffle", "the pipeline", "neither"

# %%
first = wds.SimpleShardList(shards), wds.detshuffle(10_000, 10_000)  # a buffer for more shards than there are
stages = *first, wds.split_by_node, wds.split_by_worker, wds.tarfile_to_samples()
datasets = {"WebDataset": wds.WebDataset(shards, shardshuffle=100), "DataPipeline": wds.DataPipeline(*stages)}
for name, dataset in datasets.items():
    for kept in (False, True):
        workers = {"num_workers": 2, "multiprocessing_context": "fork", "persistent_workers": kept}
        loader = DataLoader(dataset.compose(wds.map(lambda sample: sample["__key__"])), batch_size=None, **workers)
        found = "the same order" if list(loader) == list(loader) else "another order"
        print(f"{name:12} workers {'kept' if kept else 'new '}: {found}")
print("your guess, another order with:", guess)

# %% [markdown]
# `shardshuffle` alone repeats the first order, in webdataset 1.0.2. It also shuffles after the splits, so each worker
# keeps its shards.
#
# <details>
# <summary>Sources, and what a sample shuffle changes</summary>
#
# [#502](https://github.com/webdataset/webdataset/pull/502) is about the repeated order.
# [#73](https://github.com/webdataset/webdataset/pull/73) tells how shards that never change hands harmed contrastive
# training. A `.shuffle(200)` behind `shardshuffle` reorders samples, not shards.
#
# </details>
#
# With `detshuffle` before the splits, the shards are dealt anew. But it counts epochs in each worker, so it needs
# `persistent_workers=True` ([#172](https://github.com/webdataset/webdataset/issues/172)).
#
# The count has a trap. The folded cell defines `three_ranks`: 3 ranks read the 4 shards by this pipeline, with cure 1
# of section 4. A pass has 10 or 20 batches of 10 samples.

# %% jupyter={"source_hidden": true}
def three_ranks(batches):
    """How often each sample came, in each of three epochs."""
    epochs = [Counter() for _ in range(3)]
    for rank in range(3):
        os.environ.update(RANK=str(rank), WORLD_SIZE="3")
        keys = wds.map(lambda sample: sample["__key__"]), wds.batched(10, collation_fn=list)
        workers = {"num_workers": 1, "multiprocessing_context": "fork", "persistent_workers": True}
        loader = wds.WebLoader(wds.DataPipeline(*stages, *keys), batch_size=None, **workers)
        loader = loader.repeat().with_epoch(batches)  # in the data set, each worker would count for itself
        for counts in epochs:
            counts.update(key for batch in loader for key in batch)
    del os.environ["RANK"], os.environ["WORLD_SIZE"]
    return epochs


# %% [markdown]
# > **Predict.** With 10 batches per rank, 300 of the 400 samples come in an epoch. How many come in epoch 3 with 14?

# %%
guess = 400  # change me: different samples in epoch 3, with 14 batches
for batches in (10, 14):  # change me: batches per rank and epoch
    for epoch, counts in enumerate(three_ranks(batches), start=1):
        print(f"{batches} batches, epoch {epoch}: {counts.total()} reads of {len(counts)} different samples")
print("your guess:", guess)

# %% [markdown]
# In epoch 3, 14 batches bring fewer samples than 10. A rank with 10 begins a second pass, which `detshuffle` counts as
# an epoch. From then on this rank shuffles unlike the others: shares overlap, and shards are left out, without an
# error. So use no more batches than each rank has in each epoch.
#
# <details>
# <summary>How do I train with this pipeline?</summary>
#
# Put `wds.shuffle`, `wds.decode`, `wds.to_tuple` and `wds.batched` behind these `stages`. End as the folded cell does,
# with no more batches than each rank has in each epoch.
#
# </details>

# %% [markdown] id="cut" tags=["optional"]
# ## 7 · Cut a shard
#
# *Optional, 4 minutes.* A copy was interrupted between two samples.
#
# > **Predict.** Which notice: Python's `tarfile`, webdataset, our reader?

# %%
guess = "tarfile and our reader"  # change me

# %%
from smallfiles.errors import SmallfilesError

reader = formats.open(Path(shards[0]))
_, middle, _ = reader.span(len(reader) // 2)
cut = place / "cut.tar"
cut.write_bytes(Path(shards[0]).read_bytes()[: middle - 512])  # the header before it has 512 bytes
print(f"tarfile: {len(tarfile.open(cut).getnames()) // 2} of {len(reader)} samples, no error")
print("webdataset:", sum(1 for _ in wds.WebDataset(str(cut), shardshuffle=False)), "samples, no error")
try:
    len(formats.open(cut))
except SmallfilesError as error:
    show.say(f"Our reader: *{error}* (Your guess: {guess}.)")

# %% [markdown]
# A tar ends with two blocks of zeros, but programs need not check them. Our reader does, and compares sizes with its
# index.

# %% [markdown] id="exercise"
# ## Exercise
#
# [Exercise 05](../exercises/05_shard_a_dataset.ipynb): write the split over ranks and workers yourself, so that each
# sample comes exactly once, in another order each epoch.

# %% [markdown] id="cluster"
# ## On the cluster
#
# Packing in shuffled order makes one small read per image. So let eight tasks of a job array pack one part each. The
# folded cell compares two parts with one run:

# %% jupyter={"source_hidden": true}
out = Path(tempfile.mkdtemp(dir=setup.scratch)) / "parts.tars"
for number in (1, 2):
    pack(official, out, PackConfig(options=sharding, shuffle=0, part=(number, 2)))
merged = pack(official, out, PackConfig(options=sharding, shuffle=0, merge=True))
all(path.read_bytes() == (mixed.path / path.name).read_bytes() for path in merged.path.glob("*.tar"))

# %% [markdown]
# With `--array=1-8`, put `"$SLURM_ARRAY_TASK_ID/8"` in place of `1/8`. The second command runs once, after all parts.

# %%
show.command(PackConfig(shuffle=0, part=(1, 8)), "ILSVRC2012_img_train.tar", "train.tars")
show.command(PackConfig(shuffle=0, merge=True), "ILSVRC2012_img_train.tar", "train.tars")

# %% [markdown] id="key-points"
# ## Key points
#
# - A sample is a run of neighbours in a shard that share folder and name up to the first dot.
# - A shuffle while packing mixes classes; a buffer while reading separates old neighbours.
# - Shards of 100 MB to 1 GB, several per worker.
# - Split over ranks, then over workers, and count keys: repeats and losses raise no error.
# - A tar cut between two files looks like a shorter one; only its end, index or digest reveal it.

# %% [markdown] id="quiz"
# ## Check yourself
#
# **1.** ImageNet is in class order, its shards of 1,000 images come at random, and a colleague adds `.shuffle(1000)`.
# How many classes does a batch of 256 hold? (a) Nearly all. (b) About ten. (c) One.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**. webdataset draws from the buffer at random, so a few images wait while six more shards pass: a batch meets
# about seven shards, each with one or two classes. (a) would take a buffer as large as the set. (c) would be a batch
# without any buffer.
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
