# %% [markdown] id="top"
# # 07 · Stage data to /dev/shm
#
# **Minutes** 35 · **Machine** any Linux computer with two CPUs · **Needs** nothing · **Data** 400 synthetic images
#
# A packed file on a parallel file system is read again in every epoch, by all ranks (processes) of a training. But a
# node has storage of its own: a disk, or memory that looks like a folder. To *stage* a file is to copy it there first.
#
# A laptop's disk is too fast to show the gain, so we read through `slowfs`, a folder whose slowness we choose.

# %% [markdown] id="questions"
# ## Questions
#
# - Where is the storage of this node, and how much may I use?
# - What happens when eight ranks stage the same file?
# - After how many epochs has the copy paid off?
# - What cleans up after a killed job?

# %% [markdown] id="objectives"
# ## After this you can
#
# - find node-local storage, and determine how much of it your job may fill,
# - stage a file once per node, verified, from Python and from a job script,
# - compute after how many epochs staging pays off.

# %% [markdown] id="setup"
# ## Set up

# %% id="start"
import sys

sys.path.append("..")
from helpers import figures, show, start, worksheet
from helpers.experiments.nb07 import on_slow_storage

setup = start("07")

# %% [markdown]
# This cell sets how slow the storage is.

# %%
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
from smallfiles.slowfs import SlowConfig
from smallfiles.staging import placement

storage = SlowConfig(latency_s=0.002, servers=8, bandwidth_bytes_s=100e6)  # 2 ms for a look-up or an open
config = staging.StageConfig(leave_bytes=256 << 20)  # room for workers; left out, it is chosen for you

# %% [markdown]
# The folded cell packs the images into `packed`, and makes the folder `here` for copies.

# %% jupyter={"source_hidden": true}
import atexit

source = setup.source()
packed = setup.scratch / "train.arrow"
if not packed.exists():
    pack(source, packed, PackConfig(verify="none"))
size = packed.stat().st_size
candidates, _ = placement.candidates(placement.AUTO, packed)  # where copies could go
roomy = [place.path for place in candidates if place.free_bytes > 8 * size + (512 << 20)]
here = Path(tempfile.mkdtemp(prefix="smallfiles-notebook-", dir=roomy[0] if roomy else setup.scratch))
_ = atexit.register(shutil.rmtree, here, ignore_errors=True)

# %% [markdown] id="recall"
# > **Recall** (05). The samples were shuffled while packing. What does a buffer at reading still add?
#
# <details>
# <summary>Answer</summary>
#
# It separates old neighbours. Without it the same samples leave a shard together in every epoch.
#
# </details>

# %% [markdown] id="place" tags=["core"]
# ## 1 · Find the place
#
# Sites give node-local storage many names, such as `SLURM_TMPDIR`. A variable may be unset, or point to a folder that
# all nodes share. `/dev/shm` exists on nearly every Linux machine: a folder whose files are in memory.
#
# > **Predict.** How much of `/dev/shm` may you fill: all that `df` shows as free, or less?
#
# The folded cell answers.

# %% jupyter={"source_hidden": true}
from smallfiles.machine import nodelocal

for variable, path in nodelocal.named_directories():
    problem = nodelocal.problem_of(path)
    place = nodelocal.node_local(path) if not problem else None
    free, mine = (bytes_text(n) for n in (place.filesystem.free_bytes, place.free_bytes)) if place else "--"
    print(f"{variable or path}: {problem or f'{place.filesystem.kind}, {free} free, this job may fill {mine}'}")
print("not set:", *(name for name in nodelocal.VARIABLES if name not in os.environ))

# %% [markdown]
# You may fill the free space, or the rest of your job's memory limit if that is smaller: on most clusters a file in
# `/dev/shm` counts as memory of the job. The folded cell writes 256 MiB there and asks the kernel.

