"""Whichever process is killed, and whenever: no batch is changed or misplaced, and nothing is left."""

import itertools
import multiprocessing.forkserver
import os
import random
import signal
import time
import warnings
from pathlib import Path

import pytest
from programs import Program, wait_for
from ring_makers import Deadly, Numbers
from ring_trainer import PLAN, digest, run

from smallfiles import ring
from smallfiles.ring import RingError, RingWarning
from smallfiles.ring.channel import Channel


@pytest.fixture
def programs(where):
    """Starts trainers and fillers; ends those that a test left."""
    started = []

    def start(*words):
        started.append(Program(run, *map(str, words)))
        return started[-1]

    yield start
    for program in started:
        program.end()
    for name in ring.names(where):
        ring.remove_leftover(name, where)


def lines(log):
    """Whole lines of a log: (epoch, batch, digest)."""
    text = log.read_text() if log.exists() else ""
    return [tuple(line.split()) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def right(epoch, number):
    return digest(Numbers().make(PLAN.batches(epoch)[number], epoch).arrays)


def check(found, epochs, repeats=0):
    """Every batch right and in order; after each kill at most one comes again."""
    assert all(value == right(int(epoch), int(number)) for epoch, number, value in found)
    order = [(int(epoch), int(number)) for epoch, number, _ in found]
    wanted = [(epoch, number) for epoch in range(epochs) for number in range(7)]
    again = [this for before, this in itertools.pairwise(order) if this == before]
    assert len(again) <= repeats
    assert [this for place, this in enumerate(order) if not place or order[place - 1] != this] == wanted


def children(pid):
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def producers():
    """Asking `multiprocessing` for them could take the exit code of a dead one from its filler."""
    return children(multiprocessing.forkserver._forkserver._forkserver_pid)


def kill_producers(count, seed, config, same, delay_s=0.002):
    rng = random.Random(seed)
    maker, victims, seen = Numbers(delay_s=delay_s), [], 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with ring.open_ring(maker, PLAN, config(slots=8)) as loader:
            while len(victims) < count:
                epoch = loader.schedule.epoch
                for number, batch in enumerate(loader):
                    same(batch, Numbers(), PLAN, epoch, number)
                    seen += 1
                    if rng.random() < 0.3 and len(victims) < count:
                        alive = [pid for pid in producers() if pid not in victims]
                        time.sleep(rng.random() * delay_s)
                        if alive:
                            victims.append(rng.choice(alive))
                            os.kill(victims[-1], signal.SIGKILL)
            wait_for(lambda: ring.status(loader.name, config().where).restarts == len(victims))
            epoch = loader.schedule.epoch
            for number, batch in enumerate(loader):
                same(batch, Numbers(), PLAN, epoch, number)
    sentences = [str(w.message) for w in caught if w.category is RingWarning]
    assert sum("killed by signal 9" in sentence for sentence in sentences) >= count - 2
    return seen


@pytest.fixture
def patient(monkeypatch):
    """On a busy machine several in a row may be killed before they begin."""
    monkeypatch.setattr("smallfiles.ring.pool._DEATHS_AT_START", 50)


def test_producers_killed_at_random_moments_cost_no_batch(config, same, patient):
    assert kill_producers(20, 1, config, same) > 40


@pytest.mark.slow
def test_producers_killed_a_thousand_times_cost_no_batch(config, same, patient):
    assert kill_producers(1000, 2, config, same) > 1000


@pytest.fixture
def stillborn(monkeypatch):
    """The next so many producers are killed after they were forked and before they are given their work."""
    left, connect_to_new_process = [0], multiprocessing.forkserver.connect_to_new_process

    def killing(descriptors):
        before = set(producers()) if left[0] else set()
        ends = connect_to_new_process(descriptors)
        if left[0]:
            left[0] -= 1
            wait_for(lambda: set(producers()) - before)
            (child,) = set(producers()) - before
            os.kill(child, signal.SIGKILL)
            wait_for(lambda: not Path(f"/proc/{child}").exists())
        return ends

    monkeypatch.setattr(multiprocessing.forkserver, "connect_to_new_process", killing)
    return lambda count: left.__setitem__(0, count)


def test_a_producer_killed_while_it_is_started_is_replaced(config, same, stillborn, patient):
    with ring.open_ring(Numbers(delay_s=0.002), PLAN, config(slots=8)) as loader:
        next(iter(loader))
        stillborn(2)
        with pytest.warns(RingWarning, match="killed by signal 9"):
            os.kill(producers()[0], signal.SIGKILL)
            for _ in range(3):
                epoch = loader.schedule.epoch
                for number, batch in enumerate(loader):
                    same(batch, Numbers(), PLAN, epoch, number)


def test_producers_that_are_all_killed_while_they_are_started_end_the_ring_in_a_sentence(config, stillborn):
    with ring.open_ring(Numbers(delay_s=0.002), PLAN, config(slots=8)) as loader:
        next(iter(loader))
        stillborn(50)
        os.kill(producers()[0], signal.SIGKILL)
        with (
            pytest.raises(RingError, match=r"3 producers in a row .* killed while it was started"),
            pytest.warns(RingWarning),
        ):
            for _ in range(50):
                list(loader)


def test_the_cause_is_told_also_if_the_message_of_it_found_no_room(config, stillborn, monkeypatch):
    send = Channel.send
    monkeypatch.setattr(
        Channel,
        "send",
        lambda self, message, *a, **k: "fatal" not in message and send(self, message, *a, **k),
    )
    with ring.open_ring(Numbers(delay_s=0.002), PLAN, config(slots=8)) as loader:
        next(iter(loader))
        stillborn(50)
        os.kill(producers()[0], signal.SIGKILL)
        with pytest.raises(RingError, match="killed while it was started"), pytest.warns(RingWarning):
            for _ in range(50):
                list(loader)


def test_a_sample_that_kills_every_producer_is_named(config, tmp_path):
    tally = tmp_path / "deaths"
    tally.touch()
    bad = int(PLAN.batches(0)[2][0])
    maker = Deadly(bad=bad, tally=str(tally))
    with (
        pytest.warns(RingWarning, match="while making batch 2 of epoch 0"),
        ring.open_ring(maker, PLAN, config(producers=1)) as loader,
        pytest.raises(
            RingError, match=rf"5 producers died at batch 2 of epoch 0 \(samples {bad}, .*signal 9"
        ),
    ):
        list(loader)


@pytest.mark.parametrize("kills", [4, pytest.param(25, marks=pytest.mark.slow)])
def test_an_interrupted_trainer_goes_on_at_the_batch_it_was_at(programs, where, tmp_path, kills):
    log, rng, epochs = tmp_path / "log", random.Random(3), 2 + 3 * kills // 2
    filler = programs("fill", where, "train", epochs, 0.0005)
    for _ in range(kills):
        before = len(lines(log))
        trainer = programs("attach", where, "train", log, epochs, 0.002)
        wait_for(lambda before=before: len(lines(log)) > before + rng.randrange(1, 9))
        trainer.kill()
    status = ring.status("train", where)
    assert (status.trainer_epoch, status.trainer_batch) in (
        tuple(map(int, lines(log)[-1][:2])),
        after(lines(log)[-1]),
    )
    trainer = programs("attach", where, "train", log, epochs, 0)
    assert trainer.wait() == 0
    assert filler.wait() == 0
    check(lines(log), epochs, repeats=kills)
    assert filler.errors.count("left at batch") == kills


def after(line):
    epoch, batch = int(line[0]), int(line[1])
    return (epoch, batch + 1) if batch < 6 else (epoch + 1, 0)


def test_a_killed_filler_ends_the_training_in_a_sentence(programs, where, tmp_path):
    log = tmp_path / "log"
    trainer = programs("attach", where, "train", log, 10, 0.002)  # it comes before any filler
    filler = programs("fill", where, "train", 10, 0.0005)
    wait_for(lambda: len(lines(log)) > 9)
    orphans = children(filler.pid)
    filler.kill()
    assert trainer.wait() == 1
    assert "the filler of ring train was killed at batch" in trainer.errors
    assert "resume the training from its checkpoint" in trainer.errors
    assert ring.status("train", where).state == "gone"
    check(lines(log)[:7], 1)
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in orphans))


