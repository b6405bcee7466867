# %% [markdown] id="top"
# # 09 · Stream shards from object storage
#
# **Minutes** 40 · **Machine** any Linux computer with two CPUs · **Needs** notebook 05 · **Data** 128 synthetic images
#
# An object store keeps *objects* in *buckets*, and is accessed over HTTP. It is not a file system: in most stores there are
# no folders, nothing is renamed or appended to, and each request waits for the network.

# %% [markdown] id="questions"
# ## Questions
#
# - What does one request cost?
# - When is an upload complete, and how does a reader know?
# - How do I hide the latency of a network?
# - Is each sample read once, even if connections break?

# %% [markdown] id="objectives"
# ## After this you can
#
# - estimate the read rate of a store from latency and object size,
# - push shards in parallel, and recognize half an upload,
# - stream shards into a DataLoader with several requests in flight,
# - distinguish a reader that resumes from one that silently loses samples.

# %% [markdown] id="setup"
# ## Set up

# %% id="start"
import sys

sys.path.append("..")
from helpers import figures, show, start, worksheet

setup = start("09")

# %% [markdown]
# The folded cell starts a real S3 server, and puts its keys into the environment. `line`, in front of the server,
# delays each request and each new connection.

# %% jupyter={"source_hidden": true}
import os
import tempfile
from pathlib import Path

from helpers.experiments.nb09 import Line
from smallfiles import objectstore

bucket = Path(tempfile.mkdtemp(dir=setup.scratch)) / "course"
(bucket / "photos").mkdir(parents=True)
for number in range(1_500):
    (bucket / "photos" / f"{number:05}.jpg").write_bytes(b"a photograph")
server = objectstore.Server(bucket.parent)  # folders in this folder are buckets
line = Line(server.port)
os.environ.pop("AWS_ENDPOINT_URL_S3", None)  # yours, if you have one, would win
os.environ.update(server.environment | {"AWS_ENDPOINT_URL": line.url, "AWS_SESSION_TOKEN": ""})
[*server.environment]  # names only: a key in a notebook stays in its history

# %% [markdown] id="recall"
# > **Recall** (07). Staging takes 60 s and makes each epoch 20 s shorter. When has it paid off? And when does it never?
#
# <details>
# <summary>Answer</summary>
#
# After 3 epochs: 60 / 20. Never, if training is slower than reading: then no epoch gets shorter.
#
# </details>

# %% [markdown] id="ask" tags=["core"]
# ## 1 · Ask for an object
#
# A request is HTTP with a signature; the secret key is never sent. The folded cell defines `ask`, which sends one. We
# store an object (PUT) and read it (GET):

# %% jupyter={"source_hidden": true}
import http.client
from urllib.parse import urlsplit

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.session import Session

keys = Session().get_credentials()  # of the environment, or of ~/.aws


def ask(method, key, query=None, body=b"", **headers):
    """The answer to one request for an object of the bucket `course`."""
    request = AWSRequest(method, f"{line.url}/course/{key}", headers, body, params=query or {})
    S3SigV4Auth(keys, "s3", "us-east-1").add_auth(request)
    signed = request.prepare()
    parts = urlsplit(signed.url)
    connection = http.client.HTTPConnection(parts.netloc)
    connection.request(method, f"{parts.path}?{parts.query}", body, dict(signed.headers))
    return connection.getresponse()


# %%
print(ask("PUT", "hello.txt", body=b"hello").status)
answer = ask("GET", "hello.txt")
print(answer.status, answer.headers["ETag"], answer.read())

# %% [markdown]
# 200 means success. The *ETag* changes with the content.
#
# We read objects of 1 kB to 100 MB, one after the other, without added latency and with 20 ms.
#
# > **Predict.** From which size on does a latency of 20 ms hardly matter?

# %%
guess = 100_000  # change me: bytes

# %%
from functools import partial

from smallfiles import measure

store = objectstore.Store(objectstore.StoreUrl.parse("s3://course/sizes"))
sizes = [10**n for n in range(3, 9)]
for size in sizes:
    store.put(f"{size}", bytes(size))


def get(size):
    return len(store.get(f"{size}"))


far_s = 0.02  # change me: ping your store
lines = {}
for added_s in (0, far_s):
    line.set(latency_s=added_s)
    found = measure.compare({f"{size}": partial(get, size) for size in sizes}, rounds=3, unit="bytes")
    lines[f"{1000 * added_s:.0f} ms added"] = {size: found.rates_per_s(f"{size}") for size in sizes}

