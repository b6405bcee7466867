import contextlib
import io
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import by_pillow, close, difference, encoded, jpeg, pixels
from PIL import Image
from torchvision.datasets.folder import pil_loader
from torchvision.io import ImageReadMode, decode_image

from smallfiles import images
from smallfiles.errors import UsageError
from smallfiles.images import picture
from smallfiles.images.crops import read_header
from smallfiles.images.picture import open_picture

RNG = np.random.default_rng(0)


@pytest.fixture(params=["parts", "whole"])
def engine(request, monkeypatch):
    """With TurboJPEG 3, and as if there were none."""
    if request.param == "whole":
        monkeypatch.setattr(picture, "library", lambda: None)
    elif picture.library() is None:
        pytest.skip("there is no TurboJPEG 3 here")
    return request.param


@pytest.mark.parametrize("options", [{}, {"subsampling": 0}, {"subsampling": 1}, {"progressive": True}])
def test_a_jpeg_decodes_to_what_pillow_makes_of_it(options):
    data = jpeg(333, 251, **options)
    assert close(images.decode(data), by_pillow(data), 0.02, 4)


def in_cmyk(width, height):
    out = io.BytesIO()
    Image.fromarray(pixels(width, height)).convert("CMYK").save(out, "JPEG", quality=95)
    return out.getvalue()


def test_what_the_fast_decoder_refuses_goes_to_pillow():
    cmyk = in_cmyk(60, 40)
    assert (images.decode(cmyk) == by_pillow(cmyk)).all()
    assert difference(images.decode(cmyk), pixels(60, 40))[0] < 12
    files = {kind: encoded(pixels(60, 40), kind) for kind in ("PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")}
    for kind, data in (files | {"grey JPEG": encoded(pixels(64, 48)[:, :, 0])}).items():
        assert (images.decode(data) == by_pillow(data)).all(), kind


def test_a_png_with_palette_and_alpha_loses_only_the_alpha():
    picture = Image.fromarray(pixels(60, 40)).quantize(64)
    picture.info["transparency"] = 3
    out = io.BytesIO()
    picture.save(out, "PNG")
    assert (images.decode(out.getvalue()) == by_pillow(out.getvalue())).all()
    rgba = np.dstack([pixels(30, 20), np.full((20, 30), 7, np.uint8)])
    assert (images.decode(encoded(rgba, "PNG")) == pixels(30, 20)).all()


def test_a_png_of_16_bits_is_scaled_and_not_cut_off():
    wide = np.arange(0, 65536, 64, dtype=np.uint16).reshape(32, 32)
    found = images.decode(encoded(wide, "PNG"))
    assert (found[:, :, 0] == wide >> 8).all()
    assert (found[:, :, 0] == found[:, :, 2]).all()


def test_garbage_before_a_marker_is_tolerated_as_pillow_does(engine):
    data = jpeg(64, 48)
    at = data.index(b"\xff\xdb")
    odd = data[:at] + b"\x00\x01\x02" + data[at:]
    with_tail = data + b"and then some"
    for each in (odd, with_tail):
        assert (images.decode(each) == images.decode(data)).all()
        whole = images.CentreCrop(48, 48)
        assert (whole(each, RNG) == whole(data, RNG)).all()


def test_broken_exif_is_no_reason_to_refuse_a_picture():
    data = jpeg(64, 48)
    block = b"Exif\0\0II*\0" + b"\xff" * 30
    odd = data[:2] + b"\xff\xe1" + struct.pack(">H", len(block) + 2) + block + data[2:]
    assert (images.decode(odd) == images.decode(data)).all()
    assert images.RandomResizedCrop(32)(odd, RNG).shape == (32, 32, 3)


