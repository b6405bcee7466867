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
# each request as we choose. The server's access keys are drawn anew and passed on in the environment, because a key
# written into a notebook stays in its history.

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
# The status 200 means success. The *ETag* changes with the content.
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
# The folded cell draws both. *Bandwidth x latency* is what the network could bring during one wait.

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
# An object of bandwidth x latency (25 MB at 20 ms with 10 Gbit/s) takes twice as long as its bytes alone. One of ten
# times that size takes only a tenth longer. So we store shards, not images ([notebook 05](05_shard_a_dataset.ipynb)).

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
# Usually it is 2 to 4 times, because listing and publishing wait for all others, and the server shares this machine.
#
# The object that `push` writes last is the *manifest object* `smallfiles.json`, which names each object with its
# digest. The folded cell kills a push in the middle.
#
# > **Predict.** What does a listing show? What does a reader do?

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
# > **Predict.** How many of the 1,500 names of the set-up does one request return?
#
# The folded cell asks for all pages.

# %% jupyter={"source_hidden": true}
import xml.etree.ElementTree as XML


def page(token=""):
    """Names, and where the next page begins."""
    query = {"list-type": "2", "prefix": "photos/"} | ({"continuation-token": token} if token else {})
    found = XML.fromstring(ask("GET", "", query).read())
    return [key.text for key in found.iterfind("{*}Contents/{*}Key")], found.findtext("{*}NextContinuationToken")


names, token = page()
print(len(names), "names; is there another page?", bool(token))
while token:
    more, token = page(token)
    names += more
print(len(names), "names of all pages")

# %% [markdown]
# A page ends at 1,000 names, and cannot be requested before the previous one has arrived. ImageNet, as an object per
# image, has 1,282 pages: 26 s at 20 ms.

# %% [markdown] id="flight" tags=["core"]
# ## 3 · Keep requests in flight
#
# The order of a stream is known, so a reader can send requests early:
#
# ![One request at a time: each waits for the network, then brings its bytes. Four in flight: the waiting overlaps, and bytes arrive nearly all the time.](pictures/requests_in_flight.svg)
#
# *No request is faster: they wait at the same time.*
#
# > **Predict.** Each request waits 50 ms and brings a shard of 1 MB. How many MB arrive per second with 1 in flight?
# > And with 4?

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
# `pool.map` never waits for its reader, so an epoch of ImageNet would take 140 GB of memory. `objectstore.open` returns
# a reader for `make_loader` that requests only what comes next.
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
# Each reader asks whether the manifest has changed. Only the first one on a node also fetches the manifest and 16
# indexes, so hundreds of ranks do not flood the store.
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


for n in (1, 8):  # the least of seven: the first one also loads code
    print(f"{n} in flight: T{n} = {min(took_ms(loaders[n]) for _ in range(7)):.0f} ms for bytes and hashes of all shards")

# %% [markdown]
# > **Predict.** Latency adds 16 waits to T1, and 2 to T8, since 8 shards wait together. From which latency on do 8
# > shards in flight bring twice as many images as 1? The figure shows your guess.

# %%
guess = 10  # change me: milliseconds

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
# The folded cell draws this, and notes how many requests *your* network needs, with `far_s`.

# %% jupyter={"source_hidden": true}
from itertools import pairwise

worksheet.note("09", in_flight=round(1 + fast[100_000_000] * far_s / (16 << 20), 1))
far = {name: median(line[50]) for name, line in lines.items()}
one, eight = (f"shards, {n} in flight" for n in (1, 8))
gain, single = far[eight] / far[one], far[one] / far["images, 1 in flight"]
title = f"At 50 ms, shards bring {single:.0f} times the images of single objects; with 8 in flight {gain:.1f} times as many again"
gains = {ms: median(lines[eight][ms]) / median(lines[one][ms]) for ms in LATENCIES_MS}
crossed = [(a, b) for a, b in pairwise(gains) if gains[a] < 2 <= gains[b]]
places = [a + (b - a) * (2 - gains[a]) / (gains[b] - gains[a]) for a, b in crossed[:1]]
marks = {f"8 bring twice: {place:.1f} ms": place for place in places}
figures.lines(lines, title, x="added latency (ms)", y="images per second", log="xy", guess=guess, marks=marks)

# %% [markdown]
# Eight shards in flight bring twice as many images as one when T1 + 16 waits = 2 (T8 + 2 waits): from a wait of about
# (2 T8 - T1) / 12 on, or at once if that is negative. Small errors of T1 or T8 halve or double it.
#
# At 50 ms they bring 3 to 7 times as many, not 8, since T8 remains. With 16 in flight, the whole set, there is one
# round of waiting instead of two.
#
# <details>
# <summary>Why do two lines meet?</summary>
#
# Eight single images in flight hide the latency as one shard of eight does. But they take eight requests.
#
# </details>
# <details>
# <summary>How many requests does a network of 1.25 GB/s need?</summary>
#
# To hide the latency: bandwidth x latency / 16 MiB, and one that is arriving. At 20 ms that is 2.5. To fill the
# network, if one connection brings only 100 MB/s: 14, because each waits 20 ms, then brings 16 MiB in 168 ms. Take the
# larger number.
#
# </details>

# %% [markdown] id="once" tags=["core"]
# ## 4 · Read each sample once, on a line that breaks
#
# We count an epoch of 2 ranks with 2 workers each, while six answers break off in the middle.
#
# > **Predict.** How many of the 128 samples arrive, and how often?

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
# All arrive once: six more requests fetched the rest. Three functions that get one shard follow. The third calls
# `missing`, which you will write:

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
# > **Predict.** Three answers break off after a third of the shard. How many bytes does each way return, and how many
# > are sent?

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
# The first way raises no error: when the line breaks, `read(n)` of `http.client` returns the bytes so far (`read()`
# without a number would raise), and a tar cut between two files looks like a shorter one. The second is right, but may
# never end if connections break before a shard is complete.
#
# The third, with that line, requests only the rest. It compares the ETag, so it never joins two versions.
# `Store.get_range` does this (*folded*):

