"""Exercise 07: each known wrong answer gets its own diagnosis, every right way passes."""

import contextlib
import ctypes
import fcntl
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from exercises.checks import ex07_stage_a_dataset as ex07
from exercises.checks.ex07_stage_a_dataset import alone, children, moved
from exercises.checks.ex07_stage_a_dataset import diagnoses as why


@pytest.fixture(autouse=True)
def lenient(monkeypatch):
    monkeypatch.delenv("COURSE_STRICT", raising=False)


@contextlib.contextmanager
def locked(folder, name):
    with (folder / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def ended_by(number, restore=True):
    before = signal.signal(number, lambda *_: sys.exit(143))
    try:
        yield
    finally:
        if restore:
            signal.signal(number, before)


def same(src, copy, look=os.lstat):
    try:
        one, other = src.stat(), look(copy)
    except FileNotFoundError:
        return False
    regular = (other.st_mode & 0o170000) == 0o100000
    return regular and (one.st_size, one.st_mtime_ns) == (other.st_size, other.st_mtime_ns)


def make(folder, mode=0o700):
    folder.mkdir(mode=mode, exist_ok=True)
    if folder.is_symlink():
        raise FileExistsError(f"{folder} is a link")


def right(
    src,
    folder,
    *,
    make=make,
    lock=locked,
    same=same,
    copy=shutil.copy2,
    ended=lambda: ended_by(signal.SIGTERM),
    part=lambda copy: copy.with_name(f"{copy.name}.part"),
    clean=lambda part: part.unlink(missing_ok=True),
    publish=os.replace,
    give=lambda copy: copy,
):
    """The right answer, with places to break it."""
    make(folder)
    target = folder / src.name
    with lock(folder, src.name):
        if same(src, target):
            return give(target)
        aside = part(target)
        with ended():
            try:
                aside.unlink(missing_ok=True)
                copy(src, aside)
                publish(aside, target)
            finally:
                if aside != target:
                    clean(aside)
    return give(target)


def broken(**how):
    return functools.partial(right, **how)


def nothing(*arguments):
    return contextlib.nullcontext()


def keep(path):
    """No cleaning up."""


def exists(src, copy):
    return copy.exists()


def straight(src, folder):
    make(folder)
    return Path(shutil.copy2(src, folder / src.name))


def exists_or_straight(src, folder):
    make(folder)
    if not (folder / src.name).exists():
        shutil.copy2(src, folder / src.name)
    return folder / src.name


def swallow(src, part):
    with contextlib.suppress(OSError):
        shutil.copy2(src, part)


def swallowed(src, folder):
    try:
        return right(src, folder)
    except OSError:
        if folder.is_symlink():
            raise
        return folder / src.name


def as_runtime_error(src, folder):
    try:
        return right(src, folder)
    except OSError as error:
        if folder.is_symlink():
            raise
        raise RuntimeError("no room") from error


def in_place(part, target):
    """Over the old copy, without a new file."""
    data = part.read_bytes()
    times = part.stat()
    with target.open("r+b" if target.exists() else "wb") as file:
        file.write(data)
        file.truncate()
    os.utime(target, ns=(times.st_atime_ns, times.st_mtime_ns))
    part.unlink()


@contextlib.contextmanager
def lock_file(folder, name):
    """A file stands for the lock; kill -9 leaves it."""
    path = folder / f".{name}.lock"
    while True:
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL))
            break
        except FileExistsError:
            time.sleep(0.01)
    try:
        yield
    finally:
        path.unlink()


