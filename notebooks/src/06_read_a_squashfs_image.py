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
# - pack a squashfs file that is fast to read at random, and say why another one is slow,
# - read it from any process without a mount,
# - find the bandwidth below which compression pays,
# - write a reader whose workers share no offset,
# - put a Python environment into one file.

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
# The second file is the content digest. Keep it: squashfs has no checksum of its data, so only the digest reveals a
# flipped byte.
#
# `SquashFS` opens the file by paths, `formats.open` as numbered samples:

# %%
with SquashFS(packed) as opened:
    name = opened.paths[-1]
    print(len(opened), "files;", name, opened.stat(name).size, "bytes, starts with", opened.read(name)[:2])

reader = formats.open(packed)
reader.key(7), reader.target(7), reader.classes[reader.target(7)], reader.span(7)[1:]

# %% [markdown]
# Each image is a file at its own path; three more, in `.smallfiles`, hold labels and order. An image lies in one piece:
# the last two numbers are its first byte and the byte after its last.

# %% [markdown] id="settings" tags=["core"]
# ## 1 · Choose the settings
#
# Two settings can make random reads slow. *Compression*: each file is cut into *blocks*, and each block is compressed.
# *Fragments*: several files smaller than a block share one, and so do the ends of larger files. With blocks of 128 KiB
# most of our images are smaller than a block, with 1 MiB all are.
#
# The first setting is nearly the default of `mksquashfs`:

# %%
from pysquashfs import pack as write_squashfs

settings = {
    "gzip, fragments": {"compression": "gzip", "level": 9, "fragments": True},
    "gzip, 1 MiB fragments": {"compression": "gzip", "level": 9, "fragments": True, "block_bytes": 1 << 20},
    "gzip, no fragments": {"compression": "gzip", "level": 9},
    "raw, 1 MiB fragments": {"fragments": True, "block_bytes": 1 << 20},
    "raw, no fragments": {},  # add a line of your own, such as {"compression": "zstd"}
}
photos = [(reader.key(index), bytes(reader.read(index))) for index in range(240)]
written, photo_bytes = {}, sum(len(data) for _, data in photos)
for number, (name, options) in enumerate(settings.items()):
    path = setup.scratch / f"setting-{number}.sqfs"
    write_squashfs(path, photos, overwrite=True, **options)
    written[name] = SquashFS(path)
    print(f"{name:21} saves {1 - path.stat().st_size / photo_bytes:6.2%}")

# %% [markdown]
# > **Predict.** The sizes hardly differ. zlib unpacks photographs at some 500 MB/s, memory is read at some 10 GB/s. A
# > random read from *gzip, fragments* takes how many times as long as one from *raw, no fragments*?

# %%
guess = 5  # change me: times as long


def read_all(opened):
    for key in random.sample(opened.paths, len(opened)):  # in another order in each round
        opened.read(key)
    return len(opened)


found = measure.compare({n: partial(read_all, f) for n, f in written.items()}, rounds=7, unit="images")

# %% [markdown]
# The folded cell draws the times, and prints how many bytes the library fetches.

# %% jupyter={"source_hidden": true}
base, raw = "gzip, fragments", "raw, no fragments"
slower, slowest = (found.times(raw, name).median for name in ("gzip, no fragments", "gzip, 1 MiB fragments"))
title = f"gzip makes a random read {slower:.0f} times as long as raw, and compressed fragments of 1 MiB {slowest:.0f} times"
rates = {name: np.array(found.rates_per_s(name)) for name in written}
times = {name: np.median(rates[raw]) / runs for name, runs in rates.items()}
x, note = f"time of a random read, relative to {raw}", f"warm page cache; 1 is {1e6 / np.median(rates[raw]):.0f} µs"
show.figure(figures.bars(times, title, x=x, base=raw, guess=guess, guess_of=base, note=note, log=True))
for name, opened in written.items():
    print(f"{name:21} fetches {opened.info()['read_amplification']:5.2f} bytes per byte delivered")

# %% [markdown]
# For the first dot expect 8 to 40, nearly all from gzip: unpacking takes some 0.2 ms per image, decoding 1 ms.
#
# Fragments of 128 KiB add little, because each holds one or two images. One of 1 MiB holds about ten. If it is
# compressed, it is fetched and unpacked whole for each image. If it is raw, our library reads only the image's part (by
# a call, which is slower than the memory map); a mount fetches it whole.
#
# `info` looks for both faults in any squashfs file:

