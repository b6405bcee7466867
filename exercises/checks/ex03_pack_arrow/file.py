"""Open an Arrow file of Flickr30K and say what is wrong with it: form, types, rows, captions, bytes.

Each look supposes that those before it found nothing. The trap: a file that reads well may hold each
image five times, and nobody notices until the quota does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from exercises.checks.attempt import Attempt
from exercises.checks.ex03_pack_arrow.captions import BYTES_REPR, captions_problem, texts_problem
from exercises.checks.ex03_pack_arrow.folders import Truth
from exercises.checks.ex03_pack_arrow.images import bytes_problem
from exercises.checks.ex03_pack_arrow.opening import opened
from smallfiles.errors import first_few

ROWS = range(16, 129)


def examine(attempt: Attempt, path: Path, truth: Truth, most_images: int = 2_000) -> None:
    """Raise the first thing that is wrong.

    Args:
        attempt: Tells what was given.
        path: The learner's file.
        truth: Of the folder that it was made from.
        most_images: How many images are compared byte by byte, spread over the file.
    """
    reader = opened(attempt, path)
    schema = reader.schema
    _repeated(attempt, reader, truth)
    _types(attempt, schema)
    batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
    names = [name for batch in batches for name in batch.column("key").to_pylist()]
    _names(attempt, names, truth)
    _batches(attempt, [batch.num_rows for batch in batches])
    _captions(attempt, [row for b in batches for row in b.column("captions").to_pylist()], truth)
    _bytes(attempt, batches, truth, most_images)


def _repeated(attempt: Attempt, reader: pa.RecordBatchFileReader, truth: Truth) -> None:
    """One row a caption stores each image five times; told first, since other things follow from it."""
    rows = sum(reader.get_batch(n).num_rows for n in range(reader.num_record_batches))
    wanted = sum(map(len, truth.captions.values()))
    # Bad rows that were dropped too make it a few less.
    if rows > len(truth.names) and wanted - 5 <= rows <= wanted:
        raise attempt.wrong(
            f"{rows:,} rows for {len(truth.names):,} images",
            "one row an image, with the list of its captions",
            "one row a caption stores every image five times; gather the captions of an image first",
        )


def _types(attempt: Attempt, schema: pa.Schema) -> None:
    missing = [name for name in ("key", "captions", "data") if name not in schema.names]
    attempt.require(
        not missing,
        got=f"the columns {', '.join(schema.names) or '(none)'}",
        expected="key: string, captions: list<string>, data: binary",
        because=f"no column is called {' or '.join(missing)}; a reader finds columns by their names",
    )
    for name, wanted, fits in (
        ("key", "string", _is_text),
        ("captions", "list<string>", _is_texts),
        ("data", "binary", _is_bytes),
    ):
        kind = schema.field(name).type
        attempt.require(
            fits(kind),
            got=f"{name}: {kind}",
            expected=f"{name}: {wanted}",
            because=_type_diagnosis(name, kind),
        )


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_texts(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind)) and _is_text(kind.value_type)


def _type_diagnosis(name: str, kind: pa.DataType) -> str:
    shown = str(kind)
    if name == "captions":
        if _is_text(kind):
            return "one text holds all captions, or one of them; a list keeps them apart"
        if "double" in shown or "null" in shown:
            return "numbers among the captions are NaN: the bad row was not repaired"
        return "captions are text: decode bytes, and write pa.list_(pa.string()) into the schema"
    if name == "data":
        if _is_text(kind):
            return f"image bytes are no text: store what read_bytes() gives, as pa.binary(). {BYTES_REPR}"
        if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
            return "a list of numbers, of pixels or of bytes; store the file as it is: pa.binary()"
        return "write pa.binary() into the schema; without a schema pyarrow guesses from the first batch"
    return "the name of the image, such as 1000092795.jpg, is text: pa.string()"


def _names(attempt: Attempt, names: list[Any], truth: Truth) -> None:
    expected = truth.names
    attempt.require(
        None not in names,
        got=f"{names.count(None)} rows without a name",
        expected="a name in each row",
        because="the column key holds nulls",
    )
    if names == expected:
        return
    strange = sorted(set(names) - set(expected))
    missing = sorted(set(expected) - set(names))
    twice = [name for name, times in Counter(names).items() if times > 1]
    if strange:
        because = _strange_names(strange, expected)
        raise attempt.wrong(f"names such as {first_few(strange, len(strange), 2)}", "image names", because)
    if missing:
        raise attempt.wrong(
            f"{len(missing):,} of {len(expected):,} images missing: {first_few(missing, len(missing), 2)}",
            f"all {len(expected):,} images",
            _why_missing(names, missing, expected),
        )
    if twice:
        raise attempt.wrong(
            f"{len(twice):,} images more than once: {first_few(twice, len(twice), 2)}",
            "each image once",
            "rows were written more than once: is a batch written again, or an image found in two folders?",
        )
    raise attempt.wrong(
        f"the order {names[:3]} …", f"the order {expected[:3]} …", _why_order(names, expected)
    )


def _strange_names(strange: list[str], expected: list[str]) -> str:
    if any("/" in name for name in strange):
        return "a path was stored; the key is the bare file name: path.name"
    if any(f"{name}.jpg" in expected for name in strange):
        return "the suffix is lost: take path.name, not path.stem"
    if any(not name.endswith(".jpg") for name in strange):
        return "the folder holds other files beside the images; take *.jpg only"
    return "these images are not in the folder"


def _why_missing(names: list[str], missing: list[str], expected: list[str]) -> str:
    if not names:
        return "no row was written; is writer.write(batch) inside the loop, and were images found?"
    for order in (expected, sorted(expected, key=_number)):
        if names == order[: len(names)]:
            return "the last images are missing: the last batch is not full, and has to be written as well"
    if len(missing) == 1:
        return "an image is lost, perhaps with the bad row of results.csv; repair that row, do not drop it"
    return "images are lost; is it one split only (ask for all), or one batch that replaced another?"


def _why_order(names: list[str], expected: list[str]) -> str:
    if names == sorted(expected, key=_number):
        return "sorted as numbers; sort the names as text, as ls, tar and every other tool do"
    if names == expected[::-1]:
        return "the order is reversed"
    return (
        "a folder lists its files in an order of its own, and a table in another; sort by name, or two "
        "runs give two files"
    )


def _number(name: str) -> int:
    stem = name.partition(".")[0]
    return int(stem) if stem.isdecimal() else 0


def _batches(attempt: Attempt, rows: Sequence[int]) -> None:
    if sum(rows) < ROWS.start:
        return
    got = f"{len(rows):,} record batches of up to {max(rows):,} rows"
    expected = f"{ROWS[0]} to {ROWS[-1]} rows in each but the last"
    if max(rows) > ROWS[-1]:
        because = "who reads one image through an OSFile reads its whole batch; notebook 03 measures it"
        raise attempt.wrong(got, expected, because)
    if any(count < ROWS[0] for count in rows[:-1]):
        because = "each batch has a header and a place in the footer, and a million of them add up"
        raise attempt.wrong(got, expected, because)


def _captions(attempt: Attempt, given: list[Any], truth: Truth) -> None:
    expected = list(truth.captions.values())
    for name, texts in zip(truth.names, given, strict=True):
        problem = texts_problem(texts)
        if problem:
            raise attempt.wrong(f"{name}: {problem[0]}", f"{truth.captions[name]}", problem[1])
    known = {tuple(texts): None for texts in expected}
    for name, wanted, texts in zip(truth.names, expected, given, strict=True):
        if texts != wanted:
            other = [texts] if tuple(texts) in known else []
            because = captions_problem(wanted, texts, other) or ""
            raise attempt.wrong(f"{name}: {texts}", f"{wanted}", because)


def _bytes(attempt: Attempt, batches: Sequence[pa.RecordBatch], truth: Truth, most: int) -> None:
    step = max(1, -(-len(truth.names) // most))
    row = 0
    for batch in batches:
        column = batch.column("data")
        for place in range(batch.num_rows):
            if (row + place) % step == 0:
                name = truth.names[row + place]
                data = truth.data(name)
                value = column[place]
                found = value.as_buffer() if value.is_valid else None
                if found is None or found.to_pybytes() != data:
                    got, because = bytes_problem(name, data, value.as_py(), truth)
                    raise attempt.wrong(f"{name}: {got}", f"{name}: its {len(data):,} bytes", because)
        row += batch.num_rows