# %% jupyter={"source_hidden": true}
def used():
    """Bytes of memory that the kernel counts: those of files, and those of this job where it has a limit."""
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
print(f"a file of {count} MiB: files take {more[0]} MiB more memory,")
print(f"and this job {more[1]} MiB more (others use memory too)" if more[1:] else "and this job has no limit here")

# %% [markdown]
# So the copy competes with the loader's workers for memory. Stage the file; `staged` removes the copy at the end of the
# block:

# %%
with staging.staged(packed, here, config=config) as copy:
    print(copy.path.relative_to(here))  # the long name is made from the content
    print(*copy.notes, sep="\n")

# %% [markdown] id="rates" tags=["optional"]
# ## 2 · Measure the copy
#
# *Optional, 8 minutes.* On slow storage each look-up and each open takes 2 ms, and bytes come at 100 MB/s. We copy the
# 400 images in three ways: `cp -r` the small files, `dd` the packed file, and `stage` also compares each block with its
# digest.

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
# > **Predict.** How many times as fast as `cp -r` is `stage`? And is it slower than `dd`, since it checks?

# %%
guess = 20  # change me: stage is so many times as fast as cp -r

# %% [markdown]
# The folded cell measures.

# %% jupyter={"source_hidden": true}
with on_slow_storage(packed, source.root, storage) as place:
    ways = {"cp -r, small files": place.task(by_cp, place.files, operations=3 * len(source.manifest), reads=size)}
    ways |= {"dd, one file": place.task(by_dd, place.packed, reads=size)}
    ways |= {"stage, one file": place.task(by_stage, place.packed, reads=size)}
    found = measure.compare(ways, rounds=3)
plain = found.spread("cp -r, small files").median
speeds = {name: [rate / plain for rate in found.rates_per_s(name)] for name in found.runs}
gain = found.times("stage, one file", "cp -r, small files").median
title = f"From slow storage, stage is {gain:.1f} times as fast as cp -r of the small files"
axes = {"x": "times the speed of cp -r", "groups": ("dd", "stage"), "note": f"2 ms per operation, 100 MB/s{place.note}"}
figures.bars(speeds, title, **axes, base="cp -r, small files", guess=guess)

# %% [markdown]
# `cp -r` looks each small file up twice, since this storage keeps no names, and opens it: 400 × 3 × 2 ms = 2.4 s. The
# bytes take only 0.45 s, checked or not, so (2.4 + 0.45) / 0.45 ≈ 6.
#
# Stored files and copies fail rarely, but silently. The folded cell flips one bit of the source.
#
# > **Predict.** Which of the two will notice it, `cp` or `stage`?

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

# %% [markdown] id="once" tags=["core"]
# ## 3 · Copy once per node
#
# A node with eight GPUs runs eight ranks. What if each copies the file if it is missing?


# %%
target = here / "train.arrow"


def copy_slowly(path):
    with open(packed, "rb") as old, open(path, "wb") as new:
        while piece := old.read(4 << 20):
            time.sleep(len(piece) / 50e6)  # 50 MB/s for each rank: a piece of 4 MiB arrives
            new.write(piece)


def if_missing(rank):
    missing = not target.exists()
    if missing:
        copy_slowly(target)
    return missing  # whether this rank has copied


# %% [markdown]
# Four ranks start 0.1 s apart. A copy takes 44 MB / 50 MB/s = 0.9 s.
#
# > **Predict.** How many MB does rank 1 find when its function returns?

# %%
guess = 44  # change me: MB that rank 1 finds

# %% [markdown]
# In the folded cell `four_ranks` starts the processes.

# %% jupyter={"source_hidden": true}
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

fork = multiprocessing.get_context("fork")


def as_rank(work, rank):
    time.sleep(0.1 * rank)  # ranks never start at quite the same moment
    return work(rank), target.stat().st_size / 1e6


