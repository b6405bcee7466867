"""The index file that NVIDIA DALI's webdataset reader takes, in the text format of its `wds2idx`.

First line `v1.2 SAMPLES`; then a line a sample: suffix, offset, size and name of each member, all
separated by spaces. DALI splits at white space, so a name's own spaces stand as `%20` here (DALI only
shows this name, it does not look it up).

The trap: without this file DALI scans every shard when a job starts, and takes members with names
beyond 100 bytes or beyond ASCII (pax headers) for others. Notebook 05 names it.

Source of the format: NVIDIA/DALI, tools/wds2idx.py and webdataset_loader.cc.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from smallfiles.formats.output import writing
from smallfiles.formats.tar import headers

_SPACE = re.compile(r"\s")


def line(stem: str, data: tuple[str, int, int], beside: Sequence[tuple[str, bytes]]) -> str:
    """One sample's line.

    Args:
        stem: What its members' names share.
        data: Suffix, offset and bytes of the data's member.
        beside: Suffix and content of the members that follow it.
    """
    shown = _SPACE.sub("%20", stem)
    suffix, offset, size = data
    words = [f"{suffix} {offset} {size} {shown}.{suffix}"]
    end = offset + size + -size % headers.BLOCK_BYTES
    for suffix, content in beside:
        member = headers.small_member(f"{stem}.{suffix}", content)
        start = end + len(headers.member(f"{stem}.{suffix}", len(content)))
        words.append(f"{suffix} {start} {len(content)} {shown}.{suffix}")
        end += len(member)
    return " ".join(words)


def save(path: Path, lines: Sequence[str]) -> Path:
    """Write the index of the tar `path`; return where: `shard-000000.tar.idx`."""
    out = path.with_name(path.name + ".idx")
    with writing(out):
        out.write_text("\n".join([f"v1.2 {len(lines)}", *lines, ""]), encoding="utf-8")
    return out
