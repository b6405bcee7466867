"""The four figures that cells call: what stands where, what they say, what they refuse."""

import base64
import re
import xml.etree.ElementTree as ET

import pytest
from matplotlib.colors import to_rgba

from helpers import figures, show
from helpers.show import Drawing
from smallfiles.errors import UsageError
from smallfiles.measure import drawing
from smallfiles.measure.drawing import GUESS_COLOUR

RUNS = {"many files": [90.0, 100.0, 140.0], "one file": [800.0, 1000.0, 1900.0]}


def bars(**options):
    return figures.bars(RUNS, "One file is quicker", x="files per second", **options)


def lines(**options):
    series = {"here": {1: [9.0, 11.0], 64: [90.0, 110.0]}, "ideal": {1: 10.0, 64: 640.0}}
    return figures.lines(series, "More help", x="opens in flight", y="files per second", **options)


def histogram(**options):
    values = {"open": [3e-6, 4e-6, 9e-6], "read": [1e-5, 2e-5, 9e-5]}
    return figures.histogram(values, "Reading takes longer", x="time (s)", **options)


def timeline(**options):
    spans = {"rank 0": [(0.0, 1.0, "copies")], "rank 1": [(0.1, 1.1, "waits"), (1.1, 2.0, "reads")]}
    return figures.timeline(spans, "One copies", **options)


ALL = pytest.mark.parametrize("draw", [bars, lines, histogram, timeline])


def texts(axes):
    return {text.get_text(): text for text in axes.texts}


def test_the_number_of_the_median_stands_at_the_end_of_its_bar():
    axes = bars().figure.axes[0]
    assert [bar.get_width() for bar in axes.patches] == [100, 1000]
    assert texts(axes)["100"].xy[0] == 100
    assert texts(axes)["1,000"].xy[0] == 1000, "not beside the farthest dot, at 1,900"


def test_each_run_is_a_dot_and_none_lies_on_its_bar_or_number():
    axes = bars().figure.axes[0]
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    assert sorted(x for line in dots for x in line.get_xdata()) == [90, 100, 140, 800, 1000, 1900]
    for line, bar in zip(dots, axes.patches, strict=True):
        assert min(line.get_ydata()) > bar.get_y() + bar.get_height()


def test_records_of_a_measurement_also_have_their_number_at_the_median():
    from tests.measure.test_drawing import FAST, PLAIN

    for figure in (drawing.throughput([PLAIN, FAST]), figures.bars([PLAIN, FAST]).figure):
        axes = figure.findobj(lambda artist: hasattr(artist, "barh"))[0]
        assert texts(axes)["300"].xy[0] == 300


def test_a_stack_is_as_long_as_the_median_of_the_whole():
    whole = {"slow": {"read": [1.0, 3.0, 2.0], "decode": [9.0, 5.0, 8.0]}}
    axes = figures.bars(whole, "Decoding", x="ms").figure.axes[0]
    assert max(bar.get_x() + bar.get_width() for bar in axes.patches) == pytest.approx(10)
    assert "10" in texts(axes)


def test_equal_wholes_have_no_number_and_the_axis_keeps_its_own():
    parts = {"a": {"once": 400}, "b": {"never": 200, "twice": 200}}
    equal, other = (
        figures.bars(rows, "T", x="samples").figure.axes[0] for rows in (parts, {**parts, "c": {"once": 300}})
    )
    assert not equal.texts and len(other.texts) == 3
    assert "400" in [label.get_text() for label in equal.get_xticklabels()]


@ALL
@pytest.mark.parametrize("guess", [None, ...])
def test_who_did_not_guess_sees_no_guess(draw, guess):
    drawn = draw(guess=guess)
    assert "guess" not in drawn.alt
    assert GUESS_COLOUR.lower() not in drawing.as_svg(drawn.figure).lower()


@ALL
def test_a_guess_is_a_line_at_its_place(draw):
    value = 0.00005 if draw is histogram else 1.5
    drawn = draw(guess=value)
    lines = [line for axes in drawn.figure.axes for line in axes.lines if line.get_color() == GUESS_COLOUR]
    assert lines and all(line.get_xdata()[0] == value for line in lines)
    assert f"your guess was {'50 µs' if draw is histogram else value}" in drawn.alt


def test_a_guess_far_outside_is_told_and_leaves_the_figure_readable():
    axes = bars(guess=1e6).figure.axes[0]
    assert axes.get_xlim()[1] < 5000
    assert "your guess: 1,000,000 ▸" in texts(axes)


def test_a_guess_by_name_marks_the_bar():
    axes = bars(guess="one file").figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["many files", "your guess ▸ one file"]
    assert "◂ your guess" in histogram(guess="read").figure.axes[1].get_title("left")
    with pytest.raises(UsageError, match="many files, one file"):
        bars(guess="no such bar")


