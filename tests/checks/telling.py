"""What the tests of the checks ask of a verdict."""

import itertools

import pytest


def assert_told(verdict, diagnosis):
    """It is a ✗ with this diagnosis, and no traceback."""
    assert verdict.state == "not yet", str(verdict)
    assert diagnosis in verdict.because, str(verdict)
    assert "Traceback" not in str(verdict)


def assert_told_apart(mistakes, cases):
    """Any two mistakes give another result in at least one case, so that an answer proves one of them."""
    results = [(text, [_result(mistake, case) for case in cases]) for mistake, text in mistakes]
    for (one, of_one), (other, of_other) in itertools.combinations(results, 2):
        assert one == other or of_one != of_other, f"both give the same: {one}; {other}"


def _result(mistake, case):
    try:
        found = mistake(*case)
    except ArithmeticError:
        return None
    return float(f"{found:.4g}") if isinstance(found, float) else found


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
