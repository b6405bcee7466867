import inspect
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smallfiles import errors
from smallfiles.errors import MissingPackageError, SmallfilesError, first_few

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, SmallfilesError)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_message_is_one_sentence_and_the_next_step(kind):
    error = kind("x.tar is empty.", expected="a tar file", next_step="Pack it again.")
    assert str(error) == "x.tar is empty; expected a tar file. Pack it again."


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_survives_the_way_from_a_worker(kind):
    error = kind("got", expected="expected", next_step="Do it")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (str(copy), copy.got, copy.expected, copy.next_step) == (str(error), "got", "expected", "Do it")


def test_the_tree_at_the_top_of_the_module_names_every_kind():
    assert [kind.__name__ for kind in KINDS if kind.__name__ not in errors.__doc__] == []


def test_a_missing_package_comes_with_the_line_that_installs_it():
    error = MissingPackageError.of("zstandard", "formats", "compressed shards")
    assert "zstandard" in str(error)
    assert error.next_step == "Run: python -m pip install -c requirements.lock -e '.[formats]'"


def test_the_first_few_of_many_are_named_with_the_rest_counted():
    assert first_few("abcdefgh", 1284) == "a, b, c, d, e and 1,279 more"
    assert first_few(["a"], 1) == "a"
    assert first_few([], 0) == ""


@given(st.lists(st.text(min_size=1)), st.integers(1, 9))
def test_shown_and_counted_ones_make_up_the_total(items, limit):
    text = first_few(items, len(items), limit)
    rest = len(items) - min(limit, len(items))
    assert text.endswith(f" and {rest:,} more") == (rest > 0)
