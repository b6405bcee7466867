# %% [markdown] id="top"
# # 11 · Choose a format
#
# **Minutes** 40 · **Machine** any Linux computer with two CPUs · **Needs** 00; 03 to 06 and 09 help · **Data** 400
# synthetic images
#
# Which format is best for you depends on your storage and on the number of nodes that read from it. The speed at which
# a format can be read hardly matters. This notebook shows why, and helps you to choose a format for your site.

# %% [markdown] id="questions"
# ## Questions
#
# - Which format is the fastest to read, and does that matter?
# - How many requests does each format send to the storage?
# - How many nodes can one storage feed?
# - When are plain files fine?

# %% [markdown] id="objectives"
# ## After this you can
#
# - compare the cost of reading an image with the cost of decoding it,
# - count the requests that a format sends to the storage,
# - draw the map of limits for your own storage,
# - recommend a format and defend it with numbers.

# %% [markdown] id="setup"
# ## Set up

# %% id="start"
import sys

sys.path.append("..")
from helpers import figures, show, start, worksheet

setup = start("11")

# %% [markdown] id="recall"
# > **Recall** (09). One round trip to the object store takes 50 ms, and you fetch objects of 100 kB. How many MB arrive
# > per second if you send one request at a time? How many if eight requests are in flight?
#
# <details>
# <summary>Answer</summary>
#
# One request at a time delivers at most 2 MB per second, because 20 round trips fit into a second and each of them
# delivers 0.1 MB. Eight requests in flight deliver at most 16 MB per second.
#
# </details>

# %% [markdown] id="read" tags=["core"]
# ## 1 · Compare reading with decoding
#
# We compare how long it takes to read an image with how long it takes to decode it. The first cell stores the images in four
# more formats:

# %%
import tarfile
import tempfile
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import zarr

out = Path(tempfile.mkdtemp(dir=setup.scratch))  # a new folder, so that this cell may run twice
paths = sorted(setup.folder().rglob("*.jpg"))
blobs = [path.read_bytes() for path in paths]
ends = np.cumsum([0, *map(len, blobs)])  # image i is bytes ends[i] to ends[i + 1]
joined = np.frombuffer(b"".join(blobs), np.uint8)

batch = pa.record_batch({"image": blobs})
with pa.ipc.new_file(str(out / "plain.arrow"), batch.schema) as writer:
    writer.write(batch)
with h5py.File(out / "plain.h5", "w") as file:
    file["bytes"] = joined
with tarfile.open(out / "plain.tar", "w") as archive:
    archive.add(setup.folder(), "images")
array = zarr.create_array(out / "plain.zarr", data=joined, chunks=(128 << 10,), compressors=None)

# %% [markdown]
# The second cell defines how to read image number `i` from each of them, and how to decode and resize it:

# %% tags=["slide"]
import io
import os

from PIL import Image

arrow = pa.ipc.open_file(pa.memory_map(str(out / "plain.arrow"))).read_all()["image"]
hdf5 = h5py.File(out / "plain.h5")["bytes"]
tar = open(out / "plain.tar", "rb")
members = [member for member in tarfile.open(out / "plain.tar") if member.name.endswith(".jpg")]

read = {
    "files": lambda i: paths[i].read_bytes(),
    "arrow": lambda i: arrow[i].as_py(),
    "h5": lambda i: hdf5[ends[i] : ends[i + 1]].tobytes(),
    "tar": lambda i: os.pread(tar.fileno(), members[i].size, members[i].offset_data),
    "zarr": lambda i: array[ends[i] : ends[i + 1]].tobytes(),
    "decode": lambda i: Image.open(io.BytesIO(blobs[i])).convert("RGB").resize((224, 224)),
}

# %% [markdown]
# Now we read 100 images in random order. All files are in the page cache, which is the best case for reading. We measure
# processor time, which other programs barely affect.
#
# > **Predict.** What percentage of the decoding time does reading the image from a plain file take?

# %%
guess = None  # your guess, in percent: for example 10

# %%
import time

rng = np.random.default_rng(0)
order = rng.permutation(len(paths))


def cpu_s(name):
    began = time.process_time()
    sum(read[name](i) is not None for i in order[:100])  # reads 100 images
    return time.process_time() - began


cpu = {name: [cpu_s(name) for _ in range(6)] for name in read}

# %% [markdown]
# We measured each format six times. The first time also includes loading code, so the *folded* cell draws only the other five.

