"""What this machine is, what is missing, what to do: the first thing to run on a cluster.

The trap: a login node, a compute node and a job on it are three machines with other CPUs, memory
and storage. What is found here holds for where it was asked. Notebook 00 starts with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from smallfiles.doctor import hardware, software, storage
from smallfiles.doctor.finding import Finding, Verdict

__all__ = ["Finding", "Verdict", "examine"]


def examine(*paths: Path, workshop: bool = False) -> list[Finding]:
    """Look at everything that decides how fast, and whether, the course runs here.

    Finding a 64 MB `/dev/shm` or a single usable CPU now costs a second; finding it in the middle of
    a job costs the job.

    Args:
        paths: Folders whose file systems are looked at besides the current one's.
        workshop: Whether to look at what participants of the course need, too.

    Returns:
        The findings in the order to read them. What cannot be examined is a finding too: nothing here raises.
    """
    folders = tuple(dict.fromkeys((Path(), *paths)))
    parts: list[tuple[str, Callable[[], Iterable[Finding]]]] = [
        ("machine", hardware.findings),
        ("storage", lambda: storage.findings(folders)),
        ("software", software.findings),
        ("scheduler", hardware.scheduler),
    ]
    if workshop:
        from smallfiles.doctor import workshop as course

        parts.append(("workshop", lambda: course.findings(Path())))
    return [finding for name, part in parts for finding in _guarded(name, part)]


def _guarded(name: str, part: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """The findings of one part; if it breaks, those so far and one that says so."""
    found: list[Finding] = []
    try:
        found.extend(part())
    except Exception as error:  # whatever is odd here is what the user wants to read about
        reason = str(error) or type(error).__name__
        advice = "Read the reason; the rest of this report still holds."
        found.append(Finding(name, f"could not be examined ({reason})", "warn", advice))
    return found
