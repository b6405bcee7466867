"""Which notebooks, exercises and solutions there are, and what holds for all that are executed."""

from pathlib import Path

import pytest
from lint_notebooks import pages

ROOT = Path(__file__).resolve().parents[2]
BY_FOLDER = {
    folder: [path for path in pages(ROOT) if path.parent.name == folder]
    for folder in ("notebooks", "exercises", "solutions")
}


def each(folder):
    return pytest.mark.parametrize("path", BY_FOLDER[folder], ids=lambda path: path.stem)


def kept(path):
    return ROOT / "test_output" / "notebooks" / path.parent.name / path.name


def assert_clean(executed):
    """No error that was not announced, no warning, no traceback."""
    for cell in executed.cells:
        errors = [o for o in cell.get("outputs", ()) if o["output_type"] == "error"]
        assert not errors or "raises-exception" in cell.metadata.get("tags", ())
    assert "Warning" not in executed.stderr and "Traceback" not in executed.stderr, executed.stderr[-2000:]
