# %% [markdown] id="top"
# # 06 · Read a squashfs file without mounting it
#
# **Minutes** 35 · **Machine** any Linux computer with two CPUs; shows more if `squashfuse` is installed · **Needs**
# notebook 04 · **Data** 400 synthetic images
#
# A squashfs file contains a whole folder tree. Once written, it cannot be changed. Linux can mount it, and then every program
# sees the files again. Where mounting is not allowed, a library can read it. In this notebook, an *image* is a photograph, and the
# archive is called a *squashfs file*.
#
# The 35 minutes are for *Look inside* and sections 1 to 3. Do the other sections if they fit your case:
#
# - section 4: your programs need a mount,
# - section 5: you want to check a file with a second program,
# - section 6: your data is text,
# - section 7: your Python environment starts slowly.

# %% [markdown] id="questions"
# ## Questions
#
# - Which settings make a squashfs file slow to read?
# - Why does a reader return correct samples in one process, and wrong samples in two?
# - Do I need a mount?
# - When does compression make reading faster?
# - What if my Python environment has more files than my quota allows?

# %% [markdown] id="objectives"
# ## After this you can
#
# - pack a squashfs file that is fast to read at random,
# - write a reader that is correct in several workers and threads,
# - read a squashfs file without a mount, or bind it into a container,
# - find the bandwidth below which compression pays,
# - put an environment into one file.

# %% [markdown] id="setup"
# ## Set up
#
# Most findings are counts, and a busy machine does not change them. It hardly changes processor times either. But it does
# change the rates of sections 4 and 5 and the seconds of section 7.

# %% id="start"
import sys

sys.path.append("..")
from helpers import figures, show, start

setup = start("06")

# %%
import io
import os
import random
import time
from functools import partial

import numpy as np
from PIL import Image

from pysquashfs import SquashFS
from smallfiles import formats, measure
from smallfiles.pack import PackConfig, pack
from smallfiles.progress import bytes_text

# %% [markdown] id="recall"
# > **Recall** (04). Images of 100 kB are stored in chunks of 1 MiB. How many bytes must be read for one random image?
#
# <details>
# <summary>Answer</summary>
#
# At least one whole chunk, which is ten times the size of the image. If the image lies across the border of two chunks, both
# chunks must be read.
#
# </details>

# %% [markdown] id="inside"
# ## Look inside
#
# We pack the images into one file. The suffix `.sqfs` chooses the format.

# %%
source = setup.source()
packed = setup.scratch / "train.sqfs"
packed.unlink(missing_ok=True)
report = pack(source, packed, PackConfig())
print(f"{report.samples:,} images, {bytes_text(report.file_bytes)}, {report.files} files")

# %% [markdown]
# The second file contains the content digest. Keep it. Squashfs stores no checksums of data that is not compressed (*raw*
# data). If a bit flips there, only the content digest shows it.
#
# `SquashFS` finds files by their paths. `formats.open` finds samples by their numbers:

# %%
with SquashFS(packed) as opened:
    name = opened.paths[-1]
    print(f"{len(opened)} files; {name} contains {len(opened.read(name)):,} bytes")

reader = formats.open(packed)
print(f"key {reader.key(7)}, target {reader.target(7)}, begins and ends at {reader.span(7)[1:]}")

# %% [markdown]
# The labels and the order of the samples are in a table inside the squashfs file. The table belongs to none of the files, so
# a mount shows only the images.

# %% [markdown] id="fragments" tags=["core"]
# ## 1 · Leave out fragments
#
# Squashfs cuts files into *blocks*. Several small files, and the last pieces of large files, can share one block, which is
# called a *fragment*. This saves space. But a compressed block can only be unpacked as a whole.
#
# How much must be unpacked to read one image? We write 240 of the images three times with gzip:

# %% tags=["slide"]
from pysquashfs import pack as write_squashfs

photos = [(reader.key(index), bytes(reader.read(index))) for index in range(240)]
joined = {
    "fragments of 1 MiB": {"fragments": True, "block_bytes": 1 << 20},
    "fragments of 128 KiB": {"fragments": True},
    "no fragments": {},
}

