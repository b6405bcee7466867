# %% [markdown] id="top"
# # 04 · Pack samples into HDF5
#
# **Minutes** 30 · **Machine** any Linux computer with two CPUs · **Needs** notebook 03 · **Data** 400 synthetic images
#
# HDF5 is found on nearly every cluster. It can be far slower than necessary, and give a training job wrong bytes
# without an error.

# %% [markdown] id="questions"
# ## Questions
#
# - Where in an HDF5 file is my image?
# - Which line makes writing slow?
# - Why are samples wrong as soon as a DataLoader has workers?
# - What does "unable to lock file" mean?

# %% [markdown] id="objectives"
# ## After this you can
#
# - find the bytes of a sample in rows or in a blob,
# - choose a layout by the cost of a random read,
# - write a `Dataset` whose workers read the right samples,
# - get around a file lock.

# %% [markdown] id="setup"
# ## Set up

# %% id="start"
import sys

sys.path.append("..")
from helpers import figures, show, start, worksheet

setup = start("04")

# %% [markdown] id="recall"
# > **Recall** (02). A worker only *reads* the paths in a list. Why does its memory grow all the same?
#
# <details>
# <summary>Answer</summary>
#
# Reading a Python object changes its reference count, so the page that holds it is copied into the worker. A column of
# Arrow or NumPy has no such counts.
#
# </details>

# %% [markdown] id="inside" tags=["core"]
# ## 1 · Look inside a file
#
# In an HDF5 file, *groups* are like folders, *data sets* like files. Each data set is a rectangular array, but images
# have different lengths.
#
# The folded cell loads 400 `samples`, each with `key` and `data`, and their `labels`.

# %% jupyter={"source_hidden": true}
import os
import tempfile
from pathlib import Path

import h5py
import numpy as np
import xxhash

from smallfiles import formats, measure
from smallfiles.formats import hdf5
from smallfiles.pack import PackConfig, pack

source = setup.source()
packed = Path(tempfile.mkdtemp(dir=setup.scratch)) / "all.arrow"  # in a new folder, so that this cell may run twice
pack(source, packed, PackConfig(verify="none"))
reader = formats.open(packed)
samples = list(reader)
labels = reader.table(["label"])["label"].to_numpy()
colours = {"groups": ("blob", "raw chunks", "gzip chunks", "vlen")}  # the same in all figures

# %% [markdown]
# One solution is a data set of *variable-length rows*, one per image:


# %%
def write_vlen(samples, path):
    with h5py.File(path, "w") as file:
        images = file.create_dataset("train/images", len(samples), h5py.vlen_dtype(np.uint8))
        for index, sample in enumerate(samples):
            images[index] = np.frombuffer(sample.data, np.uint8)
        file["train/targets"] = labels[: len(samples)].astype(np.int16)  # such files often call labels so


# %% [markdown]
# The other stores all images in one run of bytes, a *blob*. A second data set, `offsets`, records where each begins:


# %%
def write_blob(samples, path, **storage):
    sizes = [len(sample.data) for sample in samples]
    offsets = np.cumsum([0, *sizes])
    with h5py.File(path, "w") as file:
        data = file.create_dataset("train/data", int(offsets[-1]), np.uint8, **storage)
        for sample, start, stop in zip(samples, offsets, offsets[1:]):
            data[start:stop] = np.frombuffer(sample.data, np.uint8)
        file["train/offsets"] = offsets
        file["train/labels"] = labels[: len(samples)]


# %%
vlen, blob = setup.scratch / "vlen.h5", setup.scratch / "blob.h5"
write_vlen(samples, vlen)
write_blob(samples, blob)
for path in (vlen, blob):
    with h5py.File(path) as file:
        print(path.name, *(f"  {name} {item.shape} {item.dtype}" for name, item in file["train"].items()))

# %% [markdown]
# > **Predict.** How many bytes does HDF5 count as the storage of `images`, per image of about 100 kB: 16 or 100,000?

# %%
with h5py.File(vlen) as file:
    images = file["train/images"]
    print(images.id.get_storage_size() / len(images), "bytes per row; the image has", images[7].nbytes)
    image = images[7].tobytes()

