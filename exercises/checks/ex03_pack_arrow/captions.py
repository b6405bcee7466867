"""What is wrong with the captions of one image, by the mistakes that people make with results.csv.

The trap: a list of five texts looks right at a glance; the blank in front of each, or the one that is
the text "nan", is seen by a comparison only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

Fault: TypeAlias = tuple[Callable[[list[str], list[str]], bool], str]

DELIMITER = "the delimiter is `|`; cut each line at its first two `|` and nowhere else"
QUOTING = (
    "quotes belong to the captions here; a csv reader must be told so with quoting=csv.QUOTE_NONE, "
    "or cut the lines yourself"
)
BAD_ROW = "one row of results.csv lost its second `|`: there the comment follows the number after blanks"
NOT_A_NUMBER = f"a caption is NaN, which is no text: {BAD_ROW}, and a csv reader finds no comment. Repair it"
BYTES_REPR = (
    "str() of bytes gives their Python spelling, with b' in front; decode them: data.decode('utf-8'), or "
    "open the file as text"
)
BOTH_FILES = (
    "each caption is there twice: the folder holds two copies of results.csv; read one of them, "
    "for example next(folder.rglob('results.csv'))"
)


def texts_problem(given: Any) -> tuple[str, str] | None:
    """What is wrong with the type of an image's captions: what was got, and the diagnosis."""
    if isinstance(given, str | bytes):
        return "one text", "an image has a list of captions, one text each; you joined them or kept only one"
    if given is None:
        return "None", "the captions of this image are lost (null)"
    if not isinstance(given, list):
        return type(given).__name__, "return Python lists; .to_pylist() and list() make them"
    for caption in given:
        if isinstance(caption, float):
            return "a caption that is NaN", NOT_A_NUMBER
        if caption is None:
            return "a caption that is null", f"a caption is lost: {BAD_ROW}. Repair it"
        if isinstance(caption, bytes):
            return "a caption of bytes", "captions are text; decode them: data.decode('utf-8')"
        if not isinstance(caption, str):
            return f"a caption of type {type(caption).__name__}", "captions are text (str)"
    return None


def captions_problem(expected: list[str], given: list[str], others: Sequence[list[str]] = ()) -> str | None:
    """The diagnosis of a list of texts that should be `expected`; None if it is.

    Args:
        expected: The captions in order of their numbers.
        given: What was found.
        others: Captions of the other images, to recognise a mix-up.
    """
    if given == expected:
        return None
    if any(given == other for other in others):
        return "these are the captions of another image: the rows of images and captions went out of step"
    return next((because for fits, because in _FAULTS if fits(expected, given)), _otherwise(expected, given))


def _otherwise(expected: list[str], given: list[str]) -> str:
    if len(given) < len(expected):
        return f"{len(expected) - len(given)} of the captions are missing"
    if len(given) > len(expected):
        return "there are captions too many; each image has its own list"
    return "the text of a caption was changed; store it as it is, without the blanks around it"


def _any(fits: Callable[[str], bool]) -> Callable[[list[str], list[str]], bool]:
    return lambda expected, given: any(fits(text) for text in given if text not in expected)


def _cut_before(mark: str) -> Callable[[list[str], list[str]], bool]:
    def fits(expected: list[str], given: list[str]) -> bool:
        strange = [text.strip() for text in given if text not in expected]
        return any(full.startswith(f"{text}{mark}") for text in strange if text for full in _loose(expected))

    return fits


def _loose(texts: list[str]) -> list[str]:
    return [re.sub(r"\s+([|,])", r"\1", text) for text in texts] + texts


def _stripped(expected: list[str], given: list[str]) -> bool:
    return [text.strip() for text in given] == expected


def _twice(expected: list[str], given: list[str]) -> bool:
    return len(given) == 2 * len(expected) and sorted(given) == sorted(2 * expected)


def _without_quotes(expected: list[str], given: list[str]) -> bool:
    def bare(texts: list[str]) -> list[str]:
        return [" ".join(text.replace('"', " ").split()) for text in texts]

    return bare(given) == bare(expected)


def _one_lost(expected: list[str], given: list[str]) -> bool:
    return len(given) == len(expected) - 1 and all(text in expected for text in given)


_FAULTS: tuple[Fault, ...] = (
    (_any(lambda text: text[:2] in ("b'", 'b"')), BYTES_REPR),
    (_any(lambda text: text.strip().lower() in ("nan", "none", "")), f'"nan" is a lost caption: {BAD_ROW}'),
    (_any(lambda text: text.startswith(("['", '["', "[b"))), "str() of a list is one text; keep the list"),
    (_any(lambda text: "\n" in text.strip() or ".jpg|" in text), f"two rows became one: {QUOTING}"),
    (_stripped, "blanks or a line end are left around the text: the separator is `| `; use .strip()"),
    (_any(lambda text: re.match(r"\|?\s*\d+(\s*\||\s)", text) is not None), f"a number is left: {BAD_ROW}"),
    (_twice, BOTH_FILES),
    (
        lambda expected, given: sorted(given) == sorted(expected),
        "the order is not that of comment_number; the rows of a file need not be sorted",
    ),
    (_without_quotes, QUOTING),
    (_cut_before("|"), f"a caption may hold a `|` itself: {DELIMITER}"),
    (_cut_before(","), f"a caption was cut at its comma: {DELIMITER}"),
    (_one_lost, f"one caption is lost: {BAD_ROW}. Repair it, do not drop it"),
)
