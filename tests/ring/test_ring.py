"""A ring in the trainer's own process: the batches of a loader, ahead, and nothing left behind."""

import os
import stat
import threading
import time

import numpy as np
import pytest
import torch
from ring_makers import Elsewhere, Numbers, Raising, Skipping

from smallfiles import ring
from smallfiles.errors import OutputExistsError, ResourceError, SmallfilesError, UsageError
from smallfiles.loading import LoaderConfig, make_loader
from smallfiles.loading.plan import EpochPlan
from smallfiles.ring import RingConfig, RingError
from smallfiles.ring.folder import RingFiles


def test_all_epochs_are_those_of_the_plan(maker, plan, config, same):
    with ring.open_ring(maker, plan, config(epochs=3)) as loader:
        for epoch in range(3):
            assert len(loader) == 7
            count = 0
            for number, batch in enumerate(loader):
                same(batch, maker, plan, epoch, number)
                count += 1
            assert count == 7


def test_it_gives_what_a_data_loader_gives(where):
    maker = Numbers(seed=9)
    settings = LoaderConfig(batch=8, seed=4, mode="main")
    peer = make_loader(maker, settings)
    with ring.open_ring(maker, peer.plan, RingConfig(slots=4, where=where)) as loader:
        for _ in range(2):
            for ours, theirs in zip(loader, peer, strict=True):
                assert ours.keys() == theirs.keys()
                assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
        assert loader.state_dict() == peer.state_dict()
        assert (peer.state_dict()["epoch"], peer.state_dict()["batch"]) == (2, 0)


def test_a_batch_may_be_changed_in_place_and_outlives_the_ring(maker, plan, config, same):
    with ring.open_ring(maker, plan, config(slots=3)) as loader:
        for epoch in range(2):
            for number, batch in enumerate(loader):
                same(batch, maker, plan, epoch, number)
                batch["pixels"].zero_()
                if (epoch, number) == (1, 3):
                    break
    assert int(batch["pixels"].sum()) == 0  # the mapping is there as long as the tensor


def test_a_pass_that_was_broken_off_is_followed_by_the_next_epoch(maker, plan, config, same):
    with ring.open_ring(maker, plan, config()) as loader:
        for number, batch in enumerate(loader):
            batch["pixels"].zero_()
            if number == 2:
                break
        for number, batch in enumerate(loader):
            same(batch, maker, plan, 1, number)
        loader.set_epoch(0)
        for number, batch in enumerate(loader):
            same(batch, maker, plan, 0, number)


def test_it_goes_to_any_epoch_and_batch(maker, plan, config, same):
    with ring.open_ring(maker, plan, config()) as loader:
        for epoch, start in ((2, 3), (7, 0), (7, 6), (0, 1), (3, 6)):
            loader.schedule.start_at(epoch, start)
            numbers = []
            for number, batch in enumerate(loader, start):
                same(batch, maker, plan, epoch, number)
                numbers.append(number)
            assert numbers == list(range(start, 7))
        loader.schedule.start_at(4, 7)
        assert list(loader) == []
        assert len(list(loader)) == 7  # epoch 5


def test_training_goes_on_from_the_state_of_a_checkpoint(maker, plan, config, same):
    with ring.open_ring(maker, plan, config()) as loader:
        for number, _ in enumerate(loader):
            if number == 3:
                state = loader.state_dict()
                break
    assert (state["epoch"], state["batch"]) == (0, 4)
    with ring.open_ring(maker, plan, config()) as loader:
        loader.load_state_dict(state)
        for number, batch in enumerate(loader, 4):
            same(batch, maker, plan, 0, number)
        with pytest.raises(UsageError, match="holds other batches"):
            loader.load_state_dict({"epoch": 0, "batch": 4, "plan": {}})


def test_a_maker_that_raises_is_reported_with_the_sample_and_in_order(plan, config, same):
    maker = Raising(bad=int(plan.batches(0)[4][3]))
    with ring.open_ring(maker, plan, config()) as loader:
        with pytest.raises(
            RingError,
            match=rf"batch 4 of epoch 0 .*ValueError: the colours are wrong This was sample {maker.bad}",
        ):
            for number, batch in enumerate(loader):
                assert number < 4
                same(batch, Numbers(), plan, 0, number)
        for number, batch in enumerate(loader):  # the next epoch is well
            same(batch, Numbers(), plan, 1, number)


