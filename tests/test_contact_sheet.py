"""The contact sheet shows what is in a set, and counts what it does not show."""

import io
import re
import sys
import wave

import numpy as np
import pyarrow as pa
import pytest
from given import Given, bare, schema_of
from PIL import Image

from smallfiles import contact_sheet, formats, previews
from smallfiles.cli import main
from smallfiles.errors import UsageError
from smallfiles.formats import arrow
from smallfiles.images import ImageError
from smallfiles.samples import BlobField

COLOURS = ((200, 30, 30), (30, 160, 60))


def coloured(label, size=(60, 40), kind="PNG"):
    kept = io.BytesIO()
    Image.new("RGB", size, COLOURS[label]).save(kept, kind)
    return kept.getvalue()


def array(values):
    kept = io.BytesIO()
    np.save(kept, values)
    return kept.getvalue()


def sound(seconds=0.5, rate=8000, width=2):
    kept = io.BytesIO()
    with wave.open(kept, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(bytes(int(seconds * rate) * width))
    return kept.getvalue()


def opened(tmp_path, samples, **more):
    out = tmp_path / "set.arrow"
    arrow.write(bare(samples), out, schema=schema_of(samples, **more))
    return formats.open(out)


def two_classes(count=40):
    return [Given(f"{n % 2}/{n:03}.png", coloured(n % 2), n % 2) for n in range(count)]


def tiles_of(reader, seed=0):
    return [(group.title, tile) for group in contact_sheet.draw(reader, seed).groups for tile in group.tiles]


def test_samples_stand_under_their_class(tmp_path):
    reader = opened(tmp_path, two_classes(), classes=("cat", "dog"))
    sheet = contact_sheet.draw(reader)
    assert [group.title for group in sheet.groups] == ["0 cat (20 samples)", "1 dog (20 samples)"]
    for label, group in enumerate(sheet.groups):
        assert len(group.tiles) == contact_sheet.COLUMNS
        for tile in group.tiles:
            assert tile.picture.getpixel((5, 5)) == COLOURS[label] and tile.lines == ("60 x 40",)
            assert int(tile.name[:3]) % 2 == label
    assert sheet.note == "16 of 40 samples, 2 of 2 classes, drawn with seed 0"


def test_a_seed_names_the_choice(tmp_path):
    reader = opened(tmp_path, two_classes())
    names = {seed: [tile.name for _, tile in tiles_of(reader, seed)] for seed in (0, 1)}
    assert names[0] == [tile.name for _, tile in tiles_of(reader, 0)] != names[1]


def test_classes_that_do_not_fit_are_counted(tmp_path):
    samples = [Given(f"{n}.png", coloured(0, (4, 4)), n) for n in range(50)]
    sheet = contact_sheet.draw(opened(tmp_path, samples))
    assert f"{contact_sheet.ROWS} of 50 samples, {contact_sheet.ROWS} of 50 classes" in sheet.note
    assert len(sheet.groups) == contact_sheet.ROWS


def test_a_damaged_sample_gives_its_reason_and_hides_no_other(tmp_path):
    samples = two_classes(6)
    samples[2] = Given("0/002.png", coloured(0)[:50], 0)
    sheet = contact_sheet.draw(opened(tmp_path, samples))
    problems = {tile.name: tile.problem for group in sheet.groups for tile in group.tiles}
    assert [name for name, problem in problems.items() if problem] == ["002.png"]
    assert (
        sheet.shown == 6
        and sheet.unreadable == 1
        and sheet.note.endswith("1 of them cannot be shown in full")
    )


@pytest.mark.parametrize(
    ("key", "data", "shape", "lines"),
    [
        ("a.npy", array(np.arange(1000.0)), (144, 72), ("float64 1000", "0 to 999")),
        ("a.npy", array(np.arange(12.0).reshape(3, 4)), (4, 3), ("float64 3x4", "0 to 11")),
        ("a.npy", array(np.full((2, 5, 6), np.nan)), (6, 5), ("float64 2x5x6",)),
        ("a.npy", array(np.zeros((5, 6, 3), np.uint8)), (6, 5), ("uint8 5x6x3", "0 to 0")),
        ("a.npy", array(np.zeros((0, 3))), None, ("float64 0x3",)),
        ("a.npy", array(np.array(["x"])), None, ("<U1 1",)),
        ("a.wav", sound(), (144, 72), ("0.50 s, 8000 Hz", "1 channel")),
        ("a.wav", sound(width=3), (144, 72), ("0.50 s, 8000 Hz", "1 channel")),
        ("a.txt", b"one\ntwo \xff\n", None, ("one", "two �")),
        ("a.bin", bytes(range(20)), None, (".bin, 20 bytes", bytes(range(16)).hex(" "))),
        ("no_suffix", coloured(0), (60, 40), ("60 x 40",)),
    ],
)
def test_other_kinds_of_data_are_shown_as_what_they_are(tmp_path, key, data, shape, lines):
    ((_, tile),) = tiles_of(opened(tmp_path, [Given(key, data, -1)]))
    assert (tile.problem, tile.lines) == ("", lines)
    assert (tile.picture and tile.picture.size) == shape


@pytest.mark.parametrize(
    "data",
    [
        *(array(np.arange(9))[:-3], array(np.array([{}], object)), b"", b"RIFF", b"\x93NUMPY"),
        sound()[:24] + bytes(4) + sound()[28:],  # frames per second: 0
    ],
)
@pytest.mark.parametrize("soundfile", [True, False])
@pytest.mark.parametrize("suffix", ["npy", "wav"])
def test_arrays_and_sounds_that_cannot_be_read_give_a_reason(tmp_path, monkeypatch, data, suffix, soundfile):
    if not soundfile:
        monkeypatch.setitem(sys.modules, "soundfile", None)
    ((_, tile),) = tiles_of(opened(tmp_path, [Given(f"a.{suffix}", data, -1)]))
    assert tile.problem and tile.picture is None


@pytest.mark.parametrize("mode", ["L", "P", "I;16", "1"])
def test_a_mask_with_a_broken_chunk_gives_a_reason(mode):
    kept = io.BytesIO()
    Image.new(mode, (9, 7)).save(kept, "PNG")
    data = bytearray(kept.getvalue())
    at = data.index(b"IDAT") - 1  # the last byte of its length: the next chunk begins in its bytes
    data[at] = 0
    with pytest.raises(ImageError):
        previews.of_partner(bytes(data), ".png", previews.Shown())


def test_a_sound_needs_no_package_where_python_reads_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    names = {"a.wav": sound(), "b.wav": sound(width=3), "c.flac": b"fLaC"}
    samples = [Given(name, data, -1) for name, data in names.items()]
    plain, deep, other = [tile for _, tile in tiles_of(opened(tmp_path, samples))]
    assert plain.picture.size == (144, 72) and plain.lines == ("0.50 s, 8000 Hz", "1 channel")
    assert deep.picture is None and deep.lines[-1] == "24 bits: needs soundfile"
    assert other.lines[0] == ".flac, 4 bytes"


def test_captions_are_shown(tmp_path):
    samples = [Given("a.png", coloured(0), ["A dog .", "Two cats .", "No more ."])]
    ((_, tile),) = tiles_of(opened(tmp_path, samples, captions=True))
    assert tile.lines == ("60 x 40", "A dog .", "Two cats .")


# ---- further fields


def grey(pixels, kind="PNG"):
    kept = io.BytesIO()
    Image.fromarray(np.asarray(pixels)).save(kept, kind)
    return kept.getvalue()


def with_fields(tmp_path, partner, suffix=".png", first=None, **values):
    """The tile of one sample: an image of 60 x 40 pixels, a further file, and values."""
    samples = [Given("a.png", first or coloured(0), 0, None, (partner,) * (partner is not None), 0)]
    blobs = (BlobField("mask", suffix, len(partner), len(partner)),) if partner is not None else ()
    table = pa.table({name: pa.array([value]) for name, value in values.items()}) if values else None
    ((_, tile),) = tiles_of(opened(tmp_path, samples, blobs=blobs, values=table, classes=("cat", "dog")))
    return tile


HALF = np.repeat([[0] * 30 + [2] * 30], 40, 0).astype(np.uint8)


@pytest.mark.parametrize(("data", "suffix"), [(grey(HALF), ".png"), (array(HALF.astype(np.int64)), ".npy")])
def test_a_mask_is_laid_over_its_image_and_class_0_is_left_clear(tmp_path, data, suffix):
    (mask,) = with_fields(tmp_path, data, suffix).more
    mixed = tuple((a + b) // 2 for a, b in zip(COLOURS[0], previews.colour_of(2), strict=True))
    assert (mask.name, mask.lines) == ("mask", ("classes 0, 2",))
    assert mask.picture.getpixel((29, 20)) == COLOURS[0] and mask.picture.getpixel((30, 20)) == mixed


def test_a_mask_is_scaled_with_a_large_image_without_mixing_its_classes(tmp_path):
    classes = np.zeros((400, 600), np.uint8)
    classes[:200], classes[200:, 300:] = 3, 1
    (mask,) = with_fields(tmp_path, grey(classes), first=coloured(0, (600, 400))).more
    assert mask.picture.size == (144, 96)
    colours = {colour for _, colour in mask.picture.getcolors()}
    assert len(colours) == 3 and COLOURS[0] in colours


def test_a_mask_of_another_size_is_not_laid_over(tmp_path):
    (mask,) = with_fields(tmp_path, grey(HALF[:20])).more
    assert mask.lines == ("60 x 20, other size", "classes 0, 2") and mask.picture.size == (60, 20)
    assert mask.picture.getpixel((0, 0)) == (255, 255, 255)


def test_depths_are_shown_from_black_to_white(tmp_path):
    (depth,) = with_fields(tmp_path, grey(np.arange(2400, dtype=np.uint16).reshape(40, 60) * 20)).more
    assert depth.lines == ("60 x 40", "0 to 47980")
    assert depth.picture.getpixel((0, 0)) == (0, 0, 0) and depth.picture.getpixel((59, 39)) == (255, 255, 255)


@pytest.mark.parametrize(
    ("data", "suffix", "lines"),
    [
        (sound(), ".wav", ("0.50 s, 8000 Hz", "1 channel")),
        (array(np.array([[0.5, np.nan], [-2, 3]])), ".npy", ("float64 2x2", "-2 to 3")),
        (b"a word", ".txt", ("a word",)),
        (coloured(1, (9, 5)), ".png", ("9 x 5",)),
    ],
)
def test_further_files_are_shown_as_what_they_are(tmp_path, data, suffix, lines):
    (part,) = with_fields(tmp_path, data, suffix).more
    assert (part.name, part.problem, part.lines) == ("mask", "", lines)
    assert (part.picture is None) == (suffix == ".txt")


@pytest.mark.parametrize("data", [grey(HALF)[:60], grey(HALF)[:20], b""])
def test_a_damaged_partner_gives_its_reason_in_its_place(tmp_path, data):
    tile = with_fields(tmp_path, data)
    assert tile.picture is not None and not tile.problem and tile.more[0].problem
    sheet = contact_sheet.Sheet([contact_sheet.Group("", [tile])], 1, 1, "")
    contact_sheet._write_page(sheet, "set", tmp_path / "sheet.html")
    assert tile.more[0].problem in (tmp_path / "sheet.html").read_text()


def test_a_partner_is_shown_although_the_first_file_is_damaged(tmp_path):
    tile = with_fields(tmp_path, grey(HALF), first=coloured(0)[:50])
    assert tile.problem and tile.more[0].lines == ("classes 0, 2",)


@pytest.mark.parametrize("name", ["boxes", "bbox", "face_boxes"])
def test_boxes_are_drawn_in_the_pixels_of_the_picture(tmp_path, name):
    values = {name: [[0.0, 0.0, 100.0, 200.0], [300.0, 200.0, 600.0, 400.0]], "box_labels": [1, 0]}
    tile = with_fields(tmp_path, None, first=coloured(0, (600, 400)), **values)
    scale = 144 / 600
    assert tile.picture.getpixel((0, round(100 * scale))) == previews.colour_of(2)
    assert tile.picture.getpixel((round(450 * scale), round(200 * scale))) == previews.colour_of(1)
    assert tile.picture.getpixel((round(450 * scale), round(300 * scale))) == COLOURS[0]
    assert tile.more[0].lines == (f"{name}: 2 (cat, dog)",)


@pytest.mark.parametrize(
    "values", [{"vectors": [[1.0, 2.0, 30.0, 20.0]]}, {"boxes": [[1.0, 2.0, 30.0]]}, {"keypoints": ["a"]}]
)
def test_other_lists_are_no_boxes(tmp_path, values):
    assert {colour for _, colour in with_fields(tmp_path, None, **values).picture.getcolors()} == {COLOURS[0]}


def test_values_are_short_texts(tmp_path):
    values = {"age": 1.23456789, "boxes": [[1.0, 2, 3, 4]], "ok": True, "tags": ["a", "b"], "long": "x" * 999}
    (told,) = with_fields(tmp_path, None, vector=[0.123456, 2.0, 3.0, 4.0, 5.0], **values).more
    shown = ("boxes: 1", "vector: [0.123, 2, 3, … 5 in all]", "age: 1.23457", "ok: True", "tags: [a, b]")
    assert told.lines[:5] == shown and len(told.lines[5]) < 99
    assert previews.of_values({"boxes": [], "name": None}, ()) == ("boxes: 0", "name: none")
    many = previews.of_values({f"n{number}": number for number in range(30)}, ())
    assert many[-2:] == ("n7: 7", "and 22 more")


def test_both_kinds_of_sheet_hold_the_pictures_and_names_of_all_fields(tmp_path):
    tile = with_fields(tmp_path, grey(HALF), text="<b>")
    sheet = contact_sheet.Sheet([contact_sheet.Group("", [tile] * 3)], 3, 0, "")
    contact_sheet._write_page(sheet, "set", tmp_path / "sheet.html")
    page = (tmp_path / "sheet.html").read_text()
    assert page.count("<img ") == 6 and page.count("<figcaption>mask<") == 3 and "text: &lt;b&gt;" in page
    contact_sheet._write_picture(sheet, "set", tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as picture:
        counts = {colour: count for count, colour in picture.getcolors(1 << 24)}
    assert counts[COLOURS[0]] == 3 * (60 * 40 + 30 * 40)


def test_names_cannot_write_into_the_page(tmp_path):
    samples = [Given("<script>x.png", coloured(0), ["<b>bold</b> & \x1b[2J"])]
    contact_sheet.write(opened(tmp_path, samples, captions=True), tmp_path / "sheet.html")
    page = (tmp_path / "sheet.html").read_text()
    assert "<script>" not in page and "<b>" not in page and "\x1b" not in page
    assert "&lt;script&gt;x.png" in page and len(re.findall("<img ", page)) == 1
    assert not re.search(r'(src|href)="(?!data:)', page)


def test_a_picture_holds_the_colours_of_its_samples(tmp_path):
    contact_sheet.write(opened(tmp_path, two_classes(6)), tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as picture:
        colours = {colour for _, colour in picture.convert("RGB").getcolors(1 << 24)}
    assert set(COLOURS) <= colours


def test_another_suffix_is_refused_before_anything_is_read(tmp_path):
    with pytest.raises(UsageError, match=r"\.html or \.png"):
        contact_sheet.write(opened(tmp_path, two_classes(2)), tmp_path / "sheet.pdf")
    assert not (tmp_path / "sheet.pdf").exists()


def test_inspect_writes_it_and_says_what_it_shows(tmp_path, capsys):
    path = opened(tmp_path, two_classes(6)).path
    sheet = tmp_path / "sheet.html"
    assert main(["inspect", str(path), "--picture", str(sheet), "--seed", "3"]) == 0
    assert "6 of 6 samples, 2 of 2 classes, drawn with seed 3" in capsys.readouterr().out
    assert sheet.read_text().startswith("<!DOCTYPE html>")
    assert main(["inspect", str(path), "--seed", "3"]) == 2
    assert "--picture" in capsys.readouterr().err
    assert main(["inspect", str(path), "--picture", str(tmp_path / "none" / "sheet.html")]) == 1
    assert "none" in capsys.readouterr().err
