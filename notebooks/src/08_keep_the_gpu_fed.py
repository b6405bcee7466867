# %% [markdown] id="top"
# # 08 · Keep the GPU fed
#
# **Minutes** 40 · **Machine** any Linux computer with two CPUs, no GPU needed · **Needs** nothing · **Data** 240
# synthetic images
#
# A packed file, once staged or cached, delivers bytes as fast as memory. But a GPU needs batches: images that the CPUs
# of your job have decoded, cropped, scaled and stacked. This work usually decides how long it waits.

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
# - tell when a ring helps, and how long training waits.

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

from smallfiles import formats, images, measure
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
# with random *views* of images: the shorter side is scaled to a random length from 256 to 480 pixels, then 224 x 224
# pixels are cut out. The folded cell draws these once per image, so all programs make the same view:

# %% jupyter={"source_hidden": true}
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


drawn = [draw_view(index) for index in range(len(reader))]


# %% [markdown]
# A batch is made in five stages: *read*, *decode* (JPEG to pixels), *augment* (pixels to the random view), *collate*
# (stack views into a batch) and *send* (from a worker to training). We compare five programs:
#
# | program | decodes | then |
# |---|---|---|
# | `classic` | by Pillow | `Resize`, `RandomCrop`, `ToTensor` |
# | `scale_crop` | by Pillow | scales floats, or bytes; crops |
# | `crop_scale` | by Pillow | crops; scales floats, or bytes |
# | `toolbox` | by `smallfiles` | crops; scales bytes |
# | `toolbox, part` | only the part shown | scales bytes |
#
# Each yields the name of a stage when it is done:

# %%
from torchvision.transforms.v2 import functional as F


def scale_crop(data, short, k, box, dtype):  # short: new shorter side; box: part shown; k: its pixels per pixel of the view
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    yield "decode", picture
    whole = F.resize(F.to_dtype(F.to_image(picture), dtype, scale=True), [short])
    yield "augment", F.crop(whole, round(box.top / k), round(box.left / k), 224, 224)


# %% [markdown]
# Complete the marked line of `crop_scale`, so that it crops first. The figure's title tells whether it does.

# %%
def crop_scale(data, short, k, box, dtype):
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    yield "decode", picture
    shown = F.to_image(picture)  # change me: only the part in `box`, which has `top`, `left`, `height` and `width`
    yield "augment", F.resize(F.to_dtype(shown, dtype, scale=True), [224, 224])


# %% [markdown]
# <details>
# <summary>The line</summary>
#
# `shown = F.crop(F.to_image(picture), box.top, box.left, box.height, box.width)`
#
# </details>
#
# The folded cell defines `classic`, `toolbox` and two clocks: `follow` adds up the processor time of each stage of a batch, and
# `send_ms` times a worker process that only sends.

# %% jupyter={"source_hidden": true}
import warnings

from torch.utils.data import DataLoader, Dataset

from smallfiles.images.picture import open_picture


def classic(data, short, k, box):
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    yield "decode", picture
    shown = F.crop(F.resize(picture, [short]), round(box.top / k), round(box.left / k), 224, 224)
    yield "augment", F.to_dtype(F.to_image(shown), torch.float32, scale=True)  # which is `ToTensor`


def toolbox(data, short, k, box, only_the_part):
    rows, columns = slice(box.top, box.top + box.height), slice(box.left, box.left + box.width)
    part = open_picture(data).part(box, 224, 224) if only_the_part else images.decode(data)[rows, columns]
    yield "decode", part
    images.resize(part, view := np.empty((224, 224, 3), np.uint8))
    yield "augment", torch.from_numpy(view)


def follow(program, indices):
    """Milliseconds of the processor per stage of one batch, and the batch."""
    spent, views, began = dict.fromkeys(("read", "decode", "augment", "collate"), 0.0), [], time.thread_time()

    def lap(stage):
        nonlocal began
        now = time.thread_time()  # other programs hardly change it; it stands still while this one waits
        spent[stage] += 1e3 * (now - began)
        began = now

    for index in indices:
        data = bytes(reader.read(index))
        lap("read")
        for stage, result in program(data, *drawn[index]):
            lap(stage)
        views.append(result)
    batch = torch.stack(views)
    lap("collate")
    return spent, batch


