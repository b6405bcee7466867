# %% [markdown] id="top"
# # 01 · Count the cost of small files
#
# **Minutes** 30 · **Machine** any Linux computer with two CPUs · **Needs** notebook 00 · **Data** 400 synthetic images
#
# Many small files fill quotas and are slow to read. This notebook measures why: on this machine, and on storage as slow
# as a busy cluster's.

# %% [markdown] id="questions"
# ## Questions
#
# - What do small files take besides their bytes?
# - How long does one open take, and how long the slowest?
# - How large must a file be before its bytes cost more than its open?
# - When does it help to have many opens in flight?

# %% [markdown] id="objectives"
# ## After this you can
#
# - count the inodes and blocks of a folder,
# - time single system calls and read a histogram of times,
# - measure warm and cold reads, and say what "cold" leaves out,
# - tell whether latency or the server's rate limits you.

# %% [markdown] id="setup"
# ## Set up

# %% id="start"
import sys

sys.path.append("..")
from helpers import figures, show, start, worksheet

setup = start("01")

# %%
import os
from functools import partial

import numpy as np
from tqdm.auto import tqdm

from smallfiles.progress import bytes_text

# %% [markdown] id="count" tags=["optional"]
# ## 1 · Count inodes and blocks
#
# *Optional, 6 minutes.* A file takes more than its bytes. It takes an *inode*: a record of its owner, its size and
# where its bytes are. So does a folder. A file also takes disk space in *allocation units* of a fixed size, so the end
# of its last unit stays empty.
#
# > **Predict.** The demo set has 400 images in ten folders. How many inodes does it take? And this Python environment:
# > some 500, 5,000 or 50,000?

# %%
guess = 5_000  # change me: inodes of this environment

# %% [markdown]
# The folded cell counts both.

# %% jupyter={"source_hidden": true}
most = 5_000 if setup.shared else 1_000_000  # on a shared file system, others wait for the same server


def walk(root):
    """Size and allocated bytes of each inode below a folder, and the number of folders."""
    files, folders = {}, 0
    for folder, _, names in os.walk(root):
        folders += 1
        for name in names:
            about = os.lstat(os.path.join(folder, name))
            files[about.st_ino] = about.st_size, 512 * about.st_blocks  # a hard link is the same inode
        if len(files) > most:
            break
    return np.array(list(files.values())), folders


trees = {"demo set": setup.folder(), "environment": sys.prefix}
sizes = {}
for name, root in trees.items():
    files, folders = walk(root)
    sizes[name] = files[:, 0]
    held, taken = (bytes_text(total) for total in files.sum(axis=0))
    found = f"{'at least ' * (len(files) > most)}{len(files) + folders:,}"
    print(f"{name:12} {found:>6} inodes, which hold {held} and take {taken} on disk")
print(f"your guess   {guess:,}" if guess else "")

# %% [markdown]
# On a local disk the units are small, often 4 KiB. Storage Scale (GPFS) uses *blocks* of some MiB, but divides them
# into *sub-blocks* for small files. These are its units: 1/32 of a block where version 4 created the file system, since
# version 5 usually 8 KiB. The cell computes the space in other units.

# %%
mine = 5_000  # change me: bytes of one of your files
units = [512 << shift for shift in range(0, 14)]
real = {"ext4, Lustre (ldiskfs)": 4 << 10, "Storage Scale 5": 8 << 10, "Storage Scale 4": 128 << 10}  # with blocks of 4 MiB