# %%
for name in (base, raw):
    print(f"{name}:", *written[name].info()["findings"], sep="\n  ")
for opened in written.values():
    opened.close()

# %% [markdown]
# `python -m pysquashfs info FILE` prints the same. With `mksquashfs` (4.4 or later) use:

# %%
from pysquashfs.info import RECOMMENDED

print(RECOMMENDED)

# %% [markdown]
# `-noD` and `-noF` leave data and fragments uncompressed, `-no-fragments` keeps files in one piece. The index is
# compressed by gzip. Without `-noappend`, a second run adds all files again. The rest drops owners, times and
# attributes, so that equal data give an equal file.

# %% [markdown] id="mount" tags=["optional"]
# ## 2 · Compare the library with a mount
#
# *Optional, 5 minutes.*
#
# > **Predict.** All is in the page cache. Which is fastest for a random image: plain files, a mount, or the library?

# %%
guess = "plain files"  # change me: or "mount", or "library"

# %% [markdown]
# The folded cell mounts the file in every way that works here, for each first epoch anew.

# %% jupyter={"source_hidden": true}
from contextlib import ExitStack
from time import perf_counter

from pysquashfs import mount
from pysquashfs.mounting import how_to_mount

keys = [reader.key(index) for index in random.Random(1).sample(range(len(reader)), len(reader))]


def read_files(folder):
    for key in keys:
        file = os.open(f"{folder}/{key}", os.O_RDONLY)
        os.read(file, os.fstat(file).st_size)
        os.close(file)
    return len(keys)


def read_library(opened):
    for key in keys:
        opened.read(key)
    return len(keys)


def first_epoch(way):
    """Images per second in the first epoch of a new mount."""
    with mount(packed, way=way) as folder:
        began = perf_counter()
        return read_files(folder) / (perf_counter() - began)


with ExitStack() as stack:
    ways, first = {"plain files": partial(read_files, source.root)}, {}
    for way in how_to_mount(packed):
        print(f"{'yes' if way.available else 'no ':4} {way.name:15} {way.reason}")
        if way.available and way.inside:
            first[f"mount, {way.name}, first epoch"] = [first_epoch(way.name) for _ in range(5)]
            folder = stack.enter_context(mount(packed, way=way.name))
            ways[f"mount, {way.name}, later epochs"] = partial(read_files, folder)
    ways["library"] = partial(read_library, stack.enter_context(SquashFS(packed)))
    speeds = measure.compare(ways, rounds=5, unit="images")
drawn = dict(sorted((first | {name: speeds.rates_per_s(name) for name in speeds.runs}).items()))
gain = speeds.times("library", "plain files").median
title = f"The library reads {gain:.1f} times as many images per second as plain files"
if first:
    early = [np.median(drawn["library"]) / np.median(drawn[name]) for name in first]
    ratios = " to ".join(dict.fromkeys(f"{ratio:.0f}" for ratio in (min(early), max(early))))
    title += f", and {ratios} times as many as a mount in its first epoch"
    if max(max(drawn[name]) for name in drawn if name.startswith("mount")) < min(drawn["plain files"]):
        title += "; plain files are faster than every mount"
else:
    title += "; no mount works here"
guessed = next((name for name in drawn if name.startswith(guess)), None)  # None where no mount works
x = {"x": "images per second", "note": "warm page cache"}
show.figure(figures.bars(drawn, title, base="plain files", groups=("later", "first", "library"), guess=guessed, **x))

# %% [markdown]
# The library has all positions in its index, and on a local file system it copies from a memory map. Plain files need
# calls of the kernel: open, read and close. A mount needs these too, and the kernel must find each file in the squashfs
# file, with FUSE by asking another process.
#
# The kernel keeps what it found, so later epochs are faster, with its own mount sometimes as fast as plain files. With
# FUSE, memory must have room for both the images and the squashfs file.

# %% [markdown] id="compression" tags=["optional"]
# ## 3 · Compress what compresses
#
# *Optional, 5 minutes.* Annotations are often JSON, mostly repetition.
#
# > **Predict.** zstd makes them several times smaller. Is reading them faster or slower when the file is in memory?
# > Slow storage delivers the smaller file sooner: at which bandwidth are both alike?

# %%
guess = 1e9  # change me: bytes per second

