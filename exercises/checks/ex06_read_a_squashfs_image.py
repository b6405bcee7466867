"""Exercise 06: a reader of one large file that is right in every process and in every thread.

The answer is a class. It is tried alone, after a fork with a read in the parent, in threads, and as a
spawned worker would get it: pickled, in a process in which the parent's descriptors are closed.

The trap: readers meet by chance, and a check that counts wrong samples passes by chance too. So it also
looks whether a worker's read moved an offset that the parent shares, and has two threads wait for each
other where they are about to read: one that seeks is then wrong each time, and one that holds a lock is
alone. Notebook 06 sends participants here.
"""

from __future__ import annotations

import os
import pickle
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from operator import getitem
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from exercises.checks import Attempt, check
from exercises.checks.forked import child, in_worker, offsets_of
from smallfiles.measure import system_calls

COUNT, _READS, _SECONDS, _MEET_S, _POOL = 24, 60, 0.4, 1.0, 4
_BYTES, _SPARE_S = bytes | bytearray | memoryview, 5.0
_READING = {"read", "readinto", "readinto1", "pread", "preadv"}
_SHARED = "the workers inherit one open file with one position, and each seeks where another one is about to "
_SHARED += "read: use os.pread, which takes the position as an argument"
_THREADS = "the threads of a process share its open file and its position: one seeks, another one seeks, "
_THREADS += "and the first reads at the wrong place; use os.pread, which takes the position as an argument"
_ELSEWHERE = "it is right alone and wrong in threads, and the position of the file does not move: "
_ELSEWHERE += "the threads share something else of the reader, such as a buffer; make it anew for each read"
_INHERITED = "it is right here and wrong in a forked worker: what the reader has opened or kept before the "
_INHERITED += "fork does not fit there; use os.pread, or open anew where os.getpid() is another one"
_DUP = "os.dup gives a second number of the same open file, and both have one file position; use os.pread"
_LOCK = "only one thread reads at a time, as behind a lock, while all others wait: on a parallel file "
_LOCK += "system, where a read mostly waits, four threads are then as slow as one; os.pread needs no lock"
_CLOSED = "what is open here is not open in a spawned worker: open the file there, at the first read"
_NUMBER = "the number of a descriptor means nothing in another process: leave it behind in __getstate__"
_OPENS = "each open is a request to the metadata server, and a large file needs one per process; keep it"
_PER_THREAD = "a file for each thread is right, and costs an open for each: 1,000 workers of 8 threads send "
_PER_THREAD += "8,000 requests to the metadata server; with os.pread all threads share one open file"
_WHOLE = "your reader reads the whole file into memory, and a real one does not fit there"
_MORE = "your reader reads more of the file than the samples that it is asked for"
_SHORT = "a read may return less than it was asked for, and the next one continues behind it: loop until "
_SHORT += "all of the sample is there"
_CUT = "the file ends within the sample, as after an interrupted copy: an empty read means the end, and half "
_CUT += "an image must be an error"
_ALONG = "your reader holds samples when it is pickled, and every worker keeps a copy"


class Trial(NamedTuple):
    """Reads of all workers, those that gave other bytes without any error, and those that raised."""

    reads: int
    wrong: int
    errors: int

    def summary(self, name: str) -> str:
        """The count in words."""
        return f"{name}: **{self.wrong:,} wrong samples** and {self.errors:,} errors in {self.reads:,} reads"


