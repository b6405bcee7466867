# %% [markdown] id="top"
# # 08 · Keep the GPU fed
#
# **Minutes** 40 · **Machine** any Linux computer with two CPUs, no GPU needed · **Needs** nothing · **Data** 240
# synthetic images
#
# A GPU can only train if the next batch is ready. Before that, CPUs must read, decode, crop, scale and stack the images of
# this batch. If the data set is packed, and then staged or cached, reading is fast. Then the other steps decide how long
# the GPU waits.

# %% [markdown] id="questions"
# ## Questions
#
# - Which stage of a batch costs the most?
# - How many workers does a `DataLoader` need?
# - How do I see that a GPU waits for data?
# - When does it help to keep batches in a ring in memory?

# %% [markdown] id="objectives"
# ## After this you can
#
# - name the stage that you should improve,
# - decode, crop and scale in the cheapest order,
# - choose the settings of a `DataLoader`,
# - measure how long training waits, and read a GPU's gauge (its *utilization*) correctly.

# %% [markdown] id="setup"
# ## Set up
#
# Counts and simulations are the same on every machine, and processor times change little on a busy machine. Only the bars
# *send* in section 1 and the measurements in sections 3 and 5 need free CPUs.

# %% id="start"
import sys

sys.path.append("..")
from helpers import figures, show, start, worksheet

setup = start("08")

# %%
import time

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from smallfiles import formats, images, measure

# %% [markdown]
# The folded cell packs the images into one file and opens it as `reader`.

# %% jupyter={"source_hidden": true}
import heapq
import io
from functools import partial
from statistics import median

import matplotlib.pyplot as plt

from smallfiles.pack import PackConfig, pack

source, packed = setup.source(), setup.scratch / "train.arrow"
if not packed.exists():
    pack(source, packed, PackConfig())
reader = formats.open(packed)

# %% [markdown] id="recall"
# > **Recall** (06). Two forked workers use the same open file. Each calls `seek` and then `read`. What goes wrong, and how
# > do you fix it?
#
# <details>
# <summary>Answer</summary>
#
# The workers share the position in the file. One worker moves it while the other is about to read, so the other worker
# reads the wrong bytes, without an error. `os.pread` fixes this, because each call says where to read.
#
# </details>

# %% [markdown] id="follow" tags=["core"]
# ## 1 · Follow a batch
#
# In a [forum post](https://discuss.pytorch.org/t/pytorch-dataset-dataloader-classes/136830), somebody asked how to keep a
# GPU busy with random *views* of images. To make such a view, scale the image so that its shorter side gets a random length
# from 256 to 480 pixels. Then cut out a square of 224 x 224 pixels at a random place. A batch of views is made in five
# stages:
#
# - *read* the bytes of each file,
# - *decode* them from JPEG to pixels,
# - *augment* the pixels: crop and scale them to a view,
# - *collate* the views into one batch,
# - *send* the batch from a worker process to the training process.
#
# We compare five programs. The folded cell chooses one random view for each image, and all five programs make this view.

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
# The first program makes a common mistake. It converts the whole image to floats, scales the whole image, and crops it last.
# Each program yields the stage and the result of each step, so that we can count and time them.

# %% tags=["slide"]
from torchvision.transforms.v2 import functional as F


def floats_first(data, view):
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    yield "decode", picture
    pixels = F.to_dtype(F.to_image(picture), torch.float32, scale=True)
    yield "augment", pixels
    whole = F.resize(pixels, [view.short])  # the new length of the shorter side
    yield "augment", whole
    yield "augment", F.crop(whole, view.top, view.left, 224, 224)


# %% [markdown]
# The second program crops first. `view.box` says which part of the file's pixels the view shows.


# %%
def crop_first(data, view):
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    yield "decode", picture
    floats = F.to_dtype(F.crop(F.to_image(picture), *view.box), torch.float32, scale=True)
    yield "augment", floats
    yield "augment", F.resize(floats, [224, 224])


