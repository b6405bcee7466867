"""The command line for job scripts: a copy that belongs to the job, its removal, and the list."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from programs import wait_for
from staging_tools import forked, listed, names

from smallfiles import digests, locks, processes, staging
from smallfiles.cli import main
from smallfiles.machine import nodelocal
from smallfiles.staging import broadcast
from smallfiles.staging.slots import Slot, slots

STAGE = f"'{sys.executable}' -m smallfiles stage"
Command = Callable[..., subprocess.CompletedProcess[str]]


def test_stage_prints_the_path_alone_and_the_copy_stays_for_the_job(source, node, command, monkeypatch):
    done = command("stage", source, "--where", node, "--leave-bytes", 0)
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.removesuffix("\n"))
    assert path.read_bytes() == source.read_bytes()
    assert "copied at" in done.stderr and "note: chose" in done.stderr
    again = json.loads(command("stage", source, "--where", node, "--json").stdout)
    assert again["path"] == str(path) and again["reused"] and again["verified"]
    listed = command("staged", "--where", node)
    assert str(path) in listed.stdout and "kept for" in listed.stdout and "finished" in listed.stdout
    assert "removed" in command("unstage", path).stderr
    assert names(node) == []
    assert command("unstage", path).returncode == 0
    monkeypatch.setattr(nodelocal, "named_directories", lambda: [])  # other processes use /dev/shm
    assert "nothing of yours" in command("staged", "--where", node).stderr


def test_a_job_script_stages_uses_and_cleans_up_even_when_it_fails(source, node):
    script = f"""
        set -euo pipefail
        staged=$({STAGE} '{source}' --where '{node}' --leave-bytes 0)
        trap '"{sys.executable}" -m smallfiles unstage "$staged"' EXIT
        cmp "$staged" '{source}' && echo same
        false
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stdout == "same\n", done.stderr
    assert names(node) == []


def test_a_copy_goes_when_the_session_of_its_shell_has_ended(source, node, command):
    """The next command on the node removes it: nobody lives who could."""
    script = f"{STAGE} '{source}' --where '{node}' --leave-bytes 0; kill -9 $$"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=60, start_new_session=True
    )
    assert done.returncode == -9 and Path(done.stdout.strip()).exists()
    assert [copy.state for copy in listed(node)] == ["leftover"]
    assert "removed 1" in command("staged", "--sweep", "--where", node).stderr
    assert names(node) == []


def test_a_session_lives_as_long_as_any_of_its_processes(source, node):
    script = f"""
        {STAGE} '{source}' --where '{node}' --leave-bytes 0 > /dev/null
        sleep 30 > /dev/null 2>&1 &
        echo $!
        kill -9 $$
    """
    done = subprocess.run(
        ["bash", "-c", script], stdout=subprocess.PIPE, text=True, timeout=60, start_new_session=True
    )
    sleeper = int(done.stdout)
    try:
        assert staging.sweep_all([node]) == 0
    finally:
        os.kill(sleeper, 9)
    wait_for(lambda: staging.sweep_all([node]), 10)
    assert names(node) == []


@pytest.mark.parametrize("leader", [os.getpid, lambda: 0])  # itself, or one of another PID namespace
def test_what_a_command_without_a_leader_of_its_session_stages_belongs_to_its_parent(leader, monkeypatch):
    monkeypatch.setattr(processes.os, "getsid", lambda pid: leader())
    owner = processes.this_job()
    assert (owner.text, owner.is_alive()) == (f"process {os.getppid()}", True)


AS_ROOT = ("--user", "--map-root-user") * (os.geteuid() != 0)
IN_A_NAMESPACE = ("unshare", *AS_ROOT, "--pid", "--fork", "--mount-proc")


@pytest.mark.parametrize("within", [(), IN_A_NAMESPACE])  # its session's leader; one that it cannot see
def test_a_shell_that_becomes_its_last_command_keeps_no_copy(source, node, within):
    if within and subprocess.run([*within, "true"], capture_output=True).returncode:
        pytest.skip("no namespace with a mount of its own /proc")
    script = f"""
        staged=$({STAGE} '{source}' --where '{node}' --leave-bytes 0)
        cmp "$staged" '{source}'
        '{sys.executable}' -m smallfiles unstage --where '{node}'"""
    command = [*within, "bash", "-ec", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, start_new_session=True)
    assert (done.returncode, names(node)) == (0, []), done.stderr


def in_job(number):
    return {**os.environ, "SLURM_JOB_ID": number}


def test_two_jobs_of_one_user_share_a_copy_and_each_gives_back_its_own(source, node, command):
    sleepers = [subprocess.Popen(["sleep", "60"], env=in_job(number)) for number in ("901", "902")]
    try:
        words = ("stage", source, "--where", node, "--leave-bytes", 0)
        paths = {command(*words, job=number).stdout.strip() for number in ("901", "902")}
        (path,) = paths
        assert set(listed(node)[0].kept_for) == {"job 901", "job 902"}
        first = command("unstage", path, job="901")
        assert "stays, since it is kept for job 902" in first.stderr and Path(path).exists()
        assert command("unstage", "--where", node, job="902").returncode == 0
        assert names(node) == []
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()


