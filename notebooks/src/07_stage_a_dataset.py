# %% [markdown] id="top"
# # 07 · Stage data to /dev/shm
#
# **Minutes** 35 · **Machine** any Linux computer with two CPUs · **Needs** notebooks 01 and 03 · **Data** 400 synthetic images
#
# All ranks (processes) of a training read the packed file from the parallel file system, and they read it again in every
# epoch. But each node also has storage of its own, which is called *node-local* storage. It is a disk, or a folder whose
# files are in the memory of the node. To *stage* a file means to copy it there before the training starts.
#
# The disk of a laptop is too fast to show what staging gains. So we read through `slowfs` (notebook 01). It shows a folder
# as if it were on slow storage, and it counts all requests and bytes.

# %% [markdown] id="questions"
# ## Questions
#
# - Where is the storage of this node, and how much of it may I use?
# - What happens if eight ranks stage the same file?
# - After how many epochs has staging saved more time than the copy took?
# - Who removes the copy if the job is killed?

# %% [markdown] id="objectives"
# ## After this you can
#
# - find node-local storage, and say how much of it your job may fill,
# - copy a file once per node and verify it, from Python and from a job script,
# - compute after how many epochs staging pays off.

# %% [markdown] id="setup"
# ## Set up
#
# The main findings of this notebook are counts of requests, bytes and copies. They are the same on a busy machine. But
# speeds and seconds change there, and so does the size of the file that a rank finds in section 3.

# %% id="start"
import sys

sys.path.append("..")
from helpers import figures, show, start, worksheet
from helpers.experiments.nb07 import on_slow_storage

setup = start("07")

# %% [markdown]
# In the next cell, `storage` describes the slow storage. It answers a request after 2 ms, works on at most eight requests
# at a time, and delivers 100 MB/s. `config` says how much memory must stay free when a file has been copied.

# %%
import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path

from smallfiles import formats, measure, staging
from smallfiles.pack import PackConfig, pack
from smallfiles.progress import bytes_text
from smallfiles.slowfs import SlowConfig, open_slow
from smallfiles.staging import placement

storage = SlowConfig(latency_s=0.002, servers=8, bandwidth_bytes_s=100e6)  # 2 ms per request
config = staging.StageConfig(leave_bytes=256 << 20)  # leave this much memory for workers

# %% [markdown]
# The folded cell packs the images into the file `packed`, and creates `here`, a folder on this node for our copies.

# %% jupyter={"source_hidden": true}
import atexit

source = setup.source()
packed = setup.scratch / "packed" / "train.arrow"
packed.parent.mkdir(exist_ok=True)
if not packed.exists():
    pack(source, packed, PackConfig(verify="none"))
size = packed.stat().st_size
candidates, _ = placement.candidates(placement.AUTO, packed)  # where copies could go
roomy = [place.path for place in candidates if place.free_bytes > 8 * size + (512 << 20)]
here = Path(tempfile.mkdtemp(prefix="smallfiles-notebook-", dir=roomy[0] if roomy else setup.scratch))
_ = atexit.register(shutil.rmtree, here, ignore_errors=True)

# %% [markdown] id="recall"
# > **Recall** (05). The samples were shuffled while they were packed. Why do you still need a shuffle buffer while reading?
#
# <details>
# <summary>Answer</summary>
#
# Packing shuffles the samples only once. Without a buffer, the same samples follow each other in every epoch, so they share
# a batch again and again. The buffer separates them.
#
# </details>

# %% [markdown] id="place" tags=["core"]
# ## 1 · Find the place
#
# On many clusters a variable such as `SLURM_TMPDIR` names the folder of the node-local storage. But each site has its own
# name for this variable. It may also be unset, or it may name a folder that all nodes share. Nearly every Linux machine has
# `/dev/shm`, a folder whose files are in memory.
#
# May your job fill all the space that `df` shows as free in `/dev/shm`, or less?
#
# The folded cell looks for these folders, and prints how much of each is free and how much of it your job may fill. The
# last line lists the variables that are not set.

# %% jupyter={"source_hidden": true}
from smallfiles.machine import nodelocal

