"""One owner an output, with and without locks of the kernel; nobody publishes what is not his own."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import wait_for

from smallfiles import atomic, locks, owners
from smallfiles.errors import BusyError, OutputExistsError, PackError, SmallfilesError

CONTENT = b"what the owner wrote" * 1000


def no_flock(descriptor: object, operation: int) -> None:
    raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))


def another_machine(name: str, heartbeat_s: float = 0.05, silent_s: float = 0.6, flock: bool = False) -> None:
    """Have this process (a forked child) live on a machine of its own, where flock is missing."""
    if not flock:
        fcntl.flock = no_flock
    owners.boot = lambda: name
    locks.HEARTBEAT_S, locks.SILENT_S = heartbeat_s, silent_s


def child(work: Callable[[], None], errors: Path) -> int:
    """Run in a forked child; what it raised is written to a file."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        work()
        code = 0
    except BaseException as error:
        errors.write_text(f"{type(error).__name__}: {error}")
    finally:
        os._exit(code)


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def write(out: Path, hold: Path | None = None) -> None:
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


@pytest.mark.parametrize("flock", [False, True])
def test_a_living_run_of_another_machine_is_not_taken_over(flock: bool, tmp_path: Path) -> None:
    """With flock too, since on some file systems it reaches no other machine."""
    out, go = tmp_path / "out.bin", tmp_path / "go"

    def first() -> None:
        another_machine("one", flock=flock)
        if flock:
            fcntl.flock = lambda descriptor, operation: None
        write(out, go)

    def second() -> None:
        another_machine("two", flock=flock)
        if flock:
            fcntl.flock = lambda descriptor, operation: None
        write(out)

    one = child(first, tmp_path / "one")
    wait_for((tmp_path / "go.waits").exists)
    time.sleep(1.0)  # longer than a dead one would be silent
    assert ended(child(second, tmp_path / "two")) == 1
    assert "BusyError: another run is packing" in (tmp_path / "two").read_text()
    go.touch()
    assert ended(one) == 0
    assert out.read_bytes() == CONTENT and not (tmp_path / ".out.bin.packing").exists()


def test_a_run_that_was_taken_for_dead_publishes_nothing(tmp_path: Path) -> None:
    out, go, later = tmp_path / "out.bin", tmp_path / "go", tmp_path / "later"

    def first() -> None:
        another_machine("one", heartbeat_s=1000)
        write(out, go)

    def second() -> None:
        another_machine("two")
        write(out, later)

    one = child(first, tmp_path / "one")
    wait_for((tmp_path / "go.waits").exists)
    two = child(second, tmp_path / "two")
    wait_for((tmp_path / "later.waits").exists)
    go.touch()
    assert ended(one) == 1
    assert "PackError: another run took over" in (tmp_path / "one").read_text()
    assert not out.exists()  # neither the half of the second nor what the first called complete
    later.touch()
    assert ended(two) == 0
    assert out.read_bytes() == CONTENT and sorted(tmp_path.glob(".*")) == []


@pytest.mark.parametrize("flock", [False, True])
def test_a_killed_run_of_this_machine_is_followed_at_once(flock: bool, tmp_path: Path) -> None:
    out, go = tmp_path / "out.bin", tmp_path / "go"

    def first() -> None:
        if not flock:
            fcntl.flock = no_flock
        write(out, go)

    pid = child(first, tmp_path / "one")
    wait_for((tmp_path / "go.waits").exists)
    os.kill(pid, signal.SIGKILL)
    assert ended(pid) == -signal.SIGKILL
    began = time.monotonic()
    write(out)
    assert time.monotonic() - began < 5 and out.read_bytes() == CONTENT


def test_a_run_ended_by_a_signal_is_followed_at_once_on_another_machine(tmp_path: Path) -> None:
    """SIGTERM, which a scheduler sends at the time limit: the next run need not watch a sign first."""
    out, go = tmp_path / "out.bin", tmp_path / "go"
    pid = child(lambda: write(out, go), tmp_path / "one")
    wait_for((tmp_path / "go.waits").exists)
    os.kill(pid, signal.SIGTERM)
    assert ended(pid) == -signal.SIGTERM

    def second() -> None:
        another_machine("two", silent_s=1000)
        write(out)

    assert ended(child(second, tmp_path / "two")) == 0
    assert out.read_bytes() == CONTENT


