"""Exercise 04: turn variable-length rows into one array of bytes, and read it in workers.

    write_blob     task 1: the file is opened and compared, memory and processor time are measured
    read_sample    task 2: read in this process, and in a forked worker
    bytes_fetched  task 3: asked for slices of contiguous, chunked and compressed data

The traps it teaches: n samples have n + 1 borders; a list of a photograph's bytes is a list of Python
integers; a handle opened before a fork belongs to the parent, and works in a worker, most of the time; and
HDF5 hands it on to a worker that opens the file anew. So the check does not wait for wrong bytes: it looks
whether the worker has a descriptor of its own. Notebook 04 sends participants here.
"""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias
from unittest import mock

import h5py
import numpy as np

from exercises.checks import Attempt, Mistake, check, diagnose, explain
from exercises.checks.forked import in_worker, offsets_of
from smallfiles.measure.workers import peak_memory

Items: TypeAlias = Sequence[tuple[bytes, int]]  # bytes and label of each sample


def _items(sizes: Sequence[int], labels: Sequence[int]) -> Items:
    chosen = np.random.default_rng(4)
    return [(chosen.bytes(size), label) for size, label in zip(sizes, labels, strict=True)]


PHOTO = 1_500_000
_NOISE = 16 << 20  # libraries that load, and what an allocator keeps
# No bytes at either end, labels of 16 bits, an unknown class.
SMALL = _items([0, 90_000, 3, 0, 120_000, 1, 110_000, 64_000, 0], [999, 130, 0, 524, -1, 255, 300, 1, 65])


def write_rows(items: Items, path: Path) -> None:
    """The file that task 1 converts."""
    with h5py.File(path, "w", locking=False) as file:
        images = file.create_dataset("train/images", len(items), h5py.vlen_dtype(np.uint8))
        for index, (data, _) in enumerate(items):
            images[index] = np.frombuffer(data, np.uint8)
        file["train/targets"] = np.array([label for _, label in items], np.int16)


def write_run(items: Items, path: Path) -> None:
    """The file that task 2 reads."""
    with h5py.File(path, "w", locking=False) as file:
        file["train/data"] = np.frombuffer(b"".join(data for data, _ in items), np.uint8)
        file["train/offsets"] = np.cumsum([0, *(len(data) for data, _ in items)], dtype=np.uint64)
        file["train/labels"] = np.array([label for _, label in items], np.int64)


def _peak_of(call: Callable[[], Any]) -> int:
    """Most memory in bytes that Python held during a call, or HDF5 (not traced) if it was much."""
    tracemalloc.start()
    try:
        with peak_memory() as grown:
            call()
        return max(tracemalloc.get_traced_memory()[1], grown[0] - _NOISE)
    finally:
        tracemalloc.stop()


# --- What is open ---

_KINDS = h5py.h5f.OBJ_FILE | h5py.h5f.OBJ_GROUP | h5py.h5f.OBJ_DATASET
_HANDLES = (h5py.h5f.FileID, h5py.h5g.GroupID, h5py.h5d.DatasetID)


def _held(path: Path) -> list[Any]:
    """The HDF5 handles of `path` in this process: the file's, but also those of groups in it."""
    held = h5py.h5f.get_obj_ids(h5py.h5f.OBJ_ALL, _KINDS)
    return [handle for handle in held if h5py.h5f.get_name(handle) == str(path).encode()]


def _let_go(path: Path) -> bool:
    """Close what this process holds open of `path` through HDF5; whether there was something.

    HDF5 refuses to open a file a second time with other settings of locking than the first.
    """
    held = _held(path)
    if held:
        h5py.File(held[0]).close()  # with everything in it
    return bool(held)


@contextmanager
def _counted() -> Iterator[list[int]]:
    """Note each opening of an HDF5 file in this block; h5py also makes File objects of open handles."""
    opened: list[int] = []
    original = h5py.File.__init__

    def counting(self: Any, name: Any, *arguments: Any, **named: Any) -> None:
        opened.extend([1] * (not isinstance(name, _HANDLES)))
        original(self, name, *arguments, **named)

    with mock.patch.object(h5py.File, "__init__", counting):
        yield opened


# --- Task 1: the file ---


@check(buys="On the cluster, each worker opens one file, and each sample costs one read.", limit_s=20)
def write_blob(attempt: Attempt) -> None:
    """`write_blob(vlen_path, out)` converts the file and returns the number of samples."""
    place = attempt.folder()
    _converted(attempt, place / "rows.h5", SMALL)
    peak = _converted(attempt, place / "photo.h5", _items([PHOTO], [3]))
    because = "that much is needed if each byte becomes a Python object, as in list(…); a row is an array"
    got, expected = f"{peak:,} bytes of memory for a row of {PHOTO:,}", "a few times the row"
    attempt.require(peak < 5 * PHOTO, got, expected, because)
    peak, total = _converted(attempt, place / "many.h5", _items([PHOTO] * 48, range(48))), 48 * PHOTO
    because = "your function has the whole data set in memory, and ImageNet has 140 GB; copy row by row"
    got, expected = f"{peak:,} bytes of memory to convert {total:,}", "memory of a few samples"
    attempt.require(peak < total / 2, got, expected, because)
    _converted(attempt, place / "empty.h5", [])


