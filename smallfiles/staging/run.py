"""Stage: one process of a node copies, verifies and publishes; all others wait and use it.

The trap: eight ranks that each look for room, find it, and copy at once fill the memory eight times.
So the lock comes first: only who holds it looks for room.

Copies go when the process that uses them goes: at exit and on signals. A handler that is there already (a
training that saves its state on SIGTERM and reads on) stays in charge, and the exit that follows cleans up.
What a `kill -9` leaves, the next job removes. Notebook 07.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from smallfiles import locks, signals
from smallfiles.atomic import bytes_and_files_in
from smallfiles.digests import ContentDigest, sidecar
from smallfiles.errors import ResourceError
from smallfiles.formats.output import writing
from smallfiles.liveness import this_job
from smallfiles.locks import private_folder
from smallfiles.machine.nodelocal import NodeLocal
from smallfiles.progress import progress
from smallfiles.staging import outputs, placement
from smallfiles.staging.config import StageConfig, Staged
from smallfiles.staging.copying import Copier, blocks_of
from smallfiles.staging.outputs import Output
from smallfiles.staging.slots import Slot, sweep

_SHORTEST_S, _LONGEST_S = 0.005, 0.1
_MOST_WAIT_S = 3600.0
_MIB = 1 << 20
UNVERIFIED = "not verified against a digest, since none lies beside the source; computed while copying"


Make: TypeAlias = Callable[[Slot, Callable[[Callable[[], None]], None]], tuple[Sequence[str], dict[str, Any]]]
"""Fills the slot's folder `copying`; told whom to give what stops it early; names and facts to publish."""


@dataclass(frozen=True)
class Use:
    """What this process holds of a slot."""

    slot: Slot
    descriptor: int
    reused: bool
    copy_s: float

    def leave(self) -> None:
        """Give it back; the last one out removes the copy, unless it is kept for somebody."""
        if _leave(self.descriptor):
            self.slot.leave(self.descriptor)


_uses: dict[Path, list[Use]] = {}


def stage(src: Path | str, where: str | Path = "auto", *, config: StageConfig | None = None) -> Staged:
    """Copy a packed output to storage of this node, once a node, and keep it while this process lives.

    Every epoch then reads from memory or a local disk; the parallel file system is asked once a node
    instead of once a rank and epoch.

    Args:
        src: A packed file or a folder of shards.
        where: `auto`, or a directory of this node.
        config: Room to leave, whose shards.

    Returns:
        The copy; give its `path` to `smallfiles.formats.open`. It goes with the last process that uses
        it; `unstage(path)` gives it back earlier.

    Raises:
        ResourceError: No place has the room, or somebody else's folder is in the way.
        DamagedFileError: The source is not what was packed.
        SourceError: The source is missing, or changed while it was copied.
    """
    staged, _ = _stage(Path(src), where, config or StageConfig())
    return staged


@contextmanager
def staged(
    src: Path | str, where: str | Path = "auto", *, config: StageConfig | None = None
) -> Iterator[Staged]:
    """`stage` for the time of a block; arguments and errors as there.

    Yields:
        The copy; it is given back when the block ends, however it ends.
    """
    copy, use = _stage(Path(src), where, config or StageConfig())
    try:
        yield copy
    finally:
        _give_back(copy.path, use)


def stage_for_job(
    src: Path | str, where: str | Path = "auto", *, config: StageConfig | None = None
) -> Staged:
    """`stage` for a command that ends before its copy is used: the copy belongs to the job.

    Args:
        src: As for `stage`.
        where: As for `stage`.
        config: As for `stage`.

    Returns:
        The copy. When the job has ended without `unstage`, the next `stage` on this node removes it.
    """
    copy, use = _stage(Path(src), where, config or StageConfig())
    try:
        use.slot.acquire(this_job())
    finally:
        _give_back(copy.path, use)
    return copy


def give_back(path: Path) -> bool:
    """Give back one use of a copy that this process staged; whether there was one."""
    found = _uses.get(path)
    if not found:
        return False
    _give_back(path, found[-1])
    return True


def _give_back(path: Path, use: Use) -> None:
    remaining = _uses.get(path, [])
    if use in remaining:
        remaining.remove(use)
        if not remaining:
            _uses.pop(path, None)
        use.leave()


def _stage(src: Path, where: str | Path, config: StageConfig) -> tuple[Staged, Use]:
    started = time.perf_counter()
    output = outputs.find(src, config)
    found, passed = placement.candidates(where, output.source)
    for place in found:
        try:
            use = _stage_at(place, output, config)
        except ResourceError as error:
            if str(where) != placement.AUTO:
                raise
            passed.append(error.got)
            continue
        path = use.slot.data / output.name
        _uses.setdefault(path, []).append(use)
        notes = (placement.why(place, output, passed, reused=use.reused),) + (
            () if output.has_digests else (UNVERIFIED,)
        )
        seconds = time.perf_counter() - started
        rate = 0.0 if use.reused else output.bytes / max(use.copy_s, 1e-9)
        files = len(output.members)
        return Staged(path, output.bytes, use.reused, seconds, rate, files, output.has_digests, notes), use
    raise placement.nowhere(output, passed)


