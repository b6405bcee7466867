"""Batches are a function of seed, epoch and indices, and name what they cannot make."""

import io
import itertools
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import loading_sets as sets
import numpy as np
import PIL.Image
import pytest
from given import Given

from smallfiles import formats
from smallfiles.errors import (
    FormatError,
    MissingPackageError,
    ReaderClosedError,
    ResourceError,
    SourceError,
    UsageError,
)
from smallfiles.images import CentreCrop
from smallfiles.loading.fields import BadSampleError, field_batches
from smallfiles.loading.makers import SampleRngs, allocate, nbytes

BAD = (3, 11, 12)


def images(reader, transform, seed=0, on_error="stop"):
    """Batches of pictures."""
    return field_batches(reader, transform=transform, seed=seed, on_error=on_error)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return formats.open(sets.write(sets.stub_samples(40), tmp_path_factory.mktemp("good") / "x.arrow"))


@pytest.fixture(scope="module")
def torn(tmp_path_factory):
    return formats.open(sets.write(sets.stub_samples(40, BAD), tmp_path_factory.mktemp("torn") / "x.arrow"))


@pytest.fixture(scope="module")
def captioned(tmp_path_factory):
    samples = sets.stub_samples(30, captions=True)
    return formats.open(sets.write(samples, tmp_path_factory.mktemp("captions") / "x.arrow"))


@dataclass(frozen=True)
class Failing(sets.Stub):
    """Raises an error at some samples, or in a reader wherever it reads them."""

    error: Exception | None = None
    bad: range = range(5, 6)
    reader: object = None

    def into(self, data, rng, out):
        if self.error is not None and bytes(data)[6] in self.bad:
            raise self.error
        super().into(data, rng, out)

    def __getattr__(self, name):
        return getattr(self.reader, name)

    def __len__(self):
        return len(self.reader)

    def read(self, index, field=""):
        if index in self.bad:
            raise self.error
        return self.reader.read(index, field)

    def read_fields(self, indices, fields):
        return [[self.read(index, field) for index in indices] for field in fields]


def test_a_generator_is_the_same_whatever_was_drawn_before():
    rngs = SampleRngs(seed=3, epoch=1)
    first = rngs.at(5).random(4)
    rngs.at(6).integers(0, 9, 3, dtype=np.int32)  # leaves half a word behind
    assert (rngs.at(5).random(4) == first).all()
    others = [SampleRngs(4, 1).at(5), SampleRngs(3, 2).at(5), SampleRngs(3, 1).at(6), SampleRngs(5, 3).at(1)]
    for other in others:
        assert (other.random(4) != first).all()


def test_an_image_does_not_depend_on_its_batch(good):
    maker = images(good, sets.Stub(), seed=1)
    alone = {i: maker.make([i], 2).arrays["image"][0] for i in range(40)}
    batch = maker.make([7, 3, 39, 0], 2)
    assert batch.arrays["index"].tolist() == [7, 3, 39, 0]
    assert batch.arrays["target"].tolist() == [0, 3, 4, 0]
    for row, index in enumerate([7, 3, 39, 0]):
        assert (batch.arrays["image"][row] == alone[index]).all()
        assert batch.arrays["image"][row, 0, 0].tolist() == [0, 0, index]
    for other in (maker.make([7], 3), images(good, sets.Stub(), seed=2).make([7], 2)):
        assert (other.arrays["image"][0] != alone[7]).any()


def test_threads_share_a_maker_without_mixing_pictures(good):
    maker = images(pickle.loads(pickle.dumps(good)), sets.Stub(), seed=1)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda n: maker.make(range(n, 40), 0).arrays["image"].tobytes(), range(40)))
    assert found == [maker.make(range(n, 40), 0).arrays["image"].tobytes() for n in range(40)]


