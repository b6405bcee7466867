# %% [markdown] id="top"
# # 06 · Read a squashfs file without mounting it
#
# **Minutes** 35 · **Machine** any Linux computer with two CPUs; shows more if `squashfuse` is installed · **Needs**
# notebook 04 · **Data** 400 synthetic images
#
# A squashfs file contains a whole folder tree, which cannot be changed. Linux can mount it, and then every program sees the
# files again. Where mounting is not allowed, a library can read it. In this notebook, an *image* is a photograph, and the
# archive is called a *squashfs file*.
#
# The 35 minutes are for *Look inside* and sections 1 and 4. Do section 2 if your programs need a mount, section 3 if your data
# is text, and section 5 if your Python environment starts slowly.

# %% [markdown] id="questions"
# ## Questions
#
# - Which settings make a squashfs file slow to read?
# - Do I need a mount?
# - When does compression make reading faster?
# - Why does a reader return correct samples in one process, and wrong samples in two?
# - What if my Python environment has more files than my quota allows?

# %% [markdown] id="objectives"
# ## After this you can
#
# - pack a squashfs file that is fast to read at random,
# - read it from any process without a mount,
# - find the bandwidth below which compression pays,
# - write a reader that is correct in several workers and threads,
# - put an environment into one file.

# %% [markdown] id="setup"
# ## Set up
#
# The main findings of this notebook are counts of bytes, opens, requests and wrong samples, which are the same on a busy
# machine. Measured times are not: if other programs use your CPUs, the rates of section 2 change most.

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
report = pack(source, packed, config := PackConfig())
print(f"{report.samples:,} images, {bytes_text(report.file_bytes)}, {report.files} files")

# %% [markdown]
# The second file contains the content digest. Keep it, because squashfs has no checksum of uncompressed data. Only the
# content digest reveals a flipped bit.
#
# `SquashFS` finds files by their paths. `formats.open` finds samples by their numbers:

# %%
with SquashFS(packed) as opened:
    name = opened.paths[-1]
    print(len(opened), "files;", name, opened.stat(name).size, "bytes, from", opened.read(name)[:2])

reader = formats.open(packed)
print(f"key {reader.key(7)}, target {reader.target(7)}, begins and ends at {reader.span(7)[1:]}")

# %% [markdown]
# The squashfs file contains three more files, with the labels and the order of the samples.

# %% [markdown] id="settings" tags=["core"]
# ## 1 · Choose the settings
#
# Squashfs can compress files, and it can join small files. Both save space, and both can make random reads slow:
#
# | Setting | What it does | What must be unpacked to read one image |
# |---|---|---|
# | compression | cuts each file into *blocks* and compresses each block | all blocks of the image |
# | *fragments* | joins small files, and the last pieces of large files, in one block | also the neighbours of the image in its block |
#
# The next cell writes the same images with four settings. The first one is the default of the program `mksquashfs` (gzip, blocks
# of 128 KiB) with its option `-tailends`, which joins the last pieces of large files, too.

# %% tags=["slide"]
from pysquashfs import pack as write_squashfs

gzip = {"compression": "gzip", "level": 9}
settings = {
    "gzip, fragments": {**gzip, "fragments": True},
    "gzip, 1 MiB fragments": {**gzip, "fragments": True, "block_bytes": 1 << 20},
    "gzip, no fragments": gzip,
    "raw, no fragments": {},
}
photos = [(reader.key(index), bytes(reader.read(index))) for index in range(240)]
written, photo_bytes = {}, sum(len(data) for _, data in photos)
for number, (name, options) in enumerate(settings.items()):
    path = setup.scratch / f"setting-{number}.sqfs"
    write_squashfs(path, photos, overwrite=True, **options)
    written[name] = SquashFS(path)
    print(f"{name:21} saves {1 - path.stat().st_size / photo_bytes:6.2%}")

# %% [markdown]
# To read an image, its blocks must be fetched. `info` counts how many bytes these blocks have for each byte of an image.
#
# > **Predict.** How many bytes must be fetched for each byte of an image from *gzip, 1 MiB fragments*: 1, 3, or 9?

