"""The plan of a data set: the split, label and scene of each index.

Picture `index` is the same in every layout, so that layouts can be compared. The trap: in a validation set
sorted by class a wrong label order looks right; here each run of `classes` pictures is shuffled.
Notebook 02 makes one of each. Short, since all layouts share it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache

from smallfiles.errors import UsageError
from smallfiles.sources.synthetic.pictures import MAX_CLASSES, Scene, compose, draw, encode


@dataclass(frozen=True)
class SyntheticPlan:
    """Everything that determines the bytes of a data set, except its layout.

    Args:
        seed: Another seed gives other pictures.
        train: Number of training pictures; indices 0 to `train` - 1.
        val: Number of validation pictures; the indices that follow.
        test: Number of test pictures; the last indices.
        classes: Number of classes.
        size: Typical width and height in pixels.
    """

    seed: int
    train: int
    val: int
    test: int
    classes: int
    size: tuple[int, int]

    @property
    def count(self) -> int:
        """Number of pictures in all splits."""
        return self.train + self.val + self.test

    def indices(self, split: str) -> range:
        """Indices of the pictures of `train`, `val` or `test`."""
        first = {"train": 0, "val": self.train, "test": self.train + self.val}[split]
        return range(first, first + {"train": self.train, "val": self.val, "test": self.test}[split])

    def label(self, index: int) -> int:
        """Class of a picture: each run of `classes` pictures contains every class once, shuffled."""
        return _deck(index // self.classes, self.seed, self.classes)[index % self.classes]

    def scene(self, index: int) -> Scene:
        """What a picture shows."""
        return compose(index, self.label(index), self.seed, self.size)

    def file_bytes(self, index: int) -> bytes:
        """The file of one picture; a function of the plan and `index` only."""
        scene = self.scene(index)
        return encode(draw(scene, self.seed, index), scene.quality)

    def check(self) -> None:
        """Refuse numbers that make no sense.

        Raises:
            UsageError: Names them.
        """
        splits = f"{self.count} pictures with {self.val} for validation"
        rules = (
            (self.train >= 1 and self.val >= 0, splits, "at least one training picture"),
            (self.seed >= 0, f"pictures from the seed {self.seed}", "a seed of 0 or more"),
            (1 <= self.classes <= MAX_CLASSES, f"{self.classes} classes", f"1 to {MAX_CLASSES:,} classes"),
            (
                self.classes <= self.train,
                f"{self.classes} classes with {self.train} training pictures",
                "a picture for each",
            ),
            (min(self.size) >= 32 and max(self.size) <= 4096, f"sides of {self.size}", "32 to 4,096 pixels"),
        )
        for is_right, got, expected in rules:
            if not is_right:
                raise UsageError(
                    f"{got} were requested",
                    expected=expected,
                    next_step="Correct it; more pictures leave room for more classes",
                )


@lru_cache(maxsize=8)
def _deck(round_number: int, seed: int, classes: int) -> tuple[int, ...]:
    deck = list(range(classes))
    random.Random(f"deck {seed} {round_number}").shuffle(deck)
    return tuple(deck)
