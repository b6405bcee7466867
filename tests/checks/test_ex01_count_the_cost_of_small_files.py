"""Exercise 01: each known wrong answer gets its own diagnosis, every right way passes."""

import math
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st
from telling import assert_told, assert_told_apart, judged

from exercises.checks import ex01_count_the_cost_of_small_files as ex01


def parents(paths):
    return {str(parent) for path in paths for parent in PurePosixPath(path).parents}


def near(paths):
    return {str(PurePosixPath(path).parent) for path in paths}


def top_level(paths):
    return {path.split("/")[0] for path in paths if "/" in path}


WRONG_INODES = [
    (len, "files alone"),
    (lambda p: len(p) + len(parents(p) - {"."}), "which holds everything"),
    (lambda p: len(p) + len(near(p) - {"."}) + 1, "those further up take an inode"),
    (lambda p: len(p) + len(near(p)), "as well; and the top folder"),
    (lambda p: len(p) + len(parents(p)), "also in an empty data set"),
    (lambda p: len(p) + sum(x.count("/") for x in p) + 1, "once for each file in them; a set"),
    (lambda p: len(p) + len({n for x in p for n in x.split("/")[:-1]}) + 1, "counted by name, but"),
    (lambda p: len(p) + sum(x.count("/") + 1 for x in p), "once for each file in them; a set"),
    (lambda p: len(p) + len({n for x in p for n in x.split("/")[:-1]}), "counted by name, but"),
    (lambda p: len(p) + len(top_level(p)) + 1, "the first folder of each path was counted"),
    (lambda p: len(p) + len(top_level(p)), "the first folder of each path was counted"),
    (lambda p: len(p) + 1, "folders below the top one"),
    (lambda p: float(len(p) + len(parents(p) | {"."})), "as an int"),
    (lambda p: 9 if len(p) == 4 else 1, "need not be yours"),
    (lambda p: 2 * len(p) + 7, "read the task again"),
]


def hours(files, wait_s, in_flight, rate, jobs):
    return max(files * wait_s / max(1, min(in_flight, files)), files * jobs / rate) / 3600


def rate_way(files, wait_s, in_flight, rate, jobs):
    return files / min(in_flight / wait_s, rate / jobs) / 3600


def both(f, w, k, r, j):
    return f * w / max(1, min(k, f)), f * j / r


WRONG_HOURS = [
    (lambda *c: hours(*c) * 3600, "these are seconds"),
    (lambda *c: hours(*c) * 60, "these are minutes"),
    (lambda *c: min(both(*c)) / 3600, "faster of the two limits"),
    (lambda *c: sum(both(*c)) / 3600, "were added"),
    (lambda f, w, k, r, j: max(f * w, f * j / r) / 3600, "opens wait at the same time"),
    (lambda f, w, k, r, j: hours(f, w, k, r, 1), "share the server"),
    (lambda *c: both(*c)[0] / 3600, "server's limit was left out"),
    (rate_way, "a wait of zero"),
    (lambda f, w, k, r, j: max(f * w / k, f * j / r) / 3600, "3 files cannot have 64 opens in flight"),
    (lambda f, w, k, r, j: max(f * w / max(1, min(k, f)), f / (r * j)) / 3600, "jobs multiply"),
    (lambda f, w, k, r, j: max(f * w / k, f / (r * j)) / 3600, "jobs multiply"),
    (lambda *c: 3600 * hours(*c) if c[2] == 1 else 0.0, "need not be yours"),
    (lambda *c: f"{hours(*c):.2f} h", "as one number"),
    (lambda files, wait_s: 0.0, "compare"),
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


TestHours = judged(ex01.hours_to_open, WRONG_HOURS, [hours, waves])


@pytest.mark.parametrize(
    ("mistakes", "cases"),
    [(ex01.INODE_MISTAKES, [(t,) for t in ex01.TREES]), (ex01.HOUR_MISTAKES, ex01.CASES)],
)
def test_the_cases_tell_all_known_mistakes_apart(mistakes, cases):
    assert_told_apart(mistakes, cases)


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
