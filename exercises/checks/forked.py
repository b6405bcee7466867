"""Run a participant's code in a forked worker, as a DataLoader does, without being hurt by it.

Functions of a notebook cannot be sent to a spawned worker, since it cannot import the notebook, so the
worker is forked. The trap: a forked child that goes on after its work would run the rest of the kernel a
second time; it leaves by `os._exit`. Exercise 04 uses it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
import warnings
from collections.abc import Callable
from typing import Any


def in_worker(work: Callable[[], Any], limit_s: float = 5.0) -> Any:
    """What `work` returns in a forked process.

    Args:
        work: Returns something that JSON can hold.
        limit_s: The worker is stopped after this.

    Returns:
        The result; `{"error": …}` if it raised; None if it died or had to be stopped.
    """
    receiver, sender = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # a kernel has threads; the child uses none of them
        child = os.fork()
    if child == 0:
        _work_and_leave(work, sender)
    os.close(sender)
    try:
        text = _all_of(receiver, time.monotonic() + limit_s)
    finally:
        os.close(receiver)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return json.loads(text) if text else None


def _work_and_leave(work: Callable[[], Any], sender: int) -> None:
    try:
        answer = work()
    except BaseException as error:  # nothing may go on in this copy of the kernel
        answer = {"error": f"{type(error).__name__}: {str(error)[:200]}"}
    try:
        os.write(sender, json.dumps(answer).encode())
    finally:
        os._exit(0)


def _all_of(receiver: int, end: float) -> bytes:
    """Everything that comes until the worker closes its end; nothing if it takes too long."""
    parts: list[bytes] = []
    while select.select([receiver], [], [], max(0.0, end - time.monotonic()))[0]:
        part = os.read(receiver, 1 << 16)
        if not part:
            return b"".join(parts)
        parts.append(part)
    return b""
