"""The three verdicts, as text and as HTML.

State is shown by a symbol, a word and the shape of the border, never by colour alone, and nothing
assumes a light page. The trap: a participant's values may hold anything, so they are shortened, and
escaped in HTML. Notebook 00 shows all three.
"""

from __future__ import annotations

import html
import reprlib
from dataclasses import dataclass
from typing import Any, Literal

from smallfiles.errors import SmallfilesError

State = Literal["not started", "not yet", "passed"]
LOOKS: dict[State, tuple[str, str]] = {
    # symbol and border
    "not started": ("○", "4px dotted"),
    "not yet": ("✗", "4px double"),
    "passed": ("✓", "4px solid"),
}
LONGEST = 300

_short = reprlib.Repr()
_short.maxlist = _short.maxtuple = _short.maxset = 8
_short.maxstring = _short.maxother = 120


class CheckFailed(SmallfilesError):
    """In strict mode: an exercise is not solved."""


class Wrong(Exception):
    """A case that the answer gets wrong; the four parts of a ✗."""

    def __init__(self, *, gave: str, got: str, expected: str, because: str) -> None:
        super().__init__(because)
        self.gave, self.got, self.expected, self.because = gave, got, expected, because


@dataclass(frozen=True)
class Verdict:
    """What a check says. True in a condition when the exercise is solved.

    Args:
        exercise: Name of the check.
        state: One of the three.
        parts: Name and text of what is told; empty names are whole sentences.
    """

    exercise: str
    state: State
    parts: tuple[tuple[str, str], ...]

    def __bool__(self) -> bool:
        return self.state == "passed"

    def __str__(self) -> str:
        head = f"{LOOKS[self.state][0]} {self.exercise}: {self.state}"
        lines = (f"    {name:9} {text}" if name else f"  {text}" for name, text in self.parts)
        return "\n".join([head, *lines])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        symbol, border = LOOKS[self.state]
        head = f"<strong>{symbol} {html.escape(self.exercise)}: {self.state}</strong>"
        style = f"border-left: {border} currentColor; padding: 0.3em 0.8em; max-width: 60em;"
        return f'<div role="status" style="{style}">{head}{"".join(map(_as_html, self.parts))}</div>'

    @property
    def because(self) -> str:
        """The diagnosis of a ✗; empty otherwise."""
        return dict(self.parts).get("because", "")


def _as_html(part: tuple[str, str]) -> str:
    name, text = part
    if not name:
        return f"<div>{html.escape(text)}</div>"
    value = html.escape(text)
    value = value if name == "because" else f"<code>{value}</code>"
    label = f'<span style="flex: 0 0 5em; opacity: 0.8;">{name}</span>'
    return f'<div style="display: flex; gap: 0.8em;">{label}<span>{value}</span></div>'


def shown(value: Any) -> str:
    """A value as a participant reads it: its repr on one line, never longer than some lines."""
    try:
        text = " ".join(_short.repr(value).split())
    except Exception:  # a class of the participant's may have a broken __repr__
        text = f"<{type(value).__name__}>"
    return text if len(text) <= LONGEST else text[: LONGEST - 2] + " …"
