# %% [markdown] id="top"
# # 08 · Keep the GPU fed
#
# **Minutes** 40 · **Machine** any Linux computer with two CPUs, no GPU needed · **Needs** nothing · **Data** 240
# synthetic images
#
# A packed file, once staged or cached, delivers bytes faster than CPUs decode them. A GPU needs batches: images that
# CPUs have decoded, cropped, scaled and stacked. This work usually decides how long it waits.

# %% [markdown] id="questions"
# ## Questions
#
# - Where does the time of a batch go?
# - How many workers does a `DataLoader` need?
# - When does a ring of ready batches in memory help?

# %% [markdown] id="objectives"
# ## After this you can
#
# - name the stage to improve,
# - put decoding, cropping and scaling in the cheapest order,
# - choose a `DataLoader`'s settings by measuring,
# - tell when a ring helps.

# %% [markdown] id="setup"
# ## Set up

# %% id="start"
import sys

sys.path.append("..")
from helpers import figures, show, start, worksheet

setup = start("08")

# %%
import io
import time
from functools import partial
from statistics import median

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from smallfiles import formats, images, measure

# %% [markdown]
# The folded cell packs the images, and opens the packed file as `reader`.

# %% jupyter={"source_hidden": true}
from smallfiles.pack import PackConfig, pack

source, packed = setup.source(), setup.scratch / "train.arrow"
if not packed.exists():
    pack(source, packed, PackConfig())
reader = formats.open(packed)

# %% [markdown] id="recall"
# > **Recall** (06). Two forked workers `seek` and `read` in one open file. What goes wrong, and what cures it?
#
# <details>
# <summary>Answer</summary>
#
# They share its position, so one reads where the other has moved to, without an error. `os.pread` names the position in
# each read.
#
# </details>

# %% [markdown] id="follow" tags=["core"]
# ## 1 · Follow a batch
#
# A [forum post](https://discuss.pytorch.org/t/pytorch-dataset-dataloader-classes/136830) asked how to keep a GPU busy
# with random *views* of images: scale the shorter side to a random length from 256 to 480 pixels, then cut out 224 x
# 224 pixels. A batch of views is made in five stages:
#
# - *read* the bytes,
# - *decode* JPEG to pixels,
# - *augment* the pixels to a view,
# - *collate* the views to a batch,
# - *send* the batch from a worker to training.
#
# We compare programs that make almost the same views. The folded cell draws one at random per image.

# %% jupyter={"source_hidden": true}
from collections import namedtuple

from smallfiles.images.crops import Box

View = namedtuple("View", "short top left box")


def draw_view(index):
    rng = np.random.default_rng([0, index])
    width, height = Image.open(io.BytesIO(reader.read(index))).size
    short = int(rng.integers(256, 481))
    k = min(width, height) / short  # pixels of the file per pixel of the view
    side = min(round(224 * k), width, height)
    top, left = int(rng.integers(0, height - side + 1)), int(rng.integers(0, width - side + 1))
    return View(short, round(top / k), round(left / k), Box(top, left, side, side))


views = [draw_view(index) for index in range(len(reader))]

# %% [markdown]
# The first program makes a common mistake: it scales the whole image as floats, then crops. It yields the name of each
# stage that is done.

# %%
from torchvision.transforms.v2 import functional as F


def floats_first(data, view):
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    yield "decode", picture
    pixels = F.to_dtype(F.to_image(picture), torch.float32, scale=True)
    whole = F.resize(pixels, [view.short])  # the new length of the shorter side
    yield "augment", F.crop(whole, view.top, view.left, 224, 224)


# %% [markdown]
# The second crops first. `view.box` is the view's place in the file.


# %%
def crop_first(data, view):
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    yield "decode", picture
    part = F.crop(F.to_image(picture), *view.box)
    yield "augment", F.resize(F.to_dtype(part, torch.float32, scale=True), [224, 224])


# %% [markdown]
# **Your turn.** The third program is yours. Change its last line so that it scales bytes instead of floats.


