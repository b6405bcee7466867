"""ImageNet as it is found: Kaggle's tree at every level, prepared trees, official tars, two label orders."""

import shutil
import tarfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat
from source_sets import contents, plant, refused, rows, tar_bytes

from smallfiles import sources
from smallfiles.errors import SourceError
from smallfiles.manifest import Manifest
from smallfiles.sources import imagenet
from smallfiles.sources import imagenet as labels
from smallfiles.sources.scanning import Look

# Ids that do not follow the sorted wnids, as in the real development kit.
IDS = {3: "n01440764", 1: "n01751748", 4: "n02105855", 2: "n03146219"}
SORTED = sorted(IDS.values())
TRUTH = [1, 4, 3, 2, 1]


def val(number: int) -> str:
    return f"ILSVRC2012_val_{number:08}.JPEG"


def make_devkit(root: Path, ids=IDS, truth=TRUTH) -> Path:
    kind = [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("words", "O"), ("gloss", "O"), ("num_children", "O")]
    rows = [(float(number), wnid, "a, b", "words", 0.0) for number, wnid in sorted(ids.items())]
    rows += [(float(len(ids) + 1), "n00001740", "entity", "all", 2.0)]  # not a leaf: no class
    synsets = np.array(rows, kind).reshape(-1, 1)
    data = root / "ILSVRC2012_devkit_t12" / "data"
    data.mkdir(parents=True)
    savemat(data / "meta.mat", {"synsets": synsets})
    lines = "".join(f"{number}\n" for number in truth)
    (data / "ILSVRC2012_validation_ground_truth.txt").write_text(lines)
    return data.parent


@pytest.fixture
def kaggle(tmp_path) -> Path:
    base, sets = "ILSVRC/Data/CLS-LOC", tmp_path / "ILSVRC/ImageSets/CLS-LOC"
    names = [f"{wnid}/{wnid}_{k}" for wnid in SORTED for k in (7, 10)]
    plant(tmp_path, *(f"{base}/train/{name}.JPEG" for name in names))
    plant(tmp_path, *(f"{base}/val/{val(k)}" for k in range(1, 6)))
    plant(tmp_path, f"{base}/test/ILSVRC2012_test_00000001.JPEG")
    lines = [f"{wnid} crane, bird no. {k}\n" for k, wnid in enumerate(SORTED)]
    (tmp_path / "LOC_synset_mapping.txt").write_text("".join(lines))
    rows = [f"ILSVRC2012_val_{k:08},{IDS[i]} 1 2 3 4 {IDS[i]} 5 6 7 8 \n" for k, i in enumerate(TRUTH, 1)]
    (tmp_path / "LOC_val_solution.csv").write_text("".join(["ImageId,PredictionString\n", *reversed(rows)]))
    sets.mkdir(parents=True)
    (sets / "train_cls.txt").write_text("".join(f"{name} {k}\n" for k, name in enumerate(names, 1)))
    (sets / "val.txt").write_text("".join(f"ILSVRC2012_val_{k:08} {k}\n" for k in range(1, 6)))
    return tmp_path


@pytest.fixture
def official(tmp_path) -> Path:
    inner = {f"{w}.tar": tar_bytes({f"{w}_{k}.JPEG": f"{w}{k}".encode() for k in (7, 10)}) for w in SORTED}
    (tmp_path / "ILSVRC2012_img_train.tar").write_bytes(tar_bytes(inner))
    flat = {val(k): f"picture {k}".encode() for k in range(1, 6)}
    (tmp_path / "ILSVRC2012_img_val.tar").write_bytes(tar_bytes(flat))
    make_devkit(tmp_path)
    return tmp_path


TRAIN_KEYS = {
    f"ILSVRC/Data/CLS-LOC/train/{wnid}/{wnid}_{k}.JPEG": label
    for label, wnid in enumerate(SORTED)
    for k in (7, 10)
}
VAL_LABELS = {val(k): SORTED.index(IDS[i]) for k, i in enumerate(TRUTH, 1)}


@pytest.mark.parametrize(
    "level", [".", "ILSVRC", "ILSVRC/Data", "ILSVRC/Data/CLS-LOC", "ILSVRC/Data/CLS-LOC/train"]
)
def test_kaggles_tree_has_the_same_keys_at_every_level(kaggle, level):
    source = sources.load(kaggle / level)
    assert rows(source) == TRAIN_KEYS and source.manifest.classes == tuple(SORTED)
    assert source.kind == "imagenet, Kaggle tree" and source.manifest.split == "train"
    first = source.manifest.path(0)
    assert source.store.size(first) == (kaggle / first).stat().st_size == source.manifest.sizes[0]


def test_kaggles_validation_labels_come_from_the_solution_file_and_its_test_split_has_none(kaggle):
    expected = {f"ILSVRC/Data/CLS-LOC/val/{name}": label for name, label in VAL_LABELS.items()}
    for source in (sources.load(kaggle, split="val"), sources.load(kaggle / "ILSVRC/Data/CLS-LOC/val")):
        assert rows(source) == expected
        assert source.manifest.split == "val" and "labels read from LOC_val_solution.csv" in source.notes
    source = sources.load(kaggle, split="test")
    assert rows(source) == {"ILSVRC/Data/CLS-LOC/test/ILSVRC2012_test_00000001.JPEG": -1}


