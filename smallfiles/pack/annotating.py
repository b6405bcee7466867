"""Add columns to a packed set later, without writing any of it again.

    annotate(Path("train.arrow"), Path("scores.csv"), "filename")     makes train.arrow.scores.fields.arrow

The set may have any format; `formats.open` shows the columns as it shows packed values. See
`formats.added` for the file.

The trap: a table rarely has its rows in the order of the samples, and one that lacks some, or has some
twice, would move all values behind them. So rows are matched by key, and each sample has exactly one, or the
table is refused. docs/recipes.md has an example.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles import formats
from smallfiles.arrays import as_mask, column, from_numpy, one_chunk, to_numpy
from smallfiles.atomic import changing, check_room, drafted, refuse_existing, sweep
from smallfiles.digests import added_fields, sidecar
from smallfiles.errors import PackError, SourceError, UsageError, first_few, summary_of, writing
from smallfiles.fields import value_table
from smallfiles.folders import SourceOptions, one_or_several
from smallfiles.formats.reader import read_added, write_added
from smallfiles.locks import Lease
from smallfiles.pack.writing import differing
from smallfiles.progress import plural
from smallfiles.samples import Reader
from smallfiles.selection import Choice
from smallfiles.selection.conditions import SplitReport, assigned, reported
from smallfiles.sources.record import left_out
from smallfiles.sources.roles import columns_of, given_fields
from smallfiles.sources.table_files import read_with_notes
from smallfiles.sources.tables import keys_of, matched, values_in

_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")
_OVERHEAD_BYTES = 1 << 20


@dataclass(frozen=True)
class Annotated:
    """The report of `annotate` on the file that it wrote.

    Args:
        path: The file beside the packed set.
        samples: Number of samples.
        fields: Type of each column, by the name of the column.
        file_bytes: Size of the file in bytes.
        notes: Notes on how rows were matched, and on rows that were left out.
        seconds: How long it took.
    """

    path: Path
    samples: int
    fields: dict[str, str]
    file_bytes: int
    notes: tuple[str, ...]
    seconds: float


def annotate(
    out: Path, table: Path, key: str, *, fields: str | Sequence[str] = (), name: str | None = None
) -> Annotated:
    """Add the columns of a table to a packed set, in a file `OUT.NAME.fields.arrow` beside it.

    Args:
        out: A packed file or folder. It is not changed.
        table: CSV, TSV, JSON Lines, Parquet or Arrow, with one row for each sample in any order.
        key: The column with the keys, file names or stems of the samples, or a template such as
            `images/{id}.jpg`.
        fields: `NAME=COLUMN` for each column to add. The default is all columns except those in `key`.
        name: The NAME in the name of the file. The default is the stem of the table.

    Returns:
        What was written.

    Raises:
        OutputExistsError: The file already exists.
        BusyError: Another run is adding fields to the same set.
        SourceError: A sample has no row or several rows, or the table cannot be read.
        ManifestError: A column cannot be a field.
        UsageError: The set already has a field of this name.
        FormatError: The packed set is damaged, or a file beside it belongs to other samples.
    """
    began = time.perf_counter()
    path = _path_of(Path(out), table.stem if name is None else name)
    if not Path(out).exists():
        formats.open(out).close()  # raises the error that says so
    with changing(Path(out), "annotating") as lease, closing(formats.open(out)) as reader:
        sweep(path)
        refuse_existing(path)
        rows, said = read_with_notes(table, (key, *one_or_several(fields)))
        of_samples, notes = _rows_of(reader, keys_of(rows, key, table), table, key)
        values = _values(rows, table, key, fields, of_samples)
        _refuse_taken(reader, values)
        _write(reader, values, path, lease)
        kinds = {each.name: str(each.type) for each in values.schema}
        seconds = time.perf_counter() - began
        return Annotated(path, len(reader), kinds, path.stat().st_size, (*notes, *said), seconds)


def split(out: Path, rule: Mapping[str, float], **more: Any) -> tuple[Path, SplitReport]:
    """Write the split of each sample by a rule into the field `split`, in a file beside a packed set.

    Ranks, nodes and other programs then read the same split, and need no rule.

    Args:
        out: A packed file or folder; nothing of it is written.
        rule: The share of each split.
        **more: `split_by`, `stratify` and `split_seed` of `selection.Choice`.

    Returns:
        The file beside the packed set, and what was counted in it.

    Raises:
        OutputExistsError: There is such a file already.
        UsageError: The rule does not fit the set, or it has a field `split` already.
    """
    choice, path = Choice(split_rule=rule, **more), _path_of(Path(out), "split")
    with changing(Path(out), "splitting") as lease, closing(formats.open(out)) as reader:
        sweep(path)
        refuse_existing(path)
        names = column([*rule], pa.string()).take(from_numpy(assigned(reader, choice)))
        _refuse_taken(reader, values := pa.table({"split": names}))
        how = {"split_rule": dict(rule), "split_seed": choice.split_seed, **choice.chosen}
        _write(reader, values, path, lease, how)
        return path, reported(reader, choice, one_chunk(read_added(path, reader).column("split")))


def _path_of(out: Path, name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"the name of the fields is {name!r}",
            expected="1 to 80 letters, digits, _ or -, which become a part of a file name",
            next_step="Give another one with --name",
        )
    return out.with_name(f"{out.name}.{name}.fields.arrow")


def _rows_of(reader: Reader, names: pa.Array, table: Path, key: str) -> tuple[pa.Array, tuple[str, ...]]:
    """Return the row of each sample, and notes on how rows and samples were matched."""
    keys = reader.keys()
    samples, way = pc.index_in(names, keys), "key"
    if not pc.all(pc.is_in(keys, names), min_count=0).as_py():
        example = f"--key '{{{columns_of(key)[0]}}}.jpg'"
        samples, way = matched(names, keys, table, reader.path, example)
    known = as_mask(samples.is_valid())
    of_rows = to_numpy(samples.drop_null())
    counts = np.bincount(of_rows, minlength=len(keys))
    for wrong, what in ((counts > 1, "several rows"), (counts == 0, "no row")):
        if wrong.any():
            found = keys.take(from_numpy(np.flatnonzero(wrong))).to_pylist()
            raise SourceError(
                f"{table} has {what} for {plural(len(found), 'sample')} of {reader.path} (matched by {way}): "
                f"{first_few(found, len(found))}",
                expected="exactly one row for each sample",
                next_step="Complete the table, with an empty cell where a value is unknown"
                if what == "no row"
                else "Remove the rows that are too many, or write whole keys into the table",
            )
    place = np.empty(len(keys), np.int64)
    place[of_rows] = np.flatnonzero(known)
    note = f"rows and samples matched by {way}"
    return from_numpy(place), (note, *left_out(names.filter(samples.is_null()), "row", "without a sample"))


def _values(
    rows: pa.Table, table: Path, key: str, fields: str | Sequence[str], of_samples: pa.Array
) -> pa.Table:
    """Return the columns to add, in the order of the samples."""
    given = given_fields(rows.column_names, table, SourceOptions(columns=one_or_several(fields)))
    given = given or {name: name for name in rows.column_names if name not in columns_of(key)}
    if not given or any("{" in spec for spec in given.values()):
        raise UsageError(
            f"--field has the template {first_few(given.values(), 1)}" if given else f"{table} has only keys",
            expected="columns with the values to add",
            next_step="Give --field NAME=COLUMN, or another table",
        )
    with summary_of(table):
        columns = {name: one_chunk(values_in(rows, spec, table)) for name, spec in given.items()}
        return value_table({name: each.take(of_samples) for name, each in columns.items()})


def _refuse_taken(reader: Reader, values: pa.Table) -> None:
    """Refuse names of fields that the set already has. Check its existing files of fields on the way."""
    for file in added_fields(reader.path):
        read_added(file, reader, full=True)
    taken = sorted(reader.fields.keys() & {*values.column_names})
    if taken:
        raise UsageError(
            f"{reader.path} has the {plural(len(taken), 'field')} {first_few(taken, len(taken))} already",
            expected="new names",
            next_step=f"Give all columns that you want, with other names: --field OTHER={taken[0]}",
        )


def _write(
    reader: Reader, values: pa.Table, path: Path, lease: Lease, rule: Mapping[str, Any] | None = None
) -> None:
    """Write the file under another name, read it back, compare it, and publish it."""
    check_room(path, values.nbytes + _OVERHEAD_BYTES, 4)
    with drafted(path, "annotating") as draft, writing(path):
        draft.clear()
        aside = draft.partial / path.name
        write_added(reader, values, aside, rule or {})
        stored = read_added(aside, reader, full=True)
        pairs = zip(stored.columns, values.columns, strict=True)
        if stored.schema != values.schema or any(not a.equals(b) and differing(a, b) for a, b in pairs):
            raise PackError(
                f"{path.name} did not read back as it was written",
                expected="the columns of the table",
                next_step="Nothing was published; run it again, and if it happens again suspect the storage",
            )
        draft.finish([sidecar(aside).name, aside.name], draft.data)
        lease.check()
        draft.publish()
