"""What the kernel and the stack of a thread say about this process at one moment."""

from __future__ import annotations

import linecache
import os
import re
import signal
import sys
from collections.abc import Callable
from typing import Any

_CALLS = {
    "x86_64": {"open": (2, 257, 437, 4, 5, 6, 262, 332, 217, 3), "read": (0, 17, 19, 295, 9)},
    "aarch64": {"open": (56, 437, 79, 80, 291, 61, 57), "read": (63, 67, 65, 69, 222)},
}.get(os.uname().machine, {})
BLOCKED_IN = {number: name for name, numbers in _CALLS.items() for number in numbers}
_DECODE = r"PIL/(ImageFile|\w*ImagePlugin)\.py|simplejpeg|turbojpeg|torchvision/io/|soundfile|:\w*decod"
_AUGMENT = r"/transforms/|albumentations|kornia|PIL/Image\.py:(resize|crop|tran)|:\w*(augment|resize)"
_READ = r"PIL/Image\.py:(open|preinit)|/(tarfile|zipfile|h5py/\S+|webdataset/tariterators)\.py"
_NAMES = (
    ("collate", re.compile(r"_utils/(collate|pin_memory)\.py|:\w*collate")),
    *(("decode", re.compile(_DECODE)), ("augment", re.compile(_AUGMENT)), ("read", re.compile(_READ))),
)
"""What a worker does, by `file:function` of its frames, from the innermost outwards."""
_LINES = (
    ("decode", re.compile(r"imdecode|imread|decode|decompress|\.convert\(|frombuffer")),
    ("augment", re.compile(r"resize|crop|flip|normali[sz]e|rotate|augment|transform")),
    ("collate", re.compile(r"(torch|np)\.stack")),
    ("read", re.compile(r"open\(|\.p?read\w*\(|np\.load|fromfile")),
)
"""The same, by the innermost line."""
_COPY = re.compile(r":\w*(move_data_to_device|send_to_device|batch_to_device|pin_memory|collate)")
_COPY_LINE = re.compile(
    r"\.(to|cuda|pin_memory|clone|float|contiguous|permute)\(|\b(torch|np)\.(stack|cat|as_?tensor)"
)
_MODEL = re.compile(r"torch/(nn|autograd|optim|_tensor|fx|_dynamo)|:(forward|backward)$", re.MULTILINE)


def read_text(path: str) -> str:
    """Read the first 64 KiB of a file of /proc. Return an empty text if it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            return os.read(descriptor, 1 << 16).decode("utf-8", "replace")
        finally:
            os.close(descriptor)
    except OSError:
        return ""


def stack(thread: int) -> tuple[str, list[str]]:
    """Return the innermost line of a thread, and `file:function` of its frames. No frame is kept alive."""
    frame, names = sys._current_frames().get(thread), []
    where = (frame.f_code.co_filename, frame.f_lineno or 0) if frame else ("", 0)
    while frame is not None:
        names.append(f"{frame.f_code.co_filename}:{frame.f_code.co_name}")
        frame = frame.f_back if len(names) < 60 else None
    return linecache.getline(*where), names


def kind(line: str, names: list[str]) -> str:
    """Classify what a worker is doing."""
    for name in names:
        if "_utils/fetch.py:" in name:
            break
        for kind, pattern in _NAMES:
            if pattern.search(name):
                return kind
    return next((kind for kind, pattern in _LINES if pattern.search(line)), "other")


def copies(line: str, names: list[str]) -> bool:
    """Check whether the main thread copies or prepares a batch between two steps, outside of the model."""
    text = "\n".join(names[:4])
    return not _MODEL.search(text) and bool(_COPY.search(text) or _COPY_LINE.search(line))


def from_handler(error: BaseException) -> bool:
    """Check whether a signal handler of the program raised an error. It can interrupt our code, too."""
    codes = set()
    for each in map(signal.getsignal, signal.valid_signals()):
        function = getattr(each, "func", each)  # of a partial
        call = getattr(type(function), "__call__", None)  # noqa: B004 - of an object, its code is wanted
        codes.add(getattr(function, "__code__", None) or getattr(call, "__code__", None))
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code not in codes:
        trace = trace.tb_next
    return trace is not None


def guarded(fail: Callable[[str], object], work: Callable[..., Any], *words: Any) -> Any:
    """Do something of ours in the program; what fails is said to `fail`, and never stops the program."""
    try:
        return work(*words)
    except Exception as error:
        if from_handler(error):
            raise
        name = getattr(getattr(work, "func", work), "__name__", "hook")
        fail(f"{name}: {type(error).__name__} {error}")


def counters(ours: int = 0) -> dict[str, int]:
    """Return the reads of this process, and how long its threads except ours waited for a processor (ns)."""
    lines = (line.split(": ") for line in read_text("/proc/self/io").splitlines())
    found = {name: int(value) for name, value in lines if name in ("rchar", "syscr", "read_bytes")}
    tasks = (task for task in os.listdir("/proc/self/task") if int(task) != ours)
    runs = [run for task in tasks if len(run := read_text(f"/proc/self/task/{task}/schedstat").split()) > 1]
    return {**found, **({"queued_ns": sum(int(run[1]) for run in runs)} if runs else {})}


def shm() -> tuple[int, int]:
    """Return the size and the free bytes of /dev/shm."""
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return 0, 0
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
