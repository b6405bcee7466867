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

from smallfiles.sources.synthetic import captions, encoding, noise, pictures, plans, scenes, shapes, textures

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
    return pictures.draw(scenes.compose(index, label, seed, size), seed, index)


def test_noise_and_pictures_have_the_spectrum_of_photographs():
    assert spectral_slope(noise.natural(noise.Grain(0, 1), 375, 500).astype(float)) == pytest.approx(
        -1, abs=0.35
    )
    slopes = [spectral_slope(drawn(index, index).astype(float).mean(2)) for index in range(24)]
    assert np.median(slopes) == pytest.approx(-1, abs=0.35)
    assert min(slopes) > -2 and max(slopes) < -0.5


def test_noise_treats_every_pixel_of_its_lattice_alike():
    planes = [noise.natural(noise.Grain(0, index), 64, 64).astype(float) for index in range(400)]
    spread = np.std(planes, axis=0)
    assert spread[0::2].mean() == pytest.approx(spread[1::2].mean(), rel=0.02)
    assert abs(np.mean(planes)) < 6


def test_doubling_keeps_a_flat_plane_flat_and_follows_a_slope():
    assert (noise.doubled(np.full((7, 9), 40, np.int16)) == 40).all()
    ramp = noise.doubled(np.tile(np.arange(0, 400, 40, dtype=np.int16), (6, 1)))
    assert (np.diff(ramp, axis=1) == 20).all() and ramp.shape == (8, 16)


def test_sizes_are_those_of_imagenet():
    plan = plans.Plan(3, 300, 0, 0, 10, FULL)
    files = [plans.file_bytes(plan, index) for index in range(300)]
    sizes = np.array([len(data) for data in files])
    assert 90_000 < sizes.mean() < 120_000
    assert 0.4 < np.log(sizes).std() < 0.6
    shapes_seen = np.array([Image.open(io.BytesIO(data)).size for data in files])
    assert np.median(shapes_seen.max(1)) == 500 and abs(np.median(shapes_seen.min(1)) - 375) < 10
    upright = (shapes_seen[:, 1] > shapes_seen[:, 0]).mean()
    assert 0.15 < upright < 0.35


def test_wanted_sizes_are_normal_in_the_logarithm_with_tails_to_half_a_megabyte():
    wanted = np.array([scenes.compose(i, 0, 1, FULL).target_bytes for i in range(20_000)])
    logs = np.log(wanted)
    assert 0.42 < logs.std() < 0.58
    assert np.mean(((logs - logs.mean()) / logs.std()) ** 3) == pytest.approx(0, abs=0.4)
    assert np.quantile(wanted, 0.9999) > 400_000


@pytest.mark.parametrize("index", range(6))
def test_ordinary_files_decode_alike_in_pillow_simplejpeg_and_torchvision(index):
    data = plans.file_bytes(plans.Plan(0, 20, 0, 0, 10, FULL), index)
    by_pillow = np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)
    by_simplejpeg = simplejpeg.decode_jpeg(data).astype(int)
    tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    by_torchvision = decode_image(tensor, ImageReadMode.RGB).permute(1, 2, 0).numpy().astype(int)
    assert by_pillow.shape == by_simplejpeg.shape == by_torchvision.shape
    assert np.abs(by_pillow - by_simplejpeg).mean() < 1 and np.abs(by_pillow - by_torchvision).mean() < 1


def encoded(oddity: str | None) -> bytes:
    return encoding.encode(drawn(5), 90_000, oddity)


def test_odd_files_are_odd_as_named():
    assert Image.open(io.BytesIO(encoded(None))).mode == "RGB"
    assert encoded("png").startswith(b"\x89PNG") and Image.open(io.BytesIO(encoded("png"))).mode == "RGB"
    assert Image.open(io.BytesIO(encoded("cmyk"))).mode == "CMYK"
    assert Image.open(io.BytesIO(encoded("gray"))).mode == "L"
    assert set(encoding.ODD) == {"png", "cmyk", "gray", "exif_rotated", "exif_broken"}


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
    looks = [scenes.look_of(label) for label in range(scenes.MAX_CLASSES)]
    assert len(set(looks)) == scenes.MAX_CLASSES
    assert all(not set(one) & set(other) for one, other in pairwise(looks))


