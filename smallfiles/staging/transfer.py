"""The second kind of staging: to scratch, from an archive that compute nodes cannot see.

It runs on a transfer node, takes long, and is often interrupted. A second run reads back what is on
scratch, which is near, keeps the blocks that match their digest, and copies the rest from the archive;
a file without a digest is copied from its beginning. The trap: scratch is purged after weeks, so
keep the original. Notebook 07.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from pathlib import Path

from smallfiles import machine
from smallfiles.atomic import Draft, bytes_and_files_of, check_room, drafted, sweep
from smallfiles.digests import ContentDigest, sidecar
from smallfiles.errors import OutputExistsError, UsageError, writing
from smallfiles.progress import bytes_text
from smallfiles.staging import Staged, placement
from smallfiles.staging.copying import copy_files
from smallfiles.staging.placement import Member, Output
from smallfiles.staging.run import UNVERIFIED

_INODES_TO_LEAVE = 100
_STRIPE_S = 30


def stage_to(src: Path | str, folder: Path | str) -> Staged:
    """Copy a packed output to a folder that outlives the job; verified, and resumable by its digest.

    Args:
        src: A packed file or a folder of shards.
        folder: Where to put it, on scratch; created if missing.

    Returns:
        The copy, `reused` if it already existed.

    Raises:
        OutputExistsError: A different file has its name there.
        ResourceError: No room, no permission.
        DamagedFileError: The source is not what was packed.
        SourceError: The source is missing, or changed while it was copied.
        BusyError: Another run copies to the same name.
    """
    started = time.perf_counter()
    output = placement.find_output(Path(src))
    out = _target(output, Path(folder))
    sweep(out)
    notes: tuple[str, ...] = () if output.has_digests else (UNVERIFIED,)
    if _is_there(output, out):
        return _reused(output, out, started)
    check_room(out, output.bytes - bytes_and_files_of(out)[0], len(output.members) + _INODES_TO_LEAVE)
    try:
        with drafted(out, "staging") as draft, writing(out):
            kept = _copy(output, draft)
            draft.publish()
    except OutputExistsError:
        if _is_there(output, out):  # another run has just finished it
            return _reused(output, out, started)
        raise
    seconds = time.perf_counter() - started
    if kept:
        notes += (f"{bytes_text(kept)} were copied by an earlier run, read back and kept",)
    rate = (output.bytes - kept) / max(seconds, 1e-9)
    return Staged(out, output.bytes, False, seconds, rate, len(output.members), output.has_digests, notes)


def _reused(output: Output, out: Path, started: float) -> Staged:
    seconds = time.perf_counter() - started
    same = "digest" if output.has_digests else "time"
    note = f"{out} was there already, of the same size and {same}; `verify` reads it back"
    return Staged(out, output.bytes, True, seconds, 0.0, len(output.members), False, (note,))


def _target(output: Output, folder: Path) -> Path:
    out = folder.absolute() / output.name
    source = Path(os.path.realpath(output.source))
    if Path(os.path.realpath(out)) == source or source in Path(os.path.realpath(out)).parents:
        raise UsageError(
            f"{out} is the source itself, or inside it",
            expected="a folder elsewhere",
            next_step="Choose another folder for --to",
        )
    return out


def _is_there(output: Output, out: Path) -> bool:
    """Whether all files exist with the same sizes, and the same digests or (without one) times."""
    try:
        for member in output.members:
            found = (out.parent / member.name).stat()
            same_time = found.st_mtime_ns == member.seen[3]
            if found.st_size != member.bytes or (member.digest is None and not same_time):
                return False
            if member.digest is not None and not _same_digest(member, out.parent / member.name):
                return False
        return True
    except OSError:
        return False


def _same_digest(member: Member, copy: Path) -> bool:
    digest = sidecar(copy)
    return digest.is_file() and ContentDigest.load(digest) == member.digest


def _copy(output: Output, draft: Draft) -> int:
    """Copy into the private folder; the bytes that an earlier run had copied."""
    key = draft.records / "key"
    resume = key.exists() and key.read_text() == output.key
    if not resume:
        draft.clear()
        _stripe(output, draft.data)
        key.write_text(output.key)
    _, kept_bytes = copy_files(output, draft.data, resume=resume)
    for member in output.members:  # as rsync does: then equal size and time mean equal bytes
        os.utime(draft.data / member.name, ns=(member.seen[3], member.seen[3]))
    return kept_bytes


def _stripe(output: Output, folder: Path) -> None:
    """Stripe large files on Lustre over several servers; the layout is fixed by the first byte."""
    lfs = shutil.which("lfs")
    largest = max(member.bytes for member in output.members)
    stripes = machine.stripes_for(largest)
    if lfs is None or stripes == 1 or machine.filesystem(folder).kind != "lustre":
        return
    command = [lfs, "setstripe", "-c", str(stripes), str(folder)]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):  # slower without it, but correct
        subprocess.run(command, capture_output=True, timeout=_STRIPE_S, check=False)