@pytest.mark.parametrize(("kind", "released"), [("job", True), ("session", False)])
def test_a_job_releases_its_lease_from_a_container_too_and_a_session_only_its_own(kind, released, tmp_path):
    slot, me = Slot(tmp_path, "key"), processes.this_process()
    slot.begin()
    slot.acquire(replace(me, kind=kind, name="SLURM_JOB_ID=1" if kind == "job" else "1"))
    slot.release(replace(me, kind=kind, name="SLURM_JOB_ID=1" if kind == "job" else "1", world="pid:[1]"))
    assert (list(slot.leases.iterdir()) == []) is released


def fake_squeue(folder, script):
    folder.mkdir()
    (folder / "squeue").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "squeue").chmod(0o755)


@pytest.mark.parametrize(
    ("script", "alive"),
    [
        ("echo RUNNING", True),
        ("exit 0", False),
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", False),
        ("echo 'Unable to contact slurm controller' >&2; exit 1", None),
    ],
)
def test_the_scheduler_is_asked_about_a_job_without_processes_here(script, alive, tmp_path, monkeypatch):
    fake_squeue(tmp_path / "bin", script)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "77123")
    owner = processes.this_job()
    monkeypatch.delenv("SLURM_JOB_ID")
    assert owner.is_alive() is (alive is not False)  # in doubt it lives
    old = processes.Owner(**{**vars(owner), "since_s": owner.since_s - 2 * processes.GRACE_S})
    assert old.is_alive() is bool(alive)
    assert not processes.Owner(**{**vars(owner), "boot": "another"}).is_alive()


def test_a_process_is_known_by_its_start_time_too(monkeypatch, tmp_path):
    me = processes.this_process()
    assert me.is_alive() and str(os.getpid()) in me.text
    assert not processes.Owner(**{**vars(me), "started": me.started + 1}).is_alive()
    assert processes.Owner(**{**vars(me), "started": 1, "world": "pid:[1]"}).is_alive()  # cannot be known
    ended = forked(lambda: 0)
    assert ended.wait() == 0
    assert processes.start_time(ended.pid) == 0
    monkeypatch.setattr(processes, "_PROC", tmp_path / "none")  # as on macOS
    assert processes.start_time(ended.pid) == 0 < processes.start_time(os.getpid())


def test_unstage_as_json_and_a_wrong_path(source, node, command):
    path = command("stage", source, "--where", node, "--leave-bytes", 0).stdout.strip()
    record = json.loads(command("unstage", path, "--json").stdout)
    copies = [{"path": path, "removed": True, "note": "removed"}]
    assert record == {"samples": 0, "bytes": 0, "seconds": record["seconds"], "copies": copies}
    wrong = command("unstage", source)
    assert wrong.returncode == 2 and "not a staged copy" in wrong.stderr and source.exists()


def test_unstage_removes_a_copy_that_a_listing_looks_at_in_that_moment(source, node, command, monkeypatch):
    path = command("stage", source, "--where", node, "--leave-bytes", 0).stdout.strip()
    (slot,) = slots(next(node.iterdir()))
    listing = [locks.try_lock(slot.lock, shared=False)]
    monkeypatch.setattr("time.sleep", lambda pause_s: listing and os.close(listing.pop()))
    assert "removed" in command("unstage", path).stderr
    assert listing == [] and names(node) == []


def test_a_heavy_copy_on_a_login_node_is_warned_of(source, node, command, monkeypatch):
    from smallfiles import machine

    asked = []
    monkeypatch.setattr(machine, "warn_on_login_node", lambda what, size_bytes: asked.append(size_bytes))
    assert command("stage", source, "--to", node / "scratch").returncode == 0
    assert command("stage", source.parent / "nothing.arrow").returncode == 1
    assert asked == [source.stat().st_size, 0]
    shutil.rmtree(node / "scratch")


@pytest.mark.parametrize("words", [["--where", "."], ["--broadcast"]])
def test_flags_that_contradict_are_a_sentence(words, source, tmp_path):
    assert main(["stage", str(source), "--to", str(tmp_path / "x"), *words]) == 2


@pytest.mark.parametrize(
    ("variables", "note"),
    [
        ({}, "this is no job of Slurm"),
        ({"SLURM_JOB_NODELIST": "n[1-2]", "PATH": ""}, "srun and sbcast and scontrol cannot be found here"),
    ],
)
def test_where_nothing_can_be_broadcast_this_node_copies_and_says_so(
    variables, note, source, node, command, monkeypatch
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    done = command("stage", source, "--where", node, "--broadcast", "--json")
    copy = json.loads(done.stdout)
    assert Path(copy["path"]).read_bytes() == source.read_bytes() and note in copy["notes"][-1]
    assert command("unstage", copy["path"]).returncode == 0


def test_a_dry_run_says_what_would_be_read_and_saved_and_copies_nothing(source, node, command, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "8")
    monkeypatch.setattr(broadcast, "why_not", lambda: None)
    size = source.stat().st_size + digests.sidecar(source).stat().st_size
    for words, read in (((), 8 * size), (("--broadcast",), size)):
        done = command("stage", source, "--where", node, "--dry-run", "--json", *words)
        record = json.loads(done.stdout)
        assert (record["nodes"], record["read_bytes"], record["saved_bytes"]) == (8, read, 8 * size - read)
    assert "would be read from shared storage" in done.stderr and names(node) == []
