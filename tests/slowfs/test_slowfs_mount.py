"""The mount: the same bytes, later; counted; gone in every case."""

import errno
import json
import mmap
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from programs import wait_for

from smallfiles import machine, slowfs, sources
from smallfiles.errors import ResourceError, UsageError
from smallfiles.pack import PackConfig, pack
from smallfiles.slowfs import SlowConfig, server
from smallfiles.slowfs.mounting import PREFIX, Mount

pytestmark = pytest.mark.usefixtures("fuse")
NO_WAIT = SlowConfig(0)


def tree(root):
    """Every path below with what it holds."""
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in sorted(Path(root).rglob("*"))
    }


class TestWhatIsSeen:
    def test_its_summary_says_what_takes_how_long(self, folder):
        with slowfs.open_slow(folder, SlowConfig(0.001, 8, 50e6, 0.5)) as slow:
            delays = "1 ms an operation, 8 at once, 50 MB/s, jitter 0.5"
            assert slow.summary == f"Mounted: each look-up, open and listing is delayed ({delays})."
        with slowfs.open_slow(folder, NO_WAIT) as slow:
            assert slow.summary == "Mounted: each look-up, open and listing is delayed (0 ms an operation)."

    def test_it_shows_the_same_files_links_and_attributes_on_a_shared_file_system(self, folder):
        (folder / "near").symlink_to("a/1.jpg")
        (folder / "gone").symlink_to("nowhere")
        os.utime(folder / "4.jpg", ns=(-5_000_000_001, 1_234_567_890_123_456_789))
        whole = (folder / "4.jpg").read_bytes()
        with slowfs.open_slow(folder, NO_WAIT) as slow:
            for name in ("4.jpg", "a", "b/c d/ü 3.jpg"):
                ours, theirs = os.stat(slow / name), os.stat(folder / name)
                for field in ("st_mode", "st_ino", "st_nlink", "st_uid", "st_size", "st_blocks"):
                    assert getattr(ours, field) == getattr(theirs, field)
                assert (ours.st_mtime_ns, ours.st_atime_ns) == (theirs.st_mtime_ns, theirs.st_atime_ns)
            assert os.statvfs(slow).f_blocks == os.statvfs(folder).f_blocks
            assert slow.how == "fuse" and slow.note == "" and Path(slow) == slow.path
            assert tree(slow) == tree(folder) and slow.store.size("4.jpg") == len(whole)
            assert not Path(slow).is_relative_to(folder)
            assert os.readlink(slow / "near") == "a/1.jpg" and (slow / "near").stat().st_size == 1000
            assert (slow / "gone").is_symlink() and not (slow / "gone").exists()
            with open(slow / "4.jpg", "rb") as file:
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                    assert mapped[200_000:200_010] == whole[200_000:200_010]
                assert os.pread(file.fileno(), 50, 299_990) == whole[299_990:]
            found = machine.filesystem(slow.path / "a")
            assert (found.kind, found.shared, found.mount) == (slowfs.KIND, True, slow.path)
            assert machine.is_parallel_filesystem(slow.path)

    def test_names_that_are_no_text_and_large_folders_are_listed_whole(self, folder):
        names = {b"\xff\xfe.jpg", *(b"%04d" % number * 50 for number in range(1500))}
        (folder / "many").mkdir()
        for name in names:
            (Path(os.fsencode(folder / "many").decode()) / os.fsdecode(name)).touch()
        with slowfs.mounted(folder, NO_WAIT) as slow:
            assert set(os.listdir(os.fsencode(slow / "many"))) == names
            assert (slow / "many" / os.fsdecode(b"\xff\xfe.jpg")).stat().st_size == 0

    def test_nothing_can_be_written(self, folder):
        before = tree(folder)
        with slowfs.mounted(folder, NO_WAIT) as slow:
            for write in (
                lambda: (slow / "new").touch(),
                lambda: (slow / "a").rmdir(),
                lambda: (slow / "4.jpg").unlink(),
                lambda: (slow / "4.jpg").write_bytes(b""),
            ):
                with pytest.raises(OSError) as caught:
                    write()
                assert caught.value.errno == errno.EROFS
        assert tree(folder) == before

    def test_a_change_behind_it_is_seen_at_the_next_open(self, folder):
        with slowfs.mounted(folder, NO_WAIT) as slow:
            assert len((slow / "a/1.jpg").read_bytes()) == 1000
            (folder / "a/1.jpg").write_bytes(b"other")
            (folder / "a/new").write_bytes(b"new")
            assert (slow / "a/1.jpg").read_bytes() == b"other" and (slow / "a/new").read_bytes() == b"new"
            (folder / "a/new").unlink()
            assert not (slow / "a/new").exists()

    def test_a_folder_on_another_file_system_can_be_shown(self, tmp_path):
        with slowfs.mounted(Path("/proc/self/task"), NO_WAIT) as slow:
            assert os.listdir(slow)


