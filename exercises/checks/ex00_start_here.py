"""Exercise 00, a warm-up: how many copies of a data set fit where bytes and inodes are limited?

The trap it teaches: there are two limits, and the smaller number counts; a folder takes an inode as well as a
file does, and a fraction of a copy is no copy. Notebook 00 sends participants here.
"""

from __future__ import annotations

from collections.abc import Callable

from exercises.checks import Attempt, Mistake, check, explain

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
        because = f"you left the folders out; {each}" if got == files != files + folders else each
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
        if got != right:
            because = explain(attempt.answer, case, CASES, MISTAKES, otherwise=otherwise)
            raise attempt.wrong(f"{got:,}", f"{right:,}", because)


def _copies(bytes_free: int, inodes_free: int | None, files: int, folders: int, bytes_of_a_copy: int) -> int:
    """The right answer."""
    by_bytes = bytes_free // bytes_of_a_copy
    return by_bytes if inodes_free is None else min(by_bytes, inodes_free // (files + folders))


def _with_inodes(rule: Callable[[int, int, int, int], int]) -> Callable[..., int]:
    """An answer that obeys the bytes, and the inodes by this rule where they are counted."""

    def answer(
        bytes_free: int, inodes_free: int | None, files: int, folders: int, bytes_of_a_copy: int
    ) -> int:
        by_bytes = bytes_free // bytes_of_a_copy
        return by_bytes if inodes_free is None else rule(by_bytes, inodes_free, files, folders)

    return answer


def _rounded(rounding: Callable[[int, int], int]) -> Callable[..., int]:
    """An answer that rounds both quotients by this rule."""

    def answer(
        bytes_free: int, inodes_free: int | None, files: int, folders: int, bytes_of_a_copy: int
    ) -> int:
        by_bytes = rounding(bytes_free, bytes_of_a_copy)
        return by_bytes if inodes_free is None else min(by_bytes, rounding(inodes_free, files + folders))

    return answer


_NO_FOLDERS = "folders take an inode each as well, and you left them out"
_NO_PARENTHESES = "`//` binds closer than `+`: parentheses around the sum"
_ZERO = "0 free inodes are not None: nothing fits"
_NONE = "None means that inodes are not counted, not that none is free; then the bytes decide"
_NEAREST = "you rounded to the nearest, so sometimes one copy too many is promised"
_UP = "you rounded up, and the last copy would be cut off in the middle"
_LARGER = "this is the larger of the two numbers, and what it counts runs out before: the smaller one counts"
_BYTES_ALONE = "the bytes have room for it, but the inodes run out before: the smaller number counts"
_INODES_ALONE = "the inodes have room for it, but the bytes run out before: the smaller number counts"
_ADDED = "you added the two; each copy needs its bytes and its inodes"
MISTAKES: tuple[Mistake, ...] = (
    (lambda free, inodes, *copy: _copies(free, inodes or None, *copy), _ZERO),
    (lambda free, inodes, *copy: _copies(free, inodes or 0, *copy), _NONE),
    (_with_inodes(lambda n, inodes, files, folders: min(n, inodes // files)), _NO_FOLDERS),
    (_with_inodes(lambda n, inodes, files, folders: min(n, inodes // files + folders)), _NO_PARENTHESES),
    (_rounded(lambda free, one: round(free / one)), _NEAREST),
    (_rounded(lambda free, one: -(-free // one)), _UP),
    (_with_inodes(lambda n, inodes, files, folders: n + inodes // (files + folders)), _ADDED),
    (_with_inodes(lambda n, inodes, files, folders: max(n, inodes // (files + folders))), _LARGER),
    (_with_inodes(lambda n, inodes, files, folders: n), _BYTES_ALONE),
    (_with_inodes(lambda n, inodes, files, folders: inodes // (files + folders)), _INODES_ALONE),
    (
        _with_inodes(lambda n, inodes, files, folders: min(n, (files + folders) // (inodes or 1))),
        "you divided the other way round: inodes by one copy",
    ),
    (
        _with_inodes(lambda n, inodes, files, folders: min(n, inodes - files - folders)),
        "you subtracted one copy; how often it fits is a division",
    ),
)
