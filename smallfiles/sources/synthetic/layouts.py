"""The layouts: where each puts its pictures, and the tables, masks and archives that it has beside them.

    folder, prepared, kaggle, official   ImageFolder; ImageNet as prepared, as on Kaggle and as distributed
    flickr30k                            as distributed: nested folders, a CSV, a token file, Karpathy's split
    segmentation    images/00012.jpg, masks/00012.png (0 is the background, n the n-th of `pictures.SHAPES`)
    table           labels.csv (filename, species, weight), images/00012.jpg

The traps are those of the originals. Kaggle's validation pictures are in a flat folder, their labels in a CSV
of unsorted rows that end in a blank; only some training pictures have a box, so its training CSV is not a
list of the training set. The devkit numbers classes by ILSVRC2012_ID, which is not the order of the sorted
wnids, and `ID - 1` trains well on meaningless labels. "crane" and "maillot" occur twice among the names, so a
class is identified by its WordNet number. Flickr30K's `results.csv` is separated by "| ", and one row lacks
its second separator; captions contain commas and quotes; Karpathy's JSON lists only some of the pictures. The
rows of `labels.csv` are in another order than the files, and its weight is a number to predict, not a class.
Notebooks 02, 03 and 13 teach them. The pictures of "tench" show no fish; captions describe only what is
drawn.

Sources of the formats: the wnids and words of ILSVRC2012 (`LOC_synset_mapping.txt`), words from WordNet 3.0;
the Kaggle competition "ImageNet Object Localization Challenge"; `readme.txt` of ILSVRC2012_devkit_t12;
torchvision.datasets.imagenet; Kaggle's "Flickr Image dataset", `results_20130124.token`,
`dataset_flickr30k.json`.
"""

from __future__ import annotations

import csv
import io
import json
import random
import re
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image, ImageDraw

from smallfiles.sources.synthetic.pictures import SHAPES, Scene, SyntheticPlan, Thing, corners, look_of


@lru_cache(maxsize=1)
def _all_classes() -> tuple[tuple[str, str], ...]:
    text = Path(__file__).with_name("ilsvrc_classes.txt").read_text(encoding="utf-8")
    return tuple((line[:9], line[10:]) for line in text.splitlines())


def wnids(classes: int) -> tuple[str, ...]:
    """Return the first `classes` WordNet numbers in sorted order.

    The index is the label that training code uses.
    """
    return tuple(wnid for wnid, _ in _all_classes()[:classes])


def class_words(classes: int) -> tuple[str, ...]:
    """Return the names of the classes. The names of one class are separated by ", "."""
    return tuple(names for _, names in _all_classes()[:classes])


def ilsvrc_ids(classes: int, seed: int) -> tuple[int, ...]:
    """Return the devkit's number of each class, from 1 to `classes`.

    Their order differs from the sorted wnids.
    """
    ids = list(range(1, classes + 1))
    random.Random(f"ilsvrc ids {seed}").shuffle(ids)
    if classes > 1 and ids == sorted(ids):
        ids.reverse()
    return tuple(ids)


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
    """Return the folder of each class, which is named after what the class shows, such as `red_blue_disc`."""
    looks = map(look_of, range(plan.classes))
    return [f"{look.colour}_{look.core}_{look.shape}" for look in looks]


def folder_labels(plan: SyntheticPlan) -> list[int]:
    """Return ImageFolder's label of each picture, which is the rank of its folder among the sorted names."""
    names = folder_names(plan)
    rank = {name: place for place, name in enumerate(sorted(names))}
    return [rank[names[plan.label(index)]] for index in range(plan.count)]


def folder_paths(plan: SyntheticPlan) -> list[str]:
    """Return the path of each picture in class folders, such as `red_blue_disc/red_blue_disc_00012.jpg`."""
    names = folder_names(plan)
    labels = [plan.label(index) for index in range(plan.count)]
    return [f"{names[label]}/{names[label]}_{index:05d}.jpg" for index, label in enumerate(labels)]


