"""The order of batches, and the state of the slots: which batch is in which slot, who makes what. No I/O.

Batches are assigned in the order of training, so the next ones always have slots and the ring cannot fill
up with later ones. The trap: a trainer may have changed the batch that it held when it died, so that batch
(and only that one) is made again before it is delivered. Notebook 08 teaches the ring.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from smallfiles.errors import UsageError
from smallfiles.loading.makers import Layout
from smallfiles.loading.plan import EpochPlan, SampleOrder


class Position(NamedTuple):
    """A batch: its epoch, and its number in the epoch."""

    epoch: int
    batch: int


END = Position(sys.maxsize, 0)
"""After the last batch of the last epoch."""


class BatchOrder:
    """The batches of one rank in order of training.

    Args:
        plan: The rank's share of each epoch.
        epochs: How many epochs there are; None for no limit.
    """

    def __init__(self, plan: EpochPlan, epochs: int | None) -> None:
        self.plan, self.epochs = plan, epochs
        self.length = plan.length()
        self._batches = lru_cache(maxsize=2)(plan.batches)  # producers work on two epochs at most
        if not self.length:
            raise UsageError(
                f"rank {plan.rank} of {plan.world_size} gets no batch of the {plan.samples:,} samples",
                expected="at least one batch for each rank",
                next_step="Use fewer ranks, or a smaller batch",
            )

    def first(self, epoch: int = 0) -> Position:
        """Return the position of the first batch of an epoch."""
        return END if self.epochs is not None and epoch >= self.epochs else Position(epoch, 0)

    def after(self, position: Position) -> Position:
        """Return the position of the next batch."""
        if position.batch + 1 < self.length:
            return Position(position.epoch, position.batch + 1)
        return self.first(position.epoch + 1)

    def indices(self, position: Position) -> SampleOrder:
        """Return the samples of a batch."""
        return self._batches(position.epoch)[position.batch]

    def total(self, most: int) -> int:
        """Return the number of all batches, but at most `most`."""
        return most if self.epochs is None else min(most, self.epochs * self.length)


def description(plan: EpochPlan, layout: Layout, epochs: int | None) -> dict[str, Any]:
    """Describe the batches of a ring as JSON values; two rings with equal batches have one identity."""
    shapes = {name: [list(shape), dtype.str] for name, (shape, dtype) in layout.items()}
    content = {"plan": asdict(plan), "layout": shapes}
    text = json.dumps(content, sort_keys=True)
    return {**content, "epochs": epochs, "identity": hashlib.sha256(text.encode()).hexdigest()}


def plan_of(record: dict[str, Any]) -> EpochPlan:
    """Return the epoch plan that a description records."""
    fields = dict(record["plan"])
    parts = tuple((size, count) for size, count in fields.get("parts", ()))
    return EpochPlan(**{**fields, "shards": tuple(fields["shards"]), "parts": parts})


@dataclass
class _Assignment:
    position: Position
    producer: int
    wanted: bool = True


@dataclass(frozen=True)
class Ready:
    """A finished batch.

    Args:
        position: Which batch.
        slot: The slot that holds it.
        payload: What its producer reported about it.
    """

    position: Position
    slot: int
    payload: Any


class RingState:
    """The state of all slots.

    Args:
        slots: How many there are.
        start: The first batch to make.
        after: Gives the batch that follows a batch; `END` after the last.
    """

    def __init__(self, slots: int, start: Position, after: Callable[[Position], Position]) -> None:
        self._after = after
        self._free = list(range(slots))[::-1]
        self._claims: dict[int, _Assignment] = {}  # by slot
        self._ready: dict[Position, Ready] = {}
        self._again: list[Position] = []  # a heap: lost batches, all before `_next`
        self._next = start
        self._to_deliver = start
        self.position = start
        self.slots = slots

    @property
    def ready(self) -> int:
        """Number of finished batches in slots, including the one in training."""
        return len(self._ready)

    @property
    def making(self) -> int:
        """Number of slots that are being filled."""
        return len(self._claims)

    @property
    def next_claim(self) -> Position:
        """The next batch to be assigned to a producer."""
        return self._again[0] if self._again else self._next

    @property
    def finished(self) -> bool:
        """Whether training has finished the last batch."""
        return self.position == END

    def claim(self, producer: int) -> tuple[Position, int] | None:
        """Assign the next batch to make, and its slot. Return None if the ring is full or all are made."""
        if not self._free or self.next_claim == END:
            return None
        if self._again:
            position = heapq.heappop(self._again)
        else:
            position, self._next = self._next, self._after(self._next)
        slot = self._free.pop()  # the one that was freed last: its memory may still be in the cache
        self._claims[slot] = _Assignment(position, producer)
        return position, slot

    def made(self, producer: int, slot: int, payload: Any) -> Position | None:
        """Record that a producer has filled a slot. Return None if that batch is no longer wanted."""
        claim = self._claims.get(slot)
        if claim is None or claim.producer != producer:
            return None
        del self._claims[slot]
        if not claim.wanted:
            self._free.append(slot)
            return None
        self._ready[claim.position] = Ready(claim.position, slot, payload)
        return claim.position

    def lost(self, producer: int) -> list[Position]:
        """Record that a producer died. Return its batches in order. They will be made again."""
        slots = [slot for slot, claim in self._claims.items() if claim.producer == producer]
        claims = [self._claims.pop(slot) for slot in slots]
        self._free.extend(slots)
        positions = sorted(claim.position for claim in claims if claim.wanted)
        for position in positions:
            heapq.heappush(self._again, position)
        return positions

    def deliver(self, ahead: int) -> list[Ready]:
        """Return the next ready batches in order, with at most `ahead` delivered and unfinished."""
        found = []
        while self._to_deliver in self._ready and self._out() < ahead:
            found.append(self._ready[self._to_deliver])
            self._to_deliver = self._after(self._to_deliver)
        return found

    def done(self, position: Position) -> bool:
        """Record that training has finished a batch. Return False if training did not hold this batch."""
        if position != self.position or not self._held():
            return False
        self._free.append(self._ready.pop(position).slot)
        self.position = self._after(position)
        return True

    def withdraw(self) -> None:
        """Record that the trainer is gone or starts over. The batch that it may have changed is remade."""
        if self._held():
            self._free.append(self._ready.pop(self.position).slot)
            heapq.heappush(self._again, self.position)
        self._to_deliver = self.position

    def seek(self, position: Position) -> None:
        """Continue at another batch; what is ready from there on stays."""
        self.withdraw()
        if not self.position <= position <= self._next:
            self._drop_before(END)
            self._next = position
        else:
            self._drop_before(position)
        self.position = self._to_deliver = position

    def _drop_before(self, position: Position) -> None:
        for old in [ready for ready in self._ready if ready < position]:
            self._free.append(self._ready.pop(old).slot)
        for claim in self._claims.values():
            claim.wanted = claim.wanted and claim.position >= position
        self._again = [lost for lost in self._again if lost >= position]
        heapq.heapify(self._again)

    def _held(self) -> bool:
        return self.position < self._to_deliver and self.position in self._ready

    def _out(self) -> int:
        """Count the batches that are delivered and unfinished (a few)."""
        count, position = 0, self.position
        while position < self._to_deliver:
            count, position = count + 1, self._after(position)
        return count