# %% [markdown]
# The folded cell packs 300 documents in four ways. For three of them it computes the rate from storage of each
# bandwidth.

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
del texts["zstd, level 15"]  # it unpacks about as fast as level 3
found = measure.compare({n: partial(read_all, f) for n, f in texts.items()}, rounds=3, unit="files")
read_s = {codec: 1 / found.spread(codec).median for codec in texts}
bytes_s = np.geomspace(50e6, 10e9, 41)
rates = {codec: {b: 1 / (each_s + stored[codec] / b) for b in bytes_s} for codec, each_s in read_s.items()}
longer_s = read_s["zstd, level 3"] - read_s["raw"]
pays = (stored["raw"] - stored["zstd, level 3"]) / longer_s if longer_s > 0 else bytes_s[-1]
title = f"Read in long runs, zstd pays below {pays / 1e6:,.0f} MB/s for one reader"
axes = {"x": "what one reader gets from the storage (B/s)", "y": "files per second", "log": "xy", "marks": {"raw = zstd": pays}}
show.figure(figures.lines(rates, title, **axes, guess=guess, note="computed from measured reads from memory, without requests"))

# %% [markdown]
# Left of the dotted line zstd pays, because unpacking takes less time than the saved bytes would. Compare this
# bandwidth with what one reader gets in *large* reads on a busy day.
#
# If each file is a request of 0.5 ms, 8 kB more or less hardly matters. So use zstd for text that is read in long runs,
# for staging, and for the quota. Level 15, `mksquashfs`'s default, takes many times as long to pack and saves little
# more.

# %% [markdown] id="sharing" tags=["core"]
# ## 4 · Share one file between workers
#
# `seek_then_read` knows where each image begins and ends (`places`). The last line counts the wrong samples in one
# process.

# %%
places = [reader.span(index)[1:] for index in range(len(reader))]
truth = [bytes(reader.read(index)) for index in range(len(reader))]
file = open(packed, "rb", buffering=0)


def seek_then_read(index):
    start, stop = places[index]
    file.seek(start)
    return file.read(stop - start)


sum(seek_then_read(index) != truth[index] for index in range(len(truth)))

# %% [markdown]
# None is wrong. Now two workers of a `DataLoader` read. Its `Dataset` compares each sample with the right one, and lets
# Pillow decode the wrong ones.
#
# > **Predict.** Are any of 30,000 samples wrong? And what percentage of the wrong ones does Pillow decode without an
# > error: 0, 25, 75 or 100?

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
    """Wrong samples of 30,000 random ones, by what Pillow makes of them; two workers read."""
    chosen = RandomSampler(truth, replacement=True, num_samples=30_000)
    settings = {"num_workers": 2, "multiprocessing_context": "fork"}
    found = np.concatenate([*DataLoader(Compared(read), batch_size=100, sampler=chosen, **settings)])
    return {"decoded without an error": int((found == 2).sum()), "refused": int((found == 1).sum())}


readers = {"seek, then read": seek_then_read, "our reader": reader.read}
wrong = {name: count_wrong(read) for name, read in readers.items()}
decoded, bad = wrong["seek, then read"]["decoded without an error"], sum(wrong["seek, then read"].values())
title = f"With seek and read, {bad} of 30,000 samples are wrong, {decoded} of them silently; "
title += f"with our reader {sum(wrong['our reader'].values())}"
asked = {"guess_of": "seek", "guess_text": f"{guess}% decoded", "x": "wrong samples of 30,000, two workers"}
show.figure(figures.bars(wrong, title, guess=guess * bad / 100, **asked))

# %% [markdown]
# An open file has an *offset*, where the next read begins, and forked workers share it, as in [notebook
# 04](04_pack_hdf5.ipynb). One worker seeks, the other seeks too, then the first reads from the wrong place. Nothing is
# reported.
#
# Of two reads that collide, the first gets another photograph from its start, half the time cut short. The second
# begins inside a photograph. So Pillow refuses about three in four, and blames the file. The rest are another
# photograph under this label. Collisions depend on chance and on your CPUs: if the first bar is 0, run the cell again.
#
# ![Left: two workers share one offset, worker 2 moves it, and worker 1 reads image B instead of A. Right: with pread each names its position.](pictures/shared_offset.svg)
#
# `os.pread` takes the position as an argument, so there is nothing to share. Your turn: let `my_reader` use it, until
# nothing is wrong (a file's descriptor is `file.fileno()`).

