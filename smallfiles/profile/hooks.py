"""What runs inside the watched program: a clock around `next`, counters, and a sampling thread.

A copy of this file is the `sitecustomize` of a private folder that comes first on PYTHONPATH, so each Python
of the program runs it: ranks, and workers that are forked, spawned or come from a fork server. It uses the
standard library only, because the program's Python may have no `smallfiles`; classes of PyTorch are wrapped
when the program imports them. Each process writes its own file, renamed when complete, every second or more
and at its end, so that a killed program leaves what was measured.

The traps: a site may have a `sitecustomize` of its own, which is called on. The audit hook sees each `open`
of Python code, and none of C++ code; therefore the thread also asks the kernel in which call a worker is
blocked. And batches that are collected ahead must not change what the program computes: nothing may be drawn
earlier from the random generators of its process.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import importlib.util
import json
import linecache
import os
import platform
import re
import sys
import threading
import time
import zlib
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

LOOK_S = 0.1
FOLDER = "SMALLFILES_PROFILE_FOLDER"
SECONDS = "SMALLFILES_PROFILE_SECONDS"
_STEPS = 20_000
_AHEAD, _AHEAD_BYTES, _AHEAD_S = 16, 1 << 30, 20.0
_PATHS = 512
_CALLS = {
    "x86_64": {"open": (2, 257, 437, 4, 5, 6, 262, 332, 217, 3), "read": (0, 17, 19, 295, 9)},
    "aarch64": {"open": (56, 437, 79, 80, 291, 61, 57), "read": (63, 67, 65, 69, 222)},
}.get(platform.machine(), {})
_BLOCKED_IN = {number: name for name, numbers in _CALLS.items() for number in numbers}
_NAMES = (
    ("collate", re.compile(r"_utils/(collate|pin_memory)\.py|:\w*collate")),
    (
        "decode",
        re.compile(
            r"PIL/(ImageFile|\w*ImagePlugin)\.py|simplejpeg|turbojpeg|torchvision/io/|soundfile|:\w*decod"
        ),
    ),
    (
        "augment",
        re.compile(
            r"/transforms/|albumentations|kornia|PIL/Image\.py:(resize|crop|tran)|:\w*(augment|resize)"
        ),
    ),
    (
        "read",
        re.compile(r"PIL/Image\.py:(open|preinit)|/(tarfile|zipfile|h5py/\S+|webdataset/tariterators)\.py"),
    ),
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
_FREE, _RECOVERING = 1, 2


def read_text(path: str) -> str:
    """The text of a file of /proc; empty where it cannot be read."""
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def nbytes(batch: Any) -> int:
    """Bytes of the arrays in a batch, however nested."""
    if isinstance(batch, dict) or hasattr(batch, "items"):
        return sum(map(nbytes, batch.values()))
    if isinstance(batch, (list, tuple)):
        return sum(map(nbytes, batch[:4096]))
    return int(getattr(batch, "nbytes", 0) or 0)


def samples(batch: Any) -> int:
    """Length of the first array in a batch; 0 if there is none."""
    if hasattr(batch, "shape"):
        return int(batch.shape[0]) if len(batch.shape) else 0
    parts = batch.values() if hasattr(batch, "values") else batch if isinstance(batch, (list, tuple)) else ()
    return next((found for found in map(samples, parts) if found), 0)


class Watch:
    """The measurements of this process; a new one after each fork."""

    def __init__(self, role: str = "other") -> None:
        self.role, self.began, self.done = role, time.perf_counter(), False
        self.epochs: list[dict[str, Any]] = []
        self.steps: list[list[float]] = []
        self.facts: dict[str, Any] = {}
        self.looks: Counter[str] = Counter()
        self.fetch: Counter[str] = Counter()
        self.opens, self.every, self.paths = 0, 1, {}  # type: int, int, dict[int, list[Any]]
        self.looking_s = 0.0
        self.inside, self.fetching, self.tried, self.paused_s = 0, 0, False, 0.0
        self.kinds: deque[int] = deque()
        self.gaps: deque[tuple[Any, Any]] = deque()
        self.cpu, self.zero = time.process_time(), _counters()
        self.thread, self.clock = threading.current_thread(), None  # type: threading.Thread, int | None
        self.lock = threading.Lock()

    def start(self, role: str) -> None:
        """Begin: the first batch is asked for, or a worker runs."""
        self.__init__(role)  # type: ignore[misc]
        threading.Thread(target=self.look_on, name="smallfiles-profile", daemon=True).start()
        if role == "rank":  # a child of multiprocessing ends without atexit
            from multiprocessing.util import Finalize

            with contextlib.suppress(OSError, IndexError):
                self.clock = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
                self.queued_s()
            Finalize(None, self.write, exitpriority=0)

    def opened(self, path: Any, mode: Any, flags: Any) -> None:
        """Count a file that is opened for reading; one in 2^k of the names is kept."""
        if flags & 3 or isinstance(path, int) or self.done:
            return
        name = os.fsdecode(path)
        if name.startswith(_SYSTEM) or name.endswith((".py", ".pyc", ".so")):
            return
        self.opens += 1
        if not name.startswith("/"):
            name = os.path.join(os.getcwd(), name)
        number = zlib.crc32(name.encode("utf-8", "surrogateescape"))
        if number % self.every == 0:
            self.paths.setdefault(number, [name, 0])[1] += 1
            while len(self.paths) > _PATHS:
                self.every *= 2
                self.paths = {n: p for n, p in self.paths.items() if n % self.every == 0}

    def look_on(self) -> None:
        """Sample the main thread until the measurement ends, and write now and then."""
        task, write_at = f"/proc/self/task/{self.thread.native_id}/syscall", time.perf_counter() + 1.0
        while not self.done:
            time.sleep(LOOK_S)
            if _watch is not self:
                return
            self.look(task)
            self.looking_s = time.thread_time()
            if time.perf_counter() > write_at:
                began = time.perf_counter()
                self.write()
                write_at = time.perf_counter() + max(1.0, 50 * (time.perf_counter() - began))

    def look(self, task: str) -> None:
        """One sample: what the main thread does, and in which call of the kernel it is blocked."""
        frame = sys._current_frames().get(self.thread.ident or 0)
        if frame is None:
            return
        if self.fetching:
            number = read_text(task).partition(" ")[0]
            blocked = _BLOCKED_IN.get(int(number)) if number.isdigit() else None
            self.looks[f"fetch {blocked or _kind(frame)}"] += 1
        elif self.role == "rank":
            self.looks["next" if self.inside else "copy" if _copies(frame) else "outside"] += 1

    def write(self) -> None:
        """Write the record of this process, complete or not at all."""
        folder, now = os.environ.get(FOLDER, ""), time.perf_counter()
        lasted_s = now - self.began - self.paused_s
        stop, path = f"{folder}/stop", f"{folder}/{os.getpid()}.json"
        over = (
            lasted_s > float(os.environ.get(SECONDS, "inf")) if self.role == "rank" else os.path.exists(stop)
        )
        self.done = self.done or (over and self.role != "other")
        statm = read_text("/proc/self/statm").split()
        record = {
            **self.facts,
            **{"role": self.role, "pid": os.getpid(), "seconds": now - self.began, "paused_s": self.paused_s},
            **{"cpu_s": time.process_time() - self.cpu, "epochs": self.epochs, "steps": self.steps},
            **{"looks": self.looks, "fetch": self.fetch, "opens": self.opens, "every": self.every},
            **{"paths": list(self.paths.values()), "rank": os.environ.get("RANK", ""), "done": self.done},
            "read": {name: value - self.zero.get(name, 0) for name, value in _counters().items()},
            "own_bytes": os.sysconf("SC_PAGE_SIZE") * (int(statm[1]) - int(statm[2])),
        }
        try:
            with self.lock:
                with open(path + ".part", "w") as file:
                    json.dump(record, file)
                os.replace(path + ".part", path)
            if self.done and self.role == "rank":
                os.close(os.open(stop, os.O_CREAT | os.O_WRONLY))
        except (OSError, RuntimeError):  # the folder is gone, or a counter grew while it was written
            pass

    def next(self, iterator: Any, original: Callable[[Any], Any]) -> Any:
        """The next batch of the program, with the time it took to come."""
        if self.role != "rank":
            self.start("rank")
        ahead = getattr(iterator, "_smallfiles_ahead", None)
        fresh = not getattr(iterator, "_num_yielded", 1)  # persistent workers keep their iterator
        if self.inside or (self.done and not ahead):
            return original(iterator)
        if fresh or not hasattr(iterator, "_smallfiles_epoch"):
            self.begin_epoch(iterator)
            ahead = None
        self.inside = 1
        try:
            if not self.tried and self.may_collect(iterator):
                ahead = self.collect(iterator, original)
            asked, idle, queued = time.perf_counter(), _moment(), self.queued_s()
            batch = ahead.popleft() if ahead else original(iterator)
            if isinstance(batch, BaseException):
                raise batch
            clocks = asked, time.perf_counter(), self.queued_s() - queued
        except BaseException:
            iterator._smallfiles_epoch["ended"] = time.perf_counter() - self.began
            raise
        finally:
            self.inside = 0
        self.note(iterator._smallfiles_epoch["number"], clocks, (idle, _moment()), batch)
        if ahead is not None and not ahead:
            iterator._smallfiles_ahead = None
            if cuda := _cuda():
                cuda.synchronize()
        return batch

    def begin_epoch(self, iterator: Any) -> None:
        """An iterator is asked for its first batch."""
        self.facts.update(_facts(iterator))
        self.facts["threaded"] = threading.current_thread() is not threading.main_thread()
        init_s, dataset = getattr(iterator, "_smallfiles_init_s", 0.0), getattr(iterator, "_dataset", None)
        iterator._smallfiles_ahead, iterator._smallfiles_init_s = None, 0.0
        iterator._smallfiles_epoch = {"number": len(self.epochs), "init_s": init_s, "of": _length(iterator)}
        iterator._smallfiles_epoch |= {"loader": id(dataset), "began": time.perf_counter() - self.began}
        self.epochs.append(iterator._smallfiles_epoch)

    def queued_s(self) -> float:
        """How long this thread was ready to run and got no processor; that is no wait for data."""
        if self.clock is None:
            return 0.0
        return int(os.pread(self.clock, 64, 0).split()[1]) / 1e9

    def note(self, epoch: int, clocks: tuple[float, float, float], gap: Any, batch: Any) -> None:
        """Keep a step: when its batch was asked for and came, its epoch, its kind, time without a CPU."""
        kind, (asked, got, queued) = self.kinds.popleft() if self.kinds else 0, clocks
        self.steps.append(
            [*(round(at, 6) for at in (asked - self.began, got - self.began)), epoch, kind, round(queued, 6)]
        )
        self.done = self.done or len(self.steps) >= _STEPS
        if len(self.steps) in (1, 4, 16):
            self.facts.update(batch_bytes=nbytes(batch), batch_samples=samples(batch))
        if gap[1] is not None:
            self.gaps.append(gap)
        while self.gaps and self.gaps[0][1].query():
            begin, end = self.gaps.popleft()
            self.facts["gpu_idle_s"] = self.facts.get("gpu_idle_s", 0.0) + begin.elapsed_time(end) / 1000

    def may_collect(self, iterator: Any) -> bool:
        """Whether batches can be made ahead here without changing what the program computes."""
        if len(self.steps) < 12 or iterator._smallfiles_epoch["number"] != self.steps[-4][2]:
            return False
        left = _shm()[1] - _asked_ahead(iterator) * self.facts.get("batch_bytes", 0)
        sampler = type(getattr(iterator, "_index_sampler", None)).__module__
        known = ("torch.utils.data.", "accelerate.", "lightning.", "webdataset.")
        if not getattr(iterator, "_num_workers", 0):
            self.facts["no_headroom"], self.tried = "batches are made in the main process", True
        elif not sampler.startswith(known) or hasattr(iterator, "state_dict"):
            self.facts["no_headroom"], self.tried = "its order may depend on what the training draws", True
        elif left < 8 * self.facts.get("batch_bytes", 0):
            self.facts["no_headroom"], self.tried = "/dev/shm has no room for it", True
        done = sum(step[2] == self.steps[-1][2] for step in self.steps)
        return not self.tried and (_length(iterator) or 1 << 30) - done > 6

    def collect(self, iterator: Any, original: Callable[[Any], Any]) -> deque[Any]:
        """Collect the next batches of the program while it is paused, and let the workers come to rest."""
        began, size, self.tried = time.perf_counter(), 0, True
        ahead: deque[Any] = deque()
        iterator._smallfiles_ahead = ahead
        room = min(_AHEAD_BYTES, (_shm()[1] - _asked_ahead(iterator) * self.facts.get("batch_bytes", 0)) // 2)
        while len(ahead) < _AHEAD and size < room and time.perf_counter() - began < _AHEAD_S:
            try:
                ahead.append(original(iterator))
            except Exception as error:  # is raised where the program would have met it
                ahead.append(error)
                break
            size += nbytes(ahead[-1])
        while not _at_rest(iterator) and time.perf_counter() - began < _AHEAD_S:
            time.sleep(0.01)
        if cuda := _cuda():
            cuda.synchronize()
        free = sum(not isinstance(batch, BaseException) for batch in ahead)
        self.kinds = deque([_FREE] * free + [_RECOVERING] * (_asked_ahead(iterator) + 2))
        self.paused_s += time.perf_counter() - began
        return ahead

    def fetched(self, fetch: Callable[..., Any], *words: Any) -> Any:
        """Make a batch, in a worker or in the main process, on clocks of time and of processors."""
        clocks = time.perf_counter(), time.thread_time(), time.process_time() - self.looking_s
        self.fetching += 1
        try:
            return fetch(*words)
        finally:
            self.fetching -= 1
            self.fetch["s"] += time.perf_counter() - clocks[0]  # type: ignore[assignment]
            self.fetch["thread_s"] += time.thread_time() - clocks[1]  # type: ignore[assignment]
            self.fetch["process_s"] += time.process_time() - self.looking_s - clocks[2]  # type: ignore[assignment]
            self.fetch["batches"] += 1


def _kind(frame: Any) -> str:
    """What a worker works on."""
    line, at = linecache.getline(frame.f_code.co_filename, frame.f_lineno), frame
    while at is not None and not at.f_code.co_filename.endswith("_utils/fetch.py"):
        name = f"{at.f_code.co_filename}:{at.f_code.co_name}"
        for kind, pattern in _NAMES:
            if pattern.search(name):
                return kind
        at = at.f_back
    return next((kind for kind, pattern in _LINES if pattern.search(line)), "other")


def _copies(frame: Any) -> bool:
    """Whether the main thread copies or prepares a batch between two steps, outside of the model."""
    line, at, names = linecache.getline(frame.f_code.co_filename, frame.f_lineno), frame, ""
    while at is not None and names.count("\n") < 4:
        names += f"{at.f_code.co_filename}:{at.f_code.co_name}\n"
        at = at.f_back
    return not _MODEL.search(names) and bool(_COPY.search(names) or _COPY_LINE.search(line))


def _counters() -> dict[str, int]:
    """Reads of this process, and nanoseconds that its main thread ran and was queued for a processor."""
    lines = (line.split(": ") for line in read_text("/proc/self/io").splitlines())
    run = read_text("/proc/self/schedstat").split()
    found = {name: int(value) for name, value in lines if name in ("rchar", "syscr", "read_bytes")}
    return found | ({"queued_ns": int(run[1])} if len(run) > 1 else {})


def _shm() -> tuple[int, int]:
    """Size and free bytes of /dev/shm."""
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return 0, 0
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def _cuda() -> Any:
    """torch.cuda where the program uses it."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


