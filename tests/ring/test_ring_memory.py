"""How much memory a ring takes, and what happens when it is not there."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from smallfiles.errors import ResourceError
from smallfiles.ring import memory
from smallfiles.ring.memory import Memory, choose_slots

HERE = Path(__file__).parent
MB = 1 << 20


@pytest.fixture
def free(monkeypatch):
    def make(free_bytes):
        class Place:
            pass

        Place.free_bytes = free_bytes
        monkeypatch.setattr(memory, "node_local", lambda where: Place)

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


def test_what_is_asked_for_leaves_a_margin(free):
    free(100 * MB)
    assert chosen(slots=90) == 90
    with pytest.raises(
        ResourceError, match=r"91 slots of 1.0 MB takes 95.4 MB of /dev/shm, where 105 MB are free"
    ):
        chosen(slots=91)
    with pytest.raises(ResourceError, match=r"at most 90 slots.* Ask for 90 slots or fewer \(--slots\)"):
        chosen(slots=95)
    free(2 * MB)
    with pytest.raises(ResourceError, match="Lower the batch size"):
        chosen()


def test_slots_do_not_overlap_and_are_shared(tmp_path):
    ours = Memory.create(tmp_path, 3, 8192)
    theirs = Memory(os.dup(ours.fd), 3, 8192)
    assert list(tmp_path.iterdir()) == []  # it has no name
    for slot in range(3):
        ours.block(slot)[:] = slot + 1
    for slot in range(3):
        assert set(theirs.block(slot).tolist()) == {slot + 1}
    kept = theirs.block(1)
    ours.close()
    theirs.close()
    theirs.close()
    assert set(kept.tolist()) == {2}


def test_memory_of_another_size_is_refused(tmp_path):
    ours = Memory.create(tmp_path, 3, 8192)
    with pytest.raises(ResourceError, match="same version"):
        Memory(os.dup(ours.fd), 4, 8192)
    ours.close()


SCRIPT = """
import sys
from pathlib import Path
from ring_makers import Numbers
from smallfiles import ring
from smallfiles.ring import memory
from smallfiles.errors import SmallfilesError
from smallfiles.loading.plan import EpochPlan

where, plan, maker = Path(sys.argv[1]), EpochPlan(samples=4000, batch=400, seed=1), Numbers()

def try_one(slots):
    try:
        with ring.open_ring(maker, plan, ring.RingConfig(producers=2, slots=slots, where=where)) as loader:
            next(iter(loader))
    except SmallfilesError as error:
        print("refused:", error)

def all_right(intruder):
    with ring.open_ring(maker, plan, ring.RingConfig(producers=2, slots=12, where=where)) as loader:
        try:
            intruder.write_bytes(bytes(1_300_000))  # what the ring was promised is the ring's already
        except OSError as error:
            print("intruder:", error.strerror)
        for epoch in range(3):
            for number, batch in enumerate(loader):
                wanted = maker.make(plan.batches(epoch)[number], epoch).arrays
                assert all(batch[name].numpy().tobytes() == wanted[name].tobytes() for name in wanted)

def somebody_was_quicker():
    choose = memory.choose_slots
    def slower(*words, **more):
        found = choose(*words, **more)
        (where / "intruder").write_bytes(bytes(1_300_000))
        return found
    memory.choose_slots = slower
    try_one(12)
    memory.choose_slots = choose

if __name__ == "__main__":
    try_one(30)
    all_right(where / "intruder")
    (where / "intruder").unlink()
    somebody_was_quicker()
    (where / "intruder").write_bytes(bytes(1_900_000))
    try_one(2)
    (where / "intruder").unlink()
    print("left", [path.name for path in where.iterdir()])
"""


def test_a_full_file_system_is_told_and_never_a_bus_error(tmp_path):
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "true"], check=False).returncode:
        pytest.skip("this system lets nobody mount a small file system of his own")
    (tmp_path / "script.py").write_text(SCRIPT)
    mount = 'mount -t tmpfs -o size=2m none "$1" && exec "$2" "$3" "$1"'
    place = tmp_path / "small"
    place.mkdir()
    words = ["unshare", "-rm", "sh", "-c", mount, "sh", place, sys.executable, tmp_path / "script.py"]
    environment = {**os.environ, "PYTHONPATH": f"{HERE.parent.parent}:{HERE}"}
    done = subprocess.run(
        list(map(str, words)), env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    first, intruder, second, third, left = done.stdout.splitlines()
    assert "refused: a ring of 30 slots" in first and re.search(r"at most 1[45] slots", first)
    assert intruder == "intruder: No space left on device" and left == "left []"
    assert "has no room for 12 slots" in second and "ask for fewer slots" in second
    assert "Lower the batch size" in third
