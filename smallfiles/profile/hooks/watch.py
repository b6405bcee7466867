"""The measurements of one process: its steps, what its main thread does, the files that it opens."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import signal
import struct
import sys
import threading
import time
import zlib
from _thread import allocate_lock, start_new_thread
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from . import loaders, moments

LOOK_S = 0.1
FOLDER, SECONDS = "SMALLFILES_PROFILE_FOLDER", "SMALLFILES_PROFILE_SECONDS"
folder, _seconds = os.environ.get(FOLDER, ""), float(os.environ.get(SECONDS, "inf"))
_program_began = time.time()  # of this one: `exec` begins another in the same process
_STEPS = 20_000
STEP = struct.Struct("=5d")
"""A step in its file: asked, got, epoch, kind, queued."""
_AHEAD, _AHEAD_BYTES, _AHEAD_S = 16, 1 << 30, 20.0
_PATHS = 512
_WRITTEN = ("role", "born", "paused_s", "epochs", "looks", "fetch", "opens", "every")
_FREE, _RECOVERING = 1, 2
SYSTEM = (
    *("/proc/", "/sys/", "/dev/null", "/dev/urandom", "/etc/", "/usr/lib"),
    *(sys.prefix + "/", sys.base_prefix + "/lib"),
)


def name_of(path: Any, flags: Any) -> str | None:
    """Return the name of a file that the program opens for reading; None if it is not one of its own."""
    if flags & 3 or isinstance(path, int):
        return None
    name = os.fsdecode(path)
    return None if name.startswith(SYSTEM) or name.endswith((".py", ".pyc", ".so")) else name


class Epoch:
    """An iterator of the program from its first batch to its end, with the batches collected ahead."""

    def __init__(self, **facts: Any) -> None:
        self.facts, self.made, self.recovering = facts, 0, 0
        self.ahead: deque[tuple[Any, Exception | None]] = deque()

    def batch(self, iterator: Any, original: Callable[[Any], Any]) -> Any:
        """Return the next batch in the order of the program."""
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
        self.born, self.path = time.time(), f"{folder}/{os.getpid()}-{time.monotonic_ns()}"
        self.files: dict[str, int] = {}
        self.written, self.write_s = self.began, 0.0
        self.epochs: list[dict[str, Any]] = []
        self.steps: list[int] = []
        self.facts: dict[str, Any] = {}
        self.looks: Counter[str] = Counter()
        self.fetch: dict[str, float] = dict.fromkeys(("s", "thread_s", "process_s", "batches"), 0)
        self.opens, self.every, self.paths = 0, 1, {}  # type: int, int, dict[int, list[Any]]
        self.inside, self.fetching, self.tried = 0, 0, False
        self.looking_s, self.paused_s = 0.0, 0.0
        self.gaps: deque[tuple[Any, Any]] = deque()
        self.cpu, self.zero = time.process_time(), moments.counters()
        self.thread, self.task = threading.get_ident(), f"/proc/self/task/{threading.get_native_id()}"
        self.lock, self.wake, self.looking, self.looker = allocate_lock(), allocate_lock(), False, 0
        self.wake.acquire()

    def file(self, name: str) -> int:
        """Return the number of a file of this process: a high one, which no file of the program gets.

        The program may close all files, and its next one would get a low number, and all that we write.
        """
        if name not in self.files:
            file = os.open(f"{self.path}.{name}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            high = min(1000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
            self.files[name] = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, high)
            os.close(file)
        return self.files[name]

    def add(self, name: str, data: bytes) -> None:
        """Add to a file of this process."""
        os.write(self.files.get(name) or self.file(name), data)

    def attempt(self, measure: Callable[..., Any], *words: Any) -> Any:
        """Measure something; what fails ends the measurement, and never the program."""
        return moments.guarded(self.fail, measure, *words)

    def fail(self, text: str) -> None:
        """End the measurement, and say why."""
        self.done, self.facts["failed"] = True, text

    def opened(self, path: Any, mode: Any, flags: Any) -> None:
        """Count a file that is opened for reading; one in 2^k of the names is kept."""
        if self.done or (name := name_of(path, flags)) is None:
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
        """Sample the main thread from now on, in a thread that takes none of the program's signals."""
        self.looker = 0
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # inherited by it
        try:
            start_new_thread(self.look_on, ())  # not of `threading`: the program may join all that it lists
            self.looking = True
        except RuntimeError:  # there are too many threads
            pass
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def stop_looking(self) -> None:
        """End the thread before a fork, of which Python 3.12 warns where there are two."""
        if self.looking:
            self.looking = False  # first: another thread may fork meanwhile
            self.wake.release()
            task, until = "/proc/self/task/{}", time.perf_counter() + 1.0
            while time.perf_counter() < until and (
                not self.looker or os.path.exists(task.format(self.looker))
            ):
                time.sleep(0.0005)

    def look_on(self) -> None:
        """Sample the main thread until the measurement or the thread ends, and write now and then."""
        self.looker, before_s = threading.get_native_id(), self.looking_s
        while not self.done:
            if self.wake.acquire(timeout=LOOK_S):
                return
            self.attempt(self.look)
            self.looking_s = before_s + time.thread_time()
            if time.perf_counter() > self.written + max(0.2, 50 * self.write_s):
                self.write()  # which takes a fiftieth of the time at most
        self.write()

    def begin_rank(self) -> None:
        """Keep what is measured, however this process ends."""
        from multiprocessing.util import Finalize  # its children end without atexit

        Finalize(None, self.write, exitpriority=0)
        with contextlib.suppress(OSError):  # taken first, since the disk may be full later
            os.posix_fallocate(self.file("steps"), 0, _STEPS * STEP.size)

    def look(self) -> None:
        """Sample what the main thread does, and in which system call it is blocked."""
        if self.fetching:
            number = moments.read_text(f"{self.task}/syscall").partition(" ")[0]
            blocked = moments.BLOCKED_IN.get(int(number)) if number.isdigit() else None
            self.looks[f"fetch {blocked or moments.kind(*moments.stack(self.thread))}"] += 1
        elif self.role == "rank":
            copies = not self.inside and moments.copies(*moments.stack(self.thread))
            at = "next" if self.inside else "copy" if copies else "outside"
            self.looks[at] += 1

    def write(self) -> None:
        """Write the record of this process, complete or not at all; a full disk ends nothing."""
        if not self.lock.acquire(timeout=1.0):  # a signal handler forks, or ends the process, while we write
            return
        try:
            began = time.perf_counter()
            moments.guarded(str, self.write_now)
            self.written = time.perf_counter()
            self.write_s = self.written - began
        finally:
            self.lock.release()

    def write_now(self) -> None:
        """Write the record, and end the measurement when its time has come."""
        stop, path, now = f"{folder}/stop", self.path + ".json", time.perf_counter()
        stopped = os.path.exists(stop)
        if self.role == "rank":
            self.done = self.done or now - self.began - self.paused_s > _seconds
        elif self.role == "other" and stopped:
            return
        else:
            self.done = stopped
        statm = moments.read_text("/proc/self/statm").split()
        record = {
            **self.facts,
            **{name: getattr(self, name) for name in _WRITTEN},
            **{"pid": os.getpid(), "began": _program_began, "rank": os.environ.get("RANK", "")},
            **{"seconds": now - self.began, "cpu_s": time.process_time() - self.cpu},
            "paths": list(self.paths.values()),
            "read": {
                name: value - self.zero.get(name, 0) for name, value in moments.counters(self.looker).items()
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
        """Return the next batch of the program, and record how long the program waited for it."""
        me = threading.get_ident()
        if self.inside == me:  # a loader inside a loader
            return original(iterator)
        if self.role == "other":
            return begin("rank").next(original, iterator)
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
            if epoch := getattr(iterator, "_smallfiles", None):
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
            loader = loaders.facts(iterator)
            self.facts.update(loader)
            init_s = iterator.__dict__.pop("_smallfiles_init_s", 0.0)
            about = {"number": len(self.epochs), "init_s": init_s, "of": loaders.length(iterator)}
            iterator._smallfiles = Epoch(**about, loader=loader, began=time.perf_counter() - self.began)
            self.epochs.append(iterator._smallfiles.facts)
        elif not self.tried and len(self.steps) >= 12 and self.steps[-4] == self.steps[-1]:
            here = iterator._smallfiles.facts["number"]
            left = (loaders.length(iterator) or 1 << 30) - self.steps.count(here)
            if self.steps[-4] == here and left > 6:
                self.tried, self.facts["no_headroom"] = True, self.hindrance(iterator)
                if not self.facts["no_headroom"]:
                    self.collect(iterator, original)

    def clocks(self) -> tuple[float, float, Any]:
        """Now, how long this thread was queued for a processor, and the place in the GPU's queue."""
        queued = (moments.read_text(f"{self.task}/schedstat").split() or ["0", "0"])[1]
        return time.perf_counter(), int(queued) / 1e9, loaders.moment()

    def after(self, epoch: Epoch, free: bool, asked: Any, got: Any, batch: Any) -> None:
        """Keep a step: when its batch was asked for and came, its epoch, its kind, time without a CPU."""
        kind = _FREE if free else _RECOVERING if epoch.recovering > 0 else 0
        epoch.recovering -= kind == _RECOVERING
        number, times = epoch.facts["number"], (asked[0] - self.began, got[0] - self.began)
        step = STEP.pack(*times, number, kind, got[1] - asked[1])
        os.pwrite(self.file("steps"), step, STEP.size * len(self.steps))
        self.steps.append(number)
        self.done = self.done or len(self.steps) >= _STEPS
        epoch.made += 1
        if epoch.made in (1, 4, 16):
            loader = epoch.facts["loader"]
            loader["batch_bytes"] = self.facts["batch_bytes"] = loaders.nbytes(batch)
            loader["batch_samples"] = loader["batch_size"] or loaders.samples(batch)
            if epoch.made == len(self.epochs) == 1:  # the loader that the steps belong to
                self.write()
        if got[2] is not None:
            self.gaps.append((asked[2], got[2]))
        while self.gaps and self.gaps[0][1].query():
            begin, end = self.gaps.popleft()
            self.facts["gpu_idle_s"] = self.facts.get("gpu_idle_s", 0.0) + begin.elapsed_time(end) / 1000
        if free and not epoch.ahead and (cuda := loaders.cuda()):
            cuda.synchronize()

    def room_bytes(self, iterator: Any) -> int:
        """Return how many bytes may be collected: 1/4 of free memory, 1/2 of /dev/shm, at most 1 GB."""
        shm: int = moments.shm()[1] - loaders.asked_ahead(iterator) * self.facts.get("batch_bytes", 0)
        return min(_AHEAD_BYTES, shm // 2, int(moments.read_text(f"{folder}/room") or 0) // 4)

    def hindrance(self, iterator: Any) -> str:
        """Return why batches cannot be made ahead without changing the results of the program, or ""."""
        if not self.facts["workers"]:
            return "batches are made in the main process"
        if self.facts["threaded"]:
            return "a thread of the program takes the batches"
        if getattr(iterator, "_timeout", 0):
            return "the loader has a timeout"
        if hasattr(iterator, "state_dict") or not loaders.keeps_order(
            getattr(iterator, "_index_sampler", None)
        ):
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
                if moments.from_handler(error):
                    raise
                epoch.ahead.append((None, error))
                break
            room -= loaders.nbytes(epoch.ahead[-1][0])
        while (
            moments.guarded(str, loaders.at_rest, iterator) is False
            and time.perf_counter() - began < _AHEAD_S
        ):
            time.sleep(0.01)
        if cuda := loaders.cuda():
            cuda.synchronize()
        epoch.recovering = loaders.asked_ahead(iterator) + 2
        self.paused_s += time.perf_counter() - began

    def fetched(self, fetch: Callable[..., Any], fetcher: Any, index: Any) -> Any:
        """Make a batch, in a worker or in the main process, on clocks of time and of processors."""
        if self.fetching:  # for a loader inside a loader
            return fetch(fetcher, index)
        if self.role == "worker" and not (self.looking or self.done):
            self.start_looking()
        clocks = time.perf_counter(), time.thread_time(), time.process_time() - self.looking_s
        self.fetching += 1
        try:
            return fetch(fetcher, index)
        finally:
            self.fetching -= 1
            self.fetch["s"] += time.perf_counter() - clocks[0]
            self.fetch["thread_s"] += time.thread_time() - clocks[1]
            self.fetch["process_s"] += time.process_time() - self.looking_s - clocks[2]
            self.fetch["batches"] += 1


def begin(role: str) -> Any:
    """Measure from now on: the first batch is asked for, or a worker runs."""
    global current
    current = Watch(role)
    current.start_looking()
    if role == "rank":
        current.attempt(current.begin_rank)
    return current


def begin_again() -> None:
    """Start a new record in a forked child, which must not write into the files of its parent."""
    global current
    for file in current.files.values():
        with contextlib.suppress(OSError):
            os.close(file)
    current = type(current)()


current: Any = Watch()
"""The watch of this process. For the audit, it is a `received.Recorder`."""
