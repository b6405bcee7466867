# %% [markdown] id="top"
# # 02 · Describe a data set with a JSON manifest
#
# **Minutes** 45 · **Machine** any Linux computer with two CPUs · **Needs** notebook 00 · **Data** small copies with
# synthetic pictures
#
# Before a program can read images, it needs a list of all samples with their targets (classes or captions). Many programs
# make this list each time they start, by searching all folders. A *manifest* is the same list, written to a file once.

# %% [markdown] id="questions"
# ## Questions
#
# - Where do ImageNet and Flickr30K keep their labels and captions?
# - How do I notice that labels are in the wrong order?
# - Why does the memory of DataLoader workers grow, although they only read?

# %% [markdown] id="objectives"
# ## After this you can
#
# - make a manifest of a folder tree, a tar file, ImageNet or Flickr30K,
# - identify a data set by its set digest,
# - distinguish the two label orders of ImageNet,
# - explain why workers copy a list of paths, and avoid the copies,
# - split a data set, and divide it among processes.

# %% [markdown] id="setup"
# ## Set up

# %% id="start"
import sys

sys.path.append("..")
from helpers import figures, show, start, worksheet

setup = start("02")

# %% [markdown] id="recall"
# > **Recall** (00). 256 processes import torch from a parallel file system. Why does it take so long until the first image
# > is read, and what is the remedy?
#
# <details>
# <summary>Answer</summary>
#
# Each of the 256 processes opens more than a thousand files, and one server must answer all the requests. The remedy is to
# put the whole environment into one file.
#
# </details>

# %% [markdown] id="walk" tags=["core"]
# ## 1 · Walk once, write down what is there
#
# `sources.load` recognises the layout of a data set and searches its folders once. It returns the manifest, and a *store*,
# which reads the bytes of the samples. For the course's data, we use `setup.source`, which calls `sources.load`.

# %%
from smallfiles import sources
from smallfiles.manifest import Manifest

source = setup.source()
manifest = source.manifest
manifest

# %%
manifest.table.slice(0, 2).to_pylist()

# %% [markdown]
# Each row describes one sample. The `path` is also the name of the sample, which is called its *key*. The `label` is the
# *target* of the sample. It is the position of the class in a list of classes. `bytes` is the size of the file.
#
# The next cell loads the validation images of four data sets. Three of them are small copies of ImageNet in different
# layouts. The first has one folder per class, the second is like the download from Kaggle, and the third consists of the
# official tar files. The fourth data set is Flickr30K, whose photographs have captions.
#
# In which of the four does the path of a validation image contain its class or its caption?

# %% tags=["slide"]
for layout, data in setup.data.items():
    found = setup.source(layout, split=None if data.layout == "real" else "val")
    print(f"{found.kind}: {len(found.manifest)} samples, first {found.manifest.path(0)}")
    for note in found.notes:
        print("    note:", note)

# %% [markdown]
# Only the paths with class folders contain the class. Each of these folders is named by a *wnid* such as `n01440764`, which
# is WordNet's name of a class. In the other three layouts, the classes or captions are in a separate file. The download
# from Kaggle has a CSV file. The official tar files need ImageNet's *development kit*, which is another archive. Flickr30K
# has a file of captions.
#
# The lines that begin with `note:` say what `sources.load` guessed, repaired or skipped. For example, Flickr30K's file of
# splits does not list all images.
#
# Flickr30K contains its captions twice, in `results.csv` and in a file whose name ends in `.token`. In one row of
# `results.csv`, a delimiter is missing. We make a manifest from each file, and print its *set digest*, which is a
# fingerprint of all paths and targets.
#
# Do the two files describe the same data set?

# %%
flickr = setup.path("flickr30k")
for name, file in {file.name: file for file in flickr.rglob("results*")}.items():
    found = sources.load(flickr, split="all", labels=file)
    repairs = [note for note in found.notes if "repaired" in note]
    print(f"{name:24} {found.manifest.digest[:23]}…", *repairs)

# %% [markdown]
# The set digests are equal. So the broken row was repaired correctly, and both files describe the same data set.

# %% [markdown] id="write" tags=["core"]
# ## 2 · Write it down, name it
#
# A set digest identifies a data set. We make two copies of the manifest. We shuffle the rows of the first copy, and change
# one label in the second copy.
#
# Which copy still has the same set digest (prints `True`)?

# %% tags=["slide"]
shuffled = manifest.select(manifest.order(seed=1))
labels = manifest.targets.to_pylist()
other = 1 if labels[0] == 0 else 0  # a wrong label for the first sample
changed = Manifest.from_columns(manifest.paths, [other, *labels[1:]])
shuffled.digest == manifest.digest, changed.digest == manifest.digest

