"""The record behind the verb `manifest`: its command line means the same record again."""

import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smallfiles import options
from smallfiles.cli import build_parser
from smallfiles.errors import SourceError
from smallfiles.sources import IMAGE_SUFFIXES, ManifestConfig, load, synthetic

text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=12)
word = text.filter(lambda value: not value.startswith("-"))
paths = st.none() | word.map(Path)
configs = st.builds(
    ManifestConfig,
    kind=st.sampled_from(("auto", "folder", "imagenet", "flickr30k", "tarball")),
    split=st.none() | word,
    root=paths,
    labels=paths,
    unlabelled=st.booleans(),
    suffixes=st.just(IMAGE_SUFFIXES) | st.lists(word, min_size=1, max_size=3).map(tuple),
    strict=st.booleans(),
    follow_links=st.booleans(),
    allow_truncated=st.booleans(),
    flat=st.booleans(),
)


@given(configs, word, word)
def test_the_command_line_means_the_same_record(config, source, out):
    arguments = build_parser().parse_args(shlex.split(config.to_cli(source, out))[1:])
    assert options.from_args(ManifestConfig, arguments) == config
    assert (arguments.dir, arguments.output) == (Path(source), Path(out))


def test_defaults_are_not_spelt_out():
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


def test_the_flat_shape_holds_paths_and_labels_only(tree, tmp_path):
    config = ManifestConfig(flat=True)
    config.save(config.load(tree), tmp_path / "train.json")
    assert load(tmp_path / "train.json", root=tree).manifest.root_hint == ""


def test_a_split_that_is_not_there_is_a_sentence(tree):
    with pytest.raises(SourceError, match="has no split 'dev'"):
        ManifestConfig(split="dev").load(tree)
