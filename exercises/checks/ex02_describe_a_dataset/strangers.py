"""The check of `label_order`: whose labels are these, told by images whose label is known.

The trap: `all(...)` of nothing is True, `any(...)` is satisfied by chance, and label 0 is false in a
condition. Notebook 02 sends participants.
"""

from __future__ import annotations

from dataclasses import dataclass

from exercises.checks import Attempt, check
from exercises.checks.ex02_describe_a_dataset.devkits import image_name

KNOWN = {
    f"ILSVRC2012_val_{number:08d}": label
    for number, label in {1: 65, 2: 970, 3: 230, 4: 809, 5: 516, 6: 57, 293: 0}.items()
}
"""Labels of seven validation images in sorted order, by file name without suffix."""

ORDERS = ("sorted", "other", "unknown")


@dataclass(frozen=True)
class Stranger:
    """A manifest of unknown origin.

    Args:
        manifest: What is given.
        expected: One of `ORDERS`.
        because: What another result means here.
    """

    manifest: dict[str, int]
    expected: str
    because: str


def _labelled(labels: dict[int, int], folder: str = "") -> dict[str, int]:
    return {f"{folder}{image_name(number)}": label for number, label in labels.items()}


_RIGHT = {1: 65, 2: 970, 3: 230, 4: 809, 5: 516, 6: 57}
_IDS = {1: 490, 2: 361, 3: 171, 4: 822}
_VACUOUS = (
    "none of the known images is in this manifest, so nothing is known; "
    "all() of nothing is True, so look first whether any was found"
)

STRANGERS = (
    Stranger(
        _labelled(_RIGHT),
        "sorted",
        "all six known images have their label; images that the manifest "
        "does not hold (here number 293) say nothing",
    ),
    Stranger(
        _labelled({number: label - 1 for number, label in _IDS.items()}),
        "other",
        "these labels are ID - 1: compare the value, not only whether it is a number below 1000",
    ),
    Stranger(_labelled(_IDS), "other", "these are the ids of the devkit: compare the values"),
    Stranger(
        _labelled(_RIGHT, "ILSVRC/Data/CLS-LOC/val/"),
        "sorted",
        "the paths have folders and a suffix, the known names have neither; compare the stem, "
        "for example PurePosixPath(path).stem",
    ),
    Stranger(
        {**_labelled({293: 0}), "train/n01440764/n01440764_36.JPEG": 0},
        "sorted",
        "image 293 has the label 0, which is right; 0 is false in a condition, so ask `is None` or `in`",
    ),
    Stranger(_labelled({293: 449}), "other", "image 293 has the label 0, and here it is 449"),
    Stranger(
        _labelled({**_RIGHT, 4: 821}),
        "other",
        "one known image contradicts; one is enough, since the others may be right by chance",
    ),
    Stranger(
        _labelled({1: 65, 2: 360, 3: 170, 4: 821}),
        "other",
        "one label is right by chance, three are wrong: all known images that occur must agree, not any",
    ),
    Stranger({"train/n01440764/n01440764_36.JPEG": 0, image_name(7): 334}, "unknown", _VACUOUS),
    Stranger({}, "unknown", _VACUOUS),
)


@check(
    buys="A minute before the job you now know whose labels a manifest holds; without that, a wrong order "
    "shows only as a validation accuracy of 0.1 % after the training.",
    errors={
        KeyError: "not every known image is in each manifest (it may be a part, or the training set); "
        "look only at those that occur in both",
    },
)
def label_order(attempt: Attempt) -> None:
    """`label_order(manifest, known)` is `sorted`, `other` or `unknown`."""
    for stranger in STRANGERS:
        got = attempt(stranger.manifest, KNOWN)
        attempt.require(
            isinstance(got, str) and got in ORDERS,
            got=got,
            expected=f"one of {', '.join(map(repr, ORDERS))}",
            because="the result is one of these three words",
        )
        attempt.expect(stranger.expected, got, because=stranger.because)
