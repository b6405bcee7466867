"""Index a tar file once: which files are in it and where their bytes are, in columns.

The index of ImageNet's 1.28 million members takes about 100 MB; a dict of Python objects would take
half a gigabyte in every worker. A tar of tars is indexed in place, with many inner archives at a time.

The trap: an archive may contain any name. `../../.bashrc` and absolute names are refused here, and so are
links that lead out; others are followed. Devices are ignored, and the last member of a name wins, as in tar.
Notebook 05 reads a tar of tars.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pysquashfs.names import Names as SortedNames
from smallfiles.arrays import as_mask, column, from_numpy
from smallfiles.digests import byte_order
from smallfiles.errors import FormatError, SourceError, first_few, raised_as
from smallfiles.folders import SERVICE_FOLDERS, key_problem
from smallfiles.formats.bytefile import ByteFile, damaged, refuse_bomb
from smallfiles.formats.tar.headers import (
    ANNOTATIONS,
    BLOCK_BYTES,
    RECORD_BYTES,
    Members,
    Names,
    Scanner,
    is_tar,
    prefix_of,
    refuse_incomplete,
)
from smallfiles.formats.tar.streams import ForwardFile, cannot_seek, compression_of
from smallfiles.links import follow, refuse_lost_folders
from smallfiles.progress import plural
from smallfiles.storage import ReadingPool

CONTENTS_OF = tuple(f".{name}".encode() for name in ANNOTATIONS)
_SERVICE = "|".join(map(re.escape, SERVICE_FOLDERS))
_HIDDEN = rf"(^|/)\.|(?i:(^|/)({_SERVICE})/)"
_HIDDEN_IN_SHARDS = rf"^__[^/]*__/|{_HIDDEN}"  # as webdataset does
_HOSTILE = r"^/|(^|/)\.\.?(/|$)|//|[\x00\n]"
_STEP_BYTES = 1 << 20
_ROWS_AT_ONCE = 1 << 14
_SCANS_AT_ONCE = 32
_MOST_TIMES_TEXT = 20  # annotations stay in memory


@dataclass(frozen=True)
class Archive:
    """The files of a tar as columns, in the order of the tar.

    Args:
        path: The tar file.
        compression: Name of the compression. It is None if the tar can be read at random.
        file_bytes: Size of the tar file in bytes when it was indexed.
        names: Names of the files. Names of files in an inner tar `a.tar` begin with `a/`.
        offsets: Offset of the first byte of each file, in the decompressed tar.
        sizes: Size of each file in bytes.
        contents: Bytes of the annotations (labels, captions) by row.
        notes: Notes for the user on what was ignored.
        raw_bytes: Size of the decompressed tar in bytes.
        record: The provenance in the tar. It is empty in tars of other programs.
        replaced: Names of members that were replaced by later members of the same name.
        folders: Names of the members that are folders.
        tars: If `path` is a folder of tars, the size of each tar in bytes, by its name without `.tar`.
        inside: Names of the tars inside this tar, without folder and suffix.
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
        """Whether this package wrote the tar."""
        return self.record.get("package") == "smallfiles"

    def select(self, keep: npt.NDArray[np.bool_]) -> Archive:
        """Return an index of only those files for which `keep` is true, without the bytes of annotations."""
        return replace(self, contents={}) if keep.all() else self.take(np.flatnonzero(keep))

    def take(self, rows: npt.NDArray[np.int64]) -> Archive:
        """Return an index of only the files in these rows, without the bytes of annotations."""
        names = self.names.take(from_numpy(rows))
        return replace(self, names=names, offsets=self.offsets[rows], sizes=self.sizes[rows], contents={})

    def having(self, suffixes: tuple[str, ...]) -> npt.NDArray[np.bool_]:
        """Return a mask of the files that have one of these suffixes (lower case with the dot)."""
        found = np.zeros(len(self.names), bool)
        for start in range(0, len(self.names), _ROWS_AT_ONCE):
            lower = pc.utf8_lower(self.names.slice(start, _ROWS_AT_ONCE))
            for suffix in suffixes:
                found[start : start + len(lower)] |= as_mask(pc.ends_with(lower, suffix))
        return found


