"""The 1,000 classes of ImageNet-1k by their WordNet numbers, in the order of the sorted numbers.

The trap is in the names: "crane" and "maillot" occur twice, so a class is identified by its number. The
pictures of "tench" show no fish; only the file layout is faithful. Notebook 02 teaches the
two label orders with it.

Source: the wnids and words of ILSVRC2012 (`LOC_synset_mapping.txt`), words from WordNet 3.0.
"""

from __future__ import annotations

import random
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=1)
def _all_classes() -> tuple[tuple[str, str], ...]:
    text = Path(__file__).with_name("ilsvrc_classes.txt").read_text(encoding="utf-8")
    return tuple((line[:9], line[10:]) for line in text.splitlines())


def wnids(classes: int) -> tuple[str, ...]:
    """The first WordNet numbers in sorted order; the index is the label that training code uses."""
    return tuple(wnid for wnid, _ in _all_classes()[:classes])


def words(classes: int) -> tuple[str, ...]:
    """The names of the classes, several per class separated by ", "."""
    return tuple(names for _, names in _all_classes()[:classes])


def ilsvrc_ids(classes: int, seed: int) -> tuple[int, ...]:
    """The devkit's number of each class, 1 to `classes`, in another order than the sorted wnids."""
    ids = list(range(1, classes + 1))
    random.Random(f"ilsvrc ids {seed}").shuffle(ids)
    if classes > 1 and ids == sorted(ids):
        ids.reverse()
    return tuple(ids)
