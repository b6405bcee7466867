import io

import numpy as np
import pytest
from pictures import by_pillow, close, difference, encoded, jpeg, pixels
from PIL import Image, ImageOps

from smallfiles import images
from smallfiles.images.decoding import stored_pixels
from smallfiles.images.picture import size_of


def as_npy(array):
    np.save(out := io.BytesIO(), array)
    return out.getvalue()


def test_pixels_in_a_file_are_read_without_a_copy():
    scaled = images.scaled_pixels(jpeg(500, 375), 256)
    data = as_npy(scaled)
    found = stored_pixels(data)
    assert (found == scaled).all() and np.shares_memory(found, np.frombuffer(data, np.uint8))
    assert (images.decode(data) == found).all() and size_of(data) == (341, 256)
    transform = images.RandomResizedCrop(64)
    png = encoded(np.ascontiguousarray(found), "PNG")
    for seed in range(5):
        rngs = np.random.default_rng(seed), np.random.default_rng(seed)
        assert (transform(data, rngs[0]) == transform(png, rngs[1])).all()


@pytest.mark.parametrize(
    ("shape", "kind"),
    [((4, 5, 3), "i1"), ((4, 5), "u1"), ((4, 5, 4), "u1"), ((0, 5, 3), "u1")],
)
def test_other_arrays_are_no_pictures(shape, kind):
    for data in (as_npy(np.zeros(shape, kind)), as_npy(np.zeros((4, 5, 3), np.uint8))[:-1]):
        assert stored_pixels(data) is None
        with pytest.raises(images.ImageError):
            images.decode(data)


def test_pixels_are_those_of_torchvision():
    from torchvision import transforms

    data = jpeg(500, 375)
    raw = images.scaled_pixels(data, 256)
    expected = np.asarray(transforms.Resize(256)(Image.fromarray(by_pillow(data))))
    assert close(raw, expected, 0.3, 5)
    again = images.decode(images.resize_ahead(data, 256, quality=95))
    assert difference(again, expected)[0] < 6


def test_the_shorter_side_gets_the_length_asked_for():
    for size, expected in (((500, 375), (256, 341)), ((375, 500), (341, 256)), ((3000, 300), (256, 2560))):
        assert images.decode(images.resize_ahead(jpeg(*size), 256)).shape[:2] == expected
        assert images.scaled_pixels(jpeg(*size), 256).shape[:2] == expected


def test_an_image_of_which_no_pixel_changes_keeps_its_bytes_and_none_is_enlarged():
    masks = pixels(200, 150)[:, :, 0] // 64
    small = [jpeg(200, 150), encoded(pixels(200, 150), "PNG"), encoded(masks, "PNG")]
    small.append(encoded(masks.astype(np.uint16) << 12, "PNG"))
    for data in small:
        assert images.resize_ahead(data, 256) == data
    assert images.scaled_pixels(small[0], 256).shape == (150, 200, 3)


def noisy(width, height, **options):
    return encoded(np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8), **options)


def flat(width, height, **options):
    return encoded(np.full((height, width, 3), 200, np.uint8), **options)


@pytest.mark.parametrize(
    "data",
    [
        encoded(np.full((300, 300), 7, np.uint8), "PNG"),
        noisy(300, 300, quality=60),  # at 90 it would be larger
        noisy(258, 258, quality=10),
        flat(300, 300, kind="PNG"),  # smaller than any JPEG
        flat(4000, 260, optimize=True, quality=50),
    ],
    ids=["grey", "60", "10", "flat PNG", "flat JPEG"],
)
def test_a_scaled_image_is_bounded_by_its_source_and_still_the_same_image(data):
    scaled = images.resize_ahead(data, 256)
    assert len(scaled) <= len(data) and scaled != data
    found, exact = images.decode(scaled), images.scaled_pixels(data, 256)
    assert found.shape == exact.shape
    blurred = [
        np.asarray(Image.fromarray(each).resize((8, 8), Image.Resampling.BOX)) for each in (found, exact)
    ]
    assert difference(*blurred)[0] < 6


def test_the_quality_goes_down_no_further_than_it_must():
    data = jpeg(500, 375)
    assert len(data) // 2 < len(images.resize_ahead(data, 370, quality=95)) <= len(data)


def test_an_image_that_nothing_makes_small_enough_is_refused():
    tiles = np.tile(np.random.default_rng(0).integers(0, 256, (26, 26), np.uint8), (10, 10))
    with pytest.raises(images.ImageError, match=r"at 256 x 256 pixels it takes [\d,]+ bytes, its source \d+"):
        images.resize_ahead(encoded(tiles, "PNG"), 256)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_all_eight_orientations_end_as_pillow_shows_them(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = jpeg(400, 300, exif=exif.tobytes())
    with Image.open(io.BytesIO(data)) as picture:
        upright = np.asarray(ImageOps.exif_transpose(picture))
    for short in (128, 300):  # the second one scales nothing
        done = images.resize_ahead(data, short)
        assert (done == data) == ((short, orientation) == (300, 1))
        pixels = images.scaled_pixels(data, short)
        with Image.open(io.BytesIO(done)) as picture:
            assert picture.getexif().get(0x0112, 1) == 1
            expected = Image.fromarray(upright).resize(picture.size, Image.Resampling.BILINEAR)
            assert (picture.width > picture.height) == (orientation < 5)
            assert difference(np.asarray(picture), np.asarray(expected))[0] < 5
            assert difference(pixels, np.asarray(expected))[0] < 5
