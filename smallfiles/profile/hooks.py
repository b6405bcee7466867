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
import re
import resource
import signal
import sys
import threading
import time
import zlib
from _thread import allocate_lock, start_new_thread
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any

LOOK_S = 0.1
FOLDER, SECONDS = "SMALLFILES_PROFILE_FOLDER", "SMALLFILES_PROFILE_SECONDS"
_folder, _seconds = os.environ.get(FOLDER, ""), float(os.environ.get(SECONDS, "inf"))
_STEPS, _FIRST_LOOKS = 20_000, 50
_AHEAD, _AHEAD_BYTES, _AHEAD_S = 16, 1 << 30, 20.0
_PATHS = 512
_CALLS = {
    "x86_64": {"open": (2, 257, 437, 4, 5, 6, 262, 332, 217, 3), "read": (0, 17, 19, 295, 9)},
    "aarch64": {"open": (56, 437, 79, 80, 291, 61, 57), "read": (63, 67, 65, 69, 222)},
}.get(os.uname().machine, {})
_BLOCKED_IN = {number: name for name, numbers in _CALLS.items() for number in numbers}
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
_FREE, _RECOVERING = 1, 2
_KNOWN = ("torch.utils.data.", "accelerate.", "lightning.", "webdataset.")


def read_text(path: str) -> str:
    """The first 64 KiB of a file of /proc; empty where it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            return os.read(descriptor, 1 << 16).decode("utf-8", "replace")
        finally:
            os.close(descriptor)
    except OSError:
        return ""


def arrays(batch: Any) -> Iterator[Any]:
    """The arrays in a batch, however nested."""
    if hasattr(batch, "shape"):
        yield batch
    elif hasattr(batch, "values") or isinstance(batch, (list, tuple)):
        for part in batch.values() if hasattr(batch, "values") else batch:
            if not isinstance(part, (str, bytes, int, float)):
                yield from arrays(part)


def nbytes(batch: Any) -> int:
    """Bytes of the arrays in a batch."""
    return sum(int(getattr(each, "nbytes", 0) or 0) for each in arrays(batch))


def samples(batch: Any) -> int:
    """Length of the first array in a batch; where there is none, of the batch itself."""
    found = next((int(each.shape[0]) for each in arrays(batch) if len(each.shape)), 0)
    return found or (len(batch) if isinstance(batch, (list, tuple)) else 0)


class Epoch:
    """An iterator of the program from its first batch to its end, with the batches collected ahead."""

    def __init__(self, **facts: Any) -> None:
        self.facts, self.recovering = facts, 0
        self.ahead: deque[tuple[Any, Exception | None]] = deque()

    def batch(self, iterator: Any, original: Callable[[Any], Any]) -> Any:
        """The batch that is next in the order of the program."""
        if not self.ahead:
            return original(iterator)
        batch, error = self.ahead.popleft()
        if error is not None:  # raised where the program would have met it
            raise error
        return batch


class Watch:
    """The measurements of this process; a new one after each fork."""

    def __init__(self, role: str = "other") -> None:
        self.role, self.began, self.done = role, time.perf_counter(), False
        self.epochs: list[dict[str, Any]] = []
        self.steps: list[list[float]] = []
        self.facts: dict[str, Any] = {}
        self.looks: Counter[str] = Counter()
        self.fetch: dict[str, float] = dict.fromkeys(("s", "thread_s", "process_s", "batches"), 0)
        self.opens, self.every, self.paths = 0, 1, {}  # type: int, int, dict[int, list[Any]]
        self.inside, self.fetching, self.tried = 0, 0, False
        self.looking_s, self.paused_s = 0.0, 0.0
        self.gaps: deque[tuple[Any, Any]] = deque()
        self.cpu, self.zero = time.process_time(), _counters()
        self.thread, self.task = threading.get_ident(), f"/proc/self/task/{threading.get_native_id()}"
        self.lock, self.wake, self.looking, self.looker = allocate_lock(), allocate_lock(), False, 0
        self.wake.acquire()

    def attempt(self, measure: Callable[..., Any], *words: Any) -> Any:
        """Measure something; what fails ends the measurement, and never the program."""
        try:
            return measure(*words)
        except Exception as error:
            self.done, self.facts["failed"] = True, f"{measure.__name__}: {type(error).__name__} {error}"

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

    def start_looking(self) -> None:
        """Sample the main thread from now on."""
        self.looker = 0
        with contextlib.suppress(Exception):  # not of `threading`: the program may join all that it lists
            start_new_thread(self.look_on, ())
            self.looking = True

    def stop_looking(self) -> None:
        """End the thread before a fork, of which Python 3.12 warns where there are two."""
        if self.looking:
            self.wake.release()
            task, until = "/proc/self/task/{}", time.perf_counter() + 1.0
            while time.perf_counter() < until and (
                not self.looker or os.path.exists(task.format(self.looker))
            ):
                time.sleep(0.0005)
            self.looking = False

    def look_on(self) -> None:
        """Sample the main thread until the measurement or the thread ends, and write now and then."""
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are for the program's threads
        self.looker, before_s = threading.get_native_id(), self.looking_s
        write_at = time.perf_counter() + 1.0
        while not self.done:
            often = sum(self.looks.values()) < _FIRST_LOOKS  # a short program is seen too
            if self.wake.acquire(timeout=LOOK_S / 4 if often else LOOK_S):
                return
            self.attempt(self.look)
            self.looking_s = before_s + time.thread_time()
            if time.perf_counter() > write_at:
                began = time.perf_counter()
                self.write()
                write_at = time.perf_counter() + max(1.0, 50 * (time.perf_counter() - began))
        self.write()

    def look(self) -> None:
        """One sample: what the main thread does, and in which call of the kernel it is blocked."""
        if self.fetching:
            number = read_text(f"{self.task}/syscall").partition(" ")[0]
            blocked = _BLOCKED_IN.get(int(number)) if number.isdigit() else None
            self.looks[f"fetch {blocked or _kind(*_stack(self.thread))}"] += 1
        elif self.role == "rank":
            at = "next" if self.inside else "copy" if _copies(*_stack(self.thread)) else "outside"
            self.looks[at] += 1

    def write(self) -> None:
        """Write the record of this process, complete or not at all; a full disk ends nothing."""
        with contextlib.suppress(Exception), self.lock:
            stop, path, now = f"{_folder}/stop", f"{_folder}/{os.getpid()}.json", time.perf_counter()
            stopped = os.path.exists(stop)
            if self.role == "rank":
                self.done = self.done or now - self.began - self.paused_s > _seconds
            elif self.role == "other" and stopped:
                return
            else:
                self.done = stopped
            statm = read_text("/proc/self/statm").split()
            record = {
                **self.facts,
                **{
                    "role": self.role,
                    "pid": os.getpid(),
                    "seconds": now - self.began,
                    "paused_s": self.paused_s,
                },
                **{"cpu_s": time.process_time() - self.cpu, "epochs": self.epochs, "steps": self.steps},
                **{"looks": self.looks, "fetch": self.fetch, "opens": self.opens, "every": self.every},
                **{"paths": list(self.paths.values()), "rank": os.environ.get("RANK", ""), "done": self.done},
                "read": {
                    name: value - self.zero.get(name, 0) for name, value in _counters(self.looker).items()
                },
                "own_bytes": os.sysconf("SC_PAGE_SIZE") * (int(statm[1]) - int(statm[2])),
            }
            text = json.dumps(record)
            with open(path + ".part", "w") as file:
                file.write(text)
            os.replace(path + ".part", path)
            if self.done and self.role == "rank":
                os.close(os.open(stop, os.O_CREAT | os.O_WRONLY))

    def next(self, original: Callable[[Any], Any], iterator: Any) -> Any:
        """The next batch of the program, with the time it took to come."""
        me = threading.get_ident()
        if self.inside == me:  # a loader inside a loader
            return original(iterator)
        if self.role == "other":
            return _begin("rank").next(original, iterator)
        if not getattr(iterator, "_num_yielded", 1):  # persistent workers keep their iterator
            iterator._smallfiles = None
        epoch = getattr(iterator, "_smallfiles", None)
        if self.done or self.inside or self.role == "worker":
            return epoch.batch(iterator, original) if epoch else original(iterator)
        self.inside = me
        if not self.looking:
            self.start_looking()
        try:
            self.attempt(self.before, iterator, original)
            epoch = getattr(iterator, "_smallfiles", None) or Epoch()
            free, asked = bool(epoch.ahead), self.attempt(self.clocks)
            batch = epoch.batch(iterator, original)
            got = self.attempt(self.clocks)
        except BaseException:
            epoch = getattr(iterator, "_smallfiles", None) or Epoch()
            epoch.facts["ended"] = time.perf_counter() - self.began
            raise
        finally:
            self.inside = 0
        if not self.done:
            self.attempt(self.after, epoch, free, asked, got, batch)
        return batch

    def before(self, iterator: Any, original: Callable[[Any], Any]) -> None:
        """Begin an epoch, or collect the next batches once."""
        if getattr(iterator, "_smallfiles", None) is None:
            self.facts.update(_facts(iterator))
            init_s = iterator.__dict__.pop("_smallfiles_init_s", 0.0)
            about = {"number": len(self.epochs), "init_s": init_s, "of": _length(iterator)}
            iterator._smallfiles = Epoch(**about, began=time.perf_counter() - self.began)
            self.epochs.append(iterator._smallfiles.facts)
        elif not self.tried and len(self.steps) >= 12 and self.steps[-4][2] == self.steps[-1][2]:
            here = iterator._smallfiles.facts["number"]
            done = sum(step[2] == here for step in self.steps)
            if self.steps[-4][2] == here and (_length(iterator) or 1 << 30) - done > 6:
                self.tried, self.facts["no_headroom"] = True, self.hindrance(iterator)
                if not self.facts["no_headroom"]:
                    self.collect(iterator, original)

    def clocks(self) -> tuple[float, float, Any]:
        """Now, how long this thread was queued for a processor, and the place in the GPU's queue."""
        queued = (read_text(f"{self.task}/schedstat").split() or ["0", "0"])[1]
        return time.perf_counter(), int(queued) / 1e9, _moment()

    def after(self, epoch: Epoch, free: bool, asked: Any, got: Any, batch: Any) -> None:
        """Keep a step: when its batch was asked for and came, its epoch, its kind, time without a CPU."""
        kind = _FREE if free else _RECOVERING if epoch.recovering > 0 else 0
        epoch.recovering -= kind == _RECOVERING
        at = (round(asked[0] - self.began, 6), round(got[0] - self.began, 6))
        self.steps.append([*at, epoch.facts["number"], kind, round(got[1] - asked[1], 6)])
        if len(self.steps) >= _STEPS:
            self.done = True
        if len(self.steps) in (1, 4, 16):
            self.facts["batch_bytes"] = nbytes(batch)
            self.facts["batch_samples"] = self.facts["batch_size"] or samples(batch)
        if got[2] is not None:
            self.gaps.append((asked[2], got[2]))
        while self.gaps and self.gaps[0][1].query():
            begin, end = self.gaps.popleft()
            self.facts["gpu_idle_s"] = self.facts.get("gpu_idle_s", 0.0) + begin.elapsed_time(end) / 1000
        if free and not epoch.ahead and (cuda := _cuda()):
            cuda.synchronize()

    def room_bytes(self, iterator: Any) -> int:
        """Bytes that may be collected: a quarter of free memory, half of /dev/shm, at most 1 GB."""
        shm: int = _shm()[1] - _asked_ahead(iterator) * self.facts.get("batch_bytes", 0)
        return min(_AHEAD_BYTES, shm // 2, int(read_text(f"{_folder}/room") or 0) // 4)

    def hindrance(self, iterator: Any) -> str:
        """Why batches cannot be made ahead without changing what the program computes; empty if they can."""
        if not self.facts["workers"]:
            return "batches are made in the main process"
        if self.facts["threaded"]:
            return "a thread of the program takes the batches"
        if getattr(iterator, "_timeout", 0):
            return "the loader has a timeout"
        if hasattr(iterator, "state_dict") or not _keeps_order(getattr(iterator, "_index_sampler", None)):
            return "its order may depend on what the training draws"
        full = self.room_bytes(iterator) < 4 * self.facts.get("batch_bytes", 0)
        return "memory or /dev/shm has no room for it" if full else ""

    def collect(self, iterator: Any, original: Callable[[Any], Any]) -> None:
        """Collect the next batches of the program while it is paused, and let the workers come to rest."""
        began, room, epoch = time.perf_counter(), self.room_bytes(iterator), iterator._smallfiles
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2  # each tensor of a worker may hold one
        while len(epoch.ahead) < _AHEAD and room > 0 and len(os.listdir("/proc/self/fd")) < files:
            if time.perf_counter() - began > _AHEAD_S:
                break
            try:
                epoch.ahead.append((original(iterator), None))
            except Exception as error:
                epoch.ahead.append((None, error))
                break
            room -= nbytes(epoch.ahead[-1][0])
        while not _at_rest(iterator) and time.perf_counter() - began < _AHEAD_S:
            time.sleep(0.01)
        if cuda := _cuda():
            cuda.synchronize()
        epoch.recovering = _asked_ahead(iterator) + 2
        self.paused_s += time.perf_counter() - began

    def fetched(self, fetch: Callable[..., Any], *words: Any) -> Any:
        """Make a batch, in a worker or in the main process, on clocks of time and of processors."""
        if self.fetching:  # for a loader inside a loader
            return fetch(*words)
        if self.role == "worker" and not (self.looking or self.done):
            self.start_looking()
        clocks = time.perf_counter(), time.thread_time(), time.process_time() - self.looking_s
        self.fetching += 1
        try:
            return fetch(*words)
        finally:
            self.fetching -= 1
            self.fetch["s"] += time.perf_counter() - clocks[0]
            self.fetch["thread_s"] += time.thread_time() - clocks[1]
            self.fetch["process_s"] += time.process_time() - self.looking_s - clocks[2]
            self.fetch["batches"] += 1


def _begin(role: str) -> Watch:
    """Measure from now on: the first batch is asked for, or a worker runs."""
    global _watch
    _watch = Watch(role)
    _watch.start_looking()
    with contextlib.suppress(Exception):
        if role == "rank":  # a child of multiprocessing ends without atexit
            from multiprocessing.util import Finalize

            Finalize(None, _watch.write, exitpriority=0)
    return _watch


def _stack(thread: int) -> tuple[str, list[str]]:
    """The innermost line of a thread, and `file:function` of its frames, of which none is kept alive."""
    frame, names = sys._current_frames().get(thread), []
    where = (frame.f_code.co_filename, frame.f_lineno or 0) if frame else ("", 0)
    while frame is not None:
        names.append(f"{frame.f_code.co_filename}:{frame.f_code.co_name}")
        frame = frame.f_back if len(names) < 60 else None
    return linecache.getline(*where), names


def _kind(line: str, names: list[str]) -> str:
    """What a worker works on."""
    for name in names:
        if "_utils/fetch.py:" in name:
            break
        for kind, pattern in _NAMES:
            if pattern.search(name):
                return kind
    return next((kind for kind, pattern in _LINES if pattern.search(line)), "other")


def _copies(line: str, names: list[str]) -> bool:
    """Whether the main thread copies or prepares a batch between two steps, outside of the model."""
    text = "\n".join(names[:4])
    return not _MODEL.search(text) and bool(_COPY.search(text) or _COPY_LINE.search(line))


def _keeps_order(sampler: Any) -> bool:
    """Whether a sampler, and what it wraps, draws its order alone: none is written by the program."""
    while sampler is not None:
        if not type(sampler).__module__.startswith(_KNOWN):
            return False
        within = (getattr(sampler, name, None) for name in ("batch_sampler", "_batch_sampler", "sampler"))
        sampler = next((each for each in within if each is not None), None)
    return True


def _counters(ours: int = 0) -> dict[str, int]:
    """Reads of this process, and nanoseconds that its threads, without ours, were queued for a processor."""
    lines = (line.split(": ") for line in read_text("/proc/self/io").splitlines())
    found = {name: int(value) for name, value in lines if name in ("rchar", "syscr", "read_bytes")}
    tasks = (task for task in os.listdir("/proc/self/task") if int(task) != ours)
    runs = [run for task in tasks if len(run := read_text(f"/proc/self/task/{task}/schedstat").split()) > 1]
    return {**found, **({"queued_ns": sum(int(run[1]) for run in runs)} if runs else {})}


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
    size = getattr(getattr(iterator, "_index_sampler", None), "batch_size", None)
    return {
        "kind": type(iterator).__name__,
        "batch_size": size if isinstance(size, int) else None,
        "threaded": threading.current_thread() is not threading.main_thread(),
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
    for fetcher in (module._utils.fetch._MapDatasetFetcher, module._utils.fetch._IterableDatasetFetcher):
        _wrap(fetcher, "fetch", lambda *words: _watch.fetched(*words))
    _patch_next(module._BaseDataLoaderIter)
    _patch_workers(module._MultiProcessingDataLoaderIter, module._utils.worker)


def _patch_stateful(module: Any) -> None:
    """The same for a StatefulDataLoader, which has workers of its own and the fetchers of PyTorch."""
    worker = sys.modules[module._worker_loop.__module__]
    _patch_next(module._StatefulBaseDataLoaderIter)
    _patch_workers(module._StatefulMultiProcessingDataLoaderIter, worker)
    module._worker_loop = worker._worker_loop


def _patch_workers(several: Any, worker: Any) -> None:
    """Watch each worker, and how long their start takes."""
    from multiprocessing import parent_process

    loop, init = worker._worker_loop, several.__init__

    @functools.wraps(loop)
    def worker_loop(*words: Any, **more: Any) -> Any:
        parent = parent_process()
        _begin("worker").facts["parent"] = parent.pid if parent else os.getppid()
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


def _patch_next(kind: Any) -> None:
    _wrap(kind, "__next__", lambda *words: _watch.next(*words))


def _wrap(kind: Any, name: str, measured: Callable[..., Any]) -> None:
    """Call a method of a class through `measured`, which gets it first."""
    original = getattr(kind, name)
    setattr(kind, name, functools.wraps(original)(lambda *words: measured(original, *words)))


_PATCHES: dict[str, Callable[[Any], None]] = {
    "torch.utils.data.dataloader": _patch_torch,
    "torchdata.stateful_dataloader.stateful_dataloader": _patch_stateful,
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
    try:  # what an audit hook raises fails the open; at the end of Python even our imports are gone
        if event == "open":
            _watch.opened(*words)
    except Exception:
        pass


def _after_fork() -> None:
    global _watch
    _watch = Watch()


def install() -> None:
    """Call on the site's own `sitecustomize`, then watch this process."""
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or ".") != _folder]
    own = sys.modules.pop("sitecustomize")
    try:
        if os.path.isdir(_folder):
            sys.addaudithook(_audit)
            sys.meta_path.insert(0, _Finder)
            os.register_at_fork(before=lambda: _watch.stop_looking(), after_in_child=_after_fork)
            atexit.register(lambda: _watch.write())
        importlib.import_module("sitecustomize")  # the site's
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = own


_SYSTEM = (
    *("/proc/", "/sys/", "/dev/null", "/dev/urandom", "/etc/", "/usr/lib"),
    *(sys.prefix + "/", sys.base_prefix + "/lib"),
)
_watch = Watch()
if __name__ == "sitecustomize":
    install()