def test_an_interrupted_extraction_is_told_and_a_class_without_images_keeps_its_label(kaggle):
    train = kaggle / "ILSVRC/Data/CLS-LOC/train"
    (train / f"{SORTED[1]}/{SORTED[1]}_7.JPEG").unlink()
    told = " ".join(sources.load(kaggle).notes)
    assert f"train_cls.txt lists 8 images and 7 are there; missing: {SORTED[1]}/{SORTED[1]}_7" in told
    shutil.rmtree(train / SORTED[0])
    source = sources.load(kaggle)
    assert source.manifest.classes == tuple(SORTED) and set(rows(source).values()) == {1, 2, 3}
    assert f"1 class without images: {SORTED[0]}" in source.notes


def test_images_missing_in_the_solution_file_are_told_or_refused(kaggle):
    plant(kaggle, f"ILSVRC/Data/CLS-LOC/val/{val(77)}")
    source = sources.load(kaggle, split="val")
    assert len(source.manifest) == 5
    assert any(f"1 image not in LOC_val_solution.csv left out: {val(77)}" in note for note in source.notes)
    assert val(77) in refused(kaggle, split="val", strict=True)


def test_a_validation_set_without_any_labels_says_what_is_missing(kaggle):
    (kaggle / "LOC_val_solution.csv").unlink()
    message = refused(kaggle, split="val")
    assert "LOC_val_solution.csv" in message and "ILSVRC2012_devkit_t12" in message
    devkit = make_devkit(kaggle / "elsewhere")
    source = sources.load(kaggle, split="val", labels=devkit)
    assert {path.rpartition("/")[2]: label for path, label in rows(source).items()} == VAL_LABELS


def test_a_prepared_tree_reads_as_torchvision_reads_it(tmp_path):
    from torchvision.datasets import ImageFolder

    plant(tmp_path, *(f"train/{wnid}/{wnid}_{k}.JPEG" for wnid in SORTED for k in (1, 2)))
    plant(tmp_path, *(f"val/{IDS[i]}/{val(k)}" for k, i in enumerate(TRUTH, 1)))
    for split in ("train", "val"):
        source = sources.load(tmp_path, split=split)
        theirs = ImageFolder(str(tmp_path / split))
        assert [str(tmp_path / path) for path in rows(source)] == [path for path, _ in theirs.samples]
        assert (
            list(rows(source).values()) == theirs.targets and list(source.manifest.classes) == theirs.classes
        )
        assert source.kind == "imagenet, prepared tree"
        assert list(rows(sources.load(tmp_path / split)).values()) == theirs.targets


def test_a_prepared_tree_with_a_flat_val_folder_uses_the_devkit(tmp_path):
    plant(
        tmp_path, *(f"train/{wnid}/{wnid}_1.JPEG" for wnid in SORTED), *(f"val/{val(k)}" for k in range(1, 6))
    )
    make_devkit(tmp_path)
    for path in (tmp_path, tmp_path / "val"):
        source = sources.load(path, split="val")
        assert list(rows(source).values()) == list(VAL_LABELS.values())
        assert "labels read from the devkit" in source.notes


def test_the_official_tars_are_read_in_place_and_that_of_tests_is_unlabelled(official):
    for path in (official, official / "ILSVRC2012_img_train.tar"):
        source = sources.load(path)
        expected = {f"{w}/{w}_{k}.JPEG": label for label, w in enumerate(SORTED) for k in (7, 10)}
        assert rows(source) == expected and source.kind == "imagenet, official tar"
        assert contents(source)[f"{SORTED[2]}/{SORTED[2]}_10.JPEG"] == f"{SORTED[2]}10".encode()
    data = tar_bytes({"test/ILSVRC2012_test_00000001.JPEG": b"x"})
    (official / "ILSVRC2012_img_test_v10102019.tar").write_bytes(data)
    source = sources.load(official, split="test")
    assert rows(source) == {"test/ILSVRC2012_test_00000001.JPEG": -1}


@pytest.mark.parametrize("packed", [False, True])
def test_the_official_val_tar_gets_its_labels_from_the_devkit(official, packed):
    if packed:
        kit = official / "ILSVRC2012_devkit_t12"
        with tarfile.open(official / "ILSVRC2012_devkit_t12.tar.gz", "w:gz") as archive:
            archive.add(kit, "ILSVRC2012_devkit_t12")
        kit.rename(official / "away")
    source = sources.load(official, split="val")
    assert rows(source) == VAL_LABELS and source.manifest.classes == tuple(SORTED)
    assert "is the val split" in refused(official / "ILSVRC2012_img_val.tar", split="train")


def test_a_val_tar_without_a_devkit_says_what_is_missing(official):
    (official / "ILSVRC2012_devkit_t12").rename(official / "away")
    assert "ILSVRC2012_devkit_t12" in refused(official, split="val")
    rows(sources.load(official, split="val", labels=official / "away"))


