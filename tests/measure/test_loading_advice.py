"""What is recommended from measured loaders, and its figure."""

import dataclasses

import pytest

from smallfiles.cli import main
from smallfiles.measure import Record, drawing, save
from smallfiles.measure.table import STAGES, advice


def epoch(mode, workers, *rates, kind="JPEG"):
    what = f"epoch of {kind}, {workers} workers"
    found = (
        what,
        f"arrow, {mode}",
        "arrow",
        tuple(map(float, rates)),
        100,
        10_000,
        1.0,
        "ext4",
        "warm",
        "all",
    )
    return Record(*found, 100, 10_000, workers=workers, batch=8, machine={"cpus_usable": 4})


CLEAR = [
    epoch("threads", 1, 100, 101, 102),
    epoch("processes", 1, 90, 91, 92),
    epoch("threads", 2, 150, 151, 152),
    epoch("processes", 2, 190, 191, 192),
    epoch("ring", 2, 170, 171, 172),
    epoch("threads", 4, 160, 161, 162),
    epoch("processes", 4, 180, 181, 182),
]


def test_what_is_clearly_fastest_is_recommended_with_its_flags():
    (found,) = advice(CLEAR)
    assert (found.mode, found.record.workers, found.level, found.settings) == ("processes", 2, 0, 7)
    assert "train --workers 2 --mode processes: 191 samples/s" in found.sentence
    assert found.sentence.endswith("; all 6 others are clearly slower")


def test_of_equally_fast_ones_the_fewest_workers_are_taken_and_then_the_fewest_parts():
    (found,) = advice([
        epoch("processes", 4, 100, 110, 120),
        epoch("ring", 2, 104, 109, 114),
        epoch("processes", 2, 103, 108, 113),
        epoch("threads", 2, 102, 107, 112),
        epoch("threads", 1, 50, 51, 52),
    ])  # fmt: skip
    assert (found.mode, found.record.workers, found.level) == ("threads", 2, 3)


@pytest.mark.parametrize(
    ("mode", "said"),
    [("threads", "--workers 2 --mode threads:"), ("ring", "--producers 2, and train --ring:")],
)
def test_the_largest_number_measured_is_said_to_be_that_with_the_command_that_uses_it(mode, said):
    (found,) = advice([epoch("threads", 1, 50, 51), epoch(mode, 2, 100, 101)])
    assert said in found.sentence and found.most and found.sentence.endswith("more workers were not measured")


def test_loaders_of_others_stages_and_a_single_setting_give_no_advice():
    other = dataclasses.replace(CLEAR[0], name="webdataset, antialias", rates_per_s=(999.0,))
    stages = dataclasses.replace(CLEAR[0], what=STAGES, name="arrow, JPEG")
    assert advice([CLEAR[0], other, stages]) == () == advice([])


def test_each_kind_of_pictures_has_its_own():
    raw = [epoch(mode, 1, rate, rate, kind="raw scaled to 48 ahead") for mode, rate in
           (("threads", 500), ("processes", 400))]  # fmt: skip
    assert [(found.what, found.mode) for found in advice([*CLEAR, *raw])] == [
        ("epoch of JPEG", "processes"), ("epoch of raw scaled to 48 ahead", "threads")
    ]  # fmt: skip


def test_the_figure_has_a_line_a_loader_and_the_advice_as_its_title():
    figure = drawing.tuning(CLEAR)
    (panel,) = figure.subfigs
    said = "Epoch of JPEG: arrow, processes with 2 workers, 191 samples/s"
    assert panel.get_suptitle().replace("\n", " ") == said
    (axes,) = panel.axes
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert legend == ["usable CPUs", "arrow, threads", "arrow, processes", "arrow, ring"]
    assert axes.get_ylim()[0] == 0


def test_the_command_draws_lines_where_numbers_of_workers_differ_and_bars_where_not(tmp_path, capsys):
    save(CLEAR, tmp_path / "r.json")
    assert main(["figure", str(tmp_path / "r.json"), str(tmp_path / "r.png")]) == 0
    said = capsys.readouterr().out
    assert "Line chart. Recommended for arrow" in said and (tmp_path / "r.png").stat().st_size > 10_000
    save(CLEAR[:2], tmp_path / "one.json")
    assert main(["figure", str(tmp_path / "one.json"), str(tmp_path / "one.png")]) == 0
    assert "Bar chart." in capsys.readouterr().out
