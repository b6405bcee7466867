"""The figures of notebook 02 say what was found, and also when nothing was."""

import pytest

from helpers.experiments.nb02 import DICT, TABLE, Watched
from helpers.figures.manifests import Comparison, Profile
from smallfiles.errors import UsageError
from smallfiles.manifest import Manifest

MB = 1_000_000


def watched(way, copied_mb, workers=4, rows=1000):
    seen = (2 * MB, 2 * MB + round(copied_mb * MB))
    return Watched(way, rows, (0.0, 1.0), (seen,) * workers, 10 * MB, 0.1)


def profile(labels=(0, 0, 1), classes=("cat", "dog"), sizes=(1000, 2000, 90_000)):
    paths = [f"{row}.jpg" for row in range(len(labels))]
    return Profile(Manifest.from_columns(paths, list(labels), classes=classes, sizes=sizes))


def test_the_title_says_what_a_worker_copied():
    finding = Comparison([watched(DICT, 28), watched(TABLE, 0.8)]).finding
    assert finding == (
        "In one epoch of 1,000 samples each of 4 workers copied 28.0 MB of the dict of paths "
        "and 800 kB of the columnar table"
    )


def test_an_effect_that_did_not_show_is_said():
    assert Comparison([watched(DICT, 1.2), watched(TABLE, 1)]).finding.startswith("No clear difference")
    assert Comparison([watched(DICT, 0), watched(TABLE, 0)]).finding.startswith("No clear difference")


def test_a_table_that_costs_more_is_said():
    finding = Comparison([watched(DICT, 1), watched(TABLE, 9)]).finding
    assert finding.endswith("copied 9.0 MB of the columnar table and 1.0 MB of the dict of paths")


def test_the_estimate_for_imagenet_scales_with_rows_and_workers():
    text = Comparison([watched(DICT, 1), watched(TABLE, 0.01)]).at_imagenet_size
    assert "1,281,167 paths 4 workers would copy about 5.1 GB of the dict of paths" in text
    assert text.endswith("or 51.2 MB of the columnar table")


@pytest.mark.parametrize("other", [watched(TABLE, 1, workers=2), watched(TABLE, 1, rows=7)])
def test_measurements_of_other_conditions_are_refused(other):
    with pytest.raises(UsageError, match="differ in rows, workers or looks"):
        Comparison([watched(DICT, 1), other])


def test_the_axis_starts_at_zero_and_each_worker_is_a_row_of_dots():
    axes = Comparison([watched(DICT, 28), watched(TABLE, 1)]).draw().axes[0]
    assert axes.get_ylim()[0] == 0
    assert sum(line.get_marker() == "o" for line in axes.lines) == 8
    assert "MB" in axes.get_ylabel() and "percent" in axes.get_xlabel()


def test_alt_text_holds_finding_and_ends():
    comparison = Comparison([watched(DICT, 28), watched(TABLE, 1)])
    assert comparison.finding in comparison.alt_text
    assert "dict of paths 2 to 30 MB" in comparison.alt_text


def test_classes_and_sizes_are_told_from_the_manifest():
    assert profile().class_counts.tolist() == [2, 1]
    assert profile().finding.startswith(
        "2 classes of 1 to 2 images; half of the files are smaller than 2.0 kB"
    )
    assert "93.0 kB" in profile().alt_text


def test_unknown_labels_count_for_no_class():
    assert profile(labels=(-1, -1, 1)).class_counts.tolist() == [0, 1]


def test_classes_without_names_are_counted():
    assert profile(classes=()).class_counts.tolist() == [2, 1]


@pytest.mark.parametrize("sizes", [None, (1, 2, None)])
def test_unknown_sizes_are_refused(sizes):
    with pytest.raises(UsageError, match="no labels or no sizes"):
        _ = profile(sizes=sizes).finding


@pytest.mark.parametrize("classes", [2, 200])
def test_the_figure_fits_few_and_many_classes(classes):
    names = tuple(f"n{number:08d}" for number in range(classes))
    figure = profile(classes=names).draw()
    above, below = figure.axes
    assert above.get_ylim()[0] == below.get_ylim()[0] == below.get_xlim()[0] == 0
    assert below.get_xlabel() == "file size in kB"
    figure.draw_without_rendering()
