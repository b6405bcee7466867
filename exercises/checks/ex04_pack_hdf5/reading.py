"""The second half of exercise 04: `read_sample(path, index)` reads one sample, in any process.

The trap: a handle that the parent opened works in a forked worker, most of the time. So the check does
not wait for wrong bytes: it looks whether the worker opened the file itself. Exercise 04 uses it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import h5py

from exercises.checks.attempt import Attempt
from exercises.checks.check import check
from exercises.checks.ex04_pack_hdf5.blob_file import open_through_hdf5
from exercises.checks.ex04_pack_hdf5.cases import Item, folder, large_set, peak_of, samples_of, small_set
from exercises.checks.forked import in_worker
from helpers.experiments.nb04 import write_blob
from helpers.experiments.nb04.handles import offsets_of

READS = 20
_ASIDE = 5  # a byte at which no sample begins
_HANDLES = (h5py.h5f.FileID, h5py.h5g.GroupID, h5py.h5d.DatasetID)


@check(
    buys="A path and a number travel to any worker, and each process opens the file once, for itself.",
    limit_s=20,
)
def read_sample(attempt: Attempt) -> None:
    """`read_sample(path, index)` is the bytes and the label of one sample."""
    with folder() as place:
        many, few = place / "train.h5", place / "val.h5"
        items, others = large_set(), small_set()
        write_blob(samples_of(items), many)
        write_blob(samples_of(others), few)
        _right(attempt, many, items, range(3))
        _right(attempt, few, others, range(len(others)), items)
        _right(attempt, many, items, range(len(items) - 4, len(items)), others)
        _opened_once(attempt, many, items)
        _frugal(attempt, many, items)
        _fork_safe(attempt, many, items)


def _right(
    attempt: Attempt,
    path: Path,
    items: Sequence[Item],
    indices: Sequence[int],
    elsewhere: Sequence[Item] = (),
) -> None:
    """Each of these samples comes back as it was written, in the types of the task."""
    for index in indices:
        got = attempt(path, index, _shown=f"{path.name}, {index}")
        attempt.require(
            isinstance(got, tuple) and len(got) == 2,
            got=got,
            expected="a tuple (data, label)",
            because="end with: return data, label",
        )
        data, label = got
        attempt.require(
            type(data) is bytes,
            got=f"data of type {type(data).__name__}",
            expected="data of type bytes",
            because="a slice of an HDF5 data set is a NumPy array; its method tobytes() gives bytes",
        )
        attempt.require(
            data == items[index][0],
            got=f"{len(data):,} bytes: {data[:6]!r} …",
            expected=f"{len(items[index][0]):,} bytes: {items[index][0][:6]!r} …",
            because=_why_data(data, items, index, elsewhere),
        )
        attempt.require(
            type(label) is int,
            got=f"a label of type {type(label).__name__}",
            expected="a label of type int",
            because="h5py gives a NumPy number, which JSON refuses; wrap it in int(…)",
        )
        attempt.expect(items[index][1], label, because="this is not the label of that sample")


def _why_data(data: bytes, items: Sequence[Item], index: int, elsewhere: Sequence[Item]) -> str:
    wanted = items[index][0]
    if any(data == other for other, _ in elsewhere if other):
        return "this sample is from another file: the handle that you keep must belong to its path"
    if data in (wanted[:-1], wanted[1:]):
        return "one byte is missing: a slice ends before its stop, so the stop is offsets[i + 1] as it is"
    if data[:-1] == wanted or data[1:] == wanted:
        return "one byte too many: a slice ends before its stop, so the stop is offsets[i + 1] as it is"
    if any(data == other for n, (other, _) in enumerate(items) if n != index):
        return "this is another sample of the file: sample i begins at offsets[i], and offsets[0] is 0"
    if len(data) == sum(len(other) for other, _ in items):
        return "these are the bytes of all samples; slice with the two borders of this one"
    return "sample i is data[offsets[i]:offsets[i + 1]]"


def _opened_once(attempt: Attempt, path: Path, items: Sequence[Item]) -> None:
    with _counted() as opened:
        _right(attempt, path, items, range(READS))
    attempt.given(f"{attempt.name}({path.name}, 0) … {attempt.name}({path.name}, {READS - 1})")
    attempt.require(
        len(opened) <= 2,
        got=f"{len(opened)} opens for {READS} samples",
        expected="one open a process, at its first read",
        because="each open is a question to the metadata server, so opening for each sample brings the "
        "cost of small files back; keep what you opened, by path and process (os.getpid())",
    )


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


def _frugal(attempt: Attempt, path: Path, items: Sequence[Item]) -> None:
    """Neither the first read of a new path nor a later one takes the memory of all samples."""
    total = sum(len(data) for data, _ in items)
    fresh = path.with_name("again.h5")
    write_blob(samples_of(items), fresh)
    for which in (fresh, path):
        peak, _ = peak_of(partial(attempt, which, 0, _shown=f"{which.name}, 0"))
        attempt.require(
            peak < total / 2,
            got=f"{peak:,} bytes of memory for a sample of {len(items[0][0]):,}",
            expected="memory of one sample",
            because="you load the whole data set: data[...] and data[:] read all of it, in every worker; "
            "slice the HDF5 data set itself, data[start:stop]",
        )


def _fork_safe(attempt: Attempt, path: Path, items: Sequence[Item]) -> None:
    """The parent has read; does a worker that is forked now read through a handle of its own?"""
    attempt(path, 0, _shown=f"{path.name}, 0")
    attempt.given(f"{attempt.name}({path.name}, 0) in the parent, then more in a forked worker")
    answer, inherited, by_hdf5 = attempt.answer, offsets_of(path), bool(open_through_hdf5(path))

    def work() -> dict[str, int]:
        for name in inherited:
            os.lseek(int(name), _ASIDE, os.SEEK_SET)  # a shared offset that is used does not stay there
        with _counted() as opened:
            wrong = sum(answer(path, n) != items[n] for n in range(READS))
        after = offsets_of(path)
        moved = sum(after.get(name, _ASIDE) != _ASIDE for name in inherited)
        return {"wrong": wrong, "moved": moved, "opened": len(opened)}

    got = in_worker(work)
    for name, place in inherited.items():
        os.lseek(int(name), place, os.SEEK_SET)
    failure = "no answer in 5 s" if got is None else got.get("error")
    attempt.require(
        failure is None,
        got=str(failure),
        expected="samples",
        because="the worker inherits what the parent had open; where os.getpid() is another, open anew",
    )
    attempt.require(
        not got["wrong"] and not got["moved"] and (bool(got["opened"]) or not by_hdf5),
        got=f"{got['wrong']} of {READS} samples wrong, read through a handle that the parent had opened",
        expected="a file that the worker opened itself",
        because="parent and workers share that handle, and samples then come out wrong by chance; "
        "remember with the handle which process opened it (os.getpid())",
    )
