"""The producers of a ring: start them, assign batches, notice their deaths, end them; and what each does.

The traps: `multiprocessing` can start a process by forking, which is fast but dangerous in a program with
threads: a lock that another thread held stays locked in the child forever. So a server without threads forks
them (`forkserver`). And if a sample kills every decoder, a filler that replaces each dead producer never
stops; so after five deaths at one batch it stops and names the batch. Notebook 08 teaches the ring.

A producer receives the numbers of batches, makes each in its slot, and reports it. It blocks in a read of its
socket, and ends when the filler closes the other side. The trap: Ctrl-C reaches
every process of a terminal. A producer ignores it and ends with its filler, so that no unfinished batch
is lost and no ten tracebacks are printed. Notebook 08 teaches the ring.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import selectors
import signal
import socket
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from smallfiles.errors import ResourceError, SmallfilesError
from smallfiles.loading.makers import Batch, BatchMaker, places, views
from smallfiles.loading.plan import EpochPlan
from smallfiles.ring.channel import Channel, Message, RingError, as_message, pair
from smallfiles.ring.folder import Block, Memory
from smallfiles.ring.state import BatchOrder, Position, RingState

_PATIENCE_S = 10.0
"""Time for a producer to finish its batch before it is killed."""

_DEATHS_AT_START = 3
_DEATHS_AT_ONE_BATCH = 5
_BY_SIGNAL: dict[int, str] = {
    signal.SIGKILL: "was killed by signal 9, which the system sends when memory runs out",
    signal.SIGBUS: "was killed by a bus error (signal 7): shared memory or a mapped file is no longer there",
    signal.SIGSEGV: "crashed (signal 11) inside a library",
}


class Hub(NamedTuple):
    """What producers and trainers of a ring share.

    Args:
        state: Of the slots; decides which batch comes next.
        memory: The slots.
        selector: The loop waits on it; the data of each registered object is the function that reads from it.
        note: Called with each sentence about an event.
    """

    state: RingState
    memory: Memory
    selector: selectors.BaseSelector
    note: Callable[[str], None]


@dataclass(eq=False)
class _Producer:
    """One process that makes batches.

    Args:
        number: Counted over all that were ever started.
        channel: To it.
        process: Its process.
        began: Whether its first message has arrived.
        claims: Batches assigned to it and not made yet, the current one first.
    """

    number: int
    channel: Channel
    process: BaseProcess
    began: bool = False
    claims: deque[Position] = field(default_factory=deque)

    def how_it_ended(self) -> str:
        """Return how the process ended, as a phrase that follows its name."""
        self.process.join(_PATIENCE_S)
        code = self.process.exitcode
        if code is None or code >= 0:  # 255 also if another thread collected the exit code first
            return "ended" if code in (None, 255) else f"ended with exit code {code}"
        return _BY_SIGNAL.get(-code) or f"was killed by signal {-code}"


class ProducerPool:
    """All producers of a ring.

    Args:
        maker: Makes batches.
        order: Defines which samples are in a batch.
        hub: Shared with the side of the trainers.
        on_made: Called for each batch made.
    """

    def __init__(self, maker: BatchMaker, order: BatchOrder, hub: Hub, on_made: Callable[[], None]) -> None:
        self._maker, self._order, self._on_made = maker, order, on_made
        self._state, self._memory, self._selector, self._note = hub
        self._context: Any = multiprocessing.get_context("forkserver")
        # Imported once, for all producers and their replacements.
        self._context.set_forkserver_preload(["__main__", "smallfiles.ring.pool", type(maker).__module__])
        self._producers: list[_Producer] = []
        self._started = 0
        self._deaths: Counter[Position | None] = Counter()
        self.restarts = self.made = 0

    def __len__(self) -> int:
        return len(self._producers)

    def start_producer(self) -> None:
        """Start one more producer."""
        while not self._start():
            self._deaths[None] += 1
            self._check_starts("was killed while it was started")

    def _start(self) -> bool:
        """Start a process; False if it died before it received its work."""
        ours, theirs = pair()
        arguments = (theirs.socket, self._maker, self._order.plan)
        process = self._context.Process(target=run_process, args=arguments, daemon=True)
        try:
            process.start()
        except (BrokenPipeError, EOFError):  # its reader, or the server that forks, is dead
            ours.close()
            return False
        except BaseException as error:
            ours.close()
            raise _start_error(error) from error
        finally:
            theirs.close()
        self._started += 1
        producer = _Producer(self._started, ours, process)
        self._producers.append(producer)
        self._selector.register(ours, selectors.EVENT_READ, lambda: self._on_message(producer))
        return True

    def hand_out(self) -> None:
        """Assign a batch to each producer, then a second one, so that none waits between two batches."""
        depth = 2 if self._state.slots >= 3 * len(self._producers) else 1
        for held in range(depth):
            for producer in [p for p in self._producers if p.began and len(p.claims) == held]:
                claim = self._state.claim(producer.number)
                if claim is None:
                    return
                producer.claims.append(claim[0])
                # If sending fails, the producer is dying, and its end of file follows.
                producer.channel.send({"make": claim[0], "slot": claim[1]}, wait=False)

    def close(self) -> None:
        """End all producers; those that do not end in time are killed."""
        for producer in self._producers:
            producer.channel.close()
        until = time.monotonic() + _PATIENCE_S
        for producer in self._producers:
            producer.process.join(max(0.0, until - time.monotonic()))
        for producer in self._producers:
            if producer.process.is_alive():
                producer.process.kill()
                producer.process.join(_PATIENCE_S)
        self._producers.clear()

    def _on_message(self, producer: _Producer) -> None:
        message = producer.channel.receive()
        if message is None:
            self._on_exit(producer)
        elif "hello" in message:
            producer.began = True
            self._deaths.pop(None, None)
            producer.channel.send(self._memory.sizes(), [self._memory.fd])
        else:
            self._take(producer, message)

    def _take(self, producer: _Producer, message: Message) -> None:
        producer.claims.popleft()
        self.made += 1
        position = self._state.made(producer.number, message["slot"], message["payload"])
        if position is not None:
            self._deaths.pop(position, None)
        self._on_made()

    def _on_exit(self, producer: _Producer) -> None:
        """Replace a dead producer and have its batches made again."""
        self._selector.unregister(producer.channel)
        producer.channel.close()
        self._producers.remove(producer)
        self._state.lost(producer.number)
        at = producer.claims[0] if producer.claims else None
        self._deaths[at if producer.began else None] += 1
        self.restarts += 1
        how = producer.how_it_ended()
        if producer.began:
            self._check_deaths(at, how)
        else:
            self._check_starts(how)
        doing = f"while making batch {at.batch:,} of epoch {at.epoch}" if at else "between two batches"
        self._note(f"producer {producer.number} {how} {doing}; another one was started, and nothing is lost")
        self.start_producer()

    def _check_starts(self, how: str) -> None:
        if self._deaths[None] >= _DEATHS_AT_START:
            raise RingError(
                f"{_DEATHS_AT_START} producers in a row ended before their first batch; the last one {how}",
                expected="processes that can import the program that started them",
                next_step='Start the program under `if __name__ == "__main__":`',
            )

    def _check_deaths(self, at: Position | None, how: str) -> None:
        if at is not None and self._deaths[at] >= _DEATHS_AT_ONE_BATCH:
            samples = ", ".join(str(index) for index in self._order.indices(at)[:5])
            raise RingError(
                f"{_DEATHS_AT_ONE_BATCH} producers died at batch {at.batch:,} of epoch {at.epoch} "
                f"(samples {samples} …); the last one {how}",
                expected="producers that survive every batch",
                next_step="Ask for more memory or fewer producers; or check these samples",
            )


def _start_error(error: BaseException) -> BaseException:
    """Return the error for a process that cannot be started."""
    if isinstance(error, pickle.PicklingError | AttributeError | TypeError):
        return RingError(
            f"the batch maker cannot be sent to a process ({error})",
            expected="a batch maker that can be pickled: of a class in a module, without open files",
            next_step="Define its class in a module",
        )
    if isinstance(error, OSError | RuntimeError):
        return ResourceError(
            f"no producer can be started ({' '.join(str(error).split())[:200]})",
            expected="room for one more process",
            next_step='Start the program under `if __name__ == "__main__":`, and check ulimit -u and -n',
        )
    return error


_FAULTS_SENT = 20
_REASON_LENGTH = 300


def run_process(sock: socket.socket, maker: BatchMaker, plan: EpochPlan) -> None:
    """Run a producer process: make batches until the filler is gone.

    Args:
        sock: The socket that is connected to the filler.
        maker: Makes the batches.
        plan: Defines which samples are in each batch.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)  # as in a DataLoader's worker: there is a producer for each CPU
    with contextlib.closing(Channel(sock)) as channel:
        channel.send({"hello": "producer"})
        welcome, fds = channel.receive_fds()
        if welcome is None or not fds:
            return
        order = BatchOrder(plan, None)
        with contextlib.closing(Memory(fds[0], welcome["slots"], welcome["slot_bytes"])) as memory:
            while (task := channel.receive()) is not None:
                if not channel.send(_done(task, maker, order, memory)):
                    return


