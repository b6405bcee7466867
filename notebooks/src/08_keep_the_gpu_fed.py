# %% [markdown] id="top"
# # 08 · Keep the GPU fed
#
# **Minutes** 40 · **Machine** any Linux computer with two CPUs, no GPU needed · **Needs** nothing · **Data** 240
# synthetic images
#
# A packed file delivers bytes as fast as memory. A GPU needs batches: decoded, cropped, scaled and stacked. The CPUs of
# your job do that work, and it usually decides how long the GPU waits. This notebook follows one batch, finds the
# bottleneck, and removes it.

# %% [markdown] id="questions"
# ## Questions
#
# - Where does the time of a batch go?
# - Which order of the same work is cheapest?
# - How many workers does a `DataLoader` need, and should they be processes or threads?
# - When does a ring of ready batches in memory help?
# - How do I know that training waits?

# %% [markdown] id="objectives"
# ## After this you can
#
# - plot where a batch's time goes, and name the stage to improve,
# - put decoding, cropping and scaling in the cheapest order,
# - choose a `DataLoader`'s settings by measuring,
# - build a ring buffer, use a safe one, and recognise when neither helps,
# - read the share of time that training spends waiting.

# %% [markdown] id="setup"
# ## Set up

# %% id="start"
import sys

sys.path.append("..")
from helpers import figures, show, start

setup = start("08")

# %%
import io
import time
from functools import partial
from statistics import median
from time import perf_counter

import numpy as np
import torch
from PIL import Image

# %%
from smallfiles import formats, images, measure
from smallfiles.pack import PackConfig, pack

packed = setup.scratch / "train.arrow"
if not packed.exists():
    pack(setup.source(), packed, PackConfig())
reader = formats.open(packed)

# %% [markdown] id="follow" tags=["core"]
# ## 1 · Follow a batch
#
# A forum post asked how to keep a GPU busy with views like these: the shorter side of an image is scaled to a random length
# from 256 to 480 pixels, then 224 x 224 pixels are cut out. We draw the parameters first, so that four programs can
# make the same view:

# %%
from smallfiles.images.crops import Box


def draw_view(index):
    """Length of the shorter side, pixels of the file per pixel of the view, and the part of the file shown."""
    rng = np.random.default_rng([0, index])
    width, height = Image.open(io.BytesIO(reader.read(index))).size
    short = int(rng.integers(256, 481))
    k = min(width, height) / short
    side = min(round(224 * k), width, height)
    top, left = int(rng.integers(0, height - side + 1)), int(rng.integers(0, width - side + 1))
    return short, k, Box(top, left, side, side)


# %% [markdown]
# Each function below yields the name of the stage it has just finished, so that one clock can time all of them. The
# first two are common. The first converts to floats, then scales, as the loaders of the Jülich course do:

# %%
from torchvision.transforms.v2 import functional as F

MEAN, STD = list(images.IMAGENET_MEAN), list(images.IMAGENET_STD)


def floats_scale_crop(data, short, k, box):
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    yield "decode", picture
    floats = F.to_dtype(F.to_image(picture), torch.float32, scale=True)
    view = F.crop(F.resize(floats, [short]), round(box.top / k), round(box.left / k), 224, 224)
    yield "augment", F.normalize(view, MEAN, STD)


def scale_crop_floats(data, short, k, box):
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    yield "decode", picture
    view = F.crop(F.resize(picture, [short]), round(box.top / k), round(box.left / k), 224, 224)
    yield "augment", F.normalize(F.to_dtype(F.to_image(view), torch.float32, scale=True), MEAN, STD)


# %% [markdown]
# The other two crop before they scale, and leave floats to the GPU. The last does not even decode the hidden part:

# %%
from smallfiles.images.picture import open_picture


def crop_scale(data, short, k, box):
    pixels = images.decode(data)
    yield "decode", pixels
    view = np.empty((224, 224, 3), np.uint8)
    images.resize(pixels[box.top : box.top + box.height, box.left : box.left + box.width], view)
    yield "augment", torch.from_numpy(view)


