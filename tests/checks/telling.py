"""What the tests of the checks ask of a verdict."""

import pytest


def assert_told(verdict, diagnosis):
    """It is a ✗ with this diagnosis, and no traceback."""
    assert verdict.state == "not yet", str(verdict)
    assert diagnosis in verdict.because, str(verdict)
    assert "Traceback" not in str(verdict)


def judged(check, wrong, right):
    """The tests of a task: each wrong answer gets its own diagnosis, every right way passes.

    Args:
        check: Judges an answer.
        wrong: By name: an answer and words of its diagnosis.
        right: Answers.
    """

    class Judged:
        @pytest.mark.parametrize("name", wrong)
        def test_a_wrong_answer_gets_its_diagnosis(self, name):
            answer, diagnosis = wrong[name]
            assert_told(check(answer), diagnosis)

        @pytest.mark.parametrize("answer", right)
        def test_every_right_way_passes(self, answer):
            verdict = check(answer)
            assert verdict, str(verdict)

    return Judged


def raises_stub(*arguments):
    """A stub as the exercises have them."""
    raise NotImplementedError
