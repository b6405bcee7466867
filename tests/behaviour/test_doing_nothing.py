"""A command or a loader that handles no sample and no batch does not end as a success."""

import re
import tarfile

import numpy as np
import pyarrow as pa
import pytest

from smallfiles import ring
from smallfiles.cli import main
from smallfiles.errors import SmallfilesError, UsageError
from smallfiles.loading import LoaderConfig, make_loader
from smallfiles.loading.loader import Loader

COUNT = 5


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A packed set of five samples, packed files that hold none, and an empty folder."""
    folder = tmp_path_factory.mktemp("nothing")
    for number in range(COUNT):
        (folder / "data" / "ant").mkdir(parents=True, exist_ok=True)
        np.save(folder / "data" / "ant" / f"{number}.npy", np.full(3, number, np.uint8))
    assert main(["pack", str(folder / "data"), str(folder / "train.arrow")]) == 0
    schema = pa.schema([("key", pa.string()), ("image", pa.binary()), ("label", pa.int64())])
    with pa.OSFile(str(folder / "zero.arrow"), "wb") as file, pa.ipc.new_file(file, schema):
        pass
    tarfile.open(folder / "zero.tar", "w").close()
    (folder / "empty" / "ant").mkdir(parents=True)
    (folder / "void").mkdir()
    (folder / "head.csv").write_text("filename,label\n", encoding="utf-8")
    (folder / "others.csv").write_text("filename,age\nnobody.npy,7\n", encoding="utf-8")
    return folder


REFUSED = [
    # what is run, and what the sentence says
    ("pack empty out.arrow", "empty is no data set"),
    ("pack head.csv out.arrow --root data", "has no rows"),
    ("pack zero.arrow out.arrow", "gives no samples"),
    ("pack zero.tar out.arrow", "no data set"),
    ("pack data merged.arrow --merge", "holds no parts"),
    ("manifest empty -o m.json", "no data set"),
    ("annotate train.arrow others.csv --key filename", "no row of others.csv names a file"),
    ("annotate train.arrow head.csv --key filename", "has no rows"),
    ("verify zero.arrow", "zero.arrow holds no samples"),
    ("verify zero.tar", "zero.tar holds no samples"),
    ("verify train.arrow --against empty", "no data set"),
    ("inspect zero.arrow", "zero.arrow holds no samples"),
    ("inspect zero.tar --picture sheet.html", "zero.tar holds no samples"),
    ("advise empty", "no data set"),
    ("advise zero.arrow", "holds no samples"),
    ("bench read zero.arrow", "empty"),
    ("bench read train.arrow --count 0", "--count is 0"),
    ("bench pack empty", "no data set"),
    ("epoch zero.arrow seen --workers 0", "zero.arrow holds no samples"),
    (
        "epoch train.arrow seen --workers 0 --drop-last --batch 6",
        "5 samples for 1 rank, fewer than a full batch",
    ),
    ("epoch train.arrow seen --workers 0 --order stream --drop-last", "fewer than a full batch"),
    ("epoch train.arrow seen --workers 0 --rank 0 --world-size 6", "5 samples for 6 ranks"),
    ("epoch train.arrow seen --workers 0 --rank 5 --world-size 6", "5 samples for 6 ranks"),
    ("epoch --count empty", "records of ranks none"),
    ("train train.arrow --epochs 0", "--epochs is 0"),
    ("ring fill train.arrow --name nothing --drop-last", "fewer than a full batch"),
    ("ring status nothing", "no ring called nothing"),
    ("simulate --nodes 0", "nodes is 0"),
    ("synth out --count 0", "0 pictures"),
    ("stage void", "is an empty folder"),
    ("stage nothing*.arrow", "cannot be read"),
    ("push void s3://bucket/name", "is an empty folder"),
]


@pytest.mark.parametrize(("command", "message"), REFUSED, ids=[command for command, _ in REFUSED])
def test_a_command_without_a_sample_is_refused(command, message, place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    assert main(command.split()) in (1, 2)
    said = capsys.readouterr().err
    assert message in said and "bug in the package" not in said
    assert not (place / "out.arrow").exists() and not (place / "seen" / "rank-00000.json").exists()


@pytest.mark.parametrize(
    ("settings", "cure"),
    [
        ({"drop_last": True}, {"drop_last": True, "batch": 5}),
        ({"drop_last": True, "order": "stream"}, {"drop_last": False, "order": "stream"}),
        ({"rank": 5, "world_size": 6}, {"rank": 4, "world_size": 5}),
        ({"rank": 0, "world_size": 6}, {"rank": 0, "world_size": 5}),
        (
            {"rank": 0, "world_size": 2, "batch": 3, "drop_last": True},
            {"rank": 0, "world_size": 2, "batch": 2, "drop_last": True},
        ),
    ],
)
def test_a_loader_without_a_batch_is_refused_on_all_ranks_and_the_cure_works(settings, cure, place):
    with pytest.raises(UsageError, match="expected at least one batch for each rank"):
        make_loader(place / "train.arrow", LoaderConfig(mode="main", **settings))
    loader = make_loader(place / "train.arrow", LoaderConfig(mode="main", **cure))
    assert isinstance(loader, Loader) and len(loader) == len(list(loader)) == 1


def test_a_ring_without_a_batch_is_refused(place):
    loader = make_loader(place / "train.arrow", LoaderConfig(mode="main"))
    plan = type(loader.plan)(COUNT, batch=6, drop_last=True)
    with pytest.raises(SmallfilesError, match="fewer than a full batch"):
        ring.open_ring(loader.dataset.maker, plan)


def test_training_that_measures_on_fewer_samples_than_ranks_is_refused_before_it_begins(place, monkeypatch):
    monkeypatch.chdir(place)
    assert main(["train", "train.arrow", "--val", "zero.arrow", "--epochs", "1"]) == 1


def test_a_resumed_epoch_may_have_nothing_left_for_a_rank(place):
    first = make_loader(place / "train.arrow", LoaderConfig(mode="main", batch=2))
    for number, _ in enumerate(first):
        if number == 1:
            break
    later = make_loader(place / "train.arrow", LoaderConfig(mode="main", batch=2, rank=1, world_size=2))
    later.load_state_dict(first.state_dict())
    assert [len(batch["index"]) for batch in later] == [] and len(list(later)) == 1


def test_a_part_without_samples_succeeds_and_says_so(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    for part in range(1, 7):
        assert main(["pack", "data", "parts.arrow", "--part", f"{part}/6"]) == 0
    assert re.search(r"\b0 samples|holds no samples|no samples", capsys.readouterr().out)
    assert main(["pack", "data", "parts.arrow", "--merge"]) == 0
    assert main(["verify", "parts.arrow"]) == 0