# %% [markdown]
# Only the shuffled copy has the same set digest, because the digest depends on all paths and targets, but not on their
# order. It does not depend on the names of the classes or on the bytes of the images. For the bytes, a packed file has a
# *content digest* ([03.5](03_pack_arrow.ipynb#5-·-Kill-a-pack,-and-trust-what-is-there)).
#
# Now we save the manifest as a JSON file and look at its beginning:

# %%
path = setup.scratch / "train.json"
manifest.save(path)
print(path.read_text()[:500])

# %% [markdown]
# The file begins with a header. Below the header, each column of the manifest is a list with one entry per sample.
#
# A program that reads this file does not have to search through all folders. Such a search is called a *walk*. What does a
# walk cost? We count its requests to the metadata server.
#
# ImageNet's training set has 1,281,167 images in 1,000 folders. To list a folder, a walk sends one request. The answer
# contains the names of all images in that folder. So a walk that collects only names sends about 1,000 requests.
#
# > **Predict.** A second walk also asks for the size of each image. How many requests does it send?

# %%
guess = None  # your guess: requests of the walk with sizes

# %%
import os

from smallfiles import measure


def names_and_sizes():
    tree = os.walk(source.root)
    return [os.stat(f"{folder}/{name}").st_size for folder, _, names in tree for name in names]


walks = {"walk, names and sizes": names_and_sizes}
walks["walk, names only"] = lambda: list(os.walk(source.root))

# %% [markdown]
# The folded cell runs both walks on the course's small copy, counts their requests, and scales the counts to ImageNet. At
# the end, it saves the number of files and folders of this copy for notebook 14.

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
for name, number in {**requests, "manifest (one file)": 1}.items():
    print(f"    {name:22} {number:13,.0f}")
print("    your guess, with sizes:", guess)
above = {folder for path in manifest.paths.to_pylist() for folder in PurePosixPath(path).parents}
worksheet.note("02", inodes=len(manifest) + len(above))

# %% [markdown]
# A walk with sizes sends one more request for each image, which makes about 1.3 million requests. If a request takes 2 ms
# and the walk sends one after the other, this takes 43 minutes. A program that packs the images needs the sizes, and finds
# them in the manifest.
#
# On this machine, Linux answers the requests from its memory. How long do the two walks take here, and how long does it
# take to read the manifest?

# %%
print(measure.compare({**walks, "read the manifest": lambda: Manifest.load(path)}, rounds=5))

# %% [markdown]
# Here, the walk for names may be faster than reading the manifest. But this walk does not find the sizes, and it finds
# targets only if the folders are named by class.

# %% [markdown] id="order" tags=["core"]
# ## 3 · Catch the wrong label order
#
# ImageNet's development kit labels each validation image with an `ILSVRC2012_ID`, a number from 1 to 1000. Models from
# torchvision, timm and Keras use other numbers. For these models, the label of a class is the position of its wnid in the
# sorted list of all 1,000 wnids, counted from 0. This position is called the *rank* of the wnid.
#
# The picture shows how to find the label of image 1. The development kit contains the ID of the image, and the wnid of each
# ID. The rank of the wnid is the label.
#
# ![Image 1 has ID 490, the ID has wnid n01751748, and its rank among the sorted wnids, 65, is the label: sea snake. Crossed out: ID - 1 = 489, chainlink fence.](pictures/image_to_label.svg)
#
# The folded cell makes two copies of the same synthetic pictures. One copy has the official layout with a development kit.
# In the other copy, the folders are named by wnid, so we know the right labels. Both copies have only 40 classes, so their
# IDs and labels differ from those in the picture.

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
# The output shows IDs from the development kit, and the labels that `sources.load` made from them.
#
# A colleague writes `label = ID - 1` instead. All these labels are in the right range, so there is no error message. With
# these labels, the colleague tests a perfect model. The model was trained with the ranks as labels, and it recognises every
# image.
#
# > **Predict.** What accuracy does the test report: 90 %, 50 %, 2.5 % (chance among 40 classes), or less?

# %%
guess = None  # your guess: accuracy in percent

# %% [markdown]
# **Your turn.** Write the correct rule, as the picture shows it. `wnid_of` maps an ID to its wnid, and `in_order` is the
# sorted list of wnids.
#
# The cell below yours compares the labels of three rules with the right labels. A perfect model predicts the right labels,
# so the share of equal labels is the accuracy that the test reports.

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
print(f"your guess for ID - 1: {guess}; chance of {len(by_folder.classes)} classes: {chance:.1%}")

