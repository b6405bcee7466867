"""One verdict for the numbers of a rank, what is next, and a forecast: a table that docs/symptoms.md shares.

The first verdict whose condition holds is the one: what hides others comes first. The trap: a condition on a
number that was not measured is neither true nor false; such a verdict is left out, and the number is named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from smallfiles.profile.numbers import Numbers
from smallfiles.scaling import WAYS, Storage, Work, simulate

LIMIT = 0.1
"""Below this share of waiting, loading is not the limit."""


class _Missing(Exception):
    """A number that was not measured."""


class _Known(Numbers):
    """Numbers of which each is asked for is there."""

    def __getitem__(self, name: str) -> Any:
        if (value := super().get(name)) is None:
            raise _Missing(name)
        return value


@dataclass(frozen=True)
class Verdict:
    """A line of the table.

    Args:
        name: As in docs/symptoms.md.
        holds: The condition.
        rests_on: Names of the three numbers that are shown.
        next: What to do now, filled in with the numbers.
        cured: Seconds of a step after that, by the cost model; None where it cannot know.
        now: The number that this is compared with.
        without_waiting: Whether it may be given where waiting was not measured.
    """

    name: str
    holds: Callable[[Numbers], bool]
    rests_on: tuple[str, str, str]
    next: str
    cured: Callable[[Numbers], float] | None = None
    now: str = "period_s"
    without_waiting: bool = False


def _step_s(n: Numbers, sample_s: float, workers: int) -> float:
    """Predict the seconds of a step by the cost model, for this time per sample and number of workers."""
    work = Work(
        samples=n["batch_samples"] * 4_000,
        batch=n["batch_samples"],
        gpus=1,
        workers=max(1, workers),
        prefetch=n.get("prefetch") or 2,
        step_s=n.get("free_s") or n["compute_s"],
        decode_s=sample_s,
        sample_bytes=1,
    )
    storage = Storage(metadata_ops_s=1e12, latency_s=0.0, targets=4096, request_s=0.0)
    return simulate(work, storage, WAYS["files"], 1).epoch_s / 4_000


def _now_s(n: Numbers) -> float:
    return _step_s(n, n["sample_s"], n["workers"]) if n["workers"] else n["period_s"]


def _lighter(*kinds: str) -> Callable[[Numbers], float]:
    """Return a function that predicts a step without the time of these stages."""
    return lambda n: _step_s(n, n["sample_s"] * (1 - sum(n[f"in_{kind}"] for kind in kinds)), _at_work(n))


def _at_work(n: Numbers) -> int:
    return int(n["workers"] or 1)


def workers_wanted(n: Numbers) -> int:
    """Return how many workers make batches as fast as the model needs them.

    Blocked workers need no CPU of their own.
    """
    need = -(-n["batch_s"] // max(n.get("free_s") or n["compute_s"], 1e-4)) + 1
    busy = min(1.0, max(n["sample_cpu_s"] / n["sample_s"] / max(1 - n["queued"], 0.05), 0.05))
    return int(max(1, min(need, max(n["cpus"], n["cpus"] / busy), 64)))


def _more_workers(n: Numbers) -> float:
    workers = workers_wanted(n)
    return _step_s(n, max(n["sample_s"], n["sample_cpu_s"] * workers / n["cpus"]), workers)


def _waits(n: Numbers) -> bool:
    """Loading is the limit; workers that are idle most of the time are late now and then, not too slow."""
    waiting = n["waiting"]
    return bool(waiting >= LIMIT and not (n.get("workers") and waiting < 0.3 and n["making"] < 0.3))


def _crowded(n: Numbers) -> bool:
    """Check whether the processes of this rank want all processors that it may use."""
    # Workers rest at the start, at the end and in between.
    at_work = max(0.5, n["making"]) if n.get("workers") else 1.0
    return bool(n["cpus_wanted"] >= 0.8 * n["cpus"] * at_work)


TABLE = (
    Verdict(
        "batches are too large for /dev/shm",
        lambda n: n["shm_use"] >= 0.8,
        ("waiting_bytes", "shm_bytes", "workers"),
        "fewer batches ahead: prefetch_factor=1, or num_workers={half_workers}",
        without_waiting=True,
    ),
    Verdict(
        "workers are restarted in each epoch",
        lambda n: not n["persistent"] and n["startup"] >= 0.2,
        ("startup", "startup_s", "epochs"),
        "DataLoader(…, persistent_workers=True)",
        lambda n: n["whole_s"] * (1 - n["startup"]),
        "whole_s",
        without_waiting=True,
    ),
    Verdict(
        "the main thread copies",
        lambda n: n["copying"] >= 0.2,
        ("copying", "compute_s", "batch_bytes"),
        "do it in the workers (in the dataset or collate_fn); to a GPU: pin_memory=True and "
        ".to(device, non_blocking=True)",
        lambda n: n["period_s"] * (1 - n["copying"]),
    ),
    Verdict(
        "the first epoch is cold, later ones are warm",
        lambda n: n["waiting_first"] >= 0.2 and n["waiting_later"] < 0.4 * n["waiting_first"],
        ("waiting_first", "waiting_later", "epochs"),
        "smallfiles stage OUT before the training (after smallfiles pack {folder} OUT)",
        lambda n: n["late_s"],
        "early_s",
    ),
    Verdict(
        "loading is not the limit",
        lambda n: not _waits(n),
        ("waiting", "samples_s", "making"),
        "nothing here: look at the model (its size, mixed precision, torch.profiler)",
    ),
    Verdict(
        "threads are oversubscribed",
        lambda n: _crowded(n) and n["threads_busy"] >= 1.4 and n["threads_busy"] * _at_work(n) > n["cpus"],
        ("threads_busy", "workers", "cpus"),
        "one thread in each worker: OMP_NUM_THREADS=1, and torch.set_num_threads(1) or cv2.setNumThreads(0) "
        "in worker_init_fn",
    ),
    Verdict(
        "small reads",
        lambda n: n["reads"] >= 40 * n["made"] and n["read_bytes"] < 16_384 and n["in_read"] >= 0.2,
        ("read_bytes", "reads_per_sample", "in_read"),
        "read a sample at once: smallfiles pack {folder} train.arrow, or larger chunks and buffers",
        _lighter("read"),
    ),
    Verdict(
        "opens on a file system with slow metadata",
        lambda n: n["in_open"] >= 0.3,
        ("in_open", "opens_s", "filesystem"),
        "smallfiles pack {folder} train.arrow, then read that",
        _lighter("open"),
    ),
    Verdict(
        "the storage is the limit",
        lambda n: n["in_read"] >= 0.4,
        ("in_read", "asked_bytes_s", "filesystem"),
        "smallfiles pack {folder} train.arrow, then smallfiles stage train.arrow",
        _lighter("read", "open"),
    ),
    Verdict(
        "too few CPUs are allowed",
        lambda n: _crowded(n) and n["cpus"] < n["cpus_node"] and n["workers"] >= 1,
        ("cpus", "cpus_wanted", "cpus_node"),
        "srun --cpus-per-task={more_cpus} (and #SBATCH --cpus-per-task={more_cpus})",
        lambda n: _step_s(n, n["sample_cpu_s"] * 1.05, n["workers"]),
    ),
    Verdict(
        "too many workers",
        lambda n: _crowded(n) and n["workers"] >= 3 * n["cpus"],
        ("workers", "cpus", "queued"),
        "num_workers={cpus}",
        lambda n: min(n["period_s"], _step_s(n, n["sample_cpu_s"] * 1.05, n["cpus"])),
    ),
    Verdict(
        "too few workers",
        lambda n: n["workers"] == 0 or (n["making"] >= 0.5 and not _crowded(n)),
        ("workers", "making", "cpus"),
        "num_workers={workers_wanted}",
        _more_workers,
    ),
    Verdict(
        "decoding is the limit",
        lambda n: _crowded(n) and n["in_decode"] + n["in_augment"] >= 0.3,
        ("in_decode", "in_augment", "cpus_wanted"),
        "smallfiles pack {folder} train.arrow --resize 256, or a faster decoder, or more CPUs",
    ),
    Verdict(
        "CPUs are the limit",
        _crowded,
        ("cpus_wanted", "cpus", "queued"),
        "more CPUs, or less work per sample: py-spy top --pid of a worker shows its functions",
    ),
)
"""In the order in which they are asked; "one rank waits for another" stands above all of them."""

ONE_RANK = Verdict(
    "one rank waits for another",
    lambda n: n["waiting_most"] - n["waiting_least"] >= 0.2 and n["waiting_least"] < 0.5 * n["waiting_most"],
    ("waiting_most", "waiting_least", "slowest"),
    "give rank {slowest} what it lacks: {next}",
)
UNKNOWN = Verdict(
    "numbers are missing for a verdict", lambda n: True, ("waiting", "steps", "making"), "{missing_next}"
)
TOO_FEW = replace(UNKNOWN, name="too few steps to judge")


@dataclass(frozen=True)
class Judged:
    """A verdict on one training.

    Args:
        name: Of the verdict.
        because: The three numbers, by name.
        next: What to do now.
        step_s: Forecast of the seconds of a step after that, from and to; None without one.
        now_s: Seconds of a step now.
        missing: Numbers that would have been needed.
    """

    name: str
    because: dict[str, Any]
    next: str
    step_s: tuple[float, float] | None = None
    now_s: float | None = None
    missing: tuple[str, ...] = ()


def worst_of(ranks: Sequence[Numbers]) -> Numbers:
    """Return the rank that waits most, among the ranks whose waiting was measured."""
    return max(ranks, key=lambda each: (each["waiting"] is not None, each["waiting"] or 0.0))


def consistent(numbers: Numbers) -> Numbers:
    """Return the numbers of a rank with a headroom that follows from the same decision as the verdict.

    Steps whose batches were ready may be faster for another reason than loading, since workers leave their
    CPUs to the training meanwhile. Where loading is not the limit, the headroom is what waiting costs.
    """
    known = _Known(numbers)
    try:
        if numbers["headroom"] is None or _waits(known):
            return numbers
        return numbers | {"headroom": min(numbers["headroom"], 1 / (1 - min(0.99, known["waiting"])))}
    except _Missing:
        return numbers


def judge(ranks: Sequence[Numbers]) -> Judged:
    """Return the verdict on a training of one rank or several ranks."""
    waiting = [each["waiting"] for each in ranks if each["waiting"] is not None]
    worst = worst_of(ranks)
    found = _judged(worst)
    if len(waiting) > 1:
        together = {"waiting_most": max(waiting), "waiting_least": min(waiting), "slowest": worst["rank"]}
        if ONE_RANK.holds(together):
            text = ONE_RANK.next.format(slowest=worst["rank"], next=f"{found.name}; {found.next}")
            return replace(found, name=ONE_RANK.name, because=together, next=text)
    return found


def _judged(numbers: Numbers) -> Judged:
    known, missing = _Known(numbers), dict[str, None]()
    for verdict in TABLE:
        try:
            if verdict.holds(known) and (verdict.without_waiting or known["waiting"] is not None):
                return _filled(verdict, known)
        except _Missing as error:
            missing[str(error)] = None
    if needed := numbers.get("steps_needed"):
        todo = f"let it run for {needed} steps or more, best in one epoch: a longer run, a larger --seconds"
        name = f"{TOO_FEW.name}: {numbers['steps']:,}, need {needed:,}"
        return replace(_filled(TOO_FEW, known, todo), name=name, missing=tuple(missing))
    if numbers["waiting"] is None:
        todo = "let the main thread ask for the batches, since waiting in another thread is not measured"
    else:
        todo = "smallfiles bench load OUT --save load.json measures the stages of a batch"
    return replace(_filled(UNKNOWN, known, todo), missing=tuple(missing))


def _filled(verdict: Verdict, n: Numbers, todo: str = "") -> Judged:
    """Fill a verdict with its numbers, its next step, and its forecast."""
    made, seconds = n.get("made") or 0, n.get("seconds") or 0
    derived: Numbers = {
        **{"folder": n.get("folder") or "DIR", "cpus": n.get("cpus"), "missing_next": todo},
        "half_workers": max(1, (n.get("workers") or 2) // 2),
        "reads_per_sample": round(n["reads"] / made, 1) if made else None,
        "asked_bytes_s": n["asked_bytes"] / seconds if seconds else None,
    }
    try:
        derived |= {"workers_wanted": workers_wanted(n), "more_cpus": max(n["cpus"] + 1, n["workers"] + 1)}
        after = _range(verdict.cured(n), n[verdict.now], n) if verdict.cured else None
    except _Missing:
        derived, after = {"workers_wanted": 2, "more_cpus": (n.get("cpus") or 1) + 1} | derived, None
    because = {name: n.get(name, derived.get(name)) for name in verdict.rests_on}
    return Judged(verdict.name, because, verdict.next.format(**derived), after, n.get(verdict.now))


def _range(step_s: float, present: float, n: Numbers) -> tuple[float, float] | None:
    """Return the forecast as a range: a tenth to both sides, and the error of the model at present."""
    unsure = 0.1 + min(0.4, abs(1 - _now_s(n) / n["period_s"]))
    best = n.get("free_s") or n["compute_s"] * 0.95
    low, high = max(best, step_s * (1 - unsure)), min(present, max(best, step_s) * (1 + unsure))
    return (low, high) if low < high < present * 0.99 else None
