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
from smallfiles.doctor.finding import Finding
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
    told = _summary(found) if folder.exists() else f"not there yet; {_summary(found)}"
    if folder.exists() and not folder.is_dir():
        return Finding(name, f"a file on {told}", "warn", "Give the folder that it is in.")
    if not _is_writable(folder):
        return Finding(
            name, f"{told}, not writable", "warn", "Give your results another folder than this one."
        )
    if found.free_bytes < NEEDED_BYTES:
        return Finding(name, told, "warn", "Make room: less than 10 GB is free.")
    if found.inodes_free is not None and found.inodes_free < NEEDED_INODES:
        return Finding(name, told, "warn", "Few files more fit, whatever bytes are free: pack them.")
    if found.shared:
        return Finding(
            name,
            told,
            advice="Each open asks a server that all users share: pack small files into few large ones.",
        )
    return Finding(name, told)


def _quota(folder: Path) -> Iterator[Finding]:
    """What one may still store there, where a tool tells."""
    found = machine.quota(folder)
    if found is None:
        return
    told = [f"{bytes_text(found.used_bytes)} of {bytes_text(found.limit_bytes)}"] if found.limit_bytes else []
    told += [f"{found.used_files:,} of {found.limit_files:,} files"] if found.limit_files else []
    name, value = f"quota {folder}", f"{' and '.join(told)} used ({found.holder}, {found.tool})"
    if found.share < NEARLY_FULL:
        yield Finding(name, value)
        return
    advice = "Nearly full: delete or move something, or pack small files; a full quota stops a job half way."
    yield Finding(name, value, "warn", advice)


def _striping(folder: Path) -> Iterator[Finding]:
    """Over how many servers a large file there will go, on Lustre."""
    found = machine.striping(folder)
    if found is None:
        return
    count = "all storage targets" if found.count < 0 else f"{found.count} of the storage targets"
    grown = ", once a file has grown" if found.components > 1 else ""
    value = f"{count}, {bytes_text(found.size_bytes)} each{grown}"
    advice = "Right for small files; for packed ones of many GB: lfs setstripe -c 8 DIR, before packing."
    yield Finding(f"striping {folder}", value, advice=advice if found.count == 1 else "")


def _environment() -> Finding:
    found = machine.filesystem(Path(sys.prefix))
    value = f"{sys.prefix} on {found.kind}"
    if found.shared:
        return Finding(
            "environment", value, "warn", "Importing opens thousands of files there: expect slow starts."
        )
    return Finding("environment", value)


def _temporary() -> Finding:
    try:
        folder = Path(tempfile.gettempdir())
    except FileNotFoundError:
        return Finding(
            "temporary files", "no usable folder", "fail", "Set TMPDIR to a folder that you may write to."
        )
    found = machine.filesystem(folder)
    value = f"{folder}: {_summary(found)}"
    if found.shared:
        return Finding(
            "temporary files",
            value,
            "warn",
            "Set TMPDIR to node-local storage; this one is over the network.",
        )
    if found.free_bytes < NEEDED_SHARED_MEMORY_BYTES:
        return Finding("temporary files", value, "warn", "Set TMPDIR to a folder with more space.")
    return Finding("temporary files", value)


def _shared_memory(folder: Path) -> Finding:
    if not folder.is_dir():
        return Finding(str(folder), "not there", "warn", "Loading with workers needs it: use num_workers=0.")
    found = machine.filesystem(folder)
    value = f"{bytes_text(found.total_bytes)}, {bytes_text(found.free_bytes)} free"
    if not _is_writable(folder):
        return Finding(str(folder), f"{value}, not writable", "fail", "Ask your administrator for access.")
    if found.free_bytes < NEEDED_SHARED_MEMORY_BYTES:
        advice = "Workers may die of a bus error: free it, or start the container with --shm-size=8g."
        return Finding(str(folder), value, "warn", advice)
    return Finding(
        str(folder), value, advice="It is memory: what lies there counts against your job's limit."
    )


def _node_local() -> Iterator[Finding]:
    for variable in NODE_LOCAL_VARIABLES:
        folder = os.environ.get(variable)
        if not folder:
            continue
        if Path(folder).is_dir():
            yield Finding(f"${variable}", f"{folder}: {_summary(machine.filesystem(Path(folder)))}")
        else:
            advice = f"Create it (mkdir -p), or unset {variable}."
            yield Finding(f"${variable}", f"{folder} is not there", "warn", advice)


def _hdf5_locking(folders: Sequence[Path]) -> Finding:
    setting = os.environ.get("HDF5_USE_FILE_LOCKING")
    value = "not set" if setting is None else setting
    if any(map(_is_shared, folders)) and (setting or "").upper() not in LOCKING_OFF:
        advice = "Run `export HDF5_USE_FILE_LOCKING=FALSE` before Python: locks often fail on shared storage."
        return Finding("HDF5_USE_FILE_LOCKING", value, "warn", advice)
    return Finding("HDF5_USE_FILE_LOCKING", value)


def _mounting() -> Finding:
    reason = slowfs.why_not()
    if reason is None:
        return Finding("FUSE", "folders can be mounted without root")
    return Finding("FUSE", reason, advice="Nothing to do: slow folders are imitated in the notebook instead.")


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
