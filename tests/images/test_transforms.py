import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pictures import by_pillow, close, difference, encoded, jpeg, pixels
from PIL import Image
from scipy import stats
from torchvision import transforms as tv
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from smallfiles import images
from smallfiles.images import crops
from smallfiles.images.picture import open_picture

SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
ALL = [
    images.RandomResizedCrop(64),
    images.RandomResizedCrop(64, filter="linear", jitter=images.ColourJitter()),
    images.RandomShortSide((70, 100), 64),
    images.RandomShortSide((70, 100), 64, jitter=images.ColourJitter()),
    images.CentreCrop(70, 64),
]


# PyTorch scales bytes in whole numbers only where the processor has AVX2, elsewhere in float32.
ROUNDING = 0.3


def _tensor(array):
    return torch.from_numpy(np.array(array)).permute(2, 0, 1)


def _array(tensor):
    return tensor.permute(1, 2, 0).numpy()


@pytest.mark.parametrize("transform", ALL, ids=repr)
def test_a_transform_is_a_function_of_bytes_and_generator_whatever_the_threads_of_pytorch(transform):
    data = jpeg(150, 110)
    again = pickle.loads(pickle.dumps(transform))
    assert again == transform and hash(again) == hash(transform)
    found = transform(data, np.random.default_rng(7))
    assert found.shape == transform.shape and found.dtype == transform.dtype
    assert (found == again(data, np.random.default_rng(7))).all()
    batch = np.zeros((3, *transform.shape), transform.dtype)
    transform.into(data, np.random.default_rng(7), batch[1])
    assert (batch[1] == found).all() and not batch[0].any() and not batch[2].any()
    drawn, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            drawn.append([transform(data, np.random.default_rng(seed)).tobytes() for seed in range(20)])
    finally:
        torch.set_num_threads(before)
    assert drawn[0] == drawn[1] and len(set(drawn[0])) >= (
        1 if isinstance(transform, images.CentreCrop) else 19
    )


@pytest.mark.parametrize("seed", range(12))
def test_random_resized_crop_equals_torchvision_for_the_same_box(seed):
    data = jpeg(500, 375, seed)
    transform = images.RandomResizedCrop(flip=0.5)
    found = transform(data, np.random.default_rng(seed))
    rng = np.random.default_rng(seed)
    box = transform.box(500, 375, rng)
    mirrored = rng.random() < 0.5
    expected = F.resized_crop(_tensor(by_pillow(data)), *box, [224, 224], antialias=True)
    expected = _array(F.horizontal_flip(expected) if mirrored else expected)
    assert close(found, expected, 0.3, 4)  # decoders; the filters alone are within 1
    own = images.decode(data)[box.top : box.top + box.height, box.left : box.left + box.width]
    expected = F.resize(_tensor(own), [224, 224], antialias=True)
    expected = _array(F.horizontal_flip(expected) if mirrored else expected)
    assert close(found, expected, ROUNDING, 1)


@pytest.mark.parametrize("size", [(500, 375), (375, 500), (256, 256), (333, 1000), (260, 257), (225, 224)])
def test_centre_crop_equals_torchvision(size):
    data = jpeg(*size)
    found = images.CentreCrop()(data, np.random.default_rng(0))
    recipe = tv.Compose([tv.Resize(256), tv.CenterCrop(224)])
    expected = np.asarray(recipe(Image.fromarray(by_pillow(data))))
    assert close(found, expected, 0.3, 5)
    same = tv.Compose([v2.Resize(256, antialias=True), v2.CenterCrop(224)])(_tensor(images.decode(data)))
    assert close(found, _array(same), ROUNDING, 1)


def test_the_linear_filter_equals_torchvision_without_antialiasing():
    array = pixels(300, 200)
    out = np.empty((224, 224, 3), np.uint8)
    images.resize(array, out, "linear")
    expected = F.resize(_tensor(array), [224, 224], antialias=False)
    assert close(out, _array(expected), ROUNDING, 1)


def test_short_side_shows_what_resizing_the_whole_picture_would():
    data = jpeg(500, 375)
    transform = images.RandomShortSide((300, 300), flip=0.0)
    for seed in range(8):
        found = transform(data, np.random.default_rng(seed))
        rng = np.random.default_rng(seed)
        box = transform.box(500, 375, rng)
        whole = F.resize(_tensor(images.decode(data)), [300, 400], antialias=True)
        top, left = round(box.top * 300 / 375), round(box.left * 400 / 500)
        expected = whole[:, top : top + 224, left : left + 224]
        assert difference(found, _array(expected))[0] < 6  # half a pixel of position


