# %% [markdown] id="top"
# # 04 · Pack samples into HDF5
#
# **Minutes** 30 · **Machine** any Linux computer with two CPUs · **Needs** notebook 03 · **Data** 400 synthetic images
#
# Nearly every cluster has HDF5, and many data sets are already stored in it. But there are several ways to store images in
# an HDF5 file, and with some of them, a training reads about ten times as many bytes as it needs. There is a second problem.
# If a PyTorch `Dataset` opens the file before its workers start, the workers can return wrong images, and no error is raised.

# %% [markdown] id="questions"
# ## Questions
#
# - Where in an HDF5 file are the bytes of my image?
# - Which line makes my conversion script slow?
# - Why do I get wrong samples as soon as the DataLoader has workers?
# - What does "unable to lock file" mean?

# %% [markdown] id="objectives"
# ## After this you can
#
# - find the bytes of a sample, whether the file has one row per image or one long array,
# - choose a layout by the number of bytes and reads that a random sample costs,
# - write a `Dataset` whose workers always return the right samples,
# - deal with a locked file.

# %% [markdown] id="setup"
# ## Set up
#
# Most findings of this notebook are counts of bytes and reads, which are the same on a busy machine. Only section 2 and the
# last part of section 3 compare speeds.

# %% id="start"
import sys

sys.path.append("..")
from helpers import figures, show, start, worksheet

setup = start("04")

# %% [markdown] id="recall"
# > **Recall** (02). A Dataset keeps its paths in a Python list. The workers only *read* this list. Why does the memory of
# > each worker grow anyway?
#
# <details>
# <summary>Answer</summary>
#
# Reading a Python object changes its reference count, which is stored in the object itself. So Linux must give the worker its
# own copy of the memory page that contains the object. The values in a column of Arrow or NumPy have no reference counts, so
# nothing is copied when a worker reads them.
#
# </details>

# %% [markdown] id="inside" tags=["core"]
# ## 1 · Look inside a file
#
# An HDF5 file is organised like a file system. Its folders are called *groups*, and its files are called *data sets*. In
# this course, a data set is the whole collection of images, so we call an HDF5 data set an **array**. All rows of an
# ordinary array have the same length. But JPEG images have different lengths, so we must decide how to store them.
#
# The *folded* cell loads 400 `samples`, each with a `key` and its bytes in `data`, and their `labels`.

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
packed = Path(tempfile.mkdtemp(dir=setup.scratch)) / "all.arrow"  # a new folder, so this cell can run twice
pack(source, packed, PackConfig(verify="none"))
reader = formats.open(packed)
samples = list(reader)
labels = reader.table(["label"])["label"].to_numpy()
colours = {"groups": ("blob", "raw chunks", "gzip chunks", "vlen")}  # the same in all figures

# %% [markdown]
# There are two common solutions. The first is an array of *variable-length rows* (`vlen`), with one row for each image:


# %%
def write_vlen(samples, path):
    with h5py.File(path, "w") as file:
        images = file.create_dataset("train/images", len(samples), h5py.vlen_dtype(np.uint8))
        for index, sample in enumerate(samples):
            images[index] = np.frombuffer(sample.data, np.uint8)
        file["train/targets"] = labels[: len(samples)]  # many such files call the labels "targets"


# %% [markdown]
# The second solution writes all images one after the other into a single long array of bytes, which is called a *blob*. A
# second array, `offsets`, stores the position at which each image begins:


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


# %% [markdown]
# We write both files, and list their arrays:

# %%
vlen, blob = setup.scratch / "vlen.h5", setup.scratch / "blob.h5"
write_vlen(samples, vlen)
write_blob(samples, blob)
for path in (vlen, blob):
    with h5py.File(path) as file:
        for name, item in file["train"].items():
            print(path.name, name, item.shape, item.dtype)

# %% [markdown]
# > **Predict.** An image has about 100 kB. How many bytes does one row take up in the array `images`?

# %%
guess = None  # your guess, bytes per row: for example 100_000