# %%
def mine(data, view):
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    yield "decode", picture
    part = F.crop(F.to_image(picture), *view.box)
    yield "augment", F.resize(F.to_dtype(part, torch.float32, scale=True), [224, 224])  # change me: keep bytes


# %% [markdown]
# <details>
# <summary>The line</summary>
#
# `yield "augment", F.resize(part, [224, 224])`
#
# </details>
#
# The folded cell holds two more. In `usual` Pillow scales the whole image, and `ToTensor` makes floats at the end.
# `toolbox` keeps bytes, and with TurboJPEG 3 makes pixels only of the part shown (else of the whole image: it gains
# less).

# %% jupyter={"source_hidden": true}
from smallfiles.images.picture import open_picture


def usual(data, view):
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    yield "decode", picture
    shown = F.crop(F.resize(picture, [view.short]), view.top, view.left, 224, 224)
    yield "augment", F.to_dtype(F.to_image(shown), torch.float32, scale=True)  # which is `ToTensor`


def toolbox(data, view):
    part = open_picture(data).part(view.box, 224, 224)
    yield "decode", part
    images.resize(part, pixels := np.empty((224, 224, 3), np.uint8))
    yield "augment", torch.from_numpy(pixels)


# %% [markdown]
# > **Predict.** How many times as fast as `usual` is `toolbox`: 1.5, 3 or 6?

# %%
guess = 1.5  # change me: times as fast

# %% [markdown]
# The folded cell defines two clocks, one for the stages and one for sending.

# %% jupyter={"source_hidden": true}
import warnings
from itertools import pairwise

torch.set_num_threads(1)  # as in every worker of a DataLoader
warnings.filterwarnings("ignore", message="This DataLoader will create")  # more workers than CPUs: section 3


def follow(program, indices):
    """Milliseconds of the processor for each stage of one batch, and the batch."""
    laps, made = [("", time.thread_time())], []
    for index in indices:
        data = bytes(reader.read(index))
        laps.append(("read", time.thread_time()))
        for stage, result in program(data, views[index]):
            laps.append((stage, time.thread_time()))
        made.append(result)
    batch = torch.stack(made)
    laps.append(("collate", time.thread_time()))
    spent = dict.fromkeys(("read", "decode", "augment", "collate"), 0.0)
    for (_, before), (stage, now) in pairwise(laps):
        spent[stage] += 1e3 * (now - before)
    return spent, batch


def send_ms(batch):
    """Milliseconds until the next copy of this batch has arrived from a worker process."""
    times, asked = [], time.perf_counter()
    for sent in DataLoader([batch] * 13, batch_size=None, num_workers=1, collate_fn=torch.clone):
        sent.view(-1).view(torch.uint8)[::4096].sum()  # touch every page
        times.append(1e3 * (time.perf_counter() - asked))
        asked = time.perf_counter()
    return min(times[1:])  # other programs only slow it down


# %% [markdown]
# The folded cell runs each program on ten batches, and draws the stages.

# %% jupyter={"source_hidden": true}
programs = {program.__name__: program for program in (usual, floats_first, crop_first, mine, toolbox)}
runs, batches = {name: [] for name in programs}, {}
for number in range(10):
    for name, program in programs.items():
        spent, batches[name] = follow(program, range(16 * number, 16 * number + 16))
        runs[name].append(spent)
send = {size: send_ms(batches[name]) for size, name in ((4, "usual"), (1, "toolbox"))}  # bytes per number
bars = {name: {stage: median(run[stage] for run in each[1:]) for stage in each[0]} for name, each in runs.items()}
for name, stages in bars.items():
    stages["send"] = send[batches[name].element_size()]
