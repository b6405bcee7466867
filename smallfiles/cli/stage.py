"""`stage`, `unstage`, `staged`: copy a packed output to this node, release it, list the copies.

`stage --to` copies from an archive to scratch instead, permanently.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from smallfiles.cli.arguments import Verbs, add_path, add_run
from smallfiles.cli.output import in_seconds, report, say, size_of
from smallfiles.errors import UsageError
from smallfiles.options import add_flags, from_args
from smallfiles.progress import bytes_text, plural, say_notes
from smallfiles.staging.config import StageConfig

if TYPE_CHECKING:
    from smallfiles.staging.copies import Copy


def add(verbs: Verbs) -> None:
    """Add the verbs."""
    parser = add_run(verbs, "stage", _stage)
    add_path(parser, "out", "OUT", "a packed file or folder of shards")
    add = parser.add_argument
    where = parser.add_mutually_exclusive_group().add_argument
    where("--to", type=Path, metavar="DIR", help="copy into this folder permanently, resumable")
    where("--broadcast", action="store_true", help="in a job script: to all nodes of the job, read once")
    add("--dry-run", action="store_true", help="only say where it would go, and what would be read")
    add("--where", default="auto", metavar="DIR", help="node-local directory; auto chooses and says why")
    add_flags(parser, StageConfig)
    unstage, staged = add_run(verbs, "unstage", _unstage), add_run(verbs, "staged", _staged)
    add_path(unstage, "paths", "PATH", "the path that `stage` printed", nargs="*")
    help = "first remove the leftovers of ended processes and jobs"
    staged.add_argument("--sweep", action="store_true", help=help)
    for parser in (unstage, staged):
        add_path(parser, "--where", "DIR", "also look there", action="append", default=[])


def _stage(arguments: argparse.Namespace) -> int:
    """Copy a packed file to storage of this node, once, verified.

    Prints the path of the copy on standard output and ends; the copy belongs to the job (or, outside of one,
    to the session of this shell), which removes it at its end:

      staged=$(smallfiles stage train.arrow)
      trap 'smallfiles unstage "$staged"' EXIT

    The trap must be outside of $(...): inside, it would fire before the data is used. The next `stage` on
    the node removes what a killed job left. One process per node copies, all others wait and use the same
    copy; every block is compared with the digest from packing.

    With --broadcast, in a job script and without srun, every node of the job gets the copy at the same path,
    while shared storage is read once: sbcast of Slurm sends it. A node that it does not reach copies itself,
    which is said. Release it with: srun --ntasks-per-node=1 smallfiles unstage

    With --to the copy goes to a folder that outlives the job: to scratch, from an archive that compute nodes
    cannot see. Run the same command again to resume an interrupted copy.

    Examples:
        smallfiles stage train.arrow
        smallfiles stage train.tars --where /dev/shm --leave-bytes 4000000000
        smallfiles stage train.tars --broadcast     # all nodes of the job
        smallfiles stage archive/train.tars --to scratch/data
    """
    from smallfiles import machine, staging

    config = from_args(StageConfig, arguments)
    machine.warn_on_login_node("staging", size_bytes=size_of(arguments.out))
    if arguments.dry_run and arguments.to is None:
        return _dry_run(arguments, config)
    if arguments.broadcast:
        copy = staging.stage_broadcast(arguments.out, arguments.where, config=config)
    elif arguments.to is None:
        copy = staging.stage_for_job(arguments.out, arguments.where, config=config)
    elif arguments.where != "auto":
        raise UsageError(
            "--to was given together with --where",
            expected="either a permanent folder (--to) or storage of this node",
            next_step="Leave one of them out",
        )
    else:
        copy = staging.stage_to(arguments.out, arguments.to)
    report(arguments, copy.as_json(), copy.path)
    done = "was there already" if copy.reused else f"copied at {bytes_text(copy.rate)}/s"
    say(f"{copy.path.name}: {bytes_text(copy.bytes)} {done}, ready after {in_seconds(copy.seconds)}")
    say_notes(copy.notes)
    return 0


def _dry_run(arguments: argparse.Namespace, config: StageConfig) -> int:
    from smallfiles.staging.broadcast import dry_run

    found = dry_run(arguments.out, arguments.where, config, arguments.broadcast)
    read, saved = bytes_text(found["read_bytes"]), bytes_text(found["saved_bytes"])
    say(
        f"{bytes_text(found['bytes'])} to {found['place']} on {plural(found['nodes'], 'node')}: "
        f"{read} would be read from shared storage, {saved} less than by a copy per node"
    )
    say_notes(found["notes"])
    return report(arguments, found)


def _unstage(arguments: argparse.Namespace) -> int:
    """Release a staged copy; the last user removes it.

    Removes a copy if no process uses it and no other running job has a lease on it; otherwise prints who
    does. Without a path it releases all copies of this job, and removes the leftovers of ended jobs. A copy
    that is already removed is not an error, so that a trap may run twice. In a job script:

      trap 'smallfiles unstage "$staged"' EXIT

    Examples:
        smallfiles unstage
        smallfiles unstage /dev/shm/smallfiles-1000/4f…/data/train.arrow
    """
    from smallfiles import staging

    done = [staging.unstage(path) for path in arguments.paths] or staging.unstage_all(arguments.where)
    for one in done:
        say(f"{one.path}: {one.note}")
    return report(arguments, {"copies": [*map(vars, done)]})


def _staged(arguments: argparse.Namespace) -> int:
    """List what is staged on this node.

    Lists your own copies in the directories that SLURM_TMPDIR, LOCAL_SCRATCH, VSC_SCRATCH_NODE, L_SCRATCH,
    TMPDIR and SMALLFILES_NODE_LOCAL name, in /dev/shm, and in those given with --where. A leftover is a copy
    of a process or job that has ended; --sweep removes it, as the next `stage` would.

    Examples:
        smallfiles staged
        smallfiles staged --sweep
    """
    from smallfiles import staging

    removed = staging.sweep_all(arguments.where) if arguments.sweep else 0
    if removed:
        say(f"removed {removed:,} of ended processes or jobs")
    copies = staging.listing(arguments.where)
    if not copies:
        say("nothing of yours is staged on this node")
    size = sum(copy.bytes for copy in copies)
    record = {"bytes": size, "removed": removed, "copies": [*map(vars, copies)]}
    return report(arguments, record, *map(_line, copies))


def _line(copy: Copy) -> str:
    uses = ["in use"] * copy.in_use + [f"kept for {holder}" for holder in copy.kept_for]
    return (
        f"{copy.path}  {bytes_text(copy.bytes)}, {copy.state}, {in_seconds(copy.age_s)} old, "
        f"{', '.join(uses) or 'not in use'}; made by {copy.owner}"
    )
