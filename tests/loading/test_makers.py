"""Fields of samples in batches: equal to what other software makes of them, by every road."""

import io
import itertools
import sys
import wave
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
import torch
import torchvision.transforms.v2.functional as F
from given import Given, bare, schema_of
from PIL import Image as Pillow
from torchvision import tv_tensors

from smallfiles import formats, ring
from smallfiles.errors import FormatError, MissingPackageError, UsageError
from smallfiles.images import CentreCrop, RandomResizedCrop, RandomShortSide
from smallfiles.images.decoding import ImageError
from smallfiles.loading import (
    Array,
    Audio,
    Boxes,
    Function,
    Image,
    LoaderConfig,
    Mask,
    Ragged,
    Value,
    field_batches,
    make_loader,
)
from smallfiles.loading.fields import BadSampleError
from smallfiles.loading.makers import Item, SampleRngs, class_numbers
from smallfiles.samples import BlobField

COUNT = 40
VIEW = RandomResizedCrop(24)
FIELDS = {"image": Image(VIEW), "mask": Mask(VIEW), "boxes": Boxes(VIEW)}
VALUES = {
    "age": [number + 0.5 for number in range(COUNT)],
    "boxes": [
        [[number % 7, 2.0, 30.0 + extra, 20.0] for extra in range(number % 3)] for number in range(COUNT)
    ],
    "name": [None if number % 5 == 0 else f"é{number}" for number in range(COUNT)],
    "tags": [["x" * (number % 4), "y"][: number % 3] for number in range(COUNT)],
    "vector": [[number, number + 1, number + 2] for number in range(COUNT)],
}


def encoded(pixels, kind):
    file = io.BytesIO()
    Pillow.fromarray(pixels).save(file, kind)
    return file.getvalue()


def sample(number, rng):
    rows, columns = 40 + number % 9, 50 - number % 11
    image = encoded(rng.integers(0, 256, (rows, columns, 3), np.uint8), "JPEG")
    mask = encoded(rng.integers(0, 5, (rows, columns), np.uint8), "PNG")
    return Given(f"{number:03}.jpg", image, -1, None, (mask,), number)


def write(samples, out, values=VALUES, suffix=".png"):
    table = None if values is None else pa.table({name: pa.array(values[name]) for name in sorted(values)})
    blobs = (BlobField("mask", suffix),) if samples[0].blobs else ()
    schema = schema_of(samples, blobs=blobs, values=table)
    formats.get("arrow").write(bare(samples), out, schema=schema)
    return out


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    rng = np.random.default_rng(0)
    samples = [sample(number, rng) for number in range(COUNT)]
    return write(samples, tmp_path_factory.mktemp("fields") / "x.arrow")


def rows_of(batches):
    """The part of each sample, by its number and the name of the field."""
    found = {}
    for batch in batches:
        for row, index in enumerate(batch["index"].tolist()):
            assert index not in found
            found[index] = {
                name: np.asarray(values[slice(*batch[f"{name}_offsets"][row : row + 2].tolist())])
                if f"{name}_offsets" in batch
                else np.asarray(values[row])
                for name, values in batch.items()
                if f"{name}_parts" not in batch and not name.endswith(("_offsets", "_parts"))
            }
    return found


CONFIG = LoaderConfig(batch=16, seed=4, rank=0, world_size=1, buffer=8)


@pytest.fixture(scope="module")
def truth(path):
    return rows_of(make_loader(path, replace(CONFIG, mode="main"), fields=FIELDS))


