"""Each option is defined once: a field of a frozen dataclass is also its flag, check and help text.

    @dataclass(frozen=True)
    class Config(Settings):
        repeats: int = option(7, "rounds", least=1)
        modes: tuple[Mode, ...] = option(MODES, "where batches are made", flag="mode")

`add_flags` gives a parser `--repeats` and `--mode A,B`, `from_args` reads them back, and `to_argv` returns
the flags that differ from the defaults, to be pasted behind a command. The trap: a default is written into
the help of a flag; so it must not depend on the machine. Notebooks print such commands.
"""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from smallfiles.errors import UsageError

_Config = TypeVar("_Config")
_METAVARS = {int: "N", float: "X", Path: "PATH"}


def option(
    default: Any,
    help: str,
    *,
    flag: str = "",
    least: float | None = None,
    most: float | None = None,
    metavar: str = "",
    many: bool = False,
    both: bool = False,
    scale: float = 0.0,
    parse: Callable[[str], Any] | None = None,
    show: Callable[[Any], str] = str,
) -> Any:
    """Define a field of a configuration that is a command-line flag, too.

    Args:
        default: Of the field and the flag.
        help: What it is, for the help of the flag.
        flag: Its name, where that is not the field's (for a field that is true by default: with `no-`).
        least: The smallest number that makes sense.
        most: The largest number that makes sense.
        metavar: What its value is called in the help.
        many: The flag may be repeated, each time with one value; else values stand behind commas.
        both: There is a flag for yes and one for no.
        scale: What a number on the command line is multiplied with.
        parse: Reads a value from the command line, where its type does not do.
        show: The way back.
    """
    more: dict[str, Any] = {"help": help, "flag": flag, "least": least, "most": most, "metavar": metavar}
    more |= {"many": many, "both": both, "scale": scale, "parse": parse, "show": show}
    return dataclasses.field(default=default, metadata=more)


@dataclasses.dataclass(frozen=True)
class _Option:
    """A field, its flag, and its possible values."""

    name: str
    flag: str
    kind: Any
    several: bool
    default: Any
    more: Any

    @property
    def allowed(self) -> tuple[Any, ...]:
        """The allowed values; none without a restriction."""
        return typing.get_args(self.kind) if typing.get_origin(self.kind) is typing.Literal else ()

    def shown(self, value: Any) -> str:
        """Return a value as a user types it after the flag."""
        if self.more["scale"]:
            return f"{value / self.more['scale']:g}"
        return ",".join(map(str, value)) if self.several else str(self.more["show"](value))

    def to_argv(self, value: Any) -> list[str]:
        """Return the flag and a value as words of a command line."""
        if self.kind is bool:
            return [self.flag if value or not self.more["both"] else f"--no-{self.flag[2:]}"]
        if self.more["many"]:
            return [word for one in value for word in (self.flag, str(one))]
        return [self.flag, self.shown(value)]

    def settings(self) -> dict[str, Any]:
        """Return the arguments for argparse.

        A flag that the user omits adds no attribute, so that `explicit_fields` can tell the two cases apart.
        """
        help = self.more["help"]
        if self.default not in (None, False, True, "") and not self.more["many"]:
            help += f" (default: {self.shown(self.default)})"
        found: dict[str, Any] = {"dest": self.name, "default": argparse.SUPPRESS, "help": help}
        metavar = self.more["metavar"]
        if self.kind is bool:
            negative = "store_false" if self.default else "store_true"
            return found | {"action": argparse.BooleanOptionalAction if self.more["both"] else negative}
        if self.more["many"]:
            return found | {"action": "append", "metavar": metavar}
        if self.several:
            return found | {"type": self._several, "metavar": metavar or ",".join(map(str, self.allowed))}
        if self.allowed:
            return found | {"choices": self.allowed}
        kind = self.more["parse"] or (self._scaled if self.more["scale"] else self.kind)
        return found | {"type": kind, "metavar": metavar or _METAVARS.get(self.kind, "NAME")}

    def _several(self, text: str) -> tuple[Any, ...]:
        parts = list(map(str, self.allowed)) if text == "both" and self.allowed else text.split(",")
        return tuple(parts if self.allowed else map(self._number, parts))

    def _scaled(self, text: str) -> float:
        return float(self._number(text)) * float(self.more["scale"])

    def _number(self, text: str) -> Any:
        try:
            return self.kind(text)
        except ValueError:
            expected = "numbers, such as 2 or 1,2,4" if self.several else "a number, such as 2"
            raise argparse.ArgumentTypeError(f"{text!r}; expected {expected}") from None