def prepared_paths(plan: SyntheticPlan) -> list[str]:
    """Return the path of each picture, `train/<wnid>/…` or `val/<wnid>/…`.

    Training code for ImageNet expects these paths.
    """
    train = [f"train/{_wnid(plan, i)}/{_train_name(plan, i)}" for i in plan.indices("train")]
    return train + [f"val/{_wnid(plan, i)}/{_val_name(plan, i)}" for i in plan.indices("val")]


def kaggle_paths(plan: SyntheticPlan) -> list[str]:
    """Return the path of each picture in Kaggle's tree.

    Training pictures are in class folders. Validation and test pictures are in flat folders.
    """
    train = [f"{_KAGGLE}/train/{_wnid(plan, i)}/{_train_name(plan, i)}" for i in plan.indices("train")]
    val = [f"{_KAGGLE}/val/{_val_name(plan, i)}" for i in plan.indices("val")]
    return train + val + [f"{_KAGGLE}/test/{_test_name(plan, i)}" for i in plan.indices("test")]


def official_paths(plan: SyntheticPlan) -> list[str]:
    """Return the path of each picture: the tar, the tar inside it if there is one, and the member."""
    train = [f"{_TRAIN_TAR}/{_wnid(plan, i)}.tar/{_train_name(plan, i)}" for i in plan.indices("train")]
    return train + [f"{_VAL_TAR}/{_val_name(plan, i)}" for i in plan.indices("val")]


def _wnid(plan: SyntheticPlan, index: int) -> str:
    return wnids(plan.classes)[plan.label(index)]


def _train_name(plan: SyntheticPlan, index: int) -> str:
    """Return the name of a training picture, such as `n01440764_12.JPEG`.

    As in ImageNet, the number after the wnid belongs to the picture.
    """
    return f"{_wnid(plan, index)}_{index}.JPEG"


def _val_name(plan: SyntheticPlan, index: int) -> str:
    """Return the name of a validation picture, such as `ILSVRC2012_val_00000001.JPEG`.

    The number counts from 1, and does not depend on the class.
    """
    return f"ILSVRC2012_val_{index - plan.train + 1:08d}.JPEG"


def _test_name(plan: SyntheticPlan, index: int) -> str:
    return f"ILSVRC2012_test_{index - plan.train - plan.val + 1:08d}.JPEG"


def write_kaggle_tables(plan: SyntheticPlan, root: Path) -> None:
    """Write Kaggle's lists, class names and boxes."""
    named = zip(wnids(plan.classes), class_words(plan.classes), strict=True)
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
    """Write a list of pictures with one `name line-number` per line. The names have no suffix."""
    _write_lines(path, [f"{name.removesuffix('.JPEG')} {line}" for line, name in enumerate(names, 1)])


def _write_solution(path: Path, plan: SyntheticPlan, names: dict[int, str]) -> None:
    rows = [f"{name.removesuffix('.JPEG')},{_boxes(plan, index)}" for index, name in names.items()]
    random.Random(f"{path.name} {plan.seed}").shuffle(rows)
    _write_lines(path, ["ImageId,PredictionString", *rows])


def _boxes(plan: SyntheticPlan, index: int) -> str:
    """Return `wnid x1 y1 x2 y2 ` for each object of the picture's class, including the blank at the end."""
    things = plan.scene(index).things
    boxes = [thing.box for thing in things if thing.look == things[0].look]
    return "".join(f"{_wnid(plan, index)} {' '.join(map(str, box))} " for box in boxes)


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def write_official_tars(plan: SyntheticPlan, root: Path, draw: Draw) -> None:
    """Write the tar of tars for training, and the flat tar for validation."""
    members: list[list[int]] = [[] for _ in range(plan.classes)]
    for index in plan.indices("train"):
        members[plan.label(index)].append(index)
    files = draw(index for indices in members for index in indices)
    with tarfile.open(root / _TRAIN_TAR, "w", format=tarfile.USTAR_FORMAT) as outer:
        for wnid, indices in zip(wnids(plan.classes), members, strict=True):
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
    ids = ilsvrc_ids(plan.classes, plan.seed)
    truth = [ids[plan.label(index)] for index in plan.indices("val")]
    _write_lines(root / _DEVKIT / "ILSVRC2012_validation_ground_truth.txt", map(str, truth))


