# %% [markdown] id="top"
# # 14 · Wrap up
#
# **Minutes** 45 · **Machine** any Linux computer with two CPUs · **Needs** 01, 03, 07, and 11; 08, 12, and 13 help · **Data** 200
# synthetic images
#
# A folder arrives that nobody has seen before: a *delivery*. It is said to contain photographs of trees, with a mask for each
# photograph and a table. (In this notebook, they are synthetic shapes.) You look at it, pack the complete samples, decide how
# to store the whole survey, stage it, and train. At the end, you defend your decision with your own numbers.

# %% [markdown] id="questions"
# ## Questions
#
# - What is wrong with a delivery, and who decides what to do about it?
# - What does each of my numbers decide?
# - Which way of storing the data suits the survey, and on how many nodes?
# - Does loading limit *my* training?

# %% [markdown] id="objectives"
# ## After this you can
#
# - find the faults of a delivery before they become wrong samples,
# - make a decision from your own measurements,
# - bring a data set from a folder to a running training,
# - defend the decision, and say which number would change it.

# %% [markdown] id="setup"
# ## Set up
#
# `worksheet` contains *my numbers*, which you measured in the other notebooks.

# %% id="start"
import sys

sys.path.append("..")
from helpers import figures, show, start, worksheet

setup = start("14")

# %% [markdown]
# The next cell writes the delivery, with faults that the seed decides.

# %%
from helpers.delivery import delivered

seed = 2026  # change me: another seed is another delivery
delivery = delivered(setup.path(), setup.scratch / "delivery", seed).folder
paths = sorted(path.relative_to(delivery).as_posix() for path in delivery.rglob("*"))
print(*paths[:8], "…", sep="\n")

# %% [markdown] id="recall"
# > **Recall** (12). A worker fails with `unable to allocate shared memory`. Where do you look? Where do you look if a
# > worker was `killed by signal: Killed`?
#
# <details>
# <summary>Answer</summary>
#
# In the first case, look at the size of `/dev/shm`, which was full. Before PyTorch 2.10, such a worker was killed by a bus
# error instead. `Killed` is signal 9, so in the second case look at the memory limit of the job.
#
# </details>

# %% [markdown] id="look" tags=["core"]
# ## 1 · Look before you pack
#
# Read the README first. Then find out whether `sources.load` can read the folder as it is:

# %%
from smallfiles import sources
from smallfiles.errors import SourceError

print((delivery / "README.txt").read_text())
try:
    sources.load(delivery)
except SourceError as refusal:
    print(str(refusal).replace(f"{delivery}/", ""))

# %% [markdown]
# It refuses the folder, because a table names the samples, and nobody has said how the rows of the table belong to the
# files. You say that with *templates*: `image=images/{id}.jpg` means that the name of the image is the value of the column
# `id`, with the suffix `.jpg`. `label=species` makes the class of a sample from the column `species`.

# %%
table = delivery / "survey" / "trees.csv"
print(*table.read_text().splitlines()[:3], sep="\n")
columns = ("image=images/{id}.jpg", "mask=masks/{id}.png", "label=species")
source = sources.load(table, columns=columns)
print(*(note.replace(f"{delivery}/", "") for note in source.notes), sep="\n")

# %% [markdown]
# The notes name the files that are missing. Use them for your guess.
#
# > **Predict.** The table has 60 rows. How many of them belong to complete samples, which have a readable image and a mask?

# %%
guess = None  # your guess, complete samples: for example 50

# %%
import os
import tempfile
from dataclasses import replace
from pathlib import Path

from smallfiles.errors import SmallfilesError
from smallfiles.pack import PackConfig, pack

packed = Path(tempfile.mkdtemp(dir=setup.scratch)) / "trees.arrow"  # new whenever this cell runs
source = replace(source, notes=())  # they were printed above
try:
    pack(source, packed, PackConfig())
except SmallfilesError as error:
    show.error(error, without=f"{delivery}/")

# %% [markdown]
# `pack` refuses the table and names every missing file. Whether samples may be left out is a decision about the data. Ask
# the people who delivered the data. If they agree, pass `on_error="skip"` (in the shell: `--on-error skip`), and keep the list
# of what was left out.
#
# Its message misses two faults. First, one image is truncated. `pack` notices this only when it reads the image, and it
# stopped before that. Second, some images have no row.

