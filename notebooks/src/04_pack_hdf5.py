# %% [markdown] id="top"
# # 04 · Pack samples into HDF5
#
# **Minutes** 30 · **Machine** any Linux computer, two CPUs do · **Needs** nothing · **Data** 400 synthetic images
#
# HDF5 is the format that every cluster, every language and every simulation code knows. It can hold a million images in
# one file. It can also be far slower than it needs to be, and hand wrong images to a training job without a word. Both
# are decided by a few lines that you write.

# %% [markdown] id="questions"
# ## Questions
#
# - Where in an HDF5 file is my image?
# - Which line makes writing slow?
# - What do chunks and compression cost when samples are read at random?
# - Why are samples wrong as soon as a DataLoader has workers?
# - What does "unable to lock file" want from me?

# %% [markdown] id="objectives"
# ## After this you can
#
# - look into any HDF5 file, and tell rows of variable length from one run of bytes with offsets,
# - write bytes without making a Python integer of each,
# - choose between contiguous, chunked and compressed storage by what a random read costs,
# - open a file so that forked workers read the right samples,
# - get past a file lock, and know when not to.

# %% [markdown] id="setup"
# ## Set up

# %% id="start"
import sys

sys.path.append("..")
from helpers import show, start

setup = start("04")

# %% [markdown] id="inside"
# ## 1 · Look inside a file
#
# An HDF5 file is a small file system: *groups* are its folders, *data sets* are its files, and each data set is an array
# with a type and a shape. Images have different sizes, so they fit no rectangular array. There are two ways out. Pack the
# images in both.

# %%
from smallfiles.formats import hdf5
from smallfiles.pack import PackConfig, pack
from smallfiles.progress import bytes_text

source = setup.source()
vlen, blob = setup.scratch / "vlen.h5", setup.scratch / "blob.h5"
config = PackConfig(options=hdf5.Options(layout="blob"))
pack(source, blob, config)
report = pack(source, vlen, PackConfig(options=hdf5.Options(layout="vlen")))
show.say(
    f"{report.samples:,} images in each of the two files, {bytes_text(report.payload_bytes)} together."
)

# %%
import h5py

for path in (vlen, blob):
    with h5py.File(path, "r") as file:
        print(path.name)
        for name, item in file[source.manifest.split].items():
            print(f"    {name:12} {item.shape!s:14} {item.dtype}")

# %% [markdown]
# `vlen` has a data set `images` with one *variable-length row* an image. `blob` has one long run of bytes, `data`, and
# the place in it where each image begins, `offsets`. The other names are keys and labels, stored the same way.
#
# ![Strips of bytes: in HDF5 vlen, references lead to one heap per image; in HDF5 blob, images lie back to back and offsets follow.](pictures/bytes_of_formats.svg)
#
# *Compare the second and third strip. Not to scale: images fill nearly all of each file.*
#
# > **Predict.** How many bytes does the data set `images` itself take for one image of about 100 kB?

# %%
with h5py.File(vlen, "r") as file:
    images = file[source.manifest.split]["images"]
    row_bytes = images.id.get_storage_size() / len(images)
    image = images[7]
row_bytes, image.nbytes

# %% [markdown]
# A row holds a length and an address, nothing else. The image lies elsewhere, in a *heap*, and the library follows the
# address for each read. The Jülich course's loaders read this layout. In the other one a sample is a slice:

# %%
with h5py.File(blob, "r") as file:
    group = file[source.manifest.split]
    start, stop = map(int, group["offsets"][7:9])
    same = group["data"][start:stop].tobytes() == image.tobytes()
start, stop, same

# %% [markdown]
# Two neighbours in `offsets` are start and stop, so n images have n + 1 offsets. That one more is forgotten by everybody
# once.
#
# A last look inside: what does a file look like whose job was killed after ten of twenty images?

# %%
import numpy as np

killed = setup.scratch / "killed.h5"
with h5py.File(killed, "w") as file:
    rows = file.create_dataset("train/images", (20,), h5py.vlen_dtype(np.uint8))
    file["train/targets"] = np.zeros(20, np.int16)
    for index in range(10):
        rows[index] = image

# %%
from smallfiles import formats
from smallfiles.errors import SmallfilesError

with h5py.File(killed, "r") as file:
    print("h5py: image 15 has", len(file["train/images"][15]), "bytes, and no error")
try:
    len(formats.open(killed))
