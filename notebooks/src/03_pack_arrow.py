# %% [markdown] id="top"
# # 03 · Pack samples into Arrow
#
# **Minutes** 30 · **Machine** any Linux computer with two CPUs · **Needs** notebook 01 · **Data** 400 synthetic images
# with labels, 400 with captions
#
# One large file in place of a million small ones means one inode, one open per worker, and no further requests to the
# metadata server. But training reads in random order: a packed file is only useful if one image can be read without
# its neighbours.
#
# Almost every data tool reads the tables of Apache Arrow. This notebook stores images in one, and shows which settings
# decide between hundreds and many thousands of images per second.

# %% [markdown] id="questions"
# ## Questions
#
# - What is in an Arrow file, and how does a program find row 200 in it?
# - What does it mean for a read to copy nothing?
# - How many rows belong in a record batch?
# - How does a `Dataset` read it from several workers?
# - What is left when a packing job is killed?

# %% [markdown] id="objectives"
# ## After this you can
#
# - write a schema for images with labels or captions, and pack them in record batches,
# - show whether a read is a copy or a view,
# - choose the rows per batch by how the file will be read,
# - say where a `Dataset` must open its file, and why,
# - pack a data set so that a half-finished file is never taken for a finished one.

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
# An Arrow table has a *schema*: a list of *fields*, each with a name and a type. Images with captions need three. The
# type `list<string>` keeps the five captions of an image together in one row, so that the image is stored once.

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
# A *record batch* is a number of rows, stored column by column: all keys, then all captions, then the bytes of all
# images. Its *header* says where each column lies, its *offsets* where each image begins. We write two batches of three
# rows.
#
# ![A strip of bytes: schema; a record batch of header, keys, captions, offsets and three images back to back; the next batch; a footer.](pictures/bytes_of_arrow.svg)
#
# *Not to scale.*

# %%
small = setup.scratch / "six.arrow"
with pa.OSFile(str(small), "wb") as file, pa.ipc.new_file(file, schema) as writer:
    for first in (0, 3):
        writer.write(pa.RecordBatch.from_pylist(rows[first : first + 3], schema=schema))

# %% [markdown]
# > **Predict.** The JPEG files are already compressed, Arrow adds headers, and we add five captions each. How much
# > larger is the file than the six images together: about 0.1 %, 1 % or 10 %?

# %%
payload = sum(len(row["data"]) for row in rows)
content = small.read_bytes()
reader = pa.ipc.open_file(pa.memory_map(str(small)))
print(f"{len(content) / payload - 1:.1%} larger; begins with {content[:6]}, ends with {content[-6:]}")
print(reader.num_record_batches, "batches; the second one has", reader.get_batch(1)["key"].to_pylist())

# %% [markdown]
# Captions, headers and footer are short beside images. Before the last six letters is the *footer*: the schema again,
# and the position of each record batch. So a reader starts at the end, and goes straight to any batch: of three rows
# each, batch 5 // 3 holds row 5. (It counts no rows: if batches differ, look into each.) A killed writer writes no
# footer; after an exception `with` does.
#
# One limit: a batch of a `binary` column holds at most 2 GiB
# ([arrow#10776](https://github.com/apache/arrow/issues/10776)); more batches, or `pa.large_binary()`, avoid it.

# %% [markdown] id="views" tags=["core"]
# ## 2 · Look at an image without copying it
#
# pyarrow opens a file in two ways. An `OSFile` is an ordinary open file: each read copies bytes into newly allocated
# memory. A *memory map* makes the file appear as memory; its pages are fetched when they are first touched.

# %%
import tempfile

from smallfiles import formats, measure
from smallfiles.formats import arrow
from smallfiles.pack import PackConfig, pack

source = setup.source()
packed = Path(tempfile.mkdtemp(dir=setup.scratch)) / "packed.arrow"  # a new folder, so that this cell may run twice
config = PackConfig(options=arrow.Options(rows_per_batch=64))
report = pack(source, packed, config)
reader = formats.open(packed)
samples, labels = list(reader), reader.table(["label"])["label"]  # key and bytes of each image in memory, and its label
report.samples, report.file_bytes

# %% [markdown]
# > **Predict.** We ask for one record batch of 64 images. How many bytes does each way copy?

# %%
from helpers.experiments.nb03 import watched
from smallfiles.progress import bytes_text

