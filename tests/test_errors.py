import inspect
import pickle
import re
import shlex
from pathlib import Path

import pytest

from smallfiles import errors
from smallfiles.errors import MissingPackageError, SmallfilesError, first_few, install_line

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, SmallfilesError)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_is_one_sentence_and_the_next_step_and_survives_the_way_from_a_worker(kind):
    error = kind("x.tar is empty.", expected="a tar file", next_step="Pack it again.")
    assert str(error) == "x.tar is empty; expected a tar file. Pack it again."
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind and str(copy) == str(error) and vars(copy) == vars(error)


def test_the_tree_at_the_top_of_the_module_names_every_kind():
    assert [kind.__name__ for kind in KINDS if kind.__name__ not in errors.__doc__] == []


def test_a_missing_package_comes_with_the_line_that_installs_it():
    error = MissingPackageError.of("zstandard", "compressed shards")
    assert "zstandard" in str(error)
    *run, lock, package = shlex.split(error.next_step)
    assert (
        run == ["Run:", "python", "-m", "pip", "install", "-c"]
        and Path(lock).name == "requirements.lock"
        and Path(lock).is_file()
    )
    assert re.fullmatch(r"zstandard>=[\d.]+", package)


def test_outside_a_clone_the_line_names_the_packages_of_the_extra_and_of_those_that_it_holds(monkeypatch):
    monkeypatch.setattr(errors, "_LOCK", Path("no clone"))
    line = install_line("formats")
    assert re.fullmatch(r"python -m pip install( '[\w-]+>=[\d.]+'){4}", line), line
    assert "'h5py>=" in line and "'zstandard>=" in line
    assert """'pylibjxl>=0.4; platform_machine == "x86_64"'""" in install_line("train")
    assert MissingPackageError.of("yours", "it").next_step == "Run: python -m pip install yours"


def test_the_first_few_of_many_are_named_with_the_rest_counted():
    assert first_few("abcdefgh", 1284) == "a, b, c, d, e and 1,279 more"
    assert first_few("abc", 3, 2) == "a, b and 1 more"
    assert first_few(["a"], 1) == "a" and first_few([], 0) == ""