total = {name: sum(stages.values()) for name, stages in bars.items()}
longest = max(bars["toolbox"], key=bars["toolbox"].get)
title = f"The toolbox is {total['usual'] / total['toolbox']:.1f} times as fast as the usual program, and mostly {longest}s"
axes = {"x": "time per batch (ms)", "guess_of": "toolbox", "guess_text": f"toolbox, if {guess:g} times as fast as usual"}
note = "processor time, median of 9 batches; send: as the trainer waits, fastest of 12"
show.figure(figures.bars(bars, title, **axes, note=note, guess=total["usual"] / guess))

# %% [markdown]
# `floats_first` mostly augments. Two habits make it slow:
#
# - *It scales pixels that it then throws away.* `crop_first` does not.
# - *It makes floats too early.* When we changed `mine` to keep bytes, its *augment* and *send* took less than half
#   of the time of `crop_first`. If your bars are equal, change `mine` and run both cells again. The GPU can convert the
#   batch (`images.normalise`).
#
# With both mended, mostly decoding remains. `toolbox` shortens it too.
#
# You can now solve tasks 3 and 4 of [exercise 08](../exercises/08_keep_the_gpu_fed.ipynb).

# %% [markdown] id="views" tags=["optional"]
# ## 2 · Choose the views
#
# *Optional, 5 minutes.* `RandomShortSide` makes the forum's view. `RandomResizedCrop` takes 8 to 100 % of the area.
# Random colours often follow.

# %%
kinds = {
    "RandomResizedCrop + colours": images.RandomResizedCrop(jitter=images.ColourJitter()),
    "RandomResizedCrop": images.RandomResizedCrop(),
    "RandomShortSide": images.RandomShortSide(),
}

# %% [markdown]
# > **Predict.** How much do random colours add to the time of `RandomResizedCrop`: 5, 40 or 200 %?

# %%
guess = 5  # change me: percent that colours add

# %% [markdown]
# The folded cell measures each on 24 images, six times in turn.

# %% jupyter={"source_hidden": true}
jpegs = [bytes(reader.read(index)) for index in range(24)]


def image_ms(transform):
    began = time.thread_time()  # of this processor alone
    for number, data in enumerate(jpegs):
        transform(data, np.random.default_rng(number))
    return 1e3 * (time.thread_time() - began) / len(jpegs)


times = {name: [] for name in kinds}
for _ in range(6):
    for name, kind in kinds.items():
        times[name].append(image_ms(kind))
coloured, plain, _ = map(median, times.values())
title = f"Random colours add {coloured / plain - 1:.0%} to the time of RandomResizedCrop"
axes = {"x": "processor time per image (ms)", "guess_of": "RandomResizedCrop +", "guess_text": f"{guess}% more"}
figures.bars(times, title, **axes, guess=plain * (1 + guess / 100))

# %% [markdown]
# Colours take CPU time, so they need more workers. The two kinds of crop differ less.
#
# <details>
# <summary>Larger photographs: decode them at a reduced size</summary>
#
# A JPEG can be decoded at a half, quarter or eighth of its size for less work; our transforms do it where the view
# allows. Or scale once while packing, and lose the detail: `pack --resize 256`.
#
# </details>

# %% [markdown] id="workers" tags=["core"]
# ## 3 · Add workers
#
# This is the `Dataset` that you know, with a file per image:

# %%
names, labels = source.manifest.paths.to_pylist()[:240], source.manifest.targets


class Views(Dataset):
    def __init__(self, store, count):
        self.store, self.count = store, count
        self.transform = images.RandomResizedCrop(jitter=images.ColourJitter())

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        data = bytearray(source.manifest.sizes[index])
        self.store.read_into(names[index], memoryview(data))  # open, read and close the file
        return torch.from_numpy(self.transform(data, np.random.default_rng())), int(labels[index])


# %%
def by_processes(store, count, workers):
    return DataLoader(
        Views(store, count),
        batch_size=8,
        shuffle=True,
        num_workers=workers,  # 0: the trainer makes its batches itself
        multiprocessing_context="fork" if workers else None,  # others do not find `Views`, a class of no module
        prefetch_factor=2 if workers else None,  # batches ready ahead, per worker
        persistent_workers=workers > 0,  # keep them alive between epochs
        pin_memory=torch.cuda.is_available(),  # a GPU copies faster from pinned memory
    )


