# %% [markdown] id="top"
# # 11 · Choose a format
#
# **Minutes** 40 · **Machine** any Linux computer with two CPUs · **Needs** 03 to 06 help · **Data** 400 synthetic
# images
#
# Which format to use depends more on your storage and the number of nodes than on its speed. New here are LMDB, a file
# of keys and values, and Zarr, an array cut into chunks.

# %% [markdown] id="questions"
# ## Questions
#
# - Which format is fastest to read, and does that matter?
# - Which requests does each one send to the storage?
# - Why do requests wait before a server is fully busy?
# - At how many nodes does each way of storing data become too slow?
# - What should *I* use?

# %% [markdown] id="objectives"
# ## After this you can
#
# - measure formats side by side on your own data,
# - count the operations that a format costs per sample,
# - explain how waiting grows with the load of a server,
# - forecast an epoch on any number of nodes, and name the first bottleneck,
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
# We pack the images in each format; the suffix chooses.

# %%
import tempfile
from pathlib import Path

import numpy as np

from smallfiles import formats
from smallfiles.pack import pack

SUFFIXES = ("files", "arrow", "h5", "tars", "sqfs", "lmdb")
out = Path(tempfile.mkdtemp(dir=setup.scratch))
packed = {suffix: pack(setup.source(), out / f"train.{suffix}") for suffix in SUFFIXES}
for suffix, one in packed.items():
    extra = one.file_bytes / one.payload_bytes - 1
    print(f"{suffix:6} {one.files:4} files, {extra:6.2%} more bytes than the images")

# %% [markdown]
# Our readers know where each image lies. The folded cell adds:
#
# - *h5py*, which reads the HDF5 file,
# - *zarr, chunks*: all images as one array, in chunks of 128 KiB, each a file,
# - *zarr, sharded*: the same chunks in one file.

# %% jupyter={"source_hidden": true}
import h5py
import zarr

images = [np.frombuffer(one, np.uint8) for one in formats.open(out / "train.files").read_many(range(setup.count))]
borders = np.cumsum([0, *map(len, images)])
how = {"data": np.concatenate(images), "chunks": (128 << 10,), "compressors": None}
arrays = {"h5py": h5py.File(out / "train.h5")["train/data"]}
arrays["zarr, chunks"] = zarr.create_array(out / "chunks.zarr", **how)
arrays["zarr, sharded"] = zarr.create_array(out / "sharded.zarr", shards=(64 << 20,), **how)
for name in ("chunks", "sharded"):
    print(f"zarr, {name}:", sum(path.is_file() for path in (out / f"{name}.zarr").rglob("*")), "files")

# %% [markdown]
# > **Predict.** Everything is in the page cache. How many times as fast as plain files is the fastest way, at random?

# %%
guess = 20  # change me: times as fast as files

# %%
from functools import partial

from smallfiles import measure

order = np.random.default_rng(0).permutation(setup.count).tolist()
readers = {suffix: formats.open(out / f"train.{suffix}") for suffix in SUFFIXES}


def read(reader, indices):
    """Read samples one by one, and copy their bytes, so that every page is touched."""
    return sum(bytes(reader.read(index)) != b"" for index in indices)


def read_array(array, indices):
    """The same by a library: a slice of a long array."""
    return sum(array[borders[index] : borders[index + 1]].tobytes() != b"" for index in indices)


calls = {suffix: partial(read, readers[suffix], order) for suffix in SUFFIXES}
calls |= {name: partial(read_array, array, order) for name, array in arrays.items()}
result = measure.compare(calls, unit="images")

# %% [markdown]
# The folded cell draws the rates.

# %% jupyter={"source_hidden": true}
rates = {name: result.rates_per_s(name) for name in calls}
times = {name: np.median(runs) / np.median(rates["files"]) for name, runs in rates.items()}
plain, own = np.median(rates["files"]), sorted(times[suffix] for suffix in SUFFIXES[1:])
title = f"Packed formats are {own[0]:.1f} to {own[-1]:.1f} times as fast as plain files, h5py {times['h5py']:.1f} times; "
title += f"zarr takes {1 / times['zarr, chunks']:.0f} times as long as files, sharded {1 / times['zarr, sharded']:.0f} times"
ratios = {name: [float(f"{rate / plain:.2g}") for rate in runs] for name, runs in rates.items()}
figures.bars(ratios, title, x="times as fast as files", base="files", guess=guess, note="warm: each ran once before", log=True)

