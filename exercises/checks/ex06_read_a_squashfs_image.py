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
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from exercises.checks.attempt import Attempt
from exercises.checks.check import check
from exercises.checks.forked import child, in_worker, offsets_of

COUNT, _READS, _SECONDS = 24, 60, 0.4
_BYTES, _SPARE_S = bytes | bytearray | memoryview, 5.0
_SHARED = "the workers inherit one open file with one offset, and each seeks where another one is about to "
_SHARED += "read: use os.pread, which takes the position as an argument"
_THREADS = "threads share the open file of their process, and its offset, as long as you seek; use os.pread"
_NUMBER = "the number of a descriptor means nothing in another process: leave it behind in __getstate__"
_OPENS = "each open is a request to the metadata server, and a large file needs one per process; keep it"
_WHOLE = "your reader reads the whole file into memory, and a real one does not fit there"
_ALONG = "your reader holds samples when it is pickled, and every worker keeps a copy"


class Trial(NamedTuple):
    """Reads of all workers, those that gave other bytes without any error, and those that raised."""

    reads: int
    wrong: int
    errors: int

    def summary(self, name: str) -> str:
        """The count in words."""
        return f"{name}: **{self.wrong:,} wrong samples** and {self.errors:,} errors in {self.reads:,} reads"


def count_wrong(read: Callable[[int], Any], truth: Sequence[bytes], seconds: float = 1.0) -> Trial:
    """Have two forked workers read samples at random for a while, and compare each with the truth.

    Args:
        read: From the number of a sample to its bytes; opened by the caller, before the fork.
        truth: What each sample is.
        seconds: How long the workers read; one that dies or hangs counts as an error.
    """

    def work(seed: int) -> tuple[int, int, int]:
        chance, end, reads, wrong, errors = random.Random(seed), time.monotonic() + seconds, 0, 0, 0
        while time.monotonic() < end:
            index = chance.randrange(len(truth))
            reads += 1
            try:
                wrong += bytes(read(index)) != truth[index]
            except Exception:  # a reader that meets nonsense raises whatever it likes
                errors += 1
        return reads, wrong, errors

    with ExitStack() as stack:
        pool = [stack.enter_context(child(partial(work, seed))) for seed in range(2)]
        found = [one.report(seconds + _SPARE_S) for one in pool]
    return Trial(*map(sum, zip(*(f if isinstance(f, list) else (0, 0, 1) for f in found), strict=True)))


@check(
    buys="A job with eight workers per GPU now trains on images that belong to their labels.",
    limit_s=30,
    errors={
        NameError: "a name is not defined; compare it with the cells above, and import what you use",
        TypeError: "if about pickle: what is open cannot travel, leave it behind in __getstate__; if not, "
        "compare your class with the task",
        FileNotFoundError: "the path that is given must be opened, not another one",
        OSError: "if it says Bad file descriptor: its number is that of another process, or it was closed",
    },
)
def reader(attempt: Attempt) -> None:
    """`Reader(path, places)` with `reader[index]` gives the right bytes, wherever it is used."""
    with tempfile.TemporaryDirectory(prefix="smallfiles-ex06-") as folder:
        tried = Tried(attempt, Path(folder) / "samples.sqfs")
        tried.alone()
        tried.in_forked_workers()
        tried.in_threads()
        tried.pickled()
        tried.frugal()


