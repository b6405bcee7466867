"""Start the process behind a mount, wait until it answers, and end it in every case.

The trap: `finally` does not run when a process is killed. So the process behind the mount watches
the one that started it, and what even that misses is swept away by the next mount.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import subprocess
import tempfile
import time
import weakref
from dataclasses import asdict
from pathlib import Path

import smallfiles
from smallfiles.errors import ResourceError, SmallfilesError
from smallfiles.slowfs import points
from smallfiles.slowfs.config import SlowConfig
from smallfiles.slowfs.delays import COUNTED, COUNTS_BYTES
from smallfiles.slowfs.server import READY, Order

PREFIX = "smallfiles-slowfs-"
_START_S = 20
_END_S = 5


class Mount:
    """A mounted slow folder.

    Args:
        folder: What to show.
        config: The storage to imitate.
        at: Where; a private temporary folder if not given.
    """

    def __init__(self, folder: Path, config: SlowConfig, at: Path | None = None) -> None:
        self.folder = Path(os.path.realpath(folder))
        reason = points.why_not()
        if reason is not None:
            points.check(self.folder, Path("/nowhere"))
            raise ResourceError(
                f"no folder can be mounted here: {reason}",
                expected="FUSE, which lets users mount folders",
                next_step="Use slowfs.open_slow, which makes reads in this process slow instead",
            )
        self.point, made = _place(self.folder, at)
        counts = os.memfd_create("smallfiles-slowfs-counts")
        try:
            os.ftruncate(counts, COUNTS_BYTES)
            self._counts = mmap.mmap(counts, COUNTS_BYTES)
            order = Order(str(self.folder), str(self.point), asdict(config), counts, os.getpid(), made)
            self._process = _start(order)
        finally:
            os.close(counts)
        self._end = weakref.finalize(self, _end, self._process, self.point, made, os.getpid())
        try:
            _wait_until_ready(self._process, self.point)
        except BaseException:
            self.close()
            raise

    def counts(self) -> dict[str, int]:
        """How often each operation was asked for, reads, and bytes read."""
        return dict(zip(COUNTED, memoryview(self._counts).cast("q").tolist(), strict=True))

    def is_alive(self) -> bool:
        """Whether it is still mounted, as far as its process knows."""
        return self._process.poll() is None

    def close(self) -> None:
        """Unmount; once is enough."""
        self._end()


def _place(folder: Path, at: Path | None) -> tuple[Path, bool]:
    """The mount point, and whether it was made for this mount."""
    try:
        if at is None:
            parent = Path(os.path.realpath(tempfile.gettempdir()))
            points.sweep(parent, PREFIX)
            points.check(folder, parent / PREFIX)
            return Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent)), True  # mode 0700
        point = Path(os.path.realpath(at))
        points.repair(point)
        points.check(folder, point)
        existed = point.exists()
        point.mkdir(exist_ok=True)
    except OSError as error:
        raise ResourceError(
            f"{error.filename or 'a folder for temporary files'} cannot be made ({error.strerror})",
            expected="a place for a new folder, or an empty folder",
            next_step="Choose another mount point",
        ) from error
    return point, not existed


def _start(order: Order) -> subprocess.Popen[bytes]:
    package = str(Path(smallfiles.__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(
        order.command(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=[order.counts],
        cwd="/",
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,  # Ctrl-C is for us: we end it when we are done
    )


def _wait_until_ready(process: subprocess.Popen[bytes], point: Path) -> None:
    """Return when the kernel has accepted the mount.

    Raises:
        SmallfilesError: What the process said instead.
    """
    assert process.stdout is not None
    until, said = time.monotonic() + _START_S, b""
    while not said.endswith(b"\n"):
        readable, _, _ = select.select([process.stdout], [], [], max(0.0, until - time.monotonic()))
        piece = os.read(process.stdout.fileno(), 65536) if readable else b""
        if not piece:
            break
        said += piece
    text = said.decode(errors="replace").strip()
    if text == READY:
        return
    with contextlib.suppress(ValueError):
        got, expected, next_step = json.loads(text)
        raise ResourceError(got, expected=expected, next_step=next_step)
    last = text.splitlines()[-1] if text else f"no answer within {_START_S} s"
    raise _unexpected(point, last)


def _unexpected(point: Path, why: str) -> SmallfilesError:
    return ResourceError(
        f"{point} could not be mounted ({why})",
        expected="the process behind the mount to start",
        next_step="Try again; slowfs.open_slow works without a mount",
    )


def _end(process: subprocess.Popen[bytes], point: Path, made: bool, owner: int) -> None:
    """End the process, which unmounts; if it cannot, do it here."""
    if os.getpid() != owner:  # a forked worker leaves: the mount is not its own
        return
    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
    points.unmount(point)
    if made:
        with contextlib.suppress(OSError):
            point.rmdir()
