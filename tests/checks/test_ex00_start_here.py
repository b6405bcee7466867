"""The warm-up: each known wrong answer gets its own diagnosis."""

import math

from telling import assert_told, judged

from exercises.checks import ex00_start_here as ex00

WRONG_ANSWERS = [
    (lambda free, files, folders: free // files, "folders take an inode each"),
    (lambda free, files, folders: free // files + folders, "parentheses"),
    (lambda free, files, folders: free / (files + folders), "`//` rounds down"),
    (lambda free, files, folders: math.ceil(free / (files + folders)), "rounded up"),
    (lambda free, files, folders: round(free / (files + folders)), "nearest"),
    (lambda free, files, folders: free - files - folders, "subtracted"),
    (lambda free, files, folders: (files + folders) // free, "other way round"),
    (lambda free, files, folders: 10, "divide the free inodes"),
    (lambda free, files, folders: "10", "`//` rounds down"),
]


RIGHT_ANSWERS = [
    lambda free, files, folders: free // (files + folders),
    lambda free, files, folders: math.floor(free / (files + folders)),
    lambda free, files, folders: divmod(free, files + folders)[0],
]
TestCopiesThatFit = judged(ex00.copies_that_fit, WRONG_ANSWERS, RIGHT_ANSWERS)


def test_the_check_that_the_notebook_shows_tells_its_mistakes_apart():
    assert ex00.inodes_of_a_copy(lambda files, folders: files + folders)
    assert_told(ex00.inodes_of_a_copy(lambda files, folders: files), "folders out")
    assert_told(ex00.inodes_of_a_copy(lambda files, folders: 7), "each file")
