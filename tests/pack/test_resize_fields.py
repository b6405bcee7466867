"""Masks, boxes and points that are scaled with their images while they are packed."""

import io
import json
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from smallfiles import formats, sources
from smallfiles.cli import main
from smallfiles.errors import PackError, UsageError
from smallfiles.images import ImageError, resize_values
from smallfiles.pack import PackConfig, pack, verify

SHORT = 32
CONFIG = PackConfig(resize=SHORT, verify="full")
OUTPUTS = ["x.arrow", "x.tar", "x.sqfs", "x.files"]


def planted(root, mode="P", suffix="png"):
    """Three images of which the first is small, and masks of values that follow the place."""
    for n, (width, height) in enumerate([(30, 40), (64, 96), (128, 64)]):
        y, x = np.mgrid[:height, :width]
        pixels = np.stack([x * 255 // width, y * 255 // height, x * 0 + n], -1).astype(np.uint8)
        values = (x * 4 // width + 10 * (y * 4 // height)).astype(np.uint16 if mode == "I;16" else np.uint8)
        mask = Image.fromarray(values * (257 if mode == "I;16" else 1))
        if mode == "P":
            mask.putpalette([each % 256 for each in range(0, 768 * 7, 7)])
        for folder, picture, name in (("images", Image.fromarray(pixels), "jpg"), ("masks", mask, suffix)):
            (root / folder).mkdir(parents=True, exist_ok=True)
            picture.save(root / folder / f"{n}.{name}", quality=95)
    return root


@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.parametrize("mode", ["P", "L", "I;16"])
def test_masks_get_the_size_of_their_image_and_keep_values_and_palette(tmp_path, mode, name):
    source = sources.load(planted(tmp_path / "in", mode))
    pack(source, tmp_path / name, CONFIG)
    with formats.open(tmp_path / name) as reader:
        for n in range(3):
            before = Image.open(tmp_path / f"in/masks/{n}.png")
            image = Image.open(io.BytesIO(bytes(reader.read(n))))
            after = Image.open(io.BytesIO(bytes(reader.blob("mask").read(n))))
            assert after.size == image.size and min(after.size) <= SHORT
            assert (after.format, after.mode, after.getpalette()) == ("PNG", before.mode, before.getpalette())
            assert np.array_equal(np.unique(after), np.unique(before))
            y, x = np.mgrid[: after.height, : after.width]
            truth = x * 4 // after.width + 10 * (y * 4 // after.height)
            assert (np.asarray(after) == truth * (257 if mode == "I;16" else 1)).mean() > 0.9
    report = verify(tmp_path / name, against=source)
    assert not report.differences and not report.problems


def test_boxes_points_and_areas_move_with_their_image_and_fractions_stay(tmp_path):
    root = planted(tmp_path / "in")
    rows = [
        {
            "filename": f"images/{n}.jpg", "boxes": [[0, 0, w, h], [w / 2, h / 4, w, h]][: n + 1],
            "bbox": [0.0, 0.0, float(w), float(h)], "near_box": None if n == 1 else [int(w), int(h)] * 2,
            "segments": [[0.0, 0.0, w, 0.0, w, h]] * n,
            "area": [float(w * h)], "unit_box": [0.25, 0.5, 0.75, 1.0], "age": 7.5,
        }
        for n, (w, h) in enumerate([(30.0, 40.0), (64.0, 96.0), (128.0, 64.0)])
    ]  # fmt: skip
    (root / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = sources.load(root / "t.jsonl")
    pack(source, tmp_path / "x.arrow", CONFIG)
    with formats.open(tmp_path / "x.arrow") as reader:
        values = reader.table().to_pylist()
        for n, row in enumerate(values):
            w, h = Image.open(io.BytesIO(bytes(reader.read(n)))).size
            expected = [[0, 0, w, h], [w / 2, h / 4, w, h]][: n + 1]
            assert row["boxes"] == [pytest.approx(box) for box in expected]
            assert row["bbox"] == pytest.approx([0, 0, w, h])
            assert row["near_box"] == (None if n == 1 else pytest.approx([w, h, w, h]))
            assert row["segments"] == [pytest.approx([0, 0, w, 0, w, h])] * n
            assert row["area"] == pytest.approx([w * h])
            assert (row["unit_box"], row["age"]) == ([0.25, 0.5, 0.75, 1.0], 7.5)
    assert not verify(tmp_path / "x.arrow", against=source).differences
    rows[1]["bbox"][0] = 5.0
    (root / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert verify(tmp_path / "x.arrow", against=sources.load(root / "t.jsonl")).differences


def png(values, colours, palette=b""):
    """A PNG as other programs write it: 8 or 16 bits, with a palette that may lack colours."""
    bits = 8 * values.dtype.itemsize
    rows = b"".join(b"\0" + row.astype(f">u{bits // 8}").tobytes() for row in values)
    head = struct.pack(">IIBBBBB", values.shape[1], values.shape[0], bits, colours, 0, 0, 0)
    parts = [(b"IHDR", head), *[(b"PLTE", palette)] * bool(palette), (b"IDAT", zlib.compress(rows))]
    chunks = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in [*parts, (b"IEND", b"")]
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def test_a_mask_keeps_numbers_beyond_its_palette_and_one_of_deep_colours_is_refused():
    values = np.random.default_rng(0).choice(np.uint8([0, 1, 255]), (64, 80))
    scaled = Image.open(io.BytesIO(resize_values(png(values, 3, bytes(6)), SHORT)))
    assert scaled.size == (40, 32) and np.unique(scaled).tolist() == [0, 1, 255]
    with pytest.raises(ImageError, match="16 bits, of which scaling would keep 8"):
        resize_values(png(np.zeros((64, 80, 3), np.uint16), 2), SHORT)


@pytest.mark.parametrize(
    ("name", "row", "says"),
    [
        ("keypoints", [[0.25, 0.5, 2.0]], "have keypoints"),
        ("bbox", [0, 0, 2, 1], "moves"),
        ("bbox", [0, 0, 1, 1], "may be of pixels or of fractions"),
        ("boxes", [[0.0, 0.0, 0.0, 0.0]], None),
        ("bbox", [0.1, 0.2, 0.5, 1.001], "may be of pixels or of fractions"),
        ("boxes", [[8.0, 8.0, 9.0, 9.0, 3.0]], "lists of 4 numbers and 1 more"),
    ],
)
def test_points_are_moved_left_or_refused_by_what_their_numbers_say(tmp_path, name, row, says):
    root = planted(tmp_path / "in")
    rows = [{"filename": f"images/{n}.jpg", name: row} for n in range(3)]
    (root / "t.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    source = sources.load(root / "t.jsonl")
    if says in (None, "moves"):
        pack(source, tmp_path / "x.arrow", CONFIG)
        found = formats.open(tmp_path / "x.arrow").table()[name].to_pylist()
        assert found[1] == (row if says is None else [0, 0, 1, 0.5])
    else:
        with pytest.raises(UsageError, match=says):
            pack(source, tmp_path / "x.arrow", CONFIG)


def test_an_image_that_exif_turns_is_refused_where_its_mask_would_not_turn(tmp_path):
    root = planted(tmp_path / "in")
    exif = Image.Exif()
    exif[0x0112] = 6
    with Image.open(root / "images/1.jpg") as picture:
        picture.copy().save(root / "images/1.jpg", exif=exif)
    with pytest.raises(PackError, match=r"images/1\.jpg.*would not turn with it"):
        pack(sources.load(root), tmp_path / "x.arrow", CONFIG)
    report = pack(sources.load(root), tmp_path / "x.arrow", PackConfig(resize=SHORT, on_error="skip"))
    assert report.samples == 2


@pytest.mark.parametrize(
    ("out", "changes", "suffix", "says"),
    [
        ("x.arrow", {}, "tif", r"mask \(\.tif\)"),
        ("x.arrow", {"pixels": True}, "png", "as pixels, and have masks or boxes"),
        ("x.h5", {}, "png", "into HDF5"),
    ],
)
def test_what_cannot_be_scaled_with_its_image_is_refused_with_the_way(tmp_path, out, changes, suffix, says):
    source = sources.load(planted(tmp_path / "in", "L", suffix))
    with pytest.raises(UsageError, match=says):
        pack(source, tmp_path / out, PackConfig(resize=SHORT, **changes))


def test_boxes_as_text_are_refused_and_not_left_behind(tmp_path, capsys):
    root = planted(tmp_path / "in")
    (root / "t.csv").write_text("filename,bbox\n" + "".join(f"images/{n}.jpg,0 0 9 9\n" for n in range(3)))
    assert main(["pack", str(root / "t.csv"), str(tmp_path / "x.arrow"), "--resize", "32"]) == 2
    assert "bbox cannot be moved with them, since it is string" in capsys.readouterr().err