# %% [markdown]
# **Your turn.** The third program is yours. Change its last three lines so that it scales bytes instead of floats.


# %%
def mine(data, view):
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    yield "decode", picture
    part = F.crop(F.to_image(picture), *view.box)
    floats = F.to_dtype(part, torch.float32, scale=True)  # change me: no floats
    yield "augment", floats
    yield "augment", F.resize(floats, [224, 224])  # change me: scale the bytes


# %% [markdown]
# <details>
# <summary>The solution</summary>
#
# Replace these three lines by `yield "augment", F.resize(part, [224, 224])`.
#
# </details>
#
# The folded cell contains two more programs. In `usual`, Pillow scales the whole image, and the view is converted to floats
# at the end. `toolbox` never makes floats. If TurboJPEG 3 is installed, `toolbox` decodes only the part of the image that
# the view shows.

# %% jupyter={"source_hidden": true}
from smallfiles.images.picture import open_picture


def usual(data, view):
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    yield "decode", picture
    whole = F.resize(picture, [view.short])
    yield "augment", whole
    shown = F.crop(whole, view.top, view.left, 224, 224)
    yield "augment", F.to_dtype(F.to_image(shown), torch.float32, scale=True)  # what `ToTensor` does


def toolbox(data, view):
    part = open_picture(data).part(view.box, 224, 224)
    yield "decode", part
    images.resize(part, pixels := np.empty((224, 224, 3), np.uint8))
    yield "augment", torch.from_numpy(pixels)


# %% [markdown]
# We add up the bytes of everything that a program yields for one view, from the decoded image to the finished view. Then we
# add the bytes of the finished view a second time, because sending the view copies them again.
#
# > **Predict.** An image has about 500 x 375 pixels. As bytes, the view has 224 x 224 x 3 = 150,528 bytes. How many megabytes
# > does `floats_first` make and send for one view?

# %%
guess = None  # your guess: MB that floats_first makes and sends for one view


def size_of(result):
    """Bytes of a picture, an array or a tensor."""
    return 3 * result.width * result.height if isinstance(result, Image.Image) else result.nbytes


programs = {one.__name__: one for one in (usual, floats_first, crop_first, mine, toolbox)}
megabytes = {name: {"decode": 0.0, "augment": 0.0, "send": 0.0} for name in programs}
for name, program in programs.items():
    for index in range(96):
        for stage, result in program(bytes(reader.read(index)), views[index]):
            megabytes[name][stage] += size_of(result) / 96e6
        megabytes[name]["send"] += size_of(result) / 96e6  # the last result is the view

# %% [markdown]
# The folded cell draws the sums.

# %% tags=["slide"] jupyter={"source_hidden": true}
sums = {name: sum(stages.values()) for name, stages in megabytes.items()}
most, least = sums["floats_first"], sums["toolbox"]
title = f"For a view of 0.15 MB, floats_first makes and sends {most:.1f} MB, toolbox {least:.1f} MB"
axes = {"x": "MB made and sent per view", "guess": guess, "guess_of": "floats_first", "counted": True}
figures.bars(megabytes, title, **axes, note="mean of 96 images")

# %% [markdown]
# In `floats_first`, an image of 500 x 375 pixels has 0.56 MB after decoding, and 2.25 MB as floats. The scaled image is
# about as large. The view has 0.6 MB as floats, and we count it twice. Together, this is about 6 MB.
#
# Two habits make `floats_first` expensive:
#
# - *It scales pixels that it then throws away.* `crop_first` scales only the pixels of the view.
# - *It makes floats too early.* A decoded pixel has three values. Each value needs one byte, but as a float it needs four
#   bytes. If you keep bytes, the GPU can convert the whole batch to floats later (`images.normalise`).
#
# Do fewer bytes also mean less time? The folded cell defines `follow`, which measures the processor time of each stage, and
# `send_ms`, which measures the time to send a batch.

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
# The folded cell runs each program on ten batches and draws the time of each stage.

