"""Why an image is slow: how it is stored, what a random read costs, and the command for a better one.

The trap: the defaults of mksquashfs. They compress photographs, which saves 0.1 %, and store small files,
with -tailends also the ends of larger ones, in shared blocks, so that a random read unpacks many to get one.
Notebook 06 compares both.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pysquashfs import layout
from pysquashfs.index import RAW, Index, block_counts, bytes_of_blocks
from pysquashfs.reading import spans

Array = npt.NDArray[Any]
RECOMMENDED = (
    "mksquashfs DIR OUT -noappend -no-progress -quiet -comp gzip -noD -noF -no-fragments -no-xattrs "
    "-all-root -mkfs-time 0 -all-time 0 -no-exports"
)
_AMPLIFIED = 1.2  # from here on, the additional work of a random read is noticeable
_POOR_SAVING = 0.05
_GOOD_SAVING = 0.3


def describe(index: Index) -> dict[str, Any]:
    """What an image is made of, and sentences on why it is slow.

    Returns:
        `block_bytes`, `compressor`, `files`, `folders`, `symlinks`, `bytes` (of all files),
        `image_bytes`, `stored_bytes` (of their data), `fragments`, `files_in_fragments`, `share_raw`
        (part of the bytes that is stored raw), `share_one_read` (part of the files that takes one
        `pread`), `read_amplification` (bytes that this library fetches and unpacks per byte delivered, if
        all files are read at random), `findings` (sentences) and `recommended` (a command, or "").
    """
    files, block = index.files, index.superblock
    rows = np.unique(files.reference, return_index=True)[1]  # hard links once
    total = int(files.size[rows].sum())
    fetched, stored = _costs(index, rows)
    raw = raw_bytes(index)
    found: dict[str, Any] = {
        "block_bytes": block.block_bytes,
        "compressor": block.compressor,
        "files": len(files),
        "folders": int((index.others.kind == layout.DIRECTORY).sum()),
        "symlinks": int((index.others.kind == layout.SYMLINK).sum()),
        "bytes": int(files.size.sum()),
        "image_bytes": index.image_bytes,
        "stored_bytes": stored,
        "fragments": len(index.fragment_start),
        "files_in_fragments": int((files.fragment != layout.NO_FRAGMENT).sum()),
        "share_raw": raw / total if total else 1.0,
        "share_one_read": float(_one_read(index).mean()) if len(files) else 1.0,
        "read_amplification": fetched / total if total else 1.0,
    }
    found["findings"], found["recommended"] = _findings(found, total)
    return found


def raw_bytes(index: Index) -> int:
    """Bytes of files that are stored raw; hard links count once."""
    files, block_bytes = index.files, index.superblock.block_bytes
    rows = np.unique(files.reference, return_index=True)[1]
    one, tailed = files.flags[rows] & RAW != 0, files.fragment[rows] != layout.NO_FRAGMENT
    tailed[tailed] = _fragments(index)[1][files.fragment[rows][tailed]]
    tails = int((files.size[rows[tailed]] % block_bytes).sum())
    return int(files.size[rows[one]].sum()) + tails + _raw_words(index, rows[~one])


def _costs(index: Index, rows: Array) -> tuple[int, int]:
    """Bytes fetched or unpacked if each file is read on its own, and bytes stored."""
    files, block_bytes = index.files, index.superblock.block_bytes
    size, fragment = files.size[rows], files.fragment[rows]
    tailed = fragment != layout.NO_FRAGMENT
    tail = np.where(tailed, size % block_bytes, 0)
    extent, raw_fragment = _fragments(index)
    used = fragment[tailed]
    # A part of a raw fragment can be read alone; a compressed one is unpacked whole.
    fetched_tails = np.where(raw_fragment[used], tail[tailed], extent[used])
    stored_bodies = spans(index, rows)[1]
    stored_bodies[(block_counts(size, fragment, block_bytes) == 0) & tailed] = 0  # their span is the fragment
    kept = (index.fragment_word & layout.DATA_SIZE).astype(np.int64)
    stored = int(stored_bodies.sum() + kept[np.unique(used)].sum())
    return int((size - tail).sum() + fetched_tails.sum()), stored


def _fragments(index: Index) -> tuple[Array, Array]:
    """How large each fragment is when unpacked (as far as files use it), and whether it is raw."""
    files = index.files
    extent = np.zeros(len(index.fragment_start), np.int64)
    tailed = files.fragment != layout.NO_FRAGMENT
    ends = files.fragment_offset[tailed].astype(np.int64)
    ends += files.size[tailed] % index.superblock.block_bytes
    np.maximum.at(extent, files.fragment[tailed], ends)
    return extent, index.fragment_word & layout.DATA_RAW != 0


def _one_read(index: Index) -> Array:
    """Whether each file lies raw and in one piece, on its own or inside a fragment."""
    files = index.files
    inside = (files.fragment != layout.NO_FRAGMENT) & (files.size < index.superblock.block_bytes)
    inside[inside] = _fragments(index)[1][files.fragment[inside]]
    return np.asarray((files.flags & RAW != 0) | inside)


def _raw_words(index: Index, rows: Array) -> int:
    """Bytes in raw blocks of files that are not raw as a whole."""
    raw = np.where(index.words & layout.DATA_RAW, index.words & layout.DATA_SIZE, 0)
    return int(bytes_of_blocks(index, rows, raw).sum())


def _findings(found: dict[str, Any], total: int) -> tuple[list[str], str]:
    """Sentences, and the command for a better image ("" if this one is good)."""
    saved = 1 - found["stored_bytes"] / total if total else 0.0
    compressed = 1 - found["share_raw"]
    slow, notes = [], []
    if found["read_amplification"] >= _AMPLIFIED:
        slow.append(
            f"{found['files_in_fragments']:,} files end in {found['fragments']:,} shared fragments of up to "
            f"{found['block_bytes'] // 1024:,} KiB: reading files at random fetches and unpacks "
            f"{found['read_amplification']:.1f} bytes for each delivered."
        )
    if compressed > _POOR_SAVING and saved < _POOR_SAVING:
        slow.append(
            f"{compressed:.0%} of the data is compressed with {found['compressor']}, which saves "
            f"{saved:.1%} of it: every read pays for unpacking and gains nothing."
        )
    elif compressed > _POOR_SAVING:
        notes.append(f"Compression with {found['compressor']} saves {saved:.0%} of the data.")
        if found["compressor"] in ("gzip", "xz"):
            notes.append("zstd at level 3 unpacks several times quicker and saves about as much.")
    if slow:
        return [*slow, *notes], _better(saved)
    scattered = 1 - found["share_one_read"]
    if not notes and scattered > _POOR_SAVING:
        notes.append(
            f"{scattered:.0%} of the files lie in several pieces; -no-fragments makes them one read each."
        )
    elif not notes and found["files_in_fragments"]:
        notes.append(
            f"{found['files_in_fragments']:,} files end in {found['fragments']:,} shared fragments, stored "
            "raw: this library reads only the part of one file, a mount reads the whole fragment; "
            "-no-fragments avoids that."
        )
    elif not notes and found["files"]:
        notes.append("Files are stored raw and in one piece: nothing makes random reads slow.")
    return notes, ""


def _better(saved: float) -> str:
    if saved >= _GOOD_SAVING:  # keep the compression, drop the fragments
        return RECOMMENDED.replace("-comp gzip -noD -noF", "-comp zstd -Xcompression-level 3")
    return RECOMMENDED
