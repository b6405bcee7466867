"""Storage that does not answer: it is waited for, and no sample is left out for it."""

import dataclasses
import errno
import os
import shutil
import subprocess
import sys
import time

import pytest
from outages import ERRORS, READS, failing_calls

import smallfiles.formats
import smallfiles.storage
from smallfiles import cli
from smallfiles.errors import StorageError
from smallfiles.loading import LoaderConfig, make_loader
from smallfiles.manifest import Manifest
from smallfiles.sources import synthetic

COUNT = 60
SUFFIXES = ("arrow", "h5", "tar", "tars", "sqfs", "files")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("outages") / "a set"
    synthetic.make(out, "folder", count=COUNT, classes=3, size=(40, 32))
    return out


@pytest.fixture(scope="module")
def packed(folder, tmp_path_factory):
    """Pack one set into every format."""
    home = tmp_path_factory.mktemp("packed")
    for suffix in SUFFIXES:
        assert cli.main(["pack", str(folder), str(home / f"x.{suffix}")]) == 0
    return home


def contents(path):
    with smallfiles.formats.open(path) as reader:
        return {reader.key(index): bytes(reader.read(index)) for index in range(len(reader))}


def everything(loader):
    return sorted(int(index) for batch in loader for index in batch["index"])


@pytest.mark.parametrize("number", ERRORS[::4], ids=errno.errorcode.get)
def test_pack_waits_for_storage_and_leaves_nothing_out(folder, packed, tmp_path, monkeypatch, capfd, number):
    with failing_calls(monkeypatch, folder, number, after=30, for_s=0.15) as failed:
        assert cli.main(["pack", str(folder), str(tmp_path / "x.arrow"), "--on-error", "skip"]) == 0
    assert failed
    assert contents(tmp_path / "x.arrow") == contents(packed / "x.arrow")
    said = capfd.readouterr().err
    assert said.count("the storage does not answer") == 1 and os.strerror(number) in said
    assert "answers again" in said


@pytest.mark.parametrize("number", [errno.ENXIO, errno.EIO], ids=errno.errorcode.get)
def test_pack_stops_after_the_timeout_and_the_same_command_packs_everything(
    folder, packed, tmp_path, monkeypatch, capfd, number
):
    flags = ["--on-error", "skip", "--in-flight", "4", "--storage-timeout-s", "0.2"]
    words = ["pack", str(folder), str(tmp_path / "x.tars"), *flags]
    with failing_calls(monkeypatch, folder, number, part=".jpg", after=70):
        began = time.monotonic()
        assert cli.main(words) == 1
        assert time.monotonic() - began < 2, "it waited for each file"
    said = capfd.readouterr().err
    assert "the storage did not answer for 0.2 s" in said and ".jpg" in said and "Mend" not in said
    assert said.count("the storage does not answer") == 1 and "0 s" not in said
    assert not (tmp_path / "x.tars").exists()
    assert cli.main(words) == 0
    assert contents(tmp_path / "x.tars") == contents(packed / "x.tars")


def test_a_program_that_goes_on_after_giving_up_gets_one_note(packed, monkeypatch, capfd):
    reader, seen = smallfiles.formats.open(packed / "x.files"), []
    with failing_calls(monkeypatch, packed, errno.EIO), smallfiles.storage.timeout(0.07):
        for index in range(9):
            with pytest.raises(StorageError) as raised:
                reader.read(index)
            seen.append(str(raised.value))
    assert all("did not answer for 0.1 s" in each for each in seen)
    assert capfd.readouterr().err.count("the storage does not answer") == 1


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_loader_waits_for_storage_whatever_on_error_says(packed, monkeypatch, suffix):
    config = LoaderConfig(batch=8, workers=2, mode="threads", on_error="skip")
    monkeypatch.setattr("smallfiles.formats.bytefile.is_parallel_filesystem", lambda path: True)
    monkeypatch.setattr("pysquashfs.image_file.is_local", lambda descriptor: False)
    with failing_calls(monkeypatch, packed, errno.ENXIO, for_s=0.15) as failed:
        loader = make_loader(packed / f"x.{suffix}", config)
        assert everything(loader) == list(range(COUNT))
    assert loader.fault_count == 0 and failed


