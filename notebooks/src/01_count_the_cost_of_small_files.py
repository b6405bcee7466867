# %% [markdown] id="top"
# # 01 · Count the cost of small files
#
# **Minutes** 30 · **Machine** any Linux computer with two CPUs · **Needs** notebook 00 · **Data** 400 synthetic images
#
# A data set of many small files uses up your quota of files, and reading it is slow. In this notebook you count what one
# small file costs: disk space, requests to a server, and time. You measure the time on this machine, and compute how long
# the same work takes on the storage of a busy cluster.

# %% [markdown] id="questions"
# ## Questions
#
# - What does a small file cost besides its bytes?
# - How many requests does a program send to read one file?
# - How large must a file be before reading it takes longer than opening it?
# - When does it help to open many files at the same time?

# %% [markdown] id="objectives"
# ## After this you can
#
# - count inodes and blocks,
# - count the requests of a program, and time single system calls,
# - compute whether a file is small for your storage,
# - tell whether latency or a busy server limits how fast you read.

# %% [markdown] id="setup"
# ## Set up
#
# The main findings of this notebook are counts and simulations, which hardly depend on the machine. Measured times do
# depend on it. On a busy machine, calls take longer, and measured points may lie far from the computed curves.

# %% id="start"
import sys

sys.path.append("..")
from helpers import figures, show, start, worksheet

setup = start("01")

# %%
import os
import random
from functools import partial
from time import perf_counter_ns

import matplotlib.pyplot as plt
import numpy as np
from tqdm.auto import tqdm

from smallfiles.progress import bytes_text

# %% [markdown] id="count" tags=["optional"]
# ## 1 · Count inodes and blocks
#
# *Optional, 6 minutes.* Every file needs an *inode*, which is a record of its owner, its size, and the place of its bytes
# on the disk. Every folder needs an inode, too. The bytes are stored in *allocation units* of a fixed size. If a file
# does not fill its last unit, the rest of this unit is wasted.
#
# The demo set has 400 images in ten folders, which are inside one top folder. So it needs 411 inodes.
#
# How many inodes does the Python environment of this course need: about 500, 5,000, or 50,000?
#
# The function in the next cell asks Linux for the size of each file below a folder, and for the disk space that the file
# occupies (`st_blocks`, in blocks of 512 bytes).

# %%
most = 5_000 if setup.shared else 1_000_000  # stop early on a file system that others use


def walk(root):
    """Return the size and the disk space of each file below a folder, and the number of folders."""
    found, folders = {}, 0
    for folder, _, names in os.walk(root):
        folders += 1
        for name in names:
            about = os.lstat(os.path.join(folder, name))
            found[about.st_ino] = about.st_size, 512 * about.st_blocks  # hard links share one inode
        if len(found) > most:
            break
    return np.array(list(found.values())), folders


# %% tags=["slide"]
for name, root in {"demo set": setup.folder(), "environment": sys.prefix}.items():
    files, folders = walk(root)
    size, allocated = (bytes_text(total) for total in files.sum(axis=0))
    count = f"{'at least ' * (len(files) > most)}{len(files) + folders:,}"
    print(f"{name:12} {count:>6} inodes, {size} of data, {allocated} on disk")

# %% [markdown]
# The environment alone needs tens of thousands of inodes, so 50,000 is closest. (On a shared file system, the cell stops at
# about 5,000 files, and prints *at least*.) Compare the number with your quota of
# files.
#
# On most file systems, the files occupy more space than their bytes need. How much space is wasted depends on the size of
# the allocation unit. On a local disk, a unit often has 4 KiB. On a cluster, it may be larger.
#
# **Your turn.** Write the size of one of your own files into the next cell. How much disk space does the file occupy?

# %%
mine = 5_000  # change me: bytes of one of your files


