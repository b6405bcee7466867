# %% [markdown] id="top"
# # 01 · Count the cost of small files
#
# **Minutes** 30 · **Machine** any Linux computer, two CPUs do · **Needs** notebook 00 · **Data** 400 synthetic images
#
# A data set of a million images is a million files. Each takes an inode and some blocks, and each must be opened before
# it can be read. On a laptop you hardly notice. On the file system of a cluster the same habits keep a GPU waiting.
#
# This notebook measures what small files cost here, and on storage that is made as slow as a busy cluster's.

# %% [markdown] id="questions"
# ## Questions
#
# - What do small files take besides their bytes?
# - How long does one open take, and how long the slowest?
# - From which size on do a file's bytes cost more than its opening?
# - When does it help to have many opens in flight?

# %% [markdown] id="objectives"
# ## After this you can
#
# - count the inodes and blocks of a folder,
# - time single operations, and read a histogram of times,
# - measure warm and cold reads, and say what "cold" leaves out,
# - tell whether latency or the server's rate limits you.

# %% [markdown] id="setup"
# ## Set up

# %% id="start"
import sys

sys.path.append("..")
from helpers import show, start

setup = start("01")

# %% [markdown] id="count"
# ## 1 · Count inodes and blocks
#
# An *inode* is the record that a file system keeps for each file and each folder: owner, size, where the bytes are. A
# quota on a cluster counts inodes as well as bytes. The bytes lie in *blocks* of a fixed size, so the end of the last
# block stays empty.
#
# > **Predict.** The demo set is one folder for each of ten classes. How many inodes do its images take? And how many
# > does the Python environment take that runs this notebook?

# %%
from helpers.experiments import nb01 as cost

source = setup.source()
folder = cost.folder_of(source)
tree = cost.count_tree(folder)
tree.files, tree.folders, tree.inodes

# %%
from pathlib import Path

environment = cost.count_tree(Path(sys.prefix))
if not environment.complete:
    show.say("Others use this file system too, so counting stopped at the cap: there are more.")
environment.files, environment.folders, environment.inodes

# %% [markdown]
# The second is often the surprise: an environment of Python packages is a data set of small files too. The next cell
# compares what the files hold with what the file system set aside for them.

# %%
from smallfiles.progress import bytes_text

for name, one in {"demo set": tree, "environment": environment}.items():
    print(f"{name:12} median file {bytes_text(one.median_bytes)}, holds {bytes_text(one.bytes)},", end=" ")
    print(f"takes {bytes_text(one.allocated_bytes)} in blocks of {one.block_bytes:,} bytes")

# %% [markdown]
# The closer the last two numbers, the less is wasted. Some storage systems use much larger blocks, to keep many disks
# busy with one file.
#
# > **Predict.** If every file had to take whole blocks of 1 MiB, how much space would the demo set take: twice its
# > bytes, five times, ten times?

# %%
from helpers.figures import cost as plots

trees = {"the demo set": tree, "this environment": environment}
show.figure(plots.space(trees), alt=plots.space_alt_text(trees))

# %% [markdown]
# The large rings are measured, the lines are computed from the sizes of the files. Where the block is smaller than a
# typical file, the line is flat. Where it is larger, each doubling of the block doubles the space.

# %% [markdown] id="operations"
# ## 2 · Time a single open
#
# To read a file, a program opens it, reads, and closes it. Often it asks for the size before (`stat`). Each of these is
# a call of the operating system. We time every call by itself, on every image, five times.
#
# > **Predict.** Which takes longest on this machine: stat, open, read or close? How many microseconds?

# %%
paths = source.manifest.paths.to_pylist()
times = cost.time_operations(folder, paths)
for note in times.notes:
    show.say(note)

# %%
show.figure(plots.latencies(times), alt=times.alt_text)

