# %% [markdown] id="top"
# # 03 · Pack samples into Arrow
#
# **Minutes** 30 · **Machine** any Linux computer with two CPUs · **Needs** notebook 01 · **Data** 400 synthetic images
# with labels, 400 with captions
#
# One large file in place of a million small ones means one inode, one open per worker, and no further metadata
# requests. But training reads in random order. So a packed file is only useful if one image can be read without its
# neighbours.
#
# How a file of Apache Arrow is cut decides between hundreds and thousands of images per second.

# %% [markdown] id="questions"
# ## Questions
#
# - What is in an Arrow file, and how does a program find row 200 in it?
# - How many rows belong in a record batch?
# - What is left when a packing job is killed?

# %% [markdown] id="objectives"
# ## After this you can
#
# - write images with labels or captions in record batches,
# - tell a copy from a view,
# - choose the rows per batch for its readers,
# - open a file in the right place of a `Dataset`,
# - pack so that nobody takes a half file for a whole one.

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
# A *record batch* is a number of rows, stored column by column: all keys, then all captions, then the bytes of all
# images. Its *header* says where each column lies, its *offsets* where each image begins.
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
# > **Predict.** Arrow adds headers, and we add five captions each. How much larger is the file than the six images
# > together: about 0.1 %, 1 % or 10 %?

# %%
payload = sum(len(row["data"]) for row in rows)
content = small.read_bytes()
reader = pa.ipc.open_file(pa.memory_map(str(small)))
print(f"{len(content) / payload - 1:.1%} larger; begins with {content[:6]}, ends with {content[-6:]}")
print(reader.num_record_batches, "batches; the second one has", reader.get_batch(1)["key"].to_pylist())

# %% [markdown]
# Captions and headers are short beside images.
#
# How does a program find a row? Before the last six letters stand the *footer* and its length. The footer holds the
# schema again, and the position of each record batch. So a reader starts at the end, then goes straight to the batch
# that it needs: with three rows per batch, row 5 is in batch 5 // 3.
#
# A killed writer leaves no footer. But after an exception `with` writes one, so a footer does not prove that all rows
# are there.
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
# We let our toolbox pack 400 images, 64 rows per batch:

# %%
import tempfile

from helpers.experiments.nb03 import fetched, read_ahead, watched
from smallfiles import formats, measure
from smallfiles.formats import arrow
from smallfiles.pack import PackConfig, pack

source = setup.source()
packed = Path(tempfile.mkdtemp(dir=setup.scratch)) / "packed.arrow"  # a new folder, so that this cell may run twice
config = PackConfig(options=arrow.Options(rows_per_batch=64))
report = pack(source, packed, config)
reader = formats.open(packed)
samples, labels = list(reader), reader.table(["label"])["label"]  # key and bytes of each image in memory, and its label

# %% [markdown]
# > **Predict.** We ask for a record batch of 64 images, 7 MB. How much does each way copy: all, 0.1 MB, or almost none?

# %%
from smallfiles.progress import bytes_text

for name, way in {"OSFile": pa.OSFile, "memory map": pa.memory_map}.items():
    with watched() as moved:  # counts what is copied
        batch = pa.ipc.open_file(way(str(packed))).get_batch(2)
    print(f"{name:10} copied {bytes_text(moved.read)}, for a batch of {bytes_text(batch.nbytes)}")

# %% [markdown]
# The `OSFile` copied the whole batch. The map returned a *view*: positions inside the file. This process has copied no
# image, although Linux may fetch the pages (section 4).
#
# Only an image that you take out, as `batch["data"][5]`, is copied. A compressed file gives no views, because its bytes
# are not those of the images. The folded cell checks this, and what zstd saves:

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
# We write the same images into five files, with 1 to 256 rows per batch:

# %%
table = pa.table({"data": [sample.data for sample in samples], "label": labels.combine_chunks()})


def write(rows_per_batch):
    path = setup.scratch / f"{rows_per_batch}.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows_per_batch)
    return path


