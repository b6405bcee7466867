"""Ask a tool of the site a question, and wait for the answer only so long.

The trap: `lfs`, `quota` and their like ask a server. When it does not answer they hang, some in a
state in which they cannot even be killed; so neither the tool nor its end is waited for longer.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence

ELSEWHERE = ("/usr/lpp/mmfs/bin", "/usr/sbin", "/sbin")
"""Where such tools lie that are not on everybody's PATH."""

TIMEOUT_S = 2.0
_LAST_S = 0.2


def ask(command: Sequence[str], timeout_s: float = TIMEOUT_S) -> str | None:
    """Run a command and return what it printed.

    Args:
        command: The tool and its arguments.
        timeout_s: Seconds that it may take; then it and its children are killed.

    Returns:
        Its standard output; None if it is not there, fails or takes too long.
    """
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), *ELSEWHERE))
    tool = shutil.which(command[0], path=path)
    if tool is None or timeout_s <= 0:
        return None
    with tempfile.TemporaryFile() as out:  # a pipe would be held open by children that survive
        try:
            process = subprocess.Popen(
                [tool, *command[1:]],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "LC_ALL": "C"},
                start_new_session=True,
            )
        except OSError:
            return None
        if not _ended_well(process, timeout_s):
            return None
        out.seek(0)
        return out.read().decode(errors="replace")


def _ended_well(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    try:
        return process.wait(timeout_s) == 0
    except subprocess.TimeoutExpired:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LAST_S)
        return False