def _moment() -> Any:
    """An event at this place in the queue of the GPU; None without one."""
    if (cuda := _cuda()) is None:
        return None
    event = cuda.Event(enable_timing=True)
    event.record()
    return event


def _length(iterator: Any) -> int | None:
    try:
        return len(iterator)
    except Exception:  # an IterableDataset has none; what a stranger's __len__ raises is not ours
        return None


def _facts(iterator: Any) -> dict[str, Any]:
    """What the loader is set to, and what the process may use."""
    return {
        "kind": type(iterator).__name__,
        "workers": getattr(iterator, "_num_workers", None),
        "prefetch": getattr(iterator, "_prefetch_factor", None),
        "persistent": getattr(iterator, "_persistent_workers", None),
        "cpus": len(os.sched_getaffinity(0)),
        "cpus_node": os.cpu_count(),
        "world": int(os.environ.get("WORLD_SIZE", "1") or 1),
        "gpu": bool(_cuda()),
        "shm_bytes": _shm()[0],
    }


def _asked_ahead(iterator: Any) -> int:
    """Batches that workers are asked for before they are needed."""
    return int((getattr(iterator, "_num_workers", 0) or 0) * (getattr(iterator, "_prefetch_factor", 2) or 2))


def _at_rest(iterator: Any) -> bool:
    """Whether all batches that the workers were asked for are made."""
    try:
        made = sum(len(task) > 1 for task in iterator._task_info.values())
        made += iterator._worker_result_queue.qsize()
        if iterator._data_queue is not iterator._worker_result_queue:
            made += iterator._data_queue.qsize()
        return bool(made >= iterator._tasks_outstanding)
    except Exception:  # of another version of PyTorch
        return True