# %% [markdown]
# > **Predict.** What percent of the time to decode an image does reading a plain file take?

# %%
guess = 10  # change me: percent of the time to decode

# %% [markdown]
# The folded cell measures decoding, and compares.

# %% jupyter={"source_hidden": true}
from smallfiles.images import RandomResizedCrop

view, rng = RandomResizedCrop(224), np.random.default_rng(0)
jpegs = [bytes(readers["arrow"].read(index)) for index in order[:100]]


def decode():
    return sum(view(data, rng).shape[0] == 224 for data in jpegs)


decoding = measure.compare({"decode and crop": decode}, rounds=3, unit="images")
decode_s = 1 / np.median(decoding.rates_per_s("decode and crop"))
shares = {name: [float(f"{100 / rate / decode_s:.2g}") for rate in runs] for name, runs in rates.items()}
share = {name: np.median(runs) for name, runs in shares.items()}
most = max(share[name] for name in (*SUFFIXES, "h5py"))
title = f"Reading costs at most {most:.2g} % of decoding, but {share['zarr, chunks']:.0f} % with zarr, and {share['zarr, sharded']:.0f} % sharded"
show.figure(figures.bars(shares, title, x="time to read, in percent of the time to decode and crop", guess=guess, guess_of="files", note="from memory"))
first_bytes = measure.compare({"zarr": lambda: sum(len(arrays["zarr, chunks"][at : at + 1]) for at in borders[:-1])}, rounds=3, unit="bytes")
print(f"a slice of one byte with zarr: {100 / np.median(first_bytes.rates_per_s('zarr')) / decode_s:.0f} %")

# %% [markdown]
# With every format that `pack` writes, reading costs a few percent of decoding. So from memory the format does not
# decide. Zarr pays for each call, even of one byte: read long slices.

# %% [markdown] id="ask" tags=["core"]
# ## 2 · Count the requests to the storage
#
# `slowfs` presents a folder as slow storage, and counts operations. We read 100 images at random, with nothing cached.
#
# > **Predict.** How many look-ups and opens does an image take from plain files? From one packed file? From shards?

# %%
guess = {"files": 1, "arrow": 1, "tars": 1}  # change me: look-ups and opens per image

# %%
from smallfiles.slowfs import SlowConfig, open_slow

asked = {}
with open_slow(out, SlowConfig(latency_s=0.002)) as slow:
    print(slow.summary)
    for suffix in SUFFIXES if slow.how == "fuse" else ():
        before = slow.counts()
        read(formats.open(slow / f"train.{suffix}"), order[:100])
        asked[suffix] = {name: (count - before[name]) / 100 for name, count in slow.counts().items()}

# %% [markdown]
# The folded cell prints the counts.

# %% jupyter={"source_hidden": true}
for suffix, counts in asked.items():
    operations, size = counts["lookup"] + counts["open"] + counts["list"], counts["bytes"] / 1000
    guessed = f"; your guess: {guess[suffix]}" if suffix in guess else ""
    print(f"{suffix:6} {operations:5.2f} metadata operations, {counts['reads']:5.2f} reads, {size:4.0f} kB per image{guessed}")
print("" if asked else "Counting needs a mount. The text below says what it finds.")

# %% [markdown]
# Plain files cost two operations per image, a look-up and an open; packed formats a few at opening.
#
# The kernel reads ahead, and in pieces of 128 KiB; section 4's model does not. Its *ways* to read:
#
# - *files*: one per image,
# - *packed*: one large file, read at random, and *striped*: cut over many storage servers, called *targets*,
# - *shards*: read from start to end, so that a read of 1 MB brings ten images,
# - *staged*: a copy on each node.

# %%
from smallfiles.scaling import WAYS

for name, way in WAYS.items():
    print(f"{name:7} {way.operations:5} operations and {way.requests:3} reads per image, striped: {way.striped}")

