# %% [markdown] id="top"
# # 06 · Read a squashfs file without mounting it
#
# **Minutes** 35 · **Machine** any Linux computer with two CPUs · **Needs** nothing; shows more where `squashfuse` is
# installed · **Data** 400 synthetic images
#
# A squashfs file holds a whole folder tree, read-only. Linux can mount it, so that every program sees files again. Many
# sites do not allow mounts, but you do not need one: a library can read it too. Its speed depends on the settings with
# which you pack. Here an *image* is a photograph, the archive a *squashfs file*.

# %% [markdown] id="questions"
# ## Questions
#
# - Which settings make a squashfs file slow, and why is that not noticed while packing?
# - Do I need a mount?
# - When does compression pay?
# - Why does a reader that is right in one process return wrong samples in two?
# - What can I do if my environment has more files than my quota?

# %% [markdown] id="objectives"
# ## After this you can
#
# - pack a squashfs file that is fast to read at random, and find out why another one is slow,
# - read it from any process without a mount,
# - find the bandwidth below which compression pays,
# - recognise a reader that shares an offset between workers, and write one that does not,
# - put a Python environment into one file.

# %% [markdown] id="setup"
# ## Set up

# %% id="start"
import sys

sys.path.append("..")
from helpers import figures, show, start

setup = start("06")

# %%
import os
import random
from functools import partial

import numpy as np

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
# At least one whole chunk, ten times its bytes, and two where it lies across a border. A contiguous blob costs its
# bytes.
#
# </details>

# %% [markdown] id="inside"
# ## Look inside
#
# Pack the images. The suffix `.sqfs` chooses the format.

# %%
source = setup.source()
packed = setup.scratch / "train.sqfs"
packed.unlink(missing_ok=True)
config = PackConfig()
report = pack(source, packed, config)
print(f"{report.samples:,} images, {bytes_text(report.file_bytes)}, {report.files} files")

# %% [markdown]
# The second file is the content digest. squashfs itself has no checksum of its data: a flipped byte of what is stored
# raw is returned as if it were right, and only the digest reveals it (`smallfiles verify`).

# %%
with SquashFS(packed) as opened:
    name = opened.paths[-1]
    print(len(opened), "files;", name, opened.stat(name).size, "bytes, starts with", opened.read(name)[:2])

reader = formats.open(packed)
reader.key(7), reader.target(7), reader.classes[reader.target(7)], reader.span(7)[1:]

# %% [markdown]
# Each sample is a file at its own path, so a mount or `unsquashfs` restores the tree. A tree does not contain the
# labels, nor the order in which the samples were packed. Those are in a few files of our own, in the folder
# `.smallfiles` inside. The last pair shows where this sample begins and ends: it is stored in one piece.

# %% [markdown] id="settings" tags=["core"]
# ## 1 · Choose the settings
#
# squashfs was made for live CDs: everything is cut into *blocks* and compressed, and the ends of files share blocks,
# *fragments*. But a photograph does not get smaller. Below are nearly the defaults of `mksquashfs` (our writer also
# shares the ends of files larger than a block, as `-always-use-fragments` does), the same with `-b 1M`, and two
# settings without fragments:

# %%
from pysquashfs import pack as write_squashfs

settings = {
    "gzip, fragments": {"compression": "gzip", "level": 9, "fragments": True},
    "gzip, fragments, 1M": {"compression": "gzip", "level": 9, "fragments": True, "block_bytes": 1 << 20},
    "gzip, no fragments": {"compression": "gzip"},
    "raw, no fragments": {},  # add a line of your own, such as {"compression": "zstd"}
}
photos = [(reader.key(index), bytes(reader.read(index))) for index in range(240)]
written, photo_bytes = {}, sum(len(data) for _, data in photos)
for number, (name, options) in enumerate(settings.items()):
    path = setup.scratch / f"setting-{number}.sqfs"
    write_squashfs(path, photos, overwrite=True, **options)
    written[name] = SquashFS(path)
    print(f"{name:20} saves {1 - path.stat().st_size / photo_bytes:6.2%}")

# %% [markdown]
# > **Predict.** The sizes hardly differ. How many times faster is a random read from *raw, no fragments* than from the
# > defaults?