for name, way in {"OSFile": pa.OSFile, "memory map": pa.memory_map}.items():
    with watched() as moved:
        batch = pa.ipc.open_file(way(str(packed))).get_batch(2)
    print(f"{name:10} copied {bytes_text(moved.read)}, for a batch of {bytes_text(batch.nbytes)}")

# %% [markdown]
# The `OSFile` copied the whole batch. The map returned a *view*: positions inside the file; this process has copied
# no image. (Linux may fetch the pages all the same: section 4.) Only an image that you take out, `batch["data"][5]`, is
# copied. Compression rules out views, because the bytes in the file are then not those of the images. The folded cell
# checks all three, and what zstd saves:

# %% jupyter={"source_hidden": true}
whole = pa.memory_map(str(packed)).read_buffer()


def is_view(buffer):
    return 0 <= buffer.address - whole.address < whole.size


column = pa.ipc.open_file(whole).get_batch(2)["data"]
print("the images of the batch are a view:", is_view(column.buffers()[-1]))
print("an image taken out of it is a view:", is_view(column[5].as_buffer()))

path, options = setup.scratch / "zstd.arrow", pa.ipc.IpcWriteOptions(compression="zstd")
everything = pa.ipc.open_file(whole).read_all()
with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, everything.schema, options=options) as writer:
    writer.write_table(everything)
with watched() as moved:
    pa.ipc.open_file(pa.memory_map(str(path))).get_batch(2)
print(f"zstd: the file has {path.stat().st_size / packed.stat().st_size:.1%} of the size,", end=" ")
print(f"and a batch from the map allocates {bytes_text(moved.arrow)}")

# %% [markdown] id="rows" tags=["core"]
# ## 3 · Choose the rows per batch
#
# We write the images with 1 to 256 rows per batch:

# %%
table = pa.table({"data": [sample.data for sample in samples], "label": labels.combine_chunks()})


def write(rows_per_batch):
    path = setup.scratch / f"{rows_per_batch}.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows_per_batch)
    return path


files = {count: write(count) for count in (1, 4, 16, 64, 256)}  # change me: add a size

# %% [markdown]
# We read single images at random in three ways: `get_batch` of an `OSFile`, `get_batch` of a map, and our reader, which
# looks into each batch once. Every byte is hashed, since a view reads nothing.

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
# > **Predict.** From 1 to 256 rows per batch: which way of reading gets slower? At how many rows has the slowest way
# > lost half of its speed?

# %%
guess = 100  # change me: rows per batch

# %%
from functools import partial

tasks = {}
for count, path in files.items():
    tasks[f"OSFile, {count}"] = partial(read_all, by_get_batch(pa.OSFile(str(path)), count))
    tasks[f"memory map, {count}"] = partial(read_all, by_get_batch(pa.memory_map(str(path)), count))
    tasks[f"our reader, {count}"] = partial(read_all, arrow.open(path, access="mmap").read)
result = measure.compare(tasks, rounds=5, unit="images")

# %% [markdown]
# The folded cell draws this and notes your number.

# %% jupyter={"source_hidden": true}
import numpy as np

names = ("OSFile", "memory map", "our reader")
rates = {way: {count: result.rates_per_s(f"{way}, {count}") for count in files} for way in names}
osfile = rates["OSFile"]
fewest, largest = min(files), max(files)
most = max(n for n in osfile if np.median(osfile[n]) >= np.median(osfile[fewest]) / 2)
beyond = [n for n in osfile if n > most]
marks = {"OSFile falls to half of its speed": [(most, min(beyond))]} if beyond else None
worksheet.note("03", rows_per_batch=most)
extra = {n: (path.stat().st_size - report.payload_bytes) / len(samples) for n, path in files.items()}
print("bytes per image besides its own, by rows per batch:", {n: round(each) for n, each in extra.items()})
falls = {way: np.median(runs[fewest]) / np.median(runs[largest]) for way, runs in rates.items()}
slower = {way: f"{fall:.0f} times slower" if fall > 1.5 else "about as fast" for way, fall in falls.items()}
title = f"With {largest} rows per batch instead of {fewest}: " + ", ".join(f"{way} {text}" for way, text in slower.items())
axes = {"x": "rows per record batch", "y": "images per second"}
figures.lines(rates, title, **axes, log="xy", note="random reads, warm cache", guess=guess, marks=marks)

