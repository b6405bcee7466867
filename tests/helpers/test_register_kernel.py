"""`make kernel`, and a course that its participants may only read."""

import importlib.util
import json
import os
import re
import subprocess
import sys

import pytest

from helpers import cache


@pytest.fixture
def tool(repository, monkeypatch):
    monkeypatch.syspath_prepend(repository / "tools")
    place = repository / "tools/register_kernel.py"
    spec = importlib.util.spec_from_file_location("register_kernel", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def read_only(monkeypatch):
    """As another user meets a shared installation; permissions stop no root, who may run this."""
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != cache.CHECKOUT and real(path, mode))
    for name in ("COURSE_CACHE", "COURSE_WORK", "COURSE_DATA"):
        monkeypatch.delenv(name, raising=False)


def test_the_kernel_is_registered_for_the_user_and_runs_this_course(repository, tmp_path):
    private = {"JUPYTER_DATA_DIR": str(tmp_path / "data"), "COURSE_WORK": str(tmp_path / "work")}
    command = [sys.executable, repository / "tools/register_kernel.py"]
    how = {"capture_output": True, "text": True, "timeout": 120, "cwd": tmp_path}
    done = subprocess.run(command, env=os.environ | private, **how)
    assert done.returncode == 0, done.stderr
    assert 'choose the kernel "Small Files, Big Machines"' in done.stdout
    spec = json.loads((tmp_path / "data/kernels/smallfiles/kernel.json").read_text())
    assert spec["argv"][0] == sys.executable and spec["display_name"] == "Small Files, Big Machines"
    assert spec["env"] == {"COURSE_WORK": str(tmp_path / "work")}


def test_what_modules_offer_is_kept_only_where_the_site_s_packages_are_used(tool, tmp_path, monkeypatch):
    for name in tool.COURSE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LD_LIBRARY_PATH", "/apps/cuda/lib")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    (tmp_path / "pyvenv.cfg").write_text("include-system-site-packages = false\n")
    assert tool.kept() == {}
    (tmp_path / "pyvenv.cfg").write_text("include-system-site-packages = true\n")
    assert tool.kept()["LD_LIBRARY_PATH"] == "/apps/cuda/lib" and "PATH" in tool.kept()


def test_a_kernel_that_does_not_run_this_course_is_told(tool, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tool, "install", lambda **_: tmp_path)
    monkeypatch.setattr(tool, "try_out", lambda: "No module named 'torch'")
    assert tool.main() == 1 and "No module named 'torch'" in capsys.readouterr().err


def test_whoever_may_not_write_to_the_installation_is_told_to_copy(tool, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(tool, "install", lambda **_: tmp_path)
    monkeypatch.setattr(tool, "try_out", lambda: str(tool.ROOT / "helpers/__init__.py"))
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert tool.main() == 0
    command = capsys.readouterr().out.partition("Work on copies: ")[2]
    subprocess.run(["bash", "-c", command], check=True, env={**os.environ, "HOME": str(tmp_path)})
    for page in (tmp_path / "smallfiles").glob("*/*.ipynb"):
        for target in re.findall(r"\]\((\.\./[^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), (page.name, target)


def test_in_a_course_of_others_one_writes_to_ones_work_folder_or_home(read_only, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.cache_folder() == tmp_path / "smallfiles_work" / "course_data"
    monkeypatch.setenv("COURSE_WORK", str(tmp_path / "scratch"))
    assert cache.cache_folder() == tmp_path / "scratch" / "course_data"
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path / "mine"))
    assert cache.cache_folder() == tmp_path / "mine"


def test_data_prepared_in_a_course_of_others_is_found(read_only, tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "CHECKOUT", tmp_path / "shared")
    prepared = tmp_path / "shared" / "course_data" / "folder-20"
    prepared.mkdir(parents=True)
    assert cache.find_or_make("folder", 20, tmp_path / "mine") == (prepared, 0.0)


def test_scratch_is_one_s_own_where_the_data_of_a_teacher_can_only_be_read(read_only, tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "CHECKOUT", tmp_path / "of a teacher")  # what `read_only` makes so
    cache.CHECKOUT.mkdir()
    monkeypatch.setenv("COURSE_WORK", str(tmp_path / "mine"))
    assert cache.scratch_folder(cache.CHECKOUT, "01").parent == tmp_path / "mine" / "course_data" / "scratch"
    assert not list(cache.CHECKOUT.iterdir())
