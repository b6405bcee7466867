"""Exercise 11: how long each part of a cluster takes for an epoch, a whole training, and three choices.

    parts        task 1: seconds of metadata, targets, network and GPUs
    training_s   task 2: all epochs, with the copies that staging makes first
    choice       task 3: a way of storing for each project, with its hours

The trap it teaches: what all nodes share does not grow with the nodes, and parts that work at the same time
do not add up. Notebook 11 sends participants here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from exercises.checks import Attempt, Mistake, check, close, explain
from smallfiles.scaling import WAYS, Storage, Way, Work

Case: TypeAlias = tuple[Work, Storage, Way, int]
NAMES = ("metadata", "targets", "network", "GPUs")


@dataclass(frozen=True)
class Project:
    """What a group wants to train, and where.

    Args:
        work: The training.
        storage: The cluster's.
        nodes: How many.
        epochs: How many.
        room_bytes: What a node can keep.
        jumps: Whether the training picks any sample at any time.
    """

    work: Work
    storage: Storage
    nodes: int
    epochs: int
    room_bytes: float
    jumps: bool = False


PROJECTS = {
    "microscopy": Project(Work(1_500_000, 100_000, batch=256), Storage(), 32, 50, 200e9),
    "ImageNet-21k": Project(Work(14_197_122, 110_000, step_s=0.1), Storage(), 16, 30, 400e9),
    "hard negatives": Project(Work(step_s=0.1), Storage(metadata_ops_s=5_000), 2, 90, 64e9, jumps=True),
}

_WORK, _OTHER = Work(), Work(100_000, 1_000_000, batch=32, gpus=8, step_s=0.2)
_SMALL = Storage(20_000, targets=4, stripes=2, target_bytes_s=1e9, node_bytes_s=1e9, request_s=0.005)
CASES: tuple[Case, ...] = tuple(
    (work, storage, WAYS[way], nodes)
    for work, storage, nodes in ((_WORK, Storage(), 1), (_WORK, _SMALL, 16), (_OTHER, _SMALL, 3))
    for way in ("files", "shards", "packed")
)


def _spread(storage: Storage, way: Way) -> int:
    return storage.stripes if way.striped else storage.targets


def _seconds(work: Work, storage: Storage, way: Way, nodes: int) -> dict[str, float]:
    reading_s = work.sample_bytes / storage.target_bytes_s + way.requests * storage.request_s
    each_s = (
        way.operations / storage.metadata_ops_s,
        reading_s / _spread(storage, way),
        work.sample_bytes / (nodes * storage.node_bytes_s),
        work.step_s / (work.batch * work.gpus * nodes),
    )
    return {name: work.samples * seconds for name, seconds in zip(NAMES, each_s, strict=True)}


_SHARED = "all nodes share the storage: more nodes do not make it faster, so do not divide this part by them"
_OWN = "each node brings its own: divide by the number of nodes"
_OPERATIONS = "each sample costs way.operations, not one"
_SEEK = "each of way.requests takes storage.request_s besides the bytes: a seek"
_FEWER = "a sample needs way.requests requests, which may be less than one"
_TOGETHER = "the targets work at the same time: divide by their number"
_STRIPED = "a striped way lies on storage.stripes targets, any other on all storage.targets"


def _times(factor: Callable[[Work, Storage, Way, int], float]) -> Callable[..., dict[str, float]]:
    """The right seconds, so many times too long."""
    return lambda *c: {name: right * factor(*c) for name, right in _seconds(*c).items()}


PART_MISTAKES: tuple[tuple[str, Callable[..., dict[str, float]], str], ...] = (
    # part, what a mistake gives for it, and the sentence that helps
    ("metadata", _times(lambda w, s, y, n: 1 / n), _SHARED),
    ("metadata", lambda w, s, y, n: _seconds(w, s, replace(y, operations=1), n), _OPERATIONS),
    ("targets", _times(lambda w, s, y, n: 1 / n), _SHARED),
    ("targets", lambda w, s, y, n: _seconds(w, replace(s, request_s=0), y, n), _SEEK),
    ("targets", lambda w, s, y, n: _seconds(w, s, replace(y, requests=1), n), _FEWER),
    ("targets", _times(lambda w, s, y, n: _spread(s, y)), _TOGETHER),
    ("targets", lambda w, s, y, n: _seconds(w, s, replace(y, striped=not y.striped), n), _STRIPED),
    ("network", _times(lambda w, s, y, n: n), f"this is one node's network; {_OWN}"),
    ("network", _times(lambda w, s, y, n: 8), "node_bytes_s counts bytes, not bits"),
    ("GPUs", _times(lambda w, s, y, n: n), f"these are the GPUs of one node; {_OWN}"),
    ("GPUs", _times(lambda w, s, y, n: w.gpus), "a node has work.gpus of them"),
    ("GPUs", _times(lambda w, s, y, n: w.batch), "a step takes work.batch samples, not one"),
)


def mistakes_of(name: str) -> list[Mistake]:
    """The known mistakes of one part."""

    def in_part(wrong: Callable[..., dict[str, float]]) -> Callable[..., float]:
        return lambda *case: wrong(*case)[name]

    return [(in_part(wrong), text) for part, wrong, text in PART_MISTAKES if part == name]


def _shown(work: Work, storage: Storage, way: Way, nodes: int, *more: int) -> str:
    return ", ".join(["work", "storage", f"{way}", f"nodes={nodes}", *map(str, more)])


_FORMULA = "samples, times what one sample costs, by what can be done at the same time"


@check(buys="You can name the first bottleneck of a cluster before a job has run.")
def parts(attempt: Attempt) -> None:
    """`parts(work, storage, way, nodes)` gives the seconds that each part would take alone."""
    for case in CASES:
        got, right = attempt(*case, _shown=_shown(*case)), _seconds(*case)
        attempt.expect_dict(NAMES, got, because="the four parts have these names")
        for name in NAMES:
            attempt.given(f"{attempt.name}({_shown(*case)})[{name!r}]")
            if not close(got[name], right[name]):
                because = _why_part(attempt, case, name)
                attempt.require(False, got[name], f"{right[name]:.6g} s", because)


def _why_part(attempt: Attempt, case: Case, name: str) -> str:
    def part(*case: Any) -> Any:
        return attempt.answer(*case)[name]

    return explain(part, case, CASES, mistakes_of(name), otherwise=_FORMULA)


def _copy_s(work: Work, storage: Storage, nodes: int) -> float:
    everything, at_once = work.samples * work.sample_bytes, storage.targets * storage.target_bytes_s
    return max(everything / storage.node_bytes_s, nodes * everything / at_once)


def _training(work: Work, storage: Storage, way: Way, nodes: int, epochs: int) -> float:
    seconds = _seconds(work, storage, way, nodes)
    if way.staged:
        return _copy_s(work, storage, nodes) + epochs * seconds["GPUs"]
    return epochs * max(seconds.values())


def _gpus(work: Work, storage: Storage, way: Way, nodes: int, epochs: int) -> float:
    return epochs * _seconds(work, storage, way, nodes)["GPUs"]


def _seeking(work: Work, storage: Storage) -> Storage:
    """Storage whose targets also take `request_s` for each sample."""
    seconds = 1 / storage.target_bytes_s + storage.request_s / work.sample_bytes
    return replace(storage, target_bytes_s=1 / seconds)


_SUM = "the parts work at the same time: take the slowest"
_ONE = "this is one epoch; there are `epochs` of them"
_NEVER = "this training never waits: take the slowest part, and add the copy where the way is staged"
_ONCE = "a copy is made once, and read in every epoch: do not multiply it by the epochs"
_EACH = "every node makes a copy of everything: the targets deliver `nodes` times the data set"
_BYTES_ONLY = "a copy reads long runs: only bytes count, not request_s for each image"
_FIRST = "the copy comes before the first epoch: add the two"
_OWN_COPY = "an epoch from a copy uses neither the storage nor the network; only the GPUs are left"


def _if(staged: bool, wrong: Callable[..., float]) -> Callable[..., float]:
    """A mistake that is made for staged ways only, or for all others only."""
    return lambda *case: (wrong if case[2].staged == staged else _training)(*case)


TRAINING_MISTAKES: tuple[Mistake, ...] = (
    (_if(False, lambda w, s, y, n, e: e * sum(_seconds(w, s, y, n).values())), _SUM),
    (lambda w, s, y, n, e: _training(w, s, y, n, 1), _ONE),
    (_if(True, lambda w, s, y, n, e: max(_copy_s(w, s, n), _gpus(w, s, y, n, e))), _FIRST),
    (_gpus, _NEVER),
    (_if(True, lambda w, s, y, n, e: e * _copy_s(w, s, n) + _gpus(w, s, y, n, e)), _ONCE),
    (_if(True, lambda w, s, y, n, e: _copy_s(w, s, 1) + _gpus(w, s, y, n, e)), _EACH),
    (_if(True, lambda w, s, y, n, e: _copy_s(w, s, n) + e * max(_seconds(w, s, y, n).values())), _OWN_COPY),
    (_if(True, lambda w, s, y, n, e: _copy_s(w, _seeking(w, s), n) + _gpus(w, s, y, n, e)), _BYTES_ONLY),
    (lambda w, s, y, n, e: _training(w, s, y, n, e) / 3600, "these are hours; return seconds"),
)
TRAININGS = [
    *((*case, 20) for case in CASES),
    *((work, storage, WAYS["staged"], nodes, 20) for work, storage, _, nodes in CASES[::3]),
]


@check(buys="Staging pays or it does not: you can say from how many epochs on, for any number of nodes.")
def training_s(attempt: Attempt) -> None:
    """`training_s(work, storage, way, nodes, epochs)`: the slowest part each epoch; a copy once."""
    for case in TRAININGS:
        got, right = attempt(*case, _shown=_shown(*case)), _training(*case)
        if not close(got, right):
            otherwise = "`epochs` times the slowest part; staged: one copy, then the GPUs alone"
            because = explain(attempt.answer, case, TRAININGS, TRAINING_MISTAKES, otherwise=otherwise)
            attempt.require(False, got, f"{right:.6g} s", because)


def hours_of(project: Project) -> dict[str, float]:
    """Of each way that is possible."""
    everything, hours = project.work.samples * project.work.sample_bytes, {}
    for name, way in WAYS.items():
        too_large = way.staged and everything > project.room_bytes
        if not too_large and not (name == "shards" and project.jumps):
            hours[name] = _training(project.work, project.storage, way, project.nodes, project.epochs) / 3600
    return hours


_NO_ROOM = "the data set is larger than what a node can keep: samples x bytes, against room_bytes"
_NO_JUMPS = "this training picks any sample at any time; shards are read from start to end"


@check(buys="You can defend a format with three numbers, and say when another one would win.")
def choice(attempt: Attempt) -> None:
    """`choice` names a way of storing for each project, and its hours."""
    got = attempt.answer
    attempt.expect_dict(PROJECTS, got, because="each project has one entry")
    for name, project in PROJECTS.items():
        attempt.given(f"choice[{name!r}]")
        pair = isinstance(got[name], tuple | list) and len(got[name]) == 2 and got[name][0] in WAYS
        attempt.require(pair, got[name], f"a pair, of {', '.join(WAYS)}", "the name of a way, and hours")
        (way, hours), possible = got[name], hours_of(project)
        least = min(possible.values())
        why_not = _NO_ROOM if way == "staged" else _NO_JUMPS
        attempt.require(way in possible, way, "a way that is possible", why_not)
        because = f"it takes {possible[way]:.3g} h, and another way that is possible takes {least:.3g} h"
        attempt.require(possible[way] <= 1.01 * least, way, "the fastest way", because)
        because = "take your own training_s with the project's numbers, by 3,600"
        attempt.require(close(hours, possible[way], 0.05), hours, f"{possible[way]:.3g} h", because)
