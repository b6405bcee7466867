"""Damaged images through the C library, in child processes: it may not crash, hang, or give other bytes.

Where the two back ends may differ: the library refuses blocks of zstd and xz with bytes behind their end.
It never gives what the other refuses.
"""

import json
import os
import select
import signal
import time

import numpy as np
import pytest
from squashfs_trees import content

from pysquashfs import SquashFS, SquashFSError, layout, pack

CASES = 300
MANY = 20_000
BATCH = 100
CASE_S = 20
KINDS = ("refused", "read", "damaged", "stricter", "looser", "other")
COMPRESSIONS = ["none", "gzip", "zstd", "lz4", "xz"]
FILES = [
    (f"d{number % 3}/{number}", content(size, kind, number))
    for number, (size, kind) in enumerate(
        (size, kind)
        for kind in ("text", "noise", "holes")
        for size in (0, 1, 700, 4095, 4096, 4097, 20_000 if kind != "noise" else 9000)
    )
]


@pytest.fixture(scope="module")
def images(tmp_path_factory, mksquashfs):
    """Bytes of images with all that can be damaged, of two makers."""
    folder = tmp_path_factory.mktemp("fuzz")
    for name, data in FILES:
        path = folder / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    found = []
    for name in COMPRESSIONS:
        ours = {"compression": name, "block_bytes": 4096, "fragments": name != "none"}
        found.append(pack(folder / f"ours {name}", FILES, **ours).path)
        if name != "none":
            same = ["-mkfs-time", "0", "-all-time", "0"]  # so that a seed is a case
            options = ["-comp", name, "-b", "4096", "-all-root", *same]
            found.append(mksquashfs(folder / "tree", folder / f"theirs {name}", *options))
    return [path.read_bytes() for path in found]


def damage_file(random, image):
    """A few bytes somewhere that matters, a cut, or a swap."""
    data, kind = bytearray(image), random.integers(6)
    fields = layout.SUPERBLOCK.unpack_from(image)
    tables = min(
        position for position in fields[13:] if position != layout.ABSENT
    )  # the first after the data
    if kind == 0:
        return bytes(data[: random.integers(len(data))])
    low, high = [(0, 96), (96, tables), (96, tables), (tables, len(data)), (0, len(data))][kind - 1]
    for _ in range(random.integers(1, 6)):
        at = int(random.integers(low, high))
        width = int(random.choice([1, 1, 1, 4, 64]))
        data[at : min(at + width, high)] = random.bytes(min(at + width, high) - at)
    return bytes(data)


def outcome(path, backend, seed):
    """The bytes of every file, or the name of the error."""
    try:
        with SquashFS(path, backend=backend, cache=False) as image:
            found = []
            for row in range(len(image)):
                try:
                    found.append(image.read_at(row))
                except SquashFSError:
                    found.append(None)
            return found
    except SquashFSError as error:
        return type(error).__name__


def child(images, cases, folder, out):
    """Try cases, and say before each which it is."""
    with os.fdopen(out, "w") as said:
        for seed in cases:
            print(json.dumps({"start": seed}), file=said, flush=True)
            random, path = np.random.default_rng(seed), folder / "case"
            image = images[random.integers(len(images))]
            path.write_bytes(damage_file(random, image))
            pure, native = (outcome(path, name, seed) for name in ("pure", "libsquashfs"))
            print(json.dumps({"seed": seed, **compare(pure, native)}), file=said, flush=True)


def compare(pure, native):
    """How often which of the two gave bytes."""
    found = dict.fromkeys(KINDS, 0)
    if not isinstance(pure, list) or not isinstance(native, list):
        return found | {"refused": 1, "other": int(pure != native)}
    for ours, theirs in zip(pure, native, strict=True):
        if ours is None:
            found["damaged" if theirs is None else "looser"] += 1
        elif theirs is None:
            found["stricter"] += 1
        else:
            found["read" if ours == theirs else "other"] += 1
    return found


def fuzz(images, folder, first, count):
    """Run cases in children; returns their counts, and the seeds that crashed, hung or differed."""
    totals, cases = dict.fromkeys(KINDS, 0), list(range(first, first + count))
    bad = {kind: [] for kind in ("crashed", "hung", "other", "looser")}
    while cases:
        ended, done = run_batch(images, cases[:BATCH], folder)
        for case in done:
            totals.update({kind: totals[kind] + case[kind] for kind in KINDS})
            for kind in ("other", "looser"):
                bad[kind] += [case["seed"]] if case[kind] else []
        if ended is None:
            cases = cases[BATCH:]
        else:
            kind, seed = ended
            bad[kind].append(seed)
            cases = cases[cases.index(seed) + 1 :]
    return totals, bad


def run_batch(images, cases, folder):
    """One child. Returns how it ended before its time, if it did, and the cases it finished."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(reading)
            child(images, cases, folder, writing)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    done, started, hung, rest = [], cases[0], False, b""
    deadline = time.monotonic() + CASE_S
    while True:
        if not select.select([reading], [], [], max(deadline - time.monotonic(), 0))[0]:
            hung = True
            os.kill(pid, signal.SIGKILL)
            break
        data = os.read(reading, 1 << 16)
        if not data:
            break
        deadline = time.monotonic() + CASE_S
        *lines, rest = (rest + data).split(b"\n")
        for line in map(json.loads, lines):
            if "start" in line:
                started = line["start"]
            else:
                done.append(line)
    os.close(reading)
    code = os.waitpid(pid, 0)[1]
    if hung:
        return ("hung", started), done
    return (("crashed", started) if code else None), done


@pytest.mark.parametrize("count", [CASES, pytest.param(MANY, marks=pytest.mark.slow)])
def test_the_library_survives_and_agrees(need_libsquashfs, images, tmp_path, count):
    first = int(os.environ.get("FUZZ_SEED", "0"))
    totals, bad = fuzz(images, tmp_path, first, count)
    print(f"seeds {first} to {first + count - 1}: {totals}, {bad}")
    assert bad == {"crashed": [], "hung": [], "other": [], "looser": []}
    assert totals["read"] > count  # the fuzz reaches the data
    assert totals["damaged"] > count / 20


def test_a_crash_and_a_hang_would_be_noticed(images, tmp_path, monkeypatch):
    def outcome_of(path, backend, seed):
        if seed == 3:
            os.kill(os.getpid(), signal.SIGKILL)  # a segmentation fault would print a trace
        if seed == 5:
            time.sleep(60)
        if seed in (7, 8) and backend == "pure":
            return [b"other"] if seed == 7 else [None]
        return [b"same"]

    monkeypatch.setitem(globals(), "outcome", outcome_of)
    monkeypatch.setitem(globals(), "CASE_S", 3)
    totals, bad = fuzz(images, tmp_path, 0, 10)
    assert bad == {"crashed": [3], "hung": [5], "other": [7], "looser": [8]}
    assert totals["read"] == 6