# %%
guess = None  # your guess: bytes fetched per byte of an image
for name, opened in written.items():
    amount = f"{opened.info()['read_amplification']:5.2f} bytes per byte"
    print(f"{name:21}", amount, f"(your guess: {guess})" * ("1 MiB" in name))

# %% [markdown]
# A fragment of 1 MiB contains about ten images, and all of them must be fetched and unpacked to read one. With blocks of
# 128 KiB, most images need little more than their own bytes. But with gzip these bytes must also be unpacked.
#
# Suppose that a random read from *raw, no fragments* takes time 1. How long does one from *gzip, fragments* take: 2, 10 or 100?


# %%
def read_all(opened):
    for key in random.sample(opened.paths, len(opened)):  # in another order in each round
        opened.read(key)
    return len(opened)


found = measure.compare({n: partial(read_all, f) for n, f in written.items()}, unit="images")

# %% [markdown]
# The folded cell draws the times, and prints how long it takes to decode an image.

# %% tags=["slide"] jupyter={"source_hidden": true}
raw, default = "raw, no fragments", "gzip, fragments"
title = f"A read from gzip with fragments takes about {found.times(raw, default).median:.0f} times as long as raw"
rates = {name: np.array(found.rates_per_s(name)) for name in written}
times = {name: np.median(rates[raw]) / runs for name, runs in rates.items()}
x, note = f"time of a random read, relative to {raw}", f"warm page cache; 1 is {1e6 / np.median(rates[raw]):.0f} µs"
show.figure(figures.bars(times, title, x=x, base=raw, note=note, log=True))
for name in written:
    print(f"{name:21} {1e6 / np.median(rates[name]):5,.0f} µs per image")
decode_all = {"decoding": lambda: sum(1 for _, data in photos if Image.open(io.BytesIO(data)).load())}
decoding = measure.compare(decode_all, rounds=3, unit="images", bar=False)
print(f"{'decoding':21} {1e6 / np.median(decoding.rates_per_s('decoding')):5,.0f} µs per image")

# %% [markdown]
# Expect a factor of 8 to 40, depending on the machine. Nearly all of it comes from gzip, which saves almost nothing on
# photographs. With fragments of 1 MiB, about ten images are unpacked for each one, and this takes at least as long as decoding
# it.
#
# Does this matter on a cluster? There, each read also waits for its bytes, so the factor is smaller. But unpacking takes as much
# CPU time as here, and decoding needs the same CPUs.
#
# **Your turn.** Guess the time of zstd. Then add `"zstd, no fragments": {"compression": "zstd"},` to `settings`, and run the
# cells from there again.
#
# <details>
# <summary>Answer</summary>
#
# We measured about twice the time of *raw, no fragments*.
#
# </details>
#
# `info` looks for both faults in any squashfs file. `python -m pysquashfs info FILE` does the same:

# %%
for name in (default, raw):
    print(f"{name}:", *written[name].info()["findings"], sep="\n  ")
for opened in written.values():
    opened.close()

# %% [markdown]
# To avoid both faults with `mksquashfs` 4.4 or later, use these options:

# %%
from pysquashfs.info import RECOMMENDED

print(RECOMMENDED)

# %% [markdown]
# <details>
# <summary>What do they mean?</summary>
#
# `-noD` and `-noF` leave data and fragments uncompressed. `-no-fragments` stores each file separately. Only the index is
# compressed with gzip. Without `-noappend`, a second run adds all files again. `-no-xattrs`, `-all-root` and the two options
# with `time` remove attributes, owners and times, so that equal data give an equal file. `-no-exports` omits a table that
# only NFS needs.
#
# </details>

# %% [markdown] id="mount" tags=["optional"]
# ## 2 · Compare the library with a mount
#
# *Optional, 7 minutes.* A program can read the images in three ways: as plain files, as files of a mounted squashfs file, or
# with the library. How do they differ? We count how many files each of them opens. Python reports every open to an
# *audit hook*.

# %%
keys = [reader.key(index) for index in random.Random(1).sample(range(len(reader)), len(reader))]


def read_files(folder, keys=keys):
    for key in keys:
        file = os.open(f"{folder}/{key}", os.O_RDONLY)
        os.read(file, os.fstat(file).st_size)
        os.close(file)
    return len(keys)


