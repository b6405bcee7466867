# %% [markdown] id="top"
# # 00 · Start here
#
# **Minutes** 30 · **Machine** any Linux computer with two CPUs · **Needs** nothing · **Data** none
#
# In many training jobs, the GPU waits for data. The GPU could process thousands of images per second. But each image is a
# file of its own, and each file must be found, opened, read, and decoded.
#
# This course measures where the time goes, and it shows five ways to shorten the wait:
#
# - a list of all files, so that no job has to search through folders,
# - packing, which puts many files into one,
# - staging, which puts a copy near the GPU,
# - feeding, which decodes images before the GPU needs them,
# - streaming, which reads from a distant store.
#
# ![A job's first epoch as a bar, for each notebook: the part in which the GPU waits shrinks from file per image to packed, staged and fed.](pictures/course.svg)
#
# *The course in one picture. Notebooks 09 and 10 keep the wait short on distant storage and on many nodes.*
#
# The whole course takes two days. You can skip *optional* sections. If something breaks, look it up in
# [12 · When it breaks](12_when_it_breaks.ipynb). The [glossary](../docs/glossary.md) explains the terms.
#
# <details>
# <summary>You have only three hours?</summary>
#
# Run the cell under *Set up* and do section 1 of this notebook. Then continue in this order: 01 (sections 2 to 4), 05
# (sections 1, 2, 4, 5), 08 (sections 1, 5), 07 (sections 3, 4), and section 5 of 11 with your own data. Later notebooks
# begin with a *Recall* question about an earlier notebook. Skip the question if you have skipped that notebook. If your
# data has masks, numbers, or tables, see [13](13_bring_your_own_data.ipynb).
#
# </details>

# %% [markdown] id="questions"
# ## Questions
#
# - What limits a training: the storage, the CPUs, or the GPUs?
# - When are plain files fine, and when does packing pay?
# - How much of this machine may I use?
# - How do I know that an exercise is solved?

# %% [markdown] id="objectives"
# ## After this you can
#
# - name the limit of a training from a few numbers, and find the notebook about it,
# - distinguish the CPUs and memory that you may use from those that are installed,
# - read the two limits of a file system, bytes and inodes,
# - solve an exercise with the help of its check.

# %% [markdown] id="setup"
# ## Set up
#
# Every notebook begins with a cell like the next one. The cell checks the kernel, which is the Python process behind this
# page. It makes or finds the data, and it says how long the notebook takes. Run it with **Shift+Enter**.

# %% id="start"
import sys

sys.path.append("..")  # finds the course's package, whatever the kernel
from helpers import figures, show, start

setup = start("00")

# %% [markdown] id="decision" tags=["core"]
# ## 1 · Find the limit first
#
# Before you change how your data is stored, find out what limits your training. Clusters keep data on a *parallel file
# system* such as *Lustre*. A parallel file system is a group of servers that together look like one folder on every node.
# Four parts of the cluster work on each image, and the slowest of them decides how fast you can train:
#
# 1. The **metadata server** finds and opens files. All users share it.
# 2. The **data servers** read the bytes from groups of disks, which are called *targets*. All users share them, too.
# 3. The **CPUs** of the node decode images.
# 4. The **GPUs** train.
#
# In addition, your **quota** limits how many bytes and how many files you may store.
#
# A *request* is one message from a node to a server. How many requests an image needs depends on how it is stored:
#
# - A **plain file** needs two requests to the metadata server, one to find it and one to open it. A third request, to a
#   data server, reads its bytes.
# - **One packed file** is opened only once, so an image needs only the request that reads its bytes.
# - **Tar shards** are several large files. They are read from front to back, so one request reads about ten images.
#
# The next cell computes how many images per second each part can handle. For each part, we divide what it can do per
# second by what one image needs. For example, a server that answers 5,000 requests per second delivers 2,500 images per
# second if each image needs two requests. We use the numbers of a medium-sized cluster. They are only orders of magnitude,
# and [notebook 11](11_choose_a_format.ipynb) says where they come from. We assume that the packed file is spread over all
# 24 targets.

