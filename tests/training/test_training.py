"""Training: it learns, it goes on where it was stopped, and ranks compute what one would."""

import io
import json
import os
import pickle
import shutil
import signal
import socket
import threading

import PIL.Image
import pytest
import torch
import torch.distributed as dist
from given import Given, bare, schema_of
from programs import Program, imported, wait_for

from smallfiles import cli, errors, formats, pack, sources, training
from smallfiles.cli.train import INTERRUPTED
from smallfiles.loading import LoaderConfig
from smallfiles.sources import synthetic
from smallfiles.training import checkpoint
from smallfiles.training.group import joined

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A training and a validation file: ten classes, small pictures."""
    place = tmp_path_factory.mktemp("training")
    synthetic.make(place / "tree", "folder", count=500, seed=3, size=(96, 96))
    source = sources.load(place / "tree")
    kept, held = source.manifest.split_off(0.2, seed=0)
    for name, manifest in (("train.arrow", kept), ("val.arrow", held)):
        manifest.save(place / f"{name}.json")
        pack.pack(sources.load(place / f"{name}.json", root=place / "tree"), place / name, pack.PackConfig())
    return place / "train.arrow", place / "val.arrow"


def config(**given):
    loader = LoaderConfig(batch=given.pop("batch", 16), workers=0, seed=7)
    return training.TrainConfig(loader=loader, **{"epochs": 2, "size": 32, **given})


def weights(folder):
    return checkpoint.load(folder).model


def assert_equal(first, second):
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


def test_it_learns_the_synthetic_classes(data):
    report = training.train(*data, config(epochs=6, batch=25))
    assert [each.samples for each in report.epochs] == [400] * 6
    assert report.epochs[-1].loss < report.epochs[0].loss
    assert report.epochs[-1].accuracy > 0.4  # chance is 0.1
    (rank,) = report.epochs[0].ranks
    assert 0 < rank["first_batch_s"] < rank["seconds"]
    assert 0 < rank["waiting_s"] < rank["seconds"] and 0 < rank["waiting_share"] < 1
    assert rank["wait_p50_s"] <= rank["wait_p99_s"]


def command(data, *words):
    return ["train", str(data[0]), "--size", "32", "--seed", "7", "--json", *map(str, words)]


@pytest.fixture(scope="module")
def started():
    """Starts a rank; with a port it is one of several."""
    unwanted = ("SLURM", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(unwanted)}
    ranks = []

    def start(*words, rank=0, of=2, port=None, run=cli.main):
        variables = {} if port is None else {
            "RANK": str(rank), "WORLD_SIZE": str(of), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(of),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        }  # fmt: skip
        ranks.append(Program(run, *words, environment=variables, method="forkserver"))
        return ranks[-1]

    modules = ("smallfiles.training.loop", "torch._dynamo", "smallfiles.cli.train", "simplejpeg")
    with imported(*modules, environment=clean | {"OMP_NUM_THREADS": "1"}):
        yield start
        for each in ranks:
            each.end()


@pytest.fixture
def run(started):
    """Runs one rank, or several, to the end; what the first one reports."""

    def finished(words, port=None, of=2):
        numbers = range(1 if port is None else of)
        ranks = [started(words, rank=rank, of=of, port=port) for rank in numbers]
        for each in ranks:
            assert each.wait() == 0, each.errors
        return json.loads(ranks[0].out)

    return finished


def test_three_uneven_ranks_compute_what_one_does(data, run, tmp_path, free_port):
    """In the second step of 400 samples one rank has a single sample and the others have none.

    The weights stay where they are, so that both steps have the gradients of equal weights. What the
    optimizer remembers is linear in them, where a step of Adam makes much of the last digits.
    """
    common = ("--epochs", "1", "--workers", "0", "--val", data[1], "--rate", "1e-30")
    one = run(command(data, *common, "--batch", "399", "--checkpoint", tmp_path / "1"))
    words = command(data, *common, "--batch", "133", "--checkpoint", tmp_path / "3")
    three = run(words, free_port, of=3)
    assert [rank["samples"] for rank in three["epochs"][0]["ranks"]] == [134, 133, 133]
    assert three["samples"] == one["samples"] == 400
    assert (
        abs(three["accuracy"] - one["accuracy"]) < 0.015
    )  # two classes may be equally likely for one of 100
    assert three["epochs"][0]["loss"] == pytest.approx(one["epochs"][0]["loss"], rel=1e-3)
    moments = [checkpoint.load(tmp_path / name).optimizer["state"] for name in "13"]
    for mine, theirs in zip(*(each.values() for each in moments), strict=True):
        assert (mine["exp_avg"] - theirs["exp_avg"]).norm() < 1e-3 * mine["exp_avg"].norm()


STEPS = ("--epochs", "3", "--batch", "20", "--workers", "1", "--every", "3")


@pytest.fixture(scope="module")
def whole(data, started, tmp_path_factory):
    """A training that nobody stopped: its folder and its report."""
    folder = tmp_path_factory.mktemp("whole")
    program = started(command(data, *STEPS, "--checkpoint", folder))
    assert program.wait() == 0, program.errors
    return folder, json.loads(program.out)


class TestStopped:
    def test_each_signal_leaves_a_checkpoint_and_the_same_command_goes_on(
        self, data, whole, started, run, tmp_path
    ):
        words, kept = command(data, *STEPS, "--checkpoint", tmp_path), tmp_path / checkpoint.NAME
        for number in (signal.SIGUSR1, signal.SIGTERM):
            process, before = started(words), kept.exists() and kept.stat().st_mtime_ns
            wait_for(lambda before=before: kept.exists() and kept.stat().st_mtime_ns != before)
            assert process.kill(number) == INTERRUPTED and json.loads(process.out)["interrupted"]
        last = run(words)
        assert last["resumed_at"] is not None and not last["interrupted"]
        assert [each["samples"] for each in last["epochs"]] == [400] * 3
        for before, after in zip(whole[1]["epochs"], last["epochs"], strict=True):
            assert after["loss"] == pytest.approx(before["loss"], rel=1e-4)  # of sums of floats
        assert_equal(weights(whole[0]), weights(tmp_path))

    def test_killed_it_loses_only_what_came_after_the_last_checkpoint(self, data, started, run, tmp_path):
        words = ("--epochs", "2", "--batch", "8", "--workers", "0", "--every", "5", "--checkpoint", tmp_path)
        process = started(command(data, *words))
        wait_for((tmp_path / checkpoint.NAME).exists)
        process.kill()
        report = run(command(data, *words))
        epoch, step = report["resumed_at"]
        assert (epoch, step) > (0, 0) and len(report["epochs"]) == 2

    def test_a_file_that_is_cut_under_it_ends_it_with_the_line_that_read(self, data, started, tmp_path):
        path = shutil.copy(data[0], tmp_path)
        words = ("--epochs", "99", "--batch", "8", "--workers", "0", "--every", "5", "--checkpoint", tmp_path)
        process = started(command([path], *words))
        wait_for((tmp_path / checkpoint.NAME).exists)
        os.truncate(path, 4096)
        assert process.wait() == -signal.SIGBUS
        assert "Fatal Python error: Bus error" in process.errors and "fields.py" in process.errors


@pytest.fixture(scope="module")
def kept(data, tmp_path_factory):
    """What a training of two epochs wrote, as torch reads it."""
    folder = tmp_path_factory.mktemp("kept")
    training.train(data[0], config=config(checkpoint=folder, batch=200))
    return torch.load(folder / checkpoint.NAME, weights_only=True)


class TestCheckpoints:
    def test_one_that_would_run_a_program_is_refused(self, tmp_path):
        class Program:
            def __reduce__(self):
                return os.mkdir, (str(tmp_path / "it ran"),)

        torch.save({"model": Program()}, tmp_path / checkpoint.NAME)
        with pytest.raises(errors.DamagedFileError):
            checkpoint.load(tmp_path)
        assert not (tmp_path / "it ran").exists()

    @pytest.mark.parametrize("content", [b"", b"\x80", b"PK\x05\x06" + bytes(18), b"PK\x03\x04 not"])
    def test_an_empty_or_cut_one_is_a_sentence(self, data, tmp_path, content):
        (tmp_path / checkpoint.NAME).write_bytes(content)
        with pytest.raises(errors.DamagedFileError, match=rf"{checkpoint.NAME}.*cannot be read"):
            training.train(data[0], config=config(checkpoint=tmp_path))

    @pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
    def test_damage_anywhere_in_one_is_refused_or_changes_nothing(self, step, tmp_path):
        """A bit of each byte or of each fifth one, and each piece of 256 bytes as zeros."""
        weights, moments = ({str(n): torch.rand(7) for n in range(3)} for _ in range(2))
        checkpoint.save(tmp_path, checkpoint.State(weights, moments, {"epoch": 0, "batch": 3}, []))
        path = tmp_path / checkpoint.NAME
        whole, right = path.read_bytes(), repr(checkpoint.load(tmp_path))
        bits = [(at, bytes([whole[at] ^ 1 << at % 8])) for at in range(0, len(whole), step)]
        pieces = [(at, bytes(len(whole[at : at + 256]))) for at in range(0, len(whole), 256)]
        refused = []
        for at, piece in bits + pieces:
            path.write_bytes(whole[:at] + piece + whole[at + len(piece) :])
            try:
                assert repr(checkpoint.load(tmp_path)) == right, at
            except errors.DamagedFileError as error:
                refused.append(str(error))
        assert any("/data/1 in it has another checksum" in sentence for sentence in refused)

    @pytest.mark.parametrize(
        "change",
        [
            lambda kept: 7,
            lambda kept: kept | {"loader": kept["loader"] | {"epoch": 10**12}},
            lambda kept: kept | {"loader": kept["loader"] | {"epoch": "2"}},
            lambda kept: kept | {"loader": kept["loader"] | {"earlier": [[10**9, 1, 1, 1]]}},
            lambda kept: kept | {"epochs": [{} for _ in kept["epochs"]]},
            lambda kept: kept | {"epochs": []},
            lambda kept: kept | {"begun": None},
            lambda kept: kept | {"model": {name: each * torch.nan for name, each in kept["model"].items()}},
            lambda kept: kept | {"model": dict.fromkeys(kept["model"], 3)},
            lambda kept: kept | {"optimizer": kept["optimizer"] | {"state": {0: {"step": "x"}}}},
            lambda kept: kept | {"optimizer": kept["optimizer"] | {"param_groups": [7]}},
        ],
    )
    def test_strange_values_are_a_sentence(self, data, kept, tmp_path, change):
        torch.save(change(kept), tmp_path / checkpoint.NAME)
        with pytest.raises((errors.DamagedFileError, errors.UsageError)):
            training.train(data[0], config=config(checkpoint=tmp_path, batch=200, epochs=3))

    def test_settings_of_the_optimizer_are_those_asked_for(self, data, kept, tmp_path):
        groups = [each | {"betas": None, "lr": 1e9} for each in kept["optimizer"]["param_groups"]]
        changed = kept | {"optimizer": kept["optimizer"] | {"param_groups": groups}}
        torch.save(changed, tmp_path / checkpoint.NAME)
        report = training.train(data[0], config=config(checkpoint=tmp_path, batch=200, epochs=3))
        assert report.epochs[-1].loss < 10

    def test_one_of_another_data_set_of_the_same_size_or_another_model_is_refused(self, tmp_path):
        packed = TestClasses().packed
        first, other = (packed(tmp_path / f"{n}.arrow", [n, 1, 0, 1]) for n in (0, 1))
        training.train(first, config=config(checkpoint=tmp_path, epochs=1, batch=2))
        with pytest.raises(errors.UsageError, match="data set"):
            training.train(other, config=config(checkpoint=tmp_path, batch=2))
        with pytest.raises(errors.UsageError, match="of another model"):
            training.train(first, config=config(checkpoint=tmp_path, batch=2, model="resnet18"))

    def test_another_number_of_ranks_in_the_loader_than_there_are_is_refused(self, data):
        loader = LoaderConfig(batch=16, workers=0, rank=0, world_size=2)
        with pytest.raises(errors.UsageError, match=r"rank 0 of 2.*expected those of rank 0 of 1"):
            training.train(data[0], config=training.TrainConfig(loader=loader))

    def test_one_that_cannot_be_written_leaves_the_last_one(self, tmp_path):
        last = checkpoint.State({}, {}, {"epoch": 0, "batch": 0}, [])
        checkpoint.save(tmp_path, last)
        with pytest.raises(TypeError, match="pickle"):
            checkpoint.save(tmp_path, checkpoint.State({"lock": threading.Lock()}, {}, {}, []))
        assert checkpoint.load(tmp_path) == last
        with pytest.raises(errors.ResourceError, match="cannot be written"):
            checkpoint.save(tmp_path / checkpoint.NAME, last)
        assert [path.name for path in tmp_path.iterdir()] == [checkpoint.NAME]


class TestWords:
    def test_what_was_left_out_is_named_and_counted(self, tmp_path, capsys):
        """One picture is half; in text, and for programs."""
        path = TestClasses().packed(tmp_path / "x.arrow", [0, 1, 0, 1], half=2)
        words = ["train", str(path), "--epochs", "2", "--size", "32", "--workers", "0", "--on-error"]
        for batch in ("64", "1"):  # with others, and as the whole of a batch
            assert cli.main([*words, "skip", "--batch", batch, "--val", str(path)]) == 0
            assert capsys.readouterr().out.count("2 samples left out: 2.jpg (") == 2
        lost = TestClasses().packed(tmp_path / "y.arrow", [0], ("a", "b"), half=0)
        for data in ([lost], [path, "--val", lost]):
            assert cli.main(["train", *map(str, data), *words[2:], "skip"]) == 1
            assert "error: all 1 sample of" in capsys.readouterr().err
        assert cli.main([*words, "keep", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["faults"] == 2 and found["samples"] == 8
        assert [each["faults"][0]["key"] for each in found["epochs"]] == ["2.jpg"] * 2

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["--ring", "nobody.fills.this", "--wait", "0.1"], "nobody fills ring nobody.fills.this"),
            (
                ["--ring", "x", "--batch", "8", "--buffer", "3", "--order", "stream"],
                "--batch, --order, --buffer",
            ),
            (["--ring", "x", "--batch", "64"], "--batch would change nothing"),
            (["--buffer", "9"], "--buffer would change nothing with --order random"),
            (["--workers", "2", "--mode", "main"], "--workers would change nothing with --mode main"),
            (["--every", "5"], "Add --checkpoint DIR"),
            (["--wait", "5.5"], "Name it with --ring"),
            (["--size", "100000"], "expected 32 to 4096"),
            (["--max-steps", "-1"], "max-steps is -1"),
        ],
    )
    def test_what_would_be_ignored_or_cannot_be_is_said_in_words_of_the_command_line(
        self, data, capsys, words, said
    ):
        assert cli.main(["train", str(data[0]), *words]) in (1, 2)
        assert said in capsys.readouterr().err

    def test_a_folder_of_photographs_is_to_be_packed_first(self, tmp_path, capsys):
        (tmp_path / "photos").mkdir()
        assert cli.main(["train", str(tmp_path / "photos")]) == 2
        err = capsys.readouterr().err
        assert "Pack it first: smallfiles pack" in err and "--format" not in err


def gathering():
    """A rank that sends and hears records; what would unpickle them is shut."""

    def refuse(*args, **kwargs):
        raise AssertionError("a pickle came over the network")

    with joined() as group:
        pickle.loads = pickle.Unpickler = dist.distributed_c10d._unpickler = refuse
        rank = group.where.rank
        found = group.gather({"rank": rank, "text": "é" * (1 + 50 * rank), "none": None})
        assert [each["rank"] for each in found] == [0, 1] and found[1]["text"] == "é" * 51, found


def test_records_travel_as_text_and_nothing_is_unpickled(started, free_port):
    """Every way by which torch would unpickle what another rank sent is shut."""
    ranks = [started(rank=rank, port=free_port, run=gathering) for rank in (0, 1)]
    for rank in ranks:
        assert rank.wait() == 0, rank.errors


class TestRanks:
    @pytest.fixture
    def stopped(self, data, started, free_port):
        """Two ranks that stop, of which one alone hears the signal."""

        def stop(words, folder):
            ranks = [started(words, rank=rank, port=free_port) for rank in (0, 1)]
            wait_for((folder / checkpoint.NAME).exists)
            os.kill(ranks[1].pid, signal.SIGUSR1)
            assert [each.wait() for each in ranks] == [INTERRUPTED] * 2

        return stop

    def test_a_rank_that_is_killed_leaves_the_others_with_a_sentence(
        self, data, started, tmp_path, free_port
    ):
        words = ("--epochs", "50", "--batch", "8", "--workers", "0", "--every", "5", "--checkpoint", tmp_path)
        ranks = [started(command(data, *words), rank=rank, port=free_port) for rank in (0, 1)]
        wait_for((tmp_path / checkpoint.NAME).exists)
        ranks[1].kill()
        assert ranks[0].wait() == 1 and "rank 0 of 2 lost the others" in ranks[0].errors
        assert "Traceback" not in ranks[0].errors

    def test_ranks_stop_at_the_same_step_and_go_on_together(self, data, run, stopped, tmp_path, free_port):
        """Against two ranks that nobody stopped, to the last digits."""
        words = command(data, "--epochs", "2", "--workers", "0", "--val", data[1], "--batch", "8")
        run([*words, "--checkpoint", str(tmp_path / "whole")], free_port)
        words += ["--every", "5", "--checkpoint", str(tmp_path / "stopped")]
        stopped(words, tmp_path / "stopped")
        report = run(words, free_port)
        assert [each["samples"] for each in report["epochs"]] == [400, 400]
        assert_equal(weights(tmp_path / "whole"), weights(tmp_path / "stopped"))

    def test_a_rank_whose_batch_was_left_out_whole_keeps_the_others_company(self, run, tmp_path, free_port):
        path = TestClasses().packed(tmp_path / "x.arrow", [0, 1, 0, 1, 0], half=2)
        words = command([path], "--epochs", "2", "--workers", "0", "--batch", "1", "--on-error", "skip")
        report = run([*words, "--val", str(path)], free_port)
        assert [each["samples"] for each in report["epochs"]] == [4, 4]
        assert [each["fault_count"] for each in report["epochs"]] == [2, 2]

    def test_an_epoch_that_two_ranks_began_is_finished_by_one_with_other_batches(
        self, data, run, stopped, tmp_path
    ):
        words = command(data, "--epochs", "2", "--workers", "0", "--every", "5", "--checkpoint", tmp_path)
        stopped([*words, "--batch", "8"], tmp_path)
        epoch, batch = (checkpoint.load(tmp_path).loader[name] for name in ("epoch", "batch"))
        report = run([*words, "--batch", "5"])
        left = 400 - 16 * batch
        assert [each["samples"] for each in report["epochs"]] == [400, 400]
        assert report["epochs"][epoch]["ranks"][0]["samples"] == left


@pytest.fixture
def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class TestClasses:
    def packed(self, path, labels, classes=(), half=None):
        """Equal grey pictures with these labels; of one half may be missing."""
        picture = io.BytesIO()
        PIL.Image.effect_noise((40, 40), 50).convert("RGB").save(picture, "JPEG")
        samples = [Given(f"{n}.jpg", picture.getvalue(), label) for n, label in enumerate(labels)]
        if half is not None:
            cut = picture.getvalue()[: -(len(picture.getvalue()) - 623) * 9 // 10] + b"\xff\xd9"
            samples[half] = Given(f"{half}.jpg", cut, labels[half])
        formats.get("arrow").write(bare(samples), path, schema=schema_of(samples, classes=classes))
        return path

    def test_sets_that_cannot_be_learned_or_measured_on_are_refused(self, data, tmp_path):
        synthetic.make(tmp_path / "f", "flickr30k", count=12, classes=2, seed=0, size=(64, 64))
        pack.pack(sources.load(tmp_path / "f"), tmp_path / "f.arrow", pack.PackConfig())
        other = self.packed(tmp_path / "o.arrow", [0, 1], ("cat", "dog"))
        for sets, said in (
            ((data[0], other), "10 and 2 classes, only one of them has"),
            ((tmp_path / "f.arrow",), "has captions"),
            ((self.packed(tmp_path / "e.arrow", [], ("cat", "dog")),), "has no samples"),
            ((self.packed(tmp_path / "u.arrow", [0, 1, -1, 1]),), "has the label -1; expected a class"),
        ):
            with pytest.raises(errors.FormatError, match=said):
                training.train(*sets, config=config())

    def test_one_sample_left_for_a_batch_does_not_upset_batch_normalisation(self, tmp_path):
        path = self.packed(tmp_path / "b.arrow", [0, 1, 0, 1, 0])
        (epoch,) = training.train(path, config=config(model="resnet18", batch=2, epochs=1)).epochs
        assert epoch.samples == 5 and epoch.loss > 0