def read_library(opened):
    return sum(1 for key in keys if opened.read(key))


opens, by_name = [], {"plain files": partial(read_files, source.root)}
sys.addaudithook(lambda event, about: opens.append(about[0]) if event == "open" else None)
with SquashFS(packed) as opened:
    by_name["library"] = partial(read_library, opened)
    for name, work in by_name.items():
        opens.clear()
        print(f"{name}: {work()} images, {len(opens)} files opened")

# %% [markdown]
# Plain files need an open, a read and a close for each image. A mount needs the same calls. The library opens the squashfs
# file once. It finds each image in its index, and here it copies the bytes from a memory map, without any call of the kernel.
#
# > **Predict.** The bytes are in the page cache. Which way is fastest for a random image: plain files, a mount, or the
# > library?

# %%
guess = None  # your guess: "plain files", "mount" or "library"

# %% [markdown]
# The folded cell measures all three. It mounts the file in two ways, if this machine allows them: by the kernel itself, and with
# *FUSE*, where a helper program reads the squashfs file for the kernel.

# %% jupyter={"source_hidden": true}
from contextlib import ExitStack
from time import perf_counter

from pysquashfs import mount
from pysquashfs.mounting import how_to_mount

def first_epoch(way):
    """Images per second in the first epoch of a new mount."""
    with mount(packed, way=way) as folder:
        began = perf_counter()
        return read_files(folder) / (perf_counter() - began)


works = [way.name for way in how_to_mount(packed) if way.available and way.inside]  # inside: from this running program
mounts = {"FUSE" if "fuse" in name else name: name for name in reversed(works)}
with ExitStack() as stack:
    ways = {"plain files": partial(read_files, source.root)}
    ways["library"] = partial(read_library, stack.enter_context(SquashFS(packed)))
    first = {f"mount ({kind}), first epoch": [first_epoch(way) for _ in range(5)] for kind, way in mounts.items()}
    for kind, way in mounts.items():
        folder = stack.enter_context(mount(packed, way=way))
        ways[f"mount ({kind}), later epochs"] = partial(read_files, folder)
    speeds = measure.compare(ways, rounds=5, unit="images")
rates = first | {name: speeds.rates_per_s(name) for name in speeds.runs}
best = dict(sorted({name: max(runs) for name, runs in rates.items()}.items(), key=lambda row: -row[1]))

# %% [markdown]
# The folded cell draws the best runs.

# %% jupyter={"source_hidden": true}
gain = best["library"] / best["plain files"]
title = f"Measured here, the library reads {gain:.1f} times as many images per second as plain files"
if not mounts:
    title += "; no mount works here"
guessed = next((name for name in best if guess and name.startswith(guess)), None)
x = {"x": "images per second", "note": "best of 5 runs; plain files and squashfs file in the page cache", "groups": ("later", "first", "library")}
show.figure(figures.bars(best, title, base="plain files", guess=guessed, **x))

# %% [markdown]
# Both mounts are slow in the first epoch, because the kernel must first find each file and fetch its bytes. In later epochs it
# remembers names and bytes. On an idle machine, the kernel's own mount is then about as fast as plain files. With FUSE, the
# kernel still asks the helper program at each open.
#
# `SquashFS` has two back ends. One is written in Python. The other is the C library of squashfs-tools-ng, if it is installed
# (`apt-get install libsquashfs1`). The two back ends find files with different code, so each can check the other. The next cell
# reads a raw and a compressed file with both:

# %%
from pysquashfs.libsquashfs import available

two_files = {"raw": setup.scratch / "setting-3.sqfs", "gzip": setup.scratch / "setting-2.sqfs"}
back_ends = ("python", "libsquashfs") if available() else ("python",)
readers = {}
for kind, path in two_files.items():
    for name in back_ends:
        readers[kind, name] = SquashFS(path, backend=name)
wrong = sum(each.read(key) != data for each in readers.values() for key, data in photos)
print(wrong, "are wrong")

# %% [markdown]
# The folded cell measures both back ends and the mounts. It measures later epochs: each mount has read every image once before.

