# %% [markdown] id="top"
# # 07 · Stage data to /dev/shm
#
# **Minutes** 35 · **Machine** any Linux computer, two CPUs do · **Needs** nothing · **Data** 400 synthetic images
#
# A packed file on a parallel file system is read again in every epoch, by every rank, while others read theirs. A node
# has storage of its own: a disk, or memory that looks like a folder. To *stage* is to copy the file there first.
#
# It is a cheap gain, and a place where jobs easily break each other. A laptop's disk is too fast to feel the gain, so
# this notebook reads through `slowfs`, a folder whose slowness is ours to choose. It says so where it does.

# %% [markdown] id="questions"
# ## Questions
#
# - Where is storage of this node, and how much of it is mine?
# - What does a copy cost, with every byte verified?
# - What happens when eight ranks stage the same file at once?
# - After how many epochs has the copy paid?
# - Who cleans up after a job that was killed?

# %% [markdown] id="objectives"
# ## After this you can
#
# - find node-local storage, and say what the job may fill,
# - stage a file once a node, verified, from Python and from a job script,
# - compute the number of epochs from which staging pays, and say when it never does,
# - leave nothing behind, and remove what a killed job left.

# %% [markdown] id="setup"
# ## Set up

# %% id="start"
import sys

sys.path.append("..")  # finds the course's package, whatever the kernel
from helpers import show, start

setup = start("07")

# %% [markdown] id="place"
# ## 1 · Find the place
#
# Sites give node-local storage many names. A variable may be missing, or lead to a folder that all nodes share.
# `SMALLFILES_NODE_LOCAL` is ours: set it where your site has yet another name. `/dev/shm` is on nearly every Linux
# machine: a folder whose files live in memory.
#
# > **Predict.** Which of these are set here? And how much of `/dev/shm` may you fill: all that `df` calls free?

# %%
from helpers.experiments import nb07 as staged

print(staged.named_table())

# %% [markdown]
# The last number is the smaller of two: what is free in the folder, and what the memory limit of your job leaves. On most
# clusters a file in `/dev/shm` counts as memory of the job that wrote it. Let us see that: a file of 268 MB (256 MiB) is
# written there for a moment, five times.
#
# > **Predict.** Does the kernel count the file as memory? And for whom: for this job, or for the machine only?

# %%
price = staged.price_of_memory()
show.say(price.finding if price else "There is no memory to write to here, or too little.")

# %% [markdown]
# So the copy competes with the loader: its workers need memory for images and batches, and they send each other batches
# through `/dev/shm` too. When it is full, a worker dies with a *bus error*
# ([pytorch#5040](https://github.com/pytorch/pytorch/issues/5040)). `stage` therefore asks how much must stay free.
#
# Now stage something. We pack the images into one file, since staging a million small ones would cost a million opens.

# %%
from helpers.experiments.nb05.place import fresh_folder
from smallfiles.pack import PackConfig, pack

packed = pack(setup.source(), fresh_folder(setup.scratch) / "train.arrow", PackConfig(verify="none")).path
place, note = staged.place_for(packed, 8 * packed.stat().st_size, setup.scratch)
if note:
    show.say(note)

# %%
from smallfiles import staging

config = staging.StageConfig(leave_bytes=256 << 20)  # room for workers; left out, it is chosen for you
with staging.staged(packed, place, config=config) as copy:
    show.say(f"`{copy.path}`")
    for sentence in copy.notes:
        show.say(f"`stage`: {sentence}.")

# %% [markdown]
# The folder is named after your user number, and only you may enter it: `/dev/shm` is shared by all users of the node.
# The long name in the path stands for the content. The same file under two paths is one copy, and a file that was packed
# again is another.

# %% [markdown] id="rates"
# ## 2 · Measure the copy
#
# Three ways bring the same images to memory: `dd` with the packed file, our `stage`, and `cp -r` with the images as
# small files. `stage` also hashes each block, and compares it with the digest that was taken while packing. First all
# from a warm cache, then from a `slowfs` that takes 2 ms for each look-up and open.
#
# > **Predict.** Order the three by speed, with a warm cache and from slow storage. What does the hashing cost?

# %%
from smallfiles.measure import BenchConfig
from smallfiles.measure.staging import bench_staging
from smallfiles.errors import SmallfilesError

config_of_runs = BenchConfig(repeats=4, count=setup.count, caches=("warm",))
copies, from_slow = (), ()
try:
    measured = bench_staging(setup.path(), config_of_runs)
    copies, from_slow = measured.records[:3], measured.records[3:]
    print(*measured.notes, sep="\n", end="")
except SmallfilesError as error:
    show.say(f"Not measured here: *{error}*")

# %%
from helpers.figures import alt_text, throughput

if copies:
    show.figure(throughput(copies), alt=alt_text(copies))

# %%
from smallfiles.measure import ratio