def four_ranks(work):
    """The MB that each of four ranks finds; prints how many have copied."""
    began = time.perf_counter()
    with ProcessPoolExecutor(4, mp_context=fork) as pool:
        found = list(pool.map(as_rank, [work] * 4, range(4)))
    target.unlink()
    copies, took_s = sum(own for own, _ in found), time.perf_counter() - began
    print(f"{work.__name__}: {copies} of 4 ranks copied, and the last was ready after {took_s:.1f} s")
    return {f"rank {rank}{' copies' * own}": round(mb) for rank, (own, mb) in enumerate(found)}


first, *others = four_ranks(if_missing).items()
each = dict([*others, first])  # the guess is at rank 1, so its bar comes first
title = f"Without a rename, a rank finds only {min(each.values())} of {round(size / 1e6)} MB"
title = title if min(each.values()) < round(size / 1e6) else "Here every rank was late enough to find the whole file"
note = f"ranks start 0.1 s apart, a copy takes {size / 50e6:.1f} s"
axes = {"x": "MB that a rank finds", "guess_of": "rank 1", "note": note}
show.figure(figures.bars(each, title, guess=guess, **axes))

# %% [markdown]
# The others see the name while the bytes are still arriving. Half an Arrow file stops a rank with an error, but half a
# tar can pass for a whole one. A *rename* prevents this:


# %%
def renamed(rank):
    part = here / f"train.arrow.{rank}"  # a temporary name
    missing = not target.exists()
    if missing:
        copy_slowly(part)
        os.replace(part, target)  # now the file is there, in full
    return missing


# %% [markdown]
# > **Predict.** How many of the four ranks copy now?

# %%
four_ranks(renamed)

# %% [markdown]
# Nothing is torn, but until the file appears, each rank that looks starts a copy. Here each rank has its own 50 MB/s.
# Four copies that share them take four times as long, and four times the memory. So let them take turns, with a lock:

# %%
import fcntl


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
# **Your turn.** The lock alone does not help: the ranks copy one after the other. Change `once_per_node`, so that one
# rank copies.
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
# The others wait for the lock, look again, and find the file: after 1 s instead of 4 s.
#
# </details>
#
# ![Two nodes with four ranks each. On each node one rank copies train.arrow from the parallel file system to /dev/shm; the others wait, then all read the copy.](pictures/stage_once_a_node.svg)
#
# `stage` locks, looks, copies, verifies and renames.
#
# <details>
# <summary>Optional: copy once per job</summary>
#
# 200 nodes still read the set 200 times. With `stage --broadcast` one node reads it, and Slurm's `sbcast` passes each
# block on in a tree, from every node to at most [eight others](https://slurm.schedmd.com/sbcast.html). With few nodes
# this can be slower: measure it.
#
# </details>
#
# You can now solve task A of [exercise 07](../exercises/07_stage_a_dataset.ipynb).

# %% [markdown] id="epochs" tags=["core"]
# ## 4 · Count the epochs
#
# Staging has paid off when the epochs have saved the time of the copy.

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
# > **Predict.** After how many epochs has staging paid off: 0.1, 1, 3 or 10?

# %%
guess = 3  # change me: epochs
wait_s = 0.0  # leave it for now: seconds that each random read of one worker waits for an answer

# %% [markdown]
# The folded cell measures an epoch from slow storage, one from the copy, and the copying.

# %% jupyter={"source_hidden": true}
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
title = f"Staging has paid off after {paid:g} epochs" if saved > 0 else "Here the copy never pays: it is not faster"
axes = {"x": "epochs read", "y": "seconds since the start", "marks": {"paid off": paid} if paid < shown[-1] else None}
show.figure(figures.lines(lines, title, **axes, guess=guess, note=f"computed from medians of 3 runs{place.note}"))

# %% [markdown]
# Here a read costs little more than its bytes. A copy reads as many as an epoch, so the lines meet after about one.
#
# On a cluster each random read also waits for an answer. So staging on one node may pay in less than an epoch. **Your
# turn:** set `wait_s = 0.002`, and run both cells again.
#
# Each of N nodes reads 1/N of the set per epoch, and saves 1/N of the time. But it copies the whole set, so it may need
# N times as many epochs.
#
# While the GPU computes, the loader reads ahead. So an epoch takes as long as reading or training, whichever is slower.
#
# > **Predict.** Training takes half as long as reading from slow storage. After how many epochs has staging paid off: as
# > before, twice as many, or never?

