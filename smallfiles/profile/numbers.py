"""From what each process wrote to the numbers of each rank: waiting, headroom, files, processors, memory.

Waiting is the time inside `next`, after the first batch of each epoch, without that in the queue of the
scheduler. The trap: on a busy machine a worker that needs a processor gets half of one, and the rest looks
like waiting for files. So processor time and time in the queue are added up as *wanted* processors.
"""

from __future__ import annotations

import json
import os
import zlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from smallfiles import machine
from smallfiles.profile.hooks.watch import STEP

Numbers: TypeAlias = dict[str, Any]
"""The numbers of one rank by name; one that could not be measured is None."""

SMALL_BYTES = 1_000_000
KINDS = ("open", "read", "decode", "augment", "collate", "other")
"""What a worker's time goes to."""
_FREE = 1
_LEAST_STEPS = 8


def ranks_in(folder: Path) -> list[Numbers]:
    """Return the numbers of each rank whose processes wrote into `folder`, in the order of ranks."""
    written = [each for each in map(_read, folder.glob("*.json")) if each]
    ranks = [each for each in written if each.get("role") == "rank"]
    workers = defaultdict[Any, list[dict[str, Any]]](list)
    for each in written:
        if each.get("role") == "worker":  # of the program that its parent was then: `exec` begins another
            parents = (rank for rank in ranks if rank["pid"] == each["parent"])
            began = max((rank["began"] for rank in parents if rank["began"] <= each["born"]), default=0)
            workers[each["parent"], began].append(each)
    longest = {each["pid"]: each for each in sorted(ranks, key=lambda each: len(each["steps"]))}
    found = [numbers(each, workers[each["pid"], each["began"]]) for each in longest.values()]
    return sorted(found, key=lambda each: int(each["rank"] or 0))


def others_in(folder: Path) -> list[Numbers]:
    """Return the records of processes that never requested a batch from a loader."""
    return [each for each in map(_read, folder.glob("*.json")) if each.get("role") == "other"]


