# %% [markdown] id="top"
# # 02 · Describe a data set with a JSON manifest
#
# **Minutes** 30 · **Machine** any Linux computer with two CPUs · **Needs** notebook 00 · **Data** small copies with
# synthetic pictures
#
# Before a program can read images, it needs a list: which samples are there, and what is the target (class or caption)
# of each? Many programs rebuild this list at every start, in every process, by walking through the folders. A
# *manifest* is that list, written to a file once.

# %% [markdown] id="questions"
# ## Questions
#
# - Where do ImageNet and Flickr30K keep their labels and captions?
# - How do I see that labels are in the wrong order?
# - Why does memory grow while DataLoader workers only read?

# %% [markdown] id="objectives"
# ## After this you can
#
# - make a manifest of a tree, a tar file, ImageNet or Flickr30K,
# - name a data set by its digest,
# - distinguish ImageNet's two label orders,
# - explain why workers copy a list of paths, and avoid it,
# - split a set, and divide it among processes.

# %% [markdown] id="setup"
# ## Set up

# %% id="start"
import sys

sys.path.append("..")
from helpers import figures, show, start, worksheet

setup = start("02")

# %% [markdown] id="recall"
# > **Recall** (00). 256 processes import torch from a parallel file system. Why does the first image wait, and what is
# > the remedy?
#
# <details>
# <summary>Answer</summary>
#
# 256 processes open 1,250 files each, and one server has to answer. The remedy: the whole environment in one file.
#
# </details>

# %% [markdown] id="walk" tags=["core"]
# ## 1 · Walk once, write down what is there
#
# `sources.load` recognises a data set and walks through it once. It returns the manifest, and a store of the bytes.
# `setup.source` calls it for the course's data.

# %%
from smallfiles import sources
from smallfiles.manifest import Manifest

source = setup.source()
manifest = source.manifest
manifest

# %%
manifest.table.slice(0, 2).to_pylist()

# %% [markdown]
# One row is one sample. Its *path*, relative to the root, is also its name, the *key*. Its *target* is here a label:
# the position of its class in a list. `bytes` is the file's size.
#
# > **Predict.** In which of four data sets (class folders, Kaggle's tree, ImageNet's official tar files, Flickr30K)
# > does the path of a validation image contain its class or caption?

# %%
for layout, data in setup.data.items():
    found = setup.source(layout, split=None if data.layout == "real" else "val")
    print(f"{found.kind}: {len(found.manifest)} samples, first {found.manifest.path(0)}")
    for note in found.notes:
        print("    note:", note)

# %% [markdown]
# Only in the class folders, where `n01440764` is a *wnid*: WordNet's name of a class. Each of the others needs a second
# file:
#
# | layout | class or caption is in | found by |
# |---|---|---|
# | Kaggle's tree | a CSV file | the image's name |
# | official tar files | the *development kit*, another archive | the image's number |
# | Flickr30K | a `.token`, CSV or JSON file | the image's name |
#
# The notes say what was guessed, repaired or left out.
#
# > **Predict.** One row of Flickr30K's `results.csv` has lost a delimiter. Do `.token` and `results.csv` give the same
# > data set? We compare *digests*: fingerprints of all paths and targets.

# %%
flickr = setup.path("flickr30k")
for name, file in {file.name: file for file in flickr.rglob("results*")}.items():
    found = sources.load(flickr, split="all", labels=file)
    print(f"{name:24} {found.manifest.digest[:23]}…  {found.notes[-1]}")

# %% [markdown]
# The digests are equal, so the broken row was repaired.

# %% [markdown] id="write" tags=["core"]
# ## 2 · Write it down, name it
#
# > **Predict.** In one copy of the manifest the rows are shuffled, in another one label is changed. Which copy keeps
# > the digest (prints `True`)?

# %%
shuffled = manifest.select(manifest.order(seed=1))
labels = manifest.targets.to_pylist()
labels[0] = int(labels[0] == 0)
changed = Manifest.from_columns(manifest.paths, labels)
shuffled.digest == manifest.digest, changed.digest == manifest.digest