# %% [markdown] id="queue" tags=["core"]
# ## 3 · Wait in a queue
#
# Requests arrive at random, so some find the server busy. This loop simulates a server with `at_a_time` places. *Load*
# is the share of them that is busy, on average; times are in operations.

# %%
import heapq

rng = np.random.default_rng(0)


def mean_wait(load, at_a_time=1, requests=200_000):
    """How long a request waits, on average, at a server with this load."""
    arrivals = rng.exponential(1 / (load * at_a_time), requests).cumsum()
    lengths, free, total = rng.exponential(1, requests), [0.0] * at_a_time, 0.0
    for arrives, length in zip(arrivals.tolist(), lengths.tolist()):
        begins = max(arrives, free[0])  # when the first operation under way ends
        heapq.heapreplace(free, begins + length)
        total += begins - arrives
    return total / requests


# %% [markdown]
# > **Predict.** Above which load does a request wait longer than 9 operations, on average, if one is served at a time?

# %%
guess = 0.6  # change me: load

# %%
loads = [0.1, 0.3, 0.5, 0.7, 0.8, 0.85, 0.9, 0.94]
waits = {f"{n} at a time": {load: [mean_wait(load, n) for _ in range(3)] for load in loads} for n in (1, 64)}
waits["64 at a time"][0.99] = [mean_wait(0.99, 64, 2_000_000) for _ in range(3)]

# %% [markdown]
# The folded cell draws them, and the theory for one at a time.

# %% jupyter={"source_hidden": true}
waits["load / (1 - load)"] = {load: [load / (1 - load)] for load in np.linspace(0.05, 0.95, 91)}
one, many, late = (np.median(waits[f"{n} at a time"][load]) for n, load in ((1, 0.9), (64, 0.9), (64, 0.99)))
title = f"At 90 % load a request waits {one:.1f} operations if one is served at a time, {many:.2f} if 64 are; at 99 % {late:.1f}"
axes = {"x": "load of the server", "y": "wait, in operations", "ideal": "load / (1 - load)", "marks": {"waits 9": 0.9}}
figures.lines(waits, title, **axes, guess=guess, note="simulated", counted=True)

# %% [markdown]
# Requests come in bunches. Between them places are idle, and idle time cannot be saved up. If 64 are served at a time,
# a place is free, or soon will be. But near 100 % every curve goes up, and other users move you along it: leave room.
#
# Does a queue matter if workers wait for each answer before they ask again? We measure it: `slowfs` does one operation
# at a time, 5 ms each on average. For each file a thread needs two operations, then works 10 ms on its own.
#
# > **Predict.** One thread reads 50 files per second, and the server can serve 100. How many do two threads read?

# %%
guess = 100  # change me: files per second with two threads

# %% [markdown]
# The folded cell measures 1 to 4 threads. It forecasts them by *division*, threads by the time for a file (at most 100
# per second), and by `simulate`, which has a *queue* for each part of a cluster.

# %% jupyter={"source_hidden": true}
from concurrent.futures import ThreadPoolExecutor
from time import sleep

from smallfiles.scaling import Storage, Way, Work, simulate

storage, own_s, EACH, THREADS = SlowConfig(latency_s=0.005, servers=1, jitter=1.0), 0.01, 60, (1, 2, 3, 4)
names, largest = setup.source().manifest.paths.to_pylist(), max(map(len, images))


def read_and_work(store, seconds, name):
    store.read_into(name, memoryview(bytearray(largest)))
    sleep(seconds)


def files_per_s(store, threads, seconds):
    chosen = [names[row] for row in rng.integers(len(names), size=EACH)]
    with ThreadPoolExecutor(threads) as pool:
        reads = partial(pool.map, partial(read_and_work, store, seconds), chosen)
        counted = measure.compare({"read": lambda: len(list(reads()))}, rounds=3, bar=False)
    return counted.rates_per_s("read")


root = setup.folder()
with open_slow(root, SlowConfig(latency_s=0)) as fast, open_slow(root, storage) as slow:
    alone_s = 1 / np.median(files_per_s(fast.store, 1, 0)) + own_s  # without any delay of the storage
    measured = {threads: files_per_s(slow.store, threads, own_s) for threads in THREADS}

