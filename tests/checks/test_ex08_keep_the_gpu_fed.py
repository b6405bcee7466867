"""Bottlenecks and their cures: each known wrong answer gets its own diagnosis, every right way passes."""

import functools
import io

import numpy as np
import pytest
import torch
from PIL import Image
from telling import judged

from exercises.checks import ex08_keep_the_gpu_fed as ex08
from helpers.experiments import nb08
from smallfiles import formats, images
from smallfiles.pack import PackConfig, pack
from smallfiles.sources import load, synthetic

# Task 1


def right(stages, workers, step_s):
    if workers and sum(stages.values()) / workers <= step_s:
        return "training"
    return max(stages, key=stages.get)


def longest(stages, workers, step_s):
    return max(stages, key=stages.get)


def by_limit(limit):
    def answer(stages, workers, step_s):
        keeps_up = limit(list(stages.values()), workers, step_s)
        return "training" if keeps_up else longest(stages, workers, step_s)

    return answer


WRONG_BOTTLENECKS = [
    (longest, "no stage is too slow"),
    (lambda s, w, t: "training" if w and sum(s.values()) / w <= t else max(s), "compares names"),
    (lambda s, w, t: max(s.values()), "not the seconds"),
    (by_limit(lambda s, w, t: w and sum(s) <= t), "divide the sum"),
    (by_limit(lambda s, w, t: w and max(s) <= t), "compare their sum"),
    (by_limit(lambda s, w, t: sum(s) / w <= t), "before you divide"),
    (by_limit(lambda s, w, t: w and sum(s) / w < t), "<= and not <"),
    (lambda s, w, t: max(s), "compares names"),
    (lambda s, w, t: "training" if right(s, w, t) == "training" else list(s)[1], "another stage takes"),
    (lambda s, w, t: "GPU" if right(s, w, t) == "training" else right(s, w, t), "letter for letter"),
]


def by_sorting(stages, workers, step_s):
    name, _ = sorted(stages.items(), key=lambda pair: pair[1])[-1]
    return name if workers == 0 or sum(stages.values()) > step_s * workers else "training"


TestBottleneck = judged(ex08.bottleneck, WRONG_BOTTLENECKS, [right, by_sorting])


# Task 2


class Lazy:
    def __init__(self, disk, path):
        self.disk, self.path, self.file = disk, path, None

    def opened(self):
        if self.file is None:
            self.file = self.disk.open(self.path)
        return self.file

    def sample(self, index):
        file = self.opened()
        return bytes(file.read(index)), file.target(index)

    def __call__(self, indices):
        return [self.sample(index) for index in indices]


class Eager(Lazy):
    def __init__(self, disk, path):
        self.disk, self.path, self.file = disk, path, disk.open(path)


class EachSample(Lazy):
    def opened(self):
        return self.disk.open(self.path)


class OnTheClass(Lazy):
    handle = None

    def opened(self):
        OnTheClass.handle = OnTheClass.handle or self.disk.open(self.path)
        return OnTheClass.handle


class InMemory(Lazy):
    samples = None

    def __call__(self, indices):
        if self.samples is None:
            self.samples = [self.sample(index) for index in range(len(self.opened()))]
        return [self.samples[index] for index in indices]


class PastTheDisk(Lazy):
    def opened(self):
        return formats.open(self.path)


class LabelFirst(Lazy):
    def __call__(self, indices):
        return [(label, data) for data, label in super().__call__(indices)]


class Generating(Lazy):
    def __call__(self, indices):
        return (sample for sample in super().__call__(indices))


class Forgotten(Lazy):
    def __init__(self, disk, path):
        self.disk, self.path = disk, path


class NoCall:
    def __init__(self, disk, path):
        self.disk = disk


WRONG_READERS = [
    (Eager, "__init__ runs in the trainer"),
    (EachSample, "opened more than once"),
    (OnTheClass, "not on the class"),
    (InMemory, "140 GB of ImageNet"),
    (PastTheDisk, "nothing was opened by disk.open"),
    (LabelFirst, "bytes first"),
    (Generating, "return a list"),
    (Forgotten, "set it to None in __init__"),
    (NoCall, "__init__ and __call__"),
]


class ByCachedProperty(Forgotten):
    @functools.cached_property
    def file(self):
        return self.disk.open(self.path)


TestReader = judged(ex08.reader, WRONG_READERS, [Lazy, ByCachedProperty, nb08.GoodRead])


# Task 3


def cut(data, box):
    pixels = images.decode(data)
    return pixels[box.top : box.top + box.height, box.left : box.left + box.width]


def scaled(pixels, size):
    out = np.empty((size, size, 3), np.uint8)
    images.resize(pixels, out)
    return out


def picture(data, box, size):
    return scaled(cut(data, box), size)


def by_pillow(data, box, size):
    with Image.open(io.BytesIO(data)) as opened:
        edges = (box.left, box.top, box.left + box.width, box.top + box.height)
        return np.array(opened.convert("RGB").crop(edges).resize((size, size), Image.Resampling.BILINEAR))


