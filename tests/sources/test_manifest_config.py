"""The record behind the verb `manifest`: its command line means the same record again."""

import shlex
from pathlib import Path

import pytest

from smallfiles import options
from smallfiles.cli import build_parser
from smallfiles.errors import SourceError
from smallfiles.sources import ManifestConfig, load, synthetic

EVERY = {
    "kind": "flickr30k",
    "split": "a b",
    "root": Path("r s"),
    "labels": Path("é"),
    "suffixes": (".x", ".'y"),
}
FLAGS = ("unlabelled", "strict", "follow_links", "flat")


@pytest.mark.parametrize("config", [ManifestConfig(), ManifestConfig(**EVERY, **dict.fromkeys(FLAGS, True))])
def test_the_command_line_means_the_same_record(config):
    arguments = build_parser().parse_args(shlex.split(config.to_cli("a d", "m.json"))[1:])
    assert options.from_args(ManifestConfig, arguments) == config
    assert (arguments.dir, arguments.output) == (Path("a d"), Path("m.json"))
    assert ManifestConfig().to_cli("data", "m.json") == "smallfiles manifest data -o m.json"


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    path = tmp_path_factory.mktemp("trees") / "prepared"
    synthetic.make(path, "prepared", count=30, classes=3, size=(64, 48))
    return path


def test_a_saved_manifest_finds_its_data_from_another_folder(tree, tmp_path):
    config = ManifestConfig(split="val")
    source = config.load(tree)
    config.save(source, tmp_path / "val.json")
    with pytest.raises(SourceError, match="outside of its own folder"):
        load(tmp_path / "val.json")
    again = load(tmp_path / "val.json", root=tree)
    again.manifest.check_files(again.store)
    assert again.manifest.digest == source.manifest.digest
    assert not Path(again.manifest.root_hint).is_absolute()


def test_the_flat_shape_holds_paths_and_labels_only_and_a_split_must_be_there(tree, tmp_path):
    config = ManifestConfig(flat=True)
    config.save(config.load(tree), tmp_path / "train.json")
    assert load(tmp_path / "train.json", root=tree).manifest.root_hint == ""
    with pytest.raises(SourceError, match="has no split 'extra'"):
        ManifestConfig(split="extra").load(tree)
