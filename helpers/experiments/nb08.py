"""`smallfiles ring fill` as a program beside this one, ended when it is no longer needed.

The traps: a program that a notebook starts outlives the notebook, and a ring that nobody ends keeps its
memory, so it is started in a `with`. And a new process needs seconds (on a shared file system more) until
its imports are there, so the block begins once the ring is seen. Notebook 08 reads from it.
"""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from helpers.kernel import CHECKOUT
from smallfiles.ring import RingConfig, RingError, lives

_PATIENCE_S = 20.0
_START_S, _KNOCK_EACH_S = 300.0, 0.05


@contextlib.contextmanager
def filling(config: RingConfig, data: Path, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    """Fill a ring while this block runs.

    Args:
        config: Name, size and producers of the ring.
        data: The packed file.
        *more: Further flags of `ring fill`, such as those of the batches.

    Raises:
        RingError: The program ended before it filled, with its own words.
    """
    words = shlex.split(config.to_cli(str(data.absolute()), *more))
    with tempfile.TemporaryFile() as said:
        program = subprocess.Popen(  # in the checkout, where `smallfiles` finds the package
            [sys.executable, "-m", *words],
            cwd=CHECKOUT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
        )
        try:
            _wait(program, config, said)
            yield program
        finally:
            program.terminate()  # it frees its ring; one that has ended by itself does not mind
            try:
                program.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()


def _wait(program: subprocess.Popen[bytes], config: RingConfig, said: IO[bytes]) -> None:
    until = time.monotonic() + _START_S
    while not lives(str(config.name), config.where):
        ended = program.poll() is not None
        if ended or time.monotonic() > until:
            said.seek(0)
            raise RingError(
                f"the filler of ring {config.name} {'ended' if ended else 'gave no sign'} before it began",
                expected="a program that fills the ring",
                next_step=f"Read what it said: {said.read().decode(errors='replace').strip() or 'nothing'}",
            )
        time.sleep(_KNOCK_EACH_S)