# %% tags=["slide"]
with h5py.File(vlen) as file:
    images = file["train/images"]
    print(images.id.get_storage_size() / len(images), "bytes per row")
    image = images[7].tobytes()
    print(f"image 7 has {len(image):,} bytes")

# %% [markdown]
# A row takes up only 16 bytes, which contain a length and an address. The image itself is somewhere else in the file, in a
# *heap*. So HDF5 must follow the address before it can read the image.
#
# In the blob, there is no address to follow. Image 7 is the slice of `data` from one entry of `offsets` to the next.
#
# **Your turn.** Change the marked line so that the cell prints `True`:

# %%
with h5py.File(blob) as file:
    data, offsets = file["train/data"], file["train/offsets"]
    start, stop = 0, 0  # change me: where image 7 begins, and where it ends
    print("this slice is image 7:", data[start:stop].tobytes() == image)

# %% [markdown]
# <details>
# <summary>The line</summary>
#
# `start, stop = offsets[7:9]`. Image 7 ends where image 8 begins. The last image also needs an end, so n images need n + 1
# offsets.
#
# </details>
#
# The picture compares the two files. In the upper file, each image is found through a reference, which is its row of 16
# bytes. In the lower file, two offsets are enough.
#
# ![Strips of bytes: in HDF5 vlen, references lead to one heap per image; in HDF5 blob, images lie back to back and offsets follow.](pictures/bytes_of_hdf5.svg)

# %% [markdown] id="writing" tags=["optional"]
# ## 2 · Write bytes, not a list of them
#
# *Optional, 5 minutes.* Both functions above turn the bytes of an image into an array with `np.frombuffer(data, np.uint8)`.
# Many scripts on the internet write `np.array(list(data), np.uint8)` instead. The resulting array is the same.
#
# How much memory does each of the two lines allocate for an image of about 100 kB? The *folded* cell measures it with
# Python's `tracemalloc`.

# %% jupyter={"source_hidden": true}
import tracemalloc

data = samples[7].data
ways = {
    "np.array(list(data), np.uint8)": lambda: np.array(list(data), np.uint8),
    "np.frombuffer(data, np.uint8)": lambda: np.frombuffer(data, np.uint8),
}
for name, make in ways.items():
    tracemalloc.start()
    make()
    print(f"{name:30} allocates {tracemalloc.get_traced_memory()[1]:,} bytes for an image of {len(data):,}")
    tracemalloc.stop()

# %% [markdown]
# `list(data)` makes a list with an entry of 8 bytes for each byte of the image. NumPy then copies this list into an array,
# entry by entry. Together, the list and the array are about nine times as large as the image. `np.frombuffer` copies
# nothing, because it only describes the bytes that are already there. On our machine, `np.frombuffer` was 5,000 to 15,000
# times faster.
#
# A whole conversion gains less than that, because it also writes the bytes into a file. The *folded* cell writes 60 images
# with each layout. It also writes a `vlen` file whose rows are built from lists. (Section 3 explains *gzip chunks*.)

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
title = f"Rows that are built from lists are written {float(f'{lists:.2g}'):g} times slower"
written = {name: wrote.rates_per_s(name) for name in ways}
figures.bars(written, title, x="images written per second", note="into the page cache, not synced", **colours)

# %% [markdown]
# Compare the two bars of `vlen`. Both conversions store the same images. The conversion with lists spends most of its time on
# the lists, and not on writing.

# %% [markdown] id="reading" tags=["core"]
# ## 3 · Read one sample at random
#
# HDF5 can store an array in two ways. A *contiguous* array is one uninterrupted piece of the file. A *chunked* array is cut
# into pieces of equal size, and each piece can be compressed. Only a chunked array can grow.
#
# `write_blob` wrote a contiguous array. Now we write the same images in chunks of 1 MiB, without compression (*raw chunks*)
# and with gzip. Then we compare the layouts by their *read factor*. This is the number of bytes that HDF5 reads from the
# file, divided by the number of bytes that the training gets.
#
# > **Predict.** A training reads images of about 100 kB in random order. What is the read factor with chunks of 1 MiB?

