# %% [markdown] id="top"
# # 11 · Choose a format
#
# **Minutes** 40 · **Machine** any Linux computer with two CPUs · **Needs** 03 to 06 and 09 help · **Data** 400 synthetic
# images
#
# Which format to use depends on your storage and number of nodes, and hardly on how fast it is to read.

# %% [markdown] id="questions"
# ## Questions
#
# - Which format reads fastest, and does that matter?
# - Which requests does each send to the storage?
# - Why do requests wait before a server is full?
# - How many nodes does each way of storing data feed?
# - What should *I* use?

# %% [markdown] id="objectives"
# ## After this you can
#
# - measure formats side by side,
# - count the requests that a format costs,
# - explain why requests queue,
# - forecast how many nodes a format feeds,
# - recommend a format with numbers.

# %% [markdown] id="setup"
# ## Set up

# %% id="start"
import sys

sys.path.append("..")
from helpers import figures, show, start, worksheet

setup = start("11")

# %% [markdown] id="recall"
# > **Recall** (09). A round trip takes 50 ms. You fetch objects of 100 kB, one request at a time. How many MB arrive
# > per second at most? And with 8 in flight?
#
# <details>
# <summary>Answer</summary>
#
# 2 MB: 20 round trips of 0.1 MB. With 8 in flight 16 MB.
#
# </details>

# %% [markdown] id="read" tags=["core"]
# ## 1 · Read every format
#
# `pack` writes the images in six ways; the suffix chooses.

# %%
import tempfile
from pathlib import Path

from smallfiles import formats
from smallfiles.pack import pack

SUFFIXES = ("files", "arrow", "h5", "tars", "sqfs", "lmdb")
out = Path(tempfile.mkdtemp(dir=setup.scratch))
for suffix in SUFFIXES:
    print(suffix, pack(setup.source(), out / f"train.{suffix}").files, "files")
readers = {suffix: formats.open(out / f"train.{suffix}") for suffix in SUFFIXES}

# %% [markdown]
# For Zarr, the folded cell joins all images to one array.

# %% jupyter={"source_hidden": true}
import numpy as np
import zarr

images = [np.frombuffer(image, np.uint8) for image in readers["files"].read_many(range(setup.count))]
begins = np.cumsum([0, *map(len, images)])
array = zarr.create_array(out / "train.zarr", data=np.concatenate(images), chunks=(128 << 10,), compressors=None)

# %% [markdown]
# > **Predict.** All is in the page cache. What percent of the time to decode an image does reading its file take?

# %%
guess = 10  # change me: percent of the time to decode

# %%
from functools import partial

from smallfiles import measure
from smallfiles.images import RandomResizedCrop

view, rng = RandomResizedCrop(224), np.random.default_rng(0)
order = rng.permutation(setup.count).tolist()


def read(reader, indices):
    """Read images one by one, and copy their bytes, so that every page is touched."""
    return sum(len(bytes(reader.read(index))) > 0 for index in indices)


def read_zarr(indices, at_once=1):
    return sum(at_once for index in indices if len(array[begins[index] : begins[index + at_once]]))


def decode(indices):
    return sum(len(view(images[index].tobytes(), rng)) > 0 for index in indices)


calls = {suffix: partial(read, readers[suffix], order) for suffix in SUFFIXES}
calls["zarr"] = partial(read_zarr, order)
calls["decode"] = partial(decode, order[:100])
result = measure.compare(calls, unit="images")

# %% [markdown]
# The folded cell draws the times.

# %% jupyter={"source_hidden": true}
rates = {name: result.rates_per_s(name) for name in calls}
percent = {name: [float(f"{100 * np.median(rates['decode']) / rate:.2g}") for rate in runs] for name, runs in rates.items()}
most = max(np.median(percent[suffix]) for suffix in SUFFIXES)
title = f"From memory, all but Zarr are read within {np.ceil(most):.0f} % of the time to decode"
axes = {"x": "time per image, in percent of the time to decode it", "base": "decode"}
figures.bars(percent, title, **axes, guess=guess, guess_of="files", note="from memory")