# %% tags=["slide"] jupyter={"source_hidden": true}
decode_s = np.median(cpu["decode"][1:])
percent = {name: [float(f"{100 * used / decode_s:.2g}") for used in runs[1:]] for name, runs in cpu.items()}
most = max(np.median(runs) for name, runs in percent.items() if name not in ("zarr", "decode"))
title = f"Reading takes at most {np.ceil(most):.0f} % of the time to decode, except from Zarr"
axes = {"x": "processor time per image, in percent of the time to decode it", "base": "decode"}
figures.bars(percent, title, **axes, guess=guess, guess_of="files", note="from memory")

# %% [markdown]
# Plain files and the formats other than Zarr are so much cheaper to read than a JPEG is to decode that the format makes almost
# no difference to a training. Zarr is made for long slices of large arrays.
#
# The figure does not show why small files are slow. On a parallel file system, opening a file is a request to a server, and here
# the files come from memory.

# %% [markdown] id="ask" tags=["core"]
# ## 2 · Count the requests to the storage
#
# An *audit hook* is a function that Python calls at certain events, for example whenever a file is opened. We use one to count
# how often Python opens a file.

# %%
if "opened" not in globals():  # Python cannot remove a hook, so add only one
    opened = []
    sys.addaudithook(lambda event, about: event == "open" and opened.append(str(about[0])))

for name in ("files", "tar"):
    opened.clear()
    cpu_s(name)
    print(f"{name}: {sum(p.endswith(('.jpg', '.tar')) for p in list(opened))} opens for 100 images")

# %% [markdown]
# The tar file was opened once, before this cell, and we know where each image begins. Most packed formats work like this:
# open once, then read at a known offset.
#
# The toolbox writes six formats with one function. (LMDB is a database in one file.) The cell prints how many files each output
# has:

# %%
from smallfiles import formats, measure
from smallfiles.pack import pack

suffixes = ("files", "arrow", "h5", "tars", "sqfs", "lmdb")
for suffix in suffixes:
    print(suffix, pack(setup.source(), out / f"train.{suffix}").files, "files")

# %% [markdown]
# One open in Python can cost more than one request to the storage. Before a file can be opened, the node must ask the
# metadata server to find its name in the folder. This request is called a *look-up*. Look-ups and opens are *metadata
# operations*. `slowfs` mounts a folder with the latency of a parallel file system and counts every request.
#
# > **Predict.** We open each format and read 100 images at random. How many requests per image, look-ups plus opens, does
# > the storage see for plain files?

# %%
guess = None  # your guess, look-ups plus opens per image: for example 1

# %% tags=["slide"]
from smallfiles.slowfs import SlowConfig, open_slow

operations = dict(zip(suffixes, (2.1, 0.05, 0.05, 0.11, 0.08, 0.12)))  # measured earlier
with open_slow(out, SlowConfig(latency_s=0.002)) as slow:
    for suffix in suffixes if slow.how == "fuse" else ():  # without a mount: recorded counts
        with measure.requests(slow) as asked:
            reader = formats.open(slow / f"train.{suffix}")
            for i in order[:100].tolist():
                reader.read(i)
        operations[suffix], reads = asked["metadata"] / 100, asked["reads"] / 100
        print(f"{suffix:6} {operations[suffix]:.2f} metadata operations, {reads:.2f} reads")

# %% [markdown]
# The *folded* cell draws the counts (recorded ones without a mount).

# %% jupyter={"source_hidden": true}
files = operations["files"]
note = "counted by slowfs" if slow.how == "fuse" else "recorded: mounting is not allowed here"
title = f"Plain files cost {files:.1f} metadata operations per image, packed files almost none"
axes = {"x": "look-ups, opens, and listings per image; 100 images read", "base": "files", "counted": True}
figures.bars(operations, title, **axes, guess=guess, guess_of="files", note=note)

# %% [markdown]
# A plain file costs two metadata operations per image, a look-up and an open. A
# packed file costs a few operations when it is opened, and then none.
#
# Reads do not load the metadata server, because they go to the servers that hold the data. LMDB needs more reads than the
# other formats, because its library maps the file into memory, and Linux then fetches small pieces.
#
# The folded cell shows what a client of a real parallel file system, MooseFS, counted for 1,000 random images:

# %% tags=["slide"] jupyter={"source_hidden": true}
for each in measure.load(worksheet.CHECKOUT / "results/requests.json"):
    asked, seen = each.extra["metadata_per_1000"], each.extra["reads_per_1000"]
    print(f"{each.name:11} {asked:5,.0f} metadata requests, {seen:5,.0f} reads per 1,000 images")

# %% [markdown]
# For all 1,000 images together, the client sends about 3,000 metadata requests for plain files, 33 for tar shards, and 1 for each
# other format. All of them need 1.3 reads per image, because one read delivers at most 128 KiB and some images are larger.
#
# Below, we distinguish four *ways* to store images of about 100 kB. The numbers are rounded. For plain files we count two
# operations, a look-up and an open. Real ones send one to three:
#
# | way | what is stored | metadata operations per image | reads per image |
# |---|---|---|---|
# | files | one file per image | 2 | 1 |
# | packed | one large file that is read at random | 0 | 1 |
# | shards | tar files of 1,000 images, read in order, 1 MB at a time | 0.002 | 0.1 |
# | staged | one copy of the packed file on each node | 0 | 0 |

# %% [markdown] id="queue" tags=["core"]
# ## 3 · Wait in a queue
#
# A server becomes slow before it is saturated. A short simulation shows why.
# Requests arrive at random times, and each of them needs a random time of service, one unit on average. The *load* is the
# share of the time in which the server is busy.

# %% tags=["slide"]
import heapq


def mean_wait(load, at_a_time=1, requests=100_000):
    """Return how long a request waits on average before its service begins, in service times."""
    arrivals = rng.exponential(1 / (load * at_a_time), requests).cumsum()
    services, free, waited = rng.exponential(1, requests), [0.0] * at_a_time, 0.0
    for arrival, service in zip(arrivals.tolist(), services.tolist()):
        begin = max(arrival, free[0])  # free[0]: when the first of the places becomes free
        heapq.heapreplace(free, begin + service)
        waited += begin - arrival
    return waited / requests


# %% [markdown]
# > **Predict.** A server works on one request at a time. At which load do requests wait nine times as long as their
# > service takes?

# %%
guess = None  # your guess, a load between 0 and 1: for example 0.6

# %% tags=["slide"]
import matplotlib.pyplot as plt

loads = np.array([0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95])
waits = {at_a_time: [mean_wait(load, at_a_time) for load in loads] for at_a_time in (1, 4, 64)}

figure, axes = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
for (at_a_time, wait), marker in zip(waits.items(), "os^"):
    axes.plot(loads, wait, marker=marker)
    axes.annotate(f"{at_a_time} at a time", (loads[-1] + 0.015, wait[-1] + 0.2))
axes.axhline(9, color="grey", ls=":", label="nine service times")
if guess is not None:
    axes.axvline(guess, color="#D55E00", ls="--", label="your guess")
axes.legend()
axes.set(xlim=(0, 1.15), ylim=(0, 21), xlabel="load of the server", ylabel="wait (service times)")
one, many = waits[1][-2], waits[64][-2]
title = f"At 90 % load a request waits {one:.0f} service times, with 64 at a time {many:.2f}"
axes.set_title(title)
show.figure(figure, alt=f"Three lines that rise steeply near full load. {title}.")

# %% [markdown]
# Sometimes several requests arrive close together, and then some of them have to wait. At other times the server has
# nothing to do, and this time is lost. Therefore a queue forms long before the server is always busy. For one request at a
# time, theory gives a mean wait of load / (1 − load), which is nine service times at 90 %.
#
# A server that works on 64 requests at a time almost always has a free place. So requests hardly wait until its load
# is nearly 100 %. All users share the server, so its load can be high even if your own job
# sends few requests.
#
# The next section leaves out queues and only divides. So its limits are a little too high. In reality, GPUs begin to wait at
# somewhat fewer nodes.

# %% [markdown] id="nodes" tags=["core"]
# ## 4 · Draw the map of limits
#
# Here you see how to draw the map from [notebook 00](00_start_here.ipynb) for your own storage. We assume
# these numbers, which are orders of magnitude. (The time of a request is assumed.)
#
# - The training is ImageNet: 1.3 million images of 110 kB. A node has 4 GPUs. Each GPU needs 64 images for a step of
#   50 ms. Each GPU has 8 workers, and a worker needs 3 ms to decode an image.
# - The storage is a medium-sized Lustre. Its metadata server does 100,000 operations per second. When other users keep
#   it busy, 5,000 may be left for you.
# - Its data lies on 24 *targets*, which are groups of hard disks. A target reads 0.7 GB per second, and each request
#   costs it an additional 0.5 ms.
#
# > **Predict.** The packed file is spread over all 24 targets, and nobody else uses the storage. How many nodes can it
# > feed?