@pytest.mark.parametrize(
    "view", [VIEW, RandomResizedCrop(57), RandomShortSide((40, 60), 32), CentreCrop(32, 24)]
)
def test_masks_and_boxes_are_those_of_torchvision_given_the_same_view(path, view):
    reader, rngs = formats.open(path), SampleRngs(4, 0)
    fields = {"image": Image(view), "mask": Mask(view), "boxes": Boxes(view)}
    batch = field_batches(reader, fields, seed=4).make(range(COUNT), 0).arrays
    for index in range(COUNT):
        mask = tv_tensors.Mask(np.array(Pillow.open(io.BytesIO(reader.blob("mask").read(index))))[None])
        size = tuple(mask.shape[1:])
        (row,) = reader.table(["boxes"], [index])["boxes"].to_pylist()
        boxes = torch.tensor(row, dtype=torch.float32).reshape(-1, 4)
        boxes = tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=size)
        seen = view.view(size[1], size[0], rngs.at(index))
        for change in (
            partial(F.crop, **dict(zip(("top", "left", "height", "width"), seen.part, strict=True))),
            partial(F.resize, size=[seen.rows, seen.columns]),
            partial(F.crop, top=seen.top, left=seen.left, height=seen.size, width=seen.size),
            F.horizontal_flip if seen.mirrored else lambda given: given,
        ):
            mask, boxes = change(mask), change(boxes)
        assert (mask[0].numpy() == batch["mask"][index]).all()
        found = batch["boxes"][slice(*batch["boxes_offsets"][index : index + 2])]
        np.testing.assert_allclose(F.clamp_bounding_boxes(boxes), found, atol=1e-3)


@pytest.mark.parametrize("order", ["random", "stream"])
@pytest.mark.parametrize(("mode", "workers"), [("threads", 2), ("processes", 2)])
def test_every_road_gives_the_same_fields_of_each_sample(path, truth, mode, workers, order):
    config = replace(CONFIG, mode=mode, workers=workers, order=order)
    found = rows_of(make_loader(path, config, fields=FIELDS))
    assert found.keys() == truth.keys()
    for index, fields in truth.items():
        assert fields.keys() == found[index].keys()
        for name, values in fields.items():
            np.testing.assert_array_equal(values, found[index][name])


def test_a_ring_gives_the_same_fields(path, truth, tmp_path):
    maker = field_batches(formats.open(path), FIELDS, seed=4)
    plan = make_loader(maker, replace(CONFIG, mode="main")).plan
    with ring.open_ring(maker, plan, ring.RingConfig(producers=1, where=tmp_path)) as loader:
        found = rows_of({name: values.clone() for name, values in batch.items()} for batch in loader)
    for index, fields in truth.items():
        for name, values in fields.items():
            np.testing.assert_array_equal(values, found[index][name])


def test_values_are_tensors_and_lists_have_offsets(path):
    batch = field_batches(formats.open(path)).make([4, 9, 5], 0).arrays
    assert batch["age"].tolist() == [4.5, 9.5, 5.5]
    assert batch["vector"].tolist() == [[4, 5, 6], [9, 10, 11], [5, 6, 7]]
    texts = [bytes(batch["name"][a:b]).decode() for a, b in itertools.pairwise(batch["name_offsets"])]
    assert texts == ["é4", "é9", ""]
    tags = [bytes(batch["tags"][a:b]).decode() for a, b in itertools.pairwise(batch["tags_parts"])]
    assert [tags[a:b] for a, b in itertools.pairwise(batch["tags_offsets"])] == [[""], [], ["x", "y"]]
    masks = [bytes(batch["mask"][a:b]) for a, b in itertools.pairwise(batch["mask_offsets"])]
    assert masks == [bytes(formats.open(path).blob("mask").read(index)) for index in (4, 9, 5)]


def test_a_missing_number_is_refused_or_has_a_stand_in(tmp_path):
    rng = np.random.default_rng(0)
    samples = [sample(number, rng) for number in range(4)]
    out = write(samples, tmp_path / "x.arrow", {"n": [1, None, 3, 4], "f": [1.0, None, 3.0, 4.0]})
    reader = formats.open(out)
    with pytest.raises(UsageError, match=r"field n has no value in 1 of 2 rows.*Value\(missing=-1\)"):
        field_batches(reader).make([0, 1], 0)
    batch = field_batches(reader, {"n": Value(missing=-1)}).make([0, 1], 0).arrays
    assert batch["n"].tolist() == [1, -1]
    assert np.isnan(batch["f"][1])


