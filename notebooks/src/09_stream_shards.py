# %% [markdown] id="top"
# # 09 · Stream shards from object storage
#
# **Minutes** 40 · **Machine** any Linux computer with two CPUs · **Needs** notebook 05 · **Data** 128 synthetic images
#
# An object store keeps *objects* in *buckets*, and is accessed over HTTP. It is cheap and large, but not a file system:
# there are no folders, nothing is renamed or appended to, and each request waits for the network.

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
# - push shards in parallel so that half an upload is never mistaken for a whole one,
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
# The folded cell starts a real S3 server here, with 1,500 small objects for section 2. `line`, in front of it, delays
# each request as we choose. The access keys are in the environment, because a key in a notebook stays in its history.

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
[*server.environment]  # the keys are in the environment, not in the notebook

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
# A request is HTTP with a signature; the secret key is never sent. The folded cell defines `ask`, which sends one
# request. We store an object (PUT) and read it (GET):

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
# Now we read objects of 1 kB to 100 MB, one after the other, without added latency and with 20 ms.
#
# > **Predict.** With 20 ms, how many images of 100 kB arrive per second: about 45, 450 or 4,500? Above which size does
# > the latency hardly matter?

# %%
from functools import partial

from smallfiles import measure

store = objectstore.Store(objectstore.StoreUrl.parse("s3://course/sizes"))
sizes = [1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000]
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
# The folded cell draws both. *Bandwidth x latency* is what a connection could bring during one wait.

# %% jupyter={"source_hidden": true}
from statistics import median

added = f"{1000 * far_s:.0f} ms"
slow = {size: median(runs) for size, runs in lines[f"{added} added"].items()}
fast = {size: median(runs) for size, runs in lines["0 ms added"].items()}
images, share = slow[100_000] / 1e6, slow[100_000_000] / fast[100_000_000]
large = "about as fast as without" if share > 0.85 else f"at {share:.0%} of the speed without"
title = f"With {added}, {10 * images:.0f} images of 100 kB arrive per second ({images:.1f} MB/s); objects of 100 MB come {large}"
marks = {"bandwidth x latency": fast[100_000_000] * far_s}
figures.lines(lines, title, x="size of the object (B)", y="throughput (B/s)", log="xy", marks=marks, note="one request at a time")

# %% [markdown]
# At 20 ms, one request at a time brings at most 50 objects per second: less than 5 MB/s for images of 100 kB, whatever
# the bandwidth.
#
# An object of bandwidth x latency (1.8 MB, if a connection brings 90 MB/s) takes twice as long as its bytes alone. One of
# ten times that size takes only a tenth longer. So we store shards, not images ([notebook
# 05](05_shard_a_dataset.ipynb)).

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
# `push` sends these 32 objects, lists them, and compares sizes and ETags. Requests that are sent and not yet answered
# are *in flight*.
#
# > **Predict.** With 50 ms, how much faster is a push with 8 requests in flight than with one: 2 to 4 times, or 8
# > times?

# %%
objectstore.push(packed.path, "s3://course/first")  # not timed: the first push also loads code
line.set(latency_s=0.05)
seconds = {}
for workers in (1, 4, 8):
    moved = objectstore.push(packed.path, f"s3://course/push-{workers}", config=TransferConfig(workers))
    seconds[f"{workers} in flight"] = moved.seconds
gain = seconds["1 in flight"] / seconds["8 in flight"]
figures.bars(seconds, f"With 8 requests in flight {moved.objects} objects are pushed {gain:.1f} times as fast", x="time (s)", note="each once")

# %% [markdown]
# Here it is 2 to 4 times, because listing and publishing wait for all others. With more objects it nears 8.
#
# The object that `push` writes last is the *manifest object* `smallfiles.json`, which names each object with its
# digest. The folded cell kills a push in the middle.
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
# A reader that lists objects would have trained on part of the set, without an error. Listings have another trap.
#
# > **Predict.** How many of the 1,500 names of the set-up does one request return: 100, 1,000 or all?
#
# The folded cell defines `page`, which requests one.

# %% jupyter={"source_hidden": true}
import xml.etree.ElementTree as XML