# %% [markdown]
# The program `mksquashfs` makes fragments of 128 KiB by default. `info` reports the *read factor* of notebook 04, here counted
# in bytes to unpack.
#
# > **Predict.** What is the read factor with fragments of 1 MiB: 1, 3, or 9?

# %% tags=["slide"]
guess = None  # your guess: read factor
unpacked = {}
for name, options in joined.items():
    path = setup.scratch / f"{name}.sqfs"
    write_squashfs(path, photos, overwrite=True, compression="gzip", **options)
    unpacked[name] = SquashFS(path).info()["read_amplification"]
most = max(unpacked.values())
title = f"With fragments of 1 MiB, a read unpacks {most:.0f} times the image's size"
figures.bars(unpacked, title, x="read factor: bytes to unpack per byte", counted=True, guess=guess)

# %% [markdown]
# A fragment of 1 MiB contains about ten images, and all of them must be unpacked to read one. A fragment of 128 KiB has room
# for only one image and perhaps the last piece of another one, so for most images little else must be unpacked.
#
# **Finding.** Without fragments, a read unpacks only its own image.
#
# We measured compressed fragments. From a fragment that is not compressed, our library reads only the bytes of the image. A
# mount still reads the whole fragment.

# %% [markdown] id="settings" tags=["core"]
# ## 2 · Leave photographs uncompressed
#
# Squashfs compresses blocks by default, and photographs are compressed already. What do we save if we compress photographs
# again, and what does it cost?
#
# > **Predict.** Suppose that a random read of a raw image takes time 1. How long does a read of a gzip-compressed image take:
# > 2, 20 or 200?

# %% tags=["slide"]
guess = None  # your guess: how many times as long as raw
written, photo_bytes = {}, sum(len(data) for _, data in photos)
for name, compression in {"raw": "none", "zstd": "zstd", "gzip": "gzip"}.items():
    path = setup.scratch / f"{name}.sqfs"
    write_squashfs(path, photos, overwrite=True, compression=compression)
    written[name] = SquashFS(path)
    share_raw = written[name].info()["share_raw"]
    print(f"{name}: {path.stat().st_size / photo_bytes:.1%} of the size; {share_raw:.0%} is raw")

# %% [markdown]
# We count processor time, because other programs hardly change it.

# %% tags=["slide"]
def read_all(opened):
    for key in random.sample(opened.paths, len(opened)):  # in another order in each round
        opened.read(key)
    return len(opened)


def cpu_s(opened):
    began = time.process_time()
    read_all(opened)
    return time.process_time() - began

# %% [markdown]
# The folded cell measures each file, decodes the images, and draws the times.

# %% tags=["slide"] jupyter={"source_hidden": true}
cpu = {}
for name, opened in written.items():
    read_all(opened)  # the first round is slower, and does not count
    cpu[name] = [cpu_s(opened) / len(opened) for _ in range(5)]
began = time.process_time()
for _, data in photos:
    Image.open(io.BytesIO(data)).load()
cpu["decode"] = [(time.process_time() - began) / len(photos)]
raw_s = np.median(cpu["raw"])
times = {name: np.array(runs) / raw_s for name, runs in cpu.items()}
title = f"Reading a gzip-compressed image takes about {np.median(times['gzip']):.0f} times as long as a raw one"
x, note = "processor time per image, relative to a raw read", f"warm page cache; 1 is {1e6 * raw_s:.0f} µs"
show.figure(figures.bars(times, title, x=x, base="raw", note=note, log=True, guess=guess, guess_of="gzip"))

# %% [markdown]
# **Finding.** Compressing a photograph again saves almost nothing, and it makes reading slower: 8 to 40 times with gzip, and
# up to about twice with zstd. Zstd cannot shrink most blocks, so it stores them raw, and only the others must be unpacked.
# Gzip shrinks nearly every block by less than 1 %, so nearly every block must be unpacked.
#
# On a cluster each read also waits for its bytes, so the factor is smaller. The CPU time for unpacking stays, and decoding needs
# those CPUs. (Gzip takes a seventh to a quarter of the time of decoding.)
#
# `mksquashfs` uses gzip by default, and fragments for small files. `info` finds such faults in any squashfs file, and
# `python -m pysquashfs info FILE` prints the same:

