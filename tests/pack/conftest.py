"""A small tree of valid-looking JPEG files, and its source."""

import pytest
from packing import make_tree

from smallfiles import sources


@pytest.fixture
def tree(tmp_path):
    return make_tree(tmp_path / "tree", 40)


@pytest.fixture
def source(tree):
    return sources.load(tree)


@pytest.fixture
def leftovers():
    """Names in a folder that no user put there: what an unfinished run left."""

    def of(folder):
        return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))

    return of