# %% [markdown]
# So a digest is the name of a list of samples, in any order. It covers neither the names of the classes nor the bytes
# of the images (see [07.2](07_stage_a_dataset.ipynb#2-·-Measure-the-copy)).
#
# The manifest is saved as one JSON file. We time reading it, and the walk, with a warm page cache:

# %%
from smallfiles import measure

path = setup.scratch / "train.json"
manifest.save(path)
print(measure.compare({"walk": setup.source, "read": lambda: Manifest.load(path)}, rounds=7))

# %% [markdown]
# The file begins so:

# %%
print(path.read_text()[:500])

# %% [markdown]
# The labels and sizes follow. The folded cell reads a longer file, and scales its time to ImageNet.

# %% jupyter={"source_hidden": true}
from time import perf_counter

from helpers.experiments.nb02 import IMAGENET, long_manifest

rows = 500 * setup.count
large = long_manifest(setup.scratch, rows)
began = perf_counter()
Manifest.load(large)
mb, seconds = (IMAGENET / rows * each for each in (large.stat().st_size / 1e6, perf_counter() - began))
show.say(f"{rows:,} rows were read. At this rate ImageNet's {IMAGENET:,} are **{mb:,.0f} MB, read in {seconds:.1f} s**.")

# %% [markdown]
# > **Predict.** ImageNet's training set has 1,281,167 images in 1,000 folders. If listing a folder is one request, how
# > many does a walk send to the metadata server for names and sizes, and how many for names only? Guess the first.

# %%
guess = 100_000  # change me: requests of the walk with sizes

# %% [markdown]
# Our small copy tells us how many folders a walk lists (`os.scandir`) and how many sizes it asks for (`os.stat`).
# `mock.patch` lets each function record its calls.

# %%
import os
from unittest import mock


def asked_by(walk):
    """How many folders of classes a walk lists, and how many sizes it asks for."""
    with mock.patch("os.scandir", wraps=os.scandir) as listed, mock.patch("os.stat", wraps=os.stat) as sized:
        walk()
    return [len({str(call.args[0]) for call in calls.call_args_list} & known) for calls in (listed, sized)]


files = {str(source.root / path) for path in manifest.paths.to_pylist()}
known = files | {os.path.dirname(file) for file in files}
walks = {"walk, names and sizes": setup.source, "walk, names only": lambda: list(os.walk(source.root))}
asked = {name: asked_by(walk) for name, walk in walks.items()}
asked

# %% [markdown]
# The folded cell scales these counts to ImageNet.

# %% jupyter={"source_hidden": true}
from pathlib import PurePosixPath

from helpers.experiments.nb02 import IMAGENET

classes = len(known) - len(files)
requests = {
    name: 1_000 / classes * folders + IMAGENET / len(files) * sizes for name, (folders, sizes) in asked.items()
}
print("Requests to the metadata server for ImageNet's list:")
for name, number in {**requests, "your guess, with sizes": guess, "manifest": 1}.items():
    print(f"    {name:22} {number:13,.0f}")
folders = {folder for path in manifest.paths.to_pylist() for folder in PurePosixPath(path).parents}
worksheet.note("02", inodes=len(manifest) + len(folders))

# %% [markdown]
# torchvision's `ImageFolder` needs names only. It lists 1,000 folders, and first asks for each whether it is one: twice
# 1,000 requests. This takes seconds, but in every process at every start.
#
# Our walk asks for sizes too, because packing needs them. One by one, 1.3 million requests of 2 ms take 43 minutes, but
# only once, because the manifest keeps the sizes.

# %% [markdown] id="order" tags=["core"]
# ## 3 · Catch the wrong label order
#
# ImageNet's validation images are labelled by `ILSVRC2012_ID`, a number from 1 to 1000 in the development kit. Models
# from torchvision, timm and Keras use another order: they sort the wnids, and the label is the rank of the wnid,
# counted from 0.
#
# ![Image 1 has ID 490, the ID has wnid n01751748, and its rank among the sorted wnids, 65, is the label: sea snake. Crossed out: ID - 1 = 489, chainlink fence.](pictures/image_to_label.svg)
#
# The folded cell makes two copies of the same pictures, with 40 classes: one official, and one in folders named by
# wnid, so we know the right labels.

