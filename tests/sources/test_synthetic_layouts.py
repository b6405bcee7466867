"""Each layout, held against what is known of the real data sets."""

import json
import re
from collections import Counter
from pathlib import Path, PurePosixPath

import numpy as np
import pytest
import scipy.io
from PIL import Image
from source_sets import contents, rows

from smallfiles import sources
from smallfiles.samples import UNLABELLED
from smallfiles.sources import synthetic
from smallfiles.sources.synthetic import layouts, pictures

TINY = {"size": (64, 48)}
COUNT = 60


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """One data set a layout, made once."""
    root = tmp_path_factory.mktemp("synthetic")
    return {name: synthetic.make(root / name, name, count=COUNT, **TINY) for name in synthetic.LAYOUTS}


def tree(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def lines(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    assert text.endswith("\n") and "\r" not in text
    return text.split("\n")[:-1]


def test_kaggle_has_every_file_of_the_competition_and_no_other(made):
    found = made["kaggle"]
    lists = {f"ILSVRC/ImageSets/CLS-LOC/{name}.txt" for name in ("train_cls", "train_loc", "val", "test")}
    tables = {"LOC_synset_mapping.txt", "LOC_train_solution.csv", "LOC_val_solution.csv"}
    assert set(tree(found.path)) == {*found.files, *lists, *tables}
    by_split = {"train": r"train/(n\d{8})/\1_\d+", "val": r"val/ILSVRC2012_val_\d{8}"}
    by_split["test"] = r"test/ILSVRC2012_test_\d{8}"
    for file, split in zip(found.files, found.splits, strict=True):
        assert re.fullmatch(rf"ILSVRC/Data/CLS-LOC/{by_split[split]}\.JPEG", file)
    assert lines(found.path / "ILSVRC/ImageSets/CLS-LOC/val.txt")[0] == "ILSVRC2012_val_00000001 1"


@pytest.mark.parametrize("split", ["train", "val"])
def test_kaggle_solutions_are_unsorted_and_their_first_token_is_the_label(made, split):
    found = made["kaggle"]
    header, *rows = lines(found.path / f"LOC_{split}_solution.csv")
    assert header == "ImageId,PredictionString"
    names = [row.split(",")[0] for row in rows]
    assert names != sorted(names) and not any(name.endswith(".JPEG") for name in names)
    for name, value in (row.split(",") for row in rows):
        wnid = value.split(" ")[0]
        assert found.truth[f"{name}.JPEG"] == found.classes.index(wnid)
        assert re.fullmatch(rf"({wnid} \d+ \d+ \d+ \d+ )+", value), "boxes repeat and end in a blank"
    in_split = sum(one == split for one in found.splits)
    assert len(rows) == in_split if split == "val" else 0 < len(rows) < in_split


def test_official_devkit_leads_to_the_true_labels_by_its_own_numbers(made):
    found = made["official"]
    data = found.path / "ILSVRC2012_devkit_t12/data"
    synsets = scipy.io.loadmat(data / "meta.mat", squeeze_me=True)["synsets"]
    assert synsets.dtype.names == (
        *("ILSVRC2012_ID", "WNID", "words", "gloss"),
        *("num_children", "children", "wordnet_height", "num_train_images"),
    )
    leaves = {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in synsets if row["num_children"] == 0}
    assert sorted(leaves) == list(range(1, 11)) and len(synsets) == 11, "and the root above them"
    assert synsets[-1]["children"].tolist() == list(range(1, 11))
    truth = [int(line) for line in lines(data / "ILSVRC2012_validation_ground_truth.txt")]
    labels = [found.classes.index(leaves[number]) for number in truth]
    assert labels == list(found.targets[54:])
    assert labels != [number - 1 for number in truth], "ID - 1 must be found out as wrong"
    images = {str(row["WNID"]): int(row["num_train_images"]) for row in synsets if row["num_children"] == 0}
    assert images == Counter(found.classes[label] for label in found.targets[:54])


def test_flickr_folders_are_nested_with_a_csv_in_each_of_which_one_row_is_bad(made):
    found = made["flickr30k"]
    nested = "flickr30k_images/flickr30k_images"
    tables = {"flickr30k_images/results.csv", f"{nested}/results.csv"}
    others = {"results_20130124.token", "dataset_flickr30k.json"}
    assert set(tree(found.path)) == {*found.files, *tables, *others}
    assert found.files[0] == f"{nested}/1000092795.jpg"
    assert len({(found.path / table).read_bytes() for table in tables}) == 1
    header, *rows = lines(found.path / "flickr30k_images/results.csv")
    expected = [
        f"{Path(file).name}| {number}| {text}"
        for file, five in zip(found.files, found.targets, strict=True)
        for number, text in enumerate(five)
    ]
    bad = 5 * layouts.bad_image(pictures.SyntheticPlan(0, COUNT, 0, 0, 10, (64, 48))) + 4
    expected[bad] = expected[bad].replace("| 4| ", "| 4   ")
    assert (header, rows) == ("image_name| comment_number| comment", expected)


def test_flickr_bad_row_is_line_20001_at_full_size():
    full = pictures.SyntheticPlan(0, 31_783, 0, 0, 10, (500, 375))
    assert 1 + 5 * layouts.bad_image(full) + 4 + 1 == 20_001
    names = layouts.flickr_names(full)
    assert len(set(names)) == 31_783 and names == sorted(names) and max(map(len, names)) == 14
    splits = Counter(entry["split"] for entry in layouts.karpathy(full, names, [["."] * 5] * 31_783))
    assert splits == {"train": 29_000, "val": 1_014, "test": 1_000}


def test_flickr_karpathy_split_misses_some_pictures(made):
    found = made["flickr30k"]
    images = json.loads((found.path / "dataset_flickr30k.json").read_text())["images"]
    assert 0 < COUNT - len(images) < 5
    assert {image["split"] for image in images} == {"train", "val", "test"}
    for place, image in enumerate(images):
        assert set(image) == {"sentids", "imgid", "sentences", "split", "filename"}
        assert [sentence["raw"] for sentence in image["sentences"]] == found.truth[image["filename"]]
        assert image["imgid"] == place and image["sentids"] == list(range(5 * place, 5 * place + 5))


def test_a_mask_has_the_size_of_its_picture_and_the_class_of_each_object(made):
    found = made["segmentation"]
    assert {file.replace("images", "masks").replace("jpg", "png") for file in found.files} == {
        file for file in tree(found.path) if file.startswith("masks/")
    }
    plan = pictures.SyntheticPlan(0, COUNT, 0, 0, 10, (64, 48))
    for index, file in enumerate(found.files):
        mask = Image.open(found.path / f"masks/{index:05d}.png")
        scene = plan.scene(index)
        thing = scene.things[0]
        assert mask.size == Image.open(found.path / file).size == (scene.width, scene.height)
        assert mask.getpixel((thing.x, thing.y)) == 1 + list(pictures.SHAPES).index(thing.look.shape)
        assert len(np.unique(mask)) <= 1 + len({each.look.shape for each in scene.things})


def test_the_rows_of_a_table_are_shuffled_and_each_belongs_to_its_file(made):
    found = made["table"]
    header, *lines_ = lines(found.path / "labels.csv")
    assert header == "filename,species,weight"
    named = {file: (species, float(weight)) for file, species, weight in (row.split(",") for row in lines_)}
    assert sorted(named) == list(found.files) != list(named)
    assert [named[file][0] for file in found.files] == [found.classes[label] for label in found.targets]
    plan = pictures.SyntheticPlan(0, COUNT, 0, 0, 10, (64, 48))
    radii = [plan.scene(index).things[0].radius for index in range(COUNT)]
    weights = [named[file][1] for file in found.files]
    assert np.array_equal(np.argsort(radii, kind="stable"), np.argsort(weights, kind="stable"))


# --- what is drawn comes back: every layout through the loader for its real model ----------------

KINDS = {
    **{"folder": "folder", "official": "imagenet, official tar"},
    **{"prepared": "imagenet, prepared tree", "kaggle": "imagenet, Kaggle tree"},
}
SPLITS = [
    *[("folder", "train"), ("prepared", "train"), ("prepared", "val"), ("official", "train")],
    *[("official", "val"), ("kaggle", "train"), ("kaggle", "val"), ("kaggle", "test")],
]


def by_name(source):
    """Target of each file name."""
    return {PurePosixPath(path).name: target for path, target in rows(source).items()}


@pytest.mark.parametrize(("layout", "split"), SPLITS)
def test_targets_come_back_as_they_were_drawn(made, layout, split):
    found = made[layout]
    source = sources.load(found.path, split=split)
    names = [PurePosixPath(f).name for f, one in zip(found.files, found.splits, strict=True) if one == split]
    # Nothing tells the class of a test picture.
    expected = {name: UNLABELLED if split == "test" else found.truth[name] for name in names}
    assert by_name(source) == expected
    assert source.kind == KINDS[layout]
    assert source.manifest.classes == found.classes
    assert not any(".txt lists" in note for note in source.notes), "Kaggle's lists are those of its files"


def test_the_fields_of_segmentation_and_table_come_back(made):
    masks = sources.load(made["segmentation"].path).manifest
    assert masks.blobs == ("mask",) and len(masks) == COUNT
    paths = zip(masks.paths.to_pylist(), masks.blob_paths("mask").to_pylist(), strict=True)
    assert all(PurePosixPath(one).stem == PurePosixPath(other).stem for one, other in paths)
    table = sources.load(made["table"].path / "labels.csv").manifest
    assert table.fields == {"weight": "double"} and table.classes == made["table"].classes
    truth = dict(zip(made["table"].files, made["table"].targets, strict=True))
    assert dict(zip(table.paths.to_pylist(), table.targets.to_pylist(), strict=True)) == truth


@pytest.mark.parametrize("file", ["results_20130124.token", "flickr30k_images/results.csv"])
def test_captions_come_back_with_the_bad_row_repaired(made, file):
    found = made["flickr30k"]
    source = sources.load(found.path / "flickr30k_images", labels=found.path / file, split="all")
    assert by_name(source) == found.truth


@pytest.mark.parametrize("split", ["train", "val"])
def test_the_same_bytes_come_from_the_official_tars_and_from_the_prepared_tree(made, split):
    from_tar, from_tree = (
        {
            PurePosixPath(path).name: data
            for path, data in contents(sources.load(made[layout].path, split=split)).items()
        }
        for layout in ("official", "prepared")
    )
    assert from_tar == from_tree and len(from_tar) == (54 if split == "train" else 6)