# %%
def my_reader(index):
    start, stop = places[index]
    return seek_then_read(index)  # change me to: os.pread(descriptor, size, position)


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
# *Optional, 6 minutes.* The same archive cures another set of small files: your Python environment. The folded cell
# counts the modules in memory after two imports.

# %% jupyter={"source_hidden": true}
import subprocess

COUNT = """import sys; name = sys.argv[1]; __import__(name)
print(sum(hasattr(m, '__file__') for m in [*sys.modules.values()]), sum(m.split('.')[0] == name for m in sys.modules))"""
own = {}
for name in ("networkx", "torch"):
    end = subprocess.run([sys.executable, "-c", COUNT, name], capture_output=True, text=True, check=True)
    total, own[name] = map(int, end.stdout.split())
    print(f"after import {name + ':':9} {total:6,} modules, {own[name]:4,} of them {name}'s own")

# %% [markdown]
# Each module is a file, and all processes of a job request them in the same second. On simulated storage that caches no
# names (`slurm/env/README.md`), `import torch` by 2 × 4 ranks took 51,488 look-ups and 8,208 opens, and from one
# squashfs file 5 and 2. (With two CPUs for all eight, one file took 98 s, many 72.)
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
# > **Predict.** For each own module (counted above) Python looks at its folder, twice at its source, and opens the
# > compiled file. If each of these four takes 2 ms, how long does importing `networkx` take from many files, and from
# > one?

# %%
latency_s = 0.002  # change me, also to 0.01
guess = {"many files": 1.0, "one squashfs file": 1.0}  # change me: seconds

# %% [markdown]
# The folded cell imports it from both, in a fresh interpreter. The time includes the mount.

# %% jupyter={"source_hidden": true}
from contextlib import nullcontext

from smallfiles.slowfs import SlowConfig, open_slow


def import_from(place, slow):
    """Seconds of mounting and of a fresh interpreter, and metadata operations of the slow storage."""
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
    ways = [w.name for w in how_to_mount(packed) if w.available and w.name.startswith("squashfuse")]
    if slow.how == "fuse" and ways:
        imports["one squashfs file"] = import_from(mount(slow.path / "packages.sqfs", way=ways[0]), slow)
for name, (seconds, operations) in imports.items():
    each = operations / own["networkx"]
    print(f"{name:18} {seconds:5.1f} s (guess {guess[name]:.1f} s), {operations:6,} metadata operations, {each:.1f} per module")
if not imports:
    print(slow.summary)
    print(f"Four operations per module would take {4 * own['networkx'] * slow.config.latency_s:.1f} s from many files.")

# %% [markdown]
# Look-ups in the squashfs file happen on this node. The storage receives a few requests for the mount, then only reads
# (`slowfs` does not delay these, so the gain is an upper bound). In a job, the second line broadcasts and mounts the
# file:
#
# ```bash
# slurm/env/build.sh venv.sqfs .venv
# source slurm/lib.sh; use_environment venv.sqfs
# ```
#
# Then start programs with `python -m …`: scripts such as `torchrun` run the old environment. Its Python must be on the
# node too.

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
# - Photographs: raw, no fragments. Compressing them saves almost nothing and costs every read.
# - A library needs neither mount nor root; a mount is for programs that need files.
# - Compress text with zstd at level 3; in long reads it pays below a bandwidth that you can measure.
# - Forked workers and threads share the offset of an open file: name the position in each read.
# - An environment is thousands of small files: as one squashfs file it needs a fraction of the metadata requests.

# %% [markdown] id="quiz"
# ## Check yourself
#
# **1.** A `train.sqfs` of photographs is as large as the folder, but random reads are slow. First suspicion?
# (a) squashfs is slow (b) it was packed with the defaults: gzip and fragments (c) it must be mounted
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
# is wrong, so the read raises nothing (a); a decoder may. Open the file in each process, or use `os.pread`. From 3.14
# on, it is (a): an open file cannot be sent to a worker.
#
# </details>
#
# **3.** Your storage gives one reader 2,000 MB/s, and zstd pays below 900 MB/s. Should you compress annotations that
# are read in long runs? (a) yes, they get smaller (b) not for speed (c) never compress
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
# [07 · Stage data to /dev/shm](07_stage_a_dataset.ipynb) brings packed files close to the GPU.