# %%
guess = None  # your guess, read factor: for example 1, 2, or 10

# %% [markdown]
# The next cell writes the two chunked files. It also sets `cache_bytes`, the size of the cache in which HDF5 keeps chunks
# that it has read. We choose a cache with room for one chunk only, because a larger cache could contain much of our small
# file. In the large file of a real training, a random read hardly ever finds its chunk in the cache.

# %%
chunk_bytes = 1 << 20  # 1 MiB; change me later
cache_bytes = 1 << 20  # change me later
layouts = {"vlen": vlen, "blob": blob}  # the two files from section 1
for name, compression in {"raw chunks": None, "gzip chunks": "gzip"}.items():
    layouts[name] = setup.scratch / f"{name}.h5"
    write_blob(samples, layouts[name], chunks=(chunk_bytes,), compression=compression)

# %% [markdown]
# The *folded* cell defines `reader_of`, which returns a function that reads one sample from any of these files.


# %% jupyter={"source_hidden": true}
def reader_of(opened):
    """Return a function that reads the sample with a given number."""
    group = opened["train"]
    if "images" in group:
        return group["images"].__getitem__
    data, offsets = group["data"], group["offsets"][...]
    return lambda index: data[offsets[index] : offsets[index + 1]]


# %% [markdown]
# h5py can read through a Python object that behaves like a file. So we give it an object that counts the reads and their
# bytes. On shared storage, each read is a request, and its bytes travel over the network.


# %%
import io


class CountingFile(io.FileIO):
    bytes_read = reads = 0

    def readinto(self, buffer):
        got = super().readinto(buffer)
        self.bytes_read, self.reads = self.bytes_read + got, self.reads + 1
        return got


# %% tags=["slide"]
read_factor, reads = {}, {}
order = np.random.default_rng(0).permutation(len(samples))
for name, path in layouts.items():
    with CountingFile(path) as file, h5py.File(file, rdcc_nbytes=cache_bytes) as opened:
        read = reader_of(opened)
        file.bytes_read = file.reads = 0  # do not count what it cost to open the file
        delivered = sum(len(read(index)) for index in order)
        read_factor[name] = round(file.bytes_read / delivered, 1)
        reads[name] = file.reads / len(order)
    print(f"{name:11} read factor {read_factor[name]:4}, {reads[name]:4.1f} reads per image")

# %% [markdown]
# The *folded* cell draws the read factors, as `plt.barh(list(read_factor), read_factor.values())` does.

# %% tags=["slide"] jupyter={"source_hidden": true}
size = "1 MiB" if chunk_bytes == 1 << 20 else f"{chunk_bytes / 1000:g} kB"
how = {"note": "random reads through a Python file", "counted": True, **colours}
title = f"With chunks of {size}, HDF5 reads about {read_factor['raw chunks']:.2g} times the size of an image"
figures.bars(read_factor, title, x="read factor: bytes read per byte delivered", guess=guess, **how)

# %% [markdown]
# HDF5 reads a chunk as a whole, and keeps it in its cache. A chunk is about ten times as large as an image, so the read
# factor of both chunked files is about 10. In the blob, each image needs one read of exactly the right size. In the `vlen`
# file, an image needs up to three reads, because HDF5 also reads the row and the head of the heap.
#
# Smaller chunks waste fewer bytes. What do they cost instead?
#
# **Your turn.** Set `chunk_bytes = 10_000` above, and run the cells again from there. Then set it back to 1 MiB, and try
# `cache_bytes = 0`. At the end, set this back, too, and run the cells again.
#
# <details>
# <summary>What you see</summary>
#
# With chunks of 10 kB, the read factor is only 1.1. But HDF5 needs about 12 reads for each image. So small chunks save
# bytes, but they cost requests.
#
# With `cache_bytes = 0`, the read factor of raw chunks falls to 1. HDF5 reads a raw chunk as a whole only if the chunk fits
# into the cache. If it does not fit, HDF5 reads only the slice. (The default cache has 1 MiB, so a chunk of 1 MiB just
# fits. From HDF5 2.0 on, it has 8 MiB.) Gzip chunks still have a read factor of about 10, because a chunk can only be
# decompressed as a whole.
#
# </details>
#
# ### Small samples
#
# Contiguous arrays have a trap, too. The *folded* cell stores samples of only 10 kB in such an array. It reads them through
# HDF5, and then with `os.pread`, the system call that reads at a given position. It prints both read factors. (It prints
# nothing if your system does not count the bytes that are read.)

