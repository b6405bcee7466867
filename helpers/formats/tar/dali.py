"""The index file that NVIDIA DALI's webdataset reader takes, in the text format of its `wds2idx`.

First line `v1.2 SAMPLES`; then a line a sample: suffix, offset, size and name of each member, all
separated by spaces. DALI splits at white space, so a name's own spaces stand as `%20` here (DALI only
shows this name, it does not look it up).

The trap: without this file DALI scans every shard when a job starts. Notebook 05 names it.

Source of the format: NVIDIA/DALI, tools/wds2idx.py and webdataset_loader.cc.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from helpers.formats.tar.output import failure

_SPACE = re.compile(r"\s")


def line(stem: str, members: Sequence[tuple[str, int, int]]) -> str:
    """One sample's line.

    Args:
        stem: What its members' names share.
        members: (suffix, offset of the data, bytes) of each.
    """
    shown = _SPACE.sub("%20", stem)
    return " ".join(f"{suffix} {offset} {size} {shown}.{suffix}" for suffix, offset, size in members)


def save(path: Path, lines: Sequence[str]) -> Path:
    """Write the index of the tar `path`; return where: `shard-000000.tar.idx`."""
    out = path.with_name(path.name + ".idx")
    try:
        out.write_text("\n".join([f"v1.2 {len(lines)}", *lines, ""]), encoding="utf-8")
    except OSError as error:
        raise failure(out, error) from error
    return out