@pytest.mark.parametrize("name", ["x.tar", "x.arrow"])
@pytest.mark.parametrize("start", [0, 2])
def test_the_masks_of_a_stream_belong_to_their_images(tmp_path, name, start):
    rng = np.random.default_rng(0)
    samples = [sample(number, rng) for number in range(COUNT)]
    out = tmp_path / name
    schema = schema_of(samples, blobs=(BlobField("mask", ".png"),), values=None)
    formats.get(formats.name_of(out)).write(bare(samples), out, schema=schema)
    loader = make_loader(out, replace(CONFIG, mode="main", order="stream"), fields={"image": Ragged()})
    if start:  # as in a job that goes on
        loader.load_state_dict({**loader.state_dict(), "epoch": 0, "batch": start})
    batches = [*loader]
    rows = rows_of(batches)
    assert rows and all(bytes(row["image"]) == samples[n].data for n, row in rows.items())
    assert all(bytes(row["mask"]) == samples[n].blobs[0] for n, row in rows.items())
    assert len(rows) == COUNT - 16 * start


def test_a_mask_of_another_size_than_its_image_is_named_and_may_be_skipped(tmp_path):
    rng = np.random.default_rng(0)
    samples = [sample(number, rng) for number in range(4)]
    samples[2] = samples[2]._replace(blobs=(encoded(np.zeros((9, 9), np.uint8), "PNG"),))
    reader = formats.open(write(samples, tmp_path / "x.arrow", None))
    fields = {"image": Image(VIEW), "mask": Mask(VIEW)}
    with pytest.raises(BadSampleError, match=r"'002.jpg'.*mask has 9 x 9 pixels, and its image 48 x 42"):
        field_batches(reader, fields).make(range(4), 0)
    batch = field_batches(reader, fields, on_error="skip").make(range(4), 0)
    assert batch.arrays["index"].tolist() == [0, 1, 3]
    assert batch.arrays["mask"].shape == (3, 24, 24)


def test_a_palette_gives_class_numbers_and_a_picture_of_colours_is_refused():
    palette = Pillow.fromarray(np.array([[0, 21], [255, 1]], np.uint8), "P")
    palette.putpalette(bytes(range(256)) * 3)
    file = io.BytesIO()
    palette.save(file, "PNG")
    assert class_numbers(file.getvalue()).tolist() == [[0, 21], [255, 1]]
    with pytest.raises(ImageError, match="a mask of mode RGB"):
        class_numbers(encoded(np.zeros((2, 2, 3), np.uint8), "PNG"))


def arrays(shapes):
    for number, shape in enumerate(shapes):
        file = io.BytesIO()
        np.save(file, np.full(shape, number, np.float32))
        yield Given(f"{number}.npy", file.getvalue(), number, None, (), number)


def test_arrays_of_one_shape_go_straight_into_the_batch(tmp_path):
    reader = formats.open(write(list(arrays([(2, 3)] * 5)), tmp_path / "x.arrow", None))
    batch = field_batches(reader, {"array": Array()}).make([3, 1], 0).arrays
    assert batch["array"].shape == (2, 2, 3)
    assert batch["array"][:, 0, 0].tolist() == batch["target"].tolist() == [3, 1]


def test_an_array_of_another_shape_is_named_and_pickled_objects_are_never_loaded(tmp_path):
    reader = formats.open(write(list(arrays([(2, 3), (3, 3)])), tmp_path / "x.arrow", None))
    with pytest.raises(BadSampleError, match=r"'1.npy'.*float32 \[3, 3\]"):
        field_batches(reader, {"array": Array()}).make([0, 1], 0)
    file = io.BytesIO()
    np.save(file, np.array([{}], object), allow_pickle=True)
    objects = [Given("0.npy", file.getvalue(), 0)]
    with pytest.raises(FormatError, match=r"no array.*pickled objects"):
        field_batches(formats.open(write(objects, tmp_path / "y.arrow", None)), {"array": Array()})