# %% jupyter={"source_hidden": true}
small, size = setup.scratch / "small.h5", 10_000
with h5py.File(small, "w") as file:
    file["data"] = np.zeros(size * len(samples), np.uint8)
with h5py.File(small) as file, small.open("rb") as plain:
    data, first = file["data"], file["data"].id.get_offset()
    for name in ("HDF5", "os.pread"):
        with measure.system_calls() as calls:  # counts the bytes that are read, where the system tells
            for start in size * order:
                if name == "HDF5":
                    data[start : start + size]
                else:
                    os.pread(plain.fileno(), size, first + start)
        if calls["bytes"]:
            print(f"{name}: read factor {calls['bytes'] / (size * len(order)):.1f}")

# %% [markdown]
# If a slice of a contiguous array is smaller than 64 KiB, HDF5 reads 64 KiB anyway. This is more than six times as much as
# our 10 kB. `os.pread` reads only the sample.
#
# So if your samples are small, store them in a blob, but do not read it through HDF5. Ask HDF5 once at which byte of the
# file the blob begins (`data.id.get_offset()`), add the offset of the sample, and read with `os.pread`. The reader of the
# toolbox does the same.
#
# ### Time
#
# The layouts also differ in speed, even if the whole file is already in memory.
#
# > **Predict.** Which layout is the slowest then?

# %%
slowest = None  # your guess: "vlen", "blob", "raw chunks", or "gzip chunks"

# %% [markdown]
# The *folded* cell reads the images in random order, and computes a hash of each image, so that every byte is used. It
# measures how many images per second each layout delivers, and notes the fastest layout on your worksheet.

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
times = float(f"{found.times('blob', 'gzip chunks').median:.2g}")
title = f"Measured here, a blob is read {times:g} times as fast as gzip chunks"
if cache_bytes:
    worksheet.note("04", layout=max(rates, key=lambda name: np.median(rates[name])))
how = {"note": "random reads, warm cache", "log": True, **colours}
figures.bars(rates, title, x="images per second", guess=slowest, **how)

# %% [markdown]
# Gzip chunks are the slowest, because HDF5 must decompress at least one whole chunk for almost every image. Raw chunks are
# also read as a whole, so HDF5 copies about ten times as many bytes as from the blob. In the `vlen` file, HDF5 follows an
# address for each image, and it copies each image one more time.
#
# So store samples in a contiguous blob, unless the array must be able to grow.
#
# You can now solve tasks 1 to 3 of [exercise 04](../exercises/04_pack_hdf5.ipynb).

# %% [markdown] id="fork" tags=["core"]
# ## 4 · Close the file before workers start
#
# On Linux, a DataLoader usually *forks* its workers. A forked worker is a copy of its parent process, and it inherits the
# parent's open files. For each open file, Linux stores a *file position*, at which the next read begins. The parent and its
# workers share this position:

# %%
import multiprocessing
import os

descriptor = os.open(blob, os.O_RDONLY)  # the number by which this process knows the open file
child = multiprocessing.get_context("fork").Process(target=os.read, args=(descriptor, 1_000))
child.start()
child.join()
position = os.lseek(descriptor, 0, os.SEEK_CUR)
print("The child has read 1,000 bytes. The parent's next read begins at byte", position)
os.close(descriptor)