# %% [markdown]
# We read from memory, and from simulated slow storage: finding a file and opening it take 6 ms each, for any number of
# files at once.
#
# > **Predict.** How many workers are enough from memory: 1, 2, 4 or 8?

# %%
guess = 4  # change me: workers that are enough, from memory

# %% [markdown]
# The folded cell reads epochs with 0 to 8 workers.

# %% jupyter={"source_hidden": true}
from smallfiles.slowfs import SlowConfig, open_slow


def epoch(loader):
    return sum(len(labels) for _, labels in loader)


counts, lines = (0, 1, 2, 4, 8), {}
with open_slow(setup.folder(), SlowConfig(latency_s=0.006)) as slow:
    # other programs disturb computing more than waiting: more rounds from memory
    for where, store, images_read, rounds in (("memory", source.store, 240, 8), ("slow storage", slow.store, 64, 2)):
        tasks = {f"{n} workers": partial(epoch, by_processes(store, images_read, n)) for n in counts}
        result = measure.compare(tasks, rounds=rounds, unit="images")
        tasks.clear()  # the worker processes end with their loaders
        lines[where] = {n: max(result.rates_per_s(f"{n} workers")) for n in counts}
gain = {where: max(line.values()) / line[0] for where, line in lines.items()}
title = f"Workers multiply the rate by {gain['memory']:.1f} from memory, by {gain['slow storage']:.1f} from slow storage"
axes = {"x": "workers", "y": "images per second", "guess": guess, "note": "the fastest of 8 runs from memory, of 2 from slow storage"}
show.figure(figures.lines(lines, title, **axes, marks={"CPUs": setup.cpus} if setup.cpus <= 8 else {}))
dataset, passes = Views(source.store, len(names)), []
for _ in range(8):  # the fastest, as of the rates
    began = time.thread_time()
    for index in range(48):
        dataset[index % len(dataset)]
    passes.append(1e3 * (time.thread_time() - began) / 48)
worksheet.note("08", images_per_s=max(lines["memory"].values()), cpu_ms=min(passes))

# %% [markdown]
# A worker does two jobs:
#
# - *It computes*, which needs a CPU. So from memory the line stops rising near the number of free CPUs. (With more
#   than 8 CPUs, add 16 to `counts`.) If it falls far, other programs ran: repeat the cell.
# - *It waits* for its file, asleep. So from slow storage more workers than CPUs help. But they all burden the file
#   servers. Pack instead.
#
# Sending and receiving take a share of the same CPUs. So two workers on two CPUs gain clearly less than 2 times, and
# one may be slower than none.
#
# <details>
# <summary>Are these enough for your GPU?</summary>
#
# Compare with what it trains. Divide your CPUs by your processor time above: at 1.5 ms, 8 CPUs make at most 5,300
# images per second. If that is too few, and decoding is the longest stage, decode on the GPU: DALI, or
# `torchvision.io.decode_jpeg(…, device="cuda")`. Do it in the trainer, since a forked worker cannot use CUDA.
#
# </details>
#
# Batches made ahead take memory: processes keep them in `/dev/shm`.
#
# > **Predict.** 8 workers make 2 batches of 256 views ahead each. How many gigabytes are these as floats: 0.6, 2.5 or
# > 10?

# %%
import shutil

workers, ahead, batch = 8, 2, 256  # change me: your loader
for kind, size in (("bytes", 1), ("floats", 4)):
    print(f"{workers * ahead * batch * 3 * 224**2 * size / 1e9:.1f} GB as {kind}")
print(f"{shutil.disk_usage('/dev/shm').free / 1e9:.1f} GB free in /dev/shm")

