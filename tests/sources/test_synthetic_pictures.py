"""The pictures: natural spectrum, ImageNet's sizes, odd files, true captions, classes to be learnt."""

import io
import re
import warnings
from itertools import pairwise

import numpy as np
import pytest
import simplejpeg
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps
from torchvision.io import ImageReadMode, decode_image

from smallfiles.sources.synthetic import flickr, pictures, plans

FULL = (500, 375)


def spectral_slope(plane: np.ndarray) -> float:
    """Slope of the amplitude spectrum in log-log, averaged over directions and octaves."""
    side = min(plane.shape)
    window = np.hanning(side)
    square = (plane[:side, :side] - plane.mean()) * window[:, None] * window
    amplitude = np.abs(np.fft.fft2(square))
    cycles = np.fft.fftfreq(side) * side
    radius = np.hypot(cycles[:, None], cycles)
    edges = np.geomspace(4, side / 2, 13)
    bands = [amplitude[(radius >= low) & (radius < high)].mean() for low, high in pairwise(edges)]
    return np.polyfit(np.log((edges[1:] * edges[:-1]) ** 0.5), np.log(bands), 1)[0]


def drawn(index: int, label: int = 0, size=FULL, seed: int = 0) -> np.ndarray:
    return pictures.draw(pictures.compose(index, label, seed, size), seed, index)


def test_noise_has_the_spectrum_of_photographs():
    noise = pictures.natural(np.random.default_rng(1), 375, 500)
    assert spectral_slope(noise) == pytest.approx(-1, abs=0.35)
    assert 50 < noise.std() < 300 and abs(noise.mean()) < 60


def test_sizes_are_those_of_imagenet():
    plan = plans.Plan(3, 300, 0, 0, 10, FULL)
    files = [plan.file_bytes(index) for index in range(300)]
    sizes = np.array([len(data) for data in files])
    assert 90_000 < sizes.mean() < 120_000
    assert 0.4 < np.log(sizes).std() < 0.6
    shapes_seen = np.array([Image.open(io.BytesIO(data)).size for data in files])
    assert np.median(shapes_seen.max(1)) == 500 and abs(np.median(shapes_seen.min(1)) - 375) < 10
    upright = (shapes_seen[:, 1] > shapes_seen[:, 0]).mean()
    assert 0.15 < upright < 0.35


@pytest.mark.parametrize("index", range(6))
def test_ordinary_files_decode_alike_in_pillow_simplejpeg_and_torchvision(index):
    data = plans.Plan(0, 20, 0, 0, 10, FULL).file_bytes(index)
    by_pillow = np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)
    by_simplejpeg = simplejpeg.decode_jpeg(data).astype(int)
    tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    by_torchvision = decode_image(tensor, ImageReadMode.RGB).permute(1, 2, 0).numpy().astype(int)
    assert by_pillow.shape == by_simplejpeg.shape == by_torchvision.shape
    assert np.abs(by_pillow - by_simplejpeg).mean() < 1 and np.abs(by_pillow - by_torchvision).mean() < 1


def encoded(oddity: str | None) -> bytes:
    return pictures.encode(drawn(5), 90, oddity)


def test_odd_files_are_odd_as_named():
    assert Image.open(io.BytesIO(encoded(None))).mode == "RGB"
    assert encoded("png").startswith(b"\x89PNG") and Image.open(io.BytesIO(encoded("png"))).mode == "RGB"
    assert Image.open(io.BytesIO(encoded("cmyk"))).mode == "CMYK"
    assert Image.open(io.BytesIO(encoded("gray"))).mode == "L"
    assert set(pictures.ODD) == {"png", "cmyk", "gray", "exif_rotated", "exif_broken"}


def test_the_turned_file_stands_upright_once_its_exif_is_obeyed():
    upright = drawn(5).astype(int)
    image = Image.open(io.BytesIO(encoded("exif_rotated")))
    assert image.getexif()[0x0112] == 6
    assert image.size == upright.shape[:2], "it lies on its side"
    turned = np.asarray(ImageOps.exif_transpose(image)).astype(int)
    assert turned.shape == upright.shape and np.abs(turned - upright).mean() < 12


def test_broken_exif_is_complained_about_and_the_pixels_are_whole():
    with warnings.catch_warnings(record=True) as complaints:
        warnings.simplefilter("always")
        image = Image.open(io.BytesIO(encoded("exif_broken")))
        image.getexif()
    assert complaints
    assert np.array_equal(np.asarray(image.convert("RGB")), np.asarray(Image.open(io.BytesIO(encoded(None)))))


def test_broken_files_do_not_decode():
    assert encoded("empty") == b""
    with pytest.raises(OSError, match="truncated"):
        Image.open(io.BytesIO(encoded("truncated"))).load()