for variable, path in nodelocal.named_directories():
    problem = nodelocal.problem_of(path)
    place = nodelocal.node_local(path) if not problem else None
    free, mine = (bytes_text(n) for n in (place.filesystem.free_bytes, place.free_bytes)) if place else "--"
    print(f"{variable or path}: {problem or f'{place.filesystem.kind}, {free} free, this job may fill {mine}'}")
print("not set:", *(name for name in nodelocal.VARIABLES if name not in os.environ))

# %% [markdown]
# Your job may fill less than `df` shows. A file in `/dev/shm` occupies memory, and on most clusters this memory counts as
# memory of your job. So the limit is the free space or the memory that your job has left, whichever is smaller.
#
# The folded cell writes 256 MiB into `/dev/shm`, and measures by how much the used memory grows.

# %% jupyter={"source_hidden": true}
def used():
    """Return the bytes of memory that the kernel counts: of files in memory, and of this job if it has a limit."""
    line = next(line for line in open("/proc/meminfo") if line.startswith("Shmem:"))
    counters = {1: "memory.usage_in_bytes", 2: "memory.current"}  # of control groups of both versions
    job = [int((folder / counters[version]).read_text()) for version, folder, _ in nodelocal.memory_limits(Path("/"))]
    return [1024 * int(line.split()[1]), *job[:1]]


