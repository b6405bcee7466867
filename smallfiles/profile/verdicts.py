"""One verdict for the numbers of a rank, what is next, and a forecast: a table that docs/symptoms.md shares.

The first verdict whose condition holds is the one: what hides others comes first. The trap: a condition on a
number that was not measured is neither true nor false; such a verdict is left out, and the number is named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from smallfiles.profile.numbers import Numbers

LIMIT = 0.1
"""Below this share of waiting, loading is not the limit."""


def _known(numbers: Numbers) -> Numbers:
    """Return the numbers that were measured: asking for another one is a KeyError."""
    return {name: value for name, value in numbers.items() if value is not None}


@dataclass(frozen=True)
class Verdict:
    """A line of the table.

    Args:
        name: As in docs/symptoms.md.
        holds: The condition.
        rests_on: Names of the three numbers that are shown.
        next: What to do now, filled in with the numbers.
        cured: Seconds of a step after that; None where they cannot be predicted.
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
    """Predict the seconds of a step: of making batches in workers and of training, the slower one decides."""
    making_s = n["batch_samples"] * sample_s / max(1, workers)
    return float(max(n.get("free_s") or n["compute_s"], making_s))


def _now_s(n: Numbers) -> float:
    return _step_s(n, n["sample_s"], n["workers"]) if n["workers"] else n["period_s"]


def _lighter(*kinds: str) -> Callable[[Numbers], float]:
    """Return a function that predicts a step without the time of these stages."""
    return lambda n: _step_s(n, n["sample_s"] * (1 - sum(n[f"in_{kind}"] for kind in kinds)), n["workers"])


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
        lambda n: (
            _crowded(n) and n["threads_busy"] >= 1.4 and n["threads_busy"] * max(1, n["workers"]) > n["cpus"]
        ),
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


def worst_of(ranks: Sequence[Numbers]) -> Numbers:
    """Return the rank that waits most, among the ranks whose waiting was measured."""
    return max(ranks, key=lambda each: (each["waiting"] is not None, each["waiting"] or 0.0))


def consistent(numbers: Numbers) -> Numbers:
    """Return the numbers of a rank with a headroom that follows from the same decision as the verdict.

    Steps whose batches were ready may be faster for another reason than loading, since workers leave their
    CPUs to the training meanwhile. Where loading is not the limit, the headroom is what waiting costs.
    """
    known = _known(numbers)
    with suppress(KeyError):
        if not _waits(known):
            return numbers | {"headroom": min(known["headroom"], 1 / (1 - min(0.99, known["waiting"])))}
    return numbers


def judge(ranks: Sequence[Numbers]) -> dict[str, Any]:
    """Return the verdict on a training of one rank or several ranks, as the record has it.

    Returns:
        The `name` of the verdict; `because`, the three numbers by name; what to do `next`; `step_s`, the
        forecast of the seconds of a step after that, from and to, or None; `now_s`, the seconds of a step
        now; and the numbers that are `missing` for a verdict.
    """
    waiting = [each["waiting"] for each in ranks if each["waiting"] is not None] or [0.0]
    worst, most, least = worst_of(ranks), max(waiting), min(waiting)
    found = _judged(worst)
    if most - least >= 0.2 and least < 0.5 * most:
        because = {"waiting_most": most, "waiting_least": least, "slowest": worst["rank"]}
        todo = f"give rank {worst['rank']} what it lacks: {found['name']}; {found['next']}"
        found |= {"name": "one rank waits for another", "because": because, "next": todo}
    return found


def _judged(numbers: Numbers) -> dict[str, Any]:
    known, missing = _known(numbers), dict[str, None]()
    for verdict in TABLE:
        try:
            if verdict.holds(known) and (verdict.without_waiting or known["waiting"] is not None):
                return _filled(verdict, known)
        except KeyError as error:
            missing[error.args[0]] = None
    name = "numbers are missing for a verdict"
    todo = "smallfiles bench load OUT --save load.json measures the stages of a batch"
    if needed := numbers.get("steps_needed"):
        name = f"too few steps to judge: {numbers['steps']:,}, need {needed:,}"
        todo = f"let it run for {needed} steps or more, best in one epoch: a longer run, a larger --seconds"
    elif numbers["waiting"] is None:
        todo = "let the main thread ask for the batches, since waiting in another thread is not measured"
    verdict = Verdict(name, bool, ("waiting", "steps", "making"), todo)
    return _filled(verdict, known) | {"missing": (*missing,)}


def _filled(verdict: Verdict, n: Numbers) -> dict[str, Any]:
    """Fill a verdict with its numbers, its next step, and its forecast."""
    made, seconds = n.get("made") or 0, n.get("seconds") or 0
    derived: Numbers = {
        **{"folder": n.get("folder") or "DIR", "cpus": n.get("cpus")},
        "half_workers": max(1, (n.get("workers") or 2) // 2),
        "reads_per_sample": round(n["reads"] / made, 1) if made else None,
        "asked_bytes_s": n["asked_bytes"] / seconds if seconds else None,
    }
    after = None
    try:
        derived |= {"workers_wanted": workers_wanted(n), "more_cpus": max(n["cpus"] + 1, n["workers"] + 1)}
        after = _range(verdict.cured(n), n[verdict.now], n) if verdict.cured else None
    except KeyError:
        derived = {"workers_wanted": 2, "more_cpus": (n.get("cpus") or 1) + 1} | derived
    because = {name: n.get(name, derived.get(name)) for name in verdict.rests_on}
    return {
        **{"name": verdict.name, "because": because, "next": verdict.next.format(**derived)},
        **{"step_s": after, "now_s": n.get(verdict.now), "missing": ()},
    }


def _range(step_s: float, present: float, n: Numbers) -> tuple[float, float] | None:
    """Return the forecast as a range: a tenth to both sides, and the error of the model at present."""
    unsure = 0.1 + min(0.4, abs(1 - _now_s(n) / n["period_s"]))
    best = n.get("free_s") or n["compute_s"] * 0.95
    low, high = max(best, step_s * (1 - unsure)), min(present, max(best, step_s) * (1 + unsure))
    return (low, high) if low < high < present * 0.99 else None