def only_the_part(data, short, k, box):
    part = open_picture(data).part(box, 224, 224, None)
    yield "decode", part
    view = np.empty((224, 224, 3), np.uint8)
    images.resize(part, view)
    yield "augment", torch.from_numpy(view)


# %% [markdown]
# The clock adds to each stage the time since the one before it ended.


# %%
def follow(order, indices):
    """Milliseconds per stage of one batch, and the batch."""
    spent, views, began = dict.fromkeys(("read", "decode", "augment", "collate"), 0.0), [], perf_counter()

    def lap(stage):
        nonlocal began
        now = perf_counter()
        spent[stage] += 1e3 * (now - began)
        began = now

    for index in indices:
        data = bytes(reader.read(index))
        lap("read")
        for stage, result in order(data, *drawn[index]):
            lap(stage)
        views.append(result)
    batch = torch.stack(views)
    lap("collate")
    return spent, batch


# %% [markdown]
# A worker process must also *send* its batch to the trainer. A `DataLoader` that does nothing else shows what that
# costs:

# %%
from torch.utils.data import DataLoader


def send_ms(batch):
    """Milliseconds until the next copy of this batch has arrived from a worker process."""
    loader = DataLoader([batch] * 13, batch_size=None, num_workers=1, collate_fn=torch.clone)
    times, asked = [], perf_counter()
    for sent in loader:
        sent.view(-1)[::4096].sum()  # touch every page
        times.append(1e3 * (perf_counter() - asked))
        asked = perf_counter()
    return median(times[1:])


# %% [markdown]
# > **Predict.** How many times faster than the first program is the last? And which stage is the longest in each? Write
# > the factor down; the figure will show it.

# %%
guess = 1.5  # change me: the last program is so many times as fast as the first
orders = {
    "floats, scale, crop": floats_scale_crop,
    "scale, crop, floats": scale_crop_floats,
    "crop, scale": crop_scale,
    "only the part": only_the_part,
}
drawn = [draw_view(index) for index in range(len(reader))]
torch.set_num_threads(1)  # as in every worker of a DataLoader
runs, first = {name: [] for name in orders}, {}
for number in range(6):
    for name, order in orders.items():
        spent, first[name] = follow(order, range(16 * number, 16 * number + 16))
        runs[name].append(spent)

# %%
bars = {}
for name, each in runs.items():
    bars[name] = {stage: median(run[stage] for run in each[1:]) for stage in each[0]}
    bars[name]["send"] = send_ms(first[name])
total = {name: sum(stages.values()) for name, stages in bars.items()}
slow, quick = total["floats, scale, crop"], total["only the part"]
title = f"The same 16 views in {slow:.0f} or {quick:.0f} ms: {slow / quick:.1f} times"
show.figure(figures.bars(bars, title, x="milliseconds of one worker per batch", guess=slow / guess))

# %% [markdown]
# Are these really the same views? Their pixels differ a little, since each order rounds and smooths at a different
# step:

# %%
reference = first["floats, scale, crop"]
for name, batch in first.items():
    floats = batch if batch.is_floating_point() else images.normalise(batch)
    difference = 255 * float((floats - reference).abs().mean()) * np.mean(STD)
    print(f"{name:20} {difference:4.1f} of 255 from the first, {batch.nbytes / 1e6:4.1f} MB to send")

# %% [markdown]
# Two habits cost time. *Scaling pixels that are then thrown away*: crop first. *Floats too early*: four bytes instead
# of one in every later stage, sending included. `images.normalise` converts a whole batch on the GPU.
#
# The file is in this machine's page cache, so *read* is small. On a cold parallel file system it may be most of the bar
# ([notebook 01](01_count_the_cost_of_small_files.ipynb)): pack and stage first.