# %% [markdown]
# An `OSFile` copies the whole batch for one image. A map copies only the image, but `get_batch` tells Linux that the
# whole batch will be needed soon (`madvise`). Linux then visits each page of it and fetches those not cached, up to a
# limit of its own: beyond it the map's line goes flat. For our reader an image is two numbers, start and stop.
#
# So the choice depends on the readers:
#
# - *Unknown readers*, perhaps with `get_batch` for each image: 1 row, at most your number; the headers take 300 bytes
#   per image, and each worker that opens an `OSFile` first reads the footer, 24 bytes per image: 31 MB for ImageNet.
# - *Readers that call it once per batch*, like ours: any number below the 2 GiB of section 1, with fewer headers to
#   visit. `pack` uses 64.

# %% [markdown] id="juelich" tags=["core"]
# ## 4 · Feed a DataLoader
#
# [One published
# course](https://github.com/HelmholtzAI-FZJ/2024-06-course-Bringing-Deep-Learning-Workloads-to-JSC-supercomputers)
# writes one row per batch, `image_data: binary, label: uint16`: batch i is sample i. Its loader opens an `OSFile`. This
# similar `Dataset` opens it at the first read of each process; `__init__` opens it only to count, and closes it: a
# worker should not rely on a file that its parent has opened (notebook 04).

# %%
import os

from torch.utils.data import DataLoader, Dataset


class ArrowImages(Dataset):
    def __init__(self, path):
        self.path, self.process = str(path), None
        with pa.memory_map(self.path) as file:  # closed before any worker starts
            self.count = pa.ipc.open_file(file).num_record_batches

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if self.process != os.getpid():  # the first read of this process
            self.batches, self.process = pa.ipc.open_file(pa.OSFile(self.path)), os.getpid()
        batch = self.batches.get_batch(index)
        return batch["data"][0].as_buffer(), batch["label"][0].as_py()

    def __getstate__(self):  # what a worker gets that is not forked: no open file
        return {"path": self.path, "process": None, "count": self.count}


# %%
def total_bytes(batch):  # runs in the worker; decoding would go here
    return sum(len(data) for data, _ in batch), [label for _, label in batch]


settings = {"shuffle": True, "num_workers": 2, "multiprocessing_context": "fork"}  # why fork: notebook 04
loader = DataLoader(ArrowImages(files[1]), 32, collate_fn=total_bytes, **settings)
sizes, targets = zip(*loader)
print(f"{len(loader)} batches, {sum(sizes):,} of {report.payload_bytes:,} bytes; first labels {targets[0][:6]}")

# %% [markdown]
# A data set is often larger than the page cache. We drop a file from it, and count what storage delivers.
#
# > **Predict.** A batch has 64 rows. How many bytes leave the disk for one image of 0.1 MB, through `get_batch` of a
# > memory map?

# %%
from helpers.experiments.nb03 import fetched  # bytes that this process got from storage

guess = 500  # change me: kB for one image