# %% [markdown]
# If they do not fit, a worker fails with `unable to allocate shared memory` ([12](12_when_it_breaks.ipynb)); before
# PyTorch 2.10 it was killed by a *bus error*. The batches also count as memory of your job, so its memory limit may end
# the job first.
#
# You can now solve task 2 of [exercise 08](../exercises/08_keep_the_gpu_fed.ipynb).

# %% [markdown] id="ring" tags=["optional"]
# ## 4 · Build a ring
#
# *Optional, 12 minutes.* The idea in the forum: a second program fills memory with finished batches, and training
# empties it. This *ring* is cut into *slots* of one batch each.
#
# ![Twelve slots in a ring. Producers fill the next empty slots, training reads the oldest ready one and then frees it.](pictures/ring.svg)
#
# Two queues hold the numbers of the slots that are free and ready:

# %%
import mmap
import multiprocessing

SLOTS, SHAPE = 6, (16, 224, 224, 3)
memory = mmap.mmap(-1, SLOTS * int(np.prod(SHAPE)))  # shared with a forked process
slots = np.frombuffer(memory, np.uint8).reshape(SLOTS, *SHAPE)
fork = multiprocessing.get_context("fork")
free, ready, made = fork.SimpleQueue(), fork.SimpleQueue(), fork.Value("i", 0)


def fill(transform, batches):  # the producer
    for number, indices in enumerate(batches):
        slot = free.get()  # sleeps until one is free
        for place, index in enumerate(indices):
            transform.into(reader.read(index), np.random.default_rng([number, place]), slots[slot, place])
        made.value += 1
        ready.put(slot)
    ready.put(None)  # the end: one producer here


# %% [markdown]
# > **Predict.** 12 batches go through 6 slots. How many wait in the ring at most during a step: 12, 6 or 5?

# %%
for slot in range(SLOTS):
    free.put(slot)
order = np.arange(12 * 16).reshape(12, 16).tolist()
producer = fork.Process(target=fill, args=(images.RandomShortSide(), order))
producer.start()
taken, waiting = 0, []
while (slot := ready.get()) is not None:
    taken += 1
    time.sleep(0.05)  # training would read slots[slot] here
    waiting.append(made.value - taken)
    free.put(slot)
producer.join()
print(f"{taken} batches through {SLOTS} slots; at most {max(waiting)} waited during a step")

# %% [markdown]
# Training itself holds one slot, so at most 5 wait.
#
# **When does a ring help?** A step takes 20 ms, a batch 9 ms: fast enough on average. But the storage
# stalls for 0.27 s in every 0.6 s.


# %%
def simulate(slots, make_s=0.009, stall_s=0.27, step_s=0.02, steps=200):
    """When each batch was made, and when training took it."""
    made, taken = [], []
    for n in range(steps):
        begin = made[-1] if made else 0.0  # batches are made one after the other,
        if n >= slots:
            begin = max(begin, taken[n - slots] + step_s)  # each in a slot that training has freed
        left_s = 0.6 - begin % 0.6  # until this stall ends
        made.append(begin + (left_s if left_s < stall_s else 0) + make_s)
        taken.append(max(made[n], taken[-1] + step_s if taken else 0.0))
    return made, taken


# %% [markdown]
# > **Predict.** How many slots bridge such a stall? And on paper: how many help if each batch takes 30 ms: 10, 100, or
# > no number?

# %%
my_slots = 8  # change me: slots that bridge the stall

# %% [markdown]
# The folded cell prints the waiting, and draws how many batches are ready when training asks for one.

# %% jupyter={"source_hidden": true}
def share(made, taken, step_s=0.02):
    return 1 - len(taken) * step_s / (taken[-1] + step_s)


def level(made, taken, step_s=0.02):
    """Batches ready when training asks; it stays 0 until training has one."""
    found = {}
    for n, until in enumerate(taken):
        asked = taken[n - 1] + step_s if n else 0.0
        found[asked] = int(np.searchsorted(made, asked, "right")) - n
        found[until] = found[asked]
    return {at: ready for at, ready in found.items() if at < 2}


