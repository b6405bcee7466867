# %% [markdown] id="top"
# # 08 · Keep the GPU fed
#
# **Minutes** 40 · **Machine** any Linux computer, two CPUs do, a GPU is not needed · **Needs** nothing · **Data** 240
# synthetic images
#
# Packed files give bytes as fast as memory. A GPU wants batches: decoded, cut, scaled, stacked. Between the two lies
# most of the work of a training job's CPUs. This notebook follows a batch, finds what it waits for, and removes it.

# %% [markdown] id="questions"
# ## Questions
#
# - Where does the time of a batch go?
# - Which order of the work costs least, for the same pixels?
# - How many workers, and are they processes or threads?
# - When does a ring of ready batches in memory pay?
# - How do I know that training waits?

# %% [markdown] id="objectives"
# ## After this you can
#
# - draw a bar of a batch's time and name the stage to mend,
# - put decoding, cutting and scaling in the cheap order,
# - choose workers by measurement,
# - build a ring buffer by hand, use a safe one, and say when neither helps,
# - read the share of time that training waits.

# %% [markdown] id="setup"
# ## Set up

# %% id="start"
import sys

sys.path.append("..")
from helpers import show, start

setup = start("08")

# %%
from smallfiles import formats
from smallfiles.pack import PackConfig, pack

source = setup.source()
packed = setup.scratch / "train.arrow"
if not packed.exists():
    pack(source, packed, PackConfig())
reader = formats.open(packed)

# %% [markdown] id="follow"
# ## 1 · Follow a batch
#
# Somebody asked in a forum how to keep a GPU busy. Each picture is scaled until its shorter side has a random length
# from 256 to 480 pixels, and then 224 x 224 pixels are cut out. Here four programs make the same 16 views:
#
# - *floats, scale, cut*: `ToTensor` first, as the loaders of the Jülich course do (notebook 03), then scale all, then cut;
# - *scale, cut, floats*: what most people write with Pillow and torchvision;
# - *cut, scale*: cut the part out first, on bytes; send bytes, and leave floats to the GPU;
# - *only the part*: do not even decode what will be cut off.
#
# The first two open a small file for each picture, the others read the packed file.
#
# > **Predict.** Which is the longest stage of the first program: read, decode, augment (cut and scale), collate (stack), or
# > transfer (send to the trainer)? And of the last?

# %%
from helpers.experiments.nb08 import stages

followed = stages.follow(source, packed)

# %%
from helpers.figures import feeding as draw

show.figure(draw.stages(followed), alt=followed.alt_text)

# %% [markdown]
# What did each step of the cure save, and in which stage? Negative numbers are a loss, or noise.

# %%
show.say(followed.gained)

# %% [markdown]
# Are these really the same views? The place is rounded to whole pixels, once before scaling and once after it.

# %%
for way in followed.ways:
    print(
        f"{way.way:20} {way.difference:4.1f} of 255 from the first, {way.batch_bytes / 1e6:4.1f} MB to send"
    )

# %% [markdown]
# Two habits to drop. *Scaling what is thrown away*: cut first. *Floats too early*: four bytes for one in every stage
# behind it, the transfer included. `images.normalise` makes floats of a whole batch, on the GPU.
#
# Files are in this machine's cache, so *read* is small. On a cold parallel file system it may be most of the bar
# ([notebook 01](01_count_the_cost_of_small_files.ipynb)); then pack and stage first.

# %% [markdown] id="views"
# ## 2 · Choose the views
#
# Two kinds of random views are usual. `RandomShortSide` is the forum's. `RandomResizedCrop` takes 8 to 100 % of the area,
# and stretches it. Both may change colours at random too.

# %%
import numpy as np

from smallfiles import images

colour = images.ColourJitter()
kinds = {
    "RandomShortSide": images.RandomShortSide(),
    "RandomResizedCrop": images.RandomResizedCrop(),
    "colours changed": images.RandomResizedCrop(jitter=colour),
}
data = bytes(reader.read(3))
views = {name: [kind(data, np.random.default_rng(n)) for n in range(5)] for name, kind in kinds.items()}

# %%
alt = "A picture and five random views of it in each of three rows: " + ", ".join(kinds)
show.figure(draw.views(views, images.decode(data)), alt=alt)

# %% [markdown]
# > **Predict.** Which of the three costs least, and how much do colours add?

# %%
from statistics import median

from helpers.experiments.nb08 import pictures

files = [bytes(reader.read(index)) for index in range(24)]
costs = pictures.cost_of(kinds, files)
for name, seconds in costs.items():
    print(f"{name:18} {1e3 * median(seconds):.2f} ms ({1e3 * min(seconds):.2f} to {1e3 * max(seconds):.2f})")

