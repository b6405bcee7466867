"""Packed files to stage, and child processes that stage them slowly, for the tests of this folder."""

from __future__ import annotations

import time

import numpy as np
from programs import Program

from smallfiles import digests, staging
from smallfiles.staging import copying, run

MIB = 1 << 20
ROOMY = staging.StageConfig(leave_bytes=0)
programs = []


def packed(path, size=9 * MIB + 12_345, *, seed=0, digest=True):
    """A file of random bytes with its digest beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(np.random.default_rng(seed).integers(0, 256, size, np.uint8).tobytes())
    if digest:
        digests.digest_file(path).save(digests.sidecar(path))
    return path


def shards(folder, count=4, size=300_000):
    """A folder of shards with a DALI index each."""
    for number in range(count):
        shard = packed(folder / f"shard-{number:06d}.tar", size + number, seed=number)
        shard.with_name(f"{shard.name}.idx").write_text(f"v1.2 {number}\n")
    return folder


def names(folder):
    """Everything in a folder, relative."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def listed(node):
    """Copies at a place that is named twice; others of this user may stage elsewhere on this machine."""
    return [copy for copy in staging.listing([node, node]) if node in copy.path.parents]


def slowly(pause_s):
    """Make every piece of this process's copies take a while."""
    copying.PIECE_BYTES = 64 << 10
    write = copying.write_all

    def slow(*words):
        time.sleep(pause_s)
        return write(*words)

    copying.write_all = slow


def forked(work):
    """Run `work` in a forked child, which releases at its end what it has staged."""
    programs.append(Program(_released, work))
    return programs[-1]


def _released(work):
    try:
        return work()
    finally:
        run.release_all()  # what atexit does in a process of its own