def compare(records):
    for other in records[::2]:
        speed = ratio(records[1], other)
        told = f"**{speed.median:.2f}** times the speed of `{other.name}` (middle half of the runs"
        show.say(f"`stage` reaches {told}: {speed.lower:.2f} to {speed.upper:.2f}).")


compare(copies)

# %% [markdown]
# `dd` reads and writes with one thread, and checks nothing. `stage` has several readers, and each hashes a piece while it
# is still in the processor's cache. A file of some megabytes also shows what `stage` does once: looking for room, taking
# a lock, publishing. With gigabytes this no longer counts. And `cp -r` has it easy: it opens files that are in memory.
# No job finds a million of them there. The same from the slow storage:

# %%
if from_slow:
    show.figure(throughput(from_slow), alt=alt_text(from_slow))
compare(from_slow)

# %% [markdown]
# Now each small file costs a look-up and an open, and the packed file costs a few. That is what packing buys, before
# anything is staged.
#
# Why check at all? Copies fail rarely, but a job does not notice. We flip one bit in the middle of the source, as a
# failing disk would.
#
# > **Predict.** Which of the two will notice, `cp` or `stage`?

# %%
import shutil
import subprocess

from smallfiles import digests

broken = fresh_folder(setup.scratch) / "train.arrow"
for path in (packed, digests.sidecar(packed)):
    shutil.copyfile(path, broken.with_name(path.name))
