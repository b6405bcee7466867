"""Streams of pushed shards: each sample once, its own bytes, few requests at the start, many in flight."""

import contextlib
import gc
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from given import Given, bare, schema_of
from programs import wait_for

from smallfiles import digests, formats, staging
from smallfiles.errors import DamagedFileError, ResourceError, StorageError
from smallfiles.loading import BadSampleError, LoaderConfig, make_loader
from smallfiles.objectstore import streaming
from smallfiles.objectstore.access import MANIFEST
from smallfiles.objectstore.catalog import of_output
from smallfiles.progress import bytes_text
from smallfiles.samples import BlobField
from smallfiles.selection.reader import choose
from smallfiles.staging import placement

COUNT, SHARDS = 300, 50
EACH = COUNT // SHARDS
BLOCK_BYTES = 8 << 10


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """Fifty shards with several blocks each, and samples that reach over their borders."""
    rng = np.random.default_rng(5)
    samples = [
        Given(f"c{n % 7}/{n:05}.jpg", rng.bytes(int(rng.integers(0, 9000)) * (n % 11 > 0)), n % 7)
        for n in range(COUNT)
    ]
    out = tmp_path_factory.mktemp("packed") / "train.tars"
    write(samples, out, EACH, classes=tuple(f"c{n}" for n in range(7)))
    assert len(list(out.glob("*.tar"))) == SHARDS
    return out


def write(samples, out, max_count, **schema):
    tar = formats.get("tar")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digests, "BLOCK_BYTES", BLOCK_BYTES)
        options = tar.Options(max_count=max_count)
        tar.write(bare(samples), out, schema=schema_of(samples, **schema), options=options)


def push(store, path):
    """As `smallfiles push` leaves it."""
    catalog, members = of_output(path)
    for item, member in zip(catalog.items, members, strict=True):
        store.put(item.name, member.source.read_bytes())
    store.put(MANIFEST, catalog.text.encode())
    return store


def put_torn(store, path, byte):
    """Send a file with another byte in this place."""
    torn = bytearray(path.read_bytes())
    torn[byte] ^= 1
    store.put(path.name, bytes(torn))


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """Open a store, and look that nothing of it is left on the node afterwards."""
    monkeypatch.setattr(streaming, "PART_BYTES", 2 * BLOCK_BYTES)
    readers, place = [], tmp_path / "node"
    place.mkdir()

    def open(store, **more):
        readers.append(streaming.open(store, **{"where": place, **more}))
        return readers[-1]

    open.place = place
    yield open
    for reader in readers:
        reader.close()
    # A stream that was broken off finishes the shard that it is at.
    wait_for(lambda: list(place.iterdir()) == [], 10)


def stream(reader, rank=0, world=1, **more):
    settings = {"order": "stream", "batch": 16, "workers": 2, "mode": "threads", "buffer": 64, "seed": 3}
    return make_loader(reader, LoaderConfig(**(settings | more), rank=rank, world_size=world))


def contents(loader):
    """Number, label and bytes of each sample, in order."""
    found = []
    for batch in loader:
        offsets, data = batch["offsets"].tolist(), batch["data"].numpy().tobytes()
        rows = zip(batch["index"].tolist(), batch["target"].tolist(), offsets[:-1], offsets[1:], strict=True)
        found += [(index, target, data[start:stop]) for index, target, start, stop in rows]
    return found


def planned(loader, packed, epoch=0):
    """What `contents` finds if each sample comes in its place, with the bytes of the packed file."""
    local, numbers = formats.open(packed), np.concatenate(loader.plan.batches(epoch)).tolist()
    return [(number, local.target(number), bytes(local.read(number))) for number in numbers]


@pytest.mark.parametrize("world", [1, 2, 4])
def test_each_sample_comes_once_with_its_own_bytes(server, place, packed, opened, world):
    store = push(server.store(place), packed)
    found = []
    for rank in range(world):
        loader = stream(opened(store), rank, world)
        mine = contents(loader)
        assert mine == planned(loader, packed)
        found += mine
    assert Counter(index for index, _, _ in found) == Counter(range(COUNT))


def test_a_loader_opens_what_was_pushed_by_its_url(server, place, packed, as_user, tmp_path, monkeypatch):
    push(server.store(place), packed)
    as_user(server)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for url in (str(place), Path(str(place))):
        loader = make_loader(url, LoaderConfig(order="stream", batch=16, mode="main"))
        assert contents(loader) == planned(loader, packed)
        loader.dataset.maker.reader.close()


@pytest.fixture
def pushed(far, packed):
    """Behind a line that the test makes bad."""
    return push(far, packed)


