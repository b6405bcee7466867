"""A card for a packed set: Croissant 1.1, which data set search engines and `mlcroissant` read.

It names the files with size and SHA-256, the fields with their types, classes, split and licence. Of tar
outputs `mlcroissant` loads records: each kind of member is a record set with the field `sample`, the name up
to its first dot, by which they belong together. Other formats are only described.

The trap: no packed file stores the SHA-256 of itself, so every byte is read once for it.
"""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Iterable
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
_ESCAPED = {"description": "As the member is named; where names share their first part, a dot is %2E."}
_STEM = r"^((?:.*/)?[^./]*)\."
"""The name of a member up to the first dot of its last part, as webdataset splits it."""


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
    """The card as a JSON object; reads each file once, for its SHA-256."""
    facts = reader.info()
    packed = (facts.get("provenance") or {}).get("schema") or {}
    name, split = packed.get("name") or Path(reader.path).stem, packed.get("split") or ""
    files = _files(Path(reader.path), facts["format"])
    objects = _objects(files, Path(reader.path).parent)
    archives = [each["@id"] for each in objects if each["encodingFormat"] == _TYPES[".tar"]]
    sets = _of_members(reader, archives) if archives else [("samples", None, _columns(reader))]
    added = added_fields(Path(reader.path))
    records = [_record_set(*each, objects[0]["@id"]) for each in sets]
    for file, one in zip(added, objects[len(objects) - len(added) :], strict=True):
        fields = [_field(each.name, each.type, {"column": each.name}) for each in _new(reader)]
        records.append(_record_set(file.name, None, fields, one["@id"]))
    records += _classes(reader.classes) + _splits(split)
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.1",
        "name": name,
        "description": f"{len(reader):,} samples, packed by smallfiles as {facts['format']}.",
        **({"license": licence} if licence else {}),
        **({"identifier": reader.set_digest} if reader.set_digest else {}),
        "distribution": objects + [file_set for _, file_set, _ in sets if file_set],
        "recordSet": records,
    }


def _files(path: Path, format: str) -> list[Path]:
    """The files of a set, those that `annotate` added last."""
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
    """A FileObject of each file, read once."""
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


Kind = tuple[str, "dict[str, Any] | None", "list[dict[str, Any]]"]
"""Name of a record set, the members that it comes from, its fields."""


def _of_members(reader: Reader, archives: list[str]) -> list[Kind]:
    """The record sets of a tar output: one for each kind of member."""
    suffixes = {Path(key).suffix for key in reader.keys().to_pylist()}
    blobs = further_files(reader.fields)
    further = [f"*.{name}{suffix}" for name, suffix in blobs.items() if suffix in suffixes]
    if further:
        note(f"mlcroissant 1.1 does not exclude {', '.join(further)} from its records of samples")
    content, path = {"fileProperty": "content"}, {"fileProperty": "fullpath"}
    image = _field("image" if _kind(suffixes) == "sc:ImageObject" else "data", _kind(suffixes), content)
    kinds = [
        (
            "samples",
            sorted(f"*{suffix}" for suffix in suffixes),
            [_field("key", "sc:Text", path) | _ESCAPED, image],
        )
    ]
    kinds += [
        (name, [f"*.{name}{suffix}"], [_field(name, _kind([suffix]), content)])
        for name, suffix in blobs.items()
    ]
    values = [
        _field(each.name, each.type, {"jsonPath": f"$.{each.name}"})
        for each in _packed(reader)
        if each.name not in TARGETS
    ]
    if "label" in reader.fields:
        kinds.append(("labels", ["*.cls"], [_field("label", "sc:Integer", content)]))
    elif not values:
        values = [_field("captions", pa.list_(pa.string()), {"jsonPath": "$"})]
    if (
        values
    ):  # twice: mlcroissant does not look into JSON that lies in an archive, so the second is its whole text
        kinds += [("values", ["*.json"], values), ("json", ["*.json"], [_field("json", "sc:Text", content)])]
    found: list[Kind] = []
    for name, includes, fields in kinds:
        encodings = sorted({_encoding("." + each.rpartition(".")[2]) for each in includes})
        members = {
            "@type": "cr:FileSet",
            "@id": f"members-{name}",
            "name": f"members-{name}",
            "containedIn": [{"@id": archive} for archive in archives],
            "encodingFormat": ["text/plain"] if includes == ["*.cls"] else encodings,
            "includes": includes,
            **({"cr:excludes": further} if further and name == "samples" else {}),
        }
        stem = _field("sample", "sc:Text", path) | {"transform": {"regex": _STEM}}
        found.append((name, members, [stem, *fields]))
    return found


