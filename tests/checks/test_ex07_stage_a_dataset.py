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
import tempfile
import time
from pathlib import Path

import pytest
from telling import assert_told

from exercises.checks import ex07_stage_a_dataset as ex07
from exercises.checks.attempt import Attempt
from exercises.checks.ex07_stage_a_dataset import WHY
from exercises.checks.forked import Child, child
from exercises.checks.verdict import Wrong


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


@contextlib.contextmanager
def impatient(folder, name):
    with (folder / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


@contextlib.contextmanager
def ignored(restore=True):
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        if restore:
            signal.signal(signal.SIGTERM, before)


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


def os_exit(src, folder):
    os._exit(0)


def open_file_make(folder):
    make(folder, 0o755)


def only_mkdir(folder):
    folder.mkdir(mode=0o700, exist_ok=True)


WRONG = {
    "the folder": (broken(give=lambda copy: copy.parent), "path"),
    "moved": (broken(copy=move), "moved"),
    "link": (broken(copy=link), "link"),
    "hard link": (broken(copy=os.link), "link"),
    "open folder": (broken(make=open_file_make), "open folder"),
    "handler left": (broken(ended=functools.partial(ended_by, signal.SIGTERM, restore=False)), "handler"),
    "again": (broken(same=lambda src, copy: False), "again"),
    "without time": (broken(copy=shutil.copyfile), "again"),
    "deletes all first": (fresh, "deletes"),
    "exists": (broken(same=exists), "old"),
    "straight": (through_the_link, "overwritten"),
    "stat": (follow_links, "followed"),
    "folder link": (broken(make=only_mkdir), "folder followed"),
    "full ignored": (swallowed, "full ignored"),
    "full and part": (broken(clean=keep), "full left"),
    "shared name": (broken(lock=nothing), "shared"),
    "impatient": (broken(lock=impatient), "refused"),
    "no handler": (broken(ended=nothing), "term left"),
    "ignored": (broken(ended=ignored), "term ignored"),
    "lock file": (broken(lock=lock_file), "stuck"),
    "own name": (broken(part=own_name, lock=nothing), "kill left"),
    "no return": (lambda src, folder: time.sleep(60), "no return"),
    "os._exit": (os_exit, "no return"),
}
WAITING = ("lock file", "no return")  # what is told of them is told when the time is over


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_gets_its_diagnosis(name, monkeypatch):
    monkeypatch.setattr(Child.report, "__defaults__", (1.5 if name in WAITING else 3.0,))
    answer, diagnosis = WRONG[name]
    assert_told(ex07.stage_safely(answer), WHY[diagnosis])


def careless(src, folder):
    """Leaves a handler that ignores SIGTERM, follows a linked folder, and hides a full disk."""
    try:
        return right(src, folder, make=only_mkdir, ended=lambda: ignored(restore=False))
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
    "marked": marked,
    "own names": by_name_of_its_own,
}


@pytest.mark.parametrize("name", RIGHT)
def test_every_right_way_passes(name):
    for judge in (ex07.stage_safely, *[ex07.stage] * (name in ("copy2", "marked"))):
        verdict = judge(RIGHT[name])
        assert verdict, str(verdict)


@pytest.mark.parametrize(
    ("answer", "case", "diagnosis"),
    [
        (exists_or_straight, ex07.two_at_once, "given half"),
        (straight, ex07.two_at_once, "final name"),
        (straight, ex07.the_disk_is_full, "full left"),
        (straight, ex07.ended_by_sigterm, "term left"),
    ],
)
def test_half_under_the_final_name_is_told(answer, case, diagnosis, tmp_path):
    with pytest.raises(Wrong) as wrong:
        case(ex07.Scene(Attempt(answer, "stage"), tmp_path))
    assert wrong.value.because == WHY[diagnosis]


class TestChildren:
    def test_a_child_stops_itself_in_the_middle_and_goes_on_when_told(self, tmp_path):
        scene = ex07.Scene(Attempt(right, "stage"), tmp_path)
        with scene.half_way("") as one:
            assert scene.caught(one)
            assert ex07.large(scene.folder) == {f"{ex07.NAME}.part": ex07.SIZE_BYTES // 4}
            one.send(signal.SIGCONT)
            assert one.report()["digest"] == ex07.digest(scene.src)

    def test_a_child_that_was_never_stopped_is_not_caught(self):
        with child(lambda: 7) as one:
            assert not one.caught(lambda: False) and one.report() == 7

    def test_no_child_outlives_its_block(self):
        with child(lambda: time.sleep(60)) as one:
            pass
        assert one.code == -signal.SIGKILL and not Path(f"/proc/{one.pid}").exists()

    def test_what_writes_files_is_replaced_in_the_child_only(self, tmp_path):
        before = open, os.write, os.sendfile
        with ex07.Scene(Attempt(right, "stage"), tmp_path).job("", 1 << 30) as one:
            assert one.report()["error"] is None
        assert before == (open, os.write, os.sendfile)