@pytest.mark.parametrize(("method", "workers"), [("fork", 2), ("forkserver", 1), ("spawn", 1)])
def test_processes_get_the_same_bytes_epoch_after_epoch(pushed, opened, packed, method, workers):
    loader = stream(opened(pushed), mode="processes", start_method=method, workers=workers)
    assert contents(loader) == planned(loader, packed)
    assert contents(loader) == planned(loader, packed, 1)
    assert multiprocessing.active_children()
    del loader
    gc.collect()


def test_random_access_gives_the_same_bytes(pushed, opened, packed):
    reader, local = opened(pushed), formats.open(packed)
    rows = np.random.default_rng(0).permutation(COUNT)[:70].tolist()
    assert list(map(bytes, reader.read_many(rows))) == list(map(bytes, local.read_many(rows)))
    assert bytes(reader.read(-1)) == bytes(local.read(-1))
    assert (reader.keys(), reader.classes, len(reader)) == (local.keys(), local.classes, COUNT)
    assert reader.info()["file_bytes"] == local.info()["file_bytes"]
    again = pickle.loads(pickle.dumps(reader))
    again._store = reader._store  # keys are not pickled but for workers
    assert bytes(again.read(7)) == bytes(local.read(7))


HALF = [{"where": "label in (1, 3, 5)"}, {"split": "b", "split_rule": {"a": 0.5, "b": 0.5}}]


@pytest.mark.parametrize("order", ["stream", "random"])
@pytest.mark.parametrize("choice", HALF)
def test_a_selection_comes_once_and_says_which_bytes_are_not_used(
    pushed, opened, packed, capsys, order, choice, monkeypatch
):
    local, found = choose(formats.open(packed), **choice), []
    for rank in range(2):
        found += contents(stream(opened(pushed), rank, 2, order=order, **choice))
    assert sorted(found) == [(n, local.target(n), bytes(local.read(n))) for n in range(len(local))]
    reader, fetched, blocks = opened(pushed), [], streaming.RemoteShard.blocks
    read, used = reader.traffic(choose(reader, **choice).rows)
    assert used == sum(map(local.size, range(len(local)))) < read
    assert f"reads {bytes_text(read)}, of which {bytes_text(read - used)} are" in capsys.readouterr().err
    if order == "stream":
        count = lambda *words: fetched.append(blocks(*words)) or fetched[-1]  # noqa: E731
        monkeypatch.setattr(streaming.RemoteShard, "blocks", count)
        contents(stream(reader, workers=1, **choice))
        assert sum(map(len, fetched)) == read


def test_samples_that_share_blocks_are_fetched_by_one_request_or_from_the_node(pushed, opened, line):
    wanted = range(2 * EACH, 3 * EACH)
    for keep_bytes in (0, 1 << 40):
        reader = opened(pushed, keep_bytes=keep_bytes)
        len(reader)
        line.seen.clear()
        first = list(map(bytes, reader.read_many(wanted)))
        assert 0 < len(line.asked("GET .*000002.tar")) == len(line.asked("GET")) < EACH
        line.seen.clear()
        assert list(map(bytes, reader.read_many(wanted))) == first
        assert bool(line.asked("GET")) == (keep_bytes == 0)


MASK = BlobField("mask", ".png")


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    """Five shards with a mask and an age for each sample."""
    rng = np.random.default_rng(6)
    samples = [
        Given(f"{n:03}.jpg", rng.bytes(int(rng.integers(0, 9000))), -1, None, (rng.bytes(n * 40),), n)
        for n in range(100)
    ]
    out = tmp_path_factory.mktemp("masked") / "train.tars"
    write(samples, out, 20, blobs=(MASK,), values=pa.table({"age": pa.array(np.arange(100) / 7)}))
    return out, samples


@pytest.fixture
def far_masks(far, masked, opened):
    """A reader of them behind a line that the test makes bad."""
    return opened(push(far, masked[0]))


def test_further_fields_are_read_at_random_with_a_request_for_several(far_masks, masked, line):
    mask, samples = far_masks.blob("mask"), masked[1]
    assert far_masks.table(["age"])["age"].to_pylist() == [n / 7 for n in range(100)]
    assert mask.size(-1) == 99 * 40
    line.seen.clear()
    wanted = [99, 3, 20, 21, 22, 23, 3]
    assert [bytes(data) for data in mask.read_many(wanted)] == [samples[n].blobs[0] for n in wanted]
    assert len(line.asked("GET")) < len(set(wanted))
    assert bytes(mask.read(50)) == samples[50].blobs[0]
    assert [bytes(sample.blobs[1]) for sample in islice(far_masks, 3)] == [s.blobs[0] for s in samples[:3]]


