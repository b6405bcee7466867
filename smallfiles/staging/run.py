"""Stage, list and remove copies: one process per node copies, verifies and publishes, and all others use its
copy.

The traps: `rm -rf` removes a copy that another job still reads; `unstage` releases only the own lease, and
removes the copy when no lease is left. And eight ranks that each check for room, find it, and copy at once
fill the memory eight times. So the room is checked under the lock only.

A copy is removed when the last process that uses it ends: at exit and on signals. An existing signal
handler (of a training that saves its state on SIGTERM and reads on) is kept, and the exit that follows
cleans up. The next job removes what a `kill -9` leaves.
The second kind of staging (`stage_to`) copies to scratch, from an archive that compute nodes cannot see. It
runs on a transfer node, takes long, and is often interrupted. A second run reads back what is on
scratch, which is near, keeps the blocks that match their digest, and copies the rest from the archive;
a file without a digest is copied from its beginning. The trap: scratch is purged after weeks, so
keep the original. Notebook 07.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

from smallfiles import locks, machine, processes, storage
from smallfiles.atomic import Draft, bytes_and_files_in, bytes_and_files_of, check_room, drafted, sweep
from smallfiles.digests import ContentDigest, sidecar
from smallfiles.errors import OutputExistsError, ResourceError, UsageError, writing
from smallfiles.locks import check, existing_folder, folder_name, private_folder
from smallfiles.machine import nodelocal
from smallfiles.machine.nodelocal import NodeLocal
from smallfiles.processes import Owner, names_of_this_job, this_job
from smallfiles.progress import bytes_text, progress
from smallfiles.staging import StageConfig, Staged, placement
from smallfiles.staging.copying import copy_files
from smallfiles.staging.placement import INODES_TO_LEAVE, Member, PackedOutput, folder_kind, host_kind
from smallfiles.staging.slots import TRIES, Slot, remove_unused, slots
from smallfiles.staging.slots import sweep as sweep_slots

_SHORTEST_S, _LONGEST_S = 0.005, 0.1
_MOST_WAIT_S = 3600.0
_MIB = 1 << 20
UNVERIFIED = "not verified against a digest, since the source has none; computed while copying"


Make: TypeAlias = Callable[[Slot], tuple[Sequence[str], dict[str, Any]]]
"""Fills the folder `copying` of the slot; returns the names and facts to publish."""


@dataclass(frozen=True)
class Use:
    """One use of a slot by this process."""

    slot: Slot
    descriptor: int
    reused: bool
    copy_s: float

    def leave(self) -> None:
        """End it; the last user removes the copy, unless a running job has a lease on it."""
        if _unregister(self.descriptor):
            self.slot.leave(self.descriptor)


_uses: dict[Path, list[Use]] = {}


def stage(src: Path | str, where: str | Path = "auto", *, config: StageConfig | None = None) -> Staged:
    """Copy a packed output to storage of this node, once per node, and keep it until this process ends.

    Every epoch then reads from memory or a local disk; the parallel file system is read once per node,
    not in every epoch.

    Args:
        src: A packed file or a folder of shards.
        where: `auto`, or a directory of this node.
        config: Room to leave.

    Returns:
        The copy; pass its `path` to `smallfiles.formats.open`. It is removed when the last process that
        uses it ends; `unstage(path)` releases it earlier.

    Raises:
        ResourceError: No place has the room, or a folder of another user is in the way.
        DamagedFileError: The source is not what was packed.
        SourceError: The source is missing, or changed while it was copied.
    """
    staged, _ = _stage(Path(src), where, config or StageConfig())
    return staged


@contextmanager
def staged(
    src: Path | str, where: str | Path = "auto", *, config: StageConfig | None = None
) -> Iterator[Staged]:
    """Stage a copy for the duration of a `with` block. Arguments and errors are those of `stage`.

    Yields:
        The copy. It is released when the block ends, even by an error.
    """
    copy, use = _stage(Path(src), where, config or StageConfig())
    try:
        yield copy
    finally:
        _release(copy.path, use)


def stage_for_job(
    src: Path | str, where: str | Path = "auto", *, config: StageConfig | None = None
) -> Staged:
    """Stage a copy that belongs to the job, for a command that ends before its copy is used.

    Args:
        src: As for `stage`.
        where: As for `stage`.
        config: As for `stage`.

    Returns:
        The copy. If the job ends without `unstage`, the next `stage` on this node removes it.
    """
    copy, use = _stage(Path(src), where, config or StageConfig())
    try:
        use.slot.acquire(this_job())
    finally:
        _release(copy.path, use)
    return copy


def release(path: Path) -> bool:
    """End one use of a copy by this process; whether there was one."""
    found = _uses.get(path)
    if not found:
        return False
    _release(path, found[-1])
    return True


def _release(path: Path, use: Use) -> None:
    remaining = _uses.get(path, [])
    if use in remaining:
        remaining.remove(use)
        if not remaining:
            _uses.pop(path, None)
        use.leave()


def _stage(src: Path, where: str | Path, config: StageConfig) -> tuple[Staged, Use]:
    started = time.perf_counter()
    with storage.timeout(config.storage_timeout_s):
        output = placement.find_output(src)

        def stage_at(place: NodeLocal) -> Use:
            return once(slot_at(place, output.key), output, partial(_copy, place, output, config))

        use, place, passed = placement.in_first(where, output, stage_at)
        path = use.slot.data / output.name
        _uses.setdefault(path, []).append(use)
        why = placement.why(place, output, passed, reused=use.reused)
    notes = (why,) if output.has_digests else (why, UNVERIFIED)
    seconds = time.perf_counter() - started
    rate = 0.0 if use.reused else output.bytes / max(use.copy_s, 1e-9)
    files = len(output.members)
    return Staged(path, output.bytes, use.reused, seconds, rate, files, output.has_digests, notes), use


def slot_at(place: NodeLocal, key: str) -> Slot:
    """Return the slot of this content at a place, after removing what ended jobs have left there."""
    folder = private_folder(place.path, placement.folder_kind(place.filesystem))
    sweep_slots(folder, spare=key)
    return Slot(folder, key)


def once(slot: Slot, output: PackedOutput, make: Make) -> Use:
    """Use a slot: one process of the node fills it while the others wait.

    Args:
        slot: The slot.
        output: Its future content, to report progress while waiting.
        make: Fills it.

    Returns:
        A shared lock of the finished slot, released at the end of the process at the latest.
    """
    until = time.monotonic() + _MOST_WAIT_S
    while True:
        descriptor, finished = _acquire(slot, output, until)
        copy_s = 0.0 if finished else _fill(slot, descriptor, make)
        _register(descriptor, partial(slot.leave, descriptor), inherited=True)
        locks.downgrade(descriptor)
        if locks.is_same_file(slot.lock, descriptor) and slot.facts() is not None:
            return Use(slot, descriptor, finished, copy_s)
        _unregister(descriptor)
        locks.unlock(descriptor)  # another process swept it between the two locks


def _acquire(slot: Slot, output: PackedOutput, until: float) -> tuple[int, bool]:
    """Lock the slot: shared if it is finished, exclusive if this process must fill it."""
    found = _try(slot)
    if found is not None:
        return found
    pause_s, seen = _SHORTEST_S, 0
    owner = slot.owner()
    who = f"process {owner.name}" if owner is not None else "another process"
    total = max(1, output.bytes // _MIB)
    with progress(total, f"waiting for {who}, which copies {output.name}", unit="MiB") as bar:
        while (found := _try(slot)) is None:
            if time.monotonic() > until:
                raise ResourceError(
                    f"{who} has been copying {output.name} to {slot.folder} for too long",
                    expected=f"a finished copy within {_MOST_WAIT_S:.0f} s",
                    next_step="See what it does with: smallfiles staged",
                )
            time.sleep(random.uniform(pause_s / 2, pause_s))
            pause_s = min(pause_s * 1.5, _LONGEST_S)
            now = min(total, bytes_and_files_in(slot.copying)[0] // _MIB)
            bar.advance(max(0, now - seen))
            seen = max(seen, now)
        bar.advance(total - seen)
    return found


def _try(slot: Slot) -> tuple[int, bool] | None:
    descriptor = locks.try_lock(slot.lock, shared=False)
    if descriptor is not None:
        return descriptor, slot.facts() is not None
    if slot.marker.exists():
        descriptor = locks.try_lock(slot.lock, shared=True)
        if descriptor is not None:
            if slot.facts() is not None:
                return descriptor, True
            locks.unlock(descriptor)
    return None


def _fill(slot: Slot, descriptor: int, make: Make) -> float:
    """Fill and publish the slot under the exclusive lock; the seconds of filling. Failure leaves nothing."""
    abandon = partial(slot.remove, descriptor)
    _register(descriptor, abandon, inherited=False)
    try:
        slot.begin()  # removes unfinished copies first, which take room
        started = time.perf_counter()
        names, facts = make(slot)
        copy_s = time.perf_counter() - started
        slot.publish(names, facts)
    except BaseException:
        if _unregister(descriptor):
            abandon()
        raise
    return copy_s


def _copy(
    place: NodeLocal, output: PackedOutput, config: StageConfig, slot: Slot
) -> tuple[Sequence[str], dict[str, Any]]:
    """Copy an output into a slot."""
    placement.check_room(place, output, config)
    names, _ = copy_files(output, slot.copying)
    return names, facts_of(output)


def facts_of(output: PackedOutput) -> dict[str, Any]:
    """Return the facts that the marker of a copy records."""
    facts = {"name": output.name, "source": str(output.source)}
    return {**facts, "bytes": output.bytes, "verified": output.has_digests}


_locks: dict[int, tuple[int, bool, Callable[[], object]]] = {}
"""By descriptor of the lock: the process that took it, whether forked children keep it, how to release it."""

_ready = False


def _register(descriptor: int, release: Callable[[], object], *, inherited: bool) -> None:
    """Have `release` called when this process ends, unless `_unregister` is called before.

    Args:
        descriptor: The open lock, which identifies the entry.
        release: Must be quick, and must not fail.
        inherited: Whether forked children keep the lock: they use a finished copy, but never fill one.
    """
    global _ready
    if not _ready:
        atexit.register(release_all)
        os.register_at_fork(after_in_child=_in_child)
        _ready = True
    _locks[descriptor] = (os.getpid(), inherited, release)
    processes.add_cleanup(release_all)


def _unregister(descriptor: int) -> bool:
    """Remove an entry. Return whether it existed (False in a forked child, which owns nothing)."""
    found = _locks.pop(descriptor, None)
    if not _locks:
        processes.remove_cleanup(release_all)
    return found is not None and found[0] == os.getpid()


def release_all() -> None:
    """Release everything that this process took."""
    while _locks:
        _, (pid, _, release) = _locks.popitem()
        if pid == os.getpid():
            with contextlib.suppress(Exception):  # the next one must still be released
                release()


def _in_child() -> None:
    """Drop the locks in a forked worker, which must not remove its parent's copy when it ends.

    The descriptor of a shared lock stays open: the copy is in use while a worker runs. An exclusive
    lock is closed, or a worker would block other processes after its parent was killed.
    """
    while _locks:
        descriptor, (_, inherited, _) = _locks.popitem()
        if not inherited:
            locks.unlock(descriptor)


State = Literal["finished", "being copied", "leftover"]


@dataclass(frozen=True)
class Copy:
    """One entry of the list.

    Args:
        path: The copy, or the folder of an unfinished one.
        bytes: Its size.
        age_s: Seconds since it was finished, or since copying began.
        state: `finished`, `being copied`, or `leftover` of a process or job that has ended.
        in_use: Whether a process uses or makes it now.
        kept_for: Running jobs with a lease on it.
        owner: The process that copied it, and whether it is still running.
    """

    path: Path
    bytes: int
    age_s: float
    state: State
    in_use: bool
    kept_for: tuple[str, ...]
    owner: str


@dataclass(frozen=True)
class Unstaged:
    """What `unstage` did with one copy.

    Args:
        path: The copy.
        removed: Whether it was removed.
        note: The reason, in a sentence.
    """

    path: Path
    removed: bool
    note: str


def listing(places: Sequence[Path] = ()) -> list[Copy]:
    """List every copy of this user on this node, with the memory that killed jobs still occupy.

    Args:
        places: Directories to search in addition to those named by environment variables.
    """
    return [_described(slot) for folder in _folders(places) for slot in slots(folder)]


def sweep_all(places: Sequence[Path] = ()) -> int:
    """Remove the leftovers of ended processes and jobs; the number of copies, unfinished ones included."""
    removed = 0
    for folder in _folders(places):
        removed += len(sweep_slots(folder))
        with contextlib.suppress(OSError):
            folder.rmdir()  # left empty by a rank that was killed at its first step
    return removed


def unstage(path: Path | str) -> Unstaged:
    """Release a copy; it is removed if no other process or job uses it.

    Args:
        path: The path that `stage` returned.

    Raises:
        UsageError: The path is not a staged copy of this user.
    """
    path = Path(os.path.normpath(Path(path).absolute()))
    slot = _slot_of(path)
    if not release(path):
        _release_leases(slot)
    return _outcome(slot, path)


def unstage_all(places: Sequence[Path] = ()) -> list[Unstaged]:
    """Release all copies of this job, and remove the leftovers of ended processes and jobs.

    Args:
        places: As for `listing`.
    """
    done = []
    for folder in _folders(places):
        for slot in slots(folder):
            facts = slot.facts()
            path = slot.data / str(facts["name"]) if facts else slot.home
            _release_leases(slot)
            done.append(_outcome(slot, path))
    return done


def _release_leases(slot: Slot) -> None:
    for owner in names_of_this_job():
        slot.release(owner)
    remove_unused(slot, TRIES)


def _folders(places: Sequence[Path]) -> Iterator[Path]:
    seen = set()
    for place in [*(path for _, path in nodelocal.named_directories()), *places]:
        real = Path(os.path.realpath(place))
        folder = existing_folder(real, folder_kind(machine.filesystem(real))) if real.is_dir() else None
        if real not in seen and folder is not None:
            yield folder
        seen.add(real)


def _slot_of(path: Path) -> Slot:
    for parent in path.parents:
        if parent.name in (folder_name(), folder_name(host_kind())):
            if os.path.lexists(parent):
                check(parent)
            return Slot(parent, path.relative_to(parent).parts[0])
    raise UsageError(
        f"{path} is not a staged copy",
        expected=f"a path that `stage` returned, in a folder {folder_name()}",
        next_step="List what is staged with: smallfiles staged",
    )


def _outcome(slot: Slot, path: Path) -> Unstaged:
    if not os.path.lexists(slot.home):
        return Unstaged(path, True, "removed")
    holders = ", ".join(owner.text for owner in slot.holders())
    if holders:
        return Unstaged(path, False, f"stays, since it is kept for {holders}")
    return Unstaged(path, False, "stays until the last process that uses it has ended")


def _described(slot: Slot) -> Copy:
    facts, owner, holders = slot.facts(), slot.owner(), slot.holders()
    in_use = locks.is_held(slot.lock, shared=False)
    state: State = "leftover"
    if facts is not None and (in_use or holders):
        state = "finished"
    elif facts is None and in_use:
        state = "being copied"
    since = float(facts["time_s"]) if facts else owner.since_s if owner else time.time()
    return Copy(
        path=slot.data / str(facts["name"]) if facts else slot.home,
        bytes=bytes_and_files_in(slot.home)[0],
        age_s=max(0.0, time.time() - since),
        state=state,
        in_use=in_use,
        kept_for=tuple(holder.text for holder in holders),
        owner=_summary(owner),
    )


def _summary(owner: Owner | None) -> str:
    if owner is None:
        return "unknown"
    return f"{owner.text} ({'alive' if owner.is_alive() else 'ended'})"


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
    check_room(out, output.bytes - bytes_and_files_of(out)[0], len(output.members) + INODES_TO_LEAVE)
    try:
        with drafted(out, "staging") as draft, writing(out):
            kept = _copy_to_scratch(output, draft)
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


def _reused(output: PackedOutput, out: Path, started: float) -> Staged:
    seconds = time.perf_counter() - started
    same = "digest" if output.has_digests else "time"
    note = f"{out} was there already, of the same size and {same}; `verify` reads it back"
    return Staged(out, output.bytes, True, seconds, 0.0, len(output.members), False, (note,))


def _target(output: PackedOutput, folder: Path) -> Path:
    out = folder.absolute() / output.name
    source = Path(os.path.realpath(output.source))
    if Path(os.path.realpath(out)) == source or source in Path(os.path.realpath(out)).parents:
        raise UsageError(
            f"{out} is the source itself, or inside it",
            expected="a folder elsewhere",
            next_step="Choose another folder for --to",
        )
    return out


def _is_there(output: PackedOutput, out: Path) -> bool:
    """Check whether all files exist with equal sizes and digests, or equal times if there are no digests."""
    try:
        return all(_is_equal(member, out.parent / member.name) for member in output.members)
    except OSError:
        return False


def _is_equal(member: Member, copy: Path) -> bool:
    found, digest = copy.stat(), sidecar(copy)
    if found.st_size != member.bytes:
        return False
    if member.digest is None:
        return found.st_mtime_ns == member.seen[3]
    return digest.is_file() and ContentDigest.load(digest) == member.digest


def _copy_to_scratch(output: PackedOutput, draft: Draft) -> int:
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


def _stripe(output: PackedOutput, folder: Path) -> None:
    """Stripe large files on Lustre over several servers; the layout is fixed by the first byte."""
    lfs = shutil.which("lfs")
    largest = max(member.bytes for member in output.members)
    stripes = machine.stripes_for(largest)
    if lfs is None or stripes == 1 or machine.filesystem(folder).kind != "lustre":
        return
    command = [lfs, "setstripe", "-c", str(stripes), str(folder)]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):  # slower without it, but correct
        subprocess.run(command, capture_output=True, timeout=_STRIPE_S, check=False)
