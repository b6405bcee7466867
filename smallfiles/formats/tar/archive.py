"""Index a tar file once: which files are in it and where their bytes are, in columns.

The index of ImageNet's 1.28 million members takes about 100 MB; a dict of Python objects would take
half a gigabyte in every worker. A tar of tars is indexed in place, with many inner archives at a time.

The trap: an archive may contain any name. `../../.bashrc` and absolute names are refused here, links and
devices are ignored, and the last member of a name wins, as in tar. Notebook 05 reads a tar of tars.
"""

from __future__ import annotations

import contextlib
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.arrays import as_mask, from_numpy
from smallfiles.digests import byte_order
from smallfiles.errors import FormatError, first_few
from smallfiles.folders import SERVICE_FOLDERS
from smallfiles.formats import provenance
from smallfiles.formats.bytefile import ByteFile, damaged, refuse_bomb
from smallfiles.formats.tar.headers import BLOCK_BYTES, RECORD_BYTES
from smallfiles.formats.tar.members import Members, Names, Scanner, is_tar, prefix_of, refuse_incomplete
from smallfiles.formats.tar.names import ANNOTATIONS
from smallfiles.formats.tar.streams import ForwardFile, compression_of
from smallfiles.keys import key_problem
from smallfiles.progress import plural

CONTENTS_OF = tuple(f".{name}".encode() for name in ANNOTATIONS)
_SERVICE = "|".join(map(re.escape, SERVICE_FOLDERS))
_HIDDEN = rf"(^|/)\.|^__[^/]*__/|(?i:(^|/)({_SERVICE})/)"  # the second as webdataset does
_HOSTILE = r"^/|(^|/)\.\.?(/|$)|//|[\x00\n]"
_STEP_BYTES = 1 << 20
_ROWS_AT_ONCE = 1 << 14
_SCANS_AT_ONCE = 32
_MOST_TIMES_TEXT = 20  # annotations stay in memory


@dataclass(frozen=True)
class Archive:
    """The files of a tar, in its order.

    Args:
        path: The tar file.
        compression: None if it can be read at random.
        file_bytes: Its size when it was indexed.
        names: Names of the files; those of an inner tar `a.tar` begin with `a/`.
        offsets: Where each file's bytes begin (after decompression).
        sizes: Bytes of each.
        contents: Bytes of the annotations (labels, captions) by row.
        notes: What was ignored.
        raw_bytes: Size of the tar after decompression.
        record: The provenance inside; empty in tars of other programs.
        replaced: Members that were replaced by later ones of the same name.
        folders: Names of the members that are folders.
        tars: If `path` is a folder of tars: bytes of each, by its name without `.tar`.
        inside: Names of the tars inside, without folder and suffix.
    """

    path: Path
    compression: str | None
    file_bytes: int
    names: pa.StringArray
    offsets: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    contents: dict[int, bytes] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    raw_bytes: int = 0
    record: dict[str, Any] = field(default_factory=dict)
    replaced: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    tars: dict[str, int] = field(default_factory=dict)
    inside: tuple[str, ...] = ()

    @property
    def is_ours(self) -> bool:
        """Whether this package wrote it."""
        return self.record.get("package") == provenance.PACKAGE

    def select(self, keep: npt.NDArray[np.bool_]) -> Archive:
        """The files for which `keep` is true, without the bytes of annotations."""
        return replace(self, contents={}) if keep.all() else self.take(np.flatnonzero(keep))

    def take(self, rows: npt.NDArray[np.int64]) -> Archive:
        """The files in these rows, without the bytes of annotations."""
        names = self.names.take(from_numpy(rows))
        return replace(self, names=names, offsets=self.offsets[rows], sizes=self.sizes[rows], contents={})

    def having(self, suffixes: tuple[str, ...]) -> npt.NDArray[np.bool_]:
        """Which files have one of these suffixes (lower case with the dot)."""
        found = np.zeros(len(self.names), bool)
        for start in range(0, len(self.names), _ROWS_AT_ONCE):
            lower = pc.utf8_lower(self.names.slice(start, _ROWS_AT_ONCE))
            for suffix in suffixes:
                found[start : start + len(lower)] |= as_mask(pc.ends_with(lower, suffix))
        return found


