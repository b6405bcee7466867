"""Twenty kinds of data, each from its files to a batch, compared with what the files were made of."""

import csv
import io
import json
import re
import tarfile
import wave
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image as Pillow
from pyarrow import parquet

from smallfiles import formats
from smallfiles.cli import main
from smallfiles.images import CentreCrop
from smallfiles.loading import Array, Boxes, Image, Mask, Value, field_batches

COUNT, SIDE = 6, 32
VIEW = CentreCrop(SIDE, SIDE)  # all of a picture of this size
RNG = np.random.default_rng(0)
PICTURES = [RNG.integers(0, 256, (SIDE, SIDE, 3), np.uint8) for _ in range(COUNT)]
MASKS = [RNG.integers(0, 5, (SIDE, SIDE), np.uint8) for _ in range(COUNT)]
ARRAYS = [RNG.normal(size=(3, 4)).astype(np.float32) for _ in range(COUNT)]
NUMBERS = [round(float(each), 3) for each in RNG.normal(size=COUNT)]
BOXES = [[[1.0, 2.0, 11.0 + number, 22.0]] * (number % 3) for number in range(COUNT)]
LABELS = [number % 2 for number in range(COUNT)]
CLASSES = ["cat", "dog"]


def png(pixels):
    file = io.BytesIO()
    Pillow.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def wav(number):
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", ""))
        sound.writeframes(np.arange(number, number + 50, dtype="<i2").tobytes())
    return file.getvalue()


def plant(root, names, contents):
    for number, data in enumerate(contents):
        path = root / names.format(n=number, c=CLASSES[number % 2])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def pictures(root, names="images/{n}.png"):
    return plant(root, names, map(png, PICTURES))


