"""A slow folder: mounted where that is allowed, otherwise emulated in this process.

The process of a mount is started, awaited until it is ready, and ended in every case.

The traps: measurements through a mount include the kernel and a second process, measurements in this process
do not. So `how` states which of the two a folder is. Without a mount only reads through the store are slow,
so there is no path. And `finally` does not run when a process is killed, so the process of the mount watches
its parent, and the next mount removes what is left even then.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import subprocess
import tempfile
import weakref
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from smallfiles.errors import ResourceError
from smallfiles.processes import end, own_environment
from smallfiles.slowfs import COUNTS_BYTES, Delays, SlowConfig, server, sleep_until
from smallfiles.slowfs.server import READY, MountRequest

if TYPE_CHECKING:
    from smallfiles.samples import ByteStore  # with Arrow behind it, which the mount's process need not load

PREFIX = "smallfiles-slowfs-"
_START_S = 20


class Mount:
    """A mounted slow folder.

    Args:
        folder: The folder to show.
        config: The storage to emulate.
        at: The mount point; a private temporary folder if not given.

    Attributes:
        folder: The folder, without symbolic links.
        point: The mount point.
        counts: Returns the number of operations of each kind, of reads, and of bytes read.
    """

    def __init__(self, folder: Path, config: SlowConfig, at: Path | None = None) -> None:
        self.folder = Path(os.path.realpath(folder))
        reason = server.why_not()
        if reason is not None:
            server.check(self.folder, Path("/nowhere"))
            raise server.impossible(f"no folder can be mounted here: {reason}")
        self.point, made = _place(self.folder, at)
        counts = os.memfd_create("smallfiles-slowfs-counts")
        try:
            os.ftruncate(counts, COUNTS_BYTES)
            memory = memoryview(mmap.mmap(counts, COUNTS_BYTES))
            request = MountRequest(
                str(self.folder), str(self.point), asdict(config), counts, os.getpid(), made
            )
            self._process = _start(request)
        finally:
            os.close(counts)
        self.counts = Delays(config, memory).counts
        self._end = weakref.finalize(self, _end, self._process, self.point, made, os.getpid())
        try:
            _wait_until_ready(self._process, self.point)
        except BaseException:
            self.close()
            raise

    def is_alive(self) -> bool:
        """Check whether the process of the mount is running."""
        return self._process.poll() is None

    def close(self) -> None:
        """Unmount; a second call does nothing."""
        self._end()


def _place(folder: Path, at: Path | None) -> tuple[Path, bool]:
    """Choose the mount point. Return it, and whether it was created for this mount."""
    try:
        if at is None:
            parent = Path(os.path.realpath(tempfile.gettempdir()))
            server.sweep(parent, PREFIX)
            server.check(folder, parent / PREFIX)
            return Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent)), True  # mode 0700
        point = Path(os.path.realpath(at))
        server.repair(point)
        server.check(folder, point)
        existed = point.exists()
        point.mkdir(exist_ok=True)
    except OSError as error:
        raise ResourceError(
            f"{error.filename or 'a folder for temporary files'} cannot be created ({error.strerror})",
            expected="a place for a new folder, or an empty folder",
            next_step="Choose another mount point",
        ) from error
    return point, not existed


def _start(request: MountRequest) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        request.command(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=[request.counts],
        cwd="/",
        env=own_environment(),
        start_new_session=True,  # Ctrl-C must reach this process only, which ends it
    )


def _wait_until_ready(process: subprocess.Popen[bytes], point: Path) -> None:
    """Return when the kernel has accepted the mount.

    Raises:
        ResourceError: The error that the process reported.
    """
    assert process.stdout is not None
    answers, _, _ = select.select([process.stdout], [], [], _START_S)
    text = process.stdout.readline().decode(errors="replace") if answers else ""
    if text.strip() == READY:
        return
    process.terminate()  # it failed, and may have more to say
    text = (text + process.stdout.read().decode(errors="replace")).strip()
    with contextlib.suppress(ValueError):
        got, expected, next_step = json.loads(text)
        raise ResourceError(got, expected=expected, next_step=next_step)
    last = text.splitlines()[-1] if text else f"no answer within {_START_S} s"
    raise ResourceError(
        f"{point} could not be mounted ({last})",
        expected="the process behind the mount to start",
        next_step="Try again; slowfs.open_slow works without a mount",
    )


def _end(process: subprocess.Popen[bytes], point: Path, made: bool, owner: int) -> None:
    """End the process, which unmounts; unmount here if it does not."""
    if os.getpid() != owner:  # a forked worker does not own the mount
        return
    end(process)
    if process.stdout is not None:
        process.stdout.close()
    server.unmount(point, made)


class SlowStore:
    """A store seen through slow storage: a read waits for a look-up, an open and its bytes.

    Args:
        store: Where the bytes are.
        config: The storage to emulate.
    """

    def __init__(self, store: ByteStore, config: SlowConfig | None = None) -> None:
        self.store = store
        self.sequential = store.sequential
        self.config = config or SlowConfig()
        self._delays = Delays(self.config)

    def size(self, path: str) -> int:
        """Return the bytes of one sample, after the delay of a look-up."""
        sleep_until(self._delays.operation("lookup"))
        return self.store.size(path)

    def read_into(self, path: str, buffer: memoryview) -> int:
        """Read one sample after a look-up and an open; see `ByteStore.read_into`."""
        sleep_until(self._delays.operation("lookup"))
        sleep_until(self._delays.operation("open"))
        got = self.store.read_into(path, buffer)
        sleep_until(self._delays.transfer(min(got, len(buffer))))
        return got

    def counts(self) -> dict[str, int]:
        """Return the number of operations of each kind, of reads, and of bytes read, in this process."""
        return self._delays.counts()

    def describe(self) -> str:
        """Return a description such as `slow store (2 ms an operation) over folder /data`."""
        return f"slow store ({self.config.summary()}) over {self.store.describe()}"

    def __reduce__(self) -> tuple[Any, ...]:
        return SlowStore, (self.store, self.config)


@dataclass(frozen=True)
class SlowFolder:
    """A folder seen through slow storage.

    With `how="fuse"` it can be used as a path: `open(slow / "cat/1.jpg")`, `Path(slow)`.

    Args:
        folder: The folder itself, without delays.
        config: The emulated storage.
        how: `fuse`, a mount for any program; `in-process`, a store for this process only.
        store: Reads its files slowly, by paths relative to the folder; for both kinds.
        counts: Returns the number of operations of each kind, of reads, and of bytes read.
        note: Why it is not mounted; empty if it is.
        point: The mount point.
    """

    folder: Path
    config: SlowConfig
    how: Literal["fuse", "in-process"]
    store: ByteStore
    counts: Callable[[], dict[str, int]]
    note: str = ""
    point: Path | None = None

    @property
    def path(self) -> Path:
        """The mount point.

        Raises:
            ResourceError: It is not mounted.
        """
        if self.point is None:
            raise ResourceError(
                f"the slow view of {self.folder} has no path, since {self.note}",
                expected="a mount",
                next_step="Read through its store, or use a machine where you may mount",
            )
        return self.point

    @property
    def summary(self) -> str:
        """Whether it is mounted, and what is delayed, in a sentence or two."""
        delays = f"delayed ({self.config.summary()})"
        if self.how == "fuse":
            return f"Mounted: each look-up, open and listing is {delays}."
        return f"Not mounted: {self.note}. Through its store each look-up and each open is {delays}."

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    def __truediv__(self, name: str | os.PathLike[str]) -> Path:
        return self.path / name


@contextlib.contextmanager
def mounted(
    folder: Path, config: SlowConfig | None = None, *, at: Path | None = None
) -> Iterator[SlowFolder]:
    """Mount a folder read-only with the delays of a parallel file system, until the block ends.

    It shows on a laptop what many small files cost on a cluster: every program waits as it would there,
    and requests in flight overlap as they would there.

    Args:
        folder: The folder to show; it is only read.
        config: The storage to emulate.
        at: The mount point; a private temporary folder if not given.

    Yields:
        The slow folder; it is unmounted however the block or the process ends.

    Raises:
        UsageError: Not a folder, or nested mounts.
        ResourceError: Mounting is not possible here, or the mount point is in use.
    """
    from smallfiles.sources.record import FolderStore

    config = config or SlowConfig()
    with contextlib.closing(Mount(Path(folder), config, at)) as mount:
        yield SlowFolder(
            mount.folder,
            config,
            "fuse",
            FolderStore(mount.point, follow_links=True),
            mount.counts,
            point=mount.point,
        )


@contextlib.contextmanager
def open_slow(folder: Path, config: SlowConfig | None = None) -> Iterator[SlowFolder]:
    """Show a folder through slow storage, mounted if possible.

    Args:
        folder: The folder to show; it is only read.
        config: The storage to emulate.

    Yields:
        The slow folder. Its `how` says whether it is mounted, and its `note` says why not. Its `store` reads
        slowly in both cases.

    Raises:
        UsageError: The path is not a folder, or is on a slow mount already.
    """
    from smallfiles.sources.record import FolderStore

    with contextlib.ExitStack() as stack:
        try:
            slow = stack.enter_context(mounted(folder, config))
        except ResourceError as error:
            store = SlowStore(FolderStore(Path(folder), follow_links=True), config)
            slow = SlowFolder(
                Path(folder).absolute(), store.config, "in-process", store, store.counts, note=error.got
            )
        yield slow
