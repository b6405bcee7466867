"""Every solution runs from top to bottom and passes its checks."""

from courses import assert_clean, each, kept
from running import execute


@each("solutions")
def test_a_solution_passes_its_checks(path, participant, forked, monkeypatch):
    monkeypatch.setenv("COURSE_STRICT", "1")
    executed = execute(path, participant, kept(path))
    assert_clean(executed)
    assert "✓" in executed.text and "✗" not in executed.text and "○" not in executed.text