class TestWhatItCosts:
    def test_every_read_is_a_look_up_and_an_open_and_counted_also_of_a_missing_name(self, folder):
        with slowfs.mounted(folder, SlowConfig(0.05)) as slow:
            os.listdir(slow / "a")
            before = slow.counts()
            for _ in range(2):
                began = time.monotonic()
                (slow / "a/1.jpg").read_bytes()
                assert time.monotonic() - began >= 0.1
            after = slow.counts()
            for name in ("nothing", "nothing", "4.jpg"):
                began = time.monotonic()
                assert (slow / name).exists() == (name == "4.jpg")
                assert time.monotonic() - began >= 0.05
        told = {name: after[name] - before[name] for name in after}
        assert told.pop("reads") >= 2
        assert told == {"lookup": 2, "open": 2, "list": 0, "other": 0, "bytes": 2000}
        assert before["list"] == 1 and slow.counts()["lookup"] == after["lookup"] + 3

    def test_new_names_of_one_folder_are_looked_up_at_once(self, folder):
        for number in range(64):
            (folder / "a" / str(number)).touch()
        with slowfs.mounted(folder, SlowConfig(0.5)) as slow, ThreadPoolExecutor(64) as pool:
            os.listdir(slow / "a")
            began = time.monotonic()
            list(pool.map(os.stat, [slow / "a" / str(number) for number in range(64)]))
            assert time.monotonic() - began < 64 * 0.5  # which they sleep one after the other

    def test_bandwidth_is_shared_by_all_readers(self, folder):
        for name in ("5.jpg", "6.jpg"):
            (folder / name).write_bytes((folder / "4.jpg").read_bytes())
        config = SlowConfig(0, servers=2, bandwidth_bytes_s=2e6)
        with slowfs.mounted(folder, config) as slow, ThreadPoolExecutor(4) as pool:
            began = time.monotonic()
            read = list(pool.map(lambda name: len((slow / name).read_bytes()), ("4.jpg", "5.jpg", "6.jpg")))
            assert sum(read) == 900_000 and time.monotonic() - began >= 0.44


class TestPacking:
    @pytest.fixture(scope="class")
    def many(self, tmp_path_factory):
        generator, folder = np.random.default_rng(0), tmp_path_factory.mktemp("many") / "set"
        for number in range(640):
            path = folder / f"class{number % 2}" / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"\xff\xd8\xff" + generator.bytes(50_000) + b"\xff\xd9")
        return folder

    def test_pack_has_many_opens_in_flight_that_wait_together(self, many, tmp_path):
        sources.load(many).manifest.save(tmp_path / "m.json")
        with slowfs.mounted(many, SlowConfig(0.02)) as slow:
            report = pack(sources.load(tmp_path / "m.json", root=slow.path), tmp_path / "out.arrow")
        assert report.in_flight == 32 and report.verified > 0
        assert report.seconds < 640 * 2 * 0.02  # a look-up and an open for each, one after the other


class TestItEnds:
    def test_after_the_block_and_after_an_exception(self, folder):
        with slowfs.mounted(folder) as slow:
            first = slow.path
        with pytest.raises(RuntimeError), slowfs.mounted(folder) as slow:
            raise RuntimeError
        assert not first.exists() and not slow.path.exists()

    def test_also_while_a_file_is_open_and_requests_wait(self, folder):
        failures = []

        def wait(path):
            try:
                os.stat(path)
            except OSError as error:
                failures.append(error.errno)

        with slowfs.mounted(folder, SlowConfig(30)) as slow:
            thread = threading.Thread(target=wait, args=(slow / "4.jpg",))
            thread.start()
            wait_for(lambda: slow.counts()["lookup"] == 1)
        thread.join(10)
        assert not thread.is_alive() and failures and not slow.path.exists()

    @pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL", "sys.exit", "forgotten"])
    def test_when_its_process_ends_in_any_way(self, folder, slow_mounts, how):
        code = f"""
            import os, signal, sys, time
            from smallfiles import slowfs
            entered = slowfs.mounted({str(folder)!r})
            slow = entered.__enter__()
            print(slow.path, flush=True)
            if {how!r} == "sys.exit":
                sys.exit(3)
            if {how!r} != "forgotten":
                os.kill(os.getpid(), getattr(signal, {how!r}))
        """
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=30
        )
        point = done.stdout.strip()
        assert Path(point).name.startswith(PREFIX), done.stderr
        wait_for(lambda: point not in slow_mounts() and not os.path.lexists(point))

    def test_a_forked_worker_that_leaves_takes_nothing_with_it(self, folder):
        with slowfs.mounted(folder, NO_WAIT) as slow:
            child = os.fork()
            if not child:
                try:
                    import atexit

                    atexit._run_exitfuncs()
                finally:
                    os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            assert (slow / "4.jpg").stat().st_size == 300_000

    def test_what_a_killed_mount_left_is_swept_away_by_the_next(self, folder):
        mount = Mount(folder, NO_WAIT)
        mount._process.kill()
        mount._process.wait()
        with pytest.raises(OSError) as caught:
            os.stat(mount.point)
        assert caught.value.errno == errno.ENOTCONN
        with slowfs.mounted(folder, NO_WAIT):
            assert not os.path.lexists(mount.point)
        mount.close()

    def test_a_dead_mount_at_the_wanted_point_is_repaired(self, folder, tmp_path):
        point = tmp_path / "my slow"
        mount = Mount(folder, NO_WAIT, point)
        mount._process.kill()
        mount._process.wait()
        with slowfs.mounted(folder, NO_WAIT, at=point) as slow:
            assert slow.path == point and tree(slow) == tree(folder)
        mount.close()
        assert not point.exists()


