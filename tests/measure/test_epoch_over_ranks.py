"""Counting an epoch over ranks: what is missing or came twice is named."""

import json

import numpy as np
import pytest

from smallfiles import cli, errors, pack, sources
from smallfiles.loading import LoaderConfig
from smallfiles.measure import ranks
from smallfiles.sources import synthetic


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    place = tmp_path_factory.mktemp("ranks")
    synthetic.make(place / "tree", "folder", count=41, classes=3, seed=0, size=(48, 48))
    pack.pack(sources.load(place / "tree"), place / "x.arrow", pack.PackConfig())
    return place / "x.arrow"


def read(packed, folder, monkeypatch, rank, world_size, **config):
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(world_size))
    return ranks.read_share(packed, folder, LoaderConfig(batch=4, workers=0, **config))


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_every_sample_is_counted_once(packed, tmp_path, monkeypatch, world_size):
    for rank in range(world_size):
        read(packed, tmp_path, monkeypatch, rank, world_size)
    found = ranks.count(tmp_path)
    assert found.exact and sum(share.samples for share in found.shares) == 41
    assert found.sentence().startswith(f"{world_size} rank")


def test_ranks_that_all_think_they_are_alone_are_found_out(packed, tmp_path, monkeypatch):
    read(packed, tmp_path, monkeypatch, 0, 1)
    record = json.loads((tmp_path / "rank-00000.json").read_text())
    for rank in (0, 1):
        text = json.dumps(record | {"rank": rank, "world_size": 2})
        (tmp_path / f"rank-{rank:05}.json").write_text(text)
        np.save(tmp_path / f"rank-{rank:05}.npy", np.arange(41))
    found = ranks.count(tmp_path)
    assert not found.exact and found.repeated == tuple(range(41))
    assert "41 came more than once" in found.sentence()


def test_lost_samples_are_named(packed, tmp_path, monkeypatch, capsys):
    read(packed, tmp_path, monkeypatch, 0, 1)
    np.save(tmp_path / "rank-00000.npy", np.arange(3, 41))
    assert ranks.count(tmp_path).lost == (0, 1, 2)
    assert cli.main(["epoch", "--count", str(tmp_path)]) == 1
    assert "3 did not come (0, 1, 2)" in capsys.readouterr().out


def test_a_missing_rank_is_told_and_a_second_run_into_the_same_folder_refused(packed, tmp_path, monkeypatch):
    read(packed, tmp_path, monkeypatch, 1, 3)
    with pytest.raises(errors.FormatError, match=r"records of ranks 1; expected all of 0 to 2"):
        ranks.count(tmp_path)
    with pytest.raises(errors.OutputExistsError, match="new folder"):
        read(packed, tmp_path, monkeypatch, 1, 3)


def test_the_command_line_reads_and_counts(packed, tmp_path, capsys):
    assert cli.main(["epoch", str(packed), str(tmp_path / "seen"), "--workers", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 41
    assert cli.main(["epoch", "--count", str(tmp_path / "seen"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["exactly_once"] is True
    assert cli.main(["epoch", str(packed)]) == 2
