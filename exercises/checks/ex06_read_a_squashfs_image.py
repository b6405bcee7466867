"""Exercise 06: a reader of one large file that is right in every process and thread.

The answer is a class. It is tried alone, after a fork with a read in the parent, in threads, and as a
spawned worker would get it: pickled, in a process in which the parent's descriptors are closed.

The trap: forked workers that read at the same time meet by chance. So besides counting wrong samples, the
check looks whether a worker's read moved an offset that the parent shares, which is no chance. Notebook 06
sends participants here.
"""

from __future__ import annotations

import os
import pickle
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from exercises.checks import Attempt, check
from exercises.checks.forked import in_worker
from helpers.experiments.nb04.handles import offsets_of
from helpers.experiments.nb06.sharing import count_wrong

COUNT = 24
_SPARSE_BYTES = 1 << 25
_MOST_OPENS = 2
_READS = 60
_SECONDS = 0.4
_SHARED = (
    "the workers inherit one open file with one offset, and each seeks where another one is about to read: "
    "use os.pread, which takes the position as an argument"
)


@check(
    buys="A job with eight workers a GPU now trains on the images that its labels belong to.",
    limit_s=30,
    errors={
        NameError: "a name is not defined; compare it with the cells above, and import what you use",
        TypeError: "if it is about pickle: an open file, a mapping or a lock cannot travel to another "
        "process; leave it behind in __getstate__. If not, compare your class with the signature in the task",
        FileNotFoundError: "the path that is given must be opened, not another one",
        OSError: "if it says Bad file descriptor: its number is that of another process, or it was closed",
    },
)
def reader(attempt: Attempt) -> None:
    """`Reader(path, places)` with `reader[index]` gives the right bytes, wherever it is used."""
    with _file() as (path, places, truth):
        _alone(attempt, path, places, truth)
        _in_forked_workers(attempt, path, places, truth)
        _in_threads(attempt, path, places, truth)
        _pickled(attempt, path, places, truth)
        _frugal(attempt, path, places, truth)


@contextmanager
def _file() -> Iterator[tuple[Path, list[tuple[int, int]], list[bytes]]]:
    """Samples of several sizes, one of them empty, in an order that is not that of the file."""
    chance = random.Random(6)
    sizes = [0, 1, *(chance.randrange(2_000, 60_000) for _ in range(COUNT - 2))]
    truth = [chance.randbytes(size) for size in sizes]
    with tempfile.TemporaryDirectory(prefix="smallfiles-ex06-") as folder:
        path = Path(folder) / "samples.sqfs"
        starts: dict[int, int] = {}
        with path.open("wb") as file:
            for index in chance.sample(range(COUNT), COUNT):
                file.write(chance.randbytes(100))
                starts[index] = file.tell()
                file.write(truth[index])
            file.truncate(_SPARSE_BYTES)  # much larger than its samples; takes no space
        yield path, [(starts[index], sizes[index]) for index in range(COUNT)], truth


def _made(attempt: Attempt, path: Path, places: list[tuple[int, int]]) -> Any:
    return attempt(path, places, _shown=f"path, places of {len(places)} samples")


def _bytes(attempt: Attempt, made: Any, index: int) -> Any:
    with attempt.guarded():
        return made[index]


def _alone(attempt: Attempt, path: Path, places: list[tuple[int, int]], truth: list[bytes]) -> None:
    made = _made(attempt, path, places)
    for index in (5, 3, 23, 3, 1, 0):
        attempt.given(f"reader[{index}]")
        got = _bytes(attempt, made, index)
        attempt.require(
            isinstance(got, bytes | bytearray | memoryview),
            got=got,
            expected=f"{len(truth[index]):,} bytes",
            because="the task asks for the bytes of the sample",
        )
        attempt.require(
            bytes(got) == truth[index],
            got=f"{len(got):,} bytes, {'others' if len(got) == len(truth[index]) else 'another number'}",
            expected=f"the {len(truth[index]):,} bytes from byte {places[index][0]:,} on",
            because=_wrong_place(bytes(got), path, places[index]),
        )


def _wrong_place(got: bytes, path: Path, place: tuple[int, int]) -> str:
    start, size = place
    with path.open("rb") as file:
        descriptor = file.fileno()
        if got == os.pread(descriptor, start, size):
            return "os.pread takes the number of bytes first, and then the position"
        if got == os.pread(descriptor, max(0, size - start), start):
            return "places hold start and size, not start and stop"
        if got == os.pread(descriptor, size, 0):
            return "you read from the beginning of the file: go to the start of the sample"
    if not size:
        return "a sample may be empty; read(0) gives no bytes, but read() or read(-1) gives all"
    return "these are bytes of another place"


def _in_forked_workers(
    attempt: Attempt, path: Path, places: list[tuple[int, int]], truth: list[bytes]
) -> None:
    made = _made(attempt, path, places)
    _bytes(attempt, made, 3)  # as everybody does, to look at a sample
    attempt.given("reader[3] in this process, then reader[5] in a forked worker")
    before = offsets_of(path)
    answer = in_worker(lambda: bytes(made[5]) == truth[5])
    attempt.require(
        answer is True,
        got=answer["error"] if isinstance(answer, dict) else "wrong bytes, or none",
        expected="the right bytes",
        because=_SHARED,
    )
    moved = offsets_of(path) != before
    attempt.given("one reader, used here and then in two forked workers")
    trial = count_wrong(made.__getitem__, truth, seconds=_SECONDS, spare_s=5)
    attempt.require(
        not (moved or trial.wrong or trial.errors),
        got=f"{trial.wrong:,} wrong samples of {trial.reads:,}, {trial.errors:,} errors"
        + (", and a worker's read moved the offset of this process's file" if moved else ""),
        expected="no wrong sample and no moved offset",
        because=_why_shared(made),
    )