def test_samples_left_out_are_counted(plan, config, same):
    maker = Skipping()
    with ring.open_ring(maker, plan, config()) as loader:
        for number, batch in enumerate(loader):
            same(batch, maker, plan, 0, number)
        assert loader.fault_count == 8
        assert {fault.index for fault in loader.faults} == set(range(0, 50, 7))
        assert loader.faults[0].key == f"images/{loader.faults[0].index}.jpg"


def test_a_maker_that_fills_other_memory_is_refused(plan, config):
    with ring.open_ring(Elsewhere(), plan, config()) as loader, pytest.raises(RingError, match="did not put"):
        next(iter(loader))


def test_a_maker_that_cannot_be_sent_is_refused(plan, config):
    class Local(Numbers):
        pass

    with pytest.raises(RingError, match="cannot be sent to a process"):
        ring.open_ring(Local(), plan, config())


def test_a_second_ring_of_the_same_name_is_refused(maker, plan, config):
    with ring.open_ring(maker, plan, config(name="train")) as loader:
        with pytest.raises(
            OutputExistsError, match=f"train is there already, filled by process {os.getpid()}"
        ):
            ring.open_ring(maker, plan, config(name="train"))
        assert len(list(loader)) == 7
    with ring.open_ring(maker, plan, config(name="train")) as loader:
        assert len(list(loader)) == 7


def test_a_second_trainer_is_refused_and_a_successor_is_not(maker, plan, filling, where, same):
    with ring.attach(filling, where=where) as loader:
        next(iter(loader))
        with pytest.raises(RingError, match=f"feeds process {os.getpid()} already"):
            ring.attach(filling, where=where)
    with ring.attach(filling, where=where) as successor:
        for number, batch in enumerate(successor):
            same(batch, maker, plan, 0, number)


def test_each_rank_has_a_ring_of_its_own(maker, plan, config, where, monkeypatch):
    plans = [EpochPlan(samples=50, batch=8, rank=rank, world_size=2) for rank in range(2)]
    with (
        ring.open_ring(maker, plans[0], config(name="train")) as first,
        ring.open_ring(maker, plans[1], config(name="train")) as second,
    ):
        assert ring.names(where) == [first.name, second.name] == ["train.0", "train.1"]
        seen = [int(i) for loader in (first, second) for batch in loader for i in batch["index"]]
        assert sorted(seen) == list(range(50))
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        with pytest.raises(RingError, match=r"ring train\.1 feeds process"):
            ring.attach("train", where=where)


def test_progress_of_both_sides_can_be_asked_for(maker, plan, config, where):
    with ring.open_ring(maker, plan, config(name="train")) as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        while (now := ring.status("train", where)).state != "full":
            pass
        assert (now.trainer_epoch, now.trainer_batch, now.consumed) == (0, 2, 2)
        assert (now.filler_epoch, now.filler_batch, now.made, now.ready) == (1, 0, 7, 5)
        assert (now.pid, now.trainer_pid, now.producers, now.restarts) == (os.getpid(), os.getpid(), 2, 0)
        assert "full, 5 of 5 slots ready" in now.sentence()
        batches.close()
    with pytest.raises(UsageError, match="no ring called train"):
        ring.status("train", where)


def test_the_folder_is_private_and_holds_no_batch(maker, plan, config, where):
    with ring.open_ring(maker, plan, config(name="train")) as loader:
        next(iter(loader))
        (base,) = where.iterdir()
        assert stat.S_IMODE(base.stat().st_mode) == 0o700
        sizes = {entry.name: entry.stat().st_size for entry in base.iterdir()}
        assert sizes.keys() == {"train.lock", "train.json", "train.socket"}
        assert sum(sizes.values()) < 4096


def test_a_folder_that_others_can_write_to_is_refused(maker, plan, config, where):
    base = where / f"smallfiles-ring-{os.geteuid()}"
    base.mkdir(mode=0o777)
    base.chmod(0o777)
    with pytest.raises(ResourceError, match="is open to others"):
        ring.open_ring(maker, plan, config())
    base.rmdir()
    (where / "elsewhere").mkdir(mode=0o700)
    base.symlink_to(where / "elsewhere")
    with pytest.raises(ResourceError, match="is a symbolic link"):
        ring.open_ring(maker, plan, config())
    base.unlink()
    (where / "elsewhere").rmdir()


def test_a_trainer_takes_no_batches_out_of_a_folder_that_others_can_write_to(maker, plan, config, where):
    with ring.open_ring(maker, plan, config(name="train")):
        base = where / f"smallfiles-ring-{os.geteuid()}"
        base.chmod(0o777)
        for ask in (ring.attach, ring.status):
            with pytest.raises(ResourceError, match="is open to others"):
                ask("train", where=where)
        base.chmod(0o700)


