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
# The counts of sections 1, 4 and 7 do not depend on how busy the machine is. Sections 2 and 6 measure processor time, which other
# programs change only a little. But on a busy machine, do not trust the rates of sections 4 and 5 and the seconds of section 7.

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
# The second file contains the *content digest* (notebook 03). Keep it. The images are stored *raw*, which means that they are not
# compressed. Squashfs has no checksums for raw data, so if a bit flips there, only the content digest shows it.
#
# `SquashFS` finds files by their paths. `formats.open` finds samples by their numbers:

# %%
with SquashFS(packed) as opened:
    name = opened.paths[-1]
    print(f"{len(opened)} files; {name} contains {len(opened.read(name)):,} bytes")

reader = formats.open(packed)
print(f"key {reader.key(7)}, target {reader.target(7)}, begins and ends at {reader.span(7)[1:]}")

# %% [markdown]
# The target is the label. The labels and the order of the samples are in a table inside the squashfs file. The table is not part
# of the folder tree, so you see only the images if you mount the squashfs file.

# %% [markdown] id="fragments" tags=["core"]
# ## 1 · Leave out fragments
#
# Squashfs cuts files into *blocks*. A block has at most 128 KiB, unless you choose another size. Several small files, and the last
# pieces of large files, can share one block. Such a shared block is called a *fragment*. Fragments save space. But a compressed
# block can only be unpacked as a whole.
#
# How much must be unpacked to read one image? We will write 240 images three times with gzip and these settings:

# %% tags=["slide"]
from pysquashfs import pack as write_squashfs

photos = [(reader.key(index), bytes(reader.read(index))) for index in range(240)]
joined = {
    "fragments of 1 MiB": {"fragments": True, "block_bytes": 1 << 20},
    "fragments of 128 KiB": {"fragments": True},
    "no fragments": {},
}

# %% [markdown]
# `mksquashfs`, the usual program that writes squashfs files, makes fragments of 128 KiB by default.
#
# The next cell writes the three files and compares their *read factors* (notebook 04). Here, the read factor is the number of
# bytes that must be unpacked, divided by the size of the images. `info` computes it.
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
# A fragment of 1 MiB contains about nine images, and all of them must be unpacked to read one. A fragment of 128 KiB has room
# for only one image and perhaps the last piece of another one, so for most images little else must be unpacked.
#
# **Finding.** Without fragments, only the requested image is unpacked.
#
# If a fragment is stored raw, our library reads only the bytes of the requested image, but a mount still reads the whole fragment.

# %% [markdown] id="settings" tags=["core"]
# ## 2 · Leave photographs uncompressed
#
# Squashfs compresses blocks by default, and photographs are compressed already. What do we save if we compress photographs
# again, and what does it cost?
#
# > **Predict.** Reading a raw image takes some processor time. How many times as much does reading a gzip-compressed image take:
# > 2, 20, or 200?

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
# Each line compares the size of the file with the images, and shows how much of the data is raw. If a block does not become
# smaller, it is stored raw.
#
# What does it cost to unpack the other blocks? We measure processor time, because other programs hardly change it.

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
# The folded cell measures the time to read an image from each of the three files. For comparison, it also measures the time to
# decode an image.

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
title = f"Reading a gzip-compressed image takes about {np.median(times['gzip']):.0f} times as long as reading a raw one"
x, note = "processor time per image, relative to a raw read", f"warm page cache; 1 is {1e6 * raw_s:.0f} µs"
show.figure(figures.bars(times, title, x=x, base="raw", note=note, log=True, guess=guess, guess_of="gzip"))

# %% [markdown]
# **Finding.** Compressing photographs again saves almost nothing, and it makes reading slower. We measured 8 to 40 times the
# processor time with gzip, and up to about twice the time with zstd. Zstd cannot shrink most blocks, so they are stored raw and
# need no unpacking. Gzip shrinks nearly every block, but by less than 1 %, so nearly every block must be unpacked.
#
# On a cluster, each read also waits for the storage, so the factor is smaller there. But unpacking still needs CPUs, and you need
# them for decoding.
#
# By default, `mksquashfs` uses gzip, and fragments for small files. `info` finds both faults in any squashfs file, and so does
# `python -m pysquashfs info FILE` in a shell:

# %%
facts = SquashFS(setup.scratch / "fragments of 1 MiB.sqfs").info()
print(*facts["findings"], "Better:", facts["recommended"], sep="\n")

# %% [markdown]
# The last line is a command that avoids both faults:
#
# - `-noD` and `-noF` leave data and fragments uncompressed. Gzip then compresses only names and file attributes.
# - `-no-fragments` stores each file in blocks of its own.
# - `-no-xattrs`, `-all-root`, `-mkfs-time 0`, and `-all-time 0` leave out extended attributes, and set owners and
#   times to fixed values. So packing the same files again gives
#   the same bytes.