# %% [markdown]
# The parent has read nothing, and yet its position has moved. Now imagine two workers. Worker 1 moves the position to image
# A (this is called a *seek*). Before worker 1 reads, worker 2 moves the shared position to image B. So worker 1 reads bytes
# of image B.
#
# A common first version of a `Dataset` opens the file in the parent:


# %% tags=["slide"]
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
# How can we tell that a sample is wrong? The *folded* cell computes the right hash of each image. In the cell after it,
# `count_wrong` reads 2,000 random samples through a DataLoader, and counts how many have another hash.

# %% jupyter={"source_hidden": true}
truth = [xxhash.xxh3_64_intdigest(sample.data) for sample in samples]


def hashed(batch):  # runs in the worker
    return [(index, xxhash.xxh3_64_intdigest(data)) for index, data in batch]


# %%
from torch.utils.data import DataLoader, RandomSampler


def count_wrong(dataset, workers=2):
    settings = {"multiprocessing_context": "fork", "timeout": 60} if workers else {}
    chosen = RandomSampler(dataset, replacement=True, num_samples=2_000)
    settings |= {"num_workers": workers, "collate_fn": hashed}
    loader = DataLoader(dataset, 100, sampler=chosen, **settings)
    wrong = sum(image_hash != truth[index] for batch in loader for index, image_hash in batch)
    return f"{wrong:4} of 2,000 samples are wrong"


# %% [markdown]
# HDF5 reads a file through a *driver*:
#
# | driver | how it reads | uses the shared position |
# |---|---|---|
# | the default | usually with `pread`, and each call says where to begin | no |
# | `stdio` | with a seek, and then a read | yes |
#
# > **Predict.** We try both drivers, each with 0 and with 2 workers. Which of these four runs return wrong samples?

# %% tags=["slide"]
for name, how in {"default driver": {}, "stdio": {"driver": "stdio"}}.items():
    dataset = OpenedInInit(blob, **how)
    for workers in (0, 2):
        print(f"{name:14} {workers} workers: {count_wrong(dataset, workers)}")
    dataset.group.file.close()

# %% [markdown]
# Only the run with `stdio` and two workers returns wrong samples, and the read reports no error. With 0 workers, no other
# process moves the position, and the default driver does not use it. Chance decides how many samples are wrong. (If you see
# none, run the cell again.)
#
# h5py from PyPI uses `pread`, but the h5py of your cluster may have been built differently. So the same program can be
# right on your laptop and wrong on the cluster ([pytorch#11887](https://github.com/pytorch/pytorch/issues/11887)).
#
# <details>
# <summary>How do I check the h5py of my cluster?</summary>
#
# Run the cell above on the cluster a few times. If samples are wrong with the default driver, too, this h5py uses the
# shared position. But even 0 wrong samples do not prove that the program is right.
#
# </details>
#
# ![Left: two workers share one file position, worker 2 moves it, and worker 1 reads image B instead of A. Right: with pread each names its position.](pictures/shared_offset.svg)
#
# The usual advice is to open the file in the worker, when the worker reads its first sample:


# %%
class OpenedInWorker(torch.utils.data.Dataset):
    def __init__(self, path, **how):
        self.path, self.how, self.process = path, how, None
        with h5py.File(path, "r", **how) as file:  # closed again immediately
            self.offsets = file["train/offsets"][...]

    def __len__(self):
        return len(self.offsets) - 1

    def __getitem__(self, index):
        if self.process != os.getpid():  # each process opens the file before its first read
            self.file, self.process = h5py.File(self.path, "r", **self.how), os.getpid()
            self.data = self.file["train/data"]
        start, stop = self.offsets[index : index + 2]
        return index, self.data[start:stop].tobytes()

    def close(self):
        if self.process:
            self.file.close()
        self.file = self.data = self.process = None


# %% [markdown]
# This advice is not sufficient. Many programs look at one sample before the training begins, for example to find its shape.
# Then the file is open in the parent when the workers are forked.
#
# In the next cell, the parent looks at one sample. Then each worker opens the file itself. Are all samples right?