def test_a_guess_can_be_written_as_it_was_put():
    axes = figures.bars({"all": 62.0}, "t", x="wrong", guess=31, guess_text="50% decoded").figure.axes[0]
    assert "your guess: 50% decoded" in texts(axes)


def test_the_words_at_a_guess_lie_above_the_first_of_many_bars():
    drawn = figures.bars({str(row): 9.0 for row in range(9)}, "t", x="wrong", guess=5)
    drawn.figure.draw_without_rendering()
    axes = drawn.figure.axes[0]
    words = next(text for text in axes.texts if text.get_text() == "your guess: 5")
    assert words.get_window_extent().y0 > axes.patches[0].get_window_extent().y1


def test_counts_have_whole_numbers_as_ticks():
    axes = figures.bars({"few": 2, "none": 0}, "t", x="wrong").figure.axes[0]
    assert all(float(tick).is_integer() for tick in axes.get_xticks())
    axes = figures.bars({"few": 2.5, "none": 0}, "t", x="seconds").figure.axes[0]
    assert not all(float(tick).is_integer() for tick in axes.get_xticks())


def test_a_guess_at_some_of_the_bars_is_a_line_along_these():
    rows = {"list, 1%": 19.0, "list, 25%": 40.0, "columns, 1%": 0.2, "columns, 25%": 0.2}
    drawn = figures.bars(rows, "t", x="MB", groups=("list", "columns"), guess=5, guess_of="list")
    axes = drawn.figure.axes[0]
    (line,) = [line for line in axes.lines if line.get_color() == GUESS_COLOUR]
    assert min(line.get_ydata()) < 0 and max(line.get_ydata()) == 1.5
    colours = [bar.get_facecolor() for bar in axes.patches]
    assert colours == [to_rgba(drawing.COLOURS[number]) for number in (0, 0, 1, 1)]
    assert "your guess: 5" in texts(axes)


def test_a_thin_line_leads_from_the_words_to_a_guess_at_a_later_bar():
    axes = figures.bars(
        {"one": 19.0, "two": 40.0, "three": 9.0}, "t", x="MB", guess=5, guess_of="three"
    ).figure.axes[0]
    thin, thick = sorted(
        (line for line in axes.lines if line.get_color() == GUESS_COLOUR),
        key=lambda line: line.get_linewidth(),
    )
    assert max(thin.get_ydata()) == min(thick.get_ydata()) == 1.5 and min(thin.get_ydata()) < 0


def test_a_guess_at_one_panel_stands_there_only():
    panels = histogram(guess=0.00005, guess_of="read").figure.axes
    guessed = [[line.get_color() for line in axes.lines].count(GUESS_COLOUR) for axes in panels]
    assert guessed == [0, 1] and "your guess: 50 µs" in texts(panels[1])


@ALL
def test_the_caption_tells_the_conditions_and_the_machine(draw):
    caption = draw(note="warm cache, ext4").figure.get_supxlabel()
    assert "warm cache, ext4" in caption and "CPUs" in caption


def test_the_caption_of_counts_names_no_machine():
    rows, points = {"one": 1.0, "two": 2.0}, {"a": {1: 1.0, 2: 3.0}}
    for drawn in (
        figures.bars(rows, "Twice as much", x="bytes", note="cold", counted=True),
        figures.lines(points, "Three times as much", x="rows", y="bytes", note="cold", counted=True),
    ):
        assert drawn.figure.get_supxlabel() == "cold"


def test_dots_that_are_no_runs_are_named():
    caption = figures.bars({"list": [1.0, 2.0]}, "Two workers", x="MB", dots="workers").figure.get_supxlabel()
    assert "dots: 2 workers" in caption


@ALL
def test_a_figure_needs_a_title_that_says_what_was_found(draw):
    with pytest.raises(UsageError, match="no title"):
        figures.bars(RUNS, x="files per second")
    assert draw().alt.count(draw().figure.get_suptitle()) == 1


def test_what_could_not_be_measured_is_left_out_and_nothing_else():
    nan = float("nan")
    assert "b" not in figures.bars({"a": [1.0, nan], "b": [], "c": nan}, "T", x="x").alt.split(": ")[1]
    assert len(figures.bars({"a": {"read": 0.0, "decode": []}}, "T", x="x").figure.axes[0].texts) == 1
    drawn = figures.lines({"a": {1: 2.0, 2: [], 3: [nan, 5.0]}, "b": {}}, "T", x="x", y="y")
    assert "a from 2 at 1 to 5 at 3" in drawn.alt and "b from" not in drawn.alt
    peak = figures.lines({"a": {1: 2.0, 2: 9.0, 3: 5.0}}, "T", x="x", y="y")
    assert "a from 2 at 1, at most 9 at 2, to 5 at 3" in peak.alt
    assert len(figures.histogram({"a": [0.0, 1.0], "b": []}, "T", x="x", log=True).figure.axes) == 1
    assert figures.timeline({"rank 0": []}, "T").alt
    for call, given in ((figures.bars, {}), (figures.timeline, {}), (figures.histogram, {"a": [nan]})):
        with pytest.raises(UsageError, match="nothing to draw"):
            call(given, "T", **({} if call is figures.timeline else {"x": "x"}))
    with pytest.raises(UsageError, match="nothing to draw"):
        figures.lines({"a": {1: nan}}, "T", x="x", y="y")


