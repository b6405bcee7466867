"""Task 2: a reader that opens its file once, when it is first asked, in the process that asks."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

from exercises.checks import Attempt
from exercises.checks.ex08_keep_the_gpu_fed.practice import Disk
from smallfiles import formats
from smallfiles.formats import arrow
from smallfiles.samples import Sample, Schema

_COUNT = 12
_ASKED = ([3, 1, 2], [7, 0], [1, 3, 3])


def try_readers(attempt: Attempt) -> None:
    """Refuse a reader that opens too early or too often, reads too much, or gives something else."""
    with tempfile.TemporaryDirectory(prefix="smallfiles-") as name:
        first, second = (_packed(Path(name) / f"{word}.arrow", word) for word in ("first", "second"))
        disk = Disk(open_s=0.0)
        reader = _made(attempt, disk, first)
        _refuse_content(attempt, reader, first)
        _refuse_opens(attempt, disk)
        _refuse_reads(attempt, disk)
        _refuse_sharing(attempt, first, second)
        _refuse_unsendable(attempt, first)


def _packed(path: Path, word: str) -> Path:
    samples = [
        Sample(f"{index:02}.bin", f"{word} {index}".encode() * 50, index % 5) for index in range(_COUNT)
    ]
    sizes = [len(sample.data) for sample in samples]
    arrow.write(samples, path, schema=Schema(_COUNT, sum(sizes), max(sizes)), digest=False)
    return path


def _made(attempt: Attempt, disk: Disk, path: Path) -> Any:
    attempt.given(f"Reader(disk, {path.name!r})")
    with attempt.guarded():
        reader = attempt.answer(disk, path)
    attempt.require(
        callable(reader),
        got=f"a {type(reader).__name__}",
        expected="a reader that can be called with numbers of samples",
        because="Reader is a class with __init__ and __call__, and is made once",
    )
    attempt.require(
        disk.opens == 0,
        got="a file that is open already",
        expected="no open before the first call",
        because="__init__ runs in the trainer: a handle that is opened there is shared by all workers, or "
        "cannot be sent to them; open it in __call__",
    )
    return reader


def _asked(attempt: Attempt, reader: Any, path: Path, indices: list[int]) -> Any:
    attempt.given(f"reader({indices}) of {path.name}")
    with attempt.guarded():
        return reader(list(indices))


def _true(path: Path, indices: list[int]) -> list[tuple[bytes, Any]]:
    file = formats.open(path)
    return [(bytes(file.read(index)), file.target(index)) for index in indices]


def _refuse_content(attempt: Attempt, reader: Any, path: Path) -> None:
    for indices in _ASKED:
        got, true = _asked(attempt, reader, path, indices), _true(path, indices)
        attempt.require(
            isinstance(got, list),
            got=f"a {type(got).__name__}",
            expected="a list of pairs",
            because="a caller needs all samples of the batch at once: return a list",
        )
        because = "each sample is a pair of its bytes and its label"
        if len(got) == len(true) and got != true:
            in_order = got == _true(path, sorted(indices))
            swapped = got == [(label, data) for data, label in true]
            because = (
                "keep the order that was asked for, as labels and batches rely on it" if in_order else because
            )
            because = "bytes first, then the label" if swapped else because
        elif got != true:
            because = "give one sample for each number, also if a number comes twice"
        attempt.expect(true, got, because=because)
    attempt.expect([], _asked(attempt, reader, path, []), because="no numbers, no samples, no failure")


def _refuse_opens(attempt: Attempt, disk: Disk) -> None:
    samples, calls = sum(map(len, _ASKED)), len(_ASKED)
    attempt.given(f"{calls} calls for {samples} samples")
    if disk.opens == 0:
        because = "nothing was opened by disk.open, so your file is another one than the disk's"
    elif disk.opens >= samples:
        because = "the file is still opened for each sample; keep the handle on self"
    else:
        because = "the file is opened in each call; keep the handle on self and open it only if it is None"
    attempt.require(
        disk.opens == 1, got=f"{disk.opens} opens", expected="1 open, at the first call", because=because
    )


def _refuse_reads(attempt: Attempt, disk: Disk) -> None:
    samples = sum(map(len, _ASKED))
    more = disk.reads > samples
    attempt.require(
        disk.reads == samples,
        got=f"{disk.reads} samples read",
        expected=f"{samples} samples read",
        because="you read samples that nobody asked for: of ImageNet that would be 140 GB in each worker"
        if more
        else "you keep samples that were read: after an epoch each worker holds the whole set in memory",
    )


def _refuse_sharing(attempt: Attempt, first: Path, second: Path) -> None:
    """Two readers at once: training and validation."""
    disks = Disk(open_s=0.0), Disk(open_s=0.0)
    readers = [_made(attempt, disk, path) for disk, path in zip(disks, (first, second), strict=True)]
    for reader, path in zip(readers, (first, second), strict=True):
        got = _asked(attempt, reader, path, [5])
        attempt.expect(
            _true(path, [5]),
            got,
            because="a second reader got the file of the first: the handle belongs on self, not on the class "
            "and not in a global",
        )
    opens = [disk.opens for disk in disks]
    attempt.require(
        opens == [1, 1],
        got=f"{opens} opens",
        expected="one open for each reader",
        because="readers share a handle, though each has a disk and a path of its own: keep it on self",
    )


def _refuse_unsendable(attempt: Attempt, path: Path) -> None:
    """A fresh reader goes to two workers; copying does what sending does."""
    reader = _made(attempt, Disk(open_s=0.0), path)
    attempt.given("a fresh reader, sent to two workers")
    with attempt.guarded():
        workers = [copy.deepcopy(reader) for _ in range(2)]
    for worker in workers:
        attempt.expect(
            _true(path, [2]), _asked(attempt, worker, path, [2]), because="a reader that was sent reads else"
        )