# %% [markdown]
# <details>
# <summary>The line</summary>
#
# `return in_order.index(wnid_of[ilsvrc_id])`
#
# </details>
#
# In these copies, no class has the same position in both orders. So with `ID - 1`, all labels are wrong, and the reported
# accuracy is 0 %. This is even below chance. The model looks broken, but only the labels are wrong. Users of other projects
# had this problem, too ([mmpretrain 11](https://github.com/open-mmlab/mmpretrain/issues/11), [torchvision
# 484](https://github.com/pytorch/vision/issues/484)).
#
# To find out which order a manifest uses, look at images whose label you know. `check_label_order` knows the labels of a
# few images of the real ImageNet. We call it with images 1 to 4, first with their ranks as labels and then with their IDs:

# %% tags=["slide"]
names = [f"ILSVRC2012_val_{number:08d}.JPEG" for number in range(1, 5)]
for labels in (65, 970, 230, 809), (490, 361, 171, 822):  # sorted wnids and IDs of images 1 to 4
    print(labels, "→", imagenet.check_label_order(Manifest.from_columns(names, labels)))

# %% [markdown]
# `sorted` means that the labels are the ranks of the sorted wnids, so the first labels are right. The second labels are the
# IDs from the development kit, which are counted from 1. For `ID - 1`, the answer would be `devkit`.
#
# You can now solve both tasks of [exercise 02](../exercises/02_describe_a_dataset.ipynb).

# %% [markdown] id="refuse" tags=["optional"]
# ## 4 · Refuse what is wrong
#
# *Optional, 5 minutes.* A manifest can also have a short form, `{path: label}`. People write such files by hand, and make
# mistakes.
#
# Which of these eight files does `json.loads` refuse?

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
# The folded cell reads each text with `json.loads`. Below the result, it prints what `Manifest.load` says about a file with
# this text:

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
# `json.loads` refuses only the last one, which is truncated. The other seven are valid JSON, but they are wrong as
# manifests. For example, the first one has two labels for the same image, and `json.loads` silently keeps the second label.
# `Manifest.load` refuses all eight and says why.

# %% [markdown] id="memory" tags=["core"]
# ## 5 · Count the memory of workers
#
# Up to Python 3.13, a DataLoader on Linux *forks* its workers. At the start, a forked worker shares all memory with the
# training process. Linux divides memory into *pages* of 4 kB, and copies a page only when one of the processes writes to
# it. Workers only read the list of samples, so it seems that they need no memory for it. We test this with a list like that
# of torchvision's `ImageFolder`:

# %% tags=["slide"]
from torch.utils.data import Dataset


class ListOfPaths(Dataset):
    def __init__(self, paths, labels):
        self.samples = list(zip(paths, labels))

    def __getitem__(self, index):
        path, label = self.samples[index]
        return path, label


# %% [markdown]
# **Your turn.** The class `Yours` below stores two lists. They still have one Python object per path. Replace the two lists
# by two Arrow arrays, which are called *columns*. `pa.array(values)` copies all values into a few buffers, and
# `array[i].as_py()` makes a Python object from the value at position `i`. Your class is correct if it returns the same
# samples and contains no list.

# %%
import pyarrow as pa


class Yours(Dataset):
    def __init__(self, paths, labels):
        self.paths, self.labels = paths, labels  # change me: make columns of these lists

    def __getitem__(self, index):
        return self.paths[index], self.labels[index]  # change me: one value of each column


# %% [markdown]
# The folded cell contains our solution, the class `Columns`. It makes a data set of each class from the same long manifest,
# and it checks yours:

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
print(f"yours gives the same samples: {same}; contains no list: {not lists}")

# %% [markdown]
# How do we see what a worker has copied? When a worker writes to a shared page, it gets its own copy of this page. Linux
# counts these private copies as `Private_Dirty`:

# %%
from pathlib import Path


def private_mb():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    kb = [int(line.split()[1]) for line in lines if line.startswith("Private_Dirty")]
    return 1024 * sum(kb) / 1e6


# %% [markdown]
# Now each of four workers reads a quarter of the samples, in random order.
#
# > **Predict.** How much of the list of paths has each worker copied in the end: almost nothing, a quarter, or nearly all?
# > Give your guess in megabytes. The folded cell above printed the size of the list.

# %%
guess = None  # your guess: megabytes per worker, for the list of paths

# %% [markdown]
# The folded cell runs four workers with each of the three classes, and draws how much memory each worker has copied.
# Python's garbage collector also writes to objects, so we turn it off in the workers.