# %%
guess = None  # your guess, nodes that a packed file on 24 targets feeds: for example 100

# %% [markdown]
# A limit is a division: what the storage can do per second, divided by what one image costs.

# %%
from smallfiles.scaling import BROADCAST, WAYS, Storage, Work, saturation, simulate

work = Work(samples=1_281_167, sample_bytes=110_000, step_s=0.05, decode_s=0.003, workers=8)
lustre = Storage(targets=24, stripes=24, metadata_ops_s=100_000, request_s=0.0005)  # change me

node_needs = 4 * 64 / work.step_s  # images per second that the GPUs of a node process
node_decodes = 4 * work.workers / work.decode_s
bytes_s = work.sample_bytes / lustre.target_bytes_s  # seconds of a target for one image
colours = ("#CC79A7", "#D55E00", "#0072B2", "#E69F00", "#009E73")  # one for each limit
limits = {  # images per second for all nodes together
    "packed, on 1 target": 1 / (bytes_s + lustre.request_s),
    "files, busy metadata": 5_000 / 2,
    "files or packed, 24 targets": lustre.targets / (bytes_s + lustre.request_s),
    "files, metadata alone": lustre.metadata_ops_s / 2,
    "shards": lustre.targets / (bytes_s + 0.1 * lustre.request_s),
}
fed = {name: rate / node_needs for name, rate in limits.items()}  # nodes
striped = fed["files or packed, 24 targets"]
for name, rate in limits.items():
    print(f"{name:28} {rate:9,.0f} images/s feed {fed[name]:5.1f} nodes")

# %% tags=["slide"]
nodes = np.array([0.2, 1_000])
figure, axes = plt.subplots(figsize=(7.2, 4.4), layout="constrained")
axes.loglog(nodes, node_needs * nodes, color="black", lw=2.5)
axes.annotate("what the GPUs need", (1.4, node_needs), rotation=37, weight="bold")
axes.loglog(nodes, node_decodes * nodes, color="grey", ls="--")
axes.annotate("what the workers decode", (1.05, 1.5 * node_decodes), rotation=37, color="grey")
for (name, rate), colour in zip(limits.items(), colours):
    axes.axhline(rate, color=colour)
    axes.plot(fed[name], rate, "o", color=colour)
    axes.annotate(f"{name}: {fed[name]:.1f} nodes", (950, rate), ha="right", va="bottom")
if guess is not None:
    axes.axvline(guess, color="black", ls=":", label="your guess")
    axes.legend()
for axis in (axes.xaxis, axes.yaxis):
    axis.set_major_formatter("{x:,.0f}")
axes.set(xlabel="nodes", ylabel="images per second, all nodes", xlim=(0.2, 1_000), ylim=(1e3, 1e6))
axes.set_title(title := f"A striped file feeds {striped:.0f} nodes, shards {fed['shards']:.0f}")
described = ", ".join(f"{name}: {rate:,.0f} images per second" for name, rate in limits.items())
show.figure(figure, alt=f"{title}. {described}. The GPUs of a node need {node_needs:,.0f}.")

# %% [markdown]
# Left of a dot the GPUs are the limit, and right of it they wait. The dashed line is above the black one, so decoding is not a
# limit here.
#
# - *Files with a busy metadata server* cannot feed a single node.
# - *One packed file on one target*, which is a common default of Lustre, cannot feed a node either. So *stripe* the
#   folder over all targets before you write the file: `lfs setstripe -c -1 FOLDER`.
# - *Files with an idle metadata server* and *a striped packed file* both stop at 7 nodes, because both send one read per
#   image to the targets. The metadata server alone could feed 9.8 nodes.
# - *Shards* feed 23 nodes, because one read delivers about ten images.
#
# The toolbox has two functions for this. `saturation` does the same division for each way. `simulate` also includes the
# queues and the time for the copies:

# %%
from dataclasses import replace