def taken(file_bytes, unit):
    return (-(-file_bytes // unit) * unit).sum() / file_bytes.sum()  # rounded up to whole units


shown = {"environment": sizes["environment"], f"files of {bytes_text(mine)} (made up)": np.full(1, mine)}
factors = {name: {unit: taken(file_bytes, unit) for unit in units} for name, file_bytes in shown.items()}
large, small = (line[real["Storage Scale 4"]] for line in factors.values())
title = f"In units of 128 KiB, files of {bytes_text(mine)} take {small:.1f} times their bytes, "
title += f"{'part of ' * (len(sizes['environment']) > most)}the environment {large:.1f} times"
figures.lines(factors, title, x="allocation unit (B)", y="bytes taken per byte stored", log="xy", marks=real, note="at most: files below about 4 kB can lie in their inodes", counted=True)

# %% [markdown]
# A unit much smaller than the *mean* file wastes little. Once it is larger than nearly all files, each doubling of the
# unit doubles the space.

# %% [markdown] id="operations" tags=["core"]
# ## 2 · Time a single open
#
# To read a file, a program opens it, reads its bytes, and closes it. Often it first asks for the size (`stat`). Each
# step is a *system call*, a request to the *kernel*: the core of Linux, not that of a notebook.
#
# ![Two sequences. A file per image: ask the metadata server, wait, read, again and again. One large file: ask once, then read long runs in order, or single images at random.](pictures/open_and_read.svg)
#
# *What a parallel file system does for `open` and `read`. For a new name, `open?` is often two requests: a look-up and
# an open.*
#
# > **Predict.** Which call takes longest on this machine: stat, open, read or close? And how many seconds does an open
# > take: a microsecond (1e-6), a millisecond (1e-3) or more?

# %%
guess = 1e-3  # change me: seconds for one open; the figure below shows it

# %%
from time import perf_counter_ns


def timed(call, items):
    """Seconds of each call, and what the calls returned."""
    times, results = [], []
    for item in items:
        began = perf_counter_ns()
        result = call(item)
        times.append((perf_counter_ns() - began) / 1e9)
        results.append(result)
    return times, results


# %% [markdown]
# A *warm* read finds the bytes in memory, where the kernel keeps them in its *page cache*. Before a *cold* read we ask
# the kernel to forget the bytes (`posix_fadvise`), so they come from the disk.
#
# The kernel also keeps names that it has looked up. The cell asks for all sizes first, so it times `stat` and `open` of
# *known* names.

# %%
from pathlib import Path

from smallfiles.measure import cache

source = setup.source()
folder = setup.folder()
paths = [str(folder / path) for path in source.manifest.paths.to_pylist()][:200]
buffer = bytearray(max(map(os.path.getsize, paths)))  # from here on the kernel knows every name
kinds = ["read, cold"] * cache.can_be_cold(folder) + ["read, warm"] * 5
times = {name: [] for name in ("stat", "open", *kinds, "close")}
for kind in kinds:
    if kind == "read, cold":
        cache.drop(map(Path, paths))  # the kernel forgets the bytes, but not the names
    seconds, descriptors = timed(lambda path: os.open(path, os.O_RDONLY), paths)
    times["open"] += seconds
    times[kind] += timed(lambda descriptor: os.readv(descriptor, [buffer]), descriptors)[0]
    times["close"] += timed(os.close, descriptors)[0]
    times["stat"] += timed(os.stat, paths)[0]

# %% [markdown]
# The folded cell draws all calls. A dot marks the slowest one.

# %% jupyter={"source_hidden": true}
from smallfiles.measure.drawing import number_text

half = np.median(times["open"])
states = [kind.removeprefix("read, ") for kind in dict.fromkeys(kinds)]
longer = {state: number_text(np.median(times[f"read, {state}"]) / half) for state in states}
title = f"A {states[0]} read takes {longer[states[0]]} times as long as an open of a known name"
title += f", a warm one {longer['warm']} times" * ("cold" in longer)
figures.histogram(times, title, x="time of one call (s)", log=True, guess=guess, guess_of="open")

# %% [markdown]
# On a local disk the read takes longest, and the open of a known name takes almost nothing. So a laptop hides the
# problem: on a cluster an open is a request to a server and may take milliseconds.
#
# The median hides slow calls such as the dots, but a sum contains them, and a batch is only ready when its slowest file
# is.
#
# Our *cold* is only half cold: names and inodes stay known, and only root can make the kernel forget those.
#
# > **Predict.** ImageNet has 1,281,167 training images. How long does it take to open all of them, one after the other,
# > at the speed measured here? And on a busy server, with two requests per file, of 2 ms each?

# %%
guess = None, None  # change me: seconds here, hours there
images, request_s = 1_281_167, 0.002
there = images * 2 * request_s  # unknown names: a look-up, then the open
mean, slowest = np.mean(times["open"]), max(times["open"]) / sum(times["open"])
show.say(f"Known names here: **{images * half:,.0f} s** by the median; by the mean {images * mean:,.0f} s, {slowest:.0%} from one open (another run: another mean).")
show.say(f"New names there: **{there / 3600:.1f} hours** of opens alone, without a single byte. Your guess: {guess}.")

# %% [markdown]
# A fresh node knows no names, so we count a look-up and an open. (On Lustre: open and close.) The 2 ms are assumed;
# section *On the cluster* helps to estimate yours.

# %% [markdown] id="sizes" tags=["core"]
# ## 3 · Trade many files for one
#
# An open costs the same for a small file and for a large one, so a small file pays more per byte. We read the same
# bytes in random order, from many files of one size and from one large file in pieces of that size. The folded cell
# writes the files.

# %% jupyter={"source_hidden": true}
import random


def write_both(size):
    """The same bytes as many small files and as a large one."""
    folder = setup.scratch / f"{size}"
    folder.mkdir(exist_ok=True)
    count = max(8, min(16 if setup.shared else 128, 16_000_000 // size))
    pieces = [folder / f"{number}.bin" for number in range(count)]
    for piece in pieces:
        piece.write_bytes(os.urandom(size))
    large = folder / "large"
    large.write_bytes(b"".join(piece.read_bytes() for piece in pieces))
    return pieces, large


# %%
def read_many(pieces):
    total = 0
    for piece in random.sample(pieces, len(pieces)):
        descriptor = os.open(piece, os.O_RDONLY)  # an open for each piece
        total += os.readv(descriptor, [buffer])
        os.close(descriptor)
    return total


def read_one(large, size):
    descriptor, total = os.open(large, os.O_RDONLY), 0  # one open for all of them
    places = range(0, os.fstat(descriptor).st_size, size)
    for place in random.sample(places, len(places)):
        total += os.preadv(descriptor, [memoryview(buffer)[:size]], place)
    os.close(descriptor)
    return total


# %% [markdown]
# `measure.compare` runs both ways in turns, so that a disturbance hits both.
#
# > **Predict.** With a warm cache, at which size does reading the bytes take as long as opening the file? There, many
# > files reach half of the speed of one.

# %%
guess = 500_000  # change me: bytes

# %%
from smallfiles import measure

buffer = bytearray(4_000_000)
compare = partial(measure.compare, rounds=5, unit="bytes", bar=False)
rates = {}
for size in tqdm((1_000, 4_000, 16_000, 64_000, 256_000, 1_000_000, 4_000_000), "measuring"):
    pieces, large = write_both(size)
    ways = {"many files": lambda: read_many(pieces), "one file": lambda: read_one(large, size)}
    results = {"warm": compare(ways)}
    if cache.can_be_cold(large):
        cache.drop([*pieces, large])
        results["cold"] = compare(ways, before=lambda: cache.drop([*pieces, large], clean=True))
    for state, result in results.items():
        for way in result.runs:
            rates.setdefault(f"{way}, {state}", {})[size] = result.rates_per_s(way)

# %% [markdown]
# The folded cell divides the two speeds.

# %% jupyter={"source_hidden": true}
best = {name: {size: max(runs) for size, runs in line.items()} for name, line in rates.items()}
one, ratios = best["one file, warm"], {}  # other programs only slow a run down
for state in results:
    fast = best[f"one file, {state}"]
    ratios[f"many files, {state}"] = {size: rate / fast[size] for size, rate in best[f"many files, {state}"].items()}
    top = max(fast, key=fast.get)
    show.say(f"One file, {state}: {1e9 / fast[1000]:.1f} µs for a piece of 1 kB; at best {bytes_text(fast[top])}/s, in pieces of {bytes_text(top)}.")
warm = ratios["many files, warm"]
slower = max((size for size in warm if warm[size] < 0.5), default=0)
even = next((bytes_text(size) for size in warm if size > slower), None)
title = f"Warm, many files are still below half the speed of one at {bytes_text(slower)}"
if even:
    title = f"Warm, many files reach half the speed of one {f'between {bytes_text(slower)} and' if slower else 'from the smallest size on,'} {even}"
title += "; the worst: " + ", ".join(f"{min(ratios[f'many files, {state}'].values()):.0%} {state}" for state in results)
opening = np.median(times["open"]) + np.median(times["close"])
rate = np.median([os.path.getsize(path) for path in paths]) / np.median(times["read, warm"])
low, high = sorted((rate, max(one.values())))
marks = {"(open + close) × rate": [(opening * low, opening * high)]}
ratios["half"] = dict.fromkeys(warm, 0.5)
axes = {"x": "size of a file or piece (B)", "y": "speed of many files, relative to one", "log": "x", "ideal": "half"}
show.figure(figures.lines(ratios, title, **axes, guess=guess, marks=marks, note="best of 5 runs; peaks, dips and values above 1 are chance"))
show.say(
    f"**Rule**: a file is small if it has fewer bytes than are read while it is opened. Yours, warm: open and close take "
    f"{1e6 * opening:.1f} µs, in which {bytes_text(opening * low)} to {bytes_text(opening * high)} are read, at "
    f"{bytes_text(low)}/s to {bytes_text(high)}/s (section 2's images, and the best rate of this section)."
)

# %% [markdown]
# **Warm.** The line crosses the half in or near the grey stretch, which is the rule at two rates (the higher may be a
# CPU cache's). To its left opening dominates. The line does not fall to zero there, because each call to read costs
# time too. To its right moving the bytes dominates. On slow storage it lies farther right: with two requests of 2 ms
# and 1 GB/s at 4 MB. So ImageNet's images of 110 kB are small files there.
#
# **Cold.** Many files are slower for another reason: each is a disk request of its own, while one request fetches
# several pieces of the large file. It is not the opens, because names are still known.
#
# The large file is small here and every piece of it is read, so the neighbours that come along are used. In a file of
# 150 GB that is read at random they are not. Then one file saves only the opens, unless you read it in order
# ([05](05_shard_a_dataset.ipynb)).

# %% [markdown] id="in-flight" tags=["core"]
# ## 4 · Keep many opens in flight
#
# A program that waits for each answer spends most of its time waiting. It can send several requests at once, from
# several threads: they are then *in flight*. The cell defines how to read 100 files in this way.

# %%
from concurrent.futures import ThreadPoolExecutor

names = random.sample(source.manifest.paths.to_pylist(), 100)
largest = max(map(source.store.size, names))


def read_all(store, in_flight):
    with ThreadPoolExecutor(in_flight) as pool:
        reads = pool.map(lambda name: store.read_into(name, memoryview(bytearray(largest))), names)
        return len(list(reads))


def rates_in_flight(store, before=None, most=4 if setup.shared else 64):
    ways = {str(k): partial(read_all, store, k) for k in (1, 2, 4, 8, 16, 64) if k <= most}
    result = measure.compare(ways, rounds=3, unit="files", before=before)
    return {int(k): result.rates_per_s(k) for k in result.runs}


# %% [markdown]
# We measure this machine, warm and cold, and then slow storage: `slowfs` mounts the same folder a second time, where
# each request takes 2 ms and 4 are served at once. Others queue.
#
# > **Predict.** Reading a file takes two requests, a look-up and an open. How many opens in flight does the slow
# > storage need before more of them bring nothing? How many files per second does it serve then?

# %%
guess = 32  # change me: opens in flight
guess_rate = 2_000  # change me: files per second

# %%
from smallfiles import slowfs

found = {"warm cache": rates_in_flight(source.store)}
if cache.can_be_cold(folder):
    forget = partial(cache.drop, [folder / name for name in names], clean=True)
    found["cold cache"] = rates_in_flight(source.store, forget)
storage = slowfs.SlowConfig(latency_s=0.002, servers=4)  # change me: your servers
with slowfs.open_slow(folder, storage) as slow:
    found["slow storage"] = rates_in_flight(slow.store, most=64)  # it passes on only what its servers serve
show.say(slow.summary)

# %% [markdown]
# The folded cell draws the rates, beside those expected from the two numbers. It notes yours on a *worksheet* for
# notebooks 11 and 14.

# %% jupyter={"source_hidden": true}
ideal = {k: min(k, storage.servers) / (2 * storage.latency_s) for k in found["slow storage"]}
found["slow storage, expected"] = ideal
best = {name: {k: np.max(runs) for k, runs in line.items()} for name, line in found.items()}
top = best["slow storage"]  # the best of three, since other programs only slow a run down
enough, limit = min(top, key=lambda k: abs(k - storage.servers)), max(ideal.values())
title = f"Slow storage: one open in flight reaches {top[1] / limit:.0%} of the servers' rate, {enough} reach {top[enough] / limit:.0%}"
axes = {"x": "opens in flight", "y": "files per second"}
show.figure(figures.lines(best, title, **axes, log="xy", guess=guess, ideal="slow storage, expected", note="best of 3 runs"))
show.say(
    f"{storage.servers} servers, two requests of {1e3 * storage.latency_s:.3g} ms: at most {storage.servers} / "
    f"(2 × {1e3 * storage.latency_s:.3g} ms) = **{limit:,.0f} files/s**, "
    f"measured {max(top.values()):,.0f}; your guess was {guess_rate:,}."
)
cold = found.get("cold cache", found["warm cache"])
worksheet.note("01", latency_ms=1e3 / np.median(cold[1]), opens_per_s=max(map(np.median, cold.values())))

# %% [markdown]
# The slow storage has two limits. With few opens in flight, latency is the limit, so each further one helps. Once all 4
# servers are busy, further ones only queue. With exactly 4, a server is idle while a thread takes its answer and sends
# the next request; a few more fill these gaps. Double `servers` and run both cells again: where is the bend now?
#
# This machine has other limits. With a cold cache you wait for the disk, so more in flight help until it or your CPUs
# are busy. With a warm cache nothing is waited for, so threads gain little, and many may cost speed.
#
# A job that uses all of a server's capacity makes others wait. So on a shared file system this notebook keeps to 4
# opens in flight, and `smallfiles pack` to 32; lower that (`in_flight`) where your site asks.

# %% [markdown] id="exercise"
# ## Exercise
#
# In [Exercise 01](../exercises/01_count_the_cost_of_small_files.ipynb) you predict how many inodes a data set takes and
# how many hours its opens keep a job waiting.

# %% [markdown] id="cluster"
# ## On the cluster
#
# This command compares many files with one, warm and cold. Copy the packed folder and file to the file system of your
# jobs, and run it on another node: the one that copied still has them in memory.
#
# Turn both cold rates into seconds per sample, 1 / rate. The folder's minus the one file's is what a file of its own
# adds. Put it into the exercise's `cluster_ms`. It is an estimate, since names are known and neighbours come along.

# %%
from smallfiles.measure import BenchConfig
from smallfiles.pack import PackConfig, pack

files, one_file = setup.scratch / "set.files", setup.scratch / "set.arrow"
for out in (files, one_file):
    pack(source, out, PackConfig(verify="none"))
print(files, one_file, sep="\n")
show.command(BenchConfig(repeats=5, count=400, orders=("random",)), "read", [files.name, one_file.name])

# %% [markdown] id="key-points"
# ## Key points
#
# - A small file costs an inode, usually an allocation unit, and an open, however few bytes it holds.
# - Opens take microseconds from a cache and may take milliseconds from a server. Look at the slowest one too, not
#   only at the median.
# - Below a certain size, measured above, opening costs more than the bytes.
# - Opens in flight hide latency until the server's or the client's limit is reached; then they only queue.

# %% [markdown] id="quiz"
# ## Check yourself
#
# **1.** A file takes 1 ms to open, your node reads 2 GB/s. What share of the time goes into opens for images of 500 kB?
# (a) 20 %. (b) 50 %. (c) 80 %.
#
# <details>
# <summary>Answer</summary>
#
# **(c)**. Reading takes 0.25 ms, the open 1 ms. (b) holds at 2 MB, the product of the two. (a) holds at 8 MB.
#
# </details>
#
# **2.** Reading 100,000 files with 8 threads takes 50 s on the cluster, with 64 threads also 50 s. What helps? (a) 512
# threads. (b) More CPUs in the node. (c) Fewer, larger files.
#
# <details>
# <summary>Answer</summary>
#
# **(c)**. A rate is reached, about 2,000 files per second: the server's, or the node's own (a Lustre client sends 8
# metadata requests at once by default: `lctl get_param mdc.*.max_rpcs_in_flight`). A second node tells: if both together
# are faster, it was the node. Fewer requests help in both cases. (a) More threads queue. (b) More CPUs wait just as long.
#
# </details>
#
# **3.** You drop the page cache with `posix_fadvise` and measure a "cold" read of many files. On a fresh node the same
# read is (a) as slow, (b) slower, (c) faster.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**. A fresh node does not know names and inodes either, so each file takes another request. (a) would be true if
# a cache held nothing but bytes. (c) Empty caches make nothing faster.
#
# </details>

# %% [markdown] id="next"
# ## Next
#
# [02 · Describe a data set with a JSON manifest](02_describe_a_dataset.ipynb) lists the files once, so that no job has to
# search for them again.
