"""Whether the course runs here as it is taught: `doctor --workshop`, a week before and on the day.

What a notebook lacks does not break it: it says so and shows less. But thirty people who see less than the
teacher lose an hour. The trap: a login node passes, and the compute node on which Jupyter starts does not;
so run it where participants will sit. Notebook 00 starts with the doctor.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from smallfiles import machine, slowfs
from smallfiles.doctor.finding import Finding
from smallfiles.machine import nodelocal
from smallfiles.progress import bytes_text

CPUS, MEMORY_BYTES, DISK_BYTES, SHM_BYTES, FILES = 2, 4 << 30, 5 << 30, 1 << 30, 20_000
_TOOLS = {"mksquashfs": "06", "squashfuse": "06", "sbatch": "10"}


def findings(folder: Path) -> Iterator[Finding]:
    """What each participant needs, and which notebook shows less without it.

    Args:
        folder: Where they will work.
    """
    place, shm = machine.filesystem(folder), nodelocal.node_local(nodelocal.SHARED_MEMORY)
    yield _enough(
        "CPUs", machine.usable_cpus(), CPUS, "Ask for more CPUs per job, or 08 and 10 show no gain."
    )
    memory = machine.memory_limit_bytes()
    yield _enough("memory", memory, MEMORY_BYTES, "Ask for more memory per job, or kernels will be killed.")
    advice = "Set COURSE_CACHE to a folder with more room."
    yield _enough("disk", place.free_bytes, DISK_BYTES, advice)
    if place.inodes_free is not None:
        yield _enough("files", place.inodes_free, FILES, advice)
    yield _enough("/dev/shm", shm.free_bytes, SHM_BYTES, "07 stages to disk, and 08 has small rings only.")
    why_not = slowfs.why_not()
    advice = (
        "01, 04, 06, 07 and 10 cannot imitate slow storage; show the teacher's figures." if why_not else ""
    )
    yield Finding("workshop: slowfs", why_not or "can be mounted", "warn" if why_not else "ok", advice)
    for tool, notebook in _TOOLS.items():
        missing = shutil.which(tool) is None
        advice = f"Notebook {notebook} shows less without it." if missing else ""
        value = "is not installed" if missing else "installed"
        yield Finding(f"workshop: {tool}", value, "ok", advice)


def _enough(what: str, found: int, wanted: int, advice: str) -> Finding:
    """A number against what a participant needs."""
    shown, least = (bytes_text(n) if wanted >= SHM_BYTES else f"{n:,}" for n in (found, wanted))
    short = found < wanted
    value = f"{shown}, {'less than' if short else 'at least'} the {least} that a participant needs"
    return Finding(f"workshop: {what}", value, "warn" if short else "ok", advice if short else "")