@pytest.mark.parametrize(
    ("suffix", "on_error"),
    [*((suffix, "skip") for suffix in SUFFIXES), *(("arrow", each) for each in ("stop", "repeat", "keep"))],
)
def test_a_loader_stops_with_the_storage_as_its_reason(packed, monkeypatch, suffix, on_error):
    config = LoaderConfig(batch=8, mode="main", on_error=on_error, storage_timeout_s=0.2)
    monkeypatch.setattr("smallfiles.formats.bytefile.is_parallel_filesystem", lambda path: True)
    monkeypatch.setattr("pysquashfs.image_file.is_local", lambda descriptor: False)
    loader = make_loader(packed / f"x.{suffix}", config)
    batches = iter(loader)
    next(batches)
    with (
        failing_calls(monkeypatch, packed, errno.EIO),
        pytest.raises(StorageError, match=r"the storage did not answer for .*Input/output error"),
    ):
        list(batches)
    assert loader.fault_count == 0


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_verify_waits_or_says_that_the_storage_did_not_answer(packed, folder, monkeypatch, capfd, suffix):
    words = ["verify", str(packed / f"x.{suffix}"), "--against", str(folder)]
    with failing_calls(monkeypatch, packed, errno.ENXIO, for_s=0.15, after=3):
        assert cli.main(words) == 0
    assert "intact" in capfd.readouterr().out
    with failing_calls(monkeypatch, packed, errno.ENXIO, after=3):
        assert cli.main([*words, "--storage-timeout-s", "0.1"]) == 1
    said = capfd.readouterr()
    assert "the storage did not answer for" in said.err and "damaged" not in said.out


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_pack_waits_for_the_storage_of_its_output(folder, packed, tmp_path, monkeypatch, capfd, suffix):
    out = tmp_path / f"x.{suffix}"
    with failing_calls(monkeypatch, tmp_path, errno.EIO, ["pwritev"], for_s=0.15) as failed:
        assert cli.main(["pack", str(folder), str(out)]) == 0
    assert failed and "answers again" in capfd.readouterr().err
    assert contents(out) == contents(packed / out.name)


def test_pack_stops_when_its_output_cannot_be_written_and_the_same_command_finishes(
    folder, packed, tmp_path, monkeypatch, capfd
):
    words = ["pack", str(folder), str(tmp_path / "x.arrow"), "--storage-timeout-s", "0.2"]
    with failing_calls(monkeypatch, tmp_path, errno.ESTALE, ["pwritev"]):
        assert cli.main(words) == 1
    said = capfd.readouterr().err
    assert "the storage did not answer for" in said and str(tmp_path) in said
    assert not (tmp_path / "x.arrow").exists()
    assert cli.main(words) == 0
    assert contents(tmp_path / "x.arrow") == contents(packed / "x.arrow")


STAGES = {"to a node": "--where", "to scratch": "--to"}


@pytest.mark.parametrize("flag", STAGES.values(), ids=STAGES)
@pytest.mark.parametrize("at", ["source", "target"])
def test_stage_waits_for_the_storage_of_its_source_and_of_its_target(
    packed, tmp_path, monkeypatch, capfd, flag, at
):
    words = ["stage", str(packed / "x.tars"), flag, str(tmp_path)]
    where, calls = (packed, READS) if at == "source" else (tmp_path, ["pwritev"])
    with failing_calls(monkeypatch, where, errno.ENXIO, calls, for_s=0.15) as failed:
        assert cli.main(words) == 0
    said = capfd.readouterr()
    assert failed and "answers again" in said.err
    assert contents(said.out.strip()) == contents(packed / "x.tars")
    assert cli.main(["unstage"]) == 0


@pytest.mark.parametrize("flag", STAGES.values(), ids=STAGES)
@pytest.mark.parametrize("at", ["source", "target"])
@pytest.mark.parametrize("after", [0, 3])
def test_stage_stops_after_the_timeout_and_the_same_command_finishes(
    packed, tmp_path, monkeypatch, capfd, flag, at, after
):
    words = ["stage", str(packed / "x.arrow"), flag, str(tmp_path), "--storage-timeout-s", "0.2"]
    where, calls = (packed, READS) if at == "source" else (tmp_path, ["pwritev"])
    with failing_calls(monkeypatch, where, errno.EIO, calls, after=after if at == "source" else 0):
        assert cli.main(words) == 1
    said = capfd.readouterr().err
    assert "the storage did not answer for" in said
    assert "permissions" not in said and "changed while" not in said
    assert cli.main(words) == 0
    assert contents(capfd.readouterr().out.strip()) == contents(packed / "x.arrow")
    assert cli.main(["unstage"]) == 0


@pytest.mark.parametrize("calls", [READS, ["statvfs"]])
def test_advise_waits_for_storage(folder, monkeypatch, capfd, calls):
    after = 70 if calls == READS else 0
    with failing_calls(monkeypatch, folder, errno.EIO, calls, after=after, for_s=0.15) as failed:
        assert cli.main(["advise", str(folder)]) == 0
    assert failed and "answers again" in capfd.readouterr().err


