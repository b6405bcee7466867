"""The trainer's connection to its filler; it survives the death of the filler.

When the filler is killed, the trainer reads an end of file at once, warns, and waits for a new filler of
the same ring; it continues at the batch that comes next. The trap: a trainer that waits silently looks like
one that computes. So each long wait gives a warning. Notebook 08 teaches the ring.
"""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Callable
from typing import Any

from smallfiles.errors import first_few
from smallfiles.ring.channel import Channel, Message, RingError, from_message
from smallfiles.ring.folder import RingFiles, lives, names
from smallfiles.ring.memory import Memory
from smallfiles.ring.order import BatchOrder, plan_of
from smallfiles.ring.state import Position, Ready

_WARN_AFTER_S = 30.0
_RETRY_S = 0.1
_RETURN_S = 300.0


class RingWarning(UserWarning):
    """An event in a ring that cost time, but no batch."""


class RingClient:
    """A trainer's side of a ring.

    Args:
        files: Of the ring.
        wait_s: How long to wait for a filler; a restarted one may take longer.
        own_filler: Given if the filler is a thread of this process: returns its error, if it failed.

    Raises:
        RingError: No process fills this ring, or it feeds another trainer.
    """

    def __init__(
        self, files: RingFiles, wait_s: float, own_filler: Callable[[], Exception | None] | None = None
    ) -> None:
        self.files, self._own_filler = files, own_filler
        self._identity: str | None = None
        self.finished = False
        self.next = self._attach(None, wait_s)
        self._holds = False

    def go_to(self, position: Position) -> None:
        """Make `position` the next batch."""
        if position == self.next and not self._holds:
            return
        self.next, self._holds = position, False
        if self._channel.send({"seek": position}):
            self._skip_until_sought(position)
        else:
            self._reattach()

    def take(self) -> Ready:
        """The next batch.

        Raises:
            SmallfilesError: It cannot be made, or there is no filler any more.
        """
        while True:
            message = self._receive()
            if message is None:
                self._reattach()
            elif "ready" in message:
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
        self.files.keep(after)
        # If the filler is gone, this is lost; the next one learns the position when we connect.
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

    def _receive(self) -> Message | None:
        try:
            return self._channel.receive(_WARN_AFTER_S)
        except TimeoutError:
            epoch, batch = self.next
            warnings.warn(
                f"training has waited {_WARN_AFTER_S:.0f} s for batch {batch:,} of epoch {epoch}; "
                f"see: smallfiles ring status {self.files.name}",
                RingWarning,
                stacklevel=4,
            )
        return self._channel.receive()

    def _skip_until_sought(self, position: Position) -> None:
        while (message := self._receive()) is not None:
            if message.get("sought") == list(position):
                return
            if "ready" not in message:
                self._handle(message)
        self._reattach()

    def _reattach(self) -> None:
        if self._own_filler is not None or self.finished:
            raise (self._own_filler and self._own_filler()) or self.over()
        self.close()
        warnings.warn(
            f"the filler of ring {self.files.name} is gone; waiting up to {_RETURN_S:.0f} s for a new one: "
            "start it again with the same command",
            RingWarning,
            stacklevel=5,
        )
        self._attach(self.next, _RETURN_S)

    def over(self) -> RingError:
        """The error for an epoch beyond the last one of the ring."""
        return RingError(
            f"the filler of ring {self.files.name} has ended",
            expected="a filler for as many epochs as the training has",
            next_step="Ask for more epochs (--epochs), or train fewer",
        )

    def _attach(self, want: Position | None, wait_s: float) -> Position:
        until = time.monotonic() + wait_s
        while True:
            channel = self.files.connect()
            if channel is not None and (position := self._greet(channel, want)) is not None:
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

    def _greet(self, channel: Channel, want: Position | None) -> Position | None:
        """Introduce this trainer; None if the filler died before it answered."""
        channel.send({"hello": "trainer", "pid": os.getpid(), "want": want})
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
            self._check(record)
            unless_greeted.pop_all()
        self._channel = channel
        self.memory = Memory(fds[0], welcome["slots"], welcome["slot_bytes"])
        self.order = BatchOrder(plan_of(record), record["epochs"])
        return Position(*welcome["position"])

    def _check(self, record: dict[str, Any]) -> None:
        """Refuse a ring that holds other batches than before."""
        if self._identity is None:
            self._identity = record["identity"]
        if record["identity"] != self._identity:
            raise RingError(
                f"ring {self.files.name} holds other batches: {_describe(record)}",
                expected="the same data set, batch size, seed, ranks and arrays as the trainer's",
                next_step="Start filler and trainer with the same settings",
            )


def _describe(record: dict[str, Any]) -> str:
    plan = record["plan"]
    arrays = ", ".join(f"{name} {dtype} {shape}" for name, (shape, dtype) in record["layout"].items())
    return (
        f"{plan['samples']:,} samples in batches of {plan['batch']}, seed {plan['seed']}, "
        f"rank {plan['rank']} of {plan['world_size']}, arrays {arrays}"
    )
