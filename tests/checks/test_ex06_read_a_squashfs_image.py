"""A reader for all workers: each known wrong answer gets its own diagnosis, every right way passes."""

import mmap
import os
import threading

import pytest

from exercises.checks import ex06_read_a_squashfs_image as ex06

# ruff: noqa: SIM115 - answers that leave files open are what is tried
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Right:
    def __init__(self, path, places):
        self.path, self.places, self.opened = path, places, (0, -1)

    def __getitem__(self, index):
        start, size = self.places[index]
        if self.opened[0] != os.getpid():
            self.opened = (os.getpid(), os.open(self.path, os.O_RDONLY))
        return os.pread(self.opened[1], size, start)

    def __getstate__(self):
        return {**self.__dict__, "opened": (0, -1)}


class RightByMapping(Right):
    """A mapping has no offset; it stays behind when pickled."""

    def __init__(self, path, places):
        super().__init__(path, places)
        self.mapped = None

    def __getitem__(self, index):
        if self.mapped is None:
            with open(self.path, "rb") as file:
                self.mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        start, size = self.places[index]
        return self.mapped[start : start + size]

    def __getstate__(self):
        return {**self.__dict__, "mapped": None}


class RightForEachThread(Right):
    """Seeking is right where nobody shares the file."""

    def __init__(self, path, places):
        super().__init__(path, places)
        self.local = threading.local()

    def __getitem__(self, index):
        if getattr(self.local, "process", 0) != os.getpid():
            self.local.file, self.local.process = open(self.path, "rb"), os.getpid()
        start, size = self.places[index]
        self.local.file.seek(start)
        return self.local.file.read(size)

    def __getstate__(self):
        return {name: value for name, value in self.__dict__.items() if name != "local"}

    def __setstate__(self, state):
        self.__dict__.update(state, local=threading.local())


class Colleague:
    def __init__(self, path, places):
        self.file, self.places = open(path, "rb"), places

    def __getitem__(self, index):
        start, size = self.places[index]
        self.file.seek(start)
        return self.file.read(size)


class WithALock(Colleague):
    def __init__(self, path, places):
        super().__init__(path, places)
        self.lock = threading.Lock()

    def __getitem__(self, index):
        with self.lock:
            return super().__getitem__(index)


class LateButShared(Right):
    """Opened at the first read, which was the parent's."""

    def __getitem__(self, index):
        if self.opened == (0, -1):
            self.opened = open(self.path, "rb")
        start, size = self.places[index]
        self.opened.seek(start)
        return self.opened.read(size)


class SeeksInItsProcess(Right):
    def __getitem__(self, index):
        if self.opened[0] != os.getpid():
            self.opened = (os.getpid(), open(self.path, "rb", buffering=0))
        start, size = self.places[index]
        self.opened[1].seek(start)
        return self.opened[1].read(size)


class OpenedEarly:
    def __init__(self, path, places):
        self.file, self.places = open(path, "rb"), places

    def __getitem__(self, index):
        start, size = self.places[index]
        return os.pread(self.file.fileno(), size, start)


class NumberTravels(OpenedEarly):
    def __init__(self, path, places):
        self.number, self.places = os.open(path, os.O_RDONLY), places

    def __getitem__(self, index):
        start, size = self.places[index]
        return os.pread(self.number, size, start)


class OpensEachTime(Right):
    def __getitem__(self, index):
        start, size = self.places[index]
        with open(self.path, "rb") as file:
            file.seek(start)
            return file.read(size)


class KeepsSamples:
    def __init__(self, path, places):
        with open(path, "rb") as file:
            self.samples = [os.pread(file.fileno(), size, start) for start, size in places]

    def __getitem__(self, index):
        return self.samples[index]


class Swapped(Right):
    def __getitem__(self, index):
        start, size = self.places[index]
        with open(self.path, "rb") as file:
            return os.pread(file.fileno(), start, size)


class FromTheBeginning(Right):
    def __getitem__(self, index):
        with open(self.path, "rb") as file:
            return file.read(self.places[index][1])


class EmptyReadsAll(Right):
    def __getitem__(self, index):
        start, size = self.places[index]
        with open(self.path, "rb") as file:
            file.seek(start)
            return file.read(size or -1)


WRONG = {
    "shared offset": (Colleague, "use os.pread, which takes the position"),
    "a lock": (WithALock, "a lock of threading works within one process"),
    "late but shared": (LateButShared, "open anew where os.getpid() is another one"),
    "seeks in threads": (SeeksInItsProcess, "as long as you seek"),
    "an open file cannot travel": (OpenedEarly, "leave it behind in __getstate__"),
    "a number travels": (NumberTravels, "the number of a descriptor means nothing in another process"),
    "opens each time": (OpensEachTime, "made to ask it once"),
    "keeps samples": (KeepsSamples, "takes samples along when it is pickled"),
    "swapped": (Swapped, "number of bytes first"),
    "from the beginning": (FromTheBeginning, "go to the start of the sample"),
    "an empty sample": (EmptyReadsAll, "a sample may be empty"),
}


@pytest.mark.parametrize("answer", [Right, RightByMapping, RightForEachThread], ids=lambda a: a.__name__)
def test_every_right_way_passes(answer):
    verdict = ex06.reader(answer)
    assert verdict, str(verdict)
    assert "eight workers" in str(verdict)


@pytest.mark.parametrize("name", WRONG)
def test_each_wrong_answer_gets_its_own_diagnosis(name):
    answer, because = WRONG[name]
    said = str(ex06.reader(answer))
    assert because in said and "✗" in said, said


def test_no_file_and_no_descriptor_stays_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert ex06.reader(Right)
    assert list(tmp_path.iterdir()) == []


def test_wrong_samples_of_forked_workers_are_counted(tmp_path):
    truth = [bytes([number]) * (100 + number) for number in range(12)]
    starts = [sum(map(len, truth[:number])) for number in range(12)]
    (tmp_path / "data").write_bytes(b"".join(truth))
    with (tmp_path / "data").open("rb", buffering=0) as file:

        def seeking(index):
            file.seek(starts[index])
            os.sched_yield()  # so that the other worker comes in between
            return file.read(len(truth[index]))

        good = ex06.count_wrong(lambda n: os.pread(file.fileno(), len(truth[n]), starts[n]), truth, 0.3)
        assert good.wrong == good.errors == 0 and good.reads > 100
        assert ex06.count_wrong(seeking, truth).wrong > 0


def test_a_worker_that_dies_or_raises_is_counted():
    assert ex06.count_wrong(lambda index: os._exit(1), [b"x"], 0.1).errors == 2
    assert ex06.count_wrong(lambda index: 1 / 0, [b"x"], 0.1).errors > 2
