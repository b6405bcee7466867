# %% [markdown] id="top"
# # 03 · Pack samples into Arrow
#
# **Minutes** 30 · **Machine** any Linux computer with two CPUs · **Needs** notebook 01 · **Data** 400 synthetic images
# with labels, 400 with captions
#
# One large file needs only one inode, and each worker opens it once. But training reads images in random order. So a program
# must be able to read one image from the packed file without its neighbours.
#
# An Apache Arrow file consists of pieces with several images each. A program that reads a whole piece to get one image can be
# 50 to 300 times slower than with pieces of one image each.

# %% [markdown] id="questions"
# ## Questions
#
# - How does a program find row 200 in an Arrow file?
# - How many rows belong in a record batch?
# - What is left on the disk if a packing job is killed?

# %% [markdown] id="objectives"
# ## After this you can
#
# - write images with labels or captions in record batches,
# - distinguish a copy from a view,
# - choose the number of rows per batch for the programs that read the file,
# - write a `Dataset` that opens the file in each worker,
# - make sure that a killed job leaves no incomplete file, and check that a file has not changed.

# %% [markdown] id="setup"
# ## Set up
#
# The main findings of this notebook are counts of bytes, which are the same on a busy machine. Section 3 also measures speeds.
# They are lower on a busy machine.

# %% id="start"
import sys

sys.path.append("..")
from helpers import figures, show, start, worksheet

setup = start("03")

# %% [markdown] id="recall"
# > **Recall** (01). A storage has 4 metadata servers, each of which processes one request at a time. Opening a file takes
# > two requests of 2 ms each, one after the other. With how many opens in flight does the storage reach its limit?
#
# <details>
# <summary>Answer</summary>
#
# With 4 opens in flight. Then all 4 servers are busy, and together they open 4 / (2 × 2 ms) = 1,000 files per second.
#
# </details>

# %% [markdown] id="inside" tags=["core"]
# ## 1 · Build a small file by hand
#
# Arrow has two formats for a table on disk, the *IPC file* and the *IPC stream*. We write an IPC file. Hugging Face's
# `datasets` uses the stream, and Parquet is a different format.
#
# An Arrow table has a *schema*, which is a list of its columns (*fields*). Each field has a name and a type. Each image has
# several captions. The type `list<string>` stores all of them in one row. With one row per caption, each image would be stored
# several times.

# %%
from pathlib import Path

import pyarrow as pa

schema = pa.schema({"key": pa.string(), "captions": pa.list_(pa.string()), "data": pa.binary()})
schema

# %% [markdown]
# We read six images of the synthetic Flickr30K data set. Its `manifest` lists the images and their captions (notebook 02
# explains it). The cell shows two captions of the first image:

# %%
flickr = setup.source("flickr30k", split="all")
rows = []
for index in range(6):
    key = flickr.manifest.path(index)
    data, captions = (flickr.root / key).read_bytes(), flickr.manifest.target(index)
    rows.append({"key": key, "captions": captions, "data": data})
rows[0]["captions"][:2]

# %% [markdown]
# Rows are stored in groups, which are called *record batches*. A record batch is stored column by column. First come the
# keys of all its rows, then all captions, then all images. Its *header* says where each column begins. In front of the
# images are their *offsets*, which say where each image begins.
#
# ![A strip of bytes: schema; a record batch of header, keys, captions, offsets and three images back to back; the next batch; a footer.](pictures/bytes_of_arrow.svg)
#
# We write the six rows in two batches of three rows:

# %% tags=["slide"]
small = setup.scratch / "six.arrow"
with pa.OSFile(str(small), "wb") as file, pa.ipc.new_file(file, schema) as writer:
    for first in (0, 3):
        writer.write(pa.RecordBatch.from_pylist(rows[first : first + 3], schema=schema))

# %% [markdown]
# > **Predict.** How much larger is the file than its six images together: about 0.1 %, 1 % or 10 %?

