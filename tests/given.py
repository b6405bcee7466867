"""Samples as tests give and expect them: the files and the values of one in one place."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa

from smallfiles.samples import OWN_TYPES, Sample, Schema


class Given(NamedTuple):
    """A sample with its label or captions, JSON object and further files; `row` is that of further values."""

    key: str
    data: Any
    target: Any = -1
    meta: Any = None
    blobs: tuple[Any, ...] = ()
    row: int = -1


def bare(given):
    """What a writer takes of them; their values are in the schema."""
    for row, one in enumerate(given):
        yield Sample(one.key, (one.data, *one.blobs), row)
        del one


def schema_of(given, *, captions=None, metas=False, values=None, **facts):
    """The schema that a manifest of these samples would give; `facts` replaces some of it."""
    if captions is None:
        captions = bool(given) and isinstance(given[0].target, list)
    columns: dict[str, Any] = {"captions" if captions else "label": [one.target for one in given]}
    texts = [None if one.meta is None else json.dumps(one.meta) for one in given]
    columns |= {"meta": texts} if metas or any(texts) else {}
    if values is not None:
        rows = [one.row for one in given]
        taken = values if rows == [*range(len(values))] else values.take(pa.array(rows, pa.int64()))
        columns |= dict(zip(taken.column_names, taken.columns, strict=True))
    stems = Counter(re.sub(r"\.[^/]*$", "", one.key) for one in given)
    shared = frozenset(stem for stem, count in stems.items() if count > 1)
    typed = {name: pa.array(each, OWN_TYPES[name]) for name, each in columns.items() if name in OWN_TYPES}
    made = Schema.of(
        bare(given), pa.table(columns | typed), blobs=facts.pop("blobs", ()), shared_stems=shared
    )
    return replace(made, **facts)


def metas_in(table):
    """The JSON object in each row of the column `meta`; None where there is none."""
    return [None if text is None else json.loads(text) for text in table["meta"].to_pylist()]


def of_reader(reader):
    """The samples of a reader, each with its values."""
    table = reader.table()
    target = "label" if "label" in table.column_names else "captions"
    columns = {name: table[name].to_pylist() for name in (target, "meta") if name in table.column_names}
    metas = metas_in(table) if "meta" in columns else [None] * len(reader)
    return [
        Given(key, blobs[0], columns[target][row], metas[row], blobs[1:], row) for key, blobs, row in reader
    ]
