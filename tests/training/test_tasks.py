"""What is learned of a set: its labels, masks or numbers, or a sentence that asks which."""

import io

import numpy as np
import pyarrow as pa
import pytest
from given import Given, bare, schema_of
from PIL import Image

from smallfiles import formats, training
from smallfiles.errors import FormatError, UsageError
from smallfiles.loading import LoaderConfig
from smallfiles.samples import BlobField
from smallfiles.training.tasks import Classify, Regress, Segment, task_of

SIDE = 48


def encoded(pixels, kind):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def squares(count, seed):
    """Pictures of one bright square on noise, masks of it, and its brightness."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        pixels = rng.integers(0, 60, (SIDE, SIDE, 3), np.uint8)
        top, left = rng.integers(0, SIDE // 2, 2)
        light = int(rng.integers(120, 256))
        mask = np.zeros((SIDE, SIDE), np.uint8)
        mask[top : top + SIDE // 2, left : left + SIDE // 2] = 1
        pixels[mask == 1] = light
        yield (
            Given(f"{number}.png", encoded(pixels, "PNG"), -1, None, (encoded(mask, "PNG"),), number),
            light,
        )


def pack(path, made, blob=True, **values):
    samples = [each if blob else Given(each.key, each.data, each.target, None, (), each.row) for each in made]
    blobs = (BlobField("mask", ".png"),) if blob else ()
    schema = schema_of(samples, blobs=blobs, values=pa.table(values) if values else None)
    formats.get("arrow").write(bare(samples), path, schema=schema)
    return path


@pytest.fixture(scope="module")
def made():
    return list(squares(96, 0))


CONFIG = training.TrainConfig(
    loader=LoaderConfig(batch=16, workers=0, mode="main", rank=0, world_size=1), epochs=3, size=32
)


def test_masks_are_learned(tmp_path, made):
    path = pack(tmp_path / "x.arrow", [sample for sample, _ in made])
    done = training.train(path, path, CONFIG)
    assert done.epochs[-1].measure == "pixel accuracy"
    assert done.epochs[-1].accuracy > 0.9
    assert done.epochs[-1].loss < done.epochs[0].loss


def test_a_number_is_learned_in_its_own_unit(tmp_path, made):
    lights = [float(light) for _, light in made]
    path = pack(tmp_path / "x.arrow", [sample for sample, _ in made], blob=False, light=lights)
    done = training.train(path, path, CONFIG)
    assert done.epochs[-1].measure == "mean absolute error"
    spread = np.mean(np.abs(np.array(lights) - np.mean(lights)))
    assert done.epochs[-1].accuracy < spread  # better than always the mean


def test_what_is_learned_is_the_label_or_the_only_other_field(tmp_path, made):
    samples = [sample for sample, _ in made[:8]]
    ones = [1.0] * 8
    masks = formats.open(pack(tmp_path / "m.arrow", samples))
    numbers = formats.open(pack(tmp_path / "n.arrow", samples, False, years=ones))
    vectors = formats.open(pack(tmp_path / "v.arrow", samples, False, at=pa.array([[1.0, 2.0]] * 8)))
    labelled = [Given(each.key, each.data, 1, None, each.blobs, each.row) for each in samples]
    labels = formats.open(pack(tmp_path / "l.arrow", labelled, years=ones))
    assert isinstance(task_of(masks, masks.path), Segment)
    assert isinstance(task_of(numbers, numbers.path), Regress)
    assert task_of(vectors, vectors.path, "at").outputs == 2
    assert isinstance(task_of(labels, labels.path), Classify)
    assert isinstance(task_of(labels, labels.path, "mask"), Segment)
    both = formats.open(pack(tmp_path / "b.arrow", samples, years=ones, heights=ones))
    with pytest.raises(
        UsageError, match=r"no labels, and several fields; expected one of label, mask, .*--target"
    ):
        task_of(both, both.path)
    with pytest.raises(UsageError, match="no field 'year' to learn"):
        task_of(both, both.path, "year")


def test_a_missing_number_is_not_learned_as_one(tmp_path, made):
    samples = [sample for sample, _ in made[:8]]
    for name, years in {"null": pa.array([1.0] * 7 + [None]), "nan": pa.array([1.0] * 7 + [np.nan])}.items():
        reader = formats.open(pack(tmp_path / f"{name}.arrow", samples, False, years=years))
        with pytest.raises(FormatError, match=r"the field years .* is no finite number"):
            task_of(reader, reader.path)


def test_a_class_that_no_output_stands_for_is_refused(tmp_path, made):
    samples = [sample for sample, _ in made]
    odd = encoded(np.full((SIDE, SIDE), 7, np.uint8), "PNG")
    samples[2] = Given("2.png", samples[2].data, -1, None, (odd,), 2)  # not among those looked at
    path = pack(tmp_path / "x.arrow", samples)
    with pytest.raises(FormatError, match="a mask in mask has the class 7; expected classes from 0 to 1"):
        training.train(path, None, CONFIG)