# %% tags=["slide"]
report = pack(source, packed, PackConfig(on_error="skip"))
images = {path.stem for path in (delivery / "survey" / "images").glob("*.jpg")}
known = set(source.manifest.values["id"].to_pylist())
print(f"{report.samples} samples were packed, and {len(report.skipped)} rows were left out:")
print(*("  " + one.reason.replace(f"{delivery}/survey/", "") for one in report.skipped), sep="\n")
print("images without a row:", *sorted(images - known))

# %% [markdown]
# The *folded* cell draws how many rows, images, and masks belong to complete samples, and what the others lack:

# %% tags=["slide"] jupyter={"source_hidden": true}
masks = {path.stem for path in (delivery / "survey" / "masks").glob("*.png")}
whole = known - {Path(one.key).stem for one in report.skipped}
places = {"row": known, "image": images, "mask": masks}
faults = {"complete": whole, "truncated": known & images & masks - whole}
faults |= {f"no {name}": (known | images | masks) - there for name, there in places.items()}
counts = {
    f"{name}s": {fault: float(len(there & ids)) for fault, ids in faults.items() if there & ids}
    for name, there in places.items()
}
title = f"{len(known)} rows and {len(images)} images, but only {len(whole)} complete samples"
figures.bars(counts, title, x="rows, images, masks", guess=guess, counted=True)

# %% [markdown]
# There are as many rows as images, and yet some rows and images have no partner. So compare names, never counts.
#
# You can now solve task 1 of [exercise 14](../exercises/14_wrap_up.ipynb).

# %% [markdown] id="decide" tags=["core"]
# ## 2 · Decide with your numbers
#
# The whole survey has 500,000 trees. It lies on a shared file system, and you train on up to 64 nodes for 10 epochs. A
# node has 4 GPUs, and each GPU needs 64 trees for a step of 50 ms.
#
# First we collect your numbers. Numbers that take only seconds to measure are measured now. If a number is still missing,
# we use the recorded one, which comes from a virtual machine with two cores. If you measured `01 latency_ms` on a local disk,
# measure it again on the shared file system.

# %%
worksheet.measure_missing(setup.path())


def mine(notebook, name):
    """Return my number, or the recorded one if I have not measured it."""
    return worksheet.value(notebook, name, worksheet.recorded(notebook, name))


# %% [markdown]
# The next cell says for three of your numbers what they decide. Which of your numbers tells you whether the CPUs of a node can
# feed its GPUs: `08 images_per_s` or `08 cpu_ms`?

# %%
trees, sample_bytes = 500_000, report.payload_bytes // report.samples
planned, node_needs = 10, 4 * 64 / 0.05  # change me: epochs; trees/s that a node's GPUs process
opens, gone = mine("01", "opens_per_s"), worksheet.missing()
file_s = mine("01", "latency_ms") / 1000  # to open and read a file


def say_what_they_decide(decided):
    rows = [f"| {n}{' (recorded)' * (n in gone)} | {text} |" for n, text in decided.items()]
    show.say("\n".join(["| my number | what it decides |", "|---|---|", *rows]))


say_what_they_decide({
    "01 latency_ms": f"files: {2 * node_needs * file_s:.1f} workers of a node always wait for one",
    "01 opens_per_s": f"files: a node reads {opens / 2:,.0f} trees/s, and needs {node_needs:,.0f}",
    "08 cpu_ms": f"a node needs {node_needs * mine('08', 'cpu_ms') / 1000:.1f} CPUs for decoding",
})

# %% [markdown]
# The answer is `08 cpu_ms`, in the last line. It is valid for any number of CPUs of this kind. If a node needs more CPUs than it has, decoding limits you, whatever the format is.
# [08](08_keep_the_gpu_fed.ipynb) shows how to decode less. (Decoding the masks needs CPU time, too.)
#
# The first two lines hold for one node that reads plain files. The opens per second are a limit *per node*: if a node cannot
# open files fast enough for its own GPUs, these GPUs wait, no matter how many nodes you use.
#
# *Optional.* The *folded* cell shows what your other numbers decide.

