"""One line of the doctor's report, and how it is judged.

Short, since the parts of the doctor share it and it imports nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Verdict: TypeAlias = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """What was looked at, what was seen, and what to do about it.

    All text, so that `dataclasses.asdict` makes it ready for JSON.

    Args:
        name: What was looked at, in a word or two.
        value: What was seen.
        verdict: `ok`; `warn`, it will work but slowly or not everywhere; `fail`, it will not work.
        advice: A sentence on what to do or to know; empty if there is nothing to say.
    """

    name: str
    value: str
    verdict: Verdict = "ok"
    advice: str = ""


def judged(name: str, value: str, *rules: tuple[object, Verdict, str]) -> Finding:
    """A finding by the first rule that applies; without one all is well.

    Args:
        name: What was looked at.
        value: What was seen.
        rules: Whether each applies, its verdict, its advice.
    """
    verdict, advice = next((rule[1:] for rule in rules if rule[0]), ("ok", ""))
    return Finding(name, value, verdict, advice)