def index(path: Path) -> Archive:
    """Index a tar, tar.gz (bz2, xz, zst) or tar of tars.

    This takes one 512-byte read per member; many inner archives are scanned at a time, which hides the
    latency of a parallel file system. A compressed archive is decompressed once to index it.

    Args:
        path: The archive.

    Raises:
        FormatError: Not a tar, damaged, cut off, or with names outside its folder.
    """
    compression = compression_of(path)
    if compression is None:
        plain = ByteFile(path, "pread")
        plain.expect_short_reads()
        outer = Scanner(plain.fetch, str(path), CONTENTS_OF).scan(end=plain.size)
        raw_bytes = _refuse_bad_end(outer, plain)
        outer = _expanded(outer, plain)
    else:
        kept = KeptTexts(path, path.stat().st_size)
        with contextlib.closing(ForwardFile(path, compression)) as stream:
            outer = Scanner(stream.fetch, str(path), CONTENTS_OF, inline=True, may_keep=kept.add).scan()
            raw_bytes = _refuse_bad_end(outer, stream)
    return replace(columns_of(path, compression, path.stat().st_size, outer), raw_bytes=raw_bytes)


@dataclass
class KeptTexts:
    """How many bytes of annotations of a compressed archive are kept in memory.

    Args:
        path: The archive.
        stored: Its bytes.
    """

    path: Path
    stored: int
    count: int = 0

    def add(self, count: int) -> None:
        """Refuse these bytes if they are too many for the size of the archive."""
        self.count += count
        refuse_bomb(self.path, self.stored, self.count, _MOST_TIMES_TEXT)


def _refuse_bad_end(outer: Members, file: ByteFile | ForwardFile) -> int:
    """Read to the very end; refuse an archive that was cut off, or continues after its end mark.

    Returns:
        Bytes of the (decompressed) archive.
    """
    refuse_incomplete(outer, str(file.path))
    position, clean = outer.end + BLOCK_BYTES, True
    while data := file.fetch(position, position + _STEP_BYTES):
        clean = clean and data.count(0) == len(data)
        position += len(data)
    if clean and not (outer.is_ours and position % RECORD_BYTES):
        return position
    what = "it is cut in the zeros at its end" if clean else "it has data after the end of the archive"
    raise damaged(
        file.path,
        f"{what} (at byte {outer.end:,} of {position:,})",
        "a complete tar with only zeros after its end mark",
        "Copy or pack it again; if cat joined archives, unpack them with tar -xif and pack that folder",
    )


def _expanded(outer: Members, file: ByteFile) -> Members:
    """Replace every inner tar by its members, at any depth."""
    inner = [] if outer.is_ours else [row for row, name in enumerate(outer.names) if is_tar(name)]
    if not inner:
        return outer

    def scan(row: int) -> Members:
        name = f"{file.path}:{outer.names[row].decode('utf-8', 'replace')}"
        begin = outer.offsets[row]
        found = Scanner(file.fetch, name, CONTENTS_OF, inline=True).scan(begin, begin + outer.sizes[row])
        refuse_incomplete(found, name)
        return found

    whole = Members(skipped=outer.skipped, examples=outer.examples, folders=outer.folders)
    whole.end, whole.complete = outer.end, outer.complete
    with ThreadPoolExecutor(_SCANS_AT_ONCE, thread_name_prefix="index") as pool:
        start = 0
        for row, members in zip(inner, pool.map(scan, inner), strict=True):
            whole.extend_by_rows(outer, range(start, row))
            whole.extend(members, prefix_of(outer.names[row]))
            start = row + 1
    whole.extend_by_rows(outer, range(start, len(outer.names)))
    return whole


