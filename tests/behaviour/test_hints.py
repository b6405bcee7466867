"""The command line suggests what people who mistype a name probably meant."""

import dataclasses
import json
import shlex

import pytest
from PIL import Image

from smallfiles import formats
from smallfiles.cli import main


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for kind in ("cat", "dog"):
        (tmp_path / "images" / kind).mkdir(parents=True)
        for n in range(2):
            Image.new("RGB", (16, 12), (n, 9, 99)).save(tmp_path / "images" / kind / f"{n}.jpg")
    assert main(["pack", "images", "train.arrow"]) == 0
    return tmp_path


@pytest.fixture
def said(place, capsys):
    def run(words, code):
        capsys.readouterr()
        assert main(shlex.split(words)) == code
        out, err = capsys.readouterr()
        return out + err

    return run


@pytest.mark.parametrize(
    ("words", "code", "meant"),
    [
        ("pack images x.arrow --unlabeled", 2, "did you mean --unlabelled?"),
        ("pack images x.arrow --spit=train", 2, "did you mean --split?"),
        ("pakc images x.arrow", 2, "did you mean pack?"),
        ("bench reat train.arrow", 2, "did you mean read?"),
        ("synth o --layout kagle", 2, "did you mean kaggle?"),
        ("pack imagse x.arrow", 1, "(did you mean images?)"),
        ("pack imagse/cat x.arrow", 1, "(did you mean images/cat?)"),
        ("inspect traim.arrow", 1, "(did you mean train.arrow?)"),
        ("verify train.arrow --against image", 1, "(did you mean images?)"),
        ("stage traim.arrow", 1, "/train.arrow?)"),
    ],
)
def test_a_mistyped_flag_verb_or_path_is_answered_with_a_similar_one(words, code, meant, said):
    assert meant in said(words, code)


def test_nothing_is_suggested_that_is_not_similar(said):
    assert "did you mean" not in said("pack elsewhere x.arrow", 1)
    assert "did you mean" not in said("pack images x.arrow --zzz", 2)


@pytest.mark.parametrize("flag", ["--licence", "--license"])
def test_a_licence_is_spelled_either_way(flag, said, place):
    said(f"inspect train.arrow --croissant {flag} https://example.org/l", 0)
    record = json.loads((place / "train.arrow.croissant.json").read_text())
    assert record["license"] == "https://example.org/l"


@pytest.mark.parametrize("name", formats.SUFFIXES)
def test_the_help_of_pack_names_each_option_of_each_format(name, said):
    shown = said("pack --help", 0)
    for each in dataclasses.fields(formats.get(name).Options):
        assert each.name in shown
        if isinstance(each.default, int) and not isinstance(each.default, bool):
            assert f"{each.name}={each.default}" in shown
    assert "juelich" in shown and "vlen" in shown


@pytest.mark.parametrize(
    "verb", ["simulate", "advise", "bench read", "pack", "profile", "ring fill", "train"]
)
def test_no_help_shows_a_value_as_python_writes_it(verb, said):
    shown = said(f"{verb} --help", 0)
    assert "(default: (" not in " ".join(shown.split()) and "default: []" not in shown


def test_verify_says_what_was_packed_when_it_is_compared_with_something_else(said, place):
    (place / "other" / "cat").mkdir(parents=True)
    Image.new("RGB", (16, 12)).save(place / "other" / "cat" / "0.jpg")
    shown = said("verify train.arrow --against other", 1)
    assert "it was packed from 'images', split 'train', 4 samples; it was compared with other" in shown
    assert "packed from" not in said("verify train.arrow --against images", 0)


def test_a_column_of_paths_of_files_that_exist_comes_with_the_flag_that_packs_them(said, place):
    rows = [f"{kind}/{n}.jpg,{kind},{kind}/{1 - n}.jpg,{n}.jpg" for kind in ("cat", "dog") for n in range(2)]
    (place / "t.csv").write_text("\n".join(["file,label,before,title", *rows]) + "\n")
    shown = said("pack t.csv x.arrow --root images", 0)
    assert "the column before names files that exist: --field before=before packs them too" in shown
    assert "the column title" not in shown
    said("pack t.csv y.arrow --root images --field before=before", 0)
    with formats.open(place / "y.arrow") as reader:
        assert bytes(reader.blob("before").read(0)) == (place / "images/cat/1.jpg").read_bytes()


@pytest.mark.parametrize("name", ["sheet.html", "notes.txt", "picture.png", "no_suffix"])
def test_a_file_that_is_not_packed_is_not_to_be_packed(name, said, place):
    (place / name).write_text("<!DOCTYPE html>")
    for verb in ("verify", "inspect"):
        shown = said(f"{verb} {name}", 2)
        assert f"{name} is not a packed file" in shown and "Give the packed file" in shown
        assert "Pack it first" not in shown
    (place / "t.csv").write_text("file,label\ncat/0.jpg,a\n")
    for name in ("images", "t.csv"):
        assert f"Pack it first: smallfiles pack {name} train.arrow" in said(f"verify {name}", 2)


def test_of_a_file_beside_a_packed_file_the_packed_file_is_named(said, place):
    said("pack images train.tar", 0)
    (place / "scores.csv").write_text("file,score\ncat/0.jpg,1\ncat/1.jpg,1\ndog/0.jpg,1\ndog/1.jpg,1\n")
    said("annotate train.arrow scores.csv --key file", 0)
    beside = [path.name for path in place.glob("train.*") if path.suffixes[1:]]
    assert len(beside) == 6
    for name in beside:
        owner = f"train{(place / name).suffixes[0]}"
        for words, code in ((f"inspect {name}", 2), (f"verify {name}", 2), (f"pack {name} x.arrow", 2)):
            assert f"it belongs to {owner}; expected the packed file itself. Give {owner}" in said(
                words, code
            )


@pytest.mark.parametrize(
    "words",
    [
        r"pack images 'D:\out\a.arrow'",
        r"pack 'C:\data\images' x.arrow",
        r"synth 'D:\new' --layout folder --count 4",
        r"inspect train.arrow --picture 'c:\sheet.html'",
        r"pack images '\\server\share\a.arrow'",
        r"simulate --records 'D:\r.json'",
    ],
)
def test_a_path_of_windows_is_refused_and_nothing_is_written(words, said, place):
    before = sorted(place.rglob("*"))
    shown = said(words, 2)
    assert "is a path of Windows, and this is Linux" in shown and "/mnt/d" in shown
    assert sorted(place.rglob("*")) == before


@pytest.mark.parametrize("verb", ["stage", "inspect", "verify"])
def test_a_url_where_a_verb_reads_files_names_the_command_that_copies(verb, said):
    shown = said(f"{verb} s3://course/sets/train.tars", 2)
    assert "s3://course/sets/train.tars is in an object store" in shown, shown
    assert "smallfiles pull s3://course/sets/train.tars train.tars" in shown, shown


def test_a_name_with_a_backslash_that_is_no_path_of_windows_stays_a_name(said, place):
    said(r"pack images 'a\b.arrow'", 0)
    assert (place / r"a\b.arrow").is_file()


def test_doctor_does_not_tick_what_is_not_installed(said, monkeypatch):
    monkeypatch.setattr("smallfiles.doctor._is_installed", lambda name: name != "h5py")
    shown = said("doctor", 0)
    assert "not installed: h5py" in shown
    assert [line for line in shown.splitlines() if line[:1] in "✓+" and "not installed" in line] == []
