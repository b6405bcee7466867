"""`ring fill`, `status` and `clean`: a filler as a program of its own beside the training."""

import functools
import io
import json
import multiprocessing.forkserver
import os
import signal

import numpy as np
import pytest
import torch
from given import Given, bare, of_reader, schema_of
from PIL import Image
from programs import Program, imported, wait_for

from smallfiles import formats, images, ring
from smallfiles.cli import main
from smallfiles.errors import UsageError
from smallfiles.formats import arrow
from smallfiles.loading import LoaderConfig, make_loader
from smallfiles.ring import RingConfig, folder


def jpeg(number):
    rng = np.random.default_rng(number)
    picture = Image.fromarray(rng.integers(0, 256, (48 + number, 64, 3), np.uint8))
    file = io.BytesIO()
    picture.save(file, "JPEG")
    return file.getvalue()


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    samples = [Given(f"{number}.jpg", jpeg(number), number % 3) for number in range(20)]
    out = tmp_path_factory.mktemp("packed") / "train.arrow"
    arrow.write(bare(samples), out, schema=schema_of(samples, classes=("a", "b", "c")))
    return out


def state(where):
    """Of the ring, or that there is none, which a filler's first milliseconds look like."""
    try:
        return ring.status("train", where).state
    except UsageError:
        return "none"


def command(*words):
    """`smallfiles ring`, as a program that is forked off this one."""
    multiprocessing.forkserver._forkserver.ensure_running = lambda: None  # its parent's does
    return main(["ring", *words])


@pytest.fixture(scope="module", autouse=True)
def producers_begin_at_once():
    """Forked off one server, which has imported PyTorch."""
    with imported("smallfiles.ring.pool", "smallfiles.images", "torch", environment=dict(os.environ)):
        yield


@pytest.fixture
def filler(packed, where):
    """Starts `smallfiles ring fill`; ends it if a test left it."""
    started = []

    def fill(*words, run=command):
        given = ("fill", packed, "--where", where, "--batch", 6, "--size", 32, *words)
        started.append(Program(run, *map(str, given)))
        return started[-1]

    yield fill
    for program in started:
        program.end()


def test_a_program_fills_and_training_attaches_by_name(packed, filler, where):
    program = filler("--seed", 3, "--epochs", 2, "--slots", 4, "--producers", 2, "--json")
    expected = make_loader(
        packed, LoaderConfig(batch=6, seed=3, mode="main"), transform=images.RandomResizedCrop(32)
    )
    with ring.attach("train", where=where, wait_s=60) as loader:  # before there is one
        assert len(loader) == 4
        for epoch in range(2):
            for number, (ours, theirs) in enumerate(zip(loader, expected, strict=True)):
                assert ours.keys() == theirs.keys()
                assert all(torch.equal(ours[name], theirs[name]) for name in theirs), (epoch, number)
                assert ours["image"].shape[1:] == (3, 32, 32)
    assert program.wait() == 0, program.errors
    record = json.loads(program.out)
    assert (record["made"], record["consumed"], record["finished"]) == (8, 8, True)
    assert {"samples", "bytes", "seconds"} <= record.keys()
    assert "ring train: filling" in program.errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_filler_asked_to_end_leaves_nothing(number, packed, filler, where, capsys):
    program = filler("--slots", 3)
    wait_for(lambda: state(where) == "waiting for a trainer")
    assert main(["ring", "status", "train", "--where", str(where)]) == 0
    assert "3 of 3 slots ready; no trainer at epoch 0 batch 0" in capsys.readouterr().out
    assert main(["ring", "status", "--where", str(where), "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)["rings"]
    assert (record["name"], record["pid"], record["ready"]) == ("train", program.pid, 3)
    assert main(["ring", "clean", "--where", str(where)]) == 0
    assert "in use and stays" in capsys.readouterr().out
    assert main(["ring", "fill", str(packed), "--where", str(where)]) == 1
    assert f"train is there already, filled by process {program.pid}" in capsys.readouterr().err
    assert program.kill(number) == 0, program.errors
    assert "made 3 batches" in program.out


def signalled_while_made(number, *words):
    choose = folder.choose_slots

    def choose_slots(*words):
        os.kill(os.getpid(), int(number))
        return choose(*words)

    folder.choose_slots = choose_slots
    return command(*words)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_filler_asked_to_end_while_it_is_made_leaves_nothing(number, filler, where):
    program = filler("--slots", 3, run=functools.partial(signalled_while_made, int(number)))
    assert program.wait() == 0, program.errors
    assert "made 0 batches" in program.out
    assert list(where.rglob("*")) == []


def test_what_a_killed_filler_left_is_shown_and_cleaned(packed, where, capsys):
    child = os.fork()
    if child == 0:
        loader = make_loader(packed, LoaderConfig(batch=6, mode="main"))
        ring.Filler(loader.dataset.maker, loader.plan, RingConfig(name="old", slots=2, where=where))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert main(["ring", "status", "--where", str(where)]) == 1
    assert f"its filler (process {child}) was killed" in capsys.readouterr().out
    assert main(["ring", "clean", "--where", str(where)]) == 0
    assert "removed what was left of ring old" in capsys.readouterr().out
    assert main(["ring", "status", "--where", str(where)]) == 0
    for verb in ("status", "clean"):
        assert main(["ring", verb, "old", "--where", str(where)]) == 2
        assert "there is no ring called old" in capsys.readouterr().err


def test_a_bad_picture_is_named_as_the_loader_names_it(packed, where, tmp_path):
    reader = formats.open(packed)
    samples = [
        Given(s.key, bytes(s.data) if i != 7 else b"\xff\xd8junk", s.target)
        for i, s in enumerate(of_reader(reader))
    ]
    out = tmp_path / "bad.arrow"
    arrow.write(bare(samples), out, schema=schema_of(samples, classes=("a", "b", "c")))
    for error_kind, size in (("stop", 6), ("skip", 6), ("skip", 1)):
        settings = LoaderConfig(batch=size, mode="main", on_error=error_kind)
        expected = make_loader(out, settings, transform=images.CentreCrop(64, 32))
        config = RingConfig(slots=3, where=where)
        with ring.open_ring(expected.dataset.maker, expected.plan, config) as loader:
            if error_kind == "skip":
                sizes = [len(batch["index"]) for batch in loader]
                assert sum(sizes) == 19 and min(sizes) > 0
                assert [fault.key for fault in loader.faults] == ["7.jpg"]
                assert loader.fault_count == 1
            else:
                with pytest.raises(Exception, match=r"7\.jpg") as ours:
                    list(loader)
                with pytest.raises(type(ours.value)) as theirs:
                    list(expected)
                assert str(ours.value) == str(theirs.value)
