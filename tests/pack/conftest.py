"""A small tree of valid-looking JPEG files, and its source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from packing import make_tree

from smallfiles import sources
from smallfiles.sources import Source


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "tree", 40)


@pytest.fixture
def source(tree: Path) -> Source:
    return sources.load(tree)


@pytest.fixture
def leftovers() -> Callable[[Path], list[str]]:
    """Names in a folder that no user put there: what an unfinished run left."""

    def of(folder: Path) -> list[str]:
        return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))

    return of
