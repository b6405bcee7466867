"""A reader for all workers: each known wrong answer gets its own diagnosis, every right way passes."""

import mmap
import os
import threading

import pytest
from telling import judged

from exercises.checks import Attempt, Wrong
from exercises.checks import ex06_read_a_squashfs_image as ex06

# ruff: noqa: SIM115 - answers that leave files open are what is tried
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Answer:
    """Keeps what it was given; `get` is what differs."""

    def __init__(self, path, places):
        self.path, self.places = path, places

    def __getitem__(self, index):
        return self.get(*self.places[index])


def all_of(descriptor, start, size):
    """`os.pread` as often as needed."""
    data = b""
    while len(data) < size:
        part = os.pread(descriptor, size - len(data), start + len(data))
        if not part:
            raise EOFError
        data += part
    return data


class Right(Answer):
    opened = (0, -1)

    def get(self, start, size):
        if self.opened[0] != os.getpid():
            self.opened = (os.getpid(), os.open(self.path, os.O_RDONLY))
        return all_of(self.opened[1], start, size)

    def __getstate__(self):
        return {**self.__dict__, "opened": (0, -1)}


class RightByMapping(Answer):
    """A mapping has no offset; it stays behind when pickled."""

    mapped = None

    def get(self, start, size):
        if self.mapped is None:
            with open(self.path, "rb") as file:
                self.mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if start + size > len(self.mapped):
            raise EOFError
        return self.mapped[start : start + size]

    def __getstate__(self):
        return {**self.__dict__, "mapped": None}


class RightWithoutAProcess(Answer):
    """A position in each read makes one open file right in forked workers too."""

    def __init__(self, path, places):
        super().__init__(path, places)
        self.file = open(path, "rb")

    def get(self, start, size):
        return all_of(self.file.fileno(), start, size)

    def __reduce__(self):
        return type(self), (self.path, self.places)


class OneReadIsEnough(RightWithoutAProcess):
    def get(self, start, size):
        return os.pread(self.file.fileno(), size, start)


class ShortAtTheEnd(RightWithoutAProcess):
    """Reads on, and gives what there is."""

    def get(self, start, size):
        data = b""
        while part := os.pread(self.file.fileno(), size - len(data), start + len(data)):
            data += part
        return data


class NeverEnds(RightWithoutAProcess):
    def get(self, start, size):
        data = b""
        while len(data) < size:
            data += os.pread(self.file.fileno(), size - len(data), start + len(data))
        return data


def read_at(file, start, size):
    file.seek(start)
    return file.read(size)


class FileForEachThread(Answer):
    """Seeking is right where nobody shares the file, and each thread opens it."""

    def __init__(self, path, places):
        super().__init__(path, places)
        self.local = threading.local()

    def get(self, start, size):
        if getattr(self.local, "process", 0) != os.getpid():
            self.local.file, self.local.process = open(self.path, "rb"), os.getpid()
        return read_at(self.local.file, start, size)

    def __getstate__(self):
        return {name: value for name, value in self.__dict__.items() if name != "local"}

    def __setstate__(self, state):
        self.__dict__.update(state, local=threading.local())


class OpenedInInit(Answer):
    def __init__(self, path, places):
        self.file, self.places = open(path, "rb"), places

    def get(self, start, size):
        return read_at(self.file, start, size)


class LockAcrossProcesses(OpenedInInit):
    def __init__(self, path, places):
        super().__init__(path, places)
        self.lock = threading.Lock()

    def get(self, start, size):
        with self.lock:
            return super().get(start, size)


class LateButShared(Right):
    """Opened at the first read, which was the parent's."""

    def get(self, start, size):
        if self.opened == (0, -1):
            self.opened = open(self.path, "rb")
        return read_at(self.opened, start, size)


class Colleague(Right):
    """As exercise 06 gives it: a file of its own in each process, and a seek."""

    def get(self, start, size):
        if self.opened[0] != os.getpid():
            self.opened = (os.getpid(), open(self.path, "rb"))
        return read_at(self.opened[1], start, size)


class WithALock(Colleague):
    def __init__(self, path, places):
        super().__init__(path, places)
        self.lock = threading.Lock()

    def get(self, start, size):
        with self.lock:
            return super().get(start, size)

    def __reduce__(self):
        return type(self), (self.path, self.places)


class LockForEachPart(WithALock):
    """Another thread comes in between the two."""

    def get(self, start, size):
        if self.opened[0] != os.getpid():
            self.opened = (os.getpid(), open(self.path, "rb"))
        with self.lock:
            self.opened[1].seek(start)
        with self.lock:
            return self.opened[1].read(size)