def _columns(reader: Reader) -> list[dict[str, Any]]:
    """The fields of a format whose columns `mlcroissant` cannot read: described."""
    kind = _kind({Path(key).suffix for key in reader.keys().to_pylist()})
    plain: list[tuple[str, Any]] = [("key", "sc:Text"), ("data", kind)]
    of_values = {each.name: "sc:Integer" if each.name == "label" else each.type for each in _packed(reader)}
    plain += [(name, type_) for name, type_ in of_values.items() if name in TARGETS]
    plain += [(name, _kind([suffix])) for name, suffix in further_files(reader.fields).items()]
    plain += [(name, type_) for name, type_ in of_values.items() if name not in TARGETS]
    return [_field(name, type_, {"column": name}) for name, type_ in plain]


def _packed(reader: Reader) -> list[pa.Field]:
    """The values that were packed, JSON objects excepted."""
    every = reader.table(rows=[]).schema
    return [each for each in every if each.name != META and each.name not in reader.added()]


def _new(reader: Reader) -> Iterable[pa.Field]:
    """The columns that `annotate` added."""
    return (pa.field(name, column.type) for name, column in reader.added().items())


def _kind(suffixes: Iterable[str]) -> str:
    """The type of files with these suffixes."""
    kinds = {_encoding(suffix).partition("/")[0] for suffix in suffixes}
    known = {"image": "sc:ImageObject", "audio": "sc:AudioObject", "video": "sc:VideoObject"}
    return known.get("".join(kinds), "sc:Text")  # several kinds: no name of any


def _field(name: str, kind: str | pa.DataType, extract: dict[str, str]) -> dict[str, Any]:
    """A field without its record set and source, which `_record_set` adds."""
    field: dict[str, Any] = {"name": name, "extract": extract}
    depth = 0
    while isinstance(kind, pa.DataType) and (pa.types.is_nested(kind) and hasattr(kind, "value_type")):
        kind, depth = kind.value_type, depth + 1
    if depth:
        field |= {"isArray": True, "arrayShape": ",".join(["-1"] * depth)}
    return field | {"dataType": kind if isinstance(kind, str) else _scalar(kind)}


def _scalar(kind: pa.DataType) -> str:
    for test, name in (
        (pa.types.is_boolean, "Boolean"),
        (pa.types.is_integer, "Integer"),
        (pa.types.is_floating, "Float"),
        (pa.types.is_timestamp, "DateTime"),
        (pa.types.is_date, "Date"),
    ):
        if test(kind):
            return f"sc:{name}"
    return "sc:Text"


def _record_set(
    name: str, members: dict[str, Any] | None, fields: list[dict[str, Any]], file: str
) -> dict[str, Any]:
    origin = {"fileSet": {"@id": members["@id"]}} if members else {"fileObject": {"@id": file}}
    whole = []
    for field in fields:
        rest = {key: value for key, value in field.items() if key not in ("extract", "transform")}
        source = origin | {key: field[key] for key in ("extract", "transform") if key in field}
        whole.append({"@type": "cr:Field", "@id": f"{name}/{field['name']}", **rest, "source": source})
    return {
        "@type": "cr:RecordSet",
        "@id": name,
        "name": name,
        "key": {"@id": whole[0]["@id"]},
        "field": whole,
    }


def _inline(
    name: str, kind: str, columns: dict[str, str], rows: list[tuple[Any, ...]]
) -> list[dict[str, Any]]:
    """A record set whose rows stand in the card; none if there are no rows."""
    names = [f"{name}/{column}" for column in columns]
    fields = [
        {"@type": "cr:Field", "@id": each, "name": column, "dataType": columns[column]}
        for each, column in zip(names, columns, strict=True)
    ]
    data = [dict(zip(names, row, strict=True)) for row in rows]
    one = {"@type": "cr:RecordSet", "@id": name, "name": name, "dataType": kind, "key": {"@id": names[0]}}
    return [{**one, "field": fields, "data": data}] if rows else []


def _classes(classes: tuple[str, ...]) -> list[dict[str, Any]]:
    return _inline(
        "classes", "sc:Enumeration", {"label": "sc:Integer", "name": "sc:Text"}, list(enumerate(classes))
    )


def _splits(split: str) -> list[dict[str, Any]]:
    kind = _SPLITS.get(split)
    rows = [(split, f"cr:{kind}")] if kind else []
    return _inline("splits", "cr:Split", {"name": "sc:Text", "url": "sc:URL"}, rows)