# %% jupyter={"source_hidden": true}
with ExitStack() as stack:
    ways = {f"{kind}, {name}": partial(read_all, stack.enter_context(each)) for (kind, name), each in readers.items()}
    for kind, path in two_files.items():
        for short, way in mounts.items():
            folder = stack.enter_context(mount(path, way=way))
            read_files(folder, [key for key, _ in photos])
            ways[f"{kind}, mount ({short})"] = partial(read_files, folder, [key for key, _ in photos])
    speeds = measure.compare(ways, rounds=5, unit="images")
by_file = sorted(ways, key=lambda name: name.startswith("gzip"))  # raw first
costs = {name: 1e6 / max(speeds.rates_per_s(name)) for name in by_file}
factor = costs["gzip, python"] / costs["raw, python"]
title = f"The Python back end takes {factor:.0f} times as long for a compressed photograph as for a raw one"
axis = {"x": "time of a random image (µs)", "note": "best of 5 runs; all in the page cache", "log": True}
show.figure(figures.bars(costs, title, base="raw, python", **axis))

# %% [markdown]
# By default, `SquashFS` uses the Python back end, unless only the library can unpack the file. `info()` says which back end
# reads, and why. Files are written with Python unless you ask for the library, so that equal data gives equal bytes on every
# machine.
#
# <details>
# <summary>Python, the C library, or a mount?</summary>
#
# | File | Use | Why |
# |---|---|---|
# | raw | Python | it copies from a memory map and makes no call of the kernel |
# | compressed, each image read once | either back end | both spend their time in zlib, and the first epoch of a mount is slow |
# | compressed, images read again | the kernel's mount | while there is memory, the kernel keeps the unpacked pages; a library unpacks again |
# | lzma, or zstd without its Python package | libsquashfs | the Python back end cannot unpack it |
# | any, if mounts and C libraries are not allowed | Python | it needs only NumPy |
#
# </details>
#
# <details>
# <summary>Programs in a container</summary>
#
# A program that needs files can also run in a container. Apptainer binds a squashfs file into the container as a folder, so you
# need not mount it yourself ([manual](https://apptainer.org/docs/user/latest/bind_paths_and_mounts.html)):
#
# ```bash
# apptainer exec --mount type=bind,src=data.sqfs,dst=/data,image-src=/,ro image.sif python train.py /data
# ```
#
# </details>
#
# <details>
# <summary>What about EROFS?</summary>
#
# Containers begin to use a newer format, EROFS. It has been part of Linux since 5.4, and
# [containerd](https://github.com/containerd/containerd/blob/main/docs/snapshotters/erofs.md) can run containers from it. It
# compresses into [blocks of a fixed size](https://docs.kernel.org/filesystems/erofs.html), so a small read unpacks little.
# Raw photographs gain nothing from that. EROFS needs a mount, and the kernels of many clusters are older. So squashfs is
# still the safe choice for data sets.
#
# </details>

# %% [markdown] id="compression" tags=["optional"]
# ## 3 · Compress what compresses
#
# *Optional, 5 minutes.* Photographs are compressed already, but annotations are not. They are often JSON, which repeats
# itself and becomes several times smaller with zstd. Unpacking takes time. But if the storage is slow, it takes even longer to
# fetch the bytes that compression saves.
#
# Below which bandwidth is it faster to read the compressed files?
#
# The folded cell packs 300 documents raw and with zstd, and reads them from memory. From the two times and sizes it computes
# the rate at each bandwidth.

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
texts, stored = {}, {}
for name, options in {"raw": {}, "zstd": {"compression": "zstd"}}.items():
    write_squashfs(setup.scratch / f"text-{name}.sqfs", documents, overwrite=True, **options)
    texts[name] = SquashFS(setup.scratch / f"text-{name}.sqfs")
    stored[name] = texts[name].info()["image_bytes"] / len(documents)
    print(f"{name:5} {stored[name]:7,.0f} bytes per file")