# %% [markdown]
# Do not choose among the six by this figure: beside decoding, a faster one saves almost nothing. And on
# Lustre a plain file asks the server at each open, even if its bytes are cached.
#
# LMDB is a file of keys and values. Zarr, an array in chunks, is made for long slices, not for single images.
#
# **Your turn.** Let each slice bring ten images: in the cell that measures, change the line to
# `calls["zarr"] = partial(read_zarr, range(0, setup.count, 10), 10)`, and run both cells again.
#
# <details>
# <summary>Answer</summary>
#
# An image takes a fifth to a half of its time alone: fewer calls, and fewer chunks read twice.
#
# </details>

# %% [markdown] id="ask" tags=["core"]
# ## 2 · Count the requests to the storage
#
# `slowfs` makes a folder slow, and counts what is asked. We read 100 images at random, uncached.
#
# > **Predict.** How many look-ups and opens does an image take from plain files, one packed file, shards?

# %%
guess = {"files": 1, "arrow": 1, "tars": 1}  # change me: look-ups and opens per image

# %%
from smallfiles.slowfs import SlowConfig, open_slow

with open_slow(out, SlowConfig(latency_s=0.002)) as slow:
    print(slow.summary, "\nRecorded: files 2.1 operations per image, arrow 0.04, tars 0.12" * (slow.how != "fuse"))
    for suffix in SUFFIXES if slow.how == "fuse" else ():  # counting needs a mount
        before = slow.counts()
        read(formats.open(slow / f"train.{suffix}"), order[:100])
        each = {name: (count - before[name]) / 100 for name, count in slow.counts().items()}
        operations, mine = each["lookup"] + each["open"] + each["list"], f"; your guess: {guess.get(suffix)}"
        counted = f"{operations:5.2f} metadata operations, {each['reads']:4.2f} reads per image"
        print(f"{suffix:6} {counted}" + mine * (suffix in guess))

# %% [markdown]
# A plain file costs two *metadata operations*, a look-up and an open. A packed format needs a few when it is opened.
#
# Our forecasts know four *ways* to read, with these costs per image of about 100 kB:
#
# | way | what is stored | metadata operations | reads |
# |---|---|---|---|
# | files | a file per image | 2 | 1 |
# | packed | one large file, read at random | 0 | 1 |
# | shards | tar files, read in order, 1 MB at a time | 0.002 | 0.1 |
# | staged | a copy on each node | 0 | 0 |
#
# (Above, tars were read at random, and the kernel split reads.)

# %% [markdown] id="queue" tags=["core"]
# ## 3 · Wait in a queue
#
# Requests arrive at random, and their operations take random times, one unit on average. This loop simulates a server
# that works on `at_a_time` requests at once. *Load* is the share of it that is busy.

# %%
import heapq


def mean_wait(load, at_a_time=1, requests=200_000):
    """How long a request waits, on average, at a server with this load."""
    arrivals = rng.exponential(1 / (load * at_a_time), requests).cumsum()
    lengths, free, total = rng.exponential(1, requests), [0.0] * at_a_time, 0.0
    for arrives, length in zip(arrivals.tolist(), lengths.tolist()):
        served = max(arrives, free[0])  # when the first place is free
        heapq.heapreplace(free, served + length)
        total += served - arrives
    return total / requests


# %% [markdown]
# > **Predict.** One request is served at a time. Above which load does a request wait longer than 9 operations?

# %%
guess = 0.6  # change me: load

# %%
loads = {1: [0.1, 0.3, 0.5, 0.7, 0.8, 0.85, 0.9, 0.94], 64: [0.8, 0.85, 0.9, 0.94]}
waits = {f"{n} at a time": {load: [mean_wait(load, n) for _ in range(3)] for load in loads[n]} for n in loads}
waits["64 at a time"][0.99] = [mean_wait(0.99, 64, 2_000_000) for _ in range(3)]

# %% [markdown]
# The folded cell draws the waits.

