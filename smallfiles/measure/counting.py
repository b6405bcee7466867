"""Count the requests that code sends to its storage, from the counters that the storage itself keeps.

    with requests(folder) as asked:
        read_all(folder)
    print(asked)            # 1,012 look-ups, 1,001 opens, 1,293 reads, … (requests; counted by …)
    asked.per_1000(500)     # {"lookups": 2024.0, "opens": 2002.0, …}

A count does not depend on the load of the machine. Notebook 01 counts the requests of small files with it.

The traps: the counters of a client belong to the node, so the requests of all its programs are in them. And a
system call is not a request: the kernel answers many calls from memory, and splits others into several.

Sources: `.stats` of a MooseFS mount; /proc/self/mountstats of NFS, as `nfsiostat` has it; `llite.*.stats` and
`mdc.*.stats` for Lustre, where opens and reads are calls of programs, cached ones included (lustre-discuss,
2018-April/015426); the memory of `slowfs`; elsewhere audit events and /proc/self/io (proc_pid_io(5)).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path

from pysquashfs.mounts import Mount, read_mounts
from smallfiles.machine.filesystems import driver, existing, mount_of
from smallfiles.slowfs import COUNTED, KIND, SlowFolder

KINDS = {
    "lookups": "look-ups",
    "opens": "opens",
    "metadata": "metadata requests",
    "reads": "reads",
    "bytes": "bytes",
}
"""The counts shown. `metadata` is everything except reads and writes, so look-ups and opens are in it."""
CALLS = "system calls, not requests"
PER_1000, COUNTED_BY = "_per_1000", "requests_counted_by"
"""In the `extra` of a record: the end of the names of counts per 1,000 samples, and who counted."""
_OF_LUSTRE = "the Lustre client (calls of programs, and requests to the metadata servers)"
_LUSTRE = ("/proc/fs/lustre", "/sys/kernel/debug/lustre")
_IO = {"rchar:": "bytes", "syscr:": "reads", "read_bytes:": "fetched"}
_watched: dict[int, tuple[str, list[str]]] = {}
"""For each block: the path below which opens are counted (empty for all), and the opened paths."""


@dataclass(frozen=True)
class Requests:
    """The requests of a block of code; complete when the block has ended.

    Args:
        source: Whose counters they are.
        of_node: Whether the requests of other programs of this node are counted, too.
        unit: What is counted: `requests`, or `CALLS`.
        counts: The number for each of `KINDS` that the source counts. For system calls, `fetched` is the
            number of bytes that came from disks.
        whom: Whose requests are counted, if they are not those of the node.
    """

    source: str
    of_node: bool = True
    unit: str = "requests"
    counts: dict[str, int] = field(default_factory=dict)
    whom: str = "this process"

    def __getitem__(self, kind: str) -> int:
        return self.counts.get(kind, 0)

    def per_1000(self, samples: int) -> dict[str, float]:
        """Return each count per 1,000 samples.

        Args:
            samples: How many samples the block has read.
        """
        return {kind: 1000 * count / max(samples, 1) for kind, count in self.counts.items()}

    def text_per_1000(self, samples: int) -> str:
        """Return the counts per 1,000 samples in words, with the unit and who counted."""
        counts = {kind: round(count) for kind, count in self.per_1000(samples).items()}
        return str(replace(self, counts=counts))

    def facts(self, samples: int) -> dict[str, float | str]:
        """Return what a record keeps of them: the counts per 1,000 samples, and who counted.

        Args:
            samples: How many samples the block has read.
        """
        named = {f"{kind}{PER_1000}": count for kind, count in self.per_1000(samples).items()}
        return {**named, COUNTED_BY: self.about}

    @property
    def about(self) -> str:
        """The unit of the counts, who counted, and for which programs."""
        whom = "all programs of this node" if self.of_node else self.whom
        return f"{self.unit}; counted by {self.source} for {whom}"

    def __str__(self) -> str:
        shown = (f"{self.counts[kind]:,} {name}" for kind, name in KINDS.items() if kind in self.counts)
        return f"{', '.join(shown)} ({self.about})"


_Read = Callable[[], dict[str, int]]


@contextmanager
def requests(storage: Path | SlowFolder) -> Iterator[Requests]:
    """Count the requests to a storage while the block runs.

    Args:
        storage: A file or folder on the storage, or a slow folder.

    Yields:
        The requests, which get their numbers when the block ends. If the storage has no counters that this
        user may read, they are the system calls of this process, as for `system_calls`.
    """
    counter = _of_storage(storage)
    with system_calls(Path(storage)) if counter is None else _counted(*counter) as found:
        yield found


@contextmanager
def system_calls(below: Path | None = None) -> Iterator[Requests]:
    """Count opens and reads of this process while the block runs, whatever the storage.

    Opens are counted in Python code only. Worker processes are not counted.

    Args:
        below: Count only opens of this file or in this folder. Reads are always those of all files.

    Yields:
        The calls, which get their numbers when the block ends. Only Linux counts reads.
    """
    _hook()
    opened: list[str] = []
    _watched[id(opened)] = "" if below is None else os.path.abspath(below), opened  # noqa: PTH100 - links stay
    try:
        with _counted(Requests("Python and Linux", False, CALLS), partial(_calls, opened)) as found:
            yield found
    finally:
        del _watched[id(opened)]


@contextmanager
def _counted(found: Requests, read: _Read) -> Iterator[Requests]:
    first, before = read(), read()  # they differ by what it costs to read the counters
    try:
        yield found
    finally:
        after = read()
        found.counts.update({kind: max(0, after[kind] - 2 * n + first[kind]) for kind, n in before.items()})


def _of_storage(storage: Path | SlowFolder) -> tuple[Requests, _Read] | None:
    """Return the counters of a storage; None if it has none, or none that this user may read."""
    if isinstance(storage, SlowFolder):
        return Requests("slowfs", storage.how == "fuse"), lambda: of_slowfs(storage.counts().values())
    with suppress(OSError, LookupError, ValueError, StopIteration):  # no rights, or another version
        name, read = _of_mount(mount_of(str(existing(storage)), read_mounts()))
        read()
        return Requests(name), read
    return None


def _of_mount(mount: Mount | None) -> tuple[str, _Read]:
    kind, source = (mount.kind.removeprefix("fuse."), mount.source) if mount else ("", "")
    point = mount.folder if mount else Path()
    if f"fuse.{kind}" == KIND:
        memory = _memory_of_slowfs(str(point))
        return "slowfs", lambda: of_slowfs(memoryview(memory.read_bytes()).cast("q"))
    if mount and driver(mount.kind, source) == "mfs":
        return "the MooseFS client", lambda: of_moosefs((point / ".stats").read_text())
    if kind in ("nfs", "nfs4"):
        return "the NFS client", lambda: of_nfs(Path("/proc/self/mountstats").read_text(), str(point))
    name = source.rpartition(":/")[2].partition("/")[0] if kind == "lustre" else "?"
    [calls] = [found for root in _LUSTRE for found in Path(root).glob(f"llite/{name}-*/stats")]
    client = calls.parent.name.rpartition("-")[2]
    servers = list(calls.parents[2].glob(f"mdc/{name}-MDT*-mdc-{client}/stats"))
    return _OF_LUSTRE, lambda: of_lustre(calls.read_text(), map(Path.read_text, servers))


def counts_so_far() -> dict[str, tuple[str, dict[str, int]]]:
    """Return who counts the requests to each mounted storage, and what it counted so far, by mount point."""
    found = dict[str, tuple[str, dict[str, int]]]()
    for mount in {each.device: each for each in reversed(read_mounts())}.values():  # once, if bound again
        with suppress(OSError, LookupError, ValueError, StopIteration):  # no counters, or no rights
            source, read = _of_mount(mount)
            found[mount.point] = source, read()
    return found


def requests_since(before: dict[str, tuple[str, dict[str, int]]]) -> dict[str, Requests]:
    """Return the requests to each storage since `counts_so_far`, by mount point, where there were any.

    Args:
        before: What `counts_so_far` returned then, also in another process.
    """
    found, after, again = dict[str, Requests](), counts_so_far(), counts_so_far()  # reading costs requests
    for point in before.keys() & after.keys() & again.keys():
        (source, last), (_, first), (_, third) = (each[point] for each in (after, before, again))
        counts = {kind: max(0, 2 * n - first[kind] - third[kind]) for kind, n in last.items()}
        if any(count for kind, count in counts.items() if kind != "metadata"):  # an idle client says hello
            found[point] = Requests(source, counts=counts)
    return found


def of_slowfs(numbers: Iterable[int]) -> dict[str, int]:
    """Return counts from the counters of `slowfs`."""
    lookups, opens, lists, others, reads, size = dict(zip(COUNTED, numbers, strict=True)).values()
    metadata = lookups + opens + lists + others
    return {"lookups": lookups, "opens": opens, "metadata": metadata, "reads": reads, "bytes": size}


def _memory_of_slowfs(point: str) -> Path:
    """Return the memory in which the process behind a mount counts."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, LookupError, ValueError):
            *_, code, request, _ = (process / "cmdline").read_bytes().split(b"\0")
            if b"slowfs.server" in code and json.loads(request)["point"] == point:
                return process / f"fd/{json.loads(request)['counts']}"
    raise LookupError(point)