# %% [markdown]
# Our colours are one matrix for a finished view. Before cutting, it would be applied to a whole picture, which has 500 x
# 375 pixels: 3.7 times as many.
#
# A JPEG can be decoded at a half, a quarter or an eighth of its size for less. These pictures are too small for that, as
# half of 375 is less than 224. So here are six that are four times as wide.
#
# > **Predict.** Does it help training, which takes parts, as much as validation, which takes the whole picture?

# %%
large = pictures.enlarged(reader, 6)
show.say("Training: " + pictures.reduce(large).sentence)
show.say("Validation: " + pictures.reduce(large, validation=True).sentence)

# %% [markdown]
# If your pictures are that large, scale them once, while packing: `pack --resize 256`. Each epoch is cheaper then, and
# detail is gone for good.

# %% [markdown] id="workers"
# ## 3 · Add workers
#
# `make_loader` gives a PyTorch `DataLoader` over a packed file. Its batches are made by processes, by threads, or by the
# main thread itself (`workers=0`).

# %%
from smallfiles.loading import LoaderConfig, make_loader

loader = make_loader(packed, LoaderConfig(batch=16, mode="main"), transform=images.RandomResizedCrop())
batch = next(iter(loader))
batch["image"].shape, batch["image"].dtype, batch["target"][:4]

# %% [markdown]
# > **Predict.** How many workers are best here? Will threads be slower, since Python runs one thread at a time?

# %%
from helpers.experiments.nb08 import workers

speed = workers.measure_workers(packed)
show.figure(draw.workers(speed), alt=speed.alt_text)

# %%
show.say(speed.gain_beyond)

# %% [markdown]
# Decoding and scaling happen in C, where Python's lock is released, so threads work at once. A thread leaves its batch in
# the trainer's memory; a process has to send it. Many threads wait for each other's Python, so `make_loader` takes up
# to four threads, and processes beyond that. Count the CPUs of your job, not those of the node:
# [notebook 00](00_start_here.ipynb) shows both.
#
# Each worker makes batches ahead, and they wait in memory.
#
# > **Predict.** Batches of 256, 8 workers, 2 batches ahead each: how many gigabytes are that as bytes, and as floats?

# %%
one = 256 * 224 * 224 * 3
print(f"{8 * 2 * one / 1e9:.1f} GB as bytes, {4 * 8 * 2 * one / 1e9:.1f} GB as floats")

# %% [markdown]
# Processes keep them in `/dev/shm`; where that is too small, a worker dies of a *bus error*. `make_loader` counts before it
# starts. The last stage is the copy to a GPU. It can be quicker from *pinned* memory, which the system never moves:

# %%
from helpers.experiments.nb08 import pinning

show.say(pinning.summary(batch["image"]))

# %% [markdown] id="ring"
# ## 4 · Build a ring
#
# The idea in the forum: a second program fills a RAM disk with finished batches, training empties it, and files tell
# both sides how far they are. We build the core of it by hand: memory that two processes share, cut into slots, and two
# queues of slot numbers. Whoever has nothing to do sleeps at a queue.

# %%
import mmap
import multiprocessing

SLOTS, SHAPE = 6, (16, 224, 224, 3)
size = SLOTS * int(np.prod(SHAPE))
memory = mmap.mmap(-1, size)  # shared with a forked process, gone with the last of the two
slots = np.frombuffer(memory, np.uint8).reshape(SLOTS, *SHAPE)
fork = multiprocessing.get_context("fork")
free, ready, made = fork.SimpleQueue(), fork.SimpleQueue(), fork.Value("i", 0)


# %%
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
# > **Predict.** The ring has 6 slots and there are 12 batches. Training takes 50 ms a step. What is the largest number of
# > batches that wait?

# %%
import time

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
# During a step, training holds one slot itself, so no more than 5 can wait. No batch was copied on its way. But a producer
# that is killed leaves training asleep forever. Nothing remembers where training was. Two producers would mix up the
# order. `smallfiles.ring` takes care of all that, and gives the same batches as the `DataLoader`.
#
# Does a ring make training faster? Now the storage is imitated. It needs 13 ms for a batch, but stands still for 0.4 s in
# every 0.9 s, as a busy file system does. A step takes 30 ms, so on average there is enough. For comparison, a storage
# without stalls that needs 60 ms. Before each epoch training pauses for 0.4 s, as for an evaluation.
#
# > **Predict.** Which of these wait least: 2 batches ahead, 16 batches ahead, or a ring of 16 slots? And with the storage
# > that is too slow?

