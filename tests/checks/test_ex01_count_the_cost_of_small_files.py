"""Exercise 01: each known wrong answer gets its own diagnosis, every right way passes."""

import math
from pathlib import PurePosixPath

from hypothesis import given
from hypothesis import strategies as st
from telling import assert_told, judged, known_mistakes

from exercises.checks import ex01_count_the_cost_of_small_files as ex01


def parents(paths):
    return {str(parent) for path in paths for parent in PurePosixPath(path).parents}


def names(paths):
    return {name for path in paths for name in path.split("/")[:-1]}


WRONG_INODES = [
    (len, "files alone"),
    (lambda p: len(p) + len(names(p)), "counted by name, but"),
    (lambda p: len(p) + len({x.split("/")[0] for x in p if "/" in x}), "the first folder of each path"),
    (lambda p: len(p) + len(parents(p)), "also in an empty data set"),
    (lambda p: float(len(p) + len(parents(p) | {"."})), "as an int"),
    (lambda p: 2 * len(p) + 7, "read the task again"),
    (lambda p: 9 if len(p) == 4 else 1, "need not be yours"),
]


def hours(files, wait_s, in_flight, rate, jobs):
    return max(files * wait_s / max(1, min(in_flight, files)), files * jobs / rate) / 3600


def rate_way(files, wait_s, in_flight, rate, jobs):
    return files / min(in_flight / wait_s, rate / jobs) / 3600


WRONG_HOURS = [
    (rate_way, "a wait of zero"),
    (lambda f, w, k, r, j: max(f * w / k, f / (r * j)) / 3600, "jobs multiply"),
    (lambda f, w, k, r, j: max(f * w / k, f * j / r) / 3600, "3 files cannot have 64 opens in flight"),
    (lambda *c: 3600 * hours(*c) if c[2] == 1 else 0.0, "need not be yours"),
    (lambda *c: f"{hours(*c):.2f} h", "as one number"),
    (lambda files, wait_s: 0.0, "compare its arguments"),
]


def walking(paths):
    folders = {""}
    for path in paths:
        parts = path.split("/")[:-1]
        folders |= {"/".join(parts[: depth + 1]) for depth in range(len(parts))}
    return len(paths) + len(folders)


TestInodes = judged(ex01.inodes_needed, WRONG_INODES, [walking, lambda p: len(p) + len(parents(p) | {"."})])


def waves(files, wait_s, in_flight, rate, jobs):
    return max(math.ceil(files / in_flight) * wait_s, files * jobs / rate) / 3600


TREES = [(tree,) for tree in ex01.TREES]
TestKnownInodes = known_mistakes(ex01.inodes_needed, ex01.INODE_MISTAKES, TREES)
TestKnownHours = known_mistakes(ex01.hours_to_open, ex01.HOUR_MISTAKES, ex01.CASES)
TestHours = judged(ex01.hours_to_open, WRONG_HOURS, [hours, waves])


@given(st.sets(st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map("/".join)))
def test_the_check_counts_inodes_as_a_file_system_does(names):
    paths = [f"{name}/{number}.jpg" for number, name in enumerate(sorted(names))]
    assert ex01.inodes(paths) == walking(paths)


def test_a_folder_of_ones_own_is_counted_as_the_cases_are(tmp_path):
    for name in ("a/b/1.jpg", "a/2.jpg", "c/b/3.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    verdict = ex01.own_inodes(lambda p: len(p) + len(parents(p)), tmp_path)
    assert verdict and "8 inodes for 3 files" in str(verdict)
    assert_told(ex01.own_inodes(len, tmp_path), "files alone")
    assert_told(ex01.own_inodes(len, tmp_path / "a" / "none"), "name another folder")
