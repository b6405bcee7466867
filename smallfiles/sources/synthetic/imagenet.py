"""Layouts with classes: ImageFolder, and ImageNet as prepared, as on Kaggle and as distributed.

The traps are those of the originals. Kaggle's validation pictures are in a flat folder, their labels in a
CSV of unsorted rows that end in a blank; only some training pictures have a box, so its training CSV is not
a list of the training set. The devkit numbers classes by ILSVRC2012_ID, which is not the order of the sorted
wnids, and `ID - 1` trains well on meaningless labels. Notebook 02 teaches it.

Sources of the formats: the Kaggle competition "ImageNet Object Localization Challenge", `readme.txt` of
ILSVRC2012_devkit_t12, torchvision.datasets.imagenet.
"""

from __future__ import annotations

import io
import random
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from smallfiles.sources.synthetic import wordnet
from smallfiles.sources.synthetic.pictures import look_of
from smallfiles.sources.synthetic.plans import SyntheticPlan

Draw = Callable[[Iterable[int]], Iterator[bytes]]
_KAGGLE = "ILSVRC/Data/CLS-LOC"
_TRAIN_TAR, _VAL_TAR = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
_DEVKIT = "ILSVRC2012_devkit_t12/data"
_MTIME_S = 1_340_000_000  # June 2012, since equal plans give equal bytes
_MAT_TITLE = b"MATLAB 5.0 MAT-file, synsets of ILSVRC2012"
_FIELDS = (
    *("ILSVRC2012_ID", "WNID", "words", "gloss"),
    *("num_children", "children", "wordnet_height", "num_train_images"),
)


def folder_names(plan: SyntheticPlan) -> list[str]:
    """Folder of each class, named after what it shows: `red_blue_disc`."""
    looks = map(look_of, range(plan.classes))
    return [f"{look.colour}_{look.core}_{look.shape}" for look in looks]


def folder_labels(plan: SyntheticPlan) -> list[int]:
    """ImageFolder's label of each picture: the rank of its folder among the sorted names."""
    names = folder_names(plan)
    rank = {name: place for place, name in enumerate(sorted(names))}
    return [rank[names[plan.label(index)]] for index in range(plan.count)]


def folder_paths(plan: SyntheticPlan) -> list[str]:
    """`red_blue_disc/red_blue_disc_00012.jpg`."""
    names = folder_names(plan)
    labels = [plan.label(index) for index in range(plan.count)]
    return [f"{names[label]}/{names[label]}_{index:05d}.jpg" for index, label in enumerate(labels)]


def prepared_paths(plan: SyntheticPlan) -> list[str]:
    """`train/<wnid>/…` and `val/<wnid>/…`, as training code for ImageNet expects."""
    train = [f"train/{_wnid(plan, i)}/{_train_name(plan, i)}" for i in plan.indices("train")]
    return train + [f"val/{_wnid(plan, i)}/{_val_name(plan, i)}" for i in plan.indices("val")]


def kaggle_paths(plan: SyntheticPlan) -> list[str]:
    """Kaggle's tree: class folders for training, flat validation and test."""
    train = [f"{_KAGGLE}/train/{_wnid(plan, i)}/{_train_name(plan, i)}" for i in plan.indices("train")]
    val = [f"{_KAGGLE}/val/{_val_name(plan, i)}" for i in plan.indices("val")]
    return train + val + [f"{_KAGGLE}/test/{_test_name(plan, i)}" for i in plan.indices("test")]


def official_paths(plan: SyntheticPlan) -> list[str]:
    """The tar, the tar inside it, the member."""
    train = [f"{_TRAIN_TAR}/{_wnid(plan, i)}.tar/{_train_name(plan, i)}" for i in plan.indices("train")]
    return train + [f"{_VAL_TAR}/{_val_name(plan, i)}" for i in plan.indices("val")]


def _wnid(plan: SyntheticPlan, index: int) -> str:
    return wordnet.wnids(plan.classes)[plan.label(index)]


def _train_name(plan: SyntheticPlan, index: int) -> str:
    """`n01440764_12.JPEG`: as in ImageNet, the number is that of the picture."""
    return f"{_wnid(plan, index)}_{index}.JPEG"


def _val_name(plan: SyntheticPlan, index: int) -> str:
    """`ILSVRC2012_val_00000001.JPEG`: counts from 1, independent of the class."""
    return f"ILSVRC2012_val_{index - plan.train + 1:08d}.JPEG"


def _test_name(plan: SyntheticPlan, index: int) -> str:
    return f"ILSVRC2012_test_{index - plan.train - plan.val + 1:08d}.JPEG"


