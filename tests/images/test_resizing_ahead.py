import io

import numpy as np
import pytest
from pictures import by_pillow, close, difference, encoded, jpeg, pixels
from PIL import Image, ImageOps

from smallfiles import images, machine
from smallfiles.images.picture import raw_pixels
from smallfiles.samples import Sample


def _samples(count=12, broken=()):
    buffer = bytearray(1 << 20)  # used again for each sample, as packing does
    for number in range(count):
        data = jpeg(300 + number, 200, seed=number) if number not in broken else b"nothing"
        buffer[: len(data)] = data
        yield Sample(f"a/{number}.JPEG", memoryview(buffer)[: len(data)], number, {"n": number})


def test_raw_pixels_are_a_ppm_that_pillow_opens_and_transforms_read_without_a_copy():
    data = images.resize_ahead(jpeg(500, 375), 256, "raw")
    assert by_pillow(data).shape == (256, 341, 3)
    found = raw_pixels(data)
    assert (found == by_pillow(data)).all() and np.shares_memory(found, np.frombuffer(data, np.uint8))
    assert (images.decode(data) == found).all()
    transform = images.RandomResizedCrop(64)
    png = encoded(np.ascontiguousarray(found), "PNG")
    for seed in range(5):
        rngs = np.random.default_rng(seed), np.random.default_rng(seed)
        assert (transform(data, rngs[0]) == transform(png, rngs[1])).all()


def test_pixels_are_those_of_torchvision():
    from torchvision import transforms

    data = jpeg(500, 375)
    raw = images.decode(images.resize_ahead(data, 256, "raw"))
    expected = np.asarray(transforms.Resize(256)(Image.fromarray(by_pillow(data))))
    assert close(raw, expected, 0.3, 5)
    again = images.decode(images.resize_ahead(data, 256, "jpeg", quality=95))
    assert difference(again, expected)[0] < 6


def test_the_shorter_side_gets_the_length_asked_for():
    for size, expected in (((500, 375), (256, 341)), ((375, 500), (341, 256)), ((3000, 300), (256, 2560))):
        for store in ("jpeg", "raw"):
            assert images.decode(images.resize_ahead(jpeg(*size), 256, store)).shape[:2] == expected


def test_a_small_jpeg_keeps_its_bytes_and_is_never_enlarged():
    small = jpeg(200, 150)
    assert images.resize_ahead(small, 256) == small
    assert images.decode(images.resize_ahead(small, 256, "raw")).shape == (150, 200, 3)
    png = images.resize_ahead(encoded(pixels(200, 150), "PNG"), 256)
    assert png[:2] == b"\xff\xd8" and images.decode(png).shape == (150, 200, 3)


@pytest.mark.parametrize("store", ["jpeg", "raw"])
def test_samples_come_in_order_with_all_they_carry(store):
    found = list(images.resized(_samples(), 100, store))
    assert [(s.key, s.target, s.meta) for s in found] == [(f"a/{n}.JPEG", n, {"n": n}) for n in range(12)]
    for number, sample in enumerate(found):
        assert sample.data == images.resize_ahead(jpeg(300 + number, 200, seed=number), 100, store)


def test_no_more_than_a_few_samples_are_under_way(monkeypatch):
    monkeypatch.setattr(machine, "usable_cpus", lambda: 1)
    drawn = []

    def watched():
        for sample in _samples(40):
            drawn.append(sample.key)
            yield sample

    stream = images.resized(watched(), 100)
    next(stream)
    assert len(drawn) <= 8
    stream.close()
    assert len(drawn) <= 8


def test_a_bad_picture_stops_with_its_key_or_is_left_out():
    with pytest.raises(images.ImageError, match=r"a/3\.JPEG"):
        list(images.resized(_samples(broken=(3,)), 100))
    left_out = []
    found = list(
        images.resized(_samples(broken=(3, 7)), 100, on_fault=lambda key, error: left_out.append(key))
    )
    assert left_out == ["a/3.JPEG", "a/7.JPEG"] and len(found) == 10


@pytest.mark.parametrize("store", ["jpeg", "raw"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_all_eight_orientations_end_as_pillow_shows_them(orientation, store):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = jpeg(400, 300, exif=exif.tobytes())
    with Image.open(io.BytesIO(data)) as picture:
        upright = np.asarray(ImageOps.exif_transpose(picture))
    for short in (128, None):
        (done,) = images.resized([Sample("a.jpg", data, 0)], short, store)
        if short is None and orientation == 1:
            assert done.data == data
            continue
        with Image.open(io.BytesIO(done.data)) as picture:
            assert picture.getexif().get(0x0112, 1) == 1
            expected = Image.fromarray(upright).resize(picture.size, Image.Resampling.BILINEAR)
            assert (picture.width > picture.height) == (orientation < 5)
            assert difference(np.asarray(picture), np.asarray(expected))[0] < 5