def half(data):
    return data[: len(data) // 2] + b"\xff\xd9"


BAD = {
    "no bytes": b"",
    "html": b"<!DOCTYPE html><html><body>502 Bad Gateway</body></html>",
    "text": b"this is no picture",
    "start of a jpeg": b"\xff\xd8\xff",
    "start and end": b"\xff\xd8\xff\xd9",
    "header only": jpeg(200, 150)[:400],
    "half": half(jpeg(200, 150))[:-2],
    "cut png": encoded(pixels(64, 48), "PNG")[:300],
    "cut ppm": encoded(pixels(64, 48), "PPM")[:-5],
    "ppm without pixels": b"P6\n0 0\n255\n",
}

WORDS = {"html": "web page", "no bytes": "no bytes", "half": "truncated"}


@pytest.mark.parametrize("name", BAD)
def test_bytes_that_are_no_picture_give_a_sentence(name, engine):
    for call in (
        images.decode,
        lambda data: images.RandomResizedCrop(64)(data, RNG),
        lambda data: images.RandomShortSide((64, 80), 64)(data, RNG),
        lambda data: images.CentreCrop(64, 64)(data, RNG),
        images.resize_ahead,
    ):
        with pytest.raises(images.ImageError) as caught:
            call(BAD[name])
        assert "0x" not in str(caught.value) and WORDS.get(name, "") in str(caught.value)


def _bomb_png(width, height):
    def chunk(name, body):
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def test_a_picture_that_would_take_all_the_memory_is_refused_unread():
    data = bytearray(jpeg(64, 48))
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = struct.pack(">HH", 20_000, 20_000)
    for bomb in (bytes(data), _bomb_png(20_000, 20_000), _bomb_png(12_000, 9_000)):
        for call in (images.decode, lambda data: images.RandomResizedCrop()(data, RNG)):
            with pytest.raises(
                images.ImageError, match=r"has \d[\d, x]+ pixels; expected at most 100,000,000"
            ):
                call(bomb)


def test_the_smallest_pictures_work(engine):
    for width, height in ((1, 1), (1, 7), (7, 1), (2, 3), (8, 8), (17, 15)):
        for data in (jpeg(width, height), encoded(pixels(width, height), "PNG")):
            assert images.decode(data).shape == (height, width, 3)
            for transform in (images.RandomResizedCrop(8), images.RandomShortSide((9, 12), 8)):
                for seed in range(5):
                    assert transform(data, np.random.default_rng(seed)).shape == (8, 8, 3)
            assert images.CentreCrop(8, 8)(data, RNG).shape == (8, 8, 3)


@pytest.mark.parametrize("options", [{}, {"subsampling": 0}, {"subsampling": 1}, {"progressive": True}])
@given(data=st.data())
@settings(max_examples=30)
def test_a_part_is_equal_to_the_part_of_the_whole_picture(options, data):
    if picture.library() is None:
        pytest.skip("there is no TurboJPEG 3 here")
    width, height = data.draw(st.integers(1, 90)), data.draw(st.integers(1, 70))
    top, left = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    box = (top, left, data.draw(st.integers(1, height - top)), data.draw(st.integers(1, width - left)))
    encoded_bytes = jpeg(width, height, **options)
    found = picture.decode_part(encoded_bytes, read_header(encoded_bytes), images.crops.Box(*box))
    expected = images.decode(encoded_bytes)[top : top + box[2], left : left + box[3]]
    assert found is not None and found.shape == expected.shape
    assert (found == expected).all()


def test_reduced_parts_lie_where_they_should(engine, monkeypatch):
    monkeypatch.setattr("smallfiles.images.picture.REDUCING_GAP", 1.0)
    data = jpeg(640, 480)
    smooth = by_pillow(data)
    for denominator, box in ((2, (100, 150, 200, 256)), (4, (32, 64, 400, 512)), (8, (3, 5, 470, 601))):
        box = images.crops.Box(*box)
        picture = open_picture(data)
        part = picture.part(box, box.height // denominator, box.width // denominator)
        assert part.shape[:2] == (box.height // denominator, box.width // denominator)
        cut = smooth[box.top : box.top + box.height, box.left : box.left + box.width]
        small = np.asarray(Image.fromarray(cut).resize(part.shape[1::-1], Image.Resampling.BOX))
        assert difference(part, small)[0] < 20, denominator
        shifted = difference(np.roll(part, 1, 1)[:, 1:], small[:, 1:])[0]
        assert difference(part, small)[0] < shifted, denominator


def test_a_bad_picture_does_not_spoil_the_next(engine):
    good = jpeg(120, 90)
    expected = images.RandomResizedCrop(32)(good, np.random.default_rng(0))
    for bad in (good[:3] + good[9:], half(jpeg(200, 150)), good[:200] + b"\xff\xd9", BAD["start and end"]):
        with contextlib.suppress(images.ImageError):
            images.RandomResizedCrop(32)(bad, np.random.default_rng(0))
        assert (images.RandomResizedCrop(32)(good, np.random.default_rng(0)) == expected).all()


def test_threads_do_not_share_a_decoder():
    files = [jpeg(200 + 8 * n, 150, seed=n) for n in range(8)]
    transform = images.RandomResizedCrop(64)
    alone = [transform(data, np.random.default_rng(n)) for n, data in enumerate(files)]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            rngs = map(np.random.default_rng, range(8))
            assert all((a == b).all() for a, b in zip(alone, pool.map(transform, files, rngs), strict=True))


def test_any_bytes_like_is_taken_and_left_as_it_was(engine):
    data = jpeg(120, 90)
    for kind in (bytes, bytearray, lambda b: memoryview(b), lambda b: memoryview(bytearray(b))):
        given_bytes = kind(data)
        found = images.RandomResizedCrop(32)(given_bytes, np.random.default_rng(3))
        assert (found == images.RandomResizedCrop(32)(data, np.random.default_rng(3))).all()
        assert bytes(given_bytes) == data
        assert (images.decode(given_bytes) == images.decode(data)).all()


def test_damaged_jpegs_give_a_picture_or_a_sentence(engine):
    good = jpeg(96, 64)
    rng = np.random.default_rng(1)
    refused = 0
    for _ in range(300):
        damaged = bytearray(good)
        for at in rng.integers(0, len(good), rng.integers(1, 6)):
            damaged[at] = rng.integers(256)
        try:
            assert images.RandomResizedCrop(32)(bytes(damaged), rng).shape == (32, 32, 3)
        except images.ImageError:
            refused += 1
    assert 0 < refused < 300


def in_the_middle(good, seed):
    """A JPEG with random bytes in its codes, none of which looks like a marker."""
    rng = np.random.default_rng(seed)
    damaged = bytearray(good)
    at = len(good) // 2
    damaged[at : at + 40] = bytes(rng.integers(0, 255, 40, np.uint8))
    return bytes(damaged)


DAMAGED = {
    "half with an end": half(jpeg(200, 150)),
    "half of a progressive one": half(jpeg(200, 150, progressive=True)),
    "random bytes": in_the_middle(jpeg(200, 150), 0),
    "half of one in CMYK": half(in_cmyk(200, 150)),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_what_libjpeg_only_warns_of_is_an_error(name, engine):
    """Pillow opens them all without a word, with grey or wrong pixels: that is the truth tested against."""
    assert by_pillow(DAMAGED[name]).shape == (150, 200, 3)
    for call in (images.decode, lambda data: images.CentreCrop(64, 64)(data, RNG), images.resize_ahead):
        with pytest.raises(images.DamagedImageError, match="libjpeg warns"):
            call(DAMAGED[name])
    with Image.open(io.BytesIO(images.recovered(DAMAGED[name]))) as kept:
        assert (np.asarray(kept) == by_pillow(DAMAGED[name])).all()


def test_most_random_damage_is_found_and_no_good_picture_is_refused(engine):
    refused = 0
    for seed in range(60):
        good = jpeg(160, 120, seed, progressive=bool(seed % 2), subsampling=seed % 3)
        assert images.decode(good).shape == (120, 160, 3)
        try:
            images.decode(in_the_middle(good, seed))
        except images.ImageError:
            refused += 1
    assert refused >= 30  # Pillow takes nearly all; where the codes fit again by chance nothing is told


def test_zeros_before_the_end_are_padding_and_other_bytes_are_damage(engine):
    data = jpeg(64, 48)
    padded = data[:-2] + bytes(64) + b"\xff\xd9"
    assert (images.decode(padded) == images.decode(data)).all()
    with pytest.raises(images.DamagedImageError):
        images.decode(data[:-2] + b"odd bytes" + b"\xff\xd9")


@pytest.mark.parametrize("kind", [np.float32, np.int32])
def test_numbers_of_which_nothing_says_what_is_white_are_refused(kind):
    """A photograph as numbers from 0 to 1 became a black picture."""
    data = encoded((pixels(32, 32)[:, :, 0] / 255).astype(kind), "TIFF")
    for call in (images.decode, lambda data: images.CentreCrop(16, 16)(data, RNG)):
        with pytest.raises(images.ImageError, match="nothing says what is black"):
            call(data)


def test_settings_that_make_no_sense_are_refused():
    for make in (
        lambda: images.RandomResizedCrop(0),
        lambda: images.RandomResizedCrop(scale=(0.5, 0.1)),
        lambda: images.RandomResizedCrop(filter="lanczos"),
        lambda: images.RandomResizedCrop(flip=1.5),
        lambda: images.RandomShortSide((200, 300), 224),
        lambda: images.CentreCrop(200, 224),
        lambda: images.ColourJitter(-1),
        lambda: images.resize_ahead(jpeg(8, 8), 0),
    ):
        with pytest.raises(UsageError):
            make()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_ignored_as_torchvision_does(tmp_path, orientation):
    """Its loader of folders, and its decoder of tensors at its default."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    (tmp_path / "a.jpg").write_bytes(data := jpeg(40, 24, exif=exif.tobytes()))
    tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    plain = decode_image(tensor, ImageReadMode.RGB).permute(1, 2, 0).numpy()
    assert (images.decode(data) == plain).all()
    assert (images.decode(data) == np.asarray(pil_loader(tmp_path / "a.jpg"))).all()