# %%
facts = SquashFS(setup.scratch / "fragments of 1 MiB.sqfs").info()
print(*facts["findings"], "Better:", facts["recommended"], sep="\n")

# %% [markdown]
# The last line avoids both faults:
#
# - `-noD` and `-noF` leave data and fragments uncompressed.
# - `-no-fragments` stores each file separately.
# - `-no-xattrs`, `-all-root` and the two times of 0 make equal folders give equal bytes.

# %% [markdown] id="sharing" tags=["core"]
# ## 3 · Share one file between workers
#
# Notebook 04 ([section 4](04_pack_hdf5.ipynb#4-·-Close-the-file-before-workers-start)) showed that forked workers share the
# *position* of an open file. In plain Python, `seek` moves it, and `read` starts there. So one worker moves the place at which
# the other one reads. Does anybody notice?
#
# `places` says where each image begins and ends in the squashfs file. With `buffering=0`, each `seek` and `read` goes to the
# kernel, and not to a buffer of Python. A pause of 10 µs makes the mistake frequent. The last line counts the wrong samples in
# one process.

# %% tags=["slide"]
places = [reader.span(index)[1:] for index in range(len(reader))]
truth = [bytes(reader.read(index)) for index in range(len(reader))]
file = open(packed, "rb", buffering=0)


def seek_then_read(index):
    start, stop = places[index]
    file.seek(start)
    time.sleep(1e-5)  # other processes can run between the two calls
    return file.read(stop - start)


sum(seek_then_read(index) != truth[index] for index in range(len(truth)))

# %% [markdown]
# Nothing is wrong. Now two workers of a `DataLoader` use the same function. The `Dataset` compares each sample with the right
# one. If a sample is wrong, the `Dataset` also tries to decode it with Pillow.
#
# > **Predict.** What percentage of the wrong samples does Pillow decode without an error: 0, 30, 75 or 100?

# %%
from torch.utils.data import DataLoader, Dataset, RandomSampler

guess = None  # your guess: percent of the wrong samples that are decoded without an error


class Compared(Dataset):
    def __init__(self, read):
        self.read = read

    def __len__(self):
        return len(truth)

    def __getitem__(self, index):
        data = self.read(index)
        if data == truth[index]:
            return 0  # right
        try:
            Image.open(io.BytesIO(data)).load()
        except Exception:
            return 1  # wrong, and Pillow refuses it
        return 2  # wrong, and Pillow accepts it


# %% tags=["slide"]
def count_wrong(read):
    """Return how many of 3,000 samples of two workers are wrong: decoded by Pillow, or refused."""
    chosen = RandomSampler(truth, replacement=True, num_samples=3_000)
    settings = {"num_workers": 2, "multiprocessing_context": "fork"}
    found = np.concatenate([*DataLoader(Compared(read), 100, sampler=chosen, **settings)])
    return {"decoded without an error": int((found == 2).sum()), "refused": int((found == 1).sum())}


wrong = {"seek, then read": count_wrong(seek_then_read), "our reader": count_wrong(reader.read)}
bad, ours = (sum(found.values()) for found in wrong.values())
title = f"With seek and read, {bad} of 3,000 samples are wrong; with our reader {ours}"
shares = {what: 100 * count / max(bad, 1) for what, count in wrong["seek, then read"].items()}
x = "share of the wrong samples (%)"
figures.bars(shares, title, x=x, counted=True, guess=guess, guess_of="decoded")

# %% [markdown]
# Worker 1 seeks to image A. Worker 2 moves the shared position to image B. Worker 1 now reads as many bytes as A has, but from
# the start of B. Worker 2 then begins where worker 1 stopped, usually inside a photograph.
#
# Pillow refuses samples that begin in the middle of a photograph, and those that are cut off. But if A is at least as long as
# B, worker 1 gets the whole photograph B with the label of A, and nothing reports it. This is the case for a quarter to a half
# of the wrong samples. Without the pause, few samples are wrong, so a test can easily miss the mistake.
#
# `os.pread` takes the position as an argument, so it does not use the shared one. **Your turn:** use it in `my_reader`, until
# both counts are 0.


