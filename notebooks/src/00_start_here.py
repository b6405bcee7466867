# %% [markdown] id="top"
# # 00 · Start here
#
# **Minutes** 15 · **Machine** any Linux computer with two CPUs · **Needs** nothing · **Data** none
#
# In many training jobs the GPU waits for data. It could process thousands of images per second, but each image is a
# file of its own, which must be found, opened and read.
#
# This course measures where the time goes, and shows five ways to shorten the wait:
#
# - a list instead of a walk through folders,
# - packing: many files in one,
# - staging: a copy near the GPU,
# - feeding: decoding ahead,
# - streaming: reading from a far store.
#
# ![A job's first epoch as a bar, for each notebook: the part in which the GPU waits shrinks from file per image to packed, staged and fed.](pictures/course.svg)
#
# *The map of the course. 09 and 10 keep the wait short on far storage and many nodes.*
#
# The course takes two days. *Optional* sections can always wait. If something breaks, look it up in
# [12 · When it breaks](12_when_it_breaks.ipynb). The [glossary](../docs/glossary.md) explains the terms.
#
# <details>
# <summary>You have only three hours?</summary>
#
# Run the set-up cell below and skip the rest of 00. Then take, in this order, 01 (sections 2 to 4), 05 (1, 2, 4, 6), 08
# (1, 3), 07 (3, 4), and the chart of 11 (5) with your own data. Skip a *Recall* of a notebook that you left out. For
# masks, numbers and tables of your own, see [13](13_bring_your_own_data.ipynb).
#
# </details>

# %% [markdown] id="questions"
# ## Questions
#
# - How much of this machine may I use?
# - How many files does one `import` open?
# - Why does the order of cells matter?
# - How do I know that an exercise is solved?

# %% [markdown] id="objectives"
# ## After this you can
#
# - distinguish the CPUs and memory that you may use from those that are installed,
# - read the two limits of a file system, bytes and inodes,
# - run a notebook from top to bottom, and recover when cells ran out of order,
# - solve an exercise with the help of its check.

# %% [markdown] id="setup"
# ## Set up
#
# Every notebook begins with this cell. It checks the kernel (the Python process behind this page), makes or finds the
# data, and says how long the notebook takes. Run it with **Shift+Enter**.

# %% id="start"
import sys

sys.path.append("..")  # finds the course's package, whatever the kernel
from helpers import figures, show, start

setup = start("00")

# %% [markdown] id="machine" tags=["core"]
# ## 1 · Ask the machine what it is
#
# Many programs start one worker (a process that loads data) for each CPU that is installed. On a cluster this is a
# trap: the node may have 128 CPUs while your job was given 4.
#
# > **Predict.** The set-up cell says how many CPUs this kernel may use. How many are installed?

# %%
import os

from smallfiles import machine

guess = 4  # change me: CPUs installed
print(f"installed: {os.cpu_count()}; for this kernel: {machine.usable_cpus()}; your guess: {guess}")

# %% [markdown]
# `os.cpu_count` counts the installed CPUs, `usable_cpus` those that Linux lets this process use, by a list of CPUs
# or a limit on their time. On your own machine both are often equal. The next cell allows one CPU only, shows both
# again, and lifts the limit.
#
# > **Predict.** Which number changes?

# %%
guess = "both"  # change me: "installed", "for this kernel" or "both"
allowed = os.sched_getaffinity(0)
os.sched_setaffinity(0, {min(allowed)})  # one CPU for this thread and what it starts
print(f"installed: {os.cpu_count()}; for this kernel: {machine.usable_cpus()}; your guess: {guess}")
os.sched_setaffinity(0, allowed)

# %% [markdown]
# Start as many workers as the second number allows. If several processes share the CPUs, divide by their number.
# `torchrun` can start one process per GPU, and each sees all CPUs of the job on its node.
#
# Some clusters do not enforce the number of CPUs. So in a job take the smaller of the second number and
# `$SLURM_CPUS_PER_TASK`, if that is set.
#
# Your job may also get less memory than is installed. The next cell shows the smaller of the two, and
# what sets it. A job that needs more is killed, not slowed down.

# %%
from smallfiles.progress import bytes_text

limit = machine.memory_limit()
print(f"{bytes_text(limit.limit_bytes)}, limited by {limit.source}")

# %% [markdown]
# A file system has two limits. One is its size in bytes. The other is the number of *inodes*: each file and each folder
# takes one, however small.
#
# > **Predict.** The set-up cell says what is free here. If you fill this file system with photos of 100 kB, what runs
# > out first, bytes or inodes?

