"""A card for a packed set: Croissant 1.1, which data set search engines and `mlcroissant` read.

It names the files with size and SHA-256, and describes the table of samples: its fields with their types,
classes, split and licence. Records are read by the loaders of this package, not by `mlcroissant`.

The trap: no packed file stores the SHA-256 of itself, so every byte is read once for it.
"""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from smallfiles.atomic import write_json
from smallfiles.digests import SIDECAR_SUFFIX, added_fields
from smallfiles.errors import UsageError, writing
from smallfiles.fields import META, TARGETS, further_files
from smallfiles.progress import bytes_text, note, progress

if TYPE_CHECKING:
    from smallfiles.samples import Reader

SUFFIX = ".croissant.json"
_BLOCK_BYTES = 4 << 20
_TERMS = """
    arrayShape citeAs column containedIn equivalentProperty extract field fileObject fileProperty fileSet
    format includes isArray isLiveDataset jsonPath key md5 parentField path recordSet references regex
    repeated replace samplingRate separator source subField transform
"""
CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "dct": "http://purl.org/dc/terms/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    **{term: f"cr:{term}" for term in _TERMS.split()},
}
"""The standard one of Croissant 1.1."""
_TYPES = {
    ".arrow": "application/vnd.apache.arrow.file",
    ".h5": "application/x-hdf5",
    ".hdf5": "application/x-hdf5",
    ".mdb": "application/x-lmdb",
    ".npy": "application/x-npy",
    ".sqfs": "application/x-squashfs",
    ".tar": "application/x-tar",
}
_SPLITS = {
    "train": "TrainingSplit",
    "val": "ValidationSplit",
    "validation": "ValidationSplit",
    "test": "TestSplit",
}


def write(reader: Reader, licence: str | None = None) -> Path:
    """Write the card of a packed set beside it.

    Args:
        reader: The set.
        licence: A URL or a name of SPDX.

    Returns:
        The card: `train.tars.croissant.json`.

    Raises:
        UsageError: The set is a tree of files, with as many lines as samples.
    """
    card = Path(reader.path).with_name(Path(reader.path).name + SUFFIX)
    described = describe(reader, licence)
    with writing(card):
        write_json(card, described)
    return card


def describe(reader: Reader, licence: str | None = None) -> dict[str, Any]:
    """Return the card as a JSON object. Each file is read once, for its SHA-256."""
    facts, path = reader.info(), Path(reader.path)
    packed = (facts.get("provenance") or {}).get("schema") or {}
    objects = _objects(_files(path, facts["format"]), path.parent)
    records = [_columns("samples", objects[0]["@id"], _fields_of(reader))]
    added = {name: column.type for name, column in reader.added().items()}
    later = added_fields(path)
    for file, one in zip(later, objects[len(objects) - len(later) :], strict=True):
        records.append(_columns(file.name, one["@id"], added))
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.1",
        "name": packed.get("name") or path.stem,
        "description": f"{len(reader):,} samples, packed by smallfiles as {facts['format']}.",
        **({"license": licence} if licence else {}),
        **({"identifier": reader.set_digest} if reader.set_digest else {}),
        "distribution": objects,
        "recordSet": [*records, *_classes(reader.classes), *_splits(packed.get("split") or "")],
    }


def _files(path: Path, format: str) -> list[Path]:
    """List the files of a set, with the files that `annotate` added last."""
    if format == "files":
        raise UsageError(
            f"{path} is a tree of files",
            expected="a set of a few files, since a card has a line for each",
            next_step="Pack it first: smallfiles pack DIR OUT.tars",
        )
    beside = path.with_name(path.name + ".index.arrow")
    inside = sorted(path.iterdir()) if path.is_dir() else [path, *[beside] * beside.exists()]
    data = [
        file for file in inside if file.is_file() and not file.name.endswith((SIDECAR_SUFFIX, "lock.mdb"))
    ]
    return data + added_fields(path)