def _converted(attempt: Attempt, path: Path, items: Items) -> int:
    """Convert these samples and look at everything in the file; the most memory that it took."""
    out, counts = path.with_name(f"blob_{path.name}"), []
    write_rows(items, path)
    shown = f"{path.name} of {len(items)} samples, out"
    peak = _peak_of(lambda: counts.append(attempt(path, out, _shown=shown)))
    left = [name for name, file in (("vlen_path", path), ("out", out)) if _let_go(file)]
    because = "a worker that is forked now inherits the open file; use `with h5py.File(…) as file:`"
    attempt.require(not left, f"{' and '.join(left)} still open", "both files closed", because)
    attempt.require(out.is_file(), "no such file", "a file at `out`", "write to the path `out`")
    try:
        with h5py.File(out, "r", locking=False) as file:
            _examine(attempt, file, items)
    except OSError as error:
        got = f"a file that HDF5 cannot open ({str(error)[:120]})"
        raise attempt.wrong(got, "an HDF5 file", "write it with h5py.File") from error
    attempt.expect(len(items), counts[0], because="return the number of samples, a plain int")
    return peak


def _examine(attempt: Attempt, file: h5py.File, items: Items) -> None:
    """Tell what is wrong first, in the order in which a reader would stumble."""
    names, group = ("data", "offsets", "labels"), file.get("train")
    found = sorted(group) if isinstance(group, h5py.Group) else []
    because = "a reader looks for these names in train; compare them with the task (no `train/targets` here)"
    there = set(names) <= set(found)
    attempt.require(there, f"train with {found}, beside {list(file)}", f"train with {names}", because)
    data, offsets, labels = (group[name] for name in names)
    _data(attempt, data, sum(len(item[0]) for item in items))
    _offsets(attempt, offsets, [len(item[0]) for item in items])
    _labels(attempt, labels, np.array([label for _, label in items], np.int64))
    start, whole = 0, data[...]
    for index, (wanted, _) in enumerate(items):
        got, start = whole[start : start + len(wanted)].tobytes(), start + len(wanted)
        because = "these are not the bytes of this row; are the samples in the order of the vlen file?"
        attempt.require(got == wanted, f"sample {index}: {got[:8]!r} …", f"{wanted[:8]!r} …", because)


def _data(attempt: Attempt, data: h5py.Dataset, total: int) -> None:
    because = "write the bytes of all rows one after the other into one array of uint8"
    right = data.dtype == np.uint8 and data.ndim == 1
    attempt.require(right, f"data of type {data.dtype} and shape {data.shape}", "uint8, one axis", because)
    because = "random reads fetch whole chunks, and JPEG does not get smaller; use no chunks and no maxshape"
    attempt.require(data.chunks is None, f"data in chunks of {data.chunks}", "contiguous data", because)
    because = "some samples are missing, truncated, or stored twice"
    attempt.require(len(data) == total, f"{len(data):,} bytes of data", f"{total:,} bytes", because)


def _offsets(attempt: Attempt, stored: h5py.Dataset, sizes: list[int]) -> None:
    borders = [0, *np.cumsum(sizes, dtype=np.int64).tolist()]
    got = stored[...].tolist() if stored.ndim == 1 else []
    because = diagnose(
        got,
        (sizes, "these are the sizes; an offset is where a sample begins, the running sum of the sizes"),
        (borders[:-1], "the last offset is missing; n samples need n + 1 offsets, one for the last end"),
        (borders[1:], "the first offset is missing; sample 0 begins at 0"),
        otherwise="sample i is data[offsets[i]:offsets[i + 1]], in the order of the rows, empty ones too",
    )
    shown = f"{len(got)} offsets for {len(sizes)} samples: {got[:6]} …"
    attempt.require(got == borders, shown, f"{len(borders)} offsets: {borders[:6]} …", because)
    because = "use dtype=np.uint64; a float cannot be an index, and 32 bits end at 4 GiB; ImageNet has 140 GB"
    wide = stored.dtype.kind in "iu" and stored.dtype.itemsize == 8
    attempt.require(wide, f"offsets of type {stored.dtype}", "offsets of type uint64", because)


