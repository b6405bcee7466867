"""Which members make a sample, in shards that have no index: ours and those of other programs.

Neighbours that share a stem (webdataset's rule: up to the first dot) are one sample. Its data is the
member that looks like an image, else the first that is no target; `.cls`, `.json`, `.txt` and `.meta`
are read for label, captions and meta.

The trap: there is no standard. tarp and ShardWriter keep the order they are given, `tar --sort=name`
puts `.cls` before `.jpg`, and a `.json` may be captions, a label or anything. Notebook 05 shows them.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from helpers.errors import FormatError
from helpers.formats import provenance
from helpers.formats.placed import Store
from helpers.formats.tar import names
from helpers.formats.tar.index import Index, IndexBuilder
from helpers.formats.tar.parse import Member, Walk
from helpers.formats.tar.stores import peek
from helpers.keys import key_problem
from helpers.samples import UNLABELLED, Target

_IMAGES = ("jpg", "jpeg", "png", "webp", "ppm", "pgm", "bmp", "tif", "tiff", "gif", "jp2", "avif", "jxl")
_BESIDE = names.RESERVED | {"id", "caption", "label", "text"}
_MAX_BESIDE_BYTES = 64 << 20


def scan(path: Path, store: Store) -> Index:
    """Make the index of a tar by reading all its headers once.

    Args:
        path: The tar, for messages.
        store: Its (unpacked) bytes.

    Returns:
        The index, not bound to a file.

    Raises:
        DamagedFileError: The tar is damaged or cut.
        FormatError: It holds what cannot be a sample.
    """
    walk = Walk(path, store)
    samples = (_Sample(path, store, group, walk.is_ours) for group in _groups(path, walk))
    first = next(samples, None)
    kind = provenance.target_kind(walk.provenance) or ("captions" if first and first.captions else "label")
    builder = IndexBuilder(kind)
    for sample in itertools.chain([first] if first else [], samples):
        target: Target = sample.label if kind == "label" else sample.captions or []
        builder.add(sample.key, sample.data.offset, sample.data.size, target, sample.meta)
    return builder.build(provenance=walk.provenance)


def _groups(path: Path, members: Iterable[Member]) -> Iterator[dict[str, Member]]:
    """Members of each sample by suffix, in stored order."""
    group: dict[str, Member] = {}
    stem: str | None = None
    for member in members:
        split = names.split_member(member.name)
        if split is None:
            continue
        if split[0] != stem and group:
            yield group
            group = {}
        stem, suffix = split
        if suffix in group:
            raise _unreadable(path, member, "comes twice in one sample", "one member of each suffix")
        group[suffix] = member
    if group:
        yield group


class _Sample:
    """What the members of one group say."""

    def __init__(self, path: Path, store: Store, group: dict[str, Member], is_ours: bool) -> None:
        self._path, self._store = path, store
        self.label: int = UNLABELLED
        self.captions: list[str] | None = None
        self.meta: str | None = None
        self.data = next(iter(group.values())) if is_ours else _data_of(group)
        self.key = names.key_of(self.data.name) if is_ours else self.data.name
        if (problem := key_problem(self.key)) is not None:
            raise _unreadable(path, self.data, f"as a key {problem}", "relative, normalised names")
        for suffix, member in group.items():
            if member is not self.data:
                self._take(suffix.lower(), member)

    def _take(self, suffix: str, member: Member) -> None:
        if suffix == "cls":
            self.label = self._label(member)
        elif suffix == "txt":
            self.captions = self._text(member).removesuffix("\n").split("\n") if member.size else []
        elif suffix == "meta":
            self._object(member, self._json(member))
        elif suffix == "json":
            self._take_json(member, self._json(member))

    def _take_json(self, member: Member, value: Any) -> None:
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            self.captions = value
        elif isinstance(value, str):
            self.captions = [value]
        elif type(value) is int:
            self.label = self._bounded(member, value)
        elif isinstance(value, dict):
            self._object(member, value)
            label = value.get("label", value.get("cls"))
            if type(label) is int and self.label == UNLABELLED:
                self.label = self._bounded(member, label)

    def _object(self, member: Member, value: Any) -> None:
        if not isinstance(value, dict):
            raise _unreadable(self._path, member, "is no JSON object", "a JSON object as meta")
        self.meta = self._text(member)

    def _label(self, member: Member) -> int:
        text = self._text(member).strip() if member.size <= 64 else ""
        try:
            return self._bounded(member, int(text))
        except ValueError:
            raise _unreadable(self._path, member, f"holds {text!r}", "a decimal label") from None

    def _bounded(self, member: Member, label: int) -> int:
        if not -(1 << 63) <= label < 1 << 63:
            raise _unreadable(self._path, member, "holds a label beyond 64 bits", "a 64-bit label")
        return label

    def _json(self, member: Member) -> Any:
        try:
            return json.loads(self._text(member))
        except (ValueError, RecursionError) as error:
            raise _unreadable(self._path, member, f"is no JSON ({error})", "JSON") from error

    def _text(self, member: Member) -> str:
        if member.size > _MAX_BESIDE_BYTES:
            raise _unreadable(self._path, member, f"has {member.size:,} bytes", "a short text")
        try:
            return str(peek(self._store, member.offset, member.size), "utf-8")
        except UnicodeDecodeError as error:
            raise _unreadable(self._path, member, f"is no UTF-8 ({error.reason})", "UTF-8 text") from error


def _data_of(group: dict[str, Member]) -> Member:
    images = [member for suffix, member in group.items() if suffix.lower() in _IMAGES]
    images += [m for suffix, m in group.items() if suffix.lower().rpartition(".")[2] in _IMAGES]
    others = [member for suffix, member in group.items() if suffix.lower() not in _BESIDE]
    return (images or others or list(group.values()))[0]


def _unreadable(path: Path, member: Member, problem: str, expected: str) -> FormatError:
    return FormatError(
        f"{path}: the member {member.name!r} (byte {member.offset:,}) {problem}",
        expected=expected,
        next_step="Check how the tar was made, or pack the source again with this package",
    )
