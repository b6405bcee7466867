# %% [markdown] id="top"
# # 03 · Pack samples into Arrow
#
# **Minutes** 30 · **Machine** any Linux computer, two CPUs do · **Needs** notebook 01 · **Data** 400 synthetic images
# with labels, 400 with captions
#
# One large file in place of a million small ones: one inode, one open, no questions to the metadata server. But a
# training loop reads images one by one and in random order. A packed file is only good if it gives one image without
# fetching its neighbours.
#
# Apache Arrow is a format for tables that almost every data tool reads. This notebook stores images in it, and shows
# which of its settings decide between thousands of images per second and a hundred.

# %% [markdown] id="questions"
# ## Questions
#
# - What is in an Arrow file, and how does a program find row 200 in it?
# - What does it mean that a read copies nothing?
# - How many rows belong in a record batch?
# - What is left when a packing job is killed?

# %% [markdown] id="objectives"
# ## After this you can
#
# - write a schema for images with labels or captions, and pack them in record batches,
# - show whether a read is a copy or a view,
# - choose the rows per batch for the way in which the file will be read,
# - pack a data set so that a half-finished file is never taken for a finished one.

# %% [markdown] id="setup"
# ## Set up

# %% id="start"
import sys

sys.path.append("..")
from helpers import show, start

setup = start("03")

# %% [markdown] id="inside"
# ## 1 · Build a small file by hand
#
# An Arrow table has a *schema*: a list of *fields*, each with a name and a type. Images with captions need three. The
# type `list<string>` keeps the five captions of an image together in one row, so that the image is stored once.

# %%
import pyarrow as pa

schema = pa.schema({"key": pa.string(), "captions": pa.list_(pa.string()), "data": pa.binary()})
schema

# %% [markdown]
# We take six images with captions, as the exercise will.

# %%
flickr = setup.source("flickr30k", split="all")
buffer = memoryview(bytearray(1 << 24))
rows = []
for number in range(6):
    key = flickr.manifest.path(number)
    size = flickr.store.read_into(key, buffer)
    rows.append({"key": key, "captions": flickr.manifest.target(number), "data": bytes(buffer[:size])})
rows[0]["captions"][:2]

# %% [markdown]
# A *record batch* is a number of rows, stored column by column: all keys, then all captions, then the bytes of all
# images, one behind the other. A file is a sequence of record batches. Here we write two of three rows each.
#
# ![Strips of bytes: in Arrow, HDF5 blob and squashfs images lie back to back; in HDF5 vlen each lies in a heap, in tar behind a header.](pictures/bytes_of_formats.svg)
#
# *Where images lie in the formats of this course. Not to scale: images fill nearly all of each file.*

# %%
small = setup.scratch / "six.arrow"
with pa.OSFile(str(small), "wb") as file, pa.ipc.new_file(file, schema) as writer:
    for start in (0, 3):
        writer.write(pa.RecordBatch.from_pylist(rows[start : start + 3], schema=schema))

# %% [markdown]
# > **Predict.** The JPEG files are already compressed, and Arrow adds headers. How much larger is the file than the six
# > images together: 0.1 %, 1 % or 10 %?

# %%
payload = sum(len(row["data"]) for row in rows)
extra = small.stat().st_size / payload - 1
show.say(f"The file is **{100 * extra:.1f} %** larger than its images: captions, headers and a footer.")

# %% [markdown]
# The file begins and ends with the same six letters. Before the last ones stands the *footer*: the schema once more, and
# the place of each record batch. So a reader starts at the end, and then goes straight to any batch. A writer that is
# killed never writes the footer, and its file cannot be opened.

# %%
content = small.read_bytes()
reader = pa.ipc.open_file(pa.memory_map(str(small)))
content[:6], content[-6:], reader.num_record_batches, reader.get_batch(1)["key"].to_pylist()

# %% [markdown] id="views"
# ## 2 · Look at an image without copying it
#
# Now the labelled set, packed by the package. Section 5 looks at what `pack` does beyond writing.

# %%
from smallfiles.formats import arrow
from smallfiles.pack import PackConfig, pack

source = setup.source()
packed = setup.scratch / "packed.arrow"
config = PackConfig(options=arrow.Options(rows_per_batch=64))
report = pack(source, packed, config)
report.samples, report.file_bytes

# %% [markdown]
# pyarrow opens a file in two ways. An `OSFile` is an ordinary open file: what is wanted is read into memory that is
# allocated for it. A *memory map* asks the operating system to let the file appear as if it were memory; pages of it are
# fetched when somebody looks at them.
#
# > **Predict.** We ask for one record batch, in which 64 images lie. How many bytes does each way read?