# %% jupyter={"source_hidden": true}
one, many = (np.median(waits[f"{n} at a time"][0.9]) for n in (1, 64))
title = f"At 90 % load a request waits {one:.0f} operations; with 64 at a time {many:.1g}"
drawn = waits | {"9 operations": {0.1: 9, 0.99: 9}}
axes = {"x": "load of the server", "y": "wait, in operations", "marks": {"90 %": 0.9}, "ideal": "9 operations"}
figures.lines(drawn, title, **axes, guess=guess, note="simulated; with 64 at a time hardly any waits below 80 %", counted=True)

# %% [markdown]
# Requests come in bunches. Idle time cannot be saved up. So a queue forms long before the server is full.
# For one place and such random times, theory gives load / (1 - load): nine operations at 90 %.
#
# With 64 places one is often free. But near 100 % every line goes up. The load is that of all users:
# you may wait although your job asks little.
#
# **Your turn.** How long does a request wait at 90 % if *four* are served at a time?
#
# <details>
# <summary>Answer</summary>
#
# `mean_wait(0.9, 4)` is about 2: more places, shorter queues.
#
# </details>

# %% [markdown] id="nodes" tags=["core"]
# ## 4 · From 1 to 1,000 nodes
#
# The training is ImageNet: 1.3 million images of 110 kB. A node has 4 GPUs, each with 64 images per step of 50 ms.
#
# The storage is a medium-sized Lustre: a metadata server for 100,000 operations per second, and 24 *targets* that hold
# the data. A target reads 0.7 GB/s, and spends half a millisecond more on each request (assumed). These are orders of
# magnitude (source in `smallfiles/scaling/config.py`).
#
# > **Predict.** One packed file is spread over all targets. How many nodes can it feed?

# %%
guess = 100  # change me: nodes

# %% [markdown]
# Divide what the targets can do by what one node needs:

# %%
from smallfiles.scaling import BROADCAST, WAYS, Storage, Work, saturation, simulate

work = Work(samples=1_281_167, sample_bytes=110_000, step_s=0.05)
lustre = Storage(targets=24, stripes=24, metadata_ops_s=100_000, request_s=0.0005)  # change me later

node_needs = 4 * 64 / work.step_s  # images per second
targets_read = lustre.stripes / (work.sample_bytes / lustre.target_bytes_s + lustre.request_s)  # images per second
nodes_fed = targets_read / node_needs
print(f"a node needs {node_needs:,.0f} images/s, the targets read {targets_read:,.0f}: {nodes_fed:.1f} nodes")

# %% [markdown]
# `saturation` does this division for every way; `simulate` adds the queues. *Crowded* means that other jobs leave us a
# twentieth of the metadata server.

# %%
from dataclasses import replace