# %% tags=["slide"] jupyter={"source_hidden": true}
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
# In the end, each worker has copied nearly the whole list, although it read only a quarter of the samples. The reason is
# that reading also writes. Python counts the references to each object, and it stores this count *in the object*. When a
# worker reads a path, the count changes, so Linux copies the whole page:
#
# ```text
#                          a page of 4 kB: reference count and path of dozens of objects
# workers 1 and 2 share    | 1  path A | 1  path B | 1  path C | …
#
# worker 1 reads path B    | 1  path A | 2  path B | 1  path C | …      its own copy
# worker 2                 | 1  path A | 1  path B | 1  path C | …      the old page
# ```
#
# A page contains dozens of paths. So a quarter of the paths, in random order, is enough to copy nearly all pages, and even
# a few reads copy much of the list. This looks like a memory leak
# ([pytorch#13246](https://github.com/pytorch/pytorch/issues/13246)).
#
# A column has no object per path, so reading a path does not write to the column. A `Manifest` also consists of columns. If
# your class passed the check, its bar is as short as ours.
#
# Workers can also be *spawned*. A spawned worker is a new Python process, so it shares no memory with the training process.
# Instead, the data set is *pickled*, which means that it is converted to bytes, and these bytes are sent to each worker.
# From Python 3.14 on, the data set is pickled by default, because the training process no longer forks its workers.
#
# How many megabytes are sent to 8 workers for the list of paths, and how many for columns?

# %%
import pickle

for name, dataset in datasets.items():
    sent = 8 * len(pickle.dumps(list(vars(dataset).values())))
    print(f"{name:14} {sent / 1e6:6.1f} MB for 8 workers")

# %% [markdown]
# About as many bytes are sent for columns as for the list. So columns save memory in *forked* workers, but they do not
# reduce what is sent to spawned workers.
#
# It also takes memory and time to start a worker. The folded cell measures both, for forked and for spawned workers. The
# data set is a short or a long list of paths.

# %% jupyter={"source_hidden": true}
import time
import warnings

from torch.utils.data import DataLoader

warnings.filterwarnings("ignore", message="This DataLoader will create")


def start_workers(paths, workers, method):
    """Seconds until each worker has sent a sample, and the memory of a worker that no other process shares (MB)."""
    began = time.perf_counter()
    samples = iter(DataLoader(paths, batch_size=None, num_workers=workers, multiprocessing_context=method))
    for _ in range(workers):
        next(samples)
    seconds, private = time.perf_counter() - began, []
    for worker in samples._workers:
        lines = Path(f"/proc/{worker.pid}/smaps_rollup").read_text().splitlines()
        private.append(sum(int(line.split()[1]) for line in lines if line.startswith("Private")) / 1e3)
    return seconds, max(private)


for method, workers, length in [(m, n, k) for m in ("fork", "spawn") for n, k in ((1, 1_000), (1, rows), (2, rows))]:
    seconds, memory = start_workers(held["path"][:length], workers, method)
    print(f"{method:5} {workers} × {memory:4.0f} MB, started after {seconds:5.2f} s, with {length:7,} paths")

# %% [markdown]
# Each line shows the number of workers, the memory that a worker does not share, and the time until all workers have sent a
# sample. At the start, a forked worker shares almost all of its memory. A spawned worker imports PyTorch again. So it takes
# seconds to start, and it needs a few hundred megabytes before it reads its first sample. With the long list, it needs
# more, because each spawned worker has its own copy of the list.
#
# So keep the paths in columns. Set `multiprocessing_context="fork"`, as notebook 08 does. Do not
# fork workers that use CUDA, or a process whose other threads hold locks. Start the workers once (`persistent_workers=True`), not in each epoch.

# %% [markdown] id="divide" tags=["optional"]
# ## 6 · Divide it
#
# *Optional, 5 minutes.* A job with several GPUs has several processes. Each process trains with a part of the manifest's
# rows.
#
# First, `split_off` sets the same share of each class aside for validation. We divide the other rows among four processes
# in two ways. *In one piece* means that each process gets one contiguous quarter of the rows. *In turn* means that the rows
# are dealt like cards, so each process gets every fourth row.
#
# > **Predict.** A walk finds the images class by class. How many of the ten classes does each process see if it gets its
# > rows in one piece? And how many if it gets them in turn?

# %%
guess = None, None  # your guess: classes in one piece, classes in turn

# %% tags=["slide"]
processes = 4  # change me
train, val = manifest.split_off(0.1, seed=0)
labels = np.sort(train.targets)  # class by class, as a walk finds them
ways = {
    "In one piece": np.array_split(labels, processes),
    "In turn": [labels[first::processes] for first in range(processes)],
}
for name, pieces in ways.items():
    print(f"{name}, classes of each process:", *(len(np.unique(piece)) for piece in pieces))