@pytest.mark.parametrize(
    ("file", "data", "told"),
    [
        ("meta.mat", b"MATLAB 5.0 no", "meta.mat"),
        ("meta.mat", b"", "meta.mat"),
        ("ILSVRC2012_validation_ground_truth.txt", b"1\ntwo\n", "not a number"),
        ("ILSVRC2012_validation_ground_truth.txt", b"1\n9999\n", "9999"),
        ("ILSVRC2012_validation_ground_truth.txt", None, "cannot be read"),
    ],
)
def test_a_damaged_devkit_gives_a_sentence(tmp_path, file, data, told):
    kit = make_devkit(tmp_path)
    devkit = imagenet.load_devkit(kit)
    assert devkit.wnid_of_id == dict(sorted(IDS.items()))
    assert [devkit.wnid_of_val(k) for k in (0, 1, 2, 6)] == [None, "n01751748", "n02105855", None]
    (kit / "data" / file).unlink()
    if data is not None:
        (kit / "data" / file).write_bytes(data)
    with pytest.raises(SourceError, match=told):
        imagenet.load_devkit(kit)


@pytest.mark.parametrize(
    ("text", "line"), [("ImageId;Prediction\n", 1), ("ImageId,PredictionString\nval_1,dog 1 2\n", 2), ("", 1)]
)
def test_a_wrong_line_of_a_solution_file_is_named(tmp_path, text, line):
    path = tmp_path / "LOC_val_solution.csv"
    path.write_text(text)
    with pytest.raises(SourceError, match=f"line {line} of"):
        labels.read_solution(path)


def test_a_mapping_line_is_split_at_its_first_blank(tmp_path):
    path = tmp_path / "LOC_synset_mapping.txt"
    path.write_text("n02012849 crane\r\nn01440764 tench, Tinca tinca\n")
    assert labels.read_mapping(path) == {"n02012849": "crane", "n01440764": "tench, Tinca tinca"}
    path.write_text("tench n01440764\n")
    with pytest.raises(SourceError, match="line 1 of"):
        labels.read_mapping(path)


SORTED_VAL = {1: 65, 2: 970, 3: 230, 4: 809, 5: 516, 6: 57, 293: 0}
DEVKIT_VAL = {1: 490, 2: 361, 3: 171, 4: 822}


def flat(labels: dict[int, int]) -> Manifest:
    return Manifest.from_columns([val(k) for k in labels], list(labels.values()))


def test_the_two_label_orders_are_told_apart():
    assert imagenet.check_label_order(flat(SORTED_VAL)) == "sorted"
    assert imagenet.check_label_order(flat({k: n - 1 for k, n in DEVKIT_VAL.items()})) == "devkit"
    assert imagenet.check_label_order(flat(DEVKIT_VAL)) == "devkit, counted from 1"
    assert imagenet.check_label_order(flat({1000: 3})) == "unknown"
    train = {"ILSVRC/Data/CLS-LOC/train/n03146219/n03146219_8050.JPEG": 524}
    assert imagenet.check_label_order(Manifest.from_columns(list(train), list(train.values()))) == "sorted"


def test_labels_that_fit_no_order_are_refused_with_the_right_ones():
    with pytest.raises(SourceError, match=r"ILSVRC2012_val_00000002 = \[7\].*ILSVRC2012_val_00000002 = 970"):
        imagenet.check_label_order(flat({**SORTED_VAL, 2: 7}))


def real_classes() -> list[str]:
    """A thousand wnids of which the known three have their true ranks."""
    starts = [(0, "n01440764"), (65, "n01751748"), (524, "n03146219"), (1000, "")]
    return [
        f"n{int(wnid[1:]) + k:08}"
        for (rank, wnid), (after, _) in pairwise(starts)
        for k in range(after - rank)
    ]


def test_the_real_classes_with_labels_of_another_order_are_refused(tmp_path):
    plant(tmp_path, *(f"val/{val(k)}" for k in SORTED_VAL))
    wnids = real_classes()
    (tmp_path / "LOC_synset_mapping.txt").write_text("".join(f"{wnid} words\n" for wnid in wnids))

    def solve(labels: dict[int, int]) -> None:
        rows = "".join(f"ILSVRC2012_val_{k:08},{wnids[n]} 1 2 3 4\n" for k, n in labels.items())
        (tmp_path / "LOC_val_solution.csv").write_text("ImageId,PredictionString\n" + rows)

    solve(SORTED_VAL)
    source = sources.load(tmp_path, "imagenet", split="val")
    assert list(rows(source).values()) == list(SORTED_VAL.values())
    solve({**SORTED_VAL, **{k: n - 1 for k, n in DEVKIT_VAL.items()}})
    assert "are in the order 'devkit'; expected the order 'sorted'" in refused(
        tmp_path, kind="imagenet", split="val"
    )


def test_what_is_not_imagenet_is_not_recognised(tmp_path):
    plant(tmp_path, "train/cat/1.jpg", "train/dog/2.jpg", "val/cat/3.jpg")
    assert not imagenet.recognises(Look(tmp_path))