busy = replace(lustre, metadata_ops_s=5_000)
cases = {"files, busy metadata": (busy, "files"), "files, idle metadata": (lustre, "files")}
cases |= {"packed, 1 target": (replace(lustre, stripes=1), "packed")}
cases |= {name: (lustre, name) for name in ("packed", "shards", "staged", "broadcast")}
for name, (storage, way) in cases.items():
    found = simulate(work, storage, (WAYS | BROADCAST)[way], 100)
    most = min(999, *saturation(work, storage, (WAYS | BROADCAST)[way]).values())
    print(f"{name:21} feeds {most:5.1f} nodes; on 100 nodes, the first epoch takes", end=" ")
    print(f"{found.first_epoch_s:4.0f} s, and each other one {found.epoch_s:3.0f} s")

# %% [markdown]
# (Here, 999 means no limit.) At 100 nodes, files with a busy metadata server need 14 times as long as a striped packed
# file, and shards are three times as fast as the packed file. With a copy on each node, the epochs are the shortest,
# but in the first one all nodes must copy the file. Compared with shards, the copies save time only after about 90 epochs. A
# *broadcast* ([notebook 07](07_stage_a_dataset.ipynb)) makes the copies in a quarter of the time.
#
# **Packing pays where metadata is the limit. Striping and long reads pay where the targets are the limit.**
#
# **Your turn.** In the cell of section 4 that defines `lustre`, set `request_s=0.0001`, as on fast flash storage, and run the
# cell again. How many nodes does a striped packed file feed now? Set it back afterwards.
#
# <details>
# <summary>Answer</summary>
#
# It feeds 18 nodes instead of 7. A target needs 0.16 ms for the bytes of an image, and now only 0.1 ms more for the
# request.
#
# </details>
#
# You can now solve tasks 1 and 2 of [exercise 11](../exercises/11_choose_a_format.ipynb).

# %% [markdown] id="choose" tags=["core"]
# ## 5 · Choose
#
# Four questions lead to a first answer:
#
# ![Four questions. Object store: tar shards, streamed. Fits a node, and a copy pays: one packed file, staged. Programs need paths: squashfs. Any sample at any time: one striped file. Otherwise tar shards of 100 MB to 1 GB, several per worker.](pictures/choose_a_format.svg)
#
# Take ImageNet-21k: 14 million images, 1.6 TB, and 8 nodes with 400 GB of free memory each.
# The data is not in an object store, and it does not fit into a node. No program needs paths. The training may read in any order
# that is mixed well, so it need not jump to any sample at any time. So the chart ends at shards.
#
# The model is larger than in section 4: a step takes 100 ms. The metadata server does 20,000 operations per second, and
# nobody else uses it. How many hours do 30 epochs take from plain files? Again we divide:

# %% tags=["slide"]
images, epochs, operations_s = 14_197_122, 30, 20_000
print(f"metadata server: {2 * images * epochs / operations_s / 3600:.1f} h")
print(f"32 GPUs, 64 images in 0.1 s each: {images * epochs / (32 * 64) * 0.1 / 3600:.1f} h")

# %% [markdown]
# The metadata server needs twice as long as the GPUs, so the GPUs wait half of the time.
#
# ### Ask `advise`
#
# `smallfiles advise` measures a folder and makes this forecast for it. Here we pass in the measurements. `alone_s` is the time per file when one worker opens and reads files one after another. `together_s` is the time
# per file when many files are in flight; `advise` only prints it. `cold` means that nothing came from the page cache.

# %%
from smallfiles.advise import Measured, advise
from smallfiles.scaling import TrainingPlan

place = {"kind": "lustre", "stripes": 1, "shared": True, "cold": True, "alone_s": 0.004}
node = {"decode_s": 0.003, "cpus": 64, "local_bytes": int(400e9), "cache_bytes": int(400e9)}
measured = Measured(samples=images, sample_bytes=110_000, together_s=0.0005, **place, **node)
plan = TrainingPlan(nodes=8, epochs=epochs, step_s=0.1, metadata_ops_s=operations_s)
advice = advise(measured, plan, "imagenet21k")
print(*advice.reasons, "", *advice.commands, sep="\n")

# %% [markdown]
# The *folded* cell draws the forecast.

# %% tags=["slide"] jupyter={"source_hidden": true}
times = advice.hours["files"] / advice.hours[advice.way]
gpus_s = epochs * images / (32 * 64) * 0.1
title = f"30 epochs take {times:.2g} times as long from plain files as from {advice.way} data"
axes = {"x": "hours for 30 epochs", "groups": ("files", "packed", "shards"), "marks": {"GPUs alone": gpus_s / 3600}}
figures.bars(advice.hours, title, **axes, note="a model", counted=True)

