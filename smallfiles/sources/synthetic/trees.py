"""Layouts that are folders of files: ImageFolder, ImageNet prepared for training, Kaggle's ImageNet.

The traps are those of the real ones: Kaggle's validation pictures lie flat, their labels in a CSV
whose rows are unsorted and end in a blank; and only some training pictures have a box, so that its CSV
for training is no list of the training set. Notebook 02 makes manifests of them.

Source of the formats: the files of the Kaggle competition "ImageNet Object Localization Challenge".
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from smallfiles.sources.synthetic import wordnet
from smallfiles.sources.synthetic.plans import Plan
from smallfiles.sources.synthetic.scenes import Scene, look_of

Draw = Callable[[Iterable[int]], Iterator[bytes]]
_KAGGLE = "ILSVRC/Data/CLS-LOC"


def write_files(root: Path, paths: Sequence[str], draw: Draw) -> None:
    """Write picture `i` to `paths[i]`."""
    for folder in {str(Path(path).parent) for path in paths}:
        (root / folder).mkdir(parents=True, exist_ok=True)
    for path, data in zip(paths, draw(range(len(paths))), strict=True):
        (root / path).write_bytes(data)


def train_name(plan: Plan, index: int) -> str:
    """`n01440764_12.JPEG`: the number tells the picture, as in ImageNet, and follows no order of classes."""
    return f"{wordnet.wnids(plan.classes)[plan.label(index)]}_{index}.JPEG"


def val_name(plan: Plan, index: int) -> str:
    """`ILSVRC2012_val_00000001.JPEG`: counts from 1 and says nothing of the class."""
    return f"ILSVRC2012_val_{index - plan.train + 1:08d}.JPEG"


def test_name(plan: Plan, index: int) -> str:
    """`ILSVRC2012_test_00000001.JPEG`."""
    return f"ILSVRC2012_test_{index - plan.train - plan.val + 1:08d}.JPEG"


def folder_names(plan: Plan) -> list[str]:
    """Folder of each class, by what it shows: `red_striped_disc`."""
    return [f"{colour}_{texture}_{shape}" for shape, texture, colour in map(look_of, range(plan.classes))]


def folder_labels(plan: Plan) -> list[int]:
    """ImageFolder's label of each picture: the rank of its folder among the sorted names."""
    names = folder_names(plan)
    rank = {name: place for place, name in enumerate(sorted(names))}
    return [rank[names[plan.label(index)]] for index in range(plan.count)]


def folder_paths(plan: Plan) -> list[str]:
    """`red_striped_disc/red_striped_disc_00012.jpg`."""
    names = folder_names(plan)
    labels = [plan.label(index) for index in range(plan.count)]
    return [f"{names[label]}/{names[label]}_{index:05d}.jpg" for index, label in enumerate(labels)]


def write_folder(plan: Plan, root: Path, draw: Draw) -> None:
    """Write an ImageFolder tree."""
    write_files(root, folder_paths(plan), draw)


def prepared_paths(plan: Plan) -> list[str]:
    """`train/<wnid>/…` and `val/<wnid>/…`, as training code for ImageNet expects."""
    wnids = wordnet.wnids(plan.classes)
    train = [f"train/{wnids[plan.label(i)]}/{train_name(plan, i)}" for i in plan.train_indices]
    return train + [f"val/{wnids[plan.label(i)]}/{val_name(plan, i)}" for i in plan.val_indices]


def write_prepared(plan: Plan, root: Path, draw: Draw) -> None:
    """Write ImageNet sorted into class folders."""
    write_files(root, prepared_paths(plan), draw)


def kaggle_paths(plan: Plan) -> list[str]:
    """Kaggle's tree: class folders for training, flat validation and test."""
    wnids = wordnet.wnids(plan.classes)
    train = [f"{_KAGGLE}/train/{wnids[plan.label(i)]}/{train_name(plan, i)}" for i in plan.train_indices]
    val = [f"{_KAGGLE}/val/{val_name(plan, i)}" for i in plan.val_indices]
    return train + val + [f"{_KAGGLE}/test/{test_name(plan, i)}" for i in plan.test_indices]


def write_kaggle(plan: Plan, root: Path, draw: Draw) -> None:
    """Write Kaggle's tree with its lists, class names and boxes."""
    write_files(root, kaggle_paths(plan), draw)
    named = zip(wordnet.wnids(plan.classes), wordnet.words(plan.classes), strict=True)
    _write_lines(root / "LOC_synset_mapping.txt", [f"{wnid} {words}" for wnid, words in named])
    train = [train_name(plan, i) for i in plan.train_indices]
    boxed = [i for i in plan.train_indices if i % 5 in (0, 3)]  # 42 % of ImageNet's have a box
    _write_solution(root / "LOC_train_solution.csv", plan, boxed, [train[i] for i in boxed])
    val = [val_name(plan, i) for i in plan.val_indices]
    _write_solution(root / "LOC_val_solution.csv", plan, plan.val_indices, val)
    lists = root / "ILSVRC/ImageSets/CLS-LOC"
    lists.mkdir(parents=True)
    in_folders = [f"{name.split('_')[0]}/{name}" for name in sorted(train)]
    _write_list(lists / "train_cls.txt", in_folders)
    _write_list(lists / "train_loc.txt", [f"{n.split('_')[0]}/{n}" for n in sorted(train[i] for i in boxed)])
    _write_list(lists / "val.txt", val)
    _write_list(lists / "test.txt", [test_name(plan, i) for i in plan.test_indices])


def _write_list(path: Path, names: Sequence[str]) -> None:
    """`name line-number`, names without their suffix."""
    _write_lines(path, [f"{name.removesuffix('.JPEG')} {line}" for line, name in enumerate(names, 1)])


def _write_solution(path: Path, plan: Plan, indices: Sequence[int], names: Sequence[str]) -> None:
    wnids = wordnet.wnids(plan.classes)
    rows = []
    for index, name in zip(indices, names, strict=True):
        boxes = _boxes(wnids[plan.label(index)], plan.scene(index))
        rows.append(f"{name.removesuffix('.JPEG')},{boxes}")
    random.Random(f"{path.name} {plan.seed}").shuffle(rows)
    _write_lines(path, ["ImageId,PredictionString", *rows])


def _boxes(wnid: str, scene: Scene) -> str:
    """`wnid x1 y1 x2 y2 ` for each object of the class, with the blank at the end."""
    look = (scene.things[0].shape, scene.things[0].texture, scene.things[0].colour)
    parts = []
    for thing in scene.things:
        if (thing.shape, thing.texture, thing.colour) == look:
            x1, y1, x2, y2 = thing.box
            box = max(0, x1), max(0, y1), min(scene.width, x2), min(scene.height, y2)
            parts.append(f"{wnid} {' '.join(map(str, box))} ")
    return "".join(parts)


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