# %% jupyter={"source_hidden": true}
import numpy as np

from smallfiles.sources import imagenet, synthetic

copies = {"prepared": setup.scratch / "prepared", "official": setup.scratch / "official"}
for layout, folder in copies.items():
    synthetic.make(folder, layout, count=200, val=160, classes=40, size=(48, 36))
by_folder, by_kit = (sources.load(folder, split="val").manifest for folder in copies.values())
devkit = imagenet.load_devkit(copies["official"] / "ILSVRC2012_devkit_t12")
ids = devkit.ground_truth
names = [path.rpartition("/")[2] for path in by_folder.paths.to_pylist()]
right = np.asarray(by_folder.targets)[np.argsort(names)]  # of image 1, 2, 3 …, by its folder
print("IDs of images 1 to 5:   ", *ids[:5])
print("labels of images 1 to 5:", *by_kit.targets[:5])

# %% [markdown]
# > **Predict.** A colleague writes `label = ID - 1`. All labels are in range, so nothing fails. A perfect model,
# > trained on sorted wnids, is tested with them. What accuracy is reported: 90 %, 50 %, 2.5 % (chance), or less?

# %%
guess = 0.9  # change me: accuracy

# %% [markdown]
# Write the right rule, as the picture shows. `wnid_of` maps an ID to its wnid; `in_order` is the sorted list of
# wnids. The next cell tests your rule; the line is folded below it.

# %%
wnid_of, in_order = devkit.wnid_of_id, sorted(devkit.wnid_of_id.values())


def yours(ilsvrc_id):
    return ilsvrc_id - 1  # change me: from `wnid_of` and `in_order`


# %%
guesses = {"ID - 1": ids - 1, "yours": [yours(each) for each in ids], "smallfiles": by_kit.targets}
accuracy = {name: (np.asarray(labels) == right).mean() for name, labels in guesses.items()}
for name, share in accuracy.items():
    print(f"label = {name:10} agrees with the folders for {share:6.1%} of the images")
print(f"your guess for ID - 1: {guess:.1%}; chance among {len(by_folder.classes)} classes: {1 / len(by_folder.classes):.1%}")

# %% [markdown]
# <details>
# <summary>The line</summary>
#
# `return in_order.index(wnid_of[ilsvrc_id])`
#
# </details>
#
# With `ID - 1` the accuracy is the share of images whose class has the same place in both orders. No class does, and
# none in the real set either. So the accuracy is below chance, and the model looks broken ([mmpretrain
# 11](https://github.com/open-mmlab/mmpretrain/issues/11), [torchvision
# 484](https://github.com/pytorch/vision/issues/484)).
#
# To find out which order a manifest has, look at images whose label is known. Validation images 1 to 4 have IDs 490,
# 361, 171, 822, and sorted labels 65, 970, 230, 809.
#
# > **Predict.** `check_label_order` compares these. In the last of four manifests two labels were repaired by hand.
# > What is it called: sorted, devkit, or neither?

# %%
from smallfiles.errors import SmallfilesError


def order_of(*labels):
    names = [f"ILSVRC2012_val_{number:08d}.JPEG" for number in range(1, len(labels) + 1)]
    try:
        return imagenet.check_label_order(Manifest.from_columns(names, labels))
    except SmallfilesError as error:
        return f"refused: {error.got}"


# %%
strangers = [(65, 970, 230, 809), (490, 361, 171, 822), (489, 360, 170, 821), (65, 970, 170, 821)]
for labels in strangers:
    print(labels, "→", order_of(*labels))

# %% [markdown]
# Neither: two labels fit one order and two the other, so nobody can say which are right. Make the manifest again.

# %% [markdown] id="refuse" tags=["optional"]
# ## 4 · Refuse what is wrong
#
# *Optional, 5 minutes.* A manifest may also have the short form `{path: label}`. `json` checks its syntax only.
#
# > **Predict.** Which of these eight does `json.loads` refuse?

