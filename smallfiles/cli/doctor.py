"""`doctor`: describe this machine, what is missing, and what to do."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from smallfiles.cli.arguments import Verbs, add_path, add_run
from smallfiles.cli.failures import FAILED
from smallfiles.cli.output import report, sign

if TYPE_CHECKING:
    from smallfiles.doctor import Finding

_SIGNS = {"ok": ("✓", "+"), "absent": ("-", "-"), "warn": ("!", "!"), "fail": ("✗", "x")}


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_run(verbs, "doctor", run)
    add_path(parser, "paths", "DIR", "further folders to examine", nargs="*")
    parser.add_argument("--workshop", action="store_true", help="also check whether a workshop can run here")
    text = "measure the first DIR, and write an anonymous record: no user, host, account or path"
    add_path(parser, "--share", "R.json", text)


def run(arguments: argparse.Namespace) -> int:
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
    report(arguments, {"findings": [asdict(finding) for finding in findings]}, *_lines(findings))
    return FAILED if any(finding.verdict == "fail" for finding in findings) else 0


def _lines(findings: list[Finding]) -> Iterator[str]:
    width = max((len(finding.name) for finding in findings), default=0)
    for finding in findings:
        yield f"{sign(*_SIGNS[finding.verdict])} {finding.name:<{width}}  {finding.value}"
        if finding.advice:
            yield textwrap.indent(textwrap.fill(finding.advice, max(40, 96 - width)), " " * (width + 4))
