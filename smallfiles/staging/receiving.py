"""The process of one node in a broadcast: `python -m smallfiles.staging.receiving`, started by `broadcast`.

It reads an order, prepares the folder in which `sbcast` will write, says that it is ready, and waits. What
has arrived is read back and compared with the digest by the copier that resumes an interrupted copy; so a
damaged or missing block is copied from shared storage, and nothing else. The trap: Slurm's daemon may still
write to a file that was given up. So its folder is renamed or removed first, and nothing is made there twice.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from smallfiles import locks
from smallfiles.errors import SmallfilesError, writing
from smallfiles.liveness import this_job
from smallfiles.machine.nodelocal import NodeLocal
from smallfiles.staging import outputs, placement
from smallfiles.staging.broadcast import ARRIVING
from smallfiles.staging.config import StageConfig
from smallfiles.staging.copying import copy_files
from smallfiles.staging.outputs import Output
from smallfiles.staging.run import facts_of, once, slot_at
from smallfiles.staging.slots import Slot


class _StoppedError(Exception):
    """The broadcast was given up."""


def main() -> None:
    """Follow the order on standard input, and say on standard output what came of it."""
    order = json.loads(sys.stdin.readline() or "{}")
    if not order:
        return
    try:
        _say("staged", **_stage(order))
    except _StoppedError:
        _say("stopped")
    except SmallfilesError as error:
        _say("failed", note=str(error))


def _say(state: str, **more: Any) -> None:
    node = os.environ.get("SLURMD_NODENAME", "")
    step = f"{os.environ.get('SLURM_JOB_ID')}.{os.environ.get('SLURM_STEP_ID')}"
    sys.stdout.write(json.dumps({"node": node, "step": step, "state": state, **more}) + "\n")
    sys.stdout.flush()


def _stage(order: dict[str, Any]) -> dict[str, Any]:
    config = StageConfig(**order["config"])
    output = outputs.find(Path(order["source"]))
    (place,), _ = placement.candidates(order["place"], output.source)
    slot, copied = slot_at(place, output.key), [0]
    if order["receive"] and slot.facts() is None and locks.is_held(slot.lock, shared=False):
        raise _StoppedError  # another job copies it: two that wait for each other's nodes would wait in vain
    use = once(slot, output, partial(_fill, place, output, config, order["receive"], copied))
    try:
        slot.acquire(this_job())
    finally:
        use.leave()
    received = order["receive"] and not use.reused
    return {"path": str(slot.data / output.name), "copied": copied[0], "received": received}


def _fill(
    place: NodeLocal, output: Output, config: StageConfig, receive: bool, copied: list[int], slot: Slot
) -> tuple[Sequence[str], dict[str, Any]]:
    """Receive an output into a slot, or copy it; `copied` becomes the bytes from shared storage."""
    placement.check_room(place, output, config)
    if receive:
        _receive(output, slot)
    done = copy_files(output, slot.copying, resume=receive)
    small = sum(member.bytes for member in output.members if member.digest is None) if receive else 0
    copied[0] = output.bytes - done.kept_bytes - small
    return done.names, facts_of(output)


def _receive(output: Output, slot: Slot) -> None:
    """Wait until `sbcast` has written everything; then move it to where a copy resumes."""
    arriving = slot.home / ARRIVING
    sent = [arriving / member.name for member in output.members if member.digest is not None]
    with writing(arriving):
        arriving.mkdir(mode=0o700)
        for path in sent:
            path.parent.mkdir(mode=0o700, exist_ok=True)
    _say("ready", folder=str(slot.home))
    if sys.stdin.readline() != "sent\n":
        raise _StoppedError
    with writing(slot.copying):
        for path in sent:
            with suppress(FileNotFoundError):
                path.chmod(0o600)
        slot.copying.rmdir()
        arriving.rename(slot.copying)


if __name__ == "__main__":
    main()