def count_wrong(
    read: Callable[[int], Any], truth: Sequence[bytes], seconds: float = 1.0, *, threads: bool = False
) -> Trial:
    """Read samples at random for a while, several at once, and compare each with the truth.

    Args:
        read: From the number of a sample to its bytes; opened by the caller, before a fork.
        truth: What each sample is.
        seconds: How long the workers read; one that dies or hangs counts as an error.
        threads: Four threads of this process read, instead of two forked workers.
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

    if threads:
        found = _in_threads(_POOL, work, seconds + _SPARE_S)
    else:
        with ExitStack() as stack:
            pool = [stack.enter_context(child(partial(work, seed))) for seed in range(2)]
            found = [one.report(seconds + _SPARE_S) for one in pool]
    counts = (one if isinstance(one, list | tuple) else (0, 0, 1) for one in found)
    return Trial(*map(sum, zip(*counts, strict=True)))


def _in_threads(count: int, work: Callable[[int], Any], limit_s: float) -> list[Any]:
    """What `work(number)` returns in threads that take turns often; None where nothing came in this time."""
    found, interval = [None] * count, sys.getswitchinterval()

    def run(number: int) -> None:
        found[number] = work(number)

    pool = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in pool:
            thread.start()
        for thread in pool:
            thread.join(limit_s)
    finally:
        sys.setswitchinterval(interval)
    return found


@check(
    buys="A worker with four threads now has four reads in flight, and each image belongs to its label.",
    limit_s=30,
    errors={
        TypeError: "what is open cannot be pickled: leave it behind in __getstate__",
        FileNotFoundError: "the path that is given must be opened, not another one",
        OSError: "the number of a descriptor is that of another process, or the file was closed",
    },
)
def reader(attempt: Attempt) -> None:
    """`Reader(path, places)` with `reader[index]` gives the right bytes, wherever it is used."""
    tried = Tried(attempt, attempt.folder() / "samples.sqfs")
    tried.alone()
    tried.in_forked_workers()
    tried.in_threads()
    tried.side_by_side()
    tried.pickled()
    tried.frugal()
    tried.short_reads()


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
        if read:
            self.attempt.tried(self.attempt.gave, getitem, made, 3)
        return made

    def right(self, answer: Any, because: str) -> None:
        """Refuse what a forked process said, unless it is True."""
        got = answer["error"] if isinstance(answer, dict) else "wrong bytes, or none"
        self.attempt.require(answer is True, got, "the right bytes", because)

    def alone(self) -> None:
        """In this process, samples in any order."""
        made = self.made(read=False)
        for index in (5, 3, 23, 3, 1, 0):
            got = self.attempt.tried(f"reader[{index}]", getitem, made, index)
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
        found = in_worker(lambda: bytes(made[5]) == self.truth[5])
        moved = offsets_of(self.path) != before
        self.right(found, _SHARED if moved else _INHERITED)
        self.attempt.given("one reader, used here and then in two forked workers")
        trial = count_wrong(made.__getitem__, self.truth, _SECONDS)
        held = {type(value).__name__ for value in getattr(made, "__dict__", {}).values()}
        because = f"{_SHARED}, or open anew where os.getpid() is another one than at the opening"
        if not moved:
            because = _INHERITED
        elif held & {"lock", "RLock"}:
            because = f"a lock of threading works within one process; {_SHARED}"
        got = f"{trial.wrong:,} wrong samples of {trial.reads:,}, {trial.errors:,} errors"
        got += ", and a worker's read moved the position of this process's file" if moved else ""
        whole = not (moved or trial.wrong or trial.errors)
        self.attempt.require(whole, got, "no wrong sample and no moved file position", because)

    def in_threads(self) -> None:
        """Four threads that take turns as often as possible."""
        made = self.made()
        trial = count_wrong(made.__getitem__, self.truth, _SECONDS, threads=True)
        self.attempt.given("one reader in four threads")
        got = f"{trial.wrong:,} wrong samples of {trial.reads:,}, {trial.errors:,} errors"
        whole = not (trial.wrong or trial.errors)
        self.attempt.require(whole, got, "the right bytes in all threads", self.why_in_threads(made))

    def side_by_side(self) -> None:
        """Two threads that wait for each other where they are about to read."""
        made, wanted, meeting, waited = self.made(), (5, 7), threading.Barrier(2), set[int]()

        def meet(frame: FrameType, event: str, called: Any) -> None:
            me = threading.get_ident()
            if event == "c_call" and getattr(called, "__name__", "") in _READING and me not in waited:
                waited.add(me)
                with suppress(threading.BrokenBarrierError):
                    meeting.wait(_MEET_S)

        def work(number: int) -> bool:
            sys.setprofile(meet)
            try:
                return bytes(made[wanted[number]]) == self.truth[wanted[number]]
            finally:
                sys.setprofile(None)

        found = _in_threads(len(wanted), work, _MEET_S + _SPARE_S)
        self.attempt.given("one reader in two threads that meet when they are about to read")
        self.attempt.require(all(found), "wrong bytes", "the right bytes in both", self.why_in_threads(made))
        self.attempt.require(not meeting.broken, "one read at a time", "two reads at the same time", _LOCK)

    def why_in_threads(self, made: Any) -> str:
        """Explain why threads get wrong bytes: do reads in one thread move the offset of an open file?"""
        seen = [offsets_of(self.path)]
        for index in (3, 7, 5):
            with suppress(Exception):
                made[index]
            seen.append(offsets_of(self.path))
        kept = seen[0] and all(offsets == seen[0] for offsets in seen)
        codes = (getattr(method, "__code__", None) for method in vars(self.attempt.answer).values())
        if any(code and {"dup", "dup2"} & {*code.co_names} for code in codes):
            return _DUP
        return _ELSEWHERE if kept else _THREADS

    def pickled(self) -> None:
        """As a spawned worker gets it, which has none of this process's open files."""
        made = self.made()
        what = "pickle.dumps(reader), after a read, as a spawned worker gets it"
        sent = self.attempt.tried(what, pickle.dumps, made)
        small = len(sent) < sum(map(len, self.truth)) // 2
        self.attempt.require(small, f"{len(sent):,} bytes", "a path and places", _ALONG)

        def as_spawned() -> bool:
            for descriptor in offsets_of(self.path):
                os.close(int(descriptor))
            received = pickle.loads(sent)
            return all(bytes(received[index]) == self.truth[index] for index in (3, 7, 0))

        self.attempt.given("the pickled reader in a worker that has none of this process's open files")
        numbers = {int(descriptor) for descriptor in offsets_of(self.path)}
        kept = getattr(pickle.loads(sent), "__dict__", {}).values()
        travels = any(type(value) is int and value in numbers for value in kept)
        self.right(in_worker(as_spawned), _NUMBER if travels else _CLOSED)

    def short_reads(self) -> None:
        """`os.pread` returns half of what it is asked for; then a sample reaches beyond the end."""

        def halved() -> bool:
            real = os.pread
            vars(os)["pread"] = lambda descriptor, count, at: real(descriptor, (count + 1) // 2, at)
            made = self.attempt.answer(self.path, self.places)
            return all(bytes(made[index]) == self.truth[index] for index in (3, 7, 0))

        self.attempt.given("reader[3] where os.pread returns half of the bytes")
        self.right(in_worker(halved), _SHORT)
        cut = [(self.path.stat().st_size - 10, 100)]
        got = in_worker(lambda: len(self.attempt.answer(self.path, cut)[0]))
        self.attempt.given("reader[0] where 100 bytes are wanted and the file ends after 10")
        found = "no answer" if got is None else f"{got} bytes"
        self.attempt.require(isinstance(got, dict), found, "an error", _CUT)

    def frugal(self) -> None:
        """Refuse what is right and expensive: opening too often, and reading everything."""
        counted = in_worker(self.costs, limit_s=10)
        self.attempt.given(f"{_READS} reads in one process, then more in {_POOL} threads")
        got = counted["error"] if isinstance(counted, dict) else "no answer in 10 s"
        because = f"{_READS} samples, one after the other, take much longer than a few before"
        self.attempt.require(isinstance(counted, list), got, "the cost of reading", because)
        opens, in_threads, read, wanted = counted
        few, expected = read <= 4 * wanted + (1 << 20), f"about the {wanted:,} that were asked for"
        because = _WHOLE if read >= self.path.stat().st_size else _MORE
        self.attempt.require(few, f"{read:,} bytes read", expected, because)
        self.attempt.require(opens <= 2, f"the file was opened {opens} times", "once", _OPENS)
        got = f"{in_threads} more opens by {_POOL} threads"
        self.attempt.require(not in_threads, got, "one open per process", _PER_THREAD)

    def costs(self) -> tuple[int, int, int, int]:
        """Opens of the file, more by threads, bytes that this process read, bytes that it asked for."""
        with system_calls(self.path) as alone:
            made = self.attempt.answer(self.path, self.places)
            wanted = sum(len(made[number % COUNT]) for number in range(_READS))
        with system_calls(self.path) as in_threads:
            _in_threads(_POOL, made.__getitem__, _SPARE_S)
        return alone["opens"], in_threads["opens"], alone["bytes"], wanted


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
