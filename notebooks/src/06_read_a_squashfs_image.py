# %% [markdown] id="top"
# # 06 · Read a squashfs file without mounting it
#
# **Minutes** 35 · **Machine** any Linux computer with two CPUs · **Needs** nothing; shows more where `squashfuse` is
# installed · **Data** 400 synthetic images
#
# A squashfs file holds a whole folder tree, read-only. Linux can mount it, so that every program sees files again.
# Where mounts are not allowed, a library can read it. Here an *image* is a photograph, the archive a *squashfs file*.

# %% [markdown] id="questions"
# ## Questions
#
# - Which settings make a squashfs file slow?
# - Do I need a mount?
# - When does compression pay?
# - Why does a reader that is right in one process return wrong samples in two?
# - What if my environment has more files than my quota?

# %% [markdown] id="objectives"
# ## After this you can
#
# - pack a squashfs file that is fast to read at random,
# - read it from any process without a mount,
# - find the bandwidth below which compression pays,
# - write a reader whose workers share no offset,
# - put an environment into one file.

# %% [markdown] id="setup"
# ## Set up

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
# > **Recall** (04). Images of 100 kB are stored in chunks of 1 MiB. What does one random image cost?
#
# <details>
# <summary>Answer</summary>
#
# At least one whole chunk, ten times its bytes, and two where it lies across a border.
#
# </details>

# %% [markdown] id="inside"
# ## Look inside
#
# Pack the images; the suffix `.sqfs` chooses the format.

# %%
source = setup.source()
packed = setup.scratch / "train.sqfs"
packed.unlink(missing_ok=True)
config = PackConfig()
report = pack(source, packed, config)
print(f"{report.samples:,} images, {bytes_text(report.file_bytes)}, {report.files} files")

# %% [markdown]
# The second file is a digest of the content. Keep it: only this reveals every flipped byte, as squashfs has no
# checksum of raw data.
#
# `SquashFS` reads by paths, `formats.open` by numbers:

# %%
with SquashFS(packed) as opened:
    name = opened.paths[-1]
    print(len(opened), "files;", name, opened.stat(name).size, "bytes, starts with", opened.read(name)[:2])

reader = formats.open(packed)
print(f"key {reader.key(7)}, target {reader.target(7)}, begins and ends at {reader.span(7)[1:]}")

# %% [markdown]
# The three other files hold labels and order.

# %% [markdown] id="settings" tags=["core"]
# ## 1 · Choose the settings
#
# Two settings can make random reads slow:
#
# | Setting | What it does | What a read of one image must unpack |
# |---|---|---|
# | compression | cuts each file into *blocks*, and compresses each block | the image's blocks |
# | *fragments* | puts files smaller than a block, with `-tailends` also the ends of larger ones, together into one block | also its neighbours in the block |
#
# The cell writes the same images in four ways. The first is `mksquashfs`'s default (128 KiB) with `-tailends`.

# %%
from pysquashfs import pack as write_squashfs

