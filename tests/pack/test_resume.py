"""What an earlier run left: used if it is whole, made again if not, and what it saves is not asked for."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from packing import contents, make_tree
from programs import Program

from smallfiles import formats, machine, sources
from smallfiles.cli import main
from smallfiles.errors import OutputExistsError, PackError, ResourceError
from smallfiles.formats import tar
from smallfiles.pack import PackConfig, pack, verify
from smallfiles.pack.writing import DataFileRecord

EIGHT = formats.get("tar").Options(max_count=5)


def the_disk_goes():
    raise ResourceError("the disk is gone", expected="it", next_step="Look for it")


def interrupted(source, out, config, after, end=the_disk_goes):
    """Pack until `after` shards are written, then have the storage fail; the folder of finished ones."""
    write, done = tar.write_shard, []

    def failing(*words, **named):
        done.append(1)
        if len(done) > after:
            end()
        return write(*words, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tar, "write_shard", failing)
        with pytest.raises(ResourceError, match="the disk is gone"):
            pack(source, out, config)
    return finished_shards(out)


def finished_shards(out):
    return out.parent / f".{out.name}.packing" / "data" / out.name


def zeros(path):
    """What a power cut leaves of bytes that were never synced: the size is right."""
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[: size // 2] + bytes(size - size // 2))


@pytest.mark.parametrize(
    "config",
    [
        PackConfig(options=EIGHT),
        PackConfig(options=EIGHT, digest=False),
        PackConfig(options=EIGHT, digest=False, verify="none"),
    ],
    ids=["digest", "no digest", "nothing to compare with"],
)
def test_a_finished_shard_that_lost_its_bytes_is_written_again(config, source, tmp_path):
    (tmp_path / "calm").mkdir()
    calm = tmp_path / "calm" / "out.tars"
    pack(source, calm, config)
    out = tmp_path / "out.tars"
    finished = interrupted(source, out, config, after=4)
    zeros(finished / "shard-000001.tar")
    zeros(next(finished.glob("shard-000002.tar.i*")))
    report = pack(source, out, config)
    assert contents(out) == contents(calm)
    assert report.resumed == (0 if config.verify == "none" else 10)


def test_a_shard_is_synced_before_it_is_called_finished(source, tmp_path, monkeypatch):
    fsync, rename, synced, finished = os.fsync, Path.rename, set(), []

    def noting(descriptor):
        synced.add(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def moving(self, target):
        if self.parent.name.startswith("partial"):
            assert {self.name, "shard-000000.tar.checksums.npy"} <= synced, f"{self.name} was not synced"
            finished.append(self.name)
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", noting)
    monkeypatch.setattr(Path, "rename", moving)
    pack(source, tmp_path / "out.tars", PackConfig(options=EIGHT))
    assert len([name for name in finished if name.endswith(".tar")]) == 8


def test_finished_shards_are_not_written_again_and_those_of_other_options_are_cleared(source, tmp_path):
    config, out = PackConfig(options=EIGHT, shuffle=1), tmp_path / "out.tars"
    run = Program(interrupted, source, out, config, 6, lambda: os.kill(os.getpid(), signal.SIGKILL))
    assert run.wait() == -signal.SIGKILL
    run.end()
    before = {path.name: path.stat().st_mtime_ns for path in finished_shards(out).glob("*.tar")}
    assert 3 <= len(before) < 8 and pack(source, out, config).resumed >= 15
    assert before.items() <= {path.name: path.stat().st_mtime_ns for path in out.iterdir()}.items()
    out = tmp_path / "other.tars"
    interrupted(source, out, config, after=3)
    report = pack(source, out, dataclasses.replace(config, shuffle=2, verify="full"))
    assert report.resumed == 0 and verify(out, source).intact


def lacking(monkeypatch, free_bytes):
    real = machine.filesystem
    monkeypatch.setattr(
        machine, "filesystem", lambda path: dataclasses.replace(real(path), free_bytes=free_bytes)
    )


def test_a_run_that_resumes_or_merges_asks_only_for_the_room_that_is_missing(tmp_path, monkeypatch):
    source = sources.load(make_tree(tmp_path / "tree", 40, size=50_000))  # 2 MB
    config, out, parts = PackConfig(options=EIGHT), tmp_path / "out.tars", tmp_path / "parts.tars"
    with monkeypatch.context() as patch:
        lacking(patch, 700_000)
        with pytest.raises(ResourceError, match="700 kB free"):
            pack(source, out, config)
    interrupted(source, out, config, after=6)
    for part in ((1, 2), (2, 2)):
        pack(source, parts, dataclasses.replace(config, part=part))
    lacking(monkeypatch, 700_000)
    assert pack(source, out, config).resumed == 30
    lacking(monkeypatch, 200_000)
    assert pack(source, parts, dataclasses.replace(config, merge=True)).samples == 40  # it links them


def test_a_finished_part_that_is_run_again_says_so_and_that_of_another_run_is_refused(tree, tmp_path, capsys):
    source, out, part = sources.load(tree), tmp_path / "out.arrow", PackConfig(part=(1, 2))
    first = pack(source, out, part)
    before = contents(tmp_path / "out.arrow.parts")
    again = pack(source, out, part)
    assert again.reused and not first.reused
    same = ("path", "samples", "payload_bytes", "file_bytes", "files")
    assert [getattr(again, name) for name in same] == [getattr(first, name) for name in same]
    words = ["pack", str(tree), str(out)]
    assert main([*words, "--part", "1/2"]) == 0
    assert "is there already, packed from the same manifest" in capsys.readouterr().out
    assert contents(tmp_path / "out.arrow.parts") == before
    with pytest.raises(PackError, match="another manifest or with other options"):
        pack(source, out, dataclasses.replace(part, shuffle=1))
    assert main([*words, "--part", "2/2"]) == 0 and main([*words, "--merge"]) == 0
    assert verify(out, source).intact
    with pytest.raises(OutputExistsError):
        pack(source, out, part)  # before an hour of packing


@pytest.mark.parametrize("name", ["out.files", "out.arrow"])
def test_files_beside_an_earlier_output_do_not_speak_for_the_new_one(name, tree, tmp_path):
    """An old record of scaling switched a comparison off; an old digest called it damaged."""
    out = tmp_path / "o" / name
    pack(sources.load(tree), out)
    for suffix in (".resized.json", ".faults.json", ".digest.json"):
        out.with_name(out.name + suffix).write_text("{}")
    shutil.rmtree(out) if out.is_dir() else out.unlink()
    pack(sources.load(tree), out, PackConfig(digest=False))
    assert [path.name for path in out.parent.iterdir()] == [name]
    assert verify(out, sources.load(tree)).intact


def test_a_record_whose_run_was_killed_while_it_was_written_again_is_none(tmp_path):
    """A second run writes the record anew; until that is whole, the first one's may not stand for it."""
    record = DataFileRecord("x.arrow", 0, 9, (), np.ones(2, np.uint64), np.ones(2, bool))
    record.save(tmp_path)
    assert DataFileRecord.load(tmp_path, "x.arrow") is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np, "save", lambda *words, **named: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            dataclasses.replace(record, payload_bytes=8).save(tmp_path)
    assert DataFileRecord.load(tmp_path, "x.arrow") is None
