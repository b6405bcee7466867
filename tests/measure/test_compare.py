"""`measure.compare`: what a notebook cell calls to time functions side by side."""

from functools import partial

import pytest

from helpers import figures
from smallfiles import measure
from smallfiles.errors import UsageError
from smallfiles.measure.protocol import Comparison, Outcome


@pytest.fixture
def slept(monkeypatch):
    """Makes functions that take so long, by a clock that nothing else moves."""
    now = [0.0]
    monkeypatch.setattr("smallfiles.measure.protocol.perf_counter", lambda: now[0])

    def made(seconds, count=None):
        def run():
            now[0] += seconds
            return count

        return run

    return made


def test_the_faster_function_is_told_by_how_much_and_drawn_with_each_run(slept):
    result = measure.compare({"slow": slept(0.75, 10), "quick": slept(0.25, 10)}, rounds=3, unit="images")
    assert result.times("quick").median == pytest.approx(3)
    assert result.spread("slow").median == pytest.approx(10 / 0.75)
    assert result.seconds("slow") == 0.75
    assert "quick is 3.0 times as fast as slow" in result.finding
    assert "images/s" in str(result)
    assert len(result.runs["slow"]) == 3 and result.machine["cpus_usable"]
    figure = figures.bars(result).figure
    assert "warm: each ran once before" in figure.get_supxlabel()
    (axes,) = figure.axes
    assert axes.get_xlim()[0] == 0 and "images per second" in axes.get_xlabel()
    assert [label.get_text() for label in axes.get_yticklabels()] == ["slow", "quick"]
    assert sum(len(line.get_xdata()) for line in axes.lines if line.get_marker() == "o") == 6
    assert "as fast as slow" in figure.get_suptitle()


def test_functions_that_count_nothing_are_compared_by_calls(slept):
    result = measure.compare({"a": slept(0.25), "b": slept(0.25)}, rounds=3)
    assert result.unit == "" and result.spread("a").median == 4
    assert "no clear difference" in result.finding


def test_what_takes_no_time_is_called_several_times_a_run(slept):
    called, quick = [], slept(2**-20)
    result = measure.compare({"quick": lambda: called.append(quick())}, rounds=2)
    assert len(called) > 100 and result.seconds("quick") == 2**-20


def test_before_each_run_something_is_done_that_is_not_timed():
    order = []
    both = {name: partial(order.append, name) for name in "ab"}
    measure.compare(both, rounds=2, before=partial(order.append, "-"))
    assert order[::2] == ["-"] * 4 and sorted(order[1::2]) == ["a", "a", "b", "b"]


def test_one_that_fails_is_left_out_in_a_sentence(slept):
    def broken():
        raise ValueError("no such codec")

    result = measure.compare({"fine": slept(0.02), "broken": broken}, rounds=2)
    assert list(result.runs) == ["fine"] and "no such codec" in result.failed["broken"]
    assert "broken  failed: ValueError: no such codec" in str(result)
    with pytest.raises(UsageError, match="no such codec"):
        measure.compare({"broken": broken}, rounds=2)


def test_a_factor_is_that_of_the_bars_and_its_spread_that_of_the_rounds():
    rates = {"a": (10, 10, 30), "b": (20, 60, 90)}  # 2, 6 and 3 times as fast, round by round
    runs = {name: tuple(Outcome(rate, 0, 1.0) for rate in found) for name, found in rates.items()}
    result = Comparison(runs, "images", {}, {}, prepared=False)
    gain = result.times("b")
    assert gain.median == result.spread("b").median / result.spread("a").median == 6
    assert (gain.minimum, gain.maximum) == (2, 6)
    assert result.finding == "b is 6.0 times as fast as a"


@pytest.mark.parametrize("bar", [True, False])
def test_progress_is_shown_unless_the_caller_shows_its_own(slept, bar, monkeypatch):
    monkeypatch.setattr("smallfiles.progress._is_terminal", lambda: True)
    bars = []
    monkeypatch.setattr("smallfiles.progress._Bar.__init__", lambda self, *what: bars.append(what))
    monkeypatch.setattr("smallfiles.progress._Bar.advance", lambda self, n=1, bytes=0: None)
    monkeypatch.setattr("smallfiles.progress._Bar.close", lambda self: None)
    measure.compare({"it": slept(0.1)}, rounds=1, bar=bar)
    assert len(bars) == bar
