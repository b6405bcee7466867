"""Exercise 04: every known wrong answer gets its own diagnosis, right ways pass."""

import functools
import os
import time

import h5py
import numpy as np
import pytest
from telling import judged

from exercises.checks import ex04_pack_hdf5 as ex04
from exercises.checks.forked import in_worker
from smallfiles.formats import hdf5

HERE = os.getpid()


def convert(
    vlen_path,
    out,
    *,
    where="train",
    read=lambda rows: rows,
    order=lambda labels: range(len(labels)),
    offsets=lambda sizes: np.cumsum([0, *sizes], dtype=np.uint64),
    labels=lambda values: values.astype(np.int64),
    row=lambda values: values,
    more=0,
    **storage,
):
    """The right conversion, with places to break it."""
    with h5py.File(vlen_path) as source, h5py.File(out, "w") as target:
        rows, values = read(source["train/images"]), source["train/targets"][...]
        chosen = list(order(values))
        sizes = [len(rows[i]) for i in chosen]
        borders = np.cumsum([0, *sizes])
        group = target.require_group(where)
        storage = {"shape": (int(borders[-1]) + more,), "dtype": np.uint8, **storage}
        data = group.create_dataset("data", **storage)
        for i, start, size in zip(chosen, borders, sizes, strict=False):
            data[start : start + size] = row(rows[i])
        group["offsets"] = offsets(sizes)
        if labels is not None:
            group["labels"] = labels(values[chosen])
        return len(chosen)


def never_closed(vlen_path, out):
    count = convert(vlen_path, out)
    never_closed.kept = h5py.File(out)
    return count


def broken(**how):
    return functools.partial(convert, **how)


WRONG_CONVERSIONS = [
    (broken(offsets=lambda s: np.array(s, np.uint64)), "these are the sizes"),
    (broken(offsets=lambda s: np.cumsum([0, *s])[:-1]), "last offset is missing"),
    (broken(offsets=np.cumsum), "first offset is missing"),
    (broken(offsets=lambda s: np.cumsum([0, *s], dtype=np.uint32)), "32 bits end at 4 GiB"),
    (broken(offsets=lambda s: np.cumsum([0, *s], dtype=float)), "float cannot be an index"),
    (broken(order=np.argsort), "in the order of the rows"),
    (broken(labels=None), "no `train/targets`"),
    (broken(labels=np.zeros_like), "write the labels of the vlen file"),
    (broken(labels=lambda v: v.astype(np.int8)), "as int64 (-1 to 999)"),
    (broken(dtype=np.int64), "one array of uint8"),
    (broken(more=1), "missing, truncated, or stored twice"),
    (broken(chunks=True), "fetch whole chunks"),
    (broken(where="/"), "looks for these names in train"),
    (never_closed, "use `with h5py.File"),
    (broken(read=lambda rows: rows[...]), "whole data set in memory"),
    (broken(row=lambda r: np.array(list(r), np.uint8)), "becomes a Python object"),
    (lambda vlen_path, out: 3, "write to the path"),
    (lambda vlen_path, out: out.write_bytes(b"no"), "write it with h5py.File"),
    (lambda vlen_path, out: float(convert(vlen_path, out)), "a plain int"),
]


TestConversion = judged(ex04.write_blob, WRONG_CONVERSIONS, [convert])


def part(group, index, shift=0, more=0):
    start, stop = (int(border) for border in group["offsets"][index : index + 2])
    return group["data"][start + shift : stop + more].tobytes(), int(group["labels"][index])


def opener(key=lambda path: (path, os.getpid()), how=lambda path: h5py.File(path)):
    """Opens a file once for each key."""
    kept = {}

    def opened(path):
        if key(path) not in kept:
            kept[key(path)] = how(path)["train"]
        return kept[key(path)]

    opened.kept = kept
    return opened


def closed_in_the_worker():
    """The parent keeps its handle; a worker closes what it inherited before it opens anew."""
    held = {}

    def read_sample(path, index):
        process, file = held.get(path, (0, None))
        if process != os.getpid():
            if file:
                file.close()
            held[path] = os.getpid(), h5py.File(path)
        return part(held[path][1]["train"], index)

    return read_sample


def reading(get=part, closes=True, **how):
    opened = opener(**how)
    if closes:
        os.register_at_fork(before=opened.kept.clear)
    return lambda path, index: get(opened(path), index)


def each_time(path, index):
    with h5py.File(path) as file:
        return part(file["train"], index)


def whole(group, index):
    start, stop = (int(border) for border in group["offsets"][index : index + 2])
    return group["data"][...][start:stop].tobytes(), int(group["labels"][index])


def cached_whole():
    opened = opener(how=lambda path: {"train": {n: i[...] for n, i in h5py.File(path)["train"].items()}})
    return lambda path, index: part(opened(path), index)