def of_moosefs(text: str) -> dict[str, int]:
    """Return counts from the `.stats` of a MooseFS mount, which counts no bytes."""
    found = dict(line.split(": ") for line in text.splitlines())
    names = ("fuse_ops.lookup.master", "fuse_ops.open", "master.packets_sent", "fuse_ops.read")
    return dict(zip(KINDS, (int(found[name]) for name in names), strict=False))


def of_nfs(text: str, point: str) -> dict[str, int]:
    """Return counts of the mount at `point` from /proc/self/mountstats; NFS 3 has no opens."""
    mounts = (part.partition(" with fstype nfs") for part in text.replace("\\040", " ").split("device "))
    about = next(about for head, _, about in mounts if head.endswith(f" mounted on {point}"))
    lines = map(str.split, about.partition("per-op statistics")[2].splitlines())
    ops = {words[0].rstrip(":"): int(words[1]) for words in lines if len(words) > 1}
    opens = {"opens": ops["OPEN"] + ops["OPEN_NOATTR"]} if "OPEN" in ops else {}
    metadata = sum(ops.values()) - sum(ops[name] for name in ("NULL", "READ", "WRITE", "COMMIT"))
    size = int(about.partition("bytes:")[2].split()[4])  # from the server, without what the cache answered
    return {"lookups": ops["LOOKUP"], **opens, "metadata": metadata, "reads": ops["READ"], "bytes": size}


