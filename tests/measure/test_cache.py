"""Forgetting cached files: one that another program held for a moment is no failure."""

import pytest

from smallfiles.errors import ResourceError
from smallfiles.measure import cache


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(bytes(100_000))
    return path


def test_a_file_that_was_held_for_a_moment_is_forgotten_again(file, monkeypatch):
    answers = iter([True, True, False])
    monkeypatch.setattr(cache, "is_cached", lambda path: next(answers))
    cache.drop([file])
    assert next(answers, None) is None


def test_a_file_that_stays_whatever_we_do_is_named(file, monkeypatch):
    monkeypatch.setattr(cache, "is_cached", lambda path: True)
    with pytest.raises(ResourceError, match="x stays in memory"):
        cache.drop([file])
