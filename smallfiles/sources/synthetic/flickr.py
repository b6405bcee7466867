"""Flickr30K as people find it: nested folders, a CSV that is none, a token file, Karpathy's split.

Its traps are kept. `results.csv` is separated by "| " and one row lost its second separator; captions
hold commas and quotes; the folder of pictures lies in a folder of the same name; Karpathy's JSON knows
only some of the pictures. Notebook 03 packs it; its exercise repairs the row.

Source of the formats: Kaggle's "Flickr Image dataset", `results_20130124.token`, `dataset_flickr30k.json`.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

from smallfiles.sources.synthetic import captions
from smallfiles.sources.synthetic.plans import Plan
from smallfiles.sources.synthetic.trees import Draw, write_files

_IMAGES = 31_783  # of the real one, to scale its peculiarities
_BAD_IMAGE = 3_999
_NOT_IN_SPLIT = 769
_IN_SPLIT, _VAL, _TEST = 31_014, 1_014, 1_000
_FOLDER = "flickr30k_images"


def names(plan: Plan) -> list[str]:
    """File names: Flickr's numbers, ascending, the first as in the real set."""
    dice = random.Random(f"flickr {plan.seed}")
    first, step = 1_000_092_795, 7_000_000_000 // plan.count
    return [f"{first + i * step + (dice.randrange(step) if i else 0)}.jpg" for i in range(plan.count)]


def paths(plan: Plan) -> list[str]:
    """Where picture `i` is."""
    return [f"{_FOLDER}/{_FOLDER}/{name}" for name in names(plan)]


def targets(plan: Plan) -> list[list[str]]:
    """Five captions of each picture."""
    return [captions.describe(plan.scene(i), i, plan.seed) for i in range(plan.count)]


def bad_image(plan: Plan) -> int:
    """Index of the picture whose last row is spoilt: in the full set that is line 20001."""
    return max(0, plan.count * (_BAD_IMAGE + 1) // _IMAGES - 1)


def write(plan: Plan, root: Path, draw: Draw) -> None:
    """Write pictures, both CSVs, the token file and Karpathy's JSON."""
    write_files(root, paths(plan), draw)
    files, told = names(plan), targets(plan)
    table = _csv(plan, files, told)
    for folder in (root / _FOLDER, root / _FOLDER / _FOLDER):
        (folder / "results.csv").write_text(table, encoding="utf-8")
    tokens = [
        f"{n}#{k}\t{text}\n" for n, five in zip(files, told, strict=True) for k, text in enumerate(five)
    ]
    (root / "results_20130124.token").write_text("".join(tokens), encoding="utf-8")
    split = json.dumps({"images": _karpathy(plan, files, told), "dataset": "flickr30k"})
    (root / "dataset_flickr30k.json").write_text(split, encoding="utf-8")


def _csv(plan: Plan, files: list[str], told: list[list[str]]) -> str:
    bad = bad_image(plan)
    rows = ["image_name| comment_number| comment\n"]
    for index, (name, five) in enumerate(zip(files, told, strict=True)):
        for number, text in enumerate(five):
            spoilt = index == bad and number == captions.CAPTIONS - 1
            rows.append(f"{name}| {number}{'   ' if spoilt else '| '}{text}\n")
    return "".join(rows)


def _karpathy(plan: Plan, files: list[str], told: list[list[str]]) -> list[dict[str, Any]]:
    missing = max(1, round(plan.count * _NOT_IN_SPLIT / _IMAGES)) if plan.count > 1 else 0
    dice = random.Random(f"split {plan.seed}")
    known = sorted(dice.sample(range(plan.count), plan.count - missing))
    splits = _splits(len(known), dice)
    return [_entry(imgid, files[index], told[index], splits[imgid]) for imgid, index in enumerate(known)]


def _splits(count: int, dice: random.Random) -> list[str]:
    val, test = (min(count // 3, max(1, round(count * part / _IN_SPLIT))) for part in (_VAL, _TEST))
    splits = ["val"] * val + ["test"] * test + ["train"] * (count - val - test)
    dice.shuffle(splits)
    return splits


def _entry(imgid: int, name: str, five: list[str], split: str) -> dict[str, Any]:
    sentids = list(range(imgid * captions.CAPTIONS, (imgid + 1) * captions.CAPTIONS))
    sentences = [
        {"tokens": re.findall(r"[a-z]+", text.lower()), "raw": text, "imgid": imgid, "sentid": sentid}
        for text, sentid in zip(five, sentids, strict=True)
    ]
    return {"sentids": sentids, "imgid": imgid, "sentences": sentences, "split": split, "filename": name}