def test_amounts_have_their_units_at_the_ticks():
    axes = histogram(log=True).figure.axes[-1]
    assert axes.xaxis.get_major_formatter()(1e-5, 0) == "10 µs"
    assert axes.get_xlabel() == "time"
    drawn = figures.lines({"a": {1e3: 5e8, 1e6: 2e9}}, "t", x="size (B)", y="rate (B/s)", log="xy")
    assert "500 MB/s at 1 kB to 2 GB/s at 1 MB" in drawn.alt


def test_a_linear_axis_has_one_unit_and_no_kiloseconds():
    drawn = figures.bars({"one": 1.6, "eight": 0.83, "tiny": 2e-6}, "t", x="time (s)", guess=0.5)
    axes = drawn.figure.axes[0]
    assert {"1.6 s", "0.83 s", "2 µs", "your guess: 0.5 s"} <= set(texts(axes))
    assert axes.xaxis.get_major_formatter()(0, 0) == "0 s"
    drawn = figures.lines({"a": {1: 0.25, 2: 4290.0}}, "t", x="nodes", y="time (s)", log="y")
    assert "250 ms at 1 to 4,290 s at 2" in drawn.alt


def test_between_powers_of_ten_numbers_are_written_alike():
    def between(low, high):
        axes = figures.lines({"a": {1: low, 2: high}}, "t", x="x", y="y", log="y").figure.axes[0]
        axes.figure.canvas.draw()
        return [text for label in axes.get_yticklabels(minor=True) if (text := label.get_text())]

    assert between(446.0, 14_685.0) == ["500", "2,000", "5,000"]
    assert between(0.2, 62.0) == ["0.2", "0.5", "2", "5", "20", "50"]
    assert not between(1.0, 100_000.0), "no room"
    assert "400" in between(300.0, 900.0)


def test_a_legend_of_two_rows_keeps_the_order():
    series = {name: {1: 1.0, 2: 2.0} for name in "abcdef"}
    axes = figures.lines(series, "t", x="x", y="y").figure.axes[0]
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == ["a", "f", "b", "c", "d", "e"], "by columns: one of two names, then four of one"


def test_the_bar_to_compare_with_is_grey():
    fills = [bar.get_facecolor() for bar in bars(base="one file").figure.axes[0].patches]
    assert len(set(fills)) == 2 and fills[1] == to_rgba(drawing.REFERENCE_COLOUR)
    both = figures.bars({"a": 1.0, "b": 2.0, "c": 3.0}, "t", x="x", base=("a", "c")).figure.axes[0].patches
    assert [bar.get_facecolor() == fills[1] for bar in both] == [True, False, True]


def test_the_largest_value_is_a_dot_on_a_logarithmic_axis():
    drawn = histogram(log=True)
    dots = [line for axes in drawn.figure.axes for line in axes.lines if line.get_marker() == "o"]
    assert [line.get_xdata()[0] for line in dots] == [9e-6, 9e-5]
    assert "largest: open 9 µs, read 90 µs" in drawn.alt and "largest" in drawn.figure.get_supxlabel()
    assert "largest" not in histogram().alt + histogram().figure.get_supxlabel()


def test_rates_start_at_zero_unless_the_axis_is_logarithmic():
    assert lines().figure.axes[0].get_ylim()[0] == 0
    assert bars().figure.axes[0].get_xlim()[0] == 0
    assert lines(log="xy").figure.axes[0].get_ylim()[0] > 0


def test_the_numbers_of_a_logarithmic_axis_end_with_the_data_and_its_line_does_not():
    axes = lines(log="xy", guess=8.0, marks={"CPUs": 2}).figure.axes[0]
    assert axes.spines["left"].get_bounds() is None and axes.get_ylim()[1] > 1_000
    assert max(axes.get_yticks()) == 100


def test_a_logarithmic_axis_has_a_dot_in_place_of_a_bar():
    axes = bars(log=True, base="many files").figure.axes[0]
    assert axes.get_xscale() == "log" and not axes.patches, "a bar has no beginning there"
    large = [line for line in axes.lines if line.get_markersize() == 9]
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in large] == [(100, -0.08), (1000, 0.92)]
    assert large[0].get_color() == drawing.REFERENCE_COLOUR != large[1].get_color()
    low, high = axes.get_xlim()
    assert low < 90 and high > 1900, "and the dots of all runs"
    assert texts(axes)["100"].xyann[0] > large[0].get_markersize() / 2, "its number is beside it"