# %% [markdown]
# *Warm* means that the kernel still holds the bytes in memory, in the *page cache*. *Cold* means that it was told to
# forget them (`posix_fadvise`), so they come from the disk. This is only half of the truth: the names and inodes stay
# known, and only root can make the kernel forget those. The first open after a reboot must fetch them too, and is not
# among the times above.
#
# The time axis is logarithmic. Look at the right ends: a mean hides the few slow calls, and a batch is ready only when
# its slowest file is.

# %%
from helpers.experiments.nb01.operations import micro_text

slowest = max(times.warm["open"])
show.say(
    f"Half of the opens took less than **{micro_text(times.median_s('open'))}**; "
    f"the slowest of {len(times.warm['open']):,} took **{micro_text(slowest)}**, "
    f"{slowest / times.median_s('open'):,.0f} times as long."
)

# %% [markdown]
# > **Predict.** ImageNet has 1,281,167 training images. How long does it take to open all of them one after the other,
# > first at the speed measured here, then if each open waits 2 ms for a busy server?

# %%
from smallfiles.progress import duration_text

images, wait_s = 1_281_167, 0.002
here, there = (duration_text(images * one_s) for one_s in (times.median_s("open"), wait_s))
show.say(f"Here: **{here}**. At {1e3 * wait_s:.0f} ms each: **{there}**, in every epoch.")

# %% [markdown]
# The 2 ms are an assumption. Your cluster has its own number, and it changes with the hour. The command near the end of
# this notebook tells: one second divided by the rate of plain files is the time that one file takes.

# %% [markdown] id="sizes"
# ## 3 · Trade many files for one
#
# Opening costs the same for a small file and for a large one. So the price for a byte depends on the size of the file.
# The next cell writes the same bytes twice: as many files of one size, and as one large file that is read in pieces of
# that size. Both are read in random order.
#
# > **Predict.** A file of 4 MB holds 4,000 times as many bytes as one of 1 kB. How many times as many bytes per second
# > does reading it give?

# %%
ladder = cost.measure_ladder(setup.scratch / "ladder")
for note in ladder.notes:
    show.say(note)

# %%
show.figure(plots.throughput_by_size(ladder), alt=ladder.alt_text)

# %%
show.say(f"{ladder.gain_finding}. **{ladder.even_finding}.**")

# %% [markdown]
# Compare lines of one style. Where they lie apart, opening is what counts; where they meet, moving the bytes is. At half
# the speed, both take equally long. Cold, small pieces have one more advantage: several of them share what the disk
# delivers at once.
#
# Each point was measured in five rounds, and in each round all points in a new order: so a disturbance hits all of
# them, not one. The dots show the single runs.
#
# Now the demo set itself. We pack it into one file (Arrow, explained in notebook 03) and read single images from both,
# in random order, with a warm cache.

# %%
from smallfiles.pack import PackConfig, pack

files, one_file = setup.scratch / "set.files", setup.scratch / "set.arrow"
for out in (files, one_file):
    pack(source, out, PackConfig(verify="none"))

# %% [markdown]
# > **Predict.** The images hold about 100 kB each. Find that size in the figure above. Will one file win clearly?

# %%
from smallfiles.measure import BenchConfig, bench_reads
from helpers.figures import alt_text, throughput

config = BenchConfig(repeats=5, count=400, orders=("random",), caches=("warm",))
records = bench_reads([files, one_file], config).records
show.figure(throughput(records), alt=alt_text(records))

# %% [markdown]
# The title claims a difference only if the middle halves of the runs do not overlap. If Arrow wins by more than the
# figure before promised, this is why: both lines there copy the bytes into the program, but the Arrow file is mapped
# into memory and nothing is copied. Notebook 03 takes this apart.

# %% [markdown] id="in-flight"
# ## 4 · Keep many opens in flight
#
# A program that waits for one answer before it asks the next question spends its life waiting. It can ask several
# questions at once, from several threads: they are *in flight*. First the machine that we have, with a warm cache and
# a cold one.
#
# > **Predict.** How many times as fast are 16 threads as one, warm and cold, on this machine?

# %%
largest = max(map(source.store.size, paths))
warm = cost.measure_in_flight(source.store, paths, largest, name="warm cache", folder=folder)

