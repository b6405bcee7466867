# %% [markdown] id="top"
# # 06 · Read a squashfs image without mounting it
#
# **Minutes** 35 · **Machine** any Linux computer, two CPUs do · **Needs** nothing; shows more where `mksquashfs` and
# FUSE are installed · **Data** 400 synthetic images
#
# A squashfs image is a whole folder tree in one read-only file. Linux can mount it, so that every program sees files
# again. Many sites do not let you mount, and you do not need it: a library reads the image as well. The settings with
# which you pack decide how quick that is.

# %% [markdown] id="questions"
# ## Questions
#
# - Which settings make an image slow, and why does nobody notice while packing?
# - Do I need a mount?
# - When does compression pay?
# - Why does a reader that works in one process return wrong samples in two?
# - My environment has more files than my quota. What now?

# %% [markdown] id="objectives"
# ## After this you can
#
# - pack an image that is quick to read at random, and ask an image of others why it is slow,
# - read it from any process without a mount,
# - say below which bandwidth compression pays,
# - recognise a reader that shares an offset between workers,
# - put a Python environment into one file.

# %% [markdown] id="setup"
# ## Set up

# %% id="start"
import sys

sys.path.append("..")
from helpers import show, start

setup = start("06")

# %% [markdown] id="inside"
# ## Look inside an image
#
# Pack the images. The suffix `.sqfs` chooses the format.

# %%
from smallfiles.pack import PackConfig, pack
from smallfiles.progress import bytes_text

source = setup.source()
image_path = setup.scratch / "train.sqfs"
image_path.unlink(missing_ok=True)
config = PackConfig()
report = pack(source, image_path, config)
show.say(f"{report.samples:,} images, {bytes_text(report.file_bytes)}, {report.files} files.")

# %% [markdown]
# The second file is the content digest. squashfs itself has no checksum of its data: a flipped byte comes back as if it
# were right, and only the digest finds it (`smallfiles verify`). Now open the image as a collection of files:

# %%
from pysquashfs import SquashFS

image = SquashFS(image_path)
name = image.paths[-1]
print(len(image), "files;", name, image.stat(name).size, "bytes")
image.read(name)[:2], image.list()[:3]

# %% [markdown]
# Each sample is a file at its own path, so a mount or `unsquashfs` gives the tree back. A tree cannot say which label a
# file has, or in which order the samples were packed. That stands in `.smallfiles/samples.arrow`, inside the image. The
# course's reader takes it from there:

# %%
from smallfiles import formats

reader = formats.open(image_path)
reader.key(7), reader.target(7), reader.classes[reader.target(7)], reader.span(7)[1:]

# %% [markdown]
# The last pair says where in the image this sample begins and ends. It lies there as it is, in one piece.

# %% [markdown] id="settings"
# ## 1 · Choose the settings
#
# squashfs was made for live CDs: everything is cut into *blocks*, compressed, and the ends of files are put together into
# shared blocks, *fragments*. That makes an image small. A photograph does not become smaller.
#
# > **Predict.** Blocks of 1 MiB, images of about 100 kB, fragments on: how many bytes must be fetched and unpacked to read
# > one image? And how much smaller does gzip make the whole image file?

# %%
from helpers.experiments import nb06 as squashfs
from smallfiles.measure import BenchConfig

samples = list(reader)[:120]
quick = BenchConfig(repeats=3, count=60)
measured = squashfs.bench_settings(samples, setup.scratch, config=quick)

# %%
from helpers.figures import squashfs as plots

show.figure(plots.settings(measured), alt=plots.alt_text(measured))

# %% [markdown]
# *pure* is `pysquashfs` in Python alone. *libsquashfs* is the C library of squashfs-tools-ng, where it is installed. A
# reader keeps the fragments that it unpacked last. That flatters small fragments here, where few files are read again and
# again; of a million files, the next one is hardly ever among them. Look at the sizes too:

# %%
for one in measured:
    print(f"{one.name:32} {bytes_text(one.image_bytes):>8}  {one.saved:6.2%} saved")

