"""The filler: keeps the book, hands out batches to producers, and passes what is ready to the trainer.

One loop waits for messages of all of them and for the death of any. The state is in this process alone,
so whatever producer or trainer is killed at whatever moment, no half-written state is left to mend.

The traps: the loop must not wait by `epoll`, which goes on reporting a descriptor that was closed here while
a forked child still has it. And a killed trainer's successor may knock before the death was noticed; so the
old connection is looked at again before the new one is refused. Notebook 08 teaches the ring.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import selectors
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from smallfiles.errors import SmallfilesError
from smallfiles.loading.batches import BatchMaker, nbytes
from smallfiles.loading.plan import EpochPlan
from smallfiles.ring import memory
from smallfiles.ring.channel import Channel, Listener, Message, RingError, as_message, pair
from smallfiles.ring.config import RingConfig
from smallfiles.ring.folder import RingFiles
from smallfiles.ring.memory import Memory
from smallfiles.ring.order import BatchOrder, description
from smallfiles.ring.pool import ProducerPool
from smallfiles.ring.report import RingStatus, State, epoch_and_batch
from smallfiles.ring.state import END, Position, RingState

_NOTES_KEPT = 20
_MOST_SLOTS = 1 << 20
_unnamed = itertools.count(1)
_PASSED_AHEAD = 4
"""Batches that the trainer knows of at once: enough to hide the way of a message."""


class TrainerSide:
    """Where trainers come to: one at a time gets the batches, anybody of this user may ask how far it is.

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
        book: RingState,
        memory: Memory,
        selector: selectors.BaseSelector,
        note: Callable[[str], None],
        status: Callable[[], Message],
    ) -> None:
        self._files, self._state, self._memory = files, book, memory
        self._selector, self._note, self._status = selector, note, status
        self._listener = Listener(files)
        self._guests: list[Channel] = []  # the trainer among them
        self._trainer: Channel | None = None
        self.trainer_pid: int | None = None
        self.consumed = 0
        self.waited_s = 0.0
        files.keep(book.position, create=True)

    def open(self) -> None:
        """Let trainers in."""
        self._selector.register(self._listener, selectors.EVENT_READ, self._on_connect)

    def pass_on(self) -> None:
        """Tell the trainer which batches are ready."""
        if self._trainer is not None:
            for ready in self._state.deliver(_PASSED_AHEAD):
                self.tell({"ready": ready.position, "slot": ready.slot, **ready.payload})

    def tell(self, message: Message) -> None:
        """Send a message to the trainer, if there is one."""
        if self._trainer is not None:
            self._trainer.send(message, wait=False)

    def close(self) -> None:
        """Send everybody away."""
        self._listener.close()
        for guest in self._guests:
            guest.close()

    def _on_connect(self) -> None:
        with contextlib.suppress(OSError):
            guest = self._listener.accept()
            self._guests.append(guest)
            self._selector.register(guest, selectors.EVENT_READ, lambda: self._on_message(guest))

    def _on_message(self, guest: Channel) -> None:
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
        guest.send({"position": self._state.position, **self._memory.sizes()}, [self._memory.fd], wait=False)
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
        if self._state.done(position):
            self.consumed += 1
            self.waited_s += waited_s

    def _seek(self, position: Position) -> None:
        self._state.seek(position)
        self._files.keep(position)

    def _lose_trainer(self) -> None:
        if self._trainer is None:
            return
        self._dismiss(self._trainer)
        epoch, batch = self._state.position
        self._trainer, pid = None, self.trainer_pid
        self.trainer_pid = None
        self._state.withdraw()
        if not self._state.finished:
            self._note(f"the trainer (process {pid}) left at batch {batch:,} of epoch {epoch}")