torch.set_num_threads(1)  # as in every worker of a DataLoader
warnings.filterwarnings("ignore", message="This DataLoader will create")  # more workers than CPUs: section 3


def send_ms(batch):
    """Milliseconds until the next copy of this batch has arrived from a worker process."""
    loader = DataLoader([batch] * 13, batch_size=None, num_workers=1, collate_fn=torch.clone)
    times, asked = [], time.perf_counter()
    for sent in loader:
        sent.view(-1).view(torch.uint8)[::4096].sum()  # touch every page
        times.append(1e3 * (time.perf_counter() - asked))
        asked = time.perf_counter()
    return median(times[1:])


# %% [markdown]
# > **Predict.** How many times as fast as `classic` is the last program: 1.5, 3 or 6? And which stage is its longest?
# > (Drawn below.)

# %%
guess = 1.5  # change me: times as fast

# %%
ways, kinds = (scale_crop, crop_scale), {"floats": torch.float32, "bytes": torch.uint8}
programs = {"floats, classic": classic}
programs |= {f"{name}, {w.__name__}": partial(w, dtype=kind) for name, kind in kinds.items() for w in ways}
programs |= {f"bytes, toolbox{', part' * part}": partial(toolbox, only_the_part=part) for part in (False, True)}
runs, batches = {name: [] for name in programs}, {}
for number in range(10):
    for name, program in programs.items():
        spent, batches[name] = follow(program, range(16 * number, 16 * number + 16))
        runs[name].append(spent)

# %% [markdown]
# The folded cell draws the median time of each stage, and compares the pixels:

# %% jupyter={"source_hidden": true}
def pixels(batch):
    """From 0 to 255, colours first."""
    batch = 255 * batch if batch.is_floating_point() else batch.float()
    return batch if batch.shape[1] == 3 else batch.movedim(-1, 1)


sent = {kind: send_ms(batches[f"{kind}, scale_crop"]) for kind in ("floats", "bytes")}  # by the size of a batch
bars, differ = {}, {}
for name, each in runs.items():
    bars[name] = {stage: median(run[stage] for run in each[1:]) for stage in each[0]}
    bars[name]["send"] = sent[name.split(",")[0]]
    differ[name] = float((pixels(batches[name]) - pixels(batches["floats, scale_crop"])).abs().mean())
total = {name: sum(stages.values()) for name, stages in bars.items()}
known, slow, quick = (total[name] for name in ("floats, classic", "floats, scale_crop", "bytes, toolbox, part"))
crops = differ["bytes, crop_scale"] < 2 * differ["bytes, toolbox"]  # which crops at the same place
title = f"The last program is {known / quick:.1f} times as fast as classic; "
title += f"bytes save scale_crop {slow - total['bytes, scale_crop']:.0f} ms, "
title += f"cropping first {slow - total['floats, crop_scale']:.0f} ms" if crops else "but crop_scale does not crop yet"
axes = {"x": "time of one worker per batch (ms)", "guess_text": f"the last bar, if {guess:g} times as fast"}
note = "processor time, median of 9 batches; send: by the clock, median of 12 batches of floats or bytes"
show.figure(figures.bars(bars, title, **axes, note=note, guess=known / guess))
for name, batch in batches.items():
    print(f"{name:21} {differ[name]:4.1f} of 255 from floats, scale_crop; {batch.nbytes / 1e6:4.1f} MB to send")

# %% [markdown]
# Usually the last program mostly decodes, and `scale_crop` with floats mostly augments. Two habits cost time:
#
# - *Floats too early.* They are four times the bytes to send, in `classic` as well. And on most CPUs torch scales bytes
#   with faster instructions. Let the GPU convert the whole batch (`images.normalise`).
# - *Scaling pixels that are then thrown away.* Crop first.
#
# *Read* is short: the file is in memory. A cold parallel file system shows only by the clock: processor time omits
# waiting ([01](01_count_the_cost_of_small_files.ipynb)).
#
# <details>
# <summary>How can a part be decoded alone?</summary>
#
# Nearly: the last program stops after the last row shown, and computes no hidden pixels. But the bits of the rows above
# must be unpacked, so a part at the bottom saves little.
#
# </details>
# <details>
# <summary>Why do the savings not add up, and why do the pixels differ?</summary>
#
# Who crops first scales fewer floats, and so gains less from bytes. The pixels differ mostly because `classic` and
# `scale_crop` round the *place* of their view to whole pixels after scaling, the others before.
#
# </details>