# %%
my_guess = "as before"  # change me: or "twice as many", "never"

# %%
mine, nodes = 0.7, 1  # change me: training as a share of reading; nodes that copy (1 to check your guess)
for share in sorted({0.0, 0.5, 0.9, 1.0, mine}):
    training = share * seconds["packed file"]  # an epoch cannot be shorter than this
    saved = max(training, seconds["packed file"]) - max(training, seconds["staged copy"])
    when = f"after {nodes * seconds['copying'] / saved:.2f} epochs" if saved > 0 else "never"
    said = " (mine)" * (share == mine) + f" (your guess: {my_guess})" * (share == 0.5)
    print(f"training {share:.0%} of reading: staging pays off {when}{said}")

# %% [markdown]
# If training takes longer than reading, staging saves nothing. So measure an epoch of training, not a raw read. If the
# set fits into the *page cache*, later epochs may come from there: then, on one node, a result above 1 means never (on
# N nodes, above N).

# %% [markdown] id="clean" tags=["core"]
# ## 5 · Clean up, also when killed
#
# Memory that a job leaves in `/dev/shm` is missing for later jobs. So a copy made in Python is removed with the last
# process that uses it. Two signals may end a process before it cleans up: SIGTERM, which Slurm sends at the time limit,
# then SIGKILL, which no program can catch.
#
# In the folded cell `end` sends a signal to a process that copies, or uses a copy, and looks at what is left.


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
    """What one process leaves when this signal meets it, and what the next one finds."""
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
# > **Predict.** What is left in each case: nothing, half a copy or all of it? What does the next `stage` do with it?

# %%
guesses = {"SIGTERM while copying": "half", "SIGKILL while copying": "half"}  # change me: nothing, half or all
guesses |= {"SIGTERM while using": "all", "SIGKILL while using": "all"}

# %%
victims = Path(tempfile.mkdtemp(dir=here))
with on_slow_storage(packed, source.root, storage) as place:
    for case, guessed in guesses.items():
        name, _, moment = case.split()
        left, outcome = end(place.packed if moment == "copying" else packed, moment, signal.Signals[name])
        print(f"{case}: {outcome}; your guess, {guessed}, is {'right' if guessed == left else 'wrong'}")
print(f"in the end: {sum(one.bytes for one in left_behind())} bytes")

# %% [markdown]
# On SIGTERM a handler removes the copy; if your training has its own, the exit that follows does. SIGKILL leaves it, but
# frees the lock. So your next `stage` on that node uses a complete copy of the same file, and removes other leftovers in
# the same place.

# %%
print("staged copies of yours on this node:", len(staging.listing([here, victims])))

# %% [markdown]
# You can now solve task B of [exercise 07](../exercises/07_stage_a_dataset.ipynb).

# %% [markdown] id="tiers"
# ## Storage of a centre, tier by tier
#
# <details>
# <summary>Optional: from the archive to scratch, before the job</summary>
#
# - The *archive* is large and keeps data for years. Compute nodes often cannot access it.
# - *Scratch* is the fast parallel file system that jobs read. Files unused for some time are purged.
#
# So copy earlier, on a node that sees both. `smallfiles stage --to` continues where it stopped.
#
# </details>

# %% [markdown] id="exercise"
# ## Exercise
#
# In [Exercise 07](../exercises/07_stage_a_dataset.ipynb) you write a staging function that survives being killed.

# %% [markdown] id="cluster"
# ## On the cluster
#
# The first command copies from the archive to scratch, on a transfer node. The second, in a job, prints the path of a
# copy that belongs to the job: it stays until `unstage`.

# %%
show.command(staging.StageConfig(), "archive/train.arrow", "auto", "scratch/data")
show.command(staging.StageConfig(), "scratch/data/train.arrow")