# %% tags=["slide"]
gpus_need = 4 * 64 / 0.05  # each of a node's 4 GPUs needs 64 images for a step of 0.05 s
cpus_decode = 32 / 0.003  # a node has 32 workers, and each needs 0.003 s to decode an image

image_s = 110_000 / 0.7e9  # seconds in which a target reads an image of 110 kB, at 0.7 GB/s
request_s = 0.0005  # seconds that a target needs in addition for each request
storage = {  # images per second for all nodes together; 24 targets read the bytes
    "files, busy metadata server": 5_000 / 2,  # other users leave you 5,000 requests per second
    "files (idle server) or packed file": 24 / (image_s + request_s),  # one read per image
    "tar shards": 24 / (image_s + request_s / 10),  # one read for ten images
}
print(f"A node needs {gpus_need:,.0f} images/s, and its CPUs decode {cpus_decode:,.0f}.")

# %% [markdown]
# A node needs 5,120 images per second. For example, storage that delivers 51,200 images per second could feed ten nodes.
#
# > **Predict.** How many nodes can the storage of the cell above feed if the images are in tar shards?

# %%
guess = None  # your guess, nodes that tar shards feed: for example 100

# %% [markdown]
# The *folded* cell draws the *map of limits*. For each number of nodes, the map shows how many images per second the GPUs
# need and how many the storage delivers. A star marks how many images this machine could decode, if it also needs 0.003 s
# for an image.

# %% tags=["slide"] jupyter={"source_hidden": true}
import matplotlib.pyplot as plt

from smallfiles import machine

here = machine.usable_cpus() / 0.003
figure, axes = plt.subplots(figsize=(7.2, 4.4), layout="constrained")
axes.loglog([1, 1_000], [gpus_need, 1_000 * gpus_need], color="black", lw=2.5)
axes.annotate("what the GPUs need", (1.4, 0.8 * gpus_need), rotation=28, weight="bold")
axes.loglog([1, 1_000], [cpus_decode, 1_000 * cpus_decode], color="grey", ls="--")
axes.annotate("what the CPUs decode", (1.05, 1.4 * cpus_decode), rotation=28, color="grey")
for (name, rate), colour in zip(storage.items(), ("#D55E00", "#0072B2", "#009E73")):
    axes.axhline(rate, color=colour)
    axes.plot(rate / gpus_need, rate, "o", color=colour)
    axes.annotate(f"{name}: {rate / gpus_need:.1f} nodes", (950, rate), ha="right", va="bottom")
axes.plot(1, here, "*", ms=12, color="black", clip_on=False)
axes.annotate(f"this machine decodes {here:,.0f}", (1.2, here), va="center")
if guess is not None:
    axes.axvline(guess, color="black", ls=":", label="your guess")
    axes.legend()
for axis in (axes.xaxis, axes.yaxis):
    axis.set_major_formatter("{x:,.0f}")
axes.set(xlim=(1, 1_000), ylim=(min(300, 0.7 * here), 1e6), xlabel="nodes", ylabel="images per second, all nodes together")
fed = {name: rate / gpus_need for name, rate in storage.items()}
title = f"If the metadata server is busy, files feed {fed['files, busy metadata server']:.1f} nodes, and tar shards {fed['tar shards']:.0f}"
axes.set_title(title)
show.figure(figure, alt=f"Map of limits. {title}. " + ", ".join(f"{name}: {rate:,.0f} images per second" for name, rate in storage.items()))

# %% [markdown]
# The black line rises, because each node adds GPUs. The coloured lines are flat, because all nodes share the storage. A dot
# marks where a coloured line meets the black line. To the right of the dot, the GPUs wait. (The dashed line lies above the
# black one, so these CPUs decode fast enough.) Both axes are logarithmic.
#
# The next cell computes the percentage of time in which the GPUs can be busy. It also considers a copy on each node:

# %% tags=["slide"]
storage["a copy on each node"] = float("inf")  # nothing is shared
print(f"{'GPUs are busy at most':34}", *(f"{n:>4} node{'s' * (n > 1)}" for n in (1, 10, 100)))
for name, rate in storage.items():
    print(f"{name:34}", *(f"{min(100, 100 * rate / (n * gpus_need)):8.3g}%" for n in (1, 10, 100)))

# %% [markdown]
# While the metadata server is busy, plain files cannot feed even one node. An idle metadata server answers about 100,000
# requests per second, which is enough for 50,000 images. In this case, the targets are the limit. A target needs one
# request for an image, whether it reads a plain file or a piece of a packed file. So plain files and a packed file both
# feed 7 nodes.
#
# Tar shards feed 23 nodes, because a target needs only one request for ten images. At 100 nodes, tar shards are more than 40
# times as fast as plain files with a busy metadata server. If each node has its own copy of the data, the shared storage no
# longer limits the training.
#
# **Files are fine** if they lie on a disk inside the node. On shared storage, they are fine for a few nodes, as long as the
# metadata server is not busy. There, your quota must allow that many files, too.
#
# **Packing pays** if other users keep the metadata server busy, or if your quota allows fewer files than you have. If many
# nodes read the data, pack it so that one request reads many images, as in tar shards.
#
# **Your turn.** A larger model needs 0.2 s for a step. In the first cell of this section, change 0.05 to 0.2. Run this cell
# and the cell with the map again. How many nodes do plain files feed now, with a busy and with an idle metadata server?
# Then undo the change and run both cells again.
#
# <details>
# <summary>Answer</summary>
#
# Plain files feed 2 nodes with a busy metadata server, and 28.5 nodes with an idle one. Each node now needs only a quarter of
# the images per second, so the same storage feeds four times as many nodes. The longer a step takes, the more nodes can use
# plain files.
#
# </details>
#
# | What limits you | How you notice it | What helps | Notebook |
# |---|---|---|---|
# | metadata server | few images arrive per second, and both CPUs and GPUs are idle | pack the files | [01](01_count_the_cost_of_small_files.ipynb), [03](03_pack_arrow.ipynb) to [06](06_read_a_squashfs_image.ipynb) |
# | data servers | with more nodes, the training does not become faster | long reads, files that are spread over all targets (*striped*), or a copy on each node | [05](05_shard_a_dataset.ipynb), [07](07_stage_a_dataset.ipynb), [10](10_run_it_on_many_nodes.ipynb) |
# | a distant object store | each request takes 50 ms or more | several requests in flight | [09](09_stream_shards.ipynb) |
# | CPUs that decode | the workers are always busy, and the GPU is not | more workers, as long as some CPUs are idle, or cheaper decoding | [08](08_keep_the_gpu_fed.ipynb) |
# | GPUs | the next batch is always ready | nothing, because the data arrives fast enough | |
# | quota, or a full file system | `Disk quota exceeded`, `No space left on device` | fewer and larger files | [02](02_describe_a_dataset.ipynb), [03](03_pack_arrow.ipynb) |
#
# In [notebook 11](11_choose_a_format.ipynb), you draw this map with the numbers of your site. In
# [notebook 14](14_wrap_up.ipynb), you choose a format with the numbers that you have measured.

# %% [markdown] id="machine" tags=["core"]
# ## 2 · Ask the machine what it is
#
# A *worker* is a process that loads data. Many programs start one worker for each installed CPU. On a cluster, these are
# often too many. A node may have 128 CPUs, while your job may use only 4 of them. The next cell prints both numbers:

# %%
import os

print(f"installed: {os.cpu_count()}; for this kernel: {machine.usable_cpus()}")

# %% [markdown]
# `os.cpu_count` counts the installed CPUs. `usable_cpus` counts the CPUs that this kernel may use. Linux can restrict a
# process to some of the CPUs, and it can limit its CPU time. `usable_cpus` considers both. On your own machine, the two
# numbers are often the same.
#
# The cell after the guess restricts this kernel to one CPU, prints both numbers again, and removes the restriction.
#
# > **Predict.** Which number changes?