asking_s = 2 * storage.latency_s  # a look-up and an open
free = {"latency_s": 0, "request_s": 0, "target_bytes_s": 1e15, "node_bytes_s": 1e15}
server, forecast = Storage(metadata_ops_s=1 / storage.latency_s, metadata_threads=1, **free), {}
for threads in THREADS:
    job = Work(10_000, batch=1, gpus=1, workers=threads, prefetch=10_000, step_s=0, decode_s=alone_s)
    forecast[threads] = job.samples / simulate(job, server, Way(2, 0), 1).epoch_s
division = {n: min(n / (asking_s + alone_s), 1 / asking_s) for n in THREADS}
title = f"Two threads read {np.median(measured[2]):.0f} files per second; division promises {division[2]:.0f}, the queue {forecast[2]:.0f}"
lines = {"measured": measured, "queue": forecast, "division": division, "your guess": {} if guess in (None, ...) else {2: guess}}
figures.lines(lines, title, x="threads that read", y="files per second", ideal="division")

# %% [markdown]
# Two threads sometimes ask at the same time, and then one waits. Division ignores this, so it promises too much near
# the bend. If one thread is slower than forecast, a part of the gap is this machine.

# %% [markdown] id="nodes" tags=["core"]
# ## 4 · From 1 to 1,000 nodes
#
# The training stays: ImageNet, images of 110 kB; 4 GPUs per node, each with 8 workers and 64 images per step of 50 ms;
# the decoding time measured above; no page cache.
#
# The storage is a medium-sized Lustre: 24 targets of 0.7 GB/s, 100,000 metadata operations per second, 64 at a time
# (orders of magnitude; source in `smallfiles/scaling/config.py`), and an assumed 0.5 ms per read request. Other jobs
# use the metadata server, so we forecast files twice: with all of it, and *crowded*, with a twentieth.
#
# > **Predict.** At how many nodes does one packed file stop getting faster?

# %%
from smallfiles.scaling import BROADCAST, WAYS, Storage, Work, saturation, simulate

guess = 50  # change me: nodes, for one packed file
lustre = Storage(targets=24, stripes=24, metadata_ops_s=100_000, request_s=0.0005)  # change me later: your site's

# %%
from dataclasses import replace

work = Work(decode_s=decode_s)
crowded = replace(lustre, metadata_ops_s=lustre.metadata_ops_s / 20)
nodes = [1, 3, 5, 7, 10, 15, 30, 100, 300, 1_000]
cases = {name: (lustre, way) for name, way in (WAYS | BROADCAST).items()}
cases["files, crowded"] = crowded, WAYS["files"]
found = {name: {n: simulate(work, place, way, n) for n in nodes} for name, (place, way) in cases.items()}

# %% [markdown]
# The folded cell draws how many times as long an epoch takes as with GPUs that never wait.

# %% jupyter={"source_hidden": true}
names = ("files, crowded", "files", "packed", "shards", "staged")
least_s = {count: max(work.step_s, work.samples / (count * work.node_samples_s)) for count in nodes}
longer = {name: {count: one.epoch_s / least_s[count] for count, one in found[name].items()} for name in names}
del longer["files"]  # nearly equal to packed
shards_100, packed_100, crowded_100 = (longer[name][100] for name in ("shards", "packed", "files, crowded"))
title = f"On 100 nodes an epoch takes {shards_100:.0f} times as long as without waiting if read from shards, "
title += f"{packed_100:.0f} times from one packed file, {crowded_100:,.0f} times from files with a crowded server"
axes = {"x": "nodes", "y": "times as long as never waiting", "log": "xy"}
axes["marks"] = {"packed is full": saturation(work, *cases["packed"])["targets"]}
show.figure(figures.lines(longer, title, **axes, guess=guess, note="a model: no page cache, copies are in place; only decoding was measured", counted=True))
for name in names:
    waiting = ", ".join(f"{found[name][count].waiting:4.0%} on {count:,}" for count in (1, 10, 100, 1_000))
    print(f"{name:14} GPUs wait {waiting}; the limit on 1,000: {found[name][1_000].limit}")