# %% jupyter={"source_hidden": true}
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
longest = max(list(bars["toolbox"])[:-1], key=bars["toolbox"].get)  # without send, which is not processor time
faster = total["usual"] / total["toolbox"]
title = f"The toolbox is {faster:.1f} times as fast as the usual program, and its longest stage is {longest}"
note = "processor time, median of 9 batches; send: until the batch has arrived, fastest of 12"
show.figure(figures.bars(bars, title, x="time per batch of 16 (ms)", note=note))

# %% [markdown]
# `floats_first` makes the most bytes and is the slowest program. `toolbox` makes the fewest bytes and is the fastest. But
# fewer bytes do not always mean less time. For example, `crop_first` makes slightly more bytes than `usual`, but it is
# slightly faster.
#
# When `mine` keeps bytes, *augment* and *send* take less than half as long as in `crop_first`. If your bars for these two
# programs are equal, change `mine` first.
#
# A program that crops first and keeps bytes spends most of its time on decoding. With TurboJPEG 3, `toolbox` shortens this
# stage, too.
#
# You can now solve tasks 3 and 4 of [exercise 08](../exercises/08_keep_the_gpu_fed.ipynb).

# %% [markdown] id="views" tags=["optional"]
# ## 2 · Choose the views
#
# *Optional, 5 minutes.* In `smallfiles.images`, the class `RandomShortSide` makes the views of the forum post. A more common
# view is `RandomResizedCrop`, which shows a random part of 8 to 100 % of the image's area. Many trainings then change the
# colours at random.

# %%
kinds = {
    "RandomResizedCrop + colours": images.RandomResizedCrop(jitter=images.ColourJitter()),
    "RandomResizedCrop": images.RandomResizedCrop(),
    "RandomShortSide": images.RandomShortSide(),
}

# %% [markdown]
# How much processor time do random colours add to `RandomResizedCrop`: 5, 40 or 200 %?
#
# The folded cell measures the processor time of each kind on 24 images.

# %% jupyter={"source_hidden": true}
jpegs = [bytes(reader.read(index)) for index in range(24)]


def image_ms(transform):
    began = time.thread_time()  # of this thread alone
    for number, data in enumerate(jpegs):
        transform(data, np.random.default_rng(number))
    return 1e3 * (time.thread_time() - began) / len(jpegs)


times = {name: [] for name in kinds}
for _ in range(6):
    for name, kind in kinds.items():
        times[name].append(image_ms(kind))
coloured, plain, _ = map(median, times.values())
title = f"Random colours add {coloured / plain - 1:.0%} to the time of RandomResizedCrop"
axes = {"x": "processor time per image (ms)"}
figures.bars(times, title, **axes)

# %% [markdown]
# On a calm machine, random colours added 35 to 45 %. To make the same number of images per second, you then need more CPUs,
# and a worker for each of them.
#
# <details>
# <summary>Large photographs: decode them at a reduced size</summary>
#
# A JPEG file can be decoded at a half, a quarter or an eighth of its size with less work. Our transforms do this where the
# view allows it. You can also scale all images once, while you pack them (`pack --resize 256`), but then the detail is
# lost.
#
# </details>

# %% [markdown] id="workers" tags=["core"]
# ## 3 · Add workers
#
# A worker is a process that makes batches for the training process. For each image, it first *waits* until the file has
# arrived, and it needs no CPU for that. Then it *computes* the view, and for that it needs a CPU. How many workers are
# enough? The next cell simulates when each image is ready.

# %% tags=["slide"]
def images_per_s(workers, wait_s, compute_s, cpus=2, count=2_000):
    """Simulate the workers one image at a time, and return their images per second."""
    worker_free, cpu_free = [0.0] * workers, [0.0] * cpus  # when each is free again
    for _ in range(count):
        arrived = heapq.heappop(worker_free) + wait_s  # the worker sleeps until its file is there
        done = max(arrived, heapq.heappop(cpu_free)) + compute_s  # then it needs a free CPU
        heapq.heappush(worker_free, done)
        heapq.heappush(cpu_free, done)
    return count / max(worker_free)


