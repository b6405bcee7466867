"""Waiting for a disk or a server is told from waiting for the processor."""

import threading
import time

import pytest

from pysquashfs import SquashFS, pack, waiting
from pysquashfs.writer import sources


def test_sleeping_is_waiting_and_working_is_not():
    watch = waiting.Watch()
    time.sleep(0.01)
    assert watch.waited_s() >= 0.01
    for _ in range(20):  # work is interrupted when its time is up, which is no waiting
        watch, end = waiting.Watch(), time.thread_time() + 0.002
        while time.thread_time() < end:
            pass
        if watch.waited_s() == 0:
            return
    pytest.fail("work that never sleeps was taken for waiting")


@pytest.mark.parametrize(("sleep_s", "threads"), [(0.0, False), (0.002, True)])
def test_files_are_read_by_threads_only_where_they_must_be_waited_for(
    tmp_path, monkeypatch, sleep_s, threads
):
    read, by = sources._small, set()

    def slow(path):
        time.sleep(sleep_s) if sleep_s else None
        by.add(threading.current_thread().name)
        return read(path)

    monkeypatch.setattr(sources, "_small", slow)
    items = []
    for number in range(100):
        path = tmp_path / f"{number}.txt"
        path.write_bytes(b"%d" % number * 1000)
        items.append((path.name, path))
    pack(tmp_path / "x.sqfs", items)
    assert any("squash-read" in name for name in by) == threads
    with SquashFS(tmp_path / "x.sqfs") as image:
        assert all(image.read(name) == path.read_bytes() for name, path in items)