files = {count: write(count) for count in (1, 4, 16, 64, 256)}  # change me: add a size

# %% [markdown]
# Then we read single images in random order, in four ways:
#
# - *get_batch, OSFile* and *get_batch, memory map* ask for the batch of each image.
# - *our reader (mmap)* and *our reader (pread)* look into each batch once, and remember where its images are. Then they
#   take the image alone, from a map or with `pread`.
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
# > **Predict.** From 1 to 256 rows per batch: which ways get slower? At how many rows has the slowest lost half of its
# > speed?

# %%
guess = 100  # change me: rows per batch

# %%
from functools import partial

tasks = {}
for count, path in files.items():
    tasks[f"get_batch, OSFile, {count}"] = partial(read_all, by_get_batch(pa.OSFile(str(path)), count))
    tasks[f"get_batch, memory map, {count}"] = partial(read_all, by_get_batch(pa.memory_map(str(path)), count))
    for access in ("mmap", "pread"):
        tasks[f"our reader ({access}), {count}"] = partial(read_all, arrow.open(path, access=access).read)
result = measure.compare(tasks, rounds=5, unit="images")

# %% [markdown]
# The folded cell also decodes images on one CPU, and draws all rates.

# %% jupyter={"source_hidden": true}
import numpy as np

from smallfiles import images

names = ("get_batch, OSFile", "get_batch, memory map", "our reader (mmap)", "our reader (pread)")
rates = {way: {count: result.rates_per_s(f"{way}, {count}") for count in files} for way in names}
osfile = rates[names[0]]
fewest, largest = min(files), max(files)
most = max(n for n in osfile if np.median(osfile[n]) >= np.median(osfile[fewest]) / 2)
marks = None
if beyond := [n for n in osfile if n > most]:  # between these two, on the straight line that is drawn
    ends = [np.log([n, np.median(osfile[n])]) for n in (min(beyond), most)]
    (last, low), (first, high) = ends
    half = np.interp(np.log(np.median(osfile[fewest]) / 2), (low, high), (last, first))
    marks = {"get_batch, OSFile: half its speed": float(np.exp(half))}
worksheet.note("03", rows_per_batch=most)
extra = {n: (path.stat().st_size - report.payload_bytes) / len(samples) for n, path in files.items()}
print("bytes per image besides its own, by rows per batch:", {n: round(each) for n, each in extra.items()})
slower = [
    f"{way.replace(', ', ' of an ' if 'OSFile' in way else ' of a ')} is "
    f"{np.median(runs[fewest]) / np.median(runs[largest]):.0f} times slower"
    for way, runs in rates.items()
    if min(runs[fewest]) > 1.5 * max(runs[largest])  # the dots do not overlap
]
title = f"With {largest} rows per batch instead of {fewest}, " + (", ".join(slower) or "no way is much slower")


def decode_some():
    for sample in samples[:50]:
        images.decode(sample.data)
    return len(samples[:50])


decoded = measure.compare({"decode": decode_some}, rounds=5, unit="images").rates_per_s("decode")
gains = {n: np.median(runs) / np.median(decoded) for n, runs in osfile.items()}
faster = (f"{n}: {each:,.1f}" for n, each in gains.items())
print("get_batch by OSFile, times as fast as decoding, by rows per batch", *faster, sep=", ")
rates["one CPU decodes"] = dict.fromkeys((fewest, largest), np.median(decoded))
axes = {"x": "rows per record batch", "y": "images per second", "ideal": "one CPU decodes"}
figures.lines(rates, title, **axes, log="xy", note="random reads, warm cache", guess=guess, marks=marks)