def test_an_epoch_loop_without_end_and_one_with(maker, plan, config):
    with ring.open_ring(maker, plan, config(epochs=2)) as loader:
        assert len(list(loader)) == len(list(loader)) == 7
        with pytest.raises(SmallfilesError):
            next(iter(loader))
    with pytest.raises(RingError, match="was closed"):
        next(iter(loader))


def test_a_loader_closed_within_its_pass_says_so(maker, plan, config):
    loader = ring.open_ring(maker, plan, config())
    with pytest.raises(RingError, match="was closed"):
        for batch in loader:
            loader.close()
            assert int(batch["index"][0]) >= 0


def test_a_ring_without_a_filler_is_a_sentence(where):
    with pytest.raises(RingError, match=r"nobody fills ring train.* ring fill DATA --name train"):
        ring.attach("train", where=where, wait_s=0.2)


def test_a_filler_that_does_not_run_yet_is_starting(maker, plan, config, where, monkeypatch):
    monkeypatch.setattr("smallfiles.ring.folder._ANSWER_S", 0.1)
    filler = ring.Filler(maker, plan, config(name="train"))
    assert ring.status("train", where).state == "starting"
    assert "is starting" in ring.status("train", where).sentence()
    (where / f"smallfiles-ring-{os.geteuid()}" / "train.json").unlink()
    assert ring.status("train", where).state == "starting"
    filler.close()
    with pytest.raises(UsageError, match="expected a ring, and none is there"):
        ring.status("train", where)


def test_a_filler_whose_producers_finish_their_batch_is_ending(plan, config, where):
    """A status request neither waits for them nor reads that it is starting."""
    filler = ring.Filler(Numbers(delay_s=2), plan, config(name="train"))
    thread = threading.Thread(target=filler.run)
    thread.start()
    while ring.status("train", where).making < 2:
        time.sleep(0.01)
    filler.stop()
    seen = set()
    with pytest.raises(UsageError, match="no ring called train"):
        while True:
            seen.add(ring.status("train", where).sentence().partition("; ")[0])
    thread.join()
    assert f"ring train: its filler (process {os.getpid()}) is ending" in seen


def test_messages_that_are_no_protocol_of_ours_are_ignored(maker, plan, config, where, same):
    with ring.open_ring(maker, plan, config(name="train")) as loader:
        files = RingFiles.of("train", where)
        for words in (b"junk", b"[1]", b"{}", b'{"hello":"trainer"}', b'{"hello":7}', b"\xff" * 60_000):
            channel = files.connect()
            channel.socket.send(words)
            channel.receive(5)
            channel.close()
        for number, batch in enumerate(loader):
            same(batch, maker, plan, 0, number)


def test_a_forgotten_loader_is_closed_when_it_is_collected(maker, plan, config):
    loader = ring.open_ring(maker, plan, config())
    next(iter(loader))
    del loader


def test_a_ring_that_does_not_fit_is_refused_with_the_numbers(maker, plan, config, where):
    with pytest.raises(
        ResourceError, match=r"1,000,000,000,000 slots .* are free for this job; expected at most"
    ):
        ring.open_ring(maker, plan, config(slots=10**12))
    with ring.open_ring(maker, plan, config(slots=None, epochs=2)) as loader:
        assert ring.status(loader.name, where).slots == 14  # more would never be used


@pytest.mark.parametrize("wrong", [{"slots": 1}, {"producers": 0}, {"epochs": 0}])
def test_a_configuration_that_makes_no_sense_is_refused(wrong, config):
    with pytest.raises(UsageError):
        config(**wrong)


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "x" * 65, "a b"])
def test_a_name_that_could_lead_elsewhere_is_refused(name, maker, plan, config):
    with pytest.raises(UsageError, match="ring's name"):
        ring.open_ring(maker, plan, config(name=name))


def test_large_and_tiny_batches_and_many_slots(config):
    for samples, batch, slots in ((1, 1, 2), (3, 64, 2), (1000, 400, 3), (150, 1, 400)):
        plan = EpochPlan(samples=samples, batch=batch)
        with ring.open_ring(Numbers(), plan, config(slots=slots)) as loader:
            for _ in range(2):
                found = np.concatenate([batch["index"].numpy().copy() for batch in loader])
                assert sorted(found.tolist()) == list(range(samples))
