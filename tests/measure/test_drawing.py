"""Figures: what they claim, what they refuse, what they leave behind."""

import dataclasses
import xml.etree.ElementTree as ET

import pytest

from smallfiles.errors import UsageError
from smallfiles.measure import drawing as plots
from smallfiles.measure.record import Record


def record(name, rates, **changes):
    base = Record(
        what="random reads",
        name=name,
        format=name,
        rates_per_s=tuple(rates),
        samples=100,
        bytes=10_000,
        seconds=0.1,
        filesystem="ext4",
        cache="warm",
        touched="all",
        set_samples=100,
        set_bytes=10_000,
        machine={"cpu": "one"},
    )
    return dataclasses.replace(base, **changes)


PLAIN = record("plain files", [100, 104, 98])
FAST = record("arrow", [310, 300, 290])
ALSO_FAST = record("tar", [305, 308, 295])
SAME = record("hdf5", [103, 97, 101])


def test_the_title_names_the_best_and_by_how_much():
    assert plots.finding([PLAIN, FAST, SAME]) == (
        "Random reads, warm cache: arrow is 3.0 times as fast as plain files"
    )


def test_the_title_names_all_that_cannot_be_told_from_the_best():
    assert "arrow and tar are" in plots.finding([PLAIN, FAST, ALSO_FAST])


def test_overlapping_spreads_are_no_difference():
    assert plots.finding([PLAIN, SAME]).endswith("no clear difference between hdf5 and plain files")


def test_a_reference_that_wins_is_said_to_win():
    assert plots.finding([FAST, PLAIN]).endswith("nothing is faster than arrow")


def test_the_reference_can_be_chosen_by_name():
    assert plots.finding([PLAIN, FAST], "arrow").endswith("nothing is faster than arrow")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cache", "cold"),
        ("filesystem", "lustre"),
        ("workers", 2),
        ("batch", 64),
        ("set_bytes", 1),
        ("machine", {"cpu": "another"}),
        ("what", "packing"),
    ],
)
def test_records_of_other_conditions_are_refused_by_name(field, value):
    with pytest.raises(UsageError, match=field):
        plots.throughput([PLAIN, record("arrow", [1, 2, 3], **{field: value})])


def test_no_records_are_refused():
    with pytest.raises(UsageError, match="nothing to draw"):
        plots.throughput([])


def test_axes_start_at_zero_and_every_run_is_a_dot():
    axes = plots.throughput([PLAIN, FAST]).axes[0]
    assert axes.get_xlim()[0] == 0
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    assert [len(line.get_xdata()) for line in dots] == [3, 3]
    assert "samples per second" in axes.get_xlabel()


def test_the_title_stands_in_the_figure():
    (panel,) = plots.throughput([PLAIN, FAST]).subfigs
    assert panel.get_suptitle().replace("\n", " ") == plots.finding([PLAIN, FAST])


def test_long_titles_stay_inside_the_figure():
    long = [dataclasses.replace(PLAIN, name="concatenation")] + [
        record(f"a method with a long name {n}", [300, 301, 302]) for n in range(4)
    ]
    figure = plots.throughput(long)
    figure.draw_without_rendering()
    title = figure.subfigs[0]._suptitle.get_window_extent()
    assert title.x1 <= figure.bbox.x1
    assert title.y0 >= figure.axes[0].get_window_extent().y1


def test_a_name_has_one_colour_in_all_panels():
    cold = [dataclasses.replace(r, cache="cold") for r in (PLAIN, ALSO_FAST, FAST)]
    figure = plots.throughput([PLAIN, FAST, ALSO_FAST], cold)
    colours = [
        dict(
            zip(
                [t.get_text() for t in axes.get_yticklabels()],
                [b.get_facecolor() for b in axes.patches],
                strict=True,
            )
        )
        for axes in figure.axes
    ]
    assert colours[0] == colours[1]


def test_colours_are_the_palette_for_colour_blind_eyes():
    assert len(set(plots.COLOURS)) == len(plots.COLOURS)
    assert plots.REFERENCE_COLOUR not in plots.COLOURS


def test_alt_text_says_finding_and_numbers():
    text = plots.alt_text([PLAIN, FAST])
    assert plots.finding([PLAIN, FAST]) in text
    assert "arrow 300" in text


def test_saving_twice_gives_the_same_bytes(tmp_path):
    written = [plots.save(plots.throughput([PLAIN, FAST]), tmp_path / name) for name in ("a", "b")]
    for one, other in zip(*written, strict=True):
        assert one.read_bytes() == other.read_bytes()
    assert ET.parse(written[0][0]).getroot().tag.endswith("svg")
    assert written[0][1].read_bytes().startswith(b"\x89PNG")
