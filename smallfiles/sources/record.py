"""The parts of a source.

The trap: a source that repairs silently cannot be trusted. Every oddity (a repaired row, an image without
a caption, folders left out) is listed in `Source.notes`. Notebook 02 reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from smallfiles.errors import SourceError, first_few
from smallfiles.fields import name_problem
from smallfiles.folders import IMAGE_SUFFIXES, SourceOptions, canonical_split, choose_split, data_suffix
from smallfiles.manifest import Manifest
from smallfiles.manifest.class_folders import own_split
from smallfiles.manifest.listing import Files
from smallfiles.progress import plural
from smallfiles.samples import ByteStore
from smallfiles.sources import declarations
from smallfiles.sources.scanning import Notes, Tree, sizes_of
from smallfiles.sources.stores import FolderStore

_Thing = TypeVar("_Thing")
FIELDS_FLAG = (
    "--field mask=masks/{stem}.png, or "
    "--field image=imagesTr/{id}_0000.nii.gz --field mask=labelsTr/{id}.nii.gz"
)
"""How a user says which files belong together."""


@dataclass(frozen=True)
class Source:
    """Samples and where their bytes are.

    Args:
        manifest: Path and target of every sample.
        store: Reads the bytes of a path of the manifest.
        kind: What the path was recognised as, in words.
        notes: What was odd, repaired or left out, one sentence per item.
        root: The folder or tar file that the manifest's paths are relative to.
        resize: How pictures were scaled when this was packed; None if they were not.
        member_suffixes: See `Schema.member_suffixes`.
        columns: See `SourceOptions.columns`; what reading the same again needs.
    """

    manifest: Manifest
    store: ByteStore
    kind: str
    notes: Notes = ()
    root: Path | None = None
    resize: Mapping[str, Any] | None = None
    member_suffixes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()


def noted(names: Collection[object] | pa.Array, one: str, what: str) -> Notes:
    """A note on what is odd, with the count and the first few; none if there is nothing."""
    few = first_few(names)
    return (f"{plural(len(names), one)} {what}: {few}",) if len(names) else ()


def left_out(names: Collection[object] | pa.Array, one: str, which: str) -> Notes:
    """A note on what has no place in a source."""
    return noted(names, one, f"{which} left out")


def chosen_split(found: Iterable[str], wanted: str | None, where: Path) -> tuple[str, str, Notes]:
    """The chosen one of the splits of a source, as it is spelled there, its usual name, and notes.

    Args:
        found: The splits; an empty name is what belongs to none, and is chosen if there are no others.
        wanted: The requested split, or None.
        where: The source; its name may be that of a split.

    Raises:
        SourceError: The requested split does not exist, or none was requested and there is no train split.
    """
    named = [name for name in found if name]
    if not named:
        return "", *own_split(where, wanted)
    name, notes = choose_split(named, wanted, where)
    return name, canonical_split(name, named) or name, notes


def of_split(
    things: Iterable[_Thing], split_of: Callable[[_Thing], str], wanted: str | None, where: Path
) -> tuple[list[_Thing], str, str, Notes]:
    """Return the things of the chosen split, and what `chosen_split` returns.

    Args:
        things: Files or folders.
        split_of: Returns the split of one, as it is spelled there; empty if it belongs to none.
        wanted: The requested split, or None.
        where: The source.
    """
    named: dict[str, list[_Thing]] = {}
    for thing in things:
        named.setdefault(split_of(thing), []).append(thing)
    name, split, notes = chosen_split(sorted(named), wanted, where)
    return named.get(name, []), name, split, notes


def refuse_other_split(where: Path, own: str | None, wanted: str | None, what: str) -> None:
    """Raise SourceError if a manifest or packed file is of another split than the requested one."""
    if wanted not in (None, own):
        raise SourceError(
            f"{where} is of split {own!r}, and {wanted!r} was requested",
            expected=f"the {what} of this split",
            next_step="Give that one, or no split",
        )


def given_first(name: str, options: SourceOptions) -> str:
    """The name of the first file's field if `--field` gave it and a field can have it, else nothing."""
    given = name in (text.partition("=")[0] for text in options.columns)
    return name if given and not name_problem(name) else ""


def with_data_suffix(options: SourceOptions, counts: Mapping[str, int]) -> tuple[SourceOptions, Notes]:
    """The options for a source without images: with the suffix of most data files, and a note on it.

    Args:
        options: The suffixes that a user asked for stay.
        counts: Number of files with each suffix.
    """
    suffix = data_suffix(counts) if options.suffixes == IMAGE_SUFFIXES else None
    if suffix is None:
        return options, ()
    return replace(options, suffixes=(suffix,)), (f"no images: {suffix} files taken as samples",)


def refuse_if_strict(notes: Notes, options: SourceOptions, where: object) -> None:
    """Raise SourceError if something was left out or is odd and nothing may be."""
    if notes and options.strict:
        raise SourceError(
            f"{where} has more than whole samples: {'; '.join(notes)}",
            expected="nothing left out, since --strict was given",
            next_step="Complete or remove what is named, or leave out --strict",
        )


@dataclass(frozen=True)
class Samples:
    """The samples that a rule found among files.

    Args:
        keys: Path of each.
        kind: What the source was recognised as, in words.
        columns: Further arguments of `Manifest.from_columns`.
        notes: What was odd or chosen, one sentence per item.
        faults: What was left out; `--strict` refuses it.
        used: Other files that were read.
        chosen: The one of them that was read where another of its kind could have been; empty if none was.
        files: Paths of all files of the samples, if there are more than keys.
        more: Further fields of `Source`.
    """

    keys: pa.StringArray
    kind: str
    columns: Mapping[str, Any]
    notes: Notes = ()
    faults: Notes = ()
    used: Sequence[str] = ()
    chosen: str = ""
    files: pa.StringArray | None = None
    more: Mapping[str, Any] = field(default_factory=dict)


def source_of(files: Files, found: Samples, options: SourceOptions) -> Source:
    """Make a source of the samples that a rule found: the last step of all readers.

    Raises:
        SourceError: Something was left out and `--strict` was given, or other files name the samples.
        ManifestError: Keys or targets cannot be those of a data set.
    """
    assert files.store is not None
    refuse_if_strict(found.faults, options, files.where)
    columns = dict(found.columns)
    if options.sizes and isinstance(files.store, FolderStore) and "sizes" not in columns:
        columns["sizes"] = sizes_of(files.where, found.keys, follow_links=options.follow_links)
    columns.setdefault("name", files.where.absolute().name.partition(".")[0] or "dataset")
    manifest = Manifest.from_columns(found.keys, **columns)
    kept = found.keys if found.files is None else found.files
    notes = declarations.check(files, kept, options, found.used, found.chosen)
    notes = (*found.notes, *found.faults, *notes)
    return Source(manifest, files.store, found.kind, notes, files.where, **found.more)


def files_of(tree: Tree, options: SourceOptions) -> Files:
    """The files of a tree, as rules take them."""
    store = FolderStore(tree.root, follow_links=options.follow_links)
    return Files(
        tree.root,
        tree.paths(),
        tree.other_paths(),
        tree.empty(),
        store.head,
        fields_flag=FIELDS_FLAG,
        declared=options.suffixes != IMAGE_SUFFIXES,
        store=store,
    )