# %% [markdown] id="views" tags=["optional"]
# ## 2 · Choose the views
#
# *Optional, 5 minutes.* Two kinds of random views are common. `RandomShortSide` is that of the forum.
# `RandomResizedCrop` takes 8 to 100 % of the area and stretches it a little. Both can change colours too.
#
# > **Predict.** Which is the cheapest, and how much does changing colours add?

# %%
jpegs = [bytes(reader.read(index)) for index in range(24)]
kinds = {
    "RandomShortSide": images.RandomShortSide(),
    "RandomResizedCrop": images.RandomResizedCrop(),
    "… and colours": images.RandomResizedCrop(jitter=images.ColourJitter()),
}


def view_all(transform):
    return len([transform(data, np.random.default_rng(n)) for n, data in enumerate(jpegs)])



# %%
speeds = measure.compare({name: partial(view_all, kind) for name, kind in kinds.items()}, unit="images")
colours = speeds.times("… and colours", "RandomResizedCrop").median
show.figure(figures.bars(speeds, f"With colours, views come at {colours:.2f} times the speed"))

# %% [markdown]
# Colours are changed on the finished view. Before cropping, the same change would touch the whole image of 500 x 375
# pixels, 3.7 times as many.
#
# <details>
# <summary>Larger photographs: decode them at a reduced size</summary>
#
# A JPEG can be decoded at a half, a quarter or an eighth of its size for less work. Images of 500 x 375 pixels are too
# small for that, since half of 375 is less than 224. With photographs four times as wide, expect 1.2 to 1.5 times the
# speed in training, which shows parts, and 1.5 to 2 times in validation, which shows the whole image. Our transforms do
# it automatically. If your images are that large, scale them once while packing: `pack --resize 256`. Every epoch is
# then cheaper, but the detail is lost.
#
# </details>

# %% [markdown] id="workers" tags=["core"]
# ## 3 · Add workers
#
# This is the loader you know: a `Dataset` that returns one sample, and a `DataLoader` that requests many.

# %%
from torch.utils.data import Dataset


class Views(Dataset):
    """Views of a packed file. The file is opened by each worker, at its first sample."""

    def __init__(self, path, transform, count):
        self.path, self.transform, self.count, self.file = path, transform, count, None

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.file = self.file or formats.open(self.path)
        view = self.transform(self.file.read(index), np.random.default_rng())  # new in every epoch
        return torch.from_numpy(view), self.file.target(index)


# %%
views = Views(packed, images.RandomResizedCrop(), len(reader))


def by_processes(workers):
    return DataLoader(
        views,
        batch_size=16,
        shuffle=True,
        drop_last=True,
        num_workers=workers,  # 0: the trainer makes its batches itself
        multiprocessing_context="fork" if workers else None,  # others import their classes from a module
        prefetch_factor=2 if workers else None,  # batches ready ahead, per worker
        persistent_workers=workers > 0,  # keep them alive between epochs
        pin_memory=torch.cuda.is_available(),  # a GPU copies faster from pinned memory
    )


# %% [markdown]
# `make_loader` returns the same kind of `DataLoader`. It adds what you would otherwise write yourself: whole batches
# made in place, an order that is the same for any number of workers, resuming at a batch, and *threads* instead of
# processes.

# %%
from smallfiles.loading import LoaderConfig, make_loader


def by_threads(workers):
    settings = LoaderConfig(batch=16, workers=workers, mode="threads", drop_last=True)
    return make_loader(packed, settings, transform=images.RandomResizedCrop())


# %% [markdown]
# > **Predict.** How many workers are best on this machine? Are threads slower, since Python runs one thread at a time?

# %%
guess = 4  # change me: the best number of workers here

# %%
import warnings

warnings.filterwarnings("ignore", message="This DataLoader will create")  # too many is the experiment
loaders = {("processes", n): by_processes(n) for n in (0, 1, 2, 4)}
loaders |= {("threads", n): by_threads(n) for n in (1, 2, 4)}


def epoch(loader):
    """Images in one epoch without any training."""
    return 16 * sum(1 for _ in loader)


