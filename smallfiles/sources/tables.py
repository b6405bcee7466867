"""Tables of samples: one row per file, with a column of paths and one of labels or captions.

    smallfiles pack labels.csv out.arrow --field image=filename --field label=species
    smallfiles pack DIR out.arrow --labels labels.csv
    smallfiles pack DIR out.arrow          # with a metadata.csv of Hugging Face (file_name, ...) in DIR

Class names are numbered in sorted order, integers stay. Other columns go into the meta of each sample.

The trap: rows and files rarely match one to one, and a join that silently drops the rest trains on less data.
So unmatched rows and files are counted and named. docs/recipes.md has an example.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.arrays import as_mask, column, from_numpy, one_chunk, scalar, to_numpy
from smallfiles.errors import SourceError, UsageError, first_few
from smallfiles.faults import summary_of
from smallfiles.folders import SourceOptions, canonical_split, choose_split
from smallfiles.manifest import Manifest
from smallfiles.manifest.class_folders import own_split
from smallfiles.manifest.columns import path_column
from smallfiles.progress import plural
from smallfiles.samples import UNLABELLED, TargetKind
from smallfiles.sources.folder import FolderStore, find_samples
from smallfiles.sources.record import Source
from smallfiles.sources.scanning import list_folder, sizes_of
from smallfiles.sources.table_files import read_table

_METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
_PATHS = "file_name filename file_path filepath path file image img image_path img_path image_name image_file"
_IDS = f"{_PATHS} id image_id name key stem"
_LABELS = "label labels class class_name category species target"
_CAPTIONS = "caption captions text"
_BRACES = re.compile(r"\{([^{}]*)\}")
_MATCHED_BY = {"relative path": "^$", "file name": r"(?s)^.*/", "stem": r"(?s)^.*/|\.[^./]*$"}
"""Ways to match rows with files, and what each removes from both sides."""


@dataclass(frozen=True)
class _Roles:
    """What the columns of a table are.

    Args:
        image: The column of paths, or a template such as `images/{id}.png`.
        target: The column of labels or captions; None for unlabelled samples.
        kind: Which of the two it is.
    """

    image: str
    target: str | None
    kind: TargetKind


@dataclass(frozen=True)
class Metadata:
    """The `metadata.*` file of a folder as Hugging Face reads it.

    Args:
        file: The table.
        below: Its folder in the data set, with a trailing slash; empty for the data set itself.
        others: The tables of other splits.
        notes: On the choice of the split.
    """

    file: Path
    below: str = ""
    others: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()


def load(path: Path, options: SourceOptions) -> Source:
    """Read a table whose paths are relative to its folder, or to `options.root`.

    Raises:
        SourceError: It cannot be read, its columns are unclear, or no file of it exists.
        ManifestError: A path is repeated or leaves the root, or a label is out of range.
    """
    options.refuse_unsupported("a table", path)
    table = read_table(path)
    roles = _roles(table.column_names, path, options, _PATHS)
    with summary_of(path):
        keys = path_column(_paths(table, roles.image, path))
    return _source(path, table, keys, roles, options.root or path.absolute().parent, options)


def find_metadata(folder: Path, options: SourceOptions) -> Metadata | None:
    """The metadata file with targets in a folder, or in that of the chosen split; None if there is none."""
    if file := _metadata_in(folder, options):
        return Metadata(file)
    folders = list_folder(folder).folders
    found = {name: _metadata_in(folder / name, options) for name in folders if canonical_split(name, folders)}
    files = {name: file for name, file in found.items() if file}
    if not files:
        return None
    split, notes = choose_split(list(files), options.split, folder)
    file = files.pop(split)
    return Metadata(file, f"{split}/", tuple(files.values()), notes)


def _metadata_in(folder: Path, options: SourceOptions) -> Path | None:
    for file in (folder / name for name in _METADATA if (folder / name).is_file()):
        with suppress(SourceError):  # class folders may hold some other file of this name
            names = read_table(file).column_names
            has_targets = options.columns or options.unlabelled or _known(names, f"{_LABELS} {_CAPTIONS}")
            if "file_name" in names and has_targets:
                return file
    return None


def join(folder: Path, found: Metadata, options: SourceOptions) -> Source:
    """Read a folder with a table of its labels, matched by relative path, file name or stem; see `load`."""
    options.refuse_unsupported("a folder with a table", folder)
    path, below = found.file, found.below
    table = read_table(path)
    roles = _roles(table.column_names, path, options, "file_name" if path.name in _METADATA else _IDS)
    tree, _, tree_notes = find_samples(folder / below, options)
    files, names = tree.paths(below), _paths(table, roles.image, path)
    names = pc.binary_join_element_wise(scalar(below), names, scalar("")) if below else names
    rows, way = _matched(names, files, path, folder)
    keys = files.take(rows)
    notes = _left_out(names.filter(rows.is_null()), "row", "of the table without a file")
    notes += _left_out(files.filter(pc.invert(pc.is_in(files, keys))), "file", "not in the table")
    _refuse_if_strict(notes, options)
    notes = (*found.notes, *tree_notes, f"rows and files matched by {way}", *notes, *tree.notes())
    source = _source(path, table, keys, roles, folder, options, notes, found.others)
    return replace(source, kind="folder with a table")


def _matched(names: pa.Array, files: pa.Array, path: Path, folder: Path) -> tuple[pa.Array, str]:
    """The number of the file of each row, null where there is none, and the way of matching."""
    cut = {
        way: [pc.replace_substring_regex(each, pattern, "") for each in (names, files)]
        for way, pattern in _MATCHED_BY.items()
    }
    rows = {way: pc.index_in(theirs, ours) for way, (theirs, ours) in cut.items()}
    way = min(rows, key=lambda way: rows[way].null_count)  # the first of equals is the most exact
    if rows[way].null_count == len(names):
        raise _error(
            f"no row of {path} names a file in {folder} (the first row is {names[0].as_py()})",
            "relative paths, file names or stems of its files",
            "Choose another column, for example --field image=images/{id}.jpg",
        )
    theirs, ours = cut[way]
    counts = ours.filter(pc.is_in(ours, theirs)).value_counts()
    if twice := [each["values"] for each in counts.to_pylist() if each["counts"] > 1]:
        raise _error(
            f"several files in {folder} have the {way} of one row of {path}: {first_few(twice, len(twice))}",
            "one file per row",
            "Write relative paths into the table",
        )
    return rows[way], way


def _roles(names: Sequence[str], path: Path, options: SourceOptions, usual: str) -> _Roles:
    given = dict(map(_field, options.columns))
    targets = {name: spec for name, spec in given.items() if name in ("label", "captions")}
    images = [spec for name, spec in given.items() if name not in targets]
    if len(images) > 1 or len(targets) > 1 or len(given) < len(options.columns):
        raise UsageError(
            " ".join(f"--field {each}" for each in options.columns) + " are too many fields",
            expected="one file and one target per sample: image=..., and label=... or captions=..., once",
            next_step="Leave out the others: their columns go into the meta of each sample",
        )
    for column_name in (name for spec in given.values() for name in _columns_of(spec)):
        if column_name not in names:
            raise _error(f"{path} has no column {column_name!r}", _listed(names), "Correct --field")
    image = images[0] if images else _usual(names, path, usual, "image")
    rest = [name for name in names if name != image]
    kind: TargetKind = "captions" if _known(rest, _CAPTIONS) and not _known(rest, _LABELS) else "label"
    if targets:
        (kind, target), *_ = targets.items()  # type: ignore[assignment] # one of the two
        return _Roles(image, target, kind)
    if options.unlabelled:
        return _Roles(image, None, "label")
    return _Roles(image, _usual(rest, path, _CAPTIONS if kind == "captions" else _LABELS, kind), kind)


def _field(text: str) -> tuple[str, str]:
    name, equals, spec = text.partition("=")
    if not (name and equals and spec):
        raise UsageError(
            f"--field is {text!r}", expected="NAME=COLUMN, for example label=species", next_step="Correct it"
        )
    return name, spec


def _known(names: Iterable[str], usual: str) -> list[str]:
    return [name for name in names if name.strip().lower() in usual.split()]


def _usual(names: Sequence[str], path: Path, usual: str, field: str) -> str:
    """The only column with one of the usual names of a field."""
    found = _known(names, usual)
    if len(found) == 1:
        return found[0]
    several = f"several columns for the {field}: {_listed(found)}"
    raise _error(
        f"{path} has {several if found else f'no usual column for the {field}'}",
        f"the choice of one of its columns: {_listed(names)}",
        f"Add --field {field}={found[0] if found else 'COLUMN'}" + (" or --unlabelled" * (field == "label")),
    )


def _columns_of(spec: str) -> list[str]:
    return _BRACES.findall(spec) if "{" in spec else [spec]


def _paths(table: pa.Table, spec: str, path: Path) -> pa.Array:
    """The path of each row, without a leading `./`."""
    if "{" in spec:
        parts = enumerate(_BRACES.split(spec))
        texts = [_path_text(table, part, path) if at % 2 else scalar(part) for at, part in parts]
        paths = one_chunk(pc.binary_join_element_wise(*texts, scalar("")))
    else:
        paths = one_chunk(_path_text(table, spec, path))
    missing = np.flatnonzero(as_mask(paths.is_null()) | (to_numpy(pc.binary_length(paths)) == 0)) + 1
    if len(missing) or not len(paths):
        rows = f"no path in {plural(len(missing), 'row')}: {first_few(missing, len(missing))}"
        what = rows if len(missing) else "no rows"
        raise _error(f"{path} has {what}", "a path in each row, and at least one row", "Complete the table")
    has_dots = pc.any(pc.starts_with(paths, "./")).as_py()
    return pc.replace_substring_regex(paths, r"^(\./)+", "") if has_dots else paths


def _path_text(table: pa.Table, name: str, path: Path) -> pa.Array:
    kind = table.column(name).type
    if not (pa.types.is_string(kind) or pa.types.is_integer(kind)):
        raise _error(f"the column {name} of {path} contains {kind}", "paths", "Choose another with --field")
    return table.column(name).cast(pa.string())


def _source(
    path: Path,
    table: pa.Table,
    keys: pa.Array,
    roles: _Roles,
    root: Path,
    options: SourceOptions,
    notes: tuple[str, ...] = (),
    others: Sequence[Path] = (),
) -> Source:
    """The rows of a table as samples; `keys` are their paths below `root`, null without a file."""
    targets, classes = _targets(table, roles, path, others)
    chosen, split, split_notes = _of_split(table, keys, path, root, options)
    keep = pc.and_(chosen, targets.is_valid())
    without = _left_out(keys.filter(pc.and_(chosen, targets.is_null())), "row", f"without {roles.target}")
    if keep.null_count or not pc.all(keep).as_py():  # else no copies
        keys, targets, table = keys.filter(keep), targets.filter(keep), table.filter(keep)
    if not len(keys):
        raise _error(
            f"no row of {path} has a {roles.target}", f"a {roles.kind} in some", "Complete the table"
        )
    if pa.types.is_string(targets.type):  # one caption each
        borders = from_numpy(np.arange(len(targets) + 1)).cast(pa.int32())
        targets = pa.ListArray.from_arrays(borders, targets)
    rest = [name for name in table.column_names if name not in (roles.image, roles.target)]
    sizes, absent = _sizes(root, keys, path) if options.sizes else (None, ())
    _refuse_if_strict(without + absent, options)
    with summary_of(path):
        manifest = Manifest.from_columns(
            keys,
            targets,
            name=path.stem if root == path.absolute().parent else root.absolute().name,
            split=split,
            classes=classes,
            sizes=sizes,
            metas=table.select(rest).to_struct_array() if rest else None,
            target=roles.kind,
        )
    notes = (_taken(path, roles, classes, rest), *split_notes, *notes, *without, *absent)
    return Source(manifest, FolderStore(root), "table", notes, root)


def _taken(path: Path, roles: _Roles, classes: Sequence[str], rest: Sequence[str]) -> str:
    """What each column was taken for, in one line."""
    taken = [f"{path.name}: image from {roles.image}"]
    taken += [f"{roles.kind} from {roles.target}" if roles.target else "unlabelled"]
    if classes:
        taken += [f"{plural(len(classes), 'class', 'classes')} in sorted order ({_listed(classes)})"]
    return ", ".join([*taken, *[f"in meta: {_listed(rest)}"] * bool(rest)])


def _targets(
    table: pa.Table, roles: _Roles, path: Path, others: Sequence[Path] = ()
) -> tuple[pa.Array, tuple[str, ...]]:
    """The target of each row, null where it is missing, and the classes of all rows and splits in order."""
    if roles.target is None:
        return from_numpy(np.full(len(table), UNLABELLED)), ()
    values = one_chunk(table.column(roles.target))
    is_text = pa.types.is_string(values.type)
    if roles.kind == "captions" and (is_text or values.type == pa.list_(pa.string())):
        return values, ()
    if roles.kind == "label" and pa.types.is_integer(values.type):
        return values, ()
    if roles.kind == "label" and (is_text or pa.types.is_boolean(values.type)):
        names = values.cast(pa.string())
        more = [
            table.column(roles.target)
            for table in map(read_table, others)
            if roles.target in table.column_names
        ]
        texts = [names, *(each.cast(pa.string()) for each in more)]
        classes = sorted({name for each in texts for name in each.unique().drop_null().to_pylist()})
        return pc.index_in(names, column(classes, pa.string())), tuple(classes)
    raise _error(
        f"the column {roles.target} of {path} contains {values.type}, which is no {roles.kind}",
        "an integer or a class name per sample" if roles.kind == "label" else "a text or a list of texts",
        "Choose another column with --field, or give --unlabelled: this one goes into the meta then",
    )


def _of_split(
    table: pa.Table, keys: pa.Array, path: Path, root: Path, options: SourceOptions
) -> tuple[pa.Array, str, tuple[str, ...]]:
    """The rows of the chosen split, its name and notes; by the column `split`, or else the first folder."""
    if "split" in table.column_names and pa.types.is_string(table.column("split").type):
        of = one_chunk(table.column("split"))
    else:
        of = pc.struct_field(pc.extract_regex(keys, r"(?s)^(?P<folder>[^/]*)/"), 0)
    found = of.filter(keys.is_valid()).unique().to_pylist()
    if None in found or not all(canonical_split(name, found) for name in found):
        return pc.is_valid(keys), *own_split(path if canonical_split(path.stem) else root, options.split)
    chosen, notes = choose_split(sorted(found), options.split, path)
    return (
        pc.and_(keys.is_valid(), pc.equal(of, scalar(chosen))),
        canonical_split(chosen, found) or chosen,
        notes,
    )


def _sizes(root: Path, keys: pa.Array, path: Path) -> tuple[Any, tuple[str, ...]]:
    """Bytes of each file, null where it is missing, and a note on these."""
    sizes = sizes_of(root, keys, missing=-1)
    absent = keys.take(from_numpy(np.flatnonzero(sizes < 0))).to_pylist()
    if not absent:
        return sizes, ()
    if len(absent) == len(keys):
        raise _error(
            f"no file of {path} is in {root} (the first is {absent[0]})",
            "paths relative to this folder",
            "Give the right one (--root DIR), or a template (--field image=images/{id}.jpg)",
        )
    known = column([None if size < 0 else size for size in sizes.tolist()], pa.int64())
    return known, (f"{plural(len(absent), 'file')} missing in {root}: {first_few(absent, len(absent))}",)


def _left_out(names: pa.Array, one: str, which: str) -> tuple[str, ...]:
    found = first_few((name.as_py() for name in names), len(names))
    return (f"{plural(len(names), one)} {which} left out: {found}",) if len(names) else ()


def _refuse_if_strict(notes: tuple[str, ...], options: SourceOptions) -> None:
    if notes and options.strict:
        raise _error("; ".join(notes), "nothing left out, since strict was given", "Complete the table")


def _listed(names: Sequence[str]) -> str:
    return first_few(names, len(names), 8)


def _error(got: str, expected: str, next_step: str) -> SourceError:
    return SourceError(got, expected=expected, next_step=next_step)
