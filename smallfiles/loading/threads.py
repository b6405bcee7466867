"""Batches made ahead by threads of the trainer: nothing is sent, memory is shared as it is.

The decoders (libjpeg-turbo in simplejpeg, Pillow, OpenCV) let go of Python's global lock while they
work, so threads decode side by side. A batch that a thread made need not be sent, mapped and copied
into pinned memory; and no `/dev/shm` is needed.

The trap: what Python itself does between two images runs in one thread at a time, the trainer's too. A
dozen threads are about the limit; notebook 08 measures it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class _End:
    """What a lane puts when it has no more: with the error, if there was one."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class _Lane(Generic[T]):
    """One thread that draws from an iterator, so many items ahead."""

    def __init__(self, items: Iterator[T], ahead: int, name: str) -> None:
        self._items, self._results = items, SimpleQueue[T | _End]()
        self._free = threading.Semaphore(ahead)
        self._stopped = False
        # A daemon: a notebook that forgot its loader can still end.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while True:
                self._free.acquire()
                if self._stopped:
                    return
                self._results.put(next(self._items))
        except StopIteration:
            self._results.put(_End())
        except BaseException as error:  # raised again where the batch would have been
            self._results.put(_End(error))

    def take(self) -> T | _End:
        item = self._results.get()
        self._free.release()
        return item

    def stop(self) -> None:
        self._stopped = True
        self._free.release()

    def join(self) -> None:
        self._thread.join()


class InThreads(Iterator[T]):
    """Items of several iterators in turn, each drawn from in a thread of its own, which begins at once.

    Args:
        parts: Drawn from in turn, until one ends.
        ahead: How many items each thread may be ahead of what was taken.
    """

    def __init__(self, parts: list[Iterator[T]], ahead: int) -> None:
        self._lanes = [_Lane(part, ahead, f"loader-{number}") for number, part in enumerate(parts)]
        self._turn = 0

    def __next__(self) -> T:
        if not self._lanes:
            raise StopIteration
        item = self._lanes[self._turn].take()
        if isinstance(item, _End):
            self.close()
            try:
                raise StopIteration if item.error is None else item.error
            finally:
                del item  # or error and frame would keep each other alive
        self._turn = (self._turn + 1) % len(self._lanes)
        return item

    def close(self) -> None:
        """End the threads; each finishes the item that it is at."""
        lanes, self._lanes = self._lanes, []
        _end(lanes)

    def __del__(self) -> None:
        # In whichever thread collects garbage, which may be one that the lanes wait for: it must not wait.
        if self._lanes:
            with suppress(RuntimeError):  # the process ends
                threading.Thread(target=_end, args=(self._lanes,), daemon=True).start()


def _end(lanes: list[_Lane[T]]) -> None:
    for lane in lanes:
        lane.stop()
    for lane in lanes:
        lane.join()