# %% [markdown]
# We simulate two CPUs, and each view needs 3 ms on one of them. From memory, a worker does not wait. From slow storage, it
# waits 12 ms for each file.
#
# > **Predict.** With how many workers does the rate stop growing, from memory and from slow storage?

# %%
guess = None  # your guess: workers that are enough from memory

# %% tags=["slide"]
counts = (1, 2, 5, 10, 20, 40)
simulated = {
    "memory": [images_per_s(n, 0, 0.003) for n in counts],
    "slow storage": [images_per_s(n, 0.012, 0.003) for n in counts],
}
few, many = (counts[np.argmax(np.array(r) > 0.98 * max(r))] for r in simulated.values())
fig, ax = plt.subplots(figsize=(7.2, 3), layout="constrained")
for name, rates in simulated.items():
    ax.plot(counts, rates, "o-", label=f"from {name}")
if guess:
    ax.axvline(guess, color="crimson", ls="--", label="your guess, from memory")
ax.legend()
title = f"Two CPUs need {few} workers from memory, and {many} from slow storage"
ax.set(xlabel="workers", ylabel="images per second", ylim=(0, None), title=title)
show.figure(fig, alt=f"{title}. Simulated, with 3 ms of a CPU per image, and 12 ms to wait.")

# %% [markdown]
# Both lines end at the same rate, because both have two CPUs. From memory, the workers only compute, so two workers keep
# two CPUs busy. From slow storage, a worker needs 15 ms for each image. In this time, two CPUs can compute ten views, so
# ten workers keep both CPUs busy. But these workers also burden a server that others use. Packing removes the wait for
# everybody.
#
# Now we measure real workers. `Views` is an ordinary PyTorch `Dataset`. It reads one file per image from `store`, which is
# a folder in memory or on a slow mount. Each view shows a random part of the image in random colours.

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


# %% [markdown]
# The next cell makes a `DataLoader` that reads from `Views`. The comments say what the settings do.


# %%
def by_processes(store, count, workers):
    return DataLoader(
        Views(store, count),
        batch_size=8,
        shuffle=True,
        num_workers=workers,  # 0: the training process makes its batches itself
        multiprocessing_context="fork" if workers else None,  # spawned workers cannot find Views
        prefetch_factor=2 if workers else None,  # batches ready ahead, per worker
        persistent_workers=workers > 0,  # keep them alive between epochs
        pin_memory=torch.cuda.is_available(),  # a GPU copies faster from pinned memory
    )


# %% [markdown]
# The folded cell measures the rate with 0 to 8 workers, from memory and from a slow mount. On that mount, it takes 12 ms to
# find and open a file, as in the simulation. The cell also notes the highest rate from memory and the processor time of an
# image on your worksheet.

# %% tags=["slide"] jupyter={"source_hidden": true}
from smallfiles.slowfs import SlowConfig, open_slow


def epoch(loader):
    return sum(len(labels) for _, labels in loader)


tried, lines = (0, 1, 2, 4, 8), {}
with open_slow(setup.folder(), SlowConfig(latency_s=0.006)) as slow:
    for where, store, images_read, rounds in (("memory", source.store, 160, 4), ("slow storage", slow.store, 64, 2)):
        tasks = {f"{n} workers": partial(epoch, by_processes(store, images_read, n)) for n in tried}
        result = measure.compare(tasks, rounds=rounds, unit="images")
        tasks.clear()  # the worker processes end with their loaders
        lines[where] = {n: max(result.rates_per_s(f"{n} workers")) for n in tried}
gain = {where: max(line.values()) / line[0] for where, line in lines.items()}
title = f"Measured here, workers multiply the rate by {gain['memory']:.1f} from memory and by {gain['slow storage']:.1f} from slow storage"
axes = {"x": "workers", "y": "images per second", "note": "the fastest of 4 runs from memory, of 2 from slow storage"}
show.figure(figures.lines(lines, title, **axes, marks={"CPUs": setup.cpus} if setup.cpus <= 8 else {}))
dataset, passes = Views(source.store, len(names)), []
for _ in range(4):  # keep the fastest of 4 passes, as for the rates above
    began = time.thread_time()
    for index in range(48):
        dataset[index % len(dataset)]
    passes.append(1e3 * (time.thread_time() - began) / 48)