def occupied(file_bytes, unit):
    """Disk space divided by size, if each file is rounded up to whole units."""
    return (-(-file_bytes // unit) * unit).sum() / file_bytes.sum()


# %% [markdown]
# The folded cell draws disk space divided by size, for units from 512 B to 4 MiB. The dotted lines mark the units of
# common file systems.

# %% tags=["slide"] jupyter={"source_hidden": true}
units = [512 << shift for shift in range(14)]
real = {"ext4, Lustre (ldiskfs)": 4 << 10, "GPFS 5": 8 << 10, "GPFS 4": 128 << 10}  # GPFS with blocks of 4 MiB
shown = {"environment": files[:, 0], f"a file of {mine:,} bytes": np.full(1, mine)}
factors = {name: {unit: occupied(file_bytes, unit) for unit in units} for name, file_bytes in shown.items()}
times_its_size = float(f"{occupied(np.full(1, mine), real['GPFS 4']):.2g}")
title = f"With 128 KiB units, a {mine:,}-byte file occupies {times_its_size:,g} times its size"
axes = {"x": "allocation unit (B)", "y": "disk space, relative to size", "log": "xy"}
figures.lines(factors, title, **axes, marks=real, note="whole units; GPFS (Storage Scale) can store files below 3.5 kB in their inodes", counted=True)

# %% [markdown]
# Multiply the size of your file by the number on its curve. For example, a file of 5,000 bytes occupies two units of 4
# KiB, which is 1.6 times its size.
#
# A unit that is much smaller than the mean file wastes little space. Once the unit is larger than nearly all files, each
# doubling of the unit doubles the space.
#
# You can now solve the optional task 1 of [exercise 01](../exercises/01_count_the_cost_of_small_files.ipynb).

# %% [markdown] id="operations" tags=["core"]
# ## 2 · Time a single open
#
# To read a file, a program opens it, reads its bytes, and closes it. Often the program first asks for the file's size
# (`stat`). Each of these steps is a *system call*: the program asks the *kernel* of Linux to do it. On a parallel file
# system, the kernel must in turn ask a *metadata server* over the network.
#
# ![Two sequences. A file per image: ask the metadata server, wait, read, again and again. One large file: ask once, then read long runs in order, or single images at random.](pictures/open_and_read.svg)
#
# *What a parallel file system does for `open` and `read`.*
#
# The picture shows one question, `open?`, for each file. But the kernel may need several *requests* to get the answer. A
# request is one message from a node to a server. A *look-up* asks the server for the file with a given name. An *open*
# tells the server that a program wants to use this file.
#
# We can count both with `slowfs`, which comes with the course. It shows a folder at a second place (it *mounts* the
# folder there), and it counts every request that the kernel sends to this place.
#
# > **Predict.** The next cell reads 100 images of the demo set. How many requests does `slowfs` count, if you add the
# > look-ups and the opens?

# %%
guess = None  # your guess: look-ups and opens together

# %% tags=["slide"]
from smallfiles import measure, slowfs

source, folder = setup.source(), setup.folder()
names = source.manifest.paths.to_pylist()[:100]
sizes = [source.store.size(name) for name in names]

# If mounting is not allowed, slowfs computes the requests from our calls.
with slowfs.open_slow(folder, slowfs.SlowConfig(latency_s=0)) as storage:
    with measure.requests(storage) as asked:
        for name, size in zip(names, sizes, strict=True):
            storage.store.read_into(name, memoryview(bytearray(size)))  # open, read, close
print(asked["lookups"], "look-ups,", asked["opens"], "opens; your guess:", guess)

# %% [markdown]
# Each image needs a look-up and an open, so 100 images need 200 requests. If `slowfs` counts a few more look-ups, they
# are for the folders.
#
# In this course, **a new file costs two requests**. A file is *new* if the node does not know its name yet. On real file
# systems, a new file costs one to three requests.
#
# <details>
# <summary>Why one to three, and how do I count on my storage?</summary>
#
# Lustre and NFSv4 can combine the look-up and the open in one request, unless the program asks for the size first. A
# client that does not remember names looks the name up again for each call.
#
# `measure.requests(FOLDER)` counts on your storage, too, if its client keeps counters (MooseFS, NFS, Lustre). Elsewhere,
# it counts the system calls of this process, and says so.
#
# </details>
#
# The *client* of a file system is the software on the node that sends the requests. The folded cell prints a record of
# what the client of a real file system, MooseFS, counted while a program read 1,000 random images from plain files and
# from one packed file (`arrow`).

# %% jupyter={"source_hidden": true}
from helpers.kernel import CHECKOUT

for record in measure.load(CHECKOUT / "results/requests.json"):
    if record.name in ("plain files", "arrow"):
        extra = record.extra
        counts = (f"{extra[f'{each}_per_1000']:5,.0f}" for each in ("lookups", "opens", "metadata"))
        print(f"{record.name:11} {next(counts)} look-ups, {next(counts)} opens, {next(counts)} metadata requests in all")

# %% [markdown]
# For each plain file, this client sends a look-up, an open, and a third metadata request. The packed file was opened
# before the count began, and reading images from it needs almost no metadata requests.
#
# How long does an open take? If the files are on a local disk, the kernel opens them by itself, without a server. We time
# four system calls: `stat`, `open`, `read`, and `close`. The next cell prepares the measurement. It also asks for the
# size of each file, so that the kernel already knows all names when we time the calls.

# %%
def timed(call, items):
    """Return the seconds of each call, and what the calls returned."""
    times, results = [], []
    for item in items:
        began = perf_counter_ns()
        result = call(item)
        times.append((perf_counter_ns() - began) / 1e9)
        results.append(result)
    return times, results


paths = [str(folder / path) for path in source.manifest.paths.to_pylist()[:200]]
buffer = bytearray(max(map(os.path.getsize, paths)))  # now the kernel knows every name
os.close(os.dup2(0, 1_000))  # make room for 1,000 open files before we time

# %% [markdown]
# A *warm* read finds the bytes in memory, in the kernel's *page cache*. A *cold* read must get them from the disk or from
# the file server. To make a read cold, we first ask the kernel to drop the bytes from the page cache (`posix_fadvise`).
# The next cell times all four calls, with one cold read and five warm reads of each image.

# %%
from pathlib import Path

from smallfiles.measure import cache

times = {name: [] for name in ("stat", "open", "read, cold", "read, warm", "close")}


def time_all(read):
    times["stat"] += timed(os.stat, paths)[0]
    seconds, descriptors = timed(lambda path: os.open(path, os.O_RDONLY), paths)
    times["open"] += seconds
    times[read] += timed(lambda descriptor: os.readv(descriptor, [buffer]), descriptors)[0]
    times["close"] += timed(os.close, descriptors)[0]


if cache.can_be_cold(folder):
    cache.drop(map(Path, paths))  # the kernel drops the bytes, but it keeps the names
    time_all("read, cold")
for _ in range(5):
    time_all("read, warm")

# %% [markdown]
# The folded cell draws a histogram for each kind of call. The dot on the right marks the slowest call, which matters
# because a batch is complete only when its slowest file has arrived.

# %% tags=["slide"] jupyter={"source_hidden": true}
times = {name: seconds for name, seconds in times.items() if seconds}  # perhaps none is cold
open_s = np.median(times["open"])
state = "cold" if "read, cold" in times else "warm"
longer = float(f"{np.median(times[f'read, {state}']) / open_s:.2g}")
title = f"A {state} read takes about {longer:,g} times as long as opening a file whose name is known"
note = f"{len(times['open']):,} opens"
figures.histogram(times, title, x="time of one call (s)", log=True, note=note)

# %% [markdown]
# On a local disk, it takes a few microseconds to open a file whose name the kernel knows. On a cluster, the kernel
# usually has to send a request to a server, so the open may take milliseconds.
#
# Our "cold" read is only partly cold. The kernel still knows names and inodes, and a file server may still have the bytes
# in its own memory.
#
# > **Predict.** ImageNet has 1,281,167 training images. How long does it take to open all of them, one after the other,
# > at the speed measured here? And how long does it take on a cluster where the node knows none of the names, so that
# > each image needs two requests of 2 ms?

# %%
guess_s, guess_hours = None, None  # your guesses: seconds here, hours on a cluster

# %%
images, request_s = 1_281_167, 0.002  # change me: the time of a request on your cluster
show.say(f"Here, with known names: **{images * open_s:,.0f} s**; your guess: {guess_s}.")
hours = images * 2 * request_s / 3600
show.say(f"On a cluster: **{hours:.1f} hours** before a byte is read; your guess: {guess_hours}.")

# %% [markdown]
# On a local disk, it takes seconds to open all images. But if the program waits 2 ms for the answer to each request, it
# takes more than an hour. The 2 ms are an assumption. *On the cluster*, below, shows how to measure the cost of a file.

# %% [markdown] id="sizes" tags=["core"]
# ## 3 · Trade many files for one
#
# It takes about as long to open a small file as to open a large one. So with small files, you spend more time on opening
# for each byte that you read. We compare two ways to store the same bytes: in many files, or as pieces of one large file.
# The function in the next cell writes both.

# %%
def write_both(size):
    """Write the same bytes into many small files and into one large file."""
    folder = setup.scratch / f"{size}"
    folder.mkdir(exist_ok=True)
    count = max(8, min(16 if setup.shared else 128, 16_000_000 // size))
    pieces = [folder / f"{n}.bin" for n in range(count)]
    for piece in pieces:
        piece.write_bytes(os.urandom(size))
    large = folder / "large"
    large.write_bytes(b"".join(piece.read_bytes() for piece in pieces))
    return pieces, large


# %% [markdown]
# First we count the requests. The next cell writes pieces of 10 kB, once as many files and once as one large file. Then
# it reads all of them through `slowfs`.

# %% tags=["slide"]
pieces, large = write_both(10_000)
for way, files in {"many files": pieces, "one file": [large]}.items():
    with slowfs.open_slow(setup.scratch, slowfs.SlowConfig(latency_s=0)) as storage:
        with measure.requests(storage) as asked:
            for file in files:
                name = str(file.relative_to(setup.scratch))
                storage.store.read_into(name, memoryview(bytearray(file.stat().st_size)))
    print(f"{way}: {asked['lookups']} look-ups, {asked['opens']} opens, {asked['bytes']:,} bytes")

# %% [markdown]
# Both ways read the same bytes. But the many files need two requests each, while the large file needs only two or three
# requests in total.
#
# With these counts, we can compute how long reading takes on any storage. For each small file, the program first waits
# until the two requests are answered, and then for the bytes, which arrive at the storage's rate. The large file is
# opened only once, so we ignore the wait for this open.
#
# > **Predict.** For each small file, the program waits 4 ms for the two requests, and the storage delivers 1 GB/s. How
# > large must the files be so that reading them is half as fast as reading one large file?

# %%
guess = None  # your guess: bytes
wait_s, rate = 0.004, 1e9  # change me: seconds to wait for a file, bytes per second of your storage

# %% tags=["slide"]
sizes = np.geomspace(1e3, 1e8, 101)  # bytes of a file
bytes_s = sizes / rate  # seconds until the bytes of a file have arrived
relative = bytes_s / (wait_s + bytes_s)  # speed of many files, if one large file has speed 1
half = wait_s * rate  # at this size, the bytes need as long as the wait

fig, ax = plt.subplots(figsize=(7.2, 3.2), layout="constrained")
ax.semilogx(sizes, relative)
ax.axhline(0.5, color="grey", ls=":")
ax.plot(half, 0.5, "o", color="black")
ax.annotate(f"half the speed at {bytes_text(half)} ", (half, 0.53), ha="right")
if guess:
    ax.axvline(guess, color="crimson", ls="--", label="your guess")
    ax.legend()
ax.set_xticks(10.0 ** np.arange(3, 9), ["1 kB", "10 kB", "100 kB", "1 MB", "10 MB", "100 MB"])
ax.set(xlabel="size of a file", ylabel="speed, relative to one large file", ylim=(0, 1.05))
title = f"Files below {bytes_text(half)} are read at less than half the speed of one large file"
ax.set_title(title)
show.figure(fig, alt=f"{title}. Computed for {1e3 * wait_s:g} ms per file, {bytes_text(rate)}/s.")

# %% [markdown]
# The speed is one half where it takes as long to open a file as to read its bytes. This gives us a **rule**: a file is
# *small* if opening it takes longer than reading its bytes. To compute the limit, multiply the time to open a file by the
# rate of the storage. With 4 ms and 1 GB/s the limit is 4 MB, and ImageNet's images of 110 kB are far below it.
#
# The rule also tells you when files are fine. On a flash disk inside the node, it may take 20 µs to open a file, and one
# program may read 1 GB/s. Then the limit is 20 kB, so images of 110 kB are not small. Files below the limit are also fine
# if your jobs open fewer files per second than the server can open, and if the training never waits for them.
#
# **Your turn.** Change `wait_s` and `rate` above to the values of your storage, and run both cells again. The black dot
# shows the limit. Are your files smaller?
#
# Does the rule hold on this machine? To find out, we read the pieces in random order. `read_many` opens each piece, and
# `read_one` opens only the large file.

# %%
def read_many(pieces):
    total = 0
    for piece in random.sample(pieces, len(pieces)):
        descriptor = os.open(piece, os.O_RDONLY)  # one open for each piece
        total += os.readv(descriptor, [buffer])
        os.close(descriptor)
    return total


def read_one(large, size):
    descriptor, total = os.open(large, os.O_RDONLY), 0  # one open for all pieces
    places = range(0, os.fstat(descriptor).st_size, size)
    for place in random.sample(places, len(places)):
        total += os.preadv(descriptor, [memoryview(buffer)[:size]], place)
    os.close(descriptor)
    return total


# %% [markdown]
# Now we time both functions with pieces from 1 kB to 4 MB. `measure.compare` calls them alternately, so that other
# programs disturb both equally.

# %%
buffer = bytearray(4_000_000)
results = {}
for size in tqdm((1_000, 4_000, 16_000, 64_000, 256_000, 1_000_000, 4_000_000), "measuring"):
    pieces, large = write_both(size)
    ways = {"many files": partial(read_many, pieces), "one file": partial(read_one, large, size)}
    results[size] = measure.compare(ways, rounds=15, unit="bytes", bar=False)

# %% [markdown]
# The folded cell draws the measured speed and the rule for this machine. For the rule, it takes the time to open and
# close a file from section 2, and the highest rate at which the large file was read. For the measured speed, it uses only
# the faster half of the runs, since other programs can only slow a run down.

# %% jupyter={"source_hidden": true}
from helpers.axes import writer

text = writer("B")
speeds = {size: [np.sort(result.rates_per_s(way))[7:] for way in result.runs] for size, result in results.items()}
ratios = {size: (many / one).tolist() for size, (many, one) in speeds.items()}
here_s = np.median(times["open"]) + np.median(times["close"])
here_rate = max(np.median(one) for _, one in speeds.values())
rule = {size: (size / here_rate) / (here_s + size / here_rate) for size in results}
title = f"Measured here: files of {text(min(ratios))} reach {np.median(ratios[min(ratios)]):.0%} of the speed of one large file, files of {text(max(ratios))} reach {np.median(ratios[max(ratios)]):.0%}"
axes = {"x": "size of a file or piece (B)", "y": "speed, relative to one large file", "log": "x", "ideal": "rule"}
note = "faster half of 15 rounds, warm cache"
show.figure(figures.lines({"many files": ratios, "rule": rule}, title, **axes, note=note))
show.say(f"**The rule here**: {1e6 * here_s:,.1f} µs to open and close, times {text(here_rate)}/s, is **{text(here_s * here_rate)}**.")

# %% [markdown]
# On a calm machine, the measured curve rises like the rule: the larger the files, the closer they come to the speed of
# one large file. For the smallest files, the measured speed lies above the rule, because the large file also needs a
# system call for each piece, and the rule ignores this call.
#
# Here, we read the large file at random places. Reading it from front to back needs even fewer requests for its bytes
# ([05](05_shard_a_dataset.ipynb)).

# %% [markdown] id="in-flight" tags=["core"]
# ## 4 · Keep many opens in flight
#
# The time between a request and its answer is the *latency*. A program need not wait for one answer before it sends the
# next request, because it can use several threads. Each thread opens one file at a time: it sends the look-up, waits for
# the answer, sends the open, and waits again. During all this time, this thread has one open *in flight*. So 16 threads
# have 16 opens in flight. How much that helps depends on how many requests the storage can process at the same time.
#
# We simulate storage with 4 metadata servers. Each server needs 2 ms for a request and processes one request at a time.
# All other requests wait in a queue. The simulation opens no files. It only computes when each request is answered.

# %% tags=["slide"]
import heapq


def opening_s(files, in_flight, servers, latency_s):
    """Return the seconds until all files are open, computed one request at a time."""
    thread_free, server_free = [0.0] * in_flight, [0.0] * servers  # when each is free again
    for _ in range(2 * files):  # a look-up and an open for each file
        sent = heapq.heappop(thread_free)  # the first free thread sends the next request
        begun = max(sent, heapq.heappop(server_free))  # it waits until a server is free
        heapq.heappush(thread_free, begun + latency_s)
        heapq.heappush(server_free, begun + latency_s)
    return max(thread_free)


# %% [markdown]
# > **Predict.** More opens in flight give more files per second, but only up to a limit. How many opens in flight does
# > this storage need to reach its limit?

# %%
guess = None  # your guess: opens in flight
storage = slowfs.SlowConfig(latency_s=0.002, servers=4)  # change me: your servers

# %% [markdown]
# **Your turn.** How many files per second do you expect? Write your own formula into the next cell.


# %%
def your_rate(in_flight, storage):
    return 1 / storage.latency_s  # change me: in_flight, storage.servers, 2 requests per file


# %%
counts = (1, 2, 4, 8, 16, 64)
simulated = {k: 100 / opening_s(100, k, storage.servers, storage.latency_s) for k in counts}
limit = max(simulated.values())
enough = min(k for k, rate in simulated.items() if rate > 0.99 * limit)
for k, rate in simulated.items():
    print(f"{k:2} in flight: {rate:5,.0f} files/s; your formula: {your_rate(k, storage):5,.0f}")

# %% [markdown]
# The storage reaches its limit of 1,000 files per second with 4 opens in flight. They keep all 4 servers busy, so any
# further opens only wait in the queue.
#
# Now we measure with real threads. We read the 100 images first from the folder itself, and then through a mount of
# `slowfs`, which now delays each request as in the simulation.

# %%
from concurrent.futures import ThreadPoolExecutor

largest = max(map(source.store.size, names))


def read_all(store, in_flight):
    with ThreadPoolExecutor(in_flight) as pool:
        reads = pool.map(lambda name: store.read_into(name, memoryview(bytearray(largest))), names)
        return len(list(reads))


def rates_in_flight(store, before=None, most=4 if setup.shared else 64):  # fewer if others use it
    ways = {str(k): partial(read_all, store, k) for k in counts if k <= most}
    result = measure.compare(ways, rounds=7, unit="files", before=before)
    return {int(k): result.rates_per_s(k) for k in result.runs}


# %%
found = {"here, warm cache": rates_in_flight(source.store)}
if cache.can_be_cold(folder):
    drop = partial(cache.drop, [folder / name for name in names], clean=True)
    found["here, cold cache"] = rates_in_flight(source.store, drop)
with slowfs.open_slow(folder, storage) as slow:
    found["slow mount"] = rates_in_flight(slow.store, most=64)  # its servers limit what it sends on

# %% [markdown]
# The folded cell draws the simulation, your formula, and the measured rates. It also writes two results to a *worksheet*
# for later notebooks: the time to open and read one file, and the highest number of files per second.

# %% tags=["slide"] jupyter={"source_hidden": true}
mounted = found["slow mount"]
measured = np.median(mounted[enough]) / limit if enough in mounted else np.nan
title = f"{enough} opens in flight are enough for {storage.servers} servers: {limit:,.0f} files/s, of which the mount reached {measured:.0%}"
axes = {"x": "opens in flight", "y": "files per second", "log": "xy", "ideal": "simulation"}
computed = {"your formula": {k: your_rate(k, storage) for k in counts}, "simulation": simulated}
show.figure(figures.lines({**found, **computed}, title, **axes, guess=guess))
cold = found.get("here, cold cache", found["here, warm cache"])
worksheet.note("01", latency_ms=1e3 / np.median(cold[1]), opens_per_s=max(map(np.median, cold.values())))

# %% [markdown]
# <details>
# <summary>The formula</summary>
#
# `return min(in_flight, storage.servers) / (2 * storage.latency_s)`
#
# </details>
#
# As long as fewer than 4 opens are in flight, latency limits the **slow mount**, so each additional open makes the
# program faster. From 4 opens on, the servers are the limit. The measured rates of the mount are below the simulation,
# because the threads and the mount also need time on the CPU.
#
# **This machine** waits for its disk when the cache is cold, so a few opens in flight may help. With a warm cache, there
# is nothing to wait for. Then threads gain little or even lose time, since Python runs only one thread at a time, and
# switching between threads costs time.
#
# **Your turn.** Change `servers=4` to `servers=8` in the cell below *Predict*, and run the cells from there to the
# printed table again. How many opens in flight does the storage need now?
#
# <details>
# <summary>Answer</summary>
#
# It needs 8 opens in flight. Eight servers answer twice as many requests per second as four, so the limit is now 2,000
# files per second.
#
# </details>
#
# You can now solve task 2 of [exercise 01](../exercises/01_count_the_cost_of_small_files.ipynb).

# %% [markdown] id="exercise"
# ## Exercise
#
# In [exercise 01](../exercises/01_count_the_cost_of_small_files.ipynb), you predict how many inodes a data set needs, and
# how long a job waits until its files are open.

# %% [markdown] id="cluster"
# ## On the cluster
#
# How long does it take to open a file on your cluster? The next cell packs the data set twice: as a folder of files and
# as one file. Copy both to the file system that your jobs use before you close the notebook, because closing it deletes
# them. Then run the printed command in the folder of the copies, on a node that has not read them before.
#
# The command prints samples per second for both. Divide 1,000 by each number to get milliseconds per sample. For example,
# 250 samples per second means 4 ms per sample, and 1,000 means 1 ms. The difference, here 3 ms, is the cost of a separate
# file. Exercise 01 calls it `cluster_ms`.
#
# To drop the bytes of a file from the page cache, the command has to open the file before the measurement. So the node already
# knows all names. A file whose name the node does not know yet costs even more.

# %%
from smallfiles.measure import BenchConfig
from smallfiles.pack import PackConfig, pack

files, one_file = setup.scratch / "set.files", setup.scratch / "set.arrow"
for out in (files, one_file):
    pack(source, out, PackConfig(verify="none"))
print(files, one_file, sep="\n")
config = BenchConfig(repeats=5, count=400, orders=("random",), caches=("cold",))
show.command(config, "read", [files.name, one_file.name])

# %% [markdown] id="key-points"
# ## Key points
#
# - A small file costs an inode, usually an allocation unit, and about two requests to a metadata server.
# - If the kernel can open a file by itself, this takes microseconds. If it must ask a server, it may take milliseconds.
# - A file is small if opening it takes longer than reading its bytes.
# - Several opens in flight hide the latency until all servers are busy. Further opens only wait in the queue.

# %% [markdown] id="quiz"
# ## Check yourself
#
# **1.** A file takes 1 ms to open, and your node reads 2 GB/s. What share of the time does the node spend on opening
# images of 500 kB? (a) 20 %. (b) 50 %. (c) 80 %.
#
# <details>
# <summary>Answer</summary>
#
# **(c)**. Opening a file takes 1 ms and reading its bytes takes 0.25 ms, so the node spends 1 ms of every 1.25 ms on
# opening. Answer (b) would be true for files of 2 MB, which is 1 ms multiplied by 2 GB/s. Answer (a) would be true for
# files of 8 MB.
#
# </details>
#
# **2.** On the cluster, 8 threads read 100,000 files in 50 s. With 64 threads it also takes 50 s. What helps? (a) 512
# threads. (b) More CPUs in the node. (c) Fewer, larger files.
#
# <details>
# <summary>Answer</summary>
#
# **(c)**. Something limits the rate to 2,000 files per second. It may be the server. It may also be the node itself: by
# default, a Lustre client has at most 8 metadata requests in flight (`lctl get_param mdc.*.max_rpcs_in_flight`). To find
# out which, run the program on a second node as well. If both nodes together open more files per second, the first node
# was the limit. Fewer files help in both cases. With (a), more threads only wait in the queue. With (b), the additional
# CPUs wait just as long.
#
# </details>
#
# **3.** You drop the page cache with `posix_fadvise` and measure a "cold" read of many files. Then you do the same read
# on a fresh node. The fresh node is (a) as fast, (b) slower, (c) faster.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**. Your node still remembers names and inodes. A fresh node does not, so on many file systems each file also needs
# a look-up. Answer (a) would be true if nodes remembered only bytes. Answer (c) is wrong because an empty cache makes
# nothing faster.
#
# </details>

# %% [markdown] id="next"
# ## Next
#
# In [02 · Describe a data set with a JSON manifest](02_describe_a_dataset.ipynb) you write a list of all files once, so
# that no job has to search for them.