# %%
def my_reader(index):
    start, stop = places[index]
    return seek_then_read(index)  # change me: os.pread(file.fileno(), size, position)


count_wrong(my_reader)

# %% [markdown]
# <details>
# <summary>Answer</summary>
#
# `return os.pread(file.fileno(), stop - start, start)`
#
# </details>
#
# **Threads** of one process share an open file, too. So opening the file once per process cures the workers, but not the
# threads. A lock around seek and read makes the threads correct, but then only one of them reads at a time. With `os.pread`, any
# number of threads and forked workers can use the same open file.
#
# <details>
# <summary>What else does a reader need?</summary>
#
# `os.pread` may return fewer bytes than you asked for, so read on until all have arrived. At the end of the file, it returns no
# bytes. And an open file cannot be pickled, so a worker that is not forked must open the file itself. A method `__reduce__`
# returns what is sent to such a worker: the class, and the arguments with which to call it.
#
# </details>
#
# You can now solve [exercise 06](../exercises/06_read_a_squashfs_image.ipynb).

# %% [markdown] id="mount" tags=["optional"]
# ## 4 · Read without a mount
#
# *Optional, 5 minutes.* A program can read the images in three ways: as plain files, as files of a mounted squashfs file, or
# with the library. How many files does each way open, and which way is fastest?
#
# Files of a mount are read with the same calls as plain files:

# %%
keys = [reader.key(index) for index in random.Random(1).sample(range(len(reader)), len(reader))]


def read_files(folder):
    for key in keys:
        with open(f"{folder}/{key}", "rb", buffering=0) as file:
            file.read()
    return len(keys)


def read_library(opened):
    return sum(1 for key in keys if opened.read(key))


# %% [markdown]
# To count opens, the folded cell uses an *audit hook* (notebook 00). Then it measures the rates. It mounts the file in two ways,
# if this machine allows them: by the kernel itself, and with *FUSE*, where a helper program reads the squashfs file for the
# kernel.

# %% jupyter={"source_hidden": true}
from contextlib import ExitStack

from pysquashfs import mount
from pysquashfs.mounting import how_to_mount

works = [way.name for way in how_to_mount(packed) if way.available and way.inside]  # inside: from this running program
mounts = {"FUSE" if "fuse" in name else name: name for name in reversed(works)}
opens, totals, counts = [], {}, {}


def count(event, about):
    if event == "open" and not f"{about[0]}".startswith("/proc"):  # there the library looks up the file system
        opens.append(about[0])


sys.addaudithook(count)
with ExitStack() as stack:
    opened = SquashFS(packed)
    to_open = {"library": len(opens)}  # it reads the index when it opens the file
    ways = {"plain files": partial(read_files, source.root), "library": partial(read_library, opened)}
    for kind, way in mounts.items():
        ways[f"mount ({kind})"] = partial(read_files, stack.enter_context(mount(packed, way=way)))
    for name, work in ways.items():
        opens.clear()
        work()
        totals[name] = len(opens) + to_open.get(name, 0)
        counts[name] = f"{name}, {totals[name]:,} open{'s' * (totals[name] > 1)}"
    speeds = measure.compare({counts[name]: work for name, work in ways.items()}, rounds=5, unit="images")
best = {name: max(speeds.rates_per_s(name)) for name in speeds.runs}
plain, library = counts["plain files"], counts["library"]
title = f"With {totals['library']} opens, the library reads {best[library] / best[plain]:.1f} times as many images per second as plain files"
axis = {"x": "images per second", "note": "best of 5 runs; all in the page cache"}
show.figure(figures.bars(best, title + "; no mount works here" * (not mounts), base=plain, **axis))

# %% [markdown]
# **Finding.** The library opens the squashfs file once for the index and once for all images. Then it looks up each image in
# its index and copies the bytes from a memory map, so it is the fastest way here. (On a parallel file system, it reads with
# `pread` instead of a memory map.) From a mount, each image needs an open. With FUSE, each open also waits for the helper
# program, so that is the slowest way.
#
# A program that you cannot change needs files, and so a mount. In a container, Apptainer can mount the file for you
# ([manual](https://apptainer.org/docs/user/latest/bind_paths_and_mounts.html)):
#
# ```bash
# apptainer exec --mount type=bind,src=data.sqfs,dst=/data,image-src=/,ro image.sif python train.py /data
# ```

