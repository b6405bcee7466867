"""The figures of notebook 07: titles are computed, the crossing is a range, axes start at zero."""

import dataclasses

import pytest

from helpers.experiments.nb07.epochs import FILES, PACKED, STAGED, Epochs, bound_table
from helpers.experiments.nb07.together import Rank, Together
from helpers.figures import as_svg, staging

EPOCHS = Epochs(
    files_s=(8.0, 10.0, 9.0),
    packed_s=(4.0, 4.0, 4.0),
    staged_s=(1.0, 2.0, 1.0),
    copy_s=(6.0, 6.0, 6.0),
    images=400,
    bytes=40_000_000,
    storage="100 MB/s",
)
RANKS = Together((Rank(0, 0.0, 0.5, True), Rank(1, 0.1, 0.6, False)), 40_000_000, 40_000_000, 0, "100 MB/s")


def title(figure):
    return figure.get_suptitle().replace("\n", " ")


def test_the_crossing_is_taken_round_by_round_and_has_a_spread():
    found = EPOCHS.crossing()
    assert (found.minimum, found.median, found.maximum) == (2.0, 2.0, 3.0)
    assert EPOCHS.crossing(FILES).median == pytest.approx(0.75)


def test_totals_begin_with_the_copy_only_where_there_is_one():
    assert EPOCHS.totals(STAGED, 2) == [8.0, 10.0, 8.0]
    assert EPOCHS.totals(PACKED, 2) == [8.0, 8.0, 8.0]


def test_the_figure_of_totals_starts_at_zero_and_shows_more_than_the_crossing():
    figure = staging.totals(EPOCHS)
    (axes,) = figure.axes
    assert axes.get_ylim()[0] == axes.get_xlim()[0] == 0 and axes.get_xlim()[1] == 5
    assert title(figure) == EPOCHS.finding == "Staging has paid after 2.00 epochs (2.00 to 2.50): in epoch 3"
    curves = [line for line in axes.lines if not line.get_label().startswith("_")]
    assert len({line.get_linestyle() for line in curves}) == 3
    assert any("has paid" in text.get_text() for text in axes.texts)


def test_a_copy_that_never_pays_is_told_and_not_marked():
    never = dataclasses.replace(EPOCHS, staged_s=(5.0, 5.0, 3.0))
    assert never.crossing() is None and "never pays" in never.finding
    (axes,) = staging.totals(never).axes
    assert not axes.texts


def test_a_bound_of_the_training_moves_the_crossing_until_it_is_gone():
    lines = bound_table(EPOCHS, (0.0, 0.75, 1.0)).splitlines()
    assert [line.split("staging ")[1] for line in lines] == [
        "has paid in epoch 2",
        "has paid in epoch 6",
        "never pays",
    ]


def test_the_timeline_tells_the_one_who_copied_from_those_who_waited():
    figure = staging.timeline(RANKS)
    (axes,) = figure.axes
    assert title(figure).startswith("Rank 0 of 2 copied, the others waited")
    assert axes.get_xlim()[0] == 0 and {bar.get_hatch() for bar in axes.patches} == {"", "//"}
    assert "rank 1 waited for 0.50 s" in RANKS.alt_text
    assert "would be 80 MB" in RANKS.traffic.replace("80.0", "80")


def test_two_copies_are_not_told_as_one():
    both = dataclasses.replace(RANKS, ranks=tuple(dataclasses.replace(r, copied=True) for r in RANKS.ranks))
    assert both.finding == "2 of 2 processes copied"


@pytest.mark.parametrize(
    ("text", "number"), [(EPOCHS.alt_text, "packed file 4.00 s"), (RANKS.alt_text, "0.60")]
)
def test_alt_texts_hold_the_numbers(text, number):
    assert number in text


def test_equal_measurements_give_equal_figures():
    assert as_svg(staging.totals(EPOCHS)) == as_svg(staging.totals(EPOCHS))
