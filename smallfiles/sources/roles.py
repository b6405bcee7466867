"""Which column of a table is which field of a sample: by `--field NAME=SPEC`, or by its usual name.

    --field image=filename --field mask=masks/{id}.png --field label=species --field age=years

A SPEC with braces is a template of paths, any other a column. Of files are templates and columns whose first
texts end like files or name files. All other columns become values under their own names; only those that no
format can hold go into the JSON object of each sample (meta).

The trap: a float in a column `label` is no class number. It is refused, and `--field score=label` keeps it
as a value. docs/recipes.md has an example.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from smallfiles.arrays import joined, scalar
from smallfiles.errors import SourceError, UsageError, first_few, refuse_shortage
from smallfiles.fields import name_problem, stored_type
from smallfiles.folders import FILE_SUFFIXES, SourceOptions
from smallfiles.sources.table_files import TEXT_SUFFIXES

PATHS = "file_name filename file_path filepath path file image img image_path img_path image_name image_file"
IDS = f"{PATHS} id image_id name key stem"
MORE_FILES = "_file_name"
"""Ending of the names of columns with additional files, in the metadata of Hugging Face."""

_FIRST = ("image", "audio", "video", "array", "file", "data")
_TARGETS = ("label", "captions")
_LABELS = "label labels class class_name category species target"
_CAPTIONS = "caption captions text"
_WITHOUT_HEADER = (
    "; if the table has no header, its columns are column1, column2 and so on: --field image=column1, or "
    "--field 'image=images/{column1}.jpg' for ids"
)
_BRACES = re.compile(r"\{([^{}]*)\}")
_LOOKED_AT = 20


@dataclass(frozen=True)
class Roles:
    """What the columns of a table mean.

    Args:
        first: Name of the field of the first file.
        image: The column with the paths of the first files, or a template such as `images/{id}.png`.
        target: The column of labels or captions. It is None for unlabelled samples.
        kind: Whether the target is `label` or `captions`.
        blobs: Column or template of each field of additional files.
        values: Column of each field of values.
        meta: The columns that no field can hold.
    """

    first: str
    image: str
    target: str | None
    kind: str
    blobs: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, str] = field(default_factory=dict)
    meta: tuple[str, ...] = ()


def roles_of(table: pa.Table, path: Path, options: SourceOptions, usual: str, root: Path) -> Roles:
    """Decide what each column of a table means.

    Args:
        table: All columns.
        path: Path of the table.
        options: The options. `columns` (the flags `--field`) and `unlabelled` are used.
        usual: The usual names of the column of paths.
        root: The folder that paths are relative to.

    Raises:
        UsageError: The flags contradict each other.
        SourceError: A column is missing, or the meaning of no column is clear.
    """
    given = given_fields(table.column_names, path, options)
    further = {
        name.removesuffix(MORE_FILES): name
        for name in table.column_names
        if usual == "file_name" and name.endswith(MORE_FILES) and name not in given.values()
    }
    rest = {name: spec for name, spec in given.items() if name not in _TARGETS}
    files = further | {name: spec for name, spec in rest.items() if _is_of_files(table, name, spec, root)}
    first, image = _first(table.column_names, path, files, rest, usual)
    return _roles(table, path, options, {first: image} | files)


def roles_inside(table: pa.Table, path: Path, options: SourceOptions, inside: Sequence[str]) -> Roles:
    """Decide what each column means in a table that holds the files themselves in some columns.

    Args:
        table: All other columns.
        path: Path of the table.
        options: As in `roles_of`.
        inside: The columns that hold files.

    Raises:
        UsageError: The flags contradict each other, or name other files.
        SourceError: A column is missing, or the meaning of no column is clear.
    """
    given = given_fields([*inside, *table.column_names], path, options)
    if any("{" in spec for spec in given.values()):
        raise _unclear(options, f"names files beside {path}, which holds its files", "columns of it")
    files = {name: spec for name, spec in given.items() if spec in inside}
    files |= {name: name for name in inside if name not in files.values()}
    first = next((name for name in _FIRST if name in files), None)
    if first is None:
        first = next(iter(files)) if len(files) == 1 else _usual([*files], path, PATHS, "image")
    return _roles(table, path, options, {first: files[first]} | files)


def says_files(names: Sequence[str], columns: Iterable[str]) -> bool:
    """Check whether a flag `--field` or a usual name says that one of these columns holds files."""
    return bool({text.partition("=")[2] for text in columns} & {*names} or _known(names, PATHS))


def _roles(table: pa.Table, path: Path, options: SourceOptions, files: dict[str, str]) -> Roles:
    """Decide what the columns mean that do not hold files: they are targets, values or part of meta.

    The first entry of `files` is the field whose paths are the keys.
    """
    given = dict(map(_field, options.columns))
    (first, image), *further = files.items()
    targets = [name for name in given if name in _TARGETS]
    if len(targets) > 1:
        raise _unclear(options, "have two targets", "label=... or captions=...")
    renamed = {name: spec for name, spec in given.items() if name not in (*files, *targets)}
    taken = (*files.values(), *given.values())
    free = [name for name in table.column_names if name not in taken]  # those of templates are values too
    types = dict(zip(table.schema.names, table.schema.types, strict=True))
    storable = [name for name in free if stored_type(types[name]) is not None]
    own = {name: name for name in storable if not (name_problem(name) or name in files)}
    if twice := sorted(renamed.keys() & own.keys()):
        raise _unclear(options, f"gives a name twice: {twice[0]} is another column", "a name for each")
    kind = "captions" if _known(free, _CAPTIONS) and not _known(free, _LABELS) else "label"
    target = None
    if targets:
        kind, target = targets[0], given[targets[0]]
    elif not options.unlabelled and (known_targets(free) or not (own or renamed or further)):
        target = _usual(free, path, _CAPTIONS if kind == "captions" else _LABELS, kind)
    own.pop(str(target), None)
    meta = tuple(name for name in free if name not in own and name != target)
    return Roles(first, image, target, kind, dict(further), own | renamed, meta)


def columns_of(spec: str) -> list[str]:
    """Return the columns that a SPEC names."""
    return _BRACES.findall(spec) if "{" in spec else [spec]


def parts_of(spec: str) -> list[str]:
    """Split a template into its pieces: text, column, text, column, …, text."""
    return _BRACES.split(spec)


def filled(spec: str, texts_of: Callable[[str], pa.Array]) -> pa.Array:
    """Fill in a template with the texts of its columns, for each row.

    It is null where one of the texts is null.
    """
    parts = enumerate(parts_of(spec))
    return joined(*(texts_of(part) if at % 2 else scalar(part) for at, part in parts))


def check_columns(names: Sequence[str], spec: str, path: Path, next_step: str) -> None:
    """Raise SourceError if a table lacks a column that a SPEC names."""
    for name in columns_of(spec):
        if name not in names:
            raise SourceError(
                f"{path} has no column {name!r}",
                expected=first_few(names, limit=8),
                next_step=next_step,
            )


def sentence(roles: Roles, values: pa.Schema, path: Path, classes: str) -> str:
    """Return one line that says how each column was interpreted.

    `values` has the types of the columns of values, and `classes` is a phrase about the classes.
    """
    taken = [f"{path.name}: {roles.first} from {roles.image}"]
    taken += [f"{name} from {spec}" for name, spec in roles.blobs.items()]
    taken += [f"{roles.kind} from {roles.target}" if roles.target else "no label or captions"]
    taken += [classes] * bool(classes)
    types = [
        f"{name} ({values.field(name).type}{f' from {spec}' * (name != spec)})"
        for name, spec in roles.values.items()
    ]
    taken += [f"values: {first_few(types, limit=8)}"] * bool(types)
    if roles.meta:
        names = first_few([name or "(no name)" for name in roles.meta], len(roles.meta), 8)
        taken += [f"in meta: {names} (a name or type that no field can have; --field NAME=COLUMN renames)"]
    return ", ".join(taken)


def given_fields(names: Sequence[str], path: Path, options: SourceOptions) -> dict[str, str]:
    """Return the flags `--field` as a dictionary of NAME to SPEC.

    Raises:
        UsageError: A flag is not NAME=SPEC, or a field is named twice.
        SourceError: The table has no column of this name.
    """
    pairs = [_field(text) for text in options.columns]
    if len(dict(pairs)) < len(pairs):
        raise _unclear(options, "name a field twice", "each field once")
    for _, spec in pairs:
        check_columns(names, spec, path, "Correct --field")
    return dict(pairs)


def _field(text: str) -> tuple[str, str]:
    name, equals, spec = text.partition("=")
    if not (name and equals and spec):
        raise UsageError(
            f"--field is {text!r}", expected="NAME=COLUMN, for example label=species", next_step="Correct it"
        )
    return name, spec


def _unclear(options: SourceOptions, what: str, expected: str) -> UsageError:
    return UsageError(
        " ".join(f"--field {each}" for each in options.columns) + f" {what}",
        expected=expected,
        next_step="Correct --field",
    )


def _is_of_files(table: pa.Table, name: str, spec: str, root: Path) -> bool:
    """Check whether a field consists of files.

    It does if its SPEC is a template, or if the texts of its column end like file names or name files.
    """
    return (
        "{" in spec
        or name == "image"
        or any(text.lower().endswith(FILE_SUFFIXES) or _is_file(root, text) for text in _texts(table, spec))
    )


def _texts(table: pa.Table, name: str) -> list[str]:
    """Return the first texts of a column. Return none if the column has another type."""
    texts = table.column(name)
    if not pa.types.is_string(texts.type):
        return []
    known: list[str] = texts.slice(0, 100 * _LOOKED_AT).drop_null().slice(0, _LOOKED_AT).to_pylist()
    return known


def _is_file(root: Path, text: str) -> bool:
    try:
        return bool(text) and (root / text).is_file()
    except (OSError, ValueError) as error:  # too long, or with a NUL
        refuse_shortage(error, root / text)
        return False


def names_files(table: pa.Table, name: str, root: Path) -> bool:
    """Check whether the first texts of a column are paths of files that exist."""
    known = _texts(table, name)
    return bool(known) and all(_is_file(root, text) for text in known)


def _first(
    names: Sequence[str], path: Path, files: Mapping[str, str], given: Mapping[str, str], usual: str
) -> tuple[str, str]:
    """Return the name and the SPEC of the field whose paths are the keys.

    It is one of the usual names of fields (`image`, `audio` …), or else the column with a usual name, or else
    the first field of files.
    """
    for name in (*(name for name in _FIRST if name in files), *(name for name in _FIRST if name in given)):
        return name, given.get(name) or files[name]
    free = [name for name in names if name not in given.values()]
    found = _known(free, usual)
    if len(found) == 1 or not (files or given):
        return "image", _usual(free, path, usual, "image")
    if not files and not found:  # a wrong root: looking for its files says so
        files = {name: spec for name, spec in given.items() if "{" not in spec}
    for name in files:
        return name, files[name]
    return "image", _usual(free, path, usual, "image")


def known_targets(names: Iterable[str]) -> list[str]:
    """Return the columns that have a usual name of labels or captions."""
    return _known(names, f"{_LABELS} {_CAPTIONS}")


def _known(names: Iterable[str], usual: str) -> list[str]:
    return [name for name in names if name.strip().lower() in usual.split()]


def _usual(names: Sequence[str], path: Path, usual: str, field: str) -> str:
    """Return the only column that has one of the usual names of a field.

    Raise an error if it is not the only one.
    """
    found = _known(names, usual)
    if len(found) == 1:
        return found[0]
    several = f"several columns for the {field}: {first_few(found, limit=8)}"
    raise SourceError(
        f"{path} has {several if found else f'no usual column for the {field}'}",
        expected=f"the choice of one of its columns: {first_few(names, limit=8)}",
        next_step=f"Add --field {field}={found[0] if found else 'COLUMN'}"
        + (" or --unlabelled" * (field == "label"))
        + (_WITHOUT_HEADER * (field == "image" and path.suffix.lower() in TEXT_SUFFIXES)),
    )
