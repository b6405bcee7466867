"""A tree that other programs see contains the tree alone, and no record of ours."""

import pytest
from PIL import Image

from smallfiles import formats
from smallfiles.cli import main

CLASSES = ("ant", "bee", "cat")


@pytest.fixture
def photos(tmp_path):
    """Three classes of three pictures."""
    for number in range(9):
        folder = tmp_path / "my photos" / CLASSES[number % 3]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20 + number, 16), (number * 20, 90, 10)).save(folder / f"{number}.png")
    return tmp_path / "my photos"


def packed(source, out, *words):
    assert main(["pack", str(source), str(out), *words]) == 0
    return out


def facts(path):
    with formats.open(path) as reader:
        return [(s.key, *map(bytes, s.blobs), reader.target(n)) for n, s in enumerate(reader)]


def test_a_folder_of_plain_files_has_no_class_more_than_its_source(tmp_path, photos):
    datasets = pytest.importorskip("torchvision.datasets", reason="torchvision is not installed")
    found = datasets.ImageFolder(str(packed(photos, tmp_path / "x.files")))
    assert found.classes == [*CLASSES] and len(found) == 9


def test_a_folder_named_as_our_old_record_is_an_ordinary_folder(tmp_path, photos):
    (tmp_path / "list.csv").write_text("path,label\nant/0.png,1\n.smallfiles/x.png,2\n")
    (photos / ".smallfiles").mkdir()
    (photos / "ant/0.png").rename(photos / ".smallfiles/x.png")
    Image.new("RGB", (8, 8)).save(photos / "ant/0.png")
    out = packed(tmp_path / "list.csv", tmp_path / "x.sqfs", "--root", str(photos))
    assert [key for key, *_ in facts(out)] == ["ant/0.png", ".smallfiles/x.png"]
