"""Full disks, memory limits, changed and damaged sources, other people's folders: a sentence each."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from programs import bound_by_modes, on_small_disk
from staging_tools import MIB, ROOMY, listed, names, packed

from smallfiles import digests, locks, staging
from smallfiles.cli import main
from smallfiles.errors import DamagedFileError, ResourceError, SmallfilesError, SourceError
from smallfiles.machine import nodelocal
from smallfiles.staging import copying, placement, run

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to act for two users")


@pytest.mark.parametrize("limit", ["size=6m", "size=50m,nr_inodes=6"])
def test_a_disk_that_fills_in_the_middle_gives_a_sentence_and_is_left_empty(
    limit, source, tmp_path, monkeypatch
):
    """Another program fills the disk after the check for room: leaving the check out stands for it."""
    before, small = source.read_bytes(), str(tmp_path / "small")
    monkeypatch.setattr(placement, "check_room", lambda *words: None)
    done = on_small_disk(tmp_path / "small", limit, main, ["stage", str(source), "--where", small])
    assert (done.returncode, done.stdout) == (1, "left []\n"), done.stderr
    assert "No space left on device" in done.stderr and "Traceback" not in done.stderr
    assert source.read_bytes() == before


def test_a_full_scratch_keeps_what_was_copied_for_the_next_run(source, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "check_room", lambda *words: None)
    words = ["stage", str(source), "--to", str(tmp_path / "small")]
    done = on_small_disk(tmp_path / "small", "size=6m", main, words)
    assert (done.returncode, done.stdout) == (1, "left ['.train.arrow.packing']\n")
    assert "No space left on device" in done.stderr and "Traceback" not in done.stderr


def test_where_auto_goes_on_to_the_next_place_when_one_is_full(source, tmp_path, node, monkeypatch):
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.setenv("SLURM_TMPDIR", str(other))
    monkeypatch.setenv("L_SCRATCH", str(node))
    real = nodelocal.node_local

    def measured(path, *words):
        found = real(path, *words)
        return dataclasses.replace(found, free_bytes=MIB) if path == other else found

    monkeypatch.setattr(nodelocal, "node_local", measured)
    monkeypatch.setattr(placement, "_same_storage", lambda *paths: False)
    with staging.staged(source, config=ROOMY) as copy:
        assert node in copy.path.parents
        assert any(str(other) in note and "1.0 MB free" in note for note in copy.notes)
    assert names(other) == []


def test_no_place_at_all_is_a_sentence_that_names_each(source, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "gone"))
    monkeypatch.setattr(nodelocal, "memory_headroom_bytes", lambda *words: 3 * MIB)
    with pytest.raises(ResourceError, match=r"gone does not exist; /dev/shm has 3\.1 MB memory left"):
        staging.stage(source)


@pytest.fixture
def limited_group():
    """A control group (v1) of 300 MB in which a child may live."""
    from smallfiles.machine import own_groups

    own = [folder for version, folder in own_groups("memory", Path("/")) if version == 1]
    group = own[-1] / "smallfiles-test" if own else Path("/nonexistent")
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(300 * MIB))
    except OSError:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip("no memory control group can be made here")
    yield group
    group.rmdir()


def test_a_memory_limit_below_the_file_is_a_sentence_and_no_killed_job(limited_group, tmp_path):
    source = packed(tmp_path / "big.arrow", 1)
    with source.open("r+b") as file:
        file.truncate(400 * MIB)
    digests.sidecar(source).unlink()
    script = 'echo $$ > "$1/cgroup.procs" && shift && exec "$@"'
    command = [sys.executable, "-m", "smallfiles", "stage", str(source), "--where", "/dev/shm"]
    done = subprocess.run(
        ["sh", "-c", script, "sh", str(limited_group), *command], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1, done.stderr
    assert "memory left to this job" in done.stderr and "419 MB for big.arrow" in done.stderr


CHANGES = {
    "append": lambda path: path.write_bytes(path.read_bytes() + b"more"),
    "rewrite": lambda path: path.write_bytes(b"other" + path.read_bytes()[5:]),
    "replace": lambda path: packed(path.with_name("new"), seed=3, digest=False).replace(path),
    "cut": lambda path: os.truncate(path, 5 * MIB),
    "remove": Path.unlink,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_source_that_changes_during_the_copy_is_noticed(change, source, node, monkeypatch):
    digests.sidecar(source).unlink()
    write, changed = copying.write_all, []

    def meddle(target, data, position, path):
        if not changed and position >= 4 * MIB:
            changed.append(True)
            change(source)
        return write(target, data, position, path)

    monkeypatch.setattr(copying, "write_all", meddle)
    with pytest.raises(SourceError, match=r"train\.arrow changed while it was copied"):
        staging.stage(source, node, config=ROOMY)
    assert names(node) == []


@pytest.mark.parametrize(
    ("stage", "place", "told"),
    [
        (partial(staging.stage, config=ROOMY), 5 * MIB, r"block 1 \(bytes 4,194,304 to 8,388,607\)"),
        (staging.stage_to, 9 * MIB, r"block 2 \(bytes 8,388,608 to 9,449,528\)"),
    ],
)
def test_a_damaged_source_is_named_by_block_and_nothing_is_published(stage, place, told, source, node):
    with source.open("r+b") as file:
        file.seek(place)
        file.write(b"flipped")
    with pytest.raises(DamagedFileError, match=rf"train\.arrow is not what was packed: {told}"):
        stage(source, node)
    assert not [path for path in node.rglob(source.name) if ".packing" not in str(path)]
    shutil.rmtree(node / f".{source.name}.packing", ignore_errors=True)


def test_a_read_error_names_the_source(source, node, monkeypatch):
    def broken(*words):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(copying.os, "preadv", broken)
    with pytest.raises(SourceError, match=r"train\.arrow cannot be read \(Permission denied\)"):
        staging.stage(source, node, config=ROOMY)


@pytest.mark.parametrize("stage", [staging.stage, staging.stage_to])
def test_a_target_without_permission_is_a_sentence(stage, source, node):
    node.chmod(0o555)
    with pytest.raises(ResourceError, match="writ"):
        bound_by_modes(stage, source, node)


@pytest.mark.parametrize("planted", ["link", "dangling", "file", "lax"])
def test_what_was_planted_under_our_name_is_neither_followed_nor_touched(planted, source, tmp_path, node):
    ours, theirs = node / locks.folder_name(), tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "precious").write_text("mine")
    if planted in ("link", "dangling"):
        ours.symlink_to(theirs if planted == "link" else tmp_path / "nowhere")
    elif planted == "file":
        ours.write_text("in the way")
    else:
        ours.mkdir()
        ours.chmod(0o777)
    with pytest.raises(ResourceError, match=r"symbolic link|not a folder|open to others"):
        staging.stage(source, node, config=ROOMY)
    assert listed(node) == []
    assert [one for one in staging.unstage_all([node]) if node in one.path.parents] == []  # not /dev/shm
    assert names(theirs) == ["precious"] and not (tmp_path / "nowhere").exists()
    assert names(node) == [ours.name]
    ours.rmdir() if planted == "lax" else ours.unlink()


@needs_root
def test_a_folder_of_another_user_is_refused_and_auto_goes_elsewhere(source, tmp_path, node, monkeypatch):
    node.chmod(0o1777)
    ours = node / locks.folder_name()
    ours.mkdir(mode=0o700)
    os.chown(ours, 65534, 65534)
    with pytest.raises(ResourceError, match=r"belongs to another user \(uid 65534\)"):
        staging.stage(source, node, config=ROOMY)
    monkeypatch.setenv("SLURM_TMPDIR", str(node))
    monkeypatch.setattr(placement, "_same_storage", lambda *paths: False)
    with staging.staged(source, config=ROOMY) as copy:
        assert Path("/dev/shm") in copy.path.parents
        assert any("belongs to another user" in note for note in copy.notes)
    ours.rmdir()


def test_a_place_where_anybody_may_rename_is_refused(source, node):
    node.chmod(0o777)
    with pytest.raises(ResourceError, match="sticky bit"):
        staging.stage(source, node, config=ROOMY)


def test_a_link_in_place_of_a_lock_is_not_followed(source, tmp_path, node):
    from smallfiles.staging import placement

    ours = locks.private_folder(node)
    key = placement.find_output(source).key
    (ours / f"{key}.lock").symlink_to(tmp_path / "victim")
    with pytest.raises(SmallfilesError):
        staging.stage(source, node, config=ROOMY)
    assert not (tmp_path / "victim").exists()
    shutil.rmtree(ours)
