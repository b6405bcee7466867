"""The trainer's connection to its filler.

When the filler is killed, the trainer reads an end of file at once and stops with a sentence that says so.
The trap: a trainer that waits silently looks like one that computes. So each long wait gives a warning.
Notebook 08 teaches the ring.
"""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Callable

from smallfiles.errors import first_few
from smallfiles.ring.channel import Channel, Message, RingError, from_message
from smallfiles.ring.folder import RingFiles, lives, names
from smallfiles.ring.memory import Memory
from smallfiles.ring.state import BatchOrder, Position, Ready, plan_of

_WARN_AFTER_S = 30.0
_RETRY_S = 0.1


class RingWarning(UserWarning):
    """An event in a ring that cost time, but no batch."""


class RingClient:
    """A trainer's side of a ring.

    Args:
        files: Of the ring.
        wait_s: How long to wait for a filler.
        own_filler: Given if the filler is a thread of this process: returns its error, if it failed.

    Raises:
        RingError: No process fills this ring, or it feeds another trainer.
    """

    def __init__(
        self, files: RingFiles, wait_s: float, own_filler: Callable[[], Exception | None] | None = None
    ) -> None:
        self.files, self._own_filler = files, own_filler
        self.finished = False
        self.next = self._attach(wait_s)
        self._holds = False

    def go_to(self, position: Position) -> None:
        """Make `position` the next batch."""
        if position == self.next and not self._holds:
            return
        self.next, self._holds = position, False
        self._channel.send({"seek": position})
        while (message := self._receive()).get("sought") != list(position):
            if "ready" not in message:
                self._handle(message)

    def take(self) -> Ready:
        """The next batch.

        Raises:
            SmallfilesError: It cannot be made, or there is no filler any more.
        """
        while True:
            message = self._receive()
            if "ready" in message:
                if "fault" in message:
                    self._holds = True  # asking for this batch once more makes it again
                    raise from_message(message["fault"])
                taken = Ready(Position(*message["ready"]), message["slot"], message)
                if taken.position == self.next:
                    self._holds = True
                    return taken
            else:
                self._handle(message)

    def done(self, waited_s: float, after: Position) -> None:
        """Return the slot of the batch taken; `after` comes next."""
        self._channel.send({"done": self.next, "waited_s": round(waited_s, 6)})
        self.next, self._holds = after, False

    def close(self) -> None:
        """Disconnect from the filler."""
        self._channel.close()
        self.memory.close()

    def _handle(self, message: Message) -> None:
        if "note" in message:
            warnings.warn(str(message["note"]), RingWarning, stacklevel=4)
        elif "fatal" in message:
            raise from_message(message["fatal"])
        elif "end" in message:
            self.finished = True

    def _receive(self) -> Message:
        try:
            message = self._channel.receive(_WARN_AFTER_S)
        except TimeoutError:
            epoch, batch = self.next
            warnings.warn(
                f"training has waited {_WARN_AFTER_S:.0f} s for batch {batch:,} of epoch {epoch}; "
                f"see: smallfiles ring status {self.files.name}",
                RingWarning,
                stacklevel=4,
            )
            message = self._channel.receive()
        if message is None:
            raise self._gone()
        return message

    def _gone(self) -> Exception:
        """The error for a filler that ended before the training."""
        error = self._own_filler() if self._own_filler is not None else None
        if error is not None:
            return error
        if self.finished or self._own_filler is not None:
            return self.over()
        epoch, batch = self.next
        return RingError(
            f"the filler of ring {self.files.name} was killed at batch {batch:,} of epoch {epoch}",
            expected="a filler that runs as long as the training",
            next_step="Ask for more memory if the job ran out of it, start the filler again with the same "
            "command, and resume the training from its checkpoint",
        )

    def over(self) -> RingError:
        """The error for an epoch beyond the last one of the ring."""
        return RingError(
            f"the filler of ring {self.files.name} has ended",
            expected="a filler for as many epochs as the training has",
            next_step="Ask for more epochs (--epochs), or train fewer",
        )

    def _attach(self, wait_s: float) -> Position:
        until = time.monotonic() + wait_s
        while True:
            channel = self.files.connect()
            if channel is not None and (position := self._greet(channel)) is not None:
                return position
            error = self._own_filler() if self._own_filler is not None else None
            if error is not None:
                raise error
            if time.monotonic() >= until:
                where, name = self.files.folder.parent, self.files.name
                there = [each for each in names(where) if lives(each, where)]
                raise RingError(
                    f"nobody fills ring {name} in {where} (waited {wait_s:g} s)",
                    expected=f"one that is filled: {first_few(there, len(there)) or 'there is none'}",
                    next_step=f"Start it: smallfiles ring fill DATA --name {name}; or wait longer for it",
                )
            time.sleep(_RETRY_S)

    def _greet(self, channel: Channel) -> Position | None:
        """Introduce this trainer; None if the filler died before it answered."""
        channel.send({"hello": "trainer", "pid": os.getpid()})
        welcome, fds = channel.receive_fds()
        record = self.files.description()
        with contextlib.ExitStack() as unless_greeted:
            unless_greeted.callback(channel.close)
            for fd in fds:
                unless_greeted.callback(os.close, fd)
            if welcome is not None and "refused" in welcome:
                raise from_message(welcome["refused"])
            if welcome is None or record is None or not fds:
                return None
            unless_greeted.pop_all()
        self._channel = channel
        self.memory = Memory(fds[0], welcome["slots"], welcome["slot_bytes"])
        self.order = BatchOrder(plan_of(record), record["epochs"])
        return Position(*welcome["position"])
