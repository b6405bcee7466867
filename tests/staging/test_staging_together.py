"""Ranks, jobs and kills: one copy a node, whoever dies, and nothing left behind."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest
from programs import wait_for
from staging_tools import MIB, ROOMY, forked, listed, names, packed, slowly

from smallfiles import locks, machine, processes, progress, staging
from smallfiles.digests import hash_block
from smallfiles.errors import ResourceError, UsageError
from smallfiles.machine import nodelocal
from smallfiles.staging import copying, run
from smallfiles.staging.slots import LOCK_SUFFIX, Slot, sweep


def reading(source, node, log, pause_s=0.0, stay_s=0.0, meet=0):
    """A rank: stage, check every byte, note who copied, stay a while, or until so many have come.

    The last one out removes the copy, so a rank that comes after the others have left copies anew, and
    rightly: on a busy machine a while is not enough.
    """
    expected = hash_block(source.read_bytes())

    def work():
        if pause_s:
            slowly(pause_s)
        with staging.staged(source, node, config=ROOMY) as copy:
            with log.open("a") as file:
                file.write("reused\n" if copy.reused else "copied\n")
            time.sleep(stay_s)
            wait_for(lambda: len(lines(log)) >= meet)
            return 0 if hash_block(copy.path.read_bytes()) == expected else 1

    return work


def lines(log):
    return log.read_text().split() if log.exists() else []


def grown(node):
    """Whether half a copy is there."""
    return any(path.stat().st_blocks for path in node.rglob("copying/*") if path.is_file())


def test_eight_ranks_at_once_make_one_copy_and_leave_nothing(source, node, tmp_path):
    log = tmp_path / "log"
    ranks = [forked(reading(source, node, log, 0.002, meet=8)) for _ in range(8)]
    assert [each.wait() for each in ranks] == [0] * 8
    assert sorted(lines(log)) == ["copied"] + ["reused"] * 7
    assert names(node) == []


@pytest.mark.parametrize("moment", ["the folder", "the lock"])
def test_a_rank_killed_at_its_first_step_leaves_nothing_that_a_sweep_does_not_take(moment, node):
    def work():
        folder = locks.private_folder(node)
        if moment == "the lock":
            locks.try_lock(folder / f"key{LOCK_SUFFIX}", shared=False)
        os.kill(os.getpid(), signal.SIGKILL)
        return 1

    assert forked(work).wait() == -9
    assert names(node) != []
    staging.sweep_all([node])
    assert names(node) == []


def test_two_jobs_share_a_copy_and_the_last_one_out_removes_it(source, node, tmp_path):
    log = tmp_path / "log"
    short = forked(reading(source, node, log, meet=2))
    long = forked(reading(source, node, log, meet=3))
    assert short.wait() == 0
    assert names(node) and sorted(lines(log)) == ["copied", "reused"]
    with log.open("a") as file:
        file.write("go\n")
    assert long.wait() == 0
    assert names(node) == []


def test_another_rank_takes_over_when_the_copying_one_is_killed(source, node, tmp_path):
    log = tmp_path / "log"
    first = forked(reading(source, node, log, 0.2))
    wait_for(lambda: grown(node))
    waiting = [forked(reading(source, node, log, meet=3)) for _ in range(3)]
    time.sleep(0.1)
    assert first.kill() == -9
    assert [each.wait() for each in waiting] == [0] * 3
    assert sorted(lines(log)) == ["copied", "reused", "reused"]
    assert names(node) == []


def test_a_child_of_a_killed_copier_does_not_keep_the_others_waiting(source, node, tmp_path):
    """A worker forked during the copy would inherit the lock."""

    def work():
        create = copying.create

        def forking(path, size):
            if not (tmp_path / "child").exists():
                child = os.fork()
                if not child:
                    time.sleep(30)
                    os._exit(0)
                (tmp_path / "child").write_text(str(child))
            create(path, size)

        copying.create = forking
        return reading(source, node, tmp_path / "log", 0.02)()

    first = forked(work)
    wait_for(lambda: grown(node) and (tmp_path / "child").exists())
    child = int((tmp_path / "child").read_text())
    assert first.kill() == -9
    try:
        assert forked(reading(source, node, tmp_path / "log")).wait(10) == 0
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize(
    ("number", "handler", "code"),
    [
        *((number, signal.SIG_DFL, -number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)),
        (signal.SIGINT, signal.default_int_handler, 7),
    ],
)
@pytest.mark.parametrize("finished", [False, True])
def test_a_signal_ends_the_process_as_ever_and_leaves_nothing(
    number, handler, code, finished, source, node, tmp_path
):
    log = tmp_path / "log"

    def work():
        signal.signal(number, handler)
        try:
            return reading(source, node, log, 0 if finished else 0.01, 30)()
        except KeyboardInterrupt:
            return 7

    program = forked(work)
    wait_for(lambda: lines(log) if finished else grown(node))
    assert program.kill(number) == code
    assert names(node) == [] and bool(lines(log)) == finished


def test_a_child_that_still_reads_keeps_its_file_when_sigterm_comes(source, node, tmp_path):
    expected = hash_block(source.read_bytes())
    go, answer = tmp_path / "go", tmp_path / "answer"

    def work():
        copy = staging.stage(source, node, config=ROOMY)
        other = staging.stage(packed(tmp_path / "val.arrow", 9), node, config=ROOMY)
        staging.unstage(other.path)  # which takes the clean-up of the first away from nobody
        if os.fork() == 0:
            with copy.path.open("rb") as file:
                data = file.read(MIB)
                (tmp_path / "opened").touch()
                wait_for(go.exists)
                right = hash_block(data + file.read()) == expected
            answer.with_suffix(".part").write_text(str(right))
            answer.with_suffix(".part").replace(answer)
            os._exit(0)
        time.sleep(30)
        return 1

    program = forked(work)
    wait_for((tmp_path / "opened").exists)
    assert program.kill(signal.SIGTERM) == -signal.SIGTERM
    assert names(node) == []
    go.touch()
    wait_for(answer.exists)
    assert answer.read_text() == "True"


def killed_while_using(source, node):
    def work():
        staging.stage(source, node, config=ROOMY)
        os.kill(os.getpid(), signal.SIGKILL)
        return 1

    assert forked(work).wait() == -9


def test_what_a_killed_job_left_is_listed_and_removed_by_the_next(source, node, tmp_path):
    killed_while_using(source, node)
    (left,) = listed(node)
    assert (left.state, left.in_use, left.kept_for) == ("leftover", False, ())
    assert "ended" in left.owner and left.bytes >= source.stat().st_size
    other = packed(tmp_path / "data" / "val.arrow", 1000)
    with staging.staged(other, node, config=ROOMY) as copy:
        assert [found.path for found in listed(node)] == [copy.path]


@pytest.mark.parametrize("boot", [processes.boot(), "another boot"])
def test_a_finished_leftover_of_the_same_content_is_used_unless_the_machine_was_restarted(
    boot, source, node, monkeypatch
):
    killed_while_using(source, node)
    now = processes.boot()
    monkeypatch.setattr(processes, "boot", lambda: boot)
    with staging.staged(source, node, config=ROOMY) as copy:
        assert copy.reused == (boot == now)


def test_what_another_machine_staged_on_shared_storage_is_left_alone(source, node, monkeypatch):
    """Neither its processes nor, on some file systems, its locks are seen from here."""
    for module in (nodelocal, machine):
        seen = module.filesystem
        monkeypatch.setattr(module, "filesystem", lambda path, seen=seen: replace(seen(path), shared=True))
    with monkeypatch.context() as there:
        there.setattr(processes, "boot", lambda: "another boot")
        there.setattr(processes.socket, "gethostname", lambda: "other-node")
        theirs = staging.stage_for_job(source, node, config=ROOMY).path
    with staging.staged(source, node, config=ROOMY) as ours:
        assert not ours.reused and ours.path != theirs
        assert [copy.path for copy in listed(node)] == [ours.path]
    assert staging.sweep_all([node]) == 0 and listed(node) == []
    with pytest.raises(UsageError, match="not a staged copy"):
        staging.unstage(theirs)
    assert theirs.read_bytes() == source.read_bytes()
    shutil.rmtree(theirs.parents[2])


def test_a_killed_jobs_living_worker_keeps_the_copy(source, node, tmp_path):
    def work():
        staging.stage(source, node, config=ROOMY)
        pid = os.fork()
        if pid == 0:
            time.sleep(30)
            os._exit(0)
        (tmp_path / "worker.part").write_text(str(pid))
        (tmp_path / "worker.part").replace(tmp_path / "worker")
        time.sleep(30)
        return 1

    program = forked(work)
    wait_for((tmp_path / "worker").exists)
    worker = int((tmp_path / "worker").read_text())
    assert program.kill() == -9
    assert staging.sweep_all([node]) == 0 and listed(node)[0].in_use
    os.kill(worker, signal.SIGKILL)
    wait_for(lambda: staging.sweep_all([node]))
    assert names(node) == []


def test_waiting_says_for_whom_and_ends_with_a_sentence(source, node, capsys, monkeypatch):
    monkeypatch.setattr(progress, "LOG_INTERVAL_S", 0.01)
    folder = locks.private_folder(node)
    key = staging.placement.find_output(source).key
    slot = Slot(folder, key)
    held = locks.try_lock(slot.lock, shared=False)
    assert held is not None
    slot.begin()
    monkeypatch.setattr(run, "_MOST_WAIT_S", 0.1)
    with pytest.raises(ResourceError, match=f"process {os.getpid()} has been copying"):
        staging.stage(source, node, config=ROOMY)
    assert f"waiting for process {os.getpid()}, which copies train.arrow" in capsys.readouterr().err
    assert [copy.state for copy in listed(node)] == ["being copied"]
    assert not staging.unstage(slot.data / source.name).removed
    slot.remove(held)
    assert names(node) == []


@pytest.mark.parametrize("by_another", [False, True])
def test_a_copy_swept_between_two_locks_is_made_again_or_that_of_another_used(
    by_another, source, node, monkeypatch
):
    share, stolen = locks.downgrade, []

    def let_a_sweeper_in(descriptor):
        if not stolen:
            stolen.append(True)
            locks.fcntl.flock(descriptor, locks.fcntl.LOCK_UN)
            os.ftruncate(descriptor, 0)  # on a full disk it does not name its holder
            assert sweep(locks.private_folder(node))
            if by_another:
                staging.stage(source, node, config=ROOMY)
        share(descriptor)

    monkeypatch.setattr(locks, "downgrade", let_a_sweeper_in)
    with staging.staged(source, node, config=ROOMY) as copy:
        assert copy.path.read_bytes() == source.read_bytes() and stolen
        assert all(locks.is_same_file(use.slot.lock, use.descriptor) for use in run._uses[copy.path])
    run.release_all()
    assert names(node) == []


def storm(source, node, log, kills, seed):
    """Kill ranks at random moments until so many died; survivors must read right bytes."""
    draw, killed = random.Random(seed), 0
    while killed < kills:
        ranks = [forked(reading(source, node, log, draw.choice((0, 0.003)), 0.01)) for _ in range(3)]
        for victim in ranks[: draw.choice((1, 2, 2, 2))]:
            time.sleep(draw.uniform(0, 0.02))
            with suppress(ProcessLookupError):  # it was quicker
                os.kill(victim.pid, draw.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM)))
        codes = [each.wait() for each in ranks]
        assert set(codes) <= {0, -9, -15} and codes[-1] == 0
        killed += sum(code < 0 for code in codes)
    assert staging.sweep_all([node]) <= 1  # what the last one killed left
    assert names(node) == []


def test_random_kills_lose_nothing_and_leave_nothing(node, tmp_path):
    source = packed(tmp_path / "data" / "x.arrow", MIB)
    storm(source, node, tmp_path / "log", 10, 0)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_thousand_random_kills_lose_nothing_and_leave_nothing(tmp_path):
    """Two storms at once, each on a node of its own, since most of a kill is waiting and forking."""
    source = packed(tmp_path / "data" / "x.arrow", MIB)

    def lane(seed):
        (tmp_path / f"node{seed}").mkdir()
        storm(source, tmp_path / f"node{seed}", tmp_path / f"log{seed}", 500, seed)
        return 0

    assert [each.wait(850) for each in [forked(partial(lane, seed)) for seed in (1, 2)]] == [0, 0]
    assert run._locks == {}


def test_a_folder_that_the_last_one_out_removes_is_made_again(node, monkeypatch):
    check, removed = locks.check, []

    def remove_it_first(folder):
        if not removed:
            removed.append(True)
            folder.rmdir()
        check(folder)

    monkeypatch.setattr(locks, "check", remove_it_first)
    folder = locks.private_folder(node)
    assert folder.is_dir() and removed
    folder.rmdir()
