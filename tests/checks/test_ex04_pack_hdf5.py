"""Exercise 04: every known wrong answer gets its own diagnosis, right ways pass."""

import functools
import itertools
import os
import time

import h5py
import numpy as np
import pytest
from telling import judged

from exercises.checks import ex04_pack_hdf5 as ex04
from exercises.checks.forked import in_worker
from smallfiles.formats import hdf5


def convert(
    vlen_path,
    out,
    *,
    order=lambda rows, labels: range(len(labels)),
    offsets=lambda sizes: np.cumsum([0, *sizes], dtype=np.uint64),
    labels=lambda values: values.astype(np.int64),
    row=lambda values: values,
    **storage,
):
    """The right conversion, with places to break it."""
    with h5py.File(vlen_path) as source, h5py.File(out, "w") as target:
        rows, values = source["train/images"], source["train/targets"][...]
        chosen = list(order(rows, values))
        sizes = [len(rows[i]) for i in chosen]
        borders = np.cumsum([0, *sizes])
        group = target.create_group("train")
        data = group.create_dataset("data", (int(borders[-1]),), storage.pop("dtype", np.uint8), **storage)
        for i, start, size in zip(chosen, borders, sizes, strict=False):
            data[start : start + size] = row(rows[i])
        group["offsets"] = offsets(sizes)
        if labels is not None:
            group["labels"] = labels(values[chosen])
        return len(chosen)


def all_at_once(vlen_path, out):
    with h5py.File(vlen_path) as source, h5py.File(out, "w") as target:
        rows = [np.zeros(0, np.uint8), *source["train/images"][...]]
        group = target.create_group("train")
        group["data"] = np.concatenate(rows)
        group["offsets"] = np.cumsum([len(row) for row in rows], dtype=np.uint64)
        group["labels"] = source["train/targets"][...].astype(np.int64)
        return len(rows) - 1


def never_closed(vlen_path, out):
    count = convert(vlen_path, out)
    never_closed.kept = h5py.File(out)
    return count


def source_kept(vlen_path, out):
    source_kept.kept = h5py.File(vlen_path)
    return convert(vlen_path, out)


def other_data(**more):
    """The right file, whose `data` is then replaced."""

    def write(vlen_path, out):
        count = convert(vlen_path, out)
        with h5py.File(out, "r+") as file:
            whole, borders = file["train/data"][...], file["train/offsets"][...].astype(int)
            del file["train/data"]
            more["replace"](file["train"], whole, [whole[a:b] for a, b in itertools.pairwise(borders)])
        return count

    return write


def as_rows(group, whole, parts):
    rows = group.create_dataset("data", (len(parts),), h5py.vlen_dtype(np.uint8))
    for i, part in enumerate(parts):
        rows[i] = part


def flat(vlen_path, out):
    count = convert(vlen_path, out)
    with h5py.File(out, "r+") as file:
        for name in ("data", "offsets", "labels"):
            file.move(f"train/{name}", name)
        del file["train"]
    return count


def cut(group, whole, parts):
    group["data"] = whole[:-1]


def by_label(rows, labels):
    return np.argsort(labels, kind="stable").tolist()


WRONG_CONVERSIONS = {
    "sizes": (functools.partial(convert, offsets=lambda s: np.array(s, np.uint64)), "these are the sizes"),
    "no last": (
        functools.partial(convert, offsets=lambda s: np.cumsum([0, *s])[:-1]),
        "last offset is missing",
    ),
    "no first": (functools.partial(convert, offsets=lambda s: np.cumsum(s)), "first offset is missing"),
    "uint32": (
        functools.partial(convert, offsets=lambda s: np.cumsum([0, *s], dtype=np.uint32)),
        "32 bits end at 4 GiB",
    ),
    "float": (
        functools.partial(convert, offsets=lambda s: np.cumsum([0, *s], dtype=float)),
        "float is no index",
    ),
    "sorted": (functools.partial(convert, order=by_label), "in the order of the rows"),
    "no labels": (functools.partial(convert, labels=None), "no `train/targets`"),
    "zero labels": (
        functools.partial(convert, labels=lambda v: np.zeros(len(v), np.int64)),
        "not the labels of the vlen file",
    ),
    "int8 labels": (functools.partial(convert, labels=lambda v: v.astype(np.int8)), "as int64 (-1 to 999)"),
    "int64 data": (functools.partial(convert, dtype=np.int64), "one run of uint8"),
    "rows": (other_data(replace=as_rows), "one run of uint8"),
    "cut data": (other_data(replace=cut), "missing, cut"),
    "chunks": (functools.partial(convert, chunks=True), "fetches whole chunks"),
    "no group": (flat, "looks for these names in train"),
    "not closed": (never_closed, "use `with h5py.File"),
    "all in memory": (all_at_once, "whole data set in memory"),
    "list of a row": (
        functools.partial(convert, row=lambda r: np.array(list(r), np.uint8)),
        "becomes a Python object",
    ),
    "no file": (lambda vlen_path, out: 3, "write to the path"),
    "not HDF5": (lambda vlen_path, out: out.write_bytes(b"no"), "write it with h5py.File"),
    "float count": (lambda vlen_path, out: float(convert(vlen_path, out)), "a plain int"),
}


