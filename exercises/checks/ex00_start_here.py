"""Exercise 00, a warm-up: how many copies of a data set fit into a quota of files?

The trap it teaches: a folder takes an inode as well as a file does, and a fraction of a copy is no
copy. Notebook 00 sends participants here.
"""

from __future__ import annotations

from exercises.checks import Attempt, check, diagnose

CASES = (
    # free inodes, files and folders of one copy
    (1_000, 99, 1),  # whole: 10 copies
    (1_000, 60, 22),  # 12.2 copies
    (50, 99, 1),  # not even one
    (1_000, 90, 11),  # 9.9 copies
    (100, 99, 1),  # exactly one
    (0, 10, 2),  # nothing is free
    (10, 0, 1),  # an empty data set is still a folder
    (3_000_000, 1_331_167, 2_003),  # ImageNet, both splits, and a quota of three million
)


@check(buys="Quotas count inodes, and now you count as they do.")
def inodes_of_a_copy(attempt: Attempt) -> None:
    """`inodes_of_a_copy(files, folders)` is what one copy takes; notebook 00 solves it."""
    for files, folders in ((96, 4), (0, 1), (1_331_167, 2_003)):
        got = attempt(files, folders)
        because = diagnose(
            got,
            (files, "a folder takes an inode as well"),
            (files * folders, "you multiplied; each file and each folder takes one inode"),
            otherwise="each file and each folder takes one inode",
        )
        attempt.expect(files + folders, got, because=because)


@check(
    buys="On a cluster you now know before the job, not an hour into it, that the file quota is too small.",
    errors={
        ZeroDivisionError: "a data set without files still has its folder; count both in what you divide by",
    },
)
def copies_that_fit(attempt: Attempt) -> None:
    """`copies_that_fit(inodes_free, files, folders)` is the number of whole copies that fit."""
    for free, files, folders in CASES:
        got = attempt(free, files, folders)
        attempt.require(
            isinstance(got, int) and not isinstance(got, bool),
            got=got,
            expected=f"{free // (files + folders)}, a whole number (int)",
            because="`/` gives a float, and a fraction of a copy cannot be used; `//` rounds down to an int",
        )
        attempt.expect(free // (files + folders), got, because=_diagnosis(got, free, files, folders))


def _diagnosis(got: int, free: int, files: int, folders: int) -> str:
    each = files + folders
    mistakes = [
        (free // files if files else None, "folders take an inode each as well, and you left them out"),
        (
            free // files + folders if files else None,
            "`//` binds closer than `+`: put parentheses around the sum",
        ),
        (round(free / each), "you rounded to the nearest, so sometimes one copy too many is promised"),
        (-(-free // each), "you rounded up, and the last copy would be cut off in the middle"),
        (free - each, "you subtracted one copy; the question is how often it fits, which is a division"),
        (
            each // free if free else None,
            "you divided the other way round: how often do the inodes fit into a copy",
        ),
        (free // each - 1, "you kept one copy in reserve; here exactly full is still allowed"),
    ]
    return diagnose(
        got, *mistakes, otherwise="divide the free inodes by what one copy takes: files and folders"
    )