def _write_meta(plan: SyntheticPlan, path: Path) -> None:
    """Write the struct array `synsets`: the classes by ascending ILSVRC2012_ID, then the root above them."""
    import scipy.io  # here, since the import takes longer than drawing a hundred pictures

    counts = np.bincount([plan.label(index) for index in plan.indices("train")], minlength=plan.classes)
    ids = ilsvrc_ids(plan.classes, plan.seed)
    names, words = wnids(plan.classes), class_words(plan.classes)
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


CAPTIONS = 5
_IMAGES = 31_783  # of the real one, to scale its peculiarities
_BAD_IMAGE = 3_999
_NOT_IN_SPLIT = 769
_IN_SPLIT, _VAL, _TEST = 31_014, 1_014, 1_000
_FOLDER = "flickr30k_images"


def flickr_names(plan: SyntheticPlan) -> list[str]:
    """Return the file names of the pictures.

    They are ascending numbers as on Flickr, and the first is the first name of the real set.
    """
    dice = random.Random(f"flickr {plan.seed}")
    first, step = 1_000_092_795, 7_000_000_000 // plan.count
    return [f"{first + i * step + (dice.randrange(step) if i else 0)}.jpg" for i in range(plan.count)]


def flickr_paths(plan: SyntheticPlan) -> list[str]:
    """Return the path of each picture."""
    return [f"{_FOLDER}/{_FOLDER}/{name}" for name in flickr_names(plan)]


def flickr_captions(plan: SyntheticPlan) -> list[list[str]]:
    """Return the five captions of each picture."""
    return [describe(plan.scene(i), i, plan.seed) for i in range(plan.count)]