tasks = {f"{kind} {n}": partial(epoch, loader) for (kind, n), loader in loaders.items()}
result = measure.compare(tasks, rounds=3, unit="images")

# %%
lines = {"processes": {}, "threads": {0: result.rates_per_s("processes 0")}}
for kind, n in loaders:
    lines[kind][n] = result.rates_per_s(f"{kind} {n}")
kind, best = max(loaders, key=lambda case: median(lines[case[0]][case[1]]))
gain = result.times(f"{kind} {best}", "processes 0").median
close = [n for n in tasks if n != f"{kind} {best}" and result.spread(n).overlaps(result.spread(f"{kind} {best}"))]
title = f"Best here: {kind} {best}, {gain:.1f} times as fast as no workers" if best else "Best here: no workers"
title += f" ({setup.cpus} CPUs)"
title += f"; within the spread: {', '.join(close)}" if close else ""
marks = {"CPUs": setup.cpus} if setup.cpus <= 8 else None
show.figure(figures.lines(lines, title, x="workers", y="images per second", guess=guess, marks=marks))
loaders.clear()  # the worker processes end with their loaders
tasks.clear()

# %% [markdown]
# Expect the best number to be near the number of CPUs, with no gain beyond it, or a loss. Where the dots overlap, the
# order is chance: take the smaller number. Decoding and scaling happen in C, where Python's lock is released, so
# threads really work at the same time. A thread leaves its batch in the trainer's memory; a process must send it. But
# with many threads their Python parts wait for each other, so `make_loader` uses up to four threads, and processes
# beyond that. Count the CPUs of your job, not those of the node ([notebook 00](00_start_here.ipynb)).
#
# Workers make batches ahead, which take memory.
#
# > **Predict.** Batches of 256, 8 workers, 2 batches ahead per worker: how many gigabytes as bytes, and as floats?

# %%
one = 256 * 224 * 224 * 3
print(f"{8 * 2 * one / 1e9:.1f} GB as bytes, {4 * 8 * 2 * one / 1e9:.1f} GB as floats")

# %% [markdown]
# Processes keep them in `/dev/shm`. If that is too small, a worker fails or dies with a *bus error* ([notebook
# 12](12_when_it_breaks.ipynb)); `make_loader` checks first.

# %% [markdown] id="ring" tags=["optional"]
# ## 4 · Build a ring
#
# *Optional, 12 minutes.* The idea in the forum: a second program fills a RAM disk with finished batches, and training
# empties it. The core is memory that two processes share, cut into slots, and two queues of slot numbers. A process
# that has nothing to do sleeps at a queue.
#
# ![Twelve slots in a ring. Producers fill the next empty slots, training reads the oldest ready one and then frees it.](pictures/ring.svg)
#
# *A ring: producers run ahead of training by as many batches as there are slots.*

# %%
import mmap
import multiprocessing

SLOTS, SHAPE = 6, (16, 224, 224, 3)
memory = mmap.mmap(-1, SLOTS * int(np.prod(SHAPE)))  # shared with a forked process
slots = np.frombuffer(memory, np.uint8).reshape(SLOTS, *SHAPE)
fork = multiprocessing.get_context("fork")
free, ready, made = fork.SimpleQueue(), fork.SimpleQueue(), fork.Value("i", 0)


def fill(transform, batches):
    """The producer: take a free slot, fill it, hand it over."""
    for number, indices in enumerate(batches):
        slot = free.get()  # sleeps until one is free
        for place, index in enumerate(indices):
            transform.into(reader.read(index), np.random.default_rng([number, place]), slots[slot, place])
        made.value += 1
        ready.put(slot)
    ready.put(None)


# %% [markdown]
# > **Predict.** The ring has 6 slots and there are 12 batches. Training takes 50 ms per step. How many batches wait in
# > the ring at most?

# %%
for slot in range(SLOTS):
    free.put(slot)