def _options(config: Any, names: Sequence[str] = ()) -> Iterator[_Option]:
    hints = typing.get_type_hints(config if isinstance(config, type) else type(config))
    for field in dataclasses.fields(config):
        if "help" in field.metadata and (not names or field.name in names):
            kind = hints[field.name]
            if typing.get_origin(kind) in (types.UnionType, typing.Union):
                kind = next(each for each in typing.get_args(kind) if each is not type(None))
            several = typing.get_origin(kind) is tuple and field.metadata["parse"] is None
            kind = typing.get_args(kind)[0] if several else kind
            negative = kind is bool and field.default is True and not field.metadata["both"]
            plain = ("no-" if negative else "") + field.name.replace("_", "-")
            flag = f"--{field.metadata['flag'] or plain}"
            yield _Option(field.name, flag, kind, several, field.default, field.metadata)


def check(config: Any) -> None:
    """Refuse senseless values.

    Raises:
        UsageError: Names the flag.
    """
    for each in _options(config):
        value = getattr(config, each.name)
        values = value if each.several else () if value is None else (value,)
        least, most = each.more["least"], each.more["most"]
        if each.several and not each.more["many"] and (not values or len(set(values)) < len(values)):
            raise _refusal(each, value, "one or more values, each once")
        if each.allowed and not set(values) <= set(each.allowed):
            raise _refusal(each, value, f"one of {', '.join(map(str, each.allowed))}")
        low = least is not None and not all(one >= least for one in values)  # also refuses NaN
        if low or (most is not None and not all(one <= most for one in values)):
            raise _refusal(each, value, f"{least} or more" if most is None else f"{least} to {most}")


def _refusal(each: _Option, value: Any, expected: str) -> UsageError:
    got = f"{each.flag} is {each.shown(value) or 'nothing'}"
    return UsageError(got, expected=expected, next_step="Choose another value")


def add_flags(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup, config: type[Any], names: Sequence[str] = ()
) -> None:
    """Add the flags of a configuration.

    Args:
        parser: Gets them.
        config: A dataclass with options.
        names: Only of these fields; none given means all.
    """
    for each in _options(config, names):
        parser.add_argument(each.flag, **each.settings())


def explicit_fields(config: type[Any], arguments: argparse.Namespace) -> list[str]:
    """Return the names of the fields that a command line sets, even if it sets them to their defaults."""
    return [each.name for each in _options(config) if each.name in arguments]


def from_args(config: type[_Config], arguments: argparse.Namespace, **more: Any) -> _Config:
    """Build a configuration from a parsed command line. Fields without a flag there keep their defaults.

    Args:
        config: A dataclass with options.
        arguments: The result of a parser with `add_flags`.
        more: Values of other fields.
    """
    read = {name: getattr(arguments, name) for name in explicit_fields(config, arguments)}
    lists = {name: tuple(value) for name, value in read.items() if isinstance(value, list)}
    return config(**(read | lists | more))


class Settings:
    """A dataclass of options that refuses senseless values and prints its own command line."""

    def __post_init__(self) -> None:
        check(self)

    def command(self, *before: str, more: Sequence[str] = ()) -> str:
        """Return the equivalent command, without the flags that have their defaults.

        Args:
            before: Words before the flags: the verb and its operands.
            more: Words after the flags.
        """
        return shlex.join(["smallfiles", *before, *to_argv(self), *more])


def flag_of(config: type[Any], name: str) -> str:
    """Return the command-line flag of a field."""
    return next(each.flag for each in _options(config, (name,)))


def to_argv(config: Any) -> list[str]:
    """Return the flags of all fields whose values differ from the defaults, as words of a command line.

    Args:
        config: An instance of a dataclass with options.
    """
    found: list[str] = []
    for each in _options(config):
        value = getattr(config, each.name)
        found += each.to_argv(value) if value != each.default else []
    return found
