# %% [markdown] id="top"
# # 00 · Start here
#
# **Minutes** 15 · **Machine** any Linux computer with two CPUs · **Needs** nothing · **Data** none
#
# In many training jobs the GPU waits for data. It could process thousands of images per second, but each image is a
# file of its own. Each file must be found, opened and read, while many other jobs use the same file system.
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
# *The map of the course. The lengths are schematic; you will measure the real ones.*
#
# Many clusters keep data on a *parallel file system*, such as *Lustre*: many servers that look like one folder.
#
# The whole course takes two days. *Optional* sections can always wait. If something breaks, look it up in
# [12 · When it breaks](12_when_it_breaks.ipynb). The [glossary](../docs/glossary.md) explains the terms.
#
# <details>
# <summary>You have only three hours?</summary>
#
# Take 01 (sections 2 to 4), 05 (1, 2, 4, 6), 08 (1, 3), 07 (3, 4), and the chart of 11 (5) with your own data. Skip a
# *Recall* of a notebook that you left out. For masks, numbers and tables of your own, see
# [13](13_bring_your_own_data.ipynb).
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
# data, and says how long the notebook takes. Run it with **Shift+Enter**. If a later cell says `name 'setup' is not
# defined`, this one has not run yet.

# %% id="start"
import sys

sys.path.append("..")  # finds the course's package, whatever the kernel
from helpers import figures, show, start

setup = start("00")

# %% [markdown] id="machine" tags=["core"]
# ## 1 · Ask the machine what it is
#
# Many programs start one worker (a process that loads data) per CPU, so they ask the operating system how many CPUs
# there are. On a cluster the answer is a trap: the node may have 128 CPUs while your job was given 4.
#
# > **Predict.** The set-up cell says how many CPUs this kernel may use. Are more installed? The next cell shows both
# > numbers.

# %%
import os

from smallfiles import machine

guess = None  # change me: CPUs installed
f"installed: {os.cpu_count()} (your guess: {guess}); for this kernel: {machine.usable_cpus()}"

# %% [markdown]
# `os.cpu_count` counts the installed CPUs, `usable_cpus` those that Linux lets this process use. Start as many workers
# as the second number allows.
#
# If several processes share these CPUs, divide by their number. For example, `torchrun --nproc-per-node=gpu` starts one
# process per GPU, and each sees all CPUs of the job.
#
# If both numbers are equal, nothing enforces a limit here. But a batch system may only name one, so in a job obey
# `$SLURM_CPUS_PER_TASK` too. The next cell sets a limit, shows both numbers again, and lifts it.
#
# > **Predict.** What do the two numbers become?

# %%
guess = None, None  # change me: installed, for this kernel
allowed = os.sched_getaffinity(0)
os.sched_setaffinity(0, {min(allowed)})  # one CPU for this thread and what it starts
limited = os.cpu_count(), machine.usable_cpus()
os.sched_setaffinity(0, allowed)
f"{limited}; your guess was {guess}"

# %% [markdown]
# With memory it is the same: your job may get less than is installed. The cell shows the smaller of the two, and who
# set it. A job that needs more is killed, not slowed down.

# %%
from smallfiles.progress import bytes_text

limit = machine.memory_limit()
f"{bytes_text(limit.limit_bytes)}, limited by {limit.source}"

# %% [markdown]
# A file system has two limits. One is its size in bytes. The other is the number of *inodes*: each file and each folder
# takes one, however small it is. Quotas on clusters limit both.
#
# > **Predict.** The set-up cell says what is free here. If you fill this file system with photos of 100 kB, what runs
# > out first, bytes or inodes?

# %%
guess = None  # change me: "bytes" or "inodes"
place = machine.filesystem(setup.scratch)
inodes = "not counted" if place.inodes_free is None else f"{place.inodes_free:,} free"
print(f"{place.kind}: {bytes_text(place.free_bytes)} free; inodes: {inodes}")
print(f"room for {place.free_bytes // 100_000:,} photos by bytes, for one per free inode by inodes; your guess: {guess}")

# %% [markdown]
# The folded cell draws both limits, as photos, for each file system at hand. (A *folded* cell holds code to skip at
# first. Click on its bar to open it.)

# %% jupyter={"source_hidden": true}
from helpers import machine_report

picture = machine_report.describe(setup.scratch)
show.figure(machine_report.draw(picture), alt=picture.alt_text)

# %% [markdown]
# Of each pair of bars the shorter one decides; the title is computed from it. Grey bars are memory: files there count
# against the memory limit above.
#
# For files of another size, read the label of the inode bar, which gives the free bytes for each free inode. If your
# files take more than that on disk (usually 4 kB at least), bytes run out first. If they take less, inodes do. Then "No
# space left on device" appears although many bytes are free.
#
# On a cluster your *quota*, the part that you may use, is often far tighter, above all in inodes. If a tool reports it,
# the figure has bars for it. If not, ask your site.
#
# > **Predict.** A quota is 2 TB and 3 million inodes. How many photos of 100 kB fit: 3, 20 or 23 million?

# %%
guess = 20_000_000  # change me: photos in the quota
quota_bytes, quota_inodes = 2_000_000_000_000, 3_000_000  # change me: your quota
room = {
    f"bytes: {bytes_text(quota_bytes)}": quota_bytes // 100_000,
    f"inodes: {quota_inodes:,}": quota_inodes,
}
first = min(room, key=room.get).partition(":")[0]
title = f"The quota has room for {min(room.values()):,} photos of 100 kB, then the {first} run out"
x = "photos of 100 kB that there is room for"
figures.bars(room, title, x=x, guess=guess, groups=("bytes", "inodes"), counted=True)

