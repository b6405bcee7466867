"""Counting the files behind an import."""

import pytest

from helpers.imports import files_opened_by
from smallfiles.errors import UsageError


def test_a_package_of_ten_modules_opens_ten_files_more_than_an_empty_one(tmp_path, monkeypatch):
    for name, modules in (("empty_one", 0), ("full_one", 10)):
        (tmp_path / name).mkdir()
        lines = [f"import {name}.m{n}\n" for n in range(modules)]
        (tmp_path / name / "__init__.py").write_text("".join(lines))
        for n in range(modules):
            (tmp_path / name / f"m{n}.py").write_text("x = 1\n" * 10)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    empty, full = files_opened_by("empty_one"), files_opened_by("full_one")
    assert full.files - empty.files == 10
    assert full.bytes - empty.bytes >= 10 * 60


def test_a_larger_package_opens_more():
    assert files_opened_by("json").files < files_opened_by("numpy").files


def test_a_module_that_prints_when_imported_is_counted_all_the_same(tmp_path, monkeypatch):
    (tmp_path / "loud.py").write_text("print('hello')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert files_opened_by("loud").files > 0


def test_a_module_that_is_not_there_is_a_sentence():
    with pytest.raises(UsageError, match="no_such_module cannot be imported"):
        files_opened_by("no_such_module")