class Filler:
    """Fills a ring until all epochs are done with or it is stopped.

    It begins at the first batch, or where the trainer of a killed ring of this name was.

    Args:
        maker: Makes batches.
        plan: This rank's share of each epoch.
        config: Size, producers and name.
        on_note: Gets each sentence about what happened.
        on_made: Is called for each batch made.

    Raises:
        OutputExistsError: A ring of this name lives.
        ResourceError: The ring does not fit in memory.
    """

    def __init__(
        self,
        maker: BatchMaker,
        plan: EpochPlan,
        config: RingConfig,
        *,
        on_note: Callable[[str], None] = lambda _: None,
        on_made: Callable[[], None] = lambda: None,
    ) -> None:
        name = f"p{os.getpid()}-{next(_unnamed)}" if config.name is None else config.name
        self._files = RingFiles.of(name, config.where)
        self._config, self._on_note = config, on_note
        self._order = BatchOrder(plan, config.epochs)
        self._notes: deque[str] = deque(maxlen=_NOTES_KEPT)
        self._began = time.monotonic()
        self._stopping = False
        self._wake, self._woken = pair()
        with contextlib.ExitStack() as leaving:
            leaving.callback(self._wake.close)
            leaving.callback(self._woken.close)
            leaving.callback(self._files.remove, self._files.claim())
            self._prepare(maker, plan, on_made, leaving)
            self._leaving = leaving.pop_all()

    def _prepare(
        self, maker: BatchMaker, plan: EpochPlan, on_made: Callable[[], None], leaving: contextlib.ExitStack
    ) -> None:
        config, order, files = self._config, self._order, self._files
        layout = maker.layout(min(plan.batch, max(plan.samples, 1)))
        one_bytes = memory.slot_bytes(nbytes(layout))
        slots = memory.choose_slots(one_bytes, config.where, config.slots, order.total(_MOST_SLOTS))
        record = description(plan, layout, config.epochs)
        self._state = RingState(slots, self._left_at(record) or order.first(), order.after)
        self._memory = leaving.enter_context(
            contextlib.closing(Memory.create(files.folder, slots, one_bytes))
        )
        self._selector = leaving.enter_context(contextlib.closing(selectors.PollSelector()))
        hub = (self._state, self._memory, self._selector, self._note)
        self._pool = ProducerPool(maker, order, *hub, on_made)
        leaving.callback(self._pool.close)  # may take seconds, in which nobody shall wait for an answer
        self._trainers = TrainerSide(files, *hub, lambda: asdict(self.status()))
        leaving.callback(self._trainers.close)
        files.describe(record)

    def _left_at(self, record: dict[str, Any]) -> Position | None:
        """Where the trainer of a killed ring was, if that was the same ring."""
        left, position = self._files.description(), self._files.position()
        same = left is not None and left.get("identity") == record["identity"]
        if not same or position is None or position in (END, self._order.first()):
            return None
        if self._config.epochs is not None and position.epoch >= self._config.epochs:
            return None
        again = f"to begin anew, stop this and use: smallfiles ring clean {self.name}"
        where = f"batch {position.batch:,} of epoch {position.epoch}"
        self._notes.append(f"going on at {where}, where a killed ring was; {again}")
        self._on_note(self._notes[-1])
        return position

    @property
    def name(self) -> str:
        """Of the ring."""
        return self._files.name

    def run(self) -> None:
        """Fill until done or stopped; leaves no process and no file behind.

        Raises:
            RingError: Producers die again and again.
        """
        try:
            self._selector.register(self._woken, selectors.EVENT_READ, self._woken.receive)
            self._trainers.open()
            for _ in range(self._config.producer_count):
                self._pool.start_producer()
            while not (self._stopping or self._state.finished):
                self._pool.hand_out()
                self._trainers.pass_on()
                for key, _ in self._selector.select():
                    key.data()
            if self._state.finished:
                self._trainers.tell({"end": True})
        except SmallfilesError as error:
            self._trainers.tell({"fatal": as_message(error)})
            raise
        finally:
            self.close()

    def stop(self) -> None:
        """Have `run` return soon; any thread may call it."""
        self._stopping = True
        self._wake.send({"stop": True}, wait=False)

    def close(self) -> None:
        """Leave nothing behind; `run` does so itself."""
        self._leaving.close()

    def _note(self, sentence: str) -> None:
        self._notes.append(sentence)
        self._trainers.tell({"note": sentence})
        self._on_note(sentence)

    def status(self) -> RingStatus:
        """Both sides at this moment."""
        book, trainers, pool = self._state, self._trainers, self._pool
        full = not book.making and book.ready >= book.slots
        state: State = "filling" if not full else "full" if trainers.trainer_pid else "waiting for a trainer"
        trainer, filler = epoch_and_batch(book.position), epoch_and_batch(book.next_claim)
        return RingStatus(
            name=self.name,
            state=state,
            pid=os.getpid(),
            trainer_pid=trainers.trainer_pid,
            slots=book.slots,
            slot_bytes=self._memory.one_bytes,
            ready=book.ready,
            making=book.making,
            trainer_epoch=trainer[0],
            trainer_batch=trainer[1],
            filler_epoch=filler[0],
            filler_batch=filler[1],
            finished=book.finished,
            producers=len(pool),
            restarts=pool.restarts,
            made=pool.made,
            consumed=trainers.consumed,
            waited_s=trainers.waited_s,
            seconds=time.monotonic() - self._began,
            notes=tuple(self._notes),
        )
