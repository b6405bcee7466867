# %% [markdown] id="top"
# # Exercise 04 · Turn rows into one array of bytes
#
# ★★☆ · 40 minutes · after [notebook 04](../notebooks/04_pack_hdf5.ipynb)
#
# A colleague has left you an HDF5 file with one variable-length row per image. It is slow to read. You convert it into one
# long array of bytes, you find out what chunks would cost, and you write the function with which all workers read a sample.

# %% id="start"
import sys

sys.path.append("..")
from helpers import show, start

setup = start("ex04")

# %% [markdown] id="look"
# ## Look at the file
#
# The array `train/images` contains the rows, and `train/targets` contains the labels. `images[i]` returns a NumPy array of
# type uint8.

# %% id="file"
import h5py

from smallfiles.formats import hdf5
from smallfiles.pack import PackConfig, pack

vlen_path = setup.scratch / "rows.h5"
if not vlen_path.exists():
    pack(setup.source(), vlen_path, PackConfig(options=hdf5.Options(layout="vlen"), verify="none"))

# %% id="rows"
with h5py.File(vlen_path) as file:
    for name, item in file["train"].items():
        print(name, item.shape, item.dtype)
    print("image 7 has", len(file["train/images"][7]), "bytes and label", file["train/targets"][7])

# %% [markdown] id="task-write"
# ## Task 1: convert the file
#
# Write `train/data` (uint8, contiguous, the bytes of all rows in order), `train/offsets` (uint64, n + 1 positions), and
# `train/labels` (int64). Copy row by row, because a real file does not fit into memory. Rows may be empty, and the file may
# have no rows. Return the number of samples:
#
# `write_blob(vlen_path: Path, out: Path) -> int`

# %% id="write"
from pathlib import Path

import numpy as np


def write_blob(vlen_path: Path, out: Path) -> int:
    """Convert the file, and return the number of samples."""
    # --8<-- solution
    with h5py.File(vlen_path, "r") as source, h5py.File(out, "w") as target:
        images, labels = source["train/images"], source["train/targets"][...]
        offsets = np.cumsum([0, *(len(image) for image in images)], dtype=np.uint64)
        data = target.create_dataset("train/data", (int(offsets[-1]),), np.uint8)
        for i, image in enumerate(images):
            data[offsets[i] : offsets[i + 1]] = image
        target["train/offsets"], target["train/labels"] = offsets, labels.astype(np.int64)
    return len(labels)
    # --8<-- stub
    # raise NotImplementedError  # your code: 7 to 12 lines
    # --8<-- end


# %% id="check-write"
from exercises.checks import ex04_pack_hdf5 as check

written = check.write_blob(write_blob)
written

# %% [markdown] id="hints-write"
# <details>
# <summary>Hint 1: two passes</summary>
#
# A contiguous array must be created with its full length. So loop over the rows twice: first for their lengths, and then for
# their bytes.
#
# </details>
#
# <details>
# <summary>Hint 2: the offsets</summary>
#
# Draw three samples with 4, 0 and 2 bytes on paper. Their offsets are 0, 4, 4, 6. Sample `i` is
# `data[offsets[i]:offsets[i + 1]]`. This is also true for an empty sample, and for the last one.
#
# </details>
#
# <details>
# <summary>Hint 3: types</summary>
#
# `np.cumsum(numbers, dtype=np.uint64)` returns the running sums. `target.create_dataset("train/data", (length,), np.uint8)`
# reserves the space in the file, and `data[start:stop] = row` writes a row there. Do all of this inside one `with`.
#
# </details>

# %% [markdown] id="task-cost"
# ## Task 2: what does a slice cost?
#
# Return how many bytes HDF5 fetches for `data[start:stop]`. For a contiguous array, these are the bytes of the slice (ignore
# that HDF5 fetches at least 64 KiB). For a chunked array, it fetches each chunk that the slice touches, with its stored size.
# An empty slice costs nothing:
#
# `bytes_fetched(data: h5py.Dataset, start: int, stop: int) -> int`


