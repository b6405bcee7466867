"""The plan of a data set: which index is which picture, in which split, with which oddity.

Picture `index` looks the same in every layout, so that what one layout's loader reads can be compared
with another's. The trap: whoever draws classes in order writes a validation set sorted by class, and
a wrong label order then looks right; here each run of `classes` pictures is shuffled.
Notebook 02 makes one of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from smallfiles.errors import UsageError
from smallfiles.sources.synthetic import scenes
from smallfiles.sources.synthetic.encoding import BROKEN, ODD, encode
from smallfiles.sources.synthetic.pictures import draw


@dataclass(frozen=True)
class Plan:
    """Everything that decides the bytes of a data set, layout aside.

    Args:
        seed: Another seed gives other pictures.
        train: Number of training pictures; indices 0 to `train` - 1.
        val: Number of validation pictures; the indices that follow.
        test: Number of test pictures; the last indices.
        classes: Number of classes.
        size: Typical width and height in pixels.
        odd: Whether ImageNet's odd but readable files are among the training pictures.
        broken: Number of zero-byte and truncated files among the training pictures.
    """

    seed: int
    train: int
    val: int
    test: int
    classes: int
    size: tuple[int, int]
    odd: bool = False
    broken: int = 0

    @property
    def count(self) -> int:
        """Number of pictures in all splits."""
        return self.train + self.val + self.test

    @property
    def train_indices(self) -> range:
        """Indices of the training pictures."""
        return range(self.train)

    @property
    def val_indices(self) -> range:
        """Indices of the validation pictures."""
        return range(self.train, self.train + self.val)

    @property
    def test_indices(self) -> range:
        """Indices of the test pictures."""
        return range(self.train + self.val, self.count)

    def label(self, index: int) -> int:
        """Class of a picture."""
        return scenes.label_of(index, self.seed, self.classes)

    def scene(self, index: int) -> scenes.Scene:
        """What a picture shows."""
        return scenes.compose(index, self.label(index), self.seed, self.size)


def check(plan: Plan) -> None:
    """Refuse numbers that make no sense.

    Raises:
        UsageError: Says which.
    """
    odd = len(_odd_kinds(plan))
    pictures = f"{plan.train} training pictures"
    splits = f"{plan.count} pictures with {plan.val} for validation and {plan.test} for testing"
    rules = (
        (plan.train >= 1 and plan.val >= 0 and plan.test >= 0, splits, "at least one training picture"),
        (plan.seed >= 0, f"pictures from the seed {plan.seed}", "a seed of 0 or more"),
        (plan.broken >= 0, f"{plan.broken} broken files", "0 or more of them"),
        (
            1 <= plan.classes <= scenes.MAX_CLASSES,
            f"{plan.classes} classes",
            f"1 to {scenes.MAX_CLASSES:,} classes",
        ),
        (
            plan.classes <= plan.train,
            f"{plan.classes} classes with {pictures}",
            "at least one training picture a class",
        ),
        (
            odd <= plan.train,
            f"{odd} odd or broken files among {pictures}",
            "at least one training picture for each",
        ),
        (
            all(32 <= side <= 4096 for side in plan.size),
            f"pictures of {plan.size[0]} x {plan.size[1]} pixels",
            "sides of 32 to 4,096 pixels",
        ),
    )
    for is_right, got, expected in rules:
        if not is_right:
            raise UsageError(
                f"{got} were asked for",
                expected=expected,
                next_step="Correct it; more pictures leave room for more classes and odd files",
            )


def _odd_kinds(plan: Plan) -> list[str]:
    odd = len(ODD) * max(1, plan.train // 500) if plan.odd else 0
    return [BROKEN[k % len(BROKEN)] for k in range(plan.broken)] + [ODD[k % len(ODD)] for k in range(odd)]


@lru_cache(maxsize=4)
def oddities(plan: Plan) -> dict[int, str]:
    """Which training pictures are odd or broken, and how; spread evenly, each kind in turn."""
    kinds = _odd_kinds(plan)
    return {(2 * k + 1) * plan.train // (2 * len(kinds)): kind for k, kind in enumerate(kinds)}


def file_bytes(plan: Plan, index: int) -> bytes:
    """The file of one picture; a function of the plan and `index` only."""
    scene = plan.scene(index)
    picture = draw(scene, plan.seed, index)
    return encode(picture, scene.target_bytes, oddities(plan).get(index))
