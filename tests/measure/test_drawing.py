"""Figures: what they claim, what they refuse, what they leave behind."""

import dataclasses
import xml.etree.ElementTree as ET

import pytest

from smallfiles.errors import UsageError
from smallfiles.measure import drawing as plots
from smallfiles.measure.record import Record


def record(name, rates, **changes):
    found = ("random reads", name, name, tuple(rates), 100, 10_000, 0.1, "ext4", "warm", "all", 100, 10_000)
    return dataclasses.replace(Record(*found, machine={"cpu": "one"}), **changes)


PLAIN = record("plain files", [100, 104, 98])
FAST = record("arrow", [310, 300, 290])
ALSO_FAST = record("tar", [305, 308, 295])
SAME = record("hdf5", [103, 97, 101])


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([PLAIN, FAST, SAME], "Random reads, warm cache: arrow is 3.0 times as fast as plain files"),
        ([PLAIN, FAST, ALSO_FAST], "arrow and tar are"),
        ([PLAIN, SAME], "no clear difference between hdf5 and plain files"),
        ([FAST, PLAIN], "nothing is faster than arrow"),
    ],
)
def test_the_title_names_all_that_cannot_be_told_from_the_best_and_by_how_much(records, said):
    assert said in plots.finding(records)
    assert plots.finding([PLAIN, FAST], "arrow").endswith("nothing is faster than arrow")


OTHER = [("cache", "cold"), ("filesystem", "lustre"), ("workers", 2), ("batch", 64), ("set_bytes", 1)]
OTHER += [("machine", {"cpu": "another"}), ("what", "packing")]


@pytest.mark.parametrize(("field", "value"), OTHER)
def test_records_of_other_conditions_are_refused_by_name_and_none_at_all(field, value):
    with pytest.raises(UsageError, match=field):
        plots.throughput([PLAIN, record("arrow", [1, 2, 3], **{field: value})])
    with pytest.raises(UsageError, match="nothing to draw"):
        plots.throughput([])


def test_a_panel_has_its_finding_axes_from_zero_and_a_dot_for_every_run():
    (panel,) = plots.throughput([PLAIN, FAST]).subfigs
    (axes,) = panel.axes
    assert panel.get_suptitle().replace("\n", " ") == plots.finding([PLAIN, FAST])
    assert axes.get_xlim()[0] == 0 and "samples per second" in axes.get_xlabel()
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    assert [len(line.get_xdata()) for line in dots] == [3, 3]


def test_a_name_has_one_colour_in_all_panels_of_a_palette_without_doubles():
    cold = [dataclasses.replace(r, cache="cold") for r in (PLAIN, ALSO_FAST, FAST)]
    colours = []
    for axes in plots.throughput([PLAIN, FAST, ALSO_FAST], cold).axes:
        names = [label.get_text() for label in axes.get_yticklabels()]
        colours.append(dict(zip(names, [bar.get_facecolor() for bar in axes.patches], strict=True)))
    assert colours[0] == colours[1]
    assert len({*plots.COLOURS, plots.REFERENCE_COLOUR}) == len(plots.COLOURS) + 1


def test_saving_twice_gives_the_same_bytes(tmp_path):
    written = [plots.save(plots.throughput([PLAIN, FAST]), tmp_path / name) for name in ("a", "b")]
    for one, other in zip(*written, strict=True):
        assert one.read_bytes() == other.read_bytes()
    assert ET.parse(written[0][0]).getroot().tag.endswith("svg")
    assert written[0][1].read_bytes().startswith(b"\x89PNG")
