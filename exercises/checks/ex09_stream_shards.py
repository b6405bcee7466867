"""Exercise 09: read an object although requests fail, and stream an epoch with several of them in flight.

    Busy, Missing    what a request raises
    read_object      task 1: the whole object, whatever the line does
    stream           task 2: the objects of one rank in order, the next ones on their way

Answers are judged by the requests that they send, not by their speed. The trap it teaches: what a line broke
off looks like a short object, and only a count shows it; what was replaced meanwhile has the right size, and
only its ETag shows it. Notebook 09 sends participants here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from threading import Condition
from typing import Any

import numpy as np

from exercises.checks import Attempt, Mistake, check, explain

DATA, OTHER = bytes(range(251)) * 8, bytes(range(250, -1, -1)) * 8
ALL, IN_FLIGHT = len(DATA), 3
_LEAST_PAUSE_S, _MOST_REQUESTS, _MEETING_S, _AHEAD_S = 0.001, 40, 3.0, 0.5


class Busy(Exception):
    """503 SlowDown: the server has too much to do at the moment."""


class Missing(Exception):
    """404: there is no object of that name."""


class _TooMany(BaseException):
    """So many requests that it will never end; not an `Exception`, so that no answer swallows it."""


class Wire:
    """A line to one object: each request gives, in turn, so many bytes, other data (its ETag) or an error."""

    def __init__(self, script: tuple[Any, ...]) -> None:
        self.script, self.starts = list(script), list[int]()
        self.pauses, self._failed = list[float](), 0.0

    def ask(self, name: str, start: int) -> tuple[bytes, str]:
        """One request: bytes, and the ETag of the object that they are of."""
        if self._failed:
            self.pauses.append(time.perf_counter() - self._failed)
        self.starts.append(start)
        if len(self.starts) > _MOST_REQUESTS:
            raise _TooMany
        gives = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        self._failed = time.perf_counter() if gives in (0, Busy, Missing) else 0.0
        if isinstance(gives, int):
            return DATA[start : start + gives], "v1"
        if isinstance(gives, str):
            return OTHER[start:], gives
        raise gives(f"{name} from {start}")


OFTEN_BUSY = (*(Busy, 200) * 7, ALL)  # what the line does; the last item again and again
REPLACED, EMPTY = (300, "v2"), (300, 0)

_SHORT = "the line broke off, and fewer than `size` bytes arrived, without an error; ask again for the rest"
_ANEW = "you begin at byte 0 again, so on a bad line you may never finish; ask from len(data) on"
_JOINED = "bytes are missing or arrive twice; ask from len(data) on, and append the answer to data"
_TRY = "a server is often busy for a moment only; catch Busy, pause, and ask again"
_PAUSE = "you ask again at once; hundreds of such ranks keep the server busy, so pause before the next try"
_TOTAL = "you count all failures of an object; start counting again when bytes arrive"
_ENDLESS = "you never give up; a job that waits for a dead server blocks its GPUs for hours"
_PART = "the server is gone, and you return a part as if it were the object; raise the last Busy"
_EMPTY = "no more bytes arrive, and you return a part as if it were all; raise OSError at the fifth time"
_MIXED = "the object was replaced by one of the same size after 300 bytes; compare the ETags, and raise"
_NEVER = "a missing object does not appear if you try again; catch only Busy, and no other error"


def _read(attempt: Attempt, script: tuple[Any, ...], what: str) -> tuple[Wire, Any]:
    """What an answer makes of a line; an exception of the line is a result too."""
    wire = Wire(script)

    def ask(name: str, start: int) -> tuple[bytes, str]:
        return wire.ask(name, start)

    try:
        got = attempt(ask, "shard.tar", ALL, _shown=f'ask, "shard.tar", {ALL}')
    except _TooMany:
        because = _JOINED if max(wire.starts) >= ALL else _ENDLESS
        raise attempt.wrong(f"more than {_MOST_REQUESTS} requests", "an end", because) from None
    except Exception as error:
        may_end = script in (REPLACED, EMPTY) or max(wire.starts, default=0) >= ALL
        if not isinstance(error.__cause__, OSError if may_end else Busy | Missing):
            raise
        got = error.__cause__
    attempt.given(f"{attempt.name} {what}")
    paused = min(wire.pauses, default=1) >= _LEAST_PAUSE_S
    attempt.require(paused, "the next request at once", "a pause after each failure", _PAUSE)
    return wire, got


@check(buys="A training of three days survives broken lines, and a dead server ends it with an error.")
def read_object(attempt: Attempt) -> None:
    """`read_object(ask, name, size)` returns the whole object, or lets an error out."""
    for script, what in (
        ((ALL,), "on a good line"),
        ((300, 500, ALL), "on a line that breaks off twice"),
        ((Busy, 300, Busy, Busy, ALL), "where the server is busy three times"),
        (OFTEN_BUSY, "where the server is busy before each of seven pieces"),
    ):
        wire, got = _read(attempt, script, what)
        raised, again = isinstance(got, Busy), wire.starts.count(0) > 1 + (script[0] is Busy)
        because = (_TOTAL if script is OFTEN_BUSY else _TRY) if raised else _JOINED
        if isinstance(got, bytes | bytearray) and len(got) < ALL and DATA.startswith(bytes(got)):
            because = _SHORT
        shown = got if raised or not isinstance(got, bytes | bytearray) else f"{len(got)} bytes"
        attempt.require(got == DATA and not raised, shown, f"the {ALL} bytes of the object", because)
        attempt.require(not again, f"requests from {wire.starts}", "each byte asked for once", _ANEW)
    for line, what, due, because in (
        (REPLACED, "of an object that is replaced after a piece", OSError, _MIXED),
        (EMPTY, "where no bytes come after a piece", OSError, _EMPTY),
        ((300, Busy), "where the server is gone after a piece", Busy, _PART),
    ):
        _, got = _read(attempt, line, what)
        shown = got if isinstance(got, Exception) else "bytes, and no error"
        attempt.require(isinstance(got, due), shown, due.__name__, because)
    wire, got = _read(attempt, (Missing,), "of a name that is not there")
    once = isinstance(got, Missing) and len(wire.starts) == 1
    attempt.require(once, f"{len(wire.starts)} requests, {got!r}", "Missing, after one request", _NEVER)


class Store:
    """Objects whose names are their contents; counts who asks at a time, and lets `meet` requests meet."""

    def __init__(self, meet: int = 1, fails: str = "") -> None:
        self.asked, self.at_once, self.most = list[str](), 0, 0
        self._meet, self._fails, self._lock = meet, fails, Condition()

    def fetch(self, name: str) -> bytes:
        """One object; one in ten takes longer."""
        with self._lock:
            self.asked.append(name)
            self.at_once += 1
            self.most = max(self.most, self.at_once)
            self._lock.notify_all()
            if not self._lock.wait_for(lambda: self.most >= self._meet, _MEETING_S):
                self._meet = 0  # nobody else comes
        if name.endswith("0"):
            time.sleep(0.01)
        with self._lock:
            self.at_once -= 1
        if name == self._fails:
            raise Missing(name)
        return name.encode()

    def asked_for(self, count: int, within_s: float) -> int:
        """How many were asked for when they are `count`, or after so many seconds."""
        with self._lock:
            self._lock.wait_for(lambda: len(self.asked) >= count, within_s)
            return len(self.asked)


def _block(names: list[str], rank: int, ranks: int, length: int) -> list[str]:
    return names[rank * length : (rank + 1) * length]


_TAIL = "rounding down loses the last names, and neighbours stay together; deal the names out in turn"
_NEIGHBOURS = "neighbours stay together, so each rank reads one part of the order; deal the names out in turn"
_SPLITS: tuple[Mistake, ...] = (
    (lambda names, rank, ranks: names, "every rank reads everything; deal the names out first"),
    (lambda names, rank, ranks: _block(names, rank, ranks, len(names) // ranks), _TAIL),
    (lambda names, rank, ranks: _block(names, rank, ranks, -(-len(names) // ranks)), _NEIGHBOURS),
    (lambda names, rank, ranks: np.array_split(names, ranks)[rank].tolist(), _NEIGHBOURS),
    (lambda names, rank, ranks: names[rank + 1 :: ranks], "ranks are counted from 0; rank 0 reads name 0"),
)
_SOONEST = "you yield objects as they arrive, in a random order; wait for them in the order of the names"
_ONE = "you send one request after the other; submit the next ones to a pool before you wait for this one"
_FEW = "fewer than in_flight requests are ever in flight; submit the next ones before you wait for this one"
_AHEAD = "you request all objects at once, as pool.map does, and they wait in memory; request only in_flight"
_MORE = "more than in_flight objects are in flight or in memory; submit one name for each that is yielded"
_DRAINS = "fewer than in_flight requests are in flight when an object is yielded, as with slices of names, "
_DRAINS += "which drain at each border; submit the next name when an object is yielded"
_LOST = "a fetch failed, and its object is missing without an error; .result() raises, so do not catch it"


def _stream(attempt: Attempt, store: Store, names: list[str], rank: int, ranks: int) -> Iterator[bytes]:
    def fetch(name: str) -> bytes:
        return store.fetch(name)

    shown = f"fetch, {len(names)} names, {rank}, {ranks}, {IN_FLIGHT}"
    found = attempt(fetch, names, rank, ranks, IN_FLIGHT, _shown=shown)
    return attempt.tried(attempt.gave, iter, found)


def _list(attempt: Attempt, found: Iterator[bytes], most: int) -> list[str]:
    with attempt.guarded():
        return [bytes(piece).decode() for piece in islice(found, most)]


_BUYS = "Latency now costs an epoch almost nothing, and each rank needs memory for a few shards only."


@check(buys=_BUYS)
def stream(attempt: Attempt) -> None:
    """`stream(fetch, names, rank, ranks, in_flight)` yields one rank's objects, in order."""

    def streamed(names: list[str], rank: int, ranks: int) -> list[str]:
        return _list(attempt, _stream(attempt, Store(), names, rank, ranks), 99)

    shared = ((8, 1), (8, 2), (7, 2), (1, 2), (10, 3))
    cases = [(_names(count), rank, ranks) for count, ranks in shared for rank in range(ranks)]
    for names, rank, ranks in cases:
        got, due = streamed(names, rank, ranks), names[rank::ranks]
        if got != due:
            gave, otherwise = attempt.gave, "each object of this rank once, and no other"
            otherwise = _SOONEST if sorted(got) == due else otherwise
            because = explain(streamed, (names, rank, ranks), cases, _SPLITS, otherwise=otherwise)
            attempt.given(gave)
            raise attempt.wrong(f"{got}", f"{due}", because)
    names = _names(12)
    _keeps_up(attempt, names)
    try:
        got = _list(attempt, _stream(attempt, Store(fails=names[5]), names, 0, 1), 99)
    except Exception as error:
        if not isinstance(error.__cause__, Missing):
            raise
        return
    raise attempt.wrong(f"{len(got)} objects and no error", "Missing, from shard-000005", _LOST)


def _names(count: int) -> list[str]:
    return [f"shard-{number:06}" for number in range(count)]


def _keeps_up(attempt: Attempt, names: list[str]) -> None:
    """Whenever an object comes, so many others are on their way, and no more."""
    store = Store(meet=IN_FLIGHT)
    found = _stream(attempt, store, names, 0, 1)
    for taken in range(1, len(names) + 1):
        _list(attempt, found, 1)
        due = min(taken - 1 + IN_FLIGHT, len(names))
        attempt.require(
            store.most >= IN_FLIGHT,
            store.most,
            f"{IN_FLIGHT} requests at a time",
            _ONE if store.most == 1 else _FEW,
        )
        asked = store.asked_for(due, _MEETING_S)
        got = f"{asked} requested when {taken} were yielded"
        attempt.require(asked >= due, got, f"{due} requested", _DRAINS)
        if taken == 2:
            bound = taken + IN_FLIGHT
            asked = store.asked_for(len(names), _AHEAD_S)  # who asks for all needs a moment
            bounded = asked <= bound and store.most <= IN_FLIGHT
            because = _AHEAD if asked == len(names) else _MORE
            attempt.require(bounded, f"{asked} requested when 2 were yielded", f"at most {bound}", because)
