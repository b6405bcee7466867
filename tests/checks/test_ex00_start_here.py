"""The warm-up: each known wrong answer gets its own diagnosis."""

import math
from operator import add, truediv

from telling import assert_told, assert_told_apart, judged

from exercises.checks import ex00_start_here as ex00


def tighter(by_inodes, by_bytes=lambda free, one: free // one, choose=min):
    """An answer that takes None as it should, and makes a mistake elsewhere."""

    def answer(bytes_free, inodes_free, files, folders, bytes_of_a_copy):
        copies = by_bytes(bytes_free, bytes_of_a_copy)
        return copies if inodes_free is None else choose(copies, by_inodes(inodes_free, files, folders))

    return answer


def whole(free, files, folders):
    return free // (files + folders)


def none_is_zero(bytes_free, inodes_free, files, folders, bytes_of_a_copy):
    return min(bytes_free // bytes_of_a_copy, (inodes_free or 0) // (files + folders))


def zero_is_none(bytes_free, inodes_free, files, folders, bytes_of_a_copy):
    if not inodes_free:
        return bytes_free // bytes_of_a_copy
    return min(bytes_free // bytes_of_a_copy, inodes_free // (files + folders))


WRONG_ANSWERS = [
    (tighter(lambda free, files, folders: free // files), "folders take an inode each"),
    (tighter(lambda free, files, folders: free // files + folders), "parentheses"),
    (tighter(lambda free, files, folders: free / (files + folders), truediv), "`//` rounds down"),
    (tighter(lambda *case: math.ceil(case[0] / sum(case[1:])), lambda a, b: math.ceil(a / b)), "rounded up"),
    (tighter(lambda *case: round(case[0] / sum(case[1:])), lambda a, b: round(a / b)), "nearest"),
    (tighter(lambda free, files, folders: free - files - folders), "subtracted"),
    (tighter(lambda free, files, folders: (files + folders) // (free or 1)), "other way round"),
    (tighter(whole, choose=max), "this is the larger of the two numbers"),
    (tighter(whole, choose=add), "you added"),
    (lambda free, inodes, files, folders, one: free // one, "but the inodes run out before"),
    (tighter(whole, choose=lambda by_bytes, by_inodes: by_inodes), "but the bytes run out before"),
    (
        lambda free, inodes, files, folders, one: min(free // one, inodes // (files + folders)),
        "inodes are not counted; then",
    ),
    (none_is_zero, "not that none is free"),
    (zero_is_none, "0 free inodes are not None"),
    (lambda *case: 7, "divide the free bytes"),
    (lambda free, inodes, *copy: 10**6, "need not be yours"),  # the bytes allow as many in the first case
    (lambda free, inodes: 7, "compare its arguments"),
    (lambda *case: "10", "`//` rounds down"),
]


def first_the_inodes(bytes_free, inodes_free, files, folders, bytes_of_a_copy):
    limits = [divmod(bytes_free, bytes_of_a_copy)[0]]
    if inodes_free is not None:
        limits.insert(0, whole(inodes_free, files, folders))
    return sorted(limits)[0]


RIGHT_ANSWERS = [
    tighter(whole),
    tighter(lambda free, files, folders: math.floor(free / (files + folders))),
    first_the_inodes,
]
TestCopiesThatFit = judged(ex00.copies_that_fit, WRONG_ANSWERS, RIGHT_ANSWERS)


def test_the_check_that_the_notebook_shows_tells_its_mistakes_apart():
    assert ex00.inodes_of_a_copy(lambda files, folders: files + folders)
    assert_told(ex00.inodes_of_a_copy(lambda files, folders: files), "folders out")
    assert_told(ex00.inodes_of_a_copy(lambda files, folders: 7), "each file")


def test_the_cases_tell_all_known_mistakes_apart():
    assert_told_apart(ex00.MISTAKES, ex00.CASES)
