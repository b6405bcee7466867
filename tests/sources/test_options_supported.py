"""Options of a source: each is supported by the reader of the source, or refused by name."""

from dataclasses import fields
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from source_sets import plant, tar_bytes

from smallfiles import sources
from smallfiles.errors import SourceError, UsageError
from smallfiles.folders import SUPPORTED, SourceOptions
from smallfiles.options import flag_of
from smallfiles.pack import PackConfig, pack

ASKED = {
    "kind": "folder", "split": "train", "root": Path(), "labels": Path("missing.json"), "unlabelled": True,
    "strict": True, "suffixes": (".png",), "follow_links": True, "sizes": False, "columns": ("label=class",),
    "ignore": ("*.none",), "where": "label == 0",
}  # fmt: skip


def made(reader: str, root: Path) -> Path:
    """A source of each kind."""
    root.mkdir(exist_ok=True)
    name = "n01440764/n01440764_1.JPEG"
    if reader == "ImageNet in folders":
        return plant(root, f"train/{name}")
    if reader == "Flickr30K":
        plant(root, "1.jpg")
        (root / "results.csv").write_text("image_name| comment_number| comment\n1.jpg| 0| A dog .\n")
        return root
    if reader == "a folder of archives":
        for name in ("cat", "dog"):
            (root / f"{name}.tar").write_bytes(tar_bytes({"1.jpg": b"x"}))
        return root
    if reader.endswith(("tar", "tars")):
        member = name if "ImageNet" in reader else "cat/1.jpg"
        (root / "t.tar").write_bytes(tar_bytes({member: b"x"}))
        return root / "t.tar"
    if reader == "shards of others":
        (root / "x.tars").mkdir(exist_ok=True)
        (root / "x.tars/0.tar").write_bytes(tar_bytes({"1.jpg": b"x", "1.cls": b"0"}))
        return root / "x.tars"
    if reader == "a folder with boxes":
        plant(root, "images/1.jpg", "labels/1.txt", data=b"0 0.5 0.5 1 1")
        return plant(root, "images/1.jpg", data=b"P6 1 1 255 abc")
    if reader == "a table with files inside":
        picture = pa.array(
            [{"bytes": b"x", "path": "1.jpg"}], pa.struct({"bytes": pa.binary(), "path": pa.string()})
        )
        parquet.write_table(pa.table({"image": picture, "class": ["a"]}), root / "t.parquet")
        return root / "t.parquet"
    plant(root / "tree", "cat/1.jpg", "dog/2.jpg")
    if "table" in reader:
        table = root / "tree" / ("metadata.csv" if "folder" in reader else "labels.csv")
        table.write_text("file_name,class\ncat/1.jpg,a\ndog/2.jpg,b\n")
        return table.parent if "folder" in reader else table
    if reader == "a manifest":
        sources.load(root / "tree").manifest.save(root / "tree/m.json")
        return root / "tree/m.json"
    if reader == "packed files":
        return pack(sources.load(root / "tree"), root / "x.files", PackConfig(check="none")).path
    if reader in ("a packed output", "packed shards"):
        out = root / ("x.tars" if "shards" in reader else "x.arrow")
        return pack(sources.load(root / "tree"), out, PackConfig(check="none")).path
    return root / "tree"


@pytest.mark.parametrize("reader", SUPPORTED)
def test_an_option_that_a_source_does_not_support_is_refused_by_its_flag(tmp_path, reader):
    path = made(reader, tmp_path)
    assert ASKED.keys() == {field.name for field in fields(SourceOptions)}
    packed = ("a packed output", "packed shards", "packed files", "shards of others")
    recognised = {"kind"} if reader in packed else set()  # else it is none
    for name in ASKED.keys() - SUPPORTED[reader] - {"sizes"} - recognised:
        with pytest.raises(SourceError, match=f"{flag_of(SourceOptions, name)} was given"):
            sources.load(path, **{name: ASKED[name]})
    sources.load(path)


def test_labels_that_are_not_there_are_refused_by_readers_that_use_them(tmp_path):
    for reader in (name for name, supported in SUPPORTED.items() if "labels" in supported):
        with pytest.raises(SourceError, match=r"missing\.json|no captions"):
            sources.load(made(reader, tmp_path / reader.replace(" ", "")), labels=Path("missing.json"))


def test_a_list_or_a_single_text_does_for_a_tuple(tmp_path):
    tree = made("class folders", tmp_path)
    plant(tmp_path, "tree/cat/2.dat", "tree/dog/1.dat")
    assert sources.load(tree, suffixes="dat").manifest.paths.to_pylist() == ["cat/2.dat", "dog/1.dat"]
    sources.load(made("Flickr30K", tmp_path / "f"), columns=[])  # none is nothing to refuse
    with pytest.raises(SourceError, match="--field was given"):
        sources.load(tmp_path / "f", columns=["label=class"])


@pytest.mark.parametrize("given", [None, b"mask=x", 5, [5], ["a", None]])
def test_what_is_no_text_is_refused_in_a_sentence(given):
    with pytest.raises(UsageError, match=r"expected a text, or several in a list"):
        SourceOptions(columns=given)