def write_kaggle_tables(plan: SyntheticPlan, root: Path) -> None:
    """Write Kaggle's lists, class names and boxes."""
    named = zip(wordnet.wnids(plan.classes), wordnet.words(plan.classes), strict=True)
    _write_lines(root / "LOC_synset_mapping.txt", [f"{wnid} {words}" for wnid, words in named])
    boxed = [i for i in plan.indices("train") if i % 5 in (0, 3)]  # 42 % of ImageNet's have a box
    _write_solution(root / "LOC_train_solution.csv", plan, {i: _train_name(plan, i) for i in boxed})
    val = {i: _val_name(plan, i) for i in plan.indices("val")}
    _write_solution(root / "LOC_val_solution.csv", plan, val)
    lists = root / "ILSVRC/ImageSets/CLS-LOC"
    lists.mkdir(parents=True)
    for name, indices in (("train_cls", plan.indices("train")), ("train_loc", boxed)):
        names = sorted(_train_name(plan, i) for i in indices)
        _write_list(lists / f"{name}.txt", [f"{name.split('_')[0]}/{name}" for name in names])
    _write_list(lists / "val.txt", list(val.values()))
    _write_list(lists / "test.txt", [_test_name(plan, i) for i in plan.indices("test")])


def _write_list(path: Path, names: Sequence[str]) -> None:
    """`name line-number`, names without their suffix."""
    _write_lines(path, [f"{name.removesuffix('.JPEG')} {line}" for line, name in enumerate(names, 1)])


def _write_solution(path: Path, plan: SyntheticPlan, names: dict[int, str]) -> None:
    rows = [f"{name.removesuffix('.JPEG')},{_boxes(plan, index)}" for index, name in names.items()]
    random.Random(f"{path.name} {plan.seed}").shuffle(rows)
    _write_lines(path, ["ImageId,PredictionString", *rows])


def _boxes(plan: SyntheticPlan, index: int) -> str:
    """`wnid x1 y1 x2 y2 ` for each object of the class, with the blank at the end."""
    things = plan.scene(index).things
    boxes = [thing.box for thing in things if thing.look == things[0].look]
    return "".join(f"{_wnid(plan, index)} {' '.join(map(str, box))} " for box in boxes)


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def write_official_tars(plan: SyntheticPlan, root: Path, draw: Draw) -> None:
    """Write the tar of tars and the flat one."""
    members: list[list[int]] = [[] for _ in range(plan.classes)]
    for index in plan.indices("train"):
        members[plan.label(index)].append(index)
    files = draw(index for indices in members for index in indices)
    with tarfile.open(root / _TRAIN_TAR, "w", format=tarfile.USTAR_FORMAT) as outer:
        for wnid, indices in zip(wordnet.wnids(plan.classes), members, strict=True):
            # The header of a member contains its size, so each inner tar is finished first.
            with tempfile.TemporaryFile(dir=root) as inner:
                with tarfile.open(fileobj=inner, mode="w", format=tarfile.USTAR_FORMAT) as tar:
                    for index in indices:
                        _add(tar, _train_name(plan, index), next(files))
                _add(outer, f"{wnid}.tar", inner)
    with tarfile.open(root / _VAL_TAR, "w", format=tarfile.USTAR_FORMAT) as tar:
        for index, data in zip(plan.indices("val"), draw(plan.indices("val")), strict=True):
            _add(tar, _val_name(plan, index), data)


def _add(tar: tarfile.TarFile, name: str, data: bytes | IO[bytes]) -> None:
    file = io.BytesIO(data) if isinstance(data, bytes) else data
    member = tarfile.TarInfo(name)
    member.size, member.mtime, member.mode = file.seek(0, io.SEEK_END), _MTIME_S, 0o644
    file.seek(0)
    tar.addfile(member, file)


def write_devkit(plan: SyntheticPlan, root: Path) -> None:
    """Write `meta.mat` and the ground truth of the validation pictures."""
    (root / _DEVKIT).mkdir(parents=True)
    _write_meta(plan, root / _DEVKIT / "meta.mat")
    ids = wordnet.ilsvrc_ids(plan.classes, plan.seed)
    truth = [ids[plan.label(index)] for index in plan.indices("val")]
    _write_lines(root / _DEVKIT / "ILSVRC2012_validation_ground_truth.txt", map(str, truth))


def _write_meta(plan: SyntheticPlan, path: Path) -> None:
    """Write the struct array `synsets`: the classes by ascending ILSVRC2012_ID, then the root above them."""
    import scipy.io  # here, since the import takes longer than drawing a hundred pictures

    counts = np.bincount([plan.label(index) for index in plan.indices("train")], minlength=plan.classes)
    ids = wordnet.ilsvrc_ids(plan.classes, plan.seed)
    names, words = wordnet.wnids(plan.classes), wordnet.words(plan.classes)
    table = np.zeros((plan.classes + 1, 1), [(field, object) for field in _FIELDS])
    for number, wnid, word, count in zip(ids, names, words, counts.tolist(), strict=True):
        table[number - 1, 0] = _matlab_row(number, wnid, word, count)
    root = ("n20000000", "entity", 0, range(1, plan.classes + 1), 1)
    table[-1, 0] = _matlab_row(plan.classes + 1, *root)
    scipy.io.savemat(str(path), {"synsets": table})
    with path.open("r+b") as file:  # scipy writes the time of day into its first 116 bytes, a free text
        file.write(_MAT_TITLE.ljust(116))


def _matlab_row(
    number: int, wnid: str, words: str, images: int, children: Sequence[int] = (), height: int = 0
) -> tuple[object, ...]:
    return (
        np.uint16(number),
        wnid,
        words,
        f"a picture of {words}",
        np.uint16(len(children)),
        np.array([children], np.uint16).reshape(1, -1),
        np.uint8(height),
        np.uint32(images),
    )
