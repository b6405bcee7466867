"""What the tests of the checks ask of a verdict."""

import itertools

import pytest

from exercises.checks.attempt import _fits, _quietly


def assert_told(verdict, diagnosis):
    """It is a ✗ with this diagnosis, and no traceback."""
    assert verdict.state == "not yet", str(verdict)
    assert diagnosis in verdict.because, str(verdict)
    assert "Traceback" not in str(verdict)


def known_mistakes(check, mistakes, cases, of=lambda mistake: mistake):
    """The tests of a table of mistakes: each is a wrong answer of its own, and gets its diagnosis.

    Args:
        check: Judges an answer.
        mistakes: What each gives, and its diagnosis.
        cases: The arguments with which the check compares; two mistakes must differ in one of them.
        of: From a mistake to an answer that makes it.
    """

    class Known:
        @pytest.mark.parametrize(("mistake", "diagnosis"), mistakes)
        def test_a_known_mistake_gets_its_diagnosis(self, mistake, diagnosis):
            assert_told(check(of(mistake)), diagnosis)

        def test_any_two_mistakes_can_be_told_apart(self):
            for (one, of_one), (other, of_other) in itertools.combinations(mistakes, 2):
                alike = all(_fits(_quietly(one, case), _quietly(other, case)) for case in cases)
                assert of_one == of_other or not alike, f"both give the same: {of_one}; {of_other}"

    return Known


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