# %%
guess = 2  # change me: raw without fragments is so many times as fast as the defaults


def read_some(opened, count=60):
    for key in random.sample(opened.paths, count):  # others in each round
        opened.read(key)
    return count


found = measure.compare({n: partial(read_some, f) for n, f in written.items()}, rounds=5, unit="images")

# %% [markdown]
# The folded cell draws the times, and computes what each file would fetch without a cache.

# %% jupyter={"source_hidden": true}
base, raw = "gzip, fragments", "raw, no fragments"
gain, more = (found.times(raw, name).median for name in (base, "gzip, fragments, 1M"))
title = f"Raw and without fragments, a random read is {gain:.0f} times as fast as with gzip and fragments, "
title += f"{more:.0f} times with blocks of 1 MiB as well"
rates = {name: np.array(found.rates_per_s(name)) for name in written}
times = {name: np.median(rates[raw]) / runs for name, runs in rates.items() if name != raw}
x, note = f"time of a random read; 1 is {raw}", f"warm page cache; 1 is {1e6 / np.median(rates[raw]):.0f} µs"
show.figure(figures.bars(times, title, x=x, guess=guess, note=note))
for name, opened in written.items():
    print(f"{name:20} would fetch {opened.info()['read_amplification']:5.2f} bytes per byte delivered")

# %% [markdown]
# Expect a factor of 8 to 40 against the defaults, most of it from unpacking gzip. Fragments matter with large blocks:
# several images share one, which is fetched and unpacked whole for each. Our reader keeps the last 8 MiB of them, so
# with 240 images the defaults can even beat *gzip, no fragments*; with a million this hardly helps.
#
# So the size of a squashfs file does not show its speed. But any can be examined:

# %%
for name in (base, raw):
    print(f"{name}:", *written[name].info()["findings"], sep="\n  ")
for opened in written.values():
    opened.close()

# %% [markdown]
# `python -m pysquashfs info FILE` prints the same. If you pack with `mksquashfs` itself, use this line:

# %%
from pysquashfs.info import RECOMMENDED

print(RECOMMENDED)

# %% [markdown]
# `-noD` and `-noF` leave data and fragments uncompressed, `-no-fragments` keeps files in one piece. Why `-comp gzip`
# then? The file must name a compressor, which is still used for the index, and gzip is the one that every kernel and
# every library supports. Without `-noappend`, a second run adds all files again, under other names.

# %% [markdown] id="mount" tags=["optional"]
# ## 2 · Compare the library with a mount
#
# *Optional, 5 minutes.* A mounted squashfs file is a folder.
#
# > **Predict.** Everything is in the page cache. Which is fastest for a random image: the folder of plain files, a
# > mount, or the library?
#
# The folded cell mounts the file in every way that works here, and compares.

# %% jupyter={"source_hidden": true}
from contextlib import ExitStack

from pysquashfs import mount
from pysquashfs.mounting import how_to_mount

keys = [reader.key(index) for index in random.Random(1).sample(range(len(reader)), 200)]


def read_files(folder):
    for key in keys:
        (folder / key).read_bytes()
    return len(keys)


with ExitStack() as stack:
    ways = {"plain files": partial(read_files, source.root)}
    for way in how_to_mount(packed):
        print(f"{'yes' if way.available else 'no ':4} {way.name:15} {way.reason}")
        if way.available and way.inside:
            folder = stack.enter_context(mount(packed, way=way.name))
            ways[f"mount, {way.name}"] = partial(read_files, folder)
    ways["library"] = partial(read_some, stack.enter_context(SquashFS(packed)), len(keys))
    speeds = measure.compare(ways, rounds=8, unit="images")
mounted = [name for name in speeds.runs if name.startswith("mount")]
gains = [speeds.times("library", name).median for name in mounted or ["plain files"]]
title = f"The library reads {min(gains):.1f} to {max(gains):.1f} times as many images per second as a mount"
if not mounted:
    title = f"No mount works here; the library reads {gains[0]:.1f} times as many images per second as plain files"
show.figure(figures.bars(speeds, title, note="warm page cache"))

