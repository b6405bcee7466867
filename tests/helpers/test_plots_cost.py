"""The figures of notebook 01: titles are computed, axes have units, rates start at zero."""

import numpy as np
import pytest

from helpers.experiments.nb01 import InFlight, Ladder, Operations, TreeCount
from helpers.experiments.nb01.ladder import Rung
from helpers.figures import as_svg, cost


def tree(*sizes):
    return TreeCount(len(sizes), 1, np.array(sizes), sum(sizes) + 5000, 4096, "ext4")


TREES = {"the set": tree(1 << 19, 1 << 20), "others": tree(1 << 18)}
TIMES = Operations(
    {name: np.full(20, 1e-5) for name in ("stat", "open", "read", "close")}, np.full(20, 1e-3), 1e5, "ext4"
)
LADDER = Ladder(
    tuple(
        Rung(size, layout, cache, (size * 10.0, size * 11.0))
        for size in (1000, 4000)
        for layout in ("many files", "one file")
        for cache in ("warm", "cold")
    ),
    "ext4",
)
SERVER = InFlight("model", {1: (10.0, 11.0), 2: (20.0, 21.0)})


def title(figure):
    return figure.get_suptitle().replace("\n", " ")


def test_the_title_of_space_is_computed():
    assert title(cost.space(TREES)) == (
        "In blocks of 1 MiB the set would take 1.3 times its bytes, others 4.0 times"
    )


def test_blocks_are_labelled_in_binary_units():
    assert [cost._binary_text(n) for n in (512, 4096, 1 << 24, 1 << 31)] == [
        "512 B",
        "4 KiB",
        "16 MiB",
        "2 GiB",
    ]


def test_latencies_have_a_panel_for_each_operation_and_one_axis_of_time():
    figure = cost.latencies(TIMES)
    assert [axes.get_ylabel() for axes in figure.axes] == [
        "stat",
        "open",
        "read, warm",
        "read, cold",
        "close",
    ]
    assert figure.axes[-1].get_xscale() == "log" and "100 times as long" in title(figure)


def test_throughput_by_size_is_logarithmic_both_ways_and_tells_curves_apart_without_colour():
    figure = cost.throughput_by_size(LADDER)
    (axes,) = figure.axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log") and title(figure) == LADDER.finding
    curves = [line for line in axes.lines if not line.get_label().startswith("_")]
    looks = {(line.get_linestyle(), line.get_marker()) for line in curves}
    assert len(looks) == len(curves) == 4


def test_rates_in_flight_start_at_zero():
    figure = cost.in_flight(SERVER, SERVER)
    assert all(axes.get_ylim()[0] == 0 for axes in figure.axes)
    assert "2 opens in flight are 2.0 times" in title(figure)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        (cost.space_alt_text(TREES), "16 MiB"),
        (cost.in_flight_alt_text(SERVER), "2 in flight 20"),
        (TIMES.alt_text, "read, cold 1.0 ms"),
        (LADDER.alt_text, "one file, cold: 1 kB"),
    ],
)
def test_alt_texts_hold_the_numbers(text, numbers):
    assert numbers in text


def test_equal_measurements_give_equal_figures():
    assert as_svg(cost.space(TREES)) == as_svg(cost.space(TREES))
