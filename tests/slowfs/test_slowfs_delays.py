"""The waiting: how long, how many at once, how many bytes; and the same without a mount."""

import os
import pickle
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest

from smallfiles import slowfs
from smallfiles.cli import main
from smallfiles.errors import ResourceError, SourceError, UsageError
from smallfiles.slowfs import COUNTED, Delays, SlowConfig, SlowStore, server
from smallfiles.sources.record import FolderStore


@pytest.fixture
def clock(monkeypatch):
    """A clock that nothing else moves."""
    found = Mock(monotonic=Mock(return_value=0.0))
    monkeypatch.setattr("smallfiles.slowfs.time", found)
    return found.monotonic


class TestConfig:
    def test_it_is_told_in_words_and_as_a_command(self):
        config = SlowConfig(0.0025, 8, 2e8, 0.5)
        assert config.summary() == "2.5 ms an operation, 8 at once, 200 MB/s, jitter 0.5"
        assert SlowConfig().to_cli("data", "my slow") == "smallfiles slowfs data 'my slow'"


class TestDelays:
    @pytest.mark.parametrize(("servers", "answers"), [(None, [1] * 6), (2, [1, 1, 2, 2, 3, 3])])
    def test_operations_wait_together_and_beyond_the_servers_they_queue(self, clock, servers, answers):
        delays = Delays(SlowConfig(1.0, servers=servers))
        assert [delays.operation("open") for _ in range(6)] == answers

    def test_a_free_server_starts_at_once(self, clock):
        delays = Delays(SlowConfig(0.25, servers=1))
        delays.operation("open")
        clock.return_value = 8.0
        assert delays.operation("open") == 8.25

    def test_bytes_share_one_link(self, clock):
        delays = Delays(SlowConfig(0, bandwidth_bytes_s=1000))
        assert [delays.transfer(size) for size in (500, 1500)] == [0.5, 2.0]
        assert Delays(SlowConfig(0)).transfer(10**9) == 0.0

    def test_jitter_keeps_the_mean_and_is_the_same_each_time(self, clock):
        def drawn():
            delays = Delays(SlowConfig(10, jitter=0.5))
            return [delays.operation("open") for _ in range(4000)]

        times = drawn()
        assert statistics.mean(times) == pytest.approx(10, rel=0.05)
        assert statistics.stdev(times) == pytest.approx(5, rel=0.1)
        assert min(times) > 0 and max(times) > 20
        assert drawn() == times

    def test_everything_is_counted_from_all_threads(self):
        delays = Delays(SlowConfig(0))

        def work(_):
            delays.operation("lookup")
            delays.transfer(3)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(2000)))
        assert delays.counts() == dict(zip(COUNTED, (2000, 0, 0, 0, 2000, 6000), strict=True))


class TestStore:
    def test_the_bytes_are_those_of_the_store_and_late(self, folder):
        store, buffer = SlowStore(FolderStore(folder), SlowConfig(0.01)), bytearray(1001)
        began = time.monotonic()
        assert store.read_into("a/1.jpg", memoryview(buffer)) == 1000
        assert time.monotonic() - began >= 0.02 and buffer[:1000] == (folder / "a/1.jpg").read_bytes()
        assert store.size("4.jpg") == 300_000
        assert store.counts() == dict(zip(COUNTED, (2, 1, 0, 0, 1, 1000), strict=True))

    def test_a_missing_file_is_named_after_the_wait(self, folder):
        with pytest.raises(SourceError, match="nothing is missing"):
            SlowStore(FolderStore(folder)).read_into("nothing", memoryview(bytearray(1)))

    def test_it_says_what_it_is_and_can_be_sent_to_a_worker(self, folder):
        store = pickle.loads(pickle.dumps(SlowStore(FolderStore(folder), SlowConfig(0.003))))
        assert store.describe() == f"slow store (3 ms an operation) over folder {folder}"
        assert store.sequential is False and store.size("a/1.jpg") == 1000


class TestWithoutFuse:
    """What happens where mounting is not allowed; runs everywhere."""

    @pytest.fixture(params=["no device", "no tool"])
    def forbidden(self, request, monkeypatch, tmp_path):
        if request.param == "no device":
            monkeypatch.setattr(server.why_not, "__defaults__", (tmp_path / "fuse",))
            return "does not exist (the kernel, or the container, has no FUSE)"
        monkeypatch.setattr(server.why_not, "__defaults__", (tmp_path,))  # exists, may be used
        monkeypatch.setattr(server.shutil, "which", lambda name: None)
        return "fusermount3 is missing (package fuse3)"

    def test_reads_in_this_process_are_slow_instead_and_have_no_path(self, forbidden, folder):
        with slowfs.open_slow(folder, SlowConfig(0.005)) as slow:
            assert slow.how == "in-process" and forbidden in slow.note
            began = time.monotonic()
            assert slow.store.read_into("a/1.jpg", memoryview(bytearray(2000))) == 1000
            assert time.monotonic() - began >= 0.01 and slow.counts()["open"] == 1
            for use in (lambda: slow.path, lambda: slow / "x", lambda: os.stat(slow)):  # it would be fast
                with pytest.raises(ResourceError, match="has no path"):
                    use()
        with pytest.raises(UsageError, match="not a folder"), slowfs.open_slow(folder / "a/1.jpg"):
            pass

    def test_its_summary_says_why_it_is_not_mounted_and_what_takes_how_long(self, forbidden, folder):
        with slowfs.open_slow(folder, SlowConfig(0.002, servers=4)) as slow:
            assert forbidden in slow.summary
            assert slow.summary.endswith(
                "Through its store each look-up and each open is delayed (2 ms an operation, 4 at once)."
            )

    def test_the_command_fails_in_a_sentence(self, forbidden, folder, tmp_path, capsys):
        assert main(["slowfs", str(folder), str(tmp_path / "slow")]) == 1
        told = capsys.readouterr().err
        assert forbidden in told and "slowfs.open_slow" in told and not (tmp_path / "slow").exists()


def test_a_tool_that_refuses_is_quoted(folder, tmp_path, monkeypatch):
    tool = tmp_path / "bin" / "fusermount3"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho 'fusermount3: mount failed: Operation not permitted' >&2\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:/usr/bin:/bin")
    monkeypatch.setattr(server.why_not, "__defaults__", (tmp_path,))
    with pytest.raises(ResourceError, match=r"mount failed: Operation not permitted"):
        server.mount(tmp_path)


def test_a_folder_that_may_not_be_examined_is_told(tmp_path, monkeypatch):
    def refuse(self, *more, **options):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr("pathlib.Path.is_dir", refuse)
    with pytest.raises(ResourceError, match=r"data cannot be used \(Permission denied\)"):
        server.check(tmp_path / "data", tmp_path / "slow")