# %% [markdown]
# With a mount each read calls the kernel for a name, a handle and the bytes, and with FUSE also another process. The
# library knows the position of each file from its index, and reads the bytes there. All names and bytes are in memory
# here, so the bars show overheads alone. Use a mount when a program needs files and cannot be changed.

# %% [markdown] id="compression" tags=["optional"]
# ## 3 · Compress what compresses
#
# *Optional, 5 minutes.* Annotations are often JSON, which is mostly repetition, as in detection data sets.
#
# > **Predict.** zstd makes them several times smaller. Is reading them faster or slower when the file is in memory? And
# > on a busy parallel file system?
#
# The folded cell makes 300 such documents, packs them in four ways, and computes the rate from slower storage.

# %% jupyter={"source_hidden": true}
import json
from time import perf_counter


def document(number):
    chance = random.Random(number)
    boxes = [
        {"id": chance.randrange(10**6), "bbox": [round(chance.uniform(0, 640), 2) for _ in range(40)]}
        for _ in range(chance.randrange(5, 40))
    ]
    return f"{number % 10}/{number:06}.json", json.dumps({"width": 640, "objects": boxes}, indent=1).encode()


documents = [document(number) for number in range(300)]
codecs = {"raw": {}, "gzip": {"compression": "gzip"}}
codecs |= {f"zstd, level {level}": {"compression": "zstd", "level": level} for level in (3, 15)}
texts, stored = {}, {}
for number, (codec, options) in enumerate(codecs.items()):
    path, began = setup.scratch / f"text-{number}.sqfs", perf_counter()
    write_squashfs(path, documents, overwrite=True, **options)
    seconds = perf_counter() - began
    texts[codec] = SquashFS(path)
    stored[codec] = texts[codec].info()["image_bytes"] / len(documents)
    print(f"{codec:14} packed in {1000 * seconds:5,.0f} ms, {stored[codec]:7,.0f} bytes per file")
found = measure.compare({n: partial(read_some, f, 300) for n, f in texts.items()}, rounds=3, unit="files")
read_s = {codec: 1 / found.spread(codec).median for codec in ("raw", "gzip", "zstd, level 3")}
bytes_s = np.geomspace(50e6, 10e9, 41)
rates = {codec: {b: 1 / (each_s + stored[codec] / b) for b in bytes_s} for codec, each_s in read_s.items()}
longer_s = read_s["zstd, level 3"] - read_s["raw"]
pays = (stored["raw"] - stored["zstd, level 3"]) / longer_s if longer_s > 0 else bytes_s[-1]
title = f"zstd pays if one reader gets less than {pays / 1e6:,.0f} MB/s from the storage"
axes = {"x": "what one reader gets from the storage (B/s)", "y": "files per second", "log": "xy", "marks": {"equal": pays}}
show.figure(figures.lines(rates, title, **axes, note="computed from the measured times of reads from memory"))

# %% [markdown]
# Unpacking takes time; reading fewer bytes saves time. Compare the place where both are equal with the rate at which
# one reader gets *large* reads on your file system on a busy day. So store images raw, and text with zstd if the
# storage is slower than that. Level 15, `mksquashfs`'s default for zstd, takes many times as long to pack and saves
# little more.

# %% [markdown] id="sharing" tags=["core"]
# ## 4 · Share one file between workers
#
# Here are two small readers, as in many projects. Both know the position of each sample. The first reads a header, here
# of two bytes, and then the rest.

# %%
places = [reader.span(index)[1:] for index in range(len(reader))]
truth = [bytes(reader.read(index)) for index in range(len(reader))]
file = open(packed, "rb", buffering=0)


def seek_then_read(index):
    start, stop = places[index]
    file.seek(start)
    return file.read(2) + file.read(stop - start - 2)


def read_at_position(index):
    start, stop = places[index]
    return os.pread(file.fileno(), stop - start, start)


sum(seek_then_read(index) != truth[index] for index in range(len(truth)))

# %% [markdown]
# No sample is wrong. Now we do the same in a `DataLoader` with two workers. Its `Dataset` returns whether each sample
# is right.
#
# > **Predict.** How many of 12,000 samples are wrong: none, one in a thousand, or one in ten and more? Will there be an
# > error?