def index(path: Path, *, are_shards: bool = True, at_random: bool = False) -> Archive:
    """Index the files of a tar, of a compressed tar (gz, bz2, xz, zst), or of a tar of tars.

    This takes one 512-byte read per member. Many inner archives are scanned at the same time, which hides the
    latency of a parallel file system. A compressed archive is decompressed once to index it.

    Args:
        path: The archive.
        are_shards: Whether to hide folders such as `__meta__`, as is usual in shards. In other trees of
            files, these folders are not hidden.
        at_random: Whether the archive will be read at random. Then a compressed archive is refused.

    Raises:
        FormatError: The file is not a tar, is damaged or truncated, or has names outside its folder.
    """
    compression = compression_of(path)
    if compression is not None and at_random:
        raise cannot_seek(path)
    if compression is None:
        plain = ByteFile(path, "pread")
        plain.disable_readahead()
        outer = Scanner(plain.fetch, str(path), CONTENTS_OF).scan(end=plain.size)
        raw_bytes = _refuse_bad_end(outer, plain)
        outer = _expanded(outer, plain)
    else:
        kept = KeptTexts(path, path.stat().st_size)
        with contextlib.closing(ForwardFile(path, compression)) as stream:
            outer = Scanner(stream.fetch, str(path), CONTENTS_OF, inline=True, may_keep=kept.add).scan()
            raw_bytes = _refuse_bad_end(outer, stream)
    archive = columns_of(path, compression, path.stat().st_size, outer, are_shards=are_shards)
    return replace(archive, raw_bytes=raw_bytes)


@dataclass
class KeptTexts:
    """A counter of the annotation bytes that are kept in memory for one archive, with a limit.

    Args:
        path: The archive.
        stored: Size of the archive in bytes.
        count: Bytes of annotations that are kept so far.
    """

    path: Path
    stored: int
    count: int = 0

    def add(self, count: int) -> None:
        """Count `count` more bytes. Refuse the archive if its annotations become too large for its size."""
        self.count += count
        refuse_bomb(self.path, self.stored, self.count, _MOST_TIMES_TEXT)


def rows_of_texts(path: Path, stored: int, found: Members) -> list[int]:
    """Return the rows of the annotations in an archive. Refuse annotations that are too large for its size.

    Args:
        path: The archive.
        stored: Size of the archive in bytes.
        found: The members of the archive.
    """
    rows = found.short(CONTENTS_OF)
    KeptTexts(path, stored).add(sum(found.sizes[row] for row in rows))
    return rows