settings = {
    "gzip, fragments": {"compression": "gzip", "level": 9, "fragments": True},
    "gzip, 1 MiB fragments": {"compression": "gzip", "level": 9, "fragments": True, "block_bytes": 1 << 20},
    "gzip, no fragments": {"compression": "gzip", "level": 9},
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
# > **Predict.** zlib unpacks photographs at some 500 MB/s, memory is read at some 10 GB/s. A random read
# > from *gzip, fragments* takes how many times as long as one from *raw, no fragments*?

# %%
guess = 5  # change me: times as long


def read_all(opened):
    for key in random.sample(opened.paths, len(opened)):  # in another order in each round
        opened.read(key)
    return len(opened)


found = measure.compare({n: partial(read_all, f) for n, f in written.items()}, rounds=7, unit="images")

# %% [markdown]
# The folded cell draws and prints the times.

# %% jupyter={"source_hidden": true}
raw, default = "raw, no fragments", "gzip, fragments"
title = f"From memory, gzip with fragments takes about {found.times(raw, default).median:.0f} times as long as raw"
rates = {name: np.array(found.rates_per_s(name)) for name in written}
times = {name: np.median(rates[raw]) / runs for name, runs in rates.items()}
x, note = f"time of a random read, relative to {raw}", f"warm page cache; 1 is {1e6 / np.median(rates[raw]):.0f} µs"
show.figure(figures.bars(times, title, x=x, base=raw, guess=guess, guess_of=default, note=note, log=True))
for name, opened in written.items():
    amplified = opened.info()["read_amplification"]
    print(f"{name:21} {1e6 / np.median(rates[name]):5,.0f} µs per image, {amplified:5.2f} bytes fetched per byte delivered")
decode_all = {"decoding": lambda: sum(1 for _, data in photos if Image.open(io.BytesIO(data)).load())}
decoding = measure.compare(decode_all, rounds=3, unit="images", bar=False)
print(f"{'decoding':21} {1e6 / np.median(decoding.rates_per_s('decoding')):5,.0f} µs per image")

# %% [markdown]
# On other machines expect 8 to 40 times. Nearly all of it is gzip, which saves nothing on photographs. A fragment of
# 1 MiB holds about ten images, and all are unpacked for each. That takes at least as long as decoding. Slow storage
# shrinks the factor; the CPU's time remains.
#
# **Your turn.** Guess the time of zstd, add `"zstd, no fragments": {"compression": "zstd"},` to `settings`, and run again
# from there.
#
# `info` looks for both faults in any squashfs file, as does `python -m pysquashfs info FILE`:

# %%
for name in (default, raw):
    print(f"{name}:", *written[name].info()["findings"], sep="\n  ")
for opened in written.values():
    opened.close()

# %% [markdown]
# With `mksquashfs` 4.4 or later:

# %%
from pysquashfs.info import RECOMMENDED

print(RECOMMENDED)

# %% [markdown]
# <details>
# <summary>What do they mean?</summary>
#
# `-noD` and `-noF` leave data and fragments uncompressed, `-no-fragments` keeps files in one piece. gzip compresses
# the index. Without `-noappend`, a second run adds all again. `-no-xattrs`, `-all-root` and the two options with `time`
# drop attributes, owners and times, so equal data give an equal file. `-no-exports` omits a table for NFS.
#
# </details>

# %% [markdown] id="mount" tags=["optional"]
# ## 2 · Compare the library with a mount
#
# *Optional, 7 minutes.*
#
# > **Predict.** All is in the page cache. Which is fastest for a random image: plain files, a mount, or the library?

# %%
guess = "plain files"  # change me: or "mount", or "library"

# %% [markdown]
# The folded cell mounts the file with FUSE and by the kernel, where that is allowed.

# %% jupyter={"source_hidden": true}
from contextlib import ExitStack
from time import perf_counter

from pysquashfs import mount
from pysquashfs.mounting import how_to_mount

keys = [reader.key(index) for index in random.Random(1).sample(range(len(reader)), len(reader))]


def read_files(folder, keys=keys):
    for key in keys:
        file = os.open(f"{folder}/{key}", os.O_RDONLY)
        os.read(file, os.fstat(file).st_size)
        os.close(file)
    return len(keys)


def read_library(opened):
    return sum(1 for key in keys if opened.read(key))


def first_epoch(way):
    """Images per second in the first epoch of a new mount."""
    with mount(packed, way=way) as folder:
        began = perf_counter()
        return read_files(folder) / (perf_counter() - began)


works = [way.name for way in how_to_mount(packed) if way.available and way.inside]
mounts = {"FUSE" if "fuse" in name else name: name for name in reversed(works)}
with ExitStack() as stack:
    ways = {"plain files": partial(read_files, source.root)}
    ways["library"] = partial(read_library, stack.enter_context(SquashFS(packed)))
    first = {f"mount ({kind}), first epoch": [first_epoch(way) for _ in range(9)] for kind, way in mounts.items()}
    for kind, way in mounts.items():
        folder = stack.enter_context(mount(packed, way=way))
        ways[f"mount ({kind}), later epochs"] = partial(read_files, folder)
    speeds = measure.compare(ways, rounds=9, unit="images")
rates = first | {name: speeds.rates_per_s(name) for name in speeds.runs}
best = dict(sorted({name: max(runs) for name, runs in rates.items()}.items(), key=lambda row: -row[1]))

# %% [markdown]
# The folded cell draws the best runs.

# %% jupyter={"source_hidden": true}
gain = best["library"] / best["plain files"]
title = f"The library reads {gain:.1f} times as many images per second as plain files"
if not mounts:
    title += "; no mount works here"
guessed = next((name for name in best if name.startswith(guess)), None)  # None where no mount works
x = {"x": "images per second", "note": "best of 9 runs; plain files and squashfs file in the page cache", "groups": ("later", "first", "library")}
show.figure(figures.bars(best, title, base="plain files", guess=guessed, **x))

# %% [markdown]
# The library finds every position in its index, and here it copies from a memory map. Plain files and mounts need
# calls of the kernel: open, read and close. In the first epoch a mount must also find each file and fetch its bytes
# from the squashfs file, with FUSE through another process. The kernel keeps both, so later epochs are faster. With
# FUSE each open still waits for that process. The kernel's mount opens as fast as plain files, but copies half as
# fast here.

# `SquashFS` has two back ends. One is written in Python. The other one is the C library of squashfs-tools-ng, where it is
# installed (`apt-get install libsquashfs1`). Neither uses the other's code to find a file, so each one checks the other.
# Read two of the files from above with both, one raw and one compressed:

# %%
from pysquashfs.libsquashfs import available

two_files = {"raw": setup.scratch / "setting-3.sqfs", "gzip": setup.scratch / "setting-2.sqfs"}
back_ends = ("python", "libsquashfs") if available() else ("python",)
readers = {(kind, name): SquashFS(path, backend=name) for kind, path in two_files.items() for name in back_ends}
print([each.read(key) == data for each in readers.values() for key, data in photos].count(False), "are wrong")

# %% [markdown]
# The folded cell measures both back ends beside the mounts, which have already read every image once.

# %% jupyter={"source_hidden": true}
with ExitStack() as stack:
    ways = {f"{kind}, {name}": partial(read_all, stack.enter_context(each)) for (kind, name), each in readers.items()}
    for kind, path in two_files.items():
        for short, way in mounts.items():
            folder = stack.enter_context(mount(path, way=way))
            read_files(folder, [key for key, _ in photos])
            ways[f"{kind}, mount ({short})"] = partial(read_files, folder, [key for key, _ in photos])
    speeds = measure.compare(ways, rounds=7, unit="images")
by_file = sorted(ways, key=lambda name: name.startswith("gzip"))  # raw first
costs = {name: 1e6 / max(speeds.rates_per_s(name)) for name in by_file}
factor = costs["gzip, python"] / costs["raw, python"]
title = f"Compressed photographs take the Python back end {factor:.0f} times as long as raw ones"
axis = {"x": "time of a random image (µs)", "note": "best of 7 runs; all in the page cache", "log": True}
show.figure(figures.bars(costs, title, base="raw, python", **axis))

# %% [markdown]
# | File | Fastest | Why |
# |---|---|---|
# | raw, on a local disk | Python | it copies from a memory map and makes no call of the kernel |
# | compressed, read once | both back ends alike | both spend their time in the same zlib |
# | compressed, read again | the kernel's mount | the kernel keeps the unpacked pages, as long as memory lasts; a library unpacks again |
# | lzma, or zstd without its Python package | libsquashfs | Python cannot unpack it |
# | no mount and no C library allowed | Python | it needs NumPy only |
#
# FUSE mounts keep unpacked pages, too, but each open waits for another process. By default, `SquashFS` takes Python
# unless only the library can unpack the file. `info()` says which back end reads, and why. Writing uses Python, because
# equal data must give equal bytes on every machine.
#
# Containers are moving to a newer format, EROFS. It is part of Linux since 5.4, and
# [containerd](https://github.com/containerd/containerd/blob/main/docs/snapshotters/erofs.md) can run images from it. It
# compresses into [blocks of a fixed size](https://docs.kernel.org/filesystems/erofs.html), so a small read unpacks
# little. Raw photographs gain nothing from that. It needs a mount, and the kernels of many clusters are older, so for
# data sets squashfs remains the safe choice.

# %% [markdown] id="compression" tags=["optional"]
# ## 3 · Compress what compresses
#
# *Optional, 5 minutes.* Annotations are often JSON, mostly repetition.
#
# > **Predict.** zstd makes them several times smaller, but unpacking takes time. At which bandwidth is reading raw and
# > compressed files equally fast?

# %%
guess = 1e9  # change me: bytes per second

# %% [markdown]
# The folded cell packs 300 documents both ways, reads them from memory, and computes the rate at each bandwidth.

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
title = f"zstd pays where storage gives one reader less than about {float(f'{pays:.2g}') / 1e6:,.0f} MB/s"
title, marks = (title, {"raw = zstd": pays}) if longer_s > 0 else ("zstd pays at every bandwidth here", None)
axes = {"x": "what one reader gets from the storage (B/s)", "y": "files per second", "log": "xy"}
note = "computed from the best of 5 reads from memory"
show.figure(figures.lines(rates, title, **axes, marks=marks, guess=guess, note=note))

# %% [markdown]
# Left of the dotted line, unpacking takes less time than the saved bytes would. Compare this bandwidth with what one
# reader gets in large reads on a busy day. If each file is a request of its own, compression hardly matters: waiting
# 0.5 ms takes longer than fetching 8 kB more.

# %% [markdown] id="sharing" tags=["core"]
# ## 4 · Share one file between workers
#
# `seek_then_read` knows where each image begins and ends. The last line counts the wrong samples in one process.

# %%
places = [reader.span(index)[1:] for index in range(len(reader))]
truth = [bytes(reader.read(index)) for index in range(len(reader))]
file = open(packed, "rb", buffering=0)


def seek_then_read(index):
    start, stop = places[index]
    file.seek(start)
    time.sleep(1e-5)  # gives others time to run between the two calls
    return file.read(stop - start)


sum(seek_then_read(index) != truth[index] for index in range(len(truth)))

# %% [markdown]
# Now two workers of a `DataLoader` read. Its `Dataset` lets Pillow decode the wrong samples.
#
# > **Predict.** Are any of 3,000 samples wrong? What percentage of the wrong ones does Pillow decode without an error:
# > 0, 30, 75 or 100?

# %%
from torch.utils.data import DataLoader, Dataset, RandomSampler

guess = 75  # change me: percent of the wrong samples that are decoded without an error


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


# %%
def count_wrong(read):
    """Wrong samples of 3,000 random ones, by what Pillow makes of them; two workers read."""
    chosen = RandomSampler(truth, replacement=True, num_samples=3_000)
    settings = {"num_workers": 2, "multiprocessing_context": "fork"}
    found = np.concatenate([*DataLoader(Compared(read), batch_size=100, sampler=chosen, **settings)])
    return {"decoded without an error": int((found == 2).sum()), "refused": int((found == 1).sum())}


wrong = {"seek, then read": count_wrong(seek_then_read), "our reader": count_wrong(reader.read)}
bad, ours = (sum(found.values()) for found in wrong.values())
title = f"With seek and read, {bad} of 3,000 samples are wrong; with our reader {ours}"
shares = {what: 100 * count / max(bad, 1) for what, count in wrong["seek, then read"].items()}
figures.bars(shares, title, x="share of the wrong samples (%)", counted=True, guess=guess, guess_of="decoded")

# %% [markdown]
# An open file has an *offset*, where the next read begins, and forked workers share it ([04](04_pack_hdf5.ipynb)).
# One worker seeks, the other seeks too, then the first reads from the wrong place.
#
# The other reads on from where the first stopped: inside a photograph. Most wrong samples begin there or are cut
# short. Pillow refuses them. The rest, a quarter to a half, are whole photographs under the
# label of another: B (below) is no larger than A. Nothing reports them. Without the pause few are wrong, so a test
# can miss it.
#
# ![Left: two workers share one offset, worker 2 moves it, and worker 1 reads image B instead of A. Right: with pread each names its position.](pictures/shared_offset.svg)
#
# `os.pread` takes the position as an argument, so there is nothing to share. **Your turn:** let `my_reader` use it, until
# nothing is wrong.

# %%
def my_reader(index):
    start, stop = places[index]
    return seek_then_read(index)  # change me to: os.pread(file.fileno(), size, position)


count_wrong(my_reader)

# %% [markdown]
# <details>
# <summary>Answer</summary>
#
# `return os.pread(file.fileno(), stop - start, start)`
#
# </details>

# %% [markdown] id="environment" tags=["optional"]
# ## 5 · Put an environment into one file
#
# *Optional, 6 minutes.* Most modules of your Python environment are small files. The folded cell counts those of two
# packages.

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
# All processes of a job request them in the same second. On simulated storage that keeps no names, the worst
# case (`slurm/env/README.md`), `import torch` by 8 ranks took 51,488 look-ups and 8,208 opens, and from one squashfs file,
# sent once to each node, 5 and 2.
#
# The folded cell packs one package, `networkx`:

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
# > **Predict.** For each module Python makes four requests or more. If each takes 2 ms, how long does importing
# > `networkx` take from many files, and from one?

# %%
latency_s = 0.002  # change me, also to 0.01
guess = {"many files": 1.0, "one squashfs file": 1.0}  # change me: seconds

# %% [markdown]
# The folded cell imports it from both, in a new interpreter. The time includes the mount.

# %% jupyter={"source_hidden": true}
from contextlib import nullcontext

from smallfiles.slowfs import SlowConfig, open_slow


def import_from(place, slow):
    """Seconds of mounting and of a new interpreter, and requests of metadata to the slow storage."""
    before, began = slow.counts(), perf_counter()
    with place as folder:
        variables = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        subprocess.run([sys.executable, "-c", "import networkx"], env=variables, cwd=folder, check=True)
        seconds, after = perf_counter() - began, slow.counts()
    return seconds, sum(after[kind] - before[kind] for kind in after if kind not in ("reads", "bytes"))


imports = {}
with open_slow(place, SlowConfig(latency_s=latency_s)) as slow:
    if slow.how == "fuse":
        imports["many files"] = import_from(nullcontext(slow.path / "files"), slow)
    if slow.how == "fuse" and "FUSE" in mounts:
        imports["one squashfs file"] = import_from(mount(slow.path / "packages.sqfs", way=mounts["FUSE"]), slow)
for name, (seconds, requests) in imports.items():
    print(f"{name:18} {requests:6,} requests, {seconds:5.1f} s; your guess: {guess[name]:.1f} s")
product = 4 * own["networkx"] * latency_s
print(f"4 requests × {own['networkx']} modules × {1000 * latency_s:g} ms = {product:.1f} s")
if not imports:
    print(slow.summary)

# %% [markdown]
# From many files the import takes about this product, plus Python's own time. From one file, look-ups happen on this
# node. Apart from these few requests, the storage receives only reads. Here they are neither counted nor delayed:
# real storage takes longer. The gain is smaller where the client keeps names. Eight ranks that imported torch on two
# busy cores took longer from one file: 98 instead of 72 s.
#
# Pack your environment once. This needs `mksquashfs`, and the nodes need the same base Python:
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
# Then start programs with `python -m …`: scripts such as `torchrun` run the old environment.

# %% [markdown] id="exercise"
# ## Exercise
#
# [Exercise 06](../exercises/06_read_a_squashfs_image.ipynb): cure a reader that opens the file in each process, and
# still returns wrong samples in threads.

# %% [markdown] id="cluster"
# ## On the cluster
#
# `slurm/submit SITE 06_pack_squashfs` runs this line in a job:

# %%
show.command(config, "DATA_FOLDER", "train.sqfs")

# %% [markdown] id="key-points"
# ## Key points
#
# - Store photographs raw, without fragments. Compressing them costs every read and saves almost nothing.
# - A library needs neither mount nor root; a mount is for programs that need files. Only a mount keeps unpacked pages.
# - Compress text with zstd: in long reads it pays below a bandwidth that you can measure.
# - Forked workers and threads share the offset of an open file: name the position in each read.
# - An environment as one squashfs file needs a fraction of the requests.

# %% [markdown] id="quiz"
# ## Check yourself
#
# **1.** A `train.sqfs` of photographs is as large as the folder, but random reads are slow. First suspicion?
# (a) squashfs is slow (b) it was packed with the defaults, above all gzip (c) it must be mounted
#
# <details>
# <summary>Answer</summary>
#
# **(b)**: the size does not show it, since photographs do not compress; `python -m pysquashfs info` does. (a) not if it
# is raw and in one piece. (c) a mount must unpack the same blocks.
#
# </details>
#
# **2.** Your reader opens the file in `__init__` and calls `seek`, then `read`. With 0 workers all is right. And with 2
# *forked* workers (the default on Linux up to Python 3.13)? (a) an exception (b) some wrong samples, silently
# (c) all right, each worker has its own copy of the object
#
# <details>
# <summary>Answer</summary>
#
# **(b)**: each worker has its own object, but all share one open file and its offset (so not c). For the kernel nothing
# is wrong, so the read raises nothing (a); a decoder may. From 3.14 on, it is (a): an
# open file cannot be sent to a worker.
#
# </details>
#
# **3.** Your storage gives one reader 2,000 MB/s, and zstd pays below 900 MB/s. Should you compress annotations that
# are read in long runs? (a) yes, they get smaller (b) not for speed (c) never compress
#
# <details>
# <summary>Answer</summary>
#
# **(b)**: here unpacking costs more than the saved bytes. It may still be right because of a quota (a). (c) at
# 300 MB/s per reader it pays.
#
# </details>

# %% [markdown] id="next"
# ## Next
#
# [07 · Stage data to /dev/shm](07_stage_a_dataset.ipynb) brings packed files close to the GPU.
