"""A private folder for the duration of a measurement, always removed; synthetic data sets in it.

`/dev/shm` is memory that looks like a folder: files left there take memory from every later job on the
node. So the folder is private (0700) and is removed at the end, on Ctrl-C and on SIGTERM; the next run
removes what a `kill -9` left. The trap: it counts against the memory limit of the job, and a job that
exceeds the limit is killed without a message. Notebook 07 teaches it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from smallfiles import locks, machine, processes
from smallfiles.errors import ResourceError
from smallfiles.machine.nodelocal import SHARED_MEMORY

SAMPLE_BYTES = 110_000
PACKED = ("set.files", "set.arrow", "set.h5", "set.tars", "set.sqfs", "set.lmdb")
_PREFIX = "smallfiles-bench-"
_LOCK = "lock"
_SPARE_BYTES = 256 << 20


@contextlib.contextmanager
def memory_folder(need_bytes: int, parent: Path = SHARED_MEMORY) -> Iterator[Path]:
    """Make a folder in memory that is removed when the `with` block ends, even by an error.

    Args:
        need_bytes: Maximum size of its content.
        parent: Where to create it; another folder in tests.

    Raises:
        ResourceError: The parent does not exist, or has too little room.
    """
    _check_room(need_bytes, parent)
    ended = processes.listening((signal.SIGTERM,), lambda: sys.exit(128 + signal.SIGTERM))
    with private_folder(parent, _PREFIX) as folder, ended:
        yield folder


@contextlib.contextmanager
def private_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Make a folder that is removed when the `with` block ends.

    Folders that killed runs left are removed first.

    Args:
        parent: Where to create it.
        prefix: The beginning of the names of all these folders.
    """
    _sweep(parent, prefix)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))  # mode 0700
    lock = locks.try_lock(folder / _LOCK, shared=False)  # ends with this process, for `_sweep`
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):  # workers that outlive the program find no path
            folder = folder.rename(f"{folder}-ended")
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            locks.unlock(lock)


def _check_room(need_bytes: int, parent: Path) -> None:
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise ResourceError(
            f"{parent} does not exist or is not writable",
            expected="storage backed by memory",
            next_step="Run it on a Linux machine with /dev/shm",
        )
    free = min(machine.filesystem(parent).free_bytes, machine.memory_limit_bytes())
    if need_bytes + _SPARE_BYTES > free:
        raise ResourceError(
            f"{parent} has {free >> 20:,} MiB for this job",
            expected=f"{(need_bytes + _SPARE_BYTES) >> 20:,} MiB",
            next_step="Ask for more memory, or measure fewer samples with --count",
        )


def _sweep(parent: Path, prefix: str) -> None:
    """Remove the folders of killed runs."""
    for folder in parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # of another user, or already removed
            lock, ours = folder / _LOCK, folder.lstat().st_uid == os.getuid()
            if ours and lock.exists() and not locks.is_held(lock, shared=False):
                shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def example(count: int, seed: int) -> Iterator[Path]:
    """Make a folder of `count` images in memory that is removed when the `with` block ends."""
    with memory_folder(count * SAMPLE_BYTES) as folder:
        yield _made(folder / "data", count, seed)


@contextlib.contextmanager
def packed_example(count: int, seed: int) -> Iterator[list[Path]]:
    """Pack `count` images in every format, in the folder for temporary files.

    Reads from a disk can be cold, and reads from memory cannot.
    """
    from smallfiles import sources
    from smallfiles.pack import PackConfig, pack

    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name:
        source = sources.load(_made(Path(name) / "data", count, seed))
        paths = [Path(name) / packed for packed in PACKED]
        for path in paths:
            pack(source, path, PackConfig(verify="none"))
        yield paths


def _made(out: Path, count: int, seed: int) -> Path:
    from smallfiles.sources import synthetic

    synthetic.make(out, "folder", count=count, seed=seed, classes=min(10, count))
    return out