def test_after_a_killed_filler_a_checkpoint_resumes_with_the_next_one(programs, where, same):
    filler = programs("fill", where, "train", 3, 0)
    with ring.attach("train", where=where, wait_s=60) as loader:
        batches = iter(loader)
        for _ in range(4):
            next(batches)
        state = loader.state_dict()
        filler.kill()
        with pytest.raises(RingError, match="was killed at batch"):
            for _ in range(9):
                list(loader)
    programs("fill", where, "train", 3, 0)
    with ring.attach("train", where=where, wait_s=60) as loader:
        loader.load_state_dict(state)
        for number, batch in enumerate(loader, state["batch"]):
            same(batch, Numbers(), PLAN, 0, number)
        for number, batch in enumerate(loader):
            same(batch, Numbers(), PLAN, 1, number)


def test_what_a_kill_of_everything_leaves_is_small_and_taken_over(programs, where, tmp_path):
    log = tmp_path / "log"
    trainer = programs("open", where, "train", log, 9, 0.001)
    wait_for(lambda: len(lines(log)) > 20)
    workers = children(trainer.pid)
    trainer.kill()
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    left = list(where.rglob("*"))
    assert sum(path.stat().st_size for path in left if path.is_file()) < 4096
    assert ring.status("train", where).state == "gone"
    log.unlink()
    trainer = programs("open", where, "train", log, 9, 0)
    assert trainer.wait() == 0
    check(lines(log), 9)


@pytest.mark.parametrize(
    ("how", "number"), [("open", signal.SIGTERM), ("open", signal.SIGINT), ("fill", signal.SIGINT)]
)
def test_a_signal_leaves_nothing(number, how, programs, where, tmp_path):
    log = tmp_path / "log"
    if how == "fill":
        program = programs("fill", where, "train", 1000, 0.001)
        trainer = programs("attach", where, "train", log, 1000, 0.001)
    else:
        program = trainer = programs("open", where, "train", log, 1000, 0.001)
    wait_for(lambda: len(lines(log)) > 10)
    workers = children(program.pid)
    assert program.kill(number) in (-number, 1)
    if how == "fill":
        trainer.kill()
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    assert list(where.iterdir()) == []


def test_a_child_of_the_trainer_neither_cleans_up_nor_keeps_it_alive(filling, plan, maker, where, same):
    with ring.attach(filling, where=where) as loader:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            loader.close()
            os.kill(os.getpid(), signal.SIGSTOP)
            os._exit(0)
        os.waitpid(child, os.WUNTRACED)
        for number, batch in enumerate(loader):
            same(batch, maker, plan, 0, number)
        loader.close()  # the child has no copy of the socket: the filler sees the end
        wait_for(lambda: ring.status(filling, where).trainer_pid is None)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