worksheet.note("08", images_per_s=max(lines["memory"].values()), cpu_ms=min(passes))

# %% [markdown]
# On a calm machine with two CPUs, workers multiplied the rate by 1.1 to 1.6 from memory, and by 4 to 7 from slow storage.
# They gain less than in the simulation, because sending and receiving batches need CPU time, too. On a busy machine,
# workers may even make it slower to read from memory.
#
# <details>
# <summary>Are these workers enough for your GPU?</summary>
#
# Compare the measured rate with the rate at which your GPU trains. To find the highest rate that your CPUs can reach,
# divide their number by the processor time of an image, which is on your worksheet. If this time is 1.5 ms, for example, 8
# CPUs make at most 5,300 images per second. If that is too few and decoding is the longest stage, you can decode on the
# GPU, with DALI or `torchvision.io.decode_jpeg(…, device="cuda")`. Do this in the training process, since a forked worker
# cannot use CUDA.
#
# </details>
#
# Worker processes keep the batches that are ready in `/dev/shm`, a folder in memory. Suppose that each of 8 workers keeps 2
# batches of 256 views ready. How many gigabytes do these batches need if the views are floats?

# %%
import shutil

workers, ahead, batch = 8, 2, 256  # change me: your loader
for kind, size in (("bytes", 1), ("floats", 4)):
    print(f"{workers * ahead * batch * 3 * 224**2 * size / 1e9:.1f} GB as {kind}")
print(f"{shutil.disk_usage('/dev/shm').free / 1e9:.1f} GB free in /dev/shm")

# %% [markdown]
# As floats, these batches need 2.5 GB. As bytes, they need a quarter of that. If the batches do not fit into `/dev/shm`, a
# worker fails with `unable to allocate shared memory` ([12](12_when_it_breaks.ipynb)). These batches also count towards the
# memory of your job. If the job needs more than it asked for, Slurm may end it before `/dev/shm` is full. Notebook
# [02](02_describe_a_dataset.ipynb#5-·-Count-the-memory-of-workers) counts how much other memory a worker needs.
#
# You can now solve task 2 of [exercise 08](../exercises/08_keep_the_gpu_fed.ipynb). Each worker must open the file itself,
# as in [06](06_read_a_squashfs_image.ipynb).

# %% [markdown] id="ring" tags=["optional"]
# ## 4 · Build a ring
#
# *Optional, 12 minutes.* The forum post had another idea. A second program fills a part of the memory with finished
# batches, and the training program takes them out. This memory is called a *ring*. Each of its *slots* contains one batch.
#
# ![Twelve slots in a ring. Producers fill the next empty slots, training reads the oldest ready one and then frees it.](pictures/ring.svg)
#
# We build a ring by hand. The queue `free` contains the numbers of the free slots. A *producer* fills a free slot with a
# batch and puts its number into the queue `ready`.

# %%
import mmap
import multiprocessing

SLOTS, SHAPE = 6, (4, 224, 224, 3)  # a batch of 4 images
memory = mmap.mmap(-1, SLOTS * int(np.prod(SHAPE)))  # shared with a forked process
slots = np.frombuffer(memory, np.uint8).reshape(SLOTS, *SHAPE)
fork = multiprocessing.get_context("fork")


def fill(transform, batches):  # the producer
    for number, indices in enumerate(batches):
        slot = free.get()  # sleeps until a slot is free
        for place, index in enumerate(indices):
            rng = np.random.default_rng([number, place])
            transform.into(reader.read(index), rng, slots[slot, place])
        made.value += 1
        ready.put(slot)
    ready.put(None)  # the end: one producer here


# %% [markdown]
# The next cell sends 12 batches through a ring of 6 slots. Training is slow, so the ring fills up. While training uses one
# batch, how many finished batches wait in the ring at most: 12, 6 or 5?

