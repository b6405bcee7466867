"""`PackedFolder` gives what torchvision's `ImageFolder` gives, for every format and every way to read."""

import copy
import io
import pickle
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from smallfiles import PackedFolder
from smallfiles.cli import main
from smallfiles.errors import SmallfilesError, UsageError

torch = pytest.importorskip("torch", reason="torch is not installed")
torchvision = pytest.importorskip("torchvision", reason="torchvision is not installed")

from torch.utils.data import DataLoader, Subset, WeightedRandomSampler, default_collate, random_split  # noqa: E402
from torchvision.datasets import ImageFolder  # noqa: E402
from torchvision.datasets.folder import default_loader, pil_loader  # noqa: E402
from torchvision.transforms import functional  # noqa: E402

OUTPUTS = ["x.arrow", "x.h5", "x.tars", "x.tar", "x.sqfs", "x.files", "x.lmdb"]


def save_pictures(folder):
    """Pictures of every kind that Pillow writes, in three classes."""
    pixels = np.random.default_rng(0).integers(0, 256, (24, 32, 3), np.uint8)
    plain = Image.fromarray(pixels)
    turned = Image.Exif()
    turned[0x0112] = 6
    deep = Image.fromarray(pixels[:, :, 0].astype(np.uint16) * 250)
    clear = Image.new("P", (16, 16), 3)
    clear.putpalette([*range(48)])
    pictures = {
        "ant/a.jpg": (plain, {"quality": 90}),
        "ant/turned.jpg": (plain, {"exif": turned}),
        "ant/grey.JPEG": (plain.convert("L"), {}),
        "bee/four inks.jpg": (plain.convert("CMYK"), {}),
        "bee/deep.png": (deep, {}),
        "bee/palette.png": (clear, {"transparency": 3}),
        "cat/alpha.png": (plain.convert("RGBA"), {}),
        "cat/one bit.png": (plain.convert("1"), {}),
        "cat/w.webp": (plain, {"quality": 80}),
        "cat/t.tiff": (plain, {}),
        "cat/b.bmp": (plain, {}),
    }
    for name, (picture, options) in pictures.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.save(path, **options)
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder of pictures, and packed files of it in every format."""
    place = tmp_path_factory.mktemp("my sets")
    save_pictures(place / "images")
    for name in OUTPUTS:
        assert main(["pack", str(place / "images"), str(place / name)]) == 0
    return place


@pytest.fixture(params=OUTPUTS)
def pair(place, request):
    """`ImageFolder` and `PackedFolder` of the same samples."""
    return ImageFolder(str(place / "images")), PackedFolder(str(place / request.param))


@pytest.fixture
def folder(place):
    return ImageFolder(str(place / "images"))


@pytest.fixture
def packed(place):
    return PackedFolder(place / "x.arrow")


def relative(data, samples):
    return [(path.removeprefix(f"{data.root}/"), target) for path, target in samples]


def tensors(image):
    return functional.pil_to_tensor(image.resize((8, 8)))


def test_pixels_labels_and_classes_are_those_of_image_folder(pair):
    theirs, ours = pair
    assert len(ours) == len(theirs) == 11
    assert ours.classes == theirs.classes and ours.class_to_idx == theirs.class_to_idx
    assert sorted(relative(ours, ours.samples)) == sorted(relative(theirs, theirs.samples))
    at = {path: number for number, (path, _) in enumerate(relative(theirs, theirs.samples))}
    for number, (path, _) in enumerate(relative(ours, ours.samples)):
        image, label = ours[number]
        expected, wanted = theirs[at[path]]
        assert label == wanted == ours.targets[number] and type(label) is int
        assert image.mode == expected.mode == "RGB" and image.tobytes() == expected.tobytes(), path


@pytest.mark.parametrize("output", ["x.arrow", "x.h5", "x.sqfs", "x.files"])
def test_the_order_is_that_of_image_folder(place, output):
    theirs, ours = ImageFolder(str(place / "images")), PackedFolder(str(place / output))
    assert relative(ours, ours.samples) == relative(theirs, theirs.samples)


@pytest.mark.parametrize("index", [0, 10, -1, -11, np.int64(3), np.uint8(2), torch.tensor(4), True])
def test_an_index_means_what_it_means_for_a_list(folder, packed, index):
    assert packed[index][1] == folder[index][1]
    assert packed[index][0].tobytes() == folder[index][0].tobytes()
    assert packed.targets[index] == folder.targets[index]
    assert packed.samples[index][1] == folder.samples[index][1]


@pytest.mark.parametrize("index", [11, -12, 10**9])
def test_an_index_out_of_range_is_an_index_error(packed, index):
    for sequence in (packed, packed.targets, packed.samples):
        with pytest.raises(IndexError):
            sequence[index]
    assert len(list(packed)) == 11


@pytest.mark.parametrize("index", [1.0, "a", None, slice(0, 2)])
def test_what_is_not_an_index_is_refused(packed, index):
    with pytest.raises(TypeError):
        packed[index]


def test_targets_and_samples_are_used_as_lists(folder, packed):
    theirs, ours = folder.targets, packed.targets
    assert ours == theirs and ours != theirs[:-1] and theirs == ours[:] and not isinstance(ours, list)
    assert list(ours) == theirs and [*reversed(ours)] == theirs[::-1] and 2 in ours and 7 not in ours
    for part in (
        slice(None),
        slice(2, 5),
        slice(None, None, -1),
        slice(-3, None),
        slice(9, 2, -2),
        slice(5, 5),
    ):
        assert ours[part] == theirs[part]
        assert relative(packed, packed.samples[part]) == relative(folder, folder.samples[part])
    nine = [9]
    assert ours + nine == [*theirs, 9] and nine + ours == [9, *theirs] and ours + ours == theirs + theirs
    assert (ours.index(1), ours.count(2), max(ours)) == (theirs.index(1), theirs.count(2), 2)
    assert Counter(ours) == Counter(theirs)
    assert np.asarray(ours).tolist() == theirs and np.array(ours, np.int8).dtype == np.int8
    assert torch.tensor(ours).tolist() == theirs and torch.as_tensor(ours).dtype == torch.int64
    assert np.bincount(ours).tolist() == [3, 3, 5] and (np.asarray(ours) == 2).sum() == 5
    assert packed.imgs is packed.samples and len(packed.imgs) == 11
    assert [*zip(*packed.samples, strict=True)][1] == tuple(theirs)
    assert "11" not in repr(ours) and "8 more" in repr(ours)


def test_samplers_subsets_and_splits_take_it(folder, packed):
    weights = 1 / np.bincount(packed.targets)[np.asarray(packed.targets)]
    sampler = WeightedRandomSampler(weights, 30)
    assert len([*DataLoader(packed, sampler=sampler, collate_fn=list)]) == 30
    subset = Subset(packed, [3, 1, 8])
    assert [label for _, label in subset] == [folder.targets[number] for number in (3, 1, 8)]
    halves = [random_split(data, [0.5, 0.5], torch.Generator().manual_seed(0)) for data in (folder, packed)]
    assert [half.indices for half in halves[0]] == [half.indices for half in halves[1]]
    both = packed + packed
    assert len(both) == 22 and both[-1][1] == 2
    assert np.unique(packed.targets, return_counts=True)[1].tolist() == [
        3,
        3,
        5,
    ]  # as a stratified split does


WORKERS = [
    ("x.arrow", None),
    *((name, "fork") for name in OUTPUTS),
    ("x.arrow", "spawn"),
    ("x.sqfs", "forkserver"),
]


@pytest.mark.parametrize(("output", "method"), WORKERS)
def test_every_kind_of_worker_gives_the_same_batches(place, output, method):
    ours = PackedFolder(place / output, tensors, int)
    expected = [default_collate([ours[n] for n in rows]) for rows in ([0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10])]
    workers = 0 if method is None else 2 if method == "fork" else 1
    loader = DataLoader(ours, 4, num_workers=workers, multiprocessing_context=method)
    for (images, labels), (images_wanted, labels_wanted) in zip(loader, expected, strict=True):
        assert torch.equal(images, images_wanted) and torch.equal(labels, labels_wanted)


def test_threads_and_copies_read_at_once(packed):
    expected = [(image.tobytes(), label) for image, label in packed]
    with ThreadPoolExecutor(8) as pool:
        found = [*pool.map(lambda n: packed[n % 11], range(220))]
    assert [(image.tobytes(), label) for image, label in found] == expected * 20
    for other in (pickle.loads(pickle.dumps(packed)), copy.copy(packed), copy.deepcopy(packed)):
        assert [(image.tobytes(), label) for image, label in other] == expected
        assert other.samples == packed.samples and other.loader(packed.samples[3][0]).size


def test_a_batch_is_what_single_samples_are(pair):
    _, ours = pair
    rows = [3, -1, 0, 3]
    singles = [(image.tobytes(), label) for image, label in map(ours.__getitem__, rows)]
    assert [(image.tobytes(), label) for image, label in ours.__getitems__(rows)] == singles
    with pytest.raises(IndexError):
        ours.__getitems__([0, 11])


def test_a_class_of_a_program_keeps_its_own_getitem(place):
    class Numbered(PackedFolder):
        def __getitem__(self, index):
            return (*super().__getitem__(index), index)

    data = Numbered(place / "x.arrow", tensors)
    assert [numbers.tolist() for *_, numbers in DataLoader(data, 4)] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10],
    ]


def test_loader_takes_the_paths_of_samples(folder, packed):
    for (path, _), (theirs, _) in zip(packed.samples, folder.samples, strict=True):
        assert packed.loader(path).tobytes() == folder.loader(theirs).tobytes()
        assert (
            packed.loader(str(path)).tobytes()
            == packed.loader(path.removeprefix(f"{packed.root}/")).tobytes()
        )
    with pytest.raises(UsageError, match=r"no sample 'dog/1\.jpg'.*smallfiles inspect"):
        packed.loader("dog/1.jpg")


def test_paths_of_one_set_do_not_name_other_samples_of_another(tmp_path, place, packed):
    assert main(["pack", str(place / "images"), str(tmp_path / "y.tars"), "--shuffle", "3"]) == 0
    other = PackedFolder(tmp_path / "y.tars")
    for path, _ in packed.samples:
        key = path.removeprefix(f"{packed.root}/")
        path = type(path)(f"{other.root}/{key}")
        path.row = 0
        assert other.loader(path).tobytes() == packed.loader(key).tobytes()


@pytest.mark.parametrize("loader", [default_loader, pil_loader, lambda path: Image.open(path).convert("RGB")])
def test_a_loader_of_the_program_gets_a_path_that_it_can_open(place, folder, loader):
    data = PackedFolder(place / "x.arrow", None, None, loader)
    assert [data[n][0].tobytes() for n in range(11)] == [folder[n][0].tobytes() for n in range(11)]
    later = PackedFolder(place / "x.arrow")
    later.loader = lambda path: Path(path).read_bytes()
    assert later[0][0] == (place / "images/ant/a.jpg").read_bytes() == later.loader(later.samples[0][0])


def test_samples_that_a_program_assigns_are_what_is_read(packed, folder):
    for data in (packed, folder):
        data.samples = [(path, 7) for path, label in data.samples if label == 2]
    assert len(packed) == len(folder) == 5
    assert [(image.tobytes(), label) for image, label in packed] == [
        (i.tobytes(), label) for i, label in folder
    ]
    assert [label for _, label in packed.__getitems__([0, 4])] == [7, 7]
    again = pickle.loads(pickle.dumps(packed))
    assert len(again) == 5 and again[0][1] == 7


def test_transforms_are_attributes_that_can_be_changed(place, packed):
    data = PackedFolder(place / "x.arrow", transform=tensors, target_transform=lambda label: -label)
    assert data[10][0].shape == (3, 8, 8) and data[10][1] == -2
    standard = type(ImageFolder(str(place / "images"), tensors).transforms)
    assert isinstance(data.transforms, standard) and packed.transforms is None
    packed.transform = tensors
    assert packed[0][0].shape == (3, 8, 8)
    joint = PackedFolder(place / "x.arrow", transforms=lambda image, label: (image.size, label + 1))
    assert joint[10] == ((32, 24), 3) and joint.__getitems__([10]) == [joint[10]]
    with pytest.raises(UsageError, match="together with transform"):
        PackedFolder(place / "x.arrow", tensors, transforms=tensors)
    for word in ("PackedFolder", "Number of datapoints: 11", "x.arrow", "tensors"):
        assert word in repr(data)


def test_classes_that_a_program_chooses_are_refused_not_ignored(place):
    class Few(PackedFolder):
        def find_classes(self, directory):
            return ["ant"], {"ant": 0}

    with pytest.raises(UsageError, match="chooses 1 classes"):
        Few(place / "x.arrow")


# Targets that are no class


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Images with a mask in palette mode, a depth as an array, a number and boxes."""
    place = tmp_path_factory.mktemp("pairs")
    rows = []
    for number in range(6):
        for name in ("images", "masks", "depth"):
            (place / "set" / name).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 10 + number), (number, 9, 9)).save(place / f"set/images/{number}.png")
        mask = Image.new("P", (20, 10 + number), number)
        mask.putpalette([*range(30)])
        mask.save(place / f"set/masks/{number}.png")
        np.save(place / f"set/depth/{number}.npy", np.full((2, 3), number, np.float32))
        rows.append(f"images/{number}.png,masks/{number}.png,depth/{number}.npy,{number / 4}")
    (place / "set/t.csv").write_text("image,mask,depth,score\n" + "\n".join(rows) + "\n")
    words = ["--field", "image=image", "--field", "mask=mask", "--field", "depth=depth"]
    for name in ("m.arrow", "m.h5", "m.tars", "m.sqfs", "m.files"):
        assert main(["pack", str(place / "set/t.csv"), str(place / name), *words]) == 0
    return place


