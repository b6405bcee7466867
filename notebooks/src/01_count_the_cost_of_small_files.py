# %% [markdown] id="top"
# # 01 · Count the cost of small files
#
# **Minutes** 30 · **Machine** any Linux computer with two CPUs · **Needs** notebook 00 · **Data** 400 synthetic images
#
# Many small files fill quotas and are slow to read. This notebook measures why, here and on storage as slow as a busy
# cluster's.

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

# %% [markdown] id="count" tags=["optional"]
# ## 1 · Count inodes and blocks
#
# *Optional, 6 minutes.* A file takes more than its bytes. It takes an *inode*: a record of its owner, its size and
# where its bytes are. So does a folder. Disk space comes in *allocation units* of a fixed size, so the end of a file's
# last unit stays empty.
#
# > **Predict.** The demo set has 400 images in ten folders. How many inodes does it take? And this Python environment:
# > some 500, 5,000 or 50,000?

# %%
guess = 5_000  # change me: inodes of this environment

# %% [markdown]
# The folded cell counts both.

# %% jupyter={"source_hidden": true}
from smallfiles.progress import bytes_text

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


for name, root in {"demo set": setup.folder(), "environment": sys.prefix}.items():
    files, folders = walk(root)
    held, used = (bytes_text(total) for total in files.sum(axis=0))
    found = f"{'at least ' * (len(files) > most)}{len(files) + folders:,}"
    print(f"{name:12} {found:>6} inodes, which hold {held} and take {used} on disk")
print(f"your guess   {guess:,}" if guess else "")

# %% [markdown]
# Units are small on a local disk, often 4 KiB. On a cluster they may be larger.
#
# **Your turn.** Write the size of one of your own files. How much space does it take?

# %%
mine = 5_000  # change me: bytes of one of your files