def _patch_torch(module: Any) -> None:
    """Put clocks around the parts of a DataLoader."""
    base, several = module._BaseDataLoaderIter, module._MultiProcessingDataLoaderIter
    worker, fetchers = module._utils.worker, module._utils.fetch
    loop, init = worker._worker_loop, several.__init__

    @functools.wraps(loop)
    def worker_loop(*words: Any, **more: Any) -> Any:
        _watch.start("worker")
        _watch.facts["parent"] = _parent()
        try:
            return loop(*words, **more)
        finally:
            _watch.write()

    @functools.wraps(init)
    def timed_init(self: Any, *words: Any, **more: Any) -> None:
        began = time.perf_counter()
        init(self, *words, **more)
        self._smallfiles_init_s = time.perf_counter() - began

    worker._worker_loop, several.__init__ = worker_loop, timed_init
    _patch_next(base)
    for fetcher in (fetchers._MapDatasetFetcher, fetchers._IterableDatasetFetcher):
        fetcher.fetch = _timed_fetch(fetcher.fetch)


def _timed_fetch(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def fetch(self: Any, index: Any) -> Any:
        return _watch.fetched(original, self, index)

    return fetch


def _patch_next(kind: Any) -> None:
    original = kind.__next__

    @functools.wraps(original)
    def timed_next(self: Any) -> Any:
        return _watch.next(self, original)

    kind.__next__ = timed_next


def _parent() -> int:
    from multiprocessing import parent_process

    parent = parent_process()
    return os.getppid() if parent is None else int(parent.pid or 0)


_PATCHES: dict[str, Callable[[Any], None]] = {
    "torch.utils.data.dataloader": _patch_torch,
    "torchdata.stateful_dataloader.stateful_dataloader": lambda module: _patch_next(
        module._StatefulBaseDataLoaderIter
    ),
    "nvidia.dali.plugin.pytorch": lambda module: _patch_next(module.DALIGenericIterator),
}


class _Finder:
    """Patches a module right after its import."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        patch = _PATCHES.pop(name, None)
        spec = importlib.util.find_spec(name) if patch else None
        if patch is None or spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            try:
                patch(module)
            except Exception as error:  # another version: the program runs, and the report says it
                _watch.facts["unpatched"] = f"{name}: {type(error).__name__} {error}"

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _audit(event: str, words: Any) -> None:
    if event == "open":
        with contextlib.suppress(
            TypeError
        ):  # of somebody's own event; what an audit hook raises fails the open
            _watch.opened(*words)


def _after_fork() -> None:
    global _watch
    if _watch.clock is not None:
        os.close(_watch.clock)
    _watch = Watch()


def _at_exit() -> None:
    _watch.write()


def install() -> None:
    """Call on the site's own `sitecustomize`, then watch this process."""
    folder = os.environ.get(FOLDER, "")
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or ".") != folder]
    if os.path.isdir(folder):
        sys.addaudithook(_audit)
        sys.meta_path.insert(0, _Finder)
        os.register_at_fork(after_in_child=_after_fork)
        atexit.register(_at_exit)
    own = sys.modules.pop("sitecustomize")
    try:
        importlib.import_module("sitecustomize")  # the site's
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = own


_SYSTEM = (
    "/proc/",
    "/sys/",
    "/dev/null",
    "/dev/urandom",
    "/etc/",
    "/usr/lib",
    sys.prefix + "/",
    sys.base_prefix + "/lib",
)
_watch = Watch()
if __name__ == "sitecustomize":
    install()