# %% [markdown] id="views" tags=["optional"]
# ## 2 · Choose the views
#
# *Optional, 5 minutes.* `RandomShortSide` makes the forum's view. The usual `RandomResizedCrop` takes 8 to 100 % of the
# area. We also add random colours to it.
#
# > **Predict.** Which of the two is cheaper? And do colours add 5, 40 or 200 % to the time? (Drawn below.)

# %%
jpegs = [bytes(reader.read(index)) for index in range(24)]
crop, colours = images.RandomResizedCrop(), images.RandomResizedCrop(jitter=images.ColourJitter())
kinds = {"RandomShortSide": images.RandomShortSide(), "RandomResizedCrop": crop, "… and colours": colours}


def image_ms(transform):
    began = time.thread_time()  # of this processor alone
    for number, data in enumerate(jpegs):
        transform(data, np.random.default_rng(number))
    return 1e3 * (time.thread_time() - began) / len(jpegs)


times = {name: min(image_ms(kind) for _ in range(6)) for name, kind in kinds.items()}
short, usual, coloured = times.values()
title = f"Colours add {coloured / usual - 1:.0%} to RandomResizedCrop, "
title += f"which takes {usual / short - 1:.0%} longer than RandomShortSide"
figures.bars(times, title, x="processor time per image (ms)", note="the fastest of 6 runs, since other programs only slow one down")

# %% [markdown]
# `RandomShortSide` shows a third of an image, `RandomResizedCrop` a half, which is more to decode.
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
# We read from memory and from simulated slow storage, where finding a file and opening it take 6 ms each.
#
# > **Predict.** How many workers are enough from memory: 1, 2, 4 or 8? And are 8 enough from slow storage? (Drawn below.)

# %%
guess = 4  # change me: workers that are enough, from memory

# %%
from smallfiles.slowfs import SlowConfig, open_slow


def epoch(loader):
    return sum(len(labels) for _, labels in loader)


counts = (0, 1, 2, 4, 8)
with open_slow(setup.folder(), SlowConfig(latency_s=0.006)) as slow:
    stores = {"memory": (source.store, len(names)), "slow storage": (slow.store, len(names[:64]))}
    loaders = {(where, n): by_processes(*store, n) for where, store in stores.items() for n in counts}
    tasks = {f"{where}, {n}": partial(epoch, loader) for (where, n), loader in loaders.items()}
    result = measure.compare(tasks, rounds=3, unit="images")
    loaders.clear(), tasks.clear()  # the worker processes end with their loaders

# %% [markdown]
# The folded cell draws this and notes your numbers.

# %% jupyter={"source_hidden": true}
lines = {where: {n: max(result.rates_per_s(f"{where}, {n}")) for n in counts} for where in stores}
best = {where: next(n for n in counts if line[n] > 0.9 * max(line.values())) for where, line in lines.items()}
gains = {where: lines[where][n] / lines[where][0] for where, n in best.items()}
tried = {n: f"{n} worker{'s' * (n > 1)}" + " (the most tried)" * (n == max(counts)) for n in counts}
most = {where: f"{tried[n]} give{'s' * (n == 1)} {gains[where]:.1f} times the rate of none" for where, n in best.items()}
most |= {where: "workers hardly help: no CPU is free" for where, n in best.items() if n == 0}
title = f"From memory, {most['memory']}; from slow storage, {most['slow storage']}"
marks = {"CPUs": setup.cpus} if setup.cpus <= max(counts) else {}
axes = {"x": "workers", "y": "images per second", "marks": marks, "guess": guess}
note = "the fastest of 3 runs, since other programs only slow one down; title: the fewest workers within 10% of the best"
show.figure(figures.lines(lines, title, **axes, note=note))
views, began = Views(source.store, len(names)), time.thread_time()
for index in range(48):
    views[index % len(views)]
