"""The devkits and listings that exercise 02 is tried with, and the real devkit in the same form.

The trap: in a complete, flat and sorted listing, wrong ways of pairing lines with images look right. So
there are also listings in any order, in class folders, and with images missing.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

Classes = dict[int, tuple[str, str]]
"""ILSVRC2012_ID to wnid and words."""


def devkit_classes(folder: Path) -> Classes:
    """ILSVRC2012_ID to wnid and words, from a devkit's folder; only the leaves are classes.

    Args:
        folder: `ILSVRC2012_devkit_t12`.
    """
    from scipy.io import loadmat

    rows = np.atleast_1d(loadmat(folder / "data/meta.mat", squeeze_me=True)["synsets"])
    leaves = [row for row in rows if int(row["num_children"]) == 0]
    return {int(row["ILSVRC2012_ID"]): (str(row["WNID"]), str(row["words"])) for row in leaves}


@dataclass(frozen=True)
class Case:
    """A devkit and a listing of images."""

    classes: Classes
    truth: list[int]
    paths: list[str]

    def numbers(self) -> list[int]:
        """Number of each image, from its name."""
        return [int(re.findall(r"\d{8}", path)[-1]) for path in self.paths]

    def labels(self, label_of_id: dict[int, int], lines: list[int]) -> list[int]:
        """Label of each path, if image k has the id in line `lines[k]` (counted from 0)."""
        return [label_of_id[self.truth[line % len(self.truth)]] for line in lines]


def cases() -> list[Case]:
    """Complete and flat, listed in any order, in part, in class folders, Kaggle's, empty, all classes."""
    few: Classes = {
        1: ("n03126707", "crane"),
        2: ("n01751748", "sea snake"),
        3: ("n03710721", "maillot, tank suit"),
        4: ("n02012849", "crane"),
        5: ("n01440764", "tench, Tinca tinca"),
        6: ("n03146219", "cuirass"),
        7: ("n03710637", "maillot"),
    }
    truth = [2, 5, 1, 6, 4, 3, 2, 6, 1, 5, 3, 4]  # class 7 has no image here
    names = [image_name(number) for number in range(1, 13)]
    mixed = [names[n] for n in (10, 3, 0, 7, 5, 11, 1, 9, 2, 8, 4, 6)]
    folders = [f"val/{few[number][0]}/{name}" for number, name in zip(truth, names, strict=True)]
    kaggle = [f"ILSVRC/Data/CLS-LOC/val/{name}" for name in mixed[:5]]
    return [
        Case(few, truth, names),
        Case(few, truth, mixed),
        Case(few, truth, [names[n] for n in (8, 1, 10, 4, 5)]),
        Case(few, truth, [folders[n] for n in (2, 9, 0, 4, 11, 7, 1, 10, 3, 6, 8, 5)]),
        Case(few, truth, kaggle),
        Case(few, truth, []),
        _large_case(),
    ]


def image_name(number: int) -> str:
    """Name of a validation image, which counts from 1."""
    return f"ILSVRC2012_val_{number:08d}.JPEG"


def _large_case() -> Case:
    """All 1000 classes, in a made-up order of ids."""
    from smallfiles.sources.synthetic import wordnet

    names = zip(wordnet.wnids(1000), wordnet.words(1000), strict=True)
    classes = dict(sorted(zip(wordnet.ilsvrc_ids(1000, 2), names, strict=True)))
    dice = random.Random(2)
    truth = [dice.randint(1, 1000) for _ in range(300)]
    return Case(classes, truth, [image_name(number) for number in dice.sample(range(1, 301), 120)])