found = measure.compare({n: partial(read_all, f) for n, f in texts.items()}, rounds=5, unit="files")
read_s = {name: 1 / max(found.rates_per_s(name)) for name in texts}
bytes_s = np.geomspace(50e6, 10e9, 41)
rates = {name: {b: 1 / (each_s + stored[name] / b) for b in bytes_s} for name, each_s in read_s.items()}
longer_s = read_s["zstd"] - read_s["raw"]
pays = (stored["raw"] - stored["zstd"]) / longer_s if longer_s > 0 else bytes_s[-1]
title = f"zstd is faster where the storage gives one reader less than about {float(f'{pays:.2g}') / 1e6:,.0f} MB/s"
title, marks = (title, {"raw = zstd": pays}) if longer_s > 0 else ("Here zstd is faster at every bandwidth", None)
axes = {"x": "what one reader gets from the storage (B/s)", "y": "files per second", "log": "xy"}
note = "computed from the best of 5 reads from memory"
show.figure(figures.lines(rates, title, **axes, marks=marks, note=note))

# %% [markdown]
# Left of the dotted line, it takes less time to unpack than to fetch the bytes that compression saves. On which side is your
# storage? `smallfiles bench read --order sequential --cache cold FILE` prints the samples per second of one reader. Multiply
# them by the size of a sample.
#
# This holds for long reads, in which many files arrive with one request. If each file is a request of its own, compression hardly
# matters: the answer takes 0.5 ms, and the bytes that compression saves would take less.

# %% [markdown] id="sharing" tags=["core"]
# ## 4 · Share one file between workers
#
# Notebook 04 ([section 4](04_pack_hdf5.ipynb#4-·-Close-the-file-before-workers-start)) showed that forked workers share the
# *position* of an open file, so one worker moves the place at which the other one reads. The same happens with plain
# Python. Here we ask something new: does anybody notice?
#
# `places` says where each image begins and ends in the squashfs file. The last line counts the wrong samples in one process.

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
# Worker 1 seeks to image A, and worker 2 moves the shared position to image B. Then worker 1 reads image B instead of A, with as
# many bytes as A has. Worker 2 reads on from the place where worker 1 stopped, which is usually in the middle of a photograph.
#
# Pillow refuses samples that begin in the middle or that are cut off. But a quarter to a half of the wrong samples are whole
# photographs with the label of another one, and nothing reports them. Without the pause, few samples are wrong, so a test can
# easily miss the mistake.
#
# `os.pread` takes the position as an argument, so it does not use the shared one. **Your turn:** use it in `my_reader`, until no
# sample is wrong.

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
# **Threads** of one process share an open file, too. So it does not help to open the file once per process. A lock around seek
# and read makes the threads correct, but then only one of them reads at a time. With `os.pread`, any number of threads and forked
# workers can use the same open file.
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

# %% [markdown] id="environment" tags=["optional"]
# ## 5 · Put an environment into one file
#
# *Optional, 6 minutes.* A Python environment consists of small files, too, since most modules are files of their own. The
# folded cell counts the modules of two packages.

# %% jupyter={"source_hidden": true}
import subprocess

COUNT = """import sys; name = sys.argv[1]; __import__(name)
mine = (module for key, module in list(sys.modules.items()) if key.split('.')[0] == name)
print(sum(bool(getattr(module, '__file__', None)) for module in mine))"""
own = {}
for name in ("networkx", "torch"):
    end = subprocess.run([sys.executable, "-c", COUNT, name], capture_output=True, text=True, check=True)
    own[name] = int(end.stdout)
    print(f"import {name:9} {own[name]:4,} modules in files of its own")

# %% [markdown]
# At the start of a job, all processes open these files in the same second. We counted the requests of `import torch` by 8 ranks
# (`slurm/env/README.md`). In the worst case, no node remembers names. Then the storage received 8,208 opens, and six times as
# many look-ups, because Python looks for each module in several places. (Notebook 00 counted two requests per file, without
# these searches.) When the environment was one squashfs file, which was sent once to each node, the storage received 2 opens
# and 5 look-ups.
#
# We repeat this with a smaller package, `networkx`. The folded cell packs it into one file.

# %% jupyter={"source_hidden": true}
import compileall
import py_compile
import shutil
from importlib.util import find_spec
from pathlib import Path

from pysquashfs.writer import folder_items