@pytest.mark.parametrize("name", ["m.arrow", "m.h5", "m.tars", "m.sqfs", "m.files"])
def test_masks_and_other_fields_are_the_target(pairs, name):
    data = PackedFolder(pairs / name, fields="mask")
    order = [int(key.rpartition("/")[2].partition(".")[0]) for key in data.reader.keys().to_pylist()]
    assert len(data) == 6 and not hasattr(data, "targets") and not hasattr(data, "samples")
    for number, (image, mask) in zip(order, data, strict=True):
        assert (image.mode, mask.mode) == ("RGB", "P") and image.size == mask.size == (20, 10 + number)
        assert np.unique(np.asarray(mask)).tolist() == [number]
    several = PackedFolder(pairs / name, fields=("mask", "depth", "score"))
    mask, depth, score = several[-1][1]
    assert (mask.mode, depth.shape, score) == ("P", (2, 3), order[-1] / 4) and (depth == order[-1]).all()
    assert [target[2] for _, target in several.__getitems__([0, 1])] == [number / 4 for number in order[:2]]
    scores = PackedFolder(pairs / name, fields=["score"])
    assert scores.targets == [number / 4 for number in order] and type(scores[0][1]) is float
    assert np.asarray(scores.targets).dtype == np.float64 and scores.classes == []
    assert PackedFolder(pairs / name, fields=[])[0].size == (20, 10 + order[0])