def _stage_at(place: NodeLocal, output: Output, config: StageConfig) -> Use:
    folder = private_folder(place.path, placement.folder_kind(place.filesystem))
    slot = Slot(folder, output.key)
    sweep(folder, spare=slot.key)
    return once(slot, output, partial(_copy, place, output, config))


def once(slot: Slot, output: Output, make: Make) -> Use:
    """Hold a slot: one process of the node fills it while the others wait, and all use it.

    Args:
        slot: Where.
        output: What it will hold, for those that wait.
        make: Fills it.

    Returns:
        A shared lock of the finished slot, given back at the end of the process if not before.
    """
    until = time.monotonic() + _MOST_WAIT_S
    while True:
        descriptor, finished = _acquire(slot, output, until)
        copy_s = 0.0 if finished else _fill(slot, descriptor, make)
        _enter(descriptor, partial(slot.leave, descriptor), inherited=True)
        locks.share(descriptor)
        if locks.names(slot.lock, descriptor) and slot.facts() is not None:
            return Use(slot, descriptor, finished, copy_s)
        _leave(descriptor)
        os.close(descriptor)  # somebody swept it in the moment between two locks


def _acquire(slot: Slot, output: Output, until: float) -> tuple[int, bool]:
    """Come to hold the slot: shared if it is finished, exclusive if we shall make it."""
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
                    expected="it to finish in the time that this one waits",
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
            os.close(descriptor)
    return None


def _fill(slot: Slot, descriptor: int, make: Make) -> float:
    """Make and publish under the exclusive lock; seconds it took. Leaves nothing if it fails."""
    stoppers: list[Callable[[], None]] = []

    def abandon() -> None:
        for stop in stoppers:
            stop()
        slot.remove(descriptor)

    _enter(descriptor, abandon, inherited=False)
    try:
        slot.begin()  # clears half copies first: they take room
        started = time.perf_counter()
        names, facts = make(slot, stoppers.append)
        copy_s = time.perf_counter() - started
        slot.publish(names, facts)
    except BaseException:
        if _leave(descriptor):
            abandon()
        raise
    return copy_s


def _copy(
    place: NodeLocal,
    output: Output,
    config: StageConfig,
    slot: Slot,
    at_end: Callable[[Callable[[], None]], None],
) -> tuple[Sequence[str], dict[str, Any]]:
    """Copy an output into a slot; `at_end` is given what stops that."""
    placement.check_room(place, output, config)
    count = len(blocks_of(output.members))
    with progress(count, f"stage {output.name}", unit="blocks") as bar:
        copier = Copier(output, slot.copying, bar)
        at_end(copier.stop)
        copier.run()
    names = [member.name for member in output.members] + computed_digests(copier, output, slot.copying)
    facts = {"name": output.name, "source": str(output.source)}
    return names, {**facts, "bytes": output.bytes, "verified": output.has_digests}


def computed_digests(copier: Copier, output: Output, folder: Path) -> list[str]:
    """Write the digest of each packed file that had none beside its copy; their names."""
    written = []
    for member, hashes in zip(output.members, copier.hashes, strict=True):
        if member.is_data and member.digest is None:
            beside = sidecar(folder / member.name)
            with writing(beside):
                ContentDigest(member.bytes, tuple(hashes[n] for n in range(len(hashes)))).save(beside)
            written.append(str(beside.relative_to(folder)))
    return written


_held: dict[int, tuple[int, bool, Callable[[], object]]] = {}
"""By descriptor of the lock: who took it, whether forked children keep it, how it is given back."""

_ready = False


def _enter(descriptor: int, give_back: Callable[[], object], *, inherited: bool) -> None:
    """Have `give_back` called when this process ends, unless `_leave` is called before.

    Args:
        descriptor: The open lock, which names the entry.
        give_back: Must not wait for long, and not fail.
        inherited: Whether forked children keep the lock: they use a finished copy, but they do not
            make one.
    """
    global _ready
    if not _ready:
        atexit.register(give_back_all)
        os.register_at_fork(after_in_child=_in_child)
        _ready = True
    _held[descriptor] = (os.getpid(), inherited, give_back)
    signals.add(give_back_all)


def _leave(descriptor: int) -> bool:
    """Forget an entry; whether it was there (False in a forked child, which owns nothing)."""
    found = _held.pop(descriptor, None)
    if not _held:
        signals.remove(give_back_all)
    return found is not None and found[0] == os.getpid()


def give_back_all() -> None:
    """Give back everything that this process took."""
    while _held:
        _, (pid, _, give_back) = _held.popitem()
        if pid == os.getpid():
            with contextlib.suppress(Exception):  # the next one must still be given back
                give_back()


def _in_child() -> None:
    """A forked worker reads what its parent staged and must not remove it when it ends.

    The descriptor of a shared lock stays open: the copy is in use while a worker lives. That of an
    exclusive one is closed, or a worker would keep others waiting after its parent was killed.
    """
    while _held:
        descriptor, (_, inherited, _) = _held.popitem()
        if not inherited:
            os.close(descriptor)