def test_decoding_at_reduced_size_loses_little():
    data = jpeg(2000, 1500)
    for seed in range(3):
        box = crops.random_resized(2000, 1500, np.random.default_rng(seed), (0.9, 1.0), RATIO)
        found, exact = np.empty((2, 224, 224, 3), np.uint8)
        images.resize(open_picture(data).part(box, 224, 224), found)
        images.resize(open_picture(data).part(box, *box[2:]), exact)
        assert difference(found, exact)[0] <= 3


def _ours(count, width, height, seed=0, scale=SCALE, ratio=RATIO):
    rng = np.random.default_rng(seed)
    return np.array([crops.random_resized(width, height, rng, scale, ratio) for _ in range(count)])


def _theirs(count, width, height, scale=SCALE, ratio=RATIO):
    torch.manual_seed(0)
    picture = torch.empty(3, height, width)
    crop = tv.RandomResizedCrop
    return np.array([crop.get_params(picture, list(scale), list(ratio)) for _ in range(count)])


@pytest.mark.parametrize("size", [(500, 375), (200, 600), (40, 40), (900, 100), (3, 50)])
def test_crops_are_distributed_as_those_of_torchvision(size):
    ours, theirs = _ours(4000, *size), _theirs(4000, *size)
    for measure in (
        lambda b: b[:, 2] * b[:, 3],
        lambda b: np.log(b[:, 3] / b[:, 2]),
        lambda b: b[:, 0],
        lambda b: b[:, 1],
    ):
        assert stats.ks_2samp(measure(ours), measure(theirs)).pvalue > 0.005


@given(width=st.integers(1, 3000), height=st.integers(1, 3000), seed=st.integers(0, 2**32 - 1))
def test_boxes_lie_inside(width, height, seed):
    rng = np.random.default_rng(seed)
    for box in (
        crops.random_resized(width, height, rng, SCALE, RATIO),
        crops.random_square(width, height, rng, 224 / 256),
        crops.random_square(width, height, rng, 1.0),
    ):
        assert box.height > 0 and box.width > 0 and box.top >= 0 and box.left >= 0
        assert box.top + box.height <= height and box.left + box.width <= width


@pytest.mark.parametrize("size", [(5000, 10), (10, 5000), (1, 2000), (2000, 1)])
def test_extreme_shapes_fall_back_as_torchvision_does(size):
    impossible = (0.9, 1.0)
    assert tuple(_ours(1, *size, scale=impossible)[0]) == tuple(_theirs(1, *size, scale=impossible)[0])


def test_short_sides_and_positions_are_uniform():
    transform = images.RandomShortSide()
    rng = np.random.default_rng(0)
    boxes = np.array([transform.box(640, 480, rng) for _ in range(4000)])
    sides = 224 * 480 / boxes[:, 2]
    assert stats.kstest(sides, stats.uniform(256, 224).cdf).pvalue > 0.005
    positions = boxes[:, 1] / (640 - boxes[:, 3])
    assert stats.kstest(positions, stats.uniform().cdf).pvalue > 0.005


def test_half_of_the_pictures_are_mirrored():
    data = encoded(pixels(64, 64), "PPM")
    transform = images.RandomResizedCrop(64, scale=(1.0, 1.0), ratio=(1.0, 1.0))
    straight = images.decode(data)
    found = [transform(data, np.random.default_rng(seed)) for seed in range(400)]
    mirrored = sum((each == straight[:, ::-1]).all() for each in found)
    assert mirrored + sum((each == straight).all() for each in found) == 400
    assert 160 < mirrored < 240


@pytest.mark.parametrize("kind", ["brightness", "contrast", "saturation"])
def test_each_change_of_colour_equals_torchvision(kind):
    mild = pixels(64, 48) // 2 + 50  # nothing is cut off
    strengths = {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0} | {kind: 0.2}
    jitter = images.ColourJitter(**strengths)
    found = mild.copy()
    jitter.apply(found, np.random.default_rng(5))
    rng = np.random.default_rng(5)
    rng.permutation(3)
    factor = rng.uniform(0.8, 1.2)
    expected = getattr(F, f"adjust_{kind}")(_tensor(mild), factor)
    assert close(found, _array(expected), 1.0, 2)


def test_normalise_equals_torchvision_on_tensors_and_arrays():
    batch = np.stack([pixels(32, 24, seed) for seed in range(3)])
    tensors = images.normalise(torch.from_numpy(batch))
    assert tensors.shape == (3, 3, 24, 32) and tensors.dtype == torch.float32
    recipe = v2.Compose(
        [v2.ToDtype(torch.float32, scale=True), v2.Normalize(images.IMAGENET_MEAN, images.IMAGENET_STD)]
    )
    expected = recipe(torch.from_numpy(batch).permute(0, 3, 1, 2))
    assert torch.allclose(tensors, expected, atol=1e-5)
    arrays = images.normalise(batch)
    assert arrays.dtype == np.float32 and np.allclose(arrays, expected, atol=1e-5)
