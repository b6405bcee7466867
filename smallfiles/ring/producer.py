"""A producer: receives the numbers of batches, makes each in its slot, and reports it.

It blocks in a read of its socket, and ends when the filler closes the other side. The trap: Ctrl-C reaches
every process of a terminal. A producer ignores it and ends with its filler, so that no unfinished batch
is lost and no ten tracebacks are printed. Notebook 08 teaches the ring.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import sys

from smallfiles.errors import SmallfilesError
from smallfiles.loading.batches import Batch, BatchMaker, places, views
from smallfiles.loading.plan import EpochPlan
from smallfiles.ring.channel import Channel, Message, RingError, as_message
from smallfiles.ring.memory import Block, Memory
from smallfiles.ring.state import BatchOrder, Position

_FAULTS_SENT = 20
_REASON_LENGTH = 300


def run_process(sock: socket.socket, maker: BatchMaker, plan: EpochPlan) -> None:
    """The main function of a producer process: make batches until the filler is gone.

    Args:
        sock: To the filler.
        maker: Makes batches.
        plan: Defines which samples are in them.
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
    """A failure of user code, with the note on the sample that our makers add."""
    noted = " ".join(getattr(error, "__notes__", ()))
    samples = ", ".join(str(index) for index in order.indices(position)[:5])
    return RingError(
        f"batch {position.batch} of epoch {position.epoch} (samples {samples} …) cannot be made: "
        f"{type(error).__name__}: {error} {noted}".rstrip(),
        expected="a batch maker that makes every batch, or names the bad sample",
        next_step="Look at these samples, or make the batch maker leave such samples out",
    )
