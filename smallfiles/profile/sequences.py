"""From what the processes wrote to the order of samples that each rank received in each epoch.

A pass is one iteration over a loader by one rank. The passes over the same loader are a stream, and its n-th
pass is its n-th epoch in all ranks. Validation, which runs without gradients, is left out where something is
trained. The trap is memory: identities are 64 bits, so they are replaced by their places in the sorted list
of all samples, which are 32 bits, one pass after the other.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from smallfiles.profile.hooks import received
from smallfiles.profile.hooks.received import CONTENT, FILE, INDEX, NAME

Ids: TypeAlias = npt.NDArray[np.int64]
Places: TypeAlias = npt.NDArray[np.int32]
_NONE: Any = np.empty(0, np.int64)
_SAME = ("loader", "same", "batch", "site")
"""The facts that are equal where two passes are over one loader."""
KINDS = {0: "several", INDEX: "index", NAME: "key", FILE: "file", CONTENT: "content"}


@dataclass(frozen=True)
class Pass:
    """Samples that one rank received in one iteration over a loader.

    Args:
        rank: Its number.
        epoch: Number of the pass of this rank over this loader, from 0.
        samples: Place of each sample in the list of all samples of the stream, in the order of arrival.
        sizes: Samples of each batch.
        workers: The worker that made each batch; -1 is the process that trains.
        ended: Whether the loop received all that the loader had.
        saved: Batches that the loop had received when it saved a checkpoint for the last time.
    """

    rank: int
    epoch: int
    samples: Places
    sizes: Places
    workers: Places
    ended: bool
    saved: int | None = None

    def first_batches(self, count: int) -> Pass:
        """Return the pass up to a batch, which may be its last one."""
        sizes, workers = self.sizes[:count], self.workers[:count]
        samples, ended = self.samples[: int(sizes.sum())], self.ended and count >= len(self.sizes)
        return replace(self, samples=samples, sizes=sizes, workers=workers, ended=ended)

    @property
    def worker_of_sample(self) -> Places:
        """The worker that made each sample."""
        return np.repeat(self.workers, self.sizes)


@dataclass(frozen=True)
class Stream:
    """All passes over one loader.

    Args:
        facts: What is known about the loader: see `loader_facts` of the hooks.
        identity: How samples are identified: one of `KINDS`.
        ids: Identity of each sample that arrived in any pass, sorted.
        passes: In the order of epochs, and then of ranks.
        names: What some samples are called, by identity.
    """

    facts: dict[str, Any]
    identity: str
    ids: Ids
    passes: tuple[Pass, ...]
    names: dict[int, str] = field(default_factory=dict)

    @property
    def epochs(self) -> list[list[Pass]]:
        """The passes of each epoch."""
        return [list(passes) for _, passes in groupby(self.passes, lambda each: each.epoch)]

    def with_passes(self, change: Callable[[Pass], dict[str, Any]]) -> Stream:
        """Return the stream with what `change` returns for each pass in the place of its fields."""
        return replace(self, passes=tuple(replace(one, **change(one)) for one in self.passes))

    def name(self, place: int) -> str:
        """Return what a sample is called."""
        number = int(self.ids[place])
        if self.identity != "index":
            return self.names.get(number, f"{number & 2**64 - 1:016x}")
        return f"{number % (1 << 40)} of rank {number >> 40}" if self.facts["parts"] else str(number)


@dataclass(frozen=True)
class Received:
    """Samples that a run of the program received.

    Args:
        streams: Those of the training.
        others: Passes over other loaders, which are left out.
        shards: Files of samples that its processes opened.
        equal: Random states that several workers of a rank began with: name and workers.
        failed: What the hooks could not record.
    """

    streams: tuple[Stream, ...]
    others: int = 0
    shards: tuple[str, ...] = ()
    equal: tuple[tuple[str, int], ...] = ()
    failed: tuple[str, ...] = ()


Batches: TypeAlias = dict[tuple[int, int], list[dict[int, Ids]]]
"""By process and pass: each batch that was made, its identities by kind."""


class _Process:
    """The records of one process, from its files, whose names begin with `path`."""

    def __init__(self, path: Path) -> None:
        self.pid, self.facts = int(path.name.partition("-")[0]), list[dict[str, Any]]()
        self.log: Ids = _NONE
        with suppress(OSError):
            lines = path.with_suffix(".facts").read_text(encoding="utf-8").splitlines()
            self.facts = [json.loads(line) | {"pid": self.pid} for line in lines if line.endswith("}")]
        with suppress(OSError, ValueError):  # a process that received nothing has an empty one
            self.log = np.memmap(path.with_suffix(".log"), np.int64, "r")

    def entries(self) -> Iterator[tuple[int, int, int, Ids]]:
        at, log = 0, self.log
        while at + 4 <= len(log):
            tag, number, kind, count = log[at : at + 4].tolist()
            count *= tag == received.MADE  # the fourth number of other entries says nothing
            yield tag, number, kind, log[at + 4 : at + 4 + count]
            at += 4 + count


def read(folder: Path) -> Received:
    """Read what the processes of a run wrote."""
    files = (path for kind in ("log", "facts") for path in folder.glob(f"*.{kind}"))
    processes = [_Process(path) for path in sorted({path.with_suffix("") for path in files})]
    facts = [fact for process in processes for fact in process.facts]
    made: Batches = defaultdict(list)
    for process in processes:
        for tag, number, kind, ids in process.entries():
            if tag != received.MADE:
                continue
            batches = made[process.pid, number]
            if kind == CONTENT and batches and set(batches[-1]) == {FILE}:
                batches[-1][CONTENT] = ids
            else:
                batches.append({kind: ids} if kind else {})
    runs = [run for process in processes for run in _runs_of(process, made)]
    trained = [run for run in runs if run[0]["trains"]] or runs
    groups = defaultdict[tuple[Any, ...], list[_Run]](list)
    for run in trained:
        groups[tuple(run[0][name] for name in _SAME)].append(run)
    streams = tuple(filter(None, map(_stream, groups.values())))
    return Received(
        streams,
        len(runs) - len(trained),
        tuple(sorted({fact["shard"] for fact in facts if "shard" in fact})),
        tuple(_equal_states(facts)),
        tuple(sorted({fact["failed"] for fact in facts if "failed" in fact})),
    )


_Run: TypeAlias = tuple[dict[str, Any], tuple[list[tuple[int, dict[int, Ids]]], bool, int | None]]


def _runs_of(process: _Process, made: Batches) -> Iterator[_Run]:
    """Yield the passes of a process: facts, and its batches with their workers, end, and save."""
    begun = {fact["begins"]: fact for fact in process.facts if "begins" in fact}
    came, got = defaultdict[int, list[tuple[int, bool]]](list), Counter[int]()
    ended, delivered, saved = set[int](), dict[int, int](), dict[int, int]()
    for tag, number, kind, _ in process.entries():
        if tag in (received.GOT, received.SKIPPED):
            came[number].append((kind, tag == received.GOT))
            got[number] += tag == received.GOT
        elif tag == received.ENDED:
            ended.add(number)
        elif tag == received.DELIVERED:
            delivered[number] = kind
        elif tag == received.SAVED:  # the last pass may be a validation, so all passes know of it
            saved = {each: delivered.get(each, got[each]) for each in came}
    for number, arrivals in came.items():
        if number not in begun:
            continue
        about, batches, taken = begun[number], [], Counter[int]()
        for worker, is_received in arrivals:
            pid = process.pid if worker < 0 else about["pids"][worker]
            from_worker = made.get((pid, about["generation"]), [])
            if is_received and taken[worker] < len(from_worker):
                batches.append((worker, from_worker[taken[worker]]))
            taken[worker] += 1
        batches = batches[: delivered.get(number)]
        is_whole = delivered.get(number, got[number]) >= got[number]
        is_ended = is_whole and (number in ended or len(batches) == about["length"])
        yield about, (batches, is_ended, saved.get(number))


def _stream(group: Sequence[_Run]) -> Stream | None:
    """Return the stream of the passes over one loader; None where nothing arrived."""
    common = [set(batch) for _, (batches, *_) in group for _, batch in batches if batch]
    if not common:
        return None
    kind = min(set.intersection(*common), default=0)
    parts = list[Stream]()
    for about, (batches, ended, saved) in group:
        ids = [batch.get(kind, _NONE) for _, batch in batches]
        sizes = np.array([len(each) for each in ids], np.int32)
        workers = np.array([worker for worker, _ in batches], np.int32)
        all_ids, samples = np.unique(np.concatenate([_NONE, *ids]), return_inverse=True)
        epoch = sum(all(each.facts[name] == about[name] for name in ("rank", "pid")) for each in parts)
        one = Pass(about["rank"], epoch, samples.astype(np.int32), sizes, workers, ended, saved)
        parts.append(Stream(about | {"parts": False}, KINDS[kind], all_ids, (one,)))
    return _together(parts)


def _equal_states(facts: Iterable[dict[str, Any]]) -> Iterator[tuple[str, int]]:
    """Yield the random states that several workers of the same pass began with, and used."""
    used = {(fact["pid"], fact["generation"]): fact["random"].items() for fact in facts if "random" in fact}
    found = Counter[str]()
    for fact in facts:
        pids = fact["pids"] if "begins" in fact else ()
        states = (state for pid in pids for state in used.get((pid, fact["generation"]), ()))
        for (name, _), workers in Counter(states).items():
            found[name] = max(found[name], workers)
    yield from sorted((name, workers) for name, workers in found.items() if workers > 1)


def named(stream: Stream, places: Iterable[int], folder: Path) -> Stream:
    """Return the stream with the names of some samples."""
    wanted = {int(stream.ids[place]) for place in places} - stream.names.keys()
    found: dict[int, str] = {}
    if stream.identity == "index" or not wanted:
        return stream
    for path in folder.glob("*.names"):
        data, at, head = path.read_bytes(), 0, received.NAMED
        while at + head.size <= len(data) and len(found) < len(wanted):
            number, size = head.unpack_from(data, at)
            if number in wanted:
                found[number] = data[at + head.size : at + head.size + size].decode("utf-8", "replace")
            at += head.size + size
    return replace(stream, names={**stream.names, **found})


def to_record(value: Any) -> Any:
    """Return a run, or a part of it, as JSON; an array becomes text."""
    if isinstance(value, np.ndarray):
        return base64.b64encode(zlib.compress(np.ascontiguousarray(value).tobytes(), 1)).decode()
    if isinstance(value, tuple):
        return [to_record(each) for each in value]
    fields = value if isinstance(value, dict) else getattr(value, "__dict__", None)
    return value if fields is None else {str(name): to_record(each) for name, each in fields.items()}


def from_record(record: dict[str, Any]) -> Received:
    """Return the run of a record."""

    def unpacked(text: str, kind: type[np.generic] = np.int32) -> npt.NDArray[Any]:
        return np.frombuffer(zlib.decompress(base64.b64decode(text)), kind)

    streams = []
    for each in record["streams"]:
        passes = [
            Pass(**one | {name: unpacked(one[name]) for name in ("samples", "sizes", "workers")})
            for one in each["passes"]
        ]
        names = {int(number): name for number, name in each["names"].items()}
        ids = unpacked(each["ids"], np.int64)
        streams.append(Stream(each["facts"], each["identity"], ids, tuple(passes), names))
    lists = {name: tuple(record[name]) for name in ("shards", "failed")}
    equal = tuple((name, workers) for name, workers in record["equal"])
    return Received(tuple(streams), record["others"], equal=equal, **lists)


def merged(streams: Sequence[Stream]) -> Stream:
    """Return one stream of several over the same samples, each pass with the places of all samples."""
    ids = streams[0].ids
    for each in streams[1:]:
        ids = np.union1d(ids, each.ids)
    passes = [
        replace(one, samples=np.searchsorted(ids, each.ids)[one.samples].astype(np.int32))
        for each in streams
        for one in each.passes
    ]
    names = {number: name for each in streams for number, name in each.names.items()}
    return Stream(streams[0].facts, streams[0].identity, ids, tuple(passes), names)


def _together(parts: Sequence[Stream]) -> Stream:
    """Return one stream of several; ranks with different data sets number samples of their own."""
    facts = dict(parts[0].facts)
    views = {  # a data set that is iterated has the length of a rank's share
        each.passes[0].rank: (each.facts["view"], each.facts["iterable"] or each.facts["count"])
        for each in reversed(parts)
    }
    if apart := len(set(views.values())) > 1 and parts[0].identity == "index":
        own = [0 if each.facts["parts"] else each.passes[0].rank << 40 for each in parts]
        parts = [replace(each, ids=each.ids + shift) for each, shift in zip(parts, own, strict=True)]
    facts |= {"world": max(each.facts["world"] for each in parts), "parts": apart or facts["parts"]}
    facts["covers"] = facts["covers"] and not apart
    listed = facts["count"] if parts[0].identity == "index" and facts["covers"] else 0
    whole = merged([replace(parts[0], ids=np.arange(listed), passes=()), *parts])
    passes = tuple(sorted(whole.passes, key=lambda each: (each.epoch, each.rank)))
    return replace(whole, facts=facts, passes=passes)


def joined(runs: Sequence[Received]) -> Received:
    """Return one run of those that several nodes recorded."""
    groups = defaultdict[tuple[Any, ...], list[Stream]](list)
    for run in runs:
        for each in run.streams:
            groups[*(each.facts[name] for name in _SAME), each.identity].append(each)
    lists = {
        name: tuple(sorted({each for run in runs for each in getattr(run, name)}))
        for name in ("shards", "equal", "failed")
    }
    return Received(tuple(map(_together, groups.values())), sum(run.others for run in runs), **lists)
