"""In a clone any Python may run the first lines. An old one prints which version is needed."""

import ast
import functools
import glob
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("smallfiles", "pysquashfs", "helpers", "exercises", "benchmarks")
STARTS = ["setup.py", *(f"{package}/__init__.py" for package in PACKAGES)]
TOOLS = sorted(f"tools/{path.name}" for path in ROOT.glob("tools/*.py") if "__main__" in path.read_text())
COMMANDS = [
    ["-m", "smallfiles", "doctor"],
    ["-m", "pysquashfs", "list", "x.sqfs"],
    ["-m", "helpers.preflight"],
    ["-m", "helpers.jobs", "local", "00_make_data"],
    ["-m", "benchmarks", "pack"],
    ["setup.py", "--version"],
    *([path] for path in TOOLS),
    ["-c", "import smallfiles"],
    ["-c", "from smallfiles import formats"],
    ["-c", "from pysquashfs import SquashFS"],
    ["-c", "from helpers import show, start"],
    ["-c", "from exercises.checks import check"],
]


@functools.cache
def old_pythons():
    """Return one Python of each version from 3.6 to 3.10 that is found here and runs; there may be none."""
    found = []
    for minor in range(6, 11):
        installed = glob.glob(f"{Path.home()}/.pyenv/versions/3.{minor}.*/bin/python")
        found += installed[:1] or filter(None, [shutil.which(f"python3.{minor}")])
    return [path for path in found if subprocess.run([path, "-c", ""], capture_output=True).returncode == 0]


@pytest.mark.parametrize("path", STARTS + TOOLS)
def test_an_old_python_can_parse_what_it_runs_first(path):
    tree = ast.parse((ROOT / path).read_text(), feature_version=(3, 6))
    first = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    assert not any(alias.name == "annotations" for node in first for alias in node.names)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_an_old_python_is_told_which_version_is_needed(words):
    """As if this were Python 3.9; and with each old Python that is here."""
    pretend = "import sys, runpy; sys.version_info = (3, 9, 18, 'final', 0); "
    if words[0] == "-c":
        pretended = ["-c", pretend + words[1]]
    else:
        rest = words[1:] if words[0] == "-m" else words
        run = "run_module" if words[0] == "-m" else "run_path"
        pretend += "sys.path.insert(0, 'tools'); " * words[0].startswith("tools/")
        pretended = ["-c", f"{pretend}sys.argv = {rest}; runpy.{run}({rest[0]!r}, run_name='__main__')"]
    for program, line in ((sys.executable, pretended), *((each, words) for each in old_pythons())):
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run([program, *line], cwd=ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode == 1, f"{program}: {done.stdout}{done.stderr}"
        assert done.stderr.startswith("error: this is Python 3.") and "Python 3.11 or newer" in done.stderr
        assert "Traceback" not in done.stderr and "bug" not in done.stderr
