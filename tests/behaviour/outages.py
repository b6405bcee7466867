"""Folders whose storage fails in a chosen way for a chosen time: mounted, or in this process.

`FailingMount` shows a folder through FUSE and answers chosen requests with an error, which every library and
every process sees. `failing_calls` lets functions of `os` fail in this process, where FUSE is not allowed.
"""

import errno
import io
import json
import os
import sys
import threading
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from smallfiles.slowfs import SlowConfig, server
from smallfiles.slowfs.mounting import Mount
from smallfiles.slowfs.server import Operation, Tree

_NAMES = """
    ENXIO EIO ETIMEDOUT ESTALE ENOTCONN EREMOTEIO EHOSTDOWN EHOSTUNREACH ECONNRESET
    ECONNREFUSED ECONNABORTED ENODEV ESHUTDOWN ENETDOWN ENETUNREACH ENOLINK EPIPE
"""
ERRORS = [getattr(errno, name) for name in _NAMES.split()]
_CONTROL = "SMALLFILES_TEST_OUTAGE"


class _FailingTree(Tree):
    """A folder whose requests fail as the control file says: after some of them, for some seconds."""

    def __init__(self, root, delays):
        super().__init__(root, delays)
        self._control, self._seen, self._began = os.environ[_CONTROL], 0, {}
        self.answers = {
            operation: partial(self._or_fail, operation, answer) for operation, answer in self.answers.items()
        }

    def _or_fail(self, operation, answer, node, body):
        rule = self._rule()
        name = self._paths[node] + (b"/" + bytes(body[:-1]) if operation == Operation.LOOKUP else b"")
        if rule and Operation(operation).name in rule["operations"] and rule["part"].encode() in name:
            self._seen += 1
            begins = self._seen > rule["after"]
            began = self._began.setdefault(rule["id"], time.monotonic()) if begins else 0.0
            if begins and time.monotonic() < began + rule["for_s"]:
                raise OSError(rule["number"], os.strerror(rule["number"]))
        return answer(node, body)

    def _rule(self):
        try:
            return json.loads(Path(self._control).read_text() or "null")
        except OSError:
            return None


class FailingMount:
    """A mounted folder; `fail` begins an outage."""

    def __init__(self, folder, control):
        self._control, self._rules = control, 0
        self.end()
        os.environ[_CONTROL] = str(control)
        command, server.MountRequest.command = server.MountRequest.command, _command
        try:
            self._mount = Mount(folder, SlowConfig(latency_s=0))
        finally:
            server.MountRequest.command = command
        self.point = self._mount.point

    def fail(self, number, operations="LOOKUP OPEN READ OPENDIR", *, after=0, for_s=1e9, part=""):
        """Answer requests for paths that contain `part` with an error, after so many, for so many seconds."""
        self._rules += 1
        rule = {"number": number, "operations": operations.split(), "after": after, "for_s": for_s}
        self._write(json.dumps(rule | {"part": part, "id": self._rules}))

    def end(self):
        """Let the storage answer again."""
        self._write("")

    def _write(self, text):
        new = self._control.with_suffix(".new")
        new.write_text(text)
        new.replace(self._control)

    def close(self):
        self._mount.close()


def _command(request):
    return [sys.executable, __file__, json.dumps(vars(request))]


READS = ("open", "stat", "statvfs", "scandir", "listdir", "pread", "preadv", "read", "readv")


@contextmanager
def failing_calls(monkeypatch, folder, number, calls=READS, *, for_s=1e9, after=0, part=""):
    """Let calls of this process for files below `folder` fail.

    Yields:
        The paths for which a call failed.
    """
    failed, seen, began = [], [0], []
    lock = threading.Lock()

    def refuse(path):
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        path = os.fsdecode(path)
        if not path.startswith(str(folder)) or part not in path:
            return
        with lock:
            seen[0] += 1
            if seen[0] <= after:
                return
            began.append(time.monotonic())
        if time.monotonic() < began[0] + for_s:
            failed.append(path)
            raise OSError(number, os.strerror(number), path)

    def wrapped(call):
        def failing(path, *args, **kwargs):
            refuse(path)
            return call(path, *args, **kwargs)

        return failing

    with monkeypatch.context() as patch:
        for name in calls:
            patch.setattr(os, name, wrapped(getattr(os, name)))
        if "open" in calls:
            patch.setattr(io, "open", wrapped(io.open))
        yield failed


if __name__ == "__main__":
    server.Tree = _FailingTree
    assert server.ROOT == 1
    server.main()
