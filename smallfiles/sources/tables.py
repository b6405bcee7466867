"""Tables of samples: one row per file, with a column of paths and one of labels or captions.

    smallfiles pack labels.csv out.arrow --field image=filename --field label=species
    smallfiles pack DIR out.arrow --labels labels.csv
    smallfiles pack DIR out.arrow          # with a metadata.csv of Hugging Face (file_name, ...) in DIR

Class names are numbered in sorted order, integers stay. Other columns become values of each sample, and
columns or templates of further paths become further files; see `roles`.

The trap: rows and files rarely match one to one, and a join that silently drops the rest trains on less data.
So unmatched rows and files are counted and named. docs/recipes.md has an example.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.arrays import as_mask, column, folders_of, from_numpy, joined, one_chunk, scalar
from smallfiles.errors import SourceError, first_few, summary_of
from smallfiles.folders import SourceOptions, canonical_split, choose_split
from smallfiles.manifest.class_folders import own_split
from smallfiles.manifest.columns import path_column
from smallfiles.manifest.listing import Files
from smallfiles.progress import plural
from smallfiles.samples import UNLABELLED
from smallfiles.sources import record
from smallfiles.sources import roles as column_roles
from smallfiles.sources.folder import find_samples
from smallfiles.sources.record import FolderStore, Samples, Source
from smallfiles.sources.roles import Roles, check_columns
from smallfiles.sources.scanning import Look, Notes, sizes_of
from smallfiles.sources.table_files import (
    TEXT_SUFFIXES,
    as_truth,
    missing_if_empty,
    read_with_notes,
)

_METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
_MATCHED_BY = {"relative path": "^$", "file name": r"(?s)^.*/", "stem": r"(?s)^.*/|\.[^./]*$"}
"""For each way to match rows with files, the pattern that is removed from the paths on both sides."""


@dataclass(frozen=True)
class Metadata:
    """The table of labels of a folder, such as a `metadata.*` file of Hugging Face.

    Args:
        file: The table.
        below: The folder of the table in the data set, with a trailing slash. It is empty for the data set
            itself.
        others: The tables of other splits.
        notes: Notes on the choice of the split.
    """

    file: Path
    below: str = ""
    others: tuple[Path, ...] = ()
    notes: Notes = ()


@dataclass(frozen=True)
class TableRows:
    """The rows of a table, and where the files of each row are.

    Args:
        path: Path of the table.
        table: The columns of the table.
        roles: What the columns mean.
        keys: Path of the first file of each row. It is null for a row without this file.
        blobs: Paths of the additional files by field. They are null for rows without a file.
        others: The tables of other splits.
        sizes: Size of each first file in bytes, if the sizes are already known.
        split: The split of all rows, if it is already known.
        classes: Names of integer labels, if they are known.
        name: Name of the set, if it is known.
    """

    path: Path
    table: pa.Table
    roles: Roles
    keys: pa.Array
    blobs: Mapping[str, pa.Array]
    others: tuple[Path, ...] = ()
    sizes: pa.Array | None = None
    split: str | None = None
    classes: tuple[str, ...] = ()
    name: str = ""


def load(path: Path, options: SourceOptions) -> Source:
    """Read a table whose paths are relative to its folder, or to `options.root`.

    Raises:
        SourceError: The table cannot be read, its columns are unclear, or none of its files exists.
        ManifestError: A path is repeated or leaves the root, or a label is out of range.
    """
    options.refuse_unsupported("a table", path)
    table, notes = read_with_notes(path, options.columns)
    root = options.root or path.absolute().parent
    roles = column_roles.roles_of(table, path, options, column_roles.PATHS, root)
    paths = _complete(_paths(table, roles.image, path), path)
    with summary_of(path):
        keys = path_column(paths)
    rows = TableRows(path, table, roles, keys, _blobs(table, roles, path))
    store = FolderStore(root, follow_links=options.follow_links)
    return source_of_rows(rows, Files(root, keys, store=store), "table", options, notes)


def find_metadata(look: Look, options: SourceOptions) -> Metadata | None:
    """Find the metadata file with targets in a folder, or in the folder of the chosen split.

    Return None if there is no such file.
    """
    if file := _metadata_in(look, "", options):
        return Metadata(file)
    files = {name: file for name in look.splits() if (file := _metadata_in(look, name, options))}
    if not files:
        return None
    split, notes = choose_split(list(files), options.split, look.path)
    file = files.pop(split)
    return Metadata(file, f"{split}/", tuple(files.values()), notes)


def _metadata_in(look: Look, below: str, options: SourceOptions) -> Path | None:
    for file in (look.path / below / name for name in _METADATA if name in look.at(below).files):
        with suppress(SourceError):  # class folders may hold some other file of this name
            table, _ = read_with_notes(file)
            if any(name.endswith("file_name") for name in table.column_names) and (
                options.columns or options.unlabelled or _tells_more_than_folders(table)
            ):
                return file
    return None


def _tells_more_than_folders(table: pa.Table) -> bool:
    """Check whether a table has targets.

    A table without targets counts too if it has other columns and its files are not in class folders.
    """
    names = table.column_names
    if column_roles.known_targets(names) or any(name.endswith(column_roles.MORE_FILES) for name in names):
        return True
    paths = table.column("file_name")
    if len(names) == 1 or not pa.types.is_string(paths.type):
        return False
    return len(folders_of(paths).unique()) == 1


def join_folder(folder: Path, found: Metadata, options: SourceOptions) -> Source:
    """Read a folder with a table of its labels. See `join`."""
    options.refuse_unsupported("a folder with a table", folder)
    tree, taken, notes = find_samples(folder / found.below, options)
    files = replace(
        record.files_of(tree, taken),
        where=folder,
        samples=tree.paths(found.below),
        others=_below(found.below, tree.other_paths()),
        store=FolderStore(folder, follow_links=options.follow_links),
    )
    return join(files, found, options, (*found.notes, *notes, *tree.notes()))


def join(files: Files, found: Metadata, options: SourceOptions, notes: Notes) -> Source:
    """Label files by a table. Rows and files are matched by relative path, file name or stem.

    Args:
        files: The files of a folder, or the files inside an archive.
        found: The table.
        options: See `SourceOptions`.
        notes: What was odd so far.
    """
    path, below, where = found.file, found.below, files.where
    table, said = read_with_notes(path, options.columns)
    usual = "file_name" if path.name in _METADATA else column_roles.IDS
    roles = column_roles.roles_of(table, path, options, usual, where / below)
    names = _below(below, _complete(_paths(table, roles.image, path), path))
    rows, way = matched(names, files.samples, path, where, "--field image=images/{id}.jpg")
    _refuse_lost_classes(table, roles, rows, path, where)
    left = record.left_out(names.filter(rows.is_null()), "row", "of the table without a file")
    blobs = {name: _below(below, paths) for name, paths in _blobs(table, roles, path).items()}
    if files.sizes is not None:  # of an archive, which may only be readable in order
        order = pc.array_sort_indices(rows)
        table, rows = table.take(order), rows.take(order)
        every = pa.concat_arrays([files.samples, files.others])
        blobs = {n: paths.take(order) for n, paths in blobs.items()}
        blobs = {n: pc.if_else(pc.is_in(paths, every), paths, scalar(None)) for n, paths in blobs.items()}
    keys = files.samples.take(rows)
    extra = files.samples
    for paths in (keys, *blobs.values()):
        extra = extra.filter(pc.invert(pc.is_in(extra, paths)))
    left += record.left_out(extra, "file", "not in the table")
    record.refuse_if_strict(left, options, path)
    sizes = None if files.sizes is None else from_numpy(files.sizes).take(rows)
    joined_rows = TableRows(path, table, roles, keys, blobs, found.others, sizes)
    used = [
        file.relative_to(where).as_posix() for file in (path, *found.others) if file.is_relative_to(where)
    ]
    chosen = "" if options.labels else used[0]
    in_words = "folder" if files.sizes is None else where.suffix[1:] or "folder of archives"
    notes = (*said, *notes, f"rows and files matched by {way}", *left)
    return source_of_rows(joined_rows, files, f"{in_words} with a table", options, notes, used, chosen)


def _refuse_lost_classes(table: pa.Table, roles: Roles, rows: pa.Array, path: Path, where: Path) -> None:
    """Refuse a table if all files of one of its classes are missing."""
    if roles.target is None or roles.kind != "label" or not rows.null_count:
        return
    labels = one_chunk(table.column(roles.target))
    there, missing = (labels.filter(some).unique().drop_null() for some in (rows.is_valid(), rows.is_null()))
    lost = missing.filter(pc.invert(pc.is_in(missing, there))).cast(pa.string()).sort().to_pylist()
    if lost:
        raise _error(
            f"the {'class' if len(lost) == 1 else 'classes'} {first_few(lost)} of {path} would be "
            f"lost: none of its files is in {where}",
            "a file for at least one row of each class",
            "Fetch the files, or remove its rows from the table",
        )


def _below(folder: str, paths: pa.Array) -> pa.Array:
    return joined(scalar(folder), paths) if folder else paths


def keys_of(table: pa.Table, spec: str, path: Path) -> pa.Array:
    """Return the path in each row of a table.

    Args:
        table: All columns.
        spec: The column of paths, or a template such as `images/{id}.png`.
        path: Path of the table.

    Raises:
        SourceError: The table has no such column, or a row has no path.
    """
    check_columns(table.column_names, spec, path, "Choose one")
    return _complete(_paths(table, spec, path), path)


def matched(names: pa.Array, files: pa.Array, path: Path, folder: Path, example: str) -> tuple[pa.Array, str]:
    """Find the file of each row of a table. The way of matching that finds most files is used.

    Args:
        names: The path in each row.
        files: Paths of all files.
        path: Path of the table.
        folder: The folder of the files, or the packed file that holds them.
        example: A flag that chooses another column, for messages.

    Returns:
        The number of each row's file, which is null for a row without a file, and the way of matching.

    Raises:
        SourceError: No row names a file, or a row matches several files.
    """
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
            f"Choose another column, for example {example}",
        )
    theirs, ours = cut[way]
    counts = ours.filter(pc.is_in(ours, theirs)).value_counts()
    if twice := [each["values"] for each in counts.to_pylist() if each["counts"] > 1]:
        raise _error(
            f"several files in {folder} have the {way} of one row of {path}: {first_few(twice)}",
            "one file per row",
            "Write relative paths into the table",
        )
    return rows[way], way


def _blobs(table: pa.Table, roles: Roles, path: Path) -> dict[str, pa.Array]:
    """Return the paths of all additional files by field. They are null for rows without a file."""
    found = {name: _paths(table, spec, path) for name, spec in roles.blobs.items()}
    with summary_of(path):
        for paths in found.values():
            path_column(paths.drop_null())  # before anything outside of the root is looked at
    return found


def _paths(table: pa.Table, spec: str, path: Path) -> pa.Array:
    """Return the path in each row without a leading `./`. It is null for a row without a path."""
    if "{" in spec:
        paths = one_chunk(column_roles.filled(spec, partial(_path_text, table, path)))
    else:
        paths = one_chunk(_path_text(table, path, spec))
    empty = pc.equal(pc.binary_length(paths), scalar(0))
    if pc.any(empty).as_py():
        paths = pc.if_else(empty, scalar(None), paths)
    has_dots = pc.any(pc.starts_with(paths, "./")).as_py()
    return pc.replace_substring_regex(paths, r"^(\./)+", "") if has_dots else paths


def _complete(paths: pa.Array, path: Path) -> pa.Array:
    """Return the paths. Refuse rows without a path."""
    missing = np.flatnonzero(as_mask(paths.is_null())) + 1
    if len(missing) or not len(paths):
        rows = f"no path in {plural(len(missing), 'row')}: {first_few(missing)}"
        what = rows if len(missing) else "no rows"
        raise _error(f"{path} has {what}", "a path in each row, and at least one row", "Complete the table")
    return paths


def _path_text(table: pa.Table, path: Path, name: str) -> pa.Array:
    kind = table.column(name).type
    if not (pa.types.is_string(kind) or pa.types.is_integer(kind)):
        raise _error(f"the column {name} of {path} contains {kind}", "paths", "Choose another with --field")
    return table.column(name).cast(pa.string())


def source_of_rows(
    rows: TableRows,
    files: Files,
    kind: str,
    options: SourceOptions,
    notes: Notes,
    used: Sequence[str] = (),
    choice: str = "",
) -> Source:
    """Make a source whose samples are the rows of a table.

    Args:
        rows: The rows that were read.
        files: The files that the rows name.
        kind: What the source was recognised as, in words.
        options: The options. The split and whether to look up sizes are used.
        notes: What was odd so far.
        used: See `Samples`.
        choice: See `Samples.chosen`.
    """
    path, roles, root = rows.path, rows.roles, files.where
    targets, classes = _targets(rows)
    chosen, split, split_notes = _of_split(rows, root, options)
    parts = {roles.target or "": targets, **rows.blobs}
    keep = chosen
    without: tuple[str, ...] = ()
    for name, column_of_it in parts.items():
        missing = pc.and_(chosen, column_of_it.is_null())
        without += record.left_out(rows.keys.filter(missing), "row", f"without {name}")
        keep = pc.and_(keep, column_of_it.is_valid())
    if keep.null_count or not pc.all(keep).as_py():  # else no copies
        rows, targets = _kept(rows, keep), targets.filter(keep)
    if not len(rows.keys):
        names = " and a ".join(filter(None, parts))
        raise _error(f"no row of {path} has a {names}", f"a {names} in some", "Complete the table")
    if pa.types.is_string(targets.type):  # one caption each
        borders = from_numpy(np.arange(len(targets) + 1)).cast(pa.int32())
        targets = pa.ListArray.from_arrays(borders, targets)
    sizes, absent = (
        _looked_up(rows, root, follow_links=options.follow_links)
        if isinstance(files.store, FolderStore) and options.sizes
        else (rows.sizes, ())
    )
    record.refuse_if_strict(without + absent, options, path)
    values = {name: values_in(rows.table, spec, path) for name, spec in roles.values.items()}
    columns = {
        "name": rows.name or (path.stem if root == path.absolute().parent else root.absolute().name),
        "split": split,
        "classes": classes,
        "sizes": sizes,
        "metas": _metas(rows.table.select(roles.meta)) if roles.meta else None,
        "blobs": rows.blobs,
        "values": values | {roles.kind: targets},
        "first": record.given_first(roles.first, options),
    }
    types = pa.schema([(name, column_of_it.type) for name, column_of_it in values.items()])
    taken = column_roles.sentence(roles, types, path, _listed(classes, is_sorted=not rows.classes))
    named = [spec for spec in roles.values.values() if column_roles.names_files(rows.table, spec, root)]
    split_notes += tuple(
        f"the column {each} names files that exist: --field {each}={each} packs them too" for each in named
    )
    notes = (taken, *split_notes, *notes, *without, *absent)
    every, more = pa.concat_arrays([rows.keys, *rows.blobs.values()]), {"columns": options.columns}
    found = Samples(rows.keys, kind, columns, notes, (), used, choice, every, more)
    with summary_of(path):
        return record.source_of(files, found, options)


def _listed(classes: tuple[str, ...], *, is_sorted: bool) -> str:
    what = plural(len(classes), "class", "classes") + " in sorted order" * is_sorted
    return f"{what} ({first_few(classes, limit=8)})" if classes else ""


def _kept(rows: TableRows, keep: pa.Array) -> TableRows:
    return replace(
        rows,
        table=rows.table.filter(keep),
        keys=rows.keys.filter(keep),
        blobs={name: paths.filter(keep) for name, paths in rows.blobs.items()},
        sizes=rows.sizes if rows.sizes is None else rows.sizes.filter(keep),
    )


def values_in(table: pa.Table, name: str, path: Path) -> pa.ChunkedArray:
    """Return a column of values.

    A text column of a CSV file with only true and false becomes truth values.
    """
    found = table.column(name)
    if path.suffix.lower() in TEXT_SUFFIXES and pa.types.is_string(found.type):
        return as_truth(found)
    return found


def _metas(table: pa.Table) -> pa.Array:
    """Return the columns that no field can hold as one object per row.

    NaN becomes null, since JSON has no NaN.
    """
    columns = {}
    for name in table.column_names:
        found = columns[name] = table.column(name)
        if pa.types.is_floating(found.type) and pc.any(pc.is_nan(found)).as_py():
            columns[name] = pc.if_else(pc.is_nan(found), pa.scalar(None, found.type), found)
    return pa.table(columns).to_struct_array()


def _targets(rows: TableRows) -> tuple[pa.Array, tuple[str, ...]]:
    """Return the target of each row, and the names of the classes in label order.

    A missing target is null. The classes are those of all rows and of all splits.
    """
    roles, path = rows.roles, rows.path
    if roles.target is None:
        return from_numpy(np.full(len(rows.keys), UNLABELLED)), ()
    values = one_chunk(rows.table.column(roles.target))
    is_text = pa.types.is_string(values.type)
    values = missing_if_empty(values) if is_text else values
    if roles.kind == "captions" and (is_text or values.type == pa.list_(pa.string())):
        return values, ()
    if roles.kind == "label" and pa.types.is_integer(values.type):
        return values, rows.classes
    if roles.kind == "label" and (is_text or pa.types.is_boolean(values.type)):
        names = values.cast(pa.string())
        more = [
            table.column(roles.target)
            for table, _ in map(read_with_notes, rows.others)
            if roles.target in table.column_names
        ]
        texts = [names, *(each.cast(pa.string()) for each in more)]
        classes = sorted({name for each in texts for name in each.unique().drop_null().to_pylist()})
        return pc.index_in(names, column(classes, pa.string())), tuple(classes)
    name = "tags" if pa.types.is_list(values.type) else "score"
    raise _error(
        f"the column {roles.target} of {path} contains {values.type}, which is no {roles.kind}",
        "an integer or a class name per sample" if roles.kind == "label" else "a text or a list of texts",
        f"Keep it as a value (--field {name}={roles.target}), or choose one (--field {roles.kind}=COLUMN)",
    )


def _of_split(rows: TableRows, root: Path, options: SourceOptions) -> tuple[pa.Array, str, Notes]:
    """Return a mask of the rows of the chosen split, the name of the split, and notes.

    The split of a row is in the column `split`, or else it is the first folder of its path.
    """
    table, keys, path = rows.table, rows.keys, rows.path
    if rows.split is not None:
        return pc.is_valid(keys), rows.split, ()
    if "split" in table.column_names and pa.types.is_string(table.column("split").type):
        of = one_chunk(table.column("split"))
    else:
        of = pc.struct_field(pc.extract_regex(keys, r"(?s)^(?P<folder>[^/]*)/"), 0)
    found = of.filter(keys.is_valid()).unique().to_pylist()
    if None in found or not all(canonical_split(name, found) for name in found):
        return pc.is_valid(keys), *own_split(path if canonical_split(path.stem) else root, options.split)
    chosen, split, notes = record.chosen_split(sorted(found), options.split, path)
    return pc.and_(keys.is_valid(), pc.equal(of, scalar(chosen))), split, notes


def _looked_up(rows: TableRows, root: Path, *, follow_links: bool) -> tuple[pa.Array, Notes]:
    """Return the size of each first file in bytes, and notes on missing files of all fields.

    The size of a missing file is null.
    """
    first, notes, found = rows.roles.first, list[str](), {}
    for name, paths in {first: rows.keys, **rows.blobs}.items():
        sizes = sizes_of(root, paths, missing=-1, follow_links=follow_links)
        absent = paths.take(from_numpy(np.flatnonzero(sizes < 0))).to_pylist()
        if absent and len(absent) == len(paths):
            raise _error(
                f"no file of {rows.path} for the field {name} is in {root} (the first is {absent[0]})",
                "paths relative to this folder",
                f"Give the right one (--root DIR), or a template (--field {name}=folder/{{id}}.jpg)",
            )
        if absent:
            what = f"{plural(len(absent), 'file')} missing in {root}: {first_few(absent)}"
            notes.append(what if name == first else f"{name}: {what}")
        known = [None if size < 0 else size for size in sizes.tolist()] if absent else None
        found[name] = from_numpy(sizes) if known is None else column(known, pa.int64())
    return found[first], tuple(notes)


def _error(got: str, expected: str, next_step: str) -> SourceError:
    return SourceError(got, expected=expected, next_step=next_step)
