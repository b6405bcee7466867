"""Flickr30K: three caption files that agree, a bad row, nested folders, splits that lack images."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from source_sets import plant, refused, rows

from smallfiles import sources
from smallfiles.errors import SourceError
from smallfiles.sources import flickr30k

HEADER = "image_name| comment_number| comment"
IMAGES = ("1000092795.jpg", "10002456.jpg", "2199200615.jpg")
CAPTIONS = {
    image: [f'Caption {k} of {image}, with "quotes", commas | and a pipe .' for k in range(5)]
    for image in IMAGES
}


def csv_text(captions=CAPTIONS) -> str:
    rows = [f"{image}| {k}| {text}" for image, texts in captions.items() for k, text in enumerate(texts)]
    return "\n".join([HEADER, *rows]) + "\n"


def token_text(captions=CAPTIONS) -> str:
    return "".join(f"{i}#{k}\t{text}\n" for i, texts in captions.items() for k, text in enumerate(texts))


def karpathy(splits: dict[str, str], captions=CAPTIONS) -> str:
    images = []
    for image, split in splits.items():
        sentences = [{"raw": text, "sentid": k} for k, text in enumerate(captions[image])]
        images.append({"sentences": sentences, "split": split, "filename": image})
    return json.dumps({"images": images, "dataset": "flickr30k"})


@pytest.fixture
def kaggle(tmp_path) -> Path:
    """As the archive unpacks: nested twice, with a second csv and a duplicate of some images."""
    inner = tmp_path / "flickr30k_images/flickr30k_images"
    plant(inner, *IMAGES)
    plant(inner / "flickr30k_images", IMAGES[0])
    for folder in (inner.parent, inner):
        (folder / "results.csv").write_text(csv_text())
    return tmp_path


def test_one_row_an_image_with_its_captions_in_order_from_every_level(kaggle):
    for level in (".", "flickr30k_images", "flickr30k_images/flickr30k_images"):
        source = sources.load(kaggle / level)
        assert rows(source) == CAPTIONS and list(rows(source)) == sorted(IMAGES)
        assert source.manifest.target_kind == "captions" and source.manifest.split == "all"
        assert source.root == kaggle / "flickr30k_images/flickr30k_images"
        assert source.store.size(IMAGES[0]) == source.manifest.sizes[0] > 0
        assert any("other folders with images left out" in note for note in source.notes)


def test_token_csv_and_karpathy_say_the_same(tmp_path):
    digests = set()
    for name, text in (
        ("results.csv", csv_text()),
        ("results_20130124.token", token_text()),
        ("dataset_flickr30k.json", karpathy(dict.fromkeys(IMAGES, "train"))),
    ):
        folder = plant(tmp_path / Path(name).stem, *IMAGES)
        (folder / name).write_text(text)
        digests.add(sources.load(folder, split="all").manifest.digest)
    assert len(digests) == 1


def test_the_row_that_lost_its_delimiter_is_repaired_and_noted(kaggle):
    text = csv_text().replace("2199200615.jpg| 4| Caption 4", "2199200615.jpg| 4   Caption 4")
    for folder in kaggle.rglob("results.csv"):
        folder.write_text(text)
    source = sources.load(kaggle)
    assert rows(source) == CAPTIONS
    assert any("lost delimiter repaired in 1 row (line 16)" in note for note in source.notes)


_CAPTION = (
    st.text(st.characters(exclude_characters="\n\r", exclude_categories=("Cs",)), min_size=1, max_size=40)
    .map(str.strip)
    .filter(lambda text: text and text.lower() != "nan")
)


_FIVE = st.lists(_CAPTION, min_size=1, max_size=5)
_IMAGE = st.integers(0, 9**9).map(lambda n: f"{n}.jpg")


@given(st.dictionaries(_IMAGE, _FIVE, min_size=1), st.randoms())
def test_captions_come_back_in_their_order_whatever_characters_they_hold(tmp_path_factory, captions, chance):
    folder = tmp_path_factory.mktemp("captions")
    header, *lines = csv_text(captions).removesuffix("\n").split("\n")
    chance.shuffle(lines)
    table = "\r\n".join([header, *lines])
    for name, text in (("results.csv", table), ("results_20130124.token", token_text(captions))):
        (folder / name).write_bytes(text.encode())
        found = flickr30k.read(folder / name)
        assert {image: found.ordered(image) for image in captions} == captions
        assert found.notes == []


def test_empty_nan_and_repeated_captions_are_named(tmp_path):
    path = tmp_path / "results.csv"
    path.write_text(f"{HEADER}\na.jpg| 0|\na.jpg| 1| nan\na.jpg| 2| ok\na.jpg| 2| again\n")
    found = flickr30k.read(path)
    assert found.ordered("a.jpg") == ["ok"]
    told = " ".join(found.notes)
    assert "2 empty captions left out: a.jpg#0, a.jpg#1" in told and "a.jpg#2" in told


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("results.csv", "image,number|comment\n", "line 1 of"),
        ("results.csv", f"{HEADER}\na.jpg| x| y\n", "line 2 of"),
        ("results.csv", f"{HEADER}\na.jpg| 0| ok\nnonsense\n", "line 3 of"),
        ("results.csv", f"{HEADER}\na.jpg| 0| ok\na.jpg| 1| \xff\n", "line 3 of .* not UTF-8"),
        ("results_20130124.token", "a.jpg#0\tok\na.jpg 1 bad\n", "line 2 of"),
        ("dataset_flickr30k.json", '{"images": [{"filename": "a.jpg"}]}', "Karpathy"),
        ("dataset_flickr30k.json", '{"images": ', "Karpathy"),
    ],
)
def test_a_caption_file_that_makes_no_sense_is_refused_by_its_line(tmp_path, name, text, told):
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(SourceError, match=told):
        flickr30k.read(tmp_path / name)


def test_karpathys_splits_are_joined_though_images_are_missing_on_either_side(kaggle):
    splits = {IMAGES[0]: "train", IMAGES[1]: "val", "77.jpg": "train"}
    captions = {**CAPTIONS, "77.jpg": ["gone"] * 5}
    (kaggle / "dataset_flickr30k.json").write_text(karpathy(splits, captions))
    source = sources.load(kaggle)
    assert rows(source) == {IMAGES[0]: CAPTIONS[IMAGES[0]]} and source.manifest.split == "train"
    told = " ".join(source.notes)
    assert "captions read from results.csv, splits from dataset_flickr30k.json" in told
    assert "train was taken" in told and f"1 image in no split: {IMAGES[2]}" in told
    assert "1 image of split train missing: 77.jpg" in told
    assert list(rows(sources.load(kaggle, split="val"))) == [IMAGES[1]]
    assert len(sources.load(kaggle, split="all").manifest) == 3
    assert "train, val" in refused(kaggle, split="test")
    assert "77.jpg" in refused(kaggle, strict=True)
    assert list(rows(sources.load(kaggle, split="val", strict=True))) == [IMAGES[1]]


def test_what_a_join_leaves_over_is_told_and_refused_on_demand(kaggle):
    captions = {IMAGES[0]: CAPTIONS[IMAGES[0]], IMAGES[1]: CAPTIONS[IMAGES[1]][:3], "9.jpg": ["gone"]}
    for file in kaggle.rglob("results.csv"):
        file.write_text(csv_text(captions))
    source = sources.load(kaggle)
    assert list(rows(source)) == [IMAGES[0], IMAGES[1]]
    told = " ".join(source.notes)
    assert f"1 image without captions left out: {IMAGES[2]}" in told
    assert "1 image with captions missing: 9.jpg" in told
    assert f"1 image with another number of captions than 5: {IMAGES[1]}" in told
    assert IMAGES[2] in refused(kaggle, strict=True)


def test_captions_may_be_elsewhere_and_must_be_of_these_images(tmp_path):
    plant(tmp_path / "pictures", *IMAGES)
    assert "has images" in refused(tmp_path / "pictures", kind="flickr30k")
    (tmp_path / "my_captions.txt").write_text(token_text())
    source = sources.load(tmp_path / "pictures", "flickr30k", labels=tmp_path / "my_captions.txt")
    assert rows(source) == CAPTIONS
    told = refused(tmp_path / "pictures", kind="flickr30k", split="val", labels=tmp_path / "my_captions.txt")
    assert "has no file that lists its images; expected dataset_flickr30k.json" in told
    plant(tmp_path / "others", "a.jpg")
    assert "none of the 1 image" in refused(
        tmp_path / "others", kind="flickr30k", labels=tmp_path / "my_captions.txt"
    )
    (tmp_path / "none").mkdir()
    (tmp_path / "none/results.csv").write_text(csv_text())
    assert "1 .csv file and no images" in refused(tmp_path / "none", kind="flickr30k")
