import io
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from smallfiles.errors import SourceError
from smallfiles.pack import reading
from smallfiles.pack.reading import check_decode, check_header, examiner


class MemoryStore:
    sequential = False

    def __init__(self, files, delay_s=0.0, meet=0):
        self.files, self.delay_s = files, delay_s
        self.meet = meet  # the first reads wait for each other
        self.open_now, self.most_open, self.lock = 0, 0, threading.Condition()

    def size(self, path):
        return len(self.files[path])

    def read_into(self, path, buffer):
        with self.lock:
            self.open_now += 1
            self.most_open = max(self.most_open, self.open_now)
            self.lock.notify_all()
            assert self.lock.wait_for(lambda: self.most_open >= self.meet, 30)
        time.sleep(self.delay_s)
        data = self.files[path]
        if len(data) <= len(buffer):
            buffer[: len(data)] = data
        with self.lock:
            self.open_now -= 1
        return len(data)

    def describe(self):
        return "memory"


def start(store, threads, sizes=None):
    names = list(store.files)
    expected = np.array(sizes or [len(store.files[name]) for name in names], np.int64)
    return reading.read_in_order(store, names, expected, threads=threads, examine=examiner("none"))


def read_all(store, threads, sizes=None):
    return [b"ERROR" if read.error else bytes(read.data) for read in start(store, threads, sizes)]


@given(st.lists(st.binary(max_size=2000), max_size=200), st.sampled_from([1, 2, 7]))
def test_samples_arrive_complete_and_in_order_whatever_the_threads(bodies, threads):
    store = MemoryStore({f"{n}": body for n, body in enumerate(bodies)})
    assert read_all(store, threads) == bodies


@pytest.mark.parametrize("threads", [1, 4])
def test_samples_that_are_kept_keep_their_bytes(threads):
    store = MemoryStore({f"{n}": bytes([n % 251]) * 100_000 for n in range(300)})
    kept = [read.data for read in start(store, threads) if read.position % 7 == 0]
    assert kept == [store.files[f"{n}"] for n in range(0, 300, 7)]


def test_memory_that_nobody_holds_is_used_again():
    reads = start(MemoryStore({f"{n}": bytes(100_000) for n in range(300)}), threads=1)
    places = {np.frombuffer(read.data, np.uint8).ctypes.data for read in reads}
    assert len(places) <= 2 * reading.CHUNK_BYTES // 100_000  # two chunks in turns


@given(st.lists(st.integers(0, 3 << 20), max_size=300))
def test_chunks_cover_every_sample_once_and_stay_small(sizes):
    borders = list(reading.chunk_borders(np.array(sizes, np.int64)))
    assert [n for start, stop in borders for n in range(start, stop)] == list(range(len(sizes)))
    for start, stop in borders:
        assert stop - start <= reading.CHUNK_SAMPLES
        assert stop - start == 1 or sum(sizes[start:stop]) <= reading.CHUNK_BYTES


def test_as_many_files_are_open_at_once_as_asked_for():
    store = MemoryStore({f"{n}": bytes(100) for n in range(1024)}, meet=8)
    read_all(store, threads=8)
    assert store.most_open == 8


def test_waiting_samples_never_exceed_the_window(monkeypatch):
    monkeypatch.setattr(reading, "WINDOW_BYTES", 1 << 20)
    store = MemoryStore({f"{n}": bytes(300_000) for n in range(40)})
    reads = start(store, threads=16)
    next(reads)
    time.sleep(0.2)
    assert store.most_open <= 2
    assert len(list(reads)) == 39


@pytest.mark.parametrize("change", [-1, 1, 50_000])
def test_a_file_of_another_size_than_the_manifest_says_is_an_error(change):
    store = MemoryStore({"a": bytes(60_000), "b": bytes(10)})
    assert read_all(store, 2, [60_000 - change, 10]) == [b"ERROR", bytes(10)]


def test_an_abandoned_reader_ends_its_threads():
    before = set(threading.enumerate())
    reads = start(MemoryStore({f"{n}": bytes(100_000) for n in range(500)}, delay_s=0.001), threads=8)
    next(reads)
    reads.close()
    assert set(threading.enumerate()) <= before


def test_a_header_check_names_what_is_wrong(tmp_path):
    good = photograph()
    check_header("a.JPEG", memoryview(good))
    check_header("a.JPEG", memoryview(good + bytes(300)))  # padding after the end is harmless
    check_header("a.JPEG", memoryview(b"\x89PNG\r\n\x1a\n" + bytes(9)))  # n02105855_2933.JPEG is a PNG
    check_header("notes.txt", memoryview(b"anything"))
    half = photograph(preview=True)[:-2000]
    assert half.rfind(b"\xff\xd9") > 0  # that of the preview
    for data, words in ((b"", "empty"), (good[:-2], "cut off"), (half, "cut off"), (b"<html>", "web page")):
        with pytest.raises(SourceError, match=f"a.JPEG is .*{words}"):
            check_header("a.JPEG", memoryview(data))


def test_decoding_finds_what_the_header_hides():
    whole = photograph(preview=True)
    check_decode("a.JPEG", memoryview(whole))
    for name, data, words in (
        ("a.JPEG", b"\xff\xd8\xff\xe0" + bytes(50) + b"\xff\xd9", "cannot be decoded"),
        ("a.JPEG", whole[:-2000] + b"\xff\xd9", "libjpeg warns: .*premature end"),
        ("a.ppm", b"P6\n40 30\n255\n" + bytes(40 * 30), "truncated"),
        ("a.tif", as_file(Image.new("F", (8, 8), 0.5), "TIFF"), "floating-point"),
    ):
        with pytest.raises(SourceError, match=f"{name} does not decode: .*{words}"):
            check_decode(name, memoryview(data))


def as_file(picture, kind, **options):
    out = io.BytesIO()
    picture.save(out, kind, **options)
    return out.getvalue()


def photograph(preview=False):
    """A JPEG, perhaps with a whole small one in its header, as cameras write it."""
    picture = Image.effect_noise((160, 120), 60).convert("RGB")
    data = as_file(picture, "JPEG")
    if not preview:
        return data
    block = b"Exif\0\0II*\0\x08\0\0\0\0\0\0\0\0\0" + as_file(picture.resize((40, 30)), "JPEG")
    return data[:2] + b"\xff\xe1" + (len(block) + 2).to_bytes(2, "big") + block + data[2:]