@pytest.mark.parametrize("shape", scenes.SHAPES)
def test_each_shape_has_an_outline_of_its_own(shape):
    def mask(name, turn=0):
        return shapes.mask_of(scenes.Thing(name, "plain", "red", "white", 40, 40, 40, turn, 12)).astype(int)

    assert mask(shape).shape == (80, 80) and 0.15 < (mask(shape) > 127).mean() < 0.85
    for other in set(scenes.SHAPES) - {shape}:
        assert np.abs(mask(shape) - mask(other)).mean() > 12


@pytest.mark.parametrize("texture", scenes.TEXTURES)
def test_each_texture_shows_both_colours_unless_plain(texture):
    thing = scenes.Thing("disc", texture, "red", "white", 60, 60, 60, 10, 20)
    tone = textures.tone(thing)
    assert tone.shape == (120, 120) and tone.min() == 0 and tone.max() <= 256
    share = (tone > 128).mean()
    assert share == 0 if texture == "plain" else 0.1 < share < 0.9


@given(index=st.integers(0, 10**9), label=st.integers(0, 999), seed=st.integers(0, 2**40))
def test_boxes_lie_in_the_picture_and_objects_do_not_hide_each_other(index, label, seed):
    scene = scenes.compose(index, label, seed, FULL)
    first = scene.things[0]
    assert (first.shape, first.texture, first.colour) == scenes.look_of(label)
    for thing in scene.things:
        x1, y1, x2, y2 = thing.box
        assert 0 <= x1 < x2 <= scene.width and 0 <= y1 < y2 <= scene.height
    for one in scene.things:
        assert all(one is other or scenes._apart(one, other) for other in scene.things)


@given(
    index=st.integers(0, 10**6),
    label=st.integers(0, 999),
    size=st.sampled_from([(32, 32), (48, 64), (97, 61)]),
)
def test_any_scene_can_be_drawn_at_any_size(index, label, size):
    scene = scenes.compose(index, label, 0, size)
    picture = pictures.draw(scene, 0, index)
    assert picture.shape == (scene.height, scene.width, 3) and picture.dtype == np.uint8
    assert picture.std() > 4


def test_light_falls_from_the_side_that_the_scene_says():
    gains = []
    for index in range(60):
        scene = scenes.compose(index, 0, 0, (160, 120))
        picture = pictures.draw(scene, 0, index).astype(float)
        half = picture.shape[1] // 2
        gains.append(scene.light[0] * (picture[:, half:].mean() - picture[:, :half].mean()))
    assert np.mean(np.array(gains) > 0) > 0.7


@given(index=st.integers(0, 10**6), label=st.integers(0, 999))
def test_captions_say_nothing_that_is_not_drawn(index, label):
    scene = scenes.compose(index, label, 0, FULL)
    five = captions.describe(scene, index, 0)
    assert len(five) == 5 and all(text.endswith(" .") and "\n" not in text for text in five)
    drawn_words = {w for t in scene.things for w in (t.shape, t.texture, t.colour, t.second_colour)}
    known = {*scenes.SHAPES, *scenes.TEXTURES, *scenes.COLOURS, *scenes.SECOND_COLOURS}
    for text in five:
        words = set(re.findall(r"[a-z]+", text.lower())) - {scene.backdrop}
        assert words & known <= drawn_words
        assert scene.things[0].shape in words or f"large {scene.things[0].colour}" in text
    assert any(" , " in text for text in five) and any('"' in text for text in five)
    assert ("landscape" in five[0]) == bool(scene.sky)


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
    labels = torch.tensor([scenes.label_of(index, 11, 10) for index in range(600)])
    images = np.stack([small(index, int(label)) for index, label in enumerate(labels)])
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous() - 0.5
    network = train_small_network(pixels[:450], labels[:450])
    with torch.no_grad():
        by_network = (network(pixels[450:]).argmax(1) == labels[450:]).float().mean().item()
    by_colour = accuracy_of_mean_colour(pixels[:450], labels[:450], pixels[450:], labels[450:])
    assert by_network > 0.5
    assert by_colour < 0.3 and by_colour < by_network - 0.25
