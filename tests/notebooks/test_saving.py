"""Saving what ran in the course's JupyterLab is no change for git; what is written into a cell is one."""

import subprocess
from pathlib import Path

import nbformat
import pytest
from jupyter_server.services.contents.filemanager import FileContentsManager
from running import execute
from traitlets.config import Config, PyFileConfigLoader


@pytest.fixture
def server(tmp_path, repository):
    """A server's contents below a copy of the notebooks, set up as `make lab` does."""
    for path in repository.glob("[nes]*/*.ipynb"):
        copy = tmp_path / "a copy" / path.relative_to(repository)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    config = PyFileConfigLoader("jupyter_server_config.py", str(repository / "tools")).load_config()
    return FileContentsManager(root_dir=str(tmp_path / "a copy"), config=Config(config))


def save(server, name, notebook):
    server.save({"type": "notebook", "format": "json", "content": notebook}, name)


def after_a_run(server, name):
    """A notebook with all that a run and a server add."""
    notebook = nbformat.from_dict(server.get(name)["content"])
    notebook.metadata["language_info"] |= {"version": "3.12.1", "pygments_lexer": "ipython3"}
    notebook.metadata["widgets"] = {"application/vnd.jupyter.widget-state+json": {"state": {}}}
    for number, cell in enumerate(cell for cell in notebook.cells if cell.cell_type == "code"):
        cell.execution_count = number + 1
        cell.outputs = [nbformat.v4.new_output("stream", text="é 12 images/s\n")]
        cell.metadata |= {"execution": {"iopub.status.busy": "now"}, "scrolled": True}
    return notebook


def test_the_lab_is_started_with_these_settings(repository):
    recipe = (repository / "Makefile").read_text(encoding="utf-8").partition("\nlab:")[2].partition("\n\n")[0]
    assert "--config" in recipe and "tools/jupyter_server_config.py" in recipe


def test_every_notebook_is_saved_as_it_was_built(server, repository):
    names = [str(p.relative_to(repository)) for p in sorted(repository.glob("[nes]*/*.ipynb"))]
    assert len(names) > 20
    for name in names:
        save(server, name, after_a_run(server, name))
        saved = Path(server.root_dir, name)
        assert saved.read_bytes() == (repository / name).read_bytes(), name


def test_an_answer_is_kept_and_is_the_only_change(server, repository):
    name = "exercises/03_pack_arrow.ipynb"
    notebook = after_a_run(server, name)
    notebook.cells[-1].source += "\nmine"
    save(server, name, notebook)
    before = (repository / name).read_text("utf-8").splitlines()
    after = Path(server.root_dir, name).read_text("utf-8").splitlines()
    assert [line for line in after if line not in before][-1].strip() == '"mine"'
    assert len(after) == len(before) + 1


def test_notebooks_of_others_keep_their_outputs(server):
    mine = after_a_run(server, "exercises/03_pack_arrow.ipynb")
    save(server, "mine.ipynb", mine)
    assert "images/s" in Path(server.root_dir, "mine.ipynb").read_text("utf-8")


def test_a_notebook_that_really_ran_is_saved_as_it_was_built(server, participant, repository):
    name = "exercises/00_start_here.ipynb"
    ran = participant / "ran.ipynb"
    execute(repository / name, participant, kept=ran)
    notebook = nbformat.read(ran, as_version=4)
    assert any(cell.get("outputs") for cell in notebook.cells)
    save(server, name, notebook)
    assert Path(server.root_dir, name).read_bytes() == (repository / name).read_bytes()


def test_copies_run_beside_busy_loops_that_end_and_an_error_stops_no_other(tmp_path, monkeypatch):
    run_notebooks = pytest.importorskip("run_notebooks")
    started, popen = [], subprocess.Popen
    monkeypatch.setattr(
        run_notebooks.subprocess, "Popen", lambda *a: started.append(popen(*a)) or started[-1]
    )
    monkeypatch.setattr(
        run_notebooks, "execute", lambda notebook, _: 1 / ("# 00" in notebook.cells[0].source)
    )
    monkeypatch.setattr("sys.argv", ["run_notebooks", str(tmp_path), "00", "01", "--busy", "1"])
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path))
    assert run_notebooks.main() == 1
    lines = [line.split(",") for line in (tmp_path / "runs.csv").read_text().splitlines()]
    assert [(line[0], line[-1]) for line in lines[1:]] == [("00", ""), ("01", "division by zero")]
    assert [loop.poll() for loop in started] == [-9]
