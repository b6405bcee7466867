# %% [markdown] id="top"
# # 03 · Pack samples into Arrow
#
# **Minutes** 30 · **Machine** any Linux computer with two CPUs · **Needs** notebook 01 · **Data** 400 synthetic images
# with labels, 400 with captions
#
# One large file in place of a million small ones means one inode and one open per worker. But training reads in random
# order. So a packed file is only useful if one image can be read without its neighbours.
#
# How a file of Apache Arrow is cut can make reading 50 to 300 times slower.

# %% [markdown] id="questions"
# ## Questions
#
# - How does a program find row 200 in an Arrow file?
# - How many rows belong in a record batch?
# - What is left when a packing job is killed?

# %% [markdown] id="objectives"
# ## After this you can
#
# - write images with labels or captions in record batches,
# - tell a copy from a view,
# - choose the rows per batch for its readers,
# - open a file in the right place of a `Dataset`,
# - tell a half file from a whole one.

# %% [markdown] id="setup"
# ## Set up

# %% id="start"
import sys

sys.path.append("..")
from helpers import figures, show, start, worksheet

setup = start("03")

# %% [markdown] id="recall"
# > **Recall** (01). A read of a small file takes two requests of 2 ms each, and the storage serves 4 requests at once.
# > With how many reads in flight does one more bring nothing?
#
# <details>
# <summary>Answer</summary>
#
# With 4: all servers are then busy, with 4 / (2 × 2 ms) = 1,000 files per second.
#
# </details>

# %% [markdown] id="inside" tags=["core"]
# ## 1 · Build a small file by hand
#
# We write an Arrow *file* (IPC), neither Parquet nor the *stream* of Hugging Face's `datasets`.
#
# An Arrow table has a *schema*: a list of *fields*, each with a name and a type. The type `list<string>` keeps all
# captions of an image in one row, so the image is stored once.

# %%
from pathlib import Path

import pyarrow as pa

schema = pa.schema({"key": pa.string(), "captions": pa.list_(pa.string()), "data": pa.binary()})
flickr = setup.source("flickr30k", split="all")
rows = []
for index in range(6):
    key = flickr.manifest.path(index)
    rows.append({"key": key, "captions": flickr.manifest.target(index), "data": (flickr.root / key).read_bytes()})
rows[0]["captions"][:2]

# %% [markdown]
# A *record batch* is a number of rows, stored column by column: all keys, then all captions, then all images. Its
# *header* says where each column lies, its *offsets* where each image begins.
#
# ![A strip of bytes: schema; a record batch of header, keys, captions, offsets and three images back to back; the next batch; a footer.](pictures/bytes_of_arrow.svg)
#
# We write two batches of three rows.

# %%
small = setup.scratch / "six.arrow"
with pa.OSFile(str(small), "wb") as file, pa.ipc.new_file(file, schema) as writer:
    for first in (0, 3):
        writer.write(pa.RecordBatch.from_pylist(rows[first : first + 3], schema=schema))

# %% [markdown]
# > **Predict.** How much larger is the file than the six images together: about 0.1 %, 1 % or 10 %?

# %%
payload = sum(len(row["data"]) for row in rows)
content = small.read_bytes()
reader = pa.ipc.open_file(pa.memory_map(str(small)))
print(f"{len(content) / payload - 1:.1%} larger; begins with {content[:6]}, ends with {content[-6:]}")
print(reader.num_record_batches, "batches; the second one has", reader.get_batch(1)["key"].to_pylist())

# %% [markdown]
# How does a program find a row? Before its own length and the last six letters stands the *footer*, with the position
# of each record batch. So a reader starts at the end, then goes straight to the batch that it needs.
#
# **Your turn.** Let the cell say `True`:

# %%
reader.get_batch(0)["key"][0].as_py() == rows[5]["key"]  # change me: take row 5, counted from 0

# %% [markdown]
# <details>
# <summary>The line</summary>
#
# `reader.get_batch(5 // 3)["key"][5 % 3].as_py() == rows[5]["key"]`: with three rows per batch, row 5 is the last one
# of batch 1.
#
# </details>
#
# A killed writer leaves no footer, so its file does not open. But after an exception `with` writes one, although rows
# are missing.
#
# <details>
# <summary>How large may a batch be?</summary>
#
# A `binary` column holds at most 2 GiB per batch ([arrow#10776](https://github.com/apache/arrow/issues/10776)). Write
# more batches, or use `pa.large_binary()`.
#
# </details>