# %% [markdown]
# A row holds only a length and an address. The image is elsewhere, in a *heap*.
#
# In the blob, a sample is a slice of `data` between two neighbours in `offsets`.
#
# **Your turn.** Let the cell print `True`:

# %%
with h5py.File(blob) as file:
    data, offsets = file["train/data"], file["train/offsets"]
    start, stop = 0, 0  # change me: where image 7 begins and ends
    print("this slice is image 7:", data[start:stop].tobytes() == image)

# %% [markdown]
# <details>
# <summary>The line</summary>
#
# `start, stop = offsets[7:9]`. So n images need n + 1 offsets.
#
# </details>
#
# ![Strips of bytes: in HDF5 vlen, references lead to one heap per image; in HDF5 blob, images lie back to back and offsets follow.](pictures/bytes_of_hdf5.svg)

# %% [markdown] id="writing" tags=["optional"]
# ## 2 · Write bytes, not a list of them
#
# *Optional, 5 minutes.* Many scripts make an array of a file's bytes with `np.array(list(data))`. `np.frombuffer(data)`
# gives the same numbers.
#
# > **Predict.** How many times faster is the second for one image: 2, 100, or more than 1,000?

# %%
data = samples[7].data
ways = {
    "np.array(list(data))": lambda: np.array(list(data), dtype=np.uint8),
    "np.frombuffer(data)": lambda: np.frombuffer(data, np.uint8),
}
times = measure.compare(ways, rounds=5).times("np.frombuffer(data)", "np.array(list(data))")
print(f"np.frombuffer is {times.median:,.0f} times as fast")

# %% [markdown]
# `list(data)` makes an entry of 8 bytes for each byte. `np.frombuffer` copies nothing. Writing copies
# anyway, so there the factor is smaller. The folded cell writes files in each way, also with gzip, in *chunks*
# (section 3):

# %% jupyter={"source_hidden": true}
few, out = samples[:60], setup.scratch / "write.h5"


def write_from_lists():
    with h5py.File(out, "w") as file:
        images = file.create_dataset("train/images", len(few), h5py.vlen_dtype(np.uint8))
        for index, sample in enumerate(few):
            images[index] = np.array(list(sample.data), np.uint8)
    return len(few)


ways = {
    "vlen": lambda: write_vlen(few, out) or len(few),
    "vlen from lists": write_from_lists,
    "blob": lambda: write_blob(few, out) or len(few),
    "gzip chunks": lambda: write_blob(few, out, chunks=(1 << 20,), compression="gzip") or len(few),
}
wrote = measure.compare(ways, rounds=5, unit="images written")
lists = wrote.times("vlen", "vlen from lists").median
title = f"From lists, rows are written about {float(f'{lists:.2g}'):g} times slower"
written = {name: wrote.rates_per_s(name) for name in ways}
figures.bars(written, title, x="images written per second", note="into the page cache, not synced", **colours)

# %% [markdown]
# You can now solve task 1 of [exercise 04](../exercises/04_pack_hdf5.ipynb).

# %% [markdown] id="reading" tags=["core"]
# ## 3 · Read one sample at random
#
# HDF5 can store a data set *contiguous*, as one run, or in *chunks*, which can be compressed.
#
# > **Predict.** Images have about 100 kB, chunks 1 MiB. How many bytes are read per byte delivered: 1, 2 or 10?

# %%
guess = 2  # change me: bytes read per byte delivered, from 1 MiB chunks; the next figure shows it

# %%
chunk_bytes = 1 << 20  # 1 MiB; change me later
cache_bytes = 1 << 20  # change me later
layouts = {"vlen": vlen, "blob": blob}  # and the same images in chunks:
for name, compression in {"raw chunks": None, "gzip chunks": "gzip"}.items():
    layouts[name] = setup.scratch / f"{name}.h5"
    write_blob(samples, layouts[name], chunks=(chunk_bytes,), compression=compression)


