"""How much memory a ring takes, and what happens when it is not there."""

import multiprocessing.forkserver
import re
from pathlib import Path

import pytest
from programs import on_small_disk
from ring_makers import Numbers

from smallfiles import ring
from smallfiles.errors import ResourceError
from smallfiles.loading.plan import EpochPlan
from smallfiles.ring import folder
from smallfiles.ring.folder import choose_slots

MB = 1 << 20


@pytest.fixture
def free(monkeypatch):
    def make(free_bytes):
        class Place:
            pass

        Place.free_bytes = free_bytes
        monkeypatch.setattr(folder, "node_local", lambda where: Place)

    return make


def chosen(slots=None, most=1000):
    return choose_slots(MB, Path("/dev/shm"), slots, most)


def test_what_is_not_asked_for_is_a_quarter_of_what_is_free(free):
    free(100 * MB)
    assert chosen() == 25
    assert chosen(most=7) == 7
    assert chosen(most=1) == 2
    free(4 * MB)
    assert chosen() == 2


PLAN = EpochPlan(samples=4000, batch=400, seed=1)
MAKER = Numbers()


def opened(where, slots):
    return ring.open_ring(MAKER, PLAN, ring.RingConfig(producers=2, slots=slots, where=where))


def refused(where, slots):
    with pytest.raises(ResourceError) as caught:
        opened(where, slots)
    return str(caught.value)


def fill_up(where, intruder):
    """On a file system of 2 MB, where a slot takes 0.13 MB."""
    multiprocessing.forkserver._forkserver.__init__()  # that of the parent is none of ours
    words = refused(where, 30)
    assert words.startswith("a ring of 30 slots") and re.search(r"at most 1[45] slots", words)
    with opened(where, 12) as loader:
        with pytest.raises(OSError, match="No space left on device"):
            intruder.write_bytes(bytes(1_300_000))  # what the ring was promised is the ring's already
        for number, batch in enumerate(loader):
            wanted = MAKER.make(PLAN.batches(0)[number], 0).arrays
            assert all(batch[name].numpy().tobytes() == wanted[name].tobytes() for name in wanted)
    del batch  # the memory is there as long as the tensor
    intruder.unlink()
    choose = folder.choose_slots
    folder.choose_slots = lambda *words: (choose(*words), intruder.write_bytes(bytes(1_300_000)))[0]
    words = refused(where, 12)  # somebody was quicker
    assert "has no room for 12 slots" in words and "ask for fewer slots" in words
    folder.choose_slots = choose
    intruder.write_bytes(bytes(1_900_000))
    assert "Lower the batch size" in refused(where, 2)
    intruder.unlink()


def without_inodes(where):
    """After the folder and the lock: at the slots, the socket, or the record."""
    assert "cannot be written (No space left on device)" in refused(where, 2)


@pytest.mark.parametrize("options", ["size=2m", *(f"nr_inodes={count}" for count in (3, 4))])
def test_a_full_file_system_is_a_sentence_and_never_a_bus_error(tmp_path, options):
    place = tmp_path / "small"
    run = (fill_up, place, place / "intruder") if options == "size=2m" else (without_inodes, place)
    done = on_small_disk(place, options, *run)
    assert (done.returncode, done.stdout) == (0, "left []\n"), done.stderr
