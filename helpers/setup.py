"""The record that `start` returns: data, scratch folder, machine, limits of operations.

The trap: a path typed into a notebook works on one machine. Cells take every path from here.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from helpers import cache
from helpers.plans import TIMED, Plan, count_of, plan_of
from smallfiles.errors import UsageError

if TYPE_CHECKING:
    from smallfiles.machine import FileSystem
    from smallfiles.sources import Source

SAMPLING_SEED = 20_130_124
LEAST_IDLE_CPUS = 0.5
"""Other programs spoil a timing if fewer CPUs are idle."""

_OF_FIELDS = {"segmentation", "table"}
"""Layouts that no other data stand for; the notebook about them has a cell for the participant's own."""


@dataclass(frozen=True)
class DataSet:
    """One data set of a notebook.

    Args:
        layout: What it looks like on disk, `real` for your own.
        path: Its folder (or tar file, or manifest).
        count: How many samples are used of it.
        made_s: Seconds that making it took; 0 if it was there.
    """

    layout: str
    path: Path
    count: int
    made_s: float = 0.0

    def source(self, split: str | None = None) -> Source:
        """Its manifest and its bytes; a real set is sampled down to `count`, the same ones each time."""
        from smallfiles import sources

        found = sources.load(self.path, split=split)
        return sampled(found, self.count) if self.layout == "real" else found


@dataclass(frozen=True)
class Setup:
    """What the cells of a notebook need to know.

    Args:
        notebook: Its number.
        plan: What it takes.
        count: Images in each data set.
        data: Its data sets by layout.
        scratch: A folder of this kernel, removed when it ends.
        cpus: CPUs that this kernel may use.
        memory_bytes: Memory that it and its siblings may use.
        filesystem: File system of `scratch`.
        is_busy: Whether other programs use the CPUs, so that times scatter.
    """

    notebook: str
    plan: Plan
    count: int
    data: dict[str, DataSet]
    scratch: Path
    cpus: int
    memory_bytes: int
    filesystem: FileSystem = field(repr=False)
    is_busy: bool = False

    @property
    def shared(self) -> bool:
        """Whether data and scratch lie on a file system that others use too."""
        return self.filesystem.shared

    def path(self, layout: str | None = None) -> Path:
        """The folder of a data set; without a layout that of the main one."""
        return self._chosen(layout).path

    def source(self, layout: str | None = None, split: str | None = None) -> Source:
        """Manifest and bytes of a data set; without a layout the notebook's main one."""
        return self._chosen(layout).source(split)

    def folder(self) -> Path:
        """The folder of the main data set, where its samples are files of their own.

        Raises:
            UsageError: They are not, as in an archive.
        """
        source = self.source()
        if source.root is None or not source.root.is_dir():
            raise UsageError(
                f"the samples are in {source.store.describe()}",
                expected="files of their own, which is what is measured here",
                next_step="Name a folder of images in COURSE_DATA, or unset it (%env COURSE_DATA=)",
            )
        return source.root

    def _chosen(self, layout: str | None) -> DataSet:
        if layout is None and self.data:
            return next(iter(self.data.values()))
        if layout in self.data:
            return self.data[layout]
        raise UsageError(
            f"notebook {self.notebook} has no data set {layout or 'at all'}",
            expected=f"one of {', '.join(self.data) or 'none'}",
            next_step="Take the name from the summary of `start`",
        )

    def summary(self) -> str:
        """The output of the set-up cell: the notebook, the machine, the data, in Markdown."""
        from smallfiles.progress import bytes_text

        place = self.filesystem
        files = "" if place.inodes_free is None else f", and room for {place.inodes_free:,} files"
        cpus = f"{self.cpus} CPU{'s' * (self.cpus > 1)}"
        lines = [
            f"**{self.plan.title}**: about {self.plan.minutes} minutes, of which the machine computes "
            f"{self._computing_s} s.",
            f"**This machine**: {cpus} and {bytes_text(self.memory_bytes)} of memory for this kernel; "
            f"{place.kind} ({'shared' if place.shared else 'local'}) with {bytes_text(place.free_bytes)} "
            f"free{files}.",
            *(f"**Data**: {self._summary(data)}" for data in self.data.values()),
        ]
        lines += [self._cap_summary()] * self.shared + [self._busy_summary()] * self.is_busy
        return "\n\n".join(lines)

    @property
    def _computing_s(self) -> int:
        return max(1, round(self.plan.seconds * max(1.0, self.count / self.plan.small)))

    def _summary(self, data: DataSet) -> str:
        if data.layout == "real":
            return f"{data.count:,} samples of your own data in `{data.path}`."
        how = f"made in {data.made_s:.0f} s" if data.made_s else "found, made earlier"
        return f"{data.count:,} synthetic images, laid out as `{data.layout}`; {how}."

    def _cap_summary(self) -> str:
        from smallfiles.measure.bench import IN_FLIGHT, OPERATIONS

        return (
            f"**Shared file system**: others work on this {self.filesystem.kind} too, so an experiment "
            f"does at most {OPERATIONS:,} operations with {IN_FLIGHT} in flight. Effects show all the same."
        )

    def _busy_summary(self) -> str:
        times = f"the times in {TIMED[self.notebook]}" if self.notebook in TIMED else "times"
        return (
            f"**Busy machine**: other programs use its CPUs. All counts below stay right, but {times} "
            "scatter, and *my numbers* keep none of them. For times, run this cell again when the machine "
            "is calm."
        )