def _refuse_bad_end(outer: Members, file: ByteFile | ForwardFile) -> int:
    """Read to the very end, and refuse an archive that is truncated or has data after its end mark.

    Returns:
        Size of the (decompressed) archive in bytes.
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
    """Replace every inner tar by its members, at any depth.

    A tar that this package wrote is returned unchanged.
    """
    inner = [] if outer.is_ours else [row for row, name in enumerate(outer.names) if is_tar(name)]
    if not inner:
        return outer

    def scan(row: int) -> Members:
        name = f"{file.path}:{outer.names[row].decode('utf-8', 'replace')}"
        begin = outer.offsets[row]
        found = Scanner(file.fetch, name, CONTENTS_OF, inline=True).scan(begin, begin + outer.sizes[row])
        refuse_incomplete(found, name)
        return found

    whole = Members(skipped=outer.skipped, examples=outer.examples, folders=outer.folders, links=outer.links)
    whole.end, whole.complete = outer.end, outer.complete
    with ReadingPool(_SCANS_AT_ONCE, "index") as pool:
        start = 0
        for row, members in zip(inner, pool.map(scan, inner), strict=True):
            whole.extend_by_rows(outer, range(start, row))
            whole.extend(members, prefix_of(outer.names[row]))
            start = row + 1
    whole.extend_by_rows(outer, range(start, len(outer.names)))
    return whole


def columns_of(
    path: Path, compression: str | None, file_bytes: int, found: Members, *, are_shards: bool = False
) -> Archive:
    """Convert the members of an archive to columns, and leave out hidden files and replaced members.

    A member is replaced if a later member has the same name. Links are followed.
    """
    names, notes = _as_text(found.names, path), list[str]()
    offsets, sizes = np.frombuffer(found.offsets, np.int64), np.frombuffer(found.sizes, np.int64)
    rows, folders = np.arange(len(names)), found.folders
    if found.links:
        names, rows, folders, more = _with_links(path, names, offsets, found)
        offsets, sizes, notes = offsets[rows], sizes[rows], more
    refuse_bomb(path, file_bytes, int(sizes.sum()))
    pattern = _HIDDEN_IN_SHARDS if are_shards else _HIDDEN
    hidden = as_mask(pc.match_substring_regex(names, pattern)) & (not found.is_ours)
    latest = _is_last_of_its_name(names)
    keep = np.flatnonzero(~hidden & latest)
    shown, hidden_folders = _shown(folders)
    if count := int(hidden.sum()) or len(hidden_folders):
        first = names.take(from_numpy(np.flatnonzero(hidden)[:5])).to_pylist() or hidden_folders[:5]
        notes.append(f"{plural(count, 'hidden name')} left aside: {first_few(first, count)}")
    if count := int((~latest).sum()):
        notes.append(f"{plural(count, 'member')} replaced by a later one of the same name")
    for kind, count in found.skipped.most_common():
        notes.append(f"{plural(count, kind)} left aside ({first_few(found.examples, count, 2)})")
    replaced = tuple(names[int(row)].as_py() for row in np.flatnonzero(~latest & ~hidden))
    archive = Archive(
        path, compression, file_bytes, names, offsets, sizes, found.contents, tuple(notes),
        record=found.record, replaced=replaced, folders=shown, inside=tuple(found.tars),
    )  # fmt: skip
    if len(keep) == len(names) and not found.links:
        return archive
    kept = enumerate(rows[keep].tolist())
    contents = {new: found.contents[row] for new, row in kept if row in found.contents}
    return replace(archive.take(keep), contents=contents)


def _with_links(
    path: Path, names: pa.StringArray, offsets: npt.NDArray[np.int64], found: Members
) -> tuple[pa.StringArray, npt.NDArray[np.int64], list[bytes], list[str]]:
    """Follow the links of an archive.

    A linked file is placed directly after the file that it leads to, because a compressed archive is read in
    one direction.

    Returns:
        The names of all files, linked files included; the row of the bytes of each file; the names of all
        folders; and notes for the user.

    Raises:
        FormatError: A link leads out of the archive, or a folder has nothing but links that lead nowhere.
    """
    rows_of: dict[bytes, list[int]] = {}
    for row, name in enumerate(names.to_pylist()):
        rows_of.setdefault(name.encode(), []).append(row)
    raw = Names()
    for link in found.links:
        raw.append(link.name)
    links: dict[bytes, tuple[bytes, bool]] = {}
    fixed: dict[bytes, int] = {}
    dropped: set[int] = set()
    for link, text in zip(found.links, _as_text(raw, path).to_pylist(), strict=True):
        name, target = text.encode(), _plain(link.target) if link.is_hard else link.target
        if any(offsets[row] > link.position for row in rows_of.get(name, ())) or target == name:
            continue  # replaced by a later file, or a file that was given to tar twice
        dropped.update(rows_of.pop(name, ()))
        before = [row for row in rows_of.get(target, ()) if offsets[row] < link.position]
        fixed.pop(name, None)
        links[name] = target, link.is_hard
        if link.is_hard and before and before[-1] != rows_of[target][-1]:
            fixed[name] = before[-1]  # tar links to the file as it was then
            del links[name]
    order = sorted(rows_of)
    folders = [_plain(name) for name in found.folders]
    followed = follow(SortedNames.of(order), folders, links)
    if followed.out:
        raise FormatError(
            f"{path} has {plural(len(followed.out), 'link')} out of it: "
            f"{first_few(followed.out, len(followed.out))}",
            expected="links to its own members",
            next_step="Unpack it into an empty folder, look at these links, and pack that folder, with "
            "--follow-links if you trust them",
        )
    linked = [*fixed.items(), *((name, rows_of[order[row]][-1]) for name, row in followed.files)]
    linked = [each for each in linked if each[0] not in rows_of]
    filled = [name.decode() for name in (*order, *(name for name, _ in linked))]
    with raised_as(SourceError, FormatError):
        refuse_lost_folders(path, followed.left, lambda at: any(n.startswith(f"{at}/") for n in filled))
    rows = np.concatenate([np.arange(len(names)), np.array([row for _, row in linked], np.int64)])
    every = pa.concat_arrays([names, column([name.decode() for name, _ in linked], pa.string())])
    kept = np.argsort(offsets[rows], kind="stable")
    kept = kept[~np.isin(kept, list(dropped))]
    notes = [f"not followed: {first_few(sorted(followed.left), len(followed.left))}"] if followed.left else []
    if dropped:
        notes.append(f"{plural(len(dropped), 'member')} replaced by a later link of the same name")
    return every.take(from_numpy(kept)), rows[kept], [*found.folders, *followed.folders], notes


def _plain(name: bytes) -> bytes:
    """Return a name without `./` at its start and without slashes at its end."""
    return b"/".join(part for part in name.split(b"/") if part not in (b"", b"."))


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


def _shown(folders: list[bytes]) -> tuple[tuple[str, ...], list[str]]:
    """Return the names of the folders that may be classes, and the names of the hidden folders."""
    names = [name.decode("utf-8", "replace").removeprefix("./") for name in folders]
    hidden = {name for name in names if re.search(_HIDDEN, f"{name}/")} - {"."}
    return tuple(name for name in names if name != "." and name not in hidden), sorted(hidden)


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
    """Return a mask of the names that no later row repeats.

    The names are sorted for this, which makes equal names neighbours. A hash table of a million names would
    take 200 MB.
    """
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
    """Return the names that occur more than once."""
    rows = from_numpy(np.flatnonzero(~_is_last_of_its_name(names)))
    again: list[str] = names.take(rows).unique().to_pylist()
    return again
