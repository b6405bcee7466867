"""Trainers and fillers as programs, for tests that kill them; a trainer logs a digest of each batch."""

import hashlib
import multiprocessing.forkserver
import sys
import time
import warnings
from pathlib import Path

from ring_makers import Numbers

from smallfiles import ring
from smallfiles.errors import SmallfilesError
from smallfiles.loading.plan import EpochPlan

PLAN = EpochPlan(samples=50, batch=8, seed=5)


def digest(batch):
    return hashlib.sha256(bytes(batch["pixels"]) + bytes(batch["index"])).hexdigest()[:16]


def main(how, where, name, log, epochs, pause_s):
    """A trainer that attaches to a ring, or opens its own."""
    if how == "attach":
        loader = ring.attach(name, where=Path(where), wait_s=60)
    else:
        config = ring.RingConfig(name=name, slots=6, producers=2, where=Path(where))
        loader = ring.open_ring(Numbers(), PLAN, config)
    with loader, Path(log).open("a") as file:
        while loader.schedule.epoch < int(epochs):
            epoch, first = loader.schedule.epoch, loader.schedule.start
            for number, batch in enumerate(loader, first):
                file.write(f"{epoch} {number} {digest({k: v.numpy() for k, v in batch.items()})}\n")
                file.flush()
                for tensor in batch.values():
                    tensor.zero_()  # training may do what it likes with its batch
                time.sleep(float(pause_s))


def fill(where, name, epochs, delay_s, seed="0"):
    """A filler without a trainer."""
    config = ring.RingConfig(name=name, epochs=int(epochs), slots=6, producers=2, where=Path(where))
    filler = ring.Filler(
        Numbers(delay_s=float(delay_s)),
        EpochPlan(samples=50, batch=8, seed=5 + int(seed)),
        config,
        on_note=lambda sentence: print(sentence, file=sys.stderr, flush=True),
    )
    filler.run()


def run(*words):
    """One of them; its exit code."""
    multiprocessing.forkserver._forkserver.__init__()  # that of the parent is none of ours
    warnings.resetwarnings()
    warnings.showwarning = lambda message, *_, **__: print(message, file=sys.stderr)
    try:
        fill(*words[1:]) if words[0] == "fill" else main(*words)
    except SmallfilesError as error:
        print(error, file=sys.stderr)
        return 1
    return 0
