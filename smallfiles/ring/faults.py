"""What can go wrong with a ring, as one kind of error, and the way of errors between processes.

The trap: a producer's traceback helps nobody in the trainer, so what crosses is the sentence, with the
batch and the sample that it is about. Notebook 08 teaches the ring.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from smallfiles.errors import SmallfilesError

_LONGEST = 2000


class RingError(SmallfilesError):
    """A ring cannot be filled, or not be read."""


def as_message(error: SmallfilesError) -> dict[str, str]:
    """The parts of an error as JSON can hold them."""
    return {
        "kind": type(error).__name__,
        "got": error.got[:_LONGEST],
        "expected": error.expected[:_LONGEST],
        "next_step": error.next_step[:_LONGEST],
    }


def from_message(message: dict[str, Any]) -> SmallfilesError:
    """The error that `as_message` took apart; a `RingError` if its kind is not known here."""
    kind = next((kind for kind in _kinds(SmallfilesError) if kind.__name__ == message.get("kind")), RingError)
    return kind(str(message["got"]), expected=str(message["expected"]), next_step=str(message["next_step"]))


def _kinds(kind: type[SmallfilesError]) -> Iterator[type[SmallfilesError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _kinds(child)
