"""Packed files to stage, and child processes that stage them slowly, for the tests of this folder."""

from __future__ import annotations

import os
import sys
import time

import numpy as np

from smallfiles import digests, staging
from smallfiles.staging import copying

MIB = 1 << 20
ROOMY = staging.StageConfig(leave_bytes=0)


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
    """Copies at a place; others of this user may stage elsewhere on this machine."""
    return [copy for copy in staging.listing([node]) if node in copy.path.parents]


def slowly(pause_s):
    """Make every piece of this process's copies take a while."""
    copying.PIECE_BYTES = 64 << 10
    write = copying.write_all

    def slow(*words):
        time.sleep(pause_s)
        return write(*words)

    copying.write_all = slow


def forked(work):
    """Run `work` in a forked child; its answer is the exit code, 99 for an exception."""
    pid = os.fork()
    if pid:
        return pid
    code = 99
    try:
        code = work() or 0
        from smallfiles.staging import run

        run.release_all()  # what atexit does in a process of its own
    except BaseException as error:
        print(f"child: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def exit_code(pid, limit_s=60.0):
    """Wait for a child; negative for the signal that ended it."""
    until = time.monotonic() + limit_s
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            raise AssertionError(f"child {pid} did not end in {limit_s} s")
        time.sleep(0.002)
