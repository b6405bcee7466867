# %% [markdown] id="top"
# # 02 · Describe a data set with a JSON manifest
#
# **Minutes** 30 · **Machine** any Linux computer with two CPUs · **Needs** notebook 00 · **Data** small copies with
# synthetic pictures
#
# Before a program can read images, it needs a list: which samples are there, and which target (class or caption) has
# each? Many programs rebuild this list at every start, by walking through the folders. A *manifest* is that list,
# written to a file once.

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
# For the course's data `setup.source` calls it.

# %%
from smallfiles import sources
from smallfiles.manifest import Manifest

source = setup.source()
manifest = source.manifest
manifest

# %%
manifest.table.slice(0, 2).to_pylist()

# %% [markdown]
# One row is one sample. Its *path* is also its name, the *key*. Its *target* is here a label: the position of its class
# in a list.
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
# Only in the class folders, where `n01440764` is a *wnid*: WordNet's name of a class. The others need a second file: a
# CSV file, ImageNet's *development kit* (another archive), or captions.
#
# Notes also say what was guessed, repaired or left out: here Flickr30K's file of splits does not list ten images.
#
# > **Predict.** One row of Flickr30K's `results.csv` has lost a delimiter. Does it give the same data set as the
# > `.token` file? We compare *digests*: fingerprints of all paths and targets.

# %%
flickr = setup.path("flickr30k")
for name, file in {file.name: file for file in flickr.rglob("results*")}.items():
    found = sources.load(flickr, split="all", labels=file)
    print(f"{name:24} {found.manifest.digest[:23]}…  {found.notes[-1]}")

# %% [markdown]
# Equal digests, so the broken row was repaired.

# %% [markdown] id="write" tags=["core"]
# ## 2 · Write it down, name it
#
# > **Predict.** In one copy of the manifest the rows are shuffled, in another one label is changed. Which copy keeps
# > the digest (prints `True`)?

# %%
shuffled = manifest.select(manifest.order(seed=1))
labels = manifest.targets.to_pylist()
changed = Manifest.from_columns(manifest.paths, [int(labels[0] == 0), *labels[1:]])
shuffled.digest == manifest.digest, changed.digest == manifest.digest

# %% [markdown]
# So a digest names a list of samples, in any order. It covers neither the bytes of the images
# ([07.2](07_stage_a_dataset.ipynb#2-·-Measure-the-copy)) nor the names of the classes: label 0 may mean another class.
#
# The manifest is one JSON file:

# %%
path = setup.scratch / "train.json"
manifest.save(path)
print(path.read_text()[:500])

# %% [markdown]
# We time reading it, a walk for names and sizes, and one for names only, all warm:

# %%
import os

from smallfiles import measure


def names_and_sizes():
    return [os.stat(f"{folder}/{name}").st_size for folder, _, names in os.walk(source.root) for name in names]


walks = {"walk, names and sizes": names_and_sizes, "walk, names only": lambda: list(os.walk(source.root))}
print(measure.compare({**walks, "read": lambda: Manifest.load(path)}, rounds=7))

# %% [markdown]
# Names are quick, sizes are slow: each file is asked for its own. Here a walk for names even beats the JSON, but it
# gives no sizes, and targets only from class folders. On a cluster each question is usually a request to a server.
#
# > **Predict.** ImageNet's training set has 1,281,167 images in 1,000 folders. If listing a folder is one request, and
# > says which names are folders, how many does the walk with sizes send? And for names only?

# %%
guess = 100_000  # change me: requests of the walk with sizes

# %% [markdown]
# The folded cell counts them here, and scales to ImageNet.

# %% jupyter={"source_hidden": true}
from pathlib import PurePosixPath
from unittest import mock

from helpers.experiments.nb02 import IMAGENET

files = {str(source.root / path) for path in manifest.paths.to_pylist()}
known = files | {os.path.dirname(file) for file in files}
requests = {}
for name, walk in walks.items():
    with mock.patch("os.scandir", wraps=os.scandir) as listed, mock.patch("os.stat", wraps=os.stat) as sized:
        walk()  # both functions record their calls
    asked = [{str(call.args[0]) for call in calls.call_args_list} & known for calls in (listed, sized)]
    folders, sizes = map(len, asked)
    print(f"{name}, of the training images here: {folders} folders listed, {sizes} sizes asked for")
    requests[name] = 1_000 / (len(known) - len(files)) * folders + IMAGENET / len(files) * sizes