# %%
from torch.utils.data import DataLoader, Dataset, RandomSampler

guess = 10  # change me: so many of 12,000 samples are wrong


class IsRight(Dataset):
    def __init__(self, read):
        self.read = read

    def __len__(self):
        return len(truth)

    def __getitem__(self, index):
        return self.read(index) == truth[index]


def count_wrong(read):
    """Of 12,000 random samples, read by two workers."""
    chosen = RandomSampler(truth, replacement=True, num_samples=12_000)
    settings = {"num_workers": 2, "multiprocessing_context": "fork"}
    loader = DataLoader(IsRight(read), batch_size=100, sampler=chosen, **settings)
    return sum(int((~right).sum()) for right in loader)


# %%
readers = {"seek, then read": seek_then_read, "os.pread": read_at_position, "our reader": reader.read}
wrong = {name: count_wrong(read) for name, read in readers.items()}
seen = f"{wrong['seek, then read']:,} of 12,000 samples are wrong, with os.pread {wrong['os.pread']:,}"
title = f"With seek and read, {seen}"
show.figure(figures.bars(wrong, title, x="wrong samples of 12,000, two workers", guess=guess))

# %% [markdown]
# An open file has an *offset*, and forked workers share it, as in [notebook 04](04_pack_hdf5.ipynb). One worker seeks,
# the other seeks too, and then the first reads: from the right file, but the wrong sample. The read reports nothing.
# Some of these bytes are another photograph, under the wrong label; others no decoder accepts, and it blames the file.
# How often the workers collide depends on chance and on your CPUs; if the first bar is 0, run the cell again.
#
# ![Left: two workers share one offset, worker 2 moves it, and worker 1 reads image B instead of A. Right: with pread each names its position.](pictures/shared_offset.svg)
#
# *One open file has one offset, however many workers share it.*
#
# `os.pread` takes the position as an argument, so there is nothing to share. The package `PySquashfsImage` seeks and
# then reads, and so do others.

# %% [markdown] id="environment" tags=["optional"]
# ## 5 · Put an environment into one file
#
# *Optional, 6 minutes.* Notebook 00 counted the files that a fresh Python opens for one import. Most of them are
# modules. The folded cell counts those in memory after four imports.

# %% jupyter={"source_hidden": true}
import subprocess

COUNT = """import sys; name = sys.argv[1]; __import__(name)
print(sum(hasattr(m, '__file__') for m in [*sys.modules.values()]), sum(m.split('.')[0] == name for m in sys.modules))"""
own = {}
for name in ("json", "numpy", "networkx", "torch"):
    end = subprocess.run([sys.executable, "-c", COUNT, name], capture_output=True, text=True, check=True)
    total, own[name] = map(int, end.stdout.split())
    print(f"after import {name + ':':9} {total:6,} modules, {own[name]:4,} of them {name}'s own")

# %% [markdown]
# All processes of a job start in the same second, and each requests its modules from the metadata server. So an
# environment is a small-file problem too. A whole one is too large to pack here; the folded cell packs one package,
# `networkx`:

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
by_hash = py_compile.PycInvalidationMode.UNCHECKED_HASH  # a squashfs file keeps no times
compileall.compile_dir(place / "files", quiet=2, force=True, invalidation_mode=by_hash)
made = write_squashfs(place / "packages.sqfs", folder_items(place / "files"), compression="gzip")
print(f"{made.files:,} files, {bytes_text(made.bytes)}; one file, {bytes_text(made.image_bytes)}")

# %% [markdown]
# > **Predict.** Now put it on storage where each look-up and each open takes 2 ms. How long does the import take from
# > many files, and from one file? The number of its own modules is above.
#
# The folded cell imports it in a fresh interpreter from both.

# %% jupyter={"source_hidden": true}
from time import perf_counter

from smallfiles.slowfs import SlowConfig, open_slow


def import_from(folder, slow):
    """Seconds of a fresh interpreter, and metadata operations of the slow storage."""
    before, began = slow.counts(), perf_counter()
    variables = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([sys.executable, "-c", "import networkx"], env=variables, cwd=folder, check=True)
    seconds, after = perf_counter() - began, slow.counts()
    return seconds, sum(after[kind] - before[kind] for kind in after if kind not in ("reads", "bytes"))


