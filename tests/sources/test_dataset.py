"""Data sets of torchvision as sources: what is a file keeps its bytes, what is none loses nothing."""

import io
import pickle
from pathlib import Path

import datasets as hf
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Subset
from torchvision import datasets, transforms

from smallfiles import formats, pack, sources
from smallfiles.errors import ManifestError, PackError, SourceError
from smallfiles.pack import PackConfig

OUTPUTS = ("out.files", "out.arrow", "out.h5", "out.tars", "out.sqfs")


@pytest.fixture
def tree(tmp_path):
    names = ("cat/b.jpg", "cat/a.JPEG", "dog/x.y.jpg", "dog/sub/z.jpg", "emu/1.jpg")
    for seed, name in enumerate(names):
        file = tmp_path / "train" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(seed).integers(0, 256, (12, 9, 3), np.uint8)
        Image.fromarray(pixels).save(file, "JPEG", quality=60 + seed)
    return tmp_path / "train"


def packed(source, out: Path) -> formats.Reader:
    return formats.open(pack.pack(source, out, PackConfig(verify="full")).path)


def published(out: Path) -> dict[str, bytes]:
    found = out.rglob("*") if out.is_dir() else out.parent.glob(out.name + "*")
    return {path.name: path.read_bytes() for path in found if path.is_file()}


class Listed:
    """Written by hand: opens files, lists none."""

    def __init__(
        self, root: Path, names: list[str], target=lambda number: number % 3, change=lambda image: image
    ):
        self.files, self.target, self.change = [root / name for name in names], target, change

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int):
        with self.files[number].open("rb") as file:
            return self.change(Image.open(file).convert("RGB")), self.target(number)


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_image_folder_packs_as_its_tree_does_without_being_decoded(tree, tmp_path, name, monkeypatch):
    dataset = datasets.ImageFolder(tree)
    asked = []
    plain = datasets.ImageFolder.__getitem__
    monkeypatch.setattr(
        datasets.ImageFolder, "__getitem__", lambda self, number: asked.append(number) or plain(self, number)
    )
    (tmp_path / "one").mkdir(), (tmp_path / "two").mkdir()
    packed(sources.from_dataset(dataset), tmp_path / "one" / name)
    packed(sources.load(tree), tmp_path / "two" / name)
    assert published(tmp_path / "one" / name) == published(tmp_path / "two" / name)
    assert sorted(asked) == [0, 2, 4]  # a list is believed after a look at three of its samples


def test_a_subset_keeps_bytes_classes_and_its_order(tree, tmp_path):
    reader = packed(sources.from_dataset(Subset(datasets.ImageFolder(tree), [4, 0])), tmp_path / "some.arrow")
    assert list(reader.keys().to_pylist()) == ["emu/1.jpg", "cat/a.JPEG"]
    assert (reader.target(0), reader.classes) == (2, ("cat", "dog", "emu"))
    assert bytes(reader.read(1)) == (tree / "cat/a.JPEG").read_bytes()


