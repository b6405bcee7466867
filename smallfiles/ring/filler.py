"""The filler: owns the state, assigns batches to producers, and announces finished ones to the trainer.

One loop waits for messages and for the end of any connection. The state is in this process alone, so no
producer or trainer, whenever it is killed, leaves an inconsistent state behind.

The traps: the loop must not wait by `epoll`, which goes on reporting a descriptor that was closed here while
a forked child still has it. And the successor of a killed trainer may connect before the death is noticed;
so the old connection is checked again before the new one is refused. Notebook 08 teaches the ring.
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

from smallfiles.errors import SmallfilesError, writing
from smallfiles.loading.makers import BatchMaker, nbytes
from smallfiles.loading.plan import EpochPlan
from smallfiles.ring import RingConfig, folder
from smallfiles.ring.channel import Channel, Message, RingError, as_message, pair
from smallfiles.ring.folder import Memory, RingFiles, RingStatus, State, epoch_and_batch
from smallfiles.ring.pool import Hub, ProducerPool
from smallfiles.ring.state import BatchOrder, Position, RingState, description

_NOTES_KEPT = 20
_MOST_SLOTS = 1 << 20
_unnamed = itertools.count(1)
_PASSED_AHEAD = 4
"""Batches that are announced to the trainer in advance: enough to hide the latency of a message."""


class TrainerSide:
    """The connections of trainers, one of which gets the batches, and of status requests.

    Args:
        files: Of the ring.
        hub: Shared with the producers.
        status: Gives the answer to a status request.
    """

    def __init__(self, files: RingFiles, hub: Hub, status: Callable[[], Message]) -> None:
        self._files, self._status = files, status
        self._state, self._memory, self._selector, self._note = hub
        self._listener = files.listen()
        self._peers: list[Channel] = []  # including the trainer
        self._trainer: Channel | None = None
        self.trainer_pid: int | None = None
        self.consumed = 0
        self.waited_s = 0.0

    def open(self) -> None:
        """Accept connections."""
        self._selector.register(self._listener, selectors.EVENT_READ, self._on_connect)

    def pass_on(self) -> None:
        """Announce the batches that are ready to the trainer."""
        if self._trainer is not None:
            for ready in self._state.deliver(_PASSED_AHEAD):
                self.send({"ready": ready.position, "slot": ready.slot, **ready.payload})

    def send(self, message: Message) -> None:
        """Send a message to the trainer, if there is one."""
        if self._trainer is not None:
            self._trainer.send(message, wait=False)

    def close(self) -> None:
        """Close all connections."""
        self._listener.close()
        for peer in self._peers:
            peer.close()

    def _on_connect(self) -> None:
        with contextlib.suppress(OSError):
            peer = Channel(self._listener.accept()[0])
            self._peers.append(peer)
            self._selector.register(peer, selectors.EVENT_READ, lambda: self._on_message(peer))

    def _on_message(self, peer: Channel) -> None:
        if peer.fileno() < 0:
            return  # a message of the same round has closed it
        message = peer.receive()
        if peer is self._trainer:
            self._on_trainer_message(message)
        elif not self._on_first_message(peer, message or {}):
            self._disconnect(peer)

    def _disconnect(self, peer: Channel) -> None:
        self._selector.unregister(peer)
        self._peers.remove(peer)
        peer.close()

    def _on_first_message(self, peer: Channel, message: Message) -> bool:
        """Answer the first message of a connection, and return whether the connection stays open."""
        if message.get("hello") == "status":
            peer.send(self._status(), wait=False)
        return message.get("hello") == "trainer" and self._accept(peer, message)

    def _accept(self, peer: Channel, message: Message) -> bool:
        while self._trainer is not None and self._trainer.peer_is_gone():
            self._on_trainer_message(self._trainer.receive())  # unread messages, then the end of file
        if self._trainer is not None:
            refusal = RingError(
                f"ring {self._files.name} feeds process {self.trainer_pid} already",
                expected="one trainer per ring",
                next_step="Give each rank a ring of its own, or end the other process",
            )
            peer.send({"refused": as_message(refusal)}, wait=False)
            return False
        self._trainer, self.trainer_pid = peer, message.get("pid")
        peer.send({"position": self._state.position, **self._memory.sizes()}, [self._memory.fd], wait=False)
        return True

    def _on_trainer_message(self, message: Message | None) -> None:
        if message is None:
            self._lose_trainer()
        elif "done" in message:
            self._free(Position(*message["done"]), float(message["waited_s"]))
        elif "seek" in message:
            self._state.seek(Position(*message["seek"]))
            self.send({"sought": message["seek"]})

    def _free(self, position: Position, waited_s: float) -> None:
        if self._state.done(position):
            self.consumed += 1
            self.waited_s += waited_s

    def _lose_trainer(self) -> None:
        if self._trainer is None:
            return
        self._disconnect(self._trainer)
        epoch, batch = self._state.position
        self._trainer, pid = None, self.trainer_pid
        self.trainer_pid = None
        self._state.withdraw()
        if not self._state.finished:
            self._note(f"the trainer (process {pid}) left at batch {batch:,} of epoch {epoch}")


class Filler:
    """Fills a ring until all epochs are trained or it is stopped.

    Args:
        maker: Makes batches.
        plan: This rank's share of each epoch.
        config: Size, producers and name.
        on_note: Called with each sentence about an event.
        on_made: Called for each batch made.

    Raises:
        OutputExistsError: A live ring has this name.
        ResourceError: The ring does not fit in memory, or its files cannot be written.

    Attributes:
        error: The error that ended it, if any; known before the connections are closed.
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
        self.error: Exception | None = None
        self._wake, self._woken = pair()
        with contextlib.ExitStack() as cleanup, writing(self._files.folder):
            cleanup.callback(self._wake.close)
            cleanup.callback(self._woken.close)
            cleanup.callback(self._files.remove, self._files.claim())
            self._prepare(maker, plan, on_made, cleanup)
            self._cleanup = cleanup.pop_all()

    def _prepare(
        self, maker: BatchMaker, plan: EpochPlan, on_made: Callable[[], None], cleanup: contextlib.ExitStack
    ) -> None:
        config, order, files = self._config, self._order, self._files
        layout = maker.layout(min(plan.batch, max(plan.samples, 1)))
        one_bytes = folder.slot_bytes(nbytes(layout))
        slots = folder.choose_slots(one_bytes, config.where, config.slots, order.total(_MOST_SLOTS))
        record = description(plan, layout, config.epochs)
        self._state = RingState(slots, order.first(), order.after)
        self._memory = cleanup.enter_context(
            contextlib.closing(Memory.create(files.folder, slots, one_bytes))
        )
        self._selector = cleanup.enter_context(contextlib.closing(selectors.PollSelector()))
        hub = Hub(self._state, self._memory, self._selector, self._note)
        self._pool = ProducerPool(maker, order, hub, on_made)
        cleanup.callback(self._pool.close)  # may take seconds, so connections are closed before
        self._trainers = TrainerSide(files, hub, lambda: asdict(self.status()))
        cleanup.callback(self._trainers.close)
        files.describe(record)

    @property
    def name(self) -> str:
        """Of the ring."""
        return self._files.name

    def run(self) -> None:
        """Fill until done or stopped, then remove all processes and files of the ring.

        Raises:
            RingError: Producers die repeatedly.
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
                self._trainers.send({"end": True})
        except Exception as error:
            self.error = error
            if isinstance(error, SmallfilesError):
                self._trainers.send({"fatal": as_message(error)})
            raise
        finally:
            self.close()

    def stop(self) -> None:
        """Make `run` return soon; any thread may call it."""
        self._stopping = True
        self._wake.send({"stop": True}, wait=False)

    def close(self) -> None:
        """Remove all processes and files of the ring; `run` does so itself."""
        self._cleanup.close()

    def _note(self, sentence: str) -> None:
        self._notes.append(sentence)
        self._trainers.send({"note": sentence})
        self._on_note(sentence)

    def status(self) -> RingStatus:
        """Return the present status of the filler and the trainer."""
        state, trainers, pool = self._state, self._trainers, self._pool
        full = not state.making and state.ready >= state.slots
        now: State = "filling" if not full else "full" if trainers.trainer_pid else "waiting for a trainer"
        trainer, filler = epoch_and_batch(state.position), epoch_and_batch(state.next_claim)
        return RingStatus(
            name=self.name,
            state=now,
            pid=os.getpid(),
            trainer_pid=trainers.trainer_pid,
            slots=state.slots,
            slot_bytes=self._memory.one_bytes,
            ready=state.ready,
            making=state.making,
            trainer_epoch=trainer[0],
            trainer_batch=trainer[1],
            filler_epoch=filler[0],
            filler_batch=filler[1],
            finished=state.finished,
            producers=len(pool),
            restarts=pool.restarts,
            made=pool.made,
            consumed=trainers.consumed,
            waited_s=trainers.waited_s,
            seconds=time.monotonic() - self._began,
            notes=tuple(self._notes),
        )