order = np.random.default_rng(0).permutation(len(reader))[: 12 * 16].reshape(12, 16).tolist()
producer = fork.Process(target=fill, args=(images.RandomShortSide(), order))
producer.start()
means, waiting = [], []
while (slot := ready.get()) is not None:
    means.append(slots[slot].mean())  # training would be here
    time.sleep(0.05)
    waiting.append(made.value - len(means))
    free.put(slot)
producer.join()
print(f"{len(means)} batches through {SLOTS} slots; at most {max(waiting)} waited during a step")

# %% [markdown]
# Training holds one slot itself, so at most 5 can wait. No batch was copied. But if the producer is killed, training
# sleeps forever; the position of training is not recorded; two producers would mix up the order. `smallfiles.ring`
# handles all that, and returns the same batches as the `DataLoader`.
#
# **Does a ring make training faster?** Here both storage and steps are sleeps, so the answer is the same on any
# machine. A step takes 20 ms, a batch 9 ms. But the storage stalls for 0.27 s in every 0.6 s, as a busy file system
# does. Before each epoch training pauses for 0.4 s, as for an evaluation. The two buffers differ in one line: a
# `DataLoader` starts each epoch empty, a ring continues to fill.

# %%
import queue
import threading

STEP_S, PERIOD_S, STALL_S, PAUSE_S, EPOCHS, BATCHES = 0.02, 0.6, 0.27, 0.4, 2, 100


def storage(make_s, stalls):
    left_s = PERIOD_S - time.monotonic() % PERIOD_S
    time.sleep(make_s + (left_s if stalls and left_s < STALL_S else 0))


def produce(count, ready, level, *kind):
    for _ in range(count):
        storage(*kind)
        ready.put(None)
        level[time.monotonic()] = ready.qsize()


# %%
def train(slots, goes_on, make_s=0.009, stalls=True):
    """Steps that wait for batches: when each asked and got, and how many batches were ready."""
    ready, done, level = queue.Queue(slots), [], {}
    rest = ready, level, make_s, stalls
    if goes_on:  # the ring's producer runs through
        threading.Thread(target=produce, args=(EPOCHS * BATCHES, *rest), daemon=True).start()
    for _ in range(EPOCHS):
        time.sleep(PAUSE_S)
        if not goes_on:  # a DataLoader begins when it is asked for the first batch
            threading.Thread(target=produce, args=(BATCHES, *rest), daemon=True).start()
        for _ in range(BATCHES):
            asked = time.monotonic()
            ready.get()
            done.append((asked, time.monotonic()))
            level[time.monotonic()] = ready.qsize()
            time.sleep(STEP_S)
    return done, level


# %% [markdown]
# > **Predict.** With which of these does training wait least: 2 batches ahead, 16 batches ahead, or a ring of 16 slots?
# > And with storage that never stalls but needs 30 ms per batch?

# %%
from concurrent.futures import ThreadPoolExecutor

buffers = {"2 ahead": (2, False), "16 ahead": (16, False), "ring of 16": (16, True)}
began = time.monotonic()
with ThreadPoolExecutor(6) as pool:  # sleeping needs no CPU, so all six run at once
    stalled = {name: pool.submit(train, *buffer) for name, buffer in buffers.items()}
    too_slow = {name: pool.submit(train, *buffer, 0.03, False) for name, buffer in buffers.items()}
stalled = {name: run.result() for name, run in stalled.items()}
too_slow = {name: run.result() for name, run in too_slow.items()}


# %%
def share(done):
    waited = sum(got - asked for asked, got in done)
    return waited / (waited + len(done) * STEP_S)


for name in buffers:
    print(f"{name:11} waits {share(stalled[name][0]):4.0%} with stalls, {share(too_slow[name][0]):4.0%} if too slow")

# %%
times = np.arange(began, began + 4, 0.01)  # the level every 10 ms, not only at requests


def sampled(level):
    at, values = np.array(list(level)), np.array(list(level.values()))
    return {float(t - began): float(values[max(0, np.searchsorted(at, t) - 1)]) for t in times}


