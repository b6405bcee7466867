"""Look into a participant's HDF5 file of the blob layout, and say what is wrong with it.

The first thing that is wrong is told, in the order in which a reader would stumble: the file, its
group, the type and the storage of `data`, then `offsets`, `labels`, and at last every byte. The trap:
n samples have n + 1 borders; most wrong answers are about the one that is missing. Exercise 04 uses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from exercises.checks.attempt import Attempt
from exercises.checks.ex04_pack_hdf5.cases import Item

_HANDLES = h5py.h5f.OBJ_FILE | h5py.h5f.OBJ_GROUP | h5py.h5f.OBJ_DATASET
NAMES = ("data", "offsets", "labels")
_TWO_GIB = (
    "offsets of 32 bits end at 2 or 4 GiB, and ImageNet has 140 GB: a large file would get wrong borders "
    "without any error; store them as uint64"
)


def open_through_hdf5(path: Path) -> list[Any]:
    """The HDF5 handles of `path` that this process holds: the file's, but also those of groups in it."""
    held = h5py.h5f.get_obj_ids(h5py.h5f.OBJ_ALL, _HANDLES)
    return [handle for handle in held if h5py.h5f.get_name(handle) == str(path).encode()]


def still_open(path: Path) -> bool:
    """Whether this process holds `path` open through HDF5; if so, it is closed now."""
    held = open_through_hdf5(path)
    if held:
        h5py.File(held[0]).close()  # with everything in it
    return bool(held)


def examine(attempt: Attempt, path: Path, items: Sequence[Item]) -> None:
    """Refuse a file that does not hold `items` in the blob layout.

    Args:
        attempt: Its `wrong` makes the ✗.
        path: What the answer wrote.
        items: Bytes and label of each sample, in order.
    """
    attempt.require(
        path.is_file(), got="no such file", expected="a file at `out`", because="write to the path `out`"
    )
    try:
        with h5py.File(path, "r", locking=False) as file:
            arrays = _arrays(attempt, file)
            _data(attempt, arrays["data"], items)
            _offsets(attempt, arrays["offsets"], [len(data) for data, _ in items])
            _labels(attempt, arrays["labels"], [label for _, label in items])
            _bytes(attempt, arrays["data"][...], items)
    except OSError as error:
        raise attempt.wrong(
            f"a file that HDF5 cannot open ({str(error)[:120]})", "an HDF5 file", "write it with h5py.File"
        ) from error


def _arrays(attempt: Attempt, file: h5py.File) -> dict[str, h5py.Dataset]:
    group = file.get("train")
    found = sorted(group) if isinstance(group, h5py.Group) else []
    missing = [name for name in NAMES if name not in found]
    if missing and set(NAMES) <= set(file):
        because = "the data sets lie at the top of the file; make the group first: file.create_group('train')"
    elif missing == ["labels"]:
        because = "the labels are lost; they are `train/targets` in the vlen file"
    else:
        because = "a reader looks for these names; compare them with the task"
    inside = f"train with {', '.join(found) or 'nothing'}" if group is not None else ", ".join(file)
    attempt.require(
        not missing,
        got=f"a file that holds {inside or 'nothing'}",
        expected="a group train with data, offsets and labels",
        because=because,
    )
    return {name: group[name] for name in NAMES}


def _data(attempt: Attempt, data: h5py.Dataset, items: Sequence[Item]) -> None:
    kind = _kind(data.dtype)
    attempt.require(
        data.dtype == np.uint8 and data.ndim == 1,
        got=f"data of type {kind} and shape {data.shape}",
        expected="data of type uint8 with one dimension",
        because=_why_type(data.dtype),
    )
    attempt.require(
        data.chunks is None,
        got=f"data in chunks of {data.chunks}{f', {data.compression}' if data.compression else ''}",
        expected="contiguous data",
        because="a random read then fetches whole chunks for a part of them, and JPEG does not compress; "
        "give create_dataset the full shape, without chunks, maxshape or compression",
    )
    total, got = sum(len(item[0]) for item in items), len(data)
    attempt.require(
        got == total,
        got=f"{got:,} bytes of data",
        expected=f"{total:,} bytes, as the rows have together",
        because="some samples are missing or cut"
        if got < total
        else "there are more bytes than the rows have",
    )


def _kind(dtype: np.dtype[Any]) -> str:
    if h5py.check_vlen_dtype(dtype) is not None:
        return "variable-length rows"
    return "string" if h5py.check_string_dtype(dtype) is not None else str(dtype)