@pytest.mark.parametrize("flock", [False, True])
def test_of_many_at_once_one_publishes_and_all_others_get_a_sentence(flock: bool, tmp_path: Path) -> None:
    for number in range(6):
        folder = tmp_path / str(number)
        start = tmp_path / f"start {number}"

        def run(folder: Path = folder, start: Path = start) -> None:
            if not flock:
                fcntl.flock = no_flock
            wait_for(start.exists)
            write(folder / "new" / "out.bin")

        pids = [child(run, tmp_path / f"{number} {n}") for n in range(5)]
        start.touch()
        codes = [ended(pid) for pid in pids]
        assert codes.count(0) == 1, codes
        for n, code in enumerate(codes):
            words = (tmp_path / f"{number} {n}").read_text() if code else "BusyError"
            assert words.startswith(("BusyError", "OutputExistsError")), words
        assert [path.name for path in (folder / "new").iterdir()] == ["out.bin"]
        assert (folder / "new" / "out.bin").read_bytes() == CONTENT


def test_what_lay_beside_an_earlier_output_goes_and_what_is_not_ours_stays(tmp_path: Path) -> None:
    out = tmp_path / "x.tar"
    for name in ("x.tar.digest.json", "x.tar.idx", "x.tar.index.arrow", "x.tar.resized.json"):
        (tmp_path / name).write_text("of an earlier one")
    (tmp_path / "x.tar.notes.txt").write_text("mine")
    write(out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.tar", "x.tar.notes.txt"]


def test_what_appeared_meanwhile_keeps_its_name_and_what_lies_beside_it(tmp_path: Path) -> None:
    out = tmp_path / "x.tar"
    with pytest.raises(OutputExistsError), atomic.drafted(out, "packing") as draft:
        draft.main.write_bytes(CONTENT)
        out.write_bytes(b"theirs")
        out.with_name("x.tar.digest.json").write_bytes(b"theirs too")
        draft.publish()
    assert out.read_bytes() == b"theirs" and out.with_name("x.tar.digest.json").read_bytes() == b"theirs too"


def test_everything_is_synced_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, seen = tmp_path / "x.files", []
    fsync, rename = os.fsync, Path.rename

    def noting(descriptor: int) -> None:
        seen.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def renaming(self: Path, target: Path) -> Path:
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


def test_a_sign_that_is_half_written_is_watched_before_it_is_taken_for_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = atomic.folder_of(tmp_path / "out.bin")
    folder.mkdir()
    (folder / "owner.json").write_text('{"tok')
    monkeypatch.setattr(locks, "HEARTBEAT_S", 0.1)
    monkeypatch.setattr(locks, "SILENT_S", 0.4)
    began = time.monotonic()
    write(tmp_path / "out.bin")
    assert time.monotonic() - began >= 0.4


def test_errors_of_a_lost_folder_say_that_it_was_lost(tmp_path: Path) -> None:
    with pytest.raises(PackError, match="took over"), atomic.drafted(tmp_path / "x.bin", "packing") as draft:
        (draft.folder / "owner.json").write_text('{"token": "another"}')
        raise SmallfilesError("a folder is gone", expected="it", next_step="Look")
    assert (tmp_path / ".x.bin.packing" / "owner.json").exists()  # it is theirs
    assert issubclass(BusyError, PackError)


def test_who_comes_while_the_last_owner_leaves_keeps_what_is_his(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is given back last: a sign removed after it would be that of the next owner."""
    folder, came = tmp_path / "owned", list[locks.Claim]()
    folder.mkdir()
    leaving, unlink = locks.Claim(folder, BusyError), Path.unlink

    def unlink_and_come(path: Path, missing_ok: bool = False) -> None:
        unlink(path, missing_ok)
        if path.name == "lock" and not came:
            came.append(locks.Claim(folder, BusyError))

    monkeypatch.setattr(Path, "unlink", unlink_and_come)
    leaving.release()
    assert came[0].is_ours()
    came[0].release()
    assert not folder.exists()
