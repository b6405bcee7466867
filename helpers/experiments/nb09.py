"""A connection to a server on this machine with the latency, or the faults, that a cell sets.

    line = Line(server.port)                # use line.url instead of the server
    line.set(latency_s=0.02)                # delays each request; resets the counts
    line.set(cuts=2, cut_after=300_000)     # two answers break off after so many bytes
    line.count()                            # {"requests": 12, "bytes": 1234567}

The trap: a proxy in threads of the kernel would compete with the Python of the kernel, and forked workers
would keep its connections open. So it is a separate process, which ends with its standard input, however the
kernel ends. Notebook 09 reads through it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import weakref
from typing import Any

_METHODS = (b"GET ", b"PUT ", b"HEAD", b"POST", b"DELE")
_PIECE_BYTES = 1 << 18


class Line:
    """The line, as a notebook holds it.

    Args:
        port: Of the server on this machine.
    """

    def __init__(self, port: int) -> None:
        command = [sys.executable, "-I", __file__, str(port)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(  # Ctrl-C is for the kernel
            command, stdin=pipe, stdout=pipe, text=True, bufsize=1, start_new_session=True
        )
        self.url = f"http://127.0.0.1:{self._answer()}"
        self.close = weakref.finalize(self, _end, self._process)

    def set(self, *, latency_s: float = 0.0, cuts: int = 0, cut_after: int = 0) -> None:
        """Change the line, and count from zero.

        Args:
            latency_s: Each request, and each new connection, takes so much longer.
            cuts: So many of the next answers break off, if they are long enough.
            cut_after: After so many bytes.
        """
        self._said(latency_s=latency_s, cuts=cuts, cut_after=cut_after, requests=0, bytes=0)

    def count(self) -> dict[str, int]:
        """Requests, and bytes of answers, since the line was set."""
        found = self._said()
        return {"requests": found["requests"], "bytes": found["bytes"]}

    def _said(self, **switches: float) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(switches) + "\n")
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


class _Relay:
    """The other end: passes on what comes."""

    def __init__(self, port: int) -> None:
        self.port, self.latency_s = port, 0.0
        self.cuts = self.cut_after = self.requests = self.bytes = 0

    async def serve(self) -> None:
        server = await asyncio.start_server(self.connect, "127.0.0.1", 0)
        _say(server.sockets[0].getsockname()[1])
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            vars(self).update(json.loads(line))
            _say(vars(self))
        os._exit(0)  # the kernel has ended

    async def connect(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        far, on = await asyncio.open_connection("127.0.0.1", self.port)
        await asyncio.sleep(self.latency_s)
        passed = 0

        async def ask() -> None:
            nonlocal passed
            while data := await near.read(_PIECE_BYTES):
                if data[:4] in _METHODS:
                    passed, self.requests = 0, self.requests + 1
                    await asyncio.sleep(self.latency_s)
                on.write(data)
                await on.drain()

        async def answer() -> None:
            nonlocal passed
            while data := await far.read(_PIECE_BYTES):
                left = max(0, self.cut_after - passed) if self.cuts else len(data)
                passed, self.bytes = passed + len(data), self.bytes + min(left, len(data))
                is_cut = left < len(data)
                self.cuts -= is_cut  # before anything else may run: another connection looks at it, too
                back.write(data[:left])
                await back.drain()
                if is_cut:
                    return

        both = [asyncio.create_task(ask()), asyncio.create_task(answer())]
        done, left = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for task in left:
            task.cancel()
        for task in done:
            task.exception()  # the client has closed the connection
        for end in (on, back):
            with contextlib.suppress(OSError):
                end.close()


def _say(found: object) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_Relay(int(sys.argv[1])).serve())