# %%
free, ready, made = fork.SimpleQueue(), fork.SimpleQueue(), fork.Value("i", 0)
for slot in range(SLOTS):
    free.put(slot)
order = np.arange(12 * 4).reshape(12, 4).tolist()
producer = fork.Process(target=fill, args=(images.RandomShortSide(), order))
producer.start()
taken, waiting = 0, []
while (slot := ready.get()) is not None:
    taken += 1
    time.sleep(0.2)  # a slow training step, which reads slots[slot]
    waiting.append(made.value - taken)
    free.put(slot)
producer.join()
print(f"{taken} batches through {SLOTS} slots; at most {max(waiting)} waited during a step")

# %% [markdown]
# Training uses one of the six slots during its step, so at most 5 batches can wait in the others.
#
# When does a ring help? Suppose that a training step takes 20 ms, and that making a batch takes 9 ms. But in every 0.6 s,
# the storage *stalls* for 0.27 s, which means that it does not answer. In the other 0.33 s, 36 batches can be made, and
# training needs only 30 batches in 0.6 s. So on average, batches are made fast enough.


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
# > **Predict.** How many slots does the ring need so that training does not wait during a stall?

# %%
my_slots = 8  # change me: slots that are enough for the stall

# %% [markdown]
# The folded cell prints how long training waits in two cases. In the first case, the storage stalls as above. In the second
# case, it never stalls, but making a batch takes 30 ms, which is longer than a step. For the first case, the figure shows
# how many batches are ready when training asks for one.

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
# During a stall, hardly any batch is added, so the number of ready batches falls by one per step.
#
# **Your turn.** Change `my_slots` until training waits 0 % of the time.
#
# <details>
# <summary>How many slots are enough?</summary>
#
# 14 slots are enough. The next batch is ready 0.27 s + 9 ms after the beginning of a stall, which is nearly as long as 14
# steps of 20 ms. Training uses one batch, and 13 others wait. More slots gain nothing.
#
# </details>
#
# The two cases show when a ring helps:
#
# - The number of batches that are made ahead decides how long a stall can be bridged. A `DataLoader` can do this, too,
#   because it makes workers × `prefetch_factor` batches ahead.
# - If batches are made too slowly *on average*, every ring is empty sooner or later. In the second case, training waits for
#   34 % of the time with two or more slots.

# %% [markdown] id="train" tags=["core"]
# ## 5 · Look at the waiting
#
# In the training loop, you can measure how long training waits for data. While a GPU computes a training step, the CPUs are
# free to make batches. So here we can replace the step by a sleep of 40 ms.


# %% tags=["slide"]
def waiting_share(loader, step_s=0.04):
    batches = iter(loader)
    next(batches), time.sleep(step_s)  # the first batch starts the workers, so it is not counted
    asked = began = time.perf_counter()
    waited = 0.0
    for _ in batches:
        waited += time.perf_counter() - asked
        time.sleep(step_s)  # forward, backward, optimizer.step(), and torch.cuda.synchronize()
        asked = time.perf_counter()
    return round(100 * waited / (asked - began))  # percent


# %% [markdown]
# Workers can also be *threads* of the training process, because decoding and scaling release Python's lock (the GIL). We
# compare three loaders:

# %%
from smallfiles.loading import LoaderConfig, make_loader

loaders = {
    "no worker": LoaderConfig(batch=16, workers=0, mode="main"),
    "1 thread": LoaderConfig(batch=16, workers=1, mode="threads"),
    "1 process": LoaderConfig(batch=16, workers=1, mode="processes"),
}

# %% [markdown]
# The processor time of a batch of 16 tells how long training should wait. Without a worker, training waits while it makes
# each batch itself. With one worker, it waits only if making a batch takes longer than a step.
#
# > **Predict.** For what share of the time does training wait without a worker: 5, 30 or 80 %? (The bar `toolbox` of
# > section 1 helps.)

# %%
guess = None  # your guess: percent, without a worker