levels, waits = {}, {}
for count in sorted({2, my_slots, 100}):
    run, too_slow = simulate(count), simulate(count, make_s=0.03, stall_s=0)
    levels[f"{count} slots"], waits[count] = level(*run), share(*run)
    print(f"{count:3} slots: training waits {waits[count]:3.0%} with stalls, {share(*too_slow):.0%} if a batch takes 30 ms")
title = f"With 2 slots training waits {waits[2]:.0%} of the time, with {my_slots} slots {waits[my_slots]:.0%}"
stalls = {"storage stalls": [(0.33, 0.6), (0.93, 1.2), (1.53, 1.8)]}
axes = {"x": "seconds", "y": "batches ready", "marks": stalls, "note": "computed; training waits where a line is at 0"}
show.figure(figures.lines({f"{n} slots": levels[f"{n} slots"] for n in (2, my_slots)}, title, **axes, counted=True))

# %% [markdown]
# During a stall the level falls by one batch per step.
#
# **Your turn.** Change `my_slots` until training waits 0 %.
#
# <details>
# <summary>How many slots are enough?</summary>
#
# 14: the first batch after a stall comes after 0.27 s + 9 ms, which are 14 steps of 20 ms: one under way, and 13 that
# wait. More slots gain nothing.
#
# </details>
#
# - The *number of batches ahead* bridges a stall. A `DataLoader` can hold as many: workers × `prefetch_factor`.
# - If batches come too slowly *on average*, every ring runs empty.

# %% [markdown] id="train" tags=["core"]
# ## 5 · Look at the waiting
#
# A sleep of 40 ms stands for a training step, since a GPU computes beside the CPUs.


# %%
def waiting_share(loader, step_s=0.04):
    batches = iter(loader)
    next(batches), time.sleep(step_s)  # the first batch starts the workers: not counted
    asked = began = time.perf_counter()
    waited = 0.0
    for _ in batches:
        waited += time.perf_counter() - asked
        time.sleep(step_s)  # forward, backward, optimizer.step(), and torch.cuda.synchronize()
        asked = time.perf_counter()
    return round(100 * waited / (asked - began))  # percent


# %% [markdown]
# Workers can also be *threads* of the trainer: decoding and scaling release Python's lock.

# %%
from smallfiles.loading import LoaderConfig, make_loader

loaders = {
    "no worker": LoaderConfig(batch=16, workers=0, mode="main"),
    "1 thread": LoaderConfig(batch=16, workers=1, mode="threads"),
    "1 process": LoaderConfig(batch=16, workers=1, mode="processes"),
}

# %% [markdown]
# > **Predict.** What share of the time does training wait without a worker: 5, 30 or 80 %?

# %%
guess = 5  # change me: percent, without a worker

# %% [markdown]
# The folded cell measures five epochs of each, and five from a ring that another program fills.

# %% jupyter={"source_hidden": true}
import os

from helpers.experiments.nb08 import filling
from smallfiles import ring
from smallfiles.ring import RingConfig

shares = {name: [] for name in loaders}
for _ in range(5):
    for name, settings in loaders.items():
        loader = make_loader(packed, settings, transform=images.RandomResizedCrop())
        shares[name].append(waiting_share(loader))
config = RingConfig(name=f"notebook-08-{os.getpid()}", slots=12, producers=1, epochs=5)
show.command(config, "train.arrow", "--batch", "16")
with filling(config, packed, "--batch", "16"), ring.attach(config.name) as batches:
    shares["ring"] = [waiting_share(batches) for _ in range(5)]
none, *others = map(median, shares.values())
title = f"Training waits {none}% without a worker, {min(others)} to {max(others)}% with one or the ring"
axes = {"x": "share of the time that training waits (%)", "guess_of": "no worker"}
show.figure(figures.bars(shares, title, **axes, base="no worker", guess=guess))

