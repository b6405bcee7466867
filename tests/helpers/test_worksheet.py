"""My numbers: what is noted is found again, with unit and machine; nothing is made up."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from helpers import cache, setup, start, worksheet
from helpers.plans import TIMED
from smallfiles.errors import ResourceError, UsageError

MACHINE_IS_BUSY = setup.machine_is_busy


@pytest.fixture(autouse=True)
def course_folder(tmp_path, monkeypatch):
    """A cache of its own, and a calm machine."""
    monkeypatch.setattr(setup, "machine_is_busy", lambda: False)
    monkeypatch.setattr(worksheet, "_keeps_times", True)  # put back at the end
    monkeypatch.delenv("COURSE_DATA", raising=False)
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_what_is_noted_is_there_after_the_kernel_has_ended_and_a_later_run_replaces_it(course_folder, capsys):
    worksheet.note("01", latency_ms=np.float64(0.031), opens_per_s=np.int64(21_000))
    worksheet.note("04", layout="blob")
    worksheet.note("01", latency_ms=0.05)
    assert "one at a time: 0.05 ms." in capsys.readouterr().out
    assert (worksheet.value("01", "latency_ms"), worksheet.value("01", "opens_per_s")) == (0.05, 21_000)
    assert worksheet.value("04", "layout") == "blob"
    assert json.loads((course_folder / "my_numbers.json").read_text())["01"]["opens_per_s"]["cpus"] >= 1


def test_the_page_shows_units_and_says_what_is_missing_on_either_side(capsys):
    worksheet.note("08", images_per_s=1234.5)
    capsys.readouterr()
    worksheet.page()
    rows = [line for line in capsys.readouterr().out.splitlines() if re.match(r"\| \d\d ", line)]
    assert len(rows) == sum(map(len, worksheet.NUMBERS.values()))
    views = next(row for row in rows if "by the best number of workers" in row)
    assert "1,234 images/s" in views or "1,235 images/s" in views
    assert re.search(r"\| [\d,]+ images/s \|$", views)  # the recorded one
    ranks = next(row for row in rows if row.startswith("| 10 "))
    assert "run notebook 10" in ranks
    assert not [row for row in rows if row.endswith("| no record |")]


def test_a_copy_of_the_course_without_its_records_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(worksheet, "CHECKOUT", tmp_path)
    worksheet.page()
    assert capsys.readouterr().out.count("| no record |") == sum(map(len, worksheet.NUMBERS.values()))


@pytest.mark.parametrize(
    ("notebook", "values", "sentence"),
    [
        ("03", {"rows": 4}, "the worksheet has no number 03 rows; expected one of 01 latency_ms"),
        ("99", {"rows": 4}, "the worksheet has no number 99 rows"),
        ("01", {"latency_ms": float("nan")}, "latency_ms is nan; expected a number"),
        ("01", {"latency_ms": -1}, "latency_ms is -1"),
    ],
)
def test_a_number_that_means_nothing_is_refused_and_nothing_is_written(
    course_folder, notebook, values, sentence
):
    with pytest.raises(UsageError, match=re.escape(sentence)):
        worksheet.note(notebook, **values)
    assert not (course_folder / "my_numbers.json").exists()


def test_what_can_be_measured_in_seconds_is_and_the_rest_names_its_notebook(capsys):
    folder = start("01", 40).folder()
    worksheet.note("01", latency_ms=7.5)
    with pytest.raises(UsageError, match=r"no cpu_ms.*notebook 08"):
        worksheet.value("08", "cpu_ms")
    worksheet.measure_missing(folder)
    assert worksheet.value("01", "latency_ms") == 7.5  # what was noted stays
    assert worksheet.value("02", "inodes") == 40 + sum(path.is_dir() for path in folder.rglob("*")) + 1
    assert 0 < worksheet.value("08", "cpu_ms") < 1000
    assert "10 ranks_fed" in worksheet.missing() and "08 cpu_ms" not in worksheet.missing()
    assert re.search(r"Still missing: .*10 ranks_fed.*Run these notebooks", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("at_start", "later", "kept"),
    [(False, False, ["latency_ms"]), (True, False, []), (False, True, [])],
    ids=["calm", "busy at the start", "busy later"],
)
def test_a_busy_machine_notes_counts_but_no_times(monkeypatch, capsys, at_start, later, kept):
    monkeypatch.setattr(setup, "machine_is_busy", lambda: at_start)
    start("05", 400)
    monkeypatch.setattr(setup, "machine_is_busy", lambda: later)
    worksheet.note("01", latency_ms=7.5)
    worksheet.note("02", inodes=411)
    sheet = json.loads((cache.cache_folder() / "my_numbers.json").read_text())
    assert (list(sheet.get("01", {})), list(sheet["02"])) == (kept, ["inodes"])
    out = capsys.readouterr().out
    assert ("Busy machine: other programs" in out) == at_start
    assert (f"the times in {TIMED['05']} scatter" in out) == at_start
    assert ("Not kept in my numbers" in out) == (not kept)


@pytest.mark.parametrize(
    ("cpus", "ticks", "busy"), [({0, 7}, 49, True), ({0, 7}, 51, False), ({0, 9}, 0, False)]
)
def test_a_machine_is_busy_if_less_than_half_a_cpu_of_this_process_is_idle(monkeypatch, cpus, ticks, busy):
    lines = "cpu  1 1 1 900 9\ncpu0 5 5 5 {0} 7\ncpu1 5 5 5 {1} 7\ncpu7 5 5 5 100 {0}\nintr 5 6 7 8 9\n"
    texts, seconds = iter((lines.format(0, 0), lines.format(ticks * 5, 9_999))), iter((50.0, 60.0))
    monkeypatch.setattr(Path, "read_text", lambda self: next(texts))
    monkeypatch.setattr(setup.os, "sched_getaffinity", lambda pid: cpus)  # 9: numbered otherwise in /proc
    monkeypatch.setattr(setup.os, "sysconf", lambda name: 100)
    monkeypatch.setattr(setup.time, "monotonic", seconds.__next__)
    assert MACHINE_IS_BUSY(0) == busy


def test_a_shared_folder_of_data_does_not_mix_the_numbers_of_two_participants(
    course_folder, tmp_path, monkeypatch
):
    course_folder.mkdir()
    monkeypatch.setenv("COURSE_WORK", str(tmp_path / "mine"))
    monkeypatch.setattr(worksheet.os, "geteuid", lambda: course_folder.stat().st_uid + 1)
    worksheet.note("10", ranks_fed=2)
    assert not list(course_folder.iterdir())
    assert (cache.own_folder() / "my_numbers.json").is_file()


def test_a_worksheet_that_cannot_be_read_or_written_is_one_sentence(course_folder, monkeypatch, tmp_path):
    course_folder.mkdir()
    (course_folder / "my_numbers.json").write_text("{")
    with pytest.raises(UsageError, match=r"my_numbers.json cannot be read .* Delete it"):
        worksheet.page()
    file = Path(tmp_path / "file")
    file.touch()
    monkeypatch.setenv("COURSE_CACHE", str(file / "cache"))
    with pytest.raises(ResourceError, match="cannot be written"):
        worksheet.note("10", ranks_fed=2)