# %%
dataset = OpenedInWorker(blob, driver="stdio")
dataset[0]  # the parent looks at a sample
# dataset.close()  # change me: remove the # at the beginning of this line
print(count_wrong(dataset))
dataset.close()

# %% [markdown]
# In most runs, samples are wrong again. HDF5 keeps a table of its open files, and the fork copies this table. If a worker
# opens the same file, HDF5 finds it in the table. Then HDF5 does not open the file again, but uses the parent's open file,
# with its shared position.
#
# **Your turn.** Let the parent close the file before the workers start, and run the cell again.
#
# <details>
# <summary>What you see</summary>
#
# No sample is wrong. The file is no longer in the table, so HDF5 opens it again in each worker.
#
# </details>
#
# You can see the cause. A process knows each open file by a number, its *descriptor*. The *folded* cell lists the
# descriptors of one file, in the parent and in a worker that has just opened the file. It does this twice, first while the
# file is open in the parent, and then after the parent has closed it.

# %% jupyter={"source_hidden": true}
import shutil

alone = Path(shutil.copy(blob, setup.scratch / "alone.h5"))  # not open anywhere


def descriptors(batch=()):
    """Return the descriptors of this file in this process."""
    links = Path("/proc/self/fd").iterdir()
    return [int(link.name) for link in links if os.path.realpath(link) == os.path.realpath(alone)]


dataset = OpenedInWorker(alone)
for when in ("open", "closed"):
    dataset[0] if when == "open" else dataset.close()
    loader = DataLoader(dataset, 100, num_workers=1, multiprocessing_context="fork", collate_fn=descriptors)
    print(f"{when} in the parent: descriptors there {descriptors()}, in the worker {next(iter(loader))}")

# %% [markdown]
# If the file is open in the parent, the worker uses the parent's descriptor. If the parent has closed the file, the worker
# gets a descriptor of its own.
#
# So the rule has two parts. **Open the file in the process that reads it. And make sure that it is closed in the parent
# when workers start.** Exercise 04 closes the file before each fork, with `os.register_at_fork(before=…)`.
#
# From Python 3.14 on, workers are no longer forked by default. A worker then gets a *pickled* copy of the `Dataset`
# ([pytorch#138957](https://github.com/pytorch/pytorch/issues/138957)). A `Dataset` cannot be pickled while its file is
# open:

# %%
import pickle

dataset = OpenedInWorker(blob)
dataset[0]
dataset.close()  # change me: without this line, pickling fails
len(pickle.dumps(dataset))

# %% [markdown]
# The number is the size of the copy in bytes. The copy is small, because it contains the path and the offsets, but no images.
#
# You can now solve task 4 of [exercise 04](../exercises/04_pack_hdf5.ipynb).

# %% [markdown] id="locks" tags=["optional"]
# ## 5 · Meet the file lock
#
# *Optional, 5 minutes.* HDF5 locks each file that it opens. The lock prevents one process from reading a file while another
# process is writing to it.
#
# This notebook opens the file, first for reading (`r`) and then for writing (`r+`). Each time, another process tries to open
# it for reading, and then one more process tries to open it for writing. Which of these four attempts succeed?
#
# The *folded* cell makes these attempts. It adds two attempts with locking switched off, before and after h5py is imported.

# %% jupyter={"source_hidden": true}
import subprocess

ASK = "import h5py, sys; h5py.File(sys.argv[1], sys.argv[2])"
LATE = "import os; import h5py; os.environ['HDF5_USE_FILE_LOCKING'] = 'FALSE'; h5py.File(sys.argv[1], sys.argv[2])"


def ask(mode, code=ASK, **variables):
    """Open the file in another process, and return what happened."""
    command = [sys.executable, "-c", f"import sys; {code}", str(blob), mode]
    end = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True)
    if end.returncode == 0:
        return "opened"
    return end.stderr.strip().splitlines()[-1].rpartition("(")[2].rstrip(")")