# %%
step_s, make_view, rng = 0.04, images.RandomResizedCrop(), np.random.default_rng(0)
began = time.thread_time()
for index in range(64):
    make_view(reader.read(index), rng)
make_s = (time.thread_time() - began) / 4  # processor time of a batch of 16
expected = {"no worker": make_s / (make_s + step_s), "one worker": max(0, 1 - step_s / make_s)}
print(f"a batch: {1e3 * make_s:.0f} ms; expected:", {n: f"{x:.0%}" for n, x in expected.items()})

# %% [markdown]
# The folded cell measures two epochs of each loader. It also measures two epochs from a *ring*. This is shared memory that
# another program fills with finished batches (section 4). The cell prints the command of this program.

# %% tags=["slide"] jupyter={"source_hidden": true}
import os

from helpers.experiments.nb08 import filling
from smallfiles import ring
from smallfiles.ring import RingConfig

shares = {name: [] for name in loaders}
for _ in range(2):
    for name, settings in loaders.items():
        loader = make_loader(packed, settings, transform=images.RandomResizedCrop())
        shares[name].append(waiting_share(loader))
config = RingConfig(name=f"notebook-08-{os.getpid()}", slots=12, producers=1, epochs=2)
show.command(config, "train.arrow", "--batch", "16")
with filling(config, packed, "--batch", "16"), ring.attach(config.name) as batches:
    shares["ring"] = [waiting_share(batches) for _ in range(2)]
none, *others = (round(median(runs)) for runs in shares.values())
title = f"Measured here, training waits {none}% without a worker, and {min(others)} to {max(others)}% with a worker or the ring"
axes = {"x": "share of the time that training waits (%)", "guess_of": "no worker"}
marks = {"expected without a worker": 100 * expected["no worker"]}
show.figure(figures.bars(shares, title, **axes, base="no worker", guess=guess, marks=marks))

# %% [markdown]
# On a calm machine, training without a worker waits about as long as we computed (25 to 52 % of the time in our runs).
# If this is less than half of the time, making a batch takes less time than a step, and one worker with its own CPU is fast
# enough. Training then still waited
# for 0 to 14 % of the time, because it must also receive each batch. On a busy machine, training waits longer in all cases.
#
# What can you do about the waiting?
#
# - If training waits for less than about 5 % of the time, stop. Faster loading cannot save more.
# - If the CPUs of your workers are busy all the time (`htop`), batches are made too slowly. Make them cheaper (section 1),
#   or get more CPUs.
# - If these CPUs are idle part of the time and training still waits, measure again with a small data set in memory. If
#   training now waits much less, the workers waited for storage. Pack and stage the data set, or add workers (section 3).
# - If training waits as long as before, receiving the batches is slow. Worker processes must send each batch to training.
#   Threads send nothing, but they compete with training for the GIL. A ring avoids both.
#
# **Do not rely on the GPU's gauge.** `nvidia-smi` shows the *utilization* of a GPU. This is the percentage of time in which
# [at least one kernel](https://docs.nvidia.com/deploy/nvml-api/structnvmlUtilization__t.html) was running on the GPU. A
# kernel that only waits is counted, too.
#
# With several GPUs, each GPU has its own process, a *rank*, and the ranks exchange gradients after each step. A rank that
# is early waits for the others inside this exchange, and its gauge [shows 100 %](https://github.com/cupy/cupy/issues/3557).
#
# The next cell computes what four gauges show if a step takes 20 ms. Only rank 3 has a slow loader, which needs 50 ms for a
# batch.

# %% tags=["slide"]
def gauges(load_s, step_s=0.02, steps=500):
    """Return three shares of the time per rank: kernel on its GPU, computing, waiting to load."""
    now, busy, waited = 0.0, np.zeros(len(load_s)), np.zeros(len(load_s))
    for step in range(steps):
        ready = np.maximum(now, (step + 1) * np.array(load_s))  # each loader makes batches ahead
        waited += ready - now
        end = (ready + step_s).max()  # gradients are exchanged when the slowest rank has computed
        busy += end - ready  # compute, then wait in the kernel that exchanges
        now = end
    return busy / now, steps * step_s / now, waited / now