imports = {}
with open_slow(place, SlowConfig(latency_s=0.002)) as slow:
    if slow.how == "fuse":
        imports["many files"] = import_from(slow.path / "files", slow)
    ways = [w.name for w in how_to_mount(packed) if w.available and w.name.startswith("squashfuse")]
    if slow.how == "fuse" and ways:
        with mount(slow.path / "packages.sqfs", way=ways[0]) as folder:
            imports["one squashfs file"] = import_from(folder, slow)
for name, (seconds, operations) in imports.items():
    each = operations / own["networkx"]
    print(f"{name:18} {seconds:5.1f} s, {operations:6,} metadata operations, {each:.1f} per module")
if not imports:
    print(slow.summary)
    print(f"Four operations per module would take {4 * own['networkx'] * slow.config.latency_s:.1f} s from many files.")

# %% [markdown]
# For each module Python looks at its folder, twice at its source, and opens the compiled file. Look-ups in the squashfs
# file happen on this node; the storage only receives reads of one open file. The first line packs the environment of
# this course; the second, in a job, broadcasts and mounts it:
#
# ```bash
# slurm/env/build.sh venv.sqfs .venv
# source slurm/lib.sh; use_environment venv.sqfs
# ```

# %% [markdown] id="exercise"
# ## Exercise
#
# [Exercise 06](../exercises/06_read_a_squashfs_image.ipynb): a reader opens the file in each process, and still returns
# wrong samples: in threads. Find out why, and write one that is right with fork, with spawn and in threads.

# %% [markdown] id="cluster"
# ## On the cluster
#
# In a job the same packing is one line; `slurm/submit SITE 06_pack_squashfs` runs it. Copy the squashfs file and its
# digest together.

# %%
show.command(config, "DATA_FOLDER", "train.sqfs")

# %% [markdown] id="key-points"
# ## Key points
#
# - Photographs: raw, no fragments. Compressing them saves almost nothing and costs every read.
# - A library reads by position and needs neither mount nor root; a mount is for programs that need files.
# - Compress text with zstd at level 3; it pays below a bandwidth that you can measure.
# - Forked workers and threads share the offset of an open file: name the position in each read.
# - An environment is thousands of small files: as one squashfs file it needs a fraction of the metadata requests.

# %% [markdown] id="quiz"
# ## Check yourself
#
# **1.** A colleague's `train.sqfs` of photographs is as large as the folder, but random reads are slow. First
# suspicion? (a) squashfs is slow (b) it was packed with the defaults: gzip and fragments (c) it must be mounted
#
# <details>
# <summary>Answer</summary>
#
# **(b)**: the size does not show it, since photographs do not compress; `python -m pysquashfs info` does. (a) raw and
# without fragments, the library reads it faster than plain files; the kernel's mount is about as fast as these, FUSE
# several times slower. (c) a mount must unpack the same blocks.
#
# </details>
#
# **2.** Your reader opens the file in `__init__` and calls `seek`, then `read`. With `num_workers=0` all is right. And
# with 2? (a) an exception (b) some wrong samples, silently (c) all right, each worker has its own copy of the object
#
# <details>
# <summary>Answer</summary>
#
# **(b)**: each worker has its own object, but all share one open file and its offset (so not c). For the kernel nothing
# is wrong, so the read raises nothing (a); a decoder may. Open the file in each process, or use `os.pread`.
#
# </details>
#
# **3.** Your storage gives one reader 2,000 MB/s, and zstd pays below 900 MB/s. Should you compress annotations? (a)
# yes, they get smaller (b) not for speed (c) never compress
#
# <details>
# <summary>Answer</summary>
#
# **(b)**: here unpacking costs more than the saved bytes. It may still be right because of a quota (a). (c) on a day
# with 300 MB/s per reader the answer is the opposite.
#
# </details>

# %% [markdown] id="next"
# ## Next
#
# squashfs, shards, Arrow and HDF5 all turn a data set into one file or a few. Notebook 07, [Stage data to
# /dev/shm](07_stage_a_dataset.ipynb), brings these close to the GPU.