cpu_ms = 1e3 * (time.thread_time() - began) / 48
worksheet.note("08", images_per_s=max(lines["memory"].values()), cpu_ms=cpu_ms)

# %% [markdown]
# A worker does two jobs:
#
# - *It computes.* From memory, the line stops rising near the number of free CPUs. (One worker only adds sending, since
#   no training runs here.)
# - *It waits* for its file, asleep and without a CPU. So from slow storage more workers than CPUs help, until the CPUs
#   or the file servers are busy. With 12 ms of waiting per 1.2 ms of computing (yours is above), that takes ten workers
#   per CPU, which all load the servers. So pack instead.
#
# <details>
# <summary>Are these enough for your GPU?</summary>
#
# Compare with what it trains: at 1.2 ms, 8 CPUs make at most 6,700 images per second. If that is too few, and decoding
# is the longest stage, decode on the GPU: DALI, or `torchvision.io.decode_jpeg(…, device="cuda")`. Do it in the
# trainer, since a forked worker cannot use CUDA.
#
# </details>
#
# Workers need not be processes. Decoding and scaling release Python's lock, so *threads* really work at the same time.
#
# <details>
# <summary>How many threads?</summary>
#
# The Python parts of many threads wait for each other, so `make_loader` uses up to four threads, and processes beyond.
#
# </details>
#
# Batches made ahead take memory.
#
# > **Predict.** 8 workers make 2 batches of 256 views ahead each. How many gigabytes are these, as bytes and as floats:
# > 0.15 and 0.6, 0.6 and 2.5, or 2.5 and 10? Do they fit into your `/dev/shm`?

# %%
import shutil

for kind, size in (("bytes", 1), ("floats", 4)):
    print(f"{8 * 2 * 256 * 3 * 224**2 * size / 1e9:.1f} GB as {kind}")
print(f"{shutil.disk_usage('/dev/shm').total / 1e9:.1f} GB in /dev/shm")

# %% [markdown]
# Worker processes keep them in `/dev/shm`. If that is too small, a worker dies with a *bus error*
# ([12](12_when_it_breaks.ipynb)).

# %% [markdown] id="ring" tags=["optional"]
# ## 4 · Build a ring
#
# *Optional, 12 minutes.* The idea in the forum: a second program fills a RAM disk with finished batches, and training
# empties it. This *ring* is memory that two processes share, cut into *slots* of one batch each, and two queues of slot
# numbers.
#
# ![Twelve slots in a ring. Producers fill the next empty slots, training reads the oldest ready one and then frees it.](pictures/ring.svg)

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
    ready.put(None)


# %% [markdown]
# > **Predict.** The ring has 6 slots and there are 12 batches. Training takes 50 ms per step. How many batches wait in
# > the ring at most: 12, 6 or 5?

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
# Training holds one slot itself, so at most 5 can wait. No batch was copied.
#
# **Does a ring make training faster?** We simulate it: a step takes 20 ms, a batch 9 ms. But the storage
# stalls for 0.27 s in every 0.6 s, and training pauses for 0.1 s before each epoch of 2 s.
#
# We compare a `DataLoader` with 2 batches ahead, one with `AHEAD`, and a ring of `AHEAD` slots. A `DataLoader` starts
# each epoch empty; a ring fills during the pause. The folded cell defines storage, producer and training:

# %% jupyter={"source_hidden": true}
import queue
import threading
from concurrent.futures import ThreadPoolExecutor

STEP_S, PERIOD_S, STALL_S, PAUSE_S, EPOCHS, BATCHES = 0.02, 0.6, 0.27, 0.1, 2, 100


def storage(make_s, stalls):
    left_s = PERIOD_S - (time.monotonic() - ORIGIN) % PERIOD_S
    time.sleep(make_s + (left_s if stalls and left_s < STALL_S else 0))


def produce(count, ready, level, *kind):
    for _ in range(count):
        storage(*kind)
        ready.put(None)
        level[time.monotonic()] = ready.qsize()