def cold(path, read, index):
    """Bytes fetched for one image of a file that is not in the page cache."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())  # only what is on disk can be dropped
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    before = fetched()
    xxhash.xxh3_64_intdigest(read(index))
    return fetched() - before


# %% [markdown]
# The folded cell reads an image of each full batch, in each way.

# %% jupyter={"source_hidden": true}
import shutil

chosen = list({n // 64: n for n in order if n < len(samples) // 64 * 64}.values())  # the last batch is short
image_files = [source.root / source.manifest.path(index) for index in range(len(source.manifest))]
per_image = {"plain file": [cold(image_files[n], lambda n: image_files[n].read_bytes(), n) for n in chosen]}
kinds = {"OSFile": pa.OSFile, "memory map": pa.memory_map, "our reader, pread": partial(arrow.open, access="pread")}
for count, name in ((1, "OSFile"), (1, "memory map"), (64, "OSFile"), (64, "memory map"), (64, "our reader, pread")):
    path = shutil.copy(files[count], setup.scratch / f"cold-{len(per_image)}.arrow")  # pages that a map holds are not dropped
    file = kinds[name](str(path))
    read = file.read if name.startswith("our reader") else by_get_batch(file, count)
    read(len(samples) - 1)  # opens the file, and touches only its last batch
    per_image[f"{name}, {count} row{'s' * (count > 1)}"] = [cold(path, read, n) for n in chosen]
per_image = {name: [size / 1000 for size in sizes] for name, sizes in per_image.items()}
middle = {name: np.median(runs) for name, runs in per_image.items()}
if min(middle.values()):
    osfile, mapped, ours = (f"{middle[f'{name}, 64 rows'] / 1000:.1f} MB" for name in kinds)
    title = f"With 64 rows per batch, an OSFile fetches {osfile} for one image, a map {mapped}, our reader {ours}"
    note = {"note": "cold cache", "dots": "images", "base": "plain file"}
    show.figure(figures.bars(per_image, title, x="kB fetched from storage for one image", guess=guess, **note))
else:
    show.say("This file system does not say what it fetches, as those in memory and some on the network.")

# %% [markdown]
# For a map `get_batch` has Linux fetch the batch, up to its limit (0.1 MB to some MB). Our reader was told
# `access="pread"`, its choice on parallel file systems (locally it maps): it reads the batch's header and small columns
# once (the extra bytes above one row), then the image. On the storage of the recall question plain files stop at 1,000
# per second; one request per image allows 2,000.

# %% [markdown] id="killed" tags=["optional"]
# ## 5 · Kill a pack, and trust what is there
#
# *Optional, 6 minutes.* Packing ImageNet takes long enough to hit a time limit. The folded cell packs in a
# process, and, as soon as bytes appear, kills it with SIGKILL, as a scheduler does.
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
# The file grows inside a hidden folder, and gets its name when it is complete and a part has been read back.

# %%
out.unlink(missing_ok=True)  # in case this machine was quicker than the kill
report = pack(source, out, config)
print(*sorted(path.name for path in out.parent.iterdir()), "-", report.verified, "images read back")

# %% [markdown]
# Next to the file is its *digest*, a list of hashes of its blocks. Equal inputs give equal bytes, so large files can be
# compared by their small digests. The folded cell compares the file of section 2 with the one packed after the kill.
# Then it flips one bit and runs `verify`.

# %% jupyter={"source_hidden": true}
from smallfiles.digests import ContentDigest, sidecar
from smallfiles.pack import verify

print("equal digests:", ContentDigest.load(sidecar(out)) == ContentDigest.load(sidecar(packed)))

content = bytearray(out.read_bytes())
content[1_000_000] ^= 1
out.write_bytes(content)
print(verify(out).problems)

# %% [markdown]
# A JPEG has no checksum, so a flipped bit would often go unnoticed. `verify` names the samples of the damaged block.

# %% [markdown] id="exercise"
# ## Exercise
#
# [Exercise 03](../exercises/03_pack_arrow.ipynb): build the Flickr30K file of section 1 from a table with a broken row,
# choose its rows per batch, read its captions without its images, and feed them to a DataLoader.

# %% [markdown] id="cluster"
# ## On the cluster
#
# Lustre often keeps a file on one *target*, which then serves all nodes; `lfs getstripe FILE` shows it. *Striping*
# spreads it: before writing, `lfs setstripe -c 4 FOLDER`, or `-c -1` (all targets).
#
# `slurm/submit SITE 03_pack_arrow` runs this as a job.

# %%
show.command(config, "imagenet/train", "imagenet_train.arrow")

# %% [markdown]
# Afterwards `smallfiles inspect` shows the schema and the provenance; `verify` compares the file with its digest after
# each move.

# %% [markdown] id="key-points"
# ## Key points
#
# - A schema names the columns; one row per image, with `list<string>` for its captions.
# - A batch from a memory map is a view: positions inside the file, with no image copied yet. Compression rules this out.
# - `get_batch` asks for the whole record batch, through an `OSFile` or a map: one row per batch for unknown readers, more
#   for readers that call it once per batch.
# - A `Dataset` opens the file in the process that reads it.
# - A file that gets its name only when it is complete can be trusted; a digest shows whether it has changed since.

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
# **2.** `batch.nbytes` says 7.5 MB, and the process has copied no image. How can that be? (a) The batch is a view of the
# map. (b) The file is in the page cache. (c) Arrow reads in the background.
#
# <details>
# <summary>Answer</summary>
#
# **(a)**. A view has a size without having been copied. (b) A cached file is still copied by `read`. (c) pyarrow
# only tells Linux what it will need; pages that Linux fetches are not copied into the process.
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
# name leaves half a file under it. Half an Arrow file opens if an exception ended its writer, not if a kill did. Half a
# tar file looks complete if cut between two files, half an HDF5 file if flushed.
#
# </details>

# %% [markdown] id="next"
# ## Next
#
# Notebook 04, [Pack samples into HDF5](04_pack_hdf5.ipynb), does the same with another format.