# %% jupyter={"source_hidden": true}
say_what_they_decide({
    "02 inodes": f"files: {2 * trees:,} inodes, {2 * trees / mine('02', 'inodes'):,.0f} times the set of notebook 02",
    "03 rows_per_batch": f"Arrow: at most {mine('03', 'rows_per_batch')} rows per record batch",
    "04 layout": f"an HDF5 file gets the layout {mine('04', 'layout')}",
    "05 shard_images": f"shards of {100 * mine('05', 'shard_images'):,} trees: opening them needs about 1 % of the time",
    "07 break_even_epochs": f"on the one node of notebook 07, a copy paid off after {mine('07', 'break_even_epochs'):.2g} epochs (64 nodes: see below)",
    "08 images_per_s": f"this machine feeds {mine('08', 'images_per_s') / node_needs:.0%} of a node",
    "09 in_flight": f"from an object store, keep {mine('09', 'in_flight'):.0f} requests in flight",
    "10 ranks_fed": f"from files, a node can feed {mine('10', 'ranks_fed'):.0f} ranks of 333 files/s, {mine('10', 'ranks_fed') * 333 / 2 / node_needs:.0%} of the trees that its GPUs need",
})

# %% [markdown]
# There is a second kind of limit: what all nodes *share*, namely the metadata servers and the storage targets. You measured
# your numbers on one node, so they say nothing about these servers. Ask your site, and put its numbers into the next cell. As
# in [notebook 11](11_choose_a_format.ipynb), the cell divides what the servers can do by what a tree costs. (One of your
# numbers does enter. A file takes two metadata operations, a look-up and an open, so the time of one operation is at most
# half of `01 latency_ms`.)

# %% tags=["slide"]
from smallfiles.scaling import WAYS, Storage, Work, simulate, ways_of

storage = Storage(latency_s=file_s / 2)  # change me: add metadata_ops_s=50_000, …
work = Work(samples=trees, sample_bytes=sample_bytes, decode_s=mine("08", "cpu_ms") / 1000)
work = replace(work, step_s=work.gpus * work.batch / node_needs)

bytes_s = sample_bytes / storage.target_bytes_s  # seconds of a target for the bytes of a tree
feeds = {  # trees per second for all nodes together
    "files: metadata": storage.metadata_ops_s / 4,  # a look-up and an open for image and mask
    "files: targets": storage.targets / (bytes_s + 2 * storage.request_s),
    "packed": storage.stripes / (bytes_s + 2 * storage.request_s),
    "shards": storage.targets / (bytes_s + sample_bytes / 1e6 * storage.request_s),  # reads of 1 MB
}
for name, rate in feeds.items():
    print(f"{name:16} {rate:9,.0f} trees/s feed {rate / node_needs:5.1f} nodes")
cpus = work.gpus * work.workers / work.decode_s
print(f"decoding: {work.workers} workers per GPU, {cpus:,.0f} trees/s; needed: {node_needs:,.0f}")

# %% [markdown]
# Read the table like this. If a way has several limits, the one with the fewest nodes counts, because a growing training meets
# it first. So for plain files, compare the first two lines. With the default storage, plain files and the packed file feed far
# fewer nodes than shards. A read of 1 MB from a shard brings several trees with their masks, while the other two ways read each
# image and each mask on its own. The last line is the limit of the CPUs in each node, if each GPU has 8 workers with a CPU each.
# If it is below the number that a node needs, decode less before you change the format.
#
# These divisions ignore that requests queue, and that a copy takes time. The simulation of notebook 11 includes both, so we now
# use it for whole trainings. A tree has two files, so it costs twice the operations of an image.

# %%
twice = {"files": {"operations": 4, "requests": 2}, "packed": {"requests": 2}}
ways = ways_of(sample_bytes) | {name: replace(WAYS[name], **twice[name]) for name in twice}
order = ("packed", "shards", "staged", "files")
for name in order:
    last = simulate(work, storage, ways[name], 64)
    busy = f"metadata servers are busy {last.use['metadata']:4.0%}"
    print(f"{name:7} {last.epoch_s:5.1f} s per epoch on 64 nodes, limited by {last.limit}; {busy}")

# %% [markdown]
# With the default storage, the targets limit files and the packed file. A sample needs two random reads, one for the image
# and one for the mask. Each read keeps a target busy for 0.5 ms, in addition to the time for its bytes. (The packed file
# stores images and masks in separate places, so it needs two reads, too.) Plain files also load the metadata servers; the
# packed file does not.
#
# Shards are faster, because their reads are long. They are limited by the targets, too, while a copy on each node needs no
# server at all.
#
# But with `staged`, each node first copies the survey, so the way with the shortest epochs is not always the fastest for a whole
# training. A *broadcast* ([notebook 07](07_stage_a_dataset.ipynb)) shortens the copy: one node reads the survey and sends it to
# the others. The next cell defines a function that adds the time of the copy to the epochs, and prints how long the copies
# need:


# %%
def whole_training(epochs=planned, work=work, storage=storage, nodes=64):
    """Return the seconds of a training for each way, with the time to copy."""
    found = {name: simulate(work, storage, way, nodes, epochs) for name, way in ways.items()}
    return {name: one.first_epoch_s + (epochs - 1) * one.epoch_s for name, one in found.items()}


copied, read = trees * sample_bytes / 1e9, storage.targets * storage.target_bytes_s / 1e9
print(f"Each of the 64 nodes copies {copied:.0f} GB, and needs this much free memory or disk.")
print(f"All targets deliver {read:.0f} GB/s together: the copies need {64 * copied / read:.0f} s.")

# %% [markdown]
# > **Predict.** After how many epochs have the copies paid off, compared with shards? Divide the seconds of the copies by
# > the seconds that they save per epoch (shards minus staged, above).

# %%
guess = None  # your guess, epochs: for example 5

# %% [markdown]
# The *folded* cell computes it, also for a broadcast, and draws the time of a whole training:

# %% tags=["slide"] jupyter={"source_hidden": true}
from smallfiles.measure.drawing import INK


def first_paid(copy):
    """Return the first number of epochs after which the copy is not slower than shards, or None."""
    way, shards = (simulate(work, storage, ways[name], 64) for name in (copy, "shards"))
    ahead = way.first_epoch_s - shards.first_epoch_s, shards.epoch_s - way.epoch_s
    return next((n for n in range(1, 10_000) if ahead[0] <= (n - 1) * ahead[1]), None)


paid = {name: first_paid(name) for name in ("staged", "broadcast")}
trained = {n: whole_training(n) for n in (1, 10, 20, 40, 60, 80)}
drawn = {name: {n: times[name] for n, times in trained.items()} for name in ("shards", "staged", "broadcast")}
now = whole_training()
title = f"Forecast for 64 nodes and {planned} epochs: the shortest way is {min(now, key=now.get)}"
assumed = f"a model: {storage.metadata_ops_s:,.0f} operations/s, {storage.targets} targets, {1000 * storage.request_s:g} ms per request"
axes = {"x": "epochs", "y": "seconds of training", "marks": {"planned": planned}}
drawing = figures.lines(drawn, title, **axes, guess=guess, note=f"{assumed}; ring: paid off", counted=True)
(axes,) = drawing.figure.axes
for name, n in paid.items():
    if n and n <= 80:
        axes.plot(n, whole_training(n)["shards"], "o", ms=9, mfc="none", mec=INK, zorder=6)
        axes.annotate(f"{n} epochs", (n, whole_training(n)["shards"]), (6, -14), textcoords="offset points", fontsize=9)
show.figure(drawing)
print(f"{planned} epochs:", ", ".join(f"{name} {seconds:,.0f} s" for name, seconds in now.items()))
for name, n in paid.items():
    print(f"{name:9} pays off against shards after {n:,} epochs" if n else f"{name} never pays off against shards")

# %% [markdown]
# With the default storage, the copies pay off only after about 55 to 60 epochs, and a broadcast after about 22. (A ring marks
# where.) You plan 10 epochs, so shards are the fastest way. The figure leaves out files and the packed file, because they need
# several times as long. The text below the figure lists their times, too.

# %% [markdown] id="pack" tags=["core"]
# ## 3 · Verify and stage
#
# Since section 1, our few samples are in one packed file. `verify` reads it again and compares every sample with what was
# written:

# %%
from smallfiles.pack import verify

checked = verify(packed)
print(f"{checked.samples} samples read again, problems: {checked.problems or 'none'}")

# %% [markdown]
# Now we copy the file to the node's local disk, or to `/dev/shm` (memory) if there is none. `leave_bytes` is the room that the
# copy must leave free. Linux counts in the file `/proc/self/io` how many bytes a process gets from disks, so we can count
# what a copy saves.
#
# Our small file was just read, so it is in the page cache, the memory in which Linux keeps files that were read. The
# survey on the shared storage may be too large for it. To imitate that, the next cell removes the packed file from the page
# cache before it reads an epoch. How many bytes does this epoch read from the disk, and how many does an epoch of the copy
# read?

