# %% [markdown] id="top"
# # Exercise 09 · Stream an epoch although requests fail
#
# ★★★ · 30 minutes · after [notebook 09](../notebooks/09_stream_shards.ipynb)
#
# Each rank of a training reads its shards from an object store. Now and then a connection breaks, and sometimes the server is
# busy. First you write a function that reads one object anyway. Then you read an epoch with several requests in flight.

# %% id="start"
import sys

sys.path.append("..")
from helpers import show, start

setup = start("ex09")

# %% [markdown] id="object"
# ## Task 1
#
# `ask(name, start)` returns some bytes from `start` on, and the ETag. Return the object:
#
# - `Busy` and empty answers are failures. Pause 10 ms or longer, then repeat.
# - At the fifth failure in a row, re-raise `Busy`, or raise `OSError` for an empty answer.
# - If the ETag changes, raise `OSError`. Catch only `Busy`.
#
# `read_object(ask, name: str, size: int) -> bytes`

# %% id="object-answer"
import time

from exercises.checks.ex09_stream_shards import Busy


def read_object(ask, name: str, size: int) -> bytes:
    """Return an object of `size` bytes."""
    # --8<-- solution
    data, failed, version = b"", 0, None
    while len(data) < size:
        try:
            more, etag = ask(name, len(data))
        except Busy:
            if failed == 4:
                raise
            more, etag = b"", version
        if version not in (None, etag):
            raise OSError(f"{name} has changed")
        data, failed, version = data + more, 0 if more else failed + 1, etag
        if failed == 5:
            raise OSError(f"{name}: no bytes arrived from {len(data)} on")
        if failed:
            time.sleep(0.01 * 2**failed)
    return data
    # --8<-- stub
    # raise NotImplementedError  # your code: about fourteen lines
    # --8<-- end


# %% id="object-check"
from exercises.checks import ex09_stream_shards as check

whole = check.read_object(read_object)
whole

# %% [markdown] id="object-hints"
# <details>
# <summary>Hint 1: what is missing</summary>
#
# Write a loop that runs while `len(data) < size`, and that requests the bytes from `len(data)` on. Then a broken connection does
# not need a special case.
#
# </details>
#
# <details>
# <summary>Hint 2: in a row</summary>
#
# Count the failures, and set the count back to zero when bytes arrive.
#
# </details>

# %% [markdown] id="epoch"
# ## Task 2
#
# `fetch(name)` returns an object. Deal the names out to the ranks in turn, rank 0 first. Yield the objects of `rank` in order.
# First request `in_flight` of them. After you have yielded an object, request one more before you yield the next. Catch no
# errors:
#
# `stream(fetch, names: list[str], rank: int, ranks: int, in_flight: int) -> Iterator[bytes]`

# %% id="epoch-answer"
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor


def stream(fetch, names: list[str], rank: int, ranks: int, in_flight: int) -> Iterator[bytes]:
    """Yield the objects of one rank."""
    # --8<-- solution
    coming = deque()
    with ThreadPoolExecutor(in_flight) as pool:
        for name in names[rank::ranks]:
            coming.append(pool.submit(fetch, name))
            if len(coming) == in_flight:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()
    # --8<-- stub
    # raise NotImplementedError  # your code: about eight lines, with yield
    # --8<-- end


# %% id="epoch-check"
streamed = check.stream(stream)
streamed

# %% [markdown] id="epoch-hints"
# <details>
# <summary>Hint 1: a window</summary>
#
# `pool.submit(fetch, name)` returns a *future* immediately. Keep the futures in a `deque`. Append new futures at one end. When
# there are `in_flight` of them, remove the oldest one from the other end. `.result()` waits for the object, or raises its error.
#
# </details>
#
# <details>
# <summary>Hint 2: the end</summary>
#
# After the last name, some futures are still in the deque.
#
# </details>

# %% [markdown] id="use"
# ## With your functions
#
# The next cells stream the shards of two ranks, one rank after the other, from a real S3 server. The line adds 20 ms of latency
# and breaks off five answers.

# %% id="push"
import os
import tarfile
import tempfile
from pathlib import Path

from helpers.experiments.nb09 import Line
from smallfiles import objectstore
from smallfiles.formats import tar
from smallfiles.pack import PackConfig, pack

place = Path(tempfile.mkdtemp(dir=setup.scratch))
packed = pack(setup.source(), place / "train.tars", PackConfig(options=tar.Options(max_count=8)))
(place / "store" / "course").mkdir(parents=True)
server = objectstore.Server(place / "store")
line = Line(server.port)
os.environ.pop("AWS_ENDPOINT_URL_S3", None)
os.environ.update(server.environment | {"AWS_ENDPOINT_URL": line.url, "AWS_SESSION_TOKEN": ""})
objectstore.push(packed.path, "s3://course/train")
store = objectstore.Store(objectstore.StoreUrl.parse("s3://course/train"))
catalog = objectstore.Catalog.read(store)
sizes = {item.name: item.bytes for item in catalog.items if item.is_data}

# %% id="ask"
import http.client

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.session import Session

keys = Session().get_credentials()


def ask(name: str, start: int) -> tuple[bytes, str]:
    """Send one request, and return the bytes that arrive before the line breaks, and the ETag."""
    request = AWSRequest("GET", f"{line.url}/course/train/{name}", {"range": f"bytes={start}-"})
    S3SigV4Auth(keys, "s3", "us-east-1").add_auth(request)
    connection = http.client.HTTPConnection(line.url.removeprefix("http://"))
    connection.request("GET", f"/course/train/{name}", headers=dict(request.headers))
    answer = connection.getresponse()
    if answer.status == 503:
        raise Busy
    return b"".join(iter(lambda: answer.read(65536), b"")), answer.headers["ETag"]


# %% id="count"
import io

if not (whole and streamed):
    show.say("Solve both tasks first. Then this cell streams with your functions.")
else:
    line.set(latency_s=0.02, cuts=5, cut_after=300_000)
    found, began = [], time.perf_counter()
    for rank in range(2):
        read = lambda name: read_object(ask, name, sizes[name])
        for data in stream(read, list(sizes), rank, 2, 4):
            members = tarfile.open(fileobj=io.BytesIO(data)).getnames()
            found += [name for name in members if name.endswith(".cls")]  # one per sample
    seconds = time.perf_counter() - began
    show.say(
        f"{len(found)} samples arrived, **{len(set(found))} different**, of {packed.samples}. "
        f"{line.count()['requests']} requests for {len(sizes)} shards, in {seconds:.1f} s."
    )
