"""Forgetting cached files: one that a quick disk brought back for the question is no failure."""

import pytest

from helpers.bench import cache
from helpers.errors import ResourceError


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(bytes(100_000))
    return path


def test_a_file_that_the_question_itself_brought_back_is_forgotten_again(file, monkeypatch):
    answers = iter([True, False])
    monkeypatch.setattr(cache, "is_cached", lambda path: next(answers))
    cache.drop([file])
    assert next(answers, None) is None


def test_a_file_that_stays_whatever_we_do_is_named(file, monkeypatch):
    monkeypatch.setattr(cache, "is_cached", lambda path: True)
    with pytest.raises(ResourceError, match="x stays in memory"):
        cache.drop([file])
