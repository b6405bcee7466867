"""The filler: keeps the book, hands out batches to producers, and passes what is ready to the trainer.

One loop waits for messages of all of them and for the death of any. The state is in this process alone,
so whatever producer or trainer is killed at whatever moment, no half-written state is left to mend.

The trap: the loop must not wait by `epoll`, which goes on reporting a descriptor that was closed here while
a forked child still has it. Notebook 08 teaches the ring.
"""

from __future__ import annotations

import itertools
import os
import selectors
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from smallfiles.errors import SmallfilesError
from smallfiles.loading.batches import BatchMaker, nbytes
from smallfiles.loading.plan import EpochPlan
from smallfiles.ring import memory
from smallfiles.ring.book import END, Book, Position
from smallfiles.ring.channel import pair
from smallfiles.ring.config import RingConfig
from smallfiles.ring.faults import as_message
from smallfiles.ring.folder import RingFolder, description_of, position_of
from smallfiles.ring.memory import Memory
from smallfiles.ring.order import BatchOrder, description
from smallfiles.ring.pool import ProducerPool
from smallfiles.ring.report import RingStatus, State, epoch_and_batch
from smallfiles.ring.starting import ProducerStarter
from smallfiles.ring.trainers import TrainerSide

_NOTES_KEPT = 20
_MOST_SLOTS = 1 << 20
_unnamed = itertools.count(1)


class Filler:
    """Fills a ring until all epochs are done with or it is stopped.

    Args:
        maker: Makes batches.
        plan: This rank's share of each epoch.
        config: Size, producers and name.
        start: First batch; None begins at the first, or where a killed ring was.
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
        start: Position | None = None,
        on_note: Callable[[str], None] | None = None,
        on_made: Callable[[], None] | None = None,
    ) -> None:
        self.name = f"p{os.getpid()}-{next(_unnamed)}" if config.name is None else config.name
        self._config, self._on_note, self._on_made = config, on_note, on_made
        self._order = BatchOrder(plan, config.epochs)
        self._notes: deque[str] = deque(maxlen=_NOTES_KEPT)
        self._began = time.monotonic()
        self._stopping = False
        self._folder = RingFolder.claim(config.where, self.name)
        self._selector = selectors.PollSelector()
        self._wake, self._woken = pair()
        self._trainers: TrainerSide | None = None
        self._pool: ProducerPool | None = None
        self._memory: Memory | None = None
        try:
            self._prepare(maker, plan, start)
        except BaseException:
            self.close()
            raise

    def _prepare(self, maker: BatchMaker, plan: EpochPlan, start: Position | None) -> None:
        config, order = self._config, self._order
        layout = maker.layout(min(plan.batch, max(plan.samples, 1)))
        one_bytes = memory.slot_bytes(nbytes(layout))
        most = order.total(_MOST_SLOTS)
        slots = memory.choose_slots(
            one_bytes, config.where, slots=config.slots, size_bytes=config.size_bytes, most=most
        )
        record = description(plan, layout, config.epochs)
        begin = start or self._left_at(record) or order.first()
        self._memory = Memory.create(self._folder.path, slots, one_bytes)
        self._book = Book(slots, begin, order.after)
        self._trainers = TrainerSide(
            self._folder,
            self._book,
            self._memory,
            self._selector,
            self._note,
            lambda: self.status().as_json(),
        )
        self._pool = ProducerPool(
            ProducerStarter(maker, plan),
            self._book,
            order,
            self._memory,
            self._selector,
            self._note,
            self._on_made or (lambda: None),
        )
        self._folder.describe({**record, "slots": slots, "slot_bytes": one_bytes})

    def _left_at(self, record: dict[str, Any]) -> Position | None:
        """Where the trainer of a killed ring was, if that was the same ring."""
        left = description_of(self._folder.path)
        position = position_of(self._folder.path)
        same = left is not None and left.get("identity") == record["identity"]
        if not (self._config.resume and same) or position in (None, END, self._order.first()):
            return None
        assert position is not None
        if self._config.epochs is not None and position.epoch >= self._config.epochs:
            return None
        self._note(f"going on at batch {position.batch:,} of epoch {position.epoch}, where a killed ring was")
        return position

    @property
    def slots(self) -> int:
        """How many batches the ring holds."""
        return self._book.slots

    def run(self) -> None:
        """Fill until done or stopped; leaves no process and no file behind.

        Raises:
            RingError: Producers die again and again.
        """
        assert self._trainers is not None and self._pool is not None and self._memory is not None
        try:
            self._selector.register(self._woken, selectors.EVENT_READ, self._heed)
            self._trainers.open()
            for _ in range(self._config.producer_count):
                self._pool.hire()
            while not (self._stopping or self._book.finished):
                self._pool.hand_out()
                self._trainers.pass_on()
                self._memory.counters[0] = self._book.ready
                for key, _ in self._selector.select():
                    key.data()
            if self._book.finished:
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
        for thing in (self._pool, self._trainers, self._memory, self._selector, self._wake, self._woken):
            if thing is not None:
                thing.close()
        self._folder.remove()

    def _heed(self) -> None:
        self._woken.receive()

    def _note(self, sentence: str) -> None:
        self._notes.append(sentence)
        if self._trainers is not None:
            self._trainers.tell({"note": sentence})
        if self._on_note is not None:
            self._on_note(sentence)

    def status(self) -> RingStatus:
        """Both sides at this moment."""
        assert self._trainers is not None and self._pool is not None and self._memory is not None
        book, trainers, pool = self._book, self._trainers, self._pool
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
