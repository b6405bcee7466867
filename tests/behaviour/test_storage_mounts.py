"""Outages of mounts: a FUSE folder that returns any error, a distributed file system that loses a server."""

import errno
import itertools
import os
import shutil
import subprocess
import sys
import tarfile
import threading

import moosefs
import numpy as np
import pytest
from outages import ERRORS, FailingMount

import smallfiles.formats
from smallfiles import cli
from smallfiles.errors import DamagedFileError, SmallfilesError, StorageError
from smallfiles.loading import LoaderConfig, make_loader
from smallfiles.slowfs import server
from smallfiles.sources import synthetic

COUNT = 40
SUFFIXES = ("arrow", "h5", "tar", "tars", "sqfs", "files")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder of images, and the same set in every format."""
    if (reason := server.why_not()) is not None:
        pytest.skip(reason)
    home = tmp_path_factory.mktemp("outages")
    synthetic.make(home / "set", "folder", count=COUNT, classes=3, size=(40, 32))
    for suffix in SUFFIXES:
        assert cli.main(["pack", str(home / "set"), str(home / f"x.{suffix}")]) == 0
    return home


@pytest.fixture
def mount(home, tmp_path):
    found = FailingMount(home, tmp_path / "control")
    yield found
    found.close()


def contents(path):
    with smallfiles.formats.open(path) as reader:
        return {reader.key(index): bytes(reader.read(index)) for index in range(len(reader))}


def indices(loader):
    return sorted(int(index) for batch in loader for index in batch["index"])


@pytest.mark.parametrize("number", ERRORS, ids=errno.errorcode.get)
def test_pack_from_a_mount_waits_for_each_error(home, mount, tmp_path, capfd, number):
    mount.fail(number, "OPEN READ", part=".jpg", after=COUNT, for_s=0.15)
    assert cli.main(["pack", str(mount.point / "set"), str(tmp_path / "x.arrow"), "--on-error", "skip"]) == 0
    said = capfd.readouterr().err
    assert "the storage does not answer" in said and os.strerror(number) in said
    assert contents(tmp_path / "x.arrow") == contents(home / "x.arrow")


@pytest.mark.parametrize("operation", ["LOOKUP", "OPEN", "READ", "OPENDIR"])
def test_pack_stops_and_the_same_command_packs_all(home, mount, tmp_path, capfd, operation):
    words = ["pack", str(mount.point / "set"), str(tmp_path / "x.tars"), "--on-error", "skip"]
    mount.fail(errno.EIO, operation, part="set", after=2)
    assert cli.main([*words, "--storage-timeout-s", "0.2"]) == 1
    assert "the storage did not answer for" in capfd.readouterr().err
    mount.end()
    assert cli.main(words) == 0
    assert contents(tmp_path / "x.tars") == contents(home / "x.tars")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_workers_wait_for_storage_and_deliver_every_sample(mount, capfd, suffix):
    mount.fail(errno.ENXIO, part=f"x.{suffix}", after=3, for_s=0.3)
    config = LoaderConfig(batch=4, workers=2, mode="processes", on_error="skip")
    loader = make_loader(mount.point / f"x.{suffix}", config)
    assert indices(loader) == list(range(COUNT)) and loader.fault_count == 0
    assert "the storage does not answer" in capfd.readouterr().err


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_workers_stop_with_the_storage_as_their_reason(mount, suffix):
    config = LoaderConfig(batch=4, workers=2, mode="processes", on_error="skip", storage_timeout_s=0.3)
    mount.fail(errno.EREMOTEIO, part=f"x.{suffix}", after=1 << 30)
    loader = make_loader(mount.point / f"x.{suffix}", config)
    mount.fail(errno.EREMOTEIO, part=f"x.{suffix}")
    with pytest.raises(StorageError, match="the storage did not answer for"):
        indices(loader)


@pytest.mark.parametrize("suffix", ["arrow", "h5", "sqfs"])
def test_verify_ends_with_a_sentence_and_never_with_a_signal(home, mount, suffix):
    out = mount.point / f"x.{suffix}"
    words = [sys.executable, "-m", "smallfiles", "verify", str(out), "--storage-timeout-s", "0.3"]
    for after in (8,):
        mount.fail(errno.EIO, "READ", part=f"x.{suffix}", after=after)
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode in (0, 1), (after, done.returncode, done.stderr)
        assert done.returncode == 0 or "the storage did not answer for" in done.stderr, done
        assert "damaged" not in done.stdout


ARCHIVES = {"x.tar.gz": "w:gz", "x.tar.bz2": "w:bz2", "x.tar.xz": "w:xz", "x.zip": ""}


@pytest.fixture(scope="module")
def archives(home):
    """Archives of files that hardly shrink, so that each needs many requests."""
    rng, tree = np.random.default_rng(0), home / "random"
    for number in range(40):
        path = tree / f"class{number % 2}" / f"{number}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(rng.bytes(60_000))
    for name, mode in ARCHIVES.items():
        if mode:
            with tarfile.open(home / name, mode) as file:
                file.add(tree, "random")
        else:
            shutil.make_archive(str(home / "x"), "zip", tree)
    assert cli.main(["pack", str(tree), str(home / "random.arrow"), "--suffix", ".bin"]) == 0
    return sorted(contents(home / "random.arrow").values())


@pytest.mark.parametrize("after", [1, 25])  # while it is indexed, and while it is packed
@pytest.mark.parametrize("name", ARCHIVES)
def test_pack_waits_in_the_middle_of_an_archive(archives, mount, tmp_path, capfd, name, after):
    after = min(after, 12) if name == "x.zip" else after  # it is read once, in some twenty requests
    mount.fail(errno.EIO, "READ", part=name, after=after, for_s=0.3)
    words = ["pack", str(mount.point / name), str(tmp_path / "x.arrow"), "--suffix", ".bin"]
    assert cli.main([*words, "--on-error", "skip"]) == 0
    assert "answers again" in capfd.readouterr().err
    assert sorted(contents(tmp_path / "x.arrow").values()) == archives


class Bound:
    """A folder that is mounted at a second place, from which it can go away as a file system does."""

    def __init__(self, folder, point):
        self.folder, self.point = folder, point
        point.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "none", str(folder)], check=True)

    def mount(self):
        subprocess.run(["mount", "--bind", str(self.folder), str(self.point)], check=True)

    def unmount(self):
        subprocess.run(["umount", "-l", str(self.point)], check=True)

    def unmount_for(self, seconds):
        self.unmount()
        threading.Timer(seconds, self.mount).start()

    def close(self):
        subprocess.run(["umount", "-l", str(self.point)], check=False, stderr=subprocess.DEVNULL)
        subprocess.run(["umount", "-l", str(self.folder)], check=True)


@pytest.fixture
def bound(home, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("mount needs root")
    (tmp_path / "far away").mkdir()
    found = Bound(tmp_path / "far away", tmp_path / "mounted")
    try:
        subprocess.run(["cp", "-r", *map(str, home.iterdir()), str(found.folder)], check=True)
        found.mount()
        yield found
    finally:
        found.close()


@pytest.fixture
def at_read(monkeypatch):
    """Do something at the n-th read of a whole file in this process."""

    def when(number, do):
        readv, count = os.readv, itertools.count(1)

        def counted(*args):
            if next(count) == number:
                do()
            return readv(*args)

        monkeypatch.setattr(os, "readv", counted)

    return when


def test_pack_does_not_take_the_files_of_an_unmounted_folder_for_missing(
    home, bound, at_read, tmp_path, capfd
):
    words = ["pack", str(bound.point / "set"), str(tmp_path / "x.tars"), "--on-error", "skip"]
    at_read(5, bound.unmount)
    assert cli.main([*words, "--storage-timeout-s", "0.3"]) == 1
    said = capfd.readouterr().err
    assert "the storage did not answer for" in said and "is no longer mounted" in said
    assert not (tmp_path / "x.tars").exists()
    bound.mount()
    assert cli.main(words) == 0
    assert contents(tmp_path / "x.tars") == contents(home / "x.tars")


def test_pack_waits_until_a_folder_is_mounted_again(home, bound, at_read, tmp_path, capfd):
    at_read(5, lambda: bound.unmount_for(0.5))
    words = ["pack", str(bound.point / "set"), str(tmp_path / "x.arrow"), "--on-error", "skip"]
    assert cli.main(words) == 0
    assert "is no longer mounted" in capfd.readouterr().err
    assert contents(tmp_path / "x.arrow") == contents(home / "x.arrow")


def test_a_file_that_is_missing_from_a_mounted_folder_is_still_left_out(bound, tmp_path):
    assert cli.main(["manifest", str(bound.point / "set"), "-o", str(tmp_path / "m.json")]) == 0
    next((bound.point / "set").rglob("*.jpg")).unlink()
    words = ["pack", str(tmp_path / "m.json"), str(tmp_path / "x.arrow"), "--root", str(bound.point / "set")]
    assert cli.main([*words, "--on-error", "skip"]) == 0
    assert len(contents(tmp_path / "x.arrow")) == COUNT - 1


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_do_not_take_the_files_of_an_unmounted_folder_for_missing(bound, method):
    config = LoaderConfig(
        batch=4, workers=1, mode="processes", start_method=method, on_error="skip", storage_timeout_s=0.3
    )
    loader = make_loader(bound.point / "x.files", config)
    bound.unmount()
    with pytest.raises(StorageError, match=r"did not answer for .* is no longer mounted"):
        indices(loader)
    assert loader.fault_count == 0


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    if (reason := moosefs.why_not()) is not None:
        pytest.skip(reason)
    found = moosefs.Lab(tmp_path_factory.mktemp("lab"), **moosefs.IMPATIENT)
    yield found
    found.close()


@pytest.fixture(scope="module")
def on_lab(lab):
    """60 files of 64 KiB on the distributed file system, and what is in them."""
    folder, rng = lab.clients[0] / "a set", np.random.default_rng(0)
    expected = {
        f"{'cat' if number % 2 else 'dog'}/{number:03d}.bin": rng.bytes(1 << 16) for number in range(60)
    }
    for name, data in expected.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    assert cli.main(["pack", str(folder), str(lab.clients[0] / "x.arrow"), "--suffix", ".bin"]) == 0
    return folder, expected


def _run_until_it_waits(words):
    """Start a command; it, and its messages until it says that the storage does not answer."""
    command = [sys.executable, "-m", "smallfiles", *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    for line in process.stderr:
        if "the storage does not answer" in line:
            return process
    raise AssertionError("it did not notice")


def test_pack_survives_a_data_server_that_is_killed_and_comes_back(lab, on_lab, tmp_path):
    folder, expected = on_lab
    words = ["pack", str(folder), str(tmp_path / "x.arrow"), "--suffix", ".bin", "--on-error", "skip"]
    lab.forget_pages()
    lab.kill(2)
    try:
        process = _run_until_it_waits(words)
    finally:
        lab.start(2)
    said = process.stderr.read()
    assert process.wait(60) == 0 and "answers again" in said
    assert contents(tmp_path / "x.arrow") == expected


def test_pack_stops_while_a_data_server_is_away_and_then_packs_all(lab, on_lab, tmp_path, capfd):
    folder, expected = on_lab
    words = ["pack", str(folder), str(tmp_path / "x.tars"), "--suffix", ".bin", "--on-error", "skip"]
    lab.forget_pages()
    lab.kill(1)
    try:
        assert cli.main([*words, "--storage-timeout-s", "1"]) == 1
    finally:
        lab.start(1)
    assert "the storage did not answer for" in capfd.readouterr().err
    assert cli.main(words) == 0
    assert contents(tmp_path / "x.tars") == expected


def test_verify_and_an_epoch_survive_the_loss_of_both_data_servers(lab, on_lab, capfd):
    packed = lab.clients[0] / "x.arrow"
    config = LoaderConfig(batch=4, workers=2, mode="processes", on_error="skip")
    loader = make_loader(packed, config)
    lab.forget_pages()
    for number in (1, 2):
        lab.kill(number)
    try:
        words = [sys.executable, "-m", "smallfiles", "verify", str(packed), "--storage-timeout-s", "1"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 1 and "the storage did not answer for" in done.stderr, done
        back = threading.Timer(1, lambda: [lab.start(number) for number in (1, 2)])
        back.start()
        assert indices(loader) == list(range(60)) and loader.fault_count == 0
        back.join()
    finally:
        back.join()
    assert cli.main(["verify", str(packed)]) == 0


def test_a_file_that_another_client_truncates_is_damaged_in_a_sentence(lab, on_lab):
    copy = lab.clients[0] / "y.arrow"
    copy.write_bytes((lab.clients[0] / "x.arrow").read_bytes())
    with smallfiles.formats.open(copy) as reader:
        reader.read(0)
        os.truncate(copy, 1 << 16)
        with pytest.raises(SmallfilesError) as caught:
            [reader.read(index) for index in range(len(reader))]
        assert isinstance(caught.value, DamagedFileError)
