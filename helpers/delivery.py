"""A delivery that nobody has seen: images, masks and a table, with what goes wrong in real ones.

    delivered   writes it from a seed, and says what is wrong with it
    SPECIES     the classes in its table

The trap: faults of a real delivery come together, and a program that stops at the first one finds the others
a day later each. Notebook 13 tries such a folder where somebody has none, notebook 14 and its exercise take
one over.
"""

from __future__ import annotations

import csv
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

SPECIES = ("beech", "oak", "pine", "spruce")


@dataclass(frozen=True)
class Delivery:
    """One delivery, and the truth about it.

    Args:
        folder: The wrapper that was unpacked; `survey/` is inside.
        rows: Species and height by id, in the order of the table.
        no_mask: Ids without a mask.
        no_image: Ids of rows without an image.
        damaged: Ids whose image is cut off.
        no_row: Ids of images that the table does not know.
    """

    folder: Path
    rows: dict[str, tuple[str, float]]
    no_mask: frozenset[str]
    no_image: frozenset[str]
    damaged: frozenset[str]
    no_row: frozenset[str]

    @property
    def table(self) -> Path:
        """Its table of measurements."""
        return self.folder / "survey" / "trees.csv"

    @property
    def sound(self) -> list[str]:
        """Ids of the rows whose image and mask are there and whole, in the order of the table."""
        bad = self.no_mask | self.no_image | self.damaged
        return [one for one in self.rows if one not in bad]


def delivered(source: Path, folder: Path, seed: int, count: int = 60) -> Delivery:
    """Write a delivery into a new folder.

    Args:
        source: A folder with `images/*.jpg` and `masks/*.png` (layout `segmentation`), to copy from.
        folder: Where to write; replaced if it exists.
        seed: Decides names, order, measurements and faults.
        count: Rows of the table, at least 12.
    """
    rng = random.Random(seed)
    shutil.rmtree(folder, ignore_errors=True)
    survey = folder / "survey"
    for part in ("images", "masks"):
        (survey / part).mkdir(parents=True)
    numbers = rng.sample(range(1, 1000), count + 2)
    ids = [f"plot{rng.randint(1, 9)}.{number:03d}" for number in numbers]  # dots, as people write them
    known, strangers = ids[:count], ids[count:]
    no_mask, no_image, damaged = (rng.sample(known, 7)[:3], [], [])
    rest = [one for one in known if one not in no_mask]
    no_image, damaged = rest[:2], rest[2:3]
    pictures = sorted((source / "images").iterdir())
    for one, picture in zip(ids, rng.choices(pictures, k=len(ids)), strict=True):
        if one not in no_image:
            data = picture.read_bytes()
            whole = data[: len(data) // 2] if one in damaged else data
            (survey / "images" / f"{one}.jpg").write_bytes(whole)
        if one not in no_mask:
            with Image.open(source / "masks" / f"{picture.stem}.png") as mask:
                mask.point([0] + [1] * 255).save(survey / "masks" / f"{one}.png")
    rows = {one: (rng.choice(SPECIES), round(rng.uniform(2, 40), 1)) for one in rng.sample(known, count)}
    with (survey / "trees.csv").open("w", newline="", encoding="utf-8") as table:
        writer = csv.writer(table)
        writer.writerow(["id", "species", "height_m"])
        writer.writerows([one, *row] for one, row in rows.items())
    (survey / "images" / "Thumbs.db").write_bytes(bytes(512))
    (folder / "README.txt").write_text("Masks: 0 is background, 1 is a tree.\n", encoding="utf-8")
    faults = (frozenset(group) for group in (no_mask, no_image, damaged, strangers))
    return Delivery(folder, rows, *faults)