def columns_of(path: Path, compression: str | None, file_bytes: int, found: Members) -> Archive:
    """Names as text, without those that are hidden or were replaced by later members."""
    refuse_bomb(path, file_bytes, sum(found.sizes))
    names, notes = _as_text(found.names, path), list[str]()
    hidden = as_mask(pc.match_substring_regex(names, _HIDDEN)) & (not found.is_ours)
    latest = _is_last_of_its_name(names)
    keep = np.flatnonzero(~hidden & latest)
    offsets, sizes = np.frombuffer(found.offsets, np.int64), np.frombuffer(found.sizes, np.int64)
    if count := int(hidden.sum()):
        first = names.take(from_numpy(np.flatnonzero(hidden)[:5])).to_pylist()
        notes.append(f"{plural(count, 'hidden name')} left aside: {first_few(first, count)}")
    if count := int((~latest).sum()):
        notes.append(f"{plural(count, 'member')} replaced by a later one of the same name")
    for kind, count in found.skipped.most_common():
        notes.append(f"{plural(count, kind)} left aside ({first_few(found.examples, count, 2)})")
    replaced = tuple(names[int(row)].as_py() for row in np.flatnonzero(~latest & ~hidden))
    archive = Archive(
        path, compression, file_bytes, names, offsets, sizes, found.contents, tuple(notes),
        record=found.record, replaced=replaced, folders=_shown(found.folders), inside=tuple(found.tars),
    )  # fmt: skip
    if len(keep) == len(names):
        return archive
    new_row = {row: new for new, row in enumerate(keep.tolist()) if row in found.contents}
    contents = {new: found.contents[row] for row, new in new_row.items()}
    return replace(archive.take(keep), contents=contents)


def _as_text(raw: Names, path: Path) -> pa.StringArray:
    try:
        names = raw.column().cast(pa.string())
    except pa.ArrowInvalid:
        odd = [ascii(name)[1:] for name in raw if not _is_utf8(name)]
        raise _bad_names(path, odd, "is not UTF-8") from None
    if pc.any(pc.starts_with(names, "./")).as_py():
        names = pc.replace_substring_regex(names, r"^(\./+)+", "")
    hostile = names.filter(pc.match_substring_regex(names, _HOSTILE)).to_pylist()
    if hostile:
        raise _bad_names(path, [repr(name) for name in hostile], key_problem(hostile[0]) or "")
    return names


def _shown(folders: list[bytes]) -> tuple[str, ...]:
    """The folders whose names may be those of classes."""
    names = (name.decode("utf-8", "replace").removeprefix("./") for name in folders)
    return tuple(name for name in names if name != "." and not re.search(_HIDDEN, f"{name}/"))


def _is_utf8(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def _bad_names(path: Path, names: list[str], problem: str) -> FormatError:
    return FormatError(
        f"{path} has {plural(len(names), 'name')} that {problem}: {first_few(names, len(names))}",
        expected="relative names in UTF-8 that stay inside their folder",
        next_step="Do not unpack it without looking; make the archive again from inside its folder",
    )


def _is_last_of_its_name(names: pa.StringArray) -> npt.NDArray[np.bool_]:
    """A hash table of a million names would take 200 MB; in sorted order, equal names are neighbours."""
    keep, order = np.ones(len(names), bool), byte_order(names)  # stable, so that the last stays the last
    if isinstance(order, range):
        return keep  # each is less than the next
    for start in range(0, len(names), _ROWS_AT_ONCE):
        rows = order.slice(start, _ROWS_AT_ONCE + 1)
        found = names.take(rows)
        again = pc.equal(found.slice(1), found.slice(0, len(found) - 1))
        for row in rows.slice(0, len(rows) - 1).filter(again).to_pylist():
            keep[row] = False
    return keep


def repeated(names: pa.StringArray) -> list[str]:
    """Names that come more than once."""
    rows = from_numpy(np.flatnonzero(~_is_last_of_its_name(names)))
    again: list[str] = names.take(rows).unique().to_pylist()
    return again