def _done(task: Message, maker: BatchMaker, order: BatchOrder, memory: Memory) -> Message:
    position, slot = Position(*task["make"]), int(task["slot"])
    try:
        indices = order.indices(position)
        block = memory.block(slot)
        batch = maker.make(indices, position.epoch, views(block, maker.layout(len(indices))))
        return {"slot": slot, "payload": _payload(batch, block)}
    except SmallfilesError as error:
        return {"slot": slot, "payload": {"fault": as_message(error)}}
    except Exception as error:  # a maker may be a user's code
        return {"slot": slot, "payload": {"fault": as_message(_summary(error, order, position))}}


def _payload(batch: Batch, block: Block) -> Message:
    faults = [[f.index, f.key[:_REASON_LENGTH], f.reason[:_REASON_LENGTH]] for f in batch.faults]
    arrays = places(batch.arrays, block)
    for name, array in batch.arrays.items():
        if not 0 <= arrays[name][2] <= len(block) - array.nbytes or not array.flags.c_contiguous:
            raise RingError(
                f"the batch maker did not put the array {name!r} into the memory given for it",
                expected="each array in the leading part of the array given for it",
                next_step="Correct the maker's `make`: fill `out` and return views of it",
            )
    return {"arrays": arrays, "faults": faults[:_FAULTS_SENT], "fault_count": len(faults)}


def _summary(error: Exception, order: BatchOrder, position: Position) -> RingError:
    """Return the error for a failure of user code, with the note on the sample that our makers add."""
    noted = " ".join(getattr(error, "__notes__", ()))
    samples = ", ".join(str(index) for index in order.indices(position)[:5])
    return RingError(
        f"batch {position.batch} of epoch {position.epoch} (samples {samples} …) cannot be made: "
        f"{type(error).__name__}: {error} {noted}".rstrip(),
        expected="a batch maker that makes every batch, or names the bad sample",
        next_step="Look at these samples, or make the batch maker leave such samples out",
    )