# %%
from smallfiles.measure.traffic import watched
from smallfiles.progress import bytes_text

for name, way in {"OSFile": pa.OSFile, "memory map": pa.memory_map}.items():
    with watched() as moved:
        batch = pa.ipc.open_file(way(str(packed))).get_batch(2)
    told = f"read {bytes_text(moved.read)}, allocated {bytes_text(moved.arrow)}"
    print(f"{name:10} {told} for a batch of {bytes_text(batch.nbytes)}")

# %% [markdown]
# The open file fetched all of it. The map gave a *view*: addresses and lengths inside the file, and no image was read
# yet. We can check this with plain arithmetic. A column of bytes consists of two buffers, the borders between the rows
# and the bytes behind each other, so one image is a slice of the second.

# %%
import numpy as np

whole = pa.memory_map(str(packed)).read_buffer()
column = pa.ipc.open_file(whole).get_batch(2)["data"]
_, borders, values = column.buffers()
start, stop = np.frombuffer(borders, np.int32)[5:7].tolist()
image = values.slice(start, stop - start)

# %%
offset = image.address - whole.address
with packed.open("rb") as file:
    file.seek(offset)
    same = file.read(image.size) == image.to_pybytes()
offset, same

# %% [markdown]
# The address of the image minus the address of the file is an offset, and there the file holds exactly this image. What
# one usually writes is shorter, `column[5]`. Is that a view, too?

# %%
cell = column[5].as_buffer()
inside = 0 <= cell.address - whole.address < whole.size
what = "inside the file: it is **a view**" if inside else "outside the file: it is **a copy**"
show.say(f"`column[5]` lies {what}.")

# %% [markdown]
# A copy of one image is cheap, a copy of a batch is not. The reader of this package copies neither: it notes where each
# batch lies, and then an image is two numbers, start and stop.

# %%
from smallfiles import formats

images = formats.open(packed)
images.span(2 * 64 + 5)[1:] == (offset, offset + image.size)

# %% [markdown] id="rows"
# ## 3 · Choose the rows per batch
#
# One row a batch makes many headers, and a footer with a place for each image. Many rows a batch make few headers, but
# then a batch is many megabytes. We pack the same images five times and read them at random, every byte of them.
#
# > **Predict.** From 1 to 256 rows a batch: which way of reading gets slower, and by how much?

# %%
from helpers.experiments.nb03 import batches

files = batches.write_files(source, setup.scratch)
found = batches.bench_batches(files)
if found.note:
    show.say(found.note)

# %%
from helpers.figures import batches as plots

show.figure(plots.draw(found), alt=found.alt_text)

# %% [markdown]
# Mind that each panel has its own scale. An `OSFile` fetches the batch to give one image. A map does not, and yet pyarrow's `get_batch` is not free: it tells the
# operating system that the whole batch will be needed soon (`madvise`), which looks at every page of it. Where the file
# is not in memory yet, that can even fetch the batch from the disk. The third line is the package's reader: it asks for
# a batch once, and then goes to the image alone.

# %%
for way in batches.WAYS:
    best = max(found.of(way), key=lambda point: point.spread.median)
    print(f"{way:10} is fastest with {best.rows:3} rows a batch: {best.spread.median:,.0f} images/s")

# %% [markdown]
# If you do not know who will read the file, 16 to 128 rows are a good choice: headers stay few, and even a reader that
# fetches whole batches gets by. If everybody opens it as an ordinary file, choose few rows. Both rules are for random
# reads; a reader that goes from end to end does not care.
#
# A map has a price of its own. On a parallel file system each page that is touched may become a request to a server, so
# there our reader asks for each image in one piece instead (`access="pread"`).

# %% [markdown] id="juelich"
# ## 4 · Read the layout of the Jülich course
#
# A course on this subject, held at the supercomputing centre in Jülich, writes one row a batch: `image_data:
# binary, label: uint16`. Batch i is then sample i, and its loader opens an `OSFile`. The last figure tells why this is a
# sound choice for that loader. The package writes this layout too.

# %%
theirs = setup.scratch / "theirs.arrow"
their_layout = PackConfig(options=arrow.Options(layout="juelich"))
pack(source, theirs, their_layout)
pa.ipc.open_file(pa.memory_map(str(theirs))).schema.remove_metadata()