def bad_image(plan: SyntheticPlan) -> int:
    """Return the index of the picture whose last row is malformed. In the full set, this is line 20001."""
    return max(0, plan.count * (_BAD_IMAGE + 1) // _IMAGES - 1)


def write_flickr_tables(plan: SyntheticPlan, root: Path) -> None:
    """Write both CSVs, the token file and Karpathy's JSON."""
    files, captions = flickr_names(plan), flickr_captions(plan)
    for folder in (root / _FOLDER, root / _FOLDER / _FOLDER):
        (folder / "results.csv").write_text(_csv(plan, files, captions), encoding="utf-8")
    tokens = [f"{n}#{k}\t{t}\n" for n, five in zip(files, captions, strict=True) for k, t in enumerate(five)]
    (root / "results_20130124.token").write_text("".join(tokens), encoding="utf-8")
    split = json.dumps({"images": karpathy(plan, files, captions), "dataset": "flickr30k"})
    (root / "dataset_flickr30k.json").write_text(split, encoding="utf-8")


def _csv(plan: SyntheticPlan, files: list[str], captions: list[list[str]]) -> str:
    bad = bad_image(plan)
    rows = ["image_name| comment_number| comment\n"]
    for index, (name, five) in enumerate(zip(files, captions, strict=True)):
        for number, text in enumerate(five):
            malformed = index == bad and number == CAPTIONS - 1
            rows.append(f"{name}| {number}{'   ' if malformed else '| '}{text}\n")
    return "".join(rows)


def karpathy(plan: SyntheticPlan, files: list[str], captions: list[list[str]]) -> list[dict[str, Any]]:
    """Return the entries of Karpathy's JSON, which lists only some of the pictures."""
    missing = max(1, round(plan.count * _NOT_IN_SPLIT / _IMAGES)) if plan.count > 1 else 0
    dice = random.Random(f"split {plan.seed}")
    known = sorted(dice.sample(range(plan.count), plan.count - missing))
    splits = _splits(len(known), dice)
    return [_entry(imgid, files[index], captions[index], splits[imgid]) for imgid, index in enumerate(known)]


def _splits(count: int, dice: random.Random) -> list[str]:
    val, test = (min(count // 3, max(1, round(count * part / _IN_SPLIT))) for part in (_VAL, _TEST))
    splits = ["val"] * val + ["test"] * test + ["train"] * (count - val - test)
    dice.shuffle(splits)
    return splits


def _entry(imgid: int, name: str, five: list[str], split: str) -> dict[str, Any]:
    sentids = list(range(imgid * CAPTIONS, (imgid + 1) * CAPTIONS))
    sentences = [
        {"tokens": re.findall(r"[a-z]+", text.lower()), "raw": text, "imgid": imgid, "sentid": sentid}
        for text, sentid in zip(five, sentids, strict=True)
    ]
    return {"sentids": sentids, "imgid": imgid, "sentences": sentences, "split": split, "filename": name}


def describe(scene: Scene, index: int, seed: int) -> list[str]:
    """Return five true captions of a scene in the style of Flickr30K.

    Tokens are separated by blanks, and some captions contain quotes.

    Args:
        scene: A scene that `compose` made with the same seed and index.
        index: Number of the picture.
        seed: Seed of the data set.
    """
    dice = random.Random(f"words {seed} {index}")
    main, *others = scene.things
    look = main.look
    short = f"{look.colour} {look.shape}"
    quoted = dice.choice((look.shape, look.colour))
    backdrop = _a(f"{scene.backdrop} background")
    count = ("one object", "two objects", "three objects")[len(others)]
    return [
        f"{_a(str(look)).capitalize()} {dice.choice(('lies', 'rests', 'sits'))} on {backdrop} .",
        f"{_a(short).capitalize()} , {_place(main, scene)} , {_relation(main, others)} .",
        f"The core of the large {look.shape} is {look.core} , and all around it is {look.colour} .",
        f'Someone would call this {short} simply " {quoted} " .',
        f"The picture shows {count} , {' and '.join(_a(str(thing.look)) for thing in scene.things)} .",
    ]


def _a(words: str) -> str:
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def _place(thing: Thing, scene: Scene) -> str:
    column = ("to the left", "in the middle", "to the right")[min(2, 3 * thing.x // scene.width)]
    row = ("near the top", "half way up", "near the bottom")[min(2, 3 * thing.y // scene.height)]
    return f"{column} , {row}"


def _relation(main: Thing, others: list[Thing]) -> str:
    if not others:
        return "is the only thing to see"
    side = "right" if others[0].x < main.x else "left"
    return f"stands to the {side} of {_a(str(others[0].look))}"


def numbered_paths(plan: SyntheticPlan) -> list[str]:
    """Return the path of each picture, such as `images/00012.jpg`, for `segmentation` and `table`."""
    return [f"images/{index:05d}.jpg" for index in range(plan.count)]


def write_masks(plan: SyntheticPlan, root: Path) -> None:
    """Write the mask of each picture."""
    (root / "masks").mkdir()
    for index in range(plan.count):
        (root / f"masks/{index:05d}.png").write_bytes(mask(plan.scene(index)))


def mask(scene: Scene) -> bytes:
    """Return a PNG file with the class number of each pixel of a scene."""
    canvas = Image.new("L", (scene.width, scene.height))
    pen = ImageDraw.Draw(canvas)
    for thing in reversed(scene.things):
        pen.polygon(corners(thing, 1.0), 1 + list(SHAPES).index(thing.look.shape))
    file = io.BytesIO()
    canvas.save(file, "png")
    return file.getvalue()


def weight(scene: Scene) -> float:
    """Return the weight of the main object, a number to predict. It grows with the area of the object."""
    return round(scene.things[0].radius ** 2 / 500, 2)


def write_labels(plan: SyntheticPlan, root: Path) -> None:
    """Write `labels.csv` with its rows in shuffled order."""
    names = folder_names(plan)
    rows = [
        (path, names[plan.label(i)], weight(plan.scene(i))) for i, path in enumerate(numbered_paths(plan))
    ]
    random.Random(f"labels.csv {plan.seed}").shuffle(rows)
    with (root / "labels.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([("filename", "species", "weight"), *rows])
