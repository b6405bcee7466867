"""Figures of notebook 08 show what was measured, from zero, with the finding as title."""

import numpy as np
import pytest

from helpers.experiments.nb08.clock import STAGES
from helpers.experiments.nb08.stages import Followed, Following
from helpers.experiments.nb08.stalls import ENOUGH, TOO_SLOW, Run, Stalls
from helpers.experiments.nb08.workers import MODES, Throughput
from helpers.figures import feeding


@pytest.fixture
def followed():
    def way(name, factor):
        runs = [
            {stage: factor * (n + 1) * (1 + k) for n, stage in enumerate(STAGES)} for k in (0.0, 0.1, 0.3)
        ]
        return Followed(name, tuple(runs), 100, 0.0)

    return Following((way("slow", 0.01), way("quick", 0.002)), 16)


def title(figure):
    return figure.get_suptitle().replace("\n", " ")


def test_a_bar_is_as_long_as_its_stages_and_has_a_dot_a_batch(followed):
    figure = feeding.stages(followed)
    (axes,) = figure.axes
    assert title(figure) == followed.finding
    ends = [patch.get_x() + patch.get_width() for patch in axes.patches]
    assert max(ends) == pytest.approx(1e3 * followed.ways[0].total_s)
    assert axes.get_xlim()[0] == 0 and axes.get_xlim()[1] > max(ends)
    assert [len(line.get_xdata()) for line in axes.lines] == [3, 3]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == list(STAGES)


def test_throughput_starts_at_zero_and_marks_the_cpus():
    runs = {(mode, count): (100.0 * count, 110.0 * count) for mode in MODES for count in (1, 2, 4)}
    found = Throughput((90.0, 95.0), runs, 2, 16)
    figure = feeding.workers(found)
    (axes,) = figure.axes
    assert axes.get_ylim()[0] == 0 and axes.get_ylim()[1] > 440
    assert title(figure) == found.finding
    assert "per second" in axes.get_ylabel()
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert sorted(labels) == sorted(["CPUs of this kernel", *MODES])


def test_the_level_of_a_ring_is_drawn_beside_the_waiting():
    levels = ((0.0, 16), (0.5, 4), (1.0, 9))
    runs = [
        Run(name, supply, share, levels if name.startswith("ring") else (), still)
        for supply, still in ((ENOUGH, ((0.2, 0.7),)), (TOO_SLOW, ()))
        for name, share in (("2 batches ahead", 0.4), ("ring of 16 slots", 0.1))
    ]
    found = Stalls(tuple(runs))
    figure = feeding.stalls(found)
    left, right = figure.axes
    assert sorted(round(patch.get_width()) for patch in left.patches) == [10, 10, 40, 40]
    assert left.get_xlim()[0] == 0 and right.get_ylim()[0] == 0
    labels = [text.get_text() for text in right.get_legend().get_texts()]
    assert labels == ["storage stands still", f"supply {ENOUGH}", f"supply {TOO_SLOW}"]


def test_every_row_of_views_begins_with_the_picture():
    picture, view = np.zeros((30, 40, 3), np.uint8), np.zeros((8, 8, 3), np.uint8)
    figure = feeding.views({"one": [view] * 2, "two": [view] * 3}, picture)
    assert len(figure.axes) == 8
    shapes = [axes.images[0].get_array().shape for axes in figure.axes if axes.images]
    assert shapes.count((30, 40, 3)) == 2 and shapes.count((8, 8, 3)) == 5