# %% id="cost"
def bytes_fetched(data: h5py.Dataset, start: int, stop: int) -> int:
    """Return how many bytes of the file a slice of `data` needs."""
    # --8<-- solution
    if data.chunks is None or start == stop:
        return stop - start
    size = data.chunks[0]
    first = start // size * size
    return sum(data.id.get_chunk_info_by_coord((place,)).size for place in range(first, stop, size))
    # --8<-- stub
    # raise NotImplementedError  # your code: 4 or 5 lines
    # --8<-- end


# %% id="check-cost"
counted = check.bytes_fetched(bytes_fetched)
counted

# %% [markdown] id="hints-cost"
# <details>
# <summary>Hint 1: ask the array</summary>
#
# `data.chunks` is `None` for a contiguous array, and otherwise a tuple with the length of a chunk.
# `data.id.get_chunk_info_by_coord((place,)).size` is the stored size of the chunk that begins at element `place`.
#
# </details>
#
# <details>
# <summary>Hint 2: which chunks</summary>
#
# Suppose that chunks have 100 elements. Then the slice from 250 to 400 touches the chunks that begin at 200 and at 300. The
# first of them is `250 // 100 * 100`. `range(first, stop, size)` ends before `stop`, as the slice does.
#
# </details>

# %% [markdown] id="task-chunks"
# ## Task 3: choose the size of chunks
#
# A file that must be able to grow needs chunks. Choose their size so that random reads fetch at most 2 bytes per byte of image,
# from as few chunks per image as possible. Change this number, and the next cell judges it:
#
# `CHUNK_BYTES: int`

# %% id="chunk-bytes"
# --8<-- solution
CHUNK_BYTES = 100_000
# --8<-- stub
# CHUNK_BYTES = 1 << 20  # change me
# --8<-- end

