"""Copy packed outputs: to this node (`stage`, `unstage`, `staged`) or an object store (`push`, `pull`, `ls`).

`stage --to` copies from an archive to scratch instead, permanently. `s3-server` serves a folder as an object
store.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from smallfiles.cli.arguments import Verbs, add_path, add_run
from smallfiles.cli.output import in_seconds, print_json, report, say, size_of
from smallfiles.errors import UsageError, printable
from smallfiles.objectstore.access import TransferConfig
from smallfiles.options import add_flags, from_args
from smallfiles.processes import SIGNALS, held_back
from smallfiles.progress import bytes_text, plural, say_notes
from smallfiles.staging import StageConfig

if TYPE_CHECKING:
    from smallfiles.objectstore import Moved
    from smallfiles.staging.run import Copy


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
    _add_of_stores(verbs)


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


def _add_of_stores(verbs: Verbs) -> None:
    push, pull = add_run(verbs, "push", run_push), add_run(verbs, "pull", run_pull)
    push.add_argument("out", type=Path, metavar="OUT", help="a packed file or folder of shards")
    push.add_argument("url", metavar="S3://…", help="bucket and prefix, for this data set alone")
    pull.add_argument("url", metavar="S3://…", help="where it was pushed to")
    pull.add_argument("out", type=Path, metavar="OUT", help="the packed file or folder to make")
    for parser in (push, pull):
        add_flags(parser, TransferConfig)
    add_run(verbs, "ls", run_ls).add_argument("url", metavar="S3://…", help="bucket and prefix")
    server = add_run(verbs, "s3-server", run_server)
    server.add_argument("dir", type=Path, metavar="DIR", help="its folders are the buckets")
    help = "port to listen on; by default a free one"
    server.add_argument("--port", type=int, default=0, metavar="N", help=help)


def run_push(arguments: argparse.Namespace) -> int:
    """Send a packed output to an object store, verified, resumable.

    The manifest smallfiles.json is sent last, so an interrupted push never looks complete; the same command
    sends what is missing. Every part is verified. Objects of another data set are never replaced.

    The store and your keys are those of AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or of
    a profile in ~/.aws, as for other S3 tools.

    Examples:
        smallfiles push train.tars s3://course/train
    """
    from smallfiles import objectstore

    config = from_args(TransferConfig, arguments)
    return _report(arguments, objectstore.push(arguments.out, arguments.url, config=config), "sent")


def run_pull(arguments: argparse.Namespace) -> int:
    """Fetch a data set from an object store, verified, resumable.

    Each block is compared with the digest that was taken while packing. The file or folder appears under its
    name when it is complete; the same command continues an interrupted one.

    The store and your keys are those of AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or of
    a profile in ~/.aws, as for other S3 tools.

    Examples:
        smallfiles pull s3://course/train train.tars
    """
    from smallfiles import objectstore

    config = from_args(TransferConfig, arguments)
    return _report(arguments, objectstore.pull(arguments.url, arguments.out, config=config), "fetched")


def _report(arguments: argparse.Namespace, moved: Moved, done: str) -> int:
    report(arguments, moved.as_json(), moved.url if done == "sent" else moved.path)
    moving = bytes_text(moved.bytes - moved.kept_bytes)
    say(
        f"{plural(moved.objects, 'object')}, {plural(moved.samples, 'sample')}: "
        f"{moving} {done} in {in_seconds(moved.seconds)}, {bytes_text(moved.rate)}/s"
        + (f"; {bytes_text(moved.kept_bytes)} were there already" if moved.kept_bytes else "")
    )
    return 0


def run_ls(arguments: argparse.Namespace) -> int:
    """List what an object store holds.

    Shows the objects with their samples and bytes, and whether the data set is complete.

    The store and your keys are those of AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or of
    a profile in ~/.aws, as for other S3 tools.

    Examples:
        smallfiles ls s3://course/train
        smallfiles ls s3://course
    """
    from smallfiles import objectstore

    found = objectstore.ls(arguments.url)
    samples = {item.name: f"{item.samples:,}" for item in found.catalog.items} if found.catalog else {}
    lines = (
        f"{bytes_text(entry.bytes):>9} {samples.get(entry.name, ''):>9}  {printable(entry.name)}"
        for entry in found.entries
    )
    report(arguments, found.as_json(), *lines)
    catalog = found.catalog
    say(
        f"{found.url}: not complete: {found.note}"
        if found.note or catalog is None
        else f"{found.url}: {catalog.name}, {plural(catalog.samples, 'sample')} in "
        f"{plural(len(catalog.items), 'object')}, {bytes_text(catalog.bytes)}, complete"
    )
    return 0


def run_server(arguments: argparse.Namespace) -> int:
    """Serve a folder of this machine as an object store.

    For trying and teaching. The folders in DIR are the buckets. It listens on this machine only, with new
    keys each time. On a terminal it prints them as export lines and runs until Ctrl-C. With

      eval "$(smallfiles s3-server DIR)"

    it runs in the background, the shell or job script gets the keys, and it ends with that shell (or earlier:
    kill $SMALLFILES_S3_SERVER).

    Examples:
        smallfiles s3-server store
        mkdir -p store/course
        eval "$(smallfiles s3-server store)"
    """
    from smallfiles.objectstore.server import Server

    in_foreground = sys.stdout.isatty()
    until = None if in_foreground else os.getppid()
    with held_back(), closing(Server(arguments.dir, arguments.port, until=until)) as server:
        variables = server.environment | {"SMALLFILES_S3_SERVER": str(server.pid)}
        if arguments.json:
            print_json({"pid": server.pid, "port": server.port, "environment": server.environment})
        else:
            exports = (f"export {name}={shlex.quote(value)}" for name, value in variables.items())
            print("\n".join(exports), flush=True)
        say(f"{arguments.dir} is served at {server.environment['AWS_ENDPOINT_URL']}")
        if in_foreground:
            say("to use it, run the lines above in another terminal; Ctrl-C ends it")
            signal.sigwait(SIGNALS)
        else:
            server.detach()
    return 0
