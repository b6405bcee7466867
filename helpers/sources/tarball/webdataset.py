"""Recognise the webdataset layout: files that share a stem make one sample.

    000017.jpg  000017.cls (a number)  000017.txt (a caption)  000017.json (either, or an object)

The trap: the stem ends at the *first* dot of the name, so `cat.v2.jpg` and `cat.v3.jpg` collide.
Notebook 05 teaches the layout.

Source: webdataset's README, "The WebDataset Format".
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from helpers.errors import SourceError, first_few
from helpers.progress import plural
from helpers.samples import UNLABELLED, Meta, Target
from helpers.sources.record import Options
from helpers.sources.tarball.archive import Archive

_LABEL_KEYS = ("label", "cls", "class", "target")
_CAPTION_KEYS = ("captions", "caption", "txt", "text")


@dataclass(frozen=True)
class Labelled:
    """Targets and JSON objects of the samples of a webdataset tar, in the archive's order."""

    targets: list[Target]
    metas: list[Meta | None] | None
    notes: tuple[str, ...]


def stem_of(name: str) -> str:
    """What the members of a sample share: the name up to the first dot of its last component."""
    folder, slash, base = name.rpartition("/")
    return folder + slash + base.partition(".")[0]


def recognise(archive: Archive, samples: list[str], options: Options) -> Labelled | None:
    """Targets for `samples` from the side files of a tar; None if it has none for them.

    Args:
        archive: Index, with the bytes of side files.
        samples: Names of the samples.
        options: `strict` refuses samples without a target.

    Raises:
        SourceError: A side file does not say what it should, or targets are of two kinds.
    """
    sides = _side_files(archive)
    if not any(stem_of(name) in sides for name in samples):
        return None
    targets: list[Target] = []
    metas: list[Meta | None] = []
    without = []
    for name in samples:
        target, meta = _target_of(sides.get(stem_of(name), {}), f"{archive.path}:{stem_of(name)}")
        if target is None:
            without.append(name)
        targets.append(UNLABELLED if target is None else target)
        metas.append(meta)
    kind = list if any(isinstance(target, list) for target in targets) else int
    targets = [[] if kind is list and target == UNLABELLED else target for target in targets]
    _refuse_mixture(targets, kind, archive)
    if without and options.strict:
        raise _without_target(archive, without)
    empty = "no captions" if kind is list else f"label {UNLABELLED}"
    notes = (f"{plural(len(without), 'sample')} without a target: {empty}",) if without else ()
    return Labelled(targets, metas if any(metas) else None, notes)


def _side_files(archive: Archive) -> dict[str, dict[str, bytes]]:
    sides: dict[str, dict[str, bytes]] = {}
    for row, data in archive.contents.items():
        name = archive.names[row].as_py()
        sides.setdefault(stem_of(name), {})[name.rpartition(".")[2]] = data
    return sides


def _target_of(side: dict[str, bytes], where: str) -> tuple[Target | None, Meta | None]:
    target: Target | None = None
    meta: Meta | None = None
    if "json" in side:
        target, meta = _from_json(_parsed(json.loads, side["json"], f"{where}.json"), f"{where}.json")
    if "txt" in side:
        text = _parsed(bytes.decode, side["txt"], f"{where}.txt")
        target = [line for line in text.split("\n") if line]
    if "cls" in side:
        target = _parsed(int, side["cls"], f"{where}.cls")
    if "meta" in side:
        found = _parsed(json.loads, side["meta"], f"{where}.meta")
        meta = found if isinstance(found, dict) else meta
    return target, meta


def _from_json(value: Any, where: str) -> tuple[Target | None, Meta | None]:
    if isinstance(value, dict):
        for key in (*_LABEL_KEYS, *_CAPTION_KEYS):
            if key in value and (target := _as_target(value[key])) is not None:
                return target, value
        return None, value
    target = _as_target(value)
    if target is None:
        raise _bad(where, f"holds {value!r:.60}")
    return target, None


def _as_target(value: Any) -> Target | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    return None


def _parsed(parse: Callable[[bytes], Any], data: bytes, where: str) -> Any:
    try:
        return parse(data)
    except (ValueError, RecursionError):
        raise _bad(where, f"holds {data[:40]!r}") from None


def _refuse_mixture(targets: list[Target], kind: type, archive: Archive) -> None:
    if not all(isinstance(target, kind) for target in targets):
        raise SourceError(
            f"{archive.path} has samples with labels and samples with captions",
            expected="one kind of target in a set",
            next_step="Pack the two kinds into two archives",
        )


def _without_target(archive: Archive, names: list[str]) -> SourceError:
    return SourceError(
        f"{archive.path} has {plural(len(names), 'sample')} without a target: {first_few(names, len(names))}",
        expected="a .cls, .txt or .json member for each",
        next_step="Leave out strict to take them unlabelled",
    )


def _bad(where: str, what: str) -> SourceError:
    return SourceError(
        f"{where} {what}",
        expected="a class number, captions, or a JSON object with one of them",
        next_step="Make the archive again",
    )