def reader_of(opened):  # a function that reads one sample
    group = opened["train"]
    if "images" in group:
        return group["images"].__getitem__
    data, offsets = group["data"], group["offsets"][...]
    return lambda index: data[offsets[index] : offsets[index + 1]]


# %% [markdown]
# On shared storage bytes cross the network, and each read is a request. The folded cell counts both. We let
# HDF5's cache hold one chunk: in a large file, random reads rarely find their chunk there.

# %% jupyter={"source_hidden": true}
import io


class CountingFile(io.FileIO):
    count = calls = 0

    def readinto(self, buffer):
        got = super().readinto(buffer)
        self.count, self.calls = self.count + got, self.calls + 1
        return got


read_per_byte, reads = {}, {}
order = np.random.default_rng(0).permutation(len(samples))
for name, path in layouts.items():
    with CountingFile(path) as file, h5py.File(file, rdcc_nbytes=cache_bytes) as opened:
        read, before, calls = reader_of(opened), file.count, file.calls
        delivered = sum(len(read(index)) for index in order)
        read_per_byte[name] = round((file.count - before) / delivered, 1)
        reads[name] = (file.calls - calls) / len(order)
size = "1 MiB" if chunk_bytes == 1 << 20 else f"{chunk_bytes / 1000:g} kB"
how = {"note": "random reads through a Python file", "counted": True, **colours}
title = f"HDF5 reads about {read_per_byte['raw chunks']:.2g} times the bytes of an image from chunks of {size}"
show.figure(figures.bars(read_per_byte, title, x="bytes read per byte delivered", guess=guess, **how))
print("reads per image:", ", ".join(f"{name} {count:.2g}" for name, count in reads.items()))

# %% [markdown]
# HDF5 fetches a chunk whole into its cache: 1 MiB for an image of 110 kB. `vlen` needs up to three reads: the row, the
# head of its heap, the image. A blob needs one.
#
# > **Predict.** Chunks of 10 kB waste less. What do they cost instead?
#
# **Your turn.** Set `chunk_bytes = 10_000` above and run again from there. Then try 1 MiB with `cache_bytes = 0`.
#
# <details>
# <summary>What you see</summary>
#
# With 10 kB about 1.1 bytes per byte, but about 12 reads: small chunks save bytes and cost requests. Without a cache,
# raw chunks cost one byte per byte: HDF5 reads the slice alone from a raw chunk that does not fit its cache. (The
# default cache has 1 MiB, from HDF5 2.0 on 8 MiB.) Gzip chunks still cost 10, because they must be unpacked whole.
#
# </details>
#
# ### Small samples
#
# The folded cell reads samples of 10 kB from contiguous data, through HDF5 and with `os.pread`:

# %% jupyter={"source_hidden": true}
small, size = setup.scratch / "small.h5", 10_000
with h5py.File(small, "w") as file:
    file["data"] = np.zeros(size * len(samples), np.uint8)
with h5py.File(small) as file, small.open("rb") as plain:
    data, first = file["data"], file["data"].id.get_offset()
    for name in ("HDF5", "os.pread"):
        with measure.system_calls() as calls:  # counts the bytes that are read, where the system tells
            for start in size * order:
                data[start : start + size] if name == "HDF5" else os.pread(plain.fileno(), size, first + start)
        if calls["bytes"]:
            print(f"{name}: {calls['bytes'] / (size * len(order)):.1f} bytes read per byte delivered")

# %% [markdown]
# For a slice below 64 KiB, HDF5 fetches 64 KiB. In a file of more than 4,096 rows, the 16 bytes of a `vlen` row may
# cost 64 KiB, too. From a blob, read samples below 64 KiB with `os.pread`: contiguous data begin at
# `data.id.get_offset()`.
#
# ### Time
#
# > **Predict.** Which layout is the slowest, if all files are in the page cache?

# %%
slowest = "vlen"  # change me: vlen, blob, raw chunks or gzip chunks

# %% [markdown]
# The folded cell hashes all images in random order.

# %% jupyter={"source_hidden": true}
from functools import partial


def read_all(read):
    for index in order:
        xxhash.xxh3_64_intdigest(read(index))
    return len(order)