# %% [markdown]
# A batch takes less time than a step here. So one worker hides most of the work, if a CPU is free.
#
# - Below about 5 %, stop.
# - A process also *sends* (section 1), and training waits while it receives. Threads send nothing, but share
#   Python's lock with training. (Our sleep never holds it.) If you lose much to both, choose a ring.
# - If no batch is ready, make batches cheaper, or get more CPUs.
#
# You can now solve task 1 of [exercise 08](../exercises/08_keep_the_gpu_fed.ipynb).

# %% [markdown] id="exercise"
# ## Exercise
#
# [Exercise 08](../exercises/08_keep_the_gpu_fed.ipynb): find the bottleneck of three loaders, and remove each.

# %% [markdown] id="cluster"
# ## On the cluster
#
# This command compares processes, threads and a ring, and recommends a setting (as a job: `slurm/submit SITE
# 08_tune_loader`):

# %%
from smallfiles.measure.loading import LoadBenchConfig

show.command(LoadBenchConfig(workers=(1, 2, 4, 8), batch=256), ["train.arrow"])

# %% [markdown]
# Then train with the best setting, or from a ring (`slurm/submit SITE 08_ring`). The ring's filler is a second step of
# the *same* job, since many sites give each job a private `/dev/shm`. The folded cell prints the commands.

# %% jupyter={"source_hidden": true}
from smallfiles.loading import LoaderConfig
from smallfiles.ring import RingConfig
from smallfiles.training import TrainConfig

loader = LoaderConfig(batch=256, workers=8, mode="processes")
show.command(TrainConfig(loader=loader, model="resnet50", size=224, epochs=90), "train.arrow", "val.arrow")
show.command(RingConfig(name="imagenet", slots=64, epochs=90), "train.arrow", "--batch", "256")
show.command(TrainConfig(ring="imagenet", model="resnet50", size=224, epochs=90), "train.arrow")

# %% [markdown] id="key-points"
# ## Key points
#
# - Measure all stages of a batch before you change one.
# - Keep bytes, and convert to floats on the GPU. Crop before scaling.
# - Workers compute and wait. From packed files, start with as many workers per rank as the rank has CPUs.
# - A ring, or more prefetching, bridges stalls. It does not help if batches come too slowly on average.
# - The share of waiting tells whether any of this matters.

# %% [markdown] id="quiz"
# ## Check yourself
#
# **1.** With 8 workers on 8 CPUs, training waits 40 % of the time. Decoding is the longest stage. What helps? (a)
# `prefetch_factor=16`. (b) A ring of 1,000 slots. (c) Decoding only the part that is shown. (d) `pin_memory=True`.
#
# <details>
# <summary>Answer</summary>
#
# **(c)**: it is the only one that makes a batch cheaper. (a) and (b) store batches that were made earlier, but here
# batches come too slowly on average, so any buffer runs empty. (d) speeds up the copy to the GPU, which is not the
# longest stage.
#
# </details>
#
# **2.** Your node has 128 CPUs, and your job got 8 of them. How many workers do you start with? (a) 128. (b)
# `os.cpu_count()`. (c) 8. (d) 2.
#
# <details>
# <summary>Answer</summary>
#
# **(c)**. (b) is the same as (a): it counts the node. 128 workers take turns on 8 CPUs and keep 256 batches in memory.
# (d) leaves most of your CPUs idle. `len(os.sched_getaffinity(0))` counts the CPUs that Slurm gave you,
# if it binds jobs to CPUs.
#
# </details>
#
# **3.** A loader gives 900 images per second and the GPU trains 600 per second. You make the loader twice as fast.
# How does training change? (a) Twice as fast. (b) 1.5 times as fast. (c) No faster. (d) Slower.
#
# <details>
# <summary>Answer</summary>
#
# **(c)**: the GPU is the limit, and hides the loading. For (a) and (b) the loader would have to be the limit, for (d)
# to slow down the GPU. But you can now give CPUs back.
#
# </details>

# %% [markdown] id="next"
# ## Next
#
# [09 · Stream shards from object storage](09_stream_shards.ipynb) feeds the same loader from a remote store.