class CopyForEachThread(Right):
    def get(self, start, size):
        if self.opened[0] != os.getpid():
            self.opened = (os.getpid(), os.open(self.path, os.O_RDONLY))
        with open(os.dup(self.opened[1]), "rb", buffering=0) as file:
            return read_at(file, start, size)


class CannotBePickled(OpenedInInit):
    def get(self, start, size):
        return os.pread(self.file.fileno(), size, start)


class NumberTravels(Answer):
    def __init__(self, path, places):
        self.number, self.places = os.open(path, os.O_RDONLY), places

    def get(self, start, size):
        return os.pread(self.number, size, start)


class KeepsSamples:
    def __init__(self, path, places):
        with open(path, "rb") as file:
            self.samples = [os.pread(file.fileno(), size, start) for start, size in places]

    def __getitem__(self, index):
        return self.samples[index]


def each_time(read):
    """An answer that opens the file for each sample."""

    class EachTime(Answer):
        def get(self, start, size):
            with open(self.path, "rb") as file:
                return read(file, start, size)

    EachTime.__qualname__ = EachTime.__name__ = f"EachTime_{read.__name__}"
    globals()[EachTime.__name__] = EachTime  # where pickle looks for it
    return EachTime


def swapped(file, start, size):
    return os.pread(file.fileno(), start, size)


def from_the_beginning(file, start, size):
    return file.read(size)


def empty_reads_all(file, start, size):
    return read_at(file, start, size or -1)


class SharedBuffer(RightWithoutAProcess):
    buffer = bytearray(1 << 17)

    def get(self, start, size):
        os.preadv(self.file.fileno(), [memoryview(self.buffer)[:size]], start)
        return bytes(self.buffer[:size])


WRONG = [
    (SharedBuffer, "something else of the reader, such as a buffer"),
    (Colleague, "the threads of a process share its open file"),
    (LockForEachPart, "one seeks, another one seeks"),
    (CopyForEachThread, "os.dup gives a second number of the same open file"),
    (WithALock, "four threads are then as slow as one"),
    (FileForEachThread, "a file for each thread is right, and costs an open"),
    (OpenedInInit, "use os.pread, which takes the position"),
    (LockAcrossProcesses, "a lock of threading works within one process"),
    (LateButShared, "open anew where os.getpid() is another one"),
    (CannotBePickled, "leave it behind in __getstate__"),
    (OneReadIsEnough, "the next one continues behind it"),
    (ShortAtTheEnd, "half an image must be an error"),
    (NeverEnds, "an empty read means the end"),
    (NumberTravels, "the number of a descriptor means nothing in another process"),
    (each_time(read_at), "needs one per process"),
    (KeepsSamples, "holds samples when it is pickled"),
    (each_time(swapped), "number of bytes first"),
    (each_time(from_the_beginning), "go to the start of the sample"),
    (each_time(empty_reads_all), "a sample may be empty"),
]


@pytest.fixture
def reader(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(ex06, "_SECONDS", 0.2)
    yield ex06.reader
    assert list(tmp_path.iterdir()) == []  # no file is left behind


TestReader = judged("reader", WRONG, [Right, RightByMapping, RightWithoutAProcess])


@pytest.mark.parametrize("threads", [False, True])
def test_wrong_samples_of_workers_and_of_threads_are_counted(tmp_path, threads):
    truth = [bytes([number]) * (100 + number) for number in range(12)]
    starts = [sum(map(len, truth[:number])) for number in range(12)]
    (tmp_path / "data").write_bytes(b"".join(truth))
    with (tmp_path / "data").open("rb", buffering=0) as file:

        def seeking(index):
            file.seek(starts[index])
            os.sched_yield()  # so that the other worker comes in between
            return file.read(len(truth[index]))

        def positional(index):
            return os.pread(file.fileno(), len(truth[index]), starts[index])

        good = ex06.count_wrong(positional, truth, 0.3, threads=threads)
        assert good.wrong == good.errors == 0 and good.reads > 100
        assert ex06.count_wrong(seeking, truth, threads=threads).wrong > 0


def test_two_threads_that_meet_are_wrong_each_time_if_they_seek(tmp_path):
    tried = ex06.Tried(Attempt(Colleague, "reader"), tmp_path / "samples.sqfs")
    for _ in range(5):
        with pytest.raises(Wrong, match="one seeks, another one seeks"):
            tried.side_by_side()


def test_a_worker_that_dies_or_raises_is_counted():
    assert ex06.count_wrong(lambda index: os._exit(1), [b"x"], 0.1).errors == 2
    assert ex06.count_wrong(lambda index: 1 / 0, [b"x"], 0.1).errors > 2
