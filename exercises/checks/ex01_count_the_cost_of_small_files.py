"""Exercise 01: inodes of a list of files, and hours until a metadata server has opened them.

The trap it teaches: folders within folders take inodes too, and two limits that act at the same time
do not add up: the slower one decides. Notebook 01 sends participants here.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from exercises.checks import Attempt, check

Mistake: TypeAlias = tuple[Callable[..., float], str]
"""What a wrong idea gives, as a function of the case, and its diagnosis."""


TREES: tuple[tuple[list[str], str | None], ...] = (
    # paths, and how to show them where they are many
    (["train/cat/1.jpg", "train/cat/2.jpg", "train/dog/1.jpg", "val/cat/1.jpg"], None),
    (["cat/1.jpg", "cat/2.jpg", "dog/1.jpg"], None),
    (["1.jpg", "2.jpg"], None),
    (["a/b/c/d/1.jpg", "a/2.jpg"], None),
    (["a.b/1.jpg", "a/b/1.jpg", "ab/1"], None),
    ([], None),
    (
        [f"train/n{c:08}/n{c:08}_{k}.JPEG" for c in range(100) for k in range(30)],
        "3,000 paths in 100 classes",
    ),
)

CASES = (
    # files, wait_s, in_flight, server_opens_per_s, jobs
    (3_600_000, 0.002, 1, 100_000.0, 1),  # the wait decides: 2 h
    (3_600_000, 0.002, 8, 100_000.0, 1),  # hidden eight times: 15 min
    (3_600_000, 0.001, 64, 4_000.0, 1),  # the server decides: 15 min
    (3_600_000, 0.001, 64, 4_000.0, 30),  # shared by thirty jobs: 7.5 h
    (3_600_000, 0.002, 4, 100_000.0, 10),  # many jobs, but the wait decides
    (1_281_167, 0.002, 1, 600.0, 1),  # the two limits are close
    (3_600, 0.0, 1, 1_000.0, 1),  # a server without any wait
    (0, 0.002, 8, 1_000.0, 1),  # nothing to open
)
FEW = (3, 0.5, 64, 100_000.0, 1)  # fewer files than places in flight


@check(buys="You know before a copy starts whether its files fit into the quota, not when it stops half-way.")
def inodes_needed(attempt: Attempt) -> None:
    """`inodes_needed(paths)` counts files, all folders above them, and the top folder."""
    for paths, shown in TREES:
        got = attempt(list(paths), _shown=shown)
        attempt.require(
            isinstance(got, int) and not isinstance(got, bool),
            got=got,
            expected=f"{_inodes(paths)}, a whole number (int)",
            because="inodes are counted, so return their number as an int; len() gives one",
        )
        if got != _inodes(paths):
            because = _why(attempt, _INODE_MISTAKES, [(tree,) for tree, _ in TREES], (paths,), got)
            attempt.expect(_inodes(paths), got, because=because)


def _folders(paths: list[str]) -> set[str]:
    """Every folder below the top one."""
    parts = [path.split("/")[:-1] for path in paths]
    return {"/".join(names[:depth]) for names in parts for depth in range(1, len(names) + 1)}


def _inodes(paths: list[str]) -> int:
    return len(paths) + len(_folders(paths)) + 1


def _nearest(paths: list[str]) -> int:
    return len({path.rpartition("/")[0] for path in paths} - {""})


def _nearest_or_top(paths: list[str]) -> int:
    return len({path.rpartition("/")[0] for path in paths})


def _by_name(paths: list[str]) -> int:
    return len({name for path in paths for name in path.split("/")[:-1]})


def _everything_by_name(paths: list[str]) -> int:
    return len({name for path in paths for name in path.split("/")})


def _once_a_file(paths: list[str]) -> int:
    return sum(path.count("/") for path in paths)


_INODE_MISTAKES: tuple[Mistake, ...] = (
    (len, "these are the files alone; each folder takes an inode as well"),
    (lambda p: len(p) + len(_folders(p)), "the top folder, which holds everything, takes an inode too"),
    (
        lambda p: _inodes(p) if p else 0,
        "an empty data set still has its top folder, and that takes an inode",
    ),
    (
        lambda p: len(p) + _nearest(p) + 1,
        "only the folder next to each file was counted; those further up take an inode each as well",
    ),
    (
        lambda p: len(p) + _nearest_or_top(p),
        "only the folder next to each file was counted; those further up, to the top, take one each",
    ),
    (
        lambda p: len(p) + _once_a_file(p) + 1,
        "folders were counted once for each file in them; a set counts each of them once",
    ),
    (
        lambda p: len(p) + _once_a_file(p),
        "folders were counted once for each file in them, and the top one is missing",
    ),
    (
        lambda p: len(p) + _by_name(p) + 1,
        "folders were counted by name, but train/cat and val/cat are two: keep the whole path",
    ),
    (
        lambda p: len(p) + _by_name(p),
        "folders were counted by name, but train/cat and val/cat are two, and the top one is missing",
    ),
    (
        lambda p: _everything_by_name(p) + 1,
        "everything was counted by name; files and folders of one name in two places are two",
    ),
)


@check(
    buys="Before a job starts you know whether it will wait for opens, and whether more threads or fewer "
    "files are the cure.",
    errors={
        ZeroDivisionError: "a wait of zero or an empty data set is allowed: divide by the number in flight "
        "and by the server's rate only, and keep both above zero",
    },
)
def hours_to_open(attempt: Attempt) -> None:
    """`hours_to_open(files, wait_s, in_flight, server_opens_per_s, jobs)` is decided by the slower limit."""
    for case in CASES:
        got = _number(attempt, attempt(*case), _hours(*case))
        if not _close(got, _hours(*case)):
            because = _why(attempt, _HOUR_MISTAKES, CASES, case, got)
            raise attempt.wrong(f"{got:.6g}", f"{_hours(*case):.6g}", because)
    _few_files(attempt)


def _number(attempt: Attempt, got: Any, expected: float) -> float:
    is_number = isinstance(got, int | float) and not isinstance(got, bool)
    attempt.require(is_number, got=got, expected=f"{expected:.6g}", because="return the hours as one number")
    return float(got)


def _few_files(attempt: Attempt) -> None:
    """However many may be in flight, one answer takes its wait."""
    files, wait_s, in_flight = FEW[:3]
    got = _number(attempt, attempt(*FEW), wait_s / 3600)
    attempt.require(
        _close(got, wait_s / 3600),
        got=got,
        expected=f"{wait_s / 3600:.6g}, which is one wait of {wait_s} s",
        because=f"{files} files cannot have {in_flight} opens in flight: even one answer takes a whole wait"
        if got < wait_s / 3600
        else "all of them wait at the same time, so together they take one wait",
    )


def _waiting(files: int, wait_s: float, in_flight: int, rate: float, jobs: int) -> float:
    """Hours that the waiting takes."""
    return files * wait_s / max(1, min(in_flight, files)) / 3600


def _answering(files: int, wait_s: float, in_flight: int, rate: float, jobs: float) -> float:
    """Hours that the server takes for the files of all jobs."""
    return files * jobs / rate / 3600


def _hours(*case: Any) -> float:
    return max(_waiting(*case), _answering(*case))


_HOUR_MISTAKES: tuple[Mistake, ...] = (
    (lambda *c: 3600 * _hours(*c), "these are seconds; an hour has 3,600 of them"),
    (lambda *c: 60 * _hours(*c), "these are minutes; an hour has 60 of them"),
    (
        lambda *c: min(_waiting(*c), _answering(*c)),
        "this is the quicker of the two limits; the slower one decides",
    ),
    (
        lambda *c: _waiting(*c) + _answering(*c),
        "the two limits were added, but they act at the same time: the slower one decides",
    ),
    (
        lambda f, w, k, r, j: _hours(f, w, 1, r, j),
        "opens wait at the same time: the waiting is divided by the number in flight",
    ),
    (
        lambda f, w, k, r, j: _hours(f, w, k, r, 1),
        "all jobs share the server, so each gets only a part of its rate",
    ),
    (_waiting, "the server's limit was left out"),
    (_answering, "the wait of each open was left out"),
    (
        lambda f, w, k, r, j: _hours(f, w, k, r, 1 / j),
        "more jobs make the server slower for each, not faster: multiply its time by the jobs",
    ),
    (
        lambda f, w, k, r, j: _hours(f, w * j, k, r, j),
        "each job waits by itself; only the server's rate is shared between jobs",
    ),
    (
        lambda f, w, k, r, j: _hours(f, w, k, r * k, j),
        "opens in flight hide the wait, but the server's rate is for all of them together",
    ),
    (
        lambda f, w, k, r, j: max(f * w * k / 3600, _answering(f, w, k, r, j)),
        "more opens in flight make the waiting shorter, so divide by them",
    ),
    (lambda *c: float(round(_hours(*c))), "the hours were rounded; return them with their fraction"),
    (
        lambda *c: float(math.floor(_hours(*c))),
        "the hours were rounded down; return them with their fraction",
    ),
)


def _why(
    attempt: Attempt,
    mistakes: Sequence[Mistake],
    cases: Sequence[tuple[Any, ...]],
    case: tuple[Any, ...],
    got: float,
) -> str:
    """The mistake that explains what the answer gives in all cases, or else in this one."""
    answers = [_quietly(attempt.answer, other) for other in cases]
    if len(set(map(str, answers))) == 1:
        return "your function gives the same whatever it is given; compute with its arguments"
    fitting = [(mistake, text) for mistake, text in mistakes if _close(got, mistake(*case))]
    for mistake, text in fitting:
        if all(_close(answer, mistake(*other)) for answer, other in zip(answers, cases, strict=True)):
            return text
    return fitting[0][1] if fitting else f"read the task again, line by line, with this case: {attempt.gave}"


def _quietly(answer: Callable[..., Any], case: tuple[Any, ...]) -> Any:
    try:
        return answer(*copy.deepcopy(case))
    except Exception:  # it was called for the diagnosis only
        return None


def _close(got: Any, expected: float) -> bool:
    return isinstance(got, int | float) and math.isclose(got, expected, rel_tol=0.001, abs_tol=1e-12)
