"""Keys as member names, so that webdataset groups members correctly and every key is recovered exactly.

webdataset cuts a name at the *first* dot of its last component, drops names with a line feed in a
folder, and skips first folders like `__this__` (its `base_plus_ext` and `tar_file_iterator`).

The trap: `cat.v2.jpg` and `cat.v3.jpg` become one sample there. So a key that does not survive these
rules is written with percent escapes (`cat%2Ev2%2Ejpg.jpg`), and a `%` in the last component's stem
marks the name as escaped. Notebook 05 shows both.
"""

from __future__ import annotations

import re
from collections.abc import Container
from urllib.parse import unquote

ANNOTATIONS = ("cls", "json", "txt", "meta")
"""Suffixes of the members that hold a sample's label, captions and JSON object."""

RESERVED = frozenset({*ANNOTATIONS, "idx"})
_CONTROL = r"\x00-\x1f\x7f"
_PLAIN = re.compile(
    rf"(?!__[^/]*__/|(?:[^/]*/)*\.\.?/)((?:[^/{_CONTROL}]+/)*[^/%.{_CONTROL}]+)\.([A-Za-z0-9]+)"
)
_IN_FOLDER = re.compile(rf"[%{_CONTROL}]")
_IN_STEM = re.compile(rf"[%.{_CONTROL}]")
_SKIPPED_FOLDER = re.compile(r"__[^/]*__/")
_SUFFIX = re.compile(r"[A-Za-z0-9]+")


def split_key(key: str, shared_stems: Container[str] = ()) -> tuple[str, str]:
    """Stem and suffix under which a sample's members are stored.

    Args:
        key: A valid key (see `smallfiles.keys`).
        shared_stems: Stems that several keys of the set have.

    Returns:
        (stem, suffix): the data's member is `stem.suffix`, the label's is `stem.cls`.
    """
    plain = _PLAIN.fullmatch(key)
    if plain is not None and plain[2].lower() not in RESERVED and plain[1] not in shared_stems:
        return plain[1], plain[2]
    return _escaped(key)


def _escaped(key: str) -> tuple[str, str]:
    folder, slash, base = key.rpartition("/")
    stem = _IN_STEM.sub(_percent, base)
    if "%" not in stem:
        stem = stem[:-1] + "".join(f"%{byte:02X}" for byte in stem[-1].encode())
    folder = _IN_FOLDER.sub(_percent, folder)
    if _SKIPPED_FOLDER.match(folder + slash):
        folder = "%5F" + folder[1:]
    suffix = base.rpartition(".")[2] if "." in base else ""
    if not _SUFFIX.fullmatch(suffix) or suffix.lower() in RESERVED:
        suffix = "bin"
    return folder + slash + stem, suffix


def _percent(match: re.Match[str]) -> str:
    return f"%{ord(match[0]):02X}"


def key_of(name: str) -> str:
    """The key of the member `name` of a shard that we wrote."""
    folder, slash, base = name.rpartition("/")
    stem = base.partition(".")[0]
    if "%" not in stem:
        return name
    return unquote(folder) + slash + unquote(stem)
