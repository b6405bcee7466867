"""The pictures of mechanisms: described, legible on light and dark pages, and shown by a notebook."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PICTURES = sorted((ROOT / "notebooks" / "pictures").glob("*"))
PAGES = [*sorted((ROOT / "notebooks" / "src").glob("*.py")), ROOT / "README.md"]
SHOWN = re.compile(r"!\[(?P<alt>[^\]]*)\]\((?P<path>[^)\s]*pictures/[^)\s]*)\)")
SVG = "{http://www.w3.org/2000/svg}"
WIDTH_PX = 700  # of a notebook's column
DARK = "@media (prefers-color-scheme: dark)"

every_picture = pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)


def style(path):
    return path.read_text(encoding="utf-8").split("<style>")[1].split("</style>")[0]


def root(path):
    return ET.fromstring(path.read_text(encoding="utf-8"))


def shown():
    return [(page, found) for page in PAGES for found in SHOWN.finditer(page.read_text(encoding="utf-8"))]


def colours(block):
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))


def luminance(colour):
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_there_are_pictures():
    assert len(PICTURES) >= 7 and all(path.suffix == ".svg" for path in PICTURES)


@every_picture
def test_a_picture_is_as_wide_as_the_page_and_is_described(path):
    svg = root(path)
    assert svg.tag == f"{SVG}svg" and svg.get("width") == str(WIDTH_PX)
    assert svg.get("viewBox") == f"0 0 {WIDTH_PX} {svg.get('height')}"
    title, description = svg.find(f"{SVG}title"), svg.find(f"{SVG}desc")
    assert len(title.text) > 20 and len(description.text) > 100
    assert svg.get("role") == "img" and svg.get("aria-labelledby").split() == [
        title.get("id"),
        description.get("id"),
    ]


@every_picture
def test_no_text_is_smaller_than_eleven_pixels(path):
    text = path.read_text(encoding="utf-8")
    sizes = [float(size) for size in re.findall(r"font(?:-size)?[:=][^;>]*?(\d+(?:\.\d+)?)px", text)]
    assert len(sizes) >= 3 and min(sizes) >= 11
    assert "scale(" not in text and "font-size=" not in text, "sizes hold only where nothing is scaled"


@every_picture
def test_text_can_be_read_on_every_ground_in_light_and_dark(path):
    light, dark = path.read_text(encoding="utf-8").split(DARK)
    for named in (colours(light), colours(dark.split("text {")[0])):
        grounds = [named[name] for name in named if name in ("paper", "card") or name.endswith("-soft")]
        assert len(grounds) == 6
        assert min(contrast(named["ink"], ground) for ground in grounds) > 7
        assert min(contrast(named["faint"], ground) for ground in grounds) > 4.5
        assert min(contrast(named[line], named["paper"]) for line in ("blue", "orange", "green", "red")) > 3


@every_picture
def test_every_colour_and_every_reference_is_defined_in_the_picture_itself(path):
    text = path.read_text(encoding="utf-8")
    assert set(re.findall(r"var\(--([\w-]+)\)", text)) <= set(colours(text))
    ids = {element.get("id") for element in root(path).iter()}
    assert set(re.findall(r'(?:url\(|href=")#([\w-]+)', text)) <= ids
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), "a picture loads nothing"


@every_picture
def test_every_class_is_defined(path):
    text = path.read_text(encoding="utf-8")
    used = {name for names in re.findall(r'class="([^"]+)"', text) for name in names.split()}
    assert used <= set(re.findall(r"\.([a-z]+)", style(path)))


def test_all_pictures_have_one_style():
    assert len({style(path) for path in PICTURES}) == 1


@every_picture
def test_a_notebook_shows_the_picture(path):
    assert any(page.suffix == ".py" and found["path"].endswith(f"/{path.name}") for page, found in shown())


def test_every_picture_that_a_page_names_exists_and_is_described():
    assert shown()
    for page, found in shown():
        folder = ROOT / "notebooks" if page.suffix == ".py" else page.parent
        assert (folder / found["path"]).is_file(), f"{page.name} shows {found['path']}"
        assert 40 < len(found["alt"]) < 250, f"{page.name} describes {found['path']} badly: {found['alt']!r}"
