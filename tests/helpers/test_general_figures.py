"""Figures that cells fill by hand: what is drawn is what was given, and axes of rates start at zero."""

import pytest

from helpers import figures


def title(figure):
    return figure.get_suptitle().replace("\n", " ")


def test_a_line_goes_through_medians_and_each_run_is_a_dot():
    series = {"files": {1: [10.0, 30.0, 20.0], 2: [40.0, 50.0, 60.0]}, "shards": {1: [5.0], 2: [6.0]}}
    figure = figures.lines(series, title="Found", x="ranks", y="samples per second", ideal={1: 20, 2: 40})
    (axes,) = figure.axes
    drawn = {line.get_label(): list(line.get_ydata()) for line in axes.lines}
    assert drawn["files"] == [20.0, 50.0] and drawn["ideal"] == [20, 40]
    assert sum(len(line.get_xdata()) for line in axes.lines if line.get_marker() == ".") == 8
    assert axes.get_ylim()[0] == 0 and axes.get_ylim()[1] > 60 and title(figure) == "Found"


def test_a_stacked_bar_is_as_long_as_its_parts():
    rows = {"slow": {"read": 10.0, "decode": 30.0}, "quick": {"read": 1.0, "decode": 9.0}}
    figure = figures.stacked(rows, title="Found", x="milliseconds per batch", runs={"slow": [38.0, 50.0]})
    (axes,) = figure.axes
    assert sorted(patch.get_x() + patch.get_width() for patch in axes.patches) == [1.0, 10.0, 10.0, 40.0]
    assert axes.get_xlim()[0] == 0 and axes.get_xlim()[1] > 50
    assert "  40" in [text.get_text() for text in axes.texts]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["read", "decode"]


def test_levels_hold_until_they_change_and_the_background_has_a_name():
    figure = figures.levels(
        {"ring": [(0.0, 4), (1.0, 2)]}, title="Found", x="s", y="batches", shaded=[(0.2, 0.5)], what="stall"
    )
    (axes,) = figure.axes
    assert axes.lines[0].get_drawstyle() == "steps-post" and axes.get_ylim()[0] == 0
    assert {text.get_text() for text in axes.get_legend().get_texts()} == {"stall", "ring"}


def test_spans_start_and_stop_when_they_did():
    rows = {"rank 0": [(0.0, 2.0, "copies")], "rank 1": [(0.5, 2.0, "waits")]}
    (axes,) = figures.spans(rows, title="Found", x="seconds").axes
    assert {(p.get_x(), p.get_width()) for p in axes.patches} == {(0.0, 2.0), (0.5, 1.5)}


@pytest.mark.parametrize(("axis", "limit"), [("x", "get_xlim"), ("y", "get_ylim")])
def test_a_guess_is_drawn_even_far_off(axis, limit):
    figure = figures.lines({"a": {1: [1.0], 2: [2.0]}}, title="Found", x="x", y="y")
    guessed = figures.guessed(figure, 50, axis=axis)
    assert guessed is figure and getattr(figure.axes[0], limit)()[1] > 50
    assert "your guess" in figure.axes[0].texts[0].get_text()