print("Requests to the metadata server for ImageNet's list:")
for name, number in {**requests, "your guess, with sizes": guess, "manifest (one file)": 1}.items():
    print(f"    {name:22} {number:13,.0f}")
above = {folder for path in manifest.paths.to_pylist() for folder in PurePosixPath(path).parents}
worksheet.note("02", inodes=len(manifest) + len(above))

# %% [markdown]
# Packing needs the sizes, and the manifest keeps them. One by one, 1.3 million requests of 2 ms take 43 minutes;
# `sources.load` keeps many in flight.

# %% [markdown] id="order" tags=["core"]
# ## 3 · Catch the wrong label order
#
# ImageNet's validation images are labelled by `ILSVRC2012_ID`, a number from 1 to 1000 in the development kit. Models
# from torchvision, timm and Keras sort the wnids instead: the label is the rank of the wnid, counted from 0.
#
# ![Image 1 has ID 490, the ID has wnid n01751748, and its rank among the sorted wnids, 65, is the label: sea snake. Crossed out: ID - 1 = 489, chainlink fence.](pictures/image_to_label.svg)
#
# The folded cell makes two copies of the same pictures: one official, and one in folders named by wnid, so we know the
# right labels.

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
# > trained on sorted wnids, is tested with them. What accuracy is reported: 90 %, 50 %, 2.5 % (chance among 40
# > classes), or less?

# %%
guess = 0.9  # change me: accuracy

# %% [markdown]
# **Your turn.** Write the right rule, as the picture shows. `wnid_of` maps an ID to its wnid; `in_order` is the sorted
# list of wnids.

# %%
wnid_of, in_order = devkit.wnid_of_id, sorted(devkit.wnid_of_id.values())


def yours(ilsvrc_id):
    return ilsvrc_id - 1  # change me: from `wnid_of` and `in_order`


# %%
guesses = {"ID - 1": ids - 1, "yours": [yours(each) for each in ids], "smallfiles": by_kit.targets}
accuracy = {name: (np.asarray(labels) == right).mean() for name, labels in guesses.items()}
for name, share in accuracy.items():
    print(f"label = {name:10} agrees with the folders for {share:6.1%} of the images")
chance = 1 / len(by_folder.classes)
print(f"your guess for ID - 1: {guess:.1%}; chance among {len(by_folder.classes)} classes: {chance:.1%}")

# %% [markdown]
# <details>
# <summary>The line</summary>
#
# `return in_order.index(wnid_of[ilsvrc_id])`
#
# </details>
#
# Here no class has the same place in both orders. So with `ID - 1` the accuracy is below chance, and the model looks
# broken ([mmpretrain 11](https://github.com/open-mmlab/mmpretrain/issues/11), [torchvision
# 484](https://github.com/pytorch/vision/issues/484)).
#
# To find the order of a manifest, look at images whose label is known. `check_label_order` does this:

# %%
names = [f"ILSVRC2012_val_{number:08d}.JPEG" for number in range(1, 5)]
for labels in (65, 970, 230, 809), (490, 361, 171, 822):  # sorted wnids and IDs of images 1 to 4
    print(labels, "→", imagenet.check_label_order(Manifest.from_columns(names, labels)))

# %% [markdown]
# You can now solve both tasks of [exercise 02](../exercises/02_describe_a_dataset.ipynb).

# %% [markdown] id="refuse" tags=["optional"]
# ## 4 · Refuse what is wrong
#
# *Optional, 5 minutes.* A manifest may also have the short form `{path: label}`.
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

from smallfiles.errors import SmallfilesError


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
# Only the last, cut off.

# %% [markdown] id="memory" tags=["core"]
# ## 5 · Count the memory of workers
#
# On Linux, up to Python 3.13, a DataLoader forks its workers, and all processes share the pages of memory. A page is
# copied only when a process writes to it. Workers only read the list, so it should cost nothing:

# %%
from torch.utils.data import Dataset


class ListOfPaths(Dataset):  # as torchvision's ImageFolder holds it
    def __init__(self, paths, labels):
        self.samples = list(zip(paths, labels))

    def __getitem__(self, index):
        path, label = self.samples[index]
        return path, label


# %% [markdown]
# **Your turn.** `Yours` holds no pairs, but still an object per path. Make it hold *columns*. `pa.array(values)` copies
# all values into a few buffers, and `array[i].as_py()` makes a Python object of value i. It is right if it gives the
# same samples, holds no list, and its bar below is as short as that of `columns`.

# %%
import pyarrow as pa


class Yours(Dataset):
    def __init__(self, paths, labels):
        self.paths, self.labels = paths, labels  # change me: two lists, to be columns

    def __getitem__(self, index):
        return self.paths[index], self.labels[index]  # change me: one value of each


# %% [markdown]
# The folded cell has our solution, and loads a large manifest in three ways:

# %% jupyter={"source_hidden": true}
import json

from helpers.experiments.nb02 import IMAGENET, list_bytes, long_manifest


class Columns(Dataset):
    def __init__(self, paths, labels):
        self.paths, self.labels = pa.array(paths), pa.array(labels)

    def __getitem__(self, index):
        return self.paths[index].as_py(), self.labels[index].as_py()


rows = 500 * setup.count
held = json.loads(long_manifest(setup.scratch, rows).read_text())["columns"]
kinds = {"list of paths": ListOfPaths, "yours": Yours, "columns": Columns}
datasets = {name: kind(held["path"], held["label"]) for name, kind in kinds.items()}
listed = list_bytes(datasets["list of paths"].samples)
print(f"the list of {rows:,} paths and labels: {listed / 1e6:.0f} MB")
same = all(tuple(datasets["yours"][row]) == datasets["list of paths"][row] for row in (0, 5, rows - 1))
lists = any(isinstance(each, list | tuple | dict) for each in vars(datasets["yours"]).values())
print(f"yours gives the same samples: {same}; holds no list: {not lists}")

# %% [markdown]
# Linux reports as `Private_Dirty` what a process has written to and shares with no other:

# %%
from pathlib import Path


def private_mb():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Private_Dirty")) / 1e6


# %% [markdown]
# > **Predict.** Four workers each read a quarter of the samples in random order. How much of the list has each copied
# > in the end: nothing, a quarter, or nearly all?

# %%
guess = 5  # change me: megabytes per worker, for the list of paths

# %% [markdown]
# The folded cell runs four workers for each, without garbage collection, which would write to objects too.

# %% jupyter={"source_hidden": true}
import numpy as np

from helpers.experiments.nb02 import copied_by_workers

few, many = rows // 80, rows // 4  # how many samples each of four workers has read
copied = {}
for name, dataset in datasets.items():
    found = copied_by_workers(dataset, rows, (few, many), private_mb)
    if name == "list of paths":
        copied[f"{name}, {few:,} reads"] = found[few]
    copied[f"{name}, {many:,} reads"] = found[many]
