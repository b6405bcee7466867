"""`push`, `pull`, `ls` and `s3-server`: packed outputs in an object store."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from smallfiles.cli.arguments import Verbs, add_run
from smallfiles.cli.output import in_seconds, print_json, report, say
from smallfiles.keys import printable
from smallfiles.objectstore.config import TransferConfig
from smallfiles.options import add_flags, from_args
from smallfiles.progress import bytes_text, plural
from smallfiles.signals import SIGNALS, held_back

if TYPE_CHECKING:
    from smallfiles.objectstore import Moved


def add(verbs: Verbs) -> None:
    """Add the verbs."""
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