# %%
from smallfiles.measure import cache

measured = [warm]
if cache.can_be_cold(folder):
    named = {"name": "cold cache", "folder": folder, "cold": True}
    measured.append(cost.measure_in_flight(source.store, paths, largest, **named))

# %% [markdown]
# Next slow storage. A laptop has none, so the course brings one: `slowfs` mounts the same folder a second time. There the
# kernel asks a program for every name and every open, and the program answers 2 ms later. It works on 8 operations at
# once; further ones queue. This is a parallel file system in small, and its two numbers are ours: change them.
#
# > **Predict.** To read a file, its name is looked up and it is opened: two operations of 2 ms. How many files per second
# > does one reader get? And 4, 16, 64 readers?

# %%
from smallfiles import slowfs

storage = slowfs.SlowConfig(latency_s=0.002, servers=8)
with slowfs.open_slow(folder, storage) as slow:
    named = {"name": "slow storage", "folder": folder}
    measured.append(cost.measure_in_flight(slow.store, paths[:200], largest, **named))
    asked = slow.counts()
show.say(slow.summary)

# %%
show.figure(plots.in_flight(*measured), alt=plots.in_flight_alt_text(*measured))

# %%
show.say(cost.slow_finding(measured[-1], storage, asked))

# %% [markdown]
# There are two limits. While few opens are in flight, waiting rules, and each further one helps. Once
# the server answers as fast as it can, further ones only queue. With a warm cache nobody waits for a disk: threads can
# gain what further CPUs give, no more, and they may get into each other's way.
#
# So `smallfiles pack` looks where the files lie, and keeps 32 in flight on shared storage.
#
# > **Predict.** How many times as fast as a script with one file at a time does it read the slow folder?

# %%
from dataclasses import replace

with slowfs.open_slow(folder, storage) as slow:
    late = replace(source, store=slow.store)
    report = pack(late, setup.scratch / "slow.arrow", PackConfig(verify="none"))
rate, alone = report.samples / report.seconds, measured[-1].spread(1).median
show.say(
    f"Packed **{rate:,.0f}** images per second with {report.in_flight} in flight; "
    f"one at a time gave {alone:,.0f}: **{rate / alone:.1f} times** as fast."
)

# %% [markdown]
# A server is shared. If you take all it can answer, everybody else waits. So this course asks first what it may do:

# %%
from smallfiles.measure import neighbour

allowed = neighbour.allowance([setup.scratch], samples=3_000, runs=40)
show.say(allowed.note or f"This {setup.filesystem.kind} is local: nothing was capped.")
show.say(
    f"On a shared file system an experiment stops at {neighbour.OPERATIONS:,} operations, "
    f"with {neighbour.IN_FLIGHT} in flight. "
    f"Thirty participants without a cap would ask for {30 * 3_000 * 40:,} opens."
)

# %% [markdown] id="exercise"
# ## Exercise
#
# In [Exercise 01](../exercises/01_count_the_cost_of_small_files.ipynb) you predict how many inodes a data set takes and
# how many hours its opens keep a job waiting. Then you measure whether you were right.

# %% [markdown] id="cluster"
# ## On the cluster
#
# The comparison of many files with one file, as a command. Copy both packed files to the file system that your jobs
# use, and run it in a job of one node. With `--cache both` it measures cold reads too.

# %%
show.command(config, "read", [files.name, one_file.name])

# %% [markdown] id="key-points"
# ## Key points
#
# - A small file takes an inode, at least one block, and an open; its bytes are the least of it.
# - Opens take microseconds from a warm cache and may take milliseconds from a server; look at the slowest, not the mean.
# - Below some size, measured above, opening costs more than the bytes; one large file is opened once.
# - Opens in flight hide waiting until the server's rate is reached; then they only queue.

# %% [markdown] id="next"
# ## Next
#
# Notebook 02, [Describe a dataset with a JSON manifest](02_describe_a_dataset.ipynb), lists the files once, so that no job has to search for them
# again.