def _labels(attempt: Attempt, stored: h5py.Dataset, wanted: np.ndarray) -> None:
    got = stored[...]
    right = got.dtype.kind == "i" and np.array_equal(got, wanted)
    because = "write the labels of the vlen file, one per sample and in its order, as int64 (-1 to 999)"
    found = f"labels of type {got.dtype}: {got.ravel()[:6].tolist()} …"
    attempt.require(right, found, f"labels of type int64: {wanted[:6].tolist()} …", because)


# --- Task 2: one sample ---

READS = 20
_ASIDE, _MARK = 5, 6  # bytes at which no sample begins


@check(buys="Each worker needs only a path and a number, and it reads through its own open file.", limit_s=20)
def read_sample(attempt: Attempt) -> None:
    """`read_sample(path, index)` is the bytes and the label of one sample."""
    items = _items([100_000 + 977 * n for n in range(48)], [(n * 37) % 1000 for n in range(48)])
    place = attempt.folder()
    many, few = place / "train.h5", place / "val.h5"
    write_run(items, many)
    write_run(SMALL, few)
    _right(attempt, many, items, range(3))
    _right(attempt, few, SMALL, range(len(SMALL)), items)
    _right(attempt, many, items, range(len(items) - 4, len(items)), SMALL)
    with _counted() as opened:
        _right(attempt, many, items, range(READS))
    because = "each open is a request to the metadata server, as with small files; keep the file open, "
    because += "one for each path and process"
    got = f"{len(opened)} opens for {READS} samples"
    attempt.require(len(opened) <= 2, got, "one open per process, at its first read", because)
    _frugal(attempt, place / "again.h5", items)
    _fork_safe(attempt, many, items)


def _right(attempt: Attempt, path: Path, items: Items, which: Sequence[int], others: Items = ()) -> None:
    """Each of these samples comes back as it was written, in the types of the task."""
    for index in which:
        got, (wanted, label) = attempt(path, index, _shown=f"{path.name}, {index}"), items[index]
        pair = isinstance(got, tuple) and len(got) == 2
        attempt.require(pair, got, "a tuple (data, label)", "end with: return data, label")
        because = "a slice of an HDF5 data set is a NumPy array; its method tobytes() gives bytes"
        attempt.require(type(got[0]) is bytes, f"data: {type(got[0]).__name__}", "data: bytes", because)
        because = "this is another part of data; sample i is data[offsets[i]:offsets[i + 1]]"
        if any(got[0] == other for other, _ in others if other):
            because = "this sample is from another file; keep one open file for each path"
        attempt.require(got[0] == wanted, f"{len(got[0]):,} bytes", f"{len(wanted):,} bytes", because)
        because = "h5py gives a NumPy number, which JSON refuses; wrap it in int(…)"
        attempt.require(type(got[1]) is int, f"a label: {type(got[1]).__name__}", "a label: int", because)
        attempt.expect(label, got[1], because="this is not the label of that sample")


def _frugal(attempt: Attempt, fresh: Path, items: Items) -> None:
    """The first read of a new path does not take the memory of all samples."""
    total = sum(len(data) for data, _ in items)
    write_run(items, fresh)
    because = "data[...] and data[:] load the whole data set in every worker; slice the HDF5 data set "
    because += "itself: data[start:stop]"
    peak = _peak_of(lambda: attempt(fresh, 0, _shown=f"{fresh.name}, 0"))
    attempt.require(peak < total / 2, f"{peak:,} bytes of memory", "memory of one sample", because)


def _fork_safe(attempt: Attempt, path: Path, items: Items) -> None:
    """The parent has read; does a worker that is forked now read through a descriptor of its own?"""
    attempt(path, 0, _shown=f"{path.name}, 0")
    attempt.given(f"{attempt.name}({path.name}, 0) in the parent, then more in a forked worker")
    answer = attempt.answer
    got = in_worker(lambda: _in_a_child(answer, path, items))
    failure = "no answer in 5 s" if got is None else got.get("error")
    because = "the worker inherits the file that the parent has open; close it before a fork, then reopen it"
    attempt.require(failure is None, str(failure), "samples", because)
    because = "parent and workers share the open file, so some samples are wrong by chance"
    if got["opened"]:
        because = "the worker opened the file, but HDF5 returned the file that the parent still has open"
    because += "; let the parent close it before a fork, with os.register_at_fork(before=…)"
    shown = f"{got['wrong']} of {READS} samples wrong, read through the file that the parent had opened"
    attempt.require(got["own"], shown, "a file that the worker opened itself", because)


