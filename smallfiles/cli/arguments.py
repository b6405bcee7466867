"""Shared by several verbs: the layout of help, common flags, `-O key=value` for the options of a format.

The trap: the default formatter of argparse prints "(default: None)" behind each optional flag and re-wraps
examples; `HelpFormatter` does neither.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import inspect
import re
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from smallfiles.cli.output import escaped
from smallfiles.errors import UsageError
from smallfiles.folders import SourceOptions
from smallfiles.options import add_flags, explicit_fields, from_args
from smallfiles.progress import say_notes

if TYPE_CHECKING:
    from smallfiles.sources import Source

Verbs: TypeAlias = "argparse._SubParsersAction[Parser]"

_OF_WINDOWS = re.compile(r"[A-Za-z]:\\|\\\\")
FORMATS = "files, arrow, hdf5, tar, squashfs, or one of an installed package"


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Keeps examples as written, and shows only informative defaults."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default in (None, False, True) or isinstance(action.default, list | tuple):
            return action.help
        return super()._get_help_string(action)


class Parser(argparse.ArgumentParser):
    """A parser whose help fails on a full disk, as other output does."""

    def _print_message(self, message: str, file: Any = None) -> None:
        """Unlike argparse, raise errors of standard output, and do not print to standard error instead."""
        if message and file is not None:
            with contextlib.suppress(*[OSError] * (file is sys.stderr)):
                file.write(escaped(message))  # words of the command line are in it

    def error(self, message: str) -> NoReturn:
        """Add the flag or verb that was probably meant."""
        wrong = re.findall(r"(?<=invalid choice: ')[^']+", message)
        if message.startswith("unrecognized arguments: "):
            wrong = [word.partition("=")[0] for word in message.split()[2:] if word.startswith("-")]
        choices = [str(choice) for action in self._actions for choice in action.choices or ()]
        known = [*self._option_string_actions, *choices]
        for similar in get_close_matches(wrong[0], known, 1, 0.7) if wrong else ():
            message += f"; did you mean {similar}?"
        super().error(message)


def refuse_paths_of_elsewhere(arguments: argparse.Namespace) -> None:
    r"""Refuse the URL of a store where a verb reads files, and `D:\\out\\a.arrow`, which would become a file.

    Raises:
        UsageError: A path is one of Windows, or a URL.
    """
    for value in vars(arguments).values():
        for path in value if isinstance(value, list) else [value]:
            if str(path).startswith("s3:/") and arguments.verb in ("stage", "inspect", "verify", "annotate"):
                url = f"s3:/{str(path)[3:]}"  # a Path keeps one of the slashes
                pulling = f"Copy it first: smallfiles pull {url} {Path(path).stem}.tars"
                raise UsageError(f"{url} is in an object store", expected="a path", next_step=pulling)
            if isinstance(path, Path) and _OF_WINDOWS.match(str(path)) and not path.exists():
                parts = [part for part in re.split(r"[\\/]|^[A-Za-z]:", str(path)) if part]
                raise UsageError(
                    f"{path} is a path of Windows, and this is {sys.platform.capitalize()}",
                    expected="a path with / between its folders",
                    next_step=f"Write it as on Linux, for example {'/'.join(parts)}; WSL shows D: as /mnt/d",
                )


def add_verb(verbs: Verbs, name: str, documented: Callable[..., object]) -> Parser:
    """Add a verb, or a topic of one, whose help is a docstring.

    Args:
        verbs: The subparsers.
        name: The verb.
        documented: Its docstring has a summary line, details, and command lines below `Examples:`.
    """
    details, _, examples = (inspect.getdoc(documented) or f"{name}.").partition("\n\nExamples:\n")
    why, _, more = details.partition("\n\n")
    why, examples = why[:1].lower() + why[1:].rstrip("."), textwrap.indent(inspect.cleandoc(examples), "  ")
    parser = verbs.add_parser(
        name,
        help=why,
        description=f"{why}\n\n{more}",
        epilog=f"examples:\n{examples}",
        formatter_class=HelpFormatter,
    )
    parser.set_defaults(parser=parser)
    return parser


def add_path(parser: argparse.ArgumentParser, name: str, metavar: str, help: str, **more: Any) -> None:
    """Add a flag or a word that is a path."""
    parser.add_argument(name, type=Path, metavar=metavar, help=help, **more)


def add_run(verbs: Verbs, name: str, run: Callable[[argparse.Namespace], int]) -> Parser:
    """Add a verb whose help is the docstring of the function that it runs.

    Args:
        verbs: The subparsers.
        name: The verb.
        run: Gets the parsed command line and returns the exit code.
    """
    parser = add_verb(verbs, name, run)
    parser.set_defaults(run=run)
    return parser


def add_common_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that all verbs share after their own; for a verb with topics, to each topic."""
    parents = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    below = [each for action in parents for each in action.choices.values()]
    for each in below:
        add_common_flags(each)
    if not below:
        add = parser.add_argument_group("of all verbs").add_argument
        add("--json", action="store_true", help="print one JSON object on standard output")
        add("--debug", action="store_true", help="show the traceback of an unexpected error")


def add_source_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags for reading a folder, tar or manifest."""
    add_flags(parser.add_argument_group("how to read the source"), SourceOptions)


def load_source(path: Path, arguments: argparse.Namespace, **usual: Any) -> Source:
    """Read a folder, an archive or a manifest with the flags of `add_source_flags`, and print its notes.

    Args:
        path: The source.
        arguments: A parsed command line.
        usual: Defaults of `SourceOptions` fields that the command line does not set.
    """
    from smallfiles import sources

    typed = explicit_fields(SourceOptions, arguments)
    more = {name: value for name, value in usual.items() if name not in typed}
    found = sources.read(path, from_args(SourceOptions, arguments, **more))
    say_notes(found.notes)
    return dataclasses.replace(found, notes=())  # printed; `pack` would print them again


def parse_options(options_type: type[Any], pairs: Sequence[str]) -> Any:
    """Build a format's `Options` from `key=value` words, with each value typed by its field.

    Args:
        options_type: A frozen dataclass whose fields all have defaults.
        pairs: Words such as `rows_per_batch=64`.

    Raises:
        UsageError: A word of another form, an unknown key or a value of the wrong type.
    """
    fields = typing.get_type_hints(options_type)
    format = options_type.__module__.removeprefix("smallfiles.formats.").partition(".")[0]
    values: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or key not in fields:
            raise UsageError(
                f"the option {pair!r} is unknown to {format}",
                expected=f"-O NAME=VALUE with one of {', '.join(fields) or 'none: it has no options'}",
                next_step="Choose one of these",
            )
        values[key] = _typed(key, text, fields[key])
    return options_type(**values)


def _typed(key: str, text: str, kind: Any) -> Any:
    """Convert `text` to the type `kind`: an int, a bool, a Literal, or one of these and None."""
    kinds = typing.get_args(kind) if typing.get_origin(kind) in (types.UnionType, typing.Union) else (kind,)
    known: dict[str, Any] = {"none": None} if type(None) in kinds else {}
    for each in kinds:
        known |= _BOOLEANS if each is bool else {str(value): value for value in typing.get_args(each)}
    if int in kinds and text.isdigit():
        return int(text)
    if text.lower() not in known:
        expected = [*known, *["a whole number, 0 or more"] * (int in kinds)]
        raise UsageError(
            f"the option {key} is {text!r}",
            expected=f"one of {', '.join(expected)}" if known else expected[0],
            next_step="Correct the value",
        )
    return known[text.lower()]


_BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