few_share = np.median(copied[f"list of paths, {few:,} reads"]) * 1e6 / listed
worst, _, columns = (np.median(copied[f"{name}, {many:,} reads"]) for name in datasets)
copied["size of the list"] = listed / 1e6
mb = [f"{float(f'{each:.2g}'):,g} MB" for each in (worst, listed / 1e6, columns)]
title = f"A worker copies {mb[0]} of a list of {mb[1]}, and {mb[2]} of columns"
axes = {"x": "memory copied by each worker (MB)", "dots": "workers", "base": "size of the list"}
note = f"{rows:,} samples"
show.figure(figures.bars(copied, title, **axes, note=note, groups=tuple(datasets), guess=guess, guess_of="list of paths"))
show.say(
    f"{few:,} reads, one in {rows // few} of the samples, already copy {few_share:.0%} of the list. "
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
# ([pytorch#13246](https://github.com/pytorch/pytorch/issues/13246)). Columns, as in a `Manifest`, have no object per path,
# and reading does not write to their buffers.
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
# `split_off` takes the same share of each class for validation. The rest is divided among the processes of a job.
#
# > **Predict.** A walk finds the images class by class. How many of ten classes does each of four processes see if it
# > takes a quarter of the rows in one piece? And if every fourth row?

# %%
guess = 5, 5  # change me: classes in one piece, classes in turn

# %%
processes = 4  # change me
train, val = manifest.split_off(0.1, seed=0)
labels = np.sort(train.targets)  # class by class, as a walk finds them
ways = {
    "In one piece": np.array_split(labels, processes),
    "In turn": [labels[rank::processes] for rank in range(processes)],  # rows rank, rank + processes, …
}
for name, pieces in ways.items():
    print(f"{name}, classes of each process:", *(len(np.unique(piece)) for piece in pieces))
print("your guess:", *guess, f"(rows: {len(train)} to train, {len(val)} to validate)")

# %% [markdown]
# The folded cell draws the rows, coloured by class.

# %% jupyter={"source_hidden": true}
from smallfiles.measure.drawing import empty_figure, styled

seen = sorted({len(np.unique(piece)) for piece in ways["In one piece"]})
once = f"{seen[0]} to {seen[-1]}" if len(seen) > 1 else seen[0]
title = f"A piece has {once} of {len(train.classes)} classes; in turn, processes see the same one at a time"
with styled():
    figure = empty_figure(3.4)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    panels = figure.subplots(2, sharex=True)
    for axes, (name, pieces) in zip(panels, ways.items()):
        rows_of = np.stack([piece[: len(labels) // processes] for piece in pieces])  # equally long
        image = axes.imshow(rows_of, aspect="auto", interpolation="nearest", cmap="viridis")
        axes.hlines(np.arange(1, processes) - 0.5, -0.5, rows_of.shape[1] - 0.5, color="white", lw=3)
        axes.set_title(name, loc="left", fontsize=9)
        axes.set(ylabel="process", yticks=range(processes))
    axes.set_xlabel("samples of a process, in the order of its rows")
    figure.colorbar(image, ax=list(panels), label="label (class)")
show.figure(figure, alt=f"Two panels of coloured rows. {title}.")

# %% [markdown]
# In one piece, a process's batches hold few classes. In turn, it meets all classes, but one after the other, and all
# processes the same one at a time. So loaders shuffle all rows anew in each epoch, then deal
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
# incomplete samples and stray files. Guesses and repairs stay notes.

# %%
config = sources.ManifestConfig(split=manifest.split or None, strict=True)
config.save(config.load(setup.path()), setup.scratch / "job.json")
show.command(config, "imagenet", "train.json")

# %% [markdown] id="key-points"
# ## Key points
#
# - Labels and captions are in folder names or in separate files.
# - Manifests with one digest list the same samples and targets (labels as numbers), in any order.
# - Label = rank of the sorted wnid, never `ID - 1`; check images whose label is known.
# - JSON that can be read may still be wrong.
# - Forked workers copy Python objects by reading them, but not columns.

# %% [markdown] id="quiz"
# ## Check yourself
#
# **1.** On a node, 4 processes each hold a list of 10 million paths (2 GB), and keep 8 workers. By how much does the
# memory grow at most? (a) 2 GB. (b) 8 GB. (c) 64 GB.
#
# <details>
# <summary>Answer</summary>
#
# **(c)**. Each of the 32 workers ends with a copy of nearly the whole list. (a) is one copy of the list, (b) what the
# 4 processes hold before any worker starts; sharing would add nothing.
#
# </details>
#
# **2.** A downloaded model reaches 76 % on a colleague's ImageNet validation set, less than 0.1 % on yours. What do
# you check first? (a) Its weights. (b) The order of the labels. (c) How images are normalised.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**. Less than guessing (0.1 %): with `ID - 1` right answers count as wrong. (a) They served the
# colleague. (c) lowers accuracy, but not below chance.
#
# </details>
#
# **3.** Two manifests have the same digest. What may differ? (a) One label. (b) The order of the rows. (c) One path.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**. A digest covers all paths and targets: (a) and (c) change it.
#
# </details>

# %% [markdown] id="next"
# ## Next
#
# [03 · Pack samples into Arrow](03_pack_arrow.ipynb) writes them into one file.
