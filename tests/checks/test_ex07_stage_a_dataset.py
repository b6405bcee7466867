"""Exercise 07: each known wrong answer gets its own diagnosis, every right way passes."""

import contextlib
import fcntl
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from telling import judged

from exercises.checks import ex07_stage_a_dataset as ex07
from exercises.checks.attempt import Attempt
from exercises.checks.ex07_stage_a_dataset import WHY
from exercises.checks.forked import Child, child, in_worker
from exercises.checks.verdict import Wrong


@contextlib.contextmanager
def locked(folder, name, how=fcntl.LOCK_EX):
    lock = os.open(folder / f".{name}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, how)
        yield
    finally:
        os.close(lock)


@contextlib.contextmanager
def locked_through_links(folder, name):
    with (folder / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def ended_by(handler=lambda *_: sys.exit(143), restore=True):
    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        if restore:
            signal.signal(signal.SIGTERM, before)


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
    ended=ended_by,
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


def nothing(*arguments):
    return contextlib.nullcontext()


def broken(**how):
    return functools.partial(right, **how)


def exists(src, copy):
    return copy.exists()


ignored = functools.partial(ended_by, signal.SIG_IGN)
straight = broken(part=lambda copy: copy, lock=nothing)  # to the final name


def swallowed(src, folder):
    try:
        return right(src, folder)
    except OSError:
        if folder.is_symlink():
            raise
        return folder / src.name


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


def fresh(src, folder):
    """Tidies the whole folder before it begins."""
    if not folder.is_symlink():
        shutil.rmtree(folder, ignore_errors=True)
    return right(src, folder)


def own_name(copy):
    return copy.with_name(f"{copy.name}.{os.getpid()}")


def through_the_link(src, folder):
    """Writes to what lies under the name."""
    make(folder)
    with locked(folder, src.name):
        if not same(src, folder / src.name):
            shutil.copy2(src, folder / src.name)
    return folder / src.name


def os_exit(src, folder):
    os._exit(0)


def only_mkdir(folder):
    folder.mkdir(mode=0o700, exist_ok=True)


def in_place(part, target):
    shutil.copy2(part, target)


def behind_the_link(part, target):
    os.replace(part, target.resolve())


def classic(src, folder):
    """What everybody writes first."""
    folder.mkdir(exist_ok=True)
    if not (folder / src.name).exists():
        shutil.copy2(src, folder / src.name)
    return folder / src.name


WRONG = [
    (broken(give=lambda copy: copy.parent), WHY["path"]),
    (broken(copy=shutil.move), WHY["moved"]),
    (broken(copy=os.symlink), WHY["link"]),
    (broken(copy=os.link), WHY["link"]),
    (broken(make=functools.partial(make, mode=0o755)), WHY["open folder"]),
    (broken(ended=functools.partial(ended_by, restore=False)), WHY["handler"]),
    (broken(same=lambda src, copy: False), WHY["again"]),
    (broken(copy=shutil.copyfile), WHY["again"]),  # without the time
    (fresh, WHY["deletes"]),
    (broken(same=exists), WHY["old"]),
    (broken(publish=in_place), WHY["overwritten"]),
    (through_the_link, WHY["final name"]),
    (broken(same=functools.partial(same, look=os.stat)), WHY["link accepted"]),
    (broken(publish=behind_the_link), WHY["followed"]),
    (broken(lock=locked_through_links), WHY["lock followed"]),
    (broken(make=only_mkdir), WHY["folder followed"]),
    (swallowed, WHY["full ignored"]),
    (broken(clean=lambda part: None), WHY["full left"]),
    (broken(lock=nothing), WHY["shared"]),
    (broken(lock=functools.partial(locked, how=fcntl.LOCK_EX | fcntl.LOCK_NB)), WHY["refused"]),
    (broken(ended=nothing), WHY["term left"]),
    (broken(ended=ignored), WHY["term ignored"]),
    (broken(lock=lock_file), WHY["stuck"]),
    (broken(part=own_name, lock=nothing), WHY["kill left"]),
    (lambda src, folder: time.sleep(60), WHY["no return"]),
    (lambda src, folder: os._exit(0), WHY["no return"]),
]


def test_the_classic_answer_is_told_of_the_race_first():
    verdict = ex07.stage(classic)
    assert verdict.because == WHY["given half"], str(verdict)


def careless(src, folder):
    """Leaves a handler that ignores SIGTERM, follows a linked folder, and hides a full disk."""
    try:
        return right(src, folder, make=only_mkdir, ended=functools.partial(ignored, restore=False))
    except OSError:
        return folder / src.name


def test_signals_links_and_full_disks_are_no_matter_of_the_first_task():
    assert ex07.stage(careless)


def mtime_kept(old, new):
    times = old.stat()
    os.utime(new, ns=(times.st_atime_ns, times.st_mtime_ns))


def by_read_bytes(src, part):
    part.write_bytes(src.read_bytes())
    mtime_kept(src, part)


def by_open(src, part):
    with src.open("rb") as one, open(part, "wb") as other:
        shutil.copyfileobj(one, other)
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


def clean_name(copy):
    """A temporary name of its own; those of the dead are removed, under the lock."""
    for left in copy.parent.glob(f"{copy.name}.*"):
        left.unlink()
    return own_name(copy)


@pytest.fixture
def stage_safely(monkeypatch):
    """It waits less for what never comes, and longer where this machine is busy."""
    began = time.monotonic()
    in_worker(lambda: 1)
    monkeypatch.setattr(Child.report, "__defaults__", (min(8.0, 2.5 + 50 * (time.monotonic() - began)),))
    return ex07.stage_safely


COPIES = [broken(copy=copy) for copy in (by_read_bytes, by_open, by_os, by_command)]
TestStageSafely = judged("stage_safely", WRONG, [right, *COPIES, marked, broken(part=clean_name)])


@pytest.mark.parametrize(
    ("answer", "diagnosis"),
    [
        (functools.partial(straight, same=exists), "given half"),
        (functools.partial(straight, same=lambda src, copy: False), "final name"),
    ],
)
def test_half_under_the_final_name_is_told(answer, diagnosis, tmp_path):
    with pytest.raises(Wrong) as wrong:
        ex07.two_at_once(ex07.Scene(Attempt(answer, "stage"), tmp_path))
    assert wrong.value.because == WHY[diagnosis]


def test_no_child_outlives_its_block():
    with child(lambda: time.sleep(60)) as one:
        pass
    assert one.code == -signal.SIGKILL and not Path(f"/proc/{one.pid}").exists()