def set_up(notebook: str, size: str | int | None) -> Setup:
    """The result of `start`, after the kernel has been checked."""
    from smallfiles import machine

    is_busy = machine_is_busy()
    plan = plan_of(notebook)
    count = count_of(plan, size)
    folder = cache.cache_folder()
    scratch = cache.scratch_folder(folder, notebook)
    return Setup(
        notebook=notebook,
        plan=plan,
        count=count,
        data=_data(plan, count, folder),
        scratch=scratch,
        cpus=machine.usable_cpus(),
        memory_bytes=machine.memory_limit_bytes(),
        filesystem=machine.filesystem(scratch),
        is_busy=is_busy,
    )


def machine_is_busy(seconds: float = 0.3) -> bool:
    """Look for a moment, in which this process sleeps, whether others use the CPUs that it may use.

    The load average would not do: it counts all CPUs of a node, and what this notebook ran a minute ago.
    """
    before, began = _idle_s(), time.monotonic()
    time.sleep(seconds)
    after, ended = _idle_s(), time.monotonic()
    return (sum(after) - sum(before)) / (ended - began) < LEAST_IDLE_CPUS if after else False


def _idle_s() -> list[float]:
    """Return how long each CPU of this process was idle; nothing if a container numbers them otherwise."""
    lines = (line.split() for line in Path("/proc/stat").read_text().splitlines())
    ticks = {words[0]: int(words[4]) + int(words[5]) for words in lines if words[0].startswith("cpu")}
    names = [f"cpu{number}" for number in os.sched_getaffinity(0)]
    known = ticks.keys() >= {*names}
    return [ticks[name] / os.sysconf("SC_CLK_TCK") for name in names] if known else []


def _data(plan: Plan, count: int, folder: Path) -> dict[str, DataSet]:
    """Synthetic sets, and the participant's own in place of those that it can stand for."""
    own = os.environ.get("COURSE_DATA")
    if not own or _OF_FIELDS.issuperset(plan.wants):
        return {layout: _synthetic(layout, count, folder) for layout in plan.wants}
    from smallfiles import sources

    path = Path(own).expanduser().absolute()
    manifest = sources.load(path).manifest
    kind = manifest.target_kind
    real = DataSet("real", path, min(count, len(manifest)))
    fits = {layout: (kind == "captions") == (layout == "flickr30k") for layout in plan.wants}
    if not any(fits.values()):
        raise UsageError(
            f"COURSE_DATA={own} has {kind}" + "s" * (kind == "label"),
            expected=f"{'labels' if kind == 'captions' else 'captions'}, which this notebook is about",
            next_step="Name another data set, or unset it (%env COURSE_DATA=) to use a synthetic one",
        )
    return {layout: real if fits[layout] else _synthetic(layout, count, folder) for layout in plan.wants}


def _synthetic(layout: str, count: int, folder: Path) -> DataSet:
    path, made_s = cache.find_or_make(layout, count, folder)
    return DataSet(layout, path, count, made_s)


def sampled(source: Source, count: int) -> Source:
    """A source cut down to `count` samples, chosen at random but the same each time."""
    import dataclasses

    manifest = source.manifest
    if len(manifest) <= count:
        return source
    return dataclasses.replace(source, manifest=manifest.select(manifest.order(SAMPLING_SEED)[:count]))