def _why_type(dtype: np.dtype[Any]) -> str:
    if h5py.check_vlen_dtype(dtype) is not None:
        return "that is the vlen layout again; put all bytes one after the other into one array of uint8"
    if dtype.kind in "OSU" or h5py.check_string_dtype(dtype) is not None:
        return (
            "text ends at a zero byte or is changed by an encoding, and JPEG bytes are no text; store uint8"
        )
    if dtype.itemsize > 1:
        return f"each byte takes {dtype.itemsize} bytes now; say dtype=np.uint8, or use np.frombuffer"
    return "bytes are numbers from 0 to 255, so the type is uint8, all of them in one row"


def _offsets(attempt: Attempt, stored: h5py.Dataset, sizes: list[int]) -> None:
    borders = [0, *np.cumsum(sizes, dtype=np.int64).tolist()]
    got = stored[...].tolist() if stored.ndim == 1 else []
    because = _why_borders(got, borders, sizes)
    if because:
        raise attempt.wrong(_some(got, len(sizes)), _some(borders, len(sizes)), because)
    attempt.require(
        stored.dtype.kind in "iu" and stored.dtype.itemsize == 8,
        got=f"offsets of type {stored.dtype}",
        expected="offsets of type uint64",
        because=_TWO_GIB
        if stored.dtype.kind in "iu"
        else "NumPy makes float64 of int64 and uint64 together, and a float is no index; say dtype=np.uint64",
    )


def _why_borders(got: list[Any], borders: list[int], sizes: list[int]) -> str:
    """The diagnosis of wrong offsets; empty if they are right."""
    mistakes = (
        (borders, ""),
        (sizes, "these are the sizes; an offset is where a sample begins, the running sum of the sizes"),
        (
            [0, *sizes],
            "these are the sizes; an offset is where a sample begins, the running sum of the sizes",
        ),
        (
            borders[:-1],
            "the last offset is missing: n samples have n + 1 borders, or the last one has no end",
        ),
        (borders[1:], "the first offset is missing: sample 0 begins at 0"),
        ([b + 1 for b in borders], "all offsets are one too large: in Python the first byte has number 0"),
        (
            [0, *(b - 1 for b in borders[1:])],
            "off by one: a slice ends before its stop, so the stop is the next start",
        ),
    )
    for wrong, because in mistakes:
        if got == wrong:
            return because
    found = np.diff(got).tolist() if got else []
    if found == [size for size in sizes if size]:
        return "samples of zero bytes were dropped, so all later ones have another number and another label"
    if sorted(found) == sorted(sizes):
        return "the samples are in another order than in the vlen file; keep the order, labels belong to it"
    return "sample i lies in data[offsets[i]:offsets[i + 1]]"


def _some(numbers: list[Any], count: int) -> str:
    shown = ", ".join(map(str, numbers[:6]))
    return f"{len(numbers)} offsets for {count} samples: {shown}{' …' if len(numbers) > 6 else ''}"


def _labels(attempt: Attempt, stored: h5py.Dataset, labels: list[int]) -> None:
    wanted = np.array(labels, np.int64)
    got = stored[...]
    same = got.shape == wanted.shape and got.dtype.kind in "iuf" and bool((got == wanted).all())
    attempt.require(
        same and got.dtype.kind == "i",
        got=f"labels of type {stored.dtype}: {', '.join(map(str, got.ravel()[:6].tolist()))} …",
        expected=f"labels of type int64: {', '.join(map(str, labels[:6]))} …",
        because=_why_labels(got, wanted, same),
    )


def _why_labels(got: np.ndarray, wanted: np.ndarray, same: bool) -> str:
    if same:
        return "the numbers are right, the type is not: -1 means unknown, so labels are signed; say np.int64"
    if got.shape != wanted.shape:
        return "there is one label a sample"
    if got.dtype.kind not in "iuf":
        return "labels are whole numbers; take them from `targets` as they are"
    for narrow in (np.int8, np.uint8, np.uint16):
        if (got == wanted.astype(narrow)).all():
            return (
                f"{np.dtype(narrow)} cannot hold them: classes go to 999 and -1 means unknown; say np.int64"
            )
    if sorted(got.tolist()) == sorted(wanted.tolist()):
        return "the labels are in another order than the samples"
    return (
        "the labels are lost" if len(set(got.tolist())) <= 1 else "these are not the labels of the vlen file"
    )


def _bytes(attempt: Attempt, data: np.ndarray, items: Sequence[Item]) -> None:
    start = 0
    for index, (wanted, _) in enumerate(items):
        got = data[start : start + len(wanted)].tobytes()
        attempt.require(
            got == wanted,
            got=f"other bytes for sample {index}: {got[:8]!r} …",
            expected=f"{wanted[:8]!r} …",
            because="the samples are in another order than in the vlen file"
            if any(data[: len(other)].tobytes() == other for other, _ in items[1:] if other)
            else "the bytes of this sample are not those of its row",
        )
        start += len(wanted)