# %% [markdown]
# - *get_batch, OSFile* copies the whole batch to get one image.
# - *get_batch, memory map* copies only the image. But `get_batch` tells Linux that the whole batch will be needed soon
#   (`madvise`). So Linux visits its pages, up to a limit, beyond which the line goes flat.
# - *Our reader* knows where the image is, so other rows do not matter.
#
# A worker also decodes each image. Where reading is ten times as fast as decoding (dashed grey line), it takes about a
# tenth of the worker's time; on that line, half.
#
# > **Predict.** At 32 rows, is `get_batch` by OSFile above or below the dashed line? Add 32 to the sizes above, run
# > again from there, and look.
#
# So the choice depends on the readers:
#
# - *Unknown readers* may call `get_batch` for each image: write 1 row, because n rows fetch n images (section 4).
#   The price is a long footer, 31 MB for ImageNet.
# - *Readers that call `get_batch` once per batch*: any number of rows whose batch stays below 2 GiB.
#   `pack` uses 64.

# %% [markdown] id="juelich" tags=["core"]
# ## 4 · Feed a DataLoader
#
# [One published
# course](https://github.com/HelmholtzAI-FZJ/2024-06-course-Bringing-Deep-Learning-Workloads-to-JSC-supercomputers)
# writes one row per batch, so batch i is sample i. Its loader opens the file at the first read in each worker. This is
# right, because a worker should not rely on a file that its parent has opened (notebook 04).
#
# Our `Dataset` still opens the file for each image. Change its `if`: `self.process` is the process that has opened it,
# `os.getpid()` the one that runs. The cell after it counts the openings.

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

    def __getstate__(self):  # what a worker gets that is not forked: no open file
        return self.__dict__ | {"batches": None, "process": None}


# %%
def total_bytes(batch):  # runs in the worker; decoding would go here
    return sum(len(data) for data, _ in batch), get_worker_info().dataset.opened


dataset, settings = ArrowImages(files[1]), {"num_workers": 2, "multiprocessing_context": "fork"}  # fork: notebook 04
dataset[0]  # the parent has read an image, too
sizes, opened = zip(*DataLoader(dataset, 32, shuffle=True, collate_fn=total_bytes, **settings))
print(f"{sum(sizes):,} of {report.payload_bytes:,} bytes are in {len(sizes)} batches")
print("times that a worker opened the file (once is enough):", max(opened) - dataset.opened)

# %% [markdown]
# <details>
# <summary>The line</summary>
#
# `if self.process != os.getpid():` opens once. With `if self.process is None:` the count is 0, because the workers use
# the parent's file.
#
# </details>
#
# So far all reads came from the page cache, which is often smaller than a data set. `cold` drops a file from it, reads
# an image, and counts what storage delivers.
#
# > **Predict.** How much leaves the disk for one image of 100 kB in a batch of 64, through `get_batch` of a memory map:
# > 100, 500 or 7,000 kB?

# %%
guess = 500  # change me: kB for one image


def cold(path, read, index):
    with open(path, "rb") as file:
        os.fsync(file.fileno())  # only what is on disk can be dropped
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    before = fetched()
    xxhash.xxh3_64_intdigest(read(index))
    return fetched() - before


# %% [markdown]
# The folded cell reads one image of each full batch in each way:

# %% jupyter={"source_hidden": true}
import shutil