def page(token=""):
    """Names, and the token of the next page; an empty one begins."""
    query = {"list-type": "2", "prefix": "photos/"} | ({"continuation-token": token} if token else {})
    found = XML.fromstring(ask("GET", "", query).read())
    return [key.text for key in found.iterfind("{*}Contents/{*}Key")], found.findtext("{*}NextContinuationToken")


# %% [markdown]
# Complete the marked line, so that all 1,500 come:

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
# A page ends at 1,000 names, and only then tells the token of the next. So ImageNet, as an object per image, takes 1,282
# pages one after the other: 26 s at 20 ms.
#
# <details>
# <summary>Can pages be requested at the same time?</summary>
#
# Yes, if you know roughly which names there are: a list begins after any name that `start-after` gives it.
#
# </details>

# %% [markdown] id="flight" tags=["core"]
# ## 3 · Keep requests in flight
#
# The order of a stream is known, so a reader can send requests early:
#
# ![One request at a time: each waits for the network, then brings its bytes. Four in flight: the waiting overlaps, and bytes arrive nearly all the time.](pictures/requests_in_flight.svg)
#
# > **Predict.** Each request waits 50 ms and brings a shard of 1 MB. How many MB arrive per second with 1 in flight:
# > 1, 20 or 50? And with 4?

# %%
from concurrent.futures import ThreadPoolExecutor

url = "s3://course/push-8"
remote = objectstore.Store(objectstore.StoreUrl.parse(url))


def all_shards(in_flight):
    """MB of all shards, with several requests in flight."""
    with ThreadPoolExecutor(in_flight) as pool:
        return sum(map(len, pool.map(remote.get, shards))) // 1_000_000


line.set(latency_s=0.05)
print(measure.compare({f"{n} in flight": partial(all_shards, n) for n in (1, 4)}, rounds=2, unit="MB"))

# %% [markdown]
# `pool.map` never waits for its reader. If training is slower than the network, up to a whole epoch (ImageNet: 140 GB)
# piles up in memory. `objectstore.open` returns a reader that requests only what comes next.
#
# <details>
# <summary>How much memory does that take?</summary>
#
# A part of 16 MiB for each request in flight, and for each of the 20 ranges that `order="stream"` mixes (notebook 05):
# up to 400 MB per worker with 4 in flight (the default), and 600 MB with 16. The reader also compares each block of 4
# MiB with its digest.
#
# </details>

# %%
from smallfiles.loading import LoaderConfig, make_loader

config = LoaderConfig(batch=32, mode="main", order="stream", buffer=64)
readers = {}
for n in (1, 8, 16):
    line.set()
    readers[n] = objectstore.open(url, in_flight=n)
    print(f"{n} in flight: {line.count()['requests']} requests to open")
loaders = {n: make_loader(reader, config) for n, reader in readers.items()}

# %% [markdown]
# The first reader on a node asks for the manifest's ETag, then fetches it and 16 indexes. The others only ask, so hundreds
# of ranks do not flood the store.
#
# The folded cell stores each image as an object, to compare. Then it times an epoch without latency, T1 with 1 shard in
# flight, T8 with 8:

# %% jupyter={"source_hidden": true}
files = objectstore.Store(objectstore.StoreUrl.parse("s3://course/files"))
line.set()
with ThreadPoolExecutor(8) as pool:
    for number, sample in enumerate(formats.open(packed.path)):
        pool.submit(files.put, f"{number}.jpg", bytes(sample.data))


def epoch(loader):
    return sum(len(batch["index"]) for batch in loader)


def one_by_one(count=8):
    return sum(bool(files.get(f"{number}.jpg")) for number in range(count))


def eight_at_once(count=32):
    with ThreadPoolExecutor(8) as pool:
        return sum(map(bool, pool.map(lambda number: files.get(f"{number}.jpg"), range(count))))


def took_ms(loader):
    began = time.perf_counter()
    epoch(loader)
    return 1000 * (time.perf_counter() - began)


near_ms = {n: min(took_ms(loaders[n]) for _ in range(7)) for n in (1, 8)}  # the first of seven also loads code
for n in near_ms:
    print(f"{n} in flight: T{n} = {near_ms[n]:.0f} ms for bytes and hashes of all shards")