# %% [markdown]
# The job removes the copy in an EXIT trap. Set it in the script: inside `$(…)` it would fire when that subshell ends.
#
# ```bash
# time staged=$(smallfiles stage scratch/data/train.arrow) || exit 1          # before other reads fill the cache
# trap 'smallfiles unstage "$staged"' EXIT
# smallfiles bench read --order random --cache cold scratch/data/train.arrow  # samples/s from storage
# smallfiles bench read --order random --cache warm "$staged"                 # samples/s from the copy
# ```
#
# Cold means this node: a server may still have the file in memory, and look too fast. This cell computes when staging
# pays off if training only reads, and always from storage:

# %%
samples, workers = 1_281_167, 8  # change me: your set, and the workers of all ranks together
copy_s, stored, staged = 60, 400, 4_000  # change me: seconds that `time` shows on the slowest node; the two rates
saved = samples / workers * (1 / stored - 1 / staged)  # per epoch, if storage gives each worker the rate of one
print(f"staging pays off after {copy_s / saved:.2f} epochs")

# %% [markdown]
# <details>
# <summary>With an environment, on several nodes, and as jobs</summary>
#
# A script has only one EXIT trap. `use_environment` ([06](06_read_a_squashfs_image.ipynb)) sets it to `unuse`, which
# removes the environment; after it, write `trap 'smallfiles unstage "$staged"; unuse' EXIT`.
#
# On several nodes use `smallfiles stage --broadcast`. Every node then has a copy, so the trap is `each_node smallfiles
# unstage`. `each_node` of `slurm/lib.sh` runs a command once on each node, and `unstage` without a path releases
# all copies of this job.
#
# The course has both steps as jobs. `seen` is a folder for records.
#
# ```bash
# slurm/submit SITE 07_fetch -- archive/train.arrow scratch/data
# slurm/submit SITE 07_broadcast -- train.arrow seen
# ```
#
# </details>

# %% [markdown] id="key-points"
# ## Key points
#
# - On most clusters a file in `/dev/shm` counts as memory of the job: fill at most the rest of its limit.
# - Pack first: a copy is then one long read, and each block is verified.
# - Lock, look, copy to a temporary name, verify, rename: one rank copies, all use the copy.
# - Time of the copy / time saved per epoch = epochs until staging pays off.
# - Clean up at exit and on SIGTERM; what SIGKILL leaves stays until your next `stage` on that node.

# %% [markdown] id="quiz"
# ## Check yourself
#
# **1.** Your job has 64 GB of memory, `df` shows 250 GB free in `/dev/shm`, and you copy 60 GB there with `cp`. (a) It
# fits. (b) The job is killed while it copies or trains. (c) The rest is swapped to disk.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**: on most clusters the file counts as memory of your job, and 4 GB are rarely enough for training. `smallfiles
# stage` refuses a copy that leaves too little. (a) `df` shows the node's limit. (c) Most compute nodes have no swap.
#
# </details>
#
# **2.** All ranks run `if not copy.exists(): shutil.copyfile(source, copy)`. What can go wrong? (a) Nothing. (b) A
# rank reads half a copy. (c) Several ranks copy.
#
# <details>
# <summary>Answer</summary>
#
# **(b) and (c)**: ranks that look at the same moment see no copy and write to it. A rank that looks later sees the
# name before the bytes are there. (a) holds only if the first has finished before the second looks.
#
# </details>
#
# **3.** Staging takes 100 s, an epoch 60 s from the storage and 55 s from the copy. You train 10 epochs. Does your job
# end sooner? (a) Yes. (b) No. (c) Yes, from the second epoch on.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**: the copy pays after 100 / (60 - 55) = 20 epochs (so not c), and faster epochs alone decide nothing (a).
#
# </details>

# %% [markdown] id="next"
# ## Next
#
# Decode, augment and send batches: [08 · Keep the GPU fed](08_keep_the_gpu_fed.ipynb).