divided = max(work.samples / work.node_samples_s / 7, work.samples / work.node_samples_s / axes["marks"]["packed is full"])
print(f"packed on 7 nodes: by division an epoch of {divided:.0f} s, in the model {found['packed'][7].epoch_s:.0f} s")

# %% [markdown]
# A line leaves 1 where something that all nodes share is full (or, on slow CPUs, where decoding is). Divide what it can
# do per second by what one node needs:

# %%
rate = work.node_samples_s
print(f"one node needs {rate:,.0f} images/s = {2 * rate:,.0f} operations/s = {rate * work.sample_bytes / 1e6:,.0f} MB/s")
for name in ("files, crowded", "files", "packed", "shards"):
    full = saturation(work, *cases[name])
    print(f"{name:14}", {part: round(count, 1) for part, count in full.items() if count < 1e6})

# %% [markdown]
# One packed file stops at 7 nodes, because each image is a *request*, half a millisecond of a target. So do files with
# all of the metadata server (not drawn: nearly the same line). A read from a shard brings ten images, so bytes are the
# limit, enough for some 20 nodes. Beyond that, each node needs a copy. Staged rises at the end: with five steps per
# epoch, decoding the first batch counts.
#
# Half a node seems to fill the crowded server. But an operation takes 64 / 5,000 s = 13 ms, so 32 workers ask more
# slowly: three nodes fill it.
#
# Your turn: change `request_s` to 0.1 ms, and run these cells again. How many nodes does a packed file feed now?
#
# <details>
# <summary>Answer</summary>
#
# 18 instead of 7. A target takes 0.16 ms for the bytes of an image, and now 0.1 ms for the request. Files stop at 10,
# by the metadata server.
#
# </details>
#
# *Without* striping, a packed file is on one target. A copy per node costs time before the first epoch. With a
# *broadcast*, one node reads it and sends it to the others.
#
# > **Predict.** On 100 nodes, does an epoch from one target take 2, 20 or 200 times as long as from all? And after how
# > many epochs has a copy per node paid off, compared with the striped file?

# %%
guess = 2  # change me: epochs until a copy per node has paid off on 100 nodes

# %%
alone = replace(lustre, stripes=1)
for count in (10, 100, 1_000):
    one, many = (simulate(work, place, WAYS["packed"], count).epoch_s for place in (alone, lustre))
    print(f"{count:5,} nodes: an epoch takes {one:,.0f} s from one target, {many:,.0f} s from {lustre.stripes}; a copy has paid off")
    for name in ("staged", "broadcast"):
        copy = found[name][count]
        saved, guessed = many - copy.epoch_s, f"; your guess: {guess}" if (name, count) == ("staged", 100) else ""
        paid = f"after {(copy.first_epoch_s - copy.epoch_s) / saved:,.0f} epochs" if saved > 0 else "never"
        print(f"{name:>15} {paid}{guessed}")

# %% [markdown]
# `lfs setstripe -c -1 FOLDER` before the file is written stripes it over all targets. A broadcast (`stage --broadcast`)
# pays on many nodes.

# %% [markdown] id="choose" tags=["core"]
# ## 5 · Choose
#
# ![Four questions. Object store: tar shards, streamed or kept. Fits a node, and a copy pays: one packed file, staged; squashfs if paths are needed. Programs need paths: squashfs. Any sample at any time: one striped file. Otherwise tar shards.](pictures/choose_a_format.svg)
#
# LMDB reads like one packed file; open it without its lock ([12](12_when_it_breaks.ipynb)).
#
# `advise` forecasts hours. Of ways that take equally long it advises the simplest to keep, one packed file. Take
# ImageNet-21k: 14 million images, 1.6 TB, on 8 nodes with 400 GB of memory free. The picture ends at shards for this;
# `advise` may differ.
#
# > **Predict.** 32 GPUs take 64 images each per 0.1 s; the metadata server does 20,000 operations per second. How many
# > hours do 30 epochs take from files?

# %%
guess = 20  # change me: hours

