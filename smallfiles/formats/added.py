"""Fields that were added to a packed set later: an Arrow file of one record batch beside it.

    train.arrow   train.arrow.scores.fields.arrow   train.arrow.scores.fields.arrow.digest.json

`smallfiles annotate` writes it. Nothing of the packed set is written again, whatever its format.

The trap: its rows have no keys, so beside another set, or the same one packed in another order, they would
be values of other samples, and training runs on without any error. So the file records the number of samples,
the set digest and a digest of the keys in their order, and is refused where these differ. Opening it compares
64 keys, `verify` all of them. docs/recipes.md has an example.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from smallfiles.arrays import column, one_chunk, spread
from smallfiles.digests import ContentDigest, digest_file, key_digest, sidecar
from smallfiles.errors import FormatError, ManifestError, raised_as, summary_of
from smallfiles.fields import value_table
from smallfiles.formats import provenance
from smallfiles.formats.bytefile import ByteFile, damage_reported, damaged
from smallfiles.samples import Reader

_METADATA = b"smallfiles.annotates"
_COMPARED = 64
_RULE = "rule"
_NAMES = {"rows": "number of samples", "set": "set digest", "some_keys": "digest of 64 keys"}
_NAMES |= {"keys": "digest of all keys in their order"}


def write(reader: Reader, values: pa.Table, path: Path, rule: Mapping[str, Any]) -> ContentDigest:
    """Write columns in the order of a reader's samples, bound to these; beside it, the digest of the file.

    Args:
        reader: Of the packed set.
        values: A row for each sample.
        path: The file to write.
        rule: By which the values were made, for the record; empty if they came from a table.

    Returns:
        The content digest of the file.
    """
    binding = _binding(reader) | {"keys": key_digest(reader.keys()), _RULE: rule}
    schema = values.schema.with_metadata({_METADATA: provenance.dumps(binding)})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        columns = [one_chunk(each) for each in values.columns]
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    digest = digest_file(path)
    digest.save(sidecar(path))
    return digest


def columns(reader: Reader, packed: Iterable[str], files: Iterable[Path]) -> dict[str, pa.Array]:
    """The values that were added to a packed set.

    Args:
        reader: Of the packed set.
        packed: Names of the fields that were packed.
        files: With these values.

    Raises:
        FormatError: A file is damaged, belongs to other samples, or has a field that is there already.
    """
    columns: dict[str, pa.Array] = {}
    taken = dict.fromkeys(packed, reader.path)
    for file in files:
        added = read(file, reader)
        for name in added.column_names:
            if name in taken:
                raise FormatError(
                    f"{file} has the field {name!r}, and so has {taken[name]}",
                    expected="another name for each field",
                    next_step=f"Move {file.name} away, and annotate again with --field OTHER={name}",
                )
            columns[name], taken[name] = one_chunk(added.column(name)), file
    return columns


def read(file: Path, reader: Reader, *, full: bool = False) -> pa.Table:
    """The columns of a file, over its memory.

    Args:
        file: What `write` wrote.
        reader: Of the packed set that it lies beside.
        full: Whether all keys are compared.

    Raises:
        FormatError: It is damaged, or belongs to other samples.
    """
    with damage_reported(file):
        found = ByteFile(file)
        with pa.ipc.open_file(pa.py_buffer(found.read(0, found.size))) as opened:
            table, batches = opened.read_all(), opened.num_record_batches
        with raised_as(ManifestError, FormatError), summary_of(file):
            values = value_table({each: table.column(each) for each in table.column_names})
    recorded = provenance.loads((table.schema.metadata or {}).get(_METADATA))
    if batches != 1 or not values.num_columns or recorded.get("rows") != len(values):
        what = f"{batches} record batches, {values.num_columns} columns and {len(values)} rows"
        raise damaged(file, f"it has {what}", f"one batch of {recorded.get('rows')} rows")
    keys = {"keys": key_digest(reader.keys())} if full else {}
    _refuse_others(file, reader, recorded, _binding(reader) | keys)
    return values


def rule_of(file: Path) -> dict[str, Any]:
    """Return the rule by which the values of a file were made; empty if they came from a table."""
    with damage_reported(file), pa.OSFile(str(file)) as opened:
        metadata = pa.ipc.open_file(opened).schema.metadata or {}
        return dict(provenance.loads(metadata.get(_METADATA)).get(_RULE) or {})


def _binding(reader: Reader) -> dict[str, Any]:
    """What a file of fields records of the samples that it belongs to, as far as that is found quickly."""
    some = column([reader.key(row) for row in spread(len(reader), _COMPARED)], pa.string())
    return {"rows": len(reader), "set": reader.set_digest, "some_keys": key_digest(some)}


def _refuse_others(file: Path, reader: Reader, recorded: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Refuse a file that was not made for the samples of a reader, in their order."""
    for name, value in found.items():
        if recorded.get(name) != value:
            raise FormatError(
                f"{file} was not made for {reader.path}: its {_NAMES[name]} is {recorded.get(name)}, and "
                f"there it is {value}",
                expected="the fields of these samples, in the order in which they are packed",
                next_step=f"Move {file.name} away, and make it again with: smallfiles annotate",
            )