def wav(values, rate=8000):
    """int16 frames x channels as a WAV file."""
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(values.shape[1])
        sound.setsampwidth(2)
        sound.setframerate(rate)
        sound.writeframes(values.astype("<i2").tobytes())
    return file.getvalue()


def heard(maker, data, seed=0):
    out = np.full(maker.shape, 9, np.float32)
    maker.of(Item(data, data, np.random.default_rng(seed)), out)
    return out


SOUND = np.random.default_rng(0).integers(-30000, 30000, (1000, 2)).astype(np.int16)


def test_a_crop_of_a_sound_holds_the_frames_of_the_file_and_its_place_is_the_samples():
    whole = SOUND.T / np.float32(32768)
    found = [heard(Audio(100, 8000, channels=2), wav(SOUND), seed) for seed in (0, 1, 0)]
    places = [int(np.flatnonzero((whole[0] == crop[0, 0]) & (whole[1] == crop[1, 0]))[0]) for crop in found]
    assert places[0] == places[2] != places[1]
    for place, crop in zip(places, found, strict=True):
        np.testing.assert_array_equal(crop, whole[:, place : place + 100])
    middle = heard(Audio(100, random=False), wav(SOUND))
    np.testing.assert_allclose(middle, whole[:, 450:550].mean(0)[None], atol=1e-7)


def test_a_short_sound_is_filled_with_zeros_and_comes_in_batches(tmp_path):
    samples = [Given(f"{n}.wav", wav(SOUND[: 40 * n + 40]), n, None, (), n) for n in range(3)]
    reader = formats.open(write(samples, tmp_path / "x.arrow", None))
    batch = field_batches(reader, {"audio": Audio(100)}).make([0, 2], 0).arrays["audio"]
    assert batch.shape == (2, 1, 100) and batch.dtype == np.float32
    np.testing.assert_allclose(batch[0, 0, :40], SOUND[:40].mean(1) / 32768, atol=1e-7)
    assert not batch[0, 0, 40:].any() and batch[1, 0, 40:].any()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (wav(SOUND, 16000), "a sound of 16000 Hz and 2 channels; expected 8000 Hz"),
        (wav(SOUND[:, :1]), "8000 Hz and 1 channel; expected 8000 Hz and 2"),
        (wav(SOUND[:0]), "the sound has no frames"),
        (wav(SOUND)[:2000], "the sound has 1956 of 4000 bytes"),
        (b"RIFF", "no sound"),
        (b"", "no sound"),
    ],
)
def test_a_sound_that_does_not_fit_is_a_sentence(data, message):
    with pytest.raises(FormatError, match=message):
        heard(Audio(100, 8000, channels=2), data)


def test_audio_needs_a_package_and_one_frame(monkeypatch):
    with pytest.raises(UsageError, match="0 frames"):
        Audio(0)
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(MissingPackageError, match=r"soundfile is not installed.*'soundfile>="):
        heard(Audio(100), wav(SOUND))


def length_and_draw(data, rng):
    return [len(data), rng.random()]


def test_a_function_of_the_user_gets_the_bytes_and_a_generator_of_the_sample(path):
    reader = formats.open(path)
    fields = {"facts": Function(length_and_draw, (2,), "float64"), "mask": None}
    first, again = (field_batches(reader, fields, seed=1).make(order, 3).arrays for order in ([5, 6], [6, 5]))
    assert first["facts"][0].tolist() == again["facts"][1].tolist()
    assert first["facts"][0, 0] == reader.size(5)
    assert "mask" not in first


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image": Image(VIEW), "masc": Mask(VIEW)}, "fields names image, masc.*of others there are mask"),
        ({"image": Image(VIEW), "age": Mask(VIEW)}, "the field age was given Mask"),
        ({"image": Image(VIEW), "mask": Value()}, "the field mask was given Value"),
        ({"image": Ragged, "boxes": Array()}, "the field boxes was given Array"),
    ],
)
def test_makers_that_do_not_fit_are_a_sentence(path, fields, message):
    with pytest.raises(UsageError, match=message):
        field_batches(formats.open(path), fields)
