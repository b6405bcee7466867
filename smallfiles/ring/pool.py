"""The producers at work: who makes which batch, and what happens when one dies.

The trap: a filler that replaces whoever dies does so for ever when a sample kills each decoder; after
five deaths at one batch it stops and names the batch. Notebook 08 teaches the ring.
"""

from __future__ import annotations

import selectors
from collections import Counter
from collections.abc import Callable

from smallfiles.ring.book import Book, Position
from smallfiles.ring.channel import Message
from smallfiles.ring.faults import RingError
from smallfiles.ring.memory import Memory
from smallfiles.ring.order import BatchOrder
from smallfiles.ring.starting import Producer, ProducerStarter, end

_DEATHS_BEFORE_BEGINNING = 3
_DEATHS_AT_ONE_BATCH = 5


class ProducerPool:
    """All producers of a ring.

    Args:
        starter: Starts producers.
        book: Says what is to be made.
        order: Says which samples are in a batch.
        memory: The slots.
        selector: Where the loop waits; each registered object has a function that hears it.
        note: Gets each sentence about what happened.
        on_made: Is called for each batch made.
    """

    def __init__(
        self,
        starter: ProducerStarter,
        book: Book,
        order: BatchOrder,
        memory: Memory,
        selector: selectors.BaseSelector,
        note: Callable[[str], None],
        on_made: Callable[[], None],
    ) -> None:
        self._starter, self._book, self._order, self._memory = starter, book, order, memory
        self._selector, self._note, self._on_made = selector, note, on_made
        self._producers: dict[int, Producer] = {}
        self._deaths: Counter[Position | None] = Counter()
        self.restarts = self.made = 0

    def __len__(self) -> int:
        return len(self._producers)

    def hire(self) -> None:
        """Start one more producer."""
        producer = self._starter.start()
        self._producers[producer.number] = producer
        self._selector.register(producer.channel, selectors.EVENT_READ, lambda: self._hear(producer))

    def hand_out(self) -> None:
        """Give each producer a batch, then a second one to begin as soon as it has made the first."""
        depth = 2 if self._book.slots >= 3 * len(self._producers) else 1
        for held in range(depth):
            for producer in [p for p in self._producers.values() if p.began and len(p.claims) == held]:
                claim = self._book.claim(producer.number)
                if claim is None:
                    return
                producer.claims.append(claim[0])
                # A producer that cannot be reached is dying; its end of file comes next.
                producer.channel.send({"make": claim[0], "slot": claim[1]}, wait=False)

    def close(self) -> None:
        """End all of them."""
        end(list(self._producers.values()))
        self._producers.clear()

    def _hear(self, producer: Producer) -> None:
        message = producer.channel.receive()
        if message is None:
            self._bury(producer)
        elif "hello" in message:
            producer.began = True
            self._deaths.pop(None, None)
            producer.channel.send(self._memory.sizes(), [self._memory.fd])
        else:
            self._take(producer, message)

    def _take(self, producer: Producer, message: Message) -> None:
        producer.claims.popleft()
        self.made += 1
        position = self._book.made(producer.number, message["slot"], message["payload"])
        if position is not None:
            self._deaths.pop(position, None)
        self._on_made()

    def _bury(self, producer: Producer) -> None:
        """A producer is dead: say so, give its batches to others, start another."""
        self._selector.unregister(producer.channel)
        producer.channel.close()
        del self._producers[producer.number]
        self._book.lost(producer.number)
        at = producer.claims[0] if producer.claims else None
        self._deaths[at if producer.began else None] += 1
        self.restarts += 1
        how = producer.how_it_ended()
        self._check_deaths(producer, at, how)
        doing = f"while making batch {at.batch:,} of epoch {at.epoch}" if at else "between two batches"
        self._note(f"producer {producer.number} {how} {doing}; another one was started, and nothing is lost")
        self.hire()

    def _check_deaths(self, producer: Producer, at: Position | None, how: str) -> None:
        if not producer.began and self._deaths[None] >= _DEATHS_BEFORE_BEGINNING:
            raise RingError(
                f"{_DEATHS_BEFORE_BEGINNING} producers in a row ended before they began; the last one {how}",
                expected="processes that can import the program that started them",
                next_step='Start the program under `if __name__ == "__main__":`',
            )
        if producer.began and at is not None and self._deaths[at] >= _DEATHS_AT_ONE_BATCH:
            samples = ", ".join(str(index) for index in self._order.indices(at)[:5])
            raise RingError(
                f"{_DEATHS_AT_ONE_BATCH} producers died at batch {at.batch:,} of epoch {at.epoch} "
                f"(samples {samples} …); the last one {how}",
                expected="producers that survive every batch",
                next_step="Ask for more memory or fewer producers; if that does not help, see these samples",
            )
