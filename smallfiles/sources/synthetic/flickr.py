"""Flickr30K as distributed: nested folders, a malformed CSV, a token file, Karpathy's split.

Its traps are kept. `results.csv` is separated by "| " and one row lacks its second separator; captions
contain commas and quotes; the folder of pictures is inside a folder of the same name; Karpathy's JSON lists
only some of the pictures. Notebook 03 packs it; its exercise repairs the row. Captions describe only what is
drawn; otherwise a model would learn noise.

Source of the formats: Kaggle's "Flickr Image dataset", `results_20130124.token`, `dataset_flickr30k.json`.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

from smallfiles.sources.synthetic.pictures import Scene, Thing
from smallfiles.sources.synthetic.plans import SyntheticPlan

CAPTIONS = 5
_IMAGES = 31_783  # of the real one, to scale its peculiarities
_BAD_IMAGE = 3_999
_NOT_IN_SPLIT = 769
_IN_SPLIT, _VAL, _TEST = 31_014, 1_014, 1_000
_FOLDER = "flickr30k_images"


def names(plan: SyntheticPlan) -> list[str]:
    """File names: Flickr's numbers, ascending, the first as in the real set."""
    dice = random.Random(f"flickr {plan.seed}")
    first, step = 1_000_092_795, 7_000_000_000 // plan.count
    return [f"{first + i * step + (dice.randrange(step) if i else 0)}.jpg" for i in range(plan.count)]


def paths(plan: SyntheticPlan) -> list[str]:
    """Where picture `i` is."""
    return [f"{_FOLDER}/{_FOLDER}/{name}" for name in names(plan)]


def targets(plan: SyntheticPlan) -> list[list[str]]:
    """Five captions of each picture."""
    return [describe(plan.scene(i), i, plan.seed) for i in range(plan.count)]


def bad_image(plan: SyntheticPlan) -> int:
    """Index of the picture whose last row is malformed: line 20001 in the full set."""
    return max(0, plan.count * (_BAD_IMAGE + 1) // _IMAGES - 1)


def write_tables(plan: SyntheticPlan, root: Path) -> None:
    """Write both CSVs, the token file and Karpathy's JSON."""
    files, captions = names(plan), targets(plan)
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
    """The entries of Karpathy's JSON, which lists only some of the pictures."""
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
    """Five true captions of a scene in the style of Flickr30K: tokens separated by blanks, some with quotes.

    Args:
        scene: From `compose` with the same seed and index.
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