shm = nodelocal.node_local(nodelocal.SHARED_MEMORY)
count, piece = min(256, shm.free_bytes // (4 << 20)), bytes(1 << 20)
trial, before = Path(shm.path, f"smallfiles-trial-{os.getpid()}"), used()
with open(trial, "wb") as file:
    for _ in range(count):
        file.write(piece)
more = [(now - then) >> 20 for now, then in zip(used(), before, strict=True)]
trial.unlink()
print(f"After writing {count} MiB, the files in memory have grown by {more[0]} MiB,")
print(f"and the memory of this job by {more[1]} MiB" if more[1:] else "and this job has no memory limit here")

# %% [markdown]
# The used memory has grown by about as much as the cell has written. If your job has a memory limit, this memory counts
# towards the limit, as the second number shows. So a copy leaves less memory for the workers of the loader.
#
# The next cell stages the file, and prints the path of the copy and a note about the place. `staged` raises an error if
# less memory than `config` demands would stay free. At the end of the `with` block, it removes the copy.

# %% tags=["slide"]
with staging.staged(packed, here, config=config) as copy:
    print(copy.path.relative_to(here))  # the long name is made from the content
    print(*copy.notes, sep="\n")

# %% [markdown] id="rates" tags=["optional"]
# ## 2 · Measure the copy
#
# *Optional, 8 minutes.* We compare three ways to copy a data set. `cp -r` copies the 400 small files. `dd` copies the
# packed file. `stage` also copies the packed file, and it compares each block with the content digest of notebook 03.

# %%
def by_cp(folder):
    subprocess.run(["cp", "-r", folder, here / "files"], check=True)
    shutil.rmtree(here / "files")


def by_dd(file):
    subprocess.run(["dd", f"if={file}", f"of={here / 'dd'}", "bs=4M", "status=none"], check=True)
    (here / "dd").unlink()


def by_stage(file):
    with staging.staged(file, here, config=config):
        pass


# %% [markdown]
# First we count the requests of the three ways.
#
# > **Predict.** How many requests (look-ups, opens and listings together) does `cp -r` send for 400 images?

# %%
guess = None  # your guess: requests of cp -r

# %%
ways = {"cp -r": (source.root, "", by_cp), "dd": (packed.parent, packed.name, by_dd)}
ways["stage"] = packed.parent, packed.name, by_stage
for name, (folder, file, work) in ways.items():
    with open_slow(folder, SlowConfig(latency_s=0)) as slow:
        with measure.requests(slow) as asked:
            if slow.how == "fuse":  # if mounting is not allowed, nothing can be counted here
                work(slow / file)
    print(f"{name:5} {asked['metadata']:5,} requests, {asked['bytes'] / 1e6:.1f} MB")
print("your guess for cp -r:", guess)

# %% [markdown]
# All three read about the same number of bytes. But `cp -r` sends about 1,200 requests, which are three for each image. In
# notebook 01, a file needed two requests, a look-up and an open. `cp` needs another look-up, because it asks for the
# attributes of a file before it opens the file. `stage` sends about a dozen requests altogether.
#
# If each request takes 2 ms, 1,200 requests take 2.4 s. The bytes take only 0.45 s at 100 MB/s. So we expect `stage` to be
# about (2.4 + 0.45) / 0.45 ≈ 6 times as fast as `cp -r`. The folded cell measures the speeds.

# %% jupyter={"source_hidden": true}
with on_slow_storage(packed, source.root, storage) as place:
    ways = {"cp -r, small files": place.task(by_cp, place.files, operations=3 * len(source.manifest), reads=size)}
    ways |= {"dd, one file": place.task(by_dd, place.packed, reads=size)}
    ways |= {"stage, one file": place.task(by_stage, place.packed, reads=size)}
    found = measure.compare(ways, rounds=3)
plain = found.spread("cp -r, small files").median
speeds = {name: [rate / plain for rate in found.rates_per_s(name)] for name in found.runs}
gain = found.times("stage, one file", "cp -r, small files").median
title = f"Measured here, stage is {gain:.1f} times as fast from slow storage as cp -r of the small files"
axes = {"x": "speed, relative to cp -r", "groups": ("dd", "stage"), "note": f"2 ms per request, 100 MB/s{place.note}"}
figures.bars(speeds, title, **axes, base="cp -r, small files")

# %% [markdown]
# Without the limit of 100 MB/s, `stage` was 26 to 46 times as fast as `cp -r` on our machine ([expected
# numbers](../docs/expected.md)).
#
# `stage` is about as fast as `dd`, because it takes less time to check a block than to read it from this storage.
#
# A file rarely becomes corrupt, but without a check nobody notices it. The folded cell flips one bit of a packed file, and
# keeps the digest of the original. Then it copies the file with `cp` and with `stage`.
#
# Which of them notices the flipped bit: `cp`, `stage`, or both?

# %% jupyter={"source_hidden": true}
from smallfiles import digests
from smallfiles.errors import SmallfilesError

broken = Path(tempfile.mkdtemp(dir=setup.scratch)) / packed.name
shutil.copyfile(digests.sidecar(packed), digests.sidecar(broken))
data = bytearray(packed.read_bytes())
data[size // 2] ^= 1
broken.write_bytes(data)
print("cp ends with code", subprocess.run(["cp", broken, broken.with_name("copied")], check=False).returncode)
try:
    by_stage(broken)
except SmallfilesError as error:
    print(f"stage: {error.got.replace(str(broken), broken.name)}")

# %% [markdown]
# Only `stage` notices the flipped bit, and it names the damaged block. `cp` ends with code 0, which means success.

# %% [markdown] id="once" tags=["core"]
# ## 3 · Copy once per node
#
# A node with eight GPUs runs eight ranks, and all of them need the copy. In the next cell, `if_missing` looks for the copy,
# and makes one if it is missing. What can go wrong if each rank calls this function? `copy_slowly` imitates a copy from
# slow storage.


# %% tags=["slide"]
target = here / "train.arrow"


def copy_slowly(path):
    with open(packed, "rb") as old, open(path, "wb") as new:
        while piece := old.read(4 << 20):
            time.sleep(len(piece) / 50e6)  # each piece of 4 MiB arrives at 50 MB/s
            new.write(piece)


def if_missing(rank):
    missing = not target.exists()
    if missing:
        copy_slowly(target)
    return missing  # whether this rank has copied


# %% [markdown]
# Four ranks call `if_missing`, each 0.1 s after the one before. A copy of 44 MB at 50 MB/s takes 0.9 s. When `if_missing`
# returns, the rank assumes that the file is complete.
#
# > **Predict.** Rank 1 starts 0.1 s after rank 0. How large is the file when `if_missing` returns in rank 1?

# %%
guess = None  # your guess: MB that rank 1 finds

# %% [markdown]
# The folded cell defines `four_ranks`, which runs a function in four processes, and returns the size of the file that each
# rank finds. The cell calls it with `if_missing`, and draws the sizes.

# %% jupyter={"source_hidden": true}
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

fork = multiprocessing.get_context("fork")
started = fork.Barrier(4)


def as_rank(work, rank):
    started.wait()  # for all four processes
    time.sleep(0.1 * rank)  # ranks never start at quite the same moment
    return work(rank), target.stat().st_size / 1e6


def four_ranks(work):
    """Return the MB that each of four ranks finds, and print how many of them have copied."""
    began = time.perf_counter()
    with ProcessPoolExecutor(4, mp_context=fork) as pool:
        found = list(pool.map(as_rank, [work] * 4, range(4)))
    target.unlink()
    copies, took_s = sum(own for own, _ in found), time.perf_counter() - began
    print(f"{work.__name__}: {copies} of 4 ranks copied; the last rank was ready after {took_s:.1f} s")
    return {f"rank {rank}{' copies' * own}": round(mb) for rank, (own, mb) in enumerate(found)}


sizes = four_ranks(if_missing)
title = f"Without a rename, one rank finds only {min(sizes.values())} of the file's {round(size / 1e6)} MB"
title = title if min(sizes.values()) < round(size / 1e6) else "In this run every rank was late enough to find the whole file"
note = f"ranks start 0.1 s apart, a copy takes {size / 50e6:.1f} s"
axes = {"x": "MB that a rank finds", "guess_of": "rank 1", "note": note}
show.figure(figures.bars(sizes, title, guess=guess, **axes))

# %% [markdown]
# Only rank 0 copies. But the name of the file exists as soon as rank 0 has created it, while most of the bytes are still
# missing. In 0.1 s only 5 MB arrive, so rank 1 usually finds one piece of 4 MiB.
#
# A rank that opens half an Arrow file stops with an error. But half a tar file can look like a complete one. So copy to a
# temporary name, and *rename* the file when it is complete:


# %% tags=["slide"]
def renamed(rank):
    part = here / f"train.arrow.{rank}"  # a temporary name
    missing = not target.exists()
    if missing:
        copy_slowly(part)
        os.replace(part, target)  # the complete file appears in one step
    return missing


# %% [markdown]
# How many of the four ranks copy now?

# %%
four_ranks(renamed)

# %% [markdown]
# Now every rank finds the complete file. But all four ranks copy, because the file appears only when the first copy is
# complete. A rank that looks for it earlier starts a copy of its own. Four copies at the same time need four times the
# memory. On real storage they also share the bandwidth, so each of them may take four times as long.
#
# A *lock* lets only one rank copy at a time. The next cell adds a lock to `renamed`:

# %%
def once_per_node(rank):
    part = here / "train.arrow.part"
    missing = not target.exists()
    if missing:
        with open(here / "train.arrow.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # sleeps until no other rank has the lock
            # change me: look again, and copy only if the file is still missing
            copy_slowly(part)
            os.replace(part, target)
    return missing


four_ranks(once_per_node)

# %% [markdown]
# All four ranks still copy, and now they copy one after the other. The lock alone does not help, because each rank looks
# for the file before it waits for the lock, and does not look again when it gets the lock.
#
# **Your turn.** Change `once_per_node` so that only one rank copies, and run the cell again.
#
# <details>
# <summary>The lines</summary>
#
# ```python
#             missing = not target.exists()
#             if missing:
#                 copy_slowly(part)
#                 os.replace(part, target)
# ```
#
# The other ranks wait for the lock, look again, and find the file. Only 1 of 4 ranks copies, and on a calm machine all are
# ready after about 1 s instead of 4 s.
#
# </details>
#
# ![Two nodes with four ranks each. On each node one rank copies train.arrow from the parallel file system to /dev/shm; the others wait, then all read the copy.](pictures/stage_once_a_node.svg)
#
# The picture shows the result on two nodes. `stage` does the same, and it also compares each block with the digest before
# it renames the copy.
#
# <details>
# <summary>Optional: copy once per job</summary>
#
# If 200 nodes stage the file, the storage still delivers the file 200 times. With `stage --broadcast`, only one node reads
# it from the storage. Then Slurm's `sbcast` sends each block from this node to at most [eight
# others](https://slurm.schedmd.com/sbcast.html), and each of them sends it to at most eight more. With few nodes this can be
# slower than staging on each node, so measure it.
#
# </details>
#
# You can now solve task A of [exercise 07](../exercises/07_stage_a_dataset.ipynb).

# %% [markdown] id="epochs" tags=["core"]
# ## 4 · Count the epochs
#
# Staging takes time before the training starts, and it saves time in each epoch. It has *paid off* when it has saved as
# much time as the copy took. In the next cell, `epoch` reads all images in random order, and `copying` stages the file.

# %%
import numpy as np

order = np.random.default_rng(0).permutation(len(source.manifest))


def epoch(path):
    reader = formats.open(path)
    for index in order:
        bytes(reader.read(index))


def copying(path, to):
    with staging.staged(path, to, config=config):
        pass


# %% [markdown]
# We compare two trainings. The first one reads every epoch from the packed file on the storage. The second one copies the
# file before its first epoch, and then reads every epoch from the copy. We count the bytes that the storage delivers.
#
# > **Predict.** After how many epochs has the storage delivered the same number of bytes to both trainings?

# %%
guess = None  # your guess: epochs
wait_s = 0.0  # leave it for now: seconds that each random read waits for an answer

# %% tags=["slide"]
with open_slow(packed.parent, SlowConfig(latency_s=0)) as slow:
    mounted = slow.how == "fuse"
    file = slow / packed.name if mounted else packed
    delivered = {}
    for name, work in {"an epoch": epoch, "the copy": partial(copying, to=here)}.items():
        with measure.requests(slow) as asked:
            work(file)
        delivered[name] = (asked["bytes"] if mounted else size) / 1e6
print({name: f"{mb:.1f} MB" for name, mb in delivered.items()}, "your guess:", guess)

# %% [markdown]
# The copy reads as many bytes as one epoch. So after one epoch, the storage has delivered the same number of bytes to both
# trainings. From the second epoch on, only the first training reads from it. So we expect that staging pays off after about
# one epoch, if the time depends only on these bytes.
#
# The folded cell measures how long an epoch takes from slow storage and from the copy, and how long the copying takes. If
# we divide the time of the copying by the time that staging saves per epoch, we get the number of epochs after which
# staging has paid off. The figure shows the total time of both trainings.

# %% tags=["slide"] jupyter={"source_hidden": true}
with (
    on_slow_storage(packed, source.root, storage) as place,
    staging.staged(packed, here, config=config) as copy,
):
    elsewhere = Path(tempfile.mkdtemp(dir=here))
    parts = {"packed file": place.task(epoch, place.packed, reads=size), "staged copy": partial(epoch, copy.path)}
    parts |= {"copying": place.task(copying, place.packed, elsewhere, reads=size)}
    found = measure.compare(parts, rounds=3)
seconds = {name: found.seconds(name) for name in parts}
seconds["packed file"] += wait_s * len(order)
print({name: f"{value:.2f} s" for name, value in seconds.items()})
saved = seconds["packed file"] - seconds["staged copy"]
paid = float(f"{seconds['copying'] / saved:.2g}") if saved > 0 else float("inf")
if saved > 0 and not wait_s:  # only what was measured
    worksheet.note("07", break_even_epochs=paid)
shown = range(min(20, max(4, int(2 * min(paid, 20)))) + 1)
lines = {
    "packed file on slow storage": {n: n * seconds["packed file"] for n in shown},
    "staged first": {n: seconds["copying"] + n * seconds["staged copy"] for n in shown},
}
title = f"Measured here, staging has paid off after {paid:g} epoch{'s' * (paid != 1)}" if saved > 0 else "Here staging never pays off: the copy is not faster"
axes = {"x": "epochs read", "y": "seconds since the start", "marks": {"paid off": paid} if paid < shown[-1] else None}
show.figure(figures.lines(lines, title, **axes, guess=guess, note=f"computed from medians of 3 runs{place.note}"))

# %% [markdown]
# Staging has paid off where the lines cross. This is after about one epoch, as we expected from the bytes.
#
# On a cluster, each random read also waits for an answer from a server. (`slowfs` delays look-ups and opens, but it does not
# delay the reads of an open file.) Then an epoch from the storage takes longer than the copying, and on one node staging
# may pay off in less than an epoch.
#
# **Your turn:** set `wait_s = 0.002` in the cell of your guess, and run the cells from there again.
#
# <details>
# <summary>What changes</summary>
#
# The waits add 400 × 2 ms = 0.8 s to each epoch from the storage, and the copy takes as long as before. So the lines now
# cross after 0.3 to 0.4 epochs.
#
# </details>
#
# With N nodes, each node reads only 1/N of the data set per epoch. So staging saves only 1/N as much time per epoch as on
# one node. But each node still copies the whole data set. So staging may need N times as many epochs to pay off.
#
# There is one more limit. The loader reads ahead while the GPU computes. So an epoch takes as long as reading or as long as
# training, whichever takes longer.
#
# Suppose that training takes half as long as reading from slow storage. Does staging then pay off after as many epochs as
# before, after twice as many, or never? The next cell computes the answer for this and for other ratios.

# %%
mine = 0.7  # change me: time of training, divided by the time of reading
nodes = 1  # change me: nodes that copy; leave 1 to check your guess
for share in sorted({0.0, 0.5, 0.9, 1.0, mine}):
    training = share * seconds["packed file"]  # an epoch cannot be shorter than this
    saved = max(training, seconds["packed file"]) - max(training, seconds["staged copy"])
    when = f"after {nodes * seconds['copying'] / saved:.2f} epochs" if saved > 0 else "never"
    said = " (mine)" * (share == mine)
    print(f"training {share:.0%} of reading: staging pays off {when}{said}")

# %% [markdown]
# In the line for 50%, staging pays off after about twice as many epochs as in the line for 0%. An epoch from the copy now
# takes as long as training, so staging saves only about half as much time per epoch. If training takes as long as reading,
# or longer, staging saves nothing. So measure an epoch of your training, and not only the time of reading.
#
# If the data set fits into the *page cache*, a node reads each image from the storage only once, even without a copy. From
# the second epoch on, it reads from memory. So on one node, staging pays off in the first epoch or never. (`slowfs` empties
# the cache at each open, so you do not see this here.)

# %% [markdown] id="clean" tags=["core"]
# ## 5 · Clean up, also when killed
#
# If a job leaves a copy in `/dev/shm`, later jobs have less memory. So `staged` removes the copy at the end of its block.
# The function `stage` has no block. Its copy is removed when the last process that uses the copy ends.
#
# But what happens if a signal ends the process? At the time limit, Slurm sends SIGTERM, which a program can handle. Then it
# sends SIGKILL, which no program can handle.
#
# The folded cell defines `end`. This function starts a process that calls `stage`, and sends it a signal, either while the
# process copies the file or while it uses the copy. Then `end` looks at what is left, and stages the file again, as the
# next job would.


# %% jupyter={"source_hidden": true}
import signal


def stage_and_use(file, ready):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # forget what Jupyter does at SIGTERM
    staging.stage(file, victims, config=config)
    ready.set()
    time.sleep(60)


def left_behind():
    return [one for one in staging.listing([victims]) if one.bytes and victims in one.path.parents]


def end(file, moment, number):
    """Return what one process leaves when this signal ends it, and what the next process does with it."""
    ready = fork.Event()
    process = fork.Process(target=stage_and_use, args=(file, ready))
    process.start()
    while not ready.is_set() and not (moment == "copying" and any(one.bytes > 1 << 20 for one in left_behind())):
        time.sleep(0.002)
    os.kill(process.pid, number)
    process.join()
    left = sum(one.bytes for one in left_behind())
    with staging.staged(packed, victims, config=config) as copy:
        found = "used" if copy.reused else "removed"
    if not left:
        return "nothing", "left nothing"
    return "half" if left < size else "all", f"left {bytes_text(left)}, which the next one {found}"


# %% [markdown]
# > **Predict.** The next cell names four cases. What is left in each case: nothing, half a copy, or the whole copy?

# %%
guesses = {"SIGTERM while copying": None, "SIGKILL while copying": None}  # nothing, half, or all
guesses |= dict.fromkeys(("SIGTERM while using", "SIGKILL while using"))

# %% tags=["slide"]
victims = Path(tempfile.mkdtemp(dir=here))
with on_slow_storage(packed, source.root, storage) as place:
    for case, guessed in guesses.items():
        name, _, moment = case.split()
        file = place.packed if moment == "copying" else packed
        _, outcome = end(file, moment, signal.Signals[name])
        print(f"{case}: {outcome}" + f"; your guess: {guessed}" * bool(guessed))
print(f"in the end: {sum(one.bytes for one in left_behind())} bytes")

# %% [markdown]
# After SIGTERM nothing is left, because `stage` has set a handler that removes the copy. (If your training has its own
# handler, the copy is removed when the program exits.)
#
# After SIGKILL, half a copy or the whole copy is left, because no handler can run. But the kernel frees the lock of the
# killed process. So the next `stage` on that node sees that no process uses the leftovers. It uses a complete copy of the
# file that it stages, and it removes all other leftovers in the same place.
#
# The next cell counts your staged copies on this node. It prints 0, unless another program of yours has staged a file.

# %%
print("staged copies of yours on this node:", len(staging.listing([here, victims])))

# %% [markdown]
# You can now solve task B of [exercise 07](../exercises/07_stage_a_dataset.ipynb), which is optional.

# %% [markdown] id="tiers"
# ## Storage of a centre, tier by tier
#
# <details>
# <summary>Optional: from the archive to scratch, before the job</summary>
#
# - The *archive* is large, and it keeps data for years. Compute nodes often cannot access it.
# - *Scratch* is the fast parallel file system that jobs read. Files that nobody has used for some time are deleted.
#
# So copy the data set to scratch before the job starts, on a node that can access both. If the copy is interrupted,
# `smallfiles stage --to` continues where it stopped.
#
# </details>

# %% [markdown] id="exercise"
# ## Exercise
#
# In [Exercise 07](../exercises/07_stage_a_dataset.ipynb) you write a function that stages a file, and that still works if
# an earlier call was killed.

# %% [markdown] id="cluster"
# ## On the cluster
#
# The first command runs on a transfer node, and copies the file from the archive to the parallel file system. The second
# command runs in a job, and copies the file to the node. It prints the path of the copy, which belongs to the job and stays
# until the job calls `unstage`.

# %%
show.command(staging.StageConfig(), "archive/train.arrow", "auto", "scratch/data")
show.command(staging.StageConfig(), "scratch/data/train.arrow")

# %% [markdown]
# So the job script calls `unstage` in an *EXIT trap*, a command that the shell runs when it exits. Set the trap in the job
# script itself, and not inside `$(…)`. The shell inside `$(…)` exits before the training begins, so the trap would remove
# the copy too early.
#
# ```bash
# time staged=$(smallfiles stage scratch/data/train.arrow) || exit 1          # before other reads fill the cache
# trap 'smallfiles unstage "$staged"' EXIT
# smallfiles bench read --order random --cache cold scratch/data/train.arrow  # samples/s from storage
# smallfiles bench read --order random --cache warm "$staged"                 # samples/s from the copy
# ```
#
# `--cache cold` empties only the page cache of this node. A server may still have the file in its memory, and then the
# storage looks too fast.
#
# The next cell computes from these measurements when staging pays off. It assumes that the training waits only for reads,
# and that without a copy every read goes to the storage.

# %%
samples, workers = 1_281_167, 8  # change me: your data set, and the workers of all ranks
copy_s = 60  # change me: seconds that `time` shows for the slowest node
from_storage, from_copy = 400, 4_000  # change me: samples/s of one worker
saved_s = samples / workers * (1 / from_storage - 1 / from_copy)  # per epoch
print(f"staging pays off after {copy_s / saved_s:.2f} epochs")

# %% [markdown]
# With the example numbers, staging saves 360 s per epoch. So a copy of 60 s pays off in the first epoch.
#
# <details>
# <summary>With an environment, on several nodes, and as jobs</summary>
#
# A script can have only one EXIT trap. If you also call `use_environment` ([06](06_read_a_squashfs_image.ipynb)), it sets
# the trap to `unuse`, which removes the environment. So set the trap again after this call, with both commands in it:
# `trap 'smallfiles unstage "$staged"; unuse' EXIT`.
#
# On several nodes, use `smallfiles stage --broadcast`. Then every node has a copy, so the trap must run `unstage` on every
# node: `trap 'each_node smallfiles unstage' EXIT`. `each_node` of `slurm/lib.sh` runs a command once on each node, and
# `unstage` without a path releases all copies of this job.
#
# The course has jobs for these steps. `07_fetch` copies from the archive to scratch. After it, the job `07_stage_and_read`
# starts by itself, and compares reading the copy on a node with reading from scratch. `07_broadcast` copies from scratch to
# all nodes, and reads an epoch from the copies. Each process records in the folder `seen` which samples it has read, and the
# job checks that no sample is missing.
#
# ```bash
# slurm/submit SITE 07_fetch -- archive/train.arrow scratch/data
# slurm/submit SITE 07_broadcast -- scratch/data/train.arrow seen
# ```
#
# </details>

# %% [markdown] id="key-points"
# ## Key points
#
# - On most clusters a file in `/dev/shm` counts as memory of the job. Fill at most what remains of the
#   job's limit after training and its workers have got what they need.
# - Pack first. Then the copy needs about a dozen requests altogether, instead of three per image, and each block can be
#   verified.
# - Take a lock, look for the copy, copy the file to a temporary name, verify it, and rename it. Then one rank copies, and
#   all ranks use the copy.
# - The copy reads as many bytes as one epoch. The time of the copy, divided by the time saved per epoch, is the number of
#   epochs after which staging pays off.
# - Remove the copy at exit and on SIGTERM. After SIGKILL, the copy stays until your next
#   `stage` to the same place on that node, or until your site removes it.

# %% [markdown] id="quiz"
# ## Check yourself
#
# **1.** Your job has 64 GB of memory, `df` shows 250 GB free in `/dev/shm`, and you copy 60 GB there with `cp`. (a) It
# fits. (b) The job is killed while it copies or trains. (c) The rest is swapped to disk.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**. On most clusters the file counts as memory of your job, and the remaining 4 GB are rarely enough for training.
# `smallfiles stage` refuses a copy that leaves too little. (a) is wrong because `df` shows the limit of the node. (c) is
# wrong because most compute nodes have no swap.
#
# </details>
#
# **2.** All ranks run `if not copy.exists(): shutil.copyfile(source, copy)`. What can go wrong? (a) Nothing. (b) A
# rank reads half a copy. (c) Several ranks copy.
#
# <details>
# <summary>Answer</summary>
#
# **(b) and (c)**. Ranks that look at the same moment find no copy, and all of them write to it. A rank that looks a little
# later finds the name before all bytes are there. (a) would be true only if the first rank had finished before the second
# one looks.
#
# </details>
#
# **3.** Staging takes 100 s, an epoch 60 s from the storage and 55 s from the copy. You train 10 epochs. Does your job end
# sooner with staging? (a) Yes. (b) No. (c) Only with the page cache.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**. Staging pays off after 100 / (60 - 55) = 20 epochs. (a) is wrong although each epoch is faster, because ten
# epochs save only 50 s. (c) is wrong, because the page cache makes epochs without a copy faster, too.
#
# </details>

# %% [markdown] id="next"
# ## Next
#
# In [08 · Keep the GPU fed](08_keep_the_gpu_fed.ipynb), CPUs decode the staged images and send batches to the training.
