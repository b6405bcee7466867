"""Boxes of COCO, YOLO and Pascal VOC: the values that were written come back, and odd ones are named."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest
import yaml
from PIL import Image
from source_sets import plant, refused

from smallfiles import formats, sources
from smallfiles.cli import main
from smallfiles.errors import ManifestError, SourceError
from smallfiles.sources.annotations.yolo import describe

SIZE = (64, 48)


def picture(path: Path, size: tuple[int, int] = SIZE, **options) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (9, 90, 200)).save(path, **options)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def values(source) -> dict[str, dict]:
    manifest = source.manifest
    assert set(manifest.targets.to_pylist()) == {-1}
    return dict(zip(manifest.paths.to_pylist(), manifest.values.to_pylist(), strict=True))


def coco(images: list[str], annotations: list[dict], categories: dict[int, str] | None = None) -> dict:
    categories = categories or {1: "person", 3: "car"}
    return {
        "info": {"year": 2017},
        "images": [
            {"id": 7 + row, "file_name": name, "width": SIZE[0], "height": SIZE[1]}
            for row, name in enumerate(images)
        ],
        "annotations": [{"id": row, "category_id": 1, **each} for row, each in enumerate(annotations)],
        "categories": [{"id": number, "name": name} for number, name in categories.items()],
    }


def coco_set(root: Path, document: dict, split: str = "train2017", missing: tuple[str, ...] = ()) -> Path:
    for image in document["images"]:
        if image["file_name"] not in missing:
            picture(root / split / image["file_name"])
    write(root / f"annotations/instances_{split}.json", json.dumps(document))
    return root


def packed_values(folder: Path, out: Path, *flags: str) -> tuple[tuple[str, ...], dict[str, dict]]:
    assert main(["pack", str(folder), str(out), *flags]) == 0
    reader = formats.open(out)
    rows = reader.table().to_pylist()
    assert {row.pop("label") for row in rows} == {-1}
    return reader.classes, dict(zip(reader.keys().to_pylist(), rows, strict=True))


def test_a_packed_coco_set_has_every_value_that_its_json_has(tmp_path, capsys):
    rng = random.Random(3)
    names = [f"{number:03}.jpg" for number in range(9)]
    truth = {f"train2017/{name}": [] for name in names}
    annotations, order = [], {90: 1, 2: 0}
    for _ in range(40):
        row = rng.randrange(8)  # the last one has none
        x, y, width, height = (rng.randrange(1, 20) / 2 for _ in range(4))
        rings = [
            [rng.randrange(40) / 4 for _ in range(2 * rng.randrange(3, 6))] for _ in range(rng.randrange(3))
        ]
        points = [rng.randrange(40) for _ in range(6)] if rng.random() < 0.5 else None
        each = {"image_id": 7 + row, "bbox": [x, y, width, height], "category_id": rng.choice([*order])}
        each |= {"area": width * height, "iscrowd": rng.randrange(2), "segmentation": rings}
        annotations.append(each | ({"keypoints": points} if points else {}))
        box = [x, y, x + width, y + height]
        truth[f"train2017/{names[row]}"].append((box, order[each["category_id"]], each, points or []))
    folder = coco_set(tmp_path / "set", coco(names, annotations, {90: "brush", 2: "cat"}))
    classes, found = packed_values(folder, tmp_path / "out.arrow")
    assert classes == ("cat", "brush")
    assert found == {
        key: {
            "area": [each["area"] for _, _, each, _ in boxes],
            "box_labels": [label for _, label, _, _ in boxes],
            "boxes": [box for box, _, _, _ in boxes],
            "iscrowd": [each["iscrowd"] for _, _, each, _ in boxes],
            "keypoints": [points for _, _, _, points in boxes],
            "segment_boxes": [n for n, (_, _, each, _) in enumerate(boxes) for _ in each["segmentation"]],
            "segments": [ring for _, _, each, _ in boxes for ring in each["segmentation"]],
        }
        for key, boxes in truth.items()
    }
    said = capsys.readouterr().err
    assert "instances_train2017.json: 40 boxes of 2 classes" in said and "in 9 images" in said
    assert "category ids 2 to 90 numbered 0 to 1 in their order" in said


def test_what_coco_lists_without_a_match_is_named_and_refused_if_strict(tmp_path):
    box = {"image_id": 8, "bbox": [1, 2, 3, 4]}
    annotations = [
        box | {"segmentation": {"counts": [1, 2], "size": [48, 64]}},
        {"image_id": 8},
        box | {"image_id": 999},
        box | {"image_id": 7},
        box | {"bbox": [5, 5, -2, 3], "segmentation": [[1, 1, 2, 2, 3, 3]]},
        box | {"bbox": [60, 5, 9, 3], "id": 4},
    ]
    document = coco(["gone.jpg", "a.jpg"], annotations)
    document["images"][0]["width"] = 999
    folder = coco_set(tmp_path, document, missing=("gone.jpg",))
    picture(folder / "train2017/extra.jpg")
    source = sources.load(folder)
    for said in (
        "1 image of instances_train2017.json missing on disk left out: gone.jpg",
        "1 file not in instances_train2017.json left out: train2017/extra.jpg",
        "1 annotation of unknown image ids left out: 999",
        "1 annotation without a box left out: 1",
        "1 mask in run lengths (RLE) left out: 0",
        "1 annotation id given twice, all kept: 4",
        "1 box without an area or with corners reversed, kept: train2017/a.jpg [5.0, 5.0, 3.0, 8.0]",
        "1 box reaching out of the image, kept: train2017/a.jpg [60.0, 5.0, 69.0, 8.0]",
    ):
        assert said in source.notes
    assert values(source)["train2017/a.jpg"]["boxes"] == [[1, 2, 4, 6], [5, 5, 3, 8], [60, 5, 69, 8]]
    assert re.search(r"gone\.jpg.*extra\.jpg.*999.*strict was given", refused(folder, strict=True))


def test_equal_names_in_two_splits_of_coco_are_not_confused(tmp_path):
    for split, x in (("train2017", 1), ("val2017", 9)):
        boxes = [{"image_id": number, "bbox": [x, 1, 2, 2]} for number in (7, 8)]
        coco_set(tmp_path, coco(["1.jpg", "2.jpg"], boxes), split)
    (tmp_path / "val2017/1.jpg").unlink()
    write(
        tmp_path / "annotations/captions_train2017.json", '{"images": [], "annotations": [{"caption": "a"}]}'
    )
    assert values(sources.load(tmp_path))["train2017/1.jpg"]["boxes"] == [[1, 1, 3, 3]]
    val = sources.load(tmp_path, split="val")
    assert (val.manifest.split, val.manifest.paths.to_pylist()) == ("val", ["val2017/2.jpg"])
    assert val.manifest.values.column("boxes").to_pylist() == [[[9, 1, 11, 3]]]
    (tmp_path / "val2017/2.jpg").unlink()
    assert "instances_val2017.json names no image in" in refused(tmp_path, split="val")
    assert "no split 'test'" in refused(tmp_path, split="test")


@pytest.mark.parametrize(
    ("file", "name", "image"),
    [
        ("train/_annotations.coco.json", "1.jpg", "train/1.jpg"),
        ("annotations.json", "./train/1.jpg", "train/1.jpg"),
        ("annotations/train.json", "1.jpg", "images/train/1.jpg"),
        ("result.json", r"C:\upload\1.jpg", "images/1.jpg"),
        ("train/labels.json", "1.jpg", "train/images/1.jpg"),
        ("result.json", "1.jpg", "export/v2/images/1.jpg"),
    ],
)
def test_coco_images_are_found_where_tools_put_them(tmp_path, file, name, image):
    picture(tmp_path / image)
    write(tmp_path / file, json.dumps(coco([name], [{"image_id": 7, "bbox": [1, 2, 3, 4]}])))
    assert values(sources.load(tmp_path)) == {image: {"boxes": [[1, 2, 4, 6]], "box_labels": [0]}}


BOX = {"image_id": 7, "bbox": [1, 2, 3, 4]}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"annotations": [BOX | {"bbox": [1, 2, 3]}]}, r"has the bbox \[1, 2, 3\]"),
        ({"annotations": [BOX | {"bbox": [1, 2, "3", 4]}]}, "has the bbox"),
        ({"annotations": [BOX | {"bbox": [1, 2, True, 4]}]}, "has the bbox"),
        ({"annotations": [BOX | {"bbox": [10**400, 2, 3, 4]}]}, "bbox that is too large"),
        (
            {"annotations": [BOX | {"bbox": [float("nan"), 2, 3, 4]}]},
            r"train2017/1\.jpg is not a finite number",
        ),
        ({"annotations": [BOX | {"segmentation": [[1, 2, float("inf"), 4]]}]}, "not a finite number"),
        ({"annotations": [BOX | {"segmentation": [[1, 2, 3]]}]}, "has the polygon"),
        ({"annotations": [BOX | {"segmentation": [1, 2, 3, 4]}]}, "has the polygon 1"),
        ({"annotations": [BOX | {"segmentation": [["1", "2"]]}]}, "has the polygon"),
        ({"annotations": [BOX | {"keypoints": [1, 2]}]}, "has the keypoints"),
        ({"annotations": [BOX | {"category_id": 2}]}, "categories that it does not list: 2"),
        ({"annotations": [BOX | {"category_id": "1"}]}, "has the category_id '1'"),
        ({"annotations": [BOX, 3]}, "has 3 among its annotations"),
        ({"annotations": [{"bbox": [1, 2, 3, 4]}]}, "has the image_id None"),
        ({"categories": [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}]}, "several categories one id"),
        ({"categories": "none"}, "no list of categories"),
        ({"images": []}, "has no images"),
        ({"images": [{"id": 7, "file_name": "x.jpg"}]}, "names no image in"),
        ({"images": [{"id": 7, "file_name": "1.jpg"}] * 2}, "several images the id 7"),
        ({"images": [{"id": n, "file_name": "1.jpg"} for n in (7, 8)]}, "given more than once"),
        ({"images": [{"id": 7, "file_name": "1.jpg"}, {"id": 8, "file_name": "\ud800"}]}, "not valid UTF-8"),
        ({"images": [{"id": [], "file_name": "1.jpg"}]}, r"has the id \[\]"),
    ],
)
def test_a_wrong_entry_of_a_coco_json_is_refused_with_its_path(tmp_path, change, said):
    document = coco(["1.jpg"], [BOX])
    coco_set(tmp_path, document)
    document |= change
    document["annotations"] = [
        {"category_id": 1, "id": 5, **a} if a != 3 else a for a in document["annotations"]
    ]
    write(tmp_path / "annotations/instances_train2017.json", json.dumps(document))
    with pytest.raises((SourceError, ManifestError), match=rf"(?s){said}"):
        sources.load(tmp_path)


@pytest.mark.parametrize("end", ["", "]" * 3, ', "x": ' + "[" * 200_000])
def test_a_damaged_coco_json_is_refused(tmp_path, end):
    coco_set(tmp_path, coco(["1.jpg"], [BOX]))
    file = tmp_path / "annotations/instances_train2017.json"
    file.write_text(file.read_text()[:-1] + end)
    assert "instances_train2017.json cannot be read" in refused(tmp_path)


@pytest.mark.parametrize(
    ("images", "labels"),
    [("images/train", "labels/train"), ("train/images", "train/labels"), ("images", "labels")],
)
def test_a_packed_yolo_set_has_pixels_of_each_image(tmp_path, images, labels):
    root = tmp_path / "set"
    picture(root / images / "a.jpg", (200, 100))
    picture(root / images / "b.png", (10, 40))
    picture(root / images / "none.jpg")
    if "train" in images:
        picture(root / images.replace("train", "val") / "v.jpg")
        write(root / labels.replace("train", "val") / "v.txt", "0 .5 .5 1 1\n")
    write(root / labels / "a.txt", "1 0.5 0.5 0.25 0.5\n\n0 0.125 0.25 0.25 0.5\r\n")
    write(root / labels / "b.txt", "1.0 0.5 0.25 1 0.5\n0 0.1 0.25 0.5 0.75 1 0.5\n")
    write(root / labels / "classes.txt", "cat\ndog\n")
    write(root / "data.yaml", f"train: {images}\nnames: [cat, dog]  # two\nnc: 2\n")
    classes, found = packed_values(
        root, tmp_path / "out.arrow", "--strict", *["--split", "train"] * ("train" in images)
    )
    assert classes == ("cat", "dog")
    assert found == {
        f"{images}/a.jpg": {
            **{"boxes": [[75, 25, 125, 75], [0, 0, 50, 50]], "box_labels": [1, 0]},
            **{"segments": [], "segment_boxes": []},
        },
        f"{images}/b.png": {
            **{"boxes": [[0, 0, 10, 20], [1, 10, 10, 30]], "box_labels": [1, 0]},
            **{"segments": [[1, 10, 5, 30, 10, 20]], "segment_boxes": [1]},
        },
        f"{images}/none.jpg": {"boxes": [], "box_labels": [], "segments": [], "segment_boxes": []},
    }


def yolo_set(root: Path, line: str = "0 0.5 0.5 1 1", **options) -> Path:
    picture(root / "images/1.jpg", **options)
    picture(root / "images/2.jpg")
    write(root / "labels/1.txt", line)
    write(root / "labels/2.txt", "0 0.5 0.5 0.5 0.5")
    return root


@pytest.mark.parametrize(
    ("shape", "points", "expected"),
    [
        ("[2, 3]", "0.25 0.5 2 0 0 0", [16, 24, 2, 0, 0, 0]),
        ("[2, 2]", "0.25 0.5 1 1", [16, 24, 2, 64, 48, 2]),
    ],
)
def test_points_of_yolo_become_pixels_and_keep_their_visibility(tmp_path, shape, points, expected):
    root = yolo_set(tmp_path, f"0 0.5 0.5 1 1 {points}")
    write(root / "labels/2.txt", "")
    write(root / "data.yaml", f"kpt_shape: {shape}\nnames:\n  0: person\n")
    found = values(sources.load(root))
    assert found["images/1.jpg"] == {"boxes": [[0, 0, 64, 48]], "box_labels": [0], "keypoints": [expected]}
    assert found["images/2.jpg"]["keypoints"] == []


@pytest.mark.parametrize(
    "line",
    [
        *("0 0.5 0.5 1", "0 0.5 0.5 1 1 0.9", "0 32 24 64 48", "0.5 0.5 0.5 1 1", "-1 0.5 0.5 1 1"),
        *("2 0.5 0.5 1 1", "cat 0.5 0.5 1 1", "0 nan 0.5 1 1", "0 0.5 0.5 -1 1", "0 0.5 0.5 1_0 1"),
        "1e400 0.5 0.5 1 1",
    ],
)
def test_a_malformed_line_of_yolo_is_refused_with_file_and_number(tmp_path, line):
    root = yolo_set(tmp_path, f"1 0.5 0.5 1 1\n{line}\n")
    write(root / "classes.txt", "cat\ndog\n")
    assert re.search(r"line 2 of .*labels/1\.txt is .*a class below 2", refused(root))


def test_images_that_exif_turns_and_label_files_without_an_image_are_named(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    root = yolo_set(tmp_path, exif=exif)
    write(root / "labels/3.txt", "0 0.5 0.5 1 1")
    notes = " | ".join(sources.load(root).notes)
    assert "without class names: 2 boxes in 2 images" in notes
    assert "1 image that EXIF turns" in notes and "turned image: images/1.jpg" in notes
    assert "1 label file without an image left out: labels/3.txt" in refused(root, strict=True)


def test_the_size_of_an_image_is_read_behind_a_long_header_and_refused_without_one(tmp_path):
    root = yolo_set(tmp_path, icc_profile=bytes(200_000))
    assert values(sources.load(root))["images/1.jpg"]["boxes"] == [[0, 0, 64, 48]]
    (root / "images/1.jpg").write_bytes(b"no image")
    assert re.search(r"size of .*images/1\.jpg cannot be read", refused(root))


@pytest.mark.parametrize(
    "text",
    [
        "names: [cat, 'big dog', \"it's\"]\n",
        "path: x  # names: [no]\nnames: [ 'a''b',\n  c-d , 3 ]\nnc: 3\n",
        "names:\n- cat\n- dog\nnc: 2\n",
        "names:\n  # first\n  0: cat\n\n  1: traffic light # red\ntrain: y\n",
        "train: ../a\nnames: {0: cat, 1: 'dog'}\n",
        "names:\n    1: b\n    0: a\n",
    ],
)
def test_class_names_are_those_that_a_yaml_parser_reads(tmp_path, text):
    found = yaml.safe_load(text)["names"]
    expected = [found[number] for number in range(len(found))]
    assert describe(write(tmp_path / "x.yaml", text).parent).classes == tuple(map(str, expected))


@pytest.mark.parametrize(
    "text",
    [
        *("names: &a [x]", "names: cat", "names: [[a], b]", "names:\n  0: a\n  2: b", "names: ['a"),
        *("names: |\n  a", "names:\n  - a\n  - b: c", "names:\n  - - a", "names: []", "names: [a #b]"),
        "names: [a]\nkpt_shape: [17, 5]",
    ],
)
def test_other_forms_of_yaml_are_refused(tmp_path, text):
    write(tmp_path / "data.yaml", text + "\n")
    with pytest.raises(SourceError, match=r"the entry (names|kpt_shape) of .*data\.yaml cannot be read"):
        describe(tmp_path)


def voc_xml(*objects: tuple[str, str, str]) -> str:
    found = "".join(
        f"<object><name>{name}</name>{flags}<bndbox>"
        + "".join(
            f"<{side}>{x}</{side}>"
            for side, x in zip(("xmin", "ymin", "xmax", "ymax"), box.split(), strict=False)
        )
        + "</bndbox><part><name>head</name><bndbox><xmin>x</xmin></bndbox></part></object>"
        for name, box, flags in objects
    )
    return f"<annotation><size><width>64</width><height>48</height></size>{found}</annotation>"


def voc_set(root: Path) -> Path:
    for name in "abc":
        picture(root / f"JPEGImages/{name}.jpg")
    hard = "<difficult>1</difficult>"
    write(root / "Annotations/a.xml", voc_xml(("dog", "1 1 64 48", hard), ("cat", "10 11.5 20 30", "")))
    write(root / "Annotations/b.xml", voc_xml())
    write(root / "Annotations/c.xml", voc_xml(("ant", "2 3 4 5", "")))
    write(root / "ImageSets/Main/train.txt", "b\na\n")
    write(root / "ImageSets/Main/val.txt", "c\n")
    write(root / "ImageSets/Main/trainval.txt", "a\nb\nc\n")
    write(root / "ImageSets/Main/dog_train.txt", "a  1\nb -1\n")
    return root


def test_a_packed_voc_set_counts_from_0_and_numbers_the_classes_of_all_splits(tmp_path):
    root = voc_set(tmp_path / "VOC2012")
    classes, found = packed_values(root, tmp_path / "out.arrow")
    assert classes == ("ant", "cat", "dog")
    boxes = {"boxes": [[0, 0, 64, 48], [9, 10.5, 20, 30]], "box_labels": [2, 1], "difficult": [1, 0]}
    assert found == {
        "JPEGImages/b.jpg": {"boxes": [], "box_labels": [], "difficult": []},
        "JPEGImages/a.jpg": boxes,
    }
    val = sources.load(tmp_path, split="val")  # from above, as in VOCdevkit
    assert values(val) == {"VOC2012/JPEGImages/c.jpg": {"boxes": [[1, 2, 4, 5]], "box_labels": [0]}}
    assert val.manifest.split == "val" and len(sources.load(root, split="trainval").manifest) == 3


@pytest.mark.parametrize("where", [("images", "annotations"), ("train", "train")])
def test_voc_files_of_other_tools_are_found(tmp_path, where):
    picture(tmp_path / where[0] / "1.jpg")
    write(tmp_path / where[1] / "1.xml", voc_xml(("dog", "0 1 2 70", "")))
    source = sources.load(tmp_path)
    assert values(source) == {f"{where[0]}/1.jpg": {"boxes": [[-1, 0, 2, 70]], "box_labels": [0]}}
    assert any("1 box reaching out of the image" in note for note in source.notes)


def test_voc_files_without_a_partner_are_named_and_refused_if_strict(tmp_path):
    root = voc_set(tmp_path)
    (root / "JPEGImages/a.jpg").unlink()
    picture(root / "JPEGImages/d.jpg")
    write(root / "ImageSets/Main/train.txt", "a\nb\nd\n")
    with pytest.raises(SourceError) as caught:
        sources.load(root, strict=True)
    for said in (
        "1 name of train without an image left out: a",
        "1 image without an XML left out: JPEGImages/d.jpg",
    ):
        assert said in str(caught.value)
    assert "1 XML without an image left out: Annotations/a.xml" in sources.load(root).notes
    for image in (root / "JPEGImages").iterdir():
        image.unlink()
    assert "no images beside its XML files" in refused(root)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('<!DOCTYPE a [<!ENTITY b "x"><!ENTITY c "&b;&b;">]><annotation>&c;</annotation>', "document type"),
        ('<!DOCTYPE a SYSTEM "file:///etc/passwd"><annotation></annotation>', "document type"),
        ("<annotation>", "no element found"),
        ('<?xml version="1.0" encoding="none"?><annotation/>', "encoding"),
        ("<other><annotation/></other>", "its root is other"),
        (voc_xml(("", "1 2 3 4", "")), "no name"),
        (voc_xml(("dog", "1 2 3", "")), "'' is no number"),
        (voc_xml(("dog", "1 2 3 nan", "")), "'nan' is no number"),
        (voc_xml(("dog", "1 2 3 4", "<difficult>maybe</difficult>")), "'maybe' is no number"),
        (voc_xml(("dog", "1 2 3 1e999", "")), "not a finite number"),
    ],
)
def test_a_wrong_xml_is_refused_with_its_path(tmp_path, text, said):
    root = voc_set(tmp_path)
    write(root / "Annotations/c.xml", text)
    with pytest.raises(SourceError, match=rf"(Annotations/c\.xml cannot be read .*{said}|c\.jpg is {said})"):
        sources.load(root, split="val")


def test_a_split_without_any_box_has_empty_lists(tmp_path):
    yolo_set(tmp_path / "train")
    picture(tmp_path / "val/images/1.jpg")
    write(tmp_path / "val/labels/1.txt", "")
    write(tmp_path / "data.yaml", "names: [cat]\n")
    assert values(sources.load(tmp_path, split="val")) == {
        "val/images/1.jpg": {"boxes": [], "box_labels": []}
    }


def test_boxes_are_left_alone_on_request_and_masks_are_no_boxes(tmp_path):
    assert sources.load(yolo_set(tmp_path / "a"), unlabelled=True).kind == "folder"
    plant(tmp_path / "b", "cat/1.jpg", "dog/2.jpg")
    write(tmp_path / "b/notes.json", '{"images": [{"sentences": []}]}')
    assert sources.load(tmp_path / "b").manifest.classes == ("cat", "dog")
    picture(tmp_path / "c/images/1.jpg")
    picture(tmp_path / "c/labels/1.png")
    pairs = sources.load(tmp_path / "c").manifest
    assert pairs.fields == {"label_image": ".png"} and pairs.targets.to_pylist() == [-1]
