"""`ring`: fill a ring of ready batches for a training, show its status, remove leftovers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from smallfiles.cli.arguments import Verbs, add_run, add_verb
from smallfiles.cli.failures import FAILED
from smallfiles.cli.output import in_seconds, report, say
from smallfiles.loading.config import LoaderConfig
from smallfiles.options import add_flags, from_args
from smallfiles.progress import bytes_text, progress
from smallfiles.ring.config import RingConfig
from smallfiles.signals import SIGNALS, listening

if TYPE_CHECKING:
    from smallfiles.ring import Filler, RingStatus

_OF_A_BATCH = ("batch", "seed", "shuffle", "drop_last", "on_error", "rank", "world_size", "storage_timeout_s")


def add(verbs: Verbs) -> None:
    """Keep ready batches in shared memory, made by a program separate from the training.

    Batches are the same as those of the loader with the same seed. Each rank has its own ring: start one
    filler per rank, by srun, torchrun or mpirun, or with --rank and --world-size of `ring fill`.

    Examples:
        smallfiles ring fill train.arrow --name train --slots 800 --epochs 90
        smallfiles ring status train
    """
    ring = add_verb(verbs, "ring", add)
    topics = ring.add_subparsers(title="what to do", dest="what", metavar="WHAT")
    for name, run in {"fill": _fill, "status": _status, "clean": _clean}.items():
        parser = add_run(topics, name, run)
        if name == "fill":
            parser.add_argument("data", type=Path, metavar="DATA", help="a packed file")
            add_flags(parser, RingConfig, ("name", "where"))
            filling = parser.add_argument_group("how the ring is filled")
            add_flags(filling, RingConfig, ("slots", "producers", "epochs"))
            filling.add_argument("--size", type=int, default=224, metavar="PIXELS", help="side of the crops")
            add_flags(parser.add_argument_group("which samples are in a batch"), LoaderConfig, _OF_A_BATCH)
        else:
            parser.add_argument("paths", nargs="*", type=Path, metavar="NAME", help="a ring")
            add_flags(parser, RingConfig, ("where",))


def _fill(arguments: argparse.Namespace) -> int:
    """Make batches ahead of training and keep them in shared memory.

    Runs until all epochs are trained, or until Ctrl-C. The training attaches with
    smallfiles.ring.attach(NAME), and may start before or after this command. Batches hold random crops, as
    training takes them; for others call smallfiles.ring.open_ring in Python.

    Examples:
        smallfiles ring fill train.arrow --name train --slots 800 --epochs 90
        smallfiles ring fill train.arrow --batch 256 --size 192
    """
    from smallfiles import images
    from smallfiles.loading import SampleDataset, make_loader
    from smallfiles.ring import Filler, ring_name

    config = from_args(RingConfig, arguments)
    settings = replace(LoaderConfig.from_args(arguments), mode="main")
    loader = make_loader(arguments.data, settings, transform=images.RandomResizedCrop(arguments.size))
    assert isinstance(loader.dataset, SampleDataset)
    plan = loader.plan
    config = replace(config, name=ring_name(config.name or "train", plan.rank, plan.world_size))
    batches = None if config.epochs is None else config.epochs * plan.length()
    shown = progress(batches, f"filling ring {config.name}", unit="batches")
    fillers: list[Filler] = []

    def stop() -> None:
        for filler in fillers:
            filler.stop()

    with shown as bar, listening(SIGNALS, stop) as came:
        filler = Filler(loader.dataset.maker, plan, config, on_note=say, on_made=bar.advance)
        fillers.append(filler)
        if came:
            filler.stop()
        say(f"{filler.status().sentence()}; Ctrl-C ends it")
        filler.run()
    last = filler.status()
    totals = {"samples": last.consumed * plan.batch, "bytes": last.consumed * last.slot_bytes}
    summary = (
        f"made {last.made:,} batches in {in_seconds(last.seconds)}, {last.consumed:,} of them trained; "
        f"training waited {in_seconds(last.waited_s)}; {last.restarts} producers restarted"
    )
    return report(arguments, totals | asdict(last), summary)


def _status(arguments: argparse.Namespace) -> int:
    """Show the progress of filler and training.

    Shows all your rings if no name is given.

    Examples:
        smallfiles ring status train
    """
    from smallfiles import ring

    where = from_args(RingConfig, arguments).where
    names = [str(name) for name in arguments.paths] or ring.names(where)
    found = [ring.status(name, where) for name in names]
    size = sum(each.slots * each.slot_bytes for each in found)
    record = {"bytes": size, "rings": [asdict(each) for each in found]}
    report(arguments, record, *(line for each in found for line in _lines(each)))
    if not found:
        say(f"you have no ring in {where}")
    return FAILED if any(each.state == "gone" for each in found) else 0


def _lines(ring: RingStatus) -> Iterator[str]:
    yield ring.sentence() + (f"; {bytes_text(ring.slots * ring.slot_bytes)}" if ring.slots else "")
    yield from (f"  {note}" for note in ring.notes)


def _clean(arguments: argparse.Namespace) -> int:
    """Remove the files of killed fillers.

    They take a few kilobytes; batches never stay behind. Cleans all your rings if no name is given.

    Examples:
        smallfiles ring clean
    """
    from smallfiles import ring

    where = from_args(RingConfig, arguments).where
    existing = ring.names(where)
    names = [str(name) for name in arguments.paths] or existing
    for name in names:
        if name not in existing:
            raise ring.missing(name, where)
    removed = [name for name in names if ring.remove_leftover(name, where)]
    alive = [name for name in names if name not in removed]
    if not names:
        say(f"you have no ring in {where}")
    lines = [f"removed what was left of ring {name}" for name in removed]
    return report(
        arguments,
        {"removed": removed, "alive": alive},
        *lines,
        *(f"ring {name} is in use and stays" for name in alive),
    )
