"""`stage`: copy a packed output to this node, or from an archive to scratch."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from smallfiles.cli.arguments import Verbs, add_verb
from smallfiles.cli.output import in_seconds, print_json, say
from smallfiles.errors import UsageError
from smallfiles.options import add_flags, from_args
from smallfiles.staging.config import StageConfig

if TYPE_CHECKING:
    from smallfiles.staging import Staged

_MORE = """\
Prints the path of the copy on standard output and ends; the copy stays for the job (or, outside of
one, for the session of this shell), and the job's shell takes it away:

  staged=$(smallfiles stage train.arrow)
  trap 'smallfiles unstage "$staged"' EXIT

The trap stands outside of $(...): inside, it would fire before the data is used. What a killed job
leaves, the next `stage` on that node removes. One process of a node copies, all others wait and use
the same copy; every block is compared with the digest that was taken while packing.

With --to the copy goes to a folder that outlives the job, from an archive that compute nodes cannot
see to scratch; the same command goes on where an interrupted one ended."""


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "stage",
        "copy a packed file to storage of this node, once, verified",
        _MORE,
        [
            "smallfiles stage train.arrow",
            "smallfiles stage train.tars --where /dev/shm --leave-bytes 4000000000",
            "smallfiles stage train.tars --shards rank   # each rank its own shards",
            "smallfiles stage archive/train.tars --to scratch/data",
        ],
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="a packed file or folder of shards")
    add = parser.add_argument
    add("--to", type=Path, metavar="DIR", help="copy into this folder for good, resumable")
    add("--where", default="auto", metavar="DIR", help="node-local directory; auto chooses and says why")
    add("--keep", action="store_true", help="keep the copy beyond the job, until unstage")
    add_flags(parser, StageConfig)
    parser.set_defaults(run=run)


def config_of(arguments: argparse.Namespace) -> StageConfig:
    """The configuration that a parsed command line means."""
    return from_args(StageConfig, arguments)


def run(arguments: argparse.Namespace) -> int:
    """Stage and print the path."""
    from smallfiles import machine, staging

    config = config_of(arguments)
    machine.warn_on_login_node("staging", size_bytes=_bytes(arguments.out))
    if arguments.to is None:
        copy = staging.stage_for_job(arguments.out, arguments.where, config=config, keep=arguments.keep)
    elif arguments.where != "auto" or arguments.keep:
        raise UsageError(
            "--to was given together with --where or --keep",
            expected="either a folder for good (--to) or storage of this node",
            next_step="Leave one of them out",
        )
    else:
        copy = staging.stage_to(arguments.out, arguments.to, config=config)
    if arguments.json:
        print_json(copy.as_json())
    else:
        print(copy.path)
        _tell(copy)
    return 0


def _bytes(out: Path) -> int:
    """Size of the files, for a warning only: what cannot be read is told by who copies it."""
    try:
        return sum(path.stat().st_size for path in (out.iterdir() if out.is_dir() else [out]))
    except OSError:
        return 0


def _tell(copy: Staged) -> None:
    from smallfiles.progress import bytes_text

    done = "was there already" if copy.reused else f"copied at {bytes_text(copy.rate)}/s"
    say(f"{copy.path.name}: {bytes_text(copy.bytes)} {done}, ready after {in_seconds(copy.seconds)}")
    for note in copy.notes:
        say(f"note: {note}")