def _read(path: Path) -> dict[str, Any]:
    """Return the record of a process, with its steps."""
    try:
        record = dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}
    steps: list[Any] = []
    with suppress(OSError):
        data = path.with_suffix(".steps").read_bytes()
        steps = list(STEP.iter_unpack(data[: len(data) // STEP.size * STEP.size]))
    # Those of an epoch that began after the record was written, and the room for later ones, do not count.
    return record | {"steps": [each for each in steps if each[1] and each[2] < len(record["epochs"])]}


def numbers(rank: dict[str, Any], workers: Sequence[dict[str, Any]]) -> Numbers:
    """Compute the numbers of one rank.

    Args:
        rank: The record of the process that trains.
        workers: The records of its workers; empty if it makes batches itself.
    """
    rank = _training(rank)
    makers = workers if rank["workers"] or workers else [rank]
    found = {name: rank.get(name) for name in _KEPT} | _times(rank)
    found |= _making(rank, makers) | _files(makers)
    if found["startup_s"] is not None:  # persistent workers make a first batch too
        found["startup_s"] = max(0.0, found["startup_s"] - (found["batch_s"] or 0.0))
        found["startup"] = found["startup_s"] / found["epoch_s"]
    return found | {"startup": found.get("startup")} | _processors(rank, workers) | _memory(rank, workers)


def _training(rank: dict[str, Any]) -> dict[str, Any]:
    """Keep the steps of one loader, since validation and parts of a batch may have other loaders.

    Among the loaders that ran at least half as long as the longest, this is the one that training waited for
    most.
    """
    kinds = {
        each["number"]: (each["of"], *map(each["loader"].get, ("batch_size", "workers", "prefetch")))
        for each in rank["epochs"]
    }
    took, waited, all_s = Counter[tuple[Any, ...]](), Counter[tuple[Any, ...]](), 0.0
    last: dict[int, float] = {}
    for (before, *_), (asked, got, epoch, *_) in pairwise([(0.0,), *rank["steps"]]):
        if epoch in last:
            took[kinds[epoch]] += asked - last[epoch]
            waited[kinds[epoch]] += got - asked
            all_s += asked - before
        last[epoch] = asked
    long = [kind for kind in took if took[kind] >= max(took.values()) / 2]
    chosen = max(long, key=waited.__getitem__, default=None)
    epochs = [each for each in rank["epochs"] if kinds[each["number"]] == chosen] or rank["epochs"]
    numbers = {each["number"]: number for number, each in enumerate(epochs)}
    steps = [[*step[:2], numbers[step[2]], *step[3:]] for step in rank["steps"] if step[2] in numbers]
    loader = epochs[0]["loader"] if epochs else {}
    epochs = [each | {"number": numbers[each["number"]]} for each in epochs]
    others = {"other_steps": len(rank["steps"]) - len(steps), "all_s": all_s}
    return rank | loader | {"epochs": epochs, "steps": steps} | others


_KEPT: tuple[str, ...] = ("rank", "other_steps", "workers", "prefetch", "persistent", "cpus_node")
_KEPT += ("batch_bytes", "batch_samples")


def _times(rank: dict[str, Any]) -> Numbers:
    """Waiting, computing, first batches, headroom."""
    epochs = rank["epochs"]
    steps = np.array(rank["steps"], dtype=float).reshape(-1, 5)
    asked, got, epoch, kind, queued = steps.T
    same = np.append(epoch[1:] == epoch[:-1], False)
    wait = np.maximum(0.0, got - asked - queued * bool(rank["workers"]))
    period = np.append(asked[1:] - asked[:-1], 0.0)
    first = np.append(True, epoch[1:] != epoch[:-1])[: len(steps)]
    paused = np.append((kind[1:] == _FREE) & (kind[:-1] != _FREE), False)[: len(steps)]
    steady = same & ~first & ~paused & (kind == 0)
    enough = int(steady.sum()) >= _LEAST_STEPS and not rank["threaded"]  # there another thread waits
    free = same & (kind == _FREE)
    batch = rank.get("batch_samples") or 0
    period_s = float(period[steady].mean()) if enough else None
    waiting = float(wait[steady].sum() / period[steady].sum()) if enough else None
    # The first and the last step of an epoch do not count.
    needed = int(_LEAST_STEPS + max(len(steps) - steady.sum(), 2 * max(1, first.sum())))
    found: Numbers = {
        "seconds": rank["seconds"] - rank["paused_s"],
        "steps": len(steps),
        "steps_needed": None if steady.sum() >= _LEAST_STEPS else needed,
        "epochs": len({each["number"] for each in epochs}),
        "epoch_steps": max((each["of"] or 0 for each in epochs), default=0) or None,
        "first_batch_s": float(wait[0]) + epochs[0]["init_s"] if len(steps) else None,
        "period_s": period_s,
        "samples_s": batch / period_s if period_s and batch else None,
        "waiting": waiting,
        "wait_p50_s": float(np.percentile(wait[steady], 50)) if enough else None,
        "wait_p99_s": float(np.percentile(wait[steady], 99)) if enough else None,
        "compute_s": float((period - wait)[steady].mean()) if enough else None,
        "free_s": float(period[free].mean()) if free.sum() >= 4 else None,
        "timeline": np.round(steps, 4).tolist()[:2000],
    }
    if rank.get("gpu") and rank.get("gpu_idle_s") is not None and waiting is not None:
        found["waiting"] = min(1.0, rank["gpu_idle_s"] / max(rank["all_s"], 1e-9))
    headroom, by = None, rank.get("failed") or rank.get("no_headroom") or "an epoch has too few steps"
    if found["free_s"]:
        by = "measured"
        if period_s:
            # Medians, because the training itself may pause now and then, for a checkpoint or a validation.
            beside = float(np.median((period - wait)[steady]) - np.median(period[free]))
            headroom = 1 / (1 - min(0.99, found["waiting"] + max(0.0, beside) / period_s))
    elif enough and not rank["workers"] and not rank.get("gpu"):
        headroom, by = period_s / found["compute_s"] if found["compute_s"] else None, "subtracted"
    found |= {"headroom": headroom, "headroom_by": by}
    return found | _epochs(rank, got, wait, period, steady, first, epoch)


def _epochs(
    rank: dict[str, Any], got: Any, wait: Any, period: Any, steady: Any, first: Any, epoch: Any
) -> Numbers:
    """Measure the first batches of later epochs, and waiting in the first epoch against later epochs."""
    again = [each for each in rank["epochs"][1:] if each["init_s"] and each["number"] in epoch]
    starting = sum(each["init_s"] + float(wait[first & (epoch == each["number"])].sum()) for each in again)
    last = {each["number"]: float(got[epoch == each["number"]].max()) for each in again}
    lasted = sum(each.get("ended", last[each["number"]]) - each["began"] + each["init_s"] for each in again)
    steps = sum(int((epoch == each["number"]).sum()) for each in again)
    early, late = steady & (epoch == 0), steady & (epoch > 0)
    both = min(early.sum(), late.sum()) >= 4
    return {
        "startup_s": starting / len(again) if again else None,
        "epoch_s": lasted / len(again) if again else None,
        "whole_s": lasted / steps if steps else None,
        "early_s": float(period[early].mean()) if both else None,
        "late_s": float(period[late].mean()) if both else None,
        "waiting_first": float(wait[early].sum() / period[early].sum()) if both else None,
        "waiting_later": float(wait[late].sum() / period[late].sum()) if both else None,
    }


def _making(rank: dict[str, Any], makers: Sequence[dict[str, Any]]) -> Numbers:
    """Measure how long batches take to make, and how this time is spent."""
    looks, fetch = _sum(makers, "looks"), _sum(makers, "fetch")
    total, own = sum(n for name, n in looks.items() if "fetch " in name), sum(rank["looks"].values())
    made = fetch["batches"] * (rank.get("batch_samples") or 0)
    lived = sum(each["seconds"] for each in makers)
    return {f"in_{kind}": looks[f"fetch {kind}"] / total if total >= 10 else None for kind in KINDS} | {
        "copying": rank["looks"].get("copy", 0) / own if own >= 10 else None,
        "batch_s": fetch["s"] / fetch["batches"] if fetch["batches"] else None,
        "sample_s": fetch["s"] / made if made else None,
        "sample_cpu_s": fetch["thread_s"] / made if made else None,
        "threads_busy": fetch["process_s"] / fetch["thread_s"] if fetch["thread_s"] > 0.05 else None,
        "making": min(1.0, fetch["s"] / lived) if lived else None,
        "made": made,
    }


def _sum(makers: Sequence[dict[str, Any]], name: str) -> Counter[str]:
    """Return the counts of all processes together."""
    return sum((Counter(each[name]) for each in makers), Counter[str]())


def _files(makers: Sequence[dict[str, Any]]) -> Numbers:
    """Count what is opened and read, and find the folder."""
    every = max((each["every"] for each in makers), default=1)
    names = Counter[str]()
    for each in makers:
        names.update({path: n for path, n in each["paths"] if zlib.crc32(os.fsencode(path)) % every == 0})
    opens = sum(each["opens"] for each in makers)
    seconds = max((each["seconds"] for each in makers), default=0)
    sizes = [size for size in map(_size, names) if size is not None]
    folder = _home(names)
    place = machine.filesystem(folder) if folder else None
    read = _sum(makers, "read")
    return {
        "opens": opens,
        "opens_s": opens / seconds if seconds else None,
        "files": len(names) * every,
        "file_bytes": float(np.mean(sizes)) if sizes else None,
        "small": float(np.mean([size < SMALL_BYTES for size in sizes])) if sizes else None,
        "folder": str(folder) if folder else None,
        "filesystem": place.kind if place else None,
        "asked_bytes": read["rchar"],
        "device_bytes": read["read_bytes"] if place and not place.shared else None,
        "reads": read["syscr"],
        "read_bytes": read["rchar"] / read["syscr"] if read["syscr"] else None,
    }


def _size(path: str) -> int | None:
    try:
        return Path(path).stat().st_size
    except OSError:
        return None


def _home(opens: Counter[str]) -> Path | None:
    """Return the deepest folder with at least 90 % of the opens."""
    parents = Counter[Path]()
    for path, count in opens.items():
        parents.update(dict.fromkeys(Path(path).parents, count))
    most = (each for each in parents if parents[each] >= 0.9 * opens.total())
    return max(most, key=lambda each: len(each.parts), default=None)


def _processors(rank: dict[str, Any], workers: Sequence[dict[str, Any]]) -> Numbers:
    """Return how many processors are allowed, used, and wanted."""
    quota, wall = machine.cpu_quota(), max(rank["seconds"], 1e-9)
    ours = [rank, *workers]
    used = sum(each["cpu_s"] for each in ours)
    queued = [each["read"].get("queued_ns", 0) / 1e9 for each in workers or ours]
    known = "queued_ns" in rank["read"]
    return {
        "cpus": min(rank["cpus"], quota or rank["cpus"]),
        "cpus_used": used / wall,
        "cpus_wanted": (used + sum(queued)) / wall if known else None,
        "queued": sum(queued) / max(used + sum(queued), 1e-9) if known else None,
    }


def _memory(rank: dict[str, Any], workers: Sequence[dict[str, Any]]) -> Numbers:
    """Memory of the workers, and what waits in /dev/shm, against their limits."""
    ahead = (rank["workers"] or 0) * (rank["prefetch"] or 2)
    waiting = (ahead + bool(ahead)) * (rank.get("batch_bytes") or 0)
    at_once = max((each["own_bytes"] for each in workers), default=0) * (rank["workers"] or 0)
    return {
        "workers_bytes": at_once,
        "limit_bytes": machine.memory_limit_bytes(),
        "waiting_bytes": waiting,
        "shm_bytes": rank["shm_bytes"],
        "shm_use": waiting / rank["shm_bytes"] if rank["shm_bytes"] else None,
    }
