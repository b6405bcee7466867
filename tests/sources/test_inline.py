"""Tables that hold the files themselves, as Hugging Face publishes them."""

from __future__ import annotations

import io
import json
import re
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet
from source_sets import contents, plant, refused, rows

from smallfiles import formats, sources
from smallfiles.cli import main
from smallfiles.pack import PackConfig, pack
from smallfiles.sources import ManifestConfig

_FILE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
_JPEG, _PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"


def table(numbers: range, *, paths: bool = True, mask: bool = True, **more: list) -> pa.Table:
    """Pictures with masks, labels of three classes and a score each."""
    pictures = [{"bytes": _JPEG + b"%d" % n, "path": f"p{n}.jpg" if paths else None} for n in numbers]
    masks = [{"bytes": _PNG + b"%d" % n, "path": None} for n in numbers]
    columns = {"image": pa.array(pictures, _FILE), "label": pa.array([n % 3 for n in numbers])}
    columns |= {"seg": pa.array(masks, _FILE)} if mask else {}
    label = {"names": ["x", "y", "z"], "_type": "ClassLabel"}
    about = {"huggingface": json.dumps({"info": {"features": {"label": label}}})}
    return pa.table(columns | {"score": pa.array([n / 7 for n in numbers])} | more).replace_schema_metadata(
        about
    )


def repository(root: Path, **how: bool) -> Path:
    """A data set as it comes from a hub: two files of train, one of test, in groups of five rows."""
    (root / "data").mkdir(parents=True)
    for name, numbers in (("train-00000-of-00002", range(12)), ("train-00001-of-00002", range(12, 20))):
        parquet.write_table(table(numbers, **how), root / f"data/{name}.parquet", row_group_size=5)
    parquet.write_table(table(range(3), **how), root / "data/test-00000-of-00001.parquet")
    plant(root, "README.md", ".gitattributes")
    return root


@pytest.mark.parametrize("paths", [True, False])
@pytest.mark.parametrize("shuffle", [None, 3])
def test_pictures_masks_labels_and_values_of_all_files_are_packed(tmp_path, paths, shuffle):
    source = sources.load(repository(tmp_path / "set", paths=paths))
    keys = [f"p{n}.jpg" if paths else f"{n:08d}.jpeg" for n in range(20)]
    assert source.manifest.paths.to_pylist() == keys and source.manifest.classes == ("x", "y", "z")
    out = tmp_path / "out.arrow"
    pack(source, out, PackConfig(shuffle=shuffle, check="none", verify="full"))
    packed = formats.open(out)
    for place, key in enumerate(packed.keys().to_pylist()):
        number = keys.index(key)
        assert bytes(packed.read(place)) == _JPEG + b"%d" % number and packed.target(place) == number % 3
        assert bytes(packed.blob("seg").read(place)) == _PNG + b"%d" % number
        assert packed.table(["score"])["score"][place].as_py() == number / 7
    assert main(["verify", str(out), "--against", str(tmp_path / "set")]) == 0


def test_the_split_is_in_the_name_of_the_file(tmp_path):
    root = repository(tmp_path / "set")
    source = sources.load(root, split="test")
    assert len(source.manifest) == 3 and source.manifest.split == "test"
    assert "no split 'val'" in refused(root, split="val")


@pytest.mark.parametrize("columns", [(), ("image=seg", "picture=image")])
@pytest.mark.parametrize("paths", [True, False])
def test_a_manifest_of_such_a_set_finds_the_same_files(tmp_path, paths, columns):
    root = repository(tmp_path / "set", paths=paths)
    source = sources.load(root, columns=columns)
    ManifestConfig().save(source, tmp_path / "m.json")
    again = sources.load(tmp_path / "m.json")
    assert contents(again) == contents(source)
    for name in source.manifest.blobs:
        for path in source.manifest.blob_paths(name).to_pylist():
            buffers = [bytearray(99), bytearray(99)]
            sizes = {
                each.store.read_into(path, memoryview(b))
                for each, b in zip((source, again), buffers, strict=True)
            }
            assert len(sizes) == 1 and buffers[0] == buffers[1]
    assert bytes(buffers[0]).startswith(_PNG if not columns else _JPEG)


def test_a_mapped_arrow_file_of_a_cache_is_read_too(tmp_path):
    path = tmp_path / "birds-train.arrow"
    with pa.ipc.new_stream(path, table(range(9)).schema) as out:
        out.write_table(table(range(9)), max_chunksize=4)
    source = sources.load(path)
    assert contents(source)["p7.jpg"] == _JPEG + b"7" and source.manifest.name == "birds-train"


