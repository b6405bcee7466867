"""Layouts whose samples have more than a label: images with masks, and a table with a class and a number.

    segmentation    images/00012.jpg, masks/00012.png (0 is the background, n the n-th of `pictures.SHAPES`)
    table           labels.csv (filename, species, weight), images/00012.jpg

The traps are those of real sets: the rows of the table are in another order than the files, and its weight is
a number to predict, not a class. Notebook 13 packs both. Short, since the pictures are those of all layouts.
"""

from __future__ import annotations

import csv
import io
import random
from pathlib import Path

from PIL import Image, ImageDraw

from smallfiles.sources.synthetic.imagenet import folder_names
from smallfiles.sources.synthetic.pictures import SHAPES, Scene, corners
from smallfiles.sources.synthetic.plans import SyntheticPlan


def paths(plan: SyntheticPlan) -> list[str]:
    """`images/00012.jpg`, in both layouts."""
    return [f"images/{index:05d}.jpg" for index in range(plan.count)]


def write_masks(plan: SyntheticPlan, root: Path) -> None:
    """Write the mask of each picture."""
    (root / "masks").mkdir()
    for index in range(plan.count):
        (root / f"masks/{index:05d}.png").write_bytes(mask(plan.scene(index)))


def mask(scene: Scene) -> bytes:
    """The PNG file of the class numbers of a scene's pixels."""
    canvas = Image.new("L", (scene.width, scene.height))
    pen = ImageDraw.Draw(canvas)
    for thing in reversed(scene.things):
        pen.polygon(corners(thing, 1.0), 1 + list(SHAPES).index(thing.look.shape))
    file = io.BytesIO()
    canvas.save(file, "png")
    return file.getvalue()


def weight(scene: Scene) -> float:
    """What the main object would weigh: it grows with its area."""
    return round(scene.things[0].radius ** 2 / 500, 2)


def write_table(plan: SyntheticPlan, root: Path) -> None:
    """Write `labels.csv`, in shuffled order."""
    names = folder_names(plan)
    rows = [(path, names[plan.label(i)], weight(plan.scene(i))) for i, path in enumerate(paths(plan))]
    random.Random(f"labels.csv {plan.seed}").shuffle(rows)
    with (root / "labels.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([("filename", "species", "weight"), *rows])
