"""Exercise 00, a warm-up: how many copies of a data set fit into a quota of files?

The trap it teaches: a folder takes an inode as well as a file does, and a fraction of a copy is no
copy. Notebook 00 sends participants here.
"""

from __future__ import annotations

from exercises.checks import Attempt, check, diagnose

# Free inodes, files and folders of one copy: whole copies and parts of one, none, nothing free, a data set
# without files, and both splits of ImageNet in a quota of three million.
CASES = [(1_000, 99, 1), (1_000, 60, 22), (50, 99, 1), (1_000, 90, 11), (100, 99, 1), (0, 10, 2), (10, 0, 1)]
CASES += [(3_000_000, 1_331_167, 2_003)]


@check(buys="Quotas count inodes, and now you count as they do.")
def inodes_of_a_copy(attempt: Attempt) -> None:
    """`inodes_of_a_copy(files, folders)` is what one copy takes; notebook 00 solves it."""
    for files, folders in ((96, 4), (0, 1), (1_331_167, 2_003)):
        got = attempt(files, folders)
        each = "each file and each folder takes one inode"
        because = diagnose(got, (files, f"you left the folders out; {each}"), otherwise=each)
        attempt.expect(files + folders, got, because=because)


@check(
    buys="On a cluster you now know before the job, not an hour into it, that the file quota is too small.",
    errors={ZeroDivisionError: "a data set without files has its folder; count both in what you divide by"},
)
def copies_that_fit(attempt: Attempt) -> None:
    """`copies_that_fit(inodes_free, files, folders)` is the number of whole copies that fit."""
    for free, files, folders in CASES:
        got, each = attempt(free, files, folders), files + folders
        because = "`/` gives a float, and a fraction of a copy cannot be used; `//` rounds down to an int"
        attempt.require(type(got) is int, got, f"{free // each}, a whole number (int)", because)
        mistakes = (
            (free // (files or 1), "folders take an inode each as well, and you left them out"),
            (free // (files or 1) + folders, "`//` binds closer than `+`: put parentheses around the sum"),
            (round(free / each), "you rounded to the nearest, so sometimes one copy too many is promised"),
            (-(-free // each), "you rounded up, and the last copy would be cut off in the middle"),
            (free - each, "you subtracted one copy; the question is how often it fits, which is a division"),
            (each // (free or 1), "you divided the other way round: how often do the inodes fit into a copy"),
        )
        otherwise = "divide the free inodes by what one copy takes: files and folders"
        attempt.expect(free // each, got, because=diagnose(got, *mistakes, otherwise=otherwise))