opened = {name: h5py.File(path, rdcc_nbytes=cache_bytes) for name, path in layouts.items()}
ways = {name: partial(read_all, reader_of(file)) for name, file in opened.items()}
found = measure.compare(ways, rounds=5, unit="images")
for file in opened.values():
    file.close()
rates = {name: found.rates_per_s(name) for name in layouts}
slower = [name for name in rates if max(rates[name]) < min(rates["blob"])]  # dots do not overlap
alike = {}  # the layouts by how many times as fast a blob is
for name in slower:
    times = found.times("blob", name).median
    alike.setdefault(float(f"{round(times) if times > 3 else times:.2g}"), []).append(name.replace("gzip chunks", "gzip"))
ends = sorted(alike)[:1] + sorted(alike)[1:][-1:]  # the least and the most
faster = ", ".join(f"{times:g} times as fast as {' or '.join(alike[times])}" for times in ends)
title = f"A blob is read {faster or 'not clearly faster'}"
if cache_bytes:
    worksheet.note("04", layout=max(rates, key=lambda name: np.median(rates[name])))
how = {"note": "random reads, warm cache", "log": True, **colours}
figures.bars(rates, title, x="images per second", guess=slowest, **how)

# %% [markdown]
# Whole chunks cost time even in memory: ten times the bytes are copied, or unpacked. `vlen` costs look-ups and more
# copies. So store samples contiguous. But contiguous data cannot grow, so `write_blob` sums the sizes first.
#
# You can now solve tasks 3 and 4 of [exercise 04](../exercises/04_pack_hdf5.ipynb).

# %% [markdown] id="fork" tags=["core"]
# ## 4 · Close the file before workers start
#
# A DataLoader forks its workers: each is a copy of the parent, with the same open files. An open file has an *offset*,
# the position where the next read begins, and all copies share it. If one worker moves it (a *seek*), another reads at
# the wrong position.
#
# A common first version opens the file in the parent:


# %%
import torch


class OpenedInInit(torch.utils.data.Dataset):  # do not copy this
    def __init__(self, path, **how):
        self.group = h5py.File(path, "r", **how)["train"]
        self.offsets = self.group["offsets"][...]

    def __len__(self):
        return len(self.offsets) - 1

    def __getitem__(self, index):
        start, stop = self.offsets[index : index + 2]
        return index, self.group["data"][start:stop].tobytes()


# %% [markdown]
# `count_wrong` compares the hashes of 2,000 samples with those of the right images.

# %%
from torch.utils.data import DataLoader, RandomSampler

truth = [xxhash.xxh3_64_intdigest(sample.data) for sample in samples]


def hashed(batch):  # runs in the worker
    return [(index, xxhash.xxh3_64_intdigest(data)) for index, data in batch]


def count_wrong(dataset, workers=2):
    settings = {"multiprocessing_context": "fork", "timeout": 60} if workers else {}
    chosen = RandomSampler(dataset, replacement=True, num_samples=2_000)
    loader = DataLoader(dataset, 100, sampler=chosen, num_workers=workers, collate_fn=hashed, **settings)
    wrong = sum(digest != truth[index] for batch in loader for index, digest in batch)
    return f"{wrong:4} of 2,000 samples are wrong"


# %% [markdown]
# HDF5 reads files by a *driver*. The default one usually names the position in each read (`pread`). The driver `stdio`
# seeks, then reads.
#
# > **Predict.** Each driver runs with 0 and with 2 workers. Which runs give wrong samples? Will there be an error?

# %%
for name, how in {"default driver": {}, "stdio": {"driver": "stdio"}}.items():
    dataset = OpenedInInit(blob, **how)
    for workers in (0, 2):
        print(f"{name:14} {workers} workers: {count_wrong(dataset, workers)}")
    dataset.group.file.close()