def _why_shared(made: Any) -> str:
    held = [type(value).__name__ for value in getattr(made, "__dict__", {}).values()]
    if "lock" in held or "RLock" in held:
        return f"a lock of threading works within one process; {_SHARED}"
    return _SHARED + ", or open anew where os.getpid() is another one than at the opening"


def _in_threads(attempt: Attempt, path: Path, places: list[tuple[int, int]], truth: list[bytes]) -> None:
    made = _made(attempt, path, places)
    faults = _threaded(lambda index: bytes(made[index]) == truth[index])
    attempt.given("one reader in four threads")
    attempt.require(
        not faults,
        got=f"{len(faults)} wrong samples or errors{f' ({faults[0]})' if faults and faults[0] else ''}",
        expected="the right bytes in all threads",
        because="threads share the open file of their process, and its offset: a file for each process is "
        "not enough as long as you seek; os.pread is",
    )


def _threaded(is_right: Callable[[int], bool]) -> list[str]:
    """What went wrong in four threads that take turns as often as possible."""
    faults: list[str] = []
    end = time.monotonic() + _SECONDS

    def work(seed: int) -> None:
        chance = random.Random(seed)
        while time.monotonic() < end and len(faults) < 100:
            try:
                if not is_right(chance.randrange(COUNT)):
                    faults.append("")
            except Exception as error:  # whatever a participant's code raises
                faults.append(f"{type(error).__name__}: {error}"[:200])

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(5)
    finally:
        sys.setswitchinterval(interval)
    return faults


def _pickled(attempt: Attempt, path: Path, places: list[tuple[int, int]], truth: list[bytes]) -> None:
    made = _made(attempt, path, places)
    _bytes(attempt, made, 3)
    attempt.given("pickle.dumps(reader), after a read, as a spawned worker gets it")
    with attempt.guarded():
        sent = pickle.dumps(made)
    attempt.require(
        len(sent) < sum(map(len, truth)) // 2,
        got=f"{len(sent):,} bytes",
        expected="a path and places",
        because="your reader takes samples along when it is pickled, and every worker keeps a copy",
    )
    attempt.given("the pickled reader in a worker that has none of this process's open files")
    answer = in_worker(lambda: _as_spawned(sent, path, truth))
    attempt.require(
        answer is True,
        got=answer["error"] if isinstance(answer, dict) else "wrong bytes, or none",
        expected="the right bytes",
        because="the number of a descriptor means nothing in another process: leave it behind in "
        "__getstate__, and open at the first read",
    )


def _as_spawned(sent: bytes, path: Path, truth: list[bytes]) -> bool:
    """In a forked worker that closes what it inherited: then it has what a spawned one has."""
    for descriptor in offsets_of(path):
        os.close(int(descriptor))
    received = pickle.loads(sent)
    return all(bytes(received[index]) == truth[index] for index in (3, 7, 0))


def _frugal(attempt: Attempt, path: Path, places: list[tuple[int, int]], truth: list[bytes]) -> None:
    """Refuse what is right and expensive: opening each time, and reading everything."""
    before = len(offsets_of(path))
    counted = in_worker(lambda: _costs(attempt, path, places, truth), limit_s=10)
    attempt.given(f"{_READS} reads in one process")
    attempt.require(
        isinstance(counted, list),
        got=counted["error"] if isinstance(counted, dict) else "no answer in 10 s",
        expected="the cost of reading",
        because="your reader reads or copies the whole file, or does not come to an end",
    )
    opens, read_bytes, delivered = counted
    attempt.require(
        read_bytes <= 4 * delivered + (1 << 20),
        got=f"{read_bytes:,} bytes were read for {delivered:,} that were asked for",
        expected="about as many as were asked for",
        because="your reader takes in the whole file, and a real one does not fit into a worker's memory",
    )
    attempt.require(
        opens <= _MOST_OPENS,
        got=f"the file was opened {opens} times",
        expected="once",
        because="each open is a question to the metadata server of a parallel file system, and one large "
        "file was made to ask it once. Keep the descriptor, with the number of the process that opened it",
    )
    attempt.require(
        len(offsets_of(path)) - before <= 1,
        got=f"{len(offsets_of(path)) - before} more open descriptors",
        expected="none",
        because="what is opened and not kept must be closed",
    )


def _costs(
    attempt: Attempt, path: Path, places: list[tuple[int, int]], truth: list[bytes]
) -> tuple[int, int, int]:
    """Opens of the file, bytes that this process read, bytes that it asked for."""
    opens = [0]

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and str(arguments[0]) == str(path):
            opens[0] += 1

    sys.addaudithook(note)  # it ends with this worker
    before = _read_so_far()
    made = attempt.answer(path, places)
    delivered = 0
    for number in range(_READS):
        delivered += len(made[number % COUNT])
    return opens[0], _read_so_far() - before, delivered


def _read_so_far() -> int:
    return int(Path("/proc/self/io").read_text(encoding="ascii").split()[1])


__all__ = ["reader"]