# %%
sizes = [one.image_bytes for one in measured]
show.say(f"The largest image is **{max(sizes) / min(sizes) - 1:.1%}** larger than the smallest.")

# %% [markdown]
# Who looks only at the size of an image learns nothing of its speed. The price comes later, with every read of every
# epoch. An image can be asked for it, also one that somebody else made. First the slowest, then the quickest:

# %%
slowest = min(measured, key=lambda one: one.rate().median)
quickest = max(measured, key=lambda one: one.rate().median)
for finding in (*slowest.findings, "", *quickest.findings):
    print(finding)

# %% [markdown]
# The same comes from `python -m pysquashfs info IMAGE`. If you pack with `mksquashfs` itself, use this line. Without
# `-noappend`, a second run adds all files once more, under other names.

# %%
from pysquashfs.info import RECOMMENDED

print(RECOMMENDED)

# %% [markdown] id="mount"
# ## 2 · Compare the library with a mount
#
# A mounted image is a folder. Each read asks the kernel for a name, a handle and the bytes, and through FUSE it also asks
# another process. The library knows from its index where each file lies, and takes the bytes by their position. Every way
# that this machine allows is asked for sample after sample; `PySquashfsImage` is another package for the same.
#
# > **Predict.** Everything is in the page cache. Which is quicker for a random file: the folder of plain files, a mount,
# > or the library?

# %%
usable, missing = squashfs.usable_ways(image_path)
for note in missing:
    print(note)
warm = squashfs.bench_ways(image_path, setup.path(), BenchConfig(repeats=4, count=200), usable)

# %%
from helpers import figures

show.figure(figures.throughput(warm), alt=figures.alt_text(warm))

# %%
from smallfiles.measure import ratio

rates = {record.name: record for record in warm}
for other in ("plain files", *(name for name in usable if "mount" in name or "fuse" in name)):
    factor = ratio(rates["pysquashfs, pure"], rates[other])
    print(f"the library reads {factor.median:.1f} times as many files a second as: {other}")

# %% [markdown]
# This flatters the mounts: all names and bytes are in memory already. In a first epoch each name is looked up on a cold
# image. Mount an image when a program wants files and cannot be changed. Which way is open to you? Try them in this order:

# %%
from pysquashfs.mounting import how_to_mount

for way in how_to_mount(image_path):
    print(f"{'yes' if way.available else 'no ':4} {way.name:15} {way.reason}")

# %% [markdown] id="compression"
# ## 3 · Compress what compresses
#
# Annotations are JSON, and JSON is mostly repetition. Make 300 documents as they come with detection data sets.
#
# > **Predict.** zstd makes them several times smaller. Is reading them faster or slower, when the image is in memory? And
# > on a busy parallel file system?

# %%
from helpers.experiments.nb06.settings import text_settings, worth_below_bytes_s

documents = squashfs.documents(300)
raw, gzip, zstd = squashfs.bench_settings(documents, setup.scratch, text_settings(), quick)
for one in (raw, gzip, zstd):
    print(f"{one.name:14} {one.bytes / one.image_bytes:4.1f} times smaller {one.rate().median:8,.0f} files/s")

# %%
below = worth_below_bytes_s(raw, zstd)
show.say(
    f"Unpacking costs time, bytes that need not come save some. Here zstd is ahead as soon as "
    f"one reader gets **less than {below / 1e6:,.0f} MB/s** from the storage."
)

# %% [markdown]
# Compare that with what one reader gets from your file system on a busy day; `smallfiles bench read` measures it.
# So: images raw, and text as zstd where the storage is slower. Measure before you take a higher level: when this course
# was made, level 15, the default of `mksquashfs`, took 12 to 23 times as long to pack, for images 10 % smaller.

# %% [markdown] id="sharing"
# ## 4 · Share an image between workers
#
# Here is a small reader, as one finds it in many projects. It knows where each sample lies.

# %%
places = [reader.span(index)[1:] for index in range(len(reader))]
truth = [bytes(reader.read(index)) for index in range(len(reader))]
file = open(image_path, "rb")


def seek_and_read(index):
    start, stop = places[index]
    file.seek(start)
    return file.read(stop - start)