# %% id="amount"
if counted:
    with h5py.File(vlen_path) as file:
        images = file["train/images"][...]
    offsets = np.cumsum([0, *map(len, images)]).tolist()
    whole, pairs = np.concatenate(images), list(zip(offsets, offsets[1:]))
    size = CHUNK_BYTES
    touched = sum((stop - 1) // size - start // size + 1 for start, stop in pairs) / len(images)
    for name in (None, "gzip"):
        with h5py.File(setup.scratch / "chunks.h5", "w") as file:
            chunks = {"chunks": (CHUNK_BYTES,), "maxshape": (None,)}
            data = file.create_dataset("data", data=whole, compression=name, **chunks)
            amount = sum(bytes_fetched(data, start, stop) for start, stop in pairs) / offsets[-1]
        fetched = f"**{amount:.1f} bytes** fetched per byte of image"
        show.say(f"Compression {name}: {fetched}, from {touched:.1f} chunks per image.")
    found = "That is right" if touched < 2.5 else "Few bytes, but from more chunks than necessary"
    found = found if amount <= 2 else "More than 2 bytes. Smaller chunks fetch fewer"
    show.say(f"{found}. A contiguous array would fetch 1 byte, in one piece.")
else:
    show.say("Solve task 2 first. Then this cell uses your function.")

# %% [markdown] id="task-chunks-hints"
# <details>
# <summary>Hint 1: compute the number</summary>
#
# Suppose that a slice of `s` bytes begins at a random position. It touches about `s / c + 1` chunks of `c` bytes, so HDF5
# fetches about `s + c` bytes. For which `c` is this twice `s`?
#
# </details>
#
# <details>
# <summary>Hint 2: try three numbers</summary>
#
# Try 1,000,000, 10,000, and the size of an image, which is about 110,000. Which of them fetches too many bytes, and which
# needs too many chunks?
#
# </details>

# %% [markdown] id="task-read"
# ## Task 4: read one sample, in any process
#
# Return the bytes and the label (an `int`) of one sample. Each process opens a file once, at its first read, and
# closes it before it forks: `os.register_at_fork(before=…)` calls a function then. Keep offsets and labels if you like, but read
# only this sample of `data`:
#
# `read_sample(path: Path, index: int) -> tuple[bytes, int]`

# %% id="read"
import functools
import os


# --8<-- solution
@functools.lru_cache(maxsize=8)
def opened(path: Path) -> tuple[h5py.Dataset, np.ndarray, np.ndarray]:
    """Open a file once in each process, and return its data, offsets and labels."""
    group = h5py.File(path, "r")["train"]
    return group["data"], group["offsets"][...], group["labels"][...]


os.register_at_fork(before=opened.cache_clear)  # HDF5 closes files to which nothing refers


# --8<-- stub
# --8<-- end
def read_sample(path: Path, index: int) -> tuple[bytes, int]:
    """Return the bytes and the label of one sample."""
    # --8<-- solution
    data, offsets, labels = opened(path)
    return data[offsets[index] : offsets[index + 1]].tobytes(), int(labels[index])
    # --8<-- stub
    # raise NotImplementedError  # your code: 5 to 10 lines
    # --8<-- end


# %% id="check-read"
read = check.read_sample(read_sample)
read

# %% [markdown] id="hints-read"
# <details>
# <summary>Hint 1: keep what you opened</summary>
#
# Write a function that opens a `path`, and decorate it with `functools.lru_cache`. Then it returns the same objects for the
# same path. A dictionary works, too. Keep the HDF5 array `data`, and the offsets and labels, because looking up a
# name in the file costs more than reading a sample.
#
# </details>
#
# <details>
# <summary>Hint 2: the parent's handle</summary>
#
# As long as the parent has the file open, a forked worker that opens the file gets the parent's handle from HDF5. After
# `os.register_at_fork(before=forget)`, Python calls `forget()` in the parent before each fork. HDF5 closes a file to which
# nothing refers any more. So `forget` can be `opened.cache_clear` of an `lru_cache`, or `.clear` of a dictionary.
#
# </details>
#
# <details>
# <summary>Hint 3: only this sample</summary>
#
# `group["data"]` reads nothing yet. The slice `group["data"][start:stop]` reads the bytes from `start` to `stop` and nothing
# else. `group["offsets"][...]` reads all offsets into an array. `.tobytes()` turns an array into bytes.
#
# </details>

# %% [markdown] id="use"
# ## Use it
#
# When your functions have passed the checks, these cells convert your colleague's file, and read both layouts in random order.

# %% id="rates"
import random
import time


def rate(read_one, count: int) -> float:
    """Read all samples in random order, and return how many were read per second."""
    order = random.Random(0).sample(range(count), count)
    began = time.perf_counter()
    for index in order:
        read_one(index)
    return count / (time.perf_counter() - began)


# %% id="compare"
if written and read and counted:
    out = setup.scratch / f"blob-{time.time_ns()}.h5"  # the last file may still be open
    count = write_blob(vlen_path, out)
    read_sample(out, 0)  # opens the file
    with h5py.File(vlen_path) as file:
        rows = rate(file["train/images"].__getitem__, count)
    blob = rate(lambda index: read_sample(out, index), count)
    show.say(f"Rows: {rows:,.0f} samples/s. Your function: **{blob:,.0f} samples/s**.")
    if blob < rows:
        show.say("Your function is slower. Does it look up `offsets` in the file for each sample?")
else:
    show.say("Solve the tasks first. Then this cell uses your functions.")

# %% [markdown] id="ours"
# The reader of the toolbox can read your file as it is. It asks HDF5 only for the position of the bytes, and reads them
# directly.

# %% id="reader"
if written and read and counted:
    from smallfiles import formats

    reader = formats.open(out)
    ours = rate(lambda index: bytes(reader.read(index)), count)
    show.say(f"Our reader: {ours:,.0f} samples/s from {len(reader)} samples of your file.")
