"""Every notebook runs from top to bottom, as participants run it."""

import re
import shlex

import nbformat
import pytest
from courses import BY_FOLDER, assert_clean, each, kept
from running import execute

from helpers.plans import PLANS, TIMED
from smallfiles.cli import build_parser

KEYS_OF_ITS_STORE = "print(server.keys.key_id, server.keys.secret, file=open('their keys', 'w'))"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("size", ["least", pytest.param("small", marks=pytest.mark.slow)])
@each("notebooks")
def test_a_notebook_runs_and_draws_a_figure(path, size, participant, course_cache, forked, monkeypatch):
    """With as few images as its plan allows, and with as many as participants have."""
    if size == "least":
        monkeypatch.setenv("COURSE_SIZE", str(max(100, PLANS[path.name[:2]].least)))
    last = KEYS_OF_ITS_STORE if path.stem == "09_stream_shards" else ""
    executed = execute(path, participant, kept(path), last=last)
    assert_clean(executed)
    assert re.search(r'<img alt="[^"]{20,}', executed.html), "no figure with a description was drawn"
    if last:
        assert_in_no_file(participant / "their keys", participant, course_cache, kept(path).parent)


def assert_in_no_file(keys, *places):
    """No notebook or record holds the keys of its store."""
    words = keys.read_text().split()
    assert [len(word) for word in words] == [20, 40]
    keys.unlink()
    files = [file for place in places for file in place.rglob("*") if file.is_file()]
    assert [file for file in files if any(word.encode() in file.read_bytes() for word in words)] == []


@each("notebooks")
def test_every_command_that_a_notebook_prints_is_one_that_the_command_line_takes(path):
    if not kept(path).exists():
        pytest.skip("the notebook was not executed in this run")
    outputs = [o for c in nbformat.read(kept(path), as_version=4).cells for o in c.get("outputs", ())]
    texts = [o["data"].get("text/plain", "") for o in outputs if "data" in o]
    lines = [line for text in texts for line in text.splitlines() if line.startswith("smallfiles ")]
    assert lines, "no command for the cluster was printed"
    for line in lines:
        assert build_parser().parse_args(shlex.split(line)[1:]).verb


def test_every_exercise_has_its_solution_and_every_notebook_its_plan():
    assert {p.name for p in BY_FOLDER["exercises"]} == {p.name for p in BY_FOLDER["solutions"]}
    for path in BY_FOLDER["notebooks"]:
        heading = nbformat.read(path, as_version=4).cells[0].source.split("\n")[0]
        assert heading == f"# {path.name[:2]} · {PLANS[path.name[:2]].title}"
        assert (
            f"**Minutes** {PLANS[path.name[:2]].minutes} "
            in nbformat.read(path, as_version=4).cells[0].source
        )


@each("notebooks")
def test_each_section_of_which_a_busy_machine_spoils_the_times_is_there(path):
    headings = "\n".join(cell.source.split("\n")[0] for cell in nbformat.read(path, as_version=4).cells)
    numbers = re.findall(r"\d", TIMED.get(path.name[:2], ""))
    assert [n for n in numbers if not re.search(rf"^## {n} · ", headings, re.M)] == []


class TestFailuresInARealKernel:
    """What a participant sees when a cell fails: a sentence, and Run All stops."""

    def fail(self, participant, tmp_path, *sources):
        from nbclient.exceptions import CellExecutionError

        path = tmp_path / "probe.ipynb"
        start = 'import sys\nsys.path.append("..")\nfrom helpers import show, start\nsetup = start("00")'
        cells = [nbformat.v4.new_code_cell(source) for source in (start, *sources)]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
        copy = tmp_path / "executed.ipynb"
        with pytest.raises((CellExecutionError, pytest.fail.Exception)):
            execute(path, participant, copy)
        executed = nbformat.read(copy, as_version=4).cells
        error = next(o for c in executed for o in c.outputs if o["output_type"] == "error")
        return error, executed

    def test_a_setting_that_makes_no_sense_is_a_sentence_without_traceback(
        self, participant, tmp_path, monkeypatch
    ):
        monkeypatch.setenv("COURSE_SIZE", "huge")
        error, executed = self.fail(participant, tmp_path, "1")
        shown = "\n".join(error["traceback"])
        assert error["ename"] == "UsageError"
        assert "the size is 'huge'" in shown and "Next step" in shown
        assert "Traceback" not in shown and "line" not in shown and "plans.py" not in shown
        assert executed[1].execution_count is None  # Run All stopped

    def test_a_cell_out_of_order_gets_a_hint(self, participant, tmp_path):
        error, _ = self.fail(participant, tmp_path, "rates.mean()")
        assert "Run All Above Selected Cell" in "\n".join(error["traceback"])