print("your guess:", *guess, f"(rows: {len(train)} to train, {len(val)} to validate)")

# %% [markdown]
# The folded cell draws the rows of each process. The colour is the class.

# %% tags=["slide"] jupyter={"source_hidden": true}
from smallfiles.measure.drawing import empty_figure, styled, wrapped

seen = sorted({len(np.unique(piece)) for piece in ways["In one piece"]})
once = f"{seen[0]} to {seen[-1]}" if len(seen) > 1 else seen[0]
title = f"In one piece, a process sees {once} of {len(train.classes)} classes; in turn, all processes see the same class at the same time"
with styled():
    figure = empty_figure(3.6)
    figure.suptitle(wrapped(title), x=0.01, ha="left", fontsize=11, fontweight="bold")
    panels = figure.subplots(2, sharex=True)
    for axes, (name, pieces) in zip(panels, ways.items()):
        rows_of = np.stack([piece[: len(labels) // processes] for piece in pieces])  # equally long
        image = axes.imshow(rows_of, aspect="auto", interpolation="nearest", cmap="viridis")
        axes.hlines(np.arange(1, processes) - 0.5, -0.5, rows_of.shape[1] - 0.5, color="white", lw=3)
        axes.set_title(name, fontsize=9, fontweight="normal")
        axes.set(ylabel="process", yticks=range(processes))
    axes.set_xlabel("samples of a process, in the order of its rows")
    figure.colorbar(image, ax=list(panels), label="label (class)")
show.figure(figure, alt=f"Two panels of coloured rows. {title}.")

# %% [markdown]
# If each process gets its rows in one piece, it sees only a few classes. If the rows are dealt in turn, each process sees
# all classes. But it sees one class after the other, and all processes see the same class at the same time. So in each
# epoch, a loader first shuffles all rows, and then deals them to the processes ([08](08_keep_the_gpu_fed.ipynb)).

# %% [markdown] id="exercise"
# ## Exercise
#
# [Exercise 02](../exercises/02_describe_a_dataset.ipynb): build the validation manifest from a development kit, and write a
# function that detects the wrong label order.

# %% [markdown] id="cluster"
# ## On the cluster
#
# Make the manifest once, in a job, and keep it next to the data. Nobody reads notes in a job log. So set `strict`, which
# turns incomplete samples and stray files into errors. Guesses and repairs are still only notes. This is the command for
# your job:

# %%
config = sources.ManifestConfig(split=manifest.split or None, strict=True)
config.save(config.load(setup.path()), setup.scratch / "job.json")  # as the command below does
show.command(config, "imagenet", "train.json")

# %% [markdown] id="key-points"
# ## Key points
#
# - Labels and captions are in the names of folders, or in separate files.
# - Two manifests with the same set digest list the same samples and targets, in any order.
# - The label of an ImageNet class is the rank of its wnid among all sorted wnids, and never `ID - 1`. Check a manifest with
#   images whose label you know.
# - A file can be valid JSON and still be wrong.
# - Forked workers copy Python objects when they read them, but they do not copy columns. Each spawned worker gets a copy of
#   the whole data set.

# %% [markdown] id="quiz"
# ## Check yourself
#
# **1.** On a node, each of 4 processes has a list of 10 million paths (2 GB), and keeps 8 forked workers. By how much does
# the memory grow at most? (a) 2 GB. (b) 8 GB. (c) 64 GB.
#
# <details>
# <summary>Answer</summary>
#
# **(c)**. In the end, each of the 32 workers has a copy of nearly the whole list. (a) is one copy of the list. (b) is the
# memory that the 4 processes need before any worker starts. If the workers shared the list, the memory would not grow.
#
# </details>
#
# **2.** You download a model. Its accuracy is 76 % on a colleague's ImageNet validation set, and less than 0.1 % on yours.
# What do you check first? (a) The weights of the model. (b) The order of your labels. (c) How the images are normalised.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**. With `ID - 1` as labels, correct predictions are counted as wrong, so the accuracy is below chance (0.1 %). (a)
# The weights work for your colleague. (c) A wrong normalisation lowers the accuracy, but not below chance.
#
# </details>
#
# **3.** Two manifests have the same set digest. What can be different? (a) One label. (b) The bytes of an image. (c) One
# path.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**. The set digest depends on all paths and targets, so (a) and (c) would change it. It does not depend on what is in
# the files.
#
# </details>

# %% [markdown] id="next"
# ## Next
#
# [03 · Pack samples into Arrow](03_pack_arrow.ipynb) writes the samples of a manifest into one file.