TestConversion = judged(ex04.write_blob, WRONG_CONVERSIONS, [convert])


def test_our_reader_reads_the_file_of_the_right_conversion(tmp_path):
    ex04.write_rows(ex04.SMALL, tmp_path / "vlen.h5")
    convert(tmp_path / "vlen.h5", tmp_path / "blob.h5")
    reader = hdf5.open(tmp_path / "blob.h5")
    assert [(bytes(reader.read(i)), reader.target(i)) for i in range(len(reader))] == ex04.SMALL


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

    return opened


def reading(get=part, **how):
    opened = opener(**how)
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


WRONG_READERS = {
    "array": (reading(lambda g, i: (g["data"][0:9], 1)), "tobytes()"),
    "only data": (reading(lambda g, i: part(g, i)[0]), "return data, label"),
    "NumPy label": (reading(lambda g, i: (part(g, i)[0], g["labels"][i])), "wrap it in int"),
    "other label": (reading(lambda g, i: (part(g, i)[0], int(g["labels"][max(0, i - 1)]))), "not the label"),
    "one short": (reading(lambda g, i: part(g, i, more=-1)), "these bytes are others"),
    "next sample": (reading(lambda g, i: part(g, min(i + 1, 8))), "these bytes are others"),
    "any path": (reading(key=lambda path: os.getpid()), "belong to its path"),
    "opened each time": (each_time, "asks the metadata server"),
    "whole kept": (cached_whole(), "load the whole data set"),
    "handle kept": (reading(key=lambda path: path), "the handle which process opened"),
    "shared offset": (
        raw(lambda path: path.open("rb", buffering=0), seek_and_read),
        "the handle which process opened",
    ),
}


RIGHT_READERS = [
    reading(),
    raw(lambda path: os.open(path, os.O_RDONLY), lambda file, start, size: os.pread(file, size, start)),
    raw(lambda path: np.memmap(path, np.uint8, "r"), lambda data, at, size: data[at : at + size].tobytes()),
]
TestReader = judged(ex04.read_sample, WRONG_READERS, RIGHT_READERS)


@pytest.mark.parametrize("how", [{}, {"locking": False}, {"mode": "r"}, {"mode": "r", "swmr": True}])
def test_whatever_options_an_answer_opens_with_our_reader_takes_its_file_afterwards(tmp_path, how):
    read_sample = reading(how=lambda path: h5py.File(path, **how))
    assert ex04.read_sample(read_sample)
    ex04.write_rows(ex04.SMALL, tmp_path / "vlen.h5")
    convert(tmp_path / "vlen.h5", tmp_path / "blob.h5")
    assert read_sample(tmp_path / "blob.h5", 1) == ex04.SMALL[1]
    assert bytes(hdf5.open(tmp_path / "blob.h5").read(1)) == ex04.SMALL[1][0]


class TestWorkers:
    def test_a_worker_returns_what_was_computed_in_another_process(self):
        assert in_worker(lambda: [1, os.getpid() != here]) == [1, True]

    def test_an_exception_in_a_worker_is_told(self):
        assert in_worker(lambda: 1 / 0) == {"error": "ZeroDivisionError: division by zero"}

    def test_a_worker_that_hangs_is_stopped(self):
        began = time.monotonic()
        assert in_worker(lambda: time.sleep(60), limit_s=0.3) is None
        assert time.monotonic() - began < 5


here = os.getpid()