class TestWhere:
    def test_an_empty_folder_with_a_space_is_used_and_left(self, folder, tmp_path):
        point = tmp_path / "a b\tc"
        point.mkdir()
        with slowfs.mounted(folder, NO_WAIT, at=point) as slow:
            assert tree(slow) == tree(folder)
        assert point.is_dir() and not any(point.iterdir())

    def test_mounts_within_mounts_are_refused(self, folder, tmp_path):
        for at in (folder, folder / "a", tmp_path):
            with pytest.raises(UsageError, match="within each other"), slowfs.mounted(folder, at=at):
                pass
        with slowfs.mounted(folder, NO_WAIT) as slow:
            for wrong in (
                lambda: slowfs.mounted(slow.path),
                lambda: slowfs.mounted(slow / "a"),
                lambda: slowfs.open_slow(slow.path),
                lambda: slowfs.mounted(tmp_path / "other", at=slow / "a"),
            ):
                (tmp_path / "other").mkdir(exist_ok=True)
                with pytest.raises(UsageError, match="already on a slow mount"), wrong():
                    pass

    def test_a_place_that_is_taken_or_has_no_parent_is_refused(self, folder, tmp_path):
        (tmp_path / "file").touch()
        (tmp_path / "full" / "x").mkdir(parents=True)
        for name in ("file", "full", "none/at"):
            with (
                pytest.raises(ResourceError, match="mount point"),
                slowfs.mounted(folder, at=tmp_path / name),
            ):
                pass


class TestCommand:
    def start(self, *words):
        command = [sys.executable, "-m", "smallfiles", "slowfs", *map(str, words)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_it_shows_the_folder_until_a_signal_and_tells_what_was_asked(self, folder, tmp_path, number):
        point = tmp_path / "my slow"
        process = self.start(folder, point, "--latency-ms", 1, "--json")
        assert f"is at {point}, 1 ms an operation" in process.stderr.readline()
        assert tree(point) == tree(folder)
        process.send_signal(number)
        out, err = process.communicate(timeout=20)
        told = json.loads(out)
        assert process.returncode == 0 and err == "" and not point.exists()
        assert (told["samples"], told["bytes"]) == (4, 371_000) and told["operations"]["list"] >= 4

    def test_it_notices_that_somebody_else_unmounted_it(self, folder, tmp_path):
        process = self.start(folder, tmp_path / "slow")
        process.stderr.readline()
        server.unmount(tmp_path / "slow")
        assert "unmounted by another program" in process.communicate(timeout=20)[1]
        assert process.returncode == 1


class TestTheServerGoesAway:
    @pytest.fixture
    def dying(self, tmp_path):
        """A tree of 300 images behind a mount."""
        tree = tmp_path / "set"
        for number in range(300):
            path = tree / f"class{number % 2}" / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"\xff\xd8\xff%d\xff\xd9" % number)
        return Mount(tree, SlowConfig(0.02))

    def test_packing_ends_and_leaves_out_no_sample_as_bad(self, dying, tmp_path):
        source, opens = sources.load(dying.point), dying.counts()["open"]

        def kill():
            wait_for(lambda: dying.counts()["open"] > opens + 20)
            dying._process.kill()

        killer = threading.Thread(target=kill)
        killer.start()
        config = PackConfig(on_error="skip", in_flight=4, storage_timeout_s=0.5)
        with pytest.raises(ResourceError, match=r"not connected|abort"):
            pack(source, tmp_path / "out.arrow", config)
        killer.join()
        dying.close()
        assert not (tmp_path / "out.arrow").exists()