# %%
from helpers.experiments.nb08 import stalls

stalled = stalls.measure_stalls(packed)
show.figure(draw.stalls(stalled), alt=stalled.alt_text)

# %% [markdown]
# A buffer bridges a stall if it is full when the stall begins, and holds more steps than the stall is long. More
# `prefetch` can do that too. But a `DataLoader` rests between epochs and begins each with nothing, while the ring fills
# up meanwhile.
#
# If the supply is too slow on average, every buffer runs empty. What the ring gains then, it made in the pauses.
#
# So a ring pays where batches come in bursts, or training pauses; and where another program shall fill it, so that
# training can be stopped and begun again without losing what is ready. It never replaces CPUs.

# %% [markdown] id="train"
# ## 5 · Train, and look at the waiting
#
# A small network on small views. The report of each epoch has `waiting_share`: the part of the time in which nothing could
# be computed because no batch was there. Training gets one CPU here, so that another is free for batches.
#
# > **Predict.** Which share waits if the main thread makes the batches? And with one thread beside it?

# %%
from helpers.experiments.nb08.clock import one_thread
from smallfiles.training import TrainConfig, train


def told(name, report):
    """Say how an epoch went."""
    last = report.epochs[-1]
    rate = last.samples / last.seconds
    show.say(f"*{name}*: {rate:,.0f} images/s, **{last.waiting_share:.0%}** of the time waiting for data")


for name, loader in {
    "main thread": LoaderConfig(batch=16, mode="main"),
    "one thread beside it": LoaderConfig(batch=16, workers=1, mode="threads"),
}.items():
    with one_thread():
        told(name, train(packed, config=TrainConfig(loader=loader, epochs=1, size=32)))

# %% [markdown]
# Now with a ring, filled by a program of its own. In a terminal you would start it by hand:

# %%
import os

from smallfiles.ring import RingConfig

ring = RingConfig(name=f"notebook-08-{os.getpid()}", slots=12, producers=1, epochs=1)
show.command(ring, "train.arrow", "--batch", "16", "--size", "32")

# %%
from helpers.experiments.nb08.filler import filling

with filling(ring, packed, "--batch", "16", "--size", "32"), one_thread():
    report = train(packed, config=TrainConfig(ring=ring.name, epochs=1, size=32))
told("from the ring", report)

# %% [markdown]
# Training found the ring by its name and waited until the filler was there. `ring status` asks a filler how far both
# sides are. When one of them is killed, the other waits for its successor, and goes on at the batch that was due.
#
# On a CPU, making batches and computing share the same cores, so less waiting need not be more images per second. With a
# GPU it usually is.

# %% [markdown] id="exercise"
# ## Exercise
#
# [Exercise 08](../exercises/08_keep_the_gpu_fed.ipynb): find the bottleneck of three loaders, and cure each.

# %% [markdown] id="cluster"
# ## On the cluster
#
# Measure before choosing. This compares processes, threads and a ring for several numbers of workers, prints where
# a batch's time goes, and recommends one. `slurm/submit SITE 08_tune_loader` runs it on a compute node, with as many
# workers as the job has CPUs, and draws the figure:

# %%
from smallfiles.measure.loading import LoadBenchConfig

show.command(LoadBenchConfig(workers=(1, 2, 4, 8), batch=256), ["train.arrow"])

# %% [markdown]
# Then train with what was best:

# %%
best = LoaderConfig(batch=256, workers=8, mode="processes")
show.command(TrainConfig(loader=best, model="resnet50", size=224, epochs=90), "train.arrow", "val.arrow")

# %% [markdown]
# Or with a ring. The filler is a second job step on the same node, as `slurm/submit SITE 08_ring` starts it; the ring
# counts against the memory of the job:

# %%
show.command(RingConfig(name="imagenet", slots=64, epochs=90), "train.arrow", "--batch", "256")

# %%
show.command(TrainConfig(ring="imagenet", model="resnet50", size=224, epochs=90), "train.arrow")

# %% [markdown] id="key-points"
# ## Key points
#
# - A batch is read, decoded, augmented, collated and sent: measure each before you change one.
# - Cut first, then scale; stay with bytes, and make floats on the GPU.
# - Begin with as many workers as the job has CPUs, threads if they are few and processes if many; then measure.
# - A ring or more prefetching bridges stalls and pauses. It does not help if batches come too slowly on average.
# - The share of time spent waiting says whether any of this matters.

# %% [markdown] id="next"
# ## Next
#
# This is the last step inside one node. [10 · Run it on many nodes](10_run_it_on_many_nodes.ipynb) takes the same loader to
# several, as a job.
