"""The command line: one shape for all verbs, thin over the package.

Each verb is a module that adds its flags and, when chosen, imports what it needs: `--help` must
answer at once on a busy login node, so nothing heavy is imported before. Exit codes: 0 done, 1 a
failure told in a sentence (or a verification that found damage), 2 a command line that makes no
sense, 3 a verification with nothing to compare with. Notebook 00 uses it first; each "On the
cluster" section ends in one of its commands.

The trap: data goes to standard output and messages to standard error, so that
`smallfiles … --json | jq .samples` works while a progress bar is drawn.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

from pysquashfs.text import restart_in_utf8_mode
from smallfiles import __version__, storage
from smallfiles.cli.arguments import HelpFormatter, Parser, add_common_flags, refuse_paths_of_elsewhere
from smallfiles.cli.output import escape_unencodable, guarded, say
from smallfiles.processes import end_by

_MODULES = (
    *("start", "pack", "verify", "transfer"),
    *("bench", "train", "simulate"),
)
"""Of the verbs, in the order of the help."""

_WHY = """\
Small files, big machines: turn a tree of many small files into a few packed ones that a parallel
file system and a GPU like. The usual way through the verbs:

  smallfiles doctor                              what is this machine, what is missing
  smallfiles synth data --layout folder --count 3000
  smallfiles manifest data -o data.json          which samples, with which targets
  smallfiles pack data.json train.arrow          many files become one, verified
  smallfiles verify train.arrow --against data.json
  smallfiles bench read train.arrow              what did it buy

`smallfiles demo` does all of this on one page. Each verb has its own --help.
"""


def build_parser() -> Parser:
    """Build the parser with all verbs. This is cheap, since verbs import what they need when they run."""
    parser = Parser(prog="smallfiles", description=_WHY, formatter_class=HelpFormatter)
    parser.add_argument("--version", action="version", version=f"smallfiles {__version__}")
    parser.set_defaults(parser=parser)
    verbs = parser.add_subparsers(title="verbs", dest="verb", metavar="VERB")
    for name in _MODULES:
        import_module(f"smallfiles.cli.{name}").add(verbs)
    add_common_flags(parser)
    return parser


def flags_of_verbs(parser: argparse.ArgumentParser | None = None, name: str = "") -> dict[str, set[str]]:
    """Return the flags of each verb, and of each topic of a verb (`bench read`)."""
    below = _choices(parser := parser or build_parser())
    found = {} if below else {name: set(parser._option_string_actions)}
    for each, one in below.items():
        found |= flags_of_verbs(one, f"{name} {each}".strip())
    return found


def parse(
    argv: Sequence[str] | None = None, arguments: argparse.Namespace | None = None
) -> argparse.Namespace:
    """Parse a command line, with paths before, between or behind the flags.

    argparse takes several paths in one run only: of `bench read --count 9 x.arrow` it makes no path
    and one word too many.

    Args:
        argv: The words after the program's name; None takes them from the process.
        arguments: What to fill; it has what was understood when a word makes no sense.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    found = argparse.Namespace() if arguments is None else arguments
    program = build_parser()
    words, stranger = _without_program(program, words)
    _, rest = program.parse_known_args(_topic_first(program, words), found)
    parser: Parser = found.parser  # that of the verb, or of its topic
    takes_several = hasattr(found, "paths")
    if rest and (not takes_several or any(word.startswith("-") for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if not hasattr(found, "run"):  # a word is missing: say which ones there are
        parser.print_help(sys.stderr)
        parser.exit(2)
    if stranger:
        found.program = stranger
    if rest:
        found.paths = [*found.paths, *map(Path, rest)]
    return found


def _without_program(program: Parser, words: list[str]) -> tuple[list[str], list[str]]:
    """Separate the words of somebody's program, which are its own: `profile --seconds 9 -- python x.py`.

    It begins behind `--`, or with the first word that is neither a flag nor the value of one.
    """
    if words[:1] not in (["profile"], ["audit"]):
        return words, []
    flags, at = _choices(program)[words[0]]._option_string_actions, 1
    while at < len(words) and words[at].startswith("-") and words[at] != "--":
        name, _, value = words[at].partition("=")
        fits = [action for flag, action in flags.items() if flag == name]
        fits = fits or [action for flag, action in flags.items() if flag.startswith(name)]
        if fits and fits[0].nargs == "+":
            return words, []  # all words behind --join are records
        at += 2 if fits and fits[0].nargs is None and not value else 1
    return words[:at], words[at + (words[at : at + 1] == ["--"]) :]


def _topic_first(program: Parser, words: list[str]) -> list[str]:
    """Move the topic right after its verb: `bench --count 9 read` becomes `bench read --count 9`."""
    verb = _choices(program).get(words[0]) if words else None
    topics = {} if verb is None else _choices(verb)
    at = next((at for at, word in enumerate(words) if word in topics and at), None)
    if at is None or "--help" in words[:at] or "-h" in words[:at]:
        return words
    return [words[0], words[at], *words[1:at], *words[at + 1 :]]


def _choices(parser: argparse.ArgumentParser) -> dict[str, Parser]:
    """Return the verbs of a program, or the topics of a verb."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return {name: each for action in below for name, each in action.choices.items()}


def _show_warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    """Print a warning about a file as a note, without the line of code that it came from."""
    if issubclass(category, UserWarning):
        say(f"note: {message}")
    else:
        _python_shows(message, category, *where, **more)


_python_shows = warnings.showwarning


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line.

    Args:
        argv: The words after the program's name; None takes them from the process.

    Returns:
        The exit code: 0 done, 1 failed with a sentence, 2 nonsensical, 3 nothing to verify with,
        130 interrupted. `profile` and `audit` end as its program ended, also by a signal.
    """
    if argv is None:
        restart_in_utf8_mode()
    escape_unencodable(sys.stdout, sys.stderr)
    arguments = argparse.Namespace(began=perf_counter())

    def run(_: argparse.Namespace) -> int:
        try:
            parse(argv, arguments)
        except SystemExit as stop:  # argparse leaves this way after --help (0) and after bad usage (2)
            return int(stop.code or 0)
        timeout_s = getattr(arguments, "storage_timeout_s", storage.TIMEOUT_S)
        with storage.timeout(timeout_s), warnings.catch_warnings():
            warnings.showwarning = _show_warning
            refuse_paths_of_elsewhere(arguments)
            return int(arguments.run(arguments))

    code = guarded(run, arguments)
    if code < 0 and argv is None:
        end_by(-code)
    return code if code >= 0 else 128 - code