# %% [markdown] id="sharing" tags=["core"]
# ## 3 · Share one file between workers
#
# Notebook 04 ([section 4](04_pack_hdf5.ipynb#4-·-Close-the-file-before-workers-start)) showed that forked workers share the
# *position* of an open file. In Python, `file.seek` moves this position, and `file.read` starts to read there. So one worker can
# move the position just before another worker reads. Does the training notice?
#
# `places` contains where each image begins and ends in the squashfs file. `buffering=0` switches off Python's own buffer, so each
# `seek` and each `read` is a system call. A pause of 10 µs between them makes the mistake frequent. The last line counts the wrong
# samples in one process.

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
# In one process, no sample is wrong. Now two workers of a `DataLoader` use the same function. The `Dataset` compares each sample
# with the right bytes. If a sample is wrong, the `Dataset` also tries to decode it with Pillow.
#
# > **Predict.** What percentage of the wrong samples does Pillow decode without an error: 0, 30, 75, or 100?

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


# %% [markdown]
# We count the wrong samples of `seek_then_read` and of our library's `reader.read`. The bars show what Pillow did with the wrong
# ones.


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
# Pillow refuses samples that begin in the middle of a photograph, and samples that are cut off. But if A is at least as long as
# B, worker 1 gets the whole photograph B with the label of A, and nothing reports the mistake. This happens for a quarter to a
# half of the wrong samples, so 30 is a good guess. Without the pause, few samples are wrong, so a test can easily miss the mistake.
#
# `os.pread` gets the position as an argument, so it does not use the shared position. **Your turn:** change `my_reader` so that it
# calls `os.pread`. Then both counts are 0.


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
# **Threads** of one process share an open file, too. So if each worker opens the file itself, the workers are correct, but their
# threads are not. A lock around seek and read makes the threads correct, but then only one of them reads at a time.
# With `os.pread`, any number of threads and forked workers can use the same open file.
#
# <details>
# <summary>What else does a reader need?</summary>
#
# `os.pread` may return fewer bytes than you asked for, so call it again until all bytes have arrived. At the end of the file, it
# returns no bytes. An open file cannot be pickled, so a worker that is not forked must open the file itself. For this, give your
# class a method `__reduce__`. It returns the class and its arguments, with which the worker makes a new object.
#
# </details>
#
# You can now solve [exercise 06](../exercises/06_read_a_squashfs_image.ipynb).

# %% [markdown] id="mount" tags=["optional"]
# ## 4 · Read without a mount
#
# *Optional, 5 minutes.* A program can read the images in three ways: as plain files, from a mounted squashfs file, or with our
# library. How often does the program open a file in each case, and which way is fastest?
#
# A program reads the files of a mount as it reads plain files, so two functions are enough:

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
# The folded cell counts the opens with an *audit hook* (notebook 00), and then it measures the rates. It mounts the squashfs file
# in two ways, if this machine allows it. Either the kernel itself reads the squashfs file, or a helper program reads it for the
# kernel. The second way is called *FUSE*.

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
# **Finding.** The library opens the squashfs file twice: once to read the index, and once to read all images. It copies each
# image from a memory map, so it is the fastest way here. (On a parallel file system, it uses `pread` instead.) With a mount, the
# program opens each image. With FUSE, each open also waits for the helper program, so this is usually the slowest way.
#
# A program that you cannot change needs files, so it needs a mount. In a container, Apptainer can mount the squashfs file for
# you ([manual](https://apptainer.org/docs/user/latest/bind_paths_and_mounts.html)):
#
# ```bash
# apptainer exec --mount type=bind,src=data.sqfs,dst=/data,image-src=/,ro image.sif python train.py /data
# ```

# %% [markdown] id="back-ends" tags=["optional"]
# ## 5 · Check one back end with the other
#
# *Optional, 3 minutes.* How do you know that a reader returns the right bytes? You can compare its bytes with the output of a second
# program that was written independently. For this, `SquashFS` has two *back ends*. One is our own code in Python. The other is the
# C library of squashfs-tools-ng. If it is not installed (`apt-get install libsquashfs1`), you will see only Python here. Do both
# return the same bytes, and is C faster?

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
title = f"Raw images are read {rate['raw, python'] / rate['gzip, python']:.0f} times as fast as gzip-compressed images"
if len(back_ends) == 2:
    ratios = [rate[f"{kind}, python"] / rate[f"{kind}, libsquashfs"] for kind in ("raw", "gzip")]
    title += f"; the back ends differ by at most a factor of {max(max(ratio, 1 / ratio) for ratio in ratios):.1f}"
figures.bars(speeds, title, log=True)

# %% [markdown]
# **Finding.** Both back ends return the same bytes. They read a compressed file about equally fast, because both spend most of
# the time in the library zlib. C does not read raw files faster either. On a machine without other work, Python was 1.2 times as
# fast as C.
#
# So `SquashFS` uses C only if Python cannot unpack the file, for example because it is compressed with lzma.