levels = {name: sampled(level) for name, (_, level) in stalled.items() if name != "16 ahead"}
few, ring = share(stalled["2 ahead"][0]), share(stalled["ring of 16"][0])
title = f"Stalls cost {few:.0%} of the time with 2 batches ahead, {ring:.0%} with a ring of 16"
show.figure(figures.lines(levels, title, x="seconds", y="batches ready"))

# %% [markdown]
# A buffer bridges a stall if it is full when the stall begins and holds more steps than the stall lasts. A larger
# `prefetch_factor` can do that too, except at the start of each epoch. If the supply is too slow on average, every
# buffer runs empty; the ring then gains only what it made during the pauses.
#
# So a ring helps where batches come in bursts, where training pauses, or where training must be restarted without
# losing the ready batches. It never replaces CPUs. Now the forum's own numbers: 30 GB of RAM disk, 1,000 batches,
# refilled below 800.

# %%
disk_bytes, batches, refill_below = 30e9, 1000, 800
views_per_batch = disk_bytes / batches / (224 * 224 * 3)
print(f"a batch of 30 MB is {views_per_batch / 4:.0f} views as floats, or {views_per_batch:.0f} as bytes")
for step_s in (0.05, 0.2):
    bridged = f"{refill_below} batches bridge {refill_below * step_s:.0f} s"
    print(f"steps of {step_s} s: {bridged}; a stall of 5 s needs {5 / step_s:.0f} batches")

# %% [markdown]
# The threshold only wastes 200 batches: a producer that sleeps at a queue refills at once, at no cost. And 1,000
# batches bridge stalls that hardly any storage has, with memory that your job pays for. Use bytes, and a few dozen
# slots.

# %% [markdown] id="train" tags=["core"]
# ## 5 · Look at the waiting
#
# The decisive number is the share of time in which training waits for a batch. Measuring it takes four lines in any
# loop. A GPU does not use the CPUs while it computes, so we simulate a step with a sleep of 40 ms.


# %%
def steps(loader, step_s=0.04):
    """Seconds of an epoch's steps, and seconds of waiting for data."""
    batches = iter(loader)
    next(batches)  # the first batch also starts the workers
    asked, waited, count = perf_counter(), 0.0, 0
    for _ in batches:
        waited += perf_counter() - asked
        time.sleep(step_s)  # forward, backward, optimizer.step(), and torch.cuda.synchronize()
        asked = perf_counter()
        count += 1
    return {"steps": count * step_s, "waiting": waited}


# %% [markdown]
# > **Predict.** What share of the time does training wait if it makes its batches itself? With one thread? With a ring
# > that another program fills?

# %%
found = {}
for name, settings in {
    "main thread": LoaderConfig(batch=16, mode="main"),
    "1 thread": LoaderConfig(batch=16, workers=1, mode="threads"),
    "2 threads": LoaderConfig(batch=16, workers=2, mode="threads"),
}.items():
    found[name] = steps(make_loader(packed, settings, transform=images.RandomResizedCrop()))

# %% [markdown]
# In a terminal you would start the filler by hand, with this command. Here a helper starts it as a program of its own:

# %%
import os

from helpers.experiments.nb08 import filling
from smallfiles import ring
from smallfiles.ring import RingConfig

config = RingConfig(name=f"notebook-08-{os.getpid()}", slots=12, producers=2, epochs=1)
show.command(config, "train.arrow", "--batch", "16")
with filling(config, packed, "--batch", "16"), ring.attach(config.name) as batches:
    found["ring"] = steps(batches)

# %%
waiting = {name: spent["waiting"] / sum(spent.values()) for name, spent in found.items()}
best = min(waiting, key=waiting.get)
title = f"Training waits {waiting['main thread']:.0%} of the time for its own batches, {waiting[best]:.0%} with: {best}"
show.figure(figures.bars(found, title, x="seconds per epoch"))