except SmallfilesError as error:
    show.say(f"The course's reader: {error}")

# %% [markdown]
# The file opens, and it has the full shape. So `pack` writes under another name, and publishes only a complete file.

# %% [markdown] id="writing"
# ## 2 · Write bytes, not a list of them
#
# Many scripts turn the bytes of a file into an array by `np.array(list(data))`. NumPy has `np.frombuffer` for that.
#
# > **Predict.** How many times as long does the first one take for one image: 2 times, 100 times, or more than 1,000 times?

# %%
from timeit import repeat

from helpers.experiments import nb04 as bench

samples = bench.load(source)
data = samples[7].data
list_s = min(repeat(lambda: bench.by_list(data), number=1, repeat=5))
buffer_s = min(repeat(lambda: bench.by_buffer(data), number=100, repeat=5)) / 100

# %%
show.say(
    f"For {len(data):,} bytes: through a list {list_s * 1e3:.1f} ms, from the buffer {buffer_s * 1e6:.1f} µs, "
    f"**{list_s / buffer_s:,.0f} times** as fast."
)

# %% [markdown]
# `list(data)` makes a list entry of each byte, 8 bytes for one. `np.frombuffer` looks at the bytes where they are. Now
# write whole files: images from memory, all layouts in turn, in five rounds whose order changes.

# %%
writes = bench.bench_writes(samples, setup.scratch)

# %%
from helpers import figures as plots

slowest = "vlen from np.array(list(…))"
show.figure(plots.throughput(writes, reference=slowest), alt=plots.alt_text(writes, reference=slowest))

# %% [markdown]
# Bars are medians, dots are single runs. A row of variable length needs a place in a heap; a blob needs none. Our writer
# is told the sizes beforehand: it lets HDF5 lay out the file, and then writes the bytes past the library. The last two
# bars cut the blob into chunks. The next part asks what those, and the time for compression, buy.

# %% [markdown] id="reading"
# ## 3 · Read one sample at random
#
# Training reads samples in random order. HDF5 can store a data set *contiguous*, as one run, or in *chunks*, which can be
# compressed. A chunk is fetched and unpacked as a whole, even for one byte of it.
#
# > **Predict.** Images have about 100 kB and chunks 1 MiB. How many bytes are read for each byte of an image? Does gzip
# > reduce that?

# %%
reads = bench.bench_random_reads(samples, setup.scratch)

# %%
show.figure(plots.throughput(reads, reference="vlen"), alt=plots.alt_text(reads, reference="vlen"))

# %%
costs = {record.name: record.extra["read_per_delivered"] for record in reads}
for name, cost in costs.items():
    print(f"{name:26} {cost:5.1f} bytes read for each byte delivered")

# %%
chunks, packed_chunks = costs["blob in 1 MiB chunks"], costs["blob in gzip chunks"]
show.say(
    f"Contiguous storage reads {costs['blob']:.1f} bytes for each byte delivered, chunks read {chunks:.1f}. "
    f"gzip saves {1 - packed_chunks / chunks:.0%} of that."
)

# %% [markdown]
# A JPEG is compressed already. The rates are those of a warm page cache, where vain bytes are cheap. On a parallel file system they come over the
# network. Chunks are made for slices of large arrays; for samples that are read whole, use contiguous storage. (HDF5 keeps
# the last chunks in a cache. A real data set is larger than any cache, so it was set to 1 MiB here.)
#
# Our reader asks HDF5 only *where* the bytes lie, closes the file, and reads them itself. `mmap` maps the file into
# memory, `pread` asks for each sample with one call. Which is faster depends on the machine; the reader takes `pread`
# on parallel file systems. How much of the time was the library's?

# %%
from smallfiles.measure import ratio

by_name = {record.name: record for record in reads}
for name, other in (("vlen by our reader", "vlen"), ("blob by our pread", "blob"), ("blob", "vlen")):
    factor = ratio(by_name[name], by_name[other]).median
    print(f"{name:20} {factor:5.1f} times as fast as {other}")

# %% [markdown] id="fork"
# ## 4 · Open the file in the worker
#
# A DataLoader forks its workers: each is a copy of the parent, with the same open files. An open file has an *offset*,
# the place where the next read begins, and the copies share it. If one worker seeks and another one reads, it reads the
# wrong place.
#
# People meet this as wrong data, or as odd errors from inside HDF5: see
# [pytorch#11887](https://github.com/pytorch/pytorch/issues/11887) and
# [pytorch#3415](https://github.com/pytorch/pytorch/issues/3415).
#
# Five ways to open one file, each in a process of its own with a time limit. Four forked workers read for a second and
# compare every sample with the truth.
#
# > **Predict.** Which of the five give wrong samples? Will there be an error?