# %% [markdown]
# The `doctor` examines all of this and more; skip the names that you do not know yet. It marks a line as fine (✓),
# needing attention (!) or failed (✗), and has advice for the last two kinds.

# %%
from smallfiles import doctor

findings = doctor.examine()
for finding in findings:
    print({"ok": "✓", "warn": "!", "fail": "✗"}[finding.verdict], finding.name, "·", finding.value)

# %%
odd = [finding for finding in findings if finding.verdict != "ok"]
for finding in odd:
    show.say(f"**{finding.name}**: {finding.advice}")
show.say(f"{len(odd) or 'None'} of {len(findings)} lines need attention.")

# %% [markdown] id="imports" tags=["core"]
# ## 2 · Count the files behind one import
#
# A Python package is a tree of small files too. At an `import`, Python must find, open and read every module.
#
# To count them, we start a fresh Python with an *audit hook*, a function that Python calls at each open. The hook
# misses shared libraries, because the linker opens them and not Python. So we add the files that the process has
# mapped into its memory.

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
    return [
        path for path in end.stdout.splitlines() if os.path.isfile(path) and not path.startswith("/proc/")
    ]


# %% [markdown]
# > **Predict.** How many files does `import torch` open in a fresh Python: 10, 100 or 1,000? Write your number into the
# > next cell. The figure shows the answer.

# %%
guess = 100  # change me: files that import torch opens

# %%
opened = {f"import {module}": files_opened_by(module) for module in ("torch", "numpy", "json")}
counts = {name: len(paths) for name, paths in opened.items()}
size = sum(map(os.path.getsize, opened["import torch"]))
server = 20_000  # change me: opens per second that your file system's server answers
many = 64 * 4 * counts["import torch"]  # 64 nodes with four processes each
print(f"64 nodes: {many:,} opens, {many / server:.0f} s of a server that answers {server:,} per second")
title = f"{counts['import torch']:,} files of {bytes_text(size)} in all lie behind import torch"
figures.bars(counts, title, x="files opened by the import, and libraries mapped", guess=guess, guess_of="import torch")

# %% [markdown]
# Even `import json` opens some files of Python itself.
#
# On your own disk an open takes microseconds. On a parallel file system it is a request over the network, to a server
# that all users share. Suppose that the environment lies there, and 64 nodes start four processes each. Then the server
# gets some 256 times the opens of `import torch` before the first image is read. The line above the figure says how
# long they take.
#
# There are more requests: some 700 opens that find no file, and 20,000 `stat` calls (by `strace`, PyTorch 2.15). Most
# repeat others, so the node's cache answers.
#
# The remedy is one file for the whole environment
# ([06.5](06_read_a_squashfs_image.ipynb#5-·-Put-an-environment-into-one-file)).

# %% [markdown] id="order" tags=["optional"]
# ## 3 · Run cells in order
#
# *Optional, 3 minutes, if you are new to notebooks.* A *kernel* runs behind the page: one Python process that keeps all
# its variables until it ends. It does not know where on the page a cell is, only the order in which cells arrive.
#
# > **Predict.** The next two cells start a counter and increase it. What does the second cell show if you run it three
# > times? And if you then run the first cell again, and the second once more?

# %%
counter = 0

# %%
counter += 1
counter

# %% [markdown]
# Three runs give 3. After you run the first cell again, the next run gives 1. The number in brackets to the left of a
# cell shows the order in which cells ran.
#
# The remedy is always the same: **Kernel > Restart Kernel and Run All Cells** starts a fresh process and runs the page
# from top to bottom. If a cell shows an error, run the cells above it first.

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
# The circle means that nothing has been tried yet. Now we fill the gap, in a hurry.
#
# > **Predict.** Is the next cell right? What should it return for 96 files in 4 folders? The check says it.


# %% tags=["raises-exception"]
def inodes_of_a_copy(files: int, folders: int) -> int:
    return files


check.inodes_of_a_copy(inodes_of_a_copy)

# %% [markdown]
# The cross comes with the first case that failed, and often a guess at the mistake behind it. Correct the function
# above and run it again. Our solution is in the folded cell.


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
# A login node, a compute node and a job on it have different CPUs, limits and file systems. Run this command on the
# login node and inside a job, and compare the first lines:

# %%
show.command(picture)

# %% [markdown] id="key-points"
# ## Key points
#
# - Ask for the CPUs and memory that you may use, not for those that are installed.
# - A file system is full when its bytes or its inodes run out, whichever comes first.
# - One `import` opens tens of files, or more than a thousand; a job on many nodes multiplies that.
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
# **(c)**. Four processes share 32 CPUs. (a) 512 workers would take turns on 32 CPUs. (b) Each process sees 32, so there
# would be 128 workers on 32 CPUs.
#
# </details>
#
# **2.** "No space left on device", but `df -h` shows free space. What do you check? (a) The inodes. (b) The memory. (c)
# The speed of the disk.
#
# <details>
# <summary>Answer</summary>
#
# **(a)**. `df -i` shows how many are left. A full quota says `Disk quota exceeded`. On Lustre, one full group of disks
# (a *target*) gives the same message: `lfs df -h` shows it. (b) Too little memory ends a process, with a different
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