# %% [markdown]
# On 8 nodes, packed data and shards both keep the GPUs busy. If several ways are within about 5 % of the best, `advise` names the
# simplest: first one packed file, then a copy, then shards. So it names the packed file, although the chart ended at shards. It assumes that you stripe the packed file over the 16 targets of the command that it prints. Use
# the chart until you have measurements, then `advise`.
#
# **Your turn.** The forecast assumes that the page cache of each node keeps a part of the packed file. Set `cache_bytes`
# to 0. Which way is advised now?
#
# <details>
# <summary>Answer</summary>
#
# It advises shards, which need 5.8 hours. The packed file needs 6.5 hours. Each image is a request, and 16 targets are so busy
# with them that requests wait longer than three workers per GPU can read ahead.
#
# </details>
#
# ### When files are fine
#
# | storage | files are fine | the limit |
# |---|---|---|
# | a pool of hard disks | for few nodes, if your workers have the time to read a file (see below) | operations of the metadata server, and the movements of the disks (*seeks*) |
# | flash, for example with NFS | until all nodes together saturate it | requests per second |
# | NVMe in the node | once the files are there | the time to fill it, so copy one packed file |
# | object store | if objects are large | tens of ms per request |
#
# How much time do the workers have? In this training, each GPU processes 640 images per second, and has 3 workers. So a worker
# has 4.7 ms for an image. It needs 3 ms to decode it, so reading a file may take at most 1.7 ms.
#
# Even where plain files are fast enough to read, a copy or a backup of the folder must still open every one of them.
#
# `advise` says *leave the files as they are* only if all of this is true:
#
# - Your file quota has room left.
# - It has read the files cold, or from a disk in the node.
# - You told it how many operations per second the shared servers do (`--metadata-ops`), or you train on one node.
# - It forecasts that packing saves less than 5 %.
#
# The folded cell asks it about ImageNet on three storages. One worker opens and reads a file in 12 ms from the disk pool, in
# 1 ms from flash, and in 0.2 ms from the NVMe in the node. The servers of
# the disk pool do 20,000 operations per second, those of the flash 200,000. About the targets, `advise` knows nothing, so it
# assumes 24 of them with 0.5 ms per read request, as for hard disks.

# %% jupyter={"source_hidden": true}
storages = {  # what one node measures, and the operations per second of the servers
    "disk pool": ({"kind": "lustre", "alone_s": 0.012}, 20_000),
    "flash": ({"kind": "nfs4", "alone_s": 0.001, "stripes": 0}, 200_000),
    "NVMe in the node": ({"kind": "xfs", "alone_s": 0.0002, "shared": False, "stripes": 0}, None),
}
for name, (about, servers_s) in storages.items():
    for count in (1, 8, 64) if servers_s else (1,):
        found = replace(measured, samples=1_281_167, **about)
        best = advise(found, replace(plan, nodes=count, metadata_ops_s=servers_s), "imagenet")
        files_h, best_h = best.hours["files"], best.hours[best.way]
        print(f"{name:16} {count:2} nodes: {best.way:6} {best_h:5.2f} h, plain files {files_h:5.2f} h")

# %% [markdown]
# On flash, plain files are good enough for 1 node and for 8 nodes. For 64 nodes, `advise` forecasts that shards are faster,
# because they need fewer reads. If the read requests of your flash take less than 0.5 ms, files are fine for more nodes. On this
# disk pool, even one node waits for plain files.
#
# Is `advise` right? The folded cell shows epochs that we recorded on three file systems, beside its advice. The training had
# two workers and a step of 200 ms, so it could use at most 160 samples per second:

# %% jupyter={"source_hidden": true}
places = {"ext4": "local disk", "fuse.smallfiles-slowfs": "10 ms a request", "fuse.mfs": "MooseFS"}
for each in measure.load(worksheet.CHECKOUT / "results/advice.json"):
    rate, way = each.spread.median, each.extra["advised"]
    print(f"{places[each.filesystem]:15} {each.name:11} {rate:4.0f} samples/s; advised: {way}")