# %% [markdown] id="views" tags=["core"]
# ## 2 · Look at an image without copying it
#
# pyarrow opens a file in two ways. An `OSFile` is an ordinary open file: each read copies bytes into newly allocated
# memory. A *memory map* makes the file appear as memory: Linux fetches a page (4 KiB) when a program first touches it.
#
# Our toolbox packs 400 images, 64 rows per batch:

# %%
import tempfile

from helpers.experiments.nb03 import fetched, watched
from smallfiles import formats, measure
from smallfiles.formats import arrow
from smallfiles.pack import PackConfig, pack

source = setup.source()
packed = Path(tempfile.mkdtemp(dir=setup.scratch)) / "packed.arrow"  # a new folder, so that this cell may run twice
config = PackConfig(options=arrow.Options(rows_per_batch=64))
report = pack(source, packed, config)
reader = formats.open(packed)
samples, labels = list(reader), reader.table(["label"])["label"]  # key, bytes and label of each image, in memory

# %% [markdown]
# > **Predict.** We ask for a batch of 64 images, 7 MB. How much does each way copy: all, 0.1 MB, or almost none?

# %%
from smallfiles.progress import bytes_text

for name, way in {"OSFile": pa.OSFile, "memory map": pa.memory_map}.items():
    with watched() as moved:  # counts what is copied
        batch = pa.ipc.open_file(way(str(packed))).get_batch(2)
    print(f"{name:10} copied {bytes_text(moved.read)}, for a batch of {bytes_text(batch.nbytes)}")

# %% [markdown]
# The `OSFile` copied the whole batch. The map copied almost nothing: it returned a *view*, positions inside the file.
#
# > **Predict.** Compressed with zstd, is the file smaller? Is a batch from the map still a view?
#
# **Your turn.** Run the cell as it is, then with `"zstd"`:

# %%
again, options = setup.scratch / "again.arrow", pa.ipc.IpcWriteOptions(compression=None)  # change me: "zstd"
everything = pa.ipc.open_file(pa.memory_map(str(packed))).read_all()
with pa.OSFile(str(again), "wb") as file, pa.ipc.new_file(file, everything.schema, options=options) as writer:
    writer.write_table(everything)
with watched() as moved:
    pa.ipc.open_file(pa.memory_map(str(again))).get_batch(2)
print(f"{bytes_text(again.stat().st_size)}; a batch from the map allocates {bytes_text(moved.arrow)}")

# %% [markdown]
# <details>
# <summary>What you see</summary>
#
# The file is hardly smaller, because JPEG is compressed already. And the batch is no view any more: Arrow allocates
# 7.5 MB to unpack it, since the bytes of the images do not stand in the file.
#
# </details>

# %% [markdown] id="rows" tags=["core"]
# ## 3 · Choose the rows per batch
#
# We write the images into six files, with 1 to 256 rows per batch:

# %%
table = pa.table({"data": [sample.data for sample in samples], "label": labels.combine_chunks()})


def write(rows_per_batch):
    path = setup.scratch / f"{rows_per_batch}.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows_per_batch)
    return path


files = {count: write(count) for count in (1, 2, 4, 16, 64, 256)}  # change me: add a size

# %% [markdown]
# We read single images in random order, in three ways:
#
# - *get_batch, OSFile* and *get_batch, memory map* ask for the batch of each image.
# - *our reader* looks into each batch once, and remembers where its images are. It reads the image alone, with an
#   ordinary read (`pread`).
#
# Every byte is hashed, because a view alone reads nothing.

# %%
import random

import xxhash

order = random.Random(0).sample(range(len(samples)), len(samples))


