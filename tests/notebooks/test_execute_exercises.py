"""Every exercise runs from top to bottom before it is solved."""

from courses import assert_clean, each, kept
from running import execute


@each("exercises")
def test_an_unsolved_exercise_runs_to_its_end_and_says_what_to_do(path, participant, forked):
    executed = execute(path, participant, kept(path))
    assert_clean(executed)
    assert all(cell.execution_count for cell in executed.cells if cell.cell_type == "code")
    assert "○" in executed.text and "Replace the stub" in executed.text
    assert "✓" not in executed.text