busy, computing, waited = gauges([0.01, 0.01, 0.01, 0.05])  # change me: seconds per batch
for rank, (gauge, wait) in enumerate(zip(busy, waited, strict=True)):
    print(f"rank {rank}: gauge {gauge:4.0%}, computing {computing:.0%}, waiting {wait:4.0%}")

# %% [markdown]
# All GPUs compute for only 40 % of the time, but three gauges show 100 %. These three ranks do not wait for their own
# loaders either. Only the waiting of rank 3 shows the cause, so measure it on every rank.
#
# You can now solve task 1 of [exercise 08](../exercises/08_keep_the_gpu_fed.ipynb).

# %% [markdown] id="exercise"
# ## Exercise
#
# [Exercise 08](../exercises/08_keep_the_gpu_fed.ipynb): three loaders are slow for different reasons. Find the bottleneck of
# each, and fix it.

# %% [markdown] id="cluster"
# ## On the cluster
#
# The next cell prints a command that compares processes, threads and a ring on a node, and recommends a setting. To run it
# as a job, use `slurm/submit SITE 08_tune_loader`.

# %%
from smallfiles.measure.loading import LoadBenchConfig

show.command(LoadBenchConfig(workers=(1, 2, 4, 8), batch=256), ["train.arrow"])

# %% [markdown]
# Then train with the best setting, or from a ring (`slurm/submit SITE 08_ring`). The program that fills the ring must be a
# step of the *same* job, because many sites give each job its own `/dev/shm`. The folded cell prints the commands.

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
# - Measure all stages of a batch before you change one of them.
# - Crop before you scale. Keep bytes, and let the GPU convert them to floats.
# - Start one worker for each CPU of the rank. If workers also wait for storage, more workers help, but packing helps more.
# - A ring or more prefetching helps during stalls. It does not help if batches are made too slowly on average.
# - Measure how long training waits, on every rank. A GPU's gauge can show 100 % while the GPU only waits.

# %% [markdown] id="quiz"
# ## Check yourself
#
# **1.** With 8 workers on 8 CPUs, training waits for 40 % of the time, and decoding is the longest stage. What helps? (a)
# `prefetch_factor=16`. (b) A ring of 1,000 slots. (c) Decode only the part that the view shows. (d) `pin_memory=True`.
#
# <details>
# <summary>Answer</summary>
#
# **(c)**. It is the only change that makes a batch cheaper. (a) and (b) store more batches, but here batches are made too
# slowly on average, so every store is empty sooner or later. (d) makes the copy to the GPU faster, and that is not
# the longest stage.
#
# </details>
#
# **2.** Your node has 128 CPUs, and your job may use 8 of them. How many workers do you start with? (a) 128. (b)
# `os.cpu_count()`. (c) 8. (d) 2.
#
# <details>
# <summary>Answer</summary>
#
# **(c)**. (b) gives the same number as (a), because it counts the CPUs of the node. 128 workers would take turns on 8
# CPUs and keep 256 batches in memory. (d) leaves most of your CPUs idle. `len(os.sched_getaffinity(0))` counts the CPUs
# that Slurm gave you, if it binds jobs to CPUs.
#
# </details>
#
# **3.** `nvidia-smi` shows 100 % on 7 of 8 GPUs, but an epoch takes twice as long as it took on 4 GPUs. What do you look at
# first? (a) Nothing: the GPUs are busy. (b) How long each rank waits for its loader. (c) A larger batch.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**. One rank with a slow loader makes all others wait in the exchange of gradients, where their gauges show 100 %. (a)
# trusts a gauge that also counts waiting kernels. (c) makes each step longer, but the slow loader stays as slow.
#
# </details>

# %% [markdown] id="next"
# ## Next
#
# [09 · Stream shards from object storage](09_stream_shards.ipynb) feeds the same loader from a store in another place.
