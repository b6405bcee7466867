"""The file systems at hand: where you are, where temporary files go, memory-backed and node-local ones.

The trap: `/dev/shm` is memory. In a container it may be 64 MB (workers then die of a bus error), on
a cluster it counts against the job's limit.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from smallfiles import machine, slowfs
from smallfiles.doctor.finding import Finding, judged
from smallfiles.errors import SmallfilesError
from smallfiles.progress import bytes_text

SHARED_MEMORY = Path("/dev/shm")
NEEDED_BYTES = 10 * 10**9
NEEDED_INODES = 100_000
NEARLY_FULL = 0.9
USUAL_BLOCK_BYTES = 64 << 10
NEEDED_SHARED_MEMORY_BYTES = 10**9
NODE_LOCAL_VARIABLES = ("SLURM_TMPDIR", "LOCAL_SCRATCH", "VSC_SCRATCH_NODE", "L_SCRATCH", "TMPDIR")
LOCKING_OFF = ("FALSE", "0", "BEST_EFFORT")


def findings(folders: Sequence[Path]) -> Iterator[Finding]:
    """Folders with quota and striping, the environment, temporary and memory-backed storage, HDF5 locking."""
    for folder in folders:
        yield _folder(folder)
        yield from _quota(folder)
        yield from _striping(folder)
    yield _environment()
    yield _temporary()
    yield _shared_memory(SHARED_MEMORY)
    yield from _node_local()
    yield _hdf5_locking(folders)
    yield _mounting()


def _summary(found: machine.FileSystem) -> str:
    """A file system in a few words."""
    inodes = "" if found.inodes_free is None else f" and {found.inodes_free:,} files"
    place = "shared" if found.shared else "local"
    large = found.block_bytes > USUAL_BLOCK_BYTES
    blocks = f", in blocks of {bytes_text(found.block_bytes)}" if large else ""
    return f"{found.kind} ({place}), {bytes_text(found.free_bytes)}{inodes} free{blocks}"


def _folder(folder: Path) -> Finding:
    name = f"folder {folder}"
    try:
        found = machine.filesystem(folder)
    except SmallfilesError as error:
        return Finding(name, error.got, "fail", f"{error.next_step}.")
    there, writable = folder.exists(), _is_writable(folder)
    a_file = there and not folder.is_dir()
    few = found.inodes_free is not None and found.inodes_free < NEEDED_INODES
    told = "a file on " * a_file + "not there yet; " * (not there) + _summary(found)
    return judged(
        name,
        told + ", not writable" * (not a_file and not writable),
        (a_file, "warn", "Give the folder that it is in."),
        (not writable, "warn", "Give your results another folder than this one."),
        (found.free_bytes < NEEDED_BYTES, "warn", "Make room: less than 10 GB is free."),
        (few, "warn", "Few files more fit, whatever bytes are free: pack them."),
        (
            found.shared,
            "ok",
            "Each open asks a server that all users share: pack small files into few large ones.",
        ),
    )


def _quota(folder: Path) -> Iterator[Finding]:
    """What one may still store there, where a tool tells."""
    found = machine.quota(folder)
    if found is None:
        return
    told = [f"{bytes_text(found.used_bytes)} of {bytes_text(found.limit_bytes)}"] if found.limit_bytes else []
    told += [f"{found.used_files:,} of {found.limit_files:,} files"] if found.limit_files else []
    value = f"{' and '.join(told)} used ({found.holder}, {found.tool})"
    advice = "Nearly full: delete or move something, or pack small files; a full quota stops a job half way."
    yield judged(f"quota {folder}", value, (found.share >= NEARLY_FULL, "warn", advice))


def _striping(folder: Path) -> Iterator[Finding]:
    """Over how many servers a large file there will go, on Lustre."""
    found = machine.striping(folder)
    if found is None:
        return
    count = "all storage targets" if found.count < 0 else f"{found.count} of the storage targets"
    grown = ", once a file has grown" if found.components > 1 else ""
    value = f"{count}, {bytes_text(found.size_bytes)} each{grown}"
    advice = "Right for small files; for packed ones of many GB: lfs setstripe -c 8 DIR, before packing."
    yield judged(f"striping {folder}", value, (found.count == 1, "ok", advice))


def _environment() -> Finding:
    found = machine.filesystem(Path(sys.prefix))
    advice = "Importing opens thousands of files there: expect slow starts."
    return judged("environment", f"{sys.prefix} on {found.kind}", (found.shared, "warn", advice))


def _temporary() -> Finding:
    try:
        folder = Path(tempfile.gettempdir())
    except FileNotFoundError:
        advice = "Set TMPDIR to a folder that you may write to."
        return Finding("temporary files", "no usable folder", "fail", advice)
    found = machine.filesystem(folder)
    little = found.free_bytes < NEEDED_SHARED_MEMORY_BYTES
    return judged(
        "temporary files",
        f"{folder}: {_summary(found)}",
        (found.shared, "warn", "Set TMPDIR to node-local storage; this one is over the network."),
        (little, "warn", "Set TMPDIR to a folder with more space."),
    )


def _shared_memory(folder: Path) -> Finding:
    if not folder.is_dir():
        return Finding(str(folder), "not there", "warn", "Loading with workers needs it: use num_workers=0.")
    found, writable = machine.filesystem(folder), _is_writable(folder)
    small = "Workers may die of a bus error: free it, or start the container with --shm-size=8g."
    return judged(
        str(folder),
        f"{bytes_text(found.total_bytes)}, {bytes_text(found.free_bytes)} free"
        + ", not writable" * (not writable),
        (not writable, "fail", "Ask your administrator for access."),
        (found.free_bytes < NEEDED_SHARED_MEMORY_BYTES, "warn", small),
        (True, "ok", "It is memory: what lies there counts against your job's limit."),
    )


def _node_local() -> Iterator[Finding]:
    for variable in NODE_LOCAL_VARIABLES:
        folder = os.environ.get(variable)
        if not folder:
            continue
        there = Path(folder).is_dir()
        told = f": {_summary(machine.filesystem(Path(folder)))}" if there else " is not there"
        advice = f"Create it (mkdir -p), or unset {variable}."
        yield judged(f"${variable}", folder + told, (not there, "warn", advice))


def _hdf5_locking(folders: Sequence[Path]) -> Finding:
    setting = os.environ.get("HDF5_USE_FILE_LOCKING")
    fails = any(map(_is_shared, folders)) and (setting or "").upper() not in LOCKING_OFF
    advice = "Run `export HDF5_USE_FILE_LOCKING=FALSE` before Python: locks often fail on shared storage."
    return judged("HDF5_USE_FILE_LOCKING", setting or "not set", (fails, "warn", advice))


def _mounting() -> Finding:
    reason = slowfs.why_not()
    advice = "Nothing to do: slow folders are imitated in the notebook instead."
    return judged("FUSE", reason or "folders can be mounted without root", (reason, "ok", advice))


def _is_shared(folder: Path) -> bool:
    try:
        return machine.is_parallel_filesystem(folder)
    except SmallfilesError:
        return False


def _is_writable(folder: Path) -> bool:
    """Whether one may create files in `folder`, or in the nearest parent that exists."""
    real = Path(os.path.realpath(folder))
    for candidate in (real, *real.parents):
        if os.access(candidate, os.F_OK):
            return os.access(candidate, os.W_OK | os.X_OK)
    return False
