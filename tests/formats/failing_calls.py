"""Let the n-th write of a process fail as a failing disk does, whichever library asks for it.

The kernel itself is told (seccomp user notification, Linux 5.5): a filter in the child hands every
writing call to the parent, which answers "go on" or EIO. So no compiler and no tracer is needed.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import select
import socket
import struct
from collections.abc import Callable

_NUMBERS = {  # write, pwrite64, writev, pwritev, pwritev2; seccomp
    "x86_64": ((1, 18, 20, 296, 328), 317),
    "aarch64": ((64, 68, 66, 70, 287), 277),
}
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_GO_ON = 1
_NOTIFY, _ALLOW = 0x7FC00000, 0x7FFF0000
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_NEW_LISTENER, _SET_FILTER, _NO_NEW_PRIVILEGES = 8, 1, 38


def _listen() -> int:
    """Have this process's writes reported to whoever holds the descriptor that is returned."""
    calls, seccomp = _NUMBERS[platform.machine()]
    code = [(_LOAD, 0, 0, 0)]
    code += [(_EQUAL, len(calls) - at, 0, call) for at, call in enumerate(calls)]
    code += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _NOTIFY)]
    program = b"".join(struct.pack("HBBI", *each) for each in code)
    held = ctypes.create_string_buffer(program)
    described = ctypes.create_string_buffer(struct.pack("HP", len(code), ctypes.addressof(held)))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    listener: int = libc.syscall(seccomp, _SET_FILTER, _NEW_LISTENER, described)
    if listener < 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    return listener


def run(work: Callable[[], int], failing: int) -> tuple[int, int]:
    """Run `work` in a child whose write number `failing` (from 1) fails with EIO.

    Returns:
        What it returned (below 100; 111 where filters are not allowed), and how many writes it made.
    """
    here, there = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            listener = _listen()
            socket.send_fds(there, [b"x"], [listener])
            os.close(listener)
            os._exit(work())
        except OSError:
            os._exit(111)
        except BaseException:
            os._exit(112)
    there.close()
    _, descriptors, _, _ = socket.recv_fds(here, 1, 1)
    here.close()
    made = _answer(descriptors[0], failing) if descriptors else 0
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), made


def _answer(listener: int, failing: int) -> int:
    made, waiting = 0, select.poll()
    waiting.register(listener, select.POLLIN)
    while not waiting.poll()[0][1] & select.POLLHUP:  # it hangs up when the child is gone
        asked = bytearray(80)
        try:
            fcntl.ioctl(listener, _RECEIVE, asked)
            made += 1
            verdict = (-errno.EIO, 0) if made == failing else (0, _GO_ON)
            fcntl.ioctl(listener, _SEND, bytearray(asked[:8] + struct.pack("<qiI", 0, *verdict)))
        except OSError as error:
            if error.errno != errno.ENOENT:  # the child was killed meanwhile
                raise
    os.close(listener)
    return made
