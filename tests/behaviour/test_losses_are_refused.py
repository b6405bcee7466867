"""A source that would lose all annotations, a class, a field or all partners is refused, and says why."""

import io
import json
import re

import pytest
from PIL import Image

from smallfiles import sources
from smallfiles.errors import SmallfilesError


def jpg():
    out = io.BytesIO()
    Image.new("RGB", (64, 48), (200, 30, 90)).save(out, "JPEG")
    return out.getvalue()


def plant(root, files):
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        data = jpg() if data is None else data
        (root / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    return root


def images(*names):
    return dict.fromkeys(names)


def refused(path, **options):
    with pytest.raises(SmallfilesError) as caught:
        sources.load(path, **options)
    return str(caught.value)


def boxes(source):
    return [len(each) for each in source.manifest.values["boxes"].to_pylist()]


def coco(ids, image_ids, categories=None, **more):
    return json.dumps(
        {
            "images": [
                {"id": n, "file_name": f"{row}.jpg", "width": 64, "height": 48} for row, n in enumerate(ids)
            ],
            "annotations": [
                {"id": row, "image_id": n, "category_id": 1 + row % 2, "bbox": [1, 2, 10, 10], **more}
                for row, n in enumerate(image_ids)
            ],
            "categories": categories or [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
        }
    )


@pytest.mark.parametrize(
    ("ids", "image_ids"),
    [([0, 1, 2], ["0", "1", "2"]), (["0", "1", "2"], [0, 1, 2]), ([0, 1, 2], [0, "1", 2])],
)
def test_image_ids_of_coco_that_are_text_join_those_that_are_numbers(tmp_path, ids, image_ids):
    files = images(*(f"images/{n}.jpg" for n in range(3)))
    source = sources.load(plant(tmp_path, files | {"annotations.json": coco(ids, image_ids)}))
    assert boxes(source) == [1, 1, 1]
    assert re.search("image_id.*text.*number", "; ".join(source.notes))


def test_ids_of_coco_that_differ_only_in_their_type_stay_apart(tmp_path):
    files = images(*(f"images/{n}.jpg" for n in range(3)))
    root = plant(tmp_path, files | {"annotations.json": coco([1, "1", 2], [1, 1, "1", 2])})
    assert boxes(sources.load(root)) == [2, 1, 1]


def test_annotations_of_coco_that_all_belong_to_missing_images_are_refused(tmp_path):
    files = images("images/2.jpg") | {"annotations.json": coco([0, 1, 2], [0, 1])}
    assert re.search(r"all 2 annotations.*lost", refused(plant(tmp_path, files)))


def test_a_partial_loss_of_coco_says_how_many_images_get_no_boxes_and_strict_refuses_it(tmp_path):
    files = images(*(f"images/{n}.jpg" for n in range(10)))
    ids = [0, 1, 2, 3, 4, 5, 6, 70, 80, 90]
    root = plant(tmp_path, files | {"annotations.json": coco([*range(10)], ids)})
    assert "3 of 10 images get no boxes" in "; ".join(sources.load(root).notes)
    assert "3 annotations of unknown image ids" in refused(root, strict=True)


FACE = "0 0.5 0.5 0.2 0.3 0.45 0.45 0.55 0.45 0.5 0.5 0.46 0.55 0.54 0.55\n"


@pytest.mark.parametrize(
    ("line", "shape"),
    [(FACE, "[5, 2]"), ("0 0.5 0.5 0.4 0.4 0.5 0.5 0.4 0.4\n", "[2, 2]"), (FACE + FACE, "[5, 2]")],
)
def test_lines_of_yolo_that_may_be_boxes_with_points_are_refused_and_both_cures_work(tmp_path, line, shape):
    files = {f"labels/train/{n}.txt": line for n in range(3)}
    files |= images(*(f"images/train/{n}.jpg" for n in range(3)))
    root = plant(tmp_path, files | {"data.yaml": "train: images/train\n"})
    said = refused(root)
    assert f"kpt_shape: {shape}" in said and "kpt_shape: [0, 2]" in said and "data.yaml" in said
    (root / "data.yaml").write_text(f"names: [face]\nkpt_shape: {shape}\n")
    manifest = sources.load(root).manifest
    assert "keypoints" in manifest.values.column_names
    if line.startswith(FACE):
        assert manifest.values["boxes"][0].as_py()[0] == pytest.approx([25.6, 16.8, 38.4, 31.2])
    (root / "data.yaml").write_text("kpt_shape: [0, 2]\n")
    assert "segments" in sources.load(root).manifest.values.column_names


@pytest.mark.parametrize(
    "lines",
    [
        ["0 0.1 0.1 0.9 0.1 0.9 0.9\n"],  # the box of these would leave the image
        ["0 0.5 0.5 0.2 0.2 0.5 0.5 0.4 0.4\n", "0 0.5 0.5 0.2 0.2 0.5 0.5\n"],  # of different lengths
        ["0 0.5 0.5 0.2 0.3\n"],
    ],
)
def test_polygons_of_yolo_need_no_declaration(tmp_path, lines):
    files = {f"labels/{n}.txt": line for n, line in enumerate(lines)}
    files |= images(*(f"images/{n}.jpg" for n in range(len(lines))))
    assert sum(boxes(sources.load(plant(tmp_path, files)))) == len(lines)


VOC = (
    "<annotation><filename>{}</filename><size><width>64</width><height>48</height></size><object><name>cat"
    "</name>{}</object></annotation>"
)
BOX = "<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>9</xmax><ymax>9</ymax></bndbox>"


def test_xmls_of_voc_with_a_stale_name_of_a_file_are_paired_by_their_own_names_with_a_note(tmp_path):
    files = images("JPEGImages/1.jpg") | {"Annotations/1.xml": VOC.format("IMG_0001.jpg", BOX)}
    source = sources.load(plant(tmp_path, files))
    assert boxes(source) == [1]
    assert re.search("1 XML .*names another file.*IMG_0001.jpg", "; ".join(source.notes))


def test_xmls_of_voc_that_match_no_image_or_have_no_box_at_all_are_refused(tmp_path):
    files = images("JPEGImages/1.jpg") | {"Annotations/other.xml": VOC.format("other.jpg", BOX)}
    assert re.search("no XML for", refused(plant(tmp_path / "a", files)))
    files = images("JPEGImages/1.jpg") | {"Annotations/1.xml": VOC.format("1.jpg", "")}
    assert re.search("lose all objects .*they have no box", refused(plant(tmp_path / "b", files)))


def test_an_empty_class_folder_and_folders_of_documents_lose_nothing(tmp_path):
    files = images("cat/1.jpg", "dog/2.jpg") | {"docs/a.md": "x", "docs/b.html": "y", "src/a.py": "z"}
    (tmp_path / "bee").mkdir()
    assert sources.load(plant(tmp_path, files)).manifest.classes == ("bee", "cat", "dog")
