"""Draw on all cores, in order, with processes that cannot outlive us.

Each drawer is a fresh Python that reads indices from its standard input and answers with files; when
we end, however we end, its input ends, and so does it. The trap that this avoids: `fork` copies the
locks of threads that hold them, and `spawn` and `forkserver` run the caller's script again, which
fails in a script without `if __name__ == "__main__"`. Notebook 04 shows both.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from types import TracebackType
from typing import IO

from smallfiles.errors import ResourceError
from smallfiles.sources.synthetic.plans import Plan, file_bytes

_NUMBER = struct.Struct("<q")
_AHEAD = 4  # files in flight for each drawer; bounds memory
_SERVE = "from smallfiles.sources.synthetic.pool import serve; serve()"


class WorkerPool:
    """Processes that draw the pictures of one plan; a context manager.

    Args:
        plan: What to draw.
        workers: Number of processes; 1 draws in this one.
    """

    def __init__(self, plan: Plan, workers: int) -> None:
        self._plan = plan
        self._drawers = [_hire(plan) for _ in range(workers if workers > 1 else 0)]
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        for drawer in self._drawers:
            self._idle.put(drawer)
        self._threads = ThreadPoolExecutor(max(1, workers), "drawer")

    def draw(self, indices: Iterable[int]) -> Iterator[bytes]:
        """Files of the pictures, in the order of `indices`.

        Raises:
            ResourceError: A drawer was killed, as for want of memory.
        """
        if not self._drawers:
            yield from (file_bytes(self._plan, index) for index in indices)
            return
        waiting: deque[Future[bytes]] = deque()
        for index in indices:
            waiting.append(self._threads.submit(self._ask, index))
            if len(waiting) >= _AHEAD * len(self._drawers):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _ask(self, index: int) -> bytes:
        drawer = self._idle.get()
        try:
            return _exchange(drawer, index)
        except OSError as error:
            raise ResourceError(
                f"a process that draws pictures ended early (exit status {drawer.wait()})",
                expected=f"it to draw picture {index}",
                next_step="Look for the limit on memory or time that stopped it, or use fewer workers",
            ) from error
        finally:
            self._idle.put(drawer)

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        if kind is not None:
            for drawer in self._drawers:
                drawer.kill()
        self._threads.shutdown(wait=True)
        for drawer in self._drawers:
            _dismiss(drawer)


def _hire(plan: Plan) -> subprocess.Popen[bytes]:
    search_path = os.pathsep.join(folder or str(os.curdir) for folder in sys.path)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # Ctrl-C reaches all: we decide
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", _SERVE, json.dumps(asdict(plan))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": search_path},
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _dismiss(drawer: subprocess.Popen[bytes]) -> None:
    """End a drawer: its input closes, then it ends by itself."""
    for pipe in (drawer.stdin, drawer.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:  # what was still to be sent to a dead drawer
                pass
    drawer.wait()


def _exchange(drawer: subprocess.Popen[bytes], index: int) -> bytes:
    assert drawer.stdin is not None and drawer.stdout is not None
    drawer.stdin.write(_NUMBER.pack(index))
    drawer.stdin.flush()
    (size,) = _NUMBER.unpack(_read_exactly(drawer.stdout, _NUMBER.size))
    return _read_exactly(drawer.stdout, size)


def _read_exactly(pipe: IO[bytes], size: int) -> bytes:
    data = pipe.read(size)
    if len(data) < size:
        raise BrokenPipeError("the answer was cut off")
    return data


def serve() -> None:
    """The drawer's side: answer indices from standard input until it ends."""
    options = json.loads(sys.argv[1])
    plan = Plan(**{**options, "size": tuple(options["size"])})
    try:
        while request := sys.stdin.buffer.read(_NUMBER.size):
            data = file_bytes(plan, *_NUMBER.unpack(request))
            sys.stdout.buffer.write(_NUMBER.pack(len(data)) + data)
            sys.stdout.buffer.flush()
    except BrokenPipeError:
        os._exit(0)  # the parent is gone: nobody reads, not even an error message