# %%
suspects = [
    '{"cat/1.jpg": 0, "cat/1.jpg": 1}',
    '{"../cat/1.jpg": 0}',
    '{"/data/cat/1.jpg": 0}',
    '{"cat//1.jpg": 0}',
    '{"cat/1.jpg": "0"}',
    '{"cat/1.jpg": 0.5}',
    '{"cat/1.jpg": [0, 1]}',
    '{"cat/1.jpg": 0, "cat/2.j',
]

# %% [markdown]
# The folded cell asks `json.loads`, then `Manifest.load`:

# %% jupyter={"source_hidden": true}
import json


def answer(read, *arguments):
    try:
        read(*arguments)
        return "accepted"
    except (SmallfilesError, ValueError) as error:
        return getattr(error, "got", "refused").replace(f"{setup.scratch}/", "")


for text in suspects:
    suspect = setup.scratch / "suspect.json"
    suspect.write_text(text)
    print(f"{text:36} json.loads: {answer(json.loads, text)}")
    print("   ", answer(Manifest.load, suspect))

# %% [markdown]
# `json` refuses only the one that is cut off. Of two equal keys it silently keeps the last.

# %% [markdown] id="memory" tags=["core"]
# ## 5 · Count the memory of workers
#
# On Linux, up to Python 3.13, a DataLoader forks its workers. After a fork all processes share the pages of memory, and
# a page is copied only when a process writes to it. Workers only read the list of paths, so it should cost nothing.
# Most people write it so:

# %%
from torch.utils.data import Dataset


class ListOfPaths(Dataset):  # as torchvision's ImageFolder holds it
    def __init__(self, paths, labels):
        self.samples = list(zip(paths, labels))

    def __getitem__(self, index):
        path, label = self.samples[index]
        return path, label


# %% [markdown]
# Now write *columns*. `pa.array(values)` copies all values into a few buffers, and `array[i].as_py()` makes a Python
# object of value i. In `Yours` both are still lists:

# %%
import pyarrow as pa


class Yours(Dataset):
    def __init__(self, paths, labels):
        self.paths, self.labels = paths, labels  # change me: two columns

    def __getitem__(self, index):
        return self.paths[index], self.labels[index]  # change me: one value of each


# %% [markdown]
# The folded cell holds our solution, `Columns`. It loads a large manifest in all three ways:

# %% jupyter={"source_hidden": true}
import json

from helpers.experiments.nb02 import IMAGENET, long_manifest


class Columns(Dataset):
    def __init__(self, paths, labels):
        self.paths, self.labels = pa.array(paths), pa.array(labels)

    def __getitem__(self, index):
        return self.paths[index].as_py(), self.labels[index].as_py()