def table(root, **columns):
    with (root / "t.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["filename", *columns])
        writer.writerows(zip([f"images/{n}.png" for n in range(COUNT)], *columns.values(), strict=True))
    return root / "t.csv"


def lines(root, **columns):
    rows = [
        {"filename": f"images/{n}.png", **{name: values[n] for name, values in columns.items()}}
        for n in range(COUNT)
    ]
    (root / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root / "t.jsonl"


def coco(root):
    pictures(root, "val2017/{n}.png")
    annotations = [
        {
            "id": 10 * n + k,
            "image_id": n,
            "category_id": 7,
            "bbox": [a, b, c - a, d - b],
            "area": 1.0,
            "iscrowd": 0,
        }
        for n, boxes in enumerate(BOXES)
        for k, (a, b, c, d) in enumerate(boxes)
    ]
    images = [{"id": n, "file_name": f"{n}.png", "width": SIDE, "height": SIDE} for n in range(COUNT)]
    (root / "annotations").mkdir()
    found = {"images": images, "annotations": annotations, "categories": [{"id": 7, "name": "thing"}]}
    (root / "annotations/instances_val2017.json").write_text(json.dumps(found))
    return root


def yolo(root):
    pictures(root, "images/train/{n}.png")
    texts = [
        "".join(
            f"0 {(a + c) / 2 / SIDE} {(b + d) / 2 / SIDE} {(c - a) / SIDE} {(d - b) / SIDE}\n"
            for a, b, c, d in each
        )
        for each in BOXES
    ]
    plant(root, "labels/train/{n}.txt", [text.encode() for text in texts])
    (root / "data.yaml").write_text("names: [thing]\n")
    return root


def voc(root):
    pictures(root, "JPEGImages/{n}.png")
    plant(
        root,
        "Annotations/{n}.xml",
        [
            (
                f"<annotation><filename>{n}.png</filename><size><width>{SIDE}</width><height>{SIDE}</height>"
                "<depth>3</depth></size>"
                + "".join(
                    f"<object><name>thing</name><bndbox><xmin>{a + 1:.0f}</xmin><ymin>{b + 1:.0f}</ymin>"
                    f"<xmax>{c:.0f}</xmax><ymax>{d:.0f}</ymax></bndbox></object>"
                    for a, b, c, d in boxes
                )
                + "</annotation>"
            ).encode()
            for n, boxes in enumerate(BOXES)
        ],
    )
    return root


def shard(root):
    with tarfile.open(root / "0.tar", "w") as tar:
        for n in range(COUNT):
            for suffix, data in (
                ("png", png(PICTURES[n])),
                ("seg.png", png(MASKS[n])),
                ("cls", b"%d" % LABELS[n]),
            ):
                member = tarfile.TarInfo(f"{n}.{suffix}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return root / "0.tar"


def hub(root):
    images = [{"bytes": png(pixels), "path": f"{n}.png"} for n, pixels in enumerate(PICTURES)]
    found = pa.table({"image": images, "label": LABELS, "score": NUMBERS})
    parquet.write_table(found, root / "train-00000-of-00001.parquet")
    return root / "train-00000-of-00001.parquet"


def metadata(root):
    pictures(root, "{n}.png")
    rows = ["file_name,score", *(f"{n}.png,{NUMBERS[n]}" for n in range(COUNT))]
    (root / "metadata.csv").write_text("\n".join(rows))
    return root


def with_masks(root, first="images/{n}.png", second="masks/{n}.png"):
    return plant(pictures(root, first), second, map(png, MASKS))


def zipped(root, **groups):
    for name, numbers in groups.items():
        with zipfile.ZipFile(root / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for n in numbers:
                archive.writestr(f"{CLASSES[n % 2]}/{n}.png", png(PICTURES[n]))
    return root


def zips_and_table(root):
    (root.parent / "t.csv").write_text("id,label\n" + "".join(f"{n},{LABELS[n]}\n" for n in range(COUNT)))
    return zipped(root, a=range(3), b=range(3, COUNT))


SEEN, SEGMENTED = {"image": Image(VIEW)}, {"image": Image(VIEW), "mask": Mask(VIEW)}
KINDS = {
    # kind: how its files are made, makers, what a batch must hold
    "class folders": (lambda r: pictures(r, "{c}/{n}.png"), SEEN, {"image": PICTURES, "target": LABELS}),
    "images and masks": (with_masks, SEGMENTED, {"image": PICTURES, "mask": MASKS}),
    "splits of images and masks": (
        lambda r: with_masks(r, "train/images/{n}.png", "train/masks/{n}.png"),
        SEGMENTED,
        {"mask": MASKS},
    ),
    "masks beside images": (lambda r: with_masks(r, "{n}.png", "{n}.mask.png"), SEGMENTED, {"mask": MASKS}),
    "one folder per sample": (
        lambda r: with_masks(r, "{n}/image.png", "{n}/mask.png"),
        SEGMENTED,
        {"image": PICTURES, "mask": MASKS},
    ),
    "masks by a template": (lambda r: with_masks(r, "a/{n}.png", "b/m{n}.png"), SEGMENTED, {"mask": MASKS}),
    "masks with other names (nnU-Net, Cityscapes)": (
        lambda r: with_masks(r, "imagesTr/{n}_0000.png", "labelsTr/{n}.png"),
        SEGMENTED,
        {"image": PICTURES, "mask": MASKS},
    ),
    "a zip file": (
        lambda r: zipped(r, set=range(COUNT)) / "set.zip",
        SEEN,
        {"image": PICTURES, "target": LABELS},
    ),
    "zips and a table": (zips_and_table, SEEN, {"image": PICTURES, "target": LABELS}),
    "images and depth": (
        lambda r: plant(pictures(r, "rgb/{n}.png"), "depth/{n}.npy", map(npy, ARRAYS)),
        {"image": Image(VIEW), "depth": Array()},
        {"image": PICTURES, "depth": ARRAYS},
    ),
    "class names in a table": (
        lambda r: table(pictures(r), species=[CLASSES[each] for each in LABELS]),
        SEEN,
        {"image": PICTURES, "target": LABELS},
    ),
    "numbers in a table": (
        lambda r: table(pictures(r), score=NUMBERS),
        SEEN,
        {"image": PICTURES, "score": NUMBERS},
    ),
    "masks and numbers in a table": (
        lambda r: table(with_masks(r), id=range(COUNT), score=NUMBERS),
        SEGMENTED,
        {"mask": MASKS, "score": NUMBERS},
    ),
    "vectors in JSON lines": (
        lambda r: lines(pictures(r), at=[each.ravel().tolist() for each in ARRAYS]),
        SEEN,
        {"at": [each.ravel() for each in ARRAYS]},
    ),
    "boxes in JSON lines": (
        lambda r: lines(pictures(r), boxes=BOXES),
        {"image": Image(VIEW), "boxes": Boxes(VIEW)},
        {"boxes": BOXES},
    ),
    "several labels": (
        lambda r: lines(pictures(r), tags=[[1] * n for n in range(COUNT)]),
        SEEN,
        {"tags": [[1] * n for n in range(COUNT)]},
    ),
    "captions": (
        lambda r: table(pictures(r), caption=[f"picture {n}" for n in range(COUNT)]),
        SEEN,
        {"image": PICTURES},
    ),
    "arrays": (
        lambda r: plant(r, "{c}/{n}.npy", map(npy, ARRAYS)),
        {"array": Array()},
        {"array": ARRAYS, "target": LABELS},
    ),
    "sounds": (
        lambda r: plant(r, "{c}/{n}.wav", map(wav, range(COUNT))),
        {},
        {"data": [np.frombuffer(wav(n), np.uint8) for n in range(COUNT)], "target": LABELS},
    ),
    "texts": (
        lambda r: plant(r, "{c}/{n}.txt", [f"text {n}".encode() for n in range(COUNT)]),
        {},
        {"data": [list(f"text {n}".encode()) for n in range(COUNT)]},
    ),
    "COCO": (coco, {"image": Image(VIEW), "boxes": Boxes(VIEW)}, {"image": PICTURES, "boxes": BOXES}),
    "YOLO": (yolo, {"image": Image(VIEW), "boxes": Boxes(VIEW)}, {"boxes": BOXES}),
    "Pascal VOC": (voc, {"image": Image(VIEW), "boxes": Boxes(VIEW)}, {"boxes": BOXES}),
    "a shard of webdataset": (
        shard,
        {"image": Image(VIEW), "seg": Mask(VIEW)},
        {"image": PICTURES, "seg": MASKS, "target": LABELS},
    ),
    "Parquet with images": (hub, SEEN, {"image": PICTURES, "target": LABELS, "score": NUMBERS}),
    "metadata.csv": (
        metadata,
        {"image": Image(VIEW), "score": Value()},
        {"image": PICTURES, "score": NUMBERS},
    ),
}


RECIPES = (Path(__file__).parents[1] / "docs/recipes.md").read_text()
COMMANDS = dict(re.findall(r"^\| ([^|`]+) \| .* \| `smallfiles (pack data.*)` \|$", RECIPES, re.MULTILINE))


def test_the_table_of_what_can_be_packed_has_every_kind():
    assert COMMANDS.keys() == KINDS.keys()


@pytest.mark.parametrize("suffix", ["arrow", "tar"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_data_comes_into_a_batch_as_it_is_by_its_command(kind, suffix, tmp_path, monkeypatch):
    make, makers, truth = KINDS[kind]
    (tmp_path / "data").mkdir()
    out = tmp_path / f"out.{suffix}"
    command = COMMANDS[kind].replace("out.arrow", out.name).split()
    monkeypatch.chdir(tmp_path)
    assert make(tmp_path / "data") == tmp_path / command[1]
    assert main([*command, "--verify", "full"]) == 0
    batch = field_batches(formats.open(out), makers).make(range(COUNT), 0).arrays
    keys = formats.open(out).keys().to_pylist()
    numbers = [int(re.findall(r"\d+", key.replace("_0000", ""))[-1]) for key in keys]
    for name, expected in truth.items():
        offsets = batch.get("offsets" if name == "data" else f"{name}_offsets")
        for row, number in enumerate(numbers):
            found = batch[name][row] if offsets is None else batch[name][offsets[row] : offsets[row + 1]]
            wanted = np.asarray(expected[number])
            np.testing.assert_allclose(found, wanted.reshape(found.shape), atol=1e-4)