# %%
from helpers import machine_report

guess = "inodes"  # change me: "bytes" or "inodes"
picture = machine_report.describe(setup.scratch)
machine_report.draw(picture, guess)

# %% [markdown]
# Each file system at hand has a pair of bars, or one where inodes are not counted. The shorter bar of a pair decides. If
# inodes run out first, "No space left on device" appears although many bytes are free.
#
# On a cluster you may use only a part of the file system, your *quota*. It limits bytes and inodes. If a tool reports
# it, the figure has bars for it. If not, ask your site.
#
# > **Predict.** A quota is 2 TB and 3 million inodes. About how many photos of 100 kB fit: 3, 20 or 23 million?

# %%
guess = 20_000_000  # change me: photos in the quota
quota_bytes, quota_inodes = 2_000_000_000_000, 3_000_000  # change me: your quota
file_bytes = 100_000  # change me: the size of a file

room = {"bytes": quota_bytes // file_bytes, "inodes": quota_inodes}
first = min(room, key=room.get)
title = f"The quota has room for {room[first]:,} files, then the {first} run out"
x = f"files of {bytes_text(file_bytes)} that there is room for"
figures.bars(room, title, x=x, guess=guess, groups=("bytes", "inodes"), counted=True)

# %% [markdown]
# Nearly three million, since folders take inodes, too. They fill only 0.3 TB of the 2 TB.
#
# **Your turn.** Find the `file_bytes` at which both limits are reached together.
#
# <details>
# <summary>Answer</summary>
#
# About 667,000, because 2 TB / 3 million = 667 kB. With smaller files the inodes run out first, with larger ones the
# bytes.
#
# </details>
#
# The `doctor` examines this and more, and has advice for each line that needs attention:

# %%
from smallfiles import doctor

findings = doctor.examine()
odd = [finding for finding in findings if finding.verdict in ("warn", "fail")]
for finding in odd:
    show.say(f"**{finding.name}** ({finding.value}): {finding.advice}")
show.say(f"Lines that need attention: {len(odd)} of {len(findings)}.")

# %% [markdown] id="imports" tags=["core"]
# ## 2 · Count the files behind one import
#
# A Python package is a tree of small files too, and an `import` opens many of them.
#
# We start a fresh Python with an *audit hook*, a function that Python calls at each open. Shared libraries are opened by
# the linker, not by Python. So we add the files that the process has mapped into its memory.

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
    """The files that a fresh Python opens to import a module, and the shared libraries it has mapped."""
    end = subprocess.run([sys.executable, "-c", COUNT, module], capture_output=True, text=True, check=True)
    paths = end.stdout.splitlines()
    return [path for path in paths if os.path.isfile(path) and not path.startswith("/proc/")]


# %% [markdown]
# > **Predict.** How many files does `import torch` open in a fresh Python: 10, 100 or 1,000?

# %%
guess = 100  # change me: files that import torch opens
modules = ("torch", "numpy", "json")  # change me: add a module that your training imports

counts = {f"import {module}": len(files_opened_by(module)) for module in modules}
opens = counts["import torch"]
title = f"One import of torch opens about {float(f'{opens:.2g}'):,.0f} files"
figures.bars(counts, title, x="files opened, and libraries mapped", guess=guess, guess_of="import torch")

# %% [markdown]
# Most of them are Python modules. On your own disk an open takes microseconds. Many clusters have a *parallel file
# system*, such as *Lustre*: many servers that look like one folder. There an open is a request to a server that all
# users share.
#
# > **Predict.** Suppose that your environment lies there. On 64 nodes, four processes each import PyTorch. How long
# > does a server that answers 20,000 opens per second take: 1, 16 or 160 seconds?

# %%
guess = 1  # change me: seconds
server = 20_000  # change me: opens per second that your file system's server answers
requests = {"many files": 64 * 4 * opens, "one file, opened once per node": 64}
for name, number in requests.items():
    print(f"{name}: {number:,} opens, {float(f'{number / server:.2g}'):,g} s")
print(f"your guess: {guess} s")

# %% [markdown]
# The time of the first line passes before the first image is read. If each open reaches the server, it is a minimum:
# the import also asks for the attributes of thousands of files. The second line is the remedy: the whole environment
# in one file, which each node opens once
# ([06.5](06_read_a_squashfs_image.ipynb#5-·-Put-an-environment-into-one-file)). Its bytes come from other servers,
# and only the parts that are used.

# %% [markdown] id="order" tags=["optional"]
# ## 3 · Run cells in order
#
# *Optional, 3 minutes, if you are new to notebooks.* The *kernel* behind this page keeps all its variables
# until it ends. It does not know where on the page a cell is, only the order in which cells arrive.
#
# > **Predict.** The next two cells start a counter and increase it. What does the second cell show if you run it three
# > times? And if you then run the first cell again, and the second once more?

# %%
counter = 0

# %%
counter += 1
counter

# %% [markdown]
# Three runs give 3. After you run the first cell again, the next run gives 1. The number in brackets left of a
# cell shows the order in which cells ran.
#
# When in doubt, **Kernel > Restart Kernel and Run All Cells** starts a fresh process and runs the page from top to
# bottom.

# %% [markdown] id="checks" tags=["core"]
# ## 4 · Pass a check
#
# Each notebook has an exercise: a function with a gap, and a cell that checks it. This one should count the inodes that
# one copy of a data set takes.

# %% tags=["raises-exception"]
from exercises.checks import ex00_start_here as check


def inodes_of_a_copy(files: int, folders: int) -> int:
    raise NotImplementedError  # your code


check.inodes_of_a_copy(inodes_of_a_copy)

# %% [markdown]
# The circle means that nothing has been tried yet. Now we fill the gap.
#
# > **Predict.** What does the next cell return for 96 files in 4 folders, and what should it return?


# %% tags=["raises-exception"]
def inodes_of_a_copy(files: int, folders: int) -> int:
    return files


check.inodes_of_a_copy(inodes_of_a_copy)

# %% [markdown]
# The cross comes with the first case that failed, and often with the reason.
#
# **Your turn.** Correct the function above and run it again. Our solution is in the folded cell: click on its bar.


# %% jupyter={"source_hidden": true}
def inodes_of_a_copy(files: int, folders: int) -> int:
    return files + folders


check.inodes_of_a_copy(inodes_of_a_copy)

# %% [markdown] id="exercise"
# ## Exercise
#
# In [Exercise 00](../exercises/00_start_here.ipynb) you compute how many copies of a data set fit where two limits
# count.

# %% [markdown] id="cluster"
# ## On the cluster
#
# With the course's environment active ([install](../docs/install.md)), run this on the login node and in a job, and
# compare the first lines:

# %%
show.command(picture)

# %% [markdown] id="key-points"
# ## Key points
#
# - Ask for the CPUs and memory that you may use, not for those that are installed.
# - A file system is full when its bytes or its inodes run out.
# - One `import` may open more than a thousand files, and a job on many nodes multiplies that.
# - A kernel remembers the order in which cells ran; restart and run all when in doubt.
# - A check shows ○ not started, ✗ not yet and why, or ✓ passed.

# %% [markdown] id="quiz"
# ## Check yourself
#
# Choose an answer first, then unfold ours.
#
# **1.** Your job has 4 GPUs and 32 CPUs on a node of 128; `torchrun` starts 4 processes. Workers per process? (a) 128.
# (b) 32. (c) About 8.
#
# <details>
# <summary>Answer</summary>
#
# **(c)**. Four processes share 32 CPUs. (a) 512 workers would take turns on 32 CPUs. (b) would be 128 workers on 32
# CPUs.
#
# </details>
#
# **2.** "No space left on device", but `df -h` shows free space. What do you check? (a) The inodes. (b) The memory. (c)
# The speed of the disk.
#
# <details>
# <summary>Answer</summary>
#
# **(a)**. `df -i` shows how many are left. On Lustre, one full group of disks (a *target*) gives this message, too:
# `lfs df -h` shows it. A full quota says `Disk quota exceeded`. (b) Too little memory ends a process, with a different
# message. (c) A slow disk is not full.
#
# </details>
#
# **3.** 128 nodes, 4 processes each, 1,250 files per import, a server of 20,000 opens per second. How long, if each
# open reaches it? (a) 0.06 s. (b) 8 s. (c) 32 s.
#
# <details>
# <summary>Answer</summary>
#
# **(c)**. 512 × 1,250 / 20,000 = 32 s. (a) is one process alone. (b) is one process per node.
#
# </details>

# %% [markdown] id="next"
# ## Next
#
# Notebook 01, [Count the cost of small files](01_count_the_cost_of_small_files.ipynb), measures what one open, one read
# and one inode cost.