with broken.open("r+b") as file:
    file.seek(broken.stat().st_size // 2)
    byte = file.read(1)[0]
    file.seek(-1, 1)
    file.write(bytes([byte ^ 1]))

# %%
done = subprocess.run(["cp", broken, broken.with_name("copied")], check=False)
show.say(f"`cp` ended with code **{done.returncode}**.")
try:
    with staging.staged(broken, place, config=config):
        show.say("`stage` noticed nothing.")
except SmallfilesError as error:
    show.say(f"`stage`: *{error}*")

# %% [markdown]
# Nothing was published: a copy appears under its name when its last block is verified, by a rename. Before that, no other
# process can mistake it for a copy.

# %% [markdown] id="once"
# ## 3 · Copy once a node
#
# A node with eight GPUs runs eight ranks, and all start with the same line: stage, then train. Here four processes call
# `stage` at the same moment. The source is seen through `slowfs`: 100 MB per second, 2 ms for each open.
#
# > **Predict.** How many of the four copy? How long do the others take?

# %%
from smallfiles import slowfs

storage = slowfs.SlowConfig(latency_s=0.002, servers=8, bandwidth_bytes_s=100e6)
together = staged.measure_together(packed, place, storage)

# %%
from helpers.figures import staging as draw

show.figure(draw.timeline(together), alt=together.alt_text)

# %%
show.say(together.traffic)

# %% [markdown]
# A *lock* does this: the kernel gives it to one process, and the others sleep until it is free. Who gets it looks first
# whether a finished copy is there. The lock comes before the question "is there room?", or eight ranks would each find
# room, and fill the memory eight times.
#
# ![Two nodes with four ranks each. On each node one rank copies train.arrow from the parallel file system to /dev/shm; the others wait, then all read the copy.](pictures/stage_once_a_node.svg)
#
# *One rank per node copies; the others wait for the lock and find the copy finished.*
#
# Locks have a second virtue: the kernel takes them back when their holder dies. A lock *file*, which programs create and
# remove, stays for ever when its owner is killed.
#
# With large sets, each rank can stage its own shards only: `--shards rank`.

# %% [markdown] id="epochs"
# ## 4 · Count the epochs
#
# The copy takes time before the first image arrives. It pays when the epochs have saved that time. So we measure four
# things, in five rounds, with one reader: an epoch from small files, an epoch from the packed file, both on the slow
# storage; staging; and an epoch from the copy. Each epoch reads all images in random order.
#
# > **Predict.** After how many epochs has staging paid: half an epoch, one, three?

# %%
source = setup.source()
epochs = staged.measure_epochs(source, source.root, packed, place, storage)
if epochs.note:
    show.say(epochs.note)

# %%
show.figure(draw.totals(epochs), alt=epochs.alt_text)

# %% [markdown]
# The staged line begins with the copy; its slope is an epoch from this node. A copy reads each byte once, as an epoch
# does, so one would expect the lines to meet near one epoch, whatever the bandwidth. They meet earlier if the copy reads
# in a better order than the epoch, or with more readers; later if an epoch from this node is not quick either. And the
# small files?

# %%
against_files = epochs.crossing("small files")
if against_files is None:
    show.say("Against small files the copy never paid here.")
else:
    show.say(f"Against small files it has paid after **{against_files.median:.2f} epochs**.")

# %% [markdown]
# Not so fast: an epoch that is read is not an epoch that is trained. While the GPU computes, the loader reads ahead. If
# training needs longer than reading, the storage is hidden behind it.
#
# > **Predict.** Training alone takes as long as reading from the slow storage. When has staging paid?

# %%
print(staged.bound_table(epochs))

# %% [markdown]
# So measure an epoch of your training, not a raw read. Two more reasons can decide. The kernel keeps files that were read
# in free memory, the *page cache*: a set that fits may come from there in the second epoch, without any staging, until
# somebody needs the memory. And with staging your job loads the shared storage once, not in every epoch. That helps the
# others on the cluster even if it does not help you.

# %% [markdown] id="clean"
# ## 5 · Clean up, also when killed
#
# Memory that a job leaves in `/dev/shm` is missing for every later job on the node. So a copy goes with the last process
# that uses it. Three things can come in between: the program ends early; the scheduler sends SIGTERM, as before a time
# limit; or SIGKILL, on which no program can act.
#
# Next, child processes that copy, or use a copy, are ended by both signals. Then another process stages the same file.
#
# > **Predict.** In which cases is something left? What does the next `stage` do with it?

# %%
ended = staged.measure_killed(packed, place, storage)
for one in ended:
    print(one.summary)

# %%
left = sorted({one.signal for one in ended if one.left_bytes})
show.say(f"Something was left by: **{', '.join(left) or 'none of them'}**.")
stayed = sum(one.after_bytes for one in ended)
show.say(f"After the next `stage` had given back its copy, **{stayed:,} bytes** were left.")

# %% [markdown]
# On SIGTERM a handler removes the copy, and then lets the signal do its work. After SIGKILL the lock is free and
# the files are there: that is how the next process knows that their owner is dead. It removes half a copy, and uses a
# whole one.
#
# What lies on this node now, from you?

# %%
found = staging.listing()
for one in found:
    print(one.path.name, one.state, one.owner)
show.say(f"**{len(found)}** staged copies of yours are on this node.")

# %% [markdown] id="tiers"
# ## Storage of a centre, tier by tier
#
# A centre has several storages, and data moves between them before a job starts:
#
# - The *archive* holds much and keeps it for years, on tape in the end. Compute nodes often cannot see it.
# - *Scratch* is the fast parallel file system that jobs read. Files that nobody touches for some time are purged, in
#   Jülich after 90 days.
# - *Node-local* storage is yours for the time of the job.
#
# So there is a staging before staging: from the archive to scratch, on a node that sees both. It takes long and is
# interrupted often, so `stage --to` notes each block that it copied, and goes on where it ended. On Lustre it spreads a
# large file over several servers (*striping*), so that many nodes read it at full speed; small files are better off on one.

# %%
target = fresh_folder(setup.scratch)
for _ in range(2):
    there = staging.stage_to(packed, target)
    show.say(f"{'Was there already' if there.reused else 'Copied'}, {there.seconds:.2f} s.")

# %% [markdown] id="exercise"
# ## Exercise
#
# In [Exercise 07](../exercises/07_stage_a_dataset.ipynb) you write a staging function that survives two jobs at once,
# a full disk, and SIGTERM. The check tries all of them.

# %% [markdown] id="cluster"
# ## On the cluster
#
# Two commands. The first brings a set from the archive to scratch, on a transfer node. The second runs at the start of
# a job script, prints the path of the copy, and ends; the copy then belongs to the job. `train.tars` is a folder of
# shards ([notebook 05](05_shard_a_dataset.ipynb)); a single file is staged by the same line.

# %%
show.command(staging.StageConfig(), "archive/train.tars", "auto", "scratch/data")

# %%
show.command(staging.StageConfig(), "scratch/data/train.tars")

# %% [markdown]
# In the script, and mind where the `trap` stands: inside `$(…)` it would remove the copy before it was used.
#
# ```bash
# staged=$(smallfiles stage scratch/data/train.tars)
# trap 'smallfiles unstage "$staged"' EXIT
# smallfiles bench read "$staged"
# ```
#
# Both are ready as jobs. `SITE` is your cluster's file in `slurm/sites`; the second job follows by itself and
# compares reading the copy with reading the original. No cluster at hand? `slurm/local/up` starts a small one on this
# machine where Slurm is installed; its site is `local`.
#
# ```bash
# slurm/submit SITE 07_fetch -- archive/train.tars scratch/data
# ```

# %% [markdown] id="key-points"
# ## Key points
#
# - Node-local storage has many names; in `/dev/shm` a file is memory of the job, so the limit counts, not `df`.
# - Pack first: a copy is then one long read, and each block is verified on its way.
# - Lock, look, copy aside, verify, rename: one rank copies, all use the copy.
# - Staging pays after the copy's time divided by what it saves an epoch; if training is slower than reading, never.
# - Clean up at exit and on SIGTERM; what SIGKILL leaves, the next job removes, since the lock is free.

# %% [markdown] id="next"
# ## Next
#
# The data is now as near as it can be. If the GPU still waits, reading is not what keeps it waiting: decoding, augmenting
# and sending batches are next to be measured: [08 · Keep the GPU fed](08_keep_the_gpu_fed.ipynb).