# %% jupyter={"source_hidden": true}
line.set(cuts=3, cut_after=len(shard) // 3)
data, sent = remote.get_range(shards[0], 0, len(shard)), line.count()["bytes"] / len(shard)
print(f"get_range       returns {len(data) / len(shard):4.0%} (right: {data == shard}); {sent:4.0%} travelled")

# %% [markdown] id="keep" tags=["optional"]
# ## 5 · Keep shards on the node
#
# *Optional, 5 minutes.* Every epoch requests the same shards. A node can keep some in `/dev/shm` or on its disk, as in
# [staging](07_stage_a_dataset.ipynb).
#
# > **Predict.** With room for 8 of 16 shards, how many requests does a second epoch send?

# %%
KEEP = 0.5  # change me: share of the shards that fits
total = sum(path.stat().st_size for path in packed.path.glob("*.tar"))
config, epochs = LoaderConfig(batch=32, mode="main", order="stream", buffer=64), {}
for name, share in {"keeps nothing": 0.0, "keeps all": 1.0, f"keeps {KEEP:.0%}": KEEP}.items():
    place = tempfile.mkdtemp(dir=setup.scratch)  # one for each reader; without `where` it would be /dev/shm
    reader = objectstore.open(url, in_flight=2, keep_bytes=int(share * total), where=place)
    loader, epochs[name] = make_loader(reader, config), {}
    for number in (1, 2, 3):
        line.set(latency_s=0.02)
        epoch(loader)
        epochs[name][number] = line.count()["requests"]
    reader.close()

# %% [markdown]
# The folded cell draws it.

# %% jupyter={"source_hidden": true}
second = {name: requests[2] for name, requests in epochs.items()}
title = f"A second epoch sends {second['keeps nothing']} requests with nothing kept, {second[f'keeps {KEEP:.0%}']} with {KEEP:.0%} kept, {second['keeps all']} with all"
figures.lines(epochs, title, x="epoch", y="requests of the epoch", counted=True)

# %% [markdown]
# On one node, half of the set saves half of the requests later: our reader keeps a *fixed part*, chosen beforehand. The
# usual rule for caches (LRU, *least recently used*) drops the shard used longest ago.
#
# > **Predict.** Does LRU save more requests, as many, or fewer?
#
# The folded cell simulates both. Then it computes how a fixed part fills, since each of 64 nodes meets only a 64th of
# it per epoch:

# %% jupyter={"source_hidden": true}
import numpy as np


def found_on_the_node(drops_oldest, shuffled=True, shards=16, room=8, epochs=500):
    """Share of the shards of an epoch that need no request."""
    rng, kept, found = np.random.default_rng(0), list(range(room)), 0
    for _ in range(epochs):
        for shard in rng.permutation(shards).tolist() if shuffled else range(shards):
            found += shard in kept
            if drops_oldest:
                kept = [*(other for other in kept if other != shard), shard][-room:]
    return found / (epochs * shards)


print(f"a fixed part is kept: {found_on_the_node(False):.0%} of the requests are saved")
print(f"LRU: {found_on_the_node(True):.0%}; always in the same order {found_on_the_node(True, False):.0%}")
for nodes in (1, 8, 64):  # whole shards are dealt; those of more than 48 MiB are dealt in parts, so they come sooner
    saved = {number: 0.5 * (1 - (1 - 1 / nodes) ** (number - 1)) for number in (2, 10, 50)}
    print(f"a fixed part, nodes {nodes:2}:", ", ".join(f"{share:3.0%} in epoch {number}" for number, share in saved.items()))

# %% [markdown]
# LRU saves fewer: it has usually dropped a shard when the next epoch needs it. On 64 nodes a fixed part is not full
# after 50 epochs, so there stage the set, or stream it.

# %% [markdown] id="exercise"
# ## Exercise
#
# [Exercise 09](../exercises/09_stream_shards.ipynb): read objects even though requests fail, with several in flight,
# and stream an epoch exactly once over two ranks.

# %% [markdown] id="cluster"
# ## On the cluster
#
# On many clusters only some compute nodes can reach a store. Find out, then push once:
#
# ```bash
# export AWS_ENDPOINT_URL=https://s3.example.org      # and your keys: in the environment, or in ~/.aws/credentials
# srun -N1 curl -sI "$AWS_ENDPOINT_URL"               # any answer, even 403: this node reaches it
# ```

# %%
show.command(TransferConfig(workers=32), "push", "train.tars", "s3://course/train")

# %% [markdown]
# ```bash
# slurm/submit SITE 09_stream -- train.tars s3://course/train seen
# ```
#
# The job also counts, in `seen`, that each sample was read once.
#
# All nodes share the store: 64 nodes at 5,100 images/s each ask for 36 GB/s. If it gives less, fetch the shards once to
# the parallel file system (`smallfiles pull s3://course/train train.tars`). Stream what is too large for it, or is read
# once.

# %% [markdown] id="key-points"
# ## Key points
#
# - One request at a time brings at most one object per round trip: store shards.
# - Requests in flight hide latency. You need bandwidth x latency / request size of them, plus one, if one connection
#   fills the network.
# - A manifest object, written last, shows what is complete. A listing does not, and a page of it ends at 1,000 names.
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