def test_the_first_thousand_classes_look_different_and_neighbours_share_nothing():
    looks = [pictures.look_of(label) for label in range(pictures.MAX_CLASSES)]
    assert len(set(looks)) == pictures.MAX_CLASSES and all(look.colour != look.core for look in looks)
    assert all(one.shape != other.shape and one.colour != other.colour for one, other in pairwise(looks))


def apart(one, other):
    return one[2] < other[0] or other[2] < one[0] or one[3] < other[1] or other[3] < one[1]


@given(index=st.integers(0, 10**9), label=st.integers(0, 999), seed=st.integers(0, 2**40))
def test_boxes_lie_in_the_picture_and_objects_do_not_hide_each_other(index, label, seed):
    scene = pictures.compose(index, label, seed, FULL)
    assert scene.things[0].look == pictures.look_of(label)
    for thing in scene.things:
        x1, y1, x2, y2 = thing.box
        assert 0 <= x1 < x2 <= scene.width and 0 <= y1 < y2 <= scene.height
    for one in scene.things:
        assert all(one is other or apart(one.box, other.box) for other in scene.things)


@given(
    index=st.integers(0, 10**6),
    label=st.integers(0, 999),
    size=st.sampled_from([(32, 32), (48, 64), (97, 61)]),
)
def test_any_scene_can_be_drawn_at_any_size(index, label, size):
    scene = pictures.compose(index, label, 0, size)
    picture = pictures.draw(scene, 0, index)
    assert picture.shape == (scene.height, scene.width, 3) and picture.dtype == np.uint8
    assert picture.std() > 4


@given(index=st.integers(0, 10**6), label=st.integers(0, 999))
def test_captions_say_nothing_that_is_not_drawn(index, label):
    scene = pictures.compose(index, label, 0, FULL)
    five = flickr.describe(scene, index, 0)
    assert len(five) == 5 and all(text.endswith(" .") and "\n" not in text for text in five)
    drawn_words = {w for t in scene.things for w in (t.look.shape, t.look.colour, t.look.core)}
    known = {*pictures.SHAPES, *pictures.COLOURS}
    for text in five:
        words = set(re.findall(r"[a-z]+", text.lower()))
        assert words & known <= drawn_words and scene.things[0].look.shape in words
    assert any(" , " in text for text in five) and any('"' in text for text in five)
    assert scene.backdrop in five[0]


def small(index: int, label: int) -> np.ndarray:
    image = Image.fromarray(drawn(index, label, (250, 188), seed=11))
    return np.asarray(image.resize((64, 64), Image.Resampling.BILINEAR)).astype(np.float32) / 255


def accuracy_of_mean_colour(train, train_labels, test, test_labels) -> float:
    """Nearest neighbours (7) by mean colour: what a classifier knows that sees only that."""
    train_means, test_means = train.mean((2, 3)), test.mean((2, 3))
    nearest = torch.cdist(test_means, train_means).topk(7, largest=False).indices
    votes = torch.nn.functional.one_hot(train_labels[nearest], 10).sum(1)
    return (votes.argmax(1) == test_labels).float().mean().item()


@pytest.fixture
def one_thread():
    """Small convolutions on several threads spend their time waiting when others use the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def train_small_network(pixels: torch.Tensor, labels: torch.Tensor) -> torch.nn.Module:
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for before, after in ((3, 24), (24, 48), (48, 64)):
        layers += [torch.nn.Conv2d(before, after, 3, padding=1, stride=2)]
        layers += [torch.nn.BatchNorm2d(after), torch.nn.ReLU()]
    network = torch.nn.Sequential(
        *layers, torch.nn.AdaptiveMaxPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, 10)
    )
    optimizer = torch.optim.AdamW(network.parameters(), lr=4e-3, weight_decay=0.01)
    generator = torch.Generator().manual_seed(0)
    for _ in range(8):
        for batch in torch.randperm(len(labels), generator=generator).split(32):
            flipped = pixels[batch].flip(3) if torch.rand((), generator=generator) < 0.5 else pixels[batch]
            loss = torch.nn.functional.cross_entropy(network(flipped), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return network.eval()


def test_a_small_network_learns_the_classes_and_mean_colour_does_not_tell_them(one_thread):
    plan = plans.Plan(11, 600, 0, 0, 10, FULL)
    labels = torch.tensor([plan.label(index) for index in range(600)])
    images = np.stack([small(index, int(label)) for index, label in enumerate(labels)])
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous() - 0.5
    network = train_small_network(pixels[:450], labels[:450])
    with torch.no_grad():
        by_network = (network(pixels[450:]).argmax(1) == labels[450:]).float().mean().item()
    by_colour = accuracy_of_mean_colour(pixels[:450], labels[:450], pixels[450:], labels[450:])
    assert by_network > 0.5
    assert by_colour < 0.3 and by_colour < by_network - 0.25
