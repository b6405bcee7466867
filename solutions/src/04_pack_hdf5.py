# %% [markdown] id="top"
# # Exercise 04 · Turn rows into one run of bytes
#
# ★★☆ · 40 minutes · after [notebook 04](../notebooks/04_pack_hdf5.ipynb)
#
# A colleague left an HDF5 file with one variable-length row per image. It was slow to write, and it is slow to read.
# You convert it, write the function with which all workers read it, and find out what chunks would cost.

# %% id="start"
import sys

sys.path.append("..")
from helpers import show, start

setup = start("ex04")

# %% [markdown] id="look"
# ## Look at the file
#
# The rows are `train/images`, the labels `train/targets`. Reading `images[i]` gives a NumPy array of type uint8.

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
# Write a group `train`: `data` (uint8, all bytes in order, contiguous), `offsets` (uint64, n + 1 borders), `labels`
# (int64). Copy row by row; a real file does not fit into memory. Rows may be empty, and a file may have none. Return the
# number of samples. Seven to twelve lines:
#
# `write_blob(vlen_path: Path, out: Path) -> int`

# %% id="write"
from pathlib import Path

import numpy as np


def write_blob(vlen_path: Path, out: Path) -> int:
    """Convert, and return the number of samples."""
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
# `data` must be created with its full length, so loop over the rows twice: first for their lengths, then for their
# bytes.
#
# </details>
#
# <details>
# <summary>Hint 2: borders</summary>
#
# Draw three samples of 4, 0 and 2 bytes. Their borders are 0, 4, 4, 6. Sample `i` is `data[offsets[i]:offsets[i + 1]]`,
# also when it is empty and when it is the last.
#
# </details>
#
# <details>
# <summary>Hint 3: types</summary>
#
# `np.cumsum(numbers, dtype=np.uint64)` gives running sums. `target.create_dataset("train/data", (length,), np.uint8)`
# makes room in the file, and `data[start:stop] = row` writes there. Do all inside one `with`.
#
# </details>

# %% [markdown] id="task-read"
# ## Task 2: read one sample, in any process
#
# Return bytes and label (an `int`) of one sample. Open each file once per process, at its first read. A parent that has
# read must close its files before it forks. Keep offsets and labels, but read only this sample of `data`. You may add
# other functions. Five to ten lines:
#
# `read_sample(path: Path, index: int) -> tuple[bytes, int]`

# %% id="read"
import functools
import os


# --8<-- solution
@functools.lru_cache(maxsize=8)
def opened(path: Path) -> tuple[h5py.Dataset, np.ndarray, np.ndarray]:
    """Data, offsets and labels of a file, opened once in each process."""
    group = h5py.File(path, "r")["train"]
    return group["data"], group["offsets"][...], group["labels"][...]


os.register_at_fork(before=opened.cache_clear)  # nothing refers to the files any more: HDF5 closes them


# --8<-- stub
# --8<-- end
def read_sample(path: Path, index: int) -> tuple[bytes, int]:
    """Bytes and label of one sample."""
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
# `functools.lru_cache` around a function of `path` keeps what it returned; so does a dictionary. Keep the data set
# `data`, and the arrays of offsets and labels: looking up a name in the file for each sample costs more than reading
# it.
#
# </details>
#
# <details>
# <summary>Hint 2: the parent's handle</summary>
#
# As long as the parent has the file open, a forked worker that opens it gets the parent's handle from HDF5. With
# `os.register_at_fork(before=forget)` Python calls `forget()` in the parent before each fork. A file to which nothing
# refers is closed, so `opened.cache_clear` of an `lru_cache`, or `.clear` of a dictionary, is enough for `forget`.
#
# </details>
#
# <details>
# <summary>Hint 3: only this sample</summary>
#
# `group["data"]` is not in memory yet. A slice of it, `group["data"][start:stop]`, reads from `start` to `stop` and
# nothing else. `group["offsets"][...]` reads all offsets into an array. `.tobytes()` turns an array into bytes.
#
# </details>

# %% [markdown] id="task-cost"
# ## Task 3: what does a slice cost?
#
# Return the bytes that HDF5 fetches for `data[start:stop]` in one dimension. From contiguous storage it is the slice
# (forget the sieve buffer). From chunks that fit the cache or are compressed it is each that the slice touches, as
# stored. An empty slice costs nothing. Four or five lines:
#
# `bytes_fetched(data: h5py.Dataset, start: int, stop: int) -> int`