def test_given_arrays_are_filled_in_place(good):
    maker = images(good, sets.Stub())
    out = allocate(maker.layout(8))
    batch = maker.make([1, 2, 3], 0, out)
    assert all(np.shares_memory(out[name], batch.arrays[name]) for name in out)
    assert len(batch) == 3
    assert all(array.flags.c_contiguous for array in batch.arrays.values())
    assert nbytes(maker.layout(8)) == 8 * sets.SIZE**2 * 3 + 2 * 64


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image": np.empty((2, 8, 8, 3), np.uint8)}, "image for a batch is uint8 .2, 8, 8, 3."),
        ({"target": np.empty(8, np.int32)}, "target for a batch is int32"),
        ({"index": None}, "index for a batch is missing"),
        ({"image": np.empty((8, 8, 9, 3), np.uint8)}, "image for a batch is uint8 .8, 8, 9, 3."),
        ({"image": np.empty((8, 8, 8), np.uint8)}, "image for a batch is uint8 .8, 8, 8.;"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_by_name(good, change, message):
    maker = images(good, sets.Stub())
    with pytest.raises(UsageError, match=message):
        maker.make(range(4), 0, allocate(maker.layout(4)) | change)


def test_a_corrupt_image_in_epoch_7_stops_the_run_with_its_key(torn):
    with pytest.raises(BadSampleError) as caught:
        images(torn, sets.Stub()).make([2, 3, 4], 7)
    assert "'d0/0003.jpg' (number 3 of " in str(caught.value)
    assert "epoch 7: ValueError: this is no image" in str(caught.value)
    assert "--on-error skip, repeat or keep" in str(caught.value)


def test_a_corrupt_image_is_left_out_and_counted(torn):
    batch = images(torn, sets.Stub(), on_error="skip").make(range(10, 15), 7)
    assert batch.arrays["index"].tolist() == [10, 13, 14]
    assert batch.arrays["image"][:, 0, 0, 2].tolist() == [10, 13, 14]
    assert len(batch) == len(batch.arrays["target"]) == 3
    assert [(fault.index, fault.key) for fault in batch.faults] == [(11, "d2/0011.jpg"), (12, "d0/0012.jpg")]


def test_a_corrupt_image_is_replaced_by_its_neighbour(torn):
    maker = images(torn, sets.Stub(), on_error="repeat")
    batch = maker.make([10, 11, 12, 13], 7)
    assert batch.arrays["index"].tolist() == [10, 10, 10, 13]
    assert batch.arrays["image"][:, 0, 0, 2].tolist() == [10, 10, 10, 13]
    assert maker.make([12, 3, 4, 5], 7).arrays["index"].tolist() == [4, 4, 4, 5]
    assert len(batch.faults) == 2


def test_what_a_damaged_photograph_still_gives_is_kept_and_counted_if_asked(tmp_path):
    """Half of it is grey below, as Pillow shows it; without being asked it stops, or is left out."""
    picture = PIL.Image.effect_noise((64, 64), 60).convert("RGB")
    out = io.BytesIO()
    picture.save(out, "JPEG")
    whole = out.getvalue()
    half = whole[: len(whole) // 2] + b"\xff\xd9"
    rows = [Given(f"{n}.jpg", half if n == 2 else whole, n) for n in range(4)]
    sets.write(rows, tmp_path / "x.arrow")
    reader = formats.open(tmp_path / "x.arrow")
    crop = CentreCrop(64, 64)
    with pytest.raises(BadSampleError, match=r"2\.jpg.*libjpeg warns"):
        images(reader, crop).make(range(4), 0)
    assert len(images(reader, crop, on_error="skip").make(range(4), 0)) == 3
    batch = images(reader, crop, on_error="keep").make(range(4), 0)
    assert batch.arrays["index"].tolist() == batch.arrays["target"].tolist() == [0, 1, 2, 3]
    with PIL.Image.open(io.BytesIO(half)) as seen:
        assert (batch.arrays["image"][2] == np.asarray(seen.convert("RGB"))).all()
    ((key, reason),) = [(fault.key, fault.reason) for fault in batch.faults]
    assert key == "2.jpg" and "libjpeg warns" in reason
    assert len(images(reader, crop, on_error="keep").make([2], 0)) == 1


@pytest.mark.parametrize("make", [partial(field_batches, transform=sets.Stub()), field_batches])
def test_of_a_batch_of_nothing_but_corrupt_samples_nothing_is_left_and_all_are_counted(good, make):
    torn = Failing(reader=good, error=ValueError("torn"), bad=BAD)
    for on_error in ("skip", "repeat"):
        batch = make(torn, on_error=on_error).make(BAD, 0)
        assert len(batch) == 0 and [fault.index for fault in batch.faults] == list(BAD)


def test_a_mistake_in_a_transform_is_not_taken_for_bad_data(good):
    with pytest.raises(TypeError) as caught:
        images(good, Failing(error=TypeError("a bug")), on_error="skip").make([5], 1)
    assert "d2/0005.jpg" in caught.value.__notes__[0]


@pytest.mark.parametrize("on_error", ["skip", "repeat", "keep"])
@pytest.mark.parametrize(
    "kind", [SourceError, UsageError, MissingPackageError, ResourceError, ReaderClosedError, None]
)
def test_an_error_that_is_no_fault_of_the_data_leaves_no_sample_out(good, kind, on_error):
    """Such as a store that does not answer."""
    error = (
        NotImplementedError() if kind is None else kind("no answer", expected="one", next_step="Run again")
    )
    for maker in (
        images(Failing(reader=good, error=error), sets.Stub(), 0, on_error),
        images(good, Failing(error=error), 0, on_error),
    ):
        with pytest.raises(type(error)) as caught:
            maker.make(range(8), 0)
        assert caught.value is error


@pytest.mark.parametrize("kind", [FormatError, OSError, ValueError, RuntimeError, SyntaxError, EOFError])
def test_what_decoders_raise_for_damaged_bytes_is_the_fault_of_the_sample(good, kind):
    error = FormatError("cut", expected="all", next_step="Copy it") if kind is FormatError else kind("cut")
    for maker in (
        images(Failing(reader=good, error=error), sets.Stub(), on_error="skip"),
        images(good, Failing(error=error), on_error="skip"),
    ):
        batch = maker.make(range(4, 8), 0)
        assert batch.arrays["index"].tolist() == [4, 6, 7]
        ((index, reason),) = [(fault.index, fault.reason) for fault in batch.faults]
        assert (index, reason) == (5, "cut" if kind is FormatError else f"{kind.__name__}: cut")


def test_keeping_what_is_damaged_still_stops_at_what_is_no_picture_or_cannot_be_read(good, torn):
    for reader in (torn, Failing(reader=good, error=ValueError("torn"), bad=BAD)):
        with pytest.raises(BadSampleError, match=r"sample 'd0/0003\.jpg'"):
            images(reader, sets.Stub(), on_error="keep").make(range(8), 0)


def test_damage_that_shows_while_reading_names_the_sample(tmp_path):
    path = sets.write(sets.stub_samples(20), tmp_path / "x.files")
    next(path.rglob("0004.jpg")).unlink()
    raw = field_batches(formats.open(path), on_error="repeat").make(range(8), 1)
    assert raw.arrays["index"].tolist() == [0, 1, 2, 3, 3, 5, 6, 7]
    with pytest.raises(BadSampleError, match=r"0004\.jpg"):
        field_batches(formats.open(path)).make(range(8), 1)


def test_raw_batches_hold_the_bytes_one_after_the_other(good):
    batch = field_batches(good).make([5, 2, 2], 0)
    data, offsets = batch.arrays["data"], batch.arrays["offsets"]
    for row, index in enumerate([5, 2, 2]):
        assert data[offsets[row] : offsets[row + 1]].tobytes() == bytes(good.read(index))
    assert batch.arrays["target"].tolist() == [5, 2, 2]
    maker = field_batches(good)
    out = allocate(maker.layout(4))
    assert np.shares_memory(maker.make([1, 2], 0, out).arrays["data"], out["data"])
    assert out["data"].size == 4 * max(good.size(index) for index in range(40))


def test_captions_come_as_text_with_their_borders_beside_the_pictures(captioned):
    batch = images(captioned, sets.Stub()).make([3, 0, 3], 0).arrays
    parts, offsets = batch["captions_parts"], batch["captions_offsets"]
    texts = [bytes(batch["captions"][a:b]).decode() for a, b in itertools.pairwise(parts)]
    found = [texts[a:b] for a, b in itertools.pairwise(offsets)]
    assert found == [captioned.target(3), captioned.target(0), captioned.target(3)]