class Tried:
    """An answer, and a file of samples: several sizes, one of them empty, not in the file's order."""

    def __init__(self, attempt: Attempt, path: Path) -> None:
        chance = random.Random(6)
        sizes = [0, 1, *(chance.randrange(2_000, 60_000) for _ in range(COUNT - 2))]
        self.attempt, self.path, self.truth = attempt, path, [chance.randbytes(size) for size in sizes]
        starts: dict[int, int] = {}
        with path.open("wb") as file:
            for index in chance.sample(range(COUNT), COUNT):
                file.write(chance.randbytes(100))
                starts[index] = file.tell()
                file.write(self.truth[index])
            file.truncate(1 << 25)  # much larger than its samples; takes no space
        self.places = [(starts[index], sizes[index]) for index in range(COUNT)]

    def made(self, read: bool = True) -> Any:
        """A reader, which has read a sample as everybody does to look at one."""
        made = self.attempt(self.path, self.places, _shown=f"path, places of {COUNT} samples")
        with self.attempt.guarded():
            if read:
                made[3]
        return made

    def right(self, answer: Any, because: str) -> None:
        """Refuse what a forked process said, unless it is True."""
        got = answer["error"] if isinstance(answer, dict) else "wrong bytes, or none"
        self.attempt.require(answer is True, got, "the right bytes", because)

    def alone(self) -> None:
        """In this process, samples in any order."""
        made = self.made(read=False)
        for index in (5, 3, 23, 3, 1, 0):
            self.attempt.given(f"reader[{index}]")
            with self.attempt.guarded():
                got = made[index]
            kind, expected = isinstance(got, _BYTES), f"{len(self.truth[index])} bytes"
            self.attempt.require(kind, got, expected, "the task asks for the bytes of the sample")
            because = _wrong_place(bytes(got), self.path, *self.places[index])
            found = f"{len(got):,} other bytes"
            self.attempt.require(bytes(got) == self.truth[index], found, expected, because)

    def in_forked_workers(self) -> None:
        """A worker after a read in the parent, then two at once."""
        made = self.made()
        self.attempt.given("reader[3] in this process, then reader[5] in a forked worker")
        before = offsets_of(self.path)
        self.right(in_worker(lambda: bytes(made[5]) == self.truth[5]), _SHARED)
        moved = offsets_of(self.path) != before
        self.attempt.given("one reader, used here and then in two forked workers")
        trial = count_wrong(made.__getitem__, self.truth, _SECONDS)
        held = {type(value).__name__ for value in getattr(made, "__dict__", {}).values()}
        because = f"{_SHARED}, or open anew where os.getpid() is another one than at the opening"
        if held & {"lock", "RLock"}:
            because = f"a lock of threading works within one process; {_SHARED}"
        got = f"{trial.wrong:,} wrong samples of {trial.reads:,}, {trial.errors:,} errors"
        got += ", and a worker's read moved the offset of this process's file" if moved else ""
        whole = not (moved or trial.wrong or trial.errors)
        self.attempt.require(whole, got, "no wrong sample and no moved offset", because)

    def in_threads(self) -> None:
        """Four threads that take turns as often as possible."""
        made, faults, end = self.made(), list[str](), time.monotonic() + _SECONDS

        def work(seed: int) -> None:
            chance = random.Random(seed)
            while time.monotonic() < end and len(faults) < 100:
                index = chance.randrange(COUNT)
                try:
                    if bytes(made[index]) != self.truth[index]:
                        faults.append("wrong bytes")
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
        self.attempt.given("one reader in four threads")
        got = f"{len(faults)} faults, such as {faults[:1]}"
        self.attempt.require(not faults, got, "the right bytes in all threads", _THREADS)

    def pickled(self) -> None:
        """As a spawned worker gets it, which has none of this process's open files."""
        made = self.made()
        self.attempt.given("pickle.dumps(reader), after a read, as a spawned worker gets it")
        with self.attempt.guarded():
            sent = pickle.dumps(made)
        small = len(sent) < sum(map(len, self.truth)) // 2
        self.attempt.require(small, f"{len(sent):,} bytes", "a path and places", _ALONG)

        def as_spawned() -> bool:
            for descriptor in offsets_of(self.path):
                os.close(int(descriptor))
            received = pickle.loads(sent)
            return all(bytes(received[index]) == self.truth[index] for index in (3, 7, 0))

        self.attempt.given("the pickled reader in a worker that has none of this process's open files")
        self.right(in_worker(as_spawned), _NUMBER)

    def frugal(self) -> None:
        """Refuse what is right and expensive: opening each time, and reading everything."""
        counted = in_worker(self.costs, limit_s=10)
        self.attempt.given(f"{_READS} reads in one process")
        got = counted["error"] if isinstance(counted, dict) else "no answer in 10 s"
        self.attempt.require(isinstance(counted, list), got, "the cost of reading", _WHOLE)
        opens, read, wanted = counted
        few = read <= 4 * wanted + (1 << 20)
        self.attempt.require(few, f"{read:,} bytes read", f"about the {wanted:,} that were asked for", _WHOLE)
        self.attempt.require(opens <= 2, f"the file was opened {opens} times", "once", _OPENS)

    def costs(self) -> tuple[int, int, int]:
        """Opens of the file, bytes that this process read, bytes that it asked for."""
        opens = []

        def note(event: str, arguments: tuple[Any, ...]) -> None:
            if event == "open" and str(arguments[0]) == str(self.path):
                opens.append(1)

        sys.addaudithook(note)  # it ends with this worker
        before = _read_so_far()
        made = self.attempt.answer(self.path, self.places)
        wanted = sum(len(made[number % COUNT]) for number in range(_READS))
        return len(opens), _read_so_far() - before, wanted


def _read_so_far() -> int:
    return int(Path("/proc/self/io").read_text(encoding="ascii").split()[1])


def _wrong_place(got: bytes, path: Path, start: int, size: int) -> str:
    """What other bytes these are, by the arguments that give them."""
    with path.open("rb") as file:
        for count, at, because in (
            (start, size, "os.pread takes the number of bytes first, and then the position"),
            (size, 0, "you read from the beginning of the file: go to the start of the sample"),
        ):
            if got == os.pread(file.fileno(), count, at):
                return because
    if not size:
        return "a sample may be empty; read(0) gives no bytes, but read() or read(-1) gives all"
    return "these are bytes of another place"