# %% id="cost"
def bytes_fetched(data: h5py.Dataset, start: int, stop: int) -> int:
    """Bytes in the file that a slice of `data` needs."""
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
# <summary>Hint 1: ask the data set</summary>
#
# `data.chunks` is `None`, or a tuple with the length of a chunk. `data.id.get_chunk_info_by_coord((place,)).size` is the
# stored size of the chunk that begins at element `place`.
#
# </details>
#
# <details>
# <summary>Hint 2: which chunks</summary>
#
# With chunks of 100, the slice from 250 to 400 touches those that begin at 200 and 300. `250 // 100 * 100` is the first;
# `range(first, stop, size)` ends before `stop`, as the slice does.
#
# </details>

# %% [markdown] id="use"
# ## Use it
#
# When the checks have passed, this cell converts the colleague's file, and reads it at random in both layouts.

# %% id="rates"
import random
import time


def rate(read_one, count: int) -> float:
    """Samples per second over all samples in random order."""
    order = random.Random(0).sample(range(count), count)
    began = time.perf_counter()
    for index in order:
        read_one(index)
    return count / (time.perf_counter() - began)


# %% id="compare"
if written and read and counted:
    out = setup.scratch / f"blob-{time.time_ns()}.h5"  # a new one, since yours may be open still
    count = write_blob(vlen_path, out)
    read_sample(out, 0)  # opens it
    with h5py.File(vlen_path) as file:
        rows = rate(file["train/images"].__getitem__, count)
    blob = rate(lambda index: read_sample(out, index), count)
    show.say(f"Rows: {rows:,.0f} samples/s. Your function: **{blob:,.0f} samples/s**.")
    if blob < rows:
        show.say("Yours is slower. Does it look up names in the file, such as `offsets`, for each sample?")
else:
    show.say("Solve the tasks first; then this cell uses your functions.")

# %% [markdown] id="ours"
# Our reader accepts your file as it is. It asks HDF5 only where the bytes are, and reads them directly.

# %% id="reader"
if written and read and counted:
    from smallfiles import formats

    reader = formats.open(out)
    ours = rate(lambda index: bytes(reader.read(index)), count)
    show.say(f"Our reader: {ours:,.0f} samples/s from {len(reader)} samples of your file.")

# %% [markdown] id="task-chunks"
# ## Task 4: choose the size of chunks
#
# A file that is to grow must have chunks. Choose their size: at random, at most 2 bytes are to be fetched per byte of
# image, from as few chunks per image as possible. Change one number; the last cell judges it:
#
# `CHUNK_BYTES: int`

# %% id="chunk-bytes"
# --8<-- solution
CHUNK_BYTES = 100_000
# --8<-- stub
# CHUNK_BYTES = 1 << 20  # change me
# --8<-- end

# %% id="amount"
if written and read and counted:
    images = [bytes(reader.read(index)) for index in range(count)]
    offsets = np.cumsum([0, *map(len, images)]).tolist()
    whole, pairs = np.frombuffer(b"".join(images), np.uint8), list(zip(offsets, offsets[1:]))
    touched = sum((stop - 1) // CHUNK_BYTES - start // CHUNK_BYTES + 1 for start, stop in pairs) / count
    for name in (None, "gzip"):
        with h5py.File(setup.scratch / "chunks.h5", "w") as file:
            chunks = {"chunks": (CHUNK_BYTES,), "maxshape": (None,)}
            data = file.create_dataset("data", data=whole, compression=name, **chunks)
            amount = sum(bytes_fetched(data, start, stop) for start, stop in pairs) / offsets[-1]
        fetched = f"**{amount:.1f} bytes** fetched per byte of image"
        show.say(f"Compression {name}: {fetched}, from {touched:.1f} chunks per image.")
    found = "right" if touched < 2.5 else "few bytes, but from more chunks than necessary"
    found = found if amount <= 2 else "more than 2 bytes: smaller chunks fetch less"
    show.say(f"That is {found}. Contiguous, it would be 1 byte, in one piece.")

# %% [markdown] id="task-chunks-hints"
# <details>
# <summary>Hint 1: the number by thought</summary>
#
# A slice of `s` bytes that begins anywhere touches about `s / c + 1` chunks of `c` bytes, so `s + c` bytes are fetched.
# For which `c` is that twice `s`?
#
# </details>
#
# <details>
# <summary>Hint 2: from both sides</summary>
#
# Try 1,000,000, 10,000, and the size of an image, about 110,000. Which fetches too many bytes, which needs too many
# chunks?
#
# </details>
