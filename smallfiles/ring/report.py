"""The progress of both sides of a ring, answered on request instead of written to a text file.

The trap: a file that says "batch 812" may be an hour old. So a live filler is queried through its socket,
and the position in the folder is read only if the filler is dead. Notebook 08 teaches the ring.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from smallfiles.machine.nodelocal import SHARED_MEMORY
from smallfiles.ring.folder import RingFiles, missing
from smallfiles.ring.state import END, Position

State = Literal["starting", "filling", "full", "waiting for a trainer", "ending", "gone"]

_ANSWER_S = 10.0


@dataclass(frozen=True)
class RingStatus:
    """Both sides of a ring at one moment.

    Args:
        name: Of the ring.
        state: What the filler does; `starting` also if it is too busy to answer, `ending` if it no longer
            accepts connections, `gone` if it was killed.
        pid: Process of the filler.
        trainer_pid: Process of the trainer; None if there is none.
        slots: How many batches the ring holds.
        slot_bytes: Bytes of each.
        ready: Batches in the ring, including the one in training: the fill level.
        making: Batches that producers are working on.
        trainer_epoch: Epoch of the batch in training.
        trainer_batch: Its number in the epoch.
        filler_epoch: Epoch of the batch that is assigned next.
        filler_batch: Its number in the epoch.
        finished: Whether all epochs are done.
        producers: How many processes make batches.
        restarts: How many of them died and were replaced.
        made: Batches made since the filler started.
        consumed: Batches that trainers have finished since then.
        waited_s: How long trainers waited for batches since then.
        seconds: Time since the filler started.
        notes: What happened, the latest last.
    """

    name: str
    state: State
    pid: int = 0
    trainer_pid: int | None = None
    slots: int = 0
    slot_bytes: int = 0
    ready: int = 0
    making: int = 0
    trainer_epoch: int = 0
    trainer_batch: int = 0
    filler_epoch: int = 0
    filler_batch: int = 0
    finished: bool = False
    producers: int = 0
    restarts: int = 0
    made: int = 0
    consumed: int = 0
    waited_s: float = 0.0
    seconds: float = 0.0
    notes: tuple[str, ...] = ()

    def sentence(self) -> str:
        """The status in one line."""
        if self.state == "gone":
            return (
                f"ring {self.name}: its filler (process {self.pid}) is gone; "
                f"the trainer was at batch {self.trainer_batch:,} of epoch {self.trainer_epoch}"
            )
        if self.state in ("starting", "ending"):
            return f"ring {self.name}: its filler (process {self.pid}) is {self.state}"
        trainer = "no trainer" if self.trainer_pid is None else f"trainer (process {self.trainer_pid})"
        ahead = (
            "all made" if self.filler_epoch < 0 else f"epoch {self.filler_epoch} batch {self.filler_batch:,}"
        )
        return (
            f"ring {self.name}: {self.state}, {self.ready:,} of {self.slots:,} slots ready; "
            f"{trainer} at epoch {self.trainer_epoch} batch {self.trainer_batch:,}, "
            f"filler (process {self.pid}, {self.producers} producers, {self.restarts} restarted) next {ahead}"
        )


def status(name: str, where: Path = SHARED_MEMORY) -> RingStatus:
    """The status of a ring.

    Args:
        name: Of the ring.
        where: The folder in memory that the filler uses.

    Raises:
        UsageError: There is no such ring.
    """
    files, busy = RingFiles.of(name, where), False
    try:
        answer = _query(files)
    except TimeoutError:
        answer, busy = None, True
    if answer is not None:
        return answer
    alive, described = files.lives(), files.description() is not None
    if not described and not alive:
        raise missing(name, where)
    epoch, batch = epoch_and_batch(files.position() or Position(0, 0))
    state: State = "gone" if not alive else "ending" if described and not busy else "starting"
    return RingStatus(name, state, files.pid(), trainer_epoch=epoch, trainer_batch=batch)


def _query(files: RingFiles) -> RingStatus | None:
    """The answer of a live filler; None if there is none, or if it accepts no connections."""
    channel = files.connect()
    if channel is None:
        return None
    with contextlib.closing(channel):
        channel.send({"hello": "status"})
        answer = channel.receive(_ANSWER_S)
    return RingStatus(**{**answer, "notes": tuple(answer["notes"])}) if answer else None


def epoch_and_batch(position: Position) -> tuple[int, int]:
    """A position as a status shows it; the end is epoch -1."""
    return (-1, 0) if position == END else (position.epoch, position.batch)
