"""The command line: inspect, verify and pack images, without mounting them.

Exit codes: 0 done, 1 a failure (one sentence) or a verification that found damage, 2 a senseless command
line. Data goes to standard output, messages to standard error.

The trap: names in an image are bytes and may contain line feeds or terminal control sequences. So lists
show them escaped, and --json shows them exactly. Notebook 06 uses most verbs.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from pysquashfs import text
from pysquashfs.errors import SquashFSError

if TYPE_CHECKING:
    from pysquashfs.image import SquashFS

FAILED, USAGE, INTERRUPTED, PIPE_CLOSED = 1, 2, 130, 141

_WHY = """\
Squashfs images without a mount or root.

  python -m pysquashfs pack photos photos.sqfs        a folder becomes one file
  python -m pysquashfs info photos.sqfs               how it is made, and why it is slow if it is
  python -m pysquashfs list photos.sqfs train
"""


def build_parser() -> argparse.ArgumentParser:
    """The parser with all verbs."""
    parser = argparse.ArgumentParser(
        prog="python -m pysquashfs", description=_WHY, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(title="verbs", dest="verb", metavar="VERB", required=True)

    def verb(name: str, why: str, run: Callable[[argparse.Namespace], int]) -> Callable[..., Any]:
        added = verbs.add_parser(name, help=why, description=why[0].upper() + why[1:])
        added.add_argument("--json", action="store_true", help="print one JSON object on standard output")
        added.add_argument("--debug", action="store_true", help="show the traceback of an unexpected error")
        added.set_defaults(run=run)
        if name != "pack":
            added.add_argument("image", type=Path, metavar="IMAGE")
        known = ("python", "libsquashfs") if name == "pack" else ("auto", "python", "libsquashfs")
        if name != "mount":
            added.add_argument(
                "--backend",
                choices=known,
                default=known[0],
                help="which implementation (default: %(default)s)",
            )
        return added.add_argument

    add = verb("list", "list what is in an image, or in a folder of it", _list)
    add("folder", nargs="?", default="", metavar="FOLDER", help="list what is below it")
    verb("info", "show how an image is made, and why it is slow if it is", _info)
    _add_pack(verb("pack", "pack a folder into one image", _pack))
    add = verb("mount", "show an image as a folder until Ctrl-C; without root if FUSE is available", _mount)
    add("folder", type=Path, nargs="?", metavar="FOLDER", help="where; a temporary folder if not given")
    verb("verify", "read everything in an image once; exit code 1 if something is damaged", _verify)
    return parser


def _add_pack(add: Callable[..., Any]) -> None:
    add("source", type=Path, metavar="DIR", help="the folder; links to files are followed")
    add("out", type=Path, metavar="IMAGE", help="a name that does not exist yet")
    add(
        "--compression",
        choices=("none", "gzip", "zstd", "xz"),
        default="none",
        help="xz with libsquashfs only",
    )
    add("--level", type=int, metavar="N", help="of the compressor")
    add("--block-bytes", type=int, default=131072, metavar="N", help="4096 to 1048576, a power of two")
    add("--fragments", action="store_true", help="share blocks between file ends: smaller, slow at random")
    add("--overwrite", action="store_true", help="replace an image of that name")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line.

    Args:
        argv: The words after the program's name; None takes them from the process.

    Returns:
        The exit code.
    """
    if argv is None:
        text.restart_in_utf8_mode()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # for an ASCII locale, or a name that is not UTF-8
    try:
        arguments = build_parser().parse_args(argv)
    except SystemExit as stop:  # argparse exits after --help (0) and after bad usage (2)
        return int(stop.code or 0)
    try:
        code: int = arguments.run(arguments)
        if sys.stdout is not None:  # closed by the caller (>&-)
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except KeyboardInterrupt:
        _say("interrupted; nothing unfinished was left")
        return INTERRUPTED
    except Exception as error:
        if arguments.debug:
            traceback.print_exc()
        _say(f"error: {_sentence(error)}")
        return FAILED


def _sentence(error: Exception) -> str:
    if isinstance(error, SquashFSError):
        return str(error)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}; expected it to work. Check path, permissions and space."
    return f"this is a bug ({type(error).__name__}: {error}). Run it again with --debug and report it."


def _open(arguments: argparse.Namespace) -> SquashFS:
    from pysquashfs.image import SquashFS

    return SquashFS(arguments.image, arguments.backend)


def _list(arguments: argparse.Namespace) -> int:
    with _open(arguments) as image:
        paths = image.list(arguments.folder)
        if arguments.json:
            _print_json(
                {"image": str(arguments.image), "entries": [vars(image.stat(path)) for path in paths]}
            )
            return 0
        for path in paths:
            print(path if path.isprintable() else ascii(path)[1:-1])
    return 0


def _info(arguments: argparse.Namespace) -> int:
    with _open(arguments) as image:
        facts = {"image": str(arguments.image), **image.info()}
    if arguments.json:
        _print_json(facts)
        return 0
    findings, recommended = facts.pop("findings"), facts.pop("recommended")
    width = max(map(len, facts))
    for name, value in facts.items():
        text = (
            f"{value:,}" if isinstance(value, int) else f"{value:.3g}" if isinstance(value, float) else value
        )
        print(f"{name.replace('_', ' '):<{width}}  {text}")
    for finding in findings:
        print(f"- {finding}")
    if recommended:
        print(f"Better:\n  {recommended}")
    return 0


def _pack(arguments: argparse.Namespace) -> int:
    from pysquashfs.writer import folder_items, pack

    began = perf_counter()
    names = ("compression", "level", "block_bytes", "fragments", "overwrite", "backend")
    chosen = {name: getattr(arguments, name) for name in names}
    found = pack(arguments.out, folder_items(arguments.source), **chosen)
    _report(arguments, vars(found), began, f"packed {found.files:,} files into {found.path}")
    return 0


def _mount(arguments: argparse.Namespace) -> int:
    import signal

    from pysquashfs.mounting import mount

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)  # first: who sees the folder may stop us at once, and it must go
    try:
        with mount(arguments.image, arguments.folder) as where:
            if arguments.json:
                _print_json({"image": str(arguments.image), "folder": str(where)})
            else:
                print(where)
            sys.stdout.flush()
            _say("mounted until Ctrl-C")
            while True:
                signal.pause()
    except KeyboardInterrupt:
        return 0


def _verify(arguments: argparse.Namespace) -> int:
    began = perf_counter()
    with _open(arguments) as image:
        found = image.verify()
    summary = f"{found.files:,} files read, {len(found.faults):,} faults"
    _report(arguments, {**vars(found), "ok": found.ok}, began, summary)
    for line in found.faults:
        _say(f"damaged: {line}")
    for line in found.notes:
        _say(f"note: {line}")
    return 0 if found.ok else FAILED


def _report(arguments: argparse.Namespace, facts: dict[str, Any], began: float, summary: str) -> None:
    seconds = perf_counter() - began
    if arguments.json:
        _print_json({**facts, "seconds": round(seconds, 3)})
    else:
        _say(f"{summary}: {facts['bytes']:,} bytes in {seconds:.1f} s")


def _print_json(record: dict[str, Any]) -> None:
    print(json.dumps(record, indent=2, default=str))  # ASCII, so that names that are not UTF-8 stay exact


def _say(message: str) -> None:
    print(message, file=sys.stderr)
