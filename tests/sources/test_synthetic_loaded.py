"""What is drawn comes back: every layout through the loader for its real model."""

from pathlib import PurePosixPath

import pytest

from smallfiles import sources
from smallfiles.samples import UNLABELLED
from smallfiles.sources import synthetic

KINDS = {"folder": "folder", "flickr30k": "flickr30k"}
SPLITS = [
    *[("folder", "train"), ("prepared", "train"), ("prepared", "val"), ("official", "train")],
    *[("official", "val"), ("kaggle", "train"), ("kaggle", "val"), ("kaggle", "test")],
]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("synthetic")
    return {
        name: synthetic.make(
            root / name, name, count=60, odd=True, size=(64, 48), workers=1, show_progress=False
        )
        for name in synthetic.LAYOUTS
    }


def targets_by_name(source):
    manifest = source.manifest
    return {PurePosixPath(manifest.path(i)).name: manifest.target(i) for i in range(len(manifest))}


def bytes_by_name(source):
    found = {}
    for i in range(len(source.manifest)):
        path = source.manifest.path(i)
        buffer = memoryview(bytearray(source.store.size(path)))
        assert source.store.read_into(path, buffer) == len(buffer)
        found[PurePosixPath(path).name] = bytes(buffer)
    return found


@pytest.mark.parametrize(("layout", "split"), SPLITS)
def test_labels_come_back_as_they_were_drawn(made, layout, split):
    found = made[layout]
    source = sources.load(found.path, split=split)
    names = [PurePosixPath(f).name for f, one in zip(found.files, found.splits, strict=True) if one == split]
    # Nothing tells the class of a test picture.
    expected = {name: UNLABELLED if split == "test" else found.truth[name] for name in names}
    assert targets_by_name(source) == expected
    assert source.kind.startswith(KINDS.get(layout, "imagenet"))
    assert source.manifest.classes == found.classes


@pytest.mark.parametrize("split", ["train", "val"])
def test_the_same_bytes_come_from_the_official_tars_and_from_the_prepared_tree(made, split):
    from_tar = bytes_by_name(sources.load(made["official"].path, split=split))
    from_tree = bytes_by_name(sources.load(made["prepared"].path, split=split))
    assert from_tar == from_tree and len(from_tar) == (54 if split == "train" else 6)


def test_the_two_label_orders_come_back_different_and_both_right(made):
    """The devkit's own number, less one, is a label too; loaded as such it is not the sorted rank."""
    found = made["official"]
    by_rank = targets_by_name(sources.load(found.path, split="val"))
    by_devkit = targets_by_name(sources.load(found.path, split="val", label_order="devkit"))
    assert by_rank.keys() == by_devkit.keys() and by_rank != by_devkit


def test_captions_come_back_in_all_splits_with_the_bad_row_repaired(made):
    found = made["flickr30k"]
    loaded = {}
    for split in ("train", "val", "test"):
        loaded |= targets_by_name(sources.load(found.path, split=split))
    assert len(found.truth) - len(loaded) == 1, "Karpathy's split does not know one of them"
    assert loaded == {name: found.truth[name] for name in loaded}


def test_captions_come_back_from_the_csv_alone(made):
    found = made["flickr30k"]
    table = found.path / "flickr30k_images/results.csv"
    source = sources.load(found.path / "flickr30k_images", labels=table)
    assert targets_by_name(source) == found.truth
