"""`smallfiles ring fill` as a program beside this one, ended when it is no longer needed.

The trap: a program that a notebook starts outlives the notebook, and a ring that nobody ends keeps its
memory. So it is started in a `with`. Notebook 08 trains from it.
"""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from helpers.kernel import CHECKOUT
from smallfiles.ring import RingConfig

_PATIENCE_S = 20.0


@contextlib.contextmanager
def filling(config: RingConfig, data: Path, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    """Fill a ring while this block runs.

    Args:
        config: Name, size and producers of the ring.
        data: The packed file.
        *more: Further flags of `ring fill`, such as those of the batches.
    """
    words = shlex.split(config.to_cli(str(data.absolute()), *more))
    program = subprocess.Popen(  # in the checkout, where `smallfiles` finds the package
        [sys.executable, "-m", *words],
        cwd=CHECKOUT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield program
    finally:
        program.terminate()  # it frees its ring; one that has ended by itself does not mind
        try:
            program.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            program.kill()
            program.wait()
