"""One process: what is copied, where to, what is reused, when it goes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from itertools import chain, pairwise
from pathlib import Path

import pytest
from programs import bound_by_modes
from staging_tools import MIB, ROOMY, forked, listed, names, packed, shards

from smallfiles import digests, locks, processes, slowfs, staging
from smallfiles.errors import DamagedFileError, FormatError, ResourceError, SourceError, UsageError
from smallfiles.slowfs import CHARGED, SlowConfig
from smallfiles.staging import copying, placement
from smallfiles.staging.slots import Slot


def test_a_copy_is_equal_private_and_goes_with_its_block(source, node):
    began = time.perf_counter()
    with staging.staged(source, node, config=ROOMY) as copy:
        assert copy.path.read_bytes() == source.read_bytes()
        assert copy.path.name == source.name and node in copy.path.parents
        beside = digests.sidecar(copy.path)
        assert beside.read_bytes() == digests.sidecar(source).read_bytes()
        assert (copy.bytes, copy.files, copy.verified, copy.reused) == (
            source.stat().st_size + beside.stat().st_size,
            2,
            True,
            False,
        )
        until_now_s = time.perf_counter() - began
        assert 0 < copy.seconds < until_now_s and copy.rate > copy.bytes / copy.seconds
        (found,) = listed(node)
        assert 0 <= found.age_s <= until_now_s
        ours, home = node / locks.folder_name(), copy.path.parents[1]
        assert ours.stat().st_mode & 0o777 == 0o700 and copy.path.stat().st_mode & 0o777 == 0o400
        assert {path.stat().st_mode & 0o777 for path in (home / "data", home / "leases")} == {0o700}
    assert names(node) == []


@pytest.mark.parametrize("size", [0, 1, MIB, 4 * MIB, 4 * MIB + 1, 12 * MIB - 1])
def test_every_size_is_copied_whole(size, tmp_path, node):
    source = packed(tmp_path / "x.h5", size, seed=size)
    with staging.staged(source, node, config=ROOMY) as copy:
        assert copy.path.read_bytes() == source.read_bytes()


@pytest.mark.parametrize(
    "stage",
    [staging.stage, staging.stage_for_job, lambda *words, **more: staging.staged(*words, **more).__enter__()],
)
def test_every_kind_of_staging_leaves_the_room_that_was_asked_for(stage, source, node):
    with pytest.raises(ResourceError, match="in addition"):
        stage(source, node, config=staging.StageConfig(leave_bytes=1 << 60))


def test_a_block_is_announced_as_a_whole_before_its_first_piece_is_read(tmp_path, node, monkeypatch):
    asked, source = [], packed(tmp_path / "x.h5", 9 * MIB + 5, digest=False)
    monkeypatch.setattr(os, "posix_fadvise", lambda descriptor, *words: asked.append(words))
    with staging.staged(source, node, config=ROOMY):
        blocks = [(0, 4 * MIB), (4 * MIB, 4 * MIB), (8 * MIB, MIB + 5)]
        assert sorted(asked) == [(*block, os.POSIX_FADV_WILLNEED) for block in blocks]


def test_many_shards_are_copied_with_few_open_files_and_in_slices(tmp_path, node, monkeypatch):
    opened, write = [len(os.listdir("/proc/self/fd"))], copying.write_all

    def counting(*words):
        opened.append(len(os.listdir("/proc/self/fd")))
        return write(*words)

    monkeypatch.setattr(copying, "write_all", counting)
    monkeypatch.setattr(copying, "_SLICE", 7)
    folder = shards(tmp_path / "x.tars", 30, 1000)
    with staging.staged(folder, node, config=ROOMY) as copy:
        assert names(copy.path) == names(folder)
        assert all((copy.path / name).read_bytes() == (folder / name).read_bytes() for name in names(folder))
    assert max(opened) < opened[0] + 40  # of 180, sources and copies


def test_what_an_earlier_run_copied_is_kept_block_by_block_where_its_digest_proves_it(source, tmp_path):
    output, out, size = placement.find_output(source), tmp_path / "out", source.stat().st_size
    out.mkdir()
    told = [source.name, digests.sidecar(source).name]
    assert copying.copy_files(output, out, resume=True) == (told, 0)
    assert copying.copy_files(output, out, resume=True) == (told, size)
    assert copying.copy_files(output, out) == (told, 0)
    with (out / source.name).open("r+b") as file:
        file.seek(4 * MIB)
        file.write(b"a power cut")
    assert copying.copy_files(output, out, resume=True) == (told, size - 4 * MIB)
    assert (out / source.name).read_bytes() == source.read_bytes()
    (out / source.name).unlink()
    (out / source.name).symlink_to(tmp_path / "victim")
    with pytest.raises(ResourceError, match=r"train\.arrow cannot be written"):
        copying.copy_files(output, out, resume=True)
    assert not (tmp_path / "victim").exists()


BLOCK = digests.BLOCK_BYTES
PARTS = [  # bytes of a file, about bytes of a part, number of parts, first byte and end of the last
    (0, 0, 1, 0, 0),
    (2 * BLOCK + 1, 0, 3, 2 * BLOCK, 2 * BLOCK + 1),
    (5 * BLOCK, BLOCK + 1, 3, 4 * BLOCK, 5 * BLOCK),
    (9_999 * BLOCK + 9_998, 1, 10_000, 9_999 * BLOCK, 9_999 * BLOCK + 9_998),  # the most that a store takes
    (9_999 * BLOCK + 9_999, 1, 5_000, 9_998 * BLOCK, 9_999 * BLOCK + 9_999),
]


@pytest.mark.parametrize(("size", "part_bytes", "count", "first", "end"), PARTS)
def test_a_file_is_divided_into_parts_of_whole_blocks(size, part_bytes, count, first, end):
    files = [placement.Member("x", Path("x"), each, (0, 0, 0, 0), None, True) for each in (5, size)]
    parts = copying.parts_of(files, part_bytes, [1])
    assert (len(parts), parts[-1].start, parts[-1].stop) == (count, first, end)
    assert [(part.file, part.number) for part in parts] == [(1, number + 1) for number in range(count)]
    assert [*chain(*(part.blocks for part in parts))] == [*range(-(-size // BLOCK))]
    assert all(before.stop == after.start for before, after in pairwise(parts))


@pytest.mark.skipif(slowfs.why_not() is not None, reason=f"no FUSE: {slowfs.why_not()}")
def test_a_server_is_asked_little_and_not_one_thing_after_the_other(tmp_path, node):
    """One after the other, 20 shards would be 200 questions of 0.1 s."""
    source = packed(tmp_path / "shown" / "x.arrow")
    folder = shards(tmp_path / "shown" / "x.tars", 20)
    with slowfs.mounted(tmp_path / "shown", SlowConfig(latency_s=0.1)) as slow:
        with staging.staged(slow.path / source.name, node, config=ROOMY) as copy:
            assert copy.verified and copy.files == 2
        asked = slow.counts()
        assert sum(asked[kind] for kind in CHARGED) <= 14
        began = time.perf_counter()
        found = placement.find_output(slow.path / folder.name)
        assert time.perf_counter() - began < 200 * 0.1
    assert len(found.members) == 60 and found.has_digests and found.shared


def test_a_digest_that_never_ends_is_not_waited_for(tmp_path):
    source = packed(tmp_path / "x.arrow", digest=False)
    os.mkfifo(f"{source}.digest.json")
    with pytest.raises(FormatError, match="no plain file"):
        placement.find_output(source)


def test_a_folder_that_may_not_be_listed_is_asked_about_each_name(tmp_path):
    source = packed(tmp_path / "closed" / "x.arrow")
    source.with_name("x.arrow.idx").write_text("v1.2 0")
    known = placement.find_output(source)
    assert [member.name for member in known.members] == ["x.arrow", "x.arrow.digest.json", "x.arrow.idx"]
    source.parent.chmod(0o300)
    assert bound_by_modes(placement.find_output, source) == known
    source.parent.chmod(0o700)


def test_a_file_without_a_digest_is_copied_and_the_digest_computed_and_said(tmp_path, node):
    source = packed(tmp_path / "x.arrow", digest=False)
    with staging.staged(source, node, config=ROOMY) as copy:
        assert not copy.verified and any("not verified against a digest" in note for note in copy.notes)
        assert digests.ContentDigest.load(digests.sidecar(copy.path)) == digests.digest_file(source)


def test_a_second_call_uses_the_same_copy_and_the_last_one_out_removes_it(source, node):
    first = staging.stage(source, node, config=ROOMY)
    second = staging.stage(source, node, config=ROOMY)
    assert second.path == first.path and second.reused and second.rate == 0
    assert not staging.unstage(first.path).removed
    assert first.path.exists()
    assert staging.unstage(second.path).removed
    assert names(node) == []
    assert staging.unstage(first.path).removed  # gone already is no failure


def test_a_file_that_was_packed_again_never_meets_its_old_copy(source, node):
    with staging.staged(source, node, config=ROOMY) as old:
        packed(source, seed=1)
        with staging.staged(source, node, config=ROOMY) as new:
            assert new.path != old.path and not new.reused
            assert new.path.read_bytes() == source.read_bytes() != old.path.read_bytes()


def other_bytes(copy):
    copy.chmod(0o600)
    copy.write_bytes(bytes(copy.stat().st_size))


def other_size(copy):
    found = copy.stat()
    copy.chmod(0o600)
    with copy.open("ab") as file:
        file.write(b"more")
    os.utime(copy, ns=(found.st_atime_ns, found.st_mtime_ns))


@pytest.mark.parametrize("change", [other_bytes, other_size, None])
def test_a_copy_that_somebody_changed_is_not_reused(change, source, node):
    kept = staging.stage_for_job(source, node, config=ROOMY).path
    if change is not None:
        change(kept)
    with staging.staged(source, node, config=ROOMY) as again:
        assert again.reused == (change is None) and again.path.read_bytes() == source.read_bytes()
    staging.unstage(kept)


NO_RECORDS = (
    b"",
    b"\xff",
    b"[]",
    b"{}",
    b'"x"',
    b'{"boot": 0, "files": []}',
    b'{"boot": 0, "files": {"x": 1}}',
)


@pytest.mark.parametrize("text", [None, *NO_RECORDS])
def test_a_damaged_marker_owner_or_lease_is_like_none(text, tmp_path):
    slot = Slot(tmp_path, "key")
    slot.begin()
    (slot.home / "owner.json").unlink()
    for file in (slot.marker, slot.home / "owner.json", slot.leases / "a.json") if text is not None else ():
        file.write_bytes(text.replace(b"0", json.dumps(processes.boot()).encode()))
    assert (slot.facts(), slot.owner(), slot.holders()) == (None, None, [])


def test_half_a_copy_is_open_to_nobody_else(source, node, monkeypatch):
    seen, create = set(), copying.create

    def looking(path, size):
        seen.add(path.parent.stat().st_mode & 0o777)
        create(path, size)

    monkeypatch.setattr(copying, "create", looking)
    staging.unstage(staging.stage(source, node, config=ROOMY).path)
    assert seen == {0o700}


def test_a_copy_that_cannot_be_removed_whole_is_trusted_by_nobody(source, node, monkeypatch):
    copy, remove, calls = staging.stage(source, node, config=ROOMY).path, shutil.rmtree, iter(range(5))
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *words, **more: None)  # a server that does not answer now
        staging.unstage(copy)
        assert copy.exists() and [each.state for each in listed(node)] == ["leftover"]
        patch.setattr(shutil, "rmtree", lambda *words, **more: next(calls) and remove(*words, **more))
        assert staging.sweep_all([node]) == 1 and not copy.exists() and next(calls) == 2  # the second time
        patch.setattr(shutil, "rmtree", lambda *words, **more: None)
        staging.unstage(staging.stage(source, node, config=ROOMY).path)
    with staging.staged(source, node, config=ROOMY) as again:
        assert not again.reused


def test_who_leaves_a_copy_whose_lock_was_replaced_removes_nothing(source, node):
    copy = staging.stage(source, node, config=ROOMY).path
    (lock,) = node.rglob("*.lock")
    lock.unlink()
    lock.touch(0o600)  # another process has swept the slot, and makes its own
    staging.unstage(copy)
    assert copy.exists()
    staging.sweep_all([node])


def test_a_folder_of_shards_is_copied_with_what_lies_beside_it(tmp_path, node):
    folder = shards(tmp_path / "train.tars")
    (tmp_path / "train.tars.faults.json").write_text("{}")
    with staging.staged(folder, node, config=ROOMY) as copy:
        assert (copy.path.parent / "train.tars.faults.json").exists()


def test_what_cannot_be_staged_is_a_sentence(tmp_path, node):
    (tmp_path / "x.jpg").touch()
    for missing in (tmp_path / "gone.arrow", tmp_path / "x.jpg" / "below"):
        with pytest.raises(SourceError, match=rf"{missing.name} cannot be read \(No such file"):
            staging.stage(missing, node)
    (tmp_path / "deep" / "class").mkdir(parents=True)
    with pytest.raises(UsageError, match="Pack it first"):
        staging.stage(tmp_path / "deep", node)
    with pytest.raises(SourceError, match="empty folder"):
        staging.stage(tmp_path / "deep" / "class", node)
    os.mkfifo(tmp_path / "pipe.arrow")
    with pytest.raises(SourceError, match="neither a file nor a folder"):
        staging.stage(tmp_path / "pipe.arrow", node)


def test_a_size_that_is_not_the_digests_is_refused_before_copying(source, node):
    with source.open("ab") as file:
        file.write(b"more")
    with pytest.raises(DamagedFileError, match="of its digest"):
        staging.stage(source, node, config=ROOMY)


def test_a_changed_digest_changes_the_key_and_so_does_a_new_time_without_one(tmp_path):
    source = packed(tmp_path / "x.arrow", 5000)
    first = placement.find_output(source).key
    assert placement.find_output(packed(tmp_path / "elsewhere" / "x.arrow", 5000)).key == first
    os.utime(source, ns=(1, 1))
    assert placement.find_output(source).key == first
    digests.sidecar(source).unlink()
    bare = placement.find_output(source).key
    os.utime(source, ns=(2, 2))
    assert len({first, bare, placement.find_output(source).key}) == 3


def test_a_previous_handler_stays_in_charge_and_exit_cleans_up(source, node):
    """A training that saves its state on SIGTERM may read on: the copy stays until it exits."""

    def work():
        seen = []
        signal.signal(signal.SIGTERM, lambda *_: seen.append(1))
        copy = staging.stage(source, node, config=ROOMY)
        os.kill(os.getpid(), signal.SIGTERM)
        return 0 if seen and copy.path.exists() else 1

    assert forked(work).wait() == 0
    assert names(node) == []


def test_a_forked_worker_that_ends_takes_nothing_away(source, node):
    with staging.staged(source, node, config=ROOMY) as copy:
        assert forked(lambda: 0 if copy.path.exists() else 1).wait() == 0
        assert copy.path.exists()
