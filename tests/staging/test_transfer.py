"""From an archive to scratch: resumable block by block, verified, published at the end."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import pytest
from programs import wait_for
from staging_tools import MIB, forked, names, packed, shards, slowly

from smallfiles import digests, machine, staging
from smallfiles.atomic import bytes_and_files_in
from smallfiles.errors import BusyError, OutputExistsError, ResourceError, UsageError
from smallfiles.staging import copying


def same(source, copy):
    if source.is_dir():
        return names(source) == names(copy) and all(
            (source / name).read_bytes() == (copy / name).read_bytes() for name in names(source)
        )
    return source.read_bytes() == copy.read_bytes()


@pytest.mark.parametrize("folder", [False, True])
def test_a_copy_is_published_whole_with_what_lies_beside_it(folder, tmp_path):
    source = shards(tmp_path / "a" / "x.tars") if folder else packed(tmp_path / "a" / "x.arrow")
    began = time.perf_counter()
    copy = staging.stage_to(source, tmp_path / "new" / "scratch")
    assert 0 < copy.seconds < time.perf_counter() - began and copy.files == len(names(source.parent)) - folder
    assert copy.rate == pytest.approx(copy.bytes / copy.seconds)
    assert copy.path == tmp_path / "new" / "scratch" / source.name and copy.verified and not copy.reused
    assert same(source, copy.path)
    assert names(copy.path.parent) == names(source.parent)  # nothing else is left
    assert copy.path.stat().st_mode & 0o077 == source.stat().st_mode & 0o077  # as the umask says
    again = staging.stage_to(source, tmp_path / "new" / "scratch")
    assert again.reused and not again.verified and again.rate == 0
    assert "of the same size and digest" in again.notes[0]


def test_a_file_without_digest_gets_one_and_is_known_again_by_its_time(tmp_path):
    source = packed(tmp_path / "a" / "x.arrow", digest=False)
    copy = staging.stage_to(source, tmp_path / "b")
    assert not copy.verified and "not verified against a digest" in copy.notes[0]
    assert digests.ContentDigest.load(digests.sidecar(copy.path)).damaged_blocks(copy.path) == []
    again = staging.stage_to(source, tmp_path / "b")
    assert again.reused and "of the same size and time" in again.notes[0]


@pytest.mark.parametrize(
    ("change", "digest"), [("size", True), ("size", False), ("time", False), ("bytes", True)]
)
def test_a_copy_of_another_size_time_or_digest_is_neither_reused_nor_overwritten(change, digest, tmp_path):
    source = packed(tmp_path / "a" / "x.arrow", 1000, digest=digest)
    copy = staging.stage_to(source, tmp_path / "b").path
    found = copy.stat()
    if change == "bytes":
        packed(copy, 1000, seed=5)
    elif change == "size":
        os.truncate(copy, 999)
    os.utime(copy, ns=(1, 1 if change == "time" else found.st_mtime_ns))
    before = copy.read_bytes()
    with pytest.raises(OutputExistsError):
        staging.stage_to(source, tmp_path / "b")
    assert copy.read_bytes() == before


def test_a_copy_into_its_source_is_refused(source, tmp_path):
    for wrong in (source.parent, shards(tmp_path / "s.tars")):
        with pytest.raises(UsageError, match="source itself"):
            staging.stage_to(source if wrong == source.parent else wrong, wrong)


@pytest.mark.parametrize("digest", [True, False])
def test_a_killed_transfer_goes_on_where_its_digest_says_that_it_was(digest, tmp_path):
    source = packed(tmp_path / "a" / "x.arrow", 24 * MIB, digest=digest)
    scratch = tmp_path / "scratch"
    growing = scratch / ".x.arrow.packing" / "data" / "x.arrow"

    def work():
        slowly(0.004)
        staging.stage_to(source, scratch)
        return 0

    program = forked(work)
    wait_for(lambda: growing.exists() and growing.stat().st_blocks * 512 > 12 * MIB)
    assert program.kill() == -9
    assert not (scratch / "x.arrow").exists()
    copy = staging.stage_to(source, scratch)
    assert same(source, copy.path) and any("by an earlier run" in note for note in copy.notes) == digest


def interrupted(source, scratch, monkeypatch, after):
    """Leave half a transfer, as a full disk does; the folder of what is there."""
    write, done = copying.write_all, []

    def failing(*words):
        done.append(1)
        if len(done) > after:
            raise ResourceError("no room", expected="room", next_step="Make some")
        return write(*words)

    with monkeypatch.context() as patch:
        patch.setattr(copying, "write_all", failing)
        with pytest.raises(ResourceError, match="no room"):
            staging.stage_to(source, scratch)
    return scratch / f".{source.name}.packing"


@pytest.mark.parametrize("packed_again", [False, True])
def test_damaged_blocks_are_copied_again_and_those_of_an_older_source_too(
    packed_again, tmp_path, monkeypatch
):
    source = packed(tmp_path / "a" / "x.arrow", 24 * MIB)
    draft, real = interrupted(source, tmp_path / "b", monkeypatch, 14), machine.filesystem
    missing = staging.placement.find_output(source).bytes - bytes_and_files_in(draft)[0]
    monkeypatch.setattr(machine, "filesystem", lambda path: replace(real(path), free_bytes=missing))
    if packed_again:
        packed(source, 24 * MIB, seed=8)
        (draft / "data" / "x.arrow.idx").touch()  # the older one had an index
    else:
        with (draft / "data" / "x.arrow").open("r+b") as file:
            file.write(b"a power cut")
    copy = staging.stage_to(source, tmp_path / "b")
    assert same(source, copy.path) and (not copy.notes or not packed_again)
    assert names(copy.path.parent) == names(source.parent)


def test_many_transfers_at_once_end_in_one_copy_and_in_sentences(source, tmp_path):
    """One copies; the others find it finished or are turned away, and nobody meets a raw error."""
    for number in range(3):
        scratch, start = tmp_path / f"b{number}", tmp_path / f"start {number}"

        def work(scratch=scratch, start=start):
            while not start.exists():
                pass
            try:
                staging.stage_to(source, scratch)
            except BusyError as error:
                return 0 if "another run is staging" in str(error) else 5
            except Exception as error:
                start.with_suffix(".error").write_text(f"{type(error).__name__}: {error}")
                return 4
            return 0

        programs = [forked(work) for _ in range(4)]
        start.touch()
        codes = [each.wait() for each in programs]
        told = start.with_suffix(".error")
        assert set(codes) == {0}, told.read_text() if told.exists() else codes
        assert same(source, scratch / source.name)
        assert names(scratch) == names(source.parent)


def test_too_little_room_is_told_before_the_first_byte(source, tmp_path, monkeypatch):
    real, need = machine.filesystem, staging.placement.find_output(source).bytes
    for lack, word in (({"free_bytes": need - 1}, "9.4 MB free"), ({"inodes_free": 101}, "101 inodes free")):
        monkeypatch.setattr(machine, "filesystem", lambda path, lack=lack: replace(real(path), **lack))
        with pytest.raises(ResourceError, match=word):
            staging.stage_to(source, tmp_path / "b")
    assert names(tmp_path / "b") == []
    enough = {"free_bytes": need, "inodes_free": 102}
    monkeypatch.setattr(machine, "filesystem", lambda path: replace(real(path), **enough))
    assert same(source, staging.stage_to(source, tmp_path / "b").path)


def test_large_files_on_lustre_are_striped_before_the_first_byte_where_that_works(
    source, tmp_path, monkeypatch
):
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "lfs").write_text(
        f'#!/bin/sh\necho "$@" >> "{tmp_path}/called"; ls -A "$4" >> "{tmp_path}/called"; exit 1\n'
    )
    (tools / "lfs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    real = machine.filesystem
    staging.stage_to(source, tmp_path / "local")
    monkeypatch.setattr("smallfiles.machine.filesystems.STRIPED_BYTES", MIB)
    monkeypatch.setattr(machine, "filesystem", lambda path: replace(real(path), kind="lustre"))
    assert same(source, staging.stage_to(source, tmp_path / "lustre").path)
    (call,) = (tmp_path / "called").read_text().splitlines()
    assert call == f"setstripe -c 4 {tmp_path}/lustre/.{source.name}.packing/data"


def test_the_command_prints_where_the_copy_is(source, tmp_path, command):
    done = command("stage", source, "--to", tmp_path / "b")
    assert done.returncode == 0 and done.stdout == f"{tmp_path / 'b' / source.name}\n"
    assert "there already" in command("stage", source, "--to", tmp_path / "b").stderr