def table(path, count=4):
    """Images of a Parquet file, as the package datasets opens it."""
    encoded = []
    for number in range(count):
        out = io.BytesIO()
        pixels = np.random.default_rng(number).integers(0, 256, (9, 7, 3), np.uint8)
        Image.fromarray(pixels).save(out, "JPEG" if number else "PNG")
        encoded.append(out.getvalue())
    kinds = hf.Features(
        {"image": hf.Image(), "label": hf.ClassLabel(names=["cat", "dog"]), "n": hf.Value("int8")}
    )
    rows = {"image": [{"bytes": each} for each in encoded], "label": [0, 1] * (count // 2), "n": [7] * count}
    hf.Dataset.from_dict(rows, features=kinds).to_parquet(path / "x.parquet")
    return encoded, hf.Dataset.from_parquet(str(path / "x.parquet"), cache_dir=str(path / "cache"))


def test_a_table_of_hugging_face_keeps_the_bytes_of_its_parquet_file(tmp_path):
    encoded, dataset = table(tmp_path)
    source = sources.from_dataset(dataset)
    reader = packed(pickle.loads(pickle.dumps(source)), tmp_path / "out.arrow")
    assert [bytes(data) for data in reader.read_many(range(4))] == encoded and source.notes == ()
    assert [Path(key).suffix for key in reader.keys().to_pylist()] == [".png", ".jpeg", ".jpeg", ".jpeg"]
    assert reader.table(["label"])["label"].to_pylist() == [0, 1, 0, 1] and reader.classes == ("cat", "dog")
    part = packed(sources.from_dataset(Subset(dataset, [3, 1])), tmp_path / "part.arrow")
    assert [bytes(data) for data in part.read_many(range(2))] == [encoded[3], encoded[1]]
    with pytest.raises(SourceError, match="has a format or transform"):
        sources.from_dataset(dataset.with_transform(lambda rows: rows))
    with pytest.raises(SourceError, match=r"the columns image \(Image\), n \(Value\), .*select_columns"):
        sources.from_dataset(dataset.select_columns(["image", "n"]).add_column("m", [1] * 4))


def test_encoded_bytes_are_kept_and_what_is_no_image_is_refused(tree, tmp_path):
    data = (tree / "cat/a.JPEG").read_bytes()
    reader = packed(sources.from_dataset(Pairs([(data, 1), (memoryview(data), 0)])), tmp_path / "x.arrow")
    assert [bytes(each) for each in reader.read_many([0, 1])] == [data, data]
    with pytest.raises(SourceError, match=r"sample 0 .* has bytes that are no image"):
        sources.from_dataset(Pairs([(b"noise", 1)]))


@pytest.mark.parametrize("name", OUTPUTS)
def test_pictures_that_are_drawn_are_stored_without_loss_and_alike_each_time(tmp_path, name):
    dataset = datasets.FakeData(7, (3, 10, 8), num_classes=4)
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        reader = packed(pickle.loads(pickle.dumps(sources.from_dataset(dataset))), tmp_path / folder / name)
    assert published(tmp_path / "one" / name) == published(tmp_path / "two" / name)
    for number in range(7):
        image, target = dataset[number]
        assert Image.open(io.BytesIO(bytes(reader.read(number)))).tobytes() == image.tobytes()
        assert reader.target(number) == target


@pytest.mark.parametrize("listed", [False, True])
def test_what_is_cut_out_of_a_file_is_stored_as_it_was_cut(tree, tmp_path, listed):
    """A file opened or listed, and something else returned: its bytes would be another picture."""
    names = ["cat/a.JPEG", "emu/1.jpg"]
    dataset = Listed(tree, names, change=lambda image: image.crop((0, 0, 5, 4)))
    if listed:
        dataset.samples = [(str(file), number) for number, file in enumerate(dataset.files)]
    source = sources.from_dataset(dataset)
    assert source.notes[0].startswith("2 pictures of 2 stored as PNG, larger than JPEG")
    reader = packed(source, tmp_path / "cut.arrow")
    assert Image.open(io.BytesIO(bytes(reader.read(1)))).tobytes() == dataset[1][0].tobytes()


class Cifar(datasets.CIFAR10):
    """CIFAR-10 with pictures of our own, which it need not load."""

    def __init__(self):
        rng = np.random.default_rng(1)
        self.data, self.targets = rng.integers(0, 256, (6, 32, 32, 3), np.uint8), [3, 1, 9, 0, 3, 2]
        self.classes, self.train = [f"class {number}" for number in range(10)], False
        self.transform = self.target_transform = None


def test_cifar_10_is_stored_with_its_classes_and_split(tmp_path):
    dataset = Cifar()
    reader = packed(sources.from_dataset(dataset, name="cifar10"), tmp_path / "cifar.h5")
    assert reader.classes == tuple(dataset.classes)
    assert reader.info()["provenance"]["schema"]["split"] == "test"
    pixels = [np.asarray(Image.open(io.BytesIO(bytes(data)))) for data in reader.read_many(range(6))]
    assert np.array_equal(np.stack(pixels), dataset.data)
    assert reader.table(["label"], range(0, 6))["label"].to_pylist() == dataset.targets


@pytest.mark.parametrize("kind", [np.uint8, np.float32, ">i2"])
def test_arrays_are_stored_as_npy_and_read_back_as_they_are(tmp_path, kind):
    arrays = np.random.default_rng(0).integers(0, 99, (3, 2, 5, 4)).astype(kind)
    reader = packed(sources.from_dataset(Pairs((each, 1) for each in arrays)), tmp_path / "out.arrow")
    assert [Path(key).suffix for key in reader.keys().to_pylist()] == [".npy"] * 3
    found = [np.load(io.BytesIO(bytes(data))) for data in reader.read_many(range(3))]
    assert np.array_equal(found, arrays) and found[0].dtype == arrays.dtype


def test_captions_travel(tmp_path):
    captions = ["word é", "two"]
    reader = packed(sources.from_dataset(Pairs([(GREY, captions)])), tmp_path / "out.arrow")
    assert reader.target(0) == captions


class Pairs(list):
    """A list of what a data set gives; exceptions are raised."""

    def __getitem__(self, number):
        item = super().__getitem__(number)
        if isinstance(item, Exception):
            raise item
        return item


GREY = np.zeros((4, 5), np.uint8)


@pytest.mark.parametrize(
    ("items", "sentence"),
    [
        ([(GREY, 1), OSError("broken")], r"sample 1 of data set Pairs cannot be read \(OSError: broken"),
        ([(GREY, 1), ValueError(), ValueError()], r"2 of 3 samples cannot be used: sample 1 .*sample 2 "),
        ([(GREY, "cat")], "sample 0 of data set Pairs has a str as target"),
        ([(GREY, 0.5)], "has a float as target"),
        ([(GREY, {"boxes": []})], "has a dict as target"),
        ([(GREY, ["one", 2])], "has a list as target"),
        ([(GREY, torch.zeros(3))], r"has a Tensor of torch.float32 \[3\] as target"),
        ([(torch.zeros(3, 4, 4), 1)], r"has a Tensor of torch.float32 \[3, 4, 4\] instead of a picture"),
        ([(np.array(["a", None], object), 1)], "has an array of object, which is not of numbers"),
        ([GREY], "sample 0 of data set Pairs is a ndarray"),
        ([(GREY, 1, 2)], "is a tuple"),
        ([(Image.new("F", (3, 3)), 1)], "is a picture of mode F, which PNG does not hold"),
    ],
)
def test_what_cannot_be_packed_is_named(items, sentence):
    with pytest.raises(SourceError, match=sentence) as caught:
        sources.from_dataset(Pairs(items))
    assert "integer label or a list of captions" in str(caught.value)


def test_transforms_are_refused(tree):
    to_tensor = transforms.ToTensor()
    with pytest.raises(SourceError, match=r"data set ImageFolder has a transform; .*in the loader"):
        sources.from_dataset(datasets.ImageFolder(tree, transform=to_tensor))
    with pytest.raises(SourceError, match="has a target_transform"):
        sources.from_dataset(Subset(datasets.ImageFolder(tree, target_transform=str), [0]))


def test_one_file_twice_is_refused_by_name(tree):
    dataset = datasets.ImageFolder(tree)
    with pytest.raises(ManifestError, match=r"cat/a\.JPEG"):
        sources.from_dataset(Subset(dataset, [0, 2, 0]))


@pytest.mark.parametrize("call", [2, 3])
def test_a_label_that_is_another_each_time_is_refused(tmp_path, call):
    class Drifting(Pairs):
        calls = 0

        def __getitem__(self, number):
            self.calls += 1
            return GREY, int(self.calls >= call)

    with pytest.raises((PackError, SourceError), match="first had the target 0 and now has 1"):
        pack.pack(sources.from_dataset(Drifting([0])), tmp_path / "x.arrow")
