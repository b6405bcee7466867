"""`train`: a small real training that reports how long it waited for data; `epoch`: only read, and count;
`ring`: fill a ring of ready batches for a training, show its status, remove leftovers.
"""

from __future__ import annotations

import argparse
import faulthandler
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smallfiles.cli.arguments import Verbs, add_run, add_verb
from smallfiles.cli.output import FAILED, in_seconds, report, say, size_of
from smallfiles.errors import UsageError, first_few
from smallfiles.loading import LoaderConfig
from smallfiles.machine import warn_on_login_node
from smallfiles.machine.ranks import ranks
from smallfiles.options import add_flags, explicit_fields, from_args
from smallfiles.processes import SIGNALS, listening
from smallfiles.progress import bytes_text, plural, progress
from smallfiles.ring import RingConfig
from smallfiles.selection import DRAWS
from smallfiles.training import TrainConfig, check_ring

if TYPE_CHECKING:
    from smallfiles.measure.ranks import Count
    from smallfiles.ring import Filler, RingStatus
    from smallfiles.training import TrainReport

INTERRUPTED = 75
"""Exit code of a training that was asked to stop (sysexits' EX_TEMPFAIL: try again later)."""

_DONE = {"skip": "left out", "repeat": "replaced by a neighbour", "keep": "kept although damaged"}

_OF_A_BATCH = (
    *("batch", "seed", "shuffle", "drop_last", "on_error", "rank", "world_size", "storage_timeout_s"),
    *(name for name in DRAWS if name != "where"),  # which is the folder of a ring
)


def add(verbs: Verbs) -> None:
    """Add the verbs."""
    parser = add_run(verbs, "train", run)
    what = "a packed file with labels, masks or numbers; none with --mix"
    parser.add_argument("data", type=Path, nargs="?", metavar="OUT", help=what)
    _add_mix(parser)
    parser.add_argument("--val", type=Path, metavar="OUT", help="measure on this one after each epoch")
    add_flags(parser, TrainConfig)
    add_flags(parser.add_argument_group("how batches are made"), LoaderConfig)
    parser = add_run(verbs, "epoch", run_epoch)
    what = "a packed file and a folder; with --mix the folder alone"
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH", help=what)
    _add_mix(parser)
    parser.add_argument("--count", action="store_true", help="evaluate the records of a folder")
    add_flags(parser, LoaderConfig)
    _add_ring(verbs)


def _add_mix(parser: argparse.ArgumentParser) -> None:
    what = "a set and its share of each epoch, such as a.arrow=0.7; repeat for each set of a mixture"
    parser.add_argument("--mix", action="append", default=[], type=_share, metavar="PATH=SHARE", help=what)


def _share(text: str) -> tuple[str, float]:
    path, _, share = text.rpartition("=")
    with suppress(ValueError):
        if path:
            return path, float(share)
    raise argparse.ArgumentTypeError(f"{text!r}; expected PATH=SHARE, such as a.arrow=0.7")


def _mixture(arguments: argparse.Namespace) -> dict[str, float]:
    """Return the share of each set; two shares of one set would replace each other."""
    paths = [path for path, _ in arguments.mix]
    if twice := [path for path in paths if paths.count(path) > 1]:
        raise UsageError(
            f"--mix names {twice[0]} twice",
            expected="each set once",
            next_step="Give it the sum of its shares",
        )
    return dict(arguments.mix)


def run(arguments: argparse.Namespace) -> int:
    """Train a small network on a packed file and report how long it waited for data.

    It learns the label; or the classes of pixels in a mask, or a number, where that is the only field.

    Under srun, torchrun or mpirun each rank trains on its share, without further options. SIGTERM and SIGUSR1
    stop it: it writes a checkpoint and exits with code 75, and the same command resumes from there.

    Examples:
        smallfiles train train.arrow --val val.arrow
        torchrun --nproc-per-node 2 -m smallfiles train train.arrow --workers 2
        smallfiles train train.arrow --model resnet50 --size 224 --max-steps 100
        smallfiles train train.arrow --checkpoint run1 --every 100
        smallfiles train s3://course/train.tars
        smallfiles train streets.arrow --target mask
        smallfiles train all.arrow --split train --where "age is not None and age > 40"
        smallfiles train all.arrow --balance label
        smallfiles train --mix a.arrow=0.7 --mix b.tars=0.3
    """
    with suppress(AttributeError, ValueError, OSError):  # no standard error
        faulthandler.enable()  # a truncated mapped file ends the process by a signal
    with listening() as asked_to_stop:
        from smallfiles import training

        config = from_args(TrainConfig, arguments, loader=LoaderConfig.from_args(arguments))
        check_ring(config, arguments.val is not None, explicit_fields(LoaderConfig, arguments))
        mix = _mixture(arguments)
        if (arguments.data is None) != bool(mix):
            raise UsageError(
                f"{arguments.data} was given together with --mix" if mix else "no packed file was given",
                expected="one packed file, or --mix PATH=SHARE for each set",
                next_step="See smallfiles train --help",
            )
        size = sum(map(size_of, map(Path, mix or [arguments.data])))
        warn_on_login_node("training", size_bytes=size * config.epochs)
        done = training.train(mix or arguments.data, arguments.val, config, asked_to_stop)
    if ranks().rank == 0:
        if done.resumed_at and done.resumed_at[0] >= config.epochs:
            say(f"all {config.epochs} epochs were trained before; ask for more with --epochs")
        elif done.resumed_at:
            say("resumed at epoch {}, step {}".format(*done.resumed_at))
        report(arguments, _as_json(done), *_lines(done, config))
        if done.interrupted:
            kept = f"; the same command resumes from {config.checkpoint}" if config.checkpoint else ""
            say(f"stopped by a signal{kept}")
    return INTERRUPTED if done.interrupted else 0


