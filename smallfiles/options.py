"""One option is written once: a field of a frozen dataclass is its flag, its check and its words.

    @dataclass(frozen=True)
    class Config:
        repeats: int = option(7, "rounds", least=1)
        modes: tuple[Mode, ...] = option(MODES, "where batches are made", flag="mode")

        def __post_init__(self) -> None:
            check(self)

`add_flags` gives a parser `--repeats` and `--mode A,B`, `from_args` reads them back, and `words` are the
flags that differ from the defaults, to be pasted behind a command. The trap: a default is written into the
help of a flag; so it must not depend on the machine. Notebooks print such commands.
"""

from __future__ import annotations

import argparse
import dataclasses
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from smallfiles.errors import UsageError

_Config = TypeVar("_Config")


def option(
    default: Any,
    help: str,
    *,
    flag: str = "",
    least: float | None = None,
    metavar: str = "",
    many: bool = False,
) -> Any:
    """A field that is a flag too.

    Args:
        default: Of the field and the flag.
        help: What it is, for the help of the flag.
        flag: Its name, where that is not the field's.
        least: The smallest number that makes sense.
        metavar: What its value is called in the help.
        many: The flag may be repeated, each time with one value; else values stand behind commas.
    """
    return dataclasses.field(
        default=default,
        metadata={"help": help, "flag": flag, "least": least, "metavar": metavar, "many": many},
    )


@dataclasses.dataclass(frozen=True)
class _Option:
    """A field, its flag, and what its values are."""

    name: str
    flag: str
    kind: Any
    several: bool
    default: Any
    more: Any

    @property
    def allowed(self) -> tuple[Any, ...]:
        """The values to choose from; none where all are allowed."""
        return typing.get_args(self.kind) if typing.get_origin(self.kind) is typing.Literal else ()


def _options(config: Any) -> Iterator[_Option]:
    hints = typing.get_type_hints(config if isinstance(config, type) else type(config))
    for field in dataclasses.fields(config):
        if "help" in field.metadata:
            kind = hints[field.name]
            if typing.get_origin(kind) in (types.UnionType, typing.Union):
                kind = next(each for each in typing.get_args(kind) if each is not type(None))
            several = typing.get_origin(kind) is tuple
            kind = typing.get_args(kind)[0] if several else kind
            name = field.metadata["flag"] or field.name.replace("_", "-")
            flag = f"--no-{name}" if kind is bool and field.default else f"--{name}"
            yield _Option(field.name, flag, kind, several, field.default, field.metadata)


def check(config: Any) -> None:
    """Refuse values that make no sense.

    Raises:
        UsageError: Names the flag.
    """
    for each in _options(config):
        value = getattr(config, each.name)
        values = value if each.several else () if value is None else (value,)
        if each.several and not each.more["many"] and (not values or len(set(values)) < len(values)):
            raise _refusal(each, _shown(value) or "nothing", "one or more values, each once")
        if each.allowed and not set(values) <= set(each.allowed):
            raise _refusal(each, _shown(value), f"one of {', '.join(map(str, each.allowed))}")
        if each.more["least"] is not None and min(values, default=each.more["least"]) < each.more["least"]:
            raise _refusal(each, _shown(value), f"{each.more['least']} or more")


def _refusal(each: _Option, got: str, expected: str) -> UsageError:
    return UsageError(f"{each.flag} is {got}", expected=expected, next_step="Choose another value")


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def add_flags(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup, config: type[Any], names: Sequence[str] = ()
) -> None:
    """Add the flags of a configuration.

    Args:
        parser: Gets them.
        config: A dataclass with options.
        names: Only of these fields; none given means all.
    """
    for each in _options(config):
        if names and each.name not in names:
            continue
        how: dict[str, Any] = {"dest": each.name, "help": each.more["help"], "default": each.default}
        if each.kind is bool:
            how["action"] = "store_false" if each.default else "store_true"
        elif each.more["many"]:
            how |= {"action": "append", "default": [], "metavar": each.more["metavar"]}
        elif each.several:
            how |= {"type": _several(each), "default": _shown(each.default)}
            how["metavar"] = each.more["metavar"] or ",".join(map(str, each.allowed))
        elif each.allowed:
            how["choices"] = each.allowed
        else:
            how |= {"type": each.kind, "metavar": each.more["metavar"] or _METAVARS.get(each.kind, "NAME")}
        parser.add_argument(each.flag, **how)


_METAVARS = {int: "N", float: "X", Path: "PATH"}


def _several(each: _Option) -> Callable[[str], tuple[Any, ...]]:
    def parse(text: str) -> tuple[Any, ...]:
        words = list(map(str, each.allowed)) if text == "both" and each.allowed else text.split(",")
        try:
            values = tuple(words if each.allowed else map(each.kind, words))
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r}; expected numbers, such as 2 or 1,2,4") from None
        return values

    return parse


def from_args(config: type[_Config], arguments: argparse.Namespace) -> _Config:
    """The configuration that a parsed command line means; fields without a flag keep their defaults."""
    read = {each.name: getattr(arguments, each.name) for each in _options(config) if each.name in arguments}
    return config(
        **{name: tuple(value) if isinstance(value, list) else value for name, value in read.items()}
    )


def words(config: Any, names: Sequence[str] = ()) -> list[str]:
    """The flags of a configuration that differ from the defaults.

    Args:
        config: A dataclass with options.
        names: Only of these fields; none given means all.
    """
    found: list[str] = []
    for each in _options(config):
        value = getattr(config, each.name)
        if value == each.default or (names and each.name not in names):
            continue
        if each.kind is bool:
            found.append(each.flag)
        elif each.more["many"]:
            found += [word for one in value for word in (each.flag, str(one))]
        else:
            found += [each.flag, _shown(value)]
    return found
