"""What a piece of code moves is counted: by system calls, by Arrow, as objects."""

import shutil

import pyarrow as pa
import pytest

from helpers.experiments.nb03 import watched
from smallfiles import sources
from smallfiles.pack import PackConfig, pack


@pytest.fixture
def packed(tmp_path):
    for number in range(40):
        path = tmp_path / f"tree/class{number % 2}/{number:03}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\xff\xd8\xff" + bytes([number]) * 20_000 + b"\xff\xd9")
    pack(sources.load(tmp_path / "tree"), tmp_path / "packed/p.arrow", PackConfig(verify="none"))
    return tmp_path / "packed/p.arrow"


def test_an_open_file_reads_the_batch_and_a_map_reads_none_of_it(packed):
    with watched() as opened:
        first = pa.ipc.open_file(pa.OSFile(str(packed))).get_batch(0)
    with watched() as mapped:
        second = pa.ipc.open_file(pa.memory_map(str(packed))).get_batch(0)
    assert first.equals(second)
    assert min(opened.read, opened.arrow) > 40 * 20_000 and opened.most >= opened.read
    assert mapped.most < 20_000
    with watched() as moved:  # as Python objects
        images = second["data"].to_pylist()
    assert moved.python > 40 * 20_000 and len(images) == 40


def test_what_was_allocated_outlives_the_block(packed):
    """A memory pool that is gone when its buffers are freed would end the process."""
    for _ in range(50):
        with watched():
            batch = pa.ipc.open_file(pa.OSFile(str(packed))).get_batch(0)
    assert batch.num_rows == 40 and pa.default_memory_pool().backend_name != ""
    shutil.rmtree(packed.parent)