# %%
for path in (theirs, packed):
    info = formats.open(path).info()
    header = (info["file_bytes"] - info["bytes"]) / info["samples"]
    print(f"{path.name:13} {info['batches']:4} batches, {header:.0f} bytes a sample besides the image")

# %% [markdown]
# > **Predict.** Who fetches more images per second: their loader from their file, our reader from their file, or our
# > reader from ours? And how do plain files compare?

# %%
from helpers.experiments.nb03 import loaders
from smallfiles.measure.table import summary

records, note = loaders.bench_loaders(source, theirs, packed)
print(summary(records))

# %%
show.say(loaders.finding(records) + (f" Mind that {note}." if note else ""))

# %% [markdown]
# Their loader allocates memory for each batch and copies the image out of it; ours hands out a view. A ratio
# of `≈ 1` means that the runs overlap. Two things are not in this table. Plain files are read from a warm cache on this
# file system here, where an open is cheap. And decoding a JPEG takes far longer than fetching it, so a loader that is
# twice as fast at fetching does not train twice as fast. What packing saves is work for the metadata server.

# %% [markdown] id="killed"
# ## 5 · Kill a pack, and trust what is there
#
# Packing ImageNet takes long enough to meet a time limit. The next cell packs in a process of its own that is killed
# with SIGKILL in the middle, as a scheduler does it.
#
# > **Predict.** What does a listing show afterwards: a short file, a damaged file, or nothing?

# %%
from helpers.experiments.nb03.killed import killed_pack

out = setup.scratch / "train" / "train.arrow"
left = killed_pack(setup.path(), out, at=3 * len(source.manifest) // 4)
print(f"{left.signal}: visible {list(left.visible)}")
for name, size in left.hidden:
    print(f"hidden {name} with {bytes_text(size)} in it")

# %% [markdown]
# The file grows inside a hidden folder. It gets its name at the very end, when it is complete and was read back. So a
# name that is there can be trusted. The next run of the same command finds the folder of a dead run, and clears it. (A
# set of shards goes on at the last shard that was finished; notebook 05.)

# %%
report = pack(source, out, config)
sorted(path.name for path in out.parent.iterdir()), report.verified

# %% [markdown]
# Beside the file lies its *digest*, a list of hashes of its blocks. Inside is its *provenance*: what was packed, how,
# and by which version, but neither time nor user nor host. Equal inputs therefore give equal bytes, and two people can
# compare large files by their small digests. Here are the file of section 2 and the one that was packed after the kill.

# %%
from smallfiles.digests import ContentDigest, sidecar

record = formats.open(out).info()["provenance"]
record["options"], record["version"], ContentDigest.load(sidecar(out)) == ContentDigest.load(sidecar(packed))

# %% [markdown]
# Disks and networks damage files now and then. We change one bit in the image of section 2 and ask `verify`.

# %%
from smallfiles.pack import verify

with out.open("r+b") as file:
    file.seek(offset + 1000)
    byte = file.read(1)[0]
    file.seek(offset + 1000)
    file.write(bytes([byte ^ 1]))
checked = verify(out)
print(checked.intact, *checked.problems, sep="\n")

# %% [markdown]
# A JPEG has no checksum of its own, so a flipped bit often goes unnoticed otherwise. The samples of the damaged block are
# named, so you know what to fetch again.

# %% [markdown] id="exercise"
# ## Exercise
#
# [Exercise 03](../exercises/03_pack_arrow.ipynb) is the longest so far: build the Flickr30K file of section 1
# in full, from a table with a broken row, and read it with a DataLoader whose batches are padded captions. Each task has
# its own check, and the check opens your file.

# %% [markdown] id="cluster"
# ## On the cluster
#
# The same run as a job on a compute node. Put the output on the scratch file system, not into your home.

# %%
show.command(config, "imagenet/train", "imagenet_train.arrow")

# %% [markdown]
# Afterwards `smallfiles inspect imagenet_train.arrow` shows the schema and the provenance, and `verify` compares
# the file with its digest after each move between file systems.

# %% [markdown] id="key-points"
# ## Key points
#
# - A schema names the columns; one row an image, with `list<string>` for its captions.
# - A batch from a memory map is a view: addresses inside the file, with nothing read yet.
# - An open file fetches the whole record batch for one image; 16 to 128 rows suit most readers.
# - A name that appears only when the file is complete can be trusted; a digest tells whether it stayed so.

# %% [markdown] id="next"
# ## Next
#
# Notebook 04, [Pack samples into HDF5](04_pack_hdf5.ipynb), does the same with another format, and meets the trap that forked workers are.