@contextlib.contextmanager
def impatient(folder, name):
    with (folder / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


@contextlib.contextmanager
def ignored():
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def clean_all(part):
    if part.exists():
        shutil.rmtree(part.parent, ignore_errors=True)


def fresh(src, folder):
    """Tidies the whole folder before it begins."""
    if not folder.is_symlink():
        shutil.rmtree(folder, ignore_errors=True)
    return right(src, folder)


def own_name(copy):
    return copy.with_name(f"{copy.name}.{os.getpid()}")


def link(src, part):
    part.symlink_to(src)


def move(src, part):
    shutil.move(src, part)


def follow_links(src, folder):
    """Looks with stat, and is content with a link."""
    return right(src, folder, same=functools.partial(same, look=os.stat))


def through_the_link(src, folder):
    """Writes to what lies under the name."""
    make(folder)
    with locked(folder, src.name):
        if not same(src, folder / src.name):
            shutil.copy2(src, folder / src.name)
    return folder / src.name


def longer(src, part):
    shutil.copy2(src, part)
    with part.open("ab") as file:
        file.write(b"more")


def os_exit(src, folder):
    os._exit(0)


def open_file_make(folder):
    make(folder, 0o755)


def makes_nothing(folder):
    """The folder is said to be there."""


def only_mkdir(folder):
    folder.mkdir(mode=0o700, exist_ok=True)


WRONG = {
    "no folder": (broken(make=makes_nothing), why.NO_FOLDER),
    "text": (broken(give=str), "return the path of the copy"),
    "nothing": (broken(give=lambda copy: None), "return the path of the copy"),
    "the folder": (broken(give=lambda copy: copy.parent), why.OTHER_NAME),
    "moved": (broken(copy=move), "do not move it"),
    "link": (broken(copy=link), why.LINK_MADE),
    "hard link": (broken(copy=os.link), why.LINK_MADE),
    "gone at the end": (broken(give=lambda copy: (copy.unlink(missing_ok=True), copy)[1]), why.NOTHING),
    "longer": (broken(copy=longer), "byte for byte"),
    "open folder": (broken(make=open_file_make), why.OPEN_FOLDER),
    "handler left": (
        broken(ended=functools.partial(ended_by, signal.SIGTERM, restore=False)),
        why.HANDLER_LEFT,
    ),
    "left beside": (broken(publish=shutil.copy2, clean=keep), why.LEFT_BESIDE),
    "again": (broken(same=lambda src, copy: False), why.COPIED_AGAIN),
    "without time": (broken(copy=shutil.copyfile), why.COPIED_AGAIN),
    "deletes all first": (fresh, why.DELETES),
    "exists": (broken(same=exists), why.OLD_COPY),
    "size only": (
        broken(same=lambda s, c: c.is_file() and c.stat().st_size == s.stat().st_size),
        why.OLD_COPY,
    ),
    "over the old": (broken(publish=in_place), why.OVERWRITTEN),
    "straight": (through_the_link, why.OVERWRITTEN),
    "exists or straight": (exists_or_straight, why.OLD_COPY),
    "newer": (
        broken(same=lambda s, c: c.is_file() and c.stat().st_mtime_ns >= s.stat().st_mtime_ns),
        why.HALF_REUSED,
    ),
    "stat": (follow_links, why.FOLLOWED),
    "folder link": (broken(make=only_mkdir), why.FOLDER_FOLLOWED),
    "full ignored": (swallowed, why.FULL_IGNORED),
    "full and half": (broken(copy=swallow), why.FULL_IGNORED),
    "full and part": (broken(clean=keep), why.FULL_PART),
    "full and another error": (as_runtime_error, why.FULL_OTHER),
    "shared name": (broken(lock=nothing), why.SHARED_NAME),
    "impatient": (broken(lock=impatient), why.REFUSED),
    "no handler": (broken(ended=nothing), why.TERM_PART),
    "ignored": (broken(ended=ignored), why.TERM_IGNORED),
    "cleans the folder": (broken(clean=clean_all), why.DELETES),
    "lock file": (broken(lock=lock_file), why.KILL_STUCK),
    "own name": (broken(part=own_name, lock=nothing), why.KILL_LEFT),
    "no return": (lambda src, folder: time.sleep(60), why.NO_RETURN),
    "os._exit": (os_exit, why.NO_RETURN),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_gets_its_diagnosis(name, monkeypatch):
    monkeypatch.setattr(children.Child.report, "__defaults__", (3.0,))
    answer, diagnosis = WRONG[name]
    verdict = ex07.stage(answer)
    assert verdict.state == "not yet" and diagnosis in verdict.because, str(verdict)


def mtime_kept(old, new):
    times = old.stat()
    os.utime(new, ns=(times.st_atime_ns, times.st_mtime_ns))


def by_read_bytes(src, part):
    part.write_bytes(src.read_bytes())
    mtime_kept(src, part)


def by_open(src, part):
    with src.open("rb") as one, open(part, "wb") as other:
        while data := one.read(1 << 16):
            other.write(data)
    mtime_kept(src, part)


def by_os(src, part):
    one, other = os.open(src, os.O_RDONLY), os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    while data := os.read(one, 1 << 16):
        os.write(other, data)
    os.close(one)
    os.close(other)
    mtime_kept(src, part)


def by_command(src, part):
    done = subprocess.run(["cp", "-p", src, part], capture_output=True, check=False)
    if done.returncode:
        raise OSError(done.stderr.decode())


def nameless(src, folder):
    """A file without a name until it is complete: whatever ends the process, nothing stays."""
    make(folder)
    target = folder / src.name
    with locked(folder, src.name):
        if same(src, target):
            return target
        handle = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
        with open(handle, "wb") as file, src.open("rb") as source:
            shutil.copyfileobj(source, file)
            file.flush()
            times = src.stat()
            os.utime(handle, ns=(times.st_atime_ns, times.st_mtime_ns))
            with contextlib.suppress(FileNotFoundError):
                os.unlink(folder / f".{src.name}.new")
            here = os.open(folder, os.O_RDONLY)  # with a folder Python asks for the link to be followed
            os.link(f"/proc/self/fd/{handle}", folder / f".{src.name}.new", src_dir_fd=here)
            os.close(here)
        os.replace(folder / f".{src.name}.new", target)
    return target


def marked(src, folder):
    """A marker, written last, says what was copied."""
    make(folder)
    target, marker = folder / src.name, folder / f"{src.name}.json"
    facts = [src.stat().st_size, src.stat().st_mtime_ns]
    with locked(folder, src.name):
        with contextlib.suppress(OSError, ValueError):
            told = json.loads(marker.read_text())
            if told == [*facts, target.lstat().st_ino]:
                return target
        marker.unlink(missing_ok=True)
        right_ones = {"lock": nothing, "same": lambda s, c: False, "copy": shutil.copyfile}
        copy = right(src, folder, **right_ones)
        marker.write_text(json.dumps([*facts, copy.lstat().st_ino]))
    return copy


def by_name_of_its_own(src, folder):
    """Own temporary names, those of the dead removed under the lock."""
    make(folder)
    with locked(folder, src.name):
        if same(src, folder / src.name):
            return folder / src.name
        for left in folder.glob(f".{src.name}.*.tmp"):
            left.unlink()
        with ended_by(signal.SIGTERM):
            handle, name = tempfile.mkstemp(".tmp", f".{src.name}.", folder)
            os.close(handle)
            try:
                shutil.copy2(src, name)
                os.replace(name, folder / src.name)
            finally:
                Path(name).unlink(missing_ok=True)
    return folder / src.name


RIGHT = {
    "copy2": right,
    "read_bytes": broken(copy=by_read_bytes),
    "open": broken(copy=by_open),
    "os": broken(copy=by_os),
    "command": broken(copy=by_command),
    "nameless": nameless,
    "marked": marked,
    "own names": by_name_of_its_own,
}


@pytest.mark.parametrize("name", RIGHT)
def test_every_right_way_passes(name):
    verdict = ex07.stage(RIGHT[name])
    assert verdict, str(verdict)


def test_without_small_disks_a_limit_on_files_does_the_same(monkeypatch):
    monkeypatch.setattr(alone, "small_disk", lambda point, size: lambda: False)
    assert ex07.stage(right)
    assert why.FULL_PART in ex07.stage(broken(clean=keep)).because


def test_half_under_the_final_name_is_told_by_what_the_second_job_gets(tmp_path):
    from exercises.checks.attempt import Attempt
    from exercises.checks.ex07_stage_a_dataset import together
    from exercises.checks.verdict import Wrong

    for answer, told in ((exists_or_straight, why.GIVEN_HALF), (straight, why.FINAL_NAME)):
        place = tmp_path / answer.__name__
        place.mkdir()
        with pytest.raises(Wrong) as wrong:
            together.two_at_once(Attempt(answer, "stage"), place)
        assert wrong.value.because == told


def test_the_final_name_is_told_when_a_full_disk_or_sigterm_leaves_half(tmp_path):
    from exercises.checks.attempt import Attempt
    from exercises.checks.ex07_stage_a_dataset import together
    from exercises.checks.verdict import Wrong

    for case, told in ((alone.the_disk_is_full, why.FULL_HALF), (together.ended_by_sigterm, why.TERM_HALF)):
        place = tmp_path / case.__name__
        place.mkdir()
        with pytest.raises(Wrong) as wrong:
            case(Attempt(straight, "stage"), place)
        assert told in wrong.value.because


def test_a_stub_is_not_started():
    def stub(src, folder):
        raise NotImplementedError

    verdict = ex07.stage(stub)
    assert verdict.state == "not started" and "Replace the stub" in str(verdict)


def test_an_exception_is_told_with_the_line_of_the_answer():
    def careless(src, folder):
        return folder / src.nome

    verdict = ex07.stage(careless)
    assert "AttributeError" in str(verdict) and "return folder / src.nome" in str(verdict)


class TestChildren:
    def test_a_child_stops_itself_in_the_middle_and_goes_on_when_told(self, tmp_path):
        src, folder = alone.write_source(tmp_path), tmp_path / "node"
        with children.child(right, src, folder, stop_at=1 << 20) as one:
            assert one.caught()
            (size,) = [size for name, size in children.listing(folder).items() if name.endswith(".part")]
            assert size == 1 << 20
            one.send(signal.SIGCONT)
            assert one.report()["digest"] == children.digest(src)

    def test_a_child_that_was_never_stopped_is_not_caught(self, tmp_path):
        with children.child(lambda src, folder: src, tmp_path / "x", tmp_path / "y", stop_at=1) as one:
            assert not one.caught() and one.report()["error"] is None

    def test_no_child_outlives_its_block(self, tmp_path):
        with children.child(lambda src, folder: time.sleep(60), tmp_path, tmp_path) as one:
            pass
        assert one.code == -signal.SIGKILL and not Path(f"/proc/{one.pid}").exists()

    def test_what_writes_files_is_replaced_in_the_child_only(self, tmp_path):
        before = open, os.write, os.sendfile
        with children.child(right, alone.write_source(tmp_path), tmp_path / "node", stop_at=1 << 30) as one:
            assert one.report()["error"] is None
        assert before == (open, os.write, os.sendfile)

    def test_a_meter_stops_once(self, monkeypatch):
        stops = []
        monkeypatch.setattr(moved.os, "kill", lambda pid, number: stops.append(number))
        meter = moved.Meter(100)
        for count in (60, 60, 60):
            meter.add(count)
        assert stops == [signal.SIGSTOP]

    def test_a_small_disk_is_small_and_only_the_child_sees_it(self, tmp_path):
        def fill(src, folder):
            (folder / "file").write_bytes(bytes(2 << 20))

        if ctypes.CDLL(None) is None:
            pytest.skip("no C library")
        ready = children.small_disk(tmp_path, 1 << 20)
        with children.child(fill, tmp_path, tmp_path, prepare=ready) as one:
            told = one.report()
        if told is None:
            pytest.skip("this machine lets nobody mount in a name space")
        assert "No space left" in told["text"] and list(tmp_path.iterdir()) == []