sum(seek_and_read(index) != truth[index] for index in range(len(truth)))

# %% [markdown]
# No sample is wrong. Now two workers are forked, as a DataLoader does it. Each reads for a second and compares every
# sample with the truth.
#
# > **Predict.** How many are wrong: none, a few, or a quarter of them? Will there be an error?

# %%
import os


def at_position(index):
    start, stop = places[index]
    return os.pread(file.fileno(), stop - start, start)


bad = squashfs.count_wrong(seek_and_read, truth)
good = squashfs.count_wrong(at_position, truth)
ours = squashfs.count_wrong(reader.read, truth)

# %%
for name, trial in (("seek, then read", bad), ("os.pread", good), ("the course's reader", ours)):
    show.say(trial.summary(name))
show.say(bad.in_words)

# %% [markdown]
# An open file has an *offset*, and forked workers share it. One worker seeks, the other one seeks too, and then the first
# reads: bytes of the right file, of the wrong sample. Training goes on, on images that do not belong to their labels.
#
# ![Left: two workers share one offset, worker 2 moves it, and worker 1 reads image B instead of A. Right: with pread each names its position.](pictures/shared_offset.svg)
#
# *One open file has one offset, however many workers hold it.*
#
# `os.pread` takes the position as an argument, so there is nothing to share. The package `PySquashfsImage` of part 2 seeks
# and then reads, and so do others. Ask that of every reader of one big file.

# %% [markdown] id="environment"
# ## 5 · Put an environment into one image
#
# How many files does Python open for one import?

# %%
from helpers.imports import files_opened_by

opened = [files_opened_by(module) for module in ("json", "numpy", "torch")]
for one in opened:
    print(f"import {one.module:6} opens {one.files:6,} files, {bytes_text(one.bytes)}")

# %% [markdown]
# Each process of a job asks the metadata server for all of them, at the same second as all others. The environment is a
# small-file problem too, and one image cures it. A whole environment is too large to pack in a notebook, so take one
# package of it, and put it on storage where each operation takes 2 ms.
#
# > **Predict.** How long does one import take from there: from many files, and from one image on the same storage?

# %%
from helpers.experiments.nb06 import environment

package = environment.prepare(setup.scratch / "environment")
trials, note = squashfs.import_trials(package)
show.say(f"{package.files:,} files, {bytes_text(package.folder_bytes)}; {note or 'both were tried.'}")

# %%
show.say(environment.in_words(trials))

# %% [markdown]
# Look-ups and listings of the image are answered on this node; the storage sees reads of one open file. The whole
# environment of this course is packed by one script, where `mksquashfs` is installed. Start it in a terminal, in the
# folder of the course. It ends by printing the lines that use the image in a job:
#
# ```bash
# slurm/env/build.sh venv.sqfs .venv
# ```

# %%
file.close()
image.close()
reader.close()

# %% [markdown] id="exercise"
# ## Exercise
#
# [Exercise 06](../exercises/06_read_a_squashfs_image.ipynb): a reader returns wrong samples from two workers. Find out
# why, and write one that is right under fork, under spawn and in threads.

# %% [markdown] id="cluster"
# ## On the cluster
#
# The same packing as one line of a job. The job script with it is `slurm/submit SITE 06_pack_squashfs`. Copy the image and
# its digest together.

# %%
show.command(config, "DATA_FOLDER", "train.sqfs")

# %% [markdown] id="key-points"
# ## Key points
#
# - Photographs: raw, no fragments. Compressing them saves almost nothing and costs every read.
# - A library reads an image by position and needs neither mount nor root; a mount is for programs that want files.
# - Compress text, with zstd at level 3; it pays below a bandwidth that you can measure.
# - Forked workers share the offset of an open file: name the position in each read.
# - An environment is thousands of small files: one image asks the metadata server a fraction as often.

# %% [markdown] id="next"
# ## Next
#
# Images, shards, Arrow and HDF5 are all one file or a few. Notebook 07,
# [Stage data to /dev/shm](07_stage_a_dataset.ipynb), brings them close to the GPU.
