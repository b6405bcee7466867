"""The slots: an unnamed file in shared memory, and how large it may be.

Its name is removed before anything is written, and other processes receive it through a socket. So the
kernel frees it when the last process has ended, however it ended: nothing of it can stay in `/dev/shm`.

The trap: a file in `/dev/shm` may be made larger than the free space, and the first write beyond that kills
the process with a bus error (pytorch/pytorch#5040). So all of it is allocated before it is used.
Notebook 08 teaches the ring.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from smallfiles.errors import ResourceError
from smallfiles.machine.nodelocal import node_local
from smallfiles.progress import bytes_text

PAGE_BYTES = 4096
FEWEST_SLOTS = 2

_SHARE_TAKEN = 4
"""The default size is one part in this many of the free memory: models need memory too."""

_MARGIN = 0.9
"""The largest share of the free memory that a ring may take."""

Block = npt.NDArray[np.uint8]


def slot_bytes(layout_bytes: int) -> int:
    """Bytes of a slot: whole pages, so that no two slots share one."""
    return max(1, -(-layout_bytes // PAGE_BYTES)) * PAGE_BYTES


def choose_slots(one_bytes: int, where: Path, asked: int | None, most: int) -> int:
    """The number of slots of a ring.

    Args:
        one_bytes: Bytes of a slot.
        where: A directory in memory, usually /dev/shm.
        asked: The number in the configuration; None derives it from free memory.
        most: Upper bound of the default: the batches of all epochs.

    Raises:
        ResourceError: They do not fit in the free memory there, or in the job's memory limit.
    """
    free = node_local(where).free_bytes
    fits = int(free * _MARGIN) // one_bytes
    wanted = asked or max(FEWEST_SLOTS, min(free // _SHARE_TAKEN // one_bytes, most))
    if wanted > fits:
        raise ResourceError(
            f"a ring of {wanted:,} slots of {bytes_text(one_bytes)} takes {bytes_text(wanted * one_bytes)} "
            f"of {where}, where {bytes_text(free)} are free for this job",
            expected=f"at most {fits:,} slots, which leaves a margin",
            next_step=f"Ask for {fits:,} slots or fewer (--slots), or for more memory for the job"
            if fits >= FEWEST_SLOTS
            else "Lower the batch size, ask for more memory for the job, or free space there",
        )
    return wanted


class Memory:
    """The slots, mapped into one process.

    Args:
        fd: The file; this object owns it.
        slots: How many there are.
        one_bytes: Bytes of each.
    """

    def __init__(self, fd: int, slots: int, one_bytes: int) -> None:
        self.fd, self.slots, self.one_bytes = fd, slots, one_bytes
        try:
            # Never unmapped explicitly: the mapping lasts as long as the last array over it.
            self._bytes: Block = np.frombuffer(mmap.mmap(fd, slots * one_bytes), np.uint8)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def create(cls, folder: Path, slots: int, one_bytes: int) -> Memory:
        """New slots on the file system of `folder`, with all their memory allocated.

        Raises:
            ResourceError: Less memory is free than when their number was chosen.
        """
        fd, name = tempfile.mkstemp(dir=folder)
        Path(name).unlink()
        try:
            os.posix_fallocate(fd, 0, slots * one_bytes)
        except OSError as error:
            os.close(fd)
            raise ResourceError(
                f"{folder} has no room for {slots:,} slots of {bytes_text(one_bytes)} ({error.strerror})",
                expected="the memory that was free when the number of slots was chosen",
                next_step=f"Free space there (df -h {folder.parent}), or ask for fewer slots (--slots)",
            ) from error
        return cls(fd, slots, one_bytes)

    def sizes(self) -> dict[str, int]:
        """What another process must know besides the file."""
        return {"slots": self.slots, "slot_bytes": self.one_bytes}

    def block(self, slot: int) -> Block:
        """The bytes of a slot."""
        return self._bytes[slot * self.one_bytes : (slot + 1) * self.one_bytes]

    def close(self) -> None:
        """Release the memory; arrays over it stay valid, and keep it until they are gone."""
        self._bytes = np.empty(0, np.uint8)
        if self.fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self.fd)
        self.fd = -1
