"""Exercise 01: inodes of a list of files, and hours until a metadata server has opened them.

The trap it teaches: folders within folders take inodes too, and two limits that act at the same time
do not add up: the slower one decides. Notebook 01 sends participants here.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from exercises.checks import Attempt, Mistake, Verdict, check, close, explain

TREES: tuple[list[str], ...] = (
    # Here all known mistakes give other numbers.
    ["set/train/cat/1.jpg", "set/train/dog/1.jpg", "set/val/cat/1.jpg", "set/val/dog/1.jpg"],
    ["cat/1.jpg", "cat/2.jpg", "dog/1.jpg"],
    ["1.jpg", "2.jpg"],
    ["a/b/c/d/1.jpg", "a/2.jpg"],
    ["a.b/1.jpg", "a/b/1.jpg", "ab/1"],
    [],
    [f"train/n{c:08}/n{c:08}_{k}.JPEG" for c in range(100) for k in range(30)],
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
_MOST = 100_000  # files of a participant's folder that are listed
FEW = (3, 0.5, 64, 100_000.0, 1)  # fewer files than places in flight


def folders(paths: list[str]) -> set[str]:
    """Every folder below the top one."""
    parts = [path.split("/")[:-1] for path in paths]
    return {"/".join(names[:depth]) for names in parts for depth in range(1, len(names) + 1)}


def inodes(paths: list[str]) -> int:
    """The right answer to the first task."""
    return len(paths) + len(folders(paths)) + 1


def _next_to_files(paths: list[str]) -> set[str]:
    return {path.rpartition("/")[0] for path in paths} - {""}


def _names(paths: list[str]) -> set[str]:
    return {name for path in paths for name in path.split("/")[:-1]}


def _of_top_level(paths: list[str]) -> set[str]:
    return {path.split("/")[0] for path in paths if "/" in path}


_AGAIN = "read the task again, line by line, with this case"
_TOP = "the top folder, which holds everything, takes an inode too, also in an empty data set"
_NEXT = "only the folder next to each file was counted; those further up take an inode each as well"
_ONCE = "folders were counted once for each file in them; a set counts each of them once"
_NAMES = "folders were counted by name, but train/cat and val/cat are two: keep the whole path"
_FIRST = "only the first folder of each path was counted; the folders in it take an inode each as well"
_NONE = "the folders below the top one are missing; each of them takes an inode"
INODE_MISTAKES: tuple[Mistake, ...] = (
    (len, "these are the files alone; each folder takes an inode as well"),
    (lambda p: len(p) + 1, _NONE),
    (lambda p: len(p) + len(folders(p)), _TOP),
    (lambda p: len(p) + len(folders(p)) + bool(p), _TOP),
    (lambda p: len(p) + len(_next_to_files(p)) + 1, _NEXT),
    (lambda p: len(p) + len({path.rpartition("/")[0] for path in p}), f"{_NEXT}; and {_TOP}"),
    (lambda p: len(p) + len(_next_to_files(p)), f"{_NEXT}; and {_TOP}"),
    (lambda p: len(p) + sum(path.count("/") for path in p) + 1, _ONCE),
    (lambda p: len(p) + sum(path.count("/") + 1 for path in p), _ONCE),
    (lambda p: len(p) + len(_names(p)) + 1, _NAMES),
    (lambda p: len(p) + len(_names(p)), f"{_NAMES}; and {_TOP}"),
    (lambda p: len(p) + len(_of_top_level(p)) + 1, _FIRST),
    (lambda p: len(p) + len(_of_top_level(p)), f"{_FIRST}; and {_TOP}"),
)


_BUYS = "You know before a copy starts whether its files fit into the quota, not when it stops half-way."


@check(buys=_BUYS)
def inodes_needed(attempt: Attempt) -> None:
    """`inodes_needed(paths)` counts files, all folders above them, and the top folder."""
    _count(attempt, TREES)


def own_inodes(answer: Any, folder: Path) -> Verdict:
    """`inodes_needed` on a folder of the participant's, which is listed and not changed.

    Args:
        answer: The participant's function.
        folder: Any folder; of a large one the first 100,000 files are taken.
    """
    files = (Path(at, name) for at, _, names in os.walk(folder) for name in names)
    paths = [path.relative_to(folder).as_posix() for path in islice(files, _MOST)]

    buys = f"{folder.name} needs {inodes(paths):,} inodes for {len(paths):,} files, wherever you copy it."

    @check(buys=buys)
    def own_inodes(attempt: Attempt) -> None:
        attempt.require(bool(paths), f"no file in {folder}", "a folder with files", "name another folder")
        _count(attempt, [paths])

    return own_inodes(answer)


def _count(attempt: Attempt, trees: Sequence[list[str]]) -> None:
    """Refuse the first wrong count of these lists of files."""
    for paths in trees:
        got, right = attempt(paths), inodes(paths)
        because = "inodes are counted, so return their number as an int; len() gives one"
        attempt.require(type(got) is int, got, f"{right}, a whole number (int)", because)
        if got != right:
            cases = [(tree,) for tree in (paths, *TREES)]
            otherwise = f"{_AGAIN}: {attempt.gave}"
            because = explain(attempt.answer, (paths,), cases, INODE_MISTAKES, otherwise=otherwise)
            raise attempt.wrong(f"{got:,}", f"{right:,}", because)


def waiting(files: int, wait_s: float, in_flight: int, rate: float, jobs: float) -> float:
    """Hours that the waiting takes."""
    return files * wait_s / max(1, min(in_flight, files)) / 3600


def answering(files: int, wait_s: float, in_flight: int, rate: float, jobs: float) -> float:
    """Hours that the server takes for the files of all jobs."""
    return files * jobs / rate / 3600


def hours(*case: Any) -> float:
    """The right answer to the second task."""
    return max(waiting(*case), answering(*case))


_MORE_JOBS = "here more jobs multiply the server's rate; in fact they share it: each gets rate / jobs"
HOUR_MISTAKES: tuple[Mistake, ...] = (
    (lambda *c: 3600 * hours(*c), "these are seconds; an hour has 3,600 of them"),
    (lambda *c: 60 * hours(*c), "these are minutes; an hour has 60 of them"),
    (lambda *c: min(waiting(*c), answering(*c)), "this is the faster of the two limits; the slower decides"),
    (lambda *c: waiting(*c) + answering(*c), "the two limits act at the same time, and were added"),
    (lambda f, w, k, r, j: hours(f, w, 1, r, j), "opens wait at the same time: divide by those in flight"),
    (lambda f, w, k, r, j: hours(f, w, k, r, 1), "all jobs share the server: each gets a part of its rate"),
    (lambda f, w, k, r, j: hours(f, w, k, r * j, 1), _MORE_JOBS),
    (waiting, "the server's limit was left out"),
    (answering, "the wait of each open was left out"),
)


_ABOVE_ZERO = "a wait of zero or an empty data set is allowed: divide by the number in flight "
_ABOVE_ZERO += "and by the server's rate only, and keep both above zero"


@check(
    buys="Before a job starts you know whether it will wait for opens, and whether more threads or fewer "
    "files are the cure.",
    errors={ZeroDivisionError: _ABOVE_ZERO},
)
def hours_to_open(attempt: Attempt) -> None:
    """`hours_to_open(files, wait_s, in_flight, server_opens_per_s, jobs)` is decided by the slower limit."""
    for case in (*CASES, FEW):
        got, right = attempt(*case), hours(*case)
        number = isinstance(got, int | float) and not isinstance(got, bool)
        attempt.require(number, got, f"{right:.6g}", "return the hours as one number")
        if not close(got, right):
            few = "3 files cannot have 64 opens in flight; all of them wait at the same time, for one wait"
            otherwise = few if case == FEW else f"{_AGAIN}: {attempt.gave}"
            because = explain(attempt.answer, case, CASES, HOUR_MISTAKES, otherwise=otherwise)
            raise attempt.wrong(f"{got:.6g}", f"{right:.6g}", because)
