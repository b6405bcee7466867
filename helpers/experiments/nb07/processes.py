"""A process that stages one file, says so, and waits to be told to end: `python -m … JSON`.

It prints `ready`, waits for a line, stages, prints what happened in JSON, and keeps the copy until its
input is closed. The trap: processes that are started one after the other do not start at once, since
importing takes longer than copying; so all wait for the line. Notebook 07.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smallfiles.errors import ResourceError

if TYPE_CHECKING:
    from smallfiles.slowfs import SlowFolder

_ROOT = Path(__file__).resolve().parents[3]
_LIMIT_S = 60.0


def shown(slow: SlowFolder, name: str) -> Path:
    """A file of a slow folder by a path that any process can open; the fast one where it is not mounted."""
    return (slow.path if slow.how == "fuse" else slow.folder) / name


class Stager:
    """A child process that stages a file.

    Args:
        source: What to stage.
        where: The directory to stage to.
    """

    def __init__(self, source: Path, where: Path) -> None:
        command = [sys.executable, "-m", __name__, json.dumps([str(source), str(where)])]
        paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )

    def line(self) -> str:
        """What it says next.

        Raises:
            ResourceError: It ended without a word.
        """
        assert self.process.stdout is not None
        text = self.process.stdout.readline().strip()
        if not text:
            raise ResourceError(
                f"a process that stages ended with code {self.process.wait(_LIMIT_S)}",
                expected="it to stage its file",
                next_step="Look whether there is memory left with: smallfiles staged",
            )
        return text

    def begin(self) -> None:
        """Let it stage now."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def result(self) -> dict[str, Any]:
        """What it did; waits for that."""
        return dict(json.loads(self.line()))

    def end(self) -> int:
        """Let it end, or end it; its exit code."""
        with contextlib.suppress(OSError):
            self.process.communicate(timeout=_LIMIT_S)
        return self.process.returncode


@contextlib.contextmanager
def stagers(count: int, source: Path, where: Path) -> Iterator[list[Stager]]:
    """Some processes that are ready to stage; none of them outlives the block.

    Args:
        count: How many.
        source: What to stage.
        where: The directory to stage to.
    """
    found = [Stager(source, where) for _ in range(count)]
    try:
        for one in found:
            one.line()
        yield found
    finally:
        for one in found:
            if one.process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    one.end()
            if one.process.poll() is None:
                one.process.kill()
            one.process.wait()
            for pipe in (one.process.stdin, one.process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()


def main() -> None:
    """What the child does."""
    from smallfiles import staging

    source, where = (Path(text) for text in json.loads(sys.argv[1]))
    _say("ready")
    sys.stdin.readline()
    began = time.monotonic()  # one clock for all processes of a machine
    copy = staging.stage(source, where, config=staging.StageConfig(leave_bytes=0))
    ended = time.monotonic()
    _say(json.dumps({"began": began, "ended": ended, "reused": copy.reused, "bytes": copy.bytes}))
    sys.stdin.readline()


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
