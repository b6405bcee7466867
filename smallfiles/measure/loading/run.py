"""Measure loaders: every case once a round, in an order that changes, in processes that do nothing else.

The trap: loaders that are measured with other pictures, other crops or another number of cores are not
compared. So all read the same samples from the same storage, and a record carries its conditions. Notebook
08 measures with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from smallfiles import formats, machine
from smallfiles.errors import UsageError
from smallfiles.measure.config import LoadBenchConfig
from smallfiles.measure.loading.ours import Ours, first_of
from smallfiles.measure.loading.passes import Pass
from smallfiles.measure.loading.peer import Maker, Peer, Setting, peers_of
from smallfiles.measure.loading.pool import Theirs, WorkerPool, worker_pool
from smallfiles.measure.neighbour import allowance
from smallfiles.measure.protocol import Case, Outcome, attempt, interleaved
from smallfiles.measure.record import Failed, Record, Result, versions_of
from smallfiles.measure.scratch import memory_folder
from smallfiles.progress import progress
from smallfiles.samples import Reader

STAGES = "where a batch's time goes"
_PACKAGES = ("smallfiles", "numpy", "pyarrow", "h5py", "torch", "simplejpeg", "turbojpeg")


@dataclass(frozen=True)
class _Target:
    path: Path
    format: str
    name: str
    kind: str  # of the pictures: JPEG, raw, and how they were scaled
    samples: int
    bytes: int


def bench_loading(
    paths: Sequence[Path], config: LoadBenchConfig | None = None, *, others: str = ""
) -> Result:
    """Measure whole epochs of packed files, and where the time of a batch goes.

    Args:
        paths: Packed files with labels; those that hold the same bytes are compared with each other.
        config: How.
        others: The module with the loaders of others.

    Returns:
        For each kind of pictures and number of workers one record a file and mode, and one a peer that is
        installed; for each file one with the stages of a batch.

    Raises:
        UsageError: Files hold captions, or nothing of the name that is asked for.
        FormatError: A file cannot be read.
    """
    config = config or LoadBenchConfig()
    runs = (config.repeats + 1) * len(config.workers) * len(config.modes) * len(paths)
    allowed = allowance(paths, config.count, runs, cap=config.cap)
    targets = _named([_target(Path(path), allowed.samples) for path in paths])
    notes = [allowed.note] if allowed.note else []
    records: list[Record] = []
    failed: list[Failed] = []
    peers, makers = peers_of(others)
    with worker_pool(config, others) as hands:
        for kind in dict.fromkeys(target.kind for target in targets):
            group = [target for target in targets if target.kind == kind]
            _same_set(group)
            fit = {name: peer for name, peer in peers.items() if _fits(peer, group[0], config)}
            notes += [
                f"{name} is not installed, so not measured: {peer.install}"
                for name, peer in fit.items()
                if not peer.installed()
            ]
            here = {name: peer for name, peer in fit.items() if peer.installed()}
            with _material(group[0], here, makers) as (folder, broken):
                records += _measured(hands, group, folder, here, config, broken, failed)
        records += _stages(hands, targets, config, failed)
    if not records and not failed:
        raise UsageError(
            f"nothing is called {', '.join(config.only)}",
            expected="one of "
            + ", ".join([*(f"{targets[0].name}, {mode}" for mode in config.modes), *peers]),
            next_step="Leave --only out to measure all",
        )
    return Result(tuple(records), tuple(dict.fromkeys(notes)), tuple(failed))


def _target(path: Path, most: int) -> _Target:
    format = formats.name_of(path, None)
    with contextlib.closing(formats.open(path, format)) as reader:
        samples = min(len(reader), most)
        if not samples or reader.target_kind != "label":
            raise UsageError(
                f"{path} holds {len(reader)} samples with {reader.target_kind}",
                expected="pictures with labels",
                next_step="Pack a data set with labels, or measure reading with: bench read",
            )
        size = sum(reader.size(index) for index in range(samples))
        return _Target(path, format, format, _kind(reader), samples, size)


def _kind(reader: Reader) -> str:
    scaled = (reader.info().get("provenance") or {}).get("resize")
    stored = "raw" if bytes(reader.read(0)[:2]) == b"P6" else "JPEG"
    return f"{stored} scaled to {scaled.get('short_side')} ahead" if isinstance(scaled, dict) else stored


def _named(targets: list[_Target]) -> list[_Target]:
    """By format where that is unique among those that are compared, else by file name."""
    named = []
    for target in targets:
        same = [each for each in targets if (each.kind, each.format) == (target.kind, target.format)]
        name = target.format if len(same) == 1 else target.path.name
        named.append(_Target(**{**vars(target), "name": name}))
    return named


def _same_set(group: Sequence[_Target]) -> None:
    sets = {(target.samples, target.bytes) for target in group}
    if len(sets) > 1 or len({target.name for target in group}) < len(group):
        raise UsageError(
            f"{', '.join(str(target.path) for target in group)} hold different sets",
            expected="files packed from one data set, in one order",
            next_step="Measure them in separate runs",
        )


@contextlib.contextmanager
def _material(
    target: _Target, peers: Mapping[str, Peer], makers: Mapping[str, Maker]
) -> Iterator[tuple[Path, dict[str, str]]]:
    """What the loaders of others read, beside the packed file; loaders that have nothing to read, and why."""
    if not peers:
        yield Path(), {}
        return
    first = next(iter(makers))
    needed = [made for made in makers if made in {first, *(peer.material for peer in peers.values())}]
    if target.kind.startswith("raw"):
        needed.remove(first)
    with memory_folder(target.bytes * len(needed), target.path.parent) as folder:
        reader = first_of(target.path, target.format, target.samples)
        with progress(len(needed), "laying out files for other loaders", unit="layouts") as shown:
            failed: dict[str, str] = {}
            for made in needed:
                attempt(made, partial(makers[made], reader, folder / made), failed)
                shown.advance()
        yield folder, {n: failed[peer.material] for n, peer in peers.items() if peer.material in failed}


def _fits(peer: Peer, target: _Target, config: LoadBenchConfig) -> bool:
    return target.kind.startswith(peer.stored) and (peer.name in config.only or not config.only)


def _measured(
    hands: WorkerPool,
    group: Sequence[_Target],
    folder: Path,
    peers: Mapping[str, Peer],
    config: LoadBenchConfig,
    broken: dict[str, str],
    failed: list[Failed],
) -> list[Record]:
    """All numbers of workers take part in each round, so that they can be compared with each other."""
    first, homes = group[0], {target.name: target.format for target in group}
    what = f"epoch of {first.kind}"
    orders: dict[str, tuple[int, Ours | Theirs]] = {}
    for workers in config.workers:
        orders |= {f"{workers} {order.name}": (workers, order) for order in _ours(group, workers, config)}
        orders |= {
            f"{workers} {name}": (workers, Theirs(name, _setting(first, folder, workers, config)))
            for name in peers
        }
    runs = {case: partial(_outcome, hands, order, first.bytes) for case, (_, order) in orders.items()}
    reasons: dict[str, str] = {}
    working = _seen_to_work(orders, runs, broken, reasons)
    cases = [Case(case, runs[case], warm_up=False) for case in working]
    outcomes = interleaved(cases, config.repeats, config.seed, what, reasons) if cases else {}
    names = {case: case.partition(" ")[2] for case in orders}
    failed += [
        Failed(f"{what}, {orders[case][0]} workers", names[case], why) for case, why in reasons.items()
    ]
    return [
        _record(
            names[case],
            homes.get(names[case].rpartition(", ")[0], names[case]),
            f"{what}, {orders[case][0]} workers",
            orders[case][0],
            first,
            found,
            config,
            peers.get(names[case]),
        )
        for case, found in outcomes.items()
    ]


def _seen_to_work(
    orders: dict[str, tuple[int, Ours | Theirs]],
    runs: Mapping[str, Callable[[], Outcome]],
    broken: dict[str, str],
    reasons: dict[str, str],
) -> list[str]:
    """Run the loaders of others once; one that fails is not waited for with other numbers of workers."""
    for case, (_, order) in orders.items():
        if isinstance(order, Theirs):
            if order.peer in broken:
                reasons[case] = broken[order.peer]
            elif attempt(case, runs[case], reasons) is None:
                broken[order.peer] = reasons[case]
    return [case for case in orders if case not in reasons]


def _ours(group: Sequence[_Target], workers: int, config: LoadBenchConfig) -> list[Ours]:
    return [
        Ours(name, target.path, target.format, mode, workers, target.samples)
        for target in group
        for mode in config.modes
        if (name := f"{target.name}, {mode}") in config.only or not config.only
    ]


def _setting(target: _Target, folder: Path, workers: int, config: LoadBenchConfig) -> Setting:
    return Setting(folder, target.samples, workers, config.batch, config.prefetch, config.size)


def _outcome(hands: WorkerPool, order: Ours | Theirs, size_bytes: int) -> Outcome:
    done: Pass = hands.run(order)
    return Outcome(done.samples, size_bytes, done.seconds, {"pass": done})


def _record(
    name: str,
    format: str,
    what: str,
    workers: int,
    target: _Target,
    outcomes: Sequence[Outcome],
    config: LoadBenchConfig,
    peer: Peer | None,
) -> Record:
    passes: list[Pass] = [outcome.extra["pass"] for outcome in outcomes]
    waits = np.concatenate([done.waits_s for done in passes])
    starts = [done.first_s for done in passes if done.first_s is not None]
    return Record(
        what=what,
        name=name,
        format=format,
        rates_per_s=tuple(outcome.rate_per_s for outcome in outcomes),
        samples=outcomes[0].samples,
        bytes=target.bytes,
        seconds=float(np.median([done.seconds for done in passes])),
        filesystem=machine.filesystem(target.path).kind,
        cache="warm",
        touched="every batch handed to the trainer",
        set_samples=target.samples,
        set_bytes=target.bytes,
        workers=workers,
        batch=config.batch,
        seed=config.seed,
        extra={
            "first_batch_s": float(np.median(starts)) if starts else None,
            "wait_p50_s": float(np.percentile(waits, 50)),
            "wait_p99_s": float(np.percentile(waits, 99)),
            "crop_pixels": config.size,
            "filter": config.filter if peer is None else "as the name says",
        },
        machine=machine.describe(),
        versions=versions_of([*_PACKAGES, *(peer.packages if peer is not None else ())]),
    )


def _stages(
    hands: WorkerPool, targets: Sequence[_Target], config: LoadBenchConfig, failed: list[Failed]
) -> list[Record]:
    """A record a file, with the seconds that each stage of a batch takes."""
    chosen = [target for target in targets if not config.only or _asked_for(target, config)]
    orders = {
        target: (STAGES, Ours(target.name, target.path, target.format, "threads", 1, target.samples))
        for target in chosen
    }

    def run(target: _Target) -> Outcome:
        stages: Any = hands.run(orders[target])
        batch = min(config.batch, target.samples)
        return Outcome(batch, target.bytes * batch // target.samples, stages.made_s, asdict(stages))

    names = {target: f"{target.name}, {target.kind}" for target in chosen}
    cases = [Case(names[target], partial(run, target), warm_up=False) for target in chosen]
    if not cases:
        return []
    reasons: dict[str, str] = {}
    outcomes = interleaved(cases, config.repeats, config.seed, STAGES, reasons)
    failed += [Failed(STAGES, name, why) for name, why in reasons.items()]
    return [
        _stage_record(target, name, outcomes[name], config)
        for target, name in names.items()
        if name in outcomes
    ]


def _asked_for(target: _Target, config: LoadBenchConfig) -> bool:
    return any(f"{target.name}, {mode}" in config.only for mode in config.modes)


def _stage_record(target: _Target, name: str, outcomes: Sequence[Outcome], config: LoadBenchConfig) -> Record:
    stages = {key: float(np.median([each.extra[key] for each in outcomes])) for key in outcomes[0].extra}
    return Record(
        what=STAGES,
        name=name,
        format=target.format,
        rates_per_s=tuple(outcome.rate_per_s for outcome in outcomes),
        samples=outcomes[0].samples,
        bytes=outcomes[0].bytes,
        seconds=float(np.median([outcome.seconds for outcome in outcomes])),
        filesystem=machine.filesystem(target.path).kind,
        cache="warm",
        touched="every page read, every picture decoded",
        set_samples=target.samples,
        set_bytes=target.bytes,
        batch=config.batch,
        seed=config.seed,
        extra=stages,
        machine=machine.describe(),
        versions=versions_of(_PACKAGES),
    )