# %% [markdown]
# > **Predict.** Latency adds 16 waits to T1, but 2 to T8, since 8 shards wait together. For which wait w, in ms, do 8
# > bring twice as many images as 1? It solves T1 + 16 w = 2 (T8 + 2 w). (Drawn below.)

# %%
guess = 10  # change me: w, in milliseconds

# %%
ways = {"images, 1 in flight": one_by_one, "images, 8 in flight": eight_at_once}
ways |= {f"shards, {n} in flight": partial(epoch, loaders[n]) for n in loaders}
lines = {name: {} for name in ways}
LATENCIES_MS = (1, 2, 5, 20, 50)
for added_ms in LATENCIES_MS:
    line.set(latency_s=added_ms / 1000)
    result = measure.compare(ways, rounds=2, unit="images")
    for name in ways:
        lines[name][added_ms] = result.rates_per_s(name)

# %% [markdown]
# The folded cell draws the factor, and prints the rates at 50 ms:

# %% jupyter={"source_hidden": true}
from itertools import pairwise

print(f"With {added_ms} ms:\n{result}")
one, eight = (lines[f"shards, {n} in flight"] for n in (1, 8))
gains = {ms: [b / a for a, b in zip(one[ms], eight[ms], strict=True)] for ms in LATENCIES_MS}
middle = {ms: median(runs) for ms, runs in gains.items()}
crossed = [(a, b) for a, b in pairwise(middle) if middle[a] < 2 <= middle[b]]
places = [a + (b - a) * (2 - middle[a]) / (middle[b] - middle[a]) for a, b in crossed[:1]]
title = f"8 shards in flight bring {middle[1]:.1f} times as many images as 1 at 1 ms, {middle[50]:.1f} times at 50 ms"
title += f", and twice as many from about {places[0]:.0f} ms on" if places else ""
computed_ms = (2 * near_ms[8] - near_ms[1]) / 12
drawn = {"8 shards in flight": gains, "twice as many": dict.fromkeys(LATENCIES_MS, 2)}
marks = {f"computed: {computed_ms:.1f} ms": computed_ms} if computed_ms > 0 else {}
axes = {"x": "added latency (ms)", "y": "times as many images as 1 in flight", "log": "x", "ideal": "twice as many"}
show.figure(figures.lines(drawn, title, **axes, guess=guess, marks=marks))

# %% [markdown]
# The equation gives w = (2 T8 - T1) / 12. If that is negative, 8 bring twice as many without latency. At 50 ms, they
# bring 3 to 7 times as many, not 8, since T8 remains.
#
# <details>
# <summary>Why do the computed and the measured w differ?</summary>
#
# Small errors of T1 or T8 can halve or double w, which is the difference of two larger numbers. And other programs
# disturb both measurements.
#
# </details>
# <details>
# <summary>Why do eight single images in flight bring about as many as one shard of eight?</summary>
#
# They hide the latency as well. But they take eight requests.
#
# </details>
#
# > **Predict.** A request of 16 MiB waits 20 ms, then brings 90 MB/s. How many fill 10 Gbit/s (1.25 GB/s): 2, 15 or 75?

# %%
bandwidth, connection = 1.25e9, 90e6  # change me: bytes/s of your network, and of one large GET alone
worksheet.note("09", in_flight=round(bandwidth * (far_s / (16 << 20) + 1 / connection), 1))

# %% [markdown]
# 14 are arriving (1.25 GB/s / 90 MB/s), while 1.5 wait.
# [Amazon](https://docs.aws.amazon.com/whitepapers/latest/s3-optimizing-performance-best-practices/horizontal-scaling-and-request-parallelization-for-high-throughput.html)
# advises about 15.

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
# All arrive once: six more requests fetched the rest. Here are three ways to get one shard. The third calls `missing`,
# which you will write:

# %%


def takes_what_came(key):
    answer, data = ask("GET", key), b""
    while piece := answer.read(65536):
        data += piece
    return data


def begins_anew(key):
    size = int(ask("HEAD", key).headers["content-length"])
    while len(data := takes_what_came(key)) < size:
        pass
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
# Which bytes must `goes_on` request next? The range `bytes=100-` goes from byte 100 to the end.
#
# > **Predict.** Three answers break off after a third of the shard. Which ways return all of it, once your line is right?
# > And which of these sends less?