def train(slots, goes_on, make_s=0.009, stalls=True):
    """Steps that wait for batches: when each asked and got, and how many batches were ready."""
    ready, done, level = queue.Queue(slots), [], {time.monotonic(): 0}
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
# > **Predict.** How many slots bridge a stall of 0.27 s at 20 ms per step? Write them into `AHEAD`. And how many cure a
# > supply that never stalls but needs 30 ms per batch: 10, 100, or no number?

# %%
AHEAD = 8  # change me: batches, one in each slot
buffers = {"2 ahead": (2, False), f"{AHEAD} ahead": (AHEAD, False), f"ring of {AHEAD} slots": (AHEAD, True)}
ORIGIN = time.monotonic()  # of the stalls
with ThreadPoolExecutor(6) as pool:  # sleeping needs no CPU, so all six run at once
    stalled = {name: pool.submit(train, *buffer) for name, buffer in buffers.items()}
    too_slow = {name: pool.submit(train, *buffer, 0.03, False) for name, buffer in buffers.items()}

# %% [markdown]
# The folded cell prints the waiting, and draws how full the two buffers of your size were with stalls. In an epoch,
# training waits while its buffer is empty.

# %% jupyter={"source_hidden": true}
stalled, too_slow = ({name: run.result() for name, run in runs.items()} for runs in (stalled, too_slow))


def share(done):
    waited = sum(got - asked for asked, got in done)
    return waited / (waited + len(done) * STEP_S)


for name in buffers:
    print(f"{name:16} waits {share(stalled[name][0]):4.0%} with stalls, {share(too_slow[name][0]):4.0%} if too slow")
times = np.arange(ORIGIN, ORIGIN + 4, 0.01)  # the level every 10 ms, not only at requests


def sampled(level):
    at, values = np.array(list(level)), np.array(list(level.values()))
    return {float(t - ORIGIN): float(values[max(0, np.searchsorted(at, t) - 1)]) for t in times}


stalls = [(start, min(4, start + STALL_S)) for start in np.arange(PERIOD_S - STALL_S, 4, PERIOD_S).tolist()]
ring = stalled[f"ring of {AHEAD} slots"]
pause = ring[0][BATCHES][0] - ORIGIN  # the first step of the second epoch comes after it
marks = {f"{AHEAD} ahead starts empty": stalled[f"{AHEAD} ahead"][0][BATCHES][0] - ORIGIN}
marks |= {"storage stalls": stalls, "pauses of training (ring)": [(0, PAUSE_S), (pause - PAUSE_S, pause)]}
levels = {name: sampled(stalled[name][1]) for name in (f"ring of {AHEAD} slots", f"{AHEAD} ahead")}  # the ring below
two, more, ringed = (share(done) for done, _ in stalled.values())
title = f"Training waits {two:.0%} of the time with 2 batches ahead, {more:.0%} with your {AHEAD}, {ringed:.0%} with a ring of {AHEAD} slots"
show.figure(figures.lines(levels, title, x="seconds", y="batches ready", marks=marks))

# %% [markdown]
# A full buffer bridges a stall if it lasts until the first batch after it: 0.279 s, or 14 steps. The producer holds one
# batch, so 13 slots do. Set `AHEAD` to 13 and run both cells again.
#
# - More batches ahead (workers × `prefetch_factor`) gain nearly as much as a ring. It saves only the start of
#   each epoch, little in an epoch of minutes.
# - If the supply is too slow on average, every buffer runs empty. A ring replaces no CPUs.

# %% [markdown] id="train" tags=["core"]
# ## 5 · Look at the waiting
#
# The decisive number is the share of time in which training waits for a batch. A GPU computes beside the CPUs, so a
# sleep of 40 ms stands for a step. (A real step at times holds Python's lock, so threads gain less.)


# %%
def steps(loader, step_s=0.04):
    """Seconds of an epoch's steps, and seconds of waiting for data."""
    batches = iter(loader)
    next(batches), time.sleep(step_s)  # the first batch starts the workers: not counted
    asked = began = time.perf_counter()
    waited = 0.0
    for _ in batches:
        waited += time.perf_counter() - asked
        time.sleep(step_s)  # forward, backward, optimizer.step(), and torch.cuda.synchronize()
        asked = time.perf_counter()
    return {"steps": asked - began - waited, "waiting": waited}


