"""Distinguish the two label orders of ImageNet by known values.

Sorted order (torchvision, Keras, the Jülich manifests): label = rank of the wnid among the sorted
wnids. Devkit order: label follows ILSVRC2012_ID. Both are numbers below 1000, both train without an
error, and a model trained with one is no better than guessing on the other.

The trap: `ILSVRC2012_ID - 1` looks like a 0-based label. Notebook 02 catches it with this module.
Short, since it also serves manifests of other software.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import pyarrow.compute as pc

from smallfiles.errors import SourceError
from smallfiles.manifest import Manifest

LabelOrder: TypeAlias = Literal["sorted", "devkit", "devkit, counted from 1", "unknown"]

_RANKS = {"n01440764": 0, "n01751748": 65, "n03146219": 524}
_SORTED = {
    **_RANKS,
    **{
        f"ILSVRC2012_val_{n:08}": label
        for n, label in zip(range(1, 7), (65, 970, 230, 809, 516, 57), strict=True)
    },
    "ILSVRC2012_val_00000293": 0,
}
_DEVKIT_IDS = {
    "n01751748": 490,
    **{f"ILSVRC2012_val_{n:08}": number for n, number in zip(range(1, 5), (490, 361, 171, 822), strict=True)},
}
CLASSES = 1000


def check_label_order(manifest: Manifest) -> LabelOrder:
    """Determine the order of the labels in an ImageNet manifest.

    Compares a few images whose labels are known; 1.28 million rows take about a second.

    Args:
        manifest: With labels of the 1000 classes.

    Returns:
        `sorted`, `devkit`, `devkit, counted from 1`, or `unknown` if it contains no known image.

    Raises:
        SourceError: The labels of known images contradict each other, or fit no order.
    """
    found = _known_labels(manifest)
    expected: dict[LabelOrder, dict[str, int]] = {
        "sorted": _SORTED,
        "devkit": {key: number - 1 for key, number in _DEVKIT_IDS.items()},
        "devkit, counted from 1": _DEVKIT_IDS,
    }
    known = {order: found.keys() & table.keys() for order, table in expected.items()}
    for order, table in expected.items():
        if known[order] and all(found[key] == {table[key]} for key in known[order]):
            return order
    if not any(known.values()):
        return "unknown"
    got = ", ".join(f"{key} = {sorted(labels)}" for key, labels in sorted(found.items()))
    right = ", ".join(f"{key} = {_SORTED[key]}" for key in sorted(found))
    raise SourceError(
        f"the labels of manifest {manifest.name!r} fit no label order ({got})",
        expected=f"in sorted order {right}",
        next_step="Make the manifest again from the class folders, LOC_val_solution.csv or the devkit",
    )


def refuse_other_order(manifest: Manifest) -> None:
    """Raise SourceError if the labels of the 1000 classes are not ranks of the sorted wnids."""
    ranks = sorted(manifest.classes)
    is_real = len(ranks) == CLASSES and all(ranks[rank] == wnid for wnid, rank in _RANKS.items())
    order = check_label_order(manifest) if is_real else "unknown"
    if order not in ("sorted", "unknown"):
        raise SourceError(
            f"the labels of {manifest.name!r} are in the order {order!r}",
            expected="the order 'sorted'",
            next_step="Check that the solution file or devkit belongs to ILSVRC2012",
        )


def _known_labels(manifest: Manifest) -> dict[str, set[int]]:
    """Labels that occur for each known key, without -1 (unknown)."""
    found = {}
    for key in _SORTED:
        rows = pc.match_substring(manifest.paths, key)
        labels = {label for label in manifest.targets.filter(rows).unique().to_pylist() if label >= 0}
        if labels:
            found[key] = labels
    return found