def shared(by):
    """The same storage, with a part of its metadata server: fewer operations, and fewer at a time."""
    return replace(lustre, metadata_ops_s=lustre.metadata_ops_s / by, metadata_threads=64 // by)


cases = {"files, crowded": (shared(20), WAYS["files"])}
cases |= {name: (lustre, WAYS[name]) for name in ("packed", "shards", "staged")}
nodes = [1, 3, 5, 7, 10, 15, 23, 50, 100, 300, 1_000]
epochs = {name: {n: simulate(work, place, way, n).epoch_s for n in nodes} for name, (place, way) in cases.items()}
full = {name: min(saturation(work, place, way).values()) for name, (place, way) in cases.items()}
print("nodes that it feeds:", {name: round(count, 1) for name, count in full.items()})

# %% [markdown]
# The folded cell compares the epochs with those of GPUs that never wait.

# %% jupyter={"source_hidden": true}
least_s = {n: max(work.step_s, work.samples / (n * node_needs)) for n in nodes}
longer = {name: {n: found[n] / least_s[n] for n in nodes} for name, found in epochs.items()}
title = f"One packed file is full at {full['packed']:.0f} nodes, shards at {full['shards']:.0f}, a copy on each node never"
marks = {f"{name} full": full[name] for name in ("packed", "shards")}
axes = {"x": "nodes", "y": "times as long as never waiting", "log": "xy", "marks": marks}
note = f"a model, without page cache; copies are in place; files, crowded: full at {full['files, crowded']:.1f} nodes"
figures.lines(longer, title, **axes, guess=guess, note=note, counted=True)

# %% [markdown]
# The lines of *packed* and *shards* leave 1 shortly before the targets are full. Below that, workers fetch ahead, and
# hide the queues.
#
# - *files, crowded*: 5,000 operations per second feed half a node.
# - *packed*: each image is a request, which takes longer than its bytes.
# - *shards*: a request brings ten images, so three quarters of a target's time are for bytes.
# - *staged*: nothing is shared. At 1,000 nodes an epoch has five steps, and the wait for the first shows.
#
# **Your turn.** Set `request_s` to 0.1 ms. How many nodes does a packed file feed now?
#
# <details>
# <summary>Answer</summary>
#
# 18 instead of 7: a target takes 0.16 ms for the bytes of an image, and 0.1 ms for the request.
#
# </details>
#
# > **Predict.** On 100 nodes, which takes longer: files with the crowded server, or a packed file on *one* target?

# %%
guess = "files"  # change me: "files" or "packed"

# %%
hundred = {}
for by in (1, 5, 20):
    hundred[f"files, {100_000 // by:7,} operations/s"] = simulate(work, shared(by), WAYS["files"], 100)
for on in (1, 24):
    hundred[f"packed, targets: {on}"] = simulate(work, replace(lustre, stripes=on), WAYS["packed"], 100)
for name in ("shards", "staged", "broadcast"):
    hundred[name] = simulate(work, lustre, (WAYS | BROADCAST)[name], 100)
for name, found in hundred.items():
    copy_s = found.first_epoch_s - found.epoch_s
    once = f", and {copy_s:.0f} s once for the copies" * (copy_s > 1)
    print(f"{name:27} {found.epoch_s:4.0f} s per epoch{once}")
print("your guess:", guess)

# %% [markdown]
# With all of the metadata server, files are as fast as a packed file: both cost the targets one request per image. With
# a twentieth, they take about 14 times as long. A packed file on one target is slower still: before you write it,
# *stripe* its folder over all targets, by `lfs setstripe -c -1 FOLDER`.
#
# So **packing pays where metadata is the limit, striping and long reads where the targets are**. A copy per node
# pays off after 24 epochs against the striped file, after about 90 against shards. A broadcast (`sbcast`, notebook
# 07) copies in a quarter of the time.
#
# You can now solve tasks 1 and 2 of [exercise 11](../exercises/11_choose_a_format.ipynb).

# %% [markdown] id="choose" tags=["core"]
# ## 5 · Choose
#
# ![Four questions. Object store: tar shards, streamed. Fits a node, and a copy pays: one packed file, staged. Programs need paths: squashfs. Any sample at any time: one striped file. Otherwise tar shards of 100 MB to 1 GB, several per worker.](pictures/choose_a_format.svg)
#
# Take ImageNet-21k: 14 million images, 1.6 TB, on 8 nodes with 400 GB of memory free. The picture ends at shards:
# 1.6 TB does not fit, programs need no paths, and any order will do. `advise` may differ: it forecasts hours, and of ways within
# about 5 % it names the simplest: one packed file before a copy, before shards.
#
# > **Predict.** The metadata server does 20,000 operations per second. How many hours do 30 epochs take from files?

# %%
guess = 20  # change me: hours

# %%
from smallfiles.advise import Measured, advise
from smallfiles.scaling.config import TrainingPlan

files = {"kind": "lustre", "stripes": 1, "shared": True, "cold": True, "alone_s": 0.004, "together_s": 0.0005}
node = {"decode_s": 0.003, "cpus": 64, "local_bytes": int(400e9), "cache_bytes": int(400e9)}
many = Measured(samples=14_197_122, sample_bytes=110_000, **files, **node)
plan = TrainingPlan(nodes=8, epochs=30, step_s=0.1, metadata_ops_s=20_000)
advice = advise(many, plan, "imagenet21k")
print(*advice.reasons, "", *advice.commands, sep="\n")

# %% [markdown]
# The folded cell draws the hours.

# %% jupyter={"source_hidden": true}
times, gpus_s = advice.hours["files"] / advice.hours[advice.way], 30 * many.samples / (32 * 64) * 0.1
title = f"30 epochs from files take {times:.2g} times as long as the way that is advised: {advice.way}"
axes = {"x": "hours for 30 epochs", "groups": ("files", "packed", "shards"), "marks": {"GPUs alone": gpus_s / 3600}}
figures.bars(advice.hours, title, **axes, guess=guess, note="a model", counted=True)

# %% [markdown]
# From files, the metadata server is the limit: 2 × 14.2 million × 30 operations, 20,000 per second. Packed and
# shards keep the GPUs busy. The file is only 0.6 % slower, so `advise` names it. Shards do not need the page cache.
#
# **Your turn.** Each node's page cache keeps a part of the file. Set `cache_bytes` to 0. Which way is advised now?
#
# <details>
# <summary>Answer</summary>
#
# Shards, 5.8 hours. The file now takes 6.5: each image is a request, and the workers
# cannot hide the queue.
#
# </details>
#
# ### Now your site

# %%
worksheet.measure_missing(setup.path())
worksheet.page()

# %% [markdown]
# Ask your site for these numbers (`smallfiles doctor FOLDER --share my.json` measures `request_s`):

# %%
# change me: your site, its nodes, your workers per GPU, and the training above
site = replace(lustre, targets=24, stripes=24, metadata_ops_s=20_000, request_s=0.0005)
mine = replace(work, decode_s=worksheet.value("08", "cpu_ms", 3) / 1000, workers=8)
my_nodes = 16

for name in ("packed", "staged", "shards", "files"):
    found = simulate(mine, site, WAYS[name], my_nodes)
    print(f"{name:7} {found.epoch_s:6,.0f} s per epoch, GPUs wait {found.waiting:4.0%}; the limit: {found.limit}")

# %% [markdown]
# Take the first that hardly waits: packed, staged if a copy fits and pays, shards; files only if other programs need
# them. If there is none, change what the limit names.
#
# You can now solve task 3 of [exercise 11](../exercises/11_choose_a_format.ipynb).

# %% [markdown] id="exercise"
# ## Exercise
#
# [Exercise 11](../exercises/11_choose_a_format.ipynb): forecast by hand, and advise three projects.

# %% [markdown] id="cluster"
# ## On the cluster
#
# This measures your files, and forecasts:

# %%
show.command(TrainingPlan(nodes=64, step_s=0.02), "DATA")

# %% [markdown]
# This says whether loading limits you:
#
# ```bash
# smallfiles profile -- python train.py
# ```

# %% [markdown] id="key-points"
# ## Key points
#
# - From memory all six formats are fast enough for JPEGs: decoding takes far longer.
# - A plain file costs two metadata operations per image, a packed format almost none.
# - Requests queue before a server is full, the more the fewer it serves at a time.
# - Divide what all nodes share by what one node needs.
# - Packing pays where metadata is the limit, striping and long reads where the targets are. Stage what fits, if the
#   epochs pay for the copy.

# %% [markdown] id="quiz"
# ## Check yourself
#
# **1.** On one node, from memory, one packed format is twice as fast as another. Your training takes (a) half the time
# (b) about the same time (c) twice the time
#
# <details>
# <summary>Answer</summary>
#
# **(b)**: reading is at most a few percent of the work.
#
# </details>
#
# **2.** A metadata server does 100,000 operations per second. An image costs two, a node takes 5,000 images per second.
# Nothing else limits, and workers have time to spare. GPUs begin to wait at (a) 5 (b) about 10 (c) 20 nodes
#
# <details>
# <summary>Answer</summary>
#
# **(b)**: 10 nodes need all of its capacity. Before, workers hide the queue.
#
# </details>
#
# **3.** 200 nodes need any image at any time, from one file of 2 TB on one target. What helps? (a) Convert to shards
# (b) Stripe the file over all targets (c) More workers
#
# <details>
# <summary>Answer</summary>
#
# **(b)**: one target serves 200 nodes. (a) would be faster still, but shards are read in order.
#
# </details>

# %% [markdown] id="next"
# ## Next
#
# [12 · When it breaks](12_when_it_breaks.ipynb), and [14 · Wrap up](14_wrap_up.ipynb), which uses your numbers.