# %% [markdown]
# The folded cell draws both. *Bandwidth x latency* is what the connection could bring during one wait.

# %% jupyter={"source_hidden": true}
from statistics import median

fastest = max(median(runs) for found in lines.values() for runs in found.values())
product = fastest * far_s
once, tenfold = (f"{float(f'{size / 1e6:.2g}'):g} MB" for size in (product, 10 * product))
title = f"A latency of {1000 * far_s:.0f} ms hardly matters from about {tenfold} on"
marks = {f"bandwidth x latency = {once}": product, f"ten times that = {tenfold}": 10 * product}
axes = {"x": "size of the object (B)", "y": "throughput (B/s)", "log": "xy", "note": "one request at a time"}
guide = f"{1 / far_s:.0f} objects per second"
drawn = lines | {guide: {size: size / far_s for size in sizes[:4]}}
figures.lines(drawn, title, **axes, marks=marks, guess=guess, ideal=guide)

# %% [markdown]
# One request at a time brings at most 50 objects per second, since each waits 20 ms. With images of 100 kB that is 5
# MB/s, whatever the bandwidth.
#
# An object as large as bandwidth x latency spends half its time waiting, one ten times as large a tenth. So we store
# shards, not images ([05](05_shard_a_dataset.ipynb)), and let requests overlap (section 3).

# %% [markdown] id="push" tags=["core"]
# ## 2 · Push shards, then publish the manifest
#
# Here 16 shards hold 8 images each, about 1 MB. Each has an *index*, a second object that says where its images lie.

# %%
from smallfiles import formats
from smallfiles.formats import tar
from smallfiles.objectstore import TransferConfig
from smallfiles.pack import PackConfig, pack

out = Path(tempfile.mkdtemp(dir=setup.scratch)) / "train.tars"
packed = pack(setup.source(), out, PackConfig(options=tar.Options(max_count=8), shuffle=0))
shards = sorted(path.name for path in packed.path.glob("*.tar"))

# %% [markdown]
# `push` sends these 32 objects. Requests sent and not yet answered are *in flight*.

# %%
objectstore.push(packed.path, "s3://course/train")  # not timed: the first push also loads code
line.set(latency_s=0.05)
for workers in (1, 8):  # change me
    moved = objectstore.push(packed.path, f"s3://course/push-{workers}", config=TransferConfig(workers))
    print(f"{workers} in flight: {moved.objects} objects in {moved.seconds:.1f} s")

# %% [markdown]
# With 8 in flight it is 2 to 4 times as fast here, not 8. Eight connections must open first, and some requests overlap
# with none: at the start `push` asks what is there, and at the end it lists all objects and writes one more.
#
# This last one is the *manifest object* `smallfiles.json`. It names all others, with their digests.
# The folded cell kills a push in the middle.
#
# > **Predict.** Does a listing show the objects that arrived? Does a reader open them?

# %% jupyter={"source_hidden": true}
import multiprocessing
import time

from smallfiles.errors import SmallfilesError

half = "s3://course/half"
there = objectstore.Store(objectstore.StoreUrl.parse(half))
slowly = {"config": TransferConfig(workers=2)}
upload = multiprocessing.get_context("fork").Process(target=objectstore.push, args=(packed.path, half), kwargs=slowly)
upload.start()
while upload.is_alive() and sum(1 for _ in there.entries()) < 15:
    time.sleep(0.01)
upload.kill()
upload.join()

# %%
found = objectstore.ls(half)
print(f"{len(found.entries)} objects: {found.note}")
try:
    objectstore.open(half)
except SmallfilesError as error:
    show.say(f"The reader: *{error}*")
moved = objectstore.push(packed.path, half)
now = objectstore.ls(half).note or "complete"
print(f"pushed again: {moved.kept_bytes / moved.bytes:.0%} was there already; now {now}")

# %% [markdown]
# A program that lists the objects instead would train on a part, without an error.
#
# A listing comes in pages. The folded cell defines `page`, which requests one.

# %% jupyter={"source_hidden": true}
import xml.etree.ElementTree as XML


def page(token=""):
    """Names, and the token of the next page; an empty one begins."""
    query = {"list-type": "2", "prefix": "photos/"} | ({"continuation-token": token} if token else {})
    found = XML.fromstring(ask("GET", "", query).read())
    return [key.text for key in found.iterfind("{*}Contents/{*}Key")], found.findtext("{*}NextContinuationToken")


# %% [markdown]
# **Your turn.** The set-up stored 1,500 objects. Change the marked line, so that all names come:

# %%
names, token = page()
print(len(names), "names on the first page")
while token:
    more, token = [], None  # change me: the names of the next page, and the token of the one after it
    names += more
print(len(names), "names of all pages")

# %% [markdown]
# <details>
# <summary>The line</summary>
#
# `more, token = page(token)`
#
# </details>
#
# A page ends at 1,000 names, and gives the token of the next.

# %% [markdown] id="flight" tags=["core"]
# ## 3 · Keep requests in flight
#
# The order of a stream is known, so a reader can send requests early:
#
# ![One request at a time: each waits for the network, then brings its bytes. Four in flight: the waiting overlaps, and bytes arrive nearly all the time.](pictures/requests_in_flight.svg)
#
# > **Predict.** Each request waits 50 ms and brings a shard of 1 MB. How many shards arrive per second with 1 in flight:
# > 1, 20 or 50? And with 4?

# %%
from concurrent.futures import ThreadPoolExecutor

url = "s3://course/train"
remote = objectstore.Store(objectstore.StoreUrl.parse(url))


def all_shards(in_flight):
    """Get all shards, with several requests in flight, and count them."""
    with ThreadPoolExecutor(in_flight) as pool:
        return sum(map(bool, pool.map(remote.get, shards)))


line.set(latency_s=0.05)
print(measure.compare({f"{n} in flight": partial(all_shards, n) for n in (1, 4)}, rounds=2, unit="shards"))

# %% [markdown]
# One at a time brings at most 20 per second, and here fewer: bytes take time. Four bring at most 80.
#
# But `pool.map` never waits for its reader: if training is slow, a whole epoch may pile up in memory. `objectstore.open`
# returns a reader that requests only what comes next.
#
# <details>
# <summary>How much memory does that take?</summary>
#
# `order="stream"` reads from 20 stretches of shards in turn, to mix classes. It holds a request of 16 MiB for each, and
# 4 in flight (the default): up to 400 MB per worker.
#
# </details>

# %%
from smallfiles.loading import LoaderConfig, make_loader

config = LoaderConfig(batch=32, mode="main", order="stream", buffer=64)
readers = {n: objectstore.open(url, in_flight=n) for n in (1, 8)}
loaders = {f"{n} shard{'s' * (n > 1)}": make_loader(reader, config) for n, reader in readers.items()}


def epoch(loader):
    return sum(len(batch["index"]) for batch in loader)


# %% [markdown]
# The folded cell stores each image as an object too, and defines two ways to read them.

# %% jupyter={"source_hidden": true}
files = objectstore.Store(objectstore.StoreUrl.parse("s3://course/files"))
line.set()
with ThreadPoolExecutor(8) as pool:
    for number, sample in enumerate(formats.open(packed.path)):
        pool.submit(files.put, f"{number}.jpg", bytes(sample.data))


def one_by_one(count=8):
    return sum(bool(files.get(f"{number}.jpg")) for number in range(count))


def eight_at_once(count=32):
    with ThreadPoolExecutor(8) as pool:
        return sum(map(bool, pool.map(lambda number: files.get(f"{number}.jpg"), range(count))))


# %% [markdown]
# > **Predict.** With 50 ms, how many times as many images do 8 shards in flight bring as 1 shard: 8, clearly
# > fewer, or more?

# %%
ways = {"1 image": one_by_one, "8 images": eight_at_once} | {n: partial(epoch, loaders[n]) for n in loaders}
lines = {name: {} for name in ways}
for added_ms in (1, 5, 20, 50):
    line.set(latency_s=added_ms / 1000)
    result = measure.compare(ways, rounds=3, unit="images")
    for name in ways:
        lines[name][added_ms] = result.rates_per_s(name)

# %% [markdown]
# The folded cell draws.

# %% jupyter={"source_hidden": true}
gain = median(lines["8 shards"][50]) / median(lines["1 shard"][50])
title = f"At 50 ms, 8 shards in flight bring about {gain:.0f} times as many images as 1 shard"
figures.lines(lines, title, x="added latency (ms)", y="images per second", log="xy", note="legend: what is in flight")

# %% [markdown]
# With 8 shards in flight, an epoch takes 2 waits instead of 16. Receiving and checking remain, so the factor is less
# than 8: here 3 to 7.
#
# From 20 ms on two lines meet: 8 images in flight come as fast as one shard of 8, but take eight requests.
#
# A real store brings one large request at about 90 MB/s, this server more. Ten times bandwidth x latency is then 18 MB.
# So the reader fetches larger shards in parts of 16 MiB.
#
# > **Predict.** Your network brings 1.25 GB/s, one large request 90 MB/s after its wait. How many requests of 16 MiB in
# > flight fill the network: 3, 15 or 60?