def test_a_joint_transform_sees_image_and_mask_in_workers(pairs):
    from torchvision.transforms import v2

    def both(image, mask):
        return functional.pil_to_tensor(image)[:, :8, :8], torch.from_numpy(np.array(mask)[:8, :8])

    data = PackedFolder(pairs / "m.arrow", fields="mask", transforms=both)
    images, masks = next(iter(DataLoader(data, 6, num_workers=1)))
    assert images.shape == (6, 3, 8, 8) and masks[:, 0, 0].tolist() == [0, 1, 2, 3, 4, 5]
    crop = PackedFolder(pairs / "m.arrow", fields="mask", transforms=v2.RandomCrop(8))
    assert crop[0][0].size == crop[0][1].size == (8, 8)


@pytest.mark.parametrize("fields", ["colour", ["mask", "colour"], "image", "key"])
def test_a_field_that_is_not_there_is_refused_with_those_that_are(pairs, fields):
    with pytest.raises(UsageError, match=r"no field '(colour|image|key)'.*mask.*smallfiles inspect"):
        PackedFolder(pairs / "m.arrow", fields=fields)


def test_samples_without_a_label_ask_for_the_target_and_the_cure_works(pairs, tmp_path):
    with pytest.raises(UsageError, match=r"have no class label.*mask.*fields=\[\]"):
        PackedFolder(pairs / "m.arrow")
    assert main(["pack", str(pairs / "set/images"), str(tmp_path / "u.arrow"), "--unlabelled"]) == 0
    with pytest.raises(UsageError, match=r"have no class label.*fields=\[\]"):
        PackedFolder(tmp_path / "u.arrow")
    data = PackedFolder(tmp_path / "u.arrow", tensors, fields=[])
    assert next(iter(DataLoader(data, 6))).shape == (6, 3, 8, 8)