# %%
payload = sum(len(row["data"]) for row in rows)
content = small.read_bytes()
reader = pa.ipc.open_file(pa.memory_map(str(small)))
print(f"{len(content) / payload - 1:.1%} larger; from {content[:6]} to {content[-6:]}")
print(reader.num_record_batches, "batches; the second:", reader.get_batch(1)["key"].to_pylist())

# %% [markdown]
# The file of the synthetic images is 0.6 % larger, so about 1 % was the best guess. How does a program find a row in it?
# Near the end of the file is the *footer*, which contains the position of each record batch. After the footer, there
# are only its length and the mark `ARROW1`. The file also begins with this mark. So a reader first looks at the end of the file, and
# then goes straight to the batch that it needs.
#
# The footer does not say how many rows a batch has. But if each batch has 64 rows, row 200 is row 8 of batch 3 (counted
# from 0), because 200 = 3 × 64 + 8.
#
# **Your turn.** The next cell compares a key in the file with the key of row 5. Change it so that it says `True`:

# %%
reader.get_batch(0)["key"][0].as_py() == rows[5]["key"]  # change me: read row 5, counted from 0

# %% [markdown]
# <details>
# <summary>The line</summary>
#
# `reader.get_batch(5 // 3)["key"][5 % 3].as_py() == rows[5]["key"]`. There are three rows per batch, so row 5 is the last
# row of batch 1.
#
# </details>
#
# What happens if writing stops half-way? If the program is killed, the file has no footer, so it cannot be opened. But if
# your code inside the `with` raises an exception, Python closes the writer, and closing writes the footer. Then the file
# can be opened, although rows are missing. So write the file under another name, and rename it when it is complete
# (section 5).
#
# <details>
# <summary>How large may a batch be?</summary>
#
# A `binary` column can store at most 2 GiB per batch ([arrow#10776](https://github.com/apache/arrow/issues/10776)). For more,
# write more batches, or use `pa.large_binary()`.
#
# </details>

# %% [markdown] id="views" tags=["core"]
# ## 2 · Look at an image without copying it
#
# pyarrow can open a file in two ways. An `OSFile` is an ordinary open file, so each read copies bytes into newly allocated
# memory. A *memory map* makes the file look like a part of the memory. Linux fetches a page of 4 KiB when a program first
# touches it.
#
# We let the toolbox pack 400 images, with 64 rows per batch:

# %%
import tempfile

from helpers.experiments.nb03 import watched
from smallfiles import formats, measure
from smallfiles.formats import arrow
from smallfiles.pack import PackConfig, pack

source = setup.source()
packed = Path(tempfile.mkdtemp(dir=setup.scratch)) / "packed.arrow"  # new whenever this cell runs
config = PackConfig(options=arrow.Options(rows_per_batch=64))
report = pack(source, packed, config)
opened = formats.open(packed)
samples, labels = list(opened), opened.table(["label"])["label"]  # all images, in memory

# %% [markdown]
# `watched` counts the bytes that are read by system calls (`moved.read`), and the memory that Arrow allocates
# (`moved.arrow`).
#
# > **Predict.** We ask for one batch of 64 images, which has about 7 MB. How many bytes does an `OSFile` copy, and how many does
# > a memory map: all 7 MB, 0.1 MB, or almost nothing?

# %% tags=["slide"]
from smallfiles.progress import bytes_text

for name, way in {"OSFile": pa.OSFile, "memory map": pa.memory_map}.items():
    with watched() as moved:
        batch = pa.ipc.open_file(way(str(packed))).get_batch(2)
    print(f"{name:10} copied {bytes_text(moved.read)}, for a batch of {bytes_text(batch.nbytes)}")

# %% [markdown]
# The `OSFile` copied the whole batch. The memory map copied almost nothing. It returned a *view*, which only says where
# the bytes are in the file.
#
# If the batches are compressed with zstd, is a batch from the memory map still a view?
#
# **Your turn.** The next cell writes the file again, without compression. Run it as it is. Then replace `None` by
# `"zstd"`, and run it again:

# %%
options = pa.ipc.IpcWriteOptions(compression=None)  # change me: "zstd"
again = setup.scratch / "again.arrow"
everything = pa.ipc.open_file(pa.memory_map(str(packed))).read_all()
with pa.ipc.new_file(str(again), everything.schema, options=options) as writer:
    writer.write_table(everything)
with watched() as moved:
    pa.ipc.open_file(pa.memory_map(str(again))).get_batch(2)
print(f"{bytes_text(again.stat().st_size)}; reading a batch allocates {bytes_text(moved.arrow)}")

# %% [markdown]
# <details>
# <summary>What you see</summary>
#
# The batch is not a view any more. The compressed file does not contain the bytes of the images as they are, so Arrow
# allocates memory for the whole batch (about 7 MB) and decompresses it there. Compression does not even save much space, because JPEG
# files are compressed already.
#
# </details>

# %% [markdown] id="rows" tags=["core"]
# ## 3 · Choose the rows per batch
#
# We write the same images into six files, with 1 to 256 rows per batch:

# %%
table = pa.table({"data": [sample.data for sample in samples], "label": labels.combine_chunks()})


def write(rows_per_batch):
    path = setup.scratch / f"{rows_per_batch}.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows_per_batch)
    return path


files = {count: write(count) for count in (1, 2, 4, 16, 64, 256)}  # you will add a size later

# %% [markdown]
# We read single images in random order, in three ways:
#
# - *get_batch, OSFile* and *get_batch, memory map* ask pyarrow for the batch that contains the image.
# - *our reader* is the reader of the toolbox. When it first needs a batch, it looks up where the images of this batch are.
#   After that, it reads only the image, with `pread`, which reads at a given position.
#
# We compute a hash of each image. Without it, the memory map would only return a view, and the bytes would never be read.

# %% tags=["slide"]
import random

import xxhash

order = random.Random(0).sample(range(len(samples)), len(samples))


