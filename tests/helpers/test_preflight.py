"""`make preflight`: one report of what the week before asks; what is missing is named with what to do."""

import json
import os
import sys

import pytest

from helpers import preflight, worksheet
from helpers.plans import PLANS


@pytest.fixture(autouse=True)
def course_folder(tmp_path, monkeypatch):
    """A cache of its own."""
    for name in ("COURSE_DATA", "COURSE_SIZE", "COURSE_WORK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def report(capsys, *words):
    code = preflight.main([*words, "--json"])
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)["findings"]}
    return code, found


def test_data_sets_and_numbers_that_are_missing_are_named_until_they_are_there(course_folder, capsys):
    _, found = report(capsys)
    assert found["data sets"]["verdict"] == found["rehearsal"]["verdict"] == "warn"
    assert "folder-400" in found["data sets"]["value"] and "make preflight SITE" in found["jobs"]["advice"]
    for plan in PLANS.values():
        for layout in plan.wants:
            (course_folder / f"{layout}-{plan.small}").mkdir(parents=True, exist_ok=True)
    worksheet.note("02", inodes=411)  # a count, which a busy machine keeps
    capsys.readouterr()
    _, found = report(capsys)
    assert found["data sets"]["verdict"] == "ok"
    assert found["rehearsal"]["value"].startswith("1 of ")


def test_a_job_that_a_site_cannot_run_fails_with_the_reason(capsys):
    code, found = report(capsys, "template")
    assert code == 1
    assert {f"job {name}" for name in preflight.JOBS} <= set(found)
    assert found["job 00_make_data"]["verdict"] == "fail"
    assert "SBATCH_ACCOUNT" in found["job 00_make_data"]["value"]


def test_a_job_is_judged_with_what_the_jobs_before_it_make(tmp_path, capsys, monkeypatch):
    for name in ("sbatch", "slurm.conf"):
        (tmp_path / name).touch(0o755)
    places = {"SMALLFILES_CLUSTER": tmp_path, "COURSE_VENV": sys.prefix, "COURSE_WORK": tmp_path / "work"}
    for name, value in {"PATH": f"{tmp_path}:{os.environ['PATH']}", **places}.items():
        monkeypatch.setenv(name, str(value))
    _, found = report(capsys, "local")
    assert {found[f"job {name}"]["verdict"] for name in preflight.JOBS} == {"ok"}, found
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "train.arrow").touch()
    assert "has run" in report(capsys, "local")[1]["job 03_pack_arrow"]["value"]


def test_an_unknown_site_and_a_relative_folder_are_told_in_a_sentence(capsys, monkeypatch):
    assert preflight.main(["nowhere"]) != 0
    assert "no site 'nowhere'" in capsys.readouterr().err
    monkeypatch.setenv("COURSE_WORK", "relative/folder")
    assert report(capsys)[1]["COURSE_WORK"]["verdict"] == "fail"


def test_the_report_for_people_counts_what_is_to_mend(capsys):
    code = preflight.main([])
    last = capsys.readouterr().out.splitlines()[-1]
    assert "looked at" in last and (code == 0) == (" 0 to repair" in last)


def test_the_guide_submits_the_jobs_that_the_report_checks(repository):
    guide = (repository / "docs/instructor_guide.md").read_text(encoding="utf-8")
    places = [guide.index(f"slurm/submit SITE {name}") for name in preflight.JOBS]
    assert places == sorted(places)