def _in_a_child(answer: Callable[..., tuple[bytes, int]], path: Path, items: Items) -> dict[str, int]:
    """Read in a forked process, and look which descriptors were used."""
    shared = [os.dup(int(name)) for name in offsets_of(path)]
    by_hdf5 = bool(_held(path))
    for number in shared:
        os.lseek(number, _ASIDE, os.SEEK_SET)  # a shared offset that is used does not stay there
    with _counted() as opened:
        wrong = sum(answer(path, n) != items[n] for n in range(READS))
    moved = any(os.lseek(number, 0, os.SEEK_CUR) != _ASIDE for number in shared)
    for number in shared:
        os.lseek(number, _MARK, os.SEEK_SET)
    others = {name: at for name, at in offsets_of(path).items() if int(name) not in shared}
    own = not wrong and not moved and (not by_hdf5 or any(at != _MARK for at in others.values()))
    return {"wrong": wrong, "own": own, "opened": len(opened)}


# --- Task 3: what a slice costs ---

_CHUNK, _LENGTH = 1000, 10_300
_SLICES = ((0, 10), (990, 1010), (2000, 3000), (10_250, 10_300), (500, 500), (2000, 4000), (0, _LENGTH))
_CONTIGUOUS = "data.chunks is None if the data are contiguous; then only the slice is fetched"


@check(
    buys="You know what random reads of a file cost before a job with a thousand GPUs reads it.",
    errors={TypeError: _CONTIGUOUS},
)
def bytes_fetched(attempt: Attempt) -> None:
    """`bytes_fetched(data, start, stop)` is what HDF5 fetches for a slice."""
    chosen = np.random.default_rng(4)
    values = chosen.integers(0, 1 + np.arange(_LENGTH) // 50, dtype=np.uint8)  # later chunks shrink less
    with h5py.File(attempt.folder() / "costs.h5", "w", locking=False) as file:
        file.create_dataset("contiguous", data=values)
        file.create_dataset("raw chunks", data=values, chunks=(_CHUNK,))
        file.create_dataset("gzip chunks", data=values, chunks=(_CHUNK,), compression="gzip")
        cases = [(file[kind], *some) for kind in file for some in _SLICES]
        for case in cases:
            _cost(attempt, case, cases)


_Slice: TypeAlias = tuple[h5py.Dataset, int, int]


def _stored(data: h5py.Dataset) -> list[int]:
    return [data.id.get_chunk_info(number).size for number in range(data.id.get_num_chunks())]


def _in_chunks(wrong: Callable[[list[int], int, int], int]) -> Callable[[h5py.Dataset, int, int], int]:
    """A mistake with the sizes of the chunks, for a slice that is not empty and not of contiguous data."""

    def cost(data: h5py.Dataset, start: int, stop: int) -> int:
        contiguous = data.chunks is None or start == stop
        return stop - start if contiguous else wrong(_stored(data), start, stop)

    return cost


_fetched = _in_chunks(lambda sizes, start, stop: sum(sizes[start // _CHUNK : (stop - 1) // _CHUNK + 1]))
_BEFORE = "this is the size before compression; get_chunk_info_by_coord(…).size is the stored size"
_BEHIND = "the slice ends before `stop`, so it does not touch a chunk that begins at `stop`"
_CHUNK_MISTAKES: tuple[Mistake, ...] = (
    (lambda data, start, stop: stop - start, "HDF5 fetches a whole chunk, even for one byte of it"),
    (
        _in_chunks(lambda sizes, *_: sum(sizes)),
        "this is the size of all chunks; HDF5 fetches only the chunks that the slice touches",
    ),
    (_in_chunks(lambda _, start, stop: ((stop - 1) // _CHUNK - start // _CHUNK + 1) * _CHUNK), _BEFORE),
    (
        _in_chunks(lambda sizes, start, _: sizes[start // _CHUNK]),
        "this is the size of one chunk; a slice may begin in one chunk and end in another",
    ),
    (_in_chunks(lambda sizes, start, stop: sum(sizes[start // _CHUNK : stop // _CHUNK + 1])), _BEHIND),
)


def _cost(attempt: Attempt, case: _Slice, cases: Sequence[_Slice]) -> None:
    """Compare one slice; a wrong number is looked for among those of known mistakes."""
    data, start, stop = case
    kind = str(data.name).strip("/")
    got = attempt(data, start, stop, _shown=f"{kind} of {_CHUNK if data.chunks else 'none'}, {start}, {stop}")
    attempt.require(type(got) is int, got, "a number of bytes", "return a plain int")
    right = _fetched(data, start, stop)
    because = "an empty slice fetches nothing" if start == stop else _CONTIGUOUS
    if data.chunks is not None and got != right and start != stop:
        otherwise = (
            "add up get_chunk_info_by_coord((place,)).size for the chunks from start // size * size to stop"
        )
        because = explain(attempt.answer, case, cases, _CHUNK_MISTAKES, otherwise=otherwise)
    attempt.expect(right, got, because=because)