# %% [markdown]
# Less waiting means more images per second, since the steps take the same time in all four. On a busy or slow machine
# one worker may not keep up; then no buffer can. `smallfiles train` reports this number as `waiting_share` for every
# epoch. Training finds a ring by its name and waits until the filler is there. If one of them is killed, the other
# waits for its successor and continues at the next batch.

# %% [markdown] id="exercise"
# ## Exercise
#
# [Exercise 08](../exercises/08_keep_the_gpu_fed.ipynb): find the bottleneck of three loaders, and remove each.

# %% [markdown] id="cluster"
# ## On the cluster
#
# Measure before you choose. This command compares processes, threads and a ring for several numbers of workers, prints
# where a batch's time goes, and recommends a setting. `slurm/submit SITE 08_tune_loader` runs it on a compute node:

# %%
from smallfiles.measure.loading import LoadBenchConfig

show.command(LoadBenchConfig(workers=(1, 2, 4, 8), batch=256), ["train.arrow"])

# %% [markdown]
# Then train with the best setting, or from a ring. The filler is a second step of the same job, as `slurm/submit SITE
# 08_ring` starts it. It must be the same job: the ring counts against its memory, and many sites give each job a
# private `/dev/shm`.

# %%
from smallfiles.ring import RingConfig
from smallfiles.training import TrainConfig

best = LoaderConfig(batch=256, workers=8, mode="processes")
show.command(TrainConfig(loader=best, model="resnet50", size=224, epochs=90), "train.arrow", "val.arrow")
show.command(RingConfig(name="imagenet", slots=64, epochs=90), "train.arrow", "--batch", "256")
show.command(TrainConfig(ring="imagenet", model="resnet50", size=224, epochs=90), "train.arrow")

# %% [markdown] id="key-points"
# ## Key points
#
# - A batch is read, decoded, augmented, collated and sent: measure all stages before you change one.
# - Crop first, then scale; keep bytes, and convert to floats on the GPU.
# - Start with as many workers as the job has CPUs, threads if they are few and processes if they are many; then measure.
# - A ring, or more prefetching, bridges stalls and pauses. It does not help if batches come too slowly on average.
# - The share of time spent waiting shows whether any of this matters.

# %% [markdown] id="quiz"
# ## Check yourself
#
# **1.** With 8 workers on 8 CPUs, training waits 40 % of the time. Decoding is the longest stage. What helps?
# (a) `prefetch_factor=16` (b) a ring of 1,000 slots (c) cropping before scaling (d) `pin_memory=True`
#
# <details>
# <summary>Answer</summary>
#
# **(c)**: it is the only one that makes a batch cheaper. (a) and (b) store batches that were made earlier, but here batches
# come too slowly on average, so any buffer runs empty. (d) speeds up the copy to the GPU, which is not the longest stage.
#
# </details>
#
# **2.** Your node has 128 CPUs, and your job got 8 of them. How many workers do you start with?
# (a) 128 (b) `os.cpu_count()` (c) 8 (d) 2, the default of many tutorials
#
# <details>
# <summary>Answer</summary>
#
# **(c)**. (b) is the same as (a): it counts the node. 128 workers take turns on 8 CPUs and keep 256 batches in memory.
# (d) leaves most of your CPUs idle. `len(os.sched_getaffinity(0))` counts the CPUs you may use.
#
# </details>
#
# **3.** A loader gives 900 images per second and the GPU trains 600 per second. You make the loader twice as fast. Training
# becomes (a) twice as fast (b) 1.5 times as fast (c) no faster (d) slower
#
# <details>
# <summary>Answer</summary>
#
# **(c)**: the GPU is the limit, and hides the loading. For (a) and (b) the loader would have to be the limit. For (d)
# the loader would have to slow down the GPU. But you can now give CPUs back, or share the node.
#
# </details>

# %% [markdown] id="next"
# ## Next
#
# [09 · Stream shards from object storage](09_stream_shards.ipynb) feeds the same loader from a remote store, and [10 ·
# Run it on many nodes](10_run_it_on_many_nodes.ipynb) runs it on several nodes, as a job.