# %% [markdown]
# > **Predict.** What share of the time does training wait if it makes its batches itself: 5, 30 or 80 %? And what hides
# > least of it: one thread, one process, or a ring that another program fills? (Drawn below.)

# %%
from smallfiles.loading import LoaderConfig, make_loader

found = {}
for name, workers, mode in (("no worker", 0, "main"), ("1 thread", 1, "threads"), ("1 process", 1, "processes")):
    settings = LoaderConfig(batch=16, workers=workers, mode=mode)
    found[name] = steps(make_loader(packed, settings, transform=images.RandomResizedCrop()))

# %% [markdown]
# The folded cell starts the filler as its own program, prints its command, and measures:

# %% jupyter={"source_hidden": true}
import os

from helpers.experiments.nb08 import filling
from smallfiles import ring
from smallfiles.ring import RingConfig

config = RingConfig(name=f"notebook-08-{os.getpid()}", slots=12, producers=1, epochs=1)
show.command(config, "train.arrow", "--batch", "16")
with filling(config, packed, "--batch", "16"), ring.attach(config.name) as batches:
    found["ring"] = steps(batches)
waiting = {name: spent["waiting"] / sum(spent.values()) for name, spent in found.items()}
title = f"Training waits {waiting['no worker']:.0%} of the time without a worker, {waiting['1 thread']:.0%} with 1 thread, "
title += f"{waiting['1 process']:.0%} with 1 process, {waiting['ring']:.0%} with a ring"
show.figure(figures.bars(found, title, x="seconds per epoch", note=f"one run of {len(source.manifest) // 16 - 1} steps"))


# %% [markdown]
# With free CPUs each hides most of the waiting. The process usually hides least, because it sends. What about the rest?
#
# - Below about 5 %, stop.
# - If batches are ready and training still waits, it is receiving them: the *send* of section 1. Threads and a ring send
#   nothing.
# - If no batch is ready, make batches cheaper, or get more CPUs.

# %% [markdown] id="exercise"
# ## Exercise
#
# [Exercise 08](../exercises/08_keep_the_gpu_fed.ipynb): find the bottleneck of three loaders, and remove each.

# %% [markdown] id="cluster"
# ## On the cluster
#
# This command compares processes, threads and a ring, prints where a batch's time goes, and recommends a setting.
# `slurm/submit SITE 08_tune_loader` runs it as a job:

# %%
from smallfiles.measure.loading import LoadBenchConfig

show.command(LoadBenchConfig(workers=(1, 2, 4, 8), batch=256), ["train.arrow"])

# %% [markdown]
# Then train with the best setting, or from a ring (`slurm/submit SITE 08_ring`). Its filler is a second step of the
# *same* job, since many sites give each job a private `/dev/shm`. The folded cell prints the commands.

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
# - Workers compute and wait. From packed files, start with as many per rank as it has CPUs.
# - A ring, or more prefetching, bridges stalls and pauses. It does not help if batches come too slowly on average.
# - The share of waiting tells whether any of this matters.

# %% [markdown] id="quiz"
# ## Check yourself
#
# **1.** With 8 workers on 8 CPUs, training waits 40 % of the time. Decoding is the longest stage. What helps? (a)
# `prefetch_factor=16` (b) a ring of 1,000 slots (c) decoding only the part that is shown (d) `pin_memory=True`
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
# **2.** Your node has 128 CPUs, and your job got 8 of them. How many workers do you start with? (a) 128 (b)
# `os.cpu_count()` (c) 8 (d) 2
#
# <details>
# <summary>Answer</summary>
#
# **(c)**. (b) is the same as (a): it counts the node. 128 workers take turns on 8 CPUs and keep 256 batches in memory.
# (d) leaves most of your CPUs idle. `len(os.sched_getaffinity(0))` counts the CPUs you may use.
#
# </details>
#
# **3.** A loader gives 900 images per second and the GPU trains 600 per second. You make the loader twice as fast.
# Training becomes (a) twice as fast (b) 1.5 times as fast (c) no faster (d) slower
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
