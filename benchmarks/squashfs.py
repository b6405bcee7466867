"""Packing squashfs files, by us and by mksquashfs with the same settings.

The trap: `mksquashfs` uses all cores and writes behind its own end; both packers get the same number of
threads and write to memory.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter

from pysquashfs import pack
from pysquashfs.info import RECOMMENDED
from pysquashfs.writer.folder import folder_items
from smallfiles.errors import PackError
from smallfiles.measure.bench import Bench
from smallfiles.measure.protocol import Case, Outcome
from smallfiles.measure.scratch import memory_folder

_SPARE_BYTES = 64 << 20
_LIMIT_S = 600


def packing(bench: Bench, folder: Path, files: int, size: int) -> None:
    """The same tree to memory, raw and without fragments, by us and by mksquashfs.

    Args:
        bench: Gets the records.
        folder: The tree.
        files: How many are in it.
        size: Their bytes.
    """
    if not shutil.which("mksquashfs"):
        bench.notes.append("packing was not measured: mksquashfs is not installed")
        return
    with memory_folder(int(2.2 * size) + _SPARE_BYTES) as place:
        for path in folder.rglob("*"):  # both read it from memory
            if path.is_file():
                path.read_bytes()
        cases = [
            Case(name, partial(_timed, work, folder, place / "x.sqfs", files, size), format="squashfs")
            for name, work in {"pysquashfs": _by_us, "mksquashfs": _by_mksquashfs}.items()
        ]
        bench.measure(
            "packing an image",
            cases,
            place=place,
            whole=(files, size),
            touched="every byte read and written",
        )


def _timed(work: Callable[[Path, Path], None], folder: Path, out: Path, files: int, size: int) -> Outcome:
    began = perf_counter()
    work(folder, out)
    seconds = perf_counter() - began
    out.unlink()
    return Outcome(files, size, seconds)


def _by_us(folder: Path, out: Path) -> None:
    pack(out, folder_items(folder))


def _by_mksquashfs(folder: Path, out: Path) -> None:
    words = [{"DIR": str(folder), "OUT": str(out)}.get(word, word) for word in shlex.split(RECOMMENDED)]
    environment = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    try:
        subprocess.run(words, capture_output=True, text=True, env=environment, timeout=_LIMIT_S, check=True)
    except subprocess.SubprocessError as error:
        said = (getattr(error, "stderr", None) or "").strip().splitlines() or [str(error)]
        raise PackError(
            f"mksquashfs failed ({said[-1][:200]})",
            expected="an image",
            next_step="Run it by hand to see more",
        ) from None