place = setup.scratch / "environment"
shutil.rmtree(place, ignore_errors=True)
shutil.copytree(Path(find_spec("networkx").origin).parent, place / "files" / "networkx")
by_hash = py_compile.PycInvalidationMode.UNCHECKED_HASH  # our writer stores no times
compileall.compile_dir(place / "files", quiet=2, force=True, invalidation_mode=by_hash)
made = write_squashfs(place / "packages.sqfs", folder_items(place / "files"), compression="gzip")
print(f"{made.files:,} files, {bytes_text(made.bytes)}; one file, {bytes_text(made.image_bytes)}")

# %% [markdown]
# > **Predict.** How many requests does importing `networkx` send to the storage, from many files and from one squashfs file?

# %%
latency_s = 0.002  # change me: seconds per request, also 0.01
guess = {"many files": None, "one squashfs file": None}  # your guesses: requests

# %% [markdown]
# The folded cell imports it from both, each time in a new Python. It counts the requests, and it measures the time, which
# includes the mount.

# %% jupyter={"source_hidden": true}
from contextlib import nullcontext

from smallfiles.slowfs import SlowConfig, open_slow


def import_from(place, slow):
    """Seconds of mounting and of a new interpreter, and requests of metadata to the slow storage."""
    began = perf_counter()
    with measure.requests(slow) as asked, place as folder:
        variables = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        subprocess.run([sys.executable, "-c", "import networkx"], env=variables, cwd=folder, check=True)
        seconds = perf_counter() - began
    return seconds, asked["metadata"]


imports = {}
with open_slow(place, SlowConfig(latency_s=latency_s)) as slow:
    if slow.how == "fuse":
        imports["many files"] = import_from(nullcontext(slow.path / "files"), slow)
    if slow.how == "fuse" and "FUSE" in mounts:
        imports["one squashfs file"] = import_from(mount(slow.path / "packages.sqfs", way=mounts["FUSE"]), slow)
for name, (seconds, requests) in imports.items():
    print(f"{name:18} {requests:6,} requests (your guess: {guess[name]}), {seconds:5.1f} s")
product = 4 * own["networkx"] * latency_s
print(f"4 requests × {own['networkx']} modules × {1000 * latency_s:g} ms = {product:.1f} s")
if not imports:
    print(slow.summary)

# %% [markdown]
# From many files, Python sends at least four requests for each module, and it waits for each of them. From one file, the mount
# on this node answers the look-ups, so the storage receives only a few requests, and then reads. (The reads are neither counted
# nor delayed here, so real storage takes longer.)
#
# So one file **pays on many nodes**, where the metadata server is the limit. On one small machine, **it does not pay**: when eight
# ranks imported torch on two busy cores, it took 98 s from one file and 72 s from many. The reason is not compression. Each new
# page of a library is a request to the mount, which needs CPU time.
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
# Then start programs with `python -m …`, because scripts such as `torchrun` still run the old environment.

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
show.command(config, "DATA_FOLDER", "train.sqfs")

# %% [markdown] id="key-points"
# ## Key points
#
# - Store photographs raw and without fragments. Compressing them makes every read slower and saves almost nothing.
# - A library needs no mount and no root rights. A mount is for programs that need files, and only a mount keeps unpacked
#   pages. Apptainer can bind a squashfs file into a container.
# - Compress text with zstd. In long reads it is faster below a bandwidth that you can measure.
# - Forked workers and threads share the file position of an open file. So say in each read where to read (`os.pread`).
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
# (b) Some samples are wrong, without an error. (c) All samples are right, because each worker has its own copy of the object.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**. Each worker has its own Python object, but all workers share one open file and its position, so (c) is wrong. The
# kernel sees correct reads, so no read raises an exception. A decoder may raise one. From Python 3.14 on, the answer is (a),
# because an open file cannot be sent to a worker.
#
# </details>
#
# **3.** Your storage gives one reader 2,000 MB/s, and zstd is faster below 900 MB/s. Should you compress annotations that
# are read in long runs? (a) Yes, they become smaller. (b) No, not for speed. (c) No, never compress.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**. At 2,000 MB/s, it takes longer to unpack than to fetch the bytes that compression saves. Compressing may still be right
# because of a quota. (c) is wrong, because at 300 MB/s compressed files are faster.
#
# </details>

# %% [markdown] id="next"
# ## Next
#
# [07 · Stage data to /dev/shm](07_stage_a_dataset.ipynb) copies packed files to the node before the training starts.
