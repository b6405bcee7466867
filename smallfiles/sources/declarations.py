"""Files beside the data that name its samples: each is read, or left out by a flag, or the source is refused.

    wavs/1.wav  metadata.csv              a table with the text of each sound
    cat/1.jpg   train.txt  val.txt        lists of splits
    cat/1.jpg   boxes/1.xml               a file with the stem of each sample

The trap: class folders look complete without the table beside them. Then a network learns one class called
`wavs`, and nobody misses the texts. So the contents of text files decide, and not their names: a file counts
if most of its lines name samples. Documents, licences and checksums do not. Notebook 02 shows the layouts.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.arrays import column, file_names_of, folders_of, stems_of, suffixes_of
from smallfiles.errors import SmallfilesError, SourceError, UsageError, first_few
from smallfiles.fields import name_of_first
from smallfiles.folders import SourceOptions, is_ignored
from smallfiles.manifest.listing import Files
from smallfiles.progress import plural
from smallfiles.sources.roles import IDS, known_targets
from smallfiles.sources.scanning import Notes, in_flight, list_folder
from smallfiles.sources.table_files import SUFFIXES as TABLE_SUFFIXES
from smallfiles.sources.table_files import TEXT_SUFFIXES, dialect_of, read_with_notes, rows_of

_LINES = (".csv", ".tsv", ".txt", ".lst", ".list", ".jsonl", ".ndjson", "")
_OBJECTS = (".json", ".xml", ".yaml", ".yml")
_COLUMNS = (".parquet", ".feather")
_BINARY = (".mat", ".xlsx", ".xls", ".ods", ".pkl", ".pickle", ".sqlite", ".db", ".gz", ".bz2", ".xz", ".zst")
_KNOWN = (*_LINES, *_OBJECTS, *_COLUMNS, *_BINARY, ".cls")
_DOCUMENTS = re.compile(
    r"(?i)(read[ _-]?me|licen[cs]e|copying|notice|authors|change(s|log)|citation|contributing|terms|about"
    r"|version|requirements|makefile|dockerfile|(md5|sha\d*|check)[ _-]?sums?).*"
)
_CHECKSUM = re.compile(r"(?i)[0-9a-f]{32,128}\s|.*\s[0-9a-f]{32,128}")
_IN_NAME = re.compile(
    r"(?i)(^|[^a-z])(train|test|val|set|label|annot?|annotation|split|list|image)?"
    r"(list|label|annot?|annotation|split|id)s?([^a-z]|$)"
)
_YAML = re.compile(r"(?m)^(train|val|test|names)[ \t]*:")
_TEXTS = re.compile(r'"((?:[^"\\]|\\.)*)"|>([^<>]+)<|:[ \t]+([^\s"\'{\[][^\n,}\]]*)|-[ \t]+([^\n]+)')
_HEAD_BYTES = 1 << 16
_MOST_FILES = 1000
_ROWS = 20
_LEAST_SHARE = 0.5
_MOST_PATTERNS = 3


def check(
    files: Files, kept: pa.StringArray, options: SourceOptions, used: Sequence[str] = (), chosen: str = ""
) -> tuple[str, ...]:
    """Refuse files that name samples but were not read.

    Args:
        files: All files of all splits.
        kept: Paths of the samples that were read.
        options: If `labels`, `unlabelled` or a `kind` says what to read, the other files are only noted.
        used: Paths of other files that were read.
        chosen: The path of a file that was read although there are others of its kind. It is empty if there
            is no such file.

    Returns:
        A note on the files that were not read.

    Raises:
        SourceError: There are such files, and no flag says what to do with them.
    """
    others = files.others.filter(pc.is_in(suffixes_of(files.others), column(_KNOWN, pa.string())))
    if used:
        others = others.filter(pc.invert(pc.is_in(others, column(sorted(used), pa.string()))))
    if not len(kept) or not len(others := _of_split(others, files, kept)):
        return ()
    stems, own = stems_of(file_names_of(others)), stems_of(file_names_of(files.samples))
    known = own.filter(pc.is_in(own, stems)).unique()  # of millions of samples only these
    read = stems_of(file_names_of(kept))
    partners = others.filter(pc.is_in(stems, read.filter(pc.is_in(read, known)).unique()))
    sides = [name for name in partners.to_pylist() if not _is_document(name)]
    rest = others.filter(pc.invert(pc.is_in(stems, known))).to_pylist()
    named = _naming([name for name in rest if not _is_document(name)], files, kept)
    found = [*sides, *named]
    if not found:
        return ()
    listed = f"{plural(len(found), 'file')} ({first_few(found)})"
    if options.labels is not None or options.unlabelled or options.kind != "auto":
        return (f"not read, since a flag says what is: {listed}",)
    uses = [*_uses(files, kept, sides, named, chosen)] if files.labels_flag else []
    steps = "; or ".join([*uses, f"go without ({_ignore(found)})"])
    if files.inside is not None and files.classes_flag:
        steps += f"; or take its folders as classes ({files.classes_flag}), or pack it without (--unlabelled)"
    raise SourceError(
        f"{files.where} has {listed} that would not be read, though the samples are named there",
        expected="a flag that says what to do with each",
        next_step=steps[0].upper() + steps[1:],
    )


def _of_split(others: pa.StringArray, files: Files, kept: pa.StringArray) -> pa.StringArray:
    """Remove the files in folders whose samples all belong to another split."""
    folders = folders_of(others)
    apart = [
        folder
        for folder in folders.unique().to_pylist()
        if pc.any(pc.starts_with(files.samples, folder)).as_py()
        and not pc.any(pc.starts_with(kept, folder)).as_py()
    ]
    return others.filter(pc.invert(pc.is_in(folders, column(apart, pa.string())))) if apart else others


def _head(files: Files, name: str) -> bytes:
    """Return the first bytes of a file. For a file of objects, return the last bytes as well."""
    if files.inside is not None:
        return bytes(files.inside(name))
    with (files.where / name).open("rb") as file:
        head = file.read(_HEAD_BYTES)
        if _suffix(name) in _OBJECTS:  # the images of a COCO file may stand at its end
            file.seek(max(file.tell(), (files.where / name).stat().st_size - _HEAD_BYTES))
            head += file.read()
    return head


def names_beside(
    folder: Path, used: Iterable[str], options: SourceOptions, members: Sequence[str] = ()
) -> pa.StringArray:
    """Return the names of files that lie beside archives, tables or packed files and are not ignored.

    Args:
        folder: The folder.
        used: Paths of the files that hold the samples.
        options: Options that say which files are ignored.
        members: Names of additional files inside the files that are used.

    Raises:
        UsageError: A pattern of `--ignore` matches nothing.
    """
    used = {*used}
    below = sorted({name.rpartition("/")[0] for name in used} | {""}) if folder.is_dir() else []
    names = [f"{each}/{name}".lstrip("/") for each in below for name in list_folder(folder / each).files]
    ignored = {name for name in (*names, *members) if is_ignored(name, options.ignore)}
    ignored_note(folder, sorted(ignored), options)
    return column([name for name in (*names, *members) if name not in used | ignored], pa.string())


def ignored_note(where: Path, found: Sequence[str], options: SourceOptions) -> Notes:
    """Return a note on the files that `--ignore` leaves out of a source.

    Raises:
        UsageError: A pattern of `--ignore` matches nothing.
    """
    for pattern in options.ignore:
        if not any(is_ignored(name, [pattern]) for name in found):
            raise UsageError(
                f"--ignore {pattern} matches nothing in {where}",
                expected="the path of a file or folder in it, or a pattern such as '*.csv' or 'meta/*'",
                next_step="Correct the pattern, or leave it out",
            )
    return (f"left out by --ignore: {first_few(found)}",) if found else ()


def _is_document(path: str) -> bool:
    return _DOCUMENTS.fullmatch(path.rpartition("/")[2]) is not None


def _suffix(path: str) -> str:
    name = path.rpartition("/")[2]
    return f".{name.rpartition('.')[2].lower()}" if "." in name else ""


@dataclass(frozen=True)
class _Names:
    """Those of some names that are names of samples: with their suffixes, and without."""

    full: frozenset[str]
    stems: frozenset[str]

    @classmethod
    def of(cls, paths: pa.StringArray, wanted: Iterable[str]) -> _Names:
        names = file_names_of(paths)
        some = column(sorted({*wanted}), pa.string())
        both = (names, stems_of(names))
        return cls(*(frozenset(each.filter(pc.is_in(each, some)).unique().to_pylist()) for each in both))


def _naming(others: Sequence[str], files: Files, kept: pa.StringArray) -> list[str]:
    """Return the files that name samples that were read, or samples that do not exist at all."""
    others = others[:: max(1, -(-len(others) // _MOST_FILES))]
    found = [name for name in others if _suffix(name) in _BINARY and _IN_NAME.search(name.rpartition("/")[2])]
    texts = [name for name in others if _suffix(name) not in _BINARY]
    rows = dict(zip(texts, in_flight(lambda name: [*_rows(files, name)], texts), strict=True))
    wanted = {_base(token) for lines in rows.values() for tokens in lines for token in tokens}
    read, known = _Names.of(kept, wanted), _Names.of(files.samples, wanted)
    suffix = _suffix(kept[0].as_py())
    for name, lines in rows.items():
        names_kept, names_any = (_share(name, lines, each) for each in (read, known))
        are_files = [any(token.lower().endswith(suffix) for token in line) for line in lines if suffix]
        names_files = _suffix(name) in _LINES and 0 < sum(are_files) >= _LEAST_SHARE * len(lines)
        is_new = names_files and not names_any
        found += [name] * bool(is_new or (names_kept and not _lists_exactly(files, kept, name)))
    return [name for name in others if name in found]


def _rows(files: Files, name: str) -> Iterator[list[str]]:
    """Yield the texts in each line of a file that may name samples.

    All texts of a JSON, XML or YAML file count as one line.
    """
    suffix = _suffix(name)
    if suffix in _COLUMNS:
        if files.inside is not None:
            return
        try:
            table, _ = read_with_notes(files.where / name)
        except SmallfilesError:
            return
        texts = [table.column(each.name) for each in table.schema if pa.types.is_string(each.type)]
        for row in zip(*(each.slice(0, _MOST_FILES).to_pylist() for each in texts), strict=True):
            yield [each for each in row if each]
        return
    head = _head(files, name)
    if b"\0" in head[:1024] and head[:2] not in (b"\xff\xfe", b"\xfe\xff"):
        return
    text = head.decode("utf-16" if head[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig", "replace")
    if suffix in _OBJECTS or (suffix == "" and text.lstrip()[:1] in ("<", "{")):
        tokens = [next(filter(None, match), "") for match in _TEXTS.findall(text)]
        yield [*tokens, *([":yaml"] * bool(suffix in (".yaml", ".yml") and _YAML.search(text)))]
        return
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if sum(bool(_CHECKSUM.match(f"{line} ")) for line in lines) * 2 > len(lines):
        return
    for line in lines[:-1] if len(head) == _HEAD_BYTES else lines:
        fields = re.split(r"[\t,;|]", line)
        words = (word for each in fields for word in each.split())
        yield [each.strip(" \"'\r") for each in (*fields, *words, line)]


def _base(token: str) -> str:
    return token.replace("\\", "/").rpartition("/")[2].partition("#")[0].strip()


def _share(name: str, lines: Sequence[Sequence[str]], names: _Names) -> bool:
    """Check whether enough lines of a file name samples."""
    suffix = _suffix(name)
    if suffix in _OBJECTS or (not suffix and len(lines) == 1):
        tokens = [token for line in lines for token in line]
        paths = {_base(token) for token in tokens if "/" in token}
        words = {token for token in tokens if not token.isdecimal()}
        return (
            ":yaml" in tokens
            or any(_base(token) in names.full for token in tokens)
            or len(paths & names.stems) > 1
            or len(words & names.stems) * 2 > len(words)
        )
    ids = [line[0] for line in lines[1:] if line]
    is_table = suffix in TABLE_SUFFIXES and len({*ids}) == len(ids)
    is_table = is_table and not known_targets(lines[0][:1] if lines else ())
    count = 0
    for line in lines:
        stems = [
            token
            for token in line
            if _base(token) in names.stems and ("/" in token or not _base(token).isdecimal())
        ]
        is_id = is_table and bool(line) and line[0] in names.stems
        count += bool(is_id or stems or any(_base(token) in names.full for token in line))
    return bool(count) and count >= _LEAST_SHARE * len(lines)


def _lists_exactly(files: Files, kept: pa.StringArray, name: str) -> bool:
    """Check whether a file only lists all samples that were read, one per line.

    Such a file adds no information.
    """
    if _suffix(name) not in (".txt", ".lst", ".list", ""):
        return False
    in_folder = files.inside is None
    data = (files.where / name).read_bytes() if in_folder else _head(files, name)
    text = data.decode("utf-8-sig", "replace")
    lines = {line.strip().removeprefix("./") for line in text.splitlines() if line.strip()}
    if len(lines) != len(kept):
        return False
    depth = -1 - next(iter(lines)).count("/")
    tails = {"/".join(path.split("/")[depth:]) for path in kept.to_pylist()}
    return lines in (tails, {tail.rpartition(".")[0] for tail in tails})


def _uses(
    files: Files, kept: pa.StringArray, sides: list[str], named: list[str], chosen: str
) -> Iterator[str]:
    """Yield ways to use the files. Each is a phrase that continues the error message."""
    if chosen:
        yield f"read only {chosen} (--labels {shlex.quote(str(files.where / chosen))})"
    tables = [name for name in named if _suffix(name) in TABLE_SUFFIXES]
    for name in islice(tables, _MOST_PATTERNS):
        words = ["--labels", str(files.where / name), *_flags(files, kept, name)]
        yield f"read it ({shlex.join(words)})"
    folders = {name.rpartition("/")[0] for name in sides}
    suffixes = {_suffix(name) for name in sides}
    if len(folders) == len(suffixes) == 1 and "" not in suffixes:
        folder, suffix = folders.pop(), suffixes.pop()
        template = f"{suffix[1:]}={f'{folder}/' * bool(folder)}{{stem}}{suffix}"
        yield f"pack them as further files (--field {shlex.quote(template)})"


def _flags(files: Files, kept: pa.StringArray, name: str) -> list[str]:
    """Return the `--field` flags that are needed to read a text table."""
    if _suffix(name) not in TEXT_SUFFIXES:
        return []
    path = files.where / name
    try:
        dialect = dialect_of(path, ())
        rows = [row for _, row in islice(rows_of(path, dialect.delimiter, dialect.quoting), _ROWS)]
    except (SmallfilesError, ValueError):
        return []
    names = _Names.of(kept, (_base(cell) for row in rows for cell in row))
    columns = [list(each) for each in zip(*rows, strict=False)]

    def matches(cells: Sequence[str]) -> int:
        return sum(_base(cell) in names.full or cell in names.stems for cell in cells)

    at = max(range(len(columns)), key=lambda number: matches(columns[number][1:]))
    header = matches(columns[at][:1]) == 0
    labels = [cells[0] if header else f"column{number + 1}" for number, cells in enumerate(columns)]
    cells, first = columns[at][1:], kept[0].as_py()
    is_whole = sum(_base(cell) in names.full for cell in cells) * 2 > len(cells)
    flags = []
    if labels[at].lower() not in IDS.split():
        spec = labels[at] if is_whole else f"{{{labels[at]}}}{Path(first).suffix}"
        flags += ["--field", f"{name_of_first(first)}={spec}"]
    targets = known_targets(labels)
    prose = [
        label
        for label, texts in zip(labels, columns, strict=True)
        if label != labels[at] and sum(" " in text.strip() for text in texts[1:]) * 2 > len(texts[1:])
    ]
    if not targets and prose:
        flags += ["--field", f"captions={prose[0]}"]
    if len(targets) > 1:
        words = [each for each in targets if not any(c[1:2][0].isdecimal() for c in columns if c[0] == each)]
        flags += ["--field", f"label={(words or targets)[0]}"]
    return flags


def _ignore(found: Sequence[str]) -> str:
    """Return the `--ignore` flags that leave these files out.

    A flag names a path or a pattern for a folder. If there are many folders, it names a suffix.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for name in found:
        groups.setdefault((name.rpartition("/")[0], _suffix(name)), []).append(name)
    patterns = []
    for (folder, suffix), names in groups.items():
        start = f"{folder}/" if folder else ""
        patterns += [names[0]] if len(names) == 1 else [f"{start}*{suffix}"]
    if len(patterns) > _MOST_PATTERNS:
        tops = dict.fromkeys(f"{name.partition('/')[0]}/*{_suffix(name)}" for name in found if "/" in name)
        flat = [pattern for pattern in patterns if "/" not in pattern]
        patterns = [*tops, *flat]
    if len(patterns) > _MOST_PATTERNS:
        patterns = [*dict.fromkeys(f"*{_suffix(name)}" for name in found)]
    return " ".join(f"--ignore {shlex.quote(pattern)}" for pattern in patterns)