# %% [markdown] id="back-ends" tags=["optional"]
# ## 5 · Check one back end with the other
#
# *Optional, 3 minutes.* How do you know that a reader returns the right bytes? Read the file with a second program that was
# written independently. `SquashFS` has two such *back ends*. One is written in Python. The other is the C library of
# squashfs-tools-ng, if it is installed (`apt-get install libsquashfs1`). Do they return the same bytes, and is C faster?

# %%
from pysquashfs.libsquashfs import available

back_ends = ("python", "libsquashfs") if available() else ("python",)
readers, wrong = {}, 0
for kind in ("raw", "gzip"):
    for name in back_ends:
        opened = SquashFS(setup.scratch / f"{kind}.sqfs", backend=name)
        wrong += sum(opened.read(key) != data for key, data in photos)
        readers[f"{kind}, {name}"] = partial(read_all, opened)
print(f"{wrong} of {len(readers) * len(photos)} images differ")

# %% [markdown]
# The folded cell compares their rates.

# %% jupyter={"source_hidden": true}
speeds = measure.compare(readers, rounds=5, unit="images", bar=False)
rate = {name: np.median(speeds.rates_per_s(name)) for name in readers}
title = f"Raw images are read {rate['raw, python'] / rate['gzip, python']:.0f} times as fast as with gzip"
if len(back_ends) == 2:
    ratios = [rate[f"{kind}, python"] / rate[f"{kind}, libsquashfs"] for kind in ("raw", "gzip")]
    title += f"; the back ends differ by a factor of {max(max(ratio, 1 / ratio) for ratio in ratios):.1f}"
figures.bars(speeds, title, log=True)

# %% [markdown]
# **Finding.** Both return the same bytes. From a compressed file both take about the same time, because both spend it in zlib.
# From a raw file, C is no faster; on a calm machine Python was 1.2 times as fast.
#
# By default, `SquashFS` uses Python, unless only the C library can unpack the file (for example, one packed with lzma). `info()`
# says which back end reads, and why.

# %% [markdown] id="compression" tags=["optional"]
# ## 6 · Compress what compresses
#
# *Optional, 5 minutes.* Photographs are compressed already, but annotations are not. They are often JSON, which repeats
# itself and becomes several times smaller with zstd. Unpacking costs time; fetching fewer bytes saves time. On slow storage you
# save more than you pay. Below which bandwidth is that true?
#
# The folded cell makes 300 documents, and the next packs them raw and with zstd.

# %% jupyter={"source_hidden": true}
import json


def document(number):
    chance = random.Random(number)
    boxes = [
        {"id": chance.randrange(10**6), "bbox": [round(chance.uniform(0, 640), 2) for _ in range(40)]}
        for _ in range(chance.randrange(5, 40))
    ]
    return f"{number % 10}/{number:06}.json", json.dumps({"width": 640, "objects": boxes}, indent=1).encode()


documents = [document(number) for number in range(300)]

# %%
texts, stored = {}, {}
for name, options in {"raw": {}, "zstd": {"compression": "zstd"}}.items():
    write_squashfs(setup.scratch / f"text-{name}.sqfs", documents, overwrite=True, **options)
    texts[name] = SquashFS(setup.scratch / f"text-{name}.sqfs")
    stored[name] = texts[name].info()["image_bytes"] / len(documents)
    print(f"{name:5} {stored[name]:7,.0f} bytes per file")

# %% [markdown]
# The folded cell counts the processor time of a read from memory. It adds the time to fetch the stored bytes at each bandwidth.

# %% jupyter={"source_hidden": true}
read_s = {name: min(cpu_s(file) for _ in range(6)) / len(file) for name, file in texts.items()}
bytes_s = np.geomspace(50e6, 10e9, 41)
rates = {name: {b: 1 / (each_s + stored[name] / b) for b in bytes_s} for name, each_s in read_s.items()}
longer_s = read_s["zstd"] - read_s["raw"]
pays = (stored["raw"] - stored["zstd"]) / longer_s if longer_s > 0 else bytes_s[-1]
title = f"zstd is faster where the storage gives one reader less than about {float(f'{pays:.2g}') / 1e6:,.0f} MB/s"
title, marks = (title, {"raw = zstd": pays}) if longer_s > 0 else ("Here zstd is faster at every bandwidth", None)
axes = {"x": "what one reader gets from the storage (B/s)", "y": "files per second", "log": "xy"}
note = "computed from the processor time of a read from memory"
show.figure(figures.lines(rates, title, **axes, marks=marks, note=note))