def by_get_batch(file, rows_per_batch):
    batches = pa.ipc.open_file(file)
    return lambda index: batches.get_batch(index // rows_per_batch)["data"][index % rows_per_batch].as_buffer()


def read_all(read):
    for index in order:
        xxhash.xxh3_64_intdigest(read(index))
    return len(order)


# %% [markdown]
# > **Predict.** Which of the three ways get slower with more rows per batch? Up to how many rows does the slowest keep
# > half of its speed?

# %%
guess = 100  # change me: rows per batch

# %%
from functools import partial

tasks = {}
for count, path in files.items():
    tasks[f"get_batch, OSFile, {count}"] = partial(read_all, by_get_batch(pa.OSFile(str(path)), count))
    tasks[f"get_batch, memory map, {count}"] = partial(read_all, by_get_batch(pa.memory_map(str(path)), count))
    tasks[f"our reader, {count}"] = partial(read_all, arrow.open(path, access="pread").read)
result = measure.compare(tasks, rounds=5, unit="images")

# %% [markdown]
# The folded cell draws all rates, and how many images one CPU decodes.

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
title = f"An OSFile with {largest} rows per batch is about {times} times slower than with {fewest}"
axes = {"x": "rows per record batch", "y": "images per second", "ideal": "one CPU decodes", "log": "xy"}
marks = {f"OSFile keeps half its speed up to {most} row{'s' * (most > 1)}": most}
figures.lines(rates, title, **axes, note="random reads, warm cache", guess=guess, marks=marks)

# %% [markdown]
# - *get_batch, OSFile* copies the whole batch to get one image.
# - *get_batch, memory map* copies no batch. But `get_batch` announces all of it to Linux (`madvise`), which prepares
#   at most its read-ahead limit: 8 MB here, often 128 kB or 4 MB. Then the line is flat.
# - *Our reader* asks for no other row, so it does not get slower.
#
# Where a line meets the dashed one, reading from memory takes as long as decoding. From storage they meet much earlier:
# section 4 shows how much comes.
#
# **Your turn.** Read off where `get_batch` by OSFile meets the dashed line. Add this number to the sizes above, and
# run from there.
#
# <details>
# <summary>Answer</summary>
#
# Here at 200 to 250 rows (256 stands for 216 on average, since the second batch has only 144). There a worker spends
# half of its time reading, with a tenth of these rows about a tenth. If your line stays above, your memory is faster
# than your decoder.
#
# </details>
#
# The choice depends on who reads:
#
# - *Unknown readers* may call `get_batch` for each image. Write one row per batch; it costs about 300 bytes per image.
# - *Readers that call `get_batch` once per batch*, or read as ours does, may have more. `pack` uses 64.
#
# You can now solve tasks 1 and 2 of [exercise 03](../exercises/03_pack_arrow.ipynb).

# %% [markdown] id="juelich" tags=["core"]
# ## 4 · Feed a DataLoader
#
# With one row per batch, batch i is sample i, as in [one published
# course](https://github.com/HelmholtzAI-FZJ/2024-06-course-Bringing-Deep-Learning-Workloads-to-JSC-supercomputers).
# Each worker should open the file itself, at its first read. With pyarrow a shared file would do, since each read
# names its position. Other formats may not (notebook 04).
#
# **Your turn.** This `Dataset` opens the file for each image. Change its `if`: `self.process` is the process that has
# opened the file, `os.getpid()` the one that runs. The next cell counts the openings.

# %%
import os

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

# %%
def total_bytes(batch):  # runs in the worker; decoding would go here
    return sum(len(data) for data, _ in batch), get_worker_info().dataset.opened


dataset = ArrowImages(files[1])
settings = {"num_workers": 2, "multiprocessing_context": "fork"}  # fork: notebook 04
dataset[0]  # the parent has read an image, too
sizes, opened = zip(*DataLoader(dataset, 32, shuffle=True, collate_fn=total_bytes, **settings))
print(f"{sum(sizes):,} of {report.payload_bytes:,} bytes are in {len(sizes)} batches")
print("times that a worker opened the file (once is enough):", max(opened) - dataset.opened)

# %% [markdown]
# <details>
# <summary>The line</summary>
#
# `if self.process != os.getpid():` opens once. With `if self.process is None:` the count is 0, because the workers use
# the parent's file. Here the images are still right.
#
# </details>
#
# ### How much leaves the disk?
#
# So far all reads came from the page cache, which is often smaller than a data set.
#
# > **Predict.** How many kB leave the disk for one image of 100 kB, through `get_batch` by OSFile with 64 rows per
# > batch: 100, 500 or 7,000?

# %%
guess = 500  # change me: kB for one image

# %% [markdown]
# The folded cell drops the file from the cache, reads one image, and counts what the disk delivers.

# %% jupyter={"source_hidden": true}
import shutil


def cold(path, read, index):
    with open(path, "rb") as file:
        os.fsync(file.fileno())  # only what is on disk can be dropped
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    before = fetched()
    xxhash.xxh3_64_intdigest(read(index))
    return fetched() - before


def opened_and_cold(name, count, index, before=-1):
    file = kinds[name](copies[count])  # opened for each image: a map would hold pages of the one before
    read = file.read if "reader" in name else by_get_batch(file, count)
    read(before % len(samples))  # opens the file, and touches one batch, by default the last
    return cold(copies[count], read, index)


kinds = dict(zip(names, (pa.OSFile, pa.memory_map, partial(arrow.open, access="pread"))))
# Copies, since pages that the maps of section 3 hold are not dropped.
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
    title = f"With 64 rows, get_batch by OSFile fetches on average {whole / alone:.0f} times the image"
    how = {"note": "cold cache", "dots": "images", "base": "plain file", "groups": names, "log": True}
    show.figure(figures.bars(per_image, title, x="kB fetched from storage for one image", guess=guess, **how))
else:
    show.say("This file system does not say what it fetches, as those in memory and some on the network.")

# %% [markdown]
# - *get_batch, OSFile* fetches the whole batch, 64 images for one.
# - *get_batch, memory map* copies nothing, yet fetches the batch, up to the read-ahead limit.
# - *Our reader* fetches the image. At the first one of a batch, Linux also reads ahead around header and labels.
#
# You can now solve tasks 4 and 5 of [exercise 03](../exercises/03_pack_arrow.ipynb).

# %% [markdown] id="killed" tags=["optional"]
# ## 5 · Kill a pack, and trust what is there
#
# *Optional, 6 minutes.* A packing job may be killed at its time limit. The folded cell packs in another process, and
# kills it as soon as bytes appear.
#
# > **Predict.** What does a listing show afterwards: a short file, a damaged file, or nothing?

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
# The file grows inside a hidden folder, and gets its name when it is complete. So pack again:

# %%
out.unlink(missing_ok=True)  # in case this machine was quicker than the kill
pack(source, out, config)
print(*sorted(path.name for path in out.parent.iterdir()))

# %% [markdown]
# Its *digest* is a list of hashes of its blocks. The folded cell flips one bit of the file. Then `verify` names the
# samples of the damaged block:

# %% jupyter={"source_hidden": true}
from smallfiles.pack import verify

content = bytearray(out.read_bytes())
content[1_000_000] ^= 1
out.write_bytes(content)
print(verify(out).problems)

# %% [markdown]
# You can now solve task 3 of [exercise 03](../exercises/03_pack_arrow.ipynb).

# %% [markdown] id="exercise"
# ## Exercise
#
# [Exercise 03](../exercises/03_pack_arrow.ipynb): build the Flickr30K file of section 1, leave no half file, read
# captions without images, and feed a DataLoader.

# %% [markdown] id="cluster"
# ## On the cluster
#
# Lustre often keeps a file on one *target* (a group of disks). To spread it over four (*striping*), run
# `lfs setstripe -c 4 FOLDER` before writing; for ImageNet or many nodes 16, or -1 for all.
# `slurm/submit SITE 03_pack_arrow -- DATA OUT` sets four unless you have, and runs such a command as a job:

# %%
show.command(config, "imagenet/train", "imagenet_train.arrow")

# %% [markdown]
# For unknown readers add `-O rows_per_batch=1`.

# %% [markdown] id="key-points"
# ## Key points
#
# - Write one row per image, with `list<string>` for its captions.
# - A batch from a memory map is a view, unless the file is compressed.
# - `get_batch` asks for the whole batch: write one row per batch, or more for readers that call it once per batch.
# - A `Dataset` opens the file in the process that reads.
# - Trust a file that gets its name only when it is complete. A digest shows whether it has changed since.

# %% [markdown] id="quiz"
# ## Check yourself
#
# **1.** A colleague reads your file of 1,000 rows per batch through `pa.OSFile`, one image at a time, and gets 20
# images per second. What do you advise? (a) More workers. (b) Compression. (c) Fewer rows per batch.
#
# <details>
# <summary>Answer</summary>
#
# **(c)**. Each image costs a copy of its batch, 100 MB: from memory that is 10 to 300 images per second, depending on
# the machine. A map alone saves the copy, but `get_batch` still asks for the whole batch. (a) Workers would move these
# bytes in parallel, and still waste them. (b) Compression makes it worse: the batch must then be unpacked, too.
#
# </details>
#
# **2.** `batch.nbytes` says 7.5 MB, and the process has copied no image. How can that be? (a) The batch is a view of
# the map. (b) The file is in the page cache. (c) Arrow reads in the background.
#
# <details>
# <summary>Answer</summary>
#
# **(a)**. A view has a size without having been copied. (b) A cached file is still copied by `read`. (c) pyarrow only
# tells Linux what it will need; pages that Linux fetches are not copied into the process.
#
# </details>
#
# **3.** After a time limit, `train.arrow` is there. May you train on it? (a) Never. (b) Yes, if `pack` wrote it. (c)
# Yes, whichever program wrote it.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**. `pack` gives the name only to a complete file. (a) is too cautious. (c) A script that writes to the final
# name leaves half a file under it. Half an Arrow file opens if an exception ended its writer, not if a kill did.
#
# </details>

# %% [markdown] id="next"
# ## Next
#
# [04 · Pack samples into HDF5](04_pack_hdf5.ipynb) does the same with another format.
