"""The first verbs: `doctor` describes this machine, `demo` shows all steps, `synth` and `slowfs` give data to
try.
"""

from __future__ import annotations

import argparse
import signal
import textwrap
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Literal

from smallfiles.cli.arguments import Verbs, add_path, add_run, add_source_flags
from smallfiles.cli.output import FAILED, glyph, in_seconds, look_at, report, say
from smallfiles.demo import DemoConfig
from smallfiles.errors import ResourceError
from smallfiles.folders import SourceOptions
from smallfiles.options import add_flags, from_args, option
from smallfiles.processes import SIGNALS, held_back
from smallfiles.progress import bytes_text
from smallfiles.slowfs import SlowConfig

if TYPE_CHECKING:
    from smallfiles.demo.steps import DemoResult
    from smallfiles.doctor import Finding

_SIGNS = {"ok": ("✓", "+"), "absent": ("-", "-"), "warn": ("!", "!"), "fail": ("✗", "x")}


def add(verbs: Verbs) -> None:
    """Add the verbs."""
    parser = add_run(verbs, "doctor", run_doctor)
    add_path(parser, "paths", "DIR", "further folders to examine", nargs="*")
    parser.add_argument("--workshop", action="store_true", help="also check whether a workshop can run here")
    text = "measure the first DIR, and write an anonymous record: no user, host, account or path"
    add_path(parser, "--share", "R.json", text)
    parser = add_run(verbs, "demo", run_demo)
    add_flags(parser, DemoConfig)
    add_source_flags(parser)
    parser = add_run(verbs, "synth", run_synth)
    add_path(parser, "out", "OUT", "folder to make; it must not exist")
    add_flags(parser, SynthConfig)
    parser = add_run(verbs, "slowfs", run_slowfs)
    add_path(parser, "dir", "DIR", "the folder to show; it is only read")
    add_path(parser, "mountpoint", "MOUNTPOINT", "an empty or new folder")
    add_flags(parser, SlowConfig)


def run_doctor(arguments: argparse.Namespace) -> int:
    """Describe this machine, what is missing, and what to do about it.

    Run it first, on the login node and once inside a job: CPUs that you may really use, the memory limit of
    your job, the file systems and their inodes differ between the two.

    Examples:
        smallfiles doctor
        smallfiles doctor --workshop
        smallfiles doctor /scratch/me --json
        smallfiles doctor /scratch/me --share scratch.json   # for simulate --records, and for others
    """
    from smallfiles.doctor import examine

    findings = examine(*arguments.paths, workshop=arguments.workshop)
    if arguments.share is not None:
        from smallfiles.atomic import created, refuse_existing  # not for the help
        from smallfiles.measure.probe import probe
        from smallfiles.measure.record import save

        refuse_existing(arguments.share)
        found = probe(arguments.paths[0] if arguments.paths else Path.cwd())
        with created(arguments.share):
            save(found, arguments.share)
    report(arguments, {"findings": [asdict(finding) for finding in findings]}, *_doctor_lines(findings))
    return FAILED if any(finding.verdict == "fail" for finding in findings) else 0


def _doctor_lines(findings: list[Finding]) -> Iterator[str]:
    width = max((len(finding.name) for finding in findings), default=0)
    for finding in findings:
        yield f"{glyph(*_SIGNS[finding.verdict])} {finding.name:<{width}}  {finding.value}"
        if finding.advice:
            yield textwrap.indent(textwrap.fill(finding.advice, max(40, 96 - width)), " " * (width + 4))


@dataclass(frozen=True)
class SynthConfig:
    """The settings of the data to make."""

    layout: Literal["folder", "prepared", "kaggle", "official", "flickr30k", "segmentation", "table"] = (
        option("folder", "whose layout to copy")
    )
    count: int = option(3000, "number of images")
    seed: int = option(0, "equal seeds, equal bytes", metavar="S")
    classes: int = option(10, "number of classes (not for flickr30k)", metavar="K")