# %% [markdown]
# With `stdio` and two workers some samples are wrong, without an error. (If none, run the cell again.) h5py from PyPI
# uses `pread`, but another build may seek. So the same program can be wrong elsewhere
# ([pytorch#11887](https://github.com/pytorch/pytorch/issues/11887)): run `count_wrong` there a few times. Even 0 is not a
# proof: close the file anyway.
#
# ![Left: two workers share one offset, worker 2 moves it, and worker 1 reads image B instead of A. Right: with pread each names its position.](pictures/shared_offset.svg)
#
# The usual advice: open the file at the first read, in the process that reads.


# %%
class OpenedInWorker(torch.utils.data.Dataset):
    def __init__(self, path, **how):
        self.path, self.how, self.process = path, how, None
        with h5py.File(path, "r", **how) as file:  # closed again at once
            self.offsets = file["train/offsets"][...]

    def __len__(self):
        return len(self.offsets) - 1

    def __getitem__(self, index):
        if self.process != os.getpid():  # at its first read, a process opens the file
            self.file, self.process = h5py.File(self.path, "r", **self.how), os.getpid()
            self.data = self.file["train/data"]
        start, stop = self.offsets[index : index + 2]
        return index, self.data[start:stop].tobytes()

    def close(self):
        if self.process:
            self.file.close()
        self.file = self.data = self.process = None


# %% [markdown]
# But many programs look at a sample before training. Then the parent has the file open when it forks.
#
# > **Predict.** Each worker opens the file itself. Are all samples right now?

# %%
dataset = OpenedInWorker(blob, driver="stdio")
dataset[0]  # the parent looks at a sample
# dataset.close()  # change me: take the first # away
print(count_wrong(dataset))
dataset.close()

# %% [markdown]
# In most runs samples are wrong again (timing decides how many). HDF5 keeps a table of its open files, and a fork
# copies it. A worker that opens the same file gets the parent's *descriptor* (the kernel's number of an open file), with the shared offset.
#
# **Your turn.** Let the parent close the file before the workers start, and run the cell again.
#
# <details>
# <summary>What you see</summary>
#
# No sample is wrong, in any run.
#
# </details>
#
# The folded cell lists the descriptors of one file, after the worker has opened it once more:

# %% jupyter={"source_hidden": true}
import shutil

alone = Path(shutil.copy(blob, setup.scratch / "alone.h5"))  # not open anywhere


def descriptors(batch=()):
    """Those of this file in this process."""
    links = Path("/proc/self/fd").iterdir()
    return [int(link.name) for link in links if os.path.realpath(link) == os.path.realpath(alone)]


dataset = OpenedInWorker(alone)
for when in ("open", "closed"):
    dataset[0] if when == "open" else dataset.close()
    loader = DataLoader(dataset, 100, num_workers=1, multiprocessing_context="fork", collate_fn=descriptors)
    print(f"{when} in the parent: descriptors there {descriptors()}, in the worker {next(iter(loader))}")

# %% [markdown]
# So the rule has two halves: open in the process that reads, *and have the file closed in the parent when workers
# start*. `os.register_at_fork(before=…)` closes it at each fork; exercise 04 uses that. `os.pread` (section 3) needs no
# open HDF5 file.
#
# From Python 3.14 on, workers on Linux are no longer copies, and get what is pickled
# ([pytorch#138957](https://github.com/pytorch/pytorch/issues/138957)). A `Dataset` with an open file cannot be pickled,
# one with a path can:

# %%
import pickle

dataset = OpenedInWorker(blob)
dataset[0]
for when in ("after a read", "after close()"):
    try:
        print(f"{when}: {len(pickle.dumps(dataset)):,} bytes")
    except TypeError as error:
        print(f"{when}: {error}")
    dataset.close()

# %% [markdown]
# You can now solve task 2 of [exercise 04](../exercises/04_pack_hdf5.ipynb).

# %% [markdown] id="locks" tags=["optional"]
# ## 5 · Meet the file lock
#
# *Optional, 5 minutes.* HDF5 locks each file that it opens, so that no process reads while another writes.
#
# > **Predict.** This kernel has the file open for reading (`r`). May another process read it, or write to it? And with
# > `r+`, for writing? The folded cell tries it.

# %% jupyter={"source_hidden": true}
import subprocess