rows = 500 * setup.count
held = json.loads(long_manifest(setup.scratch, rows).read_text())["columns"]
kinds = {"list of paths": ListOfPaths, "yours": Yours, "columns": Columns}
datasets = {name: kind(held["path"], held["label"]) for name, kind in kinds.items()}
pairs = datasets["list of paths"].samples
objects = {id(each): each for pair in pairs for each in (pair, *pair)}.values()  # equal small labels are one object
listed = sys.getsizeof(pairs) + sum(-sys.getsizeof(each) // 16 * -16 for each in objects)  # Python rounds up to 16
del objects
print(f"the list of {rows:,} paths and labels: {listed / 1e6:.0f} MB")

# %% [markdown]
# The kernel reports as `Private_Dirty` what a process has written to and shares with no other:

# %%
from pathlib import Path


def private_mb():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Private_Dirty")) / 1e6


# %% [markdown]
# > **Predict.** Four workers each read a quarter of the samples in random order. How much of the list has each copied
# > in the end: nothing, a quarter, or nearly all? Write megabytes.

# %%
guess = 5  # change me: megabytes per worker, for the list of paths

# %% [markdown]
# The folded cell runs four workers for each class, and draws what they have copied.

# %% jupyter={"source_hidden": true}
import gc
import multiprocessing

import numpy as np

stops = rows // 80, rows // 4  # how many samples each of four workers has read


def work(dataset, number, workers, answers):
    gc.disable()  # the collector would touch objects, too
    order = np.random.default_rng(0).permutation(rows)[number::workers].tolist()
    before, looked, found = private_mb(), 0, []
    for stop in stops:
        while looked < stop:
            dataset[order[looked]]  # all that a worker does with the list
            looked += 1
        found.append(private_mb() - before)
    answers.put(found)


fork = multiprocessing.get_context("fork")


def fork_workers(dataset, workers=4):
    """For each worker the memory that it copied until each stop."""
    answers = fork.SimpleQueue()
    started = [fork.Process(target=work, args=(dataset, n, workers, answers)) for n in range(workers)]
    for process in started:
        process.start()
    found = [answers.get() for _ in started]
    for process in started:
        process.join()
    return found


copied = {}
for name, dataset in datasets.items():
    found = fork_workers(dataset)
    for stop, column in list(zip(stops, zip(*found)))[0 if name == "list of paths" else -1 :]:
        copied[f"{name}, after {stop:,} reads"] = column
copied["size of the list"] = listed / 1e6
worst, _, columns = (np.median(copied[f"{name}, after {stops[-1]:,} reads"]) for name in datasets)
title = f"A worker that reads a quarter of the samples copies {worst:.0f} MB of a list, {columns:.1f} MB of columns"
axes = {"x": "memory copied by each worker (MB)", "dots": "workers", "note": f"{rows:,} samples"}
axes["base"] = "size of the list"
show.figure(figures.bars(copied, title, **axes, groups=tuple(datasets), guess=guess, guess_of="list of paths"))
show.say(
    f"For ImageNet's {IMAGENET:,} paths, 4 processes with 8 workers each would copy up to "
    f"**{32 * worst * IMAGENET / rows / 1000:.1f} GB** per node."
)

# %% [markdown]
# Reading is writing, because Python counts the references to each object *in the object*. Reading a path changes its
# count, so its whole page is copied:
#
# ```text
#                          a page of 4 kB: count and path of dozens of objects
# worker 1 and 2 share     | 1  path A | 1  path B | 1  path C | …
#
# worker 1 reads path B    | 1  path A | 2  path B | 1  path C | …      its own copy
# worker 2                 | 1  path A | 1  path B | 1  path C | …      the old page
# ```
#
# So a few random reads copy much of the list, which looks like a leak
# ([pytorch#13246](https://github.com/pytorch/pytorch/issues/13246)). Two lists still have
# an object per path. Columns, also those of a `Manifest`, have none, and reading does not write to their buffers.
#
# <details>
# <summary>From Python 3.14 on</summary>
#
# Workers are then started by `forkserver`, and each gets a pickled copy of the data set, of columns too.
# `multiprocessing_context="fork"` brings the sharing back; the loaders of notebook 08 set it.
#
# </details>

# %% [markdown] id="divide" tags=["core"]
# ## 6 · Divide it
#
# `split_off` takes the same share of each class, and the same samples for the same seed. The rest is divided among the
# processes of a job.
#
# > **Predict.** A walk finds the images class by class. How many classes does each of four processes see if it takes a
# > quarter of the rows in one piece? And if it takes every fourth row?

# %%
processes = 4  # change me
train, val = manifest.split_off(0.1, seed=0)
train = train.select(np.argsort(train.targets, kind="stable"))  # class by class, as a walk finds them
pieces = np.array_split(np.asarray(train.targets), processes)
for rank, piece in enumerate(pieces):
    own = np.unique(train.slice(rank, processes).targets)  # rows rank, rank + processes, …
    print(f"process {rank}: {len(np.unique(piece))} classes in one piece, {len(own)} in rows dealt in turn")

# %% [markdown]
# The folded cell draws the rows, coloured by class.

# %% jupyter={"source_hidden": true}
from matplotlib.figure import Figure

targets, row = np.asarray(train.targets), np.arange(len(train))
owners = {"In one piece": np.repeat(range(processes), [len(piece) for piece in pieces]), "In turn": row % processes}
figure = Figure(figsize=(9, 3), layout="constrained")
for axes, (name, owner) in zip(figure.subplots(2, sharex=True), owners.items()):
    found = [targets[owner == rank] for rank in range(processes)]
    own = np.full((processes, max(map(len, found))), np.nan)
    for rank, labels in enumerate(found):
        own[rank, : len(labels)] = labels
    palette = "tab10" if len(train.classes) <= 10 else "tab20"
    image = axes.imshow(own, aspect="auto", interpolation="nearest", cmap=palette)
    for rank, labels in enumerate(found):
        for label in np.unique(labels) if len(train.classes) <= 20 else ():
            light = np.dot(image.to_rgba(label)[:3], (0.3, 0.6, 0.1)) > 0.5
            place = np.flatnonzero(labels == label).mean()
            axes.text(place, rank, label, color="black" if light else "white", ha="center", va="center")
    axes.hlines(np.arange(1, processes) - 0.5, -0.5, own.shape[1] - 0.5, color="white", lw=3)
    seen = sorted({len(np.unique(labels)) for labels in found})
    seen = f"{seen[0]} to {seen[-1]}" if len(seen) > 1 else seen[0]
    axes.set_title(f"{name}: a process sees {seen} of {len(train.classes)} classes", loc="left", fontsize=10)
    axes.set(ylabel="process", yticks=range(processes))
axes.set_xlabel("samples of a process, in the order of its rows (numbers: label)")
show.figure(figure, alt="; ".join(axes.get_title("left") for axes in figure.axes) + ".")

# %% [markdown]
# With one piece, a process's batches hold few classes, however they are shuffled. In turn, a process meets all classes,
# but one after the other. Therefore loaders shuffle all rows anew in each epoch, then deal
# ([08](08_keep_the_gpu_fed.ipynb)).

# %% [markdown] id="exercise"
# ## Exercise
#
# [Exercise 02](../exercises/02_describe_a_dataset.ipynb): build the validation manifest from a development kit, and a
# guard against the wrong label order.

# %% [markdown] id="cluster"
# ## On the cluster
#
# Make the manifest once, in a job, and keep it beside the data. Nobody reads a job's notes, so `strict` makes errors of
# incomplete samples and stray files, not of repaired rows.

# %%
config = sources.ManifestConfig(strict=True)
config.save(config.load(setup.path()), setup.scratch / "job.json")
show.command(config, "imagenet", "train.json")

# %% [markdown] id="key-points"
# ## Key points
#
# - Labels are in folder names, CSV files or a development kit.
# - Manifests with one digest list the same samples and targets, in any order.
# - Label = rank of the sorted wnid, never `ID - 1`; check images whose label is known.
# - JSON that can be read may still be wrong.
# - Forked workers copy Python objects by reading them, but not columns.

# %% [markdown] id="quiz"
# ## Check yourself
#
# **1.** The memory of a node grows during the first epochs, then stays; 4 processes keep 8 workers each, and hold a
# list of 10 million paths (2 GB). By how much at most? (a) 2 GB. (b) 8 GB. (c) 64 GB.
#
# <details>
# <summary>Answer</summary>
#
# **(c)**. Each of the 32 workers ends with a copy of nearly the whole list. (a) would be sharing, which counting
# references undoes. (b) counts the processes only.
#
# </details>
#
# **2.** A downloaded model reaches 76 % on a colleague's ImageNet validation set, less than 0.1 % on yours. What do
# you check first? (a) Its weights. (b) The order of the labels. (c) How images are normalised.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**. Less than by guessing (0.1 %): with `ID - 1` no class keeps its place, so every right answer counts as wrong.
# (a) The colleague's run shows that the file is good. (c) lowers accuracy, but not below chance.
#
# </details>

# %% [markdown] id="next"
# ## Next
#
# [03 · Pack samples into Arrow](03_pack_arrow.ipynb) writes them into one file.