def test_doctor_says_which_folder_does_not_answer(folder, monkeypatch, capfd):
    monkeypatch.setattr("smallfiles.doctor._PATIENCE_S", 0.4)
    with failing_calls(monkeypatch, folder, errno.EIO, ["stat", "statvfs"], for_s=0.15) as failed:
        assert cli.main(["doctor", str(folder)]) == 0
    assert failed and "answers again" in capfd.readouterr().err
    with failing_calls(monkeypatch, folder, errno.EIO):
        assert cli.main(["doctor", str(folder), "/tmp"]) == 1
    said = capfd.readouterr()
    assert (
        f"✗ folder {folder}  the storage did not answer for 0.4 s" in said.out and "folder /tmp" in said.out
    )
    assert said.err.count("the storage does not answer") == 1


def test_one_file_that_always_fails_is_named_and_can_be_removed(folder, tmp_path, monkeypatch, capfd):
    copy = shutil.copytree(folder, tmp_path / "copy")
    bad = sorted(copy.rglob("*.jpg"))[7]
    words = ["pack", str(copy), str(tmp_path / "x.arrow"), "--on-error", "skip", "--storage-timeout-s", "0.1"]
    with failing_calls(monkeypatch, copy, errno.EIO, part=bad.name):
        assert cli.main(words) == 1
        said = capfd.readouterr().err
        assert str(bad) in said and "remove it to go on without it" in said
        bad.rename(tmp_path / "aside")
        assert cli.main(words) == 0
    assert len(contents(tmp_path / "x.arrow")) == COUNT - 1


def test_verify_against_a_source_that_does_not_answer_says_so(packed, folder, monkeypatch, capfd):
    words = ["verify", str(packed / "x.arrow"), "--against", str(folder), "--storage-timeout-s", "0.1"]
    with failing_calls(monkeypatch, folder, errno.EREMOTEIO, part=".jpg", after=COUNT):
        assert cli.main(words) == 1
    said = capfd.readouterr()
    assert "the storage did not answer for" in said.err and "differs" not in said.out


def test_a_folder_that_does_not_answer_while_it_is_listed_is_not_empty(folder, monkeypatch, tmp_path, capfd):
    with failing_calls(monkeypatch, folder, errno.EIO, for_s=0.15, after=6) as failed:
        assert cli.main(["manifest", str(folder), "-o", str(tmp_path / "m.json")]) == 0
    assert failed and len(Manifest.load(tmp_path / "m.json")) == COUNT


def test_a_missing_and_a_forbidden_file_are_still_faults_of_the_content(folder, tmp_path, monkeypatch, capfd):
    assert cli.main(["manifest", str(folder), "-o", str(tmp_path / "m.json")]) == 0
    words = ["--root", str(folder), "--on-error", "skip"]
    for number in (errno.ENOENT, errno.EACCES, errno.ELOOP):
        out = tmp_path / f"{number}.arrow"
        with failing_calls(monkeypatch, folder, number, part="7.jpg") as failed:
            assert cli.main(["pack", str(tmp_path / "m.json"), str(out), *words]) == 0
        assert len(contents(out)) == COUNT - len(set(failed)) < COUNT
        assert "storage" not in capfd.readouterr().err


def test_repeat_leaves_out_a_batch_in_which_no_sample_is_readable(folder, tmp_path):
    copy = tmp_path / "x.files"
    assert cli.main(["pack", str(folder), str(copy)]) == 0
    keys = list(contents(copy))
    for key in keys[8:16]:
        (copy / key).write_bytes(b"not an image")
    config = LoaderConfig(batch=8, mode="main", shuffle=False, on_error="repeat")
    loader = make_loader(copy, config)
    assert everything(loader) == [*range(8), *range(16, COUNT)]
    assert loader.fault_count == 8
    ranks = [dataclasses.replace(config, rank=rank, world_size=2) for rank in (0, 1)]
    assert len({len(list(make_loader(copy, each))) for each in ranks}) == 1


def test_an_epoch_without_a_readable_sample_is_an_error_with_repeat_too(folder, tmp_path):
    copy = tmp_path / "x.files"
    assert cli.main(["pack", str(folder), str(copy)]) == 0
    for key in contents(copy):
        (copy / key).write_bytes(b"not an image")
    loader = make_loader(copy, LoaderConfig(batch=8, mode="main", on_error="repeat"))
    with pytest.raises(smallfiles.errors.SmallfilesError, match="all 60 samples"):
        list(loader)


def test_control_c_ends_a_pack_that_waits_for_storage_at_once(folder, tmp_path):
    """The threads that read wait too, and must not keep the process."""
    program = """
import errno, os, signal, sys, threading
from smallfiles import cli
stat, readv = os.stat, os.readv
def fail(*args):
    raise OSError(errno.EIO, "gone")
os.readv = fail
threading.Timer(2, os.kill, (os.getpid(), signal.SIGINT)).start()
sys.exit(cli.main(sys.argv[1:]))
"""
    words = ["pack", str(folder), str(tmp_path / "x.arrow"), "--in-flight", "8"]
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 130 and "interrupted" in done.stderr
    assert time.monotonic() - began < 20