# %%
def missing(data):
    return "bytes=0-"  # change me: only the bytes that are missing


shard = (packed.path / shards[0]).read_bytes()
for way in (takes_what_came, begins_anew, goes_on):
    line.set(cuts=3, cut_after=len(shard) // 3)
    data, sent = way(f"push-8/{shards[0]}"), line.count()["bytes"] / len(shard)
    print(f"{way.__name__:15} returns {len(data) / len(shard):4.0%} (right: {data == shard}); {sent:4.0%} travelled")

# %% [markdown]
# <details>
# <summary>The line</summary>
#
# `return f"bytes={len(data)}-"`
#
# </details>
#
# The first way raises no error if a server or proxy *closes* early: `read(n)` of `http.client` returns the bytes so far. A
# tar cut between two files looks like a shorter one. The second way may never end if connections break too early.
#
# The third requests only the rest. It compares the ETag, so it never joins two versions. `Store.get_range` does this
# (*folded*):
#
# <details>
# <summary>What if the connection is reset, not closed?</summary>
#
# Then `read` raises `ConnectionResetError`, which none of the three catches. `Store.get_range` does, and goes on.
#
# </details>

# %% jupyter={"source_hidden": true}
line.set(cuts=3, cut_after=len(shard) // 3)
data, sent = remote.get_range(shards[0], 0, len(shard)), line.count()["bytes"] / len(shard)
print(f"get_range       returns {len(data) / len(shard):4.0%} (right: {data == shard}); {sent:4.0%} travelled")

# %% [markdown] id="keep" tags=["optional"]
# ## 5 · Keep shards on the node
#
# *Optional, 7 minutes.* Every epoch requests the same shards. A node can keep some in `/dev/shm` or on its disk, as in
# [staging](07_stage_a_dataset.ipynb).
#
# > **Predict.** With room for 8 of 16 shards, how many requests does a second epoch send: 16, 8 or 0?

# %%
KEEP = 0.5  # change me: share of the shards that fits
total = sum(path.stat().st_size for path in packed.path.glob("*.tar"))
config, epochs = LoaderConfig(batch=32, mode="main", order="stream", buffer=64), {}
for name, share in {"keeps nothing": 0.0, f"keeps {KEEP:.0%}": KEEP, "keeps all": 1.0}.items():
    place = tempfile.mkdtemp(dir=setup.scratch)  # one for each reader; without `where` it would be /dev/shm
    reader = objectstore.open(url, in_flight=2, keep_bytes=int(share * total), where=place)
    loader, epochs[name] = make_loader(reader, config), {}
    for number in (1, 2):
        line.set(latency_s=0.02)
        epoch(loader)
        epochs[name][number] = line.count()["requests"]
    reader.close()
    print(f"{name:13} {epochs[name][1]:2} requests in the first epoch, {epochs[name][2]:2} in the second")

# %% [markdown]
# Half of the set saves half of the requests, since our reader keeps a *fixed part*, chosen beforehand. The usual rule
# for caches (LRU, *least recently used*) drops the shard used longest ago.
#
# > **Predict.** How many requests does LRU save with the same room: 17, 50 or 83 %? (Drawn below.)

# %%
guess = 50  # change me: %, if each epoch has another order

# %% [markdown]
# The folded cell simulates it:

# %% jupyter={"source_hidden": true}
import numpy as np


def saved_by_lru(shuffled, shards=16, epochs=500):
    """Share of the shards of an epoch that need no request."""
    room = max(1, int(KEEP * shards))
    rng, kept, found = np.random.default_rng(0), list(range(room)), 0
    for _ in range(epochs):
        for shard in rng.permutation(shards).tolist() if shuffled else range(shards):
            found += shard in kept
            kept = [*(other for other in kept if other != shard), shard][-room:]
    return found / (epochs * shards)


fixed = 1 - epochs[f"keeps {KEEP:.0%}"][2] / epochs["keeps nothing"][2]
saved = {"LRU, shuffled": saved_by_lru(True), "LRU, same order": saved_by_lru(False), "a fixed part": fixed}
saved = {name: round(100 * share) for name, share in saved.items()}
lru, same, part = saved.values()
title = f"With room for {KEEP:.0%} of the shards, a fixed part saves {part}% of the requests, and LRU {lru}%"
title += f", or {same}% if the order is always the same"
show.figure(figures.bars(saved, title, x="requests saved (%)", counted=True, guess=guess, guess_of="LRU, shuffled"))

# %% [markdown]
# LRU has usually dropped a shard when the next epoch needs it.
#
# On many nodes a fixed part fills slowly, because each of 64 nodes reads another 64th of the set in each epoch.
#
# > **Predict.** With room for half of the set, a node can save 50 % of its requests. In which epoch do 64 nodes save
# > 25 %: 4, 46 or 460?

# %%
guess = 4  # change me: the epoch

# %% [markdown]
# The folded cell draws it:

# %% jupyter={"source_hidden": true}
fills = {  # whole shards are dealt; those of more than 48 MiB are dealt in parts, so they come sooner
    f"{nodes} node{'s' * (nodes > 1)}": {n: 50 * (1 - (1 - 1 / nodes) ** (n - 1)) for n in range(1, 101)}
    for nodes in (1, 8, 64)
}
half = next(number for number, share in fills["64 nodes"].items() if share > 25)
title = f"One node saves all it can from epoch 2 on; 64 nodes save half of that in epoch {half}"
show.figure(figures.lines(fills, title, x="epoch", y="requests saved (%)", guess=guess, counted=True))

# %% [markdown]
# So on many nodes stage the set, or stream it.

# %% [markdown] id="exercise"
# ## Exercise
#
# [Exercise 09](../exercises/09_stream_shards.ipynb): read objects though requests fail, and stream an epoch exactly once
# over two ranks.

# %% [markdown] id="cluster"
# ## On the cluster
#
# On many clusters only some compute nodes can reach a store. Find out, then push once:
#
# ```bash
# export AWS_ENDPOINT_URL=https://s3.example.org            # and your keys: in the environment, or in ~/.aws/credentials
# srun -p PARTITION -N1 curl -sSI -m 10 "$AWS_ENDPOINT_URL"   # any answer, even 403: such nodes reach it
# ```

# %%
show.command(TransferConfig(workers=32), "push", "train.tars", "s3://course/train")

# %% [markdown]
# ```bash
# slurm/submit SITE 09_stream -- train.tars s3://course/train seen   # notes in `seen` what came, and counts it
# ```
#
# All nodes share the store: 64 that each train 5,000 images/s of 110 kB ask for 35 GB/s. If it gives less, fetch
# the shards once to the parallel file system (`smallfiles pull s3://course/train train.tars`). Stream what is too large
# for it, or is read once.

# %% [markdown] id="key-points"
# ## Key points
#
# - One request at a time brings at most one object per round trip: store shards.
# - Requests in flight hide latency. To fill a network you also need enough connections: bandwidth / what one brings.
# - A manifest object, written last, shows what is complete. A listing does not.
# - An answer that breaks off is continued by range, and its ETag compared.
# - On few nodes, keep a fixed part of the shards. Keep keys out of programs.

# %% [markdown] id="quiz"
# ## Check yourself
#
# **1.** Round trips take 50 ms, and you read images of 100 kB, one request at a time, over a network of 10 Gbit/s. You
# get (a) 1.25 GB/s (b) 125 MB/s (c) 2 MB/s
#
# <details>
# <summary>Answer</summary>
#
# **(c)**: 20 requests per second of 100 kB. (a) is the network, which is idle nearly all the time.
#
# </details>
#
# **2.** An epoch yields a few hundred images fewer than the day before, and there was no error. What do you look for
# first? (a) A connection that broke off (b) A damaged JPEG (c) A full `/dev/shm`
#
# <details>
# <summary>Answer</summary>
#
# **(a)**, in a reader that ignores it: the rest of a shard is missing. (b) would be an error, or one image fewer. (c)
# stops the program.
#
# </details>

# %% [markdown] id="next"
# ## Next
#
# [10 · Run it on many nodes](10_run_it_on_many_nodes.ipynb): ranks, nodes, and what a job script must pass on.