# %%
guess = None  # your guess: "installed", "for this kernel", or "both"

# %% tags=["slide"]
allowed = os.sched_getaffinity(0)
os.sched_setaffinity(0, {min(allowed)})  # one CPU for this thread and for what it starts
print(f"installed: {os.cpu_count()}; for this kernel: {machine.usable_cpus()}")
os.sched_setaffinity(0, allowed)

# %% [markdown]
# Only the second number changed, to 1, while `os.cpu_count` still counted all installed CPUs. So choose the number of workers by
# `usable_cpus`. `torchrun` can start one process per GPU, and each of these processes sees all CPUs that the
# job has on the node. In this case, divide the second number by the number of processes.
#
# Some clusters do not enforce the number of CPUs that you have asked for. So in a job, use the smaller of the second number
# and `$SLURM_CPUS_PER_TASK`, if this variable is set.
#
# Your job may also get less memory than is installed. The next cell prints how much memory you may use, and what sets this
# limit:

# %%
from smallfiles.progress import bytes_text

limit = machine.memory_limit()
print(f"{bytes_text(limit.limit_bytes)}, limited by {limit.source}")

# %% [markdown]
# `physical memory` means that you may use all memory that is installed. A *cgroup* is a group of processes, for example a
# job, whose memory Linux limits. A job that needs more memory than its limit is not slowed down. It is killed.
#
# A file system has two limits, which are its size in bytes and its number of *inodes*. Each file and each folder needs one
# inode, however small it is. The next cell asks `os.statvfs` how much of both is free where the course stores its data. Then
# a helper of the course draws the same for several file systems of this machine:

# %%
from helpers import machine_report

free = os.statvfs(setup.scratch)
inodes = f"{free.f_favail:,} inodes free" if free.f_files else "inodes are not counted"
print(f"{bytes_text(free.f_bavail * free.f_frsize)} free, and {inodes}")
picture = machine_report.describe(setup.scratch)
machine_report.draw(picture)

# %% [markdown]
# The figure shows how many photos of 100 kB still fit. Each file system has one bar for its bytes, and another for its
# inodes if it counts them. The shorter bar decides. If the inodes run out first, you get "No space left on device" although
# many bytes are free.
#
# On a cluster, you may use only a part of the file system, which is your *quota*. It also limits both bytes and inodes. If
# the figure has no bars for your quota, ask your site for it.
#
# > **Predict.** A quota is 2 TB and 3 million inodes. About how many photos of 100 kB fit: 3, 20, or 23 million?

# %%
guess = None  # your guess, photos: for example 20_000_000

# %% tags=["slide"]
quota_bytes, quota_inodes = 2_000_000_000_000, 3_000_000  # change me: your quota
file_bytes = 100_000  # change me: the size of a file