def of_lustre(calls: str, metadata: Iterable[str] = ()) -> dict[str, int]:
    """Return counts from `llite.*.stats` and `mdc.*.stats`; what never happened has no line."""
    found, *servers = (
        {line.split()[0]: line.split() for line in text.splitlines()} for text in (calls, *metadata)
    )
    opened, read = found.get("open", "00"), found.get("read_bytes", "0000000")
    packets = {"metadata": sum(int(each["req_waittime"][1]) for each in servers)} if servers else {}
    return {"opens": int(opened[1]), **packets, "reads": int(read[1]), "bytes": int(read[6])}


@cache
def _hook() -> None:
    sys.addaudithook(_audit)  # hooks stay until the process ends, so there is one for all blocks


def _audit(event: str, words: tuple[object, ...]) -> None:
    for below, opened in list(_watched.values()) if event == "open" else ():
        with suppress(OSError):  # what a hook raises would fail the open
            path = os.path.abspath(str(words[0])) if below else ""  # noqa: PTH100
            if path == below or path.startswith(f"{below}/"):
                opened.append(path)


def _calls(opened: list[str]) -> dict[str, int]:
    counts = {"opens": len(opened)}
    with suppress(OSError):
        lines = map(str.split, Path("/proc/self/io").read_text(encoding="ascii").splitlines())
        counts |= {_IO[name]: int(number) for name, number in lines if name in _IO}
    return counts