def pack_table(place, tmp_path, text, *words):
    (tmp_path / "t.csv").write_text(text)
    assert (
        main(
            [
                "pack",
                str(tmp_path / "t.csv"),
                str(tmp_path / "t.arrow"),
                "--root",
                str(place / "images"),
                *words,
            ]
        )
        == 0
    )
    return tmp_path / "t.arrow"


def test_captions_are_lists_of_texts(place, tmp_path):
    data = PackedFolder(pack_table(place, tmp_path, "image,caption\nant/a.jpg,an ant\ncat/b.bmp,a cat\n"))
    assert data[1][1] == ["a cat"] and data.targets == [["an ant"], ["a cat"]] and data.classes == []
    assert data.samples[0][1] == ["an ant"]


def test_numbers_of_classes_without_names_count_the_classes(place, tmp_path):
    out = pack_table(place, tmp_path, "image,label\nant/a.jpg,0\ncat/b.bmp,3\n")
    data = PackedFolder(out)
    assert data[1][1] == 3 and len(data.classes) > 3
    assert all(data.class_to_idx[name] == label for label, name in enumerate(data.classes))


def test_a_damaged_picture_is_a_sentence_with_its_name(tmp_path, place):
    from smallfiles import formats
    from smallfiles.samples import Sample, Schema

    whole = (place / "images/ant/a.jpg").read_bytes()
    samples = [
        Sample("a/cut.jpg", (whole[: len(whole) // 2],), 0),
        Sample("a/none.png", (b"not a picture",), 1),
    ]
    schema = Schema.of(samples, pa.table({"label": [0, 0]}), classes=("a",))
    formats.get("arrow").write(samples, tmp_path / "x.arrow", schema=schema)
    data = PackedFolder(tmp_path / "x.arrow")
    for number, key in enumerate(("a/cut.jpg", "a/none.png")):
        with pytest.raises(
            SmallfilesError, match=rf"{key} in .*x\.arrow cannot be decoded.*smallfiles verify"
        ):
            data[number]
    with pytest.raises(RuntimeError, match=r"a/cut\.jpg in .* cannot be decoded"):
        next(iter(DataLoader(data, 1, num_workers=1)))


@pytest.mark.parametrize(
    ("root", "advice"),
    [
        ("nowhere.arrow", "smallfiles pack"),
        ("images", "smallfiles pack"),
        ("images/ant/a.jpg", "Give the packed file"),
    ],
)
def test_what_is_not_a_packed_file_is_refused_with_the_next_step(place, root, advice):
    with pytest.raises(SmallfilesError, match=advice):
        PackedFolder(place / root)


# What it costs to have it


def test_it_is_imported_when_it_is_used_and_needs_neither_torch_nor_torchvision(place):
    code = """if True:
        import sys
        sys.modules["torch"] = sys.modules["torchvision"] = sys.modules["simplejpeg"] = None
        import smallfiles
        assert "numpy" not in sys.modules and "PIL" not in sys.modules
        data = smallfiles.PackedFolder(sys.argv[1])
        print(len(data), data[0][0].size, data[10][1], data.targets[-1], repr(data)[:7])
    """
    done = subprocess.run([sys.executable, "-c", code, place / "x.arrow"], capture_output=True, text=True)
    assert done.stdout.split() == ["11", "(32,", "24)", "2", "2", "Dataset"], done.stderr


def test_a_million_samples_need_no_objects(tmp_path):
    import tracemalloc

    from smallfiles import formats
    from smallfiles.samples import Sample, Schema

    data = io.BytesIO()
    Image.new("RGB", (1, 1)).save(data, "bmp")
    count = 20_000
    samples = [Sample(f"{n % 10}/{n:07}.bmp", (data.getvalue(),), n) for n in range(count)]
    schema = Schema.of(samples, pa.table({"label": [n % 10 for n in range(count)]}), classes=[*"0123456789"])
    formats.get("arrow").write(samples, tmp_path / "x.arrow", schema=schema, digest=False)
    del samples
    tracemalloc.start()
    opened = PackedFolder(tmp_path / "x.arrow")
    assert opened[19_999][1] == 9 and opened.samples[19_999][1] == 9
    assert tracemalloc.get_traced_memory()[1] < count * 20
    tracemalloc.stop()