ASK = "import h5py, sys; h5py.File(sys.argv[1], sys.argv[2])"
LATE = "import os; import h5py; os.environ['HDF5_USE_FILE_LOCKING'] = 'FALSE'; h5py.File(sys.argv[1], sys.argv[2])"


def ask(mode, code=ASK, **variables):
    """What another process gets that opens the file."""
    command = [sys.executable, "-c", f"import sys; {code}", str(blob), mode]
    end = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True)
    return "opened" if end.returncode == 0 else end.stderr.strip().splitlines()[-1].rpartition("(")[2].rstrip(")")


for held in ("r", "r+"):
    with h5py.File(blob, held):
        print(f"held for {held}:  read {ask('r')}")
        print(f"             write {ask('r+')}")
        if held == "r+":
            print(f"             read, locks off before import: {ask('r', HDF5_USE_FILE_LOCKING='FALSE')}")
            print(f"             read, locks off after import: {ask('r', LATE)}")

# %% [markdown]
# Many may read, but a writer needs the file alone. For files that no longer change you may switch locks off: by
# `h5py.File(path, locking=False)` at each open, or by `HDF5_USE_FILE_LOCKING=FALSE`, set before h5py is imported.
#
# <details>
# <summary>Other messages about locks</summary>
#
# "file locking flag values don't match": this process has the file open with another setting. "No locks available": the
# file system has no locks, so that even reading fails ([h5py#1101](https://github.com/h5py/h5py/issues/1101)). Or there
# is no message: on Lustre without `flock`, a new HDF5 opens the file unprotected.
#
# </details>

# %% [markdown] id="exercise"
# ## Exercise
#
# [Exercise 04](../exercises/04_pack_hdf5.ipynb): turn rows of variable length into one run of bytes, read it in any
# worker, and choose the size of chunks.

# %% [markdown] id="cluster"
# ## On the cluster
#
# The same packing (a blob is the default); as a job, `slurm/submit SITE 04_pack_hdf5`:

# %%
show.command(PackConfig(options=hdf5.Options(layout="blob")), "DATA_FOLDER", "train.h5")

# %% [markdown] id="key-points"
# ## Key points
#
# - An image is stored in a heap behind a row of variable length, or in one run of bytes between two offsets.
# - Write `np.frombuffer(data, np.uint8)`, never `np.array(list(data))`.
# - Chunks are read whole if they are compressed or fit the cache, and JPEG does not shrink: store samples contiguous.
# - Open the file in the worker, and close it in the parent before workers start.
# - Switch locks off only for files that are complete.

# %% [markdown] id="quiz"
# ## Check yourself
#
# **1.** A colleague with the cluster's h5py trains on decoded pixels, all images of equal size. With 4 workers the
# accuracy is always slightly lower than with `num_workers=0`, without an error. What do you check first? (a) The
# seeds of the augmentation. (b) Where the file is opened and closed. (c) The shuffle.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**. Workers that share an offset return a few images that do not belong to their labels, so the loss still falls.
# (a) Each worker has its own seed; that gives other views, not worse ones. (c) The parent draws the order, however
# many workers read.
#
# </details>
#
# **2.** A colleague stores your JPEG files with `chunks=(1 << 20,), compression="gzip"`. What happens?
# (a) The file becomes much smaller. (b) Random reads fetch and unpack many times the bytes. (c) Writing gets faster.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**. A chunk is read whole for each image. (a) JPEG is compressed already; gzip saves less than one percent
# ([05](05_shard_a_dataset.ipynb)). (c) Compressing takes time.
#
# </details>
#
# **3.** Your training stops with "unable to lock file". What do you do first? (a) Switch locks off. (b) Find out which
# program has the file open for writing. (c) Copy the file.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**. As a rule a writer holds the file, so it may not be complete. (a) Without locks you would read what is half
# written. Switch them off only if nobody writes. (c) The copy would be half written, too.
#
# </details>

# %% [markdown] id="next"
# ## Next
#
# [05 · Shard a data set into tar files](05_shard_a_dataset.ipynb): files that are read from front to back.
