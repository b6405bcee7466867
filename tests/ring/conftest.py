"""What the tests of the ring share."""

import multiprocessing
import threading

import pytest
from ring_makers import Numbers

from smallfiles import ring
from smallfiles.loading.plan import EpochPlan
from smallfiles.ring import RingConfig


@pytest.fixture
def where(tmp_path):
    """A place for rings; nothing may be left of them, no file, no process and no thread."""
    place = tmp_path / "shm"
    place.mkdir()
    yield place
    assert list(place.iterdir()) == []
    assert multiprocessing.active_children() == []
    assert [t.name for t in threading.enumerate() if t.name.startswith("ring")] == []


@pytest.fixture
def maker():
    return Numbers()


@pytest.fixture
def plan():
    return EpochPlan(samples=50, batch=8, seed=5)


@pytest.fixture
def config(where):
    """Small; its fork server starts once for all tests."""

    def make(**more):
        return RingConfig(**{"slots": 5, "producers": 2, "where": where, **more})

    return make


@pytest.fixture
def filling(maker, plan, config):
    """The name of a ring that a thread fills without end."""
    filler = ring.Filler(maker, plan, config(name="train"))
    thread = threading.Thread(target=filler.run)
    thread.start()
    yield filler.name
    filler.stop()
    thread.join()


@pytest.fixture
def same():
    """Whether a batch is that of a maker and a plan, byte for byte."""

    def check(batch, maker, plan, epoch, number):
        wanted = maker.make(plan.batches(epoch)[number], epoch).arrays
        assert sorted(batch) == sorted(wanted)
        for name, array in wanted.items():
            assert batch[name].numpy().dtype == array.dtype
            assert batch[name].numpy().tobytes() == array.tobytes(), (epoch, number, name)

    return check