# %%
from smallfiles.advise import Measured, advise
from smallfiles.scaling.config import TrainingPlan

files = {"kind": "lustre", "stripes": 1, "shared": True, "cold": True, "alone_s": 0.004, "together_s": 0.0005}
node = {"decode_s": 0.003, "cpus": 64, "local_bytes": int(400e9), "cache_bytes": int(400e9)}
many = Measured(samples=14_197_122, sample_bytes=110_000, **files, **node)
plan = TrainingPlan(nodes=8, epochs=30, step_s=0.1, metadata_ops_s=20_000)  # workers: as many as decoding needs
advice = advise(many, plan, "imagenet21k")
print(*advice.reasons, "", *advice.commands, sep="\n")

# %% [markdown]
# The folded cell draws the hours.

# %% jupyter={"source_hidden": true}
times, gpus_s = advice.hours["files"] / min(advice.hours.values()), 30 * many.samples / (32 * 64) * 0.1
title = f"With {advice.workers} workers per GPU, 30 epochs from files take {times:.1f} times as long as the best way; advised: {advice.way}"
marks = {"GPUs alone": gpus_s / 3600}
figures.bars(advice.hours, title, x="hours for 30 epochs", guess=guess, marks=marks, note="a model", counted=True)

# %% [markdown]
# Files take twice as long, because the metadata server is the limit. Otherwise the GPUs are. The file also keeps random
# access, but relies on the page cache, which keeps a part of it on each node.
#
# Your turn: set `cache_bytes` to 0, and run its cell and the next again. Which way is advised now? Then add `workers=6`
# to the plan: does the advice stay?
#
# <details>
# <summary>Answer</summary>
#
# Shards, 5.8 hours. The file takes 6.5: its 16 targets would feed 9 nodes, but requests queue, and 3 workers per GPU
# cannot hide it. 6 can: then the file takes 5.8 too, and is advised.
#
# </details>

# %%
worksheet.measure_missing(setup.path())
worksheet.page()

# %% [markdown] id="exercise"
# ## Exercise
#
# [Exercise 11](../exercises/11_choose_a_format.ipynb): forecast an epoch by hand, and recommend how to store three
# projects' data.

# %% [markdown] id="cluster"
# ## On the cluster
#
# On a compute node, this measures what was given above:

# %%
show.command(TrainingPlan(nodes=64, step_s=0.02), "DATA")

# %% [markdown]
# Ask your site for the metadata rate and the number of targets, forecast, then measure on one, two and four nodes:
#
# ```bash
# smallfiles bench read train.arrow train.tars --save read.json
# smallfiles simulate --records read.json --metadata-ops 30000 --targets 24
# ```

# %% [markdown] id="key-points"
# ## Key points
#
# - From memory all formats that `pack` writes are fast enough for JPEGs: decoding costs far more.
# - At a server of one operation at a time, requests wait 9 operations at 90 % load; with many at a time hardly, until
#   close to 100 %.
# - The limit that all nodes share decides: operations and requests per second, then bytes per second.
# - Packing pays where metadata is the limit; striping and long reads where the targets are. Stage what fits if the
#   epochs pay for the copy; shard the rest.

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
# **2.** A metadata server does 100,000 operations per second, and the targets are never the limit. Each image costs
# two, each node takes 5,000 images per second. GPUs begin to wait at (a) 5 nodes (b) about 10 nodes (c) 20 nodes
#
# <details>
# <summary>Answer</summary>
#
# **(b)**: 10 nodes need all of its capacity. Requests queue before that, but workers fetch ahead and hide it.
#
# </details>
#
# **3.** 200 nodes train on 2 TB in one file on one target. What do you do first? (a) Convert to shards (b) Stripe the
# file over all targets (c) More workers
#
# <details>
# <summary>Answer</summary>
#
# **(b)**: one target serves 200 nodes, and striping is one command and a copy. (a) then gains more, if any order will
# do.
#
# </details>

# %% [markdown] id="next"
# ## Next
#
# [12 · When it breaks](12_when_it_breaks.ipynb), and [14 · Wrap up](14_wrap_up.ipynb), which uses your numbers.