# %%
one_file = setup.scratch / "fork.h5"
bench.write_blob(samples, one_file)
trials = bench.fork_trials(one_file)

# %%
for trial in trials:
    moved = "moves the offset" if trial.moves_offset else "leaves the offset"
    print(f"{trial.way:34} {moved:18} {trial.reads:8,} reads {trial.wrong:7,} wrong {trial.errors:3} errors")

# %%
from helpers.experiments.nb04.forktrap import in_words

show.say(in_words(trials))

# %% [markdown]
# The second column is the cause. Before the fork, the experiment looked whether one read moved the file's offset. HDF5's
# default driver can be built in two ways. With `pread` it names the place in each read and needs no offset; without, it
# seeks and reads. The `stdio` driver and a Python file object, as it is used for remote files, always seek.
#
# So the same program can be right on one machine and wrong on the next. Do not rely on the driver: open the file in the
# process that reads it, at its first read. This also cures a second trouble. From Python 3.14 on, workers on Linux are
# not simply forked any more ([pytorch#138957](https://github.com/pytorch/pytorch/issues/138957)), and all that the parent
# gives them is pickled:

# %%
import pickle

with h5py.File(blob, "r") as file:
    try:
        pickle.dumps(file)
    except TypeError as error:
        print("h5py.File:", error)
reader = formats.open(blob)
bytes(reader.read(0))[:2], f"our reader after a read: {len(pickle.dumps(reader))} bytes"

# %% [markdown]
# The reader leaves its handle behind when it is pickled, and it remembers in which process it opened. The exercise asks
# you to do the same in a few lines.

# %% [markdown] id="locks"
# ## 5 · Meet the file lock
#
# HDF5 locks the whole file at each opening, so that nobody reads what somebody else is writing.
#
# > **Predict.** One process has the file open for reading. May another one read it? Write to it? And if the first one
# > has it open for writing?

# %%
attempts = bench.lock_attempts(one_file)
for attempt in attempts:
    result = "opened" if attempt.opened else "refused"
    print(f"held for {attempt.held_for}   {attempt.opener:42} {result}")

# %%
refused = [attempt for attempt in attempts if not attempt.opened]
show.say(f"{len(refused)} of {len(attempts)} attempts were refused.")
for message in {attempt.message for attempt in refused}:
    print(message)

# %% [markdown]
# A notebook that somebody forgot to close is enough to stop a job that appends. Some parallel file systems have no locks at all;
# then even reading fails, with "No locks available"
# ([h5py#1101](https://github.com/h5py/h5py/issues/1101)). For files that nobody changes any more, switch locks off: by
# `h5py.File(path, locking=False)`, or by the variable `HDF5_USE_FILE_LOCKING=FALSE`. Compare the two lines above that
# differ only in *when* the variable was set.
#
# Our reader takes no lock. Files of ours carry a mark, written last, that they are complete; without it they are refused.
# Never switch locks off for a file that is still being written.

# %% [markdown] id="exercise"
# ## Exercise
#
# [Exercise 04](../exercises/04_pack_hdf5.ipynb): turn rows of variable length into one run of bytes, and write the
# function that reads it in any worker.

# %% [markdown] id="cluster"
# ## On the cluster
#
# The same packing as one line of a job. Choose `-O layout=vlen` instead if Jülich's loaders shall read the file.

# %%
show.command(config, "DATA_FOLDER", "train.h5")

# %% [markdown] id="key-points"
# ## Key points
#
# - An image lies in a heap behind a row of variable length, or in one run of bytes between two offsets.
# - `np.array(list(data))` makes an object of each byte; `np.frombuffer` looks at them where they are.
# - Chunks are read whole, and JPEG does not shrink: store samples contiguous.
# - Workers share the offset of a file that was opened before them: open it in the process that reads.
# - "Unable to lock file" means that somebody has it open, or that there are no locks; switch them off only for files that
#   are complete.

# %% [markdown] id="next"
# ## Next
#
# Notebook 05, [Shard a dataset into tar files](05_shard_a_dataset.ipynb), packs the same images into files that are read
# from front to back, and asks how random that can be.
