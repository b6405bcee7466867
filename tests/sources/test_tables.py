"""Tables as sources: every value as other software reads it, and a sentence for each kind of bad input."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from pathlib import Path

import pyarrow as pa
import pytest
from given import metas_in
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import feather, parquet
from source_sets import contents, plant, refused, rows

from smallfiles import formats, sources
from smallfiles.cli import main
from smallfiles.errors import ManifestError, SmallfilesError, SourceError, UsageError
from smallfiles.fields import further_files
from smallfiles.pack import PackConfig, pack

_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
_ROW = st.fixed_dictionaries(
    {
        "label": st.one_of(st.sampled_from(["ant", "bee", "NA", "1", "007", "2020-01-01"])),
        "score": st.floats(allow_nan=False, allow_infinity=False),
        "count": st.integers(-(2**63), 2**63 - 1),
        "remark": _TEXT,
    }
)


def write_csv(path: Path, table: dict[str, list], delimiter: str = ",") -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file, delimiter=delimiter)
        out.writerow(table)
        out.writerows(zip(*table.values(), strict=True))


def write(path: Path, table: dict[str, list]) -> Path:
    """A table by the software of others."""
    if path.suffix in (".csv", ".tsv"):
        write_csv(path, table, "\t" if path.suffix == ".tsv" else ",")
    elif path.suffix == ".jsonl":
        objects = (dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True))
        path.write_text("".join(json.dumps(each) + "\n" for each in objects))
    elif path.suffix == ".parquet":
        parquet.write_table(pa.table(table), path)
    elif path.suffix == ".feather":
        feather.write_feather(pa.table(table), path)
    else:
        with pa.ipc.new_stream(path, pa.table(table).schema) as out:
            out.write(pa.table(table))
    return path


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return plant(tmp_path_factory.mktemp("tables"), *(f"a/{n:02}.jpg" for n in range(12)))


@settings(max_examples=20)
@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".feather", ".arrow"])
@given(found=st.lists(_ROW, min_size=1, max_size=12))
def test_every_value_of_a_table_comes_back(pictures, suffix, found):
    table = {"file_name": [f"a/{n:02}.jpg" for n in range(len(found))]}
    table |= {name: [row[name] for row in found] for name in found[0]}
    manifest = sources.load(write(pictures / f"t{suffix}", table)).manifest
    assert manifest.paths.to_pylist() == table["file_name"]
    assert [manifest.classes[label] for label in manifest.targets.to_pylist()] == table["label"]
    assert list(manifest.classes) == sorted(set(table["label"]))
    names = ("count", "remark", "score")
    assert manifest.values.to_pylist() == [{name: row[name] for name in names} for row in found]


@settings(max_examples=30)
@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
@given(texts=st.lists(_TEXT, min_size=2, max_size=12))
def test_texts_of_a_csv_stay_texts_unless_all_are_plain_numbers(pictures, suffix, texts):
    table = {"path": [f"./a/{n:02}.jpg" for n in range(len(texts))], "label": [3] * len(texts)}
    texts[0] = "007"
    manifest = sources.load(write(pictures / f"t{suffix}", table | {"note": texts})).manifest
    assert set(manifest.targets.to_pylist()) == {3} and manifest.classes == ()
    assert [text or "" for text in manifest.values["note"].to_pylist()] == texts


def test_numbers_and_truth_values_of_a_csv_are_such_and_dates_texts(pictures):
    head = "image;class;n;x;loss;wild;day\n"
    text = f"{head}a/00.jpg;y;-1;2.5;nan;True;2020-01-01\na/01.jpg;n;;;1e-300;False;\n"
    (pictures / "t.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    first, second = sources.load(pictures / "t.csv").manifest.values.to_pylist()
    assert math.isnan(first.pop("loss"))
    assert first == {"n": -1, "x": 2.5, "wild": True, "day": "2020-01-01"}
    assert second == {"n": None, "x": None, "loss": 1e-300, "wild": False, "day": None}


def test_a_class_called_true_keeps_its_name_and_a_text_of_json_stays_a_text(pictures):
    table = {"path": ["a/00.jpg", "a/01.jpg"], "label": ["True", "False"], "said": ["True", "False"]}
    for name in ("t.csv", "t.jsonl"):
        manifest = sources.load(write(pictures / name, table)).manifest
        assert manifest.classes == ("False", "True")
    assert manifest.values["said"].to_pylist() == table["said"]


def test_values_keep_their_types_and_what_no_field_can_be_goes_into_meta(pictures):
    columns = {
        "file_name": pa.array(["a/00.jpg", "a/01.jpg"]),
        "label": pa.array([3, 4]),
        "boxes": pa.array([[[0.5, 1, 2, 3]], []]),
        "loss": pa.array([math.nan, 2], pa.float32()),
        "nothing": pa.array([None, None]),
        "index": pa.array([math.nan, 8]),
        "camera": pa.array([{"iso": 100}, None]),
    }
    parquet.write_table(pa.table(columns), pictures / "t.parquet")
    source = sources.load(pictures / "t.parquet")
    manifest = source.manifest
    kinds = {"boxes": "list<item: list<item: double>>", "loss": "float", "nothing": "string"}
    assert manifest.fields == kinds and math.isnan(manifest.values["loss"][0].as_py())
    assert manifest.values["boxes"].to_pylist() == [[[0.5, 1, 2, 3]], []]
    assert metas_in(manifest.table) == [{"index": None, "camera": {"iso": 100}}, {"index": 8, "camera": None}]
    assert "in meta: index, camera (a name or type that no field can have" in source.notes[0]


@pytest.mark.parametrize(
    ("values", "expected"), [(["one", "two"], [["one"], ["two"]]), ([["a", "b"], []], [["a", "b"], []])]
)
def test_a_column_of_texts_is_taken_as_captions(pictures, values, expected):
    path = write(pictures / "t.parquet", {"file_name": ["a/00.jpg", "a/01.jpg"], "text": values})
    assert list(rows(sources.load(path)).values()) == expected


def test_a_table_is_packed_with_fields_templates_and_all_values(pictures, tmp_path, capsys):
    write(pictures / "t.csv", {"id": [*range(3)], "species": ["b", "a", "b"], "site": ["x", "y", "z"]})
    out = tmp_path / "out.arrow"
    fields = ["--field", "image=a/0{id}.jpg", "--field", "label=species"]
    assert main(["pack", str(pictures / "t.csv"), str(out), "--check", "none", *fields]) == 0
    line = (
        "a/0{id}.jpg, label from species, 2 classes in sorted order (a, b), values: id (int64), site (string)"
    )
    assert f"t.csv: image from {line}\n" in capsys.readouterr().err
    packed = formats.open(out)
    assert packed.classes == ("a", "b")
    assert packed.table(["label"])["label"].to_pylist() == [1, 0, 1]
    assert packed.table(["id", "site"], [2]).to_pylist() == [{"id": 2, "site": "z"}]
    assert "meta" not in packed.fields
    assert bytes(packed.read(2)) == b"data of a/02.jpg"


def test_a_packed_table_of_other_files_than_images_is_verified_against_it(tmp_path):
    plant(tmp_path, "1.npy", "2.npy")
    table = write(tmp_path / "t.csv", {"path": ["1.npy", "2.npy"], "label": ["x", "y"]})
    out = tmp_path / "out.h5"
    assert main(["pack", str(table), str(out), "--check", "none"]) == 0
    assert main(["verify", str(out), "--against", str(table)]) == 0
    table.write_text(table.read_text().replace("x", "z"))
    assert main(["verify", str(out), "--against", str(table)]) == 1


@pytest.mark.parametrize("name", ["x/{}.jpg", "{}.jpg", "{}"])
def test_labels_join_a_folder_by_path_name_or_stem_and_what_is_left_is_named(tmp_path, name):
    plant(tmp_path / "tree", "x/1.jpg", "x/2.jpg", "y/4.jpg")
    names = list(map(name.format, (1, 2, 3)))
    labels = write(tmp_path / "labels.csv", {"id": names, "label": ["b", "a", "b"]})
    source = sources.load(tmp_path / "tree", labels=labels)
    assert rows(source) == {"x/1.jpg": 1, "x/2.jpg": 0} and source.manifest.classes == ("a", "b")
    assert set(contents(source)) == set(rows(source))
    said = "; ".join(source.notes)
    assert f"1 row of the table without a file left out: {names[2]}" in said
    assert "1 file not in the table left out: y/4.jpg" in said
    assert "strict" in refused(tmp_path / "tree", labels=labels, strict=True)


def test_metadata_of_hugging_face_is_found_and_classes_count_over_all_splits(tmp_path):
    plant(tmp_path, "train/1.jpg", "train/2.jpg", "test/1.jpg")
    write(tmp_path / "train/metadata.csv", {"file_name": ["1.jpg", "2.jpg"], "label": ["a", "c"]})
    write(tmp_path / "test/metadata.jsonl", {"file_name": ["1.jpg"], "label": ["b"]})
    train, test = (sources.load(tmp_path, split=split) for split in (None, "test"))
    assert train.manifest.classes == test.manifest.classes == ("a", "b", "c")
    assert rows(train) == {"train/1.jpg": 0, "train/2.jpg": 2} and rows(test) == {"test/1.jpg": 1}
    write(tmp_path / "metadata.csv", {"file_name": ["train/1.jpg", "test/1.jpg"], "label": [7, 8]})
    assert "test/metadata.jsonl" in refused(tmp_path, split="test")  # two tables of one split
    (tmp_path / "test/metadata.jsonl").unlink()
    assert rows(sources.load(tmp_path, split="test")) == {"test/1.jpg": 8}


def test_a_column_of_splits_is_followed_and_rows_without_label_are_left_out(pictures):
    table = {"file": [f"a/{n:02}.jpg" for n in range(4)], "class": ["x", "y", None, "z"]}
    path = write(pictures / "t.jsonl", table | {"split": ["train", "val", "train", "train"]})
    source = sources.load(path)
    assert rows(source) == {"a/00.jpg": 0, "a/03.jpg": 2} and source.manifest.split == "train"
    assert "1 row without class left out: a/02.jpg" in source.notes
    assert rows(sources.load(path, split="val")) == {"a/01.jpg": 1}
    assert re.search(r"1 row without class .*strict", refused(path, strict=True))
    write(path, table | {"split": [0, 1, 0, 0]})
    found = sources.load(path).manifest
    assert len(found) == 3 and found.values["split"].to_pylist() == [0, 1, 0]


def test_missing_files_are_counted_and_all_missing_are_refused(pictures):
    path = write(pictures / "t.csv", {"path": ["a/00.jpg", "b.jpg", "c.jpg"], "label": [1, 2, 3]})
    source = sources.load(path)
    assert source.notes[-1] == f"2 files missing in {pictures}: b.jpg, c.jpg"
    assert source.manifest.sizes is None
    assert re.search(r"no file of .*t.csv for .* is in .*--root DIR", refused(path, root=pictures / "a"))


GOOD = b"path,label\na/00.jpg,1\n"


def parquet_with_a_name_in_latin_1():
    file = io.BytesIO()
    parquet.write_table(pa.table({"path": ["a/00.jpg"], "label": [1], "grXsse": [2]}), file)
    return file.getvalue().replace(b"grXsse", b"gr\xf6sse")


@pytest.mark.parametrize(
    ("name", "data", "options", "words"),
    [
        ("t.csv", b"", {}, "Empty CSV file"),
        ("t.csv", b"path,label\n", {}, "no rows"),
        ("t.jsonl", b"{\n", {}, "cannot be read as a table"),
        ("t.parquet", b"PAR1", {}, "cannot be read as a table"),
        ("t.parquet", parquet_with_a_name_in_latin_1(), {}, "cannot be read as a table.*utf-8"),
        ("t.csv", b"path,label\na.jpg,caf\xe9\n", {}, "UTF-?8"),
        ("t.csv", b"path,l\xe9\na.jpg,1\n", {}, "utf-8"),
        ("t.csv", b"path,label\na.jpg\n", {}, "Expected 2 columns, got 1"),
        ("t.csv", b"path,label,label\na.jpg,1,2\n", {}, "column label of .* occurs several times"),
        ("t.csv", b"path,label\n" + b"x" * (1 << 25) + b",1\n", {}, "line is longer than 16 MiB"),
        ("t.csv", GOOD + b",2\n", {}, "no path in 1 row: 2"),
        ("t.csv", GOOD + GOOD[11:], {}, "1 path is given more than once: 'a/00.jpg'"),
        ("t.csv", GOOD + b"/etc/passwd,1\n", {}, "'/etc/passwd'.*relative"),
        ("t.csv", GOOD + b"a\0b.jpg,1\n", {}, r"'a\\x00b.jpg'"),
        ("t.csv", GOOD + b"../b.jpg,1\n", {}, r"'\.\./b.jpg'"),
        ("t.csv", b"path,label\na/00.jpg,0.5\n", {}, "column label of .* contains double.*score=label"),
        ("t.csv", b"path,label\na/00.jpg,99999999999\n", {}, "outside the range of 32 bits"),
        ("t.csv", b"path,label\na/00.jpg,\n", {}, "no row of .* has a label"),
        ("t.jsonl", b'{"path": "a/00.jpg", "label": [1, 2]}', {}, r"column label .*list<.*tags=label"),
        ("t.jsonl", b'{"path": 0.5, "label": 1}', {}, "column path of .* contains double"),
        ("t.csv", b"x,label\na.jpg,1\n", {}, "no usual column for the image.*--field image=COLUMN"),
        ("t.csv", b"path,key\na.jpg,1\n", {}, "no usual column for the label.*=COLUMN or --unlabelled"),
        ("t.csv", b"path,label,class\na.jpg,1,2\n", {}, "several columns for the label: label, class"),
        ("t.csv", GOOD, {"columns": ("label=x",)}, "no column 'x'.*path, label"),
        ("t.csv", GOOD, {"columns": ("x=label", "x=path")}, "name a field twice"),
        ("t.csv", GOOD, {"columns": ("label=label", "captions=path")}, "have two targets"),
        ("t.csv", GOOD, {"columns": ("key=label",)}, "'key' is a name that is used for something else"),
        ("t.csv", GOOD, {"columns": ("mask=../{label}.png",)}, r"'\.\./1.png'.*leaves its folder"),
        ("t.csv", GOOD, {"columns": ("mask={path}",)}, "file of two fields of one sample"),
        ("t.csv", GOOD, {"columns": ("mask=m/{label}.png",)}, "no file of .* field mask is in"),
        ("t.csv", b"path,label,age\na/00.jpg,1,2\n", {"columns": ("age=label",)}, "age is another column"),
        ("t.jsonl", b'{"path": "a/00.jpg", "x": {"y": 1}}', {"columns": ("y=x",)}, "have the type struct"),
        ("t.csv", GOOD, {"columns": ("label",)}, "NAME=COLUMN"),
        ("t.csv", GOOD, {"suffixes": (".png",)}, "--suffix was given"),
    ],
)  # fmt: skip
def test_bad_input_gets_a_sentence_with_the_path(pictures, name, data, options, words):
    (pictures / name).write_bytes(data)
    with pytest.raises((SourceError, ManifestError, UsageError)) as caught:
        sources.load(pictures / name, **options)
    assert re.search(words, str(caught.value)), caught.value
    assert isinstance(caught.value, UsageError) or str(pictures / name) in str(caught.value)


def test_tables_that_fit_no_file_or_several_are_refused(tmp_path):
    plant(tmp_path / "tree", "x/1.jpg", "y/1.jpg", "y/2.jpg")
    for names, words in (
        (["z.jpg"], "no row of"),
        (["1.jpg", "2.jpg"], "several files .* have the file name"),
    ):
        labels = write(tmp_path / "labels.csv", {"file": names, "label": names})
        with pytest.raises(SmallfilesError, match=words):
            sources.load(tmp_path / "tree", labels=labels)
    with pytest.raises(SourceError, match=r"its suffix is not one of"):
        sources.load(tmp_path / "tree", labels=plant(tmp_path, "labels.txt") / "labels.txt")


def species(folder: Path, **more: list) -> Path:
    """Three pictures with masks, and a table of them."""
    plant(folder, *(f"{where}/{n}.{kind}" for n in range(3) for where, kind in (("i", "jpg"), ("m", "png"))))
    table = {"filename": [f"i/{n}.jpg" for n in range(3)], "mask": [f"m/{n}.png" for n in range(3)]}
    return write(folder / "labels.csv", table | {"years": [1.5, "", 3], "kind": ["b", "a", "b"]} | more)


def test_the_fields_of_a_table_are_packed_and_verified_without_saying_them_again(tmp_path, capsys):
    table, out, again = species(tmp_path), tmp_path / "out.arrow", tmp_path / "again.arrow"
    fields = ["--field", "mask=mask", "--field", "label=kind", "--field", "age=years"]
    assert main(["pack", str(table), str(out), "--check", "none", *fields]) == 0
    packed = formats.open(out)
    assert packed.keys().to_pylist() == ["i/0.jpg", "i/1.jpg", "i/2.jpg"]
    assert packed.table(["label"])["label"].to_pylist() == [1, 0, 1]
    assert bytes(packed.blob("mask").read(2)) == b"data of m/2.png" and further_files(packed.fields) == {
        "mask": ".png"
    }
    assert packed.table(["age"]).to_pylist() == [{"age": age} for age in (1.5, None, 3)]
    capsys.readouterr()
    assert main(["inspect", str(out)]) == 0
    assert "mask (.png)" in (said := capsys.readouterr().out) and "--field age=years" in said
    assert main(["pack", str(out), str(again), "--check", "none"]) == 0
    assert again.read_bytes() == out.read_bytes()
    assert main(["verify", str(out), "--against", str(table)]) == 0
    table.write_text(table.read_text().replace("1.5", "1.25"))
    assert main(["verify", str(out), "--against", str(table)]) == 1
    assert "i/0.jpg has another age in the source" in capsys.readouterr().out


def test_a_table_of_numbers_to_regress_needs_no_label(tmp_path):
    table = species(tmp_path, label=[0.5, 1.5, 2.5])
    source = sources.load(table, columns=("score=label",))
    assert source.manifest.values["score"].to_pylist() == [0.5, 1.5, 2.5]
    assert set(source.manifest.targets.to_pylist()) == {-1} and "no label or captions" in source.notes[0]


def test_several_labels_per_sample_are_a_value(pictures):
    table = {"file_name": ["a/00.jpg", "a/01.jpg"], "labels": [["ant", "bee"], []]}
    manifest = sources.load(write(pictures / "t.jsonl", table), columns=("tags=labels",)).manifest
    assert manifest.values["tags"].to_pylist() == table["labels"]


@pytest.mark.parametrize("fields", [("image=filename", "mask=mask"), ("mask=m/{n}.png",), ("mask=mask",)])
def test_the_key_is_the_usual_column_unless_a_field_says_image(tmp_path, fields):
    table = species(tmp_path, n=[0, 1, 2])
    manifest = sources.load(table, columns=fields).manifest
    assert manifest.path(1) == "i/1.jpg" and manifest.blob_paths("mask")[1].as_py() == "m/1.png"
    turned = sources.load(table, columns=("picture=filename", "image=mask")).manifest
    assert turned.path(1) == "m/1.png" and turned.blob_paths("picture")[1].as_py() == "i/1.jpg"


def test_a_missing_mask_is_counted_and_a_row_without_one_left_out(tmp_path):
    table = species(tmp_path, mask=["m/0.png", "", "m/9.png"])
    source = sources.load(table, columns=("mask=mask",))
    assert rows(source) == {"i/0.jpg": -1, "i/2.jpg": -1}
    said = "; ".join(source.notes)
    assert "1 row without mask left out: i/1.jpg" in said and "mask: 1 file missing in" in said
    assert "m/9.png" in said
    with pytest.raises(SourceError, match=r"1 row without mask.*1 file missing.*strict"):
        sources.load(table, columns=("mask=mask",), strict=True)
    with pytest.raises(SmallfilesError, match=r"m/9.png .*is missing"):
        pack(source, tmp_path / "out.arrow", PackConfig(check="none"))


def test_metadata_of_hugging_face_names_further_files_and_values_without_targets(tmp_path):
    plant(tmp_path, *(f"train/{name}" for name in ("1.jpg", "2.jpg", "m/1.png", "m/2.png")))
    table = {"file_name": ["1.jpg", "2.jpg"], "mask_file_name": ["m/1.png", "m/2.png"], "age": [1, 2]}
    write(tmp_path / "train/metadata.csv", table)
    source = sources.load(tmp_path)
    assert source.manifest.fields == {"mask": ".png", "age": "int64"}
    assert source.manifest.blob_paths("mask").to_pylist() == ["train/m/1.png", "train/m/2.png"]
    assert rows(source) == {"train/1.jpg": -1, "train/2.jpg": -1}
    assert not any("not in the table" in note for note in source.notes)