# %%
guess = 60  # change me: requests in flight
bandwidth, connection = 1.25e9, 90e6  # change me: bytes/s of your network (10 Gbit/s), and of one large request
request_s = far_s + (16 << 20) / connection  # it waits, then brings its bytes
in_flight = round(bandwidth * request_s / (16 << 20), 1)
worksheet.note("09", in_flight=in_flight)
f"{in_flight} requests of 16 MiB fill the network; your guess: {guess}"

# %% [markdown]
# With 10 Gbit/s about 15 do: 14 answers of 90 MB/s fill the network, while one or two wait. Four workers with the
# default `in_flight=4` are enough.
# [Amazon](https://docs.aws.amazon.com/whitepapers/latest/s3-optimizing-performance-best-practices/horizontal-scaling-and-request-parallelization-for-high-throughput.html)
# recommends about as many.
#
# You can now solve task 2 of [exercise 09](../exercises/09_stream_shards.ipynb).

# %% [markdown] id="once" tags=["core"]
# ## 4 · Read each sample once, on a line that breaks
#
# We count an epoch of 2 ranks with 2 workers each, while six answers break off in the middle.
#
# > **Predict.** Do all 128 samples arrive? Does any arrive twice?

# %%
from collections import Counter

line.set(cuts=6, cut_after=400_000)
came = Counter()
for rank in range(2):
    config = LoaderConfig(batch=16, workers=2, mode="processes", order="stream", buffer=64, rank=rank, world_size=2)
    for batch in make_loader(readers[8], config):
        came.update(batch["index"].tolist())
for times, count in Counter(came.values()).items():
    print(f"{count} of {packed.samples} samples came {times}x")
print(f"{line.count()['requests']} requests for {len(shards)} shards")

# %% [markdown]
# All arrive once: six more requests fetched the rest.
#
# Here are two ways to get one shard. You will write `missing`.


# %%
def takes_what_came(key):
    answer, data = ask("GET", key), b""
    while piece := answer.read(65536):
        data += piece
    return data


def goes_on(key):
    head, data = ask("HEAD", key).headers, b""
    while len(data) < int(head["content-length"]):
        answer = ask("GET", key, **{"range": missing(data)})
        if answer.headers["etag"] != head["etag"]:
            raise OSError(f"{key} has changed")
        while piece := answer.read(65536):
            data += piece
    return data


# %% [markdown]
# > **Predict.** Three answers break off after a third of the shard. What does `takes_what_came` return: the shard, a
# > part of it, or an error?
#
# **Your turn.** Which bytes must `goes_on` request next? The range `bytes=100-` goes from byte 100 to the end. Change the
# marked line until the second way is right.

# %%
def missing(data):
    return "bytes=0-"  # change me: only the bytes that are missing


