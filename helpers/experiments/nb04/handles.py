"""Ways to open a packed HDF5 file before or after a fork, and what a read does to a shared file offset.

The trap: after `fork` parent and workers have the same open file, offset included. `lseek` and `read` in
two of them interleave; `pread` names its place and does not care. `/proc/self/fdinfo` tells which of the
two a library does: the offset has moved, or it has not. Notebook 04 looks there.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

Read: TypeAlias = Callable[[int], Any]
LATE = "opened in each worker"
OURS = "our reader, opened before"


def _by_path(path: Path) -> Callable[[], Read]:
    return lambda: slices(open_file(path))


def _before(**how: Any) -> Callable[[Path], Callable[[], Read]]:
    def prepare(path: Path) -> Callable[[], Read]:
        read = slices(open_file(path, **how))
        return lambda: read

    return prepare


def _by_object(path: Path) -> Callable[[], Read]:
    opened = open_file(path.open("rb"))
    atexit.register(opened.close)  # HDF5's own exit handler would call Python after its end: a crash
    read = slices(opened)
    return lambda: read


def _by_us(path: Path) -> Callable[[], Read]:
    from smallfiles.formats import hdf5

    reader = hdf5.open(path)
    return lambda: reader.read


def open_file(file: Any, **how: Any) -> Any:
    """An HDF5 file, opened to read.

    Args:
        file: A path or a binary file object.
        **how: For h5py, such as the driver.
    """
    import h5py

    return h5py.File(file, "r", locking=False, **how)


def slices(file: Any) -> Read:
    """A function that reads one sample of the blob layout.

    Args:
        file: An open file with split `train`.
    """
    borders = file["train/offsets"][...].tolist()
    data = file["train/data"]
    return lambda index: data[borders[index] : borders[index + 1]]


WAYS: dict[str, Callable[[Path], Callable[[], Read]]] = {
    "default driver, opened before": _before(),
    "stdio driver, opened before": _before(driver="stdio"),
    "Python file object, opened before": _by_object,
    LATE: _by_path,
    OURS: _by_us,
}
"""From a path to a function that, called in a worker, gives the worker's way to read."""


def offsets_of(path: Path) -> dict[str, int]:
    """Where the offset of each descriptor of a file stands in this process.

    Args:
        path: The file.
    """
    found, wanted = {}, str(path.resolve())
    for link in Path("/proc/self/fd").iterdir():
        try:
            if str(link.readlink()) == wanted:
                lines = Path(f"/proc/self/fdinfo/{link.name}").read_text(encoding="ascii").splitlines()
                found[link.name] = int(lines[0].split()[1])
        except OSError:  # the descriptor of the listing itself is gone by now
            continue
    return found