def test_rows_without_a_file_are_left_out_and_named(tmp_path):
    found = table(range(3), mask=False)
    pictures = [*found["image"].to_pylist()[:2], None]
    found = found.set_column(0, "image", pa.array(pictures, _FILE))
    parquet.write_table(found, tmp_path / "t.parquet")
    source = sources.load(tmp_path / "t.parquet")
    assert list(rows(source).values()) == [0, 1]
    assert "1 row without image left out: number 2" in source.notes
    assert "strict" in refused(tmp_path / "t.parquet", strict=True)


@pytest.mark.parametrize(
    ("picture", "options", "words"),
    [
        ({"bytes": b"what", "path": None}, {}, "1 row of the column image .* no known kind.*0 .*b'what'"),
        ({"bytes": None, "path": "/data/1.jpg"}, {}, "1 row .* outside: /data/1.jpg.*Embed"),
        ({"bytes": _PNG, "path": None}, {"columns": ("mask=m/{label}.png",)}, "names files beside"),
        ({"bytes": _PNG, "path": None}, {"root": Path("x")}, "--root was given"),
    ],
)
def test_what_cannot_be_read_is_refused_in_a_sentence(tmp_path, picture, options, words):
    found = pa.table({"image": pa.array([picture], _FILE), "label": [1]})
    parquet.write_table(found, tmp_path / "t.parquet")
    with pytest.raises(Exception, match=words):
        sources.load(tmp_path / "t.parquet", **options)


def test_a_group_of_rows_that_memory_cannot_hold_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("smallfiles.sources.table_files._LARGEST_GROUP_BYTES", 100)
    assert re.search(r"group of rows of .*row_group_size", refused(repository(tmp_path / "set")))


def test_images_beside_a_stray_table_of_pictures_stay_a_folder_of_images(tmp_path):
    plant(tmp_path, "cat/1.jpg", "dog/2.jpg")
    parquet.write_table(table(range(3)), tmp_path / "preview.parquet")
    assert sources.load(tmp_path).manifest.classes == ("cat", "dog")


def test_only_a_few_groups_of_rows_are_kept_in_memory(tmp_path, monkeypatch):
    read, of = [], sources.table_files.read_group
    monkeypatch.setattr("smallfiles.sources.table_files.read_group", lambda *a: read.append(a[2]) or of(*a))
    store = sources.load(repository(tmp_path / "set", mask=False)).store
    monkeypatch.setattr("smallfiles.sources.inline.KEPT_BYTES", 0)
    for n in (*range(20), 0, 1, 19):
        assert store.size(f"p{n}.jpg") == len(b"%d" % n) + 3
    assert read.count("bytes") == 5 + 2


def test_sounds_in_a_table_are_packed_and_verified_against_it(tmp_path):
    sounds = pa.array([{"bytes": b"fLaC%d" % n, "path": None} for n in range(3)], _FILE)
    parquet.write_table(pa.table({"audio": sounds, "text": ["a", "b", "c"]}), tmp_path / "t.parquet")
    out = tmp_path / "out.h5"
    assert main(["pack", str(tmp_path / "t.parquet"), str(out), "--check", "none"]) == 0
    assert formats.open(out).keys().to_pylist() == [f"{n:08d}.flac" for n in range(3)]
    assert formats.open(out).target(2) == ["c"]
    assert main(["verify", str(out), "--against", str(tmp_path / "t.parquet")]) == 0


def test_a_declared_column_of_bytes_is_packed_alike_from_the_table_and_from_its_manifest(tmp_path):
    """Two columns of bytes, rows in two groups: the same samples either way, and equal to their source."""
    pictures = []
    for shade in (0, 200):
        out = io.BytesIO()
        Image.new("L", (8, 8), shade).save(out, "JPEG")
        pictures.append(out.getvalue())
    data = {"photo": pictures, "mask": pictures[::-1], "label": ["b", "a"]}
    parquet.write_table(pa.table(data), tmp_path / "s.parquet", row_group_size=1)
    flags = ["--field", "image=photo"]  # a name that says nothing
    assert main(["pack", str(tmp_path / "s.parquet"), str(tmp_path / "a.arrow"), *flags]) == 0
    assert main(["manifest", str(tmp_path / "s.parquet"), "-o", str(tmp_path / "m.json"), *flags]) == 0
    assert main(["pack", str(tmp_path / "m.json"), str(tmp_path / "b.arrow")]) == 0
    for name in ("a", "b"):
        with closing(formats.open(tmp_path / f"{name}.arrow")) as reader:
            assert [bytes(reader.read(row)) for row in range(2)] == data["photo"]
            assert [bytes(reader.blob("mask").read(row)) for row in range(2)] == data["mask"]
            assert [reader.classes[reader.target(row)] for row in range(2)] == data["label"]
    assert main(["verify", str(tmp_path / "a.arrow"), "--against", str(tmp_path / "s.parquet")]) == 0
