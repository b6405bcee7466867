# %% [markdown] id="top"
# # Exercise 01 · Predict what a million files cost
#
# ★☆☆ · 20 minutes · after [notebook 01](../notebooks/01_count_the_cost_of_small_files.ipynb)
#
# Before you copy a data set to a cluster, you can answer two questions with pencil and paper. Do its files fit into the
# inode quota? And how long does a job wait until all files are open? Write each answer as a function. Then measure the
# second one.

# %% id="start"
import sys

sys.path.append("..")
from helpers import show, start, worksheet

setup = start("ex01")

# %% [markdown] id="task-1"
# ## Task 1: inodes (optional)
#
# You get the relative paths of all files of a data set. Each file needs an inode. Each folder on the way to a file needs
# one, too, and so does the top folder of the data set. Return the number of inodes:
#
# `inodes_needed(paths: list[str]) -> int`


# %% id="answer-1"
def inodes_needed(paths: list[str]) -> int:
    """Inodes of the files, of all folders above them, and of the top folder."""
    # --8<-- solution
    folders = {""}  # the top folder
    for path in paths:
        parts = path.split("/")[:-1]
        folders |= {"/".join(parts[: depth + 1]) for depth in range(len(parts))}
    return len(paths) + len(folders)
    # --8<-- stub
    # raise NotImplementedError  # your code: about five lines that return a whole number
    # --8<-- end


# %% id="check-1"
from exercises.checks import ex01_count_the_cost_of_small_files as check

inodes_verdict = check.inodes_needed(inodes_needed)
inodes_verdict

# %% [markdown] id="hints-1"
# <details>
# <summary>Hint 1: each folder once</summary>
#
# Many files are in the same folder, but the folder counts only once. A `set` contains each element once, however often
# you add it.
#
# </details>
#
# <details>
# <summary>Hint 2: folders in folders</summary>
#
# The file `train/cat/1.jpg` needs `train` and `train/cat`. The loop
# `for parent in PurePosixPath(path).parents` visits both, and the top folder as `.`.
#
# </details>

# %% [markdown] id="task-2"
# ## Task 2: hours
#
# It takes `wait_s` to open a file. `min(in_flight, files)` opens run at the same time. The server can open
# `server_opens_per_s` files per second, which `jobs` equal jobs share. The slower of the two limits decides. Return the
# hours until `files` files are open:
#
# `hours_to_open(files: int, wait_s: float, in_flight: int, server_opens_per_s: float, jobs: int) -> float`


# %% id="answer-2"
def hours_to_open(
    files: int, wait_s: float, in_flight: int, server_opens_per_s: float, jobs: int
) -> float:
    """Hours until all files of one job are open."""
    # --8<-- solution
    waiting_s = files * wait_s / max(1, min(in_flight, files))
    answering_s = files * jobs / server_opens_per_s
    return max(waiting_s, answering_s) / 3600
    # --8<-- stub
    # raise NotImplementedError  # your code: about three lines that return a number
    # --8<-- end


# %% id="check-2"
hours_verdict = check.hours_to_open(hours_to_open)
hours_verdict

# %% [markdown] id="hints-2"
# <details>
# <summary>Hint 1: two times, not two rates</summary>
#
# Compute two times: how long this job waits, and how long the server needs for all jobs. Do not compute rates, because
# a wait of zero would then give a division by zero.
#
# </details>
#
# <details>
# <summary>Hint 2: which of the two</summary>
#
# The server works while the job waits, so the two times do not add up. The longer one decides.
#
# </details>
#
# <details>
# <summary>Hint 3: few files</summary>
#
# Three files cannot have 64 opens in flight. If there is at least one file, the job waits at least `wait_s`. If there is
# none, `min(in_flight, files)` is 0, so do not divide by it.
#
# </details>

# %% [markdown] id="use"
# ## With real numbers
#
# The first cell compares your count with that of the file system. The second cell predicts how long it takes to open the
# demo set on slow storage, and then measures it. There, it takes 4 ms to open a file, because its look-up and its open are
# two requests of 2 ms each. Four servers together open 1,000 files per second. The last cell computes the times for
# ImageNet. It uses the time per file that one thread needed in notebook 01 (reading the bytes included), and the wait of a
# cluster (notebook 01, *On the cluster*). It says which limit decides.

# %% id="count"
import os

source = setup.source()
paths = source.manifest.paths.to_pylist()
if inodes_verdict:
    found = sum(1 + len(files) for _, _, files in os.walk(source.root))  # folders, and their files
    show.say(f"You predict **{inodes_needed(paths):,}** inodes; there are **{found:,}**.")

# %% id="measure"
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

from smallfiles.slowfs import SlowConfig, SlowStore

server = SlowStore(source.store, SlowConfig(latency_s=0.002, servers=4))
buffer_bytes = max(map(source.store.size, paths))
for in_flight in (1, 2, 16) if hours_verdict else ():
    predicted_s = 3600 * hours_to_open(len(paths), 0.004, in_flight, 1_000, 1)
    began = perf_counter()
    with ThreadPoolExecutor(in_flight) as pool:
        read = lambda path: server.read_into(path, memoryview(bytearray(buffer_bytes)))
        list(pool.map(read, paths))
    measured_s = perf_counter() - began
    show.say(f"{in_flight} in flight: predicted {predicted_s:.2f} s, it took **{measured_s:.2f}**.")

# %% [markdown] id="explain"
# The measured time is usually a little longer, because threads must start, the system wakes them up late, and the bytes
# are read, too. On a busy machine it is much longer. The prediction is still good enough to tell an hour from a day.

# %% id="imagenet"
cluster_ms = 4.0  # change me: milliseconds to open a file on your cluster (4.0 above)
here_ms = float(worksheet.value("01", "latency_ms", 0.0))  # from notebook 01, or 0
if hours_verdict:
    server = 2_500  # files per second: a busy server answers 5,000 requests, two per file
    show.say(f"ImageNet, 8 opens in flight, a server that opens {server:,} files per second:")
    here = "Here" if here_ms else "Without a wait"
    for where, wait_ms in {here: here_ms, "On the cluster": cluster_ms}.items():
        wait_s = wait_ms / 1e3
        alone, together = (hours_to_open(1_281_167, wait_s, 8, server, jobs) for jobs in (1, 30))
        limits = ["the wait" if wait_s / 8 > jobs / server else "the server" for jobs in (1, 30)]
        show.say(
            f"{where}, {wait_ms:.2g} ms per file: **{60 * alone:.1f} minutes** for one job "
            f"({limits[0]} decides), "
            f"**{together:.1f} hours** for each of thirty ({limits[1]} decides)."
        )
else:
    show.say("Solve task 2 first. Then this cell and the one before it use your function.")

# %% [markdown] id="own"
# ## On your own folder
#
# Write the path of one of your folders. The cell below lists its files but does not read them. Compare the number of
# inodes with your quota (`smallfiles doctor` shows it).

# %% id="own-folder"
own = os.environ.get("COURSE_DATA", "")  # change me: the path of one of your folders

# %% id="own-check"
from pathlib import Path

seen = None
if own and inodes_verdict:
    seen = check.own_inodes(inodes_needed, Path(own).expanduser())
else:
    show.say("Solve task 1, and write a path into the cell above; then this cell counts.")
seen