def run_demo(arguments: argparse.Namespace) -> int:
    """Run all steps once: data, manifest, packing, measuring, report.

    Creates a data set (or takes yours, which is only read), writes its manifest, packs it into four formats
    with verification, measures reading, prints a table and writes a figure and a small report. Under three
    minutes on two cores.

    Examples:
        smallfiles demo
        smallfiles demo --data /path/to/my/images --count 5000
    """
    from smallfiles.demo import steps

    config = from_args(DemoConfig, arguments, reading=from_args(SourceOptions, arguments))
    result = steps.run(config, say)
    record = {
        "samples": result.samples,
        "bytes": result.bytes,
        "seconds": round(result.seconds, 3),
        "report": result.report,
        "figure": result.figure,
        "records": [each.as_json() for each in result.reads.records],
    }
    return report(arguments, record, *_demo_lines(result, config))


def _demo_lines(result: DemoResult, config: DemoConfig) -> Iterator[str]:
    from smallfiles.demo.steps import LEGEND

    yield f"\n{result.table}\n"
    about = f"{result.samples:,} samples, {bytes_text(result.bytes)}, {config.repeats} rounds. {LEGEND}"
    yield textwrap.fill(about, 104)
    yield f"\nin {in_seconds(result.seconds)}; the page: {result.report}; the figure: {result.figure}"
    yield look_at(config.out / "packed" / "set.arrow")
    if config.data is None:
        yield "\nThe same with your own images, which are only read:\n  smallfiles demo --data DIR"


def run_synth(arguments: argparse.Namespace) -> int:
    """Make a small faithful copy of a real data set, from a seed.

    Everything in the course works without downloads: images with the sizes, names and folders of
    ImageNet and Flickr30K, images with masks, a table of labels; the same bytes for the same seed.

    Examples:
        smallfiles synth data --layout folder --count 3000
        smallfiles synth ilsvrc --layout kaggle --count 500
        smallfiles synth flickr --layout flickr30k --count 500 --seed 1
        smallfiles synth shapes --layout segmentation --count 200
    """
    from smallfiles.sources import synthetic

    config = from_args(SynthConfig, arguments)
    made = synthetic.make(arguments.out, **asdict(config))
    rate = made.images / max(made.seconds, 1e-9)
    text = (
        f"made {made.path}: {made.images:,} images ({bytes_text(made.bytes)}), layout {made.layout}, "
        f"in {in_seconds(made.seconds)}, {rate:,.0f} images/s"
    )
    record = {name: getattr(made, name) for name in ("path", "layout", "bytes", "classes")}
    record |= {"samples": made.images, "seconds": round(made.seconds, 3), "seed": config.seed}
    return report(arguments, record, text)


_LOOK_S = 0.25


def run_slowfs(arguments: argparse.Namespace) -> int:
    """Show a folder through the latency of a parallel file system.

    DIR appears at MOUNTPOINT, read-only. Each look-up, open and listing is delayed there; up to --servers
    requests wait at the same time. Use the mount point in another terminal; Ctrl-C (or SIGTERM) unmounts it
    and prints the number of operations. It needs no root, but /dev/fuse and fusermount3.

    Examples:
        smallfiles slowfs data /tmp/slow
        smallfiles slowfs data /tmp/slow --latency-ms 5 --servers 8 --jitter 0.5
        smallfiles slowfs data /tmp/slow --latency-ms 0 --bandwidth-mb 200
    """
    from smallfiles.slowfs.mounting import Mount

    config = from_args(SlowConfig, arguments)
    with held_back(), closing(Mount(arguments.dir, config, arguments.mountpoint)) as mount:
        began = perf_counter()
        say(f"{mount.folder} is at {mount.point}, {config.summary()}; Ctrl-C unmounts it")
        while signal.sigtimedwait(SIGNALS, _LOOK_S) is None:
            if not mount.is_alive():
                raise ResourceError(
                    f"{mount.point} was unmounted by another program",
                    expected="it to stay until Ctrl-C",
                    next_step="Run the command again",
                )
    counts, seconds = mount.counts(), perf_counter() - began
    totals = {"samples": counts["open"], "bytes": counts["bytes"], "seconds": round(seconds, 3)}
    text = (
        f"{counts['lookup']:,} look-ups, {counts['open']:,} opens, {counts['list']:,} listings, "
        f"{bytes_text(counts['bytes'])} read in {in_seconds(seconds)}"
    )
    return report(arguments, totals | {"operations": counts}, text)