shard = (packed.path / shards[0]).read_bytes()
for way in (takes_what_came, goes_on):
    line.set(cuts=3, cut_after=len(shard) // 3)
    data, sent = way(f"train/{shards[0]}"), line.count()["bytes"] / len(shard)
    returned = len(data) / len(shard)
    print(f"{way.__name__:15} returns {returned:4.0%} (right: {data == shard}); {sent:4.0%} travelled")

# %% [markdown]
# <details>
# <summary>The line</summary>
#
# `return f"bytes={len(data)}-"`
#
# </details>
#
# The first way returns a third, without an error: if a connection is closed early, `read(n)` of `http.client` returns
# what has come so far (`read()` raises `IncompleteRead`). A tar cut inside an image gives an error, which loaders can be
# told to skip. Cut between two files, it looks like a shorter one.
#
# The second way requests only the rest. It compares the ETag, so it never joins two versions. Compare
# `Content-Range` too: a server may ignore the range, and send the whole shard.
#
# You can now solve task 1 of [exercise 09](../exercises/09_stream_shards.ipynb).

# %% [markdown] id="keep" tags=["optional"]
# ## 5 · Keep shards on the node
#
# *Optional, 5 minutes.* Every epoch requests the same shards, so a node can keep some in `/dev/shm` or on its disk. Our
# reader keeps a *fixed part* of them: the first of the list that fit. Most caches follow LRU (*least recently used*):
# they keep what was read last.
#
# > **Predict.** A node has room for half of the shards, and each epoch has another order. What share of the requests
# > does a fixed part save, and LRU?

# %%
guess = 50  # change me: % of the requests that LRU saves

# %%
KEEP = 0.5  # change me: share of the shards that fits
total = sum(path.stat().st_size for path in packed.path.glob("*.tar"))
place = tempfile.mkdtemp(dir=setup.scratch)  # without `where` the reader chooses, here /dev/shm
reader = objectstore.open(url, in_flight=2, keep_bytes=int(KEEP * total), where=place)
loader, requests = make_loader(reader, LoaderConfig(batch=32, mode="main", order="stream", buffer=64)), []
for _ in range(2):
    line.set()
    epoch(loader)
    requests.append(line.count()["requests"])
reader.close()
print(f"a fixed part: {requests[0]} requests in the first epoch, {requests[1]} in the second")

# %% [markdown]
# The folded cell simulates LRU with the same room.

# %% jupyter={"source_hidden": true}
import numpy as np

rng, room, found = np.random.default_rng(0), max(1, int(KEEP * len(shards))), 0
kept = list(range(room))
for _ in range(500):
    for number in rng.permutation(len(shards)).tolist():
        found += number in kept
        kept = [*(other for other in kept if other != number), number][-room:]
saved = {"LRU": round(100 * found / 500 / len(shards)), "a fixed part": round(100 * (1 - requests[1] / requests[0]))}
title = f"With room for {KEEP:.0%} of the shards, LRU saves {saved['LRU']}%, a fixed part {saved['a fixed part']}%"
show.figure(figures.bars(saved, title, x="requests saved (%)", note="LRU simulated", counted=True, guess=guess, guess_of="LRU"))

# %% [markdown]
# LRU saves fewer, because it has usually dropped a shard when the next epoch needs it.
#
# <details>
# <summary>And on many nodes?</summary>
#
# A fixed part fills slowly there: each of 64 nodes reads another 64th of the set in each epoch. Before the tenth epoch
# it has met 13 % of the set. With room for half of the set, half of that is in its part, so it saves 7 % of its
# requests. So stage the set, or stream it.
#
# </details>

# %% [markdown] id="exercise"
# ## Exercise
#
# [Exercise 09](../exercises/09_stream_shards.ipynb): read objects though requests fail, and stream an epoch exactly once
# over two ranks.

# %% [markdown] id="cluster"
# ## On the cluster
#
# On many clusters only some nodes reach a store. Find out, then push once:
#
# ```bash
# export AWS_ENDPOINT_URL=https://s3.example.org            # and your keys: in the environment, or in ~/.aws/credentials
# # any answer of the store, even 403, means: they reach it (one of a proxy does not count)
# srun -p PARTITION -N1 curl -sSI -m 10 "$AWS_ENDPOINT_URL"
# ```

# %%
show.command(TransferConfig(workers=32), "push", "train.tars", "s3://course/train")

# %% [markdown]
# ```bash
# slurm/submit SITE 09_stream -- train.tars s3://course/train seen   # notes in `seen` what came, and counts it
# ```
#
# 64 nodes that each train 5,000 images/s of 110 kB ask for 35 GB/s. If the store gives less, fetch the shards once to the
# parallel file system: `smallfiles pull s3://course/train train.tars`.

# %% [markdown] id="key-points"
# ## Key points
#
# - One request at a time brings at most one object per round trip: store shards.
# - Requests in flight hide latency, and fill the network.
# - A manifest object, written last, shows what is complete. A listing does not.
# - An answer that breaks off is continued by range, and its ETag compared.
# - A node that reads the whole set each epoch saves most with a fixed part. Many nodes stage or stream.

# %% [markdown] id="quiz"
# ## Check yourself
#
# **1.** Round trips take 50 ms. You read images of 100 kB, one at a time, over a network of 10 Gbit/s, and get (a) 1.25 GB/s
# (b) 125 MB/s (c) 2 MB/s
#
# <details>
# <summary>Answer</summary>
#
# **(c)**: 20 requests per second of 100 kB. (a) is the network, which is nearly idle.
#
# </details>
#
# **2.** An epoch yields a few hundred images fewer than the day before, without an error. What do you look for
# first? (a) A connection that broke off (b) A damaged JPEG (c) A full `/dev/shm`
#
# <details>
# <summary>Answer</summary>
#
# **(a)**, in a reader that ignores it: the rest of a shard is missing. (b) would be an error, or one image fewer. (c)
# stops or slows a program; it loses no images.
#
# </details>

# %% [markdown] id="next"
# ## Next
#
# [10 · Run it on many nodes](10_run_it_on_many_nodes.ipynb)
