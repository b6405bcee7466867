"""What the names of folders say of fields: `masks/` beside `images/` has the mask of each image.

    images/ masks/       train/ train_masks/       JPEGImages/ SegmentationClass/       HR/ LR/
    train/images/ train/masks/                     images/train/ masks/train/

A folder of parts belongs to the one whose name is the same but for the words that say so (`masks`, `images`),
beside it. The trap: `with_mask/` and `mask/` are classes as often as not, and only files with partners tell
(see `partners`). docs/recipes.md has an example.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise

from smallfiles.fields import RESERVED
from smallfiles.folders import canonical_split, words_of
from smallfiles.manifest.signs import NEGATIONS, PAIRS, PARTS, WHOLE

WHOLES = WHOLE | PAIRS.keys()
"""Words in the names of folders of images."""

_UNIMPORTANT = frozenset({"jpeg", "jpg", "png", "class", "object"})


def sites(paths: Sequence[str]) -> dict[str, tuple[str, str]]:
    """The folders of first and further files among others, each with a trailing slash.

    Args:
        paths: All folders in which files are.

    Returns:
        What the names of the samples in each begin with, and the name of its field; empty for first files.
    """
    below: dict[str, dict[str, None]] = {}
    for above, path in chain.from_iterable(pairwise(folders_above(path)) for path in paths):
        below.setdefault(above, {})[path[len(above) : -1]] = None
    found: dict[str, tuple[str, str]] = {}
    filled = {*paths}
    for prefix, names in below.items():
        for whole, parts in _fields_by_folder([*names]).items():
            keeps_name = canonical_split(whole) or len(names) > 1 + len(parts)
            name = f"{prefix}{whole}/" if keeps_name else prefix
            found[f"{prefix}{whole}/"] = (name, "")
            for part, of in parts.items():
                found[_past_wrappers(f"{prefix}{part}/", f"{prefix}{whole}/", below, filled)] = (name, of)
    return found


def folders_above(path: str) -> Iterator[str]:
    """A folder and those that it is in, from the root, each with a trailing slash but the root."""
    yield ""
    for match in re.finditer("/", path):
        yield path[: match.end()]


def _past_wrappers(part: str, whole: str, below: Mapping[str, Iterable[str]], filled: set[str]) -> str:
    """The folder of the files where a folder of parts only wraps another: `annotations/trimaps/`."""
    while part not in filled and len(inside := [*below[part]]) == 1 and inside[0] not in below.get(whole, ()):
        part += f"{inside[0]}/"
    return part


def _fields_by_folder(names: Sequence[str]) -> dict[str, dict[str, str]]:
    """The field of each folder of parts, by the folder that it belongs to; without unclear ones."""
    found: dict[str, dict[str, str]] = {}
    for whole in filter(_is_whole, names):
        fields = {name: _field_of(name, whole) for name in names if name != whole}
        several = [*fields.values()]
        parts = {
            name: field if several.count(field) == 1 else field_name("_".join(words_of(name)))
            for name, field in fields.items()
            if field
        }
        if any(parts.keys() & other for other in found.values()):
            return {}
        if parts:
            found[whole] = parts
    return found


def _is_whole(name: str) -> bool:
    found = {*words_of(name)}
    return bool(found & WHOLES or canonical_split(name)) and not found & (PARTS | NEGATIONS)


def is_part(name: str) -> bool:
    """Whether a folder or file has parts of samples by its name."""
    found = {*words_of(name)}
    return bool(found & PARTS) and not found & NEGATIONS


def _field_of(name: str, whole: str) -> str:
    """The field of a folder if it has parts of what another contains; empty otherwise."""
    own, theirs = words_of(name), words_of(whole)
    known = PARTS.union(*(PAIRS.get(word, ()) for word in theirs))
    marks = [word for word in own if word in known]
    rest = [word for word in own if word not in known | _UNIMPORTANT]
    if not marks or NEGATIONS.intersection(own):
        return ""
    is_same = rest == [word for word in theirs if word not in WHOLES | _UNIMPORTANT]
    return field_name(singular(marks[-1])) if is_same else ""


def singular(word: str) -> str:
    """`mask` of `masks`, `box` of `boxes`."""
    return word[:-2] if word.endswith("xes") else word.removesuffix("s")


def field_name(name: str) -> str:
    """The name as that of a field; `_image` follows where it would mean something else."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    return f"{name}_image" if name in RESERVED else name


def place(path: str, known: Mapping[str, tuple[str, str]]) -> tuple[str | None, str | None]:
    """What the names of the samples in a folder begin with, and the field; a bare split has images.

    Args:
        path: The folder.
        known: From `sites`.
    """
    for above in folders_above(path):
        if found := known.get(above):
            return found[0] + path[len(above) :], found[1]
    names = path.split("/")[:-1]
    is_split = any(map(canonical_split, names)) and not any(map(is_part, names))
    return (path, "") if is_split else (None, None)
