"""Does each sample arrive exactly once in *this* training? Run it unchanged, record, and say what is wrong.

    hooks/received  what runs inside the program: which samples a worker made, which batches the loop received
    sequences       from what each process wrote to the order of samples of each rank and epoch
    findings        the table of findings
    audit           runs the program once or several times; report, record and picture

The trap: the audit sees identities, not pictures. An index says which sample was asked for, and not what the
data set returned for it. So each report says how it identified the samples, and what it cannot see that way.
Notebook 10 teaches it.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any

import numpy as np

from smallfiles.errors import UsageError
from smallfiles.profile import findings
from smallfiles.profile.findings import CURES, EXACTLY_ONCE, MIXED, Finding
from smallfiles.profile.hooks.received import KEY
from smallfiles.profile.report import rows
from smallfiles.profile.sequences import Received, from_record, joined, named, read, to_record
from smallfiles.profile.watching import end_of, load, watch, why_nothing
from smallfiles.progress import plural

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CANNOT_SEE = {
    "index": "the index says which sample was asked for, not what the data set returned for it",
    "key": "the key says which sample was read, not whether two keys have the same content",
    "file": "a sample is identified by the file that was opened for it; files opened in C++ are not seen",
    "content": "samples are identified by what the data set returned, so equal samples count as one, and a "
    "random transform makes a sample new in each epoch; --key FIELD tells them better",
    "several": "batches have different identities; --key FIELD gives all of them one",
}
"""The limits of each identity, by its kind."""
_TOGETHER_S = 600  # the nodes of a run begin within it: torchrun waits no longer for them
NOTHING = 3
"""Exit code where there is nothing to judge."""


def audit(
    program: Sequence[str], options: dict[str, Any], report: Callable[[dict[str, Any] | str], None]
) -> int:
    """Run a program, and the runs that `options` add; report, and return the exit code.

    Args:
        program: Its words.
        options: `key`, the field of a sample, or MODULE:FUNCTION, that tells samples apart; `resume`, the
            command that continues the run; `ranks`, the numbers for `{ranks}` in the program; or nothing.
        report: Called with the record, or with a sentence if nothing was received.

    Returns:
        Its own exit code if that is not 0; else 0 for `exactly once`, 1 for any other verdict, and 3 if there
        was nothing to judge.

    Raises:
        UsageError: It cannot be started, or `{ranks}` is missing.
    """
    ranks, resume = options["ranks"], options["resume"]
    if ranks and not any("{ranks}" in word for word in program):
        raise UsageError(
            f"--ranks is {','.join(map(str, ranks))}, and the program does not contain {{ranks}}",
            expected="the place where the number of ranks stands",
            next_step="Run: smallfiles audit --ranks 1,2 -- torchrun --nproc-per-node {ranks} train.py",
        )
    commands = [[word.replace("{ranks}", str(n)) for word in program] for n in ranks or ["{ranks}"]]
    commands += [shlex.split(resume)] if resume else []
    began, runs, whys = time(), list[Received](), list[str]()

    def keep(folder: Path, code: int | None, counts: object) -> None:
        runs.append(_with_names(run := read(folder), folder))
        if not run.streams:
            failed = f"no sample was recorded: {''.join(run.failed[:1])}. --key FIELD may tell samples apart"
            whys.append(failed if run.failed else why_nothing(folder, code))

    codes = [watch(command, {KEY: options["key"] or ""}, keep) for command in commands]
    code = next(filter(None, codes), 0)
    if whys:
        report(whys[0])
        return code or NOTHING
    record = record_of(runs, options, began, code)
    report(record)
    return code or int(record["verdict"] != EXACTLY_ONCE)


def _with_names(run: Received, folder: Path) -> Received:
    """Return a run in which the samples of findings have names, and some of those of each pass."""
    streams = []
    for number, stream in enumerate(run.streams):
        places = {place for each in findings.findings(run) if each.stream == number for place in each.places}
        for one in stream.passes[:8]:
            places |= {*one.samples[:5].tolist(), *one.samples[findings.spread(one)].tolist()}
        streams.append(named(stream, places, folder))
    return dataclasses.replace(run, streams=tuple(streams))


def judged(runs: Sequence[Received], options: dict[str, Any]) -> list[Finding]:
    """Return all findings of some runs, the most serious first."""
    alone = [*runs[:-1], findings.continued(runs[-1])] if options["resume"] else runs
    found = [each for run in alone for each in findings.findings(run)]
    found += findings.of_resume(*runs[-2:]) if options["resume"] else []
    found += findings.of_ranks(dict(zip(options["ranks"], runs, strict=False))) if options["ranks"] else []
    first = {(each.name, each.stream): each for each in reversed(found)}
    order = list(CURES)
    return sorted(first.values(), key=lambda each: (order.index(each.name), each.stream))


def record_of(
    runs: Sequence[Received], options: dict[str, Any], began: float, code: int | None, mixed: str = ""
) -> dict[str, Any]:
    """Return the record: verdict, findings, what is not known, and the order of the samples."""
    found = [Finding(MIXED, mixed)] if mixed else judged(runs, options)
    finished, incomplete = findings.is_finished(runs[0]), findings.NOT_FINISHED
    if options["resume"]:
        finished, incomplete = findings.is_compared(*runs[-2:]), findings.NO_REFERENCE
    part = any(len(epoch) < stream.facts["world"] for stream in runs[0].streams for epoch in stream.epochs)
    verdict = found[0].name if found else findings.PART if part else EXACTLY_ONCE if finished else incomplete
    return {
        "what": "smallfiles audit",
        "job": os.environ.get("SLURM_JOB_ID"),
        "began": began,
        "verdict": verdict,
        "findings": [_told(runs[0], each) for each in found],
        "unknown": list(_unknown(runs[0])),
        "options": options,
        **end_of(code),
        "runs": [to_record(run) for run in runs],
    }


def _told(run: Received, finding: Finding) -> dict[str, Any]:
    stream = run.streams[finding.stream]
    places = [place for place in finding.places if place < len(stream.ids)]
    return {
        "name": finding.name,
        "numbers": finding.numbers,
        "first": list(finding.files) or [stream.name(place) for place in places],
        "cure": finding.cure or CURES[finding.name],
    }


def _unknown(run: Received) -> Iterator[str]:
    """Yield what the audit cannot know."""
    for stream in run.streams:
        yield CANNOT_SEE[stream.identity]
        if stream.facts["parts"]:
            yield "whether the parts overlap: each rank has a data set of its own, and numbers it from 0"
        if drawn := stream.facts.get("drawn"):
            yield f"which samples an epoch should have: it has {drawn:,}, with repeats that were asked for"
        elif not stream.facts["covers"]:
            yield "samples that no rank received in any epoch: the loader has no list of its samples"
        if stream.facts["shuffles"] is None and findings.repeats_its_order(stream):
            yield "all epochs have one order: the loader does not say whether it should shuffle"
    if run.others:
        yield f"{plural(run.others, 'pass', 'passes')} without gradients (validation) left out"
    yield from (f"the hooks failed: {text}" for text in run.failed[:3])


def join(paths: Sequence[Path]) -> dict[str, Any]:
    """Return one record of those that several nodes wrote."""
    records = [load(path, "audit") for path in paths]
    each = zip(*([from_record(run) for run in record["runs"]] for record in records), strict=False)
    codes = [record["exit_code"] for record in records]
    code = next(filter(None, codes), codes[0])
    began = min(record["began"] for record in records)
    return record_of([joined(runs) for runs in each], records[0]["options"], began, code, _mixed(records))


def _mixed(records: Sequence[dict[str, Any]]) -> str:
    """Say why records cannot be of one run; empty if they can."""
    ranks = [
        {one["rank"] for stream in each["runs"][0]["streams"] for one in stream["passes"]} for each in records
    ]
    jobs, began = sorted({str(each["job"]) for each in records}), [each["began"] for each in records]
    apart_s = max(began) - min(began)
    if twice := {rank for one, other in combinations(ranks, 2) for rank in one & other}:
        return f"rank {min(twice)} is in more than one of the {len(records)} records"
    if len(jobs) > 1:
        return f"they are of jobs {', '.join(jobs)}"
    return f"they began {apart_s:,.0f} s apart" if apart_s > _TOGETHER_S else ""


def lines(record: dict[str, Any]) -> Iterator[str]:
    """Yield the report."""
    for number, run in enumerate(record["runs"]):
        for stream in from_record(run).streams[:4]:
            yield from _of_stream(stream, f"run {number + 1}, " if len(record["runs"]) > 1 else "")
    yield f"verdict: {record['verdict']}"
    for finding in record["findings"]:
        first = ", ".join(finding["first"])
        yield from rows(finding=finding["name"], numbers=finding["numbers"], first=first)
        yield from rows(cure=finding["cure"])
    for text in dict.fromkeys(record["unknown"]):
        yield from rows(unknown=text)
    yield from rows(end=record.get("ended"))


def _of_stream(stream: Any, which: str) -> Iterator[str]:
    facts = stream.facts
    yield f"{which}{facts['loader']} {facts['site']}: samples identified by {stream.identity}"
    for epoch in stream.epochs[:6]:
        ranks = ", ".join(
            f"rank {each.rank} {len(each.samples):,} in {plural(len(each.sizes), 'batch', 'batches')}"
            + ("" if each.ended else " (stopped)")
            for each in epoch[:8]
        )
        yield f"  epoch {epoch[0].epoch}   {ranks}"


def draw(record: dict[str, Any]) -> tuple[Figure, str]:
    """Draw ranks over the position in the epoch, coloured by sample, and describe the figure."""
    from smallfiles.measure import drawing

    stream = max((s for run in record["runs"] for s in from_record(run).streams), key=lambda s: len(s.passes))
    epochs = stream.epochs[:4]
    ranks = sorted({each.rank for each in stream.passes})[:8]
    longest = max(len(each.samples) for each in stream.passes)
    colours = _first_arrival(epochs, len(stream.ids))
    with drawing.styled():
        figure = drawing.empty_figure(1.7 + (0.3 * len(ranks) + 0.55) * len(epochs))
        axes = figure.subplots(len(epochs), 1, squeeze=False, sharex=True)[:, 0]
        for epoch, axis in zip(epochs, axes, strict=True):
            rows: dict[str, Any] = {f"rank {each.rank}": each.samples for each in epoch if each.rank in ranks}
            counts = findings.counts_of(epoch, len(stream.ids))
            if (missing := np.flatnonzero(counts == 0)).size:
                rows["missing"] = missing[:longest]
            table = np.full((len(rows), longest), np.nan)
            for row, samples in enumerate(rows.values()):
                table[row, : len(samples)] = colours[samples]
                again = np.flatnonzero(counts[samples] > 1)
                again = again[:: max(1, len(again) // 1000)]
                axis.plot(again, np.full(len(again), row + 0.36), "|", color=drawing.COLOURS[5], ms=5)
            look: dict[str, Any] = {"aspect": "auto", "interpolation": "nearest", "cmap": "viridis"}
            image = axis.imshow(table, vmin=0, vmax=max(1, len(colours) - 1), **look)
            axis.set_yticks(range(len(rows)), list(rows))
            said = f"{missing.size:,} missing, {int((counts > 1).sum()):,} more than once"
            axis.set_title(f"epoch {epoch[0].epoch}: {said}", fontsize=9, fontweight="normal")
        axes[-1].set_xlabel("position in the epoch; red marks: samples that arrive more than once")
        figure.colorbar(image, ax=axes, label="first arrival", shrink=0.9)
        name = record["verdict"]
        said = "Each sample arrives exactly once" if name == EXACTLY_ONCE else name.capitalize()
        numbers = f": {record['findings'][0]['numbers']}" if record["findings"] else ""
        title = drawing.wrapped(said + numbers)
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    return (
        figure,
        f"Order of the samples of {plural(len(ranks), 'rank')} in {plural(len(epochs), 'epoch')}. {title}",
    )


def _first_arrival(epochs: Sequence[Sequence[Any]], size: int) -> Any:
    """Return a colour for each sample: when it arrived first, rank after rank."""
    order = np.concatenate([each.samples for epoch in epochs for each in epoch])
    first = np.full(size, len(order))  # of a sample that never arrives
    first[order[::-1]] = np.arange(len(order))[::-1]
    return np.argsort(np.argsort(first, kind="stable"))
