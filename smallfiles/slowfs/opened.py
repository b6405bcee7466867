"""A slow folder, mounted where that is allowed and imitated in this process where it is not.

The trap: what is measured through a mount has the kernel and a second process in it, what is
measured in this process has neither. So the folder says which of the two it is (`how`). Without a mount
only what goes through the store is slow; a path that is opened past it is as fast as ever, so it has none.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from smallfiles.errors import ResourceError
from smallfiles.slowfs.config import SlowConfig
from smallfiles.slowfs.delays import Delays, sleep_until
from smallfiles.slowfs.mounting import Mount

if TYPE_CHECKING:
    from smallfiles.samples import ByteStore  # with Arrow behind it, which the mount's process need not load


class SlowStore:
    """A store seen through slow storage: a read waits for a look-up, an open and its bytes.

    Args:
        store: Where the bytes are.
        config: The storage to imitate.
    """

    def __init__(self, store: ByteStore, config: SlowConfig | None = None) -> None:
        self.store = store
        self.sequential = store.sequential
        self.config = config or SlowConfig()
        self._delays = Delays(self.config)

    def size(self, path: str) -> int:
        """Bytes of one sample, after a look-up."""
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
        """How often each operation was asked for, reads, and bytes read, in this process."""
        return self._delays.counts()

    def describe(self) -> str:
        """`slow store (2 ms an operation) over folder /data`."""
        return f"slow store ({self.config.summary()}) over {self.store.describe()}"

    def __reduce__(self) -> tuple[Any, ...]:
        return SlowStore, (self.store, self.config)


@dataclass(frozen=True)
class SlowFolder:
    """A folder seen through slow storage.

    With `how="fuse"` it stands for its path: `open(slow / "cat/1.jpg")`, `Path(slow)`.

    Args:
        folder: The folder behind it, as fast as ever.
        config: The storage that is imitated.
        how: `fuse`, a mount that any program can read; `in-process`, a store for this one alone.
        store: Reads its files slowly, by paths relative to the folder; for either kind.
        counts: How often each operation was asked for, reads, and bytes read.
        note: Why it is not mounted; empty if it is.
        point: Where it is mounted.
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
        """Where it is mounted.

        Raises:
            ResourceError: It is not.
        """
        if self.point is None:
            raise ResourceError(
                f"the slow view of {self.folder} has no path, since {self.note}",
                expected="a mount",
                next_step="Read through its store, or use a machine that lets you mount",
            )
        return self.point

    @property
    def summary(self) -> str:
        """Whether it is mounted, and how slow it is, in a sentence."""
        if self.how == "fuse":
            return f"Mounted: whatever reads there waits ({self.config.summary()})."
        return f"Not mounted, since {self.note}. Only reads through its store wait ({self.config.summary()})."

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    def __truediv__(self, name: str | os.PathLike[str]) -> Path:
        return self.path / name


@contextlib.contextmanager
def mounted(
    folder: Path, config: SlowConfig | None = None, *, at: Path | None = None
) -> Iterator[SlowFolder]:
    """Mount a folder read-only with the delays of a parallel file system, for as long as the block runs.

    What a million small files cost on a cluster is felt on a laptop: every program that is given the
    path waits as it would there, and requests in flight overlap as they would there.

    Args:
        folder: What to show; it is only read.
        config: The storage to imitate.
        at: Where; a private folder among the temporary files if not given.

    Yields:
        The slow folder; it is unmounted however the block or the process ends.

    Raises:
        UsageError: No folder, or mounts within mounts.
        ResourceError: Mounting is not possible here, or the mount point is in use.
    """
    from smallfiles.sources.folder import FolderStore

    config = config or SlowConfig()
    with contextlib.closing(Mount(Path(folder), config, at)) as mount:
        yield SlowFolder(
            mount.folder, config, "fuse", FolderStore(mount.point), mount.counts, point=mount.point
        )


@contextlib.contextmanager
def open_slow(folder: Path, config: SlowConfig | None = None) -> Iterator[SlowFolder]:
    """A slow folder in the way that this machine allows; its `how` says which, its `note` why.

    Args:
        folder: What to show; it is only read.
        config: The storage to imitate.

    Yields:
        The slow folder; its `store` reads slowly in either case.

    Raises:
        UsageError: It is no folder, or lies on a slow mount already.
    """
    from smallfiles.sources.folder import FolderStore

    with contextlib.ExitStack() as stack:
        try:
            slow = stack.enter_context(mounted(folder, config))
        except ResourceError as error:
            store = SlowStore(FolderStore(Path(folder)), config)
            slow = SlowFolder(
                Path(folder).absolute(), store.config, "in-process", store, store.counts, note=error.got
            )
        yield slow