# %% [markdown] id="compression" tags=["optional"]
# ## 6 · Compress what compresses
#
# *Optional, 5 minutes.* Photographs are compressed already, but annotations are not. They are often JSON, which repeats
# itself and becomes several times smaller with zstd. Unpacking costs time, but fetching fewer bytes saves time. On slow storage,
# you save more time than unpacking costs. Below which bandwidth is that true?
#
# The folded cell makes 300 JSON documents. The next cell packs them raw and with zstd.

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
# The folded cell measures the processor time of a read from the page cache. Then it adds the time to fetch the stored bytes, which
# it computes for bandwidths from 50 MB/s to 10 GB/s.

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
# **Finding.** Left of the dotted line, reading compressed text is faster, because fetching fewer bytes saves more time than
# unpacking costs.
#
# <details>
# <summary>On which side is your storage?</summary>
#
# The command `smallfiles bench read --order sequential --cache cold FILE` prints how many samples per second one reader gets from
# a packed file. Use a raw file on your storage, and multiply the number by the size of a sample. This gives you the bandwidth.
#
# </details>
#
# The figure assumes that you read in long runs, where one request fetches many files. If you read at random, you wait for each
# file, for example 0.5 ms. Compared with this wait, the time that compression saves is small.

# %% [markdown] id="environment" tags=["optional"]
# ## 7 · Put an environment into one file
#
# *Optional, 6 minutes.* A Python environment consists of small files, too, because each module is usually a file of its own. At
# the start of a job, all processes open these files in the same second. How many requests does one import send to the storage?
# How many does it send if the package is in one squashfs file?
#
# The folded cell compiles the package `networkx` to `.pyc` files and packs it into one squashfs file. It also counts the modules
# that `import networkx` loads. The measurement that follows needs FUSE.

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
# > **Predict.** How many requests does `import networkx` send to the metadata server if the package consists of many files? How
# > many if it is one squashfs file?

# %%
guess = {"many files": None, "one squashfs file": None}  # your guesses: requests

# %% [markdown]
# The folded cell imports the package from both, each time in a new Python process. The storage is simulated, and its metadata
# server takes 2 ms for each request. The cell counts these requests and measures the time, including the mount.

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
# **Finding.** If the package consists of many files, Python sends at least four requests per module, because it looks at the
# folder, at the `.py` and at the `.pyc` file, and it waits for each answer. If the package is one squashfs file, the mount on this node answers the
# look-ups, so the metadata server receives only a few requests. (Reads are neither counted nor delayed here, so an import from
# real storage takes longer.)
#
# So one squashfs file helps if **many nodes** start at once, because then the metadata server is the limit. Your quota also counts
# it as only one file. But the FUSE program must answer whenever Python loads another part of a library. This costs CPU time, so
# on **one small machine**, the squashfs file can be slower. We let eight ranks on two simulated nodes import torch:
#
# | | many files | one squashfs file |
# |---|---|---|
# | requests, if the nodes do not cache file names | 8,208 opens, 51,488 look-ups | 2 opens, 5 look-ups |
# | seconds, if all ranks share two busy cores | 72 | 98 |
#
# (`slurm/env/README.md` describes this measurement.)
#
# <details>
# <summary>How do you use it in your jobs?</summary>
#
# Pack your environment once. You need `mksquashfs`, and the nodes must have the Python with which the environment was made:
#
# ```bash
# slurm/env/build.sh venv.sqfs .venv
# ```
#
# In each job, this line copies the file to all nodes and mounts it there:
#
# ```bash
# source slurm/lib.sh; use_environment venv.sqfs
# ```
#
# Then start programs with `python -m …`, for example `python -m torch.distributed.run` instead of `torchrun`. Scripts such as
# `torchrun` contain the path of the environment in which they were installed, so they would still use the old environment.
#
# </details>

# %% [markdown] id="exercise"
# ## Exercise
#
# In [exercise 06](../exercises/06_read_a_squashfs_image.ipynb), a reader opens the file in each process, and it still returns
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
# - Forked workers and threads share the position of an open file. So read with `os.pread`, which gets the position as an argument.
# - A library needs no mount and no root rights. A mount is for programs that need files. Apptainer can bind a squashfs file
#   into a container.
# - Text becomes several times smaller with zstd. If you read it in long runs from storage with a low bandwidth, zstd also makes
#   reading faster.
# - If an environment is one squashfs file, an import sends far fewer requests to the metadata server.

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
# **2.** Your reader opens the file in `__init__`. For each sample, it calls `seek` and then `read`. With 0 workers, all samples
# are right. What happens with 2 *forked* workers (the default on Linux up to Python 3.13)? (a) An exception is raised. (b) The
# reader returns some wrong samples and raises no error. (c) All samples are right, because each worker has its own copy of the
# object.
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
# **3.** One reader gets 2,000 MB/s from your storage, and a figure as in section 6 shows that zstd is faster below 900 MB/s. Should
# you compress annotations that you read in long runs? (a) Yes, because they become smaller and so reading is faster. (b) No, not
# for speed. (c) No, one should never compress.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**. At 2,000 MB/s, unpacking costs more time than fetching fewer bytes saves. If your quota is nearly used up, compressing
# may still be right. (c) is wrong, because at 300 MB/s, reading compressed files is faster.
#
# </details>

# %% [markdown] id="next"
# ## Next
#
# [07 · Stage data to /dev/shm](07_stage_a_dataset.ipynb) copies packed files to the node before the training starts.