# %% [markdown]
# **Finding.** Left of the dotted line, compressed text is faster, because fetching fewer bytes saves more time than unpacking
# costs. On which side is your storage? For a packed file on that storage, `smallfiles bench read --order sequential --cache
# cold FILE` prints the samples per second of one reader. Multiply them by the size of a sample.
#
# This is true if one request fetches many files. If each file needs its own request, you wait for each one, for example
# 0.5 ms. Compared with that, the transfer time that you save is small.

# %% [markdown] id="environment" tags=["optional"]
# ## 7 · Put an environment into one file
#
# *Optional, 6 minutes.* A Python environment consists of small files, too, since most modules are files of their own. At the start
# of a job, all processes open them in the same second. How many requests does one import send to the storage, and how many if
# the package is one squashfs file?
#
# The folded cell compiles the package `networkx` to `.pyc` files, packs it into one file, and counts the modules that its import
# loads. Without FUSE, the measurement below is missing.

# %% jupyter={"source_hidden": true}
import compileall
import py_compile
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from pysquashfs.writer import folder_items

COUNT = """import sys, networkx
mine = (module for key, module in list(sys.modules.items()) if key.split('.')[0] == 'networkx')
print(sum(bool(getattr(module, '__file__', None)) for module in mine))"""
modules = int(subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, check=True).stdout)
place = setup.scratch / "environment"
shutil.rmtree(place, ignore_errors=True)
shutil.copytree(Path(find_spec("networkx").origin).parent, place / "files" / "networkx")
by_hash = py_compile.PycInvalidationMode.UNCHECKED_HASH  # our writer stores no times
compileall.compile_dir(place / "files", quiet=2, force=True, invalidation_mode=by_hash)
made = write_squashfs(place / "packages.sqfs", folder_items(place / "files"), compression="gzip")
print(f"import networkx loads {modules} modules, each from a file of its own")
print(f"{made.files:,} files, {bytes_text(made.bytes)}; one file, {bytes_text(made.image_bytes)}")

# %% [markdown]
# > **Predict.** How many requests does importing `networkx` send to the metadata server, from many files and from one squashfs
# > file?

# %%
guess = {"many files": None, "one squashfs file": None}  # your guesses: requests

# %% [markdown]
# The folded cell imports it from both, each time in a new Python, from storage that takes 2 ms for each request to the metadata
# server. It counts these requests, and it measures the time, which includes the mount.

# %% jupyter={"source_hidden": true}
from contextlib import nullcontext
from time import perf_counter

from pysquashfs import mount
from pysquashfs.mounting import how_to_mount
from smallfiles.slowfs import SlowConfig, open_slow


def import_from(place, slow):
    """Return the seconds of mounting and of a new Python, and the requests to the metadata server."""
    began = perf_counter()
    with measure.requests(slow) as asked, place as folder:
        variables = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        subprocess.run([sys.executable, "-c", "import networkx"], env=variables, cwd=folder, check=True)
        seconds = perf_counter() - began
    return seconds, asked["metadata"]


fuse = [way.name for way in how_to_mount(place / "packages.sqfs") if way.available and way.inside and "fuse" in way.name]
imports = {}
with open_slow(place, SlowConfig(latency_s=0.002)) as slow:
    if slow.how == "fuse":
        imports["many files"] = import_from(nullcontext(slow.path / "files"), slow)
    if slow.how == "fuse" and fuse:
        imports["one squashfs file"] = import_from(mount(slow.path / "packages.sqfs", way=fuse[0]), slow)
for name, (seconds, requests) in imports.items():
    print(f"{name:18} {requests:6,} requests (your guess: {guess[name]}), {seconds:5.1f} s")
if not imports:
    print(slow.summary)