kinds = {"get_batch, OSFile": pa.OSFile, "get_batch, memory map": pa.memory_map}
kinds |= {f"our reader ({access})": partial(arrow.open, access=access) for access in ("mmap", "pread")}
chosen = list({n // 64: n for n in order if n < len(samples) // 64 * 64}.values())  # the last batch is short
image_files = [source.root / source.manifest.path(index) for index in range(len(source.manifest))]
per_image = {"plain file": [cold(image_files[n], lambda n: image_files[n].read_bytes(), n) for n in chosen]}
# Copies, since pages that the maps of section 3 hold are not dropped.
copies = {count: shutil.copy(files[count], f"{setup.scratch}/cold-{count}.arrow") for count in (1, 4, 64)}


def opened_and_cold(name, count, index):
    file = kinds[name](copies[count])  # opened for each image: a map would hold pages of the one before
    read = file.read if "reader" in name else by_get_batch(file, count)
    read(len(samples) - 1)  # opens the file, and touches only its last batch
    return cold(copies[count], read, index)


for count, name in (*((n, name) for n in (1, 4) for name in list(kinds)[:2]), *((64, name) for name in kinds)):
    row = f"{name}, {count} row{'s' * (count > 1)}"
    per_image[row] = [opened_and_cold(name, count, index) for index in chosen]
per_image = {name: [size / 1000 for size in sizes if size] for name, sizes in per_image.items()}
if all(per_image.values()):
    mb = {name: f"{np.median(sizes) / 1000:.1f} MB" for name, sizes in per_image.items()}
    title = f"One image of {mb['plain file']} from a batch of 64 rows: get_batch fetches "
    title += f"{mb['get_batch, OSFile, 64 rows']} by OSFile, {mb['get_batch, memory map, 64 rows']} by map; "
    title += f"our reader {mb['our reader (mmap), 64 rows']} by map, {mb['our reader (pread), 64 rows']} by pread"
    ahead = read_ahead(packed)
    limit = f" · read-ahead up to {bytes_text(ahead)}" if ahead else ""
    note = {"note": f"cold cache{limit}", "dots": "images", "base": "plain file", "groups": [*kinds], "log": True}
    show.figure(figures.bars(per_image, title, x="kB fetched from storage for one image", guess=guess, **note))
else:
    show.say("This file system does not say what it fetches, as those in memory and some on the network.")

# %% [markdown]
# - `get_batch` fetches the whole batch, also through a map (up to Linux's limit, 0.1 MB to some MB). With 4 rows it
#   fetches 4 images, with one as little as a plain file.
# - *Our reader (mmap)* touches one image. But Linux may fetch what lies around a touched page, up to the same limit.
# - *Our reader (pread)* asks for the image alone, and once per batch for its header and small columns.
#
# So our reader uses `pread` on parallel file systems. On local ones it maps, which is often faster from the cache;
# cold, it pays this read-ahead.

# %% [markdown] id="killed" tags=["optional"]
# ## 5 · Kill a pack, and trust what is there
#
# *Optional, 6 minutes.* Packing ImageNet may hit a time limit. The folded cell packs in another process, and kills it
# as soon as bytes appear, with SIGKILL, a scheduler's last signal.
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
# The file grows inside a hidden folder. It gets its name when it is complete and a part has been read back. So
# pack again:

# %%
out.unlink(missing_ok=True)  # in case this machine was quicker than the kill
report = pack(source, out, config)
print(*sorted(path.name for path in out.parent.iterdir()), "-", report.verified, "images read back")

# %% [markdown]
# Next to the file is its *digest*, a list of hashes of its blocks. Equal inputs give equal digests. The folded cell
# compares this digest with that of section 2, flips one bit, and runs `verify`.

# %% jupyter={"source_hidden": true}
from smallfiles.digests import ContentDigest, sidecar
from smallfiles.pack import verify

print("equal digests:", ContentDigest.load(sidecar(out)) == ContentDigest.load(sidecar(packed)))

content = bytearray(out.read_bytes())
content[1_000_000] ^= 1
out.write_bytes(content)
print(verify(out).problems)

# %% [markdown]
# `verify` names the samples of the damaged block.

# %% [markdown] id="exercise"
# ## Exercise
#
# [Exercise 03](../exercises/03_pack_arrow.ipynb): build the Flickr30K file of section 1, leave no half file, read
# captions without images, and feed a DataLoader.

# %% [markdown] id="cluster"
# ## On the cluster
#
# Lustre often keeps a file on one *target* (a group of disks), which then serves all nodes. To spread it (*striping*),
# run `lfs setstripe -c 4 FOLDER` before writing.
#
# `slurm/submit SITE 03_pack_arrow -- DATA OUT` stripes, and runs such a command as a job:

# %%
show.command(config, "imagenet/train", "imagenet_train.arrow")

# %% [markdown] id="key-points"
# ## Key points
#
# - Write one row per image, with `list<string>` for its captions.
# - A batch from a memory map is a view: no image is copied yet. Compression rules this out.
# - `get_batch` asks for the whole record batch: write one row per batch for unknown readers, more for readers that call
#   it once per batch.
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