def raw(opened, get):
    """Reads without the library: what `opened` gives is kept, `get` takes the bytes at a place."""
    kept = {}

    def read(path, index):
        if path not in kept:
            with h5py.File(path) as file:
                group = file["train"]
                place, borders = group["data"].id.get_offset(), group["offsets"][...].tolist()
                kept[path] = opened(path), place, borders, group["labels"][...]
        file, place, borders, labels = kept[path]
        return get(file, place + borders[index], borders[index + 1] - borders[index]), int(labels[index])

    return read


def seek_and_read(file, start, size):
    file.seek(start)
    return file.read(size)


WRONG_READERS = [
    (reading(lambda g, i: (g["data"][0:9], 1)), "tobytes()"),
    (reading(lambda g, i: part(g, i)[0]), "return data, label"),
    (reading(lambda g, i: (part(g, i)[0], g["labels"][i])), "wrap it in int"),
    (reading(lambda g, i: (part(g, i)[0], int(g["labels"][max(0, i - 1)]))), "not the label"),
    (reading(lambda g, i: part(g, i, more=-1)), "this is another part of data"),
    (reading(lambda g, i: part(g, min(i + 1, 8))), "this is another part of data"),
    (reading(key=lambda path: os.getpid()), "one open file for each path"),
    (each_time, "request to the metadata server"),
    (cached_whole(), "load the whole data set"),
    (reading(key=lambda path: path, closes=False), "parent and workers share the open file"),
    (raw(lambda path: path.open("rb", buffering=0), seek_and_read), "parent and workers share the open file"),
    (reading(closes=False), "HDF5 returned the file that the parent still has open"),
    (reading(closes=False, how=lambda path: h5py.File(path, driver="stdio")), "HDF5 returned the file"),
    (reading(lambda g, i: part(g, i) if os.getpid() == HERE else 1 / 0), "close it before a fork"),
]


RIGHT_READERS = [
    reading(),
    reading(key=lambda path: path),
    reading(how=lambda path: h5py.File(path, driver="stdio")),
    reading(closes=False, how=lambda path: h5py.File(path.open("rb"))),
    closed_in_the_worker(),
    raw(lambda path: os.open(path, os.O_RDONLY), lambda file, start, size: os.pread(file, size, start)),
    raw(lambda path: np.memmap(path, np.uint8, "r"), lambda data, at, size: data[at : at + size].tobytes()),
]
TestReader = judged(ex04.read_sample, WRONG_READERS, RIGHT_READERS)


def costs(data, start, stop, *, end=lambda stop: stop, size_of=lambda info, size: info.size, begin=None):
    """The right count, with places to break it."""
    if data.chunks is None or start == stop:
        return stop - start
    size = data.chunks[0]
    first = start // size * size if begin is None else begin
    places = range(first, min(end(stop), len(data)), size)
    return sum(size_of(data.id.get_chunk_info_by_coord((place,)), size) for place in places)


def by_iterating(data, start, stop):
    if start == stop:
        return 0
    found = []
    if data.chunks:
        data.id.chunk_iter(lambda info: found.append((info.chunk_offset[0], info.size)))
        return sum(s for at, s in found if at < stop and at + data.chunks[0] > start)
    return stop - start


def counting(**how):
    return functools.partial(costs, **how)


WRONG_COSTS = [
    (lambda data, start, stop: stop - start, "HDF5 fetches a whole chunk"),
    (lambda data, start, stop: costs(data, start, stop) if data.chunks[0] else 0, "contiguous"),
    (lambda data, start, stop: float(costs(data, start, stop)), "a plain int"),
    (counting(size_of=lambda info, size: size), "before compression"),
    (counting(end=lambda stop: stop + 1), "ends before `stop`"),
    (counting(begin=0, end=lambda stop: 1 << 20), "size of all chunks"),
    (lambda d, a, b: costs(d, a, min(b, a + 1)) if d.chunks else b - a, "begin in one chunk"),
    (lambda d, a, b: costs(d, a, b) if a < b or not d.chunks else 1000, "an empty slice"),
]
TestCosts = judged(ex04.bytes_fetched, WRONG_COSTS, [costs, by_iterating])


@pytest.mark.parametrize("how", [{}, {"locking": False}, {"mode": "r", "swmr": True}])
def test_whatever_options_an_answer_opens_with_our_reader_takes_its_file_afterwards(tmp_path, how):
    read_sample = reading(how=lambda path: h5py.File(path, **how))
    assert ex04.read_sample(read_sample)
    ex04.write_rows(ex04.SMALL, tmp_path / "vlen.h5")
    convert(tmp_path / "vlen.h5", tmp_path / "blob.h5")
    assert read_sample(tmp_path / "blob.h5", 1) == ex04.SMALL[1]
    reader = hdf5.open(tmp_path / "blob.h5")
    assert [(bytes(reader.read(i)), reader.target(i)) for i in range(len(reader))] == ex04.SMALL


def test_a_worker_that_hangs_is_stopped():
    assert in_worker(lambda: time.sleep(60) or 1, limit_s=0.3) is None
