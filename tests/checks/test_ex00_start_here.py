"""The warm-up: each known wrong answer gets its own diagnosis."""

import math
from operator import truediv

from telling import assert_told, judged, known_mistakes

from exercises.checks import ex00_start_here as ex00


def tighter(by_inodes, by_bytes=lambda free, one: free // one):
    """An answer that takes None as it should, and makes a mistake elsewhere."""

    def answer(bytes_free, inodes_free, files, folders, bytes_of_a_copy):
        copies = by_bytes(bytes_free, bytes_of_a_copy)
        return copies if inodes_free is None else min(copies, by_inodes(inodes_free, files, folders))

    return answer


def whole(free, files, folders):
    return free // (files + folders)


WRONG_ANSWERS = [
    (tighter(lambda free, files, folders: free / (files + folders), truediv), "`//` rounds down"),
    (tighter(lambda free, files, folders: free // files), "folders take an inode each"),
    (lambda n, i, files, folders, one: min(n // one, i // (files + folders)), "inodes are not counted; then"),
    (lambda *case: 7, "divide the free bytes"),
    (lambda *case: "10", "`//` rounds down"),
    (lambda free, inodes, *copy: 10**6, "need not be yours"),  # the bytes allow as many in the first case
    (lambda free, inodes: 7, "compare its arguments"),
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
TestMistakes = known_mistakes(ex00.copies_that_fit, ex00.MISTAKES, ex00.CASES)
TestCopiesThatFit = judged(ex00.copies_that_fit, WRONG_ANSWERS, RIGHT_ANSWERS)


def test_the_check_that_the_notebook_shows_tells_its_mistakes_apart():
    assert ex00.inodes_of_a_copy(lambda files, folders: files + folders)
    assert_told(ex00.inodes_of_a_copy(lambda files, folders: files), "folders out")
    assert_told(ex00.inodes_of_a_copy(lambda files, folders: 7), "each file")
