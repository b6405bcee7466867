"""What names of files and folders mean: which files are images, which folders are splits.

The trap: `valid`, `validation` and `val` are one split, and a folder called `test` may be a class. So the
names are known in one place, for sources and for packed files alike. Notebook 02 shows the layouts.
"""

from __future__ import annotations

from smallfiles.errors import SourceError

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".webp", ".tif", ".tiff", ".gif")

_SPLITS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}


def canonical_split(name: str) -> str | None:
    """`train`, `val` or `test` for the usual names of these splits, else None."""
    return _SPLITS.get(name.lower())


def choose_split(found: list[str], wanted: str | None, where: object) -> tuple[str, tuple[str, ...]]:
    """Choose among the splits of a source: the one wanted, the only one, or train.

    Args:
        found: Names of the splits as the source spells them; not empty.
        wanted: What was asked for, or None.
        where: The source, for the message.

    Returns:
        The chosen name as the source spells it, and notes.

    Raises:
        SourceError: It is not there, or nothing was asked for and there is no train split.
    """
    names = ", ".join(found)
    if wanted is not None:
        for name in found:
            if name == wanted or canonical_split(name) == (canonical_split(wanted) or wanted):
                return name, ()
        raise SourceError(
            f"{where} has no split {wanted!r}",
            expected=f"one of its splits: {names}",
            next_step="Choose one of these",
        )
    if len(found) == 1:
        return found[0], ()
    for name in found:
        if canonical_split(name) == "train":
            return name, (f"splits found: {names}; {name} was taken since none was asked for",)
    raise SourceError(
        f"{where} has several splits ({names})",
        expected="to be told which one",
        next_step=f"Choose one, for example --split {found[0]}",
    )