def by_get_batch(file, rows):
    batches = pa.ipc.open_file(file)
    return lambda index: batches.get_batch(index // rows)["data"][index % rows].as_buffer()


def read_all(read):
    for index in order:
        xxhash.xxh3_64_intdigest(read(index))
    return len(order)


# %% [markdown]
# First we count how many bytes each way copies to read one image.
#
# > **Predict.** We read one image with `get_batch` from an `OSFile` with 64 rows per batch. How many images are copied?

# %%
guess = None  # your guess: images copied per image, with OSFile and 64 rows

# %%
from functools import partial

reads = {}  # a function that reads one image, for each way and each file
for count, path in files.items():
    reads["get_batch, OSFile", count] = by_get_batch(pa.OSFile(str(path)), count)
    reads["get_batch, memory map", count] = by_get_batch(pa.memory_map(str(path)), count)
    reads["our reader", count] = arrow.open(path, access="pread").read

# %%
copied, some = {}, order[:40]
for (way, count), read in reads.items():
    list(map(read, some))  # now our reader knows where these images are
    with watched() as moved:
        for index in some:
            read(index)
    copied.setdefault(way, {})[count] = moved.read / sum(len(samples[index].data) for index in some)

# %% tags=["slide"]
many = copied["get_batch, OSFile"][64]
title = f"With 64 rows per batch, an OSFile copies {many:.0f} images to read one"
axes = {"x": "rows per record batch", "y": "images copied per image read", "log": "x"}
print(f"{many:.0f} images copied to read one; your guess: {guess}")
figures.lines(copied, title, counted=True, **axes)

# %% [markdown]
# From an `OSFile`, `get_batch` always copies the whole batch, so it copies more with each additional row. The number for 64
# rows is slightly below 64, because the last batch has only 16 rows. The memory map copies nothing, and our reader copies
# one image, whatever the number of rows. How long do the three ways take?

# %%
tasks = {f"{way}, {count}": partial(read_all, read) for (way, count), read in reads.items()}
result = measure.compare(tasks, rounds=3, unit="images")

# %% [markdown]
# The folded cell draws how many images per second each way reads. For comparison, the dashed line shows how many images
# one CPU decodes per second. The cell also prints how many bytes the file needs per image, in addition to the image
# itself.

# %% jupyter={"source_hidden": true}
import numpy as np

from smallfiles import images

names = ("get_batch, OSFile", "get_batch, memory map", "our reader")
rates = {way: {count: result.rates_per_s(f"{way}, {count}") for count in files} for way in names}
osfile = {count: np.median(rates[names[0]][count]) for count in sorted(files)}
fewest, largest = min(files), max(files)
slower = np.maximum.accumulate([osfile[fewest] / rate for rate in osfile.values()])
most = round(2 ** np.interp(1, np.log2(slower), np.log2(list(osfile))))  # between the sizes, too
worksheet.note("03", rows_per_batch=most)
extra = {count: (path.stat().st_size - report.payload_bytes) / len(samples) for count, path in files.items()}
print(f"an image takes {extra[fewest]:.0f} more bytes with {fewest} row per batch, {extra[largest]:.0f} with {largest}")


def decode_some():
    for sample in samples[:50]:
        images.decode(sample.data)
    return len(samples[:50])


decoded = measure.compare({"decode": decode_some}, rounds=5, unit="images").rates_per_s("decode")
rates["one CPU decodes"] = dict.fromkeys((fewest, largest), np.median(decoded))
times = f"{float(f'{osfile[fewest] / osfile[largest]:.1g}'):g}"
title = f"Measured here, an OSFile is about {times} times slower with {largest} rows per batch than with {fewest}"
axes = {"x": "rows per record batch", "y": "images per second", "ideal": "one CPU decodes", "log": "xy"}
marks = {f"OSFile keeps half its speed up to {most} row{'s' * (most > 1)}": most}
figures.lines(rates, title, **axes, note="random reads, warm cache", marks=marks)

# %% [markdown]
# - *get_batch, OSFile* becomes slower with each additional row, because it copies the whole batch.
# - *get_batch, memory map* becomes slower as well, although it copies nothing. Even if all pages are in the cache, Linux
#   has to look for each page of the batch, up to a limit (see below).
# - *Our reader* does not become slower.
# - The vertical line marks the number of rows at which *OSFile* has become half as fast as with one row.
#
# <details>
# <summary>Why does Linux look for pages that nobody reads?</summary>
#
# `get_batch` tells Linux that it will need the whole batch (`madvise`), so that Linux can fetch it in advance. Linux looks
# for at most as many pages as fit into its read-ahead limit. If a batch is larger than this limit, more rows cost no more
# time, and the line becomes flat. The limit depends on the disk. It was 8 MB where we measured, and it is often 128 kB or 4 MB.
#
# </details>
#
# Where a line meets the dashed line, reading an image from memory takes as long as decoding it.
#
# **Your turn.** Read from the figure at how many rows the line of `OSFile` meets the dashed line. To check, add this
# number of rows to `files` above, and run the cells from there again.
#
# <details>
# <summary>Answer</summary>
#
# On our machine, they meet at 200 to 250 rows. There a worker spends half of its time on reading and half on decoding.
# With 20 to 25 rows, reading takes only a tenth of the time that decoding takes. (With 256 rows per batch, the file has
# one batch of 256 images and one of 144. A random image is more often in the larger one, so on average (256² + 144²) / 400 =
# 216 images are copied.) If your line stays
# above the dashed line, your machine copies even the largest batch faster than it decodes an image.
#
# </details>

# %% [markdown]
# ### How much leaves the disk?
#
# So far, all bytes came from the page cache. A real data set is often larger than the cache, so its bytes come from the
# disk.
#
# > **Predict.** We read one image of 100 kB with `get_batch` from an `OSFile` with 64 rows per batch. How many kB must the disk
# > deliver: 100, 500 or 7,000?

# %%
guess = None  # your guess: kB for one image

# %% [markdown]
# The folded cell drops the file from the cache, reads one image, and counts the bytes that the disk delivers. It repeats
# this for several images. For the bar *next image*, our reader first reads another image of the same batch, which is
# not counted.

# %% tags=["slide"] jupyter={"source_hidden": true}
import os
import shutil


def cold(path, read, index):
    with open(path, "rb") as file:
        os.fsync(file.fileno())  # only what is on disk can be dropped
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with measure.system_calls() as calls:
        xxhash.xxh3_64_intdigest(read(index))
    return calls["fetched"]


def opened_and_cold(name, count, index, before=-1):
    file = kinds[name](copies[count])  # opened for each image: a map would hold pages of the one before
    read = file.read if "reader" in name else by_get_batch(file, count)
    read(before % len(samples))  # opens the file, and touches one batch, by default the last
    return cold(copies[count], read, index)


kinds = dict(zip(names, (pa.OSFile, pa.memory_map, partial(arrow.open, access="pread"))))
# Copies of the files, since pages in use by the maps of section 3 cannot be dropped.
copies = {count: shutil.copy(files[count], f"{setup.scratch}/cold-{count}.arrow") for count in (1, 64)}
chosen = list({n // 64: n for n in order if n < len(samples) // 64 * 64}.values())  # the last batch is short
paths = [source.root / source.manifest.path(index) for index in range(len(source.manifest))]
per_image = {"plain file": [cold(paths[n], lambda n: paths[n].read_bytes(), n) for n in chosen]}
for name, count in ((names[0], 1), *((name, 64) for name in names)):
    found = [opened_and_cold(name, count, index) for index in chosen]
    per_image[f"{name}, {count} row{'s' * (count > 1)}"] = found
neighbours = [n // 64 * 64 + (n + 1) % 64 for n in chosen]
per_image[f"{names[2]}, 64 rows, next image"] = list(map(partial(opened_and_cold, names[2], 64), chosen, neighbours))
per_image = {name: [size / 1000 for size in sizes if size] for name, sizes in per_image.items()}
if all(per_image.values()):
    whole, alone = (np.mean(per_image[name]) for name in (f"{names[0]}, 64 rows", "plain file"))
    title = f"With 64 rows per batch, OSFile fetches {whole / alone:.0f} times the image's size"
    how = {"note": "cold cache", "dots": "images", "base": "plain file", "groups": names, "log": True}
    show.figure(figures.bars(per_image, title, x="kB fetched from storage for one image", guess=guess, **how))
else:
    show.say("This file system does not count what it fetches. File systems in memory and some network file systems do not.")

# %% [markdown]
# - *get_batch, OSFile* fetches the whole batch, so with 64 rows it fetches 64 images for one. With one row it fetches
#   about as much as from a plain file.
# - *get_batch, memory map* copies nothing, but Linux still fetches the batch, or a part of it if the batch is larger than
#   Linux's read-ahead limit.
# - *Our reader* fetches the image. For the first image of a batch, it also needs the header and the offsets, and Linux
#   reads ahead around them. For the next image, it knows the position already.
#
# So the right number of rows depends on the programs that will read the file:
#
# | who reads the file | rows per batch | how to read |
# |---|---|---|
# | you do not know: some programs call `get_batch` for each image | 1, which costs about 300 bytes per image | |
# | your program reads whole batches, one after the other | 64 (the default of `pack`) | a memory map, which copies nothing |
# | your program reads single images in random order | 64 | our reader, which reads only the image |
#
# You can now solve tasks 1 to 3 of [exercise 03](../exercises/03_pack_arrow.ipynb).

# %% [markdown] id="juelich" tags=["core"]
# ## 4 · Feed a DataLoader
#
# A `DataLoader` asks for sample i. With one row per batch, this is batch i. [A published
# course](https://github.com/HelmholtzAI-FZJ/2024-06-course-Bringing-Deep-Learning-Workloads-to-JSC-supercomputers) stores its
# images this way.
#
# Each worker should open the file itself, when it reads its first image. Workers that share an open file also share its
# position. pyarrow does not use this position, because with each read it says where to begin. Some builds
# and drivers of HDF5 do use it, so their workers can return wrong images if they share an open file (notebook 04).
#
# **Your turn.** This `Dataset` opens the file again for each image. Change its `if` so that each process opens the file
# exactly once. `self.process` is the number of the process that has opened the file, and `os.getpid()` returns the number
# of the running process.
#
# The cell below it prints how often a worker has opened the file. At first this is about 200, because each of the two
# workers reads half of the 400 images. After your change, it should be 1. If it is 0, the worker uses the file of its
# parent.

# %%
from torch.utils.data import DataLoader, Dataset, get_worker_info


class ArrowImages(Dataset):
    def __init__(self, path):
        self.path, self.process, self.opened = str(path), None, 0
        with pa.memory_map(self.path) as file:  # closed before any worker starts
            self.count = pa.ipc.open_file(file).num_record_batches

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if True:  # change me: only at the first read of this process
            self.process, self.opened = os.getpid(), self.opened + 1
            self.batches = pa.ipc.open_file(pa.OSFile(self.path))
        batch = self.batches.get_batch(index)
        return batch["data"][0].as_buffer(), batch["label"][0].as_py()

# %% [markdown]
# In the next cell, the parent reads an image before the workers start. How often does a worker open the file if your line
# is `if self.process is None:`? Try this line, too.

# %% tags=["slide"]
def total_bytes(batch):  # runs in the worker; decoding would go here
    return sum(len(data) for data, _ in batch), get_worker_info().dataset.opened


dataset = ArrowImages(files[1])
settings = {"num_workers": 2, "multiprocessing_context": "fork"}  # fork: notebook 04
dataset[0]  # the parent has read an image, too
sizes, opened = zip(*DataLoader(dataset, 32, shuffle=True, collate_fn=total_bytes, **settings))
print(f"{sum(sizes):,} of {report.payload_bytes:,} bytes are in {len(sizes)} training batches")
print("opened by a worker (once is right):", max(opened) - dataset.opened)

# %% [markdown]
# <details>
# <summary>The line</summary>
#
# `if self.process != os.getpid():` opens the file once in each worker. With `if self.process is None:` the count is 0. The
# workers get a copy of the `Dataset` in which `process` is already set, so they use the file that the parent has opened.
# The images are still right here, because pyarrow passes the position with each read.
#
# </details>
#
# This class is right for files with one row per batch. For more rows, use the reader that `formats.open` returns, which
# fetches only the image.
#
# You can now solve tasks 4 and 5 of [exercise 03](../exercises/03_pack_arrow.ipynb).

# %% [markdown] id="killed" tags=["optional"]
# ## 5 · Kill a pack, and trust what is there
#
# *Optional, 6 minutes.* A packing job may be killed when it reaches its time limit. The folded cell runs `pack` in another
# process, and kills this process as soon as bytes appear.
#
# What does a listing of the folder show afterwards: a short file, a damaged file, or nothing?

# %% jupyter={"source_hidden": true}
import subprocess
import time

out = Path(tempfile.mkdtemp(dir=setup.scratch)) / "train.arrow"
command = [sys.executable, "-m", "smallfiles", "pack", str(setup.path()), str(out), "--in-flight", "1"]
where = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
process = subprocess.Popen(command, env=where, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
while process.poll() is None and not any(path.stat().st_size for path in out.parent.rglob("*.arrow*")):
    time.sleep(0.001)
process.kill()
print("ended with", process.wait(), "- visible:", [p.name for p in out.parent.glob("[!.]*")])
print("hidden:", [p.name for p in out.parent.glob(".*")])

# %% [markdown]
# A listing shows nothing, because `pack` writes the data into a hidden folder. What is left there needs space until the next
# `pack` of the same file removes it. The file gets its name only when it is complete. (-9 means that the process was killed.)
# Run `pack` again:

# %%
out.unlink(missing_ok=True)  # in case packing was faster than the kill
pack(source, out, config)
print(*sorted(path.name for path in out.parent.iterdir()))

# %% [markdown]
# Next to the packed file is a file with its *content digest*, which contains a hash of each block of 4 MiB. The
# folded cell flips one bit of the packed file. Then `verify` reports the damaged block, and names the first samples in it:

# %% jupyter={"source_hidden": true}
from smallfiles.pack import verify

content = bytearray(out.read_bytes())
content[1_000_000] ^= 1
out.write_bytes(content)
print(verify(out).problems)

# %% [markdown] id="exercise"
# ## Exercise
#
# [Exercise 03](../exercises/03_pack_arrow.ipynb): build the Flickr30K file of section 1, never leave an incomplete file, read captions
# without the images, and read the file with a DataLoader.

# %% [markdown] id="cluster"
# ## On the cluster
#
# Lustre often stores a file on one *target* (a group of disks). To spread a file over four targets (*striping*), run
# `lfs setstripe -c 4 FOLDER` before you write into the folder. If many
# nodes read the file, use 16 or more (-1 means all targets).
#
# `slurm/submit SITE 03_pack_arrow -- DATA OUT` runs the command below as a job. If the folder has one stripe, the job
# sets four.

# %%
show.command(config, "imagenet/train", "imagenet_train.arrow")

# %% [markdown]
# If you do not know which programs will read the file, add `-O rows_per_batch=1`.

# %% [markdown] id="key-points"
# ## Key points
#
# - Give each image one row. `list<string>` stores all its captions.
# - A batch from a memory map is a view, unless the file is compressed.
# - `get_batch` always asks for the whole batch. If you do not know which programs will read the file, write one row per
#   batch.
# - A `Dataset` should open the file in the process that reads it.
# - Trust a file if it gets its name only when it is complete. Its content digest shows whether it has changed since then.

# %% [markdown] id="quiz"
# ## Check yourself
#
# **1.** A colleague reads your file of 1,000 rows per batch through `pa.OSFile`, one image of 100 kB at a time, and
# gets 20 images per second. What do you advise? (a) More workers. (b) Compression. (c) Fewer rows per batch.
#
# <details>
# <summary>Answer</summary>
#
# **(c)**. For each image, the whole batch of 1,000 × 100 kB = 100 MB is copied, so 20 images per second already copy 2 GB
# per second. A memory map avoids the copy, but `get_batch` still asks for the whole batch. (a) More workers would copy
# these bytes in parallel, and still waste them. (b) With compression, the batch must also be decompressed.
#
# </details>
#
# **2.** `batch.nbytes` says 7 MB, but the process has not copied any image. How is this possible? (a) The batch is a view of
# the memory map. (b) The file is in the page cache. (c) Arrow reads in the background.
#
# <details>
# <summary>Answer</summary>
#
# **(a)**. `nbytes` is the size of what the view refers to, although nothing was copied. (b) Reading a file from the page
# cache with `read` also makes a copy. (c) pyarrow only tells Linux what it will need. Linux may fetch pages, but it does
# not copy them into the process.
#
# </details>
#
# **3.** After a time limit, `train.arrow` is there. May you train on it? (a) Never. (b) Yes, if `pack` wrote it. (c)
# Yes, whichever program wrote it.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**. With `pack`, the file appears under this name only when it is complete, so (a) is too cautious. (c) A script that writes
# to the final name may leave an incomplete file there. If an exception ended the script, this file can be opened. If the script was
# killed, it cannot.
#
# </details>

# %% [markdown] id="next"
# ## Next
#
# [04 · Pack samples into HDF5](04_pack_hdf5.ipynb) packs the same samples into another format.