for held in ("r", "r+"):
    with h5py.File(blob, held):
        print(f"held for {held}:  read {ask('r')}")
        print(f"             write {ask('r+')}")
        if held == "r+":
            print(f"             read, locks off before import: {ask('r', HDF5_USE_FILE_LOCKING='FALSE')}")
            print(f"             read, locks off after import: {ask('r', LATE)}")

# %% [markdown]
# Only the first of the four attempts succeeds. Several processes may read at the same time, but a writer needs the file for
# itself. So "unable to lock file" means that another process is using the file.
#
# If nobody writes to the file any more, you may switch locking off. `h5py.File(path, locking=False)` does it for one file.
# The environment variable `HDF5_USE_FILE_LOCKING=FALSE` does it for a whole program. But you must set it before h5py is
# imported, as the last two lines of the output show.
#
# <details>
# <summary>Other messages about locks</summary>
#
# - "file locking flag values don't match": this process already has the file open, with another setting of `locking`.
# - "No locks available": the file system does not support locks. Then even reading fails
#   ([h5py#1101](https://github.com/h5py/h5py/issues/1101)).
# - No message at all: on Lustre without the mount option `flock`, newer versions of HDF5 open the file without
#   protection.
#
# </details>

# %% [markdown] id="exercise"
# ## Exercise
#
# In [Exercise 04](../exercises/04_pack_hdf5.ipynb), you convert a file with variable-length rows into a blob, choose the size
# of chunks, and read the blob in any worker.

# %% [markdown] id="cluster"
# ## On the cluster
#
# The next cell shows the command that packs your images into a blob, which is the default layout.
# `slurm/submit SITE 04_pack_hdf5` runs this command as a job.

# %%
show.command(PackConfig(options=hdf5.Options(layout="blob")), "DATA_FOLDER", "train.h5")

# %% [markdown] id="key-points"
# ## Key points
#
# - A variable-length row contains only a length and an address. In a blob, an image is a slice between two offsets.
# - Write `np.frombuffer(data, np.uint8)`, and never `np.array(list(data), np.uint8)`.
# - HDF5 reads compressed chunks as a whole, and raw chunks, too, if they fit into its cache. Compression hardly shrinks
#   JPEG images, so store them in a contiguous array.
# - Open the file in the worker, and make sure that it is closed in the parent when the workers start.
# - Switch locking off only for files to which nobody writes any more.

# %% [markdown] id="quiz"
# ## Check yourself
#
# **1.** A colleague trains on decoded pixels, and all images have the same size. On the cluster, the accuracy with 4 workers
# is always slightly lower than with `num_workers=0`. There is no error. What do you check first? (a) The seeds of the
# augmentation. (b) Where the file is opened and closed. (c) The shuffle.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**. If workers share a file position, a few images do not belong to their labels. Nothing fails, because all images
# have the same size, and the loss still decreases. (a) With workers, the augmentation uses other seeds. The views of the
# images are different then, but not worse. (c) The parent shuffles, so the order does not depend on the number of workers.
#
# </details>
#
# **2.** A colleague stores your JPEG files with `chunks=(1 << 20,), compression="gzip"`. What happens?
# (a) The file becomes much smaller. (b) Random reads fetch and decompress many times the size of an image. (c) Writing
# becomes faster.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**. Each image needs at least one whole chunk. (a) JPEG is compressed already, and gzip saves less than one percent
# ([05](05_shard_a_dataset.ipynb)). (c) Compressing needs time.
#
# </details>
#
# **3.** Your training stops with "unable to lock file". What do you do first? (a) Switch locking off. (b) Find out which
# program has the file open for writing. (c) Copy the file.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**. Usually another program is still writing, so the file may be incomplete. (a) Without locks you would read an
# incomplete file. Switch them off only if nobody writes. (c) The copy would be incomplete, too.
#
# </details>

# %% [markdown] id="next"
# ## Next
#
# [05 · Shard a data set into tar files](05_shard_a_dataset.ipynb) uses files that are read from front to back.
