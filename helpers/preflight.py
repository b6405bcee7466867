"""Everything that the week before a course asks, in one report: `make preflight SITE=…`.

The traps: a login node, a compute node and JupyterHub are three machines, so run it where participants will
sit; and a data set that nobody has made yet is made by thirty kernels at once on the first morning. Nothing
is submitted, and nothing is written.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from helpers import jobs, worksheet
from helpers.cache import cache_folder, places_of
from helpers.kernel import CHECKOUT
from helpers.plans import PLANS
from smallfiles.cli.output import guarded, print_json
from smallfiles.doctor import Finding, examine, judged
from smallfiles.errors import SmallfilesError

JOBS = ("00_make_data", "03_pack_arrow", "01_probe", "07_broadcast", "10_read")
"""The jobs that the instructor guide submits in the week before, in their order."""
KERNEL = "smallfiles"
SIGNS = {"ok": "ok  ", "absent": "-   ", "warn": "warn", "fail": "FAIL"}


def look(root: Path, site: str) -> list[Finding]:
    """All findings.

    Args:
        root: The checkout.
        site: A file of `slurm/sites`; empty where there is no Slurm, as on many JupyterHubs.
    """
    place = cache_folder()
    machine = examine(place if place.is_dir() else root, workshop=True)
    return [*machine, *_slurm(root, site), _kernel(), *_installation(root), *_data(), _rehearsal()]


def _slurm(root: Path, site: str) -> Iterator[Finding]:
    if not site:
        yield Finding("jobs", "no site was named", "warn", "With Slurm: make preflight SITE=NAME.")
        return
    jobs.load(root, site)
    made: list[Path] = []  # by the jobs before
    for name in JOBS:
        outputs = jobs.outputs(root, site, name)
        if done := [path for path in outputs if path.exists()]:
            yield Finding(f"job {name}", f"has run: {done[0]} is there", "ok", "")
            continue
        try:
            chain = jobs.plan(root, site, name, made=made)
        except SmallfilesError as error:
            yield Finding(f"job {name}", error.got, "fail", f"{error.next_step}.")
        else:
            advice = f"Checked, not submitted: slurm/submit {site} {name}"
            advice += ", when the jobs above have ended." * bool(made)
            yield Finding(f"job {name}", f"can be submitted, to run in {chain[0].work}", "ok", advice)
            made += outputs


def _kernel() -> Finding:
    from jupyter_client.kernelspec import KernelSpecManager

    found = KernelSpecManager().get_all_specs().get(KERNEL)
    python = found["spec"]["argv"][0] if found else ""
    ours = bool(python) and Path(shutil.which(python) or python).absolute() == Path(sys.executable).absolute()
    return judged(
        "kernel",
        python or "not registered",
        (not python, "warn", "Each participant runs `make kernel` once; run it now to try it."),
        (not ours, "warn", "It starts another environment than this one: run `make kernel` here."),
    )


def _installation(root: Path) -> Iterator[Finding]:
    mode = root.stat().st_mode
    yield judged(
        "installation",
        f"{root}, mode {mode & 0o777:o}",
        (not mode & 0o005, "warn", "Others cannot read it: chmod -R a+rX,go-w in it."),
        (mode & 0o022, "warn", "Others may write to it: chmod -R a+rX,go-w in it."),
    )
    work = os.environ.get("COURSE_WORK", "")
    yield judged(
        "COURSE_WORK",
        work or "not set: output goes to ~/smallfiles_work",
        (not work, "ok", "Set it to scratch where homes are small."),
        (not Path(work).expanduser().is_absolute(), "fail", "Give an absolute path."),
    )


def _data() -> Iterator[Finding]:
    """Whether the data sets of all notebooks are there."""
    wanted = {f"{layout}-{plan.small}" for plan in PLANS.values() for layout in plan.wants}
    cache = cache_folder()
    gone = sorted(name for name in wanted if not any(place.is_dir() for place in places_of(cache / name)))
    advice = "Make them once for all: the guide's loop over PLANS, under `One installation for all`."
    value = f"{len(wanted) - len(gone)} of {len(wanted)} are made"
    yield judged("data sets", value + (f"; not {', '.join(gone)}" if gone else ""), (gone, "warn", advice))


def _rehearsal() -> Finding:
    total, gone = sum(map(len, worksheet.NUMBERS.values())), worksheet.missing()
    advice = "Run the notebooks on the course's node type, and keep the executed copies."
    value = f"{total - len(gone)} of {total} of my numbers are noted"
    return judged("rehearsal", value, (gone, "warn", advice))


def run(arguments: argparse.Namespace) -> int:
    """Print the report."""
    findings = look(CHECKOUT, arguments.site)
    worst = [finding for finding in findings if finding.verdict == "fail"]
    if arguments.json:
        print_json({"findings": [asdict(finding) for finding in findings]})
        return 1 if worst else 0
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        print(f"{SIGNS[finding.verdict]} {finding.name:<{width}}  {finding.value}")
        if finding.advice:
            print(f"     {'':<{width}}  {finding.advice}")
    warned = sum(finding.verdict == "warn" for finding in findings)
    print(f"\n{len(findings)} looked at: {len(worst)} to repair, {warned} to know about")
    return 1 if worst else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code, 1 if something must be repaired."""
    parser = argparse.ArgumentParser(prog="make preflight", description="What the week before a course asks.")
    parser.add_argument("site", nargs="?", default="", help="a file of slurm/sites; none without Slurm")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an unexpected error")
    return guarded(run, parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