def _as_json(done: TrainReport) -> dict[str, Any]:
    last = done.epochs[-1] if done.epochs else None
    return {
        "samples": sum(each.samples for each in done.epochs),
        "seconds": sum(each.seconds for each in done.epochs),
        "accuracy": last.accuracy if last else None,
        "waiting_share": last.waiting_share if last else None,
        "interrupted": done.interrupted,
        "resumed_at": done.resumed_at,
        "faults": sum(each.fault_count for each in done.epochs),
        "epochs": [asdict(each) for each in done.epochs],
    }


def _lines(done: TrainReport, config: TrainConfig) -> Iterator[str]:
    for each in done.epochs:
        accuracy = "" if each.accuracy is None else f", {each.measure} {each.accuracy:.3f}"
        first = max(float(rank["first_batch_s"]) for rank in each.ranks)
        yield (
            f"epoch {each.epoch}: {each.samples:,} samples in {in_seconds(each.seconds)}, "
            f"{each.rate:,.0f} samples/s, {each.waiting_share:.0%} of it waiting for data "
            f"(first batch after {in_seconds(first)}), loss {each.loss:.3f}{accuracy}"
        )
        if each.fault_count:
            named = (f"{fault['key']} ({fault['reason']})" for fault in each.faults)
            what = _DONE.get(config.loader.on_error, "damaged")
            yield f"  {plural(each.fault_count, 'sample')} {what}: {first_few(named, each.fault_count)}"
    if done.epochs and len(done.epochs[-1].ranks) > 1:
        for rank in done.epochs[-1].ranks:
            yield f"  rank {rank['rank']} on node {rank['node']}: {rank['samples']:,} samples"


def run_epoch(arguments: argparse.Namespace) -> int:
    """Read an epoch on all ranks, and check that every sample comes once.

    Under srun, torchrun or mpirun each rank reads its share and writes a record into the folder. Afterwards,
    run it once with --count: it evaluates the records and exits with 1 unless every sample came exactly once.

    Examples:
        smallfiles epoch train.arrow seen --workers 2   # under srun or torchrun
        smallfiles epoch --count seen
        smallfiles epoch --mix a.arrow=0.7 --mix b.tars=0.3 seen
    """
    from smallfiles.measure import ranks

    if len(arguments.paths) != (1 if arguments.count or arguments.mix else 2):
        raise UsageError(
            f"{plural(len(arguments.paths), 'path')} given",
            expected="--count FOLDER"
            if arguments.count
            else "a folder for the records, and a packed file or --mix PATH=SHARE for each set",
            next_step="See smallfiles epoch --help",
        )
    if arguments.count and (arguments.mix or explicit_fields(LoaderConfig, arguments)):
        raise UsageError(
            "--count is given together with flags of a loader, but reads no samples",
            expected="--count FOLDER",
            next_step="Leave the others out",
        )
    if arguments.count:
        found = ranks.count(arguments.paths[0])
        report(arguments, _counted(found), *_of_ranks(found))
        return 0 if found.exact else FAILED
    *packed, folder = arguments.paths
    share = ranks.read_share(_mixture(arguments) or packed[0], folder, LoaderConfig.from_args(arguments))
    summary = (
        f"rank {share.rank} of {share.world_size} on {share.node}: {share.samples:,} samples "
        f"in {in_seconds(share.seconds)} with {share.cpus} CPUs"
    )
    return report(arguments, asdict(share), summary, *([share.drawn] if share.drawn else []))


def _counted(found: Count) -> dict[str, object]:
    return {
        "samples": sum(share.samples for share in found.shares),
        "bytes": sum(share.bytes for share in found.shares),
        "seconds": max(share.seconds for share in found.shares),
        "exactly_once": found.exact,
        "lost": list(found.lost),
        "repeated": list(found.repeated),
        "drawn": found.shares[0].drawn,
        "ranks": [asdict(share) for share in found.shares],
    }


def _of_ranks(found: Count) -> Iterator[str]:
    for share in found.shares:
        yield f"rank {share.rank} on {share.node}: {share.samples:,} samples in {in_seconds(share.seconds)}"
    yield found.sentence()


def _add_ring(verbs: Verbs) -> None:
    """Keep ready batches in shared memory, made by a program separate from the training.

    Batches are the same as those of the loader with the same seed. Each rank has its own ring: start one
    filler per rank, by srun, torchrun or mpirun, or with --rank and --world-size of `ring fill`.

    Examples:
        smallfiles ring fill train.arrow --name train --slots 800 --epochs 90
        smallfiles ring status train
    """
    ring = add_verb(verbs, "ring", _add_ring)
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
    settings = replace(LoaderConfig.from_args(arguments), mode="main", where=None)  # that of the ring
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
    report(arguments, record, *(line for each in found for line in _of_ring(each)))
    if not found:
        say(f"you have no ring in {where}")
    return FAILED if any(each.state == "gone" for each in found) else 0


def _of_ring(ring: RingStatus) -> Iterator[str]:
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
