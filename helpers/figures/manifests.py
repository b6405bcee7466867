"""Figures of notebook 02: what a manifest says of its classes and sizes, and what workers copy of it.

The trap: a mean file size says little, since sizes spread over a factor of ten and more; so the whole
distribution is drawn, with its median.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from helpers.experiments.nb02 import DICT, IMAGENET_ROWS, Watched
from smallfiles.errors import UsageError
from smallfiles.measure.drawing.canvas import COLOURS, INK, empty_figure, styled, wrapped
from smallfiles.progress import bytes_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from smallfiles.manifest import Manifest

_NAMED_CLASSES = 20
_BINS = 30
_MB = 1e6
_NOTICEABLE = 2.0  # smaller factors are not called a difference


@dataclass(frozen=True)
class Profile:
    """Samples of each class and bytes of each file, as a manifest tells them.

    Args:
        manifest: Labels, and sizes of all files.
    """

    manifest: Manifest

    @cached_property
    def class_counts(self) -> npt.NDArray[np.int64]:
        """Samples of each class, in label order; unknown labels are left out."""
        labels = np.asarray(self.manifest.targets)
        counts: npt.NDArray[np.int64] = np.bincount(
            labels[labels >= 0], minlength=len(self.manifest.classes)
        ).astype(np.int64)
        return counts

    @cached_property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Bytes of each file.

        Raises:
            UsageError: The manifest does not know them.
        """
        sizes = self.manifest.sizes
        if sizes is None or not len(sizes) or self.manifest.target_kind != "label":
            raise UsageError(
                f"the manifest {self.manifest.name!r} has no labels or no sizes",
                expected="one or more samples with a label and a size each",
                next_step="Load a labelled data set with sizes=True",
            )
        return sizes

    @property
    def finding(self) -> str:
        """The sentence that the figure supports."""
        low, half, high = np.percentile(self.sizes, (5, 50, 95))
        few, many = self.class_counts.min(), self.class_counts.max()
        images = f"{few:,}" if few == many else f"{few:,} to {many:,}"
        return (
            f"{len(self.class_counts):,} classes of {images} images; half of the files are smaller than "
            f"{bytes_text(half)}, nine in ten have {bytes_text(low)} to {bytes_text(high)}"
        )

    @property
    def alt_text(self) -> str:
        """The figure in words."""
        return f"Bar chart and histogram. {self.finding}. Together {bytes_text(self.sizes.sum())}."

    def draw(self) -> Figure:
        """Samples of each class above, file sizes below."""
        finding = self.finding
        with styled():
            figure = empty_figure(4.6)
            above, below = figure.subplots(2, 1)
            _draw_classes(above, self)
            _draw_sizes(below, self.sizes)
            figure.suptitle(wrapped(finding), x=0.01, ha="left", fontsize=11, fontweight="bold")
        return figure


def _draw_classes(axes: Axes, profile: Profile) -> None:
    counts = profile.class_counts
    axes.bar(range(len(counts)), counts, width=0.8, color=COLOURS[0])
    if len(counts) <= _NAMED_CLASSES:
        axes.set_xticks(range(len(counts)), profile.manifest.classes, rotation=30, ha="right", fontsize=8)
    axes.set_xlabel("class, in label order", fontsize=9)
    axes.set_ylabel("images", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_sizes(axes: Axes, sizes: npt.NDArray[np.int64]) -> None:
    kilobytes = sizes / 1e3
    half = float(np.median(kilobytes))
    axes.hist(kilobytes, bins=_BINS, color=COLOURS[2])
    axes.axvline(half, color=INK, lw=1, ls="--")
    axes.annotate(
        "median", (half, 1), xycoords=("data", "axes fraction"), xytext=(4, -10), textcoords="offset points"
    )
    axes.set_xlim(left=0)
    axes.set_xlabel("file size in kB", fontsize=9)
    axes.set_ylabel("images", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)


@dataclass(frozen=True)
class Comparison:
    """What workers copied of a dict and of a table.

    Args:
        watched: One for each way, of equal rows and workers.
    """

    watched: Sequence[Watched]

    def __post_init__(self) -> None:
        if len({(one.rows, one.workers, one.shares) for one in self.watched}) != 1:
            raise UsageError(
                "these measurements differ in rows, workers or looks",
                expected="one manifest, measured in each way with as many workers",
                next_step="Measure them in one call of watch",
            )

    @property
    def finding(self) -> str:
        """The sentence that the figure supports."""
        ways = sorted(self.watched, key=lambda one: one.copied_bytes)
        least, most = ways[0], ways[-1]
        told = f"each of {least.workers} workers copied"
        if most.copied_bytes < _NOTICEABLE * max(least.copied_bytes, 1):
            return f"No clear difference: {told} {bytes_text(most.copied_bytes)} of the {most.way}"
        return (
            f"In one epoch of {least.rows:,} samples {told} {bytes_text(most.copied_bytes)} "
            f"of the {most.way} and {bytes_text(least.copied_bytes)} of the {least.way}"
        )

    @property
    def at_imagenet_size(self) -> str:
        """What that comes to for ImageNet, with as many bytes a sample: an estimate."""
        told = (
            f"{bytes_text(one.copied_bytes_a_row * IMAGENET_ROWS * one.workers)} of the {one.way}"
            for one in self.watched
        )
        workers = self.watched[0].workers
        return (
            f"for ImageNet's {IMAGENET_ROWS:,} paths {workers} workers would copy about {' or '.join(told)}"
        )

    @property
    def alt_text(self) -> str:
        """The figure in words."""
        ends = (f"{one.way} {_medians(one)[0]:.0f} to {_medians(one)[-1]:.0f} MB" for one in self.watched)
        return f"Line chart. {self.finding}. Private memory of a worker over one epoch: {'; '.join(ends)}."

    def draw(self) -> Figure:
        """Private memory of a worker against the share of its samples that it has read."""
        finding = self.finding
        with styled():
            figure = empty_figure(3.4)
            axes = figure.subplots()
            for one in self.watched:
                _draw_way(axes, one, COLOURS[5] if one.way == DICT else COLOURS[0])
            axes.set_ylim(bottom=0)
            axes.set_xlim(0, 128)
            axes.set_xticks(range(0, 101, 25))
            axes.set_xlabel("read by each worker, percent of its first epoch", fontsize=9)
            axes.set_ylabel("memory of one worker\nfor itself alone, MB", fontsize=9)
            axes.spines[["top", "right"]].set_visible(False)
            figure.suptitle(wrapped(finding), x=0.01, ha="left", fontsize=11, fontweight="bold")
        return figure


def _draw_way(axes: Axes, one: Watched, colour: str) -> None:
    percent = [100 * share for share in one.shares]
    for seen in one.private_bytes:
        axes.plot(percent, [size / _MB for size in seen], "o", ms=3.2, mfc="white", mec=colour, mew=0.7)
    medians = _medians(one)
    axes.plot(percent, medians, color=colour, lw=1.6, zorder=0)
    axes.annotate(
        one.way,
        (percent[-1], medians[-1]),
        xytext=(8, 0),
        textcoords="offset points",
        va="center",
        fontsize=9,
    )


def _medians(one: Watched) -> list[float]:
    return [statistics.median(looks) / _MB for looks in zip(*one.private_bytes, strict=True)]
