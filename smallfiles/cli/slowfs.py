"""`slowfs`: show a folder through the latency of a parallel file system, until Ctrl-C."""

from __future__ import annotations

import argparse
import signal
from contextlib import closing
from time import perf_counter

from smallfiles.cli.arguments import Verbs, add_path, add_run
from smallfiles.cli.output import in_seconds, report, say
from smallfiles.errors import ResourceError
from smallfiles.options import add_flags, from_args
from smallfiles.processes import SIGNALS, held_back
from smallfiles.progress import bytes_text
from smallfiles.slowfs import SlowConfig

_LOOK_S = 0.25


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_run(verbs, "slowfs", run)
    add_path(parser, "dir", "DIR", "the folder to show; it is only read")
    add_path(parser, "mountpoint", "MOUNTPOINT", "an empty or new folder")
    add_flags(parser, SlowConfig)


def run(arguments: argparse.Namespace) -> int:
    """Show a folder through the latency of a parallel file system.

    DIR appears at MOUNTPOINT, read-only. Each look-up, open and listing is delayed there; up to --servers
    requests wait at the same time. Use the mount point in another terminal; Ctrl-C (or SIGTERM) unmounts it
    and prints the number of operations. It needs no root, but /dev/fuse and fusermount3.

    Examples:
        smallfiles slowfs data /tmp/slow
        smallfiles slowfs data /tmp/slow --latency-ms 5 --servers 8 --jitter 0.5
        smallfiles slowfs data /tmp/slow --latency-ms 0 --bandwidth-mb 200
    """
    from smallfiles.slowfs.mounting import Mount

    config = from_args(SlowConfig, arguments)
    with held_back(), closing(Mount(arguments.dir, config, arguments.mountpoint)) as mount:
        began = perf_counter()
        say(f"{mount.folder} is at {mount.point}, {config.summary()}; Ctrl-C unmounts it")
        while signal.sigtimedwait(SIGNALS, _LOOK_S) is None:
            if not mount.is_alive():
                raise ResourceError(
                    f"{mount.point} was unmounted by another program",
                    expected="it to stay until Ctrl-C",
                    next_step="Run the command again",
                )
    counts, seconds = mount.counts(), perf_counter() - began
    totals = {"samples": counts["open"], "bytes": counts["bytes"], "seconds": round(seconds, 3)}
    text = (
        f"{counts['lookup']:,} look-ups, {counts['open']:,} opens, {counts['list']:,} listings, "
        f"{bytes_text(counts['bytes'])} read in {in_seconds(seconds)}"
    )
    return report(arguments, totals | {"operations": counts}, text)