# %% [markdown]
# On the local disk and on MooseFS, a file takes about 1 ms. There, plain files are as fast as packed files, and `advise`
# leaves them. With 10 ms per request, plain files are half as fast, and `advise` packs them.
#
# ### Now your site
#
# If numbers on your worksheet are missing, the next cell first measures those that are quick to measure. The forecast for
# your site uses only one of them: `08 cpu_ms`, the processor time to decode and augment an image.

# %%
worksheet.measure_missing(setup.path())
worksheet.page()

# %% [markdown]
# Ask your site for the numbers of its storage, and put them into the next cell. If you have no number for `request_s`, measure
# single reads with `smallfiles doctor FOLDER --share my.json`.

# %%
# change me: storage of your site, workers, nodes; for another training, also `work` in section 4
site = replace(lustre, targets=24, stripes=24, target_bytes_s=0.7e9)
site = replace(site, metadata_ops_s=20_000, request_s=0.0005)
decode_s, my_nodes = worksheet.value("08", "cpu_ms", 3) / 1000, 16
mine = replace(work, decode_s=decode_s, workers=8)

for name in ("files", "packed", "staged", "shards"):
    found = simulate(mine, site, WAYS[name], my_nodes)
    copy_s = max(0, found.first_epoch_s - found.epoch_s)  # once, before the first epoch
    print(f"{name:7} {copy_s:4,.0f} s to copy, then {found.epoch_s:5,.0f} s per epoch;", end=" ")
    print(f"GPUs wait {found.waiting:4.0%}; limit: {found.limit}")

# %% [markdown]
# Choose the first way in this list whose GPUs wait for less than 5 % of the time. Skip *staged* if the copy does not fit
# into a node, or if the copy takes longer than it saves, compared with shards, over all your epochs.
#
# You can now solve task 3 of [exercise 11](../exercises/11_choose_a_format.ipynb).

# %% [markdown] id="exercise"
# ## Exercise
#
# In [Exercise 11](../exercises/11_choose_a_format.ipynb), you advise projects.

# %% [markdown] id="cluster"
# ## On the cluster
#
# This command measures your files and makes the forecast for them. (Replace the nodes and the step by those of your training.)

# %%
show.command(TrainingPlan(nodes=64, step_s=0.02), "DATA")

# %% [markdown]
# This command says whether loading limits your training at all:
#
# ```bash
# smallfiles profile -- python train.py
# ```

# %% [markdown] id="key-points"
# ## Key points
#
# - From memory, all formats deliver JPEGs fast enough, because decoding takes far longer than reading.
# - A plain file costs two metadata operations per image, and a packed format costs almost none.
# - A queue forms before a server is saturated. At the same load, it is longer if the server handles fewer requests at once.
# - To find the number of nodes that a storage feeds, divide what all nodes share by what one node needs.
# - Packing pays where metadata is the limit. Striping and long reads pay where the targets are the limit.
# - Files are fine on a disk in each node, on flash with few nodes, and on few nodes if your workers have the time to read them.

# %% [markdown] id="quiz"
# ## Check yourself
#
# **1.** On one node, from memory, you can read one packed format twice as fast as another. With the faster format, your
# training takes (a) half the time (b) about the same time (c) twice the time
#
# <details>
# <summary>Answer</summary>
#
# **(b)**. Reading is only a few percent of the work, so halving it changes little.
#
# </details>
#
# **2.** A metadata server does 100,000 operations per second. An image costs two operations, and a node needs 5,000
# images per second. Nothing else is a limit. From how many nodes on do the GPUs wait? (a) 5 (b) about 10 (c) 20
#
# <details>
# <summary>Answer</summary>
#
# **(b)**. Ten nodes need all operations of the server. With fewer nodes, requests wait in a queue, too, but the workers read
# ahead, so the GPUs hardly notice it until there are almost ten nodes.
#
# </details>
#
# **3.** 200 nodes read images at random from one file of 2 TB, which lies on one target. What helps most without
# changing how you read? (a) Convert the file to shards. (b) Stripe the file over all targets. (c) Use more workers.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**. One target serves 200 nodes, and striping lets all targets share the work. (a) would be even faster, but shards
# must be read in order. (c) More workers only send more requests to the same target.
#
# </details>

# %% [markdown] id="next"
# ## Next
#
# When something fails, look it up in [12 · When it breaks](12_when_it_breaks.ipynb).
# [14 · Wrap up](14_wrap_up.ipynb) uses your numbers for a decision.
