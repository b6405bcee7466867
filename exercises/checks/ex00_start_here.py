"""Exercise 00, a warm-up: how many copies of a data set fit where bytes and inodes are limited?

The trap it teaches: there are two limits, and the smaller number counts; a folder takes an inode as well as a
file does, and a fraction of a copy is no copy. Notebook 00 sends participants here.
"""

from __future__ import annotations

from exercises.checks import Attempt, check, diagnose

LARGE = 10**15
CASES: tuple[tuple[int, int | None, int, int, int], ...] = (
    # free bytes and inodes; files, folders and bytes of one copy
    (LARGE, 1_000, 99, 1, 10**9),  # the inodes limit: ten copies
    (10**10, 10**6, 99, 1, 10**9),  # the bytes limit: ten copies
    (LARGE, 1_000, 60, 22, 10**9),  # and a part of one
    (46 * 10**8, 10**6, 99, 1, 10**9),  # the same with bytes
    (LARGE, 50, 99, 1, 10**9),
    (LARGE, 1_000, 90, 11, 10**9),
    (LARGE, 0, 10, 2, 10**9),  # no inode is free, which is not the same as None
    (35 * 10**8, None, 99, 1, 10**9),  # inodes are not counted
    (LARGE, 10, 0, 1, 10**9),  # without files
    (2 * 10**12, 3_000_000, 1_331_167, 2_003, 155 * 10**9),  # ImageNet in a quota
)


@check(
    buys="Quotas count inodes, and now you count as they do.",
    start="Replace the stub with your code and run its cell again.",
)
def inodes_of_a_copy(attempt: Attempt) -> None:
    """`inodes_of_a_copy(files, folders)` is what one copy takes; notebook 00 solves it."""
    for files, folders in ((96, 4), (0, 1), (1_331_167, 2_003)):
        got = attempt(files, folders)
        each = "each file and each folder takes one inode"
        because = diagnose(got, (files, f"you left the folders out; {each}"), otherwise=each)
        attempt.expect(files + folders, got, because=because)


@check(
    buys="On a cluster you now know before the job, not an hour into it, that a copy will not fit.",
    errors={
        TypeError: "`inodes_free` is None where inodes are not counted; then the bytes alone decide",
        ZeroDivisionError: "a data set without files has its folder; count both in what you divide by",
    },
)
def copies_that_fit(attempt: Attempt) -> None:
    """`copies_that_fit(bytes_free, inodes_free, files, folders, bytes_of_a_copy)` obeys the tighter limit."""
    for case in CASES:
        got, right = attempt(*case), _copies(*case)
        because = "`/` gives a float, and a fraction of a copy cannot be used; `//` rounds down to an int"
        attempt.require(type(got) is int, got, f"{right}, a whole number (int)", because)
        otherwise = (
            "divide the free bytes and the free inodes by what one copy takes; the smaller number counts"
        )
        attempt.expect(right, got, because=diagnose(got, *_mistakes(*case), otherwise=otherwise))


def _copies(bytes_free: int, inodes_free: int | None, files: int, folders: int, bytes_of_a_copy: int) -> int:
    """The right answer."""
    by_bytes = bytes_free // bytes_of_a_copy
    return by_bytes if inodes_free is None else min(by_bytes, inodes_free // (files + folders))


def _mistakes(
    bytes_free: int, inodes_free: int | None, files: int, folders: int, bytes_of_a_copy: int
) -> list[tuple[int, str]]:
    """What known mistakes give in this case, and their diagnosis."""
    by_bytes, zero = bytes_free // bytes_of_a_copy, "0 free inodes are not None: nothing fits"
    if inodes_free is None:
        return [(0, "None means that inodes are not counted, not that none is free; then the bytes decide")]
    each, few = files + folders, files or 1
    by_inodes = inodes_free // each
    return [
        *([(by_bytes, zero)] if inodes_free == 0 else []),
        (min(by_bytes, inodes_free // few), "folders take an inode each as well, and you left them out"),
        (
            min(by_bytes, inodes_free // few + folders),
            "`//` binds closer than `+`: parentheses around the sum",
        ),
        (min(round(bytes_free / bytes_of_a_copy), round(inodes_free / each)), _NEAREST),
        (min(-(-bytes_free // bytes_of_a_copy), -(-inodes_free // each)), _UP),
        (by_bytes + by_inodes, "you added the two; each copy needs its bytes and its inodes"),
        (by_bytes, "the bytes have room for it, but the inodes run out before: the smaller number counts"),
        (by_inodes, "the inodes have room for it, but the bytes run out before: the smaller number counts"),
        (min(by_bytes, each // (inodes_free or 1)), "you divided the other way round: inodes by one copy"),
        (min(by_bytes, inodes_free - each), "you subtracted one copy; how often it fits is a division"),
    ]


_NEAREST = "you rounded to the nearest, so sometimes one copy too many is promised"
_UP = "you rounded up, and the last copy would be cut off in the middle"