# %%
from smallfiles import formats, staging


def forget(path):
    """Remove a file from the page cache, after its bytes have reached the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_epoch(path):
    """Read image and mask of every sample."""
    reader = formats.open(path)
    masks = reader.blob("mask")
    return len([bytes(reader.read(i)) + bytes(masks.read(i)) for i in range(len(reader))])


def bytes_from_disk():
    return int(dict(line.split(": ") for line in open("/proc/self/io"))["read_bytes"])


with staging.staged(packed, config=staging.StageConfig(leave_bytes=256 << 20)) as copy:
    forget(packed)
    for name, path in {"where it is": packed, "staged": copy.path}.items():
        before = bytes_from_disk()
        samples = read_epoch(path)
        print(f"{name:11} {samples} samples, {bytes_from_disk() - before:,} bytes from the disk")
print(f"The packed file has {packed.stat().st_size:,} bytes.")

# %% [markdown]
# Without the copy, the epoch reads the whole file from the disk. The epoch of the copy reads nothing, because the copy is
# still in memory. If both numbers are zero, your files are in memory, or on a network file system, whose bytes
# `/proc/self/io` does not count.
#
# On one node, a copy helps only if the survey does not fit into the page cache. Then each epoch reads the survey from the copy
# instead of from the shared storage. Such a copy must be on a local disk, because it does not fit into memory. On many nodes, a
# copy can help even if the survey fits into the page cache, because in each epoch a node gets samples that it has not read yet
# ([07](07_stage_a_dataset.ipynb)).
#
# You can now solve tasks 2 and 3 of [exercise 14](../exercises/14_wrap_up.ipynb).

# %% [markdown] id="train" tags=["core"]
# ## 4 · Train, and look at the waiting
#
# A batch contains images and their masks. Both get the same `view`, so they are cropped together. It also contains the column
# `height_m`, and the ids. All ids of a batch are one byte string, with a list of the positions where each id begins. The cell
# prints the type and the shape of each array:

# %%
from smallfiles.images import RandomResizedCrop
from smallfiles.loading import Image, LoaderConfig, Mask, make_loader

view = RandomResizedCrop(96)
fields = {"image": Image(view), "mask": Mask(view)}
batch = next(iter(make_loader(packed, LoaderConfig(batch=8), fields=fields)))
for field, value in batch.items():
    if hasattr(value, "dtype"):
        print(f"{field:10} {value.dtype} {tuple(value.shape)}")

# %% [markdown]
# A training waits if the next batch is not ready when a step ends. In plain PyTorch, you measure it with two clocks around
# `next`:
#
# ```python
# batches, waited, began = iter(loader), 0.0, time.perf_counter()
# while True:
#     asked = time.perf_counter()
#     batch = next(batches, None)          # the training waits here
#     waited += time.perf_counter() - asked
#     if batch is None:
#         break
#     step(batch)                          # on a GPU, end it with torch.cuda.synchronize()
# print(waited / (time.perf_counter() - began))
# ```
#
# `train` of the toolbox does the same, but leaves out the first batch of each epoch. Without workers, the training itself
# makes every batch, so it waits for each of them.
#
# If other programs run on this machine, the two clocks are less reliable, but the processor time hardly changes. So we estimate
# the waiting a second way: the processor time of making the batches, divided by that of the whole training. The first cell
# trains with two workers and without. The second cell only makes the batches.
#
# > **Predict.** What percentage of its time does this training wait without workers?

# %%
guess = None  # your guess, percent: for example 50

# %%
import time

import torch

from smallfiles.training import TrainConfig, train

threads = torch.get_num_threads()
torch.set_num_threads(1)  # one CPU trains, so that the other one can load
waits, cpu_s = {}, {}
for workers in (2, 0):  # 0 last: the first training also imports what it needs
    loader = LoaderConfig(batch=4, workers=workers, mode="main" if workers == 0 else "threads")
    began = time.process_time()
    done = train(packed, config=TrainConfig(loader=loader, target="mask", size=64, epochs=3))
    cpu_s[workers] = time.process_time() - began
    waits[f"{workers} workers"] = [round(100 * epoch.waiting_share, 1) for epoch in done.epochs]
torch.set_num_threads(threads)

# %%
small_view = RandomResizedCrop(64)  # the size that the training above uses
alone = LoaderConfig(batch=4, workers=0, mode="main")
batches = make_loader(packed, alone, fields={"image": Image(small_view), "mask": Mask(small_view)})
began = time.process_time()
for epoch in range(3):
    for batch in batches:  # without training
        pass
expected = 100 * (time.process_time() - began) / cpu_s[0]
print(f"Making the batches needs {expected:.0f} % of the processor time.")

# %% [markdown]
# Without workers, one process both makes the batches and trains. So it should wait for about this percentage of its time.
#
# The *folded* cell draws the measured share of waiting in each epoch:

# %% jupyter={"source_hidden": true}
from statistics import median

title = f"Without workers, the training waits {median(waits['0 workers']):.0f} % of its time ({expected:.0f} % expected)"
marks = {"expected without workers": expected}
figures.bars(dict(sorted(waits.items())), title, x="share of the time spent waiting (%)", dots="epochs", guess=guess, guess_of="0", marks=marks, note="without the first batch of each epoch")

# %% [markdown]
# Making a batch needs less processor time than a step. So two workers (threads in this case) make the next batches during a
# step, and the training hardly waits: on a calm machine, we measured less than 1 %. On a busy machine the workers do not get
# a CPU of their own, and some waiting remains. A GPU makes the steps shorter, but not the decoding. So two workers may be too
# few there.

# %% [markdown] id="profile" tags=["optional"]
# ### Watch your own training
#
# *Optional, 6 minutes.* `smallfiles profile` runs a training without changing it, and says whether loading limits it. If you
# have no training at hand, it watches a stand-in with one worker. This worker needs 32 ms for a batch, and a step needs 10 ms.
#
# **Your turn.** If you have a training here, name it below. It may run for a minute or two, and the report appears when
# it ends.

# %%
program = []  # change me: what starts your training, such as ["python", "/path/to/train.py"]

# %% [markdown]
# The *folded* cell writes the stand-in and runs `smallfiles profile -- …`:

# %% jupyter={"source_hidden": true}
import subprocess

STAND_IN = """
import sys
import time
import torch
from torch.utils.data import DataLoader, Dataset