room = {"bytes": quota_bytes // file_bytes, "inodes": quota_inodes}
first = min(room, key=room.get)
title = f"The quota has room for {room[first]:,} files, and then the {first} run out"
x = f"files of {bytes_text(file_bytes)} that there is room for"
figures.bars(room, title, x=x, guess=guess, groups=("bytes", "inodes"), counted=True)

# %% [markdown]
# The answer is 3 million photos, because the inodes run out first. In practice slightly fewer photos fit, because folders
# need inodes, too. Three million photos fill only 0.3 TB of the 2 TB.
#
# **Your turn.** Change `file_bytes` so that the bytes and the inodes run out together.
#
# <details>
# <summary>Answer</summary>
#
# About 667,000, because 2 TB / 3 million = 667 kB. If files are smaller, the inodes run out first. If they are larger, the
# bytes run out first.
#
# </details>
#
# The command `smallfiles doctor` reports on these limits and on the software. The next cell shows only the lines of this
# report that need attention, each with advice:

# %%
from smallfiles import doctor

findings = doctor.examine()
odd = [finding for finding in findings if finding.verdict in ("warn", "fail")]
for finding in odd:
    show.say(f"**{finding.name}** ({finding.value}): {finding.advice}")
show.say(f"Lines that need attention: {len(odd)} of {len(findings)}.")

# %% [markdown] id="imports" tags=["core"]
# ## 3 · Count the files behind one import
#
# A Python package is a tree of small files, too, and an `import` opens many of them.
#
# An *audit hook* is a function that Python calls at certain events, for example whenever it opens a file. We start a fresh
# Python with such a hook. The hook does not see shared libraries (`.so`), because the dynamic loader of Linux opens them.
# But Linux lists all files that a process has mapped into its memory in `/proc/self/maps`, so we add the files from this
# list.

# %%
import subprocess

COUNT = """
import sys
paths = set()
sys.addaudithook(lambda event, about: paths.add(str(about[0])) if event == "open" else None)
__import__(sys.argv[1])
paths |= {line.rstrip().split(maxsplit=5)[5] for line in open("/proc/self/maps") if "/" in line}
print(*sorted(paths), sep="\\n")
"""


def files_opened_by(module):
    """Return the files that a fresh Python opens, and the libraries that it maps, for an import."""
    command = [sys.executable, "-c", COUNT, module]
    end = subprocess.run(command, capture_output=True, text=True, check=True)
    paths = end.stdout.splitlines()
    return [path for path in paths if os.path.isfile(path) and not path.startswith("/proc/")]


# %% [markdown]
# > **Predict.** How many files does `import torch` open in a fresh Python: 10, 100, or 1,000?

# %%
guess = None  # your guess, files: for example 100

# %% tags=["slide"]
modules = ("torch", "numpy", "json")  # change me: add a module that your training imports

counts = {f"import {module}": len(files_opened_by(module)) for module in modules}
opens = counts["import torch"]
title = f"One import of torch opens about {float(f'{opens:.2g}'):,.0f} files"
x = "files opened, and libraries mapped"
figures.bars(counts, title, x=x, guess=guess, guess_of="import torch", counted=True)

# %% [markdown]
# Most of these files are Python modules. On a local disk, it takes microseconds to open a file. On a parallel file system,
# the node must ask the metadata server.
#
# Suppose that your environment lies on such a file system. As in section 1, the metadata server is busy and answers 5,000
# of your requests per second, and each file needs two requests. On each of 64 nodes, four processes import PyTorch. The next
# cell computes how long the metadata server needs for their requests, and for an environment that is packed into one file:

# %%
server = 5_000  # change me: requests per second that your metadata server answers
files = {"many files": 64 * 4 * opens, "one file, opened once per node": 64}
for name, number in files.items():
    print(f"{name}: {number:,} opens, {float(f'{2 * number / server:.2g}'):,g} s")

# %% [markdown]
# The first line shows how long the job waits for the import before it reads its first image. This is only an estimate. If
# the node keeps names in its cache, it sends fewer requests. On the other hand, an import asks thousands of times for
# the attributes of files, which we have not counted.
#
# The second line shows the remedy. Put the whole environment into one file, which each node opens once
# ([06.7](06_read_a_squashfs_image.ipynb#7-·-Put-an-environment-into-one-file)). After that, the node reads from the data
# servers only the parts of this file that it needs.

# %% [markdown] id="order" tags=["optional"]
# ## 4 · Run cells in order
#
# *Optional, 3 minutes, if you are new to notebooks.* The *kernel* behind this page keeps all variables until it ends. Only
# the order in which you run the cells counts, and not their place on the page.
#
# The next two cells start a counter and increase it. What does the second cell show if you run it three
# times? What does it show if you then run the first cell again, and the second cell once more?

# %%
counter = 0

# %%
counter += 1
counter

# %% [markdown]
# After three runs, the second cell shows 3. If you then run the first cell again, the second cell shows 1 at its next run.
# The number in brackets to the left of a cell shows the order in which the cells ran.
#
# When in doubt, choose **Kernel > Restart Kernel and Run All Cells**. It runs the page from top to bottom in a fresh
# process.

# %% [markdown] id="checks" tags=["core"]
# ## 5 · Pass a check
#
# Each notebook has an exercise, which is a function with a gap, and a cell that checks it. The next function should return
# the number of inodes that one copy of a data set needs. Run the cell unchanged:

# %% tags=["raises-exception"]
from exercises.checks import ex00_start_here as check


def inodes_of_a_copy(files: int, folders: int) -> int:
    raise NotImplementedError  # your code


check.inodes_of_a_copy(inodes_of_a_copy)

# %% [markdown]
# The circle means that you have not filled the gap yet. We fill it now, but not correctly.
#
# What does the next function return for 96 files in 4 folders, and what should it return?

# %%
guess = None, None  # your guesses: what it returns, what it should return


# %% tags=["slide", "raises-exception"]
def inodes_of_a_copy(files: int, folders: int) -> int:
    return files


check.inodes_of_a_copy(inodes_of_a_copy)

# %% [markdown]
# Next to the cross, the check shows the first case that failed, and often the reason. The function returned 96. It should
# return 100, because each of the 4 folders needs an inode, too.
#
# **Your turn.** Correct the function above and run its cell again. The folded cell contains our solution. Click on its bar
# to see it.


# %% jupyter={"source_hidden": true}
def inodes_of_a_copy(files: int, folders: int) -> int:
    return files + folders


check.inodes_of_a_copy(inodes_of_a_copy)

# %% [markdown] id="exercise"
# ## Exercise
#
# In [Exercise 00](../exercises/00_start_here.ipynb), you compute how many copies of a data set fit into a quota with two
# limits.

# %% [markdown] id="cluster"
# ## On the cluster
#
# Activate the course's environment ([install](../docs/install.md)), and run the command that the next cell prints, on the login
# node and in a job. The first lines show the CPUs and the memory. In a job, you usually get less of both than the node has:

# %%
show.command(picture)

# %% [markdown] id="key-points"
# ## Key points
#
# - The slowest part decides, so find the limit before you change how your data is stored.
# - Nodes bring their own CPUs and GPUs, but they share the storage. So the storage limits large jobs first.
# - Ask for the CPUs and memory that you may use, not for those that are installed.
# - A file system is full when either its bytes or its inodes run out.
# - One `import` may open more than a thousand files, and a job on many nodes multiplies this number.
# - A check shows ○ for not started, ✗ for not yet right, with the first case that failed, or ✓ for passed.

# %% [markdown] id="quiz"
# ## Check yourself
#
# Choose an answer first. Then unfold ours.
#
# **1.** Your job has 4 GPUs and 32 CPUs on a node with 128 CPUs. `torchrun` starts 4 processes. How many workers should
# each process start? (a) 128. (b) 32. (c) About 8.
#
# <details>
# <summary>Answer</summary>
#
# **(c)**. Four processes share 32 CPUs. With (a), 512 workers would take turns on 32 CPUs, and with (b) 128 workers would.
#
# </details>
#
# **2.** You get "No space left on device", but `df -h` shows free space. What do you check? (a) The inodes. (b) The
# memory. (c) The speed of the disk.
#
# <details>
# <summary>Answer</summary>
#
# **(a)**. `df -i` shows how many inodes are left. On Lustre, a single full *target* gives this message, too, and
# `lfs df -h` shows it. If your quota is used up, the message is `Disk quota exceeded`. (b) If memory runs out, the process
# ends with another message. (c) A slow disk is not full.
#
# </details>
#
# **3.** Your training uses one node, its files are on a disk inside the node, and all CPUs are busy while the GPU waits.
# What helps? (a) Pack the files. (b) Decode faster, or use more CPUs. (c) Stripe the files.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**. Decoding is the limit. (a) and (c) make the storage faster, which is not the limit here.
#
# </details>

# %% [markdown] id="next"
# ## Next
#
# Notebook 01, [Count the cost of small files](01_count_the_cost_of_small_files.ipynb), measures what it costs to open and
# to read a file.