elif not fuse:
    print("one squashfs file: not measured, because it cannot be mounted with squashfuse here")

# %% [markdown]
# **Finding.** From many files, Python sends at least four requests for each module, because it looks for the module in several
# places, and it waits for each request. From one file, the mount on this node answers the look-ups, so the metadata server
# receives only a few requests. (Reads are neither counted nor delayed here, so real storage takes longer.)
#
# So one file helps if **many nodes** start at once, because then the metadata server is the limit. It also counts as only one
# file in your quota. On **one small machine**, it does not help, because the program that serves the mount must answer for each
# new page of a library, and this costs CPU time. We let eight ranks on two simulated nodes import torch
# (`slurm/env/README.md`):
#
# | | many files | one squashfs file |
# |---|---|---|
# | requests, if nodes remember no names | 8,208 opens, 51,488 look-ups | 2 opens, 5 look-ups |
# | seconds on two busy cores | 72 | 98 |
#
# Pack your environment once. You need `mksquashfs`, and the nodes must have the same base Python:
#
# ```bash
# slurm/env/build.sh venv.sqfs .venv
# ```
#
# In each job, copy it to the nodes and mount it:
#
# ```bash
# source slurm/lib.sh; use_environment venv.sqfs
# ```
#
# Then start programs with `python -m …`, for example `python -m torch.distributed.run` in place of `torchrun`. Scripts such
# as `torchrun` would still run the old environment.

# %% [markdown] id="exercise"
# ## Exercise
#
# [Exercise 06](../exercises/06_read_a_squashfs_image.ipynb): a reader opens the file in each process, and it still returns
# wrong samples in threads. Find out why, and fix it.

# %% [markdown] id="cluster"
# ## On the cluster
#
# `slurm/submit SITE 06_pack_squashfs` runs this command in a job:

# %%
show.command(PackConfig(), "DATA_FOLDER", "train.sqfs")

# %% [markdown] id="key-points"
# ## Key points
#
# - Store photographs raw and without fragments. Compressing them makes reading slower and saves almost nothing.
# - Forked workers and threads share the file position of an open file. So say in each read where to read (`os.pread`).
# - A library needs no mount and no root rights. A mount is for programs that need files. Apptainer can bind a squashfs file
#   into a container.
# - Compress text with zstd. In long reads it is faster below a bandwidth that you can measure.
# - If an environment is one squashfs file, an import sends a fraction of the requests.

# %% [markdown] id="quiz"
# ## Check yourself
#
# **1.** A `train.sqfs` of photographs is as large as the folder, but random reads are slow. What do you suspect first?
# (a) Squashfs is slow. (b) It was packed with the defaults, above all gzip. (c) It must be mounted.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**. The size does not show it, because photographs cannot be compressed further. `python -m pysquashfs info` shows it.
# (a) A squashfs file that is raw and without fragments is not slow. (c) A mount must unpack the same blocks.
#
# </details>
#
# **2.** Your reader opens the file in `__init__` and calls `seek`, then `read`. With 0 workers all
# samples are right. What happens with 2 *forked* workers (the default on Linux up to Python 3.13)? (a) An exception is raised.
# (b) The reader returns some wrong samples and raises no error. (c) All samples are right, because each worker has its own copy of the object.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**. Each worker has its own Python object, but they share one open file and its position, so (c) is wrong. Each read
# succeeds, only at the wrong place, so the reader raises no exception. At most, the decoder fails later. From Python 3.14 on,
# workers are not forked by default. Then the answer is (a), because an open file cannot be sent to a worker.
#
# </details>
#
# **3.** Your storage gives one reader 2,000 MB/s, and zstd is faster below 900 MB/s. Should you compress annotations that
# are read in long runs? (a) Yes, they become smaller. (b) No, not for speed. (c) No, never compress.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**. At 2,000 MB/s, unpacking costs more time than fetching fewer bytes saves. Compressing may still be right because
# of a quota. (c) is wrong, because at 300 MB/s compressed files are faster.
#
# </details>

# %% [markdown] id="next"
# ## Next
#
# [07 · Stage data to /dev/shm](07_stage_a_dataset.ipynb) copies packed files to the node before the training starts.
