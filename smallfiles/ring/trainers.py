"""Where trainers come to: one at a time gets the batches, anybody of this user may ask how far it is.

The trap: a killed trainer's successor may knock before the death was noticed. So the old connection is
looked at again before the new one is refused. Notebook 08 teaches the ring.
"""

from __future__ import annotations

import contextlib
import selectors
from collections.abc import Callable

from smallfiles.ring.book import Book, Position
from smallfiles.ring.channel import Channel, Door, Message, RingError, as_message
from smallfiles.ring.folder import RingFiles
from smallfiles.ring.memory import Memory

_PASSED_AHEAD = 4
"""Batches that the trainer knows of at once: enough to hide the way of a message."""


class TrainerSide:
    """The trainer's side of a filler.

    Args:
        files: Of the ring; where the trainer begins is kept there.
        book: Says what is ready.
        memory: The slots.
        selector: Where the loop waits; each registered object has a function that hears it.
        note: Gets each sentence about what happened.
        status: Answers who asks.
    """

    def __init__(
        self,
        files: RingFiles,
        book: Book,
        memory: Memory,
        selector: selectors.BaseSelector,
        note: Callable[[str], None],
        status: Callable[[], Message],
    ) -> None:
        self._files, self._book, self._memory = files, book, memory
        self._selector, self._note, self._status = selector, note, status
        self._door = Door(files)
        self._guests: list[Channel] = []  # the trainer among them
        self._trainer: Channel | None = None
        self.trainer_pid: int | None = None
        self.consumed = 0
        self.waited_s = 0.0
        files.keep(book.position, create=True)

    def open(self) -> None:
        """Let trainers in."""
        self._selector.register(self._door, selectors.EVENT_READ, self._knock)

    def pass_on(self) -> None:
        """Tell the trainer which batches are ready."""
        if self._trainer is not None:
            for ready in self._book.deliver(_PASSED_AHEAD):
                self.tell({"ready": ready.position, "slot": ready.slot, **ready.payload})

    def tell(self, message: Message) -> None:
        """Send a message to the trainer, if there is one."""
        if self._trainer is not None:
            self._trainer.send(message, wait=False)

    def close(self) -> None:
        """Send everybody away."""
        self._door.close()
        for guest in self._guests:
            guest.close()

    def _knock(self) -> None:
        with contextlib.suppress(OSError):
            guest = self._door.accept()
            self._guests.append(guest)
            self._selector.register(guest, selectors.EVENT_READ, lambda: self._hear(guest))

    def _hear(self, guest: Channel) -> None:
        if guest.fileno() < 0:
            return  # it was sent away by a message that came at the same moment
        message = guest.receive()
        if guest is self._trainer:
            self._hear_trainer(message)
        elif not self._hear_guest(guest, message or {}):
            self._dismiss(guest)

    def _dismiss(self, guest: Channel) -> None:
        self._selector.unregister(guest)
        self._guests.remove(guest)
        guest.close()

    def _hear_guest(self, guest: Channel, message: Message) -> bool:
        """Whether the guest stays."""
        if message.get("hello") == "status":
            guest.send(self._status(), wait=False)
        return message.get("hello") == "trainer" and self._accept(guest, message)

    def _accept(self, guest: Channel, message: Message) -> bool:
        while self._trainer is not None and self._trainer.peer_is_gone():
            self._hear_trainer(self._trainer.receive())  # its last words, then the end
        if self._trainer is not None:
            refusal = RingError(
                f"ring {self._files.name} feeds process {self.trainer_pid} already",
                expected="one trainer a ring",
                next_step="Give each rank a ring of its own, or end the other process",
            )
            guest.send({"refused": as_message(refusal)}, wait=False)
            return False
        self._trainer, self.trainer_pid = guest, message.get("pid")
        if message.get("want") is not None:
            self._seek(Position(*message["want"]))
        guest.send({"position": self._book.position, **self._memory.sizes()}, [self._memory.fd], wait=False)
        return True

    def _hear_trainer(self, message: Message | None) -> None:
        if message is None:
            self._lose_trainer()
        elif "done" in message:
            self._free(Position(*message["done"]), float(message["waited_s"]))
        elif "seek" in message:
            self._seek(Position(*message["seek"]))
            self.tell({"sought": message["seek"]})

    def _free(self, position: Position, waited_s: float) -> None:
        if self._book.done(position):
            self.consumed += 1
            self.waited_s += waited_s

    def _seek(self, position: Position) -> None:
        self._book.seek(position)
        self._files.keep(position)

    def _lose_trainer(self) -> None:
        if self._trainer is None:
            return
        self._dismiss(self._trainer)
        epoch, batch = self._book.position
        self._trainer, pid = None, self.trainer_pid
        self.trainer_pid = None
        self._book.withdraw()
        if not self._book.finished:
            self._note(f"the trainer (process {pid}) left at batch {batch:,} of epoch {epoch}")
