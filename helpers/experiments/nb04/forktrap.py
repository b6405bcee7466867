"""The fork trap, set on purpose: a handle opened before workers are forked, used in all of them.

Each way of opening is tried in a Python process of its own, which forks the workers, counts the samples
that come out wrong, and looks into `/proc` whether one read moved the file offset that all of them share.

The trap within the trap: whether wrong bytes appear depends on how the library reads. A driver that
seeks and then reads shares one offset with all workers; one that reads by position does not, and the
same program is then right on one machine and wrong on another. Notebook 04 shows both.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from helpers.experiments.nb04.handles import LATE, WAYS, Read, offsets_of, open_file, slices
from helpers.experiments.nb04.own_process import command, environment
from smallfiles.errors import FormatError, UsageError

WORKERS = 4
_SPARE_S = 30.0
_CODE = "from helpers.experiments.nb04 import forktrap; forktrap.main()"


@dataclass(frozen=True)
class Trial:
    """What came of one way to open the file.

    Args:
        way: One of `WAYS`.
        moves_offset: Whether a read before the fork moved the offset of an open file.
        reads: Reads of all workers together.
        wrong: Reads that returned other bytes, without any error.
        errors: Reads that raised.
        dead: Workers that crashed or had to be stopped.
        message: The first error.
    """

    way: str
    moves_offset: bool
    reads: int
    wrong: int
    errors: int
    dead: int = 0
    message: str = ""

    @property
    def bad(self) -> int:
        """Everything that went wrong."""
        return self.wrong + self.errors + self.dead


class _Count(NamedTuple):
    reads: int
    wrong: int
    errors: int
    message: str


def fork_trials(
    path: Path, *, seconds: float = 1.0, workers: int = WORKERS, ways: Sequence[str] = tuple(WAYS)
) -> list[Trial]:
    """Try every way to open a file of the blob layout, one after the other.

    Args:
        path: The file, split `train`.
        seconds: How long the workers of one way read.
        workers: How many.
        ways: Which of `WAYS`.

    Returns:
        One trial a way. A way that had to be stopped counts all its workers as dead.

    Raises:
        UsageError: Such a way is not known.
        FormatError: The file cannot be read at all.
    """
    for way in ways:
        if way not in WAYS:
            raise UsageError(
                f"the way {way!r} is not known",
                expected=f"one of: {'; '.join(WAYS)}",
                next_step="Take one of these names",
            )
    return [_in_own_process(path, way, seconds, workers) for way in ways]


def _in_own_process(path: Path, way: str, seconds: float, workers: int) -> Trial:
    child = subprocess.Popen(
        command(_CODE, json.dumps([str(path), way, seconds, workers])),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environment(),
    )
    try:
        answer, complaint = child.communicate(timeout=3 * seconds + _SPARE_S)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        return Trial(way, False, 0, 0, 0, workers, "stopped by the time limit")
    if child.returncode:
        reason = (complaint.strip().splitlines() or ["no reason given"])[-1]
        raise FormatError(
            f"{path} cannot be read in a new process ({reason})",
            expected="an HDF5 file with train/data and train/offsets",
            next_step="Write it again with the cells above",
        )
    return Trial(**json.loads(answer))


def run_trial(path: Path, way: str, seconds: float, workers: int) -> Trial:
    """Open, fork and count; for a process that may be lost.

    Args:
        path: The file.
        way: One of `WAYS`.
        seconds: How long to read.
        workers: How many.
    """
    sums = _sums(path)
    get_read = WAYS[way](path)
    before = offsets_of(path)
    if way != LATE:
        get_read()(len(sums) // 2)  # as everybody does, to look at a sample
    moves = offsets_of(path) != before if before else False
    context = multiprocessing.get_context("fork")
    channels = [context.Pipe(duplex=False) for _ in range(workers)]
    pool = [
        context.Process(target=_work, args=(get_read, sums, seconds, number, sender), daemon=True)
        for number, (_, sender) in enumerate(channels)
    ]
    for process in pool:
        process.start()
    counts = [_answer(process, channel[0], seconds) for process, channel in zip(pool, channels, strict=True)]
    alive = [count for count in counts if count is not None]
    return Trial(
        way,
        moves,
        reads=sum(count.reads for count in alive),
        wrong=sum(count.wrong for count in alive),
        errors=sum(count.errors for count in alive),
        dead=workers - len(alive),
        message=next((count.message for count in alive if count.message), ""),
    )


def _answer(process: Any, receiver: Any, seconds: float) -> _Count | None:
    """What a worker counted; None if it died or hangs."""
    try:
        found: _Count | None = receiver.recv() if receiver.poll(2 * seconds + _SPARE_S / 2) else None
    except EOFError:
        found = None
    if found is None:
        process.kill()
    process.join()
    return found


def _work(get_read: Callable[[], Read], sums: list[int], seconds: float, seed: int, sender: Any) -> None:
    import xxhash

    read, chosen = get_read(), random.Random(seed)
    reads = wrong = errors = 0
    message, end = "", time.monotonic() + seconds
    while time.monotonic() < end:
        index = chosen.randrange(len(sums))
        reads += 1
        try:
            wrong += xxhash.xxh3_64_intdigest(read(index)) != sums[index]
        except Exception as error:  # a broken handle raises whatever it likes
            errors += 1
            message = message or f"{type(error).__name__}: {error}"
    sender.send(_Count(reads, wrong, errors, message))


def _sums(path: Path) -> list[int]:
    """The truth, taken with nothing left open."""
    import xxhash

    with open_file(path) as file:
        read = slices(file)
        return [xxhash.xxh3_64_intdigest(read(n)) for n in range(len(file["train/offsets"]) - 1)]


def in_words(trials: Sequence[Trial]) -> str:
    """The sentence that the trials support."""
    bad = [trial for trial in trials if trial.bad]
    movers = [trial for trial in trials if trial.moves_offset]
    if not bad:
        return (
            "No way gave a wrong sample this time. Whether the workers meet depends on chance and on the "
            "number of CPUs; a handle that moves an offset is wrong all the same."
        )
    told = "; ".join(
        f"*{trial.way}*: {trial.wrong:,} wrong and {trial.errors:,} refused of {trial.reads:,}"
        + f", {trial.dead} workers lost" * bool(trial.dead)
        for trial in bad
    )
    same = {trial.way for trial in bad} == {trial.way for trial in movers}
    cause = (
        "These are exactly the ways whose reads move a file offset, and the workers share that offset."
        if same
        else "A moved file offset alone does not explain it here; look at the messages."
    )
    return f"**Wrong samples from {len(bad)} of {len(trials)} ways.** {told}. {cause}"


def main() -> None:
    """Run what the command line asks for, and answer on standard output."""
    asked = json.loads(sys.argv[1])
    try:
        trial = run_trial(Path(asked[0]), *asked[1:])
    except (OSError, KeyError) as error:
        sys.exit(str(error))
    sys.stdout.write(json.dumps(asdict(trial)) + "\n")