def test_a_guess_and_the_caption_fit_the_dots():
    drawn = bars(log=True, guess=30)
    figure = drawn.figure
    assert drawn.alt.startswith("Dot chart. One file is quicker")
    assert [line for line in figure.axes[0].lines if line.get_color() == GUESS_COLOUR]
    assert figure.get_supxlabel().startswith("large dot: median, dots: 3 runs")


def test_a_mark_beside_bars_is_on_the_axis():
    axes = bars(marks={"the disk": 3_000}).figure.axes[0]
    assert "the disk" in texts(axes) and axes.get_xlim()[1] >= 3_000


@pytest.mark.parametrize(
    ("guess", "mark", "sides"),
    [
        (3.0, 40, {"guess": "left", "mark": "right"}),  # far apart: both on the side with more room
        (12.0, 10, {"guess": "left", "mark": "right"}),  # else each away from the other
        (5.0, 4, {"guess": "left", "mark": "right"}),
        (1.0, 1.01, {"guess": "left", "mark": "left"}),  # at the edge there is one side only
    ],
)
def test_words_at_a_line_lie_across_no_other_line(guess, mark, sides):
    axes = lines(log="x", guess=guess, marks={"usable CPUs": mark}).figure.axes[0]
    assert {name.split()[0]: text.get_ha() for name, text in texts(axes).items()} == {
        "your": sides["guess"],
        "usable": sides["mark"],
    }


def test_marks_are_places_or_stretches_with_a_name():
    axes = lines(marks={"CPUs": 2, "storage stands still": [(3, 5), (8, 9)]}).figure.axes[0]
    assert "CPUs" in texts(axes) and [patch.get_x() for patch in axes.patches] == [3, 8]
    assert [text.get_text() for text in axes.get_legend().get_texts()].count("storage stands still") == 1


def test_stretches_of_two_names_can_be_told_apart():
    axes = lines(marks={"storage stands still": [(3, 5)], "training pauses": [(8, 9)]}).figure.axes[0]
    one, other = (patch.get_facecolor() for patch in axes.patches)
    assert one != other


@ALL
def test_nothing_is_hatched(draw):
    assert not any(patch.get_hatch() for axes in draw().figure.axes for patch in axes.patches)


def test_numbers_are_at_one_height():
    axes = lines(log="xy").figure.axes[0]
    ticks = [*axes.yaxis.get_major_ticks(), *axes.yaxis.get_minor_ticks()]
    assert len({tick.get_pad() + tick.tick1line.get_markersize() for tick in ticks}) == 1


@ALL
def test_no_text_is_smaller_than_eleven_pixels(draw):
    drawn = draw(guess=1.0, note="warm cache")
    drawn.figure.draw_without_rendering()
    sizes = [text.get_fontsize() for text in drawn.figure.findobj(lambda a: hasattr(a, "get_fontsize"))]
    assert min(sizes) * 96 / 72 > 11


def test_a_cell_that_ends_with_a_figure_shows_it_in_the_colours_of_its_page():
    page = bars(guess=500)._repr_mimebundle_()["text/html"]
    assert re.search(r'<img alt="Bar chart\. One file is quicker', page)
    svg = base64.b64decode(page.split("base64,")[1].split('"')[0]).decode()
    ET.fromstring(svg)
    assert "prefers-color-scheme:dark" in svg
    assert not re.findall(r"#ffffff(?!;--|})", svg.split("</style>", 1)[1]), "paper that stays white"
    assert "#222222" not in svg.split("<defs>", 1)[1]


def test_a_legend_of_very_long_names_has_one_column():
    names = [f"{letter * 90}" for letter in "ab"]
    drawn = figures.lines({name: {1: [1.0], 2: [2.0]} for name in names}, "Long", x="n", y="m")
    assert [text.get_text() for text in drawn.figure.axes[0].get_legend().get_texts()] == names


def test_a_figure_of_a_cells_own_is_no_black_on_a_dark_page():
    from matplotlib.figure import Figure

    own = Figure()
    own.subplots().set_title("apart")
    page = Drawing(own, "An empty picture.")._repr_mimebundle_()["text/html"]
    svg = base64.b64decode(page.split("base64,")[1].split('"')[0]).decode()
    assert "#000000" not in svg and "svg{fill:var(--ink)}" in svg


def test_a_figure_in_the_middle_of_a_cell_is_shown_on_demand(capsys):
    show.figure(timeline())
    assert capsys.readouterr().out.startswith("Figure: Timeline in seconds. One copies")
