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
        check: Judges an answer; or the name of a fixture that does.
        wrong: Answers, each with words of its diagnosis.
        right: Answers.
    """

    class Judged:
        @pytest.fixture
        def judge(self, request):
            return request.getfixturevalue(check) if isinstance(check, str) else check

        @pytest.mark.parametrize(("answer", "diagnosis"), wrong, ids=[words for _, words in wrong])
        def test_a_wrong_answer_gets_its_diagnosis(self, judge, answer, diagnosis):
            assert_told(judge(answer), diagnosis)

        @pytest.mark.parametrize("answer", right)
        def test_every_right_way_passes(self, judge, answer):
            verdict = judge(answer)
            assert verdict, str(verdict)

    return Judged