def _objects(files: list[Path], root: Path) -> list[dict[str, Any]]:
    """Return a FileObject for each file, which is read once."""
    found = []
    total = sum(file.stat().st_size for file in files)
    note(f"reading {bytes_text(total)} once, for SHA-256")
    with progress(total, "hashing", unit="bytes") as bar:
        for file in files:
            hashed, name = hashlib.sha256(), file.relative_to(root).as_posix()
            with file.open("rb") as stream:
                while block := stream.read(_BLOCK_BYTES):
                    hashed.update(block)
                    bar.advance(len(block))
            found.append(
                {
                    "@type": "cr:FileObject",
                    "@id": name,
                    "name": file.name,
                    "contentUrl": name,
                    "contentSize": f"{file.stat().st_size} B",
                    "encodingFormat": _encoding(file.suffix),
                    "sha256": hashed.hexdigest(),
                }
            )
    return found


def _encoding(suffix: str) -> str:
    return _TYPES.get(suffix) or mimetypes.types_map.get(suffix.lower()) or "application/octet-stream"


def _columns(name: str, file: str, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record set that describes the columns of a file."""
    return _record_set(name, [_field(name, each, kind, file) for each, kind in columns.items()])


def _fields_of(reader: Reader) -> dict[str, Any]:
    """Return the type of each packed field except JSON objects."""
    every = reader.table(rows=[]).schema
    values = {each.name: each.type for each in every if each.name not in (META, *reader.added())}
    targets = {name: values.pop(name) for name in TARGETS if name in values}
    files = {name: _kind([suffix]) for name, suffix in further_files(reader.fields).items()}
    first = _kind({Path(key).suffix for key in reader.keys().to_pylist()})
    return {"key": "sc:Text", "data": first} | targets | files | values


def _kind(suffixes: Iterable[str]) -> str:
    """Return the type of files with these suffixes."""
    kinds = {_encoding(suffix).partition("/")[0] for suffix in suffixes}
    known = {"image": "sc:ImageObject", "audio": "sc:AudioObject", "video": "sc:VideoObject"}
    return known.get("".join(kinds), "sc:Text")  # several kinds: no name of any


def _field(owner: str, name: str, kind: str | pa.DataType, file: str) -> dict[str, Any]:
    source = {"fileObject": {"@id": file}, "extract": {"column": name}}
    field: dict[str, Any] = {"@type": "cr:Field", "@id": f"{owner}/{name}", "name": name}
    depth = 0
    while isinstance(kind, pa.DataType) and pa.types.is_nested(kind) and hasattr(kind, "value_type"):
        kind, depth = kind.value_type, depth + 1
    if depth:
        field |= {"isArray": True, "arrayShape": ",".join(["-1"] * depth)}
    return field | {"dataType": kind if isinstance(kind, str) else _scalar(kind), "source": source}


def _scalar(type_: pa.DataType) -> str:
    for test, name in (
        (pa.types.is_boolean, "Boolean"),
        (pa.types.is_integer, "Integer"),
        (pa.types.is_floating, "Float"),
        (pa.types.is_timestamp, "DateTime"),
        (pa.types.is_date, "Date"),
    ):
        if test(type_):
            return f"sc:{name}"
    return "sc:Text"


def _record_set(name: str, fields: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    key = {"@id": fields[0]["@id"]}
    return {"@type": "cr:RecordSet", "@id": name, "name": name, "key": key, "field": fields, **more}


def _inline(name: str, kind: str, types: Sequence[str], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a record set whose rows are in the card, or an empty list if there are no rows."""
    if not rows:
        return []
    fields = [
        {"@type": "cr:Field", "@id": f"{name}/{column}", "name": column, "dataType": type_}
        for column, type_ in zip(rows[0], types, strict=True)
    ]
    data = [{f"{name}/{column}": value for column, value in row.items()} for row in rows]
    return [_record_set(name, fields, dataType=kind, data=data)]


def _classes(classes: tuple[str, ...]) -> list[dict[str, Any]]:
    rows = [{"label": label, "name": name} for label, name in enumerate(classes)]
    return _inline("classes", "sc:Enumeration", ("sc:Integer", "sc:Text"), rows)


def _splits(split: str) -> list[dict[str, Any]]:
    rows = [{"name": split, "url": f"cr:{_SPLITS[split]}"}] if split in _SPLITS else []
    return _inline("splits", "cr:Split", ("sc:Text", "sc:URL"), rows)
