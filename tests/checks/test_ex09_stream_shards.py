"""Reading and streaming: each known wrong answer gets its own diagnosis, every right way passes."""

import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor, as_completed

import numpy as np
from telling import judged

from exercises.checks import ex09_stream_shards as ex09
from exercises.checks.ex09_stream_shards import Busy

# Task 1


def reading(
    *,
    tries=5,
    resets=True,
    anew=False,
    pause_s=0.01,
    catch=Busy,
    from_=len,
    part=False,
    compares=True,
    empties=5,
    empty_pause_s=0.01,
    empty_part=False,
):
    """The solution, with one thing changed."""

    def answer(ask, name, size):
        data, failed, empty, version = b"", 0, 0, None
        while len(data) < size:
            try:
                more, etag = ask(name, from_(data))
                empty = 0 if more else empty + 1
                if empty >= empties:
                    if empty_part:
                        break
                    raise OSError("empty")
                if empty:
                    time.sleep(empty_pause_s)
                if compares and etag != (version or etag):
                    raise OSError("changed")
                data, version = more if anew else data + more, etag
                failed = 0 if resets else failed
            except catch:
                failed += 1
                if failed >= tries:
                    if part:
                        break
                    raise
                time.sleep(pause_s)
        return data

    return answer


def once(ask, name, size):
    return ask(name, 0)[0]


def recursive(ask, name, size, data=b"", tries=6, version=None):
    if len(data) >= size:
        return data
    try:
        more, etag = ask(name, len(data))
        if not more:
            raise BlockingIOError
        if version and etag != version:
            raise OSError("changed")
        return recursive(ask, name, size, data + more, 6, etag)
    except (Busy, BlockingIOError):
        if tries == 1:
            raise
        time.sleep(0.002)
        return recursive(ask, name, size, data, tries - 1, version)


def by_pieces(ask, name, size):
    pieces, got, pauses, versions = bytearray(), 0, iter([0.002] * 4), set()
    while got < size:
        try:
            piece, etag = ask(name, got)
            if not piece:
                raise BlockingIOError
            if len(versions := versions | {etag}) > 1:
                raise ConnectionError("another version")
            pieces += piece
            got, pauses = len(pieces), iter([0.002] * 4)
        except (Busy, BlockingIOError) as error:
            pause = next(pauses, None)
            if pause is None:
                raise error
            time.sleep(pause)
    return bytes(pieces)


WRONG_READS = [
    (once, "ask again for the rest"),
    (reading(anew=True, from_=lambda data: 0), "begin at byte 0 again"),
    (reading(from_=lambda data: 0), "arrive twice"),
    (reading(from_=lambda data: len(data) and len(data) + 1), "arrive twice"),
    (reading(catch=()), "catch Busy"),
    (reading(pause_s=0), "pause before the next try"),
    (reading(resets=False), "start counting again"),
    (reading(tries=10**9, pause_s=0.002), "never give up"),
    (reading(part=True), "return a part"),
    (reading(empty_part=True), "raise OSError at the fifth"),
    (reading(empties=10**9, empty_pause_s=0.002), "never give up"),
    (reading(empty_pause_s=0), "pause before the next try"),
    (reading(compares=False), "compare the ETag"),
    (reading(compares=False, catch=Exception), "compare the ETag"),
    (reading(catch=(Busy, ex09.Missing)), "catch only Busy"),
    (reading(catch=Exception), "catch only Busy"),
]
TestReadObject = judged(ex09.read_object, WRONG_READS, [reading(), by_pieces, recursive])


# Task 2


def streaming(split=lambda names, rank, ranks: names[rank::ranks], skips=()):
    def answer(fetch, names, rank, ranks, in_flight):
        coming = deque()
        with ThreadPoolExecutor(in_flight) as pool:
            for name in [*split(names, rank, ranks), *[None] * in_flight]:
                if name is not None:
                    coming.append(pool.submit(fetch, name))
                if coming and (len(coming) == in_flight or name is None):
                    try:
                        yield coming.popleft().result()
                    except skips:
                        pass

    return answer


def one_by_one(fetch, names, rank, ranks, in_flight):
    yield from map(fetch, names[rank::ranks])


def by_map(fetch, names, rank, ranks, in_flight):
    with ThreadPoolExecutor(in_flight) as pool:
        yield from pool.map(fetch, names[rank::ranks])


def by_slices(fetch, names, rank, ranks, in_flight):
    mine = names[rank::ranks]
    with ThreadPoolExecutor(in_flight) as pool:
        for first in range(0, len(mine), in_flight):
            yield from pool.map(fetch, mine[first : first + in_flight])


def refills_late(fetch, names, rank, ranks, in_flight):
    mine = names[rank::ranks]
    with ThreadPoolExecutor(in_flight) as pool:
        coming = deque(pool.submit(fetch, name) for name in mine[:in_flight])
        for number in range(len(mine)):
            yield coming.popleft().result()
            coming.extend(pool.submit(fetch, name) for name in mine[number + in_flight :][:1])


def as_a_list(fetch, names, rank, ranks, in_flight):
    return list(streaming()(fetch, names, rank, ranks, in_flight))


def as_they_come(fetch, names, rank, ranks, in_flight):
    with ThreadPoolExecutor(in_flight) as pool:
        for done in as_completed([pool.submit(fetch, name) for name in names[rank::ranks]]):
            yield done.result()


def refills_first(fetch, names, rank, ranks, in_flight):
    mine = names[rank::ranks]
    with ThreadPoolExecutor(in_flight) as pool:
        coming = deque(pool.submit(fetch, name) for name in mine[:in_flight])
        for number in range(len(mine)):
            data = coming.popleft().result()
            coming.extend(pool.submit(fetch, name) for name in mine[number + in_flight :][:1])
            yield data


def equal_slices(names, rank, ranks):
    return names[rank * (len(names) // ranks) :][: len(names) // ranks]


WRONG_STREAMS = [
    (streaming(lambda names, rank, ranks: names), "every rank reads everything"),
    (streaming(equal_slices), "loses the last names"),
    (streaming(lambda names, rank, ranks: names[rank + 1 :: ranks]), "counted from 0"),
    (streaming(lambda names, rank, ranks: np.array_split(names, ranks)[rank].tolist()), "one part of"),
    (streaming(lambda names, rank, ranks: names if ranks == 2 else names[rank::ranks]), "need not be yours"),
    (lambda *given: streaming()(*given[:4], 2 * given[4]), "more than in_flight"),
    (lambda *given: streaming()(*given[:4], given[4] - 1), "are ever in flight"),
    (as_they_come, "as they arrive"),
    (one_by_one, "one request after the other"),
    (by_map, "wait in memory"),
    (by_slices, "drain at each border"),
    (as_a_list, "wait in memory"),
    (streaming(skips=Exception), "missing without an error"),
]
TestStream = judged(ex09.stream, WRONG_STREAMS, [streaming(), refills_first, refills_late])