def test_further_files_come_with_the_requests_of_a_stream_and_are_not_kept(far_masks, masked, line):
    order = [*range(40, 80), *range(20)]
    ahead, samples = far_masks.following(order), masked[1]
    mask = ahead.blob("mask")
    line.seen.clear()
    for start in range(0, len(order), 10):
        some = order[start : start + 10]
        pictures, masks = ahead.read_fields(some, ["", "mask"])
        assert [bytes(data) for data in pictures] == [samples[n].data for n in some]
        assert [bytes(data) for data in masks] == [samples[n].blobs[0] for n in some]
    assert len(line.asked("GET")) < len(order)
    assert not ahead._held  # what a request fetched is released after its last sample
    assert (len(mask), mask.size(3)) == (100, 120)
    assert bytes(mask.read(90)) == samples[90].blobs[0]  # which the stream does not have


def test_a_sample_with_a_damaged_mask_is_named_and_the_others_come(far_masks, masked):
    out, samples = masked
    start, stop = formats.open(out).blob("mask").span(45)[1:]
    put_torn(far_masks._store, out / "shard-000002.tar", (start + stop) // 2)
    order = range(40, 60)
    ahead = far_masks.following(order)
    with pytest.raises(DamagedFileError, match=r"shard-000002\.tar: block \d+ of"):
        ahead.read_fields(order, ["", "mask"])
    found = {}
    for index in order:
        with contextlib.suppress(DamagedFileError):
            found[index] = tuple(bytes(ahead.read(index, field)) for field in ("", "mask"))
    assert found == {n: (samples[n].data, samples[n].blobs[0]) for n in found}
    assert 45 not in found
    assert len(found) > 10
    assert not any(
        each for each in ahead._late.values() if isinstance(each, dict)
    )  # nothing is returned twice


@pytest.mark.parametrize("order", [None, "random"])
def test_no_order_trains_on_a_byte_that_was_changed(pushed, opened, packed, line, order):
    """One in each of ten shards, and the store says that nothing has changed."""
    for path in sorted(packed.glob("*.tar"))[::5]:
        put_torn(pushed, path, path.stat().st_size // 2)
    line.etag = '"as before"'
    loader = make_loader(opened(pushed), LoaderConfig(order=order, batch=100, mode="main", on_error="skip"))
    local = formats.open(packed)
    found = contents(loader)
    assert 0 < len(found) == COUNT - loader.fault_count < COUNT
    assert all(data == bytes(local.read(index)) for index, _, data in found)
    assert bool(loader.plan.streams) == (order != "random")


def test_a_reader_requests_the_manifest_and_a_node_each_index_once(pushed, opened, line):
    line.seen.clear()
    len(opened(pushed))
    assert len(line.seen) == len(line.asked(r"GET .*(json|index\.arrow)$")) == 1 + SHARDS
    line.seen.clear()
    for _ in range(3):  # other ranks of this node
        len(opened(pushed))
    assert len(line.seen) == len(line.asked(r"GET .*smallfiles\.json$")) == 3


def test_a_shard_that_is_replaced_is_not_taken_for_what_was_packed(pushed, opened, packed):
    name, reader = "shard-000007.tar", opened(pushed)
    put_torn(pushed, packed / name, 600)
    with pytest.raises(DamagedFileError, match=rf"{name}: block 0 of \d is not what was packed"):
        reader.read(7 * EACH)
    with pytest.raises(BadSampleError, match=rf"of s3://.*{name}: block 0 of \d is not what was packed"):
        contents(stream(reader))


def test_a_place_where_another_set_lies_by_now_is_read_anew(pushed, opened, packed, tmp_path):
    """No process takes what the node has of the set that was there before."""
    before = opened(pushed)
    assert len(before) == COUNT
    other = tmp_path / "few.tars"
    other.mkdir()
    for path in packed.glob("shard-00000*"):
        shutil.copy(path, other / path.name)
    push(pushed, other)
    assert len(opened(pushed)) == 10 * EACH


def test_a_resumed_epoch_goes_on_without_reading_what_came_before(pushed, opened, packed, line):
    whole = contents(stream(opened(pushed)))
    loader = stream(opened(pushed))
    half = iter(loader)
    for _ in range(10):
        next(half)
    state = loader.state_dict()
    half.close()
    again = stream(opened(pushed))
    again.load_state_dict(state)
    line.seen.clear()
    assert contents(again) == whole[10 * 16 :]
    blocks = sum(-(-path.stat().st_size // BLOCK_BYTES) for path in packed.glob("*.tar"))
    assert len(line.asked("GET")) < 0.75 * blocks


def test_a_stream_continues_inside_a_shard_after_the_line_broke(pushed, opened, packed, line):
    line.only, line.cut_after, line.cuts = r"shard-\d+\.tar$", 6000, 40
    line.refuse = [(503, "SlowDown")] * 5
    loader = stream(opened(pushed))
    assert contents(loader) == planned(loader, packed)
    assert line.cuts == 0


def test_of_several_blocks_in_a_request_a_damaged_one_costs_only_its_samples(pushed, opened, packed):
    name, block = "shard-000011.tar", 2
    put_torn(pushed, packed / name, block * BLOCK_BYTES + 5000)
    reader = opened(pushed)
    lost = set(range(COUNT)) - {index for index, _, _ in contents(stream(reader, on_error="skip"))}
    extents = {n: reader._shards().extent(n)[1:] for n in range(11 * EACH, 12 * EACH)}
    border = block * BLOCK_BYTES
    hit = {n for n, (start, stop) in extents.items() if start < border + BLOCK_BYTES and stop > border}
    assert lost == hit and 0 < len(hit) < EACH


def test_a_server_that_is_gone_is_an_error_and_no_sample_is_left_out(pushed, opened, line):
    loader = stream(opened(pushed), on_error="skip", storage_timeout_s=0.3)
    batches = iter(loader)
    next(batches)
    line.refuse = [(500, "InternalError")] * 9999
    with pytest.raises(StorageError, match=r"did not answer for .*answered InternalError \(500\)"):
        list(batches)


def test_several_requests_are_in_flight_and_memory_is_bounded(pushed, opened, line):
    reader = opened(pushed, in_flight=5)
    at_once, most, lock = 0, 0, threading.Lock()

    def count(method, target):
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        wait_for(lambda: most >= 5)  # however long a busy machine takes to begin the others
        time.sleep(0.1)  # and for one too many to come
        with lock:
            at_once -= 1

    line.before = count
    reader = reader.following(range(COUNT))
    line.seen.clear()
    reader.read_many(range(12))
    time.sleep(1.0)
    assert most == 5
    assert len(line.asked("GET")) <= 12 + 5


def test_shards_are_kept_on_the_node_up_to_the_limit(pushed, opened, packed, line):
    sizes = [path.stat().st_size for path in sorted(packed.glob("*.tar"))]
    loader = stream(opened(pushed, keep_bytes=sum(sizes[:20])))
    assert contents(loader) == planned(loader, packed)
    (copy,) = [each for each in staging.listing([opened.place]) if opened.place in each.path.parents]
    kept = {path.name for path in copy.path.glob("*.tar")}
    assert kept == {f"shard-{number:06}.tar" for number in range(20)}
    line.seen.clear()
    assert contents(loader) == planned(loader, packed, 1)
    assert contents(stream(opened(pushed, keep_bytes=sum(sizes[:20])), 1, 2))  # another rank of the node
    asked = {one.rpartition("/")[2] for one in line.asked(r"GET .*tar$")}
    assert asked == {f"shard-{number:06}.tar" for number in range(20, SHARDS)}


def test_a_node_that_is_full_reads_from_the_store(pushed, opened, packed, monkeypatch):
    reader = opened(pushed, keep_bytes=1 << 40)
    real = placement.check_room

    def full(place, output, config):
        if output.bytes:
            raise ResourceError("it is full", expected="room", next_step="Make some")
        real(place, output, config)

    monkeypatch.setattr(placement, "check_room", full)
    loader = stream(reader)
    assert contents(loader) == planned(loader, packed)
    assert not list(opened.place.rglob("*.tar"))


def test_a_damaged_shard_is_never_kept(pushed, opened, line):
    line.only, line.flip = "shard-000011.tar$", 5
    with pytest.raises(BadSampleError, match=r"shard-000011\.tar: block"):
        contents(stream(opened(pushed, keep_bytes=1 << 40)))
    gc.collect()
    assert not list(opened.place.rglob("shard-000011.tar"))


KILLED = """
import sys, time
from smallfiles.objectstore import streaming
reader = streaming.open("s3://" + sys.argv[1], keep_bytes=1 << 40, where=sys.argv[2])
list(zip(reader.following(range(30)).read_many(range(30)), range(30)))
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_what_a_killed_process_kept_goes(pushed, opened, servers, as_user, number):
    as_user(servers("rclone"), url=pushed.endpoint)
    command = [sys.executable, "-c", KILLED, str(pushed.place).removeprefix("s3://"), str(opened.place)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ})
    assert process.stdout.readline() == b"ready\n"
    assert list(opened.place.rglob("shard-000000.tar"))
    process.send_signal(number)
    process.wait(20)
    process.stdout.close()
    if number == signal.SIGKILL:
        opened(pushed).close()  # the next one takes over what is whole, and removes all
    assert not list(opened.place.rglob("shard-000000.tar"))
