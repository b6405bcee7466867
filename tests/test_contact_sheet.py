"""The contact sheet shows what is in a set, and counts what it does not show."""

import io
import re
import wave

import numpy as np
import pytest
from PIL import Image

from smallfiles import contact_sheet, formats
from smallfiles.cli import main
from smallfiles.errors import UsageError
from smallfiles.formats import arrow
from smallfiles.samples import Sample
from tests.formats import contract_sets as sets

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
    arrow.write(samples, out, schema=sets.schema_of(samples, **more))
    return formats.open(out)


def two_classes(count=40):
    return [Sample(f"{n % 2}/{n:03}.png", coloured(n % 2), n % 2) for n in range(count)]


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
    samples = [Sample(f"{n}.png", coloured(0, (4, 4)), n) for n in range(50)]
    sheet = contact_sheet.draw(opened(tmp_path, samples))
    assert f"{contact_sheet.ROWS} of 50 samples, {contact_sheet.ROWS} of 50 classes" in sheet.note
    assert len(sheet.groups) == contact_sheet.ROWS


def test_a_damaged_sample_gives_its_reason_and_hides_no_other(tmp_path):
    samples = two_classes(6)
    samples[2] = Sample("0/002.png", coloured(0)[:50], 0)
    sheet = contact_sheet.draw(opened(tmp_path, samples))
    problems = {tile.name: tile.problem for group in sheet.groups for tile in group.tiles}
    assert [name for name, problem in problems.items() if problem] == ["002.png"]
    assert sheet.shown == 6 and sheet.unreadable == 1 and sheet.note.endswith("1 of them cannot be shown")


@pytest.mark.parametrize(
    ("key", "data", "shape", "lines"),
    [
        ("a.npy", array(np.arange(1000.0)), (144, 72), ("float64 1000",)),
        ("a.npy", array(np.arange(12.0).reshape(3, 4)), (4, 3), ("float64 3x4",)),
        ("a.npy", array(np.full((2, 5, 6), np.nan)), (6, 5), ("float64 2x5x6",)),
        ("a.npy", array(np.zeros((5, 6, 3), np.uint8)), (6, 5), ("uint8 5x6x3",)),
        ("a.npy", array(np.zeros((0, 3))), None, ("float64 0x3",)),
        ("a.npy", array(np.array(["x"])), None, ("<U1 1",)),
        ("a.wav", sound(), (144, 72), ("0.50 s, 8000 Hz, 1 channel",)),
        ("a.wav", sound(width=3), (144, 72), ("0.50 s, 8000 Hz, 1 channel", "24 bits")),
        ("a.txt", b"one\ntwo \xff\n", None, ("one", "two �")),
        (
            "a.bin",
            bytes(range(20)),
            None,
            (".bin, 20 bytes", bytes(range(16)).hex(" ")),
        ),
        ("no_suffix", coloured(0), (60, 40), ("60 x 40",)),
    ],
)
def test_other_kinds_of_data_are_shown_as_what_they_are(tmp_path, key, data, shape, lines):
    ((_, tile),) = tiles_of(opened(tmp_path, [Sample(key, data, -1)]))
    assert (tile.problem, tile.lines) == ("", lines)
    assert (tile.picture and tile.picture.size) == shape


@pytest.mark.parametrize(
    "data", [array(np.arange(9))[:-3], array(np.array([{}], object)), b"", b"RIFF", b"\x93NUMPY"]
)
@pytest.mark.parametrize("suffix", ["npy", "wav"])
def test_arrays_and_sounds_that_cannot_be_read_give_a_reason(tmp_path, data, suffix):
    ((_, tile),) = tiles_of(opened(tmp_path, [Sample(f"a.{suffix}", data, -1)]))
    assert tile.problem and tile.picture is None


def test_captions_are_shown(tmp_path):
    samples = [Sample("a.png", coloured(0), ["A dog .", "Two cats .", "No more ."])]
    ((_, tile),) = tiles_of(opened(tmp_path, samples, captions=True))
    assert tile.lines == ("60 x 40", "A dog .", "Two cats .")


def test_names_cannot_write_into_the_page(tmp_path):
    samples = [Sample("<script>x.png", coloured(0), ["<b>bold</b> & \x1b[2J"])]
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
