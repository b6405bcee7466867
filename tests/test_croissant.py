"""The card of a packed set: its files, fields and classes."""

import hashlib
import json

import pytest
from PIL import Image

from smallfiles.cli import main


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Images of two classes; a table with masks, numbers and boxes."""
    folder = tmp_path_factory.mktemp("card")
    rows = []
    for number in range(6):
        name = f"{'ab'[number % 2]}/{number}.png"
        for kind, mode in (("plain", "RGB"), ("images", "RGB"), ("masks", "L")):
            path = folder / kind / name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new(mode, (20, 10), number).save(path)
        rows.append(
            {
                "image": f"images/{name}",
                "mask": f"masks/{name}",
                "score": number / 2,
                "boxes": [[1, 2, 3, number]],
            }
        )
    (folder / "table.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def card_of(source, out, *words):
    assert main(["pack", str(source), str(out), *words]) == 0
    assert main(["inspect", str(out), "--croissant", "--licence", "https://spdx.org/licenses/MIT"]) == 0
    return json.loads(out.with_name(out.name + ".croissant.json").read_text())


def fields_of(card):
    return {field["@id"]: field for each in card["recordSet"] for field in each["field"]}


@pytest.mark.parametrize("suffix", ["arrow", "tars", "tar", "h5", "sqfs", "lmdb"])
def test_a_card_names_every_file_with_its_sha256_and_the_classes(suffix, place, tmp_path, capsys):
    options = ["-O", "max_count=4"] if suffix == "tars" else []
    card = card_of(place / "plain", tmp_path / f"x.{suffix}", *options)
    files = [each for each in card["distribution"] if each["@type"] == "cr:FileObject"]
    assert len(files) == {"tars": 4, "tar": 2}.get(suffix, 1)
    for file in files:
        data = (tmp_path / file["contentUrl"]).read_bytes()
        assert file["sha256"] == hashlib.sha256(data).hexdigest() and file["contentSize"] == f"{len(data)} B"
    (classes,) = (each for each in card["recordSet"] if each["@id"] == "classes")
    assert [row["classes/name"] for row in classes["data"]] == ["a", "b"]
    assert card["license"] == "https://spdx.org/licenses/MIT" and card["identifier"].startswith("sha256:")
    assert "once, for SHA-256" in capsys.readouterr().err


def test_values_and_columns_that_were_added_later_have_their_types(place, tmp_path):
    out = tmp_path / "x.arrow"
    card_of(place / "table.jsonl", out)
    (tmp_path / "more.csv").write_text(
        "key,good\n" + "".join(f"images/{'ab'[n % 2]}/{n}.png,true\n" for n in range(6))
    )
    assert main(["annotate", str(out), str(tmp_path / "more.csv"), "--key", "key"]) == 0
    assert main(["inspect", str(out), "--croissant"]) == 0
    card = json.loads((tmp_path / "x.arrow.croissant.json").read_text())
    fields = fields_of(card)
    assert fields["samples/score"]["dataType"] == "sc:Float"
    assert fields["samples/boxes"]["arrayShape"] == "-1,-1"
    (added,) = (field for field in fields.values() if field["name"] == "good")
    assert added["dataType"] == "sc:Boolean"
    assert added["source"]["fileObject"]["@id"] in {each["@id"] for each in card["distribution"]}
    assert "license" not in card


def test_a_tree_of_files_and_a_licence_without_a_card_are_refused(place, tmp_path, capsys):
    out = tmp_path / "x.files"
    assert main(["pack", str(place / "plain"), str(out)]) == 0
    assert main(["inspect", str(out), "--croissant"]) == 2
    assert "is a tree of files" in capsys.readouterr().err
    assert main(["inspect", str(out), "--licence", "MIT"]) == 2
    assert "--licence is given without --croissant" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", ["arrow", "h5", "sqfs", "tars", "lmdb"])
def test_mlcroissant_finds_no_fault(suffix, place, tmp_path):
    mlcroissant = pytest.importorskip("mlcroissant", reason="mlcroissant: not installed")
    card_of(place / "table.jsonl", tmp_path / f"x.{suffix}")
    card = mlcroissant.Dataset(tmp_path / f"x.{suffix}.croissant.json")
    assert not card.metadata.issues.errors
    (samples, *_) = card.metadata.record_sets
    assert {"key", "data", "mask", "score", "boxes"} <= {each.name for each in samples.fields}