def taken(file_bytes, unit):
    """Bytes taken per byte stored: each file is rounded up to whole units."""
    return (-(-file_bytes // unit) * unit).sum() / file_bytes.sum()


# %% [markdown]
# The folded cell draws it. The dotted units are common.

# %% jupyter={"source_hidden": true}
units = [512 << shift for shift in range(14)]
real = {"ext4, Lustre (ldiskfs)": 4 << 10, "Storage Scale 5": 8 << 10, "Storage Scale 4": 128 << 10}  # with blocks of 4 MiB
shown = {"environment": files[:, 0], f"files of {mine:,} bytes": np.full(1, mine)}
factors = {name: {unit: taken(file_bytes, unit) for unit in units} for name, file_bytes in shown.items()}
times_its_bytes = float(f"{taken(np.full(1, mine), real['Storage Scale 4']):.2g}")
title = f"In units of 128 KiB, a file of {mine:,} bytes takes {times_its_bytes:,g} times its bytes"
axes = {"x": "allocation unit (B)", "y": "bytes taken per byte stored", "log": "xy"}
figures.lines(factors, title, **axes, marks=real, note="whole units; Storage Scale can keep files below 3.5 kB in their inodes", counted=True)

# %% [markdown]
# A unit much smaller than the mean file wastes little. Once it is larger than nearly all files, each doubling doubles
# the space.
#
# You can now solve task 1 of [exercise 01](../exercises/01_count_the_cost_of_small_files.ipynb).

# %% [markdown] id="operations" tags=["core"]
# ## 2 · Time a single open
#
# To read a file, a program opens it, reads its bytes, and closes it. Often it first asks for the size (`stat`). Each
# step is a *system call*: a request to Linux's *kernel*.
#
# ![Two sequences. A file per image: ask the metadata server, wait, read, again and again. One large file: ask once, then read long runs in order, or single images at random.](pictures/open_and_read.svg)
#
# *What a parallel file system does for `open` and `read`. For a new name, `open?` is often two requests: a look-up and
# an open. Lustre and NFSv4 send one, but two with a `stat`.*
#
# > **Predict.** Which takes longest on this machine: stat, open, read or close? How many seconds does an open take: a
# > microsecond (1e-6), a millisecond (1e-3) or more?

# %%
guess = 1e-3  # change me: seconds for one open; the figure below shows it

# %%
from time import perf_counter_ns, sleep


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
# A *warm* read finds the bytes in memory, in the kernel's *page cache*. Before a *cold* read we ask the kernel to forget
# the bytes (`posix_fadvise`), so they come from the disk or the file server.
#
# The kernel also keeps names that it looked up. The cell asks for all sizes first, so all names are *known*.

# %%
from pathlib import Path

from smallfiles.measure import cache

source, folder = setup.source(), setup.folder()
paths = [str(folder / path) for path in source.manifest.paths.to_pylist()][:200]
buffer = bytearray(max(map(os.path.getsize, paths)))  # from here on the kernel knows every name
os.close(os.dup2(0, 1_000))  # Linux enlarges its table of open files: now, not while we time
times = {name: [] for name in ("stat", "open", "read, cold", "read, warm", "close")}


def time_all(read):
    times["stat"] += timed(os.stat, paths)[0]
    seconds, descriptors = timed(lambda path: os.open(path, os.O_RDONLY), paths)
    times["open"] += seconds
    times[read] += timed(lambda descriptor: os.readv(descriptor, [buffer]), descriptors)[0]
    times["close"] += timed(os.close, descriptors)[0]


# %%
if cache.can_be_cold(folder):
    cache.drop(map(Path, paths))  # the kernel forgets the bytes, but not the names
    time_all("read, cold")
for _ in range(5):
    time_all("read, warm")

# %% [markdown]
# The folded cell draws all calls; a dot marks the slowest.

# %% jupyter={"source_hidden": true}
times = {name: seconds for name, seconds in times.items() if seconds}  # some file systems cannot be cold
open_s = np.median(times["open"])
state = "cold" if "read, cold" in times else "warm"
longer = float(f"{np.median(times[f'read, {state}']) / open_s:.2g}")
title = f"A {state} read takes about {longer:,g} times as long as an open of a known name"
note = f"{len(times['open']):,} opens"
figures.histogram(times, title, x="time of one call (s)", log=True, note=note, guess=guess, guess_of="open")

# %% [markdown]
# On a local disk the open of a known name takes almost nothing. On a cluster it is usually a request to a server, and
# may take milliseconds.
#
# The dots matter too: a batch waits for its slowest file. Here a single slow call may be another program's turn on
# the CPU.
#
# Our *cold* is half cold: names and inodes stay known, and a file server keeps its cache.
#
# > **Predict.** ImageNet has 1,281,167 training images. How long does it take to open them, one after the other, at the
# > speed measured here? And on a fresh node, which knows no names: two requests of 2 ms per file?

# %%
guess_s, guess_hours = 60, 12  # change me: seconds here, hours there

# %%
images = 1_281_167
show.say(f"Known names, here: **{images * open_s:,.0f} s** by the median; your guess: {guess_s} s.")
there_hours = images * 2 * 0.002 / 3600
show.say(f"New names, there: **{there_hours:.1f} hours**, without a single byte; your guess: {guess_hours} hours.")

# %% [markdown]
# The 2 ms are assumed; see *On the cluster* for yours.

# %% [markdown] id="sizes" tags=["core"]
# ## 3 · Trade many files for one
#
# An open costs the same for a small file and for a large one, so a small file pays more per byte. We read the same
# bytes from many files, and from a large one in pieces. The folded cell writes both.

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
wait_s = 0  # your turn: the time of an open at a busy server


def read_many(pieces):
    total = 0
    for piece in random.sample(pieces, len(pieces)):
        descriptor = os.open(piece, os.O_RDONLY)  # an open for each piece
        if wait_s:
            sleep(wait_s)
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
# `measure.compare` runs both ways in turns, so a disturbance hits both.
#
# > **Predict.** At which size does reading the bytes take as long as opening the file? There, many files reach half of
# > the speed of one, since each file takes twice as long.

# %%
guess = 500_000  # change me: bytes

# %%
from smallfiles import measure

buffer = bytearray(4_000_000)
results = {}
for size in tqdm((1_000, 4_000, 16_000, 64_000, 256_000, 1_000_000, 4_000_000), "measuring"):
    pieces, large = write_both(size)
    ways = {"many files": lambda: read_many(pieces), "one file": lambda: read_one(large, size)}
    results[size] = measure.compare(ways, rounds=15, unit="bytes", bar=False)

# %% [markdown]
# The folded cell divides the speeds of the faster half of the runs, since other programs only slow a run down.

# %% jupyter={"source_hidden": true}
from helpers.axes import writer

text = writer("B")
rates = {size: [np.sort(result.rates_per_s(way))[7:] for way in result.runs] for size, result in results.items()}
ratios = {size: (many / one).tolist() for size, (many, one) in rates.items()}
slower = max((size for size, runs in ratios.items() if np.median(runs) < 0.5), default=0)
even = next((size for size in ratios if size > slower), 0)
title = f"Many files reach half the speed of one between {text(slower)} and {text(even)}"
if not even:
    title = f"Many files stay below half the speed of one, even at {text(slower)}"
if not slower:
    title = f"Many files reach half the speed of one, even at {text(even)}"
opening = np.median(times["open"]) + np.median(times["close"]) + wait_s
rate = max(np.median(one) for _, one in rates.values())
axes = {"x": "size of a file or piece (B)", "y": "speed of many files, relative to one", "log": "x", "ideal": "half the speed"}
lines = {"many files": ratios, "half the speed": dict.fromkeys(ratios, 0.5)}
marks = {"rule": opening * rate} if opening * rate <= max(ratios) else {}
show.figure(figures.lines(lines, title, **axes, guess=guess, marks=marks, note="faster half of 15 rounds, warm cache"))
warm = np.median([*map(os.path.getsize, paths)]) / np.median(times["read, warm"])
show.say(
    f"**Rule**, here: {1e6 * opening:,.1f} µs to open and close, times {text(rate)}/s, is **{text(opening * rate)}**; "
    f"at the rate of section 2's warm images it is **{text(float(f'{opening * warm:.2g}'))}**."
)

# %% [markdown]
# A file is small if it has fewer bytes than could be read while it is opened. That is the *rule*: time of an open, times
# the rate of reading. The line crosses the half near it, on a busy machine farther right. Far to the left it levels off,
# because the one file needs a call per piece too.
#
# Here the first rate may exceed memory's, since the CPU's cache holds these few megabytes.
#
# On slow storage the half lies farther right: two requests of 2 ms, times 1 GB/s, are 4 MB. ImageNet's images of
# 110 kB are small there.
#
# **Your turn.** Set `wait_s = 0.004` and run this section again (some 40 s). Where does the line cross the half?
#
# <details>
# <summary>Answer</summary>
#
# Usually nowhere: in 4 ms memory delivers tens to hundreds of megabytes, more than the figure shows.
#
# </details>
#
# Reading the large file in order saves requests for the bytes too ([05](05_shard_a_dataset.ipynb)).

# %% [markdown] id="in-flight" tags=["core"]
# ## 4 · Keep many opens in flight
#
# With several threads, a program can have several requests *in flight*, rather than wait for each answer. The cell reads
# 100 files so.

# %%
from concurrent.futures import ThreadPoolExecutor

names = random.sample(source.manifest.paths.to_pylist(), 100)
largest = max(map(source.store.size, names))


def read_all(store, in_flight):
    with ThreadPoolExecutor(in_flight) as pool:
        reads = pool.map(lambda name: store.read_into(name, memoryview(bytearray(largest))), names)
        return len(list(reads))


def rates_in_flight(store, before=None, most=4 if setup.shared else 64):  # few, if others wait for the same server
    ways = {str(k): partial(read_all, store, k) for k in (1, 2, 4, 8, 16, 64) if k <= most}
    result = measure.compare(ways, rounds=7, unit="files", before=before)
    return {int(k): result.rates_per_s(k) for k in result.runs}


# %% [markdown]
# We measure this machine, then slow storage: `slowfs` mounts the same folder again. Each look-up and open takes 2 ms there,
# and 4 are served at once. Its reads are free, unlike a cluster's. Where mounting is forbidden, it slows our own reads
# instead.
#
# > **Predict.** A new file takes two requests there, a look-up and an open. With how many opens in flight does the slow
# > storage reach its limit?
#
# **Your turn.** Write a formula for the files per second that you expect.

# %%
guess = 32  # change me: opens in flight


def your_rate(in_flight, storage):
    return 1 / storage.latency_s  # change me: from in_flight, storage.servers, 2 requests a file


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
# The folded cell draws the rates beside your formula and ours. It notes this machine's on a *worksheet* for notebooks 11
# and 14.

# %% jupyter={"source_hidden": true}
expected = {k: min(k, storage.servers) / (2 * storage.latency_s) for k in found["slow storage"]}
rates = {k: np.median(runs) for k, runs in found["slow storage"].items()}
enough, limit = min(rates, key=lambda k: abs(k - storage.servers)), max(expected.values())
title = f"One open in flight reaches {rates[1] / limit:.0%} of the slow storage's rate, {enough} reach {rates[enough] / limit:.0%}"
axes = {"x": "opens in flight", "y": "files per second", "log": "xy", "ideal": "slow storage, expected"}
formulas = {"your formula": {k: your_rate(k, storage) for k in expected}, axes["ideal"]: expected}
show.figure(figures.lines({**found, **formulas}, title, **axes, guess=guess))
show.say(
    f"{storage.servers} servers, two requests of {1e3 * storage.latency_s:.3g} ms: at most {storage.servers} / "
    f"(2 × {1e3 * storage.latency_s:.3g} ms) = **{limit:,.0f} files/s**, "
    f"measured {max(rates.values()):,.0f}; by your formula {max(formulas['your formula'].values()):,.0f}."
)
cold = found.get("cold cache", found["warm cache"])
worksheet.note("01", latency_ms=1e3 / np.median(cold[1]), opens_per_s=max(map(np.median, cold.values())))

# %% [markdown]
# <details>
# <summary>The formula</summary>
#
# `return min(in_flight, storage.servers) / (2 * storage.latency_s)`
#
# </details>
#
# **Slow storage** is limited by latency while few opens are in flight, so each further one helps. Once all 4 servers are
# busy, further ones only queue. (A few fill the gaps between requests.)
#
# **This machine** waits for its disk when the cache is cold, so a few opens in flight may help. With a warm cache there
# is nothing to wait for: threads gain little or lose, since Python runs one at a time and switching costs time.
#
# **Your turn.** Set `servers=8` and run both cells again. Where is the bend?
#
# <details>
# <summary>Answer</summary>
#
# The bend is at 8: twice the servers, twice the rate, at most 2,000 files per second. Two CPUs may be too few to
# reach all of it, since they also run the threads and the slow storage.
#
# </details>
#
# You can now solve task 2 of [exercise 01](../exercises/01_count_the_cost_of_small_files.ipynb).

# %% [markdown] id="exercise"
# ## Exercise
#
# [Exercise 01](../exercises/01_count_the_cost_of_small_files.ipynb): predict how many inodes a data set takes, and how
# long its opens keep a job waiting.

# %% [markdown] id="cluster"
# ## On the cluster
#
# The cell packs the set as a folder of files and as one file. Before you close this notebook, which removes
# them, copy both to the file system of your jobs. Run the command in their folder, on another node, whose memory holds
# neither.
#
# Turn the two numbers under samples/s into milliseconds per sample: 1,000 / number. Their difference is what a file of its
# own adds: the exercise's `cluster_ms`. It is a lower bound: names are known, and the server may have kept the bytes.

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
# - A small file costs an inode, usually an allocation unit, and an open, however few bytes it holds.
# - Opens take microseconds from a cache and may take milliseconds from a server. Look at the slowest one too.
# - A file is small if more bytes could be read while it is opened.
# - Opens in flight hide latency until the server's or the client's limit is reached; then they only queue.

# %% [markdown] id="quiz"
# ## Check yourself
#
# **1.** A file takes 1 ms to open, your node reads 2 GB/s. How much of the time goes into opening images of 500 kB?
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
# are faster, it was the node. Fewer requests help in both cases. (a) More threads queue. (b) More CPUs wait as long.
#
# </details>
#
# **3.** You drop the page cache with `posix_fadvise` and measure a "cold" read of many files. On a fresh node the same
# read is (a) as slow, (b) slower, (c) faster.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**. A fresh node does not know names and inodes either, so many file systems send another request per file. (a)
# would be true if a cache held nothing but bytes. (c) Empty caches make nothing faster.
#
# </details>

# %% [markdown] id="next"
# ## Next
#
# [02 · Describe a data set with a JSON manifest](02_describe_a_dataset.ipynb) lists the files once, so that no job
# searches for them.
