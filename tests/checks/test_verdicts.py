"""The framework of the checks: every way an answer can misbehave becomes a verdict."""

import signal
import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from exercises.checks import CheckFailed, Verdict, check, diagnose, shown
from smallfiles.errors import FormatError


@check(buys="It adds up.", limit_s=1, errors={KeyError: "there is no such key"})
def total(attempt):
    """Sum of a list."""
    for sizes in ([], [1], [2, 3]):
        got = attempt(sizes)
        because = diagnose(got, (len(sizes), "that counts"), otherwise="not the sum")
        attempt.expect(sum(sizes), got, because=because)


def stub_that_raises(sizes):
    """Doc."""
    raise NotImplementedError


def stub_of_dots(sizes): ...


@pytest.mark.parametrize("answer", [None, ..., stub_that_raises, stub_of_dots, lambda sizes: None])
def test_what_is_not_started_is_a_circle_and_says_what_to_do(answer):
    verdict = total(answer)
    assert verdict.state == "not started" and not verdict
    assert str(verdict).startswith("○ total: not started\n") and "Replace the stub" in str(verdict)


def test_a_right_answer_passes_and_says_what_it_buys():
    verdict = total(sum)
    assert verdict
    assert str(verdict) == "✓ total: passed\n  It adds up."


def test_the_first_wrong_case_is_told_in_four_parts():
    told = {"we tried": "len([2, 3])", "got": "2", "expected": "5", "because": "that counts"}
    assert total(len).parts == tuple(told.items())


def printing(sizes):
    print(sum(sizes))


def looping(sizes):
    while True:
        try:
            time.sleep(0.01)
        except Exception:
            pass


def swallowing(sizes):
    while True:
        try:
            time.sleep(0.01)
        except:  # noqa: E722
            return -1


@pytest.mark.parametrize(
    ("answer", "part", "said"),
    [
        (printing, "because", "replace print(…) by return"),
        (lambda sizes: [].append(sum(sizes)), "because", "ends without return"),
        (lambda sizes: 1 / len(sizes), "got", "ZeroDivisionError: division by zero in line"),
        (lambda sizes: 1 / len(sizes), "got", "1 / len(sizes)"),
        (lambda sizes: {}[0], "because", "there is no such key"),
        (lambda sizes: sizes.append(0) or sum(sizes), "because", "work on a copy"),
        (looping, "got", "nothing in 1 s; it was in line"),
        (looping, "because", "never ends"),
        (swallowing, "got", "-1"),
        (lambda sizes: float(sum(sizes)), "got", "0.0"),
        (np.array, "got", "array([]"),
        (lambda: 1, "got", "TypeError"),
        (7, "got", "TypeError"),
    ],
)
def test_every_way_to_misbehave_has_its_own_words(answer, part, said):
    verdict = total(answer)
    assert verdict.state == "not yet"
    assert said in dict(verdict.parts)[part]


def test_what_an_answer_prints_still_appears(capsys):
    total(printing)
    assert capsys.readouterr().out == "0\n"


@check(buys="It reads.", limit_s=0.5)
def loads(attempt):
    """First item of a loader."""
    attempt.require(next(iter(attempt(4))) is not None, got="None", expected="a batch", because="it is empty")


class Hanging(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        time.sleep(2)


def test_a_data_loader_that_hangs_is_told(recwarn):
    verdict = loads(lambda n: torch.utils.data.DataLoader(Hanging(), num_workers=1))
    assert "nothing in 0.5 s" in str(verdict) and "DataLoader" in verdict.because


@check(buys="")
def refuses(attempt):
    """A check that meets a failure of the package."""
    raise FormatError("x.arrow is cut off", expected="a whole file", next_step="Write it again")


def test_a_sentence_of_the_package_becomes_the_diagnosis():
    parts = dict(refuses(sum).parts)
    assert parts["got"] == "x.arrow is cut off" and parts["because"] == "Write it again."
    assert parts["expected"] == "a whole file"


@check(buys="")
def trips(attempt):
    """A check that trips over an odd answer."""
    attempt.answer.no_such_attribute  # noqa: B018


def test_a_check_that_trips_over_an_odd_answer_gives_no_traceback():
    assert "AttributeError" in str(trips(sum)) and "signature in the task" in trips(sum).because


@pytest.mark.parametrize("answer", [None, len, looping])
def test_strict_mode_raises_whatever_is_not_solved(answer, monkeypatch):
    monkeypatch.setenv("COURSE_STRICT", "1")
    with pytest.raises(CheckFailed, match="total: not"):
        total(answer)
    assert total(sum)


def test_the_alarm_of_others_goes_on_after_a_check():
    rung = []
    before = signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
    others = signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        total(sum)
        time.sleep(0.2)
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *others)
    assert rung == [1]


def test_outside_the_main_thread_there_is_no_limit_but_no_failure_either():
    verdicts = []
    thread = threading.Thread(target=lambda: verdicts.append(total(sum)))
    thread.start()
    thread.join()
    assert verdicts[0]


@settings(max_examples=30)
@given(st.recursive(st.none() | st.text() | st.binary() | st.integers(), st.lists, max_leaves=50))
def test_a_shown_value_is_one_short_line(value):
    assert "\n" not in shown(value) and len(shown(value)) <= 300


def test_a_value_that_cannot_be_shown_is_named_by_its_type():
    class Broken:
        def __repr__(self):
            raise RuntimeError

    assert shown(Broken()).startswith("<Broken")


def test_html_is_escaped_and_tells_the_state_in_words():
    verdict = Verdict("f", "not yet", (("we tried", "f('<script>')"), ("got", "1"), ("", "plain & simple")))
    page = verdict._repr_html_()
    assert "<script>" not in page and "&lt;script&gt;" in page and "plain &amp; simple" in page
    assert "✗ f: not yet" in page and 'role="status"' in page


def test_the_three_verdicts_differ_without_colour():
    pages = {s: Verdict("f", s, ())._repr_html_() for s in ("not started", "not yet", "passed")}
    borders = {page.split("border-left: ")[1].split(" currentColor")[0] for page in pages.values()}
    assert len(borders) == 3 and not any("#" in page or "rgb" in page for page in pages.values())
