"""One owner an output, with and without locks of the kernel; nobody publishes what is not his own."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from programs import Program, wait_for

from smallfiles import atomic, locks, processes
from smallfiles.errors import BusyError, OutputExistsError, PackError, SmallfilesError

CONTENT = b"what the owner wrote" * 1000
Begin: TypeAlias = Callable[..., Program]


def no_flock(descriptor, operation):
    raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))


def flock_of_one_machine(descriptor, operation):
    """As on some file systems, on which it reaches no other machine."""


def write(out, hold=None):
    """Publish the content, half of it first; with `hold`, wait in the middle until that file is there."""
    with atomic.drafted(out, "packing") as draft:
        draft.clear()
        file = (draft.partial / out.name).open("wb")
        file.write(CONTENT[:100])
        file.flush()
        if hold is not None:
            hold.with_name(hold.name + ".waits").touch()
            wait_for(hold.exists)
        file.write(CONTENT[100:])
        file.close()
        draft.finish([out.name], draft.data)
        draft.publish()


@pytest.fixture
def begin():
    """Write in a process of its own, of another machine if one is named; with `hold`, until it waits."""
    begun = []

    def begin(out, hold=None, machine="", flock=fcntl.flock, heartbeat_s=0.05, silent_s=0.6, after=None):
        def work():
            fcntl.flock = flock
            wait_for(lambda: after is None or after.exists())
            if machine:
                processes.boot = lambda: machine
                locks.HEARTBEAT_S, locks.SILENT_S = heartbeat_s, silent_s
            write(out, hold)

        begun.append(Program(work))
        if hold is not None:
            wait_for(hold.with_name(hold.name + ".waits").exists)
        return begun[-1]

    yield begin
    for program in begun:
        program.end()


@pytest.mark.parametrize("flock", [no_flock, flock_of_one_machine])
def test_a_living_run_of_another_machine_is_not_taken_over(flock, begin, tmp_path):
    out, go = tmp_path / "out.bin", tmp_path / "go"
    one = begin(out, go, "one", flock)
    time.sleep(1.0)  # longer than a dead one would be silent
    two = begin(out, None, "two", flock)
    assert two.wait() == 1
    assert "BusyError: another run is packing" in two.errors
    go.touch()
    assert one.wait() == 0
    assert out.read_bytes() == CONTENT and not (tmp_path / ".out.bin.packing").exists()


def test_a_run_that_was_taken_for_dead_publishes_nothing(begin, tmp_path):
    out, go, later = tmp_path / "out.bin", tmp_path / "go", tmp_path / "later"
    one = begin(out, go, "one", no_flock, heartbeat_s=1000)
    two = begin(out, later, "two", no_flock)
    go.touch()
    assert one.wait() == 1
    assert "PackError: another run took over" in one.errors
    assert not out.exists()  # neither the half of the second nor what the first called complete
    later.touch()
    assert two.wait() == 0
    assert out.read_bytes() == CONTENT and sorted(tmp_path.glob(".*")) == []


@pytest.mark.parametrize("flock", [no_flock, fcntl.flock])
def test_a_killed_run_of_this_machine_is_followed_at_once(flock, begin, tmp_path, monkeypatch):
    out = tmp_path / "out.bin"
    begin(out, tmp_path / "go", flock=flock).kill()
    monkeypatch.setattr(locks, "SILENT_S", 1e6)  # whoever waited for its silence would wait for ever
    write(out)
    assert out.read_bytes() == CONTENT


def test_a_run_ended_by_a_signal_is_followed_at_once_on_another_machine(begin, tmp_path):
    """SIGTERM, which a scheduler sends at the time limit: the next run need not watch a lease first."""
    out = tmp_path / "out.bin"
    assert begin(out, tmp_path / "go").kill(signal.SIGTERM) == -signal.SIGTERM
    assert begin(out, None, "two", no_flock, silent_s=1000).wait() == 0
    assert out.read_bytes() == CONTENT


@pytest.mark.parametrize("flock", [no_flock, fcntl.flock])
def test_of_many_at_once_one_publishes_and_all_others_get_a_sentence(flock, begin, tmp_path):
    for number in range(6):
        start, out = tmp_path / f"start {number}", tmp_path / str(number) / "new" / "out.bin"
        runs = [begin(out, flock=flock, after=start) for _ in range(5)]
        start.touch()
        codes = [run.wait() for run in runs]
        assert codes.count(0) == 1, codes
        for run in (run for run, code in zip(runs, codes, strict=True) if code):
            assert re.search(r"errors\.(Busy|OutputExists)Error: [^\n]+\n$", run.errors), run.errors
        assert [path.name for path in out.parent.iterdir()] == ["out.bin"]
        assert out.read_bytes() == CONTENT


def test_what_lay_beside_an_earlier_output_goes_and_what_is_not_ours_stays(tmp_path):
    out = tmp_path / "x.tar"
    for name in ("x.tar.digest.json", "x.tar.idx", "x.tar.index.arrow", "x.tar.resized.json"):
        (tmp_path / name).write_text("of an earlier one")
    (tmp_path / "x.tar.notes.txt").write_text("mine")
    write(out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.tar", "x.tar.notes.txt"]


def test_what_appeared_meanwhile_keeps_its_name_and_what_lies_beside_it(tmp_path):
    out = tmp_path / "x.tar"
    with pytest.raises(OutputExistsError), atomic.drafted(out, "packing") as draft:
        draft.main.write_bytes(CONTENT)
        out.write_bytes(b"theirs")
        out.with_name("x.tar.digest.json").write_bytes(b"theirs too")
        draft.publish()
    assert out.read_bytes() == b"theirs" and out.with_name("x.tar.digest.json").read_bytes() == b"theirs too"


def test_everything_is_synced_before_it_has_its_name(tmp_path, monkeypatch):
    out, seen = tmp_path / "x.files", []
    fsync, rename = os.fsync, Path.rename

    def noting(descriptor):
        seen.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def renaming(self, target):
        seen.append(f"-> {Path(target).name}")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", noting)
    monkeypatch.setattr(Path, "rename", renaming)
    with atomic.drafted(out, "packing") as draft:
        (draft.main / "a").mkdir(parents=True)
        (draft.main / "a" / "1.jpg").write_bytes(b"1")
        draft.publish()
    before = seen[: seen.index("-> x.files")]
    assert {"1.jpg", "a", "x.files"} <= set(before) and seen[-1] == tmp_path.name


def test_a_sign_that_is_half_written_is_watched_before_it_is_taken_for_dead(tmp_path, monkeypatch):
    folder = atomic.folder_of(tmp_path / "out.bin")
    folder.mkdir()
    (folder / "owner.json").write_text('{"tok')
    monkeypatch.setattr(locks, "HEARTBEAT_S", 0.1)
    monkeypatch.setattr(locks, "SILENT_S", 0.4)
    began = time.monotonic()
    write(tmp_path / "out.bin")
    assert time.monotonic() - began >= 0.4


def test_errors_of_a_lost_folder_say_that_it_was_lost(tmp_path):
    with pytest.raises(PackError, match="took over"), atomic.drafted(tmp_path / "x.bin", "packing") as draft:
        (draft.folder / "owner.json").write_text('{"token": "another"}')
        raise SmallfilesError("a folder is gone", expected="it", next_step="Look")
    assert (tmp_path / ".x.bin.packing" / "owner.json").exists()  # it is theirs
    assert issubclass(BusyError, PackError)


def test_who_comes_while_the_last_owner_leaves_keeps_what_is_his(tmp_path, monkeypatch):
    """The lock is released last: a lease file removed after it would be that of the next owner."""
    folder, came = tmp_path / "owned", list[locks.Lease]()
    folder.mkdir()
    leaving, unlink = locks.Lease(folder, BusyError), Path.unlink
    leaving.take()

    def unlink_and_come(path, missing_ok=False):
        unlink(path, missing_ok)
        if path.name == "lock" and not came:
            came.append(locks.Lease(folder, BusyError))
            came[0].take()

    monkeypatch.setattr(Path, "unlink", unlink_and_come)
    leaving.release()
    assert came[0].is_ours()
    came[0].release()
    assert not folder.exists()
