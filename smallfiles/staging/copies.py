"""List the staged copies of this node, and remove them.

The trap: `rm -rf` removes a copy that another job still reads. `unstage` releases only the own lease,
and removes the copy when no lease is left. Notebook 07.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from smallfiles import locks, machine
from smallfiles.atomic import bytes_and_files_in
from smallfiles.errors import UsageError
from smallfiles.liveness import Owner, names_of_this_job
from smallfiles.locks import check, existing_folder, folder_name
from smallfiles.machine import nodelocal
from smallfiles.staging import run
from smallfiles.staging.placement import folder_kind, host_kind
from smallfiles.staging.slots import TRIES, Slot, remove_unused, slots, sweep

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
    """Every copy of this user on this node.

    It shows the memory that killed jobs still occupy.

    Args:
        places: Directories to search in addition to those named by environment variables.
    """
    return [_described(slot) for folder in _folders(places) for slot in slots(folder)]


def sweep_all(places: Sequence[Path] = ()) -> int:
    """Remove the leftovers of ended processes and jobs; the number of copies, unfinished ones included."""
    removed = 0
    for folder in _folders(places):
        removed += len(sweep(folder))
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
    if not run.release(path):
        _release(slot)
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
            _release(slot)
            done.append(_outcome(slot, path))
    return done


def _release(slot: Slot) -> None:
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


def _own_folders() -> set[str]:
    return {folder_name(), folder_name(host_kind())}


def _slot_of(path: Path) -> Slot:
    for parent in path.parents:
        if parent.name in _own_folders():
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