def whole_in_bytes(data, box, size):
    pixels = images.decode(data)
    factor = size / box.width
    whole = np.empty((round(pixels.shape[0] * factor), round(pixels.shape[1] * factor), 3), np.uint8)
    images.resize(pixels, whole)
    left, top = round(box.left * factor), round(box.top * factor)
    return whole[top : top + size, left : left + size].copy()


def as_given(data, box, size):
    floats = torch.from_numpy(images.decode(data)).permute(2, 0, 1).float() / 255
    scale = size / box.height
    shape = [round(scale * side) for side in floats.shape[1:]]
    whole = torch.nn.functional.interpolate(floats[None], shape, mode="bilinear", antialias=True)[0]
    top, left = round(scale * box.top), round(scale * box.left)
    view = whole[:, top : top + size, left : left + size]
    return (255 * view).round().byte().permute(1, 2, 0).numpy()


def rows_as_columns(data, box, size):
    pixels = images.decode(data)
    return scaled(pixels[box.left : box.left + box.width, box.top : box.top + box.height], size)


def ends_as_sizes(data, box, size):
    return scaled(images.decode(data)[box.top : box.height, box.left : box.width], size)


def one_array():
    out = np.empty((ex08.SIZE, ex08.SIZE, 3), np.uint8)

    def answer(data, box, size):
        images.resize(cut(data, box), out)
        return out

    return answer


WRONG_PICTURES = [
    (as_given, "floats of a whole picture"),
    (lambda d, b, s: picture(d, b, s).astype(np.float32) / 255, "four times the bytes"),
    (whole_in_bytes, "as if the whole picture is scaled"),
    (lambda d, b, s: torch.from_numpy(picture(d, b, s)), "return an array of numpy"),
    (lambda d, b, s: picture(d, b, s).transpose(2, 0, 1), "channels come last"),
    (lambda d, b, s: cut(d, b), "not scaled"),
    (lambda d, b, s: scaled(images.decode(d), s), "whole picture squeezed"),
    (rows_as_columns, "rows come first"),
    (ends_as_sizes, "not the end"),
    (one_array(), "all calls fill one array"),
]


TestPicture = judged(ex08.picture, WRONG_PICTURES, [picture, by_pillow, nb08.good_picture])


# Task 4


def stacked(pictures):
    return torch.from_numpy(np.stack(pictures))


def with_image(change, dtype=torch.int64):
    return lambda pictures, labels: {"image": change(pictures), "target": torch.tensor(labels, dtype=dtype)}


collate = with_image(stacked)


def collate_c(pictures, labels):
    found = [images.normalise(picture[None])[0].tolist() for picture in pictures]
    return {"image": torch.tensor(found), "target": torch.tensor(labels)}


WRONG_BATCHES = [
    (collate_c, "4 bytes for one"),
    (with_image(lambda p: stacked(p).permute(0, 3, 1, 2)), "channels stay last"),
    (with_image(lambda p: torch.from_numpy(np.concatenate(p))), "the first axis counts"),
    (with_image(lambda p: stacked(p) // 2), "only puts the views together"),
    (with_image(lambda p: [torch.from_numpy(each) for each in p]), "one tensor"),
    (with_image(stacked, torch.int32), "int64 only"),
    (with_image(lambda p: torch.tensor(np.stack(p).tolist(), dtype=torch.uint8)), "objects of Python"),
]


def by_torch(pictures, labels):
    image = torch.stack([torch.from_numpy(picture) for picture in pictures])
    return {"target": torch.as_tensor(labels), "image": image}


def filled(pictures, labels):
    image = torch.empty((len(pictures), *pictures[0].shape), dtype=torch.uint8)
    for place, picture in enumerate(pictures):
        image[place] = torch.from_numpy(picture)
    return {"image": image, "target": torch.tensor(labels)}


TestCollate = judged(ex08.collate, WRONG_BATCHES, [collate, by_torch, filled, nb08.good_collate])


# All


class StubReader(Lazy):
    def __call__(self, indices):
        raise NotImplementedError


def test_a_reader_that_is_a_stub_is_not_started():
    assert ex08.reader(StubReader).state == "not started"


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("practice")
    synthetic.make(folder / "set", "folder", count=20, classes=2)
    pack(load(folder / "set"), folder / "train.arrow", PackConfig())
    return folder / "train.arrow"


@pytest.mark.parametrize(
    ("given", "floats", "copied"),
    [({}, 0, False), ({"picture": as_given}, 1, False), ({"collate": collate_c}, 1, True)],
)
def test_each_given_loader_works_more_than_the_cured_one(given, floats, copied, packed, monkeypatch):
    """How long work takes differs from machine to machine, how much it is does not."""
    monkeypatch.setattr(nb08, "SIDE", 112)  # a quarter of the numbers, which are traced one by one
    with ex08.measured() as work:
        nb08.follow(packed, **given)
    assert min(work.floats, 1) == floats
    assert (work.peak_bytes > 20 * nb08.BATCH * 3 * nb08.SIDE**2) == copied


def test_a_loader_that_opens_for_each_sample_waits_for_the_disk_each_time(packed):
    assert nb08.follow(packed, read=EachSample)["read"] >= nb08.BATCH * nb08.Disk().open_s