class Waits(Dataset):
    def __len__(self):
        return 600
    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.zeros(3, 32, 32)

began = time.perf_counter()
for batch in DataLoader(Waits(), batch_size=8, num_workers=int(sys.argv[1]), multiprocessing_context="fork"):
    time.sleep(0.01)
print(f"{time.perf_counter() - began:.1f} s")
"""
_ = (setup.scratch / "stand_in.py").write_text(STAND_IN)

stand_in = [sys.executable, setup.scratch / "stand_in.py"]
chosen = program or [*stand_in, "1"]
watch = [sys.executable, "-m", "smallfiles", "profile", "--seconds", "300" if program else "3", "--", *chosen]
where = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
told = subprocess.run(watch, env=where, capture_output=True, text=True).stderr
print(*(line for line in told.splitlines() if "unknown" not in line), sep="\n")

# %% [markdown]
# For a few steps, `profile` prepares the batches in advance. During these steps, training never waits, so `profile` can measure
# its speed without waiting. The *headroom* compares this with the real speed: 2 means that training could be twice as fast. *Other* is work that
# is neither reading nor decoding, here the 4 ms for which the worker sleeps per sample. The verdict names the limit and proposes what to do. The *folded* cell runs
# the stand-in with one worker and with the proposed number of workers:

# %% jupyter={"source_hidden": true}
import re

proposed = re.search(r"num_workers=(\d+)", told)
if not program:
    print(f"it proposes {proposed[1] if proposed else 'no number of'} workers")
for workers in ("1", proposed[1]) if proposed and not program else ():
    done = subprocess.run([*stand_in, workers], capture_output=True, text=True)
    computed = 75 * max(0.01, 0.032 / int(workers))  # 75 batches: steps, or batches of several workers at once
    print(f"num_workers={workers}: an epoch needs {computed:.1f} s, computed; {done.stdout.strip()}, measured")

# %% [markdown]
# <details>
# <summary>Why this number, and why is the gain smaller than the headroom?</summary>
#
# A step needs 10 ms and a batch needs 32 ms, so four workers make a batch per step. `profile` adds a spare one. The
# workers mostly sleep, so there may be more of them than CPUs. The headroom and the computed times do not include the start
# of the workers, which matters less in a longer epoch. On a busy machine, their start may take longer than they save here.
#
# </details>

# %% [markdown] id="defend" tags=["core"]
# ## 5 · Defend your decision
#
# Here are all your numbers. You need them for your argument.

# %%
worksheet.page()

# %% [markdown]
# **Your turn.** Write down which way you defend for 64 nodes, and which number decides: for example the seconds of your way
# and of the next best, which section 2 printed below its figure.

# %%
way = None  # change me: "files", "packed", "shards", "staged", or "broadcast"
because = f"{planned} epochs need … s"  # change me: the number that decides

# %% [markdown]
# The *folded* cell compares your way with the forecast:

# %% jupyter={"source_hidden": true}
times = whole_training()
best = min(times, key=times.get)
if way not in ways:
    show.say(f"You have not decided yet: write one of {', '.join(ways)} in place of {way!r} above, and run both cells.")
else:
    limits = {name: simulate(work, storage, ways[name], 64).limit for name in (way, best)}
    wasted = 64 * work.gpus * (times[way] - times[best]) / 3600
    show.say(
        f"You defend **{way}** for {trees:,} trees, because {because}. On 64 nodes, {planned} epochs need {times[way]:,.0f} s, limited by {limits[way]}. "
        + (
            "No other way is shorter."
            if way == best
            else f"The shortest way is **{best}** with {times[best]:,.0f} s, limited by {limits[best]}, so yours costs {wasted:,.1f} GPU-hours more."
        )
        + f" Files need {times['files']:,.0f} s and {2 * trees:,} inodes."
    )

# %% [markdown]
# Would your decision hold if one of the numbers were wrong? We change one number at a time.
#
# > **Predict.** How many of these five changes make another way the shortest: a tenth of the operations per second, a
# > tenth of the time per request, the packed file on one target, four nodes, ten times the epochs?

# %%
guess = None  # your guess: for example 3

# %% tags=["slide"]
ops_s, request_s = storage.metadata_ops_s, storage.request_s
changes = {  # change me: add the number that you doubt most
    "as it is": {},
    "a tenth of the operations/s": {"storage": replace(storage, metadata_ops_s=ops_s / 10)},
    "a tenth of the time per request": {"storage": replace(storage, request_s=request_s / 10)},
    "the file on one target": {"storage": replace(storage, stripes=1)},
    "on 4 nodes": {"nodes": 4},
    "10 times the epochs": {"epochs": 10 * planned},
}
results = {what: whole_training(**change) for what, change in changes.items()}
shortest = [min(times, key=times.get) for times in results.values()]
print(f"{'seconds of a training':31}", *(f"{name:>9}" for name in ways), "  shortest")
for (what, times), name in zip(results.items(), shortest):
    print(f"{what:31}", *(f"{seconds:9,.0f}" for seconds in times.values()), f"  {name}")
turned = sum(name != shortest[0] for name in shortest)
print(f"{turned} of {len(changes) - 1} changes make another way the shortest")

# %% [markdown]
# With the default storage, only more epochs change the decision. In the row *as it is*, files and the packed file differ only
# by chance.
#
# - *A tenth of the operations* slows down files, and hardly anything else.
# - *A tenth of the time per request*, as on flash storage, helps the packed file most.
# - *One target* for a file is a common default of Lustre. Training from the packed file, and copying it to each node, become
#   about 20 times slower. With a broadcast, it takes less than twice as long as with 24 targets, because the file is read only
#   once. Stripe the folder *before* you pack into it.
# - *On 4 nodes*, the ways differ least. Even random reads from the targets almost keep up with four nodes, so the GPUs are nearly
#   the limit. Shards are the shortest, because staged and broadcast must copy first. A broadcast is the slowest copy here: the
#   targets can serve four nodes at once, but the broadcast sends the file from node to node.
# - *10 times the epochs* make a broadcast the shortest: the time to copy is paid once, and each of 100 epochs is shorter.
#
# The forecast of the broadcast assumes that `sbcast` uses the whole network. Measure on your cluster how long it takes. The
# forecast also ignores the page cache of the nodes. On 64 nodes, this matters little, because a node seldom reads a tree
# twice in 10 epochs. With 4 nodes, or with 100 epochs, it matters more.
#
# You can now solve task 4 of [exercise 14](../exercises/14_wrap_up.ipynb).

# %% [markdown] id="exercise"
# ## Exercise
#
# In [Exercise 14](../exercises/14_wrap_up.ipynb), you find the faults of another delivery, pack it, and defend your
# decision.

# %% [markdown] id="cluster"
# ## On the cluster
#
# The *folded* cell shows the commands of *your* way:

# %% jupyter={"source_hidden": true}
from smallfiles.formats import tar
from smallfiles.staging import StageConfig

taken = way if way in ways else None
out = "trees.tars" if taken == "shards" else "trees.arrow"
first = "" if taken == "shards" else "lfs setstripe -c -1 FOLDER   # on Lustre, before packing into FOLDER\n"
fields = " ".join(f"--field '{column}'" for column in columns)
how = {"shuffle": seed, "options": tar.Options(max_bytes=100_000_000)} if taken == "shards" else {}
command = f"{PackConfig(on_error='skip', **how).to_cli('survey/trees.csv', out)} {fields}"
if taken is None:
    say = "Decide in section 5. Then run this cell again, and the commands of your way appear here. Until then, ask `advise`:"
    show.say(f"{say}\n\n```bash\nsmallfiles advise survey/trees.csv --nodes 64 --epochs {planned} {fields}\n```")
    show.say("`advise` counts one read per sample, but a tree needs two. It also counts only the files that it finds, so run it on the whole survey. Section 2 counts both reads, so trust section 2 where they disagree.")
else:
    show.say("Your way is files, so nothing is packed, and `inspect` below does not apply." if taken == "files" else f"```bash\n{first}{command}\n```")
if taken == "shards":
    show.say(f"{64 * work.gpus * work.workers:,} workers need as many shards, or a loader that splits shards as ours does.")
if taken in ("staged", "broadcast"):
    show.say(f"```bash\n{StageConfig().to_cli(out)}{' --broadcast' * (taken == 'broadcast')}\n```")

# %% [markdown]
# ```bash
# smallfiles inspect trees.arrow --picture sheet.html    # or trees.tars: look at image and mask
# smallfiles profile -- python train.py                  # or as a job: slurm/submit SITE 12_profile
# ```

# %% [markdown] id="key-points"
# ## Key points
#
# - Compare rows, images, and masks by name before you pack, because equal counts can hide gaps.
# - `pack` refuses missing files. Leaving samples out is a decision, so write it down.
# - Your own numbers decide about one node. What all nodes share, your site must tell you.
# - A copy costs its time once, so compare whole trainings, not epochs.
# - A packed file is only as fast as its targets, so stripe its folder before you pack.
# - In the end, only the share of waiting in your own training counts. `smallfiles profile` measures it.

# %% [markdown] id="quiz"
# ## Check yourself
#
# **1.** A table has 60 rows, and a folder has 60 images. May you pair them in order? (a) Yes, the counts agree. (b) Yes,
# after sorting. (c) No, join them by name.
#
# <details>
# <summary>Answer</summary>
#
# **(c)**. Here, two rows have no image and two images have no row, and yet the counts agree. (b) After sorting, a gap
# shifts all the pairs that follow.
#
# </details>
#
# **2.** Your forecast says that the GPUs are the limit, for shards and for one packed file. Which do you choose? (a)
# Shards. (b) One file. (c) Either of them.
#
# <details>
# <summary>Answer</summary>
#
# **(c)**. Both keep the GPUs busy, so let other needs decide. Choose one file if you need random access, and shards if you
# stream from an object store.
#
# </details>
#
# **3.** A copy needs 60 s and saves 2 s per epoch, and you train 10 epochs. (a) Stage, because each epoch is shorter. (b)
# Do not stage. (c) Stage, because from the second epoch on the copy is free.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**. The copy pays off after 30 epochs. (a) Ten shorter epochs save 20 s, but the copy needs 60 s. (c) It is true that the
# copy is free from the second epoch on, but ten epochs save less than it costs.
#
# </details>

# %% [markdown] id="next"
# ## Next
#
# Next comes your own training. Keep the page with your numbers. When something breaks, look it up in
# [12](12_when_it_breaks.ipynb).
