"""The pictures: natural spectrum, ImageNet's sizes, odd files, true captions, classes to be learnt."""

import io
import re
from itertools import pairwise

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from smallfiles.sources.synthetic import layouts, pictures

FULL = (500, 375)


def drawn(index: int, label: int = 0, size=FULL, seed: int = 0) -> np.ndarray:
    return pictures.draw(pictures.compose(index, label, seed, size), seed, index)


def test_sizes_are_those_of_imagenet():
    plan = pictures.SyntheticPlan(3, 300, 0, 0, 10, FULL)
    files = [plan.file_bytes(index) for index in range(300)]
    sizes = np.array([len(data) for data in files])
    assert 90_000 < sizes.mean() < 120_000
    assert 0.4 < np.log(sizes).std() < 0.6
    shapes_seen = np.array([Image.open(io.BytesIO(data)).size for data in files])
    assert np.median(shapes_seen.max(1)) == 500 and abs(np.median(shapes_seen.min(1)) - 375) < 10
    upright = (shapes_seen[:, 1] > shapes_seen[:, 0]).mean()
    assert 0.15 < upright < 0.35


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
    five = layouts.describe(scene, index, 0)
    assert len(five) == 5 and all(text.endswith(" .") and "\n" not in text for text in five)
    drawn_words = {w for t in scene.things for w in (t.look.shape, t.look.colour, t.look.core)}
    known = {*pictures.SHAPES, *pictures.COLOURS}
    for text in five:
        words = set(re.findall(r"[a-z]+", text.lower()))
        assert words & known <= drawn_words and scene.things[0].look.shape in words
    assert any(" , " in text for text in five) and any('"' in text for text in five)
    assert scene.backdrop in five[0]


def test_mean_colour_does_not_tell_the_classes():
    """Nearest neighbours (7) by mean colour; that a network learns them is tested where it is trained."""
    plan = pictures.SyntheticPlan(11, 600, 0, 0, 10, FULL)
    labels = torch.tensor([plan.label(index) for index in range(600)])
    means = [drawn(index, int(label), (250, 188), seed=11).mean((0, 1)) for index, label in enumerate(labels)]
    means = torch.tensor(np.array(means))
    nearest = torch.cdist(means[450:], means[:450]).topk(7, largest=False).indices
    votes = torch.nn.functional.one_hot(labels[:450][nearest], 10).sum(1)
    assert (votes.argmax(1) == labels[450:]).float().mean().item() < 0.3
