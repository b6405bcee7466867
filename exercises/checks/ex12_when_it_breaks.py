"""Exercise 12: six jobs that failed, their causes, and the line that cures each.

    causes     the cause of each job, by its letter
    lines      the cured line of the three job scripts: run by real bash, with a played srun
    programs   the cured line of the three Python programs: run here

A line is judged by what it does: which CPUs a step gets, how much shared memory a loader takes, which crops
workers draw. The trap: a cure for the wrong cause often makes the symptom rarer, so the checks look at the
cause. Notebook 12 sends participants here.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections import Counter
from collections.abc import Mapping
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from exercises.checks import Attempt, NotStarted, check

CAUSES = (
    "one CPU for all workers",
    "no network on compute nodes",
    "shared memory is full",
    "memory limit of the job",
    "files kept open by tensors",
    "limit of inodes",
    "same order in every epoch",
    "a random generator copied by the fork",
    "shared position of an open file",
    "names cut at the first dot",
    "a copy that was interrupted",
)
RIGHT = dict(zip("ABCDEF", (CAUSES[n] for n in (0, 1, 2, 7, 4, 9)), strict=True))
WHY = {
    "A": "8 workers share one CPU, because the process may use 1, although the script requested 8",
    "B": "the name of a server could not be resolved, because a compute node does not reach the internet",
    "C": "signal 7, Bus error, means that /dev/shm had no page left, and df shows that it is full",
    "D": "both workers, in both epochs, draw the same numbers as a new generator",
    "E": "the error names open files, and each tensor from a worker needs one as long as it is kept",
    "F": "there are half as many samples with two images each, whose names differ only after a dot",
}
NOT = {
    "C: memory limit of the job": "a process over the memory limit gets signal 9, Killed; this is signal 7",
    "D: same order in every epoch": "it is the crops that repeat, and they repeat in two workers at once",
    "D: shared position of an open file": "every image is right; only its crop repeats",
    "E: limit of inodes": "no room for new files is another error (28); here a process holds too many open",
    "F: a copy that was interrupted": "the number of images is right: two of them are in each sample",
    "F: shared position of an open file": "it happens without workers too, and no byte is wrong",
}
ORIGINAL = {
    "A": "srun python train.py --workers 8",
    "B": "srun python finetune.py --model resnet50",
    "C": "srun --cpus-per-task=16 python train.py --workers 16 --prefetch 8 --batch 256",
    "D": "random = self.random",
    "E": "kept.append(batch)",
    "F": 'name = f"{stem}.jpg"',
}


def _begun(attempt: Attempt, letters: str) -> dict[str, str]:
    """The answers to these jobs."""
    answers, expected = attempt.answer, f"a dict of {len(letters)} texts"
    attempt.require(isinstance(answers, Mapping), answers, expected, "write one text per job")
    begun = {letter: answers.get(letter) for letter in letters}
    if all(text in (None, "", ORIGINAL[letter]) for letter, text in begun.items()):
        raise NotStarted
    for letter, text in begun.items():
        attempt.given(f"job {letter}")
        because = f"the answer to job {letter} is missing"
        attempt.require(isinstance(text, str) and text != "", text, "a text", because)
    return {letter: str(text).strip() for letter, text in begun.items()}


# --- Task 1: the causes ---


@check(buys="A cause that is found from one log saves the three jobs that would have tried guesses.")
def causes(attempt: Attempt) -> None:
    """`causes` names the cause of each job, in the words of the list."""
    for letter, cause in _begun(attempt, "ABCDEF").items():
        attempt.given(f"job {letter}: {cause!r}")
        expected = f"one of: {'; '.join(CAUSES)}"
        attempt.require(cause in CAUSES, repr(cause), expected, "use the words of the list")
        because = NOT.get(f"{letter}: {cause}", f"look again at the log of {letter}: {WHY[letter]}")
        attempt.require(cause == RIGHT[letter], cause, "another cause", because)


# --- Task 2: job scripts ---

SRUN = """#!/bin/bash
printf '%s\\n' "${SRUN_CPUS_PER_TASK:-}" "${TORCH_HOME:-}" "$@" >"$PLAYED"
"""
SCRATCH = "/scratch/of/the/job"
SHM_BYTES = 8e9
IMAGE_BYTES = 4 * 3 * 224 * 224


def _played(attempt: Attempt, line: str) -> tuple[str, str, list[str]]:
    """Run a line in bash: CPUs and TORCH_HOME in its environment, and the arguments of srun."""
    place = attempt.folder()
    played, srun = place / "played", place / "srun"
    srun.write_text(SRUN, encoding="utf-8")
    srun.chmod(0o755)
    env = {"PATH": f"{place}:{os.environ['PATH']}", "HOME": str(place), "PLAYED": str(played)}
    env |= {"SLURM_CPUS_PER_TASK": "8", "SCRATCH": SCRATCH}
    command = ["bash", "-c", line]
    run = subprocess.run(command, env=env, cwd=place, capture_output=True, text=True, timeout=5)
    said = (run.stderr or run.stdout).strip()[-200:] or "srun was not called"
    because = "the line must start the program with srun"
    attempt.require(played.exists() and run.returncode == 0, said, "one call of srun", because)
    cpus, home, *words = played.read_text(encoding="utf-8").splitlines()
    return cpus, home, words


def _option(words: list[str], *names: str) -> str | None:
    """The value of an option in any of the ways to write it."""
    written = "|".join(f"{name}{' ?' if len(name) == 2 else '[= ]'}" for name in names)
    found = re.search(rf"(?:^| )(?:{written})(\S+)", " ".join(words))
    return found[1] if found else None


def _program(attempt: Attempt, words: list[str], original: str) -> tuple[list[str], dict[str, str]]:
    """The options of srun, and the variables that `--export` or `env` set for the original program."""
    python, file = original.split()
    start = words.index(python) if python in words else len(words)
    because = "leave the program and its arguments as they were"
    attempt.require(words[start + 1 : start + 2] == [file], shlex.join(words), original, because)
    before = words[:start]
    export = (_option(before, "--export") or "ALL").split(",")
    because = "--export without ALL keeps all other variables from the program"
    attempt.require("ALL" in export, f"--export={','.join(export)}", "--export=ALL,NAME=VALUE", because)
    given = [*export, *(before[before.index("env") :] if "env" in before else [])]
    return before, dict(word.split("=", 1) for word in given if "=" in word)


def _whole(attempt: Attempt, words: list[str], name: str) -> int:
    text = _option(words, name) or ""
    attempt.require(text.isdecimal(), f"{name} {text}", f"{name} with a number", f"keep the option {name}")
    return int(text)


def _cured_cpus(attempt: Attempt, line: str) -> None:
    variable, _, words = _played(attempt, line)
    before, _ = _program(attempt, words, "python train.py")
    cpus = _option(before, "--cpus-per-task", "-c") or variable
    because = "srun does not take over the script's CPUs; pass them on with --cpus-per-task"
    if cpus.startswith("$"):
        because = "in single quotes bash does not replace the variable: use double quotes"
    elif _option(words, "--workers") == "1":
        because = "one worker fits one CPU, and is as slow as before; the step must get the 8 CPUs"
    attempt.require(cpus == "8", f"CPUs of the step: {cpus or 'those of the default, 1'}", "8", because)
    because = "the 8 workers were right; leave them"
    attempt.require(_option(words, "--workers") == "8", shlex.join(words), "--workers 8", because)


def _cured_network(attempt: Attempt, line: str) -> None:
    _, home, words = _played(attempt, line)
    _, given = _program(attempt, words, "python finetune.py")
    home = given.get("TORCH_HOME", home)
    because = "the file is there already; PyTorch looks in $TORCH_HOME/hub/checkpoints, and you can set it"
    if "TORCH_HOME" not in given and any("TORCH_HOME" in word for word in words):
        because = "this is an argument of the program; write the variable before srun"
    elif any(tool in line for tool in ("wget", "curl", "download")):
        because = "a download needs a network, which compute nodes do not have; use the file that is there"
    elif "$" in home:
        because = "in single quotes bash does not replace the variable: use double quotes"
    elif home.rstrip("/").endswith(("hub", "checkpoints")):
        because = "TORCH_HOME is the folder above hub/checkpoints"
    got = f"TORCH_HOME={home or ' (not set)'}"
    attempt.require(home.rstrip("/") == f"{SCRATCH}/torch", got, f"TORCH_HOME={SCRATCH}/torch", because)
    model = _option(words, "--model")
    attempt.require(model == "resnet50", f"--model {model}", "--model resnet50", "leave the arguments")


def _cured_shm(attempt: Attempt, line: str) -> None:
    _, _, words = _played(attempt, line)
    _program(attempt, words, "python train.py")
    workers, ahead, batch = (_whole(attempt, words, name) for name in ("--workers", "--prefetch", "--batch"))
    attempt.expect(256, batch, because="another batch size is another training; keep 256")
    because = "so few workers starve the GPU; each of them needs fewer batches ahead"
    attempt.require(workers >= 8, f"{workers} workers", "at least 8 of the 16", because)
    need, room = workers * ahead * batch * IMAGE_BYTES, 0.8 * SHM_BYTES
    because = "workers x prefetch x batch x 224 x 224 x 3 floats of 4 bytes must fit into /dev/shm"
    if _option(words, "--mem") is not None:
        because = "--mem is the memory of the job; /dev/shm keeps its own size"
    expected = f"at most {room / 1e9:.1f} GB, 80% of /dev/shm, and some"
    attempt.require(0 < need <= room, f"{need / 1e9:.1f} GB of batches", expected, because)


@check(buys="The same three lines decide whether a reservation of 64 nodes computes or waits.", limit_s=20)
def lines(attempt: Attempt) -> None:
    """`cures["A"]`, `cures["B"]`, `cures["C"]`: the marked line of each job script, cured."""
    for letter, line in _begun(attempt, "ABC").items():
        attempt.given(f"job {letter}: {line}")
        {"A": _cured_cpus, "B": _cured_network, "C": _cured_shm}[letter](attempt, line)


# --- Task 3: programs ---

_ONE_NAME = "two images now have one name"
STEMS = ("cat.v1", "cat.v2", "cat_v1", "catv1", "cat-v1", "cat%2Ev1", "dog", "dog.v1.small")


def _executed(attempt: Attempt, line: str, names: dict[str, Any]) -> dict[str, Any]:
    with attempt.guarded():
        exec(compile(line, "your line", "exec"), names)
    return names


def _cured_views(attempt: Attempt, line: str) -> None:
    drawn: dict[tuple[int, int], list[tuple[int, ...]]] = {}
    with torch.random.fork_rng(devices=[]):
        for worker, epoch in product((0, 1), (0, 1, 2)):
            if epoch < 2:  # a new worker, as a DataLoader seeds it; then persistent_workers keep it
                copied = SimpleNamespace(random=np.random.default_rng(0), images=[None] * 8)
                torch.manual_seed(1000 * epoch + worker)
            for index in (worker, worker + 2):
                names = {"self": copied, "index": index, "np": np, "numpy": np, "torch": torch}
                random: Any = _executed(attempt, line, names).get("random")
                because = "`random` must be a generator: the next line calls random.integers(…)"
                attempt.require(hasattr(random, "integers"), repr(random), "a NumPy generator", because)
                drawn.setdefault((epoch, worker), []).append(tuple(random.integers(0, 1 << 30, size=2)))
    copies = "both workers start from the same seed, as copies of one generator do"
    persistent = "persistent_workers keep torch.initial_seed(): torch.randint(…) draws on from epoch to epoch"
    different = len({crop for (epoch, _), crops in drawn.items() for crop in crops if epoch < 2})
    for got, same, because in (
        ("two workers", drawn[0, 0][0] == drawn[0, 1][0], copies),
        ("two epochs", drawn[0, 1] == drawn[1, 1], "the epochs repeat: a new worker has another torch seed"),
        ("two samples", len(set(drawn[0, 0])) == 1, "one seed gives each sample the same: add the index"),
        ("two samples", different < 8, "crops repeat, as with a sum of seed and index: give both"),
        ("two epochs of one worker", drawn[1, 1] == drawn[2, 1], persistent),
    ):
        attempt.require(not same, f"the same crop for {got}", "another crop each time", because)


def _cured_tensors(attempt: Attempt, line: str) -> None:
    batch: Any = torch.arange(4.0)
    batch.share_memory_()
    kept: list[Any] = []
    _executed(attempt, line, {"kept": kept, "batch": batch, "torch": torch})
    because = "keep the batch: append a copy of it"
    attempt.require(len(kept) == 1, f"{len(kept)} kept", "one per batch", because)
    same = [float(value) for value in kept[0]] == [0, 1, 2, 3]
    attempt.require(same, kept[0], "the values of the batch", "keep its values")
    batch += 1
    shared = float(kept[0][0]) != 0
    because = "detach() and numpy() are views of the same shared memory, and hold its file: use clone()"
    attempt.require(not shared, "memory that is still shared", "a copy of its own", because)


def _cured_names(attempt: Attempt, line: str) -> None:
    names = [str(_executed(attempt, line, {"stem": stem}).get("name")) for stem in STEMS]
    keys = Counter(name.partition(".")[0] for name in names)
    met = {stem: name for stem, name in zip(STEMS, names, strict=True) if keys[name.partition(".")[0]] > 1}
    suffixed = all(name.endswith(".jpg") for name in names)
    attempt.require(suffixed, names[0], "….jpg", "the suffix is the field")
    because = "webdataset takes what is before the first dot for the key"
    if set(met) == {"cat.v1", "cat%2Ev1"} and len(set(names)) < len(names):
        because = f"{_ONE_NAME}: a stem may hold %2E already, so write % as %25 first"
    elif len(set(names)) < len(names):
        because = f"{_ONE_NAME}: put something for the dot that no other name contains, as %2E"
    attempt.require(not met, met, "names that differ before the first dot", because)
    parts = [name.partition(".")[2] for name in names]
    attempt.require(set(parts) == {"jpg"}, parts, "the field jpg in each", "a dot before the suffix is left")


@check(buys="Each sample once, in a new view, and a job that is alive at the end of the epoch.")
def programs(attempt: Attempt) -> None:
    """`cures["D"]`, `cures["E"]`, `cures["F"]`: the marked line of each program, cured."""
    for letter, line in _begun(attempt, "DEF").items():
        attempt.given(f"job {letter}: {line}")
        {"D": _cured_views, "E": _cured_tensors, "F": _cured_names}[letter](attempt, line)
